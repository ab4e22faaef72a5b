"""A training job on cpunccl: a CPU simulation of N ranks, with slowness put in on request.

    trainer.py --pattern tpdp --slow rank=3,phase=backward,percent=5,from_step=200

Starts the ranks itself, with the environment that torchrun would give them, and writes one JSON
line per event: started (pid), running, injected, withdrawn, summary. Communication is real, among
real processes; the GPU's kernels are planned durations (cpunccl.h).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "trainer")]

import library  # noqa: E402
import pace  # noqa: E402
from patterns import DATALOADER, PATTERNS, PHASES, Message, Pattern, Place  # noqa: E402

RUNNING = 5  # steps after which a rank is said to be running
DEFAULTS = {
    "CPUNCCL_BANDWIDTH": "60e6",  # with the patterns' sizes: transfers of 0.2 to 1 ms
    "CPUNCCL_LATENCY_NS": "20000",
    "CPUNCCL_TRANSFER_JITTER": "0.02",
    "CPUNCCL_LAUNCH_NS": "3000",
    "CPUNCCL_POLL_US": "2000",
}


@dataclass(frozen=True)
class Slow:
    """Work of ``rank`` longer by ``percent`` of a whole step's own work, placed in ``phase``; or
    by ``phase_percent`` of the phase's. Steps from ``from_step`` to before ``until``."""

    rank: int
    phase: str
    percent: float = 0.0
    phase_percent: float = 0.0
    from_step: int = 0
    until: int = 1 << 60

    def holds(self, rank: int, step: int) -> bool:
        return self.rank == rank and self.from_step <= step < self.until


@dataclass(frozen=True)
class Link:
    """Bandwidth between two ranks (``other`` -1: all) times ``factor``."""

    rank: int
    other: int
    factor: float
    from_step: int = 0
    until: int = 1 << 60


def _pairs(text: str, kind: type) -> dict[str, Any]:
    values: dict[str, Any] = {}
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals or name not in fields:
            raise argparse.ArgumentTypeError(f"{pair!r}: want NAME=VALUE of {', '.join(fields)}")
        values[name] = value if name == "phase" else float(value)
        if fields[name].type == "int":
            values[name] = int(value)
    return values


def slow(text: str) -> Slow:
    """``rank=3,phase=backward,percent=5,from_step=200``"""
    try:
        one = Slow(**_pairs(text, Slow))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if one.phase not in PHASES:
        raise argparse.ArgumentTypeError(f"phase {one.phase!r}: there are {', '.join(PHASES)}")
    return one


def link(text: str) -> Link:
    """``rank=3,other=4,factor=0.5,from_step=200``"""
    try:
        return Link(**_pairs(text, Link))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pattern", choices=PATTERNS, default="ddp")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--jitter", type=float, default=0.02, help="sigma of own work, relative")
    parser.add_argument("--scale", type=float, default=1.0, help="of all durations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=slow, action="append", default=[], metavar="NAME=VALUE,…")
    parser.add_argument("--link", type=link, action="append", default=[], metavar="NAME=VALUE,…")
    parser.add_argument("--graph", action="store_true", help="ddp: replay one captured step")
    parser.add_argument("--amd", action="store_true", help="be RCCL")
    parser.add_argument("--library", default="", help="instead of target/cpunccl's")
    parser.add_argument("--plugin", default="", help="NCCL_PROFILER_PLUGIN")
    parser.add_argument("--record", default="/dev/stdout", help="JSON lines of what happens")
    parser.add_argument("--dump", default="", help="exact planned times, one file per rank")
    options = parser.parse_args()
    pattern = PATTERNS[options.pattern]
    if options.ranks < 1 or options.ranks % pattern.multiple:
        parser.error(f"--ranks: {options.pattern} needs a multiple of {pattern.multiple}")
    if options.graph and options.pattern != "ddp":
        parser.error("--graph: only ddp has the same kernels in every step")
    return options


class Recorder:
    """A device that adds up a rank's own work by phase and runs nothing."""

    def __init__(self) -> None:
        self.total = dict.fromkeys(PHASES, 0.0)

    def load(self, ms: float) -> None:
        self.total[DATALOADER] += ms

    def work(self, phase: str, ms: float) -> None:
        self.total[phase] += ms

    def fork(self) -> None: ...
    def join(self) -> None: ...
    def collective(self, call: str, group: str, size: int, overlap: bool = False) -> None: ...
    def messages(self, group: str, sends: list[Message], receives: list[Message]) -> None: ...


class Gpu:
    """The device of one rank; ``factors`` stretch its phases."""

    def __init__(
        self, lib: library.Library, groups: dict[str, ctypes.c_void_p], world: int
    ) -> None:
        self.lib, self.groups, self.world = lib, groups, world
        self.compute, self.communication = (lib.cpunccl_stream_create() for _ in range(2))
        self.forked, self.joined = (lib.cpunccl_event_create() for _ in range(2))
        self.buffer = lib.cpunccl_malloc(1 << 22)
        self.factors = dict.fromkeys(PHASES, 1.0)
        self.graph: int | None = None
        self.captured: list[tuple[str, float, ctypes.c_int64]] | None = None

    def load(self, ms: float) -> None:
        if self.captured is None:
            self.lib.cpunccl_host_work(round(ms * 1e6 * self.factors[DATALOADER]))

    def work(self, phase: str, ms: float) -> None:
        duration = ctypes.c_int64(round(ms * 1e6 * self.factors[phase]))
        if self.captured is None:
            self.lib.cpunccl_kernel(self.compute, duration)
        else:
            self.captured.append((phase, ms, duration))
            self.lib.cpunccl_kernel_from(self.compute, ctypes.byref(duration))

    def fork(self) -> None:
        self.lib.cpunccl_event_record(self.forked, self.compute)
        self.lib.cpunccl_stream_wait(self.communication, self.forked)

    def join(self) -> None:
        self.lib.cpunccl_event_record(self.joined, self.communication)
        self.lib.cpunccl_stream_wait(self.compute, self.joined)

    def collective(self, call: str, group: str, size: int, overlap: bool = False) -> None:
        operation = [library.SUM] if call != "AllGather" else []
        stream = self.communication if overlap else self.compute
        into = self.buffer + (2 << 20)
        self.lib.call(
            f"nccl{call}",
            *(self.buffer, into, size // 4, library.FLOAT, *operation),
            *(self.groups[group], stream),
        )

    def messages(self, group: str, sends: list[Message], receives: list[Message]) -> None:
        comm, at = self.groups[group], self.buffer
        self.lib.call("ncclGroupStart")
        for peer, size in sends:
            self.lib.call("ncclSend", at, size // 4, library.FLOAT, peer, comm, self.compute)
            at += size
        for peer, size in receives:
            self.lib.call("ncclRecv", at, size // 4, library.FLOAT, peer, comm, self.compute)
            at += size
        self.lib.call("ncclGroupEnd")

    def replay(self, pattern: Pattern, place: Place, draw: random.Random) -> None:
        """The step as a graph, captured at the first call."""
        if self.graph is None:
            self.captured = []
            self.lib.cpunccl_graph_begin()
            pattern.step(self, place, draw)
            self.graph = self.lib.cpunccl_graph_end()
            captured, self.captured = self.captured, None
            self._kernels = captured
        for phase, ms, duration in self._kernels:
            duration.value = round(ms * 1e6 * self.factors[phase])
        self.load(2)
        self.lib.cpunccl_graph_launch(self.graph, self.compute)

    def sync(self) -> None:
        self.lib.sync(self.communication)
        self.lib.sync(self.compute)


def phase_factors(
    options: argparse.Namespace, rank: int, step: int, own: dict[str, float], jitter: float
) -> dict[str, float]:
    """How much longer than nominal each phase of this rank and step is."""
    factors = dict.fromkeys(PHASES, options.scale * jitter)
    for one in options.slow:
        if one.holds(rank, step):
            extra = one.percent / 100 * sum(own.values()) / own[one.phase]
            factors[one.phase] *= 1 + extra + one.phase_percent / 100
    return factors


def changes(options: argparse.Namespace, rank: int, step: int) -> Iterator[tuple[str, Slow]]:
    """Injections that begin or end with this step."""
    for one in options.slow:
        if one.rank == rank and step in (one.from_step, one.until):
            yield ("injected" if step == one.from_step else "withdrawn"), one


def train(options: argparse.Namespace, directory: Path) -> None:
    """One rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    record = pace.Record(options.record)
    lib = library.Library(Path(options.library))
    lib.cpunccl_set_device(int(os.environ["LOCAL_RANK"]))
    record.write("started", rank, pid=os.getpid(), pattern=options.pattern, kind="CPU simulation")
    pattern = PATTERNS[options.pattern]
    groups = {"world": lib.communicator(world, lib.rendezvous(rank, directory), rank, "world")}
    colors = pattern.groups(rank, world)
    for name, color in colors.items():
        groups[name] = lib.split(groups["world"], color, rank, name)
    if options.dump:
        lib.call("cpunccl_dump", f"{options.dump}.{rank}".encode())
    place, gpu, recorder = Place(rank, world, colors), Gpu(lib, groups, world), Recorder()
    pattern.step(recorder, place, random.Random(0))
    own_random = random.Random((options.seed << 16) + rank + 1)
    lib.cpunccl_host_plan(1)
    gpu.collective("AllReduce", "world", 4)
    gpu.sync()
    begin = lib.cpunccl_host_time()
    for step in range(options.steps):
        for event, one in changes(options, rank, step):
            values = {"phase": one.phase, "percent": one.percent}
            record.write(event, rank, step=step, phase_percent=one.phase_percent, **values)
        for one in options.link:
            if step in (one.from_step, one.until):
                lib.cpunccl_set_link(one.rank, one.other, one.factor if step < one.until else 1)
        jitter = max(0.5, own_random.gauss(1, options.jitter))
        gpu.factors = phase_factors(options, rank, step, recorder.total, jitter)
        draw = random.Random((options.seed << 20) + step)
        if options.graph:
            gpu.replay(pattern, place, draw)
        else:
            pattern.step(gpu, place, draw)
        gpu.sync()
        lib.cpunccl_dump_mark(step)
        if step == RUNNING:
            record.write("running", rank)
    worst, late = ctypes.c_int64(), ctypes.c_int64()
    lib.cpunccl_lag(ctypes.byref(worst), ctypes.byref(late))
    step_ms = (lib.cpunccl_host_time() - begin) / 1e6 / max(1, options.steps)
    lag = {"worst_lag_ms": round(worst.value / 1e6, 1), "late": late.value}
    record.write("summary", rank, steps=options.steps, step_ms=round(step_ms, 3), **lag)
    for name in [*colors, "world"]:
        lib.call("ncclCommDestroy", groups[name])


def environment(options: argparse.Namespace, rank: int, port: int, run: str) -> dict[str, str]:
    """What torchrun gives a rank."""
    given = dict(os.environ)
    given |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    given |= {"WORLD_SIZE": str(options.ranks), "LOCAL_WORLD_SIZE": str(options.ranks)}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    given |= {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": "0"}
    if options.plugin:
        given["NCCL_PROFILER_PLUGIN"] = options.plugin
    return given


def launch(options: argparse.Namespace) -> int:
    """Start the ranks; the first exit status that is not 0."""
    with tempfile.TemporaryDirectory(prefix="cpunccl-") as directory, socket.socket() as port:
        port.bind(("127.0.0.1", 0))  # held for the life of the job, so that no other has it
        number, run = port.getsockname()[1], uuid.uuid4().hex
        command = [sys.executable, *sys.argv]
        ranks = [
            subprocess.Popen(
                command,
                env=environment(options, rank, number, run) | {"CPUNCCL_DIRECTORY": directory},
            )
            for rank in range(options.ranks)
        ]

        def stop(number: int, frame: object) -> None:
            for one in ranks:
                one.send_signal(number)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        statuses = [one.wait() for one in ranks]
    return next((abs(status) for status in statuses if status), 0)


def main() -> int:
    options = parse()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    options.library = options.library or str(library.RCCL if options.amd else library.NCCL)
    if not Path(options.library).exists():
        return pace.refuse(f"{options.library} is not built: run make -C tests/cpunccl")
    directory = os.environ.get("CPUNCCL_DIRECTORY")
    if directory is None:
        return launch(options)
    pace.die_with_launcher()
    try:
        train(options, Path(directory))
    except library.NcclError as error:
        return pace.refuse(f"rank {os.environ['RANK']}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
