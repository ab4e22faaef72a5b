"""Fixtures that more than one file uses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stragd.discovery import Identifier
from tests.needs import lacking
from tests.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


@pytest.fixture
def identifier() -> Identifier:
    return Identifier()


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        lacking("reading a ring through /proc/PID/map_files needs root")
