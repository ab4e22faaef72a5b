"""A real NCCL loads the plugin and calls it; only GPU, kernels and poller are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ncclring import ring
from tests.ncclring.build import HERE, built
from tests.test_ncclring_abi import ask_gdb, real_nccl

FUNCTIONS = [
    f"ncclProfiler{name}"
    for name in (
        "PluginInit", "PluginFinalize", "StartGroupEvent", "StopGroupEvent", "StartTaskEvents",
        "StopTaskEvents", "StartKernelChEvent", "StopKernelChEvent",
    )
]  # fmt: skip
MEMBERS = {
    "ncclComm": {
        "comm_hash": "commHash", "comm_rank": "rank", "comm_nranks": "nRanks",
        "comm_nnodes": "nNodes", "comm_sequence": "seqNumber", "comm_context": "profilerContext",
    },
    "ncclKernelPlan": {"plan_comm": "comm", "plan_colls": "collTaskQueue.head"},
    "ncclTaskColl": {
        "task_func": "func", "task_count": "count", "task_datatype": "datatype",
        "task_channels": "nChannels", "task_mask": "eActivationMask",
        "task_handle": "eventHandle",
    },
    "ncclProfilerWorkOp": {
        "op_channel": "channelId", "op_mask": "eActivationMask", "op_task": "taskEventHandle",
        "op_context": "profilerContext",
    },
}  # fmt: skip
SIZES = {
    "sizeof_comm": "ncclComm",
    "sizeof_plan": "ncclKernelPlan",
    "sizeof_task": "ncclTaskColl",
    "sizeof_op": "ncclProfilerWorkOp",
}


def places(library: Path) -> dict[str, int]:
    """Where the driver finds NCCL's functions and members, from the debug information."""
    asked = {name: f"(long)&{name}" for name in FUNCTIONS}
    asked |= {"mask": "(long)&ncclProfilerEventMask", "all_reduce": "(long)ncclFuncAllReduce"}
    asked |= {name: f"(long)sizeof({struct})" for name, struct in SIZES.items()}
    for struct, members in MEMBERS.items():
        asked |= {name: f"(long)&(({struct}*)0)->{member}" for name, member in members.items()}
    found = dict(zip(asked, ask_gdb(library, list(asked.values())), strict=True))
    # Bit fields have no address: the two bytes before the flags, as ptype /o shows.
    found["task_algorithm"] = 98
    return found


@pytest.mark.parametrize("by", ["environment", "default file name"])
def test_a_real_nccl_loads_the_plugin_and_its_collective_is_recorded(
    by: str, tmp_path: Path, root: None
) -> None:
    library = real_nccl()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "STRAGD_R"))}
    environment |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}
    environment["NCCL_DEBUG_FILE"] = str(tmp_path / "log")
    if by == "environment":
        environment["NCCL_PROFILER_PLUGIN"] = str(built().plugin)
    else:
        (tmp_path / "libnccl-profiler.so").symlink_to(built().plugin)
        environment["LD_LIBRARY_PATH"] = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, HERE / "real_nccl.py", library],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment,
    ) as nccl:  # fmt: skip
        assert nccl.stdin is not None
        assert nccl.stdout is not None
        nccl.stdin.write(json.dumps(places(library)) + "\n")
        assert int(nccl.stdout.readline()) == 0x1046, (tmp_path / "log").read_text()
        got = ring.read(nccl.pid)
        nccl.stdin.write("\n")
        assert nccl.stdout.readline() == "finalized\n"
        assert ring.read(nccl.pid).comms[0]["state"] == 2
        nccl.stdin.write("\n")
        assert nccl.wait(60) == 0
    header, comm, (slot,) = got.header, got.comms[0], got.slots
    assert (header["api"], header["vendor"], header["library"]) == (7, 1, 23203)
    assert (header["clock"], header["mode"]) == (1, ring.FULL)
    assert list(header["dropped"]) == [0] * 8
    assert (comm["hash"], comm["rank"], comm["nranks"], comm["nnodes"]) == (0xC0FFEE, 3, 8, 2)
    assert (slot["function"], slot["datatype"], slot["bytes"]) == (ring.ALL_REDUCE, 7, 4 * 4096)
    assert (slot["sequence"], slot["channels"], slot["algorithm"]) == (41, 2, 0x23)
    assert (slot["device_start"], slot["device_stop"], slot["flags"]) == (5000, 6001, 0)
    assert "collectives are recorded for stragd: full" in (tmp_path / "log").read_text()
