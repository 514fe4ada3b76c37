/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a command: one table, of which the command line is read, and help, manual page and
 * completion are made (commands/option_texts.h).
 *
 * An option that is not known, that lacks its value or that is given twice is an error of one line,
 * in the same words for every command.
 */
#ifndef TDM_COMMANDS_OPTIONS_H
#define TDM_COMMANDS_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a value is, and so what it is read into. */
enum tdm_option_type {
    TDM_OPTION_TEXT,   /* const char *, which points into argv */
    TDM_OPTION_FLAG,   /* bool; the option takes no value */
    TDM_OPTION_BYTES,  /* uint64_t: "80G" */
    TDM_OPTION_TOKENS, /* uint64_t: "256K", at most `high` where that is not 0 */
    TDM_OPTION_COUNT,  /* uint64_t from `low` to `high` */
};

/* What values there are, for completion. */
enum tdm_value_kind {
    TDM_VALUES_ANY,   /* nothing is offered */
    TDM_VALUES_NAMES, /* those of `names` */
    TDM_VALUES_FILES,
    TDM_VALUES_FOLDERS,
    TDM_VALUES_MODELS,   /* shipped ones, and files */
    TDM_VALUES_MACHINES, /* shipped ones, local, and files */
    TDM_VALUES_METHODS,
};

/* One option. A row that has `as` is that option in one command: fields that it leaves zero are as
 * there. */
struct tdm_option {
    const struct tdm_option *as; /* NULL: none */
    const char *name;            /* without dashes: "context" */
    const char *formerly;        /* the name that it had; NULL: none */
    char letter;                 /* 'o' of -o; 0: none */
    const char *word;            /* its value in texts: "N"; NULL for flags alone */
    /* What it does: for --help, lower case, without a full stop; and sentences that the manual page
     * has behind that, NULL: none. Lines are broken where they are printed. */
    const char *help, *details;
    enum tdm_option_type type;
    uint64_t low, high;
    size_t place; /* offset of the value in the arguments of the command */
    /* Reads the value in place of `type`; `value` is at `place`. NULL: by type. */
    enum tdm_status (*read)(const char *text, void *value, struct tdm_error *err);
    bool repeats; /* may be given more than once */
    enum tdm_value_kind values;
    const char *names; /* of TDM_VALUES_NAMES: "a, b or c", as messages list them; NULL: */
    const char *(*nth_name)(size_t index); /* the same by number; NULL beyond the last */
};

/* More options than any command has. */
#define TDM_MOST_OPTIONS 64u

/* A list of things that a command's help explains below its options: keys, presets. */
struct tdm_help_entry {
    const char *term;           /* "chunk=N" */
    const char *help, *details; /* as of an option */
};

struct tdm_help_list {
    const char *title;                                /* "Keys of --set" */
    struct tdm_help_entry (*nth_entry)(size_t index); /* without a term beyond the last */
};

struct tdm_command {
    const char *name;
    const char *usage;                 /* "plan MODEL --context N [options]" */
    const char *summary;               /* one line, lower case, no full stop */
    const struct tdm_option *options;  /* ended by an empty one; --help is of every command */
    const struct tdm_help_list *lists; /* ended by one without a title; NULL: none */
    const char *notes;                 /* below the options: what holds for all, and examples */
    enum tdm_value_kind arguments;     /* those that are not options */
    /* After an option that is not known, to say more of it; argv[optind - 1] is the option. NULL:
     * no more. */
    void (*refused)(const char *command, int argc, char **argv, struct tdm_error *err);
    /* argv[0] is the command's name. Fills err on failure; main.c prints it and exits. NULL:
     * tidemark-executor carries it out. */
    enum tdm_status (*run)(int argc, char **argv, struct tdm_error *err);
};

/* The option of a row, with what it has from `as`. */
struct tdm_option tdm_option_of(const struct tdm_option *row);

/* Is the row the empty one that ends a table? */
bool tdm_options_end(const struct tdm_option *row);

/* Reads the options of argv into `arguments`, as the table of the command says. Then argv holds the
 * other words last, from *first on. With --help prints the help and is done (*help). TDM_USAGE: a
 * wrong option or value, with a hint. One command line a process at a time, as getopt's variables
 * are global. */
enum tdm_status tdm_options_read(const struct tdm_command *command, int argc, char **argv,
                                 void *arguments, int *first, bool *help, struct tdm_error *err);

#endif
