/* SPDX-License-Identifier: Apache-2.0 */
/* Property: a key has an effect unless it needs something that is missing.
 *
 * Settings of every method are drawn. All keys whose needs are not met may have any of their
 * values, or none: no figure of memory or cost may change. A case compares several settings of
 * every method. In addition, every key with a choice must change a figure in some settings, or it
 * is not needed. These settings are searched for once. */
#include "base/json.h"
#include "methods/prediction.h"
#include "tests/support/cases.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BASE_SEED = 83000,
    SETTINGS = 4,     /* of a method in a case */
    MOST_DRAWS = 400, /* draws to find them */
    EFFECT_DRAWS = 200000,
    MOST_VALUES = 24,
    VALUE_BYTES = 128,
};

/* ---- chance ---- */

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % below);
}

/* ---- models ---- */

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* A model with few layers, so that thousands of steps take seconds, and wide enough to fill buckets
 * of gradients. The three models are tied with biases, untied, and with experts. */
static struct tdm_model *small_model(const char *name)
{
    static const struct {
        const char *name;
        int64_t value;
    } sizes[] = {
        {"num_hidden_layers", 4},    {"vocab_size", 65536},      {"hidden_size", 1024},
        {"num_attention_heads", 16}, {"num_key_value_heads", 8}, {"head_dim", 64},
        {"intermediate_size", 4096}, {"num_experts", 8},         {"moe_intermediate_size", 256}};
    struct tdm_model *shipped, *model;
    struct tdm_error err;
    must(tdm_model_load(name, &shipped, &err), &err);
    json_t *config = json_deep_copy(shipped->config);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (json_object_get(config, sizes[i].name) != NULL)
            json_object_set_new(config, sizes[i].name, json_integer(sizes[i].value));
    must(tdm_model_from_config("test", "test", config, &model, &err), &err);
    json_decref(config);
    tdm_model_free(shipped);
    return model;
}

static const char *const model_names[] = {"qwen2.5-0.5b", "llama-3.1-8b", "qwen3-30b-a3b"};
enum { MODELS = sizeof(model_names) / sizeof(model_names[0]) };

/* ---- values ---- */

struct values {
    char text[MOST_VALUES][VALUE_BYTES];
    uint32_t count;
};

static void add_value(struct values *v, const char *text, size_t length)
{
    assert_true(v->count < MOST_VALUES && length < VALUE_BYTES);
    memcpy(v->text[v->count], text, length);
    v->text[v->count++][length] = '\0';
}

/* The values to try for a pattern such as "a|N|x,y": a, some numbers, and of a list all items, the
 * first and the last. */
static void values_of(const struct tdm_method_key *key, struct values *v)
{
    static const char *const numbers[] = {"0",  "1",   "2",    "3",      "4",       "8",
                                          "64", "256", "1024", "100000", "10000000"};
    static const char *const pairs[] = {"1,2", "2,1", "2,2", "4,2"};
    static const char *const layouts[] = {"Et|tttL", "Ettt|tL", "E(t|)*3tL", "Et*3|t||L"};
    v->count = 0;
    for (const char *word = key->values; *word != '\0';) {
        size_t span = strcspn(word, "|"), comma = strcspn(word, ",");
        if (span == 1 && *word == 'N') {
            for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                add_value(v, numbers[i], strlen(numbers[i]));
        } else if (span == 1 && *word == 'F') {
            add_value(v, "0.5", strlen("0.5"));
            add_value(v, "2", strlen("2"));
        } else if (span == 5 && memcmp(word, "MODEL", span) == 0) {
            add_value(v, "qwen2.5-0.5b", strlen("qwen2.5-0.5b"));
        } else if (span == 3 && memcmp(word, "A,B", span) == 0) {
            for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
                add_value(v, pairs[i], strlen(pairs[i]));
        } else if (span == 6 && memcmp(word, "LAYOUT", span) == 0) {
            for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
                add_value(v, layouts[i], strlen(layouts[i]));
        } else {
            add_value(v, word, span);
            if (comma < span) {
                size_t last = span;
                while (word[last - 1] != ',')
                    last--;
                add_value(v, word, comma);
                add_value(v, word + last, span - last);
            }
        }
        word += span + (word[span] == '|');
    }
}

/* ---- figures ---- */

/* Mixes a value into `sum`, which stands for all figures of predict and compare. */
static void mix(uint64_t *sum, uint64_t value)
{
    *sum = (*sum ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    *sum ^= *sum >> 29;
}

static void mix_real(uint64_t *sum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    mix(sum, bits);
}

static void mix_step(uint64_t *sum, const struct tdm_method_step *step)
{
    const struct tdm_torch_step *t = &step->torch;
    const uint64_t numbers[] = {
        step->number,      step->used_bytes, step->end_used_bytes, t->before_bytes,
        t->peak.allocated, t->peak.reserved, t->peak.requested,    t->end_reserved_bytes,
        t->host_bytes,     t->largest_count, t->peak_phase,        t->unmade,
        t->failed,         t->retries};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        mix(sum, numbers[i]);
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++) {
        mix(sum, t->end_bytes[p]);
        mix(sum, t->highest_bytes[p]);
        mix(sum, t->phases[p].allocated);
    }
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        mix(sum, t->categories[c]);
    for (uint32_t i = 0; i < t->largest_count; i++)
        mix(sum, t->largest[i].bytes);
}

static uint64_t figures(const struct tdm_model *model, const struct tdm_machine *machine,
                        const struct tdm_method_settings *settings)
{
    struct tdm_method_prediction p;
    struct tdm_method_cost cost;
    struct tdm_error err;
    uint64_t sum = 0;
    must(tdm_method_predict(model, machine, settings, 0.03, &p, &err), &err);
    const uint64_t numbers[] = {p.parameters_bytes,
                                tdm_torch_runtime_bytes(&p.runtime),
                                p.count,
                                p.highest,
                                p.fits,
                                p.gives_back,
                                p.kept_bytes};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        mix(&sum, numbers[i]);
    for (uint32_t i = 0; i < p.count; i++)
        mix_step(&sum, &p.steps[i]);
    settings->method->cost(model, settings, &cost);
    const double reals[] = {cost.product_flops,
                            cost.attention_flops,
                            tdm_method_sent_bytes(&cost),
                            cost.exposed.node,
                            cost.exposed.network,
                            cost.host_bytes,
                            cost.sequences,
                            tdm_method_seconds(&cost, model, machine)};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
        mix_real(&sum, reals[i]);
    return sum;
}

/* ---- draws ---- */

struct drawn {
    const struct tdm_method *method;
    size_t keys;
    const struct tdm_method_key *key[TDM_METHOD_MOST_KEYS + 1];
    struct values values[TDM_METHOD_MOST_KEYS];
    const struct tdm_machine *machine;
    const struct tdm_model *model;
    uint64_t tokens, batch, gpus;
    struct tdm_method_choices choices;
};

/* Draws settings in which two of three keys are not given. */
static void draw_settings(uint64_t *state, struct tdm_model *const *models, struct drawn *d)
{
    d->model = models[draw(state, MODELS)];
    d->tokens = UINT64_C(2048) << draw(state, 2);
    d->batch = 1 + draw(state, 2);
    d->gpus = d->method->most_gpus == 1 ? 1 : UINT64_C(1) << draw(state, 5);
    memset(&d->choices, 0, sizeof(d->choices));
    for (size_t k = 0; k < d->keys; k++) {
        uint32_t i = draw(state, 3 * d->values[k].count);
        if (i < d->values[k].count)
            d->choices.said[k] = d->values[k].text[i];
    }
}

/* Whether the drawn settings can be run. */
static bool settle(const struct drawn *d, struct tdm_method_settings *settings)
{
    struct tdm_error err;
    *settings = (struct tdm_method_settings){
        .torch = {.tokens = d->tokens, .batch = d->batch, .ranks = d->gpus}};
    return tdm_method_settle(d->method, &d->choices, settings, &err) == TDM_OK &&
           tdm_method_check(d->model, settings, &err) == TDM_OK;
}

/* ---- keys without effect ---- */

/* Counts over the settings of a method. */
struct tally {
    uint64_t drawn, settled;    /* settings, and those that can be run */
    uint64_t compared, changed; /* those compared with other values of some keys; the keys */
};

/* Finds what each key needs and lacks (NULL: nothing). False if the settings cannot be run. */
static bool find_unmet(const struct drawn *d,
                       const struct tdm_key_need *unmet[TDM_METHOD_MOST_KEYS])
{
    struct tdm_method_settings settings;
    if (!settle(d, &settings))
        return false;
    const struct tdm_key_case c = {
        .model = d->model, .settings = &settings, .choices = &d->choices};
    for (size_t k = 0; k < d->keys; k++)
        unmet[k] = tdm_key_unmet(d->key[k], &c);
    return true;
}

static void fail_drawn(const struct drawn *d, uint64_t seed, size_t key, const char *unmet)
{
    char said[2048] = "";
    for (size_t k = 0; k < d->keys; k++)
        if (d->choices.said[k] != NULL) {
            size_t used = strlen(said);
            snprintf(said + used, sizeof(said) - used, " %s=%.64s", d->key[k]->name,
                     d->choices.said[k]);
        }
    tdm_case_again("methods/property_keys", seed);
    fail_msg("seed %" PRIu64 ": %s has an effect %s: %s of %s, %" PRIu64 " tokens, batch %" PRIu64
             ", %" PRIu64 " GPUs,%s",
             seed, d->key[key]->name, unmet, d->method->name, d->model->name, d->tokens, d->batch,
             d->gpus, said);
}

/* Gives keys the values of other choices one by one. Fails at the first key that changes a figure
 * although its needs are not met. */
static void fail_first(struct drawn *d, const struct tdm_method_choices *others, uint64_t seed)
{
    const struct tdm_key_need *unmet[TDM_METHOD_MOST_KEYS];
    struct tdm_method_settings settings;
    for (size_t k = 0; k < d->keys; k++) {
        if (!find_unmet(d, unmet) || !settle(d, &settings))
            return;
        uint64_t before = figures(d->model, d->machine, &settings);
        d->choices.said[k] = others->said[k];
        if (unmet[k] != NULL && settle(d, &settings) &&
            figures(d->model, d->machine, &settings) != before)
            fail_drawn(d, seed, k, unmet[k]->unmet);
    }
}

/* Draws other values for the keys whose needs are not met. A value is kept if the settings can be
 * run and the same keys have unmet needs. Returns the number of keys changed. */
static uint32_t draw_others(uint64_t *state, struct drawn *d)
{
    const struct tdm_key_need *unmet[TDM_METHOD_MOST_KEYS], *now[TDM_METHOD_MOST_KEYS];
    uint32_t changed = 0;
    bool same = find_unmet(d, unmet);
    assert_true(same);
    for (size_t k = 0; k < d->keys; k++) {
        const char *said = d->choices.said[k];
        uint32_t i = draw(state, d->values[k].count + 1);
        if (unmet[k] == NULL)
            continue;
        d->choices.said[k] = i < d->values[k].count ? d->values[k].text[i] : NULL;
        same = find_unmet(d, now);
        for (size_t other = 0; other < d->keys && same; other++)
            same = (unmet[other] == NULL) == (now[other] == NULL);
        if (!same)
            d->choices.said[k] = said;
        changed += d->choices.said[k] != said;
    }
    return changed;
}

static void try_settings(struct drawn *d, uint64_t *state, uint64_t seed, struct tally *tally)
{
    struct tdm_method_settings settings;
    uint64_t before, after;
    if (!settle(d, &settings))
        return;
    tally->settled++;
    struct tdm_method_choices first = d->choices;
    uint32_t changed = draw_others(state, d);
    if (changed == 0)
        return;
    tally->compared++;
    tally->changed += changed;
    before = figures(d->model, d->machine, &settings);
    assert_true(settle(d, &settings));
    after = figures(d->model, d->machine, &settings);
    if (before != after) {
        struct tdm_method_choices others = d->choices;
        d->choices = first;
        fail_first(d, &others, seed);
    }
}

/* ---- keys with an effect ---- */

/* Whether the values of a key, or leaving it out, give different figures. */
static bool has_effect(struct drawn *d, size_t k)
{
    const char *said = d->choices.said[k];
    uint32_t count = 0;
    bool differs = false;
    uint64_t first = 0;
    for (uint32_t i = 0; i <= d->values[k].count && !differs; i++) {
        struct tdm_method_settings settings;
        d->choices.said[k] = i < d->values[k].count ? d->values[k].text[i] : NULL;
        if (!settle(d, &settings))
            continue;
        uint64_t sum = figures(d->model, d->machine, &settings);
        first = count++ > 0 ? first : sum;
        differs = sum != first;
    }
    d->choices.said[k] = said;
    return differs;
}

/* Notes the keys that change a figure of the settings. */
static void look_for_effects(struct drawn *d, const struct tdm_method_settings *settings,
                             bool *effect)
{
    const struct tdm_key_case c = {.model = d->model, .settings = settings, .choices = &d->choices};
    for (size_t k = 0; k < d->keys; k++)
        if (!effect[k] && tdm_key_unmet(d->key[k], &c) == NULL)
            effect[k] = has_effect(d, k);
}

/* Keys without effect in one method. The method shares their table with others because of its other
 * keys. fully_shard casts adapters of either dtype, ZeRO-3 refuses DoRA,
 * compiled layers of divided sequences are not modelled with their checkpoints. NULL: in all
 * methods. No model that is drawn has a vision tower. Four layers are divided with both ends that
 * count or with neither, into the same stages; unit_megatron has others. */
static const struct {
    const char *method, *key;
} always_vain[] = {{"fsdp", "lora"},
                   {"zero3", "use_dora"},
                   {"torch-cp", "checkpoint_wrapper"},
                   {"ring", "checkpoint_wrapper"},
                   {"double-ring", "checkpoint_wrapper"},
                   {"ulysses", "checkpoint_wrapper"},
                   {"usp", "checkpoint_wrapper"},
                   {"zero3-offload", "use_dora"},
                   {NULL, "use_rslora"},
                   {NULL, "image_tokens"},
                   {NULL, "clip_grad"},
                   {NULL, "account_for_embedding_in_pipeline_split"},
                   {NULL, "account_for_loss_in_pipeline_split"},
                   {"burst", "gradient_accumulation_steps"},
                   {"deepspeed-zero1", "max_grad_norm"},
                   {"zero2", "max_grad_norm"},
                   {"zero3", "max_grad_norm"},
                   {"zero3-offload", "max_grad_norm"},
                   {"alst", "max_grad_norm"},
                   {"fpdt", "max_grad_norm"}};

static bool is_always_vain(const struct drawn *d, size_t k)
{
    bool is = false;
    for (size_t i = 0; i < sizeof(always_vain) / sizeof(always_vain[0]); i++)
        is |= (always_vain[i].method == NULL ||
               strcmp(d->method->name, always_vain[i].method) == 0) &&
              strcmp(d->key[k]->name, always_vain[i].key) == 0;
    return is;
}

/* A key with a choice that changed nothing so far; NULL: none. */
static const char *idle_key(const struct drawn *d, const bool *effect)
{
    for (size_t k = 0; k < d->keys; k++)
        if (d->values[k].count > 1 && !effect[k] && !is_always_vain(d, k))
            return d->key[k]->name;
    return NULL;
}

/* ---- all methods ---- */

struct bench {
    struct tdm_model *models[MODELS];
    struct tdm_machine *machine;
};

static int open_bench(void **state)
{
    static struct bench bench;
    struct tdm_error err;
    must(tdm_machine_load("b200", &bench.machine, &err), &err); /* has all recipes of 8 bits */
    for (unsigned i = 0; i < MODELS; i++)
        bench.models[i] = small_model(model_names[i]);
    *state = &bench;
    return 0;
}

static int close_bench(void **state)
{
    struct bench *bench = *state;
    for (unsigned i = 0; i < MODELS; i++)
        tdm_model_free(bench->models[i]);
    tdm_machine_free(bench->machine);
    return 0;
}

static void begin_method(struct drawn *d, const struct tdm_method *method,
                         const struct bench *bench)
{
    *d = (struct drawn){.method = method, .machine = bench->machine};
    for (; (d->key[d->keys] = tdm_method_key(method, d->keys)) != NULL; d->keys++) {
        assert_true(d->keys + 1 < TDM_METHOD_MOST_KEYS); /* no key is left out */
        values_of(d->key[d->keys], &d->values[d->keys]);
    }
}

static void unmet_keys_have_no_effect(void **state)
{
    const struct bench *bench = *state;
    uint64_t cases = tdm_case_count(4, 40);
    struct drawn d;
    struct tally all = {0};
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++) {
        struct tally tally = {0};
        if (method->system == NULL)
            continue;
        begin_method(&d, method, bench);
        for (uint64_t n = 0; n < cases; n++) {
            uint64_t seed = tdm_case_seed(BASE_SEED, n), random = seed,
                     end = tally.compared + SETTINGS;
            for (int i = 0; i < MOST_DRAWS && tally.compared < end; i++) {
                draw_settings(&random, bench->models, &d);
                try_settings(&d, &random, seed, &tally);
                tally.drawn++;
            }
        }
        all.drawn += tally.drawn;
        all.settled += tally.settled;
        all.compared += tally.compared;
        all.changed += tally.changed;
        if (tally.compared < cases * SETTINGS / 2)
            fail_msg("of %" PRIu64 " settings of %s only %" PRIu64 " were compared", tally.drawn,
                     method->name, tally.compared);
    }
    print_message("%" PRIu64 " cases from seed %" PRIu64 ": %" PRIu64
                  " settings of methods with other values of %" PRIu64
                  " keys whose needs are not met\n",
                  cases, tdm_case_seed(BASE_SEED, 0), all.compared, all.changed);
    assert_true(tdm_case_enough("settings drawn can be run", all.settled, all.drawn, 0.05));
}

static void every_key_has_an_effect(void **state)
{
    const struct bench *bench = *state;
    uint64_t seed = tdm_case_seed(BASE_SEED, 0), keys = 0;
    struct drawn d;
    for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++) {
        bool effect[TDM_METHOD_MOST_KEYS] = {false};
        struct tdm_method_settings settings;
        uint64_t random = seed;
        if (method->system == NULL)
            continue;
        begin_method(&d, method, bench);
        for (uint32_t i = 0; i < EFFECT_DRAWS && idle_key(&d, effect) != NULL; i++) {
            draw_settings(&random, bench->models, &d);
            if (settle(&d, &settings))
                look_for_effects(&d, &settings, effect);
        }
        if (idle_key(&d, effect) != NULL)
            fail_msg("seed %" PRIu64 ": %s of %s has no effect in any of %d draws", seed,
                     idle_key(&d, effect), method->name, EFFECT_DRAWS);
        for (size_t k = 0; k < d.keys; k++)
            keys += effect[k];
    }
    print_message("%" PRIu64 " keys of methods have an effect\n", keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unmet_keys_have_no_effect),
        cmocka_unit_test(every_key_has_an_effect),
    };
    return cmocka_run_group_tests(tests, open_bench, close_bench);
}
