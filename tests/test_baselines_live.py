"""A daemon that is killed while a rank of a real job is slow: the next one goes on where it was.

Needs root and Debian's python3-torch; fails where they are missing.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Daemon, Job, job, wait_for

RANKS, SLOW = 4, 2
CONFIG = "[windows]\nsteps = 20\n"
ARGUMENTS = [
    "--step-ms", "40", "--steps", "100000", "--slow-rank", str(SLOW), "--slow-factor", "2",
    "--slow-after", "200",
]  # fmt: skip


def of_the_slow(watcher: Daemon, training: Job) -> list[dict[str, Any]]:
    """Findings of the slow rank that were ever confirmed."""
    return [f for f in watcher.findings(training) if f["subject"]["rank"] == SLOW]


def still_open(watcher: Daemon, training: Job) -> list[dict[str, Any]]:
    """Those of them that have not ended."""
    return [f for f in of_the_slow(watcher, training) if f["state"] != "cleared"]


def last_window(finding: dict[str, Any]) -> int:
    """The window in which it was scored last."""
    text = " ".join(finding["evidence"])
    return int(re.findall(r"last scored in window (\d+)", text)[-1])


def test_a_killed_daemon_loses_no_baseline_and_names_nobody_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAGD_SCORING_BASELINES_SECONDS", "1")
    watcher = Daemon(tmp_path, CONFIG)
    try:
        watcher.start()
        with job("ddp.py", RANKS, *ARGUMENTS) as training:
            wait_for("the slow rank to be named", lambda: still_open(watcher, training), 180)
            named = time.time()
            file = tmp_path / "baselines"
            wait_for("the baselines to be written", lambda: file.stat().st_mtime > named)
            (before,) = wait_for("the finding", lambda: still_open(watcher, training))
            watcher.stop(signal.SIGKILL)
            watcher.start()

            def again() -> list[dict[str, Any]]:
                """The finding, once a window was scored that the first daemon had not seen."""
                same = [f for f in of_the_slow(watcher, training) if f["id"] == before["id"]]
                return same if same and last_window(same[0]) > last_window(before) else []

            # Without its past the rank would be slow since the restart, if it was named at all.
            (after,) = wait_for("the next daemon to go on with the finding", again, 180)
            assert after["state"] == "confirmed"
            assert len(still_open(watcher, training)) <= 1
            assert "every baseline is learnt anew" not in watcher.output()
    finally:
        if watcher.process is not None:
            watcher.stop()
