/* SPDX-License-Identifier: Apache-2.0 */
/* Data types of tensors: sizes, names, and half precision in software, so that every build of
 * tidemark rounds in the same way. */
#include "base/dtype.h"

#include <stddef.h>

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[TDM_DTYPES] = {
    [TDM_DTYPE_NONE] = {"none", 0},
    [TDM_DTYPE_FP32] = {"fp32", 4},
    [TDM_DTYPE_BF16] = {"bf16", 2},
    [TDM_DTYPE_FP16] = {"fp16", 2},
    [TDM_DTYPE_REMAINDER16] = {"remainder16", 2},
    [TDM_DTYPE_INT32] = {"int32", 4},
    [TDM_DTYPE_FP64] = {"fp64", 8},
};

uint64_t tdm_dtype_bytes(enum tdm_dtype dtype)
{
    return (unsigned)dtype < TDM_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *tdm_dtype_name(enum tdm_dtype dtype)
{
    return (unsigned)dtype < TDM_DTYPES ? dtypes[dtype].name : "unknown";
}

bool tdm_dtype_parse(const char *name, enum tdm_dtype *dtype)
{
    for (unsigned i = 0; i < TDM_DTYPES; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (enum tdm_dtype)i;
            return true;
        }
    }
    return false;
}

float tdm_fp16_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    uint32_t wide;

    if (exponent == 0x1f) {
        wide = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        wide = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        wide = sign;
    } else {
        /* A subnormal is mantissa * 2^-24: shift the leading one into the implicit place. */
        exponent = 113;
        while ((mantissa & 0x400u) == 0) {
            mantissa <<= 1;
            exponent--;
        }
        wide = sign | exponent << 23 | (mantissa & 0x3ffu) << 13;
    }

    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t tdm_float_to_fp16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;

    if (magnitude > 0x7f800000u) /* NaN: keep the upper payload, stay quiet */
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal: at least 2^-14; a carry runs into the exponent */
        uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
    }
    if (magnitude <= 0x33000000u) /* up to 2^-25, which is a tie with zero */
        return (uint16_t)sign;

    /* Subnormal: the significand in units of 2^-24. */
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - (magnitude >> 23);
    uint32_t kept = significand >> shift;
    uint32_t dropped = significand & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    if (dropped > half || (dropped == half && (kept & 1u)))
        kept++;
    return (uint16_t)(sign | kept);
}
