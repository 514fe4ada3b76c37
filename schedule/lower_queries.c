/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of attention of ranks in a ring whose queries go around (queries.h).
 *
 * A rank packs what the gradient reads of its own queries. The next hop is emitted before the
 * attention of a turn, so that it runs beside that, and so is the hop of a sum of dQ beside the
 * next turn. A rank contributes to the dQ of others in a slot for the sum on its way, in which what
 * came before is added to it.
 */
#include "schedule/lower_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/queries.h"

/* The round of a body. */
struct round {
    struct tdm_lowering *l;
    const struct tdm_body *body;
    uint32_t first; /* its first chunk */
    uint32_t own;   /* the rank's chunk; TDM_NONE: none */
};

static struct tdm_tag nothing(void)
{
    return tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
}

static struct tdm_ref work_at(const struct round *r, enum tdm_content content, uint32_t slot)
{
    return (struct tdm_ref){r->l->layout->work[content], slot};
}

/* After some hops: the chunk whose queries the rank has, or TDM_NONE, where they are, and where the
 * sum of their dQ is. A rank's own are in slot 0. */
static uint32_t queries_of(const struct round *r, uint32_t hops)
{
    const uint32_t ranks = r->l->program->ranks;
    return tdm_round_of(r->l->program, r->first, (r->l->program->rank + ranks - hops) % ranks);
}

static struct tdm_ref queries_at(const struct round *r, uint32_t hops)
{
    return work_at(r, TDM_QUERIES, hops == 0 ? 0 : 1 + hops % (TDM_QUERIES_SLOTS - 1));
}

static struct tdm_ref dq_at(const struct round *r, uint32_t hops)
{
    return hops % r->l->program->ranks == 0
               ? work_at(r, TDM_DQ_SUM, 0)
               : work_at(r, TDM_PASSING_DQ, hops % TDM_PASSING_DQ_SLOTS);
}

/* A sum of dQ to which the rank's key adds, as the rank has it `hops` hops after it began. Until
 * those of the ranks before have come it is a share, unless there are none. */
static struct tdm_tag dq_tag(const struct round *r, uint32_t chunk, uint32_t hops, uint32_t key,
                             bool is_share)
{
    const enum tdm_content content = hops % r->l->program->ranks == 0 ? TDM_DQ_SUM : TDM_PASSING_DQ;
    return is_share ? tdm_low_share_tag(r->l, content, r->body->layer, chunk, key)
                    : tdm_low_sum_tag(content, r->body->layer, chunk, key);
}

/* What ranks before contribute to a chunk's dQ: those that have it in fewer than `hops` hops; in
 * none: all others, which comes home. */
static uint32_t before_of(const struct round *r, uint32_t chunk, uint32_t hops)
{
    const struct tdm_program *program = r->l->program;
    return tdm_queries_contributor(program, r->body->layer, chunk,
                                   (hops == 0 ? program->ranks : hops) - 1);
}

/* ---- hops ---- */

static void hop(struct round *r, uint32_t hops)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t layer = r->body->layer;
    const uint32_t sent = queries_of(r, hops - 1), received = queries_of(r, hops);
    if (hops == program->ranks)
        return;
    tdm_low_hop_begin(r->l, r->body, TDM_OP_HOP, r->first, hops, r->first);
    if (sent != TDM_NONE && tdm_queries_are_read(program, layer, sent, hops)) {
        const struct tdm_tag what = tdm_low_tag(TDM_QUERIES, layer, sent);
        tdm_low_of_chunk(r->l, TDM_HOP_SENT, queries_at(r, hops - 1), TDM_READ, what, what);
    }
    if (received != TDM_NONE && tdm_queries_are_read(program, layer, received, hops))
        tdm_low_of_chunk(r->l, TDM_HOP_RECEIVED, queries_at(r, hops), TDM_WRITE, nothing(),
                         tdm_low_tag(TDM_QUERIES, layer, received));
    tdm_low_op_end(r->l);
}

/* Sums of dQ go on, to what the rank contributes after `hops` hops, or home. */
static void hop_sum(struct round *r, uint32_t hops)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t sent = queries_of(r, hops - 1), received = queries_of(r, hops);
    tdm_low_hop_begin(r->l, r->body, TDM_OP_HOP_SUM, r->first, hops, r->first);
    uint32_t by = sent == TDM_NONE ? TDM_NONE : before_of(r, sent, hops);
    if (by != TDM_NONE) {
        const struct tdm_tag sum = dq_tag(r, sent, hops - 1, by, false);
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_SENT, dq_at(r, hops - 1), TDM_READ, sum, sum);
    }
    by = received == TDM_NONE ? TDM_NONE : before_of(r, received, hops);
    if (by != TDM_NONE) {
        const uint32_t key = tdm_queries_last_key(program, r->body->layer, received, program->rank);
        const bool opens = key == TDM_NONE;
        tdm_low_of_chunk(r->l, TDM_HOP_SUM_RECEIVED, dq_at(r, hops),
                         opens ? TDM_WRITE : TDM_ACCUMULATE,
                         opens ? nothing() : dq_tag(r, received, hops, key, true),
                         dq_tag(r, received, hops, opens ? by : key, false));
    }
    tdm_low_op_end(r->l);
}

/* ---- attention ---- */

/* From the queries of a chunk, at `queries`, to K and V of one of the rank's own. dQ of the key
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

/* Attention from the queries that the rank has after some hops to its chunks before theirs. */
static void attend_turn(struct round *r, uint32_t hops)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t chunk = queries_of(r, hops), layer = r->body->layer;
    if (chunk == TDM_NONE)
        return;
    const bool is_share = before_of(r, chunk, hops) != TDM_NONE;
    uint32_t last = TDM_NONE, key;
    while ((key = tdm_queries_next_key(program, layer, chunk, program->rank, last)) != TDM_NONE) {
        const struct tdm_tag sum = dq_tag(r, chunk, hops, key, is_share);
        attend_part(r, chunk, queries_at(r, hops), key);
        merge_begin(r, chunk, key);
        if (last == TDM_NONE)
            tdm_low_writes(r->l, TDM_MERGE_SUM, dq_at(r, hops), sum);
        else
            tdm_low_changes(r->l, TDM_MERGE_SUM, dq_at(r, hops),
                            dq_tag(r, chunk, hops, last, is_share), sum);
        tdm_low_op_end(r->l);
        last = key;
    }
}

/* And of the rank's own queries to its own chunk, which completes their dQ. */
static void attend_to_itself(struct round *r, const struct tdm_attention_refs *own)
{
    const struct tdm_program *program = r->l->program;
    const uint32_t chunk = r->own, layer = r->body->layer;
    const struct tdm_tag whole = tdm_low_tag(TDM_DQ, layer, chunk);
    uint32_t before = tdm_queries_last_key(program, layer, chunk, program->rank);
    if (before == TDM_NONE)
        before = before_of(r, chunk, 0);
    if (before == TDM_NONE) { /* there is nothing else */
        attend(r, chunk, queries_at(r, 0), chunk, own->d_q, whole);
        return;
    }
    attend_part(r, chunk, queries_at(r, 0), chunk);
    merge_begin(r, chunk, chunk);
    tdm_low_reads(r->l, TDM_MERGE_SUM, dq_at(r, 0), dq_tag(r, chunk, 0, before, false));
    tdm_low_writes(r->l, TDM_MERGE_OUT, own->d_q, whole);
    tdm_low_op_end(r->l);
}

static void pack(struct round *r, const struct tdm_attention_refs *own)
{
    struct tdm_lowering *l = r->l;
    const uint32_t layer = r->body->layer;
    tdm_low_op_begin(l, r->body, TDM_OP_PACK_QUERIES, 0);
    tdm_low_reads(l, TDM_PACK_QUERIES_Q, own->q, tdm_low_tag(TDM_Q, layer, r->own));
    tdm_low_reads(l, TDM_PACK_QUERIES_O, own->out, tdm_low_tag(TDM_ATTENTION_OUT, layer, r->own));
    tdm_low_reads(l, TDM_PACK_QUERIES_DO, own->d_out, tdm_low_tag(TDM_DATTENTION, layer, r->own));
    tdm_low_writes(l, TDM_PACK_QUERIES_OUT, queries_at(r, 0),
                   tdm_low_tag(TDM_QUERIES, layer, r->own));
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
    struct round r = {l, body, tdm_round_first(l->program, body->chunk),
                      own == NULL ? TDM_NONE : body->chunk};
    each_work(l, tdm_low_alloc_work);
    if (own != NULL)
        pack(&r, own);
    for (uint32_t hops = 0; hops < l->program->ranks; hops++) {
        hop(&r, hops + 1);
        attend_turn(&r, hops);
        if (hops > 1)
            hop_sum(&r, hops);
    }
    hop_sum(&r, l->program->ranks);
    if (own != NULL)
        attend_to_itself(&r, own);
    each_work(l, tdm_low_release_work);
}
