/* NVML's functions, as far as a monitor calls them. */
#define _GNU_SOURCE
#include "fakenvml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
typedef struct device *nvmlDevice_t;

static struct device devices[MAX_GPUS];

API int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return begin_plain(__func__);
}

API int nvmlInit_v2(void)
{
	return begin_plain(__func__);
}

API int nvmlShutdown(void)
{
	return begin_plain(__func__);
}

API const char *nvmlErrorString(int code)
{
	static const char *const known[] = {
	    [SUCCESS] = "The operation was successful",
	    [INVALID_ARGUMENT] = "Invalid Argument",
	    [NOT_SUPPORTED] = "Not Supported",
	    [NOT_FOUND] = "Not Found",
	    [INSUFFICIENT_SIZE] = "Insufficient Size",
	    [DRIVER_NOT_LOADED] = "Driver Not Loaded",
	    [TIMEOUT] = "Timeout",
	    [GPU_IS_LOST] = "GPU is lost",
	};
	int last = (int)(sizeof(known) / sizeof(*known)) - 1;

	return code >= 0 && code <= last && known[code] ? known[code] : "Unknown Error";
}

API int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	int code = begin_plain(__func__);

	if (code == SUCCESS)
		snprintf(version, size, "999.0-fake");
	return code;
}

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
	int code = begin_plain(__func__);

	if (code == SUCCESS) {
		*count = (unsigned int)acquire()->gpus;
		release();
	}
	return code;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	struct gpu *gpu;
	int code;

	if (index >= MAX_GPUS)
		return INVALID_ARGUMENT;
	devices[index] = (struct device){(int)index, -1};
	code = begin(__func__, &devices[index], &gpu);
	if (code == SUCCESS) {
		*device = &devices[index];
		release();
	}
	return code;
}

static int text_of(const char *function, nvmlDevice_t device, char *text, unsigned int size,
		   bool name)
{
	struct gpu *gpu;
	int code = begin(function, device, &gpu);
	const char *found;

	if (code != SUCCESS)
		return code;
	found = name ? gpu->name : gpu->uuid;
	for (int i = 0; i < gpu->instances; i++)
		if (gpu->instance[i].id == device->instance)
			found = name ? gpu->instance[i].name : gpu->instance[i].uuid;
	code = strlen(found) < size ? SUCCESS : INSUFFICIENT_SIZE;
	if (code == SUCCESS)
		strcpy(text, found);
	release();
	return code;
}

API int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
	return text_of(__func__, device, name, size, true);
}

API int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
	return text_of(__func__, device, uuid, size, false);
}

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char bus_id[32];
};

API int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *info)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	memset(info, 0, sizeof(*info));
	info->domain = gpu->domain;
	info->bus = gpu->bus;
	info->device = gpu->device;
	snprintf(info->bus_id, sizeof(info->bus_id), "%08X:%02X:%02X.0", gpu->domain & 0xffffffff,
		 gpu->bus & 0xff, gpu->device & 0xff);
	release();
	return code;
}

static int value_of(const char *function, nvmlDevice_t device, enum value which, long long *value)
{
	struct gpu *gpu;
	int code = begin(function, device, &gpu);

	if (code != SUCCESS)
		return code;
	if (gpu->given[which])
		*value = gpu->values[which];
	else
		code = NOT_SUPPORTED;
	release();
	return code;
}

static int unsigned_of(const char *function, nvmlDevice_t device, enum value which,
		       unsigned int *value)
{
	long long found;
	int code = value_of(function, device, which, &found);

	if (code == SUCCESS)
		*value = (unsigned int)found;
	return code;
}

/* Calls with the device and one number. */
#define PLAIN(function, which)                                                                     \
	API int function(nvmlDevice_t device, unsigned int *value)                                 \
	{                                                                                          \
		return unsigned_of(__func__, device, which, value);                                \
	}

PLAIN(nvmlDeviceGetCurrPcieLinkGeneration, PCIE_GENERATION)
PLAIN(nvmlDeviceGetMaxPcieLinkGeneration, PCIE_GENERATION_MAX)
PLAIN(nvmlDeviceGetCurrPcieLinkWidth, PCIE_WIDTH)
PLAIN(nvmlDeviceGetMaxPcieLinkWidth, PCIE_WIDTH_MAX)
PLAIN(nvmlDeviceGetPowerUsage, POWER_MW)
PLAIN(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT_MW)
PLAIN(nvmlDeviceGetPersistenceMode, PERSISTENCE)

enum { CLOCK_SM = 1, CLOCK_MEM = 2 };

API int nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
	if (type != CLOCK_SM && type != CLOCK_MEM)
		return INVALID_ARGUMENT;
	return unsigned_of(__func__, device, type == CLOCK_SM ? SM_CLOCK : MEM_CLOCK, clock);
}

API int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *clock)
{
	if (type != CLOCK_SM && type != CLOCK_MEM)
		return INVALID_ARGUMENT;
	return unsigned_of(__func__, device, type == CLOCK_SM ? SM_CLOCK_MAX : MEM_CLOCK_MAX,
			   clock);
}

API int nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *value)
{
	return sensor ? INVALID_ARGUMENT : unsigned_of(__func__, device, TEMPERATURE, value);
}

struct temperature {
	unsigned int version, sensor;
	int temperature;
};

API int nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *out)
{
	long long found;
	int code = out->sensor ? INVALID_ARGUMENT : value_of(__func__, device, TEMPERATURE, &found);

	if (code == SUCCESS)
		out->temperature = (int)found;
	return code;
}

API int nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned int which,
					  unsigned int *value)
{
	if (which != 1 && which != 2)
		return NOT_SUPPORTED;
	return unsigned_of(__func__, device, which == 1 ? SLOWDOWN_LIMIT : MEMORY_LIMIT, value);
}

struct margin {
	unsigned int version;
	int margin;
};

API int nvmlDeviceGetMarginTemperature(nvmlDevice_t device, struct margin *out)
{
	long long found;
	int code = value_of(__func__, device, MARGIN, &found);

	if (code == SUCCESS)
		out->margin = (int)found;
	return code;
}

struct utilisation {
	unsigned int gpu, memory;
};

API int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilisation *out)
{
	out->memory = 0;
	return unsigned_of(__func__, device, UTILISATION, &out->gpu);
}

API int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	long long found;
	int code = value_of(__func__, device, REASONS, &found);

	if (code == SUCCESS)
		*reasons = (unsigned long long)found;
	return code;
}

struct fabric_info {
	unsigned int version;
	unsigned char cluster[16];
	int status;
	unsigned int clique, state, health;
};

API int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric_info *info)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	info->status = (int)gpu->values[FABRIC_STATUS];
	info->state = (unsigned int)gpu->values[FABRIC_STATE];
	info->health = (unsigned int)gpu->values[FABRIC_HEALTH];
	code = gpu->given[FABRIC_STATE] ? SUCCESS : NOT_SUPPORTED;
	release();
	return code;
}

struct field_value {
	unsigned int number, scope;
	int64_t timestamp, latency;
	int type, code;
	union {
		uint64_t u64;
		int32_t i32;
	} value;
};
enum { UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5 };

API int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field_value *values)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	for (int i = 0; i < count; i++) {
		struct field_value *out = &values[i];
		const struct field *field;

		out->value.u64 = 0;
		out->latency = 1;
		out->code = INVALID_ARGUMENT;
		if (out->number >= MAX_FIELDS || out->scope >= MAX_LINKS)
			continue;
		field = &gpu->fields[out->number][out->scope];
		out->code = field->given ? field->code : NOT_SUPPORTED;
		if (out->code != SUCCESS)
			continue;
		if (field->is_signed) {
			out->type = SIGNED_INT;
			out->value.i32 = (int32_t)field->base;
		} else {
			double more = grown(gpu, (int)out->number, (int)out->scope);

			out->type = UNSIGNED_LONG_LONG;
			out->value.u64 = (uint64_t)field->base + (uint64_t)more;
		}
	}
	release();
	return SUCCESS;
}
