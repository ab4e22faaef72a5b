// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only
/*
 * One program for every probe site: the attach cookie says which link and which
 * row of `sites` fired, the row says where the arguments are.
 *
 * No kernel types and no per-CPU scratch: uprobe programs can be preempted, and
 * kernels from 6.13 on give every function with 64 bytes of stack or more a
 * per-CPU stack. So the record is written in place, and the work is divided into
 * functions whose frames stay below that.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "events.h"
#include "registers.h"
#include "site.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define EEXIST 17
#define BOUND (~0u)      /* state of a communicator; a count in inits never reaches it */
#define UNSEARCHED (~1u) /* state of a new one; nor this */
#define OUTS 16          /* out pointers remembered per process */
#define OWNERS 8         /* sites that one communicator remembers its link of */

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

/* What a hit has to know of its communicator, in one lookup. The value can be recycled under
 * a thread that uses a communicator while another destroys it; then the worst is a binding
 * that is not announced. */
struct comm {
	/* BOUND, or the number of initialisations that the process had begun when the
	 * search for its out pointer failed. */
	__u32 state;
	/* The number that the whole machine had begun then. */
	__u32 births;
	/* (instruction pointer, link) that `claims` has: site modulo OWNERS. */
	__u64 owners[OWNERS];
};

/* (tgid, 0, communicator) */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, struct comm);
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

/* Nonzero while `ignored` has entries; a section of its own because user space writes it. */
__u32 ignoring SEC(".data.ignoring");

/* A value of `comms` is larger than a frame may be. */
const struct comm new_comm = {.state = UNSEARCHED};

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
static __noinline int owns(void *ctx, __u32 tgid, __u32 link)
{
	struct key key = {.tgid = tgid};
	__u32 *owner, mine = link;
	long error;

	READ_REGISTER(key.word, ctx, REGISTER_IP);
	owner = bpf_map_lookup_elem(&claims, &key);
	if (!owner) {
		error = bpf_map_update_elem(&claims, &key, &mine, BPF_NOEXIST);
		if (!error)
			return 1;
		if (error != -EEXIST) {
			count(&counters.claim_full);
			return 1;
		}
		owner = bpf_map_lookup_elem(&claims, &key);
		if (!owner)
			return 1;
	}
	if (*owner == mine)
		return 1;
	count(&counters.duplicates[mine & (STRAGD_LINKS_MAX - 1)]);
	return 0;
}

/* Remember where a new communicator will be written; a few slots for an array of
 * them (ncclCommInitAll). */
static __noinline int remember_out(__u32 tgid, __u64 out, __u32 number)
{
	struct key key = {.tgid = tgid};
	__u32 *begun = bpf_map_lookup_elem(&inits, &key.tgid);
	__u32 next = begun ? *begun : 0;

	for (__u32 i = 0; i < OUTS; i++) {
		if (i >= number)
			break;
		key.slot = next & (OUTS - 1);
		if (bpf_map_update_elem(&outs, &key, &out, BPF_ANY))
			count(&counters.comm_full);
		out += 8;
		next++;
	}
	/* Two threads that race here lose one slot, not more. */
	if (next >= UNSEARCHED)
		next = 0;
	if (bpf_map_update_elem(&inits, &key.tgid, &next, BPF_ANY))
		count(&counters.comm_full);
	count(&counters.births);
	return 0;
}

/* The slot of the process whose out pointer holds `comm`: its pointer, or 0. */
static __noinline __u64 search(__u32 tgid, __u64 comm)
{
	struct key key = {.tgid = tgid};
	__u64 held = 0, *out;

	for (__u32 i = 0; i < OUTS; i++) {
		key.slot = i;
		out = bpf_map_lookup_elem(&outs, &key);
		if (!out)
			break;
		/* Searches fail by nature (memory reused or gone): not counted. */
		if (!bpf_probe_read_user(&held, sizeof(held), (void *)*out) && held == comm)
			return *out;
	}
	return 0;
}

/* A communicator in use whose site this link owns: the out pointer that holds it at its
 * first use; 0 where none does, or where that is known already. */
static __noinline __u64 bind(__u32 tgid, __u64 comm, __u64 owner, __u32 slot)
{
	struct key key = {.tgid = tgid, .word = comm};
	struct comm *known = bpf_map_lookup_elem(&comms, &key);
	__u32 *begun, now = 0, births = counters.births;
	__u64 out;

	if (!known) {
		bpf_map_update_elem(&comms, &key, &new_comm, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&comms, &key);
		if (!known) {
			count(&counters.comm_full);
			return 0;
		}
	}
	known->owners[slot & (OWNERS - 1)] = owner;
	if (known->state == BOUND)
		return 0;
	begun = bpf_map_lookup_elem(&inits, &key.tgid);
	if (begun)
		now = *begun;
	known->births = births;
	/* Searched in vain, and no communicator was begun since. */
	if (known->state == now)
		return 0;
	out = search(tgid, comm);
	known->state = out ? BOUND : now;
	return out;
}

static __noinline int forget(__u32 tgid, __u64 comm)
{
	struct key key = {.tgid = tgid, .word = comm};

	bpf_map_delete_elem(&comms, &key);
	return 0;
}

static __noinline int announce(__u64 out, __u64 comm, __u64 both, __u64 cookie)
{
	struct stragd_event *bound;

	bound = bpf_ringbuf_reserve(&lifecycle, sizeof(*bound), 0);
	if (!bound) {
		count(&counters.lost[STRAGD_COMM_BOUND]);
		return 0;
	}
	bound->time_ns = bpf_ktime_get_ns();
	bound->tgid = both >> 32;
	bound->tid = both;
	bound->what = STRAGD_COMM_BOUND;
	bound->function = STRAGD_FN_NONE;
	bound->datatype = STRAGD_NO_TYPE;
	bound->reduction = STRAGD_NO_TYPE;
	bound->peer = STRAGD_NO_PEER;
	bound->count = 0;
	bound->comm = comm;
	bound->id = out;
	bound->aux = 0;
	bound->site = cookie;
	bound->link = cookie >> 32;
	bound->flags = 0;
	count(&counters.events[STRAGD_COMM_BOUND]);
	bpf_ringbuf_submit(bound, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Follow the reads of a place; the last one leaves its bytes in `scratch`: 4, 8 or 16, which
 * `mask`, less than its room, lets through. */
static __always_inline __u64 follow(const struct stragd_place *place, __u64 value, __u64 *scratch,
				    __u64 mask, __u16 *flags)
{
	__u32 depth = place->flags & STRAGD_PLACE_DEPTH;
	__u32 bytes = place->width == 4 ? 4 : 8;

	if (place->flags & STRAGD_PLACE_PAIRED)
		bytes *= 2;
	for (__u32 i = 0; i < STRAGD_DEPTH_MAX; i++) {
		__u64 size = i + 1 == depth ? bytes : 8;

		if (i >= depth)
			break;
		/* Seen by the verifier, not by the compiler, which knows it to hold. */
		asm volatile("" : "+r"(size));
		size &= mask;
		/* Clears the bytes when it fails. */
		if (bpf_probe_read_user(scratch, size,
					(void *)(value + (__s64)place->offsets[i]))) {
			*flags |= STRAGD_READ_FAILED;
			count(&counters.read_failed);
			return 0;
		}
		value = *scratch;
	}
	return narrow(value, place->width, place->flags & STRAGD_PLACE_SIGNED);
}

/* The communicator's place, which is the first; 0 where it could not be read. */
static __noinline __u64 communicator(void *ctx, const struct stragd_site *site)
{
	__u16 unused = 0;
	__u64 scratch[2] = {}; /* kernel 6.1 takes no unset stack for a read of variable size */

	if (!site)
		return 0;
	return follow(&site->places[0], base_register(ctx, site->places[0].base), scratch, 15,
		      &unused);
}

/* Every field of the record that has a place, but for a communicator that is known already. The
 * record's first 16 bytes (time, tgid, tid) are scratch until this is done. A failed read of user
 * memory gives 0 and sets the flag. */
static __noinline int decode(void *ctx, const struct stragd_site *site, struct stragd_event *event)
{
	const struct stragd_place *place;
	__u64 *fields, *scratch, value;

	if (!site || !event)
		return 0;
	scratch = &event->time_ns;
	fields = &event->count;
	for (__u32 i = site->flags & STRAGD_SITE_USES ? 1 : 0;; i++) {
		/* Compared in each round, as the verifier wants to see it. */
		asm volatile("" : "+r"(i));
		if (i >= STRAGD_FIELDS || i >= site->places_used)
			break;
		place = &site->places[i];
		if (place->flags & STRAGD_PLACE_RARE && (event->peer & 127) >= 8)
			continue;
		if (place->base < STRAGD_BASE_FIELD)
			value = base_register(ctx, place->base);
		else if (place->base < STRAGD_BASE_SPARE)
			value = fields[(place->base - STRAGD_BASE_FIELD) & 3];
		else
			value = place->width == 4 ? scratch[0] >> 32 : scratch[1];
		value = follow(place, value, scratch, 31, &event->flags);
		if (place->field <= STRAGD_FIELD_AUX)
			fields[place->field & 3] = value;
		else if (place->field == STRAGD_FIELD_PEER)
			event->peer = value;
		else if (place->field == STRAGD_FIELD_DATATYPE)
			event->datatype = value;
		else
			event->reduction = value;
	}
	if ((site->flags & STRAGD_SITE_BYTES) && event->id)
		event->count /= event->id;
	return 0;
}

/* A use of a communicator: is this hit ours to deliver? That is known after one lookup. A
 * binding is announced first, so that who reads both rings sees it before the use. */
static __noinline int admit(void *ctx, __u64 comm, __u64 cookie, __u64 both)
{
	struct key key = {.tgid = both >> 32, .word = comm};
	__u32 slot = cookie & (OWNERS - 1);
	struct comm *known;
	__u64 owner;

	if (!comm)
		return owns(ctx, both >> 32, cookie >> 32);
	READ_REGISTER(owner, ctx, REGISTER_IP);
	owner = owner << 10 | cookie >> 32;
	known = bpf_map_lookup_elem(&comms, &key);
	if (known && known->owners[slot] == owner &&
	    (known->state == BOUND || known->births == (__u32)counters.births))
		return 1;
	if (!owns(ctx, both >> 32, cookie >> 32))
		return 0;
	owner = bind(both >> 32, key.word, owner, slot);
	if (owner)
		announce(owner, comm, both, cookie);
	return 1;
}

/* Whoever drains sleeps for long; it is woken only when a quarter of the ring is in use, and
 * only every 128th event looks. */
static __always_inline __u64 wakeup(__u64 events)
{
	if (events & 127)
		return BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_query(&bulk, BPF_RB_AVAIL_DATA) <
	    bpf_ringbuf_query(&bulk, BPF_RB_RING_SIZE) / 4)
		return BPF_RB_NO_WAKEUP;
	return BPF_RB_FORCE_WAKEUP;
}

SEC("uprobe")
int collective(void *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u64 both = bpf_get_current_pid_tgid();
	__u32 small = both >> 32; /* first the key of `ignored`, then of `sites` */
	struct stragd_event *event;
	struct stragd_site *site;
	__u64 value = 0, now;

	if (ignoring && bpf_map_lookup_elem(&ignored, &small)) {
		count(&counters.ignored);
		return 0;
	}
	small = cookie;
	site = bpf_map_lookup_elem(&sites, &small);
	if (!site || !site->record.what) {
		count(&counters.bad_site);
		return 0;
	}
	if (site->flags & STRAGD_SITE_USES) {
		value = communicator(ctx, site);
		if (!admit(ctx, value, cookie, both))
			return 0;
	} else if (!owns(ctx, both >> 32, cookie >> 32)) {
		return 0;
	}

	if (site->flags & STRAGD_SITE_LIFECYCLE)
		event = bpf_ringbuf_reserve(&lifecycle, sizeof(*event), 0);
	else
		event = bpf_ringbuf_reserve(&bulk, sizeof(*event), 0);
	if (!event) {
		count(&counters.lost[site->record.what & 31]);
		return 0;
	}
	*event = site->record;
	event->comm = site->flags & STRAGD_SITE_USES ? value : site->record.comm;
	now = bpf_ktime_get_ns();
	event->site = cookie;
	event->link = cookie >> 32;
	decode(ctx, site, event);
	event->time_ns = now;
	event->tgid = both >> 32;
	event->tid = both;
	value = site->flags & STRAGD_SITE_OUT_ID ? event->id : event->comm;
	small = event->what == STRAGD_COMM_INIT_ALL ? event->aux : 1;
	count(&counters.events[site->record.what & 31]);
	bpf_ringbuf_submit(event, wakeup(counters.events[site->record.what & 31]));

	if (site->flags & (STRAGD_SITE_OUT_COMM | STRAGD_SITE_OUT_ID))
		remember_out(both >> 32, value, small);
	else if (site->flags & STRAGD_SITE_ENDS)
		forget(both >> 32, value);
	return 0;
}
