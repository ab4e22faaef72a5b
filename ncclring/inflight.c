/* SPDX-License-Identifier: Apache-2.0 */
#include "inflight.h"

#include <stddef.h>

#include "comms.h"
#include "life.h"
#include "memfd.h"
#include "process.h"

/* How many places are tried for a free one before the oldest of them is given up. */
#define TRIES 8

static void dropped(struct process *process, enum stragd_ring_drop cause)
{
	ADD(&process->ring->dropped[cause], 1);
}

/* Nobody else touches the object's plain members while it is pinned; `life` as it was. */
static bool pin(struct inflight *object, uint32_t generation, uint64_t *life)
{
	*life = __atomic_load_n(&object->life, __ATOMIC_ACQUIRE);
	for (int round = 0; round < 64; round++) {
		if (generation_of(*life) != generation || state_of(*life) != LIVE ||
		    pins_of(*life) >= COUNT_LIMIT)
			return false;
		if (__atomic_compare_exchange_n(&object->life, life, *life + PIN_ONE, false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return true;
	}
	return false;
}

/* From LIVE without pins to SEALED: the caller owns it now. */
static bool seal(struct inflight *object, uint64_t life)
{
	return state_of(life) == LIVE && pins_of(life) == 0 &&
	       swap_if(&object->life, life,
		       life - ((uint64_t)LIVE << 30) + ((uint64_t)SEALED << 30));
}

static uint32_t poll_delta(uint64_t from, uint64_t to)
{
	const uint64_t units = to > from ? (to - from) / 64 : 0;

	if (units == 0)
		return 1; /* 0 says not known */
	return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

/* Writes the slot of a sealed object and counts it. */
static void publish(struct process *process, struct inflight *object, uint64_t life)
{
	const uint32_t begun = begun_of(life), ended = ended_of(life);
	struct stragd_ring_slot slot = {
	    .device_start = LOAD(&object->device_start),
	    .device_stop = LOAD(&object->device_stop),
	    .host_ns = object->host_ns,
	    .bytes = object->bytes,
	    .sequence = object->sequence,
	    .peer = object->peer,
	    .order = LOAD(&object->order),
	    .comm = (uint16_t)(LOAD(&object->comm) | (LOAD(&object->comm_generation) & 0xff) << 8),
	    .flags = object->flags & (uint16_t)~INFLIGHT_NO_SLOT,
	    .function = object->function,
	    .datatype = object->datatype,
	    .channels = ended < 255 ? (uint8_t)ended : 255,
	    .algorithm = object->algorithm,
	};

	if (slot.device_start == UINT64_MAX) {
		slot.device_start = 0;
		slot.flags |= STRAGD_RING_NO_START;
	}
	/* A stop before the start is another collective's: the library's ring ran over. */
	if (slot.device_stop == 0 || slot.device_stop < slot.device_start) {
		slot.device_stop = 0;
		slot.flags |= STRAGD_RING_NO_STOP;
	} else {
		slot.poll_delta = poll_delta(object->host_ns, LOAD(&object->heard_ns));
	}
	/* Version 3 announces the most there may be. */
	if ((ended < object->announced && process->api > 3) || ended < begun ||
	    LOAD(&object->untimed))
		slot.flags |= STRAGD_RING_FEW_CHANNELS;
	if (ended > 0)
		comms_completed(process, LOAD(&object->comm), LOAD(&object->comm_generation),
				object->function, slot.order, LOAD(&object->heard_ns));
	if (!(object->flags & INFLIGHT_NO_SLOT))
		memfd_write(process->ring, &slot);
}

static void release(struct inflight *object, uint64_t life)
{
	__atomic_store_n(&object->life, life_of(generation_of(life), FREE), __ATOMIC_RELEASE);
}

bool inflight_give_up(struct process *process, struct inflight *object, uint64_t life)
{
	if (!seal(object, life))
		return false;
	publish(process, object, life);
	release(object, life);
	return true;
}

/* Takes the pin off, adds what happened, and finishes the object when it is complete. The life
 * after it. */
static uint64_t unpin(struct process *process, struct inflight *object, uint64_t happened)
{
	const uint32_t announced = object->announced;
	const uint64_t life =
	    __atomic_add_fetch(&object->life, happened - PIN_ONE, __ATOMIC_ACQ_REL);

	if (announced && ended_of(life) >= announced)
		inflight_give_up(process, object, life);
	return life;
}

/* Whether this channel is new in `seen`. */
static bool mark(uint64_t seen[2], uint32_t channel, uint32_t count)
{
	const uint64_t bit = 1ull << (channel & 63);

	if (channel >= INFLIGHT_CHANNELS)
		return count < COUNT_LIMIT - INFLIGHT_CHANNELS;
	return !(__atomic_fetch_or(&seen[channel >> 6], bit, __ATOMIC_RELAXED) & bit);
}

/* A place that the caller owns (SEALED, of a new generation), or NULL. */
static struct inflight *claim(struct process *process)
{
	struct inflight *oldest = NULL;
	uint64_t ticket = 0, oldest_ticket = 0;

	for (int i = 0; i < TRIES; i++) {
		struct inflight *object;
		uint64_t life;

		ticket = ADD(&process->next_inflight, 1);
		object = &process->inflight[ticket % INFLIGHT];
		life = __atomic_load_n(&object->life, __ATOMIC_ACQUIRE);

		if (state_of(life) == FREE &&
		    swap_if(&object->life, life, life_of(generation_of(life) + 1, SEALED)))
			return object;
		if (!oldest && state_of(life) == LIVE && pins_of(life) == 0) {
			oldest = object;
			oldest_ticket = ticket;
		}
	}
	if (oldest) {
		const uint64_t life = __atomic_load_n(&oldest->life, __ATOMIC_ACQUIRE);

		if (seal(oldest, life)) {
			publish(process, oldest, life);
			STORE(&oldest->life, life_of(generation_of(life) + 1, SEALED));
			/* So that the next one to go is the next oldest. */
			swap_if(&process->next_inflight, ticket + 1, oldest_ticket + 1);
			return oldest;
		}
	}
	return NULL;
}

void *inflight_begin(struct process *process, const struct operation *operation)
{
	struct inflight *object = claim(process);
	uint32_t generation;
	void *handle;

	if (!object) {
		dropped(process, STRAGD_RING_DROP_POOL);
		return NULL;
	}
	generation = generation_of(LOAD(&object->life));
	handle = handle_make(HANDLE_OP, 0, generation, (uint32_t)(object - process->inflight));
	STORE(&object->device_start, UINT64_MAX);
	STORE(&object->device_stop, 0);
	STORE(&object->heard_ns, operation->host_ns);
	for (int i = 0; i < 2; i++) {
		STORE(&object->begun[i], 0);
		STORE(&object->ended[i], 0);
	}
	STORE(&object->chained, operation->chained);
	STORE(&object->untimed, 0);
	STORE(&object->order, operation->order);
	STORE(&object->comm, operation->comm);
	STORE(&object->comm_generation, operation->comm_generation);
	object->host_ns = operation->host_ns;
	object->bytes = operation->bytes;
	object->sequence = operation->sequence;
	object->peer = operation->peer;
	object->flags = operation->flags;
	object->function = operation->function;
	object->datatype = operation->datatype;
	object->announced = operation->announced;
	object->algorithm = operation->algorithm;
	__atomic_store_n(&object->life, life_of(generation, LIVE), __ATOMIC_RELEASE);
	/* The next one's place has not been in a cache since the pool last went round. */
	object = &process->inflight[LOAD(&process->next_inflight) % INFLIGHT];
	__builtin_prefetch(object, 1);
	__builtin_prefetch((char *)object + 64, 1);
	return handle;
}

static struct inflight *object_of(struct process *process, const void *handle)
{
	const uint32_t index = handle_index(handle);

	return index < INFLIGHT ? &process->inflight[index] : NULL;
}

void *inflight_channel_begin(struct process *process, void *parent, uint32_t channel,
			     uint64_t timer, bool host_clock)
{
	struct inflight *object = object_of(process, parent);
	const uint32_t generation = handle_generation(parent);
	uint32_t comm, comm_generation;
	uint64_t life, now = 0;
	uint8_t function;

	if (!object || !pin(object, generation, &life)) {
		dropped(process, STRAGD_RING_DROP_STALE);
		return NULL;
	}
	if (!mark(object->begun, channel, begun_of(life))) {
		unpin(process, object, 0);
		dropped(process, STRAGD_RING_DROP_STALE);
		return NULL;
	}
	if (host_clock || begun_of(life) == 0) {
		now = monotonic_ns();
		raise_to(&object->heard_ns, now);
	}
	if (host_clock)
		timer = now;
	if (timer)
		lower(&object->device_start, timer);
	comm = object->comm;
	comm_generation = object->comm_generation;
	function = object->function;
	life = unpin(process, object, BEGUN_ONE);
	if (begun_of(life) == 1)
		comms_started(process, comm, comm_generation, function, now);
	return handle_make(HANDLE_KERNEL, channel, generation, handle_index(parent));
}

void inflight_channel_end(struct process *process, void *handle, uint64_t timer, bool host_clock)
{
	struct inflight *object = object_of(process, handle);
	const uint32_t channel = handle_channel(handle);
	uint64_t life, now;

	if (!object || !pin(object, handle_generation(handle), &life)) {
		dropped(process, STRAGD_RING_DROP_STALE);
		return;
	}
	if (ended_of(life) >= begun_of(life) || !mark(object->ended, channel, ended_of(life))) {
		unpin(process, object, 0);
		dropped(process, STRAGD_RING_DROP_STALE);
		return;
	}
	now = monotonic_ns();
	raise_to(&object->heard_ns, now);
	if (host_clock)
		timer = now;
	if (timer)
		raise_to(&object->device_stop, timer);
	else
		STORE(&object->untimed, 1);
	unpin(process, object, ENDED_ONE);
}

void inflight_untimed(struct process *process, const struct operation *operation)
{
	const struct stragd_ring_slot slot = {
	    .host_ns = operation->host_ns,
	    .bytes = operation->bytes,
	    .sequence = operation->sequence,
	    .peer = operation->peer,
	    .order = operation->order,
	    .comm = (uint16_t)(operation->comm | (operation->comm_generation & 0xff) << 8),
	    .flags = operation->flags | STRAGD_RING_NO_START | STRAGD_RING_NO_STOP,
	    .function = operation->function,
	    .datatype = operation->datatype,
	    .algorithm = operation->algorithm,
	};

	memfd_write(process->ring, &slot);
}

void *inflight_chained(struct process *process, void *handle)
{
	struct inflight *object = object_of(process, handle);
	void *chained;

	if (!object || !inflight_is_current(process, handle))
		return NULL;
	chained = __atomic_load_n(&object->chained, __ATOMIC_ACQUIRE);
	return inflight_is_current(process, handle) ? chained : NULL;
}

bool inflight_is_open(struct process *process, const void *handle)
{
	const struct inflight *object = object_of(process, handle);
	const uint32_t channel = handle_channel(handle);
	uint64_t life;

	if (!object)
		return false;
	life = LOAD(&object->life);
	return generation_of(life) == handle_generation(handle) && state_of(life) == LIVE &&
	       channel < INFLIGHT_CHANNELS &&
	       !(LOAD(&object->ended[channel >> 6]) >> (channel & 63) & 1);
}

bool inflight_is_current(struct process *process, const void *handle)
{
	const struct inflight *object = object_of(process, handle);

	return object && generation_of(__atomic_load_n(&object->life, __ATOMIC_ACQUIRE)) ==
			     handle_generation(handle);
}
