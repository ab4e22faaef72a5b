"""stragctl top: the session behind the keys, and the program in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.cli import terminal, text
from stragd.cli.sampler import Sample
from stragd.cli.screen import View
from stragd.cli.top import Session
from tests import cli_pictures as pictures

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 60.0  # seconds; a hang, not a slow machine


def test_keys_move_in_jobs_and_ranks() -> None:
    top = pictures.top(40, None)
    top["jobs"].append(pictures.job(2, key=pictures.OTHER_KEY, name="bert"))
    top["ranks"] += [pictures.rank(i, job=pictures.OTHER_KEY) for i in range(2)]
    session = Session(1.0, View())
    session.receive(Sample(0.0, top, ""))

    def after(*keys: str) -> list[str]:
        for key in keys:
            session.press(key)
        return [text.plain(line) for line in session.lines(80, 24, 0.1)]

    assert not any(line.startswith(">") for line in after())
    assert any(line.startswith(">   0 ") for line in after("j"))
    assert any(line.startswith(">   3 ") for line in after("down", "j", "j"))
    assert any(line.startswith(">   2 ") for line in after("k"))
    assert any(line.startswith(">  39 ") for line in after("end", "pgdn"))
    assert any(line.startswith(">   0 ") for line in after("home", "k", "pgup"))
    assert "job bert" in after("l")[1]
    assert "job llama-7b" in after("right")[1]
    assert "job bert" in after("h")[1]
    assert "job llama-7b" in after("esc")[1]
    assert any("order: rank" in line for line in after("s"))
    assert any("quit" in line for line in after("?")[1:])
    assert "job llama-7b" in after("?")[1]
    assert not session.ended
    after("x", "q")
    assert session.ended


def test_paused_screen_keeps_its_picture() -> None:
    session = Session(1.0, View())
    session.receive(Sample(0.0, pictures.top(8, None), ""))
    session.press("p")
    session.receive(Sample(1.0, pictures.top(8, 2), ""))
    lines = [text.plain(line) for line in session.lines(80, 24, 1.1)]
    assert lines[0].endswith("paused (p: go on)")
    assert "nobody" in lines[2]
    session.press("p")
    assert "rank 2" in text.plain(session.lines(80, 24, 1.1)[2])


def test_age_of_the_picture_is_said() -> None:
    session = Session(1.0, View())
    session.receive(Sample(100.0, pictures.top(), ""))
    assert "no answer" not in text.plain(session.lines(80, 24, 102.0)[0])
    assert text.plain(session.lines(80, 24, 104.5)[0]).endswith("no answer from stragd for 4 s")
    session.receive(Sample(105.0, None, "/run/x: no stragd is listening"))
    lines = [text.plain(line) for line in session.lines(80, 24, 105.0)]
    assert lines[0].endswith("no answer from stragd for 5 s")
    assert lines[-2] == "/run/x: no stragd is listening"
    # Answers that hold the same picture for long: the daemon's main loop hangs.
    for second in range(106, 120):
        session.receive(Sample(float(second), pictures.top(), ""))
    assert text.plain(session.lines(80, 24, 119.0)[0]).endswith("stragd's picture is 19 s old")
    session.receive(Sample(120.0, pictures.top(time="2026-11-29T10:14:19Z"), ""))
    assert text.plain(session.lines(80, 24, 120.0)[0]).endswith("q: quit")


@pytest.mark.parametrize(
    "bad", [{}, {"jobs": 3}, pictures.top() | {"ranks": [{"job": pictures.KEY}]}]
)
def test_answer_of_another_shape_is_said_not_raised(bad: dict[str, Any]) -> None:
    session = Session(1.0, View())
    session.receive(Sample(0.0, bad, ""))
    for key in ("j", "l", "end", "s", "?"):
        session.press(key)
        lines = [text.plain(line) for line in session.lines(80, 24, 0.0)]
        if key != "?":
            assert any("another shape" in line for line in lines)


def test_keys_come_out_of_bytes() -> None:
    assert terminal.split_keys(b"jk\x1b[A\x1bOB\x1b[5~\tq") == (
        ["j", "k", "up", "down", "pgup", "tab", "q"],
        b"",
    )
    assert terminal.split_keys(b"a\x1b") == (["a"], b"\x1b")
    assert terminal.split_keys(b"\x1b[") == ([], b"\x1b[")
    assert terminal.split_keys(b"\x1b[200~x\x1b[1;5Cj\x1bq") == (["x", "j", "esc", "q"], b"")
    assert terminal.split_keys(b"\x00\xff\xc3\xa9s") == (["s"], b"")
    assert terminal.split_keys(b"\x1b[" + b"1" * 64) == ([], b"")


class Screen:
    """stragctl top in a pseudo-terminal, and what a terminal would show of its output."""

    def __init__(self, path: Path, *arguments: str, **environment: str) -> None:
        self.master, worker = os.openpty()
        self.resize(80, 24)
        self.mode = termios.tcgetattr(worker)
        self.worker = worker
        self.cells: dict[int, str] = {}
        self.seen = b""
        self._rest = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stragd.cli.main", "--socket", str(path), "top", *arguments],
            stdin=worker, stdout=worker, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
            env=os.environ | {"TERM": "xterm", "LC_ALL": "C.UTF-8"} | environment,
        )  # fmt: skip

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        if hasattr(self, "process"):  # no controlling terminal here, so no kernel signal
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, seconds: float = 0.1) -> str:
        """The screen after what came within ``seconds``."""
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 1 << 16)
            self.seen += data
            self._rest += data.decode("utf-8", "replace")
            seconds = 0.0
        *whole, self._rest = re.split(r"(?=\x1b\[\d+;1H)", self._rest)
        for part in [*whole, self._rest]:
            match = re.match(r"\x1b\[(\d+);1H\x1b\[2K(.*)", part, re.DOTALL)
            if match:
                line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", match[2])
                self.cells[int(match[1])] = line.rstrip()
            if "\x1b[2J" in part:  # stands before the first line, so at the end of a part
                self.cells.clear()
        return "\n".join(
            self.cells.get(row, "") for row in range(1, max(self.cells, default=0) + 1)
        )

    def wait(self, what: str, check: Callable[[str], object]) -> str:
        deadline = time.monotonic() + LIMIT
        while not check(picture := self.read()):
            assert self.process.poll() is None, self.process.stderr.read()  # type: ignore[union-attr]
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{picture}"
        return picture

    def wait_end(self) -> int:
        """Exit code, reading on so that a full terminal never holds up the end."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "stragctl top does not end"
            self.read()
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.master)
        os.close(self.worker)


class Live:
    """A server whose picture a test may change, and the screens in front of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: Callable[[], bytes | None] = lambda: pictures.result(pictures.top())
        self.server: pictures.Server | None = None
        self.screens: list[Screen] = []
        self.start()

    def start(self) -> None:
        self.server = pictures.Server(self.path, lambda request: self.answer())

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def screen(self, *arguments: str, **environment: str) -> Screen:
        made = Screen(self.path, "--interval", "0.1", *arguments, **environment)
        self.screens.append(made)
        return made


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path / "control.sock")
    yield made
    for item in made.screens:
        item.close()
    made.stop()


def test_live_keys_resize_and_a_clean_end(live: Live) -> None:
    top = live.screen()
    picture = top.wait("the first picture", lambda p: "bpf 412 ns" in p)
    assert "straggler: rank 2" in picture
    assert len(picture.splitlines()) == 24
    top.type("jj")
    top.wait("the selection", lambda p: re.search(r"^>   4 ", p, re.MULTILINE))
    top.type("\x1b[A")
    top.wait("the arrow key", lambda p: re.search(r"^>   2 ", p, re.MULTILINE))
    top.type("\x1b")
    top.wait("Esc alone", lambda p: not re.search(r"^>", p, re.MULTILINE))
    top.resize(60, 15)
    top.wait("15 lines", lambda p: len(p.splitlines()) == 15)
    top.resize(140, 40)
    top.wait("40 lines", lambda p: len(p.splitlines()) == 40 and "vs peers" in p)
    top.type("?")
    top.wait("help", lambda p: "next, previous rank" in p)
    top.type("q")
    assert top.wait_end() == 0
    assert termios.tcgetattr(top.worker)[:4] == top.mode[:4]
    assert top.seen.rstrip().endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_put_the_terminal_back(live: Live, number: signal.Signals) -> None:
    top = live.screen()
    top.wait("the first picture", lambda p: "straggler" in p)
    top.process.send_signal(number)
    assert top.wait_end() == 0
    assert termios.tcgetattr(top.worker)[:4] == top.mode[:4]
    assert b"\x1b[?1049l" in top.seen


def test_killed_daemon_is_said_and_found_again(live: Live) -> None:
    top = live.screen()
    top.wait("the first picture", lambda p: "straggler" in p)
    live.stop()
    reason = "no stragd is listening (start it: systemctl start stragd)"
    picture = top.wait("the reason", lambda p: reason in p.replace("\n", " "))
    assert "straggler: rank 2" in picture, "the last picture stays"
    top.wait("staleness", lambda p: re.search(r"no answer from stragd for [1-9]\d* s", p))
    top.type("j")
    top.wait("keys still answer", lambda p: re.search(r"^>   2 ", p, re.MULTILINE))
    live.answer = lambda: b"\x1b[31mHTTP/1.1 400\r\n\r\n"
    live.start()
    top.wait("garbage", lambda p: "not stragd's control protocol" in p.replace("\n", " "))
    live.answer = lambda: pictures.result(pictures.top(512, 300))
    top.wait("the daemon is back", lambda p: "of 512" in p and "q: quit" in p)
    top.type("q")
    assert top.wait_end() == 0


def test_hung_daemon_holds_up_no_key(live: Live) -> None:
    hang = threading.Event()
    top = live.screen()
    top.wait("the first picture", lambda p: "straggler" in p)

    def hung() -> None:
        hang.wait(LIMIT)

    live.answer = hung
    top.wait("staleness", lambda p: "no answer from stragd for" in p)
    top.type("s")
    top.wait("a key", lambda p: "order: rank" in p)
    top.type("q")
    assert top.wait_end() == 0
    hang.set()


def test_without_colour_and_without_utf8(live: Live) -> None:
    top = live.screen(NO_COLOR="1", LC_ALL="C")
    picture = top.wait("the first picture", lambda p: "straggler" in p)
    assert picture.isascii()
    assert "#" in picture
    assert not re.search(rb"\x1b\[(\d;)?3\dm", top.seen)
    top.type("q")
    assert top.wait_end() == 0


def test_dumb_terminal_gets_pictures_below_each_other(live: Live) -> None:
    top = live.screen(TERM="dumb")
    deadline = time.monotonic() + LIMIT
    while top.seen.count(b"straggler: rank 2") < 2:
        top.read()
        assert time.monotonic() < deadline
    assert b"\x1b" not in top.seen
    top.process.send_signal(signal.SIGINT)
    assert top.wait_end() == 0


def test_terminal_that_goes_away_ends_top(live: Live) -> None:
    top = live.screen()
    top.wait("the first picture", lambda p: "straggler" in p)
    os.close(top.master)
    assert top.process.wait(LIMIT) == 0
    top.master = os.open(os.devnull, os.O_RDONLY)
