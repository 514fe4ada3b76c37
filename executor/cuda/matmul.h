/* SPDX-License-Identifier: Apache-2.0 */
/* Products of stored matrices on the device: by cuBLASLt where it supports them, otherwise by our
 * own kernel. */
#ifndef TDM_EXECUTOR_CUDA_MATMUL_H
#define TDM_EXECUTOR_CUDA_MATMUL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "executor/cuda/product_choice.h"
#include "executor/multiplication.h"

#include <cuda_runtime_api.h>

struct tdm_matmul;

/* Loads cuBLASLt. If the library is not found, fails with TDM_NO_DEVICE and says what to install.
 * The caller closes *matmul. */
enum tdm_status tdm_matmul_open(struct tdm_matmul **matmul, struct tdm_error *err);
void tdm_matmul_close(struct tdm_matmul *matmul);

/* Sets the workspace of later products: device memory, aligned to 256. Its size affects which
 * algorithm is chosen. There is no workspace before the first call. */
void tdm_matmul_use(struct tdm_matmul *matmul, void *workspace, uint64_t bytes);

/* Queues `count` (at most 2) multiplications on `stream`. All calls for one backend must use the
 * same stream. Multiplications that are parts of one larger product are merged. The algorithm for a
 * shape is chosen when the shape is first seen and is then kept, so that results repeat. */
enum tdm_status tdm_cuda_multiply(struct tdm_matmul *matmul, uint32_t count,
                                  const struct tdm_multiplication *multiplications,
                                  cudaStream_t stream, struct tdm_error *err);

/* What cuBLASLt proposes for a product of one term, in its order; none if it cannot multiply it. */
enum tdm_status tdm_matmul_proposals(struct tdm_matmul *matmul, const struct tdm_multiplication *x,
                                     struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS],
                                     uint32_t *count, struct tdm_error *err);

/* Takes one of these for later products of that shape, so that it can be measured. TDM_USAGE if
 * there are not as many. */
enum tdm_status tdm_matmul_take(struct tdm_matmul *matmul, const struct tdm_multiplication *x,
                                uint32_t proposal, struct tdm_error *err);

/* Merges two multiplications, or two terms, that are parts of one. Returns the number of
 * multiplications left. */
uint32_t tdm_multiplications_join(uint32_t count, struct tdm_multiplication *multiplications);

/* gemm.cu: supports all dtypes, strides and terms, on CUDA cores. */
enum tdm_status tdm_cuda_gemm(const struct tdm_multiplication *multiplication, cudaStream_t stream,
                              struct tdm_error *err);

#ifdef __cplusplus
}
#endif

#endif
