"""What the plugin records by version, environment and control word."""

from __future__ import annotations

import os
import re

import pytest

from tests.ncclring import ring
from tests.ncclring.build import ROOT
from tests.ncclring.host import Host

GROUP, PROGRESS, FULL = 0x1, 0x6, 0x46
COPIES = 0x1000  # collectives of the copy engines, from version 6 on
BLOCK = 4096


pytestmark = pytest.mark.usefixtures("root")


def run(host: Host, count: int, size: int = 10) -> None:
    """Whole collectives of one channel, of ``size`` bytes."""
    host.do("run", 0, count, "AllReduce", size, "ncclInt8", 0, 0, 1, "RING", "LL")


def control(mode: int = 0, floor: int = 0, sample: int = 0) -> int:
    """The control word."""
    return mode | floor << 8 | sample << 16


@pytest.mark.parametrize(
    ("version", "library", "amd", "mask", "reason"),
    [
        (7, 23203, False, FULL | COPIES, ""),
        (7, 23102, False, PROGRESS | COPIES, "2355"),
        (6, 23003, False, PROGRESS | COPIES, "2112"),
        (6, 22907, False, FULL | COPIES, "broadcasts"),
        (3, 22602, False, FULL, "no device clock"),
        (4, 22707, True, GROUP, "1973"),
        (5, 22803, True, PROGRESS, "7.13"),
    ],
)
def test_default_by_version(version: int, library: int, amd: bool, mask: int, reason: str) -> None:
    memory = os.statvfs("/dev/shm")
    small = memory.f_bavail * memory.f_frsize < 256 << 20
    if small and 22600 <= library < 23100 and mask & FULL == FULL:
        mask, reason = mask & ~FULL | PROGRESS, "/dev/shm"
    with Host(version, library, amd) as host:
        assert host.init() == mask
        header = host.ring().header
        assert header["mode"] == {GROUP: 1, PROGRESS: 2, FULL: 3}[mask & ~COPIES]
        rows = table()
        if reason:
            row = rows[header["quirk"] - 1]
            assert row["vendor"] == ("AMD" if amd else "NVIDIA")
            assert int(row["from"]) <= library <= int(row["to"])
            assert reason in row["reason"]
            assert version == 3 or any(row["reason"] in line for line in host.log)
        else:
            assert header["quirk"] == 0


def table() -> list[dict[str, str]]:
    """versions.h, read line by line as other programs do."""
    pattern = re.compile(
        r"QUIRK\((?P<vendor>NVIDIA|AMD), (?P<from>\d+), (?P<to>\d+), (?P<shm>\d+), "
        r'(?P<mode>OFF|PROGRESS|FULL), "(?P<reason>[^"]+)"\)'
    )
    lines = (ROOT / "ncclring/versions.h").read_text().splitlines()
    rows = [line for line in lines if line.startswith("QUIRK(")]
    found = [pattern.fullmatch(row) for row in rows]
    assert all(found), "a row that cannot be read"
    return [match.groupdict() for match in found if match]


@pytest.mark.parametrize(
    ("megabytes", "library", "mask"), [(64, 22705, PROGRESS), (64, 23203, FULL), (300, 22705, FULL)]
)
def test_a_small_shared_memory_keeps_old_libraries_from_timing_kernels(
    megabytes: int, library: int, mask: int
) -> None:
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm && exec "$0"'
    with Host(4, library, under=("unshare", "-m", "sh", "-c", mount)) as host:
        assert host.init() == mask
        if mask == PROGRESS:
            assert any("/dev/shm" in line for line in host.log)


@pytest.mark.parametrize(
    ("value", "mask", "sample"),
    [("off", GROUP, 0), ("progress", PROGRESS, 0), ("full", FULL, 0), ("1/8", FULL, 8)],
)
def test_environment_of_one_job(value: str, mask: int, sample: int) -> None:
    with Host(5, 22803, STRAGD_RING=value) as host:
        assert host.init() == mask
        if sample:
            run(host, BLOCK + 1)
            assert int(host.do("mask")[0]) == PROGRESS


@pytest.mark.parametrize("value", ["on", "1/0", "1/x", "1/70000", "2/3", "1/-1"])
def test_a_wrong_environment_is_said_and_ignored(value: str) -> None:
    with Host(7, 23203, STRAGD_RING=value) as host:
        assert host.init() == FULL | COPIES
        (line,) = [line for line in host.log if "STRAGD_RING" in line]
        assert f"STRAGD_RING={value} is ignored: it is off, progress, full or 1/N" in line


def test_the_control_word_wins_over_the_environment_and_zero_gives_it_back() -> None:
    with Host(5, 22803, STRAGD_RING="progress") as host:
        assert host.init() == PROGRESS
        for mode, mask in ((ring.FULL, FULL), (ring.OFF, GROUP), (0, PROGRESS), (200, PROGRESS)):
            word = control(mode)
            ring.write_control(host.pid, word)
            host.group()
            assert int(host.do("mask")[0]) == mask
            header = host.ring().header
            assert header["control_seen"] == word
            assert header["mode"] == {FULL: 3, GROUP: 1, PROGRESS: 2}[mask]


def test_off_records_nothing_progress_counts_and_the_gap_is_marked() -> None:
    with Host(5, 22803) as host:
        host.init()
        run(host, 3)
        ring.write_control(host.pid, control(ring.PROGRESS_MODE))
        run(host, 4)
        got = host.ring()
        assert (len(got.slots), got.header["order"]) == (3, 7)
        progress = got.comms[0]["progress"][ring.ALL_REDUCE]
        assert (progress["enqueued"], progress["completed"]) == (7, 3)
        ring.write_control(host.pid, control(ring.OFF))
        run(host, 5)
        assert host.ring().header["order"] == 7
        ring.write_control(host.pid, control(ring.FULL))
        run(host, 2)
        got = host.ring()
        assert [bool(s["flags"] & ring.AFTER_GAP) for s in got.slots] == [False] * 3 + [True, False]
        assert [int(s["order"]) for s in got.slots] == [0, 1, 2, 7, 8]


def test_sampling_records_whole_blocks_and_stops_asking_for_kernels_between() -> None:
    with Host(5, 22803) as host:
        host.init()
        ring.write_control(host.pid, control(ring.FULL, sample=3))
        run(host, BLOCK + 10)
        assert int(host.do("mask")[0]) == PROGRESS
        run(host, 5 * BLOCK - 20)
        got = host.ring()
        orders = [int(s["order"]) for s in got.slots]
        assert orders == [*range(BLOCK), *range(3 * BLOCK, 4 * BLOCK)]
        # The first of the second block was timed: kernels were asked for in time.
        assert [int(s["flags"]) for s in got.slots] == (
            [0] * BLOCK + [ring.AFTER_GAP] + [0] * (BLOCK - 1)
        )
        progress = got.comms[0]["progress"][ring.ALL_REDUCE]
        assert progress["enqueued"] == 6 * BLOCK - 10
        assert progress["completed"] == 2 * BLOCK


def test_small_messages_get_no_slot_but_count() -> None:
    with Host(5, 22803) as host:
        host.init()
        ring.write_control(host.pid, control(ring.FULL, floor=12))
        for size in (4095, 4096, 10, 5000):
            run(host, 1, size)
        got = host.ring()
        assert [(int(s["bytes"]), bool(s["flags"] & ring.AFTER_GAP)) for s in got.slots] == [
            (4096, True), (5000, True),
        ]  # fmt: skip
        assert got.comms[0]["progress"][ring.ALL_REDUCE]["completed"] == 4


def test_another_hand_on_the_mask_is_left_alone() -> None:
    with Host(7, 23203) as host:
        host.init()
        host.group()
        host.do("setmask", 0x2)  # as RAS does
        host.group()
        host.coll()
        assert int(host.do("mask")[0]) == 0x2
