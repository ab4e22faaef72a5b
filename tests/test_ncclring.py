"""The profiler plugin, played by a host that makes NCCL's callbacks; its ring read from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ncclring import ring
from tests.ncclring.build import HERE, built, run
from tests.ncclring.host import NOBODY, Host

VERSIONS = {3: 22602, 4: 22705, 5: 22803, 6: 22907, 7: 23203}


pytestmark = pytest.mark.usefixtures("root")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_records_a_collective_with_all_it_says(version: int) -> None:
    with Host(version, VERSIONS[version]) as host:
        assert host.init() == (0x1046 if version > 5 else 0x46)
        host.group(handle=0)
        host.coll(handle=1, parent=0, func="Broadcast", count=4000, datatype="ncclInt8",
                  root=5, sequence=41, channels=2)  # fmt: skip
        host.do("stop", 1)
        host.do("stop", 0)
        host.kernel(2, 1, channel=0, timer=5000)
        host.kernel(3, 1, channel=1, timer=4900)
        host.end(2, 6000 if version > 3 else None)
        assert len(host.ring().slots) == 0, "written before the last channel ended"
        host.end(3, 6200 if version > 3 else None)
        got = host.ring()
    (slot,) = got.slots
    assert (slot["function"], slot["bytes"], slot["sequence"], slot["peer"]) == (3, 4000, 41, 5)
    assert (slot["datatype"], slot["algorithm"], slot["channels"]) == (0, 0x23, 2)
    if version == 3:
        assert slot["flags"] == ring.HOST_TIME
        assert slot["host_ns"] < slot["device_start"] < slot["device_stop"]
    else:
        assert slot["flags"] == 0
        assert (slot["device_start"], slot["device_stop"]) == (4900, 6200)
    assert slot["poll_delta"] > 0
    comm = got.comms[0]
    assert comm["state"] == 1
    if version == 3:
        assert (comm["hash"], comm["rank"], comm["name"]) == (0xABCD, 3, b"from the collective")
    else:
        assert (comm["hash"], comm["rank"], comm["name"]) == (0x1234, 3, b"world")
        assert (comm["nranks"], comm["nnodes"]) == (8, 1)
    progress = comm["progress"][ring.BROADCAST]
    assert [progress[k] for k in ("enqueued", "started", "completed")] == [1, 1, 1]
    assert progress["enqueued_ns"] < progress["started_ns"] < progress["completed_ns"]
    assert (progress["sequence"], progress["bytes"]) == (41, 4000)
    header = got.header
    assert (header["magic"], header["layout"], header["api"]) == (ring.MAGIC, 1, version)
    assert (header["vendor"], header["library"]) == (1, VERSIONS[version])
    assert (header["clock"], header["mode"]) == (0 if version == 3 else 1, ring.FULL)
    assert (header["header_bytes"], header["comm_bytes"], header["slot_bytes"]) == (
        ring.HEADER.itemsize, ring.COMM.itemsize, ring.SLOT.itemsize,
    )  # fmt: skip
    assert (header["comm_count"], header["slot_count"]) == (ring.COMMS, ring.SLOTS)
    assert (header["comms_offset"], header["slots_offset"]) == (ring.COMMS_AT, ring.SLOTS_AT)
    assert header["total_bytes"] == ring.BYTES
    assert (header["pid"], header["order"], header["head"]) == (host.pid, 1, 1)
    assert list(header["dropped"]) == [0] * 8


def test_rccl_counts_ticks() -> None:
    with Host(6, 23004, amd=True) as host:
        host.init()
        header = host.ring().header
        assert (header["vendor"], header["clock"], header["clock_hz"]) == (2, 2, 0)


def test_groups_get_a_handle_in_every_mode() -> None:
    # Up to NCCL 2.27 those without one have no collectives.
    for version, library in VERSIONS.items():
        for mode in ("off", "progress", "full"):
            with Host(version, library, STRAGD_RING=mode) as host:
                host.init()
                assert host.group() != "(nil)"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_launch_carries_was_enqueued_when_the_launch_was_told(version: int) -> None:
    with Host(version, VERSIONS[version]) as host:
        host.init()
        host.group(handle=0)
        told = time.monotonic_ns()
        host.do("sleep", 2)
        host.whole(100, 150, handle=1, parent=0)
        host.whole(200, 250, handle=2, parent=0)
        host.do("stop", 0)
        later = time.monotonic_ns()
        host.whole(300, 350, handle=3)  # of no launch
        host.group(handle=5)
        host.whole(400, 450, handle=4, parent=0 if version < 5 else NOBODY)
        host.group(handle=6)
        last = time.monotonic_ns()
        host.do("launch", 5)  # of one that is not the latest
        host.whole(500, 550, handle=7, parent=5)
        enqueued = [int(slot["host_ns"]) for slot in host.ring().slots]
    assert enqueued[0] == enqueued[1] < told
    assert later < enqueued[2] < enqueued[3] < last < enqueued[4]


def test_messages_are_counted_by_peer_and_direction() -> None:
    with Host(5, 22803) as host:
        host.init()
        for number, (func, peer) in enumerate(
            [("Send", 1), ("Send", 1), ("Recv", 1), ("Send", 2), ("Send", 1), ("Recv", 1)]
        ):
            host.p2p(0, number, func=func, peer=peer)
            host.kernel(100, number, 0, 10)
            host.end(100, 20)
        got = host.ring().slots
        assert [(s["function"], s["peer"], s["sequence"]) for s in got] == [
            (9, 1, 0), (9, 1, 1), (10, 1, 0), (9, 2, 0), (9, 1, 2), (10, 1, 1),
        ]  # fmt: skip
        # More peers than counters: numbers are then of the communicator, and go on rising.
        host.init(1, hash_=2)
        for peer in range(3000):
            host.p2p(1, 1, peer=peer)
        host.p2p(1, 1, peer=0)
        host.do("finalize", 1)
        last = host.ring().slots[-1]
        assert (last["peer"], last["sequence"]) == (0, 1)


def test_channels_of_messages_are_believed_only_where_the_library_sets_them() -> None:
    for library, slots in ((22705, 1), (22803, 0)):
        with Host(4, library) as host:
            host.init()
            host.p2p(channels=1 if slots else -1)
            host.kernel(2, 1, 0, 100)
            host.end(2, 200)
            assert len(host.ring().slots) == slots
            # Without: over once a later one is over and nothing more was heard for a while.
            host.whole(300, 400, handle=3)
            host.do("sleep", 12)
            for handle in range(4, 24):
                host.coll(handle=handle)
            got = host.ring().slots
            assert [s["device_start"] for s in got] == ([100, 300] if slots else [300, 100])
            assert not any(s["flags"] & ring.FEW for s in got)


def test_a_launch_of_several_is_marked_as_one() -> None:
    with Host(5, 22803) as host:
        host.init()
        for launch in ([1, 2, 3], [4], [5, 6]):
            host.group()
            for number in launch:
                host.whole(number * 100, number * 100 + 50, handle=number)
        flags = [bool(s["flags"] & ring.GROUPED) for s in host.ring().slots]
        assert flags == [False, True, True, False, False, True]


def test_graph_replays_are_told_by_their_parent_of_capture_time() -> None:
    with Host(6, 22907) as host:
        host.init()
        assert host.do("api", 0, 10, 512, 0) == ["(nil)"]
        host.do("api", 0, 11, 512, 1)
        host.do("stop", 11)
        host.do("run", 0, 9000, "AllReduce", 10, "ncclInt8", 0, 0, 1, "RING", "LL")
        for replay in range(3):
            host.coll(handle=1, parent=11, channels=1, sequence=replay)
            host.kernel(2, 1, 0, 100 + replay)
            host.end(2, 200 + replay)
        got = host.ring().slots
        assert [bool(s["flags"] & ring.GRAPH) for s in got[-5:]] == [False] * 2 + [True] * 3
        assert [s["device_stop"] for s in got[-3:]] == [200, 201, 202]


def test_symmetric_kernels_that_cannot_be_timed_are_said_at_once() -> None:
    with Host(6, 22907) as host:
        host.init()
        host.coll(channels=0)
        (slot,) = host.ring().slots
        assert slot["flags"] == ring.SYMMETRIC | ring.NO_START | ring.NO_STOP
    with Host(7, 23203) as host:
        host.init()
        host.whole(10, 20)
        host.coll(handle=3, channels=1, symmetric=True)
        host.kernel(4, 3, 0, 30)
        host.end(4, 40)
        assert [s["flags"] for s in host.ring().slots] == [0, ring.SYMMETRIC]


@pytest.mark.parametrize("version", [6, 7])
def test_what_the_copy_engines_carry_is_recorded_without_times(version: int) -> None:
    with Host(version, VERSIONS[version]) as host:
        host.init()
        host.whole(10, 20)
        assert host.do("ce", 0, 1, NOBODY, "AllGather", 1000, "ncclFloat32", 0, 7) == ["(nil)"]
        host.do("api", 0, 11, 512, 1)
        host.do("ce", 0, 2, 11, "Scatter", 10, "ncclInt8", 4, 8)
        got = host.ring()
    untimed = ring.COPY_ENGINE | ring.NO_START | ring.NO_STOP
    _, eager, captured = got.slots
    assert (eager["flags"], captured["flags"]) == (untimed, untimed | ring.GRAPH)
    assert (eager["function"], eager["bytes"], eager["datatype"]) == (ring.ALL_GATHER, 4000, 7)
    assert [(s["sequence"], s["peer"], s["channels"]) for s in (eager, captured)] == [
        (7, -1, 0), (8, 4, 0),
    ]  # fmt: skip
    progress = got.comms[0]["progress"][ring.ALL_GATHER]
    assert (progress["enqueued"], progress["started"], progress["completed"]) == (1, 0, 0)
    assert list(got.header["dropped"]) == [0] * 8


def test_channels_that_never_come_are_given_up() -> None:
    with Host(5, 22803) as host:
        host.init()
        host.coll(handle=1, channels=3)  # two of three
        for channel, start in ((0, 100), (2, 90)):
            host.kernel(10 + channel, 1, channel, start)
            host.end(10 + channel, 200 + channel)
        host.coll(handle=2, channels=1)  # none
        host.coll(handle=3, channels=2)  # a start, no stop: still running, and kept
        host.kernel(20, 3, 0, 250)
        host.whole(300, 400, handle=4)
        host.do("sleep", 12)
        for handle in range(5, 25):  # a few objects are looked at with each
            host.coll(handle=handle)
        got = {int(s["order"]): s for s in host.ring().slots}
        assert set(got) == {0, 1, 3}
        assert got[0]["flags"] == ring.FEW
        assert (got[0]["device_start"], got[0]["device_stop"], got[0]["channels"]) == (90, 202, 2)
        assert got[1]["flags"] == ring.FEW | ring.NO_START | ring.NO_STOP
        assert (got[1]["poll_delta"], got[3]["flags"]) == (0, 0)
        host.do("finalize", 0)
        got = {int(s["order"]): s for s in host.ring().slots}
        assert got[2]["flags"] == ring.FEW | ring.NO_STOP
        assert len(got) == 24


def test_version_3_announces_the_most_channels_there_may_be() -> None:
    with Host(3, 22602) as host:
        host.init()
        host.coll(handle=1, channels=16)
        host.kernel(2, 1, 0, 0)
        host.do("stop", 2)
        host.coll(handle=3, channels=1)
        host.kernel(4, 3, 0, 0)
        host.do("stop", 4)
        host.do("sleep", 12)
        for handle in range(5, 25):
            host.coll(handle=handle)
        got = {int(s["order"]): int(s["flags"]) for s in host.ring().slots}
        assert got == {0: ring.HOST_TIME, 1: ring.HOST_TIME}


def test_times_that_cannot_be_are_not_reported() -> None:
    with Host(4) as host:
        host.init()
        host.whole(500, 400)  # overrun ring of the library: the stop of an earlier one
        host.whole(0, 400)
        got = host.ring().slots
        assert [(s["flags"], s["device_start"], s["device_stop"]) for s in got] == [
            (ring.NO_STOP, 500, 0),
            (ring.NO_START, 0, 400),
        ]


def test_an_aborted_channel_ends_without_a_time() -> None:
    with Host(4) as host:
        host.init()
        host.coll(channels=2)
        host.kernel(2, 1, 0, 100)
        host.kernel(3, 1, 1, 100)
        host.end(2, None)
        host.end(3, 300)
        (slot,) = host.ring().slots
        assert (slot["device_stop"], slot["flags"]) == (300, ring.FEW)


def test_callbacks_twice_late_and_in_the_wrong_order_change_nothing() -> None:
    with Host(4) as host:
        host.init()
        host.coll(channels=2)
        host.kernel(2, 1, 0, 100)
        assert host.kernel(3, 1, 0, 50) == "(nil)", "the same channel twice"
        host.do("state", 2, 200)
        host.do("state", 2, 900)
        host.end(2, 950)
        assert len(host.ring().slots) == 0, "one channel counted for two"
        host.kernel(4, 1, 1, 110)
        host.end(4, 210)
        host.end(4, 990)
        assert host.kernel(5, 1, 1, 10) == "(nil)"
        (slot,) = host.ring().slots
        assert (slot["device_start"], slot["device_stop"]) == (100, 210)
        assert slot["flags"] == 0
        dropped = host.ring().header["dropped"]
        assert dropped[ring.STALE] == 5
        # Handles of an object whose place has had other uses since.
        host.do("run", 0, 9000, "AllReduce", 10, "ncclInt8", 0, 0, 1, "RING", "LL")
        before = host.ring()
        assert host.kernel(6, 1, 0, 1) == "(nil)"
        host.end(4, 5)
        host.do("stop", 1)
        after = host.ring()
        assert after.header["head"] == before.header["head"]


def test_after_finalize_nothing_is_recorded() -> None:
    with Host(4) as host:
        host.init()
        host.coll(channels=1)
        host.kernel(2, 1, 0, 100)
        host.do("finalize", 0)
        got = host.ring()
        assert (got.comms[0]["state"], got.comms[0]["ended_ns"] > 0) == (2, True)
        (slot,) = got.slots
        assert slot["flags"] == ring.NO_STOP | ring.FEW
        host.end(2, 300)
        assert host.coll(handle=3) == "(nil)"
        assert host.group() == "(nil)"
        host.do("finalize", 0)
        assert host.ring().header["head"] == 1
        assert host.ring().header["order"] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_null_and_foreign_pointers_are_tolerated(version: int) -> None:
    with Host(version, VERSIONS[version]) as host:
        host.do("null")  # before any init
        host.init()
        answer = host.do("null")
        assert answer == ["(nil)", "(nil)"], "a handle was left as it was"
        host.do("finalize", 0)
        host.do("null")


def test_a_null_context_records_nothing() -> None:
    with Host(5, 22803) as host:
        host.init()
        assert host.coll(context=NOBODY) == "(nil)"
        assert host.do("init", 1, 1, 8, 0, "NULL")[0] != "(nil)"


def test_many_inits_at_once_make_one_ring() -> None:
    with Host(5, 22803) as host:
        assert host.do("inits", 64) == ["1"], "two communicators share a context"
        maps = Path(f"/proc/{host.pid}/maps").read_text()
        assert maps.count("stragd-ring") == 1
        assert sum(host.ring().comms["state"] == 1) == 64


@pytest.mark.parametrize("kernel_wipes", [True, False])
def test_a_forked_child_has_no_ring_until_its_own_init(kernel_wipes: bool, tmp_path: Path) -> None:
    preload: dict[str, Any] = {}
    if not kernel_wipes:
        # A sandbox that does not know MADV_WIPEONFORK.
        preload["LD_PRELOAD"] = str(tmp_path / "nowipe.so")
        run("cc", "-shared", "-fPIC", "-o", tmp_path / "nowipe.so", HERE / "nowipe.c")
    with Host(4, **preload) as host:
        host.init()
        host.coll(channels=1)
        host.kernel(2, 1, 0, 100)
        child = int(host.do("fork")[0])
        assert ring.mapping(child) is None
        assert host.coll(handle=3) == "(nil)"
        assert host.group() == "(nil)"
        host.end(2, 200)
        host.do("finalize", 0)
        assert host.ring().header["order"] == 1, "the child wrote into its parent's ring"
        host.init()
        host.whole(10, 20, handle=5)
        own = ring.read(child)
        assert (own.header["pid"], own.header["order"], len(own.slots)) == (child, 1, 1)
        assert len(host.ring().slots) == 0


def test_an_unloaded_plugin_stays_and_goes_on() -> None:
    with Host(4) as host:
        host.init()
        host.whole(10, 20)
        host.do("finalize", 0)
        assert host.do("unload") == ["0"]
        host.do("finalize", 0)  # a straggler, after dlclose
        assert host.do("load", host.plugin, 4) == ["stragd"]
        host.init()
        host.whole(30, 40)
        got = host.ring()
        assert [s["device_stop"] for s in got.slots] == [20, 40]


def test_places_of_ended_communicators_are_used_again_and_live_ones_never() -> None:
    with Host(4) as host:
        for context in range(256):
            host.init(context, hash_=context + 1)
        assert host.do("init", 256, 999, 8, 0, "late")[0] == "(nil)"
        assert host.ring().header["dropped"][ring.COMM_FULL] == 1
        host.do("finalize", 7)
        host.do("finalize", 3)
        host.init(256, hash_=1000)
        got = host.ring().comms
        assert (got[7]["hash"], got[7]["generation"], got[7]["state"]) == (1000, 2, 1)
        assert (got[3]["hash"], got[3]["state"]) == (4, 2)
        host.whole(10, 20, context=256)
        assert host.ring().slots[-1]["comm"] == 7 | 2 << 8
        assert host.coll(context=7) == "(nil)", "an old context names the new communicator"


def test_starts_without_stops_recycle_the_oldest() -> None:
    with Host(4) as host:
        host.init()
        count = 3 * 4096
        for _ in range(3):
            host.do("run", 0, 4096, "AllReduce", 10, "ncclInt8", 0, 0, 0, "RING", "LL")
        host.coll(handle=1, channels=1)
        host.kernel(2, 1, 0, 100)
        host.end(2, 200)
        got = host.ring()
        assert got.slots[-1]["device_stop"] == 200, "a full pool does not record any more"
        orders = [int(s["order"]) for s in got.slots[:-1]]
        assert all(s["flags"] & ring.NO_START for s in got.slots[:-1])
        assert len(orders) == len(set(orders)) >= count - 4096
        assert max(abs(a - b) for a, b in zip(orders, range(len(orders)), strict=True)) < 16
        assert got.header["dropped"][ring.POOL] == 0


def test_an_overwritten_ring_loses_only_the_oldest_and_the_loss_can_be_counted() -> None:
    with Host(4) as host:
        host.init()
        count = ring.SLOTS + 5000
        host.do("run", 0, count, "AllReduce", 10, "ncclInt8", 0, 0, 1, "RING", "LL")
        got = host.ring()
        assert (got.header["head"], got.lost) == (count, 5000)
        assert [int(s["sequence"]) for s in got.slots] == list(range(5000, count))
        assert [(int(s["stamp"]) - 2) // 2 for s in got.slots] == list(range(5000, count))


def test_a_slot_that_another_writer_holds_is_left_alone() -> None:
    with Host(4) as host:
        host.init()
        path = ring.mapping(host.pid)
        assert path is not None
        with path.open("r+b") as file:
            file.seek(ring.SLOTS_AT)
            file.write((1).to_bytes(8, "little"))  # WRITING(0)
        host.whole(10, 20)
        host.whole(30, 40)
        got = host.ring()
        assert [s["device_start"] for s in got.slots] == [30]
        assert (got.lost, got.header["dropped"][ring.CLAIM]) == (1, 1)


@pytest.mark.parametrize("junk", [b"\xff" * ring.BYTES, os.urandom(4096) * (ring.BYTES // 4096)])
def test_a_scribbled_ring_does_not_hurt_the_job(junk: bytes) -> None:
    with Host(4) as host:
        host.init()
        path = ring.mapping(host.pid)
        assert path is not None
        path.open("r+b").write(junk)
        host.do("run", 0, 20000, "AllReduce", 10, "ncclInt8", 0, 0, 2, "RING", "LL")
        host.do("finalize", 0)
        host.init()


def test_sealed_and_private_as_the_contract_says() -> None:
    with Host(4) as host:
        host.init()
        path = ring.mapping(host.pid)
        assert path is not None
        assert "(deleted)" in os.readlink(path)
        assert not any(
            "stragd-ring" in os.readlink(fd) for fd in Path(f"/proc/{host.pid}/fd").iterdir()
        )
        with path.open("r+b") as file, pytest.raises(PermissionError):
            file.truncate(4096)
        with path.open("r+b") as file, pytest.raises(PermissionError):
            file.truncate(ring.BYTES + 4096)


def test_no_callback_makes_a_system_call() -> None:
    for version, library in VERSIONS.items():
        host = Host(version, library)
        host.init()
        # The kernel kills the process at the first system call but write and exit.
        host.do("sealed", 0, 5000, "AllReduce", 10, "ncclInt8", 0, 0, 2, "RING", "LL")
        assert host.process.wait(60) == 0, signal.Signals(-host.process.returncode).name
    host = Host(4, HOST_FORBIDDEN="1")
    host.init()
    with pytest.raises(AssertionError, match="gone"):
        host.do("sealed", 0, 1, "AllReduce", 10, "ncclInt8", 0, 0, 2, "RING", "LL")
    assert host.process.wait(60) == -signal.SIGSYS


def test_only_the_five_symbols_are_exported() -> None:
    done = subprocess.run(
        ["objdump", "-T", built().plugin], capture_output=True, text=True, check=True
    )
    exported = {
        line.split()[-1]
        for line in done.stdout.splitlines()
        if re.match(r"^[0-9a-f]{16} ", line) and "*UND*" not in line
    }
    assert exported == {f"ncclProfiler_v{version}" for version in VERSIONS}


def test_loads_where_the_c_library_is_from_2012() -> None:
    done = subprocess.run(
        ["objdump", "-T", built().plugin], capture_output=True, text=True, check=True
    )
    wanted = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", done.stdout)}
    assert wanted
    assert max(wanted) <= (2, 17)
    dynamic = subprocess.run(
        ["readelf", "-d", built().plugin], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)) == {"libdl.so.2", "libc.so.6"}
    assert "NODELETE" in dynamic
    assert "NOW" in dynamic
