/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of one communicator share, and waiting in it. Its name comes from the
 * unique id; the last rank to attach unlinks it, so nothing is left behind. A rank that waits looks
 * ten times a second whether the others still live.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "internal.h"

#define LOOK_NS (SECOND / 10)

/* Layout: shared, members, mailboxes, stages (by round, then rank), letters (by pair). */
static size_t mailboxes_at(int nranks)
{
	return sizeof(struct shared) + (size_t)nranks * sizeof(struct member);
}

static size_t stages_at(int nranks)
{
	size_t end = mailboxes_at(nranks) + (size_t)nranks * nranks * sizeof(struct mailbox);

	return (end + 4095) & ~(size_t)4095;
}

static size_t letters_at(int nranks)
{
	return stages_at(nranks) + (size_t)ROUNDS * nranks * STAGE_BYTES;
}

static size_t total_bytes(int nranks)
{
	return letters_at(nranks) + (size_t)nranks * nranks * LETTERS * LETTER_BYTES;
}

struct member *member_of(const struct ncclComm *comm, int rank)
{
	return (struct member *)(comm->shared + 1) + rank;
}

struct mailbox *mailbox_of(const struct ncclComm *comm, int from, int to)
{
	char *base = (char *)comm->shared + mailboxes_at(comm->nranks);

	return (struct mailbox *)base + (size_t)from * comm->nranks + to;
}

char *stage_of(const struct ncclComm *comm, uint64_t round, int rank)
{
	size_t place = (round % ROUNDS) * comm->nranks + rank;

	return (char *)comm->shared + stages_at(comm->nranks) + place * STAGE_BYTES;
}

char *letter_of(const struct ncclComm *comm, int from, int to, uint64_t letter)
{
	size_t place = ((size_t)from * comm->nranks + to) * LETTERS + letter % LETTERS;

	return (char *)comm->shared + letters_at(comm->nranks) + place * LETTER_BYTES;
}

uint64_t process_born(int pid)
{
	char path[32], text[1024];
	FILE *file;
	uint64_t born = 0;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	file = fopen(path, "re");
	size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
	if (file)
		fclose(file);
	text[length] = 0;
	char *name_end = strrchr(text, ')'), state = 0;
	if (name_end &&
	    sscanf(name_end + 1,
		   " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
		   "%*d %*d %*d %lu",
		   &state, &born) == 2 &&
	    state != 'Z' && state != 'X')
		return born;
	return 0;
}

struct shared *shared_open(const char *name, int nranks)
{
	size_t bytes = total_bytes(nranks);
	int file = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (file < 0)
		return 0;
	/* All ranks ask for the same size, and what is new is zero: nobody has to be the first. */
	void *memory = ftruncate(file, (off_t)bytes)
			   ? MAP_FAILED
			   : mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return memory == MAP_FAILED ? 0 : memory;
}

void shared_close(struct shared *shared, int nranks)
{
	if (shared)
		munmap(shared, total_bytes(nranks));
}

unsigned bell_arm(struct ncclComm *comm, enum wait_for what)
{
	struct member *self = member_of(comm, comm->rank);

	atomic_store(&self->waits, what);
	return atomic_load(&self->bell);
}

void bell_disarm(struct ncclComm *comm)
{
	atomic_store(&member_of(comm, comm->rank)->waits, NOTHING);
}

static bool everyone_lives(struct ncclComm *comm)
{
	for (int i = 0; i < comm->nranks; i++) {
		struct member *one = member_of(comm, i);
		int pid = atomic_load(&one->pid); /* -1: it is about to attach */

		if (pid > 0 && i != comm->rank && process_born(pid) != one->born)
			return false;
	}
	return true;
}

ncclResult_t bell_sleep(struct ncclComm *comm, unsigned seen)
{
	struct member *self = member_of(comm, comm->rank);
	struct timespec look = {.tv_nsec = LOOK_NS};
	int error = atomic_load(&comm->shared->error);

	if (!error && !atomic_load(&comm->error) &&
	    syscall(SYS_futex, &self->bell, FUTEX_WAIT, seen, &look, 0, 0) < 0 &&
	    errno == ETIMEDOUT && !everyone_lives(comm))
		comm_break(comm, ncclRemoteError);
	error = atomic_load(&comm->shared->error);
	if (!error)
		error = atomic_load(&comm->error);
	if (error) {
		bell_disarm(comm);
		atomic_store(&comm->error, error);
	}
	return (ncclResult_t)error;
}

void bell_ring(struct ncclComm *comm, int rank, enum wait_for what)
{
	struct member *other = member_of(comm, rank);

	atomic_fetch_add(&other->bell, 1);
	if (atomic_load(&other->waits) == (int)what)
		syscall(SYS_futex, &other->bell, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

void bell_ring_all(struct ncclComm *comm, enum wait_for what)
{
	for (int i = 0; i < comm->nranks; i++)
		bell_ring(comm, i, what);
}

void comm_break(struct ncclComm *comm, ncclResult_t why)
{
	int none = 0;

	atomic_compare_exchange_strong(&comm->shared->error, &none, why);
	bell_ring_all(comm, POSTS);
	bell_ring_all(comm, CREDIT);
}
