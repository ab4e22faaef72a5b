"""The engine and the rings of real processes: found, read, asked, refused, kept. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd import _rscore
from tests.harness import ROOT, wait_for

FULL = 3
PROGRESS = 2


class Writer:
    """A process of ringwriter/writer.c, with a stub of NCCL loaded."""

    def __init__(self, program: Path, library: Path) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self.process.pid
        self.tell(f"load {library}")

    def order(self, order: str) -> None:
        """Say what to do next."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")

    def answer(self) -> list[int]:
        """The numbers it answers with."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["ok"], words
        return [int(word) for word in words[1:]]

    def tell(self, order: str) -> list[int]:
        """Order and answer."""
        self.order(order)
        return self.answer()

    def kill(self) -> None:
        """End it the hard way."""
        self.process.kill()
        self.process.wait(60)


class Programs:
    """The compiled writer and stub; ends every process that it started."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "writer"
        self.library = directory / "libnccl.so.2"
        flags = ["-O2", "-pthread", "-o", self.program]
        source = ROOT / "tests/ringwriter/writer.c"
        subprocess.run(["cc", *flags, source, "-ldl"], check=True)
        stub = ROOT / "tests/cstubs/stub.c"
        subprocess.run(["cc", "-O0", "-shared", "-fPIC", "-o", self.library, stub], check=True)
        self.started: list[Writer] = []

    def start(self) -> Writer:
        """One more writer."""
        self.started.append(Writer(self.program, self.library))
        return self.started[-1]


@pytest.fixture(name="programs")
def _programs(tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path)
    yield programs
    for writer in programs.started:
        writer.kill()


@contextlib.contextmanager
def running() -> Iterator[_rscore.Engine]:
    """An engine with its threads."""
    engine = _rscore.Engine({"sweep_seconds": 2.0, "max_processes": 4096})
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def ring_of(engine: _rscore.Engine, writer: Writer, state: str = "open") -> dict[str, Any]:
    """The ring of a writer as soon as it is in this state."""

    def found() -> Any:
        rings = engine.rings()
        return next((r for r in rings if r["pid"] == writer.pid and r["state"] == state), None)

    ring: dict[str, Any] = wait_for(f"the ring of {writer.pid} to be {state}", found)
    return ring


def read_all(engine: _rscore.Engine, writer: Writer, tickets: int) -> dict[str, Any]:
    """The ring once every ticket is accounted for."""

    def done() -> Any:
        ring = ring_of(engine, writer)
        return ring if ring["records"] + ring["lost"] == tickets else None

    ring: dict[str, Any] = wait_for(f"{tickets} tickets", done)
    return ring


def test_a_ring_made_long_after_the_library_is_read_and_described(programs: Programs) -> None:
    early = programs.start()
    early.tell("ring 1024 16 1 0")
    with running() as engine:
        assert ring_of(engine, early)["records"] == 0
        late = programs.start()
        wait_for(
            "the process without a ring",
            lambda: any(late.pid in lib["processes"] for lib in engine.libraries()),
        )
        assert late.pid not in {ring["pid"] for ring in engine.rings()}
        late.tell("ring 16384 256 2 100000000")
        late.tell("comm 7 feedface 3 8 tensor")
        late.tell("comm 0 abc 1 4 data")
        tickets, _ = late.tell("write 4 1000")
        ring = read_all(engine, late, tickets)
        assert (ring["lost"], ring["invalid"], ring["jumps"], ring["implausible"]) == (0, 0, 0, 0)
        assert (ring["vendor"], ring["library"], ring["api"]) == ("nvidia", "2.28.3", 5)
        assert (ring["clock"], ring["clock_hz"], ring["mode"]) == ("ticks", 100_000_000, "full")
        assert ring["dropped"] == {"pool": 0, "communicator": 0, "claim": 0, "stale": 0}
        by_name = {known["name"]: known for known in ring["communicators"]}
        assert set(by_name) == {"tensor", "data"}
        tensor = by_name["tensor"]
        assert (tensor["hash"], tensor["rank"], tensor["nranks"]) == (0xFEEDFACE, 3, 8)
        assert tensor["functions"] == {}
        assert by_name["data"]["functions"]["all_reduce"]["enqueued"] == 4000
        counters = engine.counters()
        assert counters["rings"] >= 2
        assert counters["ring_records"] >= 4000
        assert {"lost.ring", "ring_refused", "ring_dropped.claim"} <= counters.keys()


def test_the_last_state_of_a_dead_process_is_read_to_its_end_and_kept(programs: Programs) -> None:
    with running() as engine:
        writer = programs.start()
        writer.tell("ring 16384 16 1 0")
        writer.tell("comm 0 abc 1 4 data")
        ring_of(engine, writer)
        writer.tell("write 2 5000")
        # A ticket that nobody will ever write.
        writer.tell("hole 1")
        writer.kill()
        ring = ring_of(engine, writer, "ended")
        assert (ring["records"], ring["lost"]) == (10_000, 1)
        assert ring["communicators"][0]["functions"]["all_reduce"]["completed"] == 10_000
        assert engine.counters()["ring_records"] >= 10_000


def test_plugins_are_asked_now_and_later_and_one_by_one(programs: Programs) -> None:
    with running() as engine:
        first = programs.start()
        first.tell("ring 64 16 1 0")
        ring_of(engine, first)
        assert first.tell("control") == [0]
        assert engine.set_ring("progress", 0, 0, None) >= 1
        assert first.tell("control") == [PROGRESS]
        second = programs.start()
        second.tell("ring 64 16 1 0")
        ring = ring_of(engine, second)
        assert (ring["wanted"], ring["mode"]) == ("progress", "full")
        assert second.tell("control") == [PROGRESS]
        assert engine.set_ring("full", 10, 8192, second.pid) == 1
        assert second.tell("control") == [FULL | 13 << 8 | 10 << 16]
        assert first.tell("control") == [PROGRESS]
        second.tell(f"mode {FULL}")
        ring = ring_of(engine, second)
        assert (ring["mode"], ring["sample"], ring["floor"]) == ("full", 10, 8192)
        assert engine.set_ring("full", 0, 0, 1) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("loud", 0, 0), "mode"), (("full", 70_000, 0), "sample"), (("full", 0, 1000), "floor")],
)
def test_a_bad_request_is_one_clear_error(arguments: tuple[str, int, int], named: str) -> None:
    engine = _rscore.Engine({})
    with pytest.raises(ValueError, match=named):
        engine.set_ring(*arguments, None)
    engine.close()


def test_a_pretender_is_refused_by_name_and_a_scribbler_harms_nobody_else(
    programs: Programs,
) -> None:
    with running() as engine:
        pretender, scribbler, honest = programs.start(), programs.start(), programs.start()
        pretender.tell("raw unsealed")
        scribbler.tell("ring 16384 256 1 0")
        honest.tell("ring 16384 16 1 0")
        honest.tell("comm 0 abc 1 4 data")
        ring_of(engine, scribbler)
        ring_of(engine, honest)
        refused = ring_of(engine, pretender, "refused")
        assert "sealed" in refused["refused"]
        scribbler.tell("scribble")
        tickets = 0
        for _ in range(10):
            tickets, _ = honest.tell("write 4 500")
            ring = read_all(engine, honest, tickets)
        assert (ring["records"], ring["lost"]) == (tickets, 0)
        assert ring_of(engine, scribbler)["jumps"] > 0
        before = engine.progress()
        wait_for("the drain to go on", lambda: engine.progress() > before)


def test_three_hundred_rings(programs: Programs) -> None:
    with running() as engine:
        writers = [programs.start() for _ in range(300)]
        for writer in writers:
            writer.tell("ring 64 16 1 0")
            writer.tell("write 1 10")
        pids = {writer.pid for writer in writers}

        def settled() -> Any:
            rings = [ring for ring in engine.rings() if ring["pid"] in pids]
            read = [ring for ring in rings if ring["records"] == 10]
            refused = [ring for ring in rings if ring["state"] == "refused"]
            return len(read) + len(refused) == 300 and (read, refused)

        read, refused = wait_for("300 rings", settled, 180.0)
        # Other rings of the node count too.
        assert 0 < len(read) <= 256
        assert all("256 rings" in ring["refused"] for ring in refused)
        for writer in writers:
            if writer.pid in {ring["pid"] for ring in read}:
                writer.kill()
        for ring in refused:
            writer = next(w for w in writers if w.pid == ring["pid"])
            assert read_all(engine, writer, 10)["records"] == 10
