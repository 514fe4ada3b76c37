/* SPDX-License-Identifier: Apache-2.0 */
/* Compares attention on tensor cores with attention on CUDA cores in fp32, on the same bf16 inputs.
 * Shapes have whole and ragged tiles, pages and chunks, documents and windows. dK and dV are
 * written and added to.
 *
 * Windows and documents have two tokens or more: with one, dQ is zero except for rounding. The
 * error is the norm of the difference over the norm of the expected result. The bound:
 * probabilities and their gradients are rounded to bf16 for the second product, and outputs too, by
 * 2^-8 each at worst and less on average. Bytes without a key of the chunk must stay as they were.
 *
 * The same attention over one slot of keys at a time, whose parts are merged, must give the same
 * within the bound, as ranks in a ring do it. With queries that go around the ring, dot products
 * are given, and dK and dV are added to. The kernels that suit the first slot must suit every slot.
 *
 * Every shape runs again as if the GPU had 97 multiprocessors (not if TDM_SANITIZED is set, when a
 * kernel is hundreds of times slower; kernels that are not the fastest for a shape then run on
 * small shapes alone). A few shapes run TDM_REPEATS times (10), with copies and other kernels under
 * way and other numbers of multiprocessors. All must give the same bits.
 *
 * attention_delays_test is the same with delays in random blocks (hopper.cuh). */
#include "base/dtype.h"
#include "executor/cuda/card.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/noise.h"

#include <math.h>
#include <string.h>

#define BOUND 8e-3

struct shape {
    uint32_t head_dim, kv_heads, ratio;
    uint64_t chunk_tokens, page_tokens;
    uint64_t slots, tokens; /* slots of keys; tokens of the last slot, the queries */
    uint64_t window;
    uint32_t documents;
};

static const struct shape shapes[] = {
    {128, 1, 1, 128, 128, 1, 128, 0, 1},
    {128, 2, 2, 256, 128, 3, 256, 0, 1},
    {64, 2, 3, 256, 64, 2, 256, 0, 1},
    {128, 4, 7, 512, 128, 4, 512, 0, 1},
    {128, 1, 2, 256, 128, 3, 100, 0, 1},
    {64, 1, 1, 100, 30, 4, 77, 0, 1},
    {128, 2, 1, 192, 64, 3, 192, 70, 1},
    {128, 2, 4, 256, 128, 4, 256, 0, 5},
    {64, 2, 2, 90, 16, 5, 90, 33, 9},
    {128, 1, 5, 1000, 128, 2, 999, 0, 3},
    {96, 2, 2, 256, 128, 3, 256, 0, 1},
    {96, 1, 3, 100, 30, 4, 77, 50, 3},
    {128, 1, 16, 512, 128, 3, 300, 0, 1},
    {64, 1, 8, 1024, 128, 4, 1024, 600, 4},
    {128, 1, 4, 320, 64, 5, 320, 0, 1},
    {128, 2, 7, 2048, 128, 3, 2048, 0, 1},
    /* one slot that is not whole tiles, one row, one key more than a tile, tiles of 176 keys across
     * pages */
    {128, 2, 3, 1000, 128, 1, 1000, 0, 1},
    {64, 3, 1, 333, 128, 1, 333, 0, 1},
    {128, 1, 2, 256, 128, 2, 1, 0, 1},
    {128, 4, 7, 128, 128, 3, 1, 0, 1},
    {128, 2, 3, 1024, 256, 3, 650, 0, 1},
    {64, 2, 7, 1024, 128, 3, 1000, 0, 1},
    {128, 3, 1, 640, 128, 4, 577, 0, 1},
    {64, 8, 4, 256, 128, 6, 129, 0, 1},
    /* windows and documents that begin and end anywhere */
    {128, 2, 7, 512, 128, 4, 512, 129, 1},
    {128, 2, 3, 1024, 128, 3, 1000, 700, 3},
    {64, 2, 4, 512, 128, 4, 500, 300, 5},
    {128, 1, 8, 2048, 128, 2, 2048, 2, 1},
    {128, 2, 2, 512, 128, 5, 400, 0, 9},
    {128, 4, 7, 1024, 128, 2, 1024, 0, 12},
    /* so many items and keys that the keys of the last items are divided (ops/scratch.h): into 2 to
     * 8 parts, with a tile for one block of a cluster alone, by windows and documents too */
    {128, 4, 7, 1024, 128, 9, 700, 0, 1},
    {128, 4, 7, 1024, 128, 12, 600, 0, 1},
    {128, 24, 1, 1024, 128, 9, 600, 0, 1},
    {64, 2, 7, 2048, 128, 6, 1200, 0, 1},
    {64, 8, 4, 1024, 128, 5, 577, 0, 1},
    {128, 4, 7, 1024, 128, 6, 700, 3100, 3},
    {64, 2, 7, 2048, 128, 4, 1200, 0, 3},
    /* documents whose rows fit in the L2 cache, where those of the chunk do not */
    {128, 24, 2, 1024, 128, 2, 1024, 0, 9},
    /* for one slot at a time: slots that are not whole pages or tiles; tiles of keys that are not
     * split by query heads, and several rounds of those that are; rows that see no keys of a slot
     */
    {128, 2, 3, 1000, 128, 3, 900, 0, 1},
    {64, 1, 7, 300, 128, 4, 300, 0, 3},
    {64, 2, 2, 129, 256, 3, 129, 0, 1},
    {128, 1, 2, 90, 128, 4, 33, 100, 1},
    {128, 16, 2, 1024, 128, 3, 1024, 0, 1},
    {64, 33, 4, 512, 128, 2, 512, 0, 1},
    {128, 4, 7, 2048, 128, 2, 1900, 0, 4},
    {128, 2, 7, 512, 128, 6, 512, 700, 1},
    /* slots whose keys are divided, in documents too, and in windows where some rows see none of
     * them */
    {128, 1, 7, 4096, 128, 3, 3000, 0, 1},
    {128, 1, 7, 4096, 128, 3, 3000, 3500, 1},
    {64, 2, 4, 4096, 128, 2, 2300, 0, 3},
    /* so many rows and KV heads that those of three heads do not fit in the L2 cache */
    {128, 8, 4, 2176, 128, 2, 2100, 0, 1},
};

/* Shapes that add to dK and dV in all slots. The first tiles of keys are seen by no row. */
static const struct shape added_shapes[] = {
    {128, 4, 7, 1024, 128, 6, 1024, 600, 1},
    {64, 2, 4, 512, 128, 8, 500, 0, 6},
    {128, 2, 3, 512, 128, 4, 512, 0, 1},
    /* of the tiles that are seen before the chunk the last ones are split by query heads */
    {128, 4, 7, 1024, 128, 6, 1024, 0, 2},
    {128, 8, 4, 512, 128, 5, 400, 0, 2},
};

/* Shapes whose scores grow so much after the first tile that their exponentials overflow. The last
 * ones have more tiles than a GPU has multiprocessors. */
static const struct shape steep_shapes[] = {
    {128, 2, 7, 512, 128, 4, 512, 0, 1},    {64, 2, 3, 512, 128, 3, 300, 0, 1},
    {128, 1, 2, 1024, 128, 3, 900, 600, 4}, {128, 4, 7, 1024, 128, 2, 1024, 0, 1},
    {64, 4, 8, 1024, 128, 2, 1000, 0, 1},   {128, 4, 7, 1024, 128, 9, 700, 0, 1},
    {64, 2, 7, 2048, 128, 6, 1200, 0, 1},
};

static const struct shape repeated_shapes[] = {
    {128, 4, 7, 1024, 128, 4, 1024, 0, 1},
    {64, 2, 8, 1024, 128, 3, 1000, 300, 3},
    {128, 4, 7, 1024, 128, 6, 650, 0, 1},
    {128, 4, 7, 1024, 128, 6, 1024, 0, 2},
};

static bool is_sanitized(void)
{
    return getenv("TDM_SANITIZED") != NULL;
}

/* Is a kernel that is not the first one for a shape left out because it would take too long? */
static bool is_left_out(const struct tdm_attention_kind *kind,
                        const struct tdm_attention_kind *first, const struct shape *s)
{
    const uint64_t keys = (s->slots - 1) * s->chunk_tokens + s->tokens;
    return is_sanitized() && first != NULL && kind != first &&
           s->tokens * s->kv_heads * s->ratio * s->head_dim * keys > (uint64_t)1 << 30;
}

/* Elements of a slot of pages. */
static uint64_t slot_of(const struct shape *s)
{
    const uint64_t pages = (s->chunk_tokens + s->page_tokens - 1) / s->page_tokens;
    return pages * 2 * s->page_tokens * s->kv_heads * s->head_dim;
}

static void die(const struct tdm_error *err)
{
    printf("Bail out! %s\n", err->message);
    exit(1);
}

static void *host(uint64_t bytes)
{
    void *memory = calloc(bytes + 1, 1);
    if (memory == NULL) {
        printf("Bail out! out of memory\n");
        exit(1);
    }
    return memory;
}

/* Device memory with a copy of `from`, or with NaN if it is NULL. */
static void *device(const void *from, uint64_t bytes)
{
    struct tdm_error err = {0};
    void *memory = NULL;
    if (TDM_CUDA(cudaMalloc(&memory, bytes), &err) != TDM_OK ||
        (from == NULL
             ? TDM_CUDA(cudaMemset(memory, 0xff, bytes), &err)
             : TDM_CUDA(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), &err)) != TDM_OK)
        die(&err);
    return memory;
}

static uint16_t *random_bf16(struct gpu_test *test, uint64_t count, float scale)
{
    uint16_t *values = host(count * sizeof(*values));
    for (uint64_t i = 0; i < count; i++)
        values[i] = tdm_float_to_bf16(gpu_test_float(test) * scale);
    return values;
}

/* Fills the space after the last key of each slot with NaN, because it was never written. */
static void poison(const struct shape *s, uint16_t *kv)
{
    const uint64_t row = (uint64_t)s->kv_heads * s->head_dim, slot = slot_of(s);
    for (uint64_t at = 0; at < s->slots * (slot / row); at++) {
        const uint64_t in_slot = at % (slot / row), plane = in_slot / s->page_tokens;
        const uint64_t key = plane / 2 * s->page_tokens + in_slot % s->page_tokens;
        if (key >= (at / (slot / row) + 1 < s->slots ? s->chunk_tokens : s->tokens))
            memset(kv + at * row, 0xff, row * sizeof(*kv));
    }
}

/* Relative difference of two arrays on the device, bf16 or fp32. */
static double difference(const void *a, const void *b, enum tdm_dtype dtype, uint64_t count)
{
    struct tdm_error err = {0};
    uint64_t size = tdm_dtype_bytes(dtype);
    unsigned char *x = host(count * size), *y = host(count * size);
    double squares = 0, error = 0;
    if (TDM_CUDA(cudaMemcpy(x, a, count * size, cudaMemcpyDeviceToHost), &err) != TDM_OK ||
        TDM_CUDA(cudaMemcpy(y, b, count * size, cudaMemcpyDeviceToHost), &err) != TDM_OK)
        die(&err);
    for (uint64_t i = 0; i < count; i++) {
        double due = dtype == TDM_DTYPE_FP32 ? ((float *)(void *)x)[i]
                                             : tdm_bf16_to_float(((uint16_t *)(void *)x)[i]);
        double got = dtype == TDM_DTYPE_FP32 ? ((float *)(void *)y)[i]
                                             : tdm_bf16_to_float(((uint16_t *)(void *)y)[i]);
        squares += due * due;
        error += (got - due) * (got - due);
    }
    free(x);
    free(y);
    return sqrt(error / (squares + 1e-30));
}

/* The results of a run, in device memory. */
struct result {
    void *out, *lse, *dq, *gradients;
};

static struct result new_result(uint64_t elements, uint64_t rows, const float *gradients,
                                uint64_t gradient_count)
{
    return (struct result){device(NULL, elements * 2), device(NULL, rows * sizeof(float)),
                           device(NULL, elements * 2),
                           device(gradients, gradient_count * sizeof(float))};
}

static void free_result(struct result *result)
{
    cudaFree(result->out);
    cudaFree(result->lse);
    cudaFree(result->dq);
    cudaFree(result->gradients);
}

/* Runs the forward into `result`, and the backward from the forward results of `from`. */
static void run(struct tdm_attend a, const struct tdm_attention_kind *kind,
                const struct result *from, struct result *result, cudaStream_t stream)
{
    struct tdm_error err = {0};
    uint64_t slots = (a.keys + a.chunk_tokens - 1) / a.chunk_tokens;
    float *gradients = result->gradients;
    a.out = (struct tdm_array){result->out, TDM_DTYPE_BF16};
    a.lse = result->lse;
    if (kind->forward(&a, stream, &err) != TDM_OK)
        die(&err);
    a.out.data = from->out;
    a.lse = from->lse;
    a.dq = (struct tdm_array){result->dq, TDM_DTYPE_BF16};
    a.gradient_slot_elements = a.slot_elements;
    a.written = a.added = (struct tdm_array){0};
    if (a.written_slots > 0)
        a.written = (struct tdm_array){gradients, TDM_DTYPE_FP32};
    if (a.written_slots < slots)
        a.added = (struct tdm_array){gradients + a.written_slots * a.slot_elements, TDM_DTYPE_FP32};
    if (kind->backward(&a, stream, &err) != TDM_OK ||
        TDM_CUDA(cudaStreamSynchronize(stream), &err) != TDM_OK)
        die(&err);
}

static void check(struct gpu_test *test, const struct tdm_attention_kind *kind,
                  const struct shape *s, const struct result *due, const struct result *got,
                  const struct result *again)
{
    const uint64_t heads = s->kv_heads * s->ratio, rows = s->tokens * heads;
    const uint64_t elements = rows * s->head_dim, gradients = s->slots * slot_of(s);
    const uint64_t keys = (s->slots - 1) * s->chunk_tokens + s->tokens;
    const double errors[] = {
        difference(due->out, got->out, TDM_DTYPE_BF16, elements),
        difference(due->lse, got->lse, TDM_DTYPE_FP32, rows),
        difference(due->dq, got->dq, TDM_DTYPE_BF16, elements),
        difference(due->gradients, got->gradients, TDM_DTYPE_FP32, gradients),
    };
    bool passed = true;
    for (int i = 0; i < 4; i++)
        passed = passed && errors[i] <= BOUND;
    bool same = difference(got->out, again->out, TDM_DTYPE_BF16, elements) == 0 &&
                difference(got->dq, again->dq, TDM_DTYPE_BF16, elements) == 0 &&
                difference(got->gradients, again->gradients, TDM_DTYPE_FP32, gradients) == 0;
    gpu_test_case(test, passed && same,
                  "%s: heads %llu/%u x %u, %llu of %llu tokens, chunks of %llu, pages of %llu, "
                  "window %llu, %u documents: out %.1e lse %.1e dq %.1e dkv %.1e, %s",
                  kind->name, (unsigned long long)heads, s->kv_heads, s->head_dim,
                  (unsigned long long)s->tokens, (unsigned long long)keys,
                  (unsigned long long)s->chunk_tokens, (unsigned long long)s->page_tokens,
                  (unsigned long long)s->window, s->documents, errors[0], errors[1], errors[2],
                  errors[3], same ? "repeats" : "does not repeat");
}

/* dK and dV of the first slot are written, or added to zeros: both give the same. */
static void check_written(struct gpu_test *test, struct tdm_attend a, const struct shape *s,
                          const struct tdm_attention_kind *kind, const struct result *due,
                          cudaStream_t stream)
{
    const uint64_t rows = s->tokens * s->kv_heads * s->ratio, elements = rows * s->head_dim;
    const uint64_t sums = s->slots * slot_of(s);
    float *zeros = host(sums * sizeof(float));
    memset(zeros, 0, sums * sizeof(float));
    struct result written = new_result(elements, rows, zeros, sums);
    struct result added = new_result(elements, rows, zeros, sums);
    a.written_slots = 1;
    run(a, kind, due, &written, stream);
    a.written_slots = 0;
    run(a, kind, due, &added, stream);
    const double errors[] = {
        difference(written.dq, added.dq, TDM_DTYPE_BF16, elements),
        difference(written.gradients, added.gradients, TDM_DTYPE_FP32, sums),
    };
    gpu_test_case(test, errors[0] == 0 && errors[1] == 0,
                  "%s: heads of %u, %llu tokens: dK and dV written and added to zeros: dq %.1e dkv "
                  "%.1e",
                  kind->name, s->head_dim, (unsigned long long)s->tokens, errors[0], errors[1]);
    free_result(&written);
    free_result(&added);
    free(zeros);
}

/* ---- one slot at a time ---- */

/* Attention over slot `k` of the keys. */
static struct tdm_attend of_slot(struct tdm_attend a, uint64_t k, uint64_t slots)
{
    a.pages.data = (uint16_t *)a.pages.data + k * a.slot_elements;
    a.key_token += k * a.chunk_tokens;
    a.keys = k + 1 < slots ? a.chunk_tokens : a.tokens;
    return a;
}

static bool suits(const struct tdm_attention_kind *kind, struct tdm_attend a, uint64_t k,
                  uint64_t slots)
{
    a = of_slot(a, k, slots);
    return kind->suits == NULL || kind->suits(&a);
}

/* Number of LSEs on the device that are no number. A row without keys has -infinity. */
static uint64_t not_numbers(const float *lse, uint64_t rows)
{
    struct tdm_error err = {0};
    float *values = host(rows * sizeof(*values));
    uint64_t count = 0;
    if (TDM_CUDA(cudaMemcpy(values, lse, rows * sizeof(*lse), cudaMemcpyDeviceToHost), &err) !=
        TDM_OK)
        die(&err);
    for (uint64_t i = 0; i < rows; i++)
        count += isnan(values[i]);
    free(values);
    return count;
}

/* Runs the forward over each slot of keys by itself into `result`, and the backward from the
 * forward results of `from`, or if `packed` from facts of these, adding to dK and dV. Returns how
 * many LSEs of single slots are no number. */
static uint64_t run_slots(struct tdm_attend a, const struct tdm_attention_kind *kind,
                          uint64_t slots, bool packed, const struct result *from,
                          struct result *result, cudaStream_t stream)
{
    const uint64_t rows = a.tokens * a.query_heads, elements = rows * a.head_dim;
    struct tdm_error err = {0};
    struct result part = new_result(elements, rows, NULL, 1),
                  sum = new_result(2 * elements, rows, NULL, 1),
                  facts = new_result(elements, rows, NULL, 1); /* its LSEs are dot products */
    float *gradients = result->gradients;
    uint64_t faults = 0;
    for (int backward = 0; backward < 2; backward++) {
        for (uint64_t k = 0; k < slots; k++) {
            struct tdm_attend v = of_slot(a, k, slots);
            struct tdm_merge merge = {.rows = rows, .head_dim = a.head_dim, .opens = k == 0};
            v.out = (struct tdm_array){backward ? from->out : part.out, TDM_DTYPE_BF16};
            v.lse = backward ? from->lse : part.lse;
            v.dq = (struct tdm_array){part.dq, TDM_DTYPE_BF16};
            v.gradient_slot_elements = a.slot_elements;
            v.written = (struct tdm_array){gradients + k * a.slot_elements, TDM_DTYPE_FP32};
            v.written_slots = 1;
            if (packed) {
                v.added = v.written;
                v.written = (struct tdm_array){0};
                v.written_slots = 0;
            }
            if (backward && packed) {
                const struct tdm_pack pack = {.rows = rows,
                                              .head_dim = a.head_dim,
                                              .out = v.out,
                                              .d_out = a.d_out,
                                              .lse = from->lse,
                                              .packed_lse = part.lse,
                                              .dots = facts.lse};
                if (tdm_cuda_pack_facts(&pack, stream, &err) != TDM_OK)
                    die(&err);
                v.lse = part.lse;
                v.dots = facts.lse;
                v.out.data = NULL;
            }
            merge.part = (struct tdm_array){backward ? part.dq : part.out, TDM_DTYPE_BF16};
            merge.sum = sum.out;
            if (!backward) {
                merge.part_lse = part.lse;
                merge.sum_lse = sum.lse;
                merge.out_lse = result->lse;
            }
            if (k + 1 == slots)
                merge.out = (struct tdm_array){backward ? result->dq : result->out, TDM_DTYPE_BF16};
            if (tdm_cuda_attend_from(&v, stream, &err) != TDM_OK ||
                (backward ? kind->backward(&v, stream, &err) : kind->forward(&v, stream, &err)) !=
                    TDM_OK ||
                tdm_cuda_merge(&merge, stream, &err) != TDM_OK ||
                TDM_CUDA(cudaStreamSynchronize(stream), &err) != TDM_OK)
                die(&err);
            faults += backward ? 0 : not_numbers(part.lse, rows);
        }
    }
    free_result(&part);
    free_result(&sum);
    free_result(&facts);
    return faults;
}

/* All kinds over one slot at a time, and the whole by the last kind. A kind that suits the whole
 * must suit slots. The last kind is left out if TDM_SANITIZED is set, where it would take most of
 * the time. */
static void check_slots(struct gpu_test *test, struct tdm_attend a, const struct shape *s,
                        cudaStream_t stream)
{
    const uint64_t rows = s->tokens * s->kv_heads * s->ratio, elements = rows * s->head_dim;
    const uint64_t sums = s->slots * slot_of(s);
    float *zeros = host(sums * sizeof(float));
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds, *plain = kind, *first = NULL;
    while (plain->suits != NULL)
        plain++;
    struct result due = new_result(elements, rows, zeros, sums);
    run(a, plain, &due, &due, stream);
    if (s->documents == 1) /* as a sequence without documents has it */
        a.documents = (struct tdm_documents){.count = 1};
    for (;; kind++) {
        if (suits(kind, a, 0, s->slots) && !is_left_out(kind, first, s)) {
            first = first == NULL ? kind : first;
            for (uint64_t k = 1; k < s->slots; k++)
                if (!suits(kind, a, k, s->slots))
                    gpu_test_case(test, false, "%s does not suit slot %llu of its keys", kind->name,
                                  (unsigned long long)k);
            for (int packed = is_sanitized(); packed < 2; packed++) {
                struct result got = new_result(elements, rows, zeros, sums);
                struct result again = new_result(elements, rows, zeros, sums);
                const uint64_t faults = run_slots(a, kind, s->slots, packed, &due, &got, stream);
                if (faults > 0)
                    gpu_test_case(test, false, "%s: %llu LSEs of single slots are no number",
                                  kind->name, (unsigned long long)faults);
                if (!is_sanitized()) {
                    tdm_cuda_limit_multiprocessors(97);
                    run_slots(a, kind, s->slots, packed, &due, &again, stream);
                    tdm_cuda_limit_multiprocessors(0);
                }
                check(test, kind, s, &due, &got, is_sanitized() ? &got : &again);
                free_result(&got);
                free_result(&again);
            }
        }
        if (kind == plain || (kind[1].suits == NULL && is_sanitized()))
            break;
    }
    free_result(&due);
    free(zeros);
}

/* ---- repeats ---- */

/* True if device memory holds what `due` holds. `copied` is host memory of `bytes` bytes. */
static bool is_same(const void *due, const void *on_device, uint64_t bytes, void *copied)
{
    struct tdm_error err = {0};
    if (TDM_CUDA(cudaMemcpy(copied, on_device, bytes, cudaMemcpyDeviceToHost), &err) != TDM_OK)
        die(&err);
    return memcmp(due, copied, bytes) == 0;
}

/* How many multiprocessors the kernels are told of in run `i`; 0: all that there are. */
static unsigned multiprocessors(int i)
{
    static const unsigned some[] = {0, 97, 114, 33};
    return some[i % 4];
}

/* How repeated runs take the keys: all at once, or one slot at a time. */
enum way { WHOLE, SLOTS, PACKED_SLOTS };

/* Repeats forward and backward. The results must be those of the first run. */
static void repeat(struct gpu_test *test, const struct tdm_attend *a, const struct shape *s,
                   const struct tdm_attention_kind *kind, enum way way, const struct result *from,
                   const float *gradients, cudaStream_t stream)
{
    const char *asked = getenv("TDM_REPEATS");
    const int repeats = asked == NULL ? 10 : atoi(asked);
    const uint64_t rows = s->tokens * s->kv_heads * s->ratio, elements = rows * s->head_dim;
    const uint64_t sums = s->slots * slot_of(s);
    const uint64_t bytes[] = {elements * 2, rows * sizeof(float), elements * 2,
                              sums * sizeof(float)};
    struct tdm_error err = {0};
    struct result got = new_result(elements, rows, gradients, sums);
    void *const left[] = {got.out, got.lse, got.dq, got.gradients};
    void *due[4], *copied = host(bytes[0] > bytes[3] ? bytes[0] : bytes[3]);
    struct noise noise = new_noise();
    int differing = 0;
    for (int i = 0; i <= repeats; i++) {
        bool same = true;
        if (TDM_CUDA(cudaMemcpy(got.gradients, gradients, bytes[3], cudaMemcpyHostToDevice),
                     &err) != TDM_OK)
            die(&err);
        make_noise(&noise, i % 4);
        tdm_cuda_limit_multiprocessors(multiprocessors(i));
        if (way == WHOLE)
            run(*a, kind, from, &got, stream);
        else
            run_slots(*a, kind, s->slots, way == PACKED_SLOTS, from, &got, stream);
        for (int k = 0; k < 4; k++) {
            if (i == 0)
                due[k] = host(bytes[k]);
            if (i == 0 && TDM_CUDA(cudaMemcpy(due[k], left[k], bytes[k], cudaMemcpyDeviceToHost),
                                   &err) != TDM_OK)
                die(&err);
            same = is_same(due[k], left[k], bytes[k], copied) && same;
        }
        differing += !same;
    }
    gpu_test_case(test, repeats > 0 && differing == 0,
                  "%s: heads of %u, %llu tokens%s: %d of %d repeats differ", kind->name,
                  s->head_dim, (unsigned long long)s->tokens,
                  way == WHOLE ? "" : ", one slot at a time", differing, repeats);
    tdm_cuda_limit_multiprocessors(0);
    if (tdm_cuda_attend_from(a, stream, &err) != TDM_OK) /* slots left their own */
        die(&err);
    for (int k = 0; k < 4; k++)
        free(due[k]);
    free(copied);
    free_noise(&noise);
    free_result(&got);
}

/* Is the next shape one of this process? TDM_SHARE=K/N: of each N shapes the K-th (from 0) is. */
static bool is_ours(void)
{
    static unsigned long next;
    const char *share = getenv("TDM_SHARE");
    unsigned long k = 0, n = 1;
    if (share != NULL && *share != '\0' && (sscanf(share, "%lu/%lu", &k, &n) != 2 || k >= n)) {
        fprintf(stderr, "TDM_SHARE=%s is not K/N with K < N\n", share);
        exit(99);
    }
    return next++ % n == k;
}

/* Shapes with more than TDM_MOST_PRODUCTS products of an element of q and one of K are left out.
 * `scale` multiplies the queries. `writes`: dK and dV of the first of several slots are written. */
static void run_shape(struct gpu_test *test, const struct shape *s, float scale, bool repeats,
                      bool writes)
{
    struct tdm_error err = {0};
    cudaStream_t stream;
    const uint64_t heads = s->kv_heads * s->ratio, rows = s->tokens * heads;
    const uint64_t elements = rows * s->head_dim;
    const uint64_t slot = slot_of(s);
    const uint64_t key_token = 3 * s->chunk_tokens;
    const uint64_t keys = (s->slots - 1) * s->chunk_tokens + s->tokens;
    const char *most = getenv("TDM_MOST_PRODUCTS");
    uint64_t starts[16] = {0};
    if (!is_ours())
        return;
    if (most != NULL && *most != '\0' && (double)elements * (double)keys > atof(most))
        return;
    if (TDM_CUDA(cudaStreamCreate(&stream), &err) != TDM_OK)
        die(&err);
    for (uint32_t i = 1; i < s->documents + 1; i++) /* the first chunk begins a document */
        starts[i] = key_token + (i - 1) * (keys / s->documents);
    uint16_t *q = random_bf16(test, elements, scale), *d_out = random_bf16(test, elements, 1.0f);
    uint16_t *kv = random_bf16(test, s->slots * slot, 1.0f);
    poison(s, kv);
    float *gradients = host(s->slots * slot * sizeof(float));
    for (uint64_t i = 0; i < s->slots * slot; i++)
        gradients[i] = 0.1f * gpu_test_float(test);

    struct tdm_attend a = {
        .tokens = s->tokens,
        .first_token = key_token + (s->slots - 1) * s->chunk_tokens,
        .key_token = key_token,
        .keys = keys,
        .chunk_tokens = s->chunk_tokens,
        .page_tokens = s->page_tokens,
        .lists.rule = {.selector = {.kind = s->window > 0 ? TDM_SELECT_WINDOW : TDM_SELECT_DENSE,
                                    .window = s->window},
                       .chunk_tokens = s->chunk_tokens,
                       .page_tokens = s->page_tokens},
        .documents = {device(starts, sizeof(starts)), s->documents + 1},
        .query_heads = (uint32_t)heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .q = {device(q, elements * 2), TDM_DTYPE_BF16},
        .pages = {device(kv, s->slots * slot * 2), TDM_DTYPE_BF16},
        .slot_elements = slot,
        .d_out = {device(d_out, elements * 2), TDM_DTYPE_BF16},
        .from = device(NULL, s->tokens * sizeof(uint32_t)),
        .d = device(NULL, 2 * tdm_attend_rows(s->tokens) * heads * sizeof(float)),
        .dq_sums = device(NULL, tdm_attend_rows(s->tokens) * heads * s->head_dim * sizeof(float)),
        .turns =
            device(NULL, tdm_attend_turns(s->tokens, keys, heads, s->kv_heads) * sizeof(uint32_t)),
        .parts = device(NULL, 1 + tdm_attend_part_tiles(s->tokens, heads) * TDM_ATTEND_TILE *
                                      s->head_dim * sizeof(float)),
    };
    a.written_slots = writes && s->slots > 1 ? 1 : 0;
    if (tdm_cuda_attend_from(&a, stream, &err) != TDM_OK)
        die(&err);
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds, *plain = kind;
    while (plain->suits != NULL)
        plain++;
    struct result due = new_result(elements, rows, gradients, s->slots * slot);
    run(a, plain, &due, &due, stream);
    const struct tdm_attention_kind *first = NULL;
    for (; kind != plain; kind++) {
        if (!kind->suits(&a) || is_left_out(kind, first, s))
            continue;
        first = first == NULL ? kind : first;
        struct result got = new_result(elements, rows, gradients, s->slots * slot);
        struct result again = new_result(elements, rows, gradients, s->slots * slot);
        run(a, kind, &due, &got, stream);
        if (!is_sanitized()) {
            tdm_cuda_limit_multiprocessors(97);
            run(a, kind, &due, &again, stream);
            tdm_cuda_limit_multiprocessors(0);
        }
        check(test, kind, s, &due, &got, is_sanitized() ? &got : &again);
        if (!writes && kind == first)
            check_written(test, a, s, kind, &due, stream);
        for (enum way way = WHOLE; repeats && way <= PACKED_SLOTS; way++)
            repeat(test, &a, s, kind, way, &due, gradients, stream);
        free_result(&got);
        free_result(&again);
    }
    if (s->slots > 1 && writes && scale < 10.0f)
        check_slots(test, a, s, stream);
    if (first == NULL)
        gpu_test_case(test, false, "no tensor cores for head dim %u", s->head_dim);
    free_result(&due);
    cudaFree((void *)(uintptr_t)a.documents.starts);
    cudaFree(a.q.data);
    cudaFree(a.pages.data);
    cudaFree(a.d_out.data);
    cudaFree(a.from);
    cudaFree(a.d);
    cudaFree(a.dq_sums);
    cudaFree(a.turns);
    cudaFree(a.parts);
    free(q);
    free(d_out);
    free(kv);
    free(gradients);
    cudaStreamDestroy(stream);
}

/* Does the kernel for Hopper divide the keys of a shape's last items, of `keys` keys? */
static bool is_divided(const struct shape *s, uint64_t keys)
{
    const uint64_t tiles = s->head_dim == 128 ? 2 : 1; /* of a cluster */
    const uint64_t rows = (s->tokens + TDM_ATTEND_TILE - 1) / TDM_ATTEND_TILE;
    const uint64_t items = (rows * s->ratio + tiles - 1) / tiles * s->kv_heads;
    const uint64_t space = tdm_attend_part_tiles(s->tokens, (uint64_t)s->kv_heads * s->ratio);
    const uint64_t most = tdm_attend_most_keys(keys, s->window, tiles);
    return tdm_attend_split_of(items, tiles, most / 176, space).parts > 1;
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    int divided = 0, divided_slots = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct shape *s = &shapes[i];
        divided += is_divided(s, (s->slots - 1) * s->chunk_tokens + s->tokens);
        divided_slots += s->slots > 1 && is_divided(s, s->chunk_tokens);
    }
    gpu_test_case(&test, divided >= 7 && divided_slots >= 3,
                  "the last items of %d shapes have divided keys, and of %d over one slot", divided,
                  divided_slots);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        run_shape(&test, &shapes[i], 2.0f, false, true);
    for (size_t i = 0; i < sizeof(added_shapes) / sizeof(added_shapes[0]); i++)
        run_shape(&test, &added_shapes[i], 2.0f, false, false);
    /* the same code on other numbers, or again */
    for (size_t i = 0; !is_sanitized() && i < sizeof(steep_shapes) / sizeof(steep_shapes[0]); i++)
        run_shape(&test, &steep_shapes[i], i % 2 == 0 ? 200.0f : 40.0f, false, true);
    for (size_t i = 0; !is_sanitized() && i < sizeof(repeated_shapes) / sizeof(repeated_shapes[0]);
         i++)
        run_shape(&test, &repeated_shapes[i], 2.0f, true, true);
    for (int i = 0; i < 60; i++) {
        static const uint32_t head_dims[] = {64, 96, 128, 128};
        struct shape s = {.head_dim = head_dims[gpu_test_between(&test, 0, 3)],
                          .kv_heads = (uint32_t)gpu_test_between(&test, 1, 3),
                          .ratio = (uint32_t)gpu_test_between(&test, 1, 16),
                          .chunk_tokens = gpu_test_between(&test, 20, 400),
                          .page_tokens = gpu_test_between(&test, 5, 150),
                          .slots = gpu_test_between(&test, 1, 4),
                          .documents = (uint32_t)gpu_test_between(&test, 1, 6)};
        if (i % 2 == 0) { /* sizes that schedules use */
            s.head_dim = i % 4 == 0 ? 128 : 64;
            s.page_tokens = 128;
            s.chunk_tokens = 128 * gpu_test_between(&test, 1, 12);
        }
        s.tokens = gpu_test_between(&test, 1, s.chunk_tokens);
        s.window = gpu_test_between(&test, 0, 1) ? gpu_test_between(&test, 2, 300) : 0;
        if ((s.slots - 1) * s.chunk_tokens + s.tokens >= 2 * s.documents)
            run_shape(&test, &s, 2.0f, false, i % 3 != 0);
    }
    return gpu_test_end(&test);
}
