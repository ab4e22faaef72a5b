/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * What user space tells the program about a probe site, and what the program
 * counts. rscore/src/probes/site.rs is the twin; both are compared through the
 * object's BTF when it is loaded.
 */
#ifndef STRAGD_SITE_H
#define STRAGD_SITE_H

#include "events.h"

/* Where the value of a field is: the base, then `depth` reads, each at the address so far
 * plus the next offset. Computed in user space, prologue shift included; the program only
 * follows it. */
#define STRAGD_BASE_SP 8     /* bases 0..7: integer argument registers in order */
#define STRAGD_BASE_FIELD 9  /* 9..12: the record's 64-bit fields, as far as they are decoded */
#define STRAGD_BASE_SPARE 13 /* second value of the paired place before; no reads */
#define STRAGD_DEPTH_MAX 3

struct stragd_place {
	stragd_u8 field; /* enum stragd_field */
	stragd_u8 base;
	stragd_u8 width; /* 1, 2, 4 or 8 bytes of the value */
	stragd_u8 flags; /* bits 0..1: depth; others as below */
	stragd_s32 offsets[STRAGD_DEPTH_MAX];
};

#define STRAGD_PLACE_DEPTH 3u
#define STRAGD_PLACE_SIGNED 4u
#define STRAGD_PLACE_PAIRED 8u /* the last read takes the next place's value too, as wide */
/* Read at the first 8 of 128 tags only. Eight, because a gloo group deals its tags out to its
 * devices' contexts in turn, and each context has to be met. */
#define STRAGD_PLACE_RARE 16u

/* Fields of the record that a place can fill: the first four are its 64-bit fields. */
enum stragd_field {
	STRAGD_FIELD_COUNT = 0,
	STRAGD_FIELD_COMM = 1,
	STRAGD_FIELD_ID = 2,
	STRAGD_FIELD_AUX = 3,
	STRAGD_FIELD_PEER = 4,
	STRAGD_FIELD_DATATYPE = 5,
	STRAGD_FIELD_REDUCTION = 6,
	STRAGD_FIELDS = 7,
};

/* flags of a site */
#define STRAGD_SITE_LIFECYCLE 1u /* goes to the lifecycle ring */
#define STRAGD_SITE_BYTES 2u     /* count is in bytes: divide by id */
#define STRAGD_SITE_OUT_COMM 4u  /* comm is where the new communicator will be written */
#define STRAGD_SITE_OUT_ID 8u    /* id is where */
#define STRAGD_SITE_USES                                                                           \
	16u                  /* comm is in use: bind it if it is not yet known;                    \
			      * places[0] is its place */
#define STRAGD_SITE_ENDS 32u /* comm ends: forget it */

struct stragd_site {
	struct stragd_event record; /* what is the same at every hit */
	stragd_u16 flags;
	stragd_u16 places_used;
	stragd_u32 row; /* row of the probe table; user space only */
	/* What is not: the communicator's place, if it has one, first. */
	struct stragd_place places[STRAGD_FIELDS];
};

_Static_assert(sizeof(struct stragd_place) == 16, "place is 16 bytes");
_Static_assert(sizeof(struct stragd_site) == 184, "site is 184 bytes");

#define STRAGD_SITES_MAX 2048
#define STRAGD_LINKS_MAX 1024

struct stragd_counters {
	stragd_u64 events[32];                   /* by what: reserved and submitted */
	stragd_u64 lost[32];                     /* by what: no room in the ring */
	stragd_u64 read_failed;                  /* reads of user memory that failed */
	stragd_u64 ignored;                      /* dropped: process is ignored */
	stragd_u64 claim_full;                   /* let through unclaimed: claim map full */
	stragd_u64 comm_full;                    /* communicator not remembered: map full */
	stragd_u64 bad_site;                     /* cookie without a site */
	stragd_u64 births;                       /* communicator initialisations begun */
	stragd_u64 duplicates[STRAGD_LINKS_MAX]; /* by link: hits another link owns */
};

#endif
