/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library holds for us: never a pointer, always a kind, an index and the generation of
 * what lies there, so that a handle of any age can be checked without touching freed or reused
 * memory. The top byte is the kind; it is 0 in every pointer of a chained plugin.
 *
 *     63..56 kind   55..48 channel   47..16 generation   15..0 index
 */
#ifndef STRAGD_HANDLES_H
#define STRAGD_HANDLES_H

#include <stdint.h>

enum handle_kind {
	HANDLE_COMM = 0xb1,   /* index into the communicator table */
	HANDLE_GROUP = 0xb2,  /* generation: which kernel launch of the communicator */
	HANDLE_GRAPH = 0xb3,  /* of a call that was captured into a graph; nothing to look up */
	HANDLE_OP = 0xb4,     /* index into the in-flight pool */
	HANDLE_KERNEL = 0xb5, /* a channel of it */
};

static inline void *handle_make(enum handle_kind kind, uint32_t channel, uint32_t generation,
				uint32_t index)
{
	return (void *)(uintptr_t)((uint64_t)kind << 56 | (uint64_t)(channel & 0xff) << 48 |
				   (uint64_t)generation << 16 | (index & 0xffff));
}

static inline uint32_t handle_kind(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> 56);
}

static inline uint32_t handle_channel(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> 48) & 0xff;
}

static inline uint32_t handle_generation(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> 16);
}

static inline uint32_t handle_index(const void *handle)
{
	return (uint32_t)(uintptr_t)handle & 0xffff;
}

static inline bool handle_is_ours(const void *handle)
{
	const uint32_t kind = handle_kind(handle);

	return kind >= HANDLE_COMM && kind <= HANDLE_KERNEL;
}

#endif
