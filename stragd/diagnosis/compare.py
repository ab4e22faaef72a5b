"""One rank beside its peers and its own past: which readings deviate, and how far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stragd.diagnosis.past import Baseline, Past, spread
from stragd.diagnosis.readings import place, read
from stragd.diagnosis.signals import (
    BUSY_SM_ACTIVE,
    BUSY_UTILISATION,
    COUNTED,
    COUNTED_MORE,
    FEW_PEERS,
    MAX_PEERS,
    SIGNALS,
    SPREAD,
    VICTIMS,
    Signal,
)
from stragd.peers import median
from stragd.telemetry.sample import RankTelemetry, Sample

Basis = Literal["peers", "past", "limit"]
_WEIGHT: dict[Basis, float] = {"peers": 1.0, "past": 0.85, "limit": 0.65}


@dataclass(frozen=True, slots=True)
class Deviation:
    """A reading on the bad side of what it is compared with."""

    key: str
    """Row of SIGNALS."""
    subject: str
    """Device and port of a NIC, "" otherwise."""
    value: float
    reference: float | None
    """Median of the peers or of the past; None where an absolute limit spoke."""
    basis: Basis
    before: float | None
    """The rank's own median before the finding, where it is known."""
    changed: bool
    """False where the rank was like that before it became slow."""
    lost: float | None
    """Share of the window lost by it, where the quantity says so."""
    strength: float
    """0 to 1: how far beyond ``least``, less for few peers, for victims that show it too, and for
    what was so before the rank became slow."""

    @property
    def signal(self) -> Signal:
        """Its row of the table."""
        return SIGNALS[self.key]


@dataclass(frozen=True, slots=True)
class _Reading:
    value: float
    rank: int
    sample: Sample


class View:
    """A rank with what it is to be compared with.

    ``slow``: ranks with a finding of their own; what they show is no measure of health. ``since``:
    CLOCK_REALTIME ns from which the past is no longer the time before.
    """

    def __init__(
        self,
        subject: RankTelemetry,
        peers: Sequence[RankTelemetry],
        past: Past,
        since_ns: int,
        slow: Collection[int] = (),
    ) -> None:
        self.subject = subject
        others = [peer for peer in peers if peer.rank != subject.rank]
        self.peers = evenly([peer for peer in others if peer.rank not in slow], MAX_PEERS)
        self.fellows = [p for p in others if p.rank in slow and p.host == subject.host]
        """Slow ranks of the same host."""
        self._past = past
        self._since = since_ns
        self.compared: set[str] = set()
        """Keys that had a reading and something to compare it with."""
        self._found: dict[str, Deviation | None] = {}

    def value(self, key: str) -> float | None:
        """A reading of the rank's GPU, process or node."""
        kind, _, quantity = key.partition(".")
        for sample in self._own(kind):
            return read(sample, quantity)
        return None

    def deviation(self, key: str) -> Deviation | None:
        """How ``key`` deviates; None where it does not, or cannot be told. Of NICs, the worst."""
        if key not in self._found:
            kind, _, quantity = key.partition(".")
            found = [self._judge(key, quantity, sample) for sample in self._own(kind)]
            there = [deviation for deviation in found if deviation is not None]
            self._found[key] = max(there, key=lambda d: d.strength, default=None)
        return self._found[key]

    def usual(self, key: str) -> float | None:
        """What is usual: the median of the peers, else of the past."""
        kind, _, quantity = key.partition(".")
        for sample in self._own(kind):
            peers = [reading.value for reading in self._readings(sample, quantity)]
            before = self._before(self.subject.rank, sample, quantity)
            return median(peers) if peers else before.median if before else None
        return None

    def busy(self) -> bool | None:
        """Whether the GPU works; None where nobody says. What an idle link shows is no fault."""
        active, use = self.value("gpu.sm_active_share"), self.value("gpu.utilisation_share")
        if active is not None:
            return active >= BUSY_SM_ACTIVE
        if use is not None:
            return use >= BUSY_UTILISATION
        idle = self.value("gpu.idle_count")
        return None if idle is None else idle < 1

    def notes(self, of: RankTelemetry | None = None) -> set[str]:
        """Notes of a rank's process, by default of the subject's."""
        process = (of or self.subject).process
        return set(process.notes) if process else set()

    def alike(self) -> list[RankTelemetry]:
        """Healthy peers of the same model."""
        return [peer for peer in self.peers if _alike(self.subject, peer)]

    def beside(self, other: RankTelemetry) -> View:
        """Another rank held against the same peers."""
        return View(other, self.peers, self._past, self._since)

    def _own(self, kind: str) -> Iterable[Sample]:
        return _of(self.subject, kind)

    def _before(self, rank: int, sample: Sample, quantity: str) -> Baseline | None:
        return self._past.baseline(rank, f"{place(sample)}.{quantity}", self._since)

    def _readings(self, sample: Sample, quantity: str) -> list[_Reading]:
        """The peers' readings: of the same model, of each device once, never of the own one."""
        seen: dict[tuple[str, str], _Reading] = {}
        own = (self.subject.host, sample.subject)
        for peer in self.peers:
            if sample.kind in ("process", "node") and not _alike(self.subject, peer):
                continue
            for other in _of(peer, sample.kind):
                value = read(other, quantity)
                who = (peer.host, other.subject)
                # Rank and process are one to one; a node or a NIC may serve several ranks.
                if other.kind == "process":
                    who = (peer.host, f"{peer.rank}")
                if value is not None and other.model == sample.model and who != own:
                    seen[who] = _Reading(value, peer.rank, other)
        return list(seen.values())

    def _changes(self, readings: list[_Reading], quantity: str) -> list[float]:
        """What the peers' readings are above what they were before."""
        changes = []
        for reading in readings:
            before = self._before(reading.rank, reading.sample, quantity)
            if before is not None:
                changes.append(reading.value - before.median)
        return changes

    def _judge(self, key: str, quantity: str, sample: Sample) -> Deviation | None:
        value = read(sample, quantity)
        if value is None:
            return None
        signal = SIGNALS[key]
        scale = _seconds(sample) if signal.per_second else 1.0
        sign = -1.0 if signal.falls else 1.0
        readings = self._readings(sample, quantity)
        reference = median([reading.value for reading in readings])
        changed, before = True, None
        # The past is asked where it can matter: most readings are like the peers'.
        difference = sign * (value - (reference or 0.0))
        if reference is None or _beyond(signal, scale, difference, reference, 0.0) > 0:
            before = self._before(self.subject.rank, sample, quantity)
        if reference is not None:
            basis: Basis = "peers"
            strength = self._against_peers(signal, scale, sign, value, before, readings, quantity)
            if before is not None:  # it was not slow when it was like that before
                changed = _against_past(signal, scale, sign, value, before, quantity) > 0
                strength *= 1.0 if changed else 0.5
        elif before is not None:
            basis, reference = "past", before.median
            strength = _against_past(signal, scale, sign, value, before, quantity)
        elif signal.limit is not None:
            basis = "limit"
            over = sign * (value - signal.limit * scale)
            reach = (signal.full - signal.limit) * scale
            strength = _grade(over / reach if reach > 0 else 1.0) if over >= 0 else 0.0
        else:
            return None
        self.compared.add(key)
        if strength <= 0:
            return None
        return Deviation(
            key,
            sample.subject if sample.kind == "nic" else "",
            value,
            reference,
            basis,
            before.median if before else None,
            changed,
            sign * (value - (reference or 0.0)) if signal.lost_time else None,
            strength * _WEIGHT[basis],
        )

    def _against_peers(
        self,
        signal: Signal,
        scale: float,
        sign: float,
        value: float,
        before: Baseline | None,
        readings: list[_Reading],
        quantity: str,
    ) -> float:
        peers = [reading.value for reading in readings]
        middle = median(peers) or 0.0
        difference = sign * (value - middle)
        strength = _beyond(
            signal, scale, difference, middle, _noise(quantity, middle, spread(peers, middle))
        )
        if strength <= 0 and before is not None:
            # Peers that differ by nature hide it: compare what has changed instead.
            changes = self._changes(readings, quantity)
            usual = median(changes)
            if usual is not None and len(changes) >= FEW_PEERS:
                change = sign * (value - before.median - usual)
                noise = _noise(quantity, middle, max(spread(changes, usual), before.mad))
                strength = _beyond(signal, scale, change, middle, noise)
        if strength <= 0:
            return 0.0
        strength *= _apart(sign, value, middle, peers)
        return strength if len(peers) >= FEW_PEERS else 0.9 * strength


def evenly(ranks: list[RankTelemetry], most: int) -> list[RankTelemetry]:
    """At most ``most`` of them, evenly spread."""
    return ranks[:: -(-len(ranks) // most) or 1]


def _of(telemetry: RankTelemetry, kind: str) -> tuple[Sample, ...]:
    if kind == "nic":
        return telemetry.nics
    sample = {"gpu": telemetry.gpu, "process": telemetry.process, "node": telemetry.node}[kind]
    return () if sample is None else (sample,)


def _alike(one: RankTelemetry, other: RankTelemetry) -> bool:
    """Ranks on GPUs of different models do different work per second, on the host too."""
    mine = one.gpu.model if one.gpu else ""
    theirs = other.gpu.model if other.gpu else ""
    return mine == theirs or not mine or not theirs


def _seconds(sample: Sample) -> float:
    return max((sample.end_ns - sample.start_ns) / 1e9, 1e-3)


def _grade(share: float) -> float:
    """Strength from 0.6, just enough, to 1."""
    return 0.6 + 0.4 * min(1.0, max(0.0, share))


def _noise(quantity: str, middle: float, mad: float) -> float:
    """What a difference from ``middle`` must reach beside its ``least``."""
    counted = COUNTED_MORE * abs(middle) if quantity.endswith(COUNTED) else 0.0
    return max(SPREAD * 1.4826 * mad, counted)  # 1.4826: a standard deviation of Gaussian noise


def _beyond(signal: Signal, scale: float, difference: float, middle: float, noise: float) -> float:
    """Strength of a difference on the bad side; 0 where it does not count."""
    unit = abs(middle) if signal.relative else scale
    least, full = signal.least * unit, signal.full * unit
    if least <= 0 or difference < max(least, noise):
        return 0.0
    return _grade((difference - least) / (full - least) if full > least else 1.0)


def apart(with_it: int, peers: int) -> float:
    """How far a rank stands alone with it: 1 for the only one, 0 beside half of its peers."""
    return max(0.0, 1.0 - with_it / peers / VICTIMS) if peers else 1.0


def _apart(sign: float, value: float, middle: float, peers: list[float]) -> float:
    halfway = sign * (middle + (value - middle) / 2)
    return apart(sum(sign * peer >= halfway for peer in peers), len(peers))


def _against_past(
    signal: Signal, scale: float, sign: float, value: float, before: Baseline, quantity: str
) -> float:
    difference, middle = sign * (value - before.median), before.median
    return _beyond(signal, scale, difference, middle, _noise(quantity, middle, before.mad))
