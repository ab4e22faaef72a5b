"""make test-vm: the Debian package from installation to purge, in a machine of its own.

QEMU emulates it without KVM, so that it runs wherever tests run: Debian with systemd and its own
kernel, no network, one training job of an ordinary user (a CPU simulation of NCCL, with the plugin
through /etc/nccl.conf) with a slow rank. The steps are in guest.py; here are the host's part and
the figures. Needs root and about 2 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stragd import __version__
from tests.cpunccl.library import NCCL
from tests.cpunccl.ranks import build
from tests.harness import ROOT

FOLDER = Path(__file__).resolve().parent
PANIC, BREAKPOINT = "Kernel panic - not syncing", " int3: 0000 ["
LIMIT = 3000.0  # seconds for all steps; for a hang, not for a pace
MEMORY_MIB, PROCESSORS = 1024, 4
# For an emulated processor: a clock that costs no exit, no second page table, no self-tests.
FAST = "tsc=reliable mitigations=off cryptomgr.notests"


class Failed(Exception):
    """The machine did not do what it should; the message says what and why."""


class Emulated(Failed):
    """A processor met a breakpoint that another one had just taken out of the kernel's own text: no
    real one does. It is rare, and the steps begin again."""


def say(text: str) -> None:
    print(text, flush=True)


def output(*command: str | Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def packages(directory: Path) -> Path:
    """The package and a later version of it, below ``directory``; the first one's path."""
    for which, version in (("first", __version__), ("later", f"{__version__}+later")):
        made = Path(output(ROOT / "packaging/deb/build", version).splitlines()[-1])
        (directory / which).mkdir(parents=True)
        shutil.copy(made, directory / which)
    (first,) = (directory / "first").iterdir()
    return first


def second_disk(directory: Path, file: Path) -> None:
    """What the machine is given: packages, job and steps, as a file system."""
    build()
    for source in (NCCL, FOLDER / "guest.py", *(ROOT / "tests/cpunccl").glob("*.py"),
                   ROOT / "tests/trainer/pace.py"):  # fmt: skip
        target = directory / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    output("mke2fs", "-q", "-t", "ext4", "-d", directory, file, "64M")


class Machine:
    """QEMU with the image, whose changes are forgotten at the end."""

    def __init__(self, image: Path, given: Path, directory: Path) -> None:
        self.console, self._reports = directory / "console", directory / "reports"
        self.console.write_text("")
        self._reports.write_text("")
        drive = "if=virtio,format=raw,file="
        command = [
            "qemu-system-x86_64", "-machine", "q35,sata=off,smbus=off", "-accel",
            "tcg,thread=multi", "-cpu", "Nehalem", "-smp", str(PROCESSORS),
            "-m", str(MEMORY_MIB), "-nodefaults", "-display", "none", "-nic", "none", "-snapshot",
            "-kernel", image / "vmlinuz", "-initrd", image / "initrd",
            "-append", f"root=/dev/vda rw console=ttyS0 quiet {FAST}",
            "-drive", f"{drive}{image}/root.ext4", "-drive", f"{drive}{given}",
            "-serial", f"file:{self.console}",
            "-device", "virtio-serial-pci", "-device", "virtio-rng-pci",
            "-chardev", f"file,id=reports,path={self._reports}",
            "-device", "virtserialport,chardev=reports,name=acceptance",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(directory)})

    def reports(self) -> Iterator[dict[str, Any]]:
        """What the machine reports, until it ends; Failed after LIMIT."""
        deadline = time.monotonic() + LIMIT
        with self._reports.open() as file:
            line = ""
            while True:
                ended = self.process.poll() is not None
                line += file.readline()
                if line.endswith("\n"):
                    yield json.loads(line)
                    line = ""
                elif ended:
                    return
                elif PANIC in (console := self.console.read_text(errors="replace")):
                    raise (Emulated if BREAKPOINT in console else Failed)("the kernel has panicked")
                elif time.monotonic() > deadline:
                    raise Failed(f"the machine was not ready after {LIMIT:.0f} s")
                else:
                    time.sleep(0.5)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


def follow(machine: Machine) -> None:
    """Print the steps as they are done; Failed where one fails or the machine ends early."""
    began = time.monotonic()
    for report in machine.reports():
        if "failed" in report:
            raise Failed(f"{report['seen']}\n{report['failed']}")
        if "finished" in report:
            machine.process.wait(LIMIT)
            return
        seconds = report.pop("seconds")
        if "waiting" in report:
            say(f"  ... {seconds} s of waiting for {report['waiting']}")
            continue
        step = report.pop("step").replace("_", " ")
        figures = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in report.items()
        )
        say(f"{time.monotonic() - began:6.0f} s  {step:32} {seconds:6.1f} s  {figures}")
    raise Failed("the machine ended before its steps")


def run(image: Path, directory: Path) -> None:
    """All steps, in a new machine."""
    machine = Machine(image, directory / "given.ext4", directory)
    try:
        follow(machine)
    finally:
        machine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", default="bookworm", help="of Debian")
    options = parser.parse_args()
    began = time.monotonic()
    # The disk's changes are kept here: not in memory.
    with tempfile.TemporaryDirectory(prefix="stragd-vm-", dir="/var/tmp") as name:
        directory = Path(name)
        console = directory / "console"
        try:
            package = packages(directory / "given")
            depends = output("dpkg-deb", "--field", package, "Depends")
            cache = os.environ.get("STRAGD_CACHE", Path.home() / ".cache/stragd")
            image = Path(output(FOLDER / "image", options.release, cache, depends).strip())
            second_disk(directory / "given", directory / "given.ext4")
            say(f"test-vm: packages and image after {time.monotonic() - began:.0f} s, {image.name}")
            try:
                run(image, directory)
            except Emulated as error:
                say(f"test-vm: {error}, of a breakpoint of its own: once more")
                run(image, directory)
        except Failed as error:
            if console.exists():
                last = console.read_text(errors="replace").splitlines()[-40:]
                print("console:", *last, sep="\n", file=sys.stderr)
            print(f"test-vm: {error}", file=sys.stderr)
            return 1
    say(f"test-vm: passed, {time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
