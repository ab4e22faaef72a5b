"""stragd's own recordings (`stragctl record`): the windows of a running daemon in one file.

The first line is a JSON object: ``stragd_windows`` (version of the format), ``layout`` (name,
numpy type and offset of every field of a row) and ``row_bytes``. Then, for every window, one JSON
line about the job (``job``: key, ``name``, ``world_size``, ``rows``; ``hosts`` and ``classes``
where they are new) and ``rows`` times ``row_bytes`` bytes. A recording that was broken off is
good up to its last whole window.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from stragd._rscore import RANK_WINDOW_BYTES, RANK_WINDOW_LAYOUT
from stragd.replay.recording import MAX_RANK, ROW, RecordedJob, Recording, RecordingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "stragd-windows"
VERSION = 1
MAGIC = b'{"stragd_windows":'
MAX_LINE = 16 << 20
"""Longest JSON line: the hosts of the largest job."""
MAX_JOBS = 4096
MAX_WINDOWS = 1_000_000


def header() -> bytes:
    """The first line of a recording."""
    about = {
        "stragd_windows": VERSION,
        "layout": [list(part) for part in RANK_WINDOW_LAYOUT],
        "row_bytes": RANK_WINDOW_BYTES,
    }
    return json.dumps(about, separators=(",", ":")).encode() + b"\n"


def entry(about: dict[str, Any], rows: bytes) -> bytes:
    """One window: ``about`` holds job, name and world_size, perhaps hosts and classes."""
    count = len(rows) // RANK_WINDOW_BYTES
    line = json.dumps({**about, "rows": count}, separators=(",", ":")).encode()
    return line + b"\n" + rows[: count * RANK_WINDOW_BYTES]


def read(path: Path, per_window: int | None = None) -> Recording:
    """Raises RecordingError. ``per_window`` has no meaning here: the daemon has cut the windows."""
    jobs: dict[int, RecordedJob] = {}
    windows: list[NDArray[np.void]] = []
    steps: dict[int, int] = {}
    recording = Recording(FORMAT, jobs, windows, 0, has_clock=True)
    with path.open("rb") as file:
        _check_header(file)
        for about, rows in _entries(file, recording.notes):
            job = _take_about(jobs, about)
            good = _good(rows, job, jobs[job].world_size)
            if len(rows) > len(good):
                recording.notes.append(
                    f"{len(rows) - len(good)} rows of window {len(windows)} are not of its job"
                )
            if not len(good):
                continue
            jobs[job].ranks.update(good["rank"].tolist())
            windows.append(good)
            first, last = int(good["first_step"].min()), int(good["last_step"].max())
            steps[job] = steps.get(job, 0) + (last - first + 1 if last >= first else 0)
            if len(windows) > MAX_WINDOWS:
                raise RecordingError(f"more than {MAX_WINDOWS} windows: record one job (--job)")
    if not windows:
        raise RecordingError("it holds no window: record while a job is watched")
    recording.steps = max(steps.values())
    return recording


def _check_header(file: IO[bytes]) -> None:
    try:
        about = json.loads(file.readline(MAX_LINE))
        version, layout = about["stragd_windows"], about["layout"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RecordingError("its first line is damaged") from None
    if version != VERSION:
        raise RecordingError(
            f"it has version {version!r} of the format, this stragctl reads {VERSION}: "
            "use the stragctl that came with the stragd that wrote it"
        )
    if layout != [list(part) for part in RANK_WINDOW_LAYOUT]:
        raise RecordingError(
            "its rows have another layout: use the stragctl that came with the stragd that wrote it"
        )


def _entries(
    file: IO[bytes], notes: list[str]
) -> Iterator[tuple[dict[str, Any], NDArray[np.void]]]:
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if not line.endswith(b"\n"):
            break
        try:
            about = json.loads(line)
            count = about["rows"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RecordingError(f"window {number} has a damaged line before its rows") from None
        if not isinstance(count, int) or not 0 <= count <= MAX_RANK + 1:
            raise RecordingError(f"window {number} claims {count!r} rows")
        data = file.read(count * RANK_WINDOW_BYTES)
        if len(data) < count * RANK_WINDOW_BYTES:
            break
        yield about, np.frombuffer(data, dtype=ROW)
    else:
        return
    notes.append(f"window {number} is not whole: the recording was broken off")


def _take_about(jobs: dict[int, RecordedJob], about: dict[str, Any]) -> int:
    """The job's key; a damaged description is refused."""
    try:
        key, name, world = int(about["job"], 16), about["name"], about["world_size"]
        hosts, classes = about.get("hosts", {}), about.get("classes", {})
        known = {int(rank): str(host)[:120] for rank, host in hosts.items()}
        kinds = {int(number): str(kind)[:120] for number, kind in classes.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RecordingError("the description of a job is damaged") from None
    if not (0 < key < 1 << 64 and isinstance(name, str) and isinstance(world, int)):
        raise RecordingError("the description of a job is damaged")
    if not 0 < world <= MAX_RANK + 1:
        raise RecordingError(f"a job claims a world size of {world}")
    if key not in jobs and len(jobs) >= MAX_JOBS:
        raise RecordingError(f"more than {MAX_JOBS} jobs")
    job = jobs.setdefault(key, RecordedJob(name[:120], world))
    job.world_size = max(job.world_size, world)
    job.hosts.update(known)
    job.classes.update(kinds)
    job.labels.update({rank: f"rank {rank}" for rank in known})
    return key


def _good(rows: NDArray[np.void], job: int, world_size: int) -> NDArray[np.void]:
    """Rows of this job and of its first window; what their times say is the scorer's to check."""
    mine = (rows["job"] == job) & (rows["rank"] < world_size)
    if mine.any():
        mine &= rows["window"] == rows["window"][mine][0]
    good: NDArray[np.void] = rows[mine]
    return good
