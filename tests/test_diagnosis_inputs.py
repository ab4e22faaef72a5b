"""No telemetry can make the diagnosis raise or say something that no output can carry."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from stragd.diagnosis import Past, apply, diagnose
from stragd.diagnosis.signals import SIGNALS
from stragd.finding import Finding, schema
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.pictures import finding as picture

QUANTITIES = [key.partition(".") for key in SIGNALS] + [
    (kind, ".", name)
    for kind, names in {
        "gpu": ["temperature_c", "power_w", "pcie_width_count", "pcie_width_max_count", "bogus"],
        "process": ["cpu_share", "read_bytes_per_s"],
        "node": ["load_per_cpu"],
        "nic": ["rate_max_gbps", "pcie_gbps", "pcie_max_gbps"],
    }.items()
    for name in names
]
NUMBERS: list[Any] = [
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e308, -1e308, 5e-324, 1e17, -1e17),
    *(10**400, -(10**400), True, None, "N/A", [1.0], 1.0, 0.5, -0.5, 2.0**64, 1e-12, 42),
]
TEXTS = [
    "",
    "NVIDIA H200",
    "AMD",
    "\x00\x1b[31m",
    "x" * 5000,
    "Xid 79",
    "Xid " + "9" * 50,
    "é\ud800",
]
NOTES = [*TEXTS, "CUDA_PROFILE is set", "traced by process 1", "its cgroup is frozen", "saturated"]
KINDS = ["straggler", "intermittent", "imbalance", "uneven-work", "job-wide", "network", "hang"]


def sample(draw: random.Random, kind: str) -> Sample:
    names = [name for owner, _, name in QUANTITIES if owner == kind]
    sane = draw.random() < 0.5
    values: dict[str, Any] = {
        name: draw.choice([0.0, 0.3, 1.0, 1500.0]) if sane else draw.choice(NUMBERS)
        for name in draw.sample(names, draw.randrange(len(names) + 1))
    }
    start = draw.choice([0, 10**9, -(10**18), 2**64])
    return Sample(
        kind,  # type: ignore[arg-type]
        draw.choice(["", "mlx5_0/1", "0000:1b:00.0", *TEXTS]),
        draw.choice(TEXTS),
        start,
        start + draw.choice([0, 1, -5, 10**10, 2**63]),
        values,
        tuple(draw.choices(NOTES, k=draw.randrange(4))),
        draw.choice(["", "", "", *TEXTS]),
    )


def telemetry(draw: random.Random, rank: int) -> RankTelemetry:
    def maybe(kind: str) -> Sample | None:
        return sample(draw, kind) if draw.random() < 0.8 else None

    nics = tuple(sample(draw, "nic") for _ in range(draw.randrange(4)))
    host = draw.choice(["node0", "node1", *TEXTS])
    return RankTelemetry(rank, host, maybe("process"), maybe("gpu"), nics, maybe("node"))


def finding(draw: random.Random) -> Finding:
    made = picture(kind=draw.choice(KINDS))
    made["slowdown"] = draw.choice([None, 0.0, -0.5, 0.3, 1e300, 5e-324])
    made["since"]["time"] = draw.choice([made["since"]["time"], "9999-12-31T23:59:59Z", "soon"])
    made["confidence"] = draw.choice([0.0, 0.5, 1.0])
    made["subject"] = draw.choice(
        [{"rank": 0, "host": "node0"}, {}, {"nic": "mlx5_0"}, {"class": "nvidia/H200"}]
    )
    return made


@pytest.mark.parametrize("seed", range(20))
def test_any_input_gives_a_finding_that_every_output_can_carry(seed: int) -> None:
    draw = random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema())
    for _ in range(25):
        past = Past()
        for number in range(draw.choice([0, 2, 12])):
            for rank in range(3):
                past.add(
                    telemetry(draw, rank), draw.choice([number, 0, -5, 10**19, number * 10**18])
                )
        subject = telemetry(draw, 0) if draw.random() < 0.9 else None
        peers = [telemetry(draw, draw.choice([0, n])) for n in range(draw.choice([0, 1, 2, 7]))]
        about = finding(draw)
        made = diagnose(about, subject, peers, past, draw.choice([(), {0, 1}, {1, 2, 3}]))
        assert 0.0 <= made.confidence <= 1.0
        assert all(0.0 <= share <= 1.0 for _, share in made.others)
        assert (made.name == "unknown") == (made.confidence == 0.0) or about["confidence"] == 0.0
        assert made.evidence
        assert all(0 < len(line) < 4000 and line.isprintable() for line in made.evidence)
        about["since"] = picture()["since"]
        whole = apply(about, made)
        json.dumps(whole, allow_nan=False).encode("utf-8")
        validator.validate(whole)
