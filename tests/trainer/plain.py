"""Ranks without a launcher's environment: ``torch.multiprocessing.spawn`` over gloo.

Neither RANK nor WORLD_SIZE is in any environment, so from outside only the communicators tell who
is who. ``--address environment`` lets the parent export MASTER_ADDR and MASTER_PORT; ``argument``
hands the address to the ranks as an argument, so that their environment has nothing at all.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

import pace
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank: int, options: argparse.Namespace, address: str) -> None:
    """One rank: an all-reduce of real gradients of a small model per step."""
    pace.die_with_launcher()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
    rank_pace = pace.Pace(options, rank, pace.Record(options.record))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    for _ in range(options.steps):
        rank_pace.begin_step()
        rank_pace.wait_for_device(pace.DATA)
        loss = model(torch.randn(16, 64)).square().mean()
        rank_pace.wait_for_device(pace.FORWARD)
        model.zero_grad()
        loss.backward()
        rank_pace.wait_for_device(pace.BACKWARD)
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.sub_(parameter.grad, alpha=0.01 / options.ranks)
    rank_pace.finish()
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description="ranks without a launcher's environment")
    pace.add_options(parser)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--address", choices=["environment", "argument"], default="argument")
    options = parser.parse_args()
    pace.die_with_launcher()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    if options.address == "environment":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        address = "env://"
    mp.spawn(run, (options, address), nprocs=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
