"""The rank table of `top`: which columns fit, in which order, in which colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stragd.cli.numbers import UNKNOWN, ms, number, percent, sparkline
from stragd.cli.text import Line, Span, cells, clean, cut_line, fit
from stragd.finding import Finding
from stragd.outputs.snapshot import Rank

SORTS = ("auto", "rank", "own", "lateness", "wait")

_BY_STATE = {"confirmed": 0, "recovering": 1, "suspect": 2}
_STYLE = {"confirmed": "bad", "suspect": "warn", "recovering": "warn", "gone": "dim"}
_HISTORY = 30  # windows that the daemon keeps
# A bar is full at the largest lateness of the job, but noise must not look like a mountain:
# at least this share of a step.
_FULL_BAR_SHARE = 0.05


@dataclass(frozen=True)
class Column:
    """One column; ``need`` is the order in which columns come when the screen grows."""

    title: str
    need: int
    least: int
    most: int
    right: bool
    text: Callable[[Rank], str]


def _vs_peers(rank: Rank) -> str:
    return percent(rank["slowdown"], sign=True)


_WITNESS = {"device-ring": "ring", "host-probe": "probe"}
_DOUBTS = {"ring-incomplete", "host-timed", "no-ring"}


def _source(rank: Rank) -> str:
    """Where its times come from; with "!" the ring does not give what it could."""
    name = _WITNESS.get(rank["source"], clean(rank["source"] or UNKNOWN, 20))
    return name + ("!" if _DOUBTS & set(rank["flags"]) else "")


# `least` holds the title and the common values; 80 columns hold all with need < 10.
_COLUMNS = (
    Column("rank", 0, 4, 6, True, lambda r: str(r["rank"])),
    Column("host", 2, 8, 24, False, lambda r: clean(r["host"], 80)),
    Column("class", 5, 11, 30, False, lambda r: clean(r["class"], 80)),
    Column("own", 0, 6, 8, True, lambda r: ms(r["own_ms"])),
    Column("vs peers", 10, 8, 8, True, _vs_peers),
    Column("wait", 1, 6, 8, True, lambda r: ms(r["wait_ms"])),
    Column("comm", 4, 6, 8, True, lambda r: ms(r["comm_ms"])),
    Column("step", 3, 6, 8, True, lambda r: ms(r["wall_ms"])),
    Column("late", 11, 6, 8, True, lambda r: ms(r["lateness_ms"])),
    Column("lateness", 2, 8, _HISTORY, False, lambda r: ""),
    Column("state", 0, 10, 10, False, lambda r: clean(r["state"], 20)),
    Column("source", 12, 6, 7, False, _source),
)


def culprits(findings: Sequence[Finding]) -> list[int]:
    """The ranks that the open findings name, most expensive first."""
    return [
        f["subject"]["rank"] for f in findings if f["state"] != "cleared" and "rank" in f["subject"]
    ]


def ordered(ranks: Sequence[Rank], findings: Sequence[Finding], sort: str) -> list[Rank]:
    """The ranks in the order of the screen.

    "auto" is by rank while nobody is blamed; with a finding on a rank the blamed come first,
    then who arrives latest. The other orders put the largest first.
    """
    if sort == "auto":
        blamed = {rank: place for place, rank in reversed(list(enumerate(culprits(findings))))}
        if not blamed:
            return sorted(ranks, key=lambda r: (r["state"] == "gone", r["rank"]))
        return sorted(
            ranks,
            key=lambda r: (
                r["state"] == "gone",
                blamed.get(r["rank"], len(blamed)),
                _BY_STATE.get(r["state"], 3),
                -(number(r["lateness_ms"]) or 0.0),
                r["rank"],
            ),
        )
    if sort == "rank":
        return sorted(ranks, key=lambda r: r["rank"])
    field = {"own": "own_ms", "lateness": "lateness_ms", "wait": "wait_ms"}[sort]

    def largest_first(rank: Rank) -> tuple[bool, float, int]:
        value = number(rank.get(field))
        return value is None, -(value or 0.0), rank["rank"]

    return sorted(ranks, key=largest_first)


def _layout(ranks: Sequence[Rank], width: int) -> list[tuple[Column, int]]:
    """The columns that fit ``width`` with their widths, in the order of the table."""
    room = width - 1  # the mark: ">" selected, "!" blamed
    chosen: list[Column] = []
    for column in sorted(_COLUMNS, key=lambda c: c.need):
        if column.least + 1 <= room:
            chosen.append(column)
            room -= column.least + 1
        elif column.need > 0:
            break
    widths = {c.title: c.least for c in chosen}
    # What is left goes to names that are cut, then to the bars, then to long numbers.
    for column in sorted(chosen, key=lambda c: (c.title == "lateness", c.need)):
        longest = (
            _HISTORY
            if column.title == "lateness"
            else max((cells(column.text(r)) for r in ranks), default=0)
        )
        more = max(0, min(longest, column.most, column.least + room) - column.least)
        widths[column.title] += more
        room -= more
    return [(c, widths[c.title]) for c in _COLUMNS if c in chosen]


def full_bar(ranks: Sequence[Rank]) -> float:
    """Lateness in ms that fills a bar of the sparkline: one scale for all ranks of a job."""
    late = [v for r in ranks for v in map(number, r["lateness_history"]) if v is not None]
    walls = [w for r in ranks if (w := number(r["wall_ms"])) is not None]
    return max([*late, _FULL_BAR_SHARE * max(walls, default=0.0)], default=0.0)


def table_lines(
    ranks: Sequence[Rank],
    shown: Sequence[Rank],
    width: int,
    selected: Rank | None = None,
    utf8: bool = True,
) -> list[Line]:
    """The header and one line for each of ``shown``; ``ranks`` are all of the job.

    The first column marks the selected rank with ">" and a blamed one with "!".
    """
    columns = _layout(ranks, width)
    top = full_bar(ranks)
    header = " ".join(fit(c.title, w, ">" if c.right else "<") for c, w in columns)
    lines: list[Line] = [cut_line([Span(" " + header, "title")], width)]
    for rank in shown:
        parts = []
        for column, wide in columns:
            if column.title == "lateness":
                parts.append(sparkline(rank["lateness_history"], wide, top, utf8))
            else:
                parts.append(fit(column.text(rank), wide, ">" if column.right else "<"))
        chosen = rank is selected
        style = "selected" if chosen else _STYLE.get(rank["state"], "")
        mark = ">" if chosen else "!" if rank["state"] in _BY_STATE else " "
        text = mark + " ".join(parts)
        lines.append(cut_line([Span(fit(text, width), style)], width))
    return lines
