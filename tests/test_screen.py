"""The pictures of stragctl top: a pure function of a snapshot, a size and what was chosen."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from stragd.cli import terminal, text
from stragd.cli.ranktable import SORTS, ordered
from stragd.cli.screen import View, once, screen
from tests import cli_pictures as pictures

SIZES = [(80, 24), (60, 15), (40, 8), (79, 25), (132, 43), (300, 80), (100, 9)]


def shown(top: dict[str, Any], width: int = 80, height: int = 24, **view: Any) -> list[str]:
    lines = screen(cast(Any, top), width, height, View(**view))
    return [text.plain(line) for line in lines]


def worst_cases() -> dict[str, dict[str, Any]]:
    """Pictures that a daemon may send, by name."""
    unknown: dict[str, Any] = {
        "own_ms": None, "wait_ms": None, "comm_ms": None, "wall_ms": None, "lateness_ms": None,
        "lateness_history": [], "slowdown": None, "silent_s": None, "source": "",
        "coverage": None, "missed": [],
        "state": "learning",
    }  # fmt: skip
    wide: dict[str, Any] = {
        "host": "日本語" * 40,
        "class": "gfx942 " * 30,
        "container": "0123456789ab",
    }
    kinds = [
        pictures.finding(0, kind=kind, state=state, subject=subject, cost_ms_per_step=cost,
                         slowdown=slowdown, evidence=["word " * 60] if cost else [])
        for kind, state, subject, cost, slowdown in (
            ("straggler", "suspect", {"rank": 1, "host": "node0"}, None, None),
            ("intermittent", "recovering", {"rank": 2}, None, -0.1),
            ("imbalance", "confirmed", {"class": "nvidia/L4"}, None, 0.4),
            ("uneven-work", "confirmed", {"signature": "ab12", "stage": 3}, None, 0.6),
            ("uneven-work", "confirmed", {"signature": "ab12"}, None, 0.6),
            ("network", "confirmed", {"nic": "mlx5_0", "host": "node1"}, None, None),
            ("job-wide", "confirmed", {}, None, 0.1),
            ("hang", "confirmed", {"rank": 3, "host": "node0"}, None, None),
        )
    ]  # fmt: skip
    cause = {"name": "thermal-throttle", "confidence": 0.9, "evidence": ["88 C"], "advice": "drain"}
    alone = [
        {"job": pictures.KEY, "job_name": "llama-7b", "rank": r, "window": 1, "reason": "alone"}
        for r in range(8)
    ]
    huge = 10**400
    return {
        "slow": pictures.top(),
        "healthy": pictures.top(8, None),
        "no job": pictures.top(0, None, jobs=[], ranks=[]),
        "no ranks": pictures.top(0, None),
        "one rank": pictures.top(1, None),
        "512 ranks": pictures.top(512, 300),
        "unknown": pictures.top(
            4, None, ranks=[pictures.rank(i, **unknown) for i in range(4)], abstentions=alone,
            jobs=[pictures.job(4, step_ms=None, steps=0, windows=0, state="learning", name="")],
        ),
        "wide names": pictures.top(8, 2, ranks=[pictures.rank(i, **wide) for i in range(8)],
                                   jobs=[pictures.job(8, name="名" * 100, local_ranks=2)] * 2),
        "every kind": pictures.top(8, None, findings=kinds),
        "cause": pictures.top(8, 2, findings=[pictures.finding(2, cause=cause, where="machine")]),
        "windows": pictures.top(2, None, ranks=[
            pictures.rank(i, per="window", flags=["own-unknown", "steps-not-inferred"],
                          in_flight=3, silent_s=99.0) for i in range(2)]),
        "degraded": pictures.top(health=pictures.HEALTH | {
            "degraded": ["no BPF: " + "why " * 50, "no NVML"], "lost": 12, "rss_bytes": 0,
            "bpf_ns_per_event": None}),
        "off": pictures.top(health=pictures.HEALTH | {"probes": "off", "probes_attached": 0}),
        "absurd numbers": pictures.top(
            2, None, ranks=[pictures.rank(huge, own_ms=-1e300, wall_ms=huge, steps=huge,
                                          lateness_history=[huge, -5, 1e308])],
            jobs=[pictures.job(huge, step_ms=1e308, steps=huge)]),
    }  # fmt: skip


CASES = worst_cases()


@pytest.mark.parametrize("name", list(CASES))
def test_every_picture_fits_every_size(name: str) -> None:
    for width, height in SIZES:
        for view in (
            {}, {"utf8": False}, {"help": True}, {"selected": (1, 4001), "sort": "wait"},
            {"paused": True, "job": "gone"},
            {"stale": "no answer from stragd for 4 s", "problem": "/run/x: " + "reason " * 40},
        ):  # fmt: skip
            lines = screen(cast(Any, CASES[name]), width, height, View(**cast(Any, view)))
            assert len(lines) == height
            for line in lines:
                whole = "".join(span.text for span in line)
                assert text.cells(whole) <= width
                assert whole.isprintable()
                assert view.get("utf8", True) or whole.isascii()
            last = text.plain(lines[-1])
            assert last.startswith("stragd: "), last
        assert max(map(text.cells, once(cast(Any, CASES[name]), width, View()))) <= width


@pytest.mark.parametrize("size", [(1, 1), (39, 24), (80, 7), (10, 2)])
def test_too_small_a_terminal_is_told_so(size: tuple[int, int]) -> None:
    lines = shown(CASES["slow"], *size)
    assert len(lines) <= size[1]
    assert all(len(line) <= size[0] for line in lines)
    if size[0] > 30:
        assert lines[0].startswith("stragctl top needs 40x8")


def test_culprit_stands_on_top_with_its_reason() -> None:
    lines = shown(pictures.top(8, 5))
    assert lines[1] == "job llama-7b, world size 8, 412.0 ms per step"
    assert lines[2] == "worst: rank 5 on node0, costs 73.2 ms per step (17.8 %)"
    header = lines.index(next(line for line in lines if line.startswith(" rank host")))
    for column in ("class", "own", "wait", "comm", "step", "lateness", "state"):
        assert column in lines[header]
    assert re.match(
        r"!   5 node0 .* 379\.0 +11\.6 +21\.4 +412\.0 ▁.*█ confirmed$", lines[header + 1]
    )
    assert len([line for line in lines if line.endswith(" watching")]) == 7
    assert any(line.startswith("straggler: rank 5 on node0, confirmed since") for line in lines)
    assert "everybody waits for the largest own" in lines[-2]
    assert lines[-1] == (
        "stragd: 12.3k events/s, 0 lost, 214 probes, bpf 412 ns, cpu 0.4 %, 61.1 MiB"
    )


def test_ranks_that_cannot_be_judged_are_not_said_to_keep_pace() -> None:
    top = pictures.top(4, None)
    reason = {"job": pictures.KEY, "job_name": "llama-7b", "window": 1, "reason": "learning"}
    top["abstentions"] = [{**reason, "rank": 3}]
    assert shown(top)[2] == "worst: nobody, 3 of 4 ranks keep pace (12 windows scored)"
    top["abstentions"] = [{**reason, "rank": rank} for rank in range(4)]
    assert "no rank can be judged" in shown(top)[2]
    top = pictures.top(4, None)
    for rank in top["ranks"]:
        rank["own_ms"] = None
    assert "no rank can be judged" in shown(top)[2]
    assert "keep pace" not in "".join(shown(top))


def test_a_job_that_stands_still_says_so() -> None:
    top = pictures.top(4, None)
    assert "no collective" not in "".join(shown(top))
    for rank in top["ranks"]:
        rank["silent_s"] = 14.6
    assert any(line.startswith("no collective for 14 s:") for line in shown(top))
    top["ranks"][3]["silent_s"] = 0.1
    assert "no collective" not in "".join(shown(top)), "one of them still moves"
    for rank in top["ranks"]:
        rank.update(silent_s=14.6, wall_ms=12_000.0)
    assert "no collective" not in "".join(shown(top)), "its steps are that long"


def test_nobody_blamed_is_sorted_by_rank_and_says_so() -> None:
    lines = shown(CASES["healthy"])
    assert lines[2] == "worst: nobody, all ranks keep pace (12 windows scored)"
    ranks = [int(line[1:5]) for line in lines[5:13]]
    assert ranks == list(range(8))
    assert "no finding: nobody is blamed" in lines
    assert not any("█" in line for line in lines), "noise must not look like a straggler"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no job", ["No training job on this node yet.", "stragctl doctor"]),
        ("unknown", ["no steps inferred", "still learning (0 steps, 0 windows scored)",
                     "no verdict on ranks 0-7: alone", "first learns what is normal"]),
        ("cause", ["where: machine, cause: thermal-throttle (90.0 % sure)", "88 C",
                   "to do: drain"]),
        ("windows", ["ms per window (no steps inferred)", "own is unknown"]),
        ("degraded", ["degraded: no BPF", "12 lost"]),
        ("off", ["probes are off: stragd sees nothing (stragctl probes on)"]),
        ("512 ranks", ["worst: rank 300 on node37", "1-10 of 512", "! 300 node37"]),
    ],
)  # fmt: skip
def test_words_on_the_screen(name: str, words: list[str]) -> None:
    picture = "\n".join(shown(CASES[name]))
    for word in words:
        assert word in picture


def test_every_kind_names_its_subject() -> None:
    picture = "\n".join(once(cast(Any, CASES["every kind"]), 100, View()))
    for words in (
        "straggler: rank 1 on node0, suspect", "intermittent: rank 2, recovering",
        "imbalance: class nvidia/L4, confirmed", "uneven-work: stage 3, confirmed",
        "uneven-work: ranks with the signature ab12", "network: NIC mlx5_0 on node1",
        "job-wide: the whole job", "hang: rank 3 on node0", "own work is 10.0 % below its peers",
    ):  # fmt: skip
        assert words in picture


def test_orders() -> None:
    top = pictures.top(8, 5)
    orders = {
        sort: [r["rank"] for r in ordered(top["ranks"], top["findings"], sort)] for sort in SORTS
    }
    assert orders["rank"] == list(range(8))
    assert orders["auto"][0] == orders["own"][0] == orders["lateness"][0] == 5
    assert orders["wait"][-1] == 5
    top["ranks"][5]["own_ms"] = None
    assert ordered(top["ranks"], top["findings"], "own")[-1]["rank"] == 5


@pytest.mark.parametrize(
    ("environment", "utf8"),
    [
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "de_DE.utf8@euro"}, True),
        ({"LC_ALL": "C", "LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, True),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, False),
        ({}, False),
    ],
)
def test_bars_only_where_the_locale_has_them(environment: dict[str, str], utf8: bool) -> None:
    assert terminal.speaks_utf8(environment) is utf8


def test_colour_only_where_it_is_wanted() -> None:
    assert terminal.wants_colour({"TERM": "xterm"}, refused=False)
    assert not terminal.wants_colour({"TERM": "xterm"}, refused=True)
    assert not terminal.wants_colour({"TERM": "xterm", "NO_COLOR": "1"}, refused=False)
    assert not terminal.wants_colour({"TERM": "dumb"}, refused=False)
    lines = screen(cast(Any, CASES["slow"]), 80, 24, View())
    assert any("\x1b[1;31m" in text.paint(line, True) for line in lines)
    assert not any(re.search(r"\x1b\[(\d;)?3\d", text.paint(line, False)) for line in lines)


def test_blamed_come_first_then_the_latest() -> None:
    top = pictures.top(6, None)
    for row, late in zip(top["ranks"], [1.0, 9.0, 3.0, 0.0, 7.0, 5.0], strict=True):
        row["lateness_ms"] = late
    top["ranks"][3]["state"] = "suspect"
    top["ranks"][0]["state"] = "confirmed"
    top["ranks"][1]["state"] = "gone"
    findings = [pictures.finding(3, state="suspect"), pictures.finding(0)]  # most expensive first
    assert [r["rank"] for r in ordered(top["ranks"], cast(Any, findings), "auto")] == [
        3, 0, 4, 5, 2, 1,
    ]  # fmt: skip
