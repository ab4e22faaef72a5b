"""Real recordings, replayed by the command that a person types."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from stragd.finding import schema
from tests.harness import free_port
from tests.trainer.launch import torchrun

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data" / "replay"
TRACE_AR = DATA / "bytedance" / "trace-AR.parquet"
TRACE_ST = DATA / "bytedance" / "trace-ST.parquet"
JOB_1 = DATA / "alibaba" / "job_1_norm.csv"
TOTALS = DATA / "tracelens" / "nccl_summary_long.csv"
NCCL_TRACES = DATA / "hta"


def stragctl(*arguments: object, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it; ``path`` is searched for modules before all others but the repository."""
    return subprocess.run(
        [sys.executable, "-m", "stragd.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{path}", "LC_ALL": "C.UTF-8", "COLUMNS": "100"},
    )


def replay(path: Path, *arguments: object) -> dict[str, Any]:
    """The JSON answer; every finding in it keeps to the schema."""
    done = stragctl("replay", path, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    keys = {"findings", "abstentions", "format", "ranks", "windows", "steps"}
    assert keys <= set(answer)
    for finding in answer["findings"]:
        jsonschema.validate(finding, schema())
    return answer


def stragglers(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in answer["findings"] if f["kind"] == "straggler"]


def test_one_slow_worker_of_a_pipeline_is_named_and_nobody_else() -> None:
    answer = replay(TRACE_AR)
    assert answer["format"] == "bytedance-parquet"
    assert (answer["ranks"], answer["steps"]) == (16, 44)
    (finding,) = stragglers(answer)
    assert finding["subject"]["label"] == "dp0/stage0"
    assert finding["subject"]["rank"] == 0
    assert finding["state"] == "confirmed"
    assert finding["job"]["world_size"] == 64  # four tensor-parallel ranks are folded into one
    assert 1.3 < finding["slowdown"] < 1.4
    assert finding["since"]["step"] == 16  # slow from the first recorded step
    assert "until" not in finding
    # The step takes 46.6 s; without this worker it would take about as long as its peers' work.
    assert 24_000 < finding["cost_ms_per_step"]["value"] < 28_000


def test_an_uneven_pipeline_blames_nobody_and_reports_the_stage() -> None:
    answer = replay(TRACE_ST)
    assert stragglers(answer) == []
    (finding,) = [f for f in answer["findings"] if f["kind"] == "uneven-work"]
    assert finding["subject"]["stage"] == 3
    assert finding["subject"]["label"] == "stage 3"
    assert finding["where"] == "job"
    assert 0.55 < finding["slowdown"] < 0.7


def test_a_stage_that_waits_unseen_is_not_called_uneven() -> None:
    """The last stage of trace-AR does the work of the others (compute: 20.1 s against 19.2 s).

    Three of its four ranks wait 22 s a step in something that was not recorded; the fourth, which
    does the same work in 0.53 of their time, proves that it is none.
    """
    assert [f["kind"] for f in replay(TRACE_AR)["findings"]] == ["straggler"]


@pytest.mark.parametrize("source", [TRACE_AR, TRACE_ST])
def test_compute_events_of_a_trace_are_never_used(source: Path, tmp_path: Path) -> None:
    """What was computed may be anything: left out, or with invented times."""
    table = pyarrow.parquet.read_table(source)
    kinds = table["optype"].cast("string")
    compute = pyarrow.compute.ends_with(kinds, "compute")
    communication = table.filter(pyarrow.compute.invert(compute))
    factor = pyarrow.array(random.random() * 9 for _ in range(len(table)))
    invented = pyarrow.compute.multiply(table["duration"].cast("float64"), factor)
    chosen = pyarrow.compute.if_else(compute, invented, table["duration"].cast("float64"))
    places = table.column_names.index("duration")
    altered = table.set_column(places, "duration", chosen.cast("float32"))
    (tmp_path / "without").mkdir()
    (tmp_path / "altered").mkdir()
    answer = replay(source)
    for name, version in (("without", communication), ("altered", altered)):
        path = tmp_path / name / source.name
        pyarrow.parquet.write_table(version, path)
        assert replay(path) == answer


def test_a_worker_that_was_slow_for_a_while_is_named_and_cleared() -> None:
    answer = replay(JOB_1)
    assert answer["format"] == "alibaba-csv"
    assert (answer["ranks"], answer["steps"]) == (10, 300)
    (finding,) = stragglers(answer)
    assert finding["subject"]["label"] == "worker 6"
    assert finding["subject"]["rank"] == 6
    assert finding["state"] == "cleared"
    assert 1_760 <= finding["since"]["step"] <= 1_830
    assert 1_900 <= finding["until"]["step"] <= 2_000
    # The times have no unit.
    assert finding["cost_ms_per_step"] is None
    assert not any(" ms" in line for line in finding["evidence"])
    assert finding["cost_percent"] > 10


def test_totals_name_the_rank_that_everybody_waits_for(tmp_path: Path) -> None:
    answer = replay(TOTALS)
    assert answer["format"] == "tracelens-totals"
    (finding,) = answer["findings"]
    assert (finding["kind"], finding["state"]) == ("straggler", "confirmed")
    assert finding["subject"]["rank"] == 4
    assert finding["subject"]["label"] == "rank 4"
    # A directory with one recording and a licence is that recording.
    assert replay(DATA / "tracelens") == answer
    # Without the one rank, no rank of the others is last by as much in both kinds.
    lines = TOTALS.read_text().splitlines(keepends=True)
    rest = tmp_path / "rest.csv"
    rest.write_text(lines[0] + "".join(line for line in lines[1:] if not line.startswith("4,")))
    assert [f for f in replay(rest)["findings"] if f["state"] == "confirmed"] == []


def test_steps_of_a_window_can_be_chosen() -> None:
    assert replay(JOB_1)["steps_per_window"] == 4
    answer = replay(JOB_1, "--window-steps", 10)
    assert (answer["steps_per_window"], answer["windows"]) == (10, 30)
    done = stragctl("replay", JOB_1, "--window-steps", 0)
    assert done.returncode == 2
    assert "between 1 and" in done.stderr


def test_kernels_of_a_gpu_trace_and_only_those_of_communication(tmp_path: Path) -> None:
    answer = replay(NCCL_TRACES)
    assert answer["format"] == "kineto-json"
    assert (answer["ranks"], answer["steps"]) == (2, 9)
    # Two of 128 ranks have too few peers and too short a past for any verdict.
    assert answer["findings"] == []
    assert "2 of 128 ranks" in answer["notes"][0]
    target = tmp_path / "hta"
    target.mkdir()
    for source in NCCL_TRACES.glob("*.json.gz"):
        trace = json.loads(gzip.decompress(source.read_bytes()))
        events = trace["traceEvents"]
        trace["traceEvents"] = [e for e in events if e["name"].startswith("nccl")]
        assert 0 < len(trace["traceEvents"]) < len(events)
        (target / source.name.removesuffix(".gz")).write_text(json.dumps(trace))
    without = replay(target)
    assert without == answer


def test_a_profiled_training_names_its_slow_rank(tmp_path: Path) -> None:
    """Real PyTorch, real gloo, real Kineto: the traces of four ranks, one of them slow."""
    python = os.environ["STRAGD_TEST_PYTORCH"].split(":")[-1]
    traces = tmp_path / "traces"
    traces.mkdir()
    slow, after = random.SystemRandom().randrange(4), 60
    options = ["--steps", "200", "--step-ms", "25", "--slow-rank", str(slow)]
    options += ["--slow-factor", "2", "--slow-after", str(after)]
    command = torchrun("profiled.py", 4, free_port(), tmp_path / "logs", *options, python=python)
    environment = os.environ | {"TRACES": str(traces), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = replay(traces)
    assert answer["format"] == "kineto-json"
    assert answer["ranks"] == 4
    assert 180 <= answer["steps"] <= 201
    # On a busy machine others may be slow for a moment too.
    finding = max(stragglers(answer), key=lambda f: f["cost_percent"])
    assert finding["subject"]["rank"] == slow
    assert finding["subject"]["label"] == f"rank{slow}.json.gz"
    assert finding["state"] in ("confirmed", "recovering")
    assert 0.7 * after <= finding["since"]["step"] <= 1.5 * after
    assert 0.5 < finding["slowdown"] < 1.3
    assert not finding["since"]["time"].startswith("1970")


def test_the_screen_says_who_when_and_how_much() -> None:
    done = stragctl("replay", JOB_1)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "job_1_norm.csv: alibaba-csv, 10 ranks, 300 steps, 75 windows of 4 steps"
    assert any("rank 6 (worker 6), cleared from step" in line for line in lines)
    assert "1970" not in stragctl("replay", TOTALS).stdout
