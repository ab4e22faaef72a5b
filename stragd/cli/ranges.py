"""Numbers as a person may type them in an option: argparse types with bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(low: float, high: float, unit: float = 1.0, of: str = "") -> Callable[[str], float]:
    """Reads a number of ``of`` between ``low`` and ``high``; gives it over ``unit``."""
    bounds = f"between {low:g} and {high:g} {of}".rstrip()

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}")
        return value / unit

    return parse
