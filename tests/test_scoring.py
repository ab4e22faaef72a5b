"""The native scorer equals the plain Python text bit for bit, and keeps its promises.

STRAGD_SCORING_JOBS=10000 makes the comparison long; STRAGD_SEED repeats a run.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import time

from stragd import _rscore
from stragd.scoring.model import BASES, KINDS, STATES, Config, Finding
from stragd.scoring.reference import Scorer
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
    compared = windows = findings = restarts = 0
    for number in range(JOBS):
        job = RandomJob(seed + number)
        config = Config(
            history_windows=job.draw.choice([10, 40, 200]),
            false_alarms_per_million=job.draw.choice([0.01, 100.0]),
        )
        reference = Scorer(config)
        native = _rscore.Scorer(dataclasses.asdict(config))
        for array in job:
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
    print(f"{windows} windows, {findings} findings, {restarts} restarts, {compared} values equal")
    assert findings > JOBS, "the jobs have something to say"
