"""Seeded random jobs for the scorer's tests: sizes, classes, faults, missing ranks, garbage."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stragd import _rscore
from stragd.scoring.model import Row

DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT],
        "formats": [form for _, form, _ in _rscore.RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in _rscore.RANK_WINDOW_LAYOUT],
        "itemsize": _rscore.RANK_WINDOW_BYTES,
    }
)
COLUMNS = [_rscore.RANK_WINDOW_LAYOUT[i][0] for i in range(len(_rscore.RANK_WINDOW_LAYOUT))]


def as_rows(array: NDArray[np.void]) -> list[Row]:
    """The reference's rows of a native array."""
    return [Row(**dict(zip(COLUMNS, record, strict=True))) for record in array.tolist()]


class RandomJob:
    """A job drawn from ``seed``; iterating gives one structured array per window."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.key = draw.randrange(1 << 64)
        self.size = draw.choice([1, 2, 3, 4, 5, 8, 8, 12, 16, 17, 20, 33])
        self.windows = draw.choice([3, 6, 12, 40]) if self.size > 8 else draw.choice([6, 20, 50])
        self.noise = draw.choice([0.0, 0.002, 0.01, 0.05])
        self.correlation = draw.choice([0.0, 0.0, 0.7])
        self.garbage = draw.random() < 0.4
        self.shuffled = draw.random() < 0.4
        self.host = draw.random() < 0.3
        self.inferred = draw.random() < 0.9
        self.tenths = draw.choice([0, 0, 2, 5])
        """Tenths of a window that are seen before it."""
        classes, stages = draw.choice([1, 1, 2, 3]), draw.choice([1, 1, 1, 2, 4])
        self.class_of = [draw.randrange(classes) for _ in range(self.size)]
        self.stage_of = [draw.randrange(stages) for _ in range(self.size)]
        factor = [math.exp(draw.uniform(0, 0.6)) for _ in range(4)]
        self.natural = [
            math.exp(draw.gauss(0, 0.015)) * factor[self.class_of[i]] * factor[self.stage_of[i]]
            for i in range(self.size)
        ]
        self.state = [0.0] * self.size
        self.faults = [
            (draw.randrange(self.size), draw.randrange(self.windows), draw.choice([2, 5, 30]),
             draw.choice([0.02, 0.05, 0.2, 1.0, -0.1]), draw.choice([1, 1, 5]))
            for _ in range(draw.choice([0, 1, 1, 2, 4]))
        ]  # fmt: skip

    def __iter__(self) -> Iterator[NDArray[np.void]]:
        draw, number, step, tenth = self.draw, draw_start(self.draw), 0, 0
        for window in range(self.windows):
            for place in range(self.tenths):
                rows = self._window(window, number, step)
                rows["own"] *= np.exp([draw.gauss(0, 2 * self.noise) for _ in rows])
                rows["wall"] = np.maximum(rows["wall"], rows["own"])
                rows["window"], rows["flags"] = tenth, rows["flags"] | 128
                rows["first_step"] += 10 * place
                rows["last_step"] = rows["first_step"] + 9
                rows["steps"] = np.minimum(rows["steps"], 10)
                yield rows
                tenth += draw.choice([1, 1, 1, 1, 2, 0])
            rows = self._window(window, number, step)
            if self.tenths and draw.random() < 0.1:
                rows["flags"][: len(rows) // 3] |= 128  # some think that it is a tenth
            yield rows
            number += draw.choice([1, 1, 1, 1, 1, 1, 2, 0])
            step += 100
            if draw.random() < 0.01:
                step = 0  # the processes were started anew
            if draw.random() < 0.01:
                self.size = max(1, self.size - 1)

    def _own(self, rank: int, window: int) -> float:
        draw = self.draw
        fresh = draw.gauss(0, 1) if draw.random() < 0.97 else draw.gauss(0, 8)
        keep = self.correlation
        self.state[rank] = keep * self.state[rank] + fresh * math.sqrt(1 - keep * keep)
        slow = 0.0
        for who, begin, length, size, every in self.faults:
            if who == rank and begin <= window < begin + length and window % every == 0:
                slow += size
        own = 1e8 * self.natural[rank] * math.exp(slow + self.noise * self.state[rank])
        return float(own)

    def _window(self, window: int, number: int, step: int) -> NDArray[np.void]:
        draw, size = self.draw, self.size
        everybody = math.exp(draw.choice([0.0, 0.0, 0.0, 0.3]) + (0.15 if window > 20 else 0.0))
        own = np.array([self._own(rank, window) for rank in range(size)]) * everybody
        rows = np.zeros(size, DTYPE)
        rows["job"], rows["window"], rows["rank"] = self.key, number, range(size)
        rows["signature"] = [7 + stage for stage in self.stage_of[:size]]
        rows["class_id"] = self.class_of[:size]
        rows["world_size"], rows["first_step"], rows["last_step"] = size, step, step + 99
        rows["steps"] = [100 if draw.random() < 0.98 else draw.randrange(200) for _ in range(size)]
        rows["own"], rows["wall"] = own, own.max() * 1.1
        rows["comm"] = own.max() * 0.1 * math.exp(draw.gauss(0, 0.02) + 0.4 * (window > 30))
        rows["wait"] = rows["wall"] - own - rows["comm"] * 0.5
        rows["own_se"] = own * self.noise
        rows["start_ns"], rows["end_ns"] = number * 10**10, (number + 1) * 10**10
        rows["time_ns"] = 10**18 + (number + 1) * 10**10
        rows["source"] = 3 if self.host else 1
        rows["bytes"] = 1e8 * (1.0 + self.noise * np.arange(size))
        rows["flags"] = [
            (0 if self.inferred else 2) | (draw.choice([1, 4, 8]) if draw.random() < 0.02 else 0)
            for _ in range(size)
        ]
        keep = [rank for rank in range(size) if draw.random() < 0.97]
        rows = rows[keep]
        if self.garbage:
            rows = np.concatenate([rows, *(self._spoiled(row) for row in rows[:3])])
        if self.shuffled:
            rows = rows[draw.sample(range(len(rows)), len(rows))]
        return np.ascontiguousarray(rows)

    def _spoiled(self, row: np.void) -> NDArray[np.void]:
        draw = self.draw
        bad = np.array([row], DTYPE)
        field, value = draw.choice(
            [
                ("own", math.nan), ("own", math.inf), ("own", 0.0), ("own", -1.0), ("own", 5e-324),
                ("wall", math.nan), ("wall", 0.0), ("wait", -math.inf), ("comm", -1.0),
                ("own_se", -1.0), ("own_se", math.nan), ("bytes", math.nan), ("bytes", -1.0),
                ("rank", 1 << 31), ("rank", 0),
                ("world_size", 0), ("world_size", (1 << 32) - 1), ("window", (1 << 64) - 1),
                ("window", 0), ("steps", 0), ("flags", (1 << 32) - 1),
            ]
        )  # fmt: skip
        bad[field] = value
        return bad


def draw_start(draw: random.Random) -> int:
    """Number of a job's first window."""
    return draw.choice([0, 0, 5, 1 << 29])
