"""The unit and its companions, checked by systemd's own tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stragd.outputs.journal import MESSAGE_IDS

FOLDER = Path(__file__).parent.parent / "systemd"
PYTHON = "/usr/bin/python3"  # one that every user may run
UNIT = FOLDER / "stragd.service"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    assert shutil.which(command[0]), f"{command[0]} is not installed"
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def unit_copy(tmp_path: Path, extra: str = "") -> Path:
    """The unit with a program that exists here."""
    text = UNIT.read_text()
    assert "ExecStart=/usr/bin/stragd\n" in text
    copy = tmp_path / "stragd.service"
    copy.write_text(text.replace("ExecStart=/usr/bin/stragd\n", "ExecStart=/bin/true\n") + extra)
    return copy


def exposure(unit: Path) -> float:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+ (\d+\.\d)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1])


def test_unit_verifies(tmp_path: Path) -> None:
    done = run("systemd-analyze", "verify", str(unit_copy(tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wrong = unit_copy(tmp_path, "\n[Service]\nProtectSytem=strict\n")
    assert "ProtectSytem" in run("systemd-analyze", "verify", str(wrong)).stderr


def test_exposure(tmp_path: Path) -> None:
    assert exposure(unit_copy(tmp_path)) <= 4.0
    drop_in = tmp_path / "stragd.service.d"
    drop_in.mkdir()
    shutil.copy(FOLDER / "kernel-before-6.6.conf", drop_in)
    without = exposure(UNIT)
    with_admin = exposure(tmp_path / "stragd.service")
    assert without < with_admin <= 4.0


@pytest.mark.parametrize(
    "hides", ["ProtectProc=", "ProcSubset=", "PrivateUsers=", "PrivateNetwork=", "PrivateDevices="]
)
def test_unit_does_not_hide_the_jobs(hides: str) -> None:
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert not any(line.startswith(hides) for line in lines)


NATIVE = """
import json, sys, time
from stragd import _rscore
engine = _rscore.Engine({"measure_run_time": False})
engine.start()
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    attached = [x for x in engine.libraries() if x["state"] == "attached"]
    if attached and engine.counters()["sideband"]:
        break
    time.sleep(0.1)
print(json.dumps([attached, engine.counters()["sideband"]]))
engine.close()
"""


TELEMETRY = """
import json, sys, time
from stragd.discovery.process import read_stat
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
pid = int(sys.argv[1])
host, nic = HostTelemetry(), NicTelemetry()
for _ in range(2):
    (sample,) = host.read({pid: read_stat("/proc", pid).start_time}, 0, 1)
    node, nics = host.read_node(0, 1), nic.read(0, 1)
    time.sleep(0.2)
silent = [s.silent for s in (sample, node, *nics) if s.silent]
print(json.dumps([sample.values, sample.notes, node.values, len(nics), silent]))
"""


def as_the_unit(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code with the capabilities that the unit gives."""
    (line,) = [x for x in UNIT.read_text().splitlines() if x.startswith("CapabilityBoundingSet=")]
    names = line.partition("=")[2].lower().replace("cap_", "+").split()
    bounds = f"--bounding-set=-all,{','.join(names)}"
    return subprocess.run(
        ["setpriv", bounds, "--no-new-privs", sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )


def test_capabilities_of_the_unit_are_enough_for_telemetry() -> None:
    """The process is another user's, with an environment that only the privileged may read."""
    other = subprocess.Popen(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"],
        env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"},
        cwd="/",
    )
    try:
        done = as_the_unit(TELEMETRY, str(other.pid))
    finally:
        other.kill()
        other.wait(60)
    assert done.returncode == 0, done.stderr
    process, notes, node, _, silent = json.loads(done.stdout)
    wanted = {"run_queue_share", "cpu_share", "read_bytes_per_s", "stopped_share", "swap_bytes"}
    assert wanted <= process.keys()
    assert "CUDA_LAUNCH_BLOCKING is set" in notes
    assert "load_per_cpu" in node
    assert silent == []


def test_capabilities_of_the_unit_are_enough_for_the_engine() -> None:
    """On this kernel; the process of another user, so that every capability is needed."""
    load = "import ctypes, time; ctypes.CDLL('libgloo.so.0'); print(1, flush=True); time.sleep(600)"
    other = subprocess.Popen(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", PYTHON, "-c", load],
        stdout=subprocess.PIPE,
        cwd="/",
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n", "Debian's libgloo0 is not installed"
        done = as_the_unit(NATIVE)
    finally:
        other.kill()
        other.wait(60)
        other.stdout.close()
    assert done.returncode == 0, done.stderr
    attached, sideband = json.loads(done.stdout)
    assert any("gloo" in library["path"] for library in attached)
    assert sideband == 1


def test_group_is_created(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    conf = str(FOLDER / "stragd.sysusers.conf")
    done = run("systemd-sysusers", f"--root={tmp_path}", conf)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^stragd:", (tmp_path / "etc" / "group").read_text(), re.M)


def test_catalog_explains_every_message_id(tmp_path: Path) -> None:
    catalog = tmp_path / "usr/lib/systemd/catalog"
    catalog.mkdir(parents=True)
    shutil.copy(FOLDER / "stragd.catalog", catalog)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    done = run("journalctl", f"--root={tmp_path}", "--update-catalog")
    assert done.returncode == 0, done.stderr
    listed = run("journalctl", f"--root={tmp_path}", "--list-catalog").stdout
    found = {line.split()[0]: line for line in listed.splitlines() if line.strip()}
    assert set(found) == set(MESSAGE_IDS.values())
    assert len(found) == len(MESSAGE_IDS)
    assert all("stragd:" in line for line in found.values())
