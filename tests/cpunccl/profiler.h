/* SPDX-License-Identifier: Apache-2.0 */
/* Between cpunccl and its profiler plugin. */
#ifndef CPUNCCL_PROFILER_H
#define CPUNCCL_PROFILER_H

#include "internal.h"
#include "profiler_abi.h"

/* profiler_load.c */
struct plugin {
	const struct profiler_table *table;
	int api; /* descriptor version, 3 … 7; 0: none */
};
const struct plugin *profiler(void);
int profiler_mask(void);
/* init for a new communicator; loads the plugin if it is the first. */
ncclResult_t profiler_attach(struct ncclComm *comm);
/* Deliver what is pending, then finalize. The communicator's plans are over. */
void profiler_detach(struct ncclComm *comm);
void *profiler_context(const struct ncclComm *comm);

/* profiler_events.c */
const char *function_name(enum function function);
void event_begin(struct descriptor *descriptor, uint64_t type, void *parent, int rank);
void profiler_api_start(struct ncclComm *comm, const char *name, cpunccl_stream *stream,
			struct task *task, int mask, void *group_api_handle);
void profiler_api_stop(struct task *task);
void *profiler_group_start(struct ncclComm *comm, int mask, int depth);
void profiler_group_ends(void *handle);
void profiler_group_stop(void *handle);
void profiler_kernel_launch(struct plan *plan);
/* Make the tasks' kernel_work, before the stream sees the plan. */
void profiler_prepare(struct plan *plan);
/* Group, Coll and P2p events; post the work to the poller. */
void profiler_enqueued(struct plan *plan);
/* Do the events of a captured plan come at each replay? Else they came once, at capture. */
bool profiler_replays(const struct plan *plan);

/* poller.c: KernelCh events, from a thread of its own */
struct poller;
struct kernel_work *work_new(struct ncclComm *comm, int channels);
void work_begin(struct kernel_work *work, int64_t start);
void work_end(struct kernel_work *work, int64_t end); /* 0: it will never end */
void work_cancel(struct kernel_work *work);
void work_post(struct kernel_work *work, void *parent);
struct poller *poller_start(void);
void poller_drain(struct poller *poller, struct ncclComm *comm);
void poller_stop(struct poller *poller);

/* comm.c, device.c */
void comm_plan_begins(struct ncclComm *comm);
void comm_plan_over(struct ncclComm *comm, int64_t end);
void comm_quiesce(struct ncclComm *comm);
void stream_error(cpunccl_stream *stream, int error);

#endif
