/* SPDX-License-Identifier: Apache-2.0 */
#include "operations.h"

#include "comms.h"
#include "control.h"
#include "names.h"

void *operations_group(struct process *process, struct comm *comm)
{
	control_poll(process, comm);
	if (LOAD(&process->mode) == STRAGD_RING_OFF || !LOAD(&comm->recorded))
		return handle_make(HANDLE_GROUP, 0, 0, 0);
	STORE(&comm->batch_ns, monotonic_ns());
	return handle_make(HANDLE_GROUP, 0, ADD(&comm->batch, 1) + 1, 0);
}

/* When the host enqueued it. Reading the clock is half of a callback, and the library tells of a
 * launch and of what it carries in one go, so the launch's time serves for all of it. */
static uint64_t enqueued_ns(const struct comm *comm, const struct call *call)
{
	const uint32_t batch = LOAD(&comm->batch);

	if (batch && handle_kind(call->group) == HANDLE_GROUP &&
	    handle_generation(call->group) == batch)
		return LOAD(&comm->batch_ns);
	return monotonic_ns();
}

static bool has_root(uint8_t function)
{
	return function == STRAGD_RING_BROADCAST || function == STRAGD_RING_REDUCE ||
	       function == STRAGD_RING_GATHER || function == STRAGD_RING_SCATTER;
}

/* Whether the collective before it on this communicator was of the same launch. Of the copy
 * engines' work no launch is told. */
static bool is_grouped(struct comm *comm, const struct call *call)
{
	const uint32_t batch = LOAD(&comm->batch);

	return batch != 0 && !(call->flags & STRAGD_RING_COPY_ENGINE) &&
	       __atomic_exchange_n(&comm->batch_seen, batch, __ATOMIC_RELAXED) == batch;
}

void *operations_enqueued(struct process *process, struct comm *comm, const struct call *call,
			  void *chained)
{
	struct operation operation = {.chained = chained, .flags = call->flags};
	uint64_t now, order, sequence;
	uint32_t size;

	control_poll(process, comm);
	if (LOAD(&process->mode) == STRAGD_RING_OFF || !LOAD(&comm->recorded)) {
		STORE(&process->gap, 1);
		return NULL;
	}
	now = enqueued_ns(comm, call);
	order = ADD(&process->ring->order, 1);
	operation.function = names_function(call->function);
	operation.datatype = names_datatype(call->datatype, &size);
	operation.bytes = call->count * size;
	sequence = call->message ? comms_message(process, comm, call->peer,
						 operation.function == STRAGD_RING_RECV)
				 : call->sequence;
	comms_enqueued(process, comm, operation.function, now, sequence, operation.bytes);
	if (is_grouped(comm, call))
		operation.flags |= STRAGD_RING_GROUPED;
	if (LOAD(&process->mode) != STRAGD_RING_FULL || !control_in_sample(process, order)) {
		STORE(&process->gap, 1);
		return NULL;
	}
	if (!control_in_floor(process, operation.bytes)) {
		STORE(&process->gap, 1);
		operation.flags |= INFLIGHT_NO_SLOT;
	} else if (LOAD(&process->gap)) {
		STORE(&process->gap, 0);
		operation.flags |= STRAGD_RING_AFTER_GAP;
	}
	operation.host_ns = now;
	operation.sequence = (uint32_t)sequence;
	operation.order = (uint32_t)order;
	operation.peer = call->message || has_root(operation.function) ? call->peer : -1;
	operation.comm = (uint16_t)comms_index(process, comm);
	operation.comm_generation = LOAD(&comm->generation);
	operation.announced = call->channels;
	operation.algorithm = names_algorithm(call->algorithm, call->protocol);
	inflight_sweep(process, now);
	if (call->timeless) {
		if (!(operation.flags & INFLIGHT_NO_SLOT))
			inflight_untimed(process, &operation);
		return NULL;
	}
	return inflight_begin(process, &operation);
}
