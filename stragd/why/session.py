"""Runs a deep look: the child with bcc, and py-spy beside it; both are gone when it returns."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stragd.jobs import clean
from stragd.why import LookError, program
from stragd.why.measures import Measures, measures
from stragd.why.python_stacks import MAX_TEXT, RATE, Stack, parse

DEBIAN_PYTHON = "/usr/bin/python3"
"""The interpreter that a distribution's bcc belongs to."""
READY_SECONDS = 120.0
"""To compile and attach, on a machine that is busy with the job."""
LATE_SECONDS = 60.0
MAX_ANSWER = 64 << 20
BCC_FIX = "apt-get install python3-bpfcc; Fedora, RHEL: dnf install python3-bcc"


@dataclass
class Python:
    """Python stacks of one process, or why there are none."""

    stacks: list[Stack] = field(default_factory=list)
    reason: str = ""


@dataclass
class Seen:
    """What a look saw; one entry per pid, in the order asked."""

    seconds: float
    measures: list[Measures]
    python: list[Python]
    unread: list[str]  # one line per part that could not be read


def take(pids: Sequence[int], seconds: float) -> Seen:
    """Look at one or two processes and their descendants for so long. Raises LookError."""
    with tempfile.TemporaryDirectory(prefix="stragd-why-") as directory:
        for name, text in program.HEADERS.items():
            path = Path(directory, "include", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="ascii")
        spec = {
            "pids": list(pids), "seconds": seconds, "slices": min(60, max(5, round(seconds))),
            "headers": directory,
        }  # fmt: skip
        answer, python = _look(spec, Path(directory))
    times = answer["times"]
    seen = [measures(raw, times) for raw in answer["ranks"]]
    return Seen(sum(m.seconds for m in seen[:1]), seen, python, _unread(answer))


def _interpreters() -> list[str]:
    """Our own Python first: bcc may live in either."""
    own = os.path.realpath(sys.executable)
    if not os.access(DEBIAN_PYTHON, os.X_OK):
        return [sys.executable]
    same = own == os.path.realpath(DEBIAN_PYTHON)
    return [DEBIAN_PYTHON] if same else [sys.executable, DEBIAN_PYTHON]


def _look(spec: dict[str, Any], directory: Path) -> tuple[dict[str, Any], list[Python]]:
    answer: dict[str, Any] = {}
    for interpreter in _interpreters():
        answer, python = _one_look(interpreter, spec, directory)
        if answer.get("error") != "no-bcc":
            break
    if "error" in answer:
        raise LookError(_refusal(answer))
    return answer, python


def _one_look(
    interpreter: str, spec: dict[str, Any], directory: Path
) -> tuple[dict[str, Any], list[Python]]:
    script = Path(__file__).with_name("look.py")
    with (directory / "errors").open("wb") as errors:
        child = subprocess.Popen(
            [interpreter, "-I", str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd="/",
        )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    spies: list[_Spy] = []
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin as stdin:
            stdin.write(json.dumps(spec).encode())
        lines = _lines(child.stdout)
        first = next(lines, b"") if _within(child.stdout, READY_SECONDS) else b""
        if first == b"looking":
            spies = [_Spy(pid, spec["seconds"], directory) for pid in spec["pids"]]
            late = spec["seconds"] + LATE_SECONDS
            first = next(lines, b"") if _within(child.stdout, late) else b""
        python = [spy.stacks() for spy in spies]
        return _answer(first, directory), python
    finally:
        for spy in spies:
            spy.end()
        child.kill()
        child.wait()
        child.stdout.close()


def _within(stream: IO[bytes], seconds: float) -> bool:
    """Whether something can be read from the stream in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines as they come, without read-ahead that `_within` would not see."""
    buffer = b""
    while len(buffer) <= MAX_ANSWER:
        data = os.read(stream.fileno(), 1 << 20)
        if not data:
            return
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            yield line


def _answer(line: bytes, directory: Path) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    text = (directory / "errors").read_text(errors="replace").strip().splitlines()
    return {"error": "died", "detail": text[-1] if text else "it gave no answer"}


def _refusal(answer: dict[str, Any]) -> str:
    detail = clean(answer.get("detail", ""), 200)
    release = os.uname().release
    texts = {
        "no-bcc": f"bcc is missing: it compiles the look ({BCC_FIX})",
        "no-headers": (
            f"bcc cannot compile without headers of this kernel (apt-get install "
            f"linux-headers-{release}; Fedora, RHEL: dnf install kernel-devel-{release})"
        ),
        "compile": f"bcc cannot compile the look: {detail} (try a newer bcc: {BCC_FIX})",
        "tracefs": (
            f"the kernel's tracepoints cannot be reached: {detail} "
            "(mount -t tracefs tracefs /sys/kernel/tracing)"
        ),
        "attach": f"the kernel refuses the look: {detail} (see: stragctl doctor)",
        "ended": "the process has ended while it was looked at (see: stragctl ranks)",
    }
    return texts.get(answer["error"], f"the look has failed: {detail} (see: stragctl doctor)")


def _unread(answer: dict[str, Any]) -> list[str]:
    lines = []
    if answer["missing"]:
        names = ", ".join(clean(name, 60) for name in answer["missing"])
        lines.append(f"block I/O latency: this kernel does not give {names}")
    lost = answer["lost"]
    for what, text in (
        ("waits", "waits were not recorded: their table is full"),
        ("stacks", "waits have no kernel stack"),
        ("threads", "threads were not followed: there are too many"),
    ):
        if lost[what]:
            lines.append(f"{lost[what]} {text}")
    return lines


class _Spy:
    """py-spy at one process, for as long as the look takes."""

    def __init__(self, pid: int, seconds: float, directory: Path) -> None:
        self._reason, self._limit = "", time.monotonic() + seconds + LATE_SECONDS
        self._output, self._errors = directory / f"spy-{pid}", directory / f"spy-{pid}.errors"
        self._process: subprocess.Popen[bytes] | None = None
        beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
        path = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
        if path is None:
            self._reason = "py-spy is missing (pip install py-spy)"
            return
        command = ["nice", "-n", "10", path, "record", "--nonblocking", "--idle", "--threads"]
        command += ["--format", "raw", "--rate", str(RATE), "--pid", str(pid)]
        command += ["--duration", str(max(1, round(seconds))), "--output", str(self._output)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/"
            )

    def stacks(self) -> Python:
        """What it has sampled, once it is done."""
        if self._process is None:
            return Python(reason=self._reason)
        try:
            self._process.wait(max(0.1, self._limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Python(reason="py-spy does not come to an end")
        with contextlib.suppress(OSError), self._output.open("rb") as file:
            stacks = parse(file.read(MAX_TEXT).decode("utf-8", "replace"))
            if stacks:
                return Python(stacks)
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        said = [line for line in lines if line.startswith(("Error:", "Reason:"))] or lines[-1:]
        return Python(reason=f"py-spy: {clean(said[0] if said else 'no samples', 200)}")

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
