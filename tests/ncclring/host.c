/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays NCCL (as libnccl.so.2) or RCCL (as librccl.so.1) for the profiler plugin: loads it as
 * the libraries do and makes the callbacks that a test asks for, one a line on standard input,
 * each answered by one line. Contexts and handles are kept in numbered places, so that a test can
 * use them late, twice or in the wrong order. HOST_VERSION is what ncclGetVersion says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../ncclring/abi.h"

enum { PLACES = 8192, WORDS = 16 };

static void *library;
static const struct nccl_profiler *plugin;
static int version;
static int mask;
static void *contexts[PLACES], *handles[PLACES];
static void *launch; /* what descriptors from version 5 on name as their group */

int ncclGetVersion(int *number);
int host_main(void);

int ncclGetVersion(int *number)
{
	const char *text = getenv("HOST_VERSION");

	*number = text ? atoi(text) : 0;
	return 0;
}

static void logger(int level, unsigned long subsystem, const char *file, int line,
		   const char *format, ...)
{
	va_list arguments;

	(void)file;
	(void)line;
	printf("# %d %lx ", level, subsystem);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

static void load(const char *path, int wanted)
{
	char symbol[32];

	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("failed %s\n", dlerror());
		return;
	}
	snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", wanted);
	plugin = dlsym(library, symbol);
	version = wanted;
	printf("ok %s\n", plugin ? plugin->name : "none");
}

static int call_init(void **context, int *its_mask, unsigned long hash, int nranks, int rank,
		     const char *name)
{
	if (version == 3)
		return ((nccl_init_v3)plugin->init)(context, its_mask);
	if (version == 4)
		return ((nccl_init_v4)plugin->init)(context, its_mask, name, hash, 1, nranks, rank,
						    logger);
	return ((nccl_init_v5)plugin->init)(context, hash, its_mask, name, 1, nranks, rank, logger);
}

static void *init_thread(void *context)
{
	static int masks[PLACES];

	call_init(context, &masks[(void **)context - contexts], 77, 4, 1, "thread");
	return NULL;
}

static void inits(int threads)
{
	pthread_t ids[256];
	int different = 1;

	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, init_thread, &contexts[i]);
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < threads; i++)
		for (int j = 0; j < i; j++)
			different &= contexts[i] != contexts[j];
	printf("ok %d\n", different);
}

union descriptor {
	struct nccl_descriptor_v3 v3;
	struct nccl_descriptor_v4 v4;
	struct nccl_descriptor_v5 v5;
	struct nccl_descriptor_v7 v7;
};

static void set_head(union descriptor *d, unsigned type, void *parent)
{
	/* Whatever a part does not fill in is rubbish, as on the libraries' stacks. */
	memset(d, 0xaa, sizeof(*d));
	if (version < 5)
		d->v4.type = (uint8_t)type;
	else
		d->v7.type = type;
	d->v7.parent = parent;
	d->v7.rank = 3;
}

static int start(int context, int handle, union descriptor *d)
{
	return plugin->start(context < 0 ? NULL : contexts[context],
			     handle < 0 ? NULL : &handles[handle], d);
}

struct collective {
	const char *func, *datatype, *algo, *proto;
	unsigned long count, sequence;
	int root, channels;
};

static int start_coll(int context, int handle, void *parent, const struct collective *c,
		      int symmetric)
{
	union descriptor d;

	set_head(&d, NCCL_COLL, parent);
	if (version == 3)
		d.v3.coll = (struct nccl_coll_v3){"from the collective",
						  0xabcd,
						  c->sequence,
						  c->func,
						  NULL,
						  NULL,
						  c->count,
						  c->root,
						  c->datatype,
						  (uint8_t)c->channels,
						  8,
						  c->algo,
						  c->proto};
	else
		d.v4.coll = (struct nccl_coll_v4){
		    c->sequence,          c->func, NULL,    NULL,    c->count, c->root, c->datatype,
		    (uint8_t)c->channels, 8,       c->algo, c->proto};
	if (version > 4)
		d.v5.coll.parent_group = launch;
	if (version == 7)
		d.v7.coll.symmetric = symmetric;
	return start(context, handle, &d);
}

static int start_ce(int context, int handle, void *parent, const struct collective *c)
{
	union descriptor d;

	set_head(&d, NCCL_CE_COLL, parent);
	d.v7.ce_coll =
	    (struct nccl_ce_coll){c->sequence, c->func, NULL, NULL, c->count, c->root, c->datatype};
	return start(context, handle, &d);
}

static int start_p2p(int context, int handle, void *parent, const struct collective *c)
{
	union descriptor d;

	set_head(&d, NCCL_P2P, parent);
	if (version == 3) {
		d.v3.p2p = (struct nccl_p2p_v3){"from the message", 0xabcd,   c->func, NULL,
						c->datatype,        c->count, c->root};
	} else {
		d.v4.p2p.func = c->func;
		d.v4.p2p.datatype = c->datatype;
		d.v4.p2p.count = c->count;
		d.v4.p2p.peer = c->root;
		if (version > 4)
			d.v5.p2p.parent_group = launch;
		if (c->channels >= 0)
			d.v4.p2p.channels = (uint8_t)c->channels;
	}
	return start(context, handle, &d);
}

static int start_kernel(int context, int handle, void *parent, int channel, unsigned long timer)
{
	union descriptor d;

	set_head(&d, NCCL_KERNEL_CH, parent);
	d.v7.kernel_ch.channel = (uint8_t)channel;
	if (version > 3)
		d.v7.kernel_ch.timer = timer;
	return start(context, handle, &d);
}

static int start_api(int context, int handle, unsigned type, int captured)
{
	union descriptor d;

	set_head(&d, type, NULL);
	if (type == NCCL_COLL_API)
		d.v7.coll_api.graph_captured = captured;
	else if (type == NCCL_P2P_API)
		d.v7.p2p_api.graph_captured = captured;
	return start(context, handle, &d);
}

/* One collective from launch to the last channel's end, as NCCL makes the calls. */
static void whole(int context, const struct collective *c, unsigned long from, unsigned long to)
{
	enum { GROUP = PLACES - 1, OP = PLACES - 2, KERNEL = PLACES - 300 };

	start_api(context, GROUP, NCCL_GROUP, 0);
	launch = handles[GROUP];
	start_coll(context, OP, handles[GROUP], c, 0);
	plugin->stop(handles[OP]);
	if (handles[GROUP])
		plugin->stop(handles[GROUP]);
	for (int i = 0; i < c->channels && mask & NCCL_KERNEL_CH; i++)
		start_kernel(context, KERNEL + i, handles[OP], i, from + (unsigned long)i);
	for (int i = 0; i < c->channels && mask & NCCL_KERNEL_CH; i++) {
		struct nccl_state_args args = {to - (unsigned long)i};

		if (!handles[KERNEL + i])
			continue;
		if (version > 3)
			plugin->record(handles[KERNEL + i], NCCL_KERNEL_CH_STOP, &args);
		plugin->stop(handles[KERNEL + i]);
	}
}

static void run(int context, long n, const struct collective *c)
{
	struct collective one = *c;

	for (long i = 0; i < n; i++) {
		one.sequence = c->sequence + (unsigned long)i;
		whole(context, &one, 1000 * ((unsigned long)i + 1),
		      1000 * ((unsigned long)i + 1) + 500);
	}
}

/* From here on every system call but write and exit kills the process. (Not the kernel's strict
 * mode: that takes the processor's clock away too, which the vDSO reads.) */
static void forbid_system_calls(void)
{
	struct sock_filter filter[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		abort();
}

/* Every callback under that. The C library's exit does more, so the process ends by itself. */
static void sealed(int context, long n, const struct collective *c)
{
	fflush(stdout);
	forbid_system_calls();
	run(context, n, c);
	start_p2p(context, 0, NULL, c);
	start_coll(-1, 0, NULL, c, 0);
	plugin->finalize(contexts[context]);
	if (getenv("HOST_FORBIDDEN"))
		syscall(SYS_getppid); /* shows that the net has no hole */
	if (write(1, "ok\n", 3) != 3)
		abort();
	syscall(SYS_exit, 0);
}

static void everything_null(void)
{
	union descriptor d;

	for (unsigned type = 1; type; type <<= 1) {
		set_head(&d, type, NULL);
		memset((char *)&d + 24, 0, sizeof(d) - 24);
		handles[0] = (void *)1;
		plugin->start(NULL, &handles[0], &d);
		plugin->start(contexts[0], &handles[0], &d);
		plugin->start(contexts[0], NULL, &d);
		plugin->start(&d, &handles[0], &d); /* not our context */
	}
	handles[1] = (void *)1;
	plugin->start(NULL, &handles[1], NULL);
	plugin->stop(NULL);
	plugin->stop(&d);
	plugin->stop((void *)-1);
	for (int state = -1; state < 40; state++) {
		plugin->record(NULL, state, NULL);
		plugin->record(handles[0], state, NULL);
		plugin->record((void *)-1, state, NULL);
	}
	plugin->finalize(NULL);
	plugin->finalize(&d);
	printf("ok %p %p\n", handles[0], handles[1]);
}

static char *next_line(char *line, size_t size)
{
	size_t n = 0;

	/* Unbuffered: a forked child reads on where its parent stopped. */
	while (n + 1 < size && read(0, &line[n], 1) == 1 && line[n] != '\n')
		n++;
	line[n] = 0;
	return n ? line : NULL;
}

static void fork_child(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		printf("ok %d\n", getpid());
		return;
	}
	waitpid(child, &status, 0);
	printf("ok %d\n", status);
}

static const char *text(const char *word)
{
	return word && strcmp(word, "NULL") ? strdup(word) : NULL;
}

static long number(const char *word)
{
	return word ? strtol(word, NULL, 0) : 0;
}

static struct collective collective_of(char **w)
{
	return (struct collective){.func = text(w[0]),
				   .count = (unsigned long)number(w[1]),
				   .datatype = text(w[2]),
				   .root = (int)number(w[3]),
				   .sequence = (unsigned long)number(w[4]),
				   .channels = (int)number(w[5]),
				   .algo = text(w[6]),
				   .proto = text(w[7])};
}

static void *parent_of(const char *word)
{
	return number(word) < 0 ? NULL : handles[number(word)];
}

static void show(int handle)
{
	printf("ok %p\n", handle < 0 ? NULL : handles[handle]);
}

int host_main(void)
{
	char line[4096], *w[WORDS + 1] = {0};

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (next_line(line, sizeof(line))) {
		char *rest = line;
		int a, b;

		for (int i = 0; i < WORDS; i++)
			w[i] = strsep(&rest, " ");
		a = (int)number(w[1]);
		b = (int)number(w[2]);
		if (!strcmp(w[0], "load")) {
			load(w[1], b);
		} else if (!strcmp(w[0], "unload")) {
			printf("ok %d\n", dlclose(library));
		} else if (!strcmp(w[0], "init")) {
			call_init(&contexts[a], &mask, strtoul(w[2], NULL, 0), (int)number(w[3]),
				  (int)number(w[4]), text(w[5]));
			printf("ok %p %d\n", contexts[a], mask);
		} else if (!strcmp(w[0], "inits")) {
			inits(a);
		} else if (!strcmp(w[0], "mask")) {
			printf("ok %d\n", mask);
		} else if (!strcmp(w[0], "setmask")) {
			mask = a;
			printf("ok\n");
		} else if (!strcmp(w[0], "group")) {
			start_api(a, b, NCCL_GROUP, 0);
			launch = handles[b];
			show(b);
		} else if (!strcmp(w[0], "launch")) {
			launch = handles[a];
			printf("ok\n");
		} else if (!strcmp(w[0], "api")) {
			start_api(a, b, (unsigned)number(w[3]), (int)number(w[4]));
			show(b);
		} else if (!strcmp(w[0], "coll")) {
			struct collective c = collective_of(w + 4);

			start_coll(a, b, parent_of(w[3]), &c, w[12] != NULL);
			show(b);
		} else if (!strcmp(w[0], "p2p")) {
			struct collective c = collective_of(w + 4);

			start_p2p(a, b, parent_of(w[3]), &c);
			show(b);
		} else if (!strcmp(w[0], "ce")) {
			struct collective c = collective_of(w + 4);

			start_ce(a, b, parent_of(w[3]), &c);
			show(b);
		} else if (!strcmp(w[0], "kernel")) {
			start_kernel(a, b, parent_of(w[3]), (int)number(w[4]),
				     (unsigned long)number(w[5]));
			show(b);
		} else if (!strcmp(w[0], "state")) {
			struct nccl_state_args args = {(uint64_t)number(w[2])};

			plugin->record(handles[a], NCCL_KERNEL_CH_STOP, &args);
			printf("ok\n");
		} else if (!strcmp(w[0], "stop")) {
			if (handles[a] == launch)
				launch = NULL;
			plugin->stop(handles[a]);
			printf("ok\n");
		} else if (!strcmp(w[0], "finalize")) {
			plugin->finalize(contexts[a]);
			printf("ok\n");
		} else if (!strcmp(w[0], "run")) {
			struct collective c = collective_of(w + 3);

			run(a, b, &c);
			printf("ok\n");
		} else if (!strcmp(w[0], "sealed")) {
			struct collective c = collective_of(w + 3);

			sealed(a, b, &c);
		} else if (!strcmp(w[0], "null")) {
			everything_null();
		} else if (!strcmp(w[0], "sleep")) {
			usleep((useconds_t)a * 1000);
			printf("ok\n");
		} else if (!strcmp(w[0], "fork")) {
			fork_child();
		} else {
			printf("failed no command %s\n", w[0]);
		}
	}
	return 0;
}
