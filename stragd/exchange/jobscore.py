"""The scorer of one job: messages of its nodes in, verdicts out, state for whoever comes after."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stragd import _rscore
from stragd.exchange.align import Alignment, Cell, Part
from stragd.exchange.claims import Claims
from stragd.exchange.message import WindowMessage, extents
from stragd.exchange.verdict import MAX_FINDINGS, MAX_LISTED, Verdict
from stragd.finding import Finding, FindingJob, Subject, build, class_speeds, job_key
from stragd.jobs import STEPS_NOT_INFERRED
from stragd.lineage import Before

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_NODES = 1 << 17
EARLIER_WINDOWS = 16
"""So long ranks may come that go on with what they were in an earlier job."""
_LENGTH = struct.Struct("<I")


class JobScore:
    """One job on the node that holds its scorer role; the main loop's thread only."""

    def __init__(
        self, job: int, node: str, epoch: int, config: Mapping[str, Any], deadline_seconds: float
    ) -> None:
        self.job, self.node, self.epoch = job, node, epoch
        self.counters: Counter[str] = Counter()
        self._scorer = _rscore.Scorer(dict(config))
        self._alignment = Alignment(deadline_seconds)
        self._claims = Claims()
        self._hosts: dict[str, str] = {}
        self._classes: dict[int, str] = {}
        self._causes: dict[int, Mapping[str, Any]] = {}
        self._name, self._launcher, self._world = "", "", 0
        self._earlier: tuple[int, Claims] | None = None
        """The job that this one was before, and which node had which of its ranks."""

    def take(self, message: WindowMessage, now: float) -> None:
        """One message of one node; what is refused is counted by cause."""
        self.counters["refused_rows"] += message.refused
        node, rows, extent = message.sender.node, message.rows, message.extent
        if node not in self._hosts and len(self._hosts) >= MAX_NODES:
            self.counters["too_many_nodes"] += 1
            return
        refused = self._claims.take(node, rows["rank"], self._alignment.newest + 1)
        if refused:
            self.counters["foreign_ranks"] += len(refused)
            rows = np.delete(rows, refused)
            if not len(rows):
                return
            (extent,) = extents(rows, np.array([len(rows)]))
        self._go_on(node, message.before, rows["rank"].tolist())
        cell, offset, why = self._alignment.place(
            node, message.sender.instance, extent, now - message.age_s, now
        )
        if cell is None:
            self.counters[f"{why}_rows"] += len(rows)
            return
        # One clock for the job: the nodes' own may be an hour off.
        cell.put(node, Part(rows, offset, time.time_ns() - int(message.age_s * 1e9)))
        self._hosts[node] = message.sender.host
        self._classes.update(message.classes)
        self._name, self._launcher = message.name or self._name, message.launcher
        for rank, cause in message.causes.items():
            if self._claims.node(rank) == node:
                self._causes[rank] = cause

    def _go_on(self, node: str, before: Before, ranks: list[int]) -> None:
        """Those that stayed are what they were in the earlier job, if the node had them there."""
        if self._earlier is None or before.job != self._earlier[0]:
            return
        job, claims = self._earlier
        stayed = before.stayed.intersection(ranks)
        same = [rank for rank in stayed if claims.node(rank) == node]
        self._scorer.inherit(job, self.job, same)

    def due(self, now: float) -> list[Verdict]:
        """Score what is complete or past its deadline."""
        return [self._score(cell) for cell in self._alignment.due(self._world or 1 << 30, now)]

    def _score(self, cell: Cell) -> Verdict:
        rows = cell.rows()
        self._world = _world_size(rows)
        if len(rows) >= self._world or len(rows) >= self._claims.hosted(self._world):
            _share_transfers(rows)
        else:
            rows["comm"] = 0.0  # not known: what all wait for may be what is missing
        update = self._scorer.update(rows)
        if self._earlier is not None and cell.number >= EARLIER_WINDOWS:
            self._scorer.forget(self._earlier[0])
            self._earlier = None
        self.counters["refused_rows"] += update["refused_rows"]
        self.counters["windows"] += 1
        present, absent = _attendance(rows["rank"], self._world)
        # Not np.median: of a few dozen values it is the dearest call here.
        walls = np.sort(rows["wall"][(rows["flags"] & STEPS_NOT_INFERRED) == 0])
        step_ms = round(float(walls[len(walls) // 2]) / 1e6, 4) if len(walls) else None
        reasons: dict[str, list[int]] = {}
        for abstention in update["abstentions"]:
            reasons.setdefault(abstention["reason"], []).append(abstention["rank"])
        return Verdict(
            job=self.job,
            epoch=self.epoch,
            node=self.node,
            window=cell.number,
            name=self._name,
            launcher=self._launcher,
            world_size=self._world,
            ranks=present,
            nodes=len(cell.parts),
            absent=absent,
            step_ms=step_ms,
            findings=tuple(
                (raw["id"], self._finding(raw, rows, absent, step_ms))
                for raw in update["findings"][:MAX_FINDINGS]
            ),
            abstentions=tuple((why, tuple(who)) for why, who in reasons.items()),
        )

    def _finding(
        self,
        raw: Mapping[str, Any],
        rows: NDArray[np.void],
        absent: tuple[int, ...],
        step_ms: float | None,
    ) -> Finding:
        about: FindingJob = {
            "key": job_key(self.job),
            "name": self._name,
            "world_size": self._world,
        }
        subject: Subject = {}
        rank = raw["rank"]
        if rank is not None:
            subject["rank"] = rank
            subject["host"] = self._hosts.get(self._claims.node(rank), "")
            own = rows["class_id"][rows["rank"] == rank]
            subject["class"] = self._class(int(own[0])) if len(own) else ""
        elif raw["kind"] == "imbalance" and raw["class_id"] is not None:
            subject["class"] = self._class(raw["class_id"])
        elif raw["kind"] == "uneven-work" and raw["signature"] is not None:
            subject["signature"] = f"{raw['signature']:016x}"
        speeds = None
        if raw["kind"] == "imbalance":
            pairs: Iterable[tuple[int, float]] = zip(
                rows["class_id"].tolist(), rows["own"].tolist(), strict=True
            )
            speeds = class_speeds((self._class(number), own_ns) for number, own_ns in pairs)
        steps = raw["cost_ns"] is not None or step_ms is not None
        finding = build(raw, about, subject, steps, speeds)
        if rank is not None and rank in absent:
            finding["evidence"].append(f"rank {rank} did not report in the last scored window")
        elif absent:
            shown = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
            finding["evidence"].append(f"ranks that did not report in that window: {shown}")
        cause = self._causes.get(rank) if rank is not None else None
        if cause is not None and cause["name"] != "unknown":
            finding["cause"] = {
                "name": cause["name"],
                "confidence": cause["confidence"],
                "evidence": list(cause["evidence"]),
                "advice": cause["advice"],
            }
            finding["where"] = cause["where"]
        return finding

    def _class(self, number: int) -> str:
        return self._classes.get(number, f"{number:08x}")

    def save(self) -> bytes:
        """All that the next scorer needs to go on: a JSON header and the scores."""
        header = json.dumps(
            {
                "job": f"{self.job:016x}",
                "alignment": self._alignment.save(),
                "claims": self._claims.save(),
                "hosts": self._hosts,
                "classes": self._classes,
                "name": self._name,
                "launcher": self._launcher,
                "world": self._world,
            }
        ).encode()
        return _LENGTH.pack(len(header)) + header + self._scorer.save()

    def restore(self, state: bytes) -> None:
        """Go on where another scorer was, of this job or of the one that it was before.

        Raises ValueError, and changes nothing, for garbage.
        """
        alignment, claims = Alignment(self._alignment.deadline_seconds), Claims()
        try:
            (length,) = _LENGTH.unpack_from(state)
            header = json.loads(state[_LENGTH.size : _LENGTH.size + length])
            job = int(header["job"], 16)
            if not 0 < job < 1 << 64:
                raise ValueError("state: the key of its job cannot be")
            alignment.restore(header["alignment"])
            claims.restore(header["claims"])
            hosts = {str(node): str(host) for node, host in header["hosts"].items()}
            classes = {int(number): str(name) for number, name in header["classes"].items()}
            name, launcher = str(header["name"]), str(header["launcher"])
            world = int(header["world"])
            self._scorer.restore(state[_LENGTH.size + length :])
        except (struct.error, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        for other in self._scorer.jobs():
            if other != job:
                self._scorer.forget(other)
        if job != self.job:
            self._earlier = job, claims
            return
        self._alignment, self._claims, self._hosts = alignment, claims, hosts
        self._classes, self._name, self._launcher, self._world = classes, name, launcher, world


def _world_size(rows: NDArray[np.void]) -> int:
    """What most of the rows say."""
    said = rows["world_size"]
    if (said == said[0]).all():
        return int(said[0])
    return int(Counter(said.tolist()).most_common(1)[0][0])


def _attendance(ranks: NDArray[np.uint32], world: int) -> tuple[int, tuple[int, ...]]:
    """(How many there are, the first ones that are not there), of ranks in order."""
    if len(ranks) == world and (ranks == np.arange(world)).all():
        return world, ()
    present = np.unique(ranks)
    expected = np.arange(min(world, len(present) + MAX_LISTED))
    absent = np.setdiff1d(expected, present, assume_unique=True)
    return len(present), tuple(absent[:MAX_LISTED].tolist())


def _share_transfers(rows: NDArray[np.void]) -> None:
    """Take the least transfer time that any node has found for a signature, in place.

    What a node finds among its own ranks is a bound from above: where all of them wait for a slow
    rank elsewhere, their wait is in it.
    """
    comm, signature = rows["comm"], rows["signature"]
    known = comm > 0
    if (signature == signature[0]).all():
        comm[known] = comm[known].min(initial=np.inf)
        return
    _, group = np.unique(signature, return_inverse=True)
    least = np.full(len(rows), np.inf)
    np.minimum.at(least, group[known], comm[known])
    comm[known] = least[group][known]
