"""Identity of helpers, short lives, hostile jobs and containers, on real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.discovery import Identifier, jobkey, process
from stragd.discovery.container import parse as parse_cgroup
from stragd.discovery.container import read_container
from stragd.discovery.environ import parse as parse_environ
from tests.processes import (
    NOISE,
    SLEEP,
    Processes,
    ask,
    big_stack,
    executed,
    fact,
    known,
    start_time,
    torchrun,
    wait_for,
)


def test_only_the_own_network_namespace_where_that_is_wanted(
    processes: Processes, root: None
) -> None:
    pid = processes.start(torchrun(0, 2))
    inside, anywhere = Identifier({"own_network_only": True}), Identifier()
    assert ask(inside, pid) is not None
    own = os.readlink("/proc/self/ns/net")
    other = processes.start(torchrun(1, 2), ["unshare", "--net", *SLEEP])
    wait_for("its namespace", lambda: os.readlink(f"/proc/{other}/ns/net") != own)
    wait_for("its identity", lambda: ask(anywhere, other))
    assert ask(inside, other) is None


# Helper processes

FORK = """
import os, time
child = os.fork()
print(child, flush=True) if child else None
time.sleep(600)
"""
SPAWN = """
import multiprocessing, os, time
if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    print(child.pid, flush=True)
    child.join()
"""
EXEC = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("script", [FORK, SPAWN, EXEC], ids=["fork", "spawn", "exec"])
@pytest.mark.parametrize("child_first", [False, True])
def test_helper_of_a_rank_is_no_rank(
    identifier: Identifier, script: str, child_first: bool
) -> None:
    env = torchrun(2, 4, PATH=os.environ["PATH"])
    rank = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert rank.stdout is not None
        helper = int(rank.stdout.readline())
        wait_for("exec", lambda: executed(helper))
        if child_first and script != EXEC:  # an exec'ed child could be the rank of a wrapper
            assert ask(identifier, helper) is None
        assert known(identifier, rank.pid).rank == 2
        assert ask(identifier, helper) is None
        assert identifier.notes() == []
        # It is the one that works after all: then the other only started it.
        assert known(identifier, helper, fact(4, 2)).rank == 2
        assert identifier.moved() == [(rank.pid, start_time(rank.pid))]
        assert ask(identifier, rank.pid) is None
        assert ask(identifier, rank.pid, fact(4, 2)) is None
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait(60)
        if rank.stdout is not None:
            rank.stdout.close()


# What a process goes through


def test_pid_reuse_and_end(processes: Processes, identifier: Identifier) -> None:
    pid = processes.start(torchrun(0, 4))
    began = start_time(pid)
    assert identifier.identify(pid, began + 1, []) is None
    assert identifier.identify(pid, began, []) is not None
    processes.end(pid)
    assert identifier.identify(pid, began, []) is None
    identifier.forget(pid, began)
    identifier.forget(pid, began)


def test_rank_returns_after_its_end(processes: Processes, identifier: Identifier) -> None:
    first = processes.start(torchrun(0, 4, 2))
    key = known(identifier, first).job_key
    processes.end(first)
    assert known(identifier, processes.start(torchrun(0, 4, 2))).job_key == key


def test_exec_brings_a_new_environment(processes: Processes, identifier: Identifier) -> None:
    script = "import os, sys; sys.stdin.readline(); os.execvpe(sys.argv[1], sys.argv[1:], {'RANK': "
    script += "'1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1'})"
    child = subprocess.Popen([sys.executable, "-c", script, *SLEEP], env={}, stdin=subprocess.PIPE)
    try:
        assert ask(identifier, child.pid) is None
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        identity = wait_for("the rank after exec", lambda: ask(identifier, child.pid))
        assert (identity.rank, identity.world_size) == (1, 2)
    finally:
        child.kill()
        child.wait(60)


# Hostile jobs


def test_environment_of_two_megabytes(processes: Processes, identifier: Identifier) -> None:
    env = {"RANK_": "7", **NOISE, "A": "\nRANK=9\nWORLD_SIZE=10\n", **torchrun(1, 4), "Z": "\n"}
    pid = processes.start(env, preexec_fn=big_stack)
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert len(file.read()) > 2_000_000
    identity = known(identifier, pid)
    assert (identity.rank, identity.world_size) == (1, 4)


RAW_EXECVE = """
import ctypes, sys
entries = [bytes.fromhex(e) for e in sys.argv[1].split(",")]
words = lambda l: (ctypes.c_char_p * (len(l) + 1))(*l, None)
argv = [sys.executable.encode(), b"-c", b"import time; time.sleep(600)"]
ctypes.CDLL(None, use_errno=True).execve(argv[0], words(argv), words(entries))
sys.exit(ctypes.get_errno())
"""


def test_environment_without_equals_signs_and_with_binary(
    processes: Processes, identifier: Identifier
) -> None:
    good = [f"{n}={v}".encode() for n, v in torchrun(2, 4, 2).items()]
    bad = [b"", b"=", b"==", b"RANK", b"WORLD_SIZE", b"\xff\xfe=\x01\x02", b"RANK\n=5", b"=RANK=6"]
    late = [b"RANK=3", b"WORLD_SIZE=100000000000"]  # the first counts, as for getenv
    entries = ",".join(entry.hex() for entry in [*bad, *good, *late])
    pid = processes.start({}, [sys.executable, "-c", RAW_EXECVE, entries])
    identity = wait_for("the raw environment", lambda: ask(identifier, pid))
    assert (identity.rank, identity.world_size) == (2, 4)


def test_parsed_environment_is_bounded() -> None:
    raw = b"RANK=" + b"1" * 5000 + b"\0" + b"WORLD_SIZE=4\0" + b"A" * 100000 + b"\0LOCAL_RANK=1"
    assert parse_environ(raw, {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) == {
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
    }


def test_texts_are_printable_and_bounded(processes: Processes, identifier: Identifier) -> None:
    evil = '\x1b[2J\nrank{job="a"} 1\t' + "\u202e" + "n" * 900
    identity = known(identifier, processes.start(torchrun(0, 4, 2, TORCHELASTIC_RUN_ID=evil)))
    texts = [identity.job_name, identity.launcher, identity.host, *identity.labels.values()]
    assert all(text.isprintable() and len(text) <= 128 for text in texts)
    assert len(identity.job_name) <= 64


def test_more_processes_than_allowed(processes: Processes) -> None:
    identifier = Identifier({"max_processes": 2})
    pids = [processes.start(torchrun(r, 4)) for r in range(3)]
    known(identifier, pids[0])
    known(identifier, pids[1])
    assert ask(identifier, pids[2]) is None
    assert "raise max_processes" in identifier.notes()[0]
    processes.end(pids[0])  # nobody said forget: the ended one is dropped
    assert known(identifier, pids[2]).rank == 2


def test_notes_are_bounded(processes: Processes, identifier: Identifier) -> None:
    pid = processes.start(torchrun(1, 4))
    for extra in range(500):
        known(identifier, pid, fact(5 + extra, 0))
        known(identifier, pid, fact(5 + extra, 0))
    assert len(identifier.notes()) <= 65


@pytest.fixture
def hanging_file(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A FUSE file whose server never answers, as a job can put under its memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=100444,user_id=0,group_id=0".encode()
    file = tmp_path / "environ"
    file.touch()
    target = bytes(file)
    done = libc.mount(b"silent", target, b"fuse", 0, options)
    assert done == 0, os.strerror(ctypes.get_errno())
    files = [server]

    def end() -> None:
        if files:
            os.close(files.pop())  # the kernel aborts what waits
            libc.umount2(target, 2)

    yield f"{tmp_path}/environ", end
    end()


def test_memory_that_never_answers(hanging_file: tuple[str, Callable[[], None]]) -> None:
    path, end = hanging_file
    reader = process.MemoryReader(seconds=0.2)
    status = Path(path).with_name("status")
    status.write_text("Name:\ttrain\nUid:\t4711\t0\t0\t0\n")
    for hung in range(1, process.MAX_ABANDONED_OF_USER + 1):
        assert reader.read(path, 100) is None
        assert reader.abandoned == reader.late == hung
        assert reader.read("/proc/self/environ", 1 << 20)  # the others are served as before
    for _ in range(1000):
        assert reader.read(path, 100) is None  # enough threads of this user hang
    assert reader.abandoned == process.MAX_ABANDONED_OF_USER
    assert reader.read("/proc/self/environ", 1 << 20), "another user is not affected"
    for user in range(5000, 5000 + process.MAX_ABANDONED):
        status.write_text(f"Uid:\t{user}\t0\t0\t0\n")
        reader.read(path, 100)
    assert reader.abandoned == process.MAX_ABANDONED
    assert reader.read("/proc/self/environ", 100) is None  # so many threads are enough
    end()
    wait_for("the threads to come back", lambda: reader.abandoned == 0)
    assert reader.read("/proc/self/cmdline", 1 << 20)


def test_configuration_is_checked() -> None:
    with pytest.raises(ValueError, match="max_processes"):
        Identifier({"max_processes": 0})
    with pytest.raises(ValueError, match="job_id_variables"):
        Identifier({"job_id_variables": ["A=B"]})


def test_site_can_name_its_job_id(processes: Processes) -> None:
    identifier = Identifier({"job_id_variables": ["SITE_JOB"]})
    pids = [processes.start(torchrun(0, 4, 2, SITE_JOB=job)) for job in ("a", "b")]
    assert known(identifier, pids[0]).job_key != known(identifier, pids[1]).job_key


# Names and containers


@pytest.mark.parametrize(
    ("cmdline", "name"),
    [
        (["/usr/bin/python3", "-u", "/home/a/train.py", "--lr", "1"], "train.py"),
        (["python", "-X", "dev", "-m", "megatron.train"], "megatron.train"),
        (["python3.11", "-c", "pass"], ""),
        (["ray::TrainWorker.run", ""], "ray::TrainWorker.run"),
        (["/opt/bin/trainer", "x.py"], "trainer"),
        ([], ""),
    ],
)
def test_script_name(cmdline: list[str], name: str) -> None:
    assert jobkey.script_name(cmdline) == name


def test_job_name(tmp_path: Any, processes: Processes, identifier: Identifier) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time; time.sleep(600)")
    pid = processes.start(torchrun(0, 4, 2), [sys.executable, str(script)])
    assert known(identifier, pid).job_name == "train.py@29500"
    pid = processes.start(torchrun(0, 4, 2, TORCHELASTIC_RUN_ID="run-7"))
    assert known(identifier, pid).job_name == "run-7"


ID = "0123456789abcdef" * 4
POD = "11111111-2222-3333-4444-555555555555"
UNDER = POD.replace("-", "_")
KUBE = "/kubepods.slice/kubepods"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ""),
        (f"12:cpuset:/docker/{ID}\n11:memory:/docker/{ID}\n0::/", ""),
        (f"0::{KUBE}-besteffort.slice/{KUBE[1:]}-pod{UNDER}.slice/cri-containerd-{ID}.scope", POD),
        (f"0::{KUBE}-pod{UNDER}.slice/crio-{ID}.scope/container", POD),
        (f"5:devices:/kubepods/burstable/pod{POD}/{ID}", POD),
        (f"0::/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}", POD),
        (f"0::/machine.slice/libpod-{ID}.scope", ""),
        (f"0::/user.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", ""),
    ],
)
def test_container(cgroup: str, pod: str) -> None:
    found = parse_cgroup(cgroup)
    assert (found.container_id, found.pod_uid) == (ID, pod)


@pytest.mark.parametrize("cgroup", ["", "0::/", ":::::", f"0::/x{ID}", "0::/" + "a/" * 50000])
def test_no_container(cgroup: str) -> None:
    assert parse_cgroup(cgroup).container_id == ""


def _cgroup_root() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    raise AssertionError("no cgroup2 is mounted")


def test_process_in_a_real_cgroup(processes: Processes, identifier: Identifier) -> None:
    path = _cgroup_root() / f"kubepods-pod{UNDER}.slice" / f"cri-containerd-{ID}.scope"
    path.mkdir(parents=True)
    pid = processes.start(torchrun(0, 4))
    try:
        (path / "cgroup.procs").write_text(str(pid))
        assert read_container("/proc", pid).container_id == ID
        identity = known(identifier, pid)
        assert (identity.container, identity.labels["pod_uid"]) == (ID, POD)
    finally:
        processes.end(pid)
        wait_for("the cgroup to empty", lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()
        path.parent.rmdir()
