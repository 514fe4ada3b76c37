/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published peaks (tests/data/published_peaks.csv) against predictions. A row names a method in its publication's
 * words; a recipe says which method of ours it is, and what the publication's script sets beside the row's columns.
 * Rows without a recipe are not covered. Bounds: 1% in the median, 4% at worst.
 *
 * OOMB's script (test_efficiency/test.py) runs contexts one after the other, shortest first, and never clears
 * gradients: the shortest context's figure is that of a first step, at all others gradients are there before.
 */
#include "bench/accuracy_table.h"

#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEDIAN_BOUND 0.01
#define WORST_BOUND 0.04
#define MIB 1048576.0
#define GB 1e9
#define PAIR_BYTES 64u
#define MOST_PAIRS 16u
#define MOST_PUBLISHED 256u

struct published {
    struct {
        char source[64];
        uint64_t tokens;
    } first[MOST_PUBLISHED]; /* the shortest context of every source */
    size_t sources;
    double errors[MOST_PUBLISHED];
    size_t rows, not_covered, failures;
};

static const struct recipe {
    const char *published, *unit; /* as the row has them */
    const char *method;           /* ours */
    const char *pairs[4];         /* what no column says */
} recipes[] = {
    {"oomb", "MiB", "oomb", {"optimizer=none"}},
    /* its baseline has FlashAttention in Triton and the loss of bf16 logits */
    {"parallel", "MiB", "parallel", {"optimizer=none", "attention=sdpa-flash", "logits=bf16"}},
};

#define RECIPES (sizeof(recipes) / sizeof(recipes[0]))

static uint64_t tokens_of(const struct table *table)
{
    struct tdm_error err;
    uint64_t tokens = 0;
    return tdm_parse_tokens(field(table, "context"), "context", &tokens, &err) == TDM_OK ? tokens
                                                                                         : 0;
}

static void note_published(const struct table *table, struct published *published)
{
    uint64_t tokens = tokens_of(table);
    size_t s = 0;
    while (s < published->sources &&
           strcmp(published->first[s].source, field(table, "source")) != 0)
        s++;
    if (s == MOST_PUBLISHED)
        return;
    if (s == published->sources) {
        snprintf(published->first[s].source, sizeof(published->first[s].source), "%.63s",
                 field(table, "source"));
        published->first[s].tokens = tokens;
        published->sources++;
    }
    if (tokens < published->first[s].tokens)
        published->first[s].tokens = tokens;
}

static bool is_first(const struct table *table, const struct published *published)
{
    for (size_t s = 0; s < published->sources; s++)
        if (strcmp(published->first[s].source, field(table, "source")) == 0)
            return published->first[s].tokens == tokens_of(table);
    return false;
}

static const struct recipe *find_recipe(const struct table *table)
{
    for (size_t r = 0; r < RECIPES; r++)
        if (strcmp(recipes[r].published, field(table, "method")) == 0 &&
            strcmp(recipes[r].unit, field(table, "unit")) == 0)
            return &recipes[r];
    return NULL;
}

static bool has_key(const struct tdm_method *method, const char *name)
{
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++)
        if (strcmp(key->name, name) == 0)
            return true;
    return false;
}

static size_t pairs_of(const struct table *table, const struct recipe *recipe,
                       const struct tdm_method *method, bool first, char text[][PAIR_BYTES])
{
    static const char *const columns[] = {"chunk", "budget", "layer_checkpoint", "kv_offload",
                                          "kv_grad_dtype"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof(recipe->pairs) / sizeof(recipe->pairs[0]); i++)
        if (recipe->pairs[i] != NULL)
            snprintf(text[count++], PAIR_BYTES, "%s", recipe->pairs[i]);
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        const char *said = field(table, columns[i]);
        if (said[0] != '\0' && has_key(method, columns[i]))
            snprintf(text[count++], PAIR_BYTES, "%s=%.32s", columns[i], said);
    }
    if (!has_key(method, "layer_checkpoint") && has_key(method, "checkpointing"))
        snprintf(text[count++], PAIR_BYTES, "checkpointing=%s",
                 strcmp(field(table, "layer_checkpoint"), "yes") == 0 ? "on" : "off");
    snprintf(text[count++], PAIR_BYTES, "step=%s", first ? "1" : "3");
    return count;
}

static enum tdm_status predict(const struct table *table, const struct tdm_machine *machine,
                               const struct recipe *recipe, bool first,
                               struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_model *model = NULL;
    char text[MOST_PAIRS][PAIR_BYTES];
    const char *pairs[MOST_PAIRS];
    settings.torch.tokens = tokens_of(table);
    settings.torch.batch = 1;
    settings.torch.ranks = strtoull(field(table, "gpus"), NULL, 10);
    enum tdm_status status = tdm_method_find(recipe->method, &method, err);
    if (status != TDM_OK)
        return status;
    size_t count = pairs_of(table, recipe, method, first, text);
    for (size_t i = 0; i < count; i++)
        pairs[i] = text[i];
    status = tdm_method_apply(method, pairs, count, &settings, &choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(field(table, "model"), &model, err);
    if (status == TDM_OK)
        status = tdm_method_check(model, &settings, err);
    if (status == TDM_OK)
        status = tdm_method_predict(model, machine, &settings, 0, prediction, err);
    tdm_model_free(model);
    return status;
}

static void predict_published(const struct table *table, const struct tdm_machine *machine,
                              struct published *published)
{
    const struct recipe *recipe = find_recipe(table);
    struct tdm_method_prediction p;
    struct tdm_error err = {.message = ""};
    bool first = is_first(table, published);
    printf("%-13s %-9.9s %-10s %7s %5s %6s %5s %5s %5s", field(table, "source"),
           field(table, "method"), field(table, "model"), field(table, "context"),
           field(table, "chunk"), field(table, "budget"), field(table, "layer_checkpoint"),
           field(table, "kv_offload"), field(table, "kv_grad_dtype"));
    if (recipe == NULL) {
        printf(" not covered\n");
        published->not_covered++;
        return;
    }
    if (predict(table, machine, recipe, first, &p, &err) != TDM_OK || !p.runs ||
        published->rows == MOST_PUBLISHED) {
        printf(" failed: %s\n", err.message);
        published->failures++;
        return;
    }
    double unit = strcmp(recipe->unit, "MiB") == 0 ? MIB : GB;
    double predicted = (double)p.steps[p.highest].torch.peak.allocated / unit;
    double measured = strtod(field(table, "peak"), NULL), error = predicted / measured - 1;
    printf(" %10.1f %10.1f %+7.2f%% %s%s\n", predicted, measured, 100 * error, recipe->unit,
           first ? ", a first step" : "");
    published->errors[published->rows++] = fabs(error);
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_summary(struct published *published)
{
    size_t rows = published->rows;
    if (rows == 0)
        return;
    qsort(published->errors, rows, sizeof(published->errors[0]), rising);
    double median = published->errors[rows / 2], worst = published->errors[rows - 1];
    bool within = median <= MEDIAN_BOUND && worst <= WORST_BOUND;
    printf("\n%zu published rows, %zu not covered: median error %.2f%%, worst %.2f%%%s\n", rows,
           published->not_covered, 100 * median, 100 * worst, within ? "" : ": too much");
    published->failures += !within;
}

bool check_published(FILE *file, const struct tdm_machine *machine)
{
    static struct published published;
    struct table table = {.columns = 0};
    bool broken = false;
    memset(&published, 0, sizeof(published));
    while (next_row(file, &table, &broken))
        note_published(&table, &published);
    rewind(file);
    table.columns = 0;
    printf("%-13s %-9s %-10s %7s %5s %6s %5s %5s %5s %10s %10s %8s\n", "source", "method", "model",
           "context", "chunk", "budget", "ckpt", "host", "grads", "predicted", "measured", "error");
    while (!broken && next_row(file, &table, &broken))
        predict_published(&table, machine, &published);
    print_summary(&published);
    return !broken && published.failures == 0;
}
