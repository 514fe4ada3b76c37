/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on Hopper, forward: bf16, head dim 128.
 *
 * As FlashAttention-3 (arXiv 2407.08608, algorithms 1 and 2): a block has ROWS tokens of one query head. A
 * warpgroup of producers copies Q, and K and V KEYS at a time with rising position; two of consumers
 * have 64 rows each. Scores of the next keys and P V of the last are made by the tensor cores while
 * the consumers soften: S = Q K^T is asked for, then O += P V, and S is softened as soon as it is
 * there. Q, scores, probabilities and outputs stay in registers. The masks, the order of the blocks and
 * what is stored are those of attention.cu.
 *
 * Over lists of pages (LISTS) a page is a tile of keys and a tile of rows is a query page: the producer reads an
 * entry of the list a tile ahead, and leaves the consumers the first key with it and whether they must mask.
 * Measured on an H200, 28/4 heads x 128, 4K tokens: 64 pages that won a vote and the chunk 453 to 485 TFLOP/s, dense
 * over 64K to 1M keys 504 to 542.
 */
#include "executor/cuda/hopper_tiles.cuh"
#include "executor/cuda/scores.cuh"

#define ROWS 128u
#define KEYS 128u
#define STAGES 2u
#define CONSUMERS 2u
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define TILE_BYTES TDM_HOPPER_TILE_BYTES(KEYS)
#define SHARED_BYTES ((1 + 2 * STAGES) * TILE_BYTES + 1024u) /* tiles begin at multiples of 1024 */

struct key_barriers {
    uint64_t full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
};

/* Keys of a block, and where its tokens are among them. */
template <bool LISTS> struct span {
    uint64_t t0;
    uint32_t head, kv_head, before, end;
    tdm_key_steps<LISTS, KEYS> steps;
};

template <bool LISTS> static __device__ __forceinline__ span<LISTS> span_of(const tdm_attend &a)
{
    const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS);
    span<LISTS> s;
    s.head = blockIdx.x % a.query_heads;
    s.kv_head = s.head / (a.query_heads / a.kv_heads);
    s.t0 = (uint64_t)(row_tiles - 1 - blockIdx.x / a.query_heads) * ROWS; /* long ones first */
    const uint64_t last = (s.t0 + ROWS < a.tokens ? s.t0 + ROWS : a.tokens) - 1;
    s.before = (uint32_t)(a.first_token - a.key_token);
    s.end = s.before + (uint32_t)last + 1;
    s.steps.find(a, s.t0, s.kv_head);
    return s;
}

template <bool LISTS>
static __device__ void produce(const tdm_attend &a, const span<LISTS> &s, uint32_t tiles,
                               key_barriers &b, uint32_t *steps, bool whole)
{
    const uint32_t k = tiles + TILE_BYTES, v = k + STAGES * TILE_BYTES;
    const uint64_t plane = tdm_plane_of(a);
    tdm_producer producer;
    uint32_t number = 0, entry = s.steps.entry(0);
    tdm_hopper_rows<ROWS>(tiles, a, a.q.data, s.t0, s.head);
    for (uint32_t key = s.steps.begin; s.steps.has(number, key, s.end); key += KEYS, number++) {
        const uint32_t stage = number % STAGES, turn = number / STAGES;
        if (turn > 0)
            producer.wait(&b.empty_k[stage], turn - 1);
        if constexpr (LISTS) {
            const uint32_t step = s.steps.step(number, entry);
            entry = s.steps.entry(number + 1);
            key = step & TDM_STEP_FIRST;
            if (threadIdx.x == 0)
                steps[stage] = step;
        }
        tdm_hopper_keys<KEYS>(k + stage * TILE_BYTES, a, 0, key, s.end, s.kv_head, whole);
        producer.commit(&b.full_k[stage]);
        if (turn > 0)
            producer.wait(&b.empty_v[stage], turn - 1);
        tdm_hopper_keys<KEYS>(v + stage * TILE_BYTES, a, plane, key, s.end, s.kv_head, whole);
        producer.commit(&b.full_v[stage]);
    }
    producer.finish();
}

/* Asks for S = Q K^T. */
static __device__ __forceinline__ void
ask_scores(float (&s)[KEYS / 8][4], const uint32_t (&q)[TDM_HOPPER_DIM / 16][4], uint32_t k)
{
#pragma unroll
    for (uint32_t d = 0; d < TDM_HOPPER_DIM / 16; d++)
        tdm_wgmma<0>(s, q[d], tdm_columns_of(k, KEYS, d), d > 0);
    tdm_products_commit();
}

/* Asks for O += P V. */
static __device__ __forceinline__ void ask_values(float (&out)[TDM_HOPPER_DIM / 8][4],
                                                  const uint32_t (&p)[KEYS / 16][4], uint32_t v)
{
#pragma unroll
    for (uint32_t block = 0; block < KEYS / 16; block++)
        tdm_wgmma<1>(out, p[block], tdm_rows_of(v, KEYS, block), true);
    tdm_products_commit();
}

static __device__ __forceinline__ void release(uint64_t *barrier)
{
    if (threadIdx.x % 32 == 0)
        tdm_barrier_arrive(barrier);
}

template <bool LISTS>
static __device__ __forceinline__ void consume(const tdm_attend &a, const span<LISTS> &s,
                                               uint32_t tiles, key_barriers &b,
                                               const uint32_t *steps, float scale)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1;
    const uint32_t k = tiles + TILE_BYTES, v = k + STAGES * TILE_BYTES;
    const uint64_t first = s.t0 + group * 64, t = first + tdm_hopper_warp_row();
    const uint64_t last = (s.t0 + ROWS < a.tokens ? s.t0 + ROWS : a.tokens) - 1;
    const uint32_t last_from = a.from[last];
    tdm_softmax<1> rows = tdm_no_sums<1>();
    float scores[1][KEYS / 8][4], out[1][TDM_HOPPER_DIM / 8][4] = {};
    uint32_t p[KEYS / 16][4];
    uint32_t q[TDM_HOPPER_DIM / 16][4];
    tdm_barrier_wait(&b.full_k[0], 0);
    tdm_hopper_load_a(q, tiles + group * 64 * 128, ROWS);

    uint32_t number = 0;
    for (uint32_t key = s.steps.begin; s.steps.has(number, key, s.end); key += KEYS, number++) {
        const uint32_t stage = number % STAGES, other = (number + STAGES - 1) % STAGES;
        bool masked = key + KEYS > s.before + (uint32_t)first + 1 || key < last_from;
        tdm_barrier_wait(&b.full_k[stage], number / STAGES);
        const uint32_t step = LISTS ? steps[stage] : 0;
        if constexpr (LISTS)
            masked = (step & TDM_STEP_MASKED) != 0;
        tdm_products_hold(scores[0]);
        tdm_products_hold(out[0]);
        tdm_products_begin();
        ask_scores(scores[0], q, k + stage * TILE_BYTES);
        if (number > 0) {
            tdm_barrier_wait(&b.full_v[other], (number - 1) / STAGES);
            tdm_products_begin();
            ask_values(out[0], p, v + other * TILE_BYTES);
            tdm_products_wait<1>();
        } else {
            tdm_products_wait<0>();
        }
        tdm_products_hold(scores[0]);
        release(&b.empty_k[stage]);
        if (masked)
            tdm_mask(scores, a, tdm_seen_from(a, step & TDM_STEP_WHOLE, s.kv_head), t,
                     LISTS ? step & TDM_STEP_FIRST : key);
        float rescale[1][2];
        const bool lags = tdm_follow(scores, rows, scale * TDM_LOG2_E, rescale);
#pragma unroll
        for (int block = 0; block < (int)KEYS / 16; block++)
            tdm_raise(scores, block, rows, scale * TDM_LOG2_E);
        tdm_products_wait<0>();
        tdm_products_hold(out[0]);
        if (number > 0)
            release(&b.empty_v[other]);
#pragma unroll
        for (int block = 0; block < (int)KEYS / 16; block++)
            tdm_as_a(p[block], scores[0][2 * block], scores[0][2 * block + 1]);
        if (lags)
            tdm_rescale(out, rescale);
    }
    const uint32_t other = (number - 1) % STAGES;
    tdm_barrier_wait(&b.full_v[other], (number - 1) / STAGES);
    tdm_products_hold(out[0]);
    tdm_products_begin();
    ask_values(out[0], p, v + other * TILE_BYTES);
    tdm_products_wait<0>();
    tdm_products_hold(out[0]);
    tdm_put_rows<TDM_HOPPER_DIM>(out, rows, a, t, s.head);
}

template <bool LISTS>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_hopper(const tdm_attend a, float scale, bool whole)
{
    extern __shared__ unsigned char memory[];
    __shared__ key_barriers b;
    __shared__ uint32_t steps[STAGES];
    const uint32_t tiles = (tdm_shared(memory) + 1023) / 1024 * 1024;
    const span<LISTS> s = span_of<LISTS>(a);
    if (LISTS && s.steps.count == 0)
        return;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            tdm_barrier_init(&b.full_k[i], TDM_WARPGROUP);
            tdm_barrier_init(&b.full_v[i], TDM_WARPGROUP);
            tdm_barrier_init(&b.empty_k[i], CONSUMERS * TDM_WARPGROUP / 32);
            tdm_barrier_init(&b.empty_v[i], CONSUMERS * TDM_WARPGROUP / 32);
        }
    }
    __syncthreads();
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<40>();
        produce(a, s, tiles, b, steps, whole);
    } else {
        tdm_take_registers<232>();
        consume(a, s, tiles, b, steps, scale);
    }
}

extern "C" bool tdm_cuda_attention_hopper_suits(const struct tdm_attend *a)
{
    return tdm_is_hopper() && a->q.dtype == TDM_DTYPE_BF16 && a->pages.dtype == TDM_DTYPE_BF16 &&
           a->head_dim == TDM_HOPPER_DIM &&
           a->first_token + a->tokens - a->key_token <= INT32_MAX &&
           (a->lists.pages == NULL ||
            (a->page_tokens == TDM_HOPPER_PAGE && a->chunk_tokens % TDM_HOPPER_PAGE == 0));
}

extern "C" enum tdm_status tdm_cuda_attention_hopper(const struct tdm_attend *a,
                                                     cudaStream_t stream, struct tdm_error *err)
{
    const uint64_t blocks = (a->tokens + ROWS - 1) / ROWS * a->query_heads;
    const float scale = (float)(1.0 / sqrt((double)TDM_HOPPER_DIM));
    const bool whole = a->page_tokens % KEYS == 0 && a->chunk_tokens % KEYS == 0;
    auto *kernel = a->lists.pages != NULL ? attend_hopper<true> : attend_hopper<false>;
    enum tdm_status status = TDM_CUDA(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)SHARED_BYTES),
        err);
    if (status != TDM_OK)
        return status;
    kernel<<<(unsigned)blocks, THREADS, SHARED_BYTES, stream>>>(*a, scale, whole);
    return tdm_cuda_status(cudaGetLastError(), "attention launch", err);
}
