/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send and receive over the mailboxes. All messages of a plan make progress together, those of one
 * pair and direction in order. Both sides end a transfer time after the later of the two came.
 */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

struct transfer {
	const struct task *task;
	struct mailbox *box;
	int from, to;
	size_t moved, bytes;
	uint64_t number; /* message of this pair and direction */
	bool begun, finished;
	struct transfer *before; /* of the same pair and direction */
	int64_t *end;
};

static int other_end(const struct transfer *one)
{
	return one->task->peer;
}

static bool begin(struct ncclComm *comm, struct transfer *one, int64_t start)
{
	size_t slot = one->number % 2;

	if (one->begun || (one->before && !one->before->finished))
		return false;
	if (one->task->function == SEND) {
		one->box->send_arrival[slot] = start;
		one->box->send_bytes[slot] = one->bytes;
		atomic_store(&one->box->sends, one->number + 1);
	} else {
		one->box->receive_arrival[slot] = start;
		atomic_store(&one->box->receives, one->number + 1);
	}
	one->begun = true;
	bell_ring(comm, other_end(one), POSTS);
	return true;
}

static bool move_letters(struct ncclComm *comm, struct transfer *one)
{
	bool moved = false, sends = one->task->function == SEND;

	while (one->moved < one->bytes) {
		uint64_t posted = atomic_load(&one->box->posted);
		uint64_t read = atomic_load(&one->box->read);
		size_t left = one->bytes - one->moved,
		       part = left < LETTER_BYTES ? left : LETTER_BYTES;

		if (sends ? posted - read == LETTERS : posted == read)
			break;
		char *letter = letter_of(comm, one->from, one->to, sends ? posted : read);
		if (sends)
			memcpy(letter, (const char *)one->task->send + one->moved, part);
		else
			memcpy((char *)one->task->recv + one->moved, letter, part);
		atomic_fetch_add(sends ? &one->box->posted : &one->box->read, 1);
		one->moved += part;
		bell_ring(comm, other_end(one), POSTS);
		moved = true;
	}
	return moved;
}

/* Ends when both sides have begun and the bytes are through. */
static ncclResult_t finish(struct ncclComm *comm, struct transfer *one)
{
	size_t slot = one->number % 2;

	if (one->finished || !one->begun || atomic_load(&one->box->sends) <= one->number ||
	    atomic_load(&one->box->receives) <= one->number)
		return ncclSuccess;
	if (one->task->function == RECV && one->box->send_bytes[slot] != one->bytes) {
		comm_break(comm, ncclInvalidUsage);
		return fail(ncclInvalidUsage, "rank %d sends %llu bytes, rank %d receives %zu",
			    one->from, (unsigned long long)one->box->send_bytes[slot], one->to,
			    one->bytes);
	}
	if (one->moved < one->bytes)
		return ncclSuccess;
	int64_t sent = one->box->send_arrival[slot], received = one->box->receive_arrival[slot];
	*one->end = (sent > received ? sent : received) + one->task->transfer;
	one->finished = true;
	return ncclSuccess;
}

static ncclResult_t progress(struct ncclComm *comm, struct transfer *transfers, size_t count,
			     int64_t start, bool *moved, size_t *left)
{
	*moved = false;
	*left = 0;
	for (size_t i = 0; i < count; i++) {
		struct transfer *one = &transfers[i];
		ncclResult_t result;

		if (one->finished)
			continue;
		*moved |= begin(comm, one, start);
		/* A letter belongs to this message only when both sides are at it. */
		if (one->begun &&
		    (one->task->function == SEND || atomic_load(&one->box->sends) > one->number))
			*moved |= move_letters(comm, one);
		if ((result = finish(comm, one)))
			return result;
		*moved |= one->finished;
		*left += !one->finished;
	}
	return ncclSuccess;
}

static size_t prepare(struct ncclComm *comm, const struct task *tasks, struct transfer *transfers,
		      int64_t *ends)
{
	size_t count = 0;

	for (const struct task *task = tasks; task; task = task->next, count++) {
		struct transfer *one = &transfers[count];
		bool sends = task->function == SEND;

		one->task = task;
		one->from = sends ? comm->rank : task->peer;
		one->to = sends ? task->peer : comm->rank;
		one->box = mailbox_of(comm, one->from, one->to);
		one->bytes = task->count * type_size(task->type);
		one->number = (sends ? comm->sends : comm->receives)[task->peer]++;
		one->end = &ends[count];
		for (size_t i = 0; i < count; i++) {
			if (transfers[i].box == one->box &&
			    transfers[i].task->function == task->function)
				one->before = &transfers[i];
		}
	}
	return count;
}

ncclResult_t transport_messages(struct ncclComm *comm, const struct task *tasks, int64_t start,
				int64_t *ends)
{
	size_t count = 0, left;
	bool moved;
	ncclResult_t result;

	for (const struct task *task = tasks; task; task = task->next)
		count++;
	struct transfer *transfers = calloc(count, sizeof *transfers);
	if (!transfers)
		return ncclSystemError;
	prepare(comm, tasks, transfers, ends);
	for (;;) {
		unsigned seen = bell_arm(comm, POSTS);

		result = progress(comm, transfers, count, start, &moved, &left);
		if (result || !left || (!moved && (result = bell_sleep(comm, seen))))
			break;
	}
	bell_disarm(comm);
	free(transfers);
	return result;
}
