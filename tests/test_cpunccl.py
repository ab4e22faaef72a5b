"""cpunccl is a real collective library: right results, NCCL's errors, no wait for the dead."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cpunccl.ranks import Ranks

pytest_plugins = ["tests.cpunccl.ranks"]
Start = Callable[..., "Ranks"]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_collectives_of_all_types_and_sizes(ranks: Start, world: int) -> None:
    ranks("collectives", world).finish()


def test_messages_arrive_whole_and_in_order(ranks: Start) -> None:
    ranks("messages", 3).finish()


def test_a_message_to_oneself(ranks: Start) -> None:
    ranks("messages", 1).finish()


def test_split_by_color_and_key(ranks: Start) -> None:
    ranks("splits", 5).finish()


def test_groups_launch_at_their_end(ranks: Start) -> None:
    ranks("groups", 4).finish()


@pytest.mark.parametrize("rccl", ["", "1"])
def test_bad_arguments_are_refused(ranks: Start, rccl: str) -> None:
    ranks("arguments", 2, SCENARIO_RCCL=rccl).finish()


def test_ranks_in_threads_of_one_process(ranks: Start) -> None:
    ranks("threads", 1).finish()


def test_different_collectives_are_an_error(ranks: Start) -> None:
    ranks("mismatch", 2).finish()


def test_a_killed_rank_ends_the_others(ranks: Start) -> None:
    statuses = ranks("killed", 4).statuses()
    assert statuses == [0, 0, 0, -signal.SIGKILL]


def test_an_abort_ends_the_others(ranks: Start) -> None:
    ranks("aborted", 3).finish()


def test_planned_times_are_exact(ranks: Start) -> None:
    ranks("planned", 4, CPUNCCL_BANDWIDTH="1e9").finish()


def test_nothing_is_left_in_shared_memory(ranks: Start) -> None:
    job = ranks("splits", 4)
    job.finish()
    assert not list(Path("/dev/shm").glob(f"cpunccl-{job.unique_id_head()}*"))
