"""Which launcher started a process, and what its environment says about rank and world.

A table of rows, best first. ``trust`` says what the numbers are worth:

- "rank": the launcher sets them per rank, all together: enough alone.
- "task": per task of a scheduler or MPI. A task may be a launcher itself (torchrun under Slurm) or
  start ranks of its own, so a communicator must show that this process takes part.
- "node": RANK without LOCAL_RANK counts nodes under Kubeflow: a communicator must confirm it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stragd._rscore import CommunicatorStatus

MAX_WORLD = 1 << 20
Trust = Literal["rank", "task", "node"]


@dataclass(frozen=True)
class Row:
    """One launcher: it is recognised when all of ``marks`` are set; first set name counts."""

    launcher: str
    marks: tuple[str, ...]
    trust: Trust
    rank: tuple[str, ...] = ("RANK",)
    world: tuple[str, ...] = ("WORLD_SIZE",)
    local_rank: tuple[str, ...] = ("LOCAL_RANK",)
    local_world: tuple[str, ...] = ("LOCAL_WORLD_SIZE",)
    # Names whose values make one start of the job unlike any other, the same on every node.
    instance: tuple[str, ...] = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    restart: tuple[str, ...] = ("TORCHELASTIC_RESTART_COUNT",)
    # The same where the communicator counted the ranks and the environment did not.
    shared: tuple[str, ...] = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


_PER_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_ADDR", "MASTER_PORT")

TABLE: tuple[Row, ...] = (
    # torchft: rank and world are of one replica group; the lighthouse is what the groups share.
    Row(
        "torchft",
        ("TORCHFT_LIGHTHOUSE",),
        "rank",
        instance=("TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "MASTER_ADDR", "MASTER_PORT"),
        shared=("TORCHFT_LIGHTHOUSE",),
    ),
    Row("accelerate", (*_PER_RANK, "TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"), "rank"),
    Row("torchrun", (*_PER_RANK, "TORCHELASTIC_RUN_ID"), "rank"),
    Row("deepspeed", (*_PER_RANK, "CROSS_RANK", "CROSS_SIZE"), "rank", local_world=("LOCAL_SIZE",)),
    Row("environment", _PER_RANK, "rank"),
    Row(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        "task",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        _MPI,
        (),
        _MPI,
    ),
    Row(
        "slurm",
        ("SLURM_PROCID", "SLURM_STEP_ID"),
        "task",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        (),
        ("SLURM_STEP_ID",),
        (),
        ("SLURM_STEP_ID",),
    ),
    Row(
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        "task",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
        _MPI,
        (),
        _MPI,
    ),
    Row(
        "mpich",
        ("PMI_RANK", "PMI_SIZE"),
        "task",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        _MPI,
        (),
        _MPI,
    ),
    # PMIx tells no size: the communicator does.
    Row(
        "pmix", ("PMIX_RANK", "PMIX_NAMESPACE"), "task", ("PMIX_RANK",), (), (), (), _MPI, (), _MPI
    ),
    # Lightning's own children: the node's number and the local one, no RANK.
    Row("lightning", ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"), "node", rank=()),
    Row("pytorchjob", ("RANK", "WORLD_SIZE", "KUBERNETES_PORT"), "node"),
    Row("pytorchjob", ("RANK", "WORLD_SIZE", "PET_NNODES"), "node"),
    Row("environment", ("RANK", "WORLD_SIZE"), "node"),
    # Ray sets everything inside the running worker, where nobody outside sees it.
    Row("ray", ("RAY_JOB_ID",), "node", (), (), (), ()),
)
NOTHING = Row("unknown", (), "node", (), (), (), ())


@dataclass(frozen=True)
class Placement:
    """Rank and world size of a process, and where they come from."""

    row: Row
    rank: int
    world_size: int
    local_rank: int  # -1 where unknown
    source: Literal["environment", "communicator"]
    communicator_id: int = 0  # of the largest communicator, 0 where unknown
    recounted: bool = False  # the communicator's number of ranks is not the environment's
    alone: bool = False  # the environment speaks of a world of one, so MASTER_ADDR is not the job's


@dataclass
class Resolution:
    """Result of ``resolve``: a placement or the reason why there is none (yet)."""

    placement: Placement | None
    notes: list[str] = field(default_factory=list)


WANTED: frozenset[str] = frozenset(
    name
    for row in (*TABLE, NOTHING)
    for names in (
        *(row.marks, row.rank, row.world, row.local_rank),
        *(row.local_world, row.instance, row.restart, row.shared),
    )
    for name in names
) | {"PET_NPROC_PER_NODE"}
"""Every variable that the table reads."""


def match(environment: Mapping[str, str]) -> Row:
    """The first row whose marks are all set."""
    for row in TABLE:
        if all(environment.get(mark) for mark in row.marks):
            return row
    return NOTHING


def number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    """First set variable of ``names`` as a count; None where it is not a plain number."""
    for name in names:
        text = environment.get(name)
        if text is not None:
            plain = text.isascii() and text.isdigit() and len(text) <= 8
            return int(text) if plain and int(text) <= MAX_WORLD else None
    return None


def largest(facts: Sequence[CommunicatorStatus]) -> CommunicatorStatus | None:
    """The communicator of most ranks; among equals one whose rank and id are known."""
    usable = [c for c in facts if 0 < c["nranks"] <= MAX_WORLD and c["rank"] < c["nranks"]]
    if not usable:
        return None
    return max(usable, key=lambda c: (c["nranks"], c["rank"] >= 0, c["id"] != 0))


def resolve(environment: Mapping[str, str], facts: Sequence[CommunicatorStatus]) -> Resolution:
    """Rank and world size from the environment, confirmed or filled in by communicators."""
    row = match(environment)
    rank, world = number(environment, row.rank), number(environment, row.world)
    local = number(environment, row.local_rank)
    local = -1 if local is None or row.trust == "node" else local
    big = largest(facts)
    told = rank is not None and world is not None and rank < world
    if not told and row.rank and rank is not None and world is not None:
        return _by_facts(row, big, world, [f"{row.launcher}: rank {rank} of {world} is impossible"])
    if row.trust == "node":
        # Pods say how many processes torchrun starts in each: a smaller group is not the job.
        each = number(environment, ("PET_NPROC_PER_NODE",)) or 1
        if big is not None and world is not None and world < big["nranks"] < world * each:
            return Resolution(
                None, [f"{row.launcher}: no communicator has all {world * each} ranks"]
            )
    if not told or rank is None or world is None:
        return _by_facts(row, big, world or 0, [])
    known = Placement(row, rank, world, local, "environment", big["id"] if big else 0)
    if big is None or big["nranks"] == 1:
        # Without facts only a launcher of ranks is believed; a world of one is no job yet.
        enough = (row.trust == "rank" and (world > 1 or facts)) or (row.trust == "task" and facts)
        return Resolution(known if enough else None)
    if big["nranks"] < world:  # a part of the job: says nothing about the whole
        if row.trust == "node":
            text = (
                f"{row.launcher}: RANK may count nodes, and no communicator has all {world} ranks"
            )
            return Resolution(None, [text])
        return Resolution(known)
    if big["nranks"] == world:
        if big["rank"] in (-1, rank):
            return Resolution(known)
        text = (
            f"{row.launcher}: environment says rank {rank}, the communicator of all {world} ranks"
        )
        return _by_facts(row, big, world, [f"{text} says {big['rank']}: the communicator counts"])
    if row.trust == "rank" and world > 1:
        # The launcher counted its ranks; a larger group reaches into another job (an inference
        # engine that gets weights, other replicas).
        text = f"{row.launcher}: a communicator of {big['nranks']} reaches beyond the job's {world}"
        return Resolution(known, [text])
    text = f"{row.launcher}: environment says {world} (nodes or tasks), a communicator"
    return _by_facts(row, big, world, [f"{text} {big['nranks']} ranks: the communicator counts"])


def _by_facts(row: Row, big: CommunicatorStatus | None, world: int, notes: list[str]) -> Resolution:
    if big is None or big["nranks"] < 2 or big["nranks"] < world:
        return Resolution(None, notes)
    if big["rank"] < 0:
        return Resolution(None, [*notes, f"{row.launcher}: a communicator does not tell its rank"])
    placement = Placement(
        row,
        big["rank"],
        big["nranks"],
        -1,
        "communicator",
        big["id"],
        recounted=big["nranks"] != world,
        alone=world == 1,
    )
    return Resolution(placement, notes)
