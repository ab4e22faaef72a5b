"""The boundary to Rust: layout, types, and what it does with garbage."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from stragd import _rscore

DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT],
        "formats": [form for _, form, _ in _rscore.RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in _rscore.RANK_WINDOW_LAYOUT],
        "itemsize": _rscore.RANK_WINDOW_BYTES,
    }
)


def window(number: int, own: list[float], job: int = 7) -> np.ndarray:
    """One healthy-looking window of a job, own times in ms."""
    rows = np.zeros(len(own), DTYPE)
    rows["job"], rows["signature"], rows["window"], rows["steps"] = job, 1, number, 100
    rows["rank"], rows["world_size"] = range(len(own)), len(own)
    rows["own"] = np.array(own) * 1e6
    rows["own_se"] = rows["own"] * 0.005
    rows["wall"] = rows["own"].max() * 1.05
    rows["comm"] = rows["own"].max() * 0.02
    rows["wait"] = rows["wall"] - rows["own"] - rows["comm"]
    rows["source"], rows["collectives"], rows["class_id"] = 3, 2, 5
    rows["time_ns"] = 1_000_000_000 * (number + 1)
    return rows


def test_stub_agrees_with_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "stragd._rscore"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_layout_covers_the_row_without_holes() -> None:
    end = 0
    for name, form, offset in _rscore.RANK_WINDOW_LAYOUT:
        assert offset == end, name
        end += np.dtype(form).itemsize
    assert end == _rscore.RANK_WINDOW_BYTES


def test_one_slow_rank_is_the_only_straggler_from_first_window_to_name() -> None:
    scorer = _rscore.Scorer({})
    for number in range(8):
        update = scorer.update(window(number, [50.0, 50.3, 49.8, 50.1]))
        assert [f for f in update["findings"] if f["state"] == "confirmed"] == []
    for number in range(8, 12):
        update = scorer.update(window(number, [50.0, 50.3, 60.0, 50.1]))
    (finding,) = [f for f in update["findings"] if f["state"] == "confirmed"]
    assert (finding["kind"], finding["rank"]) == ("straggler", 2)
    assert finding["cost_ns"] == pytest.approx(9.7e6, rel=0.1)
    assert finding["since_window"] == 8


def test_garbage_rows_are_refused_and_change_nobody_else() -> None:
    scorer = _rscore.Scorer({})
    rows = window(0, [50.0, 50.0, 50.0, 50.0, 50.0, 50.0])
    rows["own"][1] = np.nan
    rows["rank"][2] = 600
    rows["wall"][3] = -1.0
    update = scorer.update(rows)
    assert update["refused_rows"] == 3
    assert not any(f["state"] == "confirmed" for f in update["findings"])


@pytest.mark.parametrize(
    "config",
    [{"min_slowdown": "a lot"}, {"min_slowdown": -1.0}, {"no_such_key": 1}],
)
def test_a_bad_scorer_config_is_one_clear_error(config: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(config))):
        _rscore.Scorer(config)


def test_a_foreign_array_is_refused() -> None:
    with pytest.raises(ValueError, match="RANK_WINDOW_LAYOUT"):
        _rscore.Scorer({}).update(np.zeros(3, "f8"))


def test_a_bad_engine_config_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match="attach_method"):
        _rscore.Engine({"attach_method": "kprobe"})
    with pytest.raises(ValueError, match="ring_bytes"):
        _rscore.Engine({"ring_bytes": 1000})
