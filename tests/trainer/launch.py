"""Command lines that start ranks, for every torch and Python that the tests meet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

TRAINERS = Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"  # Debian's own: it sees python3-torch
FIRST = ("chrt", "--rr", "1")
"""Before all else on the machine: what is measured is the network, and not who has a CPU."""


def torchrun(
    script: str | Path,
    ranks: int,
    port: int,
    logs: Path,
    *arguments: str,
    python: str = PYTHON,
    more: tuple[str, ...] = (),
) -> list[str]:
    """Start ``ranks`` ranks of a trainer of this folder (or a path) on this machine.

    torch 1.13 on Python 3.11 cannot read the default of --redirects (an empty flag is no longer
    listed among its enum's members), so stdout goes through a file in ``logs`` and is shown too;
    newer ones take the same options. ``more`` holds further options of torchrun itself.
    """
    command = [python, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    command += ["--master_port", str(port), *more]
    command += ["--redirects", "1", "--tee", "1", "--log_dir", str(logs)]
    return [*command, str(TRAINERS / script), *arguments]


def apart(script: str, namespaces: Sequence[str], master: str, *arguments: str) -> list[str]:
    """Start one rank in each network namespace, over its device eth0; ends when all have ended.

    They go before all else on the machine. ``master`` is the address of the first rank there.
    """
    ranks = []
    for rank, namespace in enumerate(namespaces):
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": len(namespaces),
            "MASTER_ADDR": master,
            "MASTER_PORT": 29500,
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        command = ["env", *(f"{name}={value}" for name, value in environment.items())]
        command += [PYTHON, "-u", str(TRAINERS / script), *arguments]
        ranks.append(shlex.join([*FIRST, "ip", "netns", "exec", namespace, *command]))
    return ["/bin/sh", "-c", " & ".join([*ranks, "wait"])]
