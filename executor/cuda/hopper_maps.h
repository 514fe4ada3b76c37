/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps. They describe an array in device memory to Hopper's bulk copy engine (TMA), which
 * copies boxes of it into shared memory, swizzled as hopper_products.cuh describes. A column here
 * is 64 bf16; a row of head_dim elements has head_dim / 64 columns.
 */
#ifndef TDM_EXECUTOR_CUDA_HOPPER_MAPS_H
#define TDM_EXECUTOR_CUDA_HOPPER_MAPS_H

#include "base/status.h"
#include "executor/cuda/kernels.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* bf16 [tokens, heads, head_dim]; dimensions {64, token, column of all heads}. A box has `rows`
 * tokens and all columns of a head. Tokens after the last one are read as zeros. TDM_INTERNAL if
 * the driver refuses. */
enum tdm_status tdm_cuda_map_rows(const void *data, uint64_t tokens, uint32_t heads,
                                  uint32_t head_dim, uint32_t rows, CUtensorMap *map,
                                  struct tdm_error *err);

/* Pages of K and V (pages.cuh); dimensions {64, key in its page, column of all KV heads, plane: K
 * or V of a page, slot}. A box has `rows` keys of one page, and `columns` columns. */
enum tdm_status tdm_cuda_map_pages(const struct tdm_attend *attend, uint32_t rows, uint32_t columns,
                                   CUtensorMap *map, struct tdm_error *err);

/* The same of fp32 sums of dK and dV at `data`, which is written or added to. A column is 32 fp32.
 */
enum tdm_status tdm_cuda_map_sums(const struct tdm_attend *attend, const void *data, uint32_t rows,
                                  uint32_t columns, CUtensorMap *map, struct tdm_error *err);

#ifdef __cplusplus
}
#endif

#endif
