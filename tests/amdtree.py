"""Trees of /sys as amdgpu and amdkfd make them, with ``gpu_metrics`` blobs of every version."""

from __future__ import annotations

import struct
from pathlib import Path

from stragd.telemetry.gpu_metrics import HEADER, LAYOUTS, SIZES

MI300X, MI210 = 0x74A1, 0x740F
Value = int | list[int]

# A healthy MI300X at work; what a version does not have is left out.
HEALTHY: dict[str, Value] = {
    "temperature_hotspot": 58,
    "temperature_mem": 48,
    "curr_socket_power": 620,
    "average_socket_power": 620,
    "average_gfx_activity": 97,
    "current_gfxclk": [2100] * 8,
    "current_uclk": 1300,
    "gfxclk_lock_status": 0,
    "pcie_link_width": 16,
    "pcie_link_speed": 320,
    "xgmi_link_width": 16,
    "xgmi_link_speed": 32,
    "firmware_timestamp": 1_000_000,
    "accumulation_counter": 100_000,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 0,
    "socket_thm_residency_acc": 0,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 0,
    "pcie_l0_to_recov_count_acc": 3,
    "pcie_replay_count_acc": 0,
    "pcie_nak_sent_count_acc": 0,
    "pcie_nak_rcvd_count_acc": 0,
    "xgmi_read_data_acc": [0] * 8,
    "xgmi_write_data_acc": [0] * 8,
    "xgmi_link_status": [1] * 7 + [0xFFFF],
    "num_partition": 1,
    "indep_throttle_status": 0,
}


def blob(version: tuple[int, int], **changes: Value | list[dict[str, list[int]]]) -> bytes:
    """A blob of a healthy GPU with ``changes``; everything else says "not available".

    ``partitions``: members by name for each partition.
    """
    layout = LAYOUTS[version]
    raw = bytearray(b"\xff" * layout.size)
    HEADER.pack_into(raw, 0, layout.size, *version)
    parts = changes.pop("partitions", [])
    values = {**HEALTHY, **changes}

    def put(members: tuple, base: int, given: dict) -> None:  # type: ignore[type-arg]
        for member in members:
            if member.name not in given:
                continue
            value = given[member.name]
            if member.length == 1 and isinstance(value, list):
                value = value[0]
            numbers = value if isinstance(value, list) else [value]
            mask = (1 << 8 * SIZES[member.kind]) - 1
            packed = struct.pack(f"<{len(numbers)}{member.kind}", *(n & mask for n in numbers))
            raw[base + member.offset : base + member.offset + len(packed)] = packed

    put(layout.members, 0, values)
    for number, part in enumerate(parts):
        put(layout.partition, layout.partition_at + number * layout.partition_size, part)
    return bytes(raw)


def write(path: Path, content: str | bytes) -> None:
    """A file, with its folders; replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    new.rename(path)


class AmdTree:
    """/sys of a node with AMD GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes = 0
        write(root / "class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")  # the CPU

    def folder(self, address: str) -> Path:
        """Of a PCI device."""
        return self.root / "bus/pci/devices" / address

    def add(
        self,
        address: str,
        device_id: int = MI300X,
        partitions: int = 1,
        mode: str = "SPX",
        partition_bit: int = 28,
    ) -> list[int]:
        """A GPU and its KFD nodes; their ids. Kernels differ in where the partition's number is."""
        domain, bus, rest = address.split(":")
        location = int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3 | int(rest.split(".")[1])
        ids = []
        for partition in range(partitions):
            self._nodes += 1
            gpu, minor = 50000 + self._nodes, 127 + self._nodes
            properties = {
                "simd_count": 1216,
                "drm_render_minor": minor,
                "device_id": device_id,
                "gfx_target_version": 90402,
                "domain": int(domain, 16),
                "location_id": location | partition << partition_bit,
            }
            node = self.root / f"class/kfd/kfd/topology/nodes/{self._nodes}"
            write(node / "gpu_id", f"{gpu}\n")
            lines = "".join(f"{name} {value}\n" for name, value in properties.items())
            write(node / "properties", lines)
            drm = self.root / f"class/drm/renderD{minor}/device"
            write(drm / "current_compute_partition", f"{mode}\n")
            ids.append(gpu)
        folder = self.folder(address)
        write(folder / "pp_dpm_sclk", "0: 500Mhz\n1: 1200Mhz *\n2: 2100Mhz\n")
        write(folder / "pp_dpm_mclk", "0: 900Mhz\n1: 1300Mhz *\n")
        write(folder / "max_link_width", "16\n")
        write(folder / "max_link_speed", "32.0 GT/s PCIe\n")
        hwmon = folder / "hwmon/hwmon3"
        write(hwmon / "temp2_label", "junction\n")
        write(hwmon / "temp2_crit", "100000\n")
        write(hwmon / "temp3_label", "mem\n")
        write(hwmon / "temp3_crit", "95000\n")
        self.cap(address, 750)
        write(hwmon / "power1_cap_default", "750000000\n")
        self.errors(address, 0, 0)
        self.bad_pages(address, "")
        self.metrics(address, blob((1, 6)))
        return ids

    def metrics(self, address: str, raw: bytes) -> None:
        """What ``gpu_metrics`` gives."""
        write(self.folder(address) / "gpu_metrics", raw)

    def errors(self, address: str, corrected: int, uncorrected: int) -> None:
        """Of the memory controllers."""
        text = f"ue: {uncorrected}\nce: {corrected}\nde: 0\n"
        write(self.folder(address) / "ras/umc_err_count", text)

    def bad_pages(self, address: str, states: str) -> None:
        """One page per letter: R retired, P pending, F failed."""
        lines = (f"0x{i:08x} : 0x00001000 : {state}\n" for i, state in enumerate(states))
        write(self.folder(address) / "ras/gpu_vram_bad_pages", "".join(lines))

    def cap(self, address: str, watts: int) -> None:
        """Its power limit."""
        write(self.folder(address) / "hwmon/hwmon3/power1_cap", f"{watts}000000\n")

    def process(self, pid: int, gpu: int, memory: int = 1 << 30) -> None:
        """A process has a queue on a GPU, and memory."""
        write(self.root / f"class/kfd/kfd/proc/{pid}/vram_{gpu}", f"{memory}\n")
