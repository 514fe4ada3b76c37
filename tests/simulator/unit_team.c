/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of several ranks simulated: what they exchange, up to 1,024 ranks, and the clock on which
 * they meet. */
#include "ops/team.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "simulator/simulate.h"
#include "simulator/team.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BASE_SEED 91000u
#define LONGEST 5.0 /* seconds of a core for a simulation */

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* ---- what ranks exchange ---- */

/* Bytes that all ranks together receive and send, by kind of op. */
struct volumes {
    uint64_t received[TDM_OP_KINDS], sent[TDM_OP_KINDS];
};

static enum tdm_status count(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct volumes *volumes = self;
    (void)err;
    if (item->kind == TDM_RUN && (TDM_TEAM_KINDS & TDM_KIND(item->op->kind)) != 0) {
        volumes->received[item->op->kind] += item->op->fetched_bytes;
        volumes->sent[item->op->kind] += item->op->sent_bytes;
    }
    return TDM_OK;
}

static uint64_t up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static uint64_t size_of(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32 ? 4 : 2;
}

/* Bytes of K and V of `tokens` tokens, in whole pages. */
static uint64_t kv_bytes(const struct tdm_schedule *s, uint64_t tokens, enum tdm_dtype dtype)
{
    return up(tokens, s->page_tokens) * s->page_tokens * 2 * s->model->kv_heads *
           s->model->head_dim * size_of(dtype);
}

/* First token that the first token of a chunk sees. */
static uint64_t first_seen(const struct tdm_schedule *s, uint32_t layer,
                           const struct tdm_sequence *sequence, uint64_t token)
{
    uint64_t window = s->model->layer_kinds[layer].window, start = 0;
    for (uint32_t d = 1; d < sequence->document_count; d++)
        if (sequence->document_starts[d] <= token)
            start = sequence->document_starts[d];
    uint64_t by_window = window == 0 || window > token ? 0 : token + 1 - window;
    return start > by_window ? start : by_window;
}

/* How often the K and V of a layer are made or fetched, and so gathered: by the forward, by its
 * repetition if the layer is not the top of its group, and by the backward; what is kept on the
 * device stays. */
static uint64_t times_gathered(const struct tdm_schedule *s, uint32_t layer)
{
    uint32_t end = 0, g = 0;
    for (; (end += s->groups[g].layers) <= layer; g++)
        continue;
    const struct tdm_group *group = &s->groups[g];
    if (s->pass == TDM_EVALUATE || (group->kv == TDM_KV_KEEP && group->kv_place == TDM_DEVICE))
        return 1;
    return layer + 1 == end ? 2 : 3;
}

/* Elements of a unit from its first tensor to the end of its last, with the gaps between them. */
static uint64_t span_of(const struct tdm_model *model, uint32_t unit)
{
    const struct tdm_unit *of = &model->units[unit];
    const struct tdm_tensor *last = &model->tensors[of->first_tensor + of->tensor_count - 1];
    return last->offset + last->elements - model->tensors[of->first_tensor].offset;
}

/* How often attention of a layer runs where nothing of it is stored: in the forward, in its
 * repetition and in the backward. */
static uint64_t times_attended(const struct tdm_schedule *s, uint32_t layer)
{
    uint32_t end = 0;
    for (uint32_t g = 0; end <= layer; g++)
        end += s->groups[g].layers;
    return s->pass == TDM_EVALUATE ? 1 : layer + 1 == end ? 2 : 3;
}

/* What a chunk of a layer costs if ranks divide the heads: a part of the heads of every value goes
 * to each other rank, or comes from it. Attention takes q and gives its output, its gradient takes
 * both and that of the output, and gives dQ, dK and dV. */
static uint64_t heads_bytes(const struct tdm_schedule *s, uint32_t layer, uint64_t tokens)
{
    const uint64_t parts = s->head_ranks > 0 ? s->head_ranks : s->ranks;
    const uint64_t heads = s->model->query_heads / parts;
    const uint64_t q = tokens * heads * s->model->head_dim * size_of(s->dtypes.activations);
    const uint64_t out = up(q, 256) * 256 + tokens * heads * 4; /* with its LSE */
    const uint64_t kv = kv_bytes(s, tokens, s->dtypes.kv) / parts;
    const uint64_t d_kv = kv_bytes(s, tokens, s->dtypes.kv_gradients) / parts;
    uint64_t part = times_gathered(s, layer) * kv + times_attended(s, layer) * (q + out);
    if (s->pass == TDM_TRAIN)
        part += q + out + q + q + d_kv;
    return (parts - 1) * part;
}

/* Which of a sequence's `chunks` chunks a rank has; `dealt` are the program's, whose first round is
 * asked, and their rank only where no formula says it. */
static uint64_t rank_of(const struct tdm_schedule *s, const struct tdm_chunk *dealt, uint64_t chunk,
                        uint64_t chunks)
{
    const uint64_t round = chunk / s->ranks, at = chunk % s->ranks;
    switch (s->deal) {
    case TDM_DEAL_SNAKE: /* in each pair of rounds the order of the ranks turns */
        return (dealt[0].round + round) % 2 == 0 ? at : s->ranks - 1 - at;
    case TDM_DEAL_STRIPES:
        return at;
    case TDM_DEAL_CONTIGUOUS:
        return chunk * s->ranks / chunks;
    default:
        return dealt[chunk].rank;
    }
}

/* Hops in a ring from chunk `from` to chunk `to`. If ranks in a row divide the heads, the rows are
 * in the ring, and what goes around are their heads, which are together all heads. */
static uint64_t hops_between(const struct tdm_schedule *s, const struct tdm_chunk *dealt,
                             uint64_t from, uint64_t to, uint64_t chunks)
{
    const uint64_t row = s->head_ranks > 0 ? s->head_ranks : 1, rows = s->ranks / row;
    return (rank_of(s, dealt, to, chunks) / row + rows - rank_of(s, dealt, from, chunks) / row) %
           rows;
}

static uint64_t rows_of(const struct tdm_schedule *s)
{
    return s->ranks / (s->head_ranks > 0 ? s->head_ranks : 1);
}

/* What chunk `c` of a sequence costs in a layer if K and V go around. For each round of queries its
 * K and V go as far as some see it, in every forward and in the backward; the sum of its dK and dV
 * begins with the first on the way that does, and goes all the way home. */
static void add_ring_bytes(const struct tdm_schedule *s, uint32_t layer,
                           const struct tdm_sequence *sequence, const struct tdm_chunk *dealt,
                           uint64_t c, struct volumes *due)
{
    const uint64_t ct = s->chunk_tokens, chunks = up(sequence->tokens, ct), ranks = s->ranks;
    const uint64_t tokens = c + 1 < chunks ? ct : sequence->tokens - c * ct;
    const bool back = s->pass == TDM_TRAIN && !tdm_schedule_passes_queries(s);
    const uint64_t times = times_attended(s, layer) + back;
    for (uint64_t first = c / ranks * ranks; first < chunks; first += ranks) {
        uint64_t nearest = rows_of(s), furthest = 0;
        for (uint64_t i = first; i < first + ranks && i < chunks; i++) {
            const uint64_t hops = hops_between(s, dealt, c, i, chunks);
            if (i <= c || hops == 0 || first_seen(s, layer, sequence, i * ct) >= c * ct + tokens)
                continue;
            nearest = hops < nearest ? hops : nearest;
            furthest = hops > furthest ? hops : furthest;
        }
        due->received[TDM_OP_HOP] += times * furthest * kv_bytes(s, tokens, s->dtypes.kv);
        if (back)
            due->received[TDM_OP_HOP_SUM] +=
                (rows_of(s) - nearest) * kv_bytes(s, tokens, s->dtypes.kv_gradients);
    }
}

/* What chunk `c` costs in the backward of a layer if queries go around: q, the gradient of the
 * output and two numbers of a row go as far as a rank has keys that they see; the sum of dQ, in
 * fp32, begins with the first on the way that has, and goes all the way home. */
static void add_queries_bytes(const struct tdm_schedule *s, uint32_t layer,
                              const struct tdm_sequence *sequence, const struct tdm_chunk *dealt,
                              uint64_t c, struct volumes *due)
{
    const uint64_t ct = s->chunk_tokens, chunks = up(sequence->tokens, ct);
    const uint64_t tokens = c + 1 < chunks ? ct : sequence->tokens - c * ct;
    const uint64_t parts = s->ranks / rows_of(s); /* each has its facts of rows behind it */
    const uint64_t rows = tokens * s->model->query_heads / parts, q = rows * s->model->head_dim;
    uint64_t nearest = rows_of(s), furthest = 0;
    for (uint64_t key = 0; key < c; key++) {
        const uint64_t hops = hops_between(s, dealt, c, key, chunks);
        if (hops == 0 || first_seen(s, layer, sequence, c * ct) >= (key + 1) * ct)
            continue;
        nearest = hops < nearest ? hops : nearest;
        furthest = hops > furthest ? hops : furthest;
    }
    due->received[TDM_OP_HOP] +=
        parts * furthest * (up(2 * q * size_of(s->dtypes.activations), 256) * 256 + rows * 2 * 4);
    due->received[TDM_OP_HOP_SUM] += parts * (rows_of(s) - nearest) * q * 4;
}

/* What all ranks receive, from the schedule alone, but for who has which chunk in a greedy order.
 */
static struct volumes due_volumes(const struct tdm_schedule *s, const struct tdm_chunk *dealt)
{
    const struct tdm_model *model = s->model;
    const uint64_t ranks = s->ranks, ct = s->chunk_tokens;
    struct volumes due = {{0}, {0}};
    for (uint32_t i = 0; i < s->sequence_count; i++) {
        const struct tdm_sequence *sequence = &s->sequences[i];
        const uint64_t chunks = up(sequence->tokens, ct);
        for (uint64_t c = 0; c < chunks; c++) {
            uint64_t tokens = c + 1 < chunks ? ct : sequence->tokens - c * ct;
            for (uint32_t layer = 0; layer < model->layers; layer++) {
                if (tdm_schedule_divides_heads(s))
                    due.received[TDM_OP_ALL_TO_ALL] += heads_bytes(s, layer, tokens);
                if (s->exchange == TDM_EXCHANGE_HEADS)
                    continue;
                if (tdm_schedule_rings(s)) {
                    add_ring_bytes(s, layer, sequence, dealt, c, &due);
                    if (tdm_schedule_passes_queries(s) && s->pass == TDM_TRAIN)
                        add_queries_bytes(s, layer, sequence, dealt, c, &due);
                    continue;
                }
                /* every chunk goes to all ranks but its own, or to one of each row but its own by
                 * heads; means of its pages once */
                const uint64_t row = s->head_ranks > 0 ? s->head_ranks : 1;
                if (s->selector.kind == TDM_SELECT_TOP_K && model->layer_kinds[layer].window == 0)
                    due.received[TDM_OP_GATHER] += (ranks - 1) * up(tokens, s->page_tokens) *
                                                   model->kv_heads * model->head_dim *
                                                   size_of(s->dtypes.kv);
                due.received[TDM_OP_GATHER] += times_gathered(s, layer) * (ranks / row - 1) *
                                               kv_bytes(s, tokens, s->dtypes.kv);
                /* a share comes from every other rank that has a chunk which sees it */
                bool has[TDM_MAX_RANKS] = {false};
                uint64_t others = 0;
                for (uint64_t j = c; j < chunks && s->pass == TDM_TRAIN; j++) {
                    uint64_t rank = rank_of(s, dealt, j, chunks) / row;
                    bool sees = first_seen(s, layer, sequence, j * ct) < c * ct + tokens;
                    others += sees && rank != rank_of(s, dealt, c, chunks) / row && !has[rank];
                    has[rank] = has[rank] || sees;
                }
                due.received[TDM_OP_REDUCE] += others * kv_bytes(s, tokens, s->dtypes.kv_gradients);
            }
        }
        dealt += chunks;
    }
    /* of every gradient a rank receives the other ranks' shares of the part that it updates, of all
     * elements between the first and the last; and its norm. Without an optimizer it receives
     * shares of a slice, and then the sums of the other slices. The head's norm goes apart from its
     * rows */
    const bool updates = s->optimizer.kind != TDM_OPTIMIZER_NONE;
    for (uint32_t unit = 0; s->pass == TDM_TRAIN && unit <= model->unit_count; unit++) {
        uint64_t norm = model->hidden, rows = model->vocabulary * (uint64_t)model->hidden;
        uint64_t parameters = unit == model->unit_count            ? rows /* of the head */
                              : unit == tdm_model_head_unit(model) ? norm
                                                                   : model->units[unit].parameters;
        uint64_t bytes = parameters * size_of(s->dtypes.gradients);
        if (updates && unit < model->unit_count && unit != tdm_model_head_unit(model))
            bytes = span_of(model, unit) * size_of(s->dtypes.gradients);
        if (updates)
            due.received[TDM_OP_REDUCE_SCATTER] += (ranks - 1) * bytes;
        if (updates && unit < model->unit_count)
            due.received[TDM_OP_REDUCE_ALL] += ranks * 2 * (8 - 8 / ranks);
        else if (!updates)
            due.received[TDM_OP_REDUCE_ALL] += ranks * 2 * (bytes - bytes / ranks);
        /* every element of the updated weights goes to all ranks but the one that updated it */
        if (unit < model->unit_count && updates)
            due.received[TDM_OP_GATHER_ALL] +=
                (ranks - 1) * model->units[unit].elements * size_of(s->dtypes.weights);
    }
    memcpy(due.sent, due.received, sizeof(due.sent));
    return due;
}

/* Makes the schedule one whose exchanges are easy to say: attention is run again wherever its
 * group is, and no set with q and K, V is stored. */
static void make_plain(struct tdm_schedule *s, struct tdm_dice *dice)
{
    uint64_t most = 0;
    if (s->selector.kind != TDM_SELECT_TOP_K)
        s->selector = (struct tdm_selector){0};
    s->sliced_weights = false; /* below */
    for (uint32_t g = 0; g < s->group_count; g++) {
        struct tdm_group *group = &s->groups[g];
        group->kept = group->held = TDM_SET_INPUT;
        group->kept_from_chunk = group->held_from_chunk = 0;
        group->kv = TDM_KV_RECOMPUTE;
        group->kv_place = TDM_DEVICE;
        if (s->pass == TDM_TRAIN && tdm_dice_chance(dice, 50)) {
            group->kv = TDM_KV_KEEP;
            group->kv_place = tdm_dice_chance(dice, 50) ? TDM_DEVICE : TDM_HOST;
        }
    }
    for (uint32_t i = 0; i < s->sequence_count; i++)
        most = most < s->sequences[i].tokens ? s->sequences[i].tokens : most;
    most = up(most, s->chunk_tokens);
    most = most < 12 ? most : 12;
    if (tdm_exchange_kind_has_rows(s->exchange))
        s->ranks = s->head_ranks * (uint32_t)tdm_dice_roll(dice, 2, most / s->head_ranks);
    else if (!tdm_schedule_divides_heads(s))
        s->ranks = (uint32_t)tdm_dice_roll(dice, 2, most);
}

static void ranks_exchange_what_is_due(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(150, 1500), compared = 0, windows = 0, documents = 0, kept = 0,
             updates = 0, bytes = 0, heads = 0, both = 0, means = 0, rings = 0, queries = 0,
             rows_in_rings = 0, rows_of_queries = 0;
    for (uint64_t n = 0; n < cases; n++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED, n);
        const struct tdm_random_options options = {
            .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 200, .ranks = 6};
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        struct tdm_error err;
        struct tdm_dice dice;
        tdm_dice_seed(&dice, seed);
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        if (schedule->ranks == 1) {
            tdm_schedule_free(schedule);
            continue;
        }
        make_plain(schedule, &dice);
        must(tdm_schedule_check(schedule, "plain", &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        const struct volumes due = due_volumes(schedule, program->chunks);
        struct volumes all = {{0}, {0}}, first = {{0}, {0}};
        for (uint32_t rank = 0; rank < program->ranks; rank++) {
            const struct tdm_program view = tdm_program_of_rank(program, rank);
            must(tdm_program_emit(&view, count, &all, &err), &err);
            if (rank == 0)
                first = all;
        }
        for (int kind = 0; kind < TDM_OP_KINDS; kind++)
            if (all.received[kind] != due.received[kind] || all.sent[kind] != due.sent[kind])
                fail_msg("seed %llu, %u ranks, %s: %llu bytes received, %llu sent, %llu due",
                         (unsigned long long)seed, program->ranks,
                         tdm_op_kind_name((enum tdm_op_kind)kind),
                         (unsigned long long)all.received[kind], (unsigned long long)all.sent[kind],
                         (unsigned long long)due.received[kind]);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
        assert_int_equal(simulation.team.ranks, program->ranks);
        uint64_t received = 0, sent = 0;
        for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
            received += first.received[kind];
            sent += first.sent[kind];
        }
        assert_true(simulation.team.of[0].received_bytes == received);
        assert_true(simulation.team.of[0].sent_bytes == sent);
        updates += first.received[TDM_OP_GATHER_ALL] > 0;
        for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
            if (schedule->model->layer_kinds[layer].window > 0) {
                windows++;
                break;
            }
        documents += schedule->sequences[0].document_count > 1;
        kept += schedule->groups[0].kv == TDM_KV_KEEP;
        bytes += all.received[TDM_OP_GATHER] + all.received[TDM_OP_REDUCE] +
                 all.received[TDM_OP_ALL_TO_ALL] + all.received[TDM_OP_HOP] +
                 all.received[TDM_OP_HOP_SUM];
        rings += schedule->exchange == TDM_EXCHANGE_RING && all.received[TDM_OP_HOP] > 0;
        const bool hops = all.received[TDM_OP_HOP] > 0;
        queries +=
            schedule->exchange == TDM_EXCHANGE_QUERIES && schedule->pass == TDM_TRAIN && hops;
        rows_in_rings += schedule->exchange == TDM_EXCHANGE_HEADS_RING && hops;
        rows_of_queries +=
            schedule->exchange == TDM_EXCHANGE_HEADS_QUERIES && schedule->pass == TDM_TRAIN && hops;
        heads += all.received[TDM_OP_ALL_TO_ALL] > 0;
        both += schedule->exchange == TDM_EXCHANGE_HEADS_GATHER && all.received[TDM_OP_GATHER] > 0;
        means += tdm_schedule_lists(schedule) == TDM_SELECT_TOP_K;
        compared++;
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message("%llu bytes of K, V and their gradients exchanged\n", (unsigned long long)bytes);
    assert_true(tdm_case_enough("schedules of several ranks compared", compared, cases, 0.5));
    assert_true(tdm_case_enough("have windows", windows, cases, 0.05));
    assert_true(tdm_case_enough("have documents", documents, cases, 0.1));
    assert_true(tdm_case_enough("gather updated weights", updates, cases, 0.3));
    assert_true(tdm_case_enough("keep K and V", kept, cases, 0.1));
    assert_true(tdm_case_enough("divide the heads", heads, cases, 0.1));
    assert_true(tdm_case_enough("divide them and gather", both, cases, 0.04));
    assert_true(tdm_case_enough("go around a ring", rings, cases, 0.05));
    assert_true(tdm_case_enough("pass queries around", queries, cases, 0.05));
    assert_true(tdm_case_enough("divide heads and go around", rows_in_rings, cases, 0.04));
    assert_true(tdm_case_enough("divide heads and pass queries", rows_of_queries, cases, 0.03));
    assert_true(tdm_case_enough("gather page means", means, cases, 0.02));
}

/* The most that is exposed of any rank's team ops. */
static double most_exposed(const struct tdm_simulation *simulation)
{
    double most = 0;
    for (uint32_t i = 0; i < simulation->team.simulated; i++)
        most = fmax(most, simulation->team.of[i].exposed_seconds);
    return most;
}

/* ---- many ranks ---- */

/* What is said of ranks: their waits are those for single ranks, never for themselves; the step
 * ends with its last rank; on the compute lane a rank works, exchanges, waits, or is idle. */
static void check_waits(const struct tdm_simulation *simulation)
{
    const struct tdm_team_use *team = &simulation->team;
    double last = 0;
    assert_int_equal(team->of[0].rank, 0);
    assert_true(team->simulated <= team->ranks && team->simulated <= TDM_SIMULATED_RANKS);
    for (uint32_t i = 0; i < team->simulated; i++) {
        const struct tdm_rank_use *rank = &team->of[i];
        double waits = 0;
        assert_true(i == 0 || rank->rank > team->of[i - 1].rank);
        for (uint32_t j = 0; j < team->simulated; j++)
            waits += rank->wait_for_seconds[j];
        assert_true(rank->wait_for_seconds[i] <= 0);
        assert_true(fabs(waits - rank->wait_seconds) <= 1e-9 * rank->step_seconds);
        assert_true(rank->compute_seconds + rank->team_seconds <=
                    2 * rank->step_seconds * (1 + 1e-9));
        last = rank->step_seconds > last ? rank->step_seconds : last;
    }
    assert_true(last >= simulation->step_seconds && last <= simulation->step_seconds);
}

static double core_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static struct tdm_schedule *schedule_of(const char *name, uint64_t context, uint64_t chunk_tokens,
                                        uint32_t ranks)
{
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_schedule *schedule;
    struct tdm_error err;
    must(tdm_model_load(name, &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, context, &schedule, &err), &err);
    schedule->chunk_tokens = chunk_tokens;
    schedule->ranks = ranks;
    must(tdm_schedule_check(schedule, name, &err), &err);
    return schedule;
}

/* Simulates a program several times: the result is the same. Returns the seconds of a core that
 * one took. */
static double simulate_again(const struct tdm_program *program, struct tdm_simulation *simulation)
{
    struct tdm_error err;
    double began = core_seconds();
    must(tdm_simulate(program, NULL, NULL, simulation, &err), &err);
    double seconds = core_seconds() - began;
    for (int i = 0; i < 2; i++) {
        struct tdm_simulation again;
        must(tdm_simulate(program, NULL, NULL, &again, &err), &err);
        assert_true(again.step_seconds == simulation->step_seconds);
        assert_memory_equal(&again.team, &simulation->team, sizeof(again.team));
        assert_memory_equal(again.phase_seconds, simulation->phase_seconds,
                            sizeof(again.phase_seconds));
    }
    return seconds;
}

static void many_ranks(void **state)
{
    (void)state;
    static const char *const models[] = {"byte-1m", "qwen2.5-7b"};
    static const uint32_t ranks[] = {8, 64, 1024};
    const bool sanitized = getenv("TDM_SANITIZED") != NULL && *getenv("TDM_SANITIZED") != '\0';
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
            struct tdm_program *program;
            struct tdm_simulation simulation;
            struct tdm_error err;
            if (ranks[r] > 64 && (sanitized || (m > 0 && !tdm_case_long())))
                continue;
            struct tdm_schedule *schedule =
                schedule_of(models[m], (uint64_t)ranks[r] * 4 * 1024, 1024, ranks[r]);
            double began = core_seconds();
            must(tdm_program_lower(schedule, &program, &err), &err);
            double lowered = core_seconds() - began, seconds = simulate_again(program, &simulation);
            print_message("%s, %u ranks: lowered in %.2f s, simulated in %.2f s\n", models[m],
                          ranks[r], lowered, seconds);
            assert_true(simulation.step_seconds > 0);
            assert_int_equal(simulation.team.ranks, ranks[r]);
            check_waits(&simulation);
            assert_true(sanitized || seconds < LONGEST);
            tdm_program_free(program);
            tdm_schedule_free(schedule);
        }
}

static void random_ranks(void **state)
{
    (void)state;
    const struct tdm_random_options options = {
        .pass = TDM_RANDOM_ANY_PASS, .max_tokens = 300, .ranks = 64};
    uint64_t teams = 0, above = 0;
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + 120; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        simulate_again(program, &simulation);
        if (program->ranks > 1)
            check_waits(&simulation);
        teams += program->ranks > 1;
        above += program->ranks > TDM_SIMULATED_RANKS;
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    assert_true(teams > 30 && above > 3);
}

/* ---- equal work ---- */

/* A step in which every chunk sees itself alone, weights are not updated, and team ops take no
 * time; each rank has four chunks. */
static struct tdm_simulation simulate_equal(uint32_t ranks)
{
    struct tdm_schedule *s = schedule_of("byte-1m", (uint64_t)ranks * 4 * 512, 512, ranks);
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_error err;
    s->selector = (struct tdm_selector){.kind = TDM_SELECT_BLOCK, .block = 512};
    s->optimizer.kind = TDM_OPTIMIZER_NONE;
    s->dtypes.master = s->dtypes.moments = TDM_DTYPE_NONE;
    s->machine->launch_seconds = s->machine->peer_seconds = 0;
    struct tdm_link *peer = &s->machine->topology.links[TDM_LINK_PEER];
    peer->bytes_per_second = peer->both_ways_bytes_per_second = 1e30;
    must(tdm_schedule_check(s, "equal", &err), &err);
    must(tdm_program_lower(s, &program, &err), &err);
    must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
    tdm_program_free(program);
    tdm_schedule_free(s);
    return simulation;
}

/* The step takes as long with any number of ranks, and with one rank nearly as long: several make
 * K and V in a body of their own, and norms once more for it. */
static void equal_work_without_traffic(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {3, 4, 8, 20};
    const struct tdm_simulation one = simulate_equal(1), two = simulate_equal(2);
    print_message("one rank's share takes %g of what two ranks take\n",
                  one.step_seconds / two.step_seconds);
    assert_true(one.step_seconds <= two.step_seconds * (1 + 1e-9));
    assert_true(one.step_seconds > 0.9 * two.step_seconds);
    assert_true(one.team.of[0].received_bytes == 0);
    for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
        const struct tdm_simulation several = simulate_equal(ranks[r]);
        assert_true(fabs(several.step_seconds - two.step_seconds) < 1e-9 * two.step_seconds);
        for (uint32_t i = 0; i < several.team.simulated; i++)
            assert_true(several.team.of[i].wait_seconds < 1e-9 * two.step_seconds);
        assert_true(several.team.of[0].received_bytes > two.team.of[0].received_bytes);
    }
}

/* ---- weights of which each rank has a part ---- */

/* In groups of one layer the forward gathers each layer, and the backward those that the ring does
 * not have any more. Head and embedding are gathered for each use: the embedding's are layer 0
 * forward, layer 0 backward, and its update. */
static void sliced_weights_are_gathered(void **state)
{
    (void)state;
    uint64_t home[2] = {0};
    for (uint32_t n = 0; n < 12; n++) {
        const uint32_t ranks = 2 + n % 4, ring = 2 + n / 4, gradients = ring == 2 ? 1 : 1 + n % 2;
        struct tdm_schedule *s = schedule_of("byte-1m", (uint64_t)ranks * 512, 256, ranks);
        const struct tdm_model *model = s->model;
        struct tdm_program *program;
        struct tdm_error err;
        s->sliced_weights = true;
        s->rings.weights = ring;
        s->rings.gradients = gradients;
        must(tdm_schedule_check(s, "sliced", &err), &err);
        must(tdm_program_lower(s, &program, &err), &err);
        uint64_t due = 0;
        for (uint32_t unit = 0; unit < model->unit_count; unit++) {
            uint64_t times = unit == tdm_model_embedding_unit(model) ? 3 : 1;
            due += unit < model->layers ? 0 : times * model->units[unit].elements;
        }
        due += (2 * model->layers - ring) * model->units[0].elements;
        due *= (ranks - 1) * size_of(s->dtypes.weights);
        struct volumes all = {{0}, {0}};
        for (uint32_t rank = 0; rank < ranks; rank++) {
            const struct tdm_program view = tdm_program_of_rank(program, rank);
            must(tdm_program_emit(&view, count, &all, &err), &err);
        }
        if (all.received[TDM_OP_GATHER_ALL] != due || all.sent[TDM_OP_GATHER_ALL] != due)
            fail_msg("%u ranks, ring of %u: %llu bytes of weights received, %llu due", ranks, ring,
                     (unsigned long long)all.received[TDM_OP_GATHER_ALL], (unsigned long long)due);
        /* at home there is a part */
        uint32_t buffer, slot;
        for (int whole = 0; whole < 2; whole++) {
            struct tdm_program *other;
            s->sliced_weights = whole == 0;
            must(tdm_program_lower(s, &other, &err), &err);
            assert_true(tdm_program_home(other, TDM_UNIT_WEIGHTS, 0, &buffer, &slot));
            home[whole] = other->buffers[buffer].slot_bytes;
            tdm_program_free(other);
        }
        assert_true(home[0] >= home[1] / ranks && home[0] <= home[1] / ranks + 1024);
        tdm_program_free(program);
        tdm_schedule_free(s);
    }
}

/* ---- overlap ---- */

/* A step of a model whose layers compute longer than they exchange; or not, with slow links. */
static struct tdm_simulation simulate_overlap(uint32_t gradient_slots, bool slow)
{
    struct tdm_schedule *s = schedule_of("qwen2.5-0.5b", 65536, 4096, 2);
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct tdm_error err;
    s->rings.gradients = gradient_slots;
    if (slow)
        s->machine->peer_rate /= 1000;
    tdm_machine_set_links(s->machine);
    must(tdm_schedule_check(s, "overlap", &err), &err);
    must(tdm_program_lower(s, &program, &err), &err);
    simulate_again(program, &simulation);
    tdm_program_free(program);
    tdm_schedule_free(s);
    return simulation;
}

/* Of all layers, only the sums of gradients are awaited; with space for two gradients nothing is,
 * but the sums of head and embedding, and of the last layer. */
static void exchanges_overlap(void **state)
{
    (void)state;
    const struct tdm_simulation one = simulate_overlap(1, false), two = simulate_overlap(2, false);
    const struct tdm_simulation slow = simulate_overlap(2, true);
    const double busy = two.busy_seconds[TDM_LANE_PEER];
    print_message("team ops take %g s; %g s are awaited with one gradient, %g s with two\n", busy,
                  most_exposed(&one), most_exposed(&two));
    assert_true(one.team.of[0].received_bytes == two.team.of[0].received_bytes);
    assert_true(fabs(one.busy_seconds[TDM_LANE_PEER] - busy) < 1e-9 * busy);
    assert_true(most_exposed(&one) < 0.8 * busy);
    assert_true(most_exposed(&two) < 0.8 * most_exposed(&one));
    assert_true(two.step_seconds < one.step_seconds);
    /* of what takes longer than computing nearly all is awaited, but never more than there is */
    assert_true(most_exposed(&slow) > 0.8 * slow.busy_seconds[TDM_LANE_PEER]);
    assert_true(most_exposed(&slow) <= slow.busy_seconds[TDM_LANE_PEER]);
    assert_true(slow.step_seconds >= slow.busy_seconds[TDM_LANE_PEER]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_overlap),
        cmocka_unit_test(sliced_weights_are_gathered),
        cmocka_unit_test(ranks_exchange_what_is_due),
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(random_ranks),
        cmocka_unit_test(equal_work_without_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
