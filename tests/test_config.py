"""Configuration: sources, order, and an error for every wrong thing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stragd.config import KEYS, ConfigError, allowed, environment_name, split_address
from stragd.config_sources import load
from stragd.docs import configuration


def problems(path: Path | None = None, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, environment or {})
    return caught.value.problems


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "stragd.toml"
    path.write_text(text)
    return path


def test_defaults_pass_their_own_checks(tmp_path: Path) -> None:
    config = load(write(tmp_path, ""), {})
    environment = {environment_name(key): str(config.get(key)) for key in KEYS}
    environment["STRAGD_DISCOVERY_JOB_ID_VARIABLES"] = ""
    again = load(write(tmp_path, ""), environment)
    for key in KEYS:
        assert again.get(key) == config.get(key) == KEYS[key].default
        assert config.origin(key) == "default"
        assert again.origin(key) == f"environment {environment_name(key)}"


def test_later_sources_win_and_origin_says_which(tmp_path: Path) -> None:
    path = write(tmp_path, "[windows]\nsteps = 10\nseconds = 5\n[probes]\nenabled = false\n")
    drop_ins = tmp_path / "stragd.toml.d"
    drop_ins.mkdir()
    (drop_ins / "20-b.toml").write_text("[windows]\nsteps = 30\n")
    (drop_ins / "10-a.toml").write_text("[windows]\nsteps = 20\nseconds = 6.5\n")
    (drop_ins / "ignored.conf").write_text("not toml")
    config = load(path, {"STRAGD_PROBES_ENABLED": "true"})
    assert config.windows.steps == 30
    assert config.windows.seconds == 6.5
    assert config.probes.enabled is True
    assert config.origin("windows.steps") == str(drop_ins / "20-b.toml")
    assert config.origin("windows.seconds") == str(drop_ins / "10-a.toml")
    assert config.origin("probes.enabled") == "environment STRAGD_PROBES_ENABLED"
    assert config.files == tuple(map(str, (path, *sorted(drop_ins.glob("*.toml")))))
    assert config.engine()["window_steps"] == 30


def test_names(tmp_path: Path) -> None:
    path = write(tmp_path, "[discovery]\njob_id_variables = ['SITE_JOB']\n")
    assert load(path, {}).discovery.job_id_variables == ("SITE_JOB",)
    environment = {"STRAGD_DISCOVERY_JOB_ID_VARIABLES": "A, B_2"}
    assert load(path, environment).discovery.job_id_variables == ("A", "B_2")


def test_unknown_names_get_the_nearest_known_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[window]\nsteps = 1\n[probes]\nenabeld = true\n")
    section, key = problems(path)
    assert str(path) in section
    assert "[window]" in section
    assert '"windows"' in section
    assert str(path) in key
    assert '"enabeld"' in key
    assert '"enabled"' in key
    (variable,) = problems(write(tmp_path, ""), {"STRAGD_PROMETHEUS_ADRESS": "x"})
    assert "STRAGD_PROMETHEUS_ADDRESS" in variable
    (section_typo,) = problems(write(tmp_path, ""), {"STRAGD_PROMETEUS_ADDRESS": "x"})
    assert "STRAGD_PROMETHEUS_ADDRESS" in section_typo
    assert load(write(tmp_path, ""), {"STRAGD_SOMETHING": "of others"}).files


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[windows]\nsteps = true", "windows.steps", "true/false"),
        ("[windows]\nsteps = 1.5", "windows.steps", "a number"),
        ("[windows]\nsteps = 1", "windows.steps", "is 1, out of range"),
        ("[windows]\nseconds = nan", "windows.seconds", "out of range"),
        ("[windows]\nseconds = inf", "windows.seconds", "out of range"),
        (f"[windows]\nseconds = {10**30}", "windows.seconds", "a whole number"),
        ("[windows]\nseconds = '5'", "windows.seconds", "a string"),
        ("[probes]\nenabled = 1", "probes.enabled", "a whole number"),
        ("[probes]\nring_bytes = 65537", "probes.ring_bytes", "not a power of two"),
        ("[probes]\nattach_method = 'ptrace'", "probes.attach_method", '"ptrace"'),
        ("[prometheus]\naddress = 'localhost'", "prometheus.address", "host:port"),
        ("[prometheus]\naddress = '::1:99'", "prometheus.address", "brackets"),
        ("[prometheus]\naddress = ':70000'", "prometheus.address", "65535"),
        ("[control]\nsocket = 'run/x'", "control.socket", "not absolute"),
        ('[control]\ngroup = "a\\u0000b"', "control.group", "zero byte"),
        ("[control]\ngroup = ['a']", "control.group", "an array"),
        ("[discovery]\njob_id_variables = 'A'", "discovery.job_id_variables", "a string"),
        ("[discovery]\njob_id_variables = ['A=B']", "discovery.job_id_variables", '"A=B"'),
        ("[discovery]\njob_id_variables = [[1]]", "discovery.job_id_variables", '"[1]"'),
        ("[journal]\ntarget = 2026-01-01", "journal.target", "a date"),
    ],
)
def test_bad_values_name_file_key_reason_and_allowed(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    path = write(tmp_path, text)
    (problem,) = problems(path)
    assert problem.startswith(f"{path}: {key} ")
    assert reason in problem
    assert problem.endswith(f"allowed: {allowed(key)}")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    assert "cannot be read" in problems(path)[0]
    for data in (b"[[[", b"\xff\xfe", b"a = " + b"[" * 5000, b"#" * (2 << 20), b"windows = 3"):
        path.write_bytes(data)
        (problem,) = problems(path)
        assert problem.startswith(f"{path}: ")
        assert len(problem) < 300
        assert "\n" not in problem
    assert "cannot be read" in problems(tmp_path)[0]


def test_every_problem_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "[windows]\nsteps = 0\nsecond = 1\n[nonsense]\n")
    assert len(problems(path, {"STRAGD_WINDOWS_SECONDS": "many"})) == 4


def test_addresses() -> None:
    assert split_address("127.0.0.1:9464") == ("127.0.0.1", 9464)
    assert split_address("[::1]:0") == ("::1", 0)
    assert split_address(":9464") == ("", 9464)
    for wrong in ("", "9464", "host:", "host:-1", "host:٣"):
        with pytest.raises(ValueError, match="must be|brackets"):
            split_address(wrong)


def test_reload_takes_live_keys_only(tmp_path: Path) -> None:
    old = load(write(tmp_path, "[windows]\nsteps = 50\n"), {})
    path = write(tmp_path, "[windows]\nsteps = 60\n[prometheus]\nmax_series = 500\n")
    new = load(path, {})
    assert old.changed(new) == (["windows.steps", "prometheus.max_series"], ["windows.steps"])
    adopted = old.adopt(new)
    assert (adopted.windows.steps, adopted.prometheus.max_series) == (50, 500)
    assert adopted.origin("prometheus.max_series") == str(path)


def test_check_config_command(tmp_path: Path) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stragd.daemon", "--check-config", "--config"]
        return subprocess.run(
            [*command, str(write(tmp_path, text))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    good = run("[windows]\nsteps = 10\n")
    assert (good.returncode, good.stdout, good.stderr) == (0, "ok\n", "")
    bad = run("[windows]\nsteps = 0\nx = 1\n")
    assert bad.returncode == 1
    assert bad.stdout == ""
    assert len(bad.stderr.splitlines()) == 2
    assert "Traceback" not in bad.stderr


def test_documentation_is_current() -> None:
    page = Path(__file__).parent.parent / "docs" / "configuration.md"
    assert page.read_text() == configuration(), "run: python -m stragd.docs configuration"
