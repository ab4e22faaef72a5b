"""What the daemon measures about itself: CPU time, memory, event rate."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from typing import Literal

from stragd.outputs.snapshot import Health, Library

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE


def cpu_seconds() -> float:
    """CPU time of this process, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class HealthMeter:
    """Turns running counts into rates, one call per tick."""

    def __init__(self) -> None:
        self.started = time.time()
        self._started = self._last = time.monotonic()
        self._last_cpu = cpu_seconds()
        self._last_events = 0.0

    def measure(
        self,
        counters: Mapping[str, float],
        libraries: Iterable[Library],
        probes: Literal["on", "off"],
        degraded: list[str],
    ) -> Health:
        """The health line of this tick. ``counters`` are ``Engine.counters()``."""
        now, cpu = time.monotonic(), cpu_seconds()
        seconds = max(now - self._last, 1e-3)
        events = sum(v for k, v in counters.items() if k.startswith("events."))
        lost = {k[5:]: int(v) for k, v in counters.items() if k.startswith("lost.")}
        attached = [library for library in libraries if library["state"] == "attached"]
        runs = counters.get("bpf_run_count", 0.0)
        health: Health = {
            "events_per_s": round(max(events - self._last_events, 0.0) / seconds, 1),
            "events": int(events),
            "lost": sum(lost.values()),
            "lost_by_cause": lost,
            "probes_attached": sum(library["probes"] for library in attached),
            "libraries": len(attached),
            "bpf_ns_per_event": (
                round(counters.get("bpf_run_seconds", 0.0) / runs * 1e9, 1) if runs else None
            ),
            "cpu_percent": round((cpu - self._last_cpu) / seconds * 100, 2),
            "rss_bytes": rss_bytes(),
            "uptime_s": round(now - self._started, 1),
            "probes": probes,
            "degraded": degraded,
        }
        self._last, self._last_cpu, self._last_events = now, cpu, events
        return health
