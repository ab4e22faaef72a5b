/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planned time, the host's share of it, and the device clock that profilers see.
 *
 * The device clock is planned time with a random offset and a random drift per process, cut to
 * steps: CPUNCCL_CLOCK=ns (steps of 1024 ns, as globaltimer's), ns:STEP, or ticks:HZ (AMD's
 * wall_clock64 at 100 MHz). NCCL's default is ns, RCCL's ticks. CPUNCCL_DRIFT_PPM bounds the
 * drift (20).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "internal.h"

static _Thread_local int64_t planned_host; /* 0: the host's time is the real one */
static _Atomic int64_t worst_lag, late_sleeps;

static struct {
	double hz, step; /* ticks per second, ticks per visible step */
	double rate;     /* 1 + drift */
	int64_t zero;    /* planned time of the first use */
	uint64_t offset; /* ticks at that time */
} clock_values;

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

uint64_t random_bits(void)
{
	uint64_t bits;

	if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
		bits = (uint64_t)now_ns() * 0x9e3779b97f4a7c15ull ^ (uint64_t)getpid();
	return bits;
}

void sleep_until(int64_t planned)
{
	if (settings()->hurry)
		return;
	struct timespec t = {.tv_sec = planned / SECOND, .tv_nsec = planned % SECOND};

	while (now_ns() < planned &&
	       clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0) == EINTR)
		;
}

void note_lag(int64_t planned)
{
	int64_t lag = now_ns() - planned, worst = atomic_load(&worst_lag);

	if (settings()->hurry)
		return;
	if (lag > MILLISECOND)
		atomic_fetch_add(&late_sleeps, 1);
	while (lag > worst && !atomic_compare_exchange_weak(&worst_lag, &worst, lag))
		;
}

void cpunccl_lag(int64_t *worst_ns, int64_t *late)
{
	*worst_ns = atomic_load(&worst_lag);
	*late = atomic_load(&late_sleeps);
}

void cpunccl_host_plan(int on)
{
	planned_host = on ? now_ns() : 0;
}

int64_t cpunccl_host_time(void)
{
	return planned_host ? planned_host : now_ns();
}

int64_t host_time(void)
{
	if (planned_host)
		planned_host += settings()->launch_ns;
	return cpunccl_host_time();
}

void host_reach(int64_t planned)
{
	if (planned_host && planned_host < planned)
		planned_host = planned;
}

void cpunccl_host_work(int64_t duration_ns)
{
	int64_t end = cpunccl_host_time() + duration_ns;

	if (planned_host)
		planned_host = end;
	sleep_until(end);
}

static void set_clock(void)
{
	const char *kind = getenv("CPUNCCL_CLOCK"), *limit = getenv("CPUNCCL_DRIFT_PPM");
	double ppm = limit ? atof(limit) : 20,
	       uniform = (double)(random_bits() >> 11) / (1ull << 53);

	if (!kind || !*kind)
		kind = settings()->rccl ? "ticks:100e6" : "ns:1024";
	clock_values.hz = 1e9;
	clock_values.step = 1;
	if (!strncmp(kind, "ticks:", 6) && atof(kind + 6) > 0) {
		clock_values.hz = atof(kind + 6);
	} else if (!strcmp(kind, "ns")) {
		clock_values.step = 1024;
	} else if (!strncmp(kind, "ns:", 3) && atof(kind + 3) >= 1) {
		clock_values.step = atof(kind + 3);
	} else {
		fprintf(stderr, "cpunccl: CPUNCCL_CLOCK=%s: want ns, ns:STEP or ticks:HZ\n", kind);
		exit(2);
	}
	clock_values.rate = 1 + (2 * uniform - 1) * ppm * 1e-6;
	clock_values.zero = now_ns() - 3600 * SECOND; /* planned time is never before it */
	/* Some value of the order of a Unix time or of the ticks of a machine that is up for days.
	 */
	clock_values.offset = clock_values.hz == 1e9 ? 1700000000ull * SECOND : 1ull << 40;
	clock_values.offset += random_bits() >> 14;
}

static pthread_once_t clock_once = PTHREAD_ONCE_INIT;

uint64_t device_time(int64_t planned)
{
	pthread_once(&clock_once, set_clock);
	double ticks = (double)(planned - clock_values.zero) * clock_values.rate;
	uint64_t value = clock_values.offset + (uint64_t)(ticks * (clock_values.hz / 1e9));

	return value - value % (uint64_t)clock_values.step;
}

int64_t cpunccl_planned_time(uint64_t device_time)
{
	pthread_once(&clock_once, set_clock);
	double ticks = (double)(int64_t)(device_time - clock_values.offset);

	return clock_values.zero + (int64_t)(ticks / (clock_values.hz / 1e9) / clock_values.rate);
}

int64_t cpunccl_clock_granularity(void)
{
	pthread_once(&clock_once, set_clock);
	return (int64_t)(clock_values.step * 1e9 / clock_values.hz);
}
