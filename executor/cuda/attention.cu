/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a chunk's queries over pages of keys on tensor cores, forward: bf16, head dim 64 or 128.
 *
 * FlashAttention-2 (arXiv 2307.08691, algorithm 1) with mma.sync: a block has TILE_ROWS tokens of one
 * query head, a warp 32 of them; it walks over the keys TILE_KEYS at a time, with rising position. The
 * next keys are copied while scores of the last are softened, their values while scores are made. Scores and
 * probabilities stay in registers. 4 * head_dim FLOPs a (query head, key); K and V come from the L2 for
 * all but the first of the blocks that share them: heads of a KV head and neighbouring tiles run together.
 * Long tiles start first.
 *
 * A row sees keys [from, position]: what a tile has beyond it is masked where that can be.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/tiles.cuh"

#define TILE_ROWS 128
#define TILE_KEYS 64
#define WARPS 4
#define THREADS (WARPS * 32)
#define ROW_BLOCKS (TILE_ROWS / WARPS / 16) /* of 16 rows, of a warp */
#define KEY_BLOCKS (TILE_KEYS / 8)
#define LOG2_E 1.4426950408889634f

/* What a lane knows of its rows: rows g and g + 8 of each block of 16. */
struct rows {
    uint32_t from[ROW_BLOCKS][2], position[ROW_BLOCKS][2];
    float most[ROW_BLOCKS][2], sum[ROW_BLOCKS][2];
};

/* scores = Q K^T of a warp's rows. */
template <int D>
static __device__ __forceinline__ void make_scores(float (&scores)[ROW_BLOCKS][KEY_BLOCKS][4],
                                                   __nv_bfloat16 *q, __nv_bfloat16 *k,
                                                   uint32_t first_row)
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
            tdm_load_a<D>(of_q[r], q, first_row + 16 * r, d);
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

static __device__ __forceinline__ void mask(float (&scores)[ROW_BLOCKS][KEY_BLOCKS][4],
                                            const rows &of, uint32_t first_key)
{
    const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++)
#pragma unroll
        for (int n = 0; n < KEY_BLOCKS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t key = first_key + 8 * n + column + i % 2;
                if (key < of.from[r][i / 2] || key > of.position[r][i / 2])
                    scores[r][n][i] = -INFINITY;
            }
}

/* Scores become exponentials relative to the largest so far; what was summed before is rescaled. */
template <int D>
static __device__ __forceinline__ void soften(float (&scores)[ROW_BLOCKS][KEY_BLOCKS][4],
                                              float (&out)[ROW_BLOCKS][D / 8][4], rows &of,
                                              float scale)
{
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float most = of.most[r][h];
#pragma unroll
            for (int n = 0; n < KEY_BLOCKS; n++)
                most = fmaxf(most, fmaxf(scores[r][n][2 * h], scores[r][n][2 * h + 1]));
            most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(TDM_FULL_WARP, most, 2));
            const float shift = most == -INFINITY ? 0.0f : most * scale;
            const float rescale = tdm_exp2(of.most[r][h] * scale - shift);
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < KEY_BLOCKS; n++) {
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    scores[r][n][i] = tdm_exp2(scores[r][n][i] * scale - shift);
                    sum += scores[r][n][i];
                }
            }
            of.most[r][h] = most;
            of.sum[r][h] = of.sum[r][h] * rescale + sum; /* of a lane's columns */
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                out[r][n][2 * h] *= rescale;
                out[r][n][2 * h + 1] *= rescale;
            }
        }
    }
}

/* out += P V. */
template <int D>
static __device__ __forceinline__ void add_values(float (&out)[ROW_BLOCKS][D / 8][4],
                                                  const float (&p)[ROW_BLOCKS][KEY_BLOCKS][4],
                                                  __nv_bfloat16 *v)
{
#pragma unroll
    for (int k = 0; k < KEY_BLOCKS / 2; k++) {
        uint32_t of_p[ROW_BLOCKS][4];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; r++)
            tdm_as_a(of_p[r], p[r][2 * k], p[r][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t of_v[4];
            tdm_load_b<D>(of_v, v, 16 * k, n);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; r++) {
                tdm_mma(out[r][2 * n], of_p[r], of_v[0], of_v[1]);
                tdm_mma(out[r][2 * n + 1], of_p[r], of_v[2], of_v[3]);
            }
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS)
    attend_tiles(const tdm_attend a, float scale, bool whole)
{
    extern __shared__ __align__(128) __nv_bfloat16 tiles[];
    __nv_bfloat16 *const q = tiles, *const k = q + TILE_ROWS * D, *const v = k + TILE_KEYS * D;
    const uint32_t row_tiles = (uint32_t)((a.tokens + TILE_ROWS - 1) / TILE_ROWS);
    const uint32_t head = blockIdx.x % a.query_heads;
    const uint32_t kv_head = head / (a.query_heads / a.kv_heads);
    const uint64_t t0 = (uint64_t)(row_tiles - 1 - blockIdx.x / a.query_heads) * TILE_ROWS;
    const uint64_t last = (t0 + TILE_ROWS < a.tokens ? t0 + TILE_ROWS : a.tokens) - 1;
    const uint32_t before = (uint32_t)(a.first_token - a.key_token);
    const uint32_t end = before + (uint32_t)last + 1; /* of the keys */
    const uint32_t begin = a.from[t0] / TILE_KEYS * TILE_KEYS;
    const uint32_t last_from = a.from[last];
    const uint64_t plane = tdm_plane_of(a);
    const uint32_t lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 * ROW_BLOCKS;

    tdm_fetch_rows<D, TILE_ROWS>(q, a, a.q.data, t0, head);
    tdm_fetch_keys<D, TILE_KEYS>(k, a, 0, begin, end, kv_head, whole);
    tdm_copy_commit();

    rows of;
    float out[ROW_BLOCKS][D / 8][4] = {};
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t t = t0 + first_row + 16 * r + 8 * h + lane / 4;
            const bool is_there = t < a.tokens; /* else it sees nothing */
            of.from[r][h] = is_there ? a.from[t] : UINT32_MAX;
            of.position[r][h] = is_there ? before + (uint32_t)t : 0;
            of.most[r][h] = -INFINITY;
            of.sum[r][h] = 0.0f;
        }
    }

    for (uint32_t key = begin; key < end; key += TILE_KEYS) {
        float scores[ROW_BLOCKS][KEY_BLOCKS][4];
        tdm_copy_wait<0>();
        __syncthreads(); /* K is there; nobody reads the last V any more */
        tdm_fetch_keys<D, TILE_KEYS>(v, a, plane, key, end, kv_head, whole);
        tdm_copy_commit();
        make_scores<D>(scores, q, k, first_row);
        tdm_copy_wait<0>();
        __syncthreads(); /* V is there; nobody reads K any more */
        if (key + TILE_KEYS < end) {
            tdm_fetch_keys<D, TILE_KEYS>(k, a, 0, key + TILE_KEYS, end, kv_head, whole);
            tdm_copy_commit();
        }
        if (key + TILE_KEYS > before + (uint32_t)t0 + 1 || key < last_from ||
            t0 + TILE_ROWS > a.tokens)
            mask(scores, of, key);
        soften<D>(scores, out, of, scale * LOG2_E);
        add_values<D>(out, scores, v);
    }

#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t t = t0 + first_row + 16 * r + 8 * h + lane / 4;
            float sum = of.sum[r][h];
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(TDM_FULL_WARP, sum, 2);
            if (t >= a.tokens)
                continue;
            const uint64_t row = t * a.query_heads + head;
            const float scale_out = 1.0f / sum;
            uint32_t *to = (uint32_t *)((__nv_bfloat16 *)a.out.data + row * D) + lane % 4;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                to[4 * n] =
                    tdm_pack(out[r][n][2 * h] * scale_out, out[r][n][2 * h + 1] * scale_out);
            if (lane % 4 == 0)
                a.lse[row] = of.most[r][h] * scale + logf(sum);
        }
    }
}

template <int D>
static enum tdm_status launch(const struct tdm_attend *a, cudaStream_t stream,
                              struct tdm_error *err)
{
    const int shared_bytes = (TILE_ROWS + 2 * TILE_KEYS) * D * (int)sizeof(__nv_bfloat16);
    const uint64_t blocks = (a->tokens + TILE_ROWS - 1) / TILE_ROWS * a->query_heads;
    const float scale = (float)(1.0 / sqrt((double)D));
    const bool whole = a->page_tokens % TILE_KEYS == 0 && a->chunk_tokens % TILE_KEYS == 0;
    enum tdm_status status =
        TDM_CUDA(cudaFuncSetAttribute((const void *)attend_tiles<D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                 err);
    if (status != TDM_OK)
        return status;
    attend_tiles<D><<<(unsigned)blocks, THREADS, shared_bytes, stream>>>(*a, scale, whole);
    return tdm_cuda_status(cudaGetLastError(), "attention launch", err);
}

extern "C" bool tdm_cuda_attention_suits(const struct tdm_attend *a)
{
    return a->q.dtype == TDM_DTYPE_BF16 && a->pages.dtype == TDM_DTYPE_BF16 &&
           (a->head_dim == 64 || a->head_dim == 128) &&
           a->first_token + a->tokens - a->key_token <= INT32_MAX;
}

extern "C" enum tdm_status tdm_cuda_attention(const struct tdm_attend *a, cudaStream_t stream,
                                              struct tdm_error *err)
{
    return a->head_dim == 64 ? launch<64>(a, stream, err) : launch<128>(a, stream, err);
}
