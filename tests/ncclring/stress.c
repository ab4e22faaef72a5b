/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every misbehaviour at once, for the sanitizers:
 *
 *   stress PLUGIN VERSION SECONDS THREADS
 *
 * The threads share contexts and handles and use them at random: early, late, twice, of other
 * communicators, NULL and rubbish; communicators begin and end under them; the control word
 * changes; children are forked that make callbacks of their own. A reader checks slots all the
 * while: what a slot says of bytes must fit its sequence. Exits 0 and prints the counts of the
 * header, or says what is wrong and exits 1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../ncclring/abi.h"
#include "../../ncclring/ring.h"

enum { CONTEXTS = 300, HANDLES = 1 << 14, ENOUGH = 20000 };

#define LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

static const struct nccl_profiler *plugin;
static int version, masks[CONTEXTS];
static void *contexts[CONTEXTS], *handles[HANDLES];
static int over, wrong;
static char *ring; /* our own mapping of it */

int ncclGetVersion(int *number);

int ncclGetVersion(int *number)
{
	*number = 23203;
	return 0;
}

static uint64_t random_number(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void init(uint64_t *state)
{
	const uint64_t at = random_number(state) % CONTEXTS;
	void *context;

	if (version == 3)
		((nccl_init_v3)plugin->init)(&context, &masks[at]);
	else if (version == 4)
		((nccl_init_v4)plugin->init)(&context, &masks[at], "stress", at + 1, 1, 8, 2, NULL);
	else
		((nccl_init_v5)plugin->init)(&context, at + 1, &masks[at], "stress", 1, 8, 2, NULL);
	context = __atomic_exchange_n(&contexts[at], context, __ATOMIC_ACQ_REL);
	if (random_number(state) % 512)
		plugin->finalize(context); /* else its place is lost, as a library's may be */
}

union descriptor {
	struct nccl_descriptor_v3 v3;
	struct nccl_descriptor_v4 v4;
	struct nccl_descriptor_v7 v7;
};

static void *any_handle(uint64_t *state)
{
	const uint64_t r = random_number(state);

	if (r % 64 == 0)
		return NULL;
	if (r % 64 == 1) /* looks like one of ours */
		return (void *)(uintptr_t)((0xb0 + r / 64 % 8) << 56 | random_number(state) >> 8);
	if (r % 64 == 2)
		return (void *)(uintptr_t)random_number(state);
	/* Mostly new ones: the last that were stored. */
	return LOAD(&handles[r / 64 % (r / 4096 % 4 ? 256 : HANDLES)]);
}

static void keep(uint64_t *state, void *handle)
{
	const uint64_t r = random_number(state);

	STORE(&handles[r % (r / 4096 % 4 ? 256 : HANDLES)], handle);
}

static void start(uint64_t *state, unsigned type)
{
	const uint64_t sequence = random_number(state) & 0xffffff;
	void *context = LOAD(&contexts[random_number(state) % (CONTEXTS + 1) % CONTEXTS]);
	void *handle = (void *)1;
	union descriptor d;

	memset(&d, 0, sizeof(d));
	if (version < 5)
		d.v4.type = (uint8_t)type;
	else
		d.v7.type = type;
	d.v7.parent = any_handle(state);
	if (type == NCCL_COLL && version == 3)
		d.v3.coll = (struct nccl_coll_v3){
		    "stress", 5,          sequence, "AllReduce", NULL,   NULL, sequence * 3,
		    0,        "ncclInt8", 4,        1,           "RING", "LL"};
	else if (type == NCCL_COLL)
		d.v4.coll = (struct nccl_coll_v4){sequence,
						  "AllReduce",
						  NULL,
						  NULL,
						  sequence * 3,
						  0,
						  "ncclInt8",
						  (uint8_t)(1 + sequence % 4),
						  1,
						  "RING",
						  "LL"};
	else if (type == NCCL_P2P && version == 3)
		d.v3.p2p = (struct nccl_p2p_v3){
		    "stress", 5, "Send", NULL, "ncclInt8", 9, (int)(sequence % 4000)};
	else if (type == NCCL_P2P)
		d.v4.p2p =
		    (struct nccl_p2p_v4){"Recv", NULL, "ncclInt8", 9, (int)(sequence % 4000), 1};
	else if (type == NCCL_KERNEL_CH) {
		d.v7.kernel_ch.channel =
		    (uint8_t)(random_number(state) % 8 ? sequence % 4 : sequence);
		if (version > 3)
			d.v7.kernel_ch.timer = 1 + sequence;
	} else if (type == NCCL_COLL_API) {
		d.v7.coll_api.graph_captured = sequence & 1;
	}
	plugin->start(context, &handle, &d);
	if (handle == (void *)1) {
		fprintf(stderr, "stress: a handle was not written\n");
		STORE(&wrong, 1);
	}
	keep(state, handle);
}

static void act(uint64_t *state)
{
	const uint64_t r = random_number(state) % 1000;
	struct nccl_state_args args = {random_number(state) >> 40};

	if (r < 1)
		init(state);
	else if (r < 100)
		start(state, NCCL_GROUP);
	else if (r < 250)
		start(state, NCCL_COLL);
	else if (r < 300)
		start(state, NCCL_P2P);
	else if (r < 600)
		start(state, NCCL_KERNEL_CH);
	else if (r < 620)
		start(state, NCCL_COLL_API);
	else if (r < 640)
		start(state, 1u << random_number(state) % 18);
	else if (r < 820)
		plugin->record(any_handle(state), NCCL_KERNEL_CH_STOP, &args);
	else if (r < 830)
		plugin->record(any_handle(state), (int)(r % 40), NULL);
	else
		plugin->stop(any_handle(state));
}

static void *misbehave(void *seed)
{
	uint64_t state = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15ull | 1;

	while (!LOAD(&over))
		for (int i = 0; i < 100; i++)
			act(&state);
	return NULL;
}

/* The ring's place in our own memory; NULL before the first init. */
static char *find_ring(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], *found = NULL;

	while (maps && !found && fgets(line, sizeof(line), maps))
		if (strstr(line, "stragd-ring"))
			found = (char *)strtoul(line, NULL, 16);
	if (maps)
		fclose(maps);
	return found;
}

static void check_slot(uint32_t index)
{
	uint64_t *words = (uint64_t *)(ring + STRAGD_RING_SLOTS_OFFSET) + index * 8, copy[8];
	struct stragd_ring_slot slot;

	copy[0] = LOAD(&words[0]);
	for (int i = 1; i < 8; i++)
		copy[i] = LOAD(&words[i]);
	if (copy[0] == 0 || copy[0] & 1 || LOAD(&words[0]) != copy[0])
		return;
	memcpy(&slot, copy, sizeof(slot));
	if ((slot.function == STRAGD_RING_ALL_REDUCE && slot.bytes != slot.sequence * 3ull) ||
	    (slot.stamp - 2) / 2 % STRAGD_RING_SLOTS != index ||
	    (!(slot.flags & (STRAGD_RING_NO_START | STRAGD_RING_NO_STOP)) &&
	     slot.device_stop < slot.device_start)) {
		fprintf(stderr, "stress: slot %u is torn\n", index);
		STORE(&wrong, 1);
	}
}

static void *read_and_control(void *unused)
{
	uint64_t state = 99;

	(void)unused;
	while (!LOAD(&over)) {
		for (uint32_t i = 0; i < STRAGD_RING_SLOTS; i++)
			check_slot(i);
		STORE(&((struct stragd_ring_header *)ring)->control,
		      random_number(&state) % 4 ? STRAGD_RING_FULL
						: random_number(&state) & 0x3ff0f03);
	}
	return NULL;
}

static void fork_one(void)
{
	int status = 0;
	const pid_t child = fork();

	if (child == 0) {
		uint64_t state = 7;

		for (int i = 0; i < 3000; i++)
			act(&state);
		_exit(LOAD(&wrong));
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
		fprintf(stderr, "stress: a forked child ended with %#x\n", status);
		STORE(&wrong, 1);
	}
}

int main(int argc, char **argv)
{
	const struct stragd_ring_header *header;
	pthread_t threads[64], reader;
	char symbol[] = "ncclProfiler_v0";
	void *library;
	time_t end;
	int n;

	if (argc != 5 || (n = atoi(argv[4])) < 1 || n > 64) {
		fprintf(stderr, "usage: stress PLUGIN VERSION SECONDS THREADS(1..64)\n");
		return 2;
	}
	version = atoi(argv[2]);
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	symbol[sizeof(symbol) - 2] = argv[2][0];
	plugin = library ? dlsym(library, symbol) : NULL;
	if (!plugin) {
		fprintf(stderr, "stress: %s\n", dlerror());
		return 1;
	}
	for (uint64_t state = 3, i = 0; i < CONTEXTS; i++)
		init(&state);
	ring = find_ring();
	if (!ring) {
		fprintf(stderr, "stress: no ring\n");
		return 1;
	}
	header = (const void *)ring;
	for (int i = 0; i < n; i++)
		pthread_create(&threads[i], NULL, misbehave, (void *)(uintptr_t)(i + 1));
	pthread_create(&reader, NULL, read_and_control, NULL);
	/* Longer where the machine is busy, so that there is something to check. */
	for (end = time(NULL) + atoi(argv[3]);
	     time(NULL) < end || (LOAD(&header->order) < ENOUGH && time(NULL) < end + 120);) {
		if (!getenv("STRESS_NO_FORK"))
			fork_one();
		usleep(200000);
	}
	STORE(&over, 1);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	pthread_join(reader, NULL);
	for (uint32_t i = 0; i < STRAGD_RING_SLOTS; i++)
		check_slot(i);
	printf("%llu %llu", (unsigned long long)header->order, (unsigned long long)header->head);
	for (int i = 0; i < 4; i++)
		printf(" %llu", (unsigned long long)header->dropped[i]);
	printf("\n");
	return LOAD(&wrong);
}
