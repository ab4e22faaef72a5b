"""Verbs of the control socket: checks a request's arguments and answers from the snapshot."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stragd.finding import job_key
from stragd.outputs.control import Peer, RequestError
from stragd.outputs.snapshot import Check, ConfigValue, Job, Report, Ring, Snapshot, Status, Top
from stragd.outputs.windowlog import Part

RING_MODES = {"on": "full", "off": "off", "progress": "progress", "default": "default"}
MAX_SAMPLE = 65535


class Daemon(Protocol):
    """What the verbs need of the daemon; every method may be called from any thread."""

    def snapshot(self) -> Snapshot:
        """The last published picture."""

    def metrics_url(self) -> str:
        """Where /metrics is, "" when it is off."""

    def config_files(self) -> list[str]: ...
    def config_values(self) -> list[ConfigValue]: ...
    def doctor(self) -> list[Check]: ...
    def windows(self, after: int | None, job: int | None) -> Part:
        """Windows that were scored after number ``after``, perhaps of one job only."""

    def set_probes(self, on: bool) -> str:
        """Switch and wait until it is done; "on" or "off". Raises RequestError."""

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> list[Ring]:
        """Ask the plugins; the rings once they had the time to obey. Raises RequestError."""

    def reload(self) -> dict[str, list[str]]:
        """Read the configuration again. Raises RequestError."""


class Verbs:
    """Callable for ControlServer."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._verbs: dict[str, tuple[Callable[..., Mapping[str, Any]], dict[str, type]]] = {
            "status": (self._status, {}),
            "jobs": (self._jobs, {}),
            "ranks": (self._ranks, {"job": str}),
            "findings": (self._findings, {"job": str, "cleared": bool}),
            "top": (self._top, {}),
            "cluster": (self._cluster, {}),
            "doctor": (self._doctor, {}),
            "report": (self._report, {"job": str}),
            "windows": (self._windows, {"after": int, "job": str}),
            "config": (self._config, {}),
            "probes": (self._probes, {"set": str}),
            "ring": (self._ring, {"set": str, "sample": int, "floor": int, "pid": int}),
            "reload": (self._reload, {}),
        }

    def __call__(self, request: dict[str, Any], peer: Peer) -> Mapping[str, Any]:
        verb = request["verb"]
        if verb not in self._verbs:
            known = ", ".join(self._verbs)
            raise RequestError("unknown-verb", f"unknown verb {verb[:40]!r}; known: {known}")
        function, takes = self._verbs[verb]
        arguments = {k: v for k, v in request.items() if k not in ("version", "verb")}
        for name, value in arguments.items():
            if name not in takes:
                raise RequestError("bad-request", f"{verb} has no argument {name[:40]!r}")
            if type(value) is not takes[name]:
                kind = {str: "a string", bool: "true or false", int: "a whole number"}[takes[name]]
                raise RequestError("bad-request", f"{verb}: {name} must be {kind}")
        changes = verb == "reload" or "set" in arguments
        if changes and not peer.is_root:
            raise RequestError("forbidden", f"{verb} changes the daemon: only root may do that")
        return function(**arguments)

    def _status(self) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        status: Status = {
            "version": now["version"],
            "host": now["host"],
            "pid": now["pid"],
            "time": now["time"],
            "state": "degraded" if now["health"]["degraded"] else "running",
            "jobs": len(now["jobs"]),
            "ranks": sum(job["local_ranks"] for job in now["jobs"]),
            "unidentified": now["unidentified"],
            "findings": len(now["findings"]),
            "metrics": self._daemon.metrics_url(),
            "config_files": self._daemon.config_files(),
            "readers": now["readers"],
            "health": now["health"],
        }
        return status

    def _jobs(self) -> Mapping[str, Any]:
        return {"jobs": self._daemon.snapshot()["jobs"]}

    def _ranks(self, job: str | None = None) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        chosen = find_job(now["jobs"], job)
        ranks = [rank for rank in now["ranks"] if rank["job"] == chosen["key"]]
        return {"job": chosen, "ranks": ranks}

    def _findings(self, job: str | None = None, cleared: bool = False) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        findings = now["findings"] + (now["cleared"][::-1] if cleared else [])
        abstentions = now["abstentions"]
        if job is not None:
            key = self._finding_job(now, job, cleared)
            findings = [f for f in findings if f["job"]["key"] == key]
            abstentions = [a for a in abstentions if a["job"] == key]
        return {"findings": findings, "abstentions": abstentions}

    def _finding_job(self, now: Snapshot, job: str, cleared: bool) -> str:
        """A cleared finding's job may be gone from the table but can still be asked for."""
        if cleared:
            for finding in now["cleared"]:
                if job in (finding["job"]["key"], finding["job"]["name"]):
                    return finding["job"]["key"]
        return find_job(now["jobs"], job)["key"]

    def _report(self, job: str | None = None) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        key = _past_job(now, job)
        report: Report = {
            "version": now["version"],
            "host": now["host"],
            "time": now["time"],
            "job": next((j for j in now["jobs"] if j["key"] == key), None),
            "key": key,
            "ranks": [rank for rank in now["ranks"] if rank["job"] == key],
            "findings": [
                f for f in (*now["findings"], *now["cleared"][::-1]) if f["job"]["key"] == key
            ],
            "abstentions": [a for a in now["abstentions"] if a["job"] == key],
            "events": [event for event in now["events"] if event["job"] == key],
        }
        return report

    def _top(self) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        top: Top = {
            "version": now["version"],
            "host": now["host"],
            "time": now["time"],
            "jobs": now["jobs"],
            "ranks": now["ranks"],
            "findings": now["findings"],
            "abstentions": now["abstentions"],
            "health": now["health"],
        }
        return top

    def _cluster(self) -> Mapping[str, Any]:
        cluster = self._daemon.snapshot()["cluster"]
        if cluster is None:
            raise RequestError(
                "unavailable",
                "this stragd exchanges with no other node: set exchange.kind (docs/cluster.md)",
            )
        return cluster

    def _doctor(self) -> Mapping[str, Any]:
        return {
            "checks": self._daemon.doctor(),
            "libraries": self._daemon.snapshot()["libraries"],
        }

    def _windows(self, after: int | None = None, job: str | None = None) -> Mapping[str, Any]:
        now = self._daemon.snapshot()
        jobs, key = now["jobs"], None
        if job is not None:
            key = int(_past_job(now, job), 16)
            jobs = [each for each in jobs if int(each["key"], 16) == key]
        part = self._daemon.windows(after, key)
        there = {job_key(entry.job) for entry in part.entries}
        return {
            "after": part.after,
            "missed": part.missed,
            "windows": [
                {"job": job_key(entry.job), "rows": base64.b64encode(entry.rows).decode()}
                for entry in part.entries
            ],
            "jobs": [job for job in jobs if job["key"] in there],
            "ranks": [
                {
                    "job": rank["job"],
                    "rank": rank["rank"],
                    "host": rank["host"],
                    "class": rank["class"],
                }
                for rank in now["ranks"]
                if rank["job"] in there
            ],
        }

    def _config(self) -> Mapping[str, Any]:
        return {"files": self._daemon.config_files(), "values": self._daemon.config_values()}

    def _probes(self, set: str | None = None) -> Mapping[str, Any]:
        if set is None:
            return {"probes": self._daemon.snapshot()["health"]["probes"]}
        if set not in ("on", "off"):
            raise RequestError("bad-request", 'probes: set must be "on" or "off"')
        return {"probes": self._daemon.set_probes(set == "on")}

    def _ring(
        self, set: str | None = None, sample: int = 1, floor: int = 0, pid: int | None = None
    ) -> Mapping[str, Any]:
        if set is None:
            rings = self._daemon.snapshot()["rings"]
            return {"rings": [r for r in rings if pid is None or r["pid"] == pid]}
        if set not in RING_MODES:
            known = ", ".join(f'"{mode}"' for mode in RING_MODES)
            raise RequestError("bad-request", f"ring: set must be one of {known}")
        if not 1 <= sample <= MAX_SAMPLE:
            raise RequestError("bad-request", f"ring: sample must be from 1 to {MAX_SAMPLE}")
        if floor and (floor < 2 or floor > 1 << 40 or floor & (floor - 1)):
            raise RequestError("bad-request", "ring: floor must be 0 or a power of two, in bytes")
        return {"rings": self._daemon.set_ring(RING_MODES[set], sample, floor, pid)}

    def _reload(self) -> Mapping[str, Any]:
        return self._daemon.reload()


def _past_job(now: Snapshot, wanted: str | None) -> str:
    """The key of a job, or of one that has ended with a finding. Raises RequestError."""
    try:
        return find_job(now["jobs"], wanted)["key"]
    except RequestError:
        for finding in reversed(now["cleared"]):
            if wanted in (finding["job"]["key"], finding["job"]["name"]):
                return finding["job"]["key"]
        raise


def find_job(jobs: list[Job], wanted: str | None) -> Job:
    """By key, name, or unique beginning of a key; None is the only job. Raises RequestError."""
    names = ", ".join(f"{job['name']} ({job['key'][:8]})" for job in jobs[:20]) or "none"
    if wanted is None:
        if len(jobs) == 1:
            return jobs[0]
        what = "there is no job" if not jobs else f"say which job: {names}"
        raise RequestError("not-found", what)
    exact = [job for job in jobs if wanted in (job["key"], job["name"])]
    if exact:
        return exact[0]
    begins = [job for job in jobs if wanted and job["key"].startswith(wanted.lower())]
    if len(begins) == 1:
        return begins[0]
    problem = "several jobs begin with" if begins else "no job"
    raise RequestError("not-found", f"{problem} {wanted[:60]!r}; jobs: {names}")
