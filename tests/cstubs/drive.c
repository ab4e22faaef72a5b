/*
 * Calls every function of calls.h that a library has and prints what a probe must have seen:
 *
 *   drive LIBRARY [null] [pause]
 *
 * `null`: communicators and out pointers are null, so that a real library refuses each call;
 * each call in a child of its own, because some libraries do not refuse but crash.
 * `pause`: wait for a line on stdin between loading and calling, and again before the end.
 * One line per call, "name pid count datatype reduction peer comm id aux"; "absent name" else.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "types.h"

static void wait_for_line(const char *say)
{
	puts(say);
	fflush(stdout);
	while (getchar() != '\n' && !feof(stdin))
		;
}

int main(int argc, char **argv)
{
	ncclUniqueId unique, scratch;
	ncclComm_t comm = P(77), made[2] = {0, 0}, *out = made;
	unsigned long long head;
	int pause = 0, apart = 0;

	for (int i = 0; i < 128; i++)
		unique.internal[i] = (char)(i * 7 + 3);
	memcpy(&head, unique.internal, 8);
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "null")) {
			comm = 0;
			out = 0;
			apart = 1;
		} else if (!strcmp(argv[i], "pause")) {
			pause = 1;
		}
	}
	setvbuf(stdout, 0, _IOLBF, 0);
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (!library) {
		fprintf(stderr, "drive: %s\n", argc > 1 ? dlerror() : "no library named");
		return 1;
	}
	if (pause)
		wait_for_line("loaded");
#define CALL(name, parameters, arguments, count, datatype, reduction, peer, comm_, id, aux)        \
	{                                                                                          \
		int(*call) parameters = (int(*) parameters)dlsym(library, #name);                  \
		pid_t child = call && apart ? fork() : 0;                                          \
		if (!call) {                                                                       \
			printf("absent " #name "\n");                                              \
		} else if (child > 0) {                                                            \
			waitpid(child, 0, 0);                                                      \
		} else {                                                                           \
			printf(#name " %d %llu %d %d %d %llu %llu %llu\n", getpid(),               \
			       (unsigned long long)(count), datatype, reduction, peer,             \
			       (unsigned long long)(comm_), (unsigned long long)(id),              \
			       (unsigned long long)(aux));                                         \
			call arguments;                                                            \
			if (apart)                                                                 \
				_exit(0);                                                          \
		}                                                                                  \
	}
#include "calls.h"
	if (pause)
		wait_for_line("called");
	return 0;
}
