"""Sources of the configuration: TOML files, drop-ins and environment, checked key by key.

Later wins: built-in default, ``/etc/stragd/stragd.toml``, its drop-ins in ``stragd.toml.d/`` in
the order of their names, environment ``STRAGD_<SECTION>_<KEY>``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from stragd.config import (
    DEFAULT_FILE,
    ENVIRONMENT_PREFIX,
    KEYS,
    SECTIONS,
    Config,
    ConfigError,
    allowed,
    environment_name,
    split_address,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE_BYTES = 1 << 20
MAX_DROP_INS = 256
MAX_NAMES = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _check(key: str, value: object) -> tuple[object, str]:
    """(value in the key's own type, "" or what is wrong with it)."""
    f = KEYS[key]
    meta, default = f.metadata, f.default
    if isinstance(default, tuple):
        return _check_names(value)
    if isinstance(default, bool) or isinstance(value, bool):
        return value, "" if type(value) is type(default) else f"is {_type_name(value)}"
    if isinstance(default, float) and isinstance(value, int):
        value = float(value) if abs(value) < 1 << 63 else value
    if type(value) is not type(default):
        return value, f"is {_type_name(value)}"
    if isinstance(value, str):
        return value, _check_string(value, meta)
    number = cast("float", value)
    if not meta["low"] <= number <= meta["high"]:
        return value, f"is {_bounded(value)}, out of range"
    if meta["power_of_two"] and cast("int", value) & (cast("int", value) - 1):
        return value, f"is {_bounded(value)}, not a power of two"
    return value, ""


def _check_names(value: object) -> tuple[object, str]:
    if not isinstance(value, list):
        return value, f"is {_type_name(value)}"
    if len(value) > MAX_NAMES:
        return value, f"has more than {MAX_NAMES} names"
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return value, f'has "{_bounded(name)}"'
    return tuple(value), ""


def _check_string(value: str, meta: Mapping[str, Any]) -> str:
    if "\0" in value:
        return "has a zero byte"
    if meta["choices"] and value not in meta["choices"]:
        return f'is "{_bounded(value)}"'
    if not value and meta["optional"]:
        return ""
    if meta["name"] and not _TOKEN.fullmatch(value):
        return f'is "{_bounded(value)}"'
    if meta["path"] and not value.startswith("/"):
        return f'is "{_bounded(value)}", not absolute'
    if meta["address"]:
        try:
            split_address(value)
        except ValueError as error:
            return f'is "{_bounded(value)}": {error}'
    return ""


def _bounded(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= 60 else text[:57] + "..."


_TYPE_NAMES: tuple[tuple[type[Any], str], ...] = (
    (bool, "true/false"),
    (str, "a string"),
    (int, "a whole number"),
    (float, "a number"),
    (list, "an array"),
    (dict, "a table"),
)


def _type_name(value: object) -> str:
    for cls, name in _TYPE_NAMES:
        if isinstance(value, cls):
            return name
    return f"a {type(value).__name__}"


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.5)
    if close:
        return f'did you mean "{close[0]}"?'
    return "known: " + ", ".join(names)


def _from_environment(key: str, text: str) -> object:
    """A variable's text in the key's type; text that does not parse stays text and is refused."""
    default = KEYS[key].default
    if isinstance(default, tuple):
        return [name.strip() for name in text.split(",") if name.strip()]
    if isinstance(default, bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    try:
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except ValueError:
        pass
    return text


class _Loader:
    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.origins: dict[str, str] = {}
        self.files: list[str] = []
        self.problems: list[str] = []

    def put(self, key: str, value: object, origin: str, name: str) -> None:
        value, wrong = _check(key, value)
        if wrong:
            self.problems.append(f"{origin}: {name} {wrong}; allowed: {allowed(key)}")
        else:
            self.values[key] = value
            self.origins[key] = origin

    def read_file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
            document = tomllib.loads(data.decode())
        except OSError as error:
            self.problems.append(f"{path}: cannot be read: {error.strerror}")
            return
        except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors are ValueErrors
            self.problems.append(f"{path}: not valid TOML: {_bounded(error)}")
            return
        self.files.append(str(path))
        for section, table in document.items():
            if section not in SECTIONS:
                near = _nearest(section, list(SECTIONS))
                self.problems.append(f"{path}: unknown section [{_bounded(section)}]; {near}")
            elif not isinstance(table, dict):
                self.problems.append(f"{path}: {section} is {_type_name(table)}, not a section")
            else:
                self.read_section(path, section, table)

    def read_section(self, path: Path, section: str, table: dict[str, object]) -> None:
        names = [f.name for f in dataclasses.fields(SECTIONS[section])]
        for name, value in table.items():
            if name in names:
                self.put(f"{section}.{name}", value, str(path), f"{section}.{name}")
            else:
                near = _nearest(name, names)
                self.problems.append(
                    f'{path}: unknown key "{_bounded(name)}" in [{section}]; {near}'
                )

    def read_environment(self, environment: Mapping[str, str]) -> None:
        known = {environment_name(key): key for key in KEYS}
        for name in sorted(n for n in environment if n.startswith(ENVIRONMENT_PREFIX)):
            if name in known:
                key = known[name]
                value = _from_environment(key, environment[name])
                self.put(key, value, f"environment {name}", key)
                continue
            section = name[len(ENVIRONMENT_PREFIX) :].partition("_")[0].lower()
            # Other programs may own other STRAGD_ names; what looks like a key of ours is a typo.
            if difflib.get_close_matches(section, list(SECTIONS), n=1, cutoff=0.75):
                near = _nearest(name, list(known))
                self.problems.append(f"environment {_bounded(name)}: unknown key; {near}")


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Read everything. ``path`` None is the default file, which need not exist.

    Raises ConfigError with every problem that was found, not only the first.
    """
    loader = _Loader()
    main = path or DEFAULT_FILE
    if path is not None or main.exists():
        loader.read_file(main)
    drop_ins = Path(f"{main}.d")
    if drop_ins.is_dir():
        found = sorted(drop_ins.glob("*.toml"))
        if len(found) > MAX_DROP_INS:
            loader.problems.append(f"{drop_ins}: more than {MAX_DROP_INS} files")
        for drop_in in found[:MAX_DROP_INS]:
            loader.read_file(drop_in)
    loader.read_environment(os.environ if environment is None else environment)
    if loader.problems:
        raise ConfigError(loader.problems)
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        own = {k.split(".")[1]: v for k, v in loader.values.items() if k.startswith(section + ".")}
        sections[section] = cls(**own)
    return Config(**sections, files=tuple(loader.files), origins=loader.origins)
