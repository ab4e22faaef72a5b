"""Hand-made snapshots and findings, of the shapes that the daemon publishes."""

from __future__ import annotations

from typing import Any

from stragd.finding import Finding, FindingJob, Subject, build
from stragd.outputs.snapshot import Job, Rank, Snapshot

KEY = "00000000000000aa"


def raw_finding(**changes: Any) -> dict[str, Any]:
    """What the scorer says about rank 2."""
    raw: dict[str, Any] = {
        "id": 7,
        "job": 0xAA,
        "kind": "straggler",
        "state": "confirmed",
        "rank": 2,
        "class_id": 99,
        "signature": 0xBEEF,
        "since_window": 12,
        "since_time_ns": 1_795_946_400_000_000_000,
        "window": 15,
        "slowdown": 0.2,
        "cost_ns": 20e6,
        "cost_low_ns": 18e6,
        "cost_high_ns": 22e6,
        "cost_fraction": 0.15,
        "confidence": 0.98,
        "basis": "peers",
        "own_ns": 120e6,
        "peers_own_ns": 100e6,
        "peers": 3,
        "work": 0.0,
        "moved": 0,
    }
    raw.update(changes)
    return raw


def finding(steps: bool = True, job_name: str = "llama", **changes: Any) -> Finding:
    """The finding of `raw_finding`."""
    job: FindingJob = {"key": KEY, "name": job_name, "world_size": 4}
    subject: Subject = {"rank": 2, "host": "node7", "class": "cpu/Test"}
    return build(raw_finding(**changes), job, subject, steps)


def job(name: str = "llama", key: str = KEY, **changes: Any) -> Job:
    """A job that is watched."""
    made: Job = {
        "key": key,
        "name": name,
        "launcher": "torchrun",
        "world_size": 4,
        "local_ranks": 4,
        "step_ms": 130.0,
        "steps": 1500,
        "windows": 15,
        "worst_rank": None,
        "cost_ms_per_step": None,
        "cost_percent": None,
        "lost_rank_s": 0.0,
        "state": "watching",
    }
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def rank(number: int, key: str = KEY, **changes: Any) -> Rank:
    """A rank that is watched."""
    made: dict[str, Any] = {
        "job": key,
        "rank": number,
        "local_rank": number,
        "host": "node7",
        "class": "cpu/Test",
        "gpu_uuid": "",
        "pid": 1000 + number,
        "container": "",
        "own_ms": 100.0,
        "wait_ms": 25.0,
        "comm_ms": 5.0,
        "wall_ms": 130.0,
        "per": "step",
        "lateness_ms": 1.0,
        "lateness_history": [1.0, 2.0],
        "slowdown": 0.0,
        "source": "gloo",
        "coverage": None,
        "missed": [],
        "flags": [],
        "steps": 1500,
        "collectives": 30000,
        "in_flight": 0,
        "silent_s": 0.01,
        "state": "watching",
    }
    made.update(changes)
    return made  # type: ignore[return-value]


def snapshot(
    jobs: list[Job] | None = None,
    ranks: list[Rank] | None = None,
    findings: list[Finding] | None = None,
    **changes: Any,
) -> Snapshot:
    """A daemon that watches one job of four ranks."""
    made: dict[str, Any] = {
        "version": "0.1.0",
        "host": "node7",
        "time": "2026-11-29T10:00:00Z",
        "pid": 4242,
        "cluster": None,
        "jobs": [job()] if jobs is None else jobs,
        "ranks": [rank(n) for n in range(4)] if ranks is None else ranks,
        "findings": findings or [],
        "cleared": [],
        "abstentions": [],
        "unidentified": 1,
        "libraries": [
            {
                "kinds": ["gloo"],
                "path": "/usr/lib/libgloo.so.0",
                "build_id": "ab12",
                "version": "",
                "state": "attached",
                "method": "uprobe_multi",
                "probes": 6,
                "refused": [],
                "missing": [],
                "error": "",
                "processes": [1000],
            }
        ],
        "counters": {"events.done": 1200.0, "lost.ring": 3.0, "bpf_run_seconds": 0.5},
        "rings": [],
        "readings": [],
        "events": [],
        "readers": [{"name": "host", "reason": "", "note": "", "read_s": 0.002}],
        "collector_up": {"probes": True},
        "cpu_seconds": 1.5,
        "start_time": 1.7e9,
        "health": {
            "events_per_s": 100.0,
            "events": 1200,
            "lost": 3,
            "lost_by_cause": {"ring": 3},
            "probes_attached": 6,
            "libraries": 1,
            "bpf_ns_per_event": None,
            "cpu_percent": 0.3,
            "rss_bytes": 50_000_000,
            "uptime_s": 60.0,
            "probes": "on",
            "degraded": [],
        },
    }
    made.update(changes)
    return made  # type: ignore[return-value]
