"""Robust estimates and thresholds: medians that leave one out, spreads, limits."""

from __future__ import annotations

import functools
import math

MAD_TO_SIGMA = 1.4826
"""MAD of a Gaussian to its standard deviation."""
RUN = 32
"""Windows of the longest slow run that is told from its past: the newest ones are kept."""
OVERSHOOT = 1.166
"""Siegmund's nu(x)^2 is about exp(-2 x 0.583) (Sequential Analysis, 1985, ch. 10)."""
DENSITY = 0.3989422804014327
JOB_SIZE = 64
"""A larger job raises no more false alarms than one of so many ranks."""

NATURAL_SPREAD, NATURAL_DEGREES = 0.01, 8.0
"""What is known of the spread of healthy machines of one class before they are seen, as degrees of
freedom of a scaled inverse chi-square: 0.7 to 1.9 % in 19 of 20 jobs."""
MAD_EFFICIENCY = 0.37
"""Of the MAD against the standard deviation of a Gaussian sample (Rousseeuw and Croux, JASA 88,
1993)."""
LEVEL_SIGMAS = 5.0
LEAST_LEVEL = 0.03922071315328133
"""ln 1.04: of less nothing is said."""
GROSS = ((16, 0.08617769624105241), (7, 0.12221763272424911))
"""Among so many peers or more 9 % and 13 % are unnatural (ln), where these do not differ by as much
themselves."""


def median(ordered: list[float]) -> float:
    """Median of sorted values; there must be one."""
    n = len(ordered)
    if n % 2 == 1:
        return ordered[n // 2]
    return (ordered[n // 2 - 1] + ordered[n // 2]) / 2.0


def median_without(ordered: list[float], value: float) -> float:
    """Median of sorted values without one that equals ``value``; there must be another."""
    others = len(ordered) - 1

    def at(place: int) -> float:
        return ordered[place + 1] if value <= ordered[place] else ordered[place]

    if others % 2 == 1:
        return at(others // 2)
    return (at(others // 2 - 1) + at(others // 2)) / 2.0


def spread(ordered: list[float]) -> float:
    """Robust standard deviation of sorted values."""
    center = median(ordered)
    return MAD_TO_SIGMA * median(sorted(abs(value - center) for value in ordered))


def level_limit(spread_of_peers: float, peers: int) -> float:
    """Least ln(own / peers) that no natural difference of machines explains.

    The spread is the posterior one (Gelman et al., Bayesian Data Analysis, section 2.6), and what
    is as rare as ``LEVEL_SIGMAS`` is Student's. The median of n values varies by pi / 2 of what
    their mean does.
    """
    seen = MAD_EFFICIENCY * float(peers)
    degrees = NATURAL_DEGREES + seen
    prior = NATURAL_DEGREES * (NATURAL_SPREAD * NATURAL_SPREAD)
    natural = math.sqrt((prior + seen * (spread_of_peers * spread_of_peers)) / degrees)
    uncertain = math.sqrt(1.0 + 1.5707963267948966 / float(peers))
    limit = max(LEAST_LEVEL, student_limit(LEVEL_SIGMAS, degrees) * natural * uncertain)
    for least, gross in GROSS:
        if peers >= least:
            return min(limit, max(gross, LEVEL_SIGMAS * spread_of_peers))
    return limit


def false_alarms(limit: float) -> float:
    """False alarms of one healthy rank and window, when the scan's largest deviate is held
    against ``limit`` (Siegmund and Venkatraman, Annals of Statistics 23, 1995, eq. 2.1)."""

    def part(x: float) -> float:
        return (x / OVERSHOOT + 1.0 / (OVERSHOOT * OVERSHOOT)) * math.exp(-OVERSHOOT * x)

    scan = part(limit / math.sqrt(float(RUN))) - part(limit / math.sqrt(2.0))
    return limit * DENSITY * math.exp(-(limit * limit) / 2.0) * scan


@functools.lru_cache(maxsize=256)
def scan_limit(false_alarms_per_million: float, ranks: int) -> float:
    """Deviate that keeps the wanted rate for a job of so many ranks; from 2 to 40."""
    wanted = false_alarms_per_million * 1e-6 * min(1.0, float(JOB_SIZE) / float(ranks))
    low, high = 2.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if false_alarms(middle) > wanted:
            low = middle
        else:
            high = middle
    return high


def student_limit(limit: float, degrees: float) -> float:
    """The deviate of Student's t that is as rare as ``limit`` is of a Gaussian
    (Wallace, Annals of Mathematical Statistics 30, 1959, inverted)."""
    scaled = limit * (8.0 * degrees + 3.0) / (8.0 * degrees + 1.0)
    return math.sqrt(degrees * (math.exp(min(scaled * scaled / degrees, 700.0)) - 1.0))


def confidence(deviate: float) -> float:
    """One minus the order of magnitude of the chance that noise gets so far."""
    return min(max(1.0 - math.exp(-deviate * deviate / 2.0), 0.5), 0.9999)
