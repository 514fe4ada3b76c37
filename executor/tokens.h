/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens: what a run trains on, and what it evaluates on. A file of tokens (token_file.h) or a part
 * of one, or random tokens.
 */
#ifndef TDM_EXECUTOR_TOKENS_H
#define TDM_EXECUTOR_TOKENS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_tokens;

/* Reads `what`, a file with or without a prefix, as tdm_token_file_read() does, and fails as it
 * does. NULL: random tokens of the vocabulary. */
enum tdm_status tdm_tokens_open(const char *what, uint32_t vocabulary, struct tdm_tokens **tokens,
                                struct tdm_error *err);
/* Takes the last `fraction` of a text away from `tokens`: steps never see it. `tokens` must outlive
 * *last. Of random tokens *last is others that no step sees. TDM_INPUT if either part would have
 * fewer than 2 tokens. */
enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **last, struct tdm_error *err);

/* Are they the last part of a text, as tdm_tokens_split() made it? */
bool tdm_tokens_are_split_off(const struct tdm_tokens *tokens);

void tdm_tokens_free(struct tdm_tokens *tokens);

/* How many there are; 0: random. */
uint64_t tdm_tokens_count(const struct tdm_tokens *tokens);

/* Entries of the vocabulary that they are of. */
uint32_t tdm_tokens_vocabulary(const struct tdm_tokens *tokens);

/* Token `i` of a text. */
uint32_t tdm_tokens_at(const struct tdm_tokens *tokens, uint64_t i);

/* The file, for messages; "random tokens". And its format: "bytes". */
const char *tdm_tokens_name(const struct tdm_tokens *tokens);
const char *tdm_tokens_format(const struct tdm_tokens *tokens);

/* Documents that the text knows of, whole or in part; 0: its format has none. */
uint64_t tdm_tokens_documents(const struct tdm_tokens *tokens);

/* First token of document `document`, from 0; the first one begins at 0 if the text is a part of a
 * file. */
uint64_t tdm_tokens_document_start(const struct tdm_tokens *tokens, uint64_t document);

/* The document that holds token `i`. */
uint64_t tdm_tokens_document_of(const struct tdm_tokens *tokens, uint64_t i);

/* Does a document begin with a token of its own, which the text before it predicts? Else a
 * document's last token has nothing to predict. */
bool tdm_tokens_predict_documents(const struct tdm_tokens *tokens);

/* Entropy in nats of a token drawn by its frequency: what a model that sees no context can
 * reach. */
double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens);

#endif
