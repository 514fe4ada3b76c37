/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of attention on the GPU: chunks of 4,096 and of 16,384 queries, or of the one size that is given,
 * over up to 256K keys, heads as Qwen2.5-7B has them. TFLOP/s of the work that a chunk is counted with: 4 * head_dim a (query head, key) forward, 10
 * backward, whatever the kernels compute again.
 */
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 28, KV_HEADS = 4, DIM = 128, PAGE = 128 };

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

int main(int argc, char **argv)
{
    static const struct {
        uint64_t tokens, keys;
    } all[] = {{4096, 4096},   {4096, 8192},   {4096, 32768},   {4096, 131072},
               {4096, 262144}, {16384, 16384}, {16384, 131072}, {16384, 262144}};
    const uint64_t most = 262144, most_tokens = 16384, row = (uint64_t)HEADS * DIM;
    struct tdm_error err = {0};
    struct tdm_attend a = {
        .page_tokens = PAGE,
        .documents = {NULL, 1},
        .query_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = {random_memory(most_tokens * row), TDM_DTYPE_BF16},
        .pages = {random_memory(2 * most * KV_HEADS * DIM), TDM_DTYPE_BF16},
        .out = {zeros(most_tokens * row * 2), TDM_DTYPE_BF16},
        .lse = zeros(most_tokens * HEADS * sizeof(float)),
        .d_out = {random_memory(most_tokens * row), TDM_DTYPE_BF16},
        .dq = {zeros(most_tokens * row * 2), TDM_DTYPE_BF16},
        .added = {zeros(2 * most * KV_HEADS * DIM * sizeof(float)), TDM_DTYPE_FP32},
        .from = zeros(most_tokens * sizeof(uint32_t)),
        .d = zeros(2 * most_tokens * HEADS * sizeof(float)),
    };
    printf("%-14s%8s %8s %12s %10s %12s %10s\n", "kernels", "tokens", "keys", "forward ms",
           "TFLOP/s", "backward ms", "TFLOP/s");
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (argc > 1 && strtoull(argv[1], NULL, 10) != all[i].tokens)
            continue;
        a.tokens = a.chunk_tokens = all[i].tokens;
        a.first_token = all[i].keys - a.tokens;
        a.slot_elements = a.gradient_slot_elements = 2 * a.tokens * KV_HEADS * DIM;
        stop_on(tdm_cuda_attend_from(&a, NULL, &err), &err);
        const double tokens = (double)a.tokens;
        const double pairs = tokens * ((double)a.first_token + (tokens + 1) / 2.0) * HEADS;
        for (const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds; kind->suits != NULL;
             kind++) {
            if (!kind->suits(&a))
                continue;
            const float forward = measure(kind->forward, &a);
            const float backward = measure(kind->backward, &a);
            printf("%-14s%8llu %8llu %12.3f %10.0f %12.3f %10.0f\n", kind->name,
                   (unsigned long long)a.tokens, (unsigned long long)all[i].keys, forward,
                   4e-9 * DIM * pairs / forward, backward, 1e-8 * DIM * pairs / backward);
        }
    }
    return 0;
}
