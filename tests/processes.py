"""Real processes with the environments of real launchers, for tests of identity."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from stragd.discovery import Identifier, Identity, process

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts one child per environment of argv[1], prints their pids, ends them with its stdin.
LAUNCHER = """
import json, subprocess, sys
children = [subprocess.Popen(sys.argv[2:], env=e) for e in json.loads(sys.argv[1])]
print(json.dumps([c.pid for c in children]), flush=True)
sys.stdin.read()
for c in children: c.kill()
"""


NOISE = {f"NOISE_{n}": "x\n'\"=;$(" * 15000 for n in range(18)}
"""Two megabytes of variables; who starts with them needs ``big_stack``."""


def big_stack() -> None:
    """For ``preexec_fn``: the kernel gives arguments and environment a quarter of the stack."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    wanted = 64 << 20 if hard == resource.RLIM_INFINITY else min(hard, 64 << 20)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


class Processes:
    """Starts real processes and ends them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, env: dict[str, str], argv: list[str] | None = None, **more: Any) -> int:
        """Start a process with exactly this environment; it has been exec'ed on return."""
        child = subprocess.Popen(argv or SLEEP, env=env, **more)
        self._started.append(child)
        # Popen returns within exec, a moment before the new environment is in place.
        wait_for("exec", lambda: executed(child.pid))
        return child.pid

    def launch(self, envs: list[dict[str, str]], argv: list[str] | None = None) -> list[int]:
        """Start one process per environment under a launcher of their own."""
        child = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, json.dumps(envs), *(argv or SLEEP)],
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._started.append(child)
        assert child.stdout is not None
        pids: list[int] = json.loads(child.stdout.readline())
        wait_for("exec", lambda: all(executed(pid) for pid in pids))
        return pids

    def end(self, pid: int) -> None:
        """Kill one and wait for its end."""
        child = next(c for c in self._started if c.pid == pid)
        child.kill()
        child.wait(60)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._started:
            if child.stdin is not None:
                child.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(30)
            child.kill()
            child.wait(60)


def executed(pid: int) -> bool:
    stat = process.read_stat("/proc", pid)
    return stat is not None and stat.env_start != 0


def start_time(pid: int) -> int:
    stat = process.read_stat("/proc", pid)
    assert stat is not None
    return stat.start_time


def ask(identifier: Identifier, pid: int, *facts: Any) -> Identity | None:
    return identifier.identify(pid, start_time(pid), list(facts))


def known(identifier: Identifier, pid: int, *facts: Any) -> Identity:
    identity = ask(identifier, pid, *facts)
    assert identity is not None, identifier.notes()
    return identity


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (value := check()):
        assert time.monotonic() < deadline, f"waited 60 s in vain for {what}"
        time.sleep(0.02)
    return value


def fact(nranks: int, rank: int = -1, number: int = 0) -> dict[str, int]:
    return {"id": number, "rank": rank, "nranks": nranks, "collectives": 1}


def torchrun(rank: int, world: int, local_world: int | None = None, **more: str) -> dict[str, str]:
    here = world if local_world is None else local_world
    env = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % here,
        "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": rank // here,
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 3,
    }
    return {name: str(value) for name, value in env.items()} | more


def slurm(task: int, tasks: int, **more: str) -> dict[str, str]:
    env = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_NTASKS": str(tasks),
        "SLURM_LOCALID": str(task),
        "SLURM_JOB_NAME": "llama",
    }
    return env | more
