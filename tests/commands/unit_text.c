/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of cleaning text for display, and of the stable sort. */
#include "base/json.h"
#include "base/sort.h"
#include "base/status.h"
#include "base/text.h"
#include "commands/kind_times.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_clean(void **state)
{
    (void)state;
    static const struct {
        const char *text, *clean;
    } cases[] = {
        {"", ""},
        {"plain text, ~", "plain text, ~"},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x8a",
         "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x8a"},
        {"\x1b[31mred\x1b[0m", "?[31mred?[0m"},
        {"tab\tline\nbell\a del\x7f", "tab?line?bell? del?"},
        {"c1 \xc2\x9b\xc2\x80 \xc2\xa0", "c1 ?? \xc2\xa0"},
        {"latin \xe4\xf6", "latin ??"},
        {"cut \xe2\x82", "cut ??"},
        {"cut \xf0\x9f\x8c", "cut ???"},
        {"\x80", "?"},
        {"overlong \xc0\xaf \xe0\x80\xaf", "overlong ?? ???"},
        {"surrogate \xed\xa0\x80", "surrogate ???"},
        {"beyond \xf4\x90\x80\x80 \xf8", "beyond ???? ?"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", cases[i].text);
        assert_string_equal(tdm_text_clean(text), cases[i].clean);
        json_t *json = tdm_json_text(cases[i].text);
        assert_string_equal(json_string_value(json), cases[i].clean);
        json_decref(json);
    }
    /* Jansson accepts every cleaned text */
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        char text[9];
        for (size_t i = 0; i < sizeof(text); i++)
            text[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        text[8] = '\0';
        json_t *json = json_string(tdm_text_clean(text));
        assert_non_null(json);
        json_decref(json);
    }
}

static void test_messages(void **state)
{
    (void)state;
    struct tdm_error err;
    char name[2000];
    tdm_fail(&err, TDM_INPUT, "%s: no", "a\x1b[2J\xff");
    assert_string_equal(err.message, "a?[2J?: no");
    tdm_hint(&err, "use %s", "\n");
    assert_string_equal(err.hint, "use ?");
    tdm_about(&err, "b\a");
    assert_string_equal(err.message, "b?: a?[2J?: no");
    for (size_t i = 0; i + 2 < sizeof(name); i += 2)
        memcpy(name + i, "\xc3\xa4", 3);
    for (int shift = 0; shift < 2; shift++) { /* one of the two cuts a character */
        tdm_fail(&err, TDM_INPUT, "%s%s", shift == 0 ? "" : "a", name);
        json_t *json = json_string(err.message);
        assert_non_null(json);
        json_decref(json);
    }
}

struct item {
    int key, number;
};

static int by_key(const void *left, const void *right)
{
    const struct item *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

static void test_sort(void **state)
{
    (void)state;
    struct item items[100];
    unsigned seed = 7;
    for (size_t count = 0; count <= 100; count += 10) {
        for (size_t i = 0; i < count; i++)
            items[i] = (struct item){(int)((seed = seed * 1664525u + 1013904223u) >> 29), (int)i};
        tdm_sort_stable(items, count, sizeof(items[0]), by_key);
        for (size_t i = 1; i < count; i++)
            assert_true(items[i - 1].key < items[i].key || (items[i - 1].key == items[i].key &&
                                                            items[i - 1].number < items[i].number));
    }
}

/* Kinds whose predictions are equally wrong keep the order of the step. */
static void test_equal_kinds(void **state)
{
    (void)state;
    struct tdm_trace_time_row rows[TDM_OP_KINDS] = {{.kind = TDM_OP_PRODUCT}};
    struct tdm_kind_time kinds[TDM_OP_KINDS];
    for (int i = 0; i < TDM_OP_KINDS; i++)
        rows[i] = (struct tdm_trace_time_row){.kind = (enum tdm_op_kind)(TDM_OP_KINDS - 1 - i),
                                              .ops = 1,
                                              .predicted_seconds = 1,
                                              .measured_seconds = i == 3 ? 5 : 2};
    assert_int_equal(tdm_kind_times(rows, TDM_OP_KINDS, kinds), TDM_OP_KINDS);
    assert_int_equal(kinds[0].kind, rows[3].kind);
    for (int i = 1; i < TDM_OP_KINDS; i++)
        assert_int_equal(kinds[i].kind, rows[i <= 3 ? i - 1 : i].kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_sort),
        cmocka_unit_test(test_equal_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
