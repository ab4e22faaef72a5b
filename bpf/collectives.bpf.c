// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
/*
 * One program for every probe site: the attach cookie says which link and which
 * row of `sites` fired, the row says where the arguments are.
 *
 * No kernel types and no per-CPU scratch: uprobe programs can be preempted, and
 * kernels from 6.13 on give programs with 64 bytes of stack or more a per-CPU
 * stack. Everything is written straight into the reserved record.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "events.h"
#include "registers.h"
#include "site.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define EEXIST 17
#define COMM_BOUND_VALUE (~0u)
#define OUTS 16 /* out pointers remembered per process */

/* One shape for all hash keys, so that one stack slot serves them all. */
struct key {
	__u32 tgid;
	__u32 slot;
	__u64 word;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} lifecycle SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} bulk SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STRAGD_SITES_MAX);
	__type(key, __u32);
	__type(value, struct stragd_site);
} sites SEC(".maps");

/* (tgid, 0, instruction pointer) -> link that delivers this address. Two overlay
 * mounts of one file are two files to user space and one to uprobes: without an
 * owner each hit would be delivered twice. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, __u32);
} claims SEC(".maps");

/* (tgid, 0, communicator) -> COMM_BOUND_VALUE, or the number of initialisations
 * that the process had begun when the search for its out pointer failed. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, __u32);
} comms SEC(".maps");

/* (tgid, slot, 0) -> address of an out pointer */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, __u64);
} outs SEC(".maps");

/* tgid -> initialisations begun */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} inits SEC(".maps");

/* tgid -> dropped here */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} ignored SEC(".maps");

struct stragd_counters counters;

/* Never read: brings the record's layout into the object's type information. */
const struct stragd_event record_layout = {};

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static __always_inline __u64 base_register(void *ctx, __u8 base)
{
	__u64 value;

	switch (base) {
	case 0:
		READ_REGISTER(value, ctx, REGISTER_0);
		break;
	case 1:
		READ_REGISTER(value, ctx, REGISTER_1);
		break;
	case 2:
		READ_REGISTER(value, ctx, REGISTER_2);
		break;
	case 3:
		READ_REGISTER(value, ctx, REGISTER_3);
		break;
	case 4:
		READ_REGISTER(value, ctx, REGISTER_4);
		break;
	case 5:
		READ_REGISTER(value, ctx, REGISTER_5);
		break;
	case 6:
		READ_REGISTER(value, ctx, REGISTER_6);
		break;
	case 7:
		READ_REGISTER(value, ctx, REGISTER_7);
		break;
	default:
		READ_REGISTER(value, ctx, REGISTER_SP);
		break;
	}
	return value;
}

/* Cut a value to its width: high halves of argument registers are undefined. */
static __always_inline __u64 narrow(__u64 value, __u8 width, int sign)
{
	__u32 shift = width >= 8 ? 0 : width == 4 ? 32 : width == 2 ? 48 : 56;

	value <<= shift;
	return sign ? (__u64)((__s64)value >> shift) : value >> shift;
}

/* Is this link the one that delivers this address of this process? */
static __always_inline int owns(void *ctx, struct key *key, __u32 link)
{
	__u32 *owner;
	__u64 ip;

	READ_REGISTER(ip, ctx, REGISTER_IP);
	key->slot = 0;
	key->word = ip;
	owner = bpf_map_lookup_elem(&claims, key);
	if (!owner) {
		long error = bpf_map_update_elem(&claims, key, &link, BPF_NOEXIST);

		if (!error)
			return 1;
		if (error != -EEXIST) {
			count(&counters.claim_full);
			return 1;
		}
		owner = bpf_map_lookup_elem(&claims, key);
		if (!owner)
			return 1;
	}
	if (*owner == link)
		return 1;
	count(&counters.duplicates[link & (STRAGD_LINKS_MAX - 1)]);
	return 0;
}

/* Remember where a new communicator will be written; a few slots for an array of
 * them (ncclCommInitAll). */
static __always_inline void remember_out(struct key *key, __u64 out, __u64 number)
{
	__u32 tgid = key->tgid;
	__u32 *begun = bpf_map_lookup_elem(&inits, &tgid);
	__u32 next = begun ? *begun : 0;

	if (number > OUTS)
		number = OUTS;
	key->word = 0;
	for (__u32 i = 0; i < OUTS; i++) {
		if (i >= number)
			break;
		key->slot = next & (OUTS - 1);
		if (bpf_map_update_elem(&outs, key, &out, BPF_ANY))
			count(&counters.comm_full);
		out += 8;
		next++;
	}
	/* Two threads that race here lose one slot, not more. */
	if (next == COMM_BOUND_VALUE)
		next = 0;
	if (bpf_map_update_elem(&inits, &tgid, &next, BPF_ANY))
		count(&counters.comm_full);
}

/* First use of a communicator: which out pointer holds it? Returns the pointer's
 * address, 0 where none does or where it is known already. */
static __always_inline __u64 bind(struct key *key, __u64 comm)
{
	__u64 found = 0, *out, held;
	__u32 *known, *begun, now;

	key->slot = 0;
	key->word = comm;
	known = bpf_map_lookup_elem(&comms, key);
	if (known && *known == COMM_BOUND_VALUE)
		return 0;
	now = key->tgid;
	begun = bpf_map_lookup_elem(&inits, &now);
	now = begun ? *begun : 0;
	if (known && *known == now)
		return 0;
	key->word = 0;
	for (__u32 i = 0; i < OUTS; i++) {
		key->slot = i;
		out = bpf_map_lookup_elem(&outs, key);
		if (!out)
			break;
		/* Searches fail by nature (memory reused or gone): not counted. */
		if (bpf_probe_read_user(&held, sizeof(held), (void *)*out))
			continue;
		if (held == comm) {
			found = *out;
			break;
		}
	}
	if (found)
		now = COMM_BOUND_VALUE;
	key->slot = 0;
	key->word = comm;
	if (bpf_map_update_elem(&comms, key, &now, BPF_ANY))
		count(&counters.comm_full);
	return found;
}

static __always_inline void announce(__u64 id, __u64 comm, __u32 tgid, __u32 tid, __u64 cookie)
{
	struct stragd_event *bound;

	bound = bpf_ringbuf_reserve(&lifecycle, sizeof(*bound), 0);
	if (!bound) {
		count(&counters.lost[STRAGD_COMM_BOUND]);
		return;
	}
	bound->time_ns = bpf_ktime_get_ns();
	bound->tgid = tgid;
	bound->tid = tid;
	bound->what = STRAGD_COMM_BOUND;
	bound->function = STRAGD_FN_NONE;
	bound->datatype = STRAGD_NO_TYPE;
	bound->reduction = STRAGD_NO_TYPE;
	bound->peer = STRAGD_NO_PEER;
	bound->count = 0;
	bound->comm = comm;
	bound->id = id;
	bound->aux = 0;
	bound->site = cookie;
	bound->link = cookie >> 32;
	bound->flags = 0;
	count(&counters.events[STRAGD_COMM_BOUND]);
	bpf_ringbuf_submit(bound, BPF_RB_NO_WAKEUP);
}

/* The value at a place; a failed read of user memory gives 0 and says so. */
static __always_inline __u64 follow(void *ctx, const struct stragd_place *place, __u16 *failed)
{
	__u32 depth = place->flags & STRAGD_PLACE_DEPTH;
	__u64 value, address;

	if (place->kind == STRAGD_PLACE_CONST)
		return (__s64)place->offsets[0];
	value = base_register(ctx, place->base);
	for (__u32 i = 0; i < STRAGD_DEPTH_MAX; i++) {
		long error;

		if (i >= depth)
			break;
		address = value + (__s64)place->offsets[i];
		value = 0;
		if (i + 1 == depth && place->width == 4)
			error = bpf_probe_read_user(&value, 4, (void *)address);
		else
			error = bpf_probe_read_user(&value, 8, (void *)address);
		if (error) {
			*failed = STRAGD_READ_FAILED;
			count(&counters.read_failed);
			return 0;
		}
	}
	return narrow(value, place->width, place->flags & STRAGD_PLACE_SIGNED);
}

SEC("uprobe")
int collective(void *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u64 both = bpf_get_current_pid_tgid();
	struct key key = {.tgid = both >> 32};
	__u32 index = cookie;
	struct stragd_event *event;
	struct stragd_site *site;
	__u64 *values, value;
	__u16 flags, failed = 0;
	__u8 what;

	if (bpf_map_lookup_elem(&ignored, &key.tgid)) {
		count(&counters.ignored);
		return 0;
	}
	site = bpf_map_lookup_elem(&sites, &index);
	if (!site || !site->what) {
		count(&counters.bad_site);
		return 0;
	}
	if (!owns(ctx, &key, cookie >> 32))
		return 0;

	flags = site->flags;
	what = site->what & 31;
	/* Before the record is reserved: who reads both rings then sees the binding
	 * first. */
	if (flags & STRAGD_SITE_USES) {
		value = follow(ctx, &site->places[STRAGD_FIELD_COMM], &failed);
		failed = 0;
		if (value) {
			__u64 out = bind(&key, value);

			if (out)
				announce(out, value, both >> 32, both, cookie);
		}
	}

	if (flags & STRAGD_SITE_LIFECYCLE)
		event = bpf_ringbuf_reserve(&lifecycle, sizeof(*event), 0);
	else
		event = bpf_ringbuf_reserve(&bulk, sizeof(*event), 0);
	if (!event) {
		count(&counters.lost[what]);
		return 0;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->tgid = both >> 32;
	event->tid = both;
	event->what = what;
	event->function = site->function;
	event->site = cookie;
	event->link = cookie >> 32;
	values = &event->count;
	for (__u32 i = 0; i < STRAGD_FIELDS; i++) {
		value = follow(ctx, &site->places[i], &failed);
		if (i <= STRAGD_FIELD_AUX)
			values[i] = value;
		else if (i == STRAGD_FIELD_PEER)
			event->peer = value;
		else if (i == STRAGD_FIELD_DATATYPE)
			event->datatype = value;
		else
			event->reduction = value;
	}
	event->flags = failed;
	if ((flags & STRAGD_SITE_BYTES) && event->id)
		event->count /= event->id;
	value = flags & STRAGD_SITE_OUT_ID ? event->id : event->comm;
	index = what == STRAGD_COMM_INIT_ALL ? event->aux : 1;
	count(&counters.events[what]);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);

	if (flags & (STRAGD_SITE_OUT_COMM | STRAGD_SITE_OUT_ID)) {
		remember_out(&key, value, index);
	} else if (flags & STRAGD_SITE_ENDS) {
		key.slot = 0;
		key.word = value;
		bpf_map_delete_elem(&comms, &key);
	}
	return 0;
}
