"""`stragctl simulate`: what would stragd see on a cluster like mine?

The scorer itself is run on simulated jobs, so it needs no daemon and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from stragd.replay.measure import power, silence
from stragd.replay.simulate import NOISES, Fault, Machine, Scenario

HEALTHY = 200
"""Windows before the fault: what the scorer knows of a job that runs for a while."""
AFTER = 64
"""Windows that the fault lasts."""
ROWS = 16_384
MOST_RANKS = 1 << 17
DEFAULT_SLOWDOWNS = (0.01, 0.02, 0.05, 0.1, 0.2)


def _number(low: float, high: float, unit: float = 1.0) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not between {low:g} and {high:g}")
        return value / unit

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return value

    return parse


def _machine(text: str) -> Machine:
    name, _, rest = text.partition("=")
    share, _, factor = rest.partition(":")
    try:
        machine = Machine(0, float(share), float(factor or "1"))
    except ValueError:
        machine = Machine(0, 0.0, 0.0)
    if not name or not 0 < machine.share <= 1e6 or not 0.01 <= machine.factor <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=SHARE:FACTOR, as in MI300X=256:1.2 (1.2 times as long a step)"
        )
    return machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    number, whole = _number, _whole
    parser.add_argument(
        "--ranks", type=whole(2, MOST_RANKS), default=64, metavar="N", help="ranks of the job (64)"
    )
    parser.add_argument(
        "--jitter", type=number(0.01, 100, 100), default=0.05, metavar="PERCENT",
        help="standard deviation of one step (5)",
    )  # fmt: skip
    parser.add_argument("--noise", choices=NOISES, default="gaussian", help="noise model of steps")
    parser.add_argument(
        "--natural", type=number(0, 50, 100), default=0.015, metavar="PERCENT",
        help="permanent spread between machines of a class (1.5)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=whole(10, 10_000), default=100, metavar="N", help="steps a window (100)"
    )
    parser.add_argument(
        "--class", dest="machines", action="append", type=_machine, metavar="NAME=SHARE:FACTOR",
        help="a hardware class: its share of the ranks, its step time over the fastest; repeat",
    )  # fmt: skip
    parser.add_argument(
        "--slowdown", dest="slowdowns", action="append", type=number(0.1, 1000, 100),
        metavar="PERCENT", help="slowdown of one rank; repeat (1, 2, 5, 10, 20)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=whole(1, 100_000), default=100, metavar="N", help="jobs a slowdown (100)"
    )
    parser.add_argument(
        "--healthy", type=whole(1000, 10**10), default=1_000_000, metavar="N",
        help="healthy rank-windows to look for false alarms in (1000000)",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole(0, 2**62), default=1, metavar="N", help="seed (1)")
    parser.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw the delays into FILE")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print the table (or one JSON object), draw the plot."""
    machines = arguments.machines or [Machine(1, 1.0, 1.0)]
    machines = tuple(replace(one, class_id=place) for place, one in enumerate(machines, 1))
    base = Scenario(
        ranks=arguments.ranks, steps=arguments.steps, jitter=arguments.jitter,
        noise=arguments.noise, natural=arguments.natural, machines=machines, seed=arguments.seed,
        windows=HEALTHY + AFTER,
    )  # fmt: skip
    together = max(1, min(ROWS // base.ranks, 4096))
    told = silence(replace(base, jobs=together), arguments.healthy)
    rows = []
    for slowdown in arguments.slowdowns or DEFAULT_SLOWDOWNS:
        rows.append(_delays(base, slowdown, arguments.jobs, together))
    answer = {
        "findings": [],
        "abstentions": [],
        "healthy_rank_windows": told.rank_windows,
        "false_stragglers": told.stragglers,
        "other_findings": dict(told.others),
        "power": rows,
    }
    if arguments.plot is not None:
        arguments.plot.write_text(_svg(rows, AFTER), encoding="utf-8")
    print(json.dumps(answer, indent=2) if arguments.json else _text(answer, base))
    return 0


def _delays(base: Scenario, slowdown: float, jobs: int, together: int) -> dict[str, object]:
    """One slow rank, the last one, in so many jobs."""
    rank, delays, others, seed = base.ranks - 1, np.empty(0), 0, base.seed + 1000
    fault = Fault((rank,), slowdown, HEALTHY)
    while len(delays) < jobs:
        count = min(together, jobs - len(delays))
        scenario = replace(base, jobs=count, faults=(fault,), ordinary=(rank,), seed=seed)
        seen = power(scenario, HEALTHY)
        delays, others, seed = np.concatenate([delays, seen.delays]), others + seen.others, seed + 1
    found = delays[np.isfinite(delays)]
    return {
        "slowdown": slowdown,
        "jobs": jobs,
        "named": len(found),
        "windows_mean": round(float(found.mean()), 2) if len(found) else None,
        "windows_99_percent": float(np.quantile(found, 0.99)) if len(found) else None,
        "others_named": others,
        "named_within": [int((delays <= window).sum()) for window in range(1, AFTER + 1)],
    }


def _text(answer: dict[str, object], base: Scenario) -> str:
    windows, false = answer["healthy_rank_windows"], answer["false_stragglers"]
    lines = [
        f"{base.ranks} ranks, {base.jitter:.1%} jitter a step ({base.noise}), {base.steps} steps a "
        f"window, {base.natural:.1%} natural spread",
        f"healthy: {false} stragglers in {windows:,} rank-windows",
        "",
        f"{'slower by':>9} {'named':>9} {'mean':>6} {'99 %':>6}  windows until it is named",
    ]
    power_rows = answer["power"]
    assert isinstance(power_rows, list)
    for row in power_rows:
        mean, most = row["windows_mean"], row["windows_99_percent"]
        figures = f"{mean:6.1f} {most:6.0f}" if mean is not None else f"{'-':>6} {'-':>6}"
        wrong = f"  ({row['others_named']} others named)" if row["others_named"] else ""
        named = f"{row['named']}/{row['jobs']}"
        lines.append(f"{row['slowdown']:9.1%} {named:>9} {figures}{wrong}")
    lines += [
        "",
        f"a window is {base.steps} steps; every job was healthy for {HEALTHY} windows before",
    ]
    return "\n".join(lines)


def _svg(rows: list[dict[str, object]], longest: int) -> str:
    """Share of the slow ranks that are named within so many windows, one curve a slowdown."""
    width, height, left, top = 640, 360, 60, 30
    colors = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d5a97", "#b07d12", "#444444")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 180} {height + 90}" '
        'font-family="sans-serif" font-size="13">',
        f'<text x="{left}" y="18">slow ranks named within so many windows</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for window in range(0, longest + 1, 8):
        x = left + width * window / longest
        parts.append(
            f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{window}</text>'
        )
    for place, row in enumerate(rows):
        color, within, jobs = colors[place % len(colors)], row["named_within"], row["jobs"]
        assert isinstance(within, list)
        assert isinstance(jobs, int)
        points = [f"{left},{top + height}"]
        for window, named in enumerate(within, 1):
            x, y = left + width * window / longest, top + height * (1 - named / jobs)
            points.append(f"{x:.1f},{y:.1f}")
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
        y = top + 20 + 20 * place
        parts.append(
            f'<text x="{left + width + 12}" y="{y}" fill="{color}">{row["slowdown"]:.1%}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
