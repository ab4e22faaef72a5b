"""Reads a ring from outside, as plainly as ncclring/ring.h describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = 0x676E697264617274
COMMS, SLOTS, FUNCTIONS = 256, 16384, 16
COMMS_AT, SLOTS_AT = 4096, 4096 + 256 * 1152
BYTES = SLOTS_AT + SLOTS * 64

HEADER = np.dtype(
    {
        "names": [
            "magic", "layout", "header_bytes", "comm_bytes", "comm_count", "slot_bytes",
            "slot_count", "comms_offset", "slots_offset", "total_bytes", "start_ns", "pid",
            "vendor", "clock", "api", "clock_hz", "library", "quirk", "chained", "mode",
            "control", "control_seen", "chained_name", "head", "order", "dropped",
        ],
        "formats": ["<u8"] + ["<u4"] * 6 + ["<u8"] * 4 + ["<u4"] * 4 + ["<u8"] + ["<u4"] * 4
        + ["<u8"] * 2 + ["S64", "<u8", "<u8", "(8,)<u8"],
        "offsets": [
            0, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 68, 72, 76, 80, 88, 92, 96, 100,
            104, 112, 120, 256, 320, 384,
        ],
        "itemsize": 4096,
    }
)  # fmt: skip
PROGRESS = np.dtype(
    [
        (name, "<u8")
        for name in (
            "enqueued", "started", "completed", "enqueued_ns", "started_ns", "completed_ns",
            "sequence", "bytes",
        )
    ]
)  # fmt: skip
COMM = np.dtype(
    [
        ("hash", "<u8"), ("rank", "<i4"), ("nranks", "<i4"), ("nnodes", "<i4"), ("state", "<u4"),
        ("generation", "<u4"), ("reserved", "<u4"), ("born_ns", "<u8"), ("ended_ns", "<u8"),
        ("name", "S80"), ("progress", PROGRESS, (FUNCTIONS,)),
    ]
)  # fmt: skip
SLOT = np.dtype(
    [
        ("stamp", "<u8"), ("device_start", "<u8"), ("device_stop", "<u8"), ("host_ns", "<u8"),
        ("bytes", "<u8"), ("sequence", "<u4"), ("peer", "<i4"), ("order", "<u4"),
        ("poll_delta", "<u4"), ("comm", "<u2"), ("flags", "<u2"), ("function", "u1"),
        ("datatype", "u1"), ("channels", "u1"), ("algorithm", "u1"),
    ]
)  # fmt: skip

NO_START, NO_STOP, HOST_TIME, GRAPH, FEW, GROUPED, SYMMETRIC, AFTER_GAP, COPY_ENGINE = (
    1 << bit for bit in range(9)
)
OFF, PROGRESS_MODE, FULL = 1, 2, 3
POOL, COMM_FULL, CLAIM, STALE = range(4)
ALL_REDUCE, BROADCAST, ALL_GATHER, SEND, RECV, OTHER = 1, 3, 5, 9, 10, 15


@dataclass
class Ring:
    """One copy of a ring."""

    header: np.void
    comms: np.ndarray[Any, Any]
    slots: np.ndarray[Any, Any]  # written ones, by ticket

    @property
    def lost(self) -> int:
        """Tickets below head of which no slot is there."""
        return int(self.header["head"]) - len(self.slots)


def mapping(pid: int) -> Path | None:
    """The ring of a process, as a file that can be opened."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "stragd-ring" in line:
            return Path(f"/proc/{pid}/map_files/{line.split()[0]}")
    return None


def read(pid: int) -> Ring:
    """Copy the ring of a process whose callbacks are at rest."""
    path = mapping(pid)
    assert path is not None, f"process {pid} maps no ring"
    return parse(path.read_bytes())


def parse(data: bytes) -> Ring:
    """The bytes of a ring."""
    assert len(data) == BYTES
    header = np.frombuffer(data, HEADER, 1)[0]
    comms = np.frombuffer(data, COMM, COMMS, COMMS_AT)
    slots = np.frombuffer(data, SLOT, SLOTS, SLOTS_AT)
    written = slots[(slots["stamp"] > 0) & (slots["stamp"] % 2 == 0)]
    return Ring(header, comms, written[np.argsort(written["stamp"])])


def write_control(pid: int, word: int) -> None:
    """What the daemon does to switch and thin the recording."""
    path = mapping(pid)
    assert path is not None
    with path.open("r+b") as ring:
        ring.seek(104)
        ring.write(word.to_bytes(8, "little"))
