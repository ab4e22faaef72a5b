"""The answers of the short commands as text: one pure function per command."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stragd.cli.numbers import UNKNOWN, age, count, ms, number, percent, size
from stragd.cli.reasons import abstention_lines, finding_lines
from stragd.cli.text import clean, plain, table, wrap
from stragd.finding import Finding
from stragd.outputs.snapshot import (
    Abstention,
    Check,
    ConfigValue,
    Job,
    Library,
    Rank,
    Ring,
    Status,
)


def _count_of(amount: int, one: str, many: str = "") -> str:
    return f"{amount} {one if amount == 1 else many or one + 's'}"


def status_lines(status: Status) -> list[str]:
    """The daemon in a dozen lines: what it sees, what it costs, what does not work."""
    health = status["health"]
    bpf = number(health["bpf_ns_per_event"])
    per_event = "time per event not measured" if bpf is None else f"{bpf:.0f} ns per event"
    lost = f"{count(health['lost'])} lost"
    if health["lost"]:
        causes = [f"{clean(k, 40)} {count(v)}" for k, v in health["lost_by_cause"].items() if v]
        lost += f" ({', '.join(causes)})" if causes else ""
    version, host = clean(status["version"], 20), clean(status["host"], 80)
    state = f"{clean(status['state'])}, pid {status['pid']}, up {age(health['uptime_s'])}"
    libraries = _count_of(health["libraries"], "library", "libraries")
    cpu = percent(health["cpu_percent"] / 100)
    probes = f"{clean(health['probes'], 5)}, {health['probes_attached']} in {libraries}"
    rows = [
        ("stragd", f"{version} on {host}, {state}"),
        ("jobs", f"{_count_of(status['jobs'], 'job')}, {_count_of(status['ranks'], 'rank')}"),
        ("findings", f"{status['findings']} open"),
        ("events", f"{count(health['events'])}, {count(health['events_per_s'])} per s, {lost}"),
        ("probes", f"{probes}, {per_event}"),
        ("cost", f"{cpu} of one core, {size(health['rss_bytes'])} of memory"),
        ("metrics", clean(status["metrics"]) or "off"),
        ("config", ", ".join(clean(f) for f in status["config_files"]) or "defaults only"),
    ]
    rows.insert(6, ("telemetry", _telemetry(status)))
    if status["unidentified"]:
        text = _count_of(status["unidentified"], "process", "processes")
        rows.insert(2, ("unidentified", f"{text} with a library but without a rank"))
    rows += [("degraded", clean(text)) for text in health["degraded"]]
    return [f"{name:<13}{text}" for name, text in rows]


def _telemetry(status: Status) -> str:
    """The readers that are on, each with the time of its last pass or what is wrong."""
    words = []
    for reader in status["readers"]:
        seconds = number(reader["read_s"])
        text = "not read yet" if seconds is None else f"{ms(1e3 * seconds)} ms"
        words.append(f"{clean(reader['name'], 20)} {'FAILED' if reader['reason'] else text}")
    return ", ".join(words) or "off"


def jobs_lines(jobs: Sequence[Job]) -> list[str]:
    """One line per job."""
    if not jobs:
        return ["no training job on this node (a job runs? see: stragctl doctor)"]
    header = ("key", "name", "launcher", "world size", "here", "ms/step", "state", "worst", "cost")
    rows = []
    for job in jobs:
        worst = UNKNOWN if job["worst_rank"] is None else f"rank {job['worst_rank']}"
        value, share = number(job["cost_ms_per_step"]), number(job["cost_percent"])
        price = percent(None if share is None else share / 100)
        if value is not None:
            price = f"{ms(value)} ms/step ({price})"
        rows.append((
            clean(job["key"], 16), clean(job["name"], 60), clean(job["launcher"], 20),
            str(job["world_size"]), str(job["local_ranks"]), ms(job["step_ms"]),
            clean(job["state"], 20), worst, price,
        ))  # fmt: skip
    return [*table(header, rows, right=(3, 4, 5)), *_whole_lines(jobs)]


def _whole_lines(jobs: Sequence[Job]) -> list[str]:
    """Where a job that spans nodes is scored, and who was missing there."""
    lines = []
    for job in jobs:
        if "whole" not in job:
            continue
        whole = job["whole"]
        text = (
            f"{clean(job['name'], 60)}: scored as a whole on {clean(whole['scorer'], 64)}, "
            f"{whole['ranks']} ranks of {_count_of(whole['nodes'], 'node')} "
            f"in window {whole['window']}"
        )
        if whole["absent"]:
            shown = ", ".join(str(rank) for rank in whole["absent"][:8])
            text += f"; absent: {shown}" + (", ..." if len(whole["absent"]) > 8 else "")
        if not whole["counts"]:
            text += "; no verdict any more: findings are this node's own"
        lines.append(text)
    return lines


def ranks_lines(job: Job, ranks: Sequence[Rank]) -> list[str]:
    """One line per rank of a job, all numbers in ms."""
    per = "window" if any(r["per"] == "window" for r in ranks) else "step"
    name = clean(job["name"] or job["key"], 80)
    title = f"job {name} ({clean(job['key'], 16)}), world size {job['world_size']}, ms per {per}"
    header = (
        "rank", "host", "class", "own", "vs peers", "wait", "comm", per, "lateness", "state",
        "source", "pid", "flags",
    )  # fmt: skip
    rows = [
        (
            str(r["rank"]), clean(r["host"], 60), clean(r["class"], 40), ms(r["own_ms"]),
            percent(r["slowdown"], sign=True), ms(r["wait_ms"]), ms(r["comm_ms"]),
            ms(r["wall_ms"]), ms(r["lateness_ms"]), clean(r["state"], 20),
            clean(r["source"] or UNKNOWN, 20), str(r["pid"]),
            " ".join(clean(f, 30) for f in r["flags"]) or UNKNOWN,
        )
        for r in sorted(ranks, key=lambda r: r["rank"])
    ]  # fmt: skip
    return [title, *table(header, rows, right=(0, 3, 4, 5, 6, 7, 8, 11))]


def findings_lines(
    findings: Sequence[Finding], abstentions: Sequence[Abstention], width: int
) -> list[str]:
    """Each finding as a paragraph under its job, then the abstentions."""
    lines: list[str] = []
    for finding in findings:
        job = finding["job"]
        lines.append(f"job {clean(job['name'] or job['key'], 80)} ({clean(job['key'], 16)})")
        lines += ["  " + plain(line) for line in finding_lines(finding, width - 2)]
        lines.append("")
    if not findings:
        lines.append("no findings: nobody is blamed")
    lines += [plain(line) for line in abstention_lines(abstentions, width, job_names=True)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def ring_lines(rings: Sequence[Ring], width: int) -> list[str]:
    """One line per ring, then why some do not record everything."""
    if not rings:
        return ["no ring: no watched process has the profiler plugin (see: stragctl doctor)"]
    header = (
        "pid", "library", "state", "mode", "sample", "floor", "asked", "clock", "comms", "joined",
        "records", "lost", "dropped",
    )  # fmt: skip
    rows = []
    for ring in rings:
        library = f"{clean(ring['vendor'], 10)} {clean(ring['library'] or UNKNOWN, 20)}"
        rows.append((
            str(ring["pid"]), library, clean(ring["state"], 10), clean(ring["mode"], 10),
            f"1 of {ring['sample']}" if ring["sample"] > 1 else "all",
            size(ring["floor"]) if ring["floor"] else UNKNOWN, clean(ring["wanted"], 10),
            clean(ring["clock"], 10), str(ring["communicators"]), str(ring["joined"]),
            count(ring["records"]), count(ring["lost"]), count(sum(ring["dropped"].values())),
        ))  # fmt: skip
    lines = table(header, rows, right=(0, 4, 5, 8, 9, 10, 11, 12))
    reasons: dict[str, list[int]] = {}
    for ring in rings:
        if ring["reason"]:
            reasons.setdefault(clean(ring["reason"], 1000), []).append(ring["pid"])
        if ring["chained"]:
            text = f"forwards to the plugin {clean(ring['chained'], 80)}"
            reasons.setdefault(text, []).append(ring["pid"])
    for reason, pids in reasons.items():
        shown = ", ".join(str(pid) for pid in pids[:8]) + (", ..." if len(pids) > 8 else "")
        lines += ["", *wrap(f"{shown}: {reason}", width, "  ")]
    return lines


def doctor_lines(checks: Sequence[Check], libraries: Sequence[Library]) -> list[str]:
    """One line per feature with the way out beneath it, then the libraries with collectives."""
    lines = []
    wide = max((len(clean(c["feature"], 40)) for c in checks), default=0)
    for check in checks:
        state = clean(check["state"], 10)
        lines.append(f"{state:<8} {clean(check['feature'], 40):<{wide}}  {clean(check['detail'])}")
        if check["fix"]:
            lines.append(f"{'':<8} {'':<{wide}}  fix: {clean(check['fix'], 1000)}")
    if libraries:
        lines += ["", "libraries with collectives:"]
    for item in libraries:
        kinds = ", ".join(clean(k, 20) for k in item["kinds"])
        version = f" {clean(item['version'], 40)}" if item["version"] else ""
        method = f" by {clean(item['method'], 20)}" if item["method"] else ""
        lines.append(
            f"  {kinds}{version}: {clean(item['state'], 20)}, "
            f"{_count_of(item['probes'], 'probe')}{method}, "
            f"{_count_of(len(item['processes']), 'process', 'processes')}, {clean(item['path'])}"
        )
        if item["error"]:
            lines.append(f"    error: {clean(item['error'], 1000)}")
        lines += [f"    refused: {clean(text)}" for text in item["refused"]]
        if item["missing"]:
            lines.append(f"    not in this version: {clean(_names(item['missing']), 2000)}")
    counts = [(s, sum(c["state"] == s for c in checks)) for s in ("ok", "limited", "missing")]
    lines += ["", ", ".join(f"{n} {state}" for state, n in counts)]
    return lines


def _names(symbols: Sequence[str]) -> str:
    """Functions by name; the mangled ones of C++ say nothing to a person and are counted."""
    plain = [symbol for symbol in symbols if not symbol.startswith("_Z")]
    if mangled := len(symbols) - len(plain):
        plain.append(f"{_count_of(mangled, 'C++ name')} of other versions (listed by --json)")
    return ", ".join(plain)


def config_lines(files: Sequence[str], values: Sequence[ConfigValue], origin: bool) -> list[str]:
    """Every key with its value; with ``origin`` also where it comes from and what overrides it."""
    lines = [f"# files: {', '.join(clean(f) for f in files) or 'none'}"]
    pairs = [(f"{clean(v['key'], 100)} = {json.dumps(v['value'])}", v) for v in values]
    wide = max((len(text) for text, _ in pairs if len(text) <= 60), default=0)
    for text, value in pairs:
        if origin:
            where = f"{clean(value['origin'])}; override: {clean(value['environment'], 100)}"
            lines.append(f"{text:<{wide}}  # {where}")
        else:
            lines.append(text)
    return lines
