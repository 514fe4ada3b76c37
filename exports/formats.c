/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the formats, and how a file is written: rank after rank. */
#include "exports/export.h"

#include <inttypes.h>

const struct tdm_export_format *const tdm_export_formats[] = {
    &tdm_export_chrome, &tdm_export_memory_viz, &tdm_export_csv, NULL};

static enum tdm_status write_ranks(const struct tdm_export_format *format,
                                   const struct tdm_export_source *source,
                                   const struct tdm_step *first, struct tdm_export *export,
                                   unsigned pass, struct tdm_error *err)
{
    enum tdm_status status = format->write(export, first, pass, err);
    const uint32_t ranks = source->rank == TDM_PLOT_ALL_RANKS ? export->ranks : 1;
    for (uint32_t rank = 1; rank < ranks && status == TDM_OK && !ferror(export->out); rank++) {
        struct tdm_step *step;
        status = tdm_step_read(source->path, first->plot->step, rank, &step, err);
        if (status != TDM_OK)
            return status;
        status = format->write(export, step, pass, err);
        tdm_step_free(step);
    }
    return status;
}

enum tdm_status tdm_export_write(const struct tdm_export_format *format,
                                 const struct tdm_export_source *source, FILE *out,
                                 struct tdm_export_gaps *gaps, struct tdm_error *err)
{
    const bool all = source->rank == TDM_PLOT_ALL_RANKS;
    struct tdm_export export = {.out = out, .all_ranks = all};
    struct tdm_step *first;
    enum tdm_status status =
        tdm_step_read(source->path, source->step, all ? 0 : source->rank, &first, err);
    if (status != TDM_OK)
        return status;
    if (all && first->ranks > TDM_EXPORTED_RANKS) {
        tdm_fail(err, TDM_USAGE, "%s: has %" PRIu32 " ranks; at most %u are exported together",
                 source->path, first->ranks, TDM_EXPORTED_RANKS);
        tdm_step_free(first);
        return tdm_hint(err, "name one with --rank");
    }
    export.ranks = tdm_step_side(first) == TDM_MEASURED ? first->plot->timed_ranks : first->ranks;
    status = format->begin(&export, first, err);
    for (unsigned pass = 0; pass < format->passes && status == TDM_OK; pass++)
        status = write_ranks(format, source, first, &export, pass, err);
    format->end(&export);
    *gaps = (struct tdm_export_gaps){.unfinished = first->plot->unfinished,
                                     .step = first->plot->step,
                                     .ranks = export.ranks,
                                     .without = all ? first->ranks - export.ranks : 0};
    tdm_step_free(first);
    return status;
}
