"""The table of jobs at the size that a hostile node can give it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stragd.jobs import JobTable

Place = Callable[[int], tuple[int, int]]
ONE_JOB: Place = lambda number: (1, number)  # noqa: E731
MANY_JOBS: Place = lambda number: (number + 1, 0)  # noqa: E731


def identity(job: int, rank: int) -> Any:
    return SimpleNamespace(
        job_key=job,
        job_name="train",
        launcher="torchrun",
        rank=rank,
        world_size=4096,
        local_rank=-1,
        restart_count=0,
        parent_key=job,
        host="node7",
        class_name="cpu/Test",
        class_id=5,
        container="",
        gpu_uuid="",
    )


def filled(processes: int, place: Place) -> JobTable:
    table = JobTable()
    for number in range(processes):
        table.seen((number, number))
        table.add((number, number), identity(*place(number)))
    for job in table.jobs.values():
        for rank in job.ranks.values():
            status: Any = {"signature": 1, "last_event_ns": 1, "steps": 1, "collectives": 1}
            status |= {"in_flight": 0, "coverage": None, "missed": []}
            rank.own, rank.status = 10.0 + rank.identity.rank, status
    return table


def life(processes: int, place: Place) -> None:
    """Ranks come, are shown and go."""
    table = filled(processes, place)
    assert len(table.rank_rows([], lambda: 2)) == processes
    for number in range(processes):
        table.gone((number, number), 1.0)
        if number == processes - 1:
            table.expired(20.0, 30.0)
    assert not table.expired(30.0, 30.0)
    assert table.expired(31.0, 30.0)
    assert not table.jobs


@pytest.mark.parametrize("place", [ONE_JOB, MANY_JOBS])
def test_time_grows_with_the_processes_and_not_with_their_square(place: Place) -> None:
    def seconds(processes: int) -> float:
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            life(processes, place)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(4096) < 9 * seconds(1024), "four times as many; a square is sixteen"


def test_slowdown_is_against_the_median_of_the_others() -> None:
    table = filled(5, ONE_JOB)
    for rank, own in zip(table.jobs[1].ranks.values(), [10.0, 30.0, 20.0, 20.0, 12.0], strict=True):
        rank.own = own
    shown = [row["slowdown"] for row in table.rank_rows([], lambda: 2)]
    # The medians of the other four: 20, 16, 16, 16, 20.
    assert shown == [-0.5, 0.875, 0.25, 0.25, -0.4]
    alone = filled(1, ONE_JOB)
    assert [row["slowdown"] for row in alone.rank_rows([], lambda: 2)] == [None]


def test_a_job_name_is_free_again_after_its_job() -> None:
    table = filled(2, MANY_JOBS)
    assert [job.name for job in table.jobs.values()] == ["train", "train-00000000"]
    table.gone((0, 0), 1.0)
    assert [job.key for job in table.expired(40.0, 30.0)] == [1]
    assert table.add((7, 7), identity(9, 0)).name == "train"


def test_a_restarted_job_has_the_name_of_the_one_that_ended() -> None:
    table = filled(1, ONE_JOB)
    table.gone((0, 0), 1.0)
    assert table.add((7, 7), identity(9, 0)).name == "train"
    assert [job.name for job in table.jobs.values()] == ["train-00000000", "train"]
    # The shorter form is taken, and a living job keeps its name.
    assert table.add((8, 8), identity(10, 0)).name == "000000000000000a"
    assert [job.key for job in table.expired(40.0, 30.0)] == [1]
    assert table.add((9, 9), identity(11, 0)).name == "train-00000000"


@pytest.mark.parametrize(
    ("flags", "source", "words"),
    [
        (8 | 16, 1, "hides calls from its profiler: broadcast"),
        (8 | 64, 2, "no profiler plugin in this rank"),
        (8, 1, "without device time"),
        (8, 2, "host probes only"),
        (0, 1, "host probes only"),
    ],
)
def test_an_abstention_says_which_witness_is_missing(flags: int, source: int, words: str) -> None:
    table = filled(1, lambda number: (7, number))
    (job,) = table.jobs.values()
    rank = job.ranks[0]
    rank.flags, rank.source = flags, source
    assert rank.status is not None
    rank.status["missed"] = ["broadcast"]
    raw = {"rank": 0, "window": 1, "reason": "host probes only: no device time"}
    table.take_abstentions(job, [raw])
    assert words in job.abstentions[0]["reason"]


def test_lost_time_is_the_costliest_confirmed_share_of_the_ranks_here() -> None:
    table = filled(2, ONE_JOB)
    (job,) = table.jobs.values()
    found: list[Any] = [
        {"job": job.about(), "state": state, "cost_percent": cost}
        for state, cost in (("confirmed", 10.0), ("confirmed", 30.0), ("suspect", 90.0))
    ]
    table.count_losses(found, 5.0)
    assert job.lost == pytest.approx(0.3 * 2 * 5.0)
    table.gone((0, 0), 1.0)
    table.count_losses(found, 5.0)
    assert table.job_rows([])[0]["lost_rank_s"] == pytest.approx(0.3 * 3 * 5.0)
    other = {**job.about(), "key": "0" * 16}
    table.count_losses([{**found[1], "job": other}], 5.0)
    assert table.job_rows([])[0]["lost_rank_s"] == pytest.approx(4.5), "another job's"
