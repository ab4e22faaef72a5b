"""The native scorer equals the plain Python text bit for bit, and keeps its promises.

STRAGD_SCORING_JOBS=10000 makes the comparison long; STRAGD_SEED repeats a run.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import time

import numpy as np
import pytest

from stragd import _rscore
from stragd.replay.measure import fast_power, power
from stragd.replay.noise import Noise
from stragd.replay.simulate import Fault, Scenario, simulate
from stragd.scoring import estimate
from stragd.scoring.model import BASES, KINDS, STATES, Config, Finding
from stragd.scoring.reference import Scorer
from stragd.scoring.series import Noise as WindowNoise
from stragd.scoring.series import Spread
from stragd.scoring.state import Writer, save
from tests.scoring_jobs import RandomJob, as_rows

JOBS = int(os.environ.get("STRAGD_SCORING_JOBS", "60"))


def plain(finding: Finding) -> dict[str, object]:
    """A finding of the reference as the native scorer gives it."""
    one: dict[str, object] = dataclasses.asdict(finding)
    one["kind"], one["state"] = KINDS[finding.kind], STATES[finding.state]
    one["basis"] = BASES[finding.basis]
    return one


def exactly(value: object) -> object:
    """Equal only if every bit is: NaN equals itself, and 0.0 is not -0.0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: exactly(item) for key, item in value.items()}
    return value


def test_rust_and_python_agree_bit_for_bit() -> None:
    seed = int(os.environ.get("STRAGD_SEED", time.time_ns() % 1_000_000_000))
    print(f"{JOBS} jobs from seed {seed} (STRAGD_SEED)")
    compared = windows = findings = restarts = inherited = 0
    for number in range(JOBS):
        job = RandomJob(seed + number)
        config = Config(
            history_windows=job.draw.choice([10, 40, 200]),
            false_alarms_per_million=job.draw.choice([0.01, 100.0]),
        )
        reference = Scorer(config)
        native = _rscore.Scorer(dataclasses.asdict(config))
        key = 0
        for array in job:
            if key:
                array["job"] = key
            ours, theirs = reference.update(as_rows(array)), native.update(array)
            where = f"seed {seed + number}, window {windows}"
            assert theirs["refused_rows"] == ours.refused_rows, where
            assert [dict(a) for a in theirs["abstentions"]] == [
                a._asdict() for a in ours.abstentions
            ], where
            assert [exactly(dict(f)) for f in theirs["findings"]] == [
                exactly(plain(f)) for f in ours.findings
            ], where
            state = native.save()
            writer = Writer()
            assert state == save(reference, writer), where
            compared += writer.figures + 8 * len(ours.findings)
            findings += len(ours.findings)
            windows += 1
            if job.draw.random() < 0.05:  # the daemon is started anew
                native = _rscore.Scorer(dataclasses.asdict(config))
                native.restore(state)
                restarts += 1
            if len(array) and job.draw.random() < 0.03:  # and the job, some ranks where they were
                old = int(array["job"][0])
                key = key or old
                key += job.draw.choice([1, 2, -1])
                some = [int(rank) for rank in array["rank"] if job.draw.random() < 0.8]
                took = native.inherit(old, key, [*some, 1 << 31])
                assert took == reference.inherit(old, key, [*some, 1 << 31]), where
                inherited += took
    print(f"{windows} windows, {findings} findings, {restarts} restarts, {compared} values equal")
    assert inherited > JOBS
    assert findings > JOBS, "the jobs have something to say"


def after_restart(inherit: bool) -> int:
    """Windows of a job until a rank that was slow from its first step on is named; 0 for never."""
    scorer, windows = _rscore.Scorer({}), list(simulate(Scenario(8, windows=30, tenths=False)))
    for array in windows:
        scorer.update(array)
    job = int(windows[0]["job"][0])
    if inherit:
        assert scorer.inherit(job, job + 1, list(range(8))) == 8
        assert scorer.inherit(job, job + 1, [3]) == 0, "once"
    slow = Fault((5,), 0.06)
    for number, array in enumerate(simulate(Scenario(8, windows=30, tenths=False, faults=(slow,)))):
        array["job"] = job + 1
        for one in scorer.update(array)["findings"]:
            if (one["rank"], one["state"]) == (5, "confirmed"):
                return number + 1
    return 0


def test_a_restarted_job_knows_what_its_gpus_were() -> None:
    assert after_restart(inherit=False) == 0, "slow from the first step: it has no other past"
    assert 1 <= after_restart(inherit=True) <= 6


def verdicts(arrays: list[np.ndarray]) -> list[tuple[object, ...]]:
    """What is said of every window, without figures that rounding may move."""
    scorer = _rscore.Scorer({})
    said: list[tuple[object, ...]] = []
    for array in arrays:
        for one in scorer.update(array)["findings"]:
            said.append(
                (one["window"], one["kind"], one["state"], one["rank"], one["since_window"])
            )
    return said


def slow_job(size: int = 12, seed: int = 3) -> list[np.ndarray]:
    """A job with a rank that becomes 5 % slower, and its end."""
    fault = Fault((size - 1,), 0.05, 30, 60)
    scenario = Scenario(ranks=size, windows=80, faults=(fault,), ordinary=(size - 1,), seed=seed)
    return list(simulate(scenario))


def test_verdicts_do_not_depend_on_order_unit_or_numbers() -> None:
    arrays = slow_job()
    said = verdicts(arrays)
    assert ("straggler", "confirmed", 11) in {one[1:4] for one in said}
    assert ("straggler", "cleared", 11) in {one[1:4] for one in said}
    shuffled = [array[np.random.default_rng(1).permutation(len(array))] for array in arrays]
    assert verdicts(shuffled) == said
    in_seconds = [array.copy() for array in arrays]
    for array in in_seconds:
        for name in ("own", "wall", "wait", "comm", "own_se"):
            array[name] *= 1e-9
    assert verdicts(in_seconds) == said
    numbers = np.random.default_rng(2).permutation(12)
    renumbered = [array.copy() for array in arrays]
    for array in renumbered:
        array["rank"] = numbers[array["rank"]]
    named = {one[3] for one in verdicts(renumbered) if one[2] == "confirmed"}
    assert named == {numbers[11]}


def test_garbage_changes_no_verdict_of_others() -> None:
    arrays = slow_job()
    said, refused = verdicts(arrays), 0
    clean, dirty = _rscore.Scorer({}), _rscore.Scorer({})
    for array in arrays:
        bad = np.concatenate([array, array, array[:3]])
        bad["own"][12:24] = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300] * 2
        bad["rank"][24:] = [12, 1 << 31, 0]
        ours, theirs = clean.update(array), dirty.update(bad)
        assert theirs["findings"] == ours["findings"] or said == []
        assert theirs["abstentions"] == ours["abstentions"]
        refused += theirs["refused_rows"]
    assert refused == 15 * len(arrays)
    assert clean.save() == dirty.save()


def test_a_row_of_another_time_does_not_stop_a_job() -> None:
    arrays = slow_job()
    early = arrays[0].copy()
    early["window"][0] = (1 << 64) - 1
    assert _rscore.Scorer({}).update(early)["refused_rows"] == 1
    scorer = _rscore.Scorer({})
    scorer.update(early)
    assert scorer.update(arrays[1])["refused_rows"] == 0
    assert scorer.update(arrays[1])["refused_rows"] == 12, "a window is scored once"


def test_a_state_that_is_none_is_refused_and_changes_nothing() -> None:
    scorer = _rscore.Scorer({})
    for array in slow_job()[:40]:
        scorer.update(array)
    state = scorer.save()
    for bad in (b"", b"stragd", state[:-1], state + b"x", state[:12] + b"\xff" + state[13:]):
        with pytest.raises(ValueError, match="state"):
            scorer.restore(bad)
        assert scorer.save() == state
    random = np.random.default_rng(5)
    for _ in range(300):  # no byte of a file may crash the daemon
        broken = bytearray(state)
        for place in random.integers(12, len(state), 4):
            broken[place] = random.integers(256)
        other = _rscore.Scorer({})
        try:
            other.restore(bytes(broken))
        except ValueError:
            continue
        other.update(slow_job()[41])


@pytest.mark.parametrize("size", [2, 3, 4, 64])
def test_a_replaced_process_or_another_world_size_starts_anew(size: int) -> None:
    scorer = _rscore.Scorer({})
    arrays = list(simulate(Scenario(ranks=size, windows=60, seed=7)))
    for window, array in enumerate(arrays):
        if window >= 40:
            array["own"][0] *= 1.05  # another machine, and slower by nature
            array["wall"] *= 1.1
            array["first_step"][0] -= 40 * 100
            array["last_step"][0] -= 40 * 100
        said = scorer.update(array)["findings"]
        assert not [one for one in said if one["kind"] == "straggler"], (window, said)


def test_the_limit_has_the_false_alarm_rate_that_it_is_for() -> None:
    """Monte Carlo of the scan itself, at a rate that can be counted."""
    rate, rng = 1e-4, np.random.default_rng(11)
    limit = estimate.scan_limit(rate * 1e6, 1)
    series, windows, past = 4000, 260, 200
    values = rng.standard_normal((series, past + windows))
    sums = np.concatenate([np.zeros((series, 1)), values.cumsum(axis=1)], axis=1)
    above = np.zeros((series, windows), bool)
    for place in range(windows):
        end = past + place + 1
        for m in range(2, estimate.RUN + 1):
            run = (sums[:, end] - sums[:, end - m]) / m
            before = (sums[:, end - m]) / (end - m)
            above[:, place] |= (run - before) / math.sqrt(1 / m + 1 / (end - m)) >= limit
    # An alarm lasts several windows: what the rate is of is its first one.
    alarms = above[:, 1:] & ~above[:, :-1]
    quiet_before = np.array(
        [alarms[:, i] & ~above[:, max(0, i - 30) : i + 1].any(axis=1) for i in range(windows - 1)]
    )
    realised = quiet_before.sum() / alarms.size
    assert 0.5 < realised / rate < 1.5, (realised, rate)


def steps_to_name(slowdown: float, noise: Noise = "gaussian", **more: int) -> np.ndarray:
    """Steps until the slow rank of 16 is named, of twenty jobs; nobody else may be."""
    fault = Fault((3,), slowdown, 12)
    scenario = Scenario(
        ranks=16, jobs=20, windows=14, noise=noise, faults=(fault,), ordinary=(3,), **more
    )
    seen = fast_power(scenario, 12)
    assert seen.others == 0
    return seen.delays


def test_a_gross_slowdown_is_named_within_steps() -> None:
    assert (steps_to_name(0.25) <= 20).all()
    assert (steps_to_name(1.0) <= 10).all()
    assert (steps_to_name(0.05) >= 100).all(), "what is small waits for whole windows"


def test_steps_that_take_twice_as_long_now_and_then_name_nobody() -> None:
    scenario = Scenario(ranks=16, jobs=20, windows=60, noise="outliers", evaluation=7, tenths=True)
    scorer = _rscore.Scorer({})
    for rows in simulate(scenario):
        for one in scorer.update(rows)["findings"]:
            assert (one["kind"], one["state"]) != ("straggler", "confirmed"), one


def test_a_hiccup_of_tens_of_steps_ends_with_its_windows() -> None:
    """Named by the fast lane, well again in the next windows."""
    fault = Fault((3,), 1.0, 12, 13)
    scenario = Scenario(ranks=16, windows=20, faults=(fault,), ordinary=(3,), tenths=True)
    scorer, states = _rscore.Scorer({}), []
    for rows in simulate(scenario):
        said = [one for one in scorer.update(rows)["findings"] if one["kind"] == "straggler"]
        states += [(one["rank"], one["state"], one["since_window"]) for one in said]
    assert states[0] == (3, "confirmed", 12)
    assert states[-1] == (3, "cleared", 12)
    assert {rank for rank, _, _ in states} == {3}


def test_work_and_turns_are_told() -> None:
    """A rank that is given more to do, and ranks that are slow in turn."""
    faults = (Fault((3,), 0.2, 20, 30), Fault((5,), 0.2, 35, 45), Fault((8,), 0.2, 50, 60))
    scorer, work, moved = _rscore.Scorer({}), 0.0, 0
    for rows in simulate(Scenario(ranks=16, windows=75, faults=(*faults, Fault((9,), 0.2, 65)))):
        if rows["window"][0] >= 65:
            rows["bytes"][9] *= 1.3
        for one in scorer.update(rows)["findings"]:
            if one["rank"] == 9 and one["kind"] == "straggler":
                work, moved = one["work"], one["moved"]
    assert work == pytest.approx(0.3)
    assert moved == 3


def test_a_jump_that_lasts_is_no_noise() -> None:
    noise = WindowNoise(1e-4, 1e-4, 0.0, 60.0, 100.0)

    def learnt(*values: float) -> Spread:
        spread = Spread()
        for place in range(1, len(values)):
            second = values[place - 2] if place > 1 else None
            spread.learn(values[place], values[place - 1], second, noise)
        return spread

    quiet = [0.0, 0.01, 0.0, 0.01, 0.0]
    before = learnt(*quiet)
    shifted = learnt(*quiet, 0.2, 0.21)
    assert shifted.near_weight > before.near_weight, "the windows after it are learnt"
    assert shifted.near / shifted.near_weight <= before.near / before.near_weight * 1.001
    assert shifted.far == pytest.approx(before.far, abs=1e-3 * noise.variance)
    taken_back = learnt(*quiet, 0.2, 0.01)
    assert taken_back.near / taken_back.near_weight > 2 * before.near / before.near_weight


def test_a_shift_in_the_first_windows_is_named() -> None:
    """Windows of such steps resemble each other. While a jump was noise: 9.2 windows, one never."""
    scenario = Scenario(
        ranks=8, jobs=60, windows=60, noise="ar1", jitter=0.015, natural=0.003, seed=3,
        ordinary=(7,), faults=(Fault((7,), 0.05, 3),),
    )  # fmt: skip
    seen = power(scenario, 3)
    assert np.isfinite(seen.delays).all()
    assert seen.delays.mean() < 5.0
    assert seen.others == 0
