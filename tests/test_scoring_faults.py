"""Faults of every kind through the native scorer: each case of the bench, on fewer jobs.

Seeded, so a case comes out the same in every run; ``python -m bench faults`` measures them on 200.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bench import faults
from stragd.replay.measure import silence

JOBS = 24
CASES = {case.name: case for case in faults.cases()}
QUIET = {name: (scenario, kind) for name, scenario, kind in faults.quiet()}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_as_stated_and_nobody_else_is(name: str) -> None:
    case = CASES[name]
    cells, kept = faults.measured(replace(case, scenario=replace(case.scenario, jobs=JOBS)))
    assert kept, (cells, case)


def test_the_bench_sees_a_case_that_does_not_hold() -> None:
    case = CASES["20 % from the first step"]
    short = replace(case, scenario=replace(case.scenario, jobs=4, windows=40))
    assert faults.measured(short)[1]
    for wrong in (replace(short, mean=2.0), replace(short, most=0.5)):
        assert not faults.measured(wrong)[1], wrong
    assert not faults.measured(replace(short, kind="intermittent"))[1]


@pytest.mark.parametrize("name", QUIET)
def test_what_is_nobodys_fault_names_nobody(name: str) -> None:
    scenario, kind = QUIET[name]
    told = silence(replace(scenario, jobs=JOBS), scenario.ranks)
    assert told.stragglers == 0
    assert told.others == (Counter({kind: JOBS}) if kind else Counter())
