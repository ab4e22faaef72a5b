"""The finding object, its schema, and the store of open and cleared ones."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from stragd import findings as findings_module
from stragd.finding import build, class_speeds, describe, schema
from stragd.findings import PATIENCE, FindingStore
from tests.pictures import finding, raw_finding


def valid(made: Any) -> None:
    json.dumps(made, allow_nan=False)
    jsonschema.validate(made, schema(), cls=jsonschema.Draft202012Validator)


def test_straggler_follows_the_schema_and_says_its_numbers() -> None:
    made = finding()
    valid(made)
    assert made["cost_ms_per_step"] == {"value": 20.0, "low": 18.0, "high": 22.0}
    assert made["cost_percent"] == 15.0
    assert made["since"] == {"window": 12, "time": "2026-11-29T10:00:00Z"}
    assert made["cause"]["name"] == made["where"] == "unknown"
    text = " / ".join(made["evidence"])
    for part in ("rank 2 on node7 works 120.00 ms", "3 peers", "100.00 ms", "20.0% slower than"):
        assert part in text
    line = describe(made)
    assert "job llama" in line
    assert "rank 2 on node7" in line
    assert "20.00 ms per step" in line


def test_without_steps_the_cost_is_a_share() -> None:
    made = finding(steps=False, cost_ns=None, cost_low_ns=None, cost_high_ns=None)
    valid(made)
    assert made["cost_ms_per_step"] is None
    assert made["cost_percent"] == 15.0
    assert any("share of time" in line for line in made["evidence"])
    assert "15.0 % of the time" in describe(made)


def test_unknown_numbers_are_null_never_nan() -> None:
    nan = float("nan")
    made = finding(
        slowdown=nan, peers_own_ns=nan, own_ns=nan, cost_low_ns=nan, cost_fraction=nan, peers=1
    )
    valid(made)
    assert made["slowdown"] is None
    assert made["cost_ms_per_step"] == {"value": 20.0, "low": 20.0, "high": 22.0}
    assert not any("nan" in line for line in made["evidence"])


def test_history_only_says_so() -> None:
    made = finding(basis="history", peers=1, peers_own_ns=float("nan"))
    assert any("own past only" in line for line in made["evidence"])
    assert any("slower than before" in line for line in made["evidence"])


@pytest.mark.parametrize(
    ("kind", "subject", "where"),
    [
        ("imbalance", {"class": "nvidia/H200"}, "machine"),
        ("uneven-work", {"signature": "000000000000beef"}, "job"),
        ("job-wide", {}, "unknown"),
    ],
)
def test_other_kinds(kind: str, subject: Any, where: str) -> None:
    raw = raw_finding(kind=kind, rank=None)
    made = build(raw, finding()["job"], subject, True)
    valid(made)
    assert made["where"] == where
    assert f"-{kind}-" in made["id"]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"work": 0.25}, "job"),
        ({"work": 0.02}, "unknown"),
        ({"work": float("nan")}, "unknown"),
        ({"slowdown": 0.002, "work": 0.002}, "unknown"),
        ({"moved": 3}, "job"),
        ({"moved": 2}, "unknown"),
        ({"kind": "job-wide", "work": 0.25, "moved": 9}, "unknown"),
    ],
)
def test_what_moves_with_the_work_is_the_job(changes: Any, where: str) -> None:
    made = finding(**changes)
    valid(made)
    assert made["where"] == where
    assert any("the job, not the machine" in line for line in made["evidence"]) == (where == "job")


def test_an_imbalance_says_how_fast_each_class_is() -> None:
    own = [("amd/MI300X", 125.0), ("nvidia/H200", 100.0), ("amd/MI300X", 124.0), ("x", math.nan)]
    speeds = class_speeds(own)
    assert speeds == {"nvidia/H200": 1.0, "amd/MI300X": 0.8032}
    raw = raw_finding(kind="imbalance", rank=None)
    made = build(raw, finding()["job"], {"class": "amd/MI300X"}, True, speeds)
    valid(made)
    assert made["speeds"] == speeds
    assert any("nvidia/H200 1.00, amd/MI300X 0.80" in line for line in made["evidence"])
    assert "speeds" not in build(raw_finding(), finding()["job"], {"rank": 2}, True, speeds)


def test_schema_refuses_what_is_not_a_finding() -> None:
    for change in ({"state": "open"}, {"cost_percent": None}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            valid({**finding(), **change})


def test_life_of_a_finding_keeps_its_id() -> None:
    store = FindingStore()
    (first,) = store.apply(1, [(7, finding(state="suspect"))])
    assert (first.before, first.finding["state"]) == (None, "suspect")
    assert store.apply(1, [(7, finding(state="suspect", window=16))]) == []
    later = finding(state="confirmed", since_time_ns=1_795_946_500_000_000_000)
    (second,) = store.apply(1, [(7, later)])
    assert (second.before, second.finding["state"]) == ("suspect", "confirmed")
    assert second.finding["id"] == first.finding["id"]
    (third,) = store.apply(1, [(7, finding(state="cleared"))])
    assert (third.before, third.finding["state"]) == ("confirmed", "cleared")
    assert store.open() == []
    assert [f["id"] for f in store.cleared()] == [first.finding["id"]]
    valid(store.cleared()[0])
    assert store.apply(1, [(8, finding(state="cleared"))]) == []


def test_a_suspicion_is_not_said_to_have_healed() -> None:
    for before, reason in (("suspect", "could not be confirmed"), ("confirmed", "healthy again")):
        store = FindingStore()
        store.apply(1, [(7, finding(state=before))])
        (cleared,) = store.apply(1, [(7, finding(state="cleared"))])
        assert cleared.reason == reason


def test_a_new_cause_keeps_id_and_place() -> None:
    store = FindingStore()
    store.apply(1, [(7, finding())])
    (first,) = store.open()
    made = store.replace((1, 7), {**finding(since_window=99), "where": "job"})
    (now,) = store.open()
    assert made is now
    assert (now["id"], now["where"], first["where"]) == (first["id"], "job", "unknown")
    assert store.replace((1, 8), finding()) is None
    assert store.open() == [now]


def test_finding_that_the_scorer_drops_is_cleared() -> None:
    store = FindingStore()
    store.apply(1, [(7, finding()), (8, finding())])
    store.apply(2, [(7, finding())])
    (gone,) = store.apply(1, [(8, finding())])
    assert gone.finding["state"] == "cleared"
    assert gone.reason
    assert len(store.open()) == 2


def test_another_scorer_has_time_to_find_it_anew() -> None:
    store = FindingStore()
    (first,) = store.apply(1, [(7, finding(state="confirmed"))], takeover=True)
    for _ in range(PATIENCE):
        assert store.apply(1, [], takeover=True) == []
    again = finding(state="suspect")
    assert store.apply(1, [(1, again)], takeover=True) == []
    assert [(one["id"], one["state"]) for one in store.open()] == [
        (first.finding["id"], "confirmed")
    ]
    for _ in range(PATIENCE):
        assert store.apply(1, [], takeover=True) == []
    (gone,) = store.apply(1, [], takeover=True)
    assert (gone.finding["state"], gone.reason) == ("cleared", "no longer scored")


def test_a_suspicion_that_another_scorer_lacks_ends_at_once() -> None:
    store = FindingStore()
    store.apply(1, [(7, finding(state="suspect"))], takeover=True)
    (gone,) = store.apply(1, [], takeover=True)
    assert gone.finding["state"] == "cleared"


def test_end_of_a_job_clears_its_findings_only() -> None:
    store = FindingStore()
    store.apply(1, [(7, finding())])
    store.apply(2, [(7, finding())])
    (closed,) = store.close_job(1, "job ended")
    assert closed.finding["evidence"][-1] == "cleared: job ended"
    assert len(store.open()) == 1
    assert store.close_job(1, "job ended") == []


def test_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "MAX_OPEN", 5)
    store = FindingStore(cleared_kept=3)
    store.apply(1, [(n, finding()) for n in range(9)])
    assert len(store.open()) == 5
    assert store.refused == 4
    store.close_job(1, "job ended")
    assert len(store.cleared()) == 3
    store.keep(1)
    assert len(store.cleared()) == 1


def test_open_findings_are_in_order_of_weight() -> None:
    store = FindingStore()
    cheap, dear = finding(cost_fraction=0.01), finding(cost_fraction=0.3)
    store.apply(1, [(1, finding(state="suspect", cost_fraction=0.9)), (2, cheap), (3, dear)])
    assert [f["cost_percent"] for f in store.open()] == [30.0, 1.0, 90.0]


def test_a_finding_keeps_its_id_over_a_restart_though_its_begin_moves() -> None:
    first, second = FindingStore(), FindingStore()
    made = finding()
    first.apply(1, [(7, made)])
    second.know(first.names())
    assert second.names() == [(1, 7, made["id"])], "until it is heard of"
    moved = finding(since_time_ns=raw_finding()["since_time_ns"] + 5_000_000_000)
    assert moved["id"] != made["id"]
    second.apply(1, [(7, moved)])
    assert [f["id"] for f in second.open()] == [made["id"]]
    assert second.names() == first.names()


def test_an_earlier_id_is_not_given_to_another_finding() -> None:
    store = FindingStore()
    store.know([(1, 7, finding()["id"]), (2, 7, finding()["id"])])
    other = finding(kind="intermittent")
    store.apply(1, [(7, other)])
    assert "-intermittent-" in store.open()[0]["id"]
    store.forget(2)
    assert [name[0] for name in store.names()] == [1]


def test_a_scorer_that_was_handed_an_earlier_state_takes_no_confirmation_back() -> None:
    store = FindingStore()
    changes = store.apply(1, [(1, finding())])
    assert [change.finding["state"] for change in changes] == ["confirmed"]
    assert store.apply(1, [(1, finding(state="suspect"))], takeover=True) == []
    assert store.apply(1, [(1, finding())], takeover=True) == []
    (change,) = store.apply(1, [(1, finding(state="recovering"))], takeover=True)
    assert change.finding["state"] == "recovering"
