"""The amdgpu driver's ``gpu_metrics`` blob: layouts, what is missing, what is broken."""

from __future__ import annotations

import random

import pytest

from stragd.telemetry.amd_values import AmdCounters, partition_values, state_values
from stragd.telemetry.gpu_metrics import HEADER, LAYOUTS, BadBlob, parse
from stragd.telemetry.quantities import GPU
from tests.amdtree import blob

VERSIONS = sorted(LAYOUTS)
SECOND = 1_000_000_000
WRAP = 1 << 32


@pytest.mark.parametrize(
    ("version", "size", "offsets"),
    [
        (
            (1, 3),
            120,
            {"temperature_hotspot": 6, "current_gfxclk": 54, "indep_throttle_status": 112},
        ),
        ((1, 4), 288, {"gfxclk_lock_status": 44, "firmware_timestamp": 232, "current_uclk": 280}),
        ((1, 5), 360, {"energy_accumulator": 88, "pcie_nak_sent_count_acc": 168}),
        (
            (1, 6),
            1664,
            {"accumulation_counter": 32, "xgmi_read_data_acc": 128, "num_partition": 306},
        ),
        (
            (1, 7),
            2208,
            {"accumulation_counter": 40, "xgmi_link_status": 264, "current_gfxclk": 296},
        ),
        ((1, 8), 3872, {"accumulation_counter": 40, "xgmi_link_status": 264, "num_partition": 338}),
    ],
)
def test_layouts_are_the_kernels(
    version: tuple[int, int], size: int, offsets: dict[str, int]
) -> None:
    layout = LAYOUTS[version]
    places = {member.name: member.offset for member in layout.members}
    assert layout.size == size
    assert {name: places[name] for name in offsets} == offsets


def test_partitions_are_the_kernels() -> None:
    places = {v: (LAYOUTS[v].partition_at, LAYOUTS[v].partition_size) for v in VERSIONS[3:]}
    assert places == {(1, 6): (312, 168), (1, 7): (344, 232), (1, 8): (344, 440)}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_its_states(version: tuple[int, int]) -> None:
    values = state_values(parse(blob(version)))
    assert values["temperature_c"] == 58
    assert values["memory_temperature_c"] == 48
    assert values["power_w"] == 620
    assert values["sm_clock_mhz"] == 2100
    assert values["mem_clock_mhz"] == 1300
    assert values["utilisation_share"] == pytest.approx(0.97)
    assert values["pcie_width_count"] == 16
    assert set(values) <= set(GPU)
    assert ("xgmi_inactive_count" in values) == (version >= (1, 7))
    assert ("throttled_thermal_count" in values) == (version == (1, 3))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_available_is_absent(version: tuple[int, int]) -> None:
    layout = LAYOUTS[version]
    nothing = HEADER.pack(layout.size, *version) + b"\xff" * (layout.size - HEADER.size)
    counters = AmdCounters()
    for _ in range(2):
        metrics = parse(nothing)
        counters.begin(metrics, SECOND)
        assert state_values(metrics) == {}
        assert counters.whole(metrics) == {}
        assert partition_values(metrics, 0, counters) == {}


def test_not_available_inside_lists() -> None:
    """Trap 3: some of a list's elements are missing; they are no zeros and no 65535 MHz."""
    none = 0xFFFF
    clocks = [2100, none, 1900, none, none, none, none, none]
    busy = [{"gfx_busy_inst": [80, 60, 0xFFFFFFFF, 101, 4000, *[0xFFFFFFFF] * 3]}]
    metrics = parse(
        blob((1, 7), current_gfxclk=clocks, xgmi_link_status=[1, 0, *[none] * 6], partitions=busy)
    )
    values = state_values(metrics)
    assert values["sm_clock_mhz"] == 2000
    assert (values["xgmi_count"], values["xgmi_inactive_count"]) == (2, 1)
    partition = partition_values(metrics, 0, AmdCounters())
    assert partition["utilisation_share"] == pytest.approx(0.7)


def test_activity_over_100_is_no_activity() -> None:
    assert "utilisation_share" not in state_values(parse(blob((1, 6), average_gfx_activity=101)))


def test_shares_of_the_firmwares_ticks() -> None:
    counters = AmdCounters()
    counters.begin(parse(blob((1, 6))), 0)
    first = counters.whole(parse(blob((1, 6))))
    assert not [name for name in first if name.endswith(("_share", "_delta"))]
    later = parse(
        blob(
            (1, 6),
            accumulation_counter=105_000,
            firmware_timestamp=2_000_000,
            socket_thm_residency_acc=3100,
            vr_thm_residency_acc=1000,
            ppt_residency_acc=500,
            prochot_residency_acc=50,
            pcie_replay_count_acc=7,
            pcie_nak_sent_count_acc=2,
            pcie_nak_rcvd_count_acc=3,
            xgmi_read_data_acc=[1000] * 8,
        )
    )
    counters.begin(later, 2 * SECOND)
    values = counters.whole(later)
    assert values["socket_thermal_share"] == pytest.approx(0.62)
    assert values["hw_thermal_share"] == pytest.approx(0.62)
    assert values["regulator_thermal_share"] == pytest.approx(0.2)
    assert values["memory_thermal_share"] == 0
    assert values["sw_power_cap_share"] == pytest.approx(0.1)
    assert values["power_brake_share"] == pytest.approx(0.01)
    assert values["pcie_replay_delta"] == 7
    assert values["pcie_nak_delta"] == 5
    assert values["xgmi_bytes_per_s"] == pytest.approx(8 * 1000 * 1024 / 2)
    assert set(values) <= set(GPU)


def test_accumulators_of_32_bits_wrap() -> None:
    """Trap 4: ticks and residency pass 2^32 in the window; the share is that of the growth."""
    counters = AmdCounters()
    before = {"accumulation_counter": WRAP - 1000, "ppt_residency_acc": WRAP - 100}
    after = {"accumulation_counter": 4000, "ppt_residency_acc": 1150}
    for number, ticks in enumerate((before, after)):
        metrics = parse(blob((1, 6), firmware_timestamp=1000 + number, **ticks))
        counters.begin(metrics, number * SECOND)
        values = counters.whole(metrics)
    assert values["sw_power_cap_share"] == pytest.approx(1250 / 5000)


def test_a_restarted_firmware_is_a_new_baseline() -> None:
    """Trap 2, AMD: everything starts from zero, and that is neither a wrap nor a burst."""
    counters = AmdCounters()
    old = {"accumulation_counter": WRAP - 10, "ppt_residency_acc": WRAP - 10}
    new = {"accumulation_counter": 900, "ppt_residency_acc": 300}
    for stamp, ticks in ((5000, old), (10, new)):
        metrics = parse(blob((1, 6), firmware_timestamp=stamp, pcie_replay_count_acc=50, **ticks))
        counters.begin(metrics, stamp)
        values = counters.whole(metrics)
    assert "sw_power_cap_share" not in values
    assert "pcie_replay_delta" not in values


def test_residency_beyond_the_ticks_is_nonsense() -> None:
    counters = AmdCounters()
    for number, residency in enumerate((0, 9000)):
        metrics = parse(
            blob(
                (1, 6),
                firmware_timestamp=1 + number,
                accumulation_counter=100 + 1000 * number,
                ppt_residency_acc=residency,
            )
        )
        counters.begin(metrics, number * SECOND)
        values = counters.whole(metrics)
    assert "sw_power_cap_share" not in values


def test_what_throttles_before_mi300() -> None:
    bits = 1 << 0 | 1 << 7 | 1 << 17 | 1 << 36 | 1 << 44 | 1 << 46 | 1 << 60
    values = state_values(parse(blob((1, 3), indep_throttle_status=bits)))
    counts = {name: value for name, value in values.items() if name.startswith("throttled")}
    assert counts == {
        "throttled_power_count": 2,
        "throttled_current_count": 1,
        "throttled_thermal_count": 2,
        "throttled_external_count": 1,
    }


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "0 bytes"),
        (b"\x01", "1 bytes"),
        (blob((1, 6))[:-1], "has 1663 bytes, it should have 1664"),
        (HEADER.pack(1000, 1, 6) + bytes(1660), "has 1000 bytes"),
        (HEADER.pack(0xFFFF, 1, 6) + bytes(3000), "has 3004 bytes"),
        (HEADER.pack(1664, 1, 9) + bytes(1660), "version 1.9, known are 1.3 to 1.8"),
        (HEADER.pack(128, 2, 1) + bytes(124), "version 2.1"),
    ],
)
def test_a_broken_blob_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(BadBlob, match=words):
        parse(raw)


def test_noise_never_raises_anything_else() -> None:
    noise = random.Random(6)
    counters = AmdCounters()
    for number in range(400):
        version = noise.choice(VERSIONS)
        raw = bytearray(noise.randbytes(LAYOUTS[version].size))
        HEADER.pack_into(raw, 0, len(raw), *version)
        cut = len(raw) if number % 3 else noise.randrange(len(raw))
        try:
            metrics = parse(bytes(raw[:cut]))
        except BadBlob:
            continue
        counters.begin(metrics, number * SECOND)
        values = state_values(metrics) | counters.whole(metrics)
        for part in range(9):
            values |= partition_values(metrics, part, counters)
        shares = [value for name, value in values.items() if name.endswith("_share")]
        assert all(0 <= share <= 1 for share in shares)
