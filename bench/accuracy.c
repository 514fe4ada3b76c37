/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/accuracy: are the predictions for other systems right? It predicts every row of the tables
 * of measured and published peaks (by default those in tests/data) and prints prediction, peak and
 * error.
 *
 *     bench/accuracy [FILE.csv...] [--machine MACHINE]
 *
 * The head of each table describes its columns. The exit status is 1 if a bound is broken; the
 * bounds are in accuracy_measured.c, accuracy_published.c and accuracy_runs.c.
 */
#include "bench/accuracy_runs.h"
#include "bench/accuracy_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Splits a line in place. A field may be quoted. Returns 0 if a quote is not closed. */
static size_t split(char *line, const char **fields)
{
    size_t count = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *rest = line; rest != NULL && count < MOST_COLUMNS;) {
        if (*rest != '"') {
            fields[count++] = strsep(&rest, ",");
            continue;
        }
        char *end = strchr(rest + 1, '"');
        if (end == NULL)
            return 0;
        fields[count++] = rest + 1;
        *end = '\0';
        rest = end[1] == ',' ? end + 2 : NULL;
    }
    return count;
}

const char *field(const struct table *table, const char *name)
{
    for (size_t i = 0; i < table->columns; i++)
        if (strcmp(table->names[i], name) == 0)
            return table->fields[i];
    return "";
}

bool next_row(FILE *file, struct table *table, bool *broken)
{
    while (fgets(table->line, sizeof(table->line), file) != NULL) {
        if (table->line[0] == '#')
            continue;
        if (table->columns == 0) {
            memcpy(table->head, table->line, sizeof(table->head));
            table->columns = split(table->head, table->names);
            continue;
        }
        *broken = split(table->line, table->fields) != table->columns;
        if (*broken)
            fprintf(stderr, "accuracy: a row has not as many fields as the head\n");
        return !*broken;
    }
    return false;
}

/* Only published tables have a column "source". */
static bool is_published(FILE *file)
{
    struct table table = {.columns = 0};
    bool broken = false, published = false;
    if (next_row(file, &table, &broken))
        published = field(&table, "source")[0] != '\0';
    rewind(file);
    return published;
}

static bool has_rows(FILE *file)
{
    struct table table = {.columns = 0};
    bool broken = false, has = next_row(file, &table, &broken) || broken;
    rewind(file);
    return has;
}

static bool check_file(const char *path, const struct tdm_machine *machine)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "accuracy: %s cannot be read\n", path);
        return false;
    }
    bool holds = has_rows(file);
    if (!holds)
        fprintf(stderr, "accuracy: %s has no row\n", path);
    else
        holds = is_published(file) ? check_published(file, machine) : check_measured(file, machine);
    fclose(file);
    putchar('\n');
    return holds;
}

int main(int argc, char **argv)
{
    static const char *const standard[] = {"measured_peaks.csv", "own_peaks.csv",
                                           "published_peaks.csv"};
    const char *machine_name = "h200", *sources = getenv("TDM_SRCDIR");
    struct tdm_machine *machine = NULL;
    struct tdm_error err;
    size_t said = 0;
    bool holds = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--machine") == 0 && i + 1 < argc)
            machine_name = argv[++i];
        else
            argv[++said] = argv[i];
    }
    sources = sources != NULL ? sources : getenv("TIDEMARK_DATA");
    sources = sources != NULL ? sources : ".";
    if (tdm_machine_load(machine_name, &machine, &err) != TDM_OK) {
        fprintf(stderr, "accuracy: %s\n", err.message);
        return 1;
    }
    for (size_t i = 1; i <= said; i++)
        holds = check_file(argv[i], machine) && holds;
    for (size_t i = 0; said == 0 && i < sizeof(standard) / sizeof(standard[0]); i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/tests/data/%s", sources, standard[i]);
        holds = check_file(path, machine) && holds;
    }
    if (said == 0) {
        holds = check_published_runs(sources) && holds;
        holds = compare_served(sources) && holds;
    }
    tdm_machine_free(machine);
    return holds ? 0 : 1;
}
