"""What a cause is, and how evidence makes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stragd.diagnosis.compare import Deviation, View
from stragd.diagnosis.signals import EXPLAINED
from stragd.finding import Where

Gate = Callable[[View], float]
"""What data cannot say: 0 rules a cause out, 1 lets it stand, between them it gets weaker."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table."""

    name: str
    where: Where
    weight: float
    """Confidence that its clearest picture deserves, nothing else deviating."""
    signals: tuple[str, ...]
    """Keys of SIGNALS; each of them alone makes the cause."""
    advice: str
    supports: tuple[str, ...] = ()
    """Keys that make it surer when they deviate too, and alone make nothing."""
    context: tuple[str, ...] = ()
    """"kind.quantity" shown beside the evidence, not judged."""
    gate: Gate = lambda view: 1.0
    symptom_of: tuple[str, ...] = ()
    """Causes that bring the same picture along: where one of them is named, this one yields."""
    clocks: bool = False
    """Its harm is the lower SM clock, so that clock must be able to explain the slowdown."""
    of_rank: bool = False
    """Means something only of a rank that the timing found slow: victims look the same."""
    noticed: Callable[[View], tuple[float, str] | None] = lambda view: None
    """Evidence that is no number: its strength and its line."""
    elsewhere: Callable[[View], Where | None] = lambda view: None
    """Another place than ``where``, if the rank's telemetry says so."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause with what speaks for it."""

    cause: Cause
    score: float
    """0 to 1."""
    deviations: tuple[Deviation, ...]
    line: str
    """Evidence that is no number."""
    explained: float | None
    """Share of the slowdown that the evidence accounts for; None where it cannot be told."""
    where: Where


def judge(cause: Cause, view: View, slowdown: float | None) -> Verdict | None:
    """The case for one cause; None where there is none. ``slowdown`` as in a finding."""
    found = [d for d in map(view.deviation, cause.signals) if d is not None]
    noticed = cause.noticed(view)
    strengths = [d.strength for d in found] + ([noticed[0]] if noticed else [])
    gate = cause.gate(view) if strengths else 0.0
    if gate <= 0.0:
        return None
    found.sort(key=lambda d: -d.strength)
    found += [d for d in map(view.deviation, cause.supports) if d is not None]
    explained = _explained(cause, view, found, slowdown)
    score = cause.weight * max(strengths) * gate
    if explained is not None:
        # A delay that the cost dwarfs happened beside it.
        score *= min(1.0, explained / EXPLAINED)
    score += 0.03 * min(3, len(found) + bool(noticed) - 1) * score
    line = noticed[1] if noticed else ""
    where = cause.elsewhere(view) or cause.where
    return Verdict(cause, min(score, 0.98), tuple(found), line, explained, where)


def _explained(
    cause: Cause, view: View, found: list[Deviation], slowdown: float | None
) -> float | None:
    """Lost time over the time that the slowdown needs: own times 1 + s take s / (1 + s) of it."""
    if slowdown is None or slowdown <= 0:
        return None
    lost = [d.lost for d in found if d.lost is not None]
    if cause.clocks:
        clock = view.deviation("gpu.sm_clock_mhz")
        if clock is not None and clock.reference:
            lost.append(1.0 - clock.value / clock.reference)
    return max(0.0, *lost) * (1.0 + slowdown) / slowdown if lost else None
