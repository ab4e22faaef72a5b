"""Driver calls that do not come back, and packets that make no sense."""

from __future__ import annotations

import json
import random
import struct
import threading
import time

import pytest

from stragd.telemetry.crew import Crew, Late
from stragd.telemetry.messages import (
    MAX_NOTES,
    PLACES,
    DoneMessage,
    ProcessesMessage,
    Request,
    SampleMessage,
    decode_answer,
    decode_request,
    encode,
)
from stragd.telemetry.reading import Reading
from tests.harness import wait_for


def drivers() -> set[threading.Thread]:
    """All of them, those of earlier tests that are about to end included."""
    return {thread for thread in threading.enumerate() if thread.name == "stragd-driver"}


def test_one_thread_does_everything_as_long_as_it_comes_back() -> None:
    crew = Crew(30)
    threads = {crew.ask("a", threading.get_ident) for _ in range(5)}
    threads |= set(crew.ask_all([(name, threading.get_ident) for name in "abc"]))  # type: ignore[arg-type]
    assert len(threads) == 1
    crew.close()


def test_the_others_go_on_behind_one_that_hangs() -> None:
    crew, end = Crew(2), threading.Event()
    before = drivers()
    jobs = [("a", lambda: 1), ("b", lambda: end.wait(60)), ("c", lambda: 3), ("d", lambda: 4)]
    first, second, *rest = crew.ask_all(jobs)
    assert (first, rest) == (1, [3, 4])
    assert isinstance(second, Late)
    for _ in range(3):  # it is not asked again, and costs no more threads
        first, second, *rest = crew.ask_all(jobs)
        assert (first, rest) == (1, [3, 4])
        assert isinstance(second, Late)
    assert len(drivers() - before) == 2
    assert crew.longest() > 0
    end.set()
    wait_for("the late call to come back", lambda: crew.longest() == 0)
    jobs[1] = ("b", lambda: 22)
    assert crew.ask_all(jobs) == [1, True, 3, 4]  # what the late one gave is not lost
    assert crew.ask_all(jobs) == [1, 22, 3, 4]
    crew.close()
    wait_for("the threads to end", lambda: drivers() <= before)


def test_slow_calls_are_not_late_together() -> None:
    """The time limit is one call's, not the round's."""
    crew = Crew(3)
    jobs = [(str(n), lambda: time.sleep(0.8)) for n in range(5)]
    assert crew.ask_all(jobs) == [None] * 5
    crew.close()


def test_an_exception_belongs_to_its_call() -> None:
    crew = Crew(30)
    _, error, last = crew.ask_all([("a", int), ("b", lambda: 1 // 0), ("c", int)])
    assert isinstance(error, ZeroDivisionError)
    assert last == 0
    with pytest.raises(ZeroDivisionError):
        crew.ask("b", lambda: 1 // 0)
    crew.close()


def test_messages_arrive_as_they_were_sent() -> None:
    reading = Reading("0000:1b:00.0", "NVIDIA H200", {"power_w": 612.5}, ["Xid 79"], "")
    silent = Reading("0000:1c:00.0", "NVIDIA H200", silent="NVML has not answered for 7 s")
    for message in (
        SampleMessage(7, reading),
        SampleMessage(7, silent),
        ProcessesMessage(7, {"0000:1b:00.0": [1, 4242]}),
        DoneMessage(7, "", 61.5, True),
    ):
        assert decode_answer(encode(message)) == message
    assert decode_request(encode(Request(8, True))) == Request(8, True)


def sample(values: bytes, **fields: object) -> bytes:
    """A packet of a sample."""
    return json.dumps({"window": 1, "sample": "gpu", **fields}).encode() + b"\0" + values


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_value_that_makes_no_sense_is_left_out(nonsense: float) -> None:
    first, second = PLACES["power_w"], PLACES["temperature_c"]
    packet = sample(struct.pack("<2B2d", first, second, nonsense, 50), model=5)
    answer = decode_answer(packet)
    assert isinstance(answer, SampleMessage)
    assert answer.reading.values == {"temperature_c": 50}
    assert answer.reading.model == ""


@pytest.mark.parametrize(
    "values", [b"\0", b"12345678", struct.pack("<Bd", 255, 1), bytes(9 * 256), bytes(9999)]
)
def test_values_of_another_shape_are_no_sample(values: bytes) -> None:
    assert decode_answer(sample(values)) is None


def test_texts_and_lists_are_bounded() -> None:
    answer = decode_answer(
        sample(b"", model="x" * 9999 + "\x1b[31m", notes=["\x1b[31mred\n" * 99] * 999, silent="why")
    )
    assert isinstance(answer, SampleMessage)
    assert len(answer.reading.notes) == MAX_NOTES
    for text in [answer.reading.model, *answer.reading.notes]:
        assert len(text) <= 160
        assert text.isprintable()
    processes = {"window": 1, "processes": {"gpu": [1, -5, 0, "7", True, 1 << 40, 2.5, 9], "b": 3}}
    answer = decode_answer(json.dumps(processes).encode())
    assert isinstance(answer, ProcessesMessage)
    assert answer.by_subject == {"gpu": [1, 9], "b": []}


def test_noise_is_no_message() -> None:
    noise = random.Random(1)
    good = encode(SampleMessage(3, Reading("gpu", "model", {"power_w": 1.0}, ["note"])))
    for _ in range(3000):
        packet = bytearray(good)
        for _ in range(noise.randrange(1, 6)):
            packet[noise.randrange(len(packet))] = noise.randrange(256)
        decode_answer(bytes(packet))
        decode_request(bytes(packet[: noise.randrange(len(packet))]))
    for packet in (b"", b"[]", b"7", b"{}", b'{"window":"1"}', b"[" * 100_000, b"9" * 100_000):
        assert decode_answer(bytes(packet)) is None
        assert decode_request(bytes(packet)) is None
