/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator table: who is who, and how far each function got (the flight recorder). */
#ifndef STRAGD_COMMS_H
#define STRAGD_COMMS_H

#include "process.h"

struct comm_identity {
	const char *name; /* or NULL */
	uint64_t hash;
	int nnodes, nranks, rank;
};

/* A context for a new communicator, NULL when the table is full. Holds init_lock. */
void *comms_begin(struct process *process, const struct comm_identity *identity, int *mask);

/* The communicator of a context; NULL when it is not one, or is over. */
struct comm *comms_of(struct process *process, const void *context);

/* False when it was over already. */
bool comms_end(struct process *process, struct comm *comm);

/* Version 3 tells who a communicator is with its first collective. */
void comms_identify(struct process *process, struct comm *comm,
		    const struct comm_identity *identity);

uint32_t comms_index(const struct process *process, const struct comm *comm);

/* Progress of a function; all but `enqueued` ignore a communicator that is another by now. */
void comms_enqueued(struct process *process, const struct comm *comm, uint32_t function,
		    uint64_t now, uint64_t sequence, uint64_t bytes);
void comms_started(struct process *process, uint32_t comm, uint32_t generation, uint32_t function,
		   uint64_t now);
void comms_completed(struct process *process, uint32_t comm, uint32_t generation, uint32_t function,
		     uint32_t order, uint64_t now);

/* Whether the communicator has ended, its place being another's by now or not. */
bool comms_is_over(struct process *process, uint32_t comm, uint32_t generation);

/* Whether a later collective of the communicator is complete. */
bool comms_is_past(struct process *process, uint32_t comm, uint32_t order);

/* The next number of a message to (`receive` false) or from a peer, from 0. Peers beyond the
 * table's size are counted together, by communicator and direction. */
uint32_t comms_message(struct process *process, struct comm *comm, int peer, bool receive);

#endif
