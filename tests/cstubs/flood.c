/*
 * Calls ncclAllReduce of a library COUNT times: flood LIBRARY COUNT
 *
 * Prints "pid PID" and "ns NANOSECONDS", the processor time of one call.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "types.h"

int main(int argc, char **argv)
{
	struct timespec begin, end;
	long count = argc > 2 ? atol(argv[2]) : 0;
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	int (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
			  ncclStream);

	if (!library)
		return 1;
	*(void **)&all_reduce = dlsym(library, "ncclAllReduce");
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
	for (long i = 0; i < count; i++)
		all_reduce(0, 0, i, 7, 0, P(1), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
	printf("pid %d\n", getpid());
	printf("ns %.1f\n",
	       ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count);
	return 0;
}
