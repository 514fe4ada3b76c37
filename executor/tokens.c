/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: a text's bytes, or random ones. */
#include "executor/tokens.h"

#include "base/file.h"
#include "executor/random.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LIMIT_BYTES ((uint64_t)4 << 30) /* the text is held in memory */
#define POSITION_STREAM 1u              /* of the counter-based random numbers */
#define TOKEN_STREAM 2u

struct tdm_tokens {
    unsigned char *bytes; /* NULL: random */
    uint64_t count;
    uint32_t vocabulary;
};

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
    char *data;
    enum tdm_status status = tdm_file_read(path, LIMIT_BYTES, &data, &tokens->count, err);
    if (status != TDM_OK) {
        free(tokens);
        return status;
    }
    tokens->bytes = (unsigned char *)data;
    if (tokens->count < 2) {
        status = tdm_fail(err, TDM_INPUT, "%s: %llu bytes; a text of at least 2 is due", path,
                          (unsigned long long)tokens->count);
        goto free_tokens;
    }
    for (uint64_t i = 0; i < tokens->count; i++)
        if (tokens->bytes[i] >= vocabulary) {
            status = tdm_fail(err, TDM_INPUT,
                              "%s: byte %llu is %u, and the model's vocabulary has %u tokens", path,
                              (unsigned long long)i, tokens->bytes[i], vocabulary);
            tdm_hint(err, "a text is read as bytes: train a model whose vocab_size is 256 or more");
            goto free_tokens;
        }
    *out = tokens;
    return TDM_OK;

free_tokens:
    tdm_tokens_free(tokens);
    return status;
}

void tdm_tokens_free(struct tdm_tokens *tokens)
{
    if (tokens == NULL)
        return;
    free(tokens->bytes);
    free(tokens);
}

uint64_t tdm_tokens_count(const struct tdm_tokens *tokens)
{
    return tokens->count;
}

double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens)
{
    if (tokens->bytes == NULL)
        return log(tokens->vocabulary);
    uint64_t seen[256] = {0};
    for (uint64_t i = 0; i < tokens->count; i++)
        seen[tokens->bytes[i]]++;
    double entropy = 0;
    for (int byte = 0; byte < 256; byte++)
        if (seen[byte] > 0) {
            double share = (double)seen[byte] / (double)tokens->count;
            entropy -= share * log(share);
        }
    return entropy;
}

void tdm_tokens_step(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                     uint64_t seed, uint64_t step, int32_t *inputs, int32_t *targets)
{
    uint64_t row = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        uint64_t length = schedule->sequence_tokens[s];
        uint64_t begin = 0;
        if (tokens->bytes != NULL) {
            /* where a whole sequence and its last target fit, if there is such a place */
            uint64_t places = tokens->count > length ? tokens->count - length : tokens->count;
            begin = tdm_random_bits(seed, step, POSITION_STREAM, s) % places;
        }
        for (uint64_t i = 0; i < length; i++, row++) {
            if (tokens->bytes != NULL) {
                inputs[row] = tokens->bytes[(begin + i) % tokens->count];
                targets[row] = tokens->bytes[(begin + i + 1) % tokens->count];
                continue;
            }
            uint64_t stream = TOKEN_STREAM + s;
            inputs[row] = (int32_t)(tdm_random_bits(seed, step, stream, i) % tokens->vocabulary);
            targets[row] =
                (int32_t)(tdm_random_bits(seed, step, stream, i + 1) % tokens->vocabulary);
        }
    }
}
