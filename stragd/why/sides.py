"""Which two ranks are looked at: the one in question and its healthiest peer on this node."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from stragd.outputs.snapshot import Job, Rank
from stragd.why import LookError


def find(job: Job, ranks: Sequence[Rank], number: int) -> Rank:
    """A rank of the job that lives on this node. Raises LookError."""
    for rank in ranks:
        if rank["rank"] == number and rank["state"] != "gone":
            return rank
        if rank["rank"] == number:
            raise LookError(f"rank {number} (pid {rank['pid']}) has ended (see: stragctl ranks)")
    here = sorted(rank["rank"] for rank in ranks if rank["state"] != "gone")
    known = ", ".join(map(str, here[:16])) + (", ..." if len(here) > 16 else "")
    if 0 <= number < job["world_size"]:
        raise LookError(
            f"rank {number} runs on another node: run stragctl why there (here: ranks {known})"
        )
    raise LookError(
        f"job {job['name']} has no rank {number}, its world size is {job['world_size']} "
        f"(here: ranks {known})"
    )


def healthiest(ranks: Sequence[Rank], subject: Rank) -> Rank | None:
    """Of the ranks with the subject's class and collective sequence and without a finding, the
    one whose own time is nearest to their median; None where there is none."""
    peers = [
        rank
        for rank in ranks
        if rank["rank"] != subject["rank"]
        and rank["state"] in ("watching", "learning")
        and rank["class"] == subject["class"]
        and rank["signature"] == subject["signature"]
    ]
    timed = [(rank["own_ms"], rank) for rank in peers if rank["own_ms"] is not None]
    if not timed:
        return peers[0] if peers else None
    middle = statistics.median(own for own, _ in timed)
    return min(timed, key=lambda pair: (abs(pair[0] - middle), pair[1]["rank"]))[1]
