/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences and their documents. */
#include "schedule/sequence.h"

#include "base/size.h"

#include <stdlib.h>
#include <string.h>

struct tdm_sequence *tdm_sequences_new(uint32_t count, uint64_t tokens)
{
    struct tdm_sequence *sequences = calloc((size_t)count + 1, sizeof(*sequences));
    for (uint32_t i = 0; sequences != NULL && i < count; i++)
        sequences[i] = (struct tdm_sequence){.tokens = tokens, .document_count = 1};
    return sequences;
}

void tdm_sequences_free(struct tdm_sequence *sequences, uint32_t count)
{
    for (uint32_t i = 0; sequences != NULL && i < count; i++)
        free(sequences[i].document_starts);
    free(sequences);
}

static enum tdm_status check_starts(const struct tdm_sequence *sequence, const char *what,
                                    uint32_t count, const uint64_t *starts, struct tdm_error *err)
{
    if (count == 0 || count > TDM_MOST_DOCUMENTS)
        return tdm_fail(err, TDM_INPUT, "%s has %u documents; expected 1 to %u", what, count,
                        TDM_MOST_DOCUMENTS);
    if (starts[0] != 0)
        return tdm_fail(err, TDM_INPUT, "%s begins with %llu; the first document begins at 0", what,
                        (unsigned long long)starts[0]);
    for (uint32_t i = 1; i < count; i++)
        if (starts[i] <= starts[i - 1])
            return tdm_fail(err, TDM_INPUT, "%s has %llu after %llu; starts must rise", what,
                            (unsigned long long)starts[i], (unsigned long long)starts[i - 1]);
    if (starts[count - 1] >= sequence->tokens)
        return tdm_fail(err, TDM_INPUT, "%s has a document at %llu in a sequence of %llu tokens",
                        what, (unsigned long long)starts[count - 1],
                        (unsigned long long)sequence->tokens);
    return TDM_OK;
}

enum tdm_status tdm_sequence_pack(struct tdm_sequence *sequence, const char *what, uint32_t count,
                                  const uint64_t *starts, struct tdm_error *err)
{
    enum tdm_status status = check_starts(sequence, what, count, starts, err);
    if (status != TDM_OK)
        return status;
    uint64_t *copy = NULL;
    if (count > 1) {
        copy = malloc((size_t)count * sizeof(*copy));
        if (copy == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u documents", count);
        memcpy(copy, starts, (size_t)count * sizeof(*copy));
    }
    free(sequence->document_starts);
    sequence->document_starts = copy;
    sequence->document_count = count;
    return TDM_OK;
}

enum tdm_status tdm_sequence_divide(struct tdm_sequence *sequence, const char *what,
                                    uint64_t length, struct tdm_error *err)
{
    uint64_t count = tdm_size_ceil_div(sequence->tokens, length);
    if (count > TDM_MOST_DOCUMENTS)
        return tdm_fail(err, TDM_INPUT,
                        "%s makes %llu documents of a sequence; expected at most %u", what,
                        (unsigned long long)count, TDM_MOST_DOCUMENTS);
    uint64_t *starts = malloc((size_t)count * sizeof(*starts));
    if (starts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for documents");
    for (uint64_t i = 0; i < count; i++)
        starts[i] = i * length;
    enum tdm_status status = tdm_sequence_pack(sequence, what, (uint32_t)count, starts, err);
    free(starts);
    return status;
}

uint32_t tdm_document_of(const struct tdm_sequence *sequence, uint64_t token)
{
    uint32_t low = 0, end = sequence->document_count; /* it is one of [low, end) */
    while (end - low > 1) {
        uint32_t middle = low + (end - low) / 2;
        if (sequence->document_starts[middle] <= token)
            low = middle;
        else
            end = middle;
    }
    return low;
}

uint64_t tdm_document_start(const struct tdm_sequence *sequence, uint32_t document)
{
    return document == 0 ? 0 : sequence->document_starts[document];
}

uint64_t tdm_document_end(const struct tdm_sequence *sequence, uint32_t document)
{
    return document + 1 < sequence->document_count ? sequence->document_starts[document + 1]
                                                   : sequence->tokens;
}

bool tdm_sequence_trains(const struct tdm_sequence *sequence, uint64_t token)
{
    uint32_t document = tdm_document_of(sequence, token);
    return document + 1 == sequence->document_count ||
           token + 1 < tdm_document_end(sequence, document);
}
