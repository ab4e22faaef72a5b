"""A made-up NVIDIA driver that pynvml loads as the real one. ``fakenvml.h`` says what it reads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BUILT = FOLDER.parents[1] / "target" / "fakenvml" / "libnvidia-ml.so.1"
WHOLE = -1
NS = 1_000_000_000

# A healthy H200 at work. Fields as (number, link, value): what the driver of an H200 gives.
H200 = {
    "sm_clock": 1980,
    "sm_clock_max": 1980,
    "mem_clock": 3201,
    "mem_clock_max": 3201,
    "temperature": 55,
    "margin": 32,
    "memory_limit": 95,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "utilisation": 99,
    "reasons": 0,
    "persistence": 1,
    "fabric_state": 3,
    "fabric_status": 0,
    "fabric_health": 0b10_10_10_10 | 1 << 8,
}
H200_FIELDS: dict[int, int] = {
    **dict.fromkeys((74, 76, 77, 78, 79, 269, 270, 271), 0),
    82: 62,
    83: 10_000,
    185: 600_000,
    189: 700_000,
    190: 700_000,
    **dict.fromkeys((3, 4, 142, 143, 144, 145, 230), 0),
    **dict.fromkeys((94, 169, 173, 174, 177, 179, 180), 0),
    91: 18,
}
H200_LINK_FIELDS = {161: 0, 162: 0, 163: 0, 164: 26562, 165: 1}
H200_GPM = {1: 99.0, 2: 90.0, 5: 45.0, 10: 50.0, 20: 100.0, 21: 200.0, 60: 30000.0, 61: 30000.0}
POWER_W = 600


class FakeNvml:
    """The driver's file in a directory of its own; ``write`` makes changes visible at once."""

    def __init__(self, directory: Path, gpus: int = 8, model: str = "NVIDIA H200") -> None:
        """Builds the library where needed. Nothing is written before ``write``."""
        subprocess.run(["make", "--silent", "-C", str(FOLDER)], check=True)
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        shutil.copy(BUILT, directory / BUILT.name)
        self.gpus, self.model = gpus, model
        self.lines: dict[tuple[object, ...], str] = {}
        self._events = 0
        self._buses: dict[int, int] = {}
        for gpu in range(gpus):
            self.lines["name", gpu] = f"gpu {gpu} name {model}"
            self.lines["uuid", gpu] = f"gpu {gpu} uuid GPU-{gpu:08x}-0000-0000-0000-000000000000"
            self.at(gpu, 0x1B + gpu)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this driver."""
        return {"LD_LIBRARY_PATH": str(self.directory)}

    def at(self, gpu: int, bus: int) -> None:
        """Its place on PCI."""
        self._buses[gpu] = bus
        self.lines["pci", gpu] = f"gpu {gpu} pci 0 {bus:x} 0"

    def address(self, gpu: int) -> str:
        """PCI address, the subject of a sample."""
        return f"0000:{self._buses[gpu]:02x}:00.0"

    def healthy(self, gpm: bool = True) -> FakeNvml:
        """Every GPU is an H200 at work, with nothing wrong."""
        for gpu in range(self.gpus):
            for name, value in H200.items():
                self.set(gpu, name, value)
            for number, value in H200_FIELDS.items():
                self.field(gpu, number, value)
            self.signed(gpu, 194, -2)
            self.rate(gpu, 83, POWER_W * 1000)
            for number, value in H200_LINK_FIELDS.items():
                self.field(gpu, number, value, "*")
            if gpm:
                for metric, mean in H200_GPM.items():
                    self.gpm(gpu, metric, mean)
        return self

    def set(self, gpu: int, name: str, value: int) -> None:
        """What a plain call gives."""
        self.lines["set", gpu, name] = f"gpu {gpu} set {name} {value}"

    def unset(self, gpu: int, name: str) -> None:
        """A plain call is not supported."""
        del self.lines["set", gpu, name]

    def field(self, gpu: int, number: int, value: int, link: int | str = 0) -> None:
        """A field value."""
        self.lines["field", gpu, number, link] = f"gpu {gpu} field {number} {link} {value}"

    def signed(self, gpu: int, number: int, value: int) -> None:
        """A field value that may be negative."""
        self.lines["field", gpu, number, 0] = f"gpu {gpu} signed {number} 0 {value}"

    def rate(self, gpu: int, number: int, per_second: float, link: int | str = 0) -> None:
        """What a field's value grows by while time passes."""
        self.lines["rate", gpu, number, link] = f"gpu {gpu} rate {number} {link} {per_second}"

    def share(self, gpu: int, number: int, share: float) -> None:
        """A clock event reason holds for this share of the time."""
        self.rate(gpu, number, share * NS)

    def refuse(self, gpu: int, number: int, code: int, link: int | str = "*") -> None:
        """A field's own return code; 0 takes it back."""
        self.lines["refuse", gpu, number, link] = f"gpu {gpu} refuse {number} {link} {code}"

    def error(self, gpu: int, function: str, code: int) -> None:
        """What a function returns for this GPU; 0 takes it back."""
        self.lines["error", gpu, function] = f"gpu {gpu} error {function} {code}"

    def hang(self, gpu: int | None, function: str, seconds: float) -> None:
        """A function takes this long; 0 takes it back. None: one that is about no GPU."""
        who = "" if gpu is None else f"gpu {gpu} "
        self.lines["hang", gpu, function] = f"{who}hang {function} {seconds}"

    def fail(self, function: str, code: int) -> None:
        """What a function that is about no GPU returns."""
        self.lines["error", None, function] = f"error {function} {code}"

    def lose(self, gpu: int) -> None:
        """It falls off the bus."""
        self.lines["lost", gpu] = f"gpu {gpu} lost"

    def find(self, gpu: int) -> None:
        """It is back."""
        del self.lines["lost", gpu]

    def xid(self, gpu: int, number: int) -> None:
        """The driver reports an error."""
        self._events += 1
        self.lines["xid", gpu, self._events] = f"gpu {gpu} xid {self._events} {number}"

    def process(self, gpu: int, pid: int, instance: int = WHOLE) -> None:
        """A process has memory on the GPU."""
        line = f"gpu {gpu} process {pid} {1 << 30} {instance}"
        self.lines["process", gpu, pid, instance] = line

    def gpm(self, gpu: int, metric: int, mean: float, instance: int = WHOLE) -> None:
        """A GPM metric."""
        self.lines["gpm", gpu, metric, instance] = f"gpu {gpu} gpm {metric} {mean} {instance}"

    def mig(self, gpu: int, instance: int, profile: str) -> str:
        """Divide a GPU; the subject of the instance's samples."""
        uuid = f"{gpu:08x}-{instance:04x}-0000-0000-000000000000"
        name = f"{self.model} MIG {profile}"
        self.lines["mig", gpu, instance] = f"gpu {gpu} mig {instance} MIG-{uuid} {name}"
        return f"{self.address(gpu)}/mig-{uuid}"

    def write(self, final: bool = False) -> None:
        """Replace the driver's file; ``final``: it will not be looked at again."""
        new = self.directory / "gpus.new"
        last = ["final"] if final else []
        new.write_text("\n".join([f"gpus {self.gpus}", *self.lines.values(), *last]) + "\n")
        new.rename(self.directory / "gpus.txt")
