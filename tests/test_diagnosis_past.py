"""The bounded history that the diagnosis compares with."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from stragd.diagnosis import past as past_module
from stragd.diagnosis.past import LEVEL, LEVELS, RECENT, Past
from stragd.telemetry.sample import RankTelemetry, Sample


def window(number: int, rank: int = 0, host: str = "node0", **values: float) -> RankTelemetry:
    start = number * 10
    gpu = Sample("gpu", "0000:1b:00.0", "NVIDIA H200", start, start + 10, values)
    return RankTelemetry(rank, host, gpu=gpu)


def clock(past: Past, before: int) -> float | None:
    baseline = past.baseline(0, "gpu.sm_clock_mhz", before)
    return baseline.median if baseline else None


def test_median_and_spread_of_the_windows_before() -> None:
    past = Past()
    values = [1950.0, 1980.0, 1965.0, 1935.0, 1950.0]
    for number, value in enumerate([*values, 900.0, 910.0]):
        past.add(window(number, sm_clock_mhz=value), number)
    baseline = past.baseline(0, "gpu.sm_clock_mhz", 4)
    assert baseline is not None
    middle = statistics.median(values)
    assert baseline.median == middle
    assert baseline.mad == statistics.median([abs(v - middle) for v in values])
    assert baseline.windows == 5
    assert clock(past, 1) is None  # two windows are no history
    assert past.baseline(0, "gpu.power_w", 9) is None
    assert past.baseline(7, "gpu.sm_clock_mhz", 9) is None


def test_memory_is_bounded_and_reaches_far_back() -> None:
    past = Past()
    for number in range(10_000):
        past.add(window(number, sm_clock_mhz=float(number)), number)
    everything = past.baseline(0, "gpu.sm_clock_mhz", 10_000)
    assert everything is not None
    assert everything.windows <= LEVEL * LEVELS
    reach = LEVEL * (2**LEVELS - 1)
    old = past.baseline(0, "gpu.sm_clock_mhz", 10_000 - reach // 2)
    assert old is not None
    assert old.median < 10_000 - reach // 2
    assert len(past.recent(0, 0)) == RECENT


def test_a_clock_that_is_set_back_makes_no_later_window_an_earlier_one() -> None:
    past = Past()
    for number in range(20):
        past.add(window(number, sm_clock_mhz=1980.0), 1000 + number)
    past.add(window(20, sm_clock_mhz=900.0), 1020)  # the finding begins
    for number in range(21, 40):
        past.add(window(number, sm_clock_mhz=900.0), number)  # an hour back
    assert clock(past, 1019) == 1980.0


def test_another_gpu_begins_anew_and_silence_does_not() -> None:
    past = Past()
    for number in range(5):
        past.add(window(number, sm_clock_mhz=1980.0), number)
    quiet = window(5)
    assert quiet.gpu is not None
    past.add(replace(quiet, gpu=Sample("gpu", "", "", 50, 60, silent="lost")), 5)
    past.add(replace(quiet, gpu=None), 6)
    assert clock(past, 6) == 1980.0
    past.add(window(7, host="node9", sm_clock_mhz=1980.0), 7)
    assert clock(past, 7) is None


def test_values_that_come_late_and_nonsense_are_kept_apart() -> None:
    past = Past()
    for number in range(4):
        past.add(window(number, sm_clock_mhz=1980.0), number)
    for number in range(4, 8):
        past.add(window(number, sm_clock_mhz=math.nan, power_w=500.0), number)
    assert clock(past, 8) == 1980.0
    power = past.baseline(0, "gpu.power_w", 8)
    assert power is not None
    assert (power.median, power.windows) == (500.0, 4)


def test_columns_and_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_module, "MAX_COLUMNS", 5)
    monkeypatch.setattr(past_module, "MAX_RANKS", 2)
    past = Past()
    names = [f"made_up_{n}_count" for n in range(20)]
    for number in range(4):
        for rank in range(5):
            past.add(window(number, rank, **dict.fromkeys(names, 1.0)), number)
    known = [name for name in names if past.baseline(0, f"gpu.{name}", 9)]
    assert known == names[:5]
    assert past.baseline(1, f"gpu.{names[0]}", 9)
    assert past.baseline(2, f"gpu.{names[0]}", 9) is None
    past.forget(0)
    assert past.baseline(0, f"gpu.{names[0]}", 9) is None


def test_nics_of_a_rank_are_kept_apart() -> None:
    past = Past()
    for number in range(4):
        nics = tuple(
            Sample(
                "nic", f"mlx5_{n}/1", "MT4129", number, number + 1, {"rate_gbps": 100.0 * (n + 1)}
            )
            for n in range(2)
        )
        past.add(RankTelemetry(0, "node0", nics=nics), number)
    rates = [past.baseline(0, f"nic[mlx5_{n}/1].rate_gbps", 9) for n in range(2)]
    assert [rate.median for rate in rates if rate] == [100.0, 200.0]
