/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: an array's numbers, a text's bytes, or random ones. */
#include "executor/tokens.h"

#include "base/file.h"
#include "executor/npy.h"
#include "executor/random.h"
#include "schedule/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LIMIT_BYTES ((uint64_t)4 << 30) /* the text is held in memory */
/* Streams of the counter-based random numbers, beyond those of any tensor. */
#define POSITION_STREAM (UINT64_C(1) << 32)
#define TOKEN_STREAM (POSITION_STREAM + 1)

struct tdm_tokens {
    char *file;                /* what `data` lies in; NULL: random, or a part of another's */
    const unsigned char *data; /* tokens of `width` bytes; NULL: random */
    uint32_t width;
    bool is_signed;
    uint64_t count;
    uint32_t vocabulary;
};

/* Token `i` of a file; little-endian. A negative number is none, and gives a very large one. */
static uint64_t token_at(const struct tdm_tokens *tokens, uint64_t i)
{
    uint64_t token = 0;
    memcpy(&token, tokens->data + i * tokens->width, tokens->width);
    unsigned bits = 8 * tokens->width;
    if (tokens->is_signed && bits < 64 && token >> (bits - 1) != 0)
        token |= UINT64_MAX << bits;
    return token;
}

/* Finds the tokens in the file that was read, and checks them. */
static enum tdm_status find_tokens(const char *path, uint64_t bytes, struct tdm_tokens *tokens,
                                   struct tdm_error *err)
{
    struct tdm_npy npy = {.count = bytes, .width = 1};
    bool array = tdm_npy_is(tokens->file, bytes);
    if (array) {
        enum tdm_status status = tdm_npy_find(path, tokens->file, bytes, &npy, err);
        if (status != TDM_OK)
            return status;
    }
    tokens->data = (const unsigned char *)tokens->file + npy.offset;
    tokens->count = npy.count;
    tokens->width = npy.width;
    tokens->is_signed = npy.is_signed;
    if (tokens->count < 2)
        return tdm_fail(err, TDM_INPUT, "%s: %llu %s; a text of at least 2 is due", path,
                        (unsigned long long)tokens->count, array ? "tokens" : "bytes");
    for (uint64_t i = 0; i < tokens->count; i++) {
        uint64_t token = token_at(tokens, i);
        if (token < tokens->vocabulary)
            continue;
        if (array)
            return tdm_fail(err, TDM_INPUT,
                            "%s: token %llu is %lld, and the model's vocabulary has %u", path,
                            (unsigned long long)i, (long long)token, tokens->vocabulary);
        tdm_fail(err, TDM_INPUT, "%s: byte %llu is %llu, and the model's vocabulary has %u tokens",
                 path, (unsigned long long)i, (unsigned long long)token, tokens->vocabulary);
        return tdm_hint(err, "a text is read as bytes: train a model whose vocab_size is 256 or "
                             "more");
    }
    return TDM_OK;
}

enum tdm_status tdm_tokens_open(const char *path, uint32_t vocabulary, struct tdm_tokens **out,
                                struct tdm_error *err)
{
    struct tdm_tokens *tokens = calloc(1, sizeof(*tokens));
    if (tokens == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    tokens->vocabulary = vocabulary;
    if (path == NULL) {
        *out = tokens;
        return TDM_OK;
    }

    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        free(tokens);
        return tdm_fail(err, TDM_INPUT, "%s: is no regular file; a text is due", path);
    }
    uint64_t bytes;
    enum tdm_status status = tdm_file_read(path, LIMIT_BYTES, &tokens->file, &bytes, err);
    if (status == TDM_OK)
        status = find_tokens(path, bytes, tokens, err);
    if (status != TDM_OK) {
        tdm_tokens_free(tokens);
        return status;
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
    last->file = NULL;
    if (tokens->data != NULL) {
        last->count = (uint64_t)ceil(fraction * (double)tokens->count);
        if (last->count < 2 || last->count + 2 > tokens->count) {
            tdm_fail(err, TDM_INPUT,
                     "a share of %g of %llu tokens leaves fewer than 2 to train or to evaluate on",
                     fraction, (unsigned long long)tokens->count);
            free(last);
            return tdm_hint(err, "use a longer text, or --validation FILE");
        }
        tokens->count -= last->count;
        last->data = tokens->data + tokens->count * tokens->width;
    }
    *out = last;
    return TDM_OK;
}

void tdm_tokens_free(struct tdm_tokens *tokens)
{
    if (tokens == NULL)
        return;
    free(tokens->file);
    free(tokens);
}

uint64_t tdm_tokens_count(const struct tdm_tokens *tokens)
{
    return tokens->count;
}

double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens)
{
    uint64_t *seen = tokens->data == NULL ? NULL : calloc(tokens->vocabulary, sizeof(*seen));
    double entropy = 0;
    if (seen == NULL) /* or no memory to tell */
        return log(tokens->vocabulary);
    for (uint64_t i = 0; i < tokens->count; i++)
        seen[token_at(tokens, i)]++;
    for (uint32_t token = 0; token < tokens->vocabulary; token++)
        if (seen[token] > 0) {
            double share = (double)seen[token] / (double)tokens->count;
            entropy -= share * log(share);
        }
    free(seen);
    return entropy;
}

/* Where a document begins in the text: where it fits whole with its last target, if there is such a
 * place. */
static uint64_t place_of(const struct tdm_tokens *tokens, uint64_t seed, uint64_t step,
                         uint32_t sequence, uint32_t document, uint64_t length)
{
    uint64_t places = tokens->count > length ? tokens->count - length : tokens->count;
    uint64_t number = (uint64_t)document << 32 | sequence;
    return tdm_random_bits(seed, step, POSITION_STREAM, number) % places;
}

/* Tokens from `begin` of the text on; of random tokens, of a step's stream. */
static void fill_document(const struct tdm_tokens *tokens, uint64_t length, uint64_t begin,
                          uint64_t seed, uint64_t step, uint64_t stream, int32_t *inputs,
                          int32_t *targets)
{
    for (uint64_t i = begin; i < begin + length; i++) {
        if (tokens->data != NULL) {
            *inputs++ = (int32_t)token_at(tokens, i % tokens->count);
            *targets++ = (int32_t)token_at(tokens, (i + 1) % tokens->count);
            continue;
        }
        *inputs++ = (int32_t)(tdm_random_bits(seed, step, stream, i) % tokens->vocabulary);
        *targets++ = (int32_t)(tdm_random_bits(seed, step, stream, i + 1) % tokens->vocabulary);
    }
}

/* All documents of a step, which draws where each begins. Steps count from 1: number 0 is none, its
 * documents follow each other from `next` on, and no step sees its random tokens. */
static void fill_step(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                      uint64_t seed, uint64_t step, uint64_t next, int32_t *inputs,
                      int32_t *targets)
{
    uint64_t row = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &schedule->sequences[s];
        uint64_t token = 0;
        for (uint32_t d = 0; d < sequence->document_count; d++) {
            uint64_t length = tdm_document_end(sequence, d) - token;
            uint64_t begin = step == 0              ? next + row
                             : tokens->data != NULL ? place_of(tokens, seed, step, s, d, length)
                                                    : token;
            fill_document(tokens, length, begin, seed, step, TOKEN_STREAM + (step == 0 ? 0 : s),
                          inputs + row, targets + row);
            row += length;
            token += length;
            if (!tdm_sequence_trains(sequence, token - 1))
                targets[row - 1] = TDM_NO_TARGET;
        }
    }
}

void tdm_tokens_step(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                     uint64_t seed, uint64_t step, int32_t *inputs, int32_t *targets)
{
    fill_step(tokens, schedule, seed, step, 0, inputs, targets);
}

uint64_t tdm_tokens_windows(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule)
{
    if (tokens->data == NULL)
        return UINT64_MAX;
    uint64_t windows = (tokens->count - 1) / tdm_schedule_tokens(schedule);
    return windows == 0 ? 1 : windows;
}

void tdm_tokens_window(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                       uint64_t seed, uint64_t number, int32_t *inputs, int32_t *targets)
{
    fill_step(tokens, schedule, seed, 0, number * tdm_schedule_tokens(schedule), inputs, targets);
}
