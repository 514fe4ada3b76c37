/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of a text that is given by several names, or by patterns. */
#include "texts/list.h"

#include "texts/token_file.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Takes over `what`; NULL: no memory. */
static enum tdm_status add(struct tdm_text_list *list, char *what, struct tdm_error *err)
{
    char **more =
        what == NULL ? NULL : realloc(list->whats, (list->count + 1) * sizeof(*list->whats));
    if (more == NULL) {
        free(what);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the names of %zu files",
                        list->count + 1);
    }
    list->whats = more;
    list->whats[list->count++] = what;
    return TDM_OK;
}

/* "uint16:" with a path. */
static char *with_prefix(const char *prefix, size_t prefix_bytes, const char *path)
{
    size_t bytes = strlen(path) + 1;
    char *what = malloc(prefix_bytes + bytes);
    if (what == NULL)
        return NULL;
    memcpy(what, prefix, prefix_bytes);
    memcpy(what + prefix_bytes, path, bytes);
    return what;
}

static bool ends_in(const char *path, const char *suffix)
{
    size_t length = strlen(path), end = strlen(suffix);
    return length > end && strcmp(path + length - end, suffix) == 0;
}

/* Is it the index of a pair of which the pattern matched the other file too? It sorts behind. */
static bool is_second_of_pair(const glob_t *found, size_t number)
{
    const char *path = found->gl_pathv[number];
    size_t stem = strlen(path) - 4;
    if (!ends_in(path, ".idx"))
        return false;
    for (size_t i = 0; i < number; i++)
        if (ends_in(found->gl_pathv[i], ".bin") && strlen(found->gl_pathv[i]) == stem + 4 &&
            strncmp(found->gl_pathv[i], path, stem) == 0)
            return true;
    return false;
}

static enum tdm_status add_matches(struct tdm_text_list *list, const char *what,
                                   struct tdm_error *err)
{
    const size_t prefix = tdm_token_file_prefix(what);
    glob_t found;
    int reason = glob(what + prefix, 0, NULL, &found);
    if (reason == GLOB_NOMATCH) {
        tdm_fail(err, TDM_IO, "%s: no file has such a name", what);
        return tdm_hint(err, "a pattern has to be quoted, or the shell expands it");
    }
    if (reason != 0)
        return tdm_fail(err, reason == GLOB_NOSPACE ? TDM_NO_MEMORY : TDM_IO,
                        "%s: files of that name cannot be found: %s", what,
                        reason == GLOB_NOSPACE ? "out of memory" : strerror(errno));
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < found.gl_pathc && status == TDM_OK; i++)
        if (!is_second_of_pair(&found, i))
            status = add(list, with_prefix(what, prefix, found.gl_pathv[i]), err);
    globfree(&found);
    return status;
}

/* One name of the list. */
static enum tdm_status add_name(struct tdm_text_list *list, const char *what, struct tdm_error *err)
{
    const char *path = what + tdm_token_file_prefix(what);
    if (strpbrk(path, "*?[") == NULL || access(path, F_OK) == 0)
        return add(list, strdup(what), err);
    return add_matches(list, what, err);
}

enum tdm_status tdm_text_list_read(const char *what, struct tdm_text_list *out,
                                   struct tdm_error *err)
{
    struct tdm_text_list list = {NULL, 0};
    enum tdm_status status = TDM_OK;
    if (strchr(what, ',') == NULL || access(what + tdm_token_file_prefix(what), F_OK) == 0) {
        status = add_name(&list, what, err);
    } else {
        for (const char *name = what; status == TDM_OK && name != NULL;) {
            const char *comma = strchr(name, ',');
            char *one = comma == NULL ? strdup(name) : strndup(name, (size_t)(comma - name));
            if (one == NULL)
                status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the names of a text");
            else if (one[0] == '\0')
                status = tdm_fail(err, TDM_USAGE, "%s: a name between the commas is empty", what);
            else
                status = add_name(&list, one, err);
            free(one);
            name = comma == NULL ? NULL : comma + 1;
        }
    }
    if (status != TDM_OK) {
        tdm_text_list_free(&list);
        return status;
    }
    *out = list;
    return TDM_OK;
}

enum tdm_status tdm_text_list_exists(const char *what, bool *exists, struct tdm_error *err)
{
    struct tdm_text_list list;
    struct tdm_token_paths paths;
    struct tdm_error why = {0};
    bool found = false;
    enum tdm_status status = tdm_text_list_read(what, &list, &why);
    if (status == TDM_OK) {
        status = tdm_token_file_paths(list.whats[0], &paths, &why);
        tdm_text_list_free(&list);
        if (status == TDM_OK) {
            found = access(paths.tokens, F_OK) == 0;
            free(paths.tokens);
            free(paths.documents);
        }
    }
    if (status == TDM_NO_MEMORY)
        return tdm_fail(err, status, "%s", why.message);
    *exists = found;
    return TDM_OK;
}

void tdm_text_list_free(struct tdm_text_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->whats[i]);
    free(list->whats);
    *list = (struct tdm_text_list){NULL, 0};
}
