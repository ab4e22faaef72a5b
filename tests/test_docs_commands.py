"""Every command of stragctl and stragd in README and docs, carried out beside a real job."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.patterns import PLUGIN
from tests.harness import SCRIPTS, Daemon, daemon, job, wait_for
from tests.test_docs import PAGES, ours, parse

RANKS = 4
CONFIG = "[windows]\nsteps = 20\n"
JOB = ["--step-ms", "40", "--steps", "100000", "--slow-rank", "2", "--slow-factor", "2"]
LIMIT = 300.0  # seconds, for a command that hangs
# Files of NCCL, RCCL and container engines are this command's: it gets an /etc that nobody keeps.
APART = """
    mount -t tmpfs none "$0" && mkdir "$0/upper" "$0/work" &&
    mount -t overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" none /etc && exec "$@"
"""


@dataclass(frozen=True)
class Node:
    watcher: Daemon
    directory: Path
    words: dict[str, str]
    """What a placeholder of the pages stands for."""

    def run(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        filled = [self.words.get(word, word) for word in words[1:]]
        command: list[str | Path] = [SCRIPTS / words[0], *filled]
        if words[0] == "stragctl" and filled[0] != "--socket":
            command[1:1] = ["--socket", self.watcher.socket]
        if words[1:3] in (("ring", "install"), ("ring", "uninstall")):
            etc = self.directory / "etc"
            etc.mkdir(exist_ok=True)
            command = ["unshare", "--mount", "sh", "-c", APART, etc, *command]
            command += ["--plugin", PLUGIN] if words[2] == "install" else []
        return subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=LIMIT, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    assert os.geteuid() == 0, "the daemon attaches eBPF probes: run this as root"
    directory = tmp_path_factory.mktemp("commands")
    with daemon(CONFIG) as watcher, job("ddp.py", RANKS, *JOB) as training:
        wait_for("the slow rank to be named", lambda: watcher.named(training) == [2], 300)
        (key,) = {rank["job"] for rank in watcher.ranks(training)}
        recorded = directory / "recording"
        made = watcher.control("record", str(recorded), "--job", key, "--windows", "2")
        assert made.returncode == 0, made.stderr
        files = {"FILE": str(recorded), "PATH": str(watcher.socket)}
        yield Node(watcher, directory, {"JOB": key, "RANK": "2", "N": "16", **files})


def commands() -> list[tuple[str, ...]]:
    """Those that are whole: `stragctl why` in a sentence is a name."""
    found = {tuple(words) for page in PAGES for words in ours(page)}
    found -= {
        # What the fixture starts, with a configuration of its own.
        ("stragd",), ("stragd", "--config", "FILE"),
        # One rank is as good as another; without `-o` it is a name too.
        ("stragctl", "why", "2"), ("stragctl", "report"),
        # These take a cluster: test_exchange_cluster.py.
        ("stragctl", "jobs", "--cluster"), ("stragctl", "top", "--cluster"),
    }  # fmt: skip
    return sorted(words for words in found if not parse(list(words)))


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_a_command_of_the_pages_does_what_it_says(node: Node, words: tuple[str, ...]) -> None:
    done = node.run(words)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
    assert done.stdout.strip() or "-o" in words, "it says something, or writes a file"
