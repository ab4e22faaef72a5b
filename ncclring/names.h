/* SPDX-License-Identifier: Apache-2.0 */
/* The strings of the descriptors as numbers of the ring. NULL and unknown names are fine. */
#ifndef STRAGD_NAMES_H
#define STRAGD_NAMES_H

#include <stdint.h>

/* enum stragd_ring_function */
uint8_t names_function(const char *name);

/* ncclDataType_t, 255 = not known; and the size of an element in bytes. Releases that call
 * ncclUint8 "Unknown" make 1 the size of everything that has no name. */
uint8_t names_datatype(const char *name, uint32_t *size);

/* enum stragd_ring_algorithm and enum stragd_ring_protocol, in one byte as a slot has them. */
uint8_t names_algorithm(const char *algorithm, const char *protocol);

#endif
