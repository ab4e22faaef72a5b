"""Evidence in words: "SM clock 1,305 MHz, peers 1,980; HW thermal slowdown 62 % of the window"."""

from __future__ import annotations

from stragd.diagnosis.cause import Verdict
from stragd.diagnosis.compare import Deviation, View

MAX_PARTS = 6
_UNITS = {
    "_mhz": " MHz",
    "_c": " °C",
    "_w": " W",
    "_gbps": " Gb/s",
    "_ms": " ms",
    "_bytes": " MiB",
    "_bytes_per_s": " MiB/s",
}
_CPUS = ("cpu_share", "worker_cpu_share")
CONTEXT = {
    "gpu.temperature_c": "temperature",
    "gpu.temperature_margin_c": "margin to slowdown",
    "gpu.memory_temperature_c": "memory temperature",
    "gpu.memory_temperature_margin_c": "memory margin",
    "gpu.power_w": "power",
    "gpu.pcie_width_count": "PCIe lanes",
    "gpu.pcie_generation_count": "PCIe generation",
    "process.cpu_share": "CPUs used",
    "process.tcp_rtt_least_ms": "shortest in five minutes",
    "process.tcp_host_count": "hosts it sends to",
}
"""Quantities that are shown and not judged."""


def clean(text: str, limit: int = 300) -> str:
    """A text that a driver or a process chose, in one printable line."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


def amount(key: str, value: float, unit: bool = True) -> str:
    """A reading with its unit, by the end of its name."""
    name = key.rpartition(".")[2]
    if name in _CPUS:
        return f"{value:.2f}"
    if name.endswith("_share"):
        share = 100 * value
        return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %"
    suffix = next((u for u in sorted(_UNITS, key=len, reverse=True) if name.endswith(u)), "")
    if suffix.startswith("_bytes"):
        value /= 1024 * 1024
    if suffix == "_c":
        return f"{value:.0f}" + (_UNITS[suffix] if unit else "")
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" + (_UNITS.get(suffix, "") if unit else "")


def part(deviation: Deviation) -> str:
    """One deviation: what, how much, against what."""
    key = deviation.key
    text = f"{deviation.signal.label} {amount(key, deviation.value)}"
    if deviation.basis == "limit":
        return text
    assert deviation.reference is not None
    name = key.rpartition(".")[2]
    if name.endswith("_share") and not name.endswith("_cut_share") and name not in _CPUS:
        text += " of the window"
    against = "peers" if deviation.basis == "peers" else "before"
    text += f", {against} {amount(key, deviation.reference, unit=False)}"
    before = deviation.before
    if deviation.basis == "peers" and before is not None:
        gap = abs(deviation.value - deviation.reference)
        if abs(before - deviation.reference) > 0.1 * gap:  # it was not like its peers
            text += f", before {amount(key, before, unit=False)}"
    return text


def lines(verdict: Verdict, view: View) -> list[str]:
    """What speaks for a verdict, the strongest first."""
    found = verdict.deviations[:MAX_PARTS]
    parts = []
    for deviation in found:
        prefix = f"{clean(deviation.subject, 40)}: " if deviation.subject else ""
        parts.append(prefix + part(deviation))
    context = []
    for key in verdict.cause.context:
        value, usual = view.value(key), view.usual(key)
        if value is not None:
            text = f"{CONTEXT[key]} {amount(key, value)}"
            context.append(text + ("" if usual is None else f", usual {amount(key, usual, False)}"))
    made = [clean(verdict.line)] if verdict.line else []
    made += ["; ".join(parts)] if parts else []
    made += ["; ".join(context)] if context else []
    explained = verdict.explained
    if explained is not None:
        share = "all" if explained >= 0.95 else f"about {100 * explained:.0f} %"
        made.append(f"that accounts for {share} of the slowdown")
    if not all(d.changed for d in found):
        made.append("in part it was like that before the rank became slow")
    if any(d.basis == "limit" for d in found):
        made.append(
            "judged by an absolute limit: there are neither peers nor a past to compare with"
        )
    return made


def compared_with(view: View) -> str:
    """Against whom a rank was held."""
    alike, others = len(view.alike()), len(view.peers) - len(view.alike())
    model = view.subject.gpu.model if view.subject.gpu else ""
    if not view.peers:
        return "no healthy peer to compare with"
    text = f"compared with {alike} peer{'' if alike == 1 else 's'}"
    text += f" of the same model ({clean(model, 60)})" if model else ""
    return text + (f"; {others} of another model left out" if others else "")
