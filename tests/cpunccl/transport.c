/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives over the shared stages. In each round a rank puts one piece of its input into its
 * stage, waits for the ranks whose input it needs, and reads theirs; it may be ROUNDS ahead of the
 * slowest reader. A rank needs all others' input, but for broadcast (the root's) and for ranks of
 * a reduce that are not its root (nobody's), which therefore wait for nobody.
 */
#include <string.h>
#include "internal.h"

static bool needs(const struct ncclComm *comm, const struct task *task, int other)
{
	if (task->function == BROADCAST)
		return other == task->peer;
	return task->function != REDUCE || comm->rank == task->peer;
}

static uint64_t meaning(const struct task *task)
{
	uint64_t parts[5] = {(uint64_t)task->function, task->count, (uint64_t)task->type,
			     (uint64_t)task->reduction, (uint64_t)task->peer};

	return hash_bytes(parts, sizeof parts, 1);
}

static ncclResult_t await_credit(struct ncclComm *comm, uint64_t round)
{
	for (int i = 0; i < comm->nranks && round >= ROUNDS; i++) {
		while (atomic_load(&member_of(comm, i)->done) < round - ROUNDS + 1) {
			unsigned seen = bell_arm(comm, CREDIT);
			ncclResult_t result;

			if (atomic_load(&member_of(comm, i)->done) >= round - ROUNDS + 1)
				break;
			if ((result = bell_sleep(comm, seen)))
				return result;
		}
	}
	bell_disarm(comm);
	return ncclSuccess;
}

static ncclResult_t await_posts(struct ncclComm *comm, const struct task *task, uint64_t round,
				int64_t *latest)
{
	uint64_t mine = member_of(comm, comm->rank)->what[round % ROUNDS];

	for (int i = 0; i < comm->nranks; i++) {
		struct member *other = member_of(comm, i);

		if (!needs(comm, task, i))
			continue;
		while (atomic_load(&other->posted) < round + 1) {
			unsigned seen = bell_arm(comm, POSTS);
			ncclResult_t result;

			if (atomic_load(&other->posted) >= round + 1)
				break;
			if ((result = bell_sleep(comm, seen)))
				return result;
		}
		if (other->what[round % ROUNDS] != mine) {
			bell_disarm(comm);
			comm_break(comm, ncclInvalidUsage);
			return fail(ncclInvalidUsage, "ranks %d and %d call different collectives",
				    comm->rank, i);
		}
		if (other->arrival[round % ROUNDS] > *latest)
			*latest = other->arrival[round % ROUNDS];
	}
	bell_disarm(comm);
	return ncclSuccess;
}

/* Elements of one round: what fits into a stage; a reduce-scatter's holds a piece for each rank. */
static size_t piece_elements(const struct ncclComm *comm, const struct task *task)
{
	size_t fit = STAGE_BYTES / type_size(task->type);

	if (task->function == REDUCE_SCATTER)
		fit /= (size_t)comm->nranks;
	return fit ? fit : 1;
}

static void put(struct ncclComm *comm, const struct task *task, uint64_t round, size_t from,
		size_t count)
{
	size_t size = type_size(task->type);
	char *stage = stage_of(comm, round, comm->rank);
	const char *input = task->send;

	if (task->function == REDUCE_SCATTER) {
		for (int i = 0; i < comm->nranks; i++)
			memcpy(stage + i * count * size, input + (i * task->count + from) * size,
			       count * size);
	} else if (task->function != BROADCAST || comm->rank == task->peer) {
		memcpy(stage, input + from * size, count * size);
	}
}

static void take(struct ncclComm *comm, const struct task *task, uint64_t round, size_t from,
		 size_t count)
{
	size_t size = type_size(task->type), bytes = count * size;
	char *output = (char *)task->recv + from * size;
	size_t place = task->function == REDUCE_SCATTER ? comm->rank * bytes : 0;

	if (task->function == BROADCAST) {
		memcpy(output, stage_of(comm, round, task->peer), bytes);
	} else if (task->function == ALL_GATHER) {
		for (int i = 0; i < comm->nranks; i++)
			memcpy(output + i * task->count * size, stage_of(comm, round, i), bytes);
	} else if (task->function != REDUCE || comm->rank == task->peer) {
		memcpy(output, stage_of(comm, round, 0) + place, bytes);
		for (int i = 1; i < comm->nranks; i++)
			reduce_into(output, stage_of(comm, round, i) + place, count, task->type,
				    task->reduction);
		reduce_finish(output, count, task->type, task->reduction, comm->nranks);
	}
}

ncclResult_t transport_collective(struct ncclComm *comm, const struct task *task, int64_t *when)
{
	struct member *self = member_of(comm, comm->rank);
	size_t piece = piece_elements(comm, task);
	int64_t latest = *when;

	for (size_t from = 0; from < task->count; from += piece) {
		size_t count = task->count - from < piece ? task->count - from : piece;
		uint64_t round = comm->round++;
		ncclResult_t result = await_credit(comm, round);

		if (result)
			return result;
		self->arrival[round % ROUNDS] = *when;
		self->what[round % ROUNDS] = meaning(task);
		put(comm, task, round, from, count);
		atomic_store(&self->posted, round + 1);
		unsigned arrived = atomic_fetch_add(&comm->shared->arrived[round % ROUNDS], 1) + 1;
		if (arrived % (unsigned)comm->nranks == 0 ||
		    (task->function == BROADCAST && comm->rank == task->peer))
			bell_ring_all(comm, POSTS);
		if ((result = await_posts(comm, task, round, &latest)))
			return result;
		take(comm, task, round, from, count);
		atomic_store(&self->done, round + 1);
		bell_ring_all(comm, CREDIT);
	}
	*when = latest + task->transfer;
	return ncclSuccess;
}
