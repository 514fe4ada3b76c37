/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the step of a schedule or a trace for other tools, of one rank or of all, one after the
 * other, so that only one is in memory. Errors of the file are left to whoever closes it
 * (base/output.h).
 */
#ifndef TDM_EXPORTS_EXPORT_H
#define TDM_EXPORTS_EXPORT_H

#include "exports/step.h"

#include <stdbool.h>
#include <stdio.h>

/* What is exported. */
struct tdm_export_source {
    const char *path;
    int64_t step;  /* as of tdm_plot_read() */
    uint32_t rank; /* or TDM_PLOT_ALL_RANKS */
};

/* More ranks than these are not exported together: one has to be named. */
#define TDM_EXPORTED_RANKS 16u

/* A file that is being written. */
struct tdm_export {
    FILE *out;
    bool all_ranks; /* else one */
    uint32_t ranks; /* of all ranks, those that are written, from rank 0 on */
    bool begun;     /* something was written that others have to be separated from */
    void *state;    /* of the format */
};

struct tdm_export_format {
    const char *name;
    bool binary;     /* nothing for a terminal */
    unsigned passes; /* how often all ranks are read */
    /* Called with the first rank's step before the first pass, with each rank's in each pass, and
     * after the last pass, also if something failed. */
    enum tdm_status (*begin)(struct tdm_export *export, const struct tdm_step *step,
                             struct tdm_error *err);
    enum tdm_status (*write)(struct tdm_export *export, const struct tdm_step *step, unsigned pass,
                             struct tdm_error *err);
    void (*end)(struct tdm_export *export);
};

/* Chrome's trace events as a JSON object, which Perfetto opens too: a process for a rank, a thread
 * for a lane, counters of memory, and an arrow where a lane waited for another. */
extern const struct tdm_export_format tdm_export_chrome;

/* What torch.cuda.memory._snapshot() returns, pickled: a device for each place of each rank, with
 * the arena as its segment, and a block for each value. */
extern const struct tdm_export_format tdm_export_memory_viz;

/* A header and a row for each op of each rank (RFC 4180, with lines that end in LF). */
extern const struct tdm_export_format tdm_export_csv;

/* The formats; ends with NULL. */
extern const struct tdm_export_format *const tdm_export_formats[];

/* What a file does not have. */
struct tdm_export_gaps {
    bool unfinished;  /* it has only the ops that had ended */
    int64_t step;     /* of a trace */
    uint32_t ranks;   /* of all ranks: it has these, */
    uint32_t without; /* and so many have no times of the step */
};

/* Writes the whole file. Errors of
 * tdm_step_read(), TDM_NO_MEMORY; TDM_USAGE for too many ranks. */
enum tdm_status tdm_export_write(const struct tdm_export_format *format,
                                 const struct tdm_export_source *source, FILE *out,
                                 struct tdm_export_gaps *gaps, struct tdm_error *err);

#endif
