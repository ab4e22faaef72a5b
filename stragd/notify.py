"""sd_notify: what the service manager hears; nothing when there is none."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


def notify(*lines: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send ``READY=1``, ``STATUS=...`` and the like; False when nobody listens."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False  # a full or vanished socket must not stop the daemon
    return True


def reloading() -> tuple[str, str]:
    """The two lines of a reload that begins now."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Half of the time after which the service manager gives up; None when it does not watch."""
    text = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    if not text.isdigit() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 2e6
