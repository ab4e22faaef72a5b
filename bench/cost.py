"""What stragd costs: in the job per call, in the daemon per second.

Method. Per call: one process calls a stub library's ncclAllReduce (an empty function that begins
with `push`, as NCCL's own do) a million times in batches of 1,000; the median batch with probes
off and on, in turn, in one process's life of the daemon (`stragctl probes off|on`).
Daemon: eight processes make 500 calls a second each for 60 s; CPU time and RSS of the daemon from
/proc, after 10 s of warm-up. Direct cost: probes per collective times cost per call at that rate,
which is 5 collectives in a step of 10 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.harness import ROOT, Daemon, daemon, wait_for

CALLS = 1_000_000
RANKS = 8
PER_SECOND = 500


def build(directory: Path) -> tuple[Path, Path]:
    """Compile the load and the stub library: (program, library)."""
    program, library = directory / "load", directory / "libnccl.so.2"
    subprocess.run(["cc", "-O2", "-o", program, ROOT / "bench/load.c", "-ldl"], check=True)
    subprocess.run(
        ["cc", "-O0", "-shared", "-fPIC", "-o", library, ROOT / "tests/cstubs/stub.c"],
        check=True,
    )
    return program, library


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


def attached(watcher: Daemon) -> bool:
    """Whether some library carries probes now."""
    return any(item["state"] == "attached" for item in watcher.ask("doctor")["libraries"])


def per_call(watcher: Daemon, program: Path, library: Path) -> float:
    """Added ns of one probed call."""
    # Somebody has to map the library while it is timed, or its link would be closed.
    holder = load(program, library, 25, 600, 0, 1, "holder")
    try:
        wait_for("the stub to be probed", lambda: attached(watcher))
        off, on = [], []
        for _ in range(5):
            for switch, figures in (("off", off), ("on", on)):
                watcher.control("probes", switch)
                done = subprocess.run(
                    [program, "time", library, str(CALLS)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                figures.append(float(done.stdout))
    finally:
        holder.kill()
        holder.wait()
    added = statistics.median(on) - statistics.median(off)
    print(f"call without probe {statistics.median(off):.0f} ns,", end=" ")
    print(f"with {statistics.median(on):.0f} ns")
    print(f"added per probe: {added:.0f} ns (median of 5 pairs of {CALLS:,} calls)")
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
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory, daemon() as watcher:
        program, library = build(Path(directory))
        daemon_share(watcher, program, library)
        added = per_call(watcher, program, library)
        share = PER_SECOND * added * 1e-9
        print(
            f"direct cost at {PER_SECOND} collectives/s: NCCL (1 probe each) {share:.2%},", end=" "
        )
        print(f"gloo (4 probes each) {4 * share:.2%} of a rank's time")


if __name__ == "__main__":
    main()
