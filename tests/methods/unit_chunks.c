/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of chunk-recurrent training, LongLoRA and losses without all logits: what each setting must
 * change, and by how much. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#define K UINT64_C(1024)
#define MIB (K * K)

/* qwen2.5-7b: 28 layers, 4 KV heads of 128, bf16. */
#define KV_BYTES (28 * 2 * 4 * 128 * 2) /* of a token */
#define ID_BYTES 16                     /* its id and its label */
#define TABLE_BYTES (4 * 8)             /* of the tables, for a page of 128 tokens */

static struct tdm_torch_step step_of_ranks(const char *name, uint64_t ranks, uint64_t tokens,
                                           const char *const *pairs, size_t count)
{
    struct tdm_method_settings settings = {.torch = {.tokens = tokens, .batch = 1, .ranks = ranks}};
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction p;
    struct tdm_machine *machine = NULL;
    struct tdm_model *model = NULL;
    struct tdm_error err = {.message = ""};
    const char *all[8] = {"optimizer=none", "step=3"};
    for (size_t i = 0; i < count; i++)
        all[2 + i] = pairs[i];
    if (tdm_method_find(name, &method, &err) != TDM_OK ||
        tdm_method_apply(method, all, count + 2, &settings, &choices, &err) != TDM_OK ||
        tdm_model_load("qwen2.5-7b", &model, &err) != TDM_OK ||
        tdm_machine_load("h200-published", &machine, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK ||
        tdm_method_predict(model, machine, &settings, 0, &p, &err) != TDM_OK)
        fail_msg("%s", err.message);
    tdm_model_free(model);
    tdm_machine_free(machine);
    assert_true(p.runs);
    return p.steps[p.count - 1].torch;
}

static struct tdm_torch_step third_step(const char *name, uint64_t tokens, const char *const *pairs,
                                        size_t count)
{
    return step_of_ranks(name, 1, tokens, pairs, count);
}

static uint64_t peak(const char *name, uint64_t tokens, const char *const *pairs, size_t count)
{
    return third_step(name, tokens, pairs, count).peak.allocated;
}

/* From 16K on, chunks in the middle are not run, but the peak must grow as if they were. The 4 MiB
 * are for blocks that are not split. */
static void a_token_costs_its_kv_and_gradients(void **state)
{
    const char *bf16[] = {"kv_grad_dtype=bf16"}, *fp32[] = {"kv_grad_dtype=fp32"};
    uint64_t more[] = {4 * K, 16 * K, 96 * K};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t pages = more[i] / 128 * TABLE_BYTES + 4 * MIB, ids = more[i] * ID_BYTES;
        uint64_t grown = peak("oomb", 16 * K + more[i], bf16, 1) - peak("oomb", 16 * K, bf16, 1);
        assert_in_range(grown, more[i] * KV_BYTES * 2 + ids, more[i] * KV_BYTES * 2 + ids + pages);
        grown = peak("oomb", 16 * K + more[i], fp32, 1) - peak("oomb", 16 * K, fp32, 1);
        assert_in_range(grown, more[i] * KV_BYTES * 3 + ids, more[i] * KV_BYTES * 3 + ids + pages);
    }
}

/* The device keeps two layers and what is left of a third one: seven eighths, or with gradients in
 * fp32 a quarter. */
static void offload_leaves_two_layers_and_a_part(void **state)
{
    const char *pairs[] = {"kv_offload=yes", "kv_grad_dtype=fp32"};
    uint64_t kv = 64 * K * KV_BYTES * 2;
    (void)state;
    struct tdm_torch_step there = third_step("oomb", 64 * K, NULL, 0);
    struct tdm_torch_step away = third_step("oomb", 64 * K, pairs, 1);
    assert_int_equal(there.host_bytes, 0);
    assert_int_equal(away.host_bytes, kv); /* pages are powers of two */
    uint64_t left = kv - (there.peak.allocated - away.peak.allocated);
    assert_in_range(left, kv / 28 * 23 / 8 - 4 * MIB, kv / 28 * 23 / 8 + 4 * MIB);
    kv = 64 * K * KV_BYTES * 3;
    left = kv - (peak("oomb", 64 * K, pairs + 1, 1) - peak("oomb", 64 * K, pairs, 2));
    assert_in_range(left, kv / 28 * 9 / 4 - 4 * MIB, kv / 28 * 9 / 4 + 4 * MIB);
}

/* Of layers with a window of 4,096 tokens, 32 pages before the chunk and its own 32 are on the
 * device, where without one those of all 64K tokens are: an eighth. */
static void windows_bring_the_latest_pages_back(void **state)
{
    const char *all[] = {"kv_offload=yes"}, *local[] = {"kv_offload=yes", "local_attention=4K"};
    uint64_t kv = 64 * K * KV_BYTES * 2 / 28 * 23 / 8;
    (void)state;
    uint64_t less = peak("oomb", 64 * K, all, 1) - peak("oomb", 64 * K, local, 2);
    assert_in_range(less, kv / 8 * 7 - 8 * MIB, kv / 8 * 7 + 8 * MIB);
}

/* A rank has half of all but the embedding and the norms, and half of the pages. Its logits are
 * those of all words. Parts lie where the whole weights were, so up to 1 MiB behind each of them
 * counts as theirs. */
static void ranks_divide_projections_heads_and_pages(void **state)
{
    uint64_t all = UINT64_C(7615616512), whole = UINT64_C(152064) * 3584 + 57 * 3584;
    (void)state;
    struct tdm_torch_step one = third_step("oomb", 64 * K, NULL, 0);
    struct tdm_torch_step two = step_of_ranks("oomb", 2, 64 * K, NULL, 0);
    assert_in_range(two.categories[TDM_METHOD_WEIGHTS], 2 * (whole + (all - whole) / 2),
                    2 * (whole + (all - whole) / 2) + 64 * MIB);
    uint64_t pages = one.categories[TDM_METHOD_KV] + one.categories[TDM_METHOD_KV_GRADIENTS];
    uint64_t parts = two.categories[TDM_METHOD_KV] + two.categories[TDM_METHOD_KV_GRADIENTS];
    assert_in_range(parts, pages / 2, pages / 2 + 16 * MIB);
    assert_int_equal(two.categories[TDM_METHOD_LOGITS], one.categories[TDM_METHOD_LOGITS]);
}

static void a_budget_brings_fewer_pages_back(void **state)
{
    const char *dense[] = {"kv_offload=yes"}, *little[] = {"kv_offload=yes", "budget=512"},
               *much[] = {"kv_offload=yes", "budget=1M"};
    (void)state;
    uint64_t all = peak("oomb", 64 * K, dense, 1), few = peak("oomb", 64 * K, little, 2);
    assert_true(few + 100 * MIB < all);
    struct tdm_torch_step same = third_step("oomb", 16 * K, much, 2);
    assert_true(same.categories[TDM_METHOD_KV] > 0);
}

/* With checkpoints a chunk keeps its layer inputs; without, it keeps all that its layers save, at
 * least 13 times as much. */
static void checkpoints_keep_layer_inputs(void **state)
{
    const char *pairs[] = {"layer_checkpoint=no"};
    uint64_t inputs = 28 * 4 * K * 3584 * 2;
    (void)state;
    struct tdm_torch_step with = third_step("oomb", 16 * K, NULL, 0);
    struct tdm_torch_step without = third_step("oomb", 16 * K, pairs, 1);
    assert_in_range(with.categories[TDM_METHOD_RESIDUALS], inputs, inputs + 256 * MIB);
    assert_true(without.categories[TDM_METHOD_RESIDUALS] > 13 * inputs);
}

/* The second chunk's backward holds all K and V, their gradients, and the joined copies of half of
 * them. */
static void seco_joins_kv(void **state)
{
    const char *pairs[] = {"chunk=4K", "lora_rank=8", "lora=bf16"};
    uint64_t kv = 8 * K * KV_BYTES;
    (void)state;
    struct tdm_torch_step step = third_step("seco", 8 * K, pairs, 3);
    uint64_t in_use = step.categories[TDM_METHOD_KV] + step.categories[TDM_METHOD_KV_GRADIENTS];
    assert_in_range(in_use, kv + kv / 2, 3 * kv);
}

static void losses_without_all_logits(void **state)
{
    const char *settings[][2] = {{"checkpointing=on", "logits=hf"},
                                 {"checkpointing=on", "logits=bf16"},
                                 {"checkpointing=on", "logits=fused"},
                                 {"checkpointing=on", "logits=chunked"}};
    uint64_t logits = 32 * K * 152064, peaks[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        peaks[i] = peak("parallel", 32 * K, settings[i], 2);
    assert_int_equal(peaks[0] - peaks[1], 6 * logits); /* 12 B per logit, or 6 */
    assert_true(peaks[2] + 4 * logits < peaks[1]);
    assert_true(peaks[3] + 4 * logits < peaks[1]);
}

static void materialized_is_eager(void **state)
{
    const char *eager[] = {"checkpointing=on", "attention=eager"},
               *same[] = {"checkpointing=on", "attention=materialized"},
               *kernel[] = {"checkpointing=on", "attention=efficient"};
    (void)state;
    assert_int_equal(peak("parallel", 4 * K, eager, 2), peak("parallel", 4 * K, same, 2));
    assert_true(peak("parallel", 4 * K, kernel, 2) < peak("parallel", 4 * K, eager, 2));
}

/* Embedding, norms and adapters have gradients. */
static void longlora_trains_norms_and_embedding(void **state)
{
    const char *with[] = {"logits=base"}, *without[] = {"logits=base", "trainable_params=none"};
    uint64_t embedding = UINT64_C(152064) * 3584 * 2;
    (void)state;
    uint64_t more = third_step("longlora", 4 * K, with, 1).before_bytes -
                    third_step("longlora", 4 * K, without, 2).before_bytes;
    /* without them, embedded ids made to require a gradient stay, with the gradient */
    assert_in_range(more + 2 * 4 * K * 3584 * 2, embedding, embedding + 2 * MIB);
}

/* Without FlashAttention: with groups half as large, scores take half as much. In the layer that is
 * run again they are at least in fp32 and in bf16, 28 heads of 8K queries times the group. */
static void longlora_without_flash_has_scores(void **state)
{
    const char *quarter[] = {"use_flash_attn=no", "logits=base"},
               *eighth[] = {"use_flash_attn=no", "logits=base", "group_size_ratio=1/8"};
    uint64_t scores = UINT64_C(28) * 8 * K * 2 * K;
    (void)state;
    uint64_t more = peak("longlora", 8 * K, quarter, 2) - peak("longlora", 8 * K, eighth, 3);
    assert_in_range(more, scores / 2 * 6, scores / 2 * 16);
}

/* Of 9,000 tokens the supervised program has groups of 8,192, where the other has no equal ones. */
static void longlora_of_any_length(void **state)
{
    const char *supervised[] = {"program=supervised-fine-tune", "group_size_ratio=1/8"};
    (void)state;
    assert_true(peak("longlora", 9001, supervised, 2) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_costs_its_kv_and_gradients),
        cmocka_unit_test(offload_leaves_two_layers_and_a_part),
        cmocka_unit_test(windows_bring_the_latest_pages_back),
        cmocka_unit_test(ranks_divide_projections_heads_and_pages),
        cmocka_unit_test(a_budget_brings_fewer_pages_back),
        cmocka_unit_test(checkpoints_keep_layer_inputs),
        cmocka_unit_test(seco_joins_kv),
        cmocka_unit_test(losses_without_all_logits),
        cmocka_unit_test(materialized_is_eager),
        cmocka_unit_test(longlora_trains_norms_and_embedding),
        cmocka_unit_test(longlora_without_flash_has_scores),
        cmocka_unit_test(longlora_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
