/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the kernels that cuBLASLt proposes for a product is taken. */
#ifndef TDM_EXECUTOR_CUDA_PRODUCT_CHOICE_H
#define TDM_EXECUTOR_CUDA_PRODUCT_CHOICE_H

#include <stdint.h>

/* Kernels that cuBLASLt is asked for. */
#define TDM_PRODUCT_KERNELS 12

/* A proposed kernel: its tile (a cublasLtMatmulTile_t), into how many parts it divides the depth,
 * and how many times its blocks fill the device. */
struct tdm_product_kernel {
    uint32_t tile, split;
    float waves;
};

/* The index of the kernel that is likely the fastest for m x n x k bf16 factors on a Hopper GPU at
 * its power limit, among `count` (at least 1) in cuBLASLt's order. Depends on nothing else, so
 * results repeat. Small products keep the first one. */
uint32_t tdm_product_choose(uint64_t m, uint64_t n, uint64_t k, uint32_t count,
                            const struct tdm_product_kernel *kernels);

#endif
