/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a step fit: it does, nothing of it can be left out, and there is always an answer. */
#include "base/json.h"
#include "methods/remedy.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 0.03

struct question {
    const char *model, *method;
    uint64_t tokens, batch, gpus;
};

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static const char *value_of(const struct tdm_remedy *remedy, const char *key)
{
    for (size_t c = 0; c < remedy->count; c++)
        if (strcmp(remedy->changes[c].key, key) == 0)
            return remedy->changes[c].value;
    return NULL;
}

static uint64_t number_of(const struct tdm_remedy *remedy, const char *key, uint64_t otherwise)
{
    const char *value = remedy == NULL ? NULL : value_of(remedy, key);
    return value == NULL ? otherwise : strtoull(value, NULL, 10);
}

/* Does it fit with the changes but number `without`? As the command line would have it. */
static bool fits(const struct question *q, const struct tdm_model *model,
                 const struct tdm_machine *machine, const struct tdm_remedy *changes,
                 size_t without, struct tdm_method_prediction *prediction)
{
    struct tdm_remedy remedy = *changes;
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    char texts[TDM_REMEDY_CHANGES][64];
    const char *pairs[TDM_REMEDY_CHANGES];
    size_t count = 0;
    if (without < remedy.count)
        remedy.changes[without] = remedy.changes[--remedy.count];
    struct tdm_method_settings settings = {.torch = {.tokens = q->tokens,
                                                     .batch = number_of(&remedy, "batch", q->batch),
                                                     .ranks = number_of(&remedy, "gpus", q->gpus)}};
    const char *name = value_of(&remedy, "method");
    must(tdm_method_find(name != NULL ? name : q->method, &method, &err), &err);
    for (size_t c = 0; c < remedy.count; c++) {
        const char *key = remedy.changes[c].key;
        if (strcmp(key, "batch") == 0 || strcmp(key, "gpus") == 0 || strcmp(key, "method") == 0)
            continue;
        snprintf(texts[count], sizeof(texts[count]), "%s=%s", key, remedy.changes[c].value);
        pairs[count] = texts[count];
        count++;
    }
    if (tdm_method_apply(method, pairs, count, &settings, &choices, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK)
        return false;
    must(tdm_method_predict(model, machine, &settings, MARGIN, prediction, &err), &err);
    return prediction->fits;
}

static void ask(const struct question *q, const struct tdm_model *model,
                const struct tdm_machine *machine, struct tdm_remedies *remedies)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    struct tdm_method_settings settings = {
        .torch = {.tokens = q->tokens, .batch = q->batch, .ranks = q->gpus}};
    must(tdm_method_find(q->method, &method, &err), &err);
    must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_method_remedies(method, model, machine, &settings, &choices, MARGIN, remedies, &err),
         &err);
}

/* The remedies of a question, each of which fits and is the least. */
static void ask_and_check(const struct question *q, struct tdm_remedies *remedies)
{
    static struct tdm_method_prediction prediction;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    must(tdm_model_load(q->model, &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    ask(q, model, machine, remedies);
    for (size_t i = 0; i < remedies->count; i++) {
        const struct tdm_remedy *remedy = &remedies->list[i];
        assert_true(fits(q, model, machine, remedy, SIZE_MAX, &prediction));
        assert_int_equal(prediction.steps[prediction.highest].used_bytes, remedy->peak_bytes);
        for (size_t c = 0; c < remedy->count; c++)
            if (remedy->changes[c].words[0] != '\0' &&
                fits(q, model, machine, remedy, c, &prediction))
                fail_msg("%s, %s: fits without %s", q->model, q->method, remedy->changes[c].key);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

static void least_set_is_found(void **state)
{
    static const struct question zero3 = {"qwen2.5-32b", "zero3", 32768, 1, 8};
    static const struct question megatron = {"llama-3.1-8b", "megatron-cp", 98304, 1, 4};
    struct tdm_remedies remedies;
    (void)state;
    ask_and_check(&zero3, &remedies);
    assert_int_equal(remedies.list[0].count, 2);
    assert_string_equal(value_of(&remedies.list[0], "logits"), "fused");
    assert_string_equal(value_of(&remedies.list[0], "checkpointing"), "on");
    ask_and_check(&megatron, &remedies);
    assert_string_equal(value_of(&remedies.list[0], "use_distributed_optimizer"), "yes");
    assert_string_equal(value_of(&remedies.list[0], "recompute_granularity"), "selective");
    assert_null(value_of(&remedies.list[0], "sequence_parallel"));
}

static void smaller_batch_is_found(void **state)
{
    static const struct question q = {"llama-3.1-8b", "parallel", 2048, 64, 1};
    struct tdm_remedies remedies;
    (void)state;
    ask_and_check(&q, &remedies);
    assert_string_equal(value_of(&remedies.list[0], "batch"), "4");
    assert_string_equal(value_of(&remedies.list[0], "grads"), "held");
    static const struct question zero2 = {"llama-3.1-8b", "zero2", 2048, 64, 8};
    ask_and_check(&zero2, &remedies);
    assert_string_equal(value_of(&remedies.list[0], "batch"), "4");
    assert_string_equal(value_of(&remedies.list[0], "gradient_accumulation_steps"), "16");
}

static void selective_recompute_is_before_full(void **state)
{
    static const struct question q = {"llama-3.1-8b", "tensor-parallel", 49152, 1, 4};
    struct tdm_remedies remedies;
    size_t selective = SIZE_MAX, full = SIZE_MAX;
    (void)state;
    ask_and_check(&q, &remedies);
    for (size_t i = 0; i < remedies.count; i++) {
        const char *value = value_of(&remedies.list[i], "recompute_granularity");
        if (value != NULL && strcmp(value, "selective") == 0)
            selective = i;
        else if (value != NULL)
            full = i;
    }
    assert_true(selective < remedies.count);
    assert_true(full == SIZE_MAX || selective < full);
}

static void there_is_always_an_answer(void **state)
{
    static const struct question tensor = {"qwen2.5-72b", "tensor-parallel", 8192, 1, 8};
    static const struct question one = {"qwen2.5-72b", "parallel", 4096, 1, 1};
    struct tdm_remedies remedies;
    char text[TDM_REMEDY_TEXT];
    (void)state;
    ask_and_check(&tensor, &remedies);
    assert_int_equal(remedies.count, 2); /* other results, or more GPUs */
    assert_string_equal(value_of(&remedies.list[0], "lora_rank"), "16");
    assert_non_null(value_of(&remedies.list[1], "gpus"));
    ask_and_check(&one, &remedies);
    assert_true(remedies.count > 0 && value_of(&remedies.list[0], "method") != NULL);
    assert_null(value_of(&remedies.list[0], "lora_rank"));
    assert_non_null(strstr(tdm_remedies_text(&remedies, text), "--method fsdp"));
    memset(&remedies, 0, sizeof(remedies));
    assert_non_null(strstr(tdm_remedies_text(&remedies, text), "nothing that this method has"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_set_is_found),
        cmocka_unit_test(smaller_batch_is_found),
        cmocka_unit_test(selective_recompute_is_before_full),
        cmocka_unit_test(there_is_always_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
