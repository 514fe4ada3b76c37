/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of attention on the GPU, heads as Qwen2.5-7B has them: chunks of 4,096 and of 16,384 queries, or of the
 * one size that is given, over up to 256K keys. TFLOP/s of the work that a chunk is counted with: 4 * head_dim a
 * (query head, key) forward, 10 backward, whatever the kernels compute again.
 *
 * attention_bench --budget TOKENS: 4,096 queries over up to 1M keys, dense and over lists of the pages that won
 * the vote of random queries on random keys, `voted`; and over as many pages that all query pages share,
 * `shared`, or that are the last before the chunk, `recent`. TFLOP/s of the pairs that are seen; beside it the
 * milliseconds of the page means of a chunk and of a selection, and these as a share of the attention over `voted`.
 */
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    static uint64_t state = 1; /* other numbers each time */
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

typedef enum tdm_status (*function)(const void *, cudaStream_t, struct tdm_error *);

/* Milliseconds of a call; the median of five, after one that warms up. */
static float measure(function call, const void *of)
{
    struct tdm_error err = {0};
    cudaEvent_t start, end;
    float times[5] = {0};
    stop_on(TDM_CUDA(cudaEventCreate(&start), &err), &err);
    stop_on(TDM_CUDA(cudaEventCreate(&end), &err), &err);
    for (int i = -1; i < 5; i++) {
        float milliseconds;
        stop_on(TDM_CUDA(cudaEventRecord(start, NULL), &err), &err);
        stop_on(call(of, NULL, &err), &err);
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

/* A kind of kernels, and what it is asked for. */
struct job {
    const struct tdm_attention_kind *kind;
    const struct tdm_attend *attend;
};

static enum tdm_status forward(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    const struct job *job = of;
    return job->kind->forward(job->attend, stream, err);
}

static enum tdm_status backward(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    const struct job *job = of;
    return job->kind->backward(job->attend, stream, err);
}

static enum tdm_status from(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    return tdm_cuda_attend_from(of, stream, err);
}

static enum tdm_status means(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    return tdm_cuda_page_means(of, stream, err);
}

static enum tdm_status choose(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    return tdm_cuda_select(of, stream, err);
}

/* Of a selection the votes alone. */
static enum tdm_status vote(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    const struct tdm_votes_kind *kind = tdm_cuda_votes_kinds;
    while (kind->suits != NULL && !kind->suits(of))
        kind++;
    return kind->count(of, stream, err);
}

/* Forward and backward of the first kind that suits, in a row of a table; returns milliseconds of both. */
static float measure_row(const struct tdm_attend *a, const char *lists, uint64_t keys, double pairs)
{
    struct job job = {tdm_cuda_attention_kinds, a};
    while (job.kind->suits != NULL && !job.kind->suits(a))
        job.kind++;
    struct tdm_error err = {0};
    stop_on(tdm_cuda_attend_from(a, NULL, &err), &err);
    const float forth = measure(forward, &job), back = measure(backward, &job);
    printf("%-14s%8llu %-7s %10.3f %9.0f %11.3f %9.0f", job.kind->name, (unsigned long long)keys,
           lists, forth, 4e-9 * DIM * pairs / forth, back, 1e-8 * DIM * pairs / back);
    fflush(stdout);
    return forth + back;
}

/* Lists of `count` pages before the chunk, and the pages of the chunk up to the query page's own. */
static void write_lists(const struct tdm_attend *a, uint32_t count, bool recent)
{
    struct tdm_error err = {0};
    const uint32_t pages = (uint32_t)(a->tokens / PAGE), before = (uint32_t)(a->first_token / PAGE);
    const uint64_t words = (uint64_t)pages * KV_HEADS * (1 + a->lists.capacity);
    uint32_t *all = malloc(words * sizeof(*all)), *list = all;
    if (all == NULL)
        exit(1);
    for (uint32_t i = 0; i < pages * KV_HEADS; i++, list += 1 + a->lists.capacity) {
        const uint32_t own = i / KV_HEADS + 1;
        list[0] = count + own;
        for (uint32_t k = 0; k < count; k++)
            list[1 + k] = (recent ? before - count + k : k * (before / count)) | TDM_PAGE_WHOLE;
        for (uint32_t k = 0; k < own; k++)
            list[1 + count + k] = before + k;
    }
    stop_on(TDM_CUDA(cudaMemcpy(a->lists.pages, all, words * sizeof(*all), cudaMemcpyHostToDevice),
                     &err),
            &err);
    free(all);
}

/* Dense, and over lists of `budget` tokens beside the chunk. */
static void measure_budget(uint64_t budget)
{
    static const uint64_t all_keys[] = {65536, 262144, 1048576};
    const uint64_t most = 1048576, tokens = 4096, slot = 2 * tokens * KV_HEADS * DIM;
    const uint64_t row = (uint64_t)HEADS * DIM, pages = tokens / PAGE, mean = KV_HEADS * DIM;
    const uint32_t count = (uint32_t)(budget / PAGE);
    struct tdm_error err = {0};
    struct tdm_attend a = {
        .tokens = tokens,
        .chunk_tokens = tokens,
        .page_tokens = PAGE,
        .lists = {.rule = {.selector = {.kind = TDM_SELECT_TOP_K, .budget = budget},
                           .chunk_tokens = tokens,
                           .page_tokens = PAGE},
                  .lists = KV_HEADS,
                  .capacity = count + (uint32_t)pages},
        .documents = {NULL, 1},
        .query_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = {random_memory(tokens * row), TDM_DTYPE_BF16},
        .pages = {random_memory(2 * most * KV_HEADS * DIM), TDM_DTYPE_BF16},
        .slot_elements = slot,
        .gradient_slot_elements = slot,
        .out = {zeros(tokens * row * 2), TDM_DTYPE_BF16},
        .lse = zeros(tokens * HEADS * sizeof(float)),
        .d_out = {random_memory(tokens * row), TDM_DTYPE_BF16},
        .dq = {zeros(tokens * row * 2), TDM_DTYPE_BF16},
        .added = {zeros(2 * most * KV_HEADS * DIM * sizeof(float)), TDM_DTYPE_FP32},
        .from = zeros(tokens * sizeof(uint32_t)),
        .d = zeros(2 * tokens * HEADS * sizeof(float)),
        .start = zeros(tokens * sizeof(uint32_t)),
        .readers = zeros(most / PAGE * KV_HEADS * 2 * sizeof(uint32_t)),
        .order = zeros(most / PAGE * KV_HEADS * sizeof(uint32_t)),
    };
    uint32_t *lists = zeros(pages * KV_HEADS * (1 + a.lists.capacity) * sizeof(uint32_t));
    struct tdm_select s = {
        .tokens = tokens,
        .documents = {NULL, 1},
        .query_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = a.q,
        .means = {zeros(most / PAGE * mean * 2), TDM_DTYPE_BF16},
        .slot_elements = pages * mean,
        .lists = a.lists,
        .votes = zeros(pages * most / PAGE * KV_HEADS * sizeof(float)),
        .lse = zeros(2 * tokens * HEADS * sizeof(float)),
    };
    s.lists.pages = lists;
    struct tdm_means m = {.tokens = tokens,
                          .page_tokens = PAGE,
                          .kv_heads = KV_HEADS,
                          .head_dim = DIM,
                          .pages = a.pages,
                          .means = s.means};
    for (uint64_t i = 0; i < most / tokens; i++) {
        m.pages.data = (uint16_t *)a.pages.data + i * slot;
        m.means.data = (uint16_t *)s.means.data + i * s.slot_elements;
        stop_on(tdm_cuda_page_means(&m, NULL, &err), &err);
    }
    const float means_ms = measure(means, &m);
    printf("%-14s%8s %-7s %10s %9s %11s %9s\n", "kernels", "keys", "lists", "forward ms", "TFLOP/s",
           "backward ms", "TFLOP/s");
    for (size_t i = 0; i < sizeof(all_keys) / sizeof(all_keys[0]); i++) {
        const uint64_t keys = all_keys[i];
        const double own = (double)tokens * (double)(tokens + 1) / 2;
        a.first_token = s.first_token = keys - tokens;
        a.lists.pages = NULL;
        a.lists.rule.selector.kind = TDM_SELECT_DENSE;
        measure_row(&a, "dense", keys, (own + (double)tokens * (double)a.first_token) * HEADS);
        a.lists.rule.selector.kind = TDM_SELECT_TOP_K;
        a.lists.pages = lists;
        const double pairs = (own + (double)tokens * (double)(count * PAGE)) * HEADS;
        const float select_ms = measure(choose, &s);
        printf("\n");
        const float both = measure_row(&a, "voted", keys, pairs);
        printf("  means %.3f ms, select %.3f ms (votes %.3f), %.1f%%; inverse lists %.3f ms\n",
               means_ms, select_ms, measure(vote, &s), 100 * (select_ms + means_ms) / both,
               measure(from, &a));
        write_lists(&a, count, false);
        measure_row(&a, "shared", keys, pairs);
        printf("\n");
        write_lists(&a, count, true);
        measure_row(&a, "recent", keys, pairs);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    static const struct {
        uint64_t tokens, keys;
    } all[] = {{4096, 4096},   {4096, 8192},   {4096, 32768},   {4096, 131072},
               {4096, 262144}, {16384, 16384}, {16384, 131072}, {16384, 262144}};
    const uint64_t most = 262144, most_tokens = 16384, row = (uint64_t)HEADS * DIM;
    struct tdm_error err = {0};
    if (argc == 3 && strcmp(argv[1], "--budget") == 0) {
        measure_budget(strtoull(argv[2], NULL, 10));
        return 0;
    }
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
        a.lists.rule.chunk_tokens = a.chunk_tokens;
        a.lists.rule.page_tokens = PAGE;
        a.first_token = all[i].keys - a.tokens;
        a.slot_elements = a.gradient_slot_elements = 2 * a.tokens * KV_HEADS * DIM;
        stop_on(tdm_cuda_attend_from(&a, NULL, &err), &err);
        const double tokens = (double)a.tokens;
        const double pairs = tokens * ((double)a.first_token + (tokens + 1) / 2.0) * HEADS;
        for (const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds; kind->suits != NULL;
             kind++) {
            if (!kind->suits(&a))
                continue;
            const struct job job = {kind, &a};
            const float forth = measure(forward, &job), back = measure(backward, &job);
            printf("%-14s%8llu %8llu %12.3f %10.0f %12.3f %10.0f\n", kind->name,
                   (unsigned long long)a.tokens, (unsigned long long)all[i].keys, forth,
                   4e-9 * DIM * pairs / forth, back, 1e-8 * DIM * pairs / back);
        }
    }
    return 0;
}
