"""`stragctl simulate`: what would stragd see on a cluster like mine?

The scorer itself is run on simulated jobs, so it needs no daemon and no GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stragd.cli import plot, top
from stragd.cli.faultspec import FOREVER, HEALTHY, Case, FaultError, case, fault
from stragd.cli.jobspec import JobError, Named, job_arguments, scenario, whole
from stragd.cli.simulated import job_line, lines
from stragd.cli.text import clean
from stragd.config import Config
from stragd.replay import intervals
from stragd.replay.measure import WINDOWS_A_CALL, Seen, power, silence
from stragd.replay.recording import RecordedJob, Recording
from stragd.replay.run import replay
from stragd.replay.simulate import Scenario, class_of, simulate, stage_of

DEFAULT_SLOWDOWNS = (1, 2, 5, 10, 20)
FAST_STEPS, FAST_STEP_MS = 100, 5.0
"""Steps of a window and the shortest step, ms, of which a node sends tenths."""

FAULT_HELP = (
    "slow=PERCENT: ranks are slower; drift=PERCENT: slower by so much more with every window; "
    "network=PERCENT: transfers take longer. Keys: ranks=N or ranks=N%% of them (1; the last "
    "ones), class=NAME, stage=N (from 0), begin=WINDOW (200; 0: slow from the first step), "
    "windows=N (it ends after so many), every=N (slow in one window of N), missing=PERCENT (of "
    "their windows never come), replaced (at the end other machines take the ranks over); repeat"
)


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in plot.SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(plot.SUFFIXES)}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    job_arguments(parser)
    faults = parser.add_argument_group("faults, one line of the answer each")
    faults.add_argument(
        "--slowdown", dest="faults", action="append", type=lambda text: fault(f"slow={text}"),
        metavar="PERCENT", help="one rank is so much slower; repeat (1, 2, 5, 10, 20)",
    )  # fmt: skip
    faults.add_argument(
        "--fault", dest="faults", action="append", type=fault,
        metavar="KIND=PERCENT[,KEY=VALUE...]", help=FAULT_HELP,
    )  # fmt: skip
    runs = parser.add_argument_group("the simulation")
    runs.add_argument(
        "--jobs", type=whole(1, 100_000), default=100, metavar="N", help="jobs a fault (100)"
    )
    runs.add_argument(
        "--healthy", type=whole(1000, 10**10), default=1_000_000, metavar="N",
        help="healthy rank-windows to look for false alarms in (1000000)",
    )  # fmt: skip
    runs.add_argument(
        "--fast-lane", action="store_true",
        help="send tenths of windows too, as a node does: tells steps for gross faults; takes ten "
        "times as long",
    )  # fmt: skip
    runs.add_argument("--seed", type=whole(0, 2**62), default=1, metavar="N", help="seed (1)")
    runs.add_argument(
        "--plot", metavar="FILE.svg|FILE.png", type=_plot_path,
        help="draw how soon each fault is named",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print the table (or one JSON object), draw the plot."""
    try:
        named = scenario(arguments)
        base = replace(named.scenario, tenths=arguments.fast_lane)
        if base.tenths and (base.steps != FAST_STEPS or base.step_ns < FAST_STEP_MS * 1e6):
            raise JobError(
                f"--fast-lane: only windows of {FAST_STEPS} steps of {FAST_STEP_MS:g} ms and more "
                f"have tenths here, and these have {base.steps} steps of {base.step_ns / 1e6:g} ms"
            )
        specs = arguments.faults or [fault(f"slow={percent}") for percent in DEFAULT_SLOWDOWNS]
        cases = [case(spec, base, named.classes) for spec in specs]
    except (JobError, FaultError) as error:
        print(f"stragctl: {clean(error, 1000)}", file=sys.stderr)
        return 2
    try:
        if arguments.plot is not None:
            plot.ready(arguments.plot)
        answer = _answer(named, base, cases, arguments)
        if arguments.plot is not None:
            window_s = base.steps * base.step_ns / 1e9
            plot.draw(arguments.plot, job_line(answer["job"]), answer["power"], window_s)
    except plot.PlotError as error:
        print(f"stragctl: {clean(error, 1000)}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    else:
        width = max(40, shutil.get_terminal_size((top.PIPE_WIDTH, 24)).columns)
        print("\n".join(lines(answer, width)))
    return 0


def _answer(
    named: Named, base: Scenario, cases: list[Case], arguments: argparse.Namespace
) -> dict[str, Any]:
    together = max(WINDOWS_A_CALL // base.ranks, 1)
    wanted: int = arguments.healthy
    windows = HEALTHY + 64
    fit = max(1, min(together, wanted // (base.ranks * windows)))
    _progress(f"healthy jobs, {wanted:,} rank-windows")
    told = silence(replace(base, jobs=fit, windows=windows), wanted)
    rows, findings, abstentions = [], [], []
    for place, one in enumerate(cases, 1):
        _progress(f"fault {place} of {len(cases)}: {one.fault.text}")
        rows.append(_power_row(one, arguments.jobs, together))
        example = replay(_example(named, one, place), Config().scorer())
        findings += example["findings"]
        abstentions += example["abstentions"]
    _progress("")
    low, high = intervals.count(told.stragglers)
    million = told.rank_windows / 1e6
    return {
        "findings": findings,
        "abstentions": abstentions,
        "job": _job(named),
        "healthy": {
            "rank_windows": told.rank_windows,
            "jobs": told.jobs,
            "false_stragglers": told.stragglers,
            "per_million": {
                "value": told.stragglers / million, "low": low / million, "high": high / million,
            },
            "stated_per_million": Config().scorer()["false_alarms_per_million"],
            "other_findings": dict(told.others),
        },
        "power": rows,
    }  # fmt: skip


def _progress(text: str) -> None:
    """Where it is, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(text, 200)}", end="", file=sys.stderr, flush=True)


def _power_row(one: Case, jobs: int, together: int) -> dict[str, Any]:
    """One fault in so many jobs."""
    parts: list[Seen] = []
    for seed, count in _batches(jobs, together):
        scenario = replace(one.scenario, jobs=count, seed=one.scenario.seed + 1000 + seed)
        parts.append(power(scenario, one.fault.begin, one.expected))
    delays = np.concatenate([part.delays for part in parts])
    named = np.isfinite(delays)
    row: dict[str, Any] = {
        "fault": one.fault.text,
        "expected": one.expected,
        "jobs": jobs,
        "subjects": delays.shape[1],
        "named": int(named.sum()),
        "share": _share(delays, np.inf),
        "windows": _windows(delays),
        "others_named": sum(part.others for part in parts),
        "other_findings": dict(sum((part.kinds for part in parts), Counter[str]())),
    }
    if one.expected == "straggler" and one.fault.text == f"slow={100 * one.fault.size:g}":
        row["slowdown"] = one.fault.size
    if one.fault.windows != FOREVER:
        clear = np.concatenate([part.clear for part in parts])
        # Of the named ones: what was never named cannot be cleared.
        row["cleared"] = int((np.isfinite(clear) & named).sum())
        row["cleared_windows"] = _windows(np.where(named, clear, np.inf))
        row["flaps"] = sum(part.flaps for part in parts)
    row["named_within"] = [_share(delays, window) for window in range(one.span + 1)]
    return row


def _batches(jobs: int, together: int) -> Iterator[tuple[int, int]]:
    """(number, jobs) of runs side by side."""
    for place, begin in enumerate(range(0, jobs, together)):
        yield place, min(together, jobs - begin)


def _share(delays: np.ndarray, within: float) -> dict[str, float]:
    """Share of the subjects that are named by then. The subjects of a job share its noise, so only
    jobs count as independent draws."""
    named = float((np.isfinite(delays) & (delays <= within)).mean())
    low, high = intervals.share(named * len(delays), len(delays))
    return {"value": named, "low": low, "high": high}


def _windows(delays: np.ndarray) -> dict[str, float] | None:
    """Figures of the finite ones, None where there is none."""
    found = delays[np.isfinite(delays)]
    if not len(found):
        return None
    jobs = np.array([job[np.isfinite(job)].mean() for job in delays if np.isfinite(job).any()])
    low, high = intervals.mean(jobs) if len(jobs) > 1 else (float(jobs[0]), float(jobs[0]))
    return {
        "mean": float(found.mean()), "low": low, "high": high,
        "percentile_99": float(np.quantile(found, 0.99)), "longest": float(found.max()),
    }  # fmt: skip


def _example(named: Named, one: Case, number: int) -> Recording:
    """One job with the fault, as a recording."""
    scenario = replace(one.scenario, jobs=1, first_job=number, tenths=False)
    about = RecordedJob(
        one.fault.text,
        scenario.ranks,
        classes=dict(enumerate(named.classes or [""], 1)),
        stages={stage + 1: stage for stage in set(stage_of(scenario).tolist())},
        ranks=set(range(scenario.ranks)),
    )
    steps = scenario.windows * scenario.steps
    return Recording("simulated", {number: about}, list(simulate(scenario)), steps, scenario.steps)


def _job(named: Named) -> dict[str, Any]:
    """The job as it was simulated."""
    one = named.scenario
    names = named.classes or ("",)
    places = class_of(one)
    classes = [
        {"name": name, "ranks": int((places == place).sum()), "speed": 1.0 / machine.factor}
        for place, (name, machine) in enumerate(zip(names, one.machines, strict=True))
    ]
    return {
        "ranks": one.ranks, "classes": classes, "pattern": named.pattern,
        "stages": list(one.stages), "load": one.load, "step_ms": one.step_ns / 1e6,
        "steps_per_window": one.steps, "window_s": one.steps * one.step_ns / 1e9,
        "jitter": one.jitter, "noise": one.noise, "natural": one.natural, "bursts": one.bursts,
        "drift": one.drift, "evaluation": one.evaluation, "missing": one.missing,
        "healthy_windows_before": HEALTHY, "seed": one.seed,
    }  # fmt: skip
