/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"
#include "process.h"

/* Not in the headers of the oldest C library that this is built for. */
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

static void *map(int fd)
{
	const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *memory;

	if (fd >= 0 && (ftruncate(fd, STRAGD_RING_BYTES) != 0 ||
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0))
		return NULL;
	memory = mmap(NULL, STRAGD_RING_BYTES, PROT_READ | PROT_WRITE, kind, fd, 0);
	if (memory == MAP_FAILED)
		return NULL;
	if (madvise(memory, STRAGD_RING_BYTES, MADV_DONTFORK) != 0) {
		munmap(memory, STRAGD_RING_BYTES);
		return NULL;
	}
	return memory;
}

struct stragd_ring_header *memfd_make(bool hidden)
{
	struct stragd_ring_header *ring;
	int fd = -1, problem;

	/* By number: the C library's function is younger than the oldest one we load into. */
	if (!hidden) {
		fd = (int)syscall(SYS_memfd_create, STRAGD_RING_NAME,
				  MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fd < 0)
			return NULL;
	}
	ring = map(fd);
	problem = errno;
	if (fd >= 0)
		close(fd);
	errno = problem;
	if (!ring)
		return NULL;
	ring->layout = STRAGD_RING_LAYOUT;
	ring->header_bytes = sizeof(*ring);
	ring->comm_bytes = sizeof(struct stragd_ring_comm);
	ring->comm_count = STRAGD_RING_COMMS;
	ring->slot_bytes = sizeof(struct stragd_ring_slot);
	ring->slot_count = STRAGD_RING_SLOTS;
	ring->comms_offset = STRAGD_RING_COMMS_OFFSET;
	ring->slots_offset = STRAGD_RING_SLOTS_OFFSET;
	ring->total_bytes = STRAGD_RING_BYTES;
	ring->start_ns = monotonic_ns();
	ring->pid = (uint32_t)getpid();
	return ring;
}

void memfd_open(struct stragd_ring_header *ring)
{
	__atomic_store_n(&ring->magic, STRAGD_RING_MAGIC, __ATOMIC_RELEASE);
}

struct stragd_ring_comm *memfd_comm(struct stragd_ring_header *ring, uint32_t index)
{
	return (struct stragd_ring_comm *)((char *)ring + STRAGD_RING_COMMS_OFFSET) +
	       index % STRAGD_RING_COMMS;
}

void memfd_write(struct stragd_ring_header *ring, const struct stragd_ring_slot *slot)
{
	enum { WORDS = sizeof(*slot) / sizeof(uint64_t) };
	const uint64_t ticket = ADD(&ring->head, 1);
	uint64_t *to = (uint64_t *)((char *)ring + STRAGD_RING_SLOTS_OFFSET) +
		       ticket % STRAGD_RING_SLOTS * WORDS;
	uint64_t words[WORDS];
	uint64_t stamp = LOAD(&to[0]);

	/* Odd: another writer is at it. The difference is signed, so that a head that somebody
	 * scribbled on does not end the recording. */
	if (stamp & 1 || (int64_t)(STRAGD_RING_WRITING(ticket) - stamp) < 0 ||
	    !swap_if(&to[0], stamp, STRAGD_RING_WRITING(ticket))) {
		ADD(&ring->dropped[STRAGD_RING_DROP_CLAIM], 1);
		return;
	}
	memcpy(words, slot, sizeof(words));
	/* Release stores: none of them may be seen before the stamp that says WRITING. */
	for (int i = 1; i < WORDS; i++)
		__atomic_store_n(&to[i], words[i], __ATOMIC_RELEASE);
	__atomic_store_n(&to[0], STRAGD_RING_WRITTEN(ticket), __ATOMIC_RELEASE);
}
