/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step for other tools. Each function streams into `out`, and leaves its errors to whoever
 * closes it (base/output.h). */
#ifndef TDM_EXPORTS_EXPORT_H
#define TDM_EXPORTS_EXPORT_H

#include "exports/step.h"

#include <stdio.h>

typedef enum tdm_status (*tdm_export_write)(const struct tdm_step *step, FILE *out,
                                            struct tdm_error *err);

/* Chrome's trace events as a JSON object, which Perfetto opens too: a process for a rank, a thread
 * for a lane, counters of memory, and an arrow where a lane waited for another. */
enum tdm_status tdm_export_chrome(const struct tdm_step *step, FILE *out, struct tdm_error *err);

/* What torch.cuda.memory._snapshot() returns, pickled: a device for each place, with the arena as
 * its segment, and a block for each value. */
enum tdm_status tdm_export_memory_viz(const struct tdm_step *step, FILE *out,
                                      struct tdm_error *err);

/* A header and a row for each op (RFC 4180, with lines that end in LF). */
enum tdm_status tdm_export_csv(const struct tdm_step *step, FILE *out, struct tdm_error *err);

struct tdm_export_format {
    const char *name;
    tdm_export_write write;
    bool binary; /* nothing for a terminal */
};

/* The formats; the last one has no name. */
extern const struct tdm_export_format tdm_export_formats[];

#endif
