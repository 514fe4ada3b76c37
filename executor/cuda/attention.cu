/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on tensor cores, forward: bf16, head dims 64,
 * 96 and 128.
 *
 * FlashAttention-2 (arXiv 2307.08691, algorithm 1) with mma.sync. A block has ROWS tokens of one
 * query head, a warp 32 of them. It loops over the keys, KEYS at a time with rising position, while
 * the next ones are copied. Scores and probabilities stay in registers. The exponentials of 16 keys
 * are computed while the tensor cores process the previous 16 (scores.cuh). 4 * head_dim FLOPs for
 * each (query head, key). K and V come from the L2 for all except the first of the blocks that
 * share them: heads of a KV head and neighbouring tiles run at the same time. Long tiles start
 * first.
 *
 * Measured on an H200, 28/4 heads x 128, 4K tokens over 32K keys: 376 TFLOP/s. With blocks of eight
 * warps, so that one instead of two fits on a multiprocessor, 330. With 32 keys at a time, 340.
 *
 * A row sees keys [from, position]. A tile is masked if it can have keys outside this range. Over
 * lists of pages (LISTS) a row sees that range of the pages in its query page's list; of pages that
 * it sees whole it sees the keys from its document's start on. Tiles of rows and of keys then lie
 * within pages.
 */
#include "executor/cuda/scores.cuh"
#include "executor/cuda/tiles.cuh"

#define WARPS 4
#define STAGES 2
#define THREADS (WARPS * 32)
#define ROW_BLOCKS 2 /* blocks of 16 rows in a warp */
#define WARP_ROWS (16 * ROW_BLOCKS)
#define ROWS (WARPS * WARP_ROWS)
#define KEYS 64
#define KEY_BLOCKS (KEYS / 8)

/* scores = Q K^T of a warp's rows. */
template <int D>
static __device__ __forceinline__ void make_scores(float (&scores)[ROW_BLOCKS][KEY_BLOCKS][4],
                                                   uint32_t q, uint32_t k)
{
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++)
#pragma unroll
        for (int n = 0; n < KEY_BLOCKS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                scores[r][n][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t of_q[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_load_a<D>(of_q[r], q, 16 * r, d);
#pragma unroll
        for (int n = 0; n < KEY_BLOCKS; n += 2) {
            uint32_t of_k[4];
            tdm_load_b_turned<D>(of_k, k, 8 * n, d);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(scores[r][n], of_q[r], of_k[0], of_k[1]);
                tdm_mma(scores[r][n + 1], of_q[r], of_k[2], of_k[3]);
            }
        }
    }
}

/* Turns scores into exponentials, and adds P V to out. Computes the exponentials of 16 keys while
 * the tensor cores process the previous 16. */
template <int D>
static __device__ __forceinline__ void
add_values(float (&out)[ROW_BLOCKS][D / 8][4], float (&scores)[ROW_BLOCKS][KEY_BLOCKS][4],
           tdm_softmax<ROW_BLOCKS> &rows, uint32_t v, float scale)
{
    tdm_raise(scores, 0, rows, scale);
#pragma unroll
    for (int k = 0; k < KEY_BLOCKS / 2; k++) {
        uint32_t p[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_as_a(p[r], scores[r][2 * k], scores[r][2 * k + 1]);
        if (k + 1 < KEY_BLOCKS / 2)
            tdm_raise(scores, k + 1, rows, scale);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t of_v[4];
            tdm_load_b<D>(of_v, v, 16 * k, n);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(out[r][2 * n], p[r], of_v[0], of_v[1]);
                tdm_mma(out[r][2 * n + 1], p[r], of_v[2], of_v[3]);
            }
        }
    }
}

/* `WHOLE`: KEYS keys from a multiple of KEYS on lie in one page. */
template <int D, bool WHOLE, bool LISTS>
static __global__ void __launch_bounds__(THREADS, 8 / WARPS)
    attend_tiles(const tdm_attend a, float scale)
{
    extern __shared__ __align__(1024) unsigned char tiles[];
    constexpr uint32_t tile_bytes = KEYS * tdm_row_bytes<D>;
    const uint32_t q = tdm_shared(tiles), stages = q + ROWS * tdm_row_bytes<D>;
    const uint32_t row_tiles = (uint32_t)((a.tokens + ROWS - 1) / ROWS);
    const uint32_t head = blockIdx.x % a.query_heads;
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    const uint64_t t0 = (uint64_t)(row_tiles - 1 - blockIdx.x / a.query_heads) * ROWS;
    const uint64_t last = (t0 + ROWS < a.tokens ? t0 + ROWS : a.tokens) - 1;
    const uint32_t end = tdm_attend_last_key(&a, last) + 1; /* of the keys */
    const uint32_t first_row = threadIdx.x / 32 * WARP_ROWS;

    const uint32_t begin = LISTS ? 0 : a.from[t0] / KEYS * KEYS;

    /* the warp's tokens, the keys that some of them see, and those that all of them see */
    const uint64_t t = t0 + first_row;
    const uint64_t warp_last = t + WARP_ROWS - 1 < last ? t + WARP_ROWS - 1 : last;
    const bool is_there = t <= last;
    const tdm_sight<LISTS> sight(a, kv_head, t, warp_last, is_there);
    const uint32_t some_end = is_there ? tdm_attend_last_key(&a, warp_last) + 1 : 0;
    const uint32_t all_end = tdm_attend_last_key(&a, t) + 1;
    const uint32_t of_q = q + first_row * tdm_row_bytes<D> + tdm_lane_rows<D>();
    const uint32_t of_k = stages + tdm_lane_columns<D>();
    const uint32_t of_v = stages + tile_bytes + tdm_lane_rows<D>();

    tdm_key_cursor cursor;
    tdm_list_cursor<KEYS> step = {}, next_step = {}; /* over a list */
    uint32_t next = begin, next_stage = 0;           /* next to be copied */
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
                tdm_fetch_at_cursor<D, KEYS, THREADS>(
                    to, to + tile_bytes, cursor, a, next_step.key < end ? end - next_step.key : 0);
                next_step.next(a);
            }
        } else if (next < end) {
            if constexpr (WHOLE) {
                tdm_fetch_at_cursor<D, KEYS, THREADS>(to, to + tile_bytes, cursor, a, end - next);
                tdm_key_cursor_advance<KEYS>(cursor, a);
            } else {
                tdm_fetch_keys<D, KEYS, THREADS>(to, to + tile_bytes, a, next, end, kv_head);
            }
        }
        tdm_copy_commit();
        next += KEYS;
        next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
    };
    tdm_fetch_rows<D, ROWS, THREADS>(q, a, a.q.data, t0, head);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        fetch_next();

    tdm_softmax<ROW_BLOCKS> rows = tdm_no_sums<ROW_BLOCKS>();
    float out[ROW_BLOCKS][D / 8][4] = {};
    uint32_t stage = 0;
    for (uint32_t key = begin; LISTS ? step.left > 0 : key < end; key += KEYS) {
        tdm_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and no thread reads the previous one any more */
        fetch_next();
        bool sees_whole = false;
        if constexpr (LISTS) {
            key = step.key;
            sees_whole = step.whole;
            step.next(a);
        }
        if (key < some_end && key + KEYS > sight.some_from(sees_whole)) {
            float scores[ROW_BLOCKS][KEY_BLOCKS][4];
            make_scores<D>(scores, of_q, of_k + stage * 2 * tile_bytes);
            if (key + KEYS > all_end || key < sight.all_from(sees_whole))
                tdm_mask(scores, a, tdm_seen_from(a, sees_whole, kv_head), t, key);
            float rescale[ROW_BLOCKS][2];
            if (tdm_follow(scores, rows, scale * TDM_LOG2_E, rescale))
                tdm_rescale(out, rescale);
            add_values<D>(out, scores, rows, of_v + stage * 2 * tile_bytes, scale * TDM_LOG2_E);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    tdm_put_rows<D>(out, rows, a, t, head);
}

template <int D>
static enum tdm_status launch(const struct tdm_attend *a, cudaStream_t stream,
                              struct tdm_error *err)
{
    constexpr int shared_bytes = (ROWS + STAGES * 2 * KEYS) * tdm_row_bytes<D>;
    static_assert(shared_bytes <= tdm_shared_bytes<D>, "as said");
    const uint64_t blocks = (a->tokens + ROWS - 1) / ROWS * a->query_heads;
    const float scale = (float)(1.0 / sqrt((double)D));
    const bool whole = a->page_tokens % KEYS == 0 && a->chunk_tokens % KEYS == 0;
    auto *kernel = a->lists.pages != NULL ? attend_tiles<D, true, true>
                   : whole                ? attend_tiles<D, true, false>
                                          : attend_tiles<D, false, false>;
    enum tdm_status status =
        TDM_CUDA(cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                 err);
    if (status != TDM_OK)
        return status;
    kernel<<<(unsigned)blocks, THREADS, shared_bytes, stream>>>(*a, scale);
    return tdm_cuda_status(cudaGetLastError(), "attention launch", err);
}

/* Shared memory that a block may use on the device; 0 if that cannot be determined. */
static int most_shared_bytes(void)
{
    static int bytes = -1; /* queried once: the cards of all ranks are of one kind */
    int device;
    if (bytes < 0 && (cudaGetDevice(&device) != cudaSuccess ||
                      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                             device) != cudaSuccess))
        bytes = 0;
    return bytes;
}

extern "C" bool tdm_cuda_attention_suits(const struct tdm_attend *a)
{
    const int of_64 = tdm_shared_bytes<64>, of_128 = tdm_shared_bytes<128>;
    return tdm_tiles_fit(a) && a->q.dtype == TDM_DTYPE_BF16 && a->pages.dtype == TDM_DTYPE_BF16 &&
           (a->head_dim == 64 || a->head_dim == 96 || a->head_dim == 128) &&
           most_shared_bytes() >= (a->head_dim == 64 ? of_64 : of_128) && a->keys <= INT32_MAX;
}

extern "C" enum tdm_status tdm_cuda_attention(const struct tdm_attend *a, cudaStream_t stream,
                                              struct tdm_error *err)
{
    return a->head_dim == 64   ? launch<64>(a, stream, err)
           : a->head_dim == 96 ? launch<96>(a, stream, err)
                               : launch<128>(a, stream, err);
}
