/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported symbols, one per version of the interface, and what differs between versions.
 *
 * Callbacks come from any thread, at any time, twice, late or never, with NULL or with handles of
 * long ago. They always return success, always write *handle, and neither lock, allocate, log nor
 * make a system call; init may do all of that.
 */
#include <errno.h>
#include <string.h>

#include "call.h"
#include "chain.h"
#include "control.h"
#include "library.h"
#include "memfd.h"
#include "operations.h"

#define NAME "stragd"
#define EXPORT __attribute__((visibility("default")))

static void say(nccl_logger log, const char *text, const char *detail)
{
	if (log)
		log(NCCL_LOG_INFO, NCCL_LOG_PROFILE, __func__, __LINE__, NAME ": %s%s", text,
		    detail);
}

static uint32_t clock_of(uint32_t version, uint32_t vendor)
{
	if (version == 3)
		return STRAGD_RING_CLOCK_HOST;
	/* Of a library that nobody knows the rate is estimated, like that of ticks. */
	return vendor == STRAGD_RING_NVIDIA ? STRAGD_RING_CLOCK_NS : STRAGD_RING_CLOCK_TICKS;
}

/* The first init of a process. Holds init_lock. */
static void prepare(struct process *process, uint32_t version, uint32_t vendor, uint32_t library,
		    nccl_logger log)
{
	struct stragd_ring_header *ring = memfd_make(false);
	const char *problem = ring ? NULL : strerror(errno);

	process->vendor = vendor;
	process->library = library;
	process->api = version;
	process->clock = clock_of(version, process->vendor);
	process->announces_p2p = process->library / 100 == 227;
	process->ring = ring;
	chain_load(process, version, log);
	if (problem)
		say(log, "nothing is recorded, no shared memory: ", problem);
	if (!ring && process->chain.plugin)
		process->ring = ring = memfd_make(true); /* only to forward */
	if (!ring)
		return;
	control_begin(process, log);
	if (problem)
		STORE(&process->mode, STRAGD_RING_OFF);
	ring->vendor = process->vendor;
	ring->clock = process->clock;
	ring->api = version;
	ring->library = process->library;
	memfd_open(ring);
	say(log, "collectives are recorded for stragd: ", control_mode_name(LOAD(&process->mode)));
}

static int init(uint32_t version, void **context, int *mask, const struct comm_identity *identity,
		nccl_logger log, const void *caller)
{
	struct process *process;
	uint32_t vendor, library;
	struct comm *comm;
	void *ours = NULL;

	if (!context)
		return 0;
	*context = NULL;
	process = process_make();
	if (!process) {
		say(log, "nothing is recorded", ", no memory");
		return 0;
	}
	library_identify(caller, &vendor, &library);
	pthread_mutex_lock(&process->init_lock);
	if (!LOAD(&process->ready)) {
		prepare(process, version, vendor, library, log);
		__atomic_store_n(&process->ready, 1, __ATOMIC_RELEASE);
	}
	if (process->ring) {
		ours = comms_begin(process, identity, mask);
		if (!ours)
			ADD(&process->ring->dropped[STRAGD_RING_DROP_COMM], 1);
	}
	pthread_mutex_unlock(&process->init_lock);
	if (!ours)
		return 0;
	comm = &process->comms[handle_index(ours)];
	/* A second library with another clock cannot share the ring. */
	if (vendor != process->vendor || version != process->api) {
		STORE(&comm->recorded, 0);
		say(log, "not recorded, another library of this process is", "");
	}
	if (version == process->api)
		chain_init(process, comm, identity, log);
	control_poll(process, comm);
	*context = ours;
	return 0;
}

static void *start_operation(uint32_t version, struct process *process, struct comm *comm,
			     uint64_t type, const void *descriptor, void *theirs)
{
	const struct nccl_descriptor_v3 *v3 = descriptor;
	const struct call call = call_of(version, process, type, descriptor);
	void *ours;

	if (version == 3) {
		const struct comm_identity identity = {
		    .name = call.message ? v3->p2p.name : v3->coll.name,
		    .hash = call.message ? v3->p2p.comm_hash : v3->coll.comm_hash,
		    .rank = v3->rank,
		};

		comms_identify(process, comm, &identity);
	}
	ours = operations_enqueued(process, comm, &call, theirs);
	return ours ? ours : theirs;
}

static void *start_kernel(uint32_t version, struct process *process, void *parent,
			  const struct nccl_kernel_ch *kernel, void *theirs)
{
	void *ours = NULL;

	if (handle_kind(parent) == HANDLE_OP)
		ours = inflight_channel_begin(process, parent, kernel->channel,
					      version > 3 ? kernel->timer : 0, version == 3);
	if (!ours)
		return theirs;
	if (process->chain.plugin)
		chain_keep(process, ours, theirs);
	return ours;
}

/* Of a captured call our handle says so: replays come with it as their parent. */
static void *start_api(bool graph_captured, void *theirs)
{
	return graph_captured && !theirs ? handle_make(HANDLE_GRAPH, 0, 0, 0) : theirs;
}

static int start(uint32_t version, void *context, void **handle, void *descriptor)
{
	struct nccl_descriptor_v7 *v7 = descriptor;
	struct process *process = process_state();
	struct comm *comm;
	uint64_t type;
	void *theirs, *ours;

	if (!handle)
		return 0;
	*handle = NULL;
	if (!descriptor || !process || !process->ring)
		return 0;
	type = version > 4 ? v7->type : ((struct nccl_descriptor_v4 *)descriptor)->type;
	comm = comms_of(process, context);
	theirs = comm ? chain_start(process, comm, type, &v7->parent, descriptor) : NULL;
	if (type == NCCL_KERNEL_CH) {
		*handle = start_kernel(version, process, v7->parent, &v7->kernel_ch, theirs);
		return 0;
	}
	if (!comm)
		return 0;
	switch (type) {
	case NCCL_GROUP:
		ours = operations_group(process, comm);
		/* Up to NCCL 2.27, groups without a handle have no collectives. Later descriptors
		 * name the group beside the parent, where a chained plugin must find its own. */
		*handle = theirs || (version > 4 && process->chain.plugin) ? theirs : ours;
		break;
	case NCCL_COLL:
	case NCCL_P2P:
	case NCCL_CE_COLL:
		*handle = start_operation(version, process, comm, type, descriptor, theirs);
		break;
	case NCCL_COLL_API:
		*handle = start_api(version > 4 && v7->coll_api.graph_captured, theirs);
		break;
	case NCCL_P2P_API:
		*handle = start_api(version > 4 && v7->p2p_api.graph_captured, theirs);
		break;
	default:
		*handle = theirs;
	}
	return 0;
}

static int stop(uint32_t version, void *handle)
{
	struct process *process = process_state();

	if (!handle || !process || !process->ring)
		return 0;
	if (handle_kind(handle) == HANDLE_KERNEL) {
		if (version == 3)
			inflight_channel_end(process, handle, 0, true);
		else if (inflight_is_open(process, handle))
			inflight_channel_end(process, handle, 0, false);
	}
	chain_stop(process, handle);
	return 0;
}

static int record(uint32_t version, void *handle, int state, void *args)
{
	struct process *process = process_state();

	if (!handle || !process || !process->ring)
		return 0;
	if (version > 3 && args && state == NCCL_KERNEL_CH_STOP &&
	    handle_kind(handle) == HANDLE_KERNEL)
		inflight_channel_end(process, handle, ((struct nccl_state_args *)args)->timer,
				     false);
	chain_record(process, handle, state, args);
	return 0;
}

static int finalize(void *context)
{
	struct process *process = process_state();
	struct comm *comm;
	void *theirs;
	bool chained;

	if (!process || !process->ring)
		return 0;
	comm = comms_of(process, context);
	if (!comm)
		return 0;
	theirs = LOAD(&comm->chained_context);
	chained = LOAD(&comm->chain);
	if (comms_end(process, comm) && chained)
		chain_finalize(process, theirs);
	return 0;
}

#define CALLER __builtin_return_address(0)

static int init_v3(void **context, int *mask)
{
	const struct comm_identity nobody = {.rank = -1};

	return init(3, context, mask, &nobody, NULL, CALLER);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nnodes,
		   int nranks, int rank, nccl_logger log)
{
	const struct comm_identity identity = {name, hash, nnodes, nranks, rank};

	return init(4, context, mask, &identity, log, CALLER);
}

#define VERSION(v)                                                                                 \
	static int start_v##v(void *context, void **handle, void *descriptor)                      \
	{                                                                                          \
		return start(v, context, handle, descriptor);                                      \
	}                                                                                          \
	static int stop_v##v(void *handle)                                                         \
	{                                                                                          \
		return stop(v, handle);                                                            \
	}                                                                                          \
	static int record_v##v(void *handle, int state, void *args)                                \
	{                                                                                          \
		return record(v, handle, state, args);                                             \
	}                                                                                          \
	EXPORT extern const struct nccl_profiler ncclProfiler_v##v;                                \
	const struct nccl_profiler ncclProfiler_v##v = {                                           \
	    NAME, (void (*)(void))init_v##v, start_v##v, stop_v##v, record_v##v, finalize};

#define INIT(v)                                                                                    \
	static int init_v##v(void **context, uint64_t id, int *mask, const char *name, int nnodes, \
			     int nranks, int rank, nccl_logger log)                                \
	{                                                                                          \
		const struct comm_identity identity = {name, id, nnodes, nranks, rank};            \
                                                                                                   \
		return init(v, context, mask, &identity, log, CALLER);                             \
	}

INIT(5)
INIT(6)
INIT(7)
VERSION(3)
VERSION(4)
VERSION(5)
VERSION(6)
VERSION(7)
