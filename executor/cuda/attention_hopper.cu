/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on Hopper, forward: bf16, head dim 64 or 128.
 *
 * As FlashAttention-3 (arXiv 2407.08608, algorithms 1 and 2). A block has ROWS tokens of one query head: two threads
 * ask the copy engine for Q and K, and for V, with rising position, KEYS at a time; two warpgroups of consumers have
 * 64 rows each. A consumer asks for S(n) = Q K^T and for O += P(n - 1) V, then makes P(n) from S(n) while the other
 * consumer's products run: named barriers let them take turns. Two blocks of a cluster have row tiles of the same KV
 * head; each copies half of the columns of K and V for both.
 *
 * Exponentials are relative to a shift for each row. A step is made with care where it is the first, where
 * something is masked, or where the step before was: then the shift follows the largest score, with slack (scores.cuh).
 * Other steps take the shift as it is, and do not look for a maximum. Should a sum of exponentials come out larger
 * than LARGEST_SUM, or not be a number, then the cluster does its tiles again with care in all steps. This
 * depends on the data alone.
 *
 * Steps of 176 keys need fewer turns than steps of 128, and are composed of pieces of pages; over lists of pages
 * (LISTS) a page of 128 is a step, and the producer reads an entry of the list a step ahead and leaves the consumers the
 * first key with it and whether they must mask.
 */
#include "executor/cuda/hopper_maps.h"
#include "executor/cuda/hopper_tiles.cuh"
#include "executor/cuda/scores.cuh"

#define ROWS 128u
#define STAGES 2u
#define CONSUMERS 2u
#define THREADS ((CONSUMERS + 1) * TDM_WARPGROUP)
#define LARGEST_SUM 1.8446744e19f /* 2^64: far from overflow, with all that it is multiplied by */
#define PIECE 16u /* keys of the smallest piece of a step; pieces are 16, 32, 64, 128 */
#define PIECES 4u

/* What a kernel is made for. */
template <int DIM_, uint32_t KEYS_, uint32_t CLUSTER_, bool LISTS_> struct made_for {
    static constexpr int DIM = DIM_;
    static constexpr uint32_t KEYS = KEYS_, CLUSTER = CLUSTER_, COLUMNS = DIM_ / 64;
    static constexpr bool LISTS = LISTS_;
    static constexpr uint32_t Q_BYTES = ROWS * DIM_ * 2, TILE_BYTES = KEYS_ * DIM_ * 2;
    static constexpr uint32_t SHARED_BYTES = Q_BYTES + 2 * STAGES * TILE_BYTES + 1024;
    static_assert(CLUSTER_ == 1 || (CLUSTER_ == 2 && COLUMNS == 2), "a block copies one column");
};

struct maps {
    CUtensorMap q, keys[PIECES]; /* boxes of 128, 64, 32, 16 keys; over lists the first alone */
};

struct barriers {
    uint64_t full_q, full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
    uint32_t again; /* a sum was too large */
    /* over lists: TDM_STEP_FIRST and what follows; what all rows see, near and whole, and before their own tokens */
    uint32_t step[STAGES], all_from, all_start, all_end;
};

/* What a block works on. Keys [begin, end) are those that a row of the cluster sees. */
template <class P> struct item {
    uint32_t t0, head, kv_head, before, begin, end;
    bool
        is_extra; /* there is no tile for the second block: it does the first one's, and writes nothing */
    const uint32_t *list;

    /* One KV head after the other, so that the second-level cache holds what all blocks read; of each its row tiles, the
     * longest first, of each the query heads; neighbours make a cluster. */
    __device__ __forceinline__ item(const tdm_attend &a)
    {
        const uint32_t ratio = a.query_heads / a.kv_heads;
        const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS),
                       all = row_tiles * ratio;
        const uint32_t clusters = (all + P::CLUSTER - 1) / P::CLUSTER; /* of a KV head */
        const uint32_t cluster = blockIdx.x / P::CLUSTER, rank = blockIdx.x % P::CLUSTER;
        const uint32_t first = cluster % clusters * P::CLUSTER;
        const uint32_t last = first + P::CLUSTER - 1 < all ? first + P::CLUSTER - 1 : all - 1;
        const uint32_t number = first + rank < all ? first + rank : last;
        const uint32_t top = (row_tiles - 1 - first / ratio) * ROWS;
        const uint32_t bottom = (row_tiles - 1 - last / ratio) * ROWS;
        is_extra = first + rank > last;
        kv_head = cluster / clusters;
        head = kv_head * ratio + number % ratio;
        t0 = (row_tiles - 1 - number / ratio) * ROWS;
        before = (uint32_t)(a.first_token - a.key_token);
        end = before + (top + ROWS < a.tokens ? top + ROWS : (uint32_t)a.tokens);
        begin = P::LISTS ? 0 : a.from[bottom] / PIECE * PIECE;
        if (P::LISTS)
            list = tdm_list_of(a, t0 / ROWS, kv_head);
    }

    __device__ __forceinline__ uint32_t count(void) const
    {
        return P::LISTS ? list[0] : (end - begin + P::KEYS - 1) / P::KEYS;
    }
};

/* ---- the producers ---- */

/* Where keys lie, as they are copied one step after the other. */
struct place {
    uint32_t slot, plane, in_page; /* plane: of K or of V, as in hopper_maps.h */
};

static __device__ __forceinline__ place place_of(const tdm_attend &a, uint32_t key, uint32_t plane)
{
    const uint32_t chunk_tokens = (uint32_t)a.chunk_tokens, page_tokens = (uint32_t)a.page_tokens;
    place at;
    at.slot = key / chunk_tokens;
    key -= at.slot * chunk_tokens;
    at.plane = key / page_tokens;
    at.in_page = key - at.plane * page_tokens;
    at.plane = 2 * at.plane + plane;
    return at;
}

/* Asks for `keys` keys from `at` on, a multiple of PIECE. Leaves `at` behind them. */
template <class P>
static __device__ __forceinline__ void copy_keys(const tdm_attend &a, const maps &m,
                                                 uint32_t column, uint32_t to, place &at,
                                                 uint32_t keys, uint64_t *barrier)
{
    const uint32_t page_tokens = (uint32_t)a.page_tokens;
#pragma unroll 1
    while (keys > 0) {
        uint32_t piece = keys < page_tokens - at.in_page ? keys : page_tokens - at.in_page;
        const uint32_t i = piece >= 128 ? 0 : __clz((int)piece) - 24; /* the largest box */
        piece = 128u >> i;
        if constexpr (P::CLUSTER == 2)
            tdm_copy_keys_to_both(to, m.keys[i], at.in_page, column, at.plane, at.slot, barrier);
        else
            tdm_copy_keys(to, m.keys[i], at.in_page, column, at.plane, at.slot, barrier);
        to += piece * 128;
        keys -= piece;
        at.in_page += piece;
        if (at.in_page == page_tokens) {
            at.in_page = 0;
            at.plane += 2;
            if (at.plane / 2 * page_tokens >= (uint32_t)a.chunk_tokens) {
                at.plane &= 1;
                at.slot++;
            }
        }
    }
}

template <class P>
static __device__ __forceinline__ void wait_empty(uint64_t *barrier, uint32_t phase)
{
    if constexpr (P::CLUSTER == 2)
        tdm_barrier_wait_cluster(barrier, phase);
    else
        tdm_barrier_wait(barrier, phase);
}

/* What the consumers must know of a step over a list. */
static __device__ __forceinline__ uint32_t step_of(uint32_t entry, uint32_t first_page,
                                                   const barriers &b)
{
    const uint32_t key = ((entry & TDM_PAGE_NUMBER) - first_page) * TDM_HOPPER_PAGE;
    const bool whole = (entry & TDM_PAGE_WHOLE) != 0;
    const bool masked =
        key + TDM_HOPPER_PAGE > b.all_end || key < (whole ? b.all_start : b.all_from);
    return key + (whole ? TDM_STEP_WHOLE : 0) + (masked ? TDM_STEP_MASKED : 0);
}

/* K, or V (`plane` 1), of all steps; of each a thread, so that neither waits for the room of the other. `number`: of the
 * first step among all that this block has made. */
template <class P, uint32_t plane>
static __device__ __forceinline__ void produce(const tdm_attend &a, const maps &m, const item<P> &w,
                                               uint32_t tiles, barriers &b, uint32_t number)
{
    const uint32_t rank = blockIdx.x % P::CLUSTER, column = w.kv_head * P::COLUMNS + rank;
    const uint32_t to =
        tiles + P::Q_BYTES + plane * STAGES * P::TILE_BYTES + rank * (P::KEYS * 128);
    const uint32_t end = number + w.count();
    uint64_t *const full = plane == 0 ? b.full_k : b.full_v;
    uint64_t *const empty = plane == 0 ? b.empty_k : b.empty_v;
    if constexpr (P::LISTS) {
        const uint32_t first_page = tdm_first_page(a);
        const uint32_t slot_pages = (uint32_t)a.chunk_tokens / TDM_HOPPER_PAGE;
        const uint32_t *entries = w.list + 1;
        uint32_t entry = *entries; /* read a step ahead, so that it need not be waited for */
#pragma unroll 1
        for (; number < end; number++) {
            const uint32_t stage = number % STAGES, page = (entry & TDM_PAGE_NUMBER) - first_page;
            const uint32_t slot = page / slot_pages;
            const uint32_t step = step_of(entry, first_page, b);
            if (number + 1 < end)
                entry = *++entries;
            tdm_barrier_wait(&empty[stage], number / STAGES + 1);
            if (plane == 0)
                b.step[stage] = step;
            tdm_barrier_expect(&full[stage], P::TILE_BYTES);
            tdm_copy_keys(to + stage * P::TILE_BYTES, m.keys[0], 0, column,
                          2 * (page - slot * slot_pages) + plane, slot, &full[stage]);
        }
    } else {
        /* keys behind the last token were never written */
        uint32_t left = (w.before + (uint32_t)a.tokens - w.begin + PIECE - 1) / PIECE * PIECE;
        place at = place_of(a, w.begin, plane);
#pragma unroll 1
        for (; number < end; number++) {
            const uint32_t stage = number % STAGES, keys = left < P::KEYS ? left : P::KEYS;
            left -= keys;
            wait_empty<P>(&empty[stage], number / STAGES + 1);
            tdm_barrier_expect(&full[stage], keys * P::DIM * 2);
            copy_keys<P>(a, m, column, to + stage * P::TILE_BYTES, at, keys, &full[stage]);
        }
    }
}

/* ---- the consumers ---- */

/* Asks for S = Q K^T. */
template <class P>
static __device__ __forceinline__ void ask_scores(float (&s)[P::KEYS / 8][4], tdm_uniform_tile q,
                                                  tdm_uniform_tile k)
{
#pragma unroll
    for (uint32_t d = 0; d < P::DIM / 16; d++)
        tdm_wgmma<0>(s, tdm_matrix_at(q, d / 4 * (ROWS * 128) + d % 4 * 32),
                     tdm_matrix_at(k, d / 4 * (P::KEYS * 128) + d % 4 * 32), d > 0);
    tdm_products_commit();
}

/* Asks for O += P V. */
template <class P>
static __device__ __forceinline__ void
ask_values(float (&out)[P::DIM / 8][4], const uint32_t (&p)[P::KEYS / 16][4], tdm_uniform_tile v)
{
#pragma unroll
    for (uint32_t block = 0; block < P::KEYS / 16; block++)
        tdm_wgmma<1>(out, p[block], tdm_matrix_at(v, block * 2048), true);
    tdm_products_commit();
}

template <class P> static __device__ __forceinline__ void release(uint64_t *barrier)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (P::CLUSTER == 2) {
        if (lane < 2)
            tdm_barrier_arrive_at(barrier, lane);
    } else {
        if (lane == 0)
            tdm_barrier_arrive(barrier);
    }
}

/* Zeros for the rows [first, P::KEYS) of a tile of V, which hold what was never written. */
template <class P> static __device__ __forceinline__ void clear_rows(uint32_t v, uint32_t first)
{
    for (uint32_t column = 0; column < P::COLUMNS; column++)
        for (uint32_t at = first * 128 + threadIdx.x % TDM_WARPGROUP * 16; at < P::KEYS * 128;
             at += TDM_WARPGROUP * 16)
            asm volatile(
                "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + column * P::KEYS * 128 + at),
                "r"(0)
                : "memory");
    tdm_fence_shared();
    asm volatile("bar.sync %0, %1;" ::"r"(2 + threadIdx.x / TDM_WARPGROUP), "n"(TDM_WARPGROUP)
                 : "memory");
}

/* Writes the rows of tokens from `t` on, a warp's 16, and their LSE. Of four blocks of 8 columns that the four lanes of a
 * row share, each lane gets one. */
template <class P>
static __device__ __forceinline__ void put_rows(const float (&out)[P::DIM / 8][4],
                                                const tdm_softmax<1> &rows, const tdm_attend &a,
                                                uint64_t t, uint32_t head)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint64_t token = t + 8 * h + lane / 4, row = token * a.query_heads + head;
        const bool is_there = token < a.tokens;
        float sum = rows.sum[0][h];
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
        const float share = 1.0f / sum;
        uint4 *to = (uint4 *)((__nv_bfloat16 *)a.out.data + row * P::DIM) + j;
#pragma unroll
        for (int g = 0; g < P::DIM / 32; g++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = tdm_pack(out[4 * g + i][2 * h] * share, out[4 * g + i][2 * h + 1] * share);
            tdm_turn_four(x, j);
            if (is_there)
                to[4 * g] = make_uint4(x[0], x[1], x[2], x[3]);
        }
        if (is_there && j == 0)
            a.lse[row] = rows.shift[0][h] / TDM_LOG2_E + logf(sum);
    }
}

/* True if a sum of the warp's rows came out too large. `always`: with care in all steps. */
template <class P>
static __device__ __forceinline__ bool consume(const tdm_attend &a, const item<P> &w,
                                               uint32_t tiles, barriers &b, uint32_t number,
                                               bool always, float scale)
{
    const uint32_t group = __shfl_sync(TDM_FULL_WARP, threadIdx.x / TDM_WARPGROUP, 0) - 1;
    const uint32_t k = tiles + P::Q_BYTES, v = k + STAGES * P::TILE_BYTES, count = w.count();
    const uint32_t first = w.t0 + group * 64;
    const uint64_t t = first + tdm_hopper_warp_row();
    const uint32_t last = (w.t0 + ROWS < a.tokens ? w.t0 + ROWS : (uint32_t)a.tokens) - 1;
    const uint32_t last_from = a.from[last];
    const tdm_uniform_tile q = tdm_uniform(tiles + group * 64 * 128, 16);
    tdm_softmax<1> rows = tdm_no_sums<1>();
    float scores[1][P::KEYS / 8][4], out[1][P::DIM / 8][4] = {};
    uint32_t p[P::KEYS / 16][4];
    float rescale[1][2];
    bool was_masked = true;

    /* Masks S of step n, and follows its largest scores where that is due; true if what was summed must be rescaled. */
    const auto prepare = [&](uint32_t n, uint32_t stage) {
        const uint32_t step = P::LISTS ? b.step[stage] : w.begin + n * P::KEYS;
        const bool masked = P::LISTS ? (step & TDM_STEP_MASKED) != 0
                                     : step + P::KEYS > w.before + first + 1 || step < last_from;
        const bool careful = masked || was_masked || always;
        was_masked = masked;
        if (masked)
            tdm_mask(scores, a, tdm_seen_from(a, P::LISTS && (step & TDM_STEP_WHOLE), w.kv_head), t,
                     P::LISTS ? step & TDM_STEP_FIRST : step);
        return careful && tdm_follow(scores, rows, scale, rescale);
    };
    const auto k_of = [&](uint32_t stage) { return tdm_uniform(k + stage * P::TILE_BYTES, 16); };
    const auto v_of = [&](uint32_t stage) {
        return tdm_uniform(v + stage * P::TILE_BYTES, P::KEYS * 128);
    };

    uint32_t stage = number % STAGES, phase = number / STAGES;
    tdm_barrier_wait(&b.full_k[stage], phase);
    tdm_products_hold(scores[0]);
    tdm_products_begin();
    ask_scores<P>(scores[0], q, k_of(stage));
    tdm_products_wait<0>();
    tdm_products_hold(scores[0]);
    release<P>(&b.empty_k[stage]);
    prepare(0, stage);
#pragma unroll
    for (int block = 0; block < (int)P::KEYS / 16; block++)
        tdm_raise(scores, block, rows, scale);
#pragma unroll
    for (int block = 0; block < (int)P::KEYS / 16; block++)
        tdm_as_a(p[block], scores[0][2 * block], scores[0][2 * block + 1]);
#pragma unroll 1
    for (uint32_t n = 1; n < count; n++) {
        const uint32_t old = stage, old_phase = phase;
        if (++stage == STAGES) {
            stage = 0;
            phase++;
        }
        const tdm_uniform_tile key_tile = k_of(stage), value_tile = v_of(old);
        tdm_barrier_wait(&b.full_k[stage], phase);
        tdm_turn_wait(1 + group);
        tdm_products_hold(scores[0]);
        tdm_products_hold(out[0]);
        tdm_products_begin();
        ask_scores<P>(scores[0], q, key_tile);
        tdm_barrier_wait(&b.full_v[old], old_phase);
        tdm_products_begin();
        ask_values<P>(out[0], p, value_tile);
        tdm_turn_give(2 - group);
        tdm_products_wait<1>();
        tdm_products_hold(scores[0]);
        release<P>(&b.empty_k[stage]);
        const bool lags = prepare(n, stage);
#pragma unroll
        for (int block = 0; block < (int)P::KEYS / 16; block++)
            tdm_raise(scores, block, rows, scale);
        tdm_products_wait<0>();
        tdm_products_hold(out[0]);
        release<P>(&b.empty_v[old]);
#pragma unroll
        for (int block = 0; block < (int)P::KEYS / 16; block++)
            tdm_as_a(p[block], scores[0][2 * block], scores[0][2 * block + 1]);
        if (lags)
            tdm_rescale(out, rescale);
    }
    tdm_barrier_wait(&b.full_v[stage], phase);
    const uint32_t key =
        P::LISTS ? b.step[stage] & TDM_STEP_FIRST : w.begin + (count - 1) * P::KEYS;
    if (key + P::KEYS >
        w.before + (uint32_t)a.tokens) /* the last keys of the chunk are in a last step */
        clear_rows<P>(v + stage * P::TILE_BYTES, w.before + (uint32_t)a.tokens - key);
    tdm_products_hold(out[0]);
    tdm_products_begin();
    ask_values<P>(out[0], p, v_of(stage));
    tdm_products_wait<0>();
    tdm_products_hold(out[0]);
    release<P>(&b.empty_v[stage]);
    if (!w.is_extra)
        put_rows<P>(out[0], rows, a, t, w.head);
    const float most = fmaxf(rows.sum[0][0], rows.sum[0][1]);
    return !(most <= LARGEST_SUM) || rows.sum[0][0] != rows.sum[0][0] ||
           rows.sum[0][1] != rows.sum[0][1];
}

/* All threads of the cluster have come here. No block leaves before the others have read what it gave them. */
template <class P> static __device__ __forceinline__ void end_pass(void)
{
    if constexpr (P::CLUSTER == 2)
        tdm_cluster_sync();
    else
        __syncthreads();
}

template <class P>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_hopper(const __grid_constant__ tdm_attend a, const __grid_constant__ maps m, float scale)
{
    extern __shared__ unsigned char memory[];
    __shared__ barriers b;
    const uint32_t tiles = (tdm_shared(memory) + 1023) / 1024 * 1024;
    const item<P> w(a);
    if (P::LISTS && w.count() == 0)
        return;
    if (threadIdx.x == 0) {
        tdm_barrier_init(&b.full_q, 1);
        for (uint32_t i = 0; i < STAGES; i++) {
            tdm_barrier_init(&b.full_k[i], 1);
            tdm_barrier_init(&b.full_v[i], 1);
            tdm_barrier_init(&b.empty_k[i], P::CLUSTER * CONSUMERS * TDM_WARPGROUP / 32);
            tdm_barrier_init(&b.empty_v[i], P::CLUSTER * CONSUMERS * TDM_WARPGROUP / 32);
        }
        b.again = 0;
        if (P::LISTS) {
            const uint64_t last = (w.t0 + ROWS < a.tokens ? w.t0 + ROWS : a.tokens) - 1;
            b.all_from = tdm_seen_from(a, false, w.kv_head)[last];
            b.all_start = tdm_seen_from(a, true, w.kv_head)[last];
            b.all_end = w.before + w.t0 + 1;
        }
        tdm_barriers_ready();
    }
    end_pass<P>();
    if (threadIdx.x < TDM_WARPGROUP) {
        tdm_give_registers<24>();
        if (threadIdx.x == 0) {
            tdm_barrier_expect(&b.full_q, P::Q_BYTES);
            tdm_copy_rows(tiles, m.q, w.t0, w.head * P::COLUMNS, &b.full_q);
        }
#pragma unroll 1
        for (uint32_t pass = 0; pass == 0 || (b.again != 0 && pass < 2); pass++) {
            if (threadIdx.x == 0)
                produce<P, 0>(a, m, w, tiles, b, pass * w.count());
            else if (threadIdx.x == 32)
                produce<P, 1>(a, m, w, tiles, b, pass * w.count());
            __syncwarp();
            end_pass<P>();
        }
    } else {
        tdm_take_registers<240>();
        const uint32_t group = threadIdx.x / TDM_WARPGROUP - 1;
        if (group == 1)
            tdm_turn_give(1);
        tdm_barrier_wait(&b.full_q, 0);
#pragma unroll 1
        for (uint32_t pass = 0; pass == 0 || (b.again != 0 && pass < 2); pass++) {
            const bool large = consume<P>(a, w, tiles, b, pass * w.count(), pass > 0, scale);
            if (large && pass == 0) {
                b.again = 1;
                if constexpr (P::CLUSTER == 2)
                    tdm_cluster_store(&b.again, blockIdx.x % 2 ^ 1, 1);
            }
            __syncwarp();
            end_pass<P>();
        }
        if (group == 0)
            tdm_turn_wait(1);
    }
}

extern "C" bool tdm_cuda_attention_hopper_suits(const struct tdm_attend *a)
{
    const uint64_t keys = a->first_token + a->tokens - a->key_token;
    const bool whole = keys <= a->chunk_tokens || a->chunk_tokens % a->page_tokens == 0;
    return tdm_is_hopper() && a->q.dtype == TDM_DTYPE_BF16 && a->pages.dtype == TDM_DTYPE_BF16 &&
           (a->head_dim == 64 || a->head_dim == 128) && keys <= INT32_MAX && whole &&
           a->page_tokens % TDM_HOPPER_PAGE == 0 &&
           (a->lists.pages == NULL || a->page_tokens == TDM_HOPPER_PAGE);
}

template <class P>
static enum tdm_status launch(const struct tdm_attend *attend, cudaStream_t stream,
                              struct tdm_error *err)
{
    struct tdm_attend a = *attend;
    const uint64_t keys = a.first_token + a.tokens - a.key_token;
    const uint64_t rows = (a.tokens + ROWS - 1) / ROWS * (a.query_heads / a.kv_heads);
    const float scale = (float)(1.0 / sqrt((double)P::DIM)) * TDM_LOG2_E;
    maps m;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < PIECES && status == TDM_OK; i++)
        status = tdm_cuda_map_pages(&a, 128u >> i, P::COLUMNS / P::CLUSTER, &m.keys[i], err);
    if (status == TDM_OK)
        status = tdm_cuda_map_rows(a.q.data, a.tokens, a.query_heads, P::DIM, ROWS, &m.q, err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaFuncSetAttribute((const void *)attend_hopper<P>,
                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)P::SHARED_BYTES),
                          err);
    if (status != TDM_OK)
        return status;
    if (keys <= a.chunk_tokens) /* one slot, whose last page is whole */
        a.chunk_tokens = (a.chunk_tokens + a.page_tokens - 1) / a.page_tokens * a.page_tokens;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {P::CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3((unsigned)((rows + P::CLUSTER - 1) / P::CLUSTER * P::CLUSTER * a.kv_heads));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = P::SHARED_BYTES;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return tdm_cuda_status(cudaLaunchKernelEx(&config, attend_hopper<P>, a, m, scale),
                           "attention launch", err);
}

extern "C" enum tdm_status tdm_cuda_attention_hopper(const struct tdm_attend *a,
                                                     cudaStream_t stream, struct tdm_error *err)
{
    const bool lists = a->lists.pages != NULL;
    if (a->head_dim == 64)
        return lists ? launch<made_for<64, 128, 1, true>>(a, stream, err)
                     : launch<made_for<64, 176, 1, false>>(a, stream, err);
    return lists ? launch<made_for<128, 128, 1, true>>(a, stream, err)
                 : launch<made_for<128, 176, 2, false>>(a, stream, err);
}
