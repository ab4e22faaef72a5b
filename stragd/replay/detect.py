"""Which recording a path is, by its content and not by its name."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from stragd.replay import kineto, minibatch, stages, totals, windows
from stragd.replay.recording import MAX_BYTES, Recording, RecordingError

Reader = Callable[[Path, int | None], Recording]

HEAD = 4096
MAX_FILES = 4096
KNOWN = (
    "known are the ByteDance parquet layout, the Alibaba mini-batch CSV, PyTorch profiler traces "
    "(.json, .json.gz, or a directory of them), TraceLens' nccl_summary_long CSV, "
    "and what `stragctl record` writes"
)


def open_recording(path: Path, per_window: int | None = None) -> Recording:
    """Read a file, or a directory with the traces of one job.

    ``per_window`` steps make a window; None leaves it to the recording's length. Raises
    RecordingError, whose text begins with the path.
    """
    try:
        if path.is_dir():
            return _open_directory(path, per_window)
        if not path.is_file():
            raise RecordingError("no such file" if not path.exists() else "not a regular file")
        reader = _reader(path)
        if reader is None:
            return kineto.read([path], per_window)
        return reader(path, per_window)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from None
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from None


def _open_directory(path: Path, per_window: int | None) -> Recording:
    """All traces of it together, or its only recording of another kind."""
    files = sorted(item for item in path.iterdir() if item.is_file())
    if len(files) > MAX_FILES:
        raise RecordingError(f"{len(files)} files, at most {MAX_FILES} are read")
    traces, others = [], []
    for file in files:
        try:
            reader = _reader(file)
        except RecordingError:
            continue  # a licence, a note
        if reader is not None:
            others.append((file, reader))
        elif kineto.looks_like_trace(file):
            traces.append(file)
    if traces and not others:
        return kineto.read(traces, per_window)
    if len(others) == 1 and not traces:
        file, reader = others[0]
        return reader(file, per_window)
    if traces or others:
        names = [file.name for file, _ in others] + [file.name for file in traces]
        raise RecordingError(f"several recordings, name one: {', '.join(names[:8])}")
    raise RecordingError(f"no recording in this directory; {KNOWN}")


def _reader(path: Path) -> Reader | None:
    """Reader of a file, None for a Kineto trace. Raises RecordingError."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise RecordingError(f"{size >> 20} MiB, at most {MAX_BYTES >> 20} are read")
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head:
        raise RecordingError("the file is empty")
    if head.startswith(stages.MAGIC):
        return stages.read
    if head.startswith(windows.MAGIC):
        return windows.read
    if head.startswith(kineto.GZIP) or head.lstrip()[:1] in (b"{", b"["):
        return None
    columns = _columns(head)
    if minibatch.matches(columns):
        return minibatch.read
    if totals.matches(columns):
        return totals.read
    raise RecordingError(f"not a recording that stragctl knows; {KNOWN}")


def _columns(head: bytes) -> list[str]:
    """Names in the first line, where it is CSV."""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace")
    try:
        return next(csv.reader([first]), [])
    except csv.Error:
        return []
