/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives and messages between their enqueueing and the last word about their device time.
 *
 * A fixed pool, claimed in ring order. Each object has one word, `life`, that says which use of
 * the place this is (generation), its state, how many callbacks look at it now (pins) and how
 * many channels began and ended. A callback pins the object that its handle names, which fails
 * when the generation is another one or the object is over; whoever takes the last pin off a
 * complete object seals it, writes its slot and frees it. Nobody waits: a pin either succeeds or
 * the callback is dropped and counted.
 *
 * An object is over when all announced channels ended. Libraries sometimes report fewer, or none:
 * it is given up when what began has ended, a later one of the same communicator is complete and
 * nothing was heard for INFLIGHT_PATIENCE_NS; when its communicator ends; or when the pool is
 * full and it is the oldest.
 */
#ifndef STRAGD_INFLIGHT_H
#define STRAGD_INFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

struct process;

#define INFLIGHT 4096u         /* a power of two, at most 65536: see handles.h */
#define INFLIGHT_CHANNELS 128u /* told apart; more are only counted (none has more but gfx1250) */
#define INFLIGHT_PATIENCE_NS 10000000u

/* Beside the flags of a slot, above them. */
#define INFLIGHT_NO_SLOT 0x8000u /* below the size floor: progress is counted, no slot written */

struct inflight {
	uint64_t life;
	uint64_t device_start; /* UINT64_MAX: none yet */
	uint64_t device_stop;  /* 0: none yet */
	uint64_t heard_ns;
	uint64_t begun[2]; /* by channel */
	uint64_t ended[2];
	void *chained; /* the chained plugin's handle */
	uint64_t host_ns;
	uint64_t bytes;
	uint32_t comm_generation;
	uint32_t sequence;
	uint32_t order;
	int32_t peer;
	uint16_t comm;
	uint16_t flags;
	uint8_t function;
	uint8_t datatype;
	uint8_t announced; /* channels; 0 = not known */
	uint8_t algorithm;
	uint8_t untimed; /* a channel ended without a time */
	uint8_t reserved[15];
};

_Static_assert(sizeof(struct inflight) == 128, "two cache lines");

/* What is known when it is enqueued. */
struct operation {
	uint64_t host_ns;
	uint64_t bytes;
	uint32_t sequence;
	uint32_t order;
	int32_t peer;
	uint32_t comm_generation;
	uint16_t comm;
	uint16_t flags;
	uint8_t function;
	uint8_t datatype;
	uint8_t announced;
	uint8_t algorithm;
	void *chained;
};

/* A handle for what was enqueued; NULL (and a drop counted) when every object is busy. */
void *inflight_begin(struct process *process, const struct operation *operation);

/* A channel began, at `timer` of the device's clock (0: no time). Its handle, or NULL. */
void *inflight_channel_begin(struct process *process, void *parent, uint32_t channel,
			     uint64_t timer, bool host_clock);

/* A channel ended, at `timer` of the device's clock (0: no time). */
void inflight_channel_end(struct process *process, void *handle, uint64_t timer, bool host_clock);

/* Whether the channel of this handle has not ended yet. */
bool inflight_is_open(struct process *process, const void *handle);

/* Give up objects whose channels will not come; a little of it with every enqueued one. */
void inflight_sweep(struct process *process, uint64_t now);

/* Give up everything of a communicator that ends. */
void inflight_end_comm(struct process *process, uint32_t comm, uint32_t generation);

/* A slot for what cannot be timed at all. */
void inflight_untimed(struct process *process, const struct operation *operation);

/* The chained plugin's handle of an operation; NULL when it is too old. */
void *inflight_chained(struct process *process, void *handle);
bool inflight_is_current(struct process *process, const void *handle);

#endif
