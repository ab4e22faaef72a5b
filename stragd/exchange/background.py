"""What every transport over a network has: an asyncio loop in a thread of its own, and bounds.

The main loop's calls become tasks of that loop; what comes back lies in the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from stragd.exchange.interface import Event, Inbox

CLOSE_SECONDS = 3.0


class Background(ABC):
    """A transport's thread; ``_main`` is what runs there, until ``_stop`` is set."""

    errors: tuple[type[Exception], ...] = (OSError, asyncio.TimeoutError)
    """What may fail without being a fault of ours."""

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._inbox = Inbox(self._counters)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._random = random.Random()
        self._asked = 0.0  # when the main loop was here last: a role is not held for one that hangs
        self._ended = ""  # why the thread has, where it was not told to

    def start(self) -> None:
        """Begin to connect."""
        self._thread = threading.Thread(target=self._run, name="stragd-exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give every role back and end; at most a few seconds."""
        if self._thread is None:
            self._loop.close()
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_SECONDS + 1)

    def receive(self) -> list[Event]:
        """What came since the last call."""
        self._asked = time.monotonic()
        return self._inbox.take()

    def counters(self) -> dict[str, int]:
        """By what became of messages, since the start."""
        return dict(self._counters)

    @abstractmethod
    async def _main(self) -> None:
        """All that the thread does."""

    @abstractmethod
    async def _failed(self, error: Exception) -> None:
        """A piece of work has failed."""

    def _hangs(self, seconds: float) -> bool:
        """Whether the main loop has not been here for so long."""
        return time.monotonic() - self._asked > seconds

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """From the main loop: a piece of work for the thread."""
        try:
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._guard(work)))
        except RuntimeError:  # the loop has ended
            work.close()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """A piece of work whose failure costs no more than itself."""
        try:
            await work
        except self.errors as error:
            self._counters["dropped.error"] += 1
            await self._failed(error)

    async def _pause(self, seconds: float) -> None:
        """So long, or until the stop."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _jittered(self, seconds: float) -> float:
        """About so long, so that not all nodes come at once."""
        return self._random.uniform(0.5, 1.5) * seconds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._whole())
        except Exception as error:
            self._ended = f"the exchange has ended: {type(error).__name__}: {error}"
        finally:
            self._loop.close()

    async def _whole(self) -> None:
        try:
            await self._main()
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
