"""AMD GPUs of a node, from a tree as amdgpu and amdkfd make it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stragd.telemetry.amd import AmdReader
from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.quantities import GPU
from stragd.telemetry.reading import Reading, Unavailable
from tests.amdtree import MI210, AmdTree, blob
from tests.harness import wait_for


def read(reader: AmdReader) -> dict[str, Reading]:
    return {r.subject: r for device in reader.devices for r in device.read()}


def opened(tree: AmdTree) -> AmdReader:
    reader = AmdReader(str(tree.root))
    reader.open()
    return reader


def test_a_node_with_two_gpus(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0")
    tree.add("0001:c1:00.0", device_id=MI210)
    tree.metrics("0001:c1:00.0", blob((1, 3), temperature_hotspot=105))
    readings = read(opened(tree))
    assert [(r.subject, r.model, r.silent) for r in readings.values()] == [
        ("0000:0c:00.0", "AMD MI300X", ""),
        ("0001:c1:00.0", "AMD MI210", ""),
    ]
    values = readings["0000:0c:00.0"].values
    expected = {
        "temperature_margin_c": 42,
        "memory_temperature_margin_c": 47,
        "power_limit_w": 750,
        "power_limit_default_w": 750,
        "sm_clock_max_mhz": 2100,
        "mem_clock_max_mhz": 1300,
        "pcie_generation_count": 5,
        "pcie_generation_max_count": 5,
        "pcie_width_max_count": 16,
        "retired_pending_count": 0,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert readings["0001:c1:00.0"].values["temperature_margin_c"] == -5
    assert set(values) <= set(GPU)


def test_memory_errors_and_bad_pages(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0")
    tree.errors("0000:0c:00.0", corrected=100, uncorrected=1)
    reader = opened(tree)
    first = read(reader)["0000:0c:00.0"].values
    assert "ecc_corrected_delta" not in first
    tree.errors("0000:0c:00.0", corrected=130, uncorrected=3)
    tree.bad_pages("0000:0c:00.0", "RRPFP")
    values = read(reader)["0000:0c:00.0"].values
    assert (values["ecc_corrected_delta"], values["ecc_uncorrected_delta"]) == (30, 2)
    assert (values["retired_pending_count"], values["remap_failure_count"]) == (2, 1)
    tree.errors("0000:0c:00.0", corrected=2, uncorrected=0)  # the driver was loaded anew
    values = read(reader)["0000:0c:00.0"].values
    assert "ecc_corrected_delta" not in values


@pytest.mark.parametrize("partition_bit", [28, 0], ids=["upper bits", "function"])
def test_eight_partitions_have_one_temperature(tmp_path: Path, partition_bit: int) -> None:
    """Trap 9: in CPX mode what belongs to the whole GPU is on partition 0 alone."""
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0", partitions=8, mode="CPX", partition_bit=partition_bit)
    busy = [{"gfx_busy_inst": [10 * n, *[0xFFFFFFFF] * 7]} for n in range(8)]
    tree.metrics("0000:0c:00.0", blob((1, 8), num_partition=8, partitions=busy))
    readings = read(opened(tree))
    assert list(readings) == [f"0000:0c:00.0/partition-{n}" for n in range(8)]
    assert {r.model for r in readings.values()} == {"AMD MI300X-CPX"}
    of_the_whole = ("temperature_c", "power_w", "sm_clock_mhz", "pcie_width_count")
    for number, reading in enumerate(readings.values()):
        assert reading.values["utilisation_share"] == pytest.approx(number / 10)
        assert all((name in reading.values) == (number == 0) for name in of_the_whole)


def test_clock_under_its_limit_by_partition(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0", partitions=2, mode="DPX")
    reader = opened(tree)
    for step in range(2):
        parts = [
            {
                "gfx_below_host_limit_ppt_acc": [step * 100 * (n + 1)] * 4,
                "gfx_below_host_limit_total_acc": [step * 500] * 4,
                "gfx_low_utilization_acc": [0] * 4,
            }
            for n in range(2)
        ]
        ticks = {"accumulation_counter": 1000 * (step + 1), "firmware_timestamp": 1 + step}
        tree.metrics("0000:0c:00.0", blob((1, 8), partitions=parts, **ticks))
        readings = list(read(reader).values())
    powers = [r.values["below_limit_power_share"] for r in readings]
    assert powers == pytest.approx([0.1, 0.2])
    assert readings[1].values["below_limit_share"] == pytest.approx(0.5)
    assert readings[1].values["low_utilisation_share"] == 0


@pytest.mark.parametrize("raw", [b"", b"\x80\x06", blob((1, 6))[:500], b"\xff" * 5000])
def test_a_broken_file_is_silent(tmp_path: Path, raw: bytes) -> None:
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0")
    tree.add("0000:1c:00.0")
    tree.metrics("0000:0c:00.0", raw)
    readings = read(opened(tree))
    assert readings["0000:0c:00.0"].silent.startswith("amdgpu: gpu_metrics ")
    assert readings["0000:0c:00.0"].values == {}
    assert not readings["0000:1c:00.0"].silent


def test_a_gpu_that_vanishes_is_silent(tmp_path: Path) -> None:
    """Trap 11, AMD."""
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0")
    reader = opened(tree)
    assert read(reader)["0000:0c:00.0"].values
    (tree.folder("0000:0c:00.0") / "gpu_metrics").unlink()
    assert read(reader)["0000:0c:00.0"].silent == "amdgpu: gpu_metrics cannot be read"


def test_hostile_files_beside_it(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    tree.add("0000:0c:00.0")
    folder = tree.folder("0000:0c:00.0")
    for name in ("pp_dpm_sclk", "max_link_speed", "max_link_width", "ras/umc_err_count"):
        (folder / name).write_bytes(b"\xff9999999999999999999999999 GT/s Mhz ue: " * 500)
    (folder / "hwmon/hwmon3/power1_cap").write_text("-1")
    (folder / "hwmon/hwmon3/temp2_crit").write_text("nan")
    (folder / "ras/gpu_vram_bad_pages").unlink()
    reading = read(opened(tree))["0000:0c:00.0"]
    assert not reading.silent
    for name in ("power_limit_w", "temperature_margin_c", "retired_pending_count"):
        assert name not in reading.values


def test_no_gpu_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="KFD lists no GPU"):
        opened(AmdTree(tmp_path))


def test_through_the_readers_process(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path)
    whole = tree.add("0000:0c:00.0")
    parts = tree.add("0000:1c:00.0", partitions=2, mode="DPX")
    tree.process(4242, whole[0])
    tree.process(4242, parts[1])
    tree.process(4243, parts[0], memory=0)  # has opened it, and nothing more
    telemetry = GpuTelemetry(proc=str(tmp_path), sys=str(tmp_path), dev=str(tmp_path))
    assert telemetry.present
    telemetry.gpus_of(4242)
    telemetry.start()
    try:
        start = time.monotonic_ns()
        telemetry.request(start, start + 5)
        samples = []

        def all_there() -> bool:
            samples.extend(telemetry.samples())
            return len(samples) == 3 and bool(telemetry.gpus_of(4242))

        wait_for("three samples and the process", all_there)
        assert telemetry.gpus_of(4242) == ["0000:0c:00.0", "0000:1c:00.0/partition-1"]
        assert telemetry.gpus_of(4243) == []
        sample = samples[0]
        assert (sample.kind, sample.start_ns, sample.end_ns) == ("gpu", start, start + 5)
        assert sample.values["temperature_c"] == 58
    finally:
        telemetry.close()
