/* SPDX-License-Identifier: Apache-2.0 */
/* Work beside the kernels under test: copies to the device, and a kernel that writes. */
#ifndef TDM_TESTS_GPU_NOISE_H
#define TDM_TESTS_GPU_NOISE_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct noise {
    void *from, *to;
    size_t bytes;
    cudaStream_t stream;
};

static inline void noise_check(cudaError_t code)
{
    if (code == cudaSuccess)
        return;
    printf("Bail out! %s\n", cudaGetErrorString(code));
    exit(1);
}

static inline struct noise new_noise(void)
{
    struct noise noise = {.bytes = 8 << 20};
    noise_check(cudaMallocHost(&noise.from, noise.bytes));
    noise_check(cudaMalloc(&noise.to, 2 * noise.bytes));
    noise_check(cudaStreamCreateWithFlags(&noise.stream, cudaStreamNonBlocking));
    memset(noise.from, 1, noise.bytes);
    return noise;
}

/* Queues the work `times` times. */
static inline void make_noise(const struct noise *noise, int times)
{
    for (int i = 0; i < times; i++) {
        noise_check(cudaMemcpyAsync(noise->to, noise->from, noise->bytes, cudaMemcpyHostToDevice,
                                    noise->stream));
        noise_check(
            cudaMemsetAsync((char *)noise->to + noise->bytes, 2, noise->bytes, noise->stream));
    }
}

static inline void free_noise(struct noise *noise)
{
    noise_check(cudaStreamSynchronize(noise->stream));
    noise_check(cudaStreamDestroy(noise->stream));
    noise_check(cudaFreeHost(noise->from));
    noise_check(cudaFree(noise->to));
}

#endif
