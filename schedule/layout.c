/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of what a slot holds: dtype and bytes of every content. */
#include "schedule/layout.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/weights.h"
#include "schedule/ranks.h"
#include "schedule/slices.h"

enum tdm_dtype tdm_content_dtype(const struct tdm_schedule *schedule, enum tdm_content content)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    switch (content) {
    case TDM_TOKENS:
    case TDM_TOKEN_ORDER:
    case TDM_PAGE_LISTS:
        return TDM_DTYPE_INT32;
    case TDM_UNIT_WEIGHTS:
        return dtypes->weights;
    case TDM_UNIT_MASTER:
        return dtypes->master;
    case TDM_UNIT_MOMENT1:
    case TDM_UNIT_MOMENT2:
        return dtypes->moments;
    case TDM_UNIT_GRADIENT:
    case TDM_TIED_GRADIENT:
        return dtypes->gradients;
    case TDM_KVPAGES:
    case TDM_OWN_KVPAGES:
    case TDM_PAGE_MEANS:
        return dtypes->kv;
    case TDM_DKVPAGES:
    case TDM_OWN_DKVPAGES:
    case TDM_PASSING_DKV:
        return dtypes->kv_gradients;
    case TDM_LOGIT_TILE:
        return dtypes->logits;
    case TDM_LOSS:
    case TDM_GRADIENT_NORM:
    case TDM_HEAD_LSE:
        return TDM_DTYPE_FP64;
    case TDM_HEAD_SUM:
    case TDM_OUT_SUM:
    case TDM_DQ_SUM:
    case TDM_PASSING_DQ:
    case TDM_SCRATCH:
    case TDM_PARTED: /* of any dtype */
        return TDM_DTYPE_FP32;
    default:
        return dtypes->activations;
    }
}

uint64_t tdm_page_plane_elements(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    const uint32_t heads = model->kv_heads / tdm_schedule_head_parts(schedule);
    return tdm_size_mul(schedule->page_tokens, (uint64_t)heads * model->head_dim);
}

uint64_t tdm_page_elements(const struct tdm_schedule *schedule)
{
    return tdm_size_mul(2, tdm_page_plane_elements(schedule));
}

/* Elements per token, for contents with a row for each token. */
static uint64_t row_elements(const struct tdm_schedule *schedule, enum tdm_content content)
{
    const struct tdm_model *model = schedule->model;
    switch (content) {
    case TDM_X:
    case TDM_DX:
    case TDM_NORMED:
    case TDM_Y:
    case TDM_MLP_NORMED:
    case TDM_DMLP_NORMED:
    case TDM_DY:
    case TDM_DNORMED:
    case TDM_FINAL_NORMED:
    case TDM_DFINAL_NORMED:
    case TDM_HEAD_SUM:
        return model->hidden;
    case TDM_Q:
    case TDM_QRAW:
    case TDM_DQ:
    case TDM_DQRAW:
    case TDM_DATTENTION:
    case TDM_ATTENTION_OUT:
        return (uint64_t)model->query_heads * model->head_dim;
    case TDM_QUERIES: /* Q and the gradient of the output */
        return 2 * row_elements(schedule, TDM_HEADS_Q);
    case TDM_DQ_PART: /* of the heads with which a rank attends */
    case TDM_DQ_SUM:
    case TDM_PASSING_DQ:
    case TDM_OUT_PART:
    case TDM_OUT_SUM:
    case TDM_HEADS_Q:
    case TDM_HEADS_OUT:
    case TDM_HEADS_DOUT:
    case TDM_HEADS_DQ:
        return (uint64_t)model->query_heads / tdm_schedule_head_parts(schedule) * model->head_dim;
    case TDM_KVRAW:
    case TDM_DKVRAW:
        return 2 * tdm_model_kv_width(model);
    case TDM_GATE_UP:
    case TDM_DGATE_UP:
        return 2 * (uint64_t)model->intermediate;
    case TDM_ACTIVATED:
    case TDM_DACTIVATED:
        return model->intermediate;
    case TDM_HEAD_LSE:
        return 3;
    case TDM_TOKENS:
    case TDM_TOKEN_ORDER:
        return 2;
    default:
        return 0;
    }
}

uint64_t tdm_lse_offset(const struct tdm_schedule *schedule, enum tdm_content content,
                        uint64_t tokens)
{
    uint64_t elements = tdm_size_mul(tokens, row_elements(schedule, content));
    return tdm_lse_bytes_at(elements, tdm_content_dtype(schedule, content));
}

uint32_t tdm_page_lists(const struct tdm_schedule *schedule)
{
    return schedule->selector.kind == TDM_SELECT_TOP_K ? schedule->model->kv_heads : 1;
}

/* Maximum number of pages that `tokens` consecutive tokens can touch. */
static uint64_t pages_touched(const struct tdm_page_rule *rule, uint64_t tokens)
{
    uint64_t left = tokens % rule->chunk_tokens;
    return tdm_size_add(tdm_size_mul(tokens / rule->chunk_tokens, tdm_pages_of_chunk(rule)),
                        tdm_size_ceil_div(left, rule->page_tokens) + 2);
}

static struct tdm_page_rule rule_of(const struct tdm_schedule *schedule)
{
    return (struct tdm_page_rule){.selector = schedule->selector,
                                  .chunk_tokens = schedule->chunk_tokens,
                                  .page_tokens = schedule->page_tokens};
}

uint64_t tdm_longest_pages(const struct tdm_schedule *schedule)
{
    struct tdm_page_rule rule = rule_of(schedule);
    uint64_t longest = 1;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        if (schedule->sequences[i].tokens > longest)
            longest = schedule->sequences[i].tokens;
    return tdm_page_of(&rule, longest - 1) + 1;
}

uint32_t tdm_page_list_capacity(const struct tdm_schedule *schedule)
{
    struct tdm_page_rule rule = rule_of(schedule);
    const struct tdm_selector *s = &rule.selector;
    uint64_t most, all = tdm_longest_pages(schedule);
    if (s->kind == TDM_SELECT_TOP_K)
        most = s->budget / rule.page_tokens + tdm_pages_of_chunk(&rule);
    else if (s->kind == TDM_SELECT_DILATED)
        most = s->window / rule.page_tokens + 1;
    else /* near pages of a page's tokens, pages of the global tokens, random pages */
        most = tdm_size_add(pages_touched(&rule, tdm_size_add(s->window, rule.page_tokens)),
                            tdm_size_add(pages_touched(&rule, s->global), s->random));
    return (uint32_t)(most < all ? most : all);
}

uint64_t tdm_page_list_voted(const struct tdm_schedule *schedule)
{
    return tdm_schedule_lists(schedule) == TDM_SELECT_TOP_K ? tdm_longest_pages(schedule) - 1 : 0;
}

uint64_t tdm_logit_bytes(const struct tdm_schedule *schedule, uint64_t tokens, uint64_t entries)
{
    return tdm_size_mul(tdm_size_mul(tokens, entries), tdm_dtype_bytes(schedule->dtypes.logits));
}

bool tdm_head_opens(const struct tdm_program *program, const struct tdm_op *op)
{
    return tdm_sum_opens(program, op->chunk) &&
           op->first_row + op->tokens == program->chunks[op->chunk].tokens;
}

uint32_t tdm_vocabulary_tiles(const struct tdm_schedule *schedule)
{
    return (uint32_t)tdm_size_ceil_div(schedule->model->vocabulary, schedule->head_tile_vocabulary);
}

/* The largest of what passes through the workspace of an exchange of heads. */
static uint64_t most_parted_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    const enum tdm_content parts[] = {TDM_HEADS_OUT, TDM_KVPAGES, TDM_DKVPAGES}; /* q is smaller */
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        uint64_t bytes = tdm_parted_bytes(schedule, parts[i], tokens);
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t tdm_content_bytes(const struct tdm_schedule *schedule, enum tdm_content content,
                           uint32_t layer, uint64_t tokens)
{
    const struct tdm_model *model = schedule->model;
    uint64_t element_bytes = tdm_dtype_bytes(tdm_content_dtype(schedule, content));
    switch (content) {
    case TDM_EMPTY:
    case TDM_SCRATCH: /* scratch.h */
    case TDM_CONTENTS:
        return 0;
    case TDM_UNIT_MASTER:
    case TDM_UNIT_MOMENT1:
    case TDM_UNIT_MOMENT2: /* of the largest part: rank 0's */
        return tdm_size_mul(tdm_rank_part(schedule, layer, 0).elements, element_bytes);
    case TDM_UNIT_WEIGHTS:
    case TDM_UNIT_GRADIENT:
        return tdm_size_mul(model->units[layer].elements, element_bytes);
    case TDM_TIED_GRADIENT:
        return tdm_size_mul(model->units[tdm_model_embedding_unit(model)].elements, element_bytes);
    case TDM_KVPAGES:
    case TDM_DKVPAGES:
    case TDM_PASSING_DKV: {
        uint64_t pages = tdm_size_ceil_div(tokens, schedule->page_tokens);
        return tdm_size_mul(tdm_size_mul(pages, tdm_page_elements(schedule)), element_bytes);
    }
    case TDM_OWN_KVPAGES:
    case TDM_OWN_DKVPAGES: {
        uint64_t parts = tdm_schedule_head_parts(schedule);
        uint64_t pages = tdm_size_ceil_div(tokens, schedule->page_tokens);
        return tdm_size_mul(tdm_size_mul(pages, parts * tdm_page_elements(schedule)),
                            element_bytes);
    }
    case TDM_PARTED:
        return most_parted_bytes(schedule, tokens);
    case TDM_PAGE_MEANS:
        return tdm_size_mul(tdm_size_ceil_div(tokens, schedule->page_tokens),
                            tdm_model_kv_width(model) * element_bytes);
    case TDM_PAGE_LISTS:
        return tdm_size_mul(tdm_size_ceil_div(tokens, schedule->page_tokens),
                            tdm_size_mul(tdm_page_lists(schedule) * element_bytes,
                                         1 + (uint64_t)tdm_page_list_capacity(schedule)));
    case TDM_ATTENTION_OUT:
    case TDM_OUT_PART:
    case TDM_OUT_SUM:
    case TDM_QUERIES: /* with two facts of a row */
    case TDM_HEADS_OUT: {
        uint64_t heads = row_elements(schedule, content) / model->head_dim;
        return tdm_size_add(tdm_lse_offset(schedule, content, tokens),
                            tdm_size_mul(tokens, 4 * heads));
    }
    case TDM_LOSS:
    case TDM_GRADIENT_NORM:
        return element_bytes;
    case TDM_LOGIT_TILE: {
        uint64_t most = schedule->head_tile_vocabulary;
        return tdm_logit_bytes(schedule, tokens,
                               most < model->vocabulary ? most : model->vocabulary);
    }
    default:
        return tdm_size_mul(tdm_size_mul(tokens, row_elements(schedule, content)), element_bytes);
    }
}

uint64_t tdm_part_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_part part,
                        enum tdm_dtype dtype)
{
    const struct tdm_unit *u = &model->units[unit];
    uint64_t elements = 0;
    for (uint32_t i = 0; i < u->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[u->first_tensor + i];
        if (part == TDM_PART_ALL || tdm_part_of(tensor->role) == part)
            elements += tensor->elements;
    }
    return elements * tdm_dtype_bytes(dtype);
}

uint64_t tdm_chunks_bytes(const struct tdm_program *program, enum tdm_content content,
                          uint32_t first, uint32_t end)
{
    const struct tdm_schedule *schedule = program->schedule;
    if (first == end)
        return 0;
    /* only the last chunk of a sequence can be shorter */
    uint64_t full = tdm_content_bytes(schedule, content, 0, schedule->chunk_tokens);
    return tdm_size_add(tdm_size_mul(end - first - 1, full),
                        tdm_content_bytes(schedule, content, 0, program->chunks[end - 1].tokens));
}

uint64_t tdm_parted_bytes(const struct tdm_schedule *schedule, enum tdm_content heads,
                          uint64_t tokens)
{
    return tdm_size_mul(tdm_schedule_head_parts(schedule) - 1,
                        tdm_content_bytes(schedule, heads, 0, tokens));
}
