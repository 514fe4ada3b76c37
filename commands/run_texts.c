/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that a run evaluates on, and their names. */
#include "commands/run_texts.h"

#include "base/text.h"
#include "texts/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the length of the name in "NAME=WHAT"; 0: there is none. */
static enum tdm_status find_name(const char *text, size_t *length, struct tdm_error *err)
{
    static const char *const letters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const char *equals = strchr(text, '=');
    const size_t before = equals == NULL ? 0 : (size_t)(equals - text);
    bool is_path = equals == NULL || strcspn(text, "/:,*?[") < before;
    enum tdm_status status = is_path ? TDM_OK : tdm_text_list_exists(text, &is_path, err);
    if (status != TDM_OK)
        return status;
    *length = is_path ? 0 : before;
    if (is_path || (before > 0 && strspn(text, letters) == before && before < TDM_TEXT_NAME))
        return TDM_OK;
    if (before > 0 && strspn(text, letters) == before)
        return tdm_fail(err, TDM_USAGE,
                        "--validation \"%.64s\": the name has %zu letters; at most %d are possible",
                        text, before, TDM_TEXT_NAME - 1);
    tdm_fail(
        err, TDM_USAGE,
        "--validation \"%.64s\": the name before \"=\" may have the letters a to z and A to Z, "
        "digits, \"_\", \"-\" and \".\"",
        text);
    return tdm_hint(err, "if it is the name of a file, give it as ./FILE");
}

/* The name of a text that has none: that of its file, without what is after the dot. */
static void name_after_file(const char *path, char out[TDM_TEXT_NAME])
{
    const char *begin = strrchr(path, '/');
    begin = begin == NULL ? path : begin + 1;
    const char *colon = strchr(begin, ':'); /* of "bytes:FILE" */
    begin = colon == NULL ? begin : colon + 1;
    const size_t length = strcspn(begin, ".,") > 0 ? strcspn(begin, ".,") : strlen(begin);
    snprintf(out, TDM_TEXT_NAME, "%.*s", (int)length, begin);
    tdm_text_clean(out);
    for (char *at = out; *at != '\0'; at++) /* it stands in rows of CSV and in tags */
        if (strchr(", \t\"\n/*?[]", *at) != NULL || (unsigned char)*at < ' ')
            *at = '_';
}

enum tdm_status tdm_run_text_read(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_run_options *run = value;
    size_t length = 0;
    char *end;
    if (run->text_count == TDM_RUN_MOST_TEXTS)
        return tdm_fail(err, TDM_USAGE, "--validation is given more than %u times",
                        TDM_RUN_MOST_TEXTS);
    enum tdm_status status = find_name(text, &length, err);
    if (status != TDM_OK)
        return status;
    struct tdm_run_text *to = &run->texts[run->text_count++];
    const char *what = length > 0 ? text + length + 1 : text;
    snprintf(to->name, sizeof(to->name), "%.*s", (int)length, text);
    double share = strtod(what, &end);
    if (end == what || *end != '\0') {
        to->path = what;
        return TDM_OK;
    }
    to->share = share;
    if (share > 0 && share < 1)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--validation \"%s\"; use a share above 0 and below 1, or a file",
             text);
    return tdm_hint(err, "for example --validation 0.1");
}

enum tdm_status tdm_run_texts_name(struct tdm_run_options *run, struct tdm_error *err)
{
    for (uint32_t i = 0; i < run->text_count; i++) {
        struct tdm_run_text *text = &run->texts[i];
        if (text->name[0] == '\0' && run->text_count == 1)
            snprintf(text->name, sizeof(text->name), "%s", TDM_TEXT_UNNAMED);
        else if (text->name[0] == '\0')
            name_after_file(text->path == NULL ? "tokens" : text->path, text->name);
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(run->texts[j].name, text->name) == 0) {
                tdm_fail(err, TDM_USAGE, "--validation: two texts are named \"%s\"", text->name);
                return tdm_hint(err, "give each a name of its own: --validation NAME=FILE");
            }
            if (run->texts[j].path == NULL && text->path == NULL)
                return tdm_fail(err, TDM_USAGE,
                                "--validation: %g and %g are both shares of --tokens; one can be",
                                run->texts[j].share, text->share);
        }
    }
    return TDM_OK;
}
