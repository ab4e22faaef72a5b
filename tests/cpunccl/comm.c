/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: rendezvous, split, end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "internal.h"
#include "profiler.h"

#define MAGIC 0x6d6d6f636c63636eull
#define MAX_RANKS 256

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t plans_over = PTHREAD_COND_INITIALIZER;

bool comm_valid(const struct ncclComm *comm)
{
	return comm && comm->magic == MAGIC;
}

uint64_t hash_bytes(const void *bytes, size_t length, uint64_t seed)
{
	const unsigned char *byte = bytes;
	uint64_t hash = 0xcbf29ce484222325ull ^ seed;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ byte[i]) * 0x100000001b3ull;
	hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
	hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
	return hash ^ (hash >> 31);
}

void comm_plan_begins(struct ncclComm *comm)
{
	pthread_mutex_lock(&plans_lock);
	comm->active++;
	pthread_mutex_unlock(&plans_lock);
}

void comm_plan_over(struct ncclComm *comm, int64_t end)
{
	pthread_mutex_lock(&plans_lock);
	if (comm->last_end < end)
		comm->last_end = end;
	if (--comm->active == 0)
		pthread_cond_broadcast(&plans_over);
	pthread_mutex_unlock(&plans_lock);
}

void comm_quiesce(struct ncclComm *comm)
{
	pthread_mutex_lock(&plans_lock);
	while (comm->active)
		pthread_cond_wait(&plans_over, &plans_lock);
	int64_t end = comm->last_end;
	pthread_mutex_unlock(&plans_lock);
	sleep_until(end);
}

static int world_rank(int otherwise)
{
	const char *text = getenv("RANK");

	return text && *text ? atoi(text) : otherwise;
}

/* Wait on the host until a counter of the shared memory has reached a number. */
static ncclResult_t await_count(struct ncclComm *comm, atomic_uint *counter, unsigned count)
{
	ncclResult_t result = ncclSuccess;

	while (!result && (int)(atomic_load(counter) - count) < 0) {
		unsigned seen = bell_arm(comm, POSTS);

		if ((int)(atomic_load(counter) - count) >= 0)
			break;
		result = bell_sleep(comm, seen);
	}
	bell_disarm(comm);
	/* Somebody may have met and gone before this rank woke up. */
	return (int)(atomic_load(counter) - count) >= 0 ? ncclSuccess : result;
}

static ncclResult_t meet(struct ncclComm *comm, const char *path)
{
	struct member *self = member_of(comm, comm->rank);
	int none = 0;

	if (!atomic_compare_exchange_strong(&comm->shared->nranks, &none, comm->nranks) &&
	    none != comm->nranks)
		return fail(ncclInvalidArgument, "the ranks disagree on their number: %d and %d",
			    none, comm->nranks);
	none = 0;
	if (!atomic_compare_exchange_strong(&self->pid, &none, -1))
		return fail(ncclInvalidArgument, "rank %d is taken", comm->rank);
	self->born = process_born(getpid());
	self->world = world_rank(comm->rank);
	atomic_store(&self->pid, getpid());
	if (atomic_fetch_add(&comm->shared->attached, 1) + 1 == (unsigned)comm->nranks) {
		shm_unlink(path);
		bell_ring_all(comm, POSTS);
	}
	ncclResult_t result = await_count(comm, &comm->shared->attached, (unsigned)comm->nranks);
	if (result)
		shm_unlink(path);
	return result;
}

static void comm_free(struct ncclComm *comm)
{
	comm->magic = 0;
	shared_close(comm->shared, comm->nranks);
	free(comm->sends);
	free(comm->receives);
	free(comm->name);
	free(comm);
}

ncclResult_t comm_create(struct ncclComm **out, int nranks, const char *id, uint64_t hash, int rank,
			 int device, const char *name)
{
	struct ncclComm *comm = calloc(1, sizeof *comm);
	char path[64];
	ncclResult_t result = ncclSystemError;

	if (!comm)
		return result;
	comm->rank = rank;
	comm->nranks = nranks;
	comm->device = device;
	comm->hash = hash;
	comm->name = name ? strdup(name) : 0;
	comm->sends = calloc((size_t)nranks, sizeof *comm->sends);
	comm->receives = calloc((size_t)nranks, sizeof *comm->receives);
	snprintf(comm->id, sizeof comm->id, "%s", id);
	snprintf(path, sizeof path, "/cpunccl-%s", id);
	comm->shared = shared_open(path, nranks);
	if (!comm->shared) {
		result = fail(ncclSystemError, "no shared memory of %d ranks in /dev/shm", nranks);
	} else if (comm->sends && comm->receives) {
		result = meet(comm, path);
		if (!result)
			result = profiler_attach(comm);
	}
	if (result) {
		comm_free(comm);
		return result;
	}
	comm->magic = MAGIC;
	*out = comm;
	return ncclSuccess;
}

ncclResult_t init_run(struct init_job *job)
{
	char id[40];
	uint64_t head, hash = hash_bytes(job->unique.internal, sizeof job->unique.internal, 0);

	memcpy(&head, job->unique.internal, sizeof head);
	snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)head,
		 (unsigned long long)hash);
	return comm_create(job->out, job->nranks, id, hash, job->rank, job->device, job->name);
}

ncclResult_t comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *unique, int rank,
		       int device, const ncclConfig_t *config)
{
	if (!out || !unique)
		return fail(ncclInvalidArgument, "comm or unique id is NULL");
	*out = 0;
	if (nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
		return fail(ncclInvalidArgument, "rank %d of %d ranks", rank, nranks);
	if (config && config->magic != NCCL_CONFIG_MAGIC)
		return fail(ncclInvalidArgument, "config was not made by NCCL_CONFIG_INITIALIZER");
	struct init_job *job = calloc(1, sizeof *job);
	if (!job)
		return ncclSystemError;
	job->out = out;
	job->nranks = nranks;
	job->rank = rank;
	job->device = device;
	job->unique = *unique;
	if (config && config->size >= sizeof *config && config->commName)
		job->name = strdup(config->commName);
	if (group_open()) {
		group_init(job);
		return ncclSuccess;
	}
	ncclResult_t result = init_run(job);
	free(job->name);
	free(job);
	return result;
}

/* Place of this rank among those of its color, by key and then by old rank. */
static void place_of(struct ncclComm *comm, int color, int key, int *rank, int *nranks)
{
	*rank = *nranks = 0;
	for (int i = 0; i < comm->nranks; i++) {
		struct member *other = member_of(comm, i);

		if (other->color != color)
			continue;
		++*nranks;
		*rank += other->key < key || (other->key == key && i < comm->rank);
	}
}

ncclResult_t comm_split(struct ncclComm *comm, int color, int key, ncclComm_t *out,
			const ncclConfig_t *config)
{
	struct member *self = member_of(comm, comm->rank);
	char id[40];
	int rank, nranks;
	ncclResult_t result;

	*out = 0;
	/* Host and stream wait at the same bell. */
	comm_quiesce(comm);
	self->color = color;
	self->key = key;
	uint64_t parts[3] = {comm->hash, comm->splits, (uint64_t)color};
	unsigned everybody = (unsigned)comm->nranks, passed = 2 * comm->splits++ * everybody;
	/* All colors are there; nobody writes the next split's before all have read them. */
	for (unsigned i = 1; i <= 2; i++) {
		if ((atomic_fetch_add(&comm->shared->barrier, 1) + 1) % everybody == 0)
			bell_ring_all(comm, POSTS);
		result = await_count(comm, &comm->shared->barrier, passed + i * everybody);
		if (result)
			return result;
		if (i == 1)
			place_of(comm, color, key, &rank, &nranks);
	}
	if (color == NCCL_SPLIT_NOCOLOR)
		return ncclSuccess;
	uint64_t hash = hash_bytes(parts, sizeof parts, 3);
	snprintf(id, sizeof id, "%.16s%016llx", comm->id, (unsigned long long)hash);
	const char *name =
	    config && config->magic == NCCL_CONFIG_MAGIC && config->size >= sizeof *config
		? config->commName
		: 0;
	return comm_create(out, nranks, id, hash, rank, comm->device, name);
}

void comm_end(struct ncclComm *comm, bool aborted)
{
	if (aborted) {
		atomic_store(&comm->error, ncclRemoteError);
		comm_break(comm, ncclRemoteError);
	}
	comm_quiesce(comm);
	profiler_detach(comm);
	/* Whoever still waits for others must not take this rank's end for a death. */
	atomic_store(&member_of(comm, comm->rank)->pid, 0);
	comm_free(comm);
}
