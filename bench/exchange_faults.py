"""What breaks between nodes, again and again: is anything said twice, wrongly or not at all?

Method: ``tests/exchange_faults.py``: four nodes of two ranks, each with its own connection to a
real nats-server (JetStream on a tmpfs of 4 MiB), the daemon's own code for transport, election,
alignment, scoring and findings, simulated windows of half a second in real time; rank 5 becomes
30 % slower. Each fault begins at a window drawn from two before to six after that and lasts five
windows. A run is good when every living node names rank 5 and nobody else, once, under the id it
had before the fault, and no scorer tells a node of a window twice. Needs root (mount). The seed is
printed; STRAGD_SEED sets it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from tests.exchange_faults import FAULTS, play, small_server


def main(repeats: int = 20, only: str = "") -> None:
    """All faults, or those whose name has ``only`` in it."""
    seed = int(os.environ.get("STRAGD_SEED", time.time_ns() % 1_000_000))
    print(f"{repeats} runs of each, seed {seed} (STRAGD_SEED)\n")
    print(
        "| fault | good runs | windows from the slowdown to its name on all nodes, median and most "
        "| longest time without a verdict, median and most |\n|---|---|---|---|"
    )
    for number, fault in enumerate(FAULTS):
        if only not in fault:
            continue
        outcomes = []
        for repeat in range(repeats):
            own = seed + 1000 * number + repeat
            with small_server() as place:
                outcome = play(place, f"run{repeat}", fault, own)
            outcomes.append(outcome)
            if not outcome.good():
                print(f"seed {own}, {fault}: {outcome}", file=sys.stderr, flush=True)
        late = sorted(outcome.late for outcome in outcomes)
        silent = sorted(outcome.silent for outcome in outcomes)
        print(
            f"| {fault} | {sum(outcome.good() for outcome in outcomes)} of {repeats} "
            f"| {statistics.median(late):.0f}, {late[-1]} "
            f"| {statistics.median(silent):.1f} s, {silent[-1]:.1f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, *sys.argv[2:3])
