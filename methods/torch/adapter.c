/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of peft's adapters. Sources: peft 0.21, tuners/{lora,ia3,vera,loha,lokr,oft,boft}/layer.py,
 * update_layer and create_adapter_parameters;
 * tuners/{prompt_tuning,p_tuning,prefix_tuning}/model.py. */
#include "methods/torch/adapter.h"

#include "methods/torch/model.h"
#include "methods/torch/wrapper.h"

#include <stddef.h>

static uint64_t greater(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* lokr/layer.py factorization: two divisors, the first at most `factor`, near the square root. */
static void factorize(uint64_t dimension, uint64_t factor, uint64_t *small, uint64_t *large)
{
    if (factor > 0 && dimension % factor == 0) { /* may be in any order */
        *small = factor;
        *large = dimension / factor;
        return;
    }
    uint64_t most = factor == 0 ? dimension : factor, m = 1, n = dimension;
    const uint64_t length = m + n;
    while (m < n) {
        uint64_t next = m + 1;
        while (dimension % next != 0)
            next++;
        if (next + dimension / next > length || next > most)
            break;
        m = next;
        n = dimension / next;
    }
    *small = m < n ? m : n;
    *large = m < n ? n : m;
}

/* The change is the Kronecker product of two matrices. Each is whole, or a product of rank r where
 * that is small: the first with decompose_both alone. */
static void lokr_shape(const struct tdm_torch_settings *s, uint64_t rows, uint64_t columns,
                       struct tdm_adapter_shape *shape)
{
    const struct tdm_adapter_sizes *sizes = &s->adapter_sizes;
    const uint64_t r = s->lora_rank;
    uint64_t out[2], in[2];
    factorize(columns, sizes->kron_factor, &in[0], &in[1]);
    factorize(rows, sizes->kron_factor, &out[0], &out[1]);
    shape->down = (struct tdm_adapter_matrix){out[0], in[0]};
    shape->second_down = (struct tdm_adapter_matrix){out[1], in[1]};
    if (sizes->kron_both && 2 * r < greater(out[0], in[0])) {
        shape->down = (struct tdm_adapter_matrix){out[0], r};
        shape->up = (struct tdm_adapter_matrix){r, in[0]};
    }
    if (2 * r < greater(out[1], in[1])) {
        shape->second_down = (struct tdm_adapter_matrix){out[1], r};
        shape->second_up = (struct tdm_adapter_matrix){r, in[1]};
    }
}

/* oft/layer.py adjust_oft_parameters: the nearest divisor, of two as near the lower one. */
static uint64_t nearest_divisor(uint64_t inputs, uint64_t number)
{
    if (number >= inputs)
        return inputs;
    uint64_t higher = number, lower = number;
    while (inputs % higher != 0)
        higher++;
    while (inputs % lower != 0)
        lower--;
    return number - lower <= higher - number ? lower : higher;
}

static uint64_t oft_block(const struct tdm_torch_settings *s, uint64_t columns)
{
    const uint64_t block = s->adapter_sizes.oft_block;
    return block > 0 ? nearest_divisor(columns, block)
                     : columns / nearest_divisor(columns, s->lora_rank);
}

/* Skew-symmetric blocks, of which the upper triangles are trained. */
static void oft_shape(const struct tdm_torch_settings *s, uint64_t columns,
                      struct tdm_adapter_shape *shape)
{
    const uint64_t block = oft_block(s, columns);
    shape->down = (struct tdm_adapter_matrix){s->adapter_sizes.oft_shared ? 1 : columns / block,
                                              block * (block - 1) / 2};
}

void tdm_adapter_shape(const struct tdm_torch_settings *s, enum tdm_projection p, uint64_t rows,
                       uint64_t columns, struct tdm_adapter_shape *shape)
{
    const uint64_t r = s->lora_rank, block = s->adapter_sizes.boft_block;
    const struct tdm_adapter_matrix down = {r, columns}, up = {rows, r}, outputs = {1, rows};
    *shape = (struct tdm_adapter_shape){.down = {0, 0}};
    switch (s->adapter) {
    case TDM_ADAPTER_LORA:
        shape->down = down;
        shape->up = up;
        if (s->dora)
            shape->magnitude = outputs;
        break;
    case TDM_ADAPTER_IA3: /* a number for each output, of the MLP's last product for each input */
        shape->down = (struct tdm_adapter_matrix){1, p == TDM_PROJECTION_DOWN ? columns : rows};
        break;
    case TDM_ADAPTER_VERA:
        shape->down = (struct tdm_adapter_matrix){1, r};
        shape->up = outputs;
        break;
    case TDM_ADAPTER_LOHA:
        shape->down = shape->second_down = up;
        shape->up = shape->second_up = down;
        break;
    case TDM_ADAPTER_LOKR:
        lokr_shape(s, rows, columns, shape);
        break;
    case TDM_ADAPTER_OFT:
        oft_shape(s, columns, shape);
        break;
    case TDM_ADAPTER_BOFT: /* blocks, and a number for each output */
        shape->down = (struct tdm_adapter_matrix){columns, block};
        shape->magnitude = outputs;
        break;
    default:
        break;
    }
}

uint32_t tdm_adapter_targets(const struct tdm_torch_settings *s)
{
    const uint32_t all = (1u << TDM_PROJECTIONS) - 1,
                   ia3 = 1u << TDM_PROJECTION_K | 1u << TDM_PROJECTION_V |
                         1u << TDM_PROJECTION_DOWN | 1u << TDM_PROJECTION_QKV;
    /* peft's, where nothing is said (utils/constants.py) */
    return s->adapter == TDM_ADAPTER_IA3 && s->lora_targets == all ? ia3 : s->lora_targets;
}

bool tdm_adapter_is_prompt(const struct tdm_torch_settings *s)
{
    return s->lora_rank > 0 &&
           (s->adapter == TDM_ADAPTER_PROMPT || s->adapter == TDM_ADAPTER_P_TUNING ||
            s->adapter == TDM_ADAPTER_PREFIX);
}

uint64_t tdm_adapter_prompt_tokens(const struct tdm_torch_settings *s)
{
    return tdm_adapter_is_prompt(s) && s->adapter != TDM_ADAPTER_PREFIX
               ? s->adapter_sizes.virtual_tokens
               : 0;
}

uint64_t tdm_adapter_prefix_tokens(const struct tdm_torch_settings *s)
{
    return s->lora_rank > 0 && s->adapter == TDM_ADAPTER_PREFIX ? s->adapter_sizes.virtual_tokens
                                                                : 0;
}

/* tuners/prefix_tuning/model.py: a row has K and V of all layers, or two products make them. */
static void prefix_shapes(const struct tdm_model *model, const struct tdm_adapter_sizes *sizes,
                          struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS])
{
    const uint64_t width = tdm_model_kv_width(model), all = 2 * model->layers * width,
                   inner = sizes->encoder_hidden > 0 ? sizes->encoder_hidden : width;
    const struct tdm_adapter_matrix encoder[] = {
        {inner, width}, {1, inner}, {all, inner}, {1, all}};
    shapes[TDM_PROMPT_ROWS] =
        (struct tdm_adapter_matrix){sizes->virtual_tokens, sizes->prefix_projection ? width : all};
    for (unsigned i = 0; i < 4 && sizes->prefix_projection; i++)
        shapes[TDM_PROMPT_ENCODER + i] = encoder[i];
}

void tdm_adapter_prompt(const struct tdm_model *model, const struct tdm_torch_settings *s,
                        struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS])
{
    const struct tdm_adapter_sizes *sizes = &s->adapter_sizes;
    const uint64_t hidden = model->hidden,
                   inner = sizes->encoder_hidden > 0 ? sizes->encoder_hidden : hidden;
    const struct tdm_adapter_matrix rows = {sizes->virtual_tokens, hidden}, none = {0, 0},
                                    encoder[] = {{inner, hidden}, {1, inner},      {inner, inner},
                                                 {1, inner},      {hidden, inner}, {1, hidden}};
    for (unsigned i = 0; i < TDM_PROMPT_WEIGHTS; i++)
        shapes[i] = i == TDM_PROMPT_ROWS                 ? rows
                    : s->adapter == TDM_ADAPTER_P_TUNING ? encoder[i - TDM_PROMPT_ENCODER]
                                                         : none;
    if (s->adapter == TDM_ADAPTER_PREFIX)
        prefix_shapes(model, sizes, shapes);
}

static double elements(struct tdm_adapter_matrix shape)
{
    return (double)shape.rows * (double)shape.columns;
}

bool tdm_adapter_takes_shared(const struct tdm_torch_settings *s)
{
    return s->wrapper->enter_module == NULL;
}

/* A weight of nn.Linear that an adapter may be of: how many there are, and what part of the tokens
 * each has. */
struct adapted {
    uint64_t rows, columns;
    double number, tokens;
};

/* Those that a layer has of a projection: its own, its experts' where these are modules, and the
 * shared expert's. */
enum { MOST_ADAPTED = 3 };
static unsigned adapted_of(const struct tdm_model *model, const struct tdm_torch_settings *s,
                           uint32_t layer, unsigned p, struct adapted found[MOST_ADAPTED])
{
    const struct tdm_tensor *own =
        tdm_model_tensor(model, layer, tdm_projection_role((enum tdm_projection)p));
    const struct tdm_experts *e = &model->experts;
    const uint32_t modules = tdm_torch_expert_modules(model, s);
    const bool down = p == TDM_PROJECTION_DOWN;
    unsigned count = 0;
    if ((tdm_adapter_targets(s) >> p & 1) == 0)
        return 0;
    if (own != NULL)
        found[count++] = (struct adapted){own->rows, own->columns, 1, 1};
    if (!model->layer_kinds[layer].experts ||
        (p != TDM_PROJECTION_GATE && p != TDM_PROJECTION_UP && !down))
        return count;
    if (modules > 0)
        found[count++] = (struct adapted){down ? model->hidden : e->intermediate,
                                          down ? e->intermediate : model->hidden, modules,
                                          (double)e->per_token / modules};
    if (e->shared > 0 && tdm_adapter_takes_shared(s))
        found[count++] = (struct adapted){down ? model->hidden : e->shared,
                                          down ? e->shared : model->hidden, 1, 1};
    return count;
}

static double of_norms(const struct tdm_model *model)
{
    static const enum tdm_role roles[] = {
        TDM_ROLE_ATTENTION_NORM, TDM_ROLE_ATTENTION_NORM_BIAS, TDM_ROLE_MLP_NORM,
        TDM_ROLE_MLP_NORM_BIAS,  TDM_ROLE_POST_ATTENTION_NORM, TDM_ROLE_POST_MLP_NORM,
        TDM_ROLE_FINAL_NORM,     TDM_ROLE_FINAL_NORM_BIAS};
    double sum = 0;
    for (uint32_t unit = 0; unit <= tdm_model_head_unit(model); unit++)
        for (unsigned i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
            const struct tdm_tensor *tensor = tdm_model_tensor(model, unit, roles[i]);
            sum += tensor == NULL ? 0 : (double)tensor->rows * (double)tensor->columns;
        }
    return sum;
}

double tdm_torch_trained_parameters(const struct tdm_model *model,
                                    const struct tdm_torch_settings *s)
{
    struct adapted found[MOST_ADAPTED];
    double sum = 0;
    if (s->lora_rank == 0)
        return (double)model->parameters;
    if (s->adapter == TDM_ADAPTER_NORMS)
        return of_norms(model);
    if (tdm_adapter_is_prompt(s)) {
        struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS];
        tdm_adapter_prompt(model, s, shapes);
        for (unsigned i = 0; i < TDM_PROMPT_WEIGHTS; i++)
            sum += elements(shapes[i]);
        return sum;
    }
    for (uint32_t i = 0; i < model->layers; i++)
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
            for (unsigned n = adapted_of(model, s, i, p, found); n-- > 0;) {
                struct tdm_adapter_shape shape;
                tdm_adapter_shape(s, (enum tdm_projection)p, found[n].rows, found[n].columns,
                                  &shape);
                sum += found[n].number *
                       (elements(shape.down) + elements(shape.up) + elements(shape.second_down) +
                        elements(shape.second_up) + elements(shape.magnitude));
            }
    return sum;
}

#define OFT_POWERS 3.0    /* products of blocks: the second power to the fourth */
#define BOFT_PRODUCTS 3.0 /* of matrices of inputs x inputs */

/* FLOPs of the forward: for each token, and for each forward whatever its tokens; and how many
 * times as many the backward takes. */
struct flops {
    double of_token, of_change, token_backward, change_backward;
};

static struct flops projection_flops(const struct tdm_torch_settings *s, enum tdm_projection p,
                                     double rows, double columns)
{
    struct tdm_adapter_shape shape;
    const double weight = rows * columns, r = (double)s->lora_rank;
    tdm_adapter_shape(s, p, (uint64_t)rows, (uint64_t)columns, &shape);
    switch (s->adapter) {
    case TDM_ADAPTER_LORA: { /* DoRA multiplies an identity by both, without a backward */
        const double both = elements(shape.down) + elements(shape.up);
        return (struct flops){2 * both, s->dora ? 2 * columns * both : 0, 2, 0};
    }
    case TDM_ADAPTER_VERA: /* two frozen matrices */
        return (struct flops){2 * r * (rows + columns), 0, 1, 0};
    case TDM_ADAPTER_LOHA: /* the backward makes both products again, and has four of its own */
        return (struct flops){2 * weight, 4 * r * weight, 2, 3};
    case TDM_ADAPTER_LOKR:
        return (struct flops){2 * weight,
                              2 * (elements(shape.down) * (double)shape.up.columns +
                                   elements(shape.second_down) * (double)shape.second_up.columns),
                              2, 2};
    case TDM_ADAPTER_OFT: {
        const double block = (double)oft_block(s, (uint64_t)columns);
        return (struct flops){2 * columns * block,
                              OFT_POWERS * 2 * (double)shape.down.rows * block * block * block, 2,
                              2};
    }
    case TDM_ADAPTER_BOFT: /* of each product of the rotation one side is trained */
        return (struct flops){2 * columns * columns,
                              BOFT_PRODUCTS * 2 * columns * columns * columns, 2, 1};
    default:
        return (struct flops){0, 0, 0, 0};
    }
}

/* The encoder of a prompt or prefix: its products of the virtual tokens, forward and twice
 * backward, which are in no checkpoint. */
static double encoder_flops(const struct tdm_model *model, const struct tdm_torch_settings *s)
{
    struct tdm_adapter_matrix shapes[TDM_PROMPT_WEIGHTS];
    double sum = 0;
    tdm_adapter_prompt(model, s, shapes);
    for (unsigned i = TDM_PROMPT_ENCODER; i < TDM_PROMPT_WEIGHTS; i += 2)
        sum += elements(shapes[i]);
    return 3 * 2 * (double)s->adapter_sizes.virtual_tokens * sum;
}

double tdm_adapter_flops(const struct tdm_model *model, const struct tdm_torch_settings *s,
                         double again)
{
    const double tokens = (double)s->tokens * (double)s->batch;
    struct adapted found[MOST_ADAPTED];
    double sum = 0;
    if (s->lora_rank == 0 || s->adapter == TDM_ADAPTER_NORMS)
        return 0;
    if (tdm_adapter_is_prompt(s))
        return encoder_flops(model, s);
    for (uint32_t i = 0; i < model->layers; i++)
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
            for (unsigned n = adapted_of(model, s, i, p, found); n-- > 0;) {
                const struct flops f = projection_flops(
                    s, (enum tdm_projection)p, (double)found[n].rows, (double)found[n].columns);
                sum += found[n].number *
                       (found[n].tokens * tokens * f.of_token * (1 + again + f.token_backward) +
                        f.of_change * (1 + again + f.change_backward));
            }
    return sum;
}
