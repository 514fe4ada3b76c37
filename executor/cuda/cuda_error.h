/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a failed call of the CUDA runtime to a status and a message that quotes the call. */
#ifndef TDM_EXECUTOR_CUDA_CUDA_ERROR_H
#define TDM_EXECUTOR_CUDA_CUDA_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

#include <cuda_runtime_api.h>

/* TDM_OK for cudaSuccess. Otherwise clears the last error of the runtime and fails with `call`
 * quoted: TDM_NO_DEVICE if there is no GPU or no driver that this program can use, TDM_NO_MEMORY if
 * the device is out of memory, TDM_INTERNAL otherwise. */
enum tdm_status tdm_cuda_status(cudaError_t code, const char *call, struct tdm_error *err);

/* Makes a call and yields its status: `if (TDM_CUDA(cudaMalloc(&p, n), err) != TDM_OK) ...`. */
#define TDM_CUDA(call, err) tdm_cuda_status((call), #call, (err))

#ifdef __cplusplus
}
#endif

#endif
