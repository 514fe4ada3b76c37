/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a text holds. */
#include "texts/facts.h"

#include <math.h>
#include <stdlib.h>

static int rising(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void count_lengths(const uint64_t *lengths, uint64_t count, struct tdm_text_facts *facts)
{
    facts->shortest = lengths[0];
    facts->longest = lengths[count - 1];
    facts->median = lengths[(count - 1) / 2];
    for (uint64_t d = 0; d < count; d++) {
        uint64_t least = UINT64_C(1) << (63 - __builtin_clzll(lengths[d]));
        if (facts->row_count == 0)
            facts->rows[facts->row_count++].least = least;
        while (facts->rows[facts->row_count - 1].least < least) {
            facts->rows[facts->row_count].least = 2 * facts->rows[facts->row_count - 1].least;
            facts->row_count++;
        }
        facts->rows[facts->row_count - 1].documents++;
        facts->rows[facts->row_count - 1].tokens += lengths[d];
    }
}

static enum tdm_status describe_documents(const struct tdm_tokens *tokens,
                                          struct tdm_text_facts *facts, struct tdm_error *err)
{
    const uint64_t marked = tdm_tokens_documents(tokens);
    uint64_t *lengths = malloc((marked + 1) * sizeof(*lengths)), count = 0;
    if (lengths == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the lengths of %llu documents",
                        (unsigned long long)marked);
    for (uint64_t d = 0; d < marked; d++) {
        uint64_t end = d + 1 < marked ? tdm_tokens_document_start(tokens, d + 1) : facts->tokens;
        lengths[count] = end - tdm_tokens_document_start(tokens, d);
        count += lengths[count] > 0;
    }
    if (count > 0) {
        qsort(lengths, count, sizeof(*lengths), rising);
        count_lengths(lengths, count, facts);
    }
    facts->documents = count;
    free(lengths);
    return TDM_OK;
}

enum tdm_status tdm_text_describe(const struct tdm_tokens *tokens, struct tdm_text_facts *out,
                                  struct tdm_error *err)
{
    struct tdm_text_facts facts = {.tokens = tdm_tokens_count(tokens), .lowest_id = UINT32_MAX};
    for (uint64_t i = 0; i < facts.tokens; i++) {
        uint32_t id = tdm_tokens_at(tokens, i);
        facts.lowest_id = id < facts.lowest_id ? id : facts.lowest_id;
        facts.highest_id = id > facts.highest_id ? id : facts.highest_id;
    }
    uint64_t *seen = calloc((size_t)facts.highest_id + 1, sizeof(*seen));
    if (seen == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for ids up to %lu",
                        (unsigned long)facts.highest_id);
    for (uint64_t i = 0; i < facts.tokens; i++)
        seen[tdm_tokens_at(tokens, i)]++;
    for (uint64_t id = facts.lowest_id; id <= facts.highest_id; id++) {
        if (seen[id] == 0)
            continue;
        double share = (double)seen[id] / (double)facts.tokens;
        facts.unigram_entropy -= share * log(share);
        facts.distinct_ids++;
    }
    free(seen);
    enum tdm_status status = describe_documents(tokens, &facts, err);
    if (status == TDM_OK)
        *out = facts;
    return status;
}
