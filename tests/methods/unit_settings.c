/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of settings of PyTorch, of adapters and of optimizers: predicted steps against those that
 * PyTorch made (tests/data/step_settings.csv, by bench/torch_settings.py). */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 128u
#define PATH_BYTES 1024u
#define MOST_PAIRS 16u
/* Blocks are multiples of 512 bytes, and some tens of tensors are smaller; so are states of norms.
 */
#define ROUNDING UINT64_C(6144)
#define ROUNDING_OF_STATES UINT64_C(20480)

/* A CPU makes a copy in fp32 of bf16 that is added to fp32 or multiplied by it, a GPU does not: of
 * 128 tokens and 512 or 128 columns, of a weight of 512 x 256, of LoKr's matrix of 128 x 64. */
static const struct {
    const char *settings;
    uint64_t bytes;
} cpu_copies[] = {{"VERA", 262144},
                  {"LOHA lora_rank=8 lora=peft autocast", 524288},
                  {"LOKR lora_rank=8 decompose_factor=4 lora=peft autocast", 32768},
                  {"BOFT", 65536}};

struct row {
    char config[32], settings[96];
    uint64_t kept, peak, state, first, second, trained;
};

static bool read_row(FILE *file, struct row *r)
{
    char line[256];
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line,
                   "%31[^,],%95[^,],%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64
                   ",%" SCNu64,
                   r->config, r->settings, &r->kept, &r->peak, &r->state, &r->first, &r->second,
                   &r->trained) == 8)
            return true;
    return false;
}

static const char *source(void)
{
    const char *folder = getenv("TDM_SRCDIR");
    return folder == NULL ? "." : folder;
}

static void predict(const struct row *row, struct tdm_method_prediction *p, uint64_t *trained)
{
    char path[PATH_BYTES], words[sizeof(row->settings)], *rest;
    const char *pairs[MOST_PAIRS] = {"attention=eager"};
    struct tdm_method_settings settings = {.torch = {.tokens = TOKENS, .batch = 1, .ranks = 1}};
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_machine *machine = NULL;
    struct tdm_model *model = NULL;
    struct tdm_error err = {.message = ""};
    size_t count = 1;
    memcpy(words, row->settings, sizeof(words));
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        pairs[count++] = word;
    if (strstr(row->settings, "logits=") == NULL)
        pairs[count++] = "logits=base";
    if (strstr(row->settings, "optimizer=") == NULL) {
        pairs[count++] = "optimizer=none";
        pairs[count++] = "grads=none";
    }
    snprintf(path, sizeof(path), "%s/tests/data/configs/families/%s.json", source(), row->config);
    if (tdm_method_find("parallel", &method, &err) != TDM_OK ||
        tdm_method_apply(method, pairs, count, &settings, &choices, &err) != TDM_OK ||
        tdm_model_load(path, &model, &err) != TDM_OK ||
        tdm_machine_load("h200-published", &machine, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK ||
        tdm_method_predict(model, machine, &settings, 0, p, &err) != TDM_OK)
        fail_msg("%s, %s: %s", row->config, row->settings, err.message);
    *trained = (uint64_t)tdm_torch_trained_parameters(model, &settings.torch);
    tdm_model_free(model);
    tdm_machine_free(machine);
}

static void check(const struct row *row, const char *what, uint64_t predicted, uint64_t measured,
                  uint64_t rounding)
{
    if (predicted + rounding < measured || predicted > measured + rounding)
        fail_msg("%s, %s: %s %" PRIu64 ", PyTorch %" PRIu64, row->config, row->settings, what,
                 predicted, measured);
}

static uint64_t cpu_copy(const struct row *row)
{
    for (unsigned i = 0; i < sizeof(cpu_copies) / sizeof(cpu_copies[0]); i++)
        if (strstr(row->settings, cpu_copies[i].settings) != NULL)
            return cpu_copies[i].bytes;
    return 0;
}

/* A row without an optimizer is a forward and backward; one with an optimizer two steps of it. */
static void steps_are_those_of_pytorch(void **state)
{
    char path[PATH_BYTES];
    struct row row;
    unsigned rows = 0;
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/data/step_settings.csv", source());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; read_row(file, &row); rows++) {
        struct tdm_method_prediction p;
        uint64_t trained;
        predict(&row, &p, &trained);
        if (row.trained > 0)
            check(&row, "trained", trained, row.trained, 0);
        const struct tdm_torch_step *last = &p.steps[p.count - 1].torch;
        if (row.state > 0) {
            const struct tdm_torch_step *steps[] = {&p.steps[0].torch, &p.steps[1].torch};
            uint64_t before[] = {steps[0]->end_bytes[TDM_PHASE_BACKWARD],
                                 steps[1]->end_bytes[TDM_PHASE_BACKWARD]};
            check(&row, "state", steps[0]->end_bytes[TDM_PHASE_OPTIMIZER] - before[0], row.state,
                  ROUNDING_OF_STATES);
            check(&row, "first step", steps[0]->phases[TDM_PHASE_OPTIMIZER].allocated - before[0],
                  row.first, ROUNDING_OF_STATES);
            check(&row, "second step", steps[1]->phases[TDM_PHASE_OPTIMIZER].allocated - before[1],
                  row.second, ROUNDING_OF_STATES);
            continue;
        }
        check(&row, "kept", last->end_bytes[TDM_PHASE_FORWARD] - last->before_bytes, row.kept,
              ROUNDING);
        const uint64_t peak = last->peak.allocated - last->before_bytes;
        if (peak > row.peak)
            check(&row, "peak", peak, row.peak, ROUNDING);
        else
            check(&row, "peak", peak, row.peak, cpu_copy(&row) + ROUNDING);
    }
    fclose(file);
    assert_true(rows >= 10);
}

/* ---- what was measured ---- */

/* Does a line of the tables of runs, but for comments and runs that ran out of memory, have the
 * word? */
static bool runs_have(const char *word)
{
    static const char *const tables[] = {"own_peaks", "measured_peaks", "published_runs_recipes",
                                         "later_runs_recipes"};
    char path[PATH_BYTES], *line = NULL;
    size_t capacity = 0, length = strlen(word);
    bool has = false;
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        snprintf(path, sizeof(path), "%s/tests/data/%s.csv", getenv("TIDEMARK_DATA"), tables[t]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (getline(&line, &capacity, file) > 0) {
            const bool counts = line[0] != '#' && strstr(line, ",OOM,") == NULL;
            for (const char *at = line; counts && (at = strstr(at, word)) != NULL; at++)
                has = has || ((at == line || strchr(",=; ", at[-1]) != NULL) &&
                              strchr(",; \n", at[length]) != NULL);
        }
        fclose(file);
    }
    free(line);
    return has;
}

/* A value is marked as never measured just where no table of runs has it. */
static void test_unmeasured_values_have_no_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"optimizer", "quantization"};
    const struct tdm_method *method;
    const struct tdm_method_key *key;
    struct tdm_error err;
    unsigned marked = 0;
    assert_int_equal(tdm_method_find("parallel", &method, &err), TDM_OK);
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
        char values[256];
        if (strcmp(key->name, names[0]) != 0 && strcmp(key->name, names[1]) != 0)
            continue;
        snprintf(values, sizeof(values), "%s", key->values);
        for (char *rest = values, *value; (value = strsep(&rest, "|")) != NULL;) {
            const bool is_marked = tdm_key_is_unmeasured(key, value);
            if (is_marked == runs_have(value))
                fail_msg("%s=%s", key->name, value);
            marked += is_marked;
        }
    }
    assert_int_equal(marked, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_unmeasured_values_have_no_runs),
                                       cmocka_unit_test(steps_are_those_of_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
