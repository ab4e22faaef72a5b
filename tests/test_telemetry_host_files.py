"""The host readers on files: cgroup v1, v2 and hybrid, PSI, the node, and texts that lie."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd.telemetry.cgroup import LIMITS_EVERY
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.node import cpu_list
from stragd.telemetry.pressure import parse
from stragd.telemetry.quantities_host import NIC, NODE, PROCESS
from stragd.telemetry.rank_process import LOOK_EVERY
from stragd.telemetry.sample import Sample
from stragd.telemetry.tasks import parse_stat

PID, START = 42, 1000
SECOND = 1_000_000_000
PSI = (
    "some avg10=9.00 avg60=9.00 avg300=9.00 total={}\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
)
V2 = "cgroup2 {} cgroup2 rw 0 0\n"
V1 = "cgroup {0}/{1} cgroup rw,{1} 0 0\n"
POD = "kubepods.slice/pod1.slice/cri-1.scope"


class Files:
    """A root with one process, rewritten between windows of ten seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = SECOND
        proc = f"proc/{PID}"
        self.stat()
        self.write(f"{proc}/status", "Name:\trank\nVmSwap:\t12 kB\nvoluntary_ctxt_switches:\t0\n")
        self.write(f"{proc}/io", "rchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")
        self.write(f"{proc}/cgroup", "0::/\n")
        self.write(f"{proc}/environ", "")
        self.write(f"{proc}/task/{PID}/schedstat", "0 0 0\n")
        self.write(f"{proc}/task/{PID}/children", "")
        self.write("proc/self/mounts", "")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def stat(self, utime: int = 0, faults: int = 0, comm: str = "rank") -> None:
        fields = ["0"] * 52
        for number, value in ((3, "S"), (12, faults), (14, utime), (20, 1), (22, START)):
            fields[number - 1] = str(value)
        self.write(f"proc/{PID}/stat", f"{PID} ({comm}) " + " ".join(fields[2:]) + "\n")

    def reader(self) -> Files:
        self.host = HostTelemetry(self.root, clock=lambda: self.now)
        self.window()
        return self

    def window(self) -> Sample:
        self.now += 10 * SECOND
        (sample,) = self.host.read({PID: START}, 0, 1)
        assert set(sample.values) <= set(PROCESS)
        return sample

    def node(self) -> dict[str, float]:
        self.now += 10 * SECOND
        values = dict(self.host.read_node(0, 1).values)
        assert set(values) <= set(NODE)
        return values


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path)
    yield made
    vars(made).clear()  # the reader's clock refers to it, and the reader holds files


def v2(files: Files, path: str = POD) -> str:
    """A unified hierarchy with the process in a pod's container; returns its directory."""
    files.write("proc/self/mounts", V2.format("/sys/fs/cgroup"))
    files.write(f"proc/{PID}/cgroup", f"0::/{path}\n")
    directory = "sys/fs/cgroup"
    for part in path.split("/"):
        directory += f"/{part}"
        files.write(f"{directory}/cpu.max", "max 100000\n")
        files.write(f"{directory}/cpu.stat", "usage_usec 5\n")
        files.write(f"{directory}/memory.max", "max\n")
        files.write(f"{directory}/memory.high", "max\n")
        files.write(f"{directory}/memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        files.write(f"{directory}/cgroup.events", "populated 1\nfrozen 0\n")
    return directory


def quota_stat(periods: int, throttled: int, usec: int) -> str:
    return f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {usec}\n"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_v2_a_quota_at_any_level_throttles(files: Files, level: int) -> None:
    v2(files)
    parts = POD.split("/")[: level + 1]
    directory = "sys/fs/cgroup/" + "/".join(parts)
    files.write(f"{directory}/cpu.max", "200000 100000\n")
    files.write(f"{directory}/cpu.stat", quota_stat(100, 10, 1_000_000))
    files.reader()
    files.write(f"{directory}/cpu.stat", quota_stat(200, 35, 3_500_000))
    values = files.window().values
    assert values["throttled_share"] == 0.25
    assert values["throttled_periods_share"] == 0.25
    # 64 CPUs that wait for one quota count 64 times.
    files.write(f"{directory}/cpu.stat", quota_stat(300, 135, 643_500_000))
    assert files.window().values["throttled_share"] == 1


def test_v2_without_a_quota_nothing_is_throttled_and_without_files_nothing_is_known(
    files: Files,
) -> None:
    directory = v2(files)
    assert files.reader().window().values["throttled_share"] == 0
    (files.root / directory / "cpu.max").unlink()
    other = Files(files.root)  # reads anew
    v2(other)
    (files.root / directory / "cpu.max").unlink()
    assert "throttled_share" not in other.reader().window().values


def test_v2_memory_events_of_the_nearest_limit(files: Files) -> None:
    directory = v2(files)
    pod = directory.rpartition("/")[0]
    files.write(f"{pod}/memory.max", "1073741824\n")
    files.reader()
    files.write(f"{pod}/memory.events", "low 0\nhigh 7\nmax 3\noom 1\noom_kill 1\n")
    files.write(f"{directory}/memory.events", "low 0\nhigh 90\nmax 90\noom 9\noom_kill 9\n")
    values = files.window().values
    assert values["cgroup_memory_high_delta"] == 7
    assert values["cgroup_memory_max_delta"] == 3
    assert values["cgroup_oom_delta"] == 1


def test_v2_a_memory_limit_that_comes_later(files: Files) -> None:
    directory = v2(files)
    values = files.reader().window().values
    assert (values["cgroup_memory_high_delta"], values["cgroup_memory_max_delta"]) == (0, 0)
    assert "cgroup_oom_delta" not in values  # the node's memory may have run out
    files.write(f"{directory}/memory.high", "1048576\n")
    for high in range(10, 20 * LIMITS_EVERY, 10):
        files.write(f"{directory}/memory.events", f"low 0\nhigh {high}\nmax 0\noom_kill 0\n")
        if files.window().values.get("cgroup_memory_high_delta") == 10:
            break
    else:
        pytest.fail("the limit was not seen")
    for name in ("memory.high", "memory.max"):
        (files.root / directory / name).unlink()
    other = Files(files.root)  # reads anew
    assert "cgroup_memory_max_delta" not in other.reader().window().values


def test_v2_pressure_and_freezing(files: Files) -> None:
    directory = v2(files)
    for name in ("cpu", "memory", "io"):
        files.write(f"{directory}/{name}.pressure", PSI.format(0, 0))
    files.reader()
    files.write(f"{directory}/io.pressure", PSI.format(4_000_000, 1_000_000))
    files.write(f"{directory}/cgroup.events", "populated 1\nfrozen 1\n")
    sample = files.window()
    assert sample.values["pressure_io_share"] == 0.4
    assert sample.values["pressure_io_full_share"] == 0.1
    assert sample.values["pressure_cpu_share"] == 0
    assert sample.values["stopped_share"] == 0.5
    assert "its cgroup is frozen" in sample.notes


def test_the_root_cgroup_has_no_pressure_of_its_own(files: Files) -> None:
    files.write("proc/self/mounts", V2.format("/sys/fs/cgroup"))
    files.write("sys/fs/cgroup/io.pressure", PSI.format(0, 0))
    files.reader()
    files.write("sys/fs/cgroup/io.pressure", PSI.format(10**7, 0))
    values = files.window().values
    assert "pressure_io_share" not in values
    assert values["throttled_share"] == 0


@pytest.mark.parametrize("hybrid", [False, True])
def test_v1(files: Files, hybrid: bool) -> None:
    base, job = "sys/fs/cgroup", "slurm/job_7/step_0"
    mounts = "".join(V1.format(f"/{base}", c) for c in ("cpu,cpuacct", "memory", "freezer"))
    files.write("proc/self/mounts", mounts + (V2.format(f"/{base}/unified") if hybrid else ""))
    files.write(
        f"proc/{PID}/cgroup",
        f"5:freezer:/{job}\n4:memory:/{job}\n2:cpu,cpuacct:/{job}\n1:name=systemd:/\n0::/unit\n",
    )
    cpu = f"{base}/cpu,cpuacct/{job}"
    for directory, quota in ((cpu, "-1"), (cpu.rpartition("/")[0], "150000")):
        files.write(f"{directory}/cpu.cfs_quota_us", f"{quota}\n")
        files.write(f"{directory}/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    files.write(f"{cpu.rpartition('/slurm')[0]}/slurm/cpu.cfs_quota_us", "-1\n")
    memory = f"{base}/memory/{job}"
    files.write(f"{memory}/memory.limit_in_bytes", "9223372036854771712\n")
    job_memory = memory.rpartition("/")[0]
    files.write(f"{job_memory}/memory.limit_in_bytes", "1073741824\n")
    files.write(f"{job_memory}/memory.failcnt", "5\n")
    files.write(f"{job_memory}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    files.write(f"{base}/freezer/{job}/freezer.state", "THAWED\n")
    files.write(f"{base}/unified/unit/cpu.pressure", PSI.format(0, 0))
    files.reader()
    parent = cpu.rpartition("/")[0]
    files.write(
        f"{parent}/cpu.stat", f"nr_periods 100\nnr_throttled 80\nthrottled_time {6 * 10**9}\n"
    )
    files.write(f"{job_memory}/memory.failcnt", "9\n")
    files.write(f"{job_memory}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    files.write(f"{base}/freezer/{job}/freezer.state", "FROZEN\n")
    files.write(f"{base}/unified/unit/cpu.pressure", PSI.format(10**6, 0))
    values = files.window().values
    assert values["throttled_share"] == 0.6
    assert values["throttled_periods_share"] == 0.8
    assert values["cgroup_memory_max_delta"] == 4
    assert values["cgroup_oom_delta"] == 1
    assert values["stopped_share"] == 0.5
    assert values.get("pressure_cpu_share") == (0.1 if hybrid else None)


def test_a_cgroup_outside_of_our_namespace_is_unknown(files: Files) -> None:
    v2(files)
    files.write("sys/fs/secret/cpu.max", "1 100000\n")
    files.write(f"proc/{PID}/cgroup", "0::/../secret\n")
    values = files.reader().window().values
    assert {"throttled_share", "pressure_cpu_share"}.isdisjoint(values)


def test_a_process_that_is_moved_to_another_cgroup(files: Files) -> None:
    directory = v2(files)
    files.write(f"{directory}/cpu.max", "100000 100000\n")
    files.write(f"{directory}/cpu.stat", quota_stat(100, 10, 10**6))
    files.reader()
    v2(files, "other.slice")
    files.write("sys/fs/cgroup/other.slice/cpu.max", "100000 100000\n")
    files.write("sys/fs/cgroup/other.slice/cpu.stat", quota_stat(1, 1, 1))
    for _ in range(LOOK_EVERY):  # by the next look it is noticed
        files.window()
    files.write("sys/fs/cgroup/other.slice/cpu.stat", quota_stat(11, 6, 5_000_001))
    assert files.window().values["throttled_share"] == 0.5


# The process


def test_rates_are_over_the_time_between_two_readings(files: Files) -> None:
    files.reader()
    files.stat(utime=2500, faults=30, comm="a) R 1 (b")
    files.write(f"proc/{PID}/task/{PID}/schedstat", f"{3 * SECOND} {4 * SECOND} 5\n")
    files.write(f"proc/{PID}/io", "rchar: 9\nread_bytes: 1000\nwrite_bytes: 0\n")
    values = files.window().values
    assert values["cpu_share"] == 2.5
    assert values["major_faults_per_s"] == 3
    assert values["run_queue_share"] == 0.4
    assert values["read_bytes_per_s"] == 100
    assert values["swap_bytes"] == 12288
    assert "disk_wait_share" not in values


@pytest.mark.parametrize("step", [0, -(10**12)])
def test_a_clock_that_stands_or_goes_back_gives_no_rates(files: Files, step: int) -> None:
    files.reader()
    files.stat(utime=2500)
    files.now += step - 10 * SECOND
    assert "cpu_share" not in files.window().values
    files.stat(utime=3500)
    assert files.window().values["cpu_share"] == 1


def test_an_environment_that_cannot_be_read_is_said_to_be(files: Files) -> None:
    (files.root / f"proc/{PID}/environ").unlink()
    assert "its environment cannot be read" in files.reader().window().notes


def test_tcp_counters(files: Files) -> None:
    names, values = "Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs", "Tcp: 1 -1 5 {} {}"
    text = f"Ip: Forwarding\nIp: 2\n{names}\n{values}\nUdp: InDatagrams\nUdp: 1\n"
    files.write(f"proc/{PID}/net/snmp", text.format(1000, 10))
    files.reader()
    files.write(f"proc/{PID}/net/snmp", text.format(1990, 20))
    assert files.window().values["retransmits_ppm"] == 10_000
    assert "retransmits_ppm" not in files.window().values  # nothing was sent: no rate


def test_no_text_breaks_the_readers(files: Files) -> None:
    directory = v2(files)
    files.write(f"{directory}/cpu.max", "100000 100000\n")
    files.write("proc/sys/kernel/task_delayacct", "1\n")
    files.reader()
    random_ = random.Random(6)
    paths = [p for p in files.root.rglob("*") if p.is_file()]
    for _ in range(400):
        path = random_.choice(paths)
        good = path.read_bytes()
        bad = bytearray(good)
        for _ in range(random_.randrange(1, 6)):
            place = random_.randrange(len(bad) + 1)
            bad[place : place + random_.randrange(4)] = random_.choice(
                [b"", b"-", b"9" * 30, b"\0", b"\xff", b" ", b"\n", b":", b"max", b")", b".."]
            )
        path.write_bytes(bad)
        sample = files.window()
        assert not sample.silent or not sample.values
        files.node()
        path.write_bytes(good)
    HostTelemetry(files.root).read({PID: START, -1: 0, 2**40: 1}, 0, 1)


# The node


def test_the_node(files: Files) -> None:
    def write(ticks: list[int], swapped: int, load: str) -> None:
        files.write("proc/stat", "cpu  " + " ".join(map(str, ticks)) + " 0 0\ncpu0 1 2 3\n")
        files.write("proc/vmstat", f"nr_free_pages 5\npswpin {swapped}\npswpout 3\n")
        files.write("proc/loadavg", f"{load} 0.00 0.00 1/2 3\n")

    files.write("sys/devices/system/cpu/online", "0-3\n")
    write([100, 0, 100, 800, 0, 0, 0, 0], 10, "1.00")
    for name in ("cpu", "memory", "io"):
        files.write(f"proc/pressure/{name}", PSI.format(5, 0))
    cpufreq = "sys/devices/system/cpu/cpu0/cpufreq"
    files.write(f"{cpufreq}/scaling_cur_freq", "1200000\n")
    files.write(f"{cpufreq}/cpuinfo_max_freq", "3500000\n")
    files.reader()
    files.node()
    write([200, 0, 200, 1550, 0, 0, 0, 50], 60, "6.00")
    files.write("proc/pressure/memory", PSI.format(2_000_005, 0))
    values = files.node()
    assert values["steal_share"] == 0.05
    assert values["swap_in_per_s"] == 5
    assert values["load_per_cpu"] == 1.5
    assert values["pressure_memory_share"] == 0.2
    assert values["pressure_cpu_share"] == 0
    # The rank was last on CPU 0.
    assert (values["cpu_frequency_mhz"], values["cpu_frequency_max_mhz"]) == (1200, 3500)


def test_a_node_that_says_nothing(tmp_path: Path) -> None:
    host = HostTelemetry(tmp_path)
    host.read_node(0, 1)
    sample = host.read_node(1, 2)
    assert not sample.values
    assert sample.model == "cpu/unknown"


# Tables and parsers


def test_every_name_ends_in_its_unit() -> None:
    units = {
        "share": "share",
        "CPUs": "share",
        "Gbit/s": "gbps",
        "MHz": "mhz",
        "byte": "bytes",
        "byte/s": "bytes_per_s",
        "1/s": "per_s",
        "pages/s": "per_s",
        "ticks/s": "per_s",
        "events": "delta",
        "symbols": "delta",
        "lanes": "count",
        "ports": "count",
        "processes": "count",
        "tasks": "per_cpu",
        "per 10^6": "ppm",
        "per 10^6 sent": "ppm",
        "per 10^6 received": "ppm",
        "ms": "ms",
        "hosts": "count",
    }
    for name, (unit, meaning) in (PROCESS | NODE | NIC).items():
        assert name.endswith("_" + units[unit]), name
        assert meaning


def test_pressure_text() -> None:
    assert parse(PSI.format(7, 8).encode()) == {"some": 7, "full": 8}
    assert parse(b"some avg10=0.00 total=3\n") == {"some": 3}
    assert parse(b"some total=x\nfull total=\n\xff") == {}


def test_cpu_lists() -> None:
    assert cpu_list(b"0-2,8\n") == {0, 1, 2, 8}
    assert cpu_list(b"0-99999999999") == frozenset()
    assert cpu_list(b"x,-2,5,7-6") == {5}
    assert cpu_list(None) == frozenset()


def test_stat_text() -> None:
    assert parse_stat(b"1 (x) S 1") is None
    assert parse_stat(b"") is None
    assert parse_stat(None) is None
