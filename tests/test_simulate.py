"""stragctl simulate: the scorer on simulated jobs, without a daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest

from stragd.cli.main import main
from stragd.finding import schema
from stragd.replay import intervals
from stragd.replay.noise import NOISES, library
from stragd.replay.simulate import Fault, Machine, Scenario, Transfers, simulate
from tests.needs import module

SHORT = ["--ranks", "8", "--jobs", "10", "--healthy", "1000"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `simulate --json` prints."""
    assert main(["simulate", *arguments, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_it_prints_power_and_false_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SHORT, "--slowdown", "5", "--slowdown", "20"]) == 0
    text = capsys.readouterr().out
    assert "8 ranks, ddp, 5.0 % jitter" in text
    assert "100 % (72 to 100)" in text, "ten of ten jobs, with their interval"
    assert "one slow rank is named in at least 95.0 % of the jobs from 5.0 % on" in text
    assert "slow=20: straggler confirmed: rank 7, " in text
    assert "healthy: 0 stragglers in 2,112 rank-windows, so between 0.00 and 1,747 per" in text


def test_json_has_findings_of_an_example_and_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, *SHORT, "--slowdown", "1", "--slowdown", "10")
    small, large = said["power"]
    assert large["named"] == 10
    assert large["windows"]["mean"] < 3
    # 1 % among eight ranks takes longer than 10 %, or is not named at all.
    assert small["windows"] is None or small["windows"]["mean"] > large["windows"]["mean"]
    assert large["share"]["low"] < large["share"]["value"] == large["share"]["high"] == 1.0
    assert large["named_within"][0]["value"] == 0.0
    assert large["named_within"][-1] == large["share"]
    named = [one for one in said["findings"] if one["job"]["name"] == "slow=10"]
    assert [(one["kind"], one["subject"]["rank"]) for one in named] == [("straggler", 7)]
    for one in said["findings"]:
        jsonschema.validate(one, schema())
    assert all(set(one) == ABSTENTION for one in said["abstentions"])
    assert said["healthy"]["per_million"]["low"] == 0.0


ABSTENTION = {"job", "job_name", "rank", "window", "reason"}
MIXED = ["--class", "H200=16", "--class", "MI300X=16:0.8", "--jobs", "4", "--healthy", "1000"]

ALIKE = ["--class", "A=16", "--class", "B=16", "--jobs", "4", "--healthy", "1000"]


@pytest.mark.parametrize(
    ("options", "fault", "kind", "subjects"),
    [
        (MIXED, "slow=10,ranks=25%,class=MI300X", "straggler", 4),
        (MIXED, "slow=10,ranks=3,class=H200", "straggler", 3),
        (ALIKE, "slow=20,ranks=100%,class=B,begin=20", "imbalance", 1),
        (SHORT, "slow=30,begin=0", "straggler", 1),
        (SHORT, "drift=0.5,begin=50", "straggler", 1),
        (SHORT, "slow=15,every=4,begin=50", "intermittent", 1),
        (SHORT, "slow=10,missing=30,begin=50", "straggler", 1),
        (SHORT, "network=60,begin=50", "network", 1),
        (SHORT, "slow=30,ranks=100%,begin=50", "job-wide", 1),
        (["--pattern", "pipeline", "--stages", "2", *SHORT],
         "slow=30,ranks=100%,stage=1,begin=20", "uneven-work", 1),
        (["--pattern", "pipeline", *SHORT, "--ranks", "32"], "slow=10,stage=2", "straggler", 1),
        (["--pattern", "fsdp", *SHORT], "slow=10", "straggler", 1),
        (["--pattern", "moe", *SHORT], "slow=40", "straggler", 1),
        (["--fast-lane", *SHORT], "slow=100,begin=20", "straggler", 1),
    ],
)  # fmt: skip
def test_every_kind_of_fault_is_told(
    options: list[str], fault: str, kind: str, subjects: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer(capsys, *options, "--fault", fault)
    (row,) = said["power"]
    assert (row["expected"], row["subjects"]) == (kind, subjects)
    assert row["share"]["value"] == 1.0, row
    assert row["others_named"] == 0
    assert kind in {one["kind"] for one in said["findings"]}
    if "--fast-lane" in options:
        assert row["windows"]["mean"] == pytest.approx(0.1), "ten steps of a hundred"


def test_what_was_said_before_is_not_told_of_the_fault(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, *MIXED, "--fault", "slow=40,ranks=100%,class=MI300X,begin=20")
    assert said["power"][0]["named"] == 0, "the class was slower from the beginning"


def test_what_ends_is_cleared_and_does_not_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(
        capsys, *SHORT, "--fault", "slow=10,begin=50,windows=20",
        "--fault", "slow=10,begin=50,windows=20,replaced",
    )  # fmt: skip
    for row in said["power"]:
        assert (row["named"], row["cleared"], row["flaps"]) == (10, 10, 0)
    ended, replaced = (row["cleared_windows"]["mean"] for row in said["power"])
    assert replaced == 1.0 < ended <= 5.0
    assert main(["simulate", *SHORT, "--fault", "slow=10,begin=50,windows=20"]) == 0
    assert "10 of 10 cleared after" in capsys.readouterr().out


def test_a_job_is_what_the_options_say(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(capsys, *MIXED, "--slowdown", "10", "--step-ms", "2000", "--noise", "student3")
    job = said["job"]
    assert job["ranks"] == 32
    assert job["classes"] == [
        {"name": "H200", "ranks": 16, "speed": 1.0},
        {"name": "MI300X", "ranks": 16, "speed": pytest.approx(0.8)},
    ]
    assert (job["steps_per_window"], job["window_s"]) == (15, 30.0), "as live: 30 s"
    assert said["healthy"]["other_findings"] == {"imbalance": said["healthy"]["jobs"]}
    assert {"H200", "MI300X"} >= {one["subject"].get("class") for one in said["findings"]}
    others = [
        "--natural", "3", "--bursts", "10", "--drift", "0.3", "--evaluation", "20",
        "--missing", "5", "--load", "1", "--steps", "50", "--jitter", "3", "--seed", "9",
    ]  # fmt: skip
    job = answer(capsys, *SHORT, "--slowdown", "30", *others)["job"]
    wanted = {"natural": 0.03, "bursts": 0.1, "drift": 0.003, "evaluation": 20, "missing": 0.05,
              "load": 0.01, "steps_per_window": 50, "jitter": 0.03, "seed": 9}  # fmt: skip
    assert {name: job[name] for name in wanted} == wanted


@pytest.mark.parametrize(("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG\r\n\x1a\n")])
def test_the_plot_is_a_picture(suffix: str, begins: bytes, tmp_path: Path) -> None:
    module("matplotlib")
    path = tmp_path / f"power.{suffix}"
    assert main(["simulate", *SHORT, "--slowdown", "10", "--plot", str(path)]) == 0
    picture = path.read_bytes()
    assert picture.startswith(begins)
    if suffix == "svg":
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert b"slow=10 (straggler)" in picture


@pytest.mark.parametrize("missing", [True, False])
def test_a_picture_that_cannot_be_drawn_is_one_line(
    missing: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if missing:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    else:
        module("matplotlib")
    path = tmp_path / "nowhere" / "power.svg"
    assert main(["simulate", *SHORT, "--slowdown", "10", "--plot", str(path)]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert ("pip install 'stragd[plots]'" if missing else "there is no directory") in error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--ranks", "1"], "'1' is not a number from 2"),
        (["--jitter", "nan"], "'nan' is not between"),
        (["--class", "MI300X"], "NAME=COUNT or NAME=COUNT:SPEED"),
        (["--class", "MI300X=4:"], "NAME=COUNT or NAME=COUNT:SPEED"),
        (["--noise", "pink"], "pink"),
        (["--plot", "power.gif"], "does not end in .svg or .png"),
        (["--stages", "1,x"], "neither a number of stages nor their work"),
        (["--fault", "broken"], "begins with none of slow=PERCENT"),
        (["--fault", "slow=x"], "slow=x: not between 0.1 and 1000"),
        (["--fault", "slow=5,rank=3"], "'rank' is none of ranks=N"),
        (["--fault", "slow=5,every=5,every=6"], "every stands twice"),
        (["--fault", "slow=5,replaced"], "needs windows=N too"),
        (["--fault", "network=5,ranks=3"], "it takes begin and windows only"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--class", "A=4", "--ranks", "8"], "the classes have 4 ranks"),
        (["--class", "A=4", "--class", "A=4"], "named twice"),
        (["--class", "A=1"], "1 ranks in all"),
        (["--stages", "2"], "add --pattern pipeline"),
        (["--pattern", "pipeline", "--stages", "9", "--ranks", "8"], "9 stages for 8 ranks"),
        (["--fast-lane", "--step-ms", "1000"], "have 30 steps of 1000 ms"),
        (["--fault", "slow=5,class=B"], "no --class was given"),
        (["--class", "A=4", "--fault", "slow=5,class=B"], "the classes are A"),
        (["--fault", "slow=5,stage=1"], "there is no stage 1"),
        (["--fault", "slow=5,ranks=65"], "65 slow ranks, and there are 64"),
    ],
)
def test_options_that_do_not_fit_each_other_are_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


def test_intervals_are_those_of_the_tables() -> None:
    # Wilson, for 8 of 10; Garwood (1936), for counts of 0, 1 and 10.
    assert intervals.share(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert intervals.count(0) == pytest.approx((0.0, 3.6889), abs=1e-4)
    assert intervals.count(1) == pytest.approx((0.0253, 5.5716), abs=1e-4)
    assert intervals.count(10) == pytest.approx((4.7954, 18.3904), abs=1e-4)


def test_a_resized_job_and_a_replaced_process_begin_anew() -> None:
    replaced = Fault((2,), 0.3, 1, 3, replaced=True)
    windows = list(simulate(Scenario(4, windows=6, faults=(replaced,), sizes=((4, 3),))))
    assert [len(rows) for rows in windows] == [4, 4, 4, 4, 3, 3]
    assert [int(rows["world_size"][0]) for rows in windows] == [4, 4, 4, 4, 3, 3]
    assert [int(rows["first_step"][0]) for rows in windows] == [0, 100, 200, 300, 0, 100]
    assert [int(rows["first_step"][2]) for rows in windows][:4] == [0, 100, 200, 0]


def test_stages_load_and_transfers_are_in_the_rows() -> None:
    slow = Transfers(1.0, 10)
    scenario = Scenario(
        8, jobs=50, windows=20, stages=(1.0, 1.5), load=0.1, natural=0.0, network=(slow,)
    )
    windows = list(simulate(scenario))
    rows = windows[0]
    assert list(rows["signature"][:8]) == [1] * 4 + [2] * 4
    second = rows["signature"] == 2
    assert rows["own"][second].mean() / rows["own"][~second].mean() == pytest.approx(1.5, rel=0.05)
    assert np.corrcoef(rows["bytes"][second], rows["own"][second])[0, 1] > 0.9
    before, after = (np.mean([rows["comm"].mean() for rows in some])
                     for some in (windows[:10], windows[10:]))  # fmt: skip
    assert after / before == pytest.approx(2.0, rel=0.05)


def test_the_generator_does_what_it_says() -> None:
    machines = (Machine(1, 1.0, 1.0), Machine(2, 3.0, 1.2))
    fault = Fault((7,), 0.5, 2, 4)
    scenario = Scenario(8, jobs=3, windows=6, natural=0.0, machines=machines, faults=(fault,))
    windows = list(simulate(scenario))
    first = windows[0]
    assert list(first["class_id"][:8]) == [1, 1, 2, 2, 2, 2, 2, 2]
    assert first["own"][2:8].mean() / first["own"][:2].mean() == pytest.approx(1.2, rel=0.05)
    for window, rows in enumerate(windows):
        slow = rows["own"][7] / np.median(rows["own"][2:7])
        assert slow == pytest.approx(1.5 if 2 <= window < 4 else 1.0, rel=0.06)
        assert (rows["own"] <= rows["wall"]).all()
    assert [rows.tobytes() for rows in simulate(scenario)] == [rows.tobytes() for rows in windows]


def test_noise_of_windows_is_that_of_their_steps() -> None:
    means, errors = library("gaussian", 0.05, 100)
    assert means.std() == pytest.approx(0.00515, rel=0.02)
    assert errors.mean() == pytest.approx(means.std(), rel=0.05), "it states its own error"
    for noise in NOISES:
        scenario = Scenario(64, jobs=8, windows=40, noise=noise, natural=0.0)
        own = np.array([rows["own"] for rows in simulate(scenario)])
        one = own - own.mean(axis=0)
        neighbours = (one[1:] * one[:-1]).mean() / (one * one).mean()
        wanted = 0.7 if noise == "ar1-windows" else 0.0
        assert abs(neighbours - wanted) < 0.12, (noise, neighbours)
