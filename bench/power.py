"""What the scorer sees and what it does not: silence on healthy jobs, power on slow ones.

Method: simulated jobs (``stragd/replay/simulate.py``: 100 steps a window, 5 % jitter a step, 1.5 %
permanent spread between machines, trimmed means as the windows have them) go through the native
scorer with its default configuration; the same limits everywhere. A false alarm is a healthy rank
that was confirmed once as a straggler. A delay counts windows from the first slow one to the one
that confirmed; all jobs were healthy for 200 windows before (40 for the fast lane). Healthy jobs
send the tenths of their windows too, so that both lanes can be wrong. Lorden's bound is
ln(1 / rate) / (d^2 / 2) windows for a shift of d standard deviations of a window (Lorden 1971).
"""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace

import numpy as np

from stragd.replay.measure import fast_power, power, silence
from stragd.replay.noise import Noise, library
from stragd.replay.simulate import Fault, Machine, Scenario

ROWS = 16_384
"""Rows of one call, over jobs side by side."""
HEALTHY = 200
VENDORS = tuple(
    Machine(number, 1.0, factor)
    for number, factor in enumerate((1.0, 1.2, 1.6, 1.92, 1.0, 1.2, 1.6, 1.92), 1)
)
STAGES = (Machine(1, 1.0, 1.0), Machine(2, 1.0, 1.2))


def healthy_models() -> list[tuple[str, Scenario]]:
    """Name and scenario of every model of a healthy job."""

    def model(noise: Noise, ranks: int = 64, **more: object) -> Scenario:
        jobs = max(ROWS // ranks, 1)
        return replace(
            Scenario(ranks=ranks, jobs=min(jobs, 4096), windows=250, noise=noise, tenths=True),
            **more,  # type: ignore[arg-type]
        )

    models = [
        ("Gaussian, 64 ranks", model("gaussian")),
        ("Student-t, 3 degrees of freedom", model("student3")),
        ("log-normal, skewness 6", model("lognormal")),
        ("AR(1) 0.7 between steps", model("ar1")),
        ("AR(1) 0.7 between windows", model("ar1-windows")),
        ("bursts and drift of the whole job", model("gaussian", bursts=0.1, drift=0.003)),
        ("no natural spread", model("gaussian", natural=0.0)),
        ("two vendors x four classes", model("gaussian", machines=VENDORS)),
        ("2x steps, evaluation phases", model("outliers", evaluation=20)),
        ("one row in twenty missing", model("gaussian", missing=0.05)),
    ]
    for ranks in (2, 3, 4, 8, 1024, 16_384):
        models.append((f"Gaussian, {ranks:,} ranks", model("gaussian", ranks)))
    models.append(("AR(1) 0.7 between windows, 4 ranks", model("ar1-windows", 4)))
    for ranks in (2, 4, 8):
        name = f"Student-t, bursts and drift, {ranks} ranks"
        models.append((name, model("student3", ranks, bursts=0.1, drift=0.003)))
    return models


def words(delays: np.ndarray) -> str:
    """mean, 99 %, longest; and how many were never named."""
    found = delays[np.isfinite(delays)]
    never = len(delays) - len(found)
    if not len(found):
        return f"never ({never})"
    text = f"{found.mean():.2f} | {np.quantile(found, 0.99):.0f} | {found.max():.0f}"
    return text + (f" | {never} of {len(delays)} never" if never else " | all named")


def print_silence(wanted: int) -> None:
    print(f"### Silence: at least {wanted:,} healthy rank-windows a model\n")
    print("| healthy job | rank-windows | stragglers | other findings | s |\n|---|---|---|---|---|")
    total = named = 0
    for name, scenario in healthy_models():
        begin = time.monotonic()
        told = silence(scenario, wanted)
        total, named = total + told.rank_windows, named + told.stragglers
        others = ", ".join(f"{kind} {count}" for kind, count in told.others.items()) or "-"
        seconds = time.monotonic() - begin
        print(
            f"| {name} | {told.rank_windows:,} | {told.stragglers} | {others} | {seconds:.0f} |",
            flush=True,
        )
    print(f"\n{named} stragglers in {total:,} healthy rank-windows\n")


def slow(noise: Noise, slowdown: float, jobs: int = 300, ranks: int = 64) -> Scenario:
    """One slow rank after 200 healthy windows; it is as fast as its class before."""
    return Scenario(
        ranks=ranks, jobs=jobs, windows=HEALTHY + 80, noise=noise, ordinary=(3,), seed=77,
        faults=(Fault((3,), slowdown, HEALTHY),),
    )  # fmt: skip


def print_power() -> None:
    print("### Power: one slow rank of 64, windows until it is confirmed\n")
    print(
        "| noise | slowdown | mean | 99 % | longest | named | others named | Lorden | ratio |"
        "\n|---|---|---|---|---|---|---|---|---|"
    )
    for noise in ("gaussian", "student3", "lognormal", "outliers", "ar1"):
        for slowdown in (0.01, 0.02, 0.05, 0.2):
            seen = power(slow(noise, slowdown), HEALTHY)
            bound = ratio = "-"
            if noise == "gaussian":
                means, _ = library(noise, 0.05, 100)
                size = math.log(1 + slowdown) / float(np.log(means).std())
                least = math.log(1e8) / (size * size / 2)
                bound, ratio = f"{least:.2f}", f"{seen.delays.mean() / least:.2f}"
            print(
                f"| {noise} | {slowdown:.0%} | {words(seen.delays)} | {seen.others} | {bound} |"
                f" {ratio} |",
                flush=True,
            )
    print()


def print_fast() -> None:
    print("### Fast lane: one slow rank of 64, steps until it is confirmed, in tens\n")
    print(
        "| noise | slowdown | mean | 99 % | longest | named | within 20 steps | within 10 |"
        " others named |\n|---|---|---|---|---|---|---|---|---|"
    )
    for noise in ("gaussian", "student3", "lognormal", "outliers", "ar1"):
        for slowdown in (0.2, 0.5, 1.0):
            scenario = replace(slow(noise, slowdown, jobs=200), windows=45)
            scenario = replace(scenario, faults=(Fault((3,), slowdown, 40),))
            seen = fast_power(scenario, 40)
            shares = [f"{(seen.delays <= limit).mean():.1%}" for limit in (20, 10)]
            print(
                f"| {noise} | {slowdown:.0%} | {words(seen.delays)} | {' | '.join(shares)} |"
                f" {seen.others} |",
                flush=True,
            )
    print()


def main(wanted: int = 10_000_000) -> None:
    wanted = int(os.environ.get("STRAGD_RANK_WINDOWS", wanted))
    print_power()
    print_fast()
    print_silence(wanted)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
