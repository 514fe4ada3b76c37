/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers over the tensors of a unit, in fp32. AdamW (arXiv 1711.05101, algorithm 2):
 *
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     w = w - rate (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
 *
 * and plain SGD:
 *
 *     w = w - rate (g + decay w)
 *
 * decay only for tensors with more than one row. The fp32 master is the weight itself, a tensor of
 * its own, or the bf16 weight and a remainder (remainder.h); a weight beside a master is that
 * master rounded. What has no wider copy, a bf16 weight without a master and bf16 moments, is rounded
 * stochastically (stochastic.h); the update of the weight uses moments before they are rounded.
 *
 * g is the gradient, scaled down where it is clipped: by clip_norm / norm if that is below 1, the norm
 * being that of the unit or of all units.
 */
#include "executor/cpu/convert.h"
#include "executor/cpu/unit_blocks.h"
#include "executor/random.h"
#include "executor/remainder.h"
#include "executor/stochastic.h"

#include <math.h>

enum { BLOCK = TDM_UNIT_BLOCK };

/* Operands, as enum tdm_op_kind numbers them. */
enum { WEIGHTS, GRADIENT, MASTER, MOMENT1, MOMENT2, NORMS, SECOND_GRADIENT };

struct optimizer {
    const struct tdm_launch *launch;
    bool adamw;                       /* else SGD */
    bool random;                      /* something is rounded stochastically */
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_rate;                  /* rate / (1 - beta1^step) */
    float root_scale;                 /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
    float rate, decay;
    float scale; /* of the gradient */
    uint64_t task_elements;
};

/* What a block of a tensor is made of while it is updated. */
struct block {
    uint64_t first, count; /* in the unit */
    float weight[BLOCK], gradient[BLOCK], moment1[BLOCK], moment2[BLOCK];
    uint64_t random[BLOCK]; /* set if something is rounded stochastically */
};

static bool is_split(const struct tdm_operand *master)
{
    return master->data != NULL && master->dtype == TDM_DTYPE_REMAINDER16;
}

/* Weights to fp32: from the master where there is one. */
static void load_weights(const struct optimizer *x, struct block *block)
{
    const struct tdm_operand *w = &x->launch->operand[WEIGHTS];
    const struct tdm_operand *master = &x->launch->operand[MASTER];
    if (!is_split(master)) {
        const struct tdm_operand *from = master->data != NULL ? master : w;
        tdm_load_row(from->data, from->dtype, block->first, block->count, block->weight);
        return;
    }
    const uint16_t *high = (const uint16_t *)w->data + block->first;
    const uint16_t *low = (const uint16_t *)master->data + block->first;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        block->weight[i] = tdm_master_join(high[i], low[i]);
}

static void load_gradient(const struct optimizer *x, struct block *block)
{
    const struct tdm_operand *operand = x->launch->operand;
    tdm_cpu_load_gradient(&operand[GRADIENT], &operand[SECOND_GRADIENT], block->first, block->count,
                          block->gradient);
    if (x->scale == 1)
        return;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        block->gradient[i] *= x->scale;
}

/* Stores a row that has no wider copy; bf16 stochastically. */
static void store_alone(const struct tdm_operand *to, const struct block *block,
                        enum tdm_random_share share, const float *row)
{
    if (to->dtype != TDM_DTYPE_BF16) {
        tdm_store_row(to->data, to->dtype, block->first, block->count, row);
        return;
    }
    uint16_t *out = (uint16_t *)to->data + block->first;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        out[i] = tdm_bf16_stochastic(row[i], (uint32_t)(block->random[i] >> share));
}

/* The master where there is one, and the weight from it; else the weight. */
static void store_weights(const struct optimizer *x, const struct block *block)
{
    const struct tdm_operand *w = &x->launch->operand[WEIGHTS];
    const struct tdm_operand *master = &x->launch->operand[MASTER];
    bool split = is_split(master);
    if (master->data == NULL) {
        store_alone(w, block, TDM_RANDOM_OF_WEIGHT, block->weight);
        return;
    }
    if (!split)
        tdm_store_row(master->data, master->dtype, block->first, block->count, block->weight);
    if (w->dtype != TDM_DTYPE_BF16) {
        tdm_store_row(w->data, w->dtype, block->first, block->count, block->weight);
        return;
    }
    uint16_t *high = (uint16_t *)w->data + block->first;
    uint16_t *low = split ? (uint16_t *)master->data + block->first : NULL;
    for (uint64_t i = 0; i < block->count; i++) {
        uint16_t remainder;
        tdm_master_split(block->weight[i], &high[i], &remainder);
        if (split)
            low[i] = remainder;
    }
}

static void adamw(const struct optimizer *x, struct block *block, float decay)
{
    const struct tdm_operand *m = &x->launch->operand[MOMENT1];
    const struct tdm_operand *v = &x->launch->operand[MOMENT2];
    float *moment1 = block->moment1, *moment2 = block->moment2, *weight = block->weight;
    tdm_load_row(m->data, m->dtype, block->first, block->count, moment1);
    tdm_load_row(v->data, v->dtype, block->first, block->count, moment2);
    for (uint64_t i = 0; i < block->count; i++) {
        float d = block->gradient[i];
        moment1[i] = x->beta1 * moment1[i] + x->rest1 * d;
        moment2[i] = x->beta2 * moment2[i] + x->rest2 * (d * d);
        float root = __builtin_sqrtf(moment2[i]) * x->root_scale + x->epsilon;
        weight[i] -= x->step_rate * (moment1[i] / root) + x->rate * decay * weight[i];
    }
    store_alone(m, block, TDM_RANDOM_OF_MOMENT1, moment1);
    store_alone(v, block, TDM_RANDOM_OF_MOMENT2, moment2);
}

static void sgd(const struct optimizer *x, struct block *block, float decay)
{
    float *weight = block->weight;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        weight[i] -= x->rate * block->gradient[i] + x->rate * decay * weight[i];
}

/* One block, of which the first element is number `element` of its tensor. */
static void update(const struct optimizer *x, struct block *block, uint64_t stream,
                   uint64_t element, float decay)
{
    for (uint64_t i = 0; x->random && i < block->count; i++)
        block->random[i] = tdm_random_draw(stream, element + i);
    load_weights(x, block);
    load_gradient(x, block);
    if (x->adamw)
        adamw(x, block, decay);
    else
        sgd(x, block, decay);
    store_weights(x, block);
}

/* A range of the unit: what of its tensors lies in it. */
static void optimizer_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct optimizer *x = context;
    const struct tdm_model *model = x->launch->program->schedule->model;
    const struct tdm_unit *unit = &model->units[x->launch->op->layer];
    const struct tdm_step *step = x->launch->step;
    uint64_t begin = index * x->task_elements;
    uint64_t end = tdm_least(begin + x->task_elements, unit->elements);
    struct tdm_unit_block at = {0};
    struct block block;
    (void)thread_scratch;
    while (tdm_next_unit_block(model, unit, begin, end, &at)) {
        uint64_t tensor = (uint64_t)(at.tensor - model->tensors);
        uint64_t stream = x->random ? tdm_random_stream(step->seed, step->number, tensor) : 0;
        block.first = at.first;
        block.count = at.count;
        update(x, &block, stream, at.first - at.tensor->offset,
               at.tensor->rows > 1 ? x->decay : 0.0f);
    }
}

/* What the gradient is scaled by. A norm that is no number clips nothing: it is to be seen. */
static float clip_scale(const struct tdm_launch *launch)
{
    const struct tdm_operand *norms = &launch->operand[NORMS];
    double squares = 0, most = launch->program->schedule->optimizer.clip_norm;
    for (uint32_t i = 0; norms->data != NULL && i < norms->slots; i++)
        squares +=
            *(const double *)(const void *)((const char *)norms->data + i * norms->slot_bytes);
    double norm = sqrt(squares);
    return norm > most ? (float)(most / norm) : 1.0f;
}

enum tdm_status tdm_cpu_optimizer(struct tdm_executor *executor, const struct tdm_launch *launch,
                                  struct tdm_error *err)
{
    const struct tdm_optimizer_settings *settings = &launch->program->schedule->optimizer;
    const struct tdm_operand *operand = launch->operand;
    const struct tdm_step *step = launch->step;
    uint64_t elements = launch->program->schedule->model->units[launch->op->layer].elements;
    (void)err;
    double number = (double)step->number;
    bool narrow_weights = operand[WEIGHTS].dtype == TDM_DTYPE_BF16 && operand[MASTER].data == NULL;
    bool moments = operand[MOMENT1].data != NULL;
    struct optimizer x = {
        .launch = launch,
        .adamw = settings->kind != TDM_OPTIMIZER_SGD,
        .random = narrow_weights || (moments && operand[MOMENT1].dtype == TDM_DTYPE_BF16),
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .rest1 = (float)(1.0 - settings->beta1),
        .rest2 = (float)(1.0 - settings->beta2),
        .step_rate = (float)(step->learning_rate / (1.0 - pow(settings->beta1, number))),
        .root_scale = (float)(1.0 / sqrt(1.0 - pow(settings->beta2, number))),
        .epsilon = (float)settings->epsilon,
        .rate = (float)step->learning_rate,
        .decay = (float)settings->weight_decay,
        .scale = clip_scale(launch),
        .task_elements = tdm_unit_task_elements(elements),
    };
    tdm_cpu_for(executor, (elements + x.task_elements - 1) / x.task_elements, optimizer_task, &x);
    return TDM_OK;
}
