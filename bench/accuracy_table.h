/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table of measured peaks, and what bench/accuracy makes of published ones. */
#ifndef TDM_BENCH_ACCURACY_TABLE_H
#define TDM_BENCH_ACCURACY_TABLE_H

#include "methods/prediction.h"

#include <stdbool.h>
#include <stddef.h>

#define MOST_COLUMNS 40u
#define LINE_BYTES 4096u

struct table {
    char head[LINE_BYTES], line[LINE_BYTES];
    const char *names[MOST_COLUMNS], *fields[MOST_COLUMNS];
    size_t columns;
};

/* Takes a line apart in place, at most MOST_COLUMNS fields. */
size_t split_fields(char *line, const char **fields);
/* Of the row that was read last; "" where there is no such column. */
const char *field(const struct table *table, const char *name);

/* Published peaks: one figure a row, of a method and the options that the publication names. */
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

/* Is the table one of these? */
bool is_published(const struct table *table);
/* Before any row is predicted: notes the shortest context of the row's source. */
void note_published(const struct table *table, struct published *published);
/* Predicts the row that was read last, and prints it. */
void predict_published(const struct table *table, const struct tdm_machine *machine,
                       struct published *published);
/* Median and worst against their bounds; what breaks them is added to failures. */
void print_published(struct published *published);

#endif
