/* SPDX-License-Identifier: Apache-2.0 */
/* What the descriptors say of one collective or message, whatever their version. */
#ifndef STRAGD_CALL_H
#define STRAGD_CALL_H

#include "process.h"

struct call {
	const char *function, *datatype, *algorithm, *protocol;
	const void *group; /* the library's handle of its kernel launch */
	uint64_t count;
	uint64_t sequence;
	int peer;         /* or root */
	bool message;     /* send or receive */
	uint8_t channels; /* 0 = not known */
	uint16_t flags;   /* of a slot */
	bool timeless;    /* no kernel events will come for it */
};

/* `type` is Coll, P2p or, from version 6 on, CeColl. */
struct call call_of(uint32_t version, const struct process *process, uint64_t type,
		    const void *descriptor);

#endif
