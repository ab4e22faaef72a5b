"""`stragctl replay`: a recording through the scorer, without a daemon."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stragd.cli import answers, top
from stragd.cli.terminal import speaks_utf8
from stragd.cli.text import clean, to_ascii, wrap

if TYPE_CHECKING:
    from stragd.replay.run import Replay

MAX_WINDOW_STEPS = 100_000


def _window_steps(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= MAX_WINDOW_STEPS:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1 and {MAX_WINDOW_STEPS}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `replay` takes."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a recording, or a directory with one trace a rank"
    )
    parser.add_argument(
        "--window-steps", type=_window_steps, metavar="N",
        help="recorded steps per window (default: as live, fewer where the recording is short)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; 1 with one line on stderr where the file cannot be replayed."""
    try:
        from stragd.config import Config
        from stragd.replay.detect import open_recording
        from stragd.replay.recording import RecordingError
        from stragd.replay.run import replay
    except ImportError as error:
        return _fail(f"the native core is not built: {error}; run make setup")
    try:
        result = replay(open_recording(arguments.file, arguments.window_steps), Config().scorer())
    except RecordingError as error:
        return _fail(str(error))
    if arguments.json:
        print(json.dumps(result, indent=2, allow_nan=False))
        return 0
    width = max(40, shutil.get_terminal_size((top.PIPE_WIDTH, 24)).columns)
    shown = result if speaks_utf8(os.environ) else to_ascii(result)
    print("\n".join(lines(arguments.file.name or str(arguments.file), shown, width)))
    return 0


def _fail(message: str) -> int:
    print(f"stragctl: {clean(message, 2000)}", file=sys.stderr)
    return 1


def lines(name: str, result: Replay, width: int) -> list[str]:
    """What the recording is, then the findings as `findings` shows them."""
    parts = [result["format"], _count(result["ranks"], "rank")]
    if result["steps"]:
        parts.append(_count(result["steps"], "step"))
    if result["windows"]:
        each = result["steps_per_window"]
        windows = _count(result["windows"], "window")
        parts.append(
            f"{windows} of {_count(each, 'step')}" if each and result["steps"] else windows
        )
    if result["refused_rows"]:
        parts.append(f"{_count(result['refused_rows'], 'row')} refused")
    text = [*wrap(f"{clean(name, 200)}: {', '.join(parts)}", width, "  ")]
    for note in result["notes"]:
        text += wrap(f"note: {clean(note)}", width, "  ")
    return [*text, "", *answers.findings_lines(result["findings"], result["abstentions"], width)]


def _count(amount: int, one: str) -> str:
    return f"{amount} {one}{'' if amount == 1 else 's'}"
