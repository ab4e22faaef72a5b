"""All jobs of the cluster from any node: summaries, the board, and how they are shown."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from stragd.cli.cluster import ClusterSession, jobs_lines
from stragd.cli.main import main
from stragd.cli.sampler import Sample
from stragd.cli.text import plain
from stragd.exchange.board import FORGET_SECONDS, MAX_JOBS, Board
from stragd.exchange.message import MessageError
from stragd.exchange.summary import Summary, decode, encode, worst_of
from stragd.finding import job_key
from stragd.outputs.control import ControlServer
from stragd.outputs.snapshot import Cluster
from stragd.outputs.verbs import Verbs
from stragd.replay.simulate import Fault
from tests.exchange_jobs import Cast, job
from tests.pictures import finding
from tests.test_control import Picture


def summary(number: int = 1, **changes: object) -> Summary:
    """One job with a slow rank."""
    count, worst = worst_of([finding(), finding(state="suspect", cost_fraction=0.01)])
    values: dict[str, object] = {
        "job": number, "epoch": 3, "node": "node1", "name": f"job{number}", "launcher": "torchrun",
        "world_size": 8, "ranks": 8, "nodes": 4, "step_ms": 130.0, "findings": count,
        "worst": worst,
    }  # fmt: skip
    return Summary(**{**values, **changes})  # type: ignore[arg-type]


def test_a_summary_arrives_as_it_was_sent_or_is_refused() -> None:
    one = summary()
    assert one.worst is not None
    there = decode(encode(one))
    assert there.findings == 2
    assert there.worst is not None
    assert (there.worst["subject"], there.worst["cost_percent"]) == (
        one.worst["subject"],
        one.worst["cost_percent"],
    )
    source, whole = random.Random(1), encode(one)
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        with contextlib.suppress(MessageError):
            decode(
                bytes(data[: source.randrange(len(data) + 1)] if source.random() < 0.3 else data)
            )


def test_the_board_hears_one_teller_of_a_job_and_forgets() -> None:
    board = Board()
    assert board.take(summary(), 0.0)
    assert not board.take(summary(node="liar", name="mine"), 5.0)
    assert board.counters["refused.summary"] == 1
    assert board.take(summary(node="node2", epoch=4), 6.0), "the next scorer"
    assert not board.take(summary(node="node1", epoch=3), 7.0), "the one before"
    assert board.take(summary(node="node3"), 60.0), "when the other one has been silent for long"
    (row,) = board.rows(70.0)
    assert (row["node"], row["age_s"], row["name"]) == ("node3", 10.0, "job1")
    board.expire(70.0 + FORGET_SECONDS)
    assert board.rows(700.0) == []
    board.take(summary(), 800.0)
    board.take(summary(ended=True), 801.0)
    assert board.rows(801.0) == []


def test_the_board_is_bounded_and_the_more_there_are_the_less_is_said() -> None:
    board = Board()
    assert board.every() == 10.0
    for number in range(1, MAX_JOBS + 10):
        board.take(summary(number, worst=None), 0.0)
    assert len(board.rows(0.0)) == MAX_JOBS
    assert board.counters["dropped.too_many_jobs"] == 9
    assert MAX_JOBS / board.every() <= 10


def test_every_node_hears_of_every_job() -> None:
    windows, cast = job(36, faults=(Fault((5,), 0.2, 10),)), Cast()
    stranger = cast.member("stranger", range(0))  # a node without a rank of it
    cast.members.append(stranger)
    for window in windows:
        for member in cast.members[:4]:
            member.offer(window, cast.now)
        cast.turn(10)
        for member in cast.members:
            here = [summary(7, node="stranger", epoch=0, worst=None)] if member is stranger else []
            member.cluster.report(here, cast.now)
        cast.turn(1)
    key = job_key(int(windows[0]["job"][0]))
    for member in cast.members:
        first, second = member.cluster.jobs(cast.now)
        assert (first["key"], first["nodes"], first["ranks"], first["node"]) == (key, 4, 8, "node0")
        assert first["worst"] is not None
        assert first["worst"]["subject"].get("rank") == 5
        assert second["name"] == "job7"
        assert second["age_s"] <= 15
    stranger.cluster.ended(7, cast.now)
    cast.turn(1)
    assert [row["key"] for row in cast.members[1].cluster.jobs(cast.now)] == [key]


def test_a_node_that_speaks_as_another_is_not_heard() -> None:
    cast = Cast(2)
    cast.members[0].transport.report(1, encode(summary(1, node="node1")))
    cast.members[0].transport.report(2, encode(summary(1, node="node0")))
    cast.members[0].transport.report(1, b"garbage")
    cast.turn(1)
    assert cast.members[1].cluster.jobs(cast.now) == []
    counters = cast.members[1].cluster.counters()
    assert (counters["refused.foreign"], counters["refused.malformed"]) == (2, 1)
    assert len(cast.members[1].said) == 2, "one line for each cause"


# The screens.


def answer(jobs: int = 3, **changes: object) -> Cluster:
    board = Board()
    for number in range(1, jobs + 1):
        board.take(summary(number, **({} if number == 2 else {"worst": None, "findings": 0})), 0.0)
    made: Cluster = {
        "host": "node7",
        "time": "2026-11-29T10:00:00Z",
        "exchange": "nats",
        "name": "west",
        "problem": "",
        "jobs": board.rows(4.0),
    }
    made.update(changes)  # type: ignore[typeddict-item]
    return made


def test_jobs_of_the_cluster_in_lines() -> None:
    lines = jobs_lines(answer(), 100)
    assert lines[0].split()[:3] == ["job", "ranks", "nodes"]
    assert lines[1].startswith("job2"), "the one that loses most first"
    assert "straggler: rank 2 on node7" in lines[1]
    assert lines[1].endswith("node1      4 s ago")
    away = jobs_lines(answer(0, problem="no NATS server of a:1 is there"), 100)
    assert away == [
        "nothing new comes: no NATS server of a:1 is there",
        "no job of the cluster has been heard of yet",
    ]
    assert "jobs of this node" in jobs_lines(answer(exchange="store"), 100)[-1]


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (200, 60)])
@pytest.mark.parametrize("jobs", [0, 1, 300])
def test_the_live_view_fits_and_moves(size: tuple[int, int], jobs: int) -> None:
    session, (width, height) = ClusterSession(1.0, True), size
    session.receive(Sample(0.0, dict(answer(jobs)), ""))
    for key in ("", "j", "pgdn", "k", "home", "x"):
        session.press(key)
        lines = session.lines(width, height, 1.0)
        assert len(lines) <= height
        assert all(len(plain(line)) <= width for line in lines)
    if jobs == 300:
        session.press("j")
        assert any("2-" in plain(line) and "of 300" in plain(line) for line in
                   session.lines(width, height, 1.0))  # fmt: skip
    assert "no answer from stragd" in plain(session.lines(width, height, 60.0)[0])
    session.receive(Sample(61.0, {"jobs": 3}, "broken"))
    assert "another shape" in plain(session.lines(width, height, 61.0)[0])
    session.press("q")
    assert session.ended


def test_over_the_control_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, path = Picture(), str(tmp_path / "control.sock")
    server = ControlServer(path, "stragd", Verbs(picture))  # type: ignore[arg-type]
    server.start()
    try:
        assert main(["--socket", path, "jobs", "--cluster"]) == 1
        assert "exchanges with no other node: set exchange.kind" in capsys.readouterr().err
        picture.now["cluster"] = answer()
        with pytest.raises(SystemExit, match="2"):
            main(["--socket", path, "top", "--cluster", "--job", "llama"])
        assert "--cluster shows all" in capsys.readouterr().err
        for command in (["jobs", "--cluster"], ["top", "--cluster", "--once"]):
            assert main(["--socket", path, *command]) == 0
            assert "straggler: rank 2 on node7" in capsys.readouterr().out
            assert main(["--socket", path, *command, "--json"]) == 0
            assert '"exchange": "nats"' in capsys.readouterr().out
    finally:
        server.close()
