/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one callback of the profiler plugin costs the thread that NCCL makes it on.
 *
 *   callback PLUGIN COLLECTIVES CHANNELS
 *
 * Makes the calls of descriptor version 4 in NCCL's order, times each of them with the
 * processor's own counter and prints, by callback: name, calls, median ns, ns at 99.9 %, after
 * the cost of reading the counter is taken off. Last line: bytes of memory the plugin added
 * (proportional set size, everything touched) and whether the ring was found.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ncclring/abi.h"

enum { GROUP, COLL, KERNEL, RECORD, KERNEL_STOP, COLL_STOP, ALL, KINDS };

#define WARM 20000l /* collectives of one channel before anything counts */

static const char *const names[] = {
    "start Group", "start Coll", "start KernelCh", "record KernelCh", "stop KernelCh",
    "stop Coll",   "all"};
static uint32_t *samples[KINDS];
static size_t counts[KINDS];

int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
	*version = 22705;
	return 0;
}

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("isb; mrs %0, cntvct_el0; isb" : "=r"(value)::"memory");
	return value;
#else
#error "no cycle counter known for this processor"
#endif
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double ns_per_tick(void)
{
	const uint64_t from_ns = now_ns(), from = ticks();

	while (now_ns() - from_ns < 200000000u)
		;
	return (double)(now_ns() - from_ns) / (double)(ticks() - from);
}

static int ascending(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint64_t counter_cost(void)
{
	static uint32_t each[10001];

	for (size_t i = 0; i < 10001; i++) {
		const uint64_t from = ticks();

		each[i] = (uint32_t)(ticks() - from);
	}
	qsort(each, 10001, sizeof(*each), ascending);
	return each[5000];
}

static void took(int kind, uint64_t from, uint64_t to, uint64_t cost)
{
	const uint64_t spent = to - from > cost ? to - from - cost : 0;

	samples[kind][counts[kind]++] = (uint32_t)spent;
	samples[ALL][counts[ALL]++] = (uint32_t)spent;
}

#define TIMED(kind, call)                                                                          \
	do {                                                                                       \
		const uint64_t from_ = ticks();                                                    \
		(call);                                                                            \
		took(kind, from_, ticks(), cost);                                                  \
	} while (0)

static void collective(const struct nccl_profiler *plugin, void *context, int channels,
		       uint64_t number, uint64_t cost)
{
	struct nccl_descriptor_v4 group = {.type = NCCL_GROUP};
	struct nccl_descriptor_v4 coll = {
	    .type = NCCL_COLL,
	    .coll = {number, "AllReduce", NULL, NULL, 1 << 22, 0, "ncclBfloat16", (uint8_t)channels,
		     16, "RING", "SIMPLE"},
	};
	struct nccl_descriptor_v4 kernel = {.type = NCCL_KERNEL_CH};
	void *group_handle = NULL, *handle = NULL, *kernels[64];

	TIMED(GROUP, plugin->start(context, &group_handle, &group));
	coll.parent = group_handle;
	TIMED(COLL, plugin->start(context, &handle, &coll));
	TIMED(COLL_STOP, plugin->stop(handle));
	kernel.parent = handle;
	for (int i = 0; i < channels; i++) {
		kernel.kernel_ch.channel = (uint8_t)i;
		kernel.kernel_ch.timer = number * 1000 + 1;
		TIMED(KERNEL, plugin->start(context, &kernels[i], &kernel));
	}
	for (int i = 0; i < channels; i++) {
		struct nccl_state_args args = {number * 1000 + 500};

		TIMED(RECORD, plugin->record(kernels[i], NCCL_KERNEL_CH_STOP, &args));
		TIMED(KERNEL_STOP, plugin->stop(kernels[i]));
	}
}

/* Proportional set size of the whole process, bytes. */
static long pss(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	long kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %ld kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024;
}

static int ring_is_mapped(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;

	while (file && fgets(line, sizeof(line), file))
		found |= strstr(line, "stragd-ring") != NULL;
	if (file)
		fclose(file);
	return found;
}

int main(int argc, char **argv)
{
	const long n = argc == 4 ? atol(argv[2]) : 0;
	const int channels = argc == 4 ? atoi(argv[3]) : 0;
	const struct nccl_profiler *plugin;
	void *library, *context;
	uint64_t cost;
	double scale;
	long before;
	int mask = 0;

	if (n < 1 || channels < 1 || channels > 64) {
		fprintf(stderr, "usage: callback PLUGIN COLLECTIVES CHANNELS(1..64)\n");
		return 2;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		const size_t most = (size_t)n * (3 + 3 * (size_t)channels);
		const size_t bytes = (most > WARM * 6 ? most : WARM * 6) * sizeof(*samples[kind]);

		samples[kind] = malloc(bytes);
		if (!samples[kind])
			return 1;
		memset(samples[kind], 1, bytes);
	}
	cost = counter_cost();
	scale = ns_per_tick();
	before = pss();
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "callback: %s\n", dlerror());
		return 1;
	}
	plugin = dlsym(library, "ncclProfiler_v4");
	((nccl_init_v4)plugin->init)(&context, &mask, "bench", 1, 1, 8, 0, NULL);
	if (!ring_is_mapped() || !(mask & NCCL_KERNEL_CH)) {
		fprintf(stderr, "callback: the plugin does not record (mask %#x)\n", mask);
		return 1;
	}
	/* Every page of the ring and the pool is touched before anything is timed. */
	for (long i = 0; i < WARM; i++)
		collective(plugin, context, 1, (uint64_t)i, cost);
	memset(counts, 0, sizeof(counts));
	for (long i = 0; i < n; i++)
		collective(plugin, context, channels, (uint64_t)i, cost);
	before = pss() - before;
	for (int kind = 0; kind < KINDS; kind++) {
		qsort(samples[kind], counts[kind], sizeof(uint32_t), ascending);
		printf("%s,%zu,%.0f,%.0f\n", names[kind], counts[kind],
		       samples[kind][counts[kind] / 2] * scale,
		       samples[kind][(size_t)((double)counts[kind] * 0.999)] * scale);
	}
	printf("memory,%ld\n", before);
	return 0;
}
