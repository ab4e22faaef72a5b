/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective or message leaves in the ring when the host enqueues it. */
#ifndef STRAGD_OPERATIONS_H
#define STRAGD_OPERATIONS_H

#include "process.h"

/* One Coll or P2p descriptor, of whatever version. */
struct call {
	const char *function, *datatype, *algorithm, *protocol;
	const void *group; /* the library's handle of its kernel launch */
	uint64_t count;
	uint64_t sequence;
	int peer;         /* or root */
	bool message;     /* send or receive */
	uint8_t channels; /* 0 = not known */
	uint16_t flags;   /* of a slot */
	bool timeless;    /* no kernel events will come for it */
};

/* Our handle for a kernel launch that begins, never NULL; the collectives that come with it are
 * one batch. */
void *operations_group(struct process *process, struct comm *comm);

/* Our handle for it, NULL when nothing more is wanted about it. `chained`: theirs. */
void *operations_enqueued(struct process *process, struct comm *comm, const struct call *call,
			  void *chained);

#endif
