/*
 * Fake trainers: bomb LIBRARY COUNT ALIVE MILLISECONDS
 *
 * COUNT processes, at most ALIVE at a time, each with the environment of the only rank of a job of
 * its own, under a name made to break what shows it. Each loads LIBRARY, calls its ncclAllReduce,
 * and ends after MILLISECONDS. Prints "started" when ALIVE run for the first time.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include "types.h"

static int train(const char *library, long milliseconds)
{
	void *loaded = dlopen(library, RTLD_NOW);
	int(*all_reduce) AR;

	if (!loaded)
		return 1;
	*(void **)&all_reduce = dlsym(loaded, "ncclAllReduce");
	for (int i = 0; i < 100; i++)
		all_reduce(0, 0, i, 7, 0, P(1), 0);
	usleep(milliseconds * 1000);
	return 0;
}

int main(int argc, char **argv)
{
	char name[400], port[32], *milliseconds;
	char *environment[] = {
	    "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=evil", port, name, NULL};
	long count, alive, running = 0;

	if (argc == 3)
		return train(argv[1], atol(argv[2]));
	if (argc != 5)
		return 2;
	count = atol(argv[2]);
	alive = atol(argv[3]);
	milliseconds = argv[4];
	for (long i = 0; i < count; i++) {
		pid_t child;

		if (running == alive) {
			wait(NULL);
			running--;
		}
		snprintf(port, sizeof(port), "MASTER_PORT=%ld", 1024 + i);
		snprintf(name, sizeof(name), "TORCHELASTIC_RUN_ID=evil%ld\"} 1\n\x1b[2J%0200d", i,
			 0);
		child = fork();
		if (child < 0)
			return 1;
		if (child == 0) {
			char *rank[] = {argv[0], argv[1], milliseconds, NULL};

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			execve("/proc/self/exe", rank, environment);
			_exit(127);
		}
		if (++running == alive && i < alive) {
			puts("started");
			fflush(stdout);
		}
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
