"""Metrics page: real HTTP, promtool, and a real Prometheus that scrapes it."""

from __future__ import annotations

import gzip
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stragd.docs import metrics
from stragd.outputs import prometheus
from stragd.outputs.metrics import SPECS
from stragd.outputs.prometheus import MetricsServer
from stragd.outputs.readings import FAMILIES, readings
from stragd.outputs.snapshot import Snapshot
from stragd.telemetry.quantities import GPU
from stragd.telemetry.quantities_host import NIC, NODE, PROCESS
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.pictures import finding, job, rank, snapshot
from tests.prometheus_server import Prometheus


class Page:
    """A server and the picture that it serves."""

    def __init__(self, max_series: int = 10000) -> None:
        self.now: Snapshot | None = snapshot(findings=[finding()])
        self.age: float | None = 0.0
        self.server = MetricsServer("127.0.0.1:0", max_series, lambda: self.now, lambda: self.age)
        self.server.start()
        self.base = self.server.url().removesuffix("/metrics")

    def get(self, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        request = urllib.request.Request(self.base + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, reply.read(), dict(reply.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read(), dict(error.headers)

    def samples(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """name -> labels -> value, as Prometheus' own parser reads the page."""
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        text = self.get("/metrics")[1].decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values = found.setdefault(sample.name, {})
                assert labels not in values, f"twice: {sample}"
                values[labels] = sample.value
        return found


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr(prometheus, "PAGE_SECONDS", 0.0)
    made = Page()
    yield made
    made.server.close()


def labels(**values: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def test_routes(page: Page) -> None:
    status, body, headers = page.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    status, packed, headers = page.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed).count(b"\n") == body.count(b"\n")
    assert b"/metrics" in page.get("/")[1]
    assert page.get("/-/healthy")[:2] == (200, b"alive\n")
    assert page.get("/-/ready")[:2] == (200, b"ready\n")
    for path in ("/metrics/", "/x", "/debug", "/%2e%2e/etc/passwd"):
        assert page.get(path)[0] == 404


def test_not_ready_and_not_healthy(page: Page) -> None:
    page.now, page.age = None, None
    assert page.get("/-/ready")[0] == 503
    assert page.get("/-/healthy")[0] == 200
    assert page.get("/metrics")[0] == 200
    page.age = 1000.0
    assert page.get("/-/healthy")[0] == 503
    page.now = snapshot()
    page.now["health"]["degraded"] = ["no CAP_BPF"]
    status, body, _ = page.get("/-/ready")
    assert status == 200
    assert b"no CAP_BPF" in body


def test_values_are_in_base_units(page: Page) -> None:
    found = page.samples()
    two = labels(job="llama", rank=2)
    assert found["stragd_rank_own_seconds"][two] == pytest.approx(0.1)
    assert found["stragd_rank_wait_seconds"][two] == pytest.approx(0.025)
    assert found["stragd_rank_steps_total"][two] == 1500
    assert found["stragd_job_step_seconds"][labels(job="llama")] == pytest.approx(0.13)
    confirmed = labels(job="llama", rank=2, kind="straggler", state="confirmed")
    assert found["stragd_finding"] == {confirmed: 1}
    cost = found["stragd_finding_cost_seconds"][labels(job="llama", rank=2, kind="straggler")]
    assert cost == pytest.approx(0.02)
    attached = labels(library="gloo", version="", method="uprobe_multi")
    assert found["stragd_probes_attached"] == {attached: 6}
    assert found["stragd_events_lost_total"][labels(cause="ring")] == 3
    assert found["stragd_series_limited"][()] == 0


def test_causes_have_their_place_and_what_deviates(page: Page) -> None:
    known, other = finding(), finding(kind="intermittent", state="suspect")
    known["where"] = "machine"
    known["cause"] = {
        "name": "thermal-throttle",
        "confidence": 0.9,
        "evidence": [
            "SM clock 1,305 MHz, peers 1,980; HW thermal slowdown 62 % of the window, peers 0 %, "
            "before 1.0 %; mlx5_0/1: link lanes 1, before 4; traced by process 4",
            "compared with 3 peers",
        ],
        "advice": "check the cooling",
    }
    page.now = snapshot(findings=[known, other])
    found = page.samples()["stragd_finding_cause_confidence"]
    evidence = "HW thermal slowdown; SM clock; mlx5_0/1: link lanes; traced by process"
    about = {"job": "llama", "rank": 2}
    assert found == {
        labels(**about, kind="straggler", cause="thermal-throttle", where="machine",
               evidence=evidence): 0.9,
        labels(**about, kind="intermittent", cause="unknown", where="unknown",
               evidence="nobody has looked"): 0,
    }  # fmt: skip
    first, *rest = known["cause"]["evidence"]
    turned = "; ".join(reversed(first.split("; ")))
    known["cause"]["evidence"] = [turned, *rest]
    assert page.samples()["stragd_finding_cause_confidence"] == found, "a series must not change"
    read = page.samples()["stragd_telemetry_read_seconds"]
    assert read == {labels(collector="telemetry_host"): 0.002}


def test_counters_begin_at_zero(page: Page) -> None:
    page.now = snapshot(jobs=[], ranks=[], libraries=[], counters={})
    found = page.samples()
    for name in ("events_total", "events_lost_total", "probe_attach_failures_total"):
        assert found[f"stragd_{name}"]
        assert set(found[f"stragd_{name}"].values()) == {0}
    assert found["stragd_bpf_run_seconds_total"] == {(): 0}


def test_series_vanish_with_their_rank(page: Page) -> None:
    assert len(page.samples()["stragd_rank_own_seconds"]) == 4
    page.now = snapshot(ranks=[rank(0), rank(1), rank(2, state="gone")])
    found = page.samples()
    for name in (spec.name for spec in SPECS if "rank" in spec.labels):
        assert not any(("rank", "3") in key or ("rank", "2") in key for key in found.get(name, {}))
    assert len(found["stragd_rank_own_seconds"]) == 2
    page.now = snapshot(jobs=[], ranks=[])
    assert not any(name.startswith(("stragd_rank", "stragd_job")) for name in page.samples())


def test_unknown_values_are_absent(page: Page) -> None:
    page.now = snapshot(
        ranks=[
            rank(0, own_ms=None, wait_ms=None, comm_ms=None, lateness_ms=None, slowdown=None),
            rank(1, per="window"),
        ]
    )
    found = page.samples()
    assert "stragd_rank_own_seconds" not in found
    assert list(found["stragd_rank_step_seconds"]) == [labels(job="llama", rank=0)]
    assert found["stragd_rank_steps_inferred"][labels(job="llama", rank=1)] == 0


def test_names_of_jobs_cannot_break_the_page(page: Page) -> None:
    evil = 'a"} 1\nstragd_up{collector="x\\'
    page.now = snapshot(jobs=[job(evil)], findings=[finding(job_name=evil)])
    found = page.samples()
    assert labels(job=evil, rank=2) in found["stragd_rank_own_seconds"]
    assert list(found["stragd_up"]) == [labels(collector="probes")]


def test_too_many_series_become_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PAGE_SECONDS", 0.0)
    page = Page(max_series=500)
    try:
        keys = [f"{n:016x}" for n in range(40)]
        jobs = [job(f"job{n}", key) for n, key in enumerate(keys)]
        jobs[37]["state"] = "finding"
        ranks = [rank(n, key) for key in keys for n in range(4)]
        page.now = snapshot(jobs=jobs, ranks=ranks)
        found = page.samples()
        total = sum(len(values) for values in found.values())
        assert 400 < total <= 500
        assert found["stragd_series_limited"][()] == 1
        local = found["stragd_job_local_ranks"]
        assert sum(local.values()) == 160
        assert local[labels(job="other")] > 100
        assert labels(job="job37") in local
        for key in local:  # whole jobs only
            name = dict(key)["job"]
            if name != "other":
                assert sum(("job", name) in k for k in found["stragd_rank_own_seconds"]) == 4
    finally:
        page.server.close()


def test_page_is_built_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PAGE_SECONDS", 3600.0)
    page = Page()
    try:
        first = page.get("/metrics")[1]
        page.now = snapshot(jobs=[], ranks=[])
        assert page.get("/metrics")[1] == first
    finally:
        page.server.close()


def test_address_in_use_is_a_clear_error(page: Page) -> None:
    port = urllib.parse.urlparse(page.base).port
    second = MetricsServer(f"127.0.0.1:{port}", 100, lambda: None, lambda: None)
    with pytest.raises(OSError, match=rf"127.0.0.1:{port}: Address already in use; set address"):
        second.start()
    assert second.url() == ""
    second.close()


def test_garbage_requests(page: Page) -> None:
    port = urllib.parse.urlparse(page.base).port
    for data in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70000, b""):
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            except OSError:
                pass
    assert page.get("/metrics")[0] == 200


def test_promtool_finds_nothing_to_say(page: Page) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is not installed"
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=page.get("/metrics")[1],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    wrong = subprocess.run(
        [promtool, "check", "metrics"],
        input=b"# TYPE stragd_things counter\nstragd_things 1\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert wrong.returncode != 0, "promtool does not check"


def test_a_real_prometheus_scrapes_it(page: Page, tmp_path: Path) -> None:
    with Prometheus(tmp_path, page.base.removeprefix("http://")) as prometheus_server:
        (found,) = prometheus_server.wait('stragd_finding{state="confirmed"}', 1)
        assert found["metric"]["job"] == "llama"
        assert found["metric"]["rank"] == "2"
        joined = prometheus_server.wait(
            "stragd_rank_own_seconds * on (instance, job, rank) group_left (host, class) "
            "stragd_rank_info",
            4,
        )
        assert {entry["metric"]["host"] for entry in joined} == {"node7"}
        page.now = snapshot(ranks=[rank(0)])
        prometheus_server.wait("stragd_rank_own_seconds", 1)
        prometheus_server.wait("stragd_finding", 0)


def test_documentation_is_current() -> None:
    text = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text()
    assert text == metrics(), "run: python -m stragd.docs metrics"


def test_every_family_is_documented_and_on_the_page(page: Page) -> None:
    text = page.get("/metrics")[1].decode()
    for spec in SPECS:
        assert f"# TYPE {spec.name} {spec.kind}\n" in text
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert helped == {spec.name for spec in SPECS}


def test_telemetry_is_served_in_base_units_and_node_and_nics_once(page: Page) -> None:
    gpu = Sample("gpu", "0000:1b:00.0", "H200", 0, 1, {"sm_clock_mhz": 1305.0, "xid_delta": 1.0})
    process = Sample("process", "77", "", 0, 1, {"run_queue_share": 0.25, "swap_bytes": 4096.0})
    nic = Sample("nic", "mlx5_0/1", "ConnectX", 0, 1, {"rate_gbps": 400.0})
    node = Sample("node", "", "", 0, 1, {"pressure_io_share": 0.5})
    ranks = {number: RankTelemetry(number, "a", process, gpu, (nic,), node) for number in (0, 2)}
    page.now = snapshot(readings=readings({int(job()["key"], 16): ranks}))
    found = page.samples()
    two = labels(job="llama", rank=2)
    assert found["stragd_rank_gpu_clock_hertz"][two] == pytest.approx(1.305e9)
    assert found["stragd_rank_run_queue_ratio"][two] == 0.25
    assert found["stragd_rank_swap_bytes"][two] == 4096
    assert found["stragd_nic_speed_bytes_per_second"] == {labels(nic="mlx5_0/1"): 50e9}
    assert found["stragd_node_pressure_ratio"] == {labels(resource="io"): 0.5}
    page.now = snapshot(jobs=[], ranks=[], readings=page.now["readings"])
    found = page.samples()
    assert "stragd_rank_gpu_clock_hertz" not in found, "a job that is gone takes its readings along"
    assert "stragd_node_pressure_ratio" in found


def test_every_quantity_that_is_served_is_one_that_a_reader_gives() -> None:
    known = {"gpu": GPU, "process": PROCESS, "nic": NIC, "node": NODE}
    for family in FAMILIES:
        for name in family.values:
            assert name in known[family.kind], family
