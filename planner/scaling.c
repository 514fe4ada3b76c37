/* SPDX-License-Identifier: Apache-2.0 */
/* Scale factors: several turns with geometric means, then one with the largest entry. */
#include "planner/scaling.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define MOST_TURNS 15u
#define GAIN 0.9 /* the spread of all entries must shrink by this factor in a turn */

struct range {
    double least, most;
};

struct scaling {
    const struct tdm_scaled_matrix *matrix;
    double *row_factor, *column_factor;
    struct range *rows, *columns; /* of the scaled entries; {1, 1} if there are none */
};

/* An empty range: the first entry replaces both ends. */
static const struct range nothing = {HUGE_VAL, 0};

static void widen(struct range *range, double size)
{
    range->least = size < range->least ? size : range->least;
    range->most = size > range->most ? size : range->most;
}

static void close_range(struct range *range)
{
    if (range->least > range->most)
        *range = (struct range){1, 1};
}

static void measure(struct scaling *s)
{
    const struct tdm_scaled_matrix *m = s->matrix;
    for (int row = 0; row < m->row_count; row++)
        s->rows[row] = nothing;
    for (int column = 0; column < m->column_count; column++) {
        struct range range = nothing;
        double factor = s->column_factor[column];
        for (int i = m->first[column]; i < m->first[column + 1]; i++) {
            double size = m->value[i] * (s->row_factor[m->row[i]] * factor);
            widen(&s->rows[m->row[i]], size);
            widen(&range, size);
        }
        close_range(&range);
        s->columns[column] = range;
    }
    for (int row = 0; row < m->row_count; row++)
        close_range(&s->rows[row]);
}

/* The largest ratio, over all rows or columns, of the largest entry to the smallest. */
static double worst_ratio(const struct range *ranges, int count)
{
    double worst = 0;
    for (int i = 0; i < count; i++)
        worst = fmax(worst, ranges[i].most / ranges[i].least);
    return worst;
}

static double spread(const struct scaling *s)
{
    struct range all = nothing;
    for (int row = 0; row < s->matrix->row_count; row++) {
        all.least = fmin(all.least, s->rows[row].least);
        all.most = fmax(all.most, s->rows[row].most);
    }
    return all.most / all.least;
}

static double mean_of(struct range range)
{
    return sqrt(range.least * range.most);
}

static double largest_of(struct range range)
{
    return range.most;
}

static void divide(double *factors, const struct range *ranges, int count,
                   double (*size)(struct range range))
{
    for (int i = 0; i < count; i++)
        factors[i] /= size(ranges[i]);
}

/* Columns come first if their worst ratio is smaller. */
static bool columns_come_first(const struct scaling *s)
{
    return worst_ratio(s->rows, s->matrix->row_count) >
           worst_ratio(s->columns, s->matrix->column_count);
}

/* Scales rows and columns. The ranges must be measured, and are measured again. */
static void scale_both(struct scaling *s, bool columns_first, double (*size)(struct range range))
{
    const struct tdm_scaled_matrix *m = s->matrix;
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == columns_first)
            divide(s->column_factor, s->columns, m->column_count, size);
        else
            divide(s->row_factor, s->rows, m->row_count, size);
        measure(s);
    }
}

enum tdm_status tdm_matrix_scale(const struct tdm_scaled_matrix *matrix, double *row_factor,
                                 double *column_factor, struct tdm_error *err)
{
    struct scaling s = {.matrix = matrix,
                        .row_factor = row_factor,
                        .column_factor = column_factor,
                        .rows = calloc((size_t)matrix->row_count + 1, sizeof(*s.rows)),
                        .columns = calloc((size_t)matrix->column_count + 1, sizeof(*s.columns))};
    enum tdm_status status = TDM_OK;
    if (s.rows == NULL || s.columns == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the linear program");
        goto free_ranges;
    }
    for (int row = 0; row < matrix->row_count; row++)
        row_factor[row] = 1;
    for (int column = 0; column < matrix->column_count; column++)
        column_factor[column] = 1;
    measure(&s);
    const bool columns_first = columns_come_first(&s);
    double before = 0;
    for (unsigned turn = 0; turn < MOST_TURNS; turn++) {
        double now = spread(&s);
        if (turn > 0 && now > GAIN * before)
            break;
        before = now;
        scale_both(&s, columns_first, mean_of);
    }
    scale_both(&s, columns_come_first(&s), largest_of);
free_ranges:
    free(s.rows);
    free(s.columns);
    return status;
}
