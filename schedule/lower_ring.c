/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of ranks in a ring (ring.h). A rank has K and V of its own chunks, and their gradients,
 * in rows; of other ranks' it has two chunks at a time, and three sums on their way.
 *
 * The next hop is emitted before the attention of a turn, so that it runs beside that. So does the
 * hop of a sum, beside the next turn. What a turn gives is a part, which is merged with those
 * before; if a chunk sees no other chunk, its attention has one part, which is the whole.
 */
#include "schedule/lower_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/ring.h"

/* The attention of a body's round, or its gradient. */
struct round {
    struct tdm_lowering *l;
    const struct tdm_body *body;
    struct tdm_ring ring;
    uint32_t own;         /* the rank's chunk, if its queries attend; else TDM_NONE */
    uint32_t parts, made; /* that its attention has; so far */
    uint32_t last;        /* the chunk of the last part */
};

static struct round round_of(struct tdm_lowering *l, const struct tdm_body *body, uint32_t end,
                             bool attends)
{
    const uint32_t first = tdm_round_first(l->program, body->chunk), rank = l->program->rank;
    struct round r = {l, body, tdm_ring_begin(l->program, body->layer, first, end), TDM_NONE, 0,
                      0, 0};
    if (attends)
        r.own = body->chunk;
    for (uint32_t i = 0; i < r.ring.turns && attends; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = tdm_ring_chunk(l->program, turn.first, turn.hops, rank);
        r.parts += tdm_ring_seer(&r.ring, rank, key) != TDM_NONE;
    }
    return r;
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
                       uint32_t first, uint32_t hops, uint32_t queries)
{
    tdm_low_round_begin(l, body, kind, first, tdm_round_end(l->program, first));
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
    tdm_low_hop_begin(r->l, r->body, kind, to.first, to.hops, r->ring.queries);
}

/* Brings the chunk of a turn. */
static void hop(struct round *r, struct tdm_turn to)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t sent = tdm_ring_chunk(program, to.first, to.hops - 1, program->rank);
    const uint32_t received = tdm_ring_chunk(program, to.first, to.hops, program->rank);
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

/* The next turn from `number` on whose chunk comes from another rank. */
static void hop_from(struct round *r, uint32_t number)
{
    if (number % r->l->program->ranks == r->l->program->ranks - 1)
        number++;
    if (number < r->ring.turns)
        hop(r, tdm_ring_turn(&r->ring, number));
}

/* Sums of dK and dV go on to a turn, which has added what it contributes; or home. */
static void hop_sum(struct round *r, struct tdm_turn to)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t layer = r->body->layer, before = to.hops - 1;
    const uint32_t sent = tdm_ring_chunk(program, to.first, before, program->rank);
    const uint32_t received = tdm_ring_chunk(program, to.first, to.hops, program->rank);
    hop_begin(r, TDM_OP_HOP_SUM, to);
    uint32_t by = sent == TDM_NONE ? TDM_NONE : tdm_ring_contributor(&r->ring, sent, before);
    if (by != TDM_NONE) {
        const struct tdm_tag sum = tdm_low_sum_tag(TDM_PASSING_DKV, layer, sent, by);
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_SENT, passing(r, to.visit - 1), TDM_READ, sum, sum);
    }
    by = received == TDM_NONE ? TDM_NONE : tdm_ring_contributor(&r->ring, received, before);
    if (by != TDM_NONE && to.hops == program->ranks) {
        struct tdm_tag sum = tdm_low_sum_tag(TDM_DKVPAGES, layer, received, by), there = sum;
        there.contributor = tdm_ring_sum_before(program, layer, received, by);
        const bool opens = there.contributor == program->chunk_count;
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_RECEIVED, tdm_low_dkv_at_home(r->l, r->body, received),
                         opens ? TDM_WRITE : TDM_ACCUMULATE, opens ? nothing() : there, sum);
    } else if (by != TDM_NONE) {
        const uint32_t adds = tdm_ring_seer(&r->ring, program->rank, received);
        const bool opens = adds == TDM_NONE;
        tdm_low_of_chunk(
            r->l, TDM_HOP_SUM_RECEIVED, passing(r, to.visit), opens ? TDM_WRITE : TDM_ACCUMULATE,
            opens ? nothing() : tdm_low_share_tag(r->l, TDM_PASSING_DKV, layer, received, adds),
            tdm_low_sum_tag(TDM_PASSING_DKV, layer, received, opens ? by : adds));
    }
    tdm_low_op_end(r->l);
}

/* ---- parts ---- */

/* Where a turn leaves its part, and as what: alone it is the whole. */
static struct tdm_ref part_at(const struct round *r, enum tdm_content part, struct tdm_ref whole)
{
    return r->parts == 1 ? whole : tdm_low_work(r->l, part);
}

static struct tdm_tag part_tag(const struct round *r, enum tdm_content part, enum tdm_content whole,
                               uint32_t key)
{
    return r->parts == 1 ? tdm_low_tag(whole, r->body->layer, r->own)
                         : tdm_low_sum_tag(part, r->body->layer, r->own, key);
}

/* Merges the part of a turn with those before. */
static void merge(struct round *r, enum tdm_content part, enum tdm_content sum,
                  enum tdm_content whole, struct tdm_ref to, uint32_t key)
{
    const struct tdm_tag so_far = tdm_low_sum_tag(sum, r->body->layer, r->own, r->last);
    const struct tdm_tag now = tdm_low_sum_tag(sum, r->body->layer, r->own, key);
    if (r->parts == 1)
        return;
    tdm_low_op_begin(r->l, r->body, TDM_OP_MERGE, 0);
    tdm_low_reads(r->l, TDM_MERGE_PART, tdm_low_work(r->l, part), part_tag(r, part, whole, key));
    if (r->made == 0)
        tdm_low_writes(r->l, TDM_MERGE_SUM, tdm_low_work(r->l, sum), now);
    else if (r->made + 1 < r->parts)
        tdm_low_changes(r->l, TDM_MERGE_SUM, tdm_low_work(r->l, sum), so_far, now);
    else
        tdm_low_reads(r->l, TDM_MERGE_SUM, tdm_low_work(r->l, sum), so_far);
    if (r->made + 1 == r->parts)
        tdm_low_writes(r->l, TDM_MERGE_OUT, to, tdm_low_tag(whole, r->body->layer, r->own));
    tdm_low_op_end(r->l);
}

static void alloc_parts(struct round *r, enum tdm_content part, enum tdm_content sum,
                        void (*act)(struct tdm_lowering *, enum tdm_content))
{
    if (r->parts < 2)
        return;
    act(r->l, part);
    act(r->l, sum);
}

/* The chunk of K and V that the rank has in a turn, if its queries see it; else TDM_NONE. */
static uint32_t seen_in(const struct round *r, struct tdm_turn turn)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t key = tdm_ring_chunk(program, turn.first, turn.hops, program->rank);
    const bool sees = r->own != TDM_NONE && tdm_ring_seer(&r->ring, program->rank, key) != TDM_NONE;
    return sees ? key : TDM_NONE;
}

/* K and V of a turn: at home or on a visit. */
static struct tdm_ref kv_of(const struct round *r, struct tdm_turn turn, uint32_t key)
{
    return turn.hops == r->l->program->ranks ? tdm_low_kv_at_home(r->l, r->body, key)
                                             : visiting(r, turn.visit);
}

/* ---- forward ---- */

static void attend(struct round *r, struct tdm_turn turn, uint32_t key, struct tdm_ref q,
                   struct tdm_ref output)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer;
    const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, key);
    tdm_low_op_begin(l, r->body, TDM_OP_ATTENTION, 0);
    tdm_low_reads(l, TDM_ATTENTION_Q, q, tdm_low_tag(TDM_Q, layer, r->own));
    tdm_low_of_chunk(r->l, TDM_ATTENTION_KV, kv_of(r, turn, key), TDM_READ, pages, pages);
    tdm_low_writes(l, TDM_ATTENTION_O, part_at(r, TDM_OUT_PART, output),
                   part_tag(r, TDM_OUT_PART, TDM_ATTENTION_OUT, key));
    tdm_low_op_end(l);
    merge(r, TDM_OUT_PART, TDM_OUT_SUM, TDM_ATTENTION_OUT, output, key);
    r->last = key;
    r->made++;
}

void tdm_low_ring_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                            struct tdm_ref output)
{
    const uint32_t first = tdm_round_first(l->program, body->chunk);
    const uint32_t end = tdm_low_attention_end(l, body);
    if (first == end)
        return;
    struct round r = round_of(l, body, end, output.buffer != TDM_NONE);
    tdm_low_alloc(l, l->layout->visiting_kv);
    alloc_parts(&r, TDM_OUT_PART, TDM_OUT_SUM, tdm_low_alloc_work);
    hop_from(&r, 0);
    for (uint32_t i = 0; i < r.ring.turns; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = seen_in(&r, turn);
        if (turn.hops < l->program->ranks)
            hop_from(&r, i + 1);
        if (key != TDM_NONE)
            attend(&r, turn, key, q, output);
    }
    alloc_parts(&r, TDM_OUT_PART, TDM_OUT_SUM, tdm_low_release_work);
    tdm_low_release(l, l->layout->visiting_kv);
}

/* ---- backward ---- */

static void attend_grad(struct round *r, struct tdm_turn turn, uint32_t key,
                        const struct tdm_attention_refs *own)
{
    struct tdm_lowering *l = r->l;
    const struct tdm_program *program = l->program;
    const uint32_t layer = r->body->layer;
    const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, key);
    const bool home = turn.hops == program->ranks;
    tdm_low_op_begin(l, r->body, TDM_OP_ATTENTION_GRAD, 0);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_Q, own->q, tdm_low_tag(TDM_Q, layer, r->own));
    tdm_low_of_chunk(r->l, TDM_ATTENTION_GRAD_KV, kv_of(r, turn, key), TDM_READ, pages, pages);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_O, own->out, tdm_low_tag(TDM_ATTENTION_OUT, layer, r->own));
    tdm_low_reads(l, TDM_ATTENTION_GRAD_DO, own->d_out, tdm_low_tag(TDM_DATTENTION, layer, r->own));
    tdm_low_writes(l, TDM_ATTENTION_GRAD_DQ, part_at(r, TDM_DQ_PART, own->d_q),
                   part_tag(r, TDM_DQ_PART, TDM_DQ, key));
    if (home) {
        const struct tdm_tag sum = tdm_low_sum_tag(TDM_DKVPAGES, layer, key, r->own);
        struct tdm_tag before = sum;
        before.contributor = tdm_ring_sum_before(program, layer, key, r->own);
        const bool opens = before.contributor == program->chunk_count;
        tdm_low_of_chunk(r->l, opens ? TDM_ATTENTION_GRAD_DKV_OPENED : TDM_ATTENTION_GRAD_DKV_ADDED,
                         tdm_low_dkv_at_home(r->l, r->body, key),
                         opens ? TDM_WRITE : TDM_ACCUMULATE, opens ? nothing() : before, sum);
    } else { /* what comes behind the K and V is added to it */
        const bool alone = tdm_ring_contributor(&r->ring, key, turn.hops - 1) == TDM_NONE;
        tdm_low_of_chunk(r->l, TDM_ATTENTION_GRAD_DKV_OPENED, passing(r, turn.visit), TDM_WRITE,
                         nothing(),
                         alone ? tdm_low_sum_tag(TDM_PASSING_DKV, layer, key, r->own)
                               : tdm_low_share_tag(l, TDM_PASSING_DKV, layer, key, r->own));
    }
    tdm_low_op_end(l);
    merge(r, TDM_DQ_PART, TDM_DQ_SUM, TDM_DQ, own->d_q, key);
    r->last = key;
    r->made++;
}

void tdm_low_ring_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                 const struct tdm_attention_refs *own)
{
    const uint32_t ranks = l->program->ranks;
    struct round r = round_of(l, body, tdm_round_end(l->program, body->chunk), own != NULL);
    tdm_low_alloc(l, l->layout->visiting_kv);
    tdm_low_alloc_work(l, TDM_PASSING_DKV);
    alloc_parts(&r, TDM_DQ_PART, TDM_DQ_SUM, tdm_low_alloc_work);
    hop_from(&r, 0);
    for (uint32_t i = 0; i < r.ring.turns; i++) {
        const struct tdm_turn turn = tdm_ring_turn(&r.ring, i);
        const uint32_t key = seen_in(&r, turn);
        if (turn.hops < ranks)
            hop_from(&r, i + 1);
        if (turn.hops == ranks) /* the sums come home */
            hop_sum(&r, turn);
        if (key != TDM_NONE)
            attend_grad(&r, turn, key, own);
        if (turn.hops > 1 && turn.hops < ranks)
            hop_sum(&r, turn);
    }
    alloc_parts(&r, TDM_DQ_PART, TDM_DQ_SUM, tdm_low_release_work);
    tdm_low_release_work(l, TDM_PASSING_DKV);
    tdm_low_release(l, l->layout->visiting_kv);
}
