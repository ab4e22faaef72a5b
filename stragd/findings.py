"""Store of findings: those that are open, the last cleared ones, and what changed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple, cast

from stragd.finding import Finding, State

MAX_OPEN = 1000
"""Open findings kept; a node has tens of ranks, so more means that something else is wrong."""

PATIENCE = 6
"""Verdicts of another scorer in which a confirmed finding that it lacks stays open: it was handed
none of the scores, and finds a slow rank anew in about four windows."""


class Transition(NamedTuple):
    """A finding entered another state; ``before`` is None for a new one."""

    before: State | None
    finding: Finding
    reason: str  # why it was cleared, "" otherwise


class FindingStore:
    """Open findings by (job, the scorer's own id); the string id stays for a finding's life.

    Cleared ones are those that had been confirmed.
    """

    def __init__(self, cleared_kept: int = 100) -> None:
        self._open: dict[tuple[int, int], Finding] = {}
        self._earlier: dict[tuple[int, int], str] = {}  # string ids from before a restart
        self._cleared: deque[Finding] = deque(maxlen=cleared_kept)
        self._unmentioned: Counter[tuple[int, int]] = Counter()
        self.refused = 0
        """Findings that were not taken because MAX_OPEN were open."""

    def keep(self, cleared_kept: int) -> None:
        """Change how many cleared findings are kept."""
        self._cleared = deque(self._cleared, maxlen=cleared_kept)

    def names(self) -> list[tuple[int, int, str]]:
        """(job, the scorer's id, string id) of what is open, for the daemon after this one."""
        earlier = [(*key, name) for key, name in self._earlier.items()]
        return [*earlier, *((*key, finding["id"]) for key, finding in self._open.items())]

    def know(self, names: Iterable[tuple[int, int, str]]) -> None:
        """Take ``names`` of an earlier daemon, whose scorer's state was taken over too."""
        self._earlier = {(job, scorer_id): name for job, scorer_id, name in names}

    def forget(self, job: int) -> None:
        """Forget the earlier ids of a job."""
        for key in [key for key in self._earlier if key[0] == job]:
            del self._earlier[key]

    def apply(
        self, job: int, scored: Iterable[tuple[int, Finding]], takeover: bool = False
    ) -> list[Transition]:
        """Take what the scorer says about one job now: all that is open, and what it cleared.

        An open finding that the scorer no longer mentions is cleared. ``takeover``: another scorer
        may have spoken before; what it said about the same subject goes on under its own id, and
        what it had confirmed stays for PATIENCE calls, in which this one may find it anew.
        """
        transitions: list[Transition] = []
        scored = list(scored)
        if takeover:
            self._take_over(job, scored)
        mentioned = set()
        for scorer_id, new in scored:
            key = (job, scorer_id)
            mentioned.add(key)
            self._unmentioned.pop(key, None)
            old = self._open.get(key)
            if old is None and new["state"] == "cleared":
                continue
            if old is None and len(self._open) >= MAX_OPEN:
                self.refused += 1
                continue
            earlier = self._earlier.pop(key, "")
            if old is not None:
                new["id"] = old["id"]
                if takeover and new["state"] == "suspect":
                    new["state"] = old["state"]  # its scorer was handed an earlier state of it
            elif _begin(earlier) == _begin(new["id"]):
                new["id"] = earlier
            self._open[key] = new
            if new["state"] == "cleared":
                suspect = old is not None and old["state"] == "suspect"
                reason = "could not be confirmed" if suspect else "healthy again"
                transitions.append(self._clear(key, reason, old))
            elif old is None or old["state"] != new["state"]:
                transitions.append(Transition(old["state"] if old else None, new, ""))
        for key in [k for k in self._open if k[0] == job and k not in mentioned]:
            if takeover and self._open[key]["state"] != "suspect":
                self._unmentioned[key] += 1
                if self._unmentioned[key] <= PATIENCE:
                    continue
            transitions.append(self._clear(key, "no longer scored", self._open[key]))
        return transitions

    def _take_over(self, job: int, scored: list[tuple[int, Finding]]) -> None:
        mentioned = {(job, scorer_id) for scorer_id, _ in scored}
        before = {_about(f): key for key, f in self._open.items()
                  if key[0] == job and key not in mentioned}  # fmt: skip
        for scorer_id, new in scored:
            old = before.pop(_about(new), None)
            if old is not None and (job, scorer_id) not in self._open:
                self._open[job, scorer_id] = self._open.pop(old)
                self._unmentioned.pop(old, None)

    def replace(self, key: tuple[int, int], finding: Finding) -> Finding | None:
        """Take a finding's new cause, in the same state; None where it is not open."""
        old = self._open.get(key)
        if old is None:
            return None
        self._open[key] = finding = cast("Finding", {**finding, "id": old["id"]})
        return finding

    def close_job(self, job: int, reason: str) -> list[Transition]:
        """Clear every open finding of a job, because of ``reason``."""
        self.forget(job)
        keys = [key for key in self._open if key[0] == job]
        return [self._clear(key, reason, self._open[key]) for key in keys]

    def _clear(self, key: tuple[int, int], reason: str, old: Finding | None) -> Transition:
        last = self._open.pop(key)
        self._unmentioned.pop(key, None)
        finding = cast("Finding", {**last, "state": "cleared"})
        finding["evidence"] = [*last["evidence"], f"cleared: {reason}"]
        # A suspicion that came to nothing is no incident to look back at.
        if old is not None and old["state"] != "suspect":
            self._cleared.append(finding)
        return Transition(old["state"] if old else None, finding, reason)

    def open(self) -> list[Finding]:
        """Open findings: confirmed before the others, then the most expensive first."""
        order = {"confirmed": 0, "recovering": 1, "suspect": 2}
        return sorted(
            self._open.values(),
            key=lambda f: (order.get(f["state"], 3), -f["cost_percent"], f["id"]),
        )

    def cleared(self) -> list[Finding]:
        """The last cleared findings, newest last."""
        return list(self._cleared)


def _begin(name: str) -> str:
    """A string id without its time: job, kind and subject."""
    return name.rpartition("-")[0]


def _about(finding: Finding) -> tuple[object, ...]:
    """Kind and subject: there is one open finding about them at a time."""
    subject = finding["subject"]
    who = (subject.get("rank"), subject.get("class"), subject.get("signature"))
    return (finding["kind"], *(who[:1] if "rank" in subject else who))
