"""The alerting rules: Prometheus' own tool runs their tests, and they name metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stragd.outputs.metrics import SPECS
from tests.harness import ROOT

GRAFANA = ROOT / "grafana"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    binary = shutil.which("promtool")
    assert binary, "promtool is not installed"
    command = [binary, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_rules_and_scrape_configuration_are_valid() -> None:
    done = promtool("check", "config", GRAFANA / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 rules found" in done.stdout


def test_the_rules_fire_when_and_only_when_they_shall() -> None:
    done = promtool("test", "rules", GRAFANA / "alerts_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('state="confirmed", kind=~"straggler|intermittent"', 'kind=~"straggler|intermittent"'),
        ("max by (job, rank, kind)", "max by (job, rank, kind, instance)"),
        ('kind="job-wide"', 'kind="network"'),
        ('up{job="stragd"} == 0', 'up{job="stragd"} == 1'),
        ("increase(stragd_events_lost_total[10m])", "stragd_events_lost_total"),
        ('{collector=~"telemetry_.*"}', ""),
        ("humanizePercentage", "humanize"),
    ],
)
def test_a_wrong_rule_does_not_pass_its_test(right: str, wrong: str, tmp_path: Path) -> None:
    rules = (GRAFANA / "alerts.yml").read_text()
    assert right in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(right, wrong))
    shutil.copy(GRAFANA / "alerts_test.yml", tmp_path)
    assert promtool("test", "rules", tmp_path / "alerts_test.yml").returncode != 0


def test_every_metric_of_the_rules_exists_with_its_labels() -> None:
    specs = {spec.name: spec for spec in SPECS}
    text = re.sub(r"(?m)^ *#.*$", "", (GRAFANA / "alerts.yml").read_text())
    named = re.findall(r"\b(stragd_\w+)(?:\{([^}]*)\})?", text)
    assert len(named) >= 8
    for name, matchers in named:
        used = re.findall(r"(\w+)=", matchers)
        assert set(used) <= set(specs[name].labels), name
