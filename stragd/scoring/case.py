"""Life of a finding: suspect, confirmed, recovering, cleared."""

from __future__ import annotations

from dataclasses import dataclass

from stragd.scoring.model import (
    CALM,
    CLEARED,
    CONFIRMED,
    OPEN,
    RECOVERING,
    STRONG,
    SUSPECT,
    WEAK,
    Config,
    Finding,
)

CLEAR = 11.0
"""Log likelihood ratio of "as before" against "still slow" that ends a finding: a slow rank is
declared well once in about exp(11) windows."""
DOUBT = 4.0
"""The same, for the state `recovering`."""
MEMORY = 16
"""Windows over which the size of a slowdown is averaged."""
CLIP = 8.0
LASTS = 5.0
"""Deviations of the least slowdown that counts as still slow: at half of it noise is rare."""

CHANGE, LEVEL, FAST = range(3)
"""What proved a case: a change against the past, the level above the peers, the fast lane."""


@dataclass
class Case:
    """A finding that is open. ``base`` is what was usual, relative to the series' anchor."""

    id: int
    state: int
    since_window: int
    since_time_ns: int
    quiet: int = 0
    how: int = CHANGE
    base: float = 0.0
    shift: float = 0.0
    windows: int = 0
    recovery: float = 0.0
    deviate: float = 0.0
    """Largest deviate so far, in standard deviations."""
    finding: Finding | None = None

    def proven(self) -> bool:
        """Confirmed once, and not cleared yet."""
        return self.state in (CONFIRMED, RECOVERING)

    def follow(self, value: float, deviation: float, limit: float, config: Config) -> None:
        """One window of a proven case: a sequential test of recovery (Wald 1947).

        ``value`` is relative to ``base``; ``limit`` is the least unnatural level, which counts
        for a case that never had a past.
        """
        least = min(self.shift, max(LASTS * deviation, self.shift / 4.0))
        if self.how == LEVEL:
            least = max(least, min(self.shift, limit))
        middle = least / 2.0
        self.windows = min(self.windows + 1, MEMORY)
        if value >= middle:
            self.shift += (value - self.shift) / float(self.windows)
        term = (least / deviation) * ((middle - value) / deviation)
        self.recovery = max(self.recovery + min(max(term, -CLIP), CLIP), 0.0)
        if self.recovery == 0.0:
            self.quiet = 0
            self.state = CONFIRMED
            return
        self.quiet += 1
        if self.recovery >= CLEAR and self.quiet >= config.clear_windows:
            self.state = CLEARED
        elif self.recovery >= DOUBT:
            self.state = RECOVERING

    def count(self, evidence: int, config: Config) -> None:
        """One window of a proven case that is counted only."""
        if evidence >= WEAK:
            self.quiet = 0
            self.state = CONFIRMED
        elif evidence == CALM:
            self.quiet += 1
            self.state = CLEARED if self.quiet >= config.clear_windows else RECOVERING


def suspect(
    case: Case | None,
    evidence: int,
    window: int,
    since: tuple[int, int],
    config: Config,
    next_id: list[int],
) -> Case | None:
    """One window of what is not proven yet. A new case takes the next of ``next_id``."""
    long_enough = max(window - since[0], 0) + 1 >= config.confirm_windows
    if evidence >= WEAK:
        if case is None:
            case = Case(next_id[0], SUSPECT, since[0], since[1])
            next_id[0] += 1
        case.since_window, case.since_time_ns = since
        case.state = CONFIRMED if evidence == STRONG and long_enough else SUSPECT
    elif case is not None and evidence != OPEN:
        case.state = CLEARED
    return case
