"""A real nats-server with JetStream, as Debian packages it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from pathlib import Path

from stragd.config import Exchange as Settings
from tests.harness import free_port, wait_for
from tests.needs import lacking


class Server:
    """One server; ``wrapper`` is a command that it runs under, as in a network namespace."""

    def __init__(
        self,
        directory: Path,
        more: str = "",
        address: str = "",
        wrapper: tuple[str, ...] = (),
        jetstream: bool = True,
        whole: str = "",
    ) -> None:
        """``whole`` is a configuration that stands for itself, at ``address``."""
        found = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if found is None:
            lacking("no nats-server: scripts/setup tests installs it")
        self.address = address or f"127.0.0.1:{free_port()}"
        self.directory = directory
        self.log, config = directory / "nats.log", directory / "nats.conf"
        store = f'jetstream {{ store_dir: "{directory}/jetstream" }}\n' if jetstream else ""
        config.write_text(whole or f'listen: "{self.address}"\n{store}{more}')
        self._command = [*wrapper, found, "-c", str(config)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it."""
        self._begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def wait(self) -> None:
        """Until it takes connections."""
        wait_for("nats-server", lambda: b"Server is ready" in self.log.read_bytes()[self._begin :])

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Signal it and wait for its end."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def settings(self, **more: object) -> Settings:
        """Of a daemon that uses it, with little patience."""
        own = Settings(
            kind="nats", servers=f"nats://{self.address}", lease_seconds=2.0, retry_seconds=0.2
        )
        return dataclasses.replace(own, **more)
