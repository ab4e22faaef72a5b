"""Findings and abstentions in words: the one wording that `findings` and `top` share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from stragd.cli.numbers import age, ms, percent
from stragd.cli.text import Line, Span, clean, wrap
from stragd.finding import Finding
from stragd.outputs.snapshot import Abstention, Event

_STYLE = {"confirmed": "bad", "suspect": "warn", "recovering": "warn", "cleared": "good"}


def moment(text: object) -> datetime | None:
    """An ISO 8601 time, None where it is none."""
    try:
        value = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def clock(text: object, now: object = None) -> str:
    """A time as HH:MM:SS UTC, with its date where that is not the date of ``now``."""
    value = moment(text)
    if value is None:
        return clean(text, 40)
    value = value.astimezone(timezone.utc)
    today = moment(now)
    same_day = today is not None and today.astimezone(timezone.utc).date() == value.date()
    return value.strftime("%H:%M:%S UTC" if same_day else "%Y-%m-%d %H:%M:%S UTC")


def subject(finding: Finding | Event) -> str:
    """Whom a finding, or its event, is about: "rank 2 on node7", "class nvidia/L4", ..."""
    part = finding["subject"]
    if "rank" in part:
        name = f"rank {part['rank']}"
        host = f" on {clean(part['host'], 80)}" if part.get("host") else ""
        label = clean(part.get("label", name), 80)
        return f"{name}{host}" if label == name else f"{name} ({label}){host}"
    if "nic" in part:
        host = f" on {clean(part['host'], 80)}" if part.get("host") else ""
        return f"NIC {clean(part['nic'], 40)}{host}"
    if "stage" in part:
        return f"stage {part['stage']}"
    if "signature" in part:
        return f"ranks with the signature {clean(part['signature'], 16)}"
    if "class" in part:
        return f"class {clean(part['class'], 80)}"
    return "the whole job"


def cost(finding: Finding) -> str:
    """What a finding costs, in a few words; "cost unknown" where nothing is known."""
    value = finding["cost_ms_per_step"]
    share = percent(finding["cost_percent"] / 100)
    if value is None:
        return f"costs {share} of the time"
    return f"costs {ms(value['value'])} ms per step ({share})"


def headline(finding: Finding, now: object = None) -> str:
    """Kind, subject and state of a finding in one line."""
    since = finding["since"]
    text = f"{clean(finding['kind'])}: {subject(finding)}, {clean(finding['state'])}"
    if "step" in since:  # of a recording
        until = finding.get("until", {}).get("step")
        if until is not None:
            return f"{text} from step {since['step']} to {until}"
        return f"{text} since step {since['step']}"
    begin, today = moment(since["time"]), moment(now)
    if begin is not None and begin.year == 1970:
        return text  # a recording without clock and steps
    text += f" since {clock(since['time'], now)}"
    if begin is not None and today is not None and today >= begin:
        text += f" ({age((today - begin).total_seconds())} ago)"
    return text


def finding_lines(
    finding: Finding, width: int, now: object = None, compact: bool = False
) -> list[Line]:
    """A finding as a headline and indented reasons, ``width`` columns at most.

    ``compact`` runs the reasons together: the lower pane of `top` has few lines.
    """
    style = _STYLE.get(finding["state"], "")
    lines: list[Line] = [[Span(text, style)] for text in wrap(headline(finding, now), width, "  ")]
    for text in _body(finding, compact):
        lines += [[Span("  " + part)] for part in wrap(text, width - 2, "  ")]
    return lines


def _body(finding: Finding, compact: bool) -> Iterable[str]:
    value = finding["cost_ms_per_step"]
    text = cost(finding)
    if value is not None:
        text += f", between {ms(value['low'])} and {ms(value['high'])} ms"
    yield f"{text}; confidence {percent(finding['confidence'])}"
    cause = finding["cause"]
    where = f"where: {clean(finding['where'])}, "
    if cause["name"] == "unknown":
        yield f"{where}cause: unknown"
        evidence = [*finding["evidence"], *cause["evidence"]]
    else:
        yield f"{where}cause: {clean(cause['name'])} ({percent(cause['confidence'])} sure)"
        evidence = [*cause["evidence"], *finding["evidence"]]
    if cause["advice"]:
        yield f"to do: {clean(cause['advice'])}"
    evidence = [clean(item) for item in evidence]
    if compact and evidence:
        yield "; ".join(evidence)
    else:
        yield from (f"- {item}" for item in evidence)
    # The evidence says against what a rank is slow: its peers, or its own past.
    if not evidence and finding["slowdown"] is not None:
        side = "above" if finding["slowdown"] >= 0 else "below"
        yield f"own work is {percent(abs(finding['slowdown']))} {side} its peers"


def rank_list(ranks: Sequence[int], limit: int = 6) -> str:
    """Ranks with runs joined: "rank 3", "ranks 0-3, 7", long lists cut with a count."""
    ordered = sorted(set(ranks))
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:limit]]
    left = sum(b - a + 1 for a, b in runs[limit:])
    more = f" and {left} more" if left else ""
    return f"rank{'' if len(ordered) == 1 else 's'} {', '.join(shown)}{more}"


def abstention_lines(
    abstentions: Iterable[Abstention], width: int, job_names: bool = False
) -> list[Line]:
    """One line per reason, with the ranks it holds for: "no verdict on ranks 0-1: ..."."""
    groups: dict[tuple[str, str], list[int]] = {}
    for item in abstentions:
        job = clean(item["job_name"] or item["job"], 60) if job_names else ""
        groups.setdefault((job, clean(item["reason"])), []).append(item["rank"])
    lines: list[Line] = []
    for (job, reason), ranks in groups.items():
        of = f" of {job}" if job else ""
        text = f"no verdict on {rank_list(ranks)}{of}: {reason}"
        lines += [[Span(part, "dim")] for part in wrap(text, width, "  ")]
    return lines
