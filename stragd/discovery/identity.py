"""Who a process is: its job, its rank there, and on which hardware class it runs."""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stragd.discovery import jobkey, launchers, process
from stragd.discovery.claims import Claim, Claims
from stragd.discovery.container import Container, read_container
from stragd.discovery.environ import read_environ
from stragd.discovery.hardware import Device, Hardware
from stragd.discovery.notes import Notes

if TYPE_CHECKING:
    from stragd._rscore import CommunicatorStatus

EXTRA = ("GROUP_RANK", "JOB_COMPLETION_INDEX", "REPLICA_GROUP_ID", "RAY_JOB_ID", "SLURM_NODEID")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_HELPER = re.compile(r"multiprocessing\.(spawn|forkserver|resource_tracker)|compile_worker")


@dataclass(frozen=True)
class Identity:
    """One rank of one job. Texts are printable and bounded, whatever the job wrote."""

    job_key: int  # 64 bits, never 0
    job_name: str
    launcher: str
    rank: int
    world_size: int
    local_rank: int  # -1 where unknown
    restart_count: int
    parent_key: int  # of the job whatever the restart count
    host: str
    class_name: str  # "cpu/<model>", "nvidia/H200", "amd/MI300X"
    class_id: int  # CRC-32 of class_name
    container: str  # 64 hex digits, "" outside of one
    gpu_uuid: str  # "" where no driver lists the process
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class _Process:
    """What was read once about a process; read again after exec."""

    stat: process.Stat
    environment: dict[str, str]
    row: launchers.Row
    cmdline: list[str]
    container: Container
    launcher: process.Stat | None
    uid: int | None
    network: str


class Identifier:
    """Identifies processes that have mapped a collective library.

    ``config``: ``max_processes`` (4096), ``job_id_variables`` (names of environment variables that
    this site sets to one value per job), ``own_network_only`` (False). Raises
    ValueError for a bad value. Call ``identify`` again while it says None, and now and then later:
    communicators and GPUs come late.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, proc: str = "/proc", sys: str = "/sys"
    ) -> None:
        config = config or {}
        self._limit = int(config.get("max_processes", 4096))
        if self._limit < 1:
            raise ValueError(f"discovery: max_processes is {self._limit}, must be 1 or more")
        self._own_ids = tuple(str(name) for name in config.get("job_id_variables", ()))
        for name in self._own_ids:
            if not _VARIABLE.match(name):
                raise ValueError(f"discovery: job_id_variables: {name!r} is no variable's name")
        self._network = ""
        """The one network namespace that is watched, "" for all."""
        if config.get("own_network_only"):
            self._network = process.network_namespace(proc, os.getpid())
        self._wanted = launchers.WANTED | jobkey.WANTED | set(EXTRA) | set(self._own_ids)
        self._proc = proc
        self._reader = process.MemoryReader()
        self._hardware = Hardware(proc, sys)
        self._host = socket.gethostname()
        boot = process.read_bounded(f"{proc}/sys/kernel/random/boot_id", 64)
        self._boot_id = (boot or b"").decode("ascii", "replace").strip()
        self._processes: dict[tuple[int, int], _Process] = {}
        self._notes = Notes()
        self._claims = Claims(proc, self._notes)

    def identify(
        self, pid: int, start_time: int, facts: Sequence[CommunicatorStatus]
    ) -> Identity | None:
        """Identity of a process; None while it is not (yet) known to be a rank.

        ``facts`` are the communicators the process takes part in, as the probes saw them.
        """
        who = self._look_at(pid, start_time)
        if who is None:
            self.forget(pid, start_time)
            return None
        if self._network and who.network != self._network:
            return None
        if not facts and self._is_helper(who):
            return None
        resolution = launchers.resolve(who.environment, facts)
        self._notes.extend(resolution.notes)
        placement = resolution.placement
        if placement is None:
            if facts and not resolution.notes:
                self._notes.add(
                    f"{who.row.launcher} launcher: a process takes part in collectives, and neither"
                    " its environment nor a communicator tells its rank"
                )
            return None
        device = self._hardware.find(pid)
        if self._hardware.error:
            self._notes.add(self._hardware.error)
        if device is None or (self._hardware.has_gpu and not device.gpu_uuid and not facts):
            return None  # it has not opened its GPU yet
        around = jobkey.Surroundings(self._boot_id, who.network, who.launcher, self._own_ids)
        key = jobkey.job_key(who.environment, placement, around)
        if key.local_only:
            self._notes.add(f"{placement.row.launcher}: job key holds on this node only")
        value = self._claims.take(
            Claim(
                (pid, start_time),
                key.value,
                placement.rank,
                who.stat,
                _group(who),
                who.uid,
                bool(facts),
                placement.communicator_id,
                from_communicator=any(name == "communicator" for name, _ in key.parts),
            )
        )
        if value is None:
            return None
        if value != key.value:
            key = replace(key, value=value)
        return self._describe(who, placement, key, device)

    def forget(self, pid: int, start_time: int) -> None:
        """A process is gone; unknown ones are no error."""
        self._processes.pop((pid, start_time), None)
        self._hardware.forget(pid)
        self._claims.release((pid, start_time))

    def moved(self) -> list[tuple[int, int]]:
        """Processes (pid, start time) whose identity has changed since: identify them again."""
        return self._claims.take_moved()

    def notes(self) -> list[str]:
        """What a person should know about the identities, oldest first, each once, bounded."""
        return self._notes.lines()

    def _look_at(self, pid: int, start_time: int) -> _Process | None:
        stat = process.read_stat(self._proc, pid)
        if stat is None or stat.start_time != start_time:
            return None
        known = self._processes.get((pid, start_time))
        if known is not None and known.stat.env_start == stat.env_start:
            return known  # no exec since
        if known is None and len(self._processes) >= self._limit:
            self._drop_ended()
            if len(self._processes) >= self._limit:
                self._notes.add(
                    f"more than {self._limit} processes with a collective library: the rest is not"
                    " identified; raise max_processes"
                )
                return None
        late = self._reader.late
        environment = read_environ(self._reader, self._proc, pid, self._wanted)
        if self._reader.late != late:
            user = process.owner(self._proc, pid)
            self._notes.add(
                f"a process of user {'unknown' if user is None else user} does not let its"
                " environment be read in time and is not watched until it does"
            )
            return None
        if environment is None:
            environment = {}
        row = launchers.match(environment)
        who = _Process(
            stat,
            environment,
            row,
            process.read_cmdline(self._reader, self._proc, pid),
            read_container(self._proc, pid),
            self._launcher(stat, environment, row),
            process.owner(self._proc, pid),
            process.network_namespace(self._proc, pid),
        )
        again = process.read_stat(self._proc, pid)
        if again is None or (again.start_time, again.env_start) != (start_time, stat.env_start):
            return None  # the pid was reused or the program replaced in between: next time
        self._processes[(pid, start_time)] = who
        return who

    def _drop_ended(self) -> None:
        for pid, start_time in list(self._processes):
            stat = process.read_stat(self._proc, pid)
            if stat is None or stat.start_time != start_time:
                self.forget(pid, start_time)

    def _launcher(
        self, stat: process.Stat, environment: Mapping[str, str], row: launchers.Row
    ) -> process.Stat | None:
        """The nearest ancestor that is not a wrapper or parent with this very rank."""
        for ancestor in process.ancestors(self._proc, stat):
            if not row.rank:  # nothing in the environment: who started it is the launcher
                return ancestor
            theirs = read_environ(self._reader, self._proc, ancestor.pid, self._wanted) or {}
            if not _same_rank(environment, theirs, row):
                return ancestor
        return None

    def _is_helper(self, who: _Process) -> bool:
        """A data-loader or compile worker: it inherited the rank of the process above it.

        Only asked while it takes part in no communicator: who does is a rank.
        """
        for ancestor in process.ancestors(self._proc, who.stat):
            theirs = self._processes.get((ancestor.pid, ancestor.start_time))
            if ancestor.same_image(who.stat):
                return True
            if theirs is not None:
                return _same_rank(who.environment, theirs.environment, who.row)
            if _HELPER.search(" ".join(who.cmdline[:8])):
                environment = read_environ(self._reader, self._proc, ancestor.pid, self._wanted)
                return _same_rank(who.environment, environment or {}, who.row)
        return False

    def _describe(
        self, who: _Process, placement: launchers.Placement, key: jobkey.Key, device: Device
    ) -> Identity:
        labels = {name.lower(): process.printable(value, 128) for name, value in key.parts}
        labels["rank_source"] = placement.source
        for name in EXTRA:
            if value := who.environment.get(name):
                labels[name.lower()] = process.printable(value)
        if who.container.pod_uid:
            labels["pod_uid"] = who.container.pod_uid
        name = jobkey.job_name(who.environment, self._script_cmdline(who))
        return Identity(
            key.value,
            name,
            placement.row.launcher,
            placement.rank,
            placement.world_size,
            placement.local_rank,
            key.restart_count,
            key.parent,
            self._host,
            device.class_name,
            zlib.crc32(device.class_name.encode()),
            who.container.container_id,
            device.gpu_uuid,
            labels,
        )

    def _script_cmdline(self, who: _Process) -> list[str]:
        """Its own command line, or that of the script which spawned it."""
        if jobkey.script_name(who.cmdline) or not _HELPER.search(" ".join(who.cmdline[:8])):
            return who.cmdline
        return process.read_cmdline(self._reader, self._proc, who.stat.ppid) or who.cmdline


def _same_rank(ours: Mapping[str, str], theirs: Mapping[str, str], row: launchers.Row) -> bool:
    """Whether two environments claim the same place in the same job."""
    names = (*row.marks, *row.rank, *row.local_rank, *row.instance, *row.restart)
    return bool(row.rank) and all(ours.get(name) == theirs.get(name) for name in names)


def _group(who: _Process) -> str:
    """What ranks of one start on one node have in common, and those of another have not."""
    if who.launcher is not None:
        return f"process {who.launcher.pid} {who.launcher.start_time}"
    if who.container.container_id:
        return f"container {who.container.container_id}"
    return f"session {who.stat.session} {who.container.path}"
