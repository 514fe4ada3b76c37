/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a command: getopt_long(), and what is wrong with an option. */
#include "base/options.h"

#include <string.h>

static const char *now_called(const struct tdm_options *o, const char *word)
{
    size_t length = strcspn(word, "=");
    for (const struct tdm_renamed_option *r = o->renamed; r != NULL && r->old != NULL; r++)
        if (length == strlen(r->old) + 2 && memcmp(word + 2, r->old, length - 2) == 0)
            return r->now;
    return NULL;
}

/* getopt has passed the option at fault: it is the word before optind, or a letter inside a
 * word. */
static enum tdm_status bad_option(const struct tdm_options *o, int argc, char **argv, int option,
                                  struct tdm_error *err)
{
    const char letter[3] = {'-', (char)optopt, '\0'};
    const char *word = optind >= 1 && optind <= argc ? argv[optind - 1] : "";
    bool is_long = strncmp(word, "--", 2) == 0;
    const char *now = is_long ? now_called(o, word) : NULL;
    if (now != NULL)
        return tdm_fail(err, TDM_USAGE, "%s: --%.*s is called --%s now", o->command,
                        (int)strcspn(word, "=") - 2, word + 2, now);
    if (!is_long && optopt != 0)
        word = letter;
    if (option == ':')
        tdm_fail(err, TDM_USAGE, "%s: option \"%s\" needs a value", o->command, word);
    else if (optopt != 0 && strchr(word, '=') != NULL)
        tdm_fail(err, TDM_USAGE, "%s: option \"%.*s\" takes no value", o->command,
                 (int)strcspn(word, "="), word);
    else
        tdm_fail(err, TDM_USAGE, "%s: unknown option \"%.*s\"", o->command, (int)strcspn(word, "="),
                 word);
    return tdm_hint(err, "tidemark %s --help lists the options", o->command);
}

static bool may_repeat(const struct tdm_options *o, int option)
{
    for (const int *r = o->repeatable; r != NULL && *r != 0; r++)
        if (*r == option)
            return true;
    return false;
}

enum tdm_status tdm_options_next(struct tdm_options *o, int argc, char **argv, int *option,
                                 struct tdm_error *err)
{
    int which = -1;
    if (!o->begun) {
        opterr = 0;
        optind = 0; /* begin anew, whatever was read before */
        o->begun = true;
    }
    *option = getopt_long(argc, argv, o->letters, o->names, &which);
    if (*option == '?' || *option == ':')
        return bad_option(o, argc, argv, *option, err);
    if (*option == -1 || may_repeat(o, *option))
        return TDM_OK;
    for (size_t i = 0; i < o->seen_count; i++)
        if (o->seen[i] == *option) {
            const char letter[2] = {(char)*option, '\0'};
            return tdm_fail(err, TDM_USAGE, "%s: %s%s is given twice", o->command,
                            which >= 0 ? "--" : "-", which >= 0 ? o->names[which].name : letter);
        }
    if (o->seen_count < TDM_MOST_OPTIONS)
        o->seen[o->seen_count++] = *option;
    return TDM_OK;
}
