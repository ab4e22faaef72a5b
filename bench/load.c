/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load for the probes: calls collectives of a library at a rate, or as fast as it can.
 *
 *   load rate LIBRARY CALLS_PER_SECOND SECONDS   steady calls, 25 to a step, for cost and soak
 *   load time LIBRARY CALLS                      prints the median ns of a call, batch by batch
 *   load pair LIBRARY CALLS                      the same of a gloo all-reduce and its end
 *   load hold LIBRARY SECONDS                    only maps it
 *
 * LIBRARY has NCCL's names, for `pair` gloo's: stub.c and gloo_stub.c of tests/cstubs, or a real
 * NCCL (the calls are made with a null-like communicator, so it returns an error at once). CPU
 * only; what is measured is the cost of being probed, not of communicating.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Calls of a step, each of another size, so that step inference has real work to do. */
enum { STEP = 25 };

typedef int (*all_reduce_fn)(const void *, void *, size_t, int, int, void *, void *);

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t deadline)
{
	struct timespec t = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void at_rate(all_reduce_fn call, void *comm, double per_second, double seconds)
{
	const uint64_t pause = (uint64_t)(STEP * 1e9 / per_second);
	const uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
	uint64_t calls = 0;

	for (uint64_t next = start + pause; next < end; next += pause) {
		for (int i = 0; i < STEP; i++)
			call(NULL, NULL, 1000u + (size_t)i, 7, 0, comm, NULL);
		calls += STEP;
		sleep_until(next);
	}
	printf("%llu calls\n", (unsigned long long)calls);
}

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* What the probes read of a gloo all-reduce: its options and the context behind them. */
struct context {
	int rank, size;
};

struct options {
	struct context *context;
	char before[72];
	size_t elements, element_size;
	char between[32];
	unsigned int tag;
};

_Static_assert(offsetof(struct options, elements) == 80, "as gloo lays its options out");
_Static_assert(offsetof(struct options, tag) == 128, "as gloo lays its options out");

static void pair(void *library, int i)
{
	static void (*all_reduce)(const void *), (*finish)(void *);
	static struct context context = {0, 2};
	static struct options options = {.context = &context, .element_size = 4};

	if (!all_reduce) {
		*(void **)&all_reduce =
		    dlsym(library, "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE");
		*(void **)&finish =
		    dlsym(library, "_ZN4c10d16ProcessGroupGloo9AsyncWork14finishWorkGlooEv");
		if (!all_reduce || !finish) {
			fprintf(stderr, "load: the library has no gloo\n");
			exit(1);
		}
	}
	options.elements = 1000u + (size_t)i;
	all_reduce(&options);
	finish(NULL);
	options.tag++;
}

/* `call` is absent where pairs are timed. */
static void timed(all_reduce_fn call, void *library, void *comm, long calls)
{
	enum { BATCH = 1000 }; /* a whole number of steps */
	const long batches = calls / BATCH;
	double *each = calloc((size_t)batches, sizeof(*each));

	if (!each || batches == 0)
		exit(1);
	for (long b = 0; b < batches; b++) {
		const uint64_t start = now_ns();

		for (int i = 0; i < BATCH; i++) {
			if (call)
				call(NULL, NULL, 1000u + (size_t)(i % STEP), 7, 0, comm, NULL);
			else
				pair(library, i % STEP);
		}
		each[b] = (double)(now_ns() - start) / BATCH;
	}
	qsort(each, (size_t)batches, sizeof(*each), ascending);
	printf("%.1f\n", each[batches / 2]);
	free(each);
}

int main(int argc, char **argv)
{
	static char communicator[64];
	all_reduce_fn call;
	void *library;

	if (argc < 4) {
		fprintf(stderr, "usage: load rate LIBRARY PER_SECOND SECONDS | load time|pair|hold "
				"LIBRARY N\n");
		return 2;
	}
	library = dlopen(argv[2], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "load: %s\n", dlerror());
		return 1;
	}
	if (!strcmp(argv[1], "pair")) {
		timed(NULL, library, NULL, atol(argv[3]));
		return 0;
	}
	if (!strcmp(argv[1], "hold")) {
		sleep((unsigned int)atol(argv[3]));
		return 0;
	}
	*(void **)&call = dlsym(library, "ncclAllReduce");
	if (!call) {
		fprintf(stderr, "load: %s has no ncclAllReduce\n", argv[2]);
		return 1;
	}
	if (!strcmp(argv[1], "rate") && argc == 5)
		at_rate(call, communicator, atof(argv[3]), atof(argv[4]));
	else if (!strcmp(argv[1], "time"))
		timed(call, library, communicator, atol(argv[3]));
	else
		return 2;
	return 0;
}
