"""The repeating sequence of a rank's collectives, with the whole recording at hand.

The live engine (``rscore/src/steps``) decides while events come in; here the shortest period that
explains the sequence best is looked for at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]

LEAST_MATCH = 0.9
"""Share of the sequence that must repeat."""
LEAST_REPEATS = 3
LEAST_FOR_EDGES = 100
"""Collectives of a recording that can do without its ends."""
RARE_TOKENS = 8
CANDIDATES = 512


def find_period(tokens: Tokens) -> int:
    """Collectives per step, 0 where no sequence repeats.

    A job's beginning and end are unlike its steps, so the middle is asked first.
    """
    edge = len(tokens) // 8 if len(tokens) >= LEAST_FOR_EDGES else 0
    return _period(tokens[edge : len(tokens) - edge]) or _period(tokens)


def _period(tokens: Tokens) -> int:
    """Collectives per step of these, 0 where no sequence repeats.

    A period is a distance between two occurrences of every collective in it, so the rarest ones
    give the candidates. Layers of one kind repeat within a step nearly as well as the step does,
    hence the best match decides, and the shorter one only where it is as good. What occurs once or
    twice is no part of any step.
    """
    values, counts = np.unique(tokens, return_counts=True)
    tokens = tokens[np.isin(tokens, values[counts >= LEAST_REPEATS])]
    candidates: set[int] = set()
    ordered = sorted(zip(counts.tolist(), values.tolist(), strict=True))
    rare = [value for count, value in ordered if count >= LEAST_REPEATS]
    for value in rare[:RARE_TOKENS]:
        places = np.flatnonzero(tokens == value)[: CANDIDATES + 1]
        candidates.update((places[1:] - places[0]).tolist())
    half = len(tokens) // 2
    matches = {
        p: float(np.mean(tokens[p:] == tokens[:-p])) for p in sorted(candidates) if p <= half
    }
    best = max(matches.values(), default=0.0)
    if best < LEAST_MATCH:
        return 0
    return next(p for p, match in matches.items() if 1 - match <= 1.25 * (1 - best) + 1e-12)


def find_phase(period: int, gaps: NDArray[np.float64]) -> int:
    """Where in the sequence a step begins: at the place with the longest gap before it.

    ``gaps`` is the time without any collective before each one, in any unit.
    """
    whole = len(gaps) // period * period
    usual = np.median(gaps[:whole].reshape(-1, period), axis=0)
    return int(np.argmax(usual))


def usual_cycle(tokens: Tokens, period: int) -> Tokens:
    """The sequence of a step that occurs most often; empty where there is no whole one."""
    rows = tokens[: len(tokens) // period * period].reshape(-1, period)
    if not len(rows):
        return tokens[:0]
    cycles, counts = np.unique(rows, axis=0, return_counts=True)
    return np.asarray(cycles[np.argmax(counts)], dtype=np.int64)


def usual_distance(begins: NDArray[np.bool_]) -> int:
    """The distance between marked places that occurs most often, 0 of fewer than two."""
    distances, counts = np.unique(np.diff(np.flatnonzero(begins)), return_counts=True)
    return int(distances[np.argmax(counts)]) if len(counts) else 0


def find_steps(tokens: Tokens, cycle: Tokens, begins: NDArray[np.bool_] | None = None) -> list[int]:
    """Where the cycle begins, each time; what does not fit is left out.

    With ``begins`` a step begins at a place that is marked, or where the one before it ended.
    """
    starts: list[int] = []
    place, length = 0, len(cycle)
    possible = tokens == cycle[0]
    firsts = np.flatnonzero(possible if begins is None else possible & begins)
    while True:
        at = np.searchsorted(firsts, place)
        if starts and place == starts[-1] + length and place < len(tokens) and possible[place]:
            pass  # right behind the step before
        elif at == len(firsts):
            return starts
        else:
            place = int(firsts[at])
        if place + length > len(tokens):
            return starts
        if np.array_equal(tokens[place : place + length], cycle):
            starts.append(place)
            place += length
        else:
            place += 1
