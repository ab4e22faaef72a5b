/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the simulation, from the environment:
 *
 *   CPUNCCL_VERSION          library to be, 22602 … 23203 (RCCL: 22606 … 23102)
 *   CPUNCCL_CHANNELS         channels of a collective, 1 … 64 (2)
 *   CPUNCCL_LATENCY_NS       of a collective or message (10000)
 *   CPUNCCL_BANDWIDTH        bytes per second of a rank's link (50e9)
 *   CPUNCCL_TRANSFER_JITTER  relative sigma of transfer times (0)
 *   CPUNCCL_LINKS            slow links, "3-4:0.5,6-*:0.25": job ranks and factor of bandwidth
 *   CPUNCCL_LAUNCH_NS        planned host time of one call (0)
 *   CPUNCCL_POLL_US          delay of KernelCh callbacks (500)
 *   CPUNCCL_HURRY            1: nobody sleeps, planned time runs ahead of the real one
 *   CPUNCCL_CLOCK            device clock, see clock.c
 *   CPUNCCL_MISBEHAVE        list of names below
 *   CPUNCCL_ETC              folder of nccl.conf and rccl.conf instead of /etc
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "internal.h"

#ifdef CPUNCCL_RCCL
#define IS_RCCL true
#define DEFAULT_VERSION 23004
#define LIBRARY "rccl"
/* What a reader of the file finds where a real library has its banner. */
__attribute__((used)) static const char banner[] = "RCCL version 2.30.4-cpunccl";
#else
#define IS_RCCL false
#define DEFAULT_VERSION 23203
#define LIBRARY "nccl"
__attribute__((used)) static const char banner[] = "NCCL version 2.32.3-cpunccl";
#endif

static const char *const names[MISBEHAVIOURS] = {
    [LOST_STOP] = "lost-stop",
    [LOST_PAIR] = "lost-pair",
    [STOP_BEFORE_START] = "stop-before-start",
    [FEWER_CHANNELS] = "fewer-channels",
    [CHANNEL_OVERFLOW] = "channel-overflow",
    [OVERRUN] = "overrun",
    [REPEATED_STOP] = "repeated-stop",
    [LATE_KERNEL] = "late-kernel",
    [AFTER_FINALIZE] = "after-finalize",
    [NULL_CONTEXT] = "null-context",
    [NULL_PARENT] = "null-parent",
    [CONCURRENT_INIT] = "concurrent-init",
};

#define LINKS 64
static struct {
	int rank, other;
	double factor;
} links[LINKS];
static int link_count;
static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;

static struct settings values;

static double setting(const char *name, double otherwise, double least, double most)
{
	const char *text = getenv(name);
	char *end;

	if (!text || !*text)
		return otherwise;
	double value = strtod(text, &end);
	if (*end || !(value >= least && value <= most)) {
		fprintf(stderr, "cpunccl: %s=%s: not a number between %g and %g\n", name, text,
			least, most);
		exit(2);
	}
	return value;
}

static void read_links(void)
{
	const char *text = getenv("CPUNCCL_LINKS");

	while (text && *text) {
		int rank, other = -1, used = 0;
		double factor;

		if (sscanf(text, "%d-%d:%lf%n", &rank, &other, &factor, &used) != 3 &&
		    sscanf(text, "%d-*:%lf%n", &rank, &factor, &used) != 2) {
			fprintf(stderr, "cpunccl: CPUNCCL_LINKS at \"%s\": want RANK-RANK:FACTOR\n",
				text);
			exit(2);
		}
		cpunccl_set_link(rank, other, factor);
		text += used;
		text += *text == ',';
	}
}

static void read_misbehaviours(void)
{
	char list[512];
	const char *text = getenv("CPUNCCL_MISBEHAVE");

	snprintf(list, sizeof list, "%s", text ? text : "");
	for (char *rest, *word = strtok_r(list, ", ", &rest); word;
	     word = strtok_r(0, ", ", &rest)) {
		int known = 0;

		for (int i = 0; i < MISBEHAVIOURS; i++) {
			if (!strcmp(word, names[i]) || !strcmp(word, "all"))
				values.misbehave[i] = true, known = 1;
		}
		if (!known) {
			fprintf(stderr, "cpunccl: CPUNCCL_MISBEHAVE: no misbehaviour \"%s\"\n",
				word);
			exit(2);
		}
	}
}

static void read_settings(void)
{
	values.rccl = IS_RCCL;
	values.version = (int)setting("CPUNCCL_VERSION", DEFAULT_VERSION, 20000, 29999);
	values.channels = (int)setting("CPUNCCL_CHANNELS", 2, 1, MAX_CHANNELS);
	values.latency_ns = (int64_t)setting("CPUNCCL_LATENCY_NS", 10000, 0, 1e12);
	values.bytes_per_ns = setting("CPUNCCL_BANDWIDTH", 50e9, 1, 1e15) / 1e9;
	values.transfer_jitter = setting("CPUNCCL_TRANSFER_JITTER", 0, 0, 1);
	values.launch_ns = (int64_t)setting("CPUNCCL_LAUNCH_NS", 0, 0, 1e9);
	values.poll_ns = (int64_t)(1000 * setting("CPUNCCL_POLL_US", 500, 0, 1e7));
	values.hurry = setting("CPUNCCL_HURRY", 0, 0, 1) > 0;
	read_misbehaviours();
	read_links();
}

const struct settings *settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_settings);
	return &values;
}

void cpunccl_set_link(int rank, int other, double factor)
{
	int i;

	pthread_mutex_lock(&links_lock);
	for (i = 0; i < link_count; i++) {
		if (links[i].rank == rank && links[i].other == other)
			break;
	}
	if (i < LINKS) {
		links[i].rank = rank;
		links[i].other = other;
		links[i].factor = factor > 1e-6 ? factor : 1e-6;
		link_count += i == link_count;
	}
	pthread_mutex_unlock(&links_lock);
}

static bool covers(int i, int rank, int other)
{
	return links[i].rank == rank && (links[i].other == other || links[i].other < 0);
}

double link_factor(int rank, int other)
{
	double factor = 1;

	settings();
	pthread_mutex_lock(&links_lock);
	for (int i = 0; i < link_count; i++) {
		if (covers(i, rank, other) || covers(i, other, rank))
			factor *= links[i].factor;
	}
	pthread_mutex_unlock(&links_lock);
	return factor;
}

/* NCCL's configuration file: NAME=value, '#' begins a comment line, what is set stays. */
static void read_file(const char *path)
{
	char line[2048];
	FILE *file = fopen(path, "re");

	while (file && fgets(line, sizeof line, file)) {
		line[strcspn(line, "\r\n")] = 0;
		char *name = line + strspn(line, " \t"), *equals = strchr(name, '=');

		if (*name == '#' || !equals || equals == name || strlen(equals + 1) > 1023)
			continue;
		*equals = 0;
		for (char *end = equals; end > name && isspace((unsigned char)end[-1]);)
			*--end = 0;
		setenv(name, equals + 1, 0);
	}
	if (file)
		fclose(file);
}

static void read_files(void)
{
	char path[1024];
	const char *chosen = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
	const char *etc = getenv("CPUNCCL_ETC");

	if (chosen && *chosen) {
		read_file(chosen);
	} else if (home) {
		snprintf(path, sizeof path, "%s/." LIBRARY ".conf", home);
		read_file(path);
	}
	snprintf(path, sizeof path, "%s/" LIBRARY ".conf", etc ? etc : "/etc");
	read_file(path);
}

const char *nccl_variable(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_files);
	const char *value = getenv(name);
	return value && *value ? value : 0;
}
