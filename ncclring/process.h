/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All state of the plugin: one private mapping that is empty in a forked child, which
 * so has no ring, no communicators and no handles that fit, until its own first init.
 */
#ifndef STRAGD_PROCESS_H
#define STRAGD_PROCESS_H

#include <pthread.h>
#include <stddef.h>

#include "abi.h"
#include "atomics.h"
#include "handles.h"
#include "inflight.h"
#include "ring.h"

#define MESSAGES 2048u /* (communicator, peer, direction) whose messages are counted apart */

enum comm_state { COMM_FREE = 0, COMM_LIVE = 1, COMM_ENDING = 2 };

struct comm {
	uint32_t generation; /* uses of this place; in every handle */
	uint32_t live;       /* enum comm_state */
	uint32_t recorded;   /* 0: only forwarded to the chained plugin */
	uint32_t batch;      /* kernel launches so far; in every handle of a group */
	uint32_t batch_seen;
	uint32_t completed_order; /* the newest collective that is complete */
	int *mask;                /* the library's */
	uint32_t mask_written;
	uint32_t chain; /* 1: forwarded */
	void *chained_context;
	uint32_t messages[2]; /* by direction, for peers that have no counter of their own */
	uint64_t batch_ns;    /* when the latest of them began */
};

_Static_assert(sizeof(struct comm) == 64, "a cache line");

struct message_count {
	uint64_t key; /* 0 = free */
	uint64_t count;
};

struct chain {
	const struct nccl_profiler *plugin; /* NULL: none */
	uint32_t version;
	int events;      /* that its version can name */
	int mask;        /* it writes, any time */
	void **channels; /* [INFLIGHT][256] its handles of kernel channels */
};

struct process {
	pthread_mutex_t init_lock; /* taken by init only */
	uint32_t ready;
	uint32_t api;
	uint32_t vendor;
	uint32_t clock;
	uint32_t library;
	uint32_t announces_p2p;          /* version 4 tells a message's channels */
	struct stragd_ring_header *ring; /* NULL: nothing is recorded */
	uint64_t default_control;        /* what control word 0 stands for */
	uint64_t control_seen;
	uint32_t mode;
	uint32_t floor;
	uint32_t sample;
	uint32_t gap; /* something was left out on purpose since the last slot's enqueueing */
	struct chain chain;
	uint64_t next_inflight __attribute__((aligned(64)));
	uint64_t oldest_inflight;
	uint64_t swept;
	struct comm comms[STRAGD_RING_COMMS] __attribute__((aligned(64)));
	struct message_count messages[MESSAGES] __attribute__((aligned(64)));
	struct inflight inflight[INFLIGHT] __attribute__((aligned(128)));
};

/* The state, or NULL before the first init is through. Any thread, any time. */
struct process *process_state(void);

/* The state, made if need be. NULL: no memory. Init only. */
struct process *process_make(void);

uint64_t monotonic_ns(void);

#endif
