"""Which node speaks for which rank: the first one that does, until it has been silent for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SILENT_WINDOWS = 3
"""Windows without a report after which a rank is free: it may have moved to another node."""


class Claims:
    """Ranks of one job and the nodes that host them."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, int]] = {}  # rank -> (node, last cell that had it)

    def take(self, node: str, ranks: NDArray[np.uint32], cell: int) -> NDArray[np.bool_]:
        """Which of the ranks this node may speak for in window ``cell``."""
        allowed = np.ones(len(ranks), dtype=np.bool_)
        for place, rank in enumerate(ranks.tolist()):
            holder = self._holders.get(rank)
            if holder is not None and holder[0] != node and cell - holder[1] <= SILENT_WINDOWS:
                allowed[place] = False
                continue
            last = cell if holder is None or holder[0] != node else max(cell, holder[1])
            self._holders[rank] = (node, last)
        return allowed

    def node(self, rank: int) -> str:
        """Who hosts a rank, "" where nobody does."""
        return self._holders.get(rank, ("", 0))[0]

    def hosted(self, world: int) -> int:
        """How many of a job's ranks any node has ever spoken for."""
        return sum(rank < world for rank in self._holders)

    def save(self) -> dict[str, list[int]]:
        """Ranks and their last windows by node."""
        saved: dict[str, list[int]] = {}
        for rank, (node, cell) in self._holders.items():
            saved.setdefault(node, []).extend((rank, cell))
        return saved

    def restore(self, saved: dict[str, list[int]]) -> None:
        """Take over what ``save`` gave."""
        self._holders = {
            rank: (node, cell)
            for node, flat in saved.items()
            for rank, cell in zip(flat[::2], flat[1::2], strict=True)
        }
