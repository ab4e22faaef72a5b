"""`stragctl record`: the windows of a running stragd into a file, until it is enough."""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import sys
import time
import zlib
from pathlib import Path
from typing import IO, Any

from stragd.cli.client import ControlClient, ControlError
from stragd.cli.text import clean

POLL_SECONDS = 1.0
MAX_BYTES = 1 << 30
"""Longest recording; replay reads no longer ones."""


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 30 * 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 second and 30 days")
    return value


def _windows(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 8 else 0
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and 1000000")
    return value


def add_arguments(parser: argparse.ArgumentParser, job_help: str) -> None:
    """What `record` takes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write; it must be new")
    parser.add_argument("--job", metavar="JOB", help=f"only this job: {job_help}")
    parser.add_argument("--windows", type=_windows, metavar="N", help="end after so many windows")
    parser.add_argument("--seconds", type=_seconds, metavar="S", help="end after so many seconds")
    parser.add_argument("--past", action="store_true", help="begin with what stragd still holds")


def run(arguments: argparse.Namespace) -> int:
    """Record until --windows, --seconds or Ctrl-C. Raises ControlError."""
    with ControlClient(arguments.socket) as client:
        extra = {} if arguments.job is None else {"job": arguments.job}
        after = 0 if arguments.past else client.request("windows", **extra)["after"]
        try:
            with arguments.file.open("xb") as file:
                recorder = _Recorder(client, file, extra, after)
                with contextlib.suppress(KeyboardInterrupt):  # the usual end
                    recorder.run(arguments.windows, arguments.seconds)
        except FileExistsError:
            raise ControlError(
                f"{arguments.file}: it exists already; choose another name"
            ) from None
        except OSError as error:
            raise ControlError(f"{arguments.file}: {error.strerror or error}") from None
    print(f"{recorder.written} windows in {clean(arguments.file)}")
    return 0


class _Recorder:
    """One recording that is under way."""

    def __init__(
        self, client: ControlClient, file: IO[bytes], extra: dict[str, str], after: int
    ) -> None:
        from stragd.replay import windows

        self.written = 0
        self._entry = windows.entry
        self._client, self._file, self._extra, self._after = client, file, extra, after
        self._known: set[tuple[str, int, str, str]] = set()
        self._size = file.write(windows.header())

    def run(self, windows: int | None, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            part = self._client.request("windows", after=self._after, **self._extra)
            try:
                self._after = int(part["after"])
                if part["missed"]:
                    print(
                        f"stragctl: {part['missed']} windows were gone before they were read",
                        file=sys.stderr,
                    )
                for window in part["windows"]:
                    self._write(window, part)
                    if self.written == windows:
                        return
            except (KeyError, TypeError, ValueError, binascii.Error):
                raise ControlError(
                    f"{self._client.path}: the answer has another shape than this stragctl knows "
                    "(install one version of both)"
                ) from None
            self._file.flush()
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return
            if not part["windows"]:
                time.sleep(min(POLL_SECONDS, left))

    def _write(self, window: dict[str, Any], part: dict[str, Any]) -> None:
        key = window["job"]
        job = next((job for job in part["jobs"] if job["key"] == key), None)
        if job is None:
            return  # it has ended and was forgotten in between
        about: dict[str, Any] = {
            "job": key, "name": job["name"], "world_size": job["world_size"],
        }  # fmt: skip
        for rank in part["ranks"]:
            known = (rank["job"], rank["rank"], rank["host"], rank["class"])
            if rank["job"] == key and known not in self._known:
                self._known.add(known)
                about.setdefault("hosts", {})[rank["rank"]] = rank["host"]
                number = zlib.crc32(rank["class"].encode())
                about.setdefault("classes", {})[number] = rank["class"]
        self._size += self._file.write(self._entry(about, base64.b64decode(window["rows"])))
        self.written += 1
        if self._size > MAX_BYTES:
            raise ControlError(f"the recording has reached {MAX_BYTES >> 30} GiB: it ends here")
