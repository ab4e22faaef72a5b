/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The truth, for checking what others conclude from device times. One line each:
 *
 *   task COMM FUNCTION BYTES START END     planned ns; COMM is the hash in hex
 *   step NUMBER HOST                       planned host time when the step was over
 */
#include <stdio.h>
#include "internal.h"
#include "profiler.h"

static FILE *file;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cpunccl_dump(const char *path)
{
	file = fopen(path, "we");
	return file ? ncclSuccess : ncclSystemError;
}

void cpunccl_dump_mark(int step)
{
	if (!file)
		return;
	pthread_mutex_lock(&lock);
	fprintf(file, "step %d %lld\n", step, (long long)cpunccl_host_time());
	fflush(file);
	pthread_mutex_unlock(&lock);
}

void dump_task(const struct ncclComm *comm, const struct task *task, int64_t start, int64_t end)
{
	if (!file)
		return;
	pthread_mutex_lock(&lock);
	fprintf(file, "task %llx %s %zu %lld %lld\n", (unsigned long long)comm->hash,
		function_name(task->function), task->count * type_size(task->type),
		(long long)start, (long long)end);
	pthread_mutex_unlock(&lock);
}
