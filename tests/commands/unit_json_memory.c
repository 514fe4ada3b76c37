/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of JSON answers when memory runs out. One of Jansson's allocations fails in each run; the
 * answer must be complete, or an error. */
#include "base/json.h"
#include "commands/cmd.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_WORDS 24
#define MOST_RUNS 120u /* runs of one command */

/* Jansson's allocations so far, and the number of the one that fails (0: none). */
static size_t allocations, failing;

static void *allocate(size_t bytes)
{
    return ++allocations == failing ? NULL : malloc(bytes);
}

static void fail_at(size_t number)
{
    allocations = 0;
    failing = number;
}

static int set_up(void **state)
{
    (void)state;
    json_set_alloc_funcs(allocate, free);
    return 0;
}

static char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", getenv("TDM_SCRATCH"), name);
    return path;
}

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return strdup("");
    char *text = calloc(1, 1 << 22);
    assert_non_null(text);
    text[fread(text, 1, (1 << 22) - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Runs a command with its stdout in a file. *out is what it printed; the caller frees it. */
static enum tdm_status run(const struct tdm_command *command, const char *words, char **out)
{
    char copy[1024], *argv[MOST_WORDS + 1], *rest = copy;
    struct tdm_error err = {0};
    int argc = 0;
    snprintf(copy, sizeof(copy), "%s %s", command->name, words);
    for (char *word; (word = strsep(&rest, " ")) != NULL && argc < MOST_WORDS;)
        argv[argc++] = word;
    argv[argc] = NULL;
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    int file = open(path_of("stdout"), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    assert_true(before >= 0 && file >= 0);
    dup2(file, STDOUT_FILENO);
    close(file);
    enum tdm_status status = command->run(argc, argv, &err);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    *out = read_all(path_of("stdout"));
    if (status != TDM_OK)
        assert_true(err.message[0] != '\0');
    return status;
}

/* When an allocation fails, a command prints what it prints with enough memory, or it prints
 * nothing and fails. `written` is a file that it writes in the scratch folder; NULL: none. */
static void check_command(const struct tdm_command *command, const char *words, const char *written)
{
    char *due, *due_file = NULL;
    size_t failures = 0;
    fail_at(0);
    if (written != NULL)
        unlink(path_of(written));
    enum tdm_status status = run(command, words, &due);
    size_t count = allocations, stride = 1 + count / MOST_RUNS;
    if (written != NULL)
        due_file = read_all(path_of(written));
    print_message("tidemark %s %s: %zu allocations\n", command->name, words, count);
    assert_true(status == TDM_OK || status == TDM_INFEASIBLE);
    for (size_t n = count; n >= 1; n = n > stride ? n - stride : 0) {
        char *got;
        if (written != NULL)
            unlink(path_of(written));
        fail_at(n);
        enum tdm_status now = run(command, words, &got);
        failures += now == TDM_NO_MEMORY;
        if (now == status)
            assert_string_equal(got, due);
        else
            assert_string_equal(got, "");
        if (written != NULL) {
            char *file = read_all(path_of(written));
            assert_string_equal(file, now == status ? due_file : "");
            free(file);
        }
        free(got);
    }
    fail_at(0);
    assert_true(failures > 0);
    free(due_file);
    free(due);
}

#define NEST                                                                                         \
    "--set chunk=256 --set groups=2 --set order=layer-major --set inputs=host --set attention=held " \
    "--set weights=device --set moments=device --set master=device"

static void plans_are_whole(void **state)
{
    (void)state;
    char words[1024];
    snprintf(words, sizeof(words), "byte-1m --context 2048 %s --json", NEST);
    check_command(&tdm_cmd_plan, words, NULL);
    snprintf(words, sizeof(words), "byte-1m --context 2048 %s -o %s/plan.json", NEST,
             getenv("TDM_SCRATCH"));
    /* no table is printed either: nothing is said about a plan that could not be written */
    check_command(&tdm_cmd_plan, words, "plan.json");
    check_command(&tdm_cmd_plan, "byte-1m --context 4K --memory 529M --json", NULL);
    snprintf(words, sizeof(words), "byte-1m --sweep memory=529M,2G --context 2048 %s --json", NEST);
    check_command(&tdm_cmd_plan, words, NULL);
}

static void other_answers_are_whole(void **state)
{
    (void)state;
    char words[1024], *out;
    check_command(&tdm_cmd_models, "byte-1m --json", NULL);
    check_command(&tdm_cmd_machines, "h200 --json", NULL);
    check_command(&tdm_cmd_methods, "parallel --json", NULL);
    check_command(&tdm_cmd_doctor, "--json", NULL);
    check_command(&tdm_cmd_predict, "byte-1m --context 1K --method parallel --json", NULL);
    check_command(&tdm_cmd_predict, "byte-1m --context 1K --method parallel -o - --json", NULL);
    check_command(
        &tdm_cmd_predict,
        "byte-1m --context 8M --method parallel --json --set step=1 --set checkpointing=off", NULL);
    snprintf(words, sizeof(words), "byte-1m --context 1K --method tidemark %s --json", NEST);
    check_command(&tdm_cmd_predict, words, NULL);
    check_command(&tdm_cmd_compare, "byte-1m --context 1K --method parallel --json", NULL);
    for (int side = 0; side < 2; side++) {
        snprintf(words, sizeof(words), "byte-1m --context %d %s -o %s/%c.json", 2048 << side, NEST,
                 getenv("TDM_SCRATCH"), 'a' + side);
        fail_at(0);
        assert_int_equal(run(&tdm_cmd_plan, words, &out), TDM_OK);
        free(out);
    }
    snprintf(words, sizeof(words), "%s/a.json %s/b.json --json", getenv("TDM_SCRATCH"),
             getenv("TDM_SCRATCH"));
    check_command(&tdm_cmd_diff, words, NULL);
}

static void builders_note_what_is_missing(void **state)
{
    (void)state;
    fail_at(0);
    json_t *object = json_object(), *array = json_array(), *more = json_pack("{s:i}", "a", 1);
    tdm_json_set(&object, "one", json_integer(1));
    tdm_json_add(&array, json_integer(1));
    tdm_json_merge(&object, more);
    assert_int_equal(json_object_size(object), 2);
    tdm_json_set(&object, "two", NULL);
    tdm_json_add(&array, NULL);
    assert_null(object);
    assert_null(array);
    tdm_json_set(&object, "three", json_integer(3)); /* the value is released */
    tdm_json_add(&array, json_integer(3));
    tdm_json_merge(&object, json_object());
    assert_null(object);
    object = json_object();
    tdm_json_merge(&object, NULL);
    assert_null(object);
    struct tdm_error err;
    assert_int_equal(tdm_json_write(stdout, true, NULL, &err), TDM_NO_MEMORY);
}

static void copies_are_whole(void **state)
{
    (void)state;
    fail_at(0);
    json_t *value = json_pack("{s:i, s:[i, {s:s, s:f}], s:n}", "a", 1, "list", 2, "name", "x",
                              "real", 0.1, "none");
    fail_at(0);
    json_t *copy = tdm_json_copy(value);
    const size_t count = allocations;
    assert_true(count > 8 && json_equal(copy, value));
    json_decref(copy);
    assert_null(tdm_json_copy(NULL));
    for (size_t n = 1; n <= count; n++) {
        fail_at(n);
        assert_null(tdm_json_copy(value));
    }
    fail_at(0);
    json_decref(value);
}

/* Strings of every length: the allocation that fails may be the one for the closing quote. */
static void strings_are_read_whole(void **state)
{
    (void)state;
    size_t failures = 0;
    for (int length = 0; length < 300; length++) {
        char text[400];
        int bytes = snprintf(text, sizeof(text), "{\"%.*s\": [1, \"", length % 40,
                             "a name of one to forty characters, ......");
        memset(text + bytes, 'x', (size_t)length);
        bytes += length;
        bytes += snprintf(text + bytes, sizeof(text) - (size_t)bytes, "\", 2.5]}");
        size_t count = SIZE_MAX;
        for (size_t n = 0; n <= count; n++) {
            json_t *root = NULL;
            struct tdm_error err;
            fail_at(n);
            enum tdm_status status = tdm_json_parse("text", text, (size_t)bytes, &root, &err);
            assert_int_equal(status, n == 0 ? TDM_OK : TDM_NO_MEMORY);
            count = n == 0 ? allocations : count;
            failures += n > 0;
            json_decref(root);
        }
    }
    fail_at(0);
    print_message("%zu failures\n", failures);
    assert_true(failures > 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builders_note_what_is_missing), cmocka_unit_test(copies_are_whole),
        cmocka_unit_test(strings_are_read_whole),        cmocka_unit_test(plans_are_whole),
        cmocka_unit_test(other_answers_are_whole),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
