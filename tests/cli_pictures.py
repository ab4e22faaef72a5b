"""Pictures of a daemon for the tests of stragctl, and a control socket that shows them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEY = "00c0ffee12345678"
OTHER_KEY = "00ddba1187654321"


def rank(number: int, /, *, slow: bool = False, **changes: Any) -> dict[str, Any]:
    """One rank of a synchronous job: what is not its own work it waits for the others."""
    step = 412.0
    own = step * (0.92 if slow else 0.74) + (number % 5) * 0.31
    comm = 21.4
    late = 0.0 if not slow else step * 0.18
    row: dict[str, Any] = {
        "job": KEY, "rank": number, "local_rank": number % 8, "host": f"node{number // 8}",
        "class": "nvidia/H200", "gpu_uuid": "", "pid": 4000 + number, "container": "",
        "own_ms": own,
        "wait_ms": step - own - comm, "comm_ms": comm, "wall_ms": step, "per": "step",
        "lateness_ms": late + (number % 5) * 0.3,
        "lateness_history": [(number * 7 + i * 3) % 5 * 0.4 for i in range(18)]
        + [late * (i + 1) / 12 for i in range(12)],
        "slowdown": 0.243 if slow else (number % 5 - 2) * 0.001, "source": "gloo", "flags": [],
        "coverage": None, "missed": [],
        "steps": 1204, "collectives": 14448, "in_flight": 0, "silent_s": 0.1,
        "state": "confirmed" if slow else "watching",
    }  # fmt: skip
    return row | changes


def finding(number: int, **changes: Any) -> dict[str, Any]:
    """A confirmed straggler."""
    value: dict[str, Any] = {
        "id": "f1", "job": {"key": KEY, "name": "llama-7b", "world_size": 8},
        "kind": "straggler", "state": "confirmed",
        "subject": {"rank": number, "host": f"node{number // 8}", "class": "nvidia/H200"},
        "since": {"window": 12, "time": "2026-11-29T10:00:00Z"}, "slowdown": 0.243,
        "cost_ms_per_step": {"value": 73.21, "low": 70.04, "high": 76.9}, "cost_percent": 17.8,
        "confidence": 0.998, "where": "unknown",
        "cause": {"name": "unknown", "confidence": 0.0, "evidence": [], "advice": ""},
        "evidence": [
            "rank 2 on node0 works 379.66 ms of its own per step",
            "the median of its 7 peers (same class, same collective sequence) is 305.42 ms",
            "24.3% slower than its peers",
        ],
    }  # fmt: skip
    return value | changes


def job(ranks: int = 8, slow: int | None = None, /, **changes: Any) -> dict[str, Any]:
    """A job of `ranks` ranks."""
    value: dict[str, Any] = {
        "key": KEY, "name": "llama-7b", "launcher": "torchrun", "world_size": ranks,
        "local_ranks": ranks, "step_ms": 412.0, "steps": 1204, "windows": 12,
        "worst_rank": slow, "cost_ms_per_step": None if slow is None else 73.21,
        "cost_percent": None if slow is None else 17.8,
        "state": "watching" if slow is None else "finding",
    }  # fmt: skip
    return value | changes


HEALTH: dict[str, Any] = {
    "events_per_s": 12345.6, "events": 4_560_000, "lost": 0, "lost_by_cause": {"bulk_ring": 0},
    "probes_attached": 214, "libraries": 2, "bpf_ns_per_event": 412.3, "cpu_percent": 0.42,
    "rss_bytes": 64_120_000, "uptime_s": 11_200.0, "probes": "on", "degraded": [],
}  # fmt: skip


def top(ranks: int = 8, slow: int | None = 2, /, **changes: Any) -> dict[str, Any]:
    """The answer of `top` for one job; `slow` is the rank with a confirmed finding."""
    value: dict[str, Any] = {
        "version": "0.1.0", "host": "node0", "time": "2026-11-29T10:14:09Z",
        "jobs": [job(ranks, slow)], "ranks": [rank(i, slow=i == slow) for i in range(ranks)],
        "findings": [] if slow is None else [finding(slow)], "abstentions": [], "health": HEALTH,
    }  # fmt: skip
    return value | changes


class Server:
    """A control socket that answers with what `reply` makes of a request; counts requests."""

    def __init__(self, path: Path, reply: Callable[[dict[str, Any]], bytes | None]) -> None:
        self.path = path
        self.requests: list[dict[str, Any]] = []
        self.once = False  # close a connection after its first answer
        self._reply = reply
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                self.requests.append(request)
                answer = self._reply(request)
                if answer is None:
                    break
                connection.sendall(answer)
                if self.once:
                    break
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take the socket away and drop every connection, as a killed daemon does."""
        self.path.unlink(missing_ok=True)
        for item in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()


def result(value: dict[str, Any]) -> bytes:
    """The reply line around a result."""
    return json.dumps({"version": 1, "result": value}).encode() + b"\n"


def error(code: str, message: str) -> bytes:
    """The reply line of a refusal."""
    reply = {"version": 1, "error": {"code": code, "message": message}}
    return json.dumps(reply).encode() + b"\n"


@contextlib.contextmanager
def serving(path: Path, reply: Callable[[dict[str, Any]], bytes | None]) -> Iterator[Server]:
    """A `Server` for the length of a with block."""
    server = Server(path, reply)
    try:
        yield server
    finally:
        server.close()
