"""Telemetry of the ranks' GPUs, processes, NICs and node as metric families in base units.

What a rank is held against in a diagnosis is served here too, so that a dashboard shows it beside
the peers'. Only the quantities that people look at; `stragctl findings` names the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from stragd.finding import job_key
from stragd.outputs.snapshot import Reading
from stragd.telemetry.sample import RankTelemetry, Sample, SubjectKind

_RANK = ("job", "rank")


class Family(NamedTuple):
    """One family of gauges and where its values come from."""

    name: str
    kind: SubjectKind
    label: str  # of its own beside job and rank, "" where it has none
    factor: float  # from the sample's unit to the family's
    values: Mapping[str, str]  # name in the sample -> value of the label
    help: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names: a rank's for GPU and process, the NIC's for a NIC."""
        own = (self.label,) if self.label else ()
        return (*_RANK, *own) if self.kind in ("gpu", "process") else own


_MHZ, _GBIT = 1e6, 1e9 / 8
FAMILIES: tuple[Family, ...] = (
    Family(
        "stragd_rank_gpu_clock_hertz", "gpu", "", _MHZ, {"sm_clock_mhz": ""},
        "Multiprocessor clock of the rank's GPU when it was last read.",
    ),
    Family(
        "stragd_rank_gpu_temperature_celsius", "gpu", "", 1.0, {"temperature_c": ""},
        "Temperature of the rank's GPU.",
    ),
    Family(
        "stragd_rank_gpu_power_watts", "gpu", "", 1.0, {"power_w": ""},
        "Power that the rank's GPU draws.",
    ),
    Family(
        "stragd_rank_gpu_power_limit_watts", "gpu", "", 1.0, {"power_limit_w": ""},
        "Power limit in force on the rank's GPU.",
    ),
    Family(
        "stragd_rank_gpu_sm_active_ratio", "gpu", "", 1.0, {"sm_active_share": ""},
        "Share of the multiprocessors that were busy; who waits for others keeps few busy.",
    ),
    Family(
        "stragd_rank_gpu_throttled_ratio", "gpu", "reason", 1.0,
        {
            "sw_power_cap_share": "power-cap", "power_brake_share": "power-brake",
            "sw_thermal_share": "sw-thermal", "hw_thermal_share": "hw-thermal",
            "board_limit_share": "board-limit", "sync_boost_share": "sync-boost",
        },
        "Share of the time in which something held the clocks of the rank's GPU down, by reason.",
    ),
    Family(
        "stragd_rank_cpu_ratio", "process", "", 1.0, {"cpu_share": ""},
        "CPU time of all threads of the rank's process over time; 2.5 is two CPUs and a half.",
    ),
    Family(
        "stragd_rank_run_queue_ratio", "process", "", 1.0, {"run_queue_share": ""},
        "Share of the time in which a thread of the rank was ready and had no CPU.",
    ),
    Family(
        "stragd_rank_disk_wait_ratio", "process", "", 1.0, {"disk_wait_share": ""},
        "Share of the time in which the rank or a worker of it waited for block I/O.",
    ),
    Family(
        "stragd_rank_throttled_ratio", "process", "", 1.0, {"throttled_share": ""},
        "Share of the time in which the rank's cgroup was stopped for its CPU quota.",
    ),
    Family(
        "stragd_rank_stopped_ratio", "process", "", 1.0, {"stopped_share": ""},
        "Share of the time in which the rank's process was stopped, traced or frozen.",
    ),
    Family(
        "stragd_rank_swap_bytes", "process", "", 1.0, {"swap_bytes": ""},
        "Memory of the rank's process that is swapped out.",
    ),
    Family(
        "stragd_nic_transmit_bytes_per_second", "nic", "nic", 1.0, {"transmit_bytes_per_s": ""},
        "Sent by a NIC that carries the ranks' traffic.",
    ),
    Family(
        "stragd_nic_receive_bytes_per_second", "nic", "nic", 1.0, {"receive_bytes_per_s": ""},
        "Received by it.",
    ),
    Family(
        "stragd_nic_speed_bytes_per_second", "nic", "nic", _GBIT, {"rate_gbps": ""},
        "Rate of its link now; absent while the link is down.",
    ),
    Family(
        "stragd_nic_drops_per_second", "nic", "nic", 1.0, {"drops_per_s": ""},
        "Packets that its port, its driver or the kernel's stack discarded.",
    ),
    Family(
        "stragd_node_pressure_ratio", "node", "resource", 1.0,
        {
            "pressure_cpu_share": "cpu", "pressure_memory_share": "memory",
            "pressure_io_share": "io",
        },
        "Share of the time in which some task of the node waited for a resource (PSI).",
    ),
    Family(
        "stragd_node_cpu_frequency_hertz", "node", "", _MHZ, {"cpu_frequency_mhz": ""},
        "Mean clock of the CPUs on which ranks run.",
    ),
    Family(
        "stragd_node_steal_ratio", "node", "", 1.0, {"steal_share": ""},
        "CPU time that the hypervisor gave to others.",
    ),
)  # fmt: skip
_WANTED = frozenset((family.kind, name) for family in FAMILIES for name in family.values)


def readings(ranks: Mapping[int, Mapping[int, RankTelemetry]]) -> list[Reading]:
    """The last pass of telemetry (job -> rank -> telemetry); node and NICs once, however many
    ranks share them."""
    rows: list[Reading] = []
    shared: dict[tuple[str, str], Sample] = {}
    for job, members in ranks.items():
        for number, telemetry in members.items():
            for sample in (telemetry.gpu, telemetry.process):
                if sample is not None:
                    rows.append(_reading(sample, job_key(job), number))
            for sample in (*telemetry.nics, telemetry.node):
                if sample is not None:
                    shared[sample.kind, sample.subject] = sample
    return [*rows, *(_reading(sample, "", -1) for sample in shared.values())]


def _reading(sample: Sample, job: str, rank: int) -> Reading:
    values = {n: value for n, value in sample.values.items() if (sample.kind, n) in _WANTED}
    return {
        "kind": sample.kind,
        "subject": sample.subject,
        "job": job,
        "rank": rank,
        "values": values,
    }


def samples(
    rows: Iterable[Reading], job: str = "", rank: int = -1
) -> Iterator[tuple[str, float, tuple[object, ...]]]:
    """Family, value and label values of ``rows``; ``job`` is the name of their job."""
    for row in rows:
        for family in FAMILIES:
            if family.kind != row["kind"]:
                continue
            before = (job, rank) if family.labels[:2] == _RANK else ()
            for name, label in family.values.items():
                if name in row["values"]:
                    own = (label or row["subject"],) if family.label else ()
                    yield family.name, row["values"][name] * family.factor, (*before, *own)
