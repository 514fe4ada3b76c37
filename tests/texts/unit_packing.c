/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of packing: every token of a text is in one sequence, no document that fits is cut, what
 * stays empty is little, and each piece went where a slow search finds the best fit.
 */
#include "tests/support/random_schedule.h"
#include "texts/packing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DOCUMENTS 400u

/* Writes documents as llm.c does: each begins with token 50256. */
static uint64_t write_documents(const char *path, const uint64_t *lengths, uint64_t count)
{
    int32_t header[256] = {20240520, 1};
    uint64_t tokens = 0;
    for (uint64_t d = 0; d < count; d++)
        tokens += lengths[d];
    header[2] = (int32_t)tokens;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(header, sizeof(header), 1, file);
    for (uint64_t d = 0; d < count; d++)
        for (uint64_t i = 0; i < lengths[d]; i++) {
            uint16_t token = i == 0 ? 50256 : (uint16_t)(i % 1000);
            fwrite(&token, sizeof(token), 1, file);
        }
    assert_int_equal(fclose(file), 0);
    return tokens;
}

static int longest_first(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

/* How many sequences best fit takes, by looking at all of them for each piece. */
static uint64_t slow_count(const uint64_t *lengths, uint64_t count, uint64_t context)
{
    uint64_t *pieces = calloc(64 * MOST_DOCUMENTS, sizeof(*pieces));
    uint64_t *left = calloc(64 * MOST_DOCUMENTS, sizeof(*left)), made = 0, sequences = 0;
    for (uint64_t d = 0; d < count; d++)
        for (uint64_t rest = lengths[d]; rest > 0; made++) {
            pieces[made] = rest < context ? rest : context;
            rest -= pieces[made];
        }
    qsort(pieces, made, sizeof(*pieces), longest_first);
    for (uint64_t i = 0; i < made; i++) {
        uint64_t best = sequences;
        for (uint64_t s = 0; s < sequences; s++)
            if (left[s] >= pieces[i] && (best == sequences || left[s] < left[best]))
                best = s;
        if (best == sequences)
            left[sequences++] = context;
        left[best] -= pieces[i];
    }
    free(pieces);
    free(left);
    return sequences;
}

static void check_packing(const struct tdm_packing *packing, const uint64_t *lengths,
                          uint64_t count, uint64_t tokens)
{
    unsigned char *seen = calloc(tokens, 1);
    uint64_t cut = 0, ends = 0;
    for (uint64_t s = 0; s < packing->sequence_count; s++) {
        uint64_t used = 0, pieces = packing->first_piece[s + 1] - packing->first_piece[s];
        assert_in_range(pieces, 1, packing->most_pieces);
        for (uint64_t i = packing->first_piece[s]; i < packing->first_piece[s + 1]; i++) {
            const struct tdm_packed *piece = &packing->pieces[i];
            used += piece->tokens;
            ends += piece->ends;
            for (uint64_t t = 0; t < piece->tokens; t++)
                assert_int_equal(seen[piece->first + t]++, 0);
        }
        assert_true(used <= packing->context);
    }
    assert_null(memchr(seen, 0, tokens));
    assert_int_equal(packing->tokens, tokens);
    assert_int_equal(ends, count);
    for (uint64_t d = 0; d < count; d++)
        cut += lengths[d] > packing->context;
    assert_int_equal(packing->cut_documents, cut);
    free(seen);
}

static void test_packing(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 60; number++) {
        struct tdm_dice dice;
        struct tdm_tokens *text;
        struct tdm_packing packing;
        struct tdm_error err = {0};
        uint64_t lengths[MOST_DOCUMENTS];
        tdm_dice_seed(&dice, 81000 + number);
        uint64_t count = tdm_dice_roll(&dice, 1, MOST_DOCUMENTS);
        uint64_t longest = UINT64_C(1) << tdm_dice_roll(&dice, 1, 11);
        uint64_t context = tdm_dice_roll(&dice, number % 5 == 0 ? 1 : 64, 5000);
        for (uint64_t d = 0; d < count; d++)
            lengths[d] = tdm_dice_roll(&dice, d == 0 ? 2 : 1, longest);
        if (context * 60 < longest)
            continue;
        uint64_t tokens = write_documents("documents.bin", lengths, count);
        if (tdm_tokens_open("documents.bin", 50257, &text, &err) != TDM_OK ||
            tdm_packing_make(text, context, &packing, &err) != TDM_OK)
            fail_msg("%s", err.message);
        check_packing(&packing, lengths, count, tokens);
        assert_int_equal(packing.sequence_count, slow_count(lengths, count, context));
        tdm_packing_free(&packing);
        tdm_tokens_free(text);
    }
    remove("documents.bin");
}

/* A text without documents is cut into sequences. */
static void test_plain(void **state)
{
    (void)state;
    struct tdm_tokens *text;
    struct tdm_packing packing;
    FILE *file = fopen("plain", "wb");
    assert_non_null(file);
    for (int i = 0; i < 1001; i++)
        fputc(i % 251, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(tdm_tokens_open("plain", 256, &text, NULL), TDM_OK);
    assert_int_equal(tdm_packing_make(text, 100, &packing, NULL), TDM_OK);
    assert_int_equal(packing.sequence_count, 11);
    assert_int_equal(packing.cut_documents, 1);
    tdm_packing_free(&packing);
    tdm_tokens_free(text);
    remove("plain");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packing),
                                       cmocka_unit_test(test_plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
