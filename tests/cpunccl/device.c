/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: operations in order, each with a planned start (the latest of the stream's end so far,
 * the marks it waits for, and its enqueue time) and a planned end. What needs nobody else is
 * planned at once; communication goes to the stream's thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

#define DEVICES 64

struct mark {
	atomic_int references;
	bool resolved, captured;
	int64_t time;
};

struct CUstream_st {
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	struct stream_op *first, *last;
	bool busy, stopping;
	int64_t end; /* planned, of everything that is over */
	int error;
	pthread_t thread;
};

struct cpunccl_event {
	struct mark *mark;
};

static pthread_mutex_t marks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t marks_resolved = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static cpunccl_stream *default_streams[DEVICES];
_Thread_local int current_device;

static int64_t later_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void *allocate(size_t bytes)
{
	void *memory = calloc(1, bytes);

	if (!memory) {
		fprintf(stderr, "cpunccl: out of memory\n");
		abort();
	}
	return memory;
}

struct mark *mark_new(void)
{
	struct mark *mark = allocate(sizeof *mark);

	atomic_init(&mark->references, 1);
	mark->captured = capturing();
	return mark;
}

struct mark *mark_hold(struct mark *mark)
{
	atomic_fetch_add(&mark->references, 1);
	return mark;
}

void mark_drop(struct mark *mark)
{
	if (mark && atomic_fetch_sub(&mark->references, 1) == 1)
		free(mark);
}

static void mark_resolve(struct mark *mark, int64_t time)
{
	pthread_mutex_lock(&marks_lock);
	mark->time = time;
	mark->resolved = true;
	pthread_cond_broadcast(&marks_resolved);
	pthread_mutex_unlock(&marks_lock);
}

static bool mark_known(struct mark *mark, bool wait, int64_t *time)
{
	pthread_mutex_lock(&marks_lock);
	while (wait && !mark->resolved)
		pthread_cond_wait(&marks_resolved, &marks_lock);
	bool known = mark->resolved;
	*time = mark->time;
	pthread_mutex_unlock(&marks_lock);
	return known;
}

/* With the stream's lock held and nothing before it: plan it at once if nobody else is needed. */
static bool plan_at_once(cpunccl_stream *stream, const struct stream_op *op)
{
	int64_t time;

	switch (op->kind) {
	case KERNEL:
		stream->end = later_of(stream->end, op->enqueued) + op->duration;
		return true;
	case RECORD:
		mark_resolve(op->mark, later_of(stream->end, op->enqueued));
		break;
	case WAIT:
		if (!mark_known(op->mark, false, &time))
			return false;
		stream->end = later_of(stream->end, time);
		break;
	default:
		return false;
	}
	mark_drop(op->mark);
	return true;
}

static int64_t run_with_others(const struct stream_op *op, int64_t end)
{
	int64_t time = 0;

	if (op->kind == PLAN) {
		end = plan_run(op->plan, later_of(end, op->enqueued));
		plan_drop(op->plan);
		return end;
	}
	mark_known(op->mark, true, &time);
	mark_drop(op->mark);
	return later_of(end, time);
}

static void *stream_thread(void *argument)
{
	cpunccl_stream *stream = argument;

	pthread_mutex_lock(&stream->lock);
	for (;;) {
		struct stream_op *op = stream->first;

		if (!op) {
			pthread_cond_broadcast(&stream->idle);
			if (stream->stopping)
				break;
			pthread_cond_wait(&stream->work, &stream->lock);
			continue;
		}
		if (!(stream->first = op->next))
			stream->last = 0;
		if (!plan_at_once(stream, op)) {
			int64_t end = stream->end;

			stream->busy = true;
			pthread_mutex_unlock(&stream->lock);
			end = run_with_others(op, end);
			pthread_mutex_lock(&stream->lock);
			stream->end = end;
			stream->busy = false;
		}
		free(op);
	}
	pthread_mutex_unlock(&stream->lock);
	return 0;
}

cpunccl_stream *cpunccl_stream_create(void)
{
	cpunccl_stream *stream = allocate(sizeof *stream);

	pthread_mutex_init(&stream->lock, 0);
	pthread_cond_init(&stream->work, 0);
	pthread_cond_init(&stream->idle, 0);
	if (pthread_create(&stream->thread, 0, stream_thread, stream)) {
		fprintf(stderr, "cpunccl: no thread for a stream\n");
		abort();
	}
	return stream;
}

cpunccl_stream *stream_or_default(cpunccl_stream *stream)
{
	if (stream)
		return stream;
	pthread_mutex_lock(&devices_lock);
	cpunccl_stream **place = &default_streams[current_device];
	if (!*place)
		*place = cpunccl_stream_create();
	pthread_mutex_unlock(&devices_lock);
	return *place;
}

void cpunccl_stream_destroy(cpunccl_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	stream->stopping = true;
	pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&stream->lock);
	pthread_join(stream->thread, 0);
	pthread_cond_destroy(&stream->work);
	pthread_cond_destroy(&stream->idle);
	pthread_mutex_destroy(&stream->lock);
	free(stream);
}

void stream_enqueue(cpunccl_stream *stream, struct stream_op operation)
{
	if (capturing()) {
		graph_append(stream, &operation);
		return;
	}
	if (operation.duration_from)
		operation.duration = *operation.duration_from;
	pthread_mutex_lock(&stream->lock);
	if (stream->first || stream->busy || !plan_at_once(stream, &operation)) {
		struct stream_op *op = allocate(sizeof *op);

		*op = operation;
		op->next = 0;
		if (stream->last)
			stream->last->next = op;
		else
			stream->first = op;
		stream->last = op;
		pthread_cond_signal(&stream->work);
	}
	pthread_mutex_unlock(&stream->lock);
}

void stream_error(cpunccl_stream *stream, int error)
{
	pthread_mutex_lock(&stream->lock);
	if (!stream->error)
		stream->error = error;
	pthread_mutex_unlock(&stream->lock);
}

int cpunccl_stream_sync(cpunccl_stream *stream)
{
	stream = stream_or_default(stream);
	pthread_mutex_lock(&stream->lock);
	while (stream->first || stream->busy)
		pthread_cond_wait(&stream->idle, &stream->lock);
	int64_t end = stream->end;
	int error = stream->error;
	pthread_mutex_unlock(&stream->lock);
	sleep_until(end);
	host_reach(end);
	return error;
}

void cpunccl_kernel(cpunccl_stream *stream, int64_t duration_ns)
{
	stream_enqueue(
	    stream_or_default(stream),
	    (struct stream_op){.kind = KERNEL, .enqueued = host_time(), .duration = duration_ns});
}

void cpunccl_kernel_from(cpunccl_stream *stream, const int64_t *duration_ns)
{
	stream_enqueue(stream_or_default(stream), (struct stream_op){.kind = KERNEL,
								     .enqueued = host_time(),
								     .duration_from = duration_ns});
}

void stream_after(cpunccl_stream *later, cpunccl_stream *earlier)
{
	struct mark *mark = mark_new();

	stream_enqueue(earlier, (struct stream_op){.kind = RECORD, .mark = mark_hold(mark)});
	stream_enqueue(later, (struct stream_op){.kind = WAIT, .mark = mark});
}

cpunccl_event *cpunccl_event_create(void)
{
	return allocate(sizeof(cpunccl_event));
}

void cpunccl_event_destroy(cpunccl_event *event)
{
	mark_drop(event->mark);
	free(event);
}

void cpunccl_event_record(cpunccl_event *event, cpunccl_stream *stream)
{
	mark_drop(event->mark);
	event->mark = mark_new();
	stream_enqueue(stream_or_default(stream),
		       (struct stream_op){.kind = RECORD,
					  .enqueued = cpunccl_host_time(),
					  .mark = mark_hold(event->mark)});
}

void cpunccl_stream_wait(cpunccl_stream *stream, cpunccl_event *event)
{
	/* A record that was captured happens in the graph only. */
	if (event->mark && event->mark->captured <= capturing())
		stream_enqueue(stream_or_default(stream),
			       (struct stream_op){.kind = WAIT, .mark = mark_hold(event->mark)});
}

int64_t cpunccl_event_time(cpunccl_event *event)
{
	int64_t time = 0;

	if (event->mark && !event->mark->captured)
		mark_known(event->mark, true, &time);
	return time;
}

void cpunccl_set_device(int device)
{
	current_device = device >= 0 && device < DEVICES ? device : 0;
}

void *cpunccl_malloc(size_t bytes)
{
	return calloc(1, bytes ? bytes : 1);
}

void cpunccl_free(void *memory)
{
	free(memory);
}
