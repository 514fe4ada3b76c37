/* SPDX-License-Identifier: Apache-2.0 */
/* Emits allocations, frees and ops. An op is built operand by operand. */
#include "schedule/lower_parts.h"

#include "base/size.h"
#include "ops/move.h"
#include "schedule/cost.h"
#include "schedule/slices.h"

#include <stddef.h>
#include <string.h>

static void emit(struct tdm_lowering *l, const struct tdm_item *item)
{
    if (l->status == TDM_OK)
        l->status = l->sink(l->self, item, l->err);
}

void tdm_low_alloc(struct tdm_lowering *l, uint32_t buffer)
{
    if (buffer != TDM_NONE)
        emit(l, &(struct tdm_item){.kind = TDM_ALLOC, .buffer = buffer});
}

void tdm_low_release(struct tdm_lowering *l, uint32_t buffer)
{
    if (buffer != TDM_NONE)
        emit(l, &(struct tdm_item){.kind = TDM_FREE, .buffer = buffer});
}

void tdm_low_op_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                      enum tdm_part part)
{
    if (l->lives_only) { /* what choices depend on */
        l->op.kind = kind;
        l->op.layer = body->layer;
        l->op.chunk = body->chunk;
        return;
    }
    /* operands that the last op did not have are still zero */
    const size_t used = l->op.access_count * sizeof(l->op.access[0]);
    memset(&l->op, 0, offsetof(struct tdm_op, access) + used);
    memset(&l->op.flops, 0, sizeof(l->op) - offsetof(struct tdm_op, flops));
    l->op.kind = kind;
    l->op.part = part;
    l->op.phase = body->phase;
    l->op.lane = tdm_lane_at(&l->schedule->machine->topology, TDM_DEVICE);
    l->op.link = TDM_NO_LINK;
    l->op.layer = body->layer;
    l->op.chunk = body->chunk;
    if (body->chunk != TDM_NONE)
        l->op.tokens = l->program->chunks[body->chunk].tokens;
    l->op.access_count = tdm_op_type(kind)->operands;
    for (uint32_t i = 0; i < l->op.access_count; i++)
        l->op.access[i].buffer = TDM_NONE;
}

void tdm_low_op_end(struct tdm_lowering *l)
{
    if (l->lives_only)
        return;
    l->op.number = l->op_count++;
    tdm_op_cost(l->program, &l->op);
    if (l->op.gathers && l->op.link == TDM_NO_LINK && l->status == TDM_OK)
        l->status = tdm_fail(l->err, TDM_INPUT,
                             "attention of layer %u gathers K and V from a place to which machine "
                             "%s has no link",
                             l->op.layer, l->schedule->machine->name);
    emit(l, &(struct tdm_item){.kind = TDM_RUN, .op = &l->op});
}

struct tdm_tag tdm_low_tag(enum tdm_content content, uint32_t layer, uint32_t chunk)
{
    return (struct tdm_tag){content, layer, chunk, TDM_NONE, 0};
}

struct tdm_tag tdm_low_sum_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                               uint32_t contributor)
{
    return (struct tdm_tag){content, layer, chunk, contributor, 0};
}

struct tdm_tag tdm_low_share_tag(const struct tdm_lowering *l, enum tdm_content content,
                                 uint32_t layer, uint32_t chunk, uint32_t contributor)
{
    return (struct tdm_tag){content, layer, chunk, contributor, tdm_rank_share(l->program)};
}

struct tdm_tag tdm_low_complete_tag(const struct tdm_lowering *l, enum tdm_content content,
                                    uint32_t unit)
{
    return tdm_sums_by_part(l->schedule) ? tdm_low_share_tag(l, content, unit, TDM_NONE, TDM_NONE)
                                         : tdm_low_sum_tag(content, unit, TDM_NONE, 0);
}

void tdm_low_access(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref, uint32_t slots,
                    enum tdm_mode mode, uint32_t part, struct tdm_tag before, struct tdm_tag after,
                    uint64_t bytes)
{
    if (l->lives_only)
        return;
    l->op.access[operand] =
        (struct tdm_access){ref.buffer, ref.slot, slots, mode, part, before, after, bytes};
}

uint64_t tdm_low_row_bytes(const struct tdm_lowering *l, enum tdm_content content)
{
    return tdm_content_bytes(l->schedule, content, 0, l->op.tokens);
}

void tdm_low_reads(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                   struct tdm_tag what)
{
    if (l->lives_only)
        return;
    tdm_low_access(l, operand, ref, 1, TDM_READ, 0, what, what, tdm_low_row_bytes(l, what.content));
}

void tdm_low_writes(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                    struct tdm_tag what)
{
    if (l->lives_only)
        return;
    tdm_low_access(l, operand, ref, 1, TDM_WRITE, 0, tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE),
                   what, tdm_low_row_bytes(l, what.content));
}

void tdm_low_changes(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref,
                     struct tdm_tag before, struct tdm_tag after)
{
    if (l->lives_only)
        return;
    tdm_low_access(l, operand, ref, 1, TDM_ACCUMULATE, 0, before, after,
                   tdm_low_row_bytes(l, after.content));
}

struct tdm_ref tdm_low_work(const struct tdm_lowering *l, enum tdm_content content)
{
    return (struct tdm_ref){l->layout->work[content], 0};
}

void tdm_low_alloc_work(struct tdm_lowering *l, enum tdm_content content)
{
    tdm_low_alloc(l, l->layout->work[content]);
}

void tdm_low_release_work(struct tdm_lowering *l, enum tdm_content content)
{
    tdm_low_release(l, l->layout->work[content]);
}

/* ---- units: weights, gradients, moments ---- */

void tdm_low_alloc_gradient(struct tdm_lowering *l, uint32_t buffer)
{
    if (buffer != TDM_NONE && !l->program->buffers[buffer].resident)
        tdm_low_alloc(l, buffer);
}

struct tdm_ref tdm_low_gradient_ref(const struct tdm_lowering *l, uint32_t unit)
{
    if (unit < l->model->layers)
        return (struct tdm_ref){l->layout->layer_gradient[unit],
                                l->layout->layer_gradient_slot[unit]};
    if (unit == tdm_model_embedding_unit(l->model))
        return (struct tdm_ref){l->layout->embedding_gradient, 0};
    return (struct tdm_ref){l->layout->head_gradient, 0};
}

void tdm_low_adds_gradient(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part, uint32_t chunk)
{
    if (l->lives_only)
        return;
    struct tdm_tag after = tdm_low_share_tag(l, TDM_UNIT_GRADIENT, unit, TDM_NONE, chunk);
    struct tdm_tag before = after;
    bool opens = tdm_sum_opens(l->program, chunk);
    before.contributor = tdm_sum_before(l->program, chunk);
    if (opens)
        before = tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
    tdm_low_access(l, operand, tdm_low_gradient_ref(l, unit), 1, opens ? TDM_WRITE : TDM_ACCUMULATE,
                   part, before, after,
                   tdm_part_bytes(l->model, unit, part, l->schedule->dtypes.gradients));
}

void tdm_low_adds_layer_gradient(struct tdm_lowering *l, uint32_t operand, enum tdm_part part)
{
    tdm_low_adds_gradient(l, operand, l->op.layer, part, l->op.chunk);
}

uint64_t tdm_low_slice_bytes(const struct tdm_lowering *l, enum tdm_content content, uint32_t unit,
                             uint32_t slice)
{
    return tdm_slice_at(l->schedule, unit, slice).elements *
           tdm_dtype_bytes(tdm_content_dtype(l->schedule, content));
}

/* ---- moving between places ---- */

void tdm_low_route(struct tdm_lowering *l, uint32_t from, uint32_t to)
{
    const struct tdm_topology *topology = &l->schedule->machine->topology;
    enum tdm_place at = l->program->buffers[from].place, goal = l->program->buffers[to].place;
    l->op.link = at == goal ? TDM_NO_LINK : tdm_link_find(topology, at, goal);
    l->op.lane = at == goal                  ? tdm_lane_at(topology, at)
                 : l->op.link == TDM_NO_LINK ? (enum tdm_lane)TDM_MAX_LANES
                                             : topology->links[l->op.link].lane;
    if ((uint32_t)l->op.lane < topology->lane_count || l->status != TDM_OK)
        return;
    l->status = tdm_fail(l->err, TDM_INPUT,
                         "\"%s\" is copied from place %s to place %s, between which the machine %s "
                         "has no link",
                         l->program->buffers[to].name, tdm_place_name(topology, at),
                         tdm_place_name(topology, goal), l->schedule->machine->name);
    tdm_hint(l->err, "add it to \"links\" of the machine's description");
}

void tdm_low_copy(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                  struct tdm_ref to, struct tdm_tag what)
{
    tdm_low_op_begin(l, body, TDM_OP_COPY, 0);
    tdm_low_route(l, from.buffer, to.buffer);
    l->op.layer = what.layer;
    tdm_low_reads(l, TDM_COPY_FROM, from, what);
    tdm_low_writes(l, TDM_COPY_TO, to, what);
    tdm_low_op_end(l);
}

void tdm_low_copy_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct tdm_ref from, struct tdm_ref to, struct tdm_tag what)
{
    if (l->lives_only) {
        tdm_low_route(l, from.buffer, to.buffer); /* refuses a move without a link */
        return;
    }
    bool by_part = l->program->buffers[from.buffer].by_part;
    uint64_t bytes =
        part != TDM_PART_ALL     ? tdm_part_bytes(l->model, what.layer, part,
                                                  tdm_content_dtype(l->schedule, what.content))
        : what.chunk != TDM_NONE ? tdm_low_slice_bytes(l, what.content, what.layer, what.chunk)
                                 : tdm_content_bytes(l->schedule, what.content, what.layer, 0);
    uint32_t copied = by_part ? (uint32_t)part : 0;
    tdm_low_op_begin(l, body, TDM_OP_COPY, part == TDM_PART_ALL ? 0 : part);
    if (what.share != 0) { /* of a gradient or of weights, the part that the rank updates */
        const struct tdm_slice own = tdm_rank_part(l->schedule, what.layer, l->program->rank);
        l->op.first_element = own.first;
        l->op.elements = own.elements;
        bytes = own.elements * tdm_dtype_bytes(tdm_content_dtype(l->schedule, what.content));
    }
    tdm_low_route(l, from.buffer, to.buffer);
    if (what.content == TDM_UNIT_WEIGHTS && what.share != 0 && l->op.link == TDM_NO_LINK)
        l->op.lane = TDM_LANE_PEER; /* computing goes on beside it */
    l->op.layer = what.layer;
    l->op.chunk = TDM_NONE;
    l->op.tokens = 0;
    tdm_low_access(l, TDM_COPY_FROM, from, 1, TDM_READ, copied, what, what, bytes);
    tdm_low_access(l, TDM_COPY_TO, to, 1, TDM_WRITE, copied,
                   tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE), what, bytes);
    tdm_low_op_end(l);
}

void tdm_low_copy_unit(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref from,
                       struct tdm_ref to, struct tdm_tag what)
{
    tdm_low_copy_part(l, body, TDM_PART_ALL, from, to, what);
}

bool tdm_low_is_far(const struct tdm_lowering *l, uint32_t buffer)
{
    return buffer != TDM_NONE && l->program->buffers[buffer].place != TDM_DEVICE;
}

struct tdm_ref tdm_low_next_slot(const struct tdm_lowering *l, uint32_t ring, uint32_t *next)
{
    struct tdm_ref ref = {ring, *next};
    *next = (*next + 1) % l->program->buffers[ring].slots;
    return ref;
}
