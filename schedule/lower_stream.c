/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming of units whose home is the host.
 *
 * Weights of layers pass through a ring on the device. An earlier traversal of the nest has listed
 * the layers that bodies will use (streams.h). A visit of a layer reserves free slots for the
 * visits after it and fetches them. A layer that is still in the ring at its next visit (where the
 * forward turns into the backward) is not fetched again. Embedding and head each have a staging
 * buffer, which is filled while a body uses it. Masters and moments pass through rings of their
 * own, in the order of the updates: after an update they go home, and the slot is filled for the
 * next one. Those of embedding and head pass in slices (slices.h). Gradients that stayed at home on
 * the host until the end of the backward are fetched with them; those of embedding and head to
 * buffers of their own.
 */
#include "schedule/lower_parts.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"
#include "schedule/streams.h"

/* ---- weights ---- */

static uint32_t staged(const struct tdm_lowering *l, enum tdm_content content,
                       enum tdm_unit_row row)
{
    return l->layout->staged[content - TDM_UNIT_WEIGHTS][row];
}

static enum tdm_unit_row row_of(const struct tdm_lowering *l, uint32_t unit)
{
    return unit == tdm_model_embedding_unit(l->model) ? TDM_ROW_EMBEDDING : TDM_ROW_HEAD;
}

static bool is_layer(const struct tdm_lowering *l, uint32_t unit)
{
    return unit < l->model->layers;
}

/* Slot of the ring that holds a layer, or TDM_NONE. */
static uint32_t find_layer(const struct tdm_lowering *l, uint32_t layer)
{
    uint32_t slots = l->program->buffers[staged(l, TDM_UNIT_WEIGHTS, TDM_ROW_LAYERS)].slots;
    for (uint32_t slot = 0; slot < slots; slot++)
        if (l->ring.layer[slot] == layer)
            return slot;
    return TDM_NONE;
}

/* The free slot whose reservation ended first, or TDM_NONE. A slot is free if it is reserved only
 * for visits before `visit`. */
static uint32_t free_slot(const struct tdm_lowering *l, uint32_t visit)
{
    uint32_t slots = l->program->buffers[staged(l, TDM_UNIT_WEIGHTS, TDM_ROW_LAYERS)].slots;
    uint32_t best = TDM_NONE;
    for (uint32_t slot = 0; slot < slots; slot++)
        if (l->ring.needed[slot] <= visit &&
            (best == TDM_NONE || l->ring.needed[slot] < l->ring.needed[best]))
            best = slot;
    return best;
}

struct tdm_ref tdm_low_unit_on_device(const struct tdm_lowering *l, enum tdm_content content,
                                      uint32_t unit)
{
    if (content == TDM_UNIT_WEIGHTS ? !tdm_weights_staged(l->program, unit)
                                    : !tdm_home_is_far(l->program, content, unit))
        return tdm_home_of(l->program, content, unit);
    if (!is_layer(l, unit) &&
        (content == TDM_UNIT_WEIGHTS || !tdm_passes_ring(l->program, content, unit)))
        return (struct tdm_ref){staged(l, content, row_of(l, unit)), 0};
    uint32_t ring = staged(l, content, TDM_ROW_LAYERS);
    uint32_t slot = content == TDM_UNIT_WEIGHTS
                        ? find_layer(l, unit)
                        : l->states.update % l->program->buffers[ring].slots;
    return (struct tdm_ref){ring, slot};
}

void tdm_low_reads_weights(struct tdm_lowering *l, uint32_t operand, uint32_t unit,
                           enum tdm_part part)
{
    if (l->lives_only)
        return;
    struct tdm_tag what = tdm_low_tag(TDM_UNIT_WEIGHTS, unit, TDM_NONE);
    tdm_low_access(l, operand, tdm_low_unit_on_device(l, TDM_UNIT_WEIGHTS, unit), 1, TDM_READ, part,
                   what, what, tdm_part_bytes(l->model, unit, part, l->schedule->dtypes.weights));
}

/* Brings a unit's weights from their home to the device. With several ranks that have a part each,
 * each brings its own, and they give them to each other. */
static void fetch_weights(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit,
                          struct tdm_ref to)
{
    const bool sliced = tdm_weights_sliced(l->schedule);
    const struct tdm_ref home = tdm_home_of(l->program, TDM_UNIT_WEIGHTS, unit);
    struct tdm_tag what = tdm_low_tag(TDM_UNIT_WEIGHTS, unit, TDM_NONE);
    struct tdm_body of_unit = *body;
    if (sliced)
        what.share = tdm_rank_share(l->program);
    tdm_low_copy_unit(l, body, home, to, what);
    if (!sliced)
        return;
    of_unit.layer = unit;
    of_unit.chunk = TDM_NONE;
    tdm_low_gather_weights(l, &of_unit, to, TDM_NONE);
}

void tdm_low_visit(struct tdm_lowering *l, const struct tdm_body *body, uint32_t layer)
{
    const struct tdm_layout *layout = l->layout;
    struct tdm_weight_ring *ring = &l->ring;
    if (layer == ring->current)
        return;
    ring->current = layer;
    if (!tdm_weights_staged(l->program, layer))
        return;
    while (ring->next < layout->visit_count) {
        uint32_t due = layout->visits[ring->next];
        uint32_t slot = find_layer(l, due);
        if (slot == TDM_NONE) {
            slot = free_slot(l, ring->visit);
            if (slot == TDM_NONE)
                break;
            fetch_weights(l, body, due,
                          (struct tdm_ref){staged(l, TDM_UNIT_WEIGHTS, TDM_ROW_LAYERS), slot});
            ring->layer[slot] = due;
        }
        ring->needed[slot] = ++ring->next;
    }
    ring->visit++;
}

void tdm_low_stage_weights(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit)
{
    enum tdm_unit_row row = row_of(l, unit);
    if (!tdm_weights_staged(l->program, unit) || l->staged_users[row]++ > 0)
        return;
    struct tdm_ref to = {staged(l, TDM_UNIT_WEIGHTS, row), 0};
    tdm_low_alloc(l, to.buffer);
    fetch_weights(l, body, unit, to);
}

void tdm_low_unstage_weights(struct tdm_lowering *l, uint32_t unit)
{
    enum tdm_unit_row row = row_of(l, unit);
    if (tdm_weights_staged(l->program, unit) && --l->staged_users[row] == 0)
        tdm_low_release(l, staged(l, TDM_UNIT_WEIGHTS, row));
}

/* ---- masters and moments ---- */

/* Where a slice of a content is at home. */
static struct tdm_ref home_of_slice(const struct tdm_lowering *l, enum tdm_content content,
                                    uint32_t unit, uint32_t slice)
{
    struct tdm_ref home = tdm_home_of(l->program, content, unit);
    home.slot += tdm_is_sliced(l->schedule, content, unit) ? slice : 0;
    return home;
}

static void fetch_state(struct tdm_lowering *l, const struct tdm_body *body,
                        enum tdm_content content, uint32_t unit, uint32_t slice, struct tdm_ref to)
{
    struct tdm_tag what =
        tdm_low_tag(content, unit, tdm_is_sliced(l->schedule, content, unit) ? slice : TDM_NONE);
    if (content == TDM_UNIT_GRADIENT)
        what = tdm_low_complete_tag(l, content, unit);
    tdm_low_copy_unit(l, body, home_of_slice(l, content, unit, slice), to, what);
}

/* Fetches the gradient of embedding or head that stayed at home on the host. */
static void fetch_gradient(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit)
{
    if (!tdm_home_is_far(l->program, TDM_UNIT_GRADIENT, unit))
        return;
    struct tdm_ref to = {staged(l, TDM_UNIT_GRADIENT, row_of(l, unit)), 0};
    tdm_low_alloc(l, to.buffer);
    fetch_state(l, body, TDM_UNIT_GRADIENT, unit, 0, to);
}

/* Fetches the part of a tied embedding's gradient that the head made. */
static void fetch_tied_gradient(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit)
{
    const struct tdm_layout *layout = l->layout;
    if (unit != tdm_model_embedding_unit(l->model) || layout->staged_tied == TDM_NONE)
        return;
    tdm_low_alloc(l, layout->staged_tied);
    tdm_low_copy_unit(l, body, (struct tdm_ref){layout->tied_home, 0},
                      (struct tdm_ref){layout->staged_tied, 0},
                      tdm_low_complete_tag(l, TDM_TIED_GRADIENT, unit));
}

/* Does every ring that a unit's state passes through have a free slot for update `number`? */
static bool has_slots(const struct tdm_lowering *l, uint32_t unit, uint32_t number)
{
    for (size_t i = 0; i < TDM_STREAMED_STATES; i++) {
        uint32_t ring = staged(l, tdm_streamed_state(l->schedule, i), TDM_ROW_LAYERS);
        if (tdm_passes_ring(l->program, tdm_streamed_state(l->schedule, i), unit) &&
            number >= l->states.update + l->program->buffers[ring].slots)
            return false;
    }
    return true;
}

/* May state for an update of a unit be fetched now? Rings through which no layer's state passes are
 * closed between the updates of head and embedding. */
static bool may_fetch(const struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit)
{
    return l->states.open &&
           (l->states.layers || tdm_updates_at_end(l->schedule) || body->layer == unit);
}

/* Layers between one that was updated and update `number`, if that is of a layer. */
static uint32_t layers_between(const struct tdm_lowering *l, uint32_t layer, uint32_t number)
{
    const struct tdm_layout *layout = l->layout;
    return number < layout->update_count && is_layer(l, layout->updates[number])
               ? layer - layout->updates[number] - 1
               : 0;
}

/* Does a layer's master stay on the device for a while after its update? In layer-major order the
 * gradients of layers between this one and the next whose state passes are sent to the host, for
 * which the layers below them wait. A master has the fewest bytes of the state, so its slot is soon
 * filled after them. */
static bool keeps_master(const struct tdm_lowering *l, uint32_t unit)
{
    return tdm_low_layer_major(l) && l->schedule->optimizer.on != TDM_DEVICE &&
           !tdm_updates_at_end(l->schedule) && is_layer(l, unit) &&
           tdm_home_is_far(l->program, TDM_UNIT_MASTER, unit) &&
           tdm_has_passing_state(l->program, unit) &&
           layers_between(l, unit, l->states.update + 1) > 0;
}

/* Sends a master that stayed. */
static void send_kept(struct tdm_lowering *l, const struct tdm_body *body)
{
    struct tdm_state_ring *ring = &l->states;
    if (ring->kept == TDM_NONE)
        return;
    const uint32_t row = staged(l, TDM_UNIT_MASTER, TDM_ROW_LAYERS);
    tdm_low_copy_unit(l, body,
                      (struct tdm_ref){row, (ring->update - 1) % l->program->buffers[row].slots},
                      tdm_home_of(l->program, TDM_UNIT_MASTER, ring->kept),
                      tdm_low_sum_tag(TDM_UNIT_MASTER, ring->kept, TDM_NONE, 0));
    ring->kept = TDM_NONE;
}

/* Fetches the next content for an update. False: there is no free slot, or nothing is left. */
static bool fetch_next(struct tdm_lowering *l, const struct tdm_body *body)
{
    const struct tdm_layout *layout = l->layout;
    struct tdm_state_ring *ring = &l->states;
    while (ring->next < layout->update_count) {
        uint32_t unit = layout->updates[ring->next], slice = 0;
        while (slice < ring->next && layout->updates[ring->next - slice - 1] == unit)
            slice++;
        if (!may_fetch(l, body, unit) || (ring->content == 0 && !has_slots(l, unit, ring->next)))
            return false;
        for (; ring->content < TDM_STREAMED_STATES; ring->content++) {
            enum tdm_content content = tdm_streamed_state(l->schedule, ring->content);
            uint32_t row = staged(l, content, TDM_ROW_LAYERS);
            if (!tdm_passes_ring(l->program, content, unit))
                continue;
            if (content == TDM_UNIT_MASTER)
                send_kept(l, body);
            fetch_state(l, body, content, unit, slice,
                        (struct tdm_ref){row, ring->next % l->program->buffers[row].slots});
            ring->content++;
            return true;
        }
        ring->content = 0;
        ring->next++;
    }
    return false;
}

/* Fills all slots of the rings that completed updates have left free. */
static void fetch_states(struct tdm_lowering *l, const struct tdm_body *body)
{
    while (fetch_next(l, body))
        ;
}

/* Is a master due whose slot has one that stays? */
static bool waits_for_kept(const struct tdm_lowering *l)
{
    return l->states.kept != TDM_NONE &&
           tdm_streamed_state(l->schedule, l->states.content) == TDM_UNIT_MASTER;
}

/* A fetch waits until the old contents of its slot are home, and blocks the lane of fetches until
 * then. So contents are fetched one by one, spread over the bodies before the next update; not over
 * those that make K and V alone, which take little time. */
void tdm_low_stream_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    struct tdm_state_ring *ring = &l->states;
    uint64_t bodies = l->rank_chunks;
    if (body->phase != TDM_BACKWARD || tdm_updates_at_end(l->schedule))
        return;
    if (l->schedule->order == TDM_CHUNK_MAJOR)
        bodies *= l->schedule->groups[body->group].layers;
    uint64_t due = (uint64_t)++ring->bodies * (TDM_STREAMED_STATES + 1) / bodies;
    if (ring->kept != TDM_NONE &&
        ring->bodies > bodies * layers_between(l, ring->kept, ring->update))
        send_kept(l, body);
    while (ring->fetched < due && !waits_for_kept(l) && fetch_next(l, body))
        ring->fetched++;
}

static void send_home(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_content content,
                      uint32_t unit, uint32_t slice)
{
    uint32_t number = tdm_is_sliced(l->schedule, content, unit) ? slice : TDM_NONE;
    struct tdm_tag what = tdm_low_sum_tag(content, unit, number, 0);
    bool weights = content == TDM_UNIT_WEIGHTS;
    if (weights && tdm_weights_sliced(l->schedule))
        what.share = tdm_rank_share(l->program);
    if (weights ? tdm_weights_staged(l->program, unit) : tdm_home_is_far(l->program, content, unit))
        tdm_low_copy_unit(l, body, tdm_low_unit_on_device(l, content, unit),
                          home_of_slice(l, content, unit, slice), what);
}

static void open_rings(struct tdm_lowering *l)
{
    for (size_t i = 0; i < TDM_STREAMED_STATES; i++)
        tdm_low_alloc(l, staged(l, tdm_streamed_state(l->schedule, i), TDM_ROW_LAYERS));
    l->states.open = true;
}

static void close_rings(struct tdm_lowering *l)
{
    for (size_t i = 0; i < TDM_STREAMED_STATES; i++)
        tdm_low_release(l, staged(l, tdm_streamed_state(l->schedule, i), TDM_ROW_LAYERS));
    l->states.open = false;
}

/* Have all layers gone backward, and all updates been made that need the rings? */
static bool nothing_passes(const struct tdm_lowering *l)
{
    return l->states.layers_ended && l->states.update == l->layout->update_count;
}

uint32_t tdm_low_update_slices(const struct tdm_lowering *l, uint32_t unit)
{
    return tdm_has_passing_state(l->program, unit) ? tdm_slice_count(l->schedule, unit) : 1;
}

void tdm_low_update_begin(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit,
                          uint32_t slice)
{
    if (!is_layer(l, unit) && slice == 0) {
        tdm_low_stage_weights(l, body, unit);
        fetch_gradient(l, body, unit);
        fetch_tied_gradient(l, body, unit);
    }
    if (tdm_has_passing_state(l->program, unit)) {
        if (slice == 0)
            send_kept(l, body);
        if (!l->states.open)
            open_rings(l);
        fetch_states(l, body);
    }
    if (is_layer(l, unit))
        tdm_low_visit(l, body, unit);
}

void tdm_low_update_end(struct tdm_lowering *l, const struct tdm_body *body, uint32_t unit,
                        uint32_t slice)
{
    bool far = tdm_has_passing_state(l->program, unit), at_end = tdm_updates_at_end(l->schedule);
    bool last = slice + 1 == tdm_low_update_slices(l, unit);
    if (last)
        send_home(l, body, TDM_UNIT_WEIGHTS, unit, 0);
    if (far)
        l->states.kept = keeps_master(l, unit) ? unit : TDM_NONE;
    for (size_t i = 0;
         i < TDM_STREAMED_STATES && tdm_streamed_state(l->schedule, i) != TDM_UNIT_GRADIENT; i++)
        if (l->states.kept != unit || tdm_streamed_state(l->schedule, i) != TDM_UNIT_MASTER)
            send_home(l, body, tdm_streamed_state(l->schedule, i), unit, slice);
    if (far) {
        l->states.update++;
        l->states.bodies = l->states.fetched = 0;
        if (at_end) /* no bodies of layers run between updates */
            fetch_states(l, body);
        else if (last && (!l->states.layers || nothing_passes(l)))
            close_rings(l);
    }
    if (is_layer(l, unit) || !last)
        return;
    tdm_low_unstage_weights(l, unit);
    if (tdm_home_is_far(l->program, TDM_UNIT_GRADIENT, unit))
        tdm_low_release(l, staged(l, TDM_UNIT_GRADIENT, row_of(l, unit)));
    if (unit == tdm_model_embedding_unit(l->model))
        tdm_low_release(l, l->layout->staged_tied);
}

/* ---- phases ---- */

void tdm_low_open_states(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (!l->states.layers && !tdm_updates_at_end(l->schedule))
        return;
    if (!l->states.open)
        open_rings(l);
    fetch_states(l, body);
}

void tdm_low_end_layers(struct tdm_lowering *l)
{
    l->states.layers_ended = true;
    if (l->states.open && nothing_passes(l))
        close_rings(l);
}

void tdm_low_stream_phase(struct tdm_lowering *l, const struct tdm_body *body, bool begin)
{
    bool forward = body->phase == TDM_FORWARD;
    for (uint32_t layer = 0; forward && begin && layer < l->model->layers; layer++)
        l->states.layers |=
            tdm_has_passing_state(l->program, layer) && !tdm_updates_on_host(l->schedule, layer);
    if (forward && begin)
        l->states.kept = TDM_NONE;
    if (forward && begin)
        for (uint32_t slot = 0; slot < TDM_MAX_RING; slot++)
            l->ring.layer[slot] = TDM_NONE;
    enum tdm_phase last = l->schedule->pass == TDM_EVALUATE ? TDM_FORWARD
                          : tdm_updates_at_end(l->schedule) ? TDM_OPTIMIZER_PHASE
                                                            : TDM_BACKWARD;
    /* updates on the host do not use the ring */
    bool host = l->schedule->pass == TDM_TRAIN && l->schedule->optimizer.on != TDM_DEVICE;
    if (begin && forward)
        tdm_low_alloc(l, staged(l, TDM_UNIT_WEIGHTS, TDM_ROW_LAYERS));
    if (!begin && body->phase == (host ? TDM_BACKWARD : last))
        tdm_low_release(l, staged(l, TDM_UNIT_WEIGHTS, TDM_ROW_LAYERS));
    if (forward || body->phase != last) /* no updates in this phase */
        return;
    /* in layer-major order no layer runs backward before the head is done */
    if (begin && (tdm_updates_at_end(l->schedule) || !tdm_low_layer_major(l)))
        tdm_low_open_states(l, body);
    if (!begin && tdm_updates_at_end(l->schedule))
        close_rings(l);
}
