"""Each cause from its condition, none from the healthy twin; victims, models, kinds of findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import jsonschema
import pytest

from stragd.diagnosis import CAUSES, Diagnosis, Past, apply, diagnose
from stragd.finding import Finding, Where, schema
from stragd.peers import median
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.conditions import CONDITIONS, HARMLESS, Condition, case
from tests.jobs_of_samples import SINCE_NS, WINDOW_NS, JobOfSamples, Rank
from tests.pictures import finding as picture

BY_NAME = {condition.name: condition for condition in CONDITIONS}


def about(kind: str = "straggler", rank: int | None = 5, slowdown: float | None = 0.3) -> Finding:
    made = picture(kind=kind, slowdown=slowdown)
    made["subject"] = {"rank": rank, "host": "node1"} if rank is not None else {}
    return made


def pictures(ranks: Iterable[Rank]) -> list[RankTelemetry]:
    return [rank.picture(1000 * WINDOW_NS) for rank in ranks]


def look(
    job: JobOfSamples,
    ranks: list[Rank],
    past: Past,
    slow: Iterable[int] = (),
    kind: str = "straggler",
) -> Diagnosis:
    made = pictures(ranks)
    others = [p for p in made if p.rank != job.slow]
    return diagnose(about(kind, job.slow), made[job.slow], others, past, set(slow))


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
@pytest.mark.parametrize("with_past", [True, False], ids=["past", "no past"])
def test_a_condition_is_named_first_and_its_healthy_twin_is_not(
    condition: Condition, with_past: bool
) -> None:
    for seed in range(3):
        sick = diagnose(*case(condition, seed, with_past=with_past))
        assert sick.name == condition.cause, (seed, sick)
        assert sick.where == condition.where
        assert 0.4 <= sick.confidence <= 1
        assert sick.advice
        well = diagnose(*case(condition, seed, healthy=True, with_past=with_past))
        assert well.name == "unknown", (seed, well)
        assert well.evidence


def test_every_cause_has_a_condition() -> None:
    assert {condition.cause for condition in CONDITIONS} == {cause.name for cause in CAUSES}
    assert len(CAUSES) >= 20


@pytest.mark.parametrize("condition", HARMLESS, ids=lambda c: c.name)
def test_what_deviates_without_being_the_cause_is_not_named(condition: Condition) -> None:
    for seed in range(5):
        assert diagnose(*case(condition, seed)).name == "unknown"


def test_evidence_says_the_numbers_of_both_sides() -> None:
    made = diagnose(*case(BY_NAME["HW thermal slowdown"], 1))
    text = " / ".join(made.evidence)
    assert "HW thermal slowdown 62 % of the window, peers 0 %" in text
    assert "SM clock 1,305 MHz, peers 1,9" in text
    assert "temperature 91 °C" in text
    assert "15 peers of the same model (NVIDIA H200)" in text


def test_what_half_of_the_peers_show_too_is_no_cause() -> None:
    """Whatever the condition is: a counter that moved on the victims tells nobody apart."""
    for condition in CONDITIONS:
        if condition.cause in ("cpu-frequency", "cpu-steal", "swap", "gpu-starved"):
            continue  # of whole nodes; and a GPU may idle for any reason
        job = JobOfSamples(7)
        ranks = job.window()
        for rank in ranks:
            if rank.number % 2 == job.slow % 2:
                condition.inject(rank, ranks)
        made = look(job, ranks, Past())
        assert made.name in ("unknown", "gpu-starved"), (condition.name, made)


def test_models_are_never_compared() -> None:
    """Four GPUs of another make in the job: slower clocks, other limits, nothing wrong."""
    job = JobOfSamples(3)

    def foreign(rank: Rank) -> None:
        rank.model = "AMD Instinct MI300X"
        rank.gpu.update(
            sm_clock_mhz=1400.0, power_limit_w=550.0, sw_power_cap_share=0.9, sm_active_share=0.3
        )
        rank.process.update(worker_cpu_share=8.0, run_queue_share=0.3)

    ranks = job.window()
    for rank in ranks[4:8]:
        foreign(rank)
    made = look(job, ranks, Past())
    assert made.name == "unknown", made
    assert any("12 of another model left out" in line for line in made.evidence)
    for rank in ranks:
        if rank.number not in (job.slow, 4):
            rank.model = "NVIDIA H200"
    foreign(ranks[job.slow])
    ranks[4].model = "NVIDIA H200"  # now it is the only one of its kind
    alone = look(job, ranks, Past())
    assert alone.name == "unknown", alone


def test_without_peers_the_own_past_speaks_and_then_absolute_limits() -> None:
    condition = BY_NAME["HW thermal slowdown"]
    finding, subject, _, past = case(condition, 2)
    by_past = diagnose(finding, subject, [], past)
    assert by_past.name == "thermal-throttle"
    assert any("SM clock 1,305 MHz, before 1,9" in line for line in by_past.evidence)
    by_limit = diagnose(finding, subject, [], Past())
    assert by_limit.name == "thermal-throttle"
    assert any("absolute limit" in line for line in by_limit.evidence)
    by_peers = diagnose(*case(condition, 2))
    assert by_peers.confidence > by_past.confidence > by_limit.confidence


def test_what_was_so_before_speaks_less() -> None:
    job = JobOfSamples(4)

    def lower(ranks: list[Rank]) -> None:
        BY_NAME["power limit lowered"].inject(ranks[job.slow], ranks)

    ranks = job.window()
    lower(ranks)
    new = look(job, ranks, job.past())
    old = look(job, ranks, job.past(change=lower))
    assert new.name == "power-cap"
    assert old.confidence < new.confidence
    assert old.name == "power-cap"
    assert any("like that before" in line for line in old.evidence)


def test_a_lower_limit_that_is_not_reached_is_no_cause() -> None:
    job = JobOfSamples(15)
    ranks = job.window()
    ranks[job.slow].clocked(1410.0)
    ranks[job.slow].gpu.update(power_limit_w=600.0, power_w=400.0, sw_power_cap_share=0.0)
    made = look(job, ranks, job.past())
    assert made.name == "low-clock"
    assert "power-cap" not in dict(made.others)


def test_peers_that_differ_by_nature_hide_no_change() -> None:
    """Queues of every length, each rank's own for hours: the one that grew is told apart."""
    job = JobOfSamples(16)

    def natural(ranks: list[Rank]) -> None:
        for rank in ranks:
            rank.process["run_queue_share"] += 0.035 * (rank.number % 8)

    ranks = job.window()
    natural(ranks)
    past = job.past(change=natural)
    assert look(job, ranks, past).name == "unknown"
    ranks[job.slow].process["run_queue_share"] += 0.2
    assert look(job, ranks, past).name == "cpu-contention"
    assert look(job, ranks, Past()).name == "unknown"


def test_slow_ranks_of_one_node_with_one_cause() -> None:
    job = JobOfSamples(5, hosts=2)  # half of the job: without `slow` they would be its peers
    ranks = job.window()
    mates = [rank for rank in ranks if rank.host == "node1"]
    for rank in mates:
        BY_NAME["power brake"].inject(rank, ranks)
    made = look(job, ranks, job.past(), slow=[rank.number for rank in mates])
    assert made.name == "power-brake"
    assert "node-wide: 3 other slow ranks of node1 show it too" in made.evidence
    alone = look(job, job.window(), job.past(), slow=[4, 5, 6, 7])
    assert alone.name == "unknown"


def test_a_saturated_counter_is_no_evidence() -> None:
    job = JobOfSamples(6)
    made = pictures(job.window())
    nic = made[job.slow].nics[0]
    values = {k: v for k, v in nic.values.items() if k != "link_downed_delta"}
    note = "link_downed is saturated at 255: its events are unknown"
    stuck = replace(made[job.slow], nics=(replace(nic, values=values, notes=(note,)),))
    others = [p for p in made if p.rank != job.slow]
    found = diagnose(about(), stuck, others, Past())
    assert found.name == "unknown"
    assert any("saturated" in line for line in found.evidence)


def test_idle_links_are_not_judged() -> None:
    """A GPU that idles lowers its PCIe generation: a symptom of whatever starves it."""
    job = JobOfSamples(8)
    ranks = job.window()
    ranks[job.slow].gpu.update(
        pcie_generation_count=1.0, sm_active_share=0.02, utilisation_share=0.05, sm_clock_mhz=345.0
    )
    made = look(job, ranks, job.past())
    assert made.name == "gpu-starved"
    assert "pcie" not in dict(made.others)
    assert "low-clock" not in dict(made.others)


DELAYS = {
    "stopped-process": "stopped_share",
    "cpu-quota": "throttled_share",
    "cpu-contention": "run_queue_share",
    "data-loader-disk": "disk_wait_share",
}
"""Causes whose lost time is measured, each with its quantity."""


@pytest.mark.parametrize("cause", DELAYS)
def test_a_delay_must_be_able_to_explain_the_cost(cause: str) -> None:
    """A rank that takes 1.4 times as long loses 29 % of its time: to that, or to something else."""
    finding, subject, others, past = case(HARMLESS[0], 1)
    assert subject.process is not None
    quantity = DELAYS[cause]

    def with_delay(share: float) -> Diagnosis:
        values = {**subject.process.values, quantity: share + usual}  # type: ignore[union-attr]
        slow = replace(subject, process=replace(subject.process, values=values))  # type: ignore[arg-type]
        return diagnose({**finding, "slowdown": 0.4}, slow, others, past)

    usual = median([p.process.values.get(quantity, 0.0) for p in others if p.process]) or 0.0
    enough, half, little = with_delay(0.27), with_delay(0.2), with_delay(0.06)
    assert enough.name == half.name == cause
    assert half.confidence < enough.confidence
    assert any("of the slowdown" in line for line in enough.evidence)
    assert little.name == "unknown"
    assert cause in dict(little.others)


@pytest.mark.parametrize("silent", ["all", "one"])
def test_silence_is_evidence_unless_everybody_is_silent(silent: str) -> None:
    job = JobOfSamples(9)
    ranks = job.window()
    for rank in ranks:
        if silent == "all" or rank.number == job.slow:
            rank.silent = "the driver has not answered for 12 s"
    made = look(job, ranks, job.past())
    assert made.name == ("unknown" if silent == "all" else "telemetry-silent")
    assert any("12 s" in line for line in made.evidence)


def test_no_telemetry_is_said() -> None:
    others = pictures(JobOfSamples(1).ranks())
    for subject in (None, RankTelemetry(5, "node1")):
        made = diagnose(about(), subject, others, Past())
        assert made.name == "unknown"
        assert made.confidence == 0
        assert made.evidence == ("there is no telemetry of this rank",)


def test_an_intermittent_fault_that_rests_now_is_found_in_the_last_windows() -> None:
    job = JobOfSamples(10)
    past = job.past()
    for later in range(3):
        ranks = job.window()
        if later == 1:
            BY_NAME["flapping link"].inject(ranks[job.slow], ranks)
        for rank in ranks:
            past.add(rank.picture((1001 + later) * WINDOW_NS), SINCE_NS + (later + 1) * WINDOW_NS)
    resting = [rank.picture(1003 * WINDOW_NS) for rank in job.window()]
    others = [p for p in resting if p.rank != job.slow]
    made = diagnose(about("intermittent"), resting[job.slow], others, past)
    assert made.name == "link-flap"
    assert "seen 10 s before this window's end" in made.evidence


def test_counts_that_traffic_alone_makes_differ_name_nobody() -> None:
    """Everybody's receivers are late; three peers that happen to agree are no measure of noise."""
    job = JobOfSamples(13, hosts=1)
    job.slow = 2
    ranks = job.window()
    for rank, ppm in zip(ranks, (50.0, 50.4, 55.0, 49.8), strict=True):
        rank.nic["not_ready_ppm"] = ppm
    assert look(job, ranks, Past()).name == "unknown"
    ranks[job.slow].nic["not_ready_ppm"] = 120.0
    assert look(job, ranks, Past()).name == "nic-host-side"


def everybody(change: str, part: str, **values: float) -> tuple[Finding, list[RankTelemetry], Past]:
    job = JobOfSamples(11)
    ranks = job.window()
    for rank in ranks:
        getattr(rank, part).update(values)
    return about(change, None, None), pictures(ranks), job.past()


def test_a_job_wide_finding_asks_what_most_ranks_have_changed_by() -> None:
    finding, ranks, past = everybody(
        "job-wide", "gpu", sm_clock_mhz=1305.0, hw_thermal_share=0.5, temperature_c=92.0
    )
    made = diagnose(finding, None, ranks, past)
    assert made.name == "thermal-throttle"
    assert "16 of 16 ranks" in made.evidence[0]
    assert "before 1,9" in made.evidence[0]
    starving, idle, past_idle = everybody(
        "job-wide", "gpu", utilisation_share=0.1, sm_active_share=0.02, low_utilisation_share=0.9
    )
    assert diagnose(starving, None, idle, past_idle).name == "unknown"  # victims look the same
    healthy = diagnose(finding, None, pictures(JobOfSamples(11).window()), past)
    assert healthy.name == "unknown"
    assert "16 ranks looked at" in healthy.evidence[0]
    nothing = diagnose(finding, None, [], past)
    assert nothing.evidence == ("there is no telemetry of this job's ranks",)


def test_a_network_finding_names_the_port_that_stands_out() -> None:
    job = JobOfSamples(12)
    ranks = job.window()
    BY_NAME["port at a quarter of its rate"].inject(ranks[job.slow], ranks)
    BY_NAME["HW thermal slowdown"].inject(ranks[0], ranks)  # true, but no matter of the network
    made = diagnose(about("network", None, None), None, pictures(ranks), job.past())
    assert made.name == "nic-degraded"
    assert made.where == "machine"
    assert "rank 5 on node1" in made.evidence[0]
    assert "mlx5_5/1: link rate 100 Gb/s, peers 400" in made.evidence[0]
    finding = about("network", None, None)
    finding["subject"] = {"nic": "mlx5_5", "host": "node1"}
    named = diagnose(finding, None, pictures(ranks), job.past())
    finding["subject"] = {"nic": "mlx5_2", "host": "node0"}
    other = diagnose(finding, None, pictures(ranks), job.past())
    assert named.name == "nic-degraded"
    assert other.confidence < named.confidence


def test_loss_that_everybody_sees_is_the_networks() -> None:
    finding, ranks, past = everybody("network", "nic", loss_sender_ppm=3000.0, timeout_ppm=90.0)
    made = diagnose(finding, None, ranks, past)
    assert (made.name, made.where) == ("packet-loss", "network")


def test_the_rank_that_is_far_from_all_hosts_is_the_networks_slow_one() -> None:
    job = JobOfSamples(12)
    ranks = job.window()
    ranks[job.slow].process.update(tcp_rtt_ms=20.3, tcp_rtt_least_ms=0.08)
    finding = about("network", None, None)
    made = diagnose(finding, None, pictures(ranks), job.past())
    assert (made.name, made.where) == ("network-delay", "network")
    assert made.evidence[0].startswith("rank 5 on node1: TCP round trip 20.3 ms, peers 0.")
    assert "shortest in five minutes 0.080 ms" in made.evidence[0]
    ranks[job.slow].process["tcp_lost_ppm"] = 20_000.0  # who sends again is late as well
    assert diagnose(finding, None, pictures(ranks), job.past()).name == "packet-loss"


def test_all_ranks_of_a_node_behind_one_slow_cable_have_changed() -> None:
    """The peers that a daemon can read are all on its own node."""
    finding, ranks, past = everybody("network", "process", tcp_rtt_ms=20.3)
    made = diagnose(finding, None, ranks, past)
    assert (made.name, made.where) == ("network-delay", "network")
    assert "16 of 16 ranks" in made.evidence[0]
    assert diagnose(finding, None, ranks, Past()).name == "unknown", "that may be its usual way"


def test_kinds_that_are_their_own_cause() -> None:
    ranks = pictures(JobOfSamples(13).ranks())
    uneven = diagnose(about("uneven-work", None), None, ranks, Past())
    assert (uneven.name, uneven.where) == ("uneven-work", "job")
    finding = about("imbalance", None)
    finding["subject"] = {"class": "nvidia/H200"}
    slower = diagnose(finding, None, ranks, Past())
    assert (slower.name, slower.where) == ("slower-class", "machine")
    assert slower.others == ()
    low = {"power_limit_w": 350.0, "sw_power_cap_share": 0.9}
    capped = [
        replace(r, gpu=replace(r.gpu, values={**r.gpu.values, **low})) for r in ranks if r.gpu
    ]
    limited = diagnose(finding, None, capped, Past())
    assert limited.name == "slower-class"
    assert "power-cap" in dict(limited.others)


@pytest.mark.parametrize("name", ["swapping", "nothing"])
def test_a_finding_with_its_cause_follows_the_schema(name: str) -> None:
    condition = {**BY_NAME, HARMLESS[0].name: HARMLESS[0]}[name]
    finding, *telemetry = case(condition, 1)
    before = json.dumps(finding)
    made = apply(finding, diagnose(finding, *telemetry))
    assert json.dumps(finding) == before
    jsonschema.validate(made, schema(), cls=jsonschema.Draft202012Validator)
    assert made["cause"]["name"] == condition.cause
    assert made["cause"]["evidence"]
    if name == "swapping":
        assert made["where"] == "machine"
        assert "memory-pressure (" in made["evidence"][-1]
        assert made["evidence"][:-1] == finding["evidence"]


@pytest.mark.parametrize(
    ("timing", "cause", "where", "confidence", "expected"),
    [
        ("unknown", "power-cap", "machine", 0.5, "machine"),
        ("job", "power-cap", "machine", 0.5, "job"),
        ("job", "power-cap", "machine", 0.9, "machine"),
        ("job", "unknown", "unknown", 0.0, "job"),
        ("job", "gpu-starved", "unknown", 0.9, "job"),
        ("network", "unknown", "unknown", 0.0, "network"),
        ("network", "nic-degraded", "machine", 0.5, "machine"),
        ("unknown", "unknown", "unknown", 0.0, "unknown"),
    ],
)
def test_the_place_that_timing_gives_yields_to_strong_evidence_only(
    timing: Where, cause: str, where: Where, confidence: float, expected: str
) -> None:
    finding = picture()
    finding["where"] = timing
    made = apply(finding, Diagnosis(cause, confidence, ("a line",), "", where))
    assert made["where"] == expected


def samples_without(kind: str) -> Callable[[RankTelemetry], RankTelemetry]:
    def made(telemetry: RankTelemetry) -> RankTelemetry:
        if kind == "nic":
            return replace(telemetry, nics=())
        return replace(telemetry, **{kind: None})

    return made


@pytest.mark.parametrize("kind", ["gpu", "process", "node", "nic"])
def test_readers_may_be_missing(kind: str) -> None:
    finding, subject, others, past = case(HARMLESS[0], 1)
    strip = samples_without(kind)
    made = diagnose(finding, strip(subject), [strip(p) for p in others], past)
    assert made.name == "unknown"
    assert any(line.startswith("could not be looked at:") for line in made.evidence)


def test_a_node_shared_by_healthy_ranks_tells_one_rank_less() -> None:
    condition = BY_NAME["CPU stolen"]
    finding, subject, others, past = case(condition, 1)
    shared = diagnose(finding, subject, others, past)
    apart = [p for p in others if p.host != subject.host]
    assert diagnose(finding, subject, apart, past).confidence > shared.confidence


def test_a_slow_disk_is_the_machines_and_heavy_reading_the_jobs() -> None:
    job = JobOfSamples(17)
    ranks = job.window()
    BY_NAME["slow disk under the data loader"].inject(ranks[job.slow], ranks)
    ranks[job.slow].node["pressure_io_share"] = 0.7
    assert look(job, ranks, job.past()).where == "machine"
    ranks[job.slow].process["read_bytes_per_s"] = 6e8
    made = look(job, ranks, job.past())
    assert (made.name, made.where) == ("data-loader-disk", "job")


def test_ranks_that_share_a_nic_are_not_its_peers() -> None:
    """One NIC for the whole host: its other ranks read the same counters, which clears nobody."""
    condition = BY_NAME["loss on the path"]
    job = JobOfSamples(14)
    ranks = job.window()
    made = []
    for rank in ranks:
        if rank.host == "node1":
            condition.inject(rank, ranks)
        telemetry = rank.picture(1000 * WINDOW_NS)
        shared = Sample("nic", "eth0", "NIC", 0, WINDOW_NS, telemetry.nics[0].values)
        made.append(replace(telemetry, nics=(shared,)))
    others = [p for p in made if p.rank != job.slow]
    assert diagnose(about(), made[job.slow], others, Past()).name == "packet-loss"
