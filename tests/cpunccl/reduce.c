/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions. Ranks are accumulated in order, so every rank gets the same bits. */
#include <string.h>
#include "internal.h"

size_t type_size(ncclDataType_t type)
{
	static const unsigned char sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

	return sizes[type];
}

#define LOOP(T, expression)                                                                        \
	for (size_t i = 0; i < count; i++) {                                                       \
		T a = ((const T *)out)[i], b = ((const T *)in)[i];                                 \
		((T *)out)[i] = (T)(expression);                                                   \
	}                                                                                          \
	break;

#define REDUCTION(name, T)                                                                         \
	static void name(void *out, const void *in, size_t count, ncclRedOp_t op)                  \
	{                                                                                          \
		switch (op) {                                                                      \
		case ncclProd:                                                                     \
			LOOP(T, a *b)                                                              \
		case ncclMax:                                                                      \
			LOOP(T, a > b ? a : b)                                                     \
		case ncclMin:                                                                      \
			LOOP(T, a < b ? a : b)                                                     \
		default:                                                                           \
			LOOP(T, a + b)                                                             \
		}                                                                                  \
	}

REDUCTION(reduce_i8, int8_t)
REDUCTION(reduce_u8, uint8_t)
/* Signed sums wrap as on the device, so they are made without sign. */
REDUCTION(reduce_u32, uint32_t)
REDUCTION(reduce_u64, uint64_t)
REDUCTION(reduce_i32, int32_t)
REDUCTION(reduce_i64, int64_t)
REDUCTION(reduce_f16, _Float16)
REDUCTION(reduce_f32, float)
REDUCTION(reduce_f64, double)

static float from_bfloat(uint16_t bits)
{
	uint32_t wide = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &wide, 4);
	return value;
}

static uint16_t to_bfloat(float value)
{
	uint32_t wide;

	memcpy(&wide, &value, 4);
	if (value != value)
		return 0x7fff;
	return (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16); /* to nearest even */
}

static void reduce_bf16(uint16_t *out, const uint16_t *in, size_t count, ncclRedOp_t op)
{
	for (size_t i = 0; i < count; i++) {
		float a = from_bfloat(out[i]), b = from_bfloat(in[i]);

		reduce_f32(&a, &b, 1, op);
		out[i] = to_bfloat(a);
	}
}

void reduce_into(void *out, const void *in, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
	bool ordered = op == ncclMax || op == ncclMin;

	switch (type) {
	case ncclInt8:
		reduce_i8(out, in, count, op);
		break;
	case ncclUint8:
		reduce_u8(out, in, count, op);
		break;
	case ncclInt32:
		(ordered ? reduce_i32 : reduce_u32)(out, in, count, op);
		break;
	case ncclUint32:
		reduce_u32(out, in, count, op);
		break;
	case ncclInt64:
		(ordered ? reduce_i64 : reduce_u64)(out, in, count, op);
		break;
	case ncclUint64:
		reduce_u64(out, in, count, op);
		break;
	case ncclFloat16:
		reduce_f16(out, in, count, op);
		break;
	case ncclFloat64:
		reduce_f64(out, in, count, op);
		break;
	case ncclBfloat16:
		reduce_bf16(out, in, count, op);
		break;
	default:
		reduce_f32(out, in, count, op);
		break;
	}
}

#define DIVIDE(T, by)                                                                              \
	for (size_t i = 0; i < count; i++)                                                         \
		((T *)out)[i] = (T)(((T *)out)[i] / (by));                                         \
	break;

void reduce_finish(void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int nranks)
{
	if (op != ncclAvg)
		return;
	switch (type) {
	case ncclInt8:
		DIVIDE(int8_t, nranks)
	case ncclUint8:
		DIVIDE(uint8_t, nranks)
	case ncclInt32:
		DIVIDE(int32_t, nranks)
	case ncclUint32:
		DIVIDE(uint32_t, (uint32_t)nranks)
	case ncclInt64:
		DIVIDE(int64_t, nranks)
	case ncclUint64:
		DIVIDE(uint64_t, (uint64_t)nranks)
	case ncclFloat16:
		DIVIDE(_Float16, nranks)
	case ncclFloat64:
		DIVIDE(double, nranks)
	case ncclBfloat16:
		for (size_t i = 0; i < count; i++)
			((uint16_t *)out)[i] =
			    to_bfloat(from_bfloat(((uint16_t *)out)[i]) / (float)nranks);
		break;
	default:
		DIVIDE(float, (float)nranks)
	}
}
