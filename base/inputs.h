/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inputs of a command, so that it never overwrites them. --force allows replacing an older
 * result, but never an input of the result.
 */
#ifndef TDM_BASE_INPUTS_H
#define TDM_BASE_INPUTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* A file that a command reads, or a folder in which it reads files. */
struct tdm_input {
    const char *option; /* its name on the command line: "--tokens", "MODEL" */
    const char *path;   /* NULL: not given, or not a file of the user's */
    /* for a folder: is a file of this name read? NULL: `path` is a file */
    bool (*reads)(const char *name);
};

/* Is `path`, a file or directory to be written as a whole, this input? Yes if both are the same
 * file or directory (by device and inode, so also through links), if `path` is, or would be, a file
 * that is read in the folder, or if it is a directory that contains the input. "-" never is. */
bool tdm_input_is(const struct tdm_input *input, const char *path);

/* Refuses to write `path`, given as `option`, if it is one of the inputs, or empty: TDM_USAGE.
 * `path` NULL: nothing is to be written. */
enum tdm_status tdm_inputs_spare(const struct tdm_input *inputs, size_t count, const char *option,
                                 const char *path, struct tdm_error *err);

/* Refuses a name for a file that is empty, or is that of a folder: TDM_USAGE. NULL: nothing is to
 * be written. */
enum tdm_status tdm_output_check_name(const char *option, const char *path, struct tdm_error *err);

/* Are both the same file or directory, or is `path` in the directory `other`? Neither has to exist
 * yet. */
bool tdm_path_within(const char *path, const char *other);

#endif
