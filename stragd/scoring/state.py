"""State of a scorer as bytes, little-endian: the same ones the native scorer saves.

magic, version, calls, next id, jobs by key; of a job its windows, ranks by number, series of
the whole job, comparisons by key. Optional parts are preceded by a byte, 0 or 1.
"""

from __future__ import annotations

import struct

from stragd.scoring.case import Case
from stragd.scoring.model import Finding
from stragd.scoring.rank import RankScore
from stragd.scoring.reference import Job, Scorer
from stragd.scoring.series import Series

MAGIC, VERSION = b"stragd score", 3


class Writer:
    """Appends numbers to a buffer."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.figures = 0
        """Floating-point numbers so far."""

    def put(self, form: str, *values: float) -> None:
        """One number for each letter of ``form`` (struct's)."""
        self.parts.append(struct.pack("<" + form, *values))
        self.figures += sum(isinstance(value, float) for value in values)


def save(scorer: Scorer, out: Writer | None = None) -> bytes:
    """The whole state, without the configuration."""
    out = out or Writer()
    out.parts.append(MAGIC)
    out.put("IQQI", VERSION, scorer.calls, scorer.next_id[0], len(scorer.jobs))
    for key in sorted(scorer.jobs):
        out.put("Q", key)
        _put_job(out, scorer.jobs[key])
    return b"".join(out.parts)


def _put_job(out: Writer, job: Job) -> None:
    out.put("QQQI", job.last_call, job.window or 0, job.key, len(job.recent))
    for number, begin in job.recent:
        out.put("QQ", number, begin)
    fast = job.fast
    out.put("BQ", fast.last is not None, fast.last or 0)
    out.put("dddd", fast.squares, fast.weight, fast.tail, fast.window_variance)
    out.put("I", len(job.ranks))
    for number in sorted(job.ranks):
        out.put("I", number)
        _put_rank(out, job.ranks[number])
    for whole in (job.wide, job.network):
        out.put("Q", whole.present)
        _put_series(out, whole.series)
        _put_case(out, whole.case)
    out.put("I", len(job.compared))
    for kind, key in sorted(job.compared):
        score = job.compared[kind, key]
        out.put("BQIQQ", kind, key, score.run, *score.since)
        _put_case(out, score.case)


def _put_rank(out: Writer, rank: RankScore) -> None:
    out.put("QII", *rank.key)
    out.put(
        "IQIQII", rank.world_size, rank.last_step, rank.missing, rank.present, rank.high, rank.gross
    )
    out.put("QQddI", *rank.gross_since, rank.balance, rank.past, rank.past_count)
    out.put("dQQQ", rank.fast, *rank.fast_since, rank.named)
    _put_series(out, rank.series)
    _put_case(out, rank.case)
    _put_case(out, rank.sometimes)


def _put_series(out: Writer, series: Series) -> None:
    out.put("ddII", series.anchor, series.base, series.known, series.length)
    out.put(f"{series.length}f", *series.values[: series.length])
    spread = series.spread
    out.put("d", series.total)
    out.put("dddd", spread.near, spread.near_weight, spread.far, spread.far_weight)


def _put_case(out: Writer, case: Case | None) -> None:
    out.put("B", case is not None)
    if case is None:
        return
    out.put(
        "QBQQIB", case.id, case.state, case.since_window, case.since_time_ns, case.quiet, case.how
    )
    out.put("ddIdd", case.base, case.shift, case.windows, case.recovery, case.deviate)
    _put_finding(out, case.finding)


def _put_finding(out: Writer, one: Finding | None) -> None:
    out.put("B", one is not None)
    if one is None:
        return
    out.put("QQBB", one.id, one.job, one.kind, one.state)
    for number in (one.rank, one.class_id, one.signature):
        out.put("BQ", number is not None, number or 0)
    out.put("QQQd", one.since_window, one.since_time_ns, one.window, one.slowdown)
    for figure in (one.cost_ns, one.cost_low_ns, one.cost_high_ns):
        out.put("Bd", figure is not None, figure or 0.0)
    out.put(
        "ddBddI",
        one.cost_fraction,
        one.confidence,
        one.basis,
        one.own_ns,
        one.peers_own_ns,
        one.peers,
    )
    out.put("dI", one.work, one.moved)
