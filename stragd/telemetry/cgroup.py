"""What the cgroups of a process did to it: CPU quota, memory limits, pressure, freezing; v1 and v2.

A quota or a limit counts wherever it is set, often above the process's own cgroup (the pod, the
Slurm job). Cgroups are shared by ranks: each is read once per pass, whoever asks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stragd.discovery.process import read_bounded
from stragd.telemetry.counter import NO_CHANGE, Change, Counters, number
from stragd.telemetry.held import HeldFile
from stragd.telemetry.pressure import Pressure

MAX_DEPTH = 12
MEMORY_EVENTS = {
    "high": "cgroup_memory_high_delta",
    "max": "cgroup_memory_max_delta",
    "oom_kill": "cgroup_oom_delta",
}
LIMITS_EVERY = 4  # passes
NO_LIMIT_V1 = 1 << 62  # the kernel's "no limit" is the largest multiple of a page, just above


@dataclass(frozen=True)
class Place:
    """Directories of a process's cgroup by hierarchy, "" where there is none."""

    cpu: str = ""
    memory: str = ""
    freezer: str = ""
    unified: str = ""
    cpu_root: str = ""
    memory_root: str = ""
    unified_root: str = ""


class Hierarchies:
    """Where the cgroup file systems are mounted."""

    def __init__(self, root: str) -> None:
        self._mounts: dict[str, str] = {}  # controller, "" for the unified hierarchy
        raw = read_bounded(f"{root}/proc/self/mounts", 1 << 20) or b""
        for line in raw.decode("utf-8", "surrogateescape").splitlines():
            words = line.split(" ")
            if len(words) < 4 or words[2] not in ("cgroup", "cgroup2"):
                continue
            # The kernel's octal escapes; a mount point with others is not one of cgroups.
            path = root + words[1].replace("\\040", " ")
            if words[2] == "cgroup2":
                self._mounts.setdefault("", path)
            else:
                for controller in words[3].split(","):
                    if controller in ("cpu", "memory", "freezer"):
                        self._mounts.setdefault(controller, path)

    def place(self, raw: bytes) -> Place:
        """Directories of a process from its /proc/PID/cgroup."""
        paths: dict[str, str] = {}
        for line in raw.decode("utf-8", "surrogateescape").splitlines():
            parts = line.split(":", 2)
            # "/.." is outside of our cgroup namespace: its files cannot be reached.
            if len(parts) == 3 and ".." not in parts[2].split("/"):
                for controller in parts[1].split(","):
                    paths[controller] = parts[2].rstrip("/")

        def of(controller: str) -> str:
            # A controller belongs to its v1 hierarchy where that is mounted, else to v2.
            key = controller if controller in self._mounts else ""
            return self._mounts[key] + paths[key] if key in paths and key in self._mounts else ""

        return Place(
            cpu=of("cpu"),
            memory=of("memory"),
            freezer=of("freezer") if "freezer" in self._mounts else "",
            unified=of(""),
            cpu_root=self._mounts.get("cpu", self._mounts.get("", "")),
            memory_root=self._mounts.get("memory", self._mounts.get("", "")),
            unified_root=self._mounts.get("", ""),
        )


def _levels(directory: str, top: str) -> list[str]:
    """A cgroup and those above it, without the root cgroup, which has no limits."""
    levels: list[str] = []
    while directory != top and directory.startswith(top) and len(levels) < MAX_DEPTH:
        levels.append(directory)
        directory = directory.rpartition("/")[0]
    return levels


class Quota:
    """CPU quota of one cgroup directory."""

    def __init__(self, directory: str) -> None:
        limit = HeldFile(f"{directory}/cpu.max")
        self.limit = limit if limit.open else HeldFile(f"{directory}/cpu.cfs_quota_us")
        self.stat = HeldFile(f"{directory}/cpu.stat")
        self.counters = Counters()
        self.read_at, self.change, self.known, self.limited = -1, NO_CHANGE, False, False

    def refresh(self, now_ns: int) -> None:
        if now_ns == self.read_at:
            return
        self.read_at = now_ns
        limit = self.limit.read()
        self.known = limit is not None
        self.limited = limit is not None and not limit.startswith((b"max", b"-1"))
        if not self.limited:
            # Nothing can be throttled, and on v2 reading cpu.stat sums over all CPUs.
            self.change = NO_CHANGE
            return
        values = _pairs(self.stat.read())
        reading = {name: values[name] for name in ("nr_periods", "nr_throttled") if name in values}
        if "throttled_usec" in values:
            reading["throttled_ns"] = values["throttled_usec"] * 1000
        elif "throttled_time" in values:
            reading["throttled_ns"] = values["throttled_time"]
        self.change = self.counters.advance(now_ns, reading)


class _Memory:
    """The memory limit that holds for a cgroup directory: its own, or the nearest above."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.counters = Counters()
        self.read_at, self.change = -1, NO_CHANGE
        self.events = HeldFile(f"{directory}/memory.events")
        self.failures = HeldFile(f"{directory}/memory.failcnt")
        self.oom = HeldFile(f"{directory}/memory.oom_control")

    def refresh(self, now_ns: int) -> None:
        if now_ns == self.read_at:
            return
        self.read_at = now_ns
        values = _pairs(self.events.read()) or _pairs(self.oom.read())
        reading = {
            quantity: values[name] for name, quantity in MEMORY_EVENTS.items() if name in values
        }
        failures = number(self.failures.read())
        if failures is not None:
            reading["cgroup_memory_max_delta"] = failures
        self.change = self.counters.advance(now_ns, reading)


class _Freezer:
    def __init__(self, directory: str) -> None:
        events = HeldFile(f"{directory}/cgroup.events")
        self.file = events if events.open else HeldFile(f"{directory}/freezer.state")

    def frozen(self) -> bool:
        raw = self.file.read() or b""
        return b"frozen 1" in raw or raw.startswith((b"FROZEN", b"FREEZING"))


class Group:
    """The cgroup of one or more ranks."""

    def __init__(self, place: Place, quotas: dict[str, Quota]) -> None:
        self._place = place
        levels = _levels(place.cpu, place.cpu_root)
        for level in levels:
            if level not in quotas:
                quotas[level] = Quota(level)
        self.quotas = [quotas[level] for level in levels]
        self._cpu_is_root = bool(place.cpu) and place.cpu == place.cpu_root
        self._memory_known = False
        self._memory_levels = _levels(place.memory, place.memory_root)
        self._memory: _Memory | None = None
        self._until_limits = 0
        # The root cgroup's pressure is the node's, which has a sample of its own.
        deep = place.unified != place.unified_root and bool(place.unified)
        self._pressure = Pressure(f"{place.unified}/", ".pressure") if deep else None
        self._freezers = [_Freezer(path) for path in (place.freezer, place.unified) if path]
        self._read_at = -1
        self._values: dict[str, float] = {}
        self.frozen = False

    def values(self, now_ns: int) -> dict[str, float]:
        """What it did since the last pass, by the names of ``PROCESS``."""
        if now_ns == self._read_at:
            return self._values
        self._read_at = now_ns
        values = self._pressure.shares(now_ns) if self._pressure else {}
        values.update(self._throttling(now_ns))
        values.update(self._over_memory_limits(now_ns))
        self.frozen = any(freezer.frozen() for freezer in self._freezers)
        self._values = values
        return values

    def _over_memory_limits(self, now_ns: int) -> dict[str, float]:
        if self._until_limits <= 0:
            self._until_limits = LIMITS_EVERY
            self._find_memory_limit()
        self._until_limits -= 1
        if self._memory is not None:
            self._memory.refresh(now_ns)
            return {**self._memory.change.by}
        # Where no level has a limit, nothing can be over it.
        quantities = (MEMORY_EVENTS["high"], MEMORY_EVENTS["max"]) if self._memory_known else ()
        return dict.fromkeys(quantities, 0.0)

    def _find_memory_limit(self) -> None:
        """Limits may come and go while a job runs."""
        limited = [(level, _limits_memory(level)) for level in self._memory_levels]
        nearest = next((level for level, limit in limited if limit), "")
        self._memory_known = bool(self._place.memory) and all(x is not None for _, x in limited)
        if not nearest:
            self._memory = None
        elif self._memory is None or self._memory.directory != nearest:
            self._memory = _Memory(nearest)

    def _throttling(self, now_ns: int) -> dict[str, float]:
        for quota in self.quotas:
            quota.refresh(now_ns)
        limited = [quota.change for quota in self.quotas if quota.limited]
        if not limited:
            known = self._cpu_is_root or (self.quotas and all(q.known for q in self.quotas))
            return {"throttled_share": 0.0, "throttled_periods_share": 0.0} if known else {}
        values: dict[str, float] = {}
        shares = [s for c in limited if (s := c.share("throttled_ns", 1.0)) is not None]
        periods = [p for c in limited if (p := _periods(c)) is not None]
        if shares:
            values["throttled_share"] = max(shares)
        if periods:
            values["throttled_periods_share"] = max(periods)
        return values


def _periods(change: Change) -> float | None:
    """Share of the quota periods that were throttled; a cgroup that slept through has none."""
    if "nr_throttled" not in change.by or "nr_periods" not in change.by:
        return None
    periods = change.by["nr_periods"]
    return min(1.0, change.by["nr_throttled"] / periods) if periods else 0.0


def _limits_memory(directory: str) -> bool | None:
    """Whether a cgroup has a limit of its own; None where it does not say."""
    answer = None
    for name in ("memory.high", "memory.max", "memory.limit_in_bytes"):
        raw = read_bounded(f"{directory}/{name}", 64)
        if raw is not None:
            answer = False
            limit = number(raw)
            if limit is not None and limit < NO_LIMIT_V1:
                return True
    return answer


def _pairs(raw: bytes | None) -> dict[str, int]:
    """Lines of a name and a number."""
    pairs: dict[str, int] = {}
    for line in (raw or b"").splitlines():
        name, _, value = line.partition(b" ")
        if value.isdigit() and len(value) <= 20:
            pairs[name.decode("ascii", "replace")] = int(value)
    return pairs


class Cgroups:
    """Cgroups of all ranks, each read once per pass."""

    def __init__(self, root: str) -> None:
        self._hierarchies = Hierarchies(root)
        self._groups: dict[Place, Group] = {}
        self._quotas: dict[str, Quota] = {}

    def of(self, raw: bytes) -> Group:
        """The cgroup that a /proc/PID/cgroup names."""
        place = self._hierarchies.place(raw)
        if place not in self._groups:
            self._groups[place] = Group(place, self._quotas)
        return self._groups[place]

    def keep(self, used: Collection[Group]) -> None:
        """Forget the others; their files are closed."""
        self._groups = {place: g for place, g in self._groups.items() if g in used}
        levels = {quota for group in self._groups.values() for quota in group.quotas}
        self._quotas = {path: quota for path, quota in self._quotas.items() if quota in levels}
