"""``stragctl ring install`` and ``uninstall``: which plugin NCCL and RCCL load, in jobs to come.

Of two lines with one name NCCL and RCCL take the first, so ours go to the top of their files, as
one block, and every other byte stays. No daemon is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stragd.cli.client import ControlError
from stragd.cli.text import clean

PLUGIN = "/usr/lib/stragd/libnccl-profiler-stragd.so"
# A wheel carries the plugin beside the package's data.
_CARRIED = Path(__file__).resolve().parent.parent / "data" / "libnccl-profiler-stragd.so"
VARIABLE = "NCCL_PROFILER_PLUGIN"
CHAIN = "STRAGD_RING_CHAIN"
LIBRARY_FILES = ("etc/nccl.conf", "etc/rccl.conf")
CDI_FILE = "etc/cdi/stragd.json"
_CDI_KIND, _CDI_NAME = "stragd/ring", "all"
CDI_DEVICE = f"{_CDI_KIND}={_CDI_NAME}"
ENROOT = "etc/enroot"
ENROOT_MOUNTS = f"{ENROOT}/mounts.d/90-stragd.fstab"
ENROOT_ENVIRONMENT = f"{ENROOT}/environ.d/90-stragd.env"
CONTAINER_FILES = (CDI_FILE, ENROOT_MOUNTS, ENROOT_ENVIRONMENT)

_BEGIN = "# stragd begin: `stragctl ring uninstall` removes this block\n"
_END = "# stragd end\n"
_CHAINED = "# The plugin that is set below gets its events through stragd's.\n"


class InstallError(ControlError):
    """A file cannot be read or written; the message says which, why, and the way out."""


@dataclass(frozen=True)
class Change:
    """One file as it is and as it shall be; None is no file."""

    path: Path  # without the root
    before: str | None
    after: str | None
    foreign: bool = False  # it is not ours, and stays as it is

    @property
    def action(self) -> str:
        """create, change, remove, foreign or none."""
        if self.foreign:
            return "foreign"
        if self.before == self.after:
            return "none"
        if self.before is None:
            return "create"
        return "remove" if self.after is None else "change"

    def diff(self) -> list[str]:
        """The change as ``diff -u`` shows it."""
        old, new = (text.splitlines(True) if text else [] for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), n=1)
        return [line.rstrip("\n") for line in lines]


def add_arguments(ring: argparse.ArgumentParser) -> None:
    """The options of install and uninstall."""
    ring.add_argument(
        "--dry-run", action="store_true", help="with install and uninstall: only show the changes"
    )
    ring.add_argument(
        "--containers", action="store_true",
        help=f"with install: also a CDI device ({CDI_DEVICE}) and drop-ins of enroot (and pyxis)",
    )  # fmt: skip
    ring.add_argument(
        "--plugin", default="", metavar="FILE",
        help=f"with install: the plugin (the wheel's own, else {PLUGIN})",
    )  # fmt: skip
    ring.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR",
        help="with install and uninstall: the file system to change, as of an image (/)",
    )  # fmt: skip


def default_plugin() -> str:
    """The plugin that belongs to this stragd: the wheel's own, or the package's."""
    return str(_CARRIED) if _CARRIED.is_file() else PLUGIN


def with_block(text: str, plugin: str) -> str:
    """A configuration file with our block at its top."""
    rest = without_block(text)
    block = _BEGIN + f"{VARIABLE}={plugin}\n"
    other = _first(rest, VARIABLE)
    if other not in (None, "", "none", "NONE", plugin) and _first(rest, CHAIN) is None:
        block += _CHAINED + f"{CHAIN}={other}\n"
    return block + _END + rest


def without_block(text: str) -> str:
    """A configuration file without our block. ValueError when only a part of it is there."""
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 and end < 0:
        return text
    if begin < 0 or end < begin or _BEGIN in text[begin + 1 :]:
        raise ValueError(f"only a part of stragd's block is left in it: remove {_END.strip()!r}")
    return text[:begin] + text[end + len(_END) :]


def _first(text: str, name: str) -> str | None:
    """Value of a variable as NCCL reads it: the first line that sets it."""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == name:
            return value.strip()
    return None


def cdi(plugin: str) -> str:
    """A CDI specification: one device that mounts the plugin read-only and sets its variable."""
    edits = {
        "env": [f"{VARIABLE}={plugin}"],
        "mounts": [
            {
                "hostPath": plugin,
                "containerPath": plugin,
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
    }
    specification = {
        "cdiVersion": "0.5.0",
        "kind": _CDI_KIND,
        "devices": [{"name": _CDI_NAME, "containerEdits": edits}],
    }
    return json.dumps(specification, indent=2) + "\n"


def _enroot_mount(plugin: str) -> str:
    return f"{plugin} {plugin} none x-create=file,bind,ro,nosuid,nodev 0 0\n"


def _enroot_variable(plugin: str) -> str:
    return f"{VARIABLE}={plugin}\n"


def _is_ours(name: str, text: str) -> bool:
    """Whether a container tool's file is one that install has written, for whatever plugin."""
    if name == CDI_FILE:
        try:
            specification = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(specification, dict) and specification.get("kind") == _CDI_KIND
    line = text.removesuffix("\n")
    if "\n" in line:
        return False
    if name == ENROOT_MOUNTS:
        return text == _enroot_mount(line.partition(" ")[0])
    return text == _enroot_variable(line.partition("=")[2])


def _container_file(root: Path, name: str, after: str | None) -> Change:
    before = _read(root, name)
    foreign = before is not None and not _is_ours(name, before)
    return Change(Path("/", name), before, before if foreign else after, foreign)


def plan(root: Path, plugin: str, containers: bool) -> Iterator[Change]:
    """What install changes; files that need no change too."""
    for name in LIBRARY_FILES:
        before = _read(root, name)
        yield Change(Path("/", name), before, _block(name, with_block, before or "", plugin))
    if not containers:
        return
    yield _container_file(root, CDI_FILE, cdi(plugin))
    if (root / ENROOT).is_dir():
        yield _container_file(root, ENROOT_MOUNTS, _enroot_mount(plugin))
        yield _container_file(root, ENROOT_ENVIRONMENT, _enroot_variable(plugin))


def plan_removal(root: Path) -> Iterator[Change]:
    """What uninstall changes. A file in which nothing is left goes too."""
    for name in LIBRARY_FILES:
        before = _read(root, name)
        after = None if before is None else _block(name, without_block, before)
        yield Change(Path("/", name), before, after or (None if before else before))
    for name in CONTAINER_FILES:
        yield _container_file(root, name, None)


def _block(name: str, make: Callable[..., str], *arguments: str) -> str:
    try:
        return make(*arguments)
    except ValueError as error:
        raise InstallError(f"/{name}: {error}") from None


def _read(root: Path, name: str) -> str | None:
    """Text of a file, byte for byte (surrogateescape); None when there is none."""
    path = root / name
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InstallError(f"{path} is not a file: move it away")
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InstallError(f"cannot read {path}: {error.strerror}") from None


def apply(root: Path, change: Change) -> None:
    """Make one change; the file is there as a whole at any time. InstallError when it cannot."""
    # A link (of a tool that keeps /etc) stays one: what it points to is replaced.
    path = Path(os.path.realpath(root / change.path.relative_to("/")))
    try:
        if change.after is None:
            path.unlink()
            if change.path == Path("/", CDI_FILE):
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # stays where others have devices too
            return
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _replace(path, change.after)
    except OSError as error:
        way_out = "run it as root" if isinstance(error, PermissionError) else "see the reason"
        raise InstallError(f"cannot write {path}: {error.strerror} ({way_out})") from None


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            try:
                old = path.stat()
                os.fchown(handle, old.st_uid, old.st_gid)
                os.fchmod(handle, stat.S_IMODE(old.st_mode))
            except FileNotFoundError:
                os.fchmod(handle, 0o644)
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_DONE = {"create": "written", "change": "changed", "remove": "removed"}
_PLANNED = {"create": "would be written", "change": "would be changed", "remove": "would go"}


def run(arguments: argparse.Namespace) -> int:
    """``stragctl ring install`` or ``uninstall``; 0. Raises InstallError."""
    root: Path = arguments.root
    plugin: str = arguments.plugin or default_plugin()
    install = arguments.set == "install"
    if install:
        if not plugin.startswith("/") or any(c.isspace() or c == "=" for c in plugin):
            raise InstallError(f"--plugin {plugin!r} is not an absolute path without blanks")
        if not (root / plugin[1:]).is_file():
            raise InstallError(f"{plugin} is not there: install the package stragd, or name it "
                               "with --plugin")  # fmt: skip
        changes = list(plan(root, plugin, arguments.containers))
        for change in changes:
            if change.foreign:
                raise InstallError(f"{change.path} is not stragd's or was changed by hand: nothing "
                                   "was done; move it away")  # fmt: skip
    else:
        changes = list(plan_removal(root))
    if not arguments.dry_run:
        for change in changes:
            if change.action not in ("none", "foreign"):
                apply(root, change)
    if arguments.json:
        listed = [{"file": str(c.path), "action": c.action, "diff": c.diff()} for c in changes]
        print(json.dumps({"dry_run": arguments.dry_run, "changes": listed}, indent=2))
        return 0
    for line in _lines(changes, arguments, root):
        print(clean(line, 2000))
    return 0


def _lines(changes: list[Change], arguments: argparse.Namespace, root: Path) -> Iterator[str]:
    words = _PLANNED if arguments.dry_run else _DONE
    made = [change for change in changes if change.action in words]
    for change in changes:
        if change.foreign:
            yield f"{change.path} stays: it is not stragd's or was changed by hand"
    for change in made:
        yield f"{change.path} {words[change.action]}"
        if arguments.dry_run:
            yield from change.diff()
    if not made:
        yield "nothing to do: it is as it should be"
    if arguments.set != "install":
        yield "Jobs that run keep the plugin until they end; later ones do not load it."
        return
    yield "Jobs that start from now on load the plugin, and running ones are left alone."
    yield f"A job's own {VARIABLE} and ~/.nccl.conf come before these files."
    if arguments.containers:
        yield f"Containers get it as a CDI device: --device {CDI_DEVICE}"
        if (root / ENROOT).is_dir():
            yield "enroot's containers, and so pyxis', get it without being asked for it"
        else:
            yield f"enroot is not on this node (no /{ENROOT}): no drop-ins of it"
