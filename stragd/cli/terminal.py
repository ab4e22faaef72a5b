"""The terminal: raw keys in, whole pictures out, everything put back at the end.

Plain ANSI sequences that every terminal since the VT100 family knows; no curses, so that the
picture stays a list of lines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from types import TracebackType

from stragd.cli.text import Line, paint

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # other screen, no cursor, no wrap at the edge
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "right", b"\x1bOC": "right", b"\x1b[D": "left", b"\x1bOD": "left",
    b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x1b[Z": "backtab", b"\t": "tab", b"\x03": "q", b"\x04": "q", b"\x0c": "redraw",
}  # fmt: skip


def speaks_utf8(environment: Mapping[str, str]) -> bool:
    """Whether the terminal shows bar glyphs: a UTF-8 locale that the person chose.

    Python itself sets LC_CTYPE=C.UTF-8 in a C locale, so that value alone proves nothing. The
    kernel's console is UTF-8 but its fonts have no bars.
    """
    if environment.get("TERM") == "linux":
        return False
    ctype = environment.get("LC_CTYPE", "")
    if ctype == "C.UTF-8":
        ctype = ""
    name = environment.get("LC_ALL") or ctype or environment.get("LANG", "")
    return name.lower().replace("-", "").partition("@")[0].endswith("utf8")


def wants_colour(environment: Mapping[str, str], refused: bool) -> bool:
    """Colour unless --no-color, NO_COLOR (no-color.org) or a terminal without any."""
    return not refused and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def split_keys(data: bytes) -> tuple[list[str], bytes]:
    """Names of the keys in ``data`` and the beginning of a sequence that is not whole yet."""
    keys: list[str] = []
    while data:
        match = next((s for s in _SEQUENCES if data.startswith(s)), None)
        if match is not None:
            keys.append(_SEQUENCES[match])
            data = data[len(match) :]
        elif data[0] != 0x1B:
            if 0x20 <= data[0] < 0x7F:
                keys.append(chr(data[0]))
            data = data[1:]
        elif len(data) == 1:
            return keys, data
        elif data[1] in b"[O":
            # An unknown or unfinished sequence ends with a byte from @ to ~.
            end = next((i for i in range(2, len(data)) if 0x40 <= data[i] <= 0x7E), None)
            if end is None:
                return keys, data if len(data) < 32 else b""
            data = data[end + 1 :]
        else:
            keys.append("esc")
            data = data[1:]
    return keys, b""


class Terminal:
    """Owns the terminal between enter and exit, over Ctrl-Z as well."""

    def __init__(self, colour: bool, utf8: bool) -> None:
        self.colour = colour
        self.encoding = "utf-8" if utf8 else "ascii"
        self.ended = False  # a signal asked to end
        self._out = sys.stdout.fileno()
        self._in = -1
        self._opened = False
        self._mode: list[object] | None = None
        self._handlers: dict[int, object] = {}
        self._rest = b""
        self._drawn: tuple[int, int] | None = None  # size of the last picture
        self._stopped = False

    def __enter__(self) -> Terminal:
        if sys.stdin is not None and sys.stdin.isatty():
            self._in = sys.stdin.fileno()
        else:
            with contextlib.suppress(OSError):
                self._in = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
                self._opened = True
        for number, handler in (
            (signal.SIGWINCH, self._on_resize),
            (signal.SIGTERM, self._on_end),
            (signal.SIGHUP, self._on_end),
            (signal.SIGTSTP, self._on_stop),
            (signal.SIGCONT, self._on_continue),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        with contextlib.suppress(OSError, termios.error):
            self._give_back()
        if self._opened:
            os.close(self._in)

    @property
    def key_fd(self) -> int:
        """Descriptor to wait on for keys, -1 where there are none."""
        return self._in

    @property
    def waits_for_rest(self) -> bool:
        """An escape sequence has begun: a short wait tells it from the Esc key."""
        return bool(self._rest)

    def size(self) -> tuple[int, int]:
        """Columns and lines, (80, 24) where the terminal does not say."""
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        return width or 80, height or 24

    def keys(self) -> list[str]:
        """Names of the keys pressed since; ends the session when the terminal is gone."""
        try:
            data = os.read(self._in, 1024)
        except OSError:
            data = b""
        if not data:
            self.ended = True
        keys, self._rest = split_keys(self._rest + data)
        if "redraw" in keys:
            self._drawn = None
        return keys

    def rest(self) -> list[str]:
        """Called when nothing followed an escape: it was the key."""
        key = self._rest
        self._rest = b""
        return ["esc"] if key == b"\x1b" else []

    def draw(self, lines: Sequence[Line]) -> None:
        """Show ``lines``, at most as many as the terminal has."""
        size = self.size()
        parts = [] if size == self._drawn else ["\x1b[2J"]
        self._drawn = size
        # Erase before writing: after a full line the cursor stands on its last character.
        for row, line in enumerate(lines, 1):
            parts.append(f"\x1b[{row};1H\x1b[2K{paint(line, self.colour)}")
        if len(lines) < size[1]:
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode(self.encoding, "replace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            self.ended = True

    def _take(self) -> None:
        if self._in >= 0:
            mode = termios.tcgetattr(self._in)
            self._mode = list(mode)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6][termios.VMIN] = 1
            mode[6][termios.VTIME] = 0
            termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        self._write(_ENTER)
        self._drawn = None

    def _give_back(self) -> None:
        self._write(_LEAVE)
        if self._in >= 0 and self._mode is not None:
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._mode)  # type: ignore[arg-type]

    def _on_resize(self, number: int, frame: object) -> None:
        pass  # the wakeup descriptor ends the wait: the next picture has the new size

    def _on_end(self, number: int, frame: object) -> None:
        self.ended = True

    def _on_stop(self, number: int, frame: object) -> None:
        self._give_back()
        self._stopped = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_continue(self, number: int, frame: object) -> None:
        if self._stopped:
            self._stopped = False
            self._take()
