/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the kernels that cuBLASLt proposes for the products of a Qwen2.5-7B layer and of its LM
 * head, each held for seconds at the power limit of the card, and shows which one tidemark takes.
 *
 *     bench/product_bench [--seconds S] [--chunk TOKENS]...   default 0.8 s; 4,096 and 8,192 tokens
 *
 * A line for each product: the rate in TFLOP/s of the first proposal, of the one taken and of the
 * fastest, then all proposals in cuBLASLt's order with their tiles.
 */
#include "bench/gpu_meter.h"
#include "base/dtype.h"
#include "executor/cuda/matmul.h"

#include <string.h>

enum { HIDDEN = 3584, MLP = 18944, KV = 1024, VOCABULARY = 152064, MOST_CHUNKS = 8 };
#define WORKSPACE_BYTES ((size_t)32 << 20)

static struct meter meter;

/* C = A B, m x n x k. Weights are stored [out][in], so forward takes B transposed, the gradient of
 * the input does not, and that of the weights takes A transposed and adds to fp32. */
enum kind { FORWARD, GRAD_INPUT, GRAD_WEIGHT };

struct product {
    const char *name;
    enum kind kind;
    uint64_t inputs, outputs;
    bool added;
};

struct memory {
    struct tdm_matmul *matmul;
    void *a, *b, *c;
};

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void *take_memory(uint64_t bytes, bool random)
{
    struct tdm_error err = {0};
    void *memory;
    meter_must(TDM_CUDA(cudaMalloc(&memory, bytes), &err), &err);
    meter_must(TDM_CUDA(cudaMemset(memory, 0, bytes), &err), &err);
    if (!random)
        return memory;
    enum { PIECE = 1 << 22 };
    uint16_t *values = malloc(PIECE * sizeof(*values));
    uint64_t state = bytes | 1;
    if (values == NULL)
        exit(1);
    for (uint64_t at = 0; at < bytes / sizeof(*values); at += PIECE) {
        const uint64_t count = bytes / sizeof(*values) - at;
        for (uint64_t i = 0; i < PIECE; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            values[i] = tdm_float_to_bf16((float)(state >> 40) * 0x1p-23f - 1.0f);
        }
        meter_must(TDM_CUDA(cudaMemcpy((uint16_t *)memory + at, values,
                                       (count < PIECE ? count : PIECE) * sizeof(*values),
                                       cudaMemcpyHostToDevice),
                            &err),
                   &err);
    }
    free(values);
    return memory;
}

static struct tdm_multiplication multiplication_of(const struct memory *memory,
                                                   const struct product *p, uint64_t tokens)
{
    struct tdm_multiplication x = {.terms = 1, .add = p->added};
    struct tdm_matrix a = {memory->a, TDM_DTYPE_BF16, 0, false}, b = a, c = a;
    b.data = memory->b;
    c.data = memory->c;
    x.m = p->kind == GRAD_WEIGHT ? p->outputs : tokens;
    x.n = p->kind == FORWARD ? p->outputs : p->inputs;
    x.term[0].k = p->kind == FORWARD ? p->inputs : p->kind == GRAD_INPUT ? p->outputs : tokens;
    a.transposed = p->kind == GRAD_WEIGHT;
    b.transposed = p->kind == FORWARD;
    a.stride = a.transposed ? x.m : x.term[0].k;
    b.stride = b.transposed ? x.term[0].k : x.n;
    c.stride = x.n;
    c.dtype = p->kind == GRAD_WEIGHT ? TDM_DTYPE_FP32 : TDM_DTYPE_BF16;
    x.term[0].a = a;
    x.term[0].b = b;
    x.c = c;
    return x;
}

struct job {
    struct tdm_matmul *matmul;
    const struct tdm_multiplication *x;
};

static enum tdm_status multiply(const void *of, cudaStream_t stream, struct tdm_error *err)
{
    const struct job *job = of;
    return tdm_cuda_multiply(job->matmul, 1, job->x, stream, err);
}

/* The sizes of a tile by its number in cuBLASLt. */
static const char *tile_name(uint32_t tile, char *buffer, size_t bytes)
{
    static const struct {
        uint32_t tile;
        const char *name;
    } names[] = {{20, "128x128"},  {21, "256x64"},   {23, "128x256"},  {24, "256x128"},
                 {29, "128x160"},  {31, "192x128"},  {32, "128x192"},  {165, "112x128"},
                 {184, "144x128"}, {197, "168x128"}, {201, "176x128"}, {209, "192x192"},
                 {248, "320x128"}, {495, "256x96"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].tile == tile)
            return names[i].name;
    snprintf(buffer, bytes, "tile %u", tile);
    return buffer;
}

static void measure(const struct memory *memory, const struct product *p, uint64_t tokens,
                    double seconds)
{
    struct tdm_error err = {0};
    struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS];
    const struct tdm_multiplication x = multiplication_of(memory, p, tokens);
    const double work = 2e-9 * (double)x.m * (double)x.n * (double)x.term[0].k;
    const struct job job = {memory->matmul, &x};
    double rates[TDM_PRODUCT_KERNELS], fastest = 0;
    struct metered last = {0};
    uint32_t count;
    meter_must(tdm_matmul_proposals(memory->matmul, &x, kernels, &count, &err), &err);
    for (uint32_t i = 0; i < count; i++) {
        meter_must(tdm_matmul_take(memory->matmul, &x, i, &err), &err);
        last = meter_held(&meter, multiply, &job, seconds);
        rates[i] = work / last.milliseconds;
        fastest = rates[i] > fastest ? rates[i] : fastest;
    }
    if (count == 0)
        return;
    const uint32_t taken = tdm_product_choose(x.m, x.n, x.term[0].k, count, kernels);
    printf("%-18s %6llu | %5.0f %5.0f %5.0f | %4.0f MHz %3.0f W |", p->name,
           (unsigned long long)tokens, rates[0], rates[taken], fastest, last.megahertz, last.watts);
    for (uint32_t i = 0; i < count; i++) {
        char buffer[32];
        printf(" %s%s %.0f", i == taken ? "*" : "",
               tile_name(kernels[i].tile, buffer, sizeof(buffer)), rates[i]);
    }
    printf("\n");
    fflush(stdout);
}

/* A cold card draws more than its limit for a while, and is faster. */
static void heat(const struct memory *memory, const struct product *p, uint64_t tokens)
{
    const struct tdm_multiplication x = multiplication_of(memory, p, tokens);
    const struct job job = {memory->matmul, &x};
    for (int i = 0; i < 5; i++)
        meter_held(&meter, multiply, &job, 1.0);
}

int main(int argc, char **argv)
{
    static const struct product products[] = {
        {"q", FORWARD, HIDDEN, HIDDEN, false},
        {"k, v", FORWARD, HIDDEN, KV, false},
        {"o", FORWARD, HIDDEN, HIDDEN, true},
        {"gate, up", FORWARD, HIDDEN, 2 * MLP, false},
        {"down", FORWARD, MLP, HIDDEN, true},
        {"input of q", GRAD_INPUT, HIDDEN, HIDDEN, false},
        {"input of k, v", GRAD_INPUT, HIDDEN, KV, true},
        {"input of gate, up", GRAD_INPUT, HIDDEN, 2 * MLP, false},
        {"input of down", GRAD_INPUT, MLP, HIDDEN, false},
        {"weight of q", GRAD_WEIGHT, HIDDEN, HIDDEN, true},
        {"weight of k, v", GRAD_WEIGHT, HIDDEN, KV, true},
        {"weight of gate, up", GRAD_WEIGHT, HIDDEN, 2 * MLP, true},
        {"weight of down", GRAD_WEIGHT, MLP, HIDDEN, true},
        {"logits", FORWARD, HIDDEN, VOCABULARY, false},
        {"input of head", GRAD_INPUT, HIDDEN, VOCABULARY, false},
        {"weight of head", GRAD_WEIGHT, HIDDEN, VOCABULARY, true},
    };
    uint64_t chunks[MOST_CHUNKS] = {4096, 8192}, longest = 0;
    uint32_t count = 0;
    double seconds = 0.8;
    struct tdm_error err = {0};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--chunk") == 0 && count < MOST_CHUNKS &&
                 strtoull(argv[i + 1], NULL, 10) > 0)
            chunks[count++] = strtoull(argv[i + 1], NULL, 10);
        else
            return 2;
    }
    if (argc % 2 == 0) /* an option without a value */
        return 2;
    if (count == 0)
        count = 2;
    for (uint32_t i = 0; i < count; i++)
        longest = most(longest, chunks[i]);
    meter = meter_open();
    const uint64_t widest = most(longest, HIDDEN) * VOCABULARY; /* elements of the largest matrix */
    struct memory memory = {.a = take_memory(widest * 2, true),
                            .b = take_memory(widest * 2, true),
                            .c = take_memory(widest * 4, false)};
    meter_must(tdm_matmul_open(&memory.matmul, &err), &err);
    tdm_matmul_use(memory.matmul, take_memory(WORKSPACE_BYTES, false), WORKSPACE_BYTES);
    heat(&memory, &products[3], chunks[0]);
    printf("%-18s %6s | %5s %5s %5s | last one         | proposals, held, TFLOP/s\n", "product",
           "tokens", "first", "taken", "best");
    for (uint32_t c = 0; c < count; c++)
        for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++)
            measure(&memory, &products[i], chunks[c], seconds);
    tdm_matmul_close(memory.matmul);
    return 0;
}
