/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a file piece by piece, for one that is too large to be built in memory. As with
 * tdm_file_write() (file.h), a reader sees the old file or the whole new one. */
#ifndef TDM_BASE_OUTPUT_H
#define TDM_BASE_OUTPUT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

struct tdm_output {
    FILE *file;      /* to write to; errors may be left to tdm_output_commit() */
    char *path;      /* the file that it becomes; owned */
    char *temporary; /* the name while it is written; NULL: written in place; owned */
    bool force;      /* replaces a file of that name */
};

/* Opens `path` for writing, after tdm_file_check(). "-" is stdout; a device or a pipe is written in
 * place. On success the caller ends *output with tdm_output_commit() or tdm_output_abandon(). */
enum tdm_status tdm_output_begin(const char *path, bool force, struct tdm_output *output,
                                 struct tdm_error *err);

/* Puts the file in its place. TDM_IO if any write failed: then nothing is left behind. */
enum tdm_status tdm_output_commit(struct tdm_output *output, struct tdm_error *err);

/* Removes what was written. Does nothing if *output is all zero. */
void tdm_output_abandon(struct tdm_output *output);

#endif
