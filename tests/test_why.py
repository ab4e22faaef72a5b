"""What `why` makes of a look: pure functions over what the child saw."""

from __future__ import annotations

import argparse
from typing import Any, cast

import pytest

from stragd.cli import why
from stragd.outputs.snapshot import Job, Rank
from stragd.why import LookError, compare, program, sides
from stragd.why.measures import RUNNABLE, RUNNING, WAITING, Measures, Series, measures
from stragd.why.python_stacks import Stack, parse, places, usual
from stragd.why.session import Python, Seen
from stragd.why.waits import UNKNOWN, in_page_fault, waits_for

SECOND = 1_000_000_000
SYSCALL = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"]
SCHEDULE = ["__schedule", "schedule"]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (["futex_wait_queue", "futex_wait", "do_futex"], "lock or condition (futex)"),
        (["do_nanosleep", "hrtimer_nanosleep"], "sleep"),
        (["io_schedule", "folio_wait_bit_common", "filemap_read", "vfs_read"], "disk"),
        (["io_schedule", "folio_wait_bit_common", "filemap_fault", "handle_mm_fault",
          "exc_page_fault"], "page faults"),
        (["io_schedule", "do_swap_page", "handle_mm_fault", "exc_page_fault"], "swap"),
        (["rpc_wait_bit_killable", "nfs4_file_read", "vfs_read"], "NFS"),
        (["request_wait_answer", "fuse_simple_request", "fuse_read_folio"], "FUSE filesystem"),
        (["anon_pipe_read", "vfs_read"], "pipe"),
        (["schedule_timeout", "wait_woken", "sk_wait_data", "tcp_recvmsg"], "network"),
        (["schedule_hrtimeout_range", "ep_poll", "do_epoll_wait"], "epoll"),
        (["poll_schedule_timeout.constprop.0", "do_sys_poll"], "poll"),
        (["os_acquire_mutex", "rm_ioctl", "nvidia_ioctl"], "NVIDIA driver"),
        (["do_signal_stop", "get_signal"], "stopped by a signal or debugger"),
        (["rwsem_down_read_slowpath", "down_read", "madvise_walk_vmas"], "kernel lock"),
        (["frobnicate_device"], "kernel function frobnicate_device"),
        ([], UNKNOWN),
        (["", ""], UNKNOWN),
    ],
)  # fmt: skip
def test_a_kernel_stack_says_what_is_waited_for(frames: list[str], words: str) -> None:
    stack = SCHEDULE + frames + SYSCALL if frames and frames[0] else frames
    assert waits_for(stack) == words
    assert in_page_fault(stack) == any("fault" in name and "filemap" not in name for name in frames)


def raw_rank(pid: int = 10, **more: Any) -> dict[str, Any]:
    """A rank that ran 100 ms and was runnable 50 ms of each of five seconds."""
    totals = [[n * 100_000_000, n * 50_000_000, n * 10, 9_000_000, n * 20, n * 5] for n in range(6)]
    return {
        "pid": pid, "totals": totals, "threads": [thread(pid, pid)], "waits": [], "takers": [],
        "processes": [{"pid": pid, "minor_faults": 500, "major_faults": 10}],
        "io": {"ns": 0, "count": 0, "longest_ns": 0, "bytes": 0}, **more,
    }  # fmt: skip


def thread(tid: int, pid: int, switches: int = 50, name: str = "python3") -> dict[str, Any]:
    return {
        "tid": tid, "pid": pid, "name": name, "ran_ns": 5, "waited_ns": 5, "switches": switches,
    }  # fmt: skip


def wait(tid: int, frames: list[str], ms: float, state: int = 1, pid: int = 10) -> dict[str, Any]:
    """So many ms of each of five seconds."""
    ns = int(ms * 1e6)
    return {
        "tid": tid, "pid": pid, "state": state, "ns": 5 * ns, "count": 10, "longest_ns": ns // 2,
        "kernel": SCHEDULE + frames, "user": [], "slices": [ns] * 5,
    }  # fmt: skip


TIMES = [n * SECOND for n in range(6)]


def test_a_look_becomes_milliseconds_of_each_second() -> None:
    seen = measures(
        raw_rank(
            waits=[wait(10, ["futex_wait"], 400), wait(10, ["io_schedule", "exc_page_fault"], 30)],
            io={"ns": 40_000_000, "count": 20, "longest_ns": 7_000_000, "bytes": 5 << 20},
        ),
        TIMES,
    )
    assert seen.series[RUNNING].mean == pytest.approx(100)
    assert seen.series[RUNNABLE].mean == pytest.approx(50)
    assert seen.series[RUNNABLE].longest_ms == pytest.approx(9)
    assert seen.series[WAITING + "lock or condition (futex)"].mean == pytest.approx(400)
    assert seen.series[WAITING + "page faults"].mean == pytest.approx(30)
    assert seen.fault_wait_ms == pytest.approx(15)
    assert seen.io_ms == pytest.approx(2)
    assert (seen.io_requests, seen.major_faults, seen.involuntary) == (4, 2, 5)


def test_threads_that_never_ran_do_not_bury_what_differs() -> None:
    idle = wait(11, ["futex_wait"], 1000)
    stuck = wait(12, ["rpc_wait_bit_killable", "nfs_file_read"], 1000, state=2)
    seen = measures(
        raw_rank(
            threads=[thread(10, 10), thread(11, 10, 0), thread(12, 10, 0)], waits=[idle, stuck]
        ),
        TIMES,
    )
    assert WAITING + "lock or condition (futex)" not in seen.series
    assert seen.series[WAITING + "NFS"].mean == pytest.approx(1000)
    assert {s["waits_for"] for s in seen.stacks} == {"lock or condition (futex)", "NFS"}


def test_a_main_thread_that_hangs_is_not_idle() -> None:
    seen = measures(
        raw_rank(threads=[thread(10, 10, 0)], waits=[wait(10, ["futex_wait"], 1000)]), TIMES
    )
    assert seen.series[WAITING + "lock or condition (futex)"].mean == pytest.approx(1000)


def seen_with(**series: Series) -> Measures:
    return Measures(1, 5.0, dict(series))


def steady(ms: float, longest: float = 1.0, noise: float = 0.0) -> Series:
    signs = (1, -1, 1, -1, 0)
    return Series([ms + sign * noise for sign in signs], longest_ms=longest)


def test_differences_are_ordered_and_carry_both_numbers() -> None:
    rank = seen_with(runnable=steady(300), disk=steady(80), epoll=steady(100), same=steady(500))
    peer = seen_with(runnable=steady(2), epoll=steady(480), same=steady(510))
    found = compare.differences(rank, peer)
    assert [(d.what, round(d.rank), round(d.peer)) for d in found] == [
        ("runnable", 300, 2), ("disk", 80, 0), ("epoll", 100, 480),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "others", "differ"),
    [
        (steady(100), steady(100), False),
        (steady(119), steady(100), False),  # less than 20 ms of each second
        (steady(600), steady(500), False),  # less than a fifth
        (steady(160), steady(100), True),
        (steady(100), steady(160), True),
        (steady(160, noise=150), steady(100), False),  # the slices say anything
        (Series([0, 0, 0, 0, 900], 900), Series([0.0] * 5), True),  # one long wait is no chance
        (Series([0, 0, 0, 0, 900], 20), Series([0.0] * 5, 10), False),
        (Series([500.0]), Series([0.0]), False),  # one slice shows no chance at all
    ],
)
def test_what_is_a_difference(mine: Series, others: Series, differ: bool) -> None:
    assert compare.differs(mine, others) is differ


def test_rates_and_latencies_differ_by_a_multiple() -> None:
    rank, peer = seen_with(), seen_with()
    assert compare.contrasts(rank, peer) == []
    rank.major_faults, peer.major_faults = 40.0, 1.0
    rank.io_ms, peer.io_ms = 12.0, 0.4
    rank.io_requests, peer.io_requests = 50.0, 40.0
    found = [(c.what, c.rank, c.peer, c.unit) for c in compare.contrasts(rank, peer)]
    assert found == [
        ("major page faults", 40.0, 1.0, "per s"),
        ("mean latency of a block request", 12.0, 0.4, "ms"),
    ]


RAW = """\
thread (10): MainThread;<module> (train.py:88);next (torch/loader.py:5);get (queue.py:171) 90
thread (10): MainThread;<module> (train.py:90);backward (torch/autograd.py:2) 10
thread (11): a;name with spaces;x (y.py:1) 7
thread (0x7f00aa): b;x (y.py:1) 3
no thread;x 4
thread (10): MainThread;x (y.py:1) many
thread (10): MainThread 5
thread (10): MainThread;\x1b[2Jevil (e\x07.py:1) 1
"""


def test_py_spy_text_is_read_line_by_line_and_cleaned() -> None:
    stacks = parse(RAW)
    assert [(s.tid, s.samples) for s in stacks] == [(10, 90), (10, 10), (11, 7), (0, 3), (10, 1)]
    assert stacks[0].frames[0] == "get (queue.py:171)"
    assert stacks[2].thread == "a"
    assert stacks[-1].frames == ("?[2Jevil (e?.py:1)",)


def test_main_threads_are_compared_by_function() -> None:
    def stack(frame: str, samples: int, tid: int = 10) -> Stack:
        return Stack(tid, "MainThread", (frame, "train (t.py:1)"), samples)

    rank = [
        stack("get (queue.py:171)", 60),
        stack("get (queue.py:172)", 20),
        stack("b (b.py:1)", 20),
    ]
    peer = [
        stack("b (b.py:9)", 95, 20),
        stack("get (queue.py:171)", 5, 20),
        stack("x (x.py:1)", 99),
    ]
    found = places(rank, 10, peer, 20)
    assert [(p.stack[0], round(p.rank, 2), round(p.peer or 0, 2)) for p in found] == [
        ("get (queue.py:171)", 0.8, 0.05), ("b (b.py:1)", 0.2, 0.95),
    ]  # fmt: skip
    assert places(rank, 10, [], 20) == []
    assert places(rank[:1], 10, [stack("b (b.py:9)", 2, 20)], 20) == []  # two samples say nothing
    assert [p.stack[0] for p in usual(rank, 10)] == ["get (queue.py:171)", "b (b.py:1)"]


def rank_row(number: int, own: float | None = 10.0, **more: Any) -> Rank:
    row = {
        "rank": number, "pid": 100 + number, "host": "node0", "class": "cpu/x", "own_ms": own,
        "signature": "aa", "state": "watching", **more,
    }  # fmt: skip
    return cast(Rank, row)


JOB = cast(Job, {"key": "00" * 8, "name": "llama", "world_size": 16})


def test_the_peer_is_a_typical_healthy_rank_of_the_same_kind() -> None:
    ranks = [
        rank_row(0, 30.0, state="confirmed"), rank_row(1, 4.0), rank_row(2, 10.2),
        rank_row(3, 11.0),
        rank_row(4, 10.0, signature="bb"), rank_row(5, 10.0, **{"class": "cpu/y"}),
        rank_row(6, 30.1, state="suspect"), rank_row(7, 10.1, state="gone"),
    ]  # fmt: skip
    peer = sides.healthiest(ranks, ranks[0])
    assert peer is not None
    assert peer["rank"] == 2
    assert sides.healthiest(ranks, ranks[4]) is None
    untimed = [rank_row(0, None), rank_row(1, None, state="learning")]
    assert sides.healthiest(untimed, untimed[0]) == untimed[1]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "rank 1 (pid 101) has ended"),
        (7, "rank 7 runs on another node: run stragctl why there (here: ranks 0, 2)"),
        (16, "job llama has no rank 16, its world size is 16 (here: ranks 0, 2)"),
    ],
)
def test_a_rank_that_cannot_be_looked_at(number: int, words: str) -> None:
    ranks = [rank_row(0), rank_row(1, state="gone"), rank_row(2)]
    with pytest.raises(LookError) as error:
        sides.find(JOB, ranks, number)
    assert words in str(error.value)
    assert sides.find(JOB, ranks, 2)["pid"] == 102


def answer_of(rank: dict[str, Any], peer: dict[str, Any] | None) -> dict[str, Any]:
    raws = [rank] if peer is None else [rank, peer]
    seen = Seen(5.0, [measures(r, TIMES) for r in raws], [Python(reason="py-spy is missing")] *
                len(raws), ["2 waits have no kernel stack"])  # fmt: skip
    other = None if peer is None else rank_row(1)
    return why.answer(JOB, rank_row(0), other, [], seen)


def test_the_answer_for_a_person_names_both_numbers() -> None:
    takers = [
        {"tid": 77, "name": "sp\x1bin", "own": False, "count": 60},
        {"tid": 78, "name": "sp\x1bin", "own": False, "count": 30},
        {"tid": 11, "name": "python3", "own": True, "count": 10},
    ]
    starved = raw_rank(100, takers=takers)
    starved["totals"] = [[0, n * 400_000_000, n, 80_000_000, 0, 0] for n in range(6)]
    text = "\n".join(why.lines(answer_of(starved, raw_rank(101)), 100))
    assert "runnable but not running: 400.0, peer 50.0 (+350), longest 80.0 ms, peer 9.00" in text
    assert "its CPU went to sp?in (pid 77, 78) 90.0 %; its own threads (pid 11) 10.0 %" in text
    assert "not read: rank 0 and rank 1: py-spy is missing" in text
    assert "not read: 2 waits have no kernel stack" in text
    assert "\x1b" not in text


def test_alike_ranks_and_a_rank_alone_say_so() -> None:
    text = "\n".join(why.lines(answer_of(raw_rank(100), raw_rank(101)), 100))
    assert "nothing differs" in text
    alone = "\n".join(why.lines(answer_of(raw_rank(100), None), 60))
    assert "without a comparison" in " ".join(alone.split())
    assert "runnable but not running" in alone
    assert "nothing differs" not in alone


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    starved = raw_rank(100, waits=[wait(100, ["anon_pipe_read", "vfs_read"], 300, pid=100)])
    lines = why.lines(answer_of(starved, raw_rank(101)), width)
    assert all(len(line) <= width for line in lines), lines


@pytest.mark.parametrize("text", ["0.5", "301", "nan", "ten", "-3"])
def test_a_span_that_makes_no_look_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    why.add_arguments(parser, "a job")
    with pytest.raises(SystemExit):
        parser.parse_args(["1", f"--seconds={text}"])
    assert "is not between 1 and 300 seconds" in capsys.readouterr().err


def test_every_tracepoint_of_the_program_has_its_function_and_fields() -> None:
    for point, function in program.FUNCTIONS.items():
        assert f"int {function}(void *ctx)" in program.TEXT
        fields = program.FIELDS[point.replace("_new", "")]
        for field in fields:
            assert f"{point.split('/')[1].replace('_new', '')}_{field}".upper() in program.TEXT
