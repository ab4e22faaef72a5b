/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>

#include "loader.h"
#include "ring.h"

static uint32_t vendor_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *file = slash ? slash + 1 : path;

	/* Also where the library is part of another: libtorch_cuda.so, libtorch_hip.so. */
	if (strstr(file, "rccl") || strstr(file, "_hip"))
		return STRAGD_RING_AMD;
	if (strstr(file, "nccl") || strstr(file, "_cuda"))
		return STRAGD_RING_NVIDIA;
	return STRAGD_RING_VENDOR_UNKNOWN;
}

void library_identify(const void *caller, uint32_t *vendor, uint32_t *version)
{
	int (*get_version)(int *) = NULL;
	int number = 0;
	void *library;
	Dl_info info;

	*vendor = STRAGD_RING_VENDOR_UNKNOWN;
	*version = 0;
	if (!dladdr(caller, &info) || !info.dli_fname)
		return;
	*vendor = vendor_of(info.dli_fname);
	library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (!library)
		library = dlopen(NULL, RTLD_NOW); /* the program itself */
	if (!library)
		return;
	*(void **)&get_version = dlsym(library, "ncclGetVersion");
	if (get_version && get_version(&number) == 0 && number > 0)
		*version = (uint32_t)number;
	dlclose(library);
}
