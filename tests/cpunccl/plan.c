/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: what one launch does. Its collectives share the launch's start and end. */
#include <stdlib.h>
#include "internal.h"
#include "profiler.h"

void plan_hold(struct plan *plan)
{
	atomic_fetch_add(&plan->references, 1);
}

void plan_drop(struct plan *plan)
{
	if (atomic_fetch_sub(&plan->references, 1) != 1)
		return;
	while (plan->tasks) {
		struct task *next = plan->tasks->next;

		free(plan->tasks);
		plan->tasks = next;
	}
	free(plan);
}

/* Standard normal within a few percent: the sum of uniform draws from one number. */
static double normal_draw(uint64_t bits)
{
	double sum = 0;

	for (int i = 0; i < 6; i++)
		sum += (double)((bits >> (10 * i)) & 1023) / 1023 - 0.5;
	return sum * 1.414; /* the variance of six is one half */
}

/* Nanoseconds from the last arrival to the end: latency, and bytes on the slowest link of the ring.
 */
int64_t transfer_time(const struct ncclComm *comm, const struct task *task)
{
	double bytes = (double)task->count * (double)type_size(task->type), factor = 1;
	int n = comm->nranks, world = member_of(comm, comm->rank)->world;

	if (n == 1)
		return 0;
	if (task->function == ALL_REDUCE)
		bytes *= 2.0 * (n - 1) / n;
	else if (task->function == ALL_GATHER || task->function == REDUCE_SCATTER)
		bytes *= n - 1;
	if (IS_MESSAGE(task->function)) {
		if (task->peer == comm->rank)
			return settings()->latency_ns;
		factor = link_factor(world, member_of(comm, task->peer)->world);
	}
	for (int i = 0; i < n && !IS_MESSAGE(task->function); i++) {
		double one =
		    link_factor(member_of(comm, i)->world, member_of(comm, (i + 1) % n)->world);

		factor = one < factor ? one : factor;
	}
	double time = (double)settings()->latency_ns + bytes / (settings()->bytes_per_ns * factor);
	if (settings()->transfer_jitter > 0 && !IS_MESSAGE(task->function)) {
		uint64_t which[2] = {comm->hash, comm->operations};
		double draw = normal_draw(hash_bytes(which, sizeof which, 2));

		time *= 1 + settings()->transfer_jitter * draw;
	}
	return time > 1 ? (int64_t)time : 1;
}

static ncclResult_t run_collectives(struct plan *plan, int64_t start, int64_t *end)
{
	ncclResult_t result = ncclSuccess;

	*end = start;
	for (struct task *task = plan->tasks; task && !result; task = task->next) {
		int64_t before = *end;

		result = transport_collective(plan->comm, task, end);
		if (!result)
			dump_task(plan->comm, task, before, *end);
	}
	for (struct task *task = plan->tasks; task; task = task->next)
		work_end(task->work, result ? 0 : *end);
	return result;
}

static ncclResult_t run_messages(struct plan *plan, int64_t start, int64_t *end)
{
	size_t count = 0;

	for (struct task *task = plan->tasks; task; task = task->next)
		count++;
	int64_t *ends = calloc(count, sizeof *ends), *one = ends;
	ncclResult_t result =
	    ends ? transport_messages(plan->comm, plan->tasks, start, ends) : ncclSystemError;
	for (struct task *task = plan->tasks; task; task = task->next, one++) {
		if (!result) {
			dump_task(plan->comm, task, start, *one);
			*end = *one > *end ? *one : *end;
		}
		work_end(task->work, result ? 0 : *one);
	}
	free(ends);
	return result;
}

int64_t plan_run(struct plan *plan, int64_t start)
{
	int64_t end = start;
	ncclResult_t result = (ncclResult_t)atomic_load(&plan->comm->error);

	sleep_until(start);
	note_lag(start);
	if (plan->captured && profiler_replays(plan)) {
		profiler_prepare(plan);
		profiler_enqueued(plan);
	}
	if (!result) {
		for (struct task *task = plan->tasks; task; task = task->next)
			work_begin(task->work, start);
		result = IS_MESSAGE(plan->tasks->function) ? run_messages(plan, start, &end)
							   : run_collectives(plan, start, &end);
	} else {
		for (struct task *task = plan->tasks; task; task = task->next)
			work_end(task->work, 0);
	}
	if (result) {
		atomic_store(&plan->comm->error, result);
		stream_error(plan->stream, result);
		end = start;
	}
	comm_plan_over(plan->comm, end);
	return end;
}

ncclResult_t plan_launch(struct ncclComm *comm, cpunccl_stream *stream, struct task *tasks,
			 int mask, void *group_api_handle)
{
	struct plan *plan = calloc(1, sizeof *plan);

	if (!plan)
		return ncclSystemError;
	atomic_init(&plan->references, 2);
	plan->comm = comm;
	plan->stream = stream;
	plan->tasks = tasks;
	plan->mask = mask;
	plan->captured = capturing();
	plan->grouped = tasks->next;
	plan->group_api_handle = group_api_handle;
	/* The operations of a communicator are in order, whatever their streams are. */
	if (comm->last_stream && comm->last_stream != stream)
		stream_after(stream, comm->last_stream);
	comm->last_stream = stream;
	int64_t enqueued = cpunccl_host_time();
	profiler_kernel_launch(plan);
	if (!plan->captured) {
		profiler_prepare(plan);
		comm_plan_begins(comm);
	}
	stream_enqueue(stream,
		       (struct stream_op){.kind = PLAN, .enqueued = enqueued, .plan = plan});
	if (!plan->captured || !profiler_replays(plan))
		profiler_enqueued(plan);
	plan_drop(plan);
	return ncclSuccess;
}
