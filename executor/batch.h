/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch: the tokens of one step, drawn from a text, with their targets and their documents.
 *
 * Either the schedule gives the documents, and each is drawn from its own position in the text; or
 * the documents come from the text, and each sequence is drawn from one position and has the
 * documents that the text has there, or is packed from whole documents (texts/packing.h).
 */
#ifndef TDM_EXECUTOR_BATCH_H
#define TDM_EXECUTOR_BATCH_H

#include "executor/backend.h"
#include "texts/packing.h"
#include "texts/tokens.h"

struct tdm_batch {
    const struct tdm_tokens *tokens;
    const struct tdm_schedule *schedule;
    int32_t *inputs, *targets; /* [tokens of the step], sequence after sequence */
    uint64_t *used_rows;       /* a bit for each token of the vocabulary that is among the inputs */
    /* of the current contents, if the schedule takes documents from the text; else NULL and 0 */
    struct tdm_sequence *sequences; /* [sequence_count], with their documents */
    uint64_t *document_starts;      /* of all sequences */
    /* tokens that have a target, if that is not as the schedule says; else 0 */
    uint64_t trained_tokens;
    struct tdm_packing packing; /* of TDM_TEXT_PACKED */
};

/* Words of a set of tokens, with a bit for each of a vocabulary. */
static inline size_t tdm_token_set_words(uint32_t vocabulary)
{
    return ((size_t)vocabulary + 63) / 64;
}

/* Fills set[tdm_token_set_words(vocabulary)] with the tokens [count], which are below
 * `vocabulary`. */
void tdm_token_set(const int32_t *tokens, uint64_t count, uint32_t vocabulary, uint64_t *set);

/* Creates a batch for steps of a schedule, which read the text in its order; both arguments must
 * outlive it. TDM_INPUT: a document of the schedule is longer than the text, or the text marks no
 * documents, or too many in a sequence. TDM_USAGE: random tokens have no documents; sequences are
 * packed only if they have one length and take their documents from the text. TDM_INTERNAL: the
 * text may have tokens that the model does not have. */
enum tdm_status tdm_batch_new(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                              struct tdm_batch **batch, struct tdm_error *err);
void tdm_batch_free(struct tdm_batch *batch);

/* Fills in the sequences of a step. Their positions in the text are drawn by (seed, step, sequence,
 * document), or by their number since the first step. The target of a token is the next token, or
 * TDM_NO_TARGET if a document ends there inside its sequence. What is empty in a packed sequence is
 * a document of tokens 0 without targets. */
void tdm_batch_step(struct tdm_batch *batch, uint64_t seed, uint64_t step);

/* Number of consecutive batches that a text holds; unlimited for random tokens. */
uint64_t tdm_batch_windows(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule);

/* Fills in window `number` of these; always the same tokens. */
void tdm_batch_window(struct tdm_batch *batch, uint64_t seed, uint64_t number);

/* Do the targets differ from what the schedule says, by documents of the text or by a mask? */
bool tdm_batch_has_own_targets(const struct tdm_batch *batch);

/* Sets the documents and the tokens of `step` to those of the batch. */
void tdm_batch_describe(const struct tdm_batch *batch, struct tdm_step *step);

#endif
