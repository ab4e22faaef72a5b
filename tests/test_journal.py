"""Journal entries: a real systemd-journald in a mount namespace of its own, and plain lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stragd.findings import Transition
from stragd.outputs.journal import ERROR, MESSAGE_IDS, WARNING, Journal, under_journald
from tests.journald import Journald
from tests.pictures import finding

REPOSITORY = Path(__file__).parent.parent


def under_real_journald(code: str) -> list[dict[str, Any]]:
    """Run Python code beside a journald and return stragd's entries as journalctl reads them."""
    with Journald() as journald:
        done = subprocess.run(
            journald.command(sys.executable, "-c", code),
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return journald.entries()


def test_fields_arrive_in_a_real_journald() -> None:
    entries = under_real_journald(
        "from tests.pictures import finding\n"
        "from stragd.findings import Transition\n"
        "from stragd.outputs.journal import Journal\n"
        "journal = Journal('journald')\n"
        "assert journal.native, 'systemd-python is not installed'\n"
        "journal.transition(Transition('suspect', finding(job_name='lla\\nma'), ''))\n"
        "journal.write('events-lost', 'x' * 5000, 4, lost=12)\n"
        "journal.transition(Transition(None, finding(steps=False, cost_ns=None), ''))\n"
        "hot = finding()\n"
        "hot['where'] = 'machine'\n"
        "hot['cause'] = {'name': 'power-cap', 'confidence': 0.91,\n"
        "    'evidence': ['power limit 450 W, peers 700', 'no more'], 'advice': 'raise it'}\n"
        "journal.cause(hot)\n"
    )
    first, lost, no_steps, cause = entries
    assert cause["MESSAGE_ID"] == MESSAGE_IDS["finding-cause"]
    assert cause["MESSAGE"].endswith(
        ", where machine, cause power-cap (0.91): power limit 450 W, peers 700"
    )
    assert cause["PRIORITY"] == str(WARNING)
    assert cause["STRAGD_FINDING"] == first["STRAGD_FINDING"]
    assert (cause["STRAGD_CAUSE"], cause["STRAGD_WHERE"]) == ("power-cap", "machine")
    assert cause["STRAGD_CAUSE_CONFIDENCE"] == "0.910"
    assert cause["STRAGD_CAUSE_EVIDENCE"] == "power limit 450 W, peers 700; no more"
    assert cause["STRAGD_ADVICE"] == "raise it"
    assert (first["STRAGD_CAUSE"], first["STRAGD_WHERE"]) == ("unknown", "unknown")
    assert first["MESSAGE"].endswith(", where unknown, cause unknown")
    assert "20.0% slower than its peers" in first["STRAGD_EVIDENCE"]
    assert first["MESSAGE_ID"] == MESSAGE_IDS["finding-confirmed"]
    assert first["PRIORITY"] == str(WARNING)
    assert first["STRAGD_EVENT"] == "finding-confirmed"
    assert first["STRAGD_JOB"] == "lla?ma"
    assert first["STRAGD_JOB_KEY"] == "00000000000000aa"
    assert first["STRAGD_RANK"] == "2"
    assert first["STRAGD_HOST"] == "node7"
    assert first["STRAGD_KIND"] == "straggler"
    assert first["STRAGD_STATE"] == "confirmed"
    assert first["STRAGD_STATE_BEFORE"] == "suspect"
    assert float(first["STRAGD_SLOWDOWN"]) == 0.2
    assert float(first["STRAGD_COST_MS_PER_STEP"]) == 20.0
    assert first["STRAGD_FINDING"] == finding()["id"]
    assert "rank 2 on node7" in first["MESSAGE"]
    assert lost["STRAGD_LOST"] == "12"
    assert len(lost["MESSAGE"]) < 3000
    assert "STRAGD_COST_MS_PER_STEP" not in no_steps
    assert "STRAGD_STATE_BEFORE" not in no_steps
    assert float(no_steps["STRAGD_COST_PERCENT"]) == 15.0


def test_plain_lines_without_journald() -> None:
    stream = io.StringIO()
    journal = Journal("stderr", stream=stream)
    assert not journal.native
    journal.write("degraded", "two\nlines \x1b[31m", ERROR, reason="x")
    journal.transition(Transition("confirmed", finding(state="cleared"), "job ended"))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "stragd: two?lines ?[31m"
    assert lines[1].startswith("stragd: straggler cleared: job llama, rank 2")
    assert lines[1].endswith(": job ended")
    assert len(lines) == 2


def test_closed_stream_is_no_end() -> None:
    stream = io.StringIO()
    journal = Journal("stderr", stream=stream)
    stream.close()
    journal.write("started", "hello")


def test_rate_limit_is_per_id_and_tells_what_it_held_back() -> None:
    stream, now = io.StringIO(), [0.0]
    journal = Journal("stderr", 3, 10.0, stream=stream, clock=lambda: now[0])
    for _ in range(10):
        journal.write("events-lost", "lost")
    journal.write("degraded", "other")
    now[0] = 11.0
    journal.write("events-lost", "lost")
    journal.write("events-lost", "lost")
    lines = stream.getvalue().splitlines()
    assert lines.count("stragd: lost") == 4
    assert lines.count("stragd: other") == 1
    assert lines[4] == "stragd: lost (7 more like this were not written)"


def test_under_journald_compares_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as file:
        stat = os.fstat(file.fileno())
        ours = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        assert under_journald(ours, file.fileno())
        assert not under_journald({"JOURNAL_STREAM": "1:2"}, file.fileno())
        assert not under_journald({}, file.fileno())
    assert not under_journald(ours, 1 << 20)


def test_message_ids_are_a_promise() -> None:
    """Whoever alerts on an id relies on it: this list only grows."""
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)
    assert all(len(i) == 32 and int(i, 16) for i in MESSAGE_IDS.values())
    assert MESSAGE_IDS["finding-confirmed"] == "5c8a61bfa908495f879d6564e5133309"
    assert MESSAGE_IDS["finding-cleared"] == "d71f182b2341410c8d36531b1912c9a8"
