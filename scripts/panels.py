"""What the dashboard shows: every panel with its queries, as data.

Findings are reported by every node of a job, hence ``max by (job, rank, kind)``. A rank's own
series come from one node only.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["stat", "table", "heatmap", "state", "lines", "stack"]


class Query(NamedTuple):
    """PromQL and the name of its series."""

    expr: str
    legend: str = ""


class Column(NamedTuple):
    """A label of a table's rows, or "Value"; ``width`` is in pixels, 0 is what is left over."""

    label: str
    width: int = 0
    title: str = ""


class Panel(NamedTuple):
    """``unit`` is Grafana's id; ``span`` is in 24ths of the width."""

    title: str
    kind: Kind
    unit: str
    span: int
    description: str
    queries: tuple[Query, ...]
    columns: tuple[Column, ...] = ()  # of a table, from the left
    alarm: tuple[tuple[float, str], ...] = ()  # of a stat: from this value on, this colour


_JOB = '{job=~"$job"}'
_RANK = '{job=~"$job", rank=~"$rank"}'
_HERE = '{instance=~"$node"}'
_RANKS_HERE = '{instance=~"$node", job=~"$job", rank=~"$rank"}'


def _cause(select: str) -> str:
    """One series per finding with its cause, 1. Without the evidence, whose words may change from
    window to window: each would be an annotation of its own."""
    causes = f"topk by (job, rank, kind) (1, stragd_finding_cause_confidence{select})"
    labels = "(job, rank, kind, cause, where)"
    join = "on (job, rank, kind) group_left (cause, where)"
    return f"{join} (max by {labels} ({causes}) >= bool 0)"


_SURE = '(max by (job, rank, kind) (stragd_finding{job=~"$job", state="confirmed"}) > 0)'
_ANYWHERE = _SURE.replace('job=~"$job", ', "")
CAUSES = f"{_SURE} * {_cause(_JOB)}"
_COST = "max by (job, rank, kind) (stragd_finding_cost_ratio)"
_WORST = f"({_COST} and on (job, rank, kind) {_ANYWHERE}) * {_cause('')}"
_HOST = "topk by (job, rank) (1, max by (job, rank, host) (stragd_rank_info))"
_WITH_HOST = f"{_WORST} * on (job, rank) group_left (host) {_HOST}"
_WORST_WITH_HOST = f"({_WITH_HOST} or on (job, rank, kind) {_WORST})"


def beside_peers(metric: str, by: str = "") -> tuple[Query, Query]:
    """A metric of this node's ranks, and the median over all ranks of their job."""
    more, name = (f", {by}", f" {{{{{by}}}}}") if by else ("", "")
    return (
        Query(f"max by (job, rank{more}) ({metric}{_RANKS_HERE})", "{{job}} rank {{rank}}" + name),
        Query(
            f"quantile by (job{more}) (0.5, {metric}{_JOB})", "median of {{job}}" + name
        ),
    )  # fmt: skip


FLEET = (
    Panel(
        "Jobs", "stat", "short", 4, "Training jobs that are watched now.",
        (Query("count(count by (job) (stragd_job_info))"),),
    ),
    Panel(
        "Ranks", "stat", "short", 4, "Ranks that are watched now, on all nodes.",
        (Query("sum(stragd_job_local_ranks)"),),
    ),
    Panel(
        "Confirmed findings", "stat", "short", 4, "Slow parts of jobs that are certain.",
        (Query(f"count({_ANYWHERE}) or vector(0)"),), alarm=((1, "red"),),
    ),
    Panel(
        "GPU-hours lost", "stat", "suffix: GPU-h", 6,
        "In the time range: what confirmed findings cost, over all ranks of their jobs. A rank "
        "drives one GPU.",
        (Query("sum(increase(stragd_job_lost_rank_seconds_total[$__range])) / 3600"),),
        alarm=((0.01, "orange"), (1, "red")),
    ),
    Panel(
        "GPUs lost now", "stat", "suffix: GPUs", 6,
        "As many GPUs would be free without the confirmed findings.",
        (Query("sum(rate(stragd_job_lost_rank_seconds_total[$__rate_interval]))"),),
        alarm=((0.01, "orange"), (1, "red")),
    ),
    Panel(
        "Worst findings", "table", "percentunit", 16,
        "Confirmed findings with their cost, a share of every step on all ranks of the job. "
        "`where` says whose it is: machine, job or network.",
        (Query(f"topk(20, {_WORST_WITH_HOST})"),),
        (
            Column("Value", 80, "cost"), Column("job"), Column("rank", 60), Column("host", 110),
            Column("kind", 110), Column("where", 90), Column("cause", 150),
        ),
    ),
    Panel(
        "GPUs lost, by job", "lines", "suffix: GPUs", 8,
        "Ranks times the share of their time that confirmed findings cost.",
        (Query(
            "sum by (job) (rate(stragd_job_lost_rank_seconds_total[$__rate_interval]))", "{{job}}"
        ),),
    ),
)  # fmt: skip

JOB = (
    Panel(
        "Step time: own, wait, comm", "stack", "s", 12,
        "Mean over the ranks of a job. Own is a rank's own work, wait is waiting for others inside "
        "collectives, comm the transfer once everybody is there.",
        tuple(
            Query(f"avg by (job) (stragd_rank_{part}_seconds{_JOB})", "{{job}} " + part)
            for part in ("own", "wait", "comm")
        ),
    ),
    Panel(
        "Step time", "lines", "s", 12, "Median wall time of a step.",
        (Query(f"max by (job) (stragd_job_step_seconds{_JOB})", "{{job}}"),),
    ),
    Panel(
        "Ranks over time: own work beside peers", "heatmap", "percentunit", 24,
        "One row per rank of the job: how much more (red) or less (green) own work than the median "
        "of its peers. A straggler is a red row; choose one job.",
        (Query(f"max by (rank) (stragd_rank_slowdown_ratio{_JOB})", "{{rank}}"),),
    ),
    Panel(
        "Own work of a rank", "lines", "s", 12,
        "The rank with the largest own work is the one that everybody waits for.",
        (Query(f"max by (job, rank) (stragd_rank_own_seconds{_RANK})", "{{job}} rank {{rank}}"),),
    ),
    Panel(
        "Wait of a rank", "lines", "s", 12, "Who waits least is waited for.",
        (Query(f"max by (job, rank) (stragd_rank_wait_seconds{_RANK})", "{{job}} rank {{rank}}"),),
    ),
    Panel(
        "Cost of open findings", "lines", "s", 8,
        "What every rank would gain per step without it; suspected ones too.",
        (Query(
            f"max by (job, rank, kind) (stragd_finding_cost_seconds{_JOB})",
            "{{job}} {{kind}} {{rank}}",
        ),),
    ),
    Panel(
        "Findings and their causes", "table", "percentunit", 16,
        "How sure the cause is. docs/causes.md says what to do.",
        (Query(
            "max by (job, rank, kind, where, cause, evidence) "
            f"(stragd_finding_cause_confidence{_JOB})"
        ),),
        (
            Column("Value", 95, "confidence"), Column("cause", 130), Column("job", 120),
            Column("rank", 60), Column("kind", 90), Column("where", 80), Column("evidence"),
        ),
    ),
)  # fmt: skip

NODE = (
    Panel(
        "GPU clock", "lines", "hertz", 8, "Multiprocessor clock.",
        beside_peers("stragd_rank_gpu_clock_hertz"),
    ),
    Panel(
        "GPU temperature", "lines", "celsius", 8, "Of the GPU; on AMD, its hotspot.",
        beside_peers("stragd_rank_gpu_temperature_celsius"),
    ),
    Panel(
        "GPU power", "lines", "watt", 8, "Drawn power, and the limit in force.",
        (
            *beside_peers("stragd_rank_gpu_power_watts"),
            Query(
                f"max by (job) (stragd_rank_gpu_power_limit_watts{_RANKS_HERE})", "limit {{job}}"
            ),
        ),
    ),
    Panel(
        "GPU held down", "lines", "percentunit", 12,
        "Share of the time in which something held the clocks down, by reason.",
        (Query(
            f"max by (job, rank, reason) (stragd_rank_gpu_throttled_ratio{_RANKS_HERE})",
            "{{job}} rank {{rank}} {{reason}}",
        ),),
    ),
    Panel(
        "Busy multiprocessors", "lines", "percentunit", 12,
        "Who waits inside a collective keeps few busy; who is waited for does not.",
        beside_peers("stragd_rank_gpu_sm_active_ratio"),
    ),
    Panel(
        "NIC traffic", "lines", "Bps", 12,
        "Of the NICs that carry the ranks' traffic, and the median of the same NIC on all nodes.",
        (
            Query(f"stragd_nic_transmit_bytes_per_second{_HERE}", "{{instance}} {{nic}} sent"),
            Query(f"stragd_nic_receive_bytes_per_second{_HERE}", "{{instance}} {{nic}} received"),
            Query(
                "quantile by (nic) (0.5, stragd_nic_transmit_bytes_per_second)",
                "median {{nic}} sent",
            ),
        ),
    ),
    Panel(
        "NIC link rate", "lines", "Bps", 6, "Falls when a link trains down; no line: it is down.",
        (
            Query(f"stragd_nic_speed_bytes_per_second{_HERE}", "{{instance}} {{nic}}"),
            Query("quantile by (nic) (0.5, stragd_nic_speed_bytes_per_second)", "median {{nic}}"),
        ),
    ),
    Panel(
        "NIC drops", "lines", "pps", 6, "Packets discarded by port, driver or kernel.",
        (Query(f"stragd_nic_drops_per_second{_HERE}", "{{instance}} {{nic}}"),),
    ),
    Panel(
        "Ready without a CPU", "lines", "percentunit", 8,
        "Time in which a thread of the rank wanted to run and had no CPU: neighbours, pinning.",
        beside_peers("stragd_rank_run_queue_ratio"),
    ),
    Panel(
        "CPU time", "lines", "percentunit", 8, "All threads of a rank; 100 % is one CPU.",
        beside_peers("stragd_rank_cpu_ratio"),
    ),
    Panel(
        "Stopped and throttled", "lines", "percentunit", 8,
        "Stopped, traced or frozen; stopped for a CPU quota; waiting for a disk.",
        tuple(
            Query(
                f"max by (job, rank) (stragd_rank_{what}_ratio{_RANKS_HERE})",
                "{{job}} rank {{rank}} " + legend,
            )
            for what, legend in (
                ("stopped", "stopped"), ("throttled", "quota"), ("disk_wait", "disk")
            )
        ),
    ),
    Panel(
        "Swapped out", "lines", "bytes", 8, "Memory of a rank's process that is swapped out.",
        beside_peers("stragd_rank_swap_bytes"),
    ),
    Panel(
        "Pressure and steal", "lines", "percentunit", 8,
        "Some task of the node waited for it (PSI); CPU time that the hypervisor gave to others.",
        (
            Query(f"stragd_node_pressure_ratio{_HERE}", "{{instance}} {{resource}}"),
            Query(f"stragd_node_steal_ratio{_HERE}", "{{instance}} stolen"),
        ),
    ),
    Panel(
        "CPU clock", "lines", "hertz", 8, "Mean clock of the CPUs on which ranks run.",
        (
            Query(f"stragd_node_cpu_frequency_hertz{_HERE}", "{{instance}}"),
            Query("quantile(0.5, stragd_node_cpu_frequency_hertz)", "median of the nodes"),
        ),
    ),
)  # fmt: skip

# Other exporters have process_* too; a stragd's are those of an instance with a stragd_build_info.
_OURS = "and on (instance) stragd_build_info"
DAEMON = (
    Panel(
        "Parts that work", "state", "short", 12,
        "stragctl doctor on the node says what is missing where a part does not work.",
        (Query(f"min by (instance, collector) (stragd_up{_HERE})", "{{instance}} {{collector}}"),),
    ),
    Panel(
        "Events", "lines", "eps", 6, "Read from the probes.",
        (Query(
            f"sum by (instance) (rate(stragd_events_total{_HERE}[$__rate_interval]))",
            "{{instance}}",
        ),),
    ),
    Panel(
        "Events lost", "lines", "eps", 6, "Should be 0; windows with losses weigh less.",
        (Query(
            f"sum by (instance) (rate(stragd_events_lost_total{_HERE}[$__rate_interval]))",
            "{{instance}}",
        ),),
    ),
    Panel(
        "CPU of stragd", "lines", "percentunit", 6, "100 % is one CPU.",
        (Query(
            f"rate(process_cpu_seconds_total{_HERE}[$__rate_interval]) {_OURS}", "{{instance}}"
        ),),
    ),
    Panel(
        "Memory of stragd", "lines", "bytes", 6, "Resident memory.",
        (Query(f"process_resident_memory_bytes{_HERE} {_OURS}", "{{instance}}"),),
    ),
    Panel(
        "Probes and rings", "lines", "short", 6, "Attached probes, and rings that are read.",
        (
            Query(f"sum by (instance) (stragd_probes_attached{_HERE})", "{{instance}} probes"),
            Query(
                f"sum by (instance) (stragd_rings{_HERE})",
                "{{instance}} rings",
            ),
        ),
    ),
    Panel(
        "Time of telemetry", "lines", "s", 6, "What a reader's last pass took.",
        (Query(f"stragd_telemetry_read_seconds{_HERE}", "{{instance}} {{collector}}"),),
    ),
    Panel(
        "Messages between nodes", "lines", "mps", 12,
        "By what became of them; empty without an exchange.",
        (Query(
            f"sum by (what) (rate(stragd_exchange_total{_HERE}[$__rate_interval]))", "{{what}}"
        ),),
    ),
    Panel(
        "Versions", "table", "short", 12, "Nodes by version of stragd.",
        (Query("count by (version) (stragd_build_info)"),),
        (Column("Value", 80, "nodes"), Column("version")),
    ),
)  # fmt: skip

ROWS = {"Fleet": FLEET, "Job": JOB, "Node": NODE, "stragd itself": DAEMON}
