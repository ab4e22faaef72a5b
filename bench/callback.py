"""What the profiler plugin costs inside the job, per callback and in memory.

Method: a C driver makes NCCL's calls of descriptor version 4 for collectives of 16 channels, in
NCCL's order on one thread, and times each call with the processor's counter between two fences;
what reading the counter itself takes (median) is taken off. Three rounds, the one with the middle
value at 99.9 % is shown. Caches are warm from the calls before, as in a poller that is busy.
Memory is the growth of the driver's proportional set size with one communicator, every slot and
every in-flight object having been used; 256 communicators add 0.29 MB. That no callback makes a
system call is a test: tests/test_ncclring.py.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.harness import ROOT

COLLECTIVES = 100_000
CHANNELS = 16
ROUNDS = 3


def build(directory: Path) -> tuple[Path, Path]:
    """The plugin and the driver."""
    subprocess.run(["make", "-s", "-C", ROOT / "ncclring", f"OUT={directory}"], check=True)
    # The name of the program says which library it plays.
    driver = directory / "callback-nccl"
    source = ROOT / "bench/callback.c"
    subprocess.run(["cc", "-O2", "-rdynamic", "-o", driver, source, "-ldl"], check=True)
    return directory / "libnccl-profiler-stragd.so", driver


def one_round(plugin: Path, driver: Path) -> dict[str, list[float]]:
    """Numbers of one run, by name."""
    done = subprocess.run(
        [driver, plugin, str(COLLECTIVES), str(CHANNELS)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = (line.split(",") for line in done.stdout.splitlines())
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory:
        plugin, driver = build(Path(directory))
        rounds = [one_round(plugin, driver) for _ in range(ROUNDS)]
        middle = sorted(rounds, key=lambda numbers: numbers["all"][2])[ROUNDS // 2]
        print("| callback | calls | median ns | ns at 99.9 % |")
        print("| --- | --- | --- | --- |")
        for name, numbers in middle.items():
            if name != "memory":
                calls, median, worst = numbers
                print(f"| {name} | {calls:,.0f} | {median:.0f} | {worst:.0f} |")
        print(f"\nmemory of the plugin: {middle['memory'][0] / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
