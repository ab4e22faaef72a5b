"""cpunccl calls a profiler plugin as each NCCL version does: seen by logger.c, a plugin."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cpunccl.ranks import Ranks

pytest_plugins = ["tests.cpunccl.ranks"]
Start = Callable[..., "Ranks"]
Calls = list[dict[str, Any]]

GROUP, COLL, P2P, KERNEL, GROUP_API, COLL_API, P2P_API, LAUNCH = 1, 2, 4, 64, 256, 512, 1024, 2048
EVERYTHING = GROUP | COLL | P2P | KERNEL | GROUP_API | COLL_API | P2P_API | LAUNCH
MS = 1e6
WORLD, STEPS = 3, 3
# exact clocks, so that times can be compared; offsets stay random
CLOCK = {"CPUNCCL_CLOCK": "ns:1", "CPUNCCL_DRIFT_PPM": "0", "CPUNCCL_POLL_US": "200"}


@pytest.fixture
def run(ranks: Start, cpunccl: Path, tmp_path: Path) -> Callable[..., list[Calls]]:
    """Run a scenario with the logger; what each rank's plugin saw."""

    def start(
        version: int, scenario: str = "profiled", plugin: str = "liblogger.so", **more: str
    ) -> list[Calls]:
        given = {"NCCL_PROFILER_PLUGIN": str(cpunccl / plugin), "CPUNCCL_VERSION": str(version)}
        given |= {"LOGGER_FILE": "{directory}/log", **CLOCK, **more}
        job = ranks(scenario, WORLD, **given)
        job.finish()
        return [job.calls(rank) for rank in range(WORLD)]

    return start


def starts(calls: Calls, kind: int) -> Calls:
    return [c for c in calls if c["call"] == "start" and c["type"] == kind]


def place(calls: Calls, call: str, handle: int, state: int | None = None) -> int:
    """Where in the log a handle is stopped or recorded."""
    for i, c in enumerate(calls):
        if c["call"] == call and c["handle"] == handle and state in (None, c.get("state")):
            return i
    raise AssertionError(f"no {call} of {handle}")


def kernels(calls: Calls, parent: int) -> list[tuple[int, int]]:
    """Device start and stop of each channel of a collective or message."""
    found = []
    for c in starts(calls, KERNEL):
        if c["parent"] == parent:
            stop = calls[place(calls, "record", c["handle"], 22)]
            found.append((c["timer"], stop["timer"]))
    return found


@pytest.mark.parametrize(
    ("version", "api"),
    [(22602, 3), (22703, 4), (22803, 5), (22902, 6), (23007, 6), (23102, 7), (23203, 7)],
)
def test_interface_of_each_version(run: Callable[..., list[Calls]], version: int, api: int) -> None:
    for rank, calls in enumerate(run(version)):
        first = calls[0]
        assert (first["call"], first["api"]) == ("init", api)
        if api >= 4:
            assert (first["rank"], first["nranks"], first["name"]) == (rank, WORLD, "world")
            assert first["hash"] != "0"
        assert calls[-1] == {**calls[-1], "call": "finalize", "context": first["context"]}
        collectives = starts(calls, COLL)
        lost = 22902 <= version < 23100
        names = ["AllReduce", "AllGather", *([] if lost else ["Broadcast"]), *["AllReduce"] * 2]
        assert [c["func"] for c in collectives] == names * STEPS
        for name in set(names):
            numbers = [c["seq"] for c in collectives if c["func"] == name]
            assert numbers == list(range(len(numbers)))
        messages = starts(calls, P2P)
        assert [(c["func"], c["peer"]) for c in messages] == [
            ("Send", (rank + 1) % WORLD),
            ("Recv", (rank - 1) % WORLD),
        ] * STEPS
        assert {c["rank"] for c in collectives + messages} == {rank}
        gather = next(c for c in collectives if c["func"] == "AllGather")
        assert (gather["count"], gather["dtype"]) == (4096 // WORLD * 4, "ncclInt8")
        assert (collectives[0]["count"], collectives[0]["dtype"]) == (4096, "ncclFloat32")
        if version != 23102:
            expected = len(collectives) * 2 + len(messages)
            assert len(starts(calls, KERNEL)) == expected
            for c in collectives:
                assert len(kernels(calls, c["handle"])) == c["channels"] == 2


def test_order_before_2_28(run: Callable[..., list[Calls]]) -> None:
    for calls in run(22703):
        assert not starts(calls, GROUP_API) + starts(calls, COLL_API) + starts(calls, LAUNCH)
        groups = {c["handle"] for c in starts(calls, GROUP)}
        for c in starts(calls, COLL) + starts(calls, P2P):
            assert c["parent"] in groups
            order = [calls.index(c), place(calls, "stop", c["handle"])]
            assert order == sorted(order)
            assert order[1] < place(calls, "stop", c["parent"])


def test_order_from_2_28(run: Callable[..., list[Calls]]) -> None:
    for calls in run(22803, LOGGER_MASK=str(EVERYTHING)):
        apis = {c["handle"]: c for c in starts(calls, COLL_API) + starts(calls, P2P_API)}
        groups = {c["handle"]: c for c in starts(calls, GROUP_API)}
        for c in starts(calls, COLL) + starts(calls, P2P):
            api = apis[c["parent"]]
            assert api["func"] == c["func"]
            outer = groups[api["parent"]]
            grouped = c["type"] == P2P or (c["func"] == "AllReduce" and c["seq"] % 3)
            assert outer["depth"] == (2 if grouped else 1)
            launch = next(x for x in starts(calls, LAUNCH) if x["parent"] == outer["handle"])
            order = [outer, api, launch, c]
            places = [calls.index(one) for one in order]
            places.insert(1, place(calls, "record", outer["handle"], 23))
            places.insert(3, place(calls, "record", outer["handle"], 24))
            places.append(place(calls, "stop", c["handle"]))
            places.append(place(calls, "stop", outer["handle"]))
            assert places == sorted(places)
        gather = next(c for c in apis.values() if c["func"] == "AllGather")
        assert (gather["count"], gather["dtype"]) == (4096 // WORLD, "ncclFloat32")
        assert {c["rank"] for c in apis.values()} == {0}  # up to 2.30


@pytest.mark.parametrize("version", [22703, 22803])
def test_null_group_handles(run: Callable[..., list[Calls]], version: int) -> None:
    for calls in run(version, LOGGER_NULL=str(GROUP | GROUP_API | COLL_API | P2P_API)):
        found = starts(calls, COLL) + starts(calls, P2P)
        if version < 22800:
            assert not found
            assert not starts(calls, KERNEL)
        else:
            assert found
            assert {c["parent"] for c in found} == {0}


@pytest.mark.parametrize("mask", [0, GROUP, COLL, P2P, KERNEL, COLL_API])
def test_mask(run: Callable[..., list[Calls]], mask: int) -> None:
    children = {GROUP: COLL | P2P | KERNEL, COLL: KERNEL, P2P: KERNEL, KERNEL: 0}
    children |= {GROUP_API: EVERYTHING, COLL_API: COLL | KERNEL, P2P_API: P2P | KERNEL, LAUNCH: 0}
    for calls in run(23203, LOGGER_MASK=str(mask), SCENARIO_STEPS="1"):
        seen = {c["type"] for c in calls if c["call"] == "start"}
        assert seen == {kind for kind, below in children.items() if mask & (kind | below)}


@pytest.mark.parametrize("version", [22703, 23203])
def test_threads(run: Callable[..., list[Calls]], version: int) -> None:
    for calls in run(version):
        pollers = {c["tid"] for c in starts(calls, KERNEL)}
        launchers = {c["tid"] for c in starts(calls, COLL)}
        assert len(pollers) == len(launchers) == 1
        assert pollers != launchers


@pytest.mark.parametrize("version", [22703, 23203])
def test_device_times(run: Callable[..., list[Calls]], version: int) -> None:
    """The last arriver's collective is the shortest, by as much as it came late; ends agree."""
    logs = run(version)
    late, slowest = 4 * MS, WORLD - 1
    offsets = []
    for step in range(1, STEPS):  # the first one ends at the same time on all ranks
        for number, name in enumerate(["AllReduce", "AllGather"]):
            times = []
            for calls in logs:
                one = starts(calls, COLL)[5 * step + number]
                assert one["func"] == name
                channels = kernels(calls, one["handle"])
                assert len(set(channels)) == len(channels)  # staggered
                times.append((min(t[0] for t in channels), max(t[1] for t in channels)))
            lengths = [stop - start for start, stop in times]
            assert lengths.index(min(lengths)) == slowest
            for rank in range(WORLD - 1):
                assert math.isclose(lengths[rank] - lengths[slowest], late, abs_tol=2)
            offsets.append([stop - times[0][1] for _, stop in times])
    # Clocks do not agree, but every end is the same moment: differences of clocks are constant.
    for rank in range(1, WORLD):
        assert abs(offsets[0][rank]) > 1000
        assert max(o[rank] for o in offsets) - min(o[rank] for o in offsets) <= 2


def test_grouped_collectives_share_times(run: Callable[..., list[Calls]]) -> None:
    for calls in run(23203):
        first, second = starts(calls, COLL)[3:5]
        assert first["group"] == second["group"]
        assert kernels(calls, first["handle"]) == kernels(calls, second["handle"])


@pytest.mark.parametrize(
    ("clock", "step"), [("ns", 1024), ("ns:1", 1), ("ticks:100e6", 1), ("ticks:25e6", 1)]
)
def test_clocks(run: Callable[..., list[Calls]], clock: str, step: int) -> None:
    """Latency and 4/3 of 16 KB at 50 GB/s, on the rank that nobody waits longer for."""
    hz = float(clock.partition(":")[2]) if clock.startswith("ticks") else 1e9
    calls = run(23203, CPUNCCL_CLOCK=clock)[WORLD - 1]
    channels = kernels(calls, starts(calls, COLL)[5]["handle"])
    assert all(t % step == 0 for pair in channels for t in pair)
    length = (max(t[1] for t in channels) - min(t[0] for t in channels)) / hz
    assert abs(length - 10.436e-6) <= 1.1 * step / hz + 2e-9


def test_an_old_plugin_on_a_new_library(run: Callable[..., list[Calls]]) -> None:
    """v4 on 2.32: parents are Groups, and the shim leaves a message's channels uninitialised."""
    for calls in run(23203, plugin="liblogger-v4.so"):
        assert calls[0]["api"] == 4
        groups = {c["handle"] for c in starts(calls, GROUP)}
        assert {c["parent"] for c in starts(calls, COLL) + starts(calls, P2P)} <= groups
        assert {c["channels"] for c in starts(calls, P2P)} == {0xA5}


@pytest.mark.parametrize("version", [22703, 22902, 23203])
def test_failed_init(run: Callable[..., list[Calls]], version: int) -> None:
    """2.27: off; 2.28 and 2.29 go on with the context as it is; later the plugin is let go."""
    for calls in run(version, LOGGER_FAIL_INIT="1"):
        events = [c for c in calls if c["call"] == "start"]
        assert bool(events) == (22800 <= version < 23003)
        assert {c["context"] for c in events} <= {0}


def test_closed_with_the_last_communicator(run: Callable[..., list[Calls]]) -> None:
    for calls in run(23203, "reloaded"):
        assert [c["call"] for c in calls] == ["init", "finalize"] * 2


def test_graph_replays(run: Callable[..., list[Calls]]) -> None:
    """API events at capture; Coll and KernelCh at each replay, under the handles of the capture."""
    for calls in run(23203, "replayed", LOGGER_MASK=str(EVERYTHING)):
        apis = starts(calls, COLL_API)
        assert [(c["func"], c["captured"]) for c in apis] == [("AllReduce", 1), ("Reduce", 1)]
        collectives = starts(calls, COLL)
        assert [c["func"] for c in collectives] == ["AllReduce", "Reduce"] * 3
        assert [c["seq"] for c in collectives] == [0, 0, 1, 1, 2, 2]
        handles = {c["func"]: c["handle"] for c in apis}
        assert all(c["parent"] == handles[c["func"]] for c in collectives)
        # The slot of a handle holds the one of the replay before.
        assert [c["old"] for c in collectives[2:]] == [c["handle"] for c in collectives[:-2]]
        assert len(starts(calls, KERNEL)) == 2 * len(collectives)
        assert {c["tid"] for c in collectives}.isdisjoint({c["tid"] for c in apis})


def test_graph_without_kernel_events(run: Callable[..., list[Calls]]) -> None:
    for calls in run(23203, "replayed", LOGGER_MASK=str(COLL)):
        assert [c["func"] for c in starts(calls, COLL)] == ["AllReduce", "Reduce"]


def _stops(calls: Calls) -> list[int]:
    handles = {c["handle"] for c in starts(calls, KERNEL)}
    return [c["handle"] for c in calls if c["call"] == "stop" and c["handle"] in handles]


MISBEHAVIOURS: dict[str, Callable[[Calls], bool]] = {
    "lost-stop": lambda calls: len(_stops(calls)) < len(starts(calls, KERNEL)),
    "lost-pair": lambda calls: len(starts(calls, KERNEL)) < 2 * len(starts(calls, COLL)),
    "fewer-channels": lambda calls: {c["channel"] for c in starts(calls, KERNEL)} == {0},
    "channel-overflow": lambda calls: all(c["channel"] >= 64 for c in starts(calls, KERNEL)),
    "repeated-stop": lambda calls: len(_stops(calls)) == 2 * len(set(_stops(calls))),
    "null-parent": lambda calls: {c["parent"] for c in starts(calls, KERNEL)} == {0},
    "null-context": lambda calls: {c["context"] for c in starts(calls, COLL)} == {0},
    "concurrent-init": lambda calls: sum(c["call"] == "init" for c in calls) == 2,
    "stop-before-start": lambda calls: any(
        stop < start for c in starts(calls, COLL) for start, stop in kernels(calls, c["handle"])
    ),
    # The median: on a busy machine the enqueuing thread itself may be late with a stop.
    "late-kernel": lambda calls: (
        statistics.median(
            c["host"] - calls[place(calls, "stop", c["parent"])]["host"]
            for c in starts(calls, KERNEL)
        )
        > 50 * MS
    ),
    "after-finalize": lambda calls: any(
        c["call"] == "finalize" for c in calls[: calls.index(starts(calls, KERNEL)[-1])]
    ),
    # Two collectives of a group share their times, no others do.
    "overrun": lambda calls: len(
        {t for c in starts(calls, COLL) for t in kernels(calls, c["handle"])}
    )
    < 2 * (len(starts(calls, COLL)) - STEPS),
}
# Works pile up behind a slow poller, as they must for an overrun and for what follows finalize.
SLOW_POLLER = {"CPUNCCL_POLL_US": "400000"}


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_misbehaviour(run: Callable[..., list[Calls]], name: str) -> None:
    more = SLOW_POLLER if name in ("overrun", "after-finalize") else {}
    for calls in run(23203, **more, CPUNCCL_MISBEHAVE=name):
        assert MISBEHAVIOURS[name](calls)


@pytest.mark.parametrize("more", [{}, SLOW_POLLER])
def test_no_misbehaviour_unasked(run: Callable[..., list[Calls]], more: dict[str, str]) -> None:
    for calls in run(23203, **more):
        shown = [name for name, shows in MISBEHAVIOURS.items() if shows(calls)]
        assert shown in ([], ["late-kernel"])  # a busy machine may be late by itself


def test_all_misbehaviours_at_once(run: Callable[..., list[Calls]]) -> None:
    for calls in run(23203, CPUNCCL_MISBEHAVE="all"):
        assert starts(calls, KERNEL)


def test_2_31_2_gives_times_to_the_wrong_collective(run: Callable[..., list[Calls]]) -> None:
    for calls in run(23102):
        reduces = [c for c in starts(calls, COLL) if c["func"] == "AllReduce"]
        assert len(kernels(calls, reduces[0]["handle"])) == 2  # before any broadcast
        parents = [c["parent"] for c in starts(calls, KERNEL)]
        assert parents.count(starts(calls, COLL)[-1]["handle"]) == 0


class TestLoading:
    """By which names the plugin is looked for."""

    @pytest.fixture
    def loaded(self, ranks: Start, cpunccl: Path, tmp_path: Path) -> Callable[..., bool]:
        def start(version: int, **more: str) -> bool:
            given = {"CPUNCCL_VERSION": str(version), "LOGGER_FILE": "{directory}/log"}
            job = ranks("profiled", 2, **given, SCENARIO_STEPS="1", **more)
            job.finish()
            return bool(job.calls(0))

        return start

    def test_unset(self, loaded: Callable[..., bool]) -> None:
        assert not loaded(23203)

    def test_by_default_name(
        self, loaded: Callable[..., bool], cpunccl: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "libnccl-profiler.so").symlink_to(cpunccl / "liblogger.so")
        assert loaded(22703, LD_LIBRARY_PATH=str(tmp_path))
        assert loaded(23007, LD_LIBRARY_PATH=str(tmp_path), SCENARIO_RCCL="1")
        assert not loaded(22707, LD_LIBRARY_PATH=str(tmp_path), SCENARIO_RCCL="1")
        (tmp_path / "librccl-profiler.so").symlink_to(cpunccl / "liblogger.so")
        assert loaded(22707, LD_LIBRARY_PATH=str(tmp_path), SCENARIO_RCCL="1")

    def test_by_short_name(
        self, loaded: Callable[..., bool], cpunccl: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "libnccl-profiler-mine.so").symlink_to(cpunccl / "liblogger.so")
        assert loaded(22703, LD_LIBRARY_PATH=str(tmp_path), NCCL_PROFILER_PLUGIN="mine")
        assert not loaded(22703, LD_LIBRARY_PATH=str(tmp_path), NCCL_PROFILER_PLUGIN="libmine.so")

    def test_none(self, loaded: Callable[..., bool], cpunccl: Path, tmp_path: Path) -> None:
        (tmp_path / "libnccl-profiler.so").symlink_to(cpunccl / "liblogger.so")
        assert not loaded(23203, LD_LIBRARY_PATH=str(tmp_path), NCCL_PROFILER_PLUGIN="None")

    @pytest.mark.parametrize("vendor", ["nccl", "rccl"])
    def test_by_configuration_file(
        self, loaded: Callable[..., bool], cpunccl: Path, tmp_path: Path, vendor: str
    ) -> None:
        more = {"SCENARIO_RCCL": "1"} if vendor == "rccl" else {}
        etc, chosen = tmp_path / "etc", tmp_path / "chosen.conf"
        etc.mkdir()
        line = f"NCCL_PROFILER_PLUGIN={cpunccl / 'liblogger.so'}\n"
        (etc / f"{vendor}.conf").write_text(f"# a comment\n{line}")
        assert loaded(23007, CPUNCCL_ETC=str(etc), **more)
        # The user's file is before the system's, the environment before both.
        chosen.write_text("NCCL_PROFILER_PLUGIN=none\n")
        assert not loaded(23007, CPUNCCL_ETC=str(etc), NCCL_CONF_FILE=str(chosen), **more)
        given = {"NCCL_PROFILER_PLUGIN": str(cpunccl / "liblogger.so")}
        assert loaded(23007, CPUNCCL_ETC=str(etc), NCCL_CONF_FILE=str(chosen), **given, **more)

    def test_before_2_26(self, loaded: Callable[..., bool], cpunccl: Path) -> None:
        assert not loaded(22503, NCCL_PROFILER_PLUGIN=str(cpunccl / "liblogger.so"))
