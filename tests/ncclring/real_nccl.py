"""Lets the host code of a real NCCL 2.32 load the plugin and make its callbacks; no GPU needed.

    python3 real_nccl.py LIBNCCL < places.json

What NCCL's profiler functions read of a communicator, a kernel plan and a task is filled in by
hand in zeroed memory, at the places that the caller took from the library's debug information.
Everything else is NCCL's own: finding and loading the plugin, init, the descriptors and the
order of the calls. Prints the event mask that the plugin asked for, waits for a line, finalizes,
prints that, and waits for another before it ends.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

SEQUENCE, COUNT, CHANNELS = 41, 4096, 2


def word(memory: Any, place: int, value: int, kind: Any = ctypes.c_uint64) -> None:
    """Fill in one member."""
    kind.from_buffer(memory, place).value = value


def main() -> None:
    library, at = sys.argv[1], json.loads(sys.stdin.readline())
    ctypes.CDLL(library)
    name = Path(library).name
    lines = Path("/proc/self/maps").read_text().splitlines()
    base = int(next(line for line in lines if line.endswith(name)).split("-")[0], 16)

    def call(function: str, *arguments: Any) -> int:
        kinds = [ctypes.c_uint64 if isinstance(a, int) else ctypes.c_void_p for a in arguments]
        result: int = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(base + at[function])(
            *(a if isinstance(a, int) else ctypes.addressof(a) for a in arguments)
        )
        return result

    comm, plan, task, op = (
        ctypes.create_string_buffer(at[size])
        for size in ("sizeof_comm", "sizeof_plan", "sizeof_task", "sizeof_op")
    )
    word(comm, at["comm_hash"], 0xC0FFEE)
    word(comm, at["comm_rank"], 3, ctypes.c_int32)
    word(comm, at["comm_nranks"], 8, ctypes.c_int32)
    word(comm, at["comm_nnodes"], 2, ctypes.c_int32)
    assert call("ncclProfilerPluginInit", comm) == 0
    all_reduce = at["all_reduce"]
    word(comm, at["comm_sequence"] + 8 * all_reduce, SEQUENCE)
    word(plan, at["plan_comm"], ctypes.addressof(comm))
    word(plan, at["plan_colls"], ctypes.addressof(task))
    mask = ctypes.c_int32.from_address(base + at["mask"]).value
    word(task, at["task_func"], all_reduce, ctypes.c_int32)
    word(task, at["task_count"], COUNT)
    word(task, at["task_datatype"], 7, ctypes.c_int32)  # float32
    word(task, at["task_channels"], CHANNELS, ctypes.c_uint8)
    word(task, at["task_algorithm"], 1 | 2 << 8, ctypes.c_uint16)  # ring, simple
    word(task, at["task_mask"], mask, ctypes.c_int32)
    assert call("ncclProfilerStartGroupEvent", plan) == 0
    assert call("ncclProfilerStartTaskEvents", plan) == 0
    # NCCL takes the handle along with the work before it ends the task's event.
    handle = ctypes.c_uint64.from_buffer(task, at["task_handle"]).value
    assert call("ncclProfilerStopTaskEvents", plan) == 0
    assert call("ncclProfilerStopGroupEvent", plan) == 0
    context = ctypes.c_uint64.from_buffer(comm, at["comm_context"]).value
    for channel in range(CHANNELS):
        word(op, at["op_channel"], channel, ctypes.c_int32)
        word(op, at["op_mask"], mask, ctypes.c_int32)
        word(op, at["op_task"], handle)
        word(op, at["op_context"], context)
        assert call("ncclProfilerStartKernelChEvent", op, 5000 + channel) == 0
        assert call("ncclProfilerStopKernelChEvent", op, 6000 + channel) == 0
    print(mask, flush=True)
    sys.stdin.readline()
    assert call("ncclProfilerPluginFinalize", comm) == 0
    print("finalized", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
