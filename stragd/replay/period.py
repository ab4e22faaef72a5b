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
RARE_TOKENS = 8
CANDIDATES = 512


def find_period(tokens: Tokens) -> int:
    """Collectives per step, 0 where no sequence repeats.

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
    """The sequence of a step that occurs most often; the first one may be another."""
    rows = tokens[: len(tokens) // period * period].reshape(-1, period)
    cycles, counts = np.unique(rows, axis=0, return_counts=True)
    return np.asarray(cycles[np.argmax(counts)], dtype=np.int64)


def find_steps(tokens: Tokens, cycle: Tokens) -> list[int]:
    """Where the cycle begins, each time; what does not fit is left out."""
    starts: list[int] = []
    place, length = 0, len(cycle)
    firsts = np.flatnonzero(tokens == cycle[0])
    while True:
        at = np.searchsorted(firsts, place)
        if at == len(firsts) or firsts[at] + length > len(tokens):
            return starts
        place = int(firsts[at])
        if np.array_equal(tokens[place : place + length], cycle):
            starts.append(place)
            place += length
        else:
            place += 1
