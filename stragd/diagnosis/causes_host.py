"""Causes that a rank's process or its node shows."""

from __future__ import annotations

import re

from stragd.diagnosis.cause import Cause
from stragd.diagnosis.compare import View, apart
from stragd.diagnosis.signals import LOADED_CPU, WAITING_FOR_DISKS
from stragd.finding import Where

# The readers' words for a profiler's variable and for a debugger; the number differs by rank.
_TOOL = re.compile(r"^([A-Z][A-Z0-9_]{2,63}) is set$|^(traced by process) \d+$")
_FROZEN = "its cgroup is frozen"


def _left_on(view: View) -> tuple[float, str] | None:
    found = _tools(view.notes())
    theirs = [_tools(view.notes(peer)) for peer in view.alike()]
    # What every rank has on makes none of them slower than the others.
    alone = {tool: apart(sum(tool in tools for tools in theirs), len(theirs)) for tool in found}
    names = [tool for tool in sorted(found) if alone[tool] > 0]
    if not names:
        return None
    peers = f" and not of most of its {len(theirs)} peers" if theirs else ""
    strength = max(alone.values()) * (1.0 if theirs else 0.7)
    return strength, f"true of this rank{peers}: {', '.join(names[:4])}"


def _tools(notes: set[str]) -> set[str]:
    """What is left on, in words that are the same for every rank."""
    found = [_TOOL.match(note) for note in notes]
    return {f"{m[1]} is set" if m[1] else "traced by a process" for m in found if m}


def _frozen(view: View) -> tuple[float, str] | None:
    if _FROZEN not in view.notes():
        return None
    return 1.0, _FROZEN


def _of_this_rank_alone(view: View) -> float:
    """The node's other ranks share it: where they are healthy, it tells this one apart less."""
    return 0.7 if any(peer.host == view.subject.host for peer in view.peers) else 1.0


def _loaded(view: View) -> float:
    share = view.value("process.cpu_share")
    load = view.value("node.load_per_cpu")
    if share is None and load is None:
        return 0.5 * _of_this_rank_alone(view)
    busy = (share or 0.0) >= LOADED_CPU or (load or 0.0) >= LOADED_CPU
    return _of_this_rank_alone(view) if busy else 0.0


def _swapping(view: View) -> float:
    """Pages that lie in swap cost nothing until they are wanted."""
    wanted = view.deviation("node.swap_in_per_s") or view.deviation("process.major_faults_per_s")
    if not wanted or not view.value("process.swap_bytes"):
        return 0.0
    return 1.0 if view.deviation("process.swap_bytes") else 0.7


_RECLAIM = (
    "pressure_memory_share",
    "pressure_memory_full_share",
    "cgroup_memory_high_delta",
    "cgroup_memory_max_delta",
    "cgroup_oom_delta",
)


def _short_of_memory(view: View) -> float:
    """Major faults alone are also how a mapped data set is read, and so is a node in need."""
    return 1.0 if any(view.deviation(f"process.{name}") for name in _RECLAIM) else 0.6


def _working(view: View) -> float:
    share = view.value("process.worker_cpu_share")
    return 1.0 if share is not None and share >= LOADED_CPU else 0.0


def _waits_for_disks(view: View) -> float:
    """Who reads most is the one that waits, where the kernel does not count waits by task."""
    waits = ("disk_wait_share", "worker_disk_wait_share", "pressure_io_share")
    if any(view.deviation(f"process.{name}") for name in waits):
        return 1.0
    pressure = [view.value(f"{kind}.pressure_io_share") or 0.0 for kind in ("process", "node")]
    return 0.7 if max(pressure) >= WAITING_FOR_DISKS else 0.0


def _slow_disk(view: View) -> Where | None:
    """A node that waits for its disks more than others, though this rank reads no more."""
    if view.deviation("process.read_bytes_per_s"):
        return None
    return "machine" if view.deviation("node.pressure_io_share") else None


HOST_CAUSES = (
    Cause(
        "stopped-process",
        "job",
        0.97,
        ("process.stopped_share",),
        "find out who stops it: SIGSTOP, a debugger, a frozen cgroup, a blocking profiler",
        noticed=_frozen,
    ),
    Cause(
        "cpu-quota",
        "job",
        0.95,
        ("process.throttled_share", "process.throttled_periods_share"),
        "raise the CPU limit of its container or cgroup (cpu.max), or lower its number of threads",
        supports=("process.pressure_cpu_full_share",),
        context=("process.cpu_share",),
    ),
    Cause(
        "cpu-contention",
        "machine",
        0.9,
        ("process.run_queue_share", "process.worker_run_queue_share"),
        "find what else runs on its CPUs (pidstat, top -H); pin ranks apart, reserve cores",
        supports=(
            "process.involuntary_switches_per_s",
            "process.pressure_cpu_share",
            "node.pressure_cpu_share",
        ),
        # A throttled or stolen-from thread is runnable and does not run.
        symptom_of=("cpu-quota", "cpu-steal"),
    ),
    Cause(
        "cpu-steal",
        "machine",
        0.85,
        ("node.steal_share",),
        "move the virtual machine, or stop overcommitting its host",
        gate=_of_this_rank_alone,
    ),
    Cause(
        "cpu-frequency",
        "machine",
        0.75,
        ("node.cpu_frequency_mhz",),
        "set the performance governor; check the CPU's cooling and power profile in the BIOS",
        gate=_loaded,
    ),
    Cause(
        "numa-misplacement",
        "job",
        0.65,
        ("process.numa_remote_share",),
        "bind the rank to the CPUs and memory beside its GPU (numactl, the launcher's binding)",
    ),
    Cause(
        "memory-pressure",
        "job",
        0.88,
        (
            "process.pressure_memory_share",
            "process.pressure_memory_full_share",
            "process.cgroup_memory_high_delta",
            "process.cgroup_memory_max_delta",
            "process.cgroup_oom_delta",
            "process.major_faults_per_s",
            "node.pressure_memory_share",
        ),
        "give the rank more memory, or let it hold less: fewer or smaller data-loader workers",
        gate=_short_of_memory,
        symptom_of=("swap",),
    ),
    Cause(
        "swap",
        "machine",
        0.92,
        ("process.swap_bytes", "node.swap_in_per_s"),
        "free memory on the node or turn swap off there; find what used it up",
        supports=("process.major_faults_per_s", "process.pressure_memory_share"),
        gate=_swapping,
    ),
    Cause(
        "data-loader-disk",
        "job",
        0.86,
        (
            "process.disk_wait_share",
            "process.worker_disk_wait_share",
            "process.pressure_io_share",
            "process.read_bytes_per_s",
        ),
        "fix the data loader: more workers, prefetch, a local copy; check that rank's storage",
        supports=("node.pressure_io_share", "process.major_faults_per_s"),
        gate=_waits_for_disks,
        elsewhere=_slow_disk,
        symptom_of=("swap", "memory-pressure"),
    ),
    Cause(
        "data-loader-cpu",
        "job",
        0.62,
        ("process.worker_cpu_share",),
        "fix the data loader: this rank's samples cost more CPU; even out the shards, cache",
        gate=_working,
        symptom_of=("cpu-quota", "cpu-contention", "cpu-steal", "cpu-frequency"),
    ),
    Cause(
        "tooling-left-on",
        "job",
        0.6,
        (),
        "start the rank without the profiler or debugging switch",
        noticed=_left_on,
    ),
)
