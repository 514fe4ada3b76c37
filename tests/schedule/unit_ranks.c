/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ranks: how chunks are dealt to them, in which order they add to a sum, and that the nest
 * of a rank visits the rank's own chunks. Ranks that stand for others, where there are many. Laps
 * of a ring of rows that divide the heads.
 */
#include "schedule/nest.h"
#include "schedule/program.h"
#include "schedule/queries.h"
#include "schedule/ranks.h"
#include "schedule/ranks_sample.h"
#include "schedule/ring.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { CHUNKS_MOST = 160, RANKS_MOST = 5, PROGRAMS = 100 };
#define BASE_SEED 87000u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* Makes the chunks of sequences of `lengths` chunks; 0 ends the list. */
static uint32_t make_chunks(const uint32_t *lengths, struct tdm_chunk chunks[CHUNKS_MOST])
{
    uint32_t count = 0;
    for (uint32_t s = 0; lengths[s] > 0; s++) {
        uint32_t first = count;
        for (; count < first + lengths[s]; count++)
            chunks[count] = (struct tdm_chunk){
                .sequence = s, .first_chunk = first, .last_chunk = first + lengths[s] - 1};
    }
    return count;
}

/* Two ranks, sequences of 5 and 4 chunks. A round does not continue in the next sequence. */
static void test_two_ranks(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {0, 1, 1, 0, 0, 1, 0, 0, 1};
    static const uint32_t rounds[] = {0, 0, 1, 1, 2, 3, 3, 4, 4};
    static const uint32_t slots[] = {0, 0, 1, 1, 2, 2, 3, 4, 3};
    static const uint32_t before[] = {3, 2, 5, 4, 6, 8, 7, 9, 9};
    struct tdm_chunk chunks[CHUNKS_MOST];
    struct tdm_program program = {.ranks = 2, .chunks = chunks};
    program.chunk_count = make_chunks((const uint32_t[]){5, 4, 0}, chunks);
    tdm_ranks_deal(chunks, program.chunk_count, program.ranks, TDM_DEAL_SNAKE, NULL);
    for (uint32_t i = 0; i < program.chunk_count; i++) {
        assert_int_equal(chunks[i].rank, ranks[i]);
        assert_int_equal(chunks[i].round, rounds[i]);
        assert_int_equal(chunks[i].slot, slots[i]);
        assert_int_equal(tdm_sum_before(&program, i), before[i]);
        assert_int_equal(tdm_sum_opens(&program, i), before[i] == program.chunk_count);
        assert_int_equal(tdm_sum_closes(&program, i), i < 2); /* each rank's first chunk */
    }
}

/* With one rank a round is one chunk, a slot is its number, and the next chunk adds before it. */
static void test_one_rank(void **state)
{
    (void)state;
    struct tdm_chunk chunks[CHUNKS_MOST];
    struct tdm_program program = {.ranks = 1, .chunks = chunks};
    program.chunk_count = make_chunks((const uint32_t[]){7, 1, 3, 0}, chunks);
    tdm_ranks_deal(chunks, program.chunk_count, program.ranks, TDM_DEAL_SNAKE, NULL);
    for (uint32_t i = 0; i < program.chunk_count; i++) {
        assert_int_equal(chunks[i].rank, 0);
        assert_int_equal(chunks[i].round, i);
        assert_int_equal(chunks[i].slot, i);
        assert_int_equal(tdm_sum_before(&program, i), i + 1);
        assert_int_equal(tdm_sum_closes(&program, i), i == 0);
    }
}

/* Ranks have equal cost: chunk i sees i whole chunks and half of itself. */
static void test_balance(void **state)
{
    (void)state;
    static const uint32_t counts[] = {24, 32, 64, 128};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
            struct tdm_chunk chunks[CHUNKS_MOST];
            uint64_t cost[RANKS_MOST] = {0};
            uint32_t count = make_chunks((const uint32_t[]){counts[c], 0}, chunks);
            tdm_ranks_deal(chunks, count, ranks, TDM_DEAL_SNAKE, NULL);
            for (uint32_t i = 0; i < count; i++)
                cost[chunks[i].rank] += 2 * i + 1;
            for (uint32_t rank = 1; rank < ranks; rank++)
                assert_int_equal(cost[rank], cost[0]);
        }
}

/* Sequences of 5 and 3 chunks for two ranks, in every order. */
static void test_deals(void **state)
{
    (void)state;
    static const uint64_t costs[] = {1, 2, 3, 1, 2, 9, 2, 3};
    static const struct {
        enum tdm_deal deal;
        uint32_t ranks[8], rounds[8], slots[8];
    } due[] = {
        {TDM_DEAL_STRIPES,
         {0, 1, 0, 1, 0, 0, 1, 0},
         {0, 0, 1, 1, 2, 3, 3, 4},
         {0, 0, 1, 1, 2, 3, 2, 4}},
        {TDM_DEAL_CONTIGUOUS,
         {0, 0, 0, 1, 1, 0, 0, 1},
         {0, 1, 2, 3, 4, 5, 6, 7},
         {0, 1, 2, 0, 1, 3, 4, 2}},
        /* 2 to rank 0, 1 to 1; 3 to 1 (1 < 2), 1 to 0; 2 to 0 (3 < 4); then 9 to 1 (4 < 5), 2 to 0;
         * 3 to 0 */
        {TDM_DEAL_GREEDY,
         {1, 0, 1, 0, 0, 1, 0, 0},
         {0, 0, 1, 1, 2, 3, 3, 4},
         {0, 0, 1, 1, 2, 2, 3, 4}},
    };
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++) {
        struct tdm_chunk chunks[CHUNKS_MOST];
        uint32_t count = make_chunks((const uint32_t[]){5, 3, 0}, chunks);
        tdm_ranks_deal(chunks, count, 2, due[i].deal, costs);
        for (uint32_t chunk = 0; chunk < count; chunk++) {
            assert_int_equal(chunks[chunk].rank, due[i].ranks[chunk]);
            assert_int_equal(chunks[chunk].round, due[i].rounds[chunk]);
            assert_int_equal(chunks[chunk].slot, due[i].slots[chunk]);
        }
    }
}

static double imbalance(const struct tdm_chunk *chunks, const uint64_t *costs, uint32_t count,
                        uint32_t ranks)
{
    uint64_t load[RANKS_MOST] = {0}, all = 0, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        load[chunks[i].rank] += costs[i];
        all += costs[i];
    }
    for (uint32_t rank = 0; rank < ranks; rank++)
        most = load[rank] > most ? load[rank] : most;
    return (double)most * ranks / (double)all - 1;
}

/* Chunks of packed documents of random lengths: the greedy order is within 2% of even work, where
 * the snake is off by several percent. Both are even for one document. */
static void test_greedy(void **state)
{
    (void)state;
    enum { TRIALS = 200, TOKENS = 100 };
    double greedy = 0, snake = 0;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, BASE_SEED);
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        struct tdm_chunk chunks[CHUNKS_MOST];
        uint64_t costs[CHUNKS_MOST] = {0}, left = 0, seen = 0;
        const uint32_t ranks = 2 + trial % 4;
        uint32_t count = make_chunks((const uint32_t[]){128, 0}, chunks);
        for (uint32_t token = 0; token < count * TOKENS; token++, left--) {
            if (left == 0) { /* the next document, mostly of a few chunks */
                left = tdm_dice_roll(&dice, 1, tdm_dice_chance(&dice, 20) ? 3000 : 600);
                seen = 0;
            }
            costs[token / TOKENS] += ++seen;
        }
        tdm_ranks_deal(chunks, count, ranks, TDM_DEAL_GREEDY, costs);
        greedy += imbalance(chunks, costs, count, ranks) / TRIALS;
        tdm_ranks_deal(chunks, count, ranks, TDM_DEAL_SNAKE, costs);
        snake += imbalance(chunks, costs, count, ranks) / TRIALS;
    }
    print_message("packed documents: the rank with most has %.2f%% more than its part; %.2f%% with "
                  "the snake\n",
                  100 * greedy, 100 * snake);
    assert_true(greedy < 0.02);
    assert_true(snake > 0.03);
}

/* How many bodies with a chunk, and others, a traversal visits. */
struct visits {
    const struct tdm_program *program;
    uint32_t rank, of_chunks, others;
};

static enum tdm_status note(void *self, const struct tdm_body *body, struct tdm_error *err)
{
    struct visits *visits = self;
    (void)err;
    if (body->chunk == TDM_NONE) {
        visits->others++;
        return TDM_OK;
    }
    if (body->absent) {
        assert_true(tdm_body_is_of_layer(body->kind));
        return TDM_OK;
    }
    assert_int_equal(visits->program->chunks[body->chunk].rank, visits->rank);
    visits->of_chunks++;
    return TDM_OK;
}

static struct visits visits_of(const struct tdm_program *program, uint32_t rank)
{
    struct visits visits = {.program = program, .rank = rank};
    struct tdm_error err;
    struct tdm_program view = *program;
    view.rank = rank;
    must(tdm_nest_visit(&view, note, &visits, &err), &err);
    return visits;
}

/* All ranks together visit the bodies of a single rank's nest, each body once; every rank visits
 * all markers. */
static void test_walks(void **state)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .max_tokens = 90};
    (void)state;
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + PROGRAMS; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        struct visits alone = visits_of(program, 0);
        for (uint32_t ranks = 2; ranks <= RANKS_MOST; ranks++) {
            uint32_t of_chunks = 0, slots = 0;
            tdm_ranks_deal(program->chunks, program->chunk_count, ranks,
                           (enum tdm_deal)((seed + ranks) % TDM_DEAL_GREEDY), NULL);
            for (uint32_t rank = 0; rank < ranks; rank++) {
                struct visits mine = visits_of(program, rank);
                assert_int_equal(mine.others, alone.others);
                of_chunks += mine.of_chunks;
            }
            for (uint32_t i = 0; i < program->chunk_count; i++)
                if (tdm_sum_opens(program, i))
                    slots += program->chunks[i].slot + 1;
            assert_int_equal(of_chunks, alone.of_chunks);
            assert_int_equal(slots, program->chunk_count);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* ---- ranks that stand for others ---- */

struct lives {
    uint64_t mark, items;
};

static enum tdm_status note_life(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct lives *lives = self;
    (void)err;
    if (item->kind == TDM_RUN)
        return TDM_OK;
    lives->mark = (lives->mark ^ (item->buffer * 2u + (item->kind == TDM_FREE))) *
                  UINT64_C(0x9e3779b97f4a7c15);
    lives->mark ^= lives->mark >> 31;
    lives->items++;
    return TDM_OK;
}

static struct lives lives_of(const struct tdm_program *program, uint32_t rank)
{
    const struct tdm_program view = tdm_program_of_rank(program, rank);
    struct lives lives = {0};
    struct tdm_error err;
    must(tdm_program_emit(&view, note_life, &lives, &err), &err);
    return lives;
}

/* Lowered for a sample of its ranks, a program has the same buffers at the same offsets, and the
 * counts of all ranks that are simulated. Measured without ops, its arenas are the same. */
static void compare_sample(const struct tdm_program *whole, const struct tdm_schedule *schedule)
{
    struct tdm_program *sample;
    struct tdm_error err;
    uint32_t simulated[TDM_SIMULATED_RANKS];
    uint64_t arena_bytes[TDM_MAX_PLACES];
    must(tdm_program_lower_sample(schedule, &sample, &err), &err);
    assert_int_equal(sample->sampled, whole->ranks > TDM_SIMULATED_RANKS);
    assert_int_equal(sample->buffer_count, whole->buffer_count);
    assert_memory_equal(sample->arena_bytes, whole->arena_bytes, sizeof(whole->arena_bytes));
    assert_memory_equal(sample->live_peak_bytes, whole->live_peak_bytes,
                        sizeof(whole->live_peak_bytes));
    for (uint32_t i = 0; i < whole->buffer_count; i++)
        assert_int_equal(sample->buffers[i].offset, whole->buffers[i].offset);
    must(tdm_program_measure(schedule, NULL, arena_bytes, &err), &err);
    assert_memory_equal(arena_bytes, whole->arena_bytes, sizeof(arena_bytes));
    const uint32_t count = tdm_ranks_simulated(whole, simulated);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(sample->counts[simulated[i]].ops, whole->counts[simulated[i]].ops);
    tdm_program_free(sample);
}

static void test_alike(void **state)
{
    const struct tdm_random_options options = {
        .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 300, .ranks = 64};
    uint32_t stands[TDM_MAX_RANKS], others = 0, sampled = 0;
    (void)state;
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + PROGRAMS / 2; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_ranks_alike(program, stands, &err), &err);
        for (uint32_t rank = 0; rank < program->ranks; rank++) {
            assert_true(stands[rank] <= rank && stands[stands[rank]] == stands[rank]);
            if (stands[rank] == rank)
                continue;
            const struct lives mine = lives_of(program, rank);
            const struct lives first = lives_of(program, stands[rank]);
            assert_true(mine.mark == first.mark && mine.items == first.items);
            others++;
        }
        compare_sample(program, schedule);
        sampled += program->ranks > TDM_SIMULATED_RANKS;
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message("%u ranks are as another, %u programs were sampled\n", others, sampled);
    assert_true(others > 50 && sampled > 3);
}

/* Chunks whose bodies a measurement of a rank's memory leaves out. */
static uint32_t count_left_out(const struct tdm_program *program, uint32_t rank)
{
    const struct tdm_program view = tdm_program_of_rank(program, rank);
    bool *left_out = calloc(program->chunk_count, sizeof(*left_out));
    struct tdm_error err;
    uint32_t count = 0;
    must(tdm_rounds_left_out(&view, left_out, &err), &err);
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        count += left_out[chunk];
    free(left_out);
    return count;
}

/* Measured without ops, and without rounds in which a rank does the same as in those beside them, a
 * step takes what it takes when all of it is lowered. */
static void test_measured(void **state)
{
    const uint32_t ranks[] = {0, 4, 16};
    uint32_t left_out = 0, programs = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        const struct tdm_random_options options = {
            .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 300, .ranks = ranks[i]};
        for (uint64_t seed = BASE_SEED; seed < BASE_SEED + PROGRAMS; seed++) {
            struct tdm_schedule *schedule;
            struct tdm_program *program;
            struct tdm_error err;
            uint64_t arena_bytes[TDM_MAX_PLACES];
            char text[512];
            must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
            must(tdm_program_lower(schedule, &program, &err), &err);
            must(tdm_program_measure(schedule, NULL, arena_bytes, &err), &err);
            if (memcmp(arena_bytes, program->arena_bytes, sizeof(arena_bytes)) != 0)
                fail_msg("seed %llu: measured %llu bytes, lowered %llu: %s",
                         (unsigned long long)seed, (unsigned long long)arena_bytes[TDM_DEVICE],
                         (unsigned long long)program->arena_bytes[TDM_DEVICE],
                         tdm_schedule_describe(schedule, text, sizeof(text)));
            const uint32_t count = count_left_out(program, program->ranks - 1);
            left_out += count;
            programs += count > 0;
            tdm_program_free(program);
            tdm_schedule_free(schedule);
        }
    }
    print_message("%u chunks were left out of %u programs\n", left_out, programs);
    assert_true(programs > PROGRAMS / 2 && left_out > 10 * programs);
}

/* ---- rings of rows ---- */

/* A turn of a rank: the chunk that it has, after how many hops; TDM_NONE: none. */
struct lap_turn {
    uint32_t lap, hops, visit, chunk;
};

/* Four ranks, two of which in a row divide the heads, a sequence of 7 chunks: rounds 0 1 2 3 of
 * rows 0 0 1 1, and 4 5 6 of rows 1 1 0. What the ranks of row 0 have in the turns for queries of
 * the second round: in each lap first the chunk of row 1, then that of their own. */
static void test_laps(void **state)
{
    (void)state;
    static const struct lap_turn due[] = {
        {0, 1, 0, 2}, {0, 2, 1, 0}, {1, 1, 1, 3}, {1, 2, 2, 1},        /* the first round */
        {0, 1, 2, 4}, {0, 2, 3, 6}, {1, 1, 3, 5}, {1, 2, 4, TDM_NONE}, /* the second */
    };
    struct tdm_layer_kind kinds[1] = {{0}};
    struct tdm_sequence sequence = {.tokens = 7};
    struct tdm_model model = {.layers = 1, .layer_kinds = kinds, .kv_heads = 2};
    struct tdm_schedule schedule = {.model = &model,
                                    .ranks = 4,
                                    .exchange = TDM_EXCHANGE_HEADS_RING,
                                    .head_ranks = 2,
                                    .chunk_tokens = 1,
                                    .sequence_count = 1,
                                    .sequences = &sequence};
    struct tdm_chunk chunks[CHUNKS_MOST];
    struct tdm_program program = {.ranks = 4, .chunks = chunks, .schedule = &schedule};
    program.chunk_count = make_chunks((const uint32_t[]){7, 0}, chunks);
    for (uint32_t i = 0; i < program.chunk_count; i++) {
        chunks[i].first_token = i;
        chunks[i].tokens = 1;
    }
    tdm_ranks_deal(chunks, program.chunk_count, program.ranks, TDM_DEAL_SNAKE, NULL);
    tdm_sets_count(&program);
    const struct tdm_ring ring = tdm_ring_begin(&program, 0, 4, 7);
    assert_int_equal(ring.turns, sizeof(due) / sizeof(due[0]));
    for (program.rank = 0; program.rank < 2; program.rank++)
        for (uint32_t i = 0; i < ring.turns; i++) {
            const struct tdm_turn turn = tdm_ring_turn(&ring, i);
            assert_int_equal(turn.first, i < 4 ? 0 : 4);
            assert_int_equal(turn.lap, due[i].lap);
            assert_int_equal(turn.hops, due[i].hops);
            assert_int_equal(turn.visit, due[i].visit);
            assert_int_equal(tdm_ring_chunk(&program, turn.first, turn.lap, turn.hops),
                             due[i].chunk);
        }
    /* slots in a row of K and V: of the chunks of the row */
    static const uint32_t slots[] = {0, 1, 0, 1, 2, 3, 2};
    for (uint32_t i = 0; i < program.chunk_count; i++)
        assert_int_equal(tdm_set_slot(&program, i, 0), slots[i]);
    /* chunk 5 sees chunk 4 of its row; to dK and dV of 0 add 5, 4 on their way, then 6 at home */
    assert_int_equal(tdm_ring_seers(&ring, 1, 5).first, 5);
    assert_int_equal(tdm_ring_contributor(&ring, 0, 1), 4);
    static const uint32_t order[] = {4, 6, 2, 1, 0}; /* 3 adds on its way before 2 */
    uint32_t before = program.chunk_count;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        assert_int_equal(tdm_ring_sum_before(&program, 0, 0, order[i]), before);
        before = order[i];
    }
    /* with queries: in each lap of the second round first row 0, then row 1; in the first round the
     * chunks of the second lap, and chunk 0 itself when all laps have run */
    static const uint32_t of_queries[] = {6, 4, 5, 2, 1, 3, 0};
    before = program.chunk_count;
    for (size_t i = 0; i < sizeof(of_queries) / sizeof(of_queries[0]); i++) {
        assert_int_equal(tdm_queries_sum_before(&program, 0, 0, of_queries[i]), before);
        before = of_queries[i];
    }
}

/* The first chunk of [from, end) that a rank has; `none` if it has none. */
static uint32_t find(const struct tdm_chunk *chunks, uint32_t from, uint32_t end, uint32_t rank,
                     uint32_t none)
{
    for (; from < end; from++)
        if (chunks[from].rank == rank)
            return from;
    return none;
}

/* By position the first chunks of all sequences come first, then the second ones; with several
 * ranks chunks stay as they are numbered. */
static void test_places(void **state)
{
    (void)state;
    struct tdm_chunk chunks[CHUNKS_MOST];
    uint32_t at[CHUNKS_MOST];
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        const struct tdm_schedule schedule = {.ranks = ranks, .splits_by_position = true};
        const uint32_t count = make_chunks((const uint32_t[]){4, 1, 5, 2, 0}, chunks);
        tdm_chunks_place(chunks, count, &schedule);
        memset(at, 0xff, sizeof(at));
        for (uint32_t i = 0; i < count; i++) {
            assert_true(chunks[i].place < count && at[chunks[i].place] == UINT32_MAX);
            at[chunks[i].place] = i;
            assert_true(ranks == 1 || chunks[i].place == i);
        }
        for (uint32_t place = 1; place < count && ranks == 1; place++) {
            const struct tdm_chunk *before = &chunks[at[place - 1]], *of = &chunks[at[place]];
            const uint32_t position = at[place] - of->first_chunk;
            assert_true(at[place - 1] - before->first_chunk + (before->sequence >= of->sequence) ==
                            position ||
                        (before->sequence < of->sequence &&
                         at[place - 1] - before->first_chunk == position));
        }
    }
}

/* What is looked up is what a search from the first chunk to the last finds, in every order. */
static void test_lookups(void **state)
{
    (void)state;
    static const enum tdm_deal deals[] = {TDM_DEAL_SNAKE, TDM_DEAL_STRIPES, TDM_DEAL_CONTIGUOUS,
                                          TDM_DEAL_GREEDY};
    static const uint64_t costs[CHUNKS_MOST] = {5, 1, 4, 4, 9, 2, 6, 3, 1, 1, 8};
    struct tdm_chunk chunks[CHUNKS_MOST];
    for (uint32_t of = 0; of < 4 * 8; of++) {
        struct tdm_program program = {.ranks = 1 + of / 4, .chunks = chunks};
        const uint32_t count = make_chunks((const uint32_t[]){9, 1, 16, 3, 0}, chunks);
        const struct tdm_schedule as_numbered = {.ranks = program.ranks};
        program.chunk_count = count;
        tdm_chunks_place(chunks, count, &as_numbered);
        tdm_ranks_deal(chunks, count, program.ranks, deals[of % 4], costs);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t rank = chunks[i].rank;
            uint32_t first = i, end = i;
            while (first > 0 && chunks[first - 1].round == chunks[i].round)
                first--;
            while (end < count && chunks[end].round == chunks[i].round)
                end++;
            assert_int_equal(tdm_round_first(&program, i), first);
            assert_int_equal(tdm_round_end(&program, i), end);
            for (uint32_t other = 0; other < program.ranks; other++)
                assert_int_equal(tdm_round_of(&program, first, other),
                                 find(chunks, first, end, other, TDM_NONE));
            assert_int_equal(tdm_sum_before(&program, i), find(chunks, i + 1, count, rank, count));
            assert_int_equal(tdm_sum_closes(&program, i), find(chunks, 0, i, rank, i) == i);
            for (uint32_t from = 0; from <= i; from++)
                assert_int_equal(tdm_rank_slot(&program, i, from),
                                 chunks[i].slot - chunks[find(chunks, from, count, rank, i)].slot);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks), cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_balance),   cmocka_unit_test(test_deals),
        cmocka_unit_test(test_greedy),    cmocka_unit_test(test_walks),
        cmocka_unit_test(test_alike),     cmocka_unit_test(test_measured),
        cmocka_unit_test(test_laps),      cmocka_unit_test(test_places),
        cmocka_unit_test(test_lookups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
