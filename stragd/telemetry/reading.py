"""What a driver's reader gives for one subject, and what every such reader can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

NO_PROCESS_LIST = "the driver lists no processes of this divided GPU: that takes CAP_SYS_ADMIN"
"""A note: which rank has which part of the GPU is not known."""


class Unavailable(Exception):
    """Nothing can be read on this machine; the text says why and what would help."""


@dataclass
class Reading:
    """Values of one subject since its last reading; becomes a Sample in the daemon."""

    subject: str
    model: str
    values: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    silent: str = ""


class Device(Protocol):
    """One GPU, whole or divided. Its calls may hang; they are made in a thread of the crew."""

    @property
    def subjects(self) -> Sequence[tuple[str, str]]:
        """Subject and model of the GPU, or of each part of it."""

    def read(self) -> list[Reading]:
        """One reading per subject, errors as ``silent``."""

    def processes(self) -> dict[str, list[int]]:
        """Process ids by subject."""


class Reader(Protocol):
    """All GPUs of one driver."""

    name: str

    @property
    def devices(self) -> Sequence[Device]:
        """Empty until ``open``."""

    def open(self) -> None:
        """Find the GPUs; Unavailable where the driver or its library is missing."""

    def events(self) -> dict[str, list[int]] | None:
        """Xid numbers since the last call by subject; None where the driver has no events."""
