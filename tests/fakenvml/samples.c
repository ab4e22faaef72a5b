/* Events and GPM. */
#include "fakenvml.h"
#include <stdlib.h>

#define API __attribute__((visibility("default")))
typedef struct device *nvmlDevice_t;

enum { XID = 0x8 };

struct event_set {
	nvmlDevice_t device[MAX_GPUS]; /* those that are registered */
	int given[MAX_GPUS];           /* up to which event */
};

API int nvmlEventSetCreate(struct event_set **set)
{
	int code = begin_plain(__func__);

	if (code == SUCCESS)
		*set = calloc(1, sizeof(**set));
	return code;
}

API int nvmlEventSetFree(struct event_set *set)
{
	free(set);
	return SUCCESS;
}

API int nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code == SUCCESS) {
		*types = XID;
		release();
	}
	return code;
}

API int nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
				 struct event_set *set)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	if (types & XID) {
		set->device[gpu->index] = device;
		for (int e = 0; e < gpu->events; e++)
			if (gpu->event[e].sequence > set->given[gpu->index])
				set->given[gpu->index] = gpu->event[e].sequence;
	}
	release();
	return code;
}

struct event_data {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

/* Does not wait: nobody who polls a driver should. */
API int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned int ms)
{
	int code = begin_plain(__func__);
	struct state *state;

	(void)ms;
	if (code != SUCCESS)
		return code;
	state = acquire();
	code = TIMEOUT;
	for (int g = 0; g < state->gpus && code == TIMEOUT; g++) {
		const struct gpu *gpu = &state->gpu[g];

		for (int e = 0; e < gpu->events && set->device[g]; e++) {
			if (gpu->event[e].sequence <= set->given[g])
				continue;
			set->given[g] = gpu->event[e].sequence;
			*data = (struct event_data){set->device[g], XID,
						    (unsigned long long)gpu->event[e].xid,
						    UINT32_MAX, UINT32_MAX};
			code = SUCCESS;
			break;
		}
	}
	release();
	return code;
}

struct gpm_support {
	unsigned int version, supported;
};

API int nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *support)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code == SUCCESS) {
		support->supported = gpu->has_gpm;
		release();
	}
	return code;
}

struct sample {
	bool taken;
	int gpu, instance;
};

API int nvmlGpmSampleAlloc(struct sample **sample)
{
	*sample = calloc(1, sizeof(**sample));
	return SUCCESS;
}

API int nvmlGpmSampleFree(struct sample *sample)
{
	free(sample);
	return SUCCESS;
}

static int take(const char *function, nvmlDevice_t device, int instance, struct sample *sample)
{
	struct gpu *gpu;
	int code = begin(function, device, &gpu);

	if (code == SUCCESS) {
		*sample = (struct sample){true, gpu->index, instance};
		release();
	}
	return code;
}

API int nvmlGpmSampleGet(nvmlDevice_t device, struct sample *sample)
{
	return take(__func__, device, -1, sample);
}

API int nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, struct sample *sample)
{
	if (instance >= MAX_INSTANCES)
		return INVALID_ARGUMENT;
	return take(__func__, device, (int)instance, sample);
}

struct metric {
	unsigned int id;
	int code;
	double value;
	const char *names[3];
};

struct metrics_get {
	unsigned int version, count;
	struct sample *first, *second;
	struct metric metrics[];
};

API int nvmlGpmMetricsGet(struct metrics_get *get)
{
	const struct sample *a = get->first, *b = get->second;
	struct device device;
	struct gpu *gpu;
	int code;

	if (a == b || !a->taken || !b->taken || a->gpu != b->gpu || a->instance != b->instance)
		return INVALID_ARGUMENT;
	device = (struct device){a->gpu, a->instance};
	code = begin(__func__, &device, &gpu);
	if (code != SUCCESS)
		return code;
	for (unsigned int m = 0; m < get->count; m++) {
		struct metric *metric = &get->metrics[m];
		int row = a->instance + 1;
		bool known = metric->id < MAX_METRICS && gpu->gpm_given[row][metric->id];

		metric->code = known ? SUCCESS : NOT_SUPPORTED;
		metric->value = known ? gpu->gpm[row][metric->id] : 0;
	}
	release();
	return SUCCESS;
}
