"""Control socket: real sockets, every wrong shape, credentials, stale and live sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.outputs import control
from stragd.outputs import snapshot as types
from stragd.outputs.control import AlreadyRunning, ControlServer, Peer, RequestError
from stragd.outputs.verbs import Verbs, find_job
from tests.pictures import KEY, finding, job, rank, snapshot

NOBODY = 65534


class Picture:
    """A daemon of one snapshot; changing verbs are remembered."""

    def __init__(self) -> None:
        other = job("bert", "bb000000000000bb")
        self.now = snapshot(
            jobs=[job(), other],
            ranks=[rank(0), rank(1), rank(0, other["key"])],
            findings=[finding()],
            cleared=[finding(state="cleared")],
        )
        self.calls: list[str] = []

    def snapshot(self) -> types.Snapshot:
        return self.now

    def metrics_url(self) -> str:
        return "http://127.0.0.1:9464/metrics"

    def config_files(self) -> list[str]:
        return ["/etc/stragd/stragd.toml"]

    def config_values(self) -> list[types.ConfigValue]:
        return []

    def doctor(self) -> list[types.Check]:
        return [{"feature": "x", "state": "ok", "detail": "", "fix": ""}]

    def set_probes(self, on: bool) -> str:
        self.calls.append(f"probes {on}")
        return "on" if on else "off"

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> list[types.Ring]:
        self.calls.append(f"ring {mode} {sample} {floor} {pid}")
        return self.now["rings"]

    def reload(self) -> dict[str, list[str]]:
        self.calls.append("reload")
        return {"changed": [], "restart": []}


class Client:
    """One connection."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> dict[str, Any] | None:
        line = self.file.readline()
        return json.loads(line) if line else None

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        request = {"version": 1, "verb": verb, **arguments}
        self.send(json.dumps(request).encode() + b"\n")
        reply = self.reply()
        assert reply is not None
        assert reply["version"] == 1
        return reply

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def picture() -> Picture:
    return Picture()


@pytest.fixture
def path(tmp_path: Path, picture: Picture) -> Iterator[str]:
    place = str(tmp_path / "control.sock")
    server = ControlServer(place, "no-such-group", Verbs(picture))
    server.start()
    yield place
    server.close()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_reading_verbs(path: str) -> None:
    client = Client(path)
    status = client.ask("status")["result"]
    assert (status["jobs"], status["ranks"], status["findings"]) == (2, 8, 1)
    assert status["state"] == "running"
    assert status["metrics"].endswith("/metrics")
    assert set(status) == set(types.Status.__annotations__)
    assert [j["name"] for j in client.ask("jobs")["result"]["jobs"]] == ["llama", "bert"]
    ranks = client.ask("ranks", job="bert")["result"]
    assert ranks["job"]["name"] == "bert"
    assert [r["rank"] for r in ranks["ranks"]] == [0]
    assert client.ask("ranks", job="bb")["result"] == ranks
    found = client.ask("findings")["result"]
    assert [f["state"] for f in found["findings"]] == ["confirmed"]
    assert not found["abstentions"]
    both = client.ask("findings", cleared=True, job=KEY)["result"]
    assert [f["state"] for f in both["findings"]] == ["confirmed", "cleared"]
    assert client.ask("findings", job="bert")["result"]["findings"] == []
    top = client.ask("top")["result"]
    assert set(top) == set(types.Top.__annotations__)
    assert client.ask("doctor")["result"]["checks"][0]["feature"] == "x"
    assert client.ask("config")["result"]["files"] == ["/etc/stragd/stragd.toml"]
    assert client.ask("probes")["result"] == {"probes": "on"}
    client.close()


def test_changing_verbs(path: str, picture: Picture) -> None:
    client = Client(path)
    assert client.ask("probes", set="off")["result"] == {"probes": "off"}
    assert client.ask("probes", set="on")["result"] == {"probes": "on"}
    assert client.ask("reload")["result"] == {"changed": [], "restart": []}
    assert picture.calls == ["probes False", "probes True", "reload"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\n", "bad-request"),
        (b"hello\n", "bad-request"),
        (b"\xff\xfe\x00\n", "bad-request"),
        (b"[]\n", "bad-request"),
        (b"null\n", "bad-request"),
        (b'"status"\n', "bad-request"),
        (b"[" * 60000 + b"\n", "bad-request"),
        (b'{"a":' * 10000 + b"\n", "bad-request"),
        (b"9" * 60000 + b"\n", "bad-request"),
        (b"{}\n", "bad-version"),
        (b'{"verb": "status"}\n', "bad-version"),
        (b'{"version": true, "verb": "status"}\n', "bad-version"),
        (b'{"version": 2, "verb": "status"}\n', "bad-version"),
        (b'{"version": "1", "verb": "status"}\n', "bad-version"),
        (b'{"version": 1}\n', "bad-request"),
        (b'{"version": 1, "verb": 3}\n', "bad-request"),
        (b'{"version": 1, "verb": "__class__"}\n', "unknown-verb"),
        (b'{"version": 1, "verb": "status", "job": "x"}\n', "bad-request"),
        (b'{"version": 1, "verb": "ranks", "job": 7}\n', "bad-request"),
        (b'{"version": 1, "verb": "ranks", "job": ""}\n', "not-found"),
        (b'{"version": 1, "verb": "ranks", "job": "nothing"}\n', "not-found"),
        (b'{"version": 1, "verb": "ranks"}\n', "not-found"),
        (b'{"version": 1, "verb": "ranks", "job": "\\ud800"}\n', "not-found"),
        (b'{"version": 1, "verb": "findings", "cleared": 1}\n', "bad-request"),
        (b'{"version": 1, "verb": "probes", "set": "maybe"}\n', "bad-request"),
        (b'{"version": 1, "verb": "probes", "set": null}\n', "bad-request"),
        (b'{"version": 1, "verb": "ring", "set": "full"}\n', "bad-request"),
        (b'{"version": 1, "verb": "ring", "set": "on", "sample": true}\n', "bad-request"),
        (b'{"version": 1, "verb": "ring", "set": "on", "sample": 65536}\n', "bad-request"),
        (b'{"version": 1, "verb": "ring", "set": "on", "floor": 3}\n', "bad-request"),
    ],
)
def test_wrong_shapes_get_one_error_and_life_goes_on(path: str, data: bytes, code: str) -> None:
    client = Client(path)
    client.send(data)
    reply = client.reply()
    assert reply is not None
    assert reply["error"]["code"] == code
    message = reply["error"]["message"]
    assert message
    assert "\n" not in message
    assert len(message) < 1000
    assert "result" in client.ask("status")
    client.close()


def test_too_large_is_refused_and_closed(path: str) -> None:
    client = Client(path)
    client.send(b"x" * (control.MAX_REQUEST + 1))
    reply = client.reply()
    assert reply is not None
    assert reply["error"]["code"] == "too-large"
    assert client.reply() is None
    whole = Client(path)
    padding = " " * (control.MAX_REQUEST - 40)
    whole.send(b'{"version": 1, "verb": "status"}' + padding.encode() + b"\n")
    assert "result" in (whole.reply() or {})


def test_requests_in_pieces_and_in_bunches(path: str) -> None:
    client = Client(path)
    request = b'{"version": 1, "verb": "probes"}\n'
    for byte in request:
        client.send(bytes([byte]))
    assert client.reply() == {"version": 1, "result": {"probes": "on"}}
    client.send(request * 50)
    assert all(client.reply() == {"version": 1, "result": {"probes": "on"}} for _ in range(50))
    client.send(request[:-1])
    client.socket.shutdown(socket.SHUT_WR)
    assert (client.reply() or {})["error"]["code"] == "bad-request"


def test_a_bug_in_an_answer_is_an_error_reply(tmp_path: Path) -> None:
    def broken(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        if request["verb"] == "nan":
            return {"value": float("nan")}
        raise ZeroDivisionError("oops")

    server = ControlServer(str(tmp_path / "c.sock"), "no-such-group", broken)
    server.start()
    try:
        client = Client(server.path)
        assert client.ask("x")["error"] == {
            "code": "internal",
            "message": "ZeroDivisionError: oops",
        }
        assert client.ask("nan")["error"]["code"] == "internal"
    finally:
        server.close()


def test_idle_and_dripping_connections_are_closed(tmp_path: Path, picture: Picture) -> None:
    server = ControlServer(
        str(tmp_path / "c.sock"), "no-such-group", Verbs(picture), idle_seconds=0.3
    )
    server.start()
    try:
        silent, dripping = Client(server.path), Client(server.path)
        closed = threading.Event()

        def drip() -> None:
            try:
                while not closed.is_set():
                    dripping.send(b" ")
                    time.sleep(0.05)
            except OSError:
                closed.set()

        threading.Thread(target=drip, daemon=True).start()
        assert silent.reply() is None
        assert closed.wait(60)
        assert "result" in Client(server.path).ask("status")
    finally:
        server.close()


def test_connections_are_bounded(path: str) -> None:
    limit = control.MAX_CONNECTIONS + control.ROOT_CONNECTIONS
    clients = [Client(path) for _ in range(limit)]
    for client in clients:
        assert "result" in client.ask("probes")
    surplus = Client(path)
    assert (surplus.reply() or {})["error"]["code"] == "busy"
    assert surplus.reply() is None
    clients.pop().close()

    def free() -> bool:
        client = Client(path)
        try:
            return "result" in client.ask("probes")
        except OSError:
            return False
        finally:
            client.close()

    wait_for(free)


def ask_as(path: str, uid: int, gid: int, groups: list[int], request: dict[str, Any]) -> Any:
    """Ask from a process of another user: credentials come from the kernel, not from us."""
    code = (
        "import json,os,socket,sys\n"
        "path,uid,gid,groups,request = json.loads(sys.argv[1])\n"
        "os.setgroups(groups); os.setgid(gid); os.setuid(uid)\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(60)\n"
        "try: s.connect(path)\n"
        "except PermissionError: print(json.dumps({'error': {'code': 'EACCES'}})); sys.exit()\n"
        "try: s.sendall(json.dumps(request).encode() + b'\\n')\n"
        "except BrokenPipeError: pass\n"  # refused before it was read; the reply is there
        "print(s.makefile().readline())\n"
    )
    arguments = json.dumps([path, uid, gid, groups, request])
    done = subprocess.run(
        [sys.executable, "-c", code, arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_who_may_what(tmp_path_factory: pytest.TempPathFactory, picture: Picture) -> None:
    assert os.geteuid() == 0, "this test needs root"
    folder = tmp_path_factory.mktemp("who")
    for parent in (folder, *folder.parents[:2]):
        os.chmod(parent, 0o755)
    server = ControlServer(str(folder / "c.sock"), "daemon", Verbs(picture))
    server.start()
    try:
        group = control.group_id("daemon")
        assert group is not None
        status = os.stat(server.path)
        assert stat.S_IMODE(status.st_mode) == 0o660
        assert status.st_gid == group
        read = {"version": 1, "verb": "status"}
        change = {"version": 1, "verb": "probes", "set": "off"}
        for gid, groups in ((group, []), (NOBODY, [group])):
            assert "result" in ask_as(server.path, NOBODY, gid, groups, read)
            reply = ask_as(server.path, NOBODY, gid, groups, change)
            assert reply["error"]["code"] == "forbidden"
            reload = ask_as(server.path, NOBODY, gid, groups, {"version": 1, "verb": "reload"})
            assert reload["error"]["code"] == "forbidden"
        assert ask_as(server.path, NOBODY, NOBODY, [], read)["error"]["code"] == "EACCES"
        os.chmod(server.path, 0o666)  # the kernel's word counts even where the mode does not
        assert ask_as(server.path, NOBODY, NOBODY, [], read)["error"]["code"] == "forbidden"
        assert picture.calls == []
        assert "result" in ask_as(server.path, 0, 0, [], change)
    finally:
        server.close()


def test_mode_without_the_group(path: str) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_live_socket_is_left_alone(path: str, picture: Picture) -> None:
    second = ControlServer(path, "no-such-group", Verbs(picture))
    with pytest.raises(AlreadyRunning, match=rf"\(pid {os.getpid()}\) is running"):
        second.start()
    second.close()
    assert "result" in Client(path).ask("status")


def test_stale_socket_of_a_killed_daemon_is_replaced(tmp_path: Path, picture: Picture) -> None:
    place = str(tmp_path / "c.sock")
    code = (
        "import sys, time\n"
        "from stragd.outputs.control import ControlServer\n"
        "s = ControlServer(sys.argv[1], 'no-such-group', lambda r, p: {}); s.start()\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    killed = subprocess.Popen(
        [sys.executable, "-c", code, place], stdout=subprocess.PIPE, env=environment
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"up\n"
    server = ControlServer(place, "no-such-group", Verbs(picture))
    with pytest.raises(AlreadyRunning, match=rf"\(pid {killed.pid}\)"):
        server.start()
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    killed.stdout.close()
    assert os.path.exists(place)
    server.start()
    assert "result" in Client(place).ask("status")
    server.close()
    assert not os.path.exists(place)
    server.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path, picture: Picture) -> None:
    place = tmp_path / "c.sock"
    place.write_text("precious")
    server = ControlServer(str(place), "no-such-group", Verbs(picture))
    with pytest.raises(OSError, match="no socket"):
        server.start()
    assert place.read_text() == "precious"


def test_find_job() -> None:
    jobs = [job("a", "1100000000000000"), job("b", "1122000000000000")]
    assert find_job(jobs, "1122")["name"] == "b"
    assert find_job(jobs[:1], None)["name"] == "a"
    for wanted, what in (("11", "several"), (None, "say which"), ("c", "no job")):
        with pytest.raises(RequestError, match=what):
            find_job(jobs, wanted)
    with pytest.raises(RequestError, match="there is no job"):
        find_job([], None)
