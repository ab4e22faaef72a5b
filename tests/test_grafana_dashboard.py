"""The dashboard's every query, run by a real Prometheus that scraped a real stragd of a real job.

The NVIDIA driver is made up (``fakenvml``); job, fault, daemon, NIC and Prometheus are real.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.outputs.metrics import SPECS
from tests.fakenvml import FakeNvml
from tests.harness import ROOT, daemon, job, wait_for
from tests.injections import LIMIT, RANKS, WATCH, arguments, blamed
from tests.needs import lacking, module
from tests.prometheus_server import Prometheus, Series, filled

FILE = ROOT / "grafana" / "stragd.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
HW_THERMAL = 270  # NVML's field of the time in hardware thermal slowdown

# What the test's job cannot have, and why; then what depends on the machine that runs the test.
ABSENT = {
    "stragd_exchange_total": "one node has no exchange",
    "stragd_rings": "gloo loads no profiler plugin",
}
MAY_BE_ABSENT = {
    "stragd_nic_speed_bytes_per_second": "the link of a virtual NIC has no rate",
    "stragd_nic_drops_per_second": "a network without a default route",
    "stragd_nic_transmit_bytes_per_second": "a network without a default route",
    "stragd_nic_receive_bytes_per_second": "a network without a default route",
    "stragd_node_cpu_frequency_hertz": "virtual machines have no cpufreq",
    "stragd_node_pressure_ratio": "a kernel without PSI",
    "stragd_rank_disk_wait_ratio": "a kernel without delay accounting",
}
UNITS = {
    "_seconds": "s", "_bytes": "bytes", "_ratio": "percentunit", "_hertz": "hertz",
    "_celsius": "celsius", "_watts": "watt", "_bytes_per_second": "Bps",
    "_drops_per_second": "pps", "_confidence": "percentunit",
    # Their rates: seconds per second are a share, rank-seconds per second are ranks.
    "process_cpu_seconds_total": "percentunit", "_lost_rank_seconds_total": "suffix: GPUs",
    "stragd_events_total": "eps", "stragd_events_lost_total": "eps",
    "stragd_exchange_total": "mps",
}  # fmt: skip
EXPRESSIONS = {"GPU-hours lost": "suffix: GPU-h"}


def metrics_of(expression: str) -> list[str]:
    return sorted(set(re.findall(r"\b(?:stragd|process)_[a-z_]+\b", expression)))


def test_the_file_is_what_the_script_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    done = subprocess.run(
        [sys.executable, "-c", "import dashboard, sys; sys.stdout.write(dashboard.text())"],
        cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == FILE.read_text(), "run: python scripts/dashboard.py"


def test_the_sdk_reads_it_back_unchanged() -> None:
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = model.Dashboard.from_json(json.loads(FILE.read_text()))
    again = json.loads(encoder.JSONEncoder().encode(read))
    for after, before in zip(again["panels"], DASHBOARD["panels"], strict=True):
        for key in ("type", "title", "gridPos", "targets", "transformations"):
            assert after.get(key) == before.get(key), before["title"]
    assert again["templating"] == DASHBOARD["templating"]


def test_every_metric_exists_and_every_panel_has_one() -> None:
    known = {spec.name for spec in SPECS}
    for panel, target in TARGETS:
        used = metrics_of(target["expr"])
        assert used, panel["title"]
        assert set(used) <= known, panel["title"]


def test_nothing_that_telemetry_serves_is_missing() -> None:
    shown = {name for _, target in TARGETS for name in metrics_of(target["expr"])}
    for spec in SPECS:
        if spec.name.startswith(("stragd_rank_gpu_", "stragd_nic_", "stragd_node_")):
            assert spec.name in shown, spec.name


def test_ids_places_and_sources() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == [
        "datasource", "job", "rank", "node",
    ]  # fmt: skip


def test_units_are_those_of_the_metrics() -> None:
    for panel in PANELS:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            # Only the value's metric: what is joined for its labels has a value of 1.
            name = re.findall(r"\b(?:stragd|process)_[a-z_]+\b", target["expr"])[0]
            ends = [end for end in UNITS if name.endswith(end)]
            counted = "count(" in target["expr"] or not ends
            wanted = "short" if counted else UNITS[max(ends, key=len)]
            assert unit == EXPRESSIONS.get(panel["title"], wanted), (panel["title"], name)


def over_time(prometheus: Prometheus, expression: str) -> Series:
    now = time.time()
    return prometheus.over_time(filled(expression), now - 120, now, 1)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One hot GPU, one slow rank, found and confirmed, and scraped for some seconds more."""
    if os.geteuid() != 0:
        lacking("the daemon attaches eBPF probes: run this as root")
    module("pynvml")
    directory = tmp_path_factory.mktemp("dashboard")
    driver = FakeNvml(directory / "driver", RANKS).healthy()
    slow = ["--slow-rank", "2", "--slow-factor", "1.4", "--slow-after", "250"]
    with (
        job("ddp.py", RANKS, *arguments(*slow)) as training,
        pytest.MonkeyPatch.context() as environment,
    ):
        wait_for("the ranks to begin", lambda: len(training.pids()) == RANKS, LIMIT)
        for record in training.records():
            if record["event"] == "started":
                driver.process(record["rank"], record["pid"])
        driver.set(2, "sm_clock", 1305)
        driver.share(2, HW_THERMAL, 0.6)
        driver.write()
        for name, value in driver.environment.items():
            environment.setenv(name, value)
        with (
            daemon(WATCH) as watcher,
            Prometheus(directory, f"127.0.0.1:{watcher.port}") as server,
        ):

            def explained() -> bool:
                finding = blamed(watcher, training)
                return finding is not None and finding["cause"]["name"] != "unknown"

            wait_for("the slow rank and its cause", explained, 2 * LIMIT)
            lost = "increase(stragd_job_lost_rank_seconds_total[10m]) > 1"
            wait_for("lost time to be counted", lambda: server.query(lost))
            timed = "increase(stragd_bpf_runs_total[10m]) > 0"
            wait_for("a timed run of the probes", lambda: server.query(timed))
            yield server


def problem(prometheus: Prometheus, panel: dict[str, Any], target: dict[str, Any]) -> str:
    """What is wrong with a query's answer, "" where nothing is."""
    used = set(metrics_of(target["expr"]))
    try:
        if target.get("instant"):
            series = prometheus.query(filled(target["expr"]))
            values = [float(one["value"][1]) for one in series]
        else:
            series = over_time(prometheus, target["expr"])
            values = [float(value) for one in series for _, value in one["values"]]
    except ValueError as error:
        return str(error)
    if used & ABSENT.keys():
        return "it is there after all: take it out of ABSENT" if series else ""
    if not values:
        return "" if used & MAY_BE_ABSENT.keys() else "empty"
    if any(math.isnan(value) for value in values):
        return "NaN"
    unit = panel["fieldConfig"]["defaults"]["unit"]
    if unit == "percentunit" and max(values) > 50:
        return f"no share: {max(values)}"
    for label in re.findall(r"{{(\w+)}}", target.get("legendFormat", "")):
        # Findings about a whole job have no rank.
        if not any(label in one["metric"] for one in series):
            return f"no label {label}"
    return ""


def test_no_query_is_wrong_and_no_panel_is_empty(prometheus: Prometheus) -> None:
    problems = [
        f"{panel['title']} {target['refId']}: {what}: {target['expr']}"
        for panel, target in TARGETS
        if (what := problem(prometheus, panel, target))
    ]
    assert not problems, "\n".join(problems)


def test_the_slow_rank_is_what_the_panels_show(prometheus: Prometheus) -> None:
    """The job goes on: a window in which the machine disturbed another rank passes."""
    queries = {p["title"]: filled(p["targets"][0]["expr"]) for p in PANELS}

    def values(title: str) -> dict[str, float]:
        found = prometheus.query(queries[title])
        return {one["metric"]["rank"]: float(one["value"][1]) for one in found}

    def blamed_rightly() -> bool:
        found = prometheus.query(queries["Worst findings"])
        labels = [one["metric"] for one in found if one["metric"].get("rank") == "2"]
        return any(of["cause"] == "thermal-throttle" and of["host"] for of in labels)

    wait_for("the cause in the table", blamed_rightly)
    clocks = {str(rank): 1.305e9 if rank == 2 else 1.98e9 for rank in range(RANKS)}
    wait_for("the clocks", lambda: values("GPU clock") == clocks)

    def extreme(title: str, choose: Any) -> bool:
        found = values(title)
        return len(found) == RANKS and choose(found, key=lambda rank: found[rank]) == "2"

    wait_for("the red row", lambda: extreme("Ranks over time: own work beside peers", max))
    wait_for("the shortest wait", lambda: extreme("Wait of a rank", min))


def test_variables_and_annotation(prometheus: Prometheus) -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(
            r"label_values\((.+), (\w+)\)", variable["query"]["query"]
        ).groups()  # type: ignore[union-attr]
        match = filled(selector)
        assert prometheus.api(f"label/{label}/values", **{"match[]": match}), variable["name"]
    (annotation,) = DASHBOARD["annotations"]["list"]
    found = over_time(prometheus, annotation["expr"])
    found = [one for one in found if one["metric"].get("rank") == "2"]
    assert found
    formats = annotation["titleFormat"] + annotation["textFormat"]
    for label in re.findall(r"{{(\w+)}}", formats):
        assert all(label in one["metric"] for one in found), label
    assert {float(value) for one in found for _, value in one["values"]} == {1.0}


def test_provisioning_names_files_that_are_there() -> None:
    text = (ROOT / "grafana" / "provisioning" / "dashboards" / "stragd.yml").read_text()
    (path,) = re.findall(r"path: (.+)", text)
    assert path == "/usr/share/stragd/grafana"
    built = (ROOT / "packaging" / "deb" / "build").read_text()
    assert 'cp -r grafana "$tree/share/"' in built
    assert [p.name for p in (ROOT / "grafana").rglob("*.json")] == [FILE.name]
    assert Path(path).name == FILE.parent.name
