/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the readers of YAML and TOML: what they make of a text, as JSON, or what they say. Also
 * every text is cut after each of its bytes. */
#include "base/json.h"
#include "base/toml.h"
#include "base/yaml.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

typedef enum tdm_status parser(const char *file, const char *text, size_t bytes, json_t **root,
                               struct tdm_error *err);

static const struct example {
    const char *text, *expected; /* JSON, or a message, which begins with "f: " */
} yaml_examples[] = {
    {"a: 1\nb: -2.5e3\nc: 25e-2\nd: 500_000\n", "{\"a\":1,\"b\":-2500.0,\"c\":0.25,\"d\":500000}"},
    {"a: yes\nb: 'yes'\nc: Off\nd: ~\ne:\nf: null\n",
     "{\"a\":true,\"b\":\"yes\",\"c\":false,\"d\":null,\"e\":null,\"f\":null}"},
    {"a:\n- b\n- [c, 2]\nd: {e: f g}\n# end\n", "{\"a\":[\"b\",[\"c\",2]],\"d\":{\"e\":\"f g\"}}"},
    {"a: |\n  two\n  lines\nb: \"x\\ty\"\nc: -x\nd: 1.2.3\ne: 12 GiB\n",
     "{\"a\":\"two\\nlines\\n\",\"b\":\"x\\ty\",\"c\":\"-x\",\"d\":\"1.2.3\",\"e\":\"12 GiB\"}"},
    {"--num-layers: 12\n--load: ${PATH}\n", "{\"--load\":\"${PATH}\",\"--num-layers\":12}"},
    {"a: 99999999999999999999\n", "{\"a\":1e20}"},
    {"a: 1\na: 2\n", "f: line 2, column 1: the key is there twice, with different values"},
    {"a: [1, x]\nb: 2\na: [1, x]\n", "{\"a\":[1,\"x\"],\"b\":2}"},
    {"a: &x 1\nb: *x\n", "f: line 2, column 4: aliases are not read"},
    {"<<: {a: 1}\n", "f: line 1, column 1: merge keys are not read"},
    {"a: !!str 1\n", "f: line 1, column 4: tags are not read"},
    {"[1]: 2\n", "f: line 1, column 1: expected a word as a key"},
    {"- a\n- b\n", "f: line 1, column 1: expected keys and values at the top"},
    {"a: 1\n---\nb: 1\n", "f: line 2, column 1: expected one document"},
    {"# nothing\n", "f: is empty; expected YAML"},
    {"a: [1\n", "f: line 2, column 1: not valid YAML: did not find expected ',' or ']'"},
    {NULL, NULL},
};

static const struct example toml_examples[] = {
    {"# all\n[a]\nb = 1 # one\nc=\"x#y\"\n[a.d]\ne = [1, 2,\n 3, # three\n]\n",
     "{\"a\":{\"b\":1,\"c\":\"x#y\",\"d\":{\"e\":[1,2,3]}}}"},
    {"a.b = true\na.'c d' = false\n\"e\" = 'C:\\x'\nf = \"\\t\\\"\\\\\"\n",
     "{\"a\":{\"b\":true,\"c d\":false},\"e\":\"C:\\\\x\",\"f\":\"\\t\\\"\\\\\"}"},
    {"a = 0.25\nb = -1\nc = 1_000\nd = 0.5\ne = []\n\r\n",
     "{\"a\":0.25,\"b\":-1,\"c\":1000,\"d\":0.5,\"e\":[]}"},
    {"a = 1\na = 2\n", "f: line 2: the key is there twice"},
    {"[a]\n[b]\n[a]\n", "f: line 3: the table is there twice"},
    {"a = 1\n[a]\n", "f: line 2: the table is a key of another kind"},
    {"a = 1\na.b = 1\n", "f: line 2: a key is below one that is no table"},
    {"a = {b = 1}\n", "f: line 1: inline tables are not read"},
    {"[[a]]\n", "f: line 1: arrays of tables are not read"},
    {"a = \"\"\"x\n\"\"\"\n", "f: line 1: strings of several lines are not read"},
    {"a = 2026-11-26\n", "f: line 1: expected a number; dates are not read"},
    {"\na = b\n", "f: line 2: expected a string in quotes, a number, true, false or an array"},
    {"a = 1__0\n", "f: line 1: expected a string in quotes, a number, true, false or an array"},
    {"a = 1 b = 2\n", "f: line 1: expected the end of the line"},
    {"a = \"x\n", "f: line 1: a string does not end on its line"},
    {"a = \"\\q\"\n", "f: line 1: expected one of b, t, n, f, r, \" and \\ behind a backslash"},
    {"a = [1 2]\n", "f: line 1: expected a comma or the end of the array"},
    {"a\n", "f: line 1: expected \"=\" behind a key"},
    {"= 1\n", "f: line 1: expected a key"},
    {"a = 1e999\n", "f: line 1: a number is too large"},
    {NULL, NULL},
};

static void check(parser *parse, const struct example *example)
{
    struct tdm_error err = {.status = TDM_OK};
    json_t *root = NULL;
    char *text = NULL;
    if (parse("f", example->text, strlen(example->text), &root, &err) == TDM_OK) {
        text = tdm_json_canonical(root);
        assert_string_equal(text, example->expected);
    } else {
        assert_int_equal(err.status, TDM_INPUT);
        assert_string_equal(err.message, example->expected);
    }
    free(text);
    json_decref(root);
}

/* What is left of a text is a value or an error, whatever is cut off. */
static void check_cuts(parser *parse, const char *text)
{
    for (size_t bytes = 0; bytes < strlen(text); bytes++) {
        struct tdm_error err = {.status = TDM_OK};
        json_t *root = NULL;
        char *cut = strndup(text, bytes);
        assert_non_null(cut);
        enum tdm_status status = parse("f", cut, bytes, &root, &err);
        assert_true(status == TDM_OK || status == TDM_INPUT);
        json_decref(root);
        free(cut);
    }
}

static void check_all(parser *parse, const struct example *examples)
{
    for (; examples->text != NULL; examples++) {
        check(parse, examples);
        check_cuts(parse, examples->text);
    }
}

static void test_yaml(void **state)
{
    (void)state;
    check_all(tdm_yaml_parse, yaml_examples);
}

static void test_toml(void **state)
{
    (void)state;
    check_all(tdm_toml_parse, toml_examples);
}

/* Values inside values inside ... end at a depth that the stack holds. */
static void test_depth(void **state)
{
    (void)state;
    char text[4096] = "a = ";
    struct tdm_error err;
    json_t *root = NULL;
    memset(text + 4, '[', 2000);
    assert_int_equal(tdm_toml_parse("f", text, strlen(text), &root, &err), TDM_INPUT);
    text[2] = ' ';
    text[1] = ':';
    assert_int_equal(tdm_yaml_parse("f", text, strlen(text), &root, &err), TDM_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_toml),
        cmocka_unit_test(test_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
