/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sequences and documents: where they begin, what is refused, which tokens attend to
 * which, and the tokens that a run trains on. */
#include "executor/batch.h"
#include "schedule/attend.h"
#include "schedule/layout.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_SEED 9000

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static void test_documents(void **state)
{
    (void)state;
    static const uint64_t starts[] = {0, 1, 5};
    struct tdm_sequence *s = tdm_sequences_new(1, 8);
    struct tdm_error err;
    assert_non_null(s);
    assert_int_equal(tdm_document_of(s, 7), 0);
    assert_int_equal(tdm_document_end(s, 0), 8);
    assert_true(tdm_sequence_trains(s, 7));
    must(tdm_sequence_pack(s, "test", 3, starts, &err), &err);
    static const uint32_t of[] = {0, 1, 1, 1, 1, 2, 2, 2};
    static const bool trains[] = {false, true, true, true, false, true, true, true};
    for (uint64_t t = 0; t < 8; t++) {
        assert_int_equal(tdm_document_of(s, t), of[t]);
        assert_int_equal(tdm_sequence_trains(s, t), trains[t]);
    }
    assert_int_equal(tdm_document_start(s, 1), 1);
    assert_int_equal(tdm_document_end(s, 1), 5);
    assert_int_equal(tdm_document_end(s, 2), 8);
    must(tdm_sequence_divide(s, "test", 3, &err), &err);
    assert_int_equal(s->document_count, 3);
    assert_int_equal(s->document_starts[2], 6);
    must(tdm_sequence_divide(s, "test", 100, &err), &err);
    assert_int_equal(s->document_count, 1);
    assert_null(s->document_starts);
    tdm_sequences_free(s, 1);
}

static void test_bad_documents(void **state)
{
    (void)state;
    static const struct {
        uint32_t count;
        uint64_t starts[3];
        const char *message;
    } bad[] = {{0, {0}, "0 documents"},
               {2, {1, 2}, "begins with 1"},
               {3, {0, 4, 4}, "4 after 4"},
               {3, {0, 4, 3}, "3 after 4"},
               {2, {0, 8}, "a document at 8"}};
    struct tdm_sequence *s = tdm_sequences_new(1, 8);
    struct tdm_error err;
    assert_non_null(s);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tdm_sequence_pack(s, "these", bad[i].count, bad[i].starts, &err),
                         TDM_INPUT);
        assert_non_null(strstr(err.message, "these "));
        assert_non_null(strstr(err.message, bad[i].message));
        assert_int_equal(s->document_count, 1);
    }
    s->tokens = UINT64_C(1) << 40;
    assert_int_equal(tdm_sequence_divide(s, "these", 1, &err), TDM_INPUT);
    tdm_sequences_free(s, 1);
}

/* ---- attention, token by token ---- */

/* Does a token see another? Where pages are listed: may it? property_gradients compares what
 * selectors choose from that range with the reference. */
static bool sees(const struct tdm_schedule *schedule, uint32_t layer, uint32_t sequence,
                 uint64_t token, uint64_t seen)
{
    const struct tdm_sequence *s = &schedule->sequences[sequence];
    struct tdm_page_rule rule = tdm_schedule_page_rule(schedule, layer);
    uint64_t start = tdm_document_start(s, tdm_document_of(s, token));
    return seen <= token && seen >= tdm_far_token(&rule, start, token);
}

/* Number of pairs in which a token of chunk `from` sees a token of chunk `to`. */
static uint64_t pairs_between(const struct tdm_program *program, uint32_t layer, uint32_t from,
                              uint32_t to)
{
    const struct tdm_chunk *a = &program->chunks[from], *b = &program->chunks[to];
    uint64_t pairs = 0;
    if (a->sequence != b->sequence)
        return 0;
    for (uint64_t t = a->first_token; t < a->first_token + a->tokens; t++)
        for (uint64_t u = b->first_token; u < b->first_token + b->tokens; u++)
            pairs += sees(program->schedule, layer, a->sequence, t, u);
    return pairs;
}

static void check_chunk(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    uint64_t pairs = 0;
    uint32_t first = chunk, shared = chunk + 1;
    for (uint32_t to = 0; to < program->chunk_count; to++) {
        uint64_t here = pairs_between(program, layer, chunk, to);
        pairs += here;
        if (here > 0 && to < first)
            first = to;
        if (here > 0 && to < shared && chunk + 1 < program->chunk_count &&
            pairs_between(program, layer, chunk + 1, to) > 0)
            shared = to;
    }
    struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, layer);
    if (!tdm_selector_lists(rule.selector.kind))
        assert_int_equal(tdm_attend_pairs(program, layer, chunk), pairs);
    else if (rule.chunk_tokens % rule.page_tokens == 0) /* some of the range; no page is short */
        assert_true(tdm_attend_pairs(program, layer, chunk) <= pairs);
    assert_int_equal(tdm_attend_first(program, layer, chunk), first);
    assert_int_equal(tdm_attend_shared(program, layer, chunk), shared);
    uint32_t last = chunk;
    while (last + 1 < program->chunk_count && pairs_between(program, layer, last + 1, chunk) > 0)
        last++;
    assert_int_equal(tdm_attend_last(program, layer, chunk), last);
}

static void test_attend(void **state)
{
    (void)state;
    const struct tdm_random_options options = {0};
    uint64_t cases = tdm_case_count(40, 300);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        struct tdm_error err;
        must(tdm_random_schedule(tdm_case_seed(BASE_SEED, n), &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        double pairs = 0;
        for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
            for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++) {
                check_chunk(program, layer, chunk);
                pairs += (double)tdm_attend_pairs(program, layer, chunk);
            }
        assert_true(tdm_attend_step_pairs(schedule) == pairs);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* ---- pairs of lists, token by token ---- */

/* How many of the `far` tokens before a token's near ones the lists have space for. */
static uint64_t listed(const struct tdm_page_rule *rule, uint64_t far)
{
    const struct tdm_selector *s = &rule->selector;
    uint64_t page = rule->page_tokens, most = s->budget;
    if (s->kind == TDM_SELECT_DILATED) {
        uint64_t reach = far / (s->dilation * page), pages = s->window / page;
        most = (reach < pages ? reach : pages) * page;
    } else if (s->kind != TDM_SELECT_TOP_K) {
        most = ((s->global + page - 1) / page + s->random) * page;
    }
    return far < most ? far : most;
}

/* Pairs of a chunk: for every token the near tokens and those that its page lists, separately for
 * each document that begins within a page. */
static uint64_t pairs_by_token(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const struct tdm_chunk *c = &program->chunks[chunk];
    const struct tdm_sequence *s = &program->schedule->sequences[c->sequence];
    struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, layer);
    uint64_t pairs = 0, far = 0, page = UINT64_MAX, document = UINT64_MAX;
    for (uint64_t t = c->first_token; t < c->first_token + c->tokens; t++) {
        uint64_t start = tdm_document_start(s, tdm_document_of(s, t));
        uint64_t near = tdm_near_token(&rule, start, t);
        if (tdm_page_of(&rule, t) != page || start != document) {
            page = tdm_page_of(&rule, t);
            document = start;
            far = tdm_selector_lists(rule.selector.kind) ? listed(&rule, near - start) : 0;
        }
        pairs += t - near + 1 + far;
    }
    return pairs;
}

/* Sets another selector, chunk and page size, and longer sequences with documents of any length. */
static void random_rule(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    struct tdm_error err;
    for (uint32_t i = 0; i < schedule->sequence_count; i++) {
        struct tdm_sequence *s = &schedule->sequences[i];
        s->tokens = tdm_dice_roll(dice, 1, 3000);
        uint64_t length = tdm_dice_chance(dice, 50) ? s->tokens : tdm_dice_roll(dice, 3, 900);
        must(tdm_sequence_divide(s, "test", length, &err), &err);
    }
    schedule->chunk_tokens = tdm_dice_roll(dice, 1, 1500);
    schedule->page_tokens = tdm_dice_roll(dice, 1, tdm_dice_chance(dice, 50) ? 8 : 200);
    schedule->selector = (struct tdm_selector){0};
    while (!tdm_selector_lists(schedule->selector.kind)) {
        schedule->selector = (struct tdm_selector){0};
        tdm_random_selector(dice, schedule);
    }
}

static void test_listed_pairs(void **state)
{
    (void)state;
    const struct tdm_random_options options = {0};
    uint64_t cases = tdm_case_count(300, 2000);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = NULL;
        struct tdm_error err;
        struct tdm_dice dice;
        uint64_t seed = tdm_case_seed(BASE_SEED, n);
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        tdm_dice_seed(&dice, seed);
        random_rule(&dice, schedule);
        for (uint32_t s = 0; s < schedule->sequence_count; s++) {
            struct tdm_chunk chunk = {.sequence = s};
            struct tdm_program program = {.chunks = &chunk, .chunk_count = 1};
            tdm_program_set_schedule(&program, schedule);
            for (uint64_t left = schedule->sequences[s].tokens; left > 0; left -= chunk.tokens) {
                chunk.first_token = schedule->sequences[s].tokens - left;
                chunk.tokens = left < schedule->chunk_tokens ? left : schedule->chunk_tokens;
                uint64_t due = pairs_by_token(&program, 0, 0);
                if (tdm_attend_pairs(&program, 0, 0) != due) {
                    tdm_case_again("schedule/unit_sequence", seed);
                    assert_int_equal(tdm_attend_pairs(&program, 0, 0), due);
                }
            }
        }
        tdm_schedule_free(schedule);
    }
}

/* ---- tokens of a run ---- */

/* Writes a text whose bytes rise by one, modulo 251, so that targets can be checked. */
static void write_text(const char *path)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 4096; i++)
        fputc(i % 251, file);
    assert_int_equal(fclose(file), 0);
}

static void check_tokens(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                         bool text)
{
    struct tdm_batch *batch;
    struct tdm_error err;
    uint64_t row = 0;
    must(tdm_batch_new(tokens, schedule, &batch, &err), &err);
    const int32_t *inputs = batch->inputs, *targets = batch->targets;
    tdm_batch_step(batch, 3, 1);
    assert_null(batch->sequences);
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &schedule->sequences[s];
        for (uint64_t t = 0; t < sequence->tokens; t++, row++) {
            if (!tdm_sequence_trains(sequence, t))
                assert_int_equal(targets[row], TDM_NO_TARGET);
            else if (t + 1 < sequence->tokens)
                assert_int_equal(targets[row], inputs[row + 1]);
            else if (text)
                assert_int_equal(targets[row], (inputs[row] + 1) % 251);
            assert_in_range(inputs[row], 0, 255);
        }
    }
    tdm_batch_free(batch);
}

static void test_tokens(void **state)
{
    (void)state;
    static const uint64_t starts[] = {0, 1, 7, 20};
    const char *folder = getenv("TDM_SCRATCH");
    char path[4096];
    struct tdm_tokens *text, *random;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err;
    snprintf(path, sizeof(path), "%s/rising", folder == NULL ? "." : folder);
    write_text(path);
    must(tdm_model_load("byte-1m", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, 1, &schedule, &err), &err);
    must(tdm_schedule_set_sequences(schedule, 2, 30, &err), &err);
    must(tdm_sequence_pack(&schedule->sequences[1], "test", 4, starts, &err), &err);
    assert_int_equal(tdm_schedule_tokens(schedule), 60);
    assert_int_equal(tdm_schedule_trained_tokens(schedule), 57);
    must(tdm_tokens_open(path, 256, &text, &err), &err);
    must(tdm_tokens_open(NULL, 256, &random, &err), &err);
    check_tokens(text, schedule, true);
    check_tokens(random, schedule, false);

    /* documents come from different places of the text */
    struct tdm_batch *batch;
    must(tdm_batch_new(text, schedule, &batch, &err), &err);
    tdm_batch_step(batch, 3, 1);
    assert_int_not_equal(batch->inputs[37], batch->inputs[36] + 1);
    tdm_batch_free(batch);
    tdm_tokens_free(text);
    tdm_tokens_free(random);
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents), cmocka_unit_test(test_bad_documents),
        cmocka_unit_test(test_attend),    cmocka_unit_test(test_listed_pairs),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
