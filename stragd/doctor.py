"""What is missing for full function, feature by feature, each with the way to get it.

``read_host`` collects the facts, ``examine`` judges them; the second is pure.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stragd.outputs.control import group_id
from stragd.outputs.journal import journal_module, under_journald
from stragd.outputs.snapshot import Check, Library, Reader, Ring

CAPABILITIES = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO, fixed in the kernel
_UNIT_FIX = "run stragd as root, or through its systemd unit"
_PLUGIN = "libnccl-profiler-stragd.so"
_PLUGIN_KEY = "NCCL_PROFILER_PLUGIN"
_RING_FIX = (
    f"run: stragctl ring install (or put {_PLUGIN_KEY}=/path/to/{_PLUGIN} into the job's "
    "environment); jobs started afterwards have it"
)

_IDENTITY_FIX = (
    "ranks are known by RANK and WORLD_SIZE, the variables of a launcher, or their communicators"
)


@dataclass(frozen=True)
class Host:
    """Facts about the machine and this process; None where a file could not be read."""

    effective: int | None  # CapEff
    kernel: tuple[int, int] = (0, 0)
    perf_event_paranoid: int | None = None
    lockdown: str = ""  # "none", "integrity", "confidentiality", "" where there is no such file
    hidepid: str = ""  # option of the /proc mount, "" where all is visible
    pid_namespace: int | None = None
    devices: frozenset[str] = field(default_factory=frozenset)  # of nvidiactl, kfd
    modules: frozenset[str] = field(default_factory=frozenset)  # of pynvml, amdsmi, pyroute2
    disk_waits: bool | None = None  # kernel.task_delayacct; None where the kernel has no such key
    pressure: bool = True  # /proc/pressure
    group: str = "stragd"
    group_exists: bool = True
    journald: Literal["native", "no-module", "stderr"] = "stderr"
    plugins: tuple[tuple[str, str, bool], ...] = ()  # (file, plugin it names, that is there)

    def has(self, *names: str) -> bool:
        """Whether every one of the capabilities is effective."""
        if self.effective is None:
            return False
        return all(self.effective >> CAPABILITIES[name] & 1 for name in names)

    def lacks(self, *names: str) -> list[str]:
        """Those of the capabilities that are not effective."""
        return [name for name in names if not self.has(name)]


def read_host(root: Path = Path("/"), group: str = "stragd") -> Host:
    """Collect the facts; ``root`` is another place than / in tests."""

    def text(path: str) -> str:
        try:
            with (root / path).open(encoding="utf-8", errors="replace") as file:
                return file.read(65536)
        except OSError:
            return ""

    release = re.match(r"(\d{1,4})\.(\d{1,4})", text("proc/sys/kernel/osrelease"))
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", text("proc/self/status"), re.M)
    lockdown = re.search(r"\[(\w+)\]", text("sys/kernel/security/lockdown"))
    paranoid = text("proc/sys/kernel/perf_event_paranoid").strip()
    journald: Literal["native", "no-module", "stderr"] = "stderr"
    if under_journald():
        journald = "native" if journal_module() else "no-module"
    return Host(
        effective=int(capabilities[1], 16) if capabilities else None,
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
        perf_event_paranoid=int(paranoid) if re.fullmatch(r"-?\d{1,3}", paranoid) else None,
        lockdown=lockdown[1] if lockdown else "",
        hidepid=_hidepid(text("proc/self/mountinfo")),
        pid_namespace=_pid_namespace(root),
        devices=frozenset(d for d in ("nvidiactl", "kfd") if (root / "dev" / d).exists()),
        modules=frozenset(
            m for m in ("pynvml", "amdsmi", "pyroute2") if importlib.util.find_spec(m)
        ),
        disk_waits={"0": False, "1": True}.get(text("proc/sys/kernel/task_delayacct").strip()),
        pressure=bool(text("proc/pressure/cpu")),
        group=group,
        group_exists=group_id(group) is not None,
        journald=journald,
        plugins=tuple(_plugins(root, text)),
    )


def _plugins(root: Path, text: Callable[[str], str]) -> Iterator[tuple[str, str, bool]]:
    """The profiler plugins that the libraries' configuration files name."""
    for file in ("etc/nccl.conf", "etc/rccl.conf"):
        for line in text(file).splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() == _PLUGIN_KEY:
                value = value.strip()
                there = not value.startswith("/") or (root / value[1:]).exists()
                yield f"/{file}", value, there


def _hidepid(mountinfo: str) -> str:
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 6 and fields[4] == "/proc" and " - proc " in line:
            option = re.search(r"hidepid=(\w+)", line)
            value = option[1] if option else ""
            return "" if value in ("0", "off") else value
    return ""


def _pid_namespace(root: Path) -> int | None:
    try:
        link = os.readlink(root / "proc/self/ns/pid")
    except OSError:
        return None
    match = re.fullmatch(r"pid:\[(\d{1,10})\]", link)
    return int(match[1]) if match else None


def _check(
    feature: str, state: Literal["ok", "limited", "missing"], detail: str, fix: str = ""
) -> Check:
    return {"feature": feature, "state": state, "detail": detail, "fix": fix}


def examine(
    host: Host,
    libraries: Iterable[Library],
    engine_error: str,
    degraded: Iterable[str] = (),
    notes: Iterable[str] = (),
    rings: Iterable[Ring] = (),
    readers: Iterable[Reader] = (),
) -> list[Check]:
    """All checks.

    ``engine_error`` says why there is no engine, "" when it runs; ``degraded`` what else does not
    work; ``notes`` are about the identity of processes; ``readers`` are those of telemetry.
    """
    libraries = list(libraries)
    checks = [
        _engine(host, engine_error),
        _attach_method(host, libraries),
        _perf(host),
        _run_time(host),
        _lockdown(host),
        _processes(host),
        _library_access(host),
        _control(host),
        _journal(host),
        _nvidia(host),
        _amd(host),
        *_telemetry(host, list(readers)),
    ]
    for library in libraries:
        checks.append(_library(library))
    checks += _device_times(host, libraries, list(rings))
    checks += [
        _check("daemon", "limited", line, "correct the configuration, then restart stragd")
        for line in degraded
    ]
    checks += [_check("identity of processes", "limited", line, _IDENTITY_FIX) for line in notes]
    return checks


def _device_times(host: Host, libraries: list[Library], rings: list[Ring]) -> Iterator[Check]:
    """What the profiler plugin in the jobs gives, and what keeps it from giving more."""
    feature = "device times of NCCL and RCCL"
    for file, plugin, there in host.plugins:
        if not there:
            yield _check(
                f"plugin of {file}",
                "missing",
                f"{plugin} is not there, so libraries load no plugin (containers may have it)",
                f"install it, or correct {_PLUGIN_KEY}",
            )
    device = [library for library in libraries if {"nccl", "rccl"} & set(library["kinds"])]
    processes = {pid for library in device for pid in library["processes"]}
    read = {ring["pid"] for ring in rings if ring["state"] == "open"}
    if device and not read:
        yield _check(
            feature,
            "limited",
            "no process has the profiler plugin: host probes show when a rank arrives in a "
            "collective, not how long the device works, so own and wait are unknown",
            _RING_FIX,
        )
    elif processes - read:
        shown = ", ".join(str(pid) for pid in sorted(processes - read)[:8])
        yield _check(
            feature,
            "limited",
            f"{len(processes - read)} of {len(processes | read)} processes are without the "
            f"plugin's ring: {shown}",
            f"a ring comes with the first communicator; if it does not: {_RING_FIX}",
        )
    elif read:
        yield _check(feature, "ok", f"the rings of {len(read)} processes are read")
    yield from _rings(rings)


def _rings(rings: list[Ring]) -> Iterator[Check]:
    """Rings that are refused or record less than everything, by reason."""
    reasons: dict[tuple[str, str, str], list[int]] = {}
    for ring in rings:
        library = f"{ring['vendor']} {ring['library']}".strip()
        if ring["state"] == "refused":
            reasons.setdefault(("ring refused", ring["reason"], ""), []).append(ring["pid"])
        elif ring["state"] == "open" and ring["reason"]:
            fix = "" if ring["mode"] == "full" else "stragctl ring on records all in spite of it"
            reasons.setdefault((f"ring of {library}", ring["reason"], fix), []).append(ring["pid"])
        elif ring["state"] == "open" and ring["mode"] != "full":
            text = f"it is asked to record {ring['wanted']}: no device times"
            key = (f"ring of {library}", text, "stragctl ring on")
            reasons.setdefault(key, []).append(ring["pid"])
    for (feature, reason, fix), pids in reasons.items():
        shown = ", ".join(str(pid) for pid in pids[:8]) + (", ..." if len(pids) > 8 else "")
        yield _check(feature, "limited", f"{reason} (process {shown})", fix)


def _engine(host: Host, error: str) -> Check:
    if error:
        missing = host.lacks("CAP_BPF", "CAP_PERFMON")
        fix = f"{_UNIT_FIX} (missing: {', '.join(missing)})" if missing else _UNIT_FIX
        return _check("probes", "missing", error, fix)
    return _check("probes", "ok", "the BPF programs are loaded")


def _attach_method(host: Host, libraries: list[Library]) -> Check:
    feature = "uprobe_multi"
    version = f"kernel {host.kernel[0]}.{host.kernel[1]}"
    methods = {library["method"] for library in libraries if library["state"] == "attached"}
    if "uprobe_multi" in methods:
        return _check(feature, "ok", f"{version}, in use")
    if "perf" in methods or host.kernel < (6, 6):
        return _check(
            feature,
            "limited",
            f"{version}: probes are perf events, which take seconds to detach"
            + (" and need CAP_SYS_ADMIN" if not host.has("CAP_SYS_ADMIN") else ""),
            "run Linux 6.6 or newer",
        )
    return _check(feature, "ok", f"{version} has it; nothing is attached yet")


def _perf(host: Host) -> Check:
    feature = "live process events"
    if host.has("CAP_SYS_ADMIN"):
        return _check(feature, "ok", "perf events are open to this process")
    if not host.has("CAP_PERFMON"):
        return _check(
            feature,
            "limited",
            "no CAP_PERFMON: processes are found by the sweep through /proc only",
            _UNIT_FIX,
        )
    paranoid = host.perf_event_paranoid
    if paranoid is not None and paranoid > 2:
        return _check(
            feature,
            "limited",
            f"kernel.perf_event_paranoid is {paranoid}; above 2 some distributions refuse "
            "perf events even with CAP_PERFMON",
            "sysctl kernel.perf_event_paranoid=2",
        )
    return _check(feature, "ok", f"CAP_PERFMON, kernel.perf_event_paranoid {paranoid}")


def _run_time(host: Host) -> Check:
    feature = "BPF run time"
    if host.has("CAP_SYS_ADMIN"):
        return _check(feature, "ok", "the kernel times the programs on request")
    return _check(
        feature,
        "limited",
        "without CAP_SYS_ADMIN the kernel times BPF programs for all or for nobody",
        "sysctl kernel.bpf_stats_enabled=1 while you want to know",
    )


def _lockdown(host: Host) -> Check:
    if host.lockdown == "confidentiality":
        return _check(
            "kernel lockdown",
            "missing",
            "lockdown is confidentiality: BPF programs may not read arguments in memory",
            "boot with lockdown=integrity",
        )
    return _check("kernel lockdown", "ok", host.lockdown or "not active")


def _processes(host: Host) -> Check:
    feature = "seeing every process"
    if host.pid_namespace not in (None, _INITIAL_PID_NAMESPACE):
        return _check(
            feature,
            "limited",
            "stragd runs in a pid namespace of its own and sees that one's processes only",
            "run it on the host, or the container with --pid=host",
        )
    if host.hidepid and not host.has("CAP_SYS_PTRACE"):
        return _check(
            feature,
            "limited",
            f"/proc is mounted with hidepid={host.hidepid}",
            "give stragd CAP_SYS_PTRACE (its unit does), or mount /proc without hidepid",
        )
    return _check(feature, "ok", "initial pid namespace, /proc shows all")


def _library_access(host: Host) -> Check:
    feature = "reading processes of other users"
    missing = host.lacks("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
    if not host.has("CAP_SYS_ADMIN") and not host.has("CAP_CHECKPOINT_RESTORE"):
        missing.append("CAP_CHECKPOINT_RESTORE")
    if missing:
        return _check(feature, "missing", "without " + ", ".join(missing), _UNIT_FIX)
    return _check(feature, "ok", "environment, maps and mapped files are readable")


def _control(host: Host) -> Check:
    if not host.group_exists:
        return _check(
            "stragctl for a group",
            "limited",
            f"there is no group {host.group}: only root may ask",
            f"groupadd --system {host.group}, then restart stragd",
        )
    return _check("stragctl for a group", "ok", f"members of {host.group} may read")


def _journal(host: Host) -> Check:
    feature = "structured journal entries"
    if host.journald == "native":
        return _check(feature, "ok", "journald, with fields")
    if host.journald == "no-module":
        return _check(
            feature, "limited", "systemd-python is not installed", "apt install python3-systemd"
        )
    return _check(
        feature,
        "limited",
        "not started by systemd: plain lines on standard error",
        'start stragd.service, or set target = "journald" in section [journal]',
    )


def _gpu(host: Host, vendor: str, device: str, module: str, package: str) -> Check:
    feature = f"{vendor} GPUs"
    if device not in host.devices:
        return _check(feature, "ok", f"none on this node (no /dev/{device})")
    if module not in host.modules:
        return _check(
            feature,
            "limited",
            f"the Python package {package} is missing: class and rank of GPUs come from the "
            "job's environment only",
            f"pip install {package}",
        )
    return _check(feature, "ok", f"/dev/{device} and {package} are there")


def _nvidia(host: Host) -> Check:
    return _gpu(host, "NVIDIA", "nvidiactl", "pynvml", "nvidia-ml-py")


def _amd(host: Host) -> Check:
    return _gpu(host, "AMD", "kfd", "amdsmi", "amdsmi")


def _telemetry(host: Host, readers: list[Reader]) -> Iterator[Check]:
    """What the cause of a finding is told by."""
    if not readers:
        yield _check(
            "telemetry",
            "limited",
            "off: the cause of every finding is unknown",
            "set enabled = true in section [telemetry]",
        )
        return
    for reader in readers:
        state: Literal["ok", "limited"] = "limited" if reader["reason"] else "ok"
        seconds = reader["read_s"]
        took = "not read yet" if seconds is None else f"the last pass took {1e3 * seconds:.1f} ms"
        fix = "the cause of findings is told without it" if reader["reason"] else ""
        yield _check(f"telemetry of {reader['name']}", state, reader["reason"] or took, fix)
        if reader["note"]:
            fix = "add CAP_SYS_ADMIN to the unit's CapabilityBoundingSet; other telemetry works"
            yield _check(f"processes of {reader['name']}", "limited", reader["note"], fix)
    names = {reader["name"] for reader in readers}
    if "host" in names:
        yield _disk_waits(host)
        yield _check(
            "pressure (PSI)",
            "ok" if host.pressure else "limited",
            "the kernel counts it" if host.pressure else "the kernel does not count it",
            "" if host.pressure else "boot with psi=1",
        )
    if "nic" in names:
        there = "pyroute2" in host.modules
        yield _check(
            "counters of network drivers",
            "ok" if there else "limited",
            "pyroute2 is there"
            if there
            else "the Python package pyroute2 is missing: NICs are read from sysfs alone, without "
            "ethtool's statistics and the highest rate of a link",
            "" if there else "pip install pyroute2",
        )


def _disk_waits(host: Host) -> Check:
    feature = "disk waits of ranks"
    if host.disk_waits:
        return _check(feature, "ok", "kernel.task_delayacct is 1")
    return _check(
        feature,
        "limited",
        "kernel.task_delayacct is 0: waits are sampled five times a second"
        if host.disk_waits is False
        else "this kernel does not count them by task",
        "sysctl kernel.task_delayacct=1; jobs started afterwards are counted",
    )


def _library(library: Library) -> Check:
    kinds = "+".join(library["kinds"])
    file = library["path"].rpartition("/")[2]  # the whole path is in the list of libraries
    feature = " ".join(filter(None, (kinds, library["version"], f"({file})")))
    state = library["state"]
    if state == "not-probeable":
        return _check(
            feature,
            "missing",
            f"{kinds} is inside, but not probeable: {library['error'] or 'its symbols are hidden'}",
            "use a build that exports its NCCL functions (a shared libnccl)",
        )
    if state == "failed":
        return _check(feature, "missing", library["error"] or "attach failed", "see `probes`")
    if state == "off":
        return _check(feature, "limited", "probes are off", "stragctl probes on")
    if state == "duplicate":
        return _check(feature, "ok", "the same file as another one, probed there")
    if library["refused"]:
        shown = "; ".join(library["refused"][:8])
        return _check(
            feature,
            "limited",
            f"{library['probes']} probes; refused: {shown}",
            "allow_single_step = true in section [probes] takes the slow ones too",
        )
    return _check(feature, "ok", f"{library['probes']} probes by {library['method']}")
