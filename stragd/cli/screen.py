"""One picture of `top`: a pure function of a snapshot, a size and what the person chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stragd.cli.numbers import age, count, ms, number, percent, size
from stragd.cli.ranktable import culprits, ordered, table_lines
from stragd.cli.reasons import abstention_lines, clock, finding_lines
from stragd.cli.text import Line, Span, cells, clean, cut, cut_line, plain, to_ascii, wrap
from stragd.finding import Finding
from stragd.outputs.snapshot import Health, Job, Rank, Top

LEAST_WIDTH = 40
LEAST_HEIGHT = 8
SILENT_SECONDS = 10.0

HELP = (
    "q        quit",
    "j k      next, previous rank (also arrow keys, PgUp, PgDn, Home, End)",
    "h l      previous, next job (also left and right arrow keys, Tab)",
    "Esc      select nothing: follow the costliest job and its blamed rank",
    "s        next order of the table: auto, rank, own, lateness, wait",
    "p        pause and go on",
    "?        this page and back; in the table > is the selected rank, ! a blamed one",
    "",
    "own      the rank's own work in a step: the part in which nobody holds it up",
    "wait     waiting for others inside collectives",
    "comm     moving data once everybody is there",
    "step     the whole step: the same for all ranks, since they go in step",
    "lateness how much later than the first a rank joined the others; a bar a window,",
    "         a full bar is the largest of the job, at least 5 % of a step",
    "vs peers own against the median of the ranks of the same class and the same work",
    "",
    "The rank with the largest own, the shortest wait and the largest lateness is the",
    "one that everybody waits for. Times are milliseconds per step.",
)


@dataclass(frozen=True)
class View:
    """What the person chose, and what the screen knows beside the snapshot."""

    job: str | None = None  # key
    selected: tuple[int, int] | None = None  # (rank, pid)
    sort: str = "auto"
    paused: bool = False
    help: bool = False
    utf8: bool = True
    stale: str = ""  # "no answer from stragd for 4 s", "" while all is fresh
    problem: str = ""  # the reason for it, one line
    live: bool = True  # keys are read: say which


def job_of(top: Top, view: View) -> Job | None:
    """The job on the screen: the chosen one, else the one that loses most, else the first."""
    for job in top["jobs"]:
        if job["key"] == view.job:
            return job
    by_cost = sorted(top["jobs"], key=lambda j: -(number(j["cost_percent"]) or 0.0))
    return by_cost[0] if by_cost else None


def ranks_of(top: Top, job: Job, view: View) -> list[Rank]:
    """The ranks of a job in the order of the screen."""
    ranks = [r for r in top["ranks"] if r["job"] == job["key"]]
    return ordered(ranks, findings_of(top, job), view.sort)


def findings_of(top: Top, job: Job) -> list[Finding]:
    """The open findings of a job, most expensive first."""
    return [f for f in top["findings"] if f["job"]["key"] == job["key"]]


def screen(top: Top, width: int, height: int, view: View) -> list[Line]:
    """The picture in at most ``height`` lines of at most ``width`` columns.

    Raises KeyError, TypeError, ValueError or AttributeError where the snapshot has another shape.
    """
    if not view.utf8:
        top = to_ascii(top)
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        text = f"stragctl top needs {LEAST_WIDTH}x{LEAST_HEIGHT}, this is {width}x{height}"
        return [[Span(part)] for part in wrap(text, max(1, width))][: max(0, height)]
    first, last = _title(top, width, view), _health(top["health"], width)
    notice = _notice(top, width, height, view)
    room = height - 1 - 1 - len(notice)
    if view.help:
        body: list[Line] = [[Span(part)] for text in HELP for part in _whole(text, width)]
    else:
        job = job_of(top, view)
        body = _no_job(top, width) if job is None else _job(top, job, width, room, view)
    body = body[:room] + [[] for _ in range(room - len(body))]
    lines = [first, *body, *notice, last]
    return [cut_line(line, width) for line in lines]


def _whole(text: str, width: int) -> list[str]:
    if cells(text) <= width:
        return [text]
    return wrap(text, width, " " * 9)


def _title(top: Top, width: int, view: View) -> Line:
    left = f"stragd {clean(top['version'], 20)} on {clean(top['host'], 60)}, "
    left += clock(top["time"], top["time"])
    if view.stale:
        return _two_ends([Span(left, "title")], Span(view.stale, "bad"), width)
    keys = "paused (p: go on)" if view.paused else "?: help  q: quit" if view.live else ""
    return _two_ends([Span(left, "title")], Span(keys, "warn" if view.paused else "dim"), width)


def _two_ends(left: Line, right: Span, width: int) -> Line:
    """``right`` whole at the right end, ``left`` in what remains."""
    room = width - cells(right.text) - (2 if right.text else 0)
    kept = cut_line(left, room)
    gap = width - cells(right.text) - sum(cells(s.text) for s in kept)
    return cut_line([*kept, Span(" " * max(0, gap)), right], width)


def _notice(top: Top, width: int, height: int, view: View) -> list[Line]:
    """The lines above the last: what is wrong, else what the words mean."""
    health = top["health"]
    text = ""
    if view.problem:
        text = clean(view.problem, 1000)
    elif health["probes"] == "off":
        text = "probes are off: stragd sees nothing (stragctl probes on)"
    elif view.job is not None and all(j["key"] != view.job for j in top["jobs"]):
        text = f"job {clean(view.job, 16)} has ended (Esc: follow the costliest job)"
    elif health["degraded"]:
        more = len(health["degraded"]) - 1
        text = f"degraded: {clean(health['degraded'][0])}"
        text += f" (and {more} more: stragctl doctor)" if more else ""
    if text:
        return [[Span(part, "warn")] for part in wrap(text, width)[:2]]
    if not top["jobs"] or height < 18 or view.help:
        return []
    long = "own = the rank's own work; wait = waiting for others; "
    long += "the largest own is who everybody waits for"
    short = "own = own work; wait = waiting for others; everybody waits for the largest own"
    return [[Span(long if cells(long) <= width else short, "dim")]]


def _health(health: Health, width: int) -> Line:
    lost = f"{count(health['lost'])} lost"
    bpf = number(health["bpf_ns_per_event"])
    parts = [
        Span(f"stragd: {count(health['events_per_s'])} events/s"),
        Span(lost, "warn" if health["lost"] else ""),
        Span(f"{count(health['probes_attached'])} probes"),
        *([] if bpf is None else [Span(f"bpf {bpf:.0f} ns")]),
        Span(f"cpu {percent(health['cpu_percent'] / 100)}"),
        Span(f"{size(health['rss_bytes'])}"),
        Span(f"up {age(health['uptime_s'])}"),
    ]
    line: Line = []
    used = 0
    for span in parts:
        need = cells(span.text) + (2 if line else 0)
        if used + need > width:
            break
        line += [Span(", " if line else "", "dim"), span] if line else [span]
        used += need
    return line


def _no_job(top: Top, width: int) -> list[Line]:
    texts = [
        "",
        "No training job on this node yet.",
        "",
        "stragd finds a job by itself when a process loads NCCL, RCCL or gloo and",
        "calls collectives: nothing has to be changed or restarted. A job runs and is",
        "not here? stragctl doctor says what is missing, and why.",
    ]
    return [[Span(part)] for text in texts for part in (wrap(text, width) or [""])]


def _job(top: Top, job: Job, width: int, room: int, view: View) -> list[Line]:
    ranks = ranks_of(top, job, view)
    selected = next((r for r in ranks if (r["rank"], r["pid"]) == view.selected), None)
    head = _job_head(top, job, width, view)
    why = _why(top, job, ranks, selected, width)
    # The reason needs a few lines, the ranks want as many as they are: what the one does not
    # need the other gets.
    free = room - len(head) - 3  # two rules and the table's header
    for_ranks = min(len(ranks), max(free - len(why), free // 2, 1))
    begin = _scroll(ranks, selected, for_ranks)
    shown = ranks[begin : begin + for_ranks]
    hidden = len(ranks) - len(shown)
    title = "ranks, ms per step"
    if any(r["per"] == "window" for r in ranks):
        title = "ranks, ms per window (no steps inferred)"
    title += f", order: {view.sort}"
    if hidden > 0:
        title += f", {begin + 1}-{begin + len(shown)} of {len(ranks)}"
    left = room - len(head) - 3 - len(shown)
    if len(why) > left > 0:
        why = [*why[: left - 1], [Span("(more: stragctl findings, or a taller window)", "dim")]]
    return [
        *head,
        _rule(title, width, view.utf8),
        *table_lines(ranks, shown, width, selected, view.utf8),
        _rule("why", width, view.utf8),
        *why[: max(0, left)],
    ]


def _scroll(ranks: Sequence[Rank], selected: Rank | None, rows: int) -> int:
    """First rank on the screen: the selected one stays in the middle where it can."""
    if selected is None:
        return 0
    place = next(i for i, rank in enumerate(ranks) if rank is selected)
    return max(0, min(place - rows // 2, len(ranks) - rows))


def _rule(title: str, width: int, utf8: bool) -> Line:
    bar = "─" if utf8 else "-"
    text = f"{bar * 2} {title} "
    return cut_line([Span(text + bar * max(0, width - cells(text)), "dim")], width)


def _job_head(top: Top, job: Job, width: int, view: View) -> list[Line]:
    name = clean(job["name"] or job["key"], 80)
    step = number(job["step_ms"])
    pace = "no steps inferred" if step is None else f"{ms(step)} ms per step"
    world = f"world size {job['world_size']}"
    here = "" if job["local_ranks"] == job["world_size"] else f" ({job['local_ranks']} here)"
    place = ""
    if len(top["jobs"]) > 1:
        number_of = next(i for i, other in enumerate(top["jobs"], 1) if other is job)
        place = f"job {number_of} of {len(top['jobs'])}" + (" (h/l)" if view.live else "")
    # The name gives way first, down to a few letters, then the words around the numbers.
    for text in (f", {world}{here}, {pace}", f", {world}, {pace}", f", {pace}"):
        room = width - cells("job " + text) - (cells(place) + 2 if place else 0)
        if room >= min(cells(name), 12):
            break
    line = [Span("job "), Span(cut(name, max(4, room)), "title"), Span(text)]
    return [_two_ends(line, Span(place), width), _worst(top, job)]


def _worst(top: Top, job: Job) -> Line:
    if job["worst_rank"] is not None:
        blame = next((r for r in top["ranks"] if _is(r, job, job["worst_rank"])), None)
        on = f" on {clean(blame['host'], 40)}" if blame else ""
        text = f"worst: rank {job['worst_rank']}{on}, costs "
        value, share = number(job["cost_ms_per_step"]), number(job["cost_percent"])
        of_step = percent(None if share is None else share / 100)
        text += (
            f"{of_step} of the time" if value is None else f"{ms(value)} ms per step ({of_step})"
        )
        return [Span(text, "bad" if job["state"] == "finding" else "warn")]
    windows = f"{job['windows']} window{'' if job['windows'] == 1 else 's'} scored"
    if job["state"] == "learning":
        return [Span(f"worst: nobody yet, still learning ({job['steps']} steps, {windows})")]
    if job["state"] == "finding":
        return [Span(f"worst: no single rank, see why ({windows})", "warn")]
    ranks = [r for r in top["ranks"] if r["job"] == job["key"] and r["state"] != "gone"]
    unjudged = {a["rank"] for a in top["abstentions"] if a["job"] == job["key"]}
    judged = [r for r in ranks if number(r["own_ms"]) is not None and r["rank"] not in unjudged]
    if not judged:
        return [Span(f"worst: not known, no rank can be judged, see why ({windows})", "warn")]
    who = "all" if len(judged) == len(ranks) else f"{len(judged)} of {len(ranks)}"
    return [Span(f"worst: nobody, {who} ranks keep pace ({windows})", "good")]


def _silence(ranks: Sequence[Rank]) -> float | None:
    """Seconds without any collective of a job, when it is longer than any usual step."""
    alive = [rank for rank in ranks if rank["state"] != "gone"]
    silent = [number(rank["silent_s"]) for rank in alive]
    known = [seconds for seconds in silent if seconds is not None]
    walls = [number(rank["wall_ms"]) or 0.0 for rank in alive]
    if not known or min(known) < max(SILENT_SECONDS, 5 * max(walls) / 1e3):
        return None
    return min(known)


def _is(rank: Rank, job: Job, number_of_rank: int) -> bool:
    return rank["job"] == job["key"] and rank["rank"] == number_of_rank


def _why(
    top: Top, job: Job, ranks: Sequence[Rank], selected: Rank | None, width: int
) -> list[Line]:
    """The lower pane: the selected rank, findings (its own first), abstentions."""
    findings = findings_of(top, job)
    lines: list[Line] = []
    if selected is not None:
        findings.sort(key=lambda f: f["subject"].get("rank") != selected["rank"])
        lines += _about(selected, width)
        if findings and selected["rank"] not in culprits(findings):
            lines += [[Span(f"rank {selected['rank']} is not blamed; of this job:", "dim")]]
    silence = _silence(ranks)
    if silence is not None:
        lines += [[Span(f"no collective for {age(silence)}: the numbers are older", "warn")]]
    for finding in findings:
        lines += finding_lines(finding, width, top["time"], compact=True)
    if not findings:
        text = "no finding: nobody is blamed"
        if job["state"] == "learning":
            text = "no finding: stragd first learns what is normal for this job"
        elif all(number(r["own_ms"]) is None for r in ranks):
            text = "no finding: own work is not known for these ranks"
        lines.append([Span(text)])
    if any("own-unknown" in r["flags"] and r["source"] != "device-ring" for r in ranks):
        text = "host probes see when a rank calls, not how long the device works: own is unknown"
        lines += [[Span(part, "dim")] for part in wrap(text, width, "  ")]
    lines += abstention_lines([a for a in top["abstentions"] if a["job"] == job["key"]], width)
    return lines


def _about(rank: Rank, width: int) -> list[Line]:
    """The selected rank in one or two lines: what the table has no column for."""
    parts = [f"rank {rank['rank']} on {clean(rank['host'], 60)}: {clean(rank['class'], 60)}"]
    parts.append(f"pid {rank['pid']}")
    if rank["container"]:
        parts.append(f"container {clean(rank['container'], 16)}")
    if rank.get("gpu_uuid"):
        parts.append(clean(rank["gpu_uuid"], 60))
    parts.append(f"source {clean(rank['source'] or 'none yet', 20)}")
    coverage = number(rank.get("coverage"))
    if coverage is not None:
        parts.append(f"its ring sees {percent(coverage)} of its calls")
    if number(rank["slowdown"]) is not None:
        parts.append(f"own {percent(rank['slowdown'], sign=True)} vs peers")
    parts.append(f"{rank['steps']} steps, {count(rank['collectives'])} collectives")
    if rank["in_flight"]:
        parts.append(f"{rank['in_flight']} in flight")
    silent = number(rank["silent_s"])
    if silent is not None and silent >= 2:
        parts.append(f"silent for {age(silent)}")
    if rank["flags"]:
        parts.append("flags " + " ".join(clean(flag, 30) for flag in rank["flags"]))
    return [[Span(part)] for part in wrap(", ".join(parts), width, "  ")]


def once(top: Top, width: int, view: View) -> list[str]:
    """All of one job as plain text, as long as it needs to be: for pipes and files."""
    job = job_of(top, view)
    rows = 0 if job is None else len(ranks_of(top, job, view))
    height = 30 + rows + 40 * len(top["findings"]) + 4 * len(top["abstentions"])
    lines = [plain(line) for line in screen(top, width, height, view)]
    # The picture fills its height; on paper one empty line stands for many.
    return [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
