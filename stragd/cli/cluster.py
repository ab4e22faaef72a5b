"""All jobs of the cluster: `jobs --cluster`, and the live `top --cluster`."""

from __future__ import annotations

from typing import Any, cast

from stragd.cli.numbers import UNKNOWN, age, ms
from stragd.cli.reasons import clock, cost, finding_lines, subject
from stragd.cli.sampler import Sample
from stragd.cli.text import Line, Span, cells, clean, cut_line, plain, table, to_ascii, wrap
from stragd.outputs.snapshot import Cluster, ClusterJob

OLD_SECONDS = 60.0
"""Age of what was said of a job that is worth a mark."""
HEADER = ("job", "ranks", "nodes", "ms/step", "findings", "worst", "costs", "scored on", "heard")
RIGHT = (1, 2, 3, 4)


def _title(answer: Cluster) -> str:
    over = clean(answer["exchange"], 20)
    return (
        f"cluster {clean(answer['name'], 64)} over {over}, as {clean(answer['host'], 60)} hears of "
        f"it, {clock(answer['time'], answer['time'])}"
    )


def _notes(answer: Cluster) -> list[str]:
    """What keeps the list from being whole."""
    notes = []
    if answer["problem"]:
        notes.append(f"nothing new comes: {clean(answer['problem'], 1000)}")
    if answer["exchange"] == "store":
        notes.append("a job's store knows no other job: these are the jobs of this node")
    return notes


def _row(job: ClusterJob) -> tuple[str, ...]:
    worst = job["worst"]
    ranks = f"{job['ranks']}/{job['world_size']}"
    return (
        clean(job["name"] or job["key"], 40), ranks, str(job["nodes"]), ms(job["step_ms"]),
        str(job["findings"]),
        UNKNOWN if worst is None else f"{clean(worst['kind'], 20)}: {subject(worst)}",
        UNKNOWN if worst is None else cost(worst).removeprefix("costs "),
        clean(job["node"], 40), f"{age(job['age_s'])} ago",
    )  # fmt: skip


def _style(job: ClusterJob) -> str:
    if job["age_s"] > OLD_SECONDS:
        return "dim"
    if job["worst"] is None:
        return ""
    return "bad" if job["worst"]["state"] == "confirmed" else "warn"


def jobs_lines(answer: Cluster, width: int) -> list[str]:
    """One line per job, the one that loses most first."""
    notes = [line for text in _notes(answer) for line in wrap(text, width)]
    if not answer["jobs"]:
        return [*notes, "no job of the cluster has been heard of yet"]
    return [*table(HEADER, [_row(job) for job in answer["jobs"]], RIGHT), *notes]


def screen(answer: Cluster, width: int, height: int, begin: int, stale: str) -> list[Line]:
    """The picture: jobs from number ``begin`` on, then why the costliest ones lose.

    Raises KeyError, TypeError, ValueError or AttributeError where the answer has another shape.
    """
    jobs = answer["jobs"]
    first: Line = [Span(_title(answer), "title")]
    if stale:
        first = [*cut_line(first, width - cells(stale) - 2), Span("  "), Span(stale, "bad")]
    lines = [first]
    lines += [[Span(part, "warn")] for text in _notes(answer) for part in wrap(text, width)]
    if not jobs:
        return [*lines, [Span("no job of the cluster has been heard of yet")]]
    why = _why(answer, width)
    room = max(1, height - len(lines) - 2)
    count = max(1, min(len(jobs) - begin, max(room - len(why), room // 2)))
    shown = jobs[begin : begin + count]
    rows = table(HEADER, [_row(job) for job in shown], RIGHT)
    for line, job in zip(rows, [None, *shown], strict=True):
        lines.append([Span(line, "dim" if job is None else _style(job))])
    if len(shown) < len(jobs):
        text = f"{begin + 1}-{begin + len(shown)} of {len(jobs)} jobs (j/k)"
        lines.append([Span(text, "dim")])
    return [cut_line(line, width) for line in [*lines, *why][:height]]


def _why(answer: Cluster, width: int) -> list[Line]:
    """The most expensive finding of each job."""
    lines: list[Line] = []
    for job in answer["jobs"]:
        if job["worst"] is not None and job["age_s"] <= OLD_SECONDS:
            lines.append([Span(f"job {clean(job['name'] or job['key'], 60)}", "title")])
            lines += finding_lines(job["worst"], width, answer["time"], compact=True)
    return lines


class ClusterSession:
    """What `top --cluster` shows, and how far down; no terminal in here."""

    verb = "cluster"

    def __init__(self, interval: float, utf8: bool) -> None:
        self.ended = False
        self._limit = max(3.0, 2.5 * interval)
        self._utf8 = utf8
        self._answer: Cluster | None = None
        self._answered = 0.0
        self._problem = ""
        self._begin = 0
        self._paused = False

    def receive(self, sample: Sample) -> None:
        """Take an answer or the reason why there is none."""
        self._problem = sample.problem
        if sample.answer is not None and not self._paused:
            self._answered = sample.at
            answer = sample.answer if self._utf8 else to_ascii(sample.answer)
            self._answer = cast(Cluster, answer)

    def lines(self, width: int, height: int, now: float) -> list[Line]:
        """The picture at ``now`` (CLOCK_MONOTONIC); never raises over what an answer holds."""
        stale = "paused (p: go on)" if self._paused else "q: quit"
        if self._problem or (now - self._answered > self._limit and not self._paused):
            stale = f"no answer from stragd for {age(now - self._answered)}"
        try:
            if self._answer is None:
                raise TypeError
            self._begin = max(0, min(self._begin, len(self._answer["jobs"]) - 1))
            picture = screen(self._answer, width, height - 1, self._begin, stale)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            picture = [[Span("the answer has another shape than expected", "warn")]]
        if self._problem:
            picture = [*picture[: height - 1], [Span(clean(self._problem, 400), "warn")]]
        return [cut_line(line, width) for line in picture]

    def page(self, answer: dict[str, Any], width: int) -> list[str]:
        """An answer on paper."""
        whole = cast(Cluster, answer if self._utf8 else to_ascii(answer))
        height = 20 + len(whole["jobs"]) * 40
        return [plain(line) for line in screen(whole, width, height, 0, "")]

    def press(self, key: str) -> None:
        """Act on one key; keys without a meaning are ignored."""
        if key == "q":
            self.ended = True
        elif key == "p":
            self._paused = not self._paused
        else:
            step = {"j": 1, "down": 1, "k": -1, "up": -1, "pgdn": 10, "pgup": -10, "home": -1 << 30}
            self._begin = max(0, self._begin + step.get(key, 0))
