/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpunccl's own types. A call becomes a task; the tasks of a group on one communicator and stream
 * become a plan (NCCL's kernel); a plan is one operation of a stream.
 */
#ifndef CPUNCCL_INTERNAL_H
#define CPUNCCL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "cpunccl.h"

#define MILLISECOND 1000000ll
#define SECOND 1000000000ll
#define MAX_CHANNELS 64

/* ALL_TO_ALL is a call only: its tasks are messages. */
enum function { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, SEND, RECV };
#define COLLECTIVES ALL_TO_ALL /* those before it have sequence numbers */
#define IS_MESSAGE(function) ((function) >= SEND)

/* settings.c: the environment and NCCL's configuration files, read once */
enum misbehaviour {
	LOST_STOP,         /* every third KernelCh never stops */
	LOST_PAIR,         /* completion seen before start: both are dropped, of every third */
	STOP_BEFORE_START, /* device times of every third channel swapped */
	FEWER_CHANNELS,    /* the last channel never reports */
	CHANNEL_OVERFLOW,  /* channel numbers of 64 and more */
	OVERRUN,           /* device ring overwritten: the time of a later work is reported */
	REPEATED_STOP,     /* recordEventState and stopEvent again after stopEvent */
	LATE_KERNEL,       /* KernelCh callbacks 50 ms late, long after Coll's stop */
	AFTER_FINALIZE,    /* KernelCh callbacks after finalize */
	NULL_CONTEXT,      /* callbacks with the context of a failed init */
	NULL_PARENT,       /* Coll, P2p and KernelCh with parentObj NULL */
	CONCURRENT_INIT,   /* init of a second context at the same time */
	MISBEHAVIOURS,
};

struct settings {
	int version; /* as ncclGetVersion tells it, 22703 */
	bool rccl;
	int channels;
	int64_t latency_ns;
	double bytes_per_ns;
	double transfer_jitter; /* relative sigma, the same draw on all ranks */
	int64_t launch_ns;      /* planned host time of one call */
	int64_t poll_ns;
	bool hurry;
	bool misbehave[MISBEHAVIOURS];
};
const struct settings *settings(void);
/* A variable as NCCL sees it: environment, then the user's file, then the system's. */
const char *nccl_variable(const char *name);
double link_factor(int rank, int other);

/* clock.c */
int64_t now_ns(void);
void sleep_until(int64_t planned);
void note_lag(int64_t planned);   /* this was to happen then, and happens now */
int64_t host_time(void);          /* enqueue time of the calling thread */
void host_reach(int64_t planned); /* the host has waited for this */
uint64_t device_time(int64_t planned);
uint64_t random_bits(void);

/* device.c */
extern _Thread_local int current_device;
struct mark; /* a moment of a stream, resolved when everything before it is planned */
struct plan;
struct stream_op {
	enum { KERNEL, WAIT, RECORD, PLAN } kind;
	int64_t enqueued, duration;
	const int64_t *duration_from; /* read when it is enqueued to run */
	struct mark *mark;
	struct plan *plan;
	cpunccl_stream *stream; /* in graphs */
	struct stream_op *next;
};
cpunccl_stream *stream_or_default(cpunccl_stream *stream);
/* Hand an operation to its stream, or to the graph that this thread captures. */
void stream_enqueue(cpunccl_stream *stream, struct stream_op operation);
void stream_after(cpunccl_stream *later, cpunccl_stream *earlier);
struct mark *mark_new(void);
struct mark *mark_hold(struct mark *mark);
void mark_drop(struct mark *mark);

/* graph.c */
bool capturing(void);
void graph_append(cpunccl_stream *stream, const struct stream_op *operation);

/* plan.c */
struct task {
	enum function function;
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t type;
	ncclRedOp_t reduction;
	int peer; /* root or peer, -1: none */
	int64_t transfer;
	void *api_handle; /* of the profiler's CollApi or P2pApi */
	void *handle;     /* of its Coll or P2p; never cleared, as NCCL's slots */
	struct kernel_work *work;
	struct task *next;
};

struct plan {
	atomic_int references;
	struct ncclComm *comm;
	cpunccl_stream *stream;
	struct task *tasks;
	int mask; /* the profiler's, when the group was made */
	bool captured;
	bool grouped; /* several tasks share one launch */
	void *group_api_handle, *group_handle;
};
void plan_hold(struct plan *plan);
void plan_drop(struct plan *plan);
/* Run at the planned time `start`; the planned end. */
int64_t plan_run(struct plan *plan, int64_t start);
/* `tasks` in order; they belong to the plans from here on. */
ncclResult_t plan_launch(struct ncclComm *comm, cpunccl_stream *stream, struct task *tasks,
			 int mask, void *group_api_handle);
int64_t transfer_time(const struct ncclComm *comm, const struct task *task);

/* shared.c: memory that the ranks of a communicator share */
#define ROUNDS 4
#define STAGE_BYTES 65536u
#define LETTERS 2
#define LETTER_BYTES 32768u

struct member { /* one rank; written by it, but for the bell */
	_Alignas(64) atomic_int pid;
	int world;      /* rank in the job, for links */
	uint64_t born;  /* start time of the process, clock ticks since boot */
	int color, key; /* of the split being made */
	_Alignas(64) atomic_uint bell;
	atomic_int waits;                     /* enum wait_for */
	_Alignas(64) _Atomic uint64_t posted; /* rounds whose input is in the stage */
	_Atomic uint64_t done;                /* rounds that are read */
	int64_t arrival[ROUNDS];              /* planned */
	uint64_t what[ROUNDS];                /* all ranks must call the same */
};

struct mailbox {                                     /* from one rank to one other */
	_Alignas(64) _Atomic uint64_t posted, read;  /* letters */
	_Atomic uint64_t sends, receives;            /* messages begun */
	int64_t send_arrival[2], receive_arrival[2]; /* planned, by message */
	uint64_t send_bytes[2];
};

struct shared {
	_Alignas(64) atomic_int nranks;
	atomic_uint attached;
	atomic_int error;    /* ncclResult_t: the communicator is broken */
	atomic_uint barrier; /* arrivals of the host, at splits */
	atomic_uint arrived[ROUNDS];
};

enum wait_for { NOTHING, POSTS, CREDIT };
struct shared *shared_open(const char *name, int nranks);
void shared_close(struct shared *shared, int nranks);
struct member *member_of(const struct ncclComm *comm, int rank);
struct mailbox *mailbox_of(const struct ncclComm *comm, int from, int to);
char *stage_of(const struct ncclComm *comm, uint64_t round, int rank);
char *letter_of(const struct ncclComm *comm, int from, int to, uint64_t letter);
/* Waiting: arm, look, sleep, look again. Sleep returns an error when the others cannot come. */
unsigned bell_arm(struct ncclComm *comm, enum wait_for what);
void bell_disarm(struct ncclComm *comm);
ncclResult_t bell_sleep(struct ncclComm *comm, unsigned seen);
void bell_ring(struct ncclComm *comm, int rank, enum wait_for what);
void bell_ring_all(struct ncclComm *comm, enum wait_for what);
uint64_t process_born(int pid); /* 0: gone or a zombie */
void comm_break(struct ncclComm *comm, ncclResult_t why);

/* transport.c, messages.c: move the bytes; *when is the planned arrival, then the planned end */
ncclResult_t transport_collective(struct ncclComm *comm, const struct task *task, int64_t *when);
ncclResult_t transport_messages(struct ncclComm *comm, const struct task *tasks, int64_t start,
				int64_t *ends);

/* reduce.c */
size_t type_size(ncclDataType_t type);
/* accumulate `count` elements of `in` into `out`; `finish` divides averages by nranks */
void reduce_into(void *out, const void *in, size_t count, ncclDataType_t type, ncclRedOp_t op);
void reduce_finish(void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int nranks);

/* comm.c */
struct ncclComm {
	uint64_t magic;
	int rank, nranks, device;
	uint64_t hash;
	char id[40]; /* name of the shared memory without prefix */
	char *name;  /* the user's, or NULL */
	struct shared *shared;
	atomic_int error;
	cpunccl_stream *last_stream;
	uint64_t round;             /* of collectives, counted by the streams */
	uint64_t *sends, *receives; /* messages by peer, likewise */
	uint64_t operations;        /* counted by the host, for the draw of jitter */
	_Atomic uint64_t sequence[COLLECTIVES];
	unsigned splits;
	int active;       /* plans that are enqueued and not over */
	int64_t last_end; /* planned, of the last one */
	/* profiler.c */
	bool profiled, init_failed;
	void *context;
	struct poller *poller;
	void *last_handle;
	bool shifted;
};
bool comm_valid(const struct ncclComm *comm);
ncclResult_t comm_create(struct ncclComm **out, int nranks, const char *id, uint64_t hash, int rank,
			 int device, const char *name);
uint64_t hash_bytes(const void *bytes, size_t length, uint64_t seed);

/* group.c */
struct init_job {
	ncclComm_t *out;
	int nranks, rank, device;
	ncclUniqueId unique;
	char *name;
	ncclResult_t result;
	struct init_job *next;
};
ncclResult_t init_run(struct init_job *job);
void group_init(struct init_job *job);
bool group_open(void);
ncclResult_t group_error(ncclResult_t result);
ncclResult_t group_call(ncclComm_t comm, cpunccl_stream *stream, struct task task,
			const char *api_name);
ncclResult_t group_start(void);
ncclResult_t group_end(void);
ncclResult_t fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* dump.c */
void dump_task(const struct ncclComm *comm, const struct task *task, int64_t start, int64_t end);

#endif
