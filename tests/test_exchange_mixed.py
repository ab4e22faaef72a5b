"""A job of two vendors over two nodes: one class is slower, and in it one rank. CPU simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.cpunccl.ranks import build
from tests.exchange_mixed import CLASSES, EACH, Drivers, MixedJob, mixed_job
from tests.harness import wait_for
from tests.needs import lacking, module
from tests.nodes import NodeDaemon, cluster

SLOW = EACH + 2
PERCENT = 25
JOB = ["--pattern", "ddp", "--steps", "100000", "--seed", "7"]
SLOWNESS = [
    *(f"rank={r},phase=backward,percent={PERCENT},from_step=200" for r in range(EACH, 2 * EACH)),
    f"rank={SLOW},phase=forward,percent=12,from_step=500",
]


def agreed(
    daemons: list[NodeDaemon], training: MixedJob, kind: str, **subject: Any
) -> dict[str, Any] | None:
    """The confirmed finding of a kind about a subject that both nodes have under one id.

    Eight ranks on few cores: another may well be confirmed for a moment.
    """
    first, second = (
        {f["id"]: f for f in one.findings(training, kind) if f["subject"] == subject}
        for one in daemons
    )
    return next((finding for name, finding in first.items() if name in second), None)


def test_a_slower_class_and_the_slow_rank_in_it_are_told_apart(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lacking("network namespaces and probes need root")
    module("pynvml")
    build()
    drivers = Drivers(tmp_path)
    options = [word for text in SLOWNESS for word in ("--slow", text)]
    with (
        cluster(2, "nats", "[windows]\nsteps = 25\n", prepare=drivers.prepare) as (net, daemons),
        mixed_job(net.nodes, drivers, *JOB, *options) as training,
    ):
        slower = {"class": CLASSES[1]}
        finding = wait_for(
            "the slower class on both nodes",
            lambda: agreed(daemons, training, "imbalance", **slower),
            240,
        )
        assert abs(100 * finding["slowdown"] - PERCENT) < PERCENT / 2
        assert finding["job"]["world_size"] == 2 * EACH
        for one, class_name in zip(daemons, CLASSES, strict=True):
            assert {rank["class"] for rank in one.ranks(training)} == {class_name}
        slow = {"rank": SLOW, "host": net.nodes[1].name, "class": CLASSES[1]}
        finding = wait_for(
            "the slow rank on both nodes",
            lambda: agreed(daemons, training, "straggler", **slow),
            240,
        )
        assert 0 < finding["slowdown"] < 2 * PERCENT / 100
        assert training.process.poll() is None, training.log.read_text()
