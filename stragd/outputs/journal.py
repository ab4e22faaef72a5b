"""Journal: one entry for each event, with a stable MESSAGE_ID and structured fields.

``systemd/stragd.catalog`` explains every id (``journalctl -x``). Without journald an entry is one
plain line on standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import TextIO

from stragd.finding import Finding, State, describe
from stragd.findings import Transition

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6
"""Priorities of syslog."""

# Ids are a promise to whoever matches on them: never change one, never reuse one.
MESSAGE_IDS: dict[str, str] = {
    "started": "c97442e234b94c52bd1309d6ce831105",
    "stopped": "72e7f74be2ae45c38d892f92e71ad72c",
    "finding-suspect": "7c6e7357d2df4ae997394ac440358455",
    "finding-confirmed": "5c8a61bfa908495f879d6564e5133309",
    "finding-recovering": "0884b88024ae4f478c6532eb4c6a08f8",
    "finding-cleared": "d71f182b2341410c8d36531b1912c9a8",
    "finding-cause": "95d6cad408324f41a302f3d806bfc970",
    "job-seen": "ec3ad68ef78f4f58ba8cba982100cd50",
    "job-ended": "d633c0036c2d44dca4f90247df57c699",
    "attach-failed": "713b7b71f56e4fbf8914e083a0608734",
    "not-probeable": "b16742f8d6ab42fb89a4eaaea2002432",
    "events-lost": "e5f631f310c84255a8249d61cf06a77e",
    "probes-off": "9fcb6357697743e99913cb125d1f01eb",
    "probes-on": "5b7d05dd65e543e6945baeb451a5f8cf",
    "ring-asked": "7cdda01baca24d15aef806c44d4871ba",
    "reloaded": "6fe54c6e290f4fe88e2039158f6baa17",
    "config-refused": "1a23be0808e84e64b7362a298adbb1e7",
    "identity-note": "138810c1f8a549b4b44bb9a48486dc0c",
    "degraded": "88d50e19d36f469d8421d84cf2f16bd6",
}

_STATE_PRIORITY: dict[State, int] = {
    "suspect": NOTICE,
    "confirmed": WARNING,
    "recovering": NOTICE,
    "cleared": NOTICE,
}
MAX_VALUE = 2048


def under_journald(environment: Mapping[str, str] = os.environ, descriptor: int = 2) -> bool:
    """Whether standard error is journald's: systemd names its device and inode."""
    try:
        stat = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


def journal_module() -> types.ModuleType | None:
    """systemd-python's ``systemd.journal``, None where it is not installed."""
    try:
        return importlib.import_module("systemd.journal")
    except ImportError:
        return None


class RateLimit:
    """At most ``burst`` entries of one id per interval; says how many it held back."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self.burst, self.seconds, self._clock = burst, seconds, clock
        self._state: dict[str, list[float]] = {}  # name -> [interval's start, written, held back]

    def take(self, name: str) -> int | None:
        """None: hold it back; else how many were held back before this one."""
        now = self._clock()
        state = self._state.setdefault(name, [now, 0, 0])
        held_back = 0
        if now - state[0] >= self.seconds:
            held_back = int(state[2])
            state[:] = [now, 0, 0]
        if state[1] >= self.burst:
            state[2] += 1
            return None
        state[1] += 1
        return held_back


class Journal:
    """Writer of entries; ``target`` is "auto", "journald" or "stderr"."""

    def __init__(
        self,
        target: str = "auto",
        burst: int = 20,
        interval_seconds: float = 30.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._limit = RateLimit(burst, interval_seconds, clock)
        self._module: types.ModuleType | None = None
        self.configure(target, burst, interval_seconds)

    def configure(self, target: str, burst: int, interval_seconds: float) -> None:
        """Apply the [journal] section."""
        native = target == "journald" or (target == "auto" and under_journald())
        self._module = journal_module() if native else None
        self._prefix = native and self._module is None
        self._limit.burst, self._limit.seconds = burst, interval_seconds

    @property
    def native(self) -> bool:
        """Whether entries go to journald with fields."""
        return self._module is not None

    def write(self, event: str, message: str, priority: int = INFO, **fields: object) -> None:
        """One entry. ``event`` is a key of MESSAGE_IDS; fields become ``STRAGD_<NAME>``."""
        held_back = self._limit.take(event)
        if held_back is None:
            return
        if held_back:
            message += f" ({held_back} more like this were not written)"
        message = _one_line(message)
        if self._module is None:
            self._write_line(message, priority)
            return
        extra = {f"STRAGD_{k.upper()}": _one_line(v) for k, v in fields.items() if v is not None}
        try:
            self._module.send(
                message,
                MESSAGE_ID=MESSAGE_IDS[event],
                PRIORITY=str(priority),
                SYSLOG_IDENTIFIER="stragd",
                STRAGD_EVENT=event,
                **extra,
            )
        except OSError:
            self._write_line(message, priority)

    def _write_line(self, message: str, priority: int) -> None:
        stream = self._stream or sys.stderr
        # journald reads "<4>" at the start of a line as its priority; a terminal would show it.
        prefix = f"<{priority}>" if self._prefix else "stragd: "
        # A closed standard error raises: there is nobody left to tell.
        with contextlib.suppress(OSError, ValueError):
            print(prefix + message, file=stream, flush=True)

    def transition(self, transition: Transition) -> None:
        """A finding entered another state."""
        finding = transition.finding
        message = describe(finding) + _because(finding)
        if transition.reason:
            message += f": {transition.reason}"
        self._finding(f"finding-{finding['state']}", finding, message, transition.before)

    def cause(self, finding: Finding) -> None:
        """The cause of an open finding has come to be known, or is another now."""
        message = f"{describe(finding)}{_because(finding)}"
        self._finding("finding-cause", finding, message, finding["state"])

    def _finding(self, event: str, finding: Finding, message: str, before: State | None) -> None:
        cause = finding["cause"]
        cost = finding["cost_ms_per_step"]
        slowdown = finding["slowdown"]
        subject = finding["subject"]
        self.write(
            event,
            message,
            _STATE_PRIORITY[finding["state"]],
            finding=finding["id"],
            job=finding["job"]["name"],
            job_key=finding["job"]["key"],
            rank=subject.get("rank"),
            host=subject.get("host") or None,
            kind=finding["kind"],
            state=finding["state"],
            state_before=before,
            slowdown=None if slowdown is None else f"{slowdown:.6f}",
            cost_ms_per_step=None if cost is None else f"{cost['value']:.4f}",
            cost_percent=f"{finding['cost_percent']:.3f}",
            confidence=f"{finding['confidence']:.4f}",
            where=finding["where"],
            cause=cause["name"],
            cause_confidence=f"{cause['confidence']:.3f}",
            cause_evidence="; ".join(cause["evidence"]) or None,
            advice=cause["advice"] or None,
            evidence="; ".join(finding["evidence"]),
        )


def _because(finding: Finding) -> str:
    """ ", where machine, cause power-cap (0.91): SM clock ..."; an unknown cause is said too."""
    cause = finding["cause"]
    text = f", where {finding['where']}, cause {cause['name']}"
    if cause["name"] != "unknown":
        text += f" ({cause['confidence']:.2f})"
    return f"{text}: {cause['evidence'][0]}" if cause["evidence"] else text


def _one_line(value: object) -> str:
    text = str(value)[:MAX_VALUE]
    return "".join(c if c.isprintable() else "?" for c in text)
