/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a command, read one by one. An option that is not known, that lacks its value or
 * that is given twice is an error of one line, in the same words for every command.
 */
#ifndef TDM_BASE_OPTIONS_H
#define TDM_BASE_OPTIONS_H

#include "base/status.h"

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>

/* An option that has another name now. */
struct tdm_renamed_option {
    const char *old, *now; /* without dashes: "sequences", "batch" */
};

/* More than any command has. */
#define TDM_MOST_OPTIONS 64u

/* The caller sets the fields up to `renamed`; all else is zero before the first call. */
struct tdm_options {
    const char *command; /* "plan" */
    const char *letters; /* options of one letter, as getopt() takes them, after a colon: ":ho:" */
    const struct option *names; /* ended by an empty one, as getopt_long() takes them */
    const int *repeatable;      /* what may be given more than once, ended by 0; NULL: nothing */
    const struct tdm_renamed_option *renamed; /* ended by an empty one; NULL: none */
    bool begun;
    int seen[TDM_MOST_OPTIONS];
    size_t seen_count;
};

/* The next option of argv in *option, as getopt_long() returns it, its value in optarg; -1 after
 * the last one, when optind is the first argument that is none. TDM_USAGE: a wrong option, with a
 * hint. One command line a process at a time, as getopt's variables are global. */
enum tdm_status tdm_options_next(struct tdm_options *options, int argc, char **argv, int *option,
                                 struct tdm_error *err);

#endif
