/* SPDX-License-Identifier: Apache-2.0 */
/* Converts rows of any stored dtype to and from fp32, in which the cpu backend computes. */
#ifndef TDM_EXECUTOR_CONVERT_H
#define TDM_EXECUTOR_CONVERT_H

#include "base/dtype.h"

#include <stdint.h>

/* Reads `count` elements from element `first` of `base`, which holds fp32, bf16 or fp16. */
void tdm_load_row(const void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count,
                  float *out);

/* Writes them, rounded to nearest even. */
void tdm_store_row(void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count,
                   const float *row);

/* Adds a row to stored elements, in fp32. `scratch` holds `count` floats. */
void tdm_add_row(void *base, enum tdm_dtype dtype, uint64_t first, uint64_t count, const float *row,
                 float *scratch);

/* The stored row itself if it is fp32, else a converted copy in `scratch`. */
static inline const float *tdm_view_row(const void *base, enum tdm_dtype dtype, uint64_t first,
                                        uint64_t count, float *scratch)
{
    if (dtype == TDM_DTYPE_FP32)
        return (const float *)base + first;
    tdm_load_row(base, dtype, first, count, scratch);
    return scratch;
}

/* Sum of squares in eight partial sums of double: vectorised, but with one fixed order. */
double tdm_sum_squares(const float *row, uint64_t count);

#endif
