"""The host of host.c as an object: one method a callback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.ncclring import ring
from tests.ncclring.build import built

NOBODY = -1


class Host:
    """A process that plays NCCL. Contexts and handles are small numbers."""

    def __init__(
        self, version: int, library: int = 22705, amd: bool = False, plugin: Path | None = None,
        under: tuple[str, ...] = (), **environment: str,
    ) -> None:  # fmt: skip
        self.log: list[str] = []
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STRAGD_RING")}
        self.process = subprocess.Popen(
            [*under, built().rccl_host if amd else built().nccl_host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**clean, "HOST_VERSION": str(library), **environment},
        )
        self.pid = self.process.pid
        self.plugin = plugin or built().plugin
        assert self.do("load", self.plugin, version) == ["stragd"]

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(60)
        assert error is not None or code == 0, f"the host ended with {code}"

    def do(self, *words: object) -> list[str]:
        """One command; the words of its answer after "ok"."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        while True:
            line = self.process.stdout.readline()
            if line.startswith("# "):
                self.log.append(line[2:].rstrip("\n"))
                continue
            assert line, f"{words}: the host is gone, exit {self.process.poll()}"
            first, *rest = line.split()
            assert first == "ok", f"{words}: {line!r}"
            return rest

    def init(self, context: int = 0, hash_: int = 0x1234, nranks: int = 8, rank: int = 3,
             name: str = "world") -> int:  # fmt: skip
        """A communicator; the library's event mask after it."""
        answer = self.do("init", context, hash_, nranks, rank, name)
        return int(answer[1])

    def group(self, context: int = 0, handle: int = 0) -> str:
        return self.do("group", context, handle)[0]

    def coll(self, context: int = 0, handle: int = 1, parent: int = NOBODY, func: str = "AllReduce",
             count: int = 1000, datatype: str = "ncclFloat32", root: int = 0, sequence: int = 0,
             channels: int = 2, symmetric: bool = False) -> str:  # fmt: skip
        extra = ["symmetric"] if symmetric else []
        return self.do("coll", context, handle, parent, func, count, datatype, root, sequence,
                       channels, "RING", "SIMPLE", *extra)[0]  # fmt: skip

    def p2p(self, context: int = 0, handle: int = 1, parent: int = NOBODY, func: str = "Send",
            peer: int = 5, channels: int = 1, count: int = 10) -> str:  # fmt: skip
        return self.do("p2p", context, handle, parent, func, count, "ncclInt8", peer, 0,
                       channels)[0]  # fmt: skip

    def kernel(self, handle: int, parent: int, channel: int, timer: int, context: int = 0) -> str:
        return self.do("kernel", context, handle, parent, channel, timer)[0]

    def end(self, handle: int, timer: int | None) -> None:
        """The two calls that end a channel; without a time only the second."""
        if timer is not None:
            self.do("state", handle, timer)
        self.do("stop", handle)

    def whole(self, start: int, stop: int, handle: int = 1, context: int = 0, **call: Any) -> None:
        """A collective of one channel from launch to end."""
        self.coll(context, handle, channels=1, **call)
        self.kernel(100 + handle, handle, 0, start)
        self.end(100 + handle, stop)

    def ring(self) -> ring.Ring:
        """Its ring as it is now."""
        return ring.read(self.pid)
