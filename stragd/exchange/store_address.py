"""Where a job's store is, and what it speaks: from the environment and the torch of one rank.

The environment is the job's to write, so a daemon only dials what a job of its own user says, or
what its configuration does.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from stragd.config import split_address
from stragd.discovery.environ import read_environ
from stragd.discovery.process import MemoryReader, owner
from stragd.exchange.tcpstore import Dialect

MAX_MAPS = 4 << 20
MAX_VERSION_FILE = 16 << 10
_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
_LIBRARY = re.compile(rb"(/[^\n]*)/libtorch_cpu\.so(?:\.(\d+)\.(\d+))?[^\n/]*$", re.MULTILINE)
_VERSION = re.compile(rb"^__version__\s*=\s*['\"](\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class StoreAddress:
    """A host and port; ``dialect`` None where the server is to be asked."""

    host: str
    port: int
    dialect: Dialect | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def store_address(
    pid: int, configured: str, reader: MemoryReader, proc: str = "/proc"
) -> StoreAddress:
    """The store of the job that process ``pid`` is a rank of. Raises ValueError with the reason."""
    dialect = _dialect(pid, reader, proc)
    if configured:
        return StoreAddress(*split_address(configured), dialect)
    user = owner(proc, pid)
    if user != os.geteuid():
        who = "another user namespace" if user is None else f"user {user}"
        raise ValueError(
            f"process {pid} is of {who}, and what its environment says is not dialled: run stragd "
            "as the job's user, or set exchange.store"
        )
    found = read_environ(reader, proc, pid, ("MASTER_ADDR", "MASTER_PORT")) or {}
    host, port = found.get("MASTER_ADDR", "").strip(), found.get("MASTER_PORT", "").strip()
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdigit():
        raise ValueError(
            f"process {pid} has no MASTER_ADDR and MASTER_PORT in its environment: set "
            "exchange.store to its store's host:port"
        )
    if not 0 < int(port) < 65536:
        raise ValueError(f"process {pid} has MASTER_PORT {port[:20]}, which is no port")
    return StoreAddress(host, int(port), dialect)


def _dialect(pid: int, reader: MemoryReader, proc: str) -> Dialect | None:
    """By the version of the torch that a process has mapped.

    Since 2.4 the server does not hang up on who does not speak its protocol, so it cannot be
    asked; before, it can, and that is surer than a version.
    """
    found = _LIBRARY.search(reader.read(f"{proc}/{pid}/maps", MAX_MAPS) or b"")
    if found is None:
        return None
    version = (found[2], found[3])
    if found[2] is None:
        folder = os.path.dirname(os.fsdecode(found[1]))
        path = f"{proc}/{pid}/root{folder}/version.py"
        said = _VERSION.search(reader.read(path, MAX_VERSION_FILE) or b"")
        if said is None:
            return None
        version = (said[1], said[2])
    return Dialect.NEW if tuple(map(int, version)) >= (2, 4) else None
