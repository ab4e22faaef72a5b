"""From a finding and telemetry to ranked causes. Pure functions: nothing is read, nothing kept."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from stragd.diagnosis import words
from stragd.diagnosis.cause import Cause, Verdict, judge
from stragd.diagnosis.causes_gpu import GPU_CAUSES
from stragd.diagnosis.causes_host import HOST_CAUSES
from stragd.diagnosis.causes_nic import NIC_CAUSES
from stragd.diagnosis.compare import View, evenly
from stragd.diagnosis.events import remembered, seconds_ago
from stragd.diagnosis.past import Past
from stragd.diagnosis.readings import samples
from stragd.diagnosis.signals import NAMED, STRONG
from stragd.finding import Finding, Where
from stragd.telemetry.sample import RankTelemetry

CAUSES: tuple[Cause, ...] = (*GPU_CAUSES, *HOST_CAUSES, *NIC_CAUSES)
"""Causes that telemetry shows."""
KIND_CAUSES: dict[str, tuple[str, Where, str]] = {
    "uneven-work": (
        "uneven-work",
        "job",
        "move layers or work between the stages, so that each takes as long as the others",
    ),
    "imbalance": (
        "slower-class",
        "machine",
        "give the slower class smaller batches, or keep classes in jobs of their own",
    ),
}
"""Kinds of findings that are their own cause: name, where, advice."""

_SECOND_NS = 1_000_000_000
MAX_RUNNERS_UP = 4
MAX_SURVEYED = 64
"""Ranks looked at for a finding about a whole job; of more, evenly spread ones."""
MAX_COMPARED = 16
"""Ranks that each of them is held against."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The likely cause of a finding."""

    name: str
    """Of a cause, or "unknown"."""
    confidence: float
    """0 to 1; 0 of "unknown"."""
    evidence: tuple[str, ...]
    advice: str
    where: Where
    others: tuple[tuple[str, float], ...] = ()
    """Runner-ups with their confidence, best first."""


def diagnose(
    finding: Finding,
    subject: RankTelemetry | None,
    peers: Sequence[RankTelemetry],
    past: Past,
    slow: Collection[int] = (),
) -> Diagnosis:
    """The likely cause of ``finding``.

    ``subject`` is the rank that it is about, None where it is about no rank or nothing is known of
    it. ``peers`` are the job's other ranks, best those that the scorer compares with; those on
    another GPU model are left out here. ``slow`` are ranks with a finding of their own: they are
    no measure of health, and on the subject's host they tell a sick node from a sick GPU. ``past``
    holds the job's earlier windows. Never raises, whatever the readings are.
    """
    since = _since_ns(finding)
    slowdown = finding["slowdown"]
    kind = finding["kind"]
    if kind in KIND_CAUSES:
        return _of_kind(finding, peers, past, since)
    subject = subject and remembered(subject, past, since)
    peers = [remembered(peer, past, since) for peer in peers]
    if "rank" in finding["subject"]:
        if subject is None or next(samples(subject), None) is None:
            return _unknown(finding["where"], ["there is no telemetry of this rank"])
        return _of_rank(finding, View(subject, peers, past, since, slow), past, slowdown)
    everyone = [*peers] if subject is None else [subject, *peers]
    return _of_job(finding, everyone, past, since)


def apply(finding: Finding, diagnosis: Diagnosis) -> Finding:
    """``finding`` with its cause and place, and the runner-ups among its evidence.

    Where the timing says ``job`` (there is more work), only strong evidence says otherwise.
    """
    made: Finding = {**finding}
    weak = finding["where"] == "job" and diagnosis.confidence < STRONG
    if diagnosis.where != "unknown" and not weak:
        made["where"] = diagnosis.where
    made["cause"] = {
        "name": diagnosis.name,
        "confidence": round(diagnosis.confidence, 3),
        "evidence": list(diagnosis.evidence),
        "advice": diagnosis.advice,
    }
    if diagnosis.others:
        names = ", ".join(f"{name} ({100 * share:.0f} %)" for name, share in diagnosis.others)
        line = f"other causes with something to be said for them: {names}"
        made["evidence"] = [*finding["evidence"], line]
    return made


def _of_rank(finding: Finding, view: View, past: Past, slowdown: float | None) -> Diagnosis:
    network = finding["kind"] == "network"
    verdicts = _rank(_verdicts(view, slowdown, network))
    seen = ""
    if finding["kind"] == "intermittent" and not _named(verdicts):
        # It may be resting in this window: look at the last ones since it began.
        now = view.subject
        for older in _windows(finding, view, past):
            found = _rank(_verdicts(older, None, network))
            if found and (not verdicts or found[0].score > verdicts[0].score):
                verdicts, view = found, older
                seen = f"seen {_ends(now) - _ends(older.subject):.0f} s before this window's end"
    if not _named(verdicts):
        return _unknown(finding["where"], _nothing(view), verdicts)
    best = verdicts[0]
    evidence = words.lines(best, view) + _node_wide(best, view)
    ago = seconds_ago(best, past.recent(view.subject.rank, _since_ns(finding)))
    if ago and not seen:
        seen = f"seen {ago:.0f} s before this window's end"
    evidence += [seen] if seen else []
    return _made(verdicts, [*evidence, words.compared_with(view)])


def _windows(finding: Finding, view: View, past: Past) -> Iterable[View]:
    """The rank in the last whole windows of the finding, newest first, each beside its peers."""
    since = _since_ns(finding)
    kept = {peer.rank: past.recent(peer.rank, since) for peer in view.peers}
    for back, own in enumerate(past.recent(view.subject.rank, since)):
        then = [windows[back] for windows in kept.values() if back < len(windows)]
        yield View(own, then, past, since)


def _ends(telemetry: RankTelemetry) -> float:
    """End of a rank's window, s; there is a sample."""
    return max(sample.end_ns for sample in samples(telemetry)) / 1e9


def _verdicts(
    view: View, slowdown: float | None, network: bool, of_job: bool = False
) -> list[Verdict]:
    made = []
    for cause in CAUSES:
        if (of_job and cause.of_rank) or (network and cause not in NIC_CAUSES):
            continue
        verdict = judge(cause, view, slowdown)
        if verdict is not None:
            made.append(verdict)
    return made


def _rank(verdicts: list[Verdict]) -> list[Verdict]:
    """Best first; a cause yields to a likely one that brings its picture along."""
    strong = {verdict.cause.name for verdict in verdicts if verdict.score >= NAMED}
    settled = [
        _scaled(verdict, 0.5) if strong.intersection(verdict.cause.symptom_of) else verdict
        for verdict in verdicts
    ]
    return sorted(settled, key=lambda verdict: -verdict.score)


def _scaled(verdict: Verdict, factor: float) -> Verdict:
    return replace(verdict, score=verdict.score * factor)


def _named(verdicts: list[Verdict]) -> bool:
    return bool(verdicts) and _confidence(verdicts) >= NAMED


def _confidence(verdicts: list[Verdict]) -> float:
    """The best one's score, less where another speaks as loudly and is no symptom of it."""
    best, name = verdicts[0], verdicts[0].cause.name
    rivals = [v.score for v in verdicts[1:] if name not in v.cause.symptom_of]
    return best.score * (1.0 - 0.25 * max(rivals, default=0.0) / best.score)


def _made(verdicts: list[Verdict], evidence: list[str]) -> Diagnosis:
    best = verdicts[0]
    return Diagnosis(
        best.cause.name,
        _confidence(verdicts),
        tuple(evidence),
        best.cause.advice,
        best.where,
        _others(verdicts[1:]),
    )


def _others(verdicts: list[Verdict]) -> tuple[tuple[str, float], ...]:
    return tuple(
        (v.cause.name, round(v.score, 3)) for v in verdicts[:MAX_RUNNERS_UP] if v.score >= 0.1
    )


def _unknown(where: Where, evidence: list[str], verdicts: Sequence[Verdict] = ()) -> Diagnosis:
    return Diagnosis("unknown", 0.0, tuple(evidence), "", where, _others(list(verdicts)))


def _nothing(view: View) -> list[str]:
    """What was looked at and found equal, what could not be, and who works."""
    equal: list[str] = []
    unread: list[str] = []
    for cause in CAUSES:
        looked = any(key in view.compared for key in cause.signals)
        looked = looked or (not cause.signals and view.subject.process is not None)
        (equal if looked else unread).append(cause.name)
    made = [words.compared_with(view)]
    if equal:
        made.append("nothing that stands out for: " + ", ".join(equal))
    if unread:
        made.append("could not be looked at: " + ", ".join(unread))
    gpu = view.subject.gpu
    if gpu is not None and gpu.silent:
        made.append(f"its GPU does not answer: {words.clean(gpu.silent)}")
    saturated = [n for s in samples(view.subject) for n in s.notes if "saturated" in n]
    if saturated:
        made.append("no evidence: " + "; ".join(words.clean(note, 100) for note in saturated[:3]))
    for key, least in (("gpu.sm_active_share", 0.1), ("gpu.power_w", 50.0)):
        own, usual = view.value(key), view.usual(key)
        if own is not None and usual is not None and own >= usual + least:
            name = "SMs active" if key.endswith("_share") else "power"
            made.append(
                f"{name} {words.amount(key, own)}, peers {words.amount(key, usual, False)}: "
                "it works while they wait; it may have more to do"
            )
            break
    return made


def _node_wide(best: Verdict, view: View) -> list[str]:
    """Whether the slow ranks beside it show the same."""
    if not view.fellows or not best.deviations:
        return []
    key = best.deviations[0].key
    same = [
        fellow.rank for fellow in view.fellows if view.beside(fellow).deviation(key) is not None
    ]
    if not same:
        return []
    count = len(same)
    host = words.clean(view.subject.host, 80) or "this node"
    return [f"node-wide: {count} other slow rank{'' if count == 1 else 's'} of {host} show it too"]


def _of_kind(finding: Finding, peers: Sequence[RankTelemetry], past: Past, since: int) -> Diagnosis:
    """A kind that is its own cause; what limits the whole class is a runner-up."""
    name, where, advice = KIND_CAUSES[finding["kind"]]
    evidence = ["the timing alone says it: all ranks of the kind are slow together"]
    others: list[Verdict] = []
    if finding["kind"] == "imbalance":
        evidence.append("telemetry is not compared across models")
        model = finding["subject"].get("class", "").rpartition("/")[2]
        ranks = [peer for peer in peers if model and peer.gpu and model in peer.gpu.model]
        found = _shared(evenly(ranks, MAX_SURVEYED), past, since, network=False)
        evidence += [line for _, line in found[:1]]
        others = [verdict for verdict, _ in found]
    confidence = min(0.98, 0.9 * finding["confidence"])
    return Diagnosis(name, confidence, tuple(evidence), advice, where, _others(others))


def _of_job(
    finding: Finding, everyone: Sequence[RankTelemetry], past: Past, since: int
) -> Diagnosis:
    """A finding about the job or its network: what most ranks share, or what one stands out by."""
    readable = [rank for rank in everyone if next(samples(rank), None) is not None]
    ranks = evenly(readable, MAX_SURVEYED)
    if not ranks:
        return _unknown(finding["where"], ["there is no telemetry of this job's ranks"])
    network = finding["kind"] == "network"
    found = _shared(ranks, past, since, network)
    # Everybody waits for one bad port: it stands out among the others.
    others = evenly(ranks, MAX_COMPARED)
    for rank in ranks:
        view = View(rank, others, past, since)
        host = words.clean(rank.host, 80)
        who = f"rank {rank.rank}" + (f" on {host}" if host else "")
        for verdict in _verdicts(view, None, network, of_job=True):
            factor = 1.0 if network else 0.8
            factor *= 1.0 if _about(finding, rank, verdict) else 0.5
            evidence = "; ".join(words.lines(verdict, view))
            found.append((_scaled(verdict, factor), f"{who}: {evidence}"))
    best: dict[str, tuple[Verdict, str]] = {}
    for verdict, line in found:
        name = verdict.cause.name
        if name not in best or verdict.score > best[name][0].score:
            best[name] = (verdict, line)
    verdicts = _rank([verdict for verdict, _ in best.values()])
    if not _named(verdicts):
        looked = f"{len(ranks)} ranks looked at: none stands out, and not most of them have changed"
        return _unknown(finding["where"], [looked], verdicts)
    return _made(verdicts, [best[verdicts[0].cause.name][1]])


def _about(finding: Finding, rank: RankTelemetry, verdict: Verdict) -> bool:
    """Whether it is the NIC that the finding is about, where it is about one."""
    subject = finding["subject"]
    nic, host = subject.get("nic", ""), subject.get("host", "")
    if not nic:
        return True
    names = {name for d in verdict.deviations for name in (d.subject, d.subject.partition("/")[0])}
    return nic in names and host in ("", rank.host)


def _shared(
    ranks: list[RankTelemetry], past: Past, since: int, network: bool
) -> list[tuple[Verdict, str]]:
    """Causes that at least half of the ranks show against their own past, best first."""
    seen: dict[str, list[tuple[Verdict, View]]] = {}
    for rank in ranks:
        view = View(rank, (), past, since)
        for verdict in _verdicts(view, None, network, of_job=True):
            seen.setdefault(verdict.cause.name, []).append((verdict, view))
    made = []
    for cases in seen.values():
        if len(cases) * 2 < len(ranks) or len(ranks) < 2:
            continue
        cases.sort(key=lambda case: case[0].score)
        verdict, view = cases[len(cases) // 2]
        line = f"{len(cases)} of {len(ranks)} ranks, rank {view.subject.rank} among them: "
        made.append((verdict, line + "; ".join(words.lines(verdict, view))))
    return sorted(made, key=lambda case: -case[0].score)


def _since_ns(finding: Finding) -> int:
    """End of the second in which the finding began, CLOCK_REALTIME."""
    try:
        moment = datetime.datetime.strptime(finding["since"]["time"], "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return 0
    seconds = moment.replace(tzinfo=datetime.timezone.utc).timestamp()
    return (int(seconds) + 1) * _SECOND_NS
