"""The table of causes, its numbers, and docs/causes.md say the same."""

from __future__ import annotations

import re

import pytest

from stragd.diagnosis import CAUSES, KIND_CAUSES
from stragd.diagnosis.cause import Cause
from stragd.diagnosis.events import KEYS
from stragd.diagnosis.readings import read
from stragd.diagnosis.signals import SIGNALS
from stragd.diagnosis.words import CONTEXT
from stragd.telemetry import quantities, quantities_host
from stragd.telemetry.sample import Sample
from tests import jobs_of_samples
from tests.harness import ROOT

NAMES = [cause.name for cause in CAUSES]
DERIVED = {
    "gpu.pcie_lanes_missing_count": {"pcie_width_count": 4.0, "pcie_width_max_count": 16.0},
    "gpu.pcie_generations_missing_count": {
        "pcie_generation_count": 1.0,
        "pcie_generation_max_count": 5.0,
    },
    "gpu.power_limit_cut_share": {"power_limit_w": 350.0, "power_limit_default_w": 700.0},
    "nic.rate_cut_share": {"rate_gbps": 100.0, "rate_max_gbps": 400.0},
    "nic.pcie_cut_share": {"pcie_gbps": 64.0, "pcie_max_gbps": 512.0},
}


def rows() -> dict[str, list[str]]:
    """docs/causes.md: cells of a row by the cause's name."""
    text = (ROOT / "docs/causes.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", text, re.MULTILINE)
    assert len(found) == len({name for name, _ in found})
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in found}


def test_docs_and_table_name_the_same_causes() -> None:
    kinds = [name for name, _, _ in KIND_CAUSES.values()]
    documented = rows()
    assert sorted(documented) == sorted([*NAMES, *kinds])
    for cause in CAUSES:
        assert documented[cause.name][0].startswith(cause.where), cause.name
    assert all(len(cells) == 5 and all(cells) for cells in documented.values())


def test_every_trap_names_tests_that_exist() -> None:
    text = (ROOT / "docs/causes.md").read_text(encoding="utf-8")
    traps = re.findall(r"^\| ([0-9]+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, _ in traps] == list(range(1, 20))
    for number, cells in traps:
        named = re.findall(r"`([a-z_]+\.py)::(test_\w+)`", cells)
        assert named, f"trap {number} has no test"
        for file, test in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert f"\ndef {test}(" in source, f"trap {number}: {file} has no {test}"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_a_row_is_whole(cause: Cause) -> None:
    assert 0.4 <= cause.weight < 1  # less could never be named
    assert cause.advice[0].islower()
    assert "\n" not in cause.advice
    assert set(cause.symptom_of) <= set(NAMES) - {cause.name}
    for key in (*cause.signals, *cause.supports):
        assert key in SIGNALS, key
    assert set(cause.context) <= set(CONTEXT)


def test_no_two_causes_yield_to_each_other() -> None:
    yields = {cause.name: set(cause.symptom_of) for cause in CAUSES}
    assert not [(a, b) for a in yields for b in yields[a] if a in yields[b]]


def test_every_number_is_used_and_has_a_source() -> None:
    used = {key for cause in CAUSES for key in (*cause.signals, *cause.supports)}
    assert used == set(SIGNALS)
    for key, signal in SIGNALS.items():
        assert signal.source, key
        assert 0 < signal.least <= signal.full, key


@pytest.mark.parametrize(("key", "values"), DERIVED.items(), ids=DERIVED)
def test_what_follows_from_two_readings(key: str, values: dict[str, float]) -> None:
    kind, _, name = key.partition(".")
    now, most = values.values()
    expected = most - now if name.endswith("_count") else 1 - now / most
    assert read(Sample(kind, "", "", 0, 1, values), name) == pytest.approx(expected)  # type: ignore[arg-type]
    for missing in values:
        rest = {k: v for k, v in values.items() if k != missing}
        assert read(Sample(kind, "", "", 0, 1, rest), name) is None  # type: ignore[arg-type]


def test_the_readers_know_every_name() -> None:
    gpu, host = quantities.GPU, quantities_host
    known = {"gpu": gpu, "process": host.PROCESS, "node": host.NODE, "nic": host.NIC}
    for key in {*SIGNALS, *CONTEXT} - set(DERIVED):
        kind, _, name = key.partition(".")
        assert name in known[kind], key
    made = {
        "gpu": jobs_of_samples.GPU,
        "process": jobs_of_samples.PROCESS,
        "node": jobs_of_samples.NODE,
        "nic": jobs_of_samples.NIC,
    }
    for kind, values in made.items():
        assert set(values) <= set(known[kind]), kind


def test_what_happens_once_is_in_the_table() -> None:
    assert set(SIGNALS) >= KEYS
