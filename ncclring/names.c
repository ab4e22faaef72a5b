/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <stddef.h>
#include <string.h>

#include "ring.h"

struct name {
	const char *text;
	uint8_t value;
	uint8_t size;
};

/* The most frequent first: they are searched in order. */
static const struct name functions[] = {
    {"AllReduce", STRAGD_RING_ALL_REDUCE, 0},
    {"AllGather", STRAGD_RING_ALL_GATHER, 0},
    {"ReduceScatter", STRAGD_RING_REDUCE_SCATTER, 0},
    {"Send", STRAGD_RING_SEND, 0},
    {"Recv", STRAGD_RING_RECV, 0},
    {"Broadcast", STRAGD_RING_BROADCAST, 0},
    {"Reduce", STRAGD_RING_REDUCE, 0},
    {"AlltoAll", STRAGD_RING_ALL_TO_ALL, 0},
    {"AllToAll", STRAGD_RING_ALL_TO_ALL, 0},
    {"Gather", STRAGD_RING_GATHER, 0},
    {"Scatter", STRAGD_RING_SCATTER, 0},
};

static const struct name datatypes[] = {
    {"ncclBfloat16", 9, 2},    {"ncclFloat32", 7, 4},  {"ncclFloat16", 6, 2},
    {"ncclInt8", 0, 1},        {"ncclInt64", 4, 8},    {"ncclInt32", 2, 4},
    {"ncclFloat64", 8, 8},     {"ncclUint8", 1, 1},    {"ncclUint32", 3, 4},
    {"ncclUint64", 5, 8},      {"ncclFloat", 7, 4},    {"ncclHalf", 6, 2},
    {"ncclDouble", 8, 8},      {"ncclInt", 2, 4},      {"ncclFloat8e4m3", 10, 1},
    {"ncclFloat8e5m2", 11, 1}, {"ncclFp8E4M3", 10, 1}, {"ncclFp8E5M2", 11, 1},
};

static const struct name algorithms[] = {
    {"RING", STRAGD_RING_RING, 0},
    {"TREE", STRAGD_RING_TREE, 0},
    {"NVLS", STRAGD_RING_NVLS, 0},
    {"NVLS_TREE", STRAGD_RING_NVLS_TREE, 0},
    {"COLLNET_DIRECT", STRAGD_RING_COLLNET_DIRECT, 0},
    {"COLLNET_CHAIN", STRAGD_RING_COLLNET_CHAIN, 0},
    {"PAT", STRAGD_RING_PAT, 0},
};

static const struct name protocols[] = {
    {"SIMPLE", STRAGD_RING_SIMPLE, 0},
    {"LL", STRAGD_RING_LL, 0},
    {"LL128", STRAGD_RING_LL128, 0},
};

static const struct name *search(const struct name *names, size_t count, const char *text)
{
	if (!text)
		return NULL;
	for (size_t i = 0; i < count; i++)
		if (strcmp(names[i].text, text) == 0)
			return &names[i];
	return NULL;
}

#define SEARCH(names, text) search(names, sizeof(names) / sizeof(*(names)), text)

uint8_t names_function(const char *name)
{
	const struct name *found = SEARCH(functions, name);

	return found ? found->value : STRAGD_RING_OTHER;
}

uint8_t names_datatype(const char *name, uint32_t *size)
{
	const struct name *found = SEARCH(datatypes, name);

	*size = found ? found->size : 1;
	return found ? found->value : 255;
}

uint8_t names_algorithm(const char *algorithm, const char *protocol)
{
	const struct name *a = SEARCH(algorithms, algorithm), *p = SEARCH(protocols, protocol);

	return (uint8_t)((a ? a->value : 0) << 4 | (p ? p->value : 0));
}
