/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs documents into sequences of one length, so that few tokens of them stay empty.
 *
 * Documents longer than a sequence are cut into pieces: whole sequences, and a rest. Pieces are
 * placed from the longest to the shortest, each where it leaves the least room ("best fit
 * decreasing", Johnson et al. 1974, doi 10.1137/0203025). So no document is cut that fits into a
 * sequence. The same documents always give the same packing.
 */
#ifndef TDM_TEXTS_PACKING_H
#define TDM_TEXTS_PACKING_H

#include "texts/tokens.h"

#include <stdbool.h>
#include <stdint.h>

/* Consecutive tokens of one document. */
struct tdm_packed {
    uint64_t first, tokens; /* of the text */
    bool ends;              /* its last token is that of the document */
};

struct tdm_packing {
    uint64_t context;
    uint64_t tokens, piece_count; /* of the text */
    uint64_t cut_documents;       /* longer than a sequence */
    uint64_t sequence_count;
    uint64_t *first_piece;     /* [sequence_count + 1] into `pieces` */
    uint64_t most_pieces;      /* of any sequence */
    struct tdm_packed *pieces; /* by sequence, and in it by token */
};

/* Packs a text into sequences of `context` tokens; a text without documents is one. Of all
 * sequences together context * sequence_count - tokens stay empty. TDM_NO_MEMORY. The caller
 * releases *packing with tdm_packing_free(). */
enum tdm_status tdm_packing_make(const struct tdm_tokens *tokens, uint64_t context,
                                 struct tdm_packing *packing, struct tdm_error *err);
void tdm_packing_free(struct tdm_packing *packing);

#endif
