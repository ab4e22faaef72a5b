"""The dashboard's picture: every panel of grafana/stragd.json is drawn, and nothing unknown is."""

from __future__ import annotations

import copy
import json
import re
import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.harness import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from dashboard_charts import Frame, Line, diverging, runs
from dashboard_page import page
from dashboard_units import formatted, ticks

DASHBOARD: dict[str, Any] = json.loads((ROOT / "grafana" / "stragd.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
START, END, STEP = 1_795_946_400, 1_795_946_700, 10
FRAME = Frame(0, 0, START, END, STEP)
HOSTILE = '</svg><script>alert("x")</script>&'
Answers = dict[tuple[int, str], list[dict[str, Any]]]


def answers(job: str = "llama", ranks: int = 12) -> Answers:
    """Something for every query: series of ranks with all labels that a panel may name."""
    made: Answers = {}
    for panel in PANELS:
        for target in panel["targets"]:
            series = made[panel["id"], target["refId"]] = []
            for rank in range(ranks):
                labels = dict.fromkeys(re.findall(r"{{(\w+)}}", target["legendFormat"]), "some")
                if panel["type"] == "table":
                    labels |= dict.fromkeys(("host", "kind", "where", "cause", "Time"), "some")
                labels |= {"job": job, "rank": str(rank)}
                values = [[at, f"{0.01 * rank:g}"] for at in range(START, END, STEP)]
                series.append({"metric": labels, "value": values[-1], "values": values})
            if target.get("instant") and panel["type"] == "stat":
                del series[1:]
    return made


def find(title: str, dashboard: dict[str, Any] = DASHBOARD) -> dict[str, Any]:
    (panel,) = [p for p in dashboard["panels"] if p["title"] == title]
    found: dict[str, Any] = panel
    return found


def drawn(dashboard: dict[str, Any] = DASHBOARD, *rest: Any, **options: Any) -> ET.Element:
    """The page's body; a page that is no well-formed XML from there on is a failure."""
    text = page(dashboard, *(rest or (answers(), [], FRAME)), **options)
    return ET.fromstring(text[text.index("<body>") : text.index("</html>")])


def section(body: ET.Element, title: str) -> ET.Element:
    (found,) = [s for s in body.iter("section") if s.findtext("h3") == title]
    return found


def test_every_panel_is_drawn_in_its_place() -> None:
    body = drawn()
    titles = [section.findtext("h3") for section in body.iter("section")]
    assert titles == [panel["title"] for panel in PANELS]
    rows = [p["title"] for p in DASHBOARD["panels"] if p["type"] == "row"]
    assert [(h.text or "")[2:] for h in body.iter("h2")] == rows
    for panel in PANELS:
        inside = section(body, panel["title"])
        text = "".join(inside.itertext())
        assert "No data" not in text, panel["title"]
        if panel["type"] in ("timeseries", "heatmap", "state-timeline"):
            marks = [e for e in inside.iter() if e.get("class") == "line" or e.tag == "rect"]
            assert len(marks) >= 12, panel["title"]
    assert body.find("header/span/b") is not None


def test_only_the_wanted_rows() -> None:
    body = drawn(rows=("Job",), chosen={"job": "llama"})
    assert [h.text for h in body.iter("h2")] == ["⌄ Job"]
    assert "top:0px" in (next(body.iter("h2")).get("style") or "")
    assert "llama" in "".join(next(body.iter("header")).itertext())
    with pytest.raises(ValueError, match="Jobb"):
        drawn(rows=("Jobb",))


def test_no_answer_is_said() -> None:
    body = drawn(DASHBOARD, {key: [] for key in answers()}, [], FRAME)
    for panel in PANELS:
        text = "".join(section(body, panel["title"]).itertext())
        assert text == panel["title"] + "No data"
    only_nan = answers()
    for series in only_nan.values():
        for one in series:
            one["values"] = [[at, "NaN"] for at, _ in one["values"]]
    text = "".join(section(drawn(DASHBOARD, only_nan, [], FRAME), "GPU clock").itertext())
    assert text == "GPU clockNo data"


def test_labels_are_text() -> None:
    body = drawn(DASHBOARD, answers(HOSTILE), [], FRAME, chosen={"job": HOSTILE})
    assert not list(body.iter("script"))
    shown = [section for section in body.iter("section") if HOSTILE in "".join(section.itertext())]
    kinds = {find(s.findtext("h3") or "")["type"] for s in shown}
    assert {"table", "timeseries"} <= kinds
    assert HOSTILE in "".join(next(body.iter("header")).itertext())


@pytest.mark.parametrize(
    ("title", "where", "value"),
    [
        ("Jobs", ("type",), "gauge"),
        ("Jobs", ("fieldConfig", "defaults", "unit"), "furlongs"),
        ("Step time", ("fieldConfig", "defaults", "unit"), "furlongs"),
        ("Step time", ("transformations",), [{"id": "merge", "options": {}}]),
        ("Worst findings", ("transformations",), [{"id": "merge", "options": {}}]),
        ("Jobs", ("options", "reduceOptions", "calcs"), ["mean"]),
        ("GPU power", ("fieldConfig", "overrides", 0, "matcher", "id"), "byType"),
        ("GPU power", ("fieldConfig", "overrides", 0, "properties", 0, "id"), "custom.axisLabel"),
        ("Ranks over time: own work beside peers", ("options", "color", "scheme"), "Spectral"),
        ("Parts that work", ("options", "showValue"), "always"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_an_error_with_the_panel(title: str, where: Any, value: Any) -> None:
    changed = copy.deepcopy(DASHBOARD)
    inside: Any = find(title, changed)
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    with pytest.raises(ValueError, match=re.escape(f"panel {title!r} cannot be drawn")):
        drawn(changed)


def test_a_table_has_the_files_columns_in_its_order() -> None:
    body = drawn()
    table = section(body, "Worst findings").find("table")
    assert table is not None
    head, *rows = table.findall("tr")
    titles = ["cost", "job", "rank", "host", "kind", "where", "cause"]
    assert [th.text for th in head] == titles
    assert [row[0].text for row in rows[:3]] == ["11%", "10%", "9%"]


def test_the_heat_map_is_red_where_a_rank_is_slow_and_its_rows_are_in_order() -> None:
    heat = section(drawn(), "Ranks over time: own work beside peers")
    names = [text.text for text in heat.iter("text") if (text.text or "").isdecimal()]
    assert names == [str(rank) for rank in reversed(range(12))]
    assert diverging(1.0, 64, turned=False) == "#a50026"
    assert diverging(0.0, 64, turned=False) == "#006837"
    assert diverging(1.0, 64, turned=True) == "#006837"


def test_no_run_of_a_colour_goes_across_a_gap() -> None:
    points = [(0.0, 1.0), (1.0, 1.0), (2.0, 2.0), (9.0, 2.0), (10.0, 2.0)]
    assert list(runs(Line("", points), 1.0, str)) == [
        (0.0, 2.0, "1.0"), (2.0, 2.0, "2.0"), (9.0, 10.0, "2.0"),
    ]  # fmt: skip


def test_findings_are_marked() -> None:
    times = [*range(START, START + 100, STEP), *range(START + 200, END, STEP)]
    found = [{"metric": {}, "values": [[at, "1"] for at in times]}]
    body = drawn(DASHBOARD, answers(), found, FRAME)
    marked = [s for s in body.iter("section") if any(e.get("class") == "region" for e in s.iter())]
    assert {find(s.findtext("h3") or "")["type"] for s in marked} == {"timeseries"}
    assert len(marked) == sum(panel["type"] == "timeseries" for panel in PANELS)
    assert {sum(e.get("class") == "region" for e in s.iter()) for s in marked} == {2}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0012, "s", "1.2 ms"), (95.5, "s", "1.59 mins"), (0.0, "s", "0 s"),
        (0.333, "percentunit", "33.3%"), (-0.2, "percentunit", "-20%"),
        (1.98e9, "hertz", "1.98 GHz"), (63e6, "bytes", "60.1 MiB"), (1500, "eps", "1.5 K evt/s"),
        (0.0333, "suffix: GPU-h", "0.0333 GPU-h"), (16, "short", "16"), (71, "celsius", "71 °C"),
        (999.9, "watt", "1000 W"), (5e-10, "s", "0.0005 µs"),
    ],
)  # fmt: skip
def test_units(value: float, unit: str, text: str) -> None:
    assert formatted(value, unit) == text


def test_ticks_are_round_and_within() -> None:
    assert [label for _, label in ticks(0.0, 0.17, "s", 4)] == [
        "0 ms", "50 ms", "100 ms", "150 ms",
    ]  # fmt: skip
    assert [value for value, _ in ticks(0.0, 1.0, "short", 2)] == [0.0, 0.5, 1.0]
