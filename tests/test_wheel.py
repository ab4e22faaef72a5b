"""The wheel: built, installed into a new environment without network, and used from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd import __version__
from stragd.manual import FILES
from tests.harness import ROOT, Daemon
from tests.needs import lacking

BUILD = ROOT / "packaging/wheel/build"
PLUGIN = "stragd/data/libnccl-profiler-stragd.so"


def run(*command: str | Path, **environment: str) -> str:
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd="/",
        env=clean | environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cargo"):
        lacking("a wheel is built with cargo")
    return Path(shutil.copy(run(BUILD).splitlines()[-1], tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; numpy and the like come from that of the tests."""
    place = tmp_path_factory.mktemp("environment") / "new"
    run(sys.executable, "-m", "venv", "--without-pip", place)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        place / "bin/python",
    ]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    own = next(place.glob("lib/python*/site-packages"))
    others = [sysconfig.get_path("purelib"), "/usr/lib/python3/dist-packages"]
    # Only their folders: a .pth file in them, by which the checkout is there, is not read.
    (own / "others.pth").write_text("\n".join(others) + "\n")
    return place


def test_one_file_for_every_python_has_all_but_the_service(wheel: Path) -> None:
    name, version, *tags = wheel.stem.split("-")
    assert (name, version, tags[:2]) == ("stragd", __version__, ["cp310", "abi3"])
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        names = set(file.namelist())
    share = f"stragd-{__version__}.data/data/share/"
    assert {PLUGIN, "stragd/_rscore.abi3.so", "stragd/data/finding.schema.json"} <= names
    manual = {Path(n).name.replace("_", "", 1) for n in names if n.startswith(share)}
    for made in FILES:
        assert {made, Path(made).stem} & manual or made == "stragctl.zsh", made
    for file in [*(ROOT / "grafana").rglob("*"), *(ROOT / "docs").rglob("*")]:
        if file.is_file():
            place = "stragd" if "grafana" in file.parts else "doc/stragd"
            assert f"{share}{place}/{file.relative_to(ROOT)}" in names
    assert not any("systemd" in n or n.endswith(".pyc") for n in names)


def test_it_is_used_from_a_new_environment(installed: Path, tmp_path: Path) -> None:
    stragctl = installed / "bin/stragctl"
    assert __version__ in run(stragctl, "--version")
    where = "import stragd, stragd._rscore as r; print(stragd.__file__, r.__file__)"
    for path in run(installed / "bin/python", "-c", where).split():
        assert Path(path).is_relative_to(installed)
    small = ["--ranks", "8", "--jobs", "2", "--healthy", "1000", "--slowdown", "20"]
    (power,) = json.loads(run(stragctl, "simulate", *small, "--json"))["power"]
    assert power["named"] == 2
    planned = run(stragctl, "ring", "install", "--containers", "--dry-run")
    (plugin,) = installed.glob(f"lib/python*/site-packages/{PLUGIN}")
    assert f"+NCCL_PROFILER_PLUGIN={plugin}\n" in planned
    assert (installed / "share/man/man1/stragctl.1").is_file()
    assert (installed / "share/stragd/grafana/stragd.json").is_file()


class Installed(Daemon):
    """The daemon of the new environment."""

    place: Path

    def command(self) -> list[str | Path]:
        return [self.place / "bin/stragd", "--config", self.config]


@pytest.fixture
def watcher(installed: Path, tmp_path: Path, root: None) -> Iterator[Installed]:
    one = Installed(tmp_path)
    one.place = installed
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_its_daemon_can_load_its_probes(watcher: Installed) -> None:
    checks = {check["feature"]: check for check in watcher.ask("doctor")["checks"]}
    assert watcher.control("status").returncode == 0
    assert checks["probes"]["state"] == "ok", checks
