/*
 * Lives of communicators, for the lazy binding: bind LIBRARY
 *
 * Prints "bound COMM OUT" for every binding that must be announced, in order.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#include "types.h"

static int (*init)(ncclComm_t *, int, ncclUniqueId, int);
static int (*init_all)(ncclComm_t *, int, const int *);
static int (*split)(ncclComm_t, int, int, ncclComm_t *, void *);
static int (*destroy)(ncclComm_t);
static int (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
			 ncclStream);

static void use(ncclComm_t comm, int times)
{
	while (times--)
		all_reduce(0, 0, 1, 0, 0, comm, 0);
}

static void bound(ncclComm_t comm, ncclComm_t *out)
{
	printf("bound %llu %llu\n", U(comm), U(out));
}

int main(int argc, char **argv)
{
	static ncclComm_t first, second, third, child, all[4];
	static const ncclUniqueId unique;
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;

	if (!library)
		return 1;
	*(void **)&init = dlsym(library, "ncclCommInitRank");
	*(void **)&init_all = dlsym(library, "ncclCommInitAll");
	*(void **)&split = dlsym(library, "ncclCommSplit");
	*(void **)&destroy = dlsym(library, "ncclCommDestroy");
	*(void **)&all_reduce = dlsym(library, "ncclAllReduce");
	printf("pid %d\n", getpid());

	/* An initialisation that is used, and used again. */
	init(&first, 2, unique, 0);
	first = P(1);
	use(first, 3);
	bound(first, &first);
	/* One from before the daemon: nothing to find, until an initialisation that is slow to
	 * write its pointer turns out to be it. */
	use(P(2), 3);
	init(&second, 2, unique, 0);
	use(P(2), 1);
	second = P(2);
	use(P(2), 1); /* not searched again: no initialisation since the last search */
	init(&third, 2, unique, 0);
	use(P(2), 2);
	bound(P(2), &second);
	/* The address of a destroyed communicator is used again. */
	destroy(first);
	first = 0;
	third = P(1);
	use(third, 2);
	bound(third, &third);
	/* A child of a communicator, and an array of them. */
	split(third, 0, 0, &child, 0);
	child = P(3);
	use(child, 2);
	bound(child, &child);
	init_all(all, 4, 0);
	for (int i = 0; i < 4; i++) {
		all[i] = P(10 + i);
		use(all[i], 2);
		bound(all[i], &all[i]);
	}
	return 0;
}
