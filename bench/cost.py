"""What stragd costs: in the job per call, in the daemon per second.

Method. Per call: one process calls a stub library's functions, which are empty and begin with
`push` as the real ones do: NCCL's all-reduce (one probe), and gloo's all-reduce followed by the end
of its work (a pair of probes, with an options object to read). Batches of 1,000 calls; the median
batch of 300,000 calls without probes, with an empty BPF program in the same places (`empty_probe`:
the kernel's own part of a hit) and with stragd's, in turn, nine times; medians of these, and their
spread. Daemon: eight processes make 500 calls a second each for 60 s; CPU time and RSS of the
daemon from /proc, after 10 s of warm-up. Direct cost: cost per collective at that rate, which is 5
collectives in a step of 10 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import ROOT, Daemon, daemon, wait_for

CALLS = 300_000
ROUNDS = 9
RANKS = 8
PER_SECOND = 500


def build(directory: Path) -> tuple[Path, Path]:
    """Compile the load and the stub library: (program, library)."""
    program = directory / "load"
    subprocess.run(["cc", "-O2", "-o", program, ROOT / "bench/load.c", "-ldl"], check=True)
    return program, compile_stub("stub.c", directory / "libnccl.so.2")


def compile_stub(source: str, library: Path) -> Path:
    """Compile a stub library of tests/cstubs."""
    stub = ROOT / "tests/cstubs" / source
    subprocess.run(["cc", "-O0", "-shared", "-fPIC", "-o", library, stub], check=True)
    return library


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident set of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load(
    program: Path, library: Path, per_second: float, seconds: float, rank: int, size: int, name: str
) -> subprocess.Popen[bytes]:
    """Start one process of steady calls that says it is a rank of a job."""
    environment = dict(
        os.environ,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29999",
        TORCHELASTIC_RUN_ID=name,
    )
    return subprocess.Popen(
        [program, "rate", library, str(per_second), str(seconds)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def attached(watcher: Daemon, library: Path) -> bool:
    """Whether the library carries probes now."""
    known = watcher.ask("doctor")["libraries"]
    return any((i["path"], i["state"]) == (str(library), "attached") for i in known)


def calls_ns(program: Path, mode: str, library: Path) -> float:
    """Median ns of one call, or of one pair."""
    done = subprocess.run(
        [program, mode, library, str(CALLS)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@contextmanager
def empty_probes(library: Path) -> Iterator[None]:
    """The empty program in every place that stragd would probe."""
    command = [ROOT / "target/release/examples/empty_probe", library]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise RuntimeError("the empty program could not be attached")
        yield
        holder.communicate("\n")


def per_call(watcher: Daemon, program: Path, library: Path, name: str, mode: str) -> float:
    """Added ns of one probed call, or of one pair of probed calls."""
    # Somebody has to map the library while it is timed, or its link would be closed.
    holder = subprocess.Popen([program, "hold", library, "600"])
    figures: dict[str, list[float]] = {"off": [], "empty": [], "on": []}
    try:
        wait_for("the stub to be probed", lambda: attached(watcher, library))
        for _ in range(ROUNDS):
            watcher.control("probes", "off")
            figures["off"].append(calls_ns(program, mode, library))
            with empty_probes(library):
                figures["empty"].append(calls_ns(program, mode, library))
            watcher.control("probes", "on")
            wait_for("the probes to be back", lambda: attached(watcher, library))
            figures["on"].append(calls_ns(program, mode, library))
    finally:
        holder.kill()
        holder.wait()
    without = statistics.median(figures["off"])
    floor = statistics.median(figures["empty"]) - without
    added = statistics.median(figures["on"]) - without
    spread = f"{min(figures['on']) - without:.0f} to {max(figures['on']) - without:.0f}"
    print(f"{name}: {added:.0f} ns added ({spread} in {ROUNDS} rounds);", end=" ")
    print(f"trap {floor:.0f} ns, stragd's program {added - floor:.0f} ns")
    return added


def daemon_share(watcher: Daemon, program: Path, library: Path) -> None:
    """CPU and memory of the daemon under the load of eight ranks."""
    assert watcher.process is not None
    pid = watcher.process.pid
    ranks = [load(program, library, PER_SECOND, 80, r, RANKS, "cost") for r in range(RANKS)]
    time.sleep(10)
    cpu, clock = cpu_seconds(pid), time.monotonic()
    time.sleep(60)
    share = (cpu_seconds(pid) - cpu) / (time.monotonic() - clock)
    for process in ranks:
        process.wait()
    print(f"daemon at {RANKS} ranks × {PER_SECOND} calls/s: {share:.2%} of one core,", end=" ")
    print(f"{rss_bytes(pid) / 1e6:.0f} MB RSS")


def main() -> None:
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--example", "empty_probe"], cwd=ROOT, check=True
    )
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory, daemon() as watcher:
        program, library = build(Path(directory))
        gloo = compile_stub("gloo_stub.c", Path(directory) / "libgloo.so")
        daemon_share(watcher, program, library)
        nccl = per_call(watcher, program, library, "NCCL collective, one probe", "time")
        pair = per_call(watcher, program, gloo, "gloo collective, two probes", "pair")
        share = PER_SECOND * 1e-9
        print(f"direct cost at {PER_SECOND} collectives/s: NCCL {share * nccl:.2%},", end=" ")
        print(f"gloo {share * pair:.2%} of a rank's time")


if __name__ == "__main__":
    main()
