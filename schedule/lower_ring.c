/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of ranks in a ring (ring.h). A rank has K and V of its own chunks, and their gradients,
 * in rows; of other ranks' it has two chunks at a time, and three sums on their way.
 *
 * The next hop is emitted before the attention of a turn, so that it runs beside that. So does the
 * hop of a sum, beside the next turn. What a turn gives is a part, which is merged with those
 * before; if a chunk sees no other chunk, its attention has one part, which is the whole.
 *
 * If ranks divide the heads, a rank does that with its heads of the chunks of its set, which have
 * a slot each in the operands and in the sums of their parts.
 */
#include "schedule/lower_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/ring.h"

/* The parts of a chunk's attention: how many it has, and so far; the chunk of the last. */
struct parts {
    uint32_t due, made, last;
};

/* The attention of a body's round, or its gradient. */
struct round {
    struct tdm_lowering *l;
    const struct tdm_body *body;
    struct tdm_ring ring;
    struct tdm_set_chunks own; /* from which the rank attends */
    struct parts of[TDM_MAX_HEAD_RANKS];
};

static struct round round_of(struct tdm_lowering *l, const struct tdm_body *body, uint32_t end)
{
    const uint32_t first = tdm_round_first(l->program, body->chunk);
    const uint32_t set = tdm_rank_set(l->program, l->program->rank);
    struct round r = {l,
                      body,
                      tdm_ring_begin(l->program, body->layer, first, end),
                      tdm_round_set(l->program, first, end, set),
                      {{0, 0, 0}}};
    for (uint32_t i = 0; i < r.ring.turns; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = tdm_ring_chunk(l->program, turn.first, turn.lap, turn.hops);
        const struct tdm_set_chunks seers = tdm_ring_seers(&r.ring, set, key);
        for (uint32_t chunk = seers.first; chunk < seers.end; chunk++)
            r.of[chunk - r.own.first].due++;
    }
    return r;
}

/* What the rank has of a chunk, beside what it has of its first. */
static struct tdm_ref of_own(const struct round *r, struct tdm_ref first, uint32_t chunk)
{
    return (struct tdm_ref){first.buffer, first.slot + chunk - r->own.first};
}

static struct tdm_body body_of(const struct round *r, uint32_t chunk)
{
    struct tdm_body body = *r->body;
    body.chunk = chunk;
    return body;
}

static struct tdm_tag nothing(void)
{
    return tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
}

/* ---- what both rings need ---- */

struct tdm_ref tdm_low_kv_at_home(const struct tdm_lowering *l, const struct tdm_body *body,
                                  uint32_t chunk)
{
    return tdm_low_kv_ref(l, body, tdm_low_kv_row(l, body->layer, body->pass), chunk);
}

struct tdm_ref tdm_low_dkv_at_home(const struct tdm_lowering *l, const struct tdm_body *body,
                                   uint32_t chunk)
{
    return tdm_low_kv_ref(l, body, tdm_low_seen_dkv(l, body->layer), chunk);
}

void tdm_low_hop_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                       uint32_t first, uint32_t lap, uint32_t hops, uint32_t queries)
{
    tdm_low_round_begin(l, body, kind, first, tdm_round_end(l->program, first));
    l->op.lap = lap;
    l->op.hops = hops;
    l->op.queries = queries;
}

void tdm_low_of_chunk(struct tdm_lowering *l, uint32_t operand, struct tdm_ref at,
                      enum tdm_mode mode, struct tdm_tag before, struct tdm_tag after)
{
    tdm_low_access(l, operand, at, 1, mode, 0, before, after,
                   tdm_chunks_bytes(l->program, after.content, after.chunk, after.chunk + 1));
}

/* ---- hops ---- */

static struct tdm_ref visiting(const struct round *r, uint32_t visit)
{
    return (struct tdm_ref){r->l->layout->visiting_kv, visit % TDM_VISITING_SLOTS};
}

static struct tdm_ref passing(const struct round *r, uint32_t visit)
{
    return (struct tdm_ref){r->l->layout->work[TDM_PASSING_DKV], visit % TDM_PASSING_SLOTS};
}

static void hop_begin(struct round *r, enum tdm_op_kind kind, struct tdm_turn to)
{
    tdm_low_hop_begin(r->l, r->body, kind, to.first, to.lap, to.hops, r->ring.queries);
}

/* Brings the chunk of a turn. */
static void hop(struct round *r, struct tdm_turn to)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t sent = tdm_ring_chunk(program, to.first, to.lap, to.hops - 1);
    const uint32_t received = tdm_ring_chunk(program, to.first, to.lap, to.hops);
    hop_begin(r, TDM_OP_HOP, to);
    if (sent != TDM_NONE && tdm_ring_is_seen(&r->ring, sent, to.hops)) {
        const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, r->body->layer, sent);
        tdm_low_of_chunk(r->l, TDM_HOP_SENT,
                         to.hops == 1 ? tdm_low_kv_at_home(r->l, r->body, sent)
                                      : visiting(r, to.visit - 1),
                         TDM_READ, pages, pages);
    }
    if (received != TDM_NONE && tdm_ring_is_seen(&r->ring, received, to.hops))
        tdm_low_of_chunk(r->l, TDM_HOP_RECEIVED, visiting(r, to.visit), TDM_WRITE, nothing(),
                         tdm_low_tag(TDM_KVPAGES, r->body->layer, received));
    tdm_low_op_end(r->l);
}

/* The next turn from `number` on whose chunk comes from another set. */
static void hop_from(struct round *r, uint32_t number)
{
    const uint32_t sets = tdm_rank_sets(r->l->program);
    if (number % sets == sets - 1)
        number++;
    if (number < r->ring.turns)
        hop(r, tdm_ring_turn(&r->ring, number));
}

/* Sums of dK and dV go on to a turn, which has added what it contributes; or home. */
static void hop_sum(struct round *r, struct tdm_turn to)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t layer = r->body->layer, before = to.hops - 1;
    const uint32_t sent = tdm_ring_chunk(program, to.first, to.lap, before);
    const uint32_t received = tdm_ring_chunk(program, to.first, to.lap, to.hops);
    hop_begin(r, TDM_OP_HOP_SUM, to);
    uint32_t by = sent == TDM_NONE ? TDM_NONE : tdm_ring_contributor(&r->ring, sent, before);
    if (by != TDM_NONE) {
        const struct tdm_tag sum = tdm_low_sum_tag(TDM_PASSING_DKV, layer, sent, by);
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_SENT, passing(r, to.visit - 1), TDM_READ, sum, sum);
    }
    by = received == TDM_NONE ? TDM_NONE : tdm_ring_contributor(&r->ring, received, before);
    if (by != TDM_NONE && to.hops == tdm_rank_sets(program)) {
        struct tdm_tag sum = tdm_low_sum_tag(TDM_DKVPAGES, layer, received, by), there = sum;
        there.contributor = tdm_ring_sum_before(program, layer, received, by);
        const bool opens = there.contributor == program->chunk_count;
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_RECEIVED, tdm_low_dkv_at_home(r->l, r->body, received),
                         opens ? TDM_WRITE : TDM_ACCUMULATE, opens ? nothing() : there, sum);
    } else if (by != TDM_NONE) {
        const struct tdm_set_chunks seers =
            tdm_ring_seers(&r->ring, tdm_rank_set(program, program->rank), received);
        const uint32_t adds = seers.first; /* the last of them that has added */
        const bool opens = seers.first == seers.end;
        tdm_low_of_chunk(
            r->l, TDM_HOP_SUM_RECEIVED, passing(r, to.visit), opens ? TDM_WRITE : TDM_ACCUMULATE,
            opens ? nothing() : tdm_low_share_tag(r->l, TDM_PASSING_DKV, layer, received, adds),
            tdm_low_sum_tag(TDM_PASSING_DKV, layer, received, opens ? by : adds));
    }
    tdm_low_op_end(r->l);
}

/* ---- parts ---- */

static struct parts *parts_of(struct round *r, uint32_t chunk)
{
    return &r->of[chunk - r->own.first];
}

/* Where a turn leaves its part, and as what: alone it is the whole. */
static struct tdm_ref part_at(struct round *r, uint32_t chunk, enum tdm_content part,
                              struct tdm_ref whole)
{
    return parts_of(r, chunk)->due == 1 ? whole : tdm_low_work(r->l, part);
}

static struct tdm_tag part_tag(struct round *r, uint32_t chunk, enum tdm_content part,
                               enum tdm_content whole, uint32_t key)
{
    return parts_of(r, chunk)->due == 1
               ? tdm_low_tag(tdm_low_attended(r->l, whole), r->body->layer, chunk)
               : tdm_low_sum_tag(part, r->body->layer, chunk, key);
}

/* What a chunk's attention makes: parts, their sum, and at last the whole. */
struct made {
    enum tdm_content part, sum, whole;
};

static const struct made outputs = {TDM_OUT_PART, TDM_OUT_SUM, TDM_ATTENTION_OUT};
static const struct made gradients = {TDM_DQ_PART, TDM_DQ_SUM, TDM_DQ};

/* Merges the part of a turn with those before. The last completes the whole at `to`. */
static void merge(struct round *r, uint32_t chunk, const struct made *made, struct tdm_ref to,
                  uint32_t key)
{
    struct parts *parts = parts_of(r, chunk);
    const uint32_t layer = r->body->layer;
    const struct tdm_tag so_far = tdm_low_sum_tag(made->sum, layer, chunk, parts->last);
    const struct tdm_tag now = tdm_low_sum_tag(made->sum, layer, chunk, key);
    const struct tdm_ref sum = of_own(r, tdm_low_work(r->l, made->sum), chunk);
    const struct tdm_body body = body_of(r, chunk);
    const bool first = parts->made++ == 0, last = parts->made == parts->due;
    parts->last = key;
    if (parts->due == 1)
        return;
    tdm_low_op_begin(r->l, &body, TDM_OP_MERGE, 0);
    tdm_low_reads(r->l, TDM_MERGE_PART, tdm_low_work(r->l, made->part),
                  tdm_low_sum_tag(made->part, layer, chunk, key));
    if (first)
        tdm_low_writes(r->l, TDM_MERGE_SUM, sum, now);
    else if (!last)
        tdm_low_changes(r->l, TDM_MERGE_SUM, sum, so_far, now);
    else
        tdm_low_reads(r->l, TDM_MERGE_SUM, sum, so_far);
    if (last)
        tdm_low_writes(r->l, TDM_MERGE_OUT, to,
                       tdm_low_tag(tdm_low_attended(r->l, made->whole), layer, chunk));
    tdm_low_op_end(r->l);
}

/* Acts on the workspaces of parts and of their sums, if a chunk has several parts. With the chunks
 * of other ranks always: what a rank allocates follows from its own (ranks_sample.c). */
static void each_work(struct round *r, const struct made *made,
                      void (*act)(struct tdm_lowering *, enum tdm_content))
{
    bool several = tdm_ranks_divide_heads(r->l->program);
    for (uint32_t chunk = r->own.first; chunk < r->own.end; chunk++)
        several |= parts_of(r, chunk)->due > 1;
    if (!several)
        return;
    act(r->l, made->part);
    act(r->l, made->sum);
}

/* The chunk of K and V that the rank has in a turn; TDM_NONE: none. */
static uint32_t key_of(const struct round *r, struct tdm_turn turn)
{
    return tdm_ring_chunk(r->l->program, turn.first, turn.lap, turn.hops);
}

/* The rank's chunks whose queries see it. */
static struct tdm_set_chunks seers_of(const struct round *r, uint32_t key)
{
    return tdm_ring_seers(&r->ring, tdm_rank_set(r->l->program, r->l->program->rank), key);
}

static bool is_home(const struct round *r, struct tdm_turn turn)
{
    return turn.hops == tdm_rank_sets(r->l->program);
}

/* K and V of a turn: at home or on a visit. */
static struct tdm_ref kv_of(const struct round *r, struct tdm_turn turn, uint32_t key)
{
    return is_home(r, turn) ? tdm_low_kv_at_home(r->l, r->body, key) : visiting(r, turn.visit);
}

/* ---- forward ---- */

static void attend(struct round *r, uint32_t chunk, struct tdm_turn turn, uint32_t key,
                   struct tdm_ref q, struct tdm_ref output)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer;
    const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, key);
    const struct tdm_body body = body_of(r, chunk);
    output = of_own(r, output, chunk);
    tdm_low_op_begin(l, &body, TDM_OP_ATTENTION, 0);
    tdm_low_reads(l, TDM_ATTENTION_Q, of_own(r, q, chunk),
                  tdm_low_tag(tdm_low_attended(l, TDM_Q), layer, chunk));
    tdm_low_of_chunk(r->l, TDM_ATTENTION_KV, kv_of(r, turn, key), TDM_READ, pages, pages);
    tdm_low_writes(l, TDM_ATTENTION_O, part_at(r, chunk, TDM_OUT_PART, output),
                   part_tag(r, chunk, TDM_OUT_PART, TDM_ATTENTION_OUT, key));
    tdm_low_op_end(l);
    merge(r, chunk, &outputs, output, key);
}

void tdm_low_ring_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                            struct tdm_ref output)
{
    const uint32_t first = tdm_round_first(l->program, body->chunk);
    const uint32_t end = tdm_low_attention_end(l, body);
    if (first == end)
        return;
    struct round r = round_of(l, body, end);
    tdm_low_alloc(l, l->layout->visiting_kv);
    each_work(&r, &outputs, tdm_low_alloc_work);
    hop_from(&r, 0);
    for (uint32_t i = 0; i < r.ring.turns; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = key_of(&r, turn);
        const struct tdm_set_chunks seers = seers_of(&r, key);
        if (!is_home(&r, turn))
            hop_from(&r, i + 1);
        for (uint32_t chunk = seers.end; chunk-- > seers.first;)
            attend(&r, chunk, turn, key, q, output);
    }
    each_work(&r, &outputs, tdm_low_release_work);
    tdm_low_release(l, l->layout->visiting_kv);
}

/* ---- backward ---- */

/* Adds to the gradients of K and V of a turn. At home they have a sum of several rounds. Else the
 * first of the rank's chunks writes, and what comes behind the K and V is added to it. */
static void adds_to_dkv(struct round *r, uint32_t chunk, struct tdm_turn turn, uint32_t key)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer, later = chunk + 1;
    struct tdm_ref at = passing(r, turn.visit);
    struct tdm_tag sum, before;
    bool opens;
    if (is_home(r, turn)) {
        at = tdm_low_dkv_at_home(l, r->body, key);
        sum = before = tdm_low_sum_tag(TDM_DKVPAGES, layer, key, chunk);
        before.contributor = tdm_ring_sum_before(l->program, layer, key, chunk);
        opens = before.contributor == l->program->chunk_count;
    } else {
        const bool alone = tdm_ring_contributor(&r->ring, key, turn.hops - 1) == TDM_NONE;
        sum = before = alone ? tdm_low_sum_tag(TDM_PASSING_DKV, layer, key, chunk)
                             : tdm_low_share_tag(l, TDM_PASSING_DKV, layer, key, chunk);
        before.contributor = later;
        opens = later == seers_of(r, key).end;
    }
    tdm_low_of_chunk(l, opens ? TDM_ATTENTION_GRAD_DKV_OPENED : TDM_ATTENTION_GRAD_DKV_ADDED, at,
                     opens ? TDM_WRITE : TDM_ACCUMULATE, opens ? nothing() : before, sum);
}

static void attend_grad(struct round *r, uint32_t chunk, struct tdm_turn turn, uint32_t key,
                        const struct tdm_attention_refs *own)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer;
    const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, key);
    const struct tdm_body body = body_of(r, chunk);
    const struct tdm_ref d_q = of_own(r, own->d_q, chunk);
    tdm_low_op_begin(l, &body, TDM_OP_ATTENTION_GRAD, 0);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_Q, of_own(r, own->q, chunk),
                  tdm_low_tag(tdm_low_attended(l, TDM_Q), layer, chunk));
    tdm_low_of_chunk(r->l, TDM_ATTENTION_GRAD_KV, kv_of(r, turn, key), TDM_READ, pages, pages);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_O, of_own(r, own->out, chunk),
                  tdm_low_tag(tdm_low_attended(l, TDM_ATTENTION_OUT), layer, chunk));
    tdm_low_reads(l, TDM_ATTENTION_GRAD_DO, of_own(r, own->d_out, chunk),
                  tdm_low_tag(tdm_low_attended(l, TDM_DATTENTION), layer, chunk));
    tdm_low_writes(l, TDM_ATTENTION_GRAD_DQ, part_at(r, chunk, TDM_DQ_PART, d_q),
                   part_tag(r, chunk, TDM_DQ_PART, TDM_DQ, key));
    adds_to_dkv(r, chunk, turn, key);
    tdm_low_op_end(l);
    merge(r, chunk, &gradients, d_q, key);
}

void tdm_low_ring_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                 const struct tdm_attention_refs *own)
{
    if (tdm_ranks_pass_queries(l->program)) {
        tdm_low_queries_attention_grad(l, body, own);
        return;
    }
    struct round r = round_of(l, body, tdm_round_end(l->program, body->chunk));
    tdm_low_alloc(l, l->layout->visiting_kv);
    tdm_low_alloc_work(l, TDM_PASSING_DKV);
    each_work(&r, &gradients, tdm_low_alloc_work);
    hop_from(&r, 0);
    for (uint32_t i = 0; i < r.ring.turns; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = key_of(&r, turn);
        const struct tdm_set_chunks seers = seers_of(&r, key);
        if (is_home(&r, turn)) /* the sums come home */
            hop_sum(&r, turn);
        else
            hop_from(&r, i + 1);
        for (uint32_t chunk = seers.end; chunk-- > seers.first;)
            attend_grad(&r, chunk, turn, key, own);
        if (turn.hops > 1 && !is_home(&r, turn))
            hop_sum(&r, turn);
    }
    each_work(&r, &gradients, tdm_low_release_work);
    tdm_low_release_work(l, TDM_PASSING_DKV);
    tdm_low_release(l, l->layout->visiting_kv);
}
