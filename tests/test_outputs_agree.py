"""Cause, evidence and node-or-job of a finding: the same on the screen, as JSON, in the journal and
for Prometheus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stragd.cli.screen import View, once
from stragd.finding import Finding
from stragd.outputs.journal import MAX_VALUE
from stragd.outputs.metrics import MAX_EVIDENCE, Collector
from stragd.outputs.snapshot import Snapshot, Top
from tests import pictures
from tests.harness import Daemon, Job, job, wait_for
from tests.injections import CONDITIONS, LIMIT, RANKS, arguments, blamed, learnt
from tests.journald import Journald
from tests.needs import lacking

ROOT = Path(__file__).parent.parent
SICK = 2
WATCH = "[windows]\nsteps = 25\n[telemetry]\nseconds = 3\n[journal]\ntarget = 'journald'\n"
SCREEN_LINE = 400
"""Characters of an evidence line that a screen shows."""


class JournalDaemon(Daemon):
    """A stragd that writes to a journald of ours."""

    def __init__(self, directory: Path, journald: Journald) -> None:
        super().__init__(directory, WATCH)
        self._journald = journald

    def command(self) -> list[str | Path]:
        return self._journald.command(*super().command())


def of_page(text: str, kind: str = "straggler", rank: int = SICK) -> list[dict[str, str]]:
    """Labels of the causes that a metrics page has of one rank."""
    return [
        dict(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "stragd_finding_cause_confidence"
        and (sample.labels["kind"], sample.labels["rank"]) == (kind, str(rank))
    ]


def shown(screen: str) -> str:
    """A screen without its line breaks."""
    return " ".join(screen.split())


def disagreement(finding: dict[str, Any], screen: str, page: list[dict[str, str]]) -> str:
    """What of ``finding`` the screen or the metrics page says otherwise, "" where they agree."""
    cause = finding["cause"]
    name, where = cause["name"], finding["where"]
    sure = "" if name == "unknown" else f" ({100 * cause['confidence']:.1f} % sure)"
    lines = "; ".join(line[:SCREEN_LINE] for line in cause["evidence"])
    for said in (f"where: {where}, cause: {name}{sure}", lines):
        if said not in screen:
            return f"the screen lacks {said!r}"
    labels = [(one["cause"], one["where"]) for one in page]
    if labels != [(name, where)]:
        return f"Prometheus has {labels}"
    words = page[0]["evidence"].split("; ")
    if name == "unknown":
        return "" if words == ["nothing deviates"] else f"Prometheus shows {words}"
    missing = [part for part in words if not part or part not in cause["evidence"][0]]
    return f"Prometheus shows {missing}" if missing else ""


def agreed(watcher: Daemon, training: Job, cause: str) -> dict[str, Any]:
    """The finding, once screen, JSON and Prometheus show the same of this cause."""
    last = ["the rank is not blamed"]

    def agree() -> dict[str, Any] | None:
        finding = blamed(watcher, training)
        if finding is None or finding["subject"]["rank"] != SICK:
            return None
        if finding["cause"]["name"] != cause or not finding["cause"]["evidence"]:
            last[:] = [f"{finding['cause']}"]
            return None
        screen = shown(watcher.control("top", "--job", finding["job"]["key"]).stdout)
        url = f"http://127.0.0.1:{watcher.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as reply:
            page = of_page(reply.read().decode(), finding["kind"])
        page = [one for one in page if one["job"] == finding["job"]["name"]]
        last[:] = [disagreement(finding, screen, page)]
        return None if last[0] else finding

    try:
        return wait_for(f"the outputs to agree on {cause}", agree, 2 * LIMIT)
    except AssertionError as error:
        raise AssertionError(f"{error}; {last[0]}; {watcher.output()[-3000:]}") from None


def entry_of(journald: Journald, finding: dict[str, Any], cause: str) -> dict[str, Any]:
    """The journal's last entry about a finding with this cause."""

    def entry() -> dict[str, Any] | None:
        about = [
            one
            for one in journald.entries()
            if one.get("STRAGD_FINDING") == finding["id"] and one["STRAGD_CAUSE"] == cause
        ]
        return about[-1] if about else None

    return wait_for(f"the journal to say {cause}", entry)


def test_every_output_says_why_and_where(tmp_path: Path) -> None:
    """A live rank whose core others take. What is unknown is in the test below."""
    if os.geteuid() != 0:
        lacking("the daemon attaches eBPF probes: run this as root")
    condition = CONDITIONS["neighbours on its core"]
    with Journald() as journald, job("ddp.py", RANKS, *arguments()) as training:
        watcher = JournalDaemon(tmp_path, journald)
        watcher.start()
        try:
            pids = learnt(watcher, training)
            with condition.inject(pids[SICK]):
                finding = agreed(watcher, training, condition.cause)
                assert finding["where"] == condition.where
                entry = entry_of(journald, finding, condition.cause)
            # The entry is of the pass that named the cause, the others are of the last one.
            assert entry["STRAGD_WHERE"] == finding["where"]
            assert entry["STRAGD_ADVICE"] == finding["cause"]["advice"]
            first = entry["STRAGD_CAUSE_EVIDENCE"].partition("; ")[0]
            assert condition.words in first
            assert "peers" in first
            assert f"where {finding['where']}, cause {condition.cause} (" in entry["MESSAGE"]
            assert first in entry["MESSAGE"]
        finally:
            watcher.stop()


HOSTILE = "\x1b[31m" + "x" * 5000 + '\nstragd_up 0\n"} '
WRITER = """
import json, sys
from stragd.findings import Transition
from stragd.outputs.journal import Journal
journal = Journal('journald')
for finding in json.load(sys.stdin):
    journal.transition(Transition(None, finding, ''))
"""


def made(name: str, where: str, *evidence: str) -> Finding:
    """A finding with a cause."""
    finding = pictures.finding()
    sure = 0.0 if name == "unknown" else 0.9
    advice = "" if name == "unknown" else "raise it"
    finding["where"] = where  # type: ignore[typeddict-item]
    finding["cause"] = {
        "name": name, "confidence": sure, "evidence": list(evidence), "advice": advice,
    }  # fmt: skip
    return finding


def test_one_finding_in_all_four() -> None:
    """The very same lines, where no time passes between two looks; whatever a driver says."""
    findings = [
        made("power-cap", "machine", "power limit 450 W, peers 700; Xid 79", "with 3 peers"),
        made("unknown", "unknown", "with 3 peers", "nothing that stands out for: power-cap"),
        made("fabric", "machine", f"{HOSTILE}: lanes 1, before 4", "with 3 peers"),
    ]
    with Journald() as journald:
        subprocess.run(
            journald.command(sys.executable, "-c", WRITER),
            input=json.dumps(findings),
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=120,
            check=True,
        )
        entries = journald.entries()
    for finding, entry in zip(findings, entries, strict=True):
        picture = pictures.snapshot(findings=[finding])
        page = page_of(picture)
        (labels,) = of_page(page)
        screen = "\n".join(once(cast("Top", picture), 100, View()))
        cause = finding["cause"]
        assert (entry["STRAGD_CAUSE"], entry["STRAGD_WHERE"]) == (cause["name"], finding["where"])
        if cause["name"] != "fabric":
            assert entry["STRAGD_CAUSE_EVIDENCE"] == "; ".join(cause["evidence"])
            assert disagreement(dict(finding), shown(screen), [labels]) == ""
            continue
        assert (labels["cause"], labels["where"]) == ("fabric", "machine")
        assert len(labels["evidence"]) <= MAX_EVIDENCE
        assert "\nstragd_up 0" not in page
        assert len(entry["STRAGD_CAUSE_EVIDENCE"]) <= MAX_VALUE
        assert "where: machine, cause: fabric" in screen
        for text in (entry["STRAGD_CAUSE_EVIDENCE"], entry["MESSAGE"], screen):
            assert "\x1b" not in text
            assert "\nstragd_up" not in text


def page_of(picture: Snapshot) -> str:
    """The metrics page of a snapshot."""
    registry = CollectorRegistry()
    registry.register(Collector(lambda: picture, 10_000))
    return generate_latest(registry).decode()
