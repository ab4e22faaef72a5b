"""What can be wrong with a GPU or a NIC as its driver shows it, and its healthy twin: the form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.made_up_node import MLX5, Rank

Of = Callable[[Rank], None]
Change = Callable[[Rank, list[Rank]], None]
"""(the slow rank, all ranks of its job)"""


@dataclass(frozen=True)
class Condition:
    """What is wrong with a rank's device, and what must be said of it."""

    name: str
    cause: str
    words: str
    """In the first line of the evidence."""
    inject: Change
    twin: Change
    where: str = "machine"
    hardware: str = MLX5
    spoils: bool = False
    """The node's readers are of no use any more afterwards."""


def only(*changes: Of) -> Change:
    def made(rank: Rank, _: list[Rank]) -> None:
        for change in changes:
            change(rank)

    return made


def everywhere(*changes: Of) -> Change:
    """The same on every rank of the job: it tells nobody apart."""

    def made(_: Rank, ranks: list[Rank]) -> None:
        for rank in ranks:
            for change in changes:
                change(rank)

    return made


def nothing(_: Rank, __: list[Rank]) -> None:
    """Healthy."""


def same(name: str, cause: str, words: str, *changes: Of, **more: str) -> Condition:
    """A condition whose twin is that every rank shows it."""
    return Condition(name, cause, words, only(*changes), everywhere(*changes), **more)  # type: ignore[arg-type]
