"""What happened to findings, newest last: the timeline of `stragctl report`; bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from stragd.finding import Finding, iso_time
from stragd.findings import Transition
from stragd.outputs.snapshot import Event

KEPT = 500
"""Events of all jobs; a finding's life has about five."""


class History:
    """Written by the main loop; ``clock`` is CLOCK_REALTIME in nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=KEPT)

    def transition(self, transition: Transition) -> None:
        """A finding entered another state."""
        finding = transition.finding
        self._add(finding, finding["state"], transition.reason)

    def cause(self, finding: Finding) -> None:
        """The cause of an open finding has come to be known, or is another now."""
        evidence = finding["cause"]["evidence"]
        text = finding["cause"]["name"] + (f": {evidence[0]}" if evidence else "")
        self._add(finding, "cause", text)

    def events(self) -> list[Event]:
        """All that are kept, oldest first."""
        return list(self._events)

    def _add(self, finding: Finding, what: str, text: str) -> None:
        self._events.append(
            {
                "time": iso_time(self._clock()),
                "job": finding["job"]["key"],
                "finding": finding["id"],
                "kind": finding["kind"],
                "subject": finding["subject"],
                "what": what,
                "text": text,
            }
        )
