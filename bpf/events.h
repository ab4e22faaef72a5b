/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * The wire record between the kernel and stragd. One header for both sides:
 * bpf/collectives.bpf.c writes it, rscore/src/wire.rs is its #[repr(C)] twin
 * and is compared with this object's BTF when the object is loaded.
 *
 * Only fixed-width types, no pointers, no kernel types: the object must load
 * where the kernel has no BTF.
 */
#ifndef STRAGD_EVENTS_H
#define STRAGD_EVENTS_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u8 stragd_u8;
typedef __u16 stragd_u16;
typedef __u32 stragd_u32;
typedef __s32 stragd_s32;
typedef __u64 stragd_u64;
#else
#include <stdint.h>
typedef uint8_t stragd_u8;
typedef uint16_t stragd_u16;
typedef uint32_t stragd_u32;
typedef int32_t stragd_s32;
typedef uint64_t stragd_u64;
#endif

/* What happened. Values are wire format: append, never renumber. */
enum stragd_what {
	STRAGD_ENTER = 1, /* host entered a collective call (NCCL, RCCL); no end is seen */
	/* 2 and 3 have no meaning any more */
	STRAGD_DETAIL = 4, /* work of this thread begins, or goes on (gloo): comm = context,
			    * count, id = element size, peer = tag, which the process group
			    * counts at issue, aux = rank, in its high half size; 0 where
			    * that was not read */
	STRAGD_DONE = 5,   /* work of this thread ended (gloo) */
	STRAGD_GROUP_START = 6,
	STRAGD_GROUP_END = 7,
	STRAGD_COMM_INIT =
	    8, /* comm = address of the out pointer, id, rank in peer, nranks in aux */
	STRAGD_COMM_SPLIT =
	    9, /* comm = parent, id = address of the out pointer, color in peer, key in aux */
	STRAGD_COMM_SHRINK = 10, /* comm = parent, id = address of the out pointer */
	STRAGD_COMM_GROW =
	    11, /* comm = parent, id = address of the out pointer, rank in peer, nranks in aux */
	STRAGD_COMM_BOUND =
	    12, /* first use of comm: id = address of the out pointer that holds it */
	STRAGD_COMM_FINALIZE = 13,
	STRAGD_COMM_DESTROY = 14,
	STRAGD_COMM_ABORT = 15,
	STRAGD_COMM_REVOKE = 16,
	STRAGD_COMM_SUSPEND = 17,
	STRAGD_COMM_RESUME = 18,
	STRAGD_COMM_INIT_ALL = 19, /* comm = address of the out array, nranks in aux */
	STRAGD_UNIQUE_ID = 20,
	STRAGD_FAILED = 21, /* work of this thread ended with an error (gloo) */
	STRAGD_WHAT_MAX = 22,
};

/* Which collective. Values are wire format: append, never renumber. */
enum stragd_function {
	STRAGD_FN_NONE = 0,
	STRAGD_FN_ALL_REDUCE = 1,
	STRAGD_FN_REDUCE = 2,
	STRAGD_FN_BROADCAST = 3,
	STRAGD_FN_REDUCE_SCATTER = 4,
	STRAGD_FN_ALL_GATHER = 5,
	STRAGD_FN_ALL_TO_ALL = 6,
	STRAGD_FN_GATHER = 7,
	STRAGD_FN_SCATTER = 8,
	STRAGD_FN_SEND = 9,
	STRAGD_FN_RECV = 10,
	STRAGD_FN_PUT_SIGNAL = 11,
	STRAGD_FN_SIGNAL = 12,
	STRAGD_FN_WAIT_SIGNAL = 13,
	STRAGD_FN_BARRIER = 14,
	STRAGD_FN_MAX = 15,
};

/* flags of an event */
#define STRAGD_READ_FAILED 1u /* an argument in user memory could not be read */

#define STRAGD_NO_PEER (-1)
#define STRAGD_NO_TYPE 255 /* datatype or reduction that the call does not have */

struct stragd_event {
	stragd_u64 time_ns;  /* CLOCK_MONOTONIC, ns */
	stragd_u32 tgid;     /* process, initial pid namespace */
	stragd_u32 tid;      /* thread, initial pid namespace */
	stragd_u8 what;      /* enum stragd_what */
	stragd_u8 function;  /* enum stragd_function */
	stragd_u8 datatype;  /* ncclDataType_t, or STRAGD_NO_TYPE */
	stragd_u8 reduction; /* ncclRedOp_t, or STRAGD_NO_TYPE */
	stragd_s32 peer;     /* root or peer or rank or tag; STRAGD_NO_PEER where there is none */
	stragd_u64 count;    /* elements */
	stragd_u64 comm;     /* communicator or process group pointer */
	stragd_u64 id;       /* COMM_*: first 8 bytes of the unique id, or as said above; DETAIL:
			      * size of an element in bytes */
	stragd_u64 aux;      /* see enum stragd_what */
	stragd_u32 site;     /* probe site that fired: index into the sites map */
	stragd_u16 link;     /* link that delivered it */
	stragd_u16 flags;
};

_Static_assert(sizeof(struct stragd_event) == 64, "wire record is 64 bytes");

#endif
