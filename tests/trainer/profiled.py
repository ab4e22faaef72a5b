"""The DDP trainer under PyTorch's profiler: each rank leaves a Kineto trace.

Takes ddp.py's options; the traces go to the directory in ``TRACES``, with names that tell the rank.
"""

from __future__ import annotations

import os
import sys

import ddp
from torch.profiler import ProfilerActivity, profile


def main() -> int:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        status = ddp.main()
    if status == 0:
        name = f"rank{os.environ['RANK']}.json.gz"
        recorded.export_chrome_trace(os.path.join(os.environ["TRACES"], name))
    return status


if __name__ == "__main__":
    sys.exit(main())
