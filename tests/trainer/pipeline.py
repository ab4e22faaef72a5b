"""Two pipeline stages, data-parallel within each, over gloo's send and recv; started by torchrun.

Even ranks hold the first stage, odd ranks the second. The layers, gradients and messages are real;
each stage also waits as for its GPU (see pace.py).
"""

from __future__ import annotations

import argparse
import os
import sys

import pace
import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH = 64, 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    pace.add_options(parser)
    options = parser.parse_args()
    pace.die_with_launcher()
    if "RANK" not in os.environ:
        return pace.refuse("RANK is not set: start this script with torchrun")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first = rank % 2 == 0
    # Every rank has to make every group.
    groups = [dist.new_group(list(range(stage, world_size, 2))) for stage in (0, 1)]
    group, partner = groups[rank % 2], rank + 1 if first else rank - 1
    layer = nn.Linear(WIDTH, WIDTH)
    rank_pace = pace.Pace(options, rank, pace.Record(options.record))
    for _ in range(options.steps):
        rank_pace.begin_step()
        rank_pace.wait_for_device(pace.DATA)
        if first:
            activation = layer(torch.randn(BATCH, WIDTH))
            rank_pace.wait_for_device(pace.FORWARD)
            dist.send(activation.detach(), partner)
            gradient = torch.empty(BATCH, WIDTH)
            dist.recv(gradient, partner)
            activation.backward(gradient)
        else:
            received = torch.empty(BATCH, WIDTH)
            dist.recv(received, partner)
            received.requires_grad_()
            loss = layer(received).square().mean()
            rank_pace.wait_for_device(pace.FORWARD)
            loss.backward()
            dist.send(received.grad, partner)
        rank_pace.wait_for_device(pace.BACKWARD)
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad = None
    rank_pace.finish()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
