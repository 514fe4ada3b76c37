/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on tensor cores, backward: bf16, head dim 64 or 128.
 *
 * FlashAttention-2 (arXiv 2307.08691, algorithm 2) with mma.sync, in two kernels and without atomics:
 *
 *     P = exp(scores - LSE),  D = rowsum(dO * O),  dS = P * (dO V^T - D)
 *     dV = P^T dO,  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 *
 * grad_of_rows: a block has ROWS tokens of a query head, a warp 16 of them, and walks over the keys: three
 * products, dQ in registers. grad_of_keys: a block has KEYS keys of a KV head, a warp 16 of them, and walks
 * over the tokens that see them, for one after the other of the query heads that read the KV head: four
 * products with keys as rows, dK and dV in registers, which go to the pages once, in fp32. Seven products
 * in place of the five of one kernel that adds up dQ with atomics: sums have one order, so results
 * repeat. Tiles of the other side are copied ahead into one of two stages.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/tiles.cuh"

#define ROWS 128     /* of a block of grad_of_rows */
#define STEP_KEYS 64 /* at a time */
#define KEYS 128     /* of a block of grad_of_keys */
#define STEP_ROWS 64 /* at a time, in two halves */
#define HALF_ROWS 32
#define WARPS 8
#define THREADS (WARPS * 32)
#define LOG2_E 1.4426950408889634f

template <int BLOCKS> static __device__ __forceinline__ void clear(float (&c)[BLOCKS][4])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.0f;
}

/* c = A B^T: 16 rows of tile `a` from `row` on, 8 * BLOCKS rows of tile `b` from `column` on. */
template <int D, int BLOCKS>
static __device__ __forceinline__ void multiply_turned(float (&c)[BLOCKS][4], __nv_bfloat16 *a,
                                                       uint32_t row, __nv_bfloat16 *b,
                                                       uint32_t column)
{
    clear(c);
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t of_a[4];
        tdm_load_a<D>(of_a, a, row, d);
#pragma unroll
        for (int n = 0; n < BLOCKS; n += 2) {
            uint32_t of_b[4];
            tdm_load_b_turned<D>(of_b, b, column + 8 * n, d);
            tdm_mma(c[n], of_a, of_b[0], of_b[1]);
            tdm_mma(c[n + 1], of_a, of_b[2], of_b[3]);
        }
    }
}

/* sum += A B: A in registers, 8 * BLOCKS columns; as many rows of tile `b` from `row` on. */
template <int D, int BLOCKS>
static __device__ __forceinline__ void
multiply_add(float (&sum)[D / 8][4], const float (&a)[BLOCKS][4], __nv_bfloat16 *b, uint32_t row)
{
#pragma unroll
    for (int k = 0; k < BLOCKS / 2; k++) {
        uint32_t of_a[4];
        tdm_as_a(of_a, a[2 * k], a[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t of_b[4];
            tdm_load_b<D>(of_b, b, row + 16 * k, n);
            tdm_mma(sum[2 * n], of_a, of_b[0], of_b[1]);
            tdm_mma(sum[2 * n + 1], of_a, of_b[2], of_b[3]);
        }
    }
}

/* d[row] = sum of d_out * out; a warp a row, a lane 8 elements at a time. */
static __global__ void __launch_bounds__(THREADS) row_dots(const tdm_attend a)
{
    const uint64_t row = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    float sum = 0.0f;
    if (row >= a.tokens * a.query_heads)
        return;
    for (uint32_t i = lane * 8; i < a.head_dim; i += 32 * 8) {
        float d[8], o[8];
        tdm_load<8>((const __nv_bfloat16 *)a.d_out.data, row * a.head_dim + i, d);
        tdm_load<8>((const __nv_bfloat16 *)a.out.data, row * a.head_dim + i, o);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += d[j] * o[j];
    }
    sum = tdm_warp_sum(sum);
    if (lane == 0)
        a.d[row] = sum;
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 1)
    grad_of_rows(const tdm_attend a, float scale, bool whole)
{
    extern __shared__ __align__(128) __nv_bfloat16 tiles[];
    __nv_bfloat16 *const q = tiles, *const d_out = q + ROWS * D, *const stages = d_out + ROWS * D;
    const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS);
    const uint32_t head = blockIdx.x % a.query_heads;
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    const uint64_t t0 = (uint64_t)(row_tiles - 1 - blockIdx.x / a.query_heads) * ROWS;
    const uint64_t last = (t0 + ROWS < a.tokens ? t0 + ROWS : a.tokens) - 1;
    const uint32_t before = (uint32_t)(a.first_token - a.key_token);
    const uint32_t end = before + (uint32_t)last + 1; /* of the keys */
    const uint32_t begin = a.from[t0] / STEP_KEYS * STEP_KEYS;
    const uint32_t last_from = a.from[last];
    const uint64_t plane = tdm_plane_of(a);
    const uint32_t lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16;

    tdm_fetch_rows<D, ROWS>(q, a, a.q.data, t0, head);
    tdm_fetch_rows<D, ROWS>(d_out, a, a.d_out.data, t0, head);
    tdm_fetch_keys<D, STEP_KEYS>(stages, a, 0, begin, end, kv_head, whole);
    tdm_fetch_keys<D, STEP_KEYS>(stages + STEP_KEYS * D, a, plane, begin, end, kv_head, whole);
    tdm_copy_commit();

    uint32_t from[2], position[2];
    float lse[2], d[2], dq[D / 8][4];
    clear(dq);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t t = t0 + first_row + 8 * h + lane / 4;
        const bool is_there = t < a.tokens; /* else it sees nothing */
        from[h] = is_there ? a.from[t] : UINT32_MAX;
        position[h] = is_there ? before + (uint32_t)t : 0;
        lse[h] = is_there ? a.lse[t * a.query_heads + head] * LOG2_E : 0.0f;
        d[h] = is_there ? a.d[t * a.query_heads + head] : 0.0f;
    }

    uint32_t stage = 0;
    for (uint32_t key = begin; key < end; key += STEP_KEYS, stage ^= 1) {
        __nv_bfloat16 *const k = stages + stage * 2 * STEP_KEYS * D, *const v = k + STEP_KEYS * D;
        float p[STEP_KEYS / 8][4], dp[STEP_KEYS / 8][4];
        tdm_copy_wait<0>();
        __syncthreads(); /* these are there; nobody reads the other stage any more */
        if (key + STEP_KEYS < end) {
            __nv_bfloat16 *const next = stages + (stage ^ 1) * 2 * STEP_KEYS * D;
            tdm_fetch_keys<D, STEP_KEYS>(next, a, 0, key + STEP_KEYS, end, kv_head, whole);
            tdm_fetch_keys<D, STEP_KEYS>(next + STEP_KEYS * D, a, plane, key + STEP_KEYS, end,
                                         kv_head, whole);
            tdm_copy_commit();
        }
        multiply_turned<D>(p, q, first_row, k, 0);
        multiply_turned<D>(dp, d_out, first_row, v, 0);
        const bool masked =
            key + STEP_KEYS > before + (uint32_t)t0 + 1 || key < last_from || t0 + ROWS > a.tokens;
#pragma unroll
        for (int n = 0; n < STEP_KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t at = key + 8 * n + lane % 4 * 2 + i % 2;
                float each = tdm_exp2(p[n][i] * (scale * LOG2_E) - lse[i / 2]);
                if (masked && (at < from[i / 2] || at > position[i / 2]))
                    each = 0.0f;
                p[n][i] = each * (dp[n][i] - d[i / 2]);
            }
        }
        multiply_add<D>(dq, p, k, 0);
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t t = t0 + first_row + 8 * h + lane / 4;
        if (t >= a.tokens)
            continue;
        uint32_t *to =
            (uint32_t *)((__nv_bfloat16 *)a.dq.data + (t * a.query_heads + head) * D) + lane % 4;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            to[4 * n] = tdm_pack(dq[n][2 * h] * scale, dq[n][2 * h + 1] * scale);
    }
}

/* What rows of a step of grad_of_keys have. */
struct row_facts {
    float lse[STEP_ROWS], d[STEP_ROWS]; /* lse in powers of two */
    uint32_t from[STEP_ROWS], position[STEP_ROWS];
};

/* Of STEP_ROWS tokens from t0 on, for a query head: Q, dO, and what else their rows have. */
template <int D>
static __device__ __forceinline__ void fetch_step(__nv_bfloat16 *to, row_facts &facts,
                                                  const tdm_attend &a, uint64_t t0, uint32_t head)
{
    tdm_fetch_rows<D, STEP_ROWS>(to, a, a.q.data, t0, head);
    tdm_fetch_rows<D, STEP_ROWS>(to + STEP_ROWS * D, a, a.d_out.data, t0, head);
    tdm_copy_commit();
    if (threadIdx.x < STEP_ROWS) {
        const uint64_t t = t0 + threadIdx.x;
        const bool is_there = t < a.tokens; /* else it sees nothing */
        const uint64_t row = (is_there ? t : 0) * a.query_heads + head;
        facts.lse[threadIdx.x] = is_there ? a.lse[row] * LOG2_E : 0.0f;
        facts.d[threadIdx.x] = is_there ? a.d[row] : 0.0f;
        facts.from[threadIdx.x] = is_there ? a.from[t] : UINT32_MAX;
        facts.position[threadIdx.x] = is_there ? (uint32_t)(a.first_token - a.key_token + t) : 0;
    }
}

/* Of the first tokens, those whose keys begin at `key` or before it. */
static __device__ __forceinline__ uint64_t tokens_from(const tdm_attend &a, uint32_t key)
{
    uint64_t low = 0, end = a.tokens; /* the first whose `from` is beyond is one of [low, end] */
    while (low < end) {
        const uint64_t middle = low + (end - low) / 2;
        if (a.from[middle] <= key)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

/* Adds a row of a fragment to a page, or overwrites it. */
template <typename T, int D>
static __device__ __forceinline__ void put_row(T *to, const float (&c)[D / 8][4], int h, bool add,
                                               float scale)
{
    const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t at = 8 * n + column + i;
            const float value = c[n][2 * h + i] * scale;
            tdm_put(to, at, add ? tdm_get(to, at) + value : value);
        }
    }
}

template <int D, typename T>
static __global__ void __launch_bounds__(THREADS, 1)
    grad_of_keys(const tdm_attend a, float scale, bool whole)
{
    extern __shared__ __align__(128) __nv_bfloat16 tiles[];
    __shared__ row_facts facts[2];
    __nv_bfloat16 *const k = tiles, *const v = k + KEYS * D, *const stages = v + KEYS * D;
    const uint32_t kv_head = blockIdx.x % a.kv_heads, ratio = a.query_heads / a.kv_heads;
    const uint32_t key0 = blockIdx.x / a.kv_heads * KEYS;
    const uint32_t before = (uint32_t)(a.first_token - a.key_token);
    const uint32_t end = before + (uint32_t)a.tokens; /* of the keys */
    const uint64_t plane = tdm_plane_of(a);
    const uint32_t lane = threadIdx.x % 32, first_key = threadIdx.x / 32 * 16;
    const uint32_t last_key = (key0 + KEYS < end ? key0 + KEYS : end) - 1;

    /* tokens that may see one of the keys, in steps, for each head in turn */
    const uint64_t begin_token = key0 > before ? (key0 - before) / STEP_ROWS * STEP_ROWS : 0;
    const uint64_t end_token = tokens_from(a, last_key);
    const uint64_t steps =
        end_token > begin_token ? (end_token - begin_token + STEP_ROWS - 1) / STEP_ROWS : 0;

    tdm_fetch_keys<D, KEYS>(k, a, 0, key0, end, kv_head, whole);
    tdm_fetch_keys<D, KEYS>(v, a, plane, key0, end, kv_head, whole);
    float dk[D / 8][4], dv[D / 8][4];
    clear(dk);
    clear(dv);
    if (steps > 0)
        fetch_step<D>(stages, facts[0], a, begin_token, kv_head * ratio);
    else
        tdm_copy_commit();

    for (uint64_t step = 0; step < steps * ratio; step++) {
        const uint32_t stage = (uint32_t)(step % 2);
        const uint64_t t0 = begin_token + step % steps * STEP_ROWS;
        __nv_bfloat16 *const q = stages + stage * 2 * STEP_ROWS * D;
        __nv_bfloat16 *const d_out = q + STEP_ROWS * D;
        const row_facts &fact = facts[stage];
        tdm_copy_wait<0>();
        __syncthreads(); /* these are there; nobody reads the other stage any more */
        if (step + 1 < steps * ratio)
            fetch_step<D>(stages + (stage ^ 1) * 2 * STEP_ROWS * D, facts[stage ^ 1], a,
                          begin_token + (step + 1) % steps * STEP_ROWS,
                          kv_head * ratio + (uint32_t)((step + 1) / steps));
        const bool masked = last_key > before + (uint32_t)t0 || t0 + STEP_ROWS > a.tokens ||
                            key0 + KEYS > end || fact.from[STEP_ROWS - 1] > key0;
#pragma unroll
        for (int half = 0; half < STEP_ROWS; half += HALF_ROWS) {
            float p[HALF_ROWS / 8][4], ds[HALF_ROWS / 8][4];
            multiply_turned<D>(p, k, first_key, q, half);
            multiply_turned<D>(ds, v, first_key, d_out, half);
#pragma unroll
            for (int n = 0; n < HALF_ROWS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t row = half + 8 * n + lane % 4 * 2 + i % 2;
                    const uint32_t key = key0 + first_key + lane / 4 + i / 2 * 8;
                    float each = tdm_exp2(p[n][i] * (scale * LOG2_E) - fact.lse[row]);
                    if (masked && (key < fact.from[row] || key > fact.position[row]))
                        each = 0.0f;
                    p[n][i] = each;
                    ds[n][i] = each * (ds[n][i] - fact.d[row]);
                }
            }
            multiply_add<D>(dv, p, d_out, half);
            multiply_add<D>(dk, ds, q, half);
        }
    }
    tdm_copy_wait<0>(); /* where there was no step */

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t key = key0 + first_key + lane / 4 + 8 * h;
        if (key >= end)
            continue;
        const tdm_gradient_key to = tdm_gradient_at(a, key, kv_head);
        put_row<T, D>((T *)to.data + to.element, dk, h, to.add, scale);
        put_row<T, D>((T *)to.data + to.element + plane, dv, h, to.add, 1.0f);
    }
}

template <int D>
static enum tdm_status launch(const struct tdm_attend *a, cudaStream_t stream,
                              struct tdm_error *err)
{
    const int shared_bytes = (2 * ROWS + 4 * STEP_KEYS) * D * (int)sizeof(__nv_bfloat16);
    static_assert(2 * ROWS + 4 * STEP_KEYS == 2 * KEYS + 4 * STEP_ROWS, "the same shared memory");
    const uint64_t keys = a->first_token + a->tokens - a->key_token;
    const uint64_t rows = a->tokens * a->query_heads;
    const unsigned row_blocks = (unsigned)((a->tokens + ROWS - 1) / ROWS * a->query_heads);
    const unsigned key_blocks = (unsigned)((keys + KEYS - 1) / KEYS * a->kv_heads);
    const float scale = (float)(1.0 / sqrt((double)D));
    const bool whole_steps = a->page_tokens % STEP_KEYS == 0 && a->chunk_tokens % STEP_KEYS == 0;
    const bool whole = a->page_tokens % KEYS == 0 && a->chunk_tokens % KEYS == 0;
    const enum tdm_dtype gradients = a->written.data != NULL ? a->written.dtype : a->added.dtype;
    cudaError_t code = cudaFuncSetAttribute(
        (const void *)grad_of_rows<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (code != cudaSuccess)
        return tdm_cuda_status(code, "cudaFuncSetAttribute of attention_grad", err);
    row_dots<<<tdm_blocks(rows, WARPS, INT32_MAX), THREADS, 0, stream>>>(*a);
    grad_of_rows<D><<<row_blocks, THREADS, shared_bytes, stream>>>(*a, scale, whole_steps);
    enum tdm_status status = tdm_with_type(gradients, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        auto *kernel = grad_of_keys<D, T>;
        code = cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (code == cudaSuccess)
            kernel<<<key_blocks, THREADS, shared_bytes, stream>>>(*a, scale, whole);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(code, "cudaFuncSetAttribute of attention_grad", err);
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "attention_grad launch", err)
                            : status;
}

extern "C" enum tdm_status tdm_cuda_attention_grad(const struct tdm_attend *a, cudaStream_t stream,
                                                   struct tdm_error *err)
{
    return a->head_dim == 64 ? launch<64>(a, stream, err) : launch<128>(a, stream, err);
}
