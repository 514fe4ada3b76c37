/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of attention on the GPU: a chunk of 4,096 queries over 4K to 256K keys, heads as Qwen2.5-7B has
 * them. TFLOP/s of the work that a chunk is counted with: 4 * head_dim a (query head, key) forward, 10
 * backward, whatever the kernels compute again.
 */
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 4096, HEADS = 28, KV_HEADS = 4, DIM = 128, PAGE = 128 };

static void stop_on(enum tdm_status status, const struct tdm_error *err)
{
    if (status == TDM_OK)
        return;
    fprintf(stderr, "attention_bench: %s\n", err->message);
    exit(1);
}

/* Device memory with small random bf16 numbers. */
static void *random_memory(uint64_t elements)
{
    struct tdm_error err = {0};
    uint16_t *values = malloc(elements * sizeof(*values));
    void *memory;
    uint64_t state = 1;
    if (values == NULL)
        exit(1);
    for (uint64_t i = 0; i < elements; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = tdm_float_to_bf16((float)(state >> 40) * 0x1p-23f - 1.0f);
    }
    stop_on(TDM_CUDA(cudaMalloc(&memory, elements * 2), &err), &err);
    stop_on(TDM_CUDA(cudaMemcpy(memory, values, elements * 2, cudaMemcpyHostToDevice), &err), &err);
    free(values);
    return memory;
}

static void *zeros(uint64_t bytes)
{
    struct tdm_error err = {0};
    void *memory;
    stop_on(TDM_CUDA(cudaMalloc(&memory, bytes), &err), &err);
    stop_on(TDM_CUDA(cudaMemset(memory, 0, bytes), &err), &err);
    return memory;
}

typedef enum tdm_status (*function)(const struct tdm_attend *, cudaStream_t, struct tdm_error *);

/* Milliseconds of a call; the median of five, after one that warms up. */
static float measure(function call, const struct tdm_attend *a)
{
    struct tdm_error err = {0};
    cudaEvent_t start, end;
    float times[5] = {0};
    stop_on(TDM_CUDA(cudaEventCreate(&start), &err), &err);
    stop_on(TDM_CUDA(cudaEventCreate(&end), &err), &err);
    for (int i = -1; i < 5; i++) {
        float milliseconds;
        stop_on(TDM_CUDA(cudaEventRecord(start, NULL), &err), &err);
        stop_on(call(a, NULL, &err), &err);
        stop_on(TDM_CUDA(cudaEventRecord(end, NULL), &err), &err);
        stop_on(TDM_CUDA(cudaEventSynchronize(end), &err), &err);
        stop_on(TDM_CUDA(cudaEventElapsedTime(&milliseconds, start, end), &err), &err);
        int at = i;
        for (; at > 0 && times[at - 1] > milliseconds; at--)
            times[at] = times[at - 1];
        if (at >= 0)
            times[at] = milliseconds;
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    return times[2];
}

int main(void)
{
    static const uint64_t contexts[] = {4096, 16384, 65536, 262144};
    const uint64_t most = 262144, row = (uint64_t)HEADS * DIM;
    const uint64_t slot = (uint64_t)2 * TOKENS * KV_HEADS * DIM;
    struct tdm_error err = {0};
    struct tdm_attend a = {
        .tokens = TOKENS,
        .chunk_tokens = TOKENS,
        .page_tokens = PAGE,
        .documents = {NULL, 1},
        .query_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = {random_memory(TOKENS * row), TDM_DTYPE_BF16},
        .pages = {random_memory(most / TOKENS * slot), TDM_DTYPE_BF16},
        .slot_elements = slot,
        .out = {zeros(TOKENS * row * 2), TDM_DTYPE_BF16},
        .lse = zeros((uint64_t)TOKENS * HEADS * sizeof(float)),
        .d_out = {random_memory(TOKENS * row), TDM_DTYPE_BF16},
        .dq = {zeros(TOKENS * row * 2), TDM_DTYPE_BF16},
        .added = {zeros(most / TOKENS * slot * sizeof(float)), TDM_DTYPE_FP32},
        .gradient_slot_elements = slot,
        .from = zeros(TOKENS * sizeof(uint32_t)),
        .d = zeros((uint64_t)TOKENS * HEADS * sizeof(float)),
    };
    printf("%8s %12s %10s %12s %10s\n", "keys", "forward ms", "TFLOP/s", "backward ms", "TFLOP/s");
    for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
        a.first_token = contexts[i] - TOKENS;
        stop_on(tdm_cuda_attend_from(&a, NULL, &err), &err);
        const double pairs = (double)TOKENS * ((double)a.first_token + (TOKENS + 1) / 2.0) * HEADS;
        const float forward = measure(tdm_cuda_attention, &a);
        const float backward = measure(tdm_cuda_attention_grad, &a);
        printf("%8llu %12.3f %10.0f %12.3f %10.0f\n", (unsigned long long)contexts[i], forward,
               4e-9 * DIM * pairs / forward, backward, 1e-8 * DIM * pairs / backward);
    }
    return 0;
}
