"""stragctl simulate: the scorer on simulated jobs, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from stragd.cli.main import main
from stragd.replay.simulate import NOISES, Fault, Machine, Scenario, library, simulate

SHORT = ["--ranks", "8", "--jobs", "20", "--healthy", "1000"]


def test_it_prints_power_and_false_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SHORT, "--slowdown", "5", "--slowdown", "20"]) == 0
    text = capsys.readouterr().out
    assert "8 ranks, 5.0% jitter" in text
    assert "20/20" in text


def test_json_has_what_every_answer_has_and_the_plot_is_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "power.svg"
    arguments = ["simulate", *SHORT, "--slowdown", "1", "--slowdown", "10"]
    assert main([*arguments, "--plot", str(plot), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["findings"] == answer["abstentions"] == []
    small, large = answer["power"]
    assert large["named"] == 20
    assert large["windows_mean"] < 3
    # 1 % among eight ranks takes longer than 10 %, or is not named at all.
    assert small["windows_mean"] is None or small["windows_mean"] > large["windows_mean"]
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--ranks", "1"], "'1' is not a number from 2"),
        (["--jitter", "nan"], "'nan' is not between"),
        (["--class", "MI300X"], "NAME=SHARE:FACTOR"),
        (["--noise", "pink"], "pink"),
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
