"""The scorer's baselines outlive the daemon."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from stragd import _rscore
from stragd.baselines import MAX_BYTES, SAVE_SECONDS, UNSEEN_SECONDS, Baselines
from stragd.findings import FindingStore
from stragd.replay.simulate import Fault, Scenario, simulate

RESTART, SLOW = 40, 43


def windows(tenths: bool = True) -> list[np.ndarray]:
    """A job of eight with a rank that becomes 3 % slower soon after the restart."""
    fault = Fault((5,), 0.03, SLOW)
    scenario = Scenario(ranks=8, windows=60, faults=(fault,), ordinary=(5,), seed=9, tenths=tenths)
    return list(simulate(scenario))


def anew(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The same windows as a daemon numbers them that has just begun."""
    first = {flag: min(int(a["window"][0]) for a in arrays if a["flags"][0] == flag)
             for flag in {int(a["flags"][0]) for a in arrays}}  # fmt: skip
    step = min(int(a["first_step"][0]) for a in arrays)
    numbered = [array.copy() for array in arrays]
    for array in numbered:
        array["window"] -= first[int(array["flags"][0])]
        array["first_step"] -= step
        array["last_step"] -= step
    return numbered


def confirmed(scorer: _rscore.Scorer, array: np.ndarray) -> set[int | None]:
    return {f["rank"] for f in scorer.update(array)["findings"] if f["state"] == "confirmed"}


@pytest.mark.parametrize("tenths", [False, True])
def test_a_restart_of_the_daemon_changes_no_verdict(tmp_path: Path, tenths: bool) -> None:
    arrays, said = windows(tenths), list[str]()
    restart = next(i for i, a in enumerate(arrays) if int(a["first_step"][0]) >= 100 * RESTART)
    scorer = _rscore.Scorer({})
    whole = [confirmed(scorer, array) for array in arrays]
    assert whole[-1] == {5}
    assert not any(whole[:restart])

    scorer = _rscore.Scorer({})
    first = Baselines(tmp_path / "state" / "baselines", scorer, FindingStore(), said.append)
    first.load(0.0)
    for array in arrays[:restart]:
        first.go_on(1, array)
        scorer.update(array)
    first.save(1.0)

    scorer = _rscore.Scorer({})
    second = Baselines(tmp_path / "state" / "baselines", scorer, FindingStore(), said.append)
    second.load(2.0)
    for array, expected in zip(anew(arrays[restart:]), whole[restart:], strict=True):
        second.go_on(1, array)
        assert confirmed(scorer, array) == expected
    assert said == []
    ends = scorer.ends(1)
    assert ends is not None
    assert (ends[0], ends[2]) == (59, 5999), "the numbers went on"
    assert (ends[1] is None) != tenths


@pytest.mark.parametrize("tenths", [False, True])
def test_what_the_earlier_daemon_scored_is_not_scored_again(tmp_path: Path, tenths: bool) -> None:
    arrays = windows(tenths)
    restart = next(i for i, a in enumerate(arrays) if int(a["first_step"][0]) >= 100 * RESTART)
    path, scorer = tmp_path / "baselines", _rscore.Scorer({})
    first = Baselines(path, scorer, FindingStore(), lambda text: pytest.fail(text))
    for array in arrays[:restart]:
        scorer.update(array)
    until = float(arrays[restart]["start_ns"].min()) / 1e9
    first.save(until)
    whole = [confirmed(scorer, array) for array in arrays[restart:]]

    scorer, said = _rscore.Scorer({}), []
    second = Baselines(path, scorer, FindingStore(), lambda text: pytest.fail(text))
    second.load(until + 1)
    # Of the rings' past: more windows than a rank may miss, without the last one.
    past = [a[:-1].copy() for a in arrays[:restart] if not tenths or not a["flags"][0]][-20:]
    for array in anew([*past, *arrays[restart:]]):
        if second.go_on(1, array):
            said.append(confirmed(scorer, array))
    assert said == whole
    assert whole[-1] == {5}
    ends = scorer.ends(1)
    assert ends is not None
    assert ends[0] == 59, "the numbers went on"


def test_after_a_boot_the_time_of_the_file_says_nothing(tmp_path: Path) -> None:
    rows, path, scorer = windows(False)[0], tmp_path / "baselines", _rscore.Scorer({})
    scorer.update(rows.copy())
    Baselines(path, scorer, FindingStore(), lambda text: pytest.fail(text)).save(1e6)
    second = Baselines(path, _rscore.Scorer({}), FindingStore(), lambda text: pytest.fail(text))
    second.load(60.0)
    assert second.go_on(1, rows)


def test_ids_of_open_findings_outlive_a_restart(tmp_path: Path) -> None:
    path, said, store = tmp_path / "baselines", list[str](), FindingStore()
    store.know([(1, 7, "0001-straggler-r5-20261129T100000Z")])
    Baselines(path, _rscore.Scorer({}), store, said.append).save(0.0)
    again = FindingStore()
    Baselines(path, _rscore.Scorer({}), again, said.append).load(1.0)
    assert again.names() == store.names()
    assert said == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"findings": 7}',
        b'{"findings": [[1, 2]]}',
        b"[" * 100_000,
        b'{"findings": [], "until_ns": "x"}',
    ],
)
def test_a_bad_first_line_is_no_file_of_baselines(tmp_path: Path, line: bytes) -> None:
    path, said = tmp_path / "baselines", list[str]()
    path.write_bytes(line + b"\n" + _rscore.Scorer({}).save())
    store = FindingStore()
    Baselines(path, _rscore.Scorer({}), store, said.append).load(0.0)
    assert store.names() == []
    assert len(said) == 1
    assert "learnt anew" in said[0]


def test_without_its_baselines_it_learns_first() -> None:
    scorer, late = _rscore.Scorer({}), windows(False)[SLOW:]
    assert not any(confirmed(scorer, array) for array in anew(late)), "3 % is natural"


def test_a_bad_file_costs_the_baselines_only(tmp_path: Path) -> None:
    path, said = tmp_path / "baselines", list[str]()
    path.write_bytes(b"garbage")
    scorer = _rscore.Scorer({})
    kept = Baselines(path, scorer, FindingStore(), said.append)
    kept.load(0.0)
    assert len(said) == 1
    assert "learnt anew" in said[0]
    rows = windows(False)[0]
    before = rows.copy()
    kept.go_on(1, rows)
    assert (rows == before).all()
    scorer.update(rows)
    kept.save(1.0)
    again = _rscore.Scorer({})
    Baselines(path, again, FindingStore(), said.append).load(2.0)
    assert again.jobs() == [1]
    assert len(said) == 1


def test_loading_takes_the_memory_of_the_file_and_not_of_its_limit(tmp_path: Path) -> None:
    path, said = tmp_path / "baselines", list[str]()
    kept = Baselines(path, _rscore.Scorer({}), FindingStore(), said.append)
    kept.save(0.0)
    tracemalloc.start()
    try:
        kept.load(1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said == []
    assert peak < 16 << 20
    os.truncate(path, MAX_BYTES + 1)  # sparse
    kept.load(2.0)
    assert "longer than" in said[0]


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    said = list[str]()
    kept = Baselines(Path("/dev/null"), _rscore.Scorer({}), FindingStore(), said.append)
    kept.load(0.0)
    kept.save(1.0)
    assert Path("/dev/null").is_char_device()
    assert len(said) == 2
    target = tmp_path / "target"
    target.write_text("of somebody else")
    (tmp_path / "baselines.new").symlink_to(target)
    Baselines(tmp_path / "baselines", _rscore.Scorer({}), FindingStore(), said.append).save(0.0)
    assert target.read_text() == "of somebody else"


def test_a_file_that_cannot_be_written_is_said_once_until_it_can(tmp_path: Path) -> None:
    said, place = list[str](), tmp_path / "place"
    place.write_text("a file where a directory should be")
    kept = Baselines(place / "baselines", _rscore.Scorer({}), FindingStore(), said.append)
    kept.load(0.0)
    said.clear()
    for second in range(1, 10):
        kept.tick(second * SAVE_SECONDS)
    assert said == [kept.problem]
    place.unlink()
    kept.tick(20 * SAVE_SECONDS)
    assert kept.problem == ""
    assert (place / "baselines").stat().st_mode & 0o777 == 0o600
    assert len(said) == 1


def test_a_job_that_ended_while_no_daemon_ran_is_forgotten(tmp_path: Path) -> None:
    scorer = _rscore.Scorer({})
    scorer.update(windows(False)[0])
    path, said = tmp_path / "baselines", list[str]()
    Baselines(path, scorer, FindingStore(), said.append).save(0.0)
    scorer = _rscore.Scorer({})
    kept = Baselines(path, scorer, FindingStore(), said.append)
    kept.load(100.0)
    kept.tick(101.0)
    assert scorer.jobs() == [1]
    kept.tick(100.0 + UNSEEN_SECONDS)
    assert scorer.jobs() == []
