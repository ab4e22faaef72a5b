"""How long one update of the scorer takes, and what it keeps.

Method: healthy jobs of 64 windows and more; the median CPU time of one ``Scorer.update`` over the
windows after that, from the numpy array to the Python answer. The reference is
``stragd.scoring.reference`` on the same rows. Memory is the growth of the process's resident set
over one job of 100,000 ranks.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.cost import rss_bytes
from stragd import _rscore
from stragd.replay.simulate import Scenario, simulate
from stragd.scoring.model import Row
from stragd.scoring.reference import Scorer

WARM = 64


def median_time(update: Callable[[NDArray[np.void]], object], ranks: int, windows: int) -> float:
    """Seconds of CPU time of one update."""
    times = []
    for window, rows in enumerate(simulate(Scenario(ranks, windows=WARM + windows))):
        begin = time.thread_time()
        update(rows)
        if window >= WARM:
            times.append(time.thread_time() - begin)
    return statistics.median(times)


def reference(ranks: int) -> float:
    """Seconds of one update of the Python text, the conversion of its rows not counted."""
    scorer, times = Scorer(), []
    names = [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT]
    for array in simulate(Scenario(ranks, windows=WARM + 10)):
        rows = [Row(**dict(zip(names, record, strict=True))) for record in array.tolist()]
        begin = time.thread_time()
        scorer.update(rows)
        times.append(time.thread_time() - begin)
    return statistics.median(times[WARM:])


def main() -> None:
    print("| ranks | one update | a rank | the Python reference |\n|---|---|---|---|")
    for ranks in (8, 64, 1024, 100_000):
        native = median_time(_rscore.Scorer({}).update, ranks, 400 if ranks < 2000 else 20)
        slower = f"{reference(ranks) / native:.0f} times" if ranks <= 64 else "-"
        print(f"| {ranks:,} | {native * 1e6:,.1f} us | {native / ranks * 1e9:,.0f} ns | {slower} |")
        sys.stdout.flush()
    rows = next(iter(simulate(Scenario(100_000, windows=1))))
    scorer = _rscore.Scorer({})
    before = rss_bytes(os.getpid())
    for window in range(8):
        rows["window"] = window
        scorer.update(rows)
    print(f"\n{(rss_bytes(os.getpid()) - before) / 100_000:.0f} bytes a rank, work space included")


if __name__ == "__main__":
    main()
