/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of ranks in a ring whose queries go around in the backward: what their gradient of
 * attention, its parts of dQ and the hops of these must read, write and add to. Written from who
 * sees whom, chunk by chunk, independently of how lowering emits them. If ranks in a row divide the
 * heads, rows are the members of the ring.
 */
#include "schedule/operands_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/operands.h"

/* The last key, beside itself, that adds to dQ of a chunk at one of the rows that have its queries
 * after `from` to `to` hops: at rows in the order of hops, at each by number. With `below` not
 * TDM_NONE: only those before that one. TDM_NONE: there is none. */
static uint32_t last_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                         uint32_t from, uint32_t to, uint32_t below)
{
    uint32_t last = TDM_NONE, most = 0;
    for (uint32_t key = program->chunks[chunk].first_chunk; key < chunk; key++) {
        const uint32_t hops = tdm_hops_to(program, chunk, key);
        if (hops < from || hops > to || key >= below ||
            !tdm_queries_see(program, layer, chunk, key))
            continue;
        if (last == TDM_NONE || hops >= most) {
            last = key;
            most = hops;
        }
    }
    return last;
}

/* What other rows add before one that has the queries after `hops` hops; before the chunk's own
 * row all others. */
static uint32_t others_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                           uint32_t hops)
{
    return last_key(program, layer, chunk, 1, (hops == 0 ? tdm_ring_rows(program) : hops) - 1,
                    TDM_NONE);
}

static uint32_t own_key(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                        uint32_t hops, uint32_t below)
{
    return last_key(program, layer, chunk, hops, hops, below);
}

/* A sum of dQ of a chunk, on the rank that has its queries after `hops` hops. */
static struct tdm_tag dq_tag(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                             uint32_t hops, uint32_t key, bool is_share)
{
    struct tdm_tag tag = tdm_due_tag(hops == 0 ? TDM_DQ_SUM : TDM_PASSING_DQ, layer, chunk, key);
    tag.share = is_share ? program->rank + 1 : 0;
    return tag;
}

/* ---- attention ---- */

/* Has the rank heads of a chunk? */
static bool is_of_own_row(const struct tdm_program *program, uint32_t chunk)
{
    return tdm_row_of(program, chunk) == program->rank / tdm_operands_row(program);
}

/* When queries add to dK and dV of a key: rounds with falling number; in each lap first those of
 * the key's row, then those that come around; after all laps the key's own. */
static uint64_t place_of(const struct tdm_program *program, uint32_t key, uint32_t chunk)
{
    const struct tdm_chunk *chunks = program->chunks;
    const uint32_t last_round = chunks[chunks[key].last_chunk].round;
    const uint32_t turn = chunk == key ? program->ranks
                                       : tdm_lap_of(program, chunk) * tdm_ring_rows(program) +
                                             tdm_hops_to(program, chunk, key);
    return (uint64_t)(last_round - chunks[chunk].round) * (program->ranks + 1) + turn + 1;
}

/* Whose queries add just before those of `chunk`; chunk_count: nobody's. */
static uint32_t added_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                             uint32_t chunk)
{
    const uint64_t own = place_of(program, key, chunk);
    uint32_t before = program->chunk_count;
    uint64_t most = 0;
    for (uint32_t i = key; i <= program->chunks[key].last_chunk; i++) {
        const uint64_t place = place_of(program, key, i);
        if (place < own && place > most && tdm_queries_see(program, layer, i, key)) {
            before = i;
            most = place;
        }
    }
    return before;
}

static enum tdm_status check_grad(const struct tdm_program *program, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    const uint32_t layer = op->layer, chunk = op->chunk;
    const uint32_t key = tdm_operand_is_there(op, TDM_ATTENTION_GRAD_KV)
                             ? op->access[TDM_ATTENTION_GRAD_KV].before.chunk
                             : TDM_NONE;
    if (key >= program->chunk_count || !tdm_queries_see(program, layer, chunk, key))
        return tdm_op_malformed(op, "attends to what its queries do not see", err);
    if (!is_of_own_row(program, key))
        return tdm_op_malformed(op, "attends to keys of another rank", err);
    const bool alone = chunk == key && last_key(program, layer, chunk, 0, tdm_ring_rows(program),
                                                TDM_NONE) == TDM_NONE;
    const struct tdm_tag whole =
        tdm_due_tag(tdm_due_attended(program, TDM_DQ), layer, chunk, TDM_NONE);
    struct tdm_due sum = {TDM_WRITE, tdm_nothing_there,
                          tdm_due_tag(TDM_DKVPAGES, layer, key, chunk)};
    const uint32_t before = added_before(program, layer, key, chunk);
    if (before != program->chunk_count) {
        sum.mode = TDM_ACCUMULATE;
        sum.before = sum.after;
        sum.before.contributor = before;
    }
    const uint32_t at =
        sum.mode == TDM_WRITE ? TDM_ATTENTION_GRAD_DKV_OPENED : TDM_ATTENTION_GRAD_DKV_ADDED;
    const struct tdm_operand_due dues[] = {
        {TDM_ATTENTION_GRAD_Q, tdm_due_read(tdm_due_tag(TDM_QUERIES, layer, chunk, TDM_NONE))},
        {TDM_ATTENTION_GRAD_KV, tdm_due_read(tdm_due_tag(TDM_KVPAGES, layer, key, TDM_NONE))},
        {TDM_ATTENTION_GRAD_DQ,
         {TDM_WRITE, tdm_nothing_there,
          alone ? whole : tdm_due_tag(TDM_DQ_PART, layer, chunk, key)}},
        {at, sum},
    };
    enum tdm_status status =
        tdm_operand_check_dues(program, op, dues, sizeof(dues) / sizeof(dues[0]), err);
    if (status != TDM_OK)
        return status;
    const uint32_t other = TDM_ATTENTION_GRAD_DKV_OPENED + TDM_ATTENTION_GRAD_DKV_ADDED - at;
    return tdm_operand_is_there(op, other) || tdm_operand_is_there(op, TDM_ATTENTION_GRAD_O) ||
                   tdm_operand_is_there(op, TDM_ATTENTION_GRAD_DO) ||
                   tdm_operand_is_there(op, TDM_ATTENTION_GRAD_LISTS)
               ? tdm_op_malformed(op, "has an operand that it must not have", err)
               : TDM_OK;
}

/* A rank's parts of dQ are merged by number. To a chunk's own dQ its own key adds last of all,
 * which leaves the whole. */
static enum tdm_status check_merge(const struct tdm_program *program, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    const uint32_t layer = op->layer, chunk = op->chunk;
    const uint32_t key = tdm_operand_is_there(op, TDM_MERGE_PART)
                             ? op->access[TDM_MERGE_PART].after.contributor
                             : TDM_NONE;
    if (key >= program->chunk_count || !tdm_queries_see(program, layer, chunk, key) ||
        !is_of_own_row(program, key))
        return tdm_op_malformed(op, "merges what its queries do not see", err);
    const uint32_t hops = tdm_hops_to(program, chunk, key);
    const uint32_t others = others_key(program, layer, chunk, hops);
    const struct tdm_tag whole =
        tdm_due_tag(tdm_due_attended(program, TDM_DQ), layer, chunk, TDM_NONE);
    uint32_t before = own_key(program, layer, chunk, hops, key);
    struct tdm_due sum = {TDM_WRITE, tdm_nothing_there,
                          dq_tag(program, layer, chunk, hops, key, others != TDM_NONE)};
    if (key == chunk) {
        before = before == TDM_NONE ? others : before;
        sum = tdm_due_read(dq_tag(program, layer, chunk, hops, before, false));
    } else if (before != TDM_NONE) {
        sum.mode = TDM_ACCUMULATE;
        sum.before = sum.after;
        sum.before.contributor = before;
    }
    enum tdm_status status =
        tdm_operand_check_due(program, op, TDM_MERGE_PART,
                              tdm_due_read(tdm_due_tag(TDM_DQ_PART, layer, chunk, key)), err);
    if (status == TDM_OK)
        status = tdm_operand_check_due(program, op, TDM_MERGE_SUM, sum, err);
    if (status == TDM_OK && key == chunk)
        return tdm_operand_check_due(program, op, TDM_MERGE_OUT,
                                     (struct tdm_due){TDM_WRITE, tdm_nothing_there, whole}, err);
    return status == TDM_OK && tdm_operand_is_there(op, TDM_MERGE_OUT)
               ? tdm_op_malformed(op, "leaves a whole before the last part", err)
               : status;
}

static enum tdm_status check_pack(const struct tdm_program *program, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    static const enum tdm_content reads[] = {TDM_Q, TDM_ATTENTION_OUT, TDM_DATTENTION};
    enum tdm_status status = TDM_OK;
    if (!is_of_own_row(program, op->chunk))
        return tdm_op_malformed(op, "packs queries of another rank", err);
    for (uint32_t i = 0; i < TDM_PACK_QUERIES_OUT && status == TDM_OK; i++)
        status = tdm_operand_check_due(program, op, i,
                                       tdm_due_read(tdm_due_tag(tdm_due_attended(program, reads[i]),
                                                                op->layer, op->chunk, TDM_NONE)),
                                       err);
    return status == TDM_OK
               ? tdm_operand_check_due(
                     program, op, TDM_PACK_QUERIES_OUT,
                     (struct tdm_due){TDM_WRITE, tdm_nothing_there,
                                      tdm_due_tag(TDM_QUERIES, op->layer, op->chunk, TDM_NONE)},
                     err)
               : status;
}

bool tdm_operands_of_queries(const struct tdm_op *op)
{
    return op->kind == TDM_OP_PACK_QUERIES || op->kind == TDM_OP_ATTENTION_GRAD ||
           (op->kind == TDM_OP_MERGE && op->access[TDM_MERGE_PART].after.content == TDM_DQ_PART);
}

enum tdm_status tdm_operands_check_queries(const struct tdm_program *program,
                                           const struct tdm_op *op, struct tdm_error *err)
{
    return op->kind == TDM_OP_PACK_QUERIES     ? check_pack(program, op, err)
           : op->kind == TDM_OP_ATTENTION_GRAD ? check_grad(program, op, err)
                                               : check_merge(program, op, err);
}

/* ---- hops ---- */

enum tdm_status tdm_operands_check_dq_hop(const struct tdm_program *program,
                                          const struct tdm_op *op, uint32_t sent, uint32_t received,
                                          struct tdm_error *err)
{
    const uint32_t layer = op->layer, hops = op->hops % tdm_ring_rows(program);
    if (op->queries != op->chunk)
        return tdm_op_malformed(op, "moves sums of dQ of another round", err);
    uint32_t by = sent == TDM_NONE ? TDM_NONE : others_key(program, layer, sent, hops);
    enum tdm_status status = TDM_OK;
    if (by != TDM_NONE)
        status =
            tdm_operand_check_due(program, op, TDM_HOP_SUM_SENT,
                                  tdm_due_read(tdm_due_tag(TDM_PASSING_DQ, layer, sent, by)), err);
    else if (tdm_operand_is_there(op, TDM_HOP_SUM_SENT))
        return tdm_op_malformed(op, "sends a sum to which nobody has added", err);
    by = received == TDM_NONE ? TDM_NONE : others_key(program, layer, received, hops);
    if (status != TDM_OK || by == TDM_NONE)
        return status == TDM_OK && tdm_operand_is_there(op, TDM_HOP_SUM_RECEIVED)
                   ? tdm_op_malformed(op, "receives a sum to which nobody has added", err)
                   : status;
    const uint32_t own = own_key(program, layer, received, hops, TDM_NONE);
    struct tdm_due due = {
        TDM_WRITE, tdm_nothing_there,
        dq_tag(program, layer, received, hops, own == TDM_NONE ? by : own, false)};
    if (own != TDM_NONE) {
        due.mode = TDM_ACCUMULATE;
        due.before = dq_tag(program, layer, received, hops, own, true);
    }
    return tdm_operand_check_due(program, op, TDM_HOP_SUM_RECEIVED, due, err);
}
