"""`stragctl why`: a deep look at one rank beside a healthy peer, and what differs.

The daemon says who the ranks are; the look itself is taken by this process and its children, which
are gone when the answer is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

from stragd.cli.client import ControlClient, ControlError
from stragd.cli.numbers import count, ms, percent
from stragd.cli.reasons import finding_lines
from stragd.cli.terminal import speaks_utf8
from stragd.cli.text import clean, plain, table, to_ascii, wrap
from stragd.cli.top import PIPE_WIDTH, SHAPE_ERRORS, WRONG_SHAPE
from stragd.finding import Finding
from stragd.outputs.snapshot import Job, Rank
from stragd.why import LookError, compare, python_stacks, sides
from stragd.why.measures import Measures
from stragd.why.session import Python, Seen, take

_MAX_SHOWN = 8
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, fixed in the kernel
_FAULTS = "the time of page faults that need no wait: no tracepoint marks their end"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and 300 seconds")
    return value


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a rank")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser, job_help: str) -> None:
    """What `why` takes."""
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help=f"{job_help}; not needed when there is one job"
    )
    parser.add_argument("rank", type=_rank, metavar="RANK", help="a rank on this node")
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S", help="how long to look (default 10)"
    )
    parser.add_argument(
        "--peer", type=_rank, metavar="RANK",
        help="compare with this rank (default: the healthiest of its class on this node)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Look, compare, print. Raises ControlError."""
    if os.geteuid() != 0:
        raise ControlError("why looks into processes of a job: only root may (sudo stragctl why)")
    try:
        job, rank, peer, findings = _ask(arguments)
        _check_visible([rank] if peer is None else [rank, peer])
        seen = take([r["pid"] for r in (rank, peer) if r is not None], arguments.seconds)
    except LookError as error:
        raise ControlError(f"why: {error}") from None
    answer = _answer(job, rank, peer, findings, seen)
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return 0
    width = max(40, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)
    lines = _lines(answer if speaks_utf8(os.environ) else to_ascii(answer), width)
    print("\n".join(lines))
    return 0


def _ask(arguments: argparse.Namespace) -> tuple[Job, Rank, Rank | None, list[Finding]]:
    """Who they are, from the daemon."""
    with ControlClient(arguments.socket) as client:
        extra = {} if arguments.job is None else {"job": arguments.job}
        result = client.request("ranks", **extra)
        try:
            job, ranks = cast(Job, result["job"]), cast("list[Rank]", result["ranks"])
            rank = sides.find(job, ranks, arguments.rank)
            if arguments.peer == arguments.rank:
                raise LookError(f"rank {arguments.rank} cannot be its own peer")
            if arguments.peer is None:
                peer = sides.healthiest(ranks, rank)
            else:
                peer = sides.find(job, ranks, arguments.peer)
            findings = client.request("findings", job=job["key"])["findings"]
            about = [f for f in findings if f["subject"].get("rank") == rank["rank"]]
        except SHAPE_ERRORS:
            raise ControlError(f"{arguments.socket}: {WRONG_SHAPE}") from None
    return job, rank, peer, about


def _check_visible(ranks: Sequence[Rank]) -> None:
    """The kernel's records name threads as the initial namespace does."""
    if os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
        raise LookError("this is a container's PID namespace: run it on the host itself")
    for rank in ranks:
        if not os.path.exists(f"/proc/{rank['pid']}"):
            raise LookError(
                f"rank {rank['rank']} (pid {rank['pid']}) has ended (see: stragctl ranks)"
            )


def _answer(
    job: Job, rank: Rank, peer: Rank | None, findings: list[Finding], seen: Seen
) -> dict[str, Any]:
    """The whole look as one JSON object; what `_lines` renders."""
    mine = seen.measures[0]
    others = seen.measures[1] if peer else None
    answer: dict[str, Any] = {
        "job": {"key": job["key"], "name": job["name"]},
        "rank": _who(rank),
        "peer": None if peer is None else _who(peer),
        "seconds": round(seen.seconds, 3),
        "findings": findings,
        "differences": [],
        "contrasts": [],
        "python": {"places": [], "unread": _unread_python(rank, peer, seen.python)},
        "unread": seen.unread,
        "ranks": [_everything(m, p) for m, p in zip(seen.measures, seen.python, strict=True)],
    }
    stacks = [p.stacks for p in seen.python]
    if others is None or peer is None:
        places = python_stacks.usual(stacks[0], rank["pid"])
    else:
        answer["differences"] = [
            {**asdict(d), "more": d.more} for d in compare.differences(mine, others)
        ]
        answer["contrasts"] = [asdict(c) for c in compare.contrasts(mine, others)]
        if any("page fault" in contrast["what"] for contrast in answer["contrasts"]):
            answer["unread"].append(_FAULTS)
        places = python_stacks.places(stacks[0], rank["pid"], stacks[1], peer["pid"])
    answer["python"]["places"] = [asdict(place) for place in places]
    return cast("dict[str, Any]", _rounded(answer))


def _who(rank: Rank) -> dict[str, Any]:
    return {name: rank[name] for name in ("rank", "host", "class", "pid", "state", "own_ms")}  # type: ignore[literal-required]


def _everything(seen: Measures, python: Python) -> dict[str, Any]:
    series = {
        what: {"ms_per_s": s.mean, "longest_ms": s.longest_ms, "count": s.count,
               "slices": s.slices, "thread": s.thread, "stack": s.stack}
        for what, s in sorted(seen.series.items(), key=lambda item: -item[1].mean)
    }  # fmt: skip
    own = {**asdict(seen), "series": series}
    return {**own, "python": python_stacks.as_json(python.stacks)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _unread_python(rank: Rank, peer: Rank | None, python: Sequence[Python]) -> list[str]:
    """Why there are no Python stacks, once where it holds for both."""
    reasons: dict[str, list[str]] = {}
    for who, one in zip([r for r in (rank, peer) if r], python, strict=True):
        if one.reason:
            reasons.setdefault(one.reason, []).append(f"rank {who['rank']}")
    return [f"{' and '.join(who)}: {reason}" for reason, who in reasons.items()]


def _lines(answer: dict[str, Any], width: int) -> list[str]:
    """The answer for a person."""
    rank, peer = answer["rank"], answer["peer"]
    who = f"rank {rank['rank']} (pid {rank['pid']})"
    beside = "" if peer is None else f" beside rank {peer['rank']} (pid {peer['pid']})"
    name = clean(answer["job"]["name"], 80)
    lines = [f"job {name}, {who}{beside} on {clean(rank['host'], 60)}, {answer['seconds']:.1f} s"]
    for finding in answer["findings"]:
        lines += [plain(line) for line in finding_lines(finding, width)]
    if not answer["findings"]:
        lines.append(f"no finding about rank {rank['rank']}")
    lines.append("")
    lines += _alone(answer, width) if peer is None else _differing(answer, width)
    lines += _python(answer, width)
    unread = [*answer["unread"], *answer["python"]["unread"]]
    for text in unread:
        lines += wrap(f"not read: {clean(text)}", width, "  ")
    return lines


def _differing(answer: dict[str, Any], width: int) -> Iterator[str]:
    found, peer = answer["differences"], answer["peer"]
    if not found and not answer["contrasts"]:
        yield from wrap(
            "nothing differs: time on a CPU, time without one and every kind of wait are alike "
            f"within {compare.LEAST_MS:.0f} ms of each second",
            width,
        )
        return
    if found:
        yield "what differs, in ms of each second, summed over threads and workers:"
        rows = [
            (
                f"  {clean(d['what'], 60)}", ms(d["rank"]), f"peer {ms(d['peer'])}",
                f"{d['more']:+.0f}", _detail(d),
            )
            for d in found[:_MAX_SHOWN]
        ]  # fmt: skip
        for line in table(("", "", "", "", ""), rows, right=(1, 2, 3))[1:]:
            yield from wrap_row(line, width)
        if found[0]["more"] < 0:
            yield f"  (rank {peer['rank']} has more of all of these)"
    for contrast in answer["contrasts"]:
        mine, others = (_amount(contrast[side], contrast["unit"]) for side in ("rank", "peer"))
        yield from wrap(f"{clean(contrast['what'], 80)}: {mine}, peer {others}", width, "  ")


def wrap_row(line: str, width: int) -> list[str]:
    """A row of a table as it is, or its end on a second line where it does not fit."""
    if len(line) <= width:
        return [line]
    cut_at = line.rfind("  ", 0, width)
    return [line[:cut_at].rstrip(), *wrap("    " + line[cut_at:].strip(), width, "    ")]


def _detail(difference: dict[str, Any]) -> str:
    parts = []
    if difference["longest_ms"] or difference["peer_longest_ms"]:
        longest, others = difference["longest_ms"], difference["peer_longest_ms"]
        parts.append(f"longest {ms(longest)} ms, peer {ms(others)}")
    if difference["stack"]:
        parts.append(f"in {clean(difference['thread'], 40)}")
    return ", ".join(parts)


def _amount(value: object, unit: str) -> str:
    if unit == "ms":
        return ms(value, unit=True)
    return f"{count(value)} {unit}"


def _alone(answer: dict[str, Any], width: int) -> Iterator[str]:
    yield from wrap(
        "no healthy rank of its class and collective sequence is on this node: without a "
        "comparison (one can be named with --peer)",
        width,
        "  ",
    )
    yield "its time, in ms of each second, summed over threads and workers:"
    series = answer["ranks"][0]["series"]
    rows = [
        (f"  {clean(what, 60)}", ms(s["ms_per_s"]), f"longest {ms(s['longest_ms'])} ms")
        for what, s in list(series.items())[:_MAX_SHOWN]
    ]
    yield from table(("", "", ""), rows, right=(1,))[1:]


def _python(answer: dict[str, Any], width: int) -> Iterator[str]:
    places = answer["python"]["places"]
    if places:
        yield "Python, main thread:"
    for place in places[:_MAX_SHOWN]:
        share = percent(place["rank"])
        if place["peer"] is not None:
            share += f", peer {percent(place['peer'])}"
        callers = "".join(f" < {clean(frame, 80)}" for frame in place["callers"])
        yield from wrap(f"  {share}: {clean(place['frame'], 80)}{callers}", width, "    ")
