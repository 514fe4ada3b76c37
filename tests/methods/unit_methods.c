/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of predictions for other systems: the events of PyTorch's allocator one by one against its
 * own recordings (tests/data/torch_events), keys, and what a prediction reports. */
#include "base/json.h"
#include "methods/prediction.h"
#include "tests/support/cases.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_EVENTS 16384u
#define LINE_BYTES 512u
#define TINY 8u /* most bytes of an allocation that recordings leave out */

#define NAME_BYTES 256u
#define LARGE (INT64_C(1) << 20) /* from this size on, recordings name what is allocated */

struct events {
    int64_t *bytes;            /* allocated; negative: freed */
    char (*names)[NAME_BYTES]; /* "" if it has none */
    size_t count;
    uint32_t step; /* the step of the events */
};

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static void start_events(struct events *events)
{
    events->bytes = calloc(MOST_EVENTS, sizeof(*events->bytes));
    events->names = calloc(MOST_EVENTS, sizeof(*events->names));
    assert_true(events->bytes != NULL && events->names != NULL);
}

static void end_events(struct events *events)
{
    free(events->bytes);
    free(events->names);
}

static void add_event(struct events *events, int64_t bytes, const char *name)
{
    if (llabs(bytes) <= TINY)
        return;
    assert_true(events->count < MOST_EVENTS);
    if (bytes >= LARGE)
        snprintf(events->names[events->count], NAME_BYTES, "%.255s", name);
    events->bytes[events->count++] = bytes;
}

static void observe(void *context, const struct tdm_torch_event *event)
{
    struct events *events = context;
    char name[TDM_LABEL_BYTES];
    if (event->step == events->step)
        add_event(events, event->allocated ? (int64_t)event->bytes : -(int64_t)event->bytes,
                  tdm_label_format(event->label, name));
}

static int rising(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts frees between two allocations, because they come in any order. */
static void sort_frees(struct events *events)
{
    for (size_t i = 0; i < events->count;) {
        size_t end = i;
        while (end < events->count && events->bytes[end] < 0)
            end++;
        qsort(&events->bytes[i], end - i, sizeof(*events->bytes), rising);
        i = end + 1;
    }
}

/* "model=NAME KEY=NUMBER...": a shipped model with other numbers in its config. */
static struct tdm_model *read_model(char *line)
{
    struct tdm_model *shipped = NULL, *model = NULL;
    struct tdm_error err;
    char *word = strtok(line, " ");
    must(tdm_model_load(word + strlen("model="), &shipped, &err), &err);
    json_t *config = json_deep_copy(shipped->config);
    while ((word = strtok(NULL, " ")) != NULL) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        json_object_set_new(config, word, json_integer(atoll(value)));
    }
    must(tdm_model_from_config("test", "test", config, &model, &err), &err);
    json_decref(config);
    tdm_model_free(shipped);
    return model;
}

/* "set KEY=VALUE..." */
static void read_settings(char *line, struct tdm_method_settings *settings)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    const char *pairs[TDM_METHOD_MOST_KEYS];
    size_t count = 0;
    if (strstr(line, "optimizer=") == NULL)
        pairs[count++] = "optimizer=none";
    strtok(line, " ");
    for (char *word; (word = strtok(NULL, " ")) != NULL;) {
        if (strncmp(word, "context=", 8) == 0)
            settings->torch.tokens = strtoull(word + 8, NULL, 10);
        else if (strncmp(word, "batch=", 6) == 0)
            settings->torch.batch = strtoull(word + 6, NULL, 10);
        else
            pairs[count++] = word;
    }
    must(tdm_method_find("parallel", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, settings, &choices, &err), &err);
}

/* Our names for what a recorded operation and its line of code allocate. The first rule that is
 * found in a recorded name applies. */
static const struct {
    const char *recorded, *ours;
} rules[] = {
    {"getCurrentCUDABlasHandle", "cuBLAS workspace"},
    {"masking_utils:", "attention_mask"},
    {"embedding @", "model.embed_tokens"},
    {"EmbeddingBackward0", "backward of model.embed_tokens"},
    {"rotate_half", ".self_attn.rotary"},
    {"apply_rotary_pos_emb", ".self_attn.rotary"},
    {"SliceBackward0", ".self_attn.rotary"},
    {"NegBackward0", ".self_attn.rotary"},
    {"sdpa_attention:", ".self_attn.attention"},
    {"CudnnAttentionBackward0", "backward of model.layers"},
    {"activations:", ".mlp.act_fn"},
    {"SiluBackward0", ".mlp.act_fn"},
    {"GeluBackward0", ".mlp.act_fn"},
    {"tuners_utils:", ".lora"},
    {"layer:1088:", "_proj"}, /* peft's layer calls the projection that it wraps */
    {"layer:1102:", ".lora"},
    {"layer:1113:", ".lora"},
    {"loss_utils:59:", "logits.float()"},
    {"fixed_cross_entropy", "loss"},
    {"LogSoftmaxBackward0", "backward of loss"},
    {"NllLossBackward0", "backward of loss"},
    {"pow_Tensor_Scalar", "norm"},
    {"PowBackward0", "norm"},
    {"MeanBackward1", "norm"},
    {"modeling_gemma2:526:", "lm_head"},
    {"modeling_qwen3:495:", "lm_head"},
    {"modeling_gemma2:259:", ".self_attn.q_proj"},
    {"modeling_gemma2:260:", ".self_attn.k_proj"},
    {"modeling_gemma2:261:", ".self_attn.v_proj"},
    {"modeling_gemma2:287:", ".self_attn.o_proj"},
    {"modeling_gemma2:81:", ".mlp."},
    {"modeling_qwen3:82:", ".mlp."},
    {"modeling_gemma2:327:", ".hidden_states"},
    {"modeling_gemma2:333:", ".hidden_states"},
    {"modeling_qwen3:316:", ".hidden_states"},
    {"modeling_qwen3:322:", ".hidden_states"},
};

/* A line of a model's code runs in the forward, even if a checkpoint runs it again. */
static void compare_names(const char *file, const char *recorded, const char *ours)
{
    bool workspace = strstr(recorded, "getCurrentCUDABlasHandle") != NULL;
    bool code = strstr(recorded, " @ ") != NULL, backward = strncmp(ours, "backward of ", 12) == 0;
    if (!workspace && (code || strstr(recorded, "Backward") != NULL) && code == backward)
        fail_msg("%s: \"%s\" was recorded as %s", file, ours, recorded);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (strstr(recorded, rules[i].recorded) == NULL)
            continue;
        if (strstr(ours, rules[i].ours) == NULL)
            fail_msg("%s: \"%s\" was recorded as %s", file, ours, recorded);
        return;
    }
}

static void compare_recording(const char *path, const char *name, size_t *named)
{
    struct events recorded = {.count = 0}, predicted = {.step = 1};
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_model *model = NULL;
    struct tdm_error err;
    char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    start_events(&recorded);
    start_events(&predicted);
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "# model=", 8) == 0)
            model = read_model(line + 2);
        else if (strncmp(line, "# set ", 6) == 0)
            read_settings(line + 2, &settings);
        else if (strncmp(line, "# step=", 7) == 0)
            predicted.step = (uint32_t)atoll(line + 7);
        else if (line[0] == '+' || line[0] == '-')
            add_event(&recorded, atoll(line), line + strcspn(line, " "));
    }
    fclose(file);
    const struct tdm_torch_device hopper = {{132, 2048, UINT64_C(32) << 20, UINT64_C(1) << 20, 90},
                                            UINT64_C(1) << 40,
                                            UINT64_C(1) << 40,
                                            0,
                                            false};
    const struct tdm_torch_observer observer = {observe, &predicted};
    struct tdm_torch_run run;
    must(tdm_torch_run(model, &settings, &hopper, predicted.step, &observer, &run, &err), &err);
    sort_frees(&recorded);
    sort_frees(&predicted);
    for (size_t i = 0; i < recorded.count && i < predicted.count; i++)
        if (recorded.bytes[i] != predicted.bytes[i])
            fail_msg("%s: event %zu is %lld, recorded was %lld", name, i,
                     (long long)predicted.bytes[i], (long long)recorded.bytes[i]);
    assert_int_equal(recorded.count, predicted.count);
    for (size_t i = 0; i < recorded.count; i++)
        if (recorded.names[i][0] != '\0') {
            compare_names(name, recorded.names[i], predicted.names[i]);
            *named += 1;
        }
    tdm_model_free(model);
    end_events(&recorded);
    end_events(&predicted);
}

static void events_are_as_recorded(void **state)
{
    char folder[2048], path[4096];
    const char *sources = getenv("TDM_SRCDIR");
    (void)state;
    snprintf(folder, sizeof(folder), "%s/tests/data/torch_events", sources != NULL ? sources : ".");
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    size_t count = 0, named = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strstr(entry->d_name, ".events") == NULL)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        compare_recording(path, entry->d_name, &named);
        count++;
    }
    closedir(directory);
    assert_true(count >= 10 && named >= 500);
}

static struct tdm_method_prediction predict(const char *model_name, uint64_t context,
                                            const char *const *pairs, size_t count, double margin)
{
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = context, .batch = 1}};
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    must(tdm_method_find("parallel", &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
    must(tdm_model_load(model_name, &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, margin, &prediction, &err), &err);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return prediction;
}

static void categories_add_up(void **state)
{
    static const char *const pairs[] = {"optimizer=adamw-fused", "checkpointing=on"};
    (void)state;
    struct tdm_method_prediction p = predict("qwen2.5-0.5b", 2048, pairs, 2, 0);
    assert_int_equal(p.count, TDM_TORCH_STEPS);
    assert_true(p.fits);
    for (uint32_t i = 0; i < p.count; i++) {
        const struct tdm_torch_step *step = &p.steps[i].torch;
        uint64_t sum = 0;
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            sum += step->categories[c];
        assert_int_equal(sum, step->peak.allocated);
        assert_true(step->peak.requested <= step->peak.allocated);
        assert_true(step->peak.allocated <= step->peak.reserved);
        assert_true(step->peak.reserved < p.steps[i].used_bytes);
        /* The weights are always in memory, rounded up. */
        assert_true(step->categories[TDM_METHOD_WEIGHTS] >= p.parameters_bytes);
        assert_true(step->categories[TDM_METHOD_WEIGHTS] < p.parameters_bytes * 51 / 50);
    }
}

/* More context needs more memory, checkpointing less. Running out of memory is reported. */
static void orders_hold(void **state)
{
    static const char *const plain[] = {"optimizer=none"};
    static const char *const checkpoints[] = {"optimizer=none", "checkpointing=on"};
    (void)state;
    struct tdm_method_prediction shorter = predict("qwen2.5-0.5b", 4096, plain, 1, 0),
                                 longer = predict("qwen2.5-0.5b", 8192, plain, 1, 0),
                                 less = predict("qwen2.5-0.5b", 8192, checkpoints, 2, 0),
                                 never = predict("qwen2.5-7b", 1u << 20, plain, 1, 0);
    assert_true(shorter.steps[2].torch.peak.allocated < longer.steps[2].torch.peak.allocated);
    assert_true(less.steps[2].torch.peak.allocated < longer.steps[2].torch.peak.allocated);
    assert_false(never.runs);
    assert_false(never.fits);
    assert_true(never.steps[never.highest].torch.failed);
}

/* m146 of tests/data/measured_peaks.csv ran out of memory. With 12K tokens it takes nine tenths. */
static void margin_refuses(void **state)
{
    static const char *const pairs[] = {"optimizer=none"};
    (void)state;
    struct tdm_method_prediction p = predict("qwen2.5-7b", 12288, pairs, 1, 0);
    assert_true(p.runs && p.fits);
    p = predict("qwen2.5-7b", 12288, pairs, 1, 0.5);
    assert_true(p.runs);
    assert_false(p.fits);
}

/* A step that does not fit reports where it ends, and what it needs in total. */
static void needs_are_whole(void **state)
{
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.torch = {.tokens = 32768, .batch = 1, .ranks = 1}};
    struct tdm_method_choices choices;
    struct tdm_method_prediction p, large;
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_method_find("torch", &method, &err), &err);
    must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0.03, &p, &err), &err);
    assert_false(p.runs);
    assert_int_equal(p.failure.step, 1);
    assert_true(p.failure.used_bytes <= machine->topology.places[TDM_DEVICE].capacity_bytes);
    must(tdm_method_need(model, machine, &settings, &p, &err), &err);
    assert_true(p.endless && !p.runs && !p.fits);
    assert_int_equal(p.count, TDM_TORCH_STEPS);
    machine->topology.places[TDM_DEVICE].capacity_bytes = UINT64_C(1) << 50;
    must(tdm_method_predict(model, machine, &settings, 0.03, &large, &err), &err);
    assert_int_equal(tdm_method_peak_bytes(&p), tdm_method_peak_bytes(&large));
    tdm_machine_free(machine);
    tdm_model_free(model);
}

/* Settings in the words of the users of the systems. */
static void words_are_read(void **state)
{
    static const struct {
        const char *method, *pair, *key, *value;
    } words[] = {
        {"torch", "gradient_checkpointing: true", "checkpointing", "on"},
        {"torch", "gradient_checkpointing=false", "checkpointing", "off"},
        {"HF", "use_liger_kernel=True", "logits", "fused"},
        {"HF", "use_liger_kernel", "logits", "fused"},
        {"HF", "loss_type=chunked_nll", "logits", "chunked"},
        {"HF", "liger_fused_linear_cross_entropy: true", "logits", "fused"},
        {"HF", "lora_target_linear: true", "lora_targets", "all"},
        {"HF", "lora_target_modules=all-linear", "lora_targets", "all"},
        {"HF", "torch_dtype: float32", "weights_dtype", "fp32"},
        {"HF", "use_bnb_nested_quant: true", "double_quantization", "yes"},
        {"HF", "flash_attention: true", "attention", "flash"},
        {"ring", "attn_implementation: flash_attention_2", "attention", "flash_attention_2"},
        {"HF", "use_liger_kernel=no", "logits", "hf"},
        {"torch", "gradient_checkpointing", "checkpointing", "on"},
        {"torch", "gradient_checkpointing=1", "checkpointing", "on"},
        {"transformers", "optim: adamw_torch_fused", "optimizer", "adamw-fused"},
        {"HF", "optimizer=AdamW8bit", "optimizer", "adamw-8bit"},
        {"HF", "optimizer=torchao.optim.AdamW8bit", "optimizer", "ao-adamw-8bit"},
        {"parallel", "PYTORCH_ALLOC_CONF=expandable_segments:True", "allocator_conf",
         "expandable_segments:True"},
        {"parallel", "attn_implementation=eager", "attention", "eager"},
        {"fsdp2", "reshard_after_forward=True", "reshard_after_forward", "yes"},
        {"ZeRO-3", "\"offload_optimizer\": {\"device\": \"cpu\"}", "offload_optimizer", "cpu"},
        {"zero3", "\"reduce_bucket_size\": 5e7", "reduce_bucket_size", "5e7"},
        {"tp", "--sequence-parallel", "sequence_parallel", "yes"},
        {"tensor-parallel", "--recompute-granularity full", "recompute_granularity", "full"},
        {"oomb", "cpu_offload: 2", "kv_offload", "yes"},
    };
    const struct tdm_method *method;
    struct tdm_error err;
    const char *value;
    size_t k;
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        must(tdm_method_find(words[i].method, &method, &err), &err);
        assert_true(tdm_method_read_pair(method, words[i].pair, &k, &value));
        assert_string_equal(tdm_method_key(method, k)->name, words[i].key);
        assert_string_equal(value, words[i].value);
    }
    assert_false(tdm_method_read_pair(method, "gradient_checkpointing=true", &k, &value));
    must(tdm_method_find("zero2", &method, &err), &err);
    assert_true(tdm_method_is_given(method, "bf16: true")); /* there is no other */
    assert_false(tdm_method_is_given(method, "bf16=false"));
    assert_int_equal(tdm_method_find("torch", &method, NULL), TDM_OK);
    assert_false(tdm_method_read_pair(method, "lora_rank", &k, &value)); /* not yes or no */
    assert_int_equal(tdm_method_find("deepspeed", &method, &err), TDM_USAGE);
    assert_non_null(strstr(err.hint, "did you mean zero2, zero3"));
}

static void keys_are_checked(void **state)
{
    static const struct {
        const char *pairs[2];
        size_t count;
    } bad[] = {{{"colour=red"}, 1},
               {{"lora_rank"}, 1},
               {{"checkpointing=maybe"}, 1},
               {{"step=4"}, 1},
               {{"lora_rank=x"}, 1},
               {{"lora_targets=nothing"}, 1},
               {{"lora_targets=.*(_proj){99}{99}"}, 1}, /* regcomp would take gigabytes */
               {{"lora_targets=(_proj)++++++++++++"}, 1},
               {{"attention=sdpa", "attention=eager"}, 2}};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_error err;
    (void)state;
    must(tdm_method_find("parallel", &method, &err), &err);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(
            tdm_method_apply(method, bad[i].pairs, bad[i].count, &settings, &choices, &err),
            TDM_USAGE);
    static const char *const module[] = {"lora_targets=mlp."};
    assert_int_equal(tdm_method_apply(method, module, 1, &settings, &choices, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "\"mlp.\" is not known")); /* and not what is left of it */
    assert_int_equal(tdm_method_find("perpendicular", &method, &err), TDM_USAGE);
    static const char *const good[] = {"lora_targets=q_proj v_proj", "lora_rank=8", "step=2"};
    must(tdm_method_apply(method, good, 3, &settings, &choices, &err), &err);
    assert_int_equal(settings.torch.lora_targets, 1u << TDM_PROJECTION_Q | 1u << TDM_PROJECTION_V);
    assert_int_equal(settings.torch.lora_rank, 8);
    assert_int_equal(settings.step, 2);
}

/* Predicts a step for a choice of a key. If memory runs out at some moment of the step, this must
 * be reported, and nothing else may fail. */
static void runs_out_of_memory(const struct tdm_method *method, const struct tdm_model *model,
                               const struct tdm_machine *machine, const char *const *pairs,
                               size_t count, uint64_t tokens)
{
    struct tdm_method_settings settings = {
        .torch = {.tokens = tokens, .batch = 2, .ranks = method->least_gpus > 1 ? 4 : 1}};
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    struct tdm_error err;
    if (tdm_method_apply(method, pairs, count, &settings, &choices, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK)
        return; /* the pairs do not work with this model, or not by themselves */
    must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
    assert_true(prediction.runs || prediction.steps[prediction.highest].torch.failed);
}

static void memory_runs_out_anywhere(void **state)
{
    static const uint64_t tokens[] = {512, 4096, 16384, 65536};
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    const struct tdm_method_key *key;
    (void)state;
    must(tdm_model_load("qwen2.5-1.5b", &model, &err), &err);
    must(tdm_machine_load("rtx-5090", &machine, &err), &err);
    const size_t lengths = sizeof(tokens) / sizeof(tokens[0]);
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++)
        for (size_t t = 0; t < lengths && method->system != NULL; t++) {
            for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
                if (!tdm_case_long() && k % lengths != t)
                    continue; /* every key has one length */
                char values[256], pair[320];
                const char *const pairs[] = {pair, "gradient_accumulation_steps=2"};
                snprintf(values, sizeof(values), "%s", key->values);
                for (char *rest = values, *value; (value = strsep(&rest, "|")) != NULL;) {
                    snprintf(pair, sizeof(pair), "%s=%s", key->name, value);
                    runs_out_of_memory(method, model, machine, pairs, 1, tokens[t]);
                    runs_out_of_memory(method, model, machine, pairs, 2, tokens[t]);
                }
            }
        }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_as_recorded),
        cmocka_unit_test(categories_add_up),
        cmocka_unit_test(orders_hold),
        cmocka_unit_test(margin_refuses),
        cmocka_unit_test(needs_are_whole),
        cmocka_unit_test(words_are_read),
        cmocka_unit_test(keys_are_checked),
        cmocka_unit_test(memory_runs_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
