"""Job key: an opaque 64-bit hash, equal on every node of one job; its parts become labels.

Best first: scheduler id (with step and restart count), PMIx namespace, MASTER_ADDR and MASTER_PORT
with world size, run id and restart count, the unique id of the largest communicator, and last the
process that started the ranks, which holds on one node only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from stragd.discovery.launchers import Placement, number
from stragd.discovery.process import Stat, printable


@dataclass(frozen=True)
class Scheduler:
    """Variables of one scheduler; the first set name counts."""

    name: str
    job_id: tuple[str, ...]
    restart: tuple[str, ...] = ()
    job_name: tuple[str, ...] = ()


SCHEDULERS: tuple[Scheduler, ...] = (
    # The parts of a heterogeneous Slurm job have job ids of their own and one in common.
    Scheduler(
        "slurm",
        ("SLURM_HET_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"),
        ("SLURM_RESTART_COUNT",),
        ("SLURM_JOB_NAME",),
    ),
    Scheduler("jobset", ("JOBSET_UID",), ("JOBSET_RESTART_ATTEMPT",), ("JOBSET_NAME",)),
    Scheduler("pytorchjob", ("PYTORCHJOB_UID",), (), ("PYTORCHJOB_NAME",)),
    Scheduler("pbs", ("PBS_JOBID",), (), ("PBS_JOBNAME",)),
    Scheduler("lsf", ("LSB_JOBID",), (), ("LSB_JOBNAME",)),
    Scheduler("flux", ("FLUX_JOB_ID",), (), ("FLUX_JOB_NAME",)),
)
WANTED: frozenset[str] = frozenset(
    name for s in SCHEDULERS for names in (s.job_id, s.restart, s.job_name) for name in names
)
NOT_NAMES = {"", "none", "interactive", "bash", "sh", "wrap"}
_UUID = re.compile(r"^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
_LOOPBACK = re.compile(r"^(localhost|127(\.\d{1,3}){3}|::1|0\.0\.0\.0)$")


@dataclass(frozen=True)
class Surroundings:
    """What else tells two jobs apart."""

    boot_id: str  # of this machine
    network: str  # network namespace of the process
    launcher: Stat | None  # the process that started the rank
    own_ids: Sequence[str] = ()  # variables that a site declares as job ids


@dataclass(frozen=True)
class Key:
    """Hash of the parts; ``parent`` leaves restarts out, so history survives them."""

    value: int
    parent: int
    parts: tuple[tuple[str, str], ...]
    restart_count: int
    local_only: bool  # nothing in it is known to other nodes


def digest(parts: Sequence[tuple[str, str]]) -> int:
    """64-bit hash of named parts, never 0 (0 is "no job")."""
    state = hashlib.blake2b(digest_size=8, person=b"stragd-job")
    for name, value in parts:
        for text in (name, value):
            raw = text.encode("utf-8", "replace")
            state.update(len(raw).to_bytes(4, "little") + raw)
    return int.from_bytes(state.digest(), "little") or 1


def job_key(environment: Mapping[str, str], placement: Placement, around: Surroundings) -> Key:
    """The key of the job that a placed process belongs to."""
    row = placement.row
    # Ranks of one job must agree on this, whoever told the single rank.
    by_facts = placement.recounted
    parts: list[tuple[str, str]] = [
        (name, environment[name]) for name in around.own_ids if environment.get(name)
    ]
    restarts: list[tuple[str, str]] = []
    scheduler = next((s for s in SCHEDULERS if _first(environment, s.job_id)), None)
    if scheduler is not None:
        parts.append((scheduler.name, _first(environment, scheduler.job_id)))
        restarts.append(("requeue", _first(environment, scheduler.restart) or "0"))
    specific: list[tuple[str, str]] = []
    if not (placement.alone and row.launcher != "torchft"):
        names = row.shared if by_facts else row.instance
        specific = [(n, _normal(n, environment[n])) for n in names if environment.get(n)]
        restarts += [("restart", environment[n]) for n in row.restart if environment.get(n)]
    # A run id alone is the same word ("none") in every job.
    specific_enough = any(name != "TORCHELASTIC_RUN_ID" for name, _ in specific)
    parts += specific
    if _LOOPBACK.match(dict(specific).get("MASTER_ADDR", "")):
        parts.append(("network", f"{around.boot_id} {around.network}"))  # means nothing elsewhere
    local_world = None if by_facts else number(environment, row.local_world)
    all_here = local_world is not None and local_world == placement.world_size
    local_only = False
    if not specific_enough:
        if by_facts and placement.communicator_id:
            parts.append(("communicator", f"{placement.communicator_id:016x}"))
        elif scheduler is None and not around.own_ids:
            all_here = local_only = True
    if all_here and around.launcher is not None:
        # One launcher started all ranks: a second job on the same port, at once or later, differs.
        launcher = f"{around.boot_id} {around.launcher.pid} {around.launcher.start_time}"
        parts.append(("launcher", launcher))
    if by_facts:
        parts.append(("ranks", str(placement.world_size)))
    counts = [number({"n": value}, ("n",)) or 0 for _, value in restarts]
    everything = tuple(parts + restarts)
    return Key(digest(everything), digest(parts), everything, sum(counts), local_only)


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    return next((environment[n] for n in names if environment.get(n)), "")


def _normal(name: str, value: str) -> str:
    return value.strip().lower().rstrip(".") if name == "MASTER_ADDR" else value.strip()


def job_name(environment: Mapping[str, str], cmdline: Sequence[str]) -> str:
    """A name for people: run id, scheduler's name, or script and port; at most 64 characters."""
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run.lower() not in NOT_NAMES and not _UUID.match(run.lower()):
        return printable(run) or "unnamed"
    for scheduler in SCHEDULERS:
        name = _first(environment, scheduler.job_name)
        if name.lower() not in NOT_NAMES:
            return printable(name) or "unnamed"
    script = script_name(cmdline) or "job"
    port = environment.get("MASTER_PORT", "")
    return printable(f"{script}@{port}" if port.isascii() and port.isdigit() else script)


def script_name(cmdline: Sequence[str]) -> str:
    """Script or module that a Python process runs; the program's name for others; "" for -c."""
    if not cmdline:
        return ""
    program = PurePosixPath(cmdline[0].split(" ", 1)[0]).name
    if not program.startswith(("python", "pypy")):
        return program
    arguments = iter(cmdline[1:])
    for argument in arguments:
        if argument == "-m":
            return next(arguments, "")
        if argument in ("-c", "-"):
            return ""
        if argument in ("-W", "-X"):
            next(arguments, "")
        elif not argument.startswith("-"):
            return PurePosixPath(argument).name
    return ""
