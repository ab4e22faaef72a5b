"""Two gloo ranks that run collectives of known sizes: gloo_job.py RANK FILE.

Waits for a line on stdin before the collectives. Prints `ready` and then, per work in the order of
issue, "function elements element_size", "several" where it calls several collectives, or "failed
function"; at last those of a second group. Ends with `called`.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
other = dist.new_group(timeout=timedelta(seconds=3))
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
dist.all_reduce(torch.eye(4).to_sparse())
print("several", flush=True)
if torch.__version__ >= "2":
    t = torch.ones(48, dtype=torch.float32)
    dist.reduce_scatter_tensor(torch.empty(24), t)
    said("all_reduce", t)  # gloo has no other way to do it
    t = torch.ones(12, dtype=torch.float32)
    dist.all_to_all([torch.empty(6), torch.empty(6)], list(t.split(6)))
    said("all_to_all", t)
dist.monitored_barrier()
# Two worker threads take these from the queue, each now and then before the other.
tensors = [torch.ones(1 + 1000 * (n % 7)) for n in range(200)]
for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
    work.wait()
for t in tensors:
    said("all_reduce", t)
seconds = [torch.ones(300 + n) for n in range(20)]
works = []
for t in seconds:
    works.append(dist.all_reduce(t, async_op=True))
    works.append(dist.all_reduce(t, group=other, async_op=True))
for work in works:
    work.wait()
for _ in range(2):
    for t in seconds:
        said("all_reduce", t)
if rank == 0:  # The other rank stays away.
    try:
        dist.all_reduce(torch.ones(5), group=other)
    except RuntimeError:
        print("failed all_reduce", flush=True)
print("called", flush=True)
sys.stdin.readline()
