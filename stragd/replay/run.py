"""A recording through the scorer of the live daemon: what it found, from when to when."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from stragd._rscore import Scorer
from stragd.finding import Finding, Subject, build, class_speeds, iso_time, job_key
from stragd.jobs import STEPS_NOT_INFERRED, clean
from stragd.outputs.snapshot import Abstention
from stragd.replay.recording import RecordedJob, Recording

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd._rscore import Abstention as RawAbstention
    from stragd._rscore import Finding as RawFinding

SLOW = ("suspect", "confirmed")
MAX_FINDINGS = 10_000
MAX_SLOW = 1000
"""Windows of a finding that are kept for its median."""


class Replay(TypedDict):
    """Answer of `stragctl replay --json`."""

    format: str
    ranks: int
    windows: int
    steps: int  # of the longest job
    steps_per_window: int | None  # None where the recording was cut into windows already
    refused_rows: int
    findings: list[Finding]  # that were confirmed, open or cleared at the end
    abstentions: list[Abstention]  # ranks without a verdict in most of their windows
    notes: list[str]


@dataclass
class _Window:
    """Of one window of one job."""

    first_step: int
    last_step: int
    number: int
    time_ns: int
    inferred: bool
    speeds: dict[str, float]
    """Of each class, over the fastest's."""

    def name(self, last: bool = False) -> str:
        """Its first step (its last one), as people are told."""
        if not self.inferred:
            return f"window {self.number}"
        return f"step {self.last_step if last else self.first_step}"


@dataclass
class _Episode:
    """Life of one of the scorer's findings within the recording."""

    last: RawFinding
    confirmed: bool = False
    windows: int = 0  # in which it was slow
    last_slow: int = 0  # the last of them
    slow: list[RawFinding] = field(default_factory=list)  # of these windows, perhaps thinned out


class _Silence:
    """Windows in which nothing was said about the ranks of one job.

    The scorer says nothing while it learns, and little at the ragged end of a recording.
    """

    def __init__(self) -> None:
        self._windows: Counter[int] = Counter()
        self._silent: dict[int, Counter[str]] = {}
        self._last: dict[int, int] = {}

    def take(self, rows: NDArray[np.void], abstentions: list[RawAbstention]) -> None:
        self._windows.update(rows["rank"].tolist())
        for item in abstentions:
            self._silent.setdefault(item["rank"], Counter())[item["reason"]] += 1
            self._last[item["rank"]] = item["window"]

    def most(self, key: int, about: RecordedJob) -> Iterator[Abstention]:
        """Ranks without a verdict in most of their windows, with the usual reason."""
        for rank, reasons in sorted(self._silent.items()):
            if 2 * reasons.total() > self._windows[rank]:
                yield {
                    "job": job_key(key),
                    "job_name": about.name,
                    "rank": int(rank),
                    "window": int(self._last[rank]),
                    "reason": clean(reasons.most_common(1)[0][0]),
                }


def replay(recording: Recording, settings: dict[str, Any] | None = None) -> Replay:
    """Score every window in its order. ``settings`` is the scorer's configuration."""
    scorer = Scorer(settings or {})
    episodes: dict[tuple[int, int], _Episode] = {}
    windows: dict[tuple[int, int], _Window] = {}
    silences = {key: _Silence() for key in recording.jobs}
    refused = 0
    for rows in recording.windows:
        key = int(rows["job"][0])
        windows[key, int(rows["window"][0])] = _window(rows, recording.jobs[key])
        update = scorer.update(rows)
        refused += update["refused_rows"]
        for raw in update["findings"]:
            _take(episodes, raw)
        silences[key].take(rows, update["abstentions"])
    findings = []
    abstentions = [
        item for key, about in recording.jobs.items() for item in silences[key].most(key, about)
    ]
    for episode in episodes.values():
        if episode.confirmed:
            findings.append(_finding(episode, recording, windows))
        elif episode.last["state"] == "suspect" and episode.last["rank"] is not None:
            key = episode.last["job"]
            begin = windows[key, episode.last["since_window"]].name()
            reason = f"suspected since {begin}, and the recording ends before it is confirmed"
            abstentions.append(_no_verdict(episode.last, recording.jobs[key], reason))
    for told in recording.findings:
        about = recording.jobs[told["job"]]
        if told["state"] == "suspect":
            abstentions.append(_no_verdict(told, about, "suspected, not confirmed"))
            continue
        finding = build(told, _about(told["job"], about), _subject(told, about), True)
        finding["evidence"] = told["evidence"]
        findings.append(finding)
    findings.sort(key=lambda f: (f["since"]["window"], f["id"]))
    return {
        "format": recording.format,
        "ranks": sum(len(about.ranks) for about in recording.jobs.values()),
        "windows": len(recording.windows),
        "steps": recording.steps,
        "steps_per_window": recording.steps_per_window,
        "refused_rows": refused,
        "findings": findings,
        "abstentions": abstentions,
        "notes": recording.notes,
    }


def _no_verdict(raw: Mapping[str, Any], about: RecordedJob, reason: str) -> Abstention:
    """The recording is too short to know: nobody is named."""
    return {
        "job": job_key(raw["job"]),
        "job_name": about.name,
        "rank": int(raw["rank"]),
        "window": int(raw["window"]),
        "reason": reason,
    }


def _window(rows: NDArray[np.void], about: RecordedJob) -> _Window:
    classes = (_class_name(number, about) for number in rows["class_id"].tolist())
    return _Window(
        int(rows["first_step"].min()),
        int(rows["last_step"].max()),
        int(rows["window"][0]),
        int(rows["time_ns"].max()),
        not bool((rows["flags"] & STEPS_NOT_INFERRED).any()),
        class_speeds(zip(classes, rows["own"].tolist(), strict=True)),
    )


def _class_name(number: int, about: RecordedJob) -> str:
    return clean(about.classes.get(number, f"{number:08x}"))


def _take(episodes: dict[tuple[int, int], _Episode], raw: RawFinding) -> None:
    key = (raw["job"], raw["id"])
    episode = episodes.get(key)
    if episode is None:
        if len(episodes) >= MAX_FINDINGS:
            return
        episode = episodes[key] = _Episode(raw)
    episode.last = raw
    episode.confirmed |= raw["state"] == "confirmed"
    if raw["state"] in SLOW:
        episode.windows += 1
        episode.last_slow = raw["window"]
        episode.slow.append(raw)
        if len(episode.slow) > MAX_SLOW:
            del episode.slow[::2]


def _finding(
    episode: _Episode, recording: Recording, windows: dict[tuple[int, int], _Window]
) -> Finding:
    """The finding with the numbers of its median slow window and the state it ended in."""
    last = episode.last
    typical = sorted(episode.slow, key=lambda raw: raw["slowdown"])[len(episode.slow) // 2]
    raw: dict[str, Any] = {**typical, "state": last["state"], "window": last["window"]}
    proven = [r["confidence"] for r in episode.slow if r["state"] == "confirmed"]
    raw["confidence"] = statistics.median(proven) if proven else last["confidence"]
    raw["since_window"], raw["since_time_ns"] = last["since_window"], last["since_time_ns"]
    if not recording.has_unit:
        raw.update(dict.fromkeys(("cost_ns", "cost_low_ns", "cost_high_ns", "own_ns"), None))
        raw["peers_own_ns"] = None
    job = last["job"]
    about = recording.jobs[job]
    begin = windows[job, last["since_window"]]
    speeds = windows[job, typical["window"]].speeds
    finding = build(raw, _about(job, about), _subject(raw, about), begin.inferred, speeds)
    end = windows[job, episode.last_slow]
    if begin.inferred:
        finding["since"]["step"] = begin.first_step
    if last["state"] in ("recovering", "cleared"):
        finding["until"] = {"window": end.number, "time": iso_time(end.time_ns)}
        if end.inferred:
            finding["until"]["step"] = end.last_step
    finding["evidence"].append(
        f"slow in {episode.windows} windows, from {begin.name()} to {end.name(last=True)}"
    )
    return finding


def _about(key: int, about: RecordedJob) -> Any:
    return {"key": job_key(key), "name": about.name, "world_size": about.world_size}


def _subject(raw: dict[str, Any], about: RecordedJob) -> Subject:
    """Whom a finding is about, with the recording's own name."""
    subject: Subject = {}
    signature, rank = raw["signature"], raw["rank"]
    if rank is not None:
        subject["rank"] = rank
        subject["host"] = clean(about.hosts.get(rank, ""))
        subject["class"] = clean(about.classes.get(raw["class_id"], ""))
        if rank in about.labels:
            subject["label"] = clean(about.labels[rank])
    elif raw["kind"] == "imbalance" and raw["class_id"] is not None:
        subject["class"] = _class_name(raw["class_id"], about)
    elif raw["kind"] == "uneven-work" and signature is not None:
        subject["signature"] = f"{signature:016x}"
        if signature in about.stages:
            subject["stage"] = about.stages[signature]
            subject["label"] = f"stage {about.stages[signature]}"
    return subject
