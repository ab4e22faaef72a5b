/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process with a ring, for tests: writes as ring.h says, or as no plugin would. Takes orders
 * from stdin, one a line, and answers each with one line.
 *
 *   ring SLOTS COMMS CLOCK HZ   make the ring: ok PID
 *   raw KIND                    a file that pretends: unsealed, huge, short, big, nomagic, layout,
 *                               cut; or locked, a ring that nobody else can write
 *   comm PLACE HASH RANK RANKS NAME
 *   write THREADS COUNT         that many records by each thread: ok HEAD DROPPED
 *   hole COUNT                  take tickets and never write them
 *   head VALUE                  set the count of tickets
 *   mode MODE                   set the mode in force, and obey the control word
 *   control                     what the daemon asks for: ok WORD
 *   scribble                    write garbage over all of it until the next order
 *   load PATH                   dlopen
 */
#define _GNU_SOURCE
#include "../../ncclring/ring.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static unsigned char *base;
static size_t bytes;
static struct stragd_ring_header *header;
static struct stragd_ring_comm *comms;
static struct stragd_ring_slot *slots;
static uint64_t slot_count;
static atomic_int scribbling;
static int last_fd;

/* The device's clock: its own epoch, the rate of the header. */
#define EPOCH 1790000000000000000ull

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int make_file(size_t size, unsigned flags, int seals)
{
	int fd = memfd_create(STRAGD_RING_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (fd < 0 || ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0)
		return -1;
	bytes = size;
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (base == MAP_FAILED)
		return -1;
	last_fd = fd;
	header = (void *)base;
	return 0;
}

static void fill_header(uint32_t count, uint32_t comm_count, uint32_t clock, uint64_t hz)
{
	header->layout = STRAGD_RING_LAYOUT;
	header->header_bytes = sizeof(*header);
	header->comm_bytes = sizeof(struct stragd_ring_comm);
	header->comm_count = comm_count;
	header->slot_bytes = sizeof(struct stragd_ring_slot);
	header->slot_count = count;
	header->comms_offset = STRAGD_RING_COMMS_OFFSET;
	header->slots_offset = STRAGD_RING_COMMS_OFFSET + comm_count * sizeof(*comms);
	header->total_bytes = header->slots_offset + (uint64_t)count * sizeof(*slots);
	header->start_ns = now_ns();
	header->pid = (uint32_t)getpid();
	header->vendor = STRAGD_RING_NVIDIA;
	header->clock = clock;
	header->clock_hz = hz;
	header->api = 5;
	header->library = 22803;
	header->mode = STRAGD_RING_FULL;
	comms = (void *)(base + header->comms_offset);
	slots = (void *)(base + header->slots_offset);
	slot_count = count;
	atomic_store_explicit((_Atomic uint64_t *)&header->magic, STRAGD_RING_MAGIC,
			      memory_order_release);
}

static size_t ring_bytes(uint32_t count, uint32_t comm_count)
{
	return STRAGD_RING_COMMS_OFFSET + comm_count * sizeof(*comms) + count * sizeof(*slots);
}

static uint64_t take_ticket(void)
{
	return atomic_fetch_add((_Atomic uint64_t *)&header->head, 1);
}

/* 0 where the slot is somebody else's. */
static int put(const struct stragd_ring_slot *record)
{
	uint64_t ticket = take_ticket();
	struct stragd_ring_slot *slot = &slots[ticket & (slot_count - 1)];
	_Atomic uint64_t *stamp = (_Atomic uint64_t *)&slot->stamp;
	uint64_t old = atomic_load_explicit(stamp, memory_order_relaxed);
	do {
		if ((old & 1) || old > STRAGD_RING_WRITING(ticket))
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(
	    stamp, &old, STRAGD_RING_WRITING(ticket), memory_order_acquire, memory_order_relaxed));
	atomic_thread_fence(memory_order_release);
	const uint64_t *from = (const uint64_t *)record;
	for (size_t word = 1; word < sizeof(*slot) / 8; word++)
		atomic_store_explicit((_Atomic uint64_t *)slot + word, from[word],
				      memory_order_relaxed);
	atomic_store_explicit(stamp, STRAGD_RING_WRITTEN(ticket), memory_order_release);
	return 1;
}

static uint64_t device_time(uint64_t host)
{
	if (header->clock == STRAGD_RING_CLOCK_HOST)
		return host;
	double hz = header->clock == STRAGD_RING_CLOCK_NS || !header->clock_hz
			? 1e9
			: (double)header->clock_hz;
	return EPOCH + (uint64_t)((double)(host - header->start_ns) * hz / 1e9);
}

struct work {
	uint32_t thread;
	uint64_t count;
};

/* Bytes are thread and number, peer is their sum: a torn record contradicts itself. */
static void *write_records(void *argument)
{
	struct work *work = argument;
	for (uint64_t n = 0; n < work->count; n++) {
		uint64_t host = now_ns();
		uint64_t order = atomic_fetch_add((_Atomic uint64_t *)&header->order, 1);
		struct stragd_ring_slot slot = {
		    .device_start = device_time(host - 500),
		    .device_stop = device_time(host),
		    .host_ns = host - 1000,
		    .bytes = (uint64_t)work->thread << 32 | n,
		    .sequence = (uint32_t)n,
		    .peer = (int32_t)(work->thread + (uint32_t)n),
		    .order = (uint32_t)order,
		    .poll_delta = 1000 / 64 + 1,
		    .comm = 1 << 8,
		    .function = STRAGD_RING_ALL_REDUCE,
		    .datatype = 7,
		    .channels = 2,
		    .algorithm = STRAGD_RING_RING << 4 | STRAGD_RING_SIMPLE,
		};
		if (!put(&slot))
			atomic_fetch_add(
			    (_Atomic uint64_t *)&header->dropped[STRAGD_RING_DROP_CLAIM], 1);
	}
	return NULL;
}

static void write_all(uint32_t threads, uint64_t count)
{
	pthread_t ids[64];
	struct work work[64];
	if (threads > 64)
		threads = 64;
	for (uint32_t i = 0; i < threads; i++) {
		work[i] = (struct work){i, count};
		pthread_create(&ids[i], NULL, write_records, &work[i]);
	}
	for (uint32_t i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	struct stragd_ring_progress *p = &comms[0].progress[STRAGD_RING_ALL_REDUCE];
	p->enqueued += threads * count;
	p->started = p->completed = p->enqueued;
	p->enqueued_ns = now_ns();
}

static uint64_t random_word(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Garbage of the sizes that hurt: anything, small numbers, borders, the ring's own values. */
static void *scribble(void *unused)
{
	(void)unused;
	uint64_t state = 88172645463325252ull + (uint64_t)getpid();
	uint64_t words = bytes / 8;
	while (atomic_load_explicit(&scribbling, memory_order_relaxed)) {
		uint64_t place = random_word(&state) % words;
		if (random_word(&state) % 4 == 0)
			place = random_word(&state) % 512; /* the header */
		uint64_t value = random_word(&state);
		if (value % 3 == 0)
			value >>= value % 64;
		else if (value % 3 == 1)
			value = 2 * (atomic_load((_Atomic uint64_t *)&header->head) -
				     value % slot_count) +
				2;
		if (value % 16 == 0) {
			struct stragd_ring_slot slot = {.function = 1 + place % 12};
			for (size_t word = 1; word < 6; word++)
				((uint64_t *)&slot)[word] = random_word(&state) >> (value % 64);
			put(&slot);
			continue;
		}
		if (place == offsetof(struct stragd_ring_header, head) / 8 && value % 4)
			value = header->head + value % 1000;
		atomic_store_explicit((_Atomic uint64_t *)base + place, value,
				      memory_order_relaxed);
	}
	return NULL;
}

static int pretend(const char *kind)
{
	const int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
	size_t size = ring_bytes(64, 16);
	if (!strcmp(kind, "unsealed"))
		return make_file(size, 0, 0) ? -1 : (fill_header(64, 16, 1, 0), 0);
	if (!strcmp(kind, "huge"))
		return make_file(2 << 20, MFD_HUGETLB, fixed);
	if (!strcmp(kind, "short"))
		return make_file(100, 0, fixed);
	if (!strcmp(kind, "big"))
		return make_file(64 << 20, 0, fixed);
	if (!strcmp(kind, "nomagic"))
		return make_file(size, 0, fixed);
	if (make_file(size, 0, fixed))
		return -1;
	fill_header(64, 16, 1, 0);
	if (!strcmp(kind, "locked"))
		return fcntl(last_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
	if (!strcmp(kind, "layout"))
		header->layout = 9;
	else if (!strcmp(kind, "cut"))
		header->slot_count = 128;
	else
		return -1;
	return 0;
}

int main(void)
{
	char line[512], text[256];
	unsigned a, b, c;
	unsigned long long d;
	int rank, ranks;
	pthread_t thread;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		if (atomic_exchange(&scribbling, 0))
			pthread_join(thread, NULL);
		if (sscanf(line, "ring %u %u %u %llu", &a, &b, &c, &d) == 4) {
			if (make_file(ring_bytes(a, b), 0, F_SEAL_SHRINK | F_SEAL_GROW))
				return 1;
			fill_header(a, b, c, d);
			printf("ok %d\n", getpid());
		} else if (sscanf(line, "raw %255s", text) == 1) {
			printf("%s\n", pretend(text) ? "refused" : "ok");
		} else if (sscanf(line, "comm %u %llx %d %d %255s", &a, &d, &rank, &ranks, text) ==
			   5) {
			struct stragd_ring_comm *comm = &comms[a];
			comm->hash = d;
			comm->rank = rank;
			comm->nranks = ranks;
			comm->nnodes = 1;
			comm->generation = 1;
			comm->born_ns = now_ns();
			snprintf(comm->name, sizeof(comm->name), "%.79s", text);
			comm->state = STRAGD_RING_COMM_LIVE;
			printf("ok\n");
		} else if (sscanf(line, "write %u %llu", &a, &d) == 2) {
			write_all(a, d);
			printf("ok %llu %llu\n", (unsigned long long)header->head,
			       (unsigned long long)header->dropped[STRAGD_RING_DROP_CLAIM]);
		} else if (sscanf(line, "hole %u", &a) == 1) {
			while (a--)
				take_ticket();
			printf("ok\n");
		} else if (sscanf(line, "head %llu", &d) == 1) {
			atomic_store((_Atomic uint64_t *)&header->head, d);
			printf("ok\n");
		} else if (sscanf(line, "mode %u", &a) == 1) {
			header->control_seen = header->control;
			header->mode = a;
			printf("ok\n");
		} else if (!strncmp(line, "control", 7)) {
			printf("ok %llu\n", (unsigned long long)atomic_load(
						(_Atomic uint64_t *)&header->control));
		} else if (!strncmp(line, "scribble", 8)) {
			atomic_store(&scribbling, 1);
			pthread_create(&thread, NULL, scribble, NULL);
			printf("ok\n");
		} else if (sscanf(line, "load %255s", text) == 1) {
			printf("%s\n", dlopen(text, RTLD_NOW) ? "ok" : dlerror());
		} else {
			printf("what?\n");
		}
	}
	return 0;
}
