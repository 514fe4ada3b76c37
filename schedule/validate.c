/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validator: replays what every slot holds.
 *
 * One record a buffer: is it live, and for each slot and part the tag that it holds and the last
 * positions at which each lane read and wrote it. Written for obviousness, not speed: quadratic in
 * buffers where one comes to life, linear in the slots of an access.
 *
 * What an op's operands must be is a table of rules here, written from what the op computes and not
 * from how lowering emits it. So an op cannot name a wrong thing and claim that it is due.
 */
#include "schedule/validate.h"

#include "base/size.h"
#include "schedule/lowering.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slot_uses {
    uint64_t read[TDM_LANES], written[TDM_LANES];
};

struct record {
    bool live;
    uint32_t parts;            /* tags a slot: 1, or TDM_PARTS in buffers of units */
    struct tdm_tag *tags;      /* [slots][parts] */
    struct slot_uses *uses;    /* [slots] */
    uint64_t last[TDM_LANES];  /* last use of any slot, ever */
    uint64_t birth[TDM_LANES]; /* last uses of its bytes when it came to life */
    bool born;                 /* has been live before */
};

struct tdm_validator {
    const struct tdm_program *program;
    uint64_t capacity_bytes[TDM_PLACES];
    struct record *records;
    uint64_t position[TDM_LANES];
    uint64_t passed[TDM_LANES][TDM_LANES]; /* [lane][other]: lane runs after this one of other */
    uint64_t next_op;
    uint64_t *tile_base; /* [chunk_count + 1] LM-head tiles before a chunk */
};

static bool same(struct tdm_tag a, struct tdm_tag b)
{
    return a.content == b.content && a.layer == b.layer && a.chunk == b.chunk &&
           a.contributor == b.contributor;
}

/* The tag of the k-th slot of a range or buffer. */
static struct tdm_tag tag_at(struct tdm_tag tag, uint32_t k)
{
    if (tag.chunk != TDM_NONE)
        tag.chunk += k;
    return tag;
}

#define TAG_TEXT 96

static const char *show(struct tdm_tag tag, char text[TAG_TEXT])
{
    int used = snprintf(text, TAG_TEXT, "%s", tdm_content_name(tag.content));
    if (tag.layer != TDM_NONE && tag.content != TDM_EMPTY)
        used += snprintf(text + used, TAG_TEXT - (size_t)used, " of layer %u", tag.layer);
    if (tag.chunk != TDM_NONE)
        used += snprintf(text + used, TAG_TEXT - (size_t)used, " chunk %u", tag.chunk);
    if (tag.contributor != TDM_NONE)
        snprintf(text + used, TAG_TEXT - (size_t)used, " down to contributor %u", tag.contributor);
    return text;
}

enum tdm_status tdm_validator_new(const struct tdm_program *program,
                                  const uint64_t capacity_bytes[TDM_PLACES],
                                  struct tdm_validator **out, struct tdm_error *err)
{
    struct tdm_validator *v = calloc(1, sizeof(*v));
    if (v == NULL)
        goto no_memory;
    v->program = program;
    memcpy(v->capacity_bytes, capacity_bytes, sizeof(v->capacity_bytes));
    v->records = calloc((size_t)program->buffer_count + 1, sizeof(*v->records));
    v->tile_base = calloc((size_t)program->chunk_count + 1, sizeof(*v->tile_base));
    if (v->records == NULL || v->tile_base == NULL)
        goto no_memory;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        v->tile_base[i + 1] =
            v->tile_base[i] +
            tdm_size_ceil_div(program->chunks[i].tokens, program->schedule->head_tile_tokens);
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        struct record *record = &v->records[i];
        record->parts = buffer->axis == TDM_AXIS_UNIT ? TDM_PARTS : 1;
        record->tags = calloc((size_t)buffer->slots * record->parts, sizeof(*record->tags));
        record->uses = calloc(buffer->slots, sizeof(*record->uses));
        if (record->tags == NULL || record->uses == NULL)
            goto no_memory;
    }
    *out = v;
    return TDM_OK;

no_memory:
    tdm_validator_free(v);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the validator");
}

void tdm_validator_free(struct tdm_validator *v)
{
    if (v == NULL)
        return;
    for (uint32_t i = 0; v->records != NULL && i < v->program->buffer_count; i++) {
        free(v->records[i].tags);
        free(v->records[i].uses);
    }
    free(v->records);
    free(v->tile_base);
    free(v);
}

/* ---- buffers come and go ---- */

static bool bytes_overlap(const struct tdm_buffer *a, const struct tdm_buffer *b)
{
    return a->place == b->place && a->offset < tdm_size_add(b->offset, b->bytes) &&
           b->offset < tdm_size_add(a->offset, a->bytes);
}

static enum tdm_status check_alloc(struct tdm_validator *v, uint32_t number, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    struct record *record = &v->records[number];
    uint64_t end = tdm_size_add(buffer->offset, buffer->bytes);

    if (record->live)
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is allocated while it lives", buffer->name);
    if (buffer->resident && record->born)
        return tdm_fail(err, TDM_INPUT,
                        "buffer \"%s\", which outlives the step, is freed inside it", buffer->name);
    if (buffer->bytes != tdm_size_mul(buffer->slots, buffer->slot_bytes))
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" has %llu bytes, not %u slots of %llu",
                        buffer->name, (unsigned long long)buffer->bytes, buffer->slots,
                        (unsigned long long)buffer->slot_bytes);
    if (end > v->program->arena_bytes[buffer->place])
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" ends at byte %llu of a %s arena of %llu",
                        buffer->name, (unsigned long long)end, tdm_place_name(buffer->place),
                        (unsigned long long)v->program->arena_bytes[buffer->place]);
    if (end > v->capacity_bytes[buffer->place])
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" ends at byte %llu, over the %s's %llu",
                        buffer->name, (unsigned long long)end, tdm_place_name(buffer->place),
                        (unsigned long long)v->capacity_bytes[buffer->place]);
    for (uint32_t other = 0; other < v->program->buffer_count; other++) {
        if (!bytes_overlap(buffer, &v->program->buffers[other]))
            continue;
        if (v->records[other].live)
            return tdm_fail(err, TDM_INPUT, "live buffers \"%s\" and \"%s\" overlap", buffer->name,
                            v->program->buffers[other].name);
        for (int lane = 0; lane < TDM_LANES; lane++)
            if (v->records[other].last[lane] > record->birth[lane])
                record->birth[lane] = v->records[other].last[lane];
    }
    record->live = record->born = true;
    return TDM_OK;
}

/* What a slot holds when its buffer comes to life: nothing, or what outlived the last step. */
static struct tdm_tag initial_tag(const struct tdm_buffer *buffer, uint32_t slot)
{
    if (!buffer->resident)
        return (struct tdm_tag){TDM_EMPTY, TDM_NONE, TDM_NONE, TDM_NONE};
    struct tdm_tag tag = tag_at(buffer->initial, slot);
    if (buffer->axis == TDM_AXIS_UNIT && tag.layer != TDM_NONE)
        tag.layer += slot;
    return tag;
}

static void fill_tags(struct tdm_validator *v, uint32_t number)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    struct record *record = &v->records[number];
    for (uint32_t slot = 0; slot < buffer->slots; slot++) {
        struct tdm_tag tag = initial_tag(buffer, slot);
        for (uint32_t part = 0; part < record->parts; part++)
            record->tags[(size_t)slot * record->parts + part] = tag;
    }
}

/* ---- what an op's operands must be ---- */

/* Whose: the layer or unit in a tag; OF_NEXT is the layer above the op's, OF_OUTPUT the unit of the
 * output weight, which is the embedding if they are tied. */
enum whose { OF_NONE, OF_FIRST, OF_LAYER, OF_NEXT, OF_EMBEDDING, OF_HEAD, OF_OUTPUT };

/* How an operand takes part in a sum: from it follow the contributors in its tags, and which
 * contribution is the first. Contributions come in falling order, 0 is the last. */
enum sum {
    NO_SUM,
    COMPLETE, /* reads a sum to which nothing more is added */
    SO_FAR,   /* reads a sum to which the op's chunk was the last to add */
    CLOSES,   /* adds the second and last share; the first is tagged as no sum */
    NOT_YET,  /* makes zero what all chunks of the step will add to */
    CHUNKS,   /* adds to a sum over the chunks of the step */
    SEQUENCE, /* ... over the chunks of a sequence */
    TILES,    /* ... over the LM-head tiles of the step */
    ROWS,     /* is one of the LM-head tiles of its chunk */
};

/* An operand. Where `before` is another content than `after`, something is turned into something
 * else in its place. Else TDM_ACCUMULATE adds to a sum, and the first contribution is a TDM_WRITE. */
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
#define WEIGHTS READS(TDM_UNIT_WEIGHTS, OF_LAYER)
#define GRADIENT ADDS(TDM_UNIT_GRADIENT, OF_LAYER, CHUNKS)

struct op_rule {
    enum tdm_op_kind kind;
    enum tdm_part part;
    struct operand_rule operand[TDM_OPERANDS];
};

/* Operands in the order that enum tdm_op_kind gives them. */
static const struct op_rule op_rules[] = {
    {TDM_OP_ZERO,
     TDM_PART_EMBEDDING,
     {{TDM_WRITE, TDM_EMPTY, OF_NONE, TDM_UNIT_GRADIENT, OF_EMBEDDING, NOT_YET}}},
    {TDM_OP_EMBED,
     TDM_PART_EMBEDDING,
     {READS(TDM_TOKENS, OF_NONE), READS(TDM_UNIT_WEIGHTS, OF_EMBEDDING), WRITES(TDM_X, OF_FIRST)}},
    {TDM_OP_EMBED_GRAD,
     TDM_PART_EMBEDDING,
     {READS(TDM_TOKENS, OF_NONE), READS(TDM_DX, OF_FIRST),
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
    {TDM_OP_ROPE_GRAD, TDM_PART_Q, {TURNS(TDM_DQ, OF_LAYER, TDM_DQRAW)}},
    {TDM_OP_KV_WRITE, TDM_PART_KV, {READS(TDM_KVRAW, OF_LAYER), WRITES(TDM_KVPAGES, OF_LAYER)}},
    {TDM_OP_KV_GRAD_READ,
     TDM_PART_KV,
     {READS_SUM(TDM_DKVPAGES, SO_FAR), WRITES(TDM_DKVRAW, OF_LAYER)}},
    {TDM_OP_ATTENTION,
     0,
     {READS(TDM_Q, OF_LAYER), READS(TDM_KVPAGES, OF_LAYER), WRITES(TDM_ATTENTION_OUT, OF_LAYER)}},
    {TDM_OP_ATTENTION_GRAD,
     0,
     {READS(TDM_Q, OF_LAYER), READS(TDM_KVPAGES, OF_LAYER), READS(TDM_ATTENTION_OUT, OF_LAYER),
      READS(TDM_DATTENTION, OF_LAYER), WRITES(TDM_DQ, OF_LAYER),
      ADDS(TDM_DKVPAGES, OF_LAYER, SEQUENCE)}},
    {TDM_OP_SWIGLU,
     TDM_PART_GATE_UP,
     {READS(TDM_GATE_UP, OF_LAYER), WRITES(TDM_ACTIVATED, OF_LAYER)}},
    {TDM_OP_SWIGLU_GRAD,
     TDM_PART_GATE_UP,
     {TURNS(TDM_GATE_UP, OF_LAYER, TDM_DGATE_UP), READS(TDM_DACTIVATED, OF_LAYER)}},
    {TDM_OP_HEAD,
     TDM_PART_HEAD,
     {{TDM_ACCUMULATE, TDM_FINAL_NORMED, OF_LAYER, TDM_DFINAL_NORMED, OF_LAYER, ROWS},
      READS(TDM_TOKENS, OF_NONE),
      READS(TDM_UNIT_WEIGHTS, OF_OUTPUT),
      {TDM_WRITE, TDM_EMPTY, OF_NONE, TDM_LOGIT_TILE, OF_LAYER, ROWS},
      ADDS(TDM_UNIT_GRADIENT, OF_OUTPUT, TILES),
      ADDS(TDM_LOSS, OF_NONE, ROWS)}},
    {TDM_OP_OPTIMIZER,
     TDM_PART_ALL,
     {ADDS(TDM_UNIT_WEIGHTS, OF_LAYER, CLOSES), READS_SUM(TDM_UNIT_GRADIENT, COMPLETE),
      ADDS(TDM_UNIT_MASTER, OF_LAYER, CLOSES), ADDS(TDM_UNIT_MOMENT1, OF_LAYER, CLOSES),
      ADDS(TDM_UNIT_MOMENT2, OF_LAYER, CLOSES), WRITES(TDM_GRADIENT_NORM, OF_LAYER),
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

static bool is_of_unit(enum tdm_content content)
{
    return content == TDM_UNIT_WEIGHTS || content == TDM_UNIT_MASTER ||
           content == TDM_UNIT_MOMENT1 || content == TDM_UNIT_MOMENT2 ||
           content == TDM_UNIT_GRADIENT;
}

/* LM-head tile of its chunk that an op works on. */
static uint64_t tile_of(const struct tdm_validator *v, const struct tdm_op *op)
{
    return op->first_row / v->program->schedule->head_tile_tokens;
}

/* Contributors before and after an op, and whether it is the first to add to its sum. */
static bool share_of(const struct tdm_validator *v, const struct tdm_op *op, enum sum sum,
                     uint32_t *before, uint32_t *after)
{
    const struct tdm_program *program = v->program;
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
    case CLOSES:
        *before = TDM_NONE;
        *after = 0;
        return false;
    case NOT_YET:
        *before = *after = program->chunk_count;
        return false;
    case CHUNKS:
        mine = op->chunk;
        last = program->chunk_count - 1;
        break;
    case SEQUENCE:
        mine = op->chunk;
        last = program->chunks[op->chunk].last_chunk;
        break;
    case TILES:
        mine = v->tile_base[op->chunk] + tile_of(v, op);
        last = v->tile_base[program->chunk_count] - 1;
        break;
    case ROWS:
        mine = tile_of(v, op);
        last = v->tile_base[op->chunk + 1] - v->tile_base[op->chunk] - 1;
        break;
    }
    *after = (uint32_t)mine;
    *before = (uint32_t)mine + 1;
    return mine == last;
}

/* Is the operand of a rule there in this model and schedule? */
static bool operand_is_due(const struct tdm_validator *v, const struct tdm_op *op,
                           const struct operand_rule *rule)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    if (rule->after == TDM_UNIT_MASTER)
        return schedule->dtypes.master != TDM_DTYPE_NONE;
    if (rule->after == TDM_TIED_GRADIENT)
        return schedule->model->tied && op->layer == tdm_model_embedding_unit(schedule->model);
    return rule->after != TDM_EMPTY;
}

/* The access that a rule asks for: all but buffer, slot and bytes. */
static struct tdm_access due_access(const struct tdm_validator *v, const struct tdm_op *op,
                                    const struct operand_rule *rule)
{
    const struct tdm_model *model = v->program->schedule->model;
    struct tdm_access due = {.slots = 1, .mode = rule->mode};
    due.before =
        (struct tdm_tag){rule->before, unit_of(model, op, rule->whose_before), op->chunk, TDM_NONE};
    due.after = (struct tdm_tag){rule->after, unit_of(model, op, rule->whose), op->chunk, TDM_NONE};
    bool first = share_of(v, op, rule->sum, &due.before.contributor, &due.after.contributor);

    if (is_of_unit(rule->after)) {
        due.part = op->part;
        due.before.chunk = due.after.chunk = TDM_NONE;
        if (op->kind == TDM_OP_HEAD && model->tied) {
            due.part = TDM_PART_EMBEDDING;
            if (rule->after == TDM_UNIT_GRADIENT) { /* an accumulator of its own */
                due.part = 0;
                due.before.content = due.after.content = TDM_TIED_GRADIENT;
            }
        }
    } else if (rule->after == TDM_KVPAGES || rule->after == TDM_DKVPAGES) {
        if (op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD) {
            uint32_t first_chunk = v->program->chunks[op->chunk].first_chunk;
            due.slots = op->chunk - first_chunk + 1;
            due.before.chunk = due.after.chunk = first_chunk;
        }
    } else if (op->kind == TDM_OP_OPTIMIZER) {
        due.before.chunk = due.after.chunk = TDM_NONE;
    }

    if (rule->mode != TDM_ACCUMULATE)
        return due;
    if (rule->before != rule->after) { /* turns into something else, tile by tile if a sum */
        if (first)
            due.before.contributor = TDM_NONE;
        else if (rule->sum != NO_SUM)
            due.before.content = rule->after;
    } else if (first &&
               op->kind != TDM_OP_EMBED_GRAD) { /* that one adds to what TDM_OP_ZERO made */
        due.mode = TDM_WRITE;
    }
    return due;
}

static const char *mode_name(enum tdm_mode mode)
{
    return mode == TDM_READ ? "reads" : mode == TDM_WRITE ? "writes" : "changes";
}

static enum tdm_status check_operand(const struct tdm_op *op, uint32_t number,
                                     const struct tdm_access *access, const struct tdm_access *due,
                                     struct tdm_error *err)
{
    char due_text[TAG_TEXT], text[TAG_TEXT];
    if (access->mode != due->mode || access->part != due->part || access->slots != due->slots)
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s, layer %d, chunk %d) %s %u slots, part %u, as operand %u; due "
                        "is that it %s %u, part %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
                        (int)op->chunk, mode_name(access->mode), access->slots, access->part,
                        number, mode_name(due->mode), due->slots, due->part);
    if (access->mode != TDM_WRITE && !same(access->before, due->before))
        return tdm_fail(
            err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) works on %s as operand %u, not on %s",
            (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
            (int)op->chunk, show(access->before, text), number, show(due->before, due_text));
    if (!same(access->after, due->after))
        return tdm_fail(
            err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) leaves %s in operand %u, not %s",
            (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->layer,
            (int)op->chunk, show(access->after, text), number, show(due->after, due_text));
    return TDM_OK;
}

/* Layer, chunk, tokens and rows that an op says of itself. */
static bool shape_is_right(const struct tdm_validator *v, const struct tdm_op *op)
{
    const struct tdm_program *program = v->program;
    const struct tdm_model *model = program->schedule->model;
    if (op->kind == TDM_OP_OPTIMIZER)
        return op->layer < model->unit_count && op->chunk == TDM_NONE && op->tokens == 0;
    if (op->chunk >= program->chunk_count)
        return false;

    uint64_t tokens = program->chunks[op->chunk].tokens;
    if (op->kind == TDM_OP_HEAD) {
        uint64_t tile = program->schedule->head_tile_tokens;
        if (op->first_row % tile != 0 || op->first_row >= tokens)
            return false;
        tokens -= op->first_row;
        tokens = tokens < tile ? tokens : tile;
    } else if (op->first_row != 0) {
        return false;
    }
    if (op->tokens != tokens)
        return false;

    bool on_top = op->kind == TDM_OP_HEAD || op->part == TDM_PART_FINAL_NORM;
    if (op->kind == TDM_OP_ZERO || op->kind == TDM_OP_EMBED_GRAD)
        return op->layer == tdm_model_embedding_unit(model);
    if (op->kind == TDM_OP_EMBED)
        return op->layer == 0;
    return on_top ? op->layer == model->layers : op->layer < model->layers;
}

static enum tdm_status check_operands(const struct tdm_validator *v, const struct tdm_op *op,
                                      struct tdm_error *err)
{
    const struct op_rule *rule = find_rule(op);
    if (rule == NULL || op->lane != TDM_LANE_COMPUTE || op->access_count > TDM_OPERANDS)
        return tdm_fail(err, TDM_INPUT, "op %llu is no op: %s, part %d, lane %s, %u operands",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), (int)op->part,
                        tdm_lane_name(op->lane), op->access_count);
    if (!shape_is_right(v, op))
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s) is said to work on %llu tokens from row %llu of layer %d, "
                        "chunk %d, which is no part of the step",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (unsigned long long)op->tokens, (unsigned long long)op->first_row,
                        (int)op->layer, (int)op->chunk);
    for (uint32_t i = 0; i < TDM_OPERANDS; i++) {
        bool there = i < op->access_count && op->access[i].buffer != TDM_NONE;
        if (there != operand_is_due(v, op, &rule->operand[i]))
            return tdm_fail(err, TDM_INPUT, "op %llu (%s, layer %d, chunk %d) has %s operand %u",
                            (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                            (int)op->layer, (int)op->chunk, there ? "an undue" : "no", i);
        if (!there)
            continue;
        struct tdm_access due = due_access(v, op, &rule->operand[i]);
        enum tdm_status status = check_operand(op, i, &op->access[i], &due, err);
        if (status != TDM_OK)
            return status;
    }
    return TDM_OK;
}

/* ---- one access ---- */

/* Parts of a slot that an access speaks of: [*first, *end). */
static void parts_of(const struct record *record, const struct tdm_access *access, uint32_t *first,
                     uint32_t *end)
{
    bool all = record->parts == 1 || access->part >= TDM_PARTS;
    *first = all ? 0 : access->part;
    *end = all ? record->parts : access->part + 1;
}

/* Does the unit that a tag names have tensors of this part? A buffer of units has a tag for every
 * part; those that the unit lacks are nobody's business. */
static bool has_part(const struct tdm_program *program, const struct record *record,
                     struct tdm_tag tag, uint32_t part)
{
    if (record->parts == 1 || tag.layer >= program->schedule->model->unit_count ||
        tag.content == TDM_TIED_GRADIENT || tag.content == TDM_GRADIENT_NORM)
        return record->parts == 1 || part == 0;
    return tdm_part_bytes(program->schedule->model, tag.layer, (enum tdm_part)part,
                          TDM_DTYPE_BF16) > 0;
}

/* Bytes that a slot of an access must have: its largest chunk, or its unit. */
static uint64_t slot_need(const struct tdm_validator *v, const struct tdm_op *op,
                          const struct tdm_access *access)
{
    const struct tdm_schedule *schedule = v->program->schedule;
    enum tdm_content content = access->after.content;
    if (is_of_unit(content) && access->after.layer >= schedule->model->unit_count)
        return TDM_SIZE_MAX;
    uint64_t tokens = content == TDM_LOGIT_TILE ? op->tokens : 0;
    for (uint32_t k = 0; k < access->slots && content != TDM_LOGIT_TILE; k++) {
        uint32_t chunk = tag_at(access->after, k).chunk;
        if (chunk < v->program->chunk_count && v->program->chunks[chunk].tokens > tokens)
            tokens = v->program->chunks[chunk].tokens;
    }
    return tdm_content_bytes(schedule, content, access->after.layer, tokens);
}

static enum tdm_status check_range(const struct tdm_validator *v, const struct tdm_op *op,
                                   const struct tdm_access *access, struct tdm_error *err)
{
    if (access->buffer >= v->program->buffer_count)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) names buffer %u of %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), access->buffer,
                        v->program->buffer_count);
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    if (!v->records[access->buffer].live)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses buffer \"%s\", which is not live",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), buffer->name);
    if (access->slots == 0 || access->first_slot >= buffer->slots ||
        access->slots > buffer->slots - access->first_slot)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses slots %u to %u of \"%s\", which has %u",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        access->first_slot, access->first_slot + access->slots - 1, buffer->name,
                        buffer->slots);
    if (access->bytes > tdm_size_mul(access->slots, buffer->slot_bytes))
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) uses %llu bytes of %u slots of \"%s\"",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (unsigned long long)access->bytes, access->slots, buffer->name);
    uint64_t need = slot_need(v, op, access);
    if (need > buffer->slot_bytes)
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s) needs %llu bytes for %s in a slot of \"%s\", which has %llu",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        (unsigned long long)need, tdm_content_name(access->after.content),
                        buffer->name, (unsigned long long)buffer->slot_bytes);
    if (op->lane == TDM_LANE_COMPUTE && buffer->place != TDM_DEVICE)
        return tdm_fail(err, TDM_INPUT, "op %llu (%s) computes on \"%s\", which is at place %s",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind), buffer->name,
                        tdm_place_name(buffer->place));
    return TDM_OK;
}

/* What keeps the replay, and the order tracker before it, inside their arrays. */
static enum tdm_status check_ranges(const struct tdm_validator *v, const struct tdm_op *op,
                                    struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (op->access_count > TDM_OPERANDS || op->lane >= TDM_LANES)
        return tdm_fail(err, TDM_INPUT, "op %llu has %u operands on lane %d",
                        (unsigned long long)op->number, op->access_count, (int)op->lane);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++)
        if (op->access[i].buffer != TDM_NONE)
            status = check_range(v, op, &op->access[i], err);
    return status;
}

static enum tdm_status check_tags(struct tdm_validator *v, const struct tdm_op *op,
                                  const struct tdm_access *access, struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    struct record *record = &v->records[access->buffer];
    uint32_t first, end;
    parts_of(record, access, &first, &end);

    for (uint32_t k = 0; k < access->slots; k++)
        for (uint32_t part = first; part < end; part++) {
            struct tdm_tag due = tag_at(access->before, k);
            struct tdm_tag after = tag_at(access->after, k);
            struct tdm_tag *found =
                &record->tags[(size_t)(access->first_slot + k) * record->parts + part];
            if (!has_part(v->program, record, after, part))
                continue;
            if (access->mode != TDM_WRITE && !same(*found, due)) {
                char due_text[TAG_TEXT], found_text[TAG_TEXT];
                return tdm_fail(err, TDM_INPUT,
                                "op %llu (%s, layer %d, chunk %d) expects %s in slot %u of \"%s\", "
                                "which holds %s",
                                (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                                (int)op->layer, (int)op->chunk, show(due, due_text),
                                access->first_slot + k, buffer->name, show(*found, found_text));
            }
            if (access->mode != TDM_READ)
                *found = after;
        }
    return TDM_OK;
}

/* Must `op` have waited for position `due` of `lane`? It has if its own lane passed that before. */
static enum tdm_status check_wait(const struct tdm_validator *v, const struct tdm_op *op, int lane,
                                  uint64_t due, const struct tdm_buffer *buffer,
                                  struct tdm_error *err)
{
    if (lane == (int)op->lane || due <= v->passed[op->lane][lane])
        return TDM_OK;
    return tdm_fail(err, TDM_INPUT,
                    "op %llu (%s) does not wait for op %llu of lane %s, which uses \"%s\" too",
                    (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                    (unsigned long long)due, tdm_lane_name((enum tdm_lane)lane), buffer->name);
}

static enum tdm_status check_order(const struct tdm_validator *v, const struct tdm_op *op,
                                   const struct tdm_access *access, struct tdm_error *err)
{
    const struct record *record = &v->records[access->buffer];
    const struct tdm_buffer *buffer = &v->program->buffers[access->buffer];
    enum tdm_status status = TDM_OK;
    for (int lane = 0; lane < TDM_LANES && status == TDM_OK; lane++) {
        uint64_t due = record->birth[lane];
        for (uint32_t k = 0; k < access->slots; k++) {
            const struct slot_uses *uses = &record->uses[access->first_slot + k];
            if (uses->written[lane] > due)
                due = uses->written[lane];
            if (access->mode != TDM_READ && uses->read[lane] > due)
                due = uses->read[lane];
        }
        status = check_wait(v, op, lane, due, buffer, err);
    }
    return status;
}

static void note_uses(struct tdm_validator *v, const struct tdm_op *op,
                      const struct tdm_access *access)
{
    struct record *record = &v->records[access->buffer];
    uint64_t position = v->position[op->lane];
    for (uint32_t k = 0; k < access->slots; k++) {
        struct slot_uses *uses = &record->uses[access->first_slot + k];
        if (access->mode == TDM_READ)
            uses->read[op->lane] = position;
        else
            uses->written[op->lane] = position;
    }
    record->last[op->lane] = position;
}

static enum tdm_status check_copy(const struct tdm_validator *v, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    if (op->access_count != 2 || op->access[0].mode != TDM_READ ||
        op->access[1].mode != TDM_WRITE || !same(op->access[0].before, op->access[1].after) ||
        op->access[0].bytes != op->access[1].bytes || op->access[0].slots != 1 ||
        op->access[1].slots != 1 || op->access[0].part != op->access[1].part)
        return tdm_fail(err, TDM_INPUT, "op %llu copies one thing and writes another",
                        (unsigned long long)op->number);
    struct tdm_tag what = op->access[0].before;
    if (what.layer != op->layer || what.chunk != op->chunk ||
        what.chunk >= v->program->chunk_count ||
        op->tokens != v->program->chunks[what.chunk].tokens || what.contributor != TDM_NONE)
        return tdm_fail(err, TDM_INPUT, "op %llu, for layer %d, chunk %d, copies %s",
                        (unsigned long long)op->number, (int)op->layer, (int)op->chunk,
                        show(what, (char[TAG_TEXT]){0}));
    enum tdm_place from = v->program->buffers[op->access[0].buffer].place;
    enum tdm_place to = v->program->buffers[op->access[1].buffer].place;
    bool right = (op->lane == TDM_LANE_H2D && from == TDM_HOST && to == TDM_DEVICE) ||
                 (op->lane == TDM_LANE_D2H && from == TDM_DEVICE && to == TDM_HOST) ||
                 (op->lane == TDM_LANE_COMPUTE && from == TDM_DEVICE && to == TDM_DEVICE);
    if (!right)
        return tdm_fail(err, TDM_INPUT, "op %llu copies from %s to %s on lane %s",
                        (unsigned long long)op->number, tdm_place_name(from), tdm_place_name(to),
                        tdm_lane_name(op->lane));
    return TDM_OK;
}

static enum tdm_status check_op(struct tdm_validator *v, const struct tdm_op *op,
                                const struct tdm_waits *waits, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (op->lane >= TDM_LANES)
        return tdm_fail(err, TDM_INPUT, "op %llu is on lane %d", (unsigned long long)op->number,
                        (int)op->lane);
    if (op->number != v->next_op)
        return tdm_fail(err, TDM_INPUT, "op %llu comes where op %llu is due",
                        (unsigned long long)op->number, (unsigned long long)v->next_op);
    v->next_op++;
    v->position[op->lane]++;
    if (waits != NULL)
        for (int lane = 0; lane < TDM_LANES; lane++) {
            if (lane != (int)op->lane && waits->lane_position[lane] > v->position[lane])
                return tdm_fail(err, TDM_INPUT, "op %llu waits for an op that is yet to come",
                                (unsigned long long)op->number);
            if (waits->lane_position[lane] > v->passed[op->lane][lane])
                v->passed[op->lane][lane] = waits->lane_position[lane];
        }

    if (status == TDM_OK)
        status = check_ranges(v, op, err);
    if (status == TDM_OK)
        status = op->kind == TDM_OP_COPY ? check_copy(v, op, err) : check_operands(v, op, err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK && waits != NULL; i++)
        if (op->access[i].buffer != TDM_NONE)
            status = check_order(v, op, &op->access[i], err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++)
        if (op->access[i].buffer != TDM_NONE) {
            status = check_tags(v, op, &op->access[i], err);
            note_uses(v, op, &op->access[i]);
        }
    return status;
}

/* ---- the stream ---- */

/* What a slot of a resident buffer must hold at the end of the step: weights, masters and moments
 * updated once if there is an optimizer; complete gradients if there is none; a loss for every
 * chunk and a norm for every unit; all else as it was. */
static struct tdm_tag due_at_end(const struct tdm_validator *v, const struct tdm_buffer *buffer,
                                 uint32_t slot)
{
    struct tdm_tag due = initial_tag(buffer, slot);
    bool updated = buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER;
    if (due.content != TDM_EMPTY) {
        if (updated && v->program->schedule->optimizer.kind != TDM_OPTIMIZER_NONE)
            due.contributor = 0;
        return due;
    }
    if (buffer->category != TDM_GRADIENTS)
        return buffer->axis == TDM_AXIS_CHUNK
                   ? (struct tdm_tag){TDM_LOSS, TDM_NONE, slot, 0}
                   : (struct tdm_tag){TDM_GRADIENT_NORM, slot, TDM_NONE, TDM_NONE};
    return due.layer != TDM_NONE
               ? (struct tdm_tag){TDM_UNIT_GRADIENT, due.layer, TDM_NONE, 0}
               : (struct tdm_tag){TDM_TIED_GRADIENT,
                                  tdm_model_embedding_unit(v->program->schedule->model), TDM_NONE,
                                  0};
}

static enum tdm_status check_resident(const struct tdm_validator *v, uint32_t number,
                                      struct tdm_error *err)
{
    const struct tdm_buffer *buffer = &v->program->buffers[number];
    const struct record *record = &v->records[number];
    for (uint32_t slot = 0; slot < buffer->slots; slot++) {
        struct tdm_tag due = due_at_end(v, buffer, slot);
        for (uint32_t part = 0; part < record->parts; part++) {
            struct tdm_tag found = record->tags[(size_t)slot * record->parts + part];
            if (!has_part(v->program, record, due, part) || same(found, due))
                continue;
            char due_text[TAG_TEXT], found_text[TAG_TEXT];
            return tdm_fail(err, TDM_INPUT,
                            "at the end of the step slot %u of \"%s\" holds %s, not %s", slot,
                            buffer->name, show(found, found_text), show(due, due_text));
        }
    }
    return TDM_OK;
}

static enum tdm_status check_free(struct tdm_validator *v, uint32_t number, struct tdm_error *err)
{
    struct record *record = &v->records[number];
    if (!record->live)
        return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is freed but not live",
                        v->program->buffers[number].name);
    record->live = false;
    return v->program->buffers[number].resident ? check_resident(v, number, err) : TDM_OK;
}

enum tdm_status tdm_validator_push(struct tdm_validator *v, const struct tdm_item *item,
                                   const struct tdm_waits *waits, struct tdm_error *err)
{
    if (item->kind == TDM_RUN)
        return check_op(v, item->op, waits, err);
    if (item->buffer >= v->program->buffer_count)
        return tdm_fail(err, TDM_INPUT, "buffer %u of %u", item->buffer, v->program->buffer_count);
    if (item->kind == TDM_FREE)
        return check_free(v, item->buffer, err);
    enum tdm_status status = check_alloc(v, item->buffer, err);
    if (status == TDM_OK)
        fill_tags(v, item->buffer);
    return status;
}

enum tdm_status tdm_validator_finish(struct tdm_validator *v, struct tdm_error *err)
{
    for (uint32_t i = 0; i < v->program->buffer_count; i++)
        if (v->records[i].live)
            return tdm_fail(err, TDM_INPUT, "buffer \"%s\" is never freed",
                            v->program->buffers[i].name);
    if (v->next_op != v->program->op_count)
        return tdm_fail(err, TDM_INPUT, "%llu ops in the stream, %llu in the program",
                        (unsigned long long)v->next_op, (unsigned long long)v->program->op_count);
    return TDM_OK;
}

/* ---- a whole program ---- */

struct validation {
    struct tdm_order_tracker *order;
    struct tdm_validator *validator;
};

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct validation *validation = self;
    struct tdm_waits waits;
    if (item->kind == TDM_RUN) {
        enum tdm_status status = check_ranges(validation->validator, item->op, err);
        if (status != TDM_OK)
            return status;
    }
    tdm_order_push(validation->order, item, &waits);
    return tdm_validator_push(validation->validator, item, &waits, err);
}

enum tdm_status tdm_program_validate(const struct tdm_program *program,
                                     const uint64_t capacity_bytes[TDM_PLACES],
                                     struct tdm_error *err)
{
    struct validation validation = {0};
    enum tdm_status status = tdm_order_new(program, &validation.order, err);
    if (status == TDM_OK)
        status = tdm_validator_new(program, capacity_bytes, &validation.validator, err);
    if (status == TDM_OK)
        status = tdm_program_emit(program, take_item, &validation, err);
    if (status == TDM_OK)
        status = tdm_validator_finish(validation.validator, err);
    tdm_validator_free(validation.validator);
    tdm_order_free(validation.order);
    return status;
}
