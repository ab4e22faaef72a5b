"""Rows of one window that can be judged, in groups of peers, and each rank's reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stragd.scoring.estimate import median, median_without, spread
from stragd.scoring.model import (
    EVENTS_LOST,
    HOST_PROBES,
    LOST,
    OWN_UNKNOWN,
    PARTIAL,
    STEPS_DISAGREE,
    STEPS_NOT_INFERRED,
    Abstention,
    Row,
)

STEPS_SHARE, STEPS_SLACK = 0.2, 3.0
"""Steps of a rank may differ from the others' by this share, or by the slack."""
MIN_PEERS = 3
"""Peers that can outvote a rank."""
SMALL_GROUP = 16
"""Groups in which one member counts for the spread."""

GroupKey = tuple[int, int, int]
"""(signature, STEPS_NOT_INFERRED or 0, class id): ranks of one key are peers."""


@dataclass
class Member:
    """One row that can be judged."""

    row: Row
    value: float
    """ln of own time; of its share of wall where steps are not inferred."""
    known: bool = False
    """Whether it has a past."""
    proven: bool = False
    """Whether it is confirmed to be slow already: then it says nothing about everybody."""
    excess: float = 0.0
    """Value over the rank's own past."""
    reference: float = 0.0
    """Median of the others' excess: what happened to everybody."""
    others: int = 0
    """How many others that is."""


@dataclass
class Group:
    """Ranks that are peers of each other, by rank."""

    key: GroupKey
    members: list[Member]
    ordered: list[float]
    """Values in order."""
    moved: int = 0
    """Ranks that were named within the last 64 windows and are healthy again."""

    def usual_bytes(self) -> float:
        """Median of the bytes per step."""
        return median(sorted(member.row.bytes for member in self.members))

    def median(self) -> float:
        """Of the values."""
        return median(self.ordered)

    def spread(self) -> float:
        """Of the values, robust."""
        return spread(self.ordered)

    def level(self, member: Member) -> tuple[float, float]:
        """(median of the others' values, spread that is natural among them)."""
        others = median_without(self.ordered, member.value)
        if len(self.members) > SMALL_GROUP:
            return others, self.spread()
        without = list(self.ordered)
        without.remove(member.value)
        return others, spread(without)


def judgeable(rows: list[Row], abstentions: list[Abstention]) -> list[Member]:
    """The rows that can be judged; says why the others are not."""
    steps = sorted(float(row.steps) for row in rows if not row.flags & PARTIAL and row.steps > 0)
    usual = median(steps) if steps else 0.0
    members = []
    for row in rows:
        partial = bool(row.flags & PARTIAL)
        off = abs(float(row.steps) - usual)
        reason = None
        if row.flags & OWN_UNKNOWN:
            reason = HOST_PROBES
        elif row.flags & EVENTS_LOST:
            reason = LOST
        elif row.steps > 0 and not partial and off > max(STEPS_SHARE * usual, STEPS_SLACK):
            reason = STEPS_DISAGREE
        if reason is not None:
            abstentions.append(Abstention(row.job, row.rank, row.window, reason))
        elif not partial:
            share = row.own / row.wall if row.flags & STEPS_NOT_INFERRED else row.own
            members.append(Member(row, math.log(share)))
    return members


def group(members: list[Member]) -> list[Group]:
    """Peers beside each other, in the order of their keys."""
    by_key: dict[GroupKey, list[Member]] = {}
    for member in members:
        row = member.row
        key = (row.signature, row.flags & STEPS_NOT_INFERRED, row.class_id)
        by_key.setdefault(key, []).append(member)
    return [
        Group(key, by_key[key], sorted(member.value for member in by_key[key]))
        for key in sorted(by_key)
    ]


@dataclass
class Pool:
    """Ranks that a reference is taken of: those that are known, and of them the healthy ones."""

    known: list[float]
    healthy: list[float]

    def reference(self, member: Member) -> float:
        """Median of the healthy others' excess, of all others' where there is no healthy one."""
        among = member.known and not member.proven
        if len(self.healthy) > among:
            if among:
                return median_without(self.healthy, member.excess)
            return median(self.healthy)
        if len(self.known) > member.known:
            if member.known:
                return median_without(self.known, member.excess)
            return median(self.known)
        return 0.0


def _pool(members: list[Member]) -> Pool:
    known = sorted(m.excess for m in members if m.known)
    return Pool(known, sorted(m.excess for m in members if m.known and not m.proven))


def set_references(groups: list[Group]) -> list[float]:
    """What happened to the others of each rank: of its peers, or of the whole job where they are
    fewer than three. Returns the excesses of the healthy, in order."""
    everybody = _pool([member for one in groups for member in one.members])
    for one in groups:
        peers = _pool(one.members)
        for member in one.members:
            enough = len(peers.known) - member.known >= MIN_PEERS
            pool = peers if enough else everybody
            member.others = len(pool.known) - member.known
            member.reference = pool.reference(member)
    return everybody.healthy


def stated_error(members: list[Member]) -> float:
    """Median of the standard errors that the windows state (ln); 0 where none does."""
    errors = [m.row.own_se / m.row.own for m in members if m.row.own_se > 0.0]
    return median(sorted(errors)) if errors else 0.0


def slowest_two(groups: list[Group]) -> dict[int, tuple[float, float]]:
    """The two largest own times of each signature, ns, in any class: what bounds a step."""
    slowest: dict[int, tuple[float, float]] = {}
    for one in groups:
        first, second = slowest.get(one.key[0], (0.0, 0.0))
        for member in one.members:
            own = member.row.own
            if own > first:
                first, second = own, first
            elif own > second:
                second = own
        slowest[one.key[0]] = (first, second)
    return slowest
