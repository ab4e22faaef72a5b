"""Recordings are other people's files: whatever is in them, one clear error or a sound answer."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from stragd.replay import kineto, minibatch, period, steps, windows
from stragd.replay.detect import open_recording
from stragd.replay.recording import ROW, Recording, RecordingError
from stragd.replay.run import replay
from tests.test_replay import JOB_1, NCCL_TRACES, TOTALS, TRACE_ST, stragctl

HEADER = ",worker,gpu,time,batch_time_norm\n"


def refused(path: Path, *words: str) -> None:
    """One line on stderr with the path and these words, nothing on stdout, exit code 1."""
    done = stragctl("replay", path)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"stragctl: {path}: "), line
    for word in words:
        assert word in line


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_what_is_no_recording(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "no such file")
    refused(write(tmp_path / "empty", ""), "is empty")
    refused(write(tmp_path / "text", "hello\n"), "not a recording", "stragctl record")
    refused(tmp_path, "no recording in this directory")
    refused(Path("/dev/null"), "not a regular file")
    refused(TRACE_ST.parent, "name one", "trace-AR.parquet", "trace-ST.parquet")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER, ["no rows"]),
        (HEADER + "0,0,25,1,nan\n", ["line 2", "batch_time_norm", "'nan'"]),
        (HEADER + "0,0,25,1,5\n1,0,25,2,-1\n", ["line 3", "batch_time_norm"]),
        (HEADER + "0,-1,25,1,5\n", ["line 2", "worker"]),
        (HEADER + f"0,{1 << 30},25,1,5\n", ["line 2", "worker"]),
        (HEADER + "0,0,25,one,5\n", ["line 2", "time", "'one'"]),
        (HEADER + "0,0\n", ["line 2", "gpu"]),
        (HEADER + "0,0,25,1,1e300\n", ["line 2", "batch_time_norm"]),
    ],
)
def test_damaged_mini_batches(tmp_path: Path, text: str, words: list[str]) -> None:
    refused(write(tmp_path / "job.csv", text), *words)


def test_a_repeated_line_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    lines = JOB_1.read_text().splitlines(keepends=True)
    worker = lines[100].split(",")[1:4]
    doubled = ",".join(["9999", *worker, "999"]) + "\n"
    path = write(tmp_path / JOB_1.name, "".join([*lines, doubled]))
    answer = replay(open_recording(path))
    assert any("1 lines repeat" in note for note in answer["notes"])
    assert answer["findings"] == replay(open_recording(JOB_1))["findings"]


def test_damaged_totals(tmp_path: Path) -> None:
    text = TOTALS.read_text()
    header = text.splitlines(keepends=True)[0]
    refused(write(tmp_path / "a.csv", header), "no rows")
    refused(write(tmp_path / "b.csv", text.replace(",11493151.171,", ",-5,")), "line 2", "'-5'")
    refused(write(tmp_path / "c.csv", text.replace("\n4,", "\n99999999,")), "99999999")


def test_damaged_parquet(tmp_path: Path) -> None:
    whole = TRACE_ST.read_bytes()
    refused(write(tmp_path / "cut.parquet", whole[: len(whole) // 2]), "parquet")
    table = pyarrow.parquet.read_table(TRACE_ST)

    def altered(name: str, column: str, kind: str, value: Any) -> Path:
        values = table[column].cast(kind).to_pylist()
        values[0:500] = [value] * 500
        place = table.column_names.index(column)
        path = tmp_path / name
        new = pyarrow.array(values, kind)
        pyarrow.parquet.write_table(table.set_column(place, column, new), path)
        return path

    refused(altered("a.parquet", "duration", "float64", math.nan), "duration")
    refused(altered("b.parquet", "start_ts", "float64", -1.0), "start_ts")
    refused(altered("g.parquet", "start_ts", "float64", 1e30), "start_ts")
    refused(altered("c.parquet", "rank", "int64", 1 << 40), "rank")
    refused(altered("d.parquet", "step", "int64", None), "step")
    refused(altered("e.parquet", "stage", "int64", -3), "stage")
    path = tmp_path / "f.parquet"
    pyarrow.parquet.write_table(table.drop_columns(["stage"]), path)
    refused(path, "column stage is missing")


def test_parquet_without_its_package_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "pyarrow").mkdir()
    write(tmp_path / "pyarrow" / "__init__.py", "raise ImportError('needs a newer numpy')")
    done = stragctl("replay", TRACE_ST, path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs a newer numpy" in done.stderr
    assert "pip install 'stragd[parquet]'" in done.stderr


def trace(rank: int, **extra: Any) -> dict[str, Any]:
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
         "ts": 1000.0 * step, "dur": 100.0, "args": {"correlation": step, "stream": 7}}
        for step in range(40)
    ]  # fmt: skip
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events, **extra}


def test_damaged_traces(tmp_path: Path) -> None:
    def file(name: str, content: Any) -> Path:
        return write(tmp_path / name, json.dumps(content))

    refused(write(tmp_path / "a.json", '{"traceEvents": ['), "not JSON")
    refused(write(tmp_path / "b.json", "[" * 100_000), "not JSON")
    refused(file("c.json", {"other": 1}), "traceEvents")
    packed = gzip.compress(json.dumps(trace(0)).encode())
    refused(write(tmp_path / "d.json.gz", packed[:60]), "gzip")
    refused(file("e.json", trace(0, traceEvents=[])), "no NCCL, RCCL or gloo")
    host = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 1, "dur": 1}
    refused(file("f.json", trace(0, traceEvents=[host])), "ProfilerActivity.CUDA")
    refused(file("g.json", trace(-4)), "rank is -4")
    refused(file("h.json", trace(0, distributedInfo={})), "which rank", "rank0.json")
    odd = trace(0, deviceProperties=[{"name": []}, 3], host_name=5, baseTimeNanoseconds="x")
    odd["traceEvents"] += [5, {"ph": "X", "name": {}}, {"ph": "X", "name": "gloo:x", "args": 3}]
    odd["traceEvents"][0]["args"] = {"correlation": True, "dtype": [[[]]]}
    odd["traceEvents"][-1] |= {"ts": 0, "dur": 0}
    assert open_recording(file("odd.json", odd)).steps > 30
    for name, value in [("ts", "soon"), ("dur", -1), ("ts", 1e300), ("dur", None), ("ts", True)]:
        bad = trace(0)
        bad["traceEvents"][3][name] = value
        refused(file("i.json", bad), name)
    both = tmp_path / "both"
    both.mkdir()
    write(both / "x.json", json.dumps(trace(1)))
    write(both / "y.json", json.dumps(trace(1)))
    refused(both, "x.json", "y.json", "both of rank 1")


def test_a_damaged_trace_does_not_stop_the_others(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", json.dumps(trace(rank)))
    write(tmp_path / "rank3.json", json.dumps(trace(3))[:-40])
    read = open_recording(tmp_path)
    (job,) = read.jobs.values()
    assert job.ranks == {0, 1, 2}
    assert read.notes[0].startswith("left out: rank3.json: not JSON")
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", '{"traceEvents": [')
    refused(tmp_path, "rank0.json", "not JSON")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MAX_JSON", 1 << 20)
    path = write(tmp_path / "rank0.json.gz", gzip.compress(b" " * (8 << 20)))
    with pytest.raises(RecordingError, match="longer than 1 MiB"):
        kineto.load_json(path)


def rows(window: int, own: list[float], **fields: Any) -> np.ndarray[Any, Any]:
    made = np.zeros(len(own), dtype=ROW)
    made["job"], made["window"], made["signature"], made["world_size"] = 7, window, 1, len(own)
    made["rank"], made["own"] = range(len(own)), own
    made["wall"], made["wait"] = 100e6, [100e6 - value for value in own]
    made["first_step"], made["last_step"], made["steps"] = window * 100, window * 100 + 99, 100
    made["time_ns"], made["source"], made["own_se"] = 10**18 + window * 10**10, 1, math.nan
    for name, value in fields.items():
        made[name] = value
    return made


ABOUT = {"job": f"{7:016x}", "name": "train", "world_size": 8}


def recorded(count: int) -> bytes:
    """Eight ranks of which rank 5 becomes slow at window 20."""
    noise = random.Random(5)
    entries = [windows.header()]
    for window in range(count):
        own = [80e6 * noise.gauss(1, 0.005) for _ in range(8)]
        own[5] *= 1.15 if window >= 20 else 1.0
        about = dict(ABOUT)
        if window == 0:
            about |= {"hosts": {5: "node9"}, "classes": {0: "nvidia/H200"}}
        entries.append(windows.entry(about, rows(window, own).tobytes()))
    return b"".join(entries)


def test_own_windows_are_scored_as_they_were_live(tmp_path: Path) -> None:
    path = write(tmp_path / "own", recorded(40))
    answer = replay(open_recording(path))
    assert (answer["format"], answer["ranks"], answer["windows"]) == ("stragd-windows", 8, 40)
    assert answer["steps"] == 4000
    (finding,) = answer["findings"]
    assert finding["subject"] == {
        "rank": 5, "host": "node9", "class": "nvidia/H200", "label": "rank 5",
    }  # fmt: skip
    assert abs(finding["since"]["window"] - 20) <= 1
    # Broken off in the middle of a window: good up to the one before.
    broken = write(tmp_path / "broken", recorded(40)[:-700])
    answer = replay(open_recording(broken))
    assert answer["windows"] == 39
    assert any("broken off" in note for note in answer["notes"])


def test_damaged_windows(tmp_path: Path) -> None:
    whole = recorded(4)
    first, _, rest = whole.partition(b"\n")

    def file(content: bytes) -> Path:
        return write(tmp_path / "own", content)

    refused(file(first + b"\n"), "no window")
    refused(file(first.replace(b'windows":1', b'windows":9') + b"\n" + rest), "version 9")
    refused(file(first.replace(b'["own"', b'["owm"') + b"\n" + rest), "layout")
    refused(file(first[:-5] + b"\n" + rest), "first line")
    refused(file(first + b"\n{]\n" + rest), "damaged")
    refused(file(whole.replace(b'"rows":8', b'"rows":-8')), "claims -8 rows")
    refused(file(whole.replace(b'"world_size":8', b'"world_size":0')), "world size of 0")
    refused(file(whole.replace(b'"job":"', b'"job":"x')), "description")


def test_bad_rows_are_refused_alone(tmp_path: Path) -> None:
    """Of another job, beyond the world, without sense: counted, and nobody is named for it."""
    entries = [windows.header()]
    for window in range(30):
        own = [80e6] * 8
        good = rows(window, own)
        bad = rows(window, [math.inf, -1.0, math.nan, 1e30], rank=[0, 1, 2, 3])
        others = rows(window, own, job=8)
        beyond = rows(window, own, rank=range(8, 16))
        mixed = np.concatenate([bad, others, beyond, good])
        entries.append(windows.entry(ABOUT, mixed.tobytes()))
    answer = replay(open_recording(write(tmp_path / "own", b"".join(entries))))
    assert answer["findings"] == []
    assert answer["refused_rows"] == 30 * 4
    assert answer["abstentions"] == []
    assert sum("not of its job" in note for note in answer["notes"]) == 30


def test_ranks_without_a_verdict_are_listed_once(tmp_path: Path) -> None:
    """Host probes see no device time: nobody is judged, in any window."""
    entries = [windows.header()]
    for window in range(12):
        blind = rows(window, [math.nan] * 4, flags=8, wait=math.nan, comm=math.nan, source=2)
        entries.append(windows.entry(ABOUT, blind.tobytes()))
    answer = replay(open_recording(write(tmp_path / "own", b"".join(entries))))
    assert [item["rank"] for item in answer["abstentions"]] == [0, 1, 2, 3]
    assert {item["reason"] for item in answer["abstentions"]} == {
        "host probes only: no device time"
    }
    done = stragctl("replay", tmp_path / "own")
    assert "no verdict on ranks 0-3: host probes only" in done.stdout.replace(" of train", "")


@pytest.mark.parametrize(
    "source", [TRACE_ST, JOB_1, TOTALS, NCCL_TRACES / "sampled_rank-0.json.gz", None]
)
def test_flipped_bytes_never_end_in_a_traceback(source: Path | None, tmp_path: Path) -> None:
    source = source or write(tmp_path / "whole", recorded(10))
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    packed = source.suffix == ".gz"
    data = gzip.decompress(source.read_bytes()) if packed else source.read_bytes()
    path = tmp_path / source.name.removesuffix(".gz")
    for _ in range(30):
        damaged = bytearray(data)
        for _ in range(choose.choice([1, 4, 50])):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        write(path, bytes(damaged[: choose.choice([len(damaged), choose.randrange(len(damaged))])]))
        with contextlib.suppress(RecordingError):
            json.dumps(replay(open_recording(path)), allow_nan=False)


# The mathematics of the readers.


def test_busy_time_is_the_length_of_the_union() -> None:
    choose = random.Random(3)
    for _ in range(200):
        start = np.array([choose.randrange(100) for _ in range(choose.randrange(1, 9))], float)
        end = start + np.array([choose.randrange(20) for _ in start])
        covered = {t for a, b in zip(start, end, strict=True) for t in range(int(a), int(b))}
        assert steps.busy_time(start, end) == len(covered)
    assert steps.busy_time(np.array([]), np.array([])) == 0.0


def test_a_window_is_as_long_as_live_or_a_sixtyfourth() -> None:
    cases: list[tuple[tuple[int, float, float], int]] = [
        ((1_000_000, 0.2e9, 1), 100),  # a hundred steps
        ((1_000_000, 1e9, 1), 30),  # thirty seconds
        ((1_000_000, 0.2e9, 10), 10),  # every tenth step was recorded
        ((640, 0.2e9, 1), 10),
        ((300, math.nan, 10), 4),
        ((44, 46e9, 5), 1),
    ]
    for arguments, expected in cases:
        assert steps.steps_per_window(*arguments) == expected


def test_the_period_is_the_step_and_not_a_layer_of_it() -> None:
    layers = [1] * 80 + [2] + [3] * 79 + [2]
    assert period.find_period(np.array(layers * 6)) == len(layers)
    assert period.find_period(np.array([5, *[1, 2, 3] * 50, 7, *[1, 2, 3] * 50])) == 3
    begin = [0, 1, 1, 2, 1, 1]  # of a real DDP run: its broadcasts suggest a period of 3
    assert period.find_period(np.array([*begin, *[2] * 400])) == 1
    assert period.find_period(np.random.default_rng(1).integers(0, 9, 500)) == 0
    assert period.find_period(np.array([1])) == 0
    cycle = np.array([1, 2, 3])
    assert period.find_steps(np.array([3, 1, 2, 3, 9, 1, 2, 3, 1, 2]), cycle) == [1, 5]


def test_buckets_of_one_size_are_told_apart_by_the_work_before_them(tmp_path: Path) -> None:
    """Four ranks, five equal all-reduces a step of which four overlap; rank 2 is slow."""
    for rank in range(4):
        events, now, choose = [], 1e15, random.Random(rank)
        for step in range(80):
            begin = now
            now += 10_000 * choose.gauss(1, 0.01) * (1.3 if rank == 2 else 1.0)
            end = begin + 15_000
            for bucket in range(5):
                args = {"correlation": step * 5 + bucket}
                event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_RING(x)"}
                place = {"ts": now + bucket, "dur": end - now - bucket, "args": args}
                events.append(event | place)
            now = end
        document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 4}}
        write(tmp_path / f"{rank}.json", json.dumps(document))
    recording = open_recording(tmp_path)
    assert recording.steps == 79
    (finding,) = replay(recording)["findings"]
    assert finding["subject"]["rank"] == 2
    assert 0.25 < finding["slowdown"] < 0.35
    cost = finding["cost_ms_per_step"]
    assert cost is not None
    assert 2.5 < cost["value"] < 3.5


def test_the_answer_does_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    header, *lines = JOB_1.read_text().splitlines(keepends=True)
    random.shuffle(lines)
    shuffled = write(tmp_path / JOB_1.name, "".join([header, *lines]))
    read: Callable[[Path], Recording] = minibatch.read
    assert replay(read(shuffled)) == replay(read(JOB_1))
