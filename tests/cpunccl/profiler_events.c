/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin is told by the launching thread, per descriptor version and library version:
 *
 *   up to 2.27   Group, then Coll or P2p if the Group's handle is not NULL
 *   from 2.28    GroupApi, CollApi or P2pApi, KernelLaunch, Group, Coll or P2p; NULL parents
 * allowed
 */
#include <string.h>
#include "internal.h"
#include "profiler.h"

#define UNDER_TASK (PROXY_OP | PROXY_STEP | NET_PLUGIN | KERNEL_CH | KERNEL_PHASE)
#define UNDER_GROUP (COLL | P2P | UNDER_TASK)
#define SMALL_BYTES 4096

const char *function_name(enum function function)
{
	static const char *const names[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
					    "AllReduce", "AlltoAll", "Send",      "Recv"};

	return names[function];
}

static const char *type_name(ncclDataType_t type)
{
	static const char *const names[] = {
	    "ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",
	    "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};

	return names[type];
}

void event_begin(struct descriptor *descriptor, uint64_t type, void *parent, int rank)
{
	/* Fields that an event does not have, padding, and the seven bytes beside a u8 type. */
	memset(descriptor, 0xa5, sizeof *descriptor);
	if (profiler()->api < 5)
		descriptor->type8 = (uint8_t)type;
	else
		descriptor->type64 = type;
	descriptor->parent = parent;
	descriptor->rank = rank;
}

static void start(struct ncclComm *comm, void **handle, struct descriptor *descriptor)
{
	profiler()->table->start(profiler_context(comm), handle, descriptor);
}

static void stop(void *handle)
{
	if (handle)
		profiler()->table->stop(handle);
}

/* The rank of *Api and KernelLaunch events is left at 0 up to 2.30. */
static int api_rank(const struct ncclComm *comm)
{
	return settings()->version >= 23100 ? comm->rank : 0;
}

void *profiler_group_start(struct ncclComm *comm, int mask, int depth)
{
	struct descriptor descriptor;
	void *handle = 0;

	if (profiler()->api < 5 || !comm->profiled ||
	    !(mask & (GROUP_API | COLL_API | P2P_API | KERNEL_LAUNCH | GROUP | UNDER_GROUP)))
		return 0;
	event_begin(&descriptor, GROUP_API, 0, api_rank(comm));
	descriptor.group_api.captured = capturing();
	descriptor.group_api.depth = depth;
	start(comm, &handle, &descriptor);
	if (handle)
		profiler()->table->record(handle, STATE_GROUP_STARTED, 0);
	return handle;
}

void profiler_group_ends(void *handle)
{
	if (handle)
		profiler()->table->record(handle, STATE_GROUP_ENDS, 0);
}

void profiler_group_stop(void *handle)
{
	stop(handle);
}

void profiler_api_start(struct ncclComm *comm, const char *name, cpunccl_stream *stream,
			struct task *task, int mask, void *group_api_handle)
{
	struct descriptor descriptor;
	bool message = !strcmp(name, "Send") || !strcmp(name, "Recv");
	int wanted = message ? P2P_API | P2P | UNDER_TASK : COLL_API | COLL | UNDER_TASK;

	if (profiler()->api < 5 || !comm->profiled || !(mask & wanted))
		return;
	event_begin(&descriptor, message ? P2P_API : COLL_API, group_api_handle, api_rank(comm));
	if (message) {
		descriptor.p2p_api.function = name;
		descriptor.p2p_api.count = task->count;
		descriptor.p2p_api.type = type_name(task->type);
		descriptor.p2p_api.stream = stream;
		descriptor.p2p_api.captured = capturing();
		descriptor.p2p_api.tag = 0;
	} else {
		descriptor.coll_api.function = name;
		descriptor.coll_api.count = task->count;
		descriptor.coll_api.type = type_name(task->type);
		descriptor.coll_api.root = task->peer < 0 ? 0 : task->peer;
		descriptor.coll_api.stream = stream;
		descriptor.coll_api.captured = capturing();
		descriptor.coll_api.tag = 0;
	}
	start(comm, &task->api_handle, &descriptor);
}

void profiler_api_stop(struct task *task)
{
	stop(task->api_handle);
}

/* Events of a one-rank communicator, of nothing, and of what 2.29 and 2.30 route past them. */
static bool has_events(const struct plan *plan, const struct task *task)
{
	const char *gather = nccl_variable("NCCL_ALLGATHERV_ENABLE");
	bool lost = settings()->version >= 22902 && settings()->version < 23100 &&
		    !settings()->rccl && !(gather && !strcmp(gather, "0"));

	return plan->comm->profiled && plan->comm->nranks > 1 && task->count &&
	       !(task->function == BROADCAST && lost);
}

bool profiler_replays(const struct plan *plan)
{
	return plan->comm->profiled && plan->mask & KERNEL_CH;
}

void profiler_kernel_launch(struct plan *plan)
{
	struct descriptor descriptor;
	void *handle = 0;

	if (profiler()->api < 5 || !plan->comm->profiled || !(plan->mask & KERNEL_LAUNCH))
		return;
	event_begin(&descriptor, KERNEL_LAUNCH, plan->group_api_handle, api_rank(plan->comm));
	descriptor.kernel_launch.stream = plan->stream;
	start(plan->comm, &handle, &descriptor);
	stop(handle);
}

static int channels_of(const struct task *task)
{
	return IS_MESSAGE(task->function) ? 1 : settings()->channels;
}

void profiler_prepare(struct plan *plan)
{
	for (struct task *task = plan->tasks; task; task = task->next) {
		task->work = 0;
		if (plan->mask & (KERNEL_CH | KERNEL_PHASE) && has_events(plan, task))
			task->work = work_new(plan->comm, channels_of(task));
	}
}

static void describe_collective(const struct plan *plan, const struct task *task, uint64_t sequence,
				struct descriptor *descriptor)
{
	size_t bytes = task->count * type_size(task->type), count = task->count;
	const char *type = type_name(task->type), *name = function_name(task->function);
	const char *algorithm = bytes <= SMALL_BYTES ? "TREE" : "RING";
	const char *protocol = bytes <= SMALL_BYTES ? "LL" : "SIMPLE";
	uint8_t channels = (uint8_t)settings()->channels;
	int root = task->peer < 0 ? 0 : task->peer;

	if (task->function == ALL_GATHER || task->function == BROADCAST) {
		count = bytes;
		type = type_name(ncclInt8);
	}
	if (profiler()->api == 3) {
		bool native = settings()->version < 22700;

		descriptor->coll_v3.name = native ? plan->comm->name : 0;
		descriptor->coll_v3.hash = native ? plan->comm->hash : 0;
		descriptor->coll_v3.sequence = sequence;
		descriptor->coll_v3.function = name;
		descriptor->coll_v3.send = task->send;
		descriptor->coll_v3.recv = task->recv;
		descriptor->coll_v3.count = count;
		descriptor->coll_v3.root = root;
		descriptor->coll_v3.type = type;
		descriptor->coll_v3.channels = channels;
		descriptor->coll_v3.warps = 16;
		descriptor->coll_v3.algorithm = algorithm;
		descriptor->coll_v3.protocol = protocol;
		return;
	}
	descriptor->coll.sequence = sequence;
	descriptor->coll.function = name;
	descriptor->coll.send = task->send;
	descriptor->coll.recv = task->recv;
	descriptor->coll.count = count;
	descriptor->coll.root = root;
	descriptor->coll.type = type;
	descriptor->coll.channels = channels;
	descriptor->coll.warps = 16;
	descriptor->coll.algorithm = algorithm;
	descriptor->coll.protocol = protocol;
	if (profiler()->api >= 5)
		descriptor->coll.group = plan->group_handle;
	if (profiler()->api >= 7) {
		descriptor->coll.variant = "";
		descriptor->coll.symmetric = false;
		descriptor->coll.tag = 0;
	}
}

static void describe_message(const struct plan *plan, const struct task *task,
			     struct descriptor *descriptor)
{
	const char *name = function_name(task->function), *type = type_name(task->type);
	void *buffer = task->function == SEND ? (void *)(uintptr_t)task->send : task->recv;

	if (profiler()->api == 3) {
		bool native = settings()->version < 22700;

		descriptor->p2p_v3.name = native ? plan->comm->name : 0;
		descriptor->p2p_v3.hash = native ? plan->comm->hash : 0;
		descriptor->p2p_v3.function = name;
		descriptor->p2p_v3.buffer = buffer;
		descriptor->p2p_v3.type = type;
		descriptor->p2p_v3.count = task->count;
		descriptor->p2p_v3.peer = task->peer;
		return;
	}
	descriptor->p2p.function = name;
	descriptor->p2p.buffer = buffer;
	descriptor->p2p.type = type;
	descriptor->p2p.count = task->count;
	descriptor->p2p.peer = task->peer;
	/* The shim that serves v4 from 2.28 on forgets the number of channels. */
	if (profiler()->api >= 5 || settings()->version < 22800)
		descriptor->p2p.channels = (uint8_t)channels_of(task);
	if (profiler()->api >= 5)
		descriptor->p2p.group = plan->group_handle;
	if (profiler()->api >= 7)
		descriptor->p2p.tag = 0;
}

/* Start of Coll or P2p. False: this library does not deliver it. */
static bool task_start(struct plan *plan, struct task *task, uint64_t sequence)
{
	struct descriptor descriptor;
	bool message = IS_MESSAGE(task->function);
	void *parent = profiler()->api >= 5 ? task->api_handle : plan->group_handle;

	if (!has_events(plan, task) || !(plan->mask & ((message ? P2P : COLL) | UNDER_TASK)) ||
	    (settings()->version < 22800 && !plan->group_handle))
		return false;
	if (settings()->misbehave[NULL_PARENT])
		parent = 0;
	event_begin(&descriptor, message ? P2P : COLL, parent, plan->comm->rank);
	if (message)
		describe_message(plan, task, &descriptor);
	else
		describe_collective(plan, task, sequence, &descriptor);
	start(plan->comm, &task->handle, &descriptor);
	return true;
}

/* 2.31.2 gives device times to the wrong collective once a broadcast was used. */
static void *kernel_parent(struct ncclComm *comm, const struct task *task)
{
	void *parent = comm->shifted ? comm->last_handle : task->handle;

	comm->last_handle = task->handle;
	if (settings()->version == 23102 && task->function == BROADCAST)
		comm->shifted = true;
	return parent;
}

void profiler_enqueued(struct plan *plan)
{
	struct ncclComm *comm = plan->comm;
	bool group = comm->profiled && comm->nranks > 1 && plan->mask & (GROUP | UNDER_GROUP);
	struct descriptor descriptor;

	if (group) {
		event_begin(&descriptor, GROUP, plan->group_api_handle, comm->rank);
		start(comm, &plan->group_handle, &descriptor);
	}
	for (struct task *task = plan->tasks; task; task = task->next) {
		/* The numbers advance whether anybody listens or not. */
		uint64_t sequence = IS_MESSAGE(task->function)
					? 0
					: atomic_fetch_add(&comm->sequence[task->function], 1);
		bool delivered = task_start(plan, task, sequence);
		struct kernel_work *work = task->work;

		if (delivered)
			work_post(work, kernel_parent(comm, task));
		else
			work_cancel(work);
		if (delivered)
			stop(task->handle);
	}
	if (group)
		stop(plan->group_handle);
}
