/* SPDX-License-Identifier: Apache-2.0 */
/* Which plugin is loaded, by which name, with which interface, and until when. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "internal.h"
#include "profiler.h"

static struct plugin plugin;
static void *library;
static int users;
static bool failed; /* no second try in this process */
static struct poller *proxy;
static _Atomic int mask;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const struct plugin *profiler(void)
{
	return &plugin;
}

int profiler_mask(void)
{
	return atomic_load_explicit(&mask, memory_order_relaxed);
}

void *profiler_context(const struct ncclComm *comm)
{
	return settings()->misbehave[NULL_CONTEXT] ? 0 : comm->context;
}

static int highest_api(int version)
{
	return version >= 23100   ? 7
	       : version >= 22900 ? 6
	       : version >= 22800 ? 5
	       : version >= 22700 ? 4
	       : version >= 22600 ? 3
				  : 0;
}

static void *open_library(const char *path)
{
	void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!opened && getenv("CPUNCCL_VERBOSE"))
		fprintf(stderr, "cpunccl: %s\n", dlerror());
	return opened;
}

/* RCCL's default name was its own in 2.27 only, as far as is known. */
static const char *default_name(void)
{
	bool own = settings()->rccl && settings()->version / 100 == 227;

	return own ? "librccl-profiler.so" : "libnccl-profiler.so";
}

static void *find_library(void)
{
	const char *wanted = nccl_variable("NCCL_PROFILER_PLUGIN");
	int version = settings()->version;
	char path[1100];
	void *found;

	if (!wanted)
		return open_library(default_name());
	if (version >= 22800 && !strcasecmp(wanted, "none"))
		return 0;
	if (!strncmp(wanted, "STATIC_PLUGIN", strlen(wanted)))
		return open_library(0);
	if ((found = open_library(wanted)) || version < 22600)
		return found;
	size_t length = strlen(wanted);
	bool is_file = strchr(wanted, '/') || (!strncmp(wanted, "lib", 3) && length > 3 &&
					       !strcmp(wanted + length - 3, ".so"));

	if (version >= 22700 && is_file)
		return 0;
	snprintf(path, sizeof path, "libnccl-profiler-%s.so", wanted);
	return open_library(path);
}

static void load(void)
{
	int highest = highest_api(settings()->version);

	failed = true;
	if (!highest || !(library = find_library()))
		return;
	for (int api = highest; api >= 3 && !plugin.table; api--) {
		char symbol[32];

		snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", api);
		plugin.table = dlsym(library, symbol);
		plugin.api = plugin.table ? api : 0;
	}
	failed = !plugin.table;
	if (failed)
		dlclose(library);
	if (getenv("CPUNCCL_VERBOSE"))
		fprintf(stderr, "cpunccl: profiler v%d\n", plugin.api);
}

static void unload(void)
{
	dlclose(library);
	library = 0;
	plugin.table = 0;
	plugin.api = 0;
}

static void plugin_log(int level, unsigned long flags, const char *file, int line,
		       const char *format, ...)
{
	va_list arguments;

	(void)flags;
	if (level > 2 && !getenv("CPUNCCL_VERBOSE"))
		return;
	va_start(arguments, format);
	fprintf(stderr, "cpunccl: plugin %s:%d: ", file, line);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

static int call_init(const struct ncclComm *comm, void **context, uint64_t hash)
{
	int *where = (int *)&mask;

	if (plugin.api == 3)
		return plugin.table->init.v3(context, where);
	if (plugin.api == 4)
		return plugin.table->init.v4(context, where, comm->name, hash, 1, comm->nranks,
					     comm->rank, plugin_log);
	return plugin.table->init.v5(context, hash, where, comm->name, 1, comm->nranks, comm->rank,
				     plugin_log);
}

static void *second_init(void *argument)
{
	const struct ncclComm *comm = argument;
	void *context = 0;

	if (!call_init(comm, &context, comm->hash ^ 0x5ec0d))
		plugin.table->finalize(context);
	return 0;
}

static bool take_plugin(struct ncclComm *comm)
{
	pthread_mutex_lock(&lock);
	if (!plugin.table && !failed)
		load();
	bool there = plugin.table;
	if (there) {
		users++;
		if (settings()->version >= 23100)
			comm->poller = poller_start();
		else if (proxy || (proxy = poller_start()))
			comm->poller = proxy;
	}
	pthread_mutex_unlock(&lock);
	return there;
}

static void give_plugin(struct ncclComm *comm)
{
	struct poller *over = comm->poller == proxy ? 0 : comm->poller;

	pthread_mutex_lock(&lock);
	comm->poller = 0;
	comm->profiled = false;
	if (--users == 0) {
		if (proxy)
			poller_stop(proxy);
		proxy = 0;
		if (over)
			poller_stop(over);
		unload();
	} else if (over) {
		poller_stop(over);
	}
	pthread_mutex_unlock(&lock);
}

ncclResult_t profiler_attach(struct ncclComm *comm)
{
	pthread_t second;
	bool twice = settings()->misbehave[CONCURRENT_INIT];

	if (!take_plugin(comm))
		return ncclSuccess;
	if (!comm->poller)
		return ncclSystemError;
	comm->profiled = true;
	twice = twice && !pthread_create(&second, 0, second_init, comm);
	int result = call_init(comm, &comm->context, comm->hash);
	if (twice)
		pthread_join(second, 0);
	if (result && settings()->version < 22800) {
		/* Off for the whole process. */
		pthread_mutex_lock(&lock);
		failed = true;
		pthread_mutex_unlock(&lock);
		give_plugin(comm);
	} else if (result && settings()->version >= 23003) {
		give_plugin(comm);
	}
	return ncclSuccess;
}

void profiler_detach(struct ncclComm *comm)
{
	if (!comm->profiled)
		return;
	if (settings()->misbehave[AFTER_FINALIZE]) {
		plugin.table->finalize(comm->context);
		poller_drain(comm->poller, comm);
	} else {
		poller_drain(comm->poller, comm);
		plugin.table->finalize(comm->context);
	}
	give_plugin(comm);
}
