/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of bench/accuracy share: rows of a table, and the kinds of tables. */
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

/* The next row; false at the end, or (*broken) if it has not as many fields as the head. */
bool next_row(FILE *file, struct table *table, bool *broken);
/* Of the row that was read last; "" where there is no such column. */
const char *field(const struct table *table, const char *name);

/* Predict all rows, print them and how far they are apart, and say whether the bounds hold. */
bool check_measured(FILE *file, const struct tdm_machine *machine);
bool check_published(FILE *file, const struct tdm_machine *machine);

#endif
