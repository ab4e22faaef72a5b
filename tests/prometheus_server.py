"""A real Prometheus that scrapes a stragd every second or few."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.harness import free_port, wait_for

Series = list[dict[str, Any]]


def filled(expression: str, **values: str) -> str:
    """A query of the dashboard with its variables: every job, rank and node unless said."""
    known = {"job": ".*", "rank": ".*", "node": ".*", "__rate_interval": "30s", "__range": "10m"}
    return re.sub(r"\$(\w+)", lambda found: (known | values)[found[1]], expression)


class Prometheus:
    """Runs in ``directory`` until its context ends; ``target`` is host:port of one stragd.

    ``every`` is in seconds.
    """

    def __init__(self, directory: Path, target: str, every: int = 1) -> None:
        binary = shutil.which("prometheus")
        assert binary, "prometheus is not installed"
        self._log = directory / "prometheus.log"
        self._base = f"http://127.0.0.1:{free_port()}"
        configuration = directory / "prometheus.yml"
        configuration.write_text(
            f"global: {{scrape_interval: {every}s, scrape_timeout: {every}s}}\n"
            "scrape_configs:\n"
            "- {job_name: stragd, honor_labels: true, static_configs: [{targets: ['"
            + target
            + "']}]}\n"
        )
        self._command = [
            binary,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'prometheus-data'}",
            f"--web.listen-address={self._base.removeprefix('http://')}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def api(self, path: str, **arguments: Any) -> Any:
        """``data`` of the answer of /api/v1/``path``. Raises ValueError with Prometheus' error."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        encoded = urllib.parse.urlencode(arguments, doseq=True)
        try:
            with urllib.request.urlopen(f"{self._base}/api/v1/{path}?{encoded}", timeout=60) as got:
                return json.load(got)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{arguments}: {error.read().decode()}") from None

    def query(self, expression: str) -> Series:
        """The series of an instant query; empty while Prometheus does not listen yet."""
        try:
            result: Series = self.api("query", query=expression)["result"]
        except OSError:
            return []
        return result

    def over_time(self, expression: str, start: float, end: float, step: float) -> Series:
        """The series of a range query; times in seconds."""
        result: Series = self.api("query_range", query=expression, start=start, end=end, step=step)[
            "result"
        ]
        return result

    def wait(self, expression: str, wanted: int) -> Series:
        """The series of a query once there are ``wanted``."""
        found: list[Series] = []

        def enough() -> bool:
            found[:] = [self.query(expression)]
            return len(found[0]) == wanted

        wait_for(f"{wanted} series of {expression}", enough)
        return found[0]
