/* SPDX-License-Identifier: Apache-2.0 */
#include "comms.h"

#include <string.h>

#include "memfd.h"

#define MESSAGE_TRIES 8
#define KEY_BUSY 1ull /* no real key: bit 63 is set in those */

/* A free place, else the one that ended longest ago, else -1. */
static int place(struct process *process)
{
	int best = -1;
	uint64_t ended = UINT64_MAX;

	for (uint32_t i = 0; i < STRAGD_RING_COMMS; i++) {
		if (__atomic_load_n(&process->comms[i].live, __ATOMIC_ACQUIRE) != COMM_FREE)
			continue;
		if (process->comms[i].generation == 0)
			return (int)i;
		if (memfd_comm(process->ring, i)->ended_ns < ended) {
			ended = memfd_comm(process->ring, i)->ended_ns;
			best = (int)i;
		}
	}
	return best;
}

static void write_name(struct stragd_ring_comm *row, const char *name)
{
	uint64_t words[sizeof(row->name) / sizeof(uint64_t)] = {0};

	if (name)
		strncpy((char *)words, name, sizeof(row->name) - 1);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		STORE(&((uint64_t *)(void *)row->name)[i], words[i]);
}

void *comms_begin(struct process *process, const struct comm_identity *identity, int *mask)
{
	const int index = place(process);
	struct stragd_ring_comm *row;
	struct comm *comm;
	uint32_t generation;

	if (index < 0)
		return NULL;
	comm = &process->comms[index];
	row = memfd_comm(process->ring, (uint32_t)index);
	generation = (comm->generation + 1) ? comm->generation + 1 : 1;
	__atomic_store_n(&row->state, STRAGD_RING_COMM_FREE, __ATOMIC_RELEASE);
	/* Callbacks of the last use may still count here: nothing but atomics. */
	for (uint32_t f = 0; f < STRAGD_RING_FUNCTIONS; f++) {
		uint64_t *words = (uint64_t *)&row->progress[f];

		for (size_t i = 0; i < sizeof(row->progress[f]) / sizeof(*words); i++)
			STORE(&words[i], 0);
	}
	write_name(row, identity->name);
	STORE(&row->hash, identity->hash);
	STORE(&row->rank, identity->rank);
	row->nranks = identity->nranks;
	row->nnodes = identity->nnodes;
	row->generation = generation;
	row->born_ns = monotonic_ns();
	row->ended_ns = 0;
	__atomic_store_n(&row->state, STRAGD_RING_COMM_LIVE, __ATOMIC_RELEASE);

	STORE(&comm->batch, 0);
	STORE(&comm->batch_seen, 0);
	STORE(&comm->completed_order, (uint32_t)LOAD(&process->ring->order) - 1);
	STORE(&comm->messages[0], 0);
	STORE(&comm->messages[1], 0);
	STORE(&comm->mask, mask);
	STORE(&comm->mask_written, 0);
	STORE(&comm->chain, 0);
	STORE(&comm->chained_context, NULL);
	STORE(&comm->recorded, 1);
	STORE(&comm->generation, generation);
	__atomic_store_n(&comm->live, COMM_LIVE, __ATOMIC_RELEASE);
	return handle_make(HANDLE_COMM, 0, generation, (uint32_t)index);
}

struct comm *comms_of(struct process *process, const void *context)
{
	struct comm *comm;

	if (handle_kind(context) != HANDLE_COMM || handle_index(context) >= STRAGD_RING_COMMS)
		return NULL;
	comm = &process->comms[handle_index(context)];
	if (__atomic_load_n(&comm->live, __ATOMIC_ACQUIRE) != COMM_LIVE ||
	    LOAD(&comm->generation) != handle_generation(context))
		return NULL;
	return comm;
}

bool comms_end(struct process *process, struct comm *comm)
{
	const uint32_t index = comms_index(process, comm);
	struct stragd_ring_comm *row = memfd_comm(process->ring, index);
	const uint32_t generation = LOAD(&comm->generation);
	uint32_t live = COMM_LIVE;

	if (!__atomic_compare_exchange_n(&comm->live, &live, COMM_ENDING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return false;
	inflight_end_comm(process, index, generation);
	row->ended_ns = monotonic_ns();
	__atomic_store_n(&row->state, STRAGD_RING_COMM_ENDED, __ATOMIC_RELEASE);
	/* Only now may its place be used again. */
	__atomic_store_n(&comm->live, COMM_FREE, __ATOMIC_RELEASE);
	return true;
}

void comms_identify(struct process *process, struct comm *comm,
		    const struct comm_identity *identity)
{
	struct stragd_ring_comm *row = memfd_comm(process->ring, comms_index(process, comm));
	uint64_t unknown = 0;

	/* Only the thread that finds it unknown writes the name. */
	if (identity->hash && LOAD(&row->hash) == 0 &&
	    __atomic_compare_exchange_n(&row->hash, &unknown, identity->hash, false,
					__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		STORE(&row->rank, identity->rank);
		write_name(row, identity->name);
	}
}

uint32_t comms_index(const struct process *process, const struct comm *comm)
{
	return (uint32_t)(comm - process->comms);
}

static struct stragd_ring_progress *progress_of(struct process *process, uint32_t comm,
						uint32_t function)
{
	return &memfd_comm(process->ring, comm)->progress[function % STRAGD_RING_FUNCTIONS];
}

void comms_enqueued(struct process *process, const struct comm *comm, uint32_t function,
		    uint64_t now, uint64_t sequence, uint64_t bytes)
{
	struct stragd_ring_progress *progress =
	    progress_of(process, comms_index(process, comm), function);

	STORE(&progress->enqueued_ns, now);
	STORE(&progress->sequence, sequence);
	STORE(&progress->bytes, bytes);
	ADD(&progress->enqueued, 1);
}

void comms_started(struct process *process, uint32_t comm, uint32_t generation, uint32_t function,
		   uint64_t now)
{
	struct stragd_ring_progress *progress = progress_of(process, comm, function);

	if (LOAD(&process->comms[comm].generation) != generation)
		return;
	STORE(&progress->started_ns, now);
	ADD(&progress->started, 1);
}

void comms_completed(struct process *process, uint32_t comm, uint32_t generation, uint32_t function,
		     uint32_t order, uint64_t now)
{
	struct stragd_ring_progress *progress = progress_of(process, comm, function);

	if (LOAD(&process->comms[comm].generation) != generation)
		return;
	STORE(&progress->completed_ns, now);
	ADD(&progress->completed, 1);
	/* Two at once may leave the older one: that delays a giving-up, no more. */
	if ((int32_t)(order - LOAD(&process->comms[comm].completed_order)) > 0)
		STORE(&process->comms[comm].completed_order, order);
}

bool comms_is_over(struct process *process, uint32_t comm, uint32_t generation)
{
	return LOAD(&process->comms[comm].generation) != generation ||
	       LOAD(&process->comms[comm].live) != COMM_LIVE;
}

bool comms_is_past(struct process *process, uint32_t comm, uint32_t order)
{
	return (int32_t)(LOAD(&process->comms[comm].completed_order) - order) > 0;
}

/* Whether a key belongs to a communicator that is over: its place may be taken. */
static bool is_over(struct process *process, uint64_t key)
{
	const struct comm *comm = &process->comms[key & 0xff];

	return key != KEY_BUSY && (LOAD(&comm->live) != COMM_LIVE ||
				   (LOAD(&comm->generation) & 0x3fffff) != (key >> 8 & 0x3fffff));
}

uint32_t comms_message(struct process *process, struct comm *comm, int peer, bool receive)
{
	/* 63: set; 62: direction; 61..30: peer; 29..8: generation; 7..0: place */
	const uint64_t key = 1ull << 63 | (uint64_t)receive << 62 | (uint64_t)(uint32_t)peer << 30 |
			     (uint64_t)(LOAD(&comm->generation) & 0x3fffff) << 8 |
			     comms_index(process, comm);
	const uint64_t hash = key * 0x9e3779b97f4a7c15ull >> 40;

	for (uint32_t i = 0; i < MESSAGE_TRIES; i++) {
		struct message_count *entry = &process->messages[(hash + i) % MESSAGES];
		const uint64_t found = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);

		if (found == key)
			return (uint32_t)ADD(&entry->count, 1);
		if (found == 0)
			break;
	}
	for (uint32_t i = 0; i < MESSAGE_TRIES; i++) {
		struct message_count *entry = &process->messages[(hash + i) % MESSAGES];
		const uint64_t found = LOAD(&entry->key);

		if ((found == 0 || is_over(process, found)) &&
		    swap_if(&entry->key, found, KEY_BUSY)) {
			STORE(&entry->count, 1);
			__atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
			return 0;
		}
	}
	return ADD(&comm->messages[receive], 1);
}
