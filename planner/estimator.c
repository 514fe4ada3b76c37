/* SPDX-License-Identifier: Apache-2.0 */
/* An estimator: its memory, sizes of slots, and all that is found once for a step. */
#include "planner/estimate_lanes.h"
#include "planner/estimate_parts.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/scratch.h"

#include <stdlib.h>
#include <string.h>

static void note_sizes(struct tdm_estimator *e)
{
    const struct tdm_schedule *base = e->base;
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++)
        tokens = larger(tokens, smaller(base->sequences[s].tokens, base->chunk_tokens));
    e->longest_tokens = tokens;
    e->x = tdm_content_bytes(base, TDM_X, 0, tokens);
    for (int store = 0; store < TDM_STORES; store++)
        e->store[store] =
            tdm_content_bytes(base, tdm_store_type((enum tdm_store)store)->content, 0, tokens);
    for (int set = 0; set < TDM_SETS; set++)
        for (int store = 0; store < TDM_STORES; store++)
            e->set[set] +=
                tdm_set_has((enum tdm_set)set, (enum tdm_store)store) ? e->store[store] : 0;
    /* where heads are normed, q also has its product */
    for (unsigned bits = 0; bits < 1u << TDM_STORES; bits++)
        for (int store = 0; store < TDM_STORES; store++) {
            const uint64_t bytes = bits >> store & 1 ? e->store[store] : 0;
            e->store_sums[0][bits] += bytes;
            e->store_sums[1][bits] += store == TDM_STORE_Q ? 2 * bytes : bytes;
        }
    e->kv = tdm_content_bytes(base, TDM_KVPAGES, 0, tokens);
    e->dkv = tdm_content_bytes(base, TDM_DKVPAGES, 0, tokens);
    e->lists = tdm_content_bytes(base, TDM_PAGE_LISTS, 0, tokens);
    e->means = tdm_content_bytes(base, TDM_PAGE_MEANS, 0, tokens);
}

static uint64_t logit_bytes(const struct tdm_estimator *e, uint64_t tile_tokens)
{
    uint64_t tokens = smaller(tile_tokens, e->base->chunk_tokens);
    uint64_t bytes = tdm_content_bytes(e->base, TDM_LOGIT_TILE, 0, tokens);
    if (tdm_vocabulary_tiles(e->base) == 1)
        return bytes;
    bytes = tdm_size_add(bytes, tdm_content_bytes(e->base, TDM_HEAD_LSE, 0, tokens));
    return e->base->pass == TDM_EVALUATE
               ? bytes
               : tdm_size_add(bytes, tdm_content_bytes(e->base, TDM_HEAD_SUM, 0, tokens));
}

static void note_logits(struct tdm_estimator *e)
{
    uint64_t tokens = e->base->head_tile_tokens;
    for (uint32_t i = 0; i < LOGIT_TILES; i++, tokens = (tokens + 1) / 2)
        e->logits[i] = logit_bytes(e, tokens);
}

/* Workspace for gathered pages, with K and V of all layers on the host, beyond that of the base. */
static void find_gather_work(struct tdm_estimator *e)
{
    struct tdm_group all = {.layers = e->layers, .kv = TDM_KV_KEEP, .kv_place = e->far};
    struct tdm_schedule far = *e->base;
    far.order = TDM_CHUNK_MAJOR;
    far.groups = &all;
    far.group_count = 1;
    const uint64_t bytes = tdm_scratch_bytes(&far, e->longest_tokens);
    const uint64_t base_bytes = tdm_scratch_bytes(e->base, e->longest_tokens);
    e->gather_work = bytes > base_bytes ? bytes - base_bytes : 0;
}

static void note_votes(struct tdm_estimator *e)
{
    for (uint32_t layer = 0; layer < e->layers; layer++) {
        struct tdm_page_rule rule = tdm_schedule_page_rule(e->base, layer);
        e->votes_below[layer + 1] =
            e->votes_below[layer] + (rule.selector.kind == TDM_SELECT_TOP_K);
    }
}

static bool take_sums(struct tdm_estimator *e, const struct tdm_schedule *base, uint64_t chunks)
{
    const struct tdm_model *model = base->model;
    size_t count = (size_t)model->layers + 1;
    e->tokens_before = calloc((size_t)chunks + 1, sizeof(double));
    e->sweeps = calloc(count, sizeof(*e->sweeps));
    e->kv_ahead = calloc(count, sizeof(*e->kv_ahead));
    bool complete = e->tokens_before != NULL && e->sweeps != NULL && e->kv_ahead != NULL;
    complete &= (e->memory = tdm_lanes_new(base, (uint32_t)chunks)) != NULL;
    complete &= (e->passing_below = calloc(count, sizeof(uint64_t))) != NULL;
    complete &= (e->votes_below = calloc(count, sizeof(uint64_t))) != NULL;
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        complete &= (e->staying_below[place] = calloc(count, sizeof(uint64_t))) != NULL;
    return complete;
}

enum tdm_status tdm_estimator_new(const struct tdm_schedule *base, struct tdm_estimator **out,
                                  struct tdm_error *err)
{
    return tdm_estimator_new_like(base, false, NULL, out, err);
}

enum tdm_status tdm_estimator_new_like(const struct tdm_schedule *base, bool untimed,
                                       const struct tdm_estimator *like, struct tdm_estimator **out,
                                       struct tdm_error *err)
{
    uint64_t chunks = 0;
    for (uint32_t s = 0; s < base->sequence_count; s++)
        chunks = tdm_size_add(chunks, tdm_estimator_chunks_of(base, s));
    if (chunks > UINT32_MAX / 2)
        return tdm_fail(err, TDM_INPUT, "%llu chunks in a step", (unsigned long long)chunks);
    enum tdm_status status = TDM_OK;
    uint32_t *class_list = NULL;
    uint64_t *lengths = calloc((size_t)base->sequence_count * 2 + 2, sizeof(*lengths));
    struct tdm_estimator *e = calloc(1, sizeof(*e));
    if (lengths == NULL || e == NULL || !take_sums(e, base, chunks)) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
        goto done;
    }
    e->own = *base;
    e->base = &e->own;
    e->untimed = untimed;
    e->layers = base->model->layers;
    e->chunks = (uint32_t)chunks;
    e->far = tdm_far_place(base);
    note_sizes(e);
    note_logits(e);
    note_votes(e);
    if (!tdm_estimator_note_units(e)) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for estimates");
        goto done;
    }
    tdm_estimator_note_homes(e);
    find_gather_work(e);
    status = tdm_estimator_walk_chunks(e, lengths, &class_list, err);
    if (status == TDM_OK)
        status = tdm_estimator_count_classes(e, class_list, err);
    if (status == TDM_OK)
        status = tdm_estimator_find_costs(e, like, lengths, err);
    if (status == TDM_OK)
        status = tdm_estimator_sum_layers(e, class_list, err);
    if (status == TDM_OK) {
        uint64_t states[TDM_MAX_PLACES] = {0};
        tdm_estimator_add_states(e, states);
        for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
            e->stateless_bytes[place] = e->resident_bytes[place] - states[place];
    }

done:
    free(class_list);
    free(lengths);
    if (status == TDM_OK)
        *out = e;
    else
        tdm_estimator_free(e);
    return status;
}

void tdm_estimator_free(struct tdm_estimator *e)
{
    if (e == NULL)
        return;
    for (int state = 0; state < TDM_STATES; state++) {
        free(e->unit_bytes[state]);
        free(e->slice_bytes[state]);
        free(e->home_bytes[state]);
    }
    free(e->gradient_bytes);
    free(e->chunk_list);
    free(e->tokens_before);
    free(e->sweeps);
    free(e->kv_ahead);
    free(e->chunk_at);
    tdm_lanes_free(e->memory);
    free(e->slices);
    free(e->far_updates);
    free(e->near_updates);
    free(e->passing_below);
    free(e->votes_below);
    for (int place = 0; place < (int)TDM_MAX_PLACES; place++)
        free(e->staying_below[place]);
    free(e->class_before);
    free(e->costs);
    free(e->row_of);
    free(e->costs_before);
    free(e->kind_of);
    free(e->attention_before);
    free(e->attention_grad_seconds);
    free(e->seen_chunks);
    free(e->gathered_before);
    free(e->moves);
    free(e);
}

uint32_t tdm_estimator_chunks(const struct tdm_estimator *e)
{
    return e->chunks;
}

uint64_t tdm_estimate_logits(const struct tdm_estimator *e, uint64_t tile_tokens)
{
    uint64_t tokens = e->base->head_tile_tokens;
    for (uint32_t i = 0; i < LOGIT_TILES; i++, tokens = (tokens + 1) / 2)
        if (tokens == tile_tokens)
            return e->logits[i];
    return logit_bytes(e, tile_tokens);
}
