/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norm and update of a unit, on the device or on the host.
 *
 * For updates on the device, state at home on the host is fetched and sent back (lower_stream.c).
 * Updates on the host change weights, master and moments at home, on the lane that computes there.
 * The gradient is sent there, unless its home is the host, and so is the norm that clips it. If
 * goes_by_part() holds, a layer's gradient is sent part by part, during the rest of the backward
 * that completes it.
 */
#include "schedule/lower_parts.h"

#include "base/size.h"
#include "ops/update.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

/* ---- what goes to the host ---- */

static void send_gradient(struct tdm_lowering *l, const struct tdm_body *body,
                          enum tdm_content content, enum tdm_part part, struct tdm_ref from,
                          struct tdm_ref to)
{
    tdm_low_copy_part(l, body, part, from, to, tdm_low_complete_tag(l, content, body->layer));
}

/* Where the complete gradient of a unit is on the device. */
static struct tdm_ref complete_gradient(const struct tdm_lowering *l, uint32_t unit)
{
    return tdm_gradients_stay(l->schedule) ? tdm_home_of(l->program, TDM_UNIT_GRADIENT, unit)
                                           : tdm_low_gradient_ref(l, unit);
}

/* The host's staging buffer for the gradient of embedding or head, or TDM_NONE. Layers have a
 * ring. */
static uint32_t host_buffer_of(const struct tdm_lowering *l, uint32_t unit)
{
    if (unit < l->model->layers || !tdm_gradient_visits_host(l->program, unit))
        return TDM_NONE;
    bool embedding = unit == tdm_model_embedding_unit(l->model);
    return l->layout->host_gradient[embedding ? TDM_ROW_EMBEDDING : TDM_ROW_HEAD];
}

/* Is a unit's gradient sent to the host part by part, during the backward that completes it? In
 * layer-major order the next layer sums in the same place and would wait for a copy that begins
 * after the last op. If both layers have their parts at the same bytes, each part waits only for
 * its own copy. In chunk-major order the layers of a group have places of their own. Gradients that
 * stay are used after the backward. With several ranks a part is complete only when the shares of
 * all are summed. */
static bool goes_by_part(const struct tdm_lowering *l, uint32_t unit)
{
    return unit < l->model->layers && tdm_low_layer_major(l) && l->program->ranks == 1 &&
           tdm_gradient_visits_host(l->program, unit) && !tdm_gradients_stay(l->schedule) &&
           l->layers_alike;
}

/* Does one of the layers [first, end) sum in the same buffer as a layer? */
static bool sums_with(const struct tdm_lowering *l, uint32_t layer, uint32_t first, uint32_t end)
{
    for (; first < end; first++)
        if (l->layout->layer_gradient[first] == l->layout->layer_gradient[layer])
            return true;
    return false;
}

/* Does the backward of the layer below follow that of a layer, with no sweep forward between? */
static bool goes_straight_on(const struct tdm_lowering *l, uint32_t layer)
{
    return !tdm_low_first_of_group(l, layer) || (layer > 0 && tdm_low_first_of_group(l, layer - 1));
}

bool tdm_low_gradient_goes_on(const struct tdm_lowering *l, uint32_t layer)
{
    if (tdm_nest_defers(l->schedule))
        return sums_with(l, layer, 0, layer);
    return goes_straight_on(l, layer) && goes_by_part(l, layer);
}

bool tdm_low_gradient_came_on(const struct tdm_lowering *l, uint32_t layer)
{
    if (tdm_nest_defers(l->schedule))
        return sums_with(l, layer, layer + 1, l->model->layers);
    return layer + 1 < l->model->layers && tdm_low_gradient_goes_on(l, layer + 1);
}

/* Allocates the place on the host for the gradient of the unit that is updated next. */
static void take_host_gradient(struct tdm_lowering *l, uint32_t unit)
{
    if (l->host_gradient_taken)
        return;
    uint32_t buffer = host_buffer_of(l, unit);
    tdm_low_alloc(l, buffer);
    l->host_gradient_taken = true;
    l->host_gradient = buffer != TDM_NONE
                           ? (struct tdm_ref){buffer, 0}
                           : tdm_low_next_slot(l, l->layout->host_gradient[TDM_ROW_LAYERS],
                                               &l->next_host_gradient);
}

void tdm_low_send_part(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part)
{
    uint32_t unit = body->layer;
    if (!tdm_sum_closes(l->program, body->chunk) || !goes_by_part(l, unit))
        return;
    take_host_gradient(l, unit);
    send_gradient(l, body, TDM_UNIT_GRADIENT, part, complete_gradient(l, unit), l->host_gradient);
}

static void host_update_begin(struct tdm_lowering *l, const struct tdm_body *body)
{
    const struct tdm_layout *layout = l->layout;
    uint32_t unit = body->layer;
    if (!tdm_gradient_visits_host(l->program, unit)) {
        l->host_gradient = tdm_home_of(l->program, TDM_UNIT_GRADIENT, unit);
        return;
    }
    take_host_gradient(l, unit);
    if (!goes_by_part(l, unit))
        send_gradient(l, body, TDM_UNIT_GRADIENT, TDM_PART_ALL, complete_gradient(l, unit),
                      l->host_gradient);
    if (unit != tdm_model_embedding_unit(l->model) || layout->host_tied == TDM_NONE)
        return;
    tdm_low_alloc(l, layout->host_tied);
    send_gradient(l, body, TDM_TIED_GRADIENT, TDM_PART_ALL,
                  (struct tdm_ref){layout->tied_gradient, 0},
                  (struct tdm_ref){layout->host_tied, 0});
}

static void host_update_end(struct tdm_lowering *l, uint32_t unit)
{
    l->host_gradient_taken = false;
    tdm_low_release(l, host_buffer_of(l, unit));
    if (unit == tdm_model_embedding_unit(l->model))
        tdm_low_release(l, l->layout->host_tied);
}

void tdm_low_host_update_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    bool at_end = tdm_updates_at_end(l->schedule);
    void (*act)(struct tdm_lowering *, uint32_t) = begin ? tdm_low_alloc : tdm_low_release;
    /* norms are sent when they are made */
    if (body->phase == (at_end && !begin ? TDM_OPTIMIZER_PHASE : TDM_BACKWARD))
        act(l, l->layout->host_norms);
    if (body->phase == (at_end ? TDM_OPTIMIZER_PHASE : TDM_BACKWARD))
        act(l, l->layout->host_gradient[TDM_ROW_LAYERS]);
}

/* ---- operands ---- */

/* Where the update of a unit changes a content. */
static struct tdm_ref updated(const struct tdm_lowering *l, enum tdm_content content, uint32_t unit)
{
    return tdm_updates_on_host(l->schedule, unit) ? tdm_home_of(l->program, content, unit)
                                                  : tdm_low_unit_on_device(l, content, unit);
}

/* The most rows of the embedding that the op changes; if it changes the unused ones, the rest. */
static uint64_t rows_of(const struct tdm_lowering *l)
{
    const uint64_t used = tdm_used_rows(l->schedule);
    return l->op.rows == TDM_ROWS_USED ? used : l->model->vocabulary - used;
}

/* Bytes of a content of the op's unit that the op uses: of all tensors, or of its slice. */
static uint64_t used_bytes(const struct tdm_lowering *l, enum tdm_content content)
{
    enum tdm_dtype dtype = tdm_content_dtype(l->schedule, content);
    if (l->op.rows != TDM_ROWS_ALL)
        return tdm_size_mul(tdm_size_mul(rows_of(l), l->model->hidden), tdm_dtype_bytes(dtype));
    bool all = l->op.kind == TDM_OP_GRADIENT_NORM ? !tdm_sums_by_part(l->schedule)
                                                  : l->op.slices == 1 && l->program->ranks == 1;
    return all ? tdm_part_bytes(l->model, l->op.layer, TDM_PART_ALL, dtype)
               : tdm_size_mul(l->op.elements, tdm_dtype_bytes(dtype));
}

static void updates(struct tdm_lowering *l, uint32_t operand, enum tdm_content content)
{
    uint32_t unit = l->op.layer, slots = 1;
    struct tdm_ref ref = updated(l, content, unit);
    if (ref.buffer == TDM_NONE)
        return;
    /* contributor 0: as this step leaves it */
    struct tdm_tag before = tdm_low_tag(content, unit, TDM_NONE);
    struct tdm_tag after = tdm_low_sum_tag(content, unit, TDM_NONE, 0);
    if (tdm_is_sliced(l->schedule, content, unit)) { /* slices are at home each in its slot */
        before.chunk = after.chunk = l->op.slice;
        if (l->op.slices == 1)
            slots = tdm_slice_count(l->schedule, unit);
        else if (!tdm_home_is_far(l->program, content, unit))
            ref.slot += l->op.slice;
    } else if (l->op.slices > 1) { /* weights, which are whole: a slice changes a share of them */
        after.contributor = l->op.slices - 1 - l->op.slice;
        before.contributor = l->op.slice == 0 ? TDM_NONE : after.contributor + 1;
    }
    if (content == TDM_UNIT_WEIGHTS) { /* the rank changes its part of them */
        after.share = tdm_rank_share(l->program);
        before.share = l->op.slice == 0 ? 0 : after.share;
    }
    /* the rows that the step reads are as they were */
    tdm_low_access(l, operand, ref, slots, TDM_ACCUMULATE, TDM_PART_ALL, before,
                   l->op.rows == TDM_ROWS_UNUSED ? before : after, used_bytes(l, content));
}

/* Reads the complete gradient of the op's unit, at `ref`. */
static void reads_gradient(struct tdm_lowering *l, uint32_t operand, struct tdm_ref ref)
{
    struct tdm_tag complete = tdm_low_complete_tag(l, TDM_UNIT_GRADIENT, l->op.layer);
    tdm_low_access(l, operand, ref, 1, TDM_READ, TDM_PART_ALL, complete, complete,
                   used_bytes(l, TDM_UNIT_GRADIENT));
}

/* Reads the part of a tied embedding's gradient that the head made. */
static void reads_tied_gradient(struct tdm_lowering *l, uint32_t operand, uint32_t buffer)
{
    uint32_t unit = l->op.layer;
    if (!l->model->tied || unit != tdm_model_embedding_unit(l->model))
        return;
    struct tdm_tag complete = tdm_low_complete_tag(l, TDM_TIED_GRADIENT, unit);
    tdm_low_access(l, operand, (struct tdm_ref){buffer, 0}, 1, TDM_READ, 0, complete, complete,
                   used_bytes(l, TDM_TIED_GRADIENT));
}

/* Reads the norms by which the update scales its gradient: none, that of its unit, or all. */
static void reads_norms(struct tdm_lowering *l, uint32_t buffer)
{
    enum tdm_clip clip = l->schedule->optimizer.clip;
    if (clip == TDM_CLIP_NONE)
        return;
    uint32_t first = clip == TDM_CLIP_GLOBAL ? 0 : l->op.layer;
    uint32_t units = clip == TDM_CLIP_GLOBAL ? l->model->unit_count : 1;
    struct tdm_tag norms = tdm_low_tag(TDM_GRADIENT_NORM, first, TDM_NONE);
    tdm_low_access(l, TDM_OPTIMIZER_NORMS, (struct tdm_ref){buffer, first}, units, TDM_READ, 0,
                   norms, norms, units * sizeof(double));
}

/* The buffer in which the update reads the tied part of a gradient. */
static uint32_t tied_part(const struct tdm_lowering *l, bool on_host)
{
    const struct tdm_layout *layout = l->layout;
    if (layout->tied_home == TDM_NONE)
        return on_host ? layout->host_tied : layout->tied_gradient;
    return on_host ? layout->tied_home : layout->staged_tied;
}

/* ---- bodies ---- */

void tdm_low_gradient_norm_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    const struct tdm_layout *layout = l->layout;
    uint32_t unit = body->layer;
    struct tdm_tag norm = tdm_low_tag(TDM_GRADIENT_NORM, unit, TDM_NONE), made = norm;
    tdm_low_op_begin(l, body, TDM_OP_GRADIENT_NORM, TDM_PART_ALL);
    if (tdm_sums_by_part(l->schedule)) { /* of the rank's part; all parts are added then */
        const struct tdm_slice own = tdm_rank_part(l->schedule, unit, l->program->rank);
        l->op.slices = 1;
        l->op.first_element = own.first;
        l->op.elements = own.elements;
        made.share = tdm_rank_share(l->program);
    }
    reads_gradient(l, TDM_GRADIENT_NORM_GRADIENT, tdm_low_gradient_ref(l, unit));
    tdm_low_access(l, TDM_GRADIENT_NORM_NORM, (struct tdm_ref){layout->norms, unit}, 1, TDM_WRITE,
                   0, made, made, sizeof(double));
    reads_tied_gradient(l, TDM_GRADIENT_NORM_TIED, layout->tied_gradient);
    tdm_low_op_end(l);
    if (made.share != norm.share)
        tdm_low_reduce_norm(l, body);
    if (layout->host_norms != TDM_NONE &&
        (l->schedule->optimizer.clip == TDM_CLIP_GLOBAL || tdm_updates_on_host(l->schedule, unit)))
        tdm_low_copy_unit(l, body, (struct tdm_ref){layout->norms, unit},
                          (struct tdm_ref){layout->host_norms, unit}, norm);
}

/* Frees the gradient that the update has used. Gradients that do not stay are freed with the sweep
 * that made them, all except the embedding's. */
static void release_gradient(struct tdm_lowering *l, uint32_t unit)
{
    const struct tdm_layout *layout = l->layout;
    bool embedding = unit == tdm_model_embedding_unit(l->model);
    if (tdm_gradients_stay(l->schedule)) {
        tdm_low_release(l, tdm_home_of(l->program, TDM_UNIT_GRADIENT, unit).buffer);
        if (embedding)
            tdm_low_release(l, layout->tied_home != TDM_NONE ? layout->tied_home
                                                             : layout->tied_gradient);
    } else if (embedding) {
        tdm_low_release(l, layout->embedding_gradient);
    }
}

/* Updates a slice of a unit, or all of it if it is the only one; of an embedding some rows. */
static void update(struct tdm_lowering *l, const struct tdm_body *body, uint32_t slice,
                   uint32_t slices, enum tdm_update_rows rows)
{
    uint32_t unit = body->layer;
    bool on_host = tdm_updates_on_host(l->schedule, unit);
    tdm_low_op_begin(l, body, TDM_OP_OPTIMIZER, TDM_PART_ALL);
    l->op.slice = slice;
    l->op.slices = slices;
    l->op.rows = rows;
    const struct tdm_slice range =
        tdm_update_range(l->schedule, unit, l->program->rank, slice, slices);
    l->op.first_element = range.first;
    l->op.elements = range.elements;
    if (on_host)
        l->op.lane = tdm_lane_at(&l->schedule->machine->topology, l->schedule->optimizer.on);
    updates(l, TDM_OPTIMIZER_WEIGHTS, TDM_UNIT_WEIGHTS);
    if (on_host && rows != TDM_ROWS_UNUSED)
        reads_gradient(l, TDM_OPTIMIZER_GRADIENT, l->host_gradient);
    else if (!on_host)
        reads_gradient(l, TDM_OPTIMIZER_GRADIENT,
                       tdm_gradients_stay(l->schedule)
                           ? tdm_low_unit_on_device(l, TDM_UNIT_GRADIENT, unit)
                           : tdm_low_gradient_ref(l, unit));
    updates(l, TDM_OPTIMIZER_MASTER, TDM_UNIT_MASTER);
    updates(l, TDM_OPTIMIZER_MOMENT1, TDM_UNIT_MOMENT1);
    updates(l, TDM_OPTIMIZER_MOMENT2, TDM_UNIT_MOMENT2);
    if (rows != TDM_ROWS_UNUSED)
        reads_norms(l, on_host ? l->layout->host_norms : l->layout->norms);
    reads_tied_gradient(l, TDM_OPTIMIZER_TIED, tied_part(l, on_host));
    tdm_low_op_end(l);
}

/* After an update, if every rank has whole weights at home. */
static void gather_updated(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (l->program->ranks > 1 && !tdm_weights_sliced(l->schedule))
        tdm_low_gather_weights(l, body, updated(l, TDM_UNIT_WEIGHTS, body->layer), 0);
}

void tdm_low_update_unused(struct tdm_lowering *l)
{
    const struct tdm_body body = {.kind = TDM_BODY_OPTIMIZER,
                                  .phase = TDM_OPTIMIZER_PHASE,
                                  .group = TDM_NONE,
                                  .layer = tdm_model_embedding_unit(l->model),
                                  .chunk = TDM_NONE};
    if (tdm_updates_rows_apart(l->schedule))
        update(l, &body, 0, 1, TDM_ROWS_UNUSED);
}

void tdm_low_optimizer_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t unit = body->layer;
    if (tdm_updates_on_host(l->schedule, unit)) {
        const bool apart =
            unit == tdm_model_embedding_unit(l->model) && tdm_updates_rows_apart(l->schedule);
        host_update_begin(l, body);
        update(l, body, 0, 1, apart ? TDM_ROWS_USED : TDM_ROWS_ALL);
        gather_updated(l, body);
        host_update_end(l, unit);
    } else {
        uint32_t slices = tdm_low_update_slices(l, unit);
        for (uint32_t slice = 0; slice < slices; slice++) {
            tdm_low_update_begin(l, body, unit, slice);
            update(l, body, slice, slices, TDM_ROWS_ALL);
            if (slice + 1 == slices)
                gather_updated(l, body);
            tdm_low_update_end(l, body, unit, slice);
        }
    }
    release_gradient(l, unit);
}
