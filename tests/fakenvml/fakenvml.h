/* A made-up NVIDIA driver: libnvidia-ml.so.1 as a text file describes it.
 *
 * The file is "gpus.txt" beside the library and is read again whenever it has changed. One line,
 * one fact; N is a GPU's index or "*", S a link or "*":
 *
 *   gpus COUNT                        how many there are (first line)
 *   gpu N name TEXT                   and: uuid TEXT, pci DOMAIN BUS DEVICE (hex)
 *   gpu N set NAME VALUE              what a plain call gives; names: enum value in state.c
 *   gpu N field ID S VALUE            a field value, 64 bits unsigned
 *   gpu N signed ID S VALUE           the same, 32 bits signed
 *   gpu N rate ID S PER_SECOND        what is added to it as time passes
 *   gpu N refuse ID S CODE            the field's own return code instead
 *   gpu N error FUNCTION CODE         what a function returns for this GPU
 *   gpu N hang FUNCTION SECONDS       how long it takes
 *   gpu N lost                        every call about it fails as if it were off the bus
 *   gpu N xid SEQUENCE NUMBER         an event; given once, to those who registered before
 *   gpu N process PID BYTES INSTANCE  a compute process; INSTANCE -1 without MIG
 *   gpu N gpm METRIC VALUE INSTANCE   a GPM metric's mean; INSTANCE -1 for the whole GPU
 *   gpu N mig INSTANCE UUID NAME      a GPU instance
 *   error FUNCTION CODE               what a function without a GPU returns
 *   hang FUNCTION SECONDS             how long it takes
 *   final                             the file is not looked at again: that costs as much as a call
 *
 * What is not said is "not supported".
 */
#ifndef FAKENVML_H
#define FAKENVML_H

#include <stdbool.h>
#include <stdint.h>

enum {
	SUCCESS = 0,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
};

enum {
	MAX_GPUS = 16,
	MAX_FIELDS = 310,
	MAX_LINKS = 37,
	MAX_PROCESSES = 64,
	MAX_EVENTS = 64,
	MAX_INSTANCES = 8,
	MAX_METRICS = 200,
	MAX_RULES = 64,
	TEXT = 96,
};

enum value {
	SM_CLOCK,
	MEM_CLOCK,
	SM_CLOCK_MAX,
	MEM_CLOCK_MAX,
	TEMPERATURE,
	MARGIN,
	SLOWDOWN_LIMIT,
	MEMORY_LIMIT,
	PCIE_GENERATION,
	PCIE_GENERATION_MAX,
	PCIE_WIDTH,
	PCIE_WIDTH_MAX,
	POWER_MW,
	POWER_LIMIT_MW,
	UTILISATION,
	REASONS,
	PERSISTENCE,
	FABRIC_STATE,
	FABRIC_STATUS,
	FABRIC_HEALTH,
	VALUES,
};

struct field {
	bool given;
	bool is_signed;
	int code;
	int64_t base;
	double rate;
};

struct process {
	unsigned int pid;
	unsigned long long bytes;
	int instance;
};

struct event {
	int sequence;
	int xid;
};

struct instance {
	int id;
	char uuid[TEXT];
	char name[TEXT];
};

struct rule {
	char function[TEXT];
	int code;
	double seconds;
};

struct gpu {
	int index;
	char name[TEXT];
	char uuid[TEXT];
	unsigned int domain, bus, device;
	bool given[VALUES];
	long long values[VALUES];
	struct field fields[MAX_FIELDS][MAX_LINKS];
	bool lost;
	int processes;
	struct process process[MAX_PROCESSES];
	int events;
	struct event event[MAX_EVENTS];
	bool has_gpm;
	bool gpm_given[MAX_INSTANCES + 1][MAX_METRICS]; /* the first is the whole GPU */
	double gpm[MAX_INSTANCES + 1][MAX_METRICS];
	int instances;
	struct instance instance[MAX_INSTANCES];
	int rules;
	struct rule rule[MAX_RULES];
};

/* A handle of nvmlDevice_t: a GPU, or one of its instances. */
struct device {
	int gpu;
	int instance; /* -1: the whole GPU */
};

struct state {
	bool final;
	int gpus;
	struct gpu gpu[MAX_GPUS];
	int rules;
	struct rule rule[MAX_RULES];
};

/* The state as the file is now, locked until release(). */
struct state *acquire(void);
void release(void);

/* Begin a call: its hang has passed, *gpu is locked if the result is SUCCESS. */
int begin(const char *function, const struct device *device, struct gpu **gpu);
int begin_plain(const char *function);

/* What has grown on top of a field since the library was loaded. */
double grown(const struct gpu *gpu, int number, int link);

#endif
