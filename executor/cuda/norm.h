/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm on the GPU: launchers, and the reference for their test. */
#ifndef TDM_EXECUTOR_CUDA_NORM_H
#define TDM_EXECUTOR_CUDA_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/dtype.h"
#include "base/status.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

/* y[r][i] = x[r][i] * weight[i] / sqrt(mean over i of x[r][i]^2 + epsilon)
 *
 * Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4, with epsilon as in Llama. x and y are
 * bf16 [rows, hidden] on the device; y may be x. weight is [hidden], bf16 or fp32. The sum and the
 * products are in fp32 and are rounded once, to nearest even. The work is queued on `stream`. The
 * sum of a row is always added in the same order, so results repeat. TDM_USAGE if the weight has
 * another dtype or if there are more rows than a grid holds (2^31 - 1); otherwise the status of the
 * launch. */
enum tdm_status tdm_cuda_rms_norm(const void *x, const void *weight, enum tdm_dtype weight_dtype,
                                  uint64_t rows, uint32_t hidden, float epsilon, void *y,
                                  cudaStream_t stream, struct tdm_error *err);

/* The same with x and y in fp32. */
enum tdm_status tdm_cuda_rms_norm_fp32(const void *x, const void *weight,
                                       enum tdm_dtype weight_dtype, uint64_t rows, uint32_t hidden,
                                       float epsilon, void *y, cudaStream_t stream,
                                       struct tdm_error *err);

/* The versions that tdm_cuda_rms_norm chooses from, for tests and benchmarks. */
enum tdm_rms_norm_version {
    TDM_RMS_NORM_SCALAR,   /* 2-byte loads, reads x twice; any hidden size and alignment */
    TDM_RMS_NORM_VECTOR_1, /* one 16-byte load per thread, x kept in registers */
    TDM_RMS_NORM_VECTOR_2,
    TDM_RMS_NORM_VECTOR_4,
    TDM_RMS_NORM_VECTOR_8,
    TDM_RMS_NORM_VERSIONS
};

const char *tdm_rms_norm_version_name(enum tdm_rms_norm_version version);

/* The version that is fastest for this shape and alignment. */
enum tdm_rms_norm_version tdm_rms_norm_choose(const void *x, const void *weight, const void *y,
                                              uint32_t hidden);

/* As tdm_cuda_rms_norm with a given version; TDM_USAGE if the version does not support the shape or
 * alignment. */
enum tdm_status tdm_cuda_rms_norm_version(enum tdm_rms_norm_version version, const void *x,
                                          const void *weight, enum tdm_dtype weight_dtype,
                                          uint64_t rows, uint32_t hidden, float epsilon, void *y,
                                          cudaStream_t stream, struct tdm_error *err);

/* The same on the host, without optimisation: fp32 input, all arithmetic in double. */
void tdm_rms_norm_reference(const float *x, const float *weight, uint64_t rows, uint32_t hidden,
                            double epsilon, double *y);

#ifdef __cplusplus
}
#endif

#endif
