"""What happened once counts for some windows, while its finding is open.

An Xid, an uncorrected error or a link that went down shows in one window only, and what it has done
stays. Looked at pass by pass it would be forgotten before the second, which a doubtful cause needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stragd.diagnosis.cause import Verdict
from stragd.diagnosis.past import Past
from stragd.diagnosis.readings import number, place, samples
from stragd.telemetry.sample import RankTelemetry, Sample

EVENTS = frozenset(
    {
        "gpu.xid_delta",
        "gpu.ecc_uncorrected_delta",
        "gpu.nvlink_recovery_delta",
        "gpu.nvlink_recovery_failed_delta",
        "gpu.pcie_uncorrected_delta",
        "process.cgroup_oom_delta",
        "nic.link_downed_delta",
        "nic.carrier_changes_delta",
        "nic.integrity_error_delta",
        "nic.buffer_overrun_delta",
    }
)
"""Rows of SIGNALS of which one event is one too many. What is repaired at once (replays, CRC
errors) says something only while it goes on."""
XID = "Xid "


def remembered(telemetry: RankTelemetry, past: Past, since_ns: int) -> RankTelemetry:
    """A rank with the events of its last windows since the finding: of each the worst window."""
    earlier = past.recent(telemetry.rank, since_ns)
    events: dict[str, dict[str, float]] = {}
    notes: dict[str, None] = {}
    for sample in (sample for window in earlier for sample in samples(window)):
        for quantity, value in _events(sample).items():
            known = events.setdefault(place(sample), {})
            known[quantity] = max(value, known.get(quantity, 0.0))
        if sample.kind == "gpu":
            notes |= dict.fromkeys(note for note in sample.notes if note.startswith(XID))
    if not events and not notes:
        return telemetry

    def merged(sample: Sample | None) -> Sample | None:
        if sample is None:
            return None
        values = {**sample.values}
        for quantity, value in events.get(place(sample), {}).items():
            values[quantity] = max(value, number(values.get(quantity)) or 0.0)
        more = [n for n in notes if sample.kind == "gpu" and n not in sample.notes]
        return replace(sample, values=values, notes=(*sample.notes, *more))

    nics = tuple(made for nic in telemetry.nics if (made := merged(nic)) is not None)
    process, gpu = merged(telemetry.process), merged(telemetry.gpu)
    return replace(telemetry, process=process, gpu=gpu, nics=nics)


def seconds_ago(best: Verdict, windows: Iterable[RankTelemetry]) -> float:
    """How long before the newest of ``windows``, newest first, the events of a verdict were last
    seen; 0 where it rests on something else, too."""
    wanted = {deviation.key for deviation in best.deviations}
    if not wanted <= EVENTS:
        return 0.0
    newest = 0
    for window in windows:
        end = max((sample.end_ns for sample in samples(window)), default=0)
        newest = newest or end
        for sample in samples(window):
            shown = {f"{sample.kind}.{quantity}" for quantity in _events(sample)}
            xids = [note for note in sample.notes if note.startswith(XID)]
            if shown & wanted or any(xid in best.line for xid in xids):
                return (newest - end) / 1e9
    return 0.0


def _events(sample: Sample) -> dict[str, float]:
    found = {}
    for quantity in sample.values:
        if f"{sample.kind}.{quantity}" in EVENTS:
            value = number(sample.values[quantity])
            if value is not None and value > 0:
                found[quantity] = value
    return found
