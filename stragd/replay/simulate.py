"""Simulated jobs: healthy or with known faults, as the RankWindow rows that a node would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stragd import _rscore
from stragd.replay.noise import TENTHS, Floats, Noise, WindowNoise

STEP_NS = 1e8
EPOCH_NS = 1_700_000_000_000_000_000
TENTH = 128
"""The flag of rows of a tenth of a window."""
BYTES = 1e8
"""Bytes that a rank moves per step."""
BURST, EVALUATION = 1.3, 1.5
"""How much longer everybody takes in a burst, and in an evaluation phase."""

DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT],
        "formats": [form for _, form, _ in _rscore.RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in _rscore.RANK_WINDOW_LAYOUT],
        "itemsize": _rscore.RANK_WINDOW_BYTES,
    }
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with the ranks ``ranks`` of every job, from one window to another."""

    ranks: tuple[int, ...]
    slowdown: float
    begin: int = 0
    end: int = 1 << 30
    every: int = 1
    """Slow in one window of so many."""
    drift: float = 0.0
    """Slower by so much more with every window."""
    missing: float = 0.0
    """Share of the ranks' rows that are lost while it lasts."""
    replaced: bool = False
    """At its end new processes take the ranks over: their step numbers begin anew."""

    @property
    def slows(self) -> bool:
        """Whether it makes anybody slower; or only loses rows, or replaces processes."""
        return self.slowdown != 0.0 or self.drift != 0.0

    def lasts(self, window: int) -> bool:
        """Whether the window is between begin and end."""
        return self.begin <= window < self.end

    def factor(self, window: int) -> float:
        """Of own time in one window."""
        if not self.lasts(window) or (window - self.begin) % self.every:
            return 1.0
        return 1.0 + self.slowdown + self.drift * (window - self.begin)


@dataclass(frozen=True)
class Transfers:
    """The network: every transfer takes longer, and nobody works longer."""

    slowdown: float
    begin: int = 0
    end: int = 1 << 30

    def factor(self, window: int) -> float:
        """Of transfer time in one window."""
        return 1.0 + self.slowdown if self.begin <= window < self.end else 1.0


@dataclass(frozen=True)
class Machine:
    """A hardware class: its share of the ranks and its time over the fastest class's."""

    class_id: int
    share: float
    factor: float


@dataclass(frozen=True)
class Scenario:
    """A job as it is simulated, ``jobs`` times side by side."""

    ranks: int
    jobs: int = 1
    windows: int = 100
    steps: int = 100
    step_ns: float = STEP_NS
    jitter: float = 0.05
    """Standard deviation of one step over its mean."""
    noise: Noise = "gaussian"
    natural: float = 0.015
    """Permanent spread of machines of a class (standard deviation of ln)."""
    machines: tuple[Machine, ...] = (Machine(1, 1.0, 1.0),)
    stages: tuple[float, ...] = (1.0,)
    """Work of each pipeline stage; a stage is a block of ranks with its own signature."""
    load: float = 0.0
    """A rank's work, and its bytes, differ by so much from window to window (standard deviation):
    tokens that experts get."""
    transfer: float = 0.05
    """Share of a step in which data is moved."""
    transfer_spread: float = 0.02
    """Of that from window to window (standard deviation of ln)."""
    collectives: int = 4
    bursts: float = 0.0
    """Share of windows in which everybody is 30 % slower."""
    drift: float = 0.0
    """The whole job's random walk, per window."""
    evaluation: int = 0
    """Every so many windows everybody takes half as long again."""
    missing: float = 0.0
    """Share of rows that are lost on the way."""
    tenths: bool = False
    """Whether the ten tenths of a window come before it, as a node sends them."""
    faults: tuple[Fault, ...] = ()
    network: tuple[Transfers, ...] = ()
    ordinary: tuple[int, ...] = ()
    """Ranks whose machine is exactly as fast as the median of its class."""
    sizes: tuple[tuple[int, int], ...] = ()
    """(window, ranks): from there on so many of the ranks run, in new processes."""
    seed: int = 1
    first_job: int = 1


def stage_of(scenario: Scenario) -> NDArray[np.intp]:
    """Stage of every rank of a job, from 0: blocks of ranks."""
    return np.arange(scenario.ranks) * len(scenario.stages) // scenario.ranks


def class_of(scenario: Scenario) -> NDArray[np.intp]:
    """Place in ``machines`` of every rank of a job: blocks of ranks."""
    shares = np.array([machine.share for machine in scenario.machines])
    edges = np.cumsum(shares / shares.sum() * scenario.ranks)
    kinds = np.searchsorted(edges - 1e-9, np.arange(scenario.ranks), side="right")
    return np.minimum(kinds, len(scenario.machines) - 1)


def simulate(scenario: Scenario) -> Iterator[NDArray[np.void]]:
    """One array per window: the rows of every job, one job after another."""
    one, rng = scenario, np.random.default_rng(scenario.seed)
    # What came to the model later draws elsewhere: jobs of a seed stay as they are.
    more = np.random.default_rng((scenario.seed, 1))
    ranks = np.tile(np.arange(one.ranks), one.jobs)
    rows = _constant(one)
    factors = _speeds(one, rng)
    noise = WindowNoise(one.noise, one.jitter, one.steps, len(ranks), rng)
    walk = np.zeros(one.jobs)
    for window in range(one.windows):
        means, errors = noise.draw()
        walk += one.drift * rng.standard_normal(one.jobs)
        everybody = np.exp(walk) * np.where(rng.random(one.jobs) < one.bursts, BURST, 1.0)
        if one.evaluation and window % one.evaluation == one.evaluation - 1:
            everybody *= EVALUATION
        scale = one.step_ns * factors * np.repeat(everybody, one.ranks)
        lost = np.full(len(ranks), one.missing)
        for fault in one.faults:
            if fault.lasts(window):
                slow = np.isin(ranks, fault.ranks)
                scale = np.where(slow, scale * fault.factor(window), scale)
                lost = np.where(slow, np.maximum(lost, fault.missing), lost)
        if one.load:
            load = np.maximum(1.0 + one.load * more.standard_normal(len(ranks)), 0.1)
            scale, rows["bytes"] = scale * load, BYTES * load
        own = means * scale
        size, begun = _size(one, window)
        here = ranks < size
        slowest = np.repeat(np.where(here, own, 0.0).reshape(one.jobs, -1).max(axis=1), one.ranks)
        comm = (
            one.transfer
            * one.step_ns
            * np.exp(one.transfer_spread * more.standard_normal(one.jobs))
        )
        for event in one.network:
            comm *= event.factor(window)
        first = np.full(len(ranks), window - begun, np.int64)
        for fault in one.faults:
            if fault.replaced and window >= fault.end:
                first = np.where(np.isin(ranks, fault.ranks), window - fault.end, first)
        length = round(one.steps * one.step_ns)
        rows["window"], rows["world_size"] = window, size
        rows["first_step"] = first * one.steps
        rows["last_step"] = (first + 1) * one.steps - 1
        rows["start_ns"], rows["end_ns"] = window * length, (window + 1) * length
        rows["time_ns"] = EPOCH_NS + rows["end_ns"]
        rows["own"], rows["own_se"] = own, errors * scale
        rows["comm"] = np.repeat(comm, one.ranks)
        rows["wall"] = slowest + rows["comm"]
        rows["wait"] = slowest - own
        if one.tenths:
            for tenth in _tenths(rows, noise, means, scale, one):
                yield tenth[here]
        if one.missing:
            here = here & (rng.random(len(rows)) >= lost)
        elif lost.any():
            here = here & (more.random(len(rows)) >= lost)
        yield rows[here]


def _constant(one: Scenario) -> NDArray[np.void]:
    """What the rows of every window share."""
    rows = np.zeros(one.ranks * one.jobs, DTYPE)
    rows["job"] = np.repeat(np.arange(one.first_job, one.first_job + one.jobs), one.ranks)
    rows["rank"] = np.tile(np.arange(one.ranks), one.jobs)
    rows["signature"] = np.tile(stage_of(one) + 1, one.jobs)
    classes = np.array([m.class_id for m in one.machines], np.uint32)[class_of(one)]
    rows["class_id"], rows["steps"] = np.tile(classes, one.jobs), one.steps
    rows["source"], rows["collectives"], rows["bytes"] = 1, one.collectives, BYTES
    return rows


def _size(one: Scenario, window: int) -> tuple[int, int]:
    """(ranks that run, window since when they do)."""
    size, begun = one.ranks, 0
    for since, ranks in one.sizes:
        if window >= since:
            size, begun = ranks, since
    return size, begun


def _tenths(
    window: NDArray[np.void], noise: WindowNoise, means: Floats, scale: Floats, one: Scenario
) -> Iterator[NDArray[np.void]]:
    """The ten tenths of a window, whose own times are of steps of their own."""
    steps = one.steps // TENTHS
    length = np.uint64(round(steps * one.step_ns))
    for place in range(TENTHS):
        rows = window.copy()
        few, errors = noise.draw_tenth(means)
        rows["window"], rows["flags"], rows["steps"] = (
            window["window"] * np.uint64(TENTHS) + np.uint64(place), TENTH, steps,
        )  # fmt: skip
        rows["first_step"] += np.uint64(place * steps)
        rows["last_step"] = rows["first_step"] + np.uint64(steps - 1)
        rows["start_ns"] += np.uint64(place) * length
        rows["end_ns"] = rows["start_ns"] + length
        rows["time_ns"] = np.uint64(EPOCH_NS) + rows["end_ns"]
        rows["own"], rows["own_se"] = few * scale, errors * scale
        rows["wall"] = np.maximum(rows["wall"], rows["own"])
        yield rows


def _speeds(one: Scenario, rng: np.random.Generator) -> Floats:
    """Time of every rank of every job over that of the fastest class and a stage of work 1."""
    factors = np.array([m.factor for m in one.machines])[class_of(one)]
    factors = factors * np.array(one.stages)[stage_of(one)]
    natural = np.exp(one.natural * rng.standard_normal((one.jobs, one.ranks)))
    natural[:, list(one.ordinary)] = 1.0
    speeds: Floats = (factors * natural).ravel()
    return speeds
