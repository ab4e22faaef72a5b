"""How fast events are drained on one core, against the same through bcc's Python callback.

Method: eight processes call a stub library's ncclAllReduce 100,000 times each (steps of 25 calls)
while nobody reads; then the full ring is drained once and its CPU time taken, on one core. For
stragd that includes joining, period inference and step measures; for bcc the callback only turns
the record into a ctypes structure. Median of five rounds. bcc needs kernel headers to compile at
run time: those of Debian's linux-headers-cloud-amd64 serve, since the program uses no kernel
types.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.cost import build
from tests.harness import ROOT

PROCESSES = 8
CALLS = 100_000
ROUNDS = 5
# Debian's own interpreter sees python3-bpfcc.
BCC_PYTHON = "/usr/bin/python3"


def fill(program: Path, library: Path) -> None:
    """Let the processes make their calls."""
    running = [
        subprocess.Popen([program, "time", library, str(CALLS)], stdout=subprocess.DEVNULL)
        for _ in range(PROCESSES)
    ]
    for process in running:
        process.wait()


def one_round(
    command: list[str | Path],
    program: Path,
    library: Path,
    environment: dict[str, str] | None = None,
) -> list[int]:
    """Start a reader, fill its ring, let it drain; the numbers it prints."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for line in reader.stdout:
            if line == "ready\n":
                break
        fill(program, library)
        reader.stdin.write("\n")
        reader.stdin.flush()
        numbers = [int(word) for word in reader.stdout.read().split()]
        reader.wait()
    return numbers


def kernel_headers(directory: Path) -> Path:
    """One tree of Debian's two-part kernel headers, which is what bcc wants."""
    subprocess.run(
        "apt-get install -y -qq --no-install-recommends python3-bpfcc"
        " linux-headers-cloud-amd64".split(),
        check=True,
        capture_output=True,
    )
    specific = max(Path("/usr/src").glob("linux-headers-*-cloud-amd64"))
    common = specific.with_name(specific.name.replace("-cloud-amd64", "-common"))
    merged = directory / "headers"
    merged.mkdir()
    for part in (common, specific):
        subprocess.run(["cp", "-asf", f"{part}/.", merged], check=False, capture_output=True)
    return merged


def show(name: str, rounds: list[list[int]]) -> None:
    """One line of the table."""
    each = statistics.median(ns / events for events, ns, *_ in rounds)
    events = statistics.median(numbers[0] for numbers in rounds)
    print(f"| {name} | {events:,.0f} | {each:,.1f} | {1e3 / each:.2f} |")


def main() -> None:
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--example", "drain_bench"],
        cwd=ROOT,
        check=True,
    )
    print("| reader | events a round | ns per event | million events/s |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory:
        program, library = build(Path(directory))
        ours: list[str | Path] = [ROOT / "target/release/examples/drain_bench", library]
        rounds = [one_round(ours, program, library) for _ in range(ROUNDS)]
        show("stragd, step inference included", rounds)
        environment = dict(os.environ, BCC_KERNEL_SOURCE=str(kernel_headers(Path(directory))))
        bcc: list[str | Path] = [BCC_PYTHON, ROOT / "bench/bcc_reader.py", library]
        show(
            "bcc, empty Python callback",
            [one_round(bcc, program, library, environment) for _ in range(ROUNDS)],
        )


if __name__ == "__main__":
    main()
