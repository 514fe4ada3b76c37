/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on tensor cores, backward: bf16, head dims 64,
 * 96 and 128.
 *
 * FlashAttention-2 (arXiv 2307.08691, algorithm 2) with mma.sync, without atomics:
 *
 *     P = exp(scores - LSE),  D = rowsum(dO * O),  dS = P * (dO V^T - D)
 *     dV = P^T dO,  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 *
 * There are two kinds of blocks. Some have ROWS tokens of a query head, a warp 32 of them, and loop
 * over the keys: three products, with dQ in registers. The others have KEYS keys of a KV head, a
 * warp 16 of them. They loop over the tokens that see them, for each query head of the KV head in
 * turn: four products with keys as rows. K, V, dK and dV stay in registers, and dK and dV go to the
 * pages once. These are seven products, instead of the five of one kernel that sums dQ with
 * atomics. But sums have one order, so results repeat. Over lists of pages (LISTS) rows loop over
 * their list, and keys over the query pages of their page's inverse list (lists.cu).
 *
 * The limit is the data that the tensor cores read from shared memory. So a warp has as many rows
 * as fit in registers. Measured on an H200, 28/4 heads x 128, 4K tokens over 32K keys, counted as
 * five products: 104 to 166 TFLOP/s with 16 rows a warp everywhere and row facts loaded inside the
 * loop. 245 as here, but in two launches one after the other. 258 in one launch (4K over 8K: 207
 * and 256), because blocks of one kind use what the others leave idle at their end. With eight
 * warps a block instead of four, 246.
 */
#include "executor/cuda/gradients.cuh"
#include "executor/cuda/tiles.cuh"

#define WARPS 4 /* in a block */
#define THREADS (WARPS * 32)

#define ROW_BLOCKS 2 /* blocks of 16 rows in a warp */
#define WARP_ROWS (16 * ROW_BLOCKS)
#define ROWS (WARPS * WARP_ROWS) /* in a block */
#define STEP_KEYS 32             /* processed at a time */
#define ROW_STAGES 2

#define KEYS (WARPS * 16) /* in a block */
#define STEP_ROWS 64      /* processed at a time */
#define PART_ROWS 16      /* of these, held in registers */
#define KEY_STAGES 2
/* rows of shared memory: for the stages or, before them, for K and V */
#define KEY_TILE_ROWS (2 * (KEY_STAGES * STEP_ROWS > KEYS ? KEY_STAGES * STEP_ROWS : KEYS))

template <int BLOCKS> static __device__ __forceinline__ void clear(float (&c)[BLOCKS][4])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.0f;
}

/* ---- dQ ---- */

/* dq += dS K for the keys [key, key + STEP_KEYS); `k` and `v` are their tiles. */
template <int D, bool MASKED>
static __device__ __forceinline__ void
add_keys(float (&dq)[ROW_BLOCKS][D / 8][4], uint32_t q, uint32_t d_out, uint32_t k_columns,
         uint32_t v_columns, uint32_t k_rows, const tdm_row_fact (&facts)[ROW_BLOCKS][2],
         float scale, const tdm_attend &a, const uint32_t *seen, uint64_t t, uint32_t first_key)
{
    float p[ROW_BLOCKS][STEP_KEYS / 8][4], ds[ROW_BLOCKS][STEP_KEYS / 8][4];
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
        clear(p[r]);
        clear(ds[r]);
    }
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t of_q[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_load_a<D>(of_q[r], q, 16 * r, d);
#pragma unroll
        for (int n = 0; n < STEP_KEYS / 8; n += 2) {
            uint32_t of_k[4];
            tdm_load_b_turned<D>(of_k, k_columns, 8 * n, d);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(p[r][n], of_q[r], of_k[0], of_k[1]);
                tdm_mma(p[r][n + 1], of_q[r], of_k[2], of_k[3]);
            }
        }
    }
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t of_o[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_load_a<D>(of_o[r], d_out, 16 * r, d);
#pragma unroll
        for (int n = 0; n < STEP_KEYS / 8; n += 2) {
            uint32_t of_v[4];
            tdm_load_b_turned<D>(of_v, v_columns, 8 * n, d);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(ds[r][n], of_o[r], of_v[0], of_v[1]);
                tdm_mma(ds[r][n + 1], of_o[r], of_v[2], of_v[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t from = 0, position = 0;
            if (MASKED) {
                const uint64_t token = t + 16 * r + 8 * h + lane / 4;
                from = seen[token < a.tokens ? token : a.tokens - 1];
                position = tdm_attend_last_key(&a, token);
            }
#pragma unroll
            for (int n = 0; n < STEP_KEYS / 8; n++) {
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    const uint32_t key = first_key + 8 * n + lane % 4 * 2 + i % 2;
                    float each = tdm_exp2(p[r][n][i] * scale - facts[r][h].lse);
                    if (MASKED && (key < from || key > position))
                        each = 0.0f;
                    ds[r][n][i] = each * (ds[r][n][i] - facts[r][h].d);
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < STEP_KEYS / 16; k++) {
        uint32_t of_ds[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_as_a(of_ds[r], ds[r][2 * k], ds[r][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t of_k[4];
            tdm_load_b<D>(of_k, k_rows, 16 * k, n);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(dq[r][2 * n], of_ds[r], of_k[0], of_k[1]);
                tdm_mma(dq[r][2 * n + 1], of_ds[r], of_k[2], of_k[3]);
            }
        }
    }
}

/* dQ of a tile of rows, the longest tiles first. `WHOLE`: STEP_KEYS keys from a multiple of
 * STEP_KEYS on lie in one page. */
template <int D, bool WHOLE, bool LISTS>
static __device__ __forceinline__ void grad_of_rows(const tdm_attend &a, float scale,
                                                    uint32_t block, unsigned char *tiles)
{
    constexpr uint32_t row_bytes = tdm_row_bytes<D>, tile_bytes = STEP_KEYS * row_bytes;
    const uint32_t q = tdm_shared(tiles), d_out = q + ROWS * row_bytes;
    const uint32_t stages = d_out + ROWS * row_bytes;
    const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS);
    const uint32_t head = block % a.query_heads;
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    const uint64_t t0 = (uint64_t)(row_tiles - 1 - block / a.query_heads) * ROWS;
    const uint64_t last = (t0 + ROWS < a.tokens ? t0 + ROWS : a.tokens) - 1;
    const uint32_t end = tdm_attend_last_key(&a, last) + 1; /* of the keys */
    const uint32_t begin = LISTS ? 0 : a.from[t0] / STEP_KEYS * STEP_KEYS;
    const uint32_t lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * WARP_ROWS;

    /* the warp's tokens, the keys that some of them see, and those that all of them see */
    const uint64_t t = t0 + first_row;
    const uint64_t warp_last = t + WARP_ROWS - 1 < last ? t + WARP_ROWS - 1 : last;
    const bool is_there = t <= last;
    const tdm_sight<LISTS> sight(a, kv_head, t, warp_last, is_there);
    const uint32_t some_end = is_there ? tdm_attend_last_key(&a, warp_last) + 1 : 0;
    const uint32_t all_end = tdm_attend_last_key(&a, t) + 1;
    const uint32_t of_q = q + first_row * row_bytes + tdm_lane_rows<D>();
    const uint32_t of_d_out = d_out + first_row * row_bytes + tdm_lane_rows<D>();

    tdm_key_cursor cursor;
    tdm_list_cursor<STEP_KEYS> step = {}, next_step = {}; /* over a list */
    uint32_t next = begin, next_stage = 0;                /* next to be copied */
    if constexpr (LISTS) {
        step.begin(a, t0, kv_head);
        next_step = step;
        if (step.left == 0)
            return;
    } else if constexpr (WHOLE) {
        cursor = tdm_key_cursor_at(a, begin, kv_head);
    }
    const auto fetch_next = [&]() {
        const uint32_t to = stages + next_stage * 2 * tile_bytes;
        if constexpr (LISTS) {
            if (next_step.left > 0) {
                cursor = tdm_key_cursor_at(a, next_step.key, kv_head);
                tdm_fetch_at_cursor<D, STEP_KEYS, THREADS>(
                    to, to + tile_bytes, cursor, a, next_step.key < end ? end - next_step.key : 0);
                next_step.next(a);
            }
        } else if (next < end) {
            if constexpr (WHOLE) {
                tdm_fetch_at_cursor<D, STEP_KEYS, THREADS>(to, to + tile_bytes, cursor, a,
                                                           end - next);
                tdm_key_cursor_advance<STEP_KEYS>(cursor, a);
            } else {
                tdm_fetch_keys<D, STEP_KEYS, THREADS>(to, to + tile_bytes, a, next, end, kv_head);
            }
        }
        tdm_copy_commit();
        next += STEP_KEYS;
        next_stage = next_stage + 1 == ROW_STAGES ? 0 : next_stage + 1;
    };
    tdm_fetch_rows<D, ROWS, THREADS>(q, a, a.q.data, t0, head);
    tdm_fetch_rows<D, ROWS, THREADS>(d_out, a, a.d_out.data, t0, head);
#pragma unroll
    for (int i = 0; i < ROW_STAGES - 1; i++)
        fetch_next();

    tdm_row_fact facts[ROW_BLOCKS][2];
    float dq[ROW_BLOCKS][D / 8][4];
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
        clear(dq[r]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t token = t + 16 * r + 8 * h + lane / 4;
            /* rows beyond the last token have zeros; their results are not used */
            facts[r][h] =
                token < a.tokens ? tdm_row_facts(a, head)[token] : tdm_row_fact{0.0f, 0.0f};
        }
    }

    uint32_t stage = 0;
    for (uint32_t key = begin; LISTS ? step.left > 0 : key < end; key += STEP_KEYS) {
        const uint32_t k = stages + stage * 2 * tile_bytes, v = k + tile_bytes;
        tdm_copy_wait<ROW_STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and no thread reads the previous one any more */
        fetch_next();
        bool sees_whole = false;
        if constexpr (LISTS) {
            key = step.key;
            sees_whole = step.whole;
            step.next(a);
        }
        const uint32_t k_columns = k + tdm_lane_columns<D>(), v_columns = v + tdm_lane_columns<D>();
        const uint32_t k_rows = k + tdm_lane_rows<D>();
        if (key + STEP_KEYS <= all_end && key >= sight.all_from(sees_whole))
            add_keys<D, false>(dq, of_q, of_d_out, k_columns, v_columns, k_rows, facts,
                               scale * TDM_LOG2_E, a, NULL, t, key);
        else if (key < some_end && key + STEP_KEYS > sight.some_from(sees_whole))
            add_keys<D, true>(dq, of_q, of_d_out, k_columns, v_columns, k_rows, facts,
                              scale * TDM_LOG2_E, a, tdm_seen_from(a, sees_whole, kv_head), t, key);
        stage = stage + 1 == ROW_STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++)
        tdm_put_dq(a, t + 16 * r, head, dq[r], scale);
}

/* ---- dK, dV ---- */

/* A warp's keys: factors and sums of 16 rows. */
template <int D> struct of_keys {
    uint32_t k[D / 16][4], v[D / 16][4];
    float dk[D / 8][4], dv[D / 8][4];
};

/* dK += dS^T Q, dV += P^T dO for the rows of a step, which are the tokens from `t` on. */
template <int D, bool MASKED>
static __device__ __forceinline__ void
add_rows(of_keys<D> &of, uint32_t q, uint32_t d_out, const tdm_row_fact *facts, float scale,
         const tdm_attend &a, const uint32_t *seen, uint64_t t, uint32_t first_key)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t q_columns = q + tdm_lane_columns<D>(), q_rows = q + tdm_lane_rows<D>();
    const uint32_t o_columns = d_out + tdm_lane_columns<D>(), o_rows = d_out + tdm_lane_rows<D>();
#pragma unroll
    for (int part = 0; part < STEP_ROWS; part += PART_ROWS) {
        float p[PART_ROWS / 8][4], ds[PART_ROWS / 8][4];
        clear(p);
        clear(ds);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
#pragma unroll
            for (int n = 0; n < PART_ROWS / 8; n += 2) {
                uint32_t of_q[4], of_o[4];
                tdm_load_b_turned<D>(of_q, q_columns, part + 8 * n, d);
                tdm_mma(p[n], of.k[d], of_q[0], of_q[1]);
                tdm_mma(p[n + 1], of.k[d], of_q[2], of_q[3]);
                tdm_load_b_turned<D>(of_o, o_columns, part + 8 * n, d);
                tdm_mma(ds[n], of.v[d], of_o[0], of_o[1]);
                tdm_mma(ds[n + 1], of.v[d], of_o[2], of_o[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < PART_ROWS / 8; n++) {
            const uint32_t row = part + 8 * n + lane % 4 * 2;
            const float4 two = *(const float4 *)(facts + row); /* facts of two rows */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float each = tdm_exp2(p[n][i] * scale - (i % 2 ? two.z : two.x));
                if (MASKED) {
                    const uint64_t token = t + row + i % 2;
                    const uint32_t key = first_key + lane / 4 + i / 2 * 8;
                    if (key < seen[token < a.tokens ? token : a.tokens - 1] ||
                        key > tdm_attend_last_key(&a, token))
                        each = 0.0f;
                }
                p[n][i] = each;
                ds[n][i] = each * (ds[n][i] - (i % 2 ? two.w : two.y));
            }
        }
#pragma unroll
        for (int k = 0; k < PART_ROWS / 16; k++) {
            uint32_t of_p[4], of_ds[4];
            tdm_as_a(of_p, p[2 * k], p[2 * k + 1]);
            tdm_as_a(of_ds, ds[2 * k], ds[2 * k + 1]);
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t of_q[4], of_o[4];
                tdm_load_b<D>(of_o, o_rows, part + 16 * k, n);
                tdm_mma(of.dv[2 * n], of_p, of_o[0], of_o[1]);
                tdm_mma(of.dv[2 * n + 1], of_p, of_o[2], of_o[3]);
                tdm_load_b<D>(of_q, q_rows, part + 16 * k, n);
                tdm_mma(of.dk[2 * n], of_ds, of_q[0], of_q[1]);
                tdm_mma(of.dk[2 * n + 1], of_ds, of_q[2], of_q[3]);
            }
        }
    }
}

/* Loops over the tokens that may see a tile of keys, STEP_ROWS at a time, for each query head of
 * the KV head. The tokens are a range, or those of the query pages that list the keys' page. */
template <bool LISTS> struct row_cursor {
    uint32_t t, head, begin, end, first_head, end_head;
    uint32_t all_begin, all_end; /* tokens in this range all see all keys */
    bool whole;                  /* with lists: is the page seen whole? */
    uint32_t word, bits, whole_bits;
    const uint2 *readers;

    __device__ __forceinline__ row_cursor(const tdm_attend &a, uint32_t key0, uint32_t last_key,
                                          uint32_t kv_head, const uint2 *of_page)
    {
        first_head = head = kv_head * (a.query_heads / a.kv_heads);
        end_head = head + a.query_heads / a.kv_heads;
        whole = false;
        if constexpr (LISTS) {
            readers = of_page;
            word = 0;
            bits = readers[0].x;
            whole_bits = readers[0].y;
            const uint32_t before = (uint32_t)(a.first_token - a.key_token);
            all_begin = last_key > before ? last_key - before : 0;
            turn_page(a, key0);
        } else {
            const tdm_seeing seeing = tdm_who_sees(a, key0, last_key);
            t = begin = seeing.begin / STEP_ROWS * STEP_ROWS;
            end = seeing.end;
            all_begin = seeing.all_begin;
            all_end = seeing.all_end;
            if (begin >= end)
                head = end_head;
        }
    }

    /* Moves to the first tokens of the next query page. Ends if there is none. */
    __device__ __forceinline__ void turn_page(const tdm_attend &a, uint32_t key0)
    {
        while (bits == 0) {
            if (++word >= tdm_attend_words(&a)) {
                head = end_head;
                return;
            }
            bits = readers[word].x;
            whole_bits = readers[word].y;
        }
        const uint32_t bit = (uint32_t)__ffs((int)bits) - 1;
        bits &= bits - 1;
        whole = whole_bits >> bit & 1;
        t = begin = (word * 32 + bit) * (uint32_t)a.page_tokens;
        end = begin + (uint32_t)a.page_tokens;
        end = end < (uint32_t)a.tokens ? end : (uint32_t)a.tokens;
        all_end =
            tdm_seen_from(a, whole, first_head / (a.query_heads / a.kv_heads))[end - 1] <= key0
                ? end
                : 0;
        head = first_head;
    }

    __device__ __forceinline__ bool there() const
    {
        return head < end_head;
    }

    __device__ __forceinline__ void next(const tdm_attend &a, uint32_t key0)
    {
        t += STEP_ROWS;
        if (t < end)
            return;
        t = begin;
        if (++head == end_head && LISTS)
            turn_page(a, key0);
    }
};

/* ---- order of pages ---- */

/* The (key page, list) pairs are sorted by the number of query pages that read them, so that the
 * longest blocks start first. The order of two equally long ones does not change their results. */
#define SORT_THREADS 1024u
#define LENGTHS SORT_THREADS /* longer ones are treated as equal */

static __device__ uint32_t length_of(const tdm_attend &a, uint64_t item)
{
    const uint64_t words = tdm_attend_words(&a);
    const uint2 *readers = (const uint2 *)a.readers + item * words;
    uint32_t length = 0;
    for (uint64_t i = 0; i < words; i++)
        length += (uint32_t)__popc(readers[i].x);
    return length < LENGTHS ? length : LENGTHS - 1;
}

/* Runs as one block. */
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
    /* where the items of each length begin: after all longer ones; thread i has length LENGTHS - 1
     * - i */
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

/* One of the pairs, in the order of fewer and fewer readers. */
struct tdm_reading {
    uint32_t kv_head;
    tdm_keys keys;
    const uint2 *readers;
    bool is_read;
};

static __device__ __forceinline__ tdm_reading tdm_reading_of(const tdm_attend &a, uint32_t number)
{
    const uint32_t heads = a.kv_heads / a.lists.lists; /* heads of a list */
    const uint32_t item = a.order[number / heads];
    const uint32_t page = item / a.lists.lists, list = item - page * a.lists.lists;
    tdm_reading reading;
    reading.kv_head = list * heads + number % heads;
    reading.keys = tdm_keys_of_page(a, page);
    reading.readers = tdm_readers_of(a, page, list);
    reading.is_read = false;
    for (uint64_t i = 0; i < tdm_attend_words(&a); i++)
        reading.is_read = reading.is_read || reading.readers[i].x != 0;
    return reading;
}

/* dK and dV of a tile of keys, elements of type T. */
template <int D, typename T, bool LISTS>
static __device__ __forceinline__ void grad_of_keys(const tdm_attend &a, float scale,
                                                    uint32_t block, unsigned char *tiles)
{
    constexpr uint32_t row_bytes = tdm_row_bytes<D>, tile_bytes = STEP_ROWS * row_bytes;
    const uint32_t stages = tdm_shared(tiles);
    tdm_row_fact *const facts =
        (tdm_row_fact *)(tiles + KEY_TILE_ROWS * row_bytes); /* of the stages */
    const uint32_t end = (uint32_t)a.keys;
    const uint32_t first_key = threadIdx.x / 32 * 16;
    uint32_t kv_head = block % a.kv_heads, key0 = block / a.kv_heads * KEYS;
    const uint2 *readers = NULL;
    if constexpr (LISTS) {
        const uint32_t page_tiles = (uint32_t)a.page_tokens / KEYS;
        const tdm_reading reading = tdm_reading_of(a, block / page_tiles);
        kv_head = reading.kv_head;
        key0 = reading.keys.first + block % page_tiles * KEYS;
        readers = reading.readers;
        if (!reading.is_read || key0 >= end)
            return;
    }
    const uint32_t last_key = (key0 + KEYS < end ? key0 + KEYS : end) - 1;
    row_cursor<LISTS> step(a, key0, last_key, kv_head, readers),
        next = step; /* next to be copied */

    of_keys<D> of;
    clear(of.dk);
    clear(of.dv);
    {
        const uint32_t k = stages, v = stages + KEYS * row_bytes;
        tdm_fetch_keys<D, KEYS, THREADS>(k, v, a, key0, end, kv_head);
        tdm_copy_commit();
        tdm_copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            tdm_load_a<D>(of.k[d], k + first_key * row_bytes + tdm_lane_rows<D>(), 0, d);
            tdm_load_a<D>(of.v[d], v + first_key * row_bytes + tdm_lane_rows<D>(), 0, d);
        }
        __syncthreads();
    }

    uint32_t next_stage = 0;
    const auto fetch_next = [&]() {
        if (next.there()) {
            const uint32_t to = stages + next_stage * 2 * tile_bytes;
            tdm_fetch_rows<D, STEP_ROWS, THREADS>(to, a, a.q.data, next.t, next.head);
            tdm_fetch_rows<D, STEP_ROWS, THREADS>(to + tile_bytes, a, a.d_out.data, next.t,
                                                  next.head);
            if (threadIdx.x < STEP_ROWS) {
                const uint32_t token = next.t + threadIdx.x;
                tdm_copy_async_8(tdm_shared(facts + next_stage * STEP_ROWS + threadIdx.x),
                                 tdm_row_facts(a, next.head) + token, token < a.tokens);
            }
            next.next(a, key0);
        }
        tdm_copy_commit();
        next_stage = next_stage + 1 == KEY_STAGES ? 0 : next_stage + 1;
    };
#pragma unroll
    for (int i = 0; i < KEY_STAGES - 1; i++)
        fetch_next();

    uint32_t stage = 0;
    for (; step.there(); step.next(a, key0)) {
        const uint32_t q = stages + stage * 2 * tile_bytes;
        tdm_copy_wait<KEY_STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and no thread reads the previous one any more */
        fetch_next();
        if (step.t >= step.all_begin && step.t + STEP_ROWS <= step.all_end)
            add_rows<D, false>(of, q, q + tile_bytes, facts + stage * STEP_ROWS, scale * TDM_LOG2_E,
                               a, NULL, step.t, key0 + first_key);
        else
            add_rows<D, true>(of, q, q + tile_bytes, facts + stage * STEP_ROWS, scale * TDM_LOG2_E,
                              a, tdm_seen_from(a, LISTS && step.whole, kv_head), step.t,
                              key0 + first_key);
        stage = stage + 1 == KEY_STAGES ? 0 : stage + 1;
    }

    tdm_put_keys<T>(a, key0 + first_key, end, kv_head, of.dk, of.dv, scale);
}

/* Processes both kinds of tiles, so that one kind uses what the other leaves idle at its end: keys,
 * then rows. Over lists: rows, then keys in the order of fewer and fewer readers. */
template <int D, typename T, bool WHOLE, bool LISTS>
static __global__ void __launch_bounds__(THREADS, 8 / WARPS)
    grad_tiles(const tdm_attend a, float scale, uint32_t key_blocks, uint32_t row_blocks)
{
    extern __shared__ __align__(1024) unsigned char tiles[];
    const uint32_t block = blockIdx.x - (LISTS ? row_blocks : 0);
    if (block < key_blocks)
        grad_of_keys<D, T, LISTS>(a, scale, block, tiles);
    else
        grad_of_rows<D, WHOLE, LISTS>(a, scale, LISTS ? blockIdx.x : block - key_blocks, tiles);
}

template <int D>
static enum tdm_status launch(const struct tdm_attend *a, cudaStream_t stream,
                              struct tdm_error *err)
{
    constexpr int of_rows = (2 * ROWS + 2 * ROW_STAGES * STEP_KEYS) * tdm_row_bytes<D>;
    constexpr int of_keys =
        KEY_TILE_ROWS * tdm_row_bytes<D> + KEY_STAGES * STEP_ROWS * (int)sizeof(tdm_row_fact);
    constexpr int shared_bytes = of_rows > of_keys ? of_rows : of_keys;
    static_assert(of_rows <= tdm_shared_bytes<D> && of_keys <= tdm_shared_bytes<D>, "as said");
    const uint64_t keys = a->keys;
    const unsigned row_blocks = (unsigned)((a->tokens + ROWS - 1) / ROWS * a->query_heads);
    const bool lists = a->lists.pages != NULL;
    const unsigned key_blocks = lists ? tdm_read_blocks(a) * (unsigned)(a->page_tokens / KEYS)
                                      : (unsigned)((keys + KEYS - 1) / KEYS * a->kv_heads);
    const float scale = (float)(1.0 / sqrt((double)D));
    const bool whole = a->page_tokens % STEP_KEYS == 0 && a->chunk_tokens % STEP_KEYS == 0;
    const enum tdm_dtype gradients = a->written.data != NULL ? a->written.dtype : a->added.dtype;
    cudaError_t code = cudaSuccess;
    tdm_launch_row_facts(a, stream);
    enum tdm_status status = tdm_with_type(gradients, err, [&](auto *type) {
        using T = std::remove_pointer_t<decltype(type)>;
        auto *kernel = lists   ? grad_tiles<D, T, true, true>
                       : whole ? grad_tiles<D, T, true, false>
                               : grad_tiles<D, T, false, false>;
        code = cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (code == cudaSuccess && lists) {
            tdm_launch_unread<T>(a, stream);
            sort_items<<<1, SORT_THREADS, 0, stream>>>(*a,
                                                       tdm_attend_key_pages(a) * a->lists.lists);
        }
        if (code == cudaSuccess)
            kernel<<<row_blocks + key_blocks, THREADS, shared_bytes, stream>>>(
                *a, scale, key_blocks, row_blocks);
    });
    if (status == TDM_OK)
        status = tdm_cuda_status(code, "cudaFuncSetAttribute of attention_grad", err);
    return status == TDM_OK ? tdm_cuda_status(cudaGetLastError(), "attention_grad launch", err)
                            : status;
}

extern "C" enum tdm_status tdm_cuda_attention_grad(const struct tdm_attend *a, cudaStream_t stream,
                                                   struct tdm_error *err)
{
    return a->head_dim == 64   ? launch<64>(a, stream, err)
           : a->head_dim == 96 ? launch<96>(a, stream, err)
                               : launch<128>(a, stream, err);
}
