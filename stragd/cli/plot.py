"""The picture of `stragctl simulate`: how soon each fault is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SUFFIXES = (".svg", ".png")
MISSING = "drawing needs matplotlib: pip install 'stragd[plots]', or apt install python3-matplotlib"


class PlotError(Exception):
    """A picture that cannot be drawn: the reason and the way out in one line."""


def ready(path: Path) -> None:
    """Raises PlotError where ``draw`` could not begin; before hours of work, not after them."""
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise PlotError(MISSING) from None
    if not path.parent.is_dir():
        raise PlotError(f"{path}: there is no directory {path.parent}")


def draw(path: Path, title: str, rows: Sequence[dict[str, Any]], window_s: float) -> None:
    """One curve per row of the answer's ``power``: the share of the faulty subjects that are named
    within so many windows, and its 95 % interval. ``path`` ends in .svg or .png."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    last = 8
    for place, row in enumerate(rows):
        within = row["named_within"]
        shares = [one["value"] for one in within]
        windows = list(range(len(within)))
        last = max(last, shares.index(shares[-1]) + 2)
        (line,) = axes.step(
            windows, shares, where="post", label=f"{row['fault']} ({row['expected']})",
            linestyle=("solid", "dashed", "dashdot", "dotted")[place % 4],
        )  # fmt: skip
        # Where none or all are named yet, the intervals of all faults would lie on each other.
        axes.fill_between(
            windows, [one["low"] for one in within], [one["high"] for one in within],
            where=[0.0 < share < 1.0 for share in shares], step="post", alpha=0.15,
            color=line.get_color(), linewidth=0,
        )  # fmt: skip
    axes.set(
        title=title, ylabel="named", ylim=(-0.02, 1.02), xlim=(0, last),
        xlabel="windows since the fault began",
    )  # fmt: skip
    axes.title.set_fontsize(10)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    def scaled(factor: float) -> Callable[[Any], Any]:
        return lambda value: value * factor

    seconds = axes.secondary_xaxis("top", functions=(scaled(window_s), scaled(1 / window_s)))
    seconds.set_xlabel("seconds")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    try:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror or error}") from None
