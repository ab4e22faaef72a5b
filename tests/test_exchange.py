"""Jobs that span nodes: messages, alignment and the scorer role, over the exchange in process."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from stragd import _rscore
from stragd.cli.answers import jobs_lines
from stragd.config import ConfigError
from stragd.config_sources import load
from stragd.exchange.align import Alignment, Part
from stragd.exchange.cluster import KEPT_WINDOWS
from stragd.exchange.jobscore import JobScore
from stragd.exchange.message import (
    MAX_BYTES,
    MessageError,
    Sender,
    WindowMessage,
    decode_all,
    decode_windows,
    encode_windows,
    extents,
    node_name,
)
from stragd.exchange.verdict import Verdict, decode
from stragd.findings import FindingStore
from stragd.lineage import Before
from stragd.replay.simulate import Fault
from tests.exchange_jobs import Cast, job
from tests.pictures import finding
from tests.pictures import job as picture

SENDER = Sender("node1", "node1.example", 7)
SLOW = Fault((5,), 0.2, 30)


def message(rows: np.ndarray, sender: Sender = SENDER) -> bytes:
    return encode_windows(sender, rows, "job", "torchrun", {5: "cpu/x"}, {}, 0.25)


# Messages.


def test_a_message_arrives_as_it_was_sent() -> None:
    rows = job(1)[0][2:4]
    there = decode_windows(message(rows))
    assert there.sender == SENDER
    assert (there.name, there.launcher, there.age_s) == ("job", "torchrun", 0.25)
    assert there.classes == {5: "cpu/x"}
    assert there.rows.tobytes() == rows.tobytes()
    assert there.refused == 0


def test_rows_that_cannot_be_are_refused_one_by_one() -> None:
    rows = job(1)[0].copy()
    rows["job"][0] += 1
    rows["rank"][1] = rows["world_size"][1]
    rows["rank"][3] = rows["rank"][2]
    rows["window"][4] += 1
    rows["own"][5] = np.nan
    rows["end_ns"][6] = rows["start_ns"][6]
    rows = rows[[7, 0, 1, 2, 3, 4, 5, 6]]
    there = decode_windows(encode_windows(SENDER, rows[:1], "j", "t", {}, {}, 0))
    assert len(there.rows) == 1
    there = decode_windows(message(rows))
    assert there.refused == 6
    assert there.rows["rank"].tolist() == [7, 2]


def test_many_messages_are_checked_together_and_each_by_itself() -> None:
    first, second = job(2, ranks=4)
    twice = np.concatenate([second, second[:1]])
    strange = second.copy()
    strange["job"] += 1
    datas = [message(first), b"garbage", message(twice), message(second)]
    datas += [message(strange)[:-1], message(first[2:])]
    found = decode_all(datas)
    shown = [m.cause if isinstance(m, MessageError) else len(m.rows) for m in found]
    assert shown == [4, "malformed", 4, 4, "malformed", 2]
    for one, rows in ((found[0], first), (found[2], second), (found[5], first[2:])):
        assert isinstance(one, WindowMessage)
        assert one.rows.tobytes() == rows.tobytes()
    assert isinstance(found[2], WindowMessage)
    assert found[2].refused == 1
    assert decode_all([]) == []


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_refused_and_nothing_else(seed: int) -> None:
    source, whole = random.Random(seed), message(job(1)[0])
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        data = data[: source.randrange(len(data) + 1)] if source.random() < 0.3 else data
        for read in (decode_windows, decode):
            with contextlib.suppress(MessageError):
                read(bytes(data))


def test_what_is_too_long_or_too_deep_is_refused() -> None:
    with pytest.raises(MessageError, match="at most"):
        decode_windows(b"x" * (MAX_BYTES + 1))
    whole = message(job(1)[0])
    deep = b"[" * 9000
    head = whole[:12] + len(deep).to_bytes(4, "little") + whole[16:28]
    rows = whole[28 + int.from_bytes(whole[12:16], "little") :]
    with pytest.raises(MessageError, match="no JSON"):
        decode_windows(head + deep + rows)


@pytest.mark.parametrize("age", [float("nan"), float("inf"), -1.0, 1e9])
def test_an_age_that_cannot_be_is_refused(age: float) -> None:
    whole = message(job(1)[0])
    with pytest.raises(MessageError, match="age"):
        decode_windows(whole[:20] + struct.pack("<d", age) + whole[28:])


def test_a_host_name_becomes_a_token() -> None:
    assert node_name("gpu7.rack2.example") == "gpu7-rack2-example"
    assert node_name("a*b>c d") == "a-b-c-d"
    assert node_name("") == "unnamed"


# Alignment.


def place(
    one: Alignment,
    node: str,
    rows: np.ndarray,
    end: float,
    offset: int = 0,
    at: float | None = None,
) -> tuple[int | None, str]:
    """Put a node's rows where they belong; (number of the cell, why there is none)."""
    rows = rows.copy()
    rows["end_ns"] = 10**15
    rows["start_ns"] = rows["end_ns"] - 10 * 10**9
    rows["first_step"] += np.uint64(offset)
    rows["last_step"] += np.uint64(offset)
    (extent,) = extents(rows, np.array([len(rows)]))
    cell, by, why = one.place(node, 1, extent, end, end if at is None else at)
    if cell is not None:
        cell.put(node, Part(rows, by, 10**15))
    return (None if cell is None else cell.number), why


def test_nodes_that_count_from_elsewhere_end_up_beside_each_other() -> None:
    windows, one = job(6), Alignment(2.0)
    for number, window in enumerate(windows):
        end = 100.0 + 10 * number
        assert place(one, "a", window[:4], end) == (number, "")
        assert place(one, "b", window[4:], end + 0.2, offset=777_700) == (number, "")
        (cell,) = one.due(8, end + 0.2)
        steps = cell.rows()["first_step"].tolist()
        assert max(steps) - min(steps) <= 3, "one count, but for the 0.2 s that b's message took"


def test_a_node_out_of_phase_is_waited_for() -> None:
    windows, one = job(8), Alignment(2.0)
    scored = []
    events = [(100.0 + 10 * n, "a", windows[n][:4], 0) for n in range(8)]
    events += [(105.0 + 10 * n, "b", windows[n][4:], 50) for n in range(8)]
    for end, node, rows, offset in sorted(events, key=lambda event: event[0]):
        scored += one.due(8, end - 0.1)
        place(one, node, rows, end, offset)
        scored += one.due(8, end)
    assert [cell.ranks for cell in scored].count(8) >= 6
    assert [cell.number for cell in scored] == sorted({cell.number for cell in scored})


def test_by_time_where_no_steps_are_inferred() -> None:
    windows, one = job(5), Alignment(2.0)
    for number, window in enumerate(windows):
        window["flags"] |= 2
        end = 100.0 + 10 * number
        assert place(one, "a", window[:4], end) == (number, "")
        if number != 2:
            assert place(one, "b", window[4:], end + 1.0) == (number, "")
        one.due(8, end + 9)


def test_late_duplicate_and_reordered_rows() -> None:
    windows, one = job(4), Alignment(2.0)
    assert place(one, "a", windows[0][:4], 100.0) == (0, "")
    assert place(one, "a", windows[0][:4], 100.0) == (None, "duplicate")
    assert one.due(8, 101.0) == [], "it waits until the deadline"
    (cell,) = one.due(8, 102.0)
    assert cell.ranks == 4, "and not longer"
    assert place(one, "b", windows[0][4:], 100.1, at=103.0) == (None, "late")
    assert place(one, "b", windows[2][4:], 120.0) == (2, "")
    assert place(one, "b", windows[1][4:], 110.0, at=120.1) == (1, "")
    assert place(one, "a", windows[1][:4], 110.0, at=120.2) == (1, "")
    assert place(one, "a", windows[2][:4], 120.0, at=120.3) == (2, "")
    assert [(c.number, c.ranks) for c in one.due(8, 120.4)] == [(1, 8), (2, 8)]


# The whole.


def test_the_slow_rank_is_named_on_every_node_as_one_scorer_would_name_it() -> None:
    windows, alone = job(36, faults=(SLOW,)), _rscore.Scorer({})
    cast = Cast()
    # Nodes began to watch at other steps, and the clocks of one are an hour off.
    cast.members[2].offset, cast.members[3].clock_error_ns = 12_300, 3600 * 10**9
    named = []
    for window in windows:
        expected = {(f["kind"], f["state"], f["rank"]) for f in alone.update(window)["findings"]}
        cast.window(window)
        for member in cast.members:
            last = member.verdicts[-1]
            found = {(f["kind"], f["state"], f["subject"].get("rank")) for _, f in last.findings}
            assert found == expected
            assert (last.ranks, last.nodes, last.absent) == (8, 4, ())
            assert last.node == "node0", "the node of the lowest rank"
        named.append(cast.members[0].named())
    confirmed = [n for n, names in enumerate(named) if any(x[1] == "confirmed" for x in names)]
    assert confirmed[0] <= SLOW.begin + 2
    assert {(rank, host) for _, _, rank, host in named[-1]} == {(5, "node2.example")}
    assert all(not member.said for member in cast.members)


def test_a_failover_neither_forgets_nor_reports_twice() -> None:
    windows, cast = job(44, faults=(SLOW,)), Cast()
    for window in windows[:36]:
        cast.window(window)
    before = cast.members[1].named()
    assert [x[1:] for x in before] == [("confirmed", 5, "node2.example")]
    cast.members[0].transport.vanish()  # type: ignore[attr-defined]
    lost = cast.members.pop(0)
    cast.window(windows[36])
    cast.window(windows[37])
    for member in cast.members:
        last = member.verdicts[-1]
        assert last.node != lost.name
        assert last.absent == (0, 1)
        assert member.named() == before, "the same finding under the same id"
        assert member.verdicts[-1].window >= lost.verdicts[-1].window
    for window in windows[38:]:
        cast.window(window)
        assert cast.members[0].named()[0][0] == before[0][0]
    seen = {x[1].get("id") for member in cast.members for v in member.verdicts for x in v.findings}
    assert len(seen) == 1


def test_news_are_kept_before_they_are_told_and_the_rest_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cast, events = Cast(), list[Verdict | None]()
    transport = cast.members[0].transport
    keep, announce = transport.keep, transport.announce

    def kept(key: int, state: bytes, number: int) -> None:
        events.append(None)
        keep(key, state, number)

    def told(key: int, epoch: int, data: bytes) -> None:
        events.append(decode(data))
        announce(key, epoch, data)

    monkeypatch.setattr(transport, "keep", kept)
    monkeypatch.setattr(transport, "announce", told)
    for window in job(36, faults=(SLOW,)):
        cast.window(window)
    known, since, windows = frozenset[tuple[int, str]](), -1, [-1]
    news = 0
    for event in events:
        if event is None:
            since = windows[-1]
            continue
        if event.states() != known:
            assert since == windows[-1], "kept after the last verdict, before this one"
            known, news = event.states(), news + 1
        windows.append(event.window)
        assert event.window - since <= KEPT_WINDOWS - 2, "the others are sent again"
    keeps = events.count(None)
    assert news >= 2, "suspected, then confirmed"
    assert keeps <= 36 / 2 + news


@pytest.mark.parametrize("stayed", [True, False])
def test_a_restarted_job_goes_on_with_what_its_ranks_were(stayed: bool) -> None:
    """A rank is slow from the first step after the restart: only the past can tell."""
    first, cast = job(20), Cast()
    for window in first:
        cast.window(window)
    key = int(first[0]["job"][0])
    for member in cast.members:
        member.before = Before(key, set(member.ranks) if stayed else set())
        member.cluster.forget(key)
    for window in job(10, faults=(Fault(SLOW.ranks, 0.06),)):
        window["job"] = key + 1
        cast.window(window)
    for member in cast.members:
        named = [(state, rank, host) for _, state, rank, host in member.named()]
        assert named == ([("confirmed", 5, "node2.example")] if stayed else [])


def test_nobody_waits_for_a_node_that_is_gone_and_it_may_come_back() -> None:
    windows, cast = job(20), Cast()
    for window in windows[:4]:
        cast.window(window)
    gone = cast.members.pop()
    for window in windows[4:9]:
        cast.window(window)
        assert cast.members[0].verdicts[-1].absent == (6, 7)
    cast.members.append(gone)
    for window in windows[9:]:
        cast.window(window)
    assert cast.members[0].verdicts[-1].ranks == 8
    assert cast.members[0].verdicts[-1].window == 19


def test_a_node_cannot_speak_for_ranks_of_another() -> None:
    windows, cast = job(12), Cast()
    liar = cast.member("liar", range(8))
    for number, window in enumerate(windows):
        if number == 4:
            cast.members.append(liar)
        if number >= 4:
            lie = window.copy()
            lie["own"] *= 0.5
            liar.offer(lie, cast.now)
        for member in cast.members[:4]:
            member.offer(window, cast.now)
        cast.turn(10)
    scorer = cast.members[0]
    assert scorer.cluster.counters()["refused.foreign_ranks"] >= 8 * 8
    assert [line for line in scorer.said if "another node hosts" in line]
    assert len(scorer.said) <= 2, "once a minute"
    assert scorer.verdicts[-1].nodes == 4
    assert not scorer.named()


def test_a_rank_that_moves_is_taken_from_its_new_node() -> None:
    windows, cast = job(20), Cast()
    for window in windows[:5]:
        cast.window(window)
    cast.members.pop()
    cast.members.append(cast.member("spare", range(6, 8)))
    for window in windows[5:]:
        cast.window(window)
    assert cast.members[0].verdicts[-1].ranks == 8


def test_findings_of_this_node_count_again_when_verdicts_stop() -> None:
    windows, cast = job(3), Cast()
    for window in windows:
        cast.window(window)
    key, one = int(windows[0]["job"][0]), cast.members[1].cluster
    assert one.speaks(key, cast.now)
    assert not one.speaks(key, cast.now + 60)
    one.forget(key)
    assert not one.speaks(key, cast.now)


def test_state_of_another_scorer_is_garbage_or_whole() -> None:
    one = JobScore(1, "node0", 1, {}, 2.0)
    for garbage in (b"", b"\0" * 3, b"\xff" * 40, b"\2\0\0\0{}" + b"x" * 9):
        with pytest.raises(ValueError, match=r"."):
            one.restore(garbage)
    other = JobScore(1, "node1", 2, {}, 2.0)
    other.restore(one.save())
    assert other.save() == one.save()


def test_another_scorer_takes_a_finding_over_under_its_id() -> None:
    store = FindingStore()
    first = finding(rank=3)
    key = int(first["job"]["key"], 16)
    store.apply(key, [(1, first)])
    changes = store.apply(key, [(1 << 62, {**finding(rank=3), "id": "other"})], takeover=True)
    assert changes == []
    assert [f["id"] for f in store.open()] == [first["id"]]


def test_jobs_says_where_a_job_is_scored_and_who_was_missing() -> None:
    whole = {"scorer": "node0", "window": 9, "ranks": 6, "nodes": 3, "absent": [6, 7]}
    lines = jobs_lines([picture(whole={**whole, "counts": True}), picture("other", "2" * 16)])
    assert lines[-1] == (
        "llama: scored as a whole on node0, 6 ranks of 3 nodes in window 9; absent: 6, 7"
    )
    (line,) = jobs_lines([picture(whole={**whole, "absent": [], "counts": False})])[-1:]
    assert line.endswith("in window 9; no verdict any more: findings are this node's own")


# Configuration.


def test_names_and_paths_of_the_exchange(tmp_path: Path) -> None:
    path = tmp_path / "stragd.toml"
    path.write_text('[exchange]\ncluster = "a.b"\nnode = "x y"\ntls_ca = "ca.pem"\n')
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    text = str(caught.value)
    assert 'exchange.cluster is "a.b"; allowed: letters, digits, - and _' in text
    assert 'exchange.tls_ca is "ca.pem", not absolute' in text
    assert len(caught.value.problems) == 3
    path.write_text('[exchange]\nnode = ""\ntls_ca = ""\nkind = "nats"\n')
    assert load(path, {}).exchange.kind == "nats"
