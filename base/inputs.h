/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a command reads, so that nothing that it writes takes its place: --force allows to replace
 * an older result, and never what the result is made from.
 */
#ifndef TDM_BASE_INPUTS_H
#define TDM_BASE_INPUTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* A file that a command reads, or a folder in which it reads files. */
struct tdm_input {
    const char *option; /* as the command line knows it: "--tokens", "MODEL" */
    const char *path;   /* NULL: it is not given, or none of the user's files */
    bool (*reads)(
        const char *name); /* of a folder: is a file of that name read? NULL: it is a file */
};

/* Is `path`, a file or a directory to be written whole, this input? It is if both are the same file
 * or directory (by device and inode, so also through links); if it is, or would be, a file that is
 * read in the folder; or if it is a directory that holds the input. "-" is not. */
bool tdm_input_is(const struct tdm_input *input, const char *path);

/* Refuses to write `path`, which `option` names, if it is one of the inputs: TDM_USAGE. `path`
 * NULL: nothing is to be written. */
enum tdm_status tdm_inputs_spare(const struct tdm_input *inputs, size_t count, const char *option,
                                 const char *path, struct tdm_error *err);

/* Are both, which may not exist yet, the same file or directory, or is `path` in the directory
 * `other`? */
bool tdm_path_within(const char *path, const char *other);

#endif
