/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: those of a file, of a part of one, or random ones. */
#include "executor/tokens.h"

#include "executor/token_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct tdm_tokens {
    struct tdm_token_file own;         /* empty: random, or a part of another's */
    const struct tdm_token_file *file; /* NULL: random */
    uint64_t first, count;             /* of the file's tokens */
    uint64_t first_document, document_count;
    uint32_t vocabulary;
};

/* The file's document that holds its token `i`. */
static uint64_t document_of(const struct tdm_token_file *file, uint64_t i)
{
    uint64_t low = 0, end = file->document_count; /* it is one of [low, end) */
    while (end - low > 1) {
        uint64_t middle = low + (end - low) / 2;
        if (file->document_starts[middle] <= i)
            low = middle;
        else
            end = middle;
    }
    return low;
}

/* Finds the documents of the tokens [first, first + count). */
static void find_documents(struct tdm_tokens *tokens)
{
    if (tokens->file->document_count == 0)
        return;
    tokens->first_document = document_of(tokens->file, tokens->first);
    uint64_t last = document_of(tokens->file, tokens->first + tokens->count - 1);
    tokens->document_count = last - tokens->first_document + 1;
}

enum tdm_status tdm_tokens_open(const char *what, uint32_t vocabulary, struct tdm_tokens **out,
                                struct tdm_error *err)
{
    struct tdm_tokens *tokens = calloc(1, sizeof(*tokens));
    if (tokens == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    tokens->vocabulary = vocabulary;
    if (what != NULL) {
        enum tdm_status status = tdm_token_file_read(what, vocabulary, &tokens->own, err);
        if (status != TDM_OK) {
            free(tokens);
            return status;
        }
        tokens->file = &tokens->own;
        tokens->count = tokens->own.count;
        find_documents(tokens);
    }
    *out = tokens;
    return TDM_OK;
}

enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **out, struct tdm_error *err)
{
    struct tdm_tokens *last = malloc(sizeof(*last));
    if (last == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    *last = *tokens;
    last->own = (struct tdm_token_file){0};
    if (tokens->file != NULL) {
        last->count = (uint64_t)ceil(fraction * (double)tokens->count);
        if (last->count < 2 || last->count + 2 > tokens->count) {
            tdm_fail(err, TDM_INPUT,
                     "a share of %g of %llu tokens leaves fewer than 2 to train or to evaluate on",
                     fraction, (unsigned long long)tokens->count);
            free(last);
            return tdm_hint(err, "use a longer text, or --validation FILE");
        }
        tokens->count -= last->count;
        last->first = tokens->first + tokens->count;
        find_documents(tokens);
        find_documents(last);
    }
    *out = last;
    return TDM_OK;
}

bool tdm_tokens_are_split_off(const struct tdm_tokens *tokens)
{
    return tokens->first > 0;
}

void tdm_tokens_free(struct tdm_tokens *tokens)
{
    if (tokens == NULL)
        return;
    tdm_token_file_free(&tokens->own);
    free(tokens);
}

uint64_t tdm_tokens_count(const struct tdm_tokens *tokens)
{
    return tokens->count;
}

uint32_t tdm_tokens_vocabulary(const struct tdm_tokens *tokens)
{
    return tokens->vocabulary;
}

uint32_t tdm_tokens_at(const struct tdm_tokens *tokens, uint64_t i)
{
    return (uint32_t)tdm_token_file_at(tokens->file, tokens->first + i);
}

const char *tdm_tokens_name(const struct tdm_tokens *tokens)
{
    return tokens->file == NULL ? "random tokens" : tokens->file->path;
}

const char *tdm_tokens_format(const struct tdm_tokens *tokens)
{
    return tokens->file == NULL ? "random tokens" : tokens->file->format;
}

uint64_t tdm_tokens_documents(const struct tdm_tokens *tokens)
{
    return tokens->document_count;
}

uint64_t tdm_tokens_document_start(const struct tdm_tokens *tokens, uint64_t document)
{
    uint64_t start = tokens->file->document_starts[tokens->first_document + document];
    return start < tokens->first ? 0 : start - tokens->first;
}

uint64_t tdm_tokens_document_of(const struct tdm_tokens *tokens, uint64_t i)
{
    return document_of(tokens->file, tokens->first + i) - tokens->first_document;
}

bool tdm_tokens_predict_documents(const struct tdm_tokens *tokens)
{
    return tokens->file != NULL && tokens->file->opened_by_delimiter;
}

const char *tdm_tokens_digest(const struct tdm_tokens *tokens, char out[TDM_DIGEST_SIZE])
{
    struct tdm_checksum sum = {0};
    uint32_t block[4096];
    for (uint64_t i = 0; i < tokens->count;) {
        size_t n = 0;
        for (; n < sizeof(block) / sizeof(block[0]) && i < tokens->count; i++)
            block[n++] = tdm_tokens_at(tokens, i);
        tdm_checksum_add(&sum, block, n * sizeof(block[0]));
    }
    for (uint64_t d = 0; d < tokens->document_count; d++) {
        uint64_t start = tdm_tokens_document_start(tokens, d);
        tdm_checksum_add(&sum, &start, sizeof(start));
    }
    snprintf(out, TDM_DIGEST_SIZE, "%016" PRIx64, tdm_checksum_value(&sum));
    return out;
}

double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens)
{
    uint64_t *seen = tokens->file == NULL ? NULL : calloc(tokens->vocabulary, sizeof(*seen));
    double entropy = 0;
    if (seen == NULL) /* random, or out of memory */
        return log(tokens->vocabulary);
    for (uint64_t i = 0; i < tokens->count; i++)
        seen[tdm_tokens_at(tokens, i)]++;
    for (uint32_t token = 0; token < tokens->vocabulary; token++)
        if (seen[token] > 0) {
            double share = (double)seen[token] / (double)tokens->count;
            entropy -= share * log(share);
        }
    free(seen);
    return entropy;
}
