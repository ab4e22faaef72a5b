/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's entry points, each with its pnccl twin at the same address, and their checks. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

ncclResult_t comm_init(ncclComm_t *out, int nranks, const ncclUniqueId *unique, int rank,
		       int device, const ncclConfig_t *config);
ncclResult_t comm_split(struct ncclComm *comm, int color, int key, ncclComm_t *out,
			const ncclConfig_t *config);
void comm_end(struct ncclComm *comm, bool aborted);
void comm_quiesce(struct ncclComm *comm);
const char *last_error_text(void);

#define CALL(type, name, ...)                                                                      \
	EXPORTED type p##name(__VA_ARGS__);                                                        \
	EXPORTED __attribute__((weak, alias("p" #name))) type name(__VA_ARGS__);                   \
	type p##name(__VA_ARGS__)

#define COMM_CHECK(comm)                                                                           \
	if (!comm_valid(comm))                                                                     \
	return fail(ncclInvalidArgument, "%s: comm is NULL or no communicator", __func__ + 1)

CALL(ncclResult_t, ncclGetVersion, int *version)
{
	if (!version)
		return fail(ncclInvalidArgument, "version is NULL");
	*version = settings()->version;
	return ncclSuccess;
}

CALL(const char *, ncclGetErrorString, ncclResult_t code)
{
	static const char *const texts[ncclNumResults] = {
	    "no error",
	    "unhandled cuda error",
	    "unhandled system error",
	    "internal error",
	    "invalid argument",
	    "invalid usage",
	    "remote process exited or there was a network error",
	    "NCCL operation in progress"};

	return code < ncclNumResults ? texts[code] : "unknown result code";
}

CALL(const char *, ncclGetLastError, ncclComm_t comm)
{
	(void)comm;
	return last_error_text();
}

CALL(ncclResult_t, ncclGetUniqueId, ncclUniqueId *unique)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	uint64_t head = random_bits();

	if (!unique)
		return fail(ncclInvalidArgument, "unique id is NULL");
	memset(unique, 0, sizeof *unique);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = (in_port_t)random_bits();
	memcpy(unique->internal, &head, sizeof head);
	memcpy(unique->internal + sizeof head, &address, sizeof address);
	return ncclSuccess;
}

CALL(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId unique,
     int rank, ncclConfig_t *config)
{
	return group_error(comm_init(comm, nranks, &unique, rank, current_device, config));
}

CALL(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId unique, int rank)
{
	return group_error(comm_init(comm, nranks, &unique, rank, current_device, 0));
}

CALL(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *comm, int nranks, int rank, int ids,
     ncclUniqueId *unique, ncclConfig_t *config)
{
	if (ids < 1)
		return fail(ncclInvalidArgument, "%d unique ids", ids);
	return group_error(comm_init(comm, nranks, unique, rank, current_device, config));
}

CALL(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int devices, const int *list)
{
	ncclUniqueId unique;
	ncclResult_t result;

	if (!comms || devices < 1)
		return fail(ncclInvalidArgument, "%d devices", devices);
	pncclGetUniqueId(&unique);
	group_start();
	for (int i = 0; i < devices; i++)
		group_error(comm_init(&comms[i], devices, &unique, i, list ? list[i] : i, 0));
	result = group_end();
	return result;
}

CALL(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *out,
     ncclConfig_t *config)
{
	COMM_CHECK(comm);
	if (!out || color < NCCL_SPLIT_NOCOLOR)
		return group_error(fail(ncclInvalidArgument, "color %d", color));
	return group_error(comm_split(comm, color, key, out, config));
}

CALL(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
	COMM_CHECK(comm);
	comm_quiesce(comm);
	return (ncclResult_t)atomic_load(&comm->error);
}

CALL(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	COMM_CHECK(comm);
	comm_end(comm, false);
	return ncclSuccess;
}

CALL(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	COMM_CHECK(comm);
	comm_end(comm, true);
	return ncclSuccess;
}

#define QUERY(name, field)                                                                         \
	CALL(ncclResult_t, name, const ncclComm_t comm, int *value)                                \
	{                                                                                          \
		COMM_CHECK(comm);                                                                  \
		if (!value)                                                                        \
			return fail(ncclInvalidArgument, "result is NULL");                        \
		*value = comm->field;                                                              \
		return ncclSuccess;                                                                \
	}
QUERY(ncclCommCount, nranks)
QUERY(ncclCommUserRank, rank)
QUERY(ncclCommCuDevice, device)

CALL(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
	COMM_CHECK(comm);
	if (!error)
		return fail(ncclInvalidArgument, "result is NULL");
	*error = (ncclResult_t)atomic_load(&comm->error);
	if (!*error)
		*error = (ncclResult_t)atomic_load(&comm->shared->error);
	return ncclSuccess;
}

CALL(ncclResult_t, ncclMemAlloc, void **memory, size_t bytes)
{
	*memory = cpunccl_malloc(bytes);
	return *memory ? ncclSuccess : ncclSystemError;
}

CALL(ncclResult_t, ncclMemFree, void *memory)
{
	cpunccl_free(memory);
	return ncclSuccess;
}

CALL(ncclResult_t, ncclGroupStart, void)
{
	return group_start();
}

CALL(ncclResult_t, ncclGroupEnd, void)
{
	return group_end();
}

static ncclResult_t check(const char *name, const struct task *task, ncclComm_t comm)
{
	bool reduces = task->function == ALL_REDUCE || task->function == REDUCE ||
		       task->function == REDUCE_SCATTER;
	bool sends = task->function != RECV, receives = task->function != SEND;

	if (!comm_valid(comm))
		return fail(ncclInvalidArgument, "%s: comm is NULL or no communicator", name);
	if (atomic_load(&comm->error))
		return fail((ncclResult_t)atomic_load(&comm->error), "%s: broken communicator",
			    name);
	if ((unsigned)task->type >= ncclNumTypes)
		return fail(ncclInvalidArgument, "%s: datatype %d", name, task->type);
	if (reduces && (unsigned)task->reduction >= ncclNumOps)
		return fail(ncclInvalidArgument, "%s: reduction %d", name, task->reduction);
	if (task->peer < -1 || task->peer >= comm->nranks ||
	    (task->peer < 0 && (IS_MESSAGE(task->function) || task->function == BROADCAST ||
				task->function == REDUCE)))
		return fail(ncclInvalidArgument, "%s: root or peer %d of %d ranks", name,
			    task->peer, comm->nranks);
	/* Only the root of a broadcast sends, only the root of a reduce receives. */
	sends &= task->function != BROADCAST || comm->rank == task->peer;
	receives &= task->function != REDUCE || comm->rank == task->peer;
	if (task->count && ((sends && !task->send) || (receives && !task->recv)))
		return fail(ncclInvalidArgument, "%s: buffer is NULL", name);
	return ncclSuccess;
}

static ncclResult_t enqueue(const char *name, enum function function, const void *send, void *recv,
			    size_t count, ncclDataType_t type, ncclRedOp_t reduction, int peer,
			    ncclComm_t comm, cudaStream_t stream)
{
	struct task task = {.function = function,
			    .send = send,
			    .recv = recv,
			    .count = count,
			    .type = type,
			    .reduction = reduction,
			    .peer = peer};
	ncclResult_t result = check(name, &task, comm);

	if (result)
		return group_error(result);
	if (!count && !IS_MESSAGE(function))
		return ncclSuccess;
	return group_call(comm, stream, task, name);
}

CALL(ncclResult_t, ncclAllReduce, const void *send, void *recv, size_t count, ncclDataType_t type,
     ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("AllReduce", ALL_REDUCE, send, recv, count, type, reduction, -1, comm,
		       stream);
}

CALL(ncclResult_t, ncclReduce, const void *send, void *recv, size_t count, ncclDataType_t type,
     ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("Reduce", REDUCE, send, recv, count, type, reduction, root, comm, stream);
}

CALL(ncclResult_t, ncclBroadcast, const void *send, void *recv, size_t count, ncclDataType_t type,
     int root, ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("Broadcast", BROADCAST, send, recv, count, type, ncclSum, root, comm,
		       stream);
}

CALL(ncclResult_t, ncclBcast, void *buffer, size_t count, ncclDataType_t type, int root,
     ncclComm_t comm, cudaStream_t stream)
{
	return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

CALL(ncclResult_t, ncclReduceScatter, const void *send, void *recv, size_t count,
     ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("ReduceScatter", REDUCE_SCATTER, send, recv, count, type, reduction, -1,
		       comm, stream);
}

CALL(ncclResult_t, ncclAllGather, const void *send, void *recv, size_t count, ncclDataType_t type,
     ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("AllGather", ALL_GATHER, send, recv, count, type, ncclSum, -1, comm, stream);
}

CALL(ncclResult_t, ncclAlltoAll, const void *send, void *recv, size_t count, ncclDataType_t type,
     ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("AlltoAll", ALL_TO_ALL, send, recv, count, type, ncclSum, -1, comm, stream);
}

#ifdef CPUNCCL_RCCL
CALL(ncclResult_t, ncclAllToAll, const void *send, void *recv, size_t count, ncclDataType_t type,
     ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("AlltoAll", ALL_TO_ALL, send, recv, count, type, ncclSum, -1, comm, stream);
}
#endif

CALL(ncclResult_t, ncclSend, const void *buffer, size_t count, ncclDataType_t type, int peer,
     ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("Send", SEND, buffer, 0, count, type, ncclSum, peer, comm, stream);
}

CALL(ncclResult_t, ncclRecv, void *buffer, size_t count, ncclDataType_t type, int peer,
     ncclComm_t comm, cudaStream_t stream)
{
	return enqueue("Recv", RECV, 0, buffer, count, type, ncclSum, peer, comm, stream);
}
