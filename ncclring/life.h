/* SPDX-License-Identifier: Apache-2.0 */
/* The word `life` of an object in flight; used by inflight.c and giveup.c only. */
#ifndef STRAGD_LIFE_H
#define STRAGD_LIFE_H

#include "inflight.h"

/*
 * life: 63..32 generation, 31..30 state, 29..20 pins, 19..10 channels begun, 9..0 ended.
 * The three counts cannot run over: see pin() and mark().
 */
enum state { FREE = 0, LIVE = 1, SEALED = 2 };

#define ENDED_ONE 1ull
#define BEGUN_ONE (1ull << 10)
#define PIN_ONE (1ull << 20)
#define COUNT_MASK 0x3ffu
#define COUNT_LIMIT 512u

static inline uint32_t generation_of(uint64_t life)
{
	return (uint32_t)(life >> 32);
}

static inline enum state state_of(uint64_t life)
{
	return (enum state)(life >> 30 & 3);
}

static inline uint32_t pins_of(uint64_t life)
{
	return (uint32_t)(life >> 20) & COUNT_MASK;
}

static inline uint32_t begun_of(uint64_t life)
{
	return (uint32_t)(life >> 10) & COUNT_MASK;
}

static inline uint32_t ended_of(uint64_t life)
{
	return (uint32_t)life & COUNT_MASK;
}

static inline uint64_t life_of(uint32_t generation, enum state state)
{
	return (uint64_t)generation << 32 | (uint64_t)state << 30;
}

/* Seals the object if it still has this life, writes its slot as it is, and frees it. */
bool inflight_give_up(struct process *process, struct inflight *object, uint64_t life);

#endif
