/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a failed call of the CUDA runtime to a status and a message that quotes the call. */
#include "executor/cuda/cuda_error.h"

enum tdm_status tdm_cuda_status(cudaError_t code, const char *call, struct tdm_error *err)
{
    if (code == cudaSuccess)
        return TDM_OK;
    (void)cudaGetLastError();
    enum tdm_status status = TDM_INTERNAL;
    switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorStubLibrary:
    case cudaErrorNoKernelImageForDevice:
        status = TDM_NO_DEVICE;
        break;
    case cudaErrorMemoryAllocation:
        status = TDM_NO_MEMORY;
        break;
    default:
        break;
    }
    tdm_fail(err, status, "CUDA: %s: %s (%s)", call, cudaGetErrorString(code),
             cudaGetErrorName(code));
    if (code == cudaErrorNoKernelImageForDevice)
        return tdm_hint(
            err, "this build has no code for this card: run ./configure on the machine with the "
                 "card, or with --with-cuda-arch=all, and make again");
    if (status == TDM_NO_DEVICE)
        tdm_hint(err, "run nvidia-smi to see card and driver, or use --backend cpu");
    return status;
}
