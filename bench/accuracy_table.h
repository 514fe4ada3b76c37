/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of bench/accuracy share: reading rows of a table, and the checks of its kinds. */
#ifndef TDM_BENCH_ACCURACY_TABLE_H
#define TDM_BENCH_ACCURACY_TABLE_H

#include "methods/prediction.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define MOST_COLUMNS 40u
#define LINE_BYTES 4096u

struct table {
    char head[LINE_BYTES], line[LINE_BYTES];
    const char *names[MOST_COLUMNS], *fields[MOST_COLUMNS];
    size_t columns;
};

/* Reads the next row. Returns false at the end, or sets *broken if the row's field count is not the
 * head's. */
bool next_row(FILE *file, struct table *table, bool *broken);
/* A field of the row that was read last; "" if there is no column of that name. */
const char *field(const struct table *table, const char *name);

/* Predict all rows, print predictions and errors, and return whether the bounds hold. */
bool check_measured(FILE *file, const struct tdm_machine *machine);
bool check_published(FILE *file, const struct tdm_machine *machine);

#endif
