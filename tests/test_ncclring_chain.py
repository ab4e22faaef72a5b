"""Another plugin behind ours: what it gets, and that ours records as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ncclring import ring
from tests.ncclring.build import built, recorder
from tests.ncclring.host import NOBODY, Host

LIBRARIES = {3: 22602, 4: 22705, 5: 22803, 6: 22907, 7: 23203}
ALL = 0xFFFF


pytestmark = pytest.mark.usefixtures("root")


def chained(version: int, plugin: str | Path, log: Path, mask: int = ALL) -> Host:
    """A host whose user wants another plugin."""
    return Host(
        version, LIBRARIES[version], STRAGD_RING_CHAIN=str(plugin), RECORDER_LOG=str(log),
        RECORDER_MASK=str(mask),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "theirs"), [(3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (7, 5), (6, 5)]
)
def test_every_callback_arrives_with_its_own_context_handles_and_parents(
    version: int, theirs: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with chained(version, recorder(tmp_path, theirs), log) as host:
        known = {3: 0xFF, 4: 0xFF, 5: 0xFFF, 6: 0x7FFF, 7: 0xFFFF}[theirs]
        assert host.init() == known | (0x1000 if version > 5 else 0)
        host.group(handle=0)  # e0
        host.coll(handle=1, parent=0, channels=2)  # e1
        host.do("api", 0, 6, 8, 0)  # e2: a ProxyOp, which only they asked for
        host.do("stop", 1)
        host.do("stop", 0)
        host.kernel(2, 1, 0, 100)  # e3
        host.kernel(3, 1, 1, 100)  # e4
        for handle, stop in ((3, 250), (2, 240)):
            host.end(handle, stop if version > 3 else None)
        host.do("stop", 6)
        host.do("finalize", 0)
        host.do("stop", 1)
        got = host.ring()
    identity = "NULL 0 -1" if version == 3 else "world 1234 3"
    stops = (
        ["stop e4", "stop e3"]
        if version == 3
        else ["record e4 22 1", "stop e4", "record e3 22 1", "stop e3"]
    )
    assert log.read_text().splitlines() == [
        f"init 0x100 {identity}",
        "start 0x100 1 e0 parent none",
        "start 0x100 2 e1 parent e0",
        "start 0x100 8 e2 parent none",
        "stop e1",
        "stop e0",
        "start 0x100 64 e3 parent e1",
        "start 0x100 64 e4 parent e1",
        *stops,
        "stop e2",
        "finalize 0x100",
        "stop e1",
    ]
    assert got.header["chained"] == 1
    assert len(got.slots) == 1
    assert got.slots[0]["channels"] == 2


def test_a_bare_name_is_found_as_nccl_finds_it(tmp_path: Path) -> None:
    recorder(tmp_path, 5)
    with Host(5, 22803, STRAGD_RING_CHAIN="recorder5", RECORDER_LOG=str(tmp_path / "log"),
              LD_LIBRARY_PATH=str(tmp_path)) as host:  # fmt: skip
        host.init()
        assert host.ring().header["chained"] == 1
        assert host.ring().header["chained_name"] == b"recorder5"


def test_what_only_they_want_is_not_recorded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with chained(5, recorder(tmp_path, 5), log) as host:
        host.init()
        ring.write_control(host.pid, ring.OFF)
        host.group()
        assert int(host.do("mask")[0]) == 0xFFF
        host.coll(handle=1, channels=1)
        host.kernel(2, 1, 0, 100)
        host.end(2, 200)
        assert host.ring().header["order"] == 0
    assert "start 0x100 64 e2 parent e1" in log.read_text()


@pytest.mark.parametrize(
    ("theirs", "reason"), [(4, "no symbol that fits"), (0, "cannot open shared object")]
)
def test_one_that_cannot_be_chained_is_said_and_ours_records(
    theirs: int, reason: str, tmp_path: Path
) -> None:
    plugin = recorder(tmp_path, theirs) if theirs else tmp_path / "none.so"
    log = tmp_path / "log"
    with chained(7, plugin, log) as host:
        assert host.init() == 0x1046
        (line,) = [line for line in host.log if "STRAGD_RING_CHAIN" in line]
        assert reason in line
        assert "set NCCL_PROFILER_PLUGIN to it" in line
        host.whole(10, 20)
        got = host.ring()
        assert (got.header["chained"], len(got.slots)) == (0, 1)
        assert got.header["chained_name"].decode() == str(plugin)[:63]
    assert not log.exists()


def test_it_does_not_chain_itself(tmp_path: Path) -> None:
    with chained(5, built().plugin, tmp_path / "log") as host:
        host.init()
        assert host.ring().header["chained"] == 0
        assert any("stragd's own" in line for line in host.log)
        host.coll(parent=NOBODY)


def test_handles_of_long_ago_are_not_forwarded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with chained(4, recorder(tmp_path, 4), log, mask=0) as host:
        host.init()
        # Without them wanting it: the mask is ours, and what comes is forwarded all the same.
        host.coll(handle=1, channels=1)
        host.kernel(2, 1, 0, 100)
        host.do("finalize", 0)
        host.init(1)
        host.do("run", 1, 8192, "AllReduce", 10, "ncclInt8", 0, 0, 0, "RING", "LL")
        before = log.read_text()
        host.end(2, 200)
        host.do("stop", 1)
        assert log.read_text() == before
