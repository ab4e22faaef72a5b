"""Numbers as people read them: durations in ms, shares, ages, counts, sparklines.

What is not known is "-", never 0. JSON output does not pass through here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "-"
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"


def number(value: object) -> float | None:
    """``value`` as a finite float, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:  # JSON knows integers without end
        return None
    return value if math.isfinite(value) else None


def ms(value: object, unit: bool = False) -> str:
    """Milliseconds with three or four digits: 0.34, 1.90, 12.3, 471.2, 12034."""
    amount = number(value)
    if amount is None:
        return UNKNOWN
    size = abs(amount)
    digits = 2 if size < 9.995 else 1 if size < 999.95 else 0
    text = f"{amount:.{digits}f}" if size < 1e7 else f"{amount:.1e}"
    return f"{text} ms" if unit else text


def percent(value: object, sign: bool = False) -> str:
    """A ratio as percent: 0.021 is 2.1 %."""
    ratio = number(value)
    if ratio is None:
        return UNKNOWN
    amount = ratio * 100
    digits = 1 if abs(amount) < 99.95 else 0
    return f"{amount:{'+' if sign else ''}.{digits}f} %"


def count(value: object) -> str:
    """A count in at most five characters: 999, 12.3k, 4.56M."""
    amount = number(value)
    if amount is None:
        return UNKNOWN
    if abs(amount) < 1e4:
        return f"{amount:.0f}" if abs(amount) >= 10 or amount == int(amount) else f"{amount:.1f}"
    steps = ((1e6, 1e3, "k"), (1e9, 1e6, "M"), (math.inf, 1e9, "G"))
    divisor, suffix = next((by, name) for limit, by, name in steps if abs(amount) < limit)
    scaled = amount / divisor
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f}{suffix}"


def size(value: object) -> str:
    """Bytes as KiB, MiB or GiB."""
    amount = number(value)
    if amount is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    digits = 0 if unit == "B" or abs(amount) >= 99.95 else 1
    return f"{amount:.{digits}f} {unit}"


def age(seconds: object) -> str:
    """A span of time: 4 s, 3 min, 2.2 h, 5 d."""
    amount = number(seconds)
    if amount is None:
        return UNKNOWN
    whole = max(0, int(amount))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole / 3600:.1f} h"
    return f"{whole // 86400} d"


def sparkline(values: Sequence[float | None], width: int, top: float, utf8: bool = True) -> str:
    """The last ``width`` values as bars from 0 to ``top``, newest on the right; unknown is blank.

    ``top`` is given by the caller so that all ranks of a job share one scale.
    """
    glyphs = BLOCKS if utf8 else ASCII_BLOCKS
    bars = []
    for value in list(values)[-width:] if width > 0 else []:
        level = number(value)
        if level is None:
            bars.append(" ")
        elif top <= 0:
            bars.append(glyphs[0])
        else:
            index = int(max(0.0, min(1.0, level / top)) * (len(glyphs) - 1) + 0.5)
            bars.append(glyphs[index])
    return "".join(bars).rjust(max(0, width))
