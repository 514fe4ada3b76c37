/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the comparison of all ranks' team ops.
 *
 * The team ops of all ranks of random programs are recorded. A fault is planted in those of one
 * rank, as a mistake in its lowering would, and the comparison must name what is wrong. Most of
 * these faults leave every rank's stream correct by itself.
 */
#include "ops/team.h"
#include "schedule/program.h"
#include "schedule/team_check.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 4, NEEDED = 15 };
#define BASE_SEED 54000u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* The team ops of a rank. */
struct ops {
    struct tdm_op *op;
    size_t count, capacity;
};

static enum tdm_status record(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct ops *ops = self;
    (void)err;
    if (item->kind != TDM_RUN || (TDM_TEAM_KINDS & TDM_KIND(item->op->kind)) == 0)
        return TDM_OK;
    if (ops->count == ops->capacity) {
        ops->capacity = 2 * ops->capacity + 64;
        ops->op = realloc(ops->op, ops->capacity * sizeof(*ops->op));
        assert_non_null(ops->op);
    }
    ops->op[ops->count++] = *item->op;
    return TDM_OK;
}

/* What all ranks of a program run; room for one op more. */
struct trial {
    struct tdm_dice *dice;
    uint32_t ranks, row, rank; /* `row` divide the heads; the rank with the fault */
    struct ops ops[RANKS_MOST];
};

static void copy_trial(const struct trial *from, struct trial *to)
{
    *to = *from;
    for (uint32_t rank = 0; rank < from->ranks; rank++) {
        to->ops[rank].capacity = from->ops[rank].count + 1;
        to->ops[rank].op = calloc(to->ops[rank].capacity, sizeof(*to->ops[rank].op));
        assert_non_null(to->ops[rank].op);
        memcpy(to->ops[rank].op, from->ops[rank].op,
               from->ops[rank].count * sizeof(*to->ops[rank].op));
    }
}

static void free_trial(struct trial *t)
{
    for (uint32_t rank = 0; rank < t->ranks; rank++)
        free(t->ops[rank].op);
}

static enum tdm_status check(const struct trial *t, struct tdm_error *err)
{
    struct tdm_team_check *team;
    enum tdm_status status = tdm_team_check_new(t->ranks, t->row, &team, err);
    for (uint32_t rank = 0; rank < t->ranks && status == TDM_OK; rank++) {
        tdm_team_check_rank(team, rank);
        for (size_t i = 0; i < t->ops[rank].count && status == TDM_OK; i++) {
            const struct tdm_item item = {.kind = TDM_RUN, .op = &t->ops[rank].op[i]};
            status = tdm_team_check_take(team, &item, err);
        }
        if (status == TDM_OK)
            status = tdm_team_check_rank_end(team, err);
    }
    if (status == TDM_OK)
        status = tdm_team_check_finish(team, err);
    tdm_team_check_free(team);
    return status;
}

/* ---- faults ---- */

static struct ops *faulty(struct trial *t)
{
    return &t->ops[t->rank];
}

/* A random op of the rank with the fault; of a kind, if `kind` is one. NULL if there is none. */
static struct tdm_op *some_op(struct trial *t, int kind)
{
    struct ops *ops = faulty(t);
    size_t first = tdm_dice_roll(t->dice, 0, ops->count - 1);
    for (size_t i = 0; i < ops->count; i++) {
        struct tdm_op *op = &ops->op[(first + i) % ops->count];
        if (kind == TDM_OP_KINDS || (int)op->kind == kind)
            return op;
    }
    return NULL;
}

static bool differ(const struct tdm_op *a, const struct tdm_op *b)
{
    return tdm_team_exchanged(a) != tdm_team_exchanged(b) || a->kind != b->kind ||
           a->layer != b->layer || a->chunk != b->chunk || a->part != b->part ||
           a->tokens != b->tokens || a->lap != b->lap || a->hops != b->hops ||
           a->queries != b->queries;
}

static void remove_op(struct ops *ops, size_t at)
{
    ops->count--;
    memmove(&ops->op[at], &ops->op[at + 1], (ops->count - at) * sizeof(*ops->op));
}

static bool dropped(struct trial *t, int kind)
{
    const struct tdm_op *op = some_op(t, kind);
    if (op != NULL)
        remove_op(faulty(t), (size_t)(op - faulty(t)->op));
    return op != NULL;
}

static bool gather_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_GATHER);
}

static bool reduce_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_REDUCE);
}

static bool reduce_all_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_REDUCE_ALL);
}

static bool reduce_scatter_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_REDUCE_SCATTER);
}

static bool gather_all_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_GATHER_ALL);
}

static bool exchange_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_ALL_TO_ALL);
}

static bool hop_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_HOP);
}

static bool hop_sum_dropped(struct trial *t)
{
    return dropped(t, TDM_OP_HOP_SUM);
}

static bool last_dropped(struct trial *t)
{
    faulty(t)->count--;
    return true;
}

static bool all_dropped(struct trial *t)
{
    faulty(t)->count = 0;
    return true;
}

static bool doubled(struct trial *t, size_t at)
{
    struct ops *ops = faulty(t);
    memmove(&ops->op[at + 1], &ops->op[at], (ops->count - at) * sizeof(*ops->op));
    ops->count++;
    return true;
}

static bool some_doubled(struct trial *t)
{
    return doubled(t, tdm_dice_roll(t->dice, 0, faulty(t)->count - 1));
}

static bool last_doubled(struct trial *t)
{
    return doubled(t, faulty(t)->count - 1);
}

static bool swapped(struct trial *t, bool neighbours)
{
    struct ops *ops = faulty(t);
    for (size_t tries = 0; tries < 100; tries++) {
        size_t i = tdm_dice_roll(t->dice, 0, ops->count - 1);
        size_t j = neighbours ? i + 1 : tdm_dice_roll(t->dice, 0, ops->count - 1);
        if (j >= ops->count || !differ(&ops->op[i], &ops->op[j]))
            continue;
        struct tdm_op op = ops->op[i];
        ops->op[i] = ops->op[j];
        ops->op[j] = op;
        return true;
    }
    return false;
}

static bool neighbours_swapped(struct trial *t)
{
    return swapped(t, true);
}

static bool any_two_swapped(struct trial *t)
{
    return swapped(t, false);
}

static bool of_another_layer(struct trial *t)
{
    some_op(t, TDM_OP_KINDS)->layer++;
    return true;
}

static bool of_another_chunk(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_GATHER);
    if (op != NULL)
        op->chunk++;
    return op != NULL;
}

static bool reduce_of_another_chunk(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_REDUCE);
    if (op != NULL)
        op->chunk++;
    return op != NULL;
}

static bool of_another_kind(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_KINDS);
    op->kind = op->kind == TDM_OP_GATHER ? TDM_OP_REDUCE : TDM_OP_GATHER;
    return true;
}

static bool of_another_part(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_REDUCE_ALL);
    if (op != NULL)
        op->part = op->part == TDM_PART_ALL ? TDM_PART_DOWN : TDM_PART_ALL;
    return op != NULL;
}

static bool of_fewer_tokens(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_GATHER);
    if (op != NULL)
        op->tokens--;
    return op != NULL;
}

static bool receives_more(struct trial *t)
{
    some_op(t, TDM_OP_KINDS)->fetched_bytes += 4;
    return true;
}

static bool sends_more(struct trial *t)
{
    some_op(t, TDM_OP_KINDS)->sent_bytes += 4;
    return true;
}

/* The owner of a chunk waits for one share fewer than the others send. */
static bool share_not_awaited(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        const struct tdm_access *own = &op->access[TDM_REDUCE_OWN];
        if (op->kind != TDM_OP_REDUCE || own->buffer == TDM_NONE || op->fetched_bytes < own->bytes)
            continue;
        op->fetched_bytes -= own->bytes;
        return true;
    }
    return false;
}

/* It waits for a share that nobody has. */
static bool share_awaited_in_vain(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        const struct tdm_access *own = &op->access[TDM_REDUCE_OWN];
        if (op->kind != TDM_OP_REDUCE || own->buffer == TDM_NONE)
            continue;
        op->fetched_bytes += own->bytes;
        return true;
    }
    return false;
}

/* A rank does not send its chunk, though the others write it. */
static bool chunk_not_sent(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        if (op->kind != TDM_OP_GATHER || op->sent_bytes == 0)
            continue;
        op->sent_bytes = 0;
        return true;
    }
    return false;
}

/* A rank exchanges the heads of another value than the others. */
static bool other_heads(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        if (tdm_team_exchanged(op) == TDM_EMPTY)
            continue;
        enum tdm_content *content = &op->access[TDM_ALL_TO_ALL_HEADS].after.content;
        *content = *content == TDM_HEADS_Q ? TDM_HEADS_DQ : TDM_HEADS_Q;
        return true;
    }
    return false;
}

/* A rank does not send its heads to the others. */
static bool heads_not_sent(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        if (op->kind != TDM_OP_ALL_TO_ALL || op->sent_bytes == 0)
            continue;
        op->sent_bytes = 0;
        return true;
    }
    return false;
}

/* A hop that has an operand, or NULL. */
static struct tdm_op *some_hop(struct trial *t, uint32_t operand)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_op *op = &faulty(t)->op[i];
        if ((op->kind == TDM_OP_HOP || op->kind == TDM_OP_HOP_SUM) &&
            op->access[operand].buffer != TDM_NONE)
            return op;
    }
    return NULL;
}

/* A rank keeps a chunk that the next one awaits. */
static bool hop_not_sent(struct trial *t)
{
    struct tdm_op *op = some_hop(t, TDM_HOP_SENT);
    if (op == NULL)
        return false;
    op->access[TDM_HOP_SENT].buffer = TDM_NONE;
    op->sent_bytes = 0;
    return true;
}

/* It takes another chunk than comes, of the same bytes. */
static bool hop_of_another_chunk(struct trial *t)
{
    struct tdm_op *op = some_hop(t, TDM_HOP_RECEIVED);
    if (op == NULL)
        return false;
    op->access[TDM_HOP_RECEIVED].after.chunk ^= 1;
    return true;
}

/* It sends K and V where the next one awaits queries. */
static bool other_than_queries(struct trial *t)
{
    for (size_t i = 0; i < faulty(t)->count; i++) {
        struct tdm_access *sent = &faulty(t)->op[i].access[TDM_HOP_SENT];
        if (faulty(t)->op[i].kind != TDM_OP_HOP || sent->buffer == TDM_NONE ||
            sent->after.content != TDM_QUERIES)
            continue;
        sent->after.content = TDM_KVPAGES;
        return true;
    }
    return false;
}

static bool hop_too_many(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_HOP);
    if (op != NULL)
        op->hops++;
    return op != NULL;
}

static bool hop_in_another_lap(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_HOP);
    if (op != NULL)
        op->lap++;
    return op != NULL;
}

static bool hop_for_other_queries(struct trial *t)
{
    struct tdm_op *op = some_op(t, TDM_OP_HOP_SUM);
    if (op != NULL)
        op->queries++;
    return op != NULL;
}

static struct fault {
    const char *name, *message; /* a part of it */
    bool (*plant)(struct trial *t);
    uint64_t planted, caught;
} faults[] = {
    {.name = "a gather dropped", .message = "rank", .plant = gather_dropped},
    {.name = "a reduce dropped", .message = "rank", .plant = reduce_dropped},
    {.name = "a sum over ranks dropped", .message = "rank", .plant = reduce_all_dropped},
    {.name = "a sum of parts dropped", .message = "rank", .plant = reduce_scatter_dropped},
    {.name = "updated weights not gathered", .message = "rank", .plant = gather_all_dropped},
    {.name = "an exchange of heads dropped", .message = "rank", .plant = exchange_dropped},
    {.name = "the heads of another value", .message = "rank 0 runs", .plant = other_heads},
    {.name = "heads not sent", .message = "bytes and receive", .plant = heads_not_sent},
    {.name = "a hop dropped", .message = "rank", .plant = hop_dropped},
    {.name = "a hop of a sum dropped", .message = "rank", .plant = hop_sum_dropped},
    {.name = "a chunk that goes no further", .message = "bytes and receive", .plant = hop_not_sent},
    {.name = "another chunk than comes",
     .message = "receives another chunk",
     .plant = hop_of_another_chunk},
    {.name = "K and V in place of queries",
     .message = "receives another chunk",
     .plant = other_than_queries},
    {.name = "a hop too many", .message = "rank 0 runs", .plant = hop_too_many},
    {.name = "a hop in another lap", .message = "rank 0 runs", .plant = hop_in_another_lap},
    {.name = "a hop for other queries", .message = "rank 0 runs", .plant = hop_for_other_queries},
    {.name = "the last team op dropped", .message = "team ops", .plant = last_dropped},
    {.name = "all team ops dropped", .message = "team ops", .plant = all_dropped},
    {.name = "a team op twice", .message = "rank", .plant = some_doubled},
    {.name = "the last team op twice", .message = "team ops", .plant = last_doubled},
    {.name = "two neighbours swapped", .message = "rank", .plant = neighbours_swapped},
    {.name = "two team ops swapped", .message = "rank", .plant = any_two_swapped},
    {.name = "another layer", .message = "rank 0 runs", .plant = of_another_layer},
    {.name = "a gather of another chunk", .message = "rank 0 runs", .plant = of_another_chunk},
    {.name = "a reduce of another chunk",
     .message = "rank 0 runs",
     .plant = reduce_of_another_chunk},
    {.name = "another kind", .message = "rank 0 runs", .plant = of_another_kind},
    {.name = "another part", .message = "rank 0 runs", .plant = of_another_part},
    {.name = "fewer tokens", .message = "rank 0 runs", .plant = of_fewer_tokens},
    {.name = "more bytes received", .message = "bytes and receive", .plant = receives_more},
    {.name = "more bytes sent", .message = "bytes and receive", .plant = sends_more},
    {.name = "a share not awaited", .message = "bytes and receive", .plant = share_not_awaited},
    {.name = "a share awaited in vain",
     .message = "bytes and receive",
     .plant = share_awaited_in_vain},
    {.name = "a chunk not sent", .message = "bytes and receive", .plant = chunk_not_sent},
};
enum { FAULTS = sizeof(faults) / sizeof(faults[0]) };

static void plant_all(uint64_t seed, const struct trial *correct)
{
    struct tdm_error err;
    must(check(correct, &err), &err);
    for (size_t f = 0; f < FAULTS; f++) {
        struct trial t;
        copy_trial(correct, &t);
        t.rank = (uint32_t)tdm_dice_roll(t.dice, 0, t.ranks - 1);
        if (faults[f].plant(&t)) {
            faults[f].planted++;
            enum tdm_status status = check(&t, &err);
            if (status == TDM_INPUT && strstr(err.message, faults[f].message) != NULL)
                faults[f].caught++;
            else
                print_error("seed %llu, rank %u: %s: %s\n", (unsigned long long)seed, t.rank,
                            faults[f].name, status == TDM_OK ? "not caught" : err.message);
        }
        free_trial(&t);
    }
}

static void faults_are_caught(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 60, .ranks = RANKS_MOST};
    uint64_t cases = tdm_case_count(130, 300), planted = 0, caught = 0, kinds = 0;
    for (uint64_t n = 0; n < cases; n++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED, n);
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_dice dice;
        struct tdm_error err;
        tdm_dice_seed(&dice, seed);
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        struct trial correct = {.dice = &dice,
                                .ranks = program->ranks,
                                .row = schedule->head_ranks > 0 ? schedule->head_ranks : 1};
        for (uint32_t rank = 0; rank < program->ranks; rank++) {
            const struct tdm_program view = tdm_program_of_rank(program, rank);
            must(tdm_program_emit(&view, record, &correct.ops[rank], &err), &err);
        }
        if (program->ranks > 1)
            plant_all(seed, &correct);
        free_trial(&correct);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    for (size_t f = 0; f < FAULTS; f++) {
        print_message("%5llu %5llu  %s\n", (unsigned long long)faults[f].planted,
                      (unsigned long long)faults[f].caught, faults[f].name);
        planted += faults[f].planted;
        caught += faults[f].caught;
        kinds += faults[f].planted >= NEEDED;
    }
    assert_int_equal(planted, caught);
    if (tdm_case_fixed() && cases >= 60)
        assert_int_equal(kinds, FAULTS);
}

/* Programs of one rank have no team ops. */
static void one_rank_has_none(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 60};
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + 20; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct ops ops = {0};
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_program_emit(program, record, &ops, &err), &err);
        assert_int_equal(ops.count, 0);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults_are_caught),
                                       cmocka_unit_test(one_rank_has_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
