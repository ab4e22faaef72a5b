"""Random collectives of random sizes: a job whose steps nobody can infer, started by torchrun."""

from __future__ import annotations

import argparse
import os
import random
import sys

import pace
import torch
import torch.distributed as dist


def collective(choice: random.Random, rank: int, ranks: int) -> None:
    """One collective, the same on every rank because ``choice`` is seeded alike."""
    kind = choice.choice(["all_reduce", "broadcast", "all_gather", "barrier"])
    value = torch.full((choice.randrange(1, 4096),), float(rank))
    if kind == "all_reduce":
        dist.all_reduce(value)
    elif kind == "broadcast":
        dist.broadcast(value, choice.randrange(ranks))
    elif kind == "all_gather":
        dist.all_gather([torch.empty_like(value) for _ in range(ranks)], value)
    else:
        dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description="random collectives")
    pace.add_options(parser)
    options = parser.parse_args()
    pace.die_with_launcher()
    if "RANK" not in os.environ:
        return pace.refuse("RANK is not set: start this script with torchrun")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rank_pace = pace.Pace(options, rank, pace.Record(options.record))
    choice = random.Random(20)
    for _ in range(options.steps):
        rank_pace.begin_step()
        for phase in pace.SHARES:
            rank_pace.wait_for_device(phase)
        for _ in range(choice.randrange(1, 7)):
            collective(choice, rank, ranks)
    rank_pace.finish()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
