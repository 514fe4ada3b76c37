/* SPDX-License-Identifier: Apache-2.0 */
/* Property: a step touches exactly the bytes that were planned.
 *
 * A step runs twice, over two patterns, in arenas where no two buffers share bytes. A byte that
 * holds the pattern both times was not touched. The touched bytes of every slot must be those of
 * the largest content that an op declares there, no less and no more. Every slot must be used, and
 * no slot may be larger than necessary. Then the program runs as it was packed: its arena must end
 * at the highest touched byte, the null backend must see the same accesses as cpu, and both must
 * use the memory that the simulator predicts. */
#include "base/size.h"
#include "executor/state.h"
#include "executor/walk.h"
#include "executor/weights.h"
#include "schedule/kv_row.h"
#include "simulator/simulate.h"
#include "schedule/layout.h"
#include "schedule/nest.h"
#include "schedule/operands.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/scratch.h"
#include "schedule/tags.h"
#include "schedule/values_predict.h"
#include "tests/support/execution.h"
#include "tests/support/random_schedule.h"
#include "tests/support/slot_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASE_SEED = 61000, ONE_PATTERN = 0xa5, OTHER_PATTERN = 0x5a, SLOT_ALIGN = 256 };

/* What a byte of a buffer holds during the step. */
enum {
    NOTHING = 0,
    SOMETHING = 1, /* data of an op */
    /* Touched or not: working space, and gaps that copies include. */
    ALLOWED = 2,
};

/* What the ops of a program declare for a buffer. */
struct planned {
    unsigned char *bytes; /* [buffer->bytes] */
    bool *used;           /* [slots] */
    uint64_t most_bytes;  /* bytes of a slot for the largest chunk, tile or layer */
};

struct plan {
    const struct tdm_program *program;
    struct planned *buffers;
};

/* Marks the tensors of a part of a unit or of its slice, or all of them. */
static void mark_unit(const struct tdm_schedule *schedule, struct tdm_tag tag, uint32_t part,
                      uint64_t size, unsigned char *slot)
{
    const struct tdm_model *model = schedule->model;
    for (uint32_t i = 0; i < model->units[tag.layer].tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[model->units[tag.layer].first_tensor + i];
        uint64_t at, elements = tdm_slot_elements(schedule, tensor, tag.chunk, &at);
        if (part >= TDM_PARTS || tdm_part_of(tensor->role) == (enum tdm_part)part)
            memset(slot + at * size, SOMETHING, elements * size);
    }
}

/* Marks the rows of the tokens of every page, in both planes. */
static void mark_pages(const struct tdm_schedule *schedule, uint64_t tokens, uint64_t size,
                       unsigned char *slot)
{
    uint64_t plane = tdm_page_plane_elements(schedule) * size;
    uint64_t row = plane / schedule->page_tokens;
    for (uint64_t at = 0; at < tokens; at += schedule->page_tokens) {
        uint64_t here = tokens - at < schedule->page_tokens ? tokens - at : schedule->page_tokens;
        unsigned char *page = slot + at / schedule->page_tokens * 2 * plane;
        memset(page, SOMETHING, here * row);
        memset(page + plane, SOMETHING, here * row);
    }
}

/* Marks the bytes of a content in a slot, without the gaps between them. */
static void mark_content(const struct tdm_schedule *schedule, struct tdm_tag tag, uint32_t part,
                         uint64_t tokens, uint64_t size, unsigned char *slot)
{
    const struct tdm_model *model = schedule->model;
    enum tdm_content content = tag.content;
    uint64_t row = (uint64_t)model->query_heads * model->head_dim * size;
    if (tdm_content_is_of_unit(content)) {
        mark_unit(schedule, tag, part, size, slot);
    } else if (content == TDM_TIED_GRADIENT) {
        mark_unit(schedule, tag, TDM_PART_ALL, size, slot);
    } else if (content == TDM_KVPAGES || content == TDM_DKVPAGES) {
        mark_pages(schedule, tokens, size, slot);
    } else if (content == TDM_ATTENTION_OUT) {
        memset(slot, SOMETHING, tokens * row);
        memset(slot + tdm_lse_offset(schedule, content, tokens), SOMETHING,
               tokens * model->query_heads * sizeof(float));
    } else if (content == TDM_TOKEN_ORDER) {
        /* Only a sort of larger vocabularies uses the other half. */
        memset(slot, SOMETHING, tokens * sizeof(int32_t));
    } else {
        memset(slot, SOMETHING, tdm_content_bytes(schedule, content, 0, tokens));
    }
}

/* Whether a content has one row per token of an LM-head tile. */
static bool is_of_tile(enum tdm_content content)
{
    return content == TDM_LOGIT_TILE || content == TDM_HEAD_LSE || content == TDM_HEAD_SUM;
}

static uint64_t longest_chunk(const struct tdm_program *program)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        tokens = program->chunks[i].tokens > tokens ? program->chunks[i].tokens : tokens;
    return tokens;
}

/* Bytes of a content for the largest chunk or tile. For a content of units: bytes for the largest
 * layer, or for the unit or its first slice if it is not a layer. */
static uint64_t most_bytes(const struct tdm_program *program, enum tdm_content content,
                           uint32_t unit)
{
    const struct tdm_schedule *schedule = program->schedule;
    uint64_t most = 0, tokens = longest_chunk(program);
    if (is_of_tile(content) && schedule->head_tile_tokens < tokens)
        tokens = schedule->head_tile_tokens;
    if (tdm_content_is_of_unit(content) && tdm_is_sliced(schedule, content, unit))
        return tdm_slice_at(schedule, unit, 0).elements *
               tdm_dtype_bytes(tdm_content_dtype(schedule, content));
    if (!tdm_content_is_of_unit(content) || unit >= schedule->model->layers)
        return tdm_content_bytes(schedule, content, unit, tokens);
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++) {
        uint64_t bytes = tdm_content_bytes(schedule, content, layer, 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void mark_slot(const struct plan *plan, const struct tdm_op *op,
                      const struct tdm_access *access, uint32_t k)
{
    const struct tdm_program *program = plan->program;
    const struct tdm_buffer *buffer = &program->buffers[access->buffer];
    struct planned *planned = &plan->buffers[access->buffer];
    enum tdm_content content = access->after.content;
    const struct tdm_tag tag = tdm_tag_at(access->after, k);
    uint32_t unit = tag.layer, chunk = tag.chunk;
    uint32_t slot = access->first_slot + k;
    uint64_t most = most_bytes(program, content, unit);
    bool sliced = tdm_content_is_of_unit(content) && chunk != TDM_NONE;
    uint64_t tokens = chunk < program->chunk_count ? program->chunks[chunk].tokens : 0;
    if (is_of_tile(content))
        tokens = op->tokens;
    planned->used[slot] = true;
    planned->most_bytes = most > planned->most_bytes ? most : planned->most_bytes;

    unsigned char *bytes = planned->bytes + slot * buffer->slot_bytes;
    unsigned char *here = calloc(buffer->slot_bytes + 1, 1);
    assert_non_null(here);
    mark_content(program->schedule, tag, access->part, tokens, tdm_dtype_bytes(buffer->dtype),
                 here);
    bool allowed =
        (op->kind == TDM_OP_COPY && access->mode == TDM_WRITE) || content == TDM_TOKEN_ORDER;
    uint64_t end = allowed ? tdm_content_bytes(program->schedule, content, unit, tokens) : 0;
    if (allowed && sliced)
        end =
            tdm_slice_at(program->schedule, unit, chunk).elements * tdm_dtype_bytes(buffer->dtype);
    for (uint64_t i = 0; i < buffer->slot_bytes; i++)
        bytes[i] |= here[i] != NOTHING ? SOMETHING : i < end ? ALLOWED : NOTHING;
    free(here);
}

static enum tdm_status mark_op(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct plan *plan = self;
    (void)err;
    for (uint32_t i = 0; item->kind == TDM_RUN && i < item->op->access_count; i++)
        for (uint32_t k = 0;
             item->op->access[i].buffer != TDM_NONE && k < item->op->access[i].slots; k++)
            mark_slot(plan, item->op, &item->op->access[i], k);
    return TDM_OK;
}

/* Marks scratch, which any op may use as working space. */
static void mark_scratch(const struct plan *plan)
{
    const struct tdm_program *program = plan->program;
    struct planned *planned = &plan->buffers[program->scratch];
    planned->used[0] = true;
    planned->most_bytes = tdm_scratch_bytes(program->schedule, longest_chunk(program));
    memset(planned->bytes, ALLOWED, program->buffers[program->scratch].bytes);
}

/* Marks the state that exists before the step. */
static void mark_state(const struct plan *plan)
{
    const struct tdm_schedule *schedule = plan->program->schedule;
    for (uint32_t i = 0; i < plan->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &plan->program->buffers[i];
        struct planned *planned = &plan->buffers[i];
        bool state = buffer->resident && buffer->by_part && buffer->initial.content != TDM_EMPTY;
        for (uint32_t slot = 0; slot < buffer->slots && state; slot++) {
            struct tdm_tag tag = tdm_program_initial(plan->program, buffer, slot);
            planned->used[slot] = true;
            planned->most_bytes = most_bytes(plan->program, buffer->initial.content, tag.layer);
            mark_unit(schedule, tag, TDM_PART_ALL, tdm_dtype_bytes(buffer->dtype),
                      planned->bytes + slot * buffer->slot_bytes);
        }
    }
}

static struct plan new_plan(const struct tdm_program *program)
{
    struct tdm_error err;
    struct plan plan = {.program = program};
    plan.buffers = calloc((size_t)program->buffer_count + 1, sizeof(*plan.buffers));
    assert_non_null(plan.buffers);
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        plan.buffers[i].bytes = calloc(program->buffers[i].bytes + 1, 1);
        plan.buffers[i].used = calloc((size_t)program->buffers[i].slots + 1, sizeof(bool));
        assert_true(plan.buffers[i].bytes != NULL && plan.buffers[i].used != NULL);
    }
    mark_state(&plan);
    mark_scratch(&plan);
    assert_int_equal(tdm_program_emit(program, mark_op, &plan, &err), TDM_OK);
    return plan;
}

static void free_plan(struct plan *plan)
{
    for (uint32_t i = 0; i < plan->program->buffer_count; i++) {
        free(plan->buffers[i].bytes);
        free(plan->buffers[i].used);
    }
    free(plan->buffers);
}

/* ---- byte by byte ---- */

/* Gives every buffer its own bytes. */
static void spread(struct tdm_program *program)
{
    memset(program->arena_bytes, 0, sizeof(program->arena_bytes));
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        struct tdm_buffer *buffer = &program->buffers[i];
        if (!buffer->used)
            continue;
        buffer->offset = program->arena_bytes[buffer->place];
        program->arena_bytes[buffer->place] += tdm_size_align(buffer->bytes, 512);
    }
}

static enum tdm_status run_step(struct tdm_execution *e, struct tdm_observer *observer,
                                struct tdm_error *err)
{
    struct tdm_walk *walk = NULL;
    struct tdm_step step;
    enum tdm_status status = TDM_OK;
    bool computes = e->arenas.backend->executes;
    if (computes)
        status = tdm_execution_step(e, 1, &step, err);
    else
        step = (struct tdm_step){.number = 1};
    if (status == TDM_OK)
        status = tdm_walk_new(e->program, NULL, &e->arenas, &walk, err);
    if (status == TDM_OK)
        status = tdm_walk_step(walk, &step, observer, NULL, err);
    tdm_walk_free(walk);
    return status;
}

/* Runs a step over a pattern. Sets touched[place] for bytes that no longer hold it. */
static enum tdm_status note_touched(struct tdm_execution *e, int pattern,
                                    unsigned char *touched[TDM_MAX_PLACES], struct tdm_error *err)
{
    enum tdm_status status = tdm_execution_begin(e, pattern, err);
    if (status == TDM_OK)
        status = run_step(e, NULL, err);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        const unsigned char *base = e->arenas.base[place];
        for (uint64_t i = 0; i < e->arenas.bytes[place]; i++)
            touched[place][i] |= base[i] != pattern;
    }
    return status;
}

static enum tdm_status compare_bytes(const struct tdm_buffer *buffer, const struct planned *planned,
                                     const unsigned char *touched, struct tdm_error *err)
{
    for (uint64_t i = 0; i < buffer->bytes; i++)
        if (touched[i] ? planned->bytes[i] == NOTHING : planned->bytes[i] == SOMETHING)
            return tdm_fail(err, TDM_INTERNAL, "byte %llu of slot %llu of \"%s\" is %s",
                            (unsigned long long)(i % buffer->slot_bytes),
                            (unsigned long long)(i / buffer->slot_bytes), buffer->name,
                            touched[i] ? "touched, and nothing is there by plan"
                                       : "not touched, and something is there by plan");
    /* A ring may have more slots than it needs. They are used from the first upward or, in a
     * backward, from the last downward. Norms on the host have a slot for each unit, even for units
     * that the device updates. */
    bool begun = planned->used[0] || planned->used[buffer->slots - 1];
    bool sparse = buffer->content == TDM_GRADIENT_NORM && buffer->place == TDM_HOST;
    for (uint32_t slot = 0; slot < buffer->slots; slot++)
        if (!planned->used[slot] && !sparse && (buffer->axis != TDM_AXIS_RING || !begun))
            return tdm_fail(err, TDM_INTERNAL, "slot %u of \"%s\" is used by nobody", slot,
                            buffer->name);
    if (tdm_size_align(planned->most_bytes, SLOT_ALIGN) != buffer->slot_bytes)
        return tdm_fail(err, TDM_INTERNAL, "slots of \"%s\" have %llu bytes for %llu", buffer->name,
                        (unsigned long long)buffer->slot_bytes,
                        (unsigned long long)planned->most_bytes);
    return TDM_OK;
}

/* What was compared. */
struct tally {
    uint64_t buffers, bytes;
    /* programs that have buffers on the host, that update rows of the embedding apart, and that
     * make K and V ahead */
    uint64_t with_host, apart, ahead;
};

static enum tdm_status touched_is_planned(const struct tdm_schedule *schedule, uint64_t seed,
                                          struct tally *tally, struct tdm_error *err)
{
    struct tdm_program *program;
    struct tdm_execution e;
    unsigned char *touched[TDM_MAX_PLACES];
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status != TDM_OK)
        return status;
    spread(program);
    for (int place = 0; place < TDM_PLACES; place++) {
        touched[place] = calloc(program->arena_bytes[place] + 1, 1);
        assert_non_null(touched[place]);
    }
    struct plan plan = new_plan(program);
    status = tdm_execution_open(program, "cpu", seed, &e, err);
    if (status == TDM_OK)
        status = note_touched(&e, ONE_PATTERN, touched, err);
    if (status == TDM_OK)
        status = note_touched(&e, OTHER_PATTERN, touched, err);
    for (uint32_t i = 0; i < program->buffer_count && status == TDM_OK; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        if (!buffer->used)
            continue;
        status =
            compare_bytes(buffer, &plan.buffers[i], touched[buffer->place] + buffer->offset, err);
        tally->buffers++;
        tally->bytes += buffer->bytes;
    }
    tally->with_host += program->arena_bytes[TDM_HOST] > 0;
    tally->apart += tdm_updates_rows_apart(schedule);
    tally->ahead += tdm_nest_any_kv_ahead(schedule, tdm_kv_row_is_whole(program), NULL);
    for (int place = 0; place < TDM_PLACES; place++)
        free(touched[place]);
    free_plan(&plan);
    tdm_execution_close(&e);
    return status;
}

/* ---- peaks ---- */

/* What an observer saw during a step. */
struct observed {
    struct tdm_values_touch *touches;
    struct tdm_values_change *changes;
    size_t touch_count, change_count;
};

static void free_observed(struct observed *observed)
{
    free(observed->touches);
    free(observed->changes);
}

/* Runs a step under an observer. Returns what it saw, and for each place the highest touched byte
 * and the bytes of the arena. */
static enum tdm_status observe(const struct tdm_schedule *schedule, const char *backend,
                               uint64_t seed, struct observed *observed,
                               uint64_t highest_byte[TDM_MAX_PLACES],
                               uint64_t bytes[TDM_MAX_PLACES], struct tdm_error *err)
{
    struct tdm_program *program;
    struct tdm_execution e;
    struct tdm_observer *observer = NULL;
    uint64_t touched;
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status != TDM_OK)
        return status;
    status = tdm_execution_open(program, backend, seed, &e, err);
    if (status == TDM_OK)
        status = tdm_observer_new(program, &e.arenas, &observer, err);
    if (status == TDM_OK && e.arenas.backend->executes)
        status = tdm_arenas_fill(&e.arenas, NULL, err);
    if (status == TDM_OK && e.arenas.backend->executes)
        status = tdm_weights_draw(seed, &e.arenas, program, NULL, err);
    if (status == TDM_OK)
        status = run_step(&e, observer, err);
    if (status == TDM_OK) {
        struct tdm_values *values = tdm_observer_values(observer);
        observed->touches = calloc(program->buffer_count + 1u, sizeof(*observed->touches));
        observed->changes =
            calloc(tdm_values_change_capacity(program) + 1, sizeof(*observed->changes));
        assert_non_null(observed->touches);
        assert_non_null(observed->changes);
        observed->touch_count = tdm_values_touches(values, observed->touches);
        observed->change_count = tdm_values_changes(values, observed->changes);
    }
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        bytes[place] = e.arenas.bytes[place];
        if (e.arenas.backend->executes)
            status = tdm_arenas_scan(&e.arenas, (enum tdm_place)place, &touched,
                                     &highest_byte[place], err);
    }
    tdm_observer_free(observer);
    tdm_execution_close(&e);
    return status;
}

/* The planned end of the touched bytes in words of 8 bytes, as the scan counts: it must be at least
 * due[place] and at most most[place]. ALLOWED bytes need not be touched, because a copy may write
 * back what was there before. */
static void planned_ends(const struct tdm_program *program, uint64_t due[TDM_MAX_PLACES],
                         uint64_t most[TDM_MAX_PLACES])
{
    struct plan plan = new_plan(program);
    unsigned char *of_all[TDM_MAX_PLACES];
    for (int place = 0; place < TDM_PLACES; place++) {
        of_all[place] = calloc(program->arena_bytes[place] + 1, 1);
        assert_non_null(of_all[place]);
        due[place] = most[place] = 0;
    }
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        for (uint64_t k = 0; k < buffer->bytes && buffer->used; k++)
            of_all[buffer->place][buffer->offset + k] |= plan.buffers[i].bytes[k];
    }
    for (int place = 0; place < TDM_PLACES; place++) {
        for (uint64_t k = 0; k < program->arena_bytes[place]; k++) {
            if (of_all[place][k] == SOMETHING)
                due[place] = tdm_size_align(k + 1, 8);
            if (of_all[place][k] != NOTHING)
                most[place] = tdm_size_align(k + 1, 8);
        }
        free(of_all[place]);
    }
    free_plan(&plan);
}

/* Fails if two backends saw different accesses. */
static enum tdm_status compare_observed(const struct observed *a, const struct observed *b,
                                        struct tdm_error *err)
{
    if (a->touch_count != b->touch_count ||
        memcmp(a->touches, b->touches, a->touch_count * sizeof(*a->touches)) != 0)
        return tdm_fail(err, TDM_INTERNAL, "cpu and null were not told of the same accesses");
    return TDM_OK;
}

static enum tdm_status values_are_predicted(const struct tdm_program *program,
                                            const struct observed *observed, struct tdm_error *err)
{
    struct tdm_values_change *predicted;
    size_t count;
    enum tdm_status status = tdm_values_predict(program, &predicted, &count, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < count || i < observed->change_count; i++) {
        const struct tdm_values_change *p = &predicted[i], *o = &observed->changes[i];
        if (i < count && i < observed->change_count && p->op_number == o->op_number &&
            p->place == o->place && p->category == o->category && p->value_bytes == o->value_bytes)
            continue;
        status = tdm_fail(err, TDM_INTERNAL, "change %zu of %zu and %zu of values is not predicted",
                          i, count, observed->change_count);
        break;
    }
    free(predicted);
    return status;
}

/* Checks that bytes are allocated while they hold values. All bytes of scratch count as values. */
struct allocated {
    const struct tdm_program *program;
    const struct tdm_values_change *changes;
    size_t count, next;
    uint64_t values[TDM_MAX_PLACES][TDM_CATEGORIES], live[TDM_MAX_PLACES][TDM_CATEGORIES];
};

static enum tdm_status check_allocated(void *self, const struct tdm_item *item,
                                       struct tdm_error *err)
{
    struct allocated *a = self;
    if (item->kind != TDM_RUN) {
        const struct tdm_buffer *buffer = &a->program->buffers[item->buffer];
        a->live[buffer->place][buffer->category] +=
            item->kind == TDM_ALLOC ? buffer->bytes : -buffer->bytes;
        return TDM_OK;
    }
    for (; a->next < a->count && a->changes[a->next].op_number == item->op->number; a->next++) {
        const struct tdm_values_change *change = &a->changes[a->next];
        a->values[change->place][change->category] = change->value_bytes;
    }
    for (int place = 0; place < TDM_PLACES; place++)
        for (int category = 0; category < TDM_CATEGORIES; category++)
            if (a->values[place][category] > a->live[place][category])
                return tdm_fail(err, TDM_INTERNAL,
                                "op %llu: %llu bytes of %s hold values, %llu are allocated",
                                (unsigned long long)item->op->number,
                                (unsigned long long)a->values[place][category],
                                tdm_category_name((enum tdm_category)category),
                                (unsigned long long)a->live[place][category]);
    return TDM_OK;
}

static enum tdm_status values_are_allocated(const struct tdm_program *program,
                                            struct tdm_error *err)
{
    struct tdm_values_change *changes;
    struct allocated a = {.program = program};
    enum tdm_status status = tdm_values_predict(program, &changes, &a.count, err);
    if (status != TDM_OK)
        return status;
    a.changes = changes;
    status = tdm_program_emit(program, check_allocated, &a, err);
    free(changes);
    return status;
}

static enum tdm_status peaks_are_predicted(const struct tdm_schedule *schedule, uint64_t seed,
                                           struct tdm_error *err)
{
    struct tdm_program *program;
    struct tdm_simulation simulation;
    struct observed observed[2] = {{0}};
    uint64_t highest[TDM_MAX_PLACES] = {0}, unscanned[TDM_MAX_PLACES] = {0}, due[TDM_MAX_PLACES],
             most[TDM_MAX_PLACES], bytes[2][TDM_MAX_PLACES];
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status != TDM_OK)
        return status;
    status = tdm_simulate(program, NULL, NULL, &simulation, err);
    if (status == TDM_OK)
        status = observe(schedule, "cpu", seed, &observed[0], highest, bytes[0], err);
    if (status == TDM_OK)
        status = observe(schedule, "null", seed, &observed[1], unscanned, bytes[1], err);
    planned_ends(program, due, most);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        if (highest[place] < due[place] || highest[place] > most[place])
            status = tdm_fail(
                err, TDM_INTERNAL, "the %s arena is touched up to byte %llu, not %llu",
                tdm_place_name(&program->schedule->machine->topology, (enum tdm_place)place),
                (unsigned long long)highest[place], (unsigned long long)due[place]);
        else if (bytes[0][place] != simulation.arena_bytes[place] ||
                 bytes[1][place] != simulation.arena_bytes[place])
            status = tdm_fail(
                err, TDM_INTERNAL, "%llu and %llu bytes of %s, %llu predicted",
                (unsigned long long)bytes[0][place], (unsigned long long)bytes[1][place],
                tdm_place_name(&program->schedule->machine->topology, (enum tdm_place)place),
                (unsigned long long)simulation.arena_bytes[place]);
    }
    if (status == TDM_OK)
        status = compare_observed(&observed[0], &observed[1], err);
    for (int i = 0; i < 2; i++) {
        if (status == TDM_OK)
            status = values_are_predicted(program, &observed[i], err);
        free_observed(&observed[i]);
    }
    if (status == TDM_OK)
        status = values_are_allocated(program, err);
    tdm_program_free(program);
    return status;
}

/* Whether the memory of a seed's program is as planned. Prints a failure. */
static bool is_as_planned(uint64_t seed, struct tally *tally)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS, .max_tokens = 40};
    struct tdm_schedule *schedule;
    struct tdm_error err;
    char text[768];
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_favour(seed, schedule, &err), TDM_OK);
    bool passed = touched_is_planned(schedule, seed, tally, &err) == TDM_OK &&
                  peaks_are_predicted(schedule, seed, &err) == TDM_OK;
    if (!passed) {
        fprintf(stderr, "seed %llu: %s\n  %s\n", (unsigned long long)seed, err.message,
                tdm_schedule_describe(schedule, text, sizeof(text)));
        tdm_case_again("executor/property_memory", seed);
    }
    tdm_schedule_free(schedule);
    return passed;
}

static void memory_is_as_planned(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(20, 150), failed = 0;
    struct tally tally = {0};
    for (uint64_t n = 0; n < cases; n++)
        failed += !is_as_planned(tdm_case_seed(BASE_SEED, n), &tally);
    print_message("%llu programs from seed %llu: %llu bytes of %llu buffers\n",
                  (unsigned long long)cases, (unsigned long long)tdm_case_seed(BASE_SEED, 0),
                  (unsigned long long)tally.bytes, (unsigned long long)tally.buffers);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("programs had buffers on the host", tally.with_host, cases, 0.4));
    assert_true(tdm_case_enough("programs update rows apart", tally.apart, cases, 0.02));
    assert_true(tdm_case_enough("programs make K and V ahead", tally.ahead, cases, 0.02));
}

/* Layers that gather pages need one slot of their row. Other layers, with a window of the model,
 * need a slot for every chunk. */
static void rows_are_no_longer_than_needed(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {3300000054, 3300000087};
    struct tally tally = {0};
    for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++)
        assert_true(is_as_planned(seeds[i], &tally));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(rows_are_no_longer_than_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
