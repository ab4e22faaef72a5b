"""What happened once counts for some windows: events that one pass shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stragd.diagnosis import Diagnosis, diagnose
from stragd.diagnosis.past import RECENT
from tests.jobs_of_samples import SINCE_NS, WINDOW_NS, JobOfSamples, Rank
from tests.test_diagnosis import about

Happening = Callable[[JobOfSamples, list[Rank]], None]


def nothing(_: JobOfSamples, __: list[Rank]) -> None:
    """A window like any other."""


def after(change: Happening, windows: int, later: Happening = nothing) -> Diagnosis:
    """The cause so many windows after one in which something happened."""
    job = JobOfSamples(12)
    past = job.past()
    for number in range(windows + 1):
        ranks = job.window()
        (change if number == 0 else later)(job, ranks)
        made = [rank.picture((1001 + number) * WINDOW_NS) for rank in ranks]
        for one in made:
            past.add(one, SINCE_NS + (number + 1) * WINDOW_NS)
    return diagnose(about(), made[job.slow], [p for p in made if p.rank != job.slow], past)


@pytest.mark.parametrize(
    ("part", "quantity", "cause"),
    [
        ("gpu", "ecc_uncorrected_delta", "memory-damage"),
        ("gpu", "nvlink_recovery_delta", "nvlink"),
        ("gpu", "pcie_uncorrected_delta", "pcie"),
        ("nic", "link_downed_delta", "link-flap"),
        ("nic", "buffer_overrun_delta", "nic-host-side"),
    ],
)
def test_what_happened_once_is_remembered_for_some_windows(
    part: str, quantity: str, cause: str
) -> None:
    def counted(ranks: list[Rank], count: float) -> None:
        for rank in ranks:
            getattr(rank, part)[quantity] = count

    def happens(job: JobOfSamples, ranks: list[Rank]) -> None:
        counted(ranks, 0.0)
        counted([ranks[job.slow]], 1.0)

    def everywhere(_: JobOfSamples, ranks: list[Rank]) -> None:
        counted(ranks, 1.0)

    def rests(_: JobOfSamples, ranks: list[Rank]) -> None:
        counted(ranks, 0.0)

    made = after(happens, 3, rests)
    assert made.name == cause, made
    assert "seen 30 s before this window's end" in made.evidence
    assert after(happens, RECENT, rests).name == "unknown"
    assert after(everywhere, 3, rests).name == "unknown", "the peers' are remembered as well"


def test_an_xid_is_remembered_with_its_number() -> None:
    def happens(job: JobOfSamples, ranks: list[Rank]) -> None:
        ranks[job.slow].gpu["xid_delta"] = 1.0
        ranks[job.slow].gpu_notes.append("Xid 74")

    made = after(happens, 3)
    assert (made.name, made.evidence[0]) == ("nvlink", "the driver reports Xid 74")
    assert "seen 30 s before this window's end" in made.evidence
    assert "seen" not in " ".join(after(happens, 0).evidence)


def test_replays_that_were_repaired_are_not_remembered() -> None:
    def happens(job: JobOfSamples, ranks: list[Rank]) -> None:
        ranks[job.slow].gpu["nvlink_replay_delta"] = 50.0

    assert after(happens, 0).name == "nvlink"
    assert after(happens, 1).name == "unknown"
