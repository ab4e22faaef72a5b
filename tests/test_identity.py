"""Identity on real processes: the environments of real launchers, and of hostile jobs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.discovery import Identifier, Identity, jobkey, launchers, process
from stragd.discovery.container import parse as parse_cgroup
from stragd.discovery.container import read_container
from stragd.discovery.environ import parse as parse_environ

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts one child per environment of argv[1], prints their pids, ends them with its stdin.
LAUNCHER = """
import json, subprocess, sys
children = [subprocess.Popen(sys.argv[2:], env=e) for e in json.loads(sys.argv[1])]
print(json.dumps([c.pid for c in children]), flush=True)
sys.stdin.read()
for c in children: c.kill()
"""


class Processes:
    """Starts real processes and ends them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, env: dict[str, str], argv: list[str] | None = None, **more: Any) -> int:
        """Start a process with exactly this environment; it has been exec'ed on return."""
        child = subprocess.Popen(argv or SLEEP, env=env, **more)
        self._started.append(child)
        # Popen returns within exec, a moment before the new environment is in place.
        wait_for("exec", lambda: executed(child.pid))
        return child.pid

    def launch(self, envs: list[dict[str, str]], argv: list[str] | None = None) -> list[int]:
        """Start one process per environment under a launcher of their own."""
        child = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, json.dumps(envs), *(argv or SLEEP)],
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(child)
        assert child.stdout is not None
        pids: list[int] = json.loads(child.stdout.readline())
        wait_for("exec", lambda: all(executed(pid) for pid in pids))
        return pids

    def end(self, pid: int) -> None:
        """Kill one and wait for its end."""
        child = next(c for c in self._started if c.pid == pid)
        child.kill()
        child.wait(60)

    def close(self) -> None:
        for child in self._started:
            if child.stdin is not None:
                child.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(30)
            child.kill()
            child.wait(60)


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()


@pytest.fixture
def identifier() -> Identifier:
    return Identifier()


def executed(pid: int) -> bool:
    stat = process.read_stat("/proc", pid)
    return stat is not None and stat.env_start != 0


def start_time(pid: int) -> int:
    stat = process.read_stat("/proc", pid)
    assert stat is not None
    return stat.start_time


def ask(identifier: Identifier, pid: int, *facts: Any) -> Identity | None:
    return identifier.identify(pid, start_time(pid), list(facts))


def known(identifier: Identifier, pid: int, *facts: Any) -> Identity:
    identity = ask(identifier, pid, *facts)
    assert identity is not None, identifier.notes()
    return identity


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (value := check()):
        assert time.monotonic() < deadline, f"waited 60 s in vain for {what}"
        time.sleep(0.02)
    return value


def fact(nranks: int, rank: int = -1, number: int = 0) -> dict[str, int]:
    return {"id": number, "rank": rank, "nranks": nranks, "collectives": 1}


def torchrun(rank: int, world: int, local_world: int | None = None, **more: str) -> dict[str, str]:
    here = world if local_world is None else local_world
    env = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % here,
        "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": rank // here,
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 3,
    }
    return {name: str(value) for name, value in env.items()} | more


def slurm(task: int, tasks: int, **more: str) -> dict[str, str]:
    env = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_NTASKS": str(tasks),
        "SLURM_LOCALID": str(task),
        "SLURM_JOB_NAME": "llama",
    }
    return env | more


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


# torchrun


def test_torchrun(processes: Processes, identifier: Identifier) -> None:
    identities = [known(identifier, processes.start(torchrun(r, 4))) for r in range(4)]
    assert [i.rank for i in identities] == [i.local_rank for i in identities] == [0, 1, 2, 3]
    assert {i.world_size for i in identities} == {4}
    assert len({i.job_key for i in identities}) == 1
    assert 0 < identities[0].job_key < 1 << 64
    assert identities[0].launcher == "torchrun"
    assert identities[0].class_name.startswith(("cpu/", "nvidia/", "amd/"))
    assert identifier.notes() == []


def test_run_id_none_in_two_jobs_on_one_node(processes: Processes, identifier: Identifier) -> None:
    one = known(identifier, processes.start(torchrun(0, 8, 4)))
    two = known(identifier, processes.start(torchrun(0, 8, 4, MASTER_PORT="29501")))
    assert one.job_key != two.job_key
    assert identifier.notes() == []


def test_two_local_jobs_with_everything_equal(processes: Processes, identifier: Identifier) -> None:
    jobs = [processes.launch([torchrun(r, 2) for r in range(2)]) for _ in range(2)]
    keys = [{known(identifier, pid).job_key for pid in pids} for pids in jobs]
    assert len(keys[0]) == len(keys[1]) == 1
    assert keys[0] != keys[1]
    assert identifier.notes() == []


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (1, 2, 0, 3)])
def test_merged_jobs_of_several_nodes_are_split(
    processes: Processes, identifier: Identifier, order: tuple[int, ...]
) -> None:
    pids = [p for _ in range(2) for p in processes.launch([torchrun(r, 4, 2) for r in range(2)])]
    for index in order:
        known(identifier, pids[index])
    identifier.moved()
    keys = [known(identifier, pid).job_key for pid in pids]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert any("merged under key" in note for note in identifier.notes())


def test_first_job_keeps_its_key_and_the_moved_one_is_named(
    processes: Processes, identifier: Identifier
) -> None:
    first = processes.launch([torchrun(r, 4, 2) for r in range(2)])
    second = processes.launch([torchrun(r, 4, 2) for r in range(2)])
    key = known(identifier, first[1]).job_key
    assert known(identifier, second[0]).job_key == key
    assert known(identifier, first[0]).job_key == key
    assert identifier.moved() == [(second[0], start_time(second[0]))]
    assert known(identifier, second[0]).job_key != key


def test_one_rank_twice_under_one_launcher(processes: Processes, identifier: Identifier) -> None:
    pids = processes.launch([torchrun(1, 4, 2), torchrun(1, 4, 2)])
    known(identifier, pids[0])
    assert ask(identifier, pids[1]) is None
    assert "is claimed by pids" in identifier.notes()[0]


def test_other_users_job_is_not_merged(processes: Processes, identifier: Identifier) -> None:
    mine = known(identifier, processes.start(torchrun(0, 4, 2)))
    theirs = known(identifier, processes.start(torchrun(1, 4, 2), user=65534))
    assert mine.job_key != theirs.job_key
    assert "of different users" in identifier.notes()[0]


def test_restart_is_a_new_job_with_the_same_parent(
    processes: Processes, identifier: Identifier
) -> None:
    keys = []
    for count in ("0", "1"):
        identity = known(
            identifier, processes.start(torchrun(0, 4, 2, TORCHELASTIC_RESTART_COUNT=count))
        )
        assert identity.restart_count == int(count)
        keys.append((identity.job_key, identity.labels["parent_key"]))
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_key_is_equal_on_every_node_unless_the_address_is_loopback() -> None:
    nodes = [jobkey.Surroundings(f"boot-{n}", f"net:[{n}]", None) for n in range(2)]

    def keys(environments: list[dict[str, str]]) -> set[int]:
        found = set()
        for env, node in zip(environments, nodes, strict=True):
            placement = launchers.resolve(env, []).placement
            assert placement is not None
            found.add(jobkey.job_key(env, placement, node).value)
        return found

    assert len(keys([torchrun(0, 4, 2), torchrun(2, 4, 2, MASTER_ADDR="NODE-A.")])) == 1
    assert len(keys([torchrun(r, 4, 2, MASTER_ADDR="127.0.0.1") for r in (0, 2)])) == 2


# Slurm and MPI


def test_slurm_task(processes: Processes, identifier: Identifier) -> None:
    pids = [processes.start(slurm(task, 2)) for task in range(2)]
    assert ask(identifier, pids[0]) is None  # a task may be a launcher
    first, second = (known(identifier, pid, fact(0)) for pid in pids)
    assert (first.rank, second.rank, second.world_size, second.local_rank) == (0, 1, 2, 1)
    assert first.job_key == second.job_key
    assert (first.launcher, first.job_name) == ("slurm", "llama")
    assert first.labels["slurm"] == "4711"


def test_slurm_steps_and_requeues_are_jobs_of_their_own(
    processes: Processes, identifier: Identifier
) -> None:
    envs = [slurm(0, 2), slurm(0, 2, SLURM_STEP_ID="1"), slurm(0, 2, SLURM_RESTART_COUNT="1")]
    identities = [known(identifier, processes.start(env), fact(2, 0)) for env in envs]
    assert len({i.job_key for i in identities}) == 3
    assert identities[0].labels["parent_key"] == identities[2].labels["parent_key"]
    assert identities[2].restart_count == 1


def test_torchrun_under_slurm_counts_ranks_not_nodes(
    processes: Processes, identifier: Identifier
) -> None:
    agent = processes.start(slurm(1, 2))
    assert ask(identifier, agent) is None
    workers = [processes.start(slurm(1, 2) | torchrun(r, 8, 4)) for r in range(4, 8)]
    identities = [known(identifier, pid) for pid in workers]
    assert [i.rank for i in identities] == [4, 5, 6, 7]
    assert {i.launcher for i in identities} == {"torchrun"}
    assert identities[0].labels["slurm"] == "4711"
    assert ask(identifier, agent) is None


def test_ranks_spawned_inside_a_slurm_task(processes: Processes, identifier: Identifier) -> None:
    pids = [processes.start(slurm(1, 2)) for _ in range(4)]  # all inherit task 1 of 2
    identities = [known(identifier, p, fact(8, 4 + n, 99)) for n, p in enumerate(pids)]
    assert [i.rank for i in identities] == [4, 5, 6, 7]
    assert {i.world_size for i in identities} == {8}
    assert len({i.job_key for i in identities}) == 1
    assert "the communicator counts" in identifier.notes()[0]


OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
    "PMIX_NAMESPACE": "prterun-node-a-4242@1",
}


@pytest.mark.parametrize(
    ("env", "launcher", "place"),
    [
        (OPENMPI, "openmpi", (5, 8, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, "mpich", (2, 4, 0)),
        (
            {
                "MV2_COMM_WORLD_RANK": "3",
                "MV2_COMM_WORLD_SIZE": "4",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
            },
            "mvapich",
            (3, 4, 1),
        ),
    ],
)
def test_mpi(
    processes: Processes,
    identifier: Identifier,
    env: dict[str, str],
    launcher: str,
    place: tuple[int, int, int],
) -> None:
    pid = processes.start(env)
    assert ask(identifier, pid) is None
    identity = known(identifier, pid, fact(2, 0))  # a part of the job says nothing of the whole
    assert identity.launcher == launcher
    assert (identity.rank, identity.world_size, identity.local_rank) == place


def test_pmix_namespace_tells_jobs_apart(processes: Processes, identifier: Identifier) -> None:
    same = [processes.start(OPENMPI | {"OMPI_COMM_WORLD_RANK": str(r)}) for r in (4, 5)]
    other = processes.start(OPENMPI | {"PMIX_NAMESPACE": "prterun-node-a-4243@1"})
    keys = [known(identifier, pid, fact(0)).job_key for pid in (*same, other)]
    assert keys[0] == keys[1] != keys[2]


def test_mpirun_inside_slurm_does_not_count_daemons(
    processes: Processes, identifier: Identifier
) -> None:
    # mpirun starts its daemons with srun on other nodes: steps and tasks are theirs.
    far = processes.start(slurm(1, 2) | OPENMPI)
    near = processes.start({"SLURM_JOB_ID": "4711"} | OPENMPI | {"OMPI_COMM_WORLD_RANK": "0"})
    identities = [known(identifier, pid, fact(8)) for pid in (near, far)]
    assert [i.rank for i in identities] == [0, 5]
    assert len({i.job_key for i in identities}) == 1


def test_pmix_alone_has_no_size(processes: Processes, identifier: Identifier) -> None:
    pid = processes.start({"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.4711.0"})
    assert ask(identifier, pid) is None
    assert ask(identifier, pid, fact(0)) is None
    identity = known(identifier, pid, fact(4, 1, 7))
    assert (identity.rank, identity.world_size, identity.launcher) == (1, 4, "pmix")


# Frameworks


def test_deepspeed(processes: Processes, identifier: Identifier) -> None:
    env = without(torchrun(1, 4), "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE")
    env |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "4"}
    identity = known(identifier, processes.start(env))
    assert (identity.launcher, identity.rank, identity.local_rank) == ("deepspeed", 1, 1)


def test_accelerate(processes: Processes, identifier: Identifier) -> None:
    identity = known(identifier, processes.start(torchrun(3, 4, ACCELERATE_MIXED_PRECISION="bf16")))
    assert (identity.launcher, identity.rank) == ("accelerate", 3)


KUBEFLOW = {
    "MASTER_ADDR": "train-master-0",
    "MASTER_PORT": "23456",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
}


def test_kubeflow_pod_counts_nodes(processes: Processes, identifier: Identifier) -> None:
    agent = processes.start(KUBEFLOW)
    assert ask(identifier, agent) is None
    worker = known(identifier, processes.start(KUBEFLOW | torchrun(9, 16, 8)))
    assert (worker.rank, worker.world_size, worker.launcher) == (9, 16, "torchrun")
    assert ask(identifier, agent, fact(8, 3)) is None  # no communicator has them all


def test_kubeflow_pod_that_spawns_its_ranks(processes: Processes, identifier: Identifier) -> None:
    identity = known(identifier, processes.start(KUBEFLOW), fact(16, 9, 5))
    assert (identity.rank, identity.world_size) == (9, 16)
    assert any("the communicator counts" in note for note in identifier.notes())


def test_worker_only_pytorchjob_has_no_master_address(
    processes: Processes, identifier: Identifier
) -> None:
    env = without(KUBEFLOW, "MASTER_ADDR", "MASTER_PORT") | {"PET_RDZV_ENDPOINT": "w-0:23456"}
    assert ask(identifier, processes.start(env)) is None
    worker = processes.start(env | torchrun(3, 16, 8))
    assert known(identifier, worker).rank == 3


def test_lightning_on_kubeflow(processes: Processes, identifier: Identifier) -> None:
    env = without(KUBEFLOW, "PET_NNODES", "PET_NPROC_PER_NODE")
    pid = processes.start(env)
    assert ask(identifier, pid) is None
    assert ask(identifier, pid, fact(0)) is None
    identity = known(identifier, pid, fact(2, 1))  # one rank a pod: the communicator agrees
    assert (identity.rank, identity.world_size, identity.launcher) == (1, 2, "pytorchjob")


def test_lightning_children_and_their_parent(processes: Processes, identifier: Identifier) -> None:
    # Its first rank sets everything in itself, unseen; the others have no RANK.
    child_env = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    child_env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "41000"}
    parent, child = processes.start({}), processes.start(child_env)
    assert ask(identifier, child) is None
    first = known(identifier, parent, fact(2, 0, 77))
    second = known(identifier, child, fact(2, 1, 77))
    assert (first.rank, second.rank) == (0, 1)
    assert identifier.moved() == [(parent, start_time(parent))]
    assert known(identifier, parent, fact(2, 0, 77)).job_key == second.job_key


def test_ray_has_nothing(processes: Processes, identifier: Identifier) -> None:
    pids = [processes.start({"RAY_JOB_ID": "01000000"}) for _ in range(3)]
    assert ask(identifier, pids[0]) is None
    identities = [known(identifier, p, fact(16, 4 + n, 1234)) for n, p in enumerate(pids[:2])]
    assert [i.rank for i in identities] == [4, 5]
    assert len({i.job_key for i in identities}) == 1
    assert identities[0].launcher == "ray"
    assert known(identifier, pids[2], fact(16, 4, 4321)).job_key != identities[0].job_key


def test_torchft_on_ray_has_worlds_of_one(processes: Processes, identifier: Identifier) -> None:
    def replica(port: str) -> dict[str, str]:
        return torchrun(0, 1, MASTER_PORT=port) | {"RAY_JOB_ID": "01000000"}

    pids = [processes.start(replica(port)) for port in ("29500", "29501")]
    assert [ask(identifier, pid) for pid in pids] == [None, None]
    identities = [known(identifier, p, fact(2, n, 55)) for n, p in enumerate(pids)]
    assert [(i.rank, i.world_size) for i in identities] == [(0, 2), (1, 2)]
    assert len({i.job_key for i in identities}) == 1


def test_torchft_replicas_share_their_lighthouse(
    processes: Processes, identifier: Identifier
) -> None:
    pids = [
        processes.start(torchrun(0, 1, MASTER_PORT=port, TORCHFT_LIGHTHOUSE="http://l:29510"))
        for port in ("29500", "29501")
    ]
    # A new quorum makes a new communicator; the job stays the same.
    keys = {known(identifier, p, fact(2, n, 60 + n)).job_key for n, p in enumerate(pids)}
    assert len(keys) == 1


# Environment against communicators


def test_communicator_of_all_ranks_wins(processes: Processes, identifier: Identifier) -> None:
    identity = known(identifier, processes.start(torchrun(1, 4)), fact(2, 0), fact(4, 3))
    assert identity.rank == 3
    assert "environment says rank 1" in identifier.notes()[0]


def test_group_beyond_the_job_does_not_win(processes: Processes, identifier: Identifier) -> None:
    identity = known(identifier, processes.start(torchrun(1, 4)), fact(4, 1), fact(9, 2))
    assert (identity.rank, identity.world_size) == (1, 4)
    assert "reaches beyond the job's 4" in identifier.notes()[0]


def test_nothing_at_all(processes: Processes, identifier: Identifier) -> None:
    pid = processes.start({})
    assert ask(identifier, pid) is None
    assert ask(identifier, pid, fact(0)) is None
    assert ask(identifier, pid, fact(1, 0)) is None
    assert "no communicator" in identifier.notes()[0]


def test_spawned_ranks_without_ids_share_their_parent(
    processes: Processes, identifier: Identifier
) -> None:
    jobs = [processes.launch([{}, {}]) for _ in range(2)]
    keys = [
        {known(identifier, pid, fact(2, n)).job_key for n, pid in enumerate(pids)} for pids in jobs
    ]
    assert len(keys[0]) == len(keys[1]) == 1
    assert keys[0] != keys[1]
    assert any("on this node only" in note for note in identifier.notes())


@pytest.mark.parametrize(
    "place",
    [
        ("4", "4"),
        ("-1", "4"),
        ("1", "0"),
        ("0x1", "4"),
        ("\u0661", "4"),
        ("9" * 5000, "4"),
        ("", "4"),
    ],
)
def test_impossible_ranks(
    processes: Processes, identifier: Identifier, place: tuple[str, str]
) -> None:
    env = torchrun(1, 4) | {"RANK": place[0], "WORLD_SIZE": place[1]}
    assert ask(identifier, processes.start(env)) is None


@pytest.mark.parametrize("bad", [(-5, 0), (4, 4), (1 << 31, 3), (0, 7)])
def test_impossible_communicators(
    processes: Processes, identifier: Identifier, bad: tuple[int, int]
) -> None:
    assert ask(identifier, processes.start({}), fact(*bad)) is None


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
    def big_stack() -> None:
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        wanted = 64 << 20 if hard == resource.RLIM_INFINITY else min(hard, 64 << 20)
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))

    noise = {f"NOISE_{n}": "x\n'\"=;$(" * 15000 for n in range(18)}
    env = {"RANK_": "7", **noise, "A": "\nRANK=9\nWORLD_SIZE=10\n", **torchrun(1, 4), "Z": "\n"}
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
    """A file in a FUSE mount whose server never answers, as a job can put under its memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    target = bytes(tmp_path)
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
    for hung in range(1, process.MAX_ABANDONED + 1):
        assert reader.read(path, 100) is None
        assert reader.abandoned == hung
        if hung < process.MAX_ABANDONED:  # the others are served as before
            assert reader.read("/proc/self/environ", 1 << 20)
    assert reader.read("/proc/self/environ", 100) is None  # enough threads hang
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
