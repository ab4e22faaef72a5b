"""Pressure stall information (PSI): how long tasks waited for CPU, memory or block I/O.

``total=`` is read, microseconds since boot, never the kernel's own averages: windows are ours.
"""

from __future__ import annotations

from stragd.telemetry.counter import Counters
from stragd.telemetry.held import HeldFile

RESOURCES = ("cpu", "memory", "io")


def parse(raw: bytes) -> dict[str, int]:
    """Microseconds of "some" and "full"; what is not there is absent."""
    totals: dict[str, int] = {}
    for line in raw.splitlines():
        kind, _, total = line.partition(b" ")
        total = total.rpartition(b"total=")[2]
        if kind in (b"some", b"full") and total.isdigit():
            totals[kind.decode()] = int(total)
    return totals


class Pressure:
    """PSI of the node (prefix "/proc/pressure/") or of a cgroup ("DIR/", suffix ".pressure")."""

    def __init__(self, prefix: str, suffix: str = "") -> None:
        self._files = {name: HeldFile(f"{prefix}{name}{suffix}") for name in RESOURCES}
        self._counters = Counters()

    def shares(self, now_ns: int) -> dict[str, float]:
        """``pressure_cpu_share``, ``pressure_cpu_full_share`` and so on since the last call."""
        reading: dict[str, int] = {}
        for resource, file in self._files.items():
            for kind, total in parse(file.read() or b"").items():
                full = "_full" if kind == "full" else ""
                reading[f"pressure_{resource}{full}_share"] = total
        change = self._counters.advance(now_ns, reading)
        shares = ((name, change.share(name, 1000.0)) for name in reading)
        return {name: share for name, share in shares if share is not None}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
