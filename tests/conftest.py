"""Fixtures that more than one file uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stragd.discovery import Identifier
from tests.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


@pytest.fixture
def identifier() -> Identifier:
    return Identifier()
