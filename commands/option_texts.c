/* SPDX-License-Identifier: Apache-2.0 */
/* Generates --help and roff from the command tables. */
#include "commands/option_texts.h"

#include <ctype.h>
#include <string.h>

#define WIDTH 100u
#define MOST_TERM 20u /* longer terms get their own line */
#define TERM_BYTES 96u

static const struct tdm_option help_option = {
    .name = "help", .help = "this text", .type = TDM_OPTION_FLAG};

/* ---- --help ---- */

/* "-o, --output FILE". */
static const char *term_of(const struct tdm_option *option, char out[TERM_BYTES])
{
    char letter[5] = "";
    if (option->letter != 0)
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    snprintf(out, TERM_BYTES, "%s--%s%s%s", letter, option->name, option->word == NULL ? "" : " ",
             option->word == NULL ? "" : option->word);
    return out;
}

static size_t wider(size_t width, const char *term)
{
    size_t length = strlen(term);
    return length <= MOST_TERM && length > width ? length : width;
}

/* Prints words, wrapped and indented to a column. The cursor is at column `at`. */
static void print_words(const char *text, size_t length, size_t column, size_t at)
{
    const char *end = text + length;
    while (text < end) {
        size_t word = strcspn(text, " \n");
        if (at > column && at + 1 + word > WIDTH) {
            putchar('\n');
            at = 0;
        }
        size_t gap = at < column ? column - at : at > column;
        at += (size_t)printf("%*s%.*s", (int)gap, "", (int)word, text);
        text += word + strspn(text + word, " ");
    }
    putchar('\n');
}

/* Prints a term, and its text in the column after terms of `width`. */
static void print_entry(const char *term, size_t width, const char *text)
{
    const size_t column = 2 + width + 2;
    size_t at = 2 + strlen(term);
    printf("  %s", term);
    if (at + 2 > column) {
        putchar('\n');
        at = 0;
    }
    print_words(text, strlen(text), column, at);
}

/* Prints paragraphs. Lines that begin with a space are not wrapped. */
static void print_notes(const char *text)
{
    for (size_t length; *text != '\0'; text += length + 1) {
        length = strcspn(text, "\n");
        if (*text == ' ')
            printf("%.*s\n", (int)length, text);
        else
            print_words(text, length, 0, 0);
    }
}

static void print_options(const struct tdm_option *rows)
{
    char term[TERM_BYTES];
    size_t width = 0;
    for (const struct tdm_option *row = rows; !tdm_options_end(row); row++) {
        const struct tdm_option option = tdm_option_of(row);
        width = wider(width, term_of(&option, term));
    }
    width = wider(width, term_of(&help_option, term));
    for (const struct tdm_option *row = rows; !tdm_options_end(row); row++) {
        const struct tdm_option option = tdm_option_of(row);
        print_entry(term_of(&option, term), width, option.help);
    }
    print_entry(term_of(&help_option, term), width, help_option.help);
}

static void print_list(const struct tdm_help_list *list)
{
    struct tdm_help_entry entry;
    size_t width = 0;
    printf("\n%s:\n", list->title);
    for (size_t i = 0; (entry = list->nth_entry(i)).term != NULL; i++)
        width = wider(width, entry.term);
    for (size_t i = 0; (entry = list->nth_entry(i)).term != NULL; i++)
        print_entry(entry.term, width, entry.help);
}

void tdm_help_print(const struct tdm_command *command)
{
    printf("usage: tidemark %s\n\n%s\n\n", command->usage, command->summary);
    print_options(command->options);
    for (const struct tdm_help_list *list = command->lists; list != NULL && list->title != NULL;
         list++)
        print_list(list);
    putchar('\n');
    print_notes(command->notes);
}

/* ---- the manual page ---- */

/* Prints a word as roff: with literal hyphens, and option names in bold. */
static size_t put_word(FILE *out, const char *word, size_t length, bool begins_line)
{
    bool bold = false;
    if (begins_line && (*word == '.' || *word == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < length; i++) {
        bool begins = i == 0 || strchr("(\"", word[i - 1]) != NULL;
        if (!bold && begins && strncmp(word + i, "--", 2) == 0 && i + 2 < length) {
            fputs("\\fB", out);
            bold = true;
        } else if (bold && word[i] != '-' && !islower((unsigned char)word[i])) {
            fputs("\\fR", out);
            bold = false;
        }
        if (word[i] == '-')
            fputs("\\-", out);
        else if (word[i] == '\\')
            fputs("\\e", out);
        else
            putc(word[i], out);
    }
    if (bold)
        fputs("\\fR", out);
    return length;
}

/* Wraps words at 100 columns. Each sentence starts on a new line. */
static void put_text(FILE *out, const char *text, bool capital)
{
    size_t at = 0;
    char first[2] = "";
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (at > 0 && at + 1 + length > WIDTH) {
            putc('\n', out);
            at = 0;
        } else if (at > 0) {
            putc(' ', out);
            at++;
        }
        if (capital && islower((unsigned char)*text)) {
            first[0] = (char)toupper((unsigned char)*text);
            at += put_word(out, first, 1, false);
            at += put_word(out, text + 1, length - 1, false);
        } else {
            at += put_word(out, text, length, at == 0);
        }
        capital = false;
        text += length + strspn(text + length, " ");
    }
}

/* Does a text begin with a literal word: one of `names` (NULL: none), or "random:SEED"? */
static bool begins_typed(const char *text, const char *names)
{
    const size_t length = strcspn(text, " ,:");
    char word[TERM_BYTES];
    snprintf(word, sizeof(word), "%.*s", (int)length, text);
    return text[length] == ':' || (names != NULL && strstr(names, word) != NULL);
}

/* Prints the help sentence with a full stop, then the details. `names`: as in struct tdm_option. */
static void put_sentences(FILE *out, const char *help, const char *details, const char *names)
{
    put_text(out, help, !begins_typed(help, names));
    fputs(".\n", out);
    if (details != NULL) {
        put_text(out, details, false);
        putc('\n', out);
    }
}

void tdm_man_options(FILE *out, const struct tdm_command *command)
{
    for (const struct tdm_option *row = command->options; !tdm_options_end(row); row++) {
        const struct tdm_option option = tdm_option_of(row);
        fprintf(out, ".TP\n%s ", option.word == NULL ? ".B" : ".BI");
        if (option.letter != 0)
            fprintf(out, "\\-%c \", \" ", option.letter);
        fputs("\\-\\-", out);
        put_word(out, option.name, strlen(option.name), false);
        if (option.word != NULL)
            fprintf(out, " \" %s\"", option.word);
        putc('\n', out);
        put_sentences(out, option.help, option.details, option.names);
    }
}

bool tdm_man_list(FILE *out, const struct tdm_command *command, const char *title)
{
    struct tdm_help_entry entry;
    for (const struct tdm_help_list *list = command->lists; list != NULL && list->title != NULL;
         list++) {
        if (strcmp(list->title, title) != 0)
            continue;
        for (size_t i = 0; (entry = list->nth_entry(i)).term != NULL; i++) {
            fputs(".TP\n.B ", out);
            put_text(out, entry.term, false);
            putc('\n', out);
            put_sentences(out, entry.help, entry.details, NULL);
        }
        return true;
    }
    return false;
}
