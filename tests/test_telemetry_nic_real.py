"""The NIC readers on real network devices of a network namespace, and pyroute2's ethtool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.telemetry import ethtool
from stragd.telemetry.intime import InTime
from tests.needs import lacking

# Two windows of the reader, with a command between them. Prints both.
TWO_WINDOWS = """
import dataclasses, json, subprocess, sys
from stragd.telemetry import ethtool
from stragd.telemetry.nic import NicTelemetry
nics = NicTelemetry()
samples = [nics.read(0, 1)]
subprocess.run(sys.argv[1], shell=True, check=True)
samples.append(nics.read(1, 2))
print(json.dumps([{s.subject: dataclasses.asdict(s) for s in window} for window in samples]))
"""
# All ethtool statistics of a device as our reader sees them, and as pyroute2's own method does.
STATISTICS = """
import json, sys
from stragd.telemetry import ethtool
ethtool.group_of = lambda name: name
ours = ethtool.Pyroute2()
first, second = ours.statistics(sys.argv[1]), ours.statistics(sys.argv[1])
from pyroute2.ethtool.ioctl import IoctlEthtool
device = IoctlEthtool(sys.argv[1])
print(json.dumps([first, second, dict(device.get_statistics()), ours.statistics("no-such-dev")]))
"""


@pytest.fixture
def namespace(root: None) -> Iterator[str]:
    """A network namespace with two pairs of devices: v0 (default route) and w0."""
    name = f"stragd-test-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        lacking("network namespaces cannot be made")
    try:
        for device in ("v", "w"):
            ip(name, f"link add {device}0 type veth peer name {device}1")
            ip(name, f"link set {device}0 up")
            ip(name, f"link set {device}1 up")
        ip(name, "addr add 192.0.2.1/24 dev v0")
        ip(name, "route add default via 192.0.2.2 dev v0")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def ip(namespace: str, command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command.split()], check=True)


def run(namespace: str, script: str, argument: str) -> Any:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", script, argument]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_link_that_flaps(namespace: str) -> None:
    flap = "for i in 1 2; do ip link set v1 down; ip link set v1 up; done"
    before, after = run(namespace, TWO_WINDOWS, flap)
    assert before["v0"]["values"]["down_count"] == 0
    assert after["v0"]["values"]["carrier_changes_delta"] == 4
    assert "w0" not in after  # a virtual device that carries no default route


def test_a_link_that_goes_down_and_one_that_does_not(namespace: str) -> None:
    _, quiet = run(namespace, TWO_WINDOWS, "true")
    assert quiet["v0"]["values"]["carrier_changes_delta"] == 0
    _, after = run(namespace, TWO_WINDOWS, "ip link set v1 down")
    assert after["v0"]["values"]["down_count"] == 1
    assert after["v0"]["values"]["carrier_changes_delta"] == 1


def test_a_device_that_is_deleted_is_said_to_be(namespace: str) -> None:
    _, after = run(namespace, TWO_WINDOWS, "ip link del v0")
    assert "vanished" in after["v0"]["silent"]


def test_ethtool_through_pyroute2(namespace: str) -> None:
    if ethtool.installed() is None:
        lacking("pyroute2 is not installed")
    first, second, theirs, nothing = run(namespace, STATISTICS, "v0")
    assert first == second == theirs
    assert "peer_ifindex" in first
    assert first["peer_ifindex"] > 0
    assert nothing == {}


def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2.ethtool.ioctl", None)
    assert ethtool.installed() is None


def test_calls_in_time() -> None:
    back = threading.Event()
    calls: InTime[int] = InTime("test", 0.2)
    assert calls.call(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0)
    assert calls.call(lambda: 2 if back.wait(60) else 3) is None
    assert calls.call(os.getpid) is None  # not asked
    assert calls.late_s > 0
    back.set()
    while (answer := calls.call(lambda: 4)) is None:
        pass
    assert answer == 4  # and not the 2 that came too late
