/* SPDX-License-Identifier: Apache-2.0 */
/* What a text holds: its ids, and how long its documents are. */
#ifndef TDM_TEXTS_FACTS_H
#define TDM_TEXTS_FACTS_H

#include "texts/tokens.h"

#define TDM_LENGTH_ROWS 64u

/* Documents of `least` to 2 * least - 1 tokens. */
struct tdm_length_row {
    uint64_t least, documents, tokens;
};

struct tdm_text_facts {
    uint64_t tokens;
    uint32_t lowest_id, highest_id;
    uint64_t distinct_ids;
    double unigram_entropy; /* nats */
    uint64_t documents;     /* 0: the format marks none; then the rest is 0 */
    uint64_t shortest, longest, median;
    uint32_t row_count;
    struct tdm_length_row rows[TDM_LENGTH_ROWS]; /* from the shortest to the longest document */
};

/* Reads the whole text, which must not be random. TDM_NO_MEMORY. */
enum tdm_status tdm_text_describe(const struct tdm_tokens *tokens, struct tdm_text_facts *facts,
                                  struct tdm_error *err);

#endif
