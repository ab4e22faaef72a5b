"""`stragctl why` at real jobs: a healthy pair, a starved rank, a data loader at the disk."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness import ROOT, SCRIPTS, Daemon, Job, daemon, job, wait_for
from tests.injections import RANKS, WATCH, arguments, neighbours
from tests.needs import lacking

BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 11, 13, 15
LIMIT = 180.0
SHORT = ("--seconds", "3")


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    if os.geteuid() != 0:
        lacking("why looks into other processes: run this as root")
    if subprocess.run(["/usr/bin/python3", "-c", "import bcc"], check=False).returncode:
        lacking("no bcc: scripts/setup tests")


def programs() -> set[str]:
    """Names of the BPF programs that the kernel holds."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    number = BPF_SYSCALL[os.uname().machine]

    def bpf(command: int, attribute: ctypes.Array[ctypes.c_uint32]) -> int:
        return int(call(number, command, attribute, ctypes.sizeof(attribute)))

    names, last = set(), 0
    while True:
        attribute = (ctypes.c_uint32 * 3)(last)
        if bpf(PROG_GET_NEXT_ID, attribute) < 0:
            return names
        last = attribute[1]
        file = bpf(PROG_GET_FD_BY_ID, (ctypes.c_uint32 * 3)(last))
        if file < 0:
            continue  # it has gone meanwhile
        info = ctypes.create_string_buffer(128)
        where = ctypes.addressof(info)
        bpf(OBJ_GET_INFO_BY_FD, (ctypes.c_uint32 * 4)(file, 128, where & 0xFFFFFFFF, where >> 32))
        os.close(file)
        names.add(info.raw[64:80].partition(b"\0")[0].decode())


def nothing_is_left() -> None:
    """The child has ended with all that it loaded."""
    wait_for("the programs to go", lambda: not any(n.startswith("why_") for n in programs()))


class Watched:
    """A job and who its ranks are."""

    def __init__(self, watcher: Daemon, training: Job, ranks: int) -> None:
        self.watcher, self.training = watcher, training

        def found() -> list[dict[str, Any]]:
            rows = watcher.ranks(training)
            ready = [row for row in rows if row["signature"]]
            return rows if len(ready) == ranks else []

        rows = wait_for("all ranks", found, LIMIT)
        self.key = rows[0]["job"]
        self.pids = {row["rank"]: row["pid"] for row in rows}

    def why(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One look, as a person takes it."""
        command = [SCRIPTS / "stragctl", "--socket", self.watcher.socket, "why", self.key, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)

    def seen(self, *words: str) -> dict[str, Any]:
        """One look as JSON."""
        done = self.why(*words, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with daemon(WATCH) as watcher, job("ddp.py", RANKS, *arguments()) as training:
        yield Watched(watcher, training, RANKS)


def difference(answer: dict[str, Any], what: str) -> dict[str, Any] | None:
    """The entry about one kind of time."""
    return next((d for d in answer["differences"] if d["what"] == what), None)


def test_between_healthy_ranks_nothing_differs(watched: Watched) -> None:
    def alike() -> str:
        # On a busy machine a few seconds may well be unequal: it is about some.
        done = watched.why("2", "--peer", "3", *SHORT)
        assert done.returncode == 0, done.stderr
        return done.stdout if "nothing differs" in done.stdout else ""

    text = wait_for("two equal ranks", alike, LIMIT)
    assert f"rank 2 (pid {watched.pids[2]}) beside rank 3 (pid {watched.pids[3]})" in text
    assert "no finding about rank 2" in text
    nothing_is_left()


def test_a_rank_whose_core_is_taken_waits_for_it(watched: Watched) -> None:
    what = "runnable but not running"
    with neighbours(watched.pids[1]):

        def starved() -> dict[str, Any] | None:
            answer = watched.seen("1", "--peer", "0", *SHORT)
            first = answer["differences"][:1]
            return answer if first and first[0]["what"] == what else None

        answer = wait_for("the run queue to be named", starved, LIMIT)
        entry = difference(answer, what)
        assert entry is not None
        assert entry["rank"] > entry["peer"] + 20
        assert entry["longest_ms"] > 0
        assert answer["ranks"][0]["gave_way_to"]
        assert answer["ranks"][0]["series"][what]["ms_per_s"] == entry["rank"]
        main = {t["tid"]: t for t in answer["ranks"][0]["threads"]}[watched.pids[1]]
        assert main["runnable_ms_per_s"] > main["running_ms_per_s"]

        def said() -> str:
            done = watched.why("1", "--peer", "0", *SHORT)
            return done.stdout if f"{what}: " in done.stdout else ""

        text = wait_for("the run queue in words", said, LIMIT)
        assert "its CPU went to" in text
    nothing_is_left()


def test_python_stacks_are_read_without_stopping_the_rank(watched: Watched) -> None:
    if not (Path(sys.executable).parent / "py-spy").exists():
        lacking("no py-spy: scripts/setup tests")
    answer = watched.seen("0", *SHORT)
    assert answer["python"]["unread"] == []
    for rank in answer["ranks"]:
        frames = {frame for stack in rank["python"] for frame in stack["frames"]}
        assert any("ddp.py" in frame for frame in frames), frames


def test_a_data_loader_at_the_disk_is_named() -> None:
    options = ["--step-ms", "40", "--steps", "100000", "--slow-rank", "1", "--mib", "24"]
    # /tmp may be memory, /var/tmp is a disk.
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        daemon(WATCH) as watcher,
        job("files.py", 2, *options, "--folder", folder) as training,
    ):
        watched = Watched(watcher, training, 2)

        def at_the_disk() -> dict[str, Any] | None:
            answer = watched.seen("1", "--peer", "0", *SHORT)
            # How many ms of a second that is depends on how busy the machine is otherwise.
            asks = any(c["what"] == "block requests" for c in answer["contrasts"])
            return answer if asks and "waiting: disk" in answer["ranks"][0]["series"] else None

        answer = wait_for("the disk to be named", at_the_disk, LIMIT)
        mine, other = answer["ranks"]
        idle = {"ms_per_s": 0.0}
        of_other = other["series"].get("waiting: disk", idle)
        assert mine["series"]["waiting: disk"]["ms_per_s"] > of_other["ms_per_s"]
        assert mine["io_requests"] > 2 * other["io_requests"]
        assert mine["io_ms"] > 0
        # The one that waits is a data-loader worker, not the rank's own process.
        longest = next(s for s in mine["stacks"] if s["waits_for"] == "disk")
        assert longest["pid"] != watched.pids[1]
        assert longest["pid"] in {p["pid"] for p in mine["processes"]}


def one_line(done: subprocess.CompletedProcess[str], words: str, code: int = 1) -> None:
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert words in done.stderr


def test_what_cannot_be_looked_at_is_one_line(watched: Watched) -> None:
    one_line(watched.why("99"), "world size is 4 (here: ranks 0, 1, 2, 3)")
    one_line(watched.why("1", "--peer", "1"), "cannot be its own peer")
    one_line(watched.why("one"), "is not the number of a rank", code=2)
    one_line(watched.why("1", "--seconds", "0"), "between 1 and 300 seconds", code=2)
    one_line(watched.watcher.control("why", "no-such-job", "1"), "no job 'no-such-job'")


def test_without_root_it_is_one_line(watched: Watched) -> None:
    # Imported as root: nobody may not be able to read this checkout.
    command = [sys.executable, "-c", "import os, sys, stragd.cli.why; "
               "from stragd.cli.main import main; "
               "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"]  # fmt: skip
    command += ["--socket", str(watched.watcher.socket), "why", watched.key, "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    one_line(done, "only root may (sudo stragctl why)")


def in_own_mounts(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script whose mounts nobody else sees."""
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)


def test_without_bcc_the_line_names_the_package(watched: Watched, tmp_path: Path) -> None:
    folder = subprocess.run(
        ["/usr/bin/python3", "-c", "import bcc, os; print(os.path.dirname(bcc.__file__))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "__init__.py").write_text("raise ImportError('no bcc here')\n")
    done = in_own_mounts(
        'mount --bind "$1" "$2"; shift 2; exec "$@"', str(empty), folder,
        str(SCRIPTS / "stragctl"), "--socket", str(watched.watcher.socket), "why", watched.key, "1",
    )  # fmt: skip
    one_line(done, "bcc is missing: it compiles the look (apt-get install python3-bpfcc")


def test_without_py_spy_the_rest_is_said(watched: Watched, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", system_site_packages=False, with_pip=False)
    code = (
        "import sys; sys.path += sys.argv[1:3]; from stragd.cli.main import main; "
        "sys.exit(main(sys.argv[3:]))"
    )
    command = [str(tmp_path / "bare/bin/python"), "-c", code, str(ROOT)]
    command += [str(Path(np.__file__).parents[1])]
    command += ["--socket", str(watched.watcher.socket), "why", watched.key, "1", *SHORT]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "py-spy is missing (pip install py-spy)" in done.stdout


def test_a_job_that_ends_under_the_look_ends_it() -> None:
    """Last: it kills the job."""
    with daemon(WATCH) as watcher, job("ddp.py", 2, *arguments()) as training:
        watched = Watched(watcher, training, 2)
        command = [SCRIPTS / "stragctl", "--socket", watcher.socket, "why", watched.key, "1"]
        with subprocess.Popen(
            [*command, "--seconds", "300"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as looking:  # fmt: skip
            try:
                wait_for("the look to begin", lambda: "why_switch" in programs(), LIMIT)
                training.kill()
                out, errors = looking.communicate(timeout=LIMIT)
            finally:
                looking.kill()
        assert looking.returncode == 1
        assert out == ""
        assert "has ended while it was looked at" in errors
        nothing_is_left()

        def gone() -> bool:
            return "has ended" in watched.why("1").stderr

        wait_for("the rank to be gone", gone)
