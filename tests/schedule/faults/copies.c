/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of copies, and of rows in which chunks move. */
#include "tests/schedule/faults/trial.h"

#include "ops/move.h"
#include "schedule/tags.h"

/* Several ranks store the normed input twice, once for each part of a body: either copy will do. */
static bool is_stored_twice(struct trial *t, size_t i)
{
    return op_at(t, i)->access[TDM_COPY_TO].after.content == TDM_NORMED && t->r.program.ranks > 1;
}

static bool copy_dropped(struct trial *t, enum tdm_lane lane)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == lane && !is_stored_twice(t, i) &&
            leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO])) {
            tdm_recording_remove(&t->r, i);
            return true;
        }
    return false;
}

static bool fetch_dropped(struct trial *t)
{
    return copy_dropped(t, TDM_LANE_H2D);
}

static bool stash_dropped(struct trial *t)
{
    return copy_dropped(t, TDM_LANE_D2H);
}

static bool fetch_after_use(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        const struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
        size_t reader = next_reader(t, i + 1, to->buffer, to->first_slot);
        if (reader < t->r.count) {
            move(t, i, reader + 1);
            return true;
        }
    }
    return false;
}

static bool fetch_before_stored(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        const struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM];
        for (size_t j = i; j-- > 0;)
            if (is_op(t, j, TDM_OP_COPY) && op_at(t, j)->lane == TDM_LANE_D2H &&
                covers(&op_at(t, j)->access[TDM_COPY_TO], from->buffer, from->first_slot)) {
                if (!leaves_a_trace(t, j, &op_at(t, j)->access[TDM_COPY_TO]))
                    break;
                move(t, i, j);
                return true;
            }
    }
    return false;
}

static bool fetch_destinations_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count)
            continue;
        struct tdm_access *one = &op_at(t, i)->access[TDM_COPY_TO],
                          *other = &op_at(t, j)->access[TDM_COPY_TO];
        if (one->first_slot == other->first_slot || same_tag(one->after, other->after))
            continue;
        swap_slots(one, other);
        return true;
    }
    return false;
}

static bool fetch_sources_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count ||
            op_at(t, i)->access[TDM_COPY_FROM].buffer !=
                op_at(t, j)->access[TDM_COPY_FROM].buffer ||
            op_at(t, i)->access[TDM_COPY_FROM].first_slot ==
                op_at(t, j)->access[TDM_COPY_FROM].first_slot)
            continue;
        swap_slots(&op_at(t, i)->access[TDM_COPY_FROM], &op_at(t, j)->access[TDM_COPY_FROM]);
        return true;
    }
    return false;
}

/* Two fetches in the wrong order. Each is correct except for its destination. */
static bool fetches_swapped(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i) || !leaves_a_trace(t, i, &op_at(t, i)->access[TDM_COPY_TO]))
            continue;
        size_t j = next_fetch(t, i);
        if (j == t->r.count)
            continue;
        struct tdm_op one = *op_at(t, i), other = *op_at(t, j);
        const struct tdm_access *to = &one.access[TDM_COPY_TO];
        if (same_tag(to->after, other.access[TDM_COPY_TO].after) ||
            to->first_slot == other.access[TDM_COPY_TO].first_slot ||
            next_reader(t, i, to->buffer, to->first_slot) < j)
            continue;
        *op_at(t, i) = other;
        *op_at(t, j) = one;
        op_at(t, i)->number = one.number;
        op_at(t, j)->number = other.number;
        swap_slots(&op_at(t, i)->access[TDM_COPY_TO], &op_at(t, j)->access[TDM_COPY_TO]);
        return true;
    }
    return false;
}

static bool copy_of_another_chunk(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_COPY))
            continue;
        struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                          *to = &op_at(t, i)->access[TDM_COPY_TO];
        const struct tdm_buffer *buffer = buffer_at(t, from->buffer);
        if (buffer->slots == 1)
            continue;
        uint32_t slot = another(t, buffer->slots, from->first_slot);
        struct tdm_tag what = held(t, i, from->buffer, slot, from->part);
        if (tdm_tag_same(what, from->before)) /* a value that was made twice */
            continue;
        from->first_slot = slot;
        from->before = from->after = to->after = what;
        return true;
    }
    return false;
}

static bool copy_cut_short(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->access[TDM_COPY_FROM].bytes > 4) {
            op_at(t, i)->access[TDM_COPY_FROM].bytes -= 4;
            op_at(t, i)->access[TDM_COPY_TO].bytes -= 4;
            return true;
        }
    return false;
}

static bool operand_cut_short(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION)) {
            op_at(t, i)->access[TDM_ATTENTION_KV].bytes /= 2;
            return true;
        }
    return false;
}

static bool cost_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_PRODUCT)) {
            op_at(t, i)->flops /= 2;
            return true;
        }
    return false;
}

static bool bytes_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (t->r.items[i].item.kind == TDM_RUN) {
            op_at(t, i)->bytes++;
            return true;
        }
    return false;
}

static bool attends_by_lists(const struct tdm_op *op)
{
    return op->access[TDM_ATTENTION_LISTS].buffer != TDM_NONE;
}

/* One pair too many in layers that see a range, no pairs where there are lists. FLOPs follow. */
static bool pairs_forged(struct trial *t)
{
    const struct tdm_model *model = t->r.program.schedule->model;
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION)) {
            struct tdm_op *op = op_at(t, i);
            op->pairs = attends_by_lists(op) ? 0 : op->pairs + 1;
            op->flops = 4 * (uint64_t)model->query_heads * model->head_dim * op->pairs;
            return true;
        }
    return false;
}

static bool keys_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION) && !attends_by_lists(op_at(t, i))) {
            op_at(t, i)->keys--;
            return true;
        }
    return false;
}

static bool kv_heads_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION)) {
            op_at(t, i)->kv_heads++;
            return true;
        }
    return false;
}

/* Fewer bytes than the chunk's own pages. */
static bool gathering_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION_GRAD) && op_at(t, i)->fetched_bytes > 0) {
            op_at(t, i)->fetched_bytes = 1;
            return true;
        }
    return false;
}

static bool sending_forged(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION_GRAD) && op_at(t, i)->fetched_bytes > 0) {
            op_at(t, i)->sent_bytes += 8;
            return true;
        }
    return false;
}

/* Attention that gathers runs before the copy of K and V to their home. */
static bool gathered_too_early(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_op(t, i, TDM_OP_ATTENTION) || op_at(t, i)->fetched_bytes == 0)
            continue;
        for (size_t j = i; j-- > 0;)
            if (is_op(t, j, TDM_OP_COPY) && op_at(t, j)->lane == TDM_LANE_D2H &&
                covers(&op_at(t, i)->access[TDM_ATTENTION_KV],
                       op_at(t, j)->access[TDM_COPY_TO].buffer,
                       op_at(t, j)->access[TDM_COPY_TO].first_slot)) {
                move(t, j, i + 1);
                return true;
            }
    }
    return false;
}

static bool copy_lane_reversed(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY)) {
            struct tdm_op *op = op_at(t, i);
            op->lane = op->lane == TDM_LANE_H2D ? TDM_LANE_D2H : TDM_LANE_H2D;
            return true;
        }
    return false;
}

static bool copy_over_another_link(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->link != TDM_NO_LINK) {
            struct tdm_op *op = op_at(t, i);
            op->link = op->link == TDM_LINK_H2D ? TDM_LINK_D2H : TDM_LINK_H2D;
            return true;
        }
    return false;
}

static bool gather_over_another_link(struct trial *t)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_ATTENTION) && op_at(t, i)->gathers) {
            op_at(t, i)->link = TDM_LINK_D2H;
            return true;
        }
    return false;
}

static bool compute_on_the_host(struct trial *t)
{
    for (EACH_ITEM(t, i)) {
        if (!is_fetch(t, i))
            continue;
        const struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                                *to = &op_at(t, i)->access[TDM_COPY_TO];
        size_t j = next_reader(t, i + 1, to->buffer, to->first_slot);
        if (j == t->r.count)
            continue;
        for (uint32_t a = 0; a < op_at(t, j)->access_count; a++) {
            struct tdm_access *access = &op_at(t, j)->access[a];
            if (covers(access, to->buffer, to->first_slot)) {
                access->buffer = from->buffer;
                access->first_slot = from->first_slot;
                return true;
            }
        }
    }
    return false;
}

/* A copy of a content within its row, or the number of items if there is none. */
static size_t some_move(struct trial *t, enum tdm_content content)
{
    for (EACH_ITEM(t, i))
        if (is_op(t, i, TDM_OP_COPY) && op_at(t, i)->lane == TDM_LANE_COMPUTE &&
            op_at(t, i)->access[TDM_COPY_FROM].before.content == content)
            return i;
    return t->r.count;
}

static bool move_dropped(struct trial *t, enum tdm_content content)
{
    size_t i = some_move(t, content);
    if (i < t->r.count)
        tdm_recording_remove(&t->r, i);
    return i < t->r.count;
}

static bool kv_move_dropped(struct trial *t)
{
    return move_dropped(t, TDM_KVPAGES);
}

static bool dkv_move_dropped(struct trial *t)
{
    return move_dropped(t, TDM_DKVPAGES);
}

/* The move runs after the op that reads its destination. */
static bool move_after_its_use(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    const struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
    size_t j = next_reader(t, i + 1, to->buffer, to->first_slot);
    move(t, i, j + 1);
    return true;
}

/* The tags are those of a lowering that picks the wrong chunk to move. */
static bool move_from_another_slot(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_op *op = op_at(t, i);
    struct tdm_access *from = &op->access[TDM_COPY_FROM], *to = &op->access[TDM_COPY_TO];
    from->first_slot =
        another(t, buffer_at(t, from->buffer)->slots - from->slots + 1, from->first_slot);
    from->before = from->after = to->after = held(t, i, from->buffer, from->first_slot, 0);
    op->layer = from->before.layer;
    op->chunk = from->before.chunk;
    return true;
}

static bool move_to_another_slot(struct trial *t)
{
    size_t i = some_move(t, TDM_KVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_access *to = &op_at(t, i)->access[TDM_COPY_TO];
    to->first_slot = another(t, buffer_at(t, to->buffer)->slots - to->slots + 1, to->first_slot);
    return true;
}

static bool sums_of_another_contributor(struct trial *t)
{
    size_t i = some_move(t, TDM_DKVPAGES);
    if (i == t->r.count)
        return false;
    struct tdm_access *from = &op_at(t, i)->access[TDM_COPY_FROM],
                      *to = &op_at(t, i)->access[TDM_COPY_TO];
    from->before.contributor = from->after.contributor = to->after.contributor =
        from->before.contributor - 1;
    return true;
}

const struct fault faults_of_copies[] = {
    {.name = "a fetch dropped", .plant = fetch_dropped},
    {.name = "a copy to the host dropped", .plant = stash_dropped},
    {.name = "a fetch after its use", .plant = fetch_after_use},
    {.name = "a fetch before its source is stored", .plant = fetch_before_stored},
    {.name = "two fetches, destinations swapped", .plant = fetch_destinations_swapped},
    {.name = "two fetches, sources swapped", .plant = fetch_sources_swapped},
    {.name = "two fetches swapped", .plant = fetches_swapped},
    {.name = "a copy of another chunk", .plant = copy_of_another_chunk},
    {.name = "a copy on the wrong lane", .plant = copy_lane_reversed},
    {.name = "a copy over another link", .plant = copy_over_another_link},
    {.name = "pages gathered over another link",
     .plant = gather_over_another_link,
     .of_cost = true},
    {.name = "a copy cut short", .plant = copy_cut_short},
    {.name = "an operand cut short", .plant = operand_cut_short},
    {.name = "FLOPs forged", .plant = cost_forged, .of_cost = true},
    {.name = "bytes forged", .plant = bytes_forged, .of_cost = true},
    {.name = "pairs forged", .plant = pairs_forged, .of_cost = true},
    {.name = "keys forged", .plant = keys_forged, .of_cost = true},
    {.name = "KV heads forged", .plant = kv_heads_forged, .of_cost = true},
    {.name = "the bytes of a gathering forged", .plant = gathering_forged, .of_cost = true},
    {.name = "the bytes that a gathering sends forged", .plant = sending_forged, .of_cost = true},
    {.name = "K, V gathered before they are at home", .plant = gathered_too_early},
    {.name = "an op on a host buffer", .plant = compute_on_the_host},
    {.name = "a move of K, V dropped", .plant = kv_move_dropped},
    {.name = "a move of dK, dV dropped", .plant = dkv_move_dropped},
    {.name = "a move of K, V after its use", .plant = move_after_its_use},
    {.name = "a move from another slot, tags too", .plant = move_from_another_slot},
    {.name = "a move to another slot", .plant = move_to_another_slot},
    {.name = "a move of dK, dV with one addition more", .plant = sums_of_another_contributor},
    {0},
};
