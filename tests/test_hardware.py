"""Hardware classes: CPU models, KFD's sysfs, and NVML as ``pynvml`` meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stragd.discovery.hardware import Amd, Hardware, Nvidia, cpu_class, short

X86 = "processor\t: 0\nvendor_id\t: {}\nmodel name\t: {}\nmodel name\t: other\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: {}\nCPU part\t: {}\n"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (X86.format("AuthenticAMD", "AMD EPYC 9654 96-Core Processor"), "cpu/AMD-EPYC-9654"),
        (X86.format("AuthenticAMD", "AMD EPYC"), "cpu/AMD-EPYC"),
        (
            X86.format("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+"),
            "cpu/Intel-Xeon-Platinum-8480+",
        ),
        (
            X86.format("GenuineIntel", "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"),
            "cpu/Intel-Xeon-E5-2680-v4",
        ),
        (ARM.format("0x41", "0xd4f"), "cpu/Neoverse-V2"),
        (ARM.format("0x41", "0xfff"), "cpu/arm-0xfff"),
        (ARM.format("0x99", "0x001"), "cpu/0x99-0x001"),
        ("", "cpu/unknown"),
        ("model name\t: \x1b[31m" + "x" * 5000, None),
    ],
)
def test_cpu_class(tmp_path: Path, cpuinfo: str, name: str | None) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    found = cpu_class(str(tmp_path))
    assert found.isprintable()
    assert len(found) < 60
    assert name in (None, found)


def test_this_machine_has_a_class() -> None:
    hardware = Hardware()
    device = hardware.find(os.getpid())
    assert device is not None
    assert device.class_name.startswith(("cpu/", "nvidia/", "amd/"))
    assert device.class_name != "cpu/unknown"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB-MIG-1g.5gb"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("", "unknown"),
    ],
)
def test_short_names(model: str, name: str) -> None:
    assert short(model) == name


# AMD


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def kfd(root: Path, gpu: int, minor: int, **properties: int) -> None:
    """One GPU as the kernel's amdkfd shows it."""
    node = root / f"class/kfd/kfd/topology/nodes/{minor - 127}"
    values = {"cpu_cores_count": 0, "simd_count": 1216, "drm_render_minor": minor, **properties}
    write(node / "gpu_id", f"{gpu}\n")
    write(node / "properties", "".join(f"{name} {value}\n" for name, value in values.items()))


def test_amd_process_list(tmp_path: Path) -> None:
    write(tmp_path / "class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")  # the CPU
    kfd(tmp_path, 51234, 128, device_id=0x74A1, gfx_target_version=90402, unique_id=0xABC)
    kfd(tmp_path, 51235, 129, device_id=0x9999, gfx_target_version=90010)
    kfd(tmp_path, 51236, 130, device_id=0x74A1, gfx_target_version=90402)
    write(tmp_path / "class/drm/renderD130/device/current_compute_partition", "CPX\n")
    process = tmp_path / "class/kfd/kfd/proc"
    write(process / "100/vram_51234", "5000000\n")
    write(process / "100/vram_51235", "4096\n")
    write(process / "100/pasid", "32769\n")
    write(process / "101/vram_51235", "7\n")
    write(process / "102/vram_51236", "7\n")
    write(process / "103/vram_666", "junk")
    write(process / "104/pasid", "32770\n")
    amd = Amd(str(tmp_path))
    found = {pid: amd.find(pid) for pid in range(100, 106)}
    names = [device and (device.class_name, device.gpu_uuid) for device in found.values()]
    assert names == [
        ("amd/MI300X", "GPU-0000000000000abc"),
        ("amd/gfx90a", ""),
        ("amd/MI300X-CPX", ""),
        ("amd/unknown", ""),
        None,
        None,
    ]


def test_amd_product_name_of_an_unknown_device(tmp_path: Path) -> None:
    kfd(tmp_path, 9, 128, device_id=0x9999, gfx_target_version=90500)
    write(tmp_path / "class/drm/renderD128/device/product_name", "AMD Instinct MI999X OAM\n")
    write(tmp_path / "class/kfd/kfd/proc/100/vram_9", "1\n")
    device = Amd(str(tmp_path)).find(100)
    assert device is not None
    assert device.class_name == "amd/MI999X"


@pytest.mark.parametrize(
    "properties", ["", "device_id\n", "device_id x\ndrm_render_minor ../../x\n", "\xff" * 40000]
)
def test_amd_garbage(tmp_path: Path, properties: str) -> None:
    write(tmp_path / "class/kfd/kfd/topology/nodes/1/gpu_id", "9\n")
    write(tmp_path / "class/kfd/kfd/topology/nodes/1/properties", properties)
    write(tmp_path / "class/kfd/kfd/proc/100/vram_9", "1\n")
    device = Amd(str(tmp_path)).find(100)
    assert device is not None
    assert device.class_name.startswith("amd/")


# NVIDIA: the real pynvml against a stand-in library, for there is no GPU here

LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
static long at(void *d) { return (long)d - 1; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return "stand-in error"; }
int nvmlDeviceGetCount_v2(unsigned *n) {
    const char *how = getenv("STANDIN");
    if (how && !strcmp(how, "hang")) sleep(600);
    if (how && !strcmp(how, "fail")) return 999;
    *n = 3;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned size) {
    strncpy(name, at(d) >= 10 ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200", size);
    return 0;
}
int nvmlDeviceGetUUID(void *d, char *name, unsigned size) {
    strncpy(name, at(d) >= 10 ? "MIG-7" : at(d) ? "GPU-1" : "GPU-0", size);
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, process *list) {
    if (at(d) == 1) return 15; /* GPU is lost */
    unsigned given = *count;
    *count = 2;
    if (given < 2) return 7; /* insufficient size */
    unsigned none = 0xffffffffu;
    process first = {100, at(d) ? 1 : 5000, at(d) ? 3 : none, none};
    process second = {at(d) ? 102 : 101, 77, at(d) ? 3 : none, none};
    list[0] = first;
    list[1] = second;
    return 0;
}
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *later) {
    *now = *later = at(d) == 2;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **m) {
    if (i) return 6; /* not found */
    *m = (void *)11L;
    return 0;
}
int nvmlDeviceGetGpuInstanceId(void *d, unsigned *id) { *id = 3; return 0; }
"""
ASK = """
import json, sys, time
from stragd.discovery.hardware import Nvidia
nvidia = Nvidia(sys.argv[1], sys.argv[2], answer_seconds=float(sys.argv[3]))
pids = (100, 101, 102, 103)
found = [nvidia.find(pid) for pid in pids]
if sys.argv[4] == "again":
    # 103 was first asked about after the list was made: nobody can say yet.
    assert nvidia.knows(100) and not nvidia.knows(103)
    deadline = time.monotonic() + 60
    while not nvidia.knows(103):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        found = [nvidia.find(pid) for pid in pids]
print(json.dumps([[d and [d.class_name, d.gpu_uuid] for d in found], nvidia.error]), flush=True)
"""


def ask_nvml(tmp_path: Path, standin: str, seconds: float = 60.0) -> tuple[list[object], str]:
    """What Nvidia says in a process whose libnvidia-ml is the stand-in."""
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    write(tmp_path / "dev/nvidiactl", "")
    root = str(Path(__file__).resolve().parent.parent)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "STANDIN": standin, "PYTHONPATH": root}
    arguments = [sys.executable, "-c", ASK, "/proc", str(tmp_path / "dev"), str(seconds)]
    arguments.append("" if standin else "again")
    done = subprocess.run(
        arguments, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found, error = json.loads(done.stdout)
    return found, error


def test_nvml_process_list(tmp_path: Path) -> None:
    found, error = ask_nvml(tmp_path, "")
    assert error == ""
    assert found == [
        ["nvidia/H200", "GPU-0"],  # on two GPUs: where it has most memory
        ["nvidia/H200", "GPU-0"],
        ["nvidia/H200-MIG-1g.18gb", "MIG-7"],
        None,
    ]


def test_nvml_that_fails(tmp_path: Path) -> None:
    found, error = ask_nvml(tmp_path, "fail")
    assert found == [None] * 4
    assert error.startswith("NVML:")


def test_nvml_that_hangs(tmp_path: Path) -> None:
    found, error = ask_nvml(tmp_path, "hang", 0.5)
    assert found == [None] * 4
    assert "has not answered" in error


def test_open_gpu_without_nvml(tmp_path: Path) -> None:
    # The kernel driver alone tells the model when a process has one of its devices open.
    dev, proc = tmp_path / "dev", tmp_path / "proc"
    write(dev / "nvidiactl", "")
    write(dev / "nvidia0", "")
    for gpu in ("0000:18:00.0", "0000:2a:00.0"):
        write(proc / f"driver/nvidia/gpus/{gpu}/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / str(os.getpid()) / "fd").symlink_to(f"/proc/{os.getpid()}/fd")
    nvidia = Nvidia(str(proc), str(dev))
    assert nvidia.holds_device(os.getpid()) is None
    with (dev / "nvidia0").open():
        device = nvidia.holds_device(os.getpid())
    assert device is not None
    assert device.class_name == "nvidia/H200"


def test_no_driver_at_all(tmp_path: Path) -> None:
    nvidia = Nvidia(str(tmp_path), str(tmp_path))
    assert not nvidia.present
    assert nvidia.find(os.getpid()) is None
    assert nvidia.error == ""
