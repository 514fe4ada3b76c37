/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/accuracy: are the predictions of other systems right? Predicts every row of a table of measured
 * peaks (tests/data/measured_peaks.csv by default) and prints both, and how far they are apart.
 *
 *     bench/accuracy [FILE.csv] [--machine MACHINE]
 *
 * The columns are those of the table; its head says what they are. Exit status 1 if a bound is broken:
 * allocated within 0.3% in the mean and 1% at worst, reserved and used within 3% in the mean, every row that ran
 * out of memory refused and every one that ran not. Without FILE also the table of published peaks
 * (accuracy_published.c): 1% in the median, 4% at worst; and that of published runs (accuracy_runs.c).
 */
#include "bench/accuracy_runs.h"
#include "bench/accuracy_table.h"

#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

enum figure { ALLOCATED, RESERVED, USED, FIGURES };

static const struct {
    const char *name, *column;
    double mean_bound, worst_bound;
} figures[FIGURES] = {
    [ALLOCATED] = {"allocated", "peak_allocated_bytes", 0.003, 0.01},
    [RESERVED] = {"reserved", "peak_reserved_bytes", 0.03, 1},
    [USED] = {"used", "driver_used_bytes", 0.03, 1},
};

struct tally {
    double sum[FIGURES], worst[FIGURES];
    size_t rows, refused, right_refused, failures;
};

size_t split_fields(char *line, const char **fields)
{
    size_t count = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *rest = line; rest != NULL && count < MOST_COLUMNS;)
        fields[count++] = strsep(&rest, ",");
    return count;
}

const char *field(const struct table *table, const char *name)
{
    for (size_t i = 0; i < table->columns; i++)
        if (strcmp(table->names[i], name) == 0)
            return table->fields[i];
    return "";
}

/* The value of a key in phase_note, KEY=VALUE;KEY=VALUE, or NULL. */
static const char *noted(const struct table *table, const char *key, char *out, size_t out_bytes)
{
    const char *note = field(table, "phase_note");
    size_t length = strlen(key);
    while (*note != '\0') {
        size_t span = strcspn(note, ";");
        if (span > length && memcmp(note, key, length) == 0 && note[length] == '=') {
            snprintf(out, out_bytes, "%.*s", (int)(span - length - 1), note + length + 1);
            return out;
        }
        note += span + (note[span] == ';');
    }
    return NULL;
}

/* Columns that are keys of a method, and those of the note. */
static size_t pairs_of(const struct table *table, char text[][128], const char **pairs)
{
    static const char *const columns[] = {"checkpointing", "attention", "optimizer",
                                          "weights_dtype", "logits",    "allocator_conf",
                                          "lora_rank",     "step"};
    static const char *const notes[] = {"use_cache", "lora_targets", "gradient_as_bucket_view",
                                        "reshard_after_forward"};
    char value[128];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        const char *said = field(table, columns[i]);
        if (said[0] != '\0')
            snprintf(text[count++], 128, "%s=%.100s", columns[i], said);
    }
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
        if (noted(table, notes[i], value, sizeof(value)) != NULL)
            snprintf(text[count++], 128, "%s=%.100s", notes[i], value);
    if (noted(table, "lora", value, sizeof(value)) != NULL && strstr(value, "peft") != NULL)
        snprintf(text[count++], 128, "lora=peft");
    if (field(table, "lora_rank")[0] == '\0')
        snprintf(text[count++], 128, "lora_rank=0");
    for (size_t i = 0; i < count; i++)
        pairs[i] = text[i];
    return count;
}

static enum tdm_status predict(const struct table *table, const struct tdm_machine *machine,
                               struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_model *model = NULL;
    char text[16][128];
    const char *pairs[16], *strategy = field(table, "strategy");
    size_t count = pairs_of(table, text, pairs);
    settings.torch.tokens = strtoull(field(table, "context"), NULL, 10);
    settings.torch.batch = strtoull(field(table, "batch"), NULL, 10);
    settings.torch.ranks = strtoull(field(table, "gpus"), NULL, 10);
    enum tdm_status status = tdm_method_find(strcmp(strategy, "single") == 0  ? "parallel"
                                             : strcmp(strategy, "fsdp2") == 0 ? "fsdp"
                                                                              : strategy,
                                             &method, err);
    if (status == TDM_OK)
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

static void note_row(const struct table *table, const struct tdm_method_prediction *p,
                     struct tally *tally)
{
    const struct tdm_method_step *step = &p->steps[p->highest];
    const uint64_t predicted[FIGURES] = {step->torch.peak.allocated, step->torch.peak.reserved,
                                         step->end_used_bytes}; /* the driver was asked then */
    bool oom = strcmp(field(table, "status"), "ok") != 0;
    printf("%-6s %-14s %4s %-12s %-10s %-13s", field(table, "id"), field(table, "model"),
           field(table, "step"), field(table, "checkpointing"), field(table, "attention"),
           field(table, "optimizer"));
    if (oom || !p->runs) {
        tally->refused += oom;
        tally->right_refused += oom && !p->runs;
        tally->failures += oom == p->runs;
        printf(" %s, predicted to %s\n", oom ? "ran out of memory" : "ran",
               p->runs ? "run" : "run out of memory");
        return;
    }
    tally->rows++;
    for (unsigned f = 0; f < FIGURES; f++) {
        double measured = strtod(field(table, figures[f].column), NULL);
        double error = (double)predicted[f] / measured - 1;
        printf(" %10.1f %10.1f %+7.3f%%", (double)predicted[f] / MIB, measured / MIB, 100 * error);
        tally->sum[f] += fabs(error);
        tally->worst[f] = fmax(tally->worst[f], fabs(error));
    }
    putchar('\n');
}

static void print_summary(struct tally *tally)
{
    if (tally->rows + tally->refused == 0)
        return;
    printf("\n%zu rows that ran, %zu that ran out of memory of which %zu are refused\n",
           tally->rows, tally->refused, tally->right_refused);
    for (unsigned f = 0; f < FIGURES && tally->rows > 0; f++) {
        double mean = tally->sum[f] / (double)tally->rows;
        bool within = mean <= figures[f].mean_bound && tally->worst[f] <= figures[f].worst_bound;
        printf("%-10s mean error %.3f%%, worst %.3f%%%s\n", figures[f].name, 100 * mean,
               100 * tally->worst[f], within ? "" : ": too much");
        tally->failures += !within;
    }
}

static void print_head(void)
{
    printf("%-6s %-14s %4s %-12s %-10s %-13s", "id", "model", "step", "checkpoints", "attention",
           "optimizer");
    for (unsigned f = 0; f < FIGURES; f++)
        printf(" %10s %10s %8s", figures[f].name, "measured", "error");
    printf("  (MiB)\n");
}

static void run_row(const struct table *table, const struct tdm_machine *machine,
                    struct tally *tally)
{
    struct tdm_method_prediction prediction;
    struct tdm_error err = {.message = ""};
    if (predict(table, machine, &prediction, &err) != TDM_OK) {
        fprintf(stderr, "accuracy: %s: %s\n", field(table, "id"), err.message);
        tally->failures++;
        return;
    }
    note_row(table, &prediction, tally);
}

/* The next row; false at the end, or if a row has not as many fields as the head (*broken). */
static bool next_row(FILE *file, struct table *table, bool *broken)
{
    while (fgets(table->line, sizeof(table->line), file) != NULL) {
        if (table->line[0] == '#')
            continue;
        if (table->columns == 0) {
            memcpy(table->head, table->line, sizeof(table->head));
            table->columns = split_fields(table->head, table->names);
            continue;
        }
        *broken = split_fields(table->line, table->fields) != table->columns;
        return !*broken;
    }
    return false;
}

static bool run_table(FILE *file, const struct tdm_machine *machine, struct tally *tally,
                      struct published *published)
{
    struct table table = {.columns = 0};
    bool broken = false;
    while (next_row(file, &table, &broken))
        if (is_published(&table))
            note_published(&table, published);
    rewind(file);
    if (is_published(&table))
        printf("\n%-13s %-9s %-10s %7s %5s %6s %5s %5s %5s %10s %10s %8s\n", "source", "method",
               "model", "context", "chunk", "budget", "ckpt", "host", "grads", "predicted",
               "measured", "error");
    else
        print_head();
    table.columns = 0;
    while (!broken && next_row(file, &table, &broken)) {
        if (is_published(&table))
            predict_published(&table, machine, published);
        else
            run_row(&table, machine, tally);
    }
    if (broken)
        fprintf(stderr, "accuracy: a row has not as many fields as the head\n");
    return !broken;
}

static bool run_file(const char *path, const struct tdm_machine *machine, struct tally *tally,
                     struct published *published)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "accuracy: %s cannot be read\n", path);
        return false;
    }
    bool done = run_table(file, machine, tally, published);
    fclose(file);
    return done;
}

/* Every table that is not named on the command line. */
static bool run_standard(const struct tdm_machine *machine, struct tally *tally,
                         struct published *published)
{
    static const char *const tables[] = {"measured_peaks.csv", "published_peaks.csv"};
    const char *sources = getenv("TDM_SRCDIR");
    bool done = true;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/tests/data/%s", sources != NULL ? sources : ".",
                 tables[i]);
        done &= run_file(path, machine, tally, published);
    }
    return done;
}

int main(int argc, char **argv)
{
    const char *path = NULL, *machine_name = "h200";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--machine") == 0 && i + 1 < argc)
            machine_name = argv[++i];
        else
            path = argv[i];
    }
    struct tdm_machine *machine = NULL;
    struct tdm_error err;
    struct tally tally = {.rows = 0};
    static struct published published;
    bool done = false;
    if (tdm_machine_load(machine_name, &machine, &err) == TDM_OK) {
        done = path == NULL ? run_standard(machine, &tally, &published)
                            : run_file(path, machine, &tally, &published);
        print_summary(&tally);
        print_published(&published);
        if (path == NULL)
            done &=
                predict_published_runs(getenv("TDM_SRCDIR") != NULL ? getenv("TDM_SRCDIR") : ".");
    } else {
        fprintf(stderr, "accuracy: %s\n", err.message);
    }
    tdm_machine_free(machine);
    return done && tally.failures == 0 && published.failures == 0 ? 0 : 1;
}
