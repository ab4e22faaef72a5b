"""Which node speaks for which rank: the first one that does, until it has been silent for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILENT_WINDOWS = 3
"""Windows without a report after which a rank is free: it may have moved to another node."""


class Claims:
    """Ranks of one job and the nodes that host them."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, int]] = {}  # rank -> (node, last cell that had it)

    def take(self, node: str, ranks: NDArray[np.uint32], cell: int) -> list[int]:
        """Places of the ranks that this node may not speak for in window ``cell``."""
        holders, refused = self._holders, []
        for place, rank in enumerate(ranks.tolist()):
            holder = holders.get(rank)
            if holder is None:
                holders[rank] = (node, cell)
            elif holder[0] == node:
                if cell > holder[1]:
                    holders[rank] = (node, cell)
            elif cell - holder[1] > SILENT_WINDOWS:
                holders[rank] = (node, cell)
            else:
                refused.append(place)
        return refused

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
