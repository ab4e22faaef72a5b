/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in flight whose channels will not come: when to stop waiting for them. */
#include "comms.h"
#include "life.h"
#include "process.h"

/* Whether nothing more can be expected of an object that other threads may be changing: seal()
 * fails if any of this has changed since `life` was read. */
static bool is_hopeless(struct process *process, const struct inflight *object, uint64_t life,
			uint64_t now)
{
	const uint64_t heard = LOAD(&object->heard_ns);
	const uint32_t comm = LOAD(&object->comm);

	if (state_of(life) != LIVE || now < heard || now - heard < INFLIGHT_PATIENCE_NS)
		return false;
	return comms_is_over(process, comm, LOAD(&object->comm_generation)) ||
	       (ended_of(life) == begun_of(life) &&
		comms_is_past(process, comm, LOAD(&object->order)));
}

static void look(struct process *process, uint64_t ticket, uint64_t end, uint64_t now)
{
	struct inflight *object = &process->inflight[ticket % INFLIGHT];
	uint64_t life;

	/* Nor is one beyond the end read: its place has not been in a cache for long. */
	if (ticket >= end)
		return;
	life = __atomic_load_n(&object->life, __ATOMIC_ACQUIRE);
	if (is_hopeless(process, object, life, now))
		inflight_give_up(process, object, life);
}

void inflight_sweep(struct process *process, uint64_t now)
{
	const uint64_t end = LOAD(&process->next_inflight);
	uint64_t oldest = LOAD(&process->oldest_inflight), at = LOAD(&process->swept);

	if (end - oldest > INFLIGHT)
		oldest = end - INFLIGHT;
	for (int i = 0; i < 4 && oldest < end; i++, oldest++)
		if (state_of(LOAD(&process->inflight[oldest % INFLIGHT].life)) != FREE)
			break;
	STORE(&process->oldest_inflight, oldest);
	look(process, oldest, end, now);
	/* Twice as fast as the end moves on, so all are reached. Two threads at once may look at
	 * the same one: no harm. */
	if (at < oldest || at >= end)
		at = oldest;
	look(process, at, end, now);
	look(process, at + 1, end, now);
	STORE(&process->swept, at + 2);
}

void inflight_end_comm(struct process *process, uint32_t comm, uint32_t generation)
{
	for (uint32_t i = 0; i < INFLIGHT; i++) {
		struct inflight *object = &process->inflight[i];
		const uint64_t life = __atomic_load_n(&object->life, __ATOMIC_ACQUIRE);

		if (state_of(life) == LIVE && LOAD(&object->comm) == comm &&
		    LOAD(&object->comm_generation) == generation)
			inflight_give_up(process, object, life);
	}
}
