/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence of a step, and the documents that it is packed from.
 *
 * Tokens see only earlier tokens of their own document, and RoPE positions restart with each
 * document. The last token of a document has no target, unless it is the last of the sequence:
 * there the document continues in the data, and the next token is the target, as in a sequence of
 * one document.
 *
 * A schedule may leave the documents to the text of a run (schedule.documents_of_text). Then
 * everything is planned for sequences of one document, which need the most (except with block
 * attention, which tdm_schedule_check() refuses). The executor gives each step its own documents.
 */
#ifndef TDM_SCHEDULE_SEQUENCE_H
#define TDM_SCHEDULE_SEQUENCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Maximum number of documents of one sequence. */
#define TDM_MOST_DOCUMENTS 1048576u

struct tdm_sequence {
    uint64_t tokens;           /* its context */
    uint32_t document_count;   /* at least 1 */
    uint64_t *document_starts; /* [document_count], rising from 0; owned; NULL: one document */
};

/* A new array of `count` sequences, each of one document of `tokens` tokens; freed with
 * tdm_sequences_free(). NULL if memory ran out. */
struct tdm_sequence *tdm_sequences_new(uint32_t count, uint64_t tokens);
void tdm_sequences_free(struct tdm_sequence *sequences, uint32_t count);

/* Packs a sequence from `count` documents that begin at `starts` (copied). TDM_INPUT with the
 * reason if the first is not 0, if they do not increase, or if one is beyond the sequence. `what`
 * names them. */
enum tdm_status tdm_sequence_pack(struct tdm_sequence *sequence, const char *what, uint32_t count,
                                  const uint64_t *starts, struct tdm_error *err);

/* Packs a sequence from documents of `length` tokens (at least 1); the last one may be shorter. */
enum tdm_status tdm_sequence_divide(struct tdm_sequence *sequence, const char *what,
                                    uint64_t length, struct tdm_error *err);

/* Number of the document that holds a token of the sequence. */
uint32_t tdm_document_of(const struct tdm_sequence *sequence, uint64_t token);

/* First token of a document, and the first token behind it. */
uint64_t tdm_document_start(const struct tdm_sequence *sequence, uint32_t document);
uint64_t tdm_document_end(const struct tdm_sequence *sequence, uint32_t document);

/* Does a token have a target? Only the last tokens of documents other than the sequence's last do
 * not. */
bool tdm_sequence_trains(const struct tdm_sequence *sequence, uint64_t token);

#endif
