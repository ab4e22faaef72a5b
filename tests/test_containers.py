"""A job in a container with the CDI device that `stragctl ring install --containers` writes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.cli import ring_install
from stragd.cli.main import main
from stragd.discovery import Identifier
from tests.container import NAMESPACES, Container, device
from tests.cpunccl.ranks import FOLDER, build
from tests.harness import ROOT, Daemon, daemon, wait_for
from tests.needs import lacking
from tests.processes import known

NAME = f"in-a-container-{os.getpid()}"
RANKS = 2


@pytest.fixture
def host(tmp_path: Path, root: None) -> Path:
    """The part of a node's file system that install changes, with the plugin."""
    build()
    place = tmp_path / "host"
    plugin = place / ring_install.PLUGIN[1:]
    plugin.parent.mkdir(parents=True)
    shutil.copy(ROOT / "target/ncclring/libnccl-profiler-stragd.so", plugin)
    assert main(["ring", "install", "--containers", "--root", str(place)]) == 0
    return place


@pytest.fixture
def container(tmp_path: Path, host: Path) -> Iterator[Container]:
    """A job that knows nothing of stragd, in a container with the device."""
    edits = device(host / ring_install.CDI_FILE, ring_install.CDI_DEVICE)
    trainer = [sys.executable, FOLDER / "trainer.py", "--ranks", str(RANKS), "--steps", "100000"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nowhere",
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": NAME,
    }
    one = Container(tmp_path / "container", trainer, environment, edits, host)
    try:
        yield one
    finally:
        one.close()


def ranks(watcher: Daemon) -> list[dict[str, Any]]:
    """Those of the job in the container."""
    keys = {job["key"] for job in watcher.ask("jobs")["jobs"] if job["name"] == NAME}
    return [rank for rank in watcher.ask("top")["ranks"] if rank["job"] in keys]


def mapped(pid: int, file: Path) -> str:
    """Path under which a process has mapped a file, as its own maps say; "" when it has not."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, *_, path = line.split()
        if path.endswith(file.name) and os.path.samefile(f"/proc/{pid}/map_files/{place}", file):
            return path
    return ""


def test_the_device_brings_the_plugin_and_the_daemon_finds_ring_and_job(
    host: Path, container: Container
) -> None:
    with daemon() as watcher:

        def timed() -> list[dict[str, Any]]:
            if container.process.poll() is not None:
                log = container.log.read_text()
                if "mount:" in log:
                    lacking(f"an overlay of / cannot be mounted: {log}")
                raise AssertionError(f"the container ended: {log}")
            found = ranks(watcher)
            ready = [rank for rank in found if rank["source"] == "device-ring"]
            return found if len(ready) == RANKS else []

        found = wait_for("windows of device time", timed, limit=180)
        rings = {ring["pid"]: ring for ring in watcher.ask("ring")["rings"]}
        (job,) = (job for job in watcher.ask("jobs")["jobs"] if job["name"] == NAME)
    assert sorted(rank["rank"] for rank in found) == list(range(RANKS))
    assert (job["launcher"], job["world_size"]) == ("torchrun", RANKS)
    plugin = host / ring_install.PLUGIN[1:]
    for rank in found:
        pid = rank["pid"]
        assert pid in container.pids()
        identity = known(Identifier(), pid)
        assert identity.labels["slurm"] == "4711", "the job id is only in the container"
        assert f"{identity.job_key:016x}" == rank["job"] == job["key"]
        assert rings[pid]["mode"] == "full"
        assert mapped(pid, plugin), "another plugin than the mounted one"
        mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        (mount,) = (m.split() for m in mounts if m.split()[4] == ring_install.PLUGIN)
        assert {"ro", "nosuid", "nodev"} <= set(mount[5].split(","))
        for space in NAMESPACES:
            assert os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}")
