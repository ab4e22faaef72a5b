"""Identity of real processes, launcher by launcher."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from stragd.discovery import Identifier, jobkey, launchers
from tests.processes import (
    Processes,
    ask,
    executed,
    fact,
    known,
    slurm,
    start_time,
    torchrun,
    wait_for,
)


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
        keys.append((identity.job_key, identity.parent_key))
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
    assert identities[0].parent_key == identities[2].parent_key
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


def test_renumbered_ranks_stay_one_job(processes: Processes, identifier: Identifier) -> None:
    # The communicator swaps ranks 1 and 2: two ranks agree with their environment, two do not.
    pids = processes.launch([torchrun(r, 4) for r in range(4)])
    found = [known(identifier, p, fact(4, r, 9)) for p, r in zip(pids, (0, 2, 1, 3), strict=True)]
    assert [i.rank for i in found] == [0, 2, 1, 3]
    assert len({i.job_key for i in found}) == 1


def test_ranks_behind_wrappers_share_their_launcher(
    processes: Processes, identifier: Identifier
) -> None:
    wrapped = ["/bin/sh", "-c", f"{sys.executable} -c 'import time; time.sleep(600)' & wait"]
    shells = processes.launch([torchrun(r, 2) for r in range(2)], wrapped)

    def is_python(pid: int) -> bool:  # and no longer the shell's fork
        return Path(f"/proc/{pid}/comm").read_text().startswith("python") and executed(pid)

    def ranks() -> list[int]:
        texts = [Path(f"/proc/{s}/task/{s}/children").read_text().split() for s in shells]
        found = [int(t[0]) for t in texts if t]
        return found if len(found) == 2 and all(map(is_python, found)) else []

    pids = wait_for("the wrapped ranks", ranks)
    assert len({known(identifier, pid).job_key for pid in pids}) == 1
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_group_beyond_the_job_does_not_win(processes: Processes, identifier: Identifier) -> None:
    identity = known(identifier, processes.start(torchrun(1, 4)), fact(4, 1), fact(9, 2))
    assert (identity.rank, identity.world_size) == (1, 4)
    assert "reaches beyond the job's 4" in identifier.notes()[0]


def test_nothing_at_all(processes: Processes, identifier: Identifier) -> None:
    pid = processes.start({})
    assert ask(identifier, pid) is None
    assert ask(identifier, pid, fact(0)) is None
    assert ask(identifier, pid, fact(1, 0)) is None
    assert "neither its environment nor a communicator" in identifier.notes()[0]


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
