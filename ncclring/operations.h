/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective or message leaves in the ring when the host enqueues it. */
#ifndef STRAGD_OPERATIONS_H
#define STRAGD_OPERATIONS_H

#include "call.h"

/* Our handle for a kernel launch that begins, never NULL; the collectives that come with it are
 * one batch. */
void *operations_group(struct process *process, struct comm *comm);

/* Our handle for it, NULL when nothing more is wanted about it. `chained`: theirs. */
void *operations_enqueued(struct process *process, struct comm *comm, const struct call *call,
			  void *chained);

#endif
