/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens that a run trains or evaluates on: a file of tokens (token_file.h), a part of one, or
 * random tokens.
 */
#ifndef TDM_EXECUTOR_TOKENS_H
#define TDM_EXECUTOR_TOKENS_H

#include "base/digest.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_tokens;

/* Reads `what`, a file with or without a prefix, as tdm_token_file_read() does, and fails as it
 * does. NULL: random tokens of the vocabulary. */
enum tdm_status tdm_tokens_open(const char *what, uint32_t vocabulary, struct tdm_tokens **tokens,
                                struct tdm_error *err);
/* Splits the last `fraction` of a text off `tokens` into *last, so that steps never see it.
 * `tokens` must outlive *last. If the tokens are random, *last holds other random tokens, which no
 * step sees. TDM_INPUT if either part would have fewer than 2 tokens. */
enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **last, struct tdm_error *err);

/* Was this split off by tdm_tokens_split()? */
bool tdm_tokens_are_split_off(const struct tdm_tokens *tokens);

void tdm_tokens_free(struct tdm_tokens *tokens);

/* Number of tokens; 0: random. */
uint64_t tdm_tokens_count(const struct tdm_tokens *tokens);

/* Number of entries of their vocabulary. */
uint32_t tdm_tokens_vocabulary(const struct tdm_tokens *tokens);

/* Token `i` of a text. */
uint32_t tdm_tokens_at(const struct tdm_tokens *tokens, uint64_t i);

/* The name of the file, or "random tokens", for messages; and its format: "bytes". */
const char *tdm_tokens_name(const struct tdm_tokens *tokens);
const char *tdm_tokens_format(const struct tdm_tokens *tokens);

/* Number of documents of the text, whole or in part; 0: its format does not mark them. */
uint64_t tdm_tokens_documents(const struct tdm_tokens *tokens);

/* First token of document `document`, counted from 0. In a part of a file the first document begins
 * at token 0. */
uint64_t tdm_tokens_document_start(const struct tdm_tokens *tokens, uint64_t document);

/* The document that holds token `i`. */
uint64_t tdm_tokens_document_of(const struct tdm_tokens *tokens, uint64_t i);

/* Do documents begin with a delimiter token, which the text before it predicts? If not, the last
 * token of a document has no target. */
bool tdm_tokens_predict_documents(const struct tdm_tokens *tokens);

/* A digest of the tokens and of where their documents begin. Returns `out`. Reads all of them:
 * seconds for gigabytes. */
const char *tdm_tokens_digest(const struct tdm_tokens *tokens, char out[TDM_DIGEST_SIZE]);

/* Entropy in nats of a token drawn by its frequency: the lowest loss of a model that sees no
 * context. */
double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens);

#endif
