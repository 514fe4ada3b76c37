/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of fully_shard's units: they are gathered and reduced in the order of torch 2.11 (logged by
 * its own hooks), and nothing of them is left after a step. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "byte-1m" /* four layers */
#define RANKS 2u
#define MOST_PAIRS 6u
#define MOST_EVENTS 64u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_model *load(bool tied)
{
    struct tdm_model *model = NULL, *other = NULL;
    struct tdm_error err;
    must(tdm_model_load(MODEL, &model, &err), &err);
    json_t *config = json_deep_copy(model->config);
    json_object_set_new(config, "tie_word_embeddings", json_boolean(tied));
    must(tdm_model_from_config(MODEL, MODEL, config, &other, &err), &err);
    json_decref(config);
    tdm_model_free(model);
    return other;
}

/* One letter for every collective of the first step: e for the embedding, h for the head with the
 * last norm or for tied ends, w for all untied ends, l for a layer. Capitals mean that gradients
 * are reduced. */
struct log {
    char letters[MOST_EVENTS + 1];
    size_t count;
    uint64_t embedding, norm;
};

static char letter_of(const struct log *log, uint64_t bytes)
{
    if (bytes == log->embedding)
        return 'e';
    if (bytes == log->embedding + log->norm)
        return 'h'; /* one matrix, tied or not */
    if (bytes == 2 * log->embedding + log->norm)
        return 'w';
    return 'l';
}

static void note(void *context, const struct tdm_torch_event *event)
{
    struct log *log = context;
    if (!event->allocated || event->step != 1 || event->label->name == NULL)
        return;
    bool gathered = strcmp(event->label->name, "all-gather buffer") == 0;
    if (!gathered && strcmp(event->label->name, "reduce-scatter buffer") != 0)
        return;
    assert_true(log->count < MOST_EVENTS);
    char letter = letter_of(log, event->bytes);
    log->letters[log->count++] = (char)(gathered ? letter : letter - 'a' + 'A');
}

/* Checks the order of a step. `pairs` ends at the first NULL. */
static void check_order(bool tied, const char *const *pairs, const char *forward,
                        const char *backward)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, UINT64_C(32) << 20, UINT64_C(1) << 20, 90},
        UINT64_C(1) << 40,
        UINT64_C(1) << 40,
        0,
        false};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_torch_run out;
    struct tdm_error err;
    struct tdm_model *model = load(tied);
    struct log log = {.embedding = UINT64_C(2) * 256 * 128, .norm = UINT64_C(2) * 128};
    const struct tdm_torch_observer observer = {.event = note, .context = &log};
    char expected[MOST_EVENTS + 1];
    size_t count = 0;
    while (pairs[count] != NULL)
        count++;
    settings.torch.tokens = 64;
    settings.torch.batch = 1;
    settings.torch.ranks = RANKS;
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 3, &observer, &out, &err), &err);
    snprintf(expected, sizeof(expected), "%s%s", forward, backward);
    assert_string_equal(log.letters, expected);
    assert_int_equal(out.step[1].end_bytes[TDM_PHASE_OPTIMIZER],
                     out.step[2].end_bytes[TDM_PHASE_OPTIMIZER]);
    tdm_model_free(model);
}

#define ENDS "units=layers+ends"
#define YES "reshard_after_forward=yes"
#define NO "reshard_after_forward=no"
#define DEFAULT "reshard_after_forward=default"

/* Every unit gathers the one before it ahead. Units that are not freed are not gathered again. */
static void order_is_as_torch_has_it(void **state)
{
    static const char *const settings[][MOST_PAIRS] = {
        {"units=layers", YES, NULL}, {DEFAULT, NULL},       {NO, NULL},
        {ENDS, YES, NULL},           {ENDS, DEFAULT, NULL}, {ENDS, NO, NULL},
    };
    static const char *const untied[][2] = {
        {"wllll", "wllLlLlLLW"},    {"wllll", "llLlLlLLW"},    {"wllll", "LLLLW"},
        {"ellllh", "hlHlLlLlLeLE"}, {"ellllh", "lHlLlLlLeLE"}, {"ellllh", "HLLLLE"},
    };
    static const char *const tied[][2] = {
        {"hllll", "hllLlLlLLH"}, {"hllll", "llLlLlLLH"}, {"hllll", "LLLLH"},
        {"hllll", "hllLlLlLLH"}, {"hllll", "llLlLlLLH"}, {"hllll", "LLLLH"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(untied) / sizeof(untied[0]); i++) {
        check_order(false, settings[i], untied[i][0], untied[i][1]);
        check_order(true, settings[i], tied[i][0], tied[i][1]);
    }
}

/* Only adapters of layers are reduced. The embedding is gathered ahead for a backward, but it has
 * one only if its output was made to require a gradient. Only then is the first layer told of its
 * backward. */
static void frozen_units_are_gathered(void **state)
{
    static const char *const plain[] = {ENDS, YES, "lora_rank=8", NULL}, *const checkpoints[] = {
                                                                             ENDS, YES,
                                                                             "lora_rank=8",
                                                                             "checkpointing=on",
                                                                             NULL};
    (void)state;
    check_order(false, plain, "ellllh", "hllLlLlLeL");
    check_order(false, checkpoints, "ellllh", "hllLlLlLeL");
}

/* A loss may read the head's weight without running the module. Then torch's hook after the module
 * does not run. The unit stays whole until its backward is done, and nothing is gathered ahead for
 * it. */
static void head_may_not_run(void **state)
{
    static const char *const fused[] = {ENDS, YES, "logits=fused", NULL};
    (void)state;
    check_order(false, fused, "ellllh", "HllLlLlLeLE");
}

/* ---- FSDP 1 ---- */

/* Elements of a layer of byte-1m: q and o, k and v, the MLP, two norms. */
#define LAYER (UINT64_C(128) * (2 * 128 + 2 * 64 + 3 * 384 + 2))
#define ROOT (UINT64_C(256) * 128 + 128)
#define PADDED_LAYER (UINT64_C(3) * 65622) /* 196,866 of 196,864 */
#define PADDED_ROOT (UINT64_C(3) * 10966)  /* 32,898 of 32,896 */

/* What of the first step is of flat parameters, by letters: r and l are gathered, R and L their
 * gradients, p a padded gradient, s a shard in bf16. Sizes are counted by hand. */
static void note_flat(void *context, const struct tdm_torch_event *event)
{
    static const struct {
        const char *name;
        char letter[2]; /* of the root, of a layer */
    } kinds[] = {{"flat parameter", {'r', 'l'}},
                 {"gradient of the flat parameter", {'R', 'L'}},
                 {"gradient to be reduced", {'p', 'q'}},
                 {"shard in bf16", {'s', 't'}}};
    struct log *log = context;
    if (!event->allocated || event->step != 1 || event->label->name == NULL)
        return;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        if (strcmp(event->label->name, kinds[k].name) != 0)
            continue;
        bool gradient = k == 1, layer = event->bytes / 2 > 2 * (k == 3 ? ROOT / 3 : ROOT);
        uint64_t padded = layer ? PADDED_LAYER : PADDED_ROOT, whole = layer ? LAYER : ROOT;
        assert_int_equal(event->bytes, 2 * (gradient ? whole : k == 3 ? padded / 3 : padded));
        assert_true(log->count < MOST_EVENTS);
        log->letters[log->count++] = kinds[k].letter[layer];
    }
}

static void check_flat(const char *const *pairs, size_t count, const char *expected)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, UINT64_C(32) << 20, UINT64_C(1) << 20, 90},
        UINT64_C(1) << 40,
        UINT64_C(1) << 40,
        0,
        false};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = 64, .batch = 1, .ranks = 3}};
    struct tdm_method_choices choices;
    struct tdm_torch_run out;
    struct tdm_error err;
    struct tdm_model *model = load(true);
    struct log log = {.count = 0};
    const struct tdm_torch_observer observer = {.event = note_flat, .context = &log};
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 3, &observer, &out, &err), &err);
    assert_string_equal(log.letters, expected);
    assert_int_equal(out.step[1].end_bytes[TDM_PHASE_OPTIMIZER],
                     out.step[2].end_bytes[TDM_PHASE_OPTIMIZER]);
    tdm_model_free(model);
}

/* Of three ranks all are padded, and so are their gradients before they are reduced. The root is
 * not resharded after the forward; every layer is gathered while the one after it runs backward.
 * Before the first forward all are made once. */
static void flat_parameters_are_as_fsdp1_has_them(void **state)
{
    static const char *const plain[] = {"fsdp_version=1"}, *const kept[] = {"fsdp_version=1", NO};
    (void)state;
    check_flat(plain, 1,
               "llllr"
               "rllll"
               "llLqlLqlLqLqRp");
    check_flat(kept, 2,
               "llllr"
               "rllll"
               "LqLqLqLqRp");
}

/* A checkpoint that runs a unit again gathers it for that, and once more for the backward; nothing
 * is gathered ahead. */
static void units_in_checkpoints_are_gathered_twice(void **state)
{
    static const char *const pairs[] = {"fsdp_version=1", "checkpointing=on-reentrant",
                                        "checkpoint_of=units"};
    (void)state;
    check_flat(pairs, 3,
               "llllr"
               "rllll"
               "llLqllLqllLqllLqRp");
}

static struct tdm_method_prediction predict_batch(const char *const *pairs, size_t count,
                                                  uint64_t ranks, uint64_t batch)
{
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    settings.torch.tokens = 1024;
    settings.torch.batch = batch;
    settings.torch.ranks = ranks;
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
    must(tdm_model_load("llama-3.1-8b", &model, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
    tdm_machine_free(machine);
    tdm_model_free(model);
    return prediction;
}

static struct tdm_method_prediction predict(const char *const *pairs, size_t count, uint64_t ranks)
{
    return predict_batch(pairs, count, ranks, 1);
}

#define ADAPTED                                                             \
    "fsdp_version=1", "lora_rank=8", "lora_targets=q_proj", "logits=fused", \
        "checkpointing=on-reentrant"

/* Units that were moved to the GPU whole leave blocks cached, and no bytes allocated: the root's
 * parameters and its flat parameter, of embedding and head, are the largest. */
static void units_that_come_whole_leave_blocks(void **state)
{
    static const char *const pairs[] = {"fsdp_version=1", "checkpointing=on", "lora_rank=8",
                                        "sync_module_states=yes"};
    const uint64_t root = UINT64_C(2) * 2 * 128256 * 4096;
    struct tdm_method_prediction parts = predict_batch(pairs, 3, 8, 1),
                                 whole = predict_batch(pairs, 4, 8, 1);
    (void)state;
    for (uint32_t i = 0; i < parts.count; i++) {
        const struct tdm_torch_bytes *a = &parts.steps[i].torch.peak,
                                     *b = &whole.steps[i].torch.peak;
        assert_int_equal(a->requested, b->requested);
        assert_in_range(b->reserved, a->reserved, a->reserved + 2 * root);
        assert_true(b->reserved > 2 * root);
    }
    assert_true(whole.steps[0].torch.peak.reserved > parts.steps[0].torch.peak.reserved);
}

/* In the backward of the first of 32 layers, inputs of the others and their gradients are still
 * there, as hooks hold them: 30 more than in that of the last, for which the peak is otherwise. */
static void hooks_of_frozen_units_hold_inputs(void **state)
{
    const char *pairs[] = {ADAPTED, NULL};
    const uint64_t hidden = UINT64_C(1024) * 4096 * 2;
    uint64_t peaks[2][2];
    (void)state;
    for (unsigned batch = 0; batch < 2; batch++)
        for (unsigned of_units = 0; of_units < 2; of_units++) {
            pairs[5] = of_units ? "checkpoint_of=units" : "checkpoint_of=layers";
            peaks[batch][of_units] =
                predict_batch(pairs, 6, 2, batch + 1).steps[2].torch.phases[1].allocated;
        }
    uint64_t more = (peaks[1][1] - peaks[0][1]) - (peaks[1][0] - peaks[0][0]);
    assert_true(more <= 30 * hidden && more > 30 * hidden - hidden / 64);
}

/* Shards of peft's adapters are fp32, and so are their two moments, beside frozen weights of bf16:
 * 6 bytes more an element. Under autocast they are gathered in bf16. */
static void adapters_of_peft_are_wide(void **state)
{
    const char *narrow[] = {ADAPTED}, *wide[] = {ADAPTED, "lora=peft"},
               *cast[] = {ADAPTED, "lora=peft", "autocast=bf16"};
    const uint64_t elements = UINT64_C(32) * 8 * (4096 + 4096);
    (void)state;
    struct tdm_method_prediction a = predict(narrow, 5, 2), b = predict(wide, 6, 2),
                                 c = predict(cast, 7, 2);
    assert_int_equal(b.steps[2].torch.before_bytes - a.steps[2].torch.before_bytes,
                     6 * elements / 2);
    assert_int_equal(c.steps[2].torch.before_bytes, b.steps[2].torch.before_bytes);
    assert_true(c.steps[2].torch.phases[1].allocated < b.steps[2].torch.phases[1].allocated);
}

/* Each shard of fully_shard has the dtype of its parameter. Adapters and both moments that are fp32
 * take 6 bytes more an element. Beside packed weights of 4 bits all else is fp32 where weights are:
 * 2 bytes more of what is frozen; the buffers of gathers are as large. */
static void shards_have_their_own_dtype(void **state)
{
    const char *narrow[] = {"lora_rank=8", "lora_targets=q_proj,o_proj", "checkpointing=on"},
               *wide[] = {"lora_rank=8", "lora_targets=q_proj,o_proj", "checkpointing=on",
                          "lora=peft"},
               *packed[] = {"lora_rank=8", "lora_targets=q_proj,o_proj", "checkpointing=on",
                            "quantization=nf4", "weights_dtype=bf16"};
    /* Shards of 501 MiB, embedding and head in bf16, have blocks of 502; those of fp32 have none
     * left over. */
    const uint64_t rest = UINT64_C(1) << 20;
    const uint64_t elements = UINT64_C(32) * 8 * (4096 + 4096) * 2,
                   frozen = UINT64_C(2) * 128256 * 4096 + UINT64_C(65) * 4096;
    (void)state;
    struct tdm_method_prediction a = predict(narrow, 3, 2), b = predict(wide, 4, 2);
    assert_int_equal(b.steps[2].torch.before_bytes - a.steps[2].torch.before_bytes,
                     6 * elements / 2);
    a = predict(packed, 5, 2);
    packed[4] = "weights_dtype=fp32";
    b = predict(packed, 5, 2);
    assert_int_equal(b.steps[2].torch.before_bytes - a.steps[2].torch.before_bytes,
                     6 * elements / 2 + 2 * frozen / 2 - 2 * rest);
    assert_true(b.steps[2].torch.peak.allocated > a.steps[2].torch.peak.allocated);
}

static uint64_t peak(const char *units)
{
    const char *pairs[] = {units, YES, "optimizer=none", "step=1", "checkpointing=on"};
    return predict(pairs, 5, 8).steps[0].torch.peak.allocated;
}

#define PARAMETERS UINT64_C(8030261248) /* of llama-3.1-8b */

/* A rank of 8 in 2 groups has as much as one of 4. Where gradients are reduced in another dtype,
 * the inputs of all all-reduces live until the backward ends: 4 bytes an element of the shards. */
static void replicas_share_nothing(void **state)
{
    const char *alike[] = {YES, "checkpointing=on", "dp_replicate_size=2"};
    const char *wide[] = {YES, "checkpointing=on", "reduce_dtype=fp32", "dp_replicate_size=2"};
    (void)state;
    struct tdm_method_prediction four = predict(alike, 2, 4), eight = predict(alike, 3, 8);
    assert_int_equal(four.steps[2].torch.peak.allocated, eight.steps[2].torch.peak.allocated);
    assert_int_equal(four.steps[2].torch.before_bytes, eight.steps[2].torch.before_bytes);
    assert_true(four.runtime.nccl_bytes < eight.runtime.nccl_bytes);
    four = predict(wide, 3, 4);
    eight = predict(wide, 4, 8);
    assert_int_equal(four.steps[2].torch.end_bytes[1], eight.steps[2].torch.end_bytes[1]);
    uint64_t more =
        eight.steps[2].torch.phases[1].allocated - four.steps[2].torch.phases[1].allocated;
    assert_true(more > PARAMETERS - PARAMETERS / 4 && more <= PARAMETERS);
}

/* A mesh of one GPU, as prime-rl trains small models: all of it is in its shards. */
/* All-reduces of FSDP 1 are in place. */
static void flat_replicas_need_nothing_more(void **state)
{
    const char *pairs[] = {YES, "checkpointing=on", "fsdp_version=1", "dp_replicate_size=2"};
    (void)state;
    const struct tdm_method_prediction one = predict(pairs, 3, 2), two = predict(pairs, 4, 4);
    assert_int_equal(two.steps[2].torch.peak.allocated, one.steps[2].torch.peak.allocated);
}

static void one_gpu_has_all_shards(void **state)
{
    const char *pairs[] = {YES, "checkpointing=on"};
    (void)state;
    const struct tdm_method_prediction one = predict(pairs, 2, 1), two = predict(pairs, 2, 2);
    const uint64_t whole = one.steps[2].torch.before_bytes,
                   halves = 2 * two.steps[2].torch.before_bytes;
    assert_true(whole <= halves && halves - whole < halves / 100);
}

/* On the GPU are one or two groups at a time; on the host shards, gradients (pinned: powers of two)
 * and two moments, in bf16. */
static void offloaded_shards_leave_nothing(void **state)
{
    const char *pairs[] = {YES, "checkpointing=on", "offload_policy=cpu"};
    (void)state;
    struct tdm_method_prediction p = predict(pairs, 3, 4);
    const struct tdm_torch_step *step = &p.steps[2].torch;
    assert_true(step->before_bytes < UINT64_C(128) << 20);
    assert_true(step->peak.allocated < UINT64_C(10) << 30);
    assert_true(step->host_bytes >= 8 * PARAMETERS / 4 && step->host_bytes <= 12 * PARAMETERS / 4);
    assert_int_equal(step->end_bytes[2], p.steps[1].torch.end_bytes[2]);
    assert_int_equal(step->host_bytes, p.steps[1].torch.host_bytes);
}

/* The embedding is not gathered while the head is used, which saves at least its bytes. */
static void units_of_ends_take_less(void **state)
{
    (void)state;
    assert_true(peak(ENDS) + UINT64_C(2) * 128256 * 4096 <= peak("units=layers"));
}

#define VOCABULARY 65536u
#define HIDDEN 128u

/* The peak of the backward above what is left at its end, in the third step of a model that is
 * nearly all embedding and head. */
static uint64_t beyond_the_end(const char *weights, const char *reduced)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, UINT64_C(1) << 20, UINT64_C(1) << 20, 90},
        UINT64_C(1) << 40,
        UINT64_C(1) << 40,
        0,
        false};
    const char *pairs[] = {weights, reduced, YES, "checkpointing=on", "grads=none"};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = 8, .batch = 1, .ranks = RANKS}};
    struct tdm_method_choices choices;
    struct tdm_torch_run out;
    struct tdm_model *model = load(false), *large;
    struct tdm_error err;
    json_t *config = json_deep_copy(model->config);
    json_object_set_new(config, "vocab_size", json_integer(VOCABULARY));
    must(tdm_model_from_config(MODEL, MODEL, config, &large, &err), &err);
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, 5, &settings, &choices, &err), &err);
    must(tdm_method_check(large, &settings, &err), &err);
    must(tdm_torch_run(large, &settings, &gpu, 3, NULL, &out, &err), &err);
    json_decref(config);
    tdm_model_free(model);
    tdm_model_free(large);
    return out.step[2].highest_bytes[TDM_PHASE_BACKWARD] -
           out.step[2].end_bytes[TDM_PHASE_BACKWARD];
}

/* foreach_reduce of the unit with embedding and head holds the buffer of all gradients, its result
 * until it is cast, and the head's gradient, which a loop variable still holds. The cast shards are
 * left at the end, so they do not count. */
static void last_reduction_is_the_peak(void **state)
{
    const uint64_t matrix = (uint64_t)VOCABULARY * HIDDEN, all = 2 * matrix, slack = 2 << 20;
    (void)state;
    uint64_t wide = beyond_the_end("weights_dtype=bf16", "reduce_dtype=fp32"),
             wide_expected = 4 * all + 4 * all / RANKS + 2 * matrix;
    assert_true(wide >= wide_expected && wide < wide_expected + slack);
    uint64_t narrow = beyond_the_end("weights_dtype=fp32", "reduce_dtype=bf16"),
             narrow_expected = 2 * all + 2 * all / RANKS + 2 * matrix;
    assert_true(narrow >= narrow_expected && narrow < narrow_expected + slack);
    /* With equal dtypes nothing is cast. */
    uint64_t alike = beyond_the_end("weights_dtype=fp32", "reduce_dtype=weights"),
             alike_expected = 4 * all + 2 * matrix;
    assert_true(alike >= alike_expected && alike < alike_expected + slack);
    assert_int_equal(alike, beyond_the_end("weights_dtype=fp32", "reduce_dtype=fp32"));
    assert_true(beyond_the_end("weights_dtype=bf16", "reduce_dtype=bf16") < wide / 2 + slack);
}

/* ---- optimizers ---- */

/* States of the shards of two ranks, by hand: what the third step begins with beyond SGD's. */
static void states_are_those_of_shards(void **state)
{
    const uint64_t matrices = UINT64_C(32) * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096),
                   all = PARAMETERS, rest = all - matrices, slack = UINT64_C(32) << 20;
    const struct {
        const char *pairs[4]; /* the last one is the optimizer */
        size_t count;
        uint64_t bytes;
    } cases[] = {
        {{YES, "optimizer=muon"}, 2, 2 * matrices / 2 + 2 * 2 * rest / 2},
        {{YES, "optimizer=adam-mini"}, 2, 2 * all / 2},
        {{YES, "optim=ao_adamw_8bit"}, 2, 2 * (all / 2 + all / 2 / 256 * 4)},
        {{YES, "weights_dtype=fp32", "fsdp_version=1", "optimizer=adafactor"}, 4, 4 * all / 2},
        {{YES, "weights_dtype=fp32", "fsdp_version=1", "optimizer=adamw-8bit"},
         4,
         2 * (all / 2 + all / 2 / 256 * 4)},
        {{YES, "weights_dtype=fp32", "fsdp_version=1", "optimizer=lion-32bit"}, 4, 4 * all / 2},
        {{YES, "weights_dtype=fp32", "fsdp_version=1", "optimizer=paged-adamw-8bit"},
         4,
         2 * (all / 2 / 256 * 4)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *pairs[4];
        memcpy(pairs, cases[i].pairs, sizeof(pairs));
        const uint64_t stepped = predict(pairs, cases[i].count, 2).steps[2].torch.before_bytes;
        pairs[cases[i].count - 1] = "optimizer=sgd";
        const uint64_t bytes =
            stepped - predict(pairs, cases[i].count, 2).steps[2].torch.before_bytes;
        assert_in_range(bytes, cases[i].bytes, cases[i].bytes + slack);
    }
}

/* Weights of 4 bits in bytes are left whole: half of their bytes more on each of two ranks. */
static void bytes_of_4_bits_are_whole(void **state)
{
    const char *pairs[] = {YES, "checkpointing=on", "lora_rank=8", "quantization=nf4",
                           "bnb_4bit_quant_storage=uint8"};
    const uint64_t matrices = UINT64_C(32) * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096),
                   slack = UINT64_C(64) << 20;
    (void)state;
    const struct tdm_method_prediction sharded = predict(pairs, 4, 2), whole = predict(pairs, 5, 2);
    assert_in_range(whole.steps[2].torch.before_bytes - sharded.steps[2].torch.before_bytes,
                    matrices / 2 / 2, matrices / 2 / 2 + slack);
}

/* The most that the optimizer has of the last step, and what it has at the end. */
struct optimizer_bytes {
    uint64_t most, last;
};

static void note_optimizer(void *context, const struct tdm_torch_event *event)
{
    struct optimizer_bytes *bytes = context;
    const uint64_t live = event->live[TDM_METHOD_OPTIMIZER];
    if (event->step != 2 || event->phase != TDM_PHASE_OPTIMIZER)
        return;
    bytes->most = live > bytes->most ? live : bytes->most;
    bytes->last = live;
}

/* Muon's largest moment is in the product of an MLP's last projection, whose rows are fewer than
 * its columns: its shard, thrice (the update, the last
 * matrix, a copy); whole, twice; half of two products of the shorter side. As DTensor
 * did it on CPUs. */
static void muon_gathers_wide_matrices(void **state)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, UINT64_C(1) << 20, UINT64_C(1) << 20, 90},
        UINT64_C(1) << 40,
        UINT64_C(1) << 40,
        0,
        false};
    const char *pairs[] = {"optimizer=muon", YES, "grads=none"};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = 8, .batch = 1, .ranks = RANKS}};
    struct tdm_method_choices choices;
    struct tdm_torch_run out;
    struct tdm_model *model = load(true);
    struct tdm_error err;
    struct optimizer_bytes bytes = {0};
    const struct tdm_torch_observer observer = {.event = note_optimizer, .context = &bytes};
    (void)state;
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, 3, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 3, &observer, &out, &err), &err);
    const uint64_t whole = (uint64_t)model->intermediate * model->hidden,
                   square = (uint64_t)model->hidden * model->hidden;
    assert_int_equal(bytes.most - bytes.last,
                     2 * (3 * whole / RANKS + 2 * whole + 2 * square / RANKS));
    tdm_model_free(model);
}

/* ---- tensor parallelism ---- */

#define TENSOR_TOKENS 512u
#define TENSOR_WORDS UINT64_C(8192) /* of its config */
/* Blocks are multiples of 512 bytes, and a few tensors are smaller. */
#define ROUNDING UINT64_C(1024)

static const char *path_of(const char *name, char *path, size_t size)
{
    const char *sources = getenv("TDM_SRCDIR");
    snprintf(path, size, "%s/tests/data/%s", sources == NULL ? "." : sources, name);
    return path;
}

/* The last step of a config of tests/data by fsdp, of one sequence. */
static struct tdm_torch_step step_of(const char *config, const char *const *pairs, size_t count,
                                     uint64_t tokens, uint64_t gpus)
{
    char path[1024];
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = tokens, .batch = 1, .ranks = gpus}};
    struct tdm_method_choices choices;
    struct tdm_method_prediction p;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    must(tdm_method_find("fsdp", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
    must(tdm_model_load(path_of(config, path, sizeof(path)), &model, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &p, &err), &err);
    tdm_machine_free(machine);
    tdm_model_free(model);
    return p.steps[p.count - 1].torch;
}

/* Some tens of tensors are rounded up to 512 bytes. */
static void check_near(const char *line, uint64_t predicted, uint64_t recorded)
{
    if (predicted > recorded + 8 * ROUNDING || recorded > predicted + 8 * ROUNDING)
        fail_msg("%s: predicted %llu, PyTorch %llu", line, (unsigned long long)predicted,
                 (unsigned long long)recorded);
}

/* What tensor-parallel ranks keep and their peak, as torch recorded them: rounded up to 512 bytes,
 * of which a step of a mixture has some tens of tensors. */
static void tensor_parallel_steps_are_those_of_pytorch(void **state)
{
    char path[1024], line[256], name[64], key[64], gathers[16], config[128], pairs[3][128];
    unsigned long long ranks, rank, kept, peak;
    unsigned rows = 0;
    const char *const all[] = {"attention=eager", "optimizer=none", "grads=none", YES,
                               pairs[0],          pairs[1],         pairs[2]};
    (void)state;
    FILE *file = fopen(path_of("tensor_parallel.csv", path, sizeof(path)), "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%63[^,],%63[^,],%llu,%15[^,],%llu,%llu,%llu", name, key, &ranks, gathers,
                   &rank, &kept, &peak) != 7)
            continue;
        const bool planned = strcmp(key, "tp_size") == 0;
        snprintf(config, sizeof(config), "configs/%s.json", name);
        snprintf(pairs[0], sizeof(pairs[0]), "%s=%llu", key, ranks);
        snprintf(pairs[1], sizeof(pairs[1]), "lora_rank=%llu", rank);
        snprintf(pairs[2], sizeof(pairs[2]), "disable_loss_parallel=%s", gathers);
        const uint64_t tokens = strcmp(name, "tensor-parallel") == 0 ? 512 : 128;
        const struct tdm_torch_step step = step_of(
            config, all, sizeof(all) / sizeof(all[0]) - (planned ? 1 : 0), tokens, 2 * ranks);
        check_near(line, step.end_bytes[TDM_PHASE_FORWARD] - step.before_bytes, kept);
        check_near(line, step.peak.allocated - step.before_bytes, peak);
        rows++;
    }
    fclose(file);
    assert_int_equal(rows, 47);
}

/* What the loss of divided logits keeps is fp32 either way; compiled, its backward makes bf16 of
 * that alone, where three more tensors of it were beside it. */
static void compiled_loss_of_divided_logits(void **state)
{
    static const char *const compile[] = {"compile=layers", "compile=all"};
    const uint64_t words = TENSOR_TOKENS * (TENSOR_WORDS / 2);
    uint64_t kept[2], most[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *const pairs[] = {"optimizer=none", "grads=none", YES, compile[i],
                                     "tensor_parallel_degree=2"};
        struct tdm_torch_step step = step_of("configs/tensor-parallel.json", pairs,
                                             sizeof(pairs) / sizeof(pairs[0]), TENSOR_TOKENS, 4);
        kept[i] = step.end_bytes[TDM_PHASE_FORWARD] - step.before_bytes;
        most[i] = step.phases[TDM_PHASE_BACKWARD].allocated - step.before_bytes;
    }
    assert_in_range(kept[0], kept[1], kept[1] + 16 * TENSOR_TOKENS);
    assert_in_range(most[0] - most[1], (3 * 4 - 2) * words,
                    (3 * 4 - 2) * words + 64 * TENSOR_TOKENS);
}

/* ---- experts that ranks divide ---- */

#define EXPERT_TOKENS 128u

/* A step of a mixture in which nothing is resharded. */
static struct tdm_torch_step experts_step(const char *config, uint64_t gpus, const char *degree)
{
    const char *const pairs[] = {"attention=eager", "optimizer=none", "grads=none", NO, ENDS,
                                 "logits=base",     "step=3",         degree};
    return step_of(config, pairs, sizeof(pairs) / sizeof(pairs[0]), EXPERT_TOKENS, gpus);
}

/* torchtitan's own modules (commit before 9810191b), with half of the experts, equally many rows
 * for each and all-to-alls that only allocate, kept as much in a forward of transformers' model on
 * a CPU (torch 2.11.0, transformers 5.17.0, 128 tokens). A rank here also has gathered what it
 * computes with: all but the other half of the experts. */
static void experts_keep_what_torchtitan_keeps(void **state)
{
    static const struct {
        const char *config;
        uint64_t kept, parameters; /* of a rank */
    } cases[] = {{"configs/qwen3-moe-small.json", 4624194, 2498560 - 4 * 2 * 3 * 256 * 128},
                 {"configs/families/llama4_text.json", 7088322, 4067584 - 2 * 2 * 3 * 256 * 256}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct tdm_torch_step step =
            experts_step(cases[i].config, 2, "expert_parallel_degree=2");
        check_near(cases[i].config,
                   step.end_bytes[TDM_PHASE_FORWARD] - step.before_bytes - 2 * cases[i].parameters,
                   cases[i].kept);
    }
}

/* Whichever ranks share experts, each has as large a part of them. */
static void experts_are_divided_evenly(void **state)
{
    static const char *const degrees[] = {"expert_parallel_degree=1", "expert_parallel_degree=2",
                                          "expert_parallel_degree=4", "expert_parallel_degree=8"};
    uint64_t first = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(degrees) / sizeof(degrees[0]); i++) {
        const struct tdm_torch_step step =
            experts_step("configs/qwen3-moe-small.json", 8, degrees[i]);
        if (i == 0)
            first = step.before_bytes;
        check_near(degrees[i], step.before_bytes, first);
    }
}

/* Of transformers' expert parallelism by both GPUs nothing is sharded: a rank has all but half of
 * the experts, and no gathers. Of four GPUs two share shards of that. */
static void transformers_divides_experts_alone(void **state)
{
    const uint64_t rank = 2496000 - 4 * 2 * 3 * 256 * 128;
    (void)state;
    struct tdm_torch_step one = experts_step("configs/qwen3-moe-small.json", 1, "ep_size=1"),
                          two = experts_step("configs/qwen3-moe-small.json", 2, "ep_size=2"),
                          four = experts_step("configs/qwen3-moe-small.json", 4, "ep_size=2");
    check_near("weights", one.before_bytes - two.before_bytes, 2 * (2496000 - rank));
    check_near("shards", two.before_bytes - four.before_bytes, rank);
    assert_int_equal(two.categories[TDM_METHOD_COMMUNICATION], 0);
    assert_true(four.categories[TDM_METHOD_COMMUNICATION] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_parameters_are_as_fsdp1_has_them),
        cmocka_unit_test(units_in_checkpoints_are_gathered_twice),
        cmocka_unit_test(units_that_come_whole_leave_blocks),
        cmocka_unit_test(hooks_of_frozen_units_hold_inputs),
        cmocka_unit_test(adapters_of_peft_are_wide),
        cmocka_unit_test(order_is_as_torch_has_it),
        cmocka_unit_test(frozen_units_are_gathered),
        cmocka_unit_test(head_may_not_run),
        cmocka_unit_test(units_of_ends_take_less),
        cmocka_unit_test(last_reduction_is_the_peak),
        cmocka_unit_test(states_are_those_of_shards),
        cmocka_unit_test(muon_gathers_wide_matrices),
        cmocka_unit_test(bytes_of_4_bits_are_whole),
        cmocka_unit_test(replicas_share_nothing),
        cmocka_unit_test(flat_replicas_need_nothing_more),
        cmocka_unit_test(one_gpu_has_all_shards),
        cmocka_unit_test(offloaded_shards_leave_nothing),
        cmocka_unit_test(shards_have_their_own_dtype),
        cmocka_unit_test(tensor_parallel_steps_are_those_of_pytorch),
        cmocka_unit_test(compiled_loss_of_divided_logits),
        cmocka_unit_test(experts_keep_what_torchtitan_keeps),
        cmocka_unit_test(experts_are_divided_evenly),
        cmocka_unit_test(transformers_divides_experts_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
