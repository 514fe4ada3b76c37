/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of ranks in a ring: what attention over one chunk of K and V at a time, the merging of
 * its parts, and hops must read, write and add to. Written from who sees whom, chunk by chunk,
 * independently of how lowering emits them. If ranks in a row divide the heads, rows are the
 * members of the ring, and a row has several chunks of a round.
 */
#include "schedule/operands_parts.h"

#include "ops/attention.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/operands.h"
#include "schedule/tags.h"

const struct tdm_tag tdm_nothing_there = {TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE, 0};

enum tdm_status tdm_op_malformed(const struct tdm_op *op, const char *what, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) %s",
                    (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                    (int)op->chunk, what);
}

bool tdm_operand_is_there(const struct tdm_op *op, uint32_t operand)
{
    return operand < op->access_count && op->access[operand].buffer != TDM_NONE;
}

enum tdm_status tdm_operand_check_due(const struct tdm_program *program, const struct tdm_op *op,
                                      uint32_t operand, struct tdm_due due, struct tdm_error *err)
{
    const struct tdm_access *access = &op->access[operand];
    char text[TDM_TAG_TEXT];
    if (!tdm_operand_is_there(op, operand))
        return tdm_op_malformed(op, "lacks an operand", err);
    const uint64_t bytes = tdm_content_bytes(program->schedule, due.after.content, 0,
                                             program->chunks[due.after.chunk].tokens);
    if (access->mode != due.mode || access->slots != 1 || access->part != 0 ||
        access->bytes != bytes)
        return tdm_op_malformed(op, "has an operand of the wrong chunks, bytes or mode", err);
    if (!tdm_tag_same(access->after, due.after) ||
        (due.mode != TDM_WRITE && !tdm_tag_same(access->before, due.before)))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) does not leave %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                        (int)op->chunk, tdm_tag_show(due.after, text));
    return TDM_OK;
}

enum tdm_status tdm_operand_check_dues(const struct tdm_program *program, const struct tdm_op *op,
                                       const struct tdm_operand_due *dues, size_t count,
                                       struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = tdm_operand_check_due(program, op, dues[i].operand, dues[i].due, err);
    return status;
}

struct tdm_due tdm_due_read(struct tdm_tag what)
{
    return (struct tdm_due){TDM_READ, what, what};
}

/* ---- who sees whom ---- */

bool tdm_queries_see(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                     uint32_t key)
{
    return chunk >= key && program->chunks[chunk].sequence == program->chunks[key].sequence &&
           tdm_operands_first_seen(program, layer, chunk) <= key;
}

uint32_t tdm_row_of(const struct tdm_program *program, uint32_t chunk)
{
    return program->chunks[chunk].rank / tdm_operands_row(program);
}

uint32_t tdm_ring_rows(const struct tdm_program *program)
{
    return program->ranks / tdm_operands_row(program);
}

uint32_t tdm_hops_to(const struct tdm_program *program, uint32_t from, uint32_t to)
{
    const uint32_t rows = tdm_ring_rows(program);
    return (tdm_row_of(program, to) + rows - tdm_row_of(program, from)) % rows;
}

uint32_t tdm_lap_of(const struct tdm_program *program, uint32_t chunk)
{
    uint32_t lap = 0;
    for (uint32_t i = chunk; i-- > 0 && program->chunks[i].round == program->chunks[chunk].round;)
        lap += tdm_row_of(program, i) == tdm_row_of(program, chunk);
    return lap;
}

/* The one of a round whose queries see `key` and who adds last to its sum within `hops` hops, or
 * TDM_NONE. Chunks of a row add with falling number. */
static uint32_t last_on_way(const struct tdm_program *program, uint32_t layer, uint32_t round,
                            uint32_t key, uint32_t hops)
{
    uint32_t last = TDM_NONE, most = 0;
    for (uint32_t i = key; i < program->chunk_count && program->chunks[i].round <= round; i++) {
        const uint32_t after = tdm_hops_to(program, key, i);
        if (program->chunks[i].round == round && after > most && after <= hops &&
            tdm_queries_see(program, layer, i, key)) {
            last = i;
            most = after;
        }
    }
    return last;
}

/* The chunk after `chunk` of its row and round that sees `key` too; TDM_NONE: there is none. */
static uint32_t next_of_row(const struct tdm_program *program, uint32_t layer, uint32_t key,
                            uint32_t chunk)
{
    for (uint32_t i = chunk + 1;
         i < program->chunk_count && program->chunks[i].round == program->chunks[chunk].round; i++)
        if (tdm_hops_to(program, chunk, i) == 0)
            return tdm_queries_see(program, layer, i, key) ? i : TDM_NONE;
    return TDM_NONE;
}

/* Who added to the sum of `key` at home just before `contributor`: rounds add with falling number;
 * of each, what came around, and then the home's own with falling number. chunk_count: nobody. */
static uint32_t added_before(const struct tdm_program *program, uint32_t layer, uint32_t key,
                             uint32_t contributor)
{
    const struct tdm_chunk *chunks = program->chunks;
    uint32_t before = program->chunk_count;
    for (uint32_t round = chunks[chunks[key].last_chunk].round; round >= chunks[key].round;
         round--) {
        const uint32_t around = last_on_way(program, layer, round, key, tdm_ring_rows(program) - 1);
        if (around == contributor)
            return before;
        before = around == TDM_NONE ? before : around;
        for (uint32_t i = chunks[key].last_chunk + 1; i-- > key;) {
            if (chunks[i].round != round || tdm_hops_to(program, key, i) != 0 ||
                !tdm_queries_see(program, layer, i, key))
                continue;
            if (i == contributor)
                return before;
            before = i;
        }
        if (round == 0)
            break;
    }
    return TDM_NONE; /* it adds nothing */
}

/* When `chunk` attends to chunk `key`: rounds come with rising number, the laps of each too, and in
 * a lap the chunks by their hops, the row's own last. */
static uint64_t place_of(const struct tdm_program *program, uint32_t chunk, uint32_t key)
{
    const uint32_t hops = tdm_hops_to(program, key, chunk), rows = tdm_ring_rows(program);
    return ((uint64_t)program->chunks[key].round * tdm_operands_row(program) +
            tdm_lap_of(program, key)) *
               (rows + 1) +
           (hops == 0 ? rows : hops);
}

/* The chunk of K and V that `chunk` attends to just before `key`. TDM_NONE: `key` is the first.
 * *more: there are some after it. */
static uint32_t attended_before(const struct tdm_program *program, uint32_t layer, uint32_t chunk,
                                uint32_t key, bool *more)
{
    const uint64_t place_of_key = place_of(program, chunk, key);
    uint64_t place_of_before = 0;
    uint32_t before = TDM_NONE;
    *more = false;
    for (uint32_t i = program->chunks[chunk].first_chunk; i <= chunk; i++) {
        if (!tdm_queries_see(program, layer, chunk, i))
            continue;
        const uint64_t place = place_of(program, chunk, i);
        *more |= place > place_of_key;
        if (place < place_of_key && place >= place_of_before) {
            before = i;
            place_of_before = place;
        }
    }
    return before;
}

/* ---- attention ---- */

enum tdm_content tdm_due_attended(const struct tdm_program *program, enum tdm_content whole)
{
    if (tdm_operands_row(program) == 1)
        return whole;
    return whole == TDM_Q               ? TDM_HEADS_Q
           : whole == TDM_ATTENTION_OUT ? TDM_HEADS_OUT
           : whole == TDM_DATTENTION    ? TDM_HEADS_DOUT
                                        : TDM_HEADS_DQ;
}

static struct tdm_tag attended_tag(const struct tdm_program *program, const struct tdm_op *op,
                                   enum tdm_content whole)
{
    return tdm_due_tag(tdm_due_attended(program, whole), op->layer, op->chunk, TDM_NONE);
}

struct tdm_tag tdm_due_tag(enum tdm_content content, uint32_t layer, uint32_t chunk,
                           uint32_t contributor)
{
    return (struct tdm_tag){content, layer, chunk, contributor, 0};
}

/* What attention to `key` leaves: the whole if it sees no other chunk, else a part. */
static struct tdm_tag part_tag(const struct tdm_program *program, const struct tdm_op *op,
                               uint32_t key, enum tdm_content whole, enum tdm_content part)
{
    bool more;
    const bool alone =
        attended_before(program, op->layer, op->chunk, key, &more) == TDM_NONE && !more;
    return alone ? attended_tag(program, op, whole) : tdm_due_tag(part, op->layer, op->chunk, key);
}

static enum tdm_status check_forward(const struct tdm_program *program, const struct tdm_op *op,
                                     uint32_t key, struct tdm_error *err)
{
    const struct tdm_tag q = attended_tag(program, op, TDM_Q);
    const struct tdm_tag pages = tdm_due_tag(TDM_KVPAGES, op->layer, key, TDM_NONE);
    const struct tdm_tag out = part_tag(program, op, key, TDM_ATTENTION_OUT, TDM_OUT_PART);
    enum tdm_status status =
        tdm_operand_check_due(program, op, TDM_ATTENTION_Q, tdm_due_read(q), err);
    if (status == TDM_OK)
        status = tdm_operand_check_due(program, op, TDM_ATTENTION_KV, tdm_due_read(pages), err);
    if (status == TDM_OK)
        status = tdm_operand_check_due(program, op, TDM_ATTENTION_O,
                                       (struct tdm_due){TDM_WRITE, tdm_nothing_there, out}, err);
    return status == TDM_OK && tdm_operand_is_there(op, TDM_ATTENTION_LISTS)
               ? tdm_op_malformed(op, "has page lists", err)
               : status;
}

/* The sum of dK and dV to which it adds: at home that of its rank's chunk, else one on its way. */
static struct tdm_due sum_of(const struct tdm_program *program, const struct tdm_op *op,
                             uint32_t key)
{
    const uint32_t layer = op->layer, hops = tdm_hops_to(program, key, op->chunk);
    struct tdm_due due = {TDM_WRITE, tdm_nothing_there,
                          tdm_due_tag(TDM_PASSING_DKV, layer, key, op->chunk)};
    if (hops > 0) {
        const uint32_t round = program->chunks[op->chunk].round;
        const uint32_t later = next_of_row(program, layer, key, op->chunk);
        if (last_on_way(program, layer, round, key, hops - 1) != TDM_NONE)
            due.after.share = program->rank + 1; /* the others' is added when it comes */
        if (later != TDM_NONE) {
            due.mode = TDM_ACCUMULATE;
            due.before = due.after;
            due.before.contributor = later;
        }
        return due;
    }
    due.after.content = TDM_DKVPAGES;
    const uint32_t before = added_before(program, layer, key, op->chunk);
    if (before == program->chunk_count)
        return due;
    due.mode = TDM_ACCUMULATE;
    due.before = due.after;
    due.before.contributor = before;
    return due;
}

static enum tdm_status check_backward(const struct tdm_program *program, const struct tdm_op *op,
                                      uint32_t key, struct tdm_error *err)
{
    const struct tdm_due sum = sum_of(program, op, key);
    const uint32_t at =
        sum.mode == TDM_WRITE ? TDM_ATTENTION_GRAD_DKV_OPENED : TDM_ATTENTION_GRAD_DKV_ADDED;
    const struct tdm_operand_due dues[] = {
        {TDM_ATTENTION_GRAD_Q, tdm_due_read(attended_tag(program, op, TDM_Q))},
        {TDM_ATTENTION_GRAD_KV, tdm_due_read(tdm_due_tag(TDM_KVPAGES, op->layer, key, TDM_NONE))},
        {TDM_ATTENTION_GRAD_O, tdm_due_read(attended_tag(program, op, TDM_ATTENTION_OUT))},
        {TDM_ATTENTION_GRAD_DO, tdm_due_read(attended_tag(program, op, TDM_DATTENTION))},
        {TDM_ATTENTION_GRAD_DQ,
         {TDM_WRITE, tdm_nothing_there, part_tag(program, op, key, TDM_DQ, TDM_DQ_PART)}},
        {at, sum},
    };
    enum tdm_status status =
        tdm_operand_check_dues(program, op, dues, sizeof(dues) / sizeof(dues[0]), err);
    if (status != TDM_OK)
        return status;
    const uint32_t other = TDM_ATTENTION_GRAD_DKV_OPENED + TDM_ATTENTION_GRAD_DKV_ADDED - at;
    return tdm_operand_is_there(op, other) || tdm_operand_is_there(op, TDM_ATTENTION_GRAD_LISTS)
               ? tdm_op_malformed(op, "has an operand that it must not have", err)
               : TDM_OK;
}

/* The part is that of some chunk that the queries see. Parts are merged in their order. */
static enum tdm_status check_merge(const struct tdm_program *program, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    const struct tdm_access *part = &op->access[TDM_MERGE_PART];
    const uint32_t key =
        tdm_operand_is_there(op, TDM_MERGE_PART) ? part->after.contributor : TDM_NONE;
    const bool is_dq = part->after.content == TDM_DQ_PART;
    bool more;
    if (key >= program->chunk_count || !tdm_queries_see(program, op->layer, op->chunk, key))
        return tdm_op_malformed(op, "merges what its queries do not see", err);
    const uint32_t before = attended_before(program, op->layer, op->chunk, key, &more);
    const struct tdm_tag now =
        tdm_due_tag(is_dq ? TDM_DQ_SUM : TDM_OUT_SUM, op->layer, op->chunk, key);
    struct tdm_tag so_far = now;
    so_far.contributor = before;
    const struct tdm_due sum = before == TDM_NONE
                                   ? (struct tdm_due){TDM_WRITE, tdm_nothing_there, now}
                               : more ? (struct tdm_due){TDM_ACCUMULATE, so_far, now}
                                      : tdm_due_read(so_far);
    const struct tdm_tag whole = attended_tag(program, op, is_dq ? TDM_DQ : TDM_ATTENTION_OUT);
    enum tdm_status status = tdm_operand_check_due(
        program, op, TDM_MERGE_PART,
        tdm_due_read(tdm_due_tag(is_dq ? TDM_DQ_PART : TDM_OUT_PART, op->layer, op->chunk, key)),
        err);
    if (status == TDM_OK)
        status = tdm_operand_check_due(program, op, TDM_MERGE_SUM, sum, err);
    if (status == TDM_OK && !more)
        return tdm_operand_check_due(program, op, TDM_MERGE_OUT,
                                     (struct tdm_due){TDM_WRITE, tdm_nothing_there, whole}, err);
    return status == TDM_OK && tdm_operand_is_there(op, TDM_MERGE_OUT)
               ? tdm_op_malformed(op, "leaves a whole before the last part", err)
               : status;
}

bool tdm_operands_of_ring(const struct tdm_program *program, const struct tdm_op *op)
{
    return program->ranks > 1 && tdm_schedule_rings(program->schedule) &&
           (op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD ||
            op->kind == TDM_OP_MERGE || op->kind == TDM_OP_PACK_QUERIES);
}

enum tdm_status tdm_operands_check_ring(const struct tdm_program *program, const struct tdm_op *op,
                                        struct tdm_error *err)
{
    if (tdm_schedule_passes_queries(program->schedule) && tdm_operands_of_queries(op))
        return tdm_operands_check_queries(program, op, err);
    if (op->kind == TDM_OP_PACK_QUERIES)
        return tdm_op_malformed(op, "is not for ranks that pass no queries", err);
    if (op->kind == TDM_OP_MERGE)
        return check_merge(program, op, err);
    /* both kinds of attention have the same operand of K and V */
    const struct tdm_access *kv = &op->access[TDM_ATTENTION_KV];
    const uint32_t key = tdm_operand_is_there(op, TDM_ATTENTION_KV) ? kv->before.chunk : TDM_NONE;
    if (key >= program->chunk_count || !tdm_queries_see(program, op->layer, op->chunk, key))
        return tdm_op_malformed(op, "attends to what its queries do not see", err);
    return op->kind == TDM_OP_ATTENTION ? check_forward(program, op, key, err)
                                        : check_backward(program, op, key, err);
}

/* ---- hops ---- */

/* The chunk of a lap of a round that has made some hops when a rank has it. */
static uint32_t chunk_at(const struct tdm_program *program, uint32_t first, uint32_t end,
                         uint32_t lap, uint32_t hops)
{
    const uint32_t own = program->rank / tdm_operands_row(program);
    for (uint32_t i = first; i < end; i++)
        if ((tdm_row_of(program, i) + hops) % tdm_ring_rows(program) == own &&
            tdm_lap_of(program, i) == lap)
            return i;
    return TDM_NONE;
}

/* Is an operand absent, or K and V of a chunk, or its queries? They may go no further if nobody
 * needs them; that all get what they read is seen where they read it. */
static enum tdm_status check_moved(const struct tdm_program *program, const struct tdm_op *op,
                                   uint32_t operand, uint32_t chunk, struct tdm_error *err)
{
    const bool queries = tdm_schedule_passes_queries(program->schedule) &&
                         op->access[operand].after.content == TDM_QUERIES;
    const struct tdm_tag what =
        tdm_due_tag(queries ? TDM_QUERIES : TDM_KVPAGES, op->layer, chunk, TDM_NONE);
    const struct tdm_due due = operand == TDM_HOP_SENT
                                   ? tdm_due_read(what)
                                   : (struct tdm_due){TDM_WRITE, tdm_nothing_there, what};
    if (!tdm_operand_is_there(op, operand))
        return TDM_OK;
    return chunk == TDM_NONE ? tdm_op_malformed(op, "moves a chunk that no rank has", err)
                             : tdm_operand_check_due(program, op, operand, due, err);
}

static enum tdm_status check_sums(const struct tdm_program *program, const struct tdm_op *op,
                                  uint32_t sent, uint32_t received, struct tdm_error *err)
{
    const uint32_t layer = op->layer, round = program->chunks[op->queries].round;
    uint32_t by =
        sent == TDM_NONE ? TDM_NONE : last_on_way(program, layer, round, sent, op->hops - 1);
    enum tdm_status status = TDM_OK;
    if (by != TDM_NONE)
        status =
            tdm_operand_check_due(program, op, TDM_HOP_SUM_SENT,
                                  tdm_due_read(tdm_due_tag(TDM_PASSING_DKV, layer, sent, by)), err);
    else if (tdm_operand_is_there(op, TDM_HOP_SUM_SENT))
        return tdm_op_malformed(op, "sends a sum to which nobody has added", err);
    by = received == TDM_NONE ? TDM_NONE
                              : last_on_way(program, layer, round, received, op->hops - 1);
    if (status != TDM_OK || by == TDM_NONE)
        return status == TDM_OK && tdm_operand_is_there(op, TDM_HOP_SUM_RECEIVED)
                   ? tdm_op_malformed(op, "receives a sum to which nobody has added", err)
                   : status;
    struct tdm_due due = {TDM_WRITE, tdm_nothing_there,
                          tdm_due_tag(TDM_PASSING_DKV, layer, received, by)};
    const uint32_t own = last_on_way(program, layer, round, received, op->hops);
    if (op->hops == tdm_ring_rows(program)) { /* home */
        const uint32_t before = added_before(program, layer, received, by);
        due.after.content = TDM_DKVPAGES;
        if (before != program->chunk_count) {
            due.mode = TDM_ACCUMULATE;
            due.before = due.after;
            due.before.contributor = before;
        }
    } else if (own != by) { /* the rank has a share of it */
        due.mode = TDM_ACCUMULATE;
        due.after.contributor = own;
        due.before = due.after;
        due.before.share = program->rank + 1;
    }
    return tdm_operand_check_due(program, op, TDM_HOP_SUM_RECEIVED, due, err);
}

enum tdm_status tdm_operands_check_hop(const struct tdm_program *program, const struct tdm_op *op,
                                       uint32_t first, uint32_t end, struct tdm_error *err)
{
    const struct tdm_chunk *chunks = program->chunks;
    uint64_t tokens = 0;
    for (uint32_t i = first; i < end; i++)
        tokens += chunks[i].tokens;
    const uint32_t most = tdm_ring_rows(program) - (op->kind == TDM_OP_HOP ? 1 : 0);
    if (!tdm_schedule_rings(program->schedule))
        return tdm_op_malformed(op, "is not for ranks that are in no ring", err);
    if (op->tokens != tokens || op->lap >= tdm_operands_row(program) || op->hops == 0 ||
        op->hops > most || (op->kind == TDM_OP_HOP_SUM && op->hops < 2) ||
        op->queries >= program->chunk_count || chunks[op->queries].round < chunks[first].round ||
        chunks[op->queries].sequence != chunks[first].sequence ||
        (op->queries > 0 && chunks[op->queries - 1].round == chunks[op->queries].round))
        return tdm_op_malformed(op, "is no hop of a round", err);
    const uint32_t sent = chunk_at(program, first, end, op->lap, op->hops - 1);
    const uint32_t received = chunk_at(program, first, end, op->lap, op->hops);
    if (op->kind == TDM_OP_HOP_SUM && tdm_schedule_passes_queries(program->schedule))
        return tdm_operands_check_dq_hop(program, op, sent, received, err);
    if (op->kind == TDM_OP_HOP_SUM)
        return check_sums(program, op, sent, received, err);
    enum tdm_status status = check_moved(program, op, TDM_HOP_SENT, sent, err);
    return status == TDM_OK ? check_moved(program, op, TDM_HOP_RECEIVED, received, err) : status;
}
