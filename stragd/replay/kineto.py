"""PyTorch profiler traces (Kineto JSON): one file per rank.

Only communication is read: the NCCL and RCCL kernels on the GPU, or gloo's operations of a job
without one. Steps come from the repeating sequence of collectives, as live.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stragd.jobs import STEPS_NOT_INFERRED
from stragd.replay.inference import Collectives, infer_steps, time_slices
from stragd.replay.recording import (
    MAX_RANK,
    RecordedJob,
    Recording,
    RecordingError,
    key_of,
)
from stragd.replay.steps import (
    SOURCE_DEVICE,
    SOURCE_GLOO,
    cut,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FORMAT = "kineto-json"
MAX_JSON = 1 << 30
"""Largest trace of one rank, bytes, after decompression."""
MAX_NOTES = 8
KERNEL = re.compile(r"(nccl|msccl)(Dev)?Kernel", re.IGNORECASE)
RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
# What tells two collectives apart, beside the kernel: as the live signature does.
DETAILS = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
EPOCH_US = 1e15
"""Times beyond this are since 1970 already; newer traces count from ``baseTimeNanoseconds``."""
HEAD = 1 << 16
GZIP = b"\x1f\x8b"


@dataclass
class _Trace:
    """One file."""

    path: Path
    rank: int
    world_size: int
    host: str
    device: str
    collectives: Collectives


def read(paths: Sequence[Path], per_window: int | None = None) -> Recording:
    """``paths`` are the traces of one job, a rank each. One of several that cannot be read is left
    out with a note. Raises RecordingError."""
    vocabulary: dict[str, int] = {}
    traces: dict[int, _Trace] = {}
    unreadable: list[str] = []
    for path in paths:
        try:
            trace = _load(path, vocabulary)
        except (RecordingError, OSError) as error:
            if len(paths) == 1:
                raise
            unreadable.append(f"{path.name}: {getattr(error, 'strerror', None) or error}")
            continue
        if trace.rank in traces:
            raise RecordingError(
                f"{path.name} and {traces[trace.rank].path.name} are both of rank {trace.rank}: "
                "give the traces of one run"
            )
        traces[trace.rank] = trace
    if not traces:
        raise RecordingError(unreadable[0])
    ordered = [traces[rank] for rank in sorted(traces)]
    name = paths[0].parent.resolve().name if len(paths) > 1 else paths[0].name.split(".")[0]
    world_size = max(t.world_size for t in ordered)
    job = key_of(str(name))
    about = RecordedJob(name, world_size, ranks=set(traces))
    about.labels = {t.rank: t.path.name for t in ordered}
    about.hosts = {t.rank: t.host for t in ordered if t.host}
    about.classes = {t.collectives.class_id: t.device for t in ordered if t.device}
    collectives = [trace.collectives for trace in ordered]
    ranks = infer_steps(collectives)
    inferred = ranks is not None
    if ranks is None:
        ranks = time_slices(collectives)
    windows, per_window = cut(ranks, job, world_size, per_window if inferred else 1)
    steps = len(np.unique(np.concatenate([rank.number for rank in ranks]))) if inferred else 0
    notes = [f"left out: {what}" for what in unreadable[:MAX_NOTES]]
    if len(unreadable) > MAX_NOTES:
        notes.append(f"left out: {len(unreadable) - MAX_NOTES} more traces")
    if world_size > len(ordered):
        notes.append(f"{len(ordered)} of {world_size} ranks: give all traces for a better verdict")
    if not inferred:
        notes.append("no repeating step was found: it is cut into slices of time")
        for rows in windows:
            rows["flags"] |= STEPS_NOT_INFERRED
    return Recording(FORMAT, {job: about}, windows, steps, per_window, has_clock=True, notes=notes)


def load_json(path: Path) -> Any:
    """The whole document, plain or gzip. Raises RecordingError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            file = gzip.GzipFile(fileobj=raw) if packed else raw
            data = file.read(MAX_JSON + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordingError(f"not a readable gzip file: {error}") from None
    if len(data) > MAX_JSON:
        raise RecordingError(f"longer than {MAX_JSON >> 20} MiB: record fewer steps")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"not JSON: {str(error)[:120]}") from None


def looks_like_trace(path: Path) -> bool:
    """Whether the beginning of a JSON file is a trace's: a directory may hold other JSON."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            head = (gzip.GzipFile(fileobj=raw) if packed else raw).read(HEAD)
    except (OSError, EOFError, zlib.error):
        return False
    return any(key in head for key in (b'"traceEvents"', b'"schemaVersion"', b'"ph"'))


def _load(path: Path, vocabulary: dict[str, int]) -> _Trace:
    document = load_json(path)
    if isinstance(document, list):  # as torch wrote it before Kineto
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise RecordingError("not a Kineto trace: it has no traceEvents")
    kernels: list[tuple[float, float, int, str]] = []
    gloo: list[tuple[float, float, int, str]] = []
    host_only = False
    for event in document["traceEvents"]:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name = event.get("name")
        if not isinstance(name, str):
            continue
        if event.get("cat") == "kernel" and KERNEL.match(name):
            kernels.append(_event(event, name))
        elif name.startswith("gloo:"):
            gloo.append(_event(event, name))
        elif name.startswith("nccl:"):
            host_only = True
    if not kernels and not gloo:
        raise RecordingError(
            "it has NCCL calls of the host but no kernels: record with ProfilerActivity.CUDA"
            if host_only
            else "it has no NCCL, RCCL or gloo operations"
        )
    events = kernels or gloo
    # Launch order, as the host issued them; streams overtake each other on the device.
    events.sort(key=lambda event: (event[2], event[0]))
    # From the first one on: a float holds no nanoseconds since 1970.
    first = min(event[0] for event in events)
    zero = _base_ns(document, first) + int(first * 1e3)
    start = np.array([event[0] - first for event in events]) * 1e3
    length = np.array([event[1] for event in events]) * 1e3
    tokens = [vocabulary.setdefault(event[3], len(vocabulary)) for event in events]
    info = document.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _rank(info, path)
    world_size = info.get("world_size")
    if not isinstance(world_size, int) or not rank < world_size <= MAX_RANK + 1:
        world_size = rank + 1
    host, device = document.get("host_name"), _device(document)
    collectives = Collectives(
        rank,
        zlib.crc32(device.encode()) if device else 0,
        SOURCE_DEVICE if kernels else SOURCE_GLOO,
        zero,
        np.array(tokens),
        start,
        start + length,
    )
    host = host[:120] if isinstance(host, str) else ""
    return _Trace(path, rank, world_size, host, device, collectives)


def _event(event: dict[str, Any], name: str) -> tuple[float, float, int, str]:
    """(start µs, length µs, order of issue, what was called)."""
    start, length = event.get("ts"), event.get("dur")
    for key, value in (("ts", start), ("dur", length)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e17:
            raise RecordingError(f"an event of {name[:40]!r} has {key} {value!r}, not a time")
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    order = args.get("correlation")
    if isinstance(order, bool) or not isinstance(order, int):
        order = 0
    kind = name.split("(")[0][:120]
    told = (args.get(key) for key in DETAILS)
    details = [str(value)[:60] for value in told if isinstance(value, str | int)]
    return float(start), float(length), order, "|".join([kind, *details])  # type: ignore[arg-type]


def _base_ns(document: dict[str, Any], first_us: float) -> int:
    base = document.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 < base < 2**62 and first_us < EPOCH_US:
        return base
    return 0


def _rank(info: dict[str, Any], path: Path) -> int:
    rank = info.get("rank")
    if not isinstance(rank, int) or isinstance(rank, bool):
        found = RANK_IN_NAME.search(path.name)
        if found is None:
            raise RecordingError(
                "which rank it is of is not known: it has no distributedInfo; "
                "name the file rank0.json"
            )
        rank = int(found[1])
    if not 0 <= rank <= MAX_RANK:
        raise RecordingError(f"its rank is {rank}, not between 0 and {MAX_RANK}")
    return rank


def _device(document: dict[str, Any]) -> str:
    """The GPU model; "" where there are several, or none."""
    devices = document.get("deviceProperties")
    if not isinstance(devices, list):
        return ""
    names = {str(d.get("name", ""))[:80] for d in devices if isinstance(d, dict)}
    return names.pop() if len(names) == 1 else ""
