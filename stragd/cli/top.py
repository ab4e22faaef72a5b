"""`stragctl top`: the session (what the person sees and chose) and the loop around it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from argparse import Namespace
from dataclasses import replace
from typing import Any, cast

from stragd.cli.client import ControlClient, ControlError
from stragd.cli.cluster import ClusterSession
from stragd.cli.numbers import age
from stragd.cli.ranktable import SORTS
from stragd.cli.sampler import Sample, Sampler
from stragd.cli.screen import View, job_of, once, ranks_of, screen
from stragd.cli.terminal import Terminal, speaks_utf8, wants_colour
from stragd.cli.text import Line, Span, clean, cut_line, wrap
from stragd.outputs.snapshot import Job, Top

PIPE_WIDTH = 100  # columns where there is no terminal and no COLUMNS
SHAPE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
WRONG_SHAPE = "the answer has another shape than expected (stragd and stragctl must be one version)"
# The daemon makes a picture about once a second; an older one means that its main loop hangs.
_UNCHANGED_LIMIT = 10.0


def pick_job(jobs: list[Job], wanted: str) -> Job:
    """The job with this key, name or unique beginning of a key; raises `ControlError`."""
    for match in (
        [j for j in jobs if j["key"] == wanted],
        [j for j in jobs if j["name"] == wanted],
        [j for j in jobs if wanted and j["key"].startswith(wanted)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            keys = ", ".join(clean(j["key"], 16) for j in match[:8])
            raise ControlError(f"job {wanted!r} is not unique (give a key: {keys})", "not-found")
    there = ", ".join(clean(j["name"] or j["key"], 40) for j in jobs[:8]) or "none"
    raise ControlError(f"no job {wanted!r} on this node (jobs: {there})", "not-found")


class Session:
    """The newest picture, how old it is, and what the person chose; no terminal in here."""

    verb = "top"

    def __init__(self, interval: float, view: View) -> None:
        self.view = view
        self.ended = False
        self._limit = max(3.0, 2.5 * interval)
        self._top: Top | None = None
        self._held: Top | None = None  # what a paused screen shows
        self._answered = 0.0  # CLOCK_MONOTONIC of the last good answer
        self._changed = 0.0  # and of the last one with a new time
        self._problem = ""
        self._rows = 10

    def receive(self, sample: Sample) -> None:
        """Take an answer or the reason why there is none."""
        self._problem = sample.problem
        if sample.answer is None:
            return
        top = cast(Top, sample.answer)
        if self._top is None or self._top.get("time") != top.get("time"):
            self._changed = sample.at
        self._answered = sample.at
        self._top = top

    def lines(self, width: int, height: int, now: float) -> list[Line]:
        """The picture at ``now`` (CLOCK_MONOTONIC); never raises over what an answer holds."""
        top = self._held if self.view.paused and self._held is not None else self._top
        silent = now - self._answered
        stale = ""
        if self._problem or silent > self._limit:
            stale = f"no answer from stragd for {age(silent)}"
        elif now - self._changed > _UNCHANGED_LIMIT:
            stale = f"stragd's picture is {age(now - self._changed)} old"
        view = replace(self.view, stale=stale, problem=self._problem)
        try:
            if top is None:
                raise TypeError
            self._rows = max(1, height // 2)
            return screen(top, width, height, view)
        except SHAPE_ERRORS:
            text = [stale, self._problem or WRONG_SHAPE, "q: quit"]
            parts = [part for item in text for part in wrap(clean(item, 1000), max(1, width))]
            return [cut_line([Span(part, "warn")], width) for part in parts][:height]

    def page(self, answer: dict[str, Any], width: int) -> list[str]:
        """An answer on paper."""
        return once(cast(Top, answer), width, replace(self.view, live=False))

    def press(self, key: str) -> None:
        """Act on one key; keys without a meaning are ignored."""
        view = self.view
        if key == "q":
            self.ended = True
        elif key == "?":
            self.view = replace(view, help=not view.help)
        elif key == "esc":
            follow = replace(view, selected=None, job=None)
            self.view = replace(view, help=False) if view.help else follow
        elif key == "p":
            self.view = replace(view, paused=not view.paused)
            self._held = self._top
        elif key == "s":
            place = (SORTS.index(view.sort) + 1) % len(SORTS)
            self.view = replace(view, sort=SORTS[place])
        else:
            # Where an answer has another shape there is nothing to move in: the picture says so.
            with contextlib.suppress(*SHAPE_ERRORS):
                self._move(key)

    def _move(self, key: str) -> None:
        top = self._held if self.view.paused and self._held is not None else self._top
        job = job_of(top, self.view) if top is not None else None
        if top is None or job is None:
            return
        job_step = {"l": 1, "right": 1, "tab": 1, "h": -1, "left": -1, "backtab": -1}.get(key)
        if job_step is not None:
            keys = [j["key"] for j in top["jobs"]]
            chosen = keys[(keys.index(job["key"]) + job_step) % len(keys)]
            self.view = replace(self.view, job=chosen, selected=None)
            return
        ranks = [(r["rank"], r["pid"]) for r in ranks_of(top, job, self.view)]
        far = len(ranks)
        step = {
            "j": 1, "down": 1, "k": -1, "up": -1, "pgdn": self._rows, "pgup": -self._rows,
            "home": -far, "end": far,
        }.get(key)  # fmt: skip
        if step is None or not ranks:
            return
        if self.view.selected in ranks:
            place = ranks.index(self.view.selected) + step
        else:
            place = far - 1 if key == "end" else 0
        chosen_rank = ranks[max(0, min(far - 1, place))]
        # A choice stays with its job also when another one becomes the costliest.
        self.view = replace(self.view, selected=chosen_rank, job=job["key"])


def run(arguments: Namespace) -> int:
    """The command; raises `ControlError` where the first answer does not come."""
    verb = "cluster" if arguments.cluster else "top"
    with ControlClient(arguments.socket) as client:
        first = client.request(verb)
    if arguments.json:
        print(json.dumps(first, indent=2))
        return 0
    utf8 = speaks_utf8(os.environ)
    session: Session | ClusterSession
    try:
        if arguments.cluster:
            session = ClusterSession(arguments.interval, utf8)
        else:
            view = View(utf8=utf8)
            if arguments.job is not None:
                chosen = pick_job(cast(Top, first)["jobs"], arguments.job)
                view = replace(view, job=chosen["key"])
            session = Session(arguments.interval, view)
        if arguments.once or not sys.stdout.isatty():
            _print(session, first)
            return 0
    except SHAPE_ERRORS:
        raise ControlError(f"{arguments.socket}: {WRONG_SHAPE}") from None
    session.receive(Sample(time.monotonic(), first, ""))
    if os.environ.get("TERM", "dumb") == "dumb":
        return _scroll(arguments, session)
    return _live(arguments, session, utf8)


def _print(session: Session | ClusterSession, answer: dict[str, Any]) -> None:
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    print("\n".join(session.page(answer, max(40, width))))


def _live(arguments: Namespace, session: Session | ClusterSession, utf8: bool) -> int:
    sampler = Sampler(arguments.socket, arguments.interval, session.verb)
    colour = wants_colour(os.environ, arguments.no_color)
    old_fd = signal.set_wakeup_fd(sampler.signal_fd, warn_on_full_buffer=False)
    sampler.start()
    try:
        with Terminal(colour, utf8) as terminal:
            while not session.ended and not terminal.ended:
                width, height = terminal.size()
                terminal.draw(session.lines(width, height, time.monotonic()))
                waits = [sampler.wake_fd]
                if terminal.key_fd >= 0:
                    waits.append(terminal.key_fd)
                # Once a second also without news: an age on the screen must not stand still.
                limit = 0.05 if terminal.waits_for_rest else 1.0
                ready, _, _ = select.select(waits, [], [], limit)
                if terminal.key_fd in ready:
                    keys = terminal.keys()
                else:
                    keys = terminal.rest() if terminal.waits_for_rest else []
                for key in keys:
                    session.press(key)
                sample = sampler.take()
                if sample is not None:
                    session.receive(sample)
    except KeyboardInterrupt:
        pass
    finally:
        sampler.stop()
        signal.set_wakeup_fd(old_fd)
    return 0


def _scroll(arguments: Namespace, session: Session | ClusterSession) -> int:
    """A terminal that cannot move its cursor gets one picture below the other."""
    client = ControlClient(arguments.socket)
    try:
        while True:
            try:
                _print(session, client.request(session.verb))
            except ControlError as error:
                print(f"no answer from stragd: {clean(error, 1000)}")
            except SHAPE_ERRORS:
                print(WRONG_SHAPE)
            print(flush=True)
            time.sleep(arguments.interval)
    except KeyboardInterrupt:
        return 0
    finally:
        client.close()
