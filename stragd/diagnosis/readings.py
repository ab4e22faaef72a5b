"""Reading samples: what can be calculated with, and quantities that follow from two others."""

from __future__ import annotations

from collections.abc import Iterator

from stragd.telemetry.sample import RankTelemetry, Sample

ABSURD = 1e18
"""No quantity reaches it; beyond, sums of squares and differences lose their meaning."""

_MISSING = {  # what is missing from the most that is possible, in the quantity's unit
    "pcie_lanes_missing_count": ("pcie_width_count", "pcie_width_max_count"),
    "pcie_generations_missing_count": ("pcie_generation_count", "pcie_generation_max_count"),
}
_CUT = {  # the same as a share of it
    "power_limit_cut_share": ("power_limit_w", "power_limit_default_w"),
    "rate_cut_share": ("rate_gbps", "rate_max_gbps"),
    "pcie_cut_share": ("pcie_gbps", "pcie_max_gbps"),
}


def number(value: object) -> float | None:
    """A reading that can be calculated with; what is no number, or absurd, was not read."""
    if not isinstance(value, int | float):
        return None
    try:
        made = float(value)
    except OverflowError:
        return None
    return made if abs(made) < ABSURD else None  # NaN compares False


def read(sample: Sample | None, quantity: str) -> float | None:
    """A value of a sample, or one that follows from two; None where it is absent."""
    if sample is None:
        return None
    names = _MISSING.get(quantity) or _CUT.get(quantity)
    if names is None:
        return number(sample.values.get(quantity))
    now, most = (number(sample.values.get(name)) for name in names)
    if now is None or most is None or now < 0 or most <= 0:
        return None
    missing = max(0.0, most - now)
    return missing if quantity in _MISSING else missing / most


def readings(sample: Sample) -> Iterator[tuple[str, float]]:
    """Every readable quantity of a sample."""
    for quantity in (*sample.values, *_MISSING, *_CUT):
        value = read(sample, quantity)
        if value is not None:
            yield quantity, value


def place(sample: Sample) -> str:
    """The part of a key that says whose value it is: a rank has one GPU but several NICs."""
    return f"nic[{sample.subject}]" if sample.kind == "nic" else sample.kind


def samples(telemetry: RankTelemetry) -> Iterator[Sample]:
    """The samples of a rank that are there."""
    for sample in (telemetry.gpu, telemetry.process, telemetry.node, *telemetry.nics):
        if sample is not None:
            yield sample
