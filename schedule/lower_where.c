/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a body reads and writes its values, by what the schedule keeps and holds, and the copies
 * that fetch them ahead of their use.
 */
#include "schedule/lower_parts.h"

bool tdm_low_layer_major(const struct tdm_lowering *l)
{
    return l->schedule->order == TDM_LAYER_MAJOR;
}

bool tdm_low_streams_x(const struct tdm_lowering *l)
{
    return tdm_low_layer_major(l) || l->schedule->pass == TDM_EVALUATE;
}

bool tdm_low_first_of_group(const struct tdm_lowering *l, uint32_t layer)
{
    return layer == 0 || l->layout->group_of[layer] != l->layout->group_of[layer - 1];
}

bool tdm_low_top_of_group(const struct tdm_lowering *l, uint32_t layer)
{
    return layer + 1 == l->model->layers || tdm_low_first_of_group(l, layer + 1);
}

struct tdm_ref tdm_low_stream_ref(const struct tdm_lowering *l, uint32_t chunk)
{
    return (struct tdm_ref){l->layout->stream,
                            l->layout->stream_slots == 1 ? 0 : l->program->chunks[chunk].slot};
}

static struct tdm_ref input_ref(const struct tdm_lowering *l, uint32_t group, uint32_t chunk)
{
    return (struct tdm_ref){l->layout->input[group], l->program->chunks[chunk].slot};
}

/* What a layer holds of a chunk: in one of the two buffers that have the chunks from `from` on. */
static struct tdm_ref held_ref(const struct tdm_lowering *l, uint32_t held, uint32_t near,
                               uint32_t layer, uint32_t chunk, uint32_t from)
{
    const struct tdm_group *group = &l->schedule->groups[l->layout->group_of[layer]];
    const uint32_t border = tdm_held_near_from(group, l->program->chunk_count);
    if (!tdm_low_layer_major(l))
        return (struct tdm_ref){held, 0};
    if (near != TDM_NONE && l->program->chunks[chunk].place >= border)
        return (struct tdm_ref){near,
                                tdm_rank_slot(l->program, chunk, border > from ? border : from)};
    return (struct tdm_ref){held, tdm_rank_slot(l->program, chunk, from)};
}

static struct tdm_ref held_input_ref(const struct tdm_lowering *l, uint32_t layer, uint32_t chunk)
{
    if (l->layout->held_input_near[layer] == TDM_NONE) /* all chunks have a slot in one buffer */
        return (struct tdm_ref){l->layout->held_input[layer],
                                tdm_low_layer_major(l) ? l->program->chunks[chunk].slot : 0};
    return held_ref(l, l->layout->held_input[layer], l->layout->held_input_near[layer], layer,
                    chunk, 0);
}

struct tdm_ref tdm_low_stored_x(const struct tdm_lowering *l, const struct tdm_body *body)
{
    bool first = tdm_low_first_of_group(l, body->layer);
    if (body->layer == 0)
        return tdm_nowhere;
    if (body->pass != TDM_PASS_FIRST)
        return first ? input_ref(l, body->group, body->chunk)
                     : held_input_ref(l, body->layer, body->chunk);
    if (!first)
        return tdm_nowhere;
    struct tdm_ref input = input_ref(l, body->group, body->chunk);
    /* in layer-major order the stream still holds what was copied to the host */
    return tdm_low_layer_major(l) && tdm_low_is_far(l, input.buffer) ? tdm_nowhere : input;
}

/* The home of a store of a body's chunk, if it is kept or held; else tdm_nowhere. */
static struct tdm_ref home_of(const struct tdm_lowering *l, const struct tdm_body *body,
                              enum tdm_store store)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    const struct tdm_group *group = &l->schedule->groups[body->group];
    if (tdm_store_kept(l->program, store, layer, chunk))
        return (struct tdm_ref){l->layout->kept[store][layer],
                                tdm_rank_slot(l->program, chunk, group->kept_from_chunk)};
    if (body->pass != TDM_PASS_FIRST && tdm_store_held(l->program, store, layer, chunk))
        return held_ref(l, l->layout->held[store][layer], l->layout->held_near[store][layer], layer,
                        chunk, group->held_from_chunk);
    return tdm_nowhere;
}

bool tdm_low_is_there(const struct tdm_lowering *l, const struct tdm_body *body,
                      enum tdm_store store)
{
    if (body->pass == TDM_PASS_FIRST)
        return false;
    if (tdm_store_kept(l->program, store, body->layer, body->chunk))
        return true;
    return body->kind == TDM_BODY_BACKWARD &&
           tdm_store_held(l->program, store, body->layer, body->chunk);
}

struct tdm_ref tdm_low_source(const struct tdm_lowering *l, const struct tdm_pending *pending,
                              enum tdm_store store)
{
    struct tdm_ref home = home_of(l, &pending->body, store);
    return tdm_low_is_far(l, home.buffer) ? pending->fetched[store] : home;
}

struct tdm_ref tdm_low_target(struct tdm_lowering *l, const struct tdm_body *body,
                              enum tdm_store store, bool *work)
{
    struct tdm_ref home = home_of(l, body, store);
    *work = home.buffer == TDM_NONE;
    if (*work) {
        tdm_low_alloc_work(l, tdm_store_type(store)->content);
        return tdm_low_work(l, tdm_store_type(store)->content);
    }
    if (!tdm_low_is_far(l, home.buffer))
        return home;
    return tdm_low_next_slot(l, l->layout->stashed[store], &l->next_stashed[store]);
}

void tdm_low_stash(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_store store,
                   struct tdm_ref at)
{
    struct tdm_ref home = home_of(l, body, store);
    if (tdm_low_is_far(l, home.buffer))
        tdm_low_copy(l, body, at, home,
                     tdm_low_tag(tdm_store_type(store)->content, body->layer, body->chunk));
}

/* ---- fetches ---- */

bool tdm_low_makes_ahead(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return body->kind == TDM_BODY_KV && body->pass == TDM_PASS_BACKWARD &&
           tdm_nest_kv_ahead(l->schedule, l->whole_row, body->layer);
}

void tdm_low_fetch(struct tdm_lowering *l, struct tdm_pending *pending, uint64_t read,
                   uint64_t made)
{
    const struct tdm_body *body = &pending->body;
    pending->fetched_x = tdm_nowhere;
    for (int store = 0; store < TDM_STORES; store++)
        pending->fetched[store] = tdm_nowhere;
    if (read == 0)
        return;

    struct tdm_ref x = tdm_low_stored_x(l, body);
    if ((read & TDM_BIT(TDM_X)) != 0 && tdm_low_is_far(l, x.buffer)) {
        pending->fetched_x = tdm_low_makes_ahead(l, body)
                                 ? (struct tdm_ref){l->layout->ahead_x, 0}
                                 : tdm_low_next_slot(l, l->layout->fetched_x, &l->next_fetched_x);
        tdm_low_copy(l, body, x, pending->fetched_x, tdm_low_tag(TDM_X, body->layer, body->chunk));
    }
    for (int i = 0; i < TDM_STORES; i++) {
        enum tdm_store store = (enum tdm_store)i;
        struct tdm_ref home = home_of(l, body, store);
        enum tdm_content content = tdm_store_type(store)->content;
        if ((read & ~made & TDM_BIT(content)) == 0 || !tdm_low_is_far(l, home.buffer))
            continue;
        pending->fetched[store] =
            tdm_low_next_slot(l, l->layout->fetched[store], &l->next_fetched[store]);
        tdm_low_copy(l, body, home, pending->fetched[store],
                     tdm_low_tag(content, body->layer, body->chunk));
    }
}

struct tdm_ref tdm_low_output_of(struct tdm_lowering *l, const struct tdm_body *body,
                                 struct tdm_ref *home)
{
    uint32_t next = body->layer + 1;
    *home = tdm_nowhere;
    if (next == l->model->layers)
        return body->pass == TDM_PASS_FIRST || !tdm_low_layer_major(l)
                   ? tdm_low_stream_ref(l, body->chunk)
                   : tdm_nowhere;
    struct tdm_ref target = tdm_nowhere;
    if (body->pass == TDM_PASS_RERUN)
        target = held_input_ref(l, next, body->chunk);
    else if (tdm_low_top_of_group(l, body->layer))
        target = input_ref(l, body->group + 1, body->chunk);

    if (target.buffer == TDM_NONE) /* inside a group, in the first forward */
        return tdm_low_streams_x(l) ? tdm_low_stream_ref(l, body->chunk) : tdm_low_work(l, TDM_X);
    if (!tdm_low_is_far(l, target.buffer))
        return target;
    *home = target;
    if (body->pass == TDM_PASS_FIRST && tdm_low_layer_major(l))
        return tdm_low_stream_ref(l, body->chunk); /* the next layer reads it there */
    return tdm_low_next_slot(l, l->layout->stashed_x, &l->next_stashed_x);
}
