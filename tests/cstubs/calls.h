/*
 * Every probed C function of NCCL and RCCL: its signature, one call with distinct values, and
 * the fields that the probe must decode from it. stub.c defines the functions, drive.c calls
 * them; both expand this one list, so the compiler's calling convention is the judge.
 *
 *   CALL(name, (parameters), (arguments),
 *        count, datatype, reduction, peer, comm, id, aux)
 *
 * NONE where the call has no such argument. `comm`, `out` and `unique` are the driver's.
 */
// clang-format off
CALL(ncclAllReduce, AR, (P(1), P(2), N(1), 7, 4, comm, P(3)), N(1), 7, 4, NO_PEER, U(comm), 0, 0)
CALL(ncclReduce, RD, (P(1), P(2), N(2), 6, 3, 5, comm, P(4)), N(2), 6, 3, 5, U(comm), 0, 0)
CALL(ncclBroadcast, BC, (P(1), P(2), N(3), 9, 6, comm, P(5)), N(3), 9, NO_TYPE, 6, U(comm), 0, 0)
CALL(ncclReduceScatter, AR, (P(1), P(2), N(4), 8, 2, comm, P(6)), N(4), 8, 2, NO_PEER, U(comm), 0, 0)
CALL(ncclAllGather, AG, (P(1), P(2), N(5), 5, comm, P(7)), N(5), 5, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclAlltoAll, AG, (P(1), P(2), N(6), 4, comm, P(8)), N(6), 4, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclGather, BC, (P(1), P(2), N(7), 3, 11, comm, P(9)), N(7), 3, NO_TYPE, 11, U(comm), 0, 0)
CALL(ncclScatter, BC, (P(1), P(2), N(8), 2, 12, comm, P(10)), N(8), 2, NO_TYPE, 12, U(comm), 0, 0)
CALL(ncclAllReduceConfig, ARC, (P(1), P(2), N(9), 1, 1, comm, P(11), 0), N(9), 1, 1, NO_PEER, U(comm), 0, 0)
CALL(ncclReduceConfig, RDC, (P(1), P(2), N(10), 10, 2, 13, comm, P(12), 0), N(10), 10, 2, 13, U(comm), 0, 0)
CALL(ncclBroadcastConfig, BCC, (P(1), P(2), N(11), 11, 14, comm, P(13), 0), N(11), 11, NO_TYPE, 14, U(comm), 0, 0)
CALL(ncclReduceScatterConfig, ARC, (P(1), P(2), N(12), 7, 3, comm, P(14), 0), N(12), 7, 3, NO_PEER, U(comm), 0, 0)
CALL(ncclAllGatherConfig, AGC, (P(1), P(2), N(13), 6, comm, P(15), 0), N(13), 6, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclAlltoAllConfig, AGC, (P(1), P(2), N(14), 5, comm, P(16), 0), N(14), 5, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclGatherConfig, BCC, (P(1), P(2), N(15), 4, 15, comm, P(17), 0), N(15), 4, NO_TYPE, 15, U(comm), 0, 0)
CALL(ncclScatterConfig, BCC, (P(1), P(2), N(16), 3, 16, comm, P(18), 0), N(16), 3, NO_TYPE, 16, U(comm), 0, 0)
CALL(ncclSend, P2P, (P(1), N(17), 2, 17, comm, P(19)), N(17), 2, NO_TYPE, 17, U(comm), 0, 0)
CALL(ncclRecv, P2P, (P(1), N(18), 1, -18, comm, P(20)), N(18), 1, NO_TYPE, -18, U(comm), 0, 0)
CALL(ncclPutSignal, (const void *b, size_t n, ncclDataType_t t, int p, void *w, size_t o, int sig, int ctx, unsigned f, ncclComm_t c, ncclStream s),
     (P(1), N(19), 9, 19, P(2), N(99), 71, 72, 73, comm, P(21)), N(19), 9, NO_TYPE, 19, U(comm), 0, 0)
CALL(ncclSignal, (int p, int sig, int ctx, unsigned f, ncclComm_t c, ncclStream s), (20, 71, 72, 73, comm, P(22)),
     0, NO_TYPE, NO_TYPE, 20, U(comm), 0, 0)
CALL(ncclWaitSignal, (int n, void *d, ncclComm_t c, ncclStream s), (21, P(1), comm, P(23)),
     0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 21)
CALL(ncclAllToAll, AG, (P(1), P(2), N(22), 8, comm, P(24)), N(22), 8, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclAllToAllv, (const void *send, const size_t *sc, const size_t *sd, void *recv, const size_t *rc, const size_t *rd, ncclDataType_t t, ncclComm_t c, ncclStream s),
     (P(1), P(2), P(3), P(4), P(5), P(6), 7, comm, P(25)), 0, 7, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclAllReduceWithBias, ARC, (P(1), P(2), N(24), 6, 1, comm, P(26), P(7)), N(24), 6, 1, NO_PEER, U(comm), 0, 0)

CALL(ncclGroupStart, (void), (), 0, NO_TYPE, NO_TYPE, NO_PEER, 0, 0, 0)
CALL(ncclGroupEnd, (void), (), 0, NO_TYPE, NO_TYPE, NO_PEER, 0, 0, 0)
CALL(ncclGroupSimulateEnd, (void *info), (0), 0, NO_TYPE, NO_TYPE, NO_PEER, 0, 0, 1)

CALL(ncclGetUniqueId, (ncclUniqueId *u), (&scratch), 0, NO_TYPE, NO_TYPE, NO_PEER, 0, 0, U(&scratch))
CALL(ncclCommInitRank, (ncclComm_t *o, int n, ncclUniqueId u, int r), (out, 64, unique, 31), 0, NO_TYPE, NO_TYPE, 31, U(out), head, 64)
CALL(ncclCommInitRankConfig, (ncclComm_t *o, int n, ncclUniqueId u, int r, void *f), (out, 65, unique, 32, 0), 0, NO_TYPE, NO_TYPE, 32, U(out), head, 65)
CALL(ncclCommInitRankScalable, (ncclComm_t *o, int n, int r, int ids, ncclUniqueId *u, void *f), (out, 66, 33, 1, &unique, 0), 0, NO_TYPE, NO_TYPE, 33, U(out), head, 66)
CALL(ncclCommInitRankMulti, (ncclComm_t *o, int n, ncclUniqueId u, int r, int v), (out, 67, unique, 34, 2), 0, NO_TYPE, NO_TYPE, 34, U(out), head, 67)
CALL(ncclCommInitAll, (ncclComm_t *o, int n, const int *d), (out, 2, 0), 0, NO_TYPE, NO_TYPE, NO_PEER, U(out), 0, 2)
CALL(ncclCommSplit, (ncclComm_t c, int color, int key, ncclComm_t *o, void *f), (comm, -1, 36, out, 0), 0, NO_TYPE, NO_TYPE, -1, U(comm), U(out), 36)
CALL(ncclCommShrink, (ncclComm_t c, int *x, int n, ncclComm_t *o, void *f, int g), (comm, 0, 1, out, 0, 1), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), U(out), 0)
CALL(ncclCommGrow, (ncclComm_t c, int n, const ncclUniqueId *u, int r, ncclComm_t *o, void *f), (comm, 68, &unique, 37, out, 0), 0, NO_TYPE, NO_TYPE, 37, U(comm), U(out), 68)
CALL(ncclCommSuspend, (ncclComm_t c, int f), (comm, 1), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclCommResume, (ncclComm_t c), (comm), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclCommRevoke, (ncclComm_t c, int f), (comm, 0), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclCommFinalize, (ncclComm_t c), (comm), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclCommDestroy, (ncclComm_t c), (comm), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
CALL(ncclCommAbort, (ncclComm_t c), (comm), 0, NO_TYPE, NO_TYPE, NO_PEER, U(comm), 0, 0)
// clang-format on
