"""Remarks about identities: each once, a screen of them, and none for ever."""

from __future__ import annotations

from stragd.discovery.notes import KEEP_SECONDS, MAX_LENGTH, MAX_NOTES, Notes


def test_each_once_and_printable() -> None:
    notes = Notes()
    notes.extend(["one", "two\x1b[2J", "one", "x" * 1000])
    assert notes.lines() == ["two?[2J", "one", "x" * MAX_LENGTH]


def test_a_flood_does_not_keep_out_what_comes_later() -> None:
    notes = Notes()
    for number in range(1000):
        notes.add(f"evil {number}")
        notes.add("said again and again")
    assert len(notes.lines()) == MAX_NOTES
    assert notes.lines()[-1] == "said again and again"
    notes.add("a real one")
    assert notes.lines()[-1] == "a real one"


def test_what_was_not_said_for_an_hour_is_over() -> None:
    now = [0.0]
    notes = Notes(lambda: now[0])
    notes.extend(["old", "alive"])
    now[0] = KEEP_SECONDS - 1
    notes.add("alive")
    assert notes.lines() == ["old", "alive"]
    now[0] += 2
    assert notes.lines() == ["alive"]
