"""Baselines, the types of NVML's field values, and the tables of fields and quantities."""

from __future__ import annotations

import math
import re

import pytest

from stragd.telemetry.counter import Baselines
from stragd.telemetry.field_batch import number_of
from stragd.telemetry.nvml_fields import DEVICE, FIXED, LINK_ERRORS, LINK_STATES, LINK_TRAFFIC
from stragd.telemetry.quantities import GPU


def test_wraps_and_resets() -> None:
    counters = Baselines()
    assert counters.delta("a", (1 << 32) - 10, 32) is None
    assert counters.delta("a", 20, 32) == 30
    assert counters.delta("a", 10, 32) is None  # nearly a whole turn back: a reset
    assert counters.delta("a", 11, 32) == 1
    assert counters.delta("b", 100) is None
    assert counters.delta("b", 50) is None
    assert counters.delta("b", 50) == 0


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (1, 0xDEADBEEF_00000007, 7),
        (3, (1 << 64) - 1, (1 << 64) - 1),
        (4, (1 << 64) - 3, -3),
        (5, 0xDEADBEEF_FFFFFFFE, -2),
        (6, 0xFFFF_0009, 9),
        (0, 0x3FF8000000000000, 1.5),
        (0, 0x7FF8000000000000, math.nan),
        (0, 0x7FF0000000000000, math.nan),  # infinite
        (99, 1, math.nan),
    ],
)
def test_values_of_every_type(kind: int, raw: int, value: float) -> None:
    assert number_of(kind, raw) == pytest.approx(value, nan_ok=True)


def test_the_tables_name_what_exists() -> None:
    fields = [*DEVICE, *FIXED, *LINK_STATES, *LINK_ERRORS, *LINK_TRAFFIC]
    assert {field.quantity for field in fields} <= set(GPU)
    suffixes = "mhz|c|w|share|count|delta|gbps|bytes_per_s|ms"
    assert all(re.fullmatch(rf"[a-z_]+_({suffixes})", name) for name in GPU)
    assert all(f.kind == "delta" for f in fields if f.quantity.endswith("_delta"))
    assert all(f.kind == "share" for f in fields if f.quantity.endswith("_share"))
