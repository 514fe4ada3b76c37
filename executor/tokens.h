/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens: what a run trains on, and what it evaluates on. An array of NumPy (.npy), any other file as
 * bytes, one token a byte, or random tokens.
 */
#ifndef TDM_EXECUTOR_TOKENS_H
#define TDM_EXECUTOR_TOKENS_H

#include "base/status.h"
#include "schedule/schedule.h"

#include <stdint.h>

struct tdm_tokens;

/* Reads a whole file: whatever its name, a .npy is known by its first bytes. `path` NULL: random tokens of
 * the vocabulary. TDM_INPUT: fewer than 2 tokens, no regular file, a token outside the vocabulary, more
 * than 4 GiB, errors of tdm_npy_find(); TDM_IO. */
enum tdm_status tdm_tokens_open(const char *path, uint32_t vocabulary, struct tdm_tokens **tokens,
                                struct tdm_error *err);
/* Takes the last `fraction` of a text away from `tokens`: steps never see it. `tokens` must outlive
 * *last. Of random tokens *last is others that no step sees. TDM_INPUT if either part would have
 * fewer than 2 tokens. */
enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **last, struct tdm_error *err);

void tdm_tokens_free(struct tdm_tokens *tokens);

/* How many there are; 0: random. */
uint64_t tdm_tokens_count(const struct tdm_tokens *tokens);

/* Entropy in nats of a token drawn by its frequency: what a model that sees no context can reach. */
double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens);

/* The sequences of a step, one after the other: inputs and their targets (the token after each, or
 * TDM_NO_TARGET where a document ends inside its sequence), [tokens of the step]. Documents begin at
 * places drawn by (seed, step, sequence, document); text shorter than a document goes round. */
void tdm_tokens_step(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                     uint64_t seed, uint64_t step, int32_t *inputs, int32_t *targets);

/* How many windows of a schedule's tokens a text holds, one after the other; at least 1, which goes round
 * where the text is shorter. Random tokens have as many as one likes. */
uint64_t tdm_tokens_windows(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule);

/* The sequences of window `number`, laid out as by tdm_tokens_step(): always the same. */
void tdm_tokens_window(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                       uint64_t seed, uint64_t number, int32_t *inputs, int32_t *targets);

#endif
