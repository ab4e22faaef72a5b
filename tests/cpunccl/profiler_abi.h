/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profiler interface, v3 to v7, as cpunccl reads the fact sheet. Deliberately not shared with
 * the plugin under test: two readings that must agree.
 */
#ifndef CPUNCCL_PROFILER_ABI_H
#define CPUNCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	GROUP = 1 << 0,
	COLL = 1 << 1,
	P2P = 1 << 2,
	PROXY_OP = 1 << 3,
	PROXY_STEP = 1 << 4,
	KERNEL_CH = 1 << 6,
	NET_PLUGIN = 1 << 7,
	GROUP_API = 1 << 8,
	COLL_API = 1 << 9,
	P2P_API = 1 << 10,
	KERNEL_LAUNCH = 1 << 11,
	KERNEL_PHASE = 1 << 15,
};

enum { STATE_KERNEL_STOP = 22, STATE_GROUP_STARTED = 23, STATE_GROUP_ENDS = 24 };

struct descriptor {
	union {
		uint8_t type8;   /* v3, v4; the other seven bytes are padding */
		uint64_t type64; /* v5 and later */
	};
	void *parent;
	int rank;
	union {
		struct {
			const char *name;
			uint64_t hash;
			uint64_t sequence;
			const char *function;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *type;
			uint8_t channels, warps;
			const char *algorithm, *protocol;
		} coll_v3;
		struct {
			const char *name;
			uint64_t hash;
			const char *function;
			void *buffer;
			const char *type;
			size_t count;
			int peer;
		} p2p_v3;
		struct {
			uint64_t sequence;
			const char *function;
			const void *send;
			void *recv;
			size_t count;
			int root;
			const char *type;
			uint8_t channels, warps;
			const char *algorithm, *protocol;
			void *group;         /* v5 */
			const char *variant; /* v7 from here */
			bool symmetric;
			uint64_t tag;
		} coll;
		struct {
			const char *function;
			void *buffer;
			const char *type;
			size_t count;
			int peer;
			uint8_t channels;
			void *group;  /* v5 */
			uint64_t tag; /* v7 */
		} p2p;
		struct {
			bool captured;
			int depth;
		} group_api;
		struct {
			const char *function;
			size_t count;
			const char *type;
			int root;
			void *stream;
			bool captured;
			uint64_t tag; /* v7 */
		} coll_api;
		struct {
			const char *function;
			size_t count;
			const char *type;
			void *stream;
			bool captured;
			uint64_t tag; /* v7 */
		} p2p_api;
		struct {
			void *stream;
		} kernel_launch;
		struct {
			uint8_t channel;
			uint64_t timer; /* v4 */
		} kernel;
	};
};

#define AT(field, place) _Static_assert(offsetof(struct descriptor, field) == (place), #field)
AT(parent, 8);
AT(rank, 16);
AT(coll_v3.sequence, 40);
AT(coll_v3.protocol, 112);
AT(p2p_v3.peer, 72);
AT(coll.sequence, 24);
AT(coll.function, 32);
AT(coll.count, 56);
AT(coll.root, 64);
AT(coll.type, 72);
AT(coll.channels, 80);
AT(coll.warps, 81);
AT(coll.algorithm, 88);
AT(coll.protocol, 96);
AT(coll.group, 104);
AT(coll.variant, 112);
AT(coll.symmetric, 120);
AT(coll.tag, 128);
AT(kernel.channel, 24);
AT(kernel.timer, 32);
_Static_assert(sizeof(struct descriptor) == 136, "v7 is the largest");

union state_args {
	uint64_t timer;
	unsigned char all[24]; /* RCCL's is larger */
};

typedef void (*profiler_log)(int level, unsigned long flags, const char *file, int line,
			     const char *format, ...);
typedef int init_v3(void **context, int *mask);
typedef int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes,
		    int nranks, int rank, profiler_log log);
typedef int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes,
		    int nranks, int rank, profiler_log log);

struct profiler_table {
	const char *name;
	union {
		init_v3 *v3;
		init_v4 *v4;
		init_v5 *v5;
	} init;
	int (*start)(void *context, void **handle, struct descriptor *descriptor);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, union state_args *args);
	int (*finalize)(void *context);
};
_Static_assert(sizeof(struct profiler_table) == 48, "name and five functions");

#endif
