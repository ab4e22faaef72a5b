"""The control socket from the asking side: one JSON object per line out, one per line in.

Every failure is a `ControlError` whose text is one line for a person: the thing, the reason and
the way out.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import socket
import time
from types import TracebackType
from typing import Any

from stragd.cli.text import clean

PROTOCOL_VERSION = 1
DEFAULT_SOCKET = "/run/stragd/control.sock"
MAX_REPLY = 64 << 20  # bytes; 512 ranks take about half a megabyte

_UNREACHABLE = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


class ControlError(Exception):
    """The daemon did not answer, or answered that it will not; ``code`` is the protocol's or ""."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def _group_of(path: str) -> str:
    """The group that may use the socket; "stragd" where the socket cannot be looked at."""
    try:
        return grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return "stragd"


class ControlClient:
    """One connection, opened at the first request and again after a failure.

    ``timeout`` bounds a whole request in seconds. Not for use by two threads at once.
    """

    def __init__(self, path: str, timeout: float = 10.0) -> None:
        self.path = path
        self.timeout = timeout
        self._socket: socket.socket | None = None
        self._pending = bytearray()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._pending.clear()

    def request(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """The ``result`` of one request; raises `ControlError`."""
        reused = self._socket is not None
        message = {"version": PROTOCOL_VERSION, "verb": verb, **arguments}
        line = json.dumps(message).encode("ascii") + b"\n"
        try:
            try:
                raw = self._exchange(line)
            except (ConnectionError, EOFError):
                # The daemon closes idle connections and was perhaps restarted: try once anew.
                # A fresh connection that fails is a real failure.
                if not reused:
                    raise
                self.close()
                raw = self._exchange(line)
            return self._result(raw)
        except ControlError as error:
            if not error.code:
                self.close()
            raise
        except EOFError:
            self.close()
            raise ControlError(
                f"{self.path}: stragd closed the connection (see: journalctl -u stragd)"
            ) from None
        except OSError as error:
            self.close()
            raise ControlError(self._reason(error)) from None

    def _exchange(self, line: bytes) -> bytes:
        deadline = time.monotonic() + self.timeout
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                self._connect(connection, deadline)
            except BaseException:
                connection.close()
                raise
            self._socket = connection
        self._socket.settimeout(self.timeout)
        with contextlib.suppress(ConnectionError):
            # A full daemon says "busy" and closes before it reads: its answer may be waiting.
            self._socket.sendall(line)
        searched = 0
        while (end := self._pending.find(b"\n", searched)) < 0:
            searched = len(self._pending)
            if searched > MAX_REPLY:
                raise ControlError(f"{self.path}: answer is longer than {MAX_REPLY >> 20} MiB")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            self._pending += data
        raw = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return raw

    def _connect(self, connection: socket.socket, deadline: float) -> None:
        """Connect; while others fill the daemon's queue, wait for a place in it."""
        while True:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection.connect(self.path)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError from None
                time.sleep(0.005)

    def _result(self, raw: bytes) -> dict[str, Any]:
        try:
            # NaN is no JSON; should one arrive, it is a number that is not known.
            reply = json.loads(raw, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or "version" not in reply:
            raise ControlError(
                f"{self.path}: the answer is not stragd's control protocol "
                "(does another program listen there?)"
            )
        error = reply.get("error")
        result = reply.get("result")
        if isinstance(error, dict):
            code = clean(error.get("code", "")) or "internal"
            raise ControlError(clean(error.get("message", "no reason given"), 2000), code)
        if reply["version"] != PROTOCOL_VERSION:
            raise ControlError(
                f"{self.path}: stragd speaks control protocol {clean(reply['version'], 20)}, "
                f"stragctl {PROTOCOL_VERSION} (install one version of both)"
            )
        if not isinstance(result, dict):
            raise ControlError(f"{self.path}: the answer has no result (see: journalctl -u stragd)")
        return result

    def _reason(self, error: OSError) -> str:
        if error.errno in _UNREACHABLE:
            return f"{self.path}: no stragd is listening (start it: systemctl start stragd)"
        if isinstance(error, PermissionError):
            group = _group_of(self.path)
            return (
                f"{self.path}: permission denied (run as root, or join the group: "
                f"usermod -aG {group} USER, then log in again)"
            )
        if isinstance(error, TimeoutError):
            return (
                f"{self.path}: no answer from stragd within {self.timeout:g} s "
                "(see: systemctl status stragd)"
            )
        if isinstance(error, ConnectionError):
            return f"{self.path}: stragd closed the connection (see: journalctl -u stragd)"
        return f"{self.path}: {error.strerror or error} (choose another with --socket)"
