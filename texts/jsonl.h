/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of JSON lines with token ids, as a tokenizer made them. A line is a document, an object
 * with one of:
 *
 *     {"tokens": [5, 17, 2]}                        every token is a target
 *     {"prompt": [5, 17], "completion": [4, 2]}     the tokens of the completion are
 *
 * Other keys are ignored, and so are empty lines.
 */
#ifndef TDM_TEXTS_JSONL_H
#define TDM_TEXTS_JSONL_H

#include "base/status.h"

#include <stdint.h>

/* All arrays are owned. */
struct tdm_jsonl {
    uint32_t *tokens;       /* [count] */
    unsigned char *targets; /* [count] 0: only read; NULL: all are targets */
    uint64_t count;
    uint64_t document_count;
    uint64_t *document_starts; /* [document_count] */
};

/* Reads lines from `bytes` bytes of `data`; `path` is for messages. TDM_INPUT names the line and
 * what is wrong with it; also if no token is a target. */
enum tdm_status tdm_jsonl_read(const char *path, const char *data, uint64_t bytes,
                               struct tdm_jsonl *lines, struct tdm_error *err);
void tdm_jsonl_free(struct tdm_jsonl *lines);

#endif
