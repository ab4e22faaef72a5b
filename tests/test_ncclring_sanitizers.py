"""The plugin under the sanitizers and 16 threads that do everything wrong.

STRAGD_STRESS_SECONDS makes each run longer (default 5).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ncclring.build import COMPILE, HERE, plugin, recorder, run

SECONDS = os.environ.get("STRAGD_STRESS_SECONDS", "5")
THREADS = "16"


@pytest.fixture(scope="module", params=["address,undefined", "thread", "none"])
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the plugin and the stress, built with a sanitizer."""
    directory = tmp_path_factory.mktemp(request.param.replace(",", "-"))
    if request.param == "none":
        plugin(directory)
        flags: list[str] = []
    else:
        flags = [f"-fsanitize={request.param}"]
        if "undefined" in request.param:
            flags.append("-fno-sanitize-recover=undefined")
        plugin(directory, SANITIZE=request.param, CFLAGS="-O1 -g " + " ".join(flags))
    run("cc", *COMPILE, *flags, "-rdynamic", "-o", directory / "stress-nccl",
        HERE / "stress.c", "-ldl")  # fmt: skip
    return directory


@pytest.mark.parametrize(("version", "chain"), [(3, False), (4, False), (7, False), (5, True)])
def test_stress(stress: Path, version: int, chain: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STRAGD_RING")}
    # The options of all: the first report ends the run. ThreadSanitizer's own locks do not
    # survive a fork among threads.
    environment |= {
        "TSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    if "thread" in stress.name:
        environment["STRESS_NO_FORK"] = "1"
    if chain:
        environment |= {
            "STRAGD_RING_CHAIN": str(recorder(stress, version)),
            "RECORDER_MASK": "0xfff",
        }
    done = subprocess.run(
        [stress / "stress-nccl", stress / "libnccl-profiler-stragd.so", str(version), SECONDS,
         THREADS],
        capture_output=True, text=True, env=environment, timeout=float(SECONDS) * 10 + 120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr[-8000:]}"
    assert not done.stderr
    order, head, pool, comm, claim, stale = map(int, done.stdout.split())
    # Not a run of callbacks that did nothing.
    assert order >= 20000
    assert min(head, stale) > 1000
    assert min(pool, comm, claim) >= 0
