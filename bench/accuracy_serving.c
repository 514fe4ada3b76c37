/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares what a server holds with what vLLM logged (tests/data/serving_logs.csv): rows that tell
 * all settings, with what came out before anything was mended by them. Only printed;
 * tests/methods/unit_serving has the bounds and compares the parts too.
 */
#include "bench/accuracy_runs.h"

#include "bench/accuracy_table.h"
#include "methods/method.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MOST_PAIRS 16u
#define PAIR_BYTES 64u

static bool told(const struct table *row, const char *name)
{
    return strcmp(field(row, name), "-") != 0;
}

static bool tells_all(const struct table *row)
{
    static const char *const needed[] = {"model",   "total_gib", "utilization", "quantization",
                                         "context", "sequences", "counts_as",   "tokens"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!told(row, needed[i]))
            return false;
    return true;
}

static enum tdm_status serve(const struct table *row, struct tdm_serving_answer *answer,
                             struct tdm_error *err)
{
    static const char *const keys[][2] = {{"counts_as", "version"},
                                          {"tensor", "tensor_parallel_size"},
                                          {"pipeline", "pipeline_parallel_size"},
                                          {"utilization", "gpu_memory_utilization"},
                                          {"sequences", "max_num_seqs"},
                                          {"batched", "max_num_batched_tokens"},
                                          {"quantization", "quantization"},
                                          {"kv_dtype", "kv_cache_dtype"}};
    char text[MOST_PAIRS][PAIR_BYTES];
    const char *pairs[MOST_PAIRS];
    struct tdm_method_settings settings = {
        .torch = {.tokens = strtoull(field(row, "context"), NULL, 10), .batch = 1, .ranks = 1}};
    struct tdm_method_choices choices;
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    size_t count = 0;
    double total_bytes = strtod(field(row, "total_gib"), NULL) * GIB;
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
        if (told(row, keys[k][0]))
            snprintf(text[count++], PAIR_BYTES, "%s=%s", keys[k][1], field(row, keys[k][0]));
    if (told(row, "other_gib"))
        snprintf(text[count++], PAIR_BYTES, "other_weights=%.0f",
                 strtod(field(row, "other_gib"), NULL) * GIB);
    if (told(row, "lora")) {
        snprintf(text[count++], PAIR_BYTES, "enable_lora=yes");
        snprintf(text[count++], PAIR_BYTES, "max_lora_rank=%s", field(row, "lora"));
    }
    for (size_t i = 0; i < count; i++)
        pairs[i] = text[i];
    enum tdm_status status = tdm_model_load(field(row, "model"), &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load(total_bytes < 70 * GIB ? "rtx-4090" : "h100", &machine, err);
    if (status == TDM_OK)
        status = tdm_method_apply(&tdm_serving_method, pairs, count, &settings, &choices, err);
    if (status == TDM_OK)
        status = tdm_method_check(model, &settings, err);
    if (status == TDM_OK) {
        machine->topology.places[TDM_DEVICE].capacity_bytes = (uint64_t)total_bytes;
        tdm_serving_answer(model, machine, &settings.serving, settings.torch.tokens, answer);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
    return status;
}

static bool compare(FILE *file)
{
    struct table row = {.columns = 0};
    struct tdm_serving_answer answer;
    struct tdm_error err;
    bool broken = false;
    printf("%-20s %-8s %3s %3s %8s %12s %12s %8s %12s\n", "model", "version", "tp", "pp", "context",
           "logged", "predicted", "error", "first");
    while (next_row(file, &row, &broken)) {
        if (!tells_all(&row))
            continue;
        if (serve(&row, &answer, &err) != TDM_OK) {
            fprintf(stderr, "accuracy: %s: %s\n", field(&row, "source"), err.message);
            return false;
        }
        double logged = strtod(field(&row, "tokens"), NULL);
        printf("%-20s %-8s %3s %3s %8s %12.0f %12.0f %7.2f%% %12s\n", field(&row, "model"),
               field(&row, "version"), field(&row, "tensor"), field(&row, "pipeline"),
               field(&row, "context"), logged, (double)answer.cache_tokens,
               100 * ((double)answer.cache_tokens / logged - 1), field(&row, "first"));
    }
    return !broken;
}

bool compare_served(const char *sources)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/tests/data/serving_logs.csv", sources);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "accuracy: %s cannot be read\n", path);
        return false;
    }
    puts("serving: tokens of the cache, from the settings alone");
    bool holds = compare(file);
    fclose(file);
    putchar('\n');
    return holds;
}
