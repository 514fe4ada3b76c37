/* SPDX-License-Identifier: Apache-2.0 */
/* Products of stored matrices on the device: by cuBLASLt where it can, else by a kernel of our
 * own. */
#ifndef TDM_EXECUTOR_CUDA_MATMUL_H
#define TDM_EXECUTOR_CUDA_MATMUL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include "executor/multiplication.h"

#include <cuda_runtime_api.h>

struct tdm_matmul;

/* Loads cuBLASLt. TDM_NO_DEVICE if the library is not found, with what to
 * install. The caller closes. */
enum tdm_status tdm_matmul_open(struct tdm_matmul **matmul, struct tdm_error *err);
void tdm_matmul_close(struct tdm_matmul *matmul);

/* Device memory that products may use from here on, aligned to 256; an algorithm is chosen by how
 * much there is. None before the first call. */
void tdm_matmul_use(struct tdm_matmul *matmul, void *workspace, uint64_t bytes);

/* Queues `count` (at most 2) multiplications on `stream`, all of one backend on the same one. Those
 * that are parts of one larger product become one. How a shape is computed is chosen when it is
 * first met and kept, so that results repeat. */
enum tdm_status tdm_cuda_multiply(struct tdm_matmul *matmul, uint32_t count,
                                  const struct tdm_multiplication *multiplications,
                                  cudaStream_t stream, struct tdm_error *err);

/* Makes one of two multiplications, or of two terms, that are parts of one; returns how many
 * multiplications are left. */
uint32_t tdm_multiplications_join(uint32_t count, struct tdm_multiplication *multiplications);

/* gemm.cu: any dtypes, strides and terms, on CUDA cores. */
enum tdm_status tdm_cuda_gemm(const struct tdm_multiplication *multiplication, cudaStream_t stream,
                              struct tdm_error *err);

#ifdef __cplusplus
}
#endif

#endif
