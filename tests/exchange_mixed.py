"""One job of two vendors: ranks of cpunccl, as NCCL on the first node and as RCCL on the second.

The drivers are made up, each in the mount namespaces of its node only: the library that pynvml
loads, and /sys/class as amdkfd makes it. CPU simulation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.patterns import PLUGIN
from tests.amdtree import AmdTree
from tests.cpunccl.ranks import FOLDER
from tests.fakenvml import FakeNvml
from tests.harness import Job
from tests.nodes import Node

EACH = 4
PORT = 29512
CLASSES = ("nvidia/H200", "amd/MI300X")
HOLD = 'while [ ! -e "$0" ]; do sleep 0.1; done; exec "$@"'


class Drivers:
    """Of both nodes; ``prepare`` makes them the ones that the node's programs see."""

    def __init__(self, directory: Path) -> None:
        self._nvml = FakeNvml(directory / "nvml", EACH).healthy()
        self._nvml.write()
        (directory / "driver/nvidia").mkdir(parents=True)
        (directory / "driver/nvidia/version").touch()
        self._amd = AmdTree(directory / "amd")
        self._gpus = [self._amd.add(f"0000:{number:02x}:00.0")[0] for number in range(EACH)]
        self.prepare = (
            f"mount --bind {directory}/driver /proc/driver"
            f" && export LD_LIBRARY_PATH={self._nvml.directory}",
            f"mount --bind {directory}/amd/class /sys/class",
        )

    def list(self, pids: Sequence[int]) -> None:
        """The processes of the job, by rank: one on each GPU."""
        for gpu, pid in enumerate(pids[:EACH]):
            self._nvml.process(gpu, pid)
        self._nvml.write()
        for gpu, pid in zip(self._gpus, pids[EACH:], strict=True):
            self._amd.process(pid, gpu)


class MixedJob(Job):
    """``EACH`` ranks on each of two nodes, begun once the drivers list them."""

    def __init__(
        self, nodes: Sequence[Node], drivers: Drivers, directory: Path, *arguments: str
    ) -> None:
        self.record, self.log = directory / "record.jsonl", directory / "job.log"
        go, run = directory / "go", uuid.uuid4().hex
        world = EACH * len(nodes)
        common = os.environ | {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(EACH),
            "MASTER_ADDR": nodes[0].address,
            "MASTER_PORT": str(PORT),
            "TORCHELASTIC_RUN_ID": run,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "CPUNCCL_DIRECTORY": str(directory),
        }
        options = ["--ranks", str(world), "--plugin", str(PLUGIN), "--record", str(self.record)]
        self.processes = []
        for rank in range(world):
            number, local = divmod(rank, EACH)
            vendor = ["--amd"] if CLASSES[number].startswith("amd/") else []
            command = [sys.executable, FOLDER / "trainer.py", *options, *vendor, *arguments]
            own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(number)}
            own |= {"NCCL_PROFILER_PLUGIN": str(PLUGIN)}
            with self.log.open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        nodes[number].command("sh", "-c", HOLD, go, *command),
                        stdout=log,
                        stderr=log,
                        env=common | own,
                        start_new_session=True,
                    )
                )
        self.process = self.processes[0]
        drivers.list([process.pid for process in self.processes])  # all of it is one exec
        go.touch()

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@contextlib.contextmanager
def mixed_job(nodes: Sequence[Node], drivers: Drivers, *arguments: str) -> Iterator[MixedJob]:
    """A running job, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="stragd-job-") as directory:
        one = MixedJob(nodes, drivers, Path(directory), *arguments)
        try:
            yield one
        finally:
            one.kill()
