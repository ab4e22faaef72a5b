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
from stragd.cli.ranges import number
from stragd.cli.reasons import finding_lines
from stragd.cli.terminal import speaks_utf8
from stragd.cli.text import clean, plain, to_ascii, wrap
from stragd.cli.top import PIPE_WIDTH, SHAPE_ERRORS, WRONG_SHAPE
from stragd.finding import Finding
from stragd.outputs.snapshot import Job, Rank
from stragd.why import LookError, compare, python_stacks, sides
from stragd.why.measures import RUNNABLE, Measures
from stragd.why.session import Python, Seen, take
from stragd.why.waits import is_scheduler

_MAX_SHOWN = 8
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, fixed in the kernel
_FAULTS = "the time of page faults that need no wait: no tracepoint marks their end"


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
        "--seconds",
        type=number(1, 300, of="seconds"),
        default=10.0,
        metavar="S",
        help="how long to look (default 10)",
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
    shown = answer(job, rank, peer, findings, seen)
    if arguments.json:
        print(json.dumps(shown, indent=2))
        return 0
    width = max(40, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns)
    text = lines(shown if speaks_utf8(os.environ) else to_ascii(shown), width)
    print("\n".join(text))
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


def answer(
    job: Job, rank: Rank, peer: Rank | None, findings: list[Finding], seen: Seen
) -> dict[str, Any]:
    """The whole look as one JSON object; what `lines` renders."""
    mine = seen.measures[0]
    others = seen.measures[1] if peer else None
    found: dict[str, Any] = {
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
        found["differences"] = [
            {**asdict(d), "more": d.more} for d in compare.differences(mine, others)
        ]
        found["contrasts"] = [asdict(c) for c in compare.contrasts(mine, others)]
        if any("page fault" in contrast["what"] for contrast in found["contrasts"]):
            found["unread"].append(_FAULTS)
        places = python_stacks.places(stacks[0], rank["pid"], stacks[1], peer["pid"])
    found["python"]["places"] = [asdict(place) for place in places]
    return cast("dict[str, Any]", _rounded(found))


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


def lines(answer: dict[str, Any], width: int) -> list[str]:
    """The answer for a person."""
    rank, peer = answer["rank"], answer["peer"]
    who = f"rank {rank['rank']} (pid {rank['pid']})"
    beside = "" if peer is None else f" beside rank {peer['rank']} (pid {peer['pid']})"
    name = clean(answer["job"]["name"], 80)
    title = f"job {name}, {who}{beside} on {clean(rank['host'], 60)}, {answer['seconds']:.1f} s"
    text = wrap(title, width, "  ")
    for finding in answer["findings"]:
        text += [plain(line) for line in finding_lines(finding, width)]
    if not answer["findings"]:
        text.append(f"no finding about rank {rank['rank']}")
    text.append("")
    text += _alone(answer, width) if peer is None else _differing(answer, width)
    text += _python(answer, width)
    for item in [*answer["unread"], *answer["python"]["unread"]]:
        text += wrap(f"not read: {clean(item)}", width, "  ")
    return text


def _differing(answer: dict[str, Any], width: int) -> Iterator[str]:
    found, peer = answer["differences"], answer["peer"]
    if not found and not answer["contrasts"]:
        yield from wrap(
            "nothing differs: time on a CPU, time without one and every kind of wait are the same, "
            f"but for less than {compare.LEAST_MS:.0f} ms of each second, a fifth, or chance",
            width,
            "  ",
        )
        return
    if not found:
        yield "the times are alike, these are not:"
    else:
        yield from wrap("what differs, in ms of each second, summed over its threads:", width, "  ")
    for d in found[:_MAX_SHOWN]:
        numbers = f"{clean(d['what'], 60)}: {ms(d['rank'])}, peer {ms(d['peer'])}"
        yield from _indented(f"{numbers} ({d['more']:+.0f}){_detail(d)}", width)
        if d["what"] == RUNNABLE:
            side = int(d["more"] < 0)
            yield from _taken(answer["ranks"][side]["gave_way_to"], width)
    if found and found[0]["more"] < 0:
        yield from _indented(f"(rank {peer['rank']} has more of all of these)", width)
    for contrast in answer["contrasts"]:
        mine, others = (_amount(contrast[side], contrast["unit"]) for side in ("rank", "peer"))
        yield from _indented(f"{clean(contrast['what'], 80)}: {mine}, peer {others}", width)


def _taken(takers: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """Who got the CPU meanwhile."""
    parts = []
    for taker in takers[:3]:
        who = clean(taker["name"] or "processes that have ended", 40)
        pids = ", ".join(str(tid) for tid in taker["tids"][:3])
        more = ", ..." if len(taker["tids"]) > 3 else ""
        parts.append(f"{who} (pid {pids}{more}) {percent(taker['share'])}")
    if parts:
        yield from _indented(f"its CPU went to {'; '.join(parts)}", width)


def _detail(difference: dict[str, Any]) -> str:
    text = ""
    if difference["longest_ms"] or difference["peer_longest_ms"]:
        longest, others = difference["longest_ms"], difference["peer_longest_ms"]
        text += f", longest {ms(longest)} ms, peer {ms(others)}"
    if difference["stack"]:
        stack = [name for name in difference["stack"] if not is_scheduler(name)][:3]
        text += f"; thread {clean(difference['thread'], 40)} in {' < '.join(stack)}"
    return text


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
    yield from wrap("its time, in ms of each second, summed over its threads:", width, "  ")
    for what, series in list(answer["ranks"][0]["series"].items())[:_MAX_SHOWN]:
        longest = f", longest {ms(series['longest_ms'])} ms" if series["longest_ms"] else ""
        yield from _indented(f"{clean(what, 60)}: {ms(series['ms_per_s'])}{longest}", width)


def _python(answer: dict[str, Any], width: int) -> Iterator[str]:
    places = answer["python"]["places"]
    if places:
        yield "Python, main thread:"
    for place in places[:_MAX_SHOWN]:
        share = percent(place["rank"])
        if place["peer"] is not None:
            share += f", peer {percent(place['peer'])}"
        stack = " < ".join(clean(frame, 80) for frame in place["stack"])
        yield from _indented(f"{share}: {stack}", width)


def _indented(text: str, width: int) -> Iterator[str]:
    for place, line in enumerate(wrap(text, width - 4)):
        yield ("    " if place else "  ") + line
