/* SPDX-License-Identifier: Apache-2.0 */
/* Single-threaded fp32 matrix product: OpenBLAS if this build has it, else own loops. */
#ifndef TDM_EXECUTOR_CPU_GEMM_H
#define TDM_EXECUTOR_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* A factor in memory: row-major with `stride` elements between rows; `transposed`: memory holds the
 * transpose of the factor. */
struct tdm_factor {
    const float *data;
    uint64_t stride;
    bool transposed;
};

/* C = A B, or C += A B with `add`. A is m x k, B is k x n, C row-major with `stride`. Dimensions
 * and strides are below 2^31. C overlaps neither. */
void tdm_gemm(uint64_t m, uint64_t n, uint64_t k, struct tdm_factor a, struct tdm_factor b,
              bool add, float *c, uint64_t stride);

/* The same, always by own loops. */
void tdm_gemm_plain(uint64_t m, uint64_t n, uint64_t k, struct tdm_factor a, struct tdm_factor b,
                    bool add, float *c, uint64_t stride);

/* Bytes of address space that the library maps per thread at first use; 0: none. OpenBLAS retries
 * forever if it cannot map them, so check beforehand. */
uint64_t tdm_gemm_mapped_bytes(void);

/* Makes the library single-threaded and uses it once on the calling thread, so that later calls
 * allocate nothing. */
void tdm_gemm_warm_up(void);

/* "OpenBLAS" or "own loops". */
const char *tdm_gemm_name(void);

#endif
