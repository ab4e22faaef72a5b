"""The environment a process was started with, as far as it concerns us.

/proc/PID/environ shows the time of exec: what the program set later is invisible, and a program
that rewrites its title (Ray does) may have overwritten it. It can be megabytes, hold newlines,
quotes and binary, or no "=" at all.
"""

from __future__ import annotations

from collections.abc import Collection

from stragd.discovery.process import MemoryReader

MAX_BYTES = 4 << 20
MAX_VALUE = 1024


def read_environ(
    reader: MemoryReader, proc: str, pid: int, wanted: Collection[str]
) -> dict[str, str] | None:
    """The wanted variables of a process; None where its environment cannot be read."""
    raw = reader.read(f"{proc}/{pid}/environ", MAX_BYTES)
    return None if raw is None else parse(raw, wanted)


def parse(raw: bytes, wanted: Collection[str]) -> dict[str, str]:
    """Keep wanted names, each with its first value as getenv(3) does; too long a value is none."""
    names = {name.encode(): name for name in wanted}
    found: dict[str, str] = {}
    position = 0
    while position < len(raw):
        end = raw.find(b"\0", position)
        if end < 0:
            end = len(raw)
        # No wanted name is longer, so a huge entry is not copied to look for its "=".
        equals = raw.find(b"=", position, min(end, position + 128))
        name = names.get(raw[position:equals]) if equals > 0 else None
        if name is not None and name not in found and end - equals - 1 <= MAX_VALUE:
            found[name] = raw[equals + 1 : end].decode("utf-8", "replace")
        position = end + 1
    return found
