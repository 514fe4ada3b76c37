/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses among the kernels that cuBLASLt proposes for a product.
 *
 * cuBLASLt's first proposal is for a card that runs at its full clock. In a step, a Hopper GPU is
 * at its power limit and clocks at 1,500 to 1,700 of 1,980 MHz. Then the speed of a kernel is that
 * of its energy: tiles of 256 x 128 and 176 x 128 need less than those of 320 x 128 and 192 x 192,
 * which cuBLASLt often proposes, and an idle multiprocessor costs less than its share. The rates
 * below were fitted to the proposals for the products of Qwen2.5-7B in chunks of 4,096 and 8,192
 * tokens, each held on one H200 (2026-11-26). bench/product_bench measures such proposals and shows
 * which one these rates take (docs/results.md, Products).
 */
#include "executor/cuda/product_choice.h"

#include <math.h>
#include <stddef.h>

/* Products of less work keep cuBLASLt's first proposal: they do not bring a card to its limit. */
#define LEAST_FLOPS 1e10
/* The power of the share of a last wave that is full, by which a rate falls. */
#define WAVE_EXPONENT 0.4

/* What kernels with such a tile reach, held, in whole waves and with a large depth; and the depth
 * at which they reach half of it. `tile` is its number in cuBLASLt, whose older headers lack names
 * for some. The rows of its tiles are our columns. */
struct tile_rate {
    uint32_t tile, rows, columns;
    double teraflops, half_depth;
};

static const struct tile_rate rates[] = {
    {184, 144, 128, 704, 60}, {197, 168, 128, 704, 60},  {201, 176, 128, 704, 60},
    {24, 256, 128, 700, 150}, {23, 128, 256, 698, 150},  {20, 128, 128, 676, 60},
    {29, 128, 160, 670, 60},  {248, 320, 128, 670, 150}, {209, 192, 192, 660, 150},
};
/* All others are slower. */
static const struct tile_rate other = {0, 1, 1, 640, 150};

/* The share of whole tiles that is not beyond the edge. */
static double inside(uint64_t length, uint32_t tile)
{
    return (double)length / ((double)((length + tile - 1) / tile) * tile);
}

static double rate_of(const struct tdm_product_kernel *kernel, uint64_t m, uint64_t n, uint64_t k)
{
    const struct tile_rate *rate = &other;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (rates[i].tile == kernel->tile)
            rate = &rates[i];
    const double full = kernel->waves > 0.0f ? kernel->waves / ceil(kernel->waves) : 1.0;
    return rate->teraflops * inside(n, rate->rows) * inside(m, rate->columns) *
           pow(full, WAVE_EXPONENT) * (double)k / ((double)k + rate->half_depth);
}

uint32_t tdm_product_choose(uint64_t m, uint64_t n, uint64_t k, uint32_t count,
                            const struct tdm_product_kernel *kernels)
{
    uint32_t best = 0;
    if (2.0 * (double)m * (double)n * (double)k < LEAST_FLOPS)
        return 0;
    for (uint32_t i = 1; i < count; i++)
        if (kernels[i].split <= 1 &&
            rate_of(&kernels[i], m, n, k) > rate_of(&kernels[best], m, n, k))
            best = i;
    return best;
}
