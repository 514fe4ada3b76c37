/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of remedies for a step that does not fit: each of them works, no part of it can be left
 * out, and there is always an answer. */
#include "base/json.h"
#include "base/units.h"
#include "methods/longest.h"
#include "methods/remedy.h"
#include "tests/support/cases.h"

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
    const char *pair;        /* of --set; NULL: none */
    const char *host_memory; /* NULL: the machine's */
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

static const char *key_of(const struct question *q, char out[64])
{
    snprintf(out, 64, "%.*s", (int)strcspn(q->pair, "="), q->pair);
    return out;
}

/* Whether the step fits with all changes but number `without`, given as on the command line. */
static bool fits(const struct question *q, const struct tdm_model *model,
                 const struct tdm_machine *machine, const struct tdm_remedy *changes,
                 size_t without, struct tdm_method_prediction *prediction)
{
    struct tdm_remedy remedy = *changes;
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    char texts[TDM_REMEDY_CHANGES][64], key[64];
    const char *pairs[TDM_REMEDY_CHANGES + 1];
    size_t count = 0;
    if (without < remedy.count)
        remedy.changes[without] = remedy.changes[--remedy.count];
    struct tdm_method_settings settings = {.torch = {.tokens = q->tokens,
                                                     .batch = number_of(&remedy, "batch", q->batch),
                                                     .ranks = number_of(&remedy, "gpus", q->gpus)}};
    const char *name = value_of(&remedy, "method");
    must(tdm_method_find(name != NULL ? name : q->method, &method, &err), &err);
    for (size_t c = 0; c < remedy.count; c++) {
        const char *name_of_key = remedy.changes[c].key;
        if (strcmp(name_of_key, "batch") == 0 || strcmp(name_of_key, "gpus") == 0 ||
            strcmp(name_of_key, "method") == 0 || strcmp(name_of_key, "host_memory") == 0)
            continue;
        snprintf(texts[count], sizeof(texts[count]), "%s=%s", name_of_key, remedy.changes[c].value);
        pairs[count] = texts[count];
        count++;
    }
    if (name == NULL && q->pair != NULL && value_of(&remedy, key_of(q, key)) == NULL)
        pairs[count++] = q->pair;
    if (tdm_method_apply(method, pairs, count, &settings, &choices, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK)
        return false;
    struct tdm_machine with = *machine;
    const char *host_memory = value_of(&remedy, "host_memory");
    if (host_memory != NULL)
        must(tdm_parse_bytes(host_memory, "host_memory",
                             &with.topology.places[TDM_HOST].capacity_bytes, &err),
             &err);
    must(tdm_method_predict(model, &with, &settings, MARGIN, prediction, &err), &err);
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
    must(tdm_method_apply(method, &q->pair, q->pair != NULL, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    struct tdm_method_prediction asked;
    must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
    must(tdm_method_need(model, machine, &settings, &asked, &err), &err);
    must(tdm_method_remedies(method, model, machine, &settings, &choices, MARGIN, &asked, 0, 0,
                             remedies, &err),
         &err);
    assert_true(remedies->complete);
}

/* Checks that --set accepts the words of a change, up to a bracket or a second option. */
static void words_can_be_typed(const struct question *q, const struct tdm_remedy *remedy)
{
    const struct tdm_method *method;
    const char *name = value_of(remedy, "method"), *value;
    struct tdm_error err;
    must(tdm_method_find(name != NULL ? name : q->method, &method, &err), &err);
    for (size_t c = 0; c < remedy->count; c++) {
        const struct tdm_remedy_change *change = &remedy->changes[c];
        char words[sizeof(change->words)];
        size_t k;
        if (change->words[0] == '\0' || strcmp(change->key, "method") == 0 ||
            strcmp(change->key, "gpus") == 0 || strcmp(change->key, "batch") == 0 ||
            strcmp(change->key, "host_memory") == 0)
            continue;
        snprintf(words, sizeof(words), "%s", change->words);
        char *bracket = strstr(words, " ("), *second = strstr(words + 2, " --");
        if (bracket != NULL)
            *bracket = '\0';
        if (second != NULL)
            *second = '\0';
        if (!tdm_method_read_pair(method, words, &k, &value))
            fail_msg("%s: --set \"%s\" is not taken", method->name, words);
        assert_string_equal(tdm_method_key(method, k)->name, change->key);
        assert_string_equal(value, change->value);
    }
}

/* Finds the remedies of a question. Checks that each fits and that none of its changes can be left
 * out, and that they are in the order of effects. Returns false if the step fits as it is. */
static bool ask_and_check(const struct question *q, struct tdm_remedies *remedies)
{
    static struct tdm_method_prediction prediction;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    must(tdm_model_load(q->model, &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    if (q->host_memory != NULL)
        must(tdm_parse_bytes(q->host_memory, "host",
                             &machine->topology.places[TDM_HOST].capacity_bytes, &err),
             &err);
    static const struct tdm_remedy none;
    bool asked = !fits(q, model, machine, &none, SIZE_MAX, &prediction);
    *remedies = (struct tdm_remedies){.count = 0};
    if (asked)
        ask(q, model, machine, remedies);
    for (size_t i = 0; i < remedies->count; i++) {
        const struct tdm_remedy *remedy = &remedies->list[i];
        assert_true(fits(q, model, machine, remedy, SIZE_MAX, &prediction));
        assert_int_equal(prediction.steps[prediction.highest].used_bytes, remedy->peak_bytes);
        assert_int_equal(prediction.kept_bytes, remedy->kept_bytes);
        assert_int_equal(prediction.host_peak_bytes, remedy->host_peak_bytes);
        words_can_be_typed(q, remedy);
        if (i > 0)
            assert_true(remedies->list[i - 1].effect <= remedy->effect);
        assert_int_equal(value_of(remedy, "lora_rank") != NULL ||
                             value_of(remedy, "budget") != NULL,
                         remedy->effect == TDM_EFFECT_TRAINING);
        for (size_t c = 0; c < remedy->count; c++)
            if (remedy->changes[c].words[0] != '\0' &&
                fits(q, model, machine, remedy, c, &prediction))
                fail_msg("%s, %s: fits without %s", q->model, q->method, remedy->changes[c].key);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
    return asked;
}

static void least_set_is_found(void **state)
{
    static const struct question zero3 = {"qwen2.5-32b", "zero3", 32768, 1, 8, NULL, NULL};
    static const struct question megatron = {"llama-3.1-8b", "megatron-cp", 98304, 1, 4,
                                             NULL,           NULL};
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
    static const struct question q = {"llama-3.1-8b", "parallel", 2048, 64, 1, NULL, NULL};
    struct tdm_remedies remedies;
    (void)state;
    ask_and_check(&q, &remedies);
    assert_null(value_of(&remedies.list[0], "batch")); /* settings of the same batch come first */
    assert_string_equal(value_of(&remedies.list[1], "batch"), "4");
    assert_string_equal(value_of(&remedies.list[1], "grads"), "held");
    static const struct question zero2 = {"llama-3.1-8b", "zero2", 2048, 64, 8, NULL, NULL};
    ask_and_check(&zero2, &remedies);
    assert_string_equal(value_of(&remedies.list[1], "batch"), "4");
    assert_string_equal(value_of(&remedies.list[1], "gradient_accumulation_steps"), "16");
}

static void selective_recompute_is_before_full(void **state)
{
    static const struct question q = {"llama-3.1-8b", "tensor-parallel", 49152, 1, 4, NULL, NULL};
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
    static const struct question tensor = {"qwen2.5-72b", "tensor-parallel", 8192, 1, 8, NULL,
                                           NULL};
    static const struct question one = {"qwen2.5-72b", "parallel", 4096, 1, 1, NULL, NULL};
    struct tdm_remedies remedies;
    char text[TDM_REMEDY_TEXT];
    (void)state;
    ask_and_check(&tensor, &remedies);
    assert_int_equal(remedies.count, 2); /* more GPUs, or something else is trained */
    assert_non_null(value_of(&remedies.list[0], "gpus"));
    assert_string_equal(value_of(&remedies.list[1], "lora_rank"), "16");
    ask_and_check(&one, &remedies);
    assert_true(remedies.count > 0 && value_of(&remedies.list[0], "method") != NULL);
    assert_null(value_of(&remedies.list[0], "lora_rank"));
    assert_non_null(strstr(tdm_remedies_text(&remedies, text), "--method fsdp"));
    memset(&remedies, 0, sizeof(remedies));
    assert_non_null(strstr(tdm_remedies_text(&remedies, text), "nothing tried so far makes"));
    remedies.complete = true;
    assert_non_null(strstr(tdm_remedies_text(&remedies, text), "nothing that this method has"));
    assert_non_null(strstr(text, "no more GPUs"));
    remedies.context_alone = true; /* and nothing more is said than was tried */
    assert_null(strstr(tdm_remedies_text(&remedies, text), "no more GPUs"));
}

/* Asks about steps of each method that do not fit, on machines with little and with ample host
 * memory. */
static void every_method_is_answered_in_order(void **state)
{
    static const struct question questions[] = {
        {"llama-3.1-8b", "parallel", 32768, 1, 1, NULL, NULL},
        {"qwen2.5-14b", "parallel", 4096, 1, 1, NULL, NULL},
        {"llama-3.1-8b", "ddp", 16384, 2, 2, NULL, NULL},
        {"qwen2.5-14b", "zero1", 8192, 1, 4, NULL, NULL},
        {"qwen2.5-32b", "fsdp", 8192, 1, 4, NULL, NULL},
        {"qwen2.5-32b", "fsdp", 4096, 1, 2, .pair = "weights_dtype=fp32"},
        {"qwen2.5-14b", "zero2", 4096, 1, 2, NULL, NULL},
        {"qwen2.5-32b", "zero3", 8192, 1, 2, NULL, NULL},
        {"qwen2.5-7b", "zero3-offload", 8192, 1, 1, NULL, NULL},
        {"qwen2.5-7b", "zero3-offload", 65536, 1, 1, NULL, NULL},
        {"qwen2.5-7b", "oomb", 1048576, 1, 1, NULL, NULL},
        {"qwen2.5-7b", "oomb", 1048576, 1, 1, .pair = "kv_offload=yes", .host_memory = "40G"},
        {"llama-3.1-8b", "oomb", 262144, 1, 1, .pair = "layer_checkpoint=no"},
        {"llama-3.1-8b", "seco", 262144, 1, 1, NULL, NULL},
        {"llama-3.1-8b", "longlora", 65536, 2, 1, NULL, NULL},
        {"llama-3.1-8b", "tensor-parallel", 131072, 1, 4, NULL, NULL},
        {"qwen2.5-32b", "tensor-parallel", 4096, 1, 2, NULL, NULL},
        {"qwen2.5-14b", "megatron-cp", 16384, 1, 2, NULL, NULL},
        {"llama-3.1-8b", "ring", 262144, 1, 4, NULL, NULL},
        {"llama-3.1-8b", "double-ring", 262144, 1, 8, NULL, NULL},
        {"llama-3.1-8b", "ulysses", 262144, 1, 4, NULL, NULL},
        {"llama-3.1-8b", "usp", 262144, 1, 4, NULL, NULL},
        {"burst-7b", "burst", 4194304, 1, 8, NULL, NULL},
    };
    static const char *const amounts[] = {NULL, "4096G"};
    (void)state;
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        for (size_t a = 0; a < (tdm_case_long() ? 2 : 1); a++) {
            struct question q = questions[i];
            struct tdm_remedies remedies;
            if (a > 0 && q.host_memory != NULL)
                continue;
            q.host_memory = q.host_memory != NULL ? q.host_memory : amounts[a];
            if (!ask_and_check(&q, &remedies) && a == 0)
                fail_msg("%s, %s fits as it is", q.model, q.method);
        }
}

/* Settings that use host memory are offered if there is enough of it or more of it is added. If it
 * is short, remedies use less of it or add some. */
static void host_memory_is_a_limit(void **state)
{
    static const struct question short_of = {"qwen2.5-7b", "zero3-offload", 8192, 1, 1, NULL, NULL};
    static const struct question ample = {"qwen2.5-7b",          "zero2", 8192, 1, 1,
                                          .host_memory = "1024G"};
    static const struct question none = {"qwen2.5-7b", "zero2", 8192, 1, 1, .host_memory = "1G"};
    struct tdm_remedies remedies;
    bool more = false;
    (void)state;
    ask_and_check(&short_of, &remedies);
    for (size_t i = 0; i < remedies.count; i++)
        more |= value_of(&remedies.list[i], "host_memory") != NULL;
    assert_true(more);
    assert_string_equal(value_of(&remedies.list[0], "offload_optimizer"), "none");
    ask_and_check(&ample, &remedies);
    assert_string_equal(value_of(&remedies.list[0], "offload_optimizer"), "cpu");
    ask_and_check(&none, &remedies);
    for (size_t i = 0; i < remedies.count; i++)
        assert_true(value_of(&remedies.list[i], "offload_optimizer") == NULL ||
                    value_of(&remedies.list[i], "host_memory") != NULL);
}

/* The longest context is in 1K tokens, also just below the context asked for. It is the same
 * wherever the search begins, and 1K tokens more do not fit. */
static void longest_context_is_found(void **state)
{
    static const struct {
        const char *method, *pair;
        uint64_t gpus, tokens[3];
    } cases[] = {
        {"parallel", "checkpointing=off", 1, {11 * 1024 + 512, 32768, 1u << 20}},
        {"zero3", "checkpointing=on", 2, {65536, 131072, 1u << 20}},
        {"ring", "checkpointing=off", 4, {65536, 131072, 1u << 20}},
        {"usp", "checkpointing=on", 2, {1u << 20, 3u << 19, 1u << 21}},
        {"seco", "optimizer=none", 1, {1u << 19, 3u << 18, 1u << 20}},
    };
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t first = 0;
        for (size_t t = 0; t < 3; t++) {
            const struct tdm_method *method;
            struct tdm_method_choices choices;
            struct tdm_method_prediction asked;
            struct tdm_method_settings settings = {
                .torch = {.tokens = cases[i].tokens[t], .batch = 1, .ranks = cases[i].gpus}};
            uint64_t tokens, work = 0;
            must(tdm_method_find(cases[i].method, &method, &err), &err);
            must(tdm_method_apply(method, &cases[i].pair, 1, &settings, &choices, &err), &err);
            must(tdm_method_check(model, &settings, &err), &err);
            must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
            assert_false(asked.fits);
            must(tdm_method_need(model, machine, &settings, &asked, &err), &err);
            must(tdm_method_longest_below(model, machine, &settings, MARGIN, &asked, &tokens, &work,
                                          &err),
                 &err);
            assert_true(work > 0);
            assert_true(tokens > 0 && tokens % 1024 == 0);
            first = t == 0 ? tokens : first;
            assert_int_equal(tokens, first);
            settings.torch.tokens = tokens;
            must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
            assert_true(asked.fits);
            settings.torch.tokens = tokens + 1024;
            must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
            assert_false(asked.fits);
        }
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* Where host memory ends first, and the device too is short of what was asked for, the search
 * follows the host's bytes: three tries or four, each with less work than the step that was asked
 * for. */
static void host_bytes_lead_the_search(void **state)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction asked;
    struct tdm_method_settings settings = {
        .torch = {.tokens = 1u << 24, .batch = 1, .ranks = 8, .context.gpus_per_node = 8}};
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    uint64_t tokens, work = 0;
    (void)state;
    must(tdm_model_load("llama-3.1-8b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    machine->topology.places[machine->topology.far].capacity_bytes = machine->server_host_bytes;
    must(tdm_method_find("alst", &method, &err), &err);
    must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
    must(tdm_method_need(model, machine, &settings, &asked, &err), &err);
    assert_false(asked.fits_host);
    must(tdm_method_longest_below(model, machine, &settings, MARGIN, &asked, &tokens, &work, &err),
         &err);
    assert_true(work < 4 * asked.work);
    assert_true(tokens > 7u << 20);
    settings.torch.tokens = tokens;
    must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
    assert_true(asked.fits);
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* If the search may do little work, there are fewer remedies or none, and the answer says so. */
static void search_ends_in_time(void **state)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction asked;
    struct tdm_method_settings settings = {.torch = {.tokens = 32768, .batch = 1, .ranks = 1}};
    struct tdm_remedies all, few;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("llama-3.1-70b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    must(tdm_method_find("torch", &method, &err), &err);
    must(tdm_method_apply(method, NULL, 0, &settings, &choices, &err), &err);
    must(tdm_method_predict(model, machine, &settings, MARGIN, &asked, &err), &err);
    must(tdm_method_remedies(method, model, machine, &settings, &choices, MARGIN, &asked, 0, 1,
                             &few, &err),
         &err);
    must(tdm_method_remedies(method, model, machine, &settings, &choices, MARGIN, &asked, 0, 0,
                             &all, &err),
         &err);
    assert_true(!few.complete && few.count == 0);
    assert_true(all.complete && all.count > 0);
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* OOMB with offload runs millions of tokens in chunks of 1K in more than a second. A search with a
 * limit ends such a run; one without it finds that it fits. */
static void long_runs_are_ended(void **state)
{
    static const char *const pairs[] = {"chunk=1K", "kv_offload=yes", "budget=8K"};
    const uint64_t most_work = 400000;
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction p;
    struct tdm_method_settings settings = {.torch = {.tokens = 4 << 20, .batch = 1, .ranks = 1}};
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("llama-3.2-1b", &model, &err), &err);
    must(tdm_machine_load("a100-80", &machine, &err), &err);
    must(tdm_method_find("oomb", &method, &err), &err);
    must(tdm_method_apply(method, pairs, 3, &settings, &choices, &err), &err);
    must(tdm_method_check(model, &settings, &err), &err);
    must(tdm_method_try(model, machine, &settings, MARGIN, 0, &p, &err), &err);
    assert_true(p.fits_device && !p.ended && p.work > 2 * most_work);
    must(tdm_method_try(model, machine, &settings, MARGIN, most_work, &p, &err), &err);
    assert_true(p.ended && !p.fits && p.work < 2 * most_work);
    tdm_model_free(model);
    tdm_machine_free(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_set_is_found),
        cmocka_unit_test(smaller_batch_is_found),
        cmocka_unit_test(selective_recompute_is_before_full),
        cmocka_unit_test(there_is_always_an_answer),
        cmocka_unit_test(every_method_is_answered_in_order),
        cmocka_unit_test(host_memory_is_a_limit),
        cmocka_unit_test(longest_context_is_found),
        cmocka_unit_test(host_bytes_lead_the_search),
        cmocka_unit_test(search_ends_in_time),
        cmocka_unit_test(long_runs_are_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
