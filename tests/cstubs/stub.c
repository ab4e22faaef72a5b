/*
 * A library with the exported names and signatures of NCCL and RCCL, and nothing behind them.
 * Built without optimisation, so that every function begins with a push; each has its weak
 * name and its p-prefixed one at the same address, as the real libraries do.
 */
#include "types.h"

#define CALL(name, parameters, ...)                                                                \
	int p##name parameters                                                                     \
	{                                                                                          \
		return 0;                                                                          \
	}                                                                                          \
	int name parameters __attribute__((weak, alias("p" #name)));
#include "calls.h"
