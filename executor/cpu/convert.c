/* SPDX-License-Identifier: Apache-2.0 */
/* Converts rows of any stored dtype to and from fp32, in which the cpu backend computes. */
#include "executor/convert.h"

#include "executor/simd.h"

#include <string.h>

static void load_bf16(const uint16_t *restrict in, uint64_t count, float *restrict out)
{
    TDM_SIMD
    for (uint64_t i = 0; i < count; i++)
        out[i] = tdm_bf16_to_float(in[i]);
}

/* Does what tdm_float_to_bf16 does, without branches, so that the loop is vectorised. */
static void store_bf16(uint16_t *restrict out, uint64_t count, const float *restrict row)
{
    TDM_SIMD
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof(bits));
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t nan = (bits >> 16) | 0x40u;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

void tdm_load_row(const void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count,
                  float *out)
{
    if (dtype == TDM_DTYPE_BF16) {
        load_bf16((const uint16_t *)base + first, count, out);
    } else if (dtype == TDM_DTYPE_FP16) {
        const uint16_t *in = (const uint16_t *)base + first;
        for (uint64_t i = 0; i < count; i++)
            out[i] = tdm_fp16_to_float(in[i]);
    } else {
        memcpy(out, (const float *)base + first, count * sizeof(float));
    }
}

void tdm_store_row(void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count,
                   const float *row)
{
    if (dtype == TDM_DTYPE_BF16) {
        store_bf16((uint16_t *)base + first, count, row);
    } else if (dtype == TDM_DTYPE_FP16) {
        uint16_t *out = (uint16_t *)base + first;
        for (uint64_t i = 0; i < count; i++)
            out[i] = tdm_float_to_fp16(row[i]);
    } else if (row != (float *)base + first) {
        memcpy((float *)base + first, row, count * sizeof(float));
    }
}

void tdm_add_row(void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count, const float *row,
                 float *scratch)
{
    float *sum = dtype == TDM_DTYPE_FP32 ? (float *)base + first : scratch;
    if (dtype != TDM_DTYPE_FP32)
        tdm_load_row(base, dtype, first, count, scratch);
    TDM_SIMD
    for (uint64_t i = 0; i < count; i++)
        sum[i] += row[i];
    if (dtype != TDM_DTYPE_FP32)
        tdm_store_row(base, dtype, first, count, scratch);
}

double tdm_sum_squares(const float *row, uint64_t count)
{
    enum { LANES = 8 };
    double lane[LANES] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        TDM_SIMD
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)row[i + j] * (double)row[i + j];
    }
    for (; i < count; i++)
        sum += (double)row[i] * (double)row[i];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}
