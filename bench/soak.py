"""Does memory stay flat for hours?

Method: jobs of eight stub ranks come and go every few seconds, together about 20,000 calls a
second, for 30 minutes; RSS of the daemon every 5 s. Flat: after a warm-up of a fifth of the time
the highest minus the lowest one-minute median is at most 2 MB.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.cost import build, load, rss_bytes
from tests.harness import daemon

JOBS = 2
RANKS = 4
EVENTS_PER_SECOND = 20_000
LIFE_SECONDS = 20


def soak(seconds: float) -> tuple[list[float], float, float]:
    """RSS samples in MB, events that arrived a second, and events lost."""
    samples: list[float] = []
    with tempfile.TemporaryDirectory(prefix="stragd-soak-") as directory, daemon() as watcher:
        program, library = build(Path(directory))
        assert watcher.process is not None
        rate = EVENTS_PER_SECOND / (JOBS * RANKS)
        running: list[list] = [[] for _ in range(JOBS)]
        start = time.monotonic()
        generation = 0
        while time.monotonic() - start < seconds:
            for slot in range(JOBS):
                if all(p.poll() is not None for p in running[slot]):
                    generation += 1
                    life = LIFE_SECONDS * (1 + 0.3 * slot)
                    running[slot] = [
                        load(program, library, rate, life, r, RANKS, f"soak{generation}")
                        for r in range(RANKS)
                    ]
            time.sleep(1)
            samples.append(rss_bytes(watcher.process.pid) / 1e6)
        took = time.monotonic() - start
        for processes in running:
            for process in processes:
                process.kill()
                process.wait()
        health = watcher.ask("top")["health"]
    return samples, health["events"] / took, health["lost"]


def spread(samples: list[float], minute: int = 60) -> float:
    """Highest minus lowest median of a minute after the first fifth, MB."""
    settled = samples[len(samples) // 5 :]
    size = max(1, min(minute, len(settled) // 4))
    medians = [
        statistics.median(settled[i : i + size]) for i in range(0, len(settled) - size + 1, size)
    ]
    return max(medians) - min(medians)


def main(seconds: float = 1800) -> None:
    samples, rate, lost = soak(seconds)
    print(f"{seconds:.0f} s, {rate:,.0f} events/s, {lost:,.0f} lost")
    print(f"RSS at the end {samples[-1]:.1f} MB, spread after warm-up {spread(samples):.2f} MB")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1800)
