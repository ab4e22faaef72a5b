"""The unit and its companions, checked by systemd's own tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stragd.outputs.journal import MESSAGE_IDS

FOLDER = Path(__file__).parent.parent / "systemd"
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
