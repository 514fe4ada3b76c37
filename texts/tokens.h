/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens that a run trains or evaluates on: one or more files of tokens (token_file.h), one behind
 * the other, a part of them, or random tokens.
 */
#ifndef TDM_TEXTS_TOKENS_H
#define TDM_TEXTS_TOKENS_H

#include "base/digest.h"
#include "base/status.h"
#include "texts/order.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_tokens;

/* Reads `what`, a list of files and patterns (list.h), each as tdm_token_file_read() does, and
 * fails as it does. TDM_INPUT if only some of the files mark documents, or one has truth values.
 * NULL: random tokens of the vocabulary. */
enum tdm_status tdm_tokens_open(const char *what, uint32_t vocabulary, struct tdm_tokens **tokens,
                                struct tdm_error *err);
/* Splits the last `fraction` of a text off `tokens` into *last, so that steps never see it.
 * `tokens` must outlive *last. If the tokens are random, *last holds other random tokens, which no
 * step sees. TDM_INPUT if either part would have fewer than 2 tokens. */
enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **last, struct tdm_error *err);

/* Reads a mask, as long as the text, in the same way: tokens where it is 0 are not targets.
 * TDM_INPUT if it has another length, or no target. Before a split, and not of random tokens. */
enum tdm_status tdm_tokens_mask(struct tdm_tokens *tokens, const char *what, struct tdm_error *err);

/* Has the text a mask; and may token `i` be a target? */
bool tdm_tokens_are_masked(const struct tdm_tokens *tokens);
bool tdm_tokens_is_target(const struct tdm_tokens *tokens, uint64_t i);

/* Number of tokens that may be targets. Of a masked text reads all of it. */
uint64_t tdm_tokens_targets(const struct tdm_tokens *tokens);

/* Sets the order in which steps read the text; at first it is random, and so is that of what is
 * split off. TDM_USAGE: random tokens have no other. */
enum tdm_status tdm_tokens_read_in(struct tdm_tokens *tokens, enum tdm_text_order order,
                                   struct tdm_error *err);
enum tdm_text_order tdm_tokens_order(const struct tdm_tokens *tokens);

/* Was this split off by tdm_tokens_split()? */
bool tdm_tokens_are_split_off(const struct tdm_tokens *tokens);

void tdm_tokens_free(struct tdm_tokens *tokens);

/* Number of tokens; 0: random. */
uint64_t tdm_tokens_count(const struct tdm_tokens *tokens);

/* Number of entries of their vocabulary. */
uint32_t tdm_tokens_vocabulary(const struct tdm_tokens *tokens);

/* Token `i` of a text. */
uint32_t tdm_tokens_at(const struct tdm_tokens *tokens, uint64_t i);

/* The name of the file, "12 files, A to Z", or "random tokens", for messages; and its format:
 * "bytes". */
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

/* What training on a text depends on. */
struct tdm_tokens_identity {
    uint64_t count;                  /* of the tokens; 0: random */
    const char *order;               /* its name */
    char digest[TDM_DIGEST_SIZE];    /* of all of it */
    char ids[TDM_DIGEST_SIZE];       /* of the tokens */
    char documents[TDM_DIGEST_SIZE]; /* of where they begin; "": not marked */
    char mask[TDM_DIGEST_SIZE];      /* "": none */
};

/* Reads all tokens: seconds for gigabytes. */
void tdm_tokens_identify(const struct tdm_tokens *tokens, struct tdm_tokens_identity *identity);

/* Entropy in nats of a token drawn by its frequency: the lowest loss of a model that sees no
 * context. */
double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens);

#endif
