/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of team ops: what each must read, write and add to on a rank, written from what a round
 * and its shares are, independently of how lowering emits them. team_check.h compares the ranks.
 */
#include "schedule/operands.h"

#include "base/size.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"
#include "schedule/tags.h"

/* Chunks [first, end) as an operand; absent if there are none. */
struct due {
    uint32_t first, end;
    enum tdm_mode mode;
    struct tdm_tag before, after;
};

struct team_step {
    const struct tdm_program *program;
    const struct tdm_op *op;
    uint32_t first, end; /* chunks of the op's round */
    uint32_t own;        /* the rank's; `end` if it has none */
    uint32_t row;        /* ranks in a row that divide the heads, or 1 */
};

uint32_t tdm_operands_row(const struct tdm_program *program)
{
    const struct tdm_schedule *schedule = program->schedule;
    if (program->ranks == 1)
        return 1;
    if (schedule->exchange == TDM_EXCHANGE_HEADS)
        return program->ranks;
    return schedule->head_ranks > 0 ? schedule->head_ranks : 1;
}

static uint32_t share_number(const struct tdm_program *program)
{
    return program->rank + 1;
}

static enum tdm_status malformed(const struct tdm_op *op, const char *what, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) %s",
                    (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                    (int)op->chunk, what);
}

static enum tdm_status check_due(const struct team_step *s, uint32_t operand, const struct due *due,
                                 struct tdm_error *err)
{
    const struct tdm_program *program = s->program;
    const struct tdm_access *access = &s->op->access[operand];
    bool there = operand < s->op->access_count && access->buffer != TDM_NONE;
    uint64_t bytes = 0;
    if (there != (due->first < due->end))
        return malformed(s->op, there ? "has an operand that it must not have" : "lacks an operand",
                         err);
    if (!there)
        return TDM_OK;
    for (uint32_t chunk = due->first; chunk < due->end; chunk++)
        bytes = tdm_size_add(bytes, tdm_content_bytes(program->schedule, due->after.content, 0,
                                                      program->chunks[chunk].tokens));
    struct tdm_tag before = due->before, after = due->after;
    before.chunk = after.chunk = due->first;
    if (access->mode != due->mode || access->slots != due->end - due->first || access->part != 0 ||
        access->bytes != bytes)
        return malformed(s->op, "has an operand of the wrong chunks, bytes or mode", err);
    if (!tdm_tag_same(access->after, after) ||
        (due->mode != TDM_WRITE && !tdm_tag_same(access->before, before))) {
        char text[TDM_TAG_TEXT];
        tdm_tag_show(after, text);
        return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) does not leave %s",
                        (unsigned long long)s->op->number, tdm_op_kind_name(s->op->kind),
                        (int)s->op->layer, (int)s->op->chunk, text);
    }
    return TDM_OK;
}

/* Has the rank heads of a chunk: is the chunk of a rank in its row? */
static bool is_of_row(const struct team_step *s, uint32_t chunk)
{
    return s->program->chunks[chunk].rank / s->row == s->program->rank / s->row;
}

/* The chunks among [first, end) of which the rank has heads: [*from, *to), in a row. */
static void row_chunks(const struct team_step *s, uint32_t first, uint32_t end, uint32_t *from,
                       uint32_t *to)
{
    *from = *to = end;
    for (uint32_t chunk = end; chunk-- > first;)
        if (is_of_row(s, chunk)) {
            *to = *from == end ? chunk + 1 : *to;
            *from = chunk;
        }
}

/* The chunks of a gather may end inside the round: later ones need no K and V in this sweep. Page
 * means are for the votes of the first forward. */
static enum tdm_status check_gather(struct team_step *s, struct tdm_error *err)
{
    const struct tdm_tag pages = {TDM_KVPAGES, s->op->layer, TDM_NONE, TDM_NONE, 0};
    const bool voted = s->op->phase == TDM_FORWARD &&
                       tdm_schedule_page_rule(s->program->schedule, s->op->layer).selector.kind ==
                           TDM_SELECT_TOP_K;
    const struct tdm_tag means = {TDM_PAGE_MEANS, s->op->layer, TDM_NONE, TDM_NONE, 0};
    const struct tdm_tag empty = {TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE, 0};
    uint64_t tokens = 0;
    uint32_t end = s->first;
    while (end < s->end && tokens < s->op->tokens)
        tokens += s->program->chunks[end++].tokens;
    if (tokens != s->op->tokens || tokens == 0)
        return malformed(s->op, "has other tokens than chunks of its round", err);
    uint32_t own, after;
    row_chunks(s, s->first, end, &own, &after);
    const struct due due[TDM_GATHER_OPERANDS] = {
        [TDM_GATHER_OWN] = {own, after, TDM_READ, pages, pages},
        [TDM_GATHER_BELOW] = {s->first, own, TDM_WRITE, empty, pages},
        [TDM_GATHER_ABOVE] = {after, end, TDM_WRITE, empty, pages},
        [TDM_GATHER_OWN_MEANS] = {own, voted ? after : own, TDM_READ, means, means},
        [TDM_GATHER_BELOW_MEANS] = {s->first, voted ? own : s->first, TDM_WRITE, empty, means},
        [TDM_GATHER_ABOVE_MEANS] = {after, voted ? end : after, TDM_WRITE, empty, means}};
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < TDM_GATHER_OPERANDS && status == TDM_OK; i++)
        status = check_due(s, i, &due[i], err);
    return status;
}

/* The next chunk of a sequence that the rank runs, from a chunk on; TDM_NONE if there is none. */
static uint32_t next_own(const struct team_step *s, uint32_t chunk, uint32_t sequence)
{
    const struct tdm_chunk *chunks = s->program->chunks;
    for (; chunk < s->program->chunk_count && chunks[chunk].sequence == sequence; chunk++)
        if (is_of_row(s, chunk))
            return chunk;
    return TDM_NONE;
}

/* The shares that a rank has of chunks [first, end) of a round: those of each chunk that it sees
 * from there on. The rank's next chunk adds last; if that does not see a chunk, later ones do not
 * either. The shares lie in a row, and end with the last of them. */
static struct due shares_of(const struct team_step *s, uint32_t first, uint32_t end)
{
    const struct tdm_chunk *chunks = s->program->chunks;
    struct due due = {.first = end, .end = end, .mode = TDM_READ};
    uint32_t last = first < end ? next_own(s, end, chunks[first].sequence) : TDM_NONE;
    for (uint32_t chunk = end; chunk-- > first;) {
        last = is_of_row(s, chunk) ? chunk : last;
        if (last == TDM_NONE || tdm_operands_first_seen(s->program, s->op->layer, last) > chunk)
            continue;
        due.first = chunk;
        due.before = due.after =
            (struct tdm_tag){TDM_DKVPAGES, s->op->layer, TDM_NONE, last, share_number(s->program)};
    }
    return due;
}

static enum tdm_status check_reduce(struct team_step *s, struct tdm_error *err)
{
    uint32_t own, after;
    row_chunks(s, s->first, s->end, &own, &after);
    /* each chunk was the last that its row added to it */
    const struct tdm_tag sum = {TDM_DKVPAGES, s->op->layer, TDM_NONE, s->row > 1 ? TDM_ITSELF : own,
                                0};
    struct tdm_tag share = sum;
    uint64_t tokens = 0;
    share.share = share_number(s->program);
    for (uint32_t chunk = s->first; chunk < s->end; chunk++)
        tokens += s->program->chunks[chunk].tokens;
    if (tokens != s->op->tokens)
        return malformed(s->op, "has other tokens than its round", err);
    struct due due[TDM_REDUCE_OPERANDS] = {
        [TDM_REDUCE_OWN] = {own, after, TDM_ACCUMULATE, share, sum},
        [TDM_REDUCE_BELOW] = shares_of(s, s->first, own),
        [TDM_REDUCE_ABOVE] = shares_of(s, after, s->end)};
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < TDM_REDUCE_OPERANDS && status == TDM_OK; i++)
        status = check_due(s, i, &due[i], err);
    return status;
}

/* What a rank's own chunk holds with all heads, its part of the heads, and which way it goes. */
static const struct exchange_rule {
    enum tdm_content whole, heads;
    bool back;
} exchange_rules[] = {
    {TDM_OWN_KVPAGES, TDM_KVPAGES, false},    {TDM_Q, TDM_HEADS_Q, false},
    {TDM_ATTENTION_OUT, TDM_HEADS_OUT, true}, {TDM_ATTENTION_OUT, TDM_HEADS_OUT, false},
    {TDM_DATTENTION, TDM_HEADS_DOUT, false},  {TDM_DQ, TDM_HEADS_DQ, true},
    {TDM_OWN_DKVPAGES, TDM_DKVPAGES, true},
};

/* The workspace of the heads of the rank's own chunk: as many bytes as the other ranks have of it.
 */
static enum tdm_status check_parted(const struct team_step *s, enum tdm_content heads, uint32_t own,
                                    struct tdm_error *err)
{
    const struct tdm_program *program = s->program;
    const struct tdm_access *access = &s->op->access[TDM_ALL_TO_ALL_PARTED];
    const struct tdm_tag parted = {TDM_PARTED, s->op->layer, own, TDM_NONE, 0};
    const bool there = s->op->access_count > TDM_ALL_TO_ALL_PARTED && access->buffer != TDM_NONE;
    if (there != (own != TDM_NONE))
        return malformed(s->op, "has an operand that it must not have, or lacks one", err);
    if (!there)
        return TDM_OK;
    uint64_t part = tdm_content_bytes(program->schedule, heads, 0, program->chunks[own].tokens);
    if (access->mode != TDM_WRITE || access->slots != 1 || access->part != 0 ||
        access->bytes != (s->row - 1) * part || !tdm_tag_same(access->after, parted))
        return malformed(s->op, "has no right workspace for heads on their way", err);
    return TDM_OK;
}

/* Has an op no operand? */
static bool has_none(const struct tdm_op *op)
{
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE)
            return false;
    return true;
}

/* The first chunks of a round exchange heads, or all. Sums of dK and dV are complete: each chunk
 * was the last to add to its own. */
static enum tdm_status check_all_to_all(struct team_step *s, struct tdm_error *err)
{
    const struct tdm_access *heads = &s->op->access[TDM_ALL_TO_ALL_HEADS];
    const struct tdm_tag empty = {TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE, 0};
    uint64_t tokens = 0;
    uint32_t end = s->first;
    while (end < s->end && tokens < s->op->tokens)
        tokens += s->program->chunks[end++].tokens;
    if (tokens != s->op->tokens || tokens == 0)
        return malformed(s->op, "has other tokens than chunks of its round", err);
    uint32_t from, to;
    row_chunks(s, s->first, end, &from, &to);
    const struct exchange_rule *rule = NULL;
    for (size_t i = 0; i < sizeof(exchange_rules) / sizeof(exchange_rules[0]); i++)
        if (s->op->access_count > TDM_ALL_TO_ALL_HEADS &&
            heads->after.content == exchange_rules[i].heads &&
            (heads->mode == TDM_READ) == exchange_rules[i].back)
            rule = &exchange_rules[i];
    if (s->row > 1 && from == to) /* the rank has no heads of them */
        return has_none(s->op) ? TDM_OK
                               : malformed(s->op, "has an operand that it must not have", err);
    if (rule == NULL || s->row == 1)
        return malformed(s->op, "exchanges what ranks do not divide by heads", err);
    const bool sum = rule->heads == TDM_DKVPAGES;
    const struct tdm_tag whole = {rule->whole, s->op->layer, TDM_NONE, TDM_NONE, 0};
    const struct tdm_tag part = {rule->heads, s->op->layer, TDM_NONE, sum ? TDM_ITSELF : TDM_NONE,
                                 0};
    const uint32_t own = s->own < end ? s->own : end;
    const struct due due[TDM_ALL_TO_ALL_PARTED] = {
        [TDM_ALL_TO_ALL_CHUNK] = {own, own < end ? own + 1 : own, rule->back ? TDM_WRITE : TDM_READ,
                                  rule->back ? empty : whole, whole},
        [TDM_ALL_TO_ALL_HEADS] = {from, to, rule->back ? TDM_READ : TDM_WRITE,
                                  rule->back ? part : empty, part}};
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < TDM_ALL_TO_ALL_PARTED && status == TDM_OK; i++)
        status = check_due(s, i, &due[i], err);
    return status == TDM_OK ? check_parted(s, rule->heads, own < end ? own : TDM_NONE, err)
                            : status;
}

/* The gradient of a layer or of the embedding is summed at once. That of the head's unit has a part
 * that sums over chunks and one that sums over tiles; with tied weights the latter is the
 * embedding's, in a buffer of its own. */
static enum tdm_status check_reduce_all(const struct tdm_program *program,
                                        const uint64_t *tile_base, const struct tdm_op *op,
                                        struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const bool by_part = program->schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
    const struct tdm_access *access =
        &op->access[by_part ? (int)TDM_REDUCE_SCATTER_SUM : (int)TDM_REDUCE_ALL_SUM];
    const bool head = op->layer == tdm_model_head_unit(model);
    const bool of_tiles = head && op->part == TDM_PART_HEAD, tied = of_tiles && model->tied;
    uint32_t last = 0;
    while (last + 1 < program->chunk_count && program->chunks[last].rank != program->rank)
        last++;
    uint32_t unit = tied ? tdm_model_embedding_unit(model) : op->layer;
    uint64_t contributor =
        of_tiles ? tile_base[last] * tdm_vocabulary_tiles(program->schedule) : last;
    struct tdm_tag sum = {tied ? TDM_TIED_GRADIENT : TDM_UNIT_GRADIENT, unit, TDM_NONE, 0, 0};
    struct tdm_tag share = sum;
    share.contributor = (uint32_t)contributor;
    share.share = share_number(program);
    if (by_part) { /* of the part that the rank updates */
        sum = share;
        sum.contributor = TDM_NONE;
    }
    if (op->kind != (by_part ? TDM_OP_REDUCE_SCATTER : TDM_OP_REDUCE_ALL))
        return malformed(op, "sums all of a gradient, or a part, where the other is due", err);
    if (op->layer >= model->unit_count || op->chunk != TDM_NONE || op->tokens != 0 ||
        (head ? op->part != TDM_PART_FINAL_NORM && op->part != TDM_PART_HEAD
              : op->part != TDM_PART_ALL))
        return malformed(op, "names no gradient", err);
    if (op->access_count != 1 || access->buffer == TDM_NONE || access->slots != 1 ||
        access->mode != TDM_ACCUMULATE || access->part != (tied ? 0 : (uint32_t)op->part) ||
        !tdm_tag_same(access->before, share) || !tdm_tag_same(access->after, sum))
        return malformed(op, "does not sum the rank's share of its gradient", err);
    uint64_t bytes = tdm_part_bytes(model, unit, tied ? TDM_PART_EMBEDDING : op->part,
                                    tdm_content_dtype(program->schedule, sum.content));
    return access->bytes == bytes ? TDM_OK : malformed(op, "has the wrong bytes", err);
}

/* The sum of squares of a unit's gradient, of which each rank has that of its part. */
static enum tdm_status check_reduce_norm(const struct tdm_program *program, const struct tdm_op *op,
                                         struct tdm_error *err)
{
    const struct tdm_access *access = &op->access[TDM_REDUCE_ALL_SUM];
    struct tdm_tag sum = {TDM_GRADIENT_NORM, op->layer, TDM_NONE, TDM_NONE, 0}, share = sum;
    share.share = share_number(program);
    if (op->layer >= program->schedule->model->unit_count || op->chunk != TDM_NONE ||
        op->tokens != 0 || op->part != TDM_PART_ALL ||
        program->schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return malformed(op, "names no norm", err);
    if (op->access_count != TDM_REDUCE_ALL_OPERANDS || access->slots != 1 ||
        access->first_slot != op->layer || access->mode != TDM_ACCUMULATE || access->part != 0 ||
        access->bytes != sizeof(double) || !tdm_tag_same(access->before, share) ||
        !tdm_tag_same(access->after, sum))
        return malformed(op, "does not sum the norm of the rank's part", err);
    return TDM_OK;
}

/* Each rank has updated a part of the weights of a unit, or has that part at home. */
static enum tdm_status check_gather_all(const struct tdm_program *program, const struct tdm_op *op,
                                        struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_access *access = &op->access[TDM_GATHER_ALL_WEIGHTS];
    struct tdm_tag all = {TDM_UNIT_WEIGHTS, op->layer, TDM_NONE, 0, 0}, part;
    if (tdm_weights_sliced(program->schedule)) /* for their use, before they are updated */
        all.contributor = TDM_NONE;
    part = all;
    part.share = share_number(program);
    if (op->layer >= model->unit_count || op->chunk != TDM_NONE || op->tokens != 0 ||
        op->part != TDM_PART_ALL)
        return malformed(op, "names no unit", err);
    if (op->access_count != TDM_GATHER_ALL_OPERANDS || access->buffer == TDM_NONE ||
        access->slots != 1 || access->mode != TDM_ACCUMULATE || access->part != TDM_PART_ALL ||
        !tdm_tag_same(access->before, part) || !tdm_tag_same(access->after, all))
        return malformed(op, "does not gather the weights that ranks have updated", err);
    uint64_t bytes =
        tdm_part_bytes(model, op->layer, TDM_PART_ALL, program->schedule->dtypes.weights);
    return access->bytes == bytes ? TDM_OK : malformed(op, "has the wrong bytes", err);
}

/* The place of a team op's operands: the device, or where the weights have been updated. */
static enum tdm_status check_place(const struct tdm_program *program, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    bool updated_there = op->kind == TDM_OP_GATHER_ALL && op->layer < schedule->model->unit_count &&
                         tdm_updates_on_host(schedule, op->layer);
    enum tdm_place due = updated_there ? schedule->optimizer.on : TDM_DEVICE;
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE && program->buffers[op->access[i].buffer].place != due)
            return malformed(op, "has an operand at the wrong place", err);
    return TDM_OK;
}

enum tdm_status tdm_operands_check_team(const struct tdm_program *program,
                                        const uint64_t *tile_base, const struct tdm_op *op,
                                        struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    struct team_step s = {.program = program, .op = op, .row = tdm_operands_row(program)};
    if (program->ranks == 1 || op->lane != TDM_LANE_PEER)
        return malformed(op, "is a team op of one rank, or on the wrong lane", err);
    enum tdm_status placed = check_place(program, op, err);
    if (placed != TDM_OK)
        return placed;
    if (op->kind == TDM_OP_REDUCE_ALL &&
        op->access[TDM_REDUCE_ALL_SUM].after.content == TDM_GRADIENT_NORM)
        return check_reduce_norm(program, op, err);
    if (op->kind == TDM_OP_REDUCE_ALL || op->kind == TDM_OP_REDUCE_SCATTER)
        return check_reduce_all(program, tile_base, op, err);
    if (op->kind == TDM_OP_GATHER_ALL)
        return check_gather_all(program, op, err);
    if (op->chunk >= program->chunk_count || op->layer >= program->schedule->model->layers ||
        op->part != 0)
        return malformed(op, "is of no round", err);
    const struct tdm_chunk *chunks = program->chunks;
    s.first = s.end = op->chunk;
    if (s.first > 0 && chunks[s.first - 1].round == chunks[s.first].round)
        return malformed(op, "does not begin its round", err);
    while (s.end < program->chunk_count && chunks[s.end].round == chunks[s.first].round)
        s.end++;
    for (s.own = s.first; s.own < s.end && chunks[s.own].rank != program->rank;)
        s.own++;
    if (op->kind == TDM_OP_ALL_TO_ALL)
        return check_all_to_all(&s, err);
    if (op->kind == TDM_OP_HOP || op->kind == TDM_OP_HOP_SUM)
        return tdm_operands_check_hop(program, op, s.first, s.end, err);
    if (schedule->exchange != TDM_EXCHANGE_GATHER &&
        schedule->exchange != TDM_EXCHANGE_HEADS_GATHER)
        return malformed(op, "is not for ranks that do not gather", err);
    return op->kind == TDM_OP_GATHER ? check_gather(&s, err) : check_reduce(&s, err);
}
