/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comms.h"
#include "loader.h"

#define VARIABLE "STRAGD_RING_CHAIN"
#define CHANNELS 256u /* a channel's number has 8 bits */

static void *open_named(const char *name)
{
	char file[1024];
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (library || strchr(name, '/'))
		return library;
	if (snprintf(file, sizeof(file), "libnccl-profiler-%s.so", name) >= (int)sizeof(file))
		return NULL;
	return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static const struct nccl_profiler *exported(void *library, uint32_t version)
{
	char symbol[] = "ncclProfiler_v0";

	symbol[sizeof(symbol) - 2] = (char)('0' + version);
	return dlsym(library, symbol);
}

static bool is_ourselves(void *library)
{
	Dl_info theirs, ours;
	const void *symbol = exported(library, 7);

	return symbol && dladdr(symbol, &theirs) && dladdr((void *)(uintptr_t)&chain_load, &ours) &&
	       theirs.dli_fbase == ours.dli_fbase;
}

static int events_of(uint32_t version)
{
	static const int events[] = {NCCL_EVENTS_V3, NCCL_EVENTS_V4, NCCL_EVENTS_V5, NCCL_EVENTS_V6,
				     NCCL_EVENTS_V7};

	return events[version - 3];
}

static void *channel_table(void)
{
	void *table = mmap(NULL, INFLIGHT * CHANNELS * sizeof(void *), PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return table == MAP_FAILED ? NULL : table;
}

/* Why it cannot be chained, or NULL. */
static const char *load(struct process *process, const char *name, uint32_t version)
{
	const uint32_t oldest = version >= 5 ? 5 : version;
	struct chain *chain = &process->chain;
	void *library = open_named(name);

	if (!library)
		return dlerror();
	if (is_ourselves(library))
		return "it is stragd's own plugin";
	for (chain->version = version; chain->version >= oldest; chain->version--) {
		const struct nccl_profiler *plugin = exported(library, chain->version);

		if (!plugin || !plugin->init || !plugin->start || !plugin->stop ||
		    !plugin->record || !plugin->finalize)
			continue;
		chain->channels = channel_table();
		if (!chain->channels)
			return "no memory";
		chain->events = events_of(chain->version);
		chain->plugin = plugin;
		return NULL;
	}
	return "it has no symbol that fits the version this library speaks";
}

void chain_load(struct process *process, uint32_t version, nccl_logger log)
{
	const char *name = secure_getenv(VARIABLE), *problem;

	if (!name || !*name)
		return;
	problem = load(process, name, version);
	if (process->ring) {
		strncpy(process->ring->chained_name, name, sizeof(process->ring->chained_name) - 1);
		process->ring->chained = !problem;
	}
	if (!log)
		return;
	if (problem)
		log(NCCL_LOG_INFO, NCCL_LOG_PROFILE, __func__, __LINE__,
		    "stragd: " VARIABLE "=%s cannot be chained (%s): it gets no events. To have it "
		    "alone, set NCCL_PROFILER_PLUGIN to it",
		    name, problem);
	else
		log(NCCL_LOG_INFO, NCCL_LOG_PROFILE, __func__, __LINE__,
		    "stragd: chained %s (%s, version %u)", name,
		    process->chain.plugin->name ? process->chain.plugin->name : "no name",
		    process->chain.version);
}

bool chain_init(struct process *process, struct comm *comm, const struct comm_identity *identity,
		nccl_logger log)
{
	const struct nccl_profiler *plugin = process->chain.plugin;
	int *mask = &process->chain.mask;
	void *context = NULL;
	int failed;

	if (!plugin)
		return false;
	if (process->chain.version == 3)
		failed = ((nccl_init_v3)plugin->init)(&context, mask);
	else if (process->chain.version == 4)
		failed = ((nccl_init_v4)plugin->init)(&context, mask, identity->name,
						      identity->hash, identity->nnodes,
						      identity->nranks, identity->rank, log);
	else
		failed = ((nccl_init_v5)plugin->init)(&context, identity->hash, mask,
						      identity->name, identity->nnodes,
						      identity->nranks, identity->rank, log);
	STORE(&comm->chained_context, context);
	__atomic_store_n(&comm->chain, !failed, __ATOMIC_RELEASE);
	return !failed;
}

/* One of our handles as theirs; what is not ours is theirs already. */
static void *translate(struct process *process, void *handle)
{
	switch (handle_kind(handle)) {
	case HANDLE_OP:
		return inflight_chained(process, handle);
	case HANDLE_KERNEL:
		if (!inflight_is_current(process, handle))
			return NULL;
		return LOAD(&process->chain.channels[handle_index(handle) * CHANNELS +
						     handle_channel(handle)]);
	default:
		return handle_is_ours(handle) ? NULL : handle;
	}
}

void *chain_start(struct process *process, struct comm *comm, uint64_t type, void **parent,
		  void *descriptor)
{
	void *const ours = *parent, *theirs = NULL;

	if (!process->chain.plugin || !__atomic_load_n(&comm->chain, __ATOMIC_ACQUIRE) ||
	    !(type & (uint64_t)process->chain.events))
		return NULL;
	*parent = translate(process, ours);
	process->chain.plugin->start(LOAD(&comm->chained_context), &theirs, descriptor);
	*parent = ours;
	return theirs;
}

void chain_stop(struct process *process, void *handle)
{
	void *theirs;

	if (process->chain.plugin && (theirs = translate(process, handle)))
		process->chain.plugin->stop(theirs);
}

void chain_record(struct process *process, void *handle, int state, void *args)
{
	void *theirs;

	if (process->chain.plugin && (theirs = translate(process, handle)))
		process->chain.plugin->record(theirs, state, args);
}

void chain_finalize(struct process *process, void *context)
{
	if (process->chain.plugin)
		process->chain.plugin->finalize(context);
}

void chain_keep(struct process *process, void *ours, void *theirs)
{
	STORE(&process->chain.channels[handle_index(ours) * CHANNELS + handle_channel(ours)],
	      theirs);
}
