/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the speed of attention on the GPU, in TFLOP/s. It counts the visible pairs of a query
 * and a key: 4 * head_dim operations a pair and query head forward, 10 * head_dim backward, no
 * matter what the kernels recompute. Runs are bursts and held runs (gpu_meter.h), with clock and
 * power.
 *
 *   attention_bench [--seconds S] [--peer "python3 bench/attention_peer.py"] [--all] [--row N]
 *       Chunks of 4,096 and 16,384 queries over up to 256K keys, with the heads of Qwen2.5-7B,
 *       shapes with heads of 64, a ragged last chunk, windows, and documents of equal length; parts
 *       of a ring of ranks; dense shapes with as many pairs as the windows and documents; first
 *       chunks, also with the heads of Llama 3.1 8B. Beside each of those that see all keys, the
 *       peer's (cuDNN's) figures for it: its keys are those before the chunk and its own, without a
 *       mask where there are more keys than queries. --all: all kernels, not only the first that
 *       suits. --row: only shape N, counted from 1; it may be given several times.
 *   attention_bench --budget TOKENS [--seconds S]
 *       4,096 queries over up to 1M keys, dense and over page lists: `voted` pages won the vote of
 *       random queries on random keys; `shared` are as many pages, the same for all query pages;
 *       `recent` are the last pages before the chunk. Beside it the milliseconds of a chunk's page
 *       means and of a selection, and their sum as a share of the attention over `voted`.
 */
#include "bench/gpu_meter.h"
#include "executor/cuda/kernels.h"

#include <stdint.h>
#include <string.h>

enum { HEADS = 28, KV_HEADS = 4, DIM = 128, PAGE = 128, CHUNK = 4096 };

static void stop_on(enum tdm_status status, const struct tdm_error *err)
{
    meter_must(status, err);
}

/* Device memory with small random bf16 numbers. */
static void *random_memory(uint64_t elements)
{
    struct tdm_error err = {0};
    uint16_t *values = malloc(elements * sizeof(*values));
    void *memory;
    static uint64_t state = 1; /* differs from call to call */
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

static struct meter meter;

/* Milliseconds of a call, measured in bursts. */
static double measure(metered_call call, const void *of)
{
    return meter_burst(&meter, call, of).milliseconds;
}

/* A kind of kernels and the attention that it runs. */
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

/* Only the votes of a selection. */
static enum tdm_status vote(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    const struct tdm_votes_kind *kind = tdm_cuda_votes_kinds;
    while (kind->suits != NULL && !kind->suits(of))
        kind++;
    return kind->count(of, stream, err);
}

/* Measures forward and backward of the first kind that suits and prints them in a line. Returns the
 * milliseconds of both, held. */
static double measure_row(const struct tdm_attend *a, const char *lists, uint64_t keys,
                          double pairs, double seconds)
{
    struct job job = {tdm_cuda_attention_kinds, a};
    while (job.kind->suits != NULL && !job.kind->suits(a))
        job.kind++;
    struct tdm_error err = {0};
    stop_on(tdm_cuda_attend_from(a, NULL, &err), &err);
    const double forth_work = 4e-9 * DIM * pairs, back_work = 1e-8 * DIM * pairs;
    const struct metered forth = meter_burst(&meter, forward, &job);
    const struct metered forth_held = meter_held(&meter, forward, &job, seconds);
    const struct metered back = meter_burst(&meter, backward, &job);
    const struct metered back_held = meter_held(&meter, backward, &job, seconds);
    printf("%-13s %7llu %-7s | %6.0f %6.0f %8.3f %4.0f MHz %3.0f W | %6.0f %6.0f %8.3f %4.0f MHz "
           "%3.0f W",
           job.kind->name, (unsigned long long)keys, lists, forth_work / forth.milliseconds,
           forth_work / forth_held.milliseconds, forth_held.milliseconds, forth_held.megahertz,
           forth_held.watts, back_work / back.milliseconds, back_work / back_held.milliseconds,
           back_held.milliseconds, back_held.megahertz, back_held.watts);
    fflush(stdout);
    return forth_held.milliseconds + back_held.milliseconds;
}

/* Writes lists of `count` pages before the chunk, followed by the chunk's pages up to and including
 * the query page itself. */
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

/* Measures dense attention and attention over lists of `budget` tokens plus the chunk. */
static void measure_budget(uint64_t budget, double seconds)
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
        .dq_sums = zeros(tokens * row * sizeof(float)),
        .parts = zeros(tokens * row * sizeof(float)),
        .turns = zeros(tdm_attend_turns(tokens, most, HEADS, KV_HEADS) * sizeof(uint32_t)),
        .start = zeros(tokens * sizeof(uint32_t)),
        .readers = zeros(most / PAGE * KV_HEADS * 2 * sizeof(uint32_t)),
        .order =
            zeros(tdm_attend_order(most / PAGE, pages, KV_HEADS, HEADS / KV_HEADS, count + pages) *
                  sizeof(uint32_t)),
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
    const double means_ms = measure(means, &m);
    printf("%-13s %7s %-7s | %6s %6s %8s %16s | %6s %6s %8s\n", "TFLOP/s", "keys", "lists", "burst",
           "held", "ms", "forward", "burst", "held", "ms backward");
    for (size_t i = 0; i < sizeof(all_keys) / sizeof(all_keys[0]); i++) {
        const uint64_t keys = all_keys[i];
        const double own = (double)tokens * (double)(tokens + 1) / 2;
        a.first_token = s.first_token = keys - tokens;
        a.keys = keys;
        a.lists.pages = NULL;
        a.lists.rule.selector.kind = TDM_SELECT_DENSE;
        measure_row(&a, "dense", keys, (own + (double)tokens * (double)a.first_token) * HEADS,
                    seconds);
        a.lists.rule.selector.kind = TDM_SELECT_TOP_K;
        a.lists.pages = lists;
        const double pairs = (own + (double)tokens * (double)(count * PAGE)) * HEADS;
        const double select_ms = measure(choose, &s);
        printf("\n");
        const double both = measure_row(&a, "voted", keys, pairs, seconds);
        printf("  means %.3f ms, select %.3f ms (votes %.3f), %.1f%%; inverse lists %.3f ms\n",
               means_ms, select_ms, measure(vote, &s), 100 * (select_ms + means_ms) / both,
               measure(from, &a));
        write_lists(&a, count, false);
        measure_row(&a, "shared", keys, pairs, seconds);
        printf("\n");
        write_lists(&a, count, true);
        measure_row(&a, "recent", keys, pairs, seconds);
        printf("\n");
    }
}

/* ---- dense ---- */

struct shape {
    uint64_t tokens, keys;
    uint32_t query_heads, kv_heads, head_dim;
    uint64_t window, document; /* tokens; 0: all keys before, one document */
    bool visits;               /* the keys are a chunk before the queries, as in a ring of ranks */
};

/* A program that measures the same shapes on request. */
struct peer {
    FILE *to, *from;
};

static struct peer start_peer(const char *command)
{
    struct peer peer = {NULL, NULL};
    int ask[2], answer[2];
    if (command == NULL)
        return peer;
    if (pipe(ask) != 0 || pipe(answer) != 0)
        exit(1);
    if (fork() == 0) {
        dup2(ask[0], STDIN_FILENO);
        dup2(answer[1], STDOUT_FILENO);
        close(ask[1]);
        close(answer[0]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ask[0]);
    close(answer[1]);
    peer.to = fdopen(ask[1], "w");
    peer.from = fdopen(answer[0], "r");
    return peer;
}

/* Pairs that are visible, or all of them. */
static double pairs_of(const struct shape *s, bool all)
{
    uint64_t pairs = 0;
    for (uint64_t token = s->keys - s->tokens; token < s->keys; token++) {
        const uint64_t seen = (s->document > 0 ? token % s->document : token) + 1;
        pairs += all || s->visits ? s->keys : s->window > 0 && seen > s->window ? s->window : seen;
    }
    return (double)pairs * s->query_heads;
}

/* Documents of equal length; the last one may be shorter. */
static struct tdm_documents documents_of(const struct shape *s)
{
    struct tdm_error err = {0};
    uint64_t starts[64];
    uint32_t count = 0;
    void *memory;
    if (s->document == 0)
        return (struct tdm_documents){NULL, 1};
    for (uint64_t at = 0; at < s->keys && count < 64; at += s->document)
        starts[count++] = at;
    stop_on(TDM_CUDA(cudaMalloc(&memory, sizeof(starts)), &err), &err);
    stop_on(TDM_CUDA(cudaMemcpy(memory, starts, sizeof(starts), cudaMemcpyHostToDevice), &err),
            &err);
    return (struct tdm_documents){memory, count};
}

static void print_peer(const struct peer *peer, const struct shape *s, double seconds)
{
    char line[512];
    double times[4];
    if (peer->to == NULL || s->window > 0 || s->document > 0 || s->visits)
        return;
    fprintf(peer->to, "%llu %llu %u %u %u %g\n", (unsigned long long)s->tokens,
            (unsigned long long)s->keys, s->query_heads, s->kv_heads, s->head_dim, seconds);
    fflush(peer->to);
    if (fgets(line, sizeof(line), peer->from) == NULL)
        return;
    if (sscanf(line, "%lf %lf %lf %lf", &times[0], &times[1], &times[2], &times[3]) != 4) {
        printf("  peer: %s", line);
        return;
    }
    const double work = 1e-9 * s->head_dim * pairs_of(s, s->tokens != s->keys);
    printf("%-13s %6llu %7llu %2u/%u x %-3u | %6.0f %6.0f %22s | %6.0f %6.0f\n", "  peer",
           (unsigned long long)s->tokens, (unsigned long long)s->keys, s->query_heads, s->kv_heads,
           s->head_dim, 4 * work / times[0], 4 * work / times[1], "", 10 * work / times[2],
           10 * work / times[3]);
}

static void measure_shape(const struct tdm_attend *memory, const struct shape *s, double seconds,
                          bool all_kinds)
{
    struct tdm_error err = {0};
    struct tdm_attend a = *memory;
    a.tokens = s->tokens;
    a.chunk_tokens = (s->tokens + CHUNK - 1) / CHUNK * CHUNK;
    a.documents = documents_of(s);
    if (s->window > 0)
        a.lists.rule.selector =
            (struct tdm_selector){.kind = TDM_SELECT_WINDOW, .window = s->window};
    a.lists.rule.chunk_tokens = a.chunk_tokens;
    a.lists.rule.page_tokens = PAGE;
    a.first_token = s->visits ? s->keys : s->keys - s->tokens;
    a.keys = s->keys;
    a.query_heads = s->query_heads;
    a.kv_heads = s->kv_heads;
    a.head_dim = s->head_dim;
    a.slot_elements = a.gradient_slot_elements = 2 * a.chunk_tokens * s->kv_heads * s->head_dim;
    stop_on(tdm_cuda_attend_from(&a, NULL, &err), &err);
    const double work = 1e-9 * s->head_dim * pairs_of(s, false);
    char mask[64] = "";
    if (s->window > 0)
        snprintf(mask, sizeof(mask), "window %llu", (unsigned long long)s->window);
    if (s->document > 0)
        snprintf(mask, sizeof(mask), "documents of %llu", (unsigned long long)s->document);
    if (s->visits)
        snprintf(mask, sizeof(mask), "all before");
    for (const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds; kind->suits != NULL;
         kind++) {
        if (!kind->suits(&a))
            continue;
        const struct job job = {kind, &a};
        const struct metered forth = meter_burst(&meter, forward, &job);
        const struct metered forth_held = meter_held(&meter, forward, &job, seconds);
        usleep(200000);
        const struct metered back = meter_burst(&meter, backward, &job);
        const struct metered back_held = meter_held(&meter, backward, &job, seconds);
        usleep(200000);
        printf(
            "%-13s %6llu %7llu %2u/%u x %-3u | %6.0f %6.0f %8.3f %4.0f MHz %3.0f W | %6.0f %6.0f "
            "%8.3f %4.0f MHz %3.0f W%s%s\n",
            kind->name, (unsigned long long)s->tokens, (unsigned long long)s->keys, s->query_heads,
            s->kv_heads, s->head_dim, 4 * work / forth.milliseconds,
            4 * work / forth_held.milliseconds, forth_held.milliseconds, forth_held.megahertz,
            forth_held.watts, 10 * work / back.milliseconds, 10 * work / back_held.milliseconds,
            back_held.milliseconds, back_held.megahertz, back_held.watts, mask[0] ? "  " : "",
            mask);
        fflush(stdout);
        if (!all_kinds)
            break;
    }
    if (s->document > 0)
        cudaFree((void *)(uintptr_t)a.documents.starts);
}

int main(int argc, char **argv)
{
    static const struct shape all[] = {
        {4096, 4096, 28, 4, 128, 0, 0, false},
        {4096, 8192, 28, 4, 128, 0, 0, false},
        {4096, 32768, 28, 4, 128, 0, 0, false},
        {4096, 131072, 28, 4, 128, 0, 0, false},
        {4096, 262144, 28, 4, 128, 0, 0, false},
        {16384, 16384, 28, 4, 128, 0, 0, false},
        {16384, 131072, 28, 4, 128, 0, 0, false},
        {4096, 32768, 14, 2, 64, 0, 0, false},
        {4096, 32768, 32, 8, 64, 0, 0, false},
        {16384, 16384, 14, 2, 64, 0, 0, false},
        {3001, 31673, 28, 4, 128, 0, 0, false},
        {4096, 32768, 28, 4, 128, 16384, 0, false},
        {4096, 32768, 28, 4, 128, 4096, 0, false},
        {16384, 16384, 28, 4, 128, 0, 5000, false},
        {16384, 65536, 28, 4, 128, 0, 20000, false},
        {2048, 2048, 28, 4, 128, 0, 0, true},
        {4096, 4096, 28, 4, 128, 0, 0, true},
        {8192, 8192, 28, 4, 128, 0, 0, true},
        {16384, 16384, 28, 4, 128, 0, 0, true},
        {2048, 2048, 14, 2, 64, 0, 0, true},
        {8192, 8192, 14, 2, 64, 0, 0, true},
        /* dense, with as many pairs as the windows' rows; one document of each length */
        {4096, 18432, 28, 4, 128, 0, 0, false},
        {4096, 6144, 28, 4, 128, 0, 0, false},
        {5000, 5000, 28, 4, 128, 0, 0, false},
        {20000, 20000, 28, 4, 128, 0, 0, false},
        {16384, 32768, 28, 4, 128, 0, 0, false},
        {16384, 65536, 28, 4, 128, 0, 0, false},
        {16384, 262144, 28, 4, 128, 0, 0, false},
        /* other first chunks, and the heads of Llama 3.1 8B */
        {2048, 2048, 28, 4, 128, 0, 0, false},
        {8192, 8192, 28, 4, 128, 0, 0, false},
        {4096, 4096, 32, 8, 128, 0, 0, false},
        {16384, 16384, 32, 8, 128, 0, 0, false},
    };
    const uint64_t most = 262144, most_tokens = 20480, row = (uint64_t)HEADS * DIM;
    const char *command = NULL;
    double seconds = 1;
    bool all_kinds = false;
    uint64_t only = 0; /* a bit for each */
    uint64_t budget = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--budget") == 0 && i + 1 < argc)
            budget = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--all") == 0)
            all_kinds = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--row") == 0 && i + 1 < argc && atoi(argv[i + 1]) >= 1 &&
                 atoi(argv[i + 1]) <= (int)(sizeof(all) / sizeof(all[0])))
            only |= UINT64_C(1) << atoi(argv[++i]);
        else if (strcmp(argv[i], "--peer") == 0 && i + 1 < argc)
            command = argv[++i];
        else {
            fprintf(stderr,
                    "attention_bench: wrong option or value: %s; it takes --seconds S, --peer "
                    "COMMAND, --all, --row 1 to %zu, --budget TOKENS\n",
                    argv[i], sizeof(all) / sizeof(all[0]));
            return 2;
        }
    }
    meter = meter_open();
    if (budget > 0) {
        measure_budget(budget, seconds);
        return 0;
    }
    const struct peer peer = start_peer(command);
    const struct tdm_attend memory = {
        .page_tokens = PAGE,
        .documents = {NULL, 1},
        .q = {random_memory(most_tokens * row), TDM_DTYPE_BF16},
        .pages = {random_memory(2 * most * KV_HEADS * DIM), TDM_DTYPE_BF16},
        .out = {zeros(most_tokens * row * 2), TDM_DTYPE_BF16},
        .lse = zeros(most_tokens * 32 * sizeof(float)),
        .d_out = {random_memory(most_tokens * row), TDM_DTYPE_BF16},
        .dq = {zeros(most_tokens * row * 2), TDM_DTYPE_BF16},
        .added = {zeros(2 * most * KV_HEADS * DIM * sizeof(float)), TDM_DTYPE_FP32},
        .from = zeros(most_tokens * sizeof(uint32_t)),
        .d = zeros(2 * most_tokens * 32 * sizeof(float)),
        .dq_sums = zeros(most_tokens * row * sizeof(float)),
        .parts = zeros(most_tokens * row * sizeof(float)),
        .turns = zeros(tdm_attend_turns(most_tokens, most, 32, 8) * sizeof(uint32_t)),
    };
    printf("%-13s %6s %7s %11s | %6s %6s %8s %16s | %6s %6s %8s\n", "TFLOP/s", "tokens", "keys",
           "heads", "burst", "held", "ms", "forward", "burst", "held", "ms backward");
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (only != 0 && (only >> (i + 1) & 1) == 0)
            continue;
        measure_shape(&memory, &all[i], seconds, all_kinds);
        print_peer(&peer, &all[i], seconds);
    }
    return 0;
}
