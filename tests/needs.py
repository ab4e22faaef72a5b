"""What a test needs of the machine: without it a test is skipped, or fails where CI promises it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """End the test because the machine lacks something."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def module(name: str) -> ModuleType:
    """A module, without which the test ends."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacking(str(error))
