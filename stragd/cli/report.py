"""`stragctl report`: one page about an incident, from a running stragd or a recording."""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stragd.cli.client import ControlClient, ControlError
from stragd.cli.text import clean
from stragd.cli.top import SHAPE_ERRORS, WRONG_SHAPE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd.cli.report_data import Incident

MAX_ANSWERS = 64
"""Of `windows`; the daemon holds three answers' worth, and does not grow while it is asked."""


def add_arguments(parser: argparse.ArgumentParser, job_help: str) -> None:
    """What `report` takes."""
    parser.add_argument(
        "job", nargs="?", metavar="JOB",
        help=f"{job_help}, also of a job that has ended; not needed when there is one job",
    )  # fmt: skip
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="page to write (an older one is replaced); - is stdout",
    )
    parser.add_argument(
        "--recording", type=Path, metavar="FILE",
        help="of a recording (`stragctl record`) and not of a running stragd",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the page. Raises ControlError."""
    if arguments.output is None and not arguments.json:
        raise ControlError("report: say where to: -o report.html (or --json)")
    if arguments.output == "-" and arguments.json:
        raise ControlError("report: the page and --json cannot both go to stdout: -o report.html")
    try:
        from stragd.cli.report_page import page
    except ImportError as error:
        raise ControlError(f"report needs numpy: {error} (apt install python3-numpy)") from None
    if arguments.recording is not None:
        incident = _recorded(arguments.recording, arguments.job)
    else:
        incident = _live(arguments.socket, arguments.job)
    if arguments.json:
        print(json.dumps(_plain(incident), indent=2, allow_nan=False))
    if arguments.output is None:
        return 0
    text = page(incident)
    if arguments.output == "-":
        sys.stdout.write(text)
        return 0
    _write(Path(arguments.output), text)
    if not arguments.json:
        print(f"{len(text) >> 10} KiB in {clean(arguments.output)}")
    return 0


def _write(path: Path, text: str) -> None:
    """All or nothing, and never through a link that somebody else has put there."""
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with open(number, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o644 & ~mask)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise ControlError(f"{path}: {error.strerror or error}") from None


def _live(socket: str, job: str | None) -> Incident:
    """What a running stragd holds."""
    from stragd.cli.report_data import Incident, blamed, picture, weigh

    extra = {} if job is None else {"job": job}
    with ControlClient(socket) as client:
        answer = client.request("report", **extra)
        try:
            windows = _windows(client, answer["key"])
            findings = answer["findings"]
            about = answer["job"] or (findings[0]["job"] if findings else {})
            return Incident(
                job=about.get("name", answer["key"]),
                key=answer["key"],
                world_size=int(about.get("world_size", 0)) or len(answer["ranks"]) or 1,
                source=f"stragd {answer['version']} on {answer['host']}",
                now=answer["time"],
                dated=True,
                findings=findings,
                abstentions=answer["abstentions"],
                events=answer["events"],
                hosts={rank["rank"]: rank["host"] for rank in answer["ranks"]},
                picture=picture(windows, blamed(weigh(findings))),
                notes=[] if answer["job"] else ["the job has ended"],
            )
        except (*SHAPE_ERRORS, binascii.Error):
            raise ControlError(f"{socket}: {WRONG_SHAPE}") from None


def _windows(client: ControlClient, key: str) -> list[NDArray[np.void]]:
    """All windows of a job that the daemon still holds, oldest first."""
    import numpy as np

    from stragd.replay.recording import ROW

    windows: list[NDArray[np.void]] = []
    after = 0
    for _ in range(MAX_ANSWERS):
        part = client.request("windows", job=key, after=after)
        windows += [
            np.frombuffer(base64.b64decode(window["rows"]), dtype=ROW) for window in part["windows"]
        ]
        if part["after"] <= after or not part["windows"]:
            break
        after = int(part["after"])
    return windows


def _recorded(path: Path, job: str | None) -> Incident:
    """What a recording shows."""
    try:
        from stragd.cli.report_data import Incident, blamed, events_of, picture, weigh
        from stragd.config import Config
        from stragd.finding import iso_time, job_key
        from stragd.replay.detect import open_recording
        from stragd.replay.recording import RecordingError
        from stragd.replay.run import replay
    except ImportError as error:
        raise ControlError(f"the native core is not built: {error}; run make setup") from None
    try:
        recording = open_recording(path)
        result = replay(recording, Config().scorer())
    except RecordingError as error:
        raise ControlError(str(error)) from None
    names = {job_key(key): about.name for key, about in recording.jobs.items()}
    key = _choose(names, job, path)
    about = recording.jobs[int(key, 16)]
    windows = [rows for rows in recording.windows if int(rows["job"][0]) == int(key, 16)]
    findings = [f for f in result["findings"] if f["job"]["key"] == key]
    last = max((int(rows["time_ns"].max()) for rows in windows), default=0)
    return Incident(
        job=about.name,
        key=key,
        world_size=about.world_size,
        source=f"the recording {path.name} ({recording.format})",
        now=iso_time(last),
        dated=recording.has_clock,
        findings=findings,
        abstentions=[a for a in result["abstentions"] if a["job"] == key],
        events=events_of(findings),
        hosts=about.hosts,
        picture=picture(windows, blamed(weigh(findings))),
        notes=result["notes"],
    )


def _choose(names: dict[str, str], job: str | None, path: Path) -> str:
    """The key of the one job that is meant, of a recording's (key -> name)."""
    chosen = [key for key, name in names.items() if job is None or job in (name, key)]
    if not chosen and job:
        chosen = [key for key in names if key.startswith(job.lower())]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(f"{name} ({key[:8]})" for key, name in list(names.items())[:20])
    problem = "say which job" if chosen else f"no job {(job or '')[:60]!r}"
    raise ControlError(f"{path}: {problem}: {known}")


def _plain(incident: Incident) -> dict[str, Any]:
    """The facts of the page without its pictures."""
    from stragd.cli.report_data import lost_hours

    shares = incident.picture.shares if incident.picture else []
    return {
        "job": {"key": incident.key, "name": incident.job, "world_size": incident.world_size},
        "source": incident.source,
        "time": incident.now,
        "gpu_hours_lost": lost_hours(incident),
        "findings": incident.findings,
        "abstentions": incident.abstentions,
        "events": incident.events,
        "ranks": [
            {
                "rank": share.rank,
                "own_ms": _known(share.own),
                "wait_ms": _known(share.wait),
                "comm_ms": _known(share.comm),
            }
            for share in shares
        ],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
