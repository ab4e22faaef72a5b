"""The Debian package: built twice, checked, and installed by dpkg on a copy of this machine."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd import __version__
from stragd.config import Config
from stragd.config_sources import load
from stragd.manual import FILES, default_config
from tests.harness import ROOT, wait_for
from tests.needs import lacking

BUILD = ROOT / "packaging/deb/build"
# What dpkg, adduser and man leave of any package.
LEFT_BY_OTHERS = (
    "var/lib/dpkg/*", "var/log/*", "var/cache/*", "var/backups/*", "etc/group*", "etc/gshadow*",
    "etc/ld.so.cache", "etc/.pwd.lock", "var/lib/systemd/catalog*", "tmp/*", "root/*", "run/*",
)  # fmt: skip


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, and a second build of it that is the same file."""
    if not shutil.which("dh"):
        lacking("debhelper is not installed")
    first = tmp_path_factory.mktemp("deb") / "stragd.deb"
    shutil.copy(run(BUILD).splitlines()[-1], first)
    again = Path(run("sh", "-c", f"umask 077; exec {BUILD}").splitlines()[-1])
    assert again.name == f"stragd_{__version__}_{run('dpkg', '--print-architecture').strip()}.deb"
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (first, again)]
    assert digests[0] == digests[1], "two builds differ"
    return first


def test_architecture_without_a_package_is_refused() -> None:
    for arguments in (["--arch", "riscv64"], ["--arch"], ["1", "2"]):
        done = subprocess.run([BUILD, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1, done.stderr
    done = subprocess.run([BUILD, "--arch", "riscv64"], capture_output=True, text=True, check=False)
    assert "no package for riscv64: amd64 and arm64 are supported" in done.stderr


class Machine:
    """Debian with nothing of ours, copied on write from this one, in a mount namespace."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.upper, self.root = directory / "upper", directory / "root"
        setup = f"""
            mount -t tmpfs none {directory} && cd {directory} && mkdir upper work root &&
            mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root &&
            for at in proc sys dev; do mount --rbind /$at root/$at || exit; done
            mkdir -p root/run root/tmp && echo ready && exec sleep 1000
        """
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", setup],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        first = self._holder.stdout.readline()
        if first != "ready\n":
            self.close()
            lacking(f"an overlay of / cannot be mounted: {first.strip()}")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(60)

    def inside(self, *command: str, chroot: bool = True) -> list[str]:
        """A command that runs in it."""
        pid = str(self._holder.pid)
        into = ["chroot", str(self.root)] if chroot else []
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        return ["nsenter", "--mount", "-t", pid, *into, "env", "-i", path, "LC_ALL=C", *command]

    def run(self, *command: str) -> str:
        return run(*self.inside(*command))

    def install(self, file: Path) -> str:
        """dpkg --install, without a terminal."""
        run(*self.inside("cp", str(file), f"{self.root}/tmp/x.deb", chroot=False))
        return self.run("sh", "-c", "dpkg --install /tmp/x.deb </dev/null 2>&1")

    def new(self) -> set[str]:
        """Files and folders that were not there in the beginning, but for other programs' own."""
        find = ["find", str(self.upper), "-mindepth", "1", "-not", "-type", "c"]
        listed = run(*self.inside(*find, "-printf", "%P\\n", chroot=False))
        return {
            path
            for path in listed.splitlines()
            if not os.path.lexists(f"/{path}")
            and not any(fnmatch.fnmatch(path, pattern) for pattern in LEFT_BY_OTHERS)
        }


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        lacking("installing a package needs root")
    one = Machine(tmp_path / "machine")
    with contextlib.closing(one):
        yield one


def upgraded(package: Path, folder: Path) -> Path:
    """The same package with a later version."""
    run("dpkg-deb", "--raw-extract", package, folder / "later")
    control = folder / "later/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {__version__}", "Version: 99.0"))
    run("dpkg-deb", "--build", "--root-owner-group", folder / "later", folder / "later.deb")
    return folder / "later.deb"


def test_lintian_has_no_errors(package: Path) -> None:
    if not shutil.which("lintian"):
        lacking("lintian is not installed")
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", package) == ""


def test_from_install_to_purge(package: Path, machine: Machine, tmp_path: Path) -> None:
    assert machine.new() == set()
    machine.install(package)
    assert machine.run("stragd", "--version") == f"stragd {__version__}\n"
    assert machine.run("stragctl", "--version") == f"stragctl {__version__}\n"
    machine.run("stragd", "--check-config")
    assert machine.run("dpkg", "--verify", "stragd") == ""
    assert "usr/lib/stragd/stragd/__pycache__" in machine.new(), "it is not compiled"
    assert "stragd" in machine.run("getent", "group", "stragd")
    new = machine.new()
    assert not [path for path in new if "wants" in path], "the service was enabled"
    for page in ("stragd.8", "stragctl.1", "stragd.toml.5"):
        section = page.rpartition(".")[2]
        assert f"usr/share/man/man{section}/{page}.gz" in new

    machine.run("stragctl", "ring", "install", "--containers")
    machine.run("sh", "-c", "echo '# mine' >>/etc/stragd/stragd.toml; mkdir -p /var/lib/stragd "
                "/etc/stragd/stragd.toml.d; echo kept >/var/lib/stragd/baselines; "
                "echo '[windows]' >/etc/stragd/stragd.toml.d/mine.toml")  # fmt: skip
    machine.install(upgraded(package, tmp_path))
    assert "99.0" in machine.run("dpkg-query", "--show", "stragd")
    assert machine.run("tail", "-n", "1", "/etc/stragd/stragd.toml") == "# mine\n"
    assert machine.run("cat", "/var/lib/stragd/baselines") == "kept\n"
    assert "stragd begin" in machine.run("cat", "/etc/nccl.conf")
    machine.run("stragd", "--check-config")

    machine.run("dpkg", "--remove", "stragd")
    left = {path for path in machine.new() if not path.startswith(("etc/stragd", "var/lib/stragd"))}
    assert {path for path in left if not path.startswith("var/lib/systemd")} == set()
    assert machine.run("cat", "/etc/stragd/stragd.toml.d/mine.toml") == "[windows]\n"
    machine.run("dpkg", "--purge", "stragd")
    assert machine.new() == set()
    assert "stragd" not in machine.run("cat", "/etc/group")


def test_the_installed_daemon_runs_and_answers(package: Path, machine: Machine) -> None:
    machine.install(package)
    command = machine.inside(
        "STRAGD_CONTROL_SOCKET=/run/of-test.sock", "STRAGD_PROMETHEUS_ADDRESS=127.0.0.1:0", "stragd"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as daemon:
        try:
            asking = machine.inside("stragctl", "--socket", "/run/of-test.sock", "doctor")

            def answer() -> str:
                assert daemon.poll() is None, daemon.communicate()[0].decode()
                return subprocess.run(asking, capture_output=True, text=True, check=False).stdout

            said = wait_for("the installed stragd to answer", answer)
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert re.search(r"probes .*the BPF programs are loaded", said), said


@pytest.mark.parametrize(
    ("release", "wanted"),
    [
        ("5.15.0-130-generic", True),
        ("6.1.0-50-amd64", True),
        ("6.5.13", True),
        ("6.6.0", False),
        ("6.12.48+deb13-amd64", False),
        ("10.0.1", False),
        ("strange", False),
    ],
)
def test_cap_sys_admin_is_given_on_kernels_without_uprobe_multi_only(
    release: str, wanted: bool, tmp_path: Path
) -> None:
    (tmp_path / "uname").write_text(f"#!/bin/sh\necho {release}\n")
    (tmp_path / "uname").chmod(0o755)
    text = (ROOT / "packaging/deb/kernel-generator").read_text()
    installed = "/usr/share/stragd/systemd/kernel-before-6.6.conf"
    assert text.count(installed) == 1
    generator = tmp_path / "generator"
    generator.write_text(text.replace(installed, str(ROOT / "systemd/kernel-before-6.6.conf")))
    done = subprocess.run(
        ["sh", generator, tmp_path / "out", tmp_path / "out", tmp_path / "out"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out/stragd.service.d/kernel-before-6.6.conf").exists() is wanted


def test_the_installed_configuration_names_every_key_and_its_default(tmp_path: Path) -> None:
    def loaded(text: str) -> Config:
        (tmp_path / "stragd.toml").write_text(text)
        return load(tmp_path / "stragd.toml", environment={})

    as_installed, set_explicitly = default_config(), re.sub(r"(?m)^#(\w)", r"\1", default_config())
    default, explicit = loaded(as_installed), loaded(set_explicitly)
    assert set(default.origins.values()) <= {"default"}
    assert len(explicit.origins) == len(re.findall(r"(?m)^#\w+ = ", as_installed))
    assert default.changed(explicit) == ([], [])


def test_man_pages_and_completions(tmp_path: Path) -> None:
    for name, make in FILES.items():
        (tmp_path / name).write_text(make())
    for page in ("stragd.8", "stragctl.1", "stragd.toml.5"):
        done = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", tmp_path / page],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "MANROFFSEQ": "", "MANWIDTH": "80"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
    assert "stragctl ring" in (tmp_path / "stragctl.1").read_text()
    assert "false_alarms_per_million" in (tmp_path / "stragd.toml.5").read_text()
    complete = (
        f"source {tmp_path}/stragctl.bash; COMP_WORDS=(stragctl fin); COMP_CWORD=1; "
        '_shtab_stragctl 2>/dev/null || $(complete -p stragctl | grep -o "_shtab[a-z_]*"); '
        'echo "${COMPREPLY[@]}"'
    )
    assert "findings" in run("bash", "-c", complete).split()
