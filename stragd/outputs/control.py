"""Control socket: one JSON object per line in, one per line out.

``/run/stragd/control.sock`` (stream, 0660, group ``stragd``). A connection may carry any number
of requests, one after the other; a request is at most 64 KiB, an idle connection is closed.

Request::

    {"version": 1, "verb": VERB, ...arguments of the verb...}

Reply, on one line, either of::

    {"version": 1, "result": {...}}
    {"version": 1, "error": {"code": CODE, "message": "one line for a person"}}

CODE is ``bad-request`` (not JSON, wrong shape, unknown argument), ``bad-version``,
``unknown-verb``, ``too-large``, ``forbidden``, ``not-found``, ``busy`` (too many connections),
``unavailable`` (the daemon cannot do it: no probes) or ``internal``. After ``too-large`` and
``busy``, and when the whole connection is ``forbidden``, the daemon closes it, perhaps before the
request is written: read the reply even when writing failed.

Reading verbs, for root and members of the group (types: ``stragd.outputs.snapshot``):

``status``
    no arguments -> ``Status``
``jobs``
    no arguments -> ``{"jobs": [Job]}``
``ranks``
    ``job``: key, unique beginning of a key, or name; may be left out when there is one job
    -> ``{"job": Job, "ranks": [Rank]}``; ``not-found`` names the jobs there are
``findings``
    ``job`` (optional, as above), ``cleared`` (optional boolean: the cleared ones too)
    -> ``{"findings": [Finding], "abstentions": [Abstention]}``
``top``
    no arguments -> ``Top``
``cluster``
    no arguments -> ``Cluster``; ``unavailable`` without an exchange
``doctor``
    no arguments -> ``{"checks": [Check], "libraries": [Library]}``
``report``
    ``Report``; argument ``job``, also of a job that has ended with a finding.
``windows``
    ``after`` (optional number), ``job`` (optional, as above) -> ``{"after": number, "missed":
    count, "windows": [{"job": key, "rows": base64}], "jobs": [Job], "ranks": [{"job": key,
    "rank", "host", "class"}]}``: the windows that were scored after that number, oldest first, as
    RankWindow rows (``rscore/src/window/mod.rs``), and the number to ask with next. Without
    ``after`` there are none, only the number. ``missed`` windows were dropped before they were
    asked for
``config``
    no arguments -> ``{"files": [path], "values": [ConfigValue]}``
``probes``
    without ``set`` -> ``{"probes": "on" | "off"}``
``ring``
    without ``set``; ``pid`` (optional) -> ``{"rings": [Ring]}``

Changing verbs, for root only (otherwise ``forbidden``):

``probes``
    ``set``: ``"on"`` or ``"off"`` -> ``{"probes": "on" | "off"}`` once it is done
``ring``
    ``set``: ``"on"`` (full), ``"off"``, ``"progress"`` or ``"default"``; ``sample`` (1: every
    collective, N: one of N blocks), ``floor`` (bytes, 0: all) and ``pid`` (all processes and
    those to come without it) are optional -> ``{"rings": [Ring]}`` as they are now: a plugin
    obeys at its next collective; ``not-found`` when ``pid`` has no ring
``reload``
    no arguments -> ``{"changed": [key], "restart": [key]}``: keys whose value changed, and those
    of them that wait for a restart; ``bad-request`` with the reason keeps the old configuration
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROTOCOL_VERSION = 1
DEFAULT_SOCKET = "/run/stragd/control.sock"
MAX_REQUEST = 64 * 1024
MAX_CONNECTIONS = 16
ROOT_CONNECTIONS = 4
"""Connections beyond MAX_CONNECTIONS that only root gets, so that nobody can lock it out."""

_SO_PEERGROUPS = 59  # the peer's supplementary groups; Python's socket module has no name for it


class RequestError(Exception):
    """A request that cannot be answered: one of the codes above and a line for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AlreadyRunning(RuntimeError):
    """Another daemon serves this socket."""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def is_root(self) -> bool:
        """May change things: root, or the user that the daemon itself runs as."""
        return self.uid in (0, os.geteuid())

    def may_read(self, group: int | None) -> bool:
        """Root, or a member of the group."""
        return self.is_root or (group is not None and group in (self.gid, *self.groups))


Answer = Callable[[dict[str, Any], Peer], Mapping[str, Any]]
"""Answers a request (a JSON object with a known version); raises RequestError."""


def peer_of(connection: socket.socket) -> Peer:
    """Credentials of a connection's other end. Raises OSError when they cannot be had."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = struct.unpack("iII", raw)
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
        groups = struct.unpack(f"{len(packed) // 4}I", packed[: len(packed) // 4 * 4])
    except OSError:
        groups = ()  # more than 256 groups, or a kernel without it: the primary one counts
    return Peer(pid, uid, gid, groups)


def group_id(name: str) -> int | None:
    """Number of a group, None where it does not exist."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def error_reply(code: str, message: str) -> dict[str, Any]:
    """The reply that carries an error."""
    return {"version": PROTOCOL_VERSION, "error": {"code": code, "message": message}}


def encode(reply: Mapping[str, Any]) -> bytes:
    """One reply as one line."""
    text = json.dumps(reply, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.encode() + b"\n"


def parse(line: bytes) -> dict[str, Any]:
    """One request line -> its object. Raises RequestError."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError("bad-request", "the request is not JSON") from None
    if not isinstance(request, dict):
        raise RequestError("bad-request", "the request is not a JSON object")
    if request.get("version") != PROTOCOL_VERSION or request["version"] is True:
        raise RequestError(
            "bad-version",
            f"this stragd speaks version {PROTOCOL_VERSION} of the protocol; "
            "use the stragctl that came with it",
        )
    if not isinstance(request.get("verb"), str):
        raise RequestError("bad-request", 'the request has no "verb"')
    return request


class ControlServer:
    """Listens in its own threads; ``answer`` must not wait for the main loop without limit."""

    def __init__(self, path: str, group: str, answer: Answer, idle_seconds: float = 30.0) -> None:
        self.path = path
        self._group = group_id(group)
        self._answer = answer
        self._idle = idle_seconds
        self._listener: socket.socket | None = None
        self._lock_file: int | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()

    def start(self) -> None:
        """Bind and serve. Raises AlreadyRunning, or OSError with a clear message."""
        try:
            Path(self.path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._take_lock()
            self._listener = self._bind()
        except OSError as error:
            self._release_lock()
            reason = error.strerror or str(error)
            raise OSError(
                error.errno,
                f"control socket {self.path}: {reason}; set socket in section [control]",
            ) from None
        except AlreadyRunning:
            self._release_lock()
            raise
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def _take_lock(self) -> None:
        """The kernel drops the lock with its owner, so a killed daemon leaves none behind."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock_file = os.open(self.path + ".lock", flags, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(self._lock_file, 32).decode("ascii", "replace").strip() or "unknown"
            raise AlreadyRunning(
                f"another stragd (pid {pid}) is running on {self.path}; stop it first"
            ) from None
        os.ftruncate(self._lock_file, 0)
        os.pwrite(self._lock_file, f"{os.getpid()}\n".encode(), 0)

    def _release_lock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _bind(self) -> socket.socket:
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(errno.EEXIST, "there is a file of that name that is no socket")
            os.unlink(self.path)  # we hold the lock: its owner is dead
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            mask = os.umask(0o177)
            try:
                listener.bind(self.path)
            finally:
                os.umask(mask)
            if self._group is not None:
                try:
                    os.chown(self.path, -1, self._group)
                    os.chmod(self.path, 0o660)
                except PermissionError:
                    self._group = None  # not root and no member: our own user only
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return listener

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed.is_set() or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                self._closed.wait(0.1)  # out of descriptors: let some connections end
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(self._idle)
        try:
            peer = peer_of(connection)
        except OSError:
            connection.close()  # who cannot be verified is not served
            return
        if not peer.may_read(self._group):
            self._refuse(connection, "forbidden", "only root and the control group may ask")
            return
        limit = MAX_CONNECTIONS + (ROOT_CONNECTIONS if peer.is_root else 0)
        with self._guard:
            full = len(self._connections) >= limit
            if not full:
                self._connections.add(connection)
        if full:
            self._refuse(connection, "busy", f"{limit} connections are open; try again")
            return
        thread = threading.Thread(
            target=self._serve, args=(connection, peer), name="control-client", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads for this process
            self._end(connection)

    def _refuse(self, connection: socket.socket, code: str, message: str) -> None:
        try:
            connection.settimeout(0.1)
            connection.sendall(encode(error_reply(code, message)))
        except OSError:
            pass
        connection.close()

    def _serve(self, connection: socket.socket, peer: Peer) -> None:
        try:
            buffer = b""
            while not self._closed.is_set():
                line, buffer = self._read_line(connection, buffer)
                if line is None:
                    return
                connection.settimeout(self._idle)
                connection.sendall(self._reply(line, peer))
        except RequestError as error:
            self._refuse(connection, error.code, error.message)
        except OSError:
            pass  # gone or too slow
        finally:
            self._end(connection)

    def _read_line(self, connection: socket.socket, buffer: bytes) -> tuple[bytes | None, bytes]:
        """One request within the idle time, however slowly its bytes drip in."""
        deadline = time.monotonic() + self._idle
        while b"\n" not in buffer:
            if len(buffer) > MAX_REQUEST:
                break
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            data = connection.recv(65536)
            if not data:
                if buffer:
                    raise RequestError("bad-request", "the request ends without a newline")
                return None, b""
            buffer += data
        line, _, rest = buffer.partition(b"\n")
        if len(line) > MAX_REQUEST:
            raise RequestError("too-large", f"a request has at most {MAX_REQUEST} bytes")
        return line, rest

    def _reply(self, line: bytes, peer: Peer) -> bytes:
        try:
            request = parse(line)
            result = self._answer(request, peer)
            return encode({"version": PROTOCOL_VERSION, "result": result})
        except RequestError as error:
            return encode(error_reply(error.code, error.message))
        except Exception as error:  # a bug in one answer must not end the daemon
            return encode(error_reply("internal", f"{type(error).__name__}: {error}"[:500]))

    def _end(self, connection: socket.socket) -> None:
        with self._guard:
            self._connections.discard(connection)
        connection.close()

    def close(self) -> None:
        """Stop serving and remove the socket; safe to call twice."""
        self._closed.set()
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._listener = None
        with self._guard:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(1.0)
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self._release_lock()
