"""The scorer role of a job as a lease: what it says, when it is renewed, when it is given up.

Nobody's wall clock counts. Who holds a lease renews it, measures from before the renewal was sent,
and gives up earlier than anybody else may take it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

RENEW_AFTER, RETRY_AFTER, GIVE_UP_AFTER = 1 / 3, 1 / 12, 0.8
"""Of a lease."""


class Role:
    """A lease that this node holds."""

    def __init__(self, epoch: int, renewed: float) -> None:
        self.epoch, self.renewed = epoch, renewed
        self.task: asyncio.Task[None] | None = None  # that renews it
        self.wake = asyncio.Event()  # there is something to be kept
        self.keeping = asyncio.Lock()  # who gives the role back waits for what is being kept
        self._state: tuple[int, bytes] | None = None  # for whoever comes next, not yet kept

    def put_state(self, number: int, state: bytes) -> None:
        """What is to be kept, and its number; the last one counts."""
        self._state = number, state
        self.wake.set()

    @contextlib.asynccontextmanager
    async def taken_state(self) -> AsyncIterator[tuple[int, bytes] | None]:
        """What is to be kept; it is so still where that fails, unless there is newer by then."""
        async with self.keeping:
            taken, self._state = self._state, None
            try:
                yield taken
            except BaseException:
                self._state = self._state or taken
                raise

    def has_state(self) -> bool:
        """Whether there is something to be kept."""
        return self._state is not None


class Holder(Protocol):
    """What ``hold`` needs of a transport."""

    errors: tuple[type[Exception], ...]

    def _hangs(self, seconds: float) -> bool: ...


async def hold(
    transport: Holder,
    role: Role,
    seconds: float,
    held: Callable[[], bool],
    keep: Callable[[], Awaitable[None]],
    renew: Callable[[], Awaitable[bool]],
) -> None:
    """Renew a lease of ``seconds`` and keep its state beside that; returns once it is lost.

    ``renew`` is False where somebody else holds it. A main loop that hangs loses it too.
    """
    loop = asyncio.get_running_loop()
    keeping: asyncio.Task[None] | None = None

    async def keep_all() -> None:
        with contextlib.suppress(*transport.errors):
            while role.has_state():
                await asyncio.wait_for(keep(), seconds)

    try:
        while held():
            left = role.renewed + RENEW_AFTER * seconds - loop.time()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(role.wake.wait(), max(left, RETRY_AFTER * seconds))
            role.wake.clear()
            if not held() or transport._hangs(seconds):
                return
            # Beside the renewals: scores that are long on their way must not cost the role.
            if role.has_state() and (keeping is None or keeping.done()):
                keeping = asyncio.create_task(keep_all())
            if loop.time() - role.renewed >= RENEW_AFTER * seconds:
                begun = loop.time()
                with contextlib.suppress(*transport.errors):
                    if not await asyncio.wait_for(renew(), seconds / 3):
                        return
                    role.renewed = begun
            if loop.time() - role.renewed > GIVE_UP_AFTER * seconds:
                return
    finally:
        if keeping is not None:
            keeping.cancel()


def lease(node: str, epoch: int, beat: str = "") -> bytes:
    """What a lease says; ``beat`` makes each renewal another value, where nothing else does."""
    return json.dumps({"node": node, "epoch": epoch, **({"beat": beat} if beat else {})}).encode()


def holder(value: bytes | None) -> tuple[str, int]:
    """(node, epoch) that a lease names; ("", epoch of the last one) for a free one or garbage."""
    try:
        said = json.loads(value or b"{}")
        node, epoch = said.get("node", ""), said.get("epoch", 0)
    except (ValueError, AttributeError, RecursionError):
        return "", 0
    if not isinstance(node, str) or type(epoch) is not int or not 0 <= epoch < 1 << 62:
        return "", 0
    return node, epoch
