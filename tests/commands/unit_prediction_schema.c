/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of predict as JSON have the form that docs/prediction.schema.json says: of every method,
 * whether they fit or not. The schema describes every key, but those of tidemark's own schedule and
 * of serving. */
#include "base/json.h"
#include "commands/answers.h"
#include "methods/method.h"
#include "tests/support/json_schema.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORDS 24

static json_t *schema;

static int load_schema(void **state)
{
    char path[1024];
    struct tdm_error err;
    (void)state;
    snprintf(path, sizeof(path), "%s/docs/prediction.schema.json", getenv("TDM_SRCDIR"));
    return tdm_json_load(path, &schema, &err) == TDM_OK ? 0 : -1;
}

static int drop_schema(void **state)
{
    (void)state;
    json_decref(schema);
    return 0;
}

static json_t *answer_of(const char *line)
{
    char text[512], *words[MOST_WORDS] = {NULL}, *rest = text;
    int count = 0;
    json_t *answer = NULL;
    struct tdm_error err = {.status = TDM_OK};
    snprintf(text, sizeof(text), "predict %s", line);
    for (char *word; count + 1 < MOST_WORDS && (word = strsep(&rest, " ")) != NULL;)
        words[count++] = word;
    enum tdm_status status = tdm_predict_answer(count, words, &answer, &err);
    if (status != TDM_OK && status != TDM_INFEASIBLE)
        fail_msg("predict %s: %s", line, err.message);
    assert_non_null(answer);
    return answer;
}

/* All keys of other systems' answers are described. */
static void check_described(const char *line, const json_t *answer)
{
    const char *key;
    json_t *value;
    if (strcmp(json_string_value(json_object_get(answer, "method")), "tidemark") == 0 ||
        json_object_get(answer, "mode") != NULL)
        return;
    json_object_foreach((json_t *)answer, key, value)
    {
        if (json_object_get(json_object_get(schema, "properties"), key) == NULL)
            fail_msg("predict %s: \"%s\" is not described", line, key);
    }
}

/* The peak of a step is the largest of its phases', unless the model itself has no room. */
static void check_phases(const json_t *answer)
{
    size_t i;
    json_t *step, *phase;
    const char *name;
    json_array_foreach((json_t *)json_object_get(answer, "steps"), i, step)
    {
        json_int_t most = 0, peak;
        json_object_foreach(json_object_get(step, "phases"), name, phase)
        {
            peak = json_integer_value(json_object_get(phase, "peak_allocated_bytes"));
            most = peak > most ? peak : most;
        }
        if (json_object_size(json_object_get(step, "phases")) > 0)
            assert_int_equal(most,
                             json_integer_value(json_object_get(step, "peak_allocated_bytes")));
    }
}

static void check_answer(const char *line)
{
    char problem[JSON_SCHEMA_PROBLEM];
    json_t *answer = answer_of(line);
    if (!json_schema_check(schema, answer, problem))
        fail_msg("predict %s: %s", line, problem);
    check_described(line, answer);
    check_phases(answer);
    json_decref(answer);
}

static void test_methods(void **state)
{
    (void)state;
    for (const struct tdm_method *m = tdm_methods(); m->name != NULL; m++) {
        char line[256];
        snprintf(line, sizeof(line), "llama-2-7b --context 2K --method %s --gpus %d", m->name,
                 m->most_gpus > 1 && m->system != NULL ? 2 : 1);
        check_answer(line);
        strncat(line, " --memory 12G", sizeof(line) - strlen(line) - 1);
        check_answer(line);
    }
}

static void test_settings(void **state)
{
    (void)state;
    check_answer("qwen2.5-7b --context 256K --set lora_targets=q_proj");
    check_answer("qwen2.5-0.5b --context 2K -o -");
    check_answer("qwen2.5-0.5b --context 2K --gpus 4 --nodes 2 --method zero3");
    check_answer("qwen2.5-7b --context 8K --mode serve");
    check_answer("qwen2.5-7b --context 128K --method zero3-offload --gpus 8 --host-memory 8G");
}

/* The validator sees what is wrong. */
static void test_validator(void **state)
{
    static const char *const wrong[][2] = {
        {"peak_bytes", "\"1\""},      {"context", "-1"},       {"fits", "null"},
        {"binding", "\"network\""},   {"format", "\"other\""}, {"assumed", "[1]"},
        {"steps", "[{\"step\": 1}]"}, {"remedies", "[{}]"},
    };
    char problem[JSON_SCHEMA_PROBLEM];
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        json_t *answer = answer_of("qwen2.5-0.5b --context 2K");
        assert_true(json_schema_check(schema, answer, problem));
        json_object_set_new(answer, wrong[i][0], json_loads(wrong[i][1], JSON_DECODE_ANY, NULL));
        assert_false(json_schema_check(schema, answer, problem));
        json_object_del(answer, wrong[i][0]);
        if (strcmp(wrong[i][0], "remedies") != 0)
            assert_false(json_schema_check(schema, answer, problem));
        json_decref(answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_validator),
    };
    return cmocka_run_group_tests(tests, load_schema, drop_schema);
}
