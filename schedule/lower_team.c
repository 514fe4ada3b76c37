/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Team ops of several ranks (ops/team.h).
 *
 * A rank makes the K and V of its own chunks, and rounds gather those of all ranks into the row
 * that attention reads, or exchange heads (lower_heads.c), or they go around (lower_ring.c). With
 * gathered K and V, in the backward each rank adds to shares of dK and dV of all chunks that its
 * own chunks see; when a round has run, the shares of its chunks are reduced to the ranks that own
 * them. Each rank gets the sum of all shares of a gradient in the part that it updates.
 *
 * Team ops have a lane of their own. Order follows from their operands, so a rank computes while
 * they wait for others and run, until an op needs what they make.
 */
#include "schedule/lower_parts.h"

#include "ops/team.h"
#include "schedule/attend.h"
#include "schedule/slices.h"

/* Begins a team op. All are on one lane, which gives them the same order on all ranks. */
static void team_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                       enum tdm_part part)
{
    tdm_low_op_begin(l, body, kind, part);
    l->op.link = TDM_LINK_PEER;
    l->op.lane = l->schedule->machine->topology.links[TDM_LINK_PEER].lane;
}

void tdm_low_round_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                         uint32_t first, uint32_t end)
{
    if (l->lives_only)
        return;
    struct tdm_body of_round = *body;
    of_round.chunk = first;
    team_begin(l, &of_round, kind, 0);
    for (uint32_t chunk = first + 1; chunk < end; chunk++)
        l->op.tokens += l->program->chunks[chunk].tokens;
}

/* The chunk after those of a round whose K and V bodies like this one make or fetch. */
static uint32_t made_end(const struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t end = tdm_round_end(l->program, body->chunk);
    struct tdm_body other = *body;
    for (other.chunk = tdm_round_first(l->program, body->chunk); other.chunk < end; other.chunk++)
        if (tdm_low_kv_step(l, &other) == TDM_KV_THERE)
            break;
    return other.chunk;
}

uint32_t tdm_low_attention_end(const struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t low = tdm_round_first(l->program, body->chunk);
    uint32_t high = tdm_round_end(l->program, body->chunk);
    struct tdm_body other = *body;
    while (low < high) { /* what is stored for a chunk, is for all later ones */
        uint64_t made;
        other.chunk = low + (high - low) / 2;
        tdm_low_reads_of_body(l, &other, &made);
        if ((made & TDM_BIT(TDM_ATTENTION_OUT)) != 0)
            low = other.chunk + 1;
        else
            high = other.chunk;
    }
    return low;
}

/* Chunks of a round: those of the rank's set, and the others before and after them. */
struct round_chunks {
    uint32_t first, own, after, end;
};

static struct round_chunks chunks_of(const struct tdm_lowering *l, uint32_t first, uint32_t end)
{
    const struct tdm_set_chunks own =
        tdm_round_set(l->program, first, end, tdm_rank_set(l->program, l->program->rank));
    return (struct round_chunks){first, own.first, own.end, end};
}

/* The own chunks of a row, and those of the others, as three operands from `operand` on. */
static void gather_row(struct tdm_lowering *l, const struct tdm_body *body, uint32_t operand,
                       uint32_t row, struct round_chunks chunks, enum tdm_content content)
{
    const struct tdm_tag what = tdm_low_tag(content, body->layer, TDM_NONE);
    const struct tdm_tag empty = tdm_low_tag(TDM_EMPTY, TDM_NONE, TDM_NONE);
    tdm_low_chunks(l, operand, body, row, chunks.own, chunks.after, TDM_READ, what, what);
    tdm_low_chunks(l, operand + 1, body, row, chunks.first, chunks.own, TDM_WRITE, empty, what);
    tdm_low_chunks(l, operand + 2, body, row, chunks.after, chunks.end, TDM_WRITE, empty, what);
}

static void gather(struct tdm_lowering *l, const struct tdm_body *body, uint32_t first,
                   uint32_t end)
{
    if (l->lives_only)
        return;
    const struct round_chunks chunks = chunks_of(l, first, end);
    tdm_low_round_begin(l, body, TDM_OP_GATHER, first, end);
    gather_row(l, body, TDM_GATHER_OWN, tdm_low_kv_row(l, body->layer, body->pass), chunks,
               TDM_KVPAGES);
    if (tdm_low_makes_means(l, body))
        gather_row(l, body, TDM_GATHER_OWN_MEANS, l->layout->means[body->layer], chunks,
                   TDM_PAGE_MEANS);
    tdm_low_op_end(l);
}

void tdm_low_exchange_kv(struct tdm_lowering *l, const struct tdm_body *body)
{
    const uint32_t first = tdm_round_first(l->program, body->chunk);
    const uint32_t end = l->program->ranks > 1 ? made_end(l, body) : first;
    if (first < end && tdm_ranks_divide_heads(l->program))
        tdm_low_heads_kv(l, body, first, end);
    if (first < end && tdm_ranks_gather(l->program))
        gather(l, body, first, end);
}

/* Reads the rank's shares of chunks [first, end), to which its chunk `last` was the last to add if
 * it sees them. */
static void reads_shares(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                         uint32_t first, uint32_t end, uint32_t last)
{
    if (first == end || last > l->program->chunks[first].last_chunk)
        return;
    struct tdm_tag share = tdm_low_share_tag(l, TDM_DKVPAGES, body->layer, TDM_NONE, last);
    uint32_t seen = tdm_attend_first(l->program, body->layer, last);
    first = first < seen ? seen : first;
    if (first < end)
        tdm_low_chunks(l, operand, body, tdm_low_seen_dkv(l, body->layer), first, end, TDM_READ,
                       share, share);
}

bool tdm_low_ranks_add_first(const struct tdm_lowering *l)
{
    return tdm_ranks_divide_heads(l->program) || tdm_ranks_ring(l->program);
}

void tdm_low_reduce(struct tdm_lowering *l, const struct tdm_body *body)
{
    if (l->lives_only)
        return;
    const uint32_t first = tdm_round_first(l->program, body->chunk);
    const uint32_t end = tdm_round_end(l->program, body->chunk);
    const struct round_chunks chunks = chunks_of(l, first, end);
    if (!tdm_ranks_gather(l->program))
        return;
    tdm_low_round_begin(l, body, TDM_OP_REDUCE, first, end);
    if (chunks.own < chunks.after) {
        const uint32_t row = tdm_low_seen_dkv(l, body->layer), last = chunks.after - 1;
        const uint32_t by = tdm_ranks_divide_heads(l->program) ? TDM_ITSELF : chunks.own;
        struct tdm_tag share = tdm_low_share_tag(l, TDM_DKVPAGES, body->layer, chunks.own, by);
        struct tdm_tag sum = tdm_low_sum_tag(TDM_DKVPAGES, body->layer, chunks.own, by);
        tdm_low_chunks(l, TDM_REDUCE_OWN, body, row, chunks.own, chunks.after, TDM_ACCUMULATE,
                       share, sum);
        reads_shares(l, TDM_REDUCE_BELOW, body, first, chunks.own, chunks.own);
        reads_shares(l, TDM_REDUCE_ABOVE, body, chunks.after, end,
                     tdm_kv_sum_before(l->program, last));
    } else {
        reads_shares(l, TDM_REDUCE_BELOW, body, first, end, tdm_set_next(l->program, end));
    }
    tdm_low_op_end(l);
}

/* Sums all ranks' shares of a gradient, or of one part of it. */
static void reduce_all(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_part part,
                       struct tdm_ref at, struct tdm_tag share)
{
    if (l->lives_only)
        return;
    struct tdm_tag sum = tdm_low_complete_tag(l, share.content, share.layer);
    bool tied = share.content == TDM_TIED_GRADIENT, by_part = tdm_sums_by_part(l->schedule);
    uint64_t bytes = tdm_part_bytes(l->model, share.layer, tied ? TDM_PART_EMBEDDING : part,
                                    l->schedule->dtypes.gradients);
    team_begin(l, body, by_part ? TDM_OP_REDUCE_SCATTER : TDM_OP_REDUCE_ALL, part);
    tdm_low_access(l, by_part ? (uint32_t)TDM_REDUCE_SCATTER_SUM : (uint32_t)TDM_REDUCE_ALL_SUM, at,
                   1, TDM_ACCUMULATE, tied ? 0 : part, share, sum, bytes);
    tdm_low_op_end(l);
}

void tdm_low_reduce_norm(struct tdm_lowering *l, const struct tdm_body *body)
{
    struct tdm_tag sum = tdm_low_tag(TDM_GRADIENT_NORM, body->layer, TDM_NONE), share = sum;
    share.share = tdm_rank_share(l->program);
    team_begin(l, body, TDM_OP_REDUCE_ALL, TDM_PART_ALL);
    tdm_low_access(l, TDM_REDUCE_ALL_SUM, (struct tdm_ref){l->layout->norms, body->layer}, 1,
                   TDM_ACCUMULATE, 0, share, sum, sizeof(double));
    tdm_low_op_end(l);
}

void tdm_low_reduce_gradient(struct tdm_lowering *l, const struct tdm_body *body)
{
    const uint32_t unit = body->layer;
    const bool head = unit == tdm_model_head_unit(l->model);
    const uint32_t last = tdm_rank_next(l->program, 0); /* the rank's first chunk adds last */
    struct tdm_tag share = tdm_low_share_tag(l, TDM_UNIT_GRADIENT, unit, TDM_NONE, last);
    reduce_all(l, body, head ? TDM_PART_FINAL_NORM : TDM_PART_ALL, tdm_low_gradient_ref(l, unit),
               share);
    if (!head)
        return;
    share.contributor = l->layout->tile_base[last] * l->layout->vocabulary_tiles;
    if (!l->model->tied) {
        reduce_all(l, body, TDM_PART_HEAD, tdm_low_gradient_ref(l, unit), share);
        return;
    }
    share.content = TDM_TIED_GRADIENT;
    share.layer = tdm_model_embedding_unit(l->model);
    reduce_all(l, body, TDM_PART_HEAD, (struct tdm_ref){l->layout->tied_gradient, 0}, share);
}

void tdm_low_gather_weights(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref at,
                            uint32_t contributor)
{
    const uint32_t unit = body->layer;
    struct tdm_tag all = tdm_low_sum_tag(TDM_UNIT_WEIGHTS, unit, TDM_NONE, contributor);
    struct tdm_tag part = tdm_low_share_tag(l, TDM_UNIT_WEIGHTS, unit, TDM_NONE, contributor);
    team_begin(l, body, TDM_OP_GATHER_ALL, TDM_PART_ALL);
    tdm_low_access(l, TDM_GATHER_ALL_WEIGHTS, at, 1, TDM_ACCUMULATE, TDM_PART_ALL, part, all,
                   tdm_part_bytes(l->model, unit, TDM_PART_ALL, l->schedule->dtypes.weights));
    tdm_low_op_end(l);
}
