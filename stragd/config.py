"""Configuration: every key with its type, range, default and meaning.

``stragd.config_sources`` reads it from files and environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

DEFAULT_FILE = Path("/etc/stragd/stragd.toml")
ENVIRONMENT_PREFIX = "STRAGD_"


class ConfigError(ValueError):
    """The configuration cannot be used; ``problems`` has one line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _key(
    default: object,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    power_of_two: bool = False,
    address: bool = False,
    path: bool = False,
    optional: bool = False,
    name: bool = False,
    live: bool = False,
) -> Any:
    """One key; ``live`` ones are applied on reload, the others wait for a restart."""
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "choices": choices,
        "power_of_two": power_of_two,
        "address": address,
        "path": path,
        "optional": optional,
        "name": name,
        "live": live,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Probes:
    """eBPF probes on NCCL, RCCL and gloo."""

    enabled: bool = _key(True, "Attach probes at start; `stragctl probes off` is the live switch.")
    attach_method: str = _key(
        "auto",
        "How probes are attached; `auto` takes uprobe_multi where the kernel has it.",
        choices=("auto", "uprobe_multi", "perf"),
    )
    allow_single_step: bool = _key(
        False,
        "Also probe hot functions whose first instruction the kernel must single-step "
        "(about 20 µs instead of 1 µs per call).",
    )
    measure_run_time: bool = _key(
        True,
        "Let the kernel time BPF programs, one second in thirty (all of the machine's); needs "
        "CAP_SYS_ADMIN and is left out without it.",
    )
    ring_bytes: int = _key(
        8 << 20, "Ring of collective events, bytes.", low=1 << 16, high=1 << 28, power_of_two=True
    )
    lifecycle_ring_bytes: int = _key(
        1 << 18,
        "Ring of communicator events (rare, never crowded out), bytes.",
        low=1 << 12,
        high=1 << 24,
        power_of_two=True,
    )


@dataclass(frozen=True)
class Ring:
    """What the profiler plugin inside the jobs is asked to record; `stragctl ring` until then."""

    mode: str = _key(
        "default",
        "`default` leaves it to the plugin (`full`, less on library versions with defects), `full` "
        "records every collective, `progress` only how far each communicator has come, `off` "
        "nothing.",
        choices=("default", "off", "progress", "full"),
        live=True,
    )
    sample: int = _key(
        1,
        "Record one of this many blocks of 4096 collectives. With more than 1 device times are "
        "not used for scoring.",
        low=1,
        high=65535,
        live=True,
    )
    floor: int = _key(
        1,
        "Record no message smaller than this, bytes; 1 is all. With more device times are not "
        "used for scoring.",
        low=1,
        high=1 << 40,
        power_of_two=True,
        live=True,
    )


@dataclass(frozen=True)
class Discovery:
    """Finding training processes and who they are."""

    sweep_seconds: float = _key(
        30.0, "Seconds between full looks through /proc, beside live events.", low=1, high=3600
    )
    max_processes: int = _key(
        4096, "Processes with a collective library watched at once.", low=1, high=65536
    )
    job_id_variables: tuple[str, ...] = _key(
        (),
        "Environment variables that this site sets to one value per job; they come before the "
        "launchers' own. In the environment: names with commas between them.",
    )
    own_network_only: bool = _key(
        False,
        "Watch only processes of the daemon's own network namespace: for several daemons on one "
        "machine.",
    )
    ended_job_seconds: float = _key(
        30.0,
        "Seconds after its last process that a job is kept, so that a restart continues it.",
        low=0,
        high=86400,
        live=True,
    )


@dataclass(frozen=True)
class Windows:
    """A window closes after this many steps or seconds, whichever comes first."""

    steps: int = _key(100, "Steps per window.", low=2, high=100000)
    seconds: float = _key(30.0, "Seconds per window.", low=0.1, high=3600)


@dataclass(frozen=True)
class Scoring:
    """When a rank counts as slow."""

    false_alarms_per_million: float = _key(
        0.01,
        "Wanted false alarms per million windows of healthy ranks; docs/scoring.md says of which.",
        low=1e-6,
        high=1e5,
    )
    min_slowdown: float = _key(
        0.005,
        "Slowdown below which nothing is reported; 0.005 is 0.5 % (at least 3 % on CPU ranks).",
        low=0.001,
        high=1,
    )
    confirm_windows: int = _key(
        2, "Windows that a slow run needs to be confirmed.", low=2, high=100
    )
    clear_windows: int = _key(3, "Least healthy windows that clear a finding.", low=1, high=1000)
    history_windows: int = _key(
        200, "Windows that the baseline of a rank remembers.", low=10, high=100000
    )
    baselines_file: str = _key(
        "/var/lib/stragd/baselines",
        "Where the baselines are kept over a restart of the daemon.",
        path=True,
    )
    baselines_seconds: float = _key(
        60.0,
        "Seconds between two writes of that file: what a crash of the daemon may cost.",
        low=1,
        high=3600,
    )


@dataclass(frozen=True)
class Findings:
    """The list of findings that the daemon keeps."""

    cleared_kept: int = _key(
        100, "Cleared findings kept for `stragctl findings`.", low=0, high=10000, live=True
    )


@dataclass(frozen=True)
class Exchange:
    """Jobs that span nodes; docs/cluster.md."""

    kind: str = _key(
        "local",
        "`local` scores what this node sees, `nats` exchanges windows over NATS, `store` over each "
        "job's own store (c10d's TCPStore).",
        choices=("local", "nats", "store"),
    )
    cluster: str = _key(
        "default", "Name of the cluster; nodes of another one are not seen.", name=True
    )
    node: str = _key("", "Name of this node; empty: its host name.", name=True, optional=True)
    servers: str = _key(
        "", "NATS servers, `nats://host:4222` or `tls://host:4222`, with commas between them."
    )
    store: str = _key(
        "",
        "host:port of the jobs' store; empty: MASTER_ADDR and MASTER_PORT of each job that runs "
        "as the daemon's own user.",
        address=True,
        optional=True,
    )
    tls_ca: str = _key(
        "", "Certificates that the servers are checked with.", path=True, optional=True
    )
    tls_certificate: str = _key("", "This node's own certificate.", path=True, optional=True)
    tls_key: str = _key("", "Its key.", path=True, optional=True)
    credentials_file: str = _key("", "A NATS `.creds` file.", path=True, optional=True)
    user: str = _key("", "A NATS user, where there is no `.creds` file.")
    password_file: str = _key("", "File with the user's password.", path=True, optional=True)
    domain: str = _key("", "JetStream domain, where leaf nodes have one.", name=True, optional=True)
    replicas: int = _key(1, "Servers that keep leases and scores: 3 in a cluster.", low=1, high=5)
    deadline_seconds: float = _key(
        2.0,
        "Longest that a window waits for nodes that are late, beside how far apart they usually "
        "report.",
        low=0.1,
        high=600,
    )
    lease_seconds: float = _key(
        5.0,
        "A scorer that is silent so long is replaced. The same on all nodes.",
        low=1,
        high=600,
    )
    retry_seconds: float = _key(
        2.0, "About the time between two attempts to connect.", low=0.1, high=600
    )


@dataclass(frozen=True)
class Telemetry:
    """What drivers, sysfs and /proc say about the ranks, for the cause of a finding. Read only."""

    enabled: bool = _key(True, "Read telemetry; without it every cause is `unknown`.", live=True)
    seconds: float = _key(
        5.0,
        "Least seconds between two passes; one follows each window, and more while a finding is "
        "open.",
        low=1,
        high=3600,
        live=True,
    )
    host: bool = _key(True, "Read the ranks' processes and the node.", live=True)
    nic: bool = _key(True, "Read network devices and RDMA ports.", live=True)
    nvidia: bool = _key(
        True,
        "Read NVIDIA GPUs; `false` lets go of the driver, so that it can be replaced.",
        live=True,
    )
    amd: bool = _key(True, "Read AMD GPUs.", live=True)


@dataclass(frozen=True)
class Prometheus:
    """The metrics page."""

    enabled: bool = _key(True, "Serve /metrics.", live=True)
    address: str = _key(
        "127.0.0.1:9464",
        "host:port to listen on; `:9464` is every address, port 0 a free one.",
        address=True,
        live=True,
    )
    max_series: int = _key(
        10000,
        "Most series exported; above it whole jobs become `other` and stragd_series_limited is 1.",
        low=100,
        high=10_000_000,
        live=True,
    )


@dataclass(frozen=True)
class Control:
    """The socket that `stragctl` talks to."""

    socket: str = _key("/run/stragd/control.sock", "Absolute path of the socket.", path=True)
    group: str = _key("stragd", "Group whose members may read; it need not exist.")


@dataclass(frozen=True)
class Journal:
    """Log lines and their structured fields."""

    target: str = _key(
        "auto",
        "`auto` is journald when started by systemd, else standard error.",
        choices=("auto", "journald", "stderr"),
        live=True,
    )
    burst: int = _key(
        20, "Entries of one message id written per interval.", low=1, high=10000, live=True
    )
    interval_seconds: float = _key(
        30.0, "Length of that interval, seconds.", low=1, high=3600, live=True
    )


@dataclass(frozen=True)
class Config:
    """The whole configuration; ``files`` are those that were read, in their order."""

    probes: Probes = field(default_factory=Probes)
    ring: Ring = field(default_factory=Ring)
    discovery: Discovery = field(default_factory=Discovery)
    windows: Windows = field(default_factory=Windows)
    scoring: Scoring = field(default_factory=Scoring)
    findings: Findings = field(default_factory=Findings)
    exchange: Exchange = field(default_factory=Exchange)
    telemetry: Telemetry = field(default_factory=Telemetry)
    prometheus: Prometheus = field(default_factory=Prometheus)
    control: Control = field(default_factory=Control)
    journal: Journal = field(default_factory=Journal)
    files: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where the value of ``section.key`` comes from: "default", a file, or a variable."""
        return self.origins.get(key, "default")

    def get(self, key: str) -> object:
        """Value of ``section.key``."""
        section, name = key.split(".")
        return getattr(getattr(self, section), name)

    def engine(self) -> dict[str, Any]:
        """The native Engine's part."""
        return {
            "ring_bytes": self.probes.ring_bytes,
            "lifecycle_ring_bytes": self.probes.lifecycle_ring_bytes,
            "allow_single_step": self.probes.allow_single_step,
            "attach_method": self.probes.attach_method,
            "measure_run_time": self.probes.measure_run_time,
            "sweep_seconds": self.discovery.sweep_seconds,
            "max_processes": self.discovery.max_processes,
            "window_steps": self.windows.steps,
            "window_seconds": self.windows.seconds,
        }

    def scorer(self) -> dict[str, Any]:
        """The native Scorer's part."""
        settings = dataclasses.asdict(self.scoring)
        del settings["baselines_file"], settings["baselines_seconds"]
        return settings

    def changed(self, other: Config) -> tuple[list[str], list[str]]:
        """(keys that differ in ``other``, those of them that wait for a restart)."""
        keys = [key for key in KEYS if self.get(key) != other.get(key)]
        return keys, [key for key in keys if not KEYS[key].metadata["live"]]

    def adopt(self, new: Config) -> Config:
        """This configuration with the live keys of ``new``, as a reload applies them."""
        sections: dict[str, Any] = {}
        origins = dict(self.origins)
        for section in SECTIONS:
            own = {}
            for key in KEYS:
                if key.startswith(section + ".") and KEYS[key].metadata["live"]:
                    own[key.partition(".")[2]] = new.get(key)
                    origins[key] = new.origin(key)
            sections[section] = dataclasses.replace(getattr(self, section), **own)
        return Config(**sections, files=new.files, origins=origins)


SECTIONS: dict[str, type[Any]] = {
    f.name: cast("type[Any]", f.default_factory)
    for f in dataclasses.fields(Config)
    if f.name not in ("files", "origins")
}
KEYS: dict[str, dataclasses.Field[Any]] = {
    f"{section}.{f.name}": f for section, cls in SECTIONS.items() for f in dataclasses.fields(cls)
}


def environment_name(key: str) -> str:
    """``prometheus.address`` -> ``STRAGD_PROMETHEUS_ADDRESS``."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` (IPv6 in brackets) -> (host, port). Raises ValueError with the reason."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be host:port with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 host needs brackets, as in [::1]:9464")
    return host, int(port)


def allowed(key: str) -> str:
    """What a key takes, in words: "true or false", "a whole number from 2 to 100000"."""
    f = KEYS[key]
    meta = f.metadata
    if meta["choices"]:
        return "one of " + ", ".join(f'"{choice}"' for choice in meta["choices"])
    if meta["address"]:
        return 'a string "host:port"' + (', or ""' if meta["optional"] else "")
    if meta["path"]:
        return "an absolute path" + (', or ""' if meta["optional"] else "")
    if meta["name"]:
        return "letters, digits, - and _" + (', or ""' if meta["optional"] else "")
    if isinstance(f.default, tuple):
        return "an array of names (letters, digits, _)"
    if isinstance(f.default, bool):
        return "true or false"
    if isinstance(f.default, str):
        return "a string"
    words = "a whole number" if isinstance(f.default, int) else "a number"
    if meta["power_of_two"]:
        words = "a power of two"
    return f"{words} from {meta['low']:.15g} to {meta['high']:.15g}"
