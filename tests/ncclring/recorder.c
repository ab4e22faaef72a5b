/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second profiler plugin, for chaining: writes a line to the file RECORDER_LOG for every
 * callback (none without that), and says "foreign" of what comes back and is not its own.
 * -DVERSION=5 says which it exports; RECORDER_MASK what it asks for.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../ncclring/abi.h"

#ifndef VERSION
#define VERSION 4
#endif
#define JOIN(a, b) a##b
#define SYMBOL(v) JOIN(ncclProfiler_v, v)

struct event {
	int number;
};

enum { EVENTS = 50000 };

static struct event events[EVENTS];
static int used;
static FILE *out;

static const char *name_of(const void *event, char *buffer)
{
	const struct event *e = event;

	if (!e)
		return "none";
	if (e < events || e >= events + EVENTS)
		return "foreign";
	sprintf(buffer, "e%d", __atomic_load_n(&e->number, __ATOMIC_RELAXED));
	return buffer;
}

static int init_any(void **context, int *mask, const char *name, unsigned long hash, int rank)
{
	static int contexts;
	const char *wanted = getenv("RECORDER_MASK");

	if (!out && getenv("RECORDER_LOG")) {
		out = fopen(getenv("RECORDER_LOG"), "a");
		setvbuf(out, NULL, _IOLBF, 0);
	}
	*context = (void *)(size_t)(0x100 + __atomic_fetch_add(&contexts, 1, __ATOMIC_RELAXED));
	__atomic_store_n(mask, wanted ? (int)strtol(wanted, NULL, 0) : 0, __ATOMIC_RELAXED);
	if (out)
		fprintf(out, "init %p %s %lx %d\n", *context, name ? name : "NULL", hash, rank);
	return 0;
}

#if VERSION == 3
static int init(void **context, int *mask)
{
	return init_any(context, mask, NULL, 0, -1);
}
#elif VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t hash, int nnodes, int nranks,
		int rank, nccl_logger log)
{
	(void)nnodes, (void)nranks, (void)log;
	return init_any(context, mask, name, hash, rank);
}
#else
static int init(void **context, uint64_t hash, int *mask, const char *name, int nnodes, int nranks,
		int rank, nccl_logger log)
{
	(void)nnodes, (void)nranks, (void)log;
	return init_any(context, mask, name, hash, rank);
}
#endif

static int start(void *context, void **handle, void *descriptor)
{
	const struct nccl_descriptor_v7 *d = descriptor;
	const unsigned long type =
	    VERSION < 5 ? ((struct nccl_descriptor_v4 *)descriptor)->type : d->type;
	char parent[20];

	const int number = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED) % EVENTS;

	__atomic_store_n(&events[number].number, number, __ATOMIC_RELAXED);
	*handle = &events[number];
	if (out)
		fprintf(out, "start %p %lu e%d parent %s\n", context, type, number,
			name_of(d->parent, parent));
	return 0;
}

static int stop(void *handle)
{
	char name[20];

	if (out)
		fprintf(out, "stop %s\n", name_of(handle, name));
	return 0;
}

static int record(void *handle, int state, void *args)
{
	char name[20];

	if (out)
		fprintf(out, "record %s %d %d\n", name_of(handle, name), state, args != NULL);
	return 0;
}

static int finalize(void *context)
{
	if (out)
		fprintf(out, "finalize %p\n", context);
	return 0;
}

extern const struct nccl_profiler SYMBOL(VERSION);
const struct nccl_profiler SYMBOL(VERSION) = {"recorder", (void (*)(void))init, start, stop, record,
					      finalize};
