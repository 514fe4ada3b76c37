/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a command's options by its table, with getopt_long(). */
#include "commands/options.h"

#include "base/units.h"
#include "commands/option_texts.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#define MOST_NAME 32u
#define FIRST_CODE 256 /* getopt_long()'s return value for the first row */
#define HELP_CODE (FIRST_CODE + (int)TDM_MOST_OPTIONS)

/* The table in getopt_long()'s format, and the options seen so far. */
struct reading {
    const struct tdm_command *command;
    struct tdm_option options[TDM_MOST_OPTIONS];
    int count;
    struct option names[TDM_MOST_OPTIONS + 2];
    char letters[2 * TDM_MOST_OPTIONS + 4];
    bool seen[TDM_MOST_OPTIONS];
};

bool tdm_options_end(const struct tdm_option *row)
{
    return row->as == NULL && row->name == NULL;
}

struct tdm_option tdm_option_of(const struct tdm_option *row)
{
    struct tdm_option option = *row;
    const struct tdm_option *as = row->as;
    if (as == NULL)
        return option;
    option.name = as->name;
    option.letter = as->letter;
    option.type = as->type;
    option.repeats = row->repeats || as->repeats;
    if (row->word == NULL)
        option.word = as->word;
    if (row->help == NULL)
        option.help = as->help;
    if (row->details == NULL)
        option.details = as->details;
    if (row->low == 0)
        option.low = as->low;
    if (row->high == 0)
        option.high = as->high;
    if (row->read == NULL)
        option.read = as->read;
    if (row->values == TDM_VALUES_ANY)
        option.values = as->values;
    if (row->names == NULL && row->nth_name == NULL)
        option.names = as->names;
    return option;
}

static void prepare(struct reading *r, bool has_help)
{
    char *letter = stpcpy(r->letters, has_help ? ":h" : ":");
    for (const struct tdm_option *row = r->command->options;
         !tdm_options_end(row) && r->count < (int)TDM_MOST_OPTIONS; row++) {
        const struct tdm_option option = tdm_option_of(row);
        bool has_value = option.type != TDM_OPTION_FLAG;
        r->options[r->count] = option;
        r->names[r->count] = (struct option){.name = option.name,
                                             .has_arg = has_value ? required_argument : no_argument,
                                             .val = FIRST_CODE + r->count};
        if (option.letter != 0) {
            *letter++ = option.letter;
            if (has_value)
                *letter++ = ':';
        }
        r->count++;
    }
    if (has_help)
        r->names[r->count] =
            (struct option){.name = "help", .has_arg = no_argument, .val = HELP_CODE};
}

static const char *now_called(const struct reading *r, const char *word)
{
    size_t length = strcspn(word, "=");
    for (int i = 0; i < r->count; i++) {
        const char *old = r->options[i].formerly;
        if (old != NULL && length == strlen(old) + 2 && memcmp(word + 2, old, length - 2) == 0)
            return r->options[i].name;
    }
    return NULL;
}

/* getopt has already passed the wrong option: it is the word before optind, or a letter inside a
 * word. */
static enum tdm_status refuse(const struct reading *r, int argc, char **argv, int code,
                              struct tdm_error *err)
{
    const char *command = r->command->name;
    const char letter[3] = {'-', (char)optopt, '\0'};
    const char *word = optind >= 1 && optind <= argc ? argv[optind - 1] : "";
    bool is_long = strncmp(word, "--", 2) == 0;
    const char *now = is_long ? now_called(r, word) : NULL;
    if (now != NULL)
        return tdm_fail(err, TDM_USAGE, "%s: --%.*s is called --%s now", command,
                        (int)strcspn(word, "=") - 2, word + 2, now);
    if (!is_long && optopt != 0)
        word = letter;
    if (code == ':')
        tdm_fail(err, TDM_USAGE, "%s: option \"%s\" needs a value", command, word);
    else if (optopt != 0 && strchr(word, '=') != NULL)
        tdm_fail(err, TDM_USAGE, "%s: option \"%.*s\" takes no value", command,
                 (int)strcspn(word, "="), word);
    else
        tdm_fail(err, TDM_USAGE, "%s: unknown option \"%.*s\"", command, (int)strcspn(word, "="),
                 word);
    return tdm_hint(err, "tidemark %s --help lists the options", command);
}

static enum tdm_status read_value(const struct tdm_option *option, const char *text, void *value,
                                  struct tdm_error *err)
{
    char what[MOST_NAME], most[TDM_FORMAT_SIZE];
    enum tdm_status status;
    snprintf(what, sizeof(what), "--%s", option->name);
    if (option->read != NULL)
        return option->read(text, value, err);
    switch (option->type) {
    case TDM_OPTION_FLAG:
        *(bool *)value = true;
        return TDM_OK;
    case TDM_OPTION_BYTES:
        return tdm_parse_bytes(text, what, value, err);
    case TDM_OPTION_TOKENS:
        status = tdm_parse_tokens(text, what, value, err);
        if (status == TDM_OK && option->high > 0 && *(uint64_t *)value > option->high)
            return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is more than %s tokens", what, text,
                            tdm_format_tokens(option->high, most));
        return status;
    case TDM_OPTION_COUNT:
        return tdm_parse_count(text, what, option->low, option->high, value, err);
    default:
        *(const char **)value = text;
        return TDM_OK;
    }
}

/* The row for getopt_long()'s return value: a code, or an option's letter. */
static int row_of(const struct reading *r, int code)
{
    int row = code - FIRST_CODE;
    for (int i = 0; code < FIRST_CODE && i < r->count; i++)
        if (r->options[i].letter == code)
            row = i;
    return row;
}

static enum tdm_status take(struct reading *r, int code, void *arguments, struct tdm_error *err)
{
    int row = row_of(r, code);
    const struct tdm_option *option = &r->options[row];
    if (r->seen[row] && !option->repeats) {
        const char letter[2] = {option->letter, '\0'};
        bool is_long = code >= FIRST_CODE;
        return tdm_fail(err, TDM_USAGE, "%s: %s%s is given twice", r->command->name,
                        is_long ? "--" : "-", is_long ? option->name : letter);
    }
    r->seen[row] = true;
    return read_value(option, optarg, (char *)arguments + option->place, err);
}

enum tdm_status tdm_options_read(const struct tdm_command *command, int argc, char **argv,
                                 void *arguments, int *first, bool *help, struct tdm_error *err)
{
    struct reading reading = {.command = command};
    prepare(&reading, help != NULL);
    opterr = 0;
    optind = 0; /* resets getopt after an earlier parse */
    if (help != NULL)
        *help = false;
    for (;;) {
        enum tdm_status status = TDM_OK;
        int code = getopt_long(argc, argv, reading.letters, reading.names, NULL);
        if (code == -1)
            break;
        if (code == HELP_CODE || code == 'h') {
            tdm_help_print(command);
            *help = true;
            return TDM_OK;
        }
        if (code == '?' || code == ':') {
            status = refuse(&reading, argc, argv, code, err);
            if (code == '?' && command->refused != NULL)
                command->refused(command->name, argc, argv, err);
        } else {
            status = take(&reading, code, arguments, err);
        }
        if (status != TDM_OK)
            return status;
    }
    *first = optind;
    return TDM_OK;
}
