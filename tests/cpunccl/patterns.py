"""What one rank does in one step, in the five common ways to train in parallel.

Durations are milliseconds of a nominal healthy step, sizes are bytes of this simulation. Every
pattern is written against ``Device``, so that the trainer's recorder can add up a rank's own work
without running it. A rank counts from 0; ranks of one tensor or pipeline group are neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DATALOADER, FORWARD, BACKWARD, OPTIMIZER = "dataloader", "forward", "backward", "optimizer"
PHASES = (DATALOADER, FORWARD, BACKWARD, OPTIMIZER)
Message = tuple[int, int]  # peer in the group, bytes


class Device(Protocol):
    """One GPU with a stream for compute and one for communication."""

    def load(self, ms: float) -> None:
        """The data loader, on the host, before anything of the step is enqueued."""

    def work(self, phase: str, ms: float) -> None:
        """A kernel in the compute stream."""

    def fork(self) -> None:
        """What comes in the communication stream waits for the compute stream's kernels so far."""

    def join(self) -> None:
        """What comes in the compute stream waits for the communication stream."""

    def collective(self, call: str, group: str, size: int, overlap: bool = False) -> None:
        """One collective; ``overlap``: in the communication stream."""

    def messages(self, group: str, sends: list[Message], receives: list[Message]) -> None:
        """Messages of one group, in the compute stream."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its groups' colors are equal for the ranks of one group."""

    rank: int
    world: int
    colors: dict[str, int]  # group name → color of ncclCommSplit


@dataclass(frozen=True)
class Pattern:
    """``step(device, place, random)``; the random numbers are the same on all ranks."""

    step: Callable[[Device, Place, random.Random], None]
    groups: Callable[[int, int], dict[str, int]]  # rank, world size → colors
    multiple: int  # of which the world size must be


def ddp(device: Device, place: Place, draw: random.Random, buckets: int = 8) -> None:
    """Data parallel: gradient buckets are reduced beside the rest of the backward pass."""
    device.load(2)
    device.work(FORWARD, 12)
    for _ in range(buckets):
        device.work(BACKWARD, 22 / buckets)
        device.fork()
        device.collective("AllReduce", "world", 32 << 10, overlap=True)
    device.join()
    device.work(OPTIMIZER, 4)


def fsdp(device: Device, place: Place, draw: random.Random, layers: int = 8) -> None:
    """Fully sharded: parameters are gathered one layer ahead, gradients scattered behind."""
    shard = 4 << 10
    device.load(2)
    device.fork()
    device.collective("AllGather", "world", shard, overlap=True)
    for layer in range(layers):
        device.join()
        device.fork()  # the next layer's gather may begin with this layer's work
        if layer + 1 < layers:
            device.collective("AllGather", "world", shard, overlap=True)
        device.work(FORWARD, 12 / layers)
    device.fork()
    device.collective("AllGather", "world", shard, overlap=True)
    for layer in range(layers):
        device.join()
        device.fork()
        if layer + 1 < layers:
            device.collective("AllGather", "world", shard, overlap=True)
        device.work(BACKWARD, 22 / layers)
        device.fork()
        device.collective("ReduceScatter", "world", shard, overlap=True)
    device.join()
    device.work(OPTIMIZER, 4)


def tpdp(device: Device, place: Place, draw: random.Random, layers: int = 6) -> None:
    """Tensor parallel in pairs, data parallel between them."""
    device.load(2)
    for _ in range(2 * layers):
        device.work(FORWARD, 12 / layers / 2)
        device.collective("AllReduce", "tensor", 8 << 10)
    for _ in range(layers):
        for _ in range(2):
            device.work(BACKWARD, 22 / layers / 2)
            device.collective("AllReduce", "tensor", 8 << 10)
        device.fork()
        device.collective("AllReduce", "data", 16 << 10, overlap=True)
    device.join()
    device.work(OPTIMIZER, 4)


def ppdp(device: Device, place: Place, draw: random.Random, microbatches: int = 8) -> None:
    """A pipeline of two stages, one forward one backward; data parallel within a stage."""
    stage, activation = place.rank % 2, 16 << 10
    peer, uneven = 1 - stage, 1.1 if stage else 1.0
    forward, backward = 10 / microbatches * uneven, 20 / microbatches * uneven
    device.load(2)
    if stage == 0:
        device.work(FORWARD, forward)
        device.messages("pipeline", [(peer, activation)], [])
        for _ in range(microbatches - 1):
            device.work(FORWARD, forward)
            device.messages("pipeline", [(peer, activation)], [(peer, activation)])
            device.work(BACKWARD, backward)
        device.messages("pipeline", [], [(peer, activation)])
        device.work(BACKWARD, backward)
    else:
        device.messages("pipeline", [], [(peer, activation)])
        for microbatch in range(microbatches):
            device.work(FORWARD, forward)
            device.work(BACKWARD, backward)
            more = [(peer, activation)] if microbatch + 1 < microbatches else []
            device.messages("pipeline", [(peer, activation)], more)
    for _ in range(2):
        device.collective("AllReduce", "data", 32 << 10)
    device.work(OPTIMIZER, 4)


def moe(device: Device, place: Place, draw: random.Random, layers: int = 4) -> None:
    """Mixture of experts: tokens go to their experts and back; the loads vary from step to step."""
    experts = place.world
    device.load(2)
    for phase, total in ((FORWARD, 12), (BACKWARD, 22)):
        for _ in range(layers):
            # tokens[a][b]: from rank a to the expert of rank b, relative to the mean
            tokens = [
                [max(0.5, draw.gauss(1, 0.1)) for _ in range(experts)] for _ in range(experts)
            ]
            load = sum(row[place.rank] for row in tokens) / experts
            out = [(b, _token_bytes(tokens[place.rank][b])) for b in range(experts)]
            back = [(a, _token_bytes(tokens[a][place.rank])) for a in range(experts)]
            device.work(phase, 0.6 * total / layers)
            device.messages("world", out, back)
            device.work(phase, 0.4 * total / layers * load)
            device.messages("world", back, out)
    device.collective("AllReduce", "world", 32 << 10)
    device.work(OPTIMIZER, 4)


def _token_bytes(tokens: float) -> int:
    return round(16 * tokens) * 256


def _world(rank: int, world: int) -> dict[str, int]:
    return {}


PATTERNS = {
    "ddp": Pattern(ddp, _world, 1),
    "fsdp": Pattern(fsdp, _world, 1),
    "tpdp": Pattern(tpdp, lambda r, n: {"tensor": r // 2, "data": r % 2}, 2),
    "ppdp": Pattern(ppdp, lambda r, n: {"pipeline": r // 2, "data": r % 2}, 2),
    "moe": Pattern(moe, _world, 1),
}
