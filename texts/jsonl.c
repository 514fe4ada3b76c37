/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON lines with token ids (texts/jsonl.h). */
#include "texts/jsonl.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* In UTF-8. Some editors begin a file with it. */
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

struct reading {
    const char *path;
    uint64_t line; /* from 1 */
    struct tdm_jsonl lines;
    uint64_t capacity, document_capacity, target_count;
    struct tdm_error *err;
};

static enum tdm_status no_memory(const struct reading *r)
{
    return tdm_fail(r->err, TDM_NO_MEMORY, "%s: no memory for its tokens", r->path);
}

/* Makes `count` more tokens fit. */
static enum tdm_status reserve(struct reading *r, uint64_t count)
{
    if (r->lines.count + count <= r->capacity)
        return TDM_OK;
    const uint64_t capacity = 2 * (r->lines.count + count);
    uint32_t *tokens = realloc(r->lines.tokens, capacity * sizeof(*tokens));
    if (tokens != NULL)
        r->lines.tokens = tokens;
    unsigned char *targets = tokens == NULL ? NULL : realloc(r->lines.targets, capacity);
    if (targets == NULL)
        return no_memory(r);
    r->lines.targets = targets;
    r->capacity = capacity;
    return TDM_OK;
}

static enum tdm_status add_ids(struct reading *r, const char *key, const json_t *ids,
                               bool are_targets)
{
    enum tdm_status status = reserve(r, json_array_size(ids));
    if (!json_is_array(ids))
        return tdm_fail(r->err, TDM_INPUT,
                        "%s: line %" PRIu64 ": \"%s\" is not an array of token ids", r->path,
                        r->line, key);
    for (size_t i = 0; i < json_array_size(ids) && status == TDM_OK; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX)
            return tdm_fail(r->err, TDM_INPUT,
                            "%s: line %" PRIu64 ": element %zu of \"%s\" is no token id; expected "
                            "a whole number from 0 on",
                            r->path, r->line, i, key);
        r->lines.tokens[r->lines.count] = (uint32_t)json_integer_value(id);
        r->lines.targets[r->lines.count++] = are_targets;
        r->target_count += are_targets;
    }
    return status;
}

static enum tdm_status begin_document(struct reading *r)
{
    struct tdm_jsonl *lines = &r->lines;
    if (lines->document_count == r->document_capacity) {
        const uint64_t capacity = r->document_capacity == 0 ? 256 : 2 * r->document_capacity;
        void *starts = realloc(lines->document_starts, capacity * sizeof(uint64_t));
        if (starts == NULL)
            return no_memory(r);
        lines->document_starts = starts;
        r->document_capacity = capacity;
    }
    lines->document_starts[lines->document_count++] = lines->count;
    return TDM_OK;
}

static enum tdm_status take_object(struct reading *r, const json_t *object)
{
    const json_t *tokens = json_object_get(object, "tokens");
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *completion = json_object_get(object, "completion");
    const uint64_t first = r->lines.count;
    if ((tokens != NULL) == (prompt != NULL || completion != NULL) ||
        (prompt != NULL) != (completion != NULL)) {
        tdm_fail(r->err, TDM_INPUT,
                 "%s: line %" PRIu64 ": expected \"tokens\", or \"prompt\" and \"completion\"",
                 r->path, r->line);
        return tdm_hint(r->err, "each holds token ids: {\"prompt\": [5, 17], \"completion\": [2]}");
    }
    enum tdm_status status = begin_document(r);
    if (status == TDM_OK && tokens != NULL)
        status = add_ids(r, "tokens", tokens, true);
    if (status == TDM_OK && prompt != NULL)
        status = add_ids(r, "prompt", prompt, false);
    if (status == TDM_OK && completion != NULL)
        status = add_ids(r, "completion", completion, true);
    if (status == TDM_OK && r->lines.count == first) /* a document has a token */
        status =
            tdm_fail(r->err, TDM_INPUT, "%s: line %" PRIu64 ": has no tokens", r->path, r->line);
    return status;
}

static enum tdm_status take_line(struct reading *r, const char *text, size_t bytes)
{
    json_error_t why;
    bool empty = true;
    for (size_t i = 0; i < bytes && empty; i++)
        empty = strchr(" \t\r", text[i]) != NULL && text[i] != '\0';
    if (empty)
        return TDM_OK;
    bool is_out;
    json_t *object = tdm_json_value(text, bytes, &why, &is_out);
    if (object == NULL && is_out)
        return no_memory(r);
    if (object == NULL)
        return tdm_fail(r->err, TDM_INPUT, "%s: line %" PRIu64 " is not JSON: %s", r->path, r->line,
                        why.text);
    enum tdm_status status =
        json_is_object(object)
            ? take_object(r, object)
            : tdm_fail(r->err, TDM_INPUT, "%s: line %" PRIu64 " is not a JSON object", r->path,
                       r->line);
    json_decref(object);
    return status;
}

enum tdm_status tdm_jsonl_read(const char *path, const char *data, uint64_t bytes,
                               struct tdm_jsonl *out, struct tdm_error *err)
{
    struct reading r = {.path = path, .err = err};
    const bool is_marked = bytes >= 3 && memcmp(data, BYTE_ORDER_MARK, 3) == 0;
    enum tdm_status status = reserve(&r, 1);
    for (uint64_t at = is_marked ? 3 : 0; at < bytes && status == TDM_OK;) {
        const char *end = memchr(data + at, '\n', bytes - at);
        const uint64_t length = end == NULL ? bytes - at : (uint64_t)(end - data) - at;
        r.line++;
        status = take_line(&r, data + at, length);
        at += length + 1;
    }
    if (status == TDM_OK && r.lines.count > 0 && r.target_count == 0)
        status =
            tdm_fail(err, TDM_INPUT, "%s: no token is a target: all completions are empty", path);
    if (status != TDM_OK) {
        tdm_jsonl_free(&r.lines);
        return status;
    }
    if (r.target_count == r.lines.count) {
        free(r.lines.targets);
        r.lines.targets = NULL;
    }
    *out = r.lines;
    return TDM_OK;
}

void tdm_jsonl_free(struct tdm_jsonl *lines)
{
    free(lines->tokens);
    free(lines->targets);
    free(lines->document_starts);
    *lines = (struct tdm_jsonl){.count = 0};
}
