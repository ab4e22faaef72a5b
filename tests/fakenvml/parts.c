/* GPU instances and processes. */
#include "fakenvml.h"

#define API __attribute__((visibility("default")))
typedef struct device *nvmlDevice_t;

static struct device parts[MAX_GPUS][MAX_INSTANCES];

API int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	*current = *pending = gpu->instances > 0;
	release();
	return code;
}

API int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	*count = gpu->instances > 0 ? MAX_INSTANCES : 0;
	release();
	return code;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
					    nvmlDevice_t *part)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	if (index < (unsigned int)gpu->instances) {
		parts[gpu->index][index] = (struct device){gpu->index, gpu->instance[index].id};
		*part = &parts[gpu->index][index];
	} else {
		code = NOT_FOUND;
	}
	release();
	return code;
}

API int nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	if (device->instance >= 0)
		*id = (unsigned int)device->instance;
	else
		code = NOT_SUPPORTED;
	release();
	return code;
}

struct process_info {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

API int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						struct process_info *infos)
{
	struct gpu *gpu;
	int code = begin(__func__, device, &gpu);

	if (code != SUCCESS)
		return code;
	if (*count < (unsigned int)gpu->processes) {
		code = INSUFFICIENT_SIZE;
	} else {
		for (int p = 0; p < gpu->processes; p++) {
			const struct process *process = &gpu->process[p];

			infos[p] = (struct process_info){process->pid, process->bytes,
							 (unsigned int)process->instance, 0};
		}
	}
	*count = (unsigned int)gpu->processes;
	release();
	return code;
}
