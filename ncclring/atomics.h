/* SPDX-License-Identifier: Apache-2.0 */
/* Short names for relaxed atomics on plain members: the ring's layout is plain C. */
#ifndef STRAGD_ATOMICS_H
#define STRAGD_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#define LOAD(place) __atomic_load_n((place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n((place), (value), __ATOMIC_RELAXED)
#define ADD(place, value) __atomic_fetch_add((place), (value), __ATOMIC_RELAXED)

static inline bool swap_if(uint64_t *place, uint64_t old, uint64_t new)
{
	return __atomic_compare_exchange_n(place, &old, new, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_RELAXED);
}

/* Both give up after some rounds against other threads: a callback never spins. */
static inline void lower(uint64_t *place, uint64_t value)
{
	uint64_t old = LOAD(place);

	for (int round = 0; round < 64 && value < old; round++)
		if (__atomic_compare_exchange_n(place, &old, value, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return;
}

static inline void raise_to(uint64_t *place, uint64_t value)
{
	uint64_t old = LOAD(place);

	for (int round = 0; round < 64 && value > old; round++)
		if (__atomic_compare_exchange_n(place, &old, value, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return;
}

#endif
