"""The BPF program of the deep look, and the few headers that bcc wants to compile it.

Tracepoints only, so it runs on kernels without kprobes. Every field of a record is read at the
place that the kernel's own ``format`` file gives (``FIELDS``; `look` turns them into macros), so
the program uses no structure of the kernel and needs no kernel headers: ``HEADERS`` are all that
bcc itself includes.

Each program looks up the thread first and ends there when it belongs to neither rank.
"""

from __future__ import annotations

MAX_THREADS = 16384

FIELDS = {
    "sched/sched_switch": ("prev_pid", "prev_state", "next_pid"),
    "sched/sched_wakeup": ("pid",),
    "sched/sched_process_fork": ("parent_pid", "child_pid"),
    "sched/sched_process_exit": ("pid",),
    "block/block_rq_insert": ("dev", "sector"),
    "block/block_rq_issue": ("dev", "sector"),
    "block/block_rq_complete": ("dev", "sector", "nr_sector"),
}
"""Tracepoint -> fields that the program reads, as macros ``SCHED_SWITCH_PREV_PID`` and the like."""

FUNCTIONS = {
    "sched/sched_switch": "why_switch",
    "sched/sched_wakeup": "why_wakeup",
    "sched/sched_wakeup_new": "why_wakeup",
    "sched/sched_process_fork": "why_fork",
    "sched/sched_process_exit": "why_exit",
    "block/block_rq_insert": "why_insert",
    "block/block_rq_issue": "why_issue",
    "block/block_rq_complete": "why_complete",
}

TEXT = (
    f"#define MAX_THREADS {MAX_THREADS}"
    + r"""
#define AT(type, place) (*(type *)((char *)ctx + (place)))
#define RUNNABLE(state) (!((state) & 0xff)) /* above are the marks of a preempted thread */
#define USER_STACK (1 << 8)

struct thread {
    u64 in, out, woke; /* when it last got a CPU, left it, became runnable; 0: not */
    u64 ran, waited;   /* ns on a CPU, ns runnable without one */
    u64 switches;      /* times that it got a CPU */
    u32 group, state;
    s32 kernel, user;
};
struct total {
    u64 ran, waited, waits, longest, voluntary, involuntary;
};
struct wait_key {
    u32 group, tid, state;
    s32 kernel, user;
};
struct wait {
    u64 ns, count, longest;
};
struct request_key {
    u64 sector;
    u32 dev, unused;
};
struct request {
    u64 begin;
    u32 group, unused;
};
struct taker_key {
    u32 group, tid;
};
struct io {
    u64 ns, count, longest, sectors;
};

BPF_HASH(threads, u32, struct thread, MAX_THREADS);
BPF_HASH(waits, struct wait_key, struct wait, 16384);
BPF_HASH(requests, struct request_key, struct request, 8192);
BPF_HASH(takers, struct taker_key, u64, 4096); /* who got the CPU of a runnable thread */
BPF_STACK_TRACE(stacks, 8192);
BPF_ARRAY(totals, struct total, 2);
BPF_ARRAY(ios, struct io, 2);
BPF_ARRAY(lost, u64, 3); /* waits, stacks, threads */

static void drop(int which) {
    u64 *count = lost.lookup(&which);
    if (count) __sync_fetch_and_add(count, 1);
}

static void left(void *ctx, struct thread *t, long state, u32 next) {
    u64 now = bpf_ktime_get_ns();
    u32 group = t->group & 1;
    struct total *sum = totals.lookup(&group);
    if (t->in) {
        t->ran += now - t->in;
        if (sum) __sync_fetch_and_add(&sum->ran, now - t->in);
    }
    t->in = 0;
    t->out = now;
    t->woke = 0;
    t->state = state;
    if (RUNNABLE(state)) {
        if (sum) __sync_fetch_and_add(&sum->involuntary, 1);
        struct taker_key key = {group, next};
        u64 zero = 0, *taken = takers.lookup_or_try_init(&key, &zero);
        if (taken) __sync_fetch_and_add(taken, 1);
        return;
    }
    if (sum) __sync_fetch_and_add(&sum->voluntary, 1);
    t->kernel = stacks.get_stackid(ctx, 0);
    t->user = stacks.get_stackid(ctx, USER_STACK);
    if (t->kernel < 0) {
        t->kernel = -2; /* -1: it began before the look */
        drop(1);
    }
    if (t->user < 0) t->user = -1;
}

static void entered(struct thread *t, u32 tid) {
    u64 now = bpf_ktime_get_ns(), blocked = 0, waited = 0;
    u32 group = t->group & 1;
    if (t->out && RUNNABLE(t->state)) {
        waited = now - t->out;
    } else if (t->out) {
        u64 woke = t->woke > t->out ? t->woke : now;
        blocked = woke - t->out;
        waited = now - woke;
    }
    if (blocked) {
        struct wait_key key = {group, tid, t->state & 0xff, t->kernel, t->user};
        struct wait zero = {}, *w = waits.lookup_or_try_init(&key, &zero);
        if (w) {
            w->ns += blocked;
            w->count += 1;
            if (blocked > w->longest) w->longest = blocked;
        } else {
            drop(0);
        }
    }
    struct total *sum = totals.lookup(&group);
    if (sum && waited) {
        __sync_fetch_and_add(&sum->waited, waited);
        __sync_fetch_and_add(&sum->waits, 1);
        if (waited > sum->longest) sum->longest = waited;
    }
    t->waited += waited;
    t->switches += 1;
    t->in = now;
    t->out = 0;
}

int why_switch(void *ctx) {
    u32 prev = AT(u32, SCHED_SWITCH_PREV_PID), next = AT(u32, SCHED_SWITCH_NEXT_PID);
    struct thread *t = threads.lookup(&prev);
    if (t) left(ctx, t, AT(long, SCHED_SWITCH_PREV_STATE), next);
    t = threads.lookup(&next);
    if (t) entered(t, next);
    return 0;
}

int why_wakeup(void *ctx) {
    u32 tid = AT(u32, SCHED_WAKEUP_PID);
    struct thread *t = threads.lookup(&tid);
    if (t && t->out && !t->woke) t->woke = bpf_ktime_get_ns();
    return 0;
}

int why_fork(void *ctx) {
    u32 parent = AT(u32, SCHED_PROCESS_FORK_PARENT_PID);
    struct thread *t = threads.lookup(&parent);
    if (!t) return 0;
    u32 child = AT(u32, SCHED_PROCESS_FORK_CHILD_PID);
    struct thread made = {.group = t->group, .kernel = -1, .user = -1};
    made.out = bpf_ktime_get_ns(); /* runnable from its birth on */
    if (threads.update(&child, &made)) drop(2);
    return 0;
}

int why_exit(void *ctx) {
    u32 tid = AT(u32, SCHED_PROCESS_EXIT_PID);
    struct thread *t = threads.lookup(&tid);
    if (!t) return 0;
    u32 group = t->group & 1;
    struct total *sum = totals.lookup(&group);
    if (sum && t->in) __sync_fetch_and_add(&sum->ran, bpf_ktime_get_ns() - t->in);
    threads.delete(&tid);
    return 0;
}

static int begun(u32 dev, u64 sector) {
    u32 tid = bpf_get_current_pid_tgid();
    struct thread *t = threads.lookup(&tid);
    if (!t) return 0;
    struct request_key key = {.sector = sector, .dev = dev};
    struct request made = {.begin = bpf_ktime_get_ns(), .group = t->group & 1};
    requests.insert(&key, &made); /* an insert before the issue counts as the beginning */
    return 0;
}

int why_insert(void *ctx) {
    return begun(AT(u32, BLOCK_RQ_INSERT_DEV), AT(u64, BLOCK_RQ_INSERT_SECTOR));
}

int why_issue(void *ctx) {
    return begun(AT(u32, BLOCK_RQ_ISSUE_DEV), AT(u64, BLOCK_RQ_ISSUE_SECTOR));
}

int why_complete(void *ctx) {
    struct request_key key = {};
    key.sector = AT(u64, BLOCK_RQ_COMPLETE_SECTOR);
    key.dev = AT(u32, BLOCK_RQ_COMPLETE_DEV);
    struct request *r = requests.lookup(&key);
    if (!r) return 0;
    u64 ns = bpf_ktime_get_ns() - r->begin;
    u32 group = r->group & 1;
    struct io *io = ios.lookup(&group);
    if (io) {
        __sync_fetch_and_add(&io->ns, ns);
        __sync_fetch_and_add(&io->count, 1);
        __sync_fetch_and_add(&io->sectors, AT(u32, BLOCK_RQ_COMPLETE_NR_SECTOR));
        if (ns > io->longest) io->longest = ns;
    }
    requests.delete(&key);
    return 0;
}
"""
)

HEADERS = {
    "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
    "linux/version.h": (
        "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
        "#define LINUX_VERSION_CODE KERNEL_VERSION(4, 18, 0)\n"
    ),
    "linux/types.h": """
#pragma once
typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u64 __aligned_u64 __attribute__((aligned(8)));
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16, __le16, __sum16;
typedef __u32 __be32, __le32, __wsum;
typedef __u64 __be64, __le64;
typedef unsigned long size_t, uintptr_t;
typedef _Bool bool;
#define NULL ((void *)0)
#define __always_inline inline __attribute__((always_inline))
""",
    "linux/bpf_common.h": "",
    "linux/log2.h": "#define roundup_pow_of_two(n) (n) /* the sizes above are such */\n",
    "asm/page.h": "",
    "uapi/linux/bpf.h": "",
    "uapi/linux/if_ether.h": "",
    "uapi/linux/if_packet.h": "",
    "uapi/linux/ptrace.h": "",
}
"""What bcc's own prelude includes, as far as this program needs it: path -> text."""
