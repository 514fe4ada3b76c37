/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions of the shared library: answers by path, refusals, the state of getopt, and
 * threads that ask at the same time. What its tables hold, tests/library/python compares with SQL.
 */
#include "library/tidemark.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_named(void **state)
{
    (void)state;
    struct tidemark_error error;
    tidemark_answer *answer;
    int64_t number;
    double real;
    const char *text;
    assert_int_equal(tidemark_models(NULL, &answer, &error), TIDEMARK_OK);
    assert_int_equal(tidemark_answer_text(answer, "models.0.name", &text), TIDEMARK_OK);
    assert_string_equal(text, "afm-4.5b");
    assert_int_equal(tidemark_answer_text(answer, "models.999.name", &text), TIDEMARK_INPUT);
    assert_int_equal(tidemark_answer_text(answer, "models.x.name", &text), TIDEMARK_INPUT);
    assert_int_equal(tidemark_answer_text(answer, "models.0.name.x", &text), TIDEMARK_INPUT);
    assert_int_equal(tidemark_answer_text(answer, "", &text), TIDEMARK_INPUT);
    assert_int_equal(tidemark_answer_text(answer, "models.0.layers", &text), TIDEMARK_INPUT);
    tidemark_answer_free(answer);

    assert_int_equal(tidemark_models("byte-1m", &answer, &error), TIDEMARK_OK);
    assert_int_equal(tidemark_answer_integer(answer, "layers", &number), TIDEMARK_OK);
    assert_int_equal(number, 4);
    assert_int_equal(tidemark_answer_real(answer, "layers", &real), TIDEMARK_OK);
    assert_float_equal(real, 4, 0);
    assert_int_equal(tidemark_answer_integer(answer, "tied", &number), TIDEMARK_OK);
    assert_int_equal(tidemark_answer_real(answer, "name", &real), TIDEMARK_INPUT);
    assert_non_null(strstr(tidemark_answer_json(answer), "\"tensors\": ["));
    tidemark_answer_free(answer);

    assert_int_equal(tidemark_machines("h200", &answer, NULL), TIDEMARK_OK);
    tidemark_answer_free(answer);
    assert_int_equal(tidemark_machines("h2000", &answer, &error), TIDEMARK_INPUT);
    assert_int_equal(error.status, TIDEMARK_INPUT);
    assert_non_null(strstr(error.message, "h2000"));
    assert_int_equal(tidemark_machines("h2000", &answer, NULL), TIDEMARK_INPUT);
    assert_non_null(strchr(tidemark_version(), '.'));
    tidemark_answer_free(NULL);
}

static enum tidemark_status plan(const char *const *options, tidemark_answer **answer,
                                 struct tidemark_error *error)
{
    return tidemark_plan("byte-1m", options, answer, error);
}

static void test_plan(void **state)
{
    (void)state;
    struct tidemark_error error;
    tidemark_answer *answer;
    int64_t number;
    const char *text;
    static const char *const good[] = {"--context", "512", "--set", "chunk=128", NULL};
    optind = 7;
    assert_int_equal(plan(good, &answer, &error), TIDEMARK_OK);
    assert_int_equal(error.status, TIDEMARK_OK);
    assert_string_equal(error.message, "");
    assert_int_equal(optind, 7);
    assert_int_equal(tidemark_answer_integer(answer, "fits", &number), TIDEMARK_OK);
    assert_int_equal(number, 1);
    assert_int_equal(tidemark_answer_text(answer, "schedule.format", &text), TIDEMARK_OK);
    tidemark_answer_free(answer);

    /* what is short is in the answer */
    static const char *const short_of[] = {"--context", "4K", "--memory", "529M", NULL};
    assert_int_equal(plan(short_of, &answer, &error), TIDEMARK_INFEASIBLE);
    assert_int_equal(tidemark_answer_integer(answer, "fits", &number), TIDEMARK_OK);
    assert_int_equal(number, 0);
    assert_int_equal(tidemark_answer_text(answer, "message", &text), TIDEMARK_OK);
    assert_string_equal(text, error.message);
    tidemark_answer_free(answer);

    static const char *const wrong[][4] = {{"--help", NULL},
                                           {"-h", NULL},
                                           {"--context", NULL},
                                           {"--contex", "512", "--contex=512", NULL},
                                           {"--sweep", "context=1K..2K", NULL},
                                           {"--context=512", "-o", "-", NULL},
                                           {"--context=512", "--", "byte-1m", NULL},
                                           {NULL}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(plan(wrong[i], &answer, &error), TIDEMARK_USAGE);
        assert_string_not_equal(error.message, "");
    }
    assert_int_equal(plan(NULL, &answer, &error), TIDEMARK_USAGE);
}

static void test_predict(void **state)
{
    (void)state;
    struct tidemark_error error;
    tidemark_answer *answer;
    int64_t peak_bytes, number;
    static const char *const torch[] = {"--context", "4K", "-o", "-", NULL};
    assert_int_equal(tidemark_predict("qwen2.5-0.5b", torch, &answer, &error), TIDEMARK_OK);
    assert_int_equal(tidemark_answer_integer(answer, "peak_bytes", &peak_bytes), TIDEMARK_OK);
    assert_int_equal(tidemark_answer_integer(answer, "timeline.step", &number), TIDEMARK_OK);
    tidemark_answer_free(answer);
    static const char *const small[] = {"--context", "4K", "--memory", "2G", NULL};
    assert_int_equal(tidemark_predict("qwen2.5-0.5b", small, &answer, &error), TIDEMARK_INFEASIBLE);
    assert_int_equal(tidemark_answer_integer(answer, "peak_bytes", &number), TIDEMARK_OK);
    assert_int_equal(number, peak_bytes);
    tidemark_answer_free(answer);
    static const char *const own[] = {"--context", "512", "--method", "tidemark", NULL};
    assert_int_equal(tidemark_predict("byte-1m", own, &answer, &error), TIDEMARK_OK);
    tidemark_answer_free(answer);
    static const char *const own_small[] = {"--context", "64K",  "--method", "tidemark",
                                            "--memory",  "546M", NULL};
    assert_int_equal(tidemark_predict("byte-1m", own_small, &answer, &error), TIDEMARK_INFEASIBLE);
    assert_int_equal(tidemark_answer_integer(answer, "fits", &number), TIDEMARK_OK);
    tidemark_answer_free(answer);
    static const char *const picture[] = {"--context", "4K", "-o", "a.png", NULL};
    assert_int_equal(tidemark_predict("byte-1m", picture, &answer, &error), TIDEMARK_USAGE);
}

static void *ask(void *self)
{
    const char *options[] = {"--context", self, NULL};
    int64_t *bytes = calloc(1, sizeof(*bytes));
    for (int i = 0; i < 5 && bytes != NULL; i++) {
        tidemark_answer *answer;
        if (tidemark_predict("qwen2.5-0.5b", options, &answer, NULL) != TIDEMARK_OK)
            break;
        tidemark_answer_integer(answer, "peak_bytes", bytes);
        tidemark_answer_free(answer);
    }
    return bytes;
}

static void test_threads(void **state)
{
    (void)state;
    static char contexts[4][4] = {"1K", "2K", "1K", "2K"};
    pthread_t threads[4];
    void *bytes[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask, contexts[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &bytes[i]), 0);
        assert_non_null(bytes[i]);
    }
    assert_true(*(int64_t *)bytes[0] > 0 && *(int64_t *)bytes[0] < *(int64_t *)bytes[1]);
    assert_int_equal(*(int64_t *)bytes[0], *(int64_t *)bytes[2]);
    assert_int_equal(*(int64_t *)bytes[1], *(int64_t *)bytes[3]);
    for (int i = 0; i < 4; i++)
        free(bytes[i]);
}

static void test_traces(void **state)
{
    (void)state;
    struct tidemark_error error;
    tidemark_trace *trace;
    assert_int_equal(tidemark_trace_open("/nowhere/run.db", &trace, &error), TIDEMARK_IO);
    assert_non_null(strstr(error.message, "/nowhere/run.db"));
    assert_int_equal(tidemark_trace_open("/proc/self/exe", &trace, &error), TIDEMARK_INPUT);
    assert_string_equal(tidemark_trace_table_name(0), "run");
    assert_null(tidemark_trace_table_name(UINT32_MAX));
    tidemark_trace_close(NULL);
    tidemark_table_free(NULL);
}

/* Nothing was printed by any of them. */
static char printed[512];

static int catch_output(void **state)
{
    (void)state;
    snprintf(printed, sizeof(printed), "%s/printed", getenv("TDM_SCRATCH"));
    return 0;
}

static void test_quiet(void **state)
{
    (void)state;
    struct tidemark_error error;
    tidemark_answer *answer;
    static const char *const options[] = {"--context", "512", "--set", "chunk=128", NULL};
    fflush(stdout);
    fflush(stderr);
    int out = dup(1), err = dup(2);
    FILE *file = fopen(printed, "w");
    assert_non_null(file);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    enum tidemark_status status = plan(options, &answer, &error);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    assert_int_equal(status, TIDEMARK_OK);
    tidemark_answer_free(answer);
    fseek(file, 0, SEEK_END);
    assert_int_equal(ftell(file), 0);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named),   cmocka_unit_test(test_plan),
        cmocka_unit_test(test_predict), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_traces),  cmocka_unit_test_setup(test_quiet, catch_output),
    };
    return cmocka_run_group_tests_name("unit_library", tests, NULL, NULL);
}
