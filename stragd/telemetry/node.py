"""The node as a whole: pressure, stolen time, swap, load, CPU clocks."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from stragd.discovery.process import read_bounded
from stragd.telemetry.counter import Counters, number, put
from stragd.telemetry.held import HeldFile
from stragd.telemetry.pressure import Pressure

MAX_CLOCKS = 8  # some drivers interrupt a CPU to answer


class Node:
    """Reads one node; what its kernel does not have is absent."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._pressure = Pressure(f"{root}/proc/pressure/")
        # The first line of stat sums up all CPUs; vmstat has no order that can be relied on.
        self._stat = HeldFile(f"{root}/proc/stat", 512)
        self._vmstat = HeldFile(f"{root}/proc/vmstat", 1 << 16)
        self._load = HeldFile(f"{root}/proc/loadavg", 128)
        self._counters = Counters()
        self._cpus = len(cpu_list(read_bounded(f"{root}/sys/devices/system/cpu/online", 4096)))

    def values(self, now_ns: int, cpus: Collection[int]) -> dict[str, float]:
        """By the names of ``NODE``; ``cpus`` are those whose clocks matter."""
        values = self._pressure.shares(now_ns)
        reading: dict[str, int] = {}
        words = (self._stat.read() or b"").split(b"\n", 1)[0].split()
        if len(words) >= 9 and words[0] == b"cpu" and all(w.isdigit() for w in words[1:9]):
            # user nice system idle iowait irq softirq steal; guest time is within user and nice.
            reading["steal"] = int(words[8])
            reading["all"] = sum(map(int, words[1:9]))
        raw = self._vmstat.read() or b""
        swapped = number(raw.partition(b"\npswpin ")[2].partition(b"\n")[0])
        if swapped is not None:
            reading["swap_in"] = swapped
        change = self._counters.advance(now_ns, reading)
        if change.by.get("all") and "steal" in change.by:
            values["steal_share"] = change.by["steal"] / change.by["all"]
        put(values, "swap_in_per_s", change.per_s("swap_in"))
        load = (self._load.read() or b"").split()
        if load and self._cpus:
            with suppress(ValueError):
                values["load_per_cpu"] = float(load[0]) / self._cpus
        self._clocks(values, cpus)
        return values

    def _clocks(self, values: dict[str, float], cpus: Collection[int]) -> None:
        now: list[int] = []
        best: list[int] = []
        for cpu in sorted(cpus)[:MAX_CLOCKS]:
            directory = f"{self._root}/sys/devices/system/cpu/cpu{cpu}/cpufreq"
            khz = number(read_bounded(f"{directory}/scaling_cur_freq", 32))
            highest = number(read_bounded(f"{directory}/cpuinfo_max_freq", 32))
            if khz and highest:
                now.append(khz)
                best.append(highest)
        if now:
            values["cpu_frequency_mhz"] = sum(now) / len(now) / 1000
            values["cpu_frequency_max_mhz"] = sum(best) / len(best) / 1000


def cpu_list(raw: bytes | None) -> frozenset[int]:
    """CPUs of the kernel's list format, "0-3,8"; empty where it is none."""
    cpus: set[int] = set()
    for part in (raw or b"").strip().split(b","):
        first, _, last = part.partition(b"-")
        if first.isdigit() and (last or first).isdigit() and int(last or first) < 1 << 16:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
