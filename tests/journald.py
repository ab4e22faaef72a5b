"""A real systemd-journald with a /run of its own: PID 1 need not be systemd."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.harness import wait_for
from tests.needs import lacking

JOURNALD = "/lib/systemd/systemd-journald"
SCRIPT = f"""
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal
exec {JOURNALD}
"""
SOCKETS = ("run/systemd/journal/socket", "run/systemd/journal/io.systemd.journal")


class Journald:
    """Runs while the context is open; what is to write to it is started by ``command``."""

    def command(self, *argv: str | Path) -> list[str | Path]:
        """The same command, with this journald's sockets in /run."""
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", *argv]

    def entries(self) -> list[dict[str, Any]]:
        """stragd's entries so far, as journalctl reads them."""
        self._journalctl("--sync")
        where = "--directory=/run/log/journal"
        text = self._journalctl(where, "--all", "-o", "json", "SYSLOG_IDENTIFIER=stragd")
        return [json.loads(line) for line in text.splitlines()]

    def _journalctl(self, *options: str) -> str:
        command = self.command("journalctl", *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __enter__(self) -> Journald:
        if os.geteuid() != 0 or not Path(JOURNALD).exists():
            lacking("a journald of our own takes root and systemd-journald")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", SCRIPT], stderr=subprocess.DEVNULL
        )
        root = Path(f"/proc/{self._process.pid}/root")

        def listens() -> bool:
            assert self._process.poll() is None, f"{JOURNALD} ended"
            # Until the script has come to its end, /run may be that of the machine.
            program = os.readlink(f"/proc/{self._process.pid}/exe")
            sockets = all((root / path).is_socket() for path in SOCKETS)
            return program.endswith("systemd-journald") and sockets

        try:
            wait_for("journald to listen", listens)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(60)
