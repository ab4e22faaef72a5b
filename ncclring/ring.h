/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory ring between the profiler plugin, which lives inside the job, and stragd,
 * which reads it from outside. One memfd per process, `stragd-ring` in its name, its size
 * sealed. rscore/src/ring/layout.rs is the twin; a test compares every offset.
 *
 *     0               struct stragd_ring_header
 *     comms_offset    comm_count × struct stragd_ring_comm    (the flight recorder)
 *     slots_offset    slot_count × struct stragd_ring_slot    (overwrite-oldest)
 *
 * Writing a slot: take a ticket from `head`, claim the slot ticket % slot_count by moving its
 * stamp from an older value to STRAGD_RING_WRITING(ticket), write, store
 * STRAGD_RING_WRITTEN(ticket) with release order. A slot that somebody else is writing, or that
 * is newer, is left alone and the record is lost. Reading: see the stamp WRITTEN, copy, see the
 * same stamp again. Every ticket below `head` is either read or lost, so the reader knows
 * exactly what it missed.
 *
 * Everything is written by the job, and so believed by nobody.
 */
#ifndef STRAGD_RING_H
#define STRAGD_RING_H

#include <stdint.h>

#define STRAGD_RING_NAME "stragd-ring"
#define STRAGD_RING_MAGIC 0x676e697264617274ull /* "tradring", little-endian */
#define STRAGD_RING_LAYOUT 1u

#define STRAGD_RING_COMMS 256u   /* a power of two, at most 256: see `comm` of a slot */
#define STRAGD_RING_SLOTS 16384u /* a power of two */
#define STRAGD_RING_FUNCTIONS 16u

#define STRAGD_RING_WRITING(ticket) (2 * (uint64_t)(ticket) + 1)
#define STRAGD_RING_WRITTEN(ticket) (2 * (uint64_t)(ticket) + 2)

/* Which function. The same numbers as enum stragd_function of bpf/events.h. */
enum stragd_ring_function {
	STRAGD_RING_ALL_REDUCE = 1,
	STRAGD_RING_REDUCE = 2,
	STRAGD_RING_BROADCAST = 3,
	STRAGD_RING_REDUCE_SCATTER = 4,
	STRAGD_RING_ALL_GATHER = 5,
	STRAGD_RING_ALL_TO_ALL = 6,
	STRAGD_RING_GATHER = 7,
	STRAGD_RING_SCATTER = 8,
	STRAGD_RING_SEND = 9,
	STRAGD_RING_RECV = 10,
	STRAGD_RING_OTHER = 15, /* a name this plugin does not know */
};

enum stragd_ring_vendor {
	STRAGD_RING_VENDOR_UNKNOWN = 0,
	STRAGD_RING_NVIDIA = 1, /* called by libnccl */
	STRAGD_RING_AMD = 2,    /* called by librccl */
};

/* What `device_start` and `device_stop` of slots count. */
enum stragd_ring_clock {
	STRAGD_RING_CLOCK_HOST = 0, /* CLOCK_MONOTONIC ns of the poll (no device clock: v3) */
	STRAGD_RING_CLOCK_NS = 1,   /* device ns, arbitrary epoch (globaltimer) */
	STRAGD_RING_CLOCK_TICKS =
	    2, /* device ticks, arbitrary epoch, rate in clock_hz (wall_clock64) */
};

enum stragd_ring_mode {
	STRAGD_RING_DEFAULT = 0, /* the plugin decides by the library's version */
	STRAGD_RING_OFF = 1,     /* nothing */
	STRAGD_RING_PROGRESS =
	    2,                /* `enqueued` of the communicator table; no device events asked for */
	STRAGD_RING_FULL = 3, /* everything, thinned by `sample` and `floor` */
};

/*
 * Control word: bits 0..7 mode, 8..15 floor (log2 of the smallest message in bytes that gets a
 * slot; 0 = all), 16..31 sample N (0 and 1 = all; else of every N blocks of
 * STRAGD_RING_SAMPLE_BLOCK consecutive `order`s the first one is recorded).
 * The daemon writes `control`, the plugin answers in `control_seen`.
 */
#define STRAGD_RING_SAMPLE_BLOCK 4096u

/* Causes of `dropped`. */
enum stragd_ring_drop {
	STRAGD_RING_DROP_POOL = 0,  /* more collectives in flight than objects */
	STRAGD_RING_DROP_COMM = 1,  /* communicator table full */
	STRAGD_RING_DROP_CLAIM = 2, /* slot being written, or overtaken by a newer one */
	STRAGD_RING_DROP_STALE = 3, /* callback for a collective that is over or unknown */
	STRAGD_RING_DROPS = 8,
};

struct stragd_ring_header {
	uint64_t magic;        /*   0: written last, with release order */
	uint32_t layout;       /*   8: STRAGD_RING_LAYOUT */
	uint32_t header_bytes; /*  12 */
	uint32_t comm_bytes;   /*  16 */
	uint32_t comm_count;   /*  20 */
	uint32_t slot_bytes;   /*  24 */
	uint32_t slot_count;   /*  28 */
	uint64_t comms_offset; /*  32 */
	uint64_t slots_offset; /*  40 */
	uint64_t total_bytes;  /*  48 */
	uint64_t start_ns;     /*  56: CLOCK_MONOTONIC when the ring was made */
	uint32_t pid;          /*  64: as the process sees it */
	uint32_t vendor;       /*  68: enum stragd_ring_vendor */
	uint32_t clock;        /*  72: enum stragd_ring_clock */
	uint32_t api;          /*  76: descriptor version in use, 3..7; 0 before the first init */
	uint64_t clock_hz;     /*  80: ticks per second; 0 = not known, estimate by rate */
	uint32_t library;      /*  88: ncclGetVersion, e.g. 23203; 0 = not known */
	uint32_t quirk; /*  92: row of versions.h that decided the default mode, from 1; 0 = none */
	uint32_t chained;       /*  96: 1 when another plugin is forwarded to */
	uint32_t mode;          /* 100: mode in force (never STRAGD_RING_DEFAULT) */
	uint64_t control;       /* 104: written by the daemon, polled by the plugin */
	uint64_t control_seen;  /* 112: last control word that was obeyed */
	char chained_name[64];  /* 120: of the chained plugin, NUL-terminated */
	uint8_t reserved[72];   /* 184 */
	uint64_t head;          /* 256: tickets given out; on a cache line of its own */
	uint8_t head_line[56];  /* 264 */
	uint64_t order;         /* 320: collectives and messages enqueued, in this process */
	uint8_t order_line[56]; /* 328 */
	uint64_t dropped[STRAGD_RING_DROPS]; /* 384: by enum stragd_ring_drop */
	uint8_t page[3648];                  /* 448 */
};

/* Counts, not the sequence numbers of the library: they agree when nothing was missed. What
 * cannot be timed (see the flags of a slot) is enqueued and neither started nor completed. */
struct stragd_ring_progress {
	uint64_t enqueued; /* by the host */
	uint64_t started;  /* on the device */
	uint64_t completed;
	uint64_t enqueued_ns; /* CLOCK_MONOTONIC of the callback, of the last one */
	uint64_t started_ns;
	uint64_t completed_ns;
	uint64_t sequence; /* of the last enqueued: the library's; of messages: our count */
	uint64_t bytes;    /* of the last enqueued */
};

enum stragd_ring_comm_state {
	STRAGD_RING_COMM_FREE = 0,
	STRAGD_RING_COMM_LIVE = 1,
	STRAGD_RING_COMM_ENDED = 2, /* finalized; kept until its place is needed */
};

struct stragd_ring_comm {
	uint64_t hash;       /*  0: commHash / commId */
	int32_t rank;        /*  8 */
	int32_t nranks;      /* 12 */
	int32_t nnodes;      /* 16 */
	uint32_t state;      /* 20: enum stragd_ring_comm_state */
	uint32_t generation; /* 24: uses of this place; its low 8 bits are in every slot */
	uint32_t reserved;   /* 28 */
	uint64_t born_ns;    /* 32: CLOCK_MONOTONIC */
	uint64_t ended_ns;   /* 40 */
	char name[80];       /* 48: NUL-terminated; empty when the library gave none */
	struct stragd_ring_progress progress[STRAGD_RING_FUNCTIONS]; /* 128: by function */
};

/* flags of a slot */
#define STRAGD_RING_NO_START 1u      /* no device start was seen: device_start is 0 */
#define STRAGD_RING_NO_STOP 2u       /* no device stop was seen: device_stop is 0 */
#define STRAGD_RING_HOST_TIME 4u     /* device_* are CLOCK_MONOTONIC ns of the poll */
#define STRAGD_RING_GRAPH 8u         /* replay of a captured graph */
#define STRAGD_RING_FEW_CHANNELS 16u /* fewer channels reported than the library announced */
#define STRAGD_RING_GROUPED                                                                        \
	32u /* one batch with the collective enqueued before it: may share its times */
#define STRAGD_RING_SYMMETRIC 64u /* symmetric-memory kernel */
#define STRAGD_RING_AFTER_GAP                                                                      \
	128u /* collectives before it were not recorded on purpose (sample, mode, floor) */
#define STRAGD_RING_COPY_ENGINE 256u /* by the copy engines, which tell no times */

/* One collective, or one message to or from one peer, when its device time is complete or is
 * given up. */
struct stragd_ring_slot {
	uint64_t stamp;        /*  0: see above */
	uint64_t device_start; /*  8: earliest start over the channels, in the header's clock */
	uint64_t device_stop;  /* 16: latest stop over the channels */
	uint64_t host_ns;      /* 24: CLOCK_MONOTONIC when the host enqueued it */
	uint64_t bytes;        /* 32: of this rank's part of the message: count × element size */
	uint32_t
	    sequence; /* 40: the library's, low half; of messages our count by peer and direction */
	int32_t peer; /* 44: root or peer; -1 where there is none */
	uint32_t order;      /* 48: place among all that this process enqueued, low half */
	uint32_t poll_delta; /* 52: from host_ns to the callback that told of the stop, in units of
			      *     64 ns; saturates; 0 = not known */
	uint16_t comm;       /* 56: low 8 bits: place in the table; high 8 bits: its generation */
	uint16_t flags;      /* 58 */
	uint8_t function;    /* 60: enum stragd_ring_function */
	uint8_t datatype;    /* 61: ncclDataType_t; 255 = not known */
	uint8_t channels;    /* 62: that were timed */
	uint8_t algorithm;   /* 63: high half algorithm, low half protocol; see below */
};

/* 0 = not known. Names as the library spells them. */
enum stragd_ring_algorithm {
	STRAGD_RING_TREE = 1,
	STRAGD_RING_RING = 2,
	STRAGD_RING_COLLNET_DIRECT = 3,
	STRAGD_RING_COLLNET_CHAIN = 4,
	STRAGD_RING_NVLS = 5,
	STRAGD_RING_NVLS_TREE = 6,
	STRAGD_RING_PAT = 7,
};

enum stragd_ring_protocol {
	STRAGD_RING_LL = 1,
	STRAGD_RING_LL128 = 2,
	STRAGD_RING_SIMPLE = 3,
};

_Static_assert(sizeof(struct stragd_ring_header) == 4096, "header is a page");
_Static_assert(sizeof(struct stragd_ring_progress) == 64, "progress is a cache line");
_Static_assert(sizeof(struct stragd_ring_comm) == 1152, "communicator is 18 cache lines");
_Static_assert(sizeof(struct stragd_ring_slot) == 64, "slot is a cache line");

#define STRAGD_RING_COMMS_OFFSET 4096u
#define STRAGD_RING_SLOTS_OFFSET (STRAGD_RING_COMMS_OFFSET + STRAGD_RING_COMMS * 1152u)
#define STRAGD_RING_BYTES (STRAGD_RING_SLOTS_OFFSET + STRAGD_RING_SLOTS * 64u)

#endif
