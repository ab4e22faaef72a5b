"""Which node speaks for which rank: the first one that does, until it has been silent for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILENT_WINDOWS = 3
"""Windows without a report after which a rank is free: it may have moved to another node."""


class _Claim:
    """What one message of a node was the last to claim; ``cell`` is the last window that did."""

    __slots__ = ("cell", "node")

    def __init__(self, node: str, cell: int) -> None:
        self.node, self.cell = node, cell


class Claims:
    """Ranks of one job and the nodes that host them."""

    def __init__(self) -> None:
        self._holders: dict[int, _Claim] = {}  # by rank
        self._whole: dict[str, tuple[bytes, _Claim]] = {}  # ranks of a node, all of one claim

    def take(self, node: str, ranks: NDArray[np.uint32], cell: int) -> list[int]:
        """Places of the ranks that this node may not speak for in window ``cell``."""
        key = ranks.tobytes()
        known = self._whole.get(node)
        if known is not None and known[0] == key:  # as nearly always
            known[1].cell = max(known[1].cell, cell)
            return []
        holders, refused, claim = self._holders, list[int](), _Claim(node, cell)
        for place, rank in enumerate(ranks.tolist()):
            holder = holders.get(rank)
            if holder is None or (holder.node == node and cell >= holder.cell):
                holders[rank] = claim
            elif holder.node == node:
                pass
            elif cell - holder.cell > SILENT_WINDOWS:
                self._whole.pop(holder.node, None)
                holders[rank] = claim
            else:
                refused.append(place)
        if all(holders[rank] is claim for rank in ranks.tolist()):
            self._whole[node] = key, claim
        else:
            self._whole.pop(node, None)
        return refused

    def node(self, rank: int) -> str:
        """Who hosts a rank, "" where nobody does."""
        holder = self._holders.get(rank)
        return holder.node if holder is not None else ""

    def hosted(self, world: int) -> int:
        """How many of a job's ranks any node has ever spoken for."""
        return sum(rank < world for rank in self._holders)

    def save(self) -> dict[str, list[int]]:
        """Ranks and their last windows by node."""
        saved: dict[str, list[int]] = {}
        for rank, holder in self._holders.items():
            saved.setdefault(holder.node, []).extend((rank, holder.cell))
        return saved

    def restore(self, saved: dict[str, list[int]]) -> None:
        """Take over what ``save`` gave."""
        self._whole = {}
        self._holders = {
            rank: _Claim(node, cell)
            for node, flat in saved.items()
            for rank, cell in zip(flat[::2], flat[1::2], strict=True)
        }
