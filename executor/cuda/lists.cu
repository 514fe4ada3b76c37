/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sees whom, before attention: the first keys that each token sees, and over lists of pages the inverse
 * lists, by which the block that owns a key page finds its query pages.
 *
 * Inverse lists are bits: they come out the same whatever the order in which they are set. The (key page, list)
 * are sorted by how many query pages read them, so that the longest blocks of the backward start first; which
 * of two equally long ones is first does not matter to what they compute.
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

/* A block a list of a query page. */
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

#define SORT_THREADS 1024u
#define LENGTHS SORT_THREADS /* longer ones are not told apart */

static __device__ uint32_t length_of(const tdm_attend &a, uint64_t item)
{
    const uint64_t words = tdm_attend_words(&a);
    const uint2 *readers = (const uint2 *)a.readers + item * words;
    uint32_t length = 0;
    for (uint64_t i = 0; i < words; i++)
        length += (uint32_t)__popc(readers[i].x);
    return length < LENGTHS ? length : LENGTHS - 1;
}

/* One block. */
static __global__ void __launch_bounds__(SORT_THREADS)
    sort_items(const tdm_attend a, uint64_t items)
{
    __shared__ uint32_t count[LENGTHS], of_warp[SORT_THREADS / TDM_WARP];
    const uint32_t lane = threadIdx.x % TDM_WARP, warp = threadIdx.x / TDM_WARP;
    count[threadIdx.x] = 0;
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < items; i += SORT_THREADS)
        atomicAdd(&count[length_of(a, i)], 1u);
    __syncthreads();
    /* where items of a length begin: behind all longer ones; thread i has length LENGTHS - 1 - i */
    const uint32_t mine = count[LENGTHS - 1 - threadIdx.x];
    uint32_t sum = mine;
    for (uint32_t offset = 1; offset < TDM_WARP; offset *= 2) {
        const uint32_t other = __shfl_up_sync(TDM_FULL_WARP, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    if (lane == TDM_WARP - 1)
        of_warp[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < warp; i++)
        sum += of_warp[i];
    count[LENGTHS - 1 - threadIdx.x] = sum - mine;
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < items; i += SORT_THREADS)
        a.order[atomicAdd(&count[length_of(a, i)], 1u)] = (uint32_t)i;
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
        sort_items<<<1, SORT_THREADS, 0, stream>>>(*a, items);
    }
    return tdm_cuda_status(cudaGetLastError(), "attention range launch", err);
}
