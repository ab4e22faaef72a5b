"""`stragctl ring install` and `uninstall` on made file systems, and NCCL reads the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stragd.cli import ring_install
from stragd.cli.main import main
from tests.ncclring import ring
from tests.ncclring.build import HERE, built, recorder
from tests.test_ncclring_abi import real_nccl
from tests.test_ncclring_real import places

PLUGIN = ring_install.PLUGIN


class Root:
    """A file system to install into."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self._capsys = path, capsys
        self.write(PLUGIN, "ELF")

    def write(self, name: str, text: str) -> Path:
        file = self.path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        return file

    def read(self, name: str) -> str:
        return (self.path / name.lstrip("/")).read_bytes().decode("utf-8", "surrogateescape")

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}

    def run(self, *arguments: str, code: int = 0) -> str:
        assert main(["ring", *arguments, "--root", str(self.path)]) == code
        said = self._capsys.readouterr()
        assert (said.err == "") == (code == 0)
        return said.out + said.err


@pytest.fixture
def system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Root:
    return Root(tmp_path, capsys)


def values(text: str) -> dict[str, str]:
    """What NCCL takes from a file: of two lines with one name the first."""
    taken: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            taken.setdefault(name, value)
    return taken


def test_install_sets_the_plugin_for_both_libraries_and_uninstall_leaves_nothing(
    system: Root,
) -> None:
    before = system.files()
    assert "/etc/nccl.conf written" in system.run("install")
    for file in ("etc/nccl.conf", "etc/rccl.conf"):
        assert values(system.read(file)) == {"NCCL_PROFILER_PLUGIN": PLUGIN}
        assert (system.path / file).stat().st_mode & 0o777 == 0o644
    system.run("uninstall")
    assert system.files() == before


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO\n",
        "# ours\r\nNCCL_IB_HCA=mlx5\r\n",
        "NCCL_DEBUG=WARN",  # no end of line
        "# caf\udce9\nNCCL_SOCKET_IFNAME=eth0\n",  # Latin-1
    ],
)
def test_everything_else_in_the_file_stays_byte_for_byte(text: str, system: Root) -> None:
    file = system.write("etc/nccl.conf", text)
    file.chmod(0o640)
    system.run("install")
    taken = values(system.read("etc/nccl.conf"))
    assert taken == {"NCCL_PROFILER_PLUGIN": PLUGIN, **values(text)}
    assert system.read("etc/nccl.conf").endswith(text)
    assert file.stat().st_mode & 0o777 == 0o640
    system.run("uninstall")
    assert system.read("etc/nccl.conf") == text
    assert file.stat().st_mode & 0o777 == 0o640


def test_twice_is_once(system: Root) -> None:
    system.write("etc/nccl.conf", "NCCL_DEBUG=INFO\nNCCL_PROFILER_PLUGIN=theirs\n")
    system.run("install", "--containers")
    once = system.files()
    assert "nothing to do" in system.run("install", "--containers")
    assert system.files() == once
    system.run("uninstall")
    assert "nothing to do" in system.run("uninstall")


def test_a_plugin_that_the_site_has_is_chained_and_comes_back(system: Root) -> None:
    text = "NCCL_DEBUG=INFO\nNCCL_PROFILER_PLUGIN=/opt/theirs.so\n"
    system.write("etc/nccl.conf", text)
    system.run("install")
    taken = values(system.read("etc/nccl.conf"))
    assert taken["NCCL_PROFILER_PLUGIN"] == PLUGIN
    assert taken["STRAGD_RING_CHAIN"] == "/opt/theirs.so"
    system.run("uninstall")
    assert system.read("etc/nccl.conf") == text


@pytest.mark.parametrize("value", ["none", "", PLUGIN])
def test_what_is_no_other_plugin_is_not_chained(value: str, system: Root) -> None:
    system.write("etc/nccl.conf", f"NCCL_PROFILER_PLUGIN={value}\n")
    system.run("install")
    assert values(system.read("etc/nccl.conf")) == {"NCCL_PROFILER_PLUGIN": PLUGIN}


def test_a_chain_that_the_site_has_set_stays(system: Root) -> None:
    text = "NCCL_PROFILER_PLUGIN=first\nSTRAGD_RING_CHAIN=second\n"
    system.write("etc/nccl.conf", text)
    system.run("install")
    assert values(system.read("etc/nccl.conf"))["STRAGD_RING_CHAIN"] == "second"


def test_dry_run_shows_the_lines_and_changes_nothing(system: Root) -> None:
    system.write("etc/nccl.conf", "NCCL_PROFILER_PLUGIN=theirs\n")
    (system.path / "etc/enroot").mkdir()
    before = system.files()
    said = system.run("install", "--dry-run", "--containers")
    assert f"+NCCL_PROFILER_PLUGIN={PLUGIN}\n" in said
    assert "+STRAGD_RING_CHAIN=theirs\n" in said
    for file in ("/etc/nccl.conf", "/etc/rccl.conf", "/etc/cdi/stragd.json", "/etc/enroot/"):
        assert f"+++ {file}" in said
    assert system.files() == before
    answer = json.loads(system.run("install", "--dry-run", "--json"))
    assert [change["action"] for change in answer["changes"]] == ["change", "create"]


def test_containers_get_the_plugin_read_only_with_its_variable(system: Root) -> None:
    (system.path / "etc/enroot").mkdir(parents=True)
    system.run("install", "--containers")
    specification = json.loads(system.read("etc/cdi/stragd.json"))
    (device,) = specification["devices"]
    assert f"{specification['kind']}={device['name']}" == ring_install.CDI_DEVICE
    edits: dict[str, Any] = device["containerEdits"]
    assert edits["env"] == [f"NCCL_PROFILER_PLUGIN={PLUGIN}"]
    (mount,) = edits["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == (PLUGIN, PLUGIN)
    assert "ro" in mount["options"]
    source, target, _, options, *_ = system.read(ring_install.ENROOT_MOUNTS).split()
    assert (source, target) == (PLUGIN, PLUGIN)
    assert {"bind", "ro", "x-create=file"} <= set(options.split(","))
    assert system.read(ring_install.ENROOT_ENVIRONMENT) == f"NCCL_PROFILER_PLUGIN={PLUGIN}\n"
    system.run("uninstall")
    assert set(system.files()) == {PLUGIN[1:]}
    assert not (system.path / "etc/cdi").exists()


def test_cdi_devices_of_others_stay(system: Root) -> None:
    system.write("etc/cdi/nvidia.json", "{}")
    assert "enroot is not on this node" in system.run("install", "--containers")
    system.run("uninstall")
    assert set(system.files()) == {PLUGIN[1:], "etc/cdi/nvidia.json"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (ring_install.CDI_FILE, '{"cdiVersion": "0.5.0", "kind": "theirs/ring", "devices": []}'),
        (ring_install.CDI_FILE, "[]"),
        (ring_install.CDI_FILE, "no JSON {"),
        (ring_install.ENROOT_MOUNTS, f"{PLUGIN} {PLUGIN} none bind,rw 0 0\n"),
        (ring_install.ENROOT_ENVIRONMENT, f"NCCL_PROFILER_PLUGIN={PLUGIN}\nNCCL_DEBUG=INFO\n"),
    ],
)
def test_files_of_others_under_our_names_stop_install_and_outlive_uninstall(
    file: str, text: str, system: Root
) -> None:
    (system.path / "etc/enroot").mkdir(parents=True)
    system.write(file, text)
    before = system.files()
    said = system.run("install", "--containers", code=1)
    assert f"/{file} is not stragd's or was changed by hand: nothing was done" in said
    assert system.files() == before
    system.run("install")
    assert f"/{file} stays" in system.run("uninstall")
    assert system.files() == before
    answer = json.loads(system.run("uninstall", "--json"))
    assert {c["action"] for c in answer["changes"]} == {"none", "foreign"}
    assert not any(change["diff"] for change in answer["changes"])


def test_another_plugin_replaces_what_was_installed_for_containers(system: Root) -> None:
    (system.path / "etc/enroot").mkdir(parents=True)
    system.run("install", "--containers")
    system.write("/opt/new.so", "ELF")
    said = system.run("install", "--containers", "--plugin", "/opt/new.so")
    for file in ring_install.CONTAINER_FILES:
        assert f"/{file} changed" in said
        assert "/opt/new.so" in system.read(file)
        assert PLUGIN not in system.read(file)
    system.run("uninstall")
    assert set(system.files()) == {PLUGIN[1:], "opt/new.so"}


def test_a_link_stays_a_link(system: Root) -> None:
    managed = system.write("srv/nccl.conf", "NCCL_DEBUG=INFO\n")
    (system.path / "etc").mkdir()
    (system.path / "etc/nccl.conf").symlink_to(managed)
    system.run("install")
    assert (system.path / "etc/nccl.conf").is_symlink()
    assert values(managed.read_text())["NCCL_PROFILER_PLUGIN"] == PLUGIN


def test_what_cannot_be_done_is_said_with_its_reason(system: Root) -> None:
    system.write("etc/nccl.conf", "# stragd end\nNCCL_DEBUG=INFO\n")
    before = system.files()
    assert "/etc/nccl.conf: only a part of stragd's block" in system.run("install", code=1)
    assert "only a part" in system.run("uninstall", code=1)
    (system.path / "etc/nccl.conf").unlink()
    (system.path / "etc/rccl.conf").mkdir()
    assert "rccl.conf is not a file" in system.run("install", code=1)
    (system.path / "etc/rccl.conf").rmdir()
    assert "is not there: install the package" in system.run("install", "--plugin", "/x", code=1)
    assert "not an absolute path" in system.run("install", "--plugin", "x.so", code=1)
    del before["etc/nccl.conf"]
    assert system.files() == before


def test_a_real_nccl_loads_ours_from_the_file_and_chains_theirs(tmp_path: Path, root: None) -> None:
    library = real_nccl()
    theirs = recorder(tmp_path, 5)
    conf = tmp_path / "nccl.conf"
    text = f"NCCL_PROFILER_PLUGIN={theirs}\n"
    conf.write_text(ring_install.with_block(text, str(built().plugin)))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "STRAGD_R"))}
    environment |= {"NCCL_CONF_FILE": str(conf), "RECORDER_LOG": str(tmp_path / "recorded")}
    with subprocess.Popen(
        [sys.executable, HERE / "real_nccl.py", library],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment,
    ) as nccl:  # fmt: skip
        assert nccl.stdin is not None
        assert nccl.stdout is not None
        nccl.stdin.write(json.dumps(places(library)) + "\n")
        assert nccl.stdout.readline().strip().isdigit()
        header = ring.read(nccl.pid).header
        nccl.stdin.write("\n\n")
        assert nccl.wait(60) == 0
    assert header["chained"] == 1
    assert str(theirs).startswith(header["chained_name"].decode())
