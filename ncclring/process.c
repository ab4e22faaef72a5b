/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "process.h"

#include <sys/mman.h>
#include <time.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static struct process *state;

struct process *process_state(void)
{
	struct process *process = __atomic_load_n(&state, __ATOMIC_ACQUIRE);

	return process && __atomic_load_n(&process->ready, __ATOMIC_ACQUIRE) ? process : NULL;
}

static void forget(void)
{
	__atomic_store_n(&state, NULL, __ATOMIC_RELEASE);
}

/* Zeros in a child: an unlocked mutex, free places and no ring. */
static bool empty_in_children(struct process *made)
{
	/* Sandboxes such as gVisor do not know the advice; there at least the C library's fork. */
	return madvise(made, sizeof(*made), MADV_WIPEONFORK) == 0 ||
	       pthread_atfork(NULL, NULL, forget) == 0;
}

struct process *process_make(void)
{
	struct process *made = __atomic_load_n(&state, __ATOMIC_ACQUIRE), *other = NULL;

	if (made)
		return made;
	made =
	    mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	if (!empty_in_children(made) ||
	    !__atomic_compare_exchange_n(&state, &other, made, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		munmap(made, sizeof(*made));
		return other;
	}
	return made;
}

uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
