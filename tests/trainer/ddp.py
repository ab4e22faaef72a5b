"""Real DDP training over gloo, started by torchrun; one rank can be made slow.

Model, gradients, optimizer and gloo are real, with several all-reduces a step. Each rank sleeps for
most of its step, as a rank waits for its GPU (see pace.py), so that 4 or 8 ranks fit on two cores.
By default the wait of the backward pass comes before its first all-reduce; ``--overlap`` spreads
it over the layers, so that all-reduces run beside it as they do on a GPU.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

BATCH = 16


class DeviceWait(torch.autograd.Function):
    """The identity whose backward pass waits for the device."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, wait: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.wait = wait
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.wait()
        return gradient, None


class Network(nn.Module):
    """A small MLP: square layers, so that every layer can be one bucket."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.waits: list[Any] = [None] * layers  # before the gradient of layer i

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer, wait in zip(self.layers, self.waits, strict=True):
            value = torch.tanh(layer(value))
            if wait is not None:
                value = DeviceWait.apply(value, wait)
        return value


class DataFile:
    """A file of random bytes on a real disk, of which each batch reads scattered blocks."""

    BLOCK = 16 << 10

    def __init__(self, path: str, options: argparse.Namespace) -> None:
        self._blocks, self._per_batch = options.data_mib * 64, options.batch_blocks
        with open(path, "wb") as file:
            for _ in range(options.data_mib):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        flags = os.O_DIRECT if options.direct else 0
        self._file = os.open(path, os.O_RDONLY | flags)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._buffer = mmap.mmap(-1, self.BLOCK)  # aligned, as O_DIRECT wants it
        self._random = random.Random(path)

    def read_batch(self) -> None:
        for _ in range(self._per_batch):
            os.preadv(self._file, [self._buffer], self._random.randrange(self._blocks) * self.BLOCK)


class Samples(IterableDataset):  # type: ignore[type-arg]
    """Endless random batches with a target that can be learnt."""

    def __init__(self, rank: int, width: int, data: DataFile | None) -> None:
        self.rank, self.width, self.data = rank, width, data

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        source = torch.Generator().manual_seed(self.rank)
        while True:
            if self.data is not None:
                self.data.read_batch()
            value = torch.randn(BATCH, self.width, generator=source)
            yield value, torch.sin(value)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    pace.add_options(parser)
    parser.add_argument("--buckets", type=int, default=2, help="all-reduces per step")
    parser.add_argument("--width", type=int, default=64, help="of a layer: width^2 + width floats")
    parser.add_argument("--overlap", action="store_true", help="all-reduces beside backward waits")
    parser.add_argument("--workers", type=int, default=0, help="data-loader processes per rank")
    parser.add_argument("--data", default="", help="directory: batches are read from files there")
    parser.add_argument("--data-mib", type=int, default=48, help="size of each rank's file")
    parser.add_argument("--batch-blocks", type=int, default=32, help="blocks of 16 KiB per batch")
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--log-every", type=int, default=0, help="an all-reduce more every N steps")
    return parser.parse_args()


def parallel(network: Network) -> DistributedDataParallel:
    """DDP with one bucket per layer; torch alone would put a small model into one bucket."""
    one_layer = sum(p.numel() for p in network.layers[0].parameters()) * 4
    dist._DEFAULT_FIRST_BUCKET_BYTES = one_layer  # type: ignore[attr-defined]
    return DistributedDataParallel(network, bucket_cap_mb=one_layer / 2**20)  # type: ignore[arg-type]


def spread(rank_pace: pace.Pace, layers: int) -> list[Any]:
    """Waits of the layers' backward passes, last layer first in time."""
    return [lambda part=layers - i: rank_pace.wait_for_part(part, layers) for i in range(layers)]


def main() -> int:
    options = parse()
    pace.die_with_launcher()
    if "RANK" not in os.environ:
        return pace.refuse("RANK is not set: start this script with torchrun")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rank_pace = pace.Pace(options, rank, pace.Record(options.record))
    network = Network(options.buckets, options.width)
    if options.overlap:
        network.waits = spread(rank_pace, options.buckets)
    model = parallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = DataFile(f"{options.data}/rank{rank}.data", options) if options.data else None
    batches = iter(
        DataLoader(Samples(rank, options.width, data), batch_size=None, num_workers=options.workers)
    )
    losses: list[torch.Tensor] = []
    for step in range(options.steps):
        rank_pace.begin_step()
        value, target = next(batches)
        if data is not None:
            rank_pace.begin_device()
        rank_pace.wait_for_device(pace.DATA)
        loss = nn.functional.mse_loss(model(value), target)
        rank_pace.wait_for_device(pace.FORWARD)
        optimizer.zero_grad()
        if not options.overlap:
            rank_pace.wait_for_device(pace.BACKWARD)
        loss.backward()
        optimizer.step()
        losses = [*losses[:1], loss.detach()]
        if options.log_every and step % options.log_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {float(mean) / dist.get_world_size():.4f}", flush=True)
    # Equal on all ranks only if every gradient was averaged over all of them.
    checksum = sum(float(p.detach().double().sum()) for p in network.parameters())
    rank_pace.finish(losses=[float(loss) for loss in losses], checksum=checksum)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
