/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sorts the rows of a chunk by token, for the embedding's gradient: a stable radix sort of row
 * numbers, one byte of the token per pass, in the two halves of the op's own buffer. Rows of the
 * same token stay in the order of the chunk, so that they are added in a fixed order.
 */
#include "executor/cpu/cpu.h"

#include "ops/move.h"

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

static uint32_t digit_of(int32_t token, uint32_t pass)
{
    return (uint32_t)token >> (pass * DIGIT_BITS) & (DIGITS - 1);
}

/* One pass, from `from` to `to`. If `from` is NULL, the rows are in their first order. */
static void sort_by_digit(const int32_t *tokens, uint64_t count, uint32_t pass, const int32_t *from,
                          int32_t *to)
{
    uint64_t next[DIGITS] = {0}, before = 0;
    for (uint64_t i = 0; i < count; i++)
        next[digit_of(tokens[i], pass)]++;
    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        uint64_t rows = next[digit];
        next[digit] = before;
        before += rows;
    }
    for (uint64_t i = 0; i < count; i++) {
        int32_t row = from == NULL ? (int32_t)i : from[i];
        to[next[digit_of(tokens[row], pass)]++] = row;
    }
}

enum tdm_status tdm_cpu_sort_tokens(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const int32_t *tokens = launch->operand[TDM_SORT_TOKENS_TOKENS].data;
    uint64_t count = launch->op->tokens;
    uint32_t passes = 1, largest = tdm_launch_params(launch)->embed.vocabulary - 1;
    (void)executor;
    enum tdm_status status = tdm_cpu_check_tokens(launch, tokens, count, err);
    if (status != TDM_OK)
        return status;
    while (passes * DIGIT_BITS < 32 && largest >> (passes * DIGIT_BITS) != 0)
        passes++;
    const int32_t *from = NULL;
    for (uint32_t pass = 0; pass < passes; pass++) { /* the last one ends in the first half */
        int32_t *to = (int32_t *)launch->operand[TDM_SORT_TOKENS_ORDER].data +
                      (passes - 1 - pass) % 2 * count;
        sort_by_digit(tokens, count, pass, from, to);
        from = to;
    }
    return TDM_OK;
}
