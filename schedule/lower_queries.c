/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of attention of ranks in a ring whose queries go around (queries.h).
 *
 * A rank packs what the gradient reads of its own queries. The next hop is emitted before the
 * attention of a turn, so that it runs beside that, and so is the hop of a sum of dQ beside the
 * next turn. A rank contributes to the dQ of others in a slot for the sum on its way, in which what
 * came before is added to it.
 *
 * If ranks divide the heads, a rank does that with its heads of the chunks of its set, which have
 * a slot each in the operands, among the packed queries and in the sums of dQ.
 */
#include "schedule/lower_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/queries.h"
#include "schedule/ring.h"

/* The round of a body. */
struct round {
    struct tdm_lowering *l;
    const struct tdm_body *body;
    uint32_t first;            /* its first chunk */
    uint32_t sets;             /* members of the ring */
    struct tdm_set_chunks own; /* from which the rank attends */
};

/* A turn: in a lap, after some hops. */
struct turn {
    uint32_t lap, hops;
};

static struct tdm_tag nothing(void)
{
    return tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
}

static struct tdm_ref work_at(const struct round *r, enum tdm_content content, uint32_t slot)
{
    return (struct tdm_ref){r->l->layout->work[content], slot};
}

/* In a turn: the chunk whose queries the rank has, or TDM_NONE, where they are, and where the sum
 * of their dQ is. */
static uint32_t queries_of(const struct round *r, struct turn turn)
{
    return tdm_ring_chunk(r->l->program, r->first, turn.lap, turn.hops);
}

/* The number of the turns with queries of others up to one. */
static uint32_t visit_of(const struct round *r, struct turn turn)
{
    return turn.lap * (r->sets - 1) + turn.hops;
}

static struct tdm_ref queries_at(const struct round *r, struct turn turn)
{
    const uint32_t own = r->l->program->ranks / r->sets;
    return work_at(r, TDM_QUERIES,
                   turn.hops == 0 ? turn.lap
                                  : own + visit_of(r, turn) % TDM_VISITING_QUERIES_SLOTS);
}

static struct tdm_ref dq_at(const struct round *r, struct turn turn)
{
    return turn.hops % r->sets == 0
               ? work_at(r, TDM_DQ_SUM, turn.lap)
               : work_at(r, TDM_PASSING_DQ, visit_of(r, turn) % TDM_PASSING_DQ_SLOTS);
}

static struct turn one_hop_before(struct turn turn)
{
    return (struct turn){turn.lap, turn.hops - 1};
}

static uint32_t own_set(const struct round *r)
{
    return tdm_rank_set(r->l->program, r->l->program->rank);
}

/* A sum of dQ to which the rank's key adds, as the rank has it `hops` hops after it began. Until
 * those of the ranks before have come it is a share, unless there are none. */
static struct tdm_tag dq_tag(const struct round *r, uint32_t chunk, uint32_t hops, uint32_t key,
                             bool is_share)
{
    const enum tdm_content content = hops % r->sets == 0 ? TDM_DQ_SUM : TDM_PASSING_DQ;
    return is_share ? tdm_low_share_tag(r->l, content, r->body->layer, chunk, key)
                    : tdm_low_sum_tag(content, r->body->layer, chunk, key);
}

/* What sets before contribute to a chunk's dQ: those that have it in fewer than `hops` hops; in
 * none: all others, which comes home. */
static uint32_t before_of(const struct round *r, uint32_t chunk, uint32_t hops)
{
    return tdm_queries_contributor(r->l->program, r->body->layer, chunk,
                                   (hops == 0 ? r->sets : hops) - 1);
}

/* ---- hops ---- */

/* Brings the queries of a turn. */
static void hop(struct round *r, struct turn turn)
{
    const struct tdm_program *program = r->l->program;
    const struct turn before = one_hop_before(turn);
    const uint32_t layer = r->body->layer;
    const uint32_t sent = queries_of(r, before), received = queries_of(r, turn);
    tdm_low_hop_begin(r->l, r->body, TDM_OP_HOP, r->first, turn.lap, turn.hops, r->first);
    if (sent != TDM_NONE && tdm_queries_are_read(program, layer, sent, turn.hops)) {
        const struct tdm_tag what = tdm_low_tag(TDM_QUERIES, layer, sent);
        tdm_low_of_chunk(r->l, TDM_HOP_SENT, queries_at(r, before), TDM_READ, what, what);
    }
    if (received != TDM_NONE && tdm_queries_are_read(program, layer, received, turn.hops))
        tdm_low_of_chunk(r->l, TDM_HOP_RECEIVED, queries_at(r, turn), TDM_WRITE, nothing(),
                         tdm_low_tag(TDM_QUERIES, layer, received));
    tdm_low_op_end(r->l);
}

/* Brings those of the next turn that has others' queries, which may be in the next lap. */
static void hop_after(struct round *r, struct turn turn)
{
    struct turn next = {turn.lap, turn.hops + 1};
    if (next.hops == r->sets)
        next = (struct turn){turn.lap + 1, 1};
    if (turn.hops == 0 && turn.lap > 0) /* they came beside the lap before */
        return;
    if (next.lap < r->l->program->ranks / r->sets)
        hop(r, next);
}

/* Sums of dQ go on, to what the rank contributes in a turn, or home. */
static void hop_sum(struct round *r, struct turn turn)
{
    const struct tdm_program *program = r->l->program;
    const struct turn before = one_hop_before(turn);
    const uint32_t sent = queries_of(r, before), received = queries_of(r, turn);
    tdm_low_hop_begin(r->l, r->body, TDM_OP_HOP_SUM, r->first, turn.lap, turn.hops, r->first);
    uint32_t by = sent == TDM_NONE ? TDM_NONE : before_of(r, sent, turn.hops);
    if (by != TDM_NONE) {
        const struct tdm_tag sum = dq_tag(r, sent, before.hops, by, false);
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_SENT, dq_at(r, before), TDM_READ, sum, sum);
    }
    by = received == TDM_NONE ? TDM_NONE : before_of(r, received, turn.hops);
    if (by != TDM_NONE) {
        const uint32_t key = tdm_queries_last_key(program, r->body->layer, received, own_set(r));
        const bool opens = key == TDM_NONE;
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_RECEIVED, dq_at(r, turn),
                         opens ? TDM_WRITE : TDM_ACCUMULATE,
                         opens ? nothing() : dq_tag(r, received, turn.hops, key, true),
                         dq_tag(r, received, turn.hops, opens ? by : key, false));
    }
    tdm_low_op_end(r->l);
}

/* ---- attention ---- */

/* From the queries of a chunk, at `queries`, to K and V of one of those at home. dQ of the key
 * becomes `made` at `to`. */
static void attend(struct round *r, uint32_t chunk, struct tdm_ref queries, uint32_t key,
                   struct tdm_ref to, struct tdm_tag made)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer;
    const struct tdm_tag pages = tdm_low_tag(TDM_KVPAGES, layer, key);
    const struct tdm_tag sum = tdm_low_sum_tag(TDM_DKVPAGES, layer, key, chunk);
    struct tdm_body of_queries = *r->body;
    struct tdm_tag before = sum;
    before.contributor = tdm_queries_sum_before(l->program, layer, key, chunk);
    const bool opens = before.contributor == l->program->chunk_count;
    of_queries.chunk = chunk;
    tdm_low_op_begin(l, &of_queries, TDM_OP_ATTENTION_GRAD, 0);
    tdm_low_reads(l, TDM_ATTENTION_GRAD_Q, queries, tdm_low_tag(TDM_QUERIES, layer, chunk));
    tdm_low_of_chunk(l, TDM_ATTENTION_GRAD_KV, tdm_low_kv_at_home(l, r->body, key), TDM_READ, pages,
                     pages);
    tdm_low_writes(l, TDM_ATTENTION_GRAD_DQ, to, made);
    tdm_low_of_chunk(l, opens ? TDM_ATTENTION_GRAD_DKV_OPENED : TDM_ATTENTION_GRAD_DKV_ADDED,
                     tdm_low_dkv_at_home(l, r->body, key), opens ? TDM_WRITE : TDM_ACCUMULATE,
                     opens ? nothing() : before, sum);
    tdm_low_op_end(l);
}

static void attend_part(struct round *r, uint32_t chunk, struct tdm_ref queries, uint32_t key)
{
    attend(r, chunk, queries, key, work_at(r, TDM_DQ_PART, 0),
           tdm_low_sum_tag(TDM_DQ_PART, r->body->layer, chunk, key));
}

static void merge_begin(struct round *r, uint32_t chunk, uint32_t key)
{
    struct tdm_body of_queries = *r->body;
    of_queries.chunk = chunk;
    tdm_low_op_begin(r->l, &of_queries, TDM_OP_MERGE, 0);
    tdm_low_reads(r->l, TDM_MERGE_PART, work_at(r, TDM_DQ_PART, 0),
                  tdm_low_sum_tag(TDM_DQ_PART, r->body->layer, chunk, key));
}

/* Attention from the queries that the rank has in a turn to its chunks before theirs. */
static void attend_turn(struct round *r, struct turn turn)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t chunk = queries_of(r, turn), layer = r->body->layer;
    if (chunk == TDM_NONE)
        return;
    const bool is_share = before_of(r, chunk, turn.hops) != TDM_NONE;
    uint32_t last = TDM_NONE, key;
    while ((key = tdm_queries_next_key(program, layer, chunk, own_set(r), last)) != TDM_NONE) {
        const struct tdm_tag sum = dq_tag(r, chunk, turn.hops, key, is_share);
        attend_part(r, chunk, queries_at(r, turn), key);
        merge_begin(r, chunk, key);
        if (last == TDM_NONE)
            tdm_low_writes(r->l, TDM_MERGE_SUM, dq_at(r, turn), sum);
        else
            tdm_low_changes(r->l, TDM_MERGE_SUM, dq_at(r, turn),
                            dq_tag(r, chunk, turn.hops, last, is_share), sum);
        tdm_low_op_end(r->l);
        last = key;
    }
}

/* What the rank has of its chunk of a lap, beside what it has of its first. */
static struct tdm_ref of_own(struct tdm_ref first, struct turn lap)
{
    return (struct tdm_ref){first.buffer, first.slot + lap.lap};
}

/* And of the rank's own queries of a lap to their own chunk, which completes their dQ. */
static void attend_to_itself(struct round *r, struct turn lap, const struct tdm_attention_refs *own)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t chunk = r->own.first + lap.lap, layer = r->body->layer;
    const struct tdm_tag whole = tdm_low_tag(tdm_low_attended(r->l, TDM_DQ), layer, chunk);
    const struct tdm_ref d_q = of_own(own->d_q, lap);
    uint32_t before = tdm_queries_last_key(program, layer, chunk, own_set(r));
    if (before == TDM_NONE)
        before = before_of(r, chunk, 0);
    if (before == TDM_NONE) { /* there is nothing else */
        attend(r, chunk, queries_at(r, lap), chunk, d_q, whole);
        return;
    }
    attend_part(r, chunk, queries_at(r, lap), chunk);
    merge_begin(r, chunk, chunk);
    tdm_low_reads(r->l, TDM_MERGE_SUM, dq_at(r, lap), dq_tag(r, chunk, 0, before, false));
    tdm_low_writes(r->l, TDM_MERGE_OUT, d_q, whole);
    tdm_low_op_end(r->l);
}

static void pack(struct round *r, struct turn lap, const struct tdm_attention_refs *own)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer, chunk = r->own.first + lap.lap;
    struct tdm_body of_chunk = *r->body;
    of_chunk.chunk = chunk;
    tdm_low_op_begin(l, &of_chunk, TDM_OP_PACK_QUERIES, 0);
    tdm_low_reads(l, TDM_PACK_QUERIES_Q, of_own(own->q, lap),
                  tdm_low_tag(tdm_low_attended(l, TDM_Q), layer, chunk));
    tdm_low_reads(l, TDM_PACK_QUERIES_O, of_own(own->out, lap),
                  tdm_low_tag(tdm_low_attended(l, TDM_ATTENTION_OUT), layer, chunk));
    tdm_low_reads(l, TDM_PACK_QUERIES_DO, of_own(own->d_out, lap),
                  tdm_low_tag(tdm_low_attended(l, TDM_DATTENTION), layer, chunk));
    tdm_low_writes(l, TDM_PACK_QUERIES_OUT, queries_at(r, lap),
                   tdm_low_tag(TDM_QUERIES, layer, chunk));
    tdm_low_op_end(l);
}

static void each_work(struct tdm_lowering *l, void (*act)(struct tdm_lowering *, enum tdm_content))
{
    static const enum tdm_content work[] = {TDM_QUERIES, TDM_PASSING_DQ, TDM_DQ_PART, TDM_DQ_SUM};
    for (size_t i = 0; i < sizeof(work) / sizeof(work[0]); i++)
        act(l, work[i]);
}

void tdm_low_queries_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                    const struct tdm_attention_refs *own)
{
    const struct tdm_program *program = l->program;
    const uint32_t first = tdm_round_first(program, body->chunk), sets = tdm_rank_sets(program);
    struct round r = {l, body, first, sets,
                      tdm_round_set(program, first, tdm_round_end(program, first),
                                    tdm_rank_set(program, program->rank))};
    const uint32_t laps = program->ranks / sets, own_laps = r.own.end - r.own.first;
    each_work(l, tdm_low_alloc_work);
    for (uint32_t lap = 0; lap < own_laps; lap++)
        pack(&r, (struct turn){lap, 0}, own);
    for (uint32_t lap = 0; lap < laps; lap++) {
        for (uint32_t hops = 0; hops < sets; hops++) {
            const struct turn turn = {lap, hops};
            hop_after(&r, turn);
            attend_turn(&r, turn);
            if (hops > 1)
                hop_sum(&r, turn);
        }
        hop_sum(&r, (struct turn){lap, sets});
    }
    for (uint32_t lap = 0; lap < own_laps; lap++)
        attend_to_itself(&r, (struct turn){lap, 0}, own);
    each_work(l, tdm_low_release_work);
}
