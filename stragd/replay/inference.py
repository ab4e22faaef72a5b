"""Steps of ranks of which only the collectives are known: by their repeating sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stragd.replay.period import find_period, find_phase, find_steps, usual_cycle, usual_distance
from stragd.replay.recording import RecordingError, key_of
from stragd.replay.steps import WINDOWS, RankSteps, busy_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SLICE_COLLECTIVES = 8
LEAST_COVERED = 0.8
"""Share of a rank's collectives that must be in steps."""
LEAST_WORKING = 0.9
"""Share of steps with own work, below which what repeats are the buckets of a step."""


@dataclass
class Collectives:
    """Collectives of one rank in the order of their issue; times in ns since ``zero_ns``."""

    rank: int
    class_id: int
    source: int
    zero_ns: int  # since the epoch
    tokens: NDArray[np.int64]
    start: Floats
    end: Floats


def infer_steps(traces: Sequence[Collectives]) -> list[RankSteps] | None:
    """Steps of all ranks; None where one of them has no repeating sequence."""
    return _by_sequence(traces) or _by_work(traces)


def _by_sequence(traces: Sequence[Collectives]) -> list[RankSteps] | None:
    cycles: list[NDArray[np.int64]] = []
    ranks: list[RankSteps] = []
    for trace in traces:
        known = (
            cycle for cycle in cycles if _covered(trace, cycle, find_steps(trace.tokens, cycle))
        )
        cycle = next(known, None)
        if cycle is None:
            period = find_period(trace.tokens)
            if not period:
                return None
            phase = find_phase(period, _gaps(trace))
            cycle = usual_cycle(trace.tokens[phase:], period)
            cycles.append(cycle)
        if not _take(ranks, trace, cycle, find_steps(trace.tokens, cycle)):
            return None
    return ranks


def _by_work(traces: Sequence[Collectives]) -> list[RankSteps] | None:
    """Buckets of one size hide where a step begins; the work before the first one shows it."""
    guesses: Counter[int] = Counter()
    for trace in traces:
        worked = _gaps(trace) > _least_work(_gaps(trace))
        guesses[find_period(trace.tokens * 2 + worked) or usual_distance(worked)] += 1
    period = guesses.most_common(1)[0][0]
    ranks: list[RankSteps] = []
    for trace in traces:
        if not 0 < period <= len(trace.tokens) // 2:
            return None
        # As many steps as there can be have the longest gaps before them.
        gaps = _gaps(trace)
        longest = np.sort(gaps)[-(len(gaps) // period) :]
        begins = gaps > np.median(longest) / 2
        cycle = usual_cycle(trace.tokens[int(np.argmax(begins)) :], period)
        if not len(cycle):
            return None
        if not _take(ranks, trace, cycle, find_steps(trace.tokens, cycle, begins)):
            return None
    return ranks


def _take(
    ranks: list[RankSteps], trace: Collectives, cycle: NDArray[np.int64], starts: list[int]
) -> bool:
    """Measure a rank's steps; False where they are none."""
    rank = _measure(trace, cycle, starts)
    ranks.append(rank)
    working = len(rank.number) >= max(1.0, LEAST_WORKING * (len(starts) - 1))
    return working and _covered(trace, cycle, starts)


def _covered(trace: Collectives, cycle: NDArray[np.int64], starts: list[int]) -> bool:
    return len(starts) * len(cycle) >= LEAST_COVERED * (len(trace.tokens) - len(cycle))


def _least_work(gaps: Floats) -> float:
    """The longest gaps that hold nine tenths of a rank's own work, and those half as long as the
    least of them, count as work."""
    longest = np.sort(gaps)[::-1]
    enough = int(np.searchsorted(np.cumsum(longest), 0.9 * longest.sum()))
    return float(longest[min(enough, len(longest) - 1)]) / 2


def _gaps(trace: Collectives) -> Floats:
    until = np.maximum.accumulate(trace.end)
    return np.concatenate([[0.0], np.maximum(trace.start[1:] - until[:-1], 0.0)])


def _measure(trace: Collectives, cycle: NDArray[np.int64], starts: list[int]) -> RankSteps:
    """Each step from the end of the step before, where that was the one just before it."""
    number, ends, walls, busy = [], [], [], []
    until = np.maximum.accumulate(trace.end)
    for index, place in enumerate(starts):
        if place == 0:
            continue  # nothing before it to measure from
        before, end = float(until[place - 1]), float(until[place + len(cycle) - 1])
        inside = slice(place, place + len(cycle))
        begin = np.clip(trace.start[inside], before, end)
        time = busy_time(begin, np.clip(trace.end[inside], before, end))
        if end - before > time:
            number.append(index)
            ends.append(end)
            walls.append(end - before)
            busy.append(time)
    signature = key_of(",".join(str(token) for token in cycle))
    return RankSteps(
        trace.rank, signature, np.array(number, dtype=np.int64), np.array(ends), np.array(walls),
        np.array(busy), trace.class_id, len(cycle), trace.source, trace.zero_ns,
    )  # fmt: skip


def time_slices(traces: Sequence[Collectives]) -> list[RankSteps]:
    """Each rank's time in equal slices: without steps, shares of time are compared."""
    count = min(WINDOWS, *(len(trace.tokens) // SLICE_COLLECTIVES for trace in traces))
    if count < 1:
        raise RecordingError(
            f"a rank has fewer than {SLICE_COLLECTIVES} collectives: record more steps"
        )
    ranks = []
    for trace in traces:
        edges = np.linspace(trace.start.min(), trace.end.max(), count + 1)
        busy = np.array([
            busy_time(np.clip(trace.start, a, b), np.clip(trace.end, a, b))
            for a, b in pairwise(edges)
        ])  # fmt: skip
        wall = np.diff(edges)
        kinds = key_of(",".join(str(token) for token in np.unique(trace.tokens)))
        whole = wall > busy
        ranks.append(
            RankSteps(
                trace.rank,
                kinds,
                np.flatnonzero(whole),
                edges[1:][whole],
                wall[whole],
                busy[whole],
                trace.class_id,
                len(trace.tokens) / count,
                trace.source,
                trace.zero_ns,
            )  # fmt: skip
        )
    return ranks
