/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds per op kind, summed over all phases. */
#include "commands/kind_times.h"

#include "base/sort.h"

#include <math.h>
#include <stdlib.h>

static double off_by(const struct tdm_kind_time *time)
{
    return fabs(time->predicted_seconds - time->measured_seconds);
}

static int by_difference(const void *a, const void *b)
{
    double x = off_by(a), y = off_by(b);
    return (x < y) - (x > y);
}

size_t tdm_kind_times(const struct tdm_trace_time_row *rows, size_t row_count,
                      struct tdm_kind_time kinds[TDM_OP_KINDS])
{
    size_t count = 0;
    for (size_t i = 0; i < row_count; i++) {
        size_t k = 0;
        if (isnan(rows[i].measured_seconds))
            continue;
        while (k < count && kinds[k].kind != rows[i].kind)
            k++;
        if (k == count)
            kinds[count++] = (struct tdm_kind_time){.kind = rows[i].kind};
        kinds[k].ops += rows[i].ops;
        kinds[k].predicted_seconds += rows[i].predicted_seconds;
        kinds[k].measured_seconds += rows[i].measured_seconds;
    }
    tdm_sort_stable(kinds, count, sizeof(*kinds), by_difference);
    return count;
}

double tdm_kind_ratio(const struct tdm_kind_time *time)
{
    return time->measured_seconds > 0 ? time->predicted_seconds / time->measured_seconds : NAN;
}
