"""stragctl report: what it says, that it is harmless, and how it lies on a phone and a screen."""

from __future__ import annotations

import html.parser
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stragd.cli.client import ControlClient, ControlError
from stragd.findings import FindingStore
from stragd.history import KEPT, History
from stragd.replay import windows as own_recordings
from tests import browser
from tests.pictures import KEY, finding, job
from tests.test_replay import stragctl
from tests.test_replay_files import rows
from tests.test_replay_record import Served

PIL = pytest.importorskip("PIL.Image")
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"' &amp; \x1b[31m\u202e"
PHONE, SCREEN = 360, 1200
START = 1_780_000_000
WINDOW_S = 10


def times(window: int) -> str:
    from stragd.finding import iso_time

    return iso_time((START + window * WINDOW_S) * 1_000_000_000)


def windows_of(ranks: int, count: int, slow: int = 2, since: int = 12) -> list[Any]:
    """Windows of a job whose rank ``slow`` works a quarter more from window ``since`` on."""
    made = []
    for number in range(count):
        own = np.full(ranks, 80e6) + np.arange(ranks) % 7 * 2e5
        if number >= since:
            own[slow] *= 1.25
        made.append(rows(number, list(own)))
        made[-1]["job"], made[-1]["world_size"] = int(KEY, 16), ranks
        made[-1]["wait"] = own.max() - own + 1e6
        made[-1]["comm"] = 5e6
        made[-1]["wall"] = own.max() + 6e6
        made[-1]["time_ns"] = (START + number * WINDOW_S) * 1_000_000_000
    return made


class Held(Served):
    """A daemon that holds an incident."""

    def hold(self, name: str = "llama", ranks: int = 8, count: int = 40) -> None:
        picture = self.daemon.picture
        found = finding(job_name=name)
        found["job"]["world_size"] = ranks
        found["since"] = {"window": 12, "time": times(11)}  # it begins where window 11 ends
        found["where"] = "machine"
        found["cause"] = {
            "name": "thermal-throttle", "confidence": 0.9,
            "evidence": [f"SM clock 1,305 MHz, peers 1,980 {name}"], "advice": "check cooling",
        }  # fmt: skip
        picture["jobs"] = [job(name=name, world_size=ranks, local_ranks=ranks)]
        picture["findings"], picture["time"] = [found], times(count)
        picture["abstentions"] = [
            {"job": KEY, "job_name": name, "rank": 3, "window": 9, "reason": f"learning {name}"}
        ]
        picture["ranks"] = [r | {"job": KEY, "host": name} for r in picture["ranks"]]
        about = {"job": KEY, "finding": found["id"], "kind": found["kind"],
                 "subject": found["subject"] | {"host": name}}  # fmt: skip
        picture["events"] = [
            about | {"time": times(13), "what": "suspect", "text": ""},
            about | {"time": times(15), "what": "confirmed", "text": ""},
            about | {"time": times(16), "what": "cause", "text": f"thermal-throttle: {name}"},
        ]
        for window in windows_of(ranks, count):
            self.daemon.log.add(int(KEY, 16), window)

    def report(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return stragctl("--socket", self.path, "report", *arguments)

    def page(self, tmp_path: Path) -> str:
        done = self.report("-o", tmp_path / "report.html")
        assert done.returncode == 0, done.stderr
        return (tmp_path / "report.html").read_text()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path / "control.sock")
    yield made
    made.server.close()


class Words(html.parser.HTMLParser):
    """Text and elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", list[str](), list[tuple[str, str]]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_it_says_what_since_when_how_much_and_why(held: Held, tmp_path: Path) -> None:
    held.hold()
    page = held.page(tmp_path)
    assert '<path class="mark" d="M12 0v1"/>' in page
    text = Words(page).text
    for words in (
        "Rank 2 on node7 is slow, and everybody waits for it", "confirmed",
        "20.0 ms", "thermal-throttle", "90.0 % sure", "the machine",
        "SM clock 1,305 MHz, peers 1,980", "To do: check cooling",
        "Ranks over time", "Own work of rank 2", "Own, wait, comm", "Timeline",
        "no verdict on rank 3", "40 windows",
    ):  # fmt: skip
        assert words in text, words


def test_the_cost_in_gpu_hours_is_share_times_ranks_times_time(held: Held) -> None:
    held.hold(ranks=8, count=372)
    facts = json.loads(held.report("--json").stdout)
    share = held.daemon.picture["findings"][0]["cost_percent"] / 100
    hours = share * 8 * 3610 / 3600
    assert facts["gpu_hours_lost"] == pytest.approx(hours)
    assert facts["findings"] == held.daemon.picture["findings"]
    own = {rank["rank"]: rank["own_ms"] for rank in facts["ranks"]}
    assert max(own, key=lambda rank: own[rank]) == 2
    # It recovered 100 s after it began.
    found = held.daemon.picture["findings"][0]
    event = held.daemon.picture["events"][0] | {"time": times(21), "what": "recovering"}
    held.daemon.picture["findings"] = [found | {"state": "cleared"}]
    assert json.loads(held.report("--json").stdout)["gpu_hours_lost"] == 0, "when is not known"
    held.daemon.picture["events"].append(event)
    hundred = json.loads(held.report("--json").stdout)["gpu_hours_lost"]
    assert hundred == pytest.approx(share * 8 * 100 / 3600)
    held.daemon.picture["findings"] = [found]
    # Two findings at once cost what the costlier one does.
    second = json.loads(json.dumps(held.daemon.picture["findings"][0]))
    second["id"], second["cost_percent"] = "other", second["cost_percent"] / 2
    held.daemon.picture["findings"].append(second)
    assert json.loads(held.report("--json").stdout)["gpu_hours_lost"] == pytest.approx(hours)


def test_what_a_job_calls_itself_stays_text(held: Held, tmp_path: Path) -> None:
    held.hold(name=HOSTILE)
    for rank in held.daemon.picture["ranks"]:
        rank["class"] = HOSTILE
    found = held.daemon.picture["findings"][0]
    found["subject"]["host"] = HOSTILE
    found["evidence"].append(HOSTILE)
    page = held.page(tmp_path)
    words = Words(page)
    assert words.text.count("<script>alert(1)</script>") > 5, "it is shown as it is"
    assert not {"script", "img", "link", "iframe", "a", "object"} & set(words.tags)
    names = {name for name, _ in words.attributes}
    assert not {name for name in names if name.startswith("on")} | ({"src", "href"} & names)
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert not any("url(" in part or "@import" in part for part in (page,))
    seen = browser.layout(page, PHONE)
    assert seen.console == []
    assert seen.asked == ["/page"], "nothing is loaded"
    assert seen.scroll <= seen.width, seen.over


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_it_fits_a_phone_and_a_screen(held: Held, tmp_path: Path, width: int) -> None:
    held.hold()
    page = held.page(tmp_path)
    seen = browser.layout(page, width)
    assert seen.scroll <= seen.width == width, seen.over
    assert seen.over == []
    assert (seen.scripts, seen.console, seen.asked) == (0, [], ["/page"])
    assert "everybody waits for it" in seen.text
    picture = tmp_path / "report.png"
    browser.screenshot(tmp_path / "report.html", picture, width, min(seen.height, 4000))
    with PIL.open(picture) as image:
        assert image.width == width
        shown = image.convert("RGB").getcolors(1 << 24)
    colours = {colour for _, colour in shown}
    # The map's row of the slow rank, a bar, the line of the blamed rank.
    for wanted in ((0x2B, 0x31, 0x38), (0xE9, 0xED, 0xF0)):
        if wanted in colours:
            break
    else:
        raise AssertionError("no healthy cell of the heat map")
    assert (0xF4, 0x84, 0x4C) in colours or (0xD7, 0x30, 0x1F) in colours, "no slow cell"
    background = max(shown)[0]
    assert background < 0.97 * image.width * image.height, "nearly blank"


def test_it_prints(held: Held, tmp_path: Path) -> None:
    held.hold()
    held.page(tmp_path)
    paper = tmp_path / "report.pdf"
    browser.run(f"--print-to-pdf={paper}", (tmp_path / "report.html").resolve().as_uri())
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert 1 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") <= 4


def test_four_thousand_ranks_make_a_small_page(tmp_path: Path) -> None:
    from stragd.cli.report_data import COLUMNS, ROWS, Incident, picture
    from stragd.cli.report_page import page

    made = picture(windows_of(4096, 150, slow=2051), [2051])
    assert made is not None
    assert len(made.rows) <= ROWS + ROWS // 4
    assert all(len(row.cells) == COLUMNS for row in made.rows)
    assert made.rows[0].ranks == (2051, 2051), "the blamed rank has a row of its own"
    last = [row.cells[-1] for row in made.rows]
    assert last[0] == pytest.approx(0.25, abs=0.02)
    assert sum(value > 0.2 for value in last) == 2, "it is not lost in its neighbours' row"
    found = [finding(rank=rank) for rank in range(4096)]
    silent: Any = [
        {"job": KEY, "job_name": "j", "rank": r, "window": 1, "reason": f"because {r}"}
        for r in range(4096)
    ]
    text = page(
        Incident("j", KEY, 4096, "a test", times(300), True, found, silent, picture=made)
    )  # fmt: skip
    assert len(text) < 400_000


def test_what_is_not_known_is_not_drawn() -> None:
    from stragd.cli.report_data import picture

    made = windows_of(4, 6)
    for window in made:
        window["own"][1] = np.nan
        window["flags"][2] |= 8  # own unknown
    drawn = picture(made[:1] + [window[:1] for window in made[1:]], [0])
    assert drawn is not None
    cells = {row.ranks[0]: row.cells for row in drawn.rows}
    assert np.isfinite(cells[0][0])
    assert np.isnan(cells[0][1:]).all(), "alone it has no peers"
    assert np.isnan(cells[1]).all()
    assert np.isnan(cells[2]).all()
    assert picture([], []) is None


def test_a_healthy_job_an_ended_one_and_none(held: Held, tmp_path: Path) -> None:
    held.hold()
    picture = held.daemon.picture
    found, picture["findings"] = picture["findings"], []
    assert "Nobody is blamed" in held.page(tmp_path)
    picture["jobs"], picture["ranks"] = [], []
    done = held.report("llama", "-o", tmp_path / "x.html")
    assert done.returncode == 1
    assert "no job 'llama'" in done.stderr
    picture["cleared"] = [found[0] | {"state": "cleared"}]
    done = held.report("llama", "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "the job has ended" in done.stdout
    assert "Ranks over time" in done.stdout
    assert "40 windows" in done.stdout


def test_errors_name_the_thing_and_the_way_out(held: Held, tmp_path: Path) -> None:
    held.hold()
    done = held.report()
    assert (done.returncode, done.stdout) == (1, "")
    assert "-o report.html" in done.stderr
    done = held.report("-o", tmp_path / "no" / "where.html")
    assert done.returncode == 1
    assert "where.html: No such file" in done.stderr
    target, link = tmp_path / "target", tmp_path / "link.html"
    target.write_text("mine")
    link.symlink_to(target)
    assert held.report("-o", link).returncode == 0
    assert target.read_text() == "mine", "a link is replaced, not followed"
    assert [path.name for path in tmp_path.glob(".*")] == []
    with ControlClient(str(held.path)) as client, pytest.raises(ControlError, match="must be a"):
        client.request("report", job=3)


def test_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "job.rec"
    about = {"job": KEY, "name": HOSTILE, "world_size": 8,
             "hosts": {"2": "node7"}, "classes": {"1": HOSTILE}}  # fmt: skip
    parts = [own_recordings.header()]
    parts += [own_recordings.entry(about, w.tobytes()) for w in windows_of(8, 60, since=30)]
    file.write_bytes(b"".join(parts))
    done = stragctl("report", "--recording", file, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    words = Words((tmp_path / "report.html").read_text())
    assert "Rank 2 on node7 is slow" in words.text
    assert "GPU-hours lost" in words.text
    assert "script" not in words.tags
    done = stragctl("report", "other", "--recording", file, "-o", "-")
    assert done.returncode == 1
    assert "no job 'other'" in done.stderr


def test_history_is_bounded_and_tells_a_findings_life() -> None:
    now = [START * 1_000_000_000]
    history, store = History(lambda: now[0]), FindingStore()
    for state in ("suspect", "confirmed", "recovering", "cleared"):
        now[0] += 1_000_000_000
        for transition in store.apply(1, [(1, finding(state=state))]):
            history.transition(transition)
        if state == "confirmed":
            history.cause(finding(state=state))
    events = history.events()
    assert [e["what"] for e in events] == [
        "suspect", "confirmed", "cause", "recovering", "cleared",
    ]  # fmt: skip
    assert events[-1]["text"] == "healthy again"
    assert [e["time"] for e in events] == sorted(e["time"] for e in events)
    for _ in range(KEPT):
        history.cause(finding())
    assert len(history.events()) == KEPT
