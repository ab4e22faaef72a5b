/* SPDX-License-Identifier: Apache-2.0 */
/* madvise of a sandbox that does not know MADV_WIPEONFORK; to be preloaded. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *address, size_t length, int advice)
{
	if (advice == 18 /* MADV_WIPEONFORK */) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, address, length, advice);
}
