"""A real TCPStore of a real torch, as a job's launcher or rank 0 has one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from stragd.exchange.store_address import StoreAddress
from stragd.exchange.tcpstore import Dialect
from tests.trainer.launch import PYTHON

SERVER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, timedelta(seconds=60),
                 wait_for_workers=False)
store.set("job", "of the job")
print(store.port, flush=True)
for line in sys.stdin:
    print(store.get(line.strip()).decode(), flush=True)
"""
PYTHONS = os.environ.get("STRAGD_TEST_PYTORCH", PYTHON).split(":")
"""Debian's torch speaks the dialect before 2.1, a new one that after."""


class StoreServer:
    """One server in a process of its own."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.new = python != PYTHON
        self.port = 0
        self.cluster = ""

    def start(self) -> None:
        """Start it, again on the same port, and wait until it listens."""
        self.process = subprocess.Popen(
            [self.python, "-c", SERVER, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port = int(self._line())

    def ask(self, key: str) -> str:
        """A value that is there, as the job's own client reads it."""
        assert self.process.stdin is not None
        self.process.stdin.write(key + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End it."""
        self.process.send_signal(how)
        self.process.communicate()

    def address(self) -> StoreAddress:
        """As a daemon finds it."""
        return StoreAddress("127.0.0.1", self.port, Dialect.NEW if self.new else None)


def torch_python(name: str) -> str:
    """The Python of a torch by its dialect; Debian's is always there."""
    found = [p for p in PYTHONS if (p != PYTHON) == (name == "new") and Path(p).exists()]
    return found[0] if found else ""
