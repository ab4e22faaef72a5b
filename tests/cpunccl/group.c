/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: calls between start and end become one launch per communicator and stream. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"
#include "profiler.h"

struct batch { /* tasks of one communicator and stream */
	struct ncclComm *comm;
	cpunccl_stream *stream;
	struct task *collectives, *messages;
	struct batch *next;
};

static _Thread_local struct {
	int depth;
	ncclResult_t error;
	struct batch *batches;
	struct init_job *jobs;
	int mask;
	bool api_started;
	void *api_handle;
} group;

static char last_error[256];
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;

ncclResult_t fail(ncclResult_t result, const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&error_lock);
	va_start(arguments, format);
	vsnprintf(last_error, sizeof last_error, format, arguments);
	va_end(arguments);
	pthread_mutex_unlock(&error_lock);
	return result;
}

const char *last_error_text(void)
{
	return last_error;
}

bool group_open(void)
{
	return group.depth > 0;
}

ncclResult_t group_error(ncclResult_t result)
{
	if (result && group.depth && !group.error)
		group.error = result;
	return result;
}

void group_init(struct init_job *job)
{
	struct init_job **place = &group.jobs;

	while (*place)
		place = &(*place)->next;
	*place = job;
}

static struct batch *batch_of(struct ncclComm *comm, cpunccl_stream *stream)
{
	struct batch **place = &group.batches;

	for (; *place; place = &(*place)->next) {
		if ((*place)->comm == comm && (*place)->stream == stream)
			return *place;
	}
	*place = calloc(1, sizeof **place);
	if (*place) {
		(*place)->comm = comm;
		(*place)->stream = stream;
	}
	return *place;
}

static ncclResult_t append(struct batch *batch, const struct task *task)
{
	struct task **place = IS_MESSAGE(task->function) ? &batch->messages : &batch->collectives;
	struct task *copy = malloc(sizeof *copy);

	if (!copy)
		return ncclSystemError;
	*copy = *task;
	copy->transfer = transfer_time(batch->comm, task);
	batch->comm->operations += !IS_MESSAGE(task->function);
	while (*place)
		place = &(*place)->next;
	*place = copy;
	return ncclSuccess;
}

/* An all-to-all is a receive from and a send to everybody. */
static ncclResult_t append_all_to_all(struct batch *batch, const struct task *task)
{
	size_t bytes = task->count * type_size(task->type);
	ncclResult_t result = ncclSuccess;

	for (int i = 0; i < batch->comm->nranks && !result; i++) {
		int to = (batch->comm->rank + i) % batch->comm->nranks;
		int from = (batch->comm->rank - i + batch->comm->nranks) % batch->comm->nranks;
		struct task part = *task;

		part.function = SEND;
		part.send = (const char *)task->send + (size_t)to * bytes;
		part.peer = to;
		result = append(batch, &part);
		part.function = RECV;
		part.recv = (char *)task->recv + (size_t)from * bytes;
		part.peer = from;
		result = result ? result : append(batch, &part);
	}
	return result;
}

ncclResult_t group_call(ncclComm_t comm, cpunccl_stream *stream, struct task task,
			const char *api_name)
{
	ncclResult_t result;

	group_start();
	host_time();
	stream = stream_or_default(stream);
	if (!group.api_started) {
		group.mask = profiler_mask();
		group.api_handle = profiler_group_start(comm, group.mask, group.depth);
		group.api_started = true;
	}
	profiler_api_start(comm, api_name, stream, &task, group.mask, group.api_handle);
	struct batch *batch = batch_of(comm, stream);
	if (!batch)
		result = ncclSystemError;
	else
		result = task.function == ALL_TO_ALL ? append_all_to_all(batch, &task)
						     : append(batch, &task);
	profiler_api_stop(&task);
	group_error(result);
	ncclResult_t ended = group_end();
	return result ? result : ended;
}

ncclResult_t group_start(void)
{
	group.depth++;
	return ncclSuccess;
}

static void *run_job(void *argument)
{
	struct init_job *job = argument;

	job->result = init_run(job);
	return 0;
}

/* Communicators of one group meet at the same time, each in a thread. */
static ncclResult_t run_jobs(void)
{
	ncclResult_t result = ncclSuccess;
	pthread_t threads[256];
	size_t count = 0;

	for (struct init_job *job = group.jobs; job; job = job->next) {
		if (count == 256 || pthread_create(&threads[count], 0, run_job, job)) {
			result = ncclSystemError;
			break;
		}
		count++;
	}
	for (size_t i = 0; i < count; i++)
		pthread_join(threads[i], 0);
	while (group.jobs) {
		struct init_job *job = group.jobs;

		group.jobs = job->next;
		result = result ? result : job->result;
		free(job->name);
		free(job);
	}
	return result;
}

static void free_tasks(struct task *task)
{
	while (task) {
		struct task *next = task->next;

		free(task);
		task = next;
	}
}

static ncclResult_t launch_batches(ncclResult_t result)
{
	while (group.batches) {
		struct batch *batch = group.batches;
		struct task *kinds[2] = {batch->collectives, batch->messages};

		for (int i = 0; i < 2; i++) {
			if (kinds[i] && !result)
				result = plan_launch(batch->comm, batch->stream, kinds[i],
						     group.mask, group.api_handle);
			else
				free_tasks(kinds[i]);
		}
		group.batches = batch->next;
		free(batch);
	}
	return result;
}

ncclResult_t group_end(void)
{
	ncclResult_t result;

	if (!group.depth)
		return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
	if (--group.depth)
		return ncclSuccess;
	profiler_group_ends(group.api_handle);
	result = group.error;
	if (group.jobs && !result)
		result = run_jobs();
	result = launch_batches(result);
	profiler_group_stop(group.api_handle);
	group.api_handle = 0;
	group.api_started = false;
	group.error = ncclSuccess;
	return result;
}
