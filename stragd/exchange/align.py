"""Windows of the nodes of one job, put beside each other: by step numbers, else by time.

Every node cuts its windows by itself, counts steps from where it began to watch, and has clocks of
its own. A *cell* is one window of the whole job. A node's message goes to the cell after its last
one, as long as its steps (or times) agree with that; otherwise, and at first, to the nearest one.
Times are of the receiver's monotonic clock: arrival minus the age that the message gives itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stragd.exchange.message import ROW, Extent

if TYPE_CHECKING:
    from numpy.typing import NDArray

STICKY = 0.75
"""Windows that a message may be away from the cell after its node's last one."""
SAME_COUNT = 0.3
"""Windows that two nodes' step counts may seem apart, by time, and still be one count."""
MAX_OPEN = 8
SILENT_CELLS = 3
"""Cells without a node after which nobody waits for it."""


@dataclass
class Span:
    """A stretch of a job: in steps where they are inferred, and in the receiver's seconds."""

    steps: tuple[int, int] | None
    begin: float
    end: float

    def middle(self, by_steps: bool) -> float:
        if by_steps and self.steps is not None:
            return (self.steps[0] + self.steps[1]) / 2
        return (self.begin + self.end) / 2

    def width(self, by_steps: bool) -> float:
        if by_steps and self.steps is not None:
            return self.steps[1] - self.steps[0] + 1.0
        return max(self.end - self.begin, 1e-3)


class Part(NamedTuple):
    """What a node brings to a cell."""

    rows: NDArray[np.void]
    offset: int  # the job's step number minus the node's
    ended_ns: int  # CLOCK_REALTIME


@dataclass
class Cell:
    """One window of the whole job; ``parts`` are by node."""

    number: int
    span: Span
    opened: float
    parts: dict[str, Part] = field(default_factory=dict)
    ranks: int = 0  # in the parts

    def put(self, node: str, part: Part) -> None:
        self.parts[node] = part
        self.ranks += len(part.rows)

    def rows(self) -> NDArray[np.void]:
        """All of them by rank, numbered and timed as the job's."""
        parts = self.parts.values()
        # Joined as bytes: numpy compares all names and types of every two parts.
        rows = np.frombuffer(bytearray(b"".join(part.rows.tobytes() for part in parts)), dtype=ROW)
        counts = [len(part.rows) for part in parts]
        offsets = np.repeat(np.array([part.offset for part in parts], np.int64), counts)
        rows["window"] = self.number
        rows["first_step"] += offsets.view(np.uint64)
        rows["last_step"] += offsets.view(np.uint64)
        rows["time_ns"] = np.repeat(np.array([part.ended_ns for part in parts], np.uint64), counts)
        return rows[np.argsort(rows["rank"], kind="stable")]


@dataclass
class _Node:
    instance: int
    window: int  # of the node, last one that was placed
    cell: int
    offset: int  # the job's step number minus the node's
    phase: float = 0.0  # seconds that its windows end after those that open the cells


class Alignment:
    """The open cells of one job, and where each node has come to."""

    def __init__(self, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        self.scored = -1
        """Number of the last cell that was given out."""
        self._first = 0
        self._cells: dict[int, Cell] = {}
        self._nodes: dict[str, _Node] = {}
        self._anchor: tuple[int, Span] | None = None  # newest cell, also after it was scored
        self._timeless = False  # the anchor is another scorer's: its times mean nothing here
        self._next_due = float("-inf")  # before that nothing is, unless something comes

    def place(
        self, node: str, instance: int, extent: Extent, end: float, now: float
    ) -> tuple[Cell | None, int, str]:
        """The cell that a node's rows belong to, and the job's step number minus the node's.

        Or None, and why there is none ("late", "duplicate"). ``end`` is when the window ended,
        receiver's clock. It is for the caller to put the rows into the cell.
        """
        window = extent.window
        self._next_due = float("-inf")
        known = self._nodes.get(node)
        if known is not None and known.instance != instance:
            known = None
        span = Span(None, end - extent.seconds, end)
        if extent.inferred:
            span.steps = (extent.first_step, extent.last_step)
        offset = self._offset(span, window, known)
        if span.steps is not None:
            span.steps = (span.steps[0] + offset, span.steps[1] + offset)
        number = self._number(span, window, known)
        self._nodes[node] = placed = known or _Node(instance, window, number, offset)
        placed.offset = offset
        if window >= placed.window:
            placed.window, placed.cell = window, number
        opener = self._opener(number)
        if opener is not None:
            behind = max(span.end - opener.end, 0.8 * placed.phase, 0.0)
            placed.phase = min(behind, opener.width(False))
        if number <= self.scored:
            return None, offset, "late"
        cell = self._cells.get(number)
        if cell is None:
            cell = self._cells[number] = Cell(number, span, now)
            if self._anchor is None:
                self._first = number
            if self._anchor is None or number > self._anchor[0]:
                self._anchor, self._timeless = (number, span), False
        elif node in cell.parts:
            return None, offset, "duplicate"
        return cell, offset, ""

    def due(self, world: int, now: float) -> list[Cell]:
        """Cells to be scored now, in their order: all has come, or the deadline has."""
        ready: list[Cell] = []
        waiting: list[Cell] = []
        if now < self._next_due:
            return ready
        self._next_due = float("inf")
        for number in sorted(self._cells):
            cell = self._cells[number]
            waiting.append(cell)
            due = self._due_at(cell, world, now)
            if now >= due:
                ready += waiting
                waiting = []
            else:
                self._next_due = min(self._next_due, due)
        while len(waiting) > MAX_OPEN:
            ready.append(waiting.pop(0))
        for cell in ready:
            del self._cells[cell.number]
            self.scored = max(self.scored, cell.number)
        return ready

    def _due_at(self, cell: Cell, world: int, now: float) -> float:
        """When a cell is due or has to be looked at again, as far as is known now."""
        if cell.ranks >= world:
            return now
        missing = (
            node.phase
            for name, node in self._nodes.items()
            if name not in cell.parts and cell.number - node.cell <= SILENT_CELLS
        )
        deadline = cell.opened + self.deadline_seconds
        if now < deadline:
            # Nobody is missing who was there before, and those have had time to come.
            settled = cell.number >= self._first + SILENT_CELLS
            return now if settled and next(missing, None) is None else deadline
        return deadline + max(missing, default=0.0)

    @property
    def newest(self) -> int:
        """Number of the newest cell."""
        return self.scored if self._anchor is None else max(self.scored, self._anchor[0])

    def _opener(self, number: int) -> Span | None:
        """What the first message of a cell covered; None where it is not known (any more)."""
        if number in self._cells:
            return self._cells[number].span
        if self._anchor is not None and self._anchor[0] == number and not self._timeless:
            return self._anchor[1]
        return None

    def _offset(self, span: Span, window: int, known: _Node | None) -> int:
        """What makes the job's step numbers of a node's.

        A node keeps its count until it disagrees with another's for the same cell; a new one joins
        the count by time.
        """
        offset = known.offset if known is not None else 0
        if known is not None:
            reference, slack = self._opener(known.cell + window - known.window), STICKY
        else:
            reference, slack = self._anchor[1] if self._anchor else None, SAME_COUNT
        if span.steps is None or reference is None or reference.steps is None or self._timeless:
            return offset
        width = span.width(True)
        if known is not None:
            expected = float(reference.steps[1])
        else:
            expected = reference.steps[1] + (span.end - reference.end) * width / span.width(False)
        if abs(expected - (span.steps[1] + offset)) <= slack * width:
            return offset
        behind = (span.end - reference.end) * width / span.width(False)
        return max(round(reference.steps[1] + behind) - span.steps[1], -span.steps[0])

    def _number(self, span: Span, window: int, known: _Node | None) -> int:
        if self._anchor is None:
            return self.scored + 1
        newest, reference = self._anchor
        by_steps = span.steps is not None and reference.steps is not None
        expected = None if known is None else known.cell + window - known.window
        if self._timeless and not by_steps:
            return newest + 1 if expected is None else expected
        width = reference.width(by_steps)
        away = (span.middle(by_steps) - reference.middle(by_steps)) / width
        if expected is not None and abs(away - (expected - newest)) <= STICKY:
            return expected
        return newest + min(round(away), 2)

    def save(self) -> dict[str, Any]:
        """For another scorer; times are left out, they are of this machine's clock."""
        anchor = None
        if self._anchor is not None:
            anchor = [self._anchor[0], self._anchor[1].steps]
        nodes = {
            name: [node.instance, node.window, node.cell, node.offset]
            for name, node in self._nodes.items()
        }
        return {"scored": self.scored, "anchor": anchor, "nodes": nodes}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over what ``save`` gave."""
        self.scored = int(saved["scored"])
        self._nodes = {name: _Node(*map(int, four)) for name, four in saved["nodes"].items()}
        if saved["anchor"] is not None:
            number, steps = saved["anchor"]
            span = Span(None if steps is None else (int(steps[0]), int(steps[1])), 0.0, 1.0)
            # What was placed but not scored comes again: the nodes resend their last windows.
            self._anchor, self._timeless, self._first = (int(number), span), True, 0
