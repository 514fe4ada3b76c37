/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels ask of the GPU they run on. */
#ifndef TDM_METHODS_GPU_FACTS_H
#define TDM_METHODS_GPU_FACTS_H

#include <stdint.h>

/* Facts of the GPU that kernels size their scratch by. */
struct tdm_gpu_facts {
    uint32_t multiprocessors, threads_per_multiprocessor;
    uint64_t cublas_workspace_bytes, cublaslt_workspace_bytes;
};

#endif
