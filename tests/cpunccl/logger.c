/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A profiler plugin that writes down every callback, one JSON object a line. It reads descriptors
 * by the offsets of the fact sheet, not by cpunccl's declarations.
 *
 *   LOGGER_FILE        path; ".PID" is appended
 *   LOGGER_MASK        activation mask (70)
 *   LOGGER_NULL        mask of event types that get a NULL handle (0)
 *   LOGGER_FAIL_INIT   init fails
 *
 * Built with -DNEWEST=N it exports v3 to vN only.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef NEWEST
#define NEWEST 7
#endif
#define VISIBLE __attribute__((visibility("default")))

typedef void *handle;
static FILE *file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uintptr_t handles = 1000, contexts;

static long setting(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text ? atol(text) : otherwise;
}

static void say(const char *format, ...)
{
	struct timespec now;
	char path[1024], line[2048];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	clock_gettime(CLOCK_MONOTONIC, &now);
	pthread_mutex_lock(&lock);
	if (!file && getenv("LOGGER_FILE")) {
		snprintf(path, sizeof path, "%s.%d", getenv("LOGGER_FILE"), getpid());
		file = fopen(path, "ae");
	}
	if (file) {
		fprintf(file, "{\"host\": %lld, \"tid\": %d, %s}\n",
			now.tv_sec * 1000000000ll + now.tv_nsec, gettid(), line);
		fflush(file);
	}
	pthread_mutex_unlock(&lock);
}

#define FIELD(type, offset) (*(type *)((char *)descriptor + (offset)))
#define TEXT(offset) (FIELD(const char *, offset) ? FIELD(const char *, offset) : "")
#define NUMBER(offset) ((unsigned long long)FIELD(uint64_t, offset))

static void describe(int api, uint64_t type, void *descriptor, char *text, size_t size)
{
	int shift = api == 3 ? 16 : 0; /* v3 has name and commHash in front */

	text[0] = 0;
	if (type == 2) {
		snprintf(text, size,
			 ", \"seq\": %llu, \"func\": \"%s\", \"count\": %llu, \"root\": %d, "
			 "\"dtype\": \"%s\", \"channels\": %d, \"algo\": \"%s\", \"proto\": \"%s\"",
			 NUMBER(24 + shift), TEXT(32 + shift), NUMBER(56 + shift),
			 FIELD(int, 64 + shift), TEXT(72 + shift), FIELD(uint8_t, 80 + shift),
			 TEXT(88 + shift), TEXT(96 + shift));
		if (api == 3)
			snprintf(text + strlen(text), size - strlen(text), ", \"hash\": \"%llx\"",
				 NUMBER(32));
		if (api >= 5)
			snprintf(text + strlen(text), size - strlen(text), ", \"group\": %llu",
				 NUMBER(104));
	} else if (type == 4) {
		snprintf(text, size,
			 ", \"func\": \"%s\", \"dtype\": \"%s\", \"count\": %llu, \"peer\": %d",
			 TEXT(24 + shift), TEXT(40 + shift), NUMBER(48 + shift),
			 FIELD(int, 56 + shift));
		if (api >= 4)
			snprintf(text + strlen(text), size - strlen(text), ", \"channels\": %d",
				 FIELD(uint8_t, 60));
	} else if (type == 64) {
		snprintf(text, size, ", \"channel\": %d, \"timer\": %llu", FIELD(uint8_t, 24),
			 api >= 4 ? NUMBER(32) : 0ull);
	} else if (type == 256) {
		snprintf(text, size, ", \"captured\": %d, \"depth\": %d", FIELD(uint8_t, 24),
			 FIELD(int, 28));
	} else if (type == 512) {
		snprintf(text, size,
			 ", \"func\": \"%s\", \"count\": %llu, \"dtype\": \"%s\", \"root\": %d, "
			 "\"captured\": %d",
			 TEXT(24), NUMBER(32), TEXT(40), FIELD(int, 48), FIELD(uint8_t, 64));
	} else if (type == 1024) {
		snprintf(text, size,
			 ", \"func\": \"%s\", \"count\": %llu, \"dtype\": \"%s\", \"captured\": %d",
			 TEXT(24), NUMBER(32), TEXT(40), FIELD(uint8_t, 56));
	}
}

static int start(int api, void *context, handle *out, void *descriptor)
{
	uint64_t type = api >= 5 ? FIELD(uint64_t, 0) : FIELD(uint8_t, 0);
	uintptr_t old = (uintptr_t)*out;
	char text[512];

	describe(api, type, descriptor, text, sizeof text);
	*out = setting("LOGGER_NULL", 0) & (long)type ? 0 : (handle)atomic_fetch_add(&handles, 1);
	say("\"call\": \"start\", \"type\": %llu, \"context\": %zu, \"handle\": %zu, \"old\": %zu, "
	    "\"parent\": %zu, \"rank\": %d%s",
	    (unsigned long long)type, (uintptr_t)context, (uintptr_t)*out, old, FIELD(uintptr_t, 8),
	    FIELD(int, 16), text);
	return 0;
}

static int stop(handle h)
{
	say("\"call\": \"stop\", \"handle\": %zu", (uintptr_t)h);
	return 0;
}

static int record(handle h, int state, uint64_t *args)
{
	say("\"call\": \"record\", \"handle\": %zu, \"state\": %d, \"timer\": %llu", (uintptr_t)h,
	    state, args ? (unsigned long long)*args : 0ull);
	return 0;
}

static int finalize(void *context)
{
	say("\"call\": \"finalize\", \"context\": %zu", (uintptr_t)context);
	return 0;
}

static int begin(int api, void **context, int *mask, const char *name, uint64_t hash, int nodes,
		 int nranks, int rank)
{
	*context = (void *)(atomic_fetch_add(&contexts, 1) + 1);
	__atomic_store_n(mask, (int)setting("LOGGER_MASK", 70), __ATOMIC_RELAXED);
	say("\"call\": \"init\", \"api\": %d, \"context\": %zu, \"name\": \"%s\", "
	    "\"hash\": \"%llx\", \"nodes\": %d, \"nranks\": %d, \"rank\": %d",
	    api, (uintptr_t)*context, name ? name : "", (unsigned long long)hash, nodes, nranks,
	    rank);
	if (!getenv("LOGGER_FAIL_INIT"))
		return 0;
	*context = 0;
	return 3;
}

static int init_v3(void **context, int *mask)
{
	return begin(3, context, mask, 0, 0, 0, 0, 0);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes,
		   int nranks, int rank, void *log)
{
	(void)log;
	return begin(4, context, mask, name, hash, nodes, nranks, rank);
}

struct table {
	const char *name;
	void *init;
	int (*start)(void *, handle *, void *);
	int (*stop)(handle);
	int (*record)(handle, int, uint64_t *);
	int (*finalize)(void *);
};

#define START(N)                                                                                   \
	static int start_v##N(void *context, handle *out, void *descriptor)                        \
	{                                                                                          \
		return start(N, context, out, descriptor);                                         \
	}
#define INIT(N)                                                                                    \
	static int init_v##N(void **context, uint64_t hash, int *mask, const char *name,           \
			     int nodes, int nranks, int rank, void *log)                           \
	{                                                                                          \
		(void)log;                                                                         \
		return begin(N, context, mask, name, hash, nodes, nranks, rank);                   \
	}
#define TABLE(N)                                                                                   \
	VISIBLE const struct table ncclProfiler_v##N = {                                           \
	    "logger", (void *)init_v##N, start_v##N, stop, record, finalize};
START(3)
TABLE(3)
#if NEWEST >= 4
START(4)
TABLE(4)
#endif
#if NEWEST >= 5
INIT(5)
START(5)
TABLE(5)
#endif
#if NEWEST >= 6
INIT(6)
START(6)
TABLE(6)
#endif
#if NEWEST >= 7
INIT(7)
START(7)
TABLE(7)
#endif
