"""Builds the plugin, the host that plays NCCL, and what else the plugin's tests run."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = ROOT / "tests/ncclring"
PLUGIN = "libnccl-profiler-stragd.so"
COMPILE = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")


@dataclass(frozen=True)
class Built:
    """What was built: the plugin, and the host as a program that links libnccl or librccl."""

    plugin: Path
    nccl_host: Path
    rccl_host: Path
    directory: Path


def run(*command: str | Path) -> None:
    """Run a build command; its output is the error when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def plugin(out: Path, **variables: str) -> Path:
    """The plugin, built by its own Makefile into ``out``."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    run("make", "-s", "-C", ROOT / "ncclring", f"OUT={out}", *settings)
    return out / PLUGIN


def host(directory: Path, library: str) -> Path:
    """The host, with its calls in a library of the given name."""
    directory.mkdir()
    run("cc", *COMPILE, "-shared", "-fPIC", f"-Wl,-soname,{library}",
        "-o", directory / library, HERE / "host.c", "-ldl")  # fmt: skip
    run("cc", *COMPILE, "-o", directory / "host", HERE / "main.c",
        directory / library, "-Wl,-rpath,$ORIGIN")  # fmt: skip
    return directory / "host"


def recorder(directory: Path, version: int) -> Path:
    """The second plugin, exporting one version; named so that a bare name finds it."""
    library = directory / f"libnccl-profiler-recorder{version}.so"
    run("cc", *COMPILE, "-shared", "-fPIC", f"-DVERSION={version}",
        "-o", library, HERE / "recorder.c")  # fmt: skip
    return library


@functools.cache
def built() -> Built:
    """Everything but the sanitizer builds, once in a run of the tests."""
    # Kept as an attribute, so that the directory lives as long as the process.
    keep = tempfile.TemporaryDirectory(prefix="stragd-ncclring-")
    built.keep = keep  # type: ignore[attr-defined]
    directory = Path(keep.name)
    os.chmod(directory, 0o755)
    return Built(
        plugin=plugin(directory / "plugin"),
        nccl_host=host(directory / "nccl", "libnccl.so.2"),
        rccl_host=host(directory / "rccl", "librccl.so.1"),
        directory=directory,
    )
