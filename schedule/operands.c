/* SPDX-License-Identifier: Apache-2.0 */
/* Operands: the table of what every op must read, write and add to, and the checks by it. */
#include "schedule/operands.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"
#include "schedule/tags.h"

#include <stdio.h>

/* What the rules are applied to. */
struct step {
    const struct tdm_program *program;
    const uint64_t *tile_base;
};

/* ---- the table ---- */

/* The layer or unit in a tag. OF_NEXT is the layer above the op's, OF_OUTPUT the unit of the output
 * weight, which is the embedding if they are tied. */
enum whose { OF_NONE, OF_FIRST, OF_LAYER, OF_NEXT, OF_EMBEDDING, OF_HEAD, OF_OUTPUT };

/* How an operand takes part in a sum. It determines the contributors in its tags and which
 * contribution is the first. Contributions come in descending order; 0 is the last. */
enum sum {
    NO_SUM,
    COMPLETE,    /* reads a sum to which nothing more is added */
    SO_FAR,      /* reads a sum to which the op's chunk was the last to add */
    CLOSES,      /* adds the second and last share; the first is tagged as no sum */
    NOT_YET,     /* sets to zero a sum to which all chunks of the step will add */
    CHUNKS,      /* adds to a sum over the chunks of the step */
    OPENS,       /* adds to a sum over the chunks that see a chunk, as the first of them */
    JOINS,       /* the same, not as the first */
    TILES,       /* adds to a sum over the LM-head tiles of the step, by rows, then by vocabulary */
    ROWS,        /* adds to a sum over the LM-head tiles of its chunk, by rows */
    COLUMNS,     /* numbered by tiles of rows, then of vocabulary; sums are over the latter */
    ALL_COLUMNS, /* reads the complete sum of its rows */
    TURNS_ROWS,  /* the rows of a tile; its last op turns them into their gradient */
};

/* An operand. With TDM_ACCUMULATE, if `before` and `after` are different contents, the op turns one
 * into the other in place. Otherwise it adds to a sum, and the first contribution is a
 * TDM_WRITE. */
struct operand_rule {
    enum tdm_mode mode;
    enum tdm_content before;
    enum whose whose_before;
    enum tdm_content after; /* TDM_EMPTY: there is no such operand */
    enum whose whose;
    enum sum sum;
};

#define READS(content, whose)                            \
    {                                                    \
        TDM_READ, content, whose, content, whose, NO_SUM \
    }
#define READS_SUM(content, sum)                             \
    {                                                       \
        TDM_READ, content, OF_LAYER, content, OF_LAYER, sum \
    }
#define WRITES(content, whose)                                \
    {                                                         \
        TDM_WRITE, TDM_EMPTY, OF_NONE, content, whose, NO_SUM \
    }
#define TURNS(before, whose, after)                            \
    {                                                          \
        TDM_ACCUMULATE, before, whose, after, OF_LAYER, NO_SUM \
    }
#define ADDS(content, whose, sum)                           \
    {                                                       \
        TDM_ACCUMULATE, content, whose, content, whose, sum \
    }
#define HEAD_ROWS                                                                           \
    {                                                                                       \
        TDM_ACCUMULATE, TDM_FINAL_NORMED, OF_LAYER, TDM_DFINAL_NORMED, OF_LAYER, TURNS_ROWS \
    }
#define LOGITS                                                           \
    {                                                                    \
        TDM_WRITE, TDM_EMPTY, OF_NONE, TDM_LOGIT_TILE, OF_LAYER, COLUMNS \
    }
#define WEIGHTS READS(TDM_UNIT_WEIGHTS, OF_LAYER)
#define GRADIENT ADDS(TDM_UNIT_GRADIENT, OF_LAYER, CHUNKS)

struct op_rule {
    enum tdm_op_kind kind;
    enum tdm_part part;
    struct operand_rule operand[TDM_OPERANDS];
};

/* Operands are in the order of the enums in ops/. Only messages use the records of ops there. */
static const struct op_rule op_rules[] = {
    {TDM_OP_ZERO,
     TDM_PART_EMBEDDING,
     {{TDM_WRITE, TDM_EMPTY, OF_NONE, TDM_UNIT_GRADIENT, OF_EMBEDDING, NOT_YET}}},
    {TDM_OP_EMBED,
     TDM_PART_EMBEDDING,
     {READS(TDM_TOKENS, OF_NONE), READS(TDM_UNIT_WEIGHTS, OF_EMBEDDING), WRITES(TDM_X, OF_FIRST)}},
    {TDM_OP_SORT_TOKENS,
     TDM_PART_EMBEDDING,
     {READS(TDM_TOKENS, OF_NONE), WRITES(TDM_TOKEN_ORDER, OF_NONE)}},
    {TDM_OP_EMBED_GRAD,
     TDM_PART_EMBEDDING,
     {READS(TDM_TOKENS, OF_NONE), READS(TDM_TOKEN_ORDER, OF_NONE), READS(TDM_DX, OF_FIRST),
      ADDS(TDM_UNIT_GRADIENT, OF_EMBEDDING, CHUNKS)}},
    {TDM_OP_NORM,
     TDM_PART_ATTENTION_NORM,
     {READS(TDM_X, OF_LAYER), WEIGHTS, WRITES(TDM_NORMED, OF_LAYER)}},
    {TDM_OP_NORM,
     TDM_PART_MLP_NORM,
     {READS(TDM_Y, OF_LAYER), WEIGHTS, WRITES(TDM_MLP_NORMED, OF_LAYER)}},
    {TDM_OP_NORM,
     TDM_PART_FINAL_NORM,
     {READS(TDM_X, OF_LAYER), READS(TDM_UNIT_WEIGHTS, OF_HEAD),
      WRITES(TDM_FINAL_NORMED, OF_LAYER)}},
    {TDM_OP_NORM_GRAD,
     TDM_PART_ATTENTION_NORM,
     {READS(TDM_X, OF_LAYER), WEIGHTS, READS_SUM(TDM_DNORMED, COMPLETE),
      TURNS(TDM_DY, OF_LAYER, TDM_DX), GRADIENT}},
    {TDM_OP_NORM_GRAD,
     TDM_PART_MLP_NORM,
     {READS(TDM_Y, OF_LAYER), WEIGHTS, READS(TDM_DMLP_NORMED, OF_LAYER),
      TURNS(TDM_DX, OF_NEXT, TDM_DY), GRADIENT}},
    {TDM_OP_NORM_GRAD,
     TDM_PART_FINAL_NORM,
     {READS(TDM_X, OF_LAYER), READS(TDM_UNIT_WEIGHTS, OF_HEAD),
      READS_SUM(TDM_DFINAL_NORMED, COMPLETE), WRITES(TDM_DX, OF_LAYER),
      ADDS(TDM_UNIT_GRADIENT, OF_HEAD, CHUNKS)}},
    {TDM_OP_PRODUCT,
     TDM_PART_Q,
     {READS(TDM_NORMED, OF_LAYER), WEIGHTS, WRITES(TDM_QRAW, OF_LAYER)}},
    {TDM_OP_PRODUCT,
     TDM_PART_KV,
     {READS(TDM_NORMED, OF_LAYER), WEIGHTS, WRITES(TDM_KVRAW, OF_LAYER)}},
    {TDM_OP_PRODUCT,
     TDM_PART_O,
     {READS(TDM_ATTENTION_OUT, OF_LAYER), WEIGHTS, WRITES(TDM_Y, OF_LAYER),
      READS(TDM_X, OF_LAYER)}},
    {TDM_OP_PRODUCT,
     TDM_PART_GATE_UP,
     {READS(TDM_MLP_NORMED, OF_LAYER), WEIGHTS, WRITES(TDM_GATE_UP, OF_LAYER)}},
    {TDM_OP_PRODUCT,
     TDM_PART_DOWN,
     {READS(TDM_ACTIVATED, OF_LAYER), WEIGHTS, WRITES(TDM_X, OF_NEXT), READS(TDM_Y, OF_LAYER)}},
    {TDM_OP_PRODUCT_GRAD_INPUT,
     TDM_PART_DOWN,
     {READS(TDM_DX, OF_NEXT), WEIGHTS, WRITES(TDM_DACTIVATED, OF_LAYER)}},
    {TDM_OP_PRODUCT_GRAD_INPUT,
     TDM_PART_GATE_UP,
     {READS(TDM_DGATE_UP, OF_LAYER), WEIGHTS, WRITES(TDM_DMLP_NORMED, OF_LAYER)}},
    {TDM_OP_PRODUCT_GRAD_INPUT,
     TDM_PART_O,
     {READS(TDM_DY, OF_LAYER), WEIGHTS, WRITES(TDM_DATTENTION, OF_LAYER)}},
    {TDM_OP_PRODUCT_GRAD_INPUT,
     TDM_PART_Q,
     {READS(TDM_DQRAW, OF_LAYER), WEIGHTS, WRITES(TDM_DNORMED, OF_LAYER)}},
    {TDM_OP_PRODUCT_GRAD_INPUT,
     TDM_PART_KV,
     {READS(TDM_DKVRAW, OF_LAYER), WEIGHTS, ADDS(TDM_DNORMED, OF_LAYER, CLOSES)}},
    {TDM_OP_PRODUCT_GRAD_WEIGHT,
     TDM_PART_DOWN,
     {READS(TDM_ACTIVATED, OF_LAYER), READS(TDM_DX, OF_NEXT), GRADIENT}},
    {TDM_OP_PRODUCT_GRAD_WEIGHT,
     TDM_PART_GATE_UP,
     {READS(TDM_MLP_NORMED, OF_LAYER), READS(TDM_DGATE_UP, OF_LAYER), GRADIENT}},
    {TDM_OP_PRODUCT_GRAD_WEIGHT,
     TDM_PART_O,
     {READS(TDM_ATTENTION_OUT, OF_LAYER), READS(TDM_DY, OF_LAYER), GRADIENT}},
    {TDM_OP_PRODUCT_GRAD_WEIGHT,
     TDM_PART_Q,
     {READS(TDM_NORMED, OF_LAYER), READS(TDM_DQRAW, OF_LAYER), GRADIENT}},
    {TDM_OP_PRODUCT_GRAD_WEIGHT,
     TDM_PART_KV,
     {READS(TDM_NORMED, OF_LAYER), READS(TDM_DKVRAW, OF_LAYER), GRADIENT}},
    {TDM_OP_ROPE, TDM_PART_Q, {TURNS(TDM_QRAW, OF_LAYER, TDM_Q)}},
    {TDM_OP_ROPE, TDM_PART_Q_NORM, {READS(TDM_QRAW, OF_LAYER), WEIGHTS, WRITES(TDM_Q, OF_LAYER)}},
    {TDM_OP_ROPE_GRAD, TDM_PART_Q, {TURNS(TDM_DQ, OF_LAYER, TDM_DQRAW)}},
    {TDM_OP_ROPE_GRAD,
     TDM_PART_Q_NORM,
     {TURNS(TDM_DQ, OF_LAYER, TDM_DQRAW), READS(TDM_QRAW, OF_LAYER), WEIGHTS, GRADIENT}},
    {TDM_OP_KV_WRITE, TDM_PART_KV, {READS(TDM_KVRAW, OF_LAYER), WRITES(TDM_KVPAGES, OF_LAYER)}},
    {TDM_OP_KV_WRITE,
     TDM_PART_K_NORM,
     {READS(TDM_KVRAW, OF_LAYER), WRITES(TDM_KVPAGES, OF_LAYER), WEIGHTS}},
    {TDM_OP_KV_GRAD_READ,
     TDM_PART_KV,
     {READS_SUM(TDM_DKVPAGES, SO_FAR), WRITES(TDM_DKVRAW, OF_LAYER)}},
    {TDM_OP_KV_GRAD_READ,
     TDM_PART_K_NORM,
     {READS_SUM(TDM_DKVPAGES, SO_FAR), WRITES(TDM_DKVRAW, OF_LAYER), READS(TDM_KVRAW, OF_LAYER),
      WEIGHTS, GRADIENT}},
    {TDM_OP_PAGE_MEANS, 0, {READS(TDM_KVPAGES, OF_LAYER), WRITES(TDM_PAGE_MEANS, OF_LAYER)}},
    {TDM_OP_SELECT,
     0,
     {READS(TDM_Q, OF_LAYER), READS(TDM_PAGE_MEANS, OF_LAYER), WRITES(TDM_PAGE_LISTS, OF_LAYER)}},
    {TDM_OP_ATTENTION,
     0,
     {READS(TDM_Q, OF_LAYER), READS(TDM_KVPAGES, OF_LAYER), WRITES(TDM_ATTENTION_OUT, OF_LAYER),
      READS(TDM_PAGE_LISTS, OF_LAYER)}},
    {TDM_OP_ATTENTION_GRAD,
     0,
     {READS(TDM_Q, OF_LAYER), READS(TDM_KVPAGES, OF_LAYER), READS(TDM_ATTENTION_OUT, OF_LAYER),
      READS(TDM_DATTENTION, OF_LAYER), WRITES(TDM_DQ, OF_LAYER),
      ADDS(TDM_DKVPAGES, OF_LAYER, OPENS), ADDS(TDM_DKVPAGES, OF_LAYER, JOINS),
      READS(TDM_PAGE_LISTS, OF_LAYER)}},
    {TDM_OP_SWIGLU,
     TDM_PART_GATE_UP,
     {READS(TDM_GATE_UP, OF_LAYER), WRITES(TDM_ACTIVATED, OF_LAYER)}},
    {TDM_OP_SWIGLU_GRAD,
     TDM_PART_GATE_UP,
     {TURNS(TDM_GATE_UP, OF_LAYER, TDM_DGATE_UP), TURNS(TDM_DACTIVATED, OF_LAYER, TDM_ACTIVATED)}},
    {TDM_OP_HEAD,
     TDM_PART_HEAD,
     {HEAD_ROWS, READS(TDM_TOKENS, OF_NONE), READS(TDM_UNIT_WEIGHTS, OF_OUTPUT), LOGITS,
      ADDS(TDM_UNIT_GRADIENT, OF_OUTPUT, TILES), ADDS(TDM_LOSS, OF_NONE, ROWS)}},
    {TDM_OP_LOSS,
     TDM_PART_HEAD,
     {HEAD_ROWS, READS(TDM_TOKENS, OF_NONE), READS(TDM_UNIT_WEIGHTS, OF_OUTPUT), LOGITS,
      ADDS(TDM_HEAD_LSE, OF_LAYER, COLUMNS), ADDS(TDM_LOSS, OF_NONE, ROWS)}},
    {TDM_OP_HEAD_GRAD,
     TDM_PART_HEAD,
     {HEAD_ROWS, READS(TDM_TOKENS, OF_NONE), READS(TDM_UNIT_WEIGHTS, OF_OUTPUT), LOGITS,
      ADDS(TDM_UNIT_GRADIENT, OF_OUTPUT, TILES), READS_SUM(TDM_HEAD_LSE, ALL_COLUMNS),
      ADDS(TDM_HEAD_SUM, OF_LAYER, COLUMNS)}},
    {TDM_OP_GRADIENT_NORM,
     TDM_PART_ALL,
     {READS_SUM(TDM_UNIT_GRADIENT, COMPLETE), WRITES(TDM_GRADIENT_NORM, OF_LAYER),
      READS_SUM(TDM_TIED_GRADIENT, COMPLETE)}},
    {TDM_OP_OPTIMIZER,
     TDM_PART_ALL,
     {ADDS(TDM_UNIT_WEIGHTS, OF_LAYER, CLOSES), READS_SUM(TDM_UNIT_GRADIENT, COMPLETE),
      ADDS(TDM_UNIT_MASTER, OF_LAYER, CLOSES), ADDS(TDM_UNIT_MOMENT1, OF_LAYER, CLOSES),
      ADDS(TDM_UNIT_MOMENT2, OF_LAYER, CLOSES), READS(TDM_GRADIENT_NORM, OF_LAYER),
      READS_SUM(TDM_TIED_GRADIENT, COMPLETE)}},
};

static const struct op_rule *find_rule(const struct tdm_op *op)
{
    for (size_t i = 0; i < sizeof(op_rules) / sizeof(op_rules[0]); i++)
        if (op_rules[i].kind == op->kind && op_rules[i].part == op->part)
            return &op_rules[i];
    return NULL;
}

static uint32_t unit_of(const struct tdm_model *model, const struct tdm_op *op, enum whose whose)
{
    switch (whose) {
    case OF_NONE:
        return TDM_NONE;
    case OF_FIRST:
        return 0;
    case OF_LAYER:
        return op->layer;
    case OF_NEXT:
        return op->layer + 1;
    case OF_EMBEDDING:
        return tdm_model_embedding_unit(model);
    case OF_HEAD:
        return tdm_model_head_unit(model);
    case OF_OUTPUT:
        return model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
    }
    return TDM_NONE;
}

/* Does an op work on a tile of the LM head? */
static bool is_of_head(const struct tdm_op *op)
{
    return op->kind == TDM_OP_HEAD || op->kind == TDM_OP_LOSS || op->kind == TDM_OP_HEAD_GRAD;
}

/* LM-head tile of its chunk that an op works on. */
static uint64_t tile_of(const struct step *step, const struct tdm_op *op)
{
    return op->first_row / step->program->schedule->head_tile_tokens;
}

/* Is an op the last of its kind to run for its rows? They run over the vocabulary in reverse. */
static bool is_last_of_rows(const struct tdm_op *op)
{
    return op->first_entry == 0;
}

/* The chunk that adds to a sum over the chunks of a rank just before `chunk` does, or chunk_count
 * if there is none. Chunks run in reverse. */
static uint32_t added_before(const struct step *step, uint32_t chunk)
{
    const struct tdm_chunk *chunks = step->program->chunks;
    for (uint32_t later = chunk + 1; later < step->program->chunk_count; later++)
        if (chunks[later].rank == chunks[chunk].rank)
            return later;
    return step->program->chunk_count;
}

/* Do ranks divide the heads of attention? */
static bool divides_heads(const struct step *step)
{
    return tdm_operands_row(step->program) > 1;
}

/* The chunk that adds to dK and dV of earlier chunks just before `chunk` does: the next one of
 * those that the rank runs. It has all heads of its own chunks, or heads of all, or of those of the
 * ranks in its row. */
static uint32_t kv_added_before(const struct step *step, uint32_t chunk)
{
    const struct tdm_chunk *chunks = step->program->chunks;
    const uint32_t row = tdm_operands_row(step->program);
    uint32_t later = chunk + 1;
    while (later < step->program->chunk_count &&
           chunks[later].rank / row != chunks[chunk].rank / row)
        later++;
    return later;
}

/* A rule's operand as it is if ranks divide the heads: attention works on the rank's heads, and
 * pages of a rank's own chunk are of all heads, without a sum over chunks. */
static struct operand_rule of_heads(const struct step *step, const struct tdm_op *op,
                                    struct operand_rule rule)
{
    static const struct {
        enum tdm_op_kind kind;
        enum tdm_content whole, heads;
    } table[] = {
        {TDM_OP_ATTENTION, TDM_Q, TDM_HEADS_Q},
        {TDM_OP_ATTENTION, TDM_ATTENTION_OUT, TDM_HEADS_OUT},
        {TDM_OP_ATTENTION_GRAD, TDM_Q, TDM_HEADS_Q},
        {TDM_OP_ATTENTION_GRAD, TDM_ATTENTION_OUT, TDM_HEADS_OUT},
        {TDM_OP_ATTENTION_GRAD, TDM_DATTENTION, TDM_HEADS_DOUT},
        {TDM_OP_ATTENTION_GRAD, TDM_DQ, TDM_HEADS_DQ},
        {TDM_OP_KV_WRITE, TDM_KVPAGES, TDM_OWN_KVPAGES},
        {TDM_OP_KV_GRAD_READ, TDM_DKVPAGES, TDM_OWN_DKVPAGES},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && divides_heads(step); i++) {
        if (op->kind != table[i].kind || rule.after != table[i].whole)
            continue;
        rule.after = table[i].heads;
        rule.before = rule.before == TDM_EMPTY ? TDM_EMPTY : table[i].heads;
        rule.sum = NO_SUM;
        break;
    }
    return rule;
}

/* Sets the contributors before and after an op. Returns whether it is the first to add. */
static bool share_of(const struct step *step, const struct tdm_op *op, enum sum sum,
                     uint32_t *before, uint32_t *after)
{
    const struct tdm_program *program = step->program;
    uint64_t columns = tdm_vocabulary_tiles(program->schedule);
    uint64_t column = op->first_entry / program->schedule->head_tile_vocabulary;
    uint64_t mine = 0, last = 0;
    switch (sum) {
    case NO_SUM:
        *before = *after = TDM_NONE;
        return false;
    case COMPLETE:
        *before = *after = 0;
        return false;
    case SO_FAR:
        *before = *after = op->chunk;
        return false;
    case CLOSES: /* of a unit that is updated in slices, each slice adds one share */
        *after = op->slices > 1 ? op->slices - 1 - op->slice : 0;
        *before = op->slice == 0 ? TDM_NONE : *after + 1;
        return false;
    case NOT_YET:
        *before = *after = program->chunk_count;
        return false;
    case CHUNKS:
        *after = op->chunk;
        *before = added_before(step, op->chunk);
        return *before == program->chunk_count;
    case OPENS:
    case JOINS:
        *after = op->chunk;
        *before = kv_added_before(step, op->chunk);
        return sum == OPENS;
    case TILES:
        mine = (step->tile_base[op->chunk] + tile_of(step, op)) * columns + column;
        last = step->tile_base[op->chunk + 1] * columns - 1;
        if (mine < last)
            break;
        /* the first of its chunk: before it the rank's next chunk has added */
        *after = (uint32_t)mine;
        *before = (uint32_t)(step->tile_base[added_before(step, op->chunk)] * columns);
        return added_before(step, op->chunk) == program->chunk_count;
    case COLUMNS:
        mine = tile_of(step, op) * columns + column;
        last = tile_of(step, op) * columns + columns - 1;
        break;
    case ALL_COLUMNS:
        *before = *after = (uint32_t)(tile_of(step, op) * columns);
        return false;
    case TURNS_ROWS:
    case ROWS:
        mine = tile_of(step, op);
        last = step->tile_base[op->chunk + 1] - step->tile_base[op->chunk] - 1;
        break;
    }
    *after = (uint32_t)mine;
    *before = (uint32_t)mine + 1;
    return mine == last;
}

/* Its first token sees the farthest, because the first token seen never decreases and is of its
 * document. */
uint32_t tdm_operands_first_seen(const struct tdm_program *program, uint32_t layer, uint32_t chunk)
{
    const struct tdm_chunk *from = &program->chunks[chunk];
    const struct tdm_sequence *sequence = &program->schedule->sequences[from->sequence];
    struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, layer);
    uint64_t start = tdm_document_start(sequence, tdm_document_of(sequence, from->first_token));
    uint64_t far = tdm_far_token(&rule, start, from->first_token);
    /* all chunks of a sequence but the last are equally long */
    return chunk - (uint32_t)(from->first_token / program->schedule->chunk_tokens -
                              far / program->schedule->chunk_tokens);
}

static uint32_t first_seen(const struct step *step, uint32_t layer, uint32_t chunk)
{
    return tdm_operands_first_seen(step->program, layer, chunk);
}

/* The chunks whose K and V an op works on. For dK and dV: those to which it is (OPENS) or is not
 * (JOINS) the first to add. Chunks add in descending order. */
static void seen_chunks(const struct step *step, const struct tdm_op *op, enum sum sum,
                        uint32_t *first, uint32_t *slots)
{
    uint32_t before = kv_added_before(step, op->chunk), end = op->chunk + 1, joins = end;
    *first = first_seen(step, op->layer, op->chunk);
    /* `before` has already added to the chunks from here on */
    if (before < step->program->chunk_count && first_seen(step, op->layer, before) < end)
        joins = first_seen(step, op->layer, before);
    if (sum == OPENS)
        end = joins;
    else if (sum == JOINS)
        *first = joins;
    *slots = end - *first;
}

static enum tdm_selector_kind selector_of(const struct step *step, const struct tdm_op *op)
{
    return tdm_schedule_page_rule(step->program->schedule, op->layer).selector.kind;
}

/* Must an op have the operand of a rule, in this model and schedule? */
static bool operand_is_due(const struct step *step, const struct tdm_op *op,
                           const struct operand_rule *rule)
{
    const struct tdm_schedule *schedule = step->program->schedule;
    if (op->kind == TDM_OP_SELECT && (rule->after == TDM_Q || rule->after == TDM_PAGE_MEANS))
        return selector_of(step, op) == TDM_SELECT_TOP_K &&
               (rule->after == TDM_Q || first_seen(step, op->layer, op->chunk) < op->chunk);
    if (rule->after == TDM_PAGE_LISTS)
        return tdm_selector_lists(selector_of(step, op));
    if (rule->after == TDM_PAGE_MEANS)
        return selector_of(step, op) == TDM_SELECT_TOP_K;
    if (op->kind == TDM_OP_OPTIMIZER && op->rows == TDM_ROWS_UNUSED &&
        (rule->after == TDM_UNIT_GRADIENT || rule->after == TDM_GRADIENT_NORM))
        return false;
    if (rule->after == TDM_UNIT_MASTER)
        return schedule->dtypes.master != TDM_DTYPE_NONE;
    if (rule->after == TDM_UNIT_MOMENT1 || rule->after == TDM_UNIT_MOMENT2)
        return schedule->dtypes.moments != TDM_DTYPE_NONE;
    if (rule->after == TDM_GRADIENT_NORM && rule->mode == TDM_READ)
        return schedule->optimizer.clip != TDM_CLIP_NONE;
    if (rule->after == TDM_TIED_GRADIENT)
        return schedule->model->tied && op->layer == tdm_model_embedding_unit(schedule->model);
    if (op->kind == TDM_OP_LOSS && rule->after == TDM_HEAD_LSE)
        return tdm_vocabulary_tiles(schedule) > 1;
    if (op->kind == TDM_OP_LOSS && rule->after == TDM_LOSS)
        return is_last_of_rows(op);
    if (rule->sum == OPENS || rule->sum == JOINS) {
        uint32_t first, slots;
        seen_chunks(step, op, rule->sum, &first, &slots);
        return slots > 0;
    }
    return rule->after != TDM_EMPTY;
}

/* Corrects the access to rows of a tile. Earlier tiles have turned theirs into gradients; the last
 * op of a tile turns its own. */
static void turn_rows(const struct step *step, const struct tdm_op *op, bool first,
                      struct tdm_access *due)
{
    bool evaluates = step->program->schedule->pass == TDM_EVALUATE;
    bool turns = op->kind == TDM_OP_HEAD || (op->kind == TDM_OP_HEAD_GRAD && is_last_of_rows(op));
    if (first || evaluates)
        due->before.contributor = TDM_NONE;
    else
        due->before.content = due->after.content;
    if (!turns) {
        due->mode = TDM_READ;
        due->after = due->before;
    }
}

/* Is it a sum over the chunks of all ranks, of which a rank has a share? */
static bool adds_to_share(const struct step *step, enum sum sum)
{
    bool of_kv = sum == OPENS || sum == JOINS;
    const bool all = step->program->schedule->exchange == TDM_EXCHANGE_HEADS;
    return sum == NOT_YET || sum == CHUNKS || sum == TILES || (of_kv && !all);
}

/* The access that a rule asks for, without buffer, slot and bytes. */
static struct tdm_access due_access(const struct step *step, const struct tdm_op *op,
                                    const struct operand_rule *rule)
{
    const struct tdm_model *model = step->program->schedule->model;
    struct tdm_access due = {.slots = 1, .mode = rule->mode};
    due.before = (struct tdm_tag){rule->before, unit_of(model, op, rule->whose_before), op->chunk,
                                  TDM_NONE, 0};
    due.after =
        (struct tdm_tag){rule->after, unit_of(model, op, rule->whose), op->chunk, TDM_NONE, 0};
    bool first = share_of(step, op, rule->sum, &due.before.contributor, &due.after.contributor);
    if (step->program->ranks > 1 && adds_to_share(step, rule->sum))
        due.before.share = due.after.share = step->program->rank + 1;
    if (tdm_sums_by_part(step->program->schedule) &&
        ((rule->sum == COMPLETE &&
          (rule->after == TDM_UNIT_GRADIENT || rule->after == TDM_TIED_GRADIENT)) ||
         (rule->after == TDM_GRADIENT_NORM && op->kind == TDM_OP_GRADIENT_NORM))) {
        /* the sum of the rank's part */
        due.before.contributor = due.after.contributor = TDM_NONE;
        due.before.share = due.after.share = step->program->rank + 1;
    }
    if (step->program->ranks > 1 && op->kind == TDM_OP_OPTIMIZER &&
        rule->after == TDM_UNIT_WEIGHTS) { /* of which the rank changes its part */
        due.after.share = step->program->rank + 1;
        due.before.share = op->slice == 0 ? 0 : due.after.share;
    }

    if (tdm_content_is_of_unit(rule->after)) {
        due.part = op->part;
        due.before.chunk = due.after.chunk = TDM_NONE;
        if (op->kind == TDM_OP_OPTIMIZER &&
            tdm_is_sliced(step->program->schedule, rule->after, op->layer)) {
            due.before = (struct tdm_tag){rule->after, op->layer, op->slice, TDM_NONE, 0};
            due.after = (struct tdm_tag){rule->after, op->layer, op->slice, 0, 0};
            due.slots = op->slices > 1 ? 1 : tdm_slice_count(step->program->schedule, op->layer);
        }
        if (op->kind == TDM_OP_OPTIMIZER && op->rows == TDM_ROWS_UNUSED)
            due.after = due.before; /* the step reads other rows */
        if (is_of_head(op) && model->tied) {
            due.part = TDM_PART_EMBEDDING;
            if (rule->after == TDM_UNIT_GRADIENT) { /* it has its own buffer */
                due.part = 0;
                due.before.content = due.after.content = TDM_TIED_GRADIENT;
            }
        }
    } else if (rule->after == TDM_KVPAGES || rule->after == TDM_DKVPAGES) {
        if (op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD) {
            uint32_t first_chunk;
            seen_chunks(step, op, rule->sum, &first_chunk, &due.slots);
            due.before.chunk = due.after.chunk = first_chunk;
        }
    } else if (op->kind == TDM_OP_SELECT && rule->after == TDM_PAGE_MEANS) {
        uint32_t first_chunk; /* the chunks before its own */
        seen_chunks(step, op, NO_SUM, &first_chunk, &due.slots);
        due.slots--;
        due.before.chunk = due.after.chunk = first_chunk;
    } else if (rule->after == TDM_GRADIENT_NORM && rule->mode == TDM_READ &&
               step->program->schedule->optimizer.clip == TDM_CLIP_GLOBAL) {
        due.slots = model->unit_count;
        due.before.layer = due.after.layer = 0;
    }

    if (rule->sum == TURNS_ROWS) {
        turn_rows(step, op, first, &due);
    } else if (rule->mode == TDM_ACCUMULATE && rule->before == rule->after && first &&
               op->kind != TDM_OP_EMBED_GRAD) { /* it adds to what TDM_OP_ZERO made */
        due.mode = TDM_WRITE;
    }
    return due;
}

/* Bytes that an op must move of an operand: all of its chunk, its chunks, its tile or its part of a
 * unit. Of an embedding: a row for each token, or the whole table if that is less. */
static uint64_t due_bytes(const struct step *step, const struct tdm_op *op,
                          const struct tdm_access *due)
{
    const struct tdm_schedule *schedule = step->program->schedule;
    const struct tdm_model *model = schedule->model;
    enum tdm_content content = due->after.content;
    enum tdm_dtype dtype = tdm_content_dtype(schedule, content);
    bool of_entries = tdm_content_is_of_unit(content) || content == TDM_TIED_GRADIENT;
    if (is_of_head(op) && of_entries) /* a row of the output weight for each entry */
        return tdm_size_mul(op->entries, (uint64_t)model->hidden * tdm_dtype_bytes(dtype));
    bool of_part = op->kind == TDM_OP_OPTIMIZER
                       ? op->slices > 1 || step->program->ranks > 1
                       : op->kind == TDM_OP_GRADIENT_NORM && tdm_sums_by_part(schedule);
    if (op->rows != TDM_ROWS_ALL && of_entries) { /* rows_are_right() has checked them */
        const uint64_t tokens = tdm_schedule_tokens(schedule);
        const uint64_t used = tokens < model->vocabulary ? tokens : model->vocabulary;
        return tdm_size_mul(op->rows == TDM_ROWS_USED ? used : model->vocabulary - used,
                            (uint64_t)model->hidden * tdm_dtype_bytes(dtype));
    }
    if (of_part && of_entries)
        return op->elements * tdm_dtype_bytes(dtype); /* slice_is_right() has checked them */
    if (content == TDM_LOGIT_TILE)
        return tdm_logit_bytes(schedule, op->tokens, op->entries);
    if (content == TDM_TIED_GRADIENT)
        return tdm_part_bytes(model, tdm_model_embedding_unit(model), TDM_PART_EMBEDDING, dtype);
    if (tdm_content_is_of_unit(content)) {
        uint64_t bytes = tdm_part_bytes(model, due->after.layer, (enum tdm_part)due->part, dtype);
        uint64_t rows = tdm_size_mul(op->tokens, (uint64_t)model->hidden * tdm_dtype_bytes(dtype));
        bool by_rows = op->kind == TDM_OP_EMBED || op->kind == TDM_OP_EMBED_GRAD;
        return by_rows && rows < bytes ? rows : bytes;
    }
    if (is_of_head(op)) /* the rows of its tile */
        return tdm_content_bytes(schedule, content, 0, op->tokens);
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < due->slots; k++) {
        uint32_t chunk = tdm_tag_at(due->after, k).chunk;
        uint64_t tokens =
            chunk < step->program->chunk_count ? step->program->chunks[chunk].tokens : 0;
        bytes = tdm_size_add(bytes, tdm_content_bytes(schedule, content, 0, tokens));
    }
    return bytes;
}

static const char *mode_name(enum tdm_mode mode)
{
    return mode == TDM_READ ? "read" : mode == TDM_WRITE ? "write" : "change";
}

#define OPERAND_TEXT 96

/* "operand 4, the weights' gradient". Returns `text`. */
static const char *show_operand(const struct tdm_op *op, uint32_t number, char text[OPERAND_TEXT])
{
    const struct tdm_op_type *type = tdm_op_type(op->kind);
    bool named = number < type->operands;
    snprintf(text, OPERAND_TEXT, "operand %u%s%s", number, named ? ", the " : "",
             named ? type->operand[number].name : "");
    return text;
}

static enum tdm_status check_operand(const struct tdm_op *op, uint32_t number,
                                     const struct tdm_access *access, const struct tdm_access *due,
                                     struct tdm_error *err)
{
    char due_text[TDM_TAG_TEXT], text[TDM_TAG_TEXT], operand[OPERAND_TEXT];
    if (access->mode != due->mode || access->part != due->part || access->slots != due->slots)
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s, layer %d, chunk %d) %s: mode, slots, part are %s, %u, %u; "
                        "expected %s, %u, %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                        (int)op->chunk, show_operand(op, number, operand), mode_name(access->mode),
                        access->slots, access->part, mode_name(due->mode), due->slots, due->part);
    if (access->mode != TDM_WRITE && !tdm_tag_same(access->before, due->before))
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s, layer %d, chunk %d) works on %s as %s, not on %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                        (int)op->chunk, tdm_tag_show(access->before, text),
                        show_operand(op, number, operand), tdm_tag_show(due->before, due_text));
    if (!tdm_tag_same(access->after, due->after))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) leaves %s in %s, not %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                        (int)op->chunk, tdm_tag_show(access->after, text),
                        show_operand(op, number, operand), tdm_tag_show(due->after, due_text));
    return TDM_OK;
}

/* Is the part of the vocabulary that an LM-head op names right? */
static bool vocabulary_is_right(const struct tdm_schedule *schedule, const struct tdm_op *op)
{
    uint64_t all = schedule->model->vocabulary, tile = schedule->head_tile_vocabulary;
    if (op->first_entry % tile != 0 || op->first_entry >= all)
        return false;
    uint64_t left = all - op->first_entry;
    if (op->entries != (left < tile ? left : tile))
        return false;
    bool trains = schedule->pass == TDM_TRAIN, whole = tile >= all;
    switch (op->kind) {
    case TDM_OP_HEAD:
        return trains && whole;
    case TDM_OP_HEAD_GRAD:
        return trains && !whole;
    default:
        return !trains || !whole;
    }
}

/* An update is of all of its unit, or of one of its slices. */
static bool slice_is_right(const struct step *step, const struct tdm_op *op)
{
    const struct tdm_schedule *schedule = step->program->schedule;
    if (op->kind != TDM_OP_OPTIMIZER &&
        (op->kind != TDM_OP_GRADIENT_NORM || !tdm_sums_by_part(schedule)))
        return op->slices == 0 && op->elements == 0;
    if (op->kind == TDM_OP_GRADIENT_NORM && op->slices != 1)
        return false;
    if (op->slice >= op->slices ||
        (op->slices > 1 && op->slices != tdm_slice_count(schedule, op->layer)))
        return false;
    /* the rank's part of the unit, or of that a slice of as many elements as all parts have there
     */
    uint64_t all = schedule->model->units[op->layer].elements, each = all;
    if (schedule->ranks > 1)
        each = (all + schedule->ranks - 1) / schedule->ranks;
    if (schedule->ranks > 1)
        each = (each + TDM_SLICE_ALIGN - 1) / TDM_SLICE_ALIGN * TDM_SLICE_ALIGN;
    uint64_t first = each * step->program->rank, end = first + each;
    if (op->slices > 1) {
        struct tdm_slice slice = tdm_slice_at(schedule, op->layer, op->slice);
        end =
            first + slice.first + slice.elements < end ? first + slice.first + slice.elements : end;
        first += slice.first;
    }
    end = end < all ? end : all;
    first = first < end ? first : end;
    return op->elements == end - first && (op->first_element == first || op->elements == 0);
}

/* Updates of an embedding whose rows are updated apart, and no others, are of some of its rows. */
static bool rows_are_right(const struct step *step, const struct tdm_op *op)
{
    const struct tdm_schedule *schedule = step->program->schedule;
    const bool apart = op->kind == TDM_OP_OPTIMIZER && tdm_updates_rows_apart(schedule) &&
                       op->layer == tdm_model_embedding_unit(schedule->model);
    return (op->rows != TDM_ROWS_ALL) == apart;
}

/* Are layer, chunk, tokens and rows that an op names right? */
static bool shape_is_right(const struct step *step, const struct tdm_op *op)
{
    const struct tdm_program *program = step->program;
    const struct tdm_model *model = program->schedule->model;
    if (op->kind == TDM_OP_GRADIENT_NORM || op->kind == TDM_OP_OPTIMIZER)
        return op->layer < model->unit_count && op->chunk == TDM_NONE && op->tokens == 0 &&
               slice_is_right(step, op) && rows_are_right(step, op);
    if (op->rows != TDM_ROWS_ALL)
        return false;
    if (op->chunk >= program->chunk_count)
        return false;

    uint64_t tokens = program->chunks[op->chunk].tokens;
    if (is_of_head(op)) {
        uint64_t tile = program->schedule->head_tile_tokens;
        if (op->first_row % tile != 0 || op->first_row >= tokens ||
            !vocabulary_is_right(program->schedule, op))
            return false;
        tokens -= op->first_row;
        tokens = tokens < tile ? tokens : tile;
    } else if (op->first_row != 0 || op->first_entry != 0 || op->entries != 0) {
        return false;
    }
    if (op->tokens != tokens)
        return false;

    bool on_top = is_of_head(op) || op->part == TDM_PART_FINAL_NORM;
    if (op->kind == TDM_OP_ZERO || op->kind == TDM_OP_SORT_TOKENS || op->kind == TDM_OP_EMBED_GRAD)
        return op->layer == tdm_model_embedding_unit(model);
    if (op->kind == TDM_OP_EMBED)
        return op->layer == 0;
    return on_top ? op->layer == model->layers : op->layer < model->layers;
}

/* The lane of an op. Besides copies only updates may run elsewhere than on the device. */
static enum tdm_lane lane_of(const struct step *step, const struct tdm_op *op)
{
    const struct tdm_schedule *schedule = step->program->schedule;
    const struct tdm_topology *topology = &schedule->machine->topology;
    return op->kind == TDM_OP_OPTIMIZER && op->layer < schedule->model->unit_count &&
                   tdm_updates_on_host(schedule, op->layer)
               ? tdm_lane_at(topology, schedule->optimizer.on)
               : tdm_lane_at(topology, TDM_DEVICE);
}

enum tdm_status tdm_operands_check(const struct tdm_program *program, const uint64_t *tile_base,
                                   const struct tdm_op *op, struct tdm_error *err)
{
    const struct step shape = {program, tile_base};
    const struct step *step = &shape;
    const struct op_rule *rule = find_rule(op);
    const bool of_ring = tdm_operands_of_ring(program, op) && op->part == 0;
    char operand[OPERAND_TEXT];
    if ((rule == NULL && !of_ring) || op->lane != lane_of(step, op) ||
        op->access_count > TDM_OPERANDS)
        return tdm_fail(err, TDM_INPUT, "op %llu is malformed: %s, part %d, lane %s, %u operands",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->part,
                        tdm_lane_name(&program->schedule->machine->topology, op->lane),
                        op->access_count);
    if (!shape_is_right(step, op))
        return tdm_fail(
            err, TDM_INPUT,
            "op %llu (%s) has %llu tokens from row %llu of layer %d, chunk %d; the step "
            "has no such rows",
            (unsigned long long)op->number, tdm_op_kind_name(op->kind),
            (unsigned long long)op->tokens, (unsigned long long)op->first_row, (int)op->layer,
            (int)op->chunk);
    if (of_ring)
        return tdm_operands_check_ring(program, op, err);
    for (uint32_t i = 0; i < TDM_OPERANDS; i++) {
        bool there = i < op->access_count && op->access[i].buffer != TDM_NONE;
        if (there != operand_is_due(step, op, &rule->operand[i]))
            return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) has %s %s",
                            (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                            (int)op->layer, (int)op->chunk, there ? "an unexpected" : "no",
                            show_operand(op, i, operand));
        if (!there)
            continue;
        const struct operand_rule operand_rule = of_heads(step, op, rule->operand[i]);
        struct tdm_access due = due_access(step, op, &operand_rule);
        enum tdm_status status = check_operand(op, i, &op->access[i], &due, err);
        if (status != TDM_OK)
            return status;
        due.bytes = due_bytes(step, op, &due);
        if (op->access[i].bytes != due.bytes)
            return tdm_fail(err, TDM_INPUT,
                            "op %llu (%s, layer %d, chunk %d) moves %llu bytes of %s; "
                            "expected %llu",
                            (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                            (int)op->layer, (int)op->chunk, (unsigned long long)op->access[i].bytes,
                            show_operand(op, i, operand), (unsigned long long)due.bytes);
    }
    return TDM_OK;
}
