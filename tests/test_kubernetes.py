"""The DaemonSet: valid for Kubernetes, and with no more rights than the service of systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stragd import __version__
from stragd.cli import ring_install
from stragd.config_sources import load
from tests.harness import ROOT, SCRIPTS

MANIFEST = ROOT / "packaging/kubernetes/daemonset.yaml"
UNIT = (ROOT / "systemd/stragd.service").read_text()
# The first with a field for AppArmor, and the newest that the validator knows.
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def pod() -> dict[str, Any]:
    (one,) = (d for d in documents() if d["kind"] == "DaemonSet")
    return dict(one["spec"]["template"]["spec"])


def setting(name: str) -> str:
    found = re.search(rf"^{name}=(.+)$", UNIT, re.M)
    assert found
    return found.group(1)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_valid(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_check_can_fail() -> None:
    (_, wrong) = documents()
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_daemon_has_the_rights_of_the_service_and_no_others() -> None:
    unit = {name.removeprefix("CAP_") for name in setting("CapabilityBoundingSet").split()}
    (daemon,) = pod()["containers"]
    assert set(daemon["securityContext"]["capabilities"]["add"]) == unit
    (ring,) = pod()["initContainers"]
    assert "add" not in ring["securityContext"]["capabilities"]
    for one in (daemon, ring):
        rights = one["securityContext"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert "privileged" not in rights
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod()["automountServiceAccountToken"] is False


def test_it_sees_the_jobs_within_the_limits_of_the_service() -> None:
    assert pod()["hostPID"] is True
    assert pod()["hostNetwork"] is True
    (daemon,) = pod()["containers"]
    limits = daemon["resources"]["limits"]
    assert limits["memory"] == setting("MemoryMax") + "i"
    assert float(limits["cpu"]) == float(setting("CPUQuota").rstrip("%")) / 100
    assert pod()["terminationGracePeriodSeconds"] == int(setting("TimeoutStopSec"))
    assert {t["key"] for t in pod()["tolerations"]} == {"nvidia.com/gpu", "amd.com/gpu"}


def test_images_have_this_version() -> None:
    images = [c["image"] for c in pod()["initContainers"] + pod()["containers"]]
    assert {image.partition(":")[2] for image in images} == {__version__}


def test_every_path_that_is_written_is_a_mount_and_every_mount_a_volume() -> None:
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    used = set()
    for container in pod()["initContainers"] + pod()["containers"]:
        used |= {mount["name"] for mount in container["volumeMounts"]}
    assert used == set(volumes)
    hosts = {v["hostPath"]["path"] for v in volumes.values() if "hostPath" in v}
    assert hosts == {"/usr/lib/stragd", "/etc/cdi", "/var/lib/stragd"}
    (daemon,) = pod()["containers"]
    mounts = {mount["mountPath"] for mount in daemon["volumeMounts"]}
    defaults = load(None, {})
    for written in (defaults.control.socket, defaults.scoring.baselines_file):
        assert str(Path(written).parent) in mounts


def test_the_environment_is_a_configuration() -> None:
    (daemon,) = pod()["containers"]
    ours = {e["name"]: e["value"] for e in daemon["env"] if e["name"].startswith("STRAGD_")}
    given = {name: value.replace("$(NODE_ADDRESS)", "10.0.0.7") for name, value in ours.items()}
    address = load(None, given).prometheus.address
    host, _, port = address.rpartition(":")
    assert host == "10.0.0.7"
    assert daemon["ports"][0]["containerPort"] == int(port)


def test_the_init_container_puts_plugin_and_device_on_the_node(tmp_path: Path, root: None) -> None:
    """Its command without any capability, with other folders for the image's and the node's."""
    image, host = tmp_path / "image", tmp_path / "host"
    for folder in (image, host / "usr/lib/stragd", host / "etc/cdi"):
        folder.mkdir(parents=True)
    name = Path(ring_install.PLUGIN).name
    shutil.copy(ROOT / "target/ncclring" / name, image)
    (ring,) = pod()["initContainers"]
    *shell, script = ring["command"]
    script = script.replace("from=/usr/lib/stragd ", f"from={image} ").replace("/host", str(host))
    bare = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]
    for _ in range(2):  # again after an upgrade
        done = subprocess.run(
            [*bare, *shell, script], capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": f"{SCRIPTS}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (edits,) = json.loads((host / ring_install.CDI_FILE).read_text())["devices"]
    assert edits["containerEdits"]["mounts"][0]["hostPath"] == ring_install.PLUGIN
    assert (host / ring_install.PLUGIN[1:]).read_bytes() == (image / name).read_bytes()
    assert os.listdir(host / "usr/lib/stragd") == [name]
