"""Four nodes, real daemons, a real exchange and a real gloo job of 8 ranks across them."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.harness import wait_for
from tests.needs import lacking
from tests.nodes import NodeDaemon, SpanningJob, cluster, spanning_job, whole

NODES, EACH, SLOW = 4, 2, 5
QUICK = "[windows]\nsteps = 25\n"
PACE = (
    "--step-ms",
    "120",
    "--steps",
    "100000",
    "--slow-after",
    "150",
    "--slow-factor",
    "1.4",
    "--slow-rank",
    str(SLOW),
)


def confirmed(one: NodeDaemon, training: SpanningJob) -> list[tuple[str, int, str]]:
    """(id, rank, host) of what this node's daemon ever confirmed about the slow rank.

    Eight ranks on few cores: others may well be slow for a moment.
    """
    return [
        (finding["id"], finding["subject"]["rank"], finding["subject"]["host"])
        for finding in one.findings(training)
        if finding["subject"]["rank"] == SLOW
    ]


def named(daemons: list[NodeDaemon], training: SpanningJob) -> tuple[str, int, str]:
    """What all nodes say, once all say something, and the same."""

    def same() -> list[tuple[str, int, str]]:
        lists = [confirmed(one, training) for one in daemons]
        return lists[0] if all(found and found == lists[0] for found in lists) else []

    (finding,) = wait_for("the slow rank on every node", same, 240)
    assert finding[1:] == (SLOW, f"node{SLOW // EACH}"), "the right rank on the right node"
    for one in daemons:
        own = {rank["rank"] for rank in one.ranks(training)}
        number = int(one.node.name[-1])
        assert own == {EACH * number, EACH * number + 1}, "a node's own ranks, nobody else's"
    return finding


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        lacking("network namespaces and probes need root")


def test_the_slow_rank_is_named_on_every_node_also_by_the_next_scorer() -> None:
    with (
        cluster(NODES, "nats", QUICK) as (net, daemons),
        spanning_job(net.nodes, "ddp.py", EACH, *PACE) as training,
    ):
        finding = named(daemons, training)
        scorer = whole(daemons[1], training)["scorer"]
        killed = next(one for one in daemons if one.node.name == scorer)
        killed.stop(signal.SIGKILL)
        daemons.remove(killed)
        for one in daemons:
            wait_for(
                "the next scorer", lambda d=one: whole(d, training).get("scorer") != scorer, 120
            )
            assert [finding] == confirmed(one, training), "neither forgotten nor reported twice"
            if one.node.name != finding[2]:  # where the rank is, its cause is told too
                lines = re.findall(rf"straggler confirmed: .* rank {SLOW} on", one.output())
                assert len(lines) == 1
        assert training.process.poll() is None, "the job goes on"


def test_the_same_over_the_jobs_own_store() -> None:
    with cluster(NODES, "store", QUICK) as (net, daemons):
        with spanning_job(net.nodes, "ddp.py", EACH, *PACE) as training:
            named(daemons, training)
            assert training.process.poll() is None
        # The store went with its job.
        for one in daemons:
            assert one.ask("status")["state"] in ("running", "degraded")
            assert "Traceback" not in one.output()
