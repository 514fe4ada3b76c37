/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on CUDA cores, in fp32. It serves head dims and
 * dtypes that the tensor cores do not support, and is the reference for those kernels. It works
 * over a range of keys or, page by page, over lists of pages (LISTS).
 *
 * Forward as in FlashAttention-2 (arXiv 2307.08691, algorithm 1): a warp has a row, which is a
 * token's query head. It takes 32 keys at a time. A lane computes one score, and the lanes share
 * the output's dimensions. Backward as in algorithm 2, in two kernels without atomics. In one a
 * warp has a row and sums dQ over its keys. In the other a warp has a key of one KV head, sums dK
 * and dV over the rows that see it, 32 at a time, and adds them to the pages once. 4, 6 and 8 *
 * head_dim FLOPs for each (query head, key).
 *
 *     P = exp(scores - LSE),  D = rowsum(dO * O),  dS = P * (dO V^T - D)
 *     dV = P^T dO,  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/pages.cuh"

#define WARPS 4u
#define THREADS (WARPS * TDM_WARP)
#define OF_LANE (TDM_CUDA_MOST_HEAD_DIM / TDM_WARP) /* dimensions of a lane */

/* The keys that a token sees, in runs: one run, or one for each page of its list. */
template <bool LISTS> struct key_runs {
    const uint32_t *list;
    uint32_t count, from, start, end, first_page;

    __device__ key_runs(const tdm_attend &a, uint64_t token, uint32_t kv_head)
    {
        from = tdm_seen_from(a, false, kv_head)[token];
        end = tdm_attend_last_key(&a, token) + 1;
        count = 1;
        if constexpr (LISTS) {
            list = tdm_list_of(a, token / a.page_tokens, kv_head);
            count = list[0];
            start = tdm_seen_from(a, true, kv_head)[token];
            first_page = tdm_first_page(a);
        }
    }

    __device__ tdm_keys run(const tdm_attend &a, uint32_t number) const
    {
        tdm_keys keys = {from, end};
        if constexpr (LISTS) {
            const uint32_t entry = list[1 + number];
            const uint32_t seen = (entry & TDM_PAGE_WHOLE) != 0 ? start : from;
            keys = tdm_keys_of_page(a, (entry & TDM_PAGE_NUMBER) - first_page);
            keys.first = keys.first > seen ? keys.first : seen;
            keys.end = keys.end < end ? keys.end : end;
        }
        return keys;
    }
};

template <typename Act, typename Kv, bool LISTS>
static __global__ void __launch_bounds__(THREADS) attend_rows(const tdm_attend a, float scale)
{
    extern __shared__ float shared[]; /* [WARPS, head_dim]: the rows' queries */
    const uint32_t warp = threadIdx.x / TDM_WARP, lane = threadIdx.x % TDM_WARP;
    const uint32_t dim = a.head_dim;
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + warp; /* tokens vary slowest */
    const uint64_t token = row / a.query_heads;
    const uint32_t head = (uint32_t)(row % a.query_heads);
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    float *q = shared + warp * dim;
    if (token >= a.tokens)
        return;
    for (uint32_t i = lane; i < dim; i += TDM_WARP)
        q[i] = tdm_get((const Act *)a.q.data, row * dim + i) * scale;
    __syncwarp();

    const Kv *pages = (const Kv *)a.pages.data;
    const uint64_t plane = tdm_plane_of(a);
    const key_runs<LISTS> runs(a, token, kv_head);
    if (LISTS && runs.count == 0)
        return; /* it belongs to another batch */
    float most = -INFINITY, sum = 0.0f, out[OF_LANE] = {};
    for (uint32_t number = 0; number < runs.count; number++) {
        const uint32_t end = runs.run(a, number).end;
        for (uint32_t first = runs.run(a, number).first; first < end; first += TDM_WARP) {
            const uint32_t key = first + lane;
            float score = -INFINITY;
            if (key < end) {
                const Kv *k = pages + tdm_key_at(a, key, kv_head, a.slot_elements);
                score = 0.0f;
                for (uint32_t i = 0; i < dim; i++)
                    score += q[i] * tdm_get(k, i);
            }
            float new_most = score;
            for (unsigned offset = TDM_WARP / 2; offset > 0; offset /= 2)
                new_most = fmaxf(new_most, __shfl_xor_sync(TDM_FULL_WARP, new_most, offset));
            new_most = fmaxf(most, new_most);
            const float rescale = expf(most - new_most), p = expf(score - new_most);
            sum = sum * rescale + tdm_warp_sum(p);
            most = new_most;
            for (uint32_t j = 0; j < OF_LANE; j++)
                out[j] *= rescale;
            const uint32_t count = end - first < TDM_WARP ? end - first : TDM_WARP;
            for (uint32_t k = 0; k < count; k++) {
                const Kv *v = pages + tdm_key_at(a, first + k, kv_head, a.slot_elements) + plane;
                const float share = __shfl_sync(TDM_FULL_WARP, p, k);
#pragma unroll
                for (uint32_t j = 0; j < OF_LANE; j++)
                    if (j * TDM_WARP + lane < dim)
                        out[j] += share * tdm_get(v, j * TDM_WARP + lane);
            }
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < OF_LANE; j++)
        if (j * TDM_WARP + lane < dim)
            tdm_put((Act *)a.out.data, row * dim + j * TDM_WARP + lane, out[j] / sum);
    if (lane == 0)
        a.lse[row] = most + logf(sum);
}

/* d[row] = sum of d_out * out. */
template <typename Act>
static __global__ void __launch_bounds__(THREADS) row_dots(const tdm_attend a)
{
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + threadIdx.x / TDM_WARP;
    const uint32_t lane = threadIdx.x % TDM_WARP;
    if (row >= a.tokens * a.query_heads)
        return;
    float sum = 0.0f;
    for (uint32_t i = lane; a.dots == NULL && i < a.head_dim; i += TDM_WARP)
        sum += tdm_get((const Act *)a.d_out.data, row * a.head_dim + i) *
               tdm_get((const Act *)a.out.data, row * a.head_dim + i);
    sum = a.dots == NULL ? tdm_warp_sum(sum) : a.dots[row];
    if (lane == 0)
        a.d[row] = sum;
}

template <typename Act, typename Kv, bool LISTS>
static __global__ void __launch_bounds__(THREADS) grad_of_rows(const tdm_attend a, float scale)
{
    extern __shared__ float shared[]; /* [WARPS, 2, head_dim]: queries and gradients of the rows */
    const uint32_t warp = threadIdx.x / TDM_WARP, lane = threadIdx.x % TDM_WARP;
    const uint32_t dim = a.head_dim;
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + warp;
    const uint64_t token = row / a.query_heads;
    const uint32_t kv_head = (uint32_t)(row % a.query_heads) / (a.query_heads / a.kv_heads);
    float *q = shared + 2 * warp * dim, *d_out = q + dim;
    if (token >= a.tokens)
        return;
    for (uint32_t i = lane; i < dim; i += TDM_WARP) {
        q[i] = tdm_get((const Act *)a.q.data, row * dim + i) * scale;
        d_out[i] = tdm_get((const Act *)a.d_out.data, row * dim + i);
    }
    __syncwarp();

    const Kv *pages = (const Kv *)a.pages.data;
    const uint64_t plane = tdm_plane_of(a);
    const key_runs<LISTS> runs(a, token, kv_head);
    if (LISTS && runs.count == 0)
        return; /* it belongs to another batch */
    const float lse = a.lse[row], d = a.d[row];
    float dq[OF_LANE] = {};
    for (uint32_t number = 0; number < runs.count; number++) {
        const uint32_t end = runs.run(a, number).end;
        for (uint32_t first = runs.run(a, number).first; first < end; first += TDM_WARP) {
            const uint32_t key = first + lane;
            float ds = 0.0f;
            if (key < end) {
                const Kv *k = pages + tdm_key_at(a, key, kv_head, a.slot_elements), *v = k + plane;
                float score = 0.0f, dp = 0.0f;
                for (uint32_t i = 0; i < dim; i++) {
                    score += q[i] * tdm_get(k, i);
                    dp += d_out[i] * tdm_get(v, i);
                }
                ds = expf(score - lse) * (dp - d);
            }
            const uint32_t count = end - first < TDM_WARP ? end - first : TDM_WARP;
            for (uint32_t n = 0; n < count; n++) {
                const Kv *k = pages + tdm_key_at(a, first + n, kv_head, a.slot_elements);
                const float share = __shfl_sync(TDM_FULL_WARP, ds, n);
#pragma unroll
                for (uint32_t j = 0; j < OF_LANE; j++)
                    if (j * TDM_WARP + lane < dim)
                        dq[j] += share * tdm_get(k, j * TDM_WARP + lane);
            }
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < OF_LANE; j++)
        if (j * TDM_WARP + lane < dim)
            tdm_put((Act *)a.dq.data, row * dim + j * TDM_WARP + lane, dq[j] * scale);
}

/* The tokens that may see a key, in runs: one run, or one for each query page that lists its page.
 * Also gives the first key that each token sees. */
template <bool LISTS> struct token_runs {
    const uint2 *readers;
    uint32_t count, seen_by;

    __device__ token_runs(const tdm_attend &a, uint32_t key, uint32_t kv_head)
    {
        count = 1;
        seen_by = kv_head;
        if constexpr (LISTS) {
            const uint64_t page = tdm_page_of(&a.lists.rule, a.key_token + key);
            readers = tdm_readers_of(a, (uint32_t)page - tdm_first_page(a),
                                     kv_head / (a.kv_heads / a.lists.lists));
            count = (uint32_t)((a.tokens + a.page_tokens - 1) / a.page_tokens);
        }
    }

    /* the run within the tokens [begin, a.tokens); sets *seen */
    __device__ tdm_keys run(const tdm_attend &a, uint32_t number, uint32_t begin,
                            const uint32_t **seen) const
    {
        tdm_keys tokens = {begin, (uint32_t)a.tokens};
        *seen = tdm_seen_from(a, false, seen_by);
        if constexpr (LISTS) {
            const uint2 word = readers[number / 32];
            const uint32_t first = number * (uint32_t)a.page_tokens;
            const uint32_t end = first + (uint32_t)a.page_tokens;
            *seen = tdm_seen_from(a, word.y >> number % 32 & 1, seen_by);
            tokens.first = begin > first ? begin : first;
            tokens.end = tokens.end < end ? tokens.end : end;
            if ((word.x >> number % 32 & 1) == 0)
                tokens.end = 0;
        }
        return tokens;
    }
};

template <typename Act, typename Kv, typename DKv, bool LISTS>
static __global__ void __launch_bounds__(THREADS) grad_of_keys(const tdm_attend a, float scale)
{
    extern __shared__ float shared[]; /* [WARPS, 2, head_dim]: keys and values */
    const uint32_t warp = threadIdx.x / TDM_WARP, lane = threadIdx.x % TDM_WARP;
    const uint32_t dim = a.head_dim, ratio = a.query_heads / a.kv_heads;
    const uint64_t keys = a.keys;
    const uint64_t item = (uint64_t)blockIdx.x * WARPS + warp;
    const uint32_t key = (uint32_t)(item / a.kv_heads), kv_head = (uint32_t)(item % a.kv_heads);
    const uint64_t plane = tdm_plane_of(a);
    float *k = shared + 2 * warp * dim, *v = k + dim;
    if (item / a.kv_heads >= keys)
        return;
    const Kv *page = (const Kv *)a.pages.data + tdm_key_at(a, key, kv_head, a.slot_elements);
    for (uint32_t i = lane; i < dim; i += TDM_WARP) {
        k[i] = tdm_get(page, i);
        v[i] = tdm_get(page, plane + i);
    }
    __syncwarp();

    const uint64_t before = a.first_token - a.key_token; /* keys before the first query */
    float dk[OF_LANE] = {}, dv[OF_LANE] = {};
    /* rows of the KV head: tokens vary slowest, from the first one that is not before the key */
    const uint32_t begin = key > before ? (uint32_t)(key - before) : 0;
    const token_runs<LISTS> runs(a, key, kv_head);
    for (uint32_t number = 0; number < runs.count; number++) {
        const uint32_t *seen;
        const tdm_keys tokens = runs.run(a, number, begin, &seen);
        const uint64_t end = (uint64_t)tokens.end * ratio;
        for (uint64_t first = (uint64_t)tokens.first * ratio; first < end; first += TDM_WARP) {
            const uint64_t mine = first + lane;
            if (seen[first / ratio] > key)
                break; /* the first key that a token sees never falls */
            float p = 0.0f, ds = 0.0f;
            if (mine < end && seen[mine / ratio] <= key) {
                const uint64_t row = mine / ratio * a.query_heads + kv_head * ratio + mine % ratio;
                const Act *q = (const Act *)a.q.data + row * dim;
                const Act *d_out = (const Act *)a.d_out.data + row * dim;
                float score = 0.0f, dp = 0.0f;
                for (uint32_t i = 0; i < dim; i++) {
                    score += tdm_get(q, i) * k[i];
                    dp += tdm_get(d_out, i) * v[i];
                }
                p = expf(score * scale - a.lse[row]);
                ds = p * (dp - a.d[row]);
            }
            const uint64_t count = end - first < TDM_WARP ? end - first : TDM_WARP;
            for (uint32_t n = 0; n < count; n++) {
                const uint64_t other = first + n;
                const uint64_t row =
                    other / ratio * a.query_heads + kv_head * ratio + other % ratio;
                const float of_v = __shfl_sync(TDM_FULL_WARP, p, n);
                const float of_k = __shfl_sync(TDM_FULL_WARP, ds, n);
#pragma unroll
                for (uint32_t j = 0; j < OF_LANE; j++) {
                    const uint32_t i = j * TDM_WARP + lane;
                    if (i < dim) {
                        dv[j] += of_v * tdm_get((const Act *)a.d_out.data, row * dim + i);
                        dk[j] += of_k * tdm_get((const Act *)a.q.data, row * dim + i);
                    }
                }
            }
        }
    }
    const tdm_gradient_key to = tdm_gradient_at(a, key, kv_head);
    DKv *pages = (DKv *)to.data + to.element;
#pragma unroll
    for (uint32_t j = 0; j < OF_LANE; j++) {
        const uint32_t i = j * TDM_WARP + lane;
        if (i < dim) {
            tdm_put(pages, i, (to.add ? tdm_get(pages, i) : 0.0f) + dk[j] * scale);
            tdm_put(pages, plane + i, (to.add ? tdm_get(pages, plane + i) : 0.0f) + dv[j]);
        }
    }
}

static enum tdm_status check(const struct tdm_attend *a, struct tdm_error *err)
{
    if (a->head_dim > TDM_CUDA_MOST_HEAD_DIM)
        return tdm_fail(err, TDM_INPUT, "attention on the GPU takes a head dim up to %u, not %u",
                        TDM_CUDA_MOST_HEAD_DIM, a->head_dim);
    if (a->keys > INT32_MAX)
        return tdm_fail(err, TDM_INPUT, "attention on the GPU takes at most %d keys", INT32_MAX);
    return TDM_OK;
}

extern "C" enum tdm_status tdm_cuda_attention_plain(const struct tdm_attend *a, cudaStream_t stream,
                                                    struct tdm_error *err)
{
    const unsigned blocks = tdm_blocks(a->tokens * a->query_heads, WARPS, INT32_MAX);
    const float scale = (float)(1.0 / sqrt((double)a->head_dim));
    const size_t shared_bytes = WARPS * a->head_dim * sizeof(float);
    const bool lists = a->lists.pages != NULL;
    enum tdm_status status = check(a, err), inner = TDM_OK;
    if (status != TDM_OK)
        return status;
    status = tdm_with_type(a->q.dtype, err, [&](auto *type) {
        using Act = std::remove_pointer_t<decltype(type)>;
        inner = tdm_with_type(a->pages.dtype, err, [&](auto *other) {
            using Kv = std::remove_pointer_t<decltype(other)>;
            auto *of_rows = lists ? attend_rows<Act, Kv, true> : attend_rows<Act, Kv, false>;
            of_rows<<<blocks, THREADS, shared_bytes, stream>>>(*a, scale);
        });
    });
    if (status != TDM_OK || inner != TDM_OK)
        return status != TDM_OK ? status : inner;
    return tdm_cuda_status(cudaGetLastError(), "attention launch", err);
}

extern "C" enum tdm_status tdm_cuda_attention_grad_plain(const struct tdm_attend *a,
                                                         cudaStream_t stream, struct tdm_error *err)
{
    const uint64_t keys = a->keys;
    const unsigned row_blocks = tdm_blocks(a->tokens * a->query_heads, WARPS, INT32_MAX);
    const unsigned key_blocks = tdm_blocks(keys * a->kv_heads, WARPS, INT32_MAX);
    const float scale = (float)(1.0 / sqrt((double)a->head_dim));
    const size_t shared_bytes = 2 * WARPS * a->head_dim * sizeof(float);
    const enum tdm_dtype gradients = a->written.data != NULL ? a->written.dtype : a->added.dtype;
    const bool lists = a->lists.pages != NULL;
    enum tdm_status status = check(a, err), inner = TDM_OK, innermost = TDM_OK;
    if (status != TDM_OK)
        return status;
    status = tdm_with_type(a->q.dtype, err, [&](auto *type) {
        using Act = std::remove_pointer_t<decltype(type)>;
        row_dots<Act><<<row_blocks, THREADS, 0, stream>>>(*a);
        inner = tdm_with_type(a->pages.dtype, err, [&](auto *other) {
            using Kv = std::remove_pointer_t<decltype(other)>;
            auto *of_rows = lists ? grad_of_rows<Act, Kv, true> : grad_of_rows<Act, Kv, false>;
            of_rows<<<row_blocks, THREADS, shared_bytes, stream>>>(*a, scale);
            innermost = tdm_with_type(gradients, err, [&](auto *third) {
                using DKv = std::remove_pointer_t<decltype(third)>;
                auto *of_keys =
                    lists ? grad_of_keys<Act, Kv, DKv, true> : grad_of_keys<Act, Kv, DKv, false>;
                of_keys<<<key_blocks, THREADS, shared_bytes, stream>>>(*a, scale);
            });
        });
    });
    if (status == TDM_OK)
        status = inner == TDM_OK ? innermost : inner;
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "attention_grad launch", err)
                            : status;
}
