"""What the host does to a rank, injected into real processes beside a healthy twin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd.telemetry.rank_process import THREADS_AFTER
from stragd.telemetry.sockets import LOOK_EVERY
from stragd.telemetry.tasks import parse_stat
from tests.hosts import SPIN, Host, RealCgroups, cpus, more_than_twin, pinned, waits_more_than_twin
from tests.needs import lacking
from tests.processes import NOISE, Processes, big_stack, wait_for

# Of a hundred threads one begins to work when the file argv[1] is there.
IDLE_WITH_A_BUSY_THREAD = """
import os, sys, threading, time
def spin():
    while not os.path.exists(sys.argv[1]): time.sleep(0.05)
    while True: pass
for i in range(100):
    args = (600,)
    threading.Thread(target=spin if i == 70 else time.sleep, args=() if i == 70 else args).start()
time.sleep(600)
"""
# Reads a mapped file again and again.
MAPPED = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
view = mmap.mmap(file, 0, prot=mmap.PROT_READ)
while True:
    for offset in range(0, len(view), 4096):
        view[offset]
"""
# Forks a data loader that reads argv[1] past the page cache, or not at all.
LOADER = """
import mmap, os, random, sys, time
if os.fork() == 0:
    if sys.argv[2] == "idle":
        while True:
            time.sleep(0.01)
    file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(file).st_size // 65536
    buffer = mmap.mmap(-1, 65536)
    while True:
        os.preadv(file, [buffer], 65536 * random.randrange(blocks))
time.sleep(600)
"""
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def cgroups(root: None) -> Iterator[RealCgroups]:
    with RealCgroups() as made:
        yield made


@pytest.fixture(scope="module")
def big_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files on a disk, and nothing of them in the page cache."""
    directory = tmp_path_factory.mktemp("disk")
    paths = [directory / name for name in ("subject", "twin")]
    for path in paths:
        with path.open("wb") as file:
            for _ in range(96):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return paths


# CPU


def test_neighbours_on_the_core_raise_the_run_queue_share(processes: Processes) -> None:
    crowded, quiet = cpus()[:2]
    subject = processes.start({}, pinned(crowded, SPIN, nice=5))
    twin = processes.start({}, pinned(quiet, SPIN, nice=5))
    host = Host(subject, twin)
    for _ in range(6):
        processes.start({}, pinned(crowded, SPIN))
    samples = host.until("the run queue", waits_more_than_twin(subject, twin))
    assert samples[subject].values["involuntary_switches_per_s"] > 0


@pytest.mark.parametrize("later", [False, True], ids=["at first", "later"])
def test_a_busy_thread_that_is_not_the_main_one_is_found(
    processes: Processes, tmp_path: Path, later: bool
) -> None:
    crowded, quiet = cpus()[:2]
    go = tmp_path / "go"
    argv = [sys.executable, "-c", IDLE_WITH_A_BUSY_THREAD, str(go)]
    subject = processes.start({}, pinned(crowded, argv, nice=5))
    twin = processes.start({}, pinned(quiet, argv, nice=5))
    wait_for("all threads", lambda: all(threads(pid) == 101 for pid in (subject, twin)))
    if not later:
        go.touch()
        wait_for("the work", lambda: all(cpu_ticks(pid) > 30 for pid in (subject, twin)))
    host = Host(subject, twin)
    go.touch()
    for _ in range(3 * THREADS_AFTER):  # long enough to be looked for
        host.until(
            "the work", lambda s: all(s[p].values["cpu_share"] > 0.1 for p in (subject, twin))
        )
    for _ in range(6):
        processes.start({}, pinned(crowded, SPIN))
    host.until("the run queue", waits_more_than_twin(subject, twin))


def cpu_ticks(pid: int) -> int:
    fields = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    assert fields is not None
    return fields.cpu_ticks


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("above", [False, True], ids=["own", "of the pod above"])
def test_a_cpu_quota_raises_the_throttled_share(
    processes: Processes, cgroups: RealCgroups, above: bool
) -> None:
    subject, twin = (processes.start({}, SPIN) for _ in range(2))
    quota = {"cpu__max": "20000 100000", "cpu__cfs_quota_us": "20000"}
    limited = cgroups.make("cpu", **quota)
    free = cgroups.make("cpu")
    cgroups.move(subject, cgroups.make("cpu", parent=limited) if above else limited)
    cgroups.move(twin, free)
    host = Host(subject, twin)
    samples = host.until("throttling", more_than_twin("throttled_share", subject, twin, least=0.3))
    assert samples[subject].values["throttled_periods_share"] > 0.3
    assert samples[twin].values["throttled_share"] == 0
    assert samples[twin].values["throttled_periods_share"] == 0


# Memory and disk


def test_a_memory_limit_shows_as_major_faults_and_pressure(
    processes: Processes, cgroups: RealCgroups, big_files: list[Path]
) -> None:
    limits = {"memory__max": str(40 << 20), "memory__limit_in_bytes": str(40 << 20)}
    inside = [limited := cgroups.make("memory", **limits)]
    if not limited.is_relative_to(cgroups.hierarchy("")):
        inside.append(cgroups.make(""))  # v1: pressure is counted by the unified hierarchy
    subject, twin = (
        processes.start({}, [*enter, sys.executable, "-c", MAPPED, str(path)])
        for enter, path in zip((entering(inside), []), big_files, strict=True)
    )
    wait_for("the move", lambda: str(subject) in (limited / "cgroup.procs").read_text().split())
    host = Host(subject, twin)
    # What the twin has read stays in the page cache; the subject must read it again and again.
    host.until("major faults", more_than_twin("major_faults_per_s", subject, twin, least=10))
    samples = host.until(
        "the limit",
        lambda s: (
            s[subject].values["cgroup_memory_max_delta"] > 0
            and s[subject].values.get("pressure_memory_share", 0) > 0
            and s[subject].values["read_bytes_per_s"] > 0
        ),
    )
    assert not samples[twin].values.get("cgroup_memory_max_delta"), "it has no limit"
    assert samples[subject].values["cgroup_oom_delta"] == 0


def entering(paths: list[Path]) -> list[str]:
    """A command's beginning that puts it into cgroups before it allocates anything."""
    moves = "; ".join(f"echo $$ > {path}/cgroup.procs" for path in paths)
    return ["/bin/sh", "-c", f'{moves}; exec "$@"', "sh"]


@pytest.fixture
def delay_accounting(root: None) -> Iterator[None]:
    switch = Path("/proc/sys/kernel/task_delayacct")
    if not switch.exists():
        lacking("this kernel has no delay accounting")
    before = switch.read_text()
    switch.write_text("1")
    yield
    switch.write_text(before)


def test_a_data_loader_that_waits_for_its_disk(
    processes: Processes, delay_accounting: None, big_files: list[Path]
) -> None:
    argv = [sys.executable, "-c", LOADER, str(big_files[0])]
    subject, twin = (processes.start({}, [*argv, mode]) for mode in ("read", "idle"))
    wait_for("the loaders", lambda: all(children(pid) for pid in (subject, twin)))
    host = Host(subject, twin)
    try:
        samples = host.until(
            "disk waits", more_than_twin("worker_disk_wait_share", subject, twin, least=0.2)
        )
        values = samples[subject].values
        assert values["disk_wait_share"] >= values["worker_disk_wait_share"]
        assert values["worker_count"] == 1
        assert values["worker_cpu_share"] > 0
        assert values["read_bytes_per_s"] > samples[twin].values["read_bytes_per_s"]
        assert not samples[subject].notes
    finally:
        for pid in (subject, twin):
            for child in children(pid):
                os.kill(child, signal.SIGKILL)


def children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in words]


def test_without_delay_accounting_disk_waits_are_sampled(
    processes: Processes, big_files: list[Path]
) -> None:
    switch = Path("/proc/sys/kernel/task_delayacct")
    if switch.exists() and switch.read_text().strip() == "1":
        pytest.skip("delay accounting is on")
    argv = [sys.executable, "-c", LOADER, str(big_files[0])]
    subject, twin = (processes.start({}, [*argv, mode]) for mode in ("read", "idle"))
    wait_for("the loaders", lambda: all(children(pid) for pid in (subject, twin)))
    host = Host(subject, twin)
    assert "worker_disk_wait_share" not in host.read()[subject].values, "nobody has looked yet"

    def sampled() -> bool:
        for _ in range(20):
            host.reader.glance()
            time.sleep(0.01)
        samples = host.read()
        shares = [samples[pid].values["worker_disk_wait_share"] for pid in (subject, twin)]
        assert samples[subject].values["disk_wait_share"] >= shares[0]
        assert any("task_delayacct" in note for note in samples[subject].notes)
        return shares[0] >= max(0.2, 2 * shares[1])

    try:
        wait_for("disk waits", sampled)
    finally:
        for pid in (subject, twin):
            for child in children(pid):
                os.kill(child, signal.SIGKILL)


# Stopped


def test_a_stopped_process(processes: Processes) -> None:
    subject, twin = (processes.start({}, SPIN) for _ in range(2))
    host = Host(subject, twin)
    shares = [host.read()[subject].values["stopped_share"]]
    os.kill(subject, signal.SIGSTOP)
    wait_for("the stop", lambda: state(subject) == "T")
    shares += [host.read()[subject].values["stopped_share"] for _ in range(2)]
    os.kill(subject, signal.SIGCONT)
    wait_for("the end of it", lambda: state(subject) != "T")
    samples = host.read()
    shares.append(samples[subject].values["stopped_share"])
    assert shares == [0, 0.5, 1, 0.5]
    assert samples[twin].values["stopped_share"] == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_cgroup(processes: Processes, cgroups: RealCgroups) -> None:
    subject, twin = (processes.start({}, SPIN) for _ in range(2))
    path = cgroups.make("")
    cgroups.move(subject, path)
    cgroups.move(twin, cgroups.make(""))
    host = Host(subject, twin)
    (path / "cgroup.freeze").write_text("1")
    try:
        samples = host.until("the freeze", lambda s: s[subject].values["stopped_share"] == 1)
        assert "its cgroup is frozen" in samples[subject].notes
        assert samples[twin].values["stopped_share"] == 0
    finally:
        (path / "cgroup.freeze").write_text("0")


# Network


@pytest.fixture
def lossy(root: None) -> Iterator[list[list[str]]]:
    """Two network namespaces, as commands that enter them; the first loses packets."""
    names = [f"stragd-test-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    made: list[str] = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], check=False).returncode:
                lacking("network namespaces cannot be made")
            made.append(name)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        inside = ["ip", "netns", "exec"]
        tc = [*inside, names[0], "tc", "qdisc", "add", "dev", "lo", "root"]
        # A kernel without netem drops as well in a bucket that is too small for the burst.
        for discipline in ("netem loss 5%", "tbf rate 50mbit burst 70k limit 140k"):
            done = subprocess.run([*tc, *discipline.split()], capture_output=True, check=False)
            if done.returncode == 0:
                break
        else:
            lacking("neither netem nor tbf in this kernel")
        yield [[*inside, name] for name in names]
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=True)


TALK = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def take():
    peer, _ = server.accept()
    while peer.recv(1 << 20): pass
threading.Thread(target=take, daemon=True).start()
client = socket.create_connection(server.getsockname())
while True: client.sendall(bytes(1 << 20))
"""


def test_lost_packets_are_sent_again(processes: Processes, lossy: list[list[str]]) -> None:
    talk = [sys.executable, "-c", TALK]
    subject, twin = (processes.start(dict(os.environ), [*enter, *talk]) for enter in lossy)
    wait_for("the talkers", lambda: all(threads(pid) == 2 for pid in (subject, twin)))
    host = Host(subject, twin)
    host.until("retransmissions", more_than_twin("retransmits_ppm", subject, twin, least=100))


# Placement


def test_cpus_of_another_numa_node(processes: Processes, tmp_path: Path) -> None:
    near, far = cpus()[:2]
    root = tmp_path / "root"
    root.mkdir()
    (root / "proc").symlink_to("/proc")
    for node, cpu in enumerate((near, far)):
        base = root / f"sys/devices/system/node/node{node}"
        base.mkdir(parents=True)
        (base / "cpulist").write_text(f"{cpu}\n")
    local, remote = (processes.start({}, pinned(cpu, SPIN)) for cpu in (near, far))
    moving = processes.start({}, pinned(near, SPIN))
    os.sched_setaffinity(moving, {near, far})
    host = Host(local, remote, moving, root=root)
    host.numa_nodes = {local: 0, remote: 0, moving: 0}
    samples = host.until(
        "a CPU", lambda s: all("numa_remote_share" in x.values for x in s.values())
    )
    assert samples[local].values["numa_remote_share"] == 0
    assert samples[remote].values["numa_remote_share"] == 1
    assert samples[moving].values["numa_remote_share"] in (0, 1)  # one thread, on one CPU
    assert any("its GPU is on node 0" in note for note in samples[remote].notes)
    assert not any("GPU" in note for note in samples[local].notes)
    host.numa_nodes = None
    assert "numa_remote_share" not in host.read()[remote].values


# Processes come and go


def test_an_ended_process_and_a_pid_of_another(processes: Processes) -> None:
    pid, other = (processes.start({}, SLEEP) for _ in range(2))
    host = Host(pid, other)
    host.pids[other] += 1  # as if the pid were used again since
    processes.end(pid)
    samples = host.read()
    assert samples[pid].silent == "the process has ended"
    assert "another's" in samples[other].silent
    assert not samples[pid].values
    assert not samples[other].values


def test_a_zombie_has_ended(processes: Processes) -> None:
    argv = [sys.executable, "-c", "import os, time; os.fork() or os._exit(0); time.sleep(600)"]
    parent = processes.start({}, argv)
    (zombie,) = wait_for("the zombie", lambda: children(parent))
    wait_for("its end", lambda: state(zombie) == "Z")
    assert Host(zombie).read()[zombie].silent == "the process has ended"


def test_crowds_of_threads_and_children_that_come_and_go(processes: Processes) -> None:
    script = """
import os, threading, time
def brief():
    time.sleep(0.01)
while True:
    for _ in range(40): threading.Thread(target=brief).start()
    for _ in range(30):
        if os.fork() == 0: time.sleep(0.005); os._exit(0)
    try:
        while True: os.waitpid(-1, 0)
    except ChildProcessError: pass
"""
    pid = processes.start({}, [sys.executable, "-c", script])
    host = Host(pid)
    for _ in range(100):
        host.read()
        time.sleep(0.005)
    host.until("its CPU time", lambda s: s[pid].values["cpu_share"] > 0)


def test_many_threads_and_children_are_bounded_and_said_to_be(processes: Processes) -> None:
    script = """
import os, threading, time
for _ in range(300): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range(24):
    if os.fork() == 0:
        time.sleep(600)
time.sleep(600)
"""
    pid = processes.start({}, [sys.executable, "-c", script], start_new_session=True)
    wait_for("all", lambda: len(children(pid)) == 24)
    try:
        host = Host(pid)
        sample = host.read()[pid]
        assert sample.values["worker_count"] == 16
        assert any("24 children" in note for note in sample.notes)
        assert any("301 threads" in note for note in sample.notes)
        for _ in range(LOOK_EVERY):  # by then its sockets have been looked for
            host.read()
        held = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            host.read()
        assert len(os.listdir("/proc/self/fd")) == held
        host.pids = {}
        host.read()
        assert len(os.listdir("/proc/self/fd")) < held - 16
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_children_that_are_ranks_are_no_workers(processes: Processes) -> None:
    argv = [sys.executable, "-c", "import os, time; os.fork(); os.fork(); time.sleep(600)"]
    pid = processes.start({}, argv, start_new_session=True)
    wait_for("the children", lambda: len(children(pid)) == 2)
    first, _ = children(pid)
    try:
        host = Host(pid, first)
        assert host.read()[pid].values["worker_count"] == 2  # the other child, and a grandchild
    finally:
        os.killpg(pid, signal.SIGKILL)


# Environment


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CUDA_INJECTION64_PATH": "/opt/lib.so"}, ["CUDA_INJECTION64_PATH is set"]),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ["CUDA_LAUNCH_BLOCKING is set"]),
        ({"CUDA_LAUNCH_BLOCKING": "0", "CUDA_PROFILE": "", "HSA_TOOLS_LIB": ""}, []),
        (
            {"HSA_TOOLS_LIB": "librocprofiler64.so", "AMD_SERIALIZE_KERNEL": "3"},
            ["HSA_TOOLS_LIB is set", "AMD_SERIALIZE_KERNEL is set"],
        ),
        ({"X": "a\nCUDA_PROFILE=1\n'\"", "Y": "CUDA_PROFILE=1"}, []),
        # Two megabytes, as much as exec takes.
        (
            {f"BIG{i}": "\n'x\"=" * 24_000 for i in range(14)} | {"CUDA_PROFILE": "1"},
            ["CUDA_PROFILE is set"],
        ),
    ],
)
def test_profiling_left_on(
    processes: Processes, variables: dict[str, str], said: list[str]
) -> None:
    pid = processes.start(variables, SLEEP)
    notes = Host(pid).read()[pid].notes
    assert [note for note in notes if note.endswith("is set")] == said
    assert not any("/opt" in note for note in notes)  # values are the job's business


def test_a_profiler_behind_two_megabytes_of_environment(processes: Processes) -> None:
    """Trap 16: and what only looks like a variable, in the middle of another, is none."""
    fake = {"A": "\nCUDA_PROFILE=1\nCUDA_LAUNCH_BLOCKING=1\n", "Z": "'CUDA_PROFILE=1'"}
    variables = {**NOISE, **fake, "HSA_TOOLS_LIB": "/opt/tool.so"}
    pid = processes.start(variables, SLEEP, preexec_fn=big_stack)
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert len(file.read()) > 2_000_000
    notes = Host(pid).read()[pid].notes
    assert [note for note in notes if note.endswith("is set")] == ["HSA_TOOLS_LIB is set"]
