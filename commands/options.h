/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a command, in one table. The command line is parsed by it, and the help, manual
 * page and completion are generated from it (commands/option_texts.h).
 *
 * An unknown option, a missing value and a repeated option are one-line errors with the same
 * wording in every command.
 */
#ifndef TDM_COMMANDS_OPTIONS_H
#define TDM_COMMANDS_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The type of a value. It determines the C type that is written. */
enum tdm_option_type {
    TDM_OPTION_TEXT,   /* const char *, which points into argv */
    TDM_OPTION_FLAG,   /* bool; the option takes no value */
    TDM_OPTION_BYTES,  /* uint64_t: "80G" */
    TDM_OPTION_TOKENS, /* uint64_t: "256K", at most `high` unless that is 0 */
    TDM_OPTION_COUNT,  /* uint64_t from `low` to `high` */
};

/* The set of possible values, for completion. */
enum tdm_value_kind {
    TDM_VALUES_ANY,   /* no suggestions */
    TDM_VALUES_NAMES, /* the entries of `names` */
    TDM_VALUES_FILES,
    TDM_VALUES_FOLDERS,
    TDM_VALUES_MODELS,   /* shipped models, and files */
    TDM_VALUES_MACHINES, /* shipped and local machines, and files */
    TDM_VALUES_METHODS,
};

/* One option. If `as` is set, the row refers to that shared option, and fields that are zero here
 * are taken from it. */
struct tdm_option {
    const struct tdm_option *as; /* NULL: none */
    const char *name;            /* without dashes: "context" */
    const char *formerly;        /* its previous name; NULL: none */
    char letter;                 /* 'o' of -o; 0: none */
    const char *word;            /* placeholder of the value in texts: "N"; NULL only for flags */
    /* `help`: text for --help, lower case, without a full stop. `details`: further sentences for
     * the manual page; NULL: none. Lines are wrapped when they are printed. */
    const char *help, *details;
    enum tdm_option_type type;
    uint64_t low, high;
    size_t place; /* offset of the value in the command's arguments struct */
    /* Custom parser, used instead of `type`. `value` points to `place`. NULL: parse by type. */
    enum tdm_status (*read)(const char *text, void *value, struct tdm_error *err);
    bool repeats; /* may be given more than once */
    enum tdm_value_kind values;
    const char *names; /* for TDM_VALUES_NAMES: "a, b or c", as messages list them; or NULL */
    const char *(*nth_name)(size_t index); /* the same by index; NULL past the end */
};

/* An upper limit for the number of options of a command. */
#define TDM_MOST_OPTIONS 64u

/* A list that a command's help prints below its options, such as keys or presets. */
struct tdm_help_entry {
    const char *term;           /* "chunk=N" */
    const char *help, *details; /* as in struct tdm_option */
};

struct tdm_help_list {
    const char *title;                                /* "Keys of --set" */
    struct tdm_help_entry (*nth_entry)(size_t index); /* an entry without a term past the end */
};

struct tdm_command {
    const char *name;
    const char *usage;                 /* "plan MODEL --context N [options]" */
    const char *summary;               /* one line, lower case, no full stop */
    const struct tdm_option *options;  /* ends with an empty row; every command also has --help */
    const struct tdm_help_list *lists; /* ends with an entry without a title; NULL: none */
    const char *notes;                 /* below the options: general remarks and examples */
    enum tdm_value_kind arguments;     /* type of the positional arguments */
    /* Called after an unknown option, to add to the error message. argv[optind - 1] is the option.
     * NULL: nothing to add. */
    void (*refused)(const char *command, int argc, char **argv, struct tdm_error *err);
    /* argv[0] is the command's name. Fills err on failure; main.c prints it and exits. NULL:
     * tidemark-executor runs the command. */
    enum tdm_status (*run)(int argc, char **argv, struct tdm_error *err);
};

/* Resolves a row: fills its empty fields from `as`. */
struct tdm_option tdm_option_of(const struct tdm_option *row);

/* Is the row the empty one that ends a table? */
bool tdm_options_end(const struct tdm_option *row);

/* Parses the options in argv into `arguments`, by the command's table. Moves the positional
 * arguments to the end of argv, from *first on. With --help, prints the help and sets *help;
 * without `help`, that is no option. Fails with TDM_USAGE and a hint on a wrong option or value.
 * Not reentrant, because getopt's variables are global. */
enum tdm_status tdm_options_read(const struct tdm_command *command, int argc, char **argv,
                                 void *arguments, int *first, bool *help, struct tdm_error *err);

#endif
