/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments of the training command in a shell script, as words. Of the shell it knows
 * comments, quotes, lines that go on, assignments of words and of arrays, and what stands for them:
 * $NAME, ${NAME}, ${NAME:-word}, "${NAME[@]}"; and sums of numbers, $((16 / NAME)) and
 * $(expr 16 / $NAME). It runs nothing: what it cannot know, such as $(nproc), stays as it is
 * written. The training command is the one with the most options.
 */
#include "base/json.h"
#include "commands/from_file.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 4096u
#define NAME_BYTES 64u
#define LEAST_OPTIONS 2u  /* by one alone a trainer cannot be told */
#define MOST_WORDS 65536u /* of a script; arrays of arrays would fill the memory */

struct script {
    const char *at;
    json_t *names;   /* object: a string, or an array of strings */
    json_t *command; /* array of words, of the command being read */
    json_t *best;    /* of the one with the most options so far */
    json_t *before;  /* object: what was assigned before that command */
    size_t options;
    size_t words; /* of all lists so far */
    bool has_memory;
    bool is_too_long; /* it has too many words, or too long a one */
};

static bool is_name(char letter)
{
    return letter == '_' || isalnum((unsigned char)letter);
}

static void append(char word[WORD_BYTES], const char *text, size_t length)
{
    const size_t used = strlen(word);
    if (used + length + 1 > WORD_BYTES)
        length = WORD_BYTES - used - 1;
    memcpy(word + used, text, length);
    word[used + length] = '\0';
}

static void add_word(struct script *s, json_t *list, const char *word)
{
    s->is_too_long |= ++s->words > MOST_WORDS || strlen(word) + 1 == WORD_BYTES;
    if (!s->is_too_long && json_array_append_new(list, json_string(word)) != 0)
        s->has_memory = false;
}

/* Past "$", the name that follows and what it stands for; NULL: it stands for nothing. *fallback:
 * the word of ${NAME:-word}. */
static const json_t *read_name(struct script *s, char fallback[WORD_BYTES])
{
    char name[NAME_BYTES];
    const bool braced = s->at[1] == '{';
    const char *from = s->at + 1 + braced, *to = from;
    fallback[0] = '\0';
    while (is_name(*to))
        to++;
    if (to == from || (size_t)(to - from) >= sizeof(name))
        return NULL;
    snprintf(name, sizeof(name), "%.*s", (int)(to - from), from);
    if (braced) {
        if (strncmp(to, "[@]", 3) == 0 || strncmp(to, "[*]", 3) == 0)
            to += 3;
        const char *end = strchr(to, '}');
        if (end == NULL)
            return NULL;
        if (strncmp(to, ":-", 2) == 0)
            append(fallback, to + 2, (size_t)(end - to - 2));
        else if (to != end && to[0] != '=')
            return NULL;
        to = end + 1;
    }
    const json_t *value = json_object_get(s->names, name);
    if (value == NULL && fallback[0] == '\0')
        return NULL;
    s->at = to - 1;
    return value != NULL ? value : json_null();
}

/* Ends the word being read, if there is one. */
static void end_word(struct script *s, json_t *list, char word[WORD_BYTES], bool *open)
{
    if (*open)
        add_word(s, list, word);
    word[0] = '\0';
    *open = false;
}

/* The bytes of "(nproc)" and "((A * B))"; 0: no bracket is here. */
static size_t command_length(const char *text)
{
    size_t length = 0, depth = 0;
    do {
        depth += text[length] == '(';
        depth -= depth > 0 && text[length] == ')';
        length += depth > 0 || text[length] == ')';
    } while (depth > 0 && text[length] != '\0');
    return text[0] == '(' ? length : 0;
}

/* Past blanks, a whole number; false: here is none. */
static bool read_number(const char **at, long *number)
{
    char *end;
    *at += strspn(*at, " \t");
    if (!isdigit((unsigned char)**at))
        return false;
    *number = strtol(*at, &end, 10);
    *at = end;
    return true;
}

/* Past blanks, one of `signs`; '\0': here is none. */
static char read_sign(const char **at, const char *signs)
{
    *at += strspn(*at, " \t\\");
    return **at != '\0' && strchr(signs, **at) != NULL ? *(*at)++ : '\0';
}

/* Products before sums, whole numbers without brackets. False: it is anything else, or divides by
 * zero, or leaves what a number of a command may be. */
static bool calculate(const char *text, long *result)
{
    long sum = 0, product, next;
    char add = '+', sign;
    do {
        if (!read_number(&text, &product))
            return false;
        while ((sign = read_sign(&text, "*/")) != '\0') {
            if (!read_number(&text, &next) || (sign == '/' && next == 0) || next > INT32_MAX ||
                product > INT32_MAX)
                return false;
            product = sign == '*' ? product * next : product / next;
        }
        if (product > INT32_MAX || sum > INT32_MAX || sum < -INT32_MAX)
            return false;
        sum += add == '+' ? product : -product;
    } while ((add = read_sign(&text, "+-")) != '\0');
    *result = sum;
    return text[strspn(text, " \t")] == '\0';
}

/* Puts in what names stand for: N, $N and ${N}. */
static void put_names(const struct script *s, char sum[WORD_BYTES], const char *text, size_t length)
{
    const char *end = text + length;
    char name[NAME_BYTES];
    while (text < end) {
        size_t bytes = 0;
        while (text + bytes < end && is_name(text[bytes]))
            bytes++;
        snprintf(name, sizeof(name), "%.*s", (int)bytes, text);
        const char *value = json_string_value(json_object_get(s->names, name));
        if (value != NULL)
            append(sum, value, strlen(value));
        else if (bytes > 0 || strchr("${}", *text) == NULL)
            append(sum, text, bytes > 0 ? bytes : 1);
        text += bytes > 0 ? bytes : 1;
    }
}

/* "$((16 / N))" and "$(expr 16 / $N)": adds the number to the word. False: it is no such sum, and
 * nothing was added. */
static bool append_sum(const struct script *s, char word[WORD_BYTES], const char *text,
                       size_t length)
{
    static const char of_expr[] = "$(expr ", of_shell[] = "$((";
    char sum[WORD_BYTES] = "", number[32];
    long result;
    const bool of_command = strncmp(text, of_expr, sizeof(of_expr) - 1) == 0;
    const size_t before = of_command ? sizeof(of_expr) - 1 : sizeof(of_shell) - 1;
    const size_t behind = of_command ? 1 : 2;
    if ((!of_command && strncmp(text, of_shell, before) != 0) || length < before + behind)
        return false;
    put_names(s, sum, text + before, length - before - behind);
    if (!calculate(sum, &result))
        return false;
    snprintf(number, sizeof(number), "%ld", result);
    append(word, number, strlen(number));
    return true;
}

/* Adds what a name stands for: its blanks divide words, but not inside quotes. An array is its
 * words. */
static void expand(struct script *s, json_t *list, char word[WORD_BYTES], bool *open, bool quoted)
{
    char fallback[WORD_BYTES];
    const json_t *value = read_name(s, fallback);
    if (value == NULL) {
        size_t length = 1 + command_length(s->at + 1);
        if (!append_sum(s, word, s->at, length))
            append(word, s->at, length);
        s->at += length - 1;
        *open = true;
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0)
            end_word(s, list, word, open);
        const char *text = json_string_value(json_array_get(value, i));
        append(word, text, strlen(text));
        *open = true;
    }
    const char *text = json_is_string(value) ? json_string_value(value) : fallback;
    if (json_is_array(value))
        return;
    for (; *text != '\0'; text++) {
        if (!quoted && isspace((unsigned char)*text)) {
            end_word(s, list, word, open);
        } else {
            append(word, text, 1);
            *open = true;
        }
    }
    *open |= quoted;
}

/* The words up to one of `ends`, which stays unread. */
static void read_words(struct script *s, json_t *list, const char *ends)
{
    char word[WORD_BYTES] = "", quote = '\0';
    bool open = false;
    for (; *s->at != '\0'; s->at++) {
        if (quote == '\0' && strchr(ends, *s->at) != NULL)
            break;
        if (*s->at == '\\' && s->at[1] == '\n') {
            s->at++;
            if (quote == '\0')
                end_word(s, list, word, &open);
        } else if (*s->at == '\\' && s->at[1] != '\0' && quote != '\'') {
            append(word, ++s->at, 1);
            open = true;
        } else if (*s->at == quote) {
            quote = '\0';
        } else if (quote == '\0' && (*s->at == '"' || *s->at == '\'')) {
            quote = *s->at;
            open = true;
        } else if (*s->at == '$' && quote != '\'') {
            expand(s, list, word, &open, quote != '\0');
        } else if (quote == '\0' && *s->at == '#' && !open) {
            s->at += strcspn(s->at, "\n");
            s->at--;
        } else if (quote == '\0' && isspace((unsigned char)*s->at)) {
            end_word(s, list, word, &open);
        } else {
            append(word, s->at, 1);
            open = true;
        }
    }
    end_word(s, list, word, &open);
}

/* NAME=( words ), read where it begins. False: this is none. */
static bool read_array(struct script *s)
{
    const char *to = s->at;
    char name[NAME_BYTES];
    while (is_name(*to))
        to++;
    const size_t length = (size_t)(to - s->at);
    if (length == 0 || length >= sizeof(name) || to[0] != '=' || to[1] != '(')
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)length, s->at);
    json_t *words = json_array();
    s->at = to + 2;
    read_words(s, words, ")");
    s->at += *s->at != '\0';
    if (json_object_set_new(s->names, name, words) != 0)
        s->has_memory = false;
    return true;
}

/* "NAME=value" at the beginning of a command. */
static bool assign(struct script *s, const char *word)
{
    size_t length = 0;
    char name[NAME_BYTES];
    while (is_name(word[length]))
        length++;
    if (length == 0 || length >= sizeof(name) || word[length] != '=')
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)length, word);
    if (json_object_set_new(s->names, name, json_string(word + length + 1)) != 0)
        s->has_memory = false;
    return true;
}

static bool is_option(const char *word)
{
    return strncmp(word, "--", 2) == 0 && isalpha((unsigned char)word[2]);
}

/* Takes assignments from the beginning of the command that was read, and keeps it if it has more
 * options than those before. A server needs no options, so it counts as having the least. */
static void end_command(struct script *s)
{
    size_t options = 0;
    while (json_array_size(s->command) > 0) {
        const char *first = json_string_value(json_array_get(s->command, 0));
        if (strcmp(first, "export") != 0 && !assign(s, first))
            break;
        json_array_remove(s->command, 0);
    }
    for (size_t i = 0; i < json_array_size(s->command); i++)
        options += is_option(json_string_value(json_array_get(s->command, i)));
    const bool serves = tdm_from_server(s->command) != NULL;
    if (serves && options < LEAST_OPTIONS)
        options = LEAST_OPTIONS;
    if (options > s->options || (serves && options == s->options)) {
        json_decref(s->best);
        json_decref(s->before);
        s->best = tdm_json_copy(s->command);
        s->before = tdm_json_copy(s->names);
        s->has_memory &= s->best != NULL && s->before != NULL;
        s->options = options;
    }
    json_array_clear(s->command);
}

static void read_commands(struct script *s)
{
    while (*s->at != '\0' && !s->is_too_long) {
        while (isspace((unsigned char)*s->at) || (*s->at != '\0' && strchr(";&|()", *s->at)))
            s->at++;
        if (!read_array(s))
            read_words(s, s->command, "\n;&|()");
        end_command(s);
    }
}

enum tdm_status tdm_from_script(const char *file, const char *text, json_t **words,
                                json_t **assigned, struct tdm_error *err)
{
    struct script s = {
        .at = text, .names = json_object(), .command = json_array(), .has_memory = true};
    if (s.names != NULL && s.command != NULL)
        read_commands(&s);
    json_decref(s.names);
    json_decref(s.command);
    *words = s.best;
    *assigned = s.before;
    if (s.options >= LEAST_OPTIONS && s.has_memory && !s.is_too_long && s.best != NULL &&
        s.before != NULL)
        return TDM_OK;
    json_decref(s.best);
    json_decref(s.before);
    if (!s.has_memory || s.command == NULL || s.names == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    if (s.is_too_long)
        tdm_fail(err, TDM_INPUT, "%s: has more than %u words, or one of more than %u bytes", file,
                 MOST_WORDS, WORD_BYTES - 2);
    else
        tdm_fail(err, TDM_INPUT, "%s: is a shell script without a command that has options", file);
    return tdm_hint(err, "give the arguments that it passes, as --micro-batch-size 1 --bf16, in a "
                         "file whose name ends in .args");
}
