/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "control.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define VARIABLE "STRAGD_RING"

struct quirk {
	uint32_t vendor, from, to, shared_mib, mode;
	const char *reason;
};

static const struct quirk quirks[] = {
#define QUIRK(vendor, from, to, shared_mib, mode, reason)                                          \
	{STRAGD_RING_##vendor, from, to, shared_mib, STRAGD_RING_##mode, reason},
#include "versions.h"
#undef QUIRK
};

static const char *const mode_names[] = {"default", "off", "progress", "full"};

const char *control_mode_name(uint32_t mode)
{
	return mode <= STRAGD_RING_FULL ? mode_names[mode] : "unknown";
}

static uint64_t shared_memory_mib(void)
{
	struct statvfs shm;

	if (statvfs("/dev/shm", &shm) != 0)
		return 0;
	return (uint64_t)shm.f_bavail * shm.f_frsize >> 20;
}

/* The row of the table that fits, from 1; 0 = none. */
static uint32_t quirk_of(const struct process *process)
{
	for (uint32_t i = 0; i < sizeof(quirks) / sizeof(*quirks); i++) {
		const struct quirk *quirk = &quirks[i];

		if (quirk->vendor == process->vendor && process->library >= quirk->from &&
		    process->library <= quirk->to &&
		    (!quirk->shared_mib || shared_memory_mib() < quirk->shared_mib))
			return i + 1;
	}
	return 0;
}

/* The control word that STRAGD_RING asks for; false when it is not one of its values. */
static bool from_environment(const char *value, uint64_t *word)
{
	char *end;
	unsigned long n;

	for (uint32_t mode = STRAGD_RING_OFF; mode <= STRAGD_RING_FULL; mode++)
		if (strcmp(value, mode_names[mode]) == 0) {
			*word = mode;
			return true;
		}
	if (strncmp(value, "1/", 2) != 0 || value[2] < '1' || value[2] > '9')
		return false;
	n = strtoul(value + 2, &end, 10);
	if (*end || n > UINT16_MAX)
		return false;
	*word = STRAGD_RING_FULL | (uint64_t)n << 16;
	return true;
}

static void obey(struct process *process, uint64_t word)
{
	const uint64_t meant = word ? word : process->default_control;
	uint32_t mode = meant & 0xff;

	if (mode == STRAGD_RING_DEFAULT || mode > STRAGD_RING_FULL)
		mode = process->default_control & 0xff;
	STORE(&process->floor, (uint32_t)(meant >> 8 & 0xff));
	STORE(&process->sample, (uint32_t)(meant >> 16 & 0xffff));
	STORE(&process->mode, mode);
	STORE(&process->control_seen, word);
	STORE(&process->ring->mode, mode);
	STORE(&process->ring->control_seen, word);
}

void control_begin(struct process *process, nccl_logger log)
{
	const uint32_t quirk = quirk_of(process);
	const char *wish = secure_getenv(VARIABLE);

	process->default_control = quirk ? quirks[quirk - 1].mode : STRAGD_RING_FULL;
	process->ring->quirk = quirk;
	if (quirk && log)
		log(NCCL_LOG_INFO, NCCL_LOG_PROFILE, __func__, __LINE__, "stragd: %s",
		    quirks[quirk - 1].reason);
	if (wish && *wish && !from_environment(wish, &process->default_control) && log)
		log(NCCL_LOG_INFO, NCCL_LOG_PROFILE, __func__, __LINE__,
		    "stragd: " VARIABLE "=%s is ignored: it is off, progress, full or 1/N with N "
		    "up to 65535",
		    wish);
	obey(process, 0);
}

static bool recorded_block(uint64_t order, uint32_t sample)
{
	return sample <= 1 || order / STRAGD_RING_SAMPLE_BLOCK % sample == 0;
}

bool control_in_sample(const struct process *process, uint64_t order)
{
	return recorded_block(order, LOAD(&process->sample));
}

bool control_in_floor(const struct process *process, uint64_t bytes)
{
	const uint32_t floor = LOAD(&process->floor);

	return floor == 0 || (floor < 64 && bytes >> floor != 0);
}

int control_mask(struct process *process)
{
	const uint32_t sample = LOAD(&process->sample);
	const int chained =
	    process->chain.plugin ? LOAD(&process->chain.mask) & process->chain.events : 0;
	const int calls = NCCL_COLL | NCCL_P2P | (process->api > 5 ? NCCL_CE_COLL : 0);
	uint64_t order;

	if (!process->ring)
		return chained;
	switch (LOAD(&process->mode)) {
	case STRAGD_RING_OFF:
		return chained | NCCL_GROUP;
	case STRAGD_RING_PROGRESS:
		return chained | calls;
	default:
		order = LOAD(&process->ring->order);
		if (!recorded_block(order, sample) && !recorded_block(order + CONTROL_LEAD, sample))
			return chained | calls;
		return chained | calls | NCCL_KERNEL_CH;
	}
}

void control_poll(struct process *process, struct comm *comm)
{
	int mask;

	if (process->ring) {
		const uint64_t word = LOAD(&process->ring->control);

		if (word != LOAD(&process->control_seen))
			obey(process, word);
	}
	mask = control_mask(process);
	/* Only our own changes are written: others (RAS) may set the mask too. */
	if ((uint32_t)mask != LOAD(&comm->mask_written)) {
		STORE(&comm->mask_written, (uint32_t)mask);
		if (LOAD(&comm->mask))
			STORE(LOAD(&comm->mask), mask);
	}
}
