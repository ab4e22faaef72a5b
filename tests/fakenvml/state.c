/* The text file, read into tables. */
#define _GNU_SOURCE
#include "fakenvml.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const char *const value_names[VALUES] = {
    [SM_CLOCK] = "sm_clock",
    [MEM_CLOCK] = "mem_clock",
    [SM_CLOCK_MAX] = "sm_clock_max",
    [MEM_CLOCK_MAX] = "mem_clock_max",
    [TEMPERATURE] = "temperature",
    [MARGIN] = "margin",
    [SLOWDOWN_LIMIT] = "slowdown_limit",
    [MEMORY_LIMIT] = "memory_limit",
    [PCIE_GENERATION] = "pcie_generation",
    [PCIE_GENERATION_MAX] = "pcie_generation_max",
    [PCIE_WIDTH] = "pcie_width",
    [PCIE_WIDTH_MAX] = "pcie_width_max",
    [POWER_MW] = "power_mw",
    [POWER_LIMIT_MW] = "power_limit_mw",
    [UTILISATION] = "utilisation",
    [REASONS] = "reasons",
    [PERSISTENCE] = "persistence",
    [FABRIC_STATE] = "fabric_state",
    [FABRIC_STATUS] = "fabric_status",
    [FABRIC_HEALTH] = "fabric_health",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state state;
static double accumulated[MAX_GPUS][MAX_FIELDS][MAX_LINKS];
static double settled; /* seconds up to which they are */
static struct stat last;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Rates change when the file does: what has grown until then stays. */
static void settle(void)
{
	double time = now();

	for (int g = 0; g < state.gpus; g++)
		for (int f = 0; f < MAX_FIELDS; f++)
			for (int l = 0; l < MAX_LINKS; l++)
				accumulated[g][f][l] +=
				    state.gpu[g].fields[f][l].rate * (time - settled);
	settled = time;
}

double grown(const struct gpu *gpu, int number, int link)
{
	double since = now() - settled;

	return accumulated[gpu->index][number][link] + gpu->fields[number][link].rate * since;
}

static void path_of_file(char *path, size_t size)
{
	Dl_info info;
	const char *slash;

	if (!dladdr((void *)acquire, &info)) {
		path[0] = '\0';
		return;
	}
	slash = strrchr(info.dli_fname, '/');
	snprintf(path, size, "%.*s/gpus.txt", slash ? (int)(slash - info.dli_fname) : 0,
		 info.dli_fname);
}

static void bad(const char *line)
{
	fprintf(stderr, "fakenvml: cannot read this line: %s", line);
	abort();
}

static void read_field(struct gpu *gpu, const char *what, const char *line, int at)
{
	int number, first = 0, end = MAX_LINKS;
	char scope[16];
	double value;

	if (sscanf(line + at, "%d %15s %lf", &number, scope, &value) != 3 || number < 0 ||
	    number >= MAX_FIELDS)
		bad(line);
	if (strcmp(scope, "*") != 0) {
		first = atoi(scope);
		end = first + 1;
		if (first < 0 || end > MAX_LINKS)
			bad(line);
	}
	for (int l = first; l < end; l++) {
		struct field *field = &gpu->fields[number][l];

		if (strcmp(what, "rate") == 0) {
			field->rate = value;
		} else if (strcmp(what, "refuse") == 0) {
			field->code = (int)value;
		} else {
			field->base = strtoll(strrchr(line, ' '), NULL, 10);
			field->is_signed = what[0] == 's';
		}
		field->given = true;
	}
}

static void read_rule(struct rule *rules, int *count, const char *what, const char *line, int at)
{
	struct rule *rule = &rules[*count];
	double number;

	if (*count == MAX_RULES || sscanf(line + at, "%95s %lf", rule->function, &number) != 2)
		bad(line);
	if (what[0] == 'h')
		rule->seconds = number;
	else
		rule->code = (int)number;
	++*count;
}

static void read_value(struct gpu *gpu, const char *line, int at)
{
	char name[TEXT];
	long long value;

	if (sscanf(line + at, "%95s %lld", name, &value) != 2)
		bad(line);
	for (int v = 0; v < VALUES; v++) {
		if (strcmp(name, value_names[v]) == 0) {
			gpu->given[v] = true;
			gpu->values[v] = value;
			return;
		}
	}
	bad(line);
}

static bool read_gpu(struct gpu *gpu, const char *what, const char *line, int at)
{
	const char *rest = line + at;

	if (strcmp(what, "name") == 0)
		return sscanf(rest, "%95[^\n]", gpu->name) == 1;
	if (strcmp(what, "uuid") == 0)
		return sscanf(rest, "%95s", gpu->uuid) == 1;
	if (strcmp(what, "pci") == 0)
		return sscanf(rest, "%x %x %x", &gpu->domain, &gpu->bus, &gpu->device) == 3;
	if (strcmp(what, "lost") == 0)
		return gpu->lost = true;
	if (strcmp(what, "process") == 0) {
		struct process *process = &gpu->process[gpu->processes];

		return gpu->processes++ < MAX_PROCESSES &&
		       sscanf(rest, "%u %llu %d", &process->pid, &process->bytes,
			      &process->instance) == 3;
	}
	if (strcmp(what, "xid") == 0) {
		struct event *event = &gpu->event[gpu->events];

		return gpu->events++ < MAX_EVENTS &&
		       sscanf(rest, "%d %d", &event->sequence, &event->xid) == 2;
	}
	if (strcmp(what, "mig") == 0) {
		struct instance *instance = &gpu->instance[gpu->instances];

		return gpu->instances++ < MAX_INSTANCES &&
		       sscanf(rest, "%d %95s %95[^\n]", &instance->id, instance->uuid,
			      instance->name) == 3;
	}
	if (strcmp(what, "gpm") == 0) {
		int metric, instance;
		double value;

		if (sscanf(rest, "%d %lf %d", &metric, &value, &instance) != 3 || metric < 0 ||
		    metric >= MAX_METRICS || instance < -1 || instance >= MAX_INSTANCES)
			return false;
		gpu->has_gpm = true;
		gpu->gpm_given[instance + 1][metric] = true;
		gpu->gpm[instance + 1][metric] = value;
		return true;
	}
	return false;
}

static void read_line(const char *line)
{
	char who[16], what[16];
	int at = 0, first = 0, end = state.gpus;

	if (sscanf(line, "gpus %d", &state.gpus) == 1) {
		if (state.gpus < 0 || state.gpus > MAX_GPUS)
			bad(line);
		for (int g = 0; g < state.gpus; g++)
			state.gpu[g].index = g;
		return;
	}
	if (strcmp(line, "final\n") == 0) {
		state.final = true;
		return;
	}
	if (sscanf(line, "gpu %15s %15s %n", who, what, &at) == 2 && at > 0) {
		if (strcmp(who, "*") != 0) {
			first = atoi(who);
			end = first + 1;
		}
		if (first < 0 || end > state.gpus)
			bad(line);
		for (int g = first; g < end; g++) {
			struct gpu *gpu = &state.gpu[g];

			if (strcmp(what, "set") == 0)
				read_value(gpu, line, at);
			else if (strcmp(what, "error") == 0 || strcmp(what, "hang") == 0)
				read_rule(gpu->rule, &gpu->rules, what, line, at);
			else if (strcmp(what, "field") == 0 || strcmp(what, "signed") == 0 ||
				 strcmp(what, "rate") == 0 || strcmp(what, "refuse") == 0)
				read_field(gpu, what, line, at);
			else if (!read_gpu(gpu, what, line, at))
				bad(line);
		}
		return;
	}
	if (sscanf(line, "%15s %n", what, &at) == 1 &&
	    (strcmp(what, "error") == 0 || strcmp(what, "hang") == 0)) {
		read_rule(state.rule, &state.rules, what, line, at);
		return;
	}
	bad(line);
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void refresh(void)
{
	char path[4096], line[1024];
	struct stat found;
	FILE *file;

	if (state.final)
		return;
	path_of_file(path, sizeof(path));
	if (stat(path, &found) != 0 || same(&found, &last))
		return;
	file = fopen(path, "r");
	if (!file)
		return;
	settle();
	last = found;
	memset(&state, 0, sizeof(state));
	while (fgets(line, sizeof(line), file))
		if (line[0] != '\n' && line[0] != '#')
			read_line(line);
	fclose(file);
}

struct state *acquire(void)
{
	pthread_mutex_lock(&lock);
	refresh();
	return &state;
}

void release(void)
{
	pthread_mutex_unlock(&lock);
}

static int follow(const struct rule *rules, int count, const char *function, double *seconds)
{
	int code = SUCCESS;

	for (int r = 0; r < count; r++) {
		if (strcmp(rules[r].function, function) == 0) {
			code = rules[r].code ? rules[r].code : code;
			*seconds = rules[r].seconds > *seconds ? rules[r].seconds : *seconds;
		}
	}
	return code;
}

static void wait_for(double seconds)
{
	struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};

	while (seconds > 0 && nanosleep(&left, &left) != 0)
		;
}

int begin_plain(const char *function)
{
	double seconds = 0;
	struct state *s = acquire();
	int code = follow(s->rule, s->rules, function, &seconds);

	release();
	wait_for(seconds);
	return code;
}

int begin(const char *function, const struct device *device, struct gpu **gpu)
{
	double seconds = 0;
	struct state *s = acquire();
	int code = INVALID_ARGUMENT;

	if (device && device->gpu >= 0 && device->gpu < s->gpus) {
		struct gpu *found = &s->gpu[device->gpu];

		code = follow(found->rule, found->rules, function, &seconds);
		if (seconds > 0) { /* the others are not held up */
			release();
			wait_for(seconds);
			acquire();
		}
		if (found->lost)
			code = GPU_IS_LOST;
		*gpu = found;
	}
	if (code != SUCCESS)
		release();
	return code;
}
