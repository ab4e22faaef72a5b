"""The profiler plugin with a real NCCL on one real NVIDIA GPU; about three minutes.

    python3 tests/gpu/run.py [--nccl /path/to/libnccl.so.2] [--out DIRECTORY]

Needs a GPU, a PyTorch with CUDA and NCCL 2.26 or newer, a C compiler and make. Starts two ranks
on the one GPU: NCCL 2.32 allows that (NCCL_MULTI_RANK_GPU_ENABLE); before, each rank says that it
is on a host of its own (NCCL_HOSTID) and they talk over loopback. Both share the GPU by time
slices, so times are good for comparing off with full, not as all-reduce times.

Checks, and ends with 1 if one fails: every collective is delivered, eager and from a CUDA graph,
each with a start and a stop, within the time that CUDA's own events give, in sequence. Prints as
JSON: what full recording costs a small and a large all-reduce against off (medians of turns in
one process), and the step of the GPU's clock.

Each part prints its result as soon as it has one and has a time limit of its own; when one fails or
takes longer, what came before it is in the report all the same, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.ncclring import ring  # noqa: E402

RANKS = 2
EAGER = 200
REPLAYS = 100
TURNS = 9
SIZES = {"small": 8 << 10, "large": 64 << 20}
CALLS = {"small": 300, "large": 5}
LIMITS_S = {"start": 120, "eager": 60, "graph": 60, "small": 60, "large": 60}  # by part, in order
PATIENCE_S = 20


def fail(thing: str, way_out: str) -> NoReturn:
    """End with one clear sentence."""
    sys.exit(f"tests/gpu: {thing}: {way_out}")


class OwnRing:
    """The ring of this process, through its own memory (a sandbox may have no map_files)."""

    def __init__(self) -> None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        found = [line for line in lines if "stragd-ring" in line]
        if not found:
            fail("NCCL made no ring", "see nccl.*.log in --out for why the plugin was not loaded")
        self.address = int(found[0].split("-")[0], 16)

    def read(self) -> ring.Ring:
        """A copy of it."""
        return ring.parse(ctypes.string_at(self.address, ring.BYTES))

    def control(self, mode: int) -> None:
        """Switch the recording, as the daemon does."""
        ctypes.c_uint64.from_address(self.address + 104).value = mode


def wait_for_slots(own: OwnRing, count: int) -> ring.Ring:
    """The ring once ``count`` slots are there, or as it is when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        got = own.read()
        if int(got.header["head"]) >= count or time.monotonic() > deadline:
            return got
        time.sleep(0.05)


def check_delivery(
    got: ring.Ring, first: int, count: int, what: str, longest_ns: float
) -> list[str]:
    """What is wrong with the last ``count`` slots."""
    slots = got.slots[first:]
    problems = []
    if len(slots) != count:
        problems.append(f"{what}: {len(slots)} slots of {count} collectives")
    untimed = int(np.count_nonzero(slots["flags"] & (ring.NO_START | ring.NO_STOP)))
    if untimed:
        problems.append(f"{what}: {untimed} without a device time")
    sequence = np.diff(np.sort(slots["sequence"].astype(np.int64)))
    if len(sequence) and not (sequence == 1).all():
        problems.append(f"{what}: sequence numbers with holes or doubles")
    took = slots["device_stop"].astype(np.float64) - slots["device_start"]
    if got.header["clock"] == 1 and len(took) and took.max() > longest_ns:
        problems.append(f"{what}: a collective of {took.max():.0f} ns in {longest_ns:.0f} ns")
    return problems


def timed(torch: Any, calls: Callable[[], None]) -> float:
    """Milliseconds of GPU time that calls take."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    calls()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop))


def overhead(torch: Any, dist: Any, own: OwnRing, name: str) -> dict[str, float]:
    """Off against full, in turn, in microseconds per all-reduce."""
    data = torch.ones(SIZES[name] // 4, device="cuda")
    took: dict[int, list[float]] = {ring.OFF: [], ring.FULL: []}

    def calls() -> None:
        for _ in range(CALLS[name]):
            dist.all_reduce(data)

    for turn in range(2 * TURNS + 2):
        mode = (ring.OFF, ring.FULL)[turn % 2]
        own.control(mode)
        dist.all_reduce(data)  # the mask is changed by a callback, so after a call
        torch.cuda.synchronize()
        milliseconds = timed(torch, calls)
        if turn > 1:  # the first of each warms up
            took[mode].append(milliseconds * 1000 / CALLS[name])
    off, full = (statistics.median(took[mode]) for mode in (ring.OFF, ring.FULL))
    return {"off_us": off, "full_us": full, "overhead": full / off - 1}


def rank_main(rank: int, results: Path) -> None:
    """One rank: the checks, then the measurements; each part's result is a line of ``results``."""

    def result(part: str, problems: list[str], **figures: object) -> None:
        line = {"rank": rank, "part": part, "problems": problems, **figures}
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")

    torch, dist = pytorch()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, device_id=torch.device("cuda", 0))
    data = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    own = OwnRing()
    wait_for_slots(own, 1)
    header = own.read().header
    result(
        "start",
        [],
        nccl=int(header["library"]),
        descriptor=int(header["api"]),
        row_of_versions=int(header["quirk"]),
    )

    def eager() -> None:
        for _ in range(EAGER):
            dist.all_reduce(data)

    before = len(own.read().slots)
    longest = timed(torch, eager) * 1e6
    got = wait_for_slots(own, before + EAGER)
    result("eager", check_delivery(got, before, EAGER, "eager", longest))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(data)

    def replay() -> None:
        for _ in range(REPLAYS):
            graph.replay()

    before = len(own.read().slots)
    longest = timed(torch, replay) * 1e6
    got = wait_for_slots(own, before + REPLAYS)
    problems = check_delivery(got, before, REPLAYS, "graph", longest)
    if got.header["api"] > 4 and not (got.slots[before:]["flags"] & ring.GRAPH).all():
        problems.append("graph: replays are not marked")
    times = np.concatenate([got.slots["device_start"], got.slots["device_stop"]])
    steps = np.diff(np.unique(times[times > 0]))
    step = math.gcd(*map(int, steps)) if len(steps) else None
    dropped = [int(n) for n in got.header["dropped"]]
    result("graph", problems, clock_step_ns=step, dropped=dropped)
    for name in SIZES:
        result(name, [], **overhead(torch, dist, own, name))
    dist.destroy_process_group()


def pytorch() -> tuple[Any, Any]:
    """The modules torch and torch.distributed."""
    try:
        return importlib.import_module("torch"), importlib.import_module("torch.distributed")
    except ImportError:
        fail(f"{sys.executable} has no PyTorch", "run this with the interpreter that has it")


def requirements() -> tuple[str, int]:
    """The GPU's name and NCCL's version as PyTorch has it."""
    torch, _ = pytorch()
    if not torch.cuda.is_available():
        fail("PyTorch sees no NVIDIA GPU", "run this on a machine with one")
    major, minor, patch = torch.cuda.nccl.version()
    return torch.cuda.get_device_name(0), major * 10000 + minor * 100 + patch


def environment(rank: int, port: int, nccl: str | None, version: int, out: Path) -> dict[str, str]:
    """Of one rank."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "STRAGD_RING"))}
    clean |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_PROFILER_PLUGIN": str(ROOT / "target/ncclring/libnccl-profiler-stragd.so"),
        "STRAGD_RING": "full",  # whatever the table of versions says; the report tells its row
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,PROFILE",
        "NCCL_DEBUG_FILE": str(out / f"nccl.{rank}.log"),
    }
    if version >= 23200:
        clean["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    else:
        clean |= {"NCCL_HOSTID": f"stragd-rank-{rank}", "NCCL_IB_DISABLE": "1"}
    if nccl:
        clean["LD_PRELOAD"] = nccl
    return clean


def version_of(nccl: str) -> int:
    """What ncclGetVersion of a file says."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(nccl).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as problem:
        fail(f"--nccl {nccl} is no NCCL ({problem})", "give the path of a libnccl.so.2")
    return number.value


def follow(ranks: list[subprocess.Popen[bytes]], files: list[Path]) -> str | None:
    """Prints results as they come, until all ranks have ended. Why it ended early, if it did."""
    seen = [0] * len(ranks)
    parts = list(LIMITS_S)
    began = time.monotonic()
    while any(process.poll() is None for process in ranks):
        time.sleep(0.2)
        slowest = min(seen)
        for rank, file in enumerate(files):
            lines = file.read_text().splitlines() if file.exists() else []
            for line in lines[seen[rank] :]:
                print(line, flush=True)
            seen[rank] = len(lines)
        if min(seen) > slowest:
            began = time.monotonic()
        if any(process.returncode for process in ranks):
            break
        if min(seen) < len(parts) and time.monotonic() - began > LIMITS_S[parts[min(seen)]]:
            return f"part {parts[min(seen)]} was not done after {LIMITS_S[parts[min(seen)]]} s"
    failed = [rank for rank, process in enumerate(ranks) if process.poll()]
    return f"rank {failed[0]} failed, its error is above" if failed else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nccl", help="another libnccl.so.2 than PyTorch's own")
    parser.add_argument("--out", type=Path, default=Path("target/gpu"), help="logs, result.json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    if arguments.rank is not None:
        rank_main(arguments.rank, out / f"rank.{arguments.rank}.jsonl")
        return
    device, version = requirements()
    if arguments.nccl:
        version = version_of(arguments.nccl)
    if version < 22600:
        fail(f"NCCL {version} has no device events", "NCCL 2.26 or newer is needed, see --nccl")
    for tool in ("make", "cc"):
        if shutil.which(tool) is None:
            fail(f"there is no {tool}", "the plugin is built here: install a C compiler and make")
    subprocess.run(["make", "-s", "-C", ROOT / "ncclring"], check=True, timeout=120)
    out.mkdir(parents=True, exist_ok=True)
    files = [out / f"rank.{rank}.jsonl" for rank in range(RANKS)]
    for file in files:
        file.unlink(missing_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), "--out", out],
            env=environment(rank, port, arguments.nccl, version, out),
        )
        for rank in range(RANKS)
    ]
    try:
        problem = follow(ranks, files)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    results = [json.loads(line) for line in lines]
    report = {"device": device, "nccl": version, "unfinished": problem, "results": results}
    (out / "result.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    if problem:
        print(f"tests/gpu: {problem}; NCCL's own words are in {out}/nccl.*.log", file=sys.stderr)
    sys.exit(1 if problem or any(result["problems"] for result in results) else 0)


if __name__ == "__main__":
    main()
