"""The command line of torchrun, for every torch and Python that the tests meet."""

from __future__ import annotations

from pathlib import Path

TRAINERS = Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"  # Debian's own: it sees python3-torch


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
