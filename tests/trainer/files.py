"""DDP over gloo whose batches come from files through data-loader workers; one rank's from disk.

Every rank's worker reads a piece of its own file for each batch. Before the slow rank's does, it
lets the kernel forget the file's pages, so its reads go to the disk and the others' to memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WIDTH, BATCH = 64, 16
PIECE = 1 << 20


class Files(IterableDataset):  # type: ignore[type-arg]
    """Endless batches, each behind one reading of the whole file."""

    def __init__(self, path: Path, pieces: int, forgets: bool) -> None:
        self.path, self.pieces, self.forgets = path, pieces, forgets
        with path.open("wb") as file:
            for _ in range(pieces):
                file.write(os.urandom(PIECE))
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[torch.Tensor]:
        file = os.open(self.path, os.O_RDONLY)
        while True:
            self.read_batch(file)
            yield torch.randn(BATCH, WIDTH)

    def read_batch(self, file: int) -> None:
        """Read it all, from the disk where that is asked for."""
        if self.forgets:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(self.pieces):
            os.pread(file, PIECE, number * PIECE)


def main() -> int:
    parser = argparse.ArgumentParser(description="DDP over gloo that reads files")
    pace.add_options(parser)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mib", type=int, default=8, help="read for every batch")
    options = parser.parse_args()
    pace.die_with_launcher()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow, options.slow_rank = options.slow_rank == rank, -1
    rank_pace = pace.Pace(options, rank, pace.Record(options.record))
    files = Files(options.folder / f"rank-{rank}", options.mib, slow)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = iter(DataLoader(files, batch_size=None, num_workers=1, prefetch_factor=2))
    for _ in range(options.steps):
        rank_pace.begin_step()
        value = next(batches)
        rank_pace.wait_for_device(pace.FORWARD)
        loss = nn.functional.mse_loss(model(value), value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return 0


if __name__ == "__main__":
    sys.exit(main())
