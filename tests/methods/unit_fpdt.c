/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of Ulysses-Offload (FPDT): events of a chunked attention counted by hand, host memory, what
 * is not run, published lengths, and what cannot be run. */
#include "methods/context/fpdt.h"
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define K UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define MOST_PAIRS 4u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

struct setting {
    const char *model;
    uint64_t gpus, context;
    const char *pairs[MOST_PAIRS]; /* up to the first NULL */
};

static enum tdm_status read_setting(const struct setting *setting, struct tdm_model **model,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    size_t count = 0;
    while (count < MOST_PAIRS && setting->pairs[count] != NULL)
        count++;
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = setting->context;
    settings->torch.batch = 1;
    settings->torch.ranks = setting->gpus;
    must(tdm_model_load(setting->model, model, err), err);
    must(tdm_method_find("fpdt", &method, err), err);
    must(tdm_method_apply(method, setting->pairs, count, settings, &choices, err), err);
    return tdm_method_check(*model, settings, err);
}

/* Allocations of one size by attention, in the phases of step 2. */
struct counting {
    uint64_t bytes;
    uint32_t count[TDM_TORCH_PHASES];
};

static void count_size(void *context, const struct tdm_torch_event *event)
{
    struct counting *counting = context;
    if (event->step == 2 && event->allocated && event->bytes == counting->bytes &&
        event->label->name != NULL && strcmp(event->label->name, "self_attn.attention") == 0)
        counting->count[event->phase]++;
}

static struct tdm_torch_run run(const struct setting *setting, struct counting *counting)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, 32 * MIB, MIB, 90}, UINT64_C(1) << 42, UINT64_C(1) << 42, 0, false};
    struct tdm_model *model = NULL;
    struct tdm_method_settings settings;
    struct tdm_torch_observer observer = {.event = count_size, .context = counting};
    struct tdm_torch_run out;
    struct tdm_error err;
    must(read_setting(setting, &model, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 3, counting != NULL ? &observer : NULL, &out, &err),
         &err);
    assert_false(out.step[2].failed);
    tdm_model_free(model);
    return out;
}

/* ---- by hand ---- */

#define CHUNKS UINT64_C(6)
#define CHUNK (8 * K) /* tokens over two GPUs */
#define LAYERS 16u    /* of llama-3.2-1b: 32 heads and 8 KV heads of 64, hidden size 2048 */

/* A query chunk in fp32: in both runs of the forward it is made once for a first block, and four
 * times for each other one. In the backward chunk 0 begins with its dQ; each turn brings those of
 * the queries behind it, and that of the next turn, but where it is there; and the kernel sums dQ
 * in fp32 for each pair of chunks. */
static void chunks_by_hand(void **state)
{
    const struct setting setting = {
        "llama-3.2-1b", 2, CHUNKS * CHUNK, {"ds_sequence_parallel_fpdt_chunk_size=8192"}};
    struct counting queries = {.bytes = CHUNK * 16 * 64 * 4};
    (void)state;
    run(&setting, &queries);
    uint64_t forward = 0, backward = 1;
    for (uint64_t i = 0; i < CHUNKS; i++) {
        forward += 1 + 4 * i;
        const uint64_t left = CHUNKS - i;
        backward += (left > 2 ? left : left - 1) + left;
    }
    assert_int_equal(queries.count[TDM_PHASE_FORWARD], LAYERS * forward);
    assert_int_equal(queries.count[TDM_PHASE_BACKWARD], LAYERS * (forward + backward));
}

/* Checkpoints of all layers, and of one layer everything by chunks in blocks of powers of two: here
 * all sizes are such powers. */
static void host_memory_by_hand(void **state)
{
    const struct setting setting = {
        "llama-3.2-1b", 2, CHUNKS * CHUNK, {"ds_sequence_parallel_fpdt_chunk_size=8192"}};
    const uint64_t rows = CHUNK / 2, inputs = CHUNKS * rows * 2048 * 2;
    const uint64_t chunk =
        rows * (3 * 2048 + 2 * 512) * 2 + CHUNK * 16 * 4;                 /* x, q, o, k, v, LSE */
    const uint64_t of_backward = (CHUNKS - 1) * rows * 2048 * 4 + inputs; /* dQ, dO */
    (void)state;
    assert_int_equal(run(&setting, NULL).step[2].host_bytes,
                     LAYERS * inputs + CHUNKS * chunk + of_backward);
}

/* A run with an observer runs every chunk, and takes the same. */
static void chunks_that_repeat_are_not_run(void **state)
{
    const struct setting setting = {
        "llama-3.2-1b", 4, 512 * K, {"ds_sequence_parallel_fpdt_chunk_size=16384"}};
    struct counting none = {0};
    (void)state;
    const struct tdm_torch_run all = run(&setting, &none), some = run(&setting, NULL);
    assert_true(some.work < all.work / 2);
    assert_int_equal(all.skipped, 0);
    assert_true(some.skipped > some.work / 16); /* of chunks that are run for what they leave */
    for (unsigned i = 0; i < 3; i++) {
        const struct tdm_torch_step *a = &all.step[i], *b = &some.step[i];
        assert_int_equal(a->peak.allocated, b->peak.allocated);
        assert_int_equal(a->host_bytes, b->host_bytes);
        assert_true(b->peak.reserved < a->peak.reserved + a->peak.reserved / 100 &&
                    a->peak.reserved < b->peak.reserved + b->peak.reserved / 100);
    }
}

/* Of the work that more chunks add, more than half is counted, not simulated. What is left is of
 * the loss's parts, and of chunks of the backward's input. */
static void longer_sequences_are_little_more_work(void **state)
{
    const char *const pair = "ds_sequence_parallel_fpdt_chunk_size=16384";
    const struct setting some = {"llama-3.2-1b", 4, 512 * K, {pair}},
                         more = {"llama-3.2-1b", 4, 2048 * K, {pair}};
    (void)state;
    const struct tdm_torch_run a = run(&some, NULL), b = run(&more, NULL);
    const uint64_t added = b.work - a.work, skipped = b.skipped - a.skipped;
    if (skipped < added / 2)
        fail_msg("%" PRIu64 " of %" PRIu64 " more are counted", skipped, added);
}

/* One chunk stays on the GPU; the input of the head waits in host memory in any case. */
static void one_chunk_is_not_offloaded(void **state)
{
    const struct setting setting = {
        "llama-3.2-1b", 2, CHUNK, {"ds_sequence_parallel_fpdt_chunk_size=8192"}};
    (void)state;
    assert_int_equal(run(&setting, NULL).step[2].host_bytes, (LAYERS + 1) * (CHUNK / 2) * 2048 * 2);
}

/* ---- published ---- */

/* deepspeedai/DeepSpeed blogs/ulysses-offload/README.md, figure 5 (table 1 of arXiv 2408.16978):
 * Llama 3 8B, 4M tokens on 8 GPUs of 80 GB with ZeRO-3 and checkpoints in host memory, 68.0G of
 * HBM, which is between what is allocated and what is used. Figure 4: 2M on four. */
static void published_lengths_fit(void **state)
{
    static const struct {
        uint64_t gpus, context;
    } longest[] = {{8, 4096 * K}, {4, 2048 * K}};
    const uint64_t card = UINT64_C(79) * GIB;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct setting setting = {
            "llama-3.1-8b", longest[i].gpus, longest[i].context, {NULL}};
        const struct tdm_torch_run now = run(&setting, NULL);
        assert_true(now.step[2].peak.allocated < card);
        if (i == 0) {
            assert_true(now.step[2].peak.allocated < 68 * GIB);
            assert_true(now.step[2].peak.reserved > 68 * GIB);
        }
    }
}

/* ---- refused ---- */

static void expect_refusal(const struct setting *setting, const char *text)
{
    struct tdm_model *model = NULL;
    struct tdm_method_settings settings;
    struct tdm_error err;
    assert_int_equal(read_setting(setting, &model, &settings, &err), TDM_USAGE);
    if (strstr(err.message, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, err.message);
    tdm_model_free(model);
}

static void what_fpdt_lacks_is_refused(void **state)
{
    const struct setting odd = {
        "llama-3.1-8b", 8, 64 * K, {"ds_sequence_parallel_fpdt_chunk_size=1000"}};
    const struct setting small = {
        "llama-3.1-8b", 2, 512 * K, {"ds_sequence_parallel_fpdt_chunk_size=64"}};
    const struct setting experts = {"mixtral-8x7b", 8, 64 * K, {NULL}};
    const struct setting heads = {"llama-3.1-8b", 16, 64 * K, {NULL}};
    (void)state;
    expect_refusal(&odd, "no multiple of 256");
    expect_refusal(&small, "more than 4096 chunks");
    expect_refusal(&experts, "MixtralForCausalLM");
    expect_refusal(&heads, "16 ranks do not divide");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_by_hand),
        cmocka_unit_test(host_memory_by_hand),
        cmocka_unit_test(chunks_that_repeat_are_not_run),
        cmocka_unit_test(longer_sequences_are_little_more_work),
        cmocka_unit_test(one_chunk_is_not_offloaded),
        cmocka_unit_test(published_lengths_fit),
        cmocka_unit_test(what_fpdt_lacks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
