"""Metric families: one snapshot in, Prometheus families out; nothing is kept between scrapes.

A rank that is gone from the snapshot is gone from the page. Labels are ``job`` and ``rank``;
everything else about a rank is on ``stragd_rank_info``. Never a pid, container or step number.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stragd.finding import Cause, Where
from stragd.outputs import readings
from stragd.outputs.snapshot import Job, Library, Rank, Reading, Ring, Snapshot


class Spec(NamedTuple):
    """Definition of one family; a counter's name ends in ``_total``."""

    name: str
    kind: str  # "gauge" or "counter"
    labels: tuple[str, ...]
    help: str


_RANK, _JOB = ("job", "rank"), ("job",)
# " 1,305 MHz, peers 1,980": the reading at the end of a part of an evidence line.
_READING = re.compile(r" -?\d[\d.,]*( [^\s,]+)?( of the window)?(, (peers|before) .*)?$")
MAX_EVIDENCE = 200
SPECS: tuple[Spec, ...] = (
    Spec("stragd_build_info", "gauge", ("version",), "1; the version of the daemon."),
    Spec("stragd_up", "gauge", ("collector",), "1 when this part of the daemon works."),
    Spec(
        "stragd_scrape_duration_seconds",
        "gauge",
        ("collector",),
        "Time to build the families of this page.",
    ),
    Spec(
        "stragd_telemetry_read_seconds",
        "gauge",
        ("collector",),
        "Time of a reader's last pass; whether it works is in stragd_up.",
    ),
    Spec("stragd_events_total", "counter", ("kind",), "Events read from the probes, by kind."),
    Spec(
        "stragd_events_lost_total",
        "counter",
        ("cause",),
        "What could not be kept, by cause: the kind of an event that found its ring full, or "
        "`windows`, `changes` and `process_limit` for what the daemon had no room for.",
    ),
    Spec(
        "stragd_probes_attached",
        "gauge",
        ("library", "version", "method"),
        "Probes attached now, over all files of this library and version.",
    ),
    Spec(
        "stragd_probe_attach_failures_total",
        "counter",
        ("reason",),
        "Library files whose probes could not be attached, by reason.",
    ),
    Spec(
        "stragd_bpf_run_seconds_total",
        "counter",
        (),
        "Time of the BPF program's timed runs (one second in thirty); divide by runs_total.",
    ),
    Spec("stragd_bpf_runs_total", "counter", (), "Runs of the BPF program that were timed."),
    Spec(
        "stragd_discovery_lag_seconds",
        "gauge",
        (),
        "Time from the last mapping of a library to the probes on it.",
    ),
    Spec(
        "stragd_sideband_lost_total",
        "counter",
        (),
        "Process events that the kernel dropped; the sweep through /proc makes up for them.",
    ),
    Spec(
        "stragd_duplicate_hits_total",
        "counter",
        (),
        "Probe hits ignored because another mount of the same file had delivered them.",
    ),
    Spec(
        "stragd_ignored_hits_total",
        "counter",
        (),
        "Probe hits of processes that are not watched.",
    ),
    Spec(
        "stragd_read_failures_total",
        "counter",
        (),
        "Arguments in a job's memory that could not be read.",
    ),
    Spec(
        "stragd_rings",
        "gauge",
        ("vendor", "version", "mode"),
        "Rings of the profiler plugin that are read, by library and mode in force.",
    ),
    Spec(
        "stragd_rings_refused",
        "gauge",
        (),
        "Rings that are not read; `stragctl ring` says why.",
    ),
    Spec(
        "stragd_ring_records_total",
        "counter",
        (),
        "Collectives and messages that the plugin recorded and stragd read.",
    ),
    Spec(
        "stragd_ring_dropped_total",
        "counter",
        ("cause",),
        "Collectives that the plugin could not record, by cause; what stragd did not read in time "
        "is in stragd_events_lost_total, cause `ring`.",
    ),
    Spec("stragd_windows_total", "counter", (), "Windows closed."),
    Spec(
        "stragd_exchange_total",
        "counter",
        ("what",),
        "Messages between nodes, by what became of them: sent, received, scored (windows of whole "
        "jobs), kept (handed over); nothing without an exchange.",
    ),
    Spec(
        "stragd_exchange_dropped_total",
        "counter",
        ("cause",),
        "Messages that did not go through, by cause.",
    ),
    Spec(
        "stragd_exchange_refused_total",
        "counter",
        ("cause",),
        "Messages or rows of other nodes that were refused or came too late, and connections that "
        "were refused, by cause.",
    ),
    Spec("stragd_job_reported_ranks", "gauge", _JOB, "Ranks of a whole job in its last verdict."),
    Spec("stragd_processes", "gauge", (), "Processes with a collective library."),
    Spec(
        "stragd_processes_unidentified",
        "gauge",
        (),
        "Processes with a collective library that are not (yet) a rank.",
    ),
    Spec("stragd_probes_enabled", "gauge", (), "0 after `stragctl probes off`."),
    Spec(
        "stragd_series_limited",
        "gauge",
        (),
        "1 when jobs are missing here because of max_series; they are counted as job `other`.",
    ),
    Spec("process_cpu_seconds_total", "counter", (), "CPU time of the daemon."),
    Spec("process_resident_memory_bytes", "gauge", (), "Resident memory of the daemon."),
    Spec("process_start_time_seconds", "gauge", (), "Start of the daemon, since the epoch."),
    Spec("stragd_job_info", "gauge", ("job", "key", "launcher"), "1; what is known of a job."),
    Spec("stragd_job_world_size", "gauge", _JOB, "Ranks of the job on all nodes."),
    Spec("stragd_job_local_ranks", "gauge", _JOB, "Ranks of the job on this node."),
    Spec("stragd_job_step_seconds", "gauge", _JOB, "Median wall time of a step, last window."),
    Spec("stragd_job_windows_total", "counter", _JOB, "Windows of the job that were scored."),
    Spec(
        "stragd_job_lost_rank_seconds_total",
        "counter",
        _JOB,
        "Time that the ranks on this node lost to the job's costliest confirmed finding: its share "
        "of the step, times ranks. Over 3600 and summed over the nodes: GPU-hours.",
    ),
    Spec(
        "stragd_rank_info",
        "gauge",
        ("job", "rank", "host", "class", "local_rank", "gpu_uuid", "source"),
        "1; who a rank is. `source` says where its times come from.",
    ),
    Spec("stragd_rank_step_seconds", "gauge", _RANK, "Wall time of a step, last window."),
    Spec("stragd_rank_own_seconds", "gauge", _RANK, "A rank's own work per step, last window."),
    Spec(
        "stragd_rank_wait_seconds",
        "gauge",
        _RANK,
        "Time in collectives spent waiting for other ranks, per step, last window.",
    ),
    Spec("stragd_rank_comm_seconds", "gauge", _RANK, "Transfer time per step, last window."),
    Spec(
        "stragd_rank_lateness_seconds",
        "gauge",
        _RANK,
        "How much less a rank waits per step than the one that waits most, last window.",
    ),
    Spec(
        "stragd_rank_slowdown_ratio",
        "gauge",
        _RANK,
        "Own time over the median of the peers on this node, minus one.",
    ),
    Spec(
        "stragd_rank_steps_inferred",
        "gauge",
        _RANK,
        "0 where no repeating step was found; the times per step are absent then.",
    ),
    Spec(
        "stragd_rank_ring_coverage_ratio",
        "gauge",
        _RANK,
        "Share of the rank's calls that its ring saw too; absent without a ring.",
    ),
    Spec("stragd_rank_steps_total", "counter", _RANK, "Steps seen."),
    Spec("stragd_rank_collectives_total", "counter", _RANK, "Collectives seen."),
    Spec(
        "stragd_finding",
        "gauge",
        ("job", "rank", "kind", "state"),
        "Open findings; `rank` is empty when it is not about one rank.",
    ),
    Spec(
        "stragd_finding_cost_seconds",
        "gauge",
        ("job", "rank", "kind"),
        "What every rank would gain per step without it.",
    ),
    Spec(
        "stragd_finding_cost_ratio",
        "gauge",
        ("job", "rank", "kind"),
        "The same as a share of the step's wall time.",
    ),
    Spec(
        "stragd_finding_cause_confidence",
        "gauge",
        ("job", "rank", "kind", "cause", "where", "evidence"),
        "How sure the cause is, 0 for `unknown`; `where` is machine, job, network or unknown. "
        "`evidence` is the first line of evidence and names what deviates, without its numbers: "
        "those change, a series must not.",
    ),
    *(Spec(family.name, "gauge", family.labels, family.help) for family in readings.FAMILIES),
)

# Counters begin at 0, so that rate() sees the first increment, even while there is no engine.
EVENT_KINDS = (
    "enter",
    "detail",
    "done",
    "failed",
    "comm_init",
    "comm_split",
    "comm_destroy",
    "comm_abort",
)
KNOWN_COUNTERS = (
    *(f"events.{kind}" for kind in EVENT_KINDS),
    *(f"lost.{kind}" for kind in EVENT_KINDS),
    *(f"attach_failures.{reason}" for reason in ("permission", "kernel", "file")),
    "lost.ring",
    *(f"ring_dropped.{cause}" for cause in ("pool", "communicator", "claim", "stale")),
)


class _Page:
    """Families being filled; a family without samples still shows its help."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self.samples = 0
        for spec in SPECS:
            cls = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            self._families[spec.name] = cls(spec.name, spec.help, labels=spec.labels)

    def add(self, name: str, value: float | None, *labels: object) -> None:
        if value is not None:
            self._families[name].add_metric([str(label) for label in labels], value)
            self.samples += 1

    def families(self) -> Iterable[Metric]:
        return self._families.values()


class Collector:
    """For ``generate_latest``: builds every family anew from the snapshot."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], max_series: int) -> None:
        self._snapshot = snapshot
        self.max_series = max_series

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked by the tests, not at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families of this moment."""
        begun = time.perf_counter()
        page = _Page()
        now = self._snapshot()
        if now is not None:
            self._daemon(page, now)
            self._jobs(page, now)
        page.add("stragd_scrape_duration_seconds", time.perf_counter() - begun, "metrics")
        yield from page.families()

    def _daemon(self, page: _Page, now: Snapshot) -> None:
        page.add("stragd_build_info", 1, now["version"])
        for part, works in sorted(now["collector_up"].items()):
            page.add("stragd_up", int(works), part)
        for reader in now["readers"]:
            seconds = reader["read_s"]
            page.add("stragd_telemetry_read_seconds", seconds, f"telemetry_{reader['name']}")
        counters = {**dict.fromkeys(KNOWN_COUNTERS, 0.0), **now["counters"]}
        for prefix, name in (
            ("events.", "stragd_events_total"),
            ("lost.", "stragd_events_lost_total"),
            ("attach_failures.", "stragd_probe_attach_failures_total"),
            ("ring_dropped.", "stragd_ring_dropped_total"),
            ("exchange.dropped.", "stragd_exchange_dropped_total"),
            ("exchange.refused.", "stragd_exchange_refused_total"),
        ):
            for key, value in sorted(counters.items()):
                if key.startswith(prefix):
                    page.add(name, value, key[len(prefix) :])
        for what in ("sent", "received", "scored", "kept"):
            page.add("stragd_exchange_total", counters.get(f"exchange.{what}"), what)
        for key, name in (
            ("bpf_run_seconds", "stragd_bpf_run_seconds_total"),
            ("bpf_run_count", "stragd_bpf_runs_total"),
            ("discovery_lag_seconds", "stragd_discovery_lag_seconds"),
            ("sideband_lost", "stragd_sideband_lost_total"),
            ("duplicate_hits", "stragd_duplicate_hits_total"),
            ("ignored_hits", "stragd_ignored_hits_total"),
            ("read_failed", "stragd_read_failures_total"),
            ("ring_records", "stragd_ring_records_total"),
            ("ring_refused", "stragd_rings_refused"),
            ("windows", "stragd_windows_total"),
            ("processes", "stragd_processes"),
        ):
            page.add(name, counters.get(key, 0.0))
        for labels, probes in sorted(_attached(now["libraries"]).items()):
            page.add("stragd_probes_attached", probes, *labels)
        for labels, rings in sorted(_rings(now["rings"]).items()):
            page.add("stragd_rings", rings, *labels)
        page.add("stragd_processes_unidentified", now["unidentified"])
        page.add("stragd_probes_enabled", int(now["health"]["probes"] == "on"))
        page.add("process_cpu_seconds_total", now["cpu_seconds"])
        page.add("process_resident_memory_bytes", now["health"]["rss_bytes"])
        page.add("process_start_time_seconds", now["start_time"])

    def _jobs(self, page: _Page, now: Snapshot) -> None:
        """Jobs with findings first, then those that have been watched for longest: many new ones
        push no other off the page. The first job that is one too many ends the list."""
        ranks: dict[str, list[Rank]] = {}
        for rank in now["ranks"]:
            if rank["state"] != "gone":
                ranks.setdefault(rank["job"], []).append(rank)
        read: dict[tuple[str, int], list[Reading]] = {}
        for row in now["readings"]:
            read.setdefault((row["job"], row["rank"]), []).append(row)
        for name, value, labels in readings.samples(read.pop(("", -1), ())):
            page.add(name, value, *labels)
        others: list[Job] = []
        _findings(page, now, self.max_series)
        for job in sorted(now["jobs"], key=lambda j: (j["state"] != "finding", -j["windows"])):
            own = ranks.get(job["key"], [])
            told = [
                sample
                for rank in own
                for sample in readings.samples(
                    read.get((rank["job"], rank["rank"]), ()), job["name"], rank["rank"]
                )
            ]
            if others or page.samples + 6 + 11 * len(own) + len(told) + 3 > self.max_series:
                others.append(job)
                continue
            _job(page, job)
            for rank in own:
                _rank(page, job["name"], rank)
            for name, value, labels in told:
                page.add(name, value, *labels)
        if others:
            page.add("stragd_job_local_ranks", sum(j["local_ranks"] for j in others), "other")
        page.add("stragd_series_limited", int(bool(others)))


def _attached(libraries: Iterable[Library]) -> Mapping[tuple[str, str, str], int]:
    """Two files of one library and version share their labels, so their probes add up."""
    probes: dict[tuple[str, str, str], int] = {}
    for library in libraries:
        if library["state"] == "attached":
            labels = ("+".join(library["kinds"]), library["version"], library["method"])
            probes[labels] = probes.get(labels, 0) + library["probes"]
    return probes


def _rings(rings: Iterable[Ring]) -> Mapping[tuple[str, str, str], int]:
    counts: dict[tuple[str, str, str], int] = {}
    for ring in rings:
        if ring["state"] == "open":
            labels = (ring["vendor"], ring["library"], ring["mode"])
            counts[labels] = counts.get(labels, 0) + 1
    return counts


def _findings(page: _Page, now: Snapshot, max_series: int) -> None:
    counts: dict[tuple[str, str, str, str], int] = {}
    costs: dict[tuple[str, str, str], tuple[float | None, float]] = {}
    causes: dict[tuple[str, str, str, str, Where, str], float] = {}
    for finding in now["findings"][: max_series // 8]:
        rank = str(finding["subject"].get("rank", ""))
        about = (finding["job"]["name"], rank, str(finding["kind"]))
        counts[(*about, finding["state"])] = counts.get((*about, finding["state"]), 0) + 1
        cause = finding["cause"]
        because = (*about, cause["name"], finding["where"], _deviates(cause))
        causes.setdefault(because, cause["confidence"])
        cost = finding["cost_ms_per_step"]
        if about not in costs:  # the most serious one comes first
            seconds = cost["value"] / 1e3 if cost else None
            costs[about] = (seconds, finding["cost_percent"] / 100)
    for labels, count in counts.items():
        page.add("stragd_finding", count, *labels)
    for because, confidence in causes.items():
        page.add("stragd_finding_cause_confidence", confidence, *because)
    for about, (seconds, ratio) in costs.items():
        page.add("stragd_finding_cost_seconds", seconds, *about)
        page.add("stragd_finding_cost_ratio", ratio, *about)


def _deviates(cause: Cause) -> str:
    """The first evidence line of a cause without numbers, in one order: a label must not change."""
    first = cause["evidence"][0] if cause["evidence"] else "nobody has looked"
    if cause["name"] == "unknown":
        # "there is no telemetry of this rank", but not "compared with 3 peers ...".
        return "nothing deviates" if any(c.isdigit() for c in first) else first[:MAX_EVIDENCE]
    return "; ".join(sorted(_READING.sub("", part) for part in first.split("; ")))[:MAX_EVIDENCE]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _job(page: _Page, job: Job) -> None:
    name = job["name"]
    page.add("stragd_job_info", 1, name, job["key"], job["launcher"])
    page.add("stragd_job_world_size", job["world_size"], name)
    page.add("stragd_job_local_ranks", job["local_ranks"], name)
    page.add("stragd_job_step_seconds", _seconds(job["step_ms"]), name)
    page.add("stragd_job_windows_total", job["windows"], name)
    page.add("stragd_job_lost_rank_seconds_total", job["lost_rank_s"], name)
    if "whole" in job:
        page.add("stragd_job_reported_ranks", job["whole"]["ranks"], name)


def _rank(page: _Page, job: str, rank: Rank) -> None:
    labels = (job, rank["rank"])
    page.add(
        "stragd_rank_info",
        1,
        *labels,
        rank["host"],
        rank["class"],
        rank["local_rank"] if rank["local_rank"] >= 0 else "",
        rank["gpu_uuid"],
        rank["source"],
    )
    if rank["per"] == "step":
        page.add("stragd_rank_step_seconds", _seconds(rank["wall_ms"]), *labels)
        page.add("stragd_rank_own_seconds", _seconds(rank["own_ms"]), *labels)
        page.add("stragd_rank_wait_seconds", _seconds(rank["wait_ms"]), *labels)
        page.add("stragd_rank_comm_seconds", _seconds(rank["comm_ms"]), *labels)
        page.add("stragd_rank_lateness_seconds", _seconds(rank["lateness_ms"]), *labels)
    page.add("stragd_rank_slowdown_ratio", rank["slowdown"], *labels)
    inferred = rank["per"] == "step" and rank["wall_ms"] is not None
    page.add("stragd_rank_steps_inferred", int(inferred), *labels)
    page.add("stragd_rank_ring_coverage_ratio", rank["coverage"], *labels)
    page.add("stragd_rank_steps_total", rank["steps"], *labels)
    page.add("stragd_rank_collectives_total", rank["collectives"], *labels)


def documentation() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Served at `/metrics` of the address in section `[prometheus]`. Generated by",
        "`python -m stragd.docs metrics`; do not edit by hand.",
        "",
        "Prometheus has a label `job` of its own: scrape with `honor_labels: true`, or the job's",
        "name arrives as `exported_job`. A rank's series vanish with the rank. Labels are `job`",
        "and `rank`; join with `stragd_rank_info` for the rest:",
        "",
        "```promql",
        "stragd_rank_own_seconds * on (instance, job, rank) group_left (host, class) "
        "stragd_rank_info",
        "```",
        "",
        "| metric | type | labels | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for spec in SPECS:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        lines.append(f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join(lines) + "\n"
