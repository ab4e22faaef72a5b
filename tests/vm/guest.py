"""The steps of the acceptance test, inside the virtual machine, as root, at each boot.

An operator's day with the package: install, enable, name a slow rank, kill, fill the disk, upgrade,
reboot, remove, purge. Writes one JSON line per step to a virtio port; ends the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import subprocess
import time
import traceback
import urllib.request
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

GIVEN = Path("/given")
MEMORY = Path("/var/lib/acceptance.json")  # what the boot before this one left
PORT = "/dev/virtio-ports/acceptance"
LIMIT = 600.0  # seconds; for what never comes, not for a pace

USER, RANKS, SLOW = "researcher", 4, 2
FAULT = f"rank={SLOW},phase=backward,percent=20,from_step=60"
# docs/install.md promises no more.
MOST_EXPOSURE = 4.0

# MESSAGE_ID of systemd/stragd.catalog.
CONFIRMED = "5c8a61bfa908495f879d6564e5133309"
JOB_FOUND = "ec3ad68ef78f4f58ba8cba982100cd50"
STARTED = "c97442e234b94c52bd1309d6ce831105"
RELOADED = "6fe54c6e290f4fe88e2039158f6baa17"

SITE = Path("/etc/stragd/stragd.toml.d/site.toml")
ENABLED = "/etc/systemd/system/multi-user.target.wants/stragd.service"
STATE = Path("/var/lib/stragd")
# What dpkg, systemd and the kernel leave of any package and of any day.
OTHERS = re.compile(
    r"/(proc|sys|dev|run|tmp|given|home|root|lost\+found|var/(log|cache|tmp|backups|lib/(dpkg|apt))"
    r"|var/lib/systemd|var/lib/acceptance.json|etc/(group|gshadow|passwd|shadow|subuid|subgid)-?"
    r"|etc/\.pwd\.lock|etc/ld\.so\.cache)(/|$)"
)
T = TypeVar("T")


def report(**values: Any) -> None:
    """One line for the host."""
    with open(PORT, "w") as port:
        port.write(json.dumps(values) + "\n")


def run(*command: str | Path, status: int = 0) -> str:
    """Output of a command that must end with ``status``."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
        check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                          "DEBIAN_FRONTEND": "noninteractive", "TERM": "dumb"},
    )  # fmt: skip
    assert done.returncode == status, f"{command} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def wait_for(what: str, check: Callable[[], T | None]) -> T:
    """Call ``check`` until it gives something true; say so when that takes long."""
    began = said = time.monotonic()
    while not (value := check()):
        now = time.monotonic()
        assert now - began < LIMIT, f"waited {LIMIT:.0f} s in vain for {what}"
        if now - said >= 60:
            said = now
            report(waiting=f"{what}; {picture()}", seconds=round(now - began))
        time.sleep(1)
    return value


def picture() -> str:
    """What stragd sees, in a line."""
    shown = ("rank", "steps", "own_ms", "source", "state")
    ranks = [[rank[name] for name in shown] for rank in ask("top").get("ranks", [])]
    return f"stragd {prop('ActiveState')}, ranks ({', '.join(shown)}): {ranks}"


def prop(name: str, unit: str = "stragd") -> str:
    """A property of a unit."""
    return run("systemctl", "show", "--property", name, "--value", unit).strip()


def microseconds(name: str) -> int:
    """A property of the service that is a time since boot."""
    return int(prop(name))


def ask(*arguments: str) -> dict[str, Any]:
    """What stragctl says with --json; nothing while no daemon answers."""
    done = subprocess.run(
        ["stragctl", *arguments, "--json"], capture_output=True, text=True, timeout=LIMIT,
        check=False,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return answer


def entries(message_id: str, *more: str) -> list[dict[str, Any]]:
    """Entries of the service in the journal."""
    command = ["journalctl", "--unit=stragd", "--output=json", "--no-pager", "--boot", *more]
    lines = run(*command, f"MESSAGE_ID={message_id}").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


class Job:
    """The training of an ordinary user, with one rank that becomes slow."""

    record = Path(f"/home/{USER}/record.jsonl")

    def start(self) -> None:
        trainer = GIVEN / "tests/cpunccl/trainer.py"
        run("systemd-run", "--unit=training", f"--uid={USER}", f"--gid={USER}",
            "--property=WorkingDirectory=~", "--setenv=CPUNCCL_POLL_US=20000",
            "/usr/bin/python3", trainer, "--pattern=ddp", "--ranks", str(RANKS),
            "--steps=1000000", "--scale=20", "--slow", FAULT, "--record", self.record)  # fmt: skip
        self.pids = wait_for("ranks", lambda: self._all("started"))

    def _all(self, event: str) -> list[int]:
        self.check()
        found = [e for e in self.events() if e["event"] == event]
        return sorted(e.get("pid", 0) for e in found) if len(found) == RANKS else []

    def events(self) -> list[dict[str, Any]]:
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def check(self) -> None:
        """It runs as on the first day."""
        state = prop("ActiveState", "training")
        assert state == "active", f"the job is {state}: " + run("journalctl", "-u", "training")
        for pid in getattr(self, "pids", []):
            assert Path(f"/proc/{pid}").exists(), f"process {pid} of the job has ended"


def named() -> dict[str, Any] | None:
    """The confirmed finding about the slow rank; nobody else may have one."""
    found = [f for f in ask("findings").get("findings", []) if f["state"] == "confirmed"]
    for finding in found:
        who = finding["subject"].get("rank")
        assert (finding["kind"], who) == ("straggler", SLOW), f"a wrong finding: {finding}"
    return found[0] if found else None


def same(finding: dict[str, Any]) -> bool:
    now = named()
    return now is not None and now["id"] == finding["id"]


def saved(finding: dict[str, Any]) -> bool:
    """It is in the file from which the next daemon takes it."""
    file = STATE / "baselines"
    return file.exists() and finding["id"].encode() in file.read_bytes()


def everything() -> dict[str, list[str]]:
    """Files, users and groups of the machine."""
    files = []
    for folder, folders, names in os.walk("/"):
        folders[:] = [d for d in folders if not OTHERS.match(os.path.join(folder, d))]
        files += [os.path.join(folder, name) for name in [*folders, *names]]
    return {
        "files": sorted(f for f in files if not OTHERS.match(f)),
        "users": run("getent", "passwd").splitlines() + run("getent", "group").splitlines(),
    }


class Steps:
    """In the order of their definition; those after ``reboots`` run after a reboot."""

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        self.job = Job()

    def boots(self) -> dict[str, Any]:
        wait_for("the end of booting", lambda: "finished in" in self._analyze())
        assert run("systemctl", "list-units", "--failed", "--no-legend").strip() == ""
        self.memory["before"] = everything()
        return {"kernel": os.uname().release, "systemd": self._analyze().splitlines()[0]}

    @staticmethod
    def _analyze() -> str:
        done = subprocess.run(["systemd-analyze"], capture_output=True, text=True, check=False)
        return done.stdout

    def installs_and_starts_nothing(self) -> dict[str, Any]:
        said = run("apt", "install", "-y", self._package("first"))
        assert prop("ActiveState") == "inactive"
        assert run("systemctl", "is-enabled", "stragd", status=1).strip() == "disabled"
        assert "stragd" not in [p.name for p in self._programs()]
        assert not list(Path("/etc").glob("*ccl.conf")), said
        return {}

    @staticmethod
    def _package(which: str) -> Path:
        (file,) = (GIVEN / which).glob("*.deb")
        return file

    @staticmethod
    def _programs() -> list[Path]:
        """First argument that is a path, of each process."""
        lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline")]
        return [Path(os.fsdecode(a)) for line in lines for a in line.split(b"\0") if b"/" in a]

    def is_enabled(self) -> dict[str, Any]:
        run("systemctl", "enable", "--now", "stragd")
        ready = microseconds("ActiveEnterTimestampMonotonic")
        began = microseconds("ExecMainStartTimestampMonotonic")
        return {"ready_seconds": (ready - began) / 1e6}

    def names_the_slow_rank(self) -> dict[str, Any]:
        run("stragctl", "ring", "install")
        self.job.start()
        found = wait_for("a slow rank to be named", self._named_in_a_running_job)
        self.memory["finding"] = found
        (entry,) = entries(CONFIRMED)
        assert entry["STRAGD_RANK"] == str(SLOW), entry
        assert entry["STRAGD_FINDING"] == found["id"], entry
        began = min(self._unix(e["time"]) for e in self.job.events() if e["event"] == "started")
        slow = min(self._unix(e["time"]) for e in self.job.events() if e["event"] == "injected")
        watched = int(entries(JOB_FOUND)[0]["__REALTIME_TIMESTAMP"]) / 1e6
        confirmed = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        return {
            "job_watched_seconds": watched - began,
            "slow_to_named_seconds": confirmed - slow,
            "slowdown": found["slowdown"],
        }

    def _named_in_a_running_job(self) -> dict[str, Any] | None:
        self.job.check()
        return named()

    @staticmethod
    def _unix(text: str) -> float:
        return datetime.fromisoformat(text).timestamp()

    def shows_it_everywhere(self) -> dict[str, Any]:
        top = run("stragctl", "top")
        assert re.search(rf"(?m)^ *! +{SLOW} .* confirmed", top), top
        assert f"straggler: rank {SLOW}" in top, top
        with urllib.request.urlopen("http://127.0.0.1:9464/metrics", timeout=LIMIT) as page:
            metrics = page.read().decode()
        lines = [line for line in metrics.splitlines() if line.startswith("stragd_finding")]
        assert any(f'rank="{SLOW}"' in line for line in lines), lines
        explained = run("journalctl", "-x", "-u", "stragd", "--no-pager", f"MESSAGE_ID={CONFIRMED}")
        assert "waits for a slow part" in explained, explained
        as_user = ["runuser", "-u", USER, "--", "stragctl", "findings"]
        refused = run(*as_user, status=1)
        assert "stragd" in refused, refused
        run("usermod", "--append", "--groups", "stragd", USER)
        assert f"rank {SLOW}" in run(*as_user)
        run("gpasswd", "--delete", USER, "stragd")
        status = ask("status")
        return {"probes": status["health"]["probes_attached"], "pid": status["pid"]}

    def is_little_exposed(self) -> dict[str, Any]:
        said = run("systemd-analyze", "security", "--no-pager", "stragd")
        (exposure,) = re.findall(r"Overall exposure level for stragd.service: (\S+)", said)
        assert float(exposure) <= MOST_EXPOSURE, said
        return {"exposure": float(exposure), "capabilities": prop("CapabilityBoundingSet")}

    def survives_a_kill(self) -> dict[str, Any]:
        """And takes a setting of the site on its return, which makes the next steps short."""
        SITE.parent.mkdir(parents=True, exist_ok=True)
        SITE.write_text("[scoring]\nbaselines_seconds = 5\n")
        wait_for("the finding in the file", lambda: saved(self.memory["finding"]))
        before, killed = prop("MainPID"), time.monotonic()
        run("systemctl", "kill", "--signal=KILL", "stragd")
        wait_for("its return", lambda: prop("MainPID") not in ("0", before))
        wait_for("its answer", lambda: ask("status"))
        back = time.monotonic() - killed
        figures = self._finding_again("a kill")
        assert prop("NRestarts") == "1"
        return {"back_seconds": back, "finding_back_seconds": time.monotonic() - killed, **figures}

    def _finding_again(self, what: str) -> dict[str, Any]:
        """The next daemon names the rank too, under its id if that is in the last state written."""
        before = self.memory["finding"]["id"]
        self.memory["finding"] = wait_for(f"the finding after {what}", named)
        return {"same_finding": int(self.memory["finding"]["id"] == before)}

    def survives_running_out_of_memory(self) -> dict[str, Any]:
        """The machine's: before any job the kernel kills stragd (OOMScoreAdjust)."""
        before, killed = prop("MainPID"), time.monotonic()
        Path("/proc/sysrq-trigger").write_text("f")  # as if nothing were left
        wait_for("its return", lambda: prop("MainPID") not in ("0", before))
        wait_for("its answer", lambda: ask("status"))
        assert "oom-kill" in run("journalctl", "--unit=stragd", "--boot", "--no-pager")
        figures = self._finding_again("it")
        self.job.check()
        return {"finding_back_seconds": time.monotonic() - killed, **figures}

    def survives_a_step_of_the_clock(self) -> dict[str, Any]:
        """As after a suspend, and back again."""
        pid = prop("MainPID")
        for hours in (10, -10):
            seen = self._steps()
            run("date", "--set", f"{hours:+d} hours")
            wait_for("steps after it", partial(self._stepped_beyond, seen + 10))
            assert same(self.memory["finding"])
            (finding,) = ask("findings")["findings"]
            assert finding["since"] == self.memory["finding"]["since"], finding
        assert prop("MainPID") == pid
        return {}

    def _stepped_beyond(self, steps: int) -> bool:
        return self._steps() > steps

    @staticmethod
    def _steps() -> int:
        return max((rank["steps"] for rank in ask("top").get("ranks", [])), default=0)

    def survives_a_restart_of_journald(self) -> dict[str, Any]:
        pid, before = prop("MainPID"), len(entries(RELOADED))
        run("systemctl", "restart", "systemd-journald")
        run("systemctl", "reload", "stragd")
        wait_for("an entry after journald's restart", lambda: len(entries(RELOADED)) > before)
        assert prop("MainPID") == pid
        return {}

    def survives_a_full_disk(self) -> dict[str, Any]:
        pid, file, filler = prop("MainPID"), STATE / "baselines", Path("/var/filler")
        try:
            with filler.open("wb", buffering=0) as full:
                disk = os.statvfs("/")
                os.posix_fallocate(full.fileno(), 0, disk.f_bavail * disk.f_frsize - (8 << 20))
                full.seek(0, os.SEEK_END)

                def limited() -> bool:
                    with contextlib.suppress(OSError):  # also what others gave back meanwhile
                        while True:
                            full.write(bytes(4096))
                    limits = ask("status").get("health", {}).get("degraded", [])
                    return any("No space left" in limit for limit in limits)

                wait_for("the full disk to be seen", limited)
                assert same(self.memory["finding"])
        finally:
            filler.unlink()
        written = file.stat().st_mtime
        wait_for("the file, disk free", lambda: file.stat().st_mtime > written)
        assert prop("MainPID") == pid
        return {}

    def upgrades_under_the_job(self) -> dict[str, Any]:
        with open("/etc/stragd/stragd.toml", "a") as file:
            file.write("# of this site\n")
        before = prop("MainPID")
        run("apt", "install", "-y", self._package("later"))
        installed = run("dpkg-query", "--show", "--showformat=${Version}", "stragd")
        assert installed in self._package("later").name, installed
        assert prop("ActiveState") == "active"
        assert prop("MainPID") != before, "the service was not restarted"
        assert Path("/etc/stragd/stragd.toml").read_text().endswith("# of this site\n")
        assert SITE.exists()
        figures = self._finding_again("the upgrade")
        self.job.check()
        return {"package": installed, **figures}

    def reboots(self) -> dict[str, Any]:
        return {}

    def comes_up_by_itself(self) -> dict[str, Any]:
        assert prop("ActiveState") == "active"
        assert run("systemctl", "is-enabled", "stragd").strip() == "enabled"
        wait_for("its answer", lambda: ask("status"))
        assert len(entries(STARTED)) == 1
        assert saved(self.memory["finding"])
        assert run("systemctl", "list-units", "--failed", "--no-legend").strip() == ""
        return {"systemd": self._analyze().splitlines()[0]}

    def is_removed(self) -> dict[str, Any]:
        run("apt", "remove", "-y", "stragd")
        assert prop("ActiveState") == "inactive"
        assert prop("LoadState") == "not-found", prop("LoadState")
        left = self._left()
        # That the service is enabled is configuration too: installed again it would start at boot.
        kept = ("/etc/stragd", "/var/lib/stragd", ENABLED)
        assert all(f.startswith(kept) for f in left["files"]), left
        assert SITE.exists()
        assert (STATE / "baselines").exists()
        return {}

    def is_purged(self) -> dict[str, Any]:
        run("apt", "purge", "-y", "stragd")
        left = self._left()
        assert not any(left.values()), f"purge left {left}"
        assert not list(Path("/var/lib/systemd").rglob("*stragd*"))
        assert "stragd" not in run("systemctl", "list-units", "--all", "--no-legend")
        assert USER in [user.pw_name for user in pwd.getpwall()]
        return {}

    def _left(self) -> dict[str, list[str]]:
        now, before = everything(), self.memory["before"]
        return {what: sorted(set(now[what]) ^ set(before[what])) for what in now}


def main() -> None:
    memory = json.loads(MEMORY.read_text()) if MEMORY.exists() else {"done": []}
    steps = Steps(memory)
    names = [name for name in vars(Steps) if not name.startswith("_")]
    try:
        for name in names:
            if name in memory["done"]:
                continue
            began = time.monotonic()
            values = getattr(steps, name)()
            memory["done"].append(name)
            report(step=name, seconds=round(time.monotonic() - began, 1), **values)
            if name == "reboots":
                MEMORY.write_text(json.dumps(memory))
                run("systemctl", "reboot")
                return
        report(finished=True)
    except BaseException:
        reason = traceback.format_exc()
        look = "journalctl --boot --no-pager -n 60; stragctl doctor; stragctl top"
        seen = subprocess.run(["sh", "-c", look], capture_output=True, text=True, check=False)
        report(failed=reason, seen=seen.stdout)
    run("systemctl", "poweroff")


if __name__ == "__main__":
    main()
