/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of lowering, packing and the simulator on random schedules. FLOPs and bytes are compared
 * with closed formulas and with the table of loop nests in the design.
 */
#include "base/digest.h"
#include "ops/move.h"
#include "schedule/slices.h"
#include "simulator/simulate.h"
#include "schedule/attend.h"
#include "schedule/cost.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BASE_SEED 1000

static const uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};

/* The current case, for messages. */
static uint64_t seed;
static char described[1024];

#define check(condition, ...)                                                                \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            print_error(__VA_ARGS__);                                                        \
            fail_msg("seed %llu: %s [%s]", (unsigned long long)seed, #condition, described); \
        }                                                                                    \
    } while (0)

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("seed %llu: %s [%s]", (unsigned long long)seed, err->message, described);
}

static struct tdm_schedule *random_case(uint64_t number, const struct tdm_random_options *options)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err;
    seed = tdm_case_seed(BASE_SEED, number);
    snprintf(described, sizeof(described), "not made yet");
    must(tdm_random_schedule(seed, options, &schedule, &err), &err);
    tdm_schedule_describe(schedule, described, sizeof(described));
    return schedule;
}

/* ---- the stream ---- */

struct stream {
    uint64_t hash, ops, items;
    uint64_t moves; /* copies inside a row of K and V or of their gradients */
};

static void mix(struct stream *stream, uint64_t value)
{
    stream->hash = (stream->hash ^ value) * UINT64_C(0x100000001b3);
}

static void mix_tag(struct stream *stream, const struct tdm_tag *tag)
{
    mix(stream, tag->content);
    mix(stream, tag->layer);
    mix(stream, tag->chunk);
    mix(stream, tag->contributor);
}

/* Hashes field by field, because the padding of structs is undefined. */
static enum tdm_status hash_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct stream *stream = self;
    (void)err;
    stream->items++;
    mix(stream, item->kind);
    if (item->kind != TDM_RUN) {
        mix(stream, item->buffer);
        return TDM_OK;
    }
    const struct tdm_op *op = item->op;
    const uint64_t fields[] = {op->number,    op->kind,         op->part,  op->phase,
                               op->lane,      op->layer,        op->chunk, op->tokens,
                               op->first_row, op->access_count, op->flops, op->bytes};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        mix(stream, fields[i]);
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        mix(stream, access->buffer);
        if (access->buffer == TDM_NONE)
            continue;
        mix(stream, access->first_slot);
        mix(stream, access->slots);
        mix(stream, access->mode);
        mix(stream, access->part);
        mix(stream, access->bytes);
        mix_tag(stream, &access->before);
        mix_tag(stream, &access->after);
    }
    stream->ops++;
    stream->moves += op->kind == TDM_OP_COPY && op->lane == TDM_LANE_COMPUTE;
    return TDM_OK;
}

static struct stream hash_of(const struct tdm_program *program)
{
    struct stream stream = {.hash = UINT64_C(0xcbf29ce484222325)};
    struct tdm_error err;
    must(tdm_program_emit(program, hash_item, &stream, &err), &err);
    return stream;
}

/* ---- the simulation ---- */

struct seen {
    uint64_t ops;
    double end[TDM_MAX_LANES], busy[TDM_MAX_LANES];
};

static enum tdm_status see_op(void *self, const struct tdm_op *op, double start, double end,
                              const uint64_t live[TDM_MAX_PLACES][TDM_CATEGORIES],
                              struct tdm_error *err)
{
    struct seen *seen = self;
    (void)live;
    (void)err;
    check(op->number == seen->ops, "op %llu after %llu\n", (unsigned long long)op->number,
          (unsigned long long)seen->ops);
    check(start >= seen->end[op->lane], "op %llu begins while its lane is busy\n",
          (unsigned long long)op->number);
    check(end > start, "op %llu takes no time\n", (unsigned long long)op->number);
    seen->ops++;
    seen->end[op->lane] = end;
    seen->busy[op->lane] += end - start;
    return TDM_OK;
}

static void check_simulation(const struct tdm_program *program)
{
    struct tdm_simulation simulation;
    struct tdm_error err;
    struct seen seen = {0};
    must(tdm_simulate(program, see_op, &seen, &simulation, &err), &err);
    double least = 1 - 1e-9;
    check(seen.ops == program->op_count, "%llu ops seen\n", (unsigned long long)seen.ops);
    check(simulation.op_count == program->op_count, "%llu ops counted\n",
          (unsigned long long)simulation.op_count);
    for (int lane = 0; lane < TDM_LANES; lane++) {
        check(simulation.step_seconds >= simulation.busy_seconds[lane] * least, "lane %s\n",
              tdm_lane_name(&program->schedule->machine->topology, (enum tdm_lane)lane));
        check(fabs(simulation.busy_seconds[lane] - seen.busy[lane]) <= seen.busy[lane] * 1e-6,
              "lane %s busy %g and %g\n",
              tdm_lane_name(&program->schedule->machine->topology, (enum tdm_lane)lane),
              simulation.busy_seconds[lane], seen.busy[lane]);
    }
    check(simulation.stall_seconds >= -1e-9 * simulation.step_seconds, "stall %g\n",
          simulation.stall_seconds);
    for (int place = 0; place < TDM_PLACES; place++) {
        check(simulation.live_peak_bytes[place] <= program->live_peak_bytes[place],
              "place %d: %llu live, %llu with padding\n", place,
              (unsigned long long)simulation.live_peak_bytes[place],
              (unsigned long long)program->live_peak_bytes[place]);
        uint64_t sum = 0;
        for (int category = 0; category < TDM_CATEGORIES; category++)
            if (category != TDM_RUNTIME)
                sum += simulation.peak_categories[place][category];
        check(sum == simulation.live_peak_bytes[place], "place %d: categories %llu\n", place,
              (unsigned long long)sum);
    }
}

/* ---- buffers ---- */

/* Worst and mean of (arena - live peak) / live peak. */
struct overhead {
    double worst, sum;
    uint64_t count, exact, worst_seed;
};

static void check_buffers(const struct tdm_program *program, struct overhead *overhead)
{
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        check(tdm_program_find(program, buffer->name) == i, "buffer \"%s\" is there twice\n",
              buffer->name);
        if (!buffer->used)
            continue;
        check(buffer->offset % 512 == 0, "\"%s\" at %llu\n", buffer->name,
              (unsigned long long)buffer->offset);
        check(buffer->bytes > 0 && buffer->slot_bytes % 256 == 0, "\"%s\"\n", buffer->name);
        check(buffer->offset + buffer->bytes <= program->arena_bytes[buffer->place],
              "\"%s\" ends outside the arena\n", buffer->name);
    }
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t arena = program->arena_bytes[place], live = program->live_peak_bytes[place];
        check(arena >= live, "place %d: arena %llu, live %llu\n", place, (unsigned long long)arena,
              (unsigned long long)live);
        if (live == 0)
            continue;
        double over = (double)(arena - live) / (double)live;
        overhead->count++;
        overhead->sum += over;
        overhead->exact += arena == live;
        if (over > overhead->worst) {
            overhead->worst = over;
            overhead->worst_seed = seed;
        }
    }
}

static void test_random_schedules(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS};
    uint64_t cases = tdm_case_count(60, 600), ops = 0, moving = 0;
    struct overhead overhead = {0};
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options);
        struct tdm_program *program = NULL;
        struct tdm_error err;
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_program_validate(program, no_limit, &err), &err);
        must(tdm_program_validate(program, program->arena_bytes, &err), &err);
        struct stream first = hash_of(program), second = hash_of(program);
        check(first.hash == second.hash && first.items == second.items, "two emissions differ\n");
        check(first.ops == program->op_count, "%llu ops, %llu in the program\n",
              (unsigned long long)first.ops, (unsigned long long)program->op_count);
        check_simulation(program);
        check_buffers(program, &overhead);
        ops += first.ops;
        moving += first.moves > 0;
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message(
        "%llu schedules from seed %d, %llu ops, %llu move K and V in their rows; arena over "
        "live peak: %.2f%% of %llu equal, mean %.3f%%, worst %.2f%% (seed %llu)\n",
        (unsigned long long)cases, BASE_SEED, (unsigned long long)ops, (unsigned long long)moving,
        100.0 * (double)overhead.exact / (double)overhead.count, (unsigned long long)overhead.count,
        100 * overhead.sum / (double)overhead.count, 100 * overhead.worst,
        (unsigned long long)overhead.worst_seed);
}

/* With packed_bytes the device is packed as within so many bytes, or within the schedule's limit if
 * that is less; without, or with fewer than can be, as tightly as possible. */
static void test_packed_bytes(void **state)
{
    (void)state;
    static const double parts[] = {0.5, 1.02, 1.3}; /* of the live peak */
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS};
    const uint64_t cases = tdm_case_count(40, 400);
    uint64_t buffers = 0, moved = 0;
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options);
        struct tdm_program *tight = NULL, *within = NULL, *packed = NULL;
        struct tdm_error err;
        uint64_t capacity_bytes[TDM_MAX_PLACES];
        memcpy(capacity_bytes, no_limit, sizeof(capacity_bytes));
        must(tdm_program_lower(schedule, &tight, &err), &err);
        const double part = parts[n % (sizeof(parts) / sizeof(parts[0]))];
        const uint64_t live = tight->live_peak_bytes[TDM_DEVICE];
        schedule->packed_bytes = 1 + (uint64_t)(part * (double)live);
        if (part > 1)
            capacity_bytes[TDM_DEVICE] = schedule->packed_bytes;
        if (n % 2 == 1) { /* the limit is lower */
            schedule->memory_bytes = schedule->packed_bytes +
                                     schedule->machine->topology.places[TDM_DEVICE].runtime_bytes;
            schedule->packed_bytes *= 2;
        }
        must(tdm_program_lower(schedule, &packed, &err), &err);
        must(tdm_program_lower_within(schedule, capacity_bytes, &within, &err), &err);
        must(tdm_program_validate(packed, packed->arena_bytes, &err), &err);
        const struct tdm_program *like = part > 1 ? within : tight;
        const bool fits = within->arena_bytes[TDM_DEVICE] <= capacity_bytes[TDM_DEVICE];
        for (uint32_t i = 0; i < tight->buffer_count; i++) {
            if (!tight->buffers[i].used || tight->buffers[i].place != TDM_DEVICE)
                continue;
            check(!fits || packed->buffers[i].offset == like->buffers[i].offset,
                  "\"%s\" at %llu in place of %llu\n", tight->buffers[i].name,
                  (unsigned long long)packed->buffers[i].offset,
                  (unsigned long long)like->buffers[i].offset);
            buffers++;
            moved += packed->buffers[i].offset != tight->buffers[i].offset;
        }
        tdm_program_free(tight);
        tdm_program_free(within);
        tdm_program_free(packed);
        tdm_schedule_free(schedule);
    }
    print_message("%llu of %llu buffers lie elsewhere with room\n", (unsigned long long)moved,
                  (unsigned long long)buffers);
    assert_true(moved > 0);
}

/* A variant has the same work: the same model, tokens, chunks, pages, tiles, dtypes and
 * optimizer. */
static void test_variants(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS};
    uint64_t cases = tdm_case_count(20, 200);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options), *variant = NULL;
        struct tdm_program *program = NULL;
        struct tdm_error err;
        must(tdm_random_variant(schedule, seed * 31 + 7, &variant, &err), &err);
        tdm_schedule_describe(variant, described, sizeof(described));
        check(strcmp(schedule->model->digest, variant->model->digest) == 0, "another model\n");
        check(schedule->chunk_tokens == variant->chunk_tokens &&
                  schedule->page_tokens == variant->page_tokens &&
                  schedule->head_tile_tokens == variant->head_tile_tokens &&
                  schedule->head_tile_vocabulary == variant->head_tile_vocabulary &&
                  tdm_schedule_tokens(schedule) == tdm_schedule_tokens(variant) &&
                  memcmp(&schedule->dtypes, &variant->dtypes, sizeof(variant->dtypes)) == 0 &&
                  schedule->optimizer.kind == variant->optimizer.kind,
              "other work\n");
        must(tdm_program_lower(variant, &program, &err), &err);
        must(tdm_program_validate(program, no_limit, &err), &err);
        tdm_program_free(program);
        tdm_schedule_free(variant);
        tdm_schedule_free(schedule);
    }
}

/* Is the buffer part of the state that one step passes to the next? */
static bool is_state(const struct tdm_buffer *buffer)
{
    return buffer->resident &&
           (buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER);
}

/* How many times masters and moments of each unit were copied to the device, and back. */
struct traffic {
    const struct tdm_program *program;
    uint32_t *copies; /* [units][contents][lanes] */
};

static enum tdm_status count_traffic(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct traffic *traffic = self;
    (void)err;
    if (item->kind != TDM_RUN || item->op->kind != TDM_OP_COPY)
        return TDM_OK;
    struct tdm_tag what = item->op->access[TDM_COPY_FROM].before;
    if (what.content >= TDM_UNIT_MASTER && what.content <= TDM_UNIT_MOMENT2)
        traffic->copies[(what.layer * TDM_CONTENTS + what.content) * TDM_LANES + item->op->lane]++;
    return TDM_OK;
}

/* Masters and moments are copied once each way, whatever the lengths of the rings. */
static void test_state_passes_once(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN,
                                               .optimizer = TDM_RANDOM_UPDATES};
    uint64_t cases = tdm_case_count(30, 300);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options);
        struct tdm_program *program = NULL;
        struct tdm_error err;
        must(tdm_program_lower(schedule, &program, &err), &err);
        uint32_t units = schedule->model->unit_count;
        struct traffic traffic = {
            program, calloc((size_t)units * TDM_CONTENTS * TDM_LANES, sizeof(uint32_t))};
        assert_non_null(traffic.copies);
        must(tdm_program_emit(program, count_traffic, &traffic, &err), &err);
        for (uint32_t unit = 0; unit < units; unit++)
            for (int content = TDM_UNIT_MASTER; content <= TDM_UNIT_MOMENT2; content++) {
                size_t at = ((size_t)unit * TDM_CONTENTS + (size_t)content) * TDM_LANES;
                uint32_t buffer, slot;
                uint32_t due =
                    !tdm_updates_on_host(schedule, unit) &&
                    tdm_program_home(program, (enum tdm_content)content, unit, &buffer, &slot) &&
                    program->buffers[buffer].place == TDM_HOST;
                due *= tdm_slice_count(schedule, unit);
                assert_int_equal(traffic.copies[at + TDM_LANE_H2D], due);
                assert_int_equal(traffic.copies[at + TDM_LANE_D2H], due);
            }
        free(traffic.copies);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* With the same homes, weights, masters and moments have the same offsets, whatever the nest, the
 * chunks and the pass. */
static void test_state_stays(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_TRAIN};
    uint64_t cases = tdm_case_count(20, 200);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options), *other = NULL;
        struct tdm_program *program = NULL, *other_program = NULL;
        struct tdm_error err;
        must(tdm_random_variant(schedule, seed * 31 + 7, &other, &err), &err);
        other->chunk_tokens = other->chunk_tokens % 7 + 1;
        memcpy(other->homes, schedule->homes, sizeof(other->homes));
        if (n % 3 == 0)
            tdm_schedule_set_evaluate(other);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_program_lower(other, &other_program, &err), &err);
        for (uint32_t i = 0; i < program->buffer_count; i++) {
            const struct tdm_buffer *here = &program->buffers[i];
            if (!is_state(here))
                continue;
            uint32_t number = tdm_program_find(other_program, here->name);
            check(number != TDM_NONE, "\"%s\" is in one program only\n", here->name);
            const struct tdm_buffer *there = &other_program->buffers[number];
            check(here->place == there->place && here->offset == there->offset &&
                      here->slot_bytes == there->slot_bytes,
                  "\"%s\" moves\n", here->name);
        }
        tdm_program_free(other_program);
        tdm_program_free(program);
        tdm_schedule_free(other);
        tdm_schedule_free(schedule);
    }
}

/* ---- FLOPs against closed formulas ---- */

/* FLOPs of a forward: products of one layer, attention of all layers. */
struct forward_cost {
    double q, kv, o, gate_up, down, head;
    double attention, attention_of[32]; /* of all layers; of each layer */
    double votes;                       /* the vote that selects pages */
    double layers;
};

/* (query, key) pairs of a layer, counted token by token. */
static double pairs(const struct tdm_schedule *schedule, uint64_t window)
{
    double sum = 0;
    for (uint32_t i = 0; i < schedule->sequence_count; i++) {
        const struct tdm_sequence *sequence = &schedule->sequences[i];
        uint32_t document = 0;
        uint64_t start = 0;
        for (uint64_t t = 0; t < sequence->tokens; t++) {
            if (document + 1 < sequence->document_count &&
                sequence->document_starts[document + 1] == t) {
                document++;
                start = t;
            }
            uint64_t seen = t - start + 1;
            sum += (double)(window > 0 && seen > window ? window : seen);
        }
    }
    return sum;
}

/* Pairs of a layer. Where pages are listed: as many as the lists have space for. */
static double layer_pairs(const struct tdm_program *program, uint32_t layer)
{
    const struct tdm_schedule *schedule = program->schedule;
    uint64_t window = schedule->model->layer_kinds[layer].window;
    double sum = 0;
    if (window > 0 || schedule->selector.kind == TDM_SELECT_DENSE)
        return pairs(schedule, window);
    if (schedule->selector.kind == TDM_SELECT_WINDOW)
        return pairs(schedule, schedule->selector.window);
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        sum += (double)tdm_attend_pairs(program, layer, chunk);
    return sum;
}

static struct forward_cost forward_cost(const struct tdm_program *program)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    double tokens = 2.0 * (double)tdm_schedule_tokens(schedule) * model->hidden;
    double q = (double)model->query_heads * model->head_dim;
    struct forward_cost cost = {.q = tokens * q,
                                .kv = tokens * 2 * model->kv_heads * model->head_dim,
                                .o = tokens * q,
                                .gate_up = tokens * 2 * model->intermediate,
                                .down = tokens * model->intermediate,
                                .head = tokens * model->vocabulary,
                                .layers = model->layers};
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        cost.attention_of[layer] = 4 * q * layer_pairs(program, layer);
        cost.attention += cost.attention_of[layer];
        for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
            cost.votes += 4 * q * (double)tdm_attend_scores(program, layer, chunk);
    }
    return cost;
}

/* Attention FLOPs of the layers below the top layer of their group. */
static double rerun_attention(const struct tdm_schedule *schedule, const struct forward_cost *c)
{
    double sum = 0;
    for (uint32_t layer = 0; layer + 1 < schedule->model->layers; layer++)
        if (tdm_schedule_group_of(schedule, layer) == tdm_schedule_group_of(schedule, layer + 1))
            sum += c->attention_of[layer];
    return sum;
}

/* FLOPs of a step whose groups keep and hold only inputs. A layer's backward recomputes q, o, gate,
 * up and its attention; with QK-norm also K, V; in layer-major order K, V once more. */
static double step_flops(const struct tdm_program *program)
{
    const struct tdm_schedule *schedule = program->schedule;
    struct forward_cost c = forward_cost(program);
    double layer = c.q + c.kv + c.o + c.gate_up + c.down;
    if (schedule->pass == TDM_EVALUATE)
        return c.layers * layer + c.attention + c.votes + c.head;
    double again = c.q + c.o + c.gate_up;
    if (schedule->model->layer_kinds[0].qk_norm)
        again += c.kv;                                /* the input of the norm of K */
    double reruns = c.layers - schedule->group_count; /* layers below the top of their group */
    bool twice = schedule->head_tile_vocabulary < schedule->model->vocabulary; /* the logits */
    double total = c.layers * (2 * layer + again) + (twice ? 4 : 3) * c.head;
    /* each layer's attention: forward, backward and recompute for it; once more in a rerun */
    total += (1 + 2.5 + 1) * c.attention + c.votes + rerun_attention(schedule, &c);
    if (schedule->order == TDM_LAYER_MAJOR)
        return total + c.layers * (layer + c.kv) + reruns * layer;
    /* the last layer: K and V in the first pass, the rest in the second pass of the chunk */
    return total + (c.layers - 1) * layer + c.kv + (reruns + 1) * (layer - c.kv);
}

static void test_flops(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS};
    uint64_t cases = tdm_case_count(40, 400);
    for (uint64_t n = 0; n < cases; n++) {
        struct tdm_schedule *schedule = random_case(n, &options);
        for (uint32_t i = 0; i < schedule->group_count; i++)
            schedule->groups[i].kept = schedule->groups[i].held = TDM_SET_INPUT;
        tdm_schedule_set_order(schedule, schedule->order); /* the order's default for K and V */
        if (seed % 3 == 0)
            schedule->chunk_tokens = 64; /* every sequence is one chunk */
        tdm_schedule_describe(schedule, described, sizeof(described));
        struct tdm_program *program = NULL;
        struct tdm_simulation simulation;
        struct tdm_error err;
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
        double due = step_flops(program);
        check(simulation.flops == due, "%.0f FLOPs, %.0f due\n", simulation.flops, due);

        struct forward_cost c = forward_cost(program);
        double layer = c.q + c.kv + c.o + c.gate_up + c.down;
        double passes = schedule->pass == TDM_EVALUATE ? 1 : 3;
        double model_flops = passes * (c.layers * layer + c.attention + c.head);
        check(fabs(tdm_model_flops(schedule) - model_flops) <= 1e-12 * model_flops,
              "MFU counts %.0f, %.0f due\n", tdm_model_flops(schedule), model_flops);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* ---- the table of loop nests ---- */

static struct tdm_schedule *qwen(uint64_t tokens, uint64_t chunk_tokens)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err;
    seed = 0;
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, tokens, &schedule, &err), &err);
    schedule->chunk_tokens = chunk_tokens;
    return schedule;
}

static const struct nest {
    const char *name;
    uint32_t groups[28];
    enum tdm_set kept, held;
    uint32_t kept_from_chunk; /* out of 32 chunks */
    double kib, attention, linear;
} nests[] = {
    {"groups of 1, inputs only", {1}, TDM_SET_INPUT, TDM_SET_INPUT, 0, 202, 2.00, 7.31},
    {"groups of 1, kept", {1}, TDM_SET_ATTENTION_OUTPUT, TDM_SET_INPUT, 0, 401, 1.00, 7.31},
    {"groups of 1, qkv kept", {1}, TDM_SET_QKV, TDM_SET_INPUT, 0, 651, 1.00, 7.18},
    /* only the o product is computed again */
    {"groups of 1, all kept", {1}, TDM_SET_ALL, TDM_SET_INPUT, 0, 2723, 1.00, 6.10},
    {"groups of 1, normed kept", {1}, TDM_SET_NORMED, TDM_SET_INPUT, 0, 2919, 1.00, 6.10},
    {"groups of 2, held", {2}, TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT, 0, 118, 2.00, 8.23},
    {"groups of 4, held", {4}, TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT, 0, 97, 2.00, 8.69},
    {"groups of 4, not held", {4}, TDM_SET_INPUT, TDM_SET_INPUT, 0, 76, 2.75, 8.69},
    {"groups 5,5,4,4,3,3,2,2, held",
     {5, 5, 4, 4, 3, 3, 2, 2},
     TDM_SET_INPUT,
     TDM_SET_ATTENTION_OUTPUT,
     0,
     76,
     2.00,
     8.63},
    /* the design's table says 8.74: it counts the K, V product of kept layers one more time */
    {"groups 13,8,4,2,1, kept",
     {13, 8, 4, 2, 1},
     TDM_SET_ATTENTION_OUTPUT,
     TDM_SET_ATTENTION_OUTPUT,
     0,
     240,
     1.00,
     8.72},
    {"groups 13,8,4,2,1, last 80% kept, rest held",
     {13, 8, 4, 2, 1},
     TDM_SET_ATTENTION_OUTPUT,
     TDM_SET_ATTENTION_OUTPUT,
     6,
     203,
     1.035,
     8.74},
};

static void test_nests(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof(nests) / sizeof(nests[0]); n++) {
        const struct nest *nest = &nests[n];
        snprintf(described, sizeof(described), "%s", nest->name);
        uint64_t tokens = 131072;
        struct tdm_schedule *schedule = qwen(tokens, 4096);
        struct tdm_program *program = NULL;
        struct tdm_simulation simulation;
        struct tdm_error err;
        uint32_t sizes[28], count = 0, layers = 0;
        for (; layers < 28; layers += sizes[count++]) /* a single size repeats */
            sizes[count] = nest->groups[nest->groups[1] == 0 ? 0 : count];
        must(tdm_schedule_set_groups(schedule, count, sizes, &err), &err);
        for (uint32_t i = 0; i < count; i++) {
            schedule->groups[i].kept = nest->kept;
            schedule->groups[i].held = nest->held;
            if (tdm_set_has(nest->kept, TDM_STORE_KV))
                schedule->groups[i].kv = TDM_KV_KEEP;
            schedule->groups[i].kept_from_chunk = nest->kept_from_chunk;
        }
        must(tdm_schedule_check(schedule, nest->name, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        must(tdm_program_validate(program, no_limit, &err), &err);
        must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);

        struct forward_cost c = forward_cost(program);
        double kib = (double)simulation.stored_peak_bytes / (double)tokens / 1024;
        double attention = simulation.attention_forward_flops / c.attention;
        double linear = simulation.product_flops /
                        ((double)tdm_model_matmul_parameters(schedule->model) * (double)tokens);
        check(fabs(kib - nest->kib) <= 0.6, "%.2f KiB a token, %.0f due\n", kib, nest->kib);
        check(fabs(attention - nest->attention) <= 0.005, "%.4f attention forwards, %.3f due\n",
              attention, nest->attention);
        check(fabs(linear - nest->linear) <= 0.011, "%.4f linear units, %.2f due\n", linear,
              nest->linear);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
}

/* ---- scale ---- */

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void test_scale(void **state)
{
    (void)state;
    uint64_t tokens = UINT64_C(1048576) * (tdm_case_long() ? 4 : 1);
    snprintf(described, sizeof(described), "qwen2.5-7b, %llu tokens", (unsigned long long)tokens);
    struct tdm_schedule *schedule = qwen(tokens, 4096);
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    struct tdm_error err;
    double start = now_seconds();
    must(tdm_program_lower(schedule, &program, &err), &err);
    double lowered = now_seconds();
    must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
    double simulated = now_seconds();
    print_message("%s: %llu ops in %u chunks; lowered in %.2f s, simulated in %.2f s: a step of "
                  "%.0f s\n",
                  described, (unsigned long long)program->op_count, program->chunk_count,
                  lowered - start, simulated - lowered, simulation.step_seconds);
    assert_true(simulated - start < 60);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_packed_bytes),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_state_stays),
        cmocka_unit_test(test_state_passes_once),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_nests),
        cmocka_unit_test(test_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
