"""Every kind of fault on 200 seeded jobs a case: what is named, how soon, and who else.

Method: as ``bench/power.py`` (64 ranks, Gaussian, 5 % jitter a step, 1.5 % natural spread, 100
steps a window, default configuration, 200 healthy windows before), with whole windows only. A case
is held against the kind of finding that it should give. "Named" has its 95 % interval (Wilson's,
jobs counted as draws). The first table is of jobs with a fault, the second of healthy jobs in which
something happens that looks like one. ``tests/test_scoring_faults.py`` runs the same cases on
fewer jobs and holds each to its ``least``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bench.power import HEALTHY, STAGES, VENDORS, slow
from stragd.replay import intervals
from stragd.replay.measure import power, silence
from stragd.replay.simulate import Fault, Machine, Scenario, Transfers

JOBS = 200
BASE = slow("gaussian", 0.02, JOBS)
THREE, QUARTER = (3, 20, 41), tuple(range(16))
OVER = HEALTHY + 40
"""End of the faults that end."""
FAST_ONE = (Machine(1, 63.0, 1.2), Machine(2, 1.0, 1.0))
HALVES = (Machine(1, 1.0, 1.0), Machine(2, 1.0, 1.0))


@dataclass(frozen=True)
class Case:
    """A fault, what should be said of it, and the least that may come out."""

    name: str
    scenario: Scenario
    begin: int = HEALTHY
    kind: str = "straggler"
    least: float = 1.0
    """Share of the faulty subjects that are named."""
    mean: float = 3.0
    """Windows until then, at most."""
    most: float = 1.0
    """Share that is named, at most."""


def _slow(ranks: tuple[int, ...], slowdown: float, begin: int = HEALTHY, **more: float) -> Scenario:
    fault = replace(Fault(ranks, slowdown, begin), **more)  # type: ignore[arg-type]
    return replace(BASE, faults=(fault,), ordinary=ranks)


def _network(slowdown: float) -> Scenario:
    return replace(BASE, faults=(), ordinary=(), network=(Transfers(slowdown, HEALTHY),))


def _group(ranks: range, slowdown: float, **more: object) -> Scenario:
    fault = Fault(tuple(ranks), slowdown, HEALTHY)
    return replace(BASE, faults=(fault,), ordinary=(), **more)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """Every case with a fault."""
    four = (1.0,) * 4
    return [
        Case("3 of 64 slow by 2 %", _slow(THREE, 0.02), mean=3.6),
        Case("a quarter of 64 slow by 3 %", _slow(QUARTER, 0.03)),
        Case("a quarter of one of two classes slow by 5 %",
             replace(_slow(tuple(range(32, 40)), 0.05), machines=VENDORS[:2])),
        Case("5 % from the first step", _slow((3,), 0.05, 0), 0, least=0.0, most=0.02),
        Case("8 % from the first step", _slow((3,), 0.08, 0), 0, least=0.0, most=0.5, mean=280.0),
        Case("10 % from the first step", _slow((3,), 0.1, 0), 0, least=0.9, mean=5.0),
        Case("12 % from the first step", _slow((3,), 0.12, 0), 0, mean=4.0),
        Case("20 % from the first step", _slow((3,), 0.2, 0), 0),
        Case("5 % from the first step, no natural spread",
             replace(_slow((3,), 0.05, 0), natural=0.0), 0, mean=6.0),
        Case("7 % from the first step, spread of 0.75 %",
             replace(_slow((3,), 0.07, 0), natural=0.0075), 0, least=0.95, mean=6.0),
        Case("15 % from the first step, 1 of 8",
             replace(_slow((3,), 0.15, 0), ranks=8), 0, least=0.9, mean=20.0),
        Case("drift of 0.1 % a window", _slow((3,), 0.0, drift=0.001), mean=18.0),
        Case("one window in five slow by 10 %", _slow((3,), 0.1, every=5), kind="intermittent",
             mean=17.0),
        Case("the same, as a straggler", _slow((3,), 0.1, every=5), least=0.0, most=0.0),
        Case("2 %, over after 40 windows", _slow((3,), 0.02, end=OVER), mean=3.6),
        Case("5 %, over after 40 windows", _slow((3,), 0.05, end=OVER), mean=2.1),
        Case("5 %, replaced after 40 windows",
             _slow((3,), 0.05, end=OVER, replaced=True), mean=2.1),
        Case("5 %, 20 windows after a resize to 48 ranks",
             replace(_slow((3,), 0.05), sizes=((HEALTHY - 20, 48),))),
        Case("2 %, after 20 windows only", _slow((3,), 0.02, 20), 20, mean=5.5),
        Case("2 %, one row in ten of the rank missing", _slow((3,), 0.02, missing=0.1), mean=4.2),
        Case("2 %, half of the rank's rows missing",
             _slow((3,), 0.02, missing=0.5), least=0.9, mean=9.0),
        Case("2 %, while a healthy rank is gone",
             replace(BASE, faults=(*BASE.faults, Fault((9,), 0.0, HEALTHY - 1, missing=1.0))),
             mean=3.6),
        Case("3 % in the slower of two vendors",
             replace(_slow((40,), 0.03), machines=STAGES), mean=2.4),
        Case("3 % among ranks of which one is 20 % faster",
             replace(_slow((40,), 0.03), machines=FAST_ONE), mean=2.4),
        Case("3 % in one stage of four", replace(_slow((40,), 0.03), stages=four), mean=2.6),
        Case("3 % in the slowest of two uneven stages",
             replace(_slow((40,), 0.03), stages=(1.0, 1.3)), mean=2.6),
        Case("10 %, work of the ranks differs by 3 % a window",
             replace(_slow((40,), 0.1), load=0.03), mean=8.0),
        Case("2 of 4 slow by 10 %",
             replace(_slow((0, 1), 0.1), ranks=4), mean=2.1),
        Case("1 of 2 slow by 5 %", replace(_slow((1,), 0.05), ranks=2), mean=2.6),
        Case("a stage of four slower by 20 %",
             _group(range(48, 64), 0.2, stages=four), kind="uneven-work", mean=4.0),
        Case("a class slower by 20 %",
             _group(range(32, 64), 0.2, machines=HALVES), kind="imbalance", mean=4.0),
        Case("everybody slower by 15 %", _group(range(64), 0.15), kind="job-wide", mean=8.0),
        Case("transfers longer by 40 %", _network(0.4), kind="network", mean=8.0),
    ]  # fmt: skip


def quiet() -> list[tuple[str, Scenario, str | None]]:
    """Name and scenario of healthy jobs in which something happens, and the one kind of finding
    that every such job gives."""
    base = replace(BASE, faults=(), ordinary=())
    healthy = Fault((3,), 0.0, 0, HEALTHY)
    return [
        ("a healthy rank replaced by another machine",
         replace(base, faults=(replace(healthy, replaced=True),)), None),
        ("resized from 64 to 48 ranks and back",
         replace(base, sizes=((100, 48), (HEALTHY, 64))), None),
        ("a rank without windows for 30, then back",
         replace(base, faults=(Fault((3,), 0.0, 100, 130, missing=1.0),)), None),
        ("a rank with half of its windows",
         replace(base, faults=(Fault((3,), 0.0, 100, missing=0.5),)), None),
        ("a vendor 20 % slower by design", replace(base, machines=STAGES), "imbalance"),
        ("one GPU 20 % faster than 63", replace(base, machines=FAST_ONE), None),
        ("the last of four stages 30 % longer",
         replace(base, stages=(1.0, 1.0, 1.0, 1.3)), "uneven-work"),
        ("work of the ranks differs by 3 % a window", replace(base, load=0.03), None),
    ]  # fmt: skip


def measured(case: Case) -> tuple[list[str], bool]:
    """Cells of a row of the table, and whether it keeps what the case promises."""
    seen = power(case.scenario, case.begin, case.kind)
    found = seen.delays[np.isfinite(seen.delays)]
    share = float(np.isfinite(seen.delays).mean())
    low, high = intervals.share(share * len(seen.delays), len(seen.delays))
    kept = case.least <= share <= case.most and seen.others == seen.flaps == 0
    windows = ["-", "-", "-"]
    if len(found):
        kept &= float(found.mean()) <= case.mean
        windows = [f"{found.mean():.2f}", f"{np.quantile(found, 0.99):.0f}", f"{found.max():.0f}"]
    cleared = "-"
    if case.scenario.faults and case.scenario.faults[0].end < 1 << 30:
        ends = seen.clear[np.isfinite(seen.delays)]
        kept &= bool(np.isfinite(ends).all())
        cleared = f"{ends.mean():.2f}, {np.quantile(ends, 0.99):.0f}, {ends.max():.0f}"
    named = f"{share:.1%} ({low:.1%} to {high:.1%})"
    return [case.name, case.kind, named, *windows, cleared, str(seen.others), str(seen.flaps)], kept


def main() -> None:
    print(f"### Faults: {JOBS} jobs a case\n")
    columns = (
        "case", "finding", "named", "mean", "99 %", "longest",
        "cleared after (mean, 99 %, longest)", "others named", "named again",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for case in cases():
        print(f"| {' | '.join(measured(case)[0])} |", flush=True)
    print(f"\n### Nobody's fault: {JOBS} jobs a case\n")
    print(
        "| what happens | rank-windows | stragglers | other findings, in jobs |\n|---|---|---|---|"
    )
    for name, scenario, _ in quiet():
        told = silence(scenario, scenario.ranks)
        others = ", ".join(f"{kind} {count}" for kind, count in told.others.items()) or "-"
        print(f"| {name} | {told.rank_windows:,} | {told.stragglers} | {others} |", flush=True)


if __name__ == "__main__":
    main()
