"""TCP counters of the network namespaces in which ranks live, for jobs over sockets."""

from __future__ import annotations

from stragd.discovery.process import read_bounded
from stragd.telemetry.counter import Counters, number

WANTED = (b"OutSegs", b"RetransSegs")


class Namespaces:
    """Reads each namespace once per pass."""

    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}
        self._read_at = -1
        self._values: dict[str, dict[str, float]] = {}

    def retransmits(self, now_ns: int, namespace: str, directory: str) -> dict[str, float]:
        """``retransmits_ppm`` of a namespace, read through one of its processes (/proc/PID)."""
        if now_ns != self._read_at:
            self._read_at, self._values = now_ns, {}
        if namespace not in self._values:
            # Not a held file: that would keep the namespace of a job that has ended alive.
            reading = parse(read_bounded(f"{directory}/net/snmp", 1 << 14) or b"")
            change = self._counters.setdefault(namespace, Counters()).advance(now_ns, reading)
            values: dict[str, float] = {}
            if change.by.get("OutSegs") and "RetransSegs" in change.by:
                # OutSegs does not count what is sent again.
                again = change.by["RetransSegs"]
                values["retransmits_ppm"] = 1e6 * again / (change.by["OutSegs"] + again)
            self._values[namespace] = values
        return self._values[namespace]

    def keep(self, namespaces: set[str]) -> None:
        """Forget the others."""
        self._counters = {n: c for n, c in self._counters.items() if n in namespaces}


def parse(raw: bytes) -> dict[str, int]:
    """Wanted counters of a net/snmp text: a line of names, a line of values."""
    lines = [line.split() for line in raw.splitlines() if line.startswith(b"Tcp: ")]
    if len(lines) != 2:
        return {}
    pairs = zip(lines[0], lines[1], strict=False)
    reading = ((name.decode(), number(value)) for name, value in pairs if name in WANTED)
    return {name: value for name, value in reading if value is not None}
