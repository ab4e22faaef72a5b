"""What a thread waits for, by the functions on its kernel stack."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNKNOWN = "unknown (no kernel stack)"

_FAULT = re.compile(
    r"handle_mm_fault|(exc_|asm_exc_|do_)page_fault|do_user_addr_fault|do_mem_abort|faultin_page"
)

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        ("swap", r"do_swap_page|swap_read|swapin_"),
        ("memory reclaim", r"shrink_(node|lruvec|zones)|try_to_free_|mem_cgroup_handle_over_high"
                           r"|throttle_direct_reclaim|mem_cgroup_out_of_memory"),
        ("page faults", _FAULT.pattern),
        ("stopped by a signal or debugger", r"do_signal_stop|do_jobctl_trap|ptrace_stop"),
        ("frozen by a cgroup", r"do_freezer_trap|__refrigerator"),
        ("NFS", r"nfs\d?_|rpc_(wait|run|execute|call)"),
        ("Lustre", r"(ll|cl|osc|ldlm|ptlrpc|lov|mdc)_"),
        ("CephFS", r"ceph_"),
        ("SMB", r"(cifs|smb2?)_"),
        ("FUSE filesystem", r"fuse_"),
        ("9p filesystem", r"(p9|v9fs)_"),
        ("NVIDIA driver", r"(nvidia|nvkms|uvm|rm)_"),
        ("AMD GPU driver", r"(amdgpu|kfd|ttm)_"),
        ("RDMA driver", r"(ib_uverbs|mlx[45]|bnxt_re|irdma|efa|ionic)_"),
        ("disk", r"io_schedule|blk_mq_get_tag|submit_bio_wait|rq_qos_wait|folio_wait_bit"
                 r"|wait_on_page_bit|__wait_on_buffer|jbd2_log_wait|blkcg_maybe_throttle"
                 r"|iomap_dio|wait_transaction_locked|xfs_buf_|xlog_wait"),
        ("kernel lock", r"__mutex_lock|rwsem_down_|percpu_rwsem_wait|rt_mutex_slowlock"),
        ("network", r"(tcp|udp|inet|inet6|vsock|rds)_|sk_(wait_data|stream_wait)|inet_csk_"),
        ("Unix socket", r"unix_"),
        ("pipe", r"(anon_)?pipe_(read|write|wait)|wait_for_partner|fifo_open"),
        ("epoll", r"ep_poll|do_epoll_"),
        ("poll", r"do_sys_poll|poll_schedule_timeout|do_select|core_sys_select"),
        ("lock or condition (futex)", r"futex_|do_futex|__futex_"),
        ("sleep", r"do_nanosleep|hrtimer_nanosleep|alarm_timer_nsleep"),
        ("child process", r"do_wait\b|kernel_wait4|__do_wait"),
        ("io_uring", r"io_cqring_wait|io_sq_thread|io_wq_"),
        ("event", r"(eventfd|signalfd|timerfd|inotify)_read"),
        ("signal", r"do_sigtimedwait|sigsuspend|__(x64|arm64)_sys_pause"),
        ("terminal", r"n_tty_read"),
    )
)  # fmt: skip
"""The first rule that a function of the stack begins with; what is nearer the cause comes first."""

_SCHEDULER = re.compile(
    r"_*schedule(_timeout|_hrtimeout\w*|_preempt_disabled|_idle)?(\.\w+)*$|preempt_schedule|"
    r"wait_woken|__cond_resched"
)


def waits_for(frames: Sequence[str]) -> str:
    """Words for a kernel stack, innermost function first; ``UNKNOWN`` without one."""
    for words, rule in _RULES:
        if any(rule.match(frame) for frame in frames):
            return words
    for frame in frames:
        if frame and not is_scheduler(frame):
            return f"kernel function {frame[:60]}"
    return UNKNOWN


def in_page_fault(frames: Sequence[str]) -> bool:
    """Whether the wait is part of a page fault, whatever it waits for."""
    return any(_FAULT.match(frame) for frame in frames)


def is_scheduler(frame: str) -> bool:
    """Whether a kernel function is part of giving up the CPU, and says nothing about why."""
    return bool(_SCHEDULER.match(frame))
