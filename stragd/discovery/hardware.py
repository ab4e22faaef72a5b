"""Hardware class of a rank: the GPU whose driver lists the process, else the CPU model.

Only machines of one class are compared with each other. Drivers may be missing, vanish or hang;
NVML is asked in a thread of its own and given up for a while when it does not answer.
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stragd.discovery.process import printable, read_bounded

LIST_SECONDS = 2.0  # a driver's process list is asked at most this often
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 60.0
MAX_DEVICES = 256


@dataclass(frozen=True)
class Device:
    """A device class and, for GPUs, which one."""

    class_name: str  # "cpu/<model>", "nvidia/H200", "amd/MI300X"
    gpu_uuid: str = ""


ARM_IMPLEMENTERS = {
    "0x41": "arm",
    "0x46": "fujitsu",
    "0x4e": "nvidia",
    "0x61": "apple",
    "0xc0": "ampere",
}
ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0xc0", "0xac3"): "AmpereOne",
}
# PCI device ids of AMD's data-centre GPUs, for drivers that give no product name.
AMD_MODELS = {
    0x738C: "MI100",
    0x7408: "MI250X",
    0x740C: "MI250X",
    0x740F: "MI210",
    0x74A0: "MI300A",
    0x74A1: "MI300X",
    0x74A2: "MI308X",
    0x74A5: "MI325X",
    0x75A0: "MI350X",
    0x75A3: "MI355X",
}


def short(model: str) -> str:
    """A model's name without vendor, trade marks and clock rates, words joined by "-"."""
    model = re.sub(r"\((?:R|TM|C)\)|®|™", " ", model, flags=re.IGNORECASE)
    model = re.sub(r"@.*$|\b\d+-Core\b|\bwith Radeon.*$", " ", model, flags=re.IGNORECASE)
    drop = {"nvidia", "amd", "intel", "instinct", "cpu", "processor", "oam", "graphics"}
    words = [w for w in re.split(r"[\s,;:/_]+", model) if w and w.lower() not in drop]
    return printable("-".join(words), 48) or "unknown"


def cpu_class(proc: str = "/proc") -> str:
    """Class of this machine's CPU; "cpu/unknown" where /proc/cpuinfo says nothing."""
    text = (read_bounded(f"{proc}/cpuinfo", 1 << 16) or b"").decode("utf-8", "replace")
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip().lower(), value.strip())
    if model := values.get("model name"):
        vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(values.get("vendor_id", ""))
        name = short(model)
        return f"cpu/{name if vendor is None else f'{vendor}-{name}'}"
    implementer, part = values.get("cpu implementer", ""), values.get("cpu part", "")
    if implementer:
        known = ARM_PARTS.get((implementer, part))
        maker = ARM_IMPLEMENTERS.get(implementer, implementer)
        return printable(f"cpu/{known or f'{maker}-{part}'}", 52)
    return f"cpu/{short(values.get('cpu', values.get('uarch', '')))}"


class Nvidia:
    """Processes on NVIDIA GPUs, through ``pynvml`` where it and the driver are there."""

    def __init__(
        self, proc: str = "/proc", dev: str = "/dev", answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._proc, self._dev = proc, dev
        self._answer_seconds = answer_seconds
        self._devices: dict[int, Device] = {}
        self._asked: dict[int, float] = {}
        self._listed_at = float("-inf")
        self._retry_at = float("-inf")
        self._worker: queue.SimpleQueue[Callable[[], None]] | None = None
        self._answers: queue.SimpleQueue[dict[int, Device] | str] | None = None
        driver = (Path(proc) / "driver/nvidia/version", Path(dev) / "nvidiactl")
        self.present = any(path.exists() for path in driver)
        self.error = ""

    def find(self, pid: int) -> Device | None:
        """The GPU on which the process has most memory; None where NVML lists it on none."""
        now = time.monotonic()
        if not self.present or now < self._retry_at:
            return None
        self._asked.setdefault(pid, now)
        if pid not in self._devices and now - self._listed_at >= LIST_SECONDS:
            self._listed_at = now
            listed = self._ask()
            if listed is None:
                self._retry_at = time.monotonic() + RETRY_SECONDS
            else:
                self._devices = listed
        return self._devices.get(pid)

    def knows(self, pid: int) -> bool:
        """Whether ``find`` can be believed: the list is no older than the first question."""
        waiting = self.present and not self.error and pid not in self._devices
        return not waiting or self._listed_at >= self._asked.get(pid, float("inf"))

    def forget(self, pid: int) -> None:
        """The process is gone; its pid may come back as another."""
        self._devices.pop(pid, None)
        self._asked.pop(pid, None)

    def holds_device(self, pid: int) -> Device | None:
        """What can be known without NVML: the process has a GPU open, and all are of one model."""
        if not self.present or not _opens(self._proc, pid, f"{self._dev}/nvidia"):
            return None
        models = set()
        for path in sorted(Path(self._proc, "driver/nvidia/gpus").glob("*/information"))[
            :MAX_DEVICES
        ]:
            text = (read_bounded(path, 4096) or b"").decode("utf-8", "replace")
            if found := re.search(r"^Model:\s*(.+)$", text, re.MULTILINE):
                models.add(short(found[1]))
        return Device(f"nvidia/{models.pop()}" if len(models) == 1 else "nvidia/unknown")

    def _ask(self) -> dict[int, Device] | None:
        if self._worker is None:
            self._worker = queue.SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._worker,), name="stragd-nvml", daemon=True
            ).start()
        if self._answers is None:
            answers: queue.SimpleQueue[dict[int, Device] | str] = queue.SimpleQueue()
            self._worker.put(lambda: answers.put(_nvml_processes()))
            self._answers = answers
        try:
            answer = self._answers.get(timeout=self._answer_seconds)
        except queue.Empty:
            # One question at a time: a thread that hangs in the driver is not asked again.
            self.error = (
                f"NVML has not answered for {self._answer_seconds:.0f} s: GPU class guessed"
            )
            return None
        self._answers = None
        self.error = answer if isinstance(answer, str) else ""
        return None if isinstance(answer, str) else answer


def _serve(requests: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        requests.get()()


def _nvml_processes() -> dict[int, Device] | str:
    """Device of every compute process, or what is missing."""
    try:
        import pynvml
    except ImportError:
        return "NVIDIA driver without nvidia-ml-py: GPU class guessed; install stragd[nvidia]"
    try:
        pynvml.nvmlInit()
        best: dict[int, tuple[int, Device]] = {}
        try:
            for index in range(min(pynvml.nvmlDeviceGetCount(), MAX_DEVICES)):
                _list_device(pynvml, index, best)
        finally:
            pynvml.nvmlShutdown()
        return {pid: device for pid, (_, device) in best.items()}
    except (pynvml.NVMLError, OSError, AttributeError, TypeError, ValueError) as error:
        return f"NVML: {printable(str(error), 120)}"


def _list_device(nvml: Any, index: int, best: dict[int, tuple[int, Device]]) -> None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        model, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return  # this GPU is lost; the others are not
    slices = _mig_slices(nvml, handle) if processes else {}
    for process in processes[:4096]:
        instance = getattr(process, "gpuInstanceId", None)
        name, identifier = slices.get(instance, (model, uuid))
        used = process.usedGpuMemory or 0
        if process.pid not in best or used > best[process.pid][0]:
            best[process.pid] = (used, Device(f"nvidia/{short(name)}", printable(identifier)))


def _mig_slices(nvml: Any, handle: Any) -> dict[int | None, tuple[str, str]]:
    """Name and UUID by GPU instance; empty without MIG."""
    slices: dict[int | None, tuple[str, str]] = {}
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return slices
        for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 16)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                instance = nvml.nvmlDeviceGetGpuInstanceId(part)
                name, uuid = nvml.nvmlDeviceGetName(part), nvml.nvmlDeviceGetUUID(part)
                slices[instance] = (_text(name), _text(uuid))
            except nvml.NVMLError:
                continue
    except nvml.NVMLError:
        pass
    return slices


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class Amd:
    """Processes on AMD GPUs, from the kernel driver's own list (KFD sysfs); needs no library."""

    def __init__(self, sys: str = "/sys") -> None:
        self._kfd = Path(sys) / "class/kfd/kfd"
        self._drm = Path(sys) / "class/drm"
        self._models: dict[str, Device] = {}
        self.present = self._kfd.exists()

    def find(self, pid: int) -> Device | None:
        """The GPU on which the process has most memory; None where KFD lists it on none."""
        if not self.present:
            return None
        used: dict[str, int] = {}
        try:
            names = os.listdir(self._kfd / "proc" / str(pid))[:4096]
        except OSError:
            return None
        for name in names:
            if name.startswith("vram_"):
                value = _number(self._kfd / "proc" / str(pid) / name)
                used[name[5:]] = value if value is not None else 0
        if not used:
            return None
        gpu = max(sorted(used), key=lambda g: used[g])
        if gpu not in self._models:
            self._read_topology()
        return self._models.get(gpu, Device("amd/unknown"))

    def _read_topology(self) -> None:
        for gpu, properties in self.nodes():
            self._models[str(gpu)] = self.device(properties)

    def nodes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """GPU id and properties of every GPU, or part of one, in KFD's topology."""
        try:
            nodes = sorted((self._kfd / "topology/nodes").iterdir())[:MAX_DEVICES]
        except OSError:
            return
        for node in nodes:
            gpu = _number(node / "gpu_id")
            if not gpu:
                continue  # a CPU
            raw = read_bounded(node / "properties", 1 << 14) or b""
            lines = (line.split() for line in raw.decode("ascii", "replace").splitlines())
            yield gpu, {line[0]: line[1] for line in lines if len(line) == 2 and line[1].isdigit()}

    def device(self, properties: dict[str, str]) -> Device:
        """Class and UUID of a node of KFD's topology."""
        device = self._drm / f"renderD{properties.get('drm_render_minor', '0')}" / "device"
        product = (read_bounded(device / "product_name", 256) or b"").decode("utf-8", "replace")
        known = AMD_MODELS.get(int(properties.get("device_id", "0")))
        target = int(properties.get("gfx_target_version", "0"))
        gfx = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"
        model = known or (short(product) if product.strip() else gfx)
        partition = (
            (read_bounded(device / "current_compute_partition", 64) or b"")
            .strip()
            .decode("ascii", "replace")
        )
        if partition not in ("", "SPX"):  # a part of a GPU is another class than the whole
            model = f"{model}-{printable(partition, 8)}"
        unique = int(properties.get("unique_id", "0"))
        return Device(f"amd/{model}", f"GPU-{unique:016x}" if unique else "")


def _opens(proc: str, pid: int, prefix: str) -> bool:
    """Whether a process has a numbered device file open."""
    try:
        with os.scandir(f"{proc}/{pid}/fd") as files:
            for file in itertools.islice(files, 4096):
                target = os.readlink(file.path)
                if target.startswith(prefix) and target[len(prefix) :].isdigit():
                    return True
    except OSError:
        pass
    return False


def _number(path: Path) -> int | None:
    raw = (read_bounded(path, 64) or b"").strip()
    return int(raw) if raw.isdigit() else None


class Hardware:
    """Finds the device of a process; one per daemon."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys", dev: str = "/dev") -> None:
        self._nvidia, self._amd = Nvidia(proc, dev), Amd(sys)
        self._cpu = Device(cpu_class(proc))

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU driver is there, so that a process may still come to have one."""
        return self._nvidia.present or self._amd.present

    @property
    def error(self) -> str:
        """Why GPUs are not seen, "" where nothing is wrong."""
        return self._nvidia.error

    def find(self, pid: int) -> Device | None:
        """Device of a process, the CPU where no driver lists it; None: ask again later."""
        device = self._nvidia.find(pid) or self._amd.find(pid)
        if device is None and not self._nvidia.knows(pid):
            return None
        if device is None and self._nvidia.error:
            device = self._nvidia.holds_device(pid)
        return device or self._cpu

    def forget(self, pid: int) -> None:
        """The process is gone."""
        self._nvidia.forget(pid)
