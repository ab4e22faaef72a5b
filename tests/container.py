"""A container made by hand, to which the edits of a CDI device are applied as a runtime does.

User, mount, pid, ipc and host name namespaces of its own; its root is an overlay of this machine's,
so that a program of the checkout runs in it, and what it writes is gone with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# As root outside. Arguments: folder, number of mounts, their sources and targets, command.
_PREPARE = """
set -e
at=$1 mounts=$2; shift 2
mount -t tmpfs none "$at"; cd "$at"; mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root
mount --rbind /dev root/dev; mount -t tmpfs none root/dev/shm
while [ "$mounts" -gt 0 ]; do
    mkdir -p "root${2%/*}"; : >"root$2"
    mount --bind "$1" "root$2"; mount -o remount,bind,ro,nosuid,nodev "root$2"
    shift 2; mounts=$((mounts - 1))
done
cd root; mkdir -p .old
exec unshare --user --map-root-user --mount --pid --fork --kill-child --ipc --uts \\
    sh -c "$ENTER" container "$@"
"""
# As the first process inside.
_ENTER = """
set -e
mount --rbind "$PWD" "$PWD"; cd "$PWD" # a mount that came from outside is locked
mount -t proc none proc; hostname container; pivot_root . .old
exec chroot . sh -c 'umount -l /.old; cd /; unset ENTER; exec "$@"' container "$@"
"""
NAMESPACES = ("user", "mnt", "pid", "ipc", "uts")


def device(specification: Path, name: str) -> dict[str, Any]:
    """The edits of one device, named as a user names it: ``vendor/class=device``."""
    read = json.loads(specification.read_text())
    kind, _, wanted = name.partition("=")
    assert read["kind"] == kind
    (edits,) = (d["containerEdits"] for d in read["devices"] if d["name"] == wanted)
    assert set(edits) <= {"env", "mounts"}, "edits that this runtime does not know"
    return dict(edits)


class Container:
    """A running command in a container; ``host`` is where the paths of the edits begin."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str | Path],
        environment: dict[str, str],
        edits: dict[str, Any],
        host: Path,
    ) -> None:
        directory.mkdir()
        self.log = directory.with_suffix(".log")
        mounts = []
        for mount in edits.get("mounts", []):
            assert {"ro", "nosuid", "nodev", "bind"} == set(mount["options"])
            mounts += [f"{host}{mount['hostPath']}", mount["containerPath"]]
        # As an OCI runtime: what the device sets wins over what the image and the user set.
        given = environment | dict(edit.split("=", 1) for edit in edits.get("env", []))
        prepare = ["sh", "-c", _PREPARE, "runtime", directory, str(len(mounts) // 2), *mounts]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", *prepare, *command],
                stdout=log, stderr=log, env=given | {"ENTER": _ENTER}, start_new_session=True,
            )  # fmt: skip

    def pids(self) -> list[int]:
        """Its processes, by this machine's numbers."""
        found = []
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            todo += map(int, children)
            found += map(int, children)
        return found

    def close(self) -> None:
        """Kill it; the kernel ends everything in its pid namespace."""
        for pid in [*self.pids()[:1], self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(60)
        while any(Path(f"/proc/{pid}").exists() for pid in self.pids()):
            time.sleep(0.01)
