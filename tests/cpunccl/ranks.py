"""A pytest plugin: ranks of a scenario as processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cpunccl.library import BUILT

FOLDER = Path(__file__).resolve().parent
LIMIT = 240.0  # seconds; for a hang, not for a pace


def build() -> None:
    """Bring target/cpunccl up to date."""
    command = ["make", "--silent", "-C", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")


class Ranks:
    """``world`` processes of scenarios.py, gone at the end."""

    def __init__(self, scenario: str, world: int, directory: Path, **environment: str) -> None:
        self.directory, self.world = directory, world
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "CPUNCCL_"))}
        clean |= {"HOME": str(directory), "CPUNCCL_ETC": str(directory), "RANK": ""}
        clean |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        clean |= {name: value.format(directory=directory) for name, value in environment.items()}
        self.processes = []
        for rank in range(world):
            with (directory / f"output.{rank}").open("wb") as output:
                arguments = [scenario, str(rank), str(world), str(directory)]
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(FOLDER / "scenarios.py"), *arguments],
                        stdout=output,
                        stderr=output,
                        env=clean,
                    )
                )

    def statuses(self) -> list[int]:
        """Exit statuses by rank, once all have ended."""
        return [one.wait(LIMIT) for one in self.processes]

    def finish(self) -> None:
        """Wait for all; every scenario must have held."""
        for rank, status in enumerate(self.statuses()):
            output = (self.directory / f"output.{rank}").read_text(errors="replace")
            assert status == 0, f"rank {rank} of {self.world} ended with {status}: {output}"

    def unique_id_head(self) -> str:
        """Of the world, as it stands in the names of shared memory."""
        head = (self.directory / "unique-id").read_bytes()[:8]
        return f"{int.from_bytes(head, 'little'):016x}"

    def calls(self, rank: int) -> list[dict[str, Any]]:
        """What the logging plugin saw in a rank."""
        path = self.directory / f"log.{self.processes[rank].pid}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kill(self) -> None:
        """End what still runs."""
        for one in self.processes:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait(60)


@pytest.fixture(scope="session")
def cpunccl() -> Path:
    """The folder of the built libraries."""
    build()
    return BUILT


@pytest.fixture
def ranks(cpunccl: Path, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """``ranks(scenario, world, NAME=value, …)`` starts them."""
    started: list[Ranks] = []

    def start(scenario: str, world: int, **environment: str) -> Ranks:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Ranks(scenario, world, directory, **environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()
