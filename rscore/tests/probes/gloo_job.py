"""Two gloo ranks that run collectives of known sizes: gloo_job.py RANK FILE.

Waits for a line on stdin before the collectives. Prints `ready` and then, per collective,
"function elements element_size".
"""

import sys

import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
print("ready", flush=True)
sys.stdin.readline()


def said(function, tensor):
    print(function, tensor.numel(), tensor.element_size(), flush=True)


t = torch.ones(1000, dtype=torch.float32)
dist.all_reduce(t)
said("all_reduce", t)
t = torch.ones(123, dtype=torch.float64)
dist.broadcast(t, 1)
said("broadcast", t)
t = torch.ones(77, dtype=torch.int32)
dist.all_gather([torch.empty_like(t) for _ in range(2)], t)
said("all_gather", t)
dist.barrier()
print("barrier", 0, 0, flush=True)
t = torch.ones(55, dtype=torch.float32)
dist.reduce(t, 0)
said("reduce", t)
t = torch.ones(31, dtype=torch.float16)
dist.gather(t, [torch.empty_like(t) for _ in range(2)] if rank == 0 else None, dst=0)
said("gather", t)
t = torch.empty(29, dtype=torch.uint8)
dist.scatter(t, [torch.ones_like(t) for _ in range(2)] if rank == 1 else None, src=1)
said("scatter", t)
t = torch.ones(64, dtype=torch.float32)
dist.all_to_all_single(torch.empty_like(t), t)
said("all_to_all", t)
t = torch.ones(30, dtype=torch.float32)
sizes = [10, 20] if rank == 0 else [20, 10]  # what each sends to 0 and to 1
dist.all_to_all_single(torch.empty_like(t), t, sizes, sizes)
said("all_to_all", t)
t = torch.ones(500000, dtype=torch.float32)
dist.all_reduce(t, async_op=True).wait()
said("all_reduce", t)
print("called", flush=True)
sys.stdin.readline()
