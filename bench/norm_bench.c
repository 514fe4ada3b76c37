/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the speed of every version of RMSNorm on the GPU, in bytes moved per second, at the
 * hidden sizes of common models, for 4,096 rows and for 131,072, whose data exceeds the L2 cache.
 * Prints one line for each shape and version.
 */
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/norm.h"

#include <stdio.h>
#include <stdlib.h>

static void stop_on(enum tdm_status status, const struct tdm_error *err)
{
    if (status == TDM_OK)
        return;
    fprintf(stderr, "norm_bench: %s\n", err->message);
    exit(1);
}

int main(void)
{
    static const uint32_t hidden_sizes[] = {896, 2048, 3584, 4096, 5120, 8192, 16384};
    static const uint64_t rows_of[] = {4096, 131072};
    enum { REPEATS = 20 };
    const uint64_t most_bytes = UINT64_C(131072) * 16384 * 2;
    struct tdm_error err = {0};

    void *x, *y, *weight;
    cudaEvent_t start, end;
    stop_on(TDM_CUDA(cudaMalloc(&x, most_bytes), &err), &err);
    stop_on(TDM_CUDA(cudaMalloc(&y, most_bytes), &err), &err);
    stop_on(TDM_CUDA(cudaMalloc(&weight, 65536), &err), &err);
    stop_on(TDM_CUDA(cudaMemset(x, 1, most_bytes), &err), &err);
    stop_on(TDM_CUDA(cudaMemset(weight, 1, 65536), &err), &err);
    stop_on(TDM_CUDA(cudaEventCreate(&start), &err), &err);
    stop_on(TDM_CUDA(cudaEventCreate(&end), &err), &err);

    printf("%8s %8s %-10s %10s %10s\n", "rows", "hidden", "version", "us", "GB/s");
    for (size_t r = 0; r < sizeof(rows_of) / sizeof(rows_of[0]); r++) {
        for (size_t h = 0; h < sizeof(hidden_sizes) / sizeof(hidden_sizes[0]); h++) {
            const uint64_t rows = rows_of[r];
            const uint32_t hidden = hidden_sizes[h];
            const enum tdm_rms_norm_version chosen = tdm_rms_norm_choose(x, weight, y, hidden);
            for (int v = 0; v < TDM_RMS_NORM_VERSIONS; v++) {
                const enum tdm_rms_norm_version version = (enum tdm_rms_norm_version)v;
                float milliseconds = 0.0f;
                enum tdm_status status = TDM_OK;
                /* The first round warms up; the second overwrites its time. */
                for (int round = 0; round < 2 && status == TDM_OK; round++) {
                    stop_on(TDM_CUDA(cudaEventRecord(start, NULL), &err), &err);
                    for (int i = 0; i < REPEATS && status == TDM_OK; i++)
                        status = tdm_cuda_rms_norm_version(version, x, weight, TDM_DTYPE_BF16, rows,
                                                           hidden, 1e-6f, y, NULL, &err);
                    stop_on(TDM_CUDA(cudaEventRecord(end, NULL), &err), &err);
                    stop_on(TDM_CUDA(cudaEventSynchronize(end), &err), &err);
                    stop_on(TDM_CUDA(cudaEventElapsedTime(&milliseconds, start, end), &err), &err);
                }
                if (status == TDM_USAGE)
                    continue; /* not for this hidden size */
                stop_on(status, &err);
                const double seconds = milliseconds / 1e3 / REPEATS;
                const double bytes = 4.0 * (double)rows * hidden;
                printf("%8llu %8u %-10s %10.1f %10.0f%s\n", (unsigned long long)rows, hidden,
                       tdm_rms_norm_version_name(version), seconds * 1e6, bytes / seconds / 1e9,
                       version == chosen ? "  chosen" : "");
            }
        }
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    cudaFree(x);
    cudaFree(y);
    cudaFree(weight);
    return 0;
}
