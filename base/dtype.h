/* SPDX-License-Identifier: Apache-2.0 */
/* Data types of the tensors that a schedule stores, and conversion of single elements. */
#ifndef TDM_BASE_DTYPE_H
#define TDM_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum tdm_dtype {
    TDM_DTYPE_NONE, /* the tensor does not exist (dtypes.master of a run without master) */
    TDM_DTYPE_FP32,
    TDM_DTYPE_BF16,
    TDM_DTYPE_FP16,
    TDM_DTYPE_REMAINDER16, /* low half of an fp32 master whose high half is the bf16 weight */
    TDM_DTYPE_INT32,
    TDM_DTYPE_FP64,
    TDM_DTYPES
};

/* Bytes of one element; 0 for TDM_DTYPE_NONE. */
uint64_t tdm_dtype_bytes(enum tdm_dtype dtype);

/* "none", "fp32", "bf16", "fp16", "remainder16", "int32", "fp64". */
const char *tdm_dtype_name(enum tdm_dtype dtype);

/* Reads a name. Returns false if it is not one of the above. */
bool tdm_dtype_parse(const char *name, enum tdm_dtype *dtype);

static inline float tdm_bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t tdm_float_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

/* IEEE half precision, round to nearest even, with subnormals, infinities and NaN. */
float tdm_fp16_to_float(uint16_t bits);
uint16_t tdm_float_to_fp16(float value);

#endif
