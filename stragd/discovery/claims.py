"""One process per rank of a job: finds jobs that were merged under one key, and splits them.

A rank is unique within its job. Two live processes with one (key, rank) are either a rank and its
helper, of which the one that takes part in communicators wins, or two jobs that look alike. Those
are told apart by who started them; the first keeps the key.
"""

from __future__ import annotations

from dataclasses import dataclass

from stragd.discovery.jobkey import digest
from stragd.discovery.notes import Notes
from stragd.discovery.process import Stat, ancestors, read_stat

Process = tuple[int, int]  # (pid, start time)


@dataclass(frozen=True)
class Claim:
    """A process says it is ``rank`` of ``key``."""

    process: Process
    key: int
    rank: int
    stat: Stat
    group: str  # equal for ranks that one launcher started on this node
    uid: int | None  # None where it tells nothing
    has_facts: bool
    communicator_id: int = 0
    from_communicator: bool = False  # the key is made of the communicator's id


class Claims:
    """Who holds which rank on this node; bounded by the live processes of its caller."""

    def __init__(self, proc: str, notes: Notes) -> None:
        self._proc, self._notes = proc, notes
        self._by_process: dict[Process, tuple[int, Claim]] = {}  # -> key in use
        self._holders: dict[tuple[int, int], Process] = {}  # (key in use, rank)
        self._founders: dict[int, Claim] = {}  # first claim of a key
        self._apart: dict[tuple[int, str], int] = {}  # (key, group or owner) -> key in use
        self._by_communicator: dict[int, tuple[int, bool]] = {}  # id -> key, made of the id
        self._moved: dict[Process, None] = {}

    def take(self, claim: Claim) -> int | None:
        """Key under which the claim holds, or None when another process is that rank."""
        key = self._shared_key(claim)
        founder = self._founders.get(key)
        uids = (founder.uid, claim.uid) if founder is not None else (None, None)
        if None not in uids and uids[0] != uids[1]:
            key = self._split(claim, key, f"user {claim.uid}", "of different users")
            founder = self._founders.get(key)
        key = self._apart.get((key, claim.group), key)
        other = self._rival(claim, key)
        if other is None:
            return self._hold(claim, key)
        if self._related(claim, other):
            if other.has_facts or not claim.has_facts:
                return None
            self.release(other.process)  # it only started the one that does the work
            self._moved[other.process] = None
            return self._hold(claim, key)
        if other.group == claim.group:
            self._notes.add(
                f"rank {claim.rank} of job {key:016x} is claimed by pids {other.process[0]} and"
                f" {claim.process[0]} of one launcher: the second is not watched"
            )
            return None
        if founder is not None and founder.group == claim.group:
            # The key is this job's; the other one came in between.
            apart = self._split(other, key, other.group, "with the same ranks")
            for used, moving in list(self._by_process.values()):
                if used == key and moving.group == other.group:
                    self._hold(moving, apart)
                    self._moved[moving.process] = None
            return self._hold(claim, key)
        key = self._split(claim, key, claim.group, "with the same ranks")
        return None if self._rival(claim, key) is not None else self._hold(claim, key)

    def take_moved(self) -> list[Process]:
        """Processes whose identity has changed since the last call."""
        moved = list(self._moved)
        self._moved.clear()
        return moved

    def release(self, process: Process) -> None:
        """Give up a process's rank."""
        held = self._by_process.pop(process, None)
        if held is None:
            return
        key, claim = held
        if self._holders.get((key, claim.rank)) == process:
            del self._holders[(key, claim.rank)]
        self._moved.pop(process, None)
        if not any(used == key for used, _ in self._by_process.values()):
            self._founders.pop(key, None)
            for place in [p for p, used in self._apart.items() if key in (used, p[0])]:
                del self._apart[place]
            for number in [n for n, (used, _) in self._by_communicator.items() if used == key]:
                del self._by_communicator[number]

    def _hold(self, claim: Claim, key: int) -> int:
        held = self._by_process.get(claim.process)
        if held is not None and (held[0], held[1].rank) != (key, claim.rank):
            self.release(claim.process)
        self._by_process[claim.process] = (key, claim)
        self._holders[(key, claim.rank)] = claim.process
        self._founders.setdefault(key, claim)
        if claim.communicator_id:
            known = self._by_communicator.get(claim.communicator_id)
            if known is None or (known[1] and not claim.from_communicator):
                if known is not None and known[0] != key:  # now there is a key with a name
                    for used, other in self._by_process.values():
                        if used == known[0]:
                            self._moved[other.process] = None
                self._by_communicator[claim.communicator_id] = (key, claim.from_communicator)
        return key

    def _shared_key(self, claim: Claim) -> int:
        """Ranks of one communicator are one job, also where only some have an environment."""
        if claim.from_communicator and claim.communicator_id in self._by_communicator:
            return self._by_communicator[claim.communicator_id][0]
        return claim.key

    def _split(self, claim: Claim, key: int, group: str, how: str) -> int:
        own = digest([("split", f"{key:016x}"), ("group", group)])
        if self._apart.get((key, group)) != own:
            self._apart[(key, group)] = own
            self._notes.add(
                f"two jobs {how} were merged under key {key:016x}: split by"
                f" {group.partition(' ')[0]},"
                f" the second is {own:016x} (pid {claim.process[0]}) and that on this node only"
            )
        return own

    def _rival(self, claim: Claim, key: int) -> Claim | None:
        """Another live process that holds the rank."""
        process = self._holders.get((key, claim.rank))
        if process is None or process == claim.process:
            return None
        stat = read_stat(self._proc, process[0])
        if stat is None or stat.start_time != process[1]:
            self.release(process)
            return None
        return self._by_process[process][1]

    def _related(self, claim: Claim, other: Claim) -> bool:
        """Whether one of two processes descends from the other."""
        for one, two in ((claim, other), (other, claim)):
            for ancestor in ancestors(self._proc, one.stat):
                if (ancestor.pid, ancestor.start_time) == two.process:
                    return True
        return False
