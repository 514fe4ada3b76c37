/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention whose heads are divided among the ranks (DeepSpeed-Ulysses, arXiv 2309.14509).
 *
 * A rank has the q, K and V of its own chunk of a round with all heads. An all-to-all gives it its
 * part of the heads of all chunks of the round. It runs attention for them as one rank would, and a
 * second all-to-all gives each rank the output of its own chunk. In the backward q, the output and
 * its gradient go the same way, and the gradients of q, K and V come back. The gradients of K and V
 * are complete when their round has run, because every rank has run all later chunks.
 */
#include "schedule/lower_parts.h"

#include "ops/team.h"
#include "schedule/layout.h"

enum tdm_content tdm_low_attended(const struct tdm_lowering *l, enum tdm_content content)
{
    if (!tdm_ranks_divide_heads(l->program))
        return content;
    switch (content) {
    case TDM_Q:
        return TDM_HEADS_Q;
    case TDM_ATTENTION_OUT:
        return TDM_HEADS_OUT;
    case TDM_DATTENTION:
        return TDM_HEADS_DOUT;
    case TDM_DQ:
        return TDM_HEADS_DQ;
    default:
        return content;
    }
}

/* Chunks of a round that exchange heads, and those of them whose heads the rank has: of its set. */
struct some {
    uint32_t first, end;
    struct tdm_set_chunks set;
};

static struct some some_of(const struct tdm_lowering *l, uint32_t first, uint32_t end)
{
    const uint32_t set = tdm_rank_set(l->program, l->program->rank);
    return (struct some){first, end, tdm_round_set(l->program, first, end, set)};
}

/* Has the rank a chunk among them? */
static bool has_own(const struct tdm_body *body, struct some chunks)
{
    return !body->absent && body->chunk < chunks.end;
}

/* Begins an exchange of chunks. `mode`: how it works on the rank's own chunk, at `own` with content
 * `whole`. */
static void begin(struct tdm_lowering *l, const struct tdm_body *body, struct some chunks,
                  enum tdm_mode mode, struct tdm_ref own, enum tdm_content whole)
{
    if (l->lives_only)
        return;
    const struct tdm_tag what = tdm_low_tag(whole, body->layer, body->chunk);
    tdm_low_round_begin(l, body, TDM_OP_ALL_TO_ALL, chunks.first, chunks.end);
    if (has_own(body, chunks))
        tdm_low_access(l, TDM_ALL_TO_ALL_CHUNK, own, 1, mode, 0,
                       mode == TDM_READ ? what : tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE), what,
                       tdm_chunks_bytes(l->program, whole, body->chunk, body->chunk + 1));
}

static void end(struct tdm_lowering *l, const struct tdm_body *body, struct some chunks,
                enum tdm_mode mode, struct tdm_ref at, struct tdm_tag heads)
{
    if (l->lives_only)
        return;
    const struct tdm_set_chunks set = chunks.set;
    if (set.first < set.end)
        tdm_low_access(l, TDM_ALL_TO_ALL_HEADS, at, set.end - set.first, mode, 0,
                       mode == TDM_READ ? heads : tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE), heads,
                       tdm_chunks_bytes(l->program, heads.content, set.first, set.end));
    if (has_own(body, chunks))
        tdm_low_access(
            l, TDM_ALL_TO_ALL_PARTED, tdm_low_work(l, TDM_PARTED), 1, TDM_WRITE, 0,
            tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE),
            tdm_low_tag(TDM_PARTED, body->layer, body->chunk),
            tdm_parted_bytes(l->schedule, heads.content, l->program->chunks[body->chunk].tokens));
    tdm_low_op_end(l);
}

/* From the rank's own chunk to its heads of all chunks, in the workspace, which is allocated. */
static void spread(struct tdm_lowering *l, const struct tdm_body *body, struct some chunks,
                   struct tdm_ref own, enum tdm_content whole)
{
    const enum tdm_content heads = tdm_low_attended(l, whole);
    tdm_low_alloc_work(l, heads);
    begin(l, body, chunks, TDM_READ, own, whole);
    end(l, body, chunks, TDM_WRITE, tdm_low_work(l, heads),
        tdm_low_tag(heads, body->layer, chunks.set.first));
}

/* And back. The workspace is released. */
static void collect(struct tdm_lowering *l, const struct tdm_body *body, struct some chunks,
                    struct tdm_ref own, enum tdm_content whole)
{
    const enum tdm_content heads = tdm_low_attended(l, whole);
    begin(l, body, chunks, TDM_WRITE, own, whole);
    end(l, body, chunks, TDM_READ, tdm_low_work(l, heads),
        tdm_low_tag(heads, body->layer, chunks.set.first));
    tdm_low_release_work(l, heads);
}

/* The rank's heads of a chunk in the workspace. */
static struct tdm_ref part_of(const struct tdm_lowering *l, enum tdm_content whole,
                              struct some chunks, uint32_t chunk)
{
    return (struct tdm_ref){l->layout->work[tdm_low_attended(l, whole)], chunk - chunks.set.first};
}

struct tdm_ref tdm_low_own_kv(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return (struct tdm_ref){l->layout->work[TDM_OWN_KVPAGES],
                            l->program->chunks[body->chunk].slot % 2};
}

/* K and V in a row, or what is summed of their gradients, of the chunks of which the rank has
 * heads. */
static struct tdm_ref heads_in_row(const struct tdm_lowering *l, const struct tdm_body *body,
                                   uint32_t row, struct some chunks)
{
    return chunks.set.first < chunks.set.end ? tdm_low_kv_ref(l, body, row, chunks.set.first)
                                             : tdm_nowhere;
}

void tdm_low_heads_kv(struct tdm_lowering *l, const struct tdm_body *body, uint32_t first,
                      uint32_t end_chunk)
{
    const struct some chunks = some_of(l, first, end_chunk);
    const uint32_t row = tdm_low_kv_row(l, body->layer, body->pass);
    begin(l, body, chunks, TDM_READ, tdm_low_own_kv(l, body), TDM_OWN_KVPAGES);
    end(l, body, chunks, TDM_WRITE, heads_in_row(l, body, row, chunks),
        tdm_low_tag(TDM_KVPAGES, body->layer, chunks.set.first));
}

/* Attention of each chunk with the rank's heads, over the row of K and V. */
static void attend_each(struct tdm_lowering *l, const struct tdm_body *body, struct some chunks)
{
    if (l->lives_only)
        return;
    struct tdm_body other = *body;
    for (other.chunk = chunks.set.first; other.chunk < chunks.set.end; other.chunk++)
        tdm_low_attention(l, &other, part_of(l, TDM_Q, chunks, other.chunk),
                          part_of(l, TDM_ATTENTION_OUT, chunks, other.chunk), tdm_nowhere);
}

void tdm_low_heads_attention(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                             struct tdm_ref output)
{
    const struct some chunks =
        some_of(l, tdm_round_first(l->program, body->chunk), tdm_low_attention_end(l, body));
    if (chunks.first == chunks.end)
        return;
    spread(l, body, chunks, q, TDM_Q);
    tdm_low_alloc_work(l, TDM_HEADS_OUT);
    if (tdm_ranks_ring(l->program))
        tdm_low_ring_attention(l, body, tdm_low_work(l, TDM_HEADS_Q),
                               tdm_low_work(l, TDM_HEADS_OUT));
    else
        attend_each(l, body, chunks);
    tdm_low_release_work(l, TDM_HEADS_Q);
    collect(l, body, chunks, output, TDM_ATTENTION_OUT);
}

void tdm_low_heads_dkv(struct tdm_lowering *l, const struct tdm_body *body)
{
    const struct some chunks = some_of(l, tdm_round_first(l->program, body->chunk),
                                       tdm_round_end(l->program, body->chunk));
    const uint32_t row = tdm_low_seen_dkv(l, body->layer);
    if (!body->absent)
        tdm_low_alloc_work(l, TDM_OWN_DKVPAGES);
    begin(l, body, chunks, TDM_WRITE, tdm_low_work(l, TDM_OWN_DKVPAGES), TDM_OWN_DKVPAGES);
    end(l, body, chunks, TDM_READ, heads_in_row(l, body, row, chunks),
        tdm_low_sum_tag(TDM_DKVPAGES, body->layer, chunks.set.first, TDM_ITSELF));
}

/* And its gradient, in reverse. */
static void attend_each_grad(struct tdm_lowering *l, const struct tdm_body *body,
                             struct some chunks)
{
    if (l->lives_only)
        return;
    struct tdm_body other = *body;
    for (other.chunk = chunks.set.end; other.chunk-- > chunks.set.first;) {
        const struct tdm_attention_refs refs = {
            .q = part_of(l, TDM_Q, chunks, other.chunk),
            .out = part_of(l, TDM_ATTENTION_OUT, chunks, other.chunk),
            .d_out = part_of(l, TDM_DATTENTION, chunks, other.chunk),
            .d_q = part_of(l, TDM_DQ, chunks, other.chunk),
            .lists = tdm_nowhere,
        };
        tdm_low_attention_grad(l, &other, &refs);
    }
}

void tdm_low_heads_attention_grad(struct tdm_lowering *l, const struct tdm_body *body,
                                  const struct tdm_attention_refs *own)
{
    static const struct tdm_attention_refs none = {
        {TDM_NONE, 0}, {TDM_NONE, 0}, {TDM_NONE, 0}, {TDM_NONE, 0}, {TDM_NONE, 0}};
    const struct some chunks = some_of(l, tdm_round_first(l->program, body->chunk),
                                       tdm_round_end(l->program, body->chunk));
    const struct tdm_attention_refs heads = {.q = tdm_low_work(l, TDM_HEADS_Q),
                                             .out = tdm_low_work(l, TDM_HEADS_OUT),
                                             .d_out = tdm_low_work(l, TDM_HEADS_DOUT),
                                             .d_q = tdm_low_work(l, TDM_HEADS_DQ),
                                             .lists = tdm_nowhere};
    if (own == NULL)
        own = &none;
    spread(l, body, chunks, own->q, TDM_Q);
    spread(l, body, chunks, own->out, TDM_ATTENTION_OUT);
    spread(l, body, chunks, own->d_out, TDM_DATTENTION);
    tdm_low_alloc_work(l, TDM_HEADS_DQ);
    if (tdm_ranks_ring(l->program))
        tdm_low_ring_attention_grad(l, body, &heads);
    else
        attend_each_grad(l, body, chunks);
    tdm_low_release_work(l, TDM_HEADS_Q);
    tdm_low_release_work(l, TDM_HEADS_OUT);
    tdm_low_release_work(l, TDM_HEADS_DOUT);
    collect(l, body, chunks, own->d_q, TDM_DQ);
    if (!tdm_ranks_gather(l->program)) /* else the other sets have shares of dK and dV */
        tdm_low_heads_dkv(l, body);
}
