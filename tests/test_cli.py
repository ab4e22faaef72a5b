"""stragctl's short commands: a real process that asks the daemon's own control server."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.cli import numbers, reasons, text
from stragd.cli.client import ControlClient, ControlError
from stragd.outputs.control import MAX_CONNECTIONS, ROOT_CONNECTIONS, ControlServer, RequestError
from stragd.outputs.verbs import Verbs
from tests import cli_pictures as pictures

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 60  # seconds; a hang, not a slow machine


class CannedDaemon:
    """What the verbs need of a daemon, with a picture that a test may change."""

    def __init__(self) -> None:
        self.picture: dict[str, Any] = pictures.top() | {
            "pid": 812, "unidentified": 1, "cleared": [], "counters": {}, "collector_up": {},
            "cpu_seconds": 1.0, "start_time": 1.0, "readings": [], "events": [],
            "libraries": [
                {"kinds": ["nccl"], "path": "/opt/x\x1b[31m/libnccl.so.2", "build_id": "ab",
                 "version": "2.21.5", "state": "attached", "method": "uprobe_multi",
                 "probes": 38, "refused": ["ncclSend: single-stepped instruction"],
                 "missing": ["ncclPutSignal", "_ZN4gloo7barrierE"], "error": "",
                 "processes": [1, 2]},
            ],
        }  # fmt: skip
        self.picture["readers"] = [
            {"name": "host", "reason": "", "note": "", "read_s": 0.0021},
            {"name": "nic", "reason": "", "note": "", "read_s": None},
            {"name": "gpu", "reason": "the driver is not loaded", "note": "", "read_s": 0.1},
        ]
        self.picture["rings"] = [
            {"pid": 4002, "state": "open", "reason": "NCCL 2.31.2 is slowed\x1b[31m by timing",
                 "vendor": "nvidia", "library": "2.31.2", "api": 7, "mode": "progress",
                 "sample": 1, "floor": 0, "wanted": "default", "clock": "ns",
                 "chained": "inspector", "communicators": 3, "joined": 2, "records": 1200,
                 "lost": 0, "dropped": {"pool": 4}},
        ]  # fmt: skip
        self.probes = "on"
        self.asked: list[Any] = []

    def snapshot(self) -> Any:
        return self.picture

    def metrics_url(self) -> str:
        return "http://127.0.0.1:9464/metrics"

    def config_files(self) -> list[str]:
        return ["/etc/stragd/stragd.toml"]

    def config_values(self) -> Any:
        return [
            {"key": "prometheus.address", "value": "127.0.0.1:9464", "origin": "default",
             "environment": "STRAGD_PROMETHEUS_ADDRESS"},
            {"key": "window.steps", "value": 100, "origin": "/etc/stragd/stragd.toml",
             "environment": "STRAGD_WINDOW_STEPS"},
        ]  # fmt: skip

    def doctor(self) -> Any:
        return [
            {"feature": "uprobe_multi", "state": "ok", "detail": "kernel 6.18", "fix": ""},
            {"feature": "NVML", "state": "missing", "detail": "no libnvidia-ml.so.1",
             "fix": "install the NVIDIA driver"},
        ]  # fmt: skip

    def set_probes(self, on: bool) -> str:
        if self.probes == "broken":
            raise RequestError("unavailable", "no probes: the kernel refuses BPF")
        self.probes = "on" if on else "off"
        return self.probes

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> Any:
        self.asked.append((mode, sample, floor, pid))
        return self.picture["rings"]

    def reload(self) -> dict[str, list[str]]:
        return {"changed": [], "restart": []}


class Control:
    """A daemon behind a socket, and stragctl as a process in front of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.daemon = CannedDaemon()
        self.server = ControlServer(str(path), "no-such-group", Verbs(self.daemon))
        self.server.start()

    def __call__(self, *arguments: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        return stragctl("--socket", str(self.path), *arguments, **extra)


def stragctl(*arguments: str, **extra: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "stragd.cli.main", *arguments], capture_output=True, text=True,
        timeout=LIMIT, env=environment | extra.pop("environment", {}), check=False, **extra,
    )  # fmt: skip


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    made = Control(tmp_path / "control.sock")
    yield made
    made.server.close()


def fails(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """One line on stderr with these words, nothing on stdout, this exit code."""
    assert done.returncode == code
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("stragctl: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status"], ["running, pid 812", "8 ranks", "1 process with a library but without a rank",
                      "4.56M, 12.3k per s, 0 lost", "on, 214 in 2 libraries, 412 ns per event",
                      "0.4 % of one core, 61.1 MiB", ":9464/metrics", "stragd.toml",
                      "telemetry    host 2.10 ms, nic not read yet, gpu FAILED"]),
        (["jobs"], ["00c0ffee12345678  llama-7b  torchrun", "412.0", "rank 2",
                    "73.2 ms/step (17.8 %)"]),
        (["ranks", "llama-7b"], ["ms per step", "+24.3 %", "379.7", "confirmed", "4002"]),
        (["ranks", "00c0"], ["llama-7b"]),
        (["ranks"], ["llama-7b"]),
        (["findings"], ["job llama-7b (00c0ffee12345678)", "straggler: rank 2 on node0, confirmed",
                        "costs 73.2 ms per step (17.8 %), between 70.0 and 76.9 ms",
                        "    - 24.3% slower than its peers", "where: unknown, cause: unknown"]),
        (["probes"], ["probes are on"]),
        (["ring"], ["4002  nvidia 2.31.2  open   progress", "1200", "4002: NCCL 2.31.2 is slowed",
                    "4002: forwards to the plugin inspector"]),
        (["ring", "--pid", "1"], ["no ring: no watched process has the profiler plugin"]),
        (["doctor"], ["ok       uprobe_multi", "missing  NVML", "fix: install the NVIDIA driver",
                      "nccl 2.21.5: attached, 38 probes by uprobe_multi, 2 processes",
                      "refused: ncclSend", "not in this version: ncclPutSignal, 1 C++ name of",
                      "1 ok, 0 limited, 1 missing"]),
        (["config", "show"], ['prometheus.address = "127.0.0.1:9464"', "window.steps = 100"]),
        (["config", "show", "--origin"], ["# default; override: STRAGD_PROMETHEUS_ADDRESS",
                                          "# /etc/stragd/stragd.toml; override"]),
    ],
)  # fmt: skip
def test_text_says_what_matters(control: Control, arguments: list[str], words: list[str]) -> None:
    done = control(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for word in words:
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["status"], {"version", "health", "findings", "metrics"}),
        (["jobs"], {"jobs"}),
        (["ranks", "llama-7b"], {"job", "ranks"}),
        (["findings"], {"findings", "abstentions"}),
        (["top"], {"jobs", "ranks", "findings", "abstentions", "health"}),
        (["probes"], {"probes"}),
        (["ring"], {"rings"}),
        (["doctor"], {"checks", "libraries"}),
        (["config", "show"], {"files", "values"}),
    ],
)
def test_json_is_the_reply(control: Control, arguments: list[str], keys: set[str]) -> None:
    after, before = control(*arguments, "--json"), control("--json", *arguments)
    assert after.returncode == before.returncode == 0
    assert after.stdout == before.stdout
    assert keys <= set(json.loads(after.stdout))


def test_json_leaves_numbers_alone(control: Control) -> None:
    control.daemon.picture["findings"][0]["cost_ms_per_step"]["value"] = 1.9000000000000001e-05
    control.daemon.picture["health"] = pictures.HEALTH | {"events": 2**63 + 1}
    reply = json.loads(control("findings", "--json").stdout)
    assert reply["findings"] == control.daemon.picture["findings"]
    assert json.loads(control("top", "--json").stdout)["health"]["events"] == 2**63 + 1


def test_findings_cleared_and_abstentions(control: Control) -> None:
    control.daemon.picture["cleared"] = [pictures.finding(5, id="f0", state="cleared")]
    control.daemon.picture["abstentions"] = [
        {"job": pictures.KEY, "job_name": "llama-7b", "rank": r, "window": 3, "reason": "alone"}
        for r in (0, 1, 4)
    ]
    assert "rank 5" not in control("findings").stdout
    shown = control("findings", "--cleared").stdout
    assert "straggler: rank 5 on node0, cleared" in shown
    assert "no verdict on ranks 0-1, 4 of llama-7b: alone" in shown
    fails(control("findings", "--job", "nobody"), "no job 'nobody'", "llama-7b")


def test_kill_switch_changes_the_daemon(control: Control) -> None:
    assert control("probes", "off").stdout == "probes are off\n"
    assert control.daemon.probes == "off"
    assert json.loads(control("probes", "on", "--json").stdout) == {"probes": "on"}
    control.daemon.probes = "broken"
    fails(control("probes", "off"), "the kernel refuses BPF")


def test_ring_is_asked_for_what_the_words_say(control: Control) -> None:
    for words, asked in [
        (("on",), ("full", 1, 0, None)),
        (("off",), ("off", 1, 0, None)),
        (("progress", "--pid", "4002"), ("progress", 1, 0, 4002)),
        (("default",), ("default", 1, 0, None)),
        (("sample", "16", "--floor", "4096"), ("full", 16, 4096, None)),
    ]:
        assert control("ring", *words).returncode == 0
        assert control.daemon.asked[-1] == asked
    control("ring", "status")
    assert len(control.daemon.asked) == 5
    fails(control("ring", "on", "--floor", "1000"), "floor must be 0 or a power of two")


def test_top_prints_one_picture_into_a_pipe(control: Control) -> None:
    for arguments in (["top"], ["top", "--once", "--job", "llama-7b"]):
        done = control(*arguments)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert all(len(line) <= 100 for line in lines)
        assert any(line.startswith("!   2 node0") for line in lines)
        assert "q: quit" not in done.stdout
    fails(control("top", "--job", "nobody"), "no job 'nobody'", "llama-7b")


def test_locale_without_utf8_gets_ascii(control: Control) -> None:
    control.daemon.picture["jobs"][0]["name"] = "日本"
    for arguments in (["top"], ["jobs"], ["findings"]):
        done = control(*arguments, environment={"LC_ALL": "C"})
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
    assert "日本" in control("jobs").stdout


def test_hostile_names_reach_no_terminal(control: Control) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202ename\n" + "x" * 100_000
    control.daemon.picture["jobs"][0]["name"] = evil
    control.daemon.picture["findings"][0]["job"]["name"] = evil
    for row in control.daemon.picture["ranks"]:
        row["host"] = row["class"] = row["container"] = evil
    for arguments in (["top"], ["jobs"], ["ranks"], ["findings"], ["doctor"], ["jobs", "--json"]):
        done = control(*arguments)
        assert done.returncode == 0, done.stderr
        for char in "\x1b\x07\x9b\u202e":
            assert char not in done.stdout


def test_no_daemon(tmp_path: Path) -> None:
    missing = tmp_path / "control.sock"
    for command in (["status"], ["top"], ["probes", "off"], ["findings", "--json"]):
        fails(
            stragctl("--socket", str(missing), *command),
            str(missing), "no stragd is listening", "systemctl start stragd",
        )  # fmt: skip
    missing.write_text("no socket")
    fails(stragctl("--socket", str(missing), "status"), "no stragd is listening")
    fails(stragctl("--socket", str(tmp_path / ("x" * 200)), "status"), "too long", "--socket")


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        others = []
        with contextlib.suppress(BlockingIOError):
            while True:
                others.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
                others[-1].setblocking(False)
                others[-1].connect(str(path))
        client = ControlClient(str(path), timeout=0.2)
        with pytest.raises(ControlError, match="no answer from stragd within"):
            client.request("status")

        def serve() -> None:
            time.sleep(0.2)
            for _ in others:
                connection = stack.enter_context(listener.accept()[0])
            while b"\n" not in connection.recv(4096):
                pass
            connection.sendall(pictures.result({"state": "running"}))

        thread = threading.Thread(target=serve)
        thread.start()
        with ControlClient(str(path), LIMIT) as patient:
            assert patient.request("status") == {"state": "running"}
        thread.join(LIMIT)


def test_permission_denied_names_the_group(control: Control) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chmod(control.path.parent, 0o755)
    # A child that is nobody opens the socket by a path that it can reach: its own folder.
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]);"
        "from stragd.cli.main import main;"
        f"os.chdir(sys.argv[2]); os.setgid({nobody}); os.setuid({nobody});"
        "sys.exit(main(['--socket', 'control.sock', 'status']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT), str(control.path.parent)],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    fails(done, "control.sock: permission denied", "usermod -aG root USER")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ["not stragd's control protocol"]),
        (b"\xff\xfe\x00\n", ["not stragd's control protocol"]),
        (b"[" * 100_000 + b"\n", ["not stragd's control protocol"]),
        (b"[1]\n", ["not stragd's control protocol"]),
        (b'{"version": 1}\n', ["the answer has no result"]),
        (b'{"version": 7, "result": {}}\n', ["control protocol 7", "install one version"]),
        (b'{"version": 1, "result": {"version": 5, "jobs": 3}}\n', ["another shape"]),
        (b'{"version": 1, "error": {"code": "busy", "message": "full\\u001b[2J\\nup"}}\n',
         ["full?[2J?up", "other stragctl sessions"]),
        (b'{"version": 1, "error": 5}\n', ["the answer has no result"]),
        (None, ["closed the connection", "journalctl -u stragd"]),
        (b'{"version": 1, "res', ["closed the connection"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["status", "top"])
def test_garbage_is_one_line(
    tmp_path: Path, command: str, answer: bytes | None, words: list[str]
) -> None:
    def reply(request: dict[str, Any]) -> bytes | None:
        return answer

    path = tmp_path / "control.sock"
    with pictures.serving(path, reply) as server:
        server.once = True
        fails(stragctl("--socket", str(path), command), *words)


def test_forbidden_says_how(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    answer = pictures.error("forbidden", "probes changes the daemon: only root may do that")
    with pictures.serving(path, lambda request: answer) as server:
        fails(stragctl("--socket", str(path), "probes", "off"), "only root", "sudo stragctl")
    assert server.requests == [{"version": 1, "verb": "probes", "set": "off"}]


@pytest.mark.parametrize(
    "arguments",
    [[], ["frobnicate"], ["probes", "maybe"], ["ring", "sample"], ["ring", "on", "4"],
     ["ring", "sample", "0"], ["config"], ["top", "--interval", "0"],
     ["top", "--interval", "nan"], ["status", "--nothing"]],
)  # fmt: skip
def test_usage_is_exit_code_two(arguments: list[str]) -> None:
    fails(stragctl(*arguments), "--help", code=2)


def test_reader_that_goes_away_is_no_error(control: Control) -> None:
    control.daemon.picture = control.daemon.picture | pictures.top(512)
    command = [sys.executable, "-m", "stragd.cli.main", "--socket", str(control.path), "ranks"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(LIMIT) == 141
        assert process.stderr.read() == b""


def test_help_names_every_command() -> None:
    done = stragctl("--help")
    assert done.returncode == 0
    for command in (
        "top",
        "status",
        "jobs",
        "ranks",
        "findings",
        "probes",
        "ring",
        "doctor",
        "config",
    ):
        assert f"    {command} " in done.stdout


def test_numbers_read_well() -> None:
    assert [numbers.ms(v) for v in (0, 0.0049, 1.9, 12.34, 471.23, 12034.4)] == [
        "0.00", "0.00", "1.90", "12.3", "471.2", "12034",
    ]  # fmt: skip
    assert {numbers.ms(v) for v in (None, float("nan"), float("inf"), 10**400, "7", True)} == {"-"}
    assert [numbers.count(v) for v in (0, 0.4, 9999, 12345, 999_999, 4_560_000, 7.2e12)] == [
        "0", "0.4", "9999", "12.3k", "1000k", "4.56M", "7200G",
    ]  # fmt: skip
    assert [numbers.age(v) for v in (-3, 4.9, 61, 8000, 1e6)] == [
        "0 s", "4 s", "1 min", "2.2 h", "11 d",
    ]  # fmt: skip
    assert numbers.percent(0.0214) == "2.1 %"
    assert numbers.percent(-0.0214, sign=True) == "-2.1 %"
    assert numbers.sparkline([0, 1, None, 2], 6, 2, utf8=False) == "  _= #"
    assert numbers.sparkline([9, 0, 0.7, 1, 5], 4, 1) == "▁▆██"


def test_columns_count_wide_characters() -> None:
    assert text.cells("日本a") == 5
    assert text.cut("日本語", 5) == "日本~"
    assert text.fit("日本語", 4) == "日~ "
    assert text.wrap("aa bb cc", 5, "  ") == ["aa bb", "  cc"]
    assert text.clean("a\x1b\u2028b") == "a??b"


def test_ranks_are_joined() -> None:
    assert reasons.rank_list([3]) == "rank 3"
    assert reasons.rank_list([2, 0, 1, 7, 7]) == "ranks 0-2, 7"
    assert reasons.rank_list(range(0, 40, 2), limit=3) == "ranks 0, 2, 4 and 17 more"


def test_closed_connection_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    answer = pictures.result({"probes": "on"})
    with pictures.serving(path, lambda request: answer) as server, ControlClient(str(path)) as ask:
        server.once = True  # as an idle connection, which the daemon closes
        for _ in range(3):
            assert ask.request("probes") == {"probes": "on"}
    assert len(server.requests) == 3
    with pytest.raises(ControlError, match="no stragd is listening"):
        ask.request("probes")


def test_full_daemon_says_busy(control: Control) -> None:
    with contextlib.ExitStack() as stack:
        refused = ""
        for _ in range(MAX_CONNECTIONS + ROOT_CONNECTIONS + 1):
            ask = stack.enter_context(ControlClient(str(control.path)))
            try:
                ask.request("probes")
            except ControlError as error:
                refused = error.code
        assert refused == "busy"
        fails(control("status"), "connections are open", "other stragctl sessions")


def test_slow_daemon_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    never = threading.Event()

    def reply(request: dict[str, Any]) -> None:
        never.wait(LIMIT)

    with pictures.serving(path, reply), ControlClient(str(path), timeout=0.2) as ask:
        with pytest.raises(ControlError, match=r"no answer from stragd within 0\.2 s"):
            ask.request("status")
        never.set()
