"""How slow a rank must be from its first step on to be named, and how often a healthy one is.

Method: windows of healthy ranks whose machines differ for good (Gaussian in ln, ``SPREADS``), with
the noise of 100 steps of 5 % jitter. One rank a row is held against ``level_limit`` of the others,
with its level free of noise, as the mean of many windows is: a rank above the limit would be named.
"""

from __future__ import annotations

import math

import numpy as np

from stragd.scoring.estimate import MAD_TO_SIGMA, level_limit

RANKS = (4, 8, 16, 32, 64, 256, 1024)
SPREADS = (0.0, 0.0075, 0.015, 0.03)
NOISE = 0.0056
JOBS = 200_000
"""A row of so many jobs; fewer ranks of them where they are large."""
ROOM = 20_000_000


def measured(ranks: int, spread: float, rng: np.random.Generator) -> tuple[list[float], int, int]:
    """(limits in % at 5, 50 and 95 % of the jobs, healthy ranks above theirs, ranks)."""
    jobs = min(JOBS, ROOM // ranks)
    natural = spread * rng.standard_normal((jobs, ranks))
    others = natural[:, 1:] + NOISE * rng.standard_normal((jobs, ranks - 1))
    middle = np.median(others, axis=1)
    mad = MAD_TO_SIGMA * np.median(np.abs(others - middle[:, None]), axis=1)
    limits = np.array([level_limit(float(one), ranks - 1) for one in mad])
    above = int((natural[:, 0] - middle > limits).sum())
    return [100.0 * math.expm1(q) for q in np.quantile(limits, (0.05, 0.5, 0.95))], above, jobs


def main() -> None:
    print("| ranks | spread of the machines | limit (5 to 95 % of jobs) | healthy ranks above |")
    print("| --- | --- | --- | --- |")
    rng = np.random.default_rng(1)
    for ranks in RANKS:
        for spread in SPREADS:
            (low, middle, high), above, jobs = measured(ranks, spread, rng)
            limit = f"{middle:.1f} % ({low:.1f} to {high:.1f})"
            print(f"| {ranks:,} | {spread:.2%} | {limit} | {above} of {jobs:,} |", flush=True)


if __name__ == "__main__":
    main()
