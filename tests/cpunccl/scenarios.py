"""What one rank of a test does: scenarios.py NAME RANK WORLD DIRECTORY. Ends with 0 if it held."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.cpunccl import library as nccl  # noqa: E402

DTYPES = {
    np.dtype(name): nccl.TYPES[short]
    for name, short in {
        "int8": "i8",
        "uint8": "u8",
        "int32": "i32",
        "uint32": "u32",
        "int64": "i64",
        "uint64": "u64",
        "float16": "f16",
        "float32": "f32",
        "float64": "f64",
    }.items()
}
COUNTS = (1, 7, 1000, 100_003)
MS = 1_000_000


class Rank:
    """This process, in a communicator of all."""

    def __init__(self, rank: int, world: int, directory: Path, name: str = "world") -> None:
        os.environ["RANK"] = str(rank)
        self.rank, self.world, self.directory = rank, world, directory
        path = nccl.RCCL if os.environ.get("SCENARIO_RCCL") else nccl.NCCL
        self.lib = nccl.Library(path)
        unique = self.lib.rendezvous(rank, directory)
        self.comm = self.lib.communicator(world, unique, rank, name)

    def call(self, name: str, *arguments: object, comm: c_void_p | None = None) -> None:
        """A collective on ``comm`` (the world) and the default stream."""
        converted = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
        self.lib.call(name, *converted, comm or self.comm, None)

    def sync(self) -> None:
        self.lib.sync(None)

    def destroy(self) -> None:
        self.lib.call("ncclCommDestroy", self.comm)


def numbers(rank: int, count: int, dtype: np.dtype) -> np.ndarray:
    """The input of a rank; others can make it too."""
    source = np.random.default_rng((rank, count))
    if dtype.kind == "f":
        return source.standard_normal(count).astype(dtype)
    return source.integers(0, 100, count).astype(dtype)


def reduced(inputs: list[np.ndarray], reduction: int) -> np.ndarray:
    """In order of the ranks and in the inputs' own precision."""
    operate = {nccl.PROD: np.multiply, nccl.MAX: np.maximum, nccl.MIN: np.minimum}
    out = inputs[0].copy()
    for one in inputs[1:]:
        with np.errstate(all="ignore"):
            out = operate.get(reduction, np.add)(out, one)
    if reduction == nccl.AVG and out.dtype.kind == "f":
        return out / out.dtype.type(len(inputs))
    if reduction == nccl.AVG:
        return np.trunc(out.astype(np.float64) / len(inputs)).astype(out.dtype)
    return out


def equal(got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    if not np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"):
        place = int(np.flatnonzero(got != wanted)[0])
        raise AssertionError(f"{what}: element {place} is {got[place]}, not {wanted[place]}")


def collectives(me: Rank) -> None:
    """Every collective, type, reduction and some sizes."""
    last = me.world - 1
    for dtype, code in DTYPES.items():
        for count in COUNTS:
            inputs = [numbers(r, count, dtype) for r in range(me.world)]
            mine, out = inputs[me.rank], np.zeros(count, dtype)
            for reduction in (nccl.SUM, nccl.PROD, nccl.MAX, nccl.MIN, nccl.AVG):
                what = f"{dtype} × {count}, reduction {reduction}"
                wanted = reduced(inputs, reduction)
                me.call("ncclAllReduce", mine, out, count, code, reduction)
                me.sync()
                equal(out, wanted, f"all-reduce {what}")
                inside = mine.copy()
                me.call("ncclReduce", inside, inside, count, code, reduction, last)
                me.sync()
                equal(inside, wanted if me.rank == last else mine, f"reduce {what}")
            gathered = np.zeros(count * me.world, dtype)
            me.call("ncclAllGather", mine, gathered, count, code)
            me.sync()
            equal(gathered, np.concatenate(inputs), f"all-gather {dtype} × {count}")
            out[:] = 0
            me.call("ncclReduceScatter", gathered, out, count, code, nccl.SUM)
            me.sync()
            equal(out, reduced([mine] * me.world, nccl.SUM), "scatter")
            exchanged = np.zeros_like(gathered)
            me.call("ncclAlltoAll", gathered, exchanged, count, code)
            me.sync()
            equal(exchanged, np.concatenate([mine] * me.world), f"all-to-all {dtype} × {count}")
            me.call("ncclBroadcast", mine, out, count, code, last)
            me.sync()
            equal(out, inputs[last], f"broadcast {dtype} × {count}")


def messages(me: Rank) -> None:
    """A ring, several messages between two ranks in order, and large ones both ways."""
    right, left = (me.rank + 1) % me.world, (me.rank - 1) % me.world
    for count in (1, 5000, 300_001):
        got = [np.zeros(count, np.int32) for _ in range(3)]
        me.lib.call("ncclGroupStart")
        for i in range(3):
            sent = np.full(count, 10 * me.rank + i, np.int32)
            got.append(sent)  # alive until the stream is over
            me.call("ncclSend", sent, count, nccl.TYPES["i32"], right)
            me.call("ncclRecv", got[i], count, nccl.TYPES["i32"], left)
        me.lib.call("ncclGroupEnd")
        me.sync()
        for i in range(3):
            equal(got[i], np.full(count, 10 * left + i, np.int32), f"ring, message {i}")


def splits(me: Rank) -> None:
    """Two groups, in reverse order of ranks; one rank that wants none; groups of groups."""
    half = me.lib.split(me.comm, me.rank % 2, -me.rank, "half")
    members = [r for r in reversed(range(me.world)) if r % 2 == me.rank % 2]
    rank, count = c_int(), c_int()
    me.lib.call("ncclCommUserRank", half, byref(rank))
    me.lib.call("ncclCommCount", half, byref(count))
    assert (rank.value, count.value) == (members.index(me.rank), len(members))
    out = np.zeros(len(members), np.int64)
    me.call("ncclAllGather", np.array([me.rank]), out, 1, nccl.TYPES["i64"], comm=half)
    me.sync()
    assert out.tolist() == members
    none = me.lib.split(me.comm, -1 if me.rank == 0 else 5, 0, "most")
    assert bool(none) == (me.rank != 0)
    if none:
        out = np.zeros(me.world - 1, np.int64)
        me.call("ncclAllGather", np.array([me.rank]), out, 1, nccl.TYPES["i64"], comm=none)
        me.sync()
        assert out.tolist() == list(range(1, me.world))
        me.lib.call("ncclCommDestroy", none)
    me.lib.call("ncclCommDestroy", half)


def groups(me: Rank) -> None:
    """Collectives of a group on several communicators and streams, and a group within one."""
    half = me.lib.split(me.comm, me.rank % 2, me.rank, "half")
    stream = me.lib.cpunccl_stream_create()
    i64 = nccl.TYPES["i64"]
    ins = [np.array([me.rank + i]) for i in range(4)]
    outs = [np.zeros(1, np.int64) for _ in range(4)]
    me.lib.call("ncclGroupStart")
    me.call("ncclAllReduce", ins[0], outs[0], 1, i64, nccl.SUM)
    me.lib.call("ncclGroupStart")
    me.call("ncclAllReduce", ins[1], outs[1], 1, i64, nccl.MAX)
    me.lib.call("ncclGroupEnd")
    assert outs[0][0] == 0  # nothing is launched before the outer end
    buffers = [ins[2].ctypes.data, outs[2].ctypes.data]
    me.lib.call("ncclAllReduce", *buffers, 1, i64, nccl.SUM, half, stream)
    me.lib.call("ncclGroupEnd")
    # The same communicator from another stream: in order all the same.
    buffers = [outs[0].ctypes.data, outs[3].ctypes.data]
    me.lib.call("ncclAllReduce", *buffers, 1, i64, nccl.SUM, me.comm, stream)
    me.lib.sync(stream)
    me.sync()
    everyone = range(me.world)
    assert outs[0][0] == sum(everyone)
    assert outs[1][0] == me.world
    assert outs[2][0] == sum(r + 2 for r in everyone if r % 2 == me.rank % 2)
    assert outs[3][0] == me.world * sum(everyone)
    assert me.lib.ncclGroupEnd() == nccl.INVALID_USAGE
    me.lib.call("ncclCommDestroy", half)


def arguments(me: Rank) -> None:
    """What NCCL refuses; a refusal in a group is told by the group's end, and nothing runs."""
    f, lib, bad = nccl.FLOAT, me.lib, nccl.INVALID_ARGUMENT
    data = np.zeros(4, np.float32)
    at = data.ctypes.data
    assert lib.ncclAllReduce(at, at, 4, f, nccl.SUM, None, None) == bad
    assert b"comm is NULL" in lib.ncclGetLastError(None)
    assert lib.ncclAllReduce(None, at, 4, f, nccl.SUM, me.comm, None) == bad
    assert lib.ncclAllReduce(at, at, 4, 77, nccl.SUM, me.comm, None) == bad
    assert lib.ncclAllReduce(at, at, 4, f, 9, me.comm, None) == bad
    assert lib.ncclBroadcast(at, at, 4, f, me.world, me.comm, None) == bad
    assert lib.ncclSend(at, 4, f, -1, me.comm, None) == bad
    comm = c_void_p()
    assert lib.ncclCommInitRank(byref(comm), 2, lib.unique_id(), 2) == bad
    assert lib.ncclAllReduce(None, None, 0, f, nccl.SUM, me.comm, None) == nccl.SUCCESS
    lib.call("ncclGroupStart")
    me.call("ncclAllReduce", data, data, 4, f, nccl.SUM)
    assert lib.ncclAllReduce(at, at, 4, 77, nccl.SUM, me.comm, None) == bad
    assert lib.ncclGroupEnd() == bad
    data[:] = me.rank
    me.call("ncclAllReduce", data, data, 4, f, nccl.MAX)
    me.sync()
    assert data[0] == me.world - 1
    device = c_int()
    lib.call("ncclCommCuDevice", me.comm, byref(device))
    assert device.value == 0
    for name in ("ncclAllReduce", "ncclSend", "ncclCommDestroy"):
        twin = ctypes.cast(getattr(lib, f"p{name}"), c_void_p).value
        assert ctypes.cast(getattr(lib, name), c_void_p).value == twin


def threads(me: Rank) -> None:
    """One process, several ranks: ncclCommInitAll, one group for all of them."""
    count = 3
    comms = (c_void_p * count)()
    me.lib.call("ncclCommInitAll", comms, count, None)
    data = [np.full(1000, r + 1, np.float32) for r in range(count)]
    streams = [me.lib.cpunccl_stream_create() for _ in range(count)]
    me.lib.call("ncclGroupStart")
    for r in range(count):
        at = data[r].ctypes.data
        me.lib.call("ncclAllReduce", at, at, 1000, nccl.FLOAT, nccl.SUM, comms[r], streams[r])
    me.lib.call("ncclGroupEnd")
    for r in range(count):
        me.lib.sync(streams[r])
        assert data[r].tolist() == [6.0] * 1000
        me.lib.call("ncclCommDestroy", comms[r])


def mismatch(me: Rank) -> None:
    """Ranks that call different collectives get an error, not a wrong result."""
    data = np.zeros(8, np.float32)
    me.call("ncclAllReduce", data, data, 8 if me.rank else 4, nccl.FLOAT, nccl.SUM)
    with pytest.raises(nccl.NcclError) as raised:
        me.sync()
    assert raised.value.code == nccl.INVALID_USAGE


def killed(me: Rank) -> None:
    """The last rank is killed while the others wait for it in a collective: they end."""
    data = np.zeros(8, np.float32)
    me.call("ncclAllReduce", data, data, 8, nccl.FLOAT, nccl.SUM)
    me.sync()
    if me.rank == me.world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _expect_remote_error(me, data)
    me.lib.call("ncclCommAbort", me.comm)


def aborted(me: Rank) -> None:
    """The last rank aborts its communicator: the others' collective ends with an error."""
    data = np.zeros(8, np.float32)
    if me.rank == me.world - 1:
        me.lib.call("ncclCommAbort", me.comm)
        return
    _expect_remote_error(me, data)


def _expect_remote_error(me: Rank, data: np.ndarray) -> None:
    with pytest.raises(nccl.NcclError) as raised:  # noqa: PT012
        me.call("ncclAllReduce", data, data, 8, nccl.FLOAT, nccl.SUM)
        me.sync()
    assert raised.value.code == nccl.REMOTE_ERROR
    code = c_int()
    me.lib.call("ncclCommGetAsyncError", me.comm, byref(code))
    assert code.value == nccl.REMOTE_ERROR
    again = me.lib.ncclAllReduce(1, 1, 1, nccl.FLOAT, nccl.SUM, me.comm, None)
    assert again == nccl.REMOTE_ERROR


def planned(me: Rank) -> None:
    """Planned times are exact: streams, events, and a collective that waits for the last rank."""
    lib = me.lib
    lib.cpunccl_host_plan(1)
    other = lib.cpunccl_stream_create()
    begin, first, last, end = (lib.cpunccl_event_create() for _ in range(4))
    data = np.zeros(250_000, np.float32)  # 1 MB: 2 × 3/4 MB at 1 GB/s are 1.5 ms
    arrival = np.zeros(1, np.int64)
    latest = np.zeros(1, np.int64)
    for _ in range(5):
        lib.cpunccl_host_work(MS)
        lib.cpunccl_event_record(begin, None)
        lib.cpunccl_kernel(None, (3 + me.rank) * MS)
        lib.cpunccl_event_record(first, None)
        lib.cpunccl_stream_wait(other, first)
        at = data.ctypes.data
        lib.call("ncclAllReduce", at, at, data.size, nccl.FLOAT, nccl.SUM, me.comm, other)
        lib.cpunccl_event_record(last, other)
        lib.cpunccl_kernel(None, 2 * MS)  # beside the collective
        lib.cpunccl_stream_wait(None, last)
        lib.cpunccl_event_record(end, None)
        me.sync()
        t = [lib.cpunccl_event_time(event) for event in (begin, first, last, end)]
        assert t[1] - t[0] == (3 + me.rank) * MS
        assert t[3] == max(t[1] + 2 * MS, t[2])
        assert lib.cpunccl_host_time() == t[3]
        arrival[0] = t[1]
        me.call("ncclAllReduce", arrival, latest, 1, nccl.TYPES["i64"], nccl.MAX)
        me.sync()
        assert abs(t[2] - int(latest[0]) - (10_000 + 1_500_000)) <= 1, t
    graph(me)


def graph(me: Rank) -> None:
    """A captured step runs at each launch only, with durations that are read then."""
    lib = me.lib
    duration = ctypes.c_int64(1)
    data = np.full(4, 1.0, np.float32)
    lib.cpunccl_graph_begin()
    lib.cpunccl_kernel_from(None, byref(duration))
    me.call("ncclAllReduce", data, data, 4, nccl.FLOAT, nccl.SUM)
    captured = lib.cpunccl_graph_end()
    me.sync()
    assert data[0] == 1.0
    for round_ in range(1, 4):
        begin = lib.cpunccl_host_time()
        duration.value = (2 + me.rank) * round_ * MS
        lib.cpunccl_graph_launch(captured, None)
        me.sync()
        assert data[0] == me.world**round_
        assert lib.cpunccl_host_time() - begin > duration.value
    lib.cpunccl_graph_destroy(captured)


def profiled(me: Rank) -> None:
    """What the profiler's tests look at: a step of everything, the last rank late every time."""
    lib, late = me.lib, 4 * MS if me.rank == me.world - 1 else 0
    lib.cpunccl_host_plan(1)
    data = np.zeros(4096, np.float32)
    n, f = data.size // me.world, nccl.FLOAT
    for _ in range(int(os.environ.get("SCENARIO_STEPS", "3"))):
        lib.cpunccl_kernel(None, 2 * MS + late)
        me.call("ncclAllReduce", data, data, data.size, f, nccl.SUM)
        lib.cpunccl_kernel(None, 2 * MS + late)
        me.call("ncclAllGather", data, data, n, f)
        me.call("ncclBroadcast", data, data, n, f, 1)
        lib.call("ncclGroupStart")
        me.call("ncclSend", data, 8, f, (me.rank + 1) % me.world)
        me.call("ncclRecv", data, 8, f, (me.rank - 1) % me.world)
        lib.call("ncclGroupEnd")
        lib.call("ncclGroupStart")
        me.call("ncclAllReduce", data, data, 64, f, nccl.SUM)
        me.call("ncclAllReduce", data, data, 64, f, nccl.SUM)
        lib.call("ncclGroupEnd")
        me.sync()


def replayed(me: Rank) -> None:
    """A graph of two collectives, launched three times."""
    data = np.zeros(64, np.float32)
    me.lib.cpunccl_graph_begin()
    me.call("ncclAllReduce", data, data, 64, nccl.FLOAT, nccl.SUM)
    me.call("ncclReduce", data, data, 64, nccl.FLOAT, nccl.SUM, 0)
    captured = me.lib.cpunccl_graph_end()
    for _ in range(3):
        me.lib.cpunccl_graph_launch(captured, None)
        me.sync()


def reloaded(me: Rank) -> None:
    """The plugin is closed with the last communicator, and opened for the next one."""
    maps, one = Path("/proc/self/maps"), c_void_p()
    assert "liblogger" in maps.read_text()
    me.destroy()
    assert "liblogger" not in maps.read_text()
    me.lib.call("ncclCommInitAll", byref(one), 1, None)
    assert "liblogger" in maps.read_text()
    me.lib.call("ncclCommDestroy", one)


SCENARIOS: dict[str, Callable[[Rank], None]] = {
    one.__name__: one
    for one in (collectives, messages, splits, groups, arguments, threads, mismatch, killed)
} | {one.__name__: one for one in (aborted, planned, profiled, reloaded, replayed)}
WITHOUT_DESTROY = ("mismatch", "killed", "aborted", "reloaded")


def main() -> None:
    name, rank, world, directory = sys.argv[1:]
    me = Rank(int(rank), int(world), Path(directory))
    time.sleep(float(os.environ.get("SCENARIO_PAUSE", "0")))
    SCENARIOS[name](me)
    if name not in WITHOUT_DESTROY:
        me.destroy()


if __name__ == "__main__":
    main()
