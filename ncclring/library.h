/* SPDX-License-Identifier: Apache-2.0 */
/* Who loaded us. Init only. */
#ifndef STRAGD_LIBRARY_H
#define STRAGD_LIBRARY_H

#include <stdint.h>

/* Of the file that the code at `caller` is in: its vendor by its file's name, and what its own
 * ncclGetVersion says (0: it has none). */
void library_identify(const void *caller, uint32_t *vendor, uint32_t *version);

#endif
