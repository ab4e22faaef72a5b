"""Every number that the host and NIC readers report: name -> (unit, meaning)."""

from __future__ import annotations

from typing import Final

Quantities = dict[str, tuple[str, str]]

# Pressure is the kernel's PSI: "some" unless the name says "full".
_PRESSURE: Final[Quantities] = {
    "pressure_cpu_share": ("share", "some task was ready and had no CPU"),
    "pressure_memory_share": ("share", "some task waited for memory to be reclaimed or read back"),
    "pressure_io_share": ("share", "some task waited for block I/O"),
    "pressure_cpu_full_share": (
        "share",
        "all runnable tasks were without a CPU (a quota is used up)",
    ),
    "pressure_memory_full_share": ("share", "all tasks waited for memory at once"),
    "pressure_io_full_share": ("share", "all tasks waited for block I/O at once"),
}

PROCESS: Final[Quantities] = {
    "run_queue_share": (
        "share",
        "the worst of the main thread and the busiest ones was ready but not running (schedstat)",
    ),
    "cpu_share": ("CPUs", "CPU time of all threads over the window; 2.5 is two CPUs and a half"),
    "major_faults_per_s": ("1/s", "page faults of all threads that had to read a disk"),
    "voluntary_switches_per_s": ("1/s", "times the main thread went to sleep by itself"),
    "involuntary_switches_per_s": ("1/s", "times the main thread was taken off its CPU"),
    "read_bytes_per_s": ("byte/s", "read from block devices, by the process and its workers"),
    "disk_wait_share": (
        "share",
        "longest wait for block I/O of one task: the main and busiest threads and the workers",
    ),
    "stopped_share": (
        "share",
        "stopped, traced or frozen, by its state at both ends of the window and at each glance",
    ),
    "swap_bytes": ("byte", "memory of the process that is swapped out"),
    "numa_remote_share": ("share", "CPU time on CPUs of another NUMA node than the GPU's"),
    "worker_count": ("processes", "child processes that are followed"),
    "worker_cpu_share": ("CPUs", "CPU time of the workers together"),
    "worker_run_queue_share": ("share", "longest time a worker was ready but not running"),
    "worker_disk_wait_share": ("share", "mean wait for block I/O of the workers that did anything"),
    "throttled_share": (
        "share",
        "the cgroup, or one above it, was stopped for its CPU quota; at most 1, summed over CPUs",
    ),
    "throttled_periods_share": ("share", "quota periods in which it was stopped"),
    "cgroup_memory_high_delta": ("events", "throttled for exceeding memory.high"),
    "cgroup_memory_max_delta": ("events", "hit memory.max (v1: the limit) and had to reclaim"),
    "cgroup_oom_delta": ("events", "processes of the cgroup killed for lack of memory"),
    "retransmits_ppm": (
        "per 10^6",
        "TCP segments sent again of those sent, in the whole network namespace of the process",
    ),
    "tcp_rtt_ms": (
        "ms",
        "round trip of its TCP connections, smoothed; median over the other hosts it sends to",
    ),
    "tcp_rtt_least_ms": ("ms", "the shortest round trip to that host in the last five minutes"),
    "tcp_host_count": ("hosts", "other hosts that it sends to over TCP"),
    "tcp_lost_ppm": (
        "per 10^6",
        "TCP segments that it sent again and that were missing; all hosts but the worst",
    ),
    "tcp_out_of_order_ppm": (
        "per 10^6",
        "TCP segments that came to it out of order; all hosts but the worst",
    ),
    **_PRESSURE,
}

NODE: Final[Quantities] = {
    "steal_share": ("share", "CPU time that the hypervisor gave to others, of all CPUs"),
    "swap_in_per_s": ("pages/s", "pages read back from swap"),
    "cpu_frequency_mhz": ("MHz", "mean clock of the CPUs on which ranks last ran"),
    "cpu_frequency_max_mhz": ("MHz", "their highest clock by the hardware"),
    "load_per_cpu": ("tasks", "load average of one minute over the number of CPUs"),
    **_PRESSURE,
}

NIC: Final[Quantities] = {
    "rate_gbps": ("Gbit/s", "link rate now; absent while the link is down"),
    "rate_max_gbps": ("Gbit/s", "highest rate that the port supports"),
    "width_count": ("lanes", "lanes of the link"),
    "pcie_gbps": ("Gbit/s", "lanes × raw rate of the NIC's own PCIe link"),
    "pcie_max_gbps": ("Gbit/s", "the same at the best that the NIC can do"),
    "down_count": ("ports", "1 where the link is down"),
    "carrier_changes_delta": ("events", "times the link of the network device went up or down"),
    "link_downed_delta": ("events", "times the link failed"),
    "recovery_delta": ("events", "successful recoveries of the link"),
    "symbol_error_delta": ("symbols", "symbols received wrong"),
    "integrity_error_delta": ("events", "local link integrity errors"),
    "buffer_overrun_delta": ("events", "receive buffer overran because flow control failed"),
    "loss_sender_ppm": ("per 10^6 sent", "the other side missed packets of ours"),
    "loss_receiver_ppm": ("per 10^6 received", "packets missing, late or twice"),
    "timeout_ppm": ("per 10^6 sent", "no acknowledgement in time"),
    "not_ready_ppm": ("per 10^6 received", "a receiver had no buffer posted"),
    "cnp_handled_ppm": ("per 10^6 received", "congestion: told to slow down"),
    "cnp_ignored_ppm": ("per 10^6 received", "congestion notices without effect"),
    "cnp_sent_ppm": ("per 10^6 sent", "congestion: told others to slow down"),
    "ecn_marked_ppm": ("per 10^6 received", "packets marked by a congested switch"),
    "corruption_ppm": ("per 10^6 received", "damaged packets"),
    "host_side_delta": ("events", "errors between NIC and host: completions, PCIe, no buffers"),
    "pause_received_per_s": ("1/s", "the switch stopped us"),
    "pause_sent_per_s": ("1/s", "we stopped the switch: slow receiver or PCIe"),
    "xmit_wait_per_s": (
        "ticks/s",
        "data to send but no credit; the length of a tick is the device's, no share can be told",
    ),
    "transmit_bytes_per_s": ("byte/s", "sent"),
    "receive_bytes_per_s": ("byte/s", "received"),
    "packets_per_s": ("1/s", "sent and received"),
    "drops_per_s": ("1/s", "packets discarded by port, driver or stack"),
}
