/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the reference with Hugging Face transformers. Finite differences prove that its backward
 * belongs to its forward; this test proves that its forward is that of the models people train.
 * huggingface.py wrote the expected losses of a few AdamW steps to huggingface.json. They also
 * depend on every gradient, on how configs are read and on the frequencies of RoPE.
 */
#include "tests/reference/reference.h"

#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define TOLERANCE 1e-10
#define MAX_TOKENS 256
#define MAX_SEQUENCES 8

/* mix() of huggingface.py: adds a number to the hash of the numbers before it. The hash of no
 * numbers is 0. */
static uint64_t mix(uint64_t hash, uint64_t number)
{
    uint64_t z = (hash ^ number) + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* fill() of huggingface.py. */
static void fill(const struct tdm_model *model, const struct tdm_tensor *tensor, double *weights)
{
    bool norm = tdm_role_is_norm(tensor->role);
    double reach = tensor->role == TDM_ROLE_EMBEDDING ? 1.5
                   : tensor->rows == 1                ? 0.5
                                                      : 2 / sqrt((double)tensor->columns);
    uint64_t hash = mix(0, tensor->unit < model->layers ? tensor->unit : 1000);

    hash = mix(hash, tensor->role);
    for (uint64_t i = 0; i < tensor->elements; i++)
        weights[i] = (norm ? 1 : 0) + reach * ((double)(mix(hash, i) >> 11) * 0x1p-52 - 1);
}

static double number(const json_t *object, const char *key)
{
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

/* Trains one case and returns the worst relative error of its losses. */
static double run(const json_t *file, const json_t *item)
{
    const json_t *adamw = json_object_get(file, "adamw"), *array = json_object_get(file, "lengths");
    const json_t *losses = json_object_get(item, "losses");
    uint32_t tokens[MAX_TOKENS], targets[MAX_TOKENS];
    uint32_t sequences = (uint32_t)json_array_size(array);
    uint64_t lengths[MAX_SEQUENCES], total = 0;
    struct tdm_reference *reference;
    struct tdm_model *model;
    struct tdm_error err = {0};
    double worst = 0;

    if (tdm_model_from_config("huggingface.json", "huggingface", json_object_get(item, "config"),
                              &model, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tdm_reference_new(model, &reference, &err), TDM_OK);
    for (uint32_t n = 0; n < model->tensor_count; n++)
        fill(model, &model->tensors[n],
             tdm_reference_weights(reference, model->tensors[n].unit) + model->tensors[n].offset);
    assert_in_range(sequences, 1, MAX_SEQUENCES);
    for (uint32_t i = 0; i < sequences; i++) {
        lengths[i] = (uint64_t)json_integer_value(json_array_get(array, i));
        total += lengths[i];
    }
    assert_in_range(total, 1, MAX_TOKENS);
    for (uint64_t t = 0; t < total; t++) {
        tokens[t] = (uint32_t)(mix(mix(0, 2000), t) % model->vocabulary);
        targets[t] = (uint32_t)(mix(mix(0, 2001), t) % model->vocabulary);
    }
    assert_true(json_array_size(losses) > 1);
    for (uint64_t step = 0; step < json_array_size(losses); step++) {
        double expected = json_number_value(json_array_get(losses, step)), loss, error;

        assert_int_equal(
            tdm_reference_step(reference, sequences, lengths, tokens, targets, &loss, &err),
            TDM_OK);
        tdm_reference_adamw(reference, step + 1, number(adamw, "learning_rate"),
                            number(adamw, "beta1"), number(adamw, "beta2"),
                            number(adamw, "epsilon"), number(adamw, "weight_decay"));
        error = fabs(loss - expected) / expected;
        worst = fmax(worst, error);
        if (!(error < TOLERANCE))
            fail_msg("%s step %" PRIu64 ": loss %.15g, expected %.15g", model->architecture,
                     step + 1, loss, expected);
    }
    tdm_reference_free(reference);
    tdm_model_free(model);
    return worst;
}

static void losses_match(void **unused)
{
    const char *source = getenv("TDM_SRCDIR");
    struct tdm_error err = {0};
    const json_t *cases;
    json_t *file;
    char path[4096];

    (void)unused;
    snprintf(path, sizeof(path), "%s/tests/reference/huggingface.json", source ? source : ".");
    if (tdm_json_load(path, &file, &err) != TDM_OK)
        fail_msg("%s", err.message);
    cases = json_object_get(file, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++)
        print_message("case %zu: worst relative error %.1e\n", i,
                      run(file, json_array_get(cases, i)));
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses_match)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
