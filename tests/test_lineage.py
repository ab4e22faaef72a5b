"""A job that is started anew: which of its ranks are what they were."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stragd.jobs import JobTable
from stragd.lineage import MAX_ENDED, RESTART_SECONDS, Lineage


@dataclass(frozen=True)
class Who:
    """What discovery says of one process."""

    job_key: int
    rank: int
    restart_count: int = 0
    gpu_uuid: str = ""
    local_rank: int = 0
    parent_key: int = 77
    world_size: int = 4
    job_name: str = "train"
    launcher: str = "torchrun"
    host: str = "here"
    class_name: str = "cpu/x"
    class_id: int = 1
    container: str = ""


class Inherited:
    """Stands where the scorer does, and notes who goes on as whom."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, list[int]]] = []
        self.forgotten: list[int] = []
        self.empty: set[int] = set()

    def inherit(self, from_job: int, to_job: int, ranks: list[int]) -> int:
        self.calls.append((from_job, to_job, ranks))
        return 0 if from_job in self.empty else len(ranks)


@pytest.fixture
def scene() -> tuple[JobTable, Lineage, Inherited]:
    table, scorer = JobTable(), Inherited()
    return table, Lineage(table, scorer, scorer.forgotten.append), scorer


def add(table: JobTable, lineage: Lineage, pid: int, who: Who) -> None:
    lineage.add(table.add((pid, 1), who), who)


def test_a_rank_on_its_gpu_goes_on(scene: tuple[JobTable, Lineage, Inherited]) -> None:
    table, lineage, scorer = scene
    for rank in range(3):
        add(table, lineage, rank, Who(5, rank, gpu_uuid=f"GPU-{rank}"))
    assert lineage.before(5).job == 0
    add(table, lineage, 10, Who(6, 0, 1, gpu_uuid="GPU-0"))
    add(table, lineage, 11, Who(6, 1, 1, gpu_uuid="GPU-9"))  # was replaced
    add(table, lineage, 12, Who(6, 3, 1, gpu_uuid="GPU-2"))  # another rank's place
    assert scorer.calls == [(5, 6, [0])]
    assert lineage.before(6).stayed == {0}
    add(table, lineage, 20, Who(7, 0, 2, gpu_uuid="GPU-0"))
    assert scorer.calls[1:] == [(6, 7, [0])], "the last one before it"


def test_a_start_that_failed_is_no_past(scene: tuple[JobTable, Lineage, Inherited]) -> None:
    table, lineage, scorer = scene
    add(table, lineage, 1, Who(5, 0))
    scorer.empty.add(6)
    add(table, lineage, 2, Who(6, 0, 1))
    add(table, lineage, 3, Who(7, 0, 2))
    assert scorer.calls == [(5, 6, [0]), (6, 7, [0]), (5, 7, [0])]
    assert lineage.before(7).job == 5


def end(table: JobTable, lineage: Lineage, key: int, now: float) -> None:
    lineage.end(table.jobs.pop(key), now)


def test_a_job_may_be_started_anew_long_after_its_end(
    scene: tuple[JobTable, Lineage, Inherited],
) -> None:
    table, lineage, scorer = scene
    add(table, lineage, 1, Who(5, 0))
    add(table, lineage, 2, Who(8, 0, parent_key=78))
    end(table, lineage, 5, 1000.0)
    end(table, lineage, 8, 1000.0)
    lineage.tick(1000.0 + RESTART_SECONDS - 1)
    add(table, lineage, 3, Who(6, 0, 1))
    assert scorer.calls == [(5, 6, [0])]
    assert lineage.before(6).name == "train"
    lineage.tick(1000.0 + RESTART_SECONDS)
    assert scorer.forgotten == [5, 8]
    add(table, lineage, 4, Who(8, 0, 1, parent_key=78))
    assert len(scorer.calls) == 1, "too late"


def test_a_job_that_begins_again_under_its_key_is_learnt_anew(
    scene: tuple[JobTable, Lineage, Inherited],
) -> None:
    table, lineage, scorer = scene
    add(table, lineage, 1, Who(5, 0))
    end(table, lineage, 5, 1000.0)
    assert scorer.forgotten == []
    add(table, lineage, 2, Who(5, 0))
    assert scorer.forgotten == [5], "its window numbers begin anew"


def test_so_many_ended_jobs_are_remembered(scene: tuple[JobTable, Lineage, Inherited]) -> None:
    table, lineage, scorer = scene
    for key in range(1, MAX_ENDED + 3):
        add(table, lineage, key, Who(key, 0, parent_key=key))
        end(table, lineage, key, 1000.0)
    assert scorer.forgotten == [1, 2]


@pytest.mark.parametrize(
    "who",
    [
        Who(6, 0, 1, parent_key=78),  # somebody else's
        Who(6, 0, 0),  # not started anew
        Who(6, 0, 1, local_rank=2),
        Who(6, 0, 1, world_size=8),
        Who(6, 0, 1, host="there"),
    ],
)
def test_anything_else_is_learnt_anew(scene: tuple[JobTable, Lineage, Inherited], who: Who) -> None:
    table, lineage, scorer = scene
    add(table, lineage, 1, Who(5, 0))
    add(table, lineage, 2, who)
    assert scorer.calls == []
    assert lineage.before(6).stayed == set()
