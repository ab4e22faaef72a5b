/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load for the probes: calls collectives of a library at a rate, or as fast as it can.
 *
 *   load rate LIBRARY CALLS_PER_SECOND SECONDS   steady calls, 25 to a step, for cost and soak
 *   load time LIBRARY CALLS                      prints the median ns of a call, batch by batch
 *
 * LIBRARY has NCCL's names (the stub of tests/cstubs or a real one: the calls are made with a
 * null-like communicator, so a real library returns an error at once). CPU only; what is measured
 * is the cost of being probed, not of communicating.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static void timed(all_reduce_fn call, void *comm, long calls)
{
	enum { BATCH = 1000 }; /* a whole number of steps */
	const long batches = calls / BATCH;
	double *each = calloc((size_t)batches, sizeof(*each));

	if (!each || batches == 0)
		exit(1);
	for (long b = 0; b < batches; b++) {
		const uint64_t start = now_ns();

		for (int i = 0; i < BATCH; i++)
			call(NULL, NULL, 1000u + (size_t)(i % STEP), 7, 0, comm, NULL);
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
		fprintf(stderr,
			"usage: load rate LIBRARY PER_SECOND SECONDS | load time LIBRARY N\n");
		return 2;
	}
	library = dlopen(argv[2], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "load: %s\n", dlerror());
		return 1;
	}
	*(void **)&call = dlsym(library, "ncclAllReduce");
	if (!call) {
		fprintf(stderr, "load: %s has no ncclAllReduce\n", argv[2]);
		return 1;
	}
	if (!strcmp(argv[1], "rate") && argc == 5)
		at_rate(call, communicator, atof(argv[3]), atof(argv[4]));
	else if (!strcmp(argv[1], "time"))
		timed(call, communicator, atol(argv[3]));
	else
		return 2;
	return 0;
}
