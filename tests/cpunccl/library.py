"""ctypes declarations of cpunccl: NCCL's calls and those of its device."""

from __future__ import annotations

import ctypes
import time
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import ClassVar

BUILT = Path(__file__).resolve().parents[2] / "target" / "cpunccl"
NCCL = BUILT / "libnccl.so.2"
RCCL = BUILT / "librccl.so.1"

TYPES = {"i8": 0, "u8": 1, "i32": 2, "u32": 3, "i64": 4, "u64": 5, "f16": 6, "f32": 7, "f64": 8}
FLOAT = TYPES["f32"]
SUM, PROD, MAX, MIN, AVG = range(5)
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 4, 5, 6


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_: ClassVar = [("internal", ctypes.c_ubyte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.27, with every value undefined but the name."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        *((name, c_int) for name in ("blocking", "cga", "min_ctas", "max_ctas")),
        ("net_name", c_char_p),
        ("split_share", c_int),
        ("traffic_class", c_int),
        ("comm_name", c_char_p),
    ]

    def __init__(self, name: str) -> None:
        undefined = -(2**31)
        super().__init__(ctypes.sizeof(Config), 0xCAFEBEEF, 22703, *[undefined] * 4)
        self.split_share = self.traffic_class = undefined
        self.comm_name = name.encode()


_BUFFERS = [c_void_p, c_void_p, c_size_t, c_int]
_END = [c_void_p, c_void_p]  # communicator, stream
NCCL_CALLS = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "ncclCommInitAll": [POINTER(c_void_p), c_int, POINTER(c_int)],
    "ncclCommSplit": [c_void_p, c_int, c_int, POINTER(c_void_p), POINTER(Config)],
    "ncclCommFinalize": [c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
    "ncclCommCount": [c_void_p, POINTER(c_int)],
    "ncclCommUserRank": [c_void_p, POINTER(c_int)],
    "ncclCommCuDevice": [c_void_p, POINTER(c_int)],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclAllReduce": [*_BUFFERS, c_int, *_END],
    "ncclReduce": [*_BUFFERS, c_int, c_int, *_END],
    "ncclBroadcast": [*_BUFFERS, c_int, *_END],
    "ncclReduceScatter": [*_BUFFERS, c_int, *_END],
    "ncclAllGather": [*_BUFFERS, *_END],
    "ncclAlltoAll": [*_BUFFERS, *_END],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, *_END],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, *_END],
}
DEVICE_CALLS = {
    "cpunccl_set_device": (None, [c_int]),
    "cpunccl_malloc": (c_void_p, [c_size_t]),
    "cpunccl_free": (None, [c_void_p]),
    "cpunccl_stream_create": (c_void_p, []),
    "cpunccl_stream_destroy": (None, [c_void_p]),
    "cpunccl_stream_sync": (c_int, [c_void_p]),
    "cpunccl_kernel": (None, [c_void_p, c_int64]),
    "cpunccl_kernel_from": (None, [c_void_p, POINTER(c_int64)]),
    "cpunccl_event_create": (c_void_p, []),
    "cpunccl_event_destroy": (None, [c_void_p]),
    "cpunccl_event_record": (None, [c_void_p, c_void_p]),
    "cpunccl_stream_wait": (None, [c_void_p, c_void_p]),
    "cpunccl_event_time": (c_int64, [c_void_p]),
    "cpunccl_host_plan": (None, [c_int]),
    "cpunccl_host_time": (c_int64, []),
    "cpunccl_host_work": (None, [c_int64]),
    "cpunccl_lag": (None, [POINTER(c_int64), POINTER(c_int64)]),
    "cpunccl_graph_begin": (None, []),
    "cpunccl_graph_end": (c_void_p, []),
    "cpunccl_graph_launch": (None, [c_void_p, c_void_p]),
    "cpunccl_graph_destroy": (None, [c_void_p]),
    "cpunccl_set_link": (None, [c_int, c_int, c_double]),
    "cpunccl_dump": (c_int, [c_char_p]),
    "cpunccl_dump_mark": (None, [c_int]),
    "cpunccl_planned_time": (c_int64, [c_uint64]),
    "cpunccl_clock_granularity": (c_int64, []),
}


class NcclError(RuntimeError):
    """A call that did not return ncclSuccess."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


class Library(ctypes.CDLL):
    """A loaded cpunccl with argument types set."""

    def __init__(self, path: Path = NCCL) -> None:
        super().__init__(str(path))
        for name, arguments in NCCL_CALLS.items():
            getattr(self, name).argtypes = arguments
            getattr(self, name).restype = c_int
        for name, (result, arguments) in DEVICE_CALLS.items():
            getattr(self, name).argtypes = arguments
            getattr(self, name).restype = result
        self.ncclGetErrorString.restype = self.ncclGetLastError.restype = c_char_p

    def check(self, call: str, code: int) -> None:
        """NcclError unless ``code`` is ncclSuccess."""
        if code != SUCCESS:
            reason = self.ncclGetLastError(None).decode() or self.ncclGetErrorString(code).decode()
            raise NcclError(call, code, reason)

    def call(self, name: str, *arguments: object) -> None:
        """Call and check."""
        self.check(name, getattr(self, name)(*arguments))

    def unique_id(self) -> UniqueId:
        """A new one."""
        unique = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return unique

    def rendezvous(self, rank: int, directory: Path) -> UniqueId:
        """Rank 0's unique id, through a file in a directory that the ranks share."""
        path = directory / "unique-id"
        if rank == 0:
            unfinished = path.with_suffix(".new")
            unfinished.write_bytes(bytes(self.unique_id()))
            unfinished.rename(path)
        while not path.exists():
            time.sleep(0.01)
        return UniqueId.from_buffer_copy(path.read_bytes())

    def communicator(self, nranks: int, unique: UniqueId, rank: int, name: str) -> c_void_p:
        """ncclCommInitRankConfig with a name."""
        comm = c_void_p()
        config = ctypes.byref(Config(name))
        self.call("ncclCommInitRankConfig", ctypes.byref(comm), nranks, unique, rank, config)
        return comm

    def split(self, comm: c_void_p, color: int, key: int, name: str) -> c_void_p:
        """ncclCommSplit with a name."""
        out = c_void_p()
        config = ctypes.byref(Config(name))
        self.call("ncclCommSplit", comm, color, key, ctypes.byref(out), config)
        return out

    def sync(self, stream: int | None) -> None:
        """Wait for a stream; NcclError when something in it failed."""
        self.check("stream", self.cpunccl_stream_sync(stream))
