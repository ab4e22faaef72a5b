"""A certificate authority of the test's own, made with openssl(1)."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Signs certificates for 127.0.0.1 in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self.certificate = directory / "ca.pem"
        _openssl("-subj", "/CN=test authority", "-keyout", directory / "ca.key", "-out",
                 self.certificate)  # fmt: skip

    def sign(self, name: str) -> tuple[Path, Path]:
        """(certificate, key) of a name."""
        certificate, key = (self._directory / f"{name}.{end}" for end in ("pem", "key"))
        _openssl(
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-CA", self.certificate, "-CAkey", self._directory / "ca.key",
            "-keyout", key, "-out", certificate,
        )  # fmt: skip
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *key, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
