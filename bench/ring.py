"""How fast the slots of a plugin's ring are read on one core.

Method: a ring of the plugin's own size (16,384 slots) is filled and read, again and again, 20
million slots in all; the CPU time of the reading is taken. Reading includes the stamps, the copy,
the communicator's hash, the clock and the checks; the second line has step inference behind it.
Median of five rounds.
"""

from __future__ import annotations

import statistics
import subprocess

from tests.harness import ROOT

ROUNDS = 5


def one_round() -> dict[str, float]:
    """ns of CPU time per slot, by what is behind the reader."""
    done = subprocess.run(
        [ROOT / "target/release/examples/ring_bench"], check=True, capture_output=True, text=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: int(ns) / int(slots) for name, slots, ns in lines}


def main() -> None:
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--example", "ring_bench"],
        cwd=ROOT,
        check=True,
    )
    rounds = [one_round() for _ in range(ROUNDS)]
    print("| behind the reader | ns per slot | million slots/s |")
    print("| --- | --- | --- |")
    for name, label in (("reading", "nothing"), ("pipeline", "step inference")):
        each = statistics.median(figures[name] for figures in rounds)
        print(f"| {label} | {each:.1f} | {1e3 / each:.1f} |")


if __name__ == "__main__":
    main()
