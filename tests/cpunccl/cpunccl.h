/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer needs beside NCCL's own calls: the "device" that cpunccl runs on. All times are
 * nanoseconds of planned time, an axis that begins as CLOCK_MONOTONIC and that all processes of
 * the machine share. A stream is passed to NCCL as its cudaStream_t; NULL is the default stream.
 * Functions that return int give an ncclResult_t.
 */
#ifndef CPUNCCL_H
#define CPUNCCL_H

#include "nccl.h"

typedef struct CUstream_st cpunccl_stream;
typedef struct cpunccl_event cpunccl_event;
typedef struct cpunccl_graph cpunccl_graph;

/* Device of the calling thread's default stream and of the communicators it makes. */
EXPORTED void cpunccl_set_device(int device);
EXPORTED void *cpunccl_malloc(size_t bytes);
EXPORTED void cpunccl_free(void *memory);

EXPORTED cpunccl_stream *cpunccl_stream_create(void);
EXPORTED void cpunccl_stream_destroy(cpunccl_stream *stream);
/* Wait until everything in the stream is over, in planned and in real time. The first error. */
EXPORTED int cpunccl_stream_sync(cpunccl_stream *stream);
EXPORTED void cpunccl_kernel(cpunccl_stream *stream, int64_t duration_ns);
/* Its duration is read when it is enqueued, in a graph at each launch. */
EXPORTED void cpunccl_kernel_from(cpunccl_stream *stream, const int64_t *duration_ns);

EXPORTED cpunccl_event *cpunccl_event_create(void);
EXPORTED void cpunccl_event_destroy(cpunccl_event *event);
EXPORTED void cpunccl_event_record(cpunccl_event *event, cpunccl_stream *stream);
EXPORTED void cpunccl_stream_wait(cpunccl_stream *stream, cpunccl_event *event);
/* Planned time of the last record; waits until it is known. 0: never recorded. */
EXPORTED int64_t cpunccl_event_time(cpunccl_event *event);

/*
 * The host's time. As long as it is not planned, work is enqueued at the real time of the call.
 * Planned, the calling thread has a time of its own, free of this machine's scheduling: it moves
 * by cpunccl_host_work and by waiting for streams only.
 */
EXPORTED void cpunccl_host_plan(int on);
EXPORTED int64_t cpunccl_host_time(void);
EXPORTED void cpunccl_host_work(int64_t duration_ns);
/* How long after its planned start a launch really started at worst, and how many by over 1 ms. */
EXPORTED void cpunccl_lag(int64_t *worst_ns, int64_t *late);

/* Everything this thread enqueues, on any stream, goes into the graph and does not run. */
EXPORTED void cpunccl_graph_begin(void);
EXPORTED cpunccl_graph *cpunccl_graph_end(void);
EXPORTED void cpunccl_graph_launch(cpunccl_graph *graph, cpunccl_stream *stream);
EXPORTED void cpunccl_graph_destroy(cpunccl_graph *graph);

/* Bandwidth of the link between two ranks of the job times `factor`, for what comes; -1: any. */
EXPORTED void cpunccl_set_link(int rank, int other, double factor);

/* Exact planned times of every collective and message, one line each; see dump.c. */
EXPORTED int cpunccl_dump(const char *path);
EXPORTED void cpunccl_dump_mark(int step);

/* A device time that a profiler was given, on the planned axis; within the clock's granularity. */
EXPORTED int64_t cpunccl_planned_time(uint64_t device_time);
EXPORTED int64_t cpunccl_clock_granularity(void);

#endif
