/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of families of models: predicted steps against those that PyTorch made
 * (tests/data/families.csv, by bench/torch_families.py). */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 128u
#define PATH_BYTES 1024u
/* Blocks are multiples of 512 bytes, and some tens of tensors are smaller. */
#define ROUNDING UINT64_C(6144)
/* Experts that are modules have more small tensors; and how many tokens each gets, of which the
 * peak depends, is by chance. */
#define MODULES_ROUNDING UINT64_C(12288)
#define CHANCE 0.02
#define IMAGE_TOKENS 16u /* of the picture of bench/torch_families.py */
#define CPU_RANDOM_STATE UINT64_C(5056)

struct row {
    char config[32], logits[16], checkpointing[16];
    uint64_t parameters, kept, peak;
};

static bool read_row(FILE *file, struct row *row)
{
    char line[256];
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "%31[^,],%" SCNu64 ",%15[^,],%15[^,],%" SCNu64 ",%" SCNu64, row->config,
                   &row->parameters, row->logits, row->checkpointing, &row->kept, &row->peak) == 6)
            return true;
    return false;
}

static const char *source(void)
{
    const char *folder = getenv("TDM_SRCDIR");
    return folder == NULL ? "." : folder;
}

static void predict_row(const struct row *row, struct tdm_torch_step *step, uint64_t *layers,
                        uint64_t *parameters)
{
    char path[PATH_BYTES], logits[32], checkpointing[32], images[32], version[32];
    const char *at = strchr(row->config, '@'); /* before the version of transformers */
    const int name = at == NULL ? (int)strlen(row->config) : (int)(at - row->config);
    const char *pairs[] = {"attention=eager", "optimizer=none", "grads=none", "step=3", logits,
                           checkpointing,     images,           version};
    struct tdm_method_settings settings = {.torch = {.tokens = TOKENS, .batch = 1, .ranks = 1}};
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction p;
    struct tdm_machine *machine = NULL;
    struct tdm_model *model = NULL;
    struct tdm_error err = {.message = ""};
    snprintf(path, sizeof(path), "%s/tests/data/configs/families/%.*s.json", source(), name,
             row->config);
    snprintf(version, sizeof(version), "transformers=%s", at == NULL ? "now" : at + 1);
    snprintf(logits, sizeof(logits), "logits=%s", row->logits);
    snprintf(checkpointing, sizeof(checkpointing), "checkpointing=%s", row->checkpointing);
    snprintf(images, sizeof(images), "image_tokens=%u",
             strcmp(row->config, "qwen2_5_vl") == 0 ? IMAGE_TOKENS : 0);
    if (tdm_method_find("parallel", &method, &err) != TDM_OK ||
        tdm_method_apply(method, pairs, sizeof(pairs) / sizeof(pairs[0]), &settings, &choices,
                         &err) != TDM_OK ||
        tdm_model_load(path, &model, &err) != TDM_OK ||
        tdm_machine_load("h200-published", &machine, &err) != TDM_OK ||
        tdm_method_check(model, &settings, &err) != TDM_OK ||
        tdm_method_predict(model, machine, &settings, 0, &p, &err) != TDM_OK)
        fail_msg("%s: %s", path, err.message);
    *step = p.steps[p.count - 1].torch;
    *layers = model->layers + model->vision.blocks;
    *parameters = model->parameters;
    tdm_model_free(model);
    tdm_machine_free(machine);
}

static bool has_modules(const struct row *row)
{
    return strchr(row->config, '@') != NULL;
}

static void check(const struct row *row, const char *what, uint64_t predicted, uint64_t measured)
{
    const uint64_t rounding = has_modules(row) ? MODULES_ROUNDING : ROUNDING;
    if (predicted + rounding < measured || predicted > measured + rounding)
        fail_msg("%s, logits=%s, checkpointing=%s: %s %" PRIu64 ", PyTorch %" PRIu64, row->config,
                 row->logits, row->checkpointing, what, predicted, measured);
}

/* What a GPU has at the peak of these families and a CPU does not: a product in the backward of a
 * softmax, of the scores of all heads in fp32 at most; tables of grouped products, half a KiB for
 * each of 132 multiprocessors and 60 bytes for each expert. */
static void check_peak(const struct row *row, uint64_t predicted)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } families[] = {{"cohere", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"cohere2", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"cohere_qk_norm", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"deepseek_v2", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"deepseek_v2-groups", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"deepseek_v3", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"dots1", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"glm4_moe", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"glm4_moe_lite", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"gpt_oss", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"hunyuan_v1_moe", UINT64_C(132) * 512 + UINT64_C(8) * 60},
                    {"mpt", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"nemotron", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"olmo", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"opt", UINT64_C(4) * TOKENS * TOKENS * 4},
                    {"qwen3_next", UINT64_C(132) * 512 + UINT64_C(4) * 60}};
    uint64_t more = has_modules(row) ? (uint64_t)((double)row->peak * CHANCE) : 0;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(row->config, families[i].name) == 0)
            more = families[i].bytes;
    if (predicted > row->peak && predicted <= row->peak + more + ROUNDING)
        return;
    check(row, "peak", predicted, row->peak);
}

static void steps_are_those_of_pytorch(void **state)
{
    char path[PATH_BYTES];
    struct row row;
    unsigned rows = 0;
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/data/families.csv", source());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; read_row(file, &row); rows++) {
        struct tdm_torch_step step;
        uint64_t layers, parameters;
        predict_row(&row, &step, &layers, &parameters);
        bool again = strcmp(row.checkpointing, "on") == 0;
        assert_int_equal(parameters, row.parameters);
        check(&row, "kept", step.end_bytes[TDM_PHASE_FORWARD] - step.before_bytes,
              row.kept - (again ? layers * CPU_RANDOM_STATE : 0));
        if (!again) /* random states go layer by layer */
            check_peak(&row, step.peak.allocated - step.before_bytes);
    }
    fclose(file);
    assert_true(rows >= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_those_of_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
