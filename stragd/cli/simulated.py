"""The answer of `stragctl simulate` as a person reads it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stragd.cli.numbers import age, percent
from stragd.cli.reasons import cost, subject
from stragd.cli.text import clean, table, wrap
from stragd.finding import Finding

SURE = 0.95
"""Share of the jobs in which a slowdown has to be named to count as seen."""
SHOWN = 3
"""Findings of one job, at most."""
METHOD = (
    "In brackets: 95 % intervals of the simulation. Slow ranks were as fast as the median of their "
    "class before. A real cluster may have noise that no model here has: record its windows "
    "(stragctl record) and replay them."
)


def job_line(job: dict[str, Any]) -> str:
    """The job in one line."""
    parts = []
    for one in job["classes"]:
        slower = abs(one["speed"] - 1) > 1e-9
        speed = f" at {one['speed']:.2f} of the speed" if slower else ""
        parts.append(f"{one['ranks']} {one['name'] or 'ranks'}{speed}")
    if len(job["stages"]) > 1:
        parts.append(f"{len(job['stages'])} stages")
    parts.append(job["pattern"])
    parts.append(f"{percent(job['jitter'])} jitter a step ({job['noise']})")
    return ", ".join([*parts, f"{percent(job['natural'])} natural spread"])


def lines(answer: dict[str, Any], width: int) -> list[str]:
    """The answer as a person reads it."""
    job, healthy, rows = answer["job"], answer["healthy"], answer["power"]
    seconds = job["window_s"]
    text = wrap(clean(job_line(job)), width, "  ")
    text += [
        f"a window is {job['steps_per_window']} steps, {_span(seconds)}",
        "",
        *wrap(_silence(healthy), width, "  "),
        "",
    ]
    body, everywhere = [], healthy["other_findings"].items()
    always = {kind for kind, jobs in everywhere if jobs == healthy["jobs"]}
    for row in rows:
        windows, share = row["windows"], row["share"]
        figures = ["-", "-", "-"]
        if windows:
            mean = f"{windows['mean']:.1f} ({windows['low']:.1f} to {windows['high']:.1f})"
            figures = [mean, f"{windows['percentile_99']:.1f}", _span(windows["mean"] * seconds)]
        body.append(
            [
                clean(row["fault"], 80),
                row["expected"],
                f"{100 * share['value']:.0f} % ({100 * share['low']:.0f} to "
                f"{100 * share['high']:.0f})",
                *figures,
                _remarks(row, always),
            ]
        )
    header = ["fault", "finding", "named", "windows until then", "99 %", "time", ""]
    text += [line.rstrip() for line in table(header, body, right=(4, 5))]
    headline = _headline(rows)
    if headline:
        text += ["", headline]
    if answer["findings"] or answer["abstentions"]:
        text += ["", "said of one job of each fault:", *_said(answer, width)]
    text += ["", *wrap(METHOD, width, "  ")]
    return text


def _said(answer: dict[str, Any], width: int) -> list[str]:
    """The findings and abstentions of the jobs that are shown, the first ones of each."""
    text = []
    for row in answer["power"]:
        mine = [one for one in answer["findings"] if one["job"]["name"] == row["fault"]]
        told = [_finding(one) for one in mine[:SHOWN]]
        if len(mine) > SHOWN:
            told.append(f"and {len(mine) - SHOWN} findings more")
        silent = (one for one in answer["abstentions"] if one["job_name"] == row["fault"])
        for reason, ranks in Counter(one["reason"] for one in silent).items():
            told.append(f"no verdict on {ranks} rank{'s' if ranks > 1 else ''}: {reason}")
        for line in told or ["nothing"]:
            text += [f"  {part}" for part in wrap(f"{row['fault']}: {line}", width - 2, "  ")]
    return text


def _finding(one: Finding) -> str:
    slower = "" if one["slowdown"] is None else f", {percent(one['slowdown'])} slower"
    until = f" to {one['until']['window']}" if "until" in one else ""
    return clean(
        f"{one['kind']} {one['state']}: {subject(one)}{slower}, {cost(one)}, from window "
        f"{one['since']['window']}{until}",
        1000,
    )


def _silence(healthy: dict[str, Any]) -> str:
    false, rate = healthy["false_stragglers"], healthy["per_million"]
    text = (
        f"healthy: {false} {'straggler' if false == 1 else 'stragglers'} in "
        f"{healthy['rank_windows']:,} rank-windows, so between {_rate(rate['low'])} and "
        f"{_rate(rate['high'])} per million (95 %); the limits are made for "
        f"{healthy['stated_per_million']:g}"
    )
    others = [f"{kind} in {n} of {healthy['jobs']} jobs"
              for kind, n in sorted(healthy["other_findings"].items())]  # fmt: skip
    return text + (f"; {', '.join(others)}" if others else "")


def _rate(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _remarks(row: dict[str, Any], always: set[str]) -> str:
    """What else there is to say; without the kinds of finding that every healthy job gives."""
    parts = []
    if "cleared" in row:
        after = row["cleared_windows"]
        windows = f" after {after['mean']:.1f} (at most {after['longest']:.0f})" if after else ""
        parts.append(f"{row['cleared']} of {row['named']} cleared{windows}")
        if row["flaps"]:
            parts.append(f"{row['flaps']} came back")
    if row["others_named"]:
        parts.append(f"{row['others_named']} others named")
    others = sorted(row["other_findings"].items())
    parts += [f"{kind} in {n} jobs" for kind, n in others if kind not in always]
    return ", ".join(parts)


def _headline(rows: list[dict[str, Any]]) -> str:
    """The smallest plain slowdown that is seen."""
    plain = sorted((row["slowdown"], row["share"]["value"]) for row in rows if "slowdown" in row)
    seen = [size for size, named in plain if named >= SURE]
    if not plain:
        return ""
    if not seen:
        return (
            f"none of these slowdowns of one rank is named in at least {percent(SURE)} of the jobs"
        )
    return (
        f"one slow rank is named in at least {percent(SURE)} of the jobs from {percent(seen[0])} on"
    )


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else age(seconds)
