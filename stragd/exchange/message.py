"""The message: a fixed head, a small JSON header and RankWindow rows; all transports carry these.

``magic, version, kind, bytes of the header, bytes of the rows, age in s`` (little-endian), then
both. The header of a node's windows seldom changes, and is read when it does. What comes from
another node is checked here, row by row, before anything looks at it.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from stragd import _rscore
from stragd.jobs import OWN_UNKNOWN, STEPS_NOT_INFERRED, TENTH, clean
from stragd.lineage import Before

if TYPE_CHECKING:
    from numpy.typing import NDArray

Made = TypeVar("Made")

MAGIC, VERSION = b"stragdX\0", 2
WINDOWS, VERDICT, SUMMARY = 1, 2, 3
MAX_BYTES = 768 << 10
"""Of a message: 4096 ranks of a node and the header, below the 1 MiB that NATS takes."""
MAX_HEADER = 16 << 10
REMEMBERED, MAX_REMEMBERED = 16_384, 1 << 10
"""Headers of windows that are remembered, and the longest of them (bytes)."""
MAX_CLASSES = 64
MAX_WORLD = 1 << 20
MAX_NUMBER = 1 << 62
MAX_SECONDS = 48 * 3600
ROW = np.dtype(
    {
        "names": [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT],
        "formats": [form for _, form, _ in _rscore.RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in _rscore.RANK_WINDOW_LAYOUT],
        "itemsize": _rscore.RANK_WINDOW_BYTES,
    }
)
_HEAD = struct.Struct("<8sHHIId")
_NODE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class MessageError(ValueError):
    """A message that is not taken; ``cause`` is the word it is counted under."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Sender:
    """Who a node is, as its messages say."""

    node: str  # letters, digits, - and _: a token of a subject
    host: str
    instance: int  # another one with every start of the daemon


class Extent(NamedTuple):
    """What rows of one window cover, by their node's own count of windows and steps."""

    window: int
    first_step: int
    last_step: int
    seconds: float  # of the longest
    inferred: bool  # the steps


@dataclass(frozen=True)
class WindowMessage:
    """One window of one job on one node."""

    sender: Sender
    job: int
    name: str
    launcher: str
    classes: Mapping[int, str]  # names of the class ids of the rows
    causes: Mapping[int, Mapping[str, Any]]  # by rank: what telemetry says of a finding about it
    before: Before
    age_s: float  # from the end of the window until it was sent
    rows: NDArray[np.void]
    extent: Extent  # of the rows
    refused: int  # rows that cannot be


def node_name(text: str) -> str:
    """A host name as a node's name: ``gpu7.rack2`` -> ``gpu7-rack2``."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)[:64] or "unnamed"


def is_node(text: object) -> bool:
    """Whether a text can be a node's name."""
    return isinstance(text, str) and _NODE.fullmatch(text) is not None


def pack(kind: int, header: Mapping[str, Any], rows: bytes = b"", age_s: float = 0.0) -> bytes:
    """A message. Raises MessageError where it would be too long to be taken."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    data = _HEAD.pack(MAGIC, VERSION, kind, len(text), len(rows), age_s) + text + rows
    if len(data) > MAX_BYTES:
        raise MessageError("oversized", f"{len(data)} bytes, at most {MAX_BYTES} are taken")
    return data


def unpack(data: bytes, kind: int, max_header: int = MAX_BYTES) -> tuple[bytes, bytes, float]:
    """(header, rows, age) of a message of one kind. Raises MessageError."""
    if len(data) > MAX_BYTES:
        raise MessageError("oversized", f"{len(data)} bytes, at most {MAX_BYTES} are taken")
    if len(data) < _HEAD.size:
        raise MessageError("malformed", f"{len(data)} bytes are no message")
    magic, version, found, header_bytes, rows_bytes, age_s = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MessageError("malformed", "it does not begin as a message of stragd")
    if version != VERSION:
        raise MessageError(
            "version", f"version {version}, this is {VERSION}: install one stragd everywhere"
        )
    if found != kind or _HEAD.size + header_bytes + rows_bytes != len(data):
        raise MessageError("malformed", "its kind or its lengths are wrong")
    if header_bytes > max_header:
        raise MessageError("oversized", f"a header of {header_bytes} bytes")
    end = _HEAD.size + header_bytes
    return data[_HEAD.size : end], data[end:], age_s


def _object(text: bytes) -> dict[str, Any]:
    """What a header says. Raises MessageError."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageError("malformed", "its header is no JSON") from None
    if not isinstance(header, dict):
        raise MessageError("malformed", "its header is no object")
    return header


def unpack_header(
    data: bytes, kind: int, name: str, make: Callable[[dict[str, Any]], Made], most: int = MAX_BYTES
) -> Made:
    """What ``make`` makes of a message without rows. Raises MessageError, whatever a node wrote."""
    text, rest, _ = unpack(data, kind, most)
    if rest:
        raise MessageError("malformed", f"{name} has no rows")
    header = _object(text)
    try:
        return make(header)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MessageError("malformed", f"{name}: {type(error).__name__} {error}") from None


def encode_windows(
    sender: Sender,
    rows: NDArray[np.void],
    name: str,
    launcher: str,
    classes: Mapping[int, str],
    causes: Mapping[int, Mapping[str, Any]],
    age_s: float,
    before: Before | None = None,
) -> bytes:
    """One window of one job; ``rows`` are all of one window. Raises MessageError if too long."""
    header = {
        "node": sender.node,
        "host": sender.host,
        "instance": sender.instance,
        "job": f"{int(rows['job'][0]):016x}",
        "name": name,
        "launcher": launcher,
        "classes": {str(number): text for number, text in classes.items()},
    }
    if before is not None and before.job:
        header["before"], header["stayed"] = f"{before.job:016x}", sorted(before.stayed)
    if causes:
        header["causes"] = {str(rank): dict(cause) for rank, cause in causes.items()}
    return pack(WINDOWS, header, np.ascontiguousarray(rows).tobytes(), max(age_s, 0.0))


def decode_windows(data: bytes) -> WindowMessage:
    """Check and take apart. Raises MessageError; rows that cannot be are left out and counted."""
    (message,) = decode_all([data])
    if isinstance(message, MessageError):
        raise message
    return message


def decode_all(datas: Sequence[bytes]) -> list[WindowMessage | MessageError]:
    """The same for many at once, whose rows are checked together; errors in their places."""
    opened: list[tuple[_Header, bytes, float] | MessageError] = []
    for data in datas:
        try:
            opened.append(_open_windows(data))
        except MessageError as error:
            opened.append(error)
    heads = [one for one in opened if not isinstance(one, MessageError)]
    rows = np.frombuffer(bytearray(b"".join(raw for _, raw, _ in heads)), dtype=ROW)
    counts = np.array([len(raw) // ROW.itemsize for _, raw, _ in heads], dtype=np.intp)
    good = verify(rows, counts, np.array([head.job for head, _, _ in heads], dtype=np.uint64))
    ends = np.cumsum(counts).tolist()
    kept = np.add.reduceat(good, ends - counts).tolist() if heads else []
    whole = extents(rows, counts)
    messages: list[WindowMessage | MessageError] = []
    number = 0
    for one in opened:
        if isinstance(one, MessageError):
            messages.append(one)
            continue
        (head, _, age_s), end, count = one, ends[number], int(counts[number])
        of, refused = rows[end - count : end], count - int(kept[number])
        if refused == count:
            messages.append(MessageError("rows", "none of its rows can be"))
        else:
            extent = whole[number]
            if refused:
                of = of[good[end - count : end]]
                (extent,) = extents(of, np.array([len(of)]))
            messages.append(WindowMessage(*head, age_s, of, extent, refused))
        number += 1
    return messages


def extents(rows: NDArray[np.void], counts: NDArray[np.intp]) -> list[Extent]:
    """Of each message; ``counts`` are their rows, none is 0."""
    if not len(counts):
        return []
    begins = np.cumsum(counts) - counts
    lengths = (rows["end_ns"] - rows["start_ns"]).astype(np.int64)
    columns = (
        rows["window"][begins],
        np.minimum.reduceat(rows["first_step"], begins),
        np.maximum.reduceat(rows["last_step"], begins),
        np.maximum.reduceat(lengths, begins) / 1e9,
        np.bitwise_or.reduceat(rows["flags"], begins) & STEPS_NOT_INFERRED == 0,
    )
    return [Extent(*of) for of in zip(*(column.tolist() for column in columns), strict=True)]


class _Header(NamedTuple):
    """Of a message with windows: what WindowMessage has before its rows."""

    sender: Sender
    job: int
    name: str
    launcher: str
    classes: Mapping[int, str]
    causes: Mapping[int, Mapping[str, Any]]
    before: Before


def _open_windows(data: bytes) -> tuple[_Header, bytes, float]:
    text, raw, age_s = unpack(data, WINDOWS, MAX_HEADER)
    if not raw or len(raw) % ROW.itemsize:
        raise MessageError("malformed", f"{len(raw)} bytes are no rows")
    if not 0 <= age_s <= MAX_SECONDS:
        raise MessageError("malformed", "it has an age that cannot be")
    return (_known_header if len(text) <= MAX_REMEMBERED else _header)(text), raw, age_s


def _header(text: bytes) -> _Header:
    said = _object(text)
    try:
        job = int(said["job"], 16)
        sender = Sender(said["node"], clean(said["host"]), int(said["instance"]))
        names = {int(number): clean(name) for number, name in said["classes"].items()}
        causes = {int(rank): _cause(cause) for rank, cause in said.get("causes", {}).items()}
        name, launcher = clean(said["name"]), clean(said["launcher"], 20)
        before = Before(int(said.get("before", "0"), 16), set(map(int, said.get("stayed", ()))))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MessageError("malformed", f"its header: {type(error).__name__} {error}") from None
    if not is_node(sender.node) or not 0 < job < 1 << 64 or len(names) > MAX_CLASSES:
        raise MessageError("malformed", "its header names no node, no job or too many classes")
    if not 0 <= sender.instance < 1 << 64:
        raise MessageError("malformed", "its header has an instance that cannot be")
    return _Header(sender, job, name, launcher, names, causes, before)


_known_header = lru_cache(REMEMBERED)(_header)


def _cause(value: Mapping[str, Any]) -> dict[str, Any]:
    """The cause of a finding, bounded."""
    return {
        "name": clean(value["name"], 60),
        "confidence": min(max(float(value["confidence"]), 0.0), 1.0),
        "evidence": [clean(line, 300) for line in list(value["evidence"])[:8]],
        "advice": clean(value["advice"], 300),
        "where": value["where"] if value["where"] in ("machine", "job", "network") else "unknown",
    }


def verify(
    rows: NDArray[np.void], counts: NDArray[np.intp], jobs: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which rows can be: of their message's job and first window, each rank once, in range.

    ``counts`` are the rows of each message, none is 0; ``jobs`` are theirs. Whether the times make
    sense is the scorer's to say: it refuses rows too.
    """
    message = np.repeat(np.arange(len(counts)), counts)
    window, rank = rows["window"], rows["rank"]
    whole = (rows["job"] == jobs[message]) & (window == window[np.cumsum(counts) - counts][message])
    whole &= (rows["flags"] & TENTH) == 0
    whole &= (rank < rows["world_size"]) & (rows["world_size"] <= MAX_WORLD)
    whole &= (window < MAX_NUMBER) & (rows["last_step"] < MAX_NUMBER)
    whole &= rows["first_step"] <= rows["last_step"]
    whole &= (rows["start_ns"] < rows["end_ns"]) & (rows["end_ns"] < MAX_NUMBER)
    whole &= (rows["end_ns"] - rows["start_ns"]) < np.uint64(MAX_SECONDS * 10**9)
    whole &= ((rows["flags"] & STEPS_NOT_INFERRED) != 0) | (rows["steps"] > 0)
    whole &= np.isfinite(rows["wall"]) & (rows["wall"] > 0)
    whole &= ((rows["flags"] & OWN_UNKNOWN) != 0) | np.isfinite(rows["own"])
    order = np.lexsort((rank, message))  # stable: the first of equal ones is the one that counts
    again = (np.diff(rank[order].astype(np.int64)) == 0) & (np.diff(message[order]) == 0)
    whole[order[1:][again]] = False
    return np.asarray(whole)
