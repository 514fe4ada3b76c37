/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the parameters of ops, family by family. */
#include "schedule/params.h"

#include "schedule/gather.h"
#include "schedule/layout.h"

static struct tdm_weights_params weights_of(const struct tdm_model *model)
{
    return (struct tdm_weights_params){.units = model->units,
                                       .tensors = model->tensors,
                                       .unit_count = model->unit_count,
                                       .embedding_unit = tdm_model_embedding_unit(model),
                                       .head_unit = tdm_model_head_unit(model),
                                       .tied = model->tied};
}

static struct tdm_product_params products_of(const struct tdm_model *model)
{
    uint64_t hidden = model->hidden;
    uint64_t q = (uint64_t)model->query_heads * model->head_dim;
    uint64_t kv = tdm_model_kv_width(model);
    return (struct tdm_product_params){
        .elements = {[TDM_PART_Q] = hidden * q,
                     [TDM_PART_O] = hidden * q,
                     [TDM_PART_KV] = 2 * hidden * kv,
                     [TDM_PART_GATE_UP] = 2 * hidden * model->intermediate,
                     [TDM_PART_DOWN] = hidden * model->intermediate},
        .bias_columns = q + 2 * kv};
}

static struct tdm_pages_params pages_of(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    return (struct tdm_pages_params){.kv_heads =
                                         model->kv_heads / tdm_schedule_head_parts(schedule),
                                     .head_dim = model->head_dim,
                                     .chunk_tokens = schedule->chunk_tokens,
                                     .page_tokens = schedule->page_tokens,
                                     .page_elements = tdm_page_elements(schedule),
                                     .plane_elements = tdm_page_plane_elements(schedule),
                                     .kv = schedule->dtypes.kv,
                                     .kv_gradients = schedule->dtypes.kv_gradients,
                                     .selector = schedule->selector,
                                     .layer_kinds = model->layer_kinds,
                                     .lists_by = tdm_schedule_lists(schedule),
                                     .lists = tdm_page_lists(schedule),
                                     .list_capacity = tdm_page_list_capacity(schedule),
                                     .longest_pages = tdm_longest_pages(schedule),
                                     .voted_pages = tdm_page_list_voted(schedule)};
}

/* Can attention use kernels that keep partial results in scratch? */
static bool has_partial_results(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    return schedule->dtypes.activations == TDM_DTYPE_BF16 &&
           schedule->dtypes.kv == TDM_DTYPE_BF16 &&
           (model->head_dim == 64 || model->head_dim == 128) &&
           schedule->page_tokens % TDM_ATTEND_KEYS == 0;
}

static struct tdm_gate gate_of(enum tdm_activation activation)
{
    return activation == TDM_ACTIVATION_GELU_TANH ? TDM_GATE_GELU : TDM_GATE_SILU;
}

static struct tdm_update_params update_of(const struct tdm_optimizer_settings *settings)
{
    return (struct tdm_update_params){.adamw = settings->kind != TDM_OPTIMIZER_SGD,
                                      .on_host = settings->on != TDM_DEVICE,
                                      .beta1 = settings->beta1,
                                      .beta2 = settings->beta2,
                                      .epsilon = settings->epsilon,
                                      .weight_decay = settings->weight_decay,
                                      .decayed = settings->decayed,
                                      .clip_norm = settings->clip_norm};
}

void tdm_params_fill(const struct tdm_schedule *schedule, struct tdm_params *params)
{
    const struct tdm_model *model = schedule->model;
    *params = (struct tdm_params){
        .model = model->name,
        .weights = weights_of(model),
        .embed = {.vocabulary = model->vocabulary, .hidden = model->hidden},
        .norm = {.hidden = model->hidden, .epsilon = model->norm_epsilon},
        .product = products_of(model),
        .rope = {.query_heads = model->query_heads,
                 .kv_heads = model->kv_heads,
                 .head_dim = model->head_dim,
                 .positions = model->rope,
                 .norm_epsilon = model->norm_epsilon},
        .pages = pages_of(schedule),
        .attention = {.query_heads = model->query_heads / tdm_schedule_head_parts(schedule),
                      .divides_keys = has_partial_results(schedule) &&
                                      tdm_schedule_lists(schedule) == TDM_SELECT_DENSE,
                      .sums_dq = has_partial_results(schedule) && schedule->pass == TDM_TRAIN,
                      .gather = tdm_gather_params_of(schedule)},
        .mlp = {.intermediate = model->intermediate, .gate = gate_of(model->activation)},
        .head = {.hidden = model->hidden,
                 .vocabulary = model->vocabulary,
                 .trained_tokens = tdm_schedule_trained_tokens(schedule)},
        .update = update_of(&schedule->optimizer),
    };
}
