"""Container and pod of a process, from /proc/PID/cgroup (v1 and v2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stragd.discovery.process import read_bounded

MAX_BYTES = 64 << 10

# docker-<id>.scope, cri-containerd-<id>.scope, crio-<id>.scope, libpod-<id>.scope, /docker/<id>,
# /kubepods/.../<id>, containerd's "slice:cri-containerd:<id>".
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")
# kubepods-burstable-pod<uid with _>.slice, /kubepods/besteffort/pod<uid>
_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=[/:]|$)"
)
_SLURM_STEP = re.compile(r"/job_(\d{1,12})(?:/step_([a-z0-9]{1,16}))?(?=/|$)")


@dataclass(frozen=True)
class Container:
    """Empty strings where there is none."""

    container_id: str = ""  # 64 hex digits
    pod_uid: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    path: str = ""  # the longest cgroup path, at most 512 characters


def read_container(proc: str, pid: int) -> Container:
    """Container of a process; an empty one where its cgroup cannot be read."""
    raw = read_bounded(f"{proc}/{pid}/cgroup", MAX_BYTES)
    return parse((raw or b"").decode("utf-8", "replace"))


def parse(text: str) -> Container:
    """Read lines ``hierarchy:controllers:path``; the innermost container counts."""
    container = pod = job = step = longest = ""
    for line in text.splitlines()[:64]:
        path = line.split(":", 2)[-1][:4096]
        if ids := _CONTAINER.findall(path):
            container = container or ids[-1]
        if pods := _POD.findall(path):
            pod = pod or pods[-1].replace("_", "-")
        if found := _SLURM_STEP.search(path):
            job, step = job or found[1], step or (found[2] or "")
        if len(path) > len(longest):
            longest = path
    return Container(container, pod, job, step, longest[:512])
