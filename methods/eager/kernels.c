/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch that kernels allocate for the duration of a call, by the shapes of their arguments. */
#include "methods/eager/ops.h"

#include "base/size.h"
#include "methods/eager/dtypes.h"

#define WARP 32u
#define REDUCE_THREADS 512u
#define REDUCE_VECTOR 4u
#define LEAST_VALUES 16u /* that a thread adds up before work is spread further */
#define MOST_VALUES 256u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t power_of_two_below(uint64_t n)
{
    uint64_t power = 1;
    while (power * 2 <= n)
        power *= 2;
    return power;
}

struct block {
    uint64_t width, height;
};

/* Shape of a thread block for dimensions of width and height. */
static struct block block_shape(uint64_t width, uint64_t height, uint64_t threads)
{
    uint64_t w = width < threads ? power_of_two_below(width) : threads;
    uint64_t h = height < threads ? power_of_two_below(height) : threads;
    struct block block = {.width = least(w, WARP)};
    block.height = least(h, threads / block.width);
    block.width = least(w, threads / block.height);
    return block;
}

/* Thread blocks that share one output, if each thread of a single block would add up `values`. */
static uint64_t blocks_an_output(const struct tdm_gpu_facts *gpu, struct block block, uint64_t grid,
                                 uint64_t values)
{
    uint64_t target = (uint64_t)gpu->multiprocessors *
                      (gpu->threads_per_multiprocessor / (block.width * block.height));
    if (values < MOST_VALUES || grid > target)
        return 1;
    uint64_t fill = least(tdm_size_ceil_div(target, grid), tdm_size_ceil_div(values, LEAST_VALUES));
    return most(fill, tdm_size_ceil_div(values, MOST_VALUES));
}

/* aten/src/ATen/native/cuda/Reduce.cuh: setReduceConfig, global_memory_size, semaphore_size. The
 * sum runs in fp32, and outputs are contiguous. */
uint64_t tdm_column_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs, uint64_t outputs,
                                uint64_t *semaphore_bytes)
{
    uint64_t vector = REDUCE_VECTOR;
    while (outputs % vector != 0)
        vector /= 2;
    struct block block = block_shape(outputs / vector, inputs, REDUCE_THREADS / vector);
    *semaphore_bytes = 0;
    if (inputs < least(block.height * LEAST_VALUES, MOST_VALUES))
        return 0;
    uint64_t grid = tdm_size_ceil_div(outputs / vector, block.width);
    uint64_t blocks = blocks_an_output(gpu, block, grid, tdm_size_ceil_div(inputs, block.height));
    if (blocks == 1)
        return 0;
    *semaphore_bytes = grid * sizeof(int32_t);
    return outputs * blocks * block.width * vector * sizeof(float);
}

uint64_t tdm_total_sum_scratch(const struct tdm_gpu_facts *gpu, uint64_t inputs,
                               uint64_t *semaphore_bytes)
{
    struct block block = block_shape(inputs / REDUCE_VECTOR, 1, REDUCE_THREADS);
    uint64_t blocks =
        blocks_an_output(gpu, block, 1, tdm_size_ceil_div(inputs, block.width * block.height));
    *semaphore_bytes = blocks == 1 ? 0 : sizeof(int32_t);
    return blocks == 1 ? 0 : blocks * sizeof(float);
}

/* As measured with cuDNN 9.1x on sm_90: dQ in fp32, the row sums of dO * O, 256 B, and with fewer
 * KV heads dK and dV of every query head. */
uint64_t tdm_cudnn_backward_workspace(const struct tdm_attention_shape *shape)
{
    uint64_t rows = shape->batch * shape->query_heads * shape->tokens;
    uint64_t bytes = tdm_size_mul(rows, shape->head_dim * sizeof(float) + sizeof(float));
    if (shape->kv_heads < shape->query_heads)
        bytes = tdm_size_add(bytes, tdm_size_mul(rows, shape->head_dim * 4));
    return bytes + 256;
}

/* aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h
 * (workspace_size): sums in fp32, and flags of the blocks, as recorded. */
uint64_t tdm_efficient_backward_workspace(const struct tdm_attention_shape *shape)
{
    uint64_t rows = shape->batch * shape->query_heads * shape->tokens;
    bool large = shape->head_dim > TDM_EFFICIENT_HEAD_DIM;
    const uint64_t values = shape->value_dim > 0 ? shape->value_dim : shape->head_dim,
                   widths = large ? 2 * shape->head_dim + values : shape->head_dim;
    uint64_t sums = tdm_size_mul(rows, widths * sizeof(float));
    return tdm_size_add(sums, large ? rows / 2 : rows / 8);
}

/* Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp and PyTorch's copy of it, mha_bwd. */
void tdm_flash_backward_scratch(struct tdm_eager *m, const struct tdm_flash_scratch *scratch)
{
    struct tdm_eager_value *made[4] = {0};
    if (!scratch->has_sums)
        made[0] = tdm_value_new(m, scratch->query_rows, 1, FP32);
    made[1] = tdm_value_new(m, scratch->query_rows,
                            tdm_size_align(scratch->head_dim, TDM_FLASH_COLUMNS), FP32);
    for (unsigned i = 2; i < 4 && scratch->wide_rows > 0; i++)
        made[i] = tdm_value_new(m, scratch->wide_rows, scratch->head_dim, BF16);
    for (unsigned i = 0; i < 4; i++)
        tdm_drop(m, made[i]);
}

#define SPLIT_ROWS 64u
#define MOST_SPLITS 128u

/* native/transformers/cuda/flash_attn/flash_api.cpp, num_splits_heuristic and its caller: the
 * smallest number of parts that fills the GPU nearly as well as the best one. */
uint64_t tdm_flash_splits(const struct tdm_gpu_facts *gpu, const struct tdm_attention_shape *shape)
{
    uint64_t columns = shape->head_dim <= 64 ? 256 : shape->head_dim <= 128 ? 128 : 64;
    uint64_t key_blocks = tdm_size_ceil_div(shape->tokens, columns);
    uint64_t tasks =
        shape->batch * shape->query_heads * tdm_size_ceil_div(shape->tokens, SPLIT_ROWS);
    uint64_t slots = 2 * (uint64_t)gpu->multiprocessors;
    if (slots == 0 || 10 * tasks >= 8 * slots)
        return 1;
    uint64_t most = least(least(MOST_SPLITS, slots), key_blocks);
    double filled[MOST_SPLITS + 1] = {0}, best = 0;
    for (uint64_t n = 1; n <= most; n++) {
        if (n > 1 && tdm_size_ceil_div(key_blocks, n) == tdm_size_ceil_div(key_blocks, n - 1))
            continue; /* each part has as many blocks as before */
        double waves = (double)(tasks * n) / (double)slots;
        filled[n] = waves / (double)tdm_size_ceil_div(tasks * n, slots);
        if (filled[n] > best)
            best = filled[n];
    }
    for (uint64_t n = 1; n <= most; n++)
        if (filled[n] > 0 && filled[n] >= 0.85 * best)
            return n;
    return 1;
}

#define SMALL_LOOKUP 3072u /* most tokens of the kernel that does not sort */
#define PART 10u           /* occurrences of a token that one thread block adds up */
#define CUB_SCAN_BYTES 1279u

/* Scratch of CUB's radix sort of 8-byte keys and values: a second copy of both, 256 look-back
 * counters for each tile of 384 threads x 12 pairs, and the bins and counters of 8 passes. Each is
 * aligned to 256 B. Sources: cub/device/dispatch/dispatch_radix_sort.cuh (InvokeOnesweep),
 * tuning/tuning_radix_sort.cuh (sm_90). */
static uint64_t sort_bytes(uint64_t pairs)
{
    uint64_t copy = tdm_size_align(pairs * 8, 256), tiles = tdm_size_ceil_div(pairs, 384 * 12);
    return 2 * copy + tiles * 256 * 4 + 8 * 256 * 8 + 256 + 255;
}

/* aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu. */
struct tdm_eager_value *tdm_embedding_gradient(struct tdm_eager *m, uint64_t vocabulary,
                                               uint64_t hidden, uint16_t element_bytes,
                                               uint64_t tokens)
{
    if (tokens <= SMALL_LOOKUP)
        return tdm_value_new(m, vocabulary, hidden, element_bytes);
    struct tdm_eager_value *sorted[] = {tdm_value_new(m, tokens, 1, 8),
                                        tdm_value_new(m, tokens, 1, 8)};
    struct tdm_eager_value *range = tdm_value_new(m, tokens, 1, 8);
    struct tdm_eager_value *cub = tdm_value_new(m, sort_bytes(tokens), 1, 1);
    tdm_drop(m, cub);
    tdm_drop(m, range);
    struct tdm_eager_value *gradient = tdm_value_new(m, vocabulary, hidden, element_bytes);
    uint64_t segments = least(tokens, vocabulary), parts = tokens / PART + segments;
    struct tdm_eager_value *offsets[7] = {tdm_value_new(m, tokens, 1, 8),
                                          tdm_value_new(m, 1, 1, 8)};
    struct tdm_eager_value *flags = tdm_value_new(m, tokens, 1, 8);
    tdm_drop(m, tdm_value_new(m, CUB_SCAN_BYTES, 1, 1));
    tdm_drop(m, flags);
    offsets[2] = tdm_value_new(m, tokens, 1, 8);
    offsets[3] = tdm_value_new(m, tokens, 1, 8);
    tdm_drop(m, tdm_value_new(m, CUB_SCAN_BYTES, 1, 1));
    offsets[4] = tdm_value_new(m, 1, 1, 8);
    offsets[5] = tdm_value_new(m, parts, 1, 8);
    offsets[6] = tdm_value_new(m, parts, tdm_size_align(hidden, WARP), 4);
    for (unsigned i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
        tdm_drop(m, offsets[i]);
    tdm_drop(m, sorted[0]);
    tdm_drop(m, sorted[1]);
    return gradient;
}
