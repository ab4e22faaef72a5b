"""Grafana's units as text, and ticks of an axis. A unit that is not known here is an error."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Scale = tuple[tuple[float, str], ...]


def _metric(name: str) -> _Scale:
    steps = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return tuple((size, f" {prefix}{name}") for size, prefix in steps)


def _counted(name: str) -> _Scale:
    tail = f" {name}" if name else ""
    return tuple(
        (size, prefix + tail)
        for size, prefix in ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1.0, ""))
    )


UNITS: dict[str, _Scale] = {
    "short": _counted(""),
    "percentunit": ((0.01, "%"),),
    "s": ((3600.0, " hours"), (60.0, " mins"), (1.0, " s"), (1e-3, " ms"), (1e-6, " µs")),
    "bytes": ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B")),
    "celsius": ((1.0, " °C"),),
    "hertz": _metric("Hz"),
    "watt": _metric("W"),
    "Bps": _metric("B/s"),
    "pps": _metric("p/s"),
    "eps": _counted("evt/s"),
    "mps": _counted("msg/s"),
}


def scale(unit: str, size: float) -> tuple[float, str]:
    """What to divide by, and what to write behind, for numbers up to ``size``.

    Raises ValueError where ``unit`` is none of UNITS and no "suffix: …".
    """
    if unit.startswith("suffix:"):
        return 1.0, " " + unit.removeprefix("suffix:").strip()
    if unit not in UNITS:
        raise ValueError(f"unit {unit!r} is none of {', '.join(UNITS)}: add it to UNITS")
    steps = UNITS[unit]
    if not size:
        return next(step for step in steps if step[0] <= 1.0)
    return next((step for step in steps if abs(size) >= step[0]), steps[-1])


def number(value: float) -> str:
    """Three digits, never an exponent."""
    if not math.isfinite(value):
        return "No data"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def formatted(value: float, unit: str) -> str:
    """A value as Grafana would write it."""
    divisor, name = scale(unit, value)
    return number(value / divisor) + name


def ticks(low: float, high: float, unit: str, about: int) -> list[tuple[float, str]]:
    """Round values from ``low`` to ``high``, some ``about``, with their texts."""
    divisor, name = scale(unit, max(abs(low), abs(high)))
    rough = (high - low) / divisor / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first, last = math.ceil(low / divisor / step - 1e-9), math.floor(high / divisor / step + 1e-9)
    return [(n * step * divisor, number(n * step) + name) for n in range(first, last + 1)]


def instants(start: float, end: float, most: int) -> Sequence[float]:
    """Round times of an axis, seconds."""
    steps = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    step = next((s for s in steps if (end - start) / s <= most), steps[-1])
    return [n * step for n in range(math.ceil(start / step), math.floor(end / step) + 1)]
