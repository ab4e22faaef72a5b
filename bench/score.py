"""How long one update of the scorer takes, and what it keeps.

Method: healthy jobs of 64 windows and more; the median and the least CPU time of one
``Scorer.update`` over the windows after that, from the numpy array to the Python answer. *Between*:
each window is simulated right before it is scored, so the scorer finds the caches full of other
things, as in a daemon. *In a row*: all windows are there before, and nothing but the scorer runs.
The reference is ``stragd.scoring.reference`` on the same rows in the same two ways. Memory is the
growth of the process's resident set over one job of 100,000 ranks.

``--against FILE`` loads another build of ``stragd/_rscore.abi3.so`` beside the present one and
gives both each window in turn, so that what else the machine does meets both alike; they must
answer alike, and keep the same state.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.cost import rss_bytes
from stragd import _rscore
from stragd.replay.simulate import Scenario, simulate
from stragd.scoring.model import Row
from stragd.scoring.reference import Scorer

WARM = 64
Rows = NDArray[np.void]


def build(path: Path) -> Any:
    """Another build of the extension, as a module."""
    spec = importlib.util.spec_from_file_location("_rscore", path)
    if spec is None or spec.loader is None:
        sys.exit(f"--against: {path} is no extension module; give a copy of _rscore.abi3.so")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        sys.exit(f"--against: {path} cannot be loaded ({error}); give a copy of _rscore.abi3.so")
    return module


def windows(ranks: int, count: int, in_a_row: bool) -> Iterable[Rows]:
    """``WARM`` windows of a healthy job, and ``count`` more."""
    arrays = simulate(Scenario(ranks, windows=WARM + count))
    return list(arrays) if in_a_row else arrays


def times(scorers: list[Any], arrays: Iterable[Rows]) -> list[list[float]]:
    """Seconds of CPU time of each scorer's updates, the warm ones left out."""
    taken: list[list[float]] = [[] for _ in scorers]
    for window, rows in enumerate(arrays):
        answers = []
        # The second finds Python's part in the caches: each is it in turn.
        for scorer, own in list(zip(scorers, taken, strict=True))[:: -1 if window % 2 else 1]:
            begin = time.thread_time()
            answer = scorer.update(rows)
            if window >= WARM:
                own.append(time.thread_time() - begin)
            answers.append((repr(answer["findings"]), len(answer["abstentions"])))
        if any(answer != answers[0] for answer in answers):
            sys.exit(f"window {window} of {len(rows)} ranks: the two builds answer differently")
    if any(scorer.save() != scorers[0].save() for scorer in scorers):
        sys.exit("the two builds keep different states")
    return taken


def reference(ranks: int, in_a_row: bool) -> float:
    """Seconds of one update of the Python text, the conversion of its rows not counted."""
    scorer, taken = Scorer(), []
    names = [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT]
    converted = (
        [Row(**dict(zip(names, record, strict=True))) for record in array.tolist()]
        for array in windows(ranks, 30, in_a_row)
    )
    for rows in list(converted) if in_a_row else converted:
        begin = time.thread_time()
        scorer.update(rows)
        taken.append(time.thread_time() - begin)
    return statistics.median(taken[WARM:])


def figures(taken: list[float], ranks: int) -> str:
    """Median, least, and the median of one rank."""
    median = statistics.median(taken)
    return f"{median * 1e6:,.1f} us ({min(taken) * 1e6:,.1f}) | {median / ranks * 1e9:,.0f} ns"


def memory(make: Callable[[], Any]) -> float:
    """Bytes of a rank, of a scorer that has scored eight windows of 100,000."""
    rows = next(iter(simulate(Scenario(100_000, windows=1))))
    scorer, before = make(), rss_bytes(os.getpid())
    for window in range(8):
        rows["window"] = window
        scorer.update(rows)
    return (rss_bytes(os.getpid()) - before) / len(rows)


def main(against: Path | None = None) -> None:
    builds = [_rscore] if against is None else [_rscore, build(against)]
    print(f"{memory(lambda: _rscore.Scorer({})):.0f} bytes a rank, work space included\n")
    titles = ["present", str(against)]
    print("| ranks | windows | build | one update (least) | a rank | the Python reference |")
    print("|---|---|---|---|---|---|")
    for ranks in (8, 64, 1024, 100_000):
        for in_a_row in (False, True):
            if in_a_row and ranks > 2000:
                continue
            arrays = windows(ranks, 400 if ranks < 2000 else 20, in_a_row)
            text = reference(ranks, in_a_row) if ranks <= 64 else 0.0
            taken = times([module.Scorer({}) for module in builds], arrays)
            for title, own in zip(titles, taken, strict=False):
                slower = f"{text / statistics.median(own):.0f} times" if text else "-"
                how = "in a row" if in_a_row else "between"
                print(f"| {ranks:,} | {how} | {title} | {figures(own, ranks)} | {slower} |")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
