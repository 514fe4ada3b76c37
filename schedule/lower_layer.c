/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward of a layer for a chunk: the table of its steps, and the bodies that run them for the
 * first time, again, or only for K and V.
 *
 * A body needs some values. It makes those that are not stored, and the values that their steps
 * read: that is all that a recompute is. Every value is in its workspace, or where the schedule
 * stores it.
 */
#include "schedule/lower_parts.h"

_Static_assert(TDM_CONTENTS <= 64, "contents as bits");

/* What follows a step, whether the step ran or not. FREE: releases a value's workspace, unless a
 * later step or the caller reads the value. STASH: stores a value that the body made and whose step
 * did not store it at once. */
struct then {
    enum { NOTHING, FREE, STASH } act;
    enum tdm_content of;
};

struct step {
    enum tdm_content makes, reads[3]; /* TDM_EMPTY: no more */
    void (*make)(struct tdm_lowering *l, struct tdm_values *v, const struct step *step);
    enum tdm_part part;
    enum tdm_content early; /* this value, if it will be made, is allocated before the step */
    bool stashed_later;     /* else the value is stored as soon as it is made */
    struct then then[3];
};

/* ---- steps ---- */

/* Where a value is to be made: where it is stored, or a workspace, which is allocated now. */
static struct tdm_ref target(struct tdm_lowering *l, struct tdm_values *v, enum tdm_content content)
{
    enum tdm_store store = tdm_store_of(content);
    bool work = true;
    if (v->at[content].buffer != TDM_NONE)
        return v->at[content];
    if (store < TDM_STORES) {
        v->at[content] = tdm_low_target(l, &v->pending->body, store, &work);
    } else {
        tdm_low_alloc_work(l, content);
        v->at[content] = tdm_low_work(l, content);
    }
    v->work |= work ? TDM_BIT(content) : 0;
    return v->at[content];
}

static void make_norm(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    struct tdm_ref to = target(l, v, step->makes);
    tdm_low_norm(l, &v->pending->body, step->part, v->at[step->reads[0]], step->reads[0], to,
                 step->makes);
}

/* A product with weights, added to the second value if the step reads one. */
static void make_product(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    const struct tdm_body *body = &v->pending->body;
    struct tdm_ref to = target(l, v, step->makes);
    tdm_low_product(l, body, step->part, v->at[step->reads[0]], step->reads[0], to,
                    tdm_low_tag(step->makes, body->layer, body->chunk),
                    step->reads[1] == TDM_EMPTY ? tdm_nowhere : v->at[step->reads[1]],
                    step->reads[1]);
}

static void make_q(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    tdm_low_q_product(l, &v->pending->body, v->at[TDM_NORMED], target(l, v, step->makes));
}

static void make_kv(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    (void)step;
    tdm_low_kv_product(l, &v->pending->body, v->at[TDM_NORMED]);
}

static void make_lists(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    bool work;
    v->at[step->makes] = tdm_low_lists(l, &v->pending->body, v->at[TDM_Q], &work);
    v->work |= work ? TDM_BIT(step->makes) : 0;
}

static void make_attention(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    struct tdm_ref to = target(l, v, step->makes);
    if (tdm_ranks_divide_heads(l->program))
        tdm_low_heads_attention(l, &v->pending->body, v->at[TDM_Q], to);
    else if (tdm_ranks_ring(l->program))
        tdm_low_ring_attention(l, &v->pending->body, v->at[TDM_Q], to);
    else
        tdm_low_attention(l, &v->pending->body, v->at[TDM_Q], to, v->at[TDM_PAGE_LISTS]);
}

static void make_activation(struct tdm_lowering *l, struct tdm_values *v, const struct step *step)
{
    struct tdm_ref to = target(l, v, step->makes);
    tdm_low_activation(l, &v->pending->body, v->at[TDM_GATE_UP], to);
}

/* All steps of a layer except its last product, whose output is the next layer's input. */
static const struct step steps[] = {
    {.makes = TDM_NORMED,
     .reads = {TDM_X},
     .make = make_norm,
     .part = TDM_PART_ATTENTION_NORM,
     .then = {{FREE, TDM_X}}},
    {.makes = TDM_Q, .reads = {TDM_NORMED}, .make = make_q},
    {.makes = TDM_KVPAGES, .reads = {TDM_NORMED}, .make = make_kv, .then = {{FREE, TDM_NORMED}}},
    {.makes = TDM_PAGE_LISTS, .reads = {TDM_Q}, .make = make_lists},
    {.makes = TDM_ATTENTION_OUT,
     .reads = {TDM_Q, TDM_KVPAGES, TDM_PAGE_LISTS},
     .make = make_attention,
     .stashed_later = true,
     .then = {{FREE, TDM_PAGE_LISTS}, {STASH, TDM_ATTENTION_OUT}, {FREE, TDM_Q}}},
    {.makes = TDM_Y,
     .reads = {TDM_ATTENTION_OUT, TDM_X},
     .make = make_product,
     .part = TDM_PART_O,
     .early = TDM_GATE_UP},
    {.makes = TDM_MLP_NORMED, .reads = {TDM_Y}, .make = make_norm, .part = TDM_PART_MLP_NORM},
    {.makes = TDM_GATE_UP,
     .reads = {TDM_MLP_NORMED},
     .make = make_product,
     .part = TDM_PART_GATE_UP,
     .stashed_later = true,
     .then = {{FREE, TDM_MLP_NORMED}}},
    {.makes = TDM_ACTIVATED,
     .reads = {TDM_GATE_UP},
     .make = make_activation,
     .then = {{STASH, TDM_GATE_UP}, {FREE, TDM_GATE_UP}, {FREE, TDM_ATTENTION_OUT}}},
};
#define STEPS (sizeof(steps) / sizeof(steps[0]))
#define ACTS (sizeof(steps[0].then) / sizeof(steps[0].then[0]))

/* ---- what a body makes ---- */

static uint64_t reads_of(const struct step *step)
{
    uint64_t reads = 0;
    for (size_t i = 0; i < sizeof(step->reads) / sizeof(step->reads[0]); i++)
        reads |= TDM_BIT(step->reads[i]);
    return reads & ~TDM_BIT(TDM_EMPTY);
}

/* The values that a body must have: K and V, and what its last ops, which are not steps, read. */
static uint64_t wanted_by(const struct tdm_body *body)
{
    switch (body->kind) {
    case TDM_BODY_FORWARD:
        return TDM_BIT(TDM_KVPAGES) | TDM_BIT(TDM_Y) | TDM_BIT(TDM_ACTIVATED);
    case TDM_BODY_KV:
        return TDM_BIT(TDM_KVPAGES);
    case TDM_BODY_BACKWARD_KV:
        return TDM_BIT(TDM_X) | TDM_BIT(TDM_NORMED);
    case TDM_BODY_BACKWARD:
        return TDM_BIT(TDM_X) | TDM_BIT(TDM_NORMED) | TDM_BIT(TDM_Q) | TDM_BIT(TDM_KVPAGES) |
               TDM_BIT(TDM_PAGE_LISTS) | TDM_BIT(TDM_ATTENTION_OUT) | TDM_BIT(TDM_Y) |
               TDM_BIT(TDM_MLP_NORMED) | TDM_BIT(TDM_GATE_UP);
    default:
        return 0;
    }
}

static bool is_there(const struct tdm_lowering *l, const struct tdm_body *body,
                     enum tdm_content content)
{
    enum tdm_store store = tdm_store_of(content);
    if (content == TDM_KVPAGES) /* a backward comes after the bodies that make them */
        return body->kind == TDM_BODY_BACKWARD || tdm_low_kv_step(l, body) != TDM_KV_MAKE;
    return store < TDM_STORES && tdm_low_is_there(l, body, store);
}

uint64_t tdm_low_reads_of_body(const struct tdm_lowering *l, const struct tdm_body *body,
                               uint64_t *made)
{
    uint64_t wanted = wanted_by(body);
    *made = 0;
    for (size_t i = STEPS; i-- > 0;) {
        const struct step *step = &steps[i];
        if ((wanted & TDM_BIT(step->makes)) == 0 || is_there(l, body, step->makes))
            continue;
        *made |= TDM_BIT(step->makes);
        wanted |= reads_of(step);
    }
    return wanted;
}

void tdm_low_values_begin(struct tdm_lowering *l, const struct tdm_pending *pending,
                          struct tdm_values *v)
{
    bool embedded;
    *v = (struct tdm_values){.pending = pending};
    uint64_t read = tdm_low_reads_of_body(l, &pending->body, &v->made);
    for (int content = 0; content < TDM_CONTENTS; content++)
        v->at[content] = tdm_nowhere;
    for (int i = 0; i < TDM_STORES; i++) {
        enum tdm_content content = tdm_store_type((enum tdm_store)i)->content;
        if ((read & ~v->made & TDM_BIT(content)) != 0)
            v->at[content] = tdm_low_source(l, pending, (enum tdm_store)i);
    }
    if ((read & TDM_BIT(TDM_X)) == 0)
        return;
    v->at[TDM_X] = tdm_low_input_of(l, pending, &embedded);
    v->work |= embedded ? TDM_BIT(TDM_X) : 0;
}

void tdm_low_value_free(struct tdm_lowering *l, struct tdm_values *v, enum tdm_content content)
{
    if ((v->work & TDM_BIT(content)) != 0)
        tdm_low_release_work(l, content);
    v->work &= ~TDM_BIT(content);
}

/* Copies a value that the body made to the host, if it is stored there. */
static void stash(struct tdm_lowering *l, const struct tdm_values *v, enum tdm_content content)
{
    enum tdm_store store = tdm_store_of(content);
    if ((v->made & TDM_BIT(content)) != 0 && store < TDM_STORES)
        tdm_low_stash(l, &v->pending->body, store, v->at[content]);
}

/* Does a body still read a value after a step? */
static bool is_read_later(const struct tdm_values *v, size_t step, enum tdm_content content)
{
    uint64_t read = wanted_by(&v->pending->body);
    for (size_t i = step + 1; i < STEPS; i++)
        read |= (v->made & TDM_BIT(steps[i].makes)) != 0 ? reads_of(&steps[i]) : 0;
    return (read & TDM_BIT(content)) != 0;
}

void tdm_low_attention_of_others(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (tdm_ranks_divide_heads(l->program))
        tdm_low_heads_attention(l, body, tdm_nowhere, tdm_nowhere);
    else if (tdm_ranks_ring(l->program))
        tdm_low_ring_attention(l, body, tdm_nowhere, tdm_nowhere);
}

void tdm_low_values_make(struct tdm_lowering *l, struct tdm_values *v)
{
    for (size_t i = 0; i < STEPS; i++) {
        const struct step *step = &steps[i];
        if ((v->made & TDM_BIT(step->early)) != 0)
            target(l, v, step->early);
        if ((v->made & TDM_BIT(step->makes)) != 0)
            step->make(l, v, step);
        else if (step->makes == TDM_ATTENTION_OUT)
            tdm_low_attention_of_others(l, &v->pending->body);
        if (!step->stashed_later)
            stash(l, v, step->makes);
        for (size_t act = 0; act < ACTS; act++) {
            enum tdm_content of = step->then[act].of;
            if (step->then[act].act == FREE && !is_read_later(v, i, of))
                tdm_low_value_free(l, v, of);
            if (step->then[act].act == STASH)
                stash(l, v, of);
        }
    }
}

/* ---- bodies ---- */

/* K and V that the body does not make itself. Those that it makes are exchanged when it has. */
static void fetch_kv(struct tdm_lowering *l, const struct tdm_body *body)
{
    tdm_low_kv_fetch(l, body);
    if (tdm_low_kv_step(l, body) != TDM_KV_MAKE)
        tdm_low_exchange_kv(l, body);
}

void tdm_low_forward_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    const struct tdm_body *body = &pending->body;
    struct tdm_values v;
    tdm_low_values_begin(l, pending, &v);
    fetch_kv(l, body);
    tdm_low_values_make(l, &v);

    struct tdm_ref home;
    struct tdm_ref output = tdm_low_output_of(l, body, &home);
    struct tdm_tag made = tdm_low_tag(TDM_X, body->layer + 1, body->chunk);
    tdm_low_product(l, body, TDM_PART_DOWN, v.at[TDM_ACTIVATED], TDM_ACTIVATED, output, made,
                    v.at[TDM_Y], TDM_Y);
    tdm_low_value_free(l, &v, TDM_ACTIVATED);
    tdm_low_value_free(l, &v, TDM_Y);
    tdm_low_value_free(l, &v, TDM_X);
    if (home.buffer != TDM_NONE)
        tdm_low_copy(l, body, output, home, made);
}

void tdm_low_kv_body(struct tdm_lowering *l, const struct tdm_pending *pending)
{
    struct tdm_values v;
    tdm_low_values_begin(l, pending, &v);
    fetch_kv(l, &pending->body);
    tdm_low_values_make(l, &v);
}
