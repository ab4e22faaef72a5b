"""What the daemon and a reader's process say to each other: one JSON object per packet.

Daemon to reader: ``{"window": 7, "processes": true}``. Reader to daemon, per window: one "sample"
for each subject, "processes" where asked for, "done" at the end. The values of a sample follow its
object: a byte of 0, the place of each in the table of quantities, then the doubles; as text they
would be most of the cost of a window. Both sides check what they get: a process that a driver's
library has damaged must not damage the daemon.
"""

from __future__ import annotations

import json
import math
import zlib
from array import array
from dataclasses import dataclass
from typing import Any

from stragd.discovery.process import printable
from stragd.telemetry.quantities import GPU
from stragd.telemetry.reading import Reading

MAX_PACKET = 1 << 17
MAX_NOTES, MAX_TEXT = 32, 160
MAX_PIDS = 4096
MAX_NUMBER = 1e18
NAMES = tuple(GPU)
PLACES = {name: place for place, name in enumerate(NAMES)}
ENTRY = 1 + array("d").itemsize
TABLE = f"{zlib.crc32(' '.join(NAMES).encode()):08x}"
"""Stands for the table: two processes understand each other only if theirs are the same."""
ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True)
class Request:
    """Read everything now."""

    window: int
    processes: bool


@dataclass(frozen=True)
class SampleMessage:
    """One subject's reading."""

    window: int
    reading: Reading


@dataclass(frozen=True)
class ProcessesMessage:
    """Which processes are on which subject."""

    window: int
    by_subject: dict[str, list[int]]


@dataclass(frozen=True)
class DoneMessage:
    """The window is answered."""

    window: int
    reason: str
    """Why there is nothing to read, "" if there is."""
    late_seconds: float
    """How long the oldest call that has not come back is out."""
    all_late: bool
    """Whether no GPU at all answers."""


def encode(message: Request | SampleMessage | ProcessesMessage | DoneMessage) -> bytes:
    """The packet of a message."""
    if isinstance(message, SampleMessage):
        reading = message.reading
        what: dict[str, Any] = {
            "sample": reading.subject,
            "model": reading.model,
            "notes": reading.notes[:MAX_NOTES],
            "silent": reading.silent,
        }
    elif isinstance(message, ProcessesMessage):
        what = {"processes": message.by_subject}
    elif isinstance(message, DoneMessage):
        what = {
            "done": message.reason,
            "late": message.late_seconds,
            "all_late": message.all_late,
        }
    else:
        what = {"processes": message.processes}
    what["window"] = message.window
    packet = ENCODER.encode(what).encode()
    if isinstance(message, SampleMessage):
        values = message.reading.values
        packet += b"\0" + bytes(map(PLACES.__getitem__, values))
        packet += array("d", values.values()).tobytes()
    return packet


def decode_request(packet: bytes) -> Request | None:
    """A request, or None for anything else."""
    fields = _fields(packet)
    if fields is None:
        return None
    return Request(fields["window"], fields.get("processes") is True)


def decode_answer(packet: bytes) -> SampleMessage | ProcessesMessage | DoneMessage | None:
    """An answer, or None for anything else; names and numbers that make no sense are left out."""
    text, _, packed = packet.partition(b"\0")
    fields = _fields(text)
    if fields is None:
        return None
    window = fields["window"]
    if "sample" in fields:
        subject, values = _text(fields["sample"]), _values(packed)
        if not subject or values is None:
            return None
        notes = fields.get("notes")
        words = [_text(note) for note in notes[:MAX_NOTES]] if isinstance(notes, list) else []
        silent = _text(fields.get("silent"))
        model = _text(fields.get("model"))
        return SampleMessage(window, Reading(subject, model, values, words, silent))
    if "processes" in fields:
        listed = fields["processes"]
        if not isinstance(listed, dict):
            return None
        return ProcessesMessage(window, {_text(name): _pids(pids) for name, pids in listed.items()})
    if "done" in fields:
        late = fields.get("late")
        seconds = late if isinstance(late, float) and 0 <= late < MAX_NUMBER else 0.0
        return DoneMessage(window, _text(fields["done"]), seconds, fields.get("all_late") is True)
    return None


def _fields(packet: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(packet)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or type(fields.get("window")) is not int:
        return None
    return fields


def _values(packed: bytes) -> dict[str, float] | None:
    count, rest = divmod(len(packed), ENTRY)
    if rest or count > len(NAMES):
        return None
    places, values = packed[:count], array("d", packed[count:])
    if count and max(places) >= len(NAMES):
        return None
    named = zip(map(NAMES.__getitem__, places), values, strict=True)
    if (
        count
        and math.isfinite(sum(values))
        and -MAX_NUMBER < min(values) <= max(values) < MAX_NUMBER
    ):
        return dict(named)
    return {name: value for name, value in named if abs(value) < MAX_NUMBER}  # false for a NaN


def _text(value: object) -> str:
    return printable(value, MAX_TEXT) if isinstance(value, str) else ""


def _pids(value: object) -> list[int]:
    if not isinstance(value, list):
        return []
    return [pid for pid in value[:MAX_PIDS] if type(pid) is int and 0 < pid < 1 << 31]
