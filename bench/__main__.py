"""python -m bench [NAME ...]: the measurements of docs/performance.md, each with its method.

Every bench prints what it did and a table; `make bench` runs them all (about an hour and a half,
as root, on an otherwise idle machine).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from bench import (
    callback,
    causes,
    causes_live,
    causes_read,
    cost,
    drain,
    exchange,
    exchange_faults,
    exchange_steptime,
    exchange_store,
    faults,
    levels,
    patterns,
    power,
    ring,
    rivals,
    runs,
    score,
    soak,
    telemetry_gpu,
    telemetry_host,
    why,
)

BENCHES = {
    "callback": callback.main,
    "causes": causes.main,
    "causes_live": causes_live.main,
    "causes_read": causes_read.main,
    "cost": cost.main,
    "drain": drain.main,
    "exchange": exchange.main,
    "exchange_faults": exchange_faults.main,
    "exchange_steptime": exchange_steptime.main,
    "exchange_store": exchange_store.main,
    "faults": faults.main,
    "levels": levels.main,
    "patterns": patterns.main,
    "power": power.main,
    "ring": ring.main,
    "rivals": rivals.main,
    "runs": runs.main,
    "score": score.main,
    "soak": soak.main,
    "telemetry_gpu": telemetry_gpu.main,
    "telemetry_host": telemetry_host.main,
    "why": why.main,
}
FOR_ANYBODY = {
    "causes", "causes_read", "exchange", "exchange_store", "faults", "levels", "power", "rivals",
    "score", "telemetry_gpu", "telemetry_host",
}  # fmt: skip
"""Benches that attach no probes."""


def processor() -> str:
    """The CPU's own name."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="score: another build of stragd/_rscore.abi3.so, given the same windows in turn",
    )
    arguments = parser.parse_args()
    names = arguments.names or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"{unknown[0]}: no such bench; there are {', '.join(BENCHES)}")
    if arguments.against is not None and names != ["score"]:
        parser.error("--against goes with the bench score alone")
    if os.geteuid() != 0 and set(names) - FOR_ANYBODY:
        parser.error("these benches attach eBPF probes and need root")
    print(f"Linux {platform.release()}, {processor()}, {os.cpu_count()} CPUs. CPU only, no GPU.\n")
    for name in names:
        print(f"## {name}\n", flush=True)
        if name == "score":
            score.main(arguments.against)
        else:
            BENCHES[name]()
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
