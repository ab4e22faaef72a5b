"""Doctor: facts of a machine in, what is missing and the fix out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stragd.doctor import CAPABILITIES, Host, examine, read_host
from stragd.outputs.snapshot import Check, Library, Reader, Ring

ALL = sum(1 << bit for bit in CAPABILITIES.values())
FULL = Host(
    effective=ALL,
    kernel=(6, 18),
    perf_event_paranoid=2,
    lockdown="none",
    modules=frozenset({"pyroute2"}),
    disk_waits=True,
)
READERS: list[Reader] = [
    {"name": "host", "reason": "", "note": "", "read_s": 0.0021},
    {"name": "nic", "reason": "", "note": "", "read_s": None},
]


def library(**changes: Any) -> Library:
    made: dict[str, Any] = {
        "kinds": ["gloo"],
        "path": "/lib/libgloo.so",
        "build_id": "",
        "version": "",
        "state": "attached",
        "method": "uprobe_multi",
        "probes": 6,
        "refused": [],
        "missing": [],
        "error": "",
        "processes": [],
    }
    made.update(changes)
    return made  # type: ignore[return-value]


def host(**changes: Any) -> Host:
    return Host(**{**FULL.__dict__, **changes})


def without(*names: str) -> int:
    return ALL & ~sum(1 << CAPABILITIES[name] for name in names)


def find(checks: list[Check], feature: str) -> Check:
    (found,) = [check for check in checks if feature in check["feature"]]
    return found


def test_full_function() -> None:
    checks = examine(host(journald="native"), [library()], "", readers=READERS)
    assert [c for c in checks if c["state"] != "ok"] == []
    assert all(c["fix"] == "" and c["detail"] for c in checks)


@pytest.mark.parametrize(
    ("made", "feature", "state", "word"),
    [
        (host(kernel=(6, 1)), "uprobe_multi", "limited", "6.6 or newer"),
        (host(lockdown="confidentiality"), "lockdown", "missing", "integrity"),
        (host(hidepid="2", effective=without("CAP_SYS_PTRACE")), "every process", "limited", "hid"),
        (host(pid_namespace=4026532000), "every process", "limited", "--pid=host"),
        (host(effective=0), "other users", "missing", "root"),
        (host(effective=None), "other users", "missing", "root"),
        (host(effective=without("CAP_SYS_ADMIN", "CAP_PERFMON")), "live process", "limited", "ro"),
        (
            host(effective=without("CAP_SYS_ADMIN"), perf_event_paranoid=4),
            "live process",
            "limited",
            "perf_event_paranoid=2",
        ),
        (host(group_exists=False), "stragctl for a group", "limited", "groupadd"),
        (host(journald="no-module"), "journal", "limited", "python3-systemd"),
        (host(journald="stderr"), "journal", "limited", "stragd.service"),
        (host(devices=frozenset({"nvidiactl"})), "NVIDIA", "limited", "nvidia-ml-py"),
        (host(devices=frozenset({"kfd"})), "AMD", "limited", "amdsmi"),
        (host(disk_waits=False), "disk waits", "limited", "kernel.task_delayacct=1"),
        (host(disk_waits=None), "disk waits", "limited", "task_delayacct"),
        (host(pressure=False), "pressure", "limited", "psi=1"),
        (host(modules=frozenset()), "network drivers", "limited", "pyroute2"),
    ],
)
def test_what_is_missing_is_named_with_its_fix(
    made: Host, feature: str, state: str, word: str
) -> None:
    check = find(examine(made, [], "", readers=READERS), feature)
    assert check["state"] == state
    assert word in check["fix"]


def test_readers_of_telemetry() -> None:
    checks = examine(FULL, [], "", readers=READERS)
    assert find(checks, "telemetry of host")["detail"] == "the last pass took 2.1 ms"
    assert find(checks, "telemetry of nic")["detail"] == "not read yet"
    failed: Reader = {
        "name": "gpu",
        "reason": "the driver is not loaded",
        "note": "",
        "read_s": None,
    }
    check = find(examine(FULL, [], "", readers=[failed]), "telemetry of gpu")
    assert (check["state"], check["detail"]) == ("limited", "the driver is not loaded")
    divided: Reader = {"name": "gpu", "reason": "", "note": "no list", "read_s": 0.1}
    checks = examine(FULL, [], "", readers=[divided])
    assert find(checks, "telemetry of gpu")["state"] == "ok"
    check = find(checks, "processes of gpu")
    assert (check["state"], check["detail"]) == ("limited", "no list")
    assert "CAP_SYS_ADMIN" in check["fix"]
    off = examine(FULL, [], "")
    assert "[telemetry]" in find(off, "telemetry")["fix"]
    assert not any("pressure" in check["feature"] for check in off), "nobody would read it"


def test_unit_capabilities_are_enough_on_new_kernels() -> None:
    unit = (Path(__file__).parent.parent / "systemd/stragd.service").read_text()
    (line,) = [x for x in unit.splitlines() if x.startswith("CapabilityBoundingSet=")]
    mask = sum(1 << CAPABILITIES[name] for name in line.partition("=")[2].split())
    states = {c["feature"]: c["state"] for c in examine(host(effective=mask), [library()], "")}
    for feature in ("probes", "uprobe_multi", "live process events", "seeing every process"):
        assert states[feature] == "ok"
    assert states["reading processes of other users"] == "ok"


def test_engine_that_was_refused() -> None:
    checks = examine(host(effective=without("CAP_BPF")), [], "EPERM: CAP_BPF")
    check = find(checks, "probes")
    assert (check["state"], check["detail"]) == ("missing", "EPERM: CAP_BPF")
    assert "missing: CAP_BPF" in check["fix"]


def test_libraries() -> None:
    checks = examine(
        FULL,
        [
            library(kinds=["nccl"], version="2.21.5", refused=["ncclAllReduce: single-stepped"]),
            library(path="/a", state="not-probeable"),
            library(path="/b", state="failed", error="ENOSPC"),
            library(path="/c", state="off"),
            library(path="/d", state="duplicate"),
            library(path="/e", method="perf"),
        ],
        "",
    )
    nccl = find(checks, "nccl 2.21.5")
    assert nccl["state"] == "limited"
    assert "ncclAllReduce: single-stepped" in nccl["detail"]
    assert "allow_single_step" in nccl["fix"]
    assert find(checks, "(a)")["state"] == "missing"
    assert find(checks, "(b)")["detail"] == "ENOSPC"
    assert find(checks, "(c)")["fix"] == "stragctl probes on"
    assert find(checks, "(d)")["state"] == "ok"
    assert find(checks, "device times")["state"] == "limited"


def test_facts_are_read_from_the_machine(tmp_path: Path) -> None:
    for path, text in {
        "proc/sys/kernel/osrelease": "5.15.0-91-generic\n",
        "proc/sys/kernel/perf_event_paranoid": "4\n",
        "proc/self/status": "Name:\tx\nCapEff:\t000000c000000000\n",
        "proc/self/mountinfo": "1 2 0:21 / /proc rw - proc proc rw,hidepid=invisible\n",
        "sys/kernel/security/lockdown": "none integrity [confidentiality]\n",
        "dev/kfd": "",
    }.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (tmp_path / "proc/self/ns").mkdir()
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532001]")
    read = read_host(tmp_path, group="no-such-group")
    assert read.kernel == (5, 15)
    assert read.perf_event_paranoid == 4
    assert read.has("CAP_BPF", "CAP_PERFMON")
    assert read.lacks("CAP_SYS_ADMIN", "CAP_BPF") == ["CAP_SYS_ADMIN"]
    assert (read.hidepid, read.lockdown) == ("invisible", "confidentiality")
    assert read.pid_namespace == 4026532001
    assert read.devices == {"kfd"}
    assert not read.group_exists


def test_garbage_and_absence_are_no_error(tmp_path: Path) -> None:
    empty = read_host(tmp_path)
    assert (empty.effective, empty.kernel, empty.pid_namespace) == (None, (0, 0), None)
    for path in ("proc/sys/kernel/osrelease", "proc/self/status", "proc/self/mountinfo"):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(100000))
    assert examine(read_host(tmp_path), [], "x")


def test_this_machine() -> None:
    assert os.geteuid() == 0, "this test needs root"
    real = read_host()
    assert real.has("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE")
    assert real.kernel >= (5, 15)


def ring(pid: int, **changes: Any) -> Ring:
    made: dict[str, Any] = {
        "pid": pid, "state": "open", "reason": "", "vendor": "nvidia", "library": "2.28.3",
        "api": 5, "mode": "full", "sample": 1, "floor": 0, "wanted": "default", "clock": "ns",
        "chained": "", "communicators": 1, "joined": 1, "records": 5, "lost": 0, "dropped": {},
    }  # fmt: skip
    made.update(changes)
    return made  # type: ignore[return-value]


def test_device_times_with_some_and_all_rings() -> None:
    nccl = [library(kinds=["nccl"], processes=[1, 2])]

    def check(*rings: Ring) -> Check:
        return find(examine(FULL, nccl, "", rings=rings), "device times")

    assert check(ring(1), ring(2))["state"] == "ok"
    some = check(ring(1))
    assert (some["state"], "1 of 2 processes" in some["detail"]) == ("limited", True)
    none = check()
    assert "NCCL_PROFILER_PLUGIN=" in none["fix"]
    checks = examine(FULL, [], "", rings=[])
    assert not [c for c in checks if "device times" in c["feature"]], "nobody uses NCCL"


def test_rings_that_do_not_give_everything_say_why() -> None:
    costly = {"mode": "progress", "reason": "NCCL 2.31.2 is slowed", "library": "2.31.2"}
    rings = [
        ring(1, state="refused", reason="its size is not sealed", vendor="unknown", library=""),
        ring(2, **costly),
        ring(3, **costly),
        ring(4, mode="off", wanted="off"),
        ring(5, state="ended", mode="off"),
    ]
    checks = examine(FULL, [], "", rings=rings)
    assert "its size is not sealed (process 1)" in find(checks, "ring refused")["detail"]
    costly_check = find(checks, "2.31.2")
    assert costly_check["detail"] == "NCCL 2.31.2 is slowed (process 2, 3)"
    assert "stragctl ring on" in costly_check["fix"]
    assert find(checks, "ring of nvidia 2.28.3")["fix"] == "stragctl ring on"


def test_a_configured_plugin_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    conf = tmp_path / "etc/nccl.conf"
    conf.write_text(
        "# x\nNCCL_DEBUG=INFO\nNCCL_PROFILER_PLUGIN = /opt/libnccl-profiler-stragd.so\n"
    )
    made = read_host(tmp_path)
    assert made.plugins == (("/etc/nccl.conf", "/opt/libnccl-profiler-stragd.so", False),)
    assert find(examine(made, [], ""), "plugin of /etc/nccl.conf")["state"] == "missing"
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/libnccl-profiler-stragd.so").touch()
    assert read_host(tmp_path).plugins[0][2]
