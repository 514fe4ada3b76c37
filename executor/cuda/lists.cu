/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sees what, computed before attention: the first key that each token sees and, over lists of
 * pages, the inverse lists. By these the block that owns a key page finds its query pages.
 *
 * Inverse lists are bits, so the order in which they are set does not matter.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/pages.cuh"

#define THREADS 256u

static __device__ uint32_t from_first_key(const tdm_attend &a, uint64_t token)
{
    return token > a.key_token ? (uint32_t)(token - a.key_token) : 0;
}

static __global__ void __launch_bounds__(THREADS) find_from(const tdm_attend a)
{
    const uint64_t t = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= a.tokens)
        return;
    const uint64_t token = a.first_token + t;
    const uint64_t start = tdm_start_of(a.documents, token);
    a.from[t] = from_first_key(a, tdm_near_token(&a.lists.rule, start, token));
    if (a.lists.pages != NULL)
        a.start[t] = from_first_key(a, start);
}

/* One block for each list of a query page. */
static __global__ void __launch_bounds__(THREADS) find_readers(const tdm_attend a)
{
    const uint64_t words = tdm_attend_words(&a);
    const uint32_t list = blockIdx.x % a.lists.lists, query_page = blockIdx.x / a.lists.lists;
    const uint32_t *entries = tdm_list_of(a, query_page, list * (a.kv_heads / a.lists.lists));
    const uint32_t first = tdm_first_page(a), bit = 1u << query_page % 32;
    for (uint32_t i = threadIdx.x; i < entries[0]; i += THREADS) {
        const uint64_t page = (entries[1 + i] & TDM_PAGE_NUMBER) - first;
        uint32_t *word = a.readers + 2 * ((page * a.lists.lists + list) * words + query_page / 32);
        atomicOr(word, bit);
        if ((entries[1 + i] & TDM_PAGE_WHOLE) != 0)
            atomicOr(word + 1, bit);
    }
}

extern "C" enum tdm_status tdm_cuda_attend_from(const struct tdm_attend *a, cudaStream_t stream,
                                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (!a->sight_is_there)
        find_from<<<tdm_blocks(a->tokens, THREADS, INT32_MAX), THREADS, 0, stream>>>(*a);
    if (a->lists.pages != NULL && a->readers != NULL) {
        const uint64_t query_pages = (a->tokens + a->page_tokens - 1) / a->page_tokens;
        const uint64_t items = tdm_attend_key_pages(a) * a->lists.lists;
        const uint64_t bytes = items * tdm_attend_words(a) * 2 * sizeof(*a->readers);
        status = TDM_CUDA(cudaMemsetAsync(a->readers, 0, bytes, stream), err);
        if (status != TDM_OK)
            return status;
        find_readers<<<(unsigned)(query_pages * a->lists.lists), THREADS, 0, stream>>>(*a);
    }
    return tdm_cuda_status(cudaGetLastError(), "attention range launch", err);
}
