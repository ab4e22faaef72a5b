/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL and RCCL pass to a profiler plugin, descriptor versions 3 to 7: our own declarations
 * of the parts that are read here. Offsets and sizes are compared by tests/test_ncclring_abi.py
 * with the debug information of a real library.
 *
 * From version 5 on only members are added at the end of each event's part, so a descriptor of a
 * newer version serves a plugin of an older one (chain.c leans on that).
 */
#ifndef STRAGD_ABI_H
#define STRAGD_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*nccl_logger)(int level, unsigned long subsystem, const char *file, int line,
			    const char *format, ...);
#define NCCL_LOG_INFO 3
#define NCCL_LOG_PROFILE 0x4000ul

enum nccl_event {
	NCCL_GROUP = 1 << 0,
	NCCL_COLL = 1 << 1,
	NCCL_P2P = 1 << 2,
	NCCL_KERNEL_CH = 1 << 6,
	NCCL_COLL_API = 1 << 9,
	NCCL_P2P_API = 1 << 10,
	NCCL_CE_COLL = 1 << 12, /* from version 6 on */
};

/* Every event that a version of the interface can name. */
#define NCCL_EVENTS_V3 0x00ff
#define NCCL_EVENTS_V4 0x00ff
#define NCCL_EVENTS_V5 0x0fff
#define NCCL_EVENTS_V6 0x7fff
#define NCCL_EVENTS_V7 0xffff

#define NCCL_KERNEL_CH_STOP 22 /* the only state read here; from version 4 on */

struct nccl_coll_v3 {
	const char *name;
	uint64_t comm_hash;
	uint64_t sequence;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	uint8_t max_channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct nccl_p2p_v3 {
	const char *name;
	uint64_t comm_hash;
	const char *func;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
};

struct nccl_coll_v4 {
	uint64_t sequence;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct nccl_p2p_v4 {
	const char *func;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t channels; /* only NCCL 2.27 itself fills it; later shims leave it as it was */
};

struct nccl_coll_v5 {
	struct nccl_coll_v4 v4;
	void *parent_group;
};

struct nccl_p2p_v5 {
	struct nccl_p2p_v4 v4;
	void *parent_group;
};

struct nccl_coll_v7 {
	struct nccl_coll_v5 v5;
	const char *kernel_variant;
	bool symmetric;
	uint64_t user_tag;
};

struct nccl_p2p_v7 {
	struct nccl_p2p_v5 v5;
	uint64_t user_tag;
};

struct nccl_coll_api {
	const char *func;
	size_t count;
	const char *datatype;
	int root;
	void *stream;
	bool graph_captured;
};

struct nccl_p2p_api {
	const char *func;
	size_t count;
	const char *datatype;
	void *stream;
	bool graph_captured;
};

/* By the copy engines instead of kernels: begins like any collective; all there is about it. */
struct nccl_ce_coll {
	uint64_t sequence; /* counted apart from kernels' */
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
};

struct nccl_kernel_ch {
	uint8_t channel;
	uint64_t timer; /* from version 4 on */
};

struct nccl_descriptor_v3 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct nccl_coll_v3 coll;
		struct nccl_p2p_v3 p2p;
		struct nccl_kernel_ch kernel_ch;
	};
};

struct nccl_descriptor_v4 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct nccl_coll_v4 coll;
		struct nccl_p2p_v4 p2p;
		struct nccl_kernel_ch kernel_ch;
	};
};

/* Also version 6, which adds events (those of RCCL that are not read here are longer). */
struct nccl_descriptor_v5 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct nccl_coll_v5 coll;
		struct nccl_p2p_v5 p2p;
		struct nccl_coll_api coll_api;
		struct nccl_p2p_api p2p_api;
		struct nccl_ce_coll ce_coll;
		struct nccl_kernel_ch kernel_ch;
	};
};

struct nccl_descriptor_v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct nccl_coll_v7 coll;
		struct nccl_p2p_v7 p2p;
		struct nccl_coll_api coll_api;
		struct nccl_p2p_api p2p_api;
		struct nccl_ce_coll ce_coll;
		struct nccl_kernel_ch kernel_ch;
	};
};

/* Arguments of recordEventState; the same place in every version from 4 on. */
struct nccl_state_args {
	uint64_t timer;
};

typedef int (*nccl_init_v3)(void **context, int *mask);
typedef int (*nccl_init_v4)(void **context, int *mask, const char *name, uint64_t hash, int nnodes,
			    int nranks, int rank, nccl_logger log);
typedef int (*nccl_init_v5)(void **context, uint64_t id, int *mask, const char *name, int nnodes,
			    int nranks, int rank, nccl_logger log);

/* One exported symbol; `init` is one of the three types above, by version. */
struct nccl_profiler {
	const char *name;
	void (*init)(void);
	int (*start)(void *context, void **handle, void *descriptor);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, void *args);
	int (*finalize)(void *context);
};

#endif
