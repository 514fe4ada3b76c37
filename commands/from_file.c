/* SPDX-License-Identifier: Apache-2.0 */
/* Which format a file of settings has, and the words of a command line. */
#include "commands/from_file.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/toml.h"
#include "base/yaml.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (UINT64_C(4) << 20) /* more than any file of settings */
#define WORD_BYTES 1024u

/* ---- arguments ---- */

struct words {
    const char *at, *file;
    unsigned line;
    struct tdm_error *err;
};

static void skip_space(struct words *w)
{
    for (;; w->at++) {
        if (*w->at == '#')
            w->at += strcspn(w->at, "\n");
        if (*w->at == '\\' && w->at[1] == '\n')
            w->at++;
        if (*w->at == '\n')
            w->line++;
        if (!isspace((unsigned char)*w->at))
            return;
    }
}

/* The next word, without its quotes. *quoted: it had some. */
static enum tdm_status next_word(struct words *w, char out[WORD_BYTES], bool *quoted)
{
    size_t length = 0;
    char quote = '\0';
    *quoted = false;
    for (; *w->at != '\0' && (quote != '\0' || !isspace((unsigned char)*w->at)); w->at++) {
        if (*w->at == '\n')
            break; /* inside quotes */
        if (*w->at == quote) {
            quote = '\0';
        } else if (quote == '\0' && (*w->at == '"' || *w->at == '\'')) {
            quote = *w->at;
            *quoted = true;
        } else if (length + 1 == WORD_BYTES) {
            return tdm_fail(w->err, TDM_INPUT, "%s: line %u: a word is too long", w->file, w->line);
        } else {
            out[length++] = *w->at;
        }
    }
    out[length] = '\0';
    if (quote != '\0')
        return tdm_fail(w->err, TDM_INPUT, "%s: line %u: a quote does not end on its line", w->file,
                        w->line);
    return TDM_OK;
}

static bool is_option(const char *word)
{
    return strncmp(word, "--", 2) == 0 && isalpha((unsigned char)word[2]);
}

/* Adds a value to an option: the first one replaces true, others make it a list. */
static bool add_value(json_t *object, const char *option, json_t *value)
{
    json_t *there = json_object_get(object, option);
    if (json_is_true(there))
        return json_object_set_new(object, option, value) == 0;
    if (json_is_array(there))
        return json_array_append_new(there, value) == 0;
    json_t *list = json_pack("[O, o]", there, value);
    return list != NULL && json_object_set_new(object, option, list) == 0;
}

/* Adds a word to the object: an option, or a value of the option before. Of an option that is there
 * twice the last one counts, as argparse has it. */
static enum tdm_status take_word(const struct words *w, json_t *object, char option[WORD_BYTES],
                                 char word[WORD_BYTES], bool quoted)
{
    char *value = word;
    if (!quoted && is_option(word)) {
        value = strchr(word, '=');
        if (value != NULL)
            *value++ = '\0';
        memcpy(option, word, strlen(word) + 1);
        if (json_object_set_new(object, option, json_true()) != 0)
            return tdm_fail(w->err, TDM_NO_MEMORY, "%s: no memory to parse it", w->file);
    } else if (option[0] == '\0') {
        tdm_fail(w->err, TDM_INPUT, "%s: line %u: expected an option, as --micro-batch-size 1",
                 w->file, w->line);
        return tdm_hint(w->err, "give the arguments alone, without the script around them");
    }
    if (value == NULL)
        return TDM_OK;
    json_t *scalar = quoted ? json_string(value) : tdm_yaml_scalar(value, strlen(value));
    if (scalar == NULL)
        return tdm_fail(w->err, TDM_INPUT, "%s: line %u: a value is not UTF-8", w->file, w->line);
    return add_value(object, option, scalar)
               ? TDM_OK
               : tdm_fail(w->err, TDM_NO_MEMORY, "%s: no memory to parse it", w->file);
}

static enum tdm_status read_argument(struct words *w, json_t *object, char option[WORD_BYTES])
{
    char word[WORD_BYTES];
    bool quoted;
    enum tdm_status status = next_word(w, word, &quoted);
    return status == TDM_OK ? take_word(w, object, option, word, quoted) : status;
}

static enum tdm_status parse_arguments(const char *file, const char *text, json_t **root,
                                       struct tdm_error *err)
{
    struct words w = {.at = text, .file = file, .line = 1, .err = err};
    char option[WORD_BYTES] = "";
    json_t *object = json_object();
    enum tdm_status status = TDM_OK;
    if (object == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    for (skip_space(&w); *w.at != '\0' && status == TDM_OK; skip_space(&w))
        status = read_argument(&w, object, option);
    if (status == TDM_OK)
        *root = object;
    else
        json_decref(object);
    return status;
}

/* ---- shell scripts ---- */

/* A word without the folders before it. */
static const char *program_name(const json_t *words, size_t index)
{
    const char *word = json_string_value(json_array_get(words, index));
    const char *slash = strrchr(word, '/');
    return slash != NULL ? slash + 1 : word;
}

/* A command that launches by itself: files of Python among its options are plugins. NULL: the first
 * word is none. */
static const char *own_program(const json_t *words)
{
    static const char *const names[] = {
        "swift", "megatron", "llamafactory-cli", "trl", "tune", "axolotl", "vllm", "sglang"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(program_name(words, 0), names[i]) == 0)
            return names[i];
    return NULL;
}

/* "python -m torch.distributed.run" is torchrun. NULL: no word. */
static bool is_launcher(const char *module)
{
    static const char *const modules[] = {"torch.distributed.run", "torch.distributed.launch",
                                          "accelerate.commands.launch", "deepspeed"};
    bool found = false;
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]) && module != NULL; i++)
        found |= strcmp(module, modules[i]) == 0;
    return found;
}

/* "vllm serve" or "sglang serve", of which this word is the first. NULL: it is not. */
static const char *serves(const json_t *words, size_t index)
{
    static const char *const names[] = {"vllm", "sglang"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (index + 1 < json_array_size(words) &&
            strcmp(program_name(words, index), names[i]) == 0 &&
            strcmp(json_string_value(json_array_get(words, index + 1)), "serve") == 0)
            return names[i];
    return NULL;
}

/* Takes away words that only start another command: "nohup", "uv run", and all before "vllm
 * serve". */
static void drop_starters(json_t *words)
{
    static const char *const starters[] = {"nohup", "sudo", "exec", "time", "env", "uv", "run"};
    for (size_t i = 0; i < sizeof(starters) / sizeof(starters[0]); i++)
        if (json_array_size(words) > 1 &&
            strcmp(json_string_value(json_array_get(words, 0)), starters[i]) == 0)
            json_array_remove(words, 0);
    size_t before = 0;
    while (before < json_array_size(words) && serves(words, before) == NULL)
        before++;
    for (size_t i = before < json_array_size(words) ? before : 0; i > 0; i--)
        json_array_remove(words, 0);
}

/* Takes away where the output goes: "> log.txt 2>&1 &". */
static void drop_redirections(json_t *words)
{
    for (size_t i = 1; i < json_array_size(words); i++) {
        const char *word = json_string_value(json_array_get(words, i));
        const size_t before = strspn(word, "0123456789&");
        if (before > 1 || (word[before] != '>' && strcmp(word, "&") != 0))
            continue;
        while (json_array_size(words) > i)
            json_array_remove(words, i);
    }
}

/* The word of vLLM's image for Docker, behind which are the server's options. 0: none. */
static size_t image_index(const json_t *words)
{
    for (size_t i = 1; i < json_array_size(words); i++)
        if (strstr(json_string_value(json_array_get(words, i)), "/vllm-openai") != NULL)
            return i;
    return 0;
}

const char *tdm_from_server(const json_t *words)
{
    static const char *const modules[][2] = {{"vllm.entrypoints.openai.api_server", "vllm"},
                                             {"vllm.entrypoints.api_server", "vllm"},
                                             {"sglang.launch_server", "sglang"}};
    for (size_t i = 0; i < json_array_size(words); i++) {
        if (serves(words, i) != NULL)
            return serves(words, i);
        for (size_t m = 0; m < sizeof(modules) / sizeof(modules[0]) && i > 0; m++)
            if (strcmp(json_string_value(json_array_get(words, i - 1)), "-m") == 0 &&
                strcmp(json_string_value(json_array_get(words, i)), modules[m][0]) == 0)
                return modules[m][1];
    }
    return image_index(words) > 0 ? "vllm" : NULL;
}

/* A short option of vLLM by its long name: "-tp 2" and "-tp=2". False: no memory. */
static bool lengthen_word(json_t *words, size_t index)
{
    static const char *const options[][2] = {
        {"-tp", "--tensor-parallel-size"},   {"-pp", "--pipeline-parallel-size"},
        {"-dp", "--data-parallel-size"},     {"-dcp", "--decode-context-parallel-size"},
        {"-ep", "--enable-expert-parallel"}, {"-q", "--quantization"},
        {"-O", "--compilation-config"}};
    const char *word = json_string_value(json_array_get(words, index));
    for (size_t o = 0; o < sizeof(options) / sizeof(options[0]); o++) {
        const size_t length = strlen(options[o][0]);
        const char *rest = word + length;
        if (strncmp(word, options[o][0], length) != 0)
            continue;
        if (*rest == '=' || *rest == '\0') {
            json_t *longer = json_sprintf("%s%s", options[o][1], rest);
            return json_array_set_new(words, index, longer) == 0;
        }
        if (strcmp(options[o][0], "-O") == 0) /* "-O3" */
            return json_array_set_new(words, index, json_sprintf("%s=%s", options[o][1], rest)) ==
                   0;
    }
    return true;
}

/* Does an option of vLLM take no value, or one in the same word? Switches have names that begin so
 * (vllm/engine/arg_utils.py). */
static bool takes_nothing(const char *option)
{
    static const char *const switches[] = {
        "--enable-",           "--disable-",           "--no-",
        "--trust-remote-code", "--enforce-eager",      "--async-scheduling",
        "--skip-tokenizer",    "--calculate-kv-scales"};
    bool found = strchr(option, '=') != NULL;
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
        found |= strncmp(option, switches[i], strlen(switches[i])) == 0;
    return found;
}

/* Does an option take all words up to the next one? */
static bool takes_many(const char *option)
{
    static const char *const lists[] = {"--served-model-name", "--lora-modules", "--middleware",
                                        "--cudagraph-capture-sizes", "--cuda-graph-sizes"};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (strcmp(option, lists[i]) == 0)
            return true;
    return false;
}

/* The word behind "vllm serve" that is the model: no option, nor the value of one. 0: none. */
static size_t model_index(const json_t *words, size_t serve)
{
    bool many = false, one = false; /* values that the latest option still takes */
    for (size_t i = serve + 1; i < json_array_size(words); i++) {
        const char *word = json_string_value(json_array_get(words, i));
        if (word[0] == '-') {
            many = takes_many(word);
            one = !many && !takes_nothing(word);
        } else if (!many && !one) {
            return i;
        } else {
            one = false;
        }
    }
    return 0;
}

/* vLLM's short options by their long names, the model of "vllm serve MODEL" as --model, and the
 * version of an image as --version. */
static bool lengthen(json_t *words)
{
    for (size_t i = 1; i < json_array_size(words); i++)
        if (!lengthen_word(words, i))
            return false;
    const size_t image = image_index(words), serve = serves(words, 0) != NULL ? 1 : image;
    const size_t model = serve > 0 ? model_index(words, serve) : 0;
    if (model > 0 && json_array_insert_new(words, model, json_string("--model")) != 0)
        return false;
    const char *tag = strrchr(json_string_value(json_array_get(words, image)), ':');
    return image == 0 || tag == NULL || tag[1] != 'v' ||
           (json_array_insert_new(words, image + 1, json_string("--version")) == 0 &&
            json_array_insert_new(words, image + 2, json_string(tag + 1)) == 0);
}

/* The word after which options are the program's: a file of Python, or the module of -m. Those
 * before it are the launcher's. 0: all are the program's. */
static size_t program_index(const json_t *words)
{
    if (own_program(words) != NULL)
        return 0;
    if (image_index(words) > 0)
        return image_index(words);
    for (size_t i = 0; i < json_array_size(words); i++) {
        const char *word = json_string_value(json_array_get(words, i));
        const size_t length = strlen(word);
        if (i > 0 && length > 3 && strcmp(word + length - 3, ".py") == 0)
            return i;
        if ((strcmp(word, "-m") == 0 || strcmp(word, "--module") == 0) &&
            !is_launcher(json_string_value(json_array_get(words, i + 1))))
            return i + 1;
    }
    return 0;
}

/* Options among words `from` to `to`. Words before the first one are a program and its files. */
static enum tdm_status take_options(const struct words *w, const json_t *words, size_t from,
                                    size_t to, json_t *object)
{
    char option[WORD_BYTES] = "", word[WORD_BYTES];
    enum tdm_status status = TDM_OK;
    for (size_t i = from; i < to && status == TDM_OK; i++) {
        const char *text = json_string_value(json_array_get(words, i));
        if (strlen(text) >= sizeof(word))
            return tdm_fail(w->err, TDM_INPUT, "%s: a word is too long", w->file);
        memcpy(word, text, strlen(text) + 1);
        if (option[0] != '\0' || is_option(word))
            status = take_word(w, object, option, word, false);
    }
    return status;
}

static enum tdm_status parse_script(const char *file, const char *text, json_t **root,
                                    struct tdm_error *err)
{
    const struct words w = {.at = text, .file = file, .line = 1, .err = err};
    json_t *words = NULL, *assigned = NULL;
    enum tdm_status status = tdm_from_script(file, text, &words, &assigned, err);
    if (status != TDM_OK)
        return status;
    drop_starters(words);
    drop_redirections(words);
    const size_t program = program_index(words);
    const char *known = own_program(words) != NULL ? own_program(words) : tdm_from_server(words);
    if (known != NULL && strcmp(known, "vllm") == 0 && !lengthen(words))
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    json_t *object = json_object(), *launcher = json_object();
    if (object == NULL || launcher == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    if (status == TDM_OK)
        status = take_options(&w, words, 0, program, launcher);
    if (status == TDM_OK)
        status = take_options(&w, words, program, json_array_size(words), object);
    if (status == TDM_OK && known != NULL &&
        json_object_set_new(launcher, "program", json_string(known)) != 0)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    if (status == TDM_OK && (json_object_set(object, "launcher", launcher) != 0 ||
                             json_object_set(object, "env", assigned) != 0))
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to parse it", file);
    if (status == TDM_OK)
        *root = object;
    else
        json_decref(object);
    json_decref(launcher);
    json_decref(words);
    json_decref(assigned);
    return status;
}

/* ---- JSON with comments ---- */

/* Past a comment: of hjson, which DeepSpeed's configs are read by; NULL: here is none. */
static char *after_comment(char *at)
{
    if (*at == '#' || strncmp(at, "//", 2) == 0)
        return at + strcspn(at, "\n");
    if (strncmp(at, "/*", 2) != 0)
        return NULL;
    char *end = strstr(at + 2, "*/");
    return end == NULL ? NULL : end + 2;
}

/* Blanks comments, and commas before a closing bracket. Lines and columns stay. */
static void make_plain(char *text)
{
    char *comma = NULL, *end;
    for (char *at = text; *at != '\0'; at++) {
        if ((end = after_comment(at)) != NULL) {
            for (; at < end; at++)
                if (*at != '\n')
                    *at = ' ';
            at--;
        } else if (*at == '"') {
            comma = NULL;
            for (at++; *at != '\0' && *at != '"'; at++)
                at += *at == '\\' && at[1] != '\0';
            if (*at == '\0')
                return;
        } else if (*at == ',') {
            comma = at;
        } else if (!isspace((unsigned char)*at)) {
            if (comma != NULL && (*at == '}' || *at == ']'))
                *comma = ' ';
            comma = NULL;
        }
    }
}

/* ---- formats ---- */

enum format { JSON, YAML, TOML, ARGUMENTS };

static enum format format_by_text(const char *text)
{
    struct words w = {.at = text};
    skip_space(&w);
    if (*w.at == '{')
        return JSON;
    if (*w.at == '[')
        return TOML;
    return is_option(w.at) ? ARGUMENTS : YAML;
}

static enum format format_of(const char *path, const char *text)
{
    static const struct {
        const char *suffix;
        enum format format;
    } suffixes[] = {
        {".json", JSON}, {".yaml", YAML}, {".yml", YAML}, {".toml", TOML}, {".args", ARGUMENTS}};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t end = strlen(suffixes[i].suffix);
        if (length > end && strcmp(path + length - end, suffixes[i].suffix) == 0)
            return suffixes[i].format;
    }
    return format_by_text(text);
}

static bool is_script(const char *path, const char *text)
{
    const size_t length = strlen(path);
    return strncmp(text, "#!", 2) == 0 || (length > 3 && strcmp(path + length - 3, ".sh") == 0);
}

static unsigned lines_before(const char *text, const char *end)
{
    unsigned lines = 0;
    for (; text < end; text++)
        lines += *text == '\n';
    return lines;
}

enum tdm_status tdm_from_load(const char *path, json_t **root, struct tdm_error *err)
{
    char *text;
    uint64_t bytes;
    enum tdm_status status = tdm_file_read(path, MOST_BYTES, &text, &bytes, err);
    if (status != TDM_OK)
        return status;
    if (bytes == 0)
        status = tdm_fail(err, TDM_INPUT, "%s: is empty; expected settings", path);
    else if (strlen(text) != bytes)
        status = tdm_fail(err, TDM_INPUT, "%s: is no file of settings: it has a zero byte", path);
    else if (tdm_text_utf8_bytes(text) != bytes)
        status = tdm_fail(err, TDM_INPUT, "%s: line %u: is not UTF-8", path,
                          1 + lines_before(text, text + tdm_text_utf8_bytes(text)));
    else if (is_script(path, text))
        status = parse_script(path, text, root, err);
    else
        switch (format_of(path, text)) {
        case JSON:
            make_plain(text);
            status = tdm_json_parse(path, text, (size_t)bytes, root, err);
            break;
        case YAML:
            status = tdm_yaml_parse(path, text, (size_t)bytes, root, err);
            break;
        case TOML:
            status = tdm_toml_parse(path, text, (size_t)bytes, root, err);
            break;
        case ARGUMENTS:
            status = parse_arguments(path, text, root, err);
            break;
        }
    free(text);
    return status;
}
