/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another plugin that the user wants, behind ours: STRAGD_RING_CHAIN=path or name (NCCL's rule:
 * the value itself, then libnccl-profiler-VALUE.so). It gets every event that its mask asks for,
 * with its own context, handles and parents; of what only it asked for, we record nothing.
 *
 * It must export the version that the library speaks; for 7 and 6 an older one down to 5 serves
 * as well, since newer descriptors only have more at their ends. Where it has none of those it
 * cannot be loaded by anybody while we are: we say so and record alone. (Where the user sets
 * NCCL_PROFILER_PLUGIN, the library loads that one and not us.)
 */
#ifndef STRAGD_CHAIN_H
#define STRAGD_CHAIN_H

#include "comms.h"

/* Loads it, if one is asked for. Init only. */
void chain_load(struct process *process, uint32_t version, nccl_logger log);

/* The library's init arguments on to it; false when there is none or it wants not. */
bool chain_init(struct process *process, struct comm *comm, const struct comm_identity *identity,
		nccl_logger log);

/* Its handle for an event, NULL when it does not want it. `descriptor` comes back unchanged. */
void *chain_start(struct process *process, struct comm *comm, uint64_t type, void **parent,
		  void *descriptor);

void chain_stop(struct process *process, void *handle);
void chain_record(struct process *process, void *handle, int state, void *args);
void chain_finalize(struct process *process, void *context);

/* Its handle of a channel, kept under ours. */
void chain_keep(struct process *process, void *ours, void *theirs);

#endif
