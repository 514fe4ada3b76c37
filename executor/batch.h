/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch: the tokens of one step, drawn from a text, with their targets and their documents.
 *
 * Documents are those of the schedule, each drawn from a place of its own; or, if the schedule
 * takes them from the text, each sequence is drawn from one place and has the documents that the
 * text has there.
 */
#ifndef TDM_EXECUTOR_BATCH_H
#define TDM_EXECUTOR_BATCH_H

#include "executor/backend.h"
#include "executor/tokens.h"

struct tdm_batch {
    const struct tdm_tokens *tokens;
    const struct tdm_schedule *schedule;
    int32_t *inputs, *targets; /* [tokens of the step], sequence after sequence */
    /* of the batch that it holds, if the schedule takes documents from the text; else NULL and 0 */
    struct tdm_sequence *sequences; /* [sequence_count], with their documents */
    uint64_t *document_starts;      /* of all sequences */
    uint64_t trained_tokens;        /* that have a target */
};

/* A batch for steps of a schedule; both arguments must outlive it. TDM_INPUT: a document of the
 * schedule is longer than the text, the text knows of no documents, or of too many in a sequence;
 * TDM_USAGE: random tokens have no documents. */
enum tdm_status tdm_batch_new(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                              struct tdm_batch **batch, struct tdm_error *err);
void tdm_batch_free(struct tdm_batch *batch);

/* Fills in the sequences of a step. Where they begin in the text is drawn by (seed, step, sequence,
 * document). The target of a token is the one after it, or TDM_NO_TARGET where a document ends
 * inside its sequence. */
void tdm_batch_step(struct tdm_batch *batch, uint64_t seed, uint64_t step);

/* How many batches a text holds, one after the other. Random tokens have as many as one likes. */
uint64_t tdm_batch_windows(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule);

/* Fills in window `number` of these: always the same tokens. */
void tdm_batch_window(struct tdm_batch *batch, uint64_t seed, uint64_t number);

/* Tells a step of the documents that the batch has. */
void tdm_batch_describe(const struct tdm_batch *batch, struct tdm_step *step);

#endif
