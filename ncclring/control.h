/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is recorded, and so which events the library is asked for.
 *
 * The daemon's control word wins; word 0 stands for STRAGD_RING of the job's environment (off,
 * progress, full or 1/N), and without that for the default of the library's version
 * (versions.h). It is looked at with every group, which the library tells about in every mode,
 * and with every collective.
 *
 * The library keeps the mask of the moment of a call with it. So the mask is widened
 * CONTROL_LEAD collectives before a recorded block begins, and a graph that was captured while
 * its mask was narrow is not timed in its replays either.
 */
#ifndef STRAGD_CONTROL_H
#define STRAGD_CONTROL_H

#include "process.h"

#define CONTROL_LEAD 256u

/* Reads the environment and the table; a wrong STRAGD_RING is told through `log`. Init only. */
void control_begin(struct process *process, nccl_logger log);

/* Obeys the control word and keeps the library's mask right, from a callback of `comm`. */
void control_poll(struct process *process, struct comm *comm);

/* The mask that the library should have now, the chained plugin's wishes included. */
int control_mask(struct process *process);

/* Whether the collective of this order and size gets a slot. */
bool control_in_sample(const struct process *process, uint64_t order);
bool control_in_floor(const struct process *process, uint64_t bytes);

const char *control_mode_name(uint32_t mode);

#endif
