"""NVIDIA GPUs as NVML shows them: what becomes of numbers, refusals, resets and divided GPUs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stragd.telemetry import field_batch
from stragd.telemetry.events import add_xids
from stragd.telemetry.nvml import NvmlReader
from stragd.telemetry.quantities import GPU
from stragd.telemetry.reading import NO_PROCESS_LIST, Reading, Unavailable
from tests.fakenvml import POWER_W, FakeNvml
from tests.needs import module

NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, RESET_REQUIRED = 3, 4, 999, 16
DRIVER_NOT_LOADED = 9
Open = Callable[..., NvmlReader]


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "driver", gpus=2).healthy()


@pytest.fixture
def open_reader(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a reader on the made-up driver, within this process."""
    pynvml = module("pynvml")

    def open_now(**settings: object) -> NvmlReader:
        fake.write()
        library = ctypes.CDLL(str(fake.directory / field_batch.LIBRARY))
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        # Several copies are loaded in one process: take the one of this test.
        monkeypatch.setattr(field_batch, "LIBRARY", str(fake.directory / "libnvidia-ml.so.1"))
        reader = NvmlReader(**settings)  # type: ignore[arg-type]
        reader.open()
        return reader

    return open_now


def read(reader: NvmlReader) -> dict[str, Reading]:
    xids = reader.events()
    readings = [reading for device in reader.devices for reading in device.read()]
    for reading in readings:
        add_xids(reading, xids)
    return {reading.subject: reading for reading in readings}


def test_a_healthy_gpu(fake: FakeNvml, open_reader: Open) -> None:
    reader = open_reader()
    first = read(reader)[fake.address(0)]
    assert not [name for name in first.values if name.endswith("_delta") and name != "xid_delta"]
    assert first.values["power_w"] == 600
    reading = read(reader)[fake.address(0)]
    assert (reading.model, reading.silent, reading.notes) == ("NVIDIA H200", "", [])
    expected = {
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "hw_thermal_share": 0,
        "sw_power_cap_share": 0,
        "temperature_c": 55,
        "temperature_margin_c": 34,  # a margin of 32, and the slowdown comes at -2
        "memory_temperature_c": 62,
        "memory_temperature_margin_c": 33,
        "power_w": POWER_W,
        "power_limit_w": 700,
        "power_limit_default_w": 700,
        "ecc_corrected_delta": 0,
        "xid_delta": 0,
        "nvlink_count": 18,
        "nvlink_inactive_count": 0,
        "nvlink_speed_gbps": 212.496,
        "nvlink_replay_delta": 0,
        "pcie_generation_count": 5,
        "pcie_width_count": 16,
        "utilisation_share": 0.99,
        "sm_active_share": 0.9,
        "tensor_active_share": 0.45,
        "pcie_bytes_per_s": 300 * 2**20,
        "nvlink_bytes_per_s": 60000 * 2**20,
        "recovery_action_count": 0,
        "fabric_unhealthy_count": 0,
        "idle_count": 0,
    }
    assert undisturbed(reader, fake.address(0), expected) == pytest.approx(expected, rel=0.02)
    assert set(reading.values) <= set(GPU)


def undisturbed(reader: NvmlReader, subject: str, expected: dict[str, float]) -> dict[str, float]:
    """Values of the first window in which nothing came between the driver's clock and ours."""
    for _ in range(100):
        time.sleep(0.1)
        values = read(reader)[subject].values
        found = {name: values[name] for name in expected}
        if found == pytest.approx(expected, rel=0.02):
            break
    return found


def test_shares_are_of_the_time_that_passed(fake: FakeNvml, open_reader: Open) -> None:
    fields = {"sw_power_cap": 74, "sync_boost": 76, "sw_thermal": 269, "hw_thermal": 270}
    fields["power_brake"] = 271
    shares = {74: 0.9, 76: 0.1, 269: 0.3, 270: 0.62, 271: 0.05}
    for number, share in shares.items():
        fake.share(1, number, share)
    reader = open_reader()
    read(reader)
    expected = {f"{name}_share": shares[number] for name, number in fields.items()}
    assert undisturbed(reader, fake.address(1), expected) == pytest.approx(expected, rel=0.02)


def test_a_fields_own_error_is_not_zero(fake: FakeNvml, open_reader: Open) -> None:
    """Trap 1: the batch succeeds, the element does not, and its value says 0."""
    reader = open_reader()
    read(reader)
    fake.refuse(0, 270, UNKNOWN)
    fake.refuse(0, 144, UNKNOWN)
    fake.write()
    failed = read(reader)[fake.address(0)].values
    assert "hw_thermal_share" not in failed
    assert "remap_pending_count" not in failed
    assert "sw_thermal_share" in failed
    fake.refuse(0, 270, 0)
    fake.refuse(0, 144, 0)
    fake.write()
    later = read(reader)[fake.address(0)].values  # it was no refusal: asked again
    assert "hw_thermal_share" in later
    assert later["remap_pending_count"] == 0


def test_what_stands_still_goes_on_being_said(fake: FakeNvml, open_reader: Open) -> None:
    """Counters and links that have not changed are not looked at one by one."""
    fake.field(0, 165, 0, 4)  # link 4 is inactive
    fake.field(0, 3, 5)
    reader = open_reader()
    steady = {"ecc_corrected_delta": 0, "nvlink_crc_delta": 0, "nvlink_inactive_count": 1}

    def seen() -> dict[str, float]:
        values = read(reader)[fake.address(0)].values
        return {name: values[name] for name in steady if name in values}

    assert seen() == {"nvlink_inactive_count": 1}  # differences need two readings
    assert seen() == steady
    fake.field(0, 3, 9)
    fake.write()
    assert seen() == steady | {"ecc_corrected_delta": 4}
    assert seen() == steady
    fake.error(0, "nvmlDeviceGetFieldValues", UNKNOWN)
    fake.write()
    assert seen() == {}
    fake.error(0, "nvmlDeviceGetFieldValues", 0)
    fake.write()
    assert seen() == steady
    assert seen() == steady


def test_what_is_not_supported_is_not_asked_again(fake: FakeNvml, open_reader: Open) -> None:
    fake.refuse(0, 142, NO_PERMISSION)
    fake.unset(0, "fabric_state")
    reader = open_reader()
    gpu = reader.devices[0]
    before = len(gpu._batch.wanted)  # type: ignore[union-attr]
    values = read(reader)[fake.address(0)].values
    after = list(gpu._batch.wanted)  # type: ignore[union-attr]
    assert (142, 0) not in after
    assert len(after) < before
    assert "fabric_unhealthy_count" not in values
    fake.refuse(0, 142, 0)
    fake.set(0, "fabric_state", 3)
    fake.write()
    values = read(reader)[fake.address(0)].values
    assert "remap_corrected_count" not in values
    assert "fabric_unhealthy_count" not in values


def test_older_drivers_have_one_thermal_counter(fake: FakeNvml, open_reader: Open) -> None:
    fake.share(0, 75, 0.4)
    for number in (269, 270, 271):
        fake.refuse(0, number, NOT_SUPPORTED)
    fake.share(1, 75, 0.4)
    reader = open_reader()
    read(reader)
    time.sleep(1)
    readings = read(reader)
    assert readings[fake.address(0)].values["sw_thermal_share"] == pytest.approx(0.4, rel=0.2)
    assert readings[fake.address(1)].values["sw_thermal_share"] == 0


def test_a_counter_that_goes_down_is_a_new_baseline(fake: FakeNvml, open_reader: Open) -> None:
    """Trap 2: a driver that was loaded anew counts from zero; no burst, no negative growth."""
    fake.field(0, 3, 5000)
    fake.field(0, 270, 900_000_000_000)
    reader = open_reader()
    read(reader)
    fake.field(0, 3, 5010)
    fake.write()
    assert read(reader)[fake.address(0)].values["ecc_corrected_delta"] == 10
    fake.field(0, 3, 7)
    fake.field(0, 270, 0)
    fake.write()
    values = read(reader)[fake.address(0)].values
    assert "ecc_corrected_delta" not in values
    assert "hw_thermal_share" not in values
    fake.field(0, 3, 9)
    fake.write()
    assert read(reader)[fake.address(0)].values["ecc_corrected_delta"] == 2


def test_more_time_than_passed_is_nonsense(fake: FakeNvml, open_reader: Open) -> None:
    fake.share(0, 270, 1.2)
    fake.share(0, 74, 50)
    reader = open_reader()
    read(reader)
    time.sleep(0.5)
    values = read(reader)[fake.address(0)].values
    assert values["hw_thermal_share"] == 1
    assert "sw_power_cap_share" not in values


def test_an_idle_gpu_says_so_beside_its_slow_link(fake: FakeNvml, open_reader: Open) -> None:
    """Trap 8: an idle GPU lowers its PCIe generation; its sample says that it is idle."""
    fake.set(0, "pcie_generation", 1)
    fake.set(0, "reasons", 0x1)
    fake.set(0, "utilisation", 0)
    fake.gpm(0, 1, 0.0)
    reader = open_reader()
    read(reader)
    values = read(reader)[fake.address(0)].values
    assert (values["pcie_generation_count"], values["pcie_generation_max_count"]) == (1, 5)
    assert (values["idle_count"], values["utilisation_share"]) == (1, 0)


def test_two_jobs_on_one_divided_gpu(fake: FakeNvml, open_reader: Open) -> None:
    """Trap 10: each instance is a subject with its own load; the board's numbers are shared."""
    first, second = fake.mig(0, 1, "3g.71gb"), fake.mig(0, 2, "4g.71gb")
    for instance, busy in ((1, 80.0), (2, 5.0)):
        fake.gpm(0, 2, busy, instance)
        fake.process(0, 1000 + instance, instance)
    fake.error(0, "nvmlDeviceGetUtilizationRates", NOT_SUPPORTED)
    reader = open_reader()
    read(reader)
    readings = read(reader)
    assert list(readings) == [first, second, fake.address(1)]
    assert first == "0000:1b:00.0/mig-00000000-0001-0000-0000-000000000000"
    assert readings[first].model == "NVIDIA H200 MIG 3g.71gb"
    assert readings[first].values["sm_active_share"] == pytest.approx(0.8)
    assert readings[second].values["sm_active_share"] == pytest.approx(0.05)
    assert readings[second].values["temperature_c"] == 55
    assert "utilisation_share" not in readings[first].values
    assert reader.devices[0].processes() == {first: [1001], second: [1002]}


def test_a_divided_gpu_whose_processes_are_an_administrators(
    fake: FakeNvml, open_reader: Open
) -> None:
    part = fake.mig(0, 1, "3g.71gb")
    fake.process(0, 1001, 1)
    fake.error(0, "nvmlDeviceGetComputeRunningProcesses_v3", NO_PERMISSION)
    reader = open_reader()
    assert reader.devices[0].processes() == {}
    reading = read(reader)[part]
    assert not reading.silent
    assert reading.notes.count(NO_PROCESS_LIST) == 1
    assert NO_PROCESS_LIST not in read(reader)[fake.address(1)].notes


def test_a_gpu_that_vanishes_is_silent_and_the_others_go_on(
    fake: FakeNvml, open_reader: Open
) -> None:
    """Trap 11."""
    reader = open_reader()
    read(reader)
    fake.lose(0)
    fake.xid(0, 79)
    fake.write()
    readings = read(reader)
    lost = readings[fake.address(0)]
    assert lost.silent == "NVML: the GPU has fallen off the bus"
    assert (lost.values, lost.notes) == ({}, ["Xid 79"])
    assert readings[fake.address(1)].values["ecc_corrected_delta"] == 0
    fake.find(0)
    fake.field(0, 3, 12345)
    fake.write()
    back = read(reader)[fake.address(0)].values
    assert back["sm_clock_mhz"] == 1980
    assert "ecc_corrected_delta" not in back  # nothing is compared across the gap


def test_one_element_can_say_that_the_gpu_is_lost(fake: FakeNvml, open_reader: Open) -> None:
    reader = open_reader()
    fake.refuse(1, 190, RESET_REQUIRED)
    fake.write()
    assert read(reader)[fake.address(1)].silent == "NVML: the GPU needs a reset"


def test_a_gpu_that_nvml_does_not_list(fake: FakeNvml, open_reader: Open, tmp_path: Path) -> None:
    for address in ("0000:1b:00.0", "0000:1C:00.0", "0000:aa:00.0"):
        (tmp_path / "driver/nvidia/gpus" / address).mkdir(parents=True)
    fake.lose(1)
    readings = read(open_reader(proc=str(tmp_path)))
    assert [(r.subject, r.model, bool(r.silent)) for r in readings.values()] == [
        ("0000:1b:00.0", "NVIDIA H200", False),
        ("0000:1c:00.0", "NVIDIA", True),
        ("0000:aa:00.0", "NVIDIA", True),
    ]


def test_xids_are_given_once(fake: FakeNvml, open_reader: Open) -> None:
    fake.xid(0, 13)  # before anybody listened
    reader = open_reader()
    assert read(reader)[fake.address(0)].values["xid_delta"] == 0
    for number in (94, 63, 94):
        fake.xid(0, number)
    fake.write()
    reading = read(reader)[fake.address(0)]
    assert (reading.values["xid_delta"], reading.notes) == (3, ["Xid 63", "Xid 94"])
    assert read(reader)[fake.address(0)].values["xid_delta"] == 0
    assert read(reader)[fake.address(1)].values["xid_delta"] == 0


def test_without_events_there_is_no_count(fake: FakeNvml, open_reader: Open) -> None:
    fake.fail("nvmlEventSetCreate", NOT_SUPPORTED)
    assert "xid_delta" not in read(open_reader())[fake.address(0)].values


def test_links_recovery_and_fabric(fake: FakeNvml, open_reader: Open) -> None:
    reader = open_reader()
    read(reader)
    fake.field(0, 165, 0, 3)
    fake.field(0, 165, 3, 4)
    fake.field(0, 164, 20000, 7)
    fake.field(0, 162, 5, 7)
    fake.field(0, 162, 2, 8)
    fake.field(0, 230, 1)
    fake.set(0, "fabric_health", 0b10_10_10_01 | 5 << 8)
    fake.write()
    reading = read(reader)[fake.address(0)]
    assert reading.values["nvlink_inactive_count"] == 2
    assert reading.values["nvlink_speed_gbps"] == 160
    assert reading.values["nvlink_recovery_delta"] == 7
    assert reading.values["recovery_action_count"] == 1
    assert reading.values["fabric_unhealthy_count"] == 2
    assert reading.notes == [
        "NVLink fabric: degraded bandwidth",
        "NVLink fabric: wrong configuration",
        "the driver asks for: GPU reset",
    ]


def test_before_hopper(fake: FakeNvml, open_reader: Open) -> None:
    """No GPM, no T.Limit, no energy counter: traffic from the links, absolute limits, power."""
    for gpu in range(fake.gpus):
        for key in [k for k in fake.lines if k[0] == "gpm"]:
            del fake.lines[key]
        for number in (83, 194, 190):
            fake.refuse(gpu, number, NOT_SUPPORTED)
        fake.unset(gpu, "margin")
        fake.set(gpu, "slowdown_limit", 89)
        fake.set(gpu, "power_limit_mw", 400_000)
        fake.field(gpu, 138, 0, "*")
        fake.rate(gpu, 138, 1000, "*")
    reader = open_reader()
    read(reader)
    time.sleep(1)
    values = read(reader)[fake.address(0)].values
    assert values["temperature_margin_c"] == 34
    assert values["power_limit_w"] == 400
    assert values["power_w"] == 600
    assert values["nvlink_bytes_per_s"] == pytest.approx(18 * 1000 * 1024, rel=0.2)
    assert "sm_active_share" not in values


def test_gpm_can_be_left_out(fake: FakeNvml, open_reader: Open) -> None:
    reader = open_reader(with_gpm=False)
    read(reader)
    assert "sm_active_share" not in read(reader)[fake.address(0)].values


def test_a_driver_that_is_not_there_is_said(fake: FakeNvml, open_reader: Open) -> None:
    fake.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with pytest.raises(Unavailable, match="NVML: Driver Not Loaded"):
        open_reader()
