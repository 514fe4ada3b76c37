/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on Hopper, backward: bf16, head dim 128.
 *
 * The two kinds of tiles of attention_grad.cu, which see, with products of warpgroups: one of producers, two of
 * consumers with 64 rows or keys each. All transposes are those of operands in shared memory:
 *
 *     grad_of_rows: S = Q K^T and dP = dO V^T [64 rows, STEP keys], dQ += dS K
 *     grad_of_keys: S^T = K Q^T and dP^T = V dO^T [64 keys, STEP rows], dV += P^T dO, dK += dS^T Q
 *
 * In the first the next scores are asked for before the sums, so that the tensor cores add while the
 * consumers make probabilities of the next; the second has no registers for that, and leaves it to the
 * other warpgroup.
 *
 * Over lists of pages (LISTS) rows walk over their list as in attention_hopper.cu; the block that owns a page takes the
 * query pages whose bits are set in its inverse list (lists.cu), of each the query heads, of these the tokens. Tiles
 * that many read have up to as many steps as the chunk has pages, far ones few: rows first, then pages by
 * falling number of readers, all in one launch, so that the last to run are short. Measured on an H200, 28/4 heads x
 * 128, 4K tokens: 64 pages that won a vote and the chunk 366 to 392 TFLOP/s, dense over 64K to 1M keys 392 to 415.
 */
#include "executor/cuda/gradients.cuh"
#include "executor/cuda/hopper_tiles.cuh"

#define TILE 128u /* rows, or keys, of a block */
#define STEP 64u  /* of the others, at a time */
#define STAGES 3u
#define CONSUMERS 2u
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define TILE_BYTES TDM_HOPPER_TILE_BYTES(TILE)
#define STEP_BYTES TDM_HOPPER_TILE_BYTES(STEP)
#define SHARED_BYTES (2 * TILE_BYTES + 2 * STAGES * STEP_BYTES + 1024u)
#define DIM TDM_HOPPER_DIM

/* Blocks of keys that are fewer leave much of the card idle at their end, so that rows go along (over 4K keys
 * 385 TFLOP/s for 271, over 8K 441 for 383); more run faster alone (over 32K 444 for 422). H100, 28/4 heads. */
#define FEW_BLOCKS 512u

/* Shared memory, as addresses: two tiles of the block, then stages of two tiles of a step. */
struct tiles {
    uint32_t first, second, stages;

    __device__ __forceinline__ tiles(const unsigned char *memory)
    {
        first = (tdm_shared(memory) + 1023) / 1024 * 1024;
        second = first + TILE_BYTES;
        stages = second + TILE_BYTES;
    }

    __device__ __forceinline__ uint32_t step(uint32_t number, uint32_t which) const
    {
        return stages + (2 * (number % STAGES) + which) * STEP_BYTES;
    }
};

struct step_barriers {
    uint64_t full[STAGES], empty[STAGES];
    uint32_t step[STAGES]; /* over lists: TDM_STEP_FIRST and what follows */
};

static __device__ __forceinline__ void init_barriers(step_barriers &b)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            tdm_barrier_init(&b.full[i], TDM_WARPGROUP);
            tdm_barrier_init(&b.empty[i], CONSUMERS * TDM_WARPGROUP / 32);
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ void wait_empty(step_barriers &b, tdm_producer &producer,
                                                  uint32_t number)
{
    if (number >= STAGES)
        producer.wait(&b.empty[number % STAGES], number / STAGES - 1);
}

static __device__ __forceinline__ void wait_full(step_barriers &b, uint32_t number)
{
    tdm_barrier_wait(&b.full[number % STAGES], number / STAGES);
}

static __device__ __forceinline__ void release(step_barriers &b, uint32_t number)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        tdm_barrier_arrive(&b.empty[number % STAGES]);
}

/* Asks for C = A B^T: 64 rows of tile `a`, which has TILE, and a tile of STEP rows. */
static __device__ __forceinline__ void ask_turned(float (&c)[STEP / 8][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (uint32_t d = 0; d < DIM / 16; d++)
        tdm_wgmma<0>(c, tdm_columns_of(a, TILE, d), tdm_columns_of(b, STEP, d), d > 0);
}

/* Asks for sum += A B: A in registers, a tile of STEP rows. */
static __device__ __forceinline__ void ask_sum(float (&sum)[DIM / 8][4],
                                               const uint32_t (&a)[STEP / 16][4], uint32_t b)
{
#pragma unroll
    for (uint32_t block = 0; block < STEP / 16; block++)
        tdm_wgmma<1>(sum, a[block], tdm_rows_of(b, STEP, block), true);
}

static __device__ __forceinline__ void round_to(uint32_t (&to)[STEP / 16][4],
                                                const float (&from)[STEP / 8][4])
{
#pragma unroll
    for (uint32_t block = 0; block < STEP / 16; block++)
        tdm_as_a(to[block], from[2 * block], from[2 * block + 1]);
}

/* ---- dQ ---- */

/* Masks scores [tokens, keys] of a warp's 16 tokens from `t` on and the keys from `key` on. */
static __device__ __forceinline__ void mask_rows(float (&s)[STEP / 8][4], const tdm_attend &a,
                                                 const uint32_t *seen, uint64_t t, uint32_t before,
                                                 uint32_t key)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t token = t + 8 * h + threadIdx.x % 32 / 4;
        const uint32_t from = token < a.tokens ? seen[token] : UINT32_MAX;
#pragma unroll
        for (uint32_t n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                const uint32_t at = key + 8 * n + i % 2;
                if (at < from || at > before + (uint32_t)token)
                    s[n][i] = -INFINITY;
            }
    }
}

template <bool LISTS>
static __device__ __forceinline__ void
sum_rows(const tdm_attend &a, const tiles &shared, step_barriers &b, uint64_t t0, uint32_t head,
         const tdm_key_steps<LISTS, STEP> &steps, uint32_t end, float scale)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1, column = threadIdx.x % 4 * 2;
    const uint32_t d_out = shared.second + group * 64 * 128;
    const uint32_t kv_head = LISTS ? head / (a.query_heads / a.kv_heads) : 0;
    const uint64_t first = t0 + group * 64, t = first + tdm_hopper_warp_row();
    const uint64_t last = (t0 + TILE < a.tokens ? t0 + TILE : a.tokens) - 1;
    const uint32_t before = (uint32_t)(a.first_token - a.key_token), last_from = a.from[last];
    tdm_row_fact facts[2];
    uint32_t ds[STEP / 16][4];
    float p[STEP / 8][4], dp[STEP / 8][4], dq[DIM / 8][4] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t token = t + 8 * h + threadIdx.x % 32 / 4;
        facts[h] = token < a.tokens ? tdm_row_facts(a, head)[token] : tdm_row_fact{INFINITY, 0.0f};
    }
    const uint32_t q = shared.first + group * 64 * 128;
    if (group == 1) /* consumers take turns at asking: group i waits for turn i + 1 */
        tdm_turn_give(1);

    uint32_t number = 0;
    for (uint32_t key = steps.begin; steps.has(number, key, end); key += STEP, number++) {
        bool masked = key + STEP > before + (uint32_t)first + 1 || key < last_from;
        wait_full(b, number);
        const uint32_t step = LISTS ? b.step[number % STAGES] : 0;
        if constexpr (LISTS)
            masked = (step & TDM_STEP_MASKED) != 0;
        tdm_turn_wait(1 + group);
        tdm_products_hold(p);
        tdm_products_hold(dp);
        tdm_products_hold(dq);
        tdm_products_begin();
        ask_turned(p, q, shared.step(number, 0));
        ask_turned(dp, d_out, shared.step(number, 1));
        tdm_products_commit();
        if (number > 0) {
            tdm_products_begin();
            ask_sum(dq, ds, shared.step(number - 1, 0));
            tdm_products_commit();
            tdm_turn_give(1 + (group ^ 1));
            tdm_products_wait<1>();
        } else {
            tdm_turn_give(1 + (group ^ 1));
            tdm_products_wait<0>();
        }
        tdm_products_hold(p);
        tdm_products_hold(dp);
        if (masked)
            mask_rows(p, a, tdm_seen_from(a, step & TDM_STEP_WHOLE, kv_head), t, before,
                      (LISTS ? step & TDM_STEP_FIRST : key) + column);
#pragma unroll
        for (uint32_t n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[n][i] = tdm_exp2(p[n][i] * (scale * TDM_LOG2_E) - facts[i / 2].lse) *
                          (dp[n][i] - facts[i / 2].d);
        tdm_products_wait<0>();
        tdm_products_hold(dq);
        if (number > 0)
            release(b, number - 1);
        round_to(ds, p);
    }
    tdm_products_hold(dq);
    tdm_products_begin();
    ask_sum(dq, ds, shared.step(number - 1, 0));
    tdm_products_commit();
    tdm_products_wait<0>();
    tdm_products_hold(dq);
    tdm_put_dq(a, t, head, dq, scale);
}

/* A tile of rows; the longest are the first. `whole`: keys from a multiple of STEP on lie in one page. */
template <bool LISTS>
static __device__ __forceinline__ void grad_of_rows(const tdm_attend &a, float scale, bool whole,
                                                    uint32_t block, const tiles &shared,
                                                    step_barriers &b)
{
    const uint32_t row_tiles = (uint32_t)((a.tokens + TILE - 1) / TILE);
    const uint32_t head = block % a.query_heads;
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    const uint64_t t0 = (uint64_t)(row_tiles - 1 - block / a.query_heads) * TILE;
    const uint64_t last = (t0 + TILE < a.tokens ? t0 + TILE : a.tokens) - 1;
    const uint32_t end = (uint32_t)(a.first_token - a.key_token + last) + 1; /* of the keys */
    tdm_key_steps<LISTS, STEP> steps;
    steps.find(a, t0, kv_head);
    if (LISTS && steps.count == 0)
        return;
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<40>();
        const uint64_t plane = tdm_plane_of(a);
        tdm_producer producer;
        uint32_t number = 0, entry = steps.entry(0);
        tdm_hopper_rows<TILE>(shared.first, a, a.q.data, t0, head);
        tdm_hopper_rows<TILE>(shared.second, a, a.d_out.data, t0, head);
        for (uint32_t key = steps.begin; steps.has(number, key, end); key += STEP, number++) {
            wait_empty(b, producer, number);
            if constexpr (LISTS) {
                const uint32_t step = steps.step(number, entry);
                entry = steps.entry(number + 1);
                key = step & TDM_STEP_FIRST;
                if (threadIdx.x == 0)
                    b.step[number % STAGES] = step;
            }
            tdm_hopper_keys<STEP>(shared.step(number, 0), a, 0, key, end, kv_head, whole);
            tdm_hopper_keys<STEP>(shared.step(number, 1), a, plane, key, end, kv_head, whole);
            producer.commit(&b.full[number % STAGES]);
        }
        producer.finish();
    } else {
        tdm_take_registers<232>();
        sum_rows<LISTS>(a, shared, b, t0, head, steps, end, scale);
    }
}

/* ---- dK, dV ---- */

/* The steps of a block: tokens that may see one of its keys, for each of its query heads in turn; over lists the
 * query pages that read its page, of each the query heads, of these the tokens. At least one step a head of a
 * range: if nobody sees the keys, its rows are masked. */
template <bool LISTS> struct walk {
    uint32_t key0, kv_head, ratio, before, end, begin_token, all_begin, all_end, steps;
    uint32_t reader_steps; /* with lists, of all readers */
    const uint2 *readers;

    __device__ __forceinline__ uint32_t numbers() const
    {
        return LISTS ? reader_steps : steps * ratio;
    }

    __device__ __forceinline__ uint64_t token(uint32_t number) const
    {
        return begin_token + number % steps * STEP;
    }
};

template <bool LISTS>
static __device__ __forceinline__ walk<LISTS> walk_of(const tdm_attend &a, uint32_t block)
{
    walk<LISTS> w;
    w.ratio = a.query_heads / a.kv_heads;
    w.before = (uint32_t)(a.first_token - a.key_token);
    w.end = w.before + (uint32_t)a.tokens;
    if constexpr (LISTS) {
        const tdm_reading reading = tdm_reading_of(a, block);
        w.kv_head = reading.kv_head;
        w.key0 = reading.keys.first;
        w.readers = reading.readers;
        w.steps = TILE / STEP * w.ratio; /* of a query page */
        w.reader_steps = 0;
        for (uint64_t i = 0; i < tdm_attend_words(&a); i++)
            w.reader_steps += w.steps * (uint32_t)__popc(w.readers[i].x);
    } else {
        w.kv_head = block % a.kv_heads;
        w.key0 = block / a.kv_heads * TILE;
        const tdm_seeing seeing =
            tdm_who_sees(a, w.key0, (w.key0 + TILE < w.end ? w.key0 + TILE : w.end) - 1);
        w.begin_token = seeing.begin / STEP * STEP;
        w.all_begin = seeing.all_begin;
        w.all_end = seeing.all_end;
        w.steps = seeing.end > w.begin_token ? (seeing.end - w.begin_token + STEP - 1) / STEP : 1;
    }
    return w;
}

/* The query pages that read a page, one after the other, as the producer meets them. */
struct reader_walk {
    uint32_t word, bits, whole_bits, step; /* `step`: first token and TDM_STEP_WHOLE, ..._MASKED */

    __device__ __forceinline__ reader_walk(const uint2 *readers) : word(0), step(0)
    {
        bits = readers[0].x;
        whole_bits = readers[0].y;
    }

    __device__ __forceinline__ void next(const tdm_attend &a, const walk<true> &w)
    {
        while (bits == 0) {
            word++;
            bits = w.readers[word].x;
            whole_bits = w.readers[word].y;
        }
        const uint32_t bit = (uint32_t)__ffs((int)bits) - 1;
        const uint32_t t0 = (word * 32 + bit) * TILE, last = t0 + TILE - 1;
        const bool whole = whole_bits >> bit & 1;
        const bool masked = last >= (uint32_t)a.tokens || w.before + t0 < w.key0 + TILE - 1 ||
                            tdm_seen_from(a, whole, w.kv_head)[last] > w.key0;
        bits &= bits - 1;
        step = t0 + (whole ? TDM_STEP_WHOLE : 0) + (masked ? TDM_STEP_MASKED : 0);
    }
};

/* Begins to copy what the rows of a step have; zeros where there are no tokens. */
static __device__ __forceinline__ void fetch_facts(tdm_row_fact *facts, const tdm_attend &a,
                                                   uint64_t t0, uint32_t head)
{
    const uint64_t token = t0 + threadIdx.x;
    const bool is_there = token < a.tokens;
    if (threadIdx.x < STEP)
        tdm_copy_async_8(tdm_shared(facts + threadIdx.x),
                         tdm_row_facts(a, head) + (is_there ? token : 0), is_there);
}

/* Fills a stage with the rows of tokens from `t0` on of a query head. */
template <bool LISTS>
static __device__ __forceinline__ void
fetch_step(const tdm_attend &a, const tiles &shared, step_barriers &b, tdm_producer &producer,
           tdm_row_fact (*facts)[STEP], uint32_t number, uint64_t t0, uint32_t head, uint32_t step)
{
    wait_empty(b, producer, number);
    if (LISTS && threadIdx.x == 0)
        b.step[number % STAGES] = step;
    tdm_hopper_rows<STEP>(shared.step(number, 0), a, a.q.data, t0, head);
    tdm_hopper_rows<STEP>(shared.step(number, 1), a, a.d_out.data, t0, head);
    fetch_facts(facts[number % STAGES], a, t0, head);
    producer.commit(&b.full[number % STAGES]);
}

/* Masks scores [keys, tokens] of a warp's 16 keys from `key` on and the tokens from `t` on. */
static __device__ __forceinline__ void mask_keys(float (&s)[STEP / 8][4], const tdm_attend &a,
                                                 const uint32_t *seen, uint64_t t, uint32_t before,
                                                 uint32_t key)
{
    t += threadIdx.x % 4 * 2;
    key += threadIdx.x % 32 / 4;
#pragma unroll
    for (uint32_t n = 0; n < STEP / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint64_t token = t + 8 * n + i % 2;
            const uint32_t at = key + i / 2 * 8;
            if (token >= a.tokens || at < seen[token] || at > before + (uint32_t)token)
                s[n][i] = -INFINITY;
        }
    }
}

template <typename T, bool LISTS>
static __device__ __forceinline__ void sum_keys(const tdm_attend &a, const tiles &shared,
                                                step_barriers &b, const tdm_row_fact (*facts)[STEP],
                                                const walk<LISTS> &w, float scale)
{
    const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1, column = threadIdx.x % 4 * 2;
    const uint32_t k = shared.first + group * 64 * 128, v = shared.second + group * 64 * 128;
    const uint32_t key = w.key0 + group * 64 + tdm_hopper_warp_row();
    const uint32_t numbers = w.numbers();
    float p[STEP / 8][4], ds[STEP / 8][4], dk[DIM / 8][4] = {}, dv[DIM / 8][4] = {};
    uint32_t rounded_p[STEP / 16][4], rounded_ds[STEP / 16][4];
    for (uint32_t number = 0; number < numbers; number++) {
        const tdm_row_fact *const fact = facts[number % STAGES] + column;
        const uint64_t t0 = LISTS ? 0 : w.token(number);
        bool masked = t0 < w.all_begin || t0 + STEP > w.all_end;
        wait_full(b, number);
        const uint32_t step = LISTS ? b.step[number % STAGES] : 0;
        if constexpr (LISTS)
            masked = (step & TDM_STEP_MASKED) != 0;
        tdm_products_hold(p);
        tdm_products_hold(ds);
        tdm_products_begin();
        ask_turned(p, k, shared.step(number, 0));
        tdm_products_commit();
        ask_turned(ds, v, shared.step(number, 1));
        tdm_products_commit();
        tdm_products_wait<1>();
        tdm_products_hold(p);
        if (masked)
            mask_keys(p, a, tdm_seen_from(a, step & TDM_STEP_WHOLE, w.kv_head),
                      LISTS ? step & TDM_STEP_FIRST : t0, w.before, key);
#pragma unroll
        for (uint32_t n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[n][i] = tdm_exp2(p[n][i] * (scale * TDM_LOG2_E) - fact[8 * n + i % 2].lse);
        tdm_products_wait<0>();
        tdm_products_hold(ds);
#pragma unroll
        for (uint32_t n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ds[n][i] = p[n][i] * (ds[n][i] - fact[8 * n + i % 2].d);
        round_to(rounded_p, p);
        round_to(rounded_ds, ds);
        tdm_products_hold(dk);
        tdm_products_hold(dv);
        tdm_products_begin();
        ask_sum(dv, rounded_p, shared.step(number, 1));
        ask_sum(dk, rounded_ds, shared.step(number, 0));
        tdm_products_commit();
        tdm_products_wait<0>();
        tdm_products_hold(dk);
        tdm_products_hold(dv);
        release(b, number);
    }
    tdm_put_keys<T>(a, key, w.end, w.kv_head, dk, dv, scale);
}

/* A tile of keys. `whole`: keys from a multiple of TILE on lie in one page. */
template <typename T, bool LISTS>
static __device__ __forceinline__ void grad_of_keys(const tdm_attend &a, float scale, bool whole,
                                                    uint32_t block, const tiles &shared,
                                                    step_barriers &b, tdm_row_fact (*facts)[STEP])
{
    const walk<LISTS> w = walk_of<LISTS>(a, block);
    if (LISTS && w.numbers() == 0)
        return; /* nobody reads the page: tdm_launch_unread */
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<40>();
        const uint32_t numbers = w.numbers();
        tdm_producer producer;
        tdm_hopper_keys<TILE>(shared.first, a, 0, w.key0, w.end, w.kv_head, whole);
        tdm_hopper_keys<TILE>(shared.second, a, tdm_plane_of(a), w.key0, w.end, w.kv_head, whole);
        if constexpr (LISTS) {
            reader_walk readers(w.readers);
            for (uint32_t number = 0; number < numbers;) {
                readers.next(a, w);
                for (uint32_t i = 0; i < w.steps; i++, number++) {
                    const uint32_t step = readers.step + i % (TILE / STEP) * STEP;
                    const uint32_t head = w.kv_head * w.ratio + i / (TILE / STEP);
                    fetch_step<LISTS>(a, shared, b, producer, facts, number, step & TDM_STEP_FIRST,
                                      head, step);
                }
            }
        } else {
            for (uint32_t number = 0; number < numbers; number++)
                fetch_step<LISTS>(a, shared, b, producer, facts, number, w.token(number),
                                  w.kv_head * w.ratio + number / w.steps, 0);
        }
        producer.finish();
    } else {
        tdm_take_registers<232>();
        sum_keys<T, LISTS>(a, shared, b, facts, w, scale);
    }
}

/* Blocks from `first` on of both kinds of tiles: keys, then rows; over lists rows, then keys by falling number of
 * readers. */
template <typename T, bool LISTS>
static __global__ void __launch_bounds__(THREADS, 1)
    grad_tiles(const tdm_attend a, float scale, bool whole_steps, bool whole, uint32_t key_blocks,
               uint32_t row_blocks, uint32_t first)
{
    extern __shared__ unsigned char memory[];
    __shared__ step_barriers b;
    __shared__ __align__(16) tdm_row_fact facts[STAGES][STEP];
    const tiles shared(memory);
    const uint32_t block = first + blockIdx.x, before = LISTS ? row_blocks : 0;
    init_barriers(b);
    if (block - before < key_blocks)
        grad_of_keys<T, LISTS>(a, scale, whole, block - before, shared, b, facts);
    else
        grad_of_rows<LISTS>(a, scale, whole_steps, LISTS ? block : block - key_blocks, shared, b);
}

extern "C" enum tdm_status tdm_cuda_attention_grad_hopper(const struct tdm_attend *a,
                                                          cudaStream_t stream,
                                                          struct tdm_error *err)
{
    const uint64_t keys = a->first_token + a->tokens - a->key_token;
    const unsigned row_blocks = (unsigned)((a->tokens + TILE - 1) / TILE * a->query_heads);
    const unsigned key_blocks = (unsigned)((keys + TILE - 1) / TILE * a->kv_heads);
    const float scale = (float)(1.0 / sqrt((double)DIM));
    const bool whole_steps = a->page_tokens % STEP == 0 && a->chunk_tokens % STEP == 0;
    const bool whole = a->page_tokens % TILE == 0 && a->chunk_tokens % TILE == 0;
    const bool lists = a->lists.pages != NULL;
    const enum tdm_dtype gradients = a->written.data != NULL ? a->written.dtype : a->added.dtype;
    cudaError_t code = cudaSuccess;
    tdm_launch_row_facts(a, stream);
    enum tdm_status status = tdm_with_type(gradients, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        auto *kernel = lists ? grad_tiles<T, true> : grad_tiles<T, false>;
        code = cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SHARED_BYTES);
        if (code != cudaSuccess)
            return;
        if (lists) {
            const unsigned read = tdm_read_blocks(a);
            tdm_launch_unread<T>(a, stream);
            kernel<<<row_blocks + read, THREADS, SHARED_BYTES, stream>>>(
                *a, scale, whole_steps, whole, read, row_blocks, 0);
            return;
        }
        const unsigned together = key_blocks < FEW_BLOCKS ? row_blocks : 0;
        kernel<<<key_blocks + together, THREADS, SHARED_BYTES, stream>>>(
            *a, scale, whole_steps, whole, key_blocks, row_blocks, 0);
        if (together == 0)
            kernel<<<row_blocks, THREADS, SHARED_BYTES, stream>>>(
                *a, scale, whole_steps, whole, key_blocks, row_blocks, key_blocks);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(code, "cudaFuncSetAttribute of attention_grad", err);
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "attention_grad launch", err)
                            : status;
}
