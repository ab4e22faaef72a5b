/* SPDX-License-Identifier: Apache-2.0 */
/* The ring itself: making it, and writing a slot (the rules are in ring.h). */
#ifndef STRAGD_MEMFD_H
#define STRAGD_MEMFD_H

#include <stdbool.h>

#include "ring.h"

/* A new, empty ring, everything but `magic` filled in; NULL with errno set. `hidden`: one that
 * nobody outside can find, for where memfd_create is forbidden. Init only. */
struct stragd_ring_header *memfd_make(bool hidden);

/* From now on a reader may believe the header. */
void memfd_open(struct stragd_ring_header *ring);

/* `slot->stamp` is ignored. */
void memfd_write(struct stragd_ring_header *ring, const struct stragd_ring_slot *slot);

struct stragd_ring_comm *memfd_comm(struct stragd_ring_header *ring, uint32_t index);

#endif
