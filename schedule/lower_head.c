/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Final norm, LM head and loss. A chunk's rows are cut into tiles, so that only one tile of logits
 * exists at a time. If a tile has the whole vocabulary, one op runs it forward and backward. If the
 * vocabulary is cut too, a first sweep over its tiles computes the log-sum-exp of every row, and
 * from that the loss; a second sweep computes the logits again and the gradients, which costs one
 * product more. Everything runs in reverse.
 */
#include "schedule/lower_parts.h"

#include "base/size.h"
#include "ops/head.h"
#include "ops/norm.h"

/* One LM-head tile. */
struct head_tile {
    uint32_t tile, number; /* number of the tile of rows: in its chunk, in the step */
    bool first;            /* the first of its chunk to run */
    uint32_t column;       /* number of the tile of the vocabulary */
};

/* Number of a tile of rows and its column as one contributor, in a sum over both. */
static uint32_t with_column(const struct tdm_lowering *l, const struct head_tile *at,
                            uint32_t number)
{
    return number * l->layout->vocabulary_tiles + at->column;
}

static bool first_column(const struct tdm_lowering *l, const struct head_tile *at)
{
    return at->column + 1 == l->layout->vocabulary_tiles;
}

/* Corrects the bytes of an operand. */
static void moves(struct tdm_lowering *l, uint32_t operand, uint64_t bytes)
{
    l->op.access[operand].bytes = bytes;
}

/* Begins the op of a tile. Sets its rows and its part of the vocabulary. */
static void tile_begin(struct tdm_lowering *l, const struct tdm_body *body, enum tdm_op_kind kind,
                       const struct head_tile *at)
{
    uint64_t tile_tokens = l->schedule->head_tile_tokens;
    uint64_t tile_entries = l->schedule->head_tile_vocabulary;
    tdm_low_op_begin(l, body, kind, TDM_PART_HEAD);
    l->op.first_row = at->tile * tile_tokens;
    l->op.tokens -= l->op.first_row;
    if (l->op.tokens > tile_tokens)
        l->op.tokens = tile_tokens;
    l->op.first_entry = (uint32_t)(at->column * tile_entries);
    l->op.entries = l->model->vocabulary - l->op.first_entry;
    if (l->op.entries > tile_entries)
        l->op.entries = (uint32_t)tile_entries;
}

/* The unit and part of the output weight. */
static uint32_t output_unit(const struct tdm_lowering *l, enum tdm_part *part)
{
    *part = l->model->tied ? TDM_PART_EMBEDDING : TDM_PART_HEAD;
    return l->model->tied ? tdm_model_embedding_unit(l->model) : tdm_model_head_unit(l->model);
}

/* Bytes of the op's entries of the output weight or of its gradient. */
static uint64_t entry_bytes(const struct tdm_lowering *l, enum tdm_dtype dtype)
{
    return tdm_size_mul(l->op.entries, (uint64_t)l->model->hidden * tdm_dtype_bytes(dtype));
}

/* What the rows of a tile hold before its op. If tiles turn their rows into gradients, the tiles
 * before it have done so. */
static struct tdm_tag rows_tag(const struct tdm_body *body, const struct head_tile *at)
{
    return at->first || body->kind == TDM_BODY_LOSS
               ? tdm_low_tag(TDM_FINAL_NORMED, body->layer, body->chunk)
               : tdm_low_sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, at->tile + 1);
}

static void reads_rows(struct tdm_lowering *l, const struct tdm_body *body,
                       const struct head_tile *at)
{
    tdm_low_reads(l, TDM_HEAD_ROWS, tdm_low_work(l, TDM_FINAL_NORMED), rows_tag(body, at));
}

static void turns_rows(struct tdm_lowering *l, const struct tdm_body *body,
                       const struct head_tile *at)
{
    tdm_low_changes(l, TDM_HEAD_ROWS, tdm_low_work(l, TDM_FINAL_NORMED), rows_tag(body, at),
                    tdm_low_sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, at->tile));
}

/* Sets the operands tokens, weights and tile of logits. */
static void tile_operands(struct tdm_lowering *l, const struct tdm_body *body,
                          const struct head_tile *at)
{
    enum tdm_part part;
    uint32_t unit = output_unit(l, &part);
    tdm_low_reads(l, TDM_HEAD_TOKENS, (struct tdm_ref){l->layout->tokens, body->chunk},
                  tdm_low_tag(TDM_TOKENS, TDM_NONE, body->chunk));
    tdm_low_reads_weights(l, TDM_HEAD_WEIGHTS, unit, part);
    moves(l, TDM_HEAD_WEIGHTS, entry_bytes(l, l->schedule->dtypes.weights));
    tdm_low_writes(
        l, TDM_HEAD_LOGITS, tdm_low_work(l, TDM_LOGIT_TILE),
        tdm_low_sum_tag(TDM_LOGIT_TILE, body->layer, body->chunk, with_column(l, at, at->tile)));
    moves(l, TDM_HEAD_LOGITS, tdm_logit_bytes(l->schedule, l->op.tokens, l->op.entries));
}

/* Adds to the gradient of the op's entries, not to those of other tiles of the vocabulary. */
static void tile_gradient(struct tdm_lowering *l, const struct head_tile *at)
{
    enum tdm_part part;
    uint32_t unit = output_unit(l, &part);
    uint32_t contributor = with_column(l, at, at->number);
    bool tied = l->model->tied, opens = false;
    struct tdm_tag after = tdm_low_share_tag(l, tied ? TDM_TIED_GRADIENT : TDM_UNIT_GRADIENT, unit,
                                             TDM_NONE, contributor);
    struct tdm_tag before = after;
    before.contributor = contributor + 1;
    if (at->first &&
        first_column(l, at)) { /* of its chunk: before it the rank's next chunk added */
        before.contributor = l->layout->tile_base[tdm_sum_before(l->program, l->op.chunk)] *
                             l->layout->vocabulary_tiles;
        opens = tdm_sum_opens(l->program, l->op.chunk);
    }
    tdm_low_access(l, TDM_HEAD_DWEIGHTS,
                   tied ? (struct tdm_ref){l->layout->tied_gradient, 0}
                        : tdm_low_gradient_ref(l, unit),
                   1, opens ? TDM_WRITE : TDM_ACCUMULATE, tied ? 0 : part, before, after,
                   entry_bytes(l, l->schedule->dtypes.gradients));
}

/* Adds to a sum over the columns of a tile. */
static void tile_sum(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                     const struct head_tile *at, enum tdm_content content)
{
    uint32_t contributor = with_column(l, at, at->tile);
    struct tdm_tag after = tdm_low_sum_tag(content, body->layer, body->chunk, contributor);
    struct tdm_tag before = after;
    before.contributor = contributor + 1;
    tdm_low_access(l, operand, tdm_low_work(l, content), 1,
                   first_column(l, at) ? TDM_WRITE : TDM_ACCUMULATE, 0, before, after,
                   tdm_low_row_bytes(l, content));
}

static void tile_loss(struct tdm_lowering *l, const struct tdm_body *body,
                      const struct head_tile *at)
{
    tdm_low_access(l, TDM_HEAD_LOSS, (struct tdm_ref){l->layout->loss, body->chunk}, 1,
                   at->first ? TDM_WRITE : TDM_ACCUMULATE, 0,
                   tdm_low_sum_tag(TDM_LOSS, TDM_NONE, body->chunk, at->tile + 1),
                   tdm_low_sum_tag(TDM_LOSS, TDM_NONE, body->chunk, at->tile), sizeof(double));
}

/* Forward and backward of a tile. */
static void head_op(struct tdm_lowering *l, const struct tdm_body *body, const struct head_tile *at)
{
    tile_begin(l, body, TDM_OP_HEAD, at);
    turns_rows(l, body, at);
    tile_operands(l, body, at);
    tile_gradient(l, at);
    tile_loss(l, body, at);
    tdm_low_op_end(l);
}

/* Forward of a tile. The last column to run adds the loss. */
static void loss_op(struct tdm_lowering *l, const struct tdm_body *body, const struct head_tile *at)
{
    tile_begin(l, body, TDM_OP_LOSS, at);
    reads_rows(l, body, at);
    tile_operands(l, body, at);
    if (l->layout->vocabulary_tiles > 1)
        tile_sum(l, TDM_LOSS_LSE, body, at, TDM_HEAD_LSE);
    if (at->column == 0)
        tile_loss(l, body, at);
    tdm_low_op_end(l);
}

/* Backward of a tile. The last column to run turns the rows into gradients. */
static void head_grad_op(struct tdm_lowering *l, const struct tdm_body *body,
                         const struct head_tile *at)
{
    tile_begin(l, body, TDM_OP_HEAD_GRAD, at);
    if (at->column == 0)
        turns_rows(l, body, at);
    else
        reads_rows(l, body, at);
    tile_operands(l, body, at);
    tile_gradient(l, at);
    tdm_low_reads(l, TDM_HEAD_GRAD_LSE, tdm_low_work(l, TDM_HEAD_LSE),
                  tdm_low_sum_tag(TDM_HEAD_LSE, body->layer, body->chunk,
                                  at->tile * l->layout->vocabulary_tiles));
    tile_sum(l, TDM_HEAD_GRAD_SUM, body, at, TDM_HEAD_SUM);
    tdm_low_op_end(l);
}

/* Runs the tiles of a chunk, from its normed rows in the workspace. */
static void head_tiles(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t base = l->layout->tile_base[body->chunk];
    uint32_t tiles = l->layout->tile_base[body->chunk + 1] - base;
    uint32_t columns = l->layout->vocabulary_tiles;
    bool backward = body->kind == TDM_BODY_HEAD, whole = columns == 1;
    tdm_low_alloc_work(l, TDM_LOGIT_TILE);
    tdm_low_alloc_work(l, TDM_HEAD_LSE);
    if (backward)
        tdm_low_alloc_work(l, TDM_HEAD_SUM);
    for (uint32_t tile = tiles; tile-- > 0;) {
        struct head_tile at = {tile, base + tile, tile == tiles - 1, 0};
        for (uint32_t left = columns; left > 0; left--) {
            at.column = left - 1;
            if (backward && whole)
                head_op(l, body, &at);
            else
                loss_op(l, body, &at);
        }
        for (uint32_t left = columns; left > 0 && backward && !whole; left--) {
            at.column = left - 1;
            head_grad_op(l, body, &at);
        }
    }
    if (backward)
        tdm_low_release_work(l, TDM_HEAD_SUM);
    tdm_low_release_work(l, TDM_HEAD_LSE);
    tdm_low_release_work(l, TDM_LOGIT_TILE);
}

void tdm_low_loss_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    tdm_low_alloc_work(l, TDM_FINAL_NORMED);
    tdm_low_norm(l, body, TDM_PART_FINAL_NORM, tdm_low_stream_ref(l, body->chunk), TDM_X,
                 tdm_low_work(l, TDM_FINAL_NORMED), TDM_FINAL_NORMED);
    head_tiles(l, body);
    tdm_low_release_work(l, TDM_FINAL_NORMED);
}

void tdm_low_head_body(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t head = tdm_model_head_unit(l->model);
    struct tdm_ref stream = tdm_low_stream_ref(l, body->chunk);

    tdm_low_alloc_work(l, TDM_FINAL_NORMED);
    tdm_low_norm(l, body, TDM_PART_FINAL_NORM, stream, TDM_X, tdm_low_work(l, TDM_FINAL_NORMED),
                 TDM_FINAL_NORMED);
    head_tiles(l, body);

    tdm_low_op_begin(l, body, TDM_OP_NORM_GRAD, TDM_PART_FINAL_NORM);
    tdm_low_reads(l, TDM_NORM_GRAD_X, stream, tdm_low_tag(TDM_X, body->layer, body->chunk));
    tdm_low_reads_weights(l, TDM_NORM_GRAD_WEIGHTS, head, TDM_PART_FINAL_NORM);
    tdm_low_reads(l, TDM_NORM_GRAD_DOUT, tdm_low_work(l, TDM_FINAL_NORMED),
                  tdm_low_sum_tag(TDM_DFINAL_NORMED, body->layer, body->chunk, 0));
    tdm_low_writes(l, TDM_NORM_GRAD_DX, stream, tdm_low_tag(TDM_DX, body->layer, body->chunk));
    tdm_low_adds_gradient(l, TDM_NORM_GRAD_DWEIGHTS, head, TDM_PART_FINAL_NORM, body->chunk);
    tdm_low_op_end(l);
    tdm_low_release_work(l, TDM_FINAL_NORMED);
}
