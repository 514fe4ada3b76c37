/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps, encoded by the driver's cuTensorMapEncodeTiled, whose address is looked up at run
 * time. */
#include "executor/cuda/hopper_maps.h"

#include "executor/cuda/cuda_error.h"

#include <cuda_runtime_api.h>

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static enum tdm_status find_encode(encode_function *encode, struct tdm_error *err)
{
    static void *found; /* a process has one driver, so all threads find the same address */
    if (found == NULL) {
        enum cudaDriverEntryPointQueryResult result;
        void *function = NULL;
#if CUDART_VERSION >= 12050
        enum tdm_status status =
            TDM_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                      cudaEnableDefault, &result),
                     err);
#else
        enum tdm_status status =
            TDM_CUDA(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault,
                                             &result),
                     err);
#endif
        if (status != TDM_OK)
            return status;
        if (result != cudaDriverEntryPointSuccess || function == NULL)
            return tdm_fail(err, TDM_NO_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        found = function;
    }
    *(void **)encode = found;
    return TDM_OK;
}

/* `type`: bf16 or fp32. */
static enum tdm_status encode_map(CUtensorMapDataType type, const void *data, uint32_t rank,
                                  const cuuint64_t *sizes, const cuuint64_t *strides,
                                  const cuuint32_t *box, CUtensorMap *map, struct tdm_error *err)
{
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    encode_function encode = NULL;
    enum tdm_status status = find_encode(&encode, err);
    if (status != TDM_OK)
        return status;
    CUresult result = encode(map, type, rank, (void *)(uintptr_t)data, sizes, strides, box, ones,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS
               ? TDM_OK
               : tdm_fail(err, TDM_INTERNAL, "cuTensorMapEncodeTiled failed with %d", (int)result);
}

enum tdm_status tdm_cuda_map_rows(const void *data, uint64_t tokens, uint32_t heads,
                                  uint32_t head_dim, uint32_t rows, CUtensorMap *map,
                                  struct tdm_error *err)
{
    const uint32_t columns = head_dim / 64;
    const cuuint64_t sizes[3] = {64, tokens, (cuuint64_t)heads * columns};
    const cuuint64_t strides[2] = {(cuuint64_t)heads * head_dim * 2, 128};
    const cuuint32_t box[3] = {64, rows, columns};
    return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, 3, sizes, strides, box, map, err);
}

/* Pages of elements of which a column of 128 bytes has `each`. */
static enum tdm_status map_pages(const struct tdm_attend *a, CUtensorMapDataType type,
                                 const void *data, uint64_t slot_elements, uint32_t each,
                                 uint32_t rows, uint32_t columns, CUtensorMap *map,
                                 struct tdm_error *err)
{
    const uint64_t slots = (a->keys + a->chunk_tokens - 1) / a->chunk_tokens;
    const uint64_t pages = (a->chunk_tokens + a->page_tokens - 1) / a->page_tokens;
    const uint64_t element = 128 / each, row_bytes = (uint64_t)a->kv_heads * a->head_dim * element;
    const cuuint64_t sizes[5] = {each, a->page_tokens,
                                 (cuuint64_t)a->kv_heads * (a->head_dim / each), 2 * pages, slots};
    const cuuint64_t strides[4] = {row_bytes, 128, a->page_tokens * row_bytes,
                                   slot_elements * element};
    const cuuint32_t box[5] = {each, rows, columns, 1, 1};
    return encode_map(type, data, 5, sizes, strides, box, map, err);
}

enum tdm_status tdm_cuda_map_pages(const struct tdm_attend *a, uint32_t rows, uint32_t columns,
                                   CUtensorMap *map, struct tdm_error *err)
{
    return map_pages(a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a->pages.data, a->slot_elements, 64, rows,
                     columns, map, err);
}

enum tdm_status tdm_cuda_map_sums(const struct tdm_attend *a, const void *data, uint32_t rows,
                                  uint32_t columns, CUtensorMap *map, struct tdm_error *err)
{
    return map_pages(a, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, data, a->gradient_slot_elements, 32, rows,
                     columns, map, err);
}
