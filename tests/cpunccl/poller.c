/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KernelCh events: the thread that looks at the device's start and stop times and calls the
 * plugin. Up to 2.30 it is the process's proxy thread, from 2.31 one thread per communicator.
 * Channels start one after the other and end likewise: the first starts, and the last stops, with
 * the collective itself.
 */
#include <stdlib.h>
#include <time.h>
#include "internal.h"
#include "profiler.h"

#define STAGGER_NS 150
#define LATE_NS (50 * MILLISECOND)

enum phase { UNSEEN, STARTED, OVER };

struct kernel_work {
	atomic_int references; /* the stream's and the launcher's or poller's */
	atomic_int state;      /* WAITING … */
	struct ncclComm *comm;
	int64_t start, end;
	int channels;
	unsigned serial;
	void *parent;
	struct kernel_work *next;
	const struct kernel_work *later; /* `next`, as of this look */
	struct {
		void *handle;
		enum phase phase;
	} channel[];
};
enum { WAITING, BEGUN, ENDED, LOST };

struct poller {
	pthread_mutex_t lock;
	pthread_cond_t posted, passed;
	struct kernel_work *first, *last; /* in order of posting; removed by the thread only */
	unsigned serial;
	bool stopping;
	pthread_t thread;
};

struct kernel_work *work_new(struct ncclComm *comm, int channels)
{
	struct kernel_work *work =
	    calloc(1, sizeof *work + (size_t)channels * sizeof work->channel[0]);

	if (work) {
		atomic_init(&work->references, 2);
		work->comm = comm;
		work->channels = channels;
	}
	return work;
}

void work_cancel(struct kernel_work *work)
{
	if (work && atomic_fetch_sub(&work->references, 1) == 1)
		free(work);
}

void work_begin(struct kernel_work *work, int64_t start)
{
	if (!work)
		return;
	work->start = start;
	atomic_store(&work->state, BEGUN);
}

void work_end(struct kernel_work *work, int64_t end)
{
	if (!work)
		return;
	work->end = end;
	atomic_store(&work->state, end ? ENDED : LOST);
	work_cancel(work);
}

void work_post(struct kernel_work *work, void *parent)
{
	struct poller *poller;

	if (!work)
		return;
	poller = work->comm->poller;
	work->parent = parent;
	pthread_mutex_lock(&poller->lock);
	work->serial = poller->serial++;
	if (poller->last)
		poller->last->next = work;
	else
		poller->first = work;
	poller->last = work;
	pthread_cond_signal(&poller->posted);
	pthread_mutex_unlock(&poller->lock);
}

static int64_t start_of(const struct kernel_work *work, int channel)
{
	return work->start + channel * STAGGER_NS;
}

static int64_t stop_of(const struct kernel_work *work, int channel)
{
	int64_t stop = work->end - (work->channels - 1 - channel) * STAGGER_NS;

	return stop > start_of(work, channel) ? stop : start_of(work, channel);
}

static bool misbehaves(const struct kernel_work *work, enum misbehaviour how, unsigned of_three)
{
	return settings()->misbehave[how] && work->serial % 3 == of_three;
}

/* The device's ring of 64 places was overwritten: what is read belongs to a later work. */
static const struct kernel_work *timed_work(const struct kernel_work *work)
{
	const struct kernel_work *later = work->later;
	bool overrun = settings()->misbehave[OVERRUN] && later && later->comm == work->comm &&
		       later->channels == work->channels && atomic_load(&later->state) == ENDED;

	return overrun ? later : work;
}

static void call_start(struct kernel_work *work, int channel)
{
	struct descriptor descriptor;
	bool swapped = misbehaves(work, STOP_BEFORE_START, 2);
	void *parent = settings()->misbehave[NULL_PARENT] ? 0 : work->parent;
	int64_t time = start_of(timed_work(work), channel) + (swapped ? 60000 * MILLISECOND : 0);

	event_begin(&descriptor, KERNEL_CH, parent, 0);
	descriptor.kernel.channel =
	    (uint8_t)(channel + (settings()->misbehave[CHANNEL_OVERFLOW] ? MAX_CHANNELS : 0));
	if (profiler()->api >= 4)
		descriptor.kernel.timer = device_time(time);
	work->channel[channel].handle = work->parent; /* whatever was there before */
	profiler()->table->start(profiler_context(work->comm), &work->channel[channel].handle,
				 &descriptor);
}

static void call_stop(struct kernel_work *work, int channel)
{
	union state_args args = {.all = {0}};
	int times = settings()->misbehave[REPEATED_STOP] ? 2 : 1;
	void *handle = work->channel[channel].handle;

	if (profiler()->api >= 4)
		args.timer = device_time(stop_of(timed_work(work), channel));
	while (handle && times--) {
		profiler()->table->record(handle, STATE_KERNEL_STOP, &args);
		profiler()->table->stop(handle);
	}
}

/* One look at one work; true when nothing more will come of it. */
static bool look(struct kernel_work *work, int64_t now)
{
	int state = atomic_load(&work->state), left = 0;
	int channels = work->channels - (settings()->misbehave[FEWER_CHANNELS] ? 1 : 0);
	int64_t late = settings()->misbehave[LATE_KERNEL] ? LATE_NS : 0;

	if (misbehaves(work, LOST_PAIR, 1))
		return state >= ENDED;
	for (int i = 0; i < channels; i++) {
		if (work->channel[i].phase == UNSEEN && state >= BEGUN && work->start &&
		    start_of(work, i) + late <= now) {
			call_start(work, i);
			work->channel[i].phase = STARTED;
		}
		if (work->channel[i].phase == STARTED && state == ENDED &&
		    stop_of(work, i) + late <= now) {
			if (!misbehaves(work, LOST_STOP, 0))
				call_stop(work, i);
			work->channel[i].phase = OVER;
		}
		left += work->channel[i].phase != OVER;
	}
	return !left || state == LOST;
}

static void pass(struct poller *poller)
{
	int64_t now = settings()->hurry ? INT64_MAX : now_ns();
	struct kernel_work *before = 0, *work = poller->first;

	/* The list grows at its end while this runs; only this thread takes works out. */
	while (work) {
		work->later = work->next;
		pthread_mutex_unlock(&poller->lock);
		bool over = look(work, now);
		pthread_mutex_lock(&poller->lock);
		struct kernel_work *next = work->next;

		if (over) {
			if (before)
				before->next = next;
			else
				poller->first = next;
			if (poller->last == work)
				poller->last = before;
			work_cancel(work);
		} else {
			before = work;
		}
		work = next;
	}
	pthread_cond_broadcast(&poller->passed);
}

static void *poller_thread(void *argument)
{
	struct poller *poller = argument;
	int64_t delay = settings()->poll_ns > 10000 ? settings()->poll_ns : 10000;
	struct timespec pause = {.tv_sec = delay / SECOND, .tv_nsec = delay % SECOND};

	pthread_mutex_lock(&poller->lock);
	while (poller->first || !poller->stopping) {
		if (!poller->first) {
			pthread_cond_wait(&poller->posted, &poller->lock);
			continue;
		}
		pthread_mutex_unlock(&poller->lock);
		nanosleep(&pause, 0);
		pthread_mutex_lock(&poller->lock);
		pass(poller);
	}
	pthread_mutex_unlock(&poller->lock);
	return 0;
}

struct poller *poller_start(void)
{
	struct poller *poller = calloc(1, sizeof *poller);

	if (!poller)
		return 0;
	pthread_mutex_init(&poller->lock, 0);
	pthread_cond_init(&poller->posted, 0);
	pthread_cond_init(&poller->passed, 0);
	if (pthread_create(&poller->thread, 0, poller_thread, poller)) {
		free(poller);
		return 0;
	}
	return poller;
}

static bool has_work_of(const struct poller *poller, const struct ncclComm *comm)
{
	for (const struct kernel_work *work = poller->first; work; work = work->next) {
		if (work->comm == comm)
			return true;
	}
	return false;
}

void poller_drain(struct poller *poller, struct ncclComm *comm)
{
	pthread_mutex_lock(&poller->lock);
	while (has_work_of(poller, comm))
		pthread_cond_wait(&poller->passed, &poller->lock);
	pthread_mutex_unlock(&poller->lock);
}

void poller_stop(struct poller *poller)
{
	pthread_mutex_lock(&poller->lock);
	poller->stopping = true;
	pthread_cond_signal(&poller->posted);
	pthread_mutex_unlock(&poller->lock);
	pthread_join(poller->thread, 0);
	pthread_cond_destroy(&poller->posted);
	pthread_cond_destroy(&poller->passed);
	pthread_mutex_destroy(&poller->lock);
	free(poller);
}
