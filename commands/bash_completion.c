/* SPDX-License-Identifier: Apache-2.0 */
/* Generates the bash completion script from the command tables. The script asks tidemark for the
 * names of models and machines, because only the program knows where they are installed. */
#include "commands/option_texts.h"

#include "methods/method.h"

#include <string.h>

static const char begin[] =
    "# Completes the words of tidemark in bash. Made of the tables of its commands.\n"
    "\n"
    "# What models and machines the program lists, without the heading.\n"
    "_tidemark_listed() {\n"
    "    tidemark \"$1\" 2>/dev/null | {\n"
    "        read -r _\n"
    "        while read -r name _; do echo \"$name\"; done\n"
    "    }\n"
    "}\n"
    "\n"
    "# Of a command ($1), sets `kind` to what may stand for the value of an option ($2), or as an\n"
    "# argument ($2 empty), and `names` to a list of it.\n"
    "_tidemark_values() {\n"
    "    kind=any names=\n"
    "    case \"$1 $2\" in\n";

static const char end[] =
    "# Offers file names that begin as $cur, in folders too.\n"
    "_tidemark_files() {\n"
    "    local name\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    while read -r name; do COMPREPLY+=(\"$name\"); done < <(compgen \"$1\" -- \"$cur\")\n"
    "}\n"
    "\n"
    "_tidemark_offer() {\n"
    "    COMPREPLY+=($(compgen -W \"$1\" -- \"$cur\"))\n"
    "}\n"
    "\n"
    "_tidemark() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    local command=${COMP_WORDS[1]} kind names\n"
    "    COMPREPLY=()\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        _tidemark_offer \"$_tidemark_commands --help --version\"\n"
    "        return\n"
    "    fi\n"
    "    # bash gives --option=value as three words\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=\n"
    "    elif [[ $option == = ]]; then\n"
    "        option=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n"
    "    case \" $(_tidemark_valued \"$command\") \" in\n"
    "    *\" $option \"*) ;;\n"
    "    *) option= ;;\n"
    "    esac\n"
    "    if [[ -z $option && $cur == -* ]]; then\n"
    "        _tidemark_offer \"$(_tidemark_options \"$command\")\"\n"
    "        return\n"
    "    fi\n"
    "    _tidemark_values \"$command\" \"$option\"\n"
    "    case $kind in\n"
    "    names) _tidemark_offer \"$names\" ;;\n"
    "    files) _tidemark_files -f ;;\n"
    "    folders) _tidemark_files -d ;;\n"
    "    models) _tidemark_offer \"$(_tidemark_listed models)\"; _tidemark_files -f ;;\n"
    "    machines) _tidemark_offer \"$(_tidemark_listed machines) local\"; _tidemark_files -f ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "complete -F _tidemark tidemark\n";

static const char *kind_name(enum tdm_value_kind kind)
{
    static const char *const names[] = {
        [TDM_VALUES_ANY] = "any",       [TDM_VALUES_NAMES] = "names",
        [TDM_VALUES_FILES] = "files",   [TDM_VALUES_FOLDERS] = "folders",
        [TDM_VALUES_MODELS] = "models", [TDM_VALUES_MACHINES] = "machines",
        [TDM_VALUES_METHODS] = "names"};
    return names[kind];
}

/* Prints "a, b or c" as separate words. */
static void put_phrase(FILE *out, const char *phrase)
{
    const char *between = "";
    for (size_t length; *phrase != '\0'; phrase += length) {
        length = strcspn(phrase, " ,");
        if (length > 0 && !(length == 2 && strncmp(phrase, "or", 2) == 0)) {
            fprintf(out, "%s%.*s", between, (int)length, phrase);
            between = " ";
        }
        length += strspn(phrase + length, " ,");
    }
}

static void put_names(FILE *out, const struct tdm_option *option)
{
    const char *name;
    if (option->values == TDM_VALUES_METHODS)
        for (const struct tdm_method *method = tdm_methods(); method->name != NULL; method++)
            fprintf(out, "%s%s", method == tdm_methods() ? "" : " ", method->name);
    else if (option->nth_name != NULL)
        for (size_t i = 0; (name = option->nth_name(i)) != NULL; i++)
            fprintf(out, "%s%s", i == 0 ? "" : " ", name);
    else if (option->names != NULL)
        put_phrase(out, option->names);
}

static void put_values(FILE *out, const struct tdm_command *command)
{
    const struct tdm_option argument = {.values = command->arguments};
    for (const struct tdm_option *row = command->options; !tdm_options_end(row); row++) {
        const struct tdm_option option = tdm_option_of(row);
        if (option.values == TDM_VALUES_ANY)
            continue;
        fprintf(out, "    \"%s --%s\"", command->name, option.name);
        if (option.letter != 0)
            fprintf(out, " | \"%s -%c\"", command->name, option.letter);
        fprintf(out, ") kind=%s names='", kind_name(option.values));
        put_names(out, &option);
        fputs("' ;;\n", out);
    }
    if (argument.values == TDM_VALUES_ANY)
        return;
    fprintf(out, "    \"%s \") kind=%s names='", command->name, kind_name(argument.values));
    put_names(out, &argument);
    fputs("' ;;\n", out);
}

/* Prints a shell function that prints a command's options: all of them, or only those that take a
 * value. */
static void put_options(FILE *out, const char *function, const struct tdm_command *const *commands,
                        bool all)
{
    fprintf(out, "%s() {\n    case $1 in\n", function);
    for (; *commands != NULL; commands++) {
        fprintf(out, "    %s) echo '", (*commands)->name);
        for (const struct tdm_option *row = (*commands)->options; !tdm_options_end(row); row++) {
            const struct tdm_option option = tdm_option_of(row);
            if (!all && option.type == TDM_OPTION_FLAG)
                continue;
            fprintf(out, "--%s ", option.name);
            if (option.letter != 0)
                fprintf(out, "-%c ", option.letter);
        }
        fprintf(out, "%s' ;;\n", all ? "--help" : "");
    }
    fputs("    esac\n}\n\n", out);
}

void tdm_bash_completion(FILE *out, const struct tdm_command *const *commands)
{
    fputs(begin, out);
    for (size_t i = 0; commands[i] != NULL; i++)
        put_values(out, commands[i]);
    fputs("    esac\n}\n\n", out);
    put_options(out, "_tidemark_options", commands, true);
    put_options(out, "_tidemark_valued", commands, false);
    fputs("_tidemark_commands='", out);
    for (size_t i = 0; commands[i] != NULL; i++)
        fprintf(out, "%s%s", i == 0 ? "" : " ", commands[i]->name);
    fputs("'\n\n", out);
    fputs(end, out);
}
