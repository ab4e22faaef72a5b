"""A user who wants to harm the daemon or another user's job, on a real daemon beside a real job.

What single readers do with hostile input is tested beside them: docs/security.md has the list.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.cost import compile_stub
from bench.patterns import Training
from stragd.discovery.process import read_bounded
from tests.cpunccl.ranks import build
from tests.harness import ROOT, Daemon, wait_for

NOBODY = 65534
MAX_SERIES = 400
MEMORY = 256 << 20  # half of what the unit allows
EVIL = "evil"  # how the names of the bomb's jobs begin
# More clients than are served, each asking for the longest answer at once again. Each says how it
# fared, once.
FLOOD = """
import json, os, socket, sys, threading
def ask():
    said = False
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(sys.argv[1])
                answers = one.makefile()
                for _ in range(100):
                    one.sendall(b'{"version": 1, "verb": "top"}\\n')
                    if "result" in json.loads(answers.readline()) and not said:
                        said = os.write(1, b"answered\\n")
        except PermissionError:
            os.write(1, b"refused\\n")
            return
        except (OSError, ValueError):
            pass
for _ in range(40):
    threading.Thread(target=ask).start()
"""


@pytest.fixture(scope="module")
def privileged() -> None:
    assert os.geteuid() == 0, "the daemon attaches eBPF probes: run this as root"


@pytest.fixture(scope="module")
def folder(privileged: None) -> Iterator[Path]:
    """A folder that everybody can read, with the stub library and the bomb."""
    with tempfile.TemporaryDirectory(prefix="stragd-hostile-") as name:
        place = Path(name)
        place.chmod(0o755)
        compile_stub("stub.c", place / "libnccl.so.2")
        source = ROOT / "tests/cstubs/bomb.c"
        subprocess.run(["cc", "-O1", "-o", place / "bomb", source, "-ldl"], check=True)
        yield place


@pytest.fixture(scope="module")
def watcher(privileged: None) -> Iterator[Daemon]:
    """A daemon whose socket a group of unprivileged users may ask, as the service's."""
    with tempfile.TemporaryDirectory(prefix="stragd-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        one = Daemon(directory, f"max_series = {MAX_SERIES}\n")
        control = "[control]\n"
        text = one.config.read_text().replace(control, f'{control}group = "nogroup"\n')
        one.config.write_text(text)
        try:
            one.start()
            yield one
        finally:
            one.stop()


@pytest.fixture(scope="module")
def victim(watcher: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """Another user's job, which is being scored."""
    build()
    options = ["--ranks", "2", "--steps", "1000000", "--scale", "0.1"]
    one = Training(tmp_path_factory.mktemp("victim"), *options)
    try:
        wait_for("the job to be scored", lambda: windows(watcher, one) > 0, limit=180)
        yield one
    finally:
        one.kill()


def job_of(watcher: Daemon, victim: Training) -> dict[str, Any]:
    keys = {rank["job"] for rank in watcher.ranks(victim)}
    return next((job for job in watcher.ask("jobs")["jobs"] if job["key"] in keys), {})


def windows(watcher: Daemon, victim: Training) -> int:
    """Windows of the victim's job that have been scored."""
    assert victim.process.poll() is None, victim.log.read_text()
    return int(job_of(watcher, victim).get("windows", 0))


def evil(watcher: Daemon) -> list[dict[str, Any]]:
    return [job for job in watcher.ask("jobs")["jobs"] if job["name"].startswith(EVIL)]


def healthy(watcher: Daemon) -> None:
    """It has enough of its memory left."""
    assert watcher.ask("status")["health"]["rss_bytes"] < MEMORY


@contextlib.contextmanager
def nobody(*command: str | Path, group: int = NOBODY) -> Iterator[subprocess.Popen[str]]:
    """A program of another user."""
    one = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True,
        user=NOBODY, group=group, extra_groups=[], cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        yield one
    finally:
        one.kill()
        one.wait(60)
        assert one.stdout is not None
        one.stdout.close()


def first_line(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def scored_meanwhile(watcher: Daemon, victim: Training) -> None:
    before = windows(watcher, victim)
    wait_for("more windows", lambda: windows(watcher, victim) >= before + 2, limit=180)


def test_a_fork_bomb_of_fake_trainers(watcher: Daemon, victim: Training, folder: Path) -> None:
    bomb = [folder / "bomb", folder / "libnccl.so.2", "300", "30", "100"]
    with nobody(*bomb) as attack:
        while attack.poll() is None:
            assert watcher.control("status").returncode == 0
        assert attack.returncode == 0
    scored_meanwhile(watcher, victim)
    healthy(watcher)


def test_a_label_bomb(watcher: Daemon, victim: Training, folder: Path) -> None:
    bomb = [folder / "bomb", folder / "libnccl.so.2", "60", "60", "600000"]
    with nobody(*bomb) as attack:
        assert first_line(attack) == "started"
        page = wait_for("more series than are served", lambda: limited(watcher))
        assert evil(watcher)
        scored_meanwhile(watcher, victim)
        name = job_of(watcher, victim)["name"]
        healthy(watcher)
    samples = [sample for family in page for sample in family.samples]
    jobs = {sample.labels["job"] for sample in samples if "job" in sample.labels}
    assert name in jobs, "who came first stays on the page"
    assert "other" in jobs
    assert len(samples) <= MAX_SERIES
    values = [value for sample in samples for value in sample.labels.values()]
    assert all(len(value) <= 128 and value.isprintable() for value in values)


def limited(watcher: Daemon) -> list[Any]:
    """The page of metrics once it says that jobs are missing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{watcher.port}/metrics", timeout=60) as reply:
        page = list(text_string_to_metric_families(reply.read().decode()))
    (said,) = (f.samples[0].value for f in page if f.name == "stragd_series_limited")
    return page if said else []


def test_a_flood_of_the_control_socket(watcher: Daemon, victim: Training) -> None:
    flood = [sys.executable, "-c", FLOOD, watcher.socket]
    with nobody(*flood, group=1) as outsider:
        assert outsider.wait(60) == 0
        assert outsider.stdout is not None
        assert outsider.stdout.read().split() == ["refused"] * 40
    with nobody(*flood) as member:
        assert first_line(member) == "answered"
        scored_meanwhile(watcher, victim)
        assert watcher.control("probes", "on").returncode == 0, "root has connections of its own"
        assert member.poll() is None
    healthy(watcher)


def test_nothing_of_the_fake_jobs_stays(watcher: Daemon, victim: Training) -> None:
    """After the bombs above."""
    wait_for("the fake jobs to be forgotten", lambda: not evil(watcher))
    scored_meanwhile(watcher, victim)
    healthy(watcher)


@pytest.mark.parametrize("kind", ["fifo", "device", "link to a device", "folder", "link to itself"])
def test_what_is_no_file_is_not_opened(kind: str, tmp_path: Path, privileged: None) -> None:
    """What a job may put under /proc/PID/root in place of a file that is read there."""
    path = tmp_path / "version.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, 0o644 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if "device" in kind else path)
    assert read_bounded(path, 100) is None
    regular = tmp_path / "regular"
    regular.write_bytes(b"x" * 200)
    assert read_bounded(regular, 100) == b"x" * 100
    assert read_bounded("/proc/self/status", 5) == b"Name:"
