"""The job of `stragctl simulate` as a person types it: ranks, classes, pattern, noise."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

from stragd.cli.ranges import number
from stragd.replay.noise import NOISES
from stragd.replay.simulate import Machine, Scenario

MOST_RANKS = 1 << 17
MOST_STAGES = 1024
WINDOW_STEPS, WINDOW_MS = 100, 30_000.0
"""A live window ends after so many steps or so many milliseconds."""
STAGES = 4
PATTERNS: dict[str, dict[str, float]] = {
    "ddp": {"transfer": 0.05, "collectives": 4},
    "fsdp": {"transfer": 0.15, "collectives": 96},
    "pipeline": {"transfer": 0.05, "collectives": 32},
    "moe": {"transfer": 0.2, "collectives": 128, "load": 0.03},
}
"""Transfers' share of a step, collectives of a step, and of moe how much the work of a rank differs
from window to window."""


class JobError(Exception):
    """Options that do not fit each other: the thing, the reason and the way out in one line."""


@dataclass(frozen=True)
class Named:
    """A job, with what the person calls its parts."""

    scenario: Scenario
    classes: tuple[str, ...]
    """In the order of ``Scenario.machines``; empty where no class was named."""
    pattern: str


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number from ``low`` to ``high``."""

    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return value

    return parse


def _machine(text: str) -> tuple[str, Machine]:
    name, _, rest = text.partition("=")
    count, colon, speed = rest.partition(":")
    try:
        ranks, relative = whole(1, MOST_RANKS)(count), number(0.01, 100)(speed if colon else "1")
    except argparse.ArgumentTypeError:
        name, ranks, relative = "", 0, 1.0
    if not name or "," in name:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=COUNT or NAME=COUNT:SPEED, as in H200=256 and MI300X=256:0.8 "
            "(256 ranks at 0.8 of the speed)"
        )
    return name, Machine(0, float(ranks), 1.0 / relative)


def _stages(text: str) -> tuple[float, ...]:
    parts = text.split(",")
    try:
        if len(parts) == 1:
            return (1.0,) * whole(1, MOST_STAGES)(text)
        return tuple(number(0.01, 100)(part) for part in parts)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of stages nor their work, as in 1,1,1,1.3"
        ) from None


def job_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that describe the healthy job."""
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--ranks", type=whole(2, MOST_RANKS), metavar="N",
        help="ranks of the job (64, or as many as the classes have)",
    )  # fmt: skip
    job.add_argument(
        "--class", dest="machines", action="append", type=_machine, metavar="NAME=COUNT[:SPEED]",
        help="a hardware class: its ranks, its speed over the others' (1); repeat",
    )  # fmt: skip
    job.add_argument(
        "--pattern", choices=tuple(PATTERNS), default="ddp",
        help="ddp and fsdp: every rank issues the same collectives; pipeline: each stage its own; "
        "moe: the work and the bytes of a rank differ from window to window (ddp)",
    )  # fmt: skip
    job.add_argument(
        "--stages", type=_stages, metavar="N|WORK,...",
        help="pipeline stages, or the work of each over the others' (1,1,1,1.3); blocks of ranks "
        f"({STAGES} with --pattern pipeline)",
    )  # fmt: skip
    job.add_argument(
        "--load", type=number(0, 50, 100), metavar="PERCENT",
        help="by how much a rank's work differs from window to window (0; moe: 3)",
    )  # fmt: skip
    job.add_argument(
        "--step-ms", type=number(0.1, WINDOW_MS / 2), default=100.0, metavar="MS",
        help="length of a step's own work (100)",
    )  # fmt: skip
    job.add_argument(
        "--steps", type=whole(2, WINDOW_STEPS), metavar="N",
        help="steps a window (as live: 100, or as many as take 30 s)",
    )  # fmt: skip
    noise = parser.add_argument_group("its noise")
    noise.add_argument(
        "--jitter", type=number(0.01, 50, 100), default=0.05, metavar="PERCENT",
        help="standard deviation of one step (5)",
    )  # fmt: skip
    noise.add_argument(
        "--noise", choices=NOISES, default="gaussian",
        help="of steps: gaussian; student3 and lognormal: heavy tails; ar1: steps resemble the "
        "one before (0.7), ar1-windows: so do windows; outliers: one step in twenty takes twice as "
        "long",
    )  # fmt: skip
    noise.add_argument(
        "--natural", type=number(0, 50, 100), default=0.015, metavar="PERCENT",
        help="permanent spread between machines of a class (1.5)",
    )  # fmt: skip
    noise.add_argument(
        "--bursts", type=number(0, 100, 100), default=0.0, metavar="PERCENT",
        help="of the windows in which everybody is 30 %% slower (0)",
    )  # fmt: skip
    noise.add_argument(
        "--drift", type=number(0, 10, 100), default=0.0, metavar="PERCENT",
        help="random walk of the whole job, a window (0)",
    )  # fmt: skip
    noise.add_argument(
        "--evaluation", type=whole(2, 10_000), default=0, metavar="N",
        help="everybody takes half as long again in one window of N",
    )  # fmt: skip
    noise.add_argument(
        "--missing", type=number(0, 90, 100), default=0.0, metavar="PERCENT",
        help="of all windows of ranks that never arrive (0)",
    )  # fmt: skip


def scenario(arguments: argparse.Namespace) -> Named:
    """The healthy job that the options describe. Raises JobError."""
    classes: list[tuple[str, Machine]] = arguments.machines or []
    names = tuple(name for name, _ in classes)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise JobError(f"--class {twice.pop()}: named twice; give each class once, with all ranks")
    counted = sum(int(machine.share) for _, machine in classes)
    ranks = counted if classes else arguments.ranks or 64
    if classes and arguments.ranks not in (None, counted):
        raise JobError(
            f"--ranks {arguments.ranks}: the classes have {counted} ranks; leave --ranks out"
        )
    if not 2 <= ranks <= MOST_RANKS:
        raise JobError(f"--class: {ranks} ranks in all, which is not between 2 and {MOST_RANKS}")
    pattern, stages = PATTERNS[arguments.pattern], arguments.stages
    if stages is not None and len(stages) > 1 and arguments.pattern != "pipeline":
        raise JobError(f"--stages: {arguments.pattern} has none; add --pattern pipeline")
    if stages is None:
        stages = (1.0,) * (STAGES if arguments.pattern == "pipeline" else 1)
    if len(stages) > ranks:
        raise JobError(f"--stages: {len(stages)} stages for {ranks} ranks; give fewer stages")
    steps = arguments.steps or int(min(WINDOW_STEPS, max(WINDOW_MS // arguments.step_ms, 1)))
    machines = [replace(one, class_id=place) for place, (_, one) in enumerate(classes, 1)]
    one = Scenario(
        ranks=ranks, steps=steps, step_ns=arguments.step_ms * 1e6, jitter=arguments.jitter,
        noise=arguments.noise, natural=arguments.natural, stages=stages,
        machines=tuple(machines) or (Machine(1, 1.0, 1.0),),
        load=pattern.get("load", 0.0) if arguments.load is None else arguments.load,
        transfer=pattern["transfer"], collectives=int(pattern["collectives"]),
        bursts=arguments.bursts, drift=arguments.drift, evaluation=arguments.evaluation,
        missing=arguments.missing, seed=arguments.seed,
    )  # fmt: skip
    return Named(one, names, arguments.pattern)
