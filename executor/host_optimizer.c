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
 * decay is for tensors with more than one row only. The fp32 master is the weight itself, a tensor
 * of its own, or the bf16 weight and a remainder (remainder.h). A weight beside a master is that
 * master rounded. Values without a wider copy are rounded stochastically (stochastic.h): a bf16
 * weight without a master, and bf16 moments. The update of the weight uses moments before they are
 * rounded.
 *
 * g is the gradient. Clipping scales it by clip_norm / norm if that is below 1. The norm is that of
 * the unit or of all units.
 *
 * A block of a tensor is updated in rows of fp32 that stay in the first-level cache. The loops have
 * no branches and are compiled once for every vector width: they must keep up with memory.
 */
#include "executor/host_optimizer.h"

#include "executor/convert.h"
#include "executor/random.h"
#include "executor/remainder.h"
#include "executor/simd.h"
#include "executor/stochastic.h"
#include "executor/unit_blocks.h"

#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { BLOCK = TDM_UNIT_BLOCK };

/* Inlined into each function that is compiled for one vector width. */
#define INLINED static inline __attribute__((always_inline))

/* A block of a tensor while it is updated. */
struct block {
    uint64_t first, count; /* in the unit */
    float weight[BLOCK], gradient[BLOCK], other[BLOCK], moment1[BLOCK], moment2[BLOCK];
    uint64_t random[BLOCK]; /* set if something is rounded stochastically */
};

INLINED void load(const struct tdm_operand *from, const struct block *block, float *restrict row)
{
    if (from->dtype == TDM_DTYPE_BF16) {
        const uint16_t *restrict in = (const uint16_t *)from->data + block->first;
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            row[i] = tdm_bf16_to_float(in[i]);
    } else if (from->dtype == TDM_DTYPE_FP32) {
        const float *restrict in = (const float *)from->data + block->first;
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            row[i] = in[i];
    } else {
        tdm_load_row(from->data, from->dtype, block->first, block->count, row);
    }
}

/* Stores a row that is not rounded to bf16. */
INLINED void store_wide(const struct tdm_operand *to, const struct block *block,
                        const float *restrict row)
{
    if (to->dtype != TDM_DTYPE_FP32) {
        tdm_store_row(to->data, to->dtype, block->first, block->count, row);
        return;
    }
    float *restrict out = (float *)to->data + block->first;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        out[i] = row[i];
}

INLINED bool is_split(const struct tdm_operand *master)
{
    return master->data != NULL && master->dtype == TDM_DTYPE_REMAINDER16;
}

/* Loads the weights as fp32, from the master if there is one. */
INLINED void load_weights(const struct tdm_host_update *x, struct block *block)
{
    const struct tdm_operand *w = &x->operand[TDM_OPTIMIZER_WEIGHTS];
    const struct tdm_operand *master = &x->operand[TDM_OPTIMIZER_MASTER];
    if (!is_split(master)) {
        load(master->data != NULL ? master : w, block, block->weight);
        return;
    }
    const uint16_t *restrict high = (const uint16_t *)w->data + block->first;
    const uint16_t *restrict low = (const uint16_t *)master->data + block->first;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        block->weight[i] = tdm_master_join(high[i], low[i]);
}

INLINED void load_gradient(const struct tdm_host_update *x, struct block *block, float scale)
{
    const struct tdm_operand *second = &x->operand[TDM_OPTIMIZER_TIED];
    if (x->operand[TDM_OPTIMIZER_GRADIENT].data == NULL) { /* of rows that no token uses */
        memset(block->gradient, 0, block->count * sizeof(block->gradient[0]));
        return;
    }
    load(&x->operand[TDM_OPTIMIZER_GRADIENT], block, block->gradient);
    if (second->data != NULL) {
        load(second, block, block->other);
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            block->gradient[i] += block->other[i];
    }
    if (scale < 1) {
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            block->gradient[i] *= scale;
    }
}

/* Stores a row that has no wider copy. Rounds it stochastically if it is stored as bf16. */
INLINED void store_alone(const struct tdm_operand *to, const struct block *block,
                         enum tdm_random_share share, const float *restrict row)
{
    if (to->dtype != TDM_DTYPE_BF16) {
        store_wide(to, block, row);
        return;
    }
    uint16_t *restrict out = (uint16_t *)to->data + block->first;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        out[i] = tdm_bf16_stochastic(row[i], (uint32_t)(block->random[i] >> share));
}

/* Stores the master, if there is one, and the weight made from it; else only the weight. */
INLINED void store_weights(const struct tdm_host_update *x, const struct block *block)
{
    const struct tdm_operand *w = &x->operand[TDM_OPTIMIZER_WEIGHTS];
    const struct tdm_operand *master = &x->operand[TDM_OPTIMIZER_MASTER];
    if (master->data == NULL) {
        store_alone(w, block, TDM_RANDOM_OF_WEIGHT, block->weight);
        return;
    }
    uint16_t *restrict high = (uint16_t *)w->data + block->first;
    if (is_split(master)) {
        uint16_t *restrict low = (uint16_t *)master->data + block->first;
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            tdm_master_split(block->weight[i], &high[i], &low[i]);
        return;
    }
    store_wide(master, block, block->weight);
    if (w->dtype != TDM_DTYPE_BF16) {
        store_wide(w, block, block->weight);
        return;
    }
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        high[i] = tdm_master_weight(block->weight[i]);
}

INLINED void adamw(const struct tdm_host_update *x, struct block *block, float decay)
{
    const struct tdm_operand *m = &x->operand[TDM_OPTIMIZER_MOMENT1];
    const struct tdm_operand *v = &x->operand[TDM_OPTIMIZER_MOMENT2];
    float *restrict moment1 = block->moment1, *restrict moment2 = block->moment2;
    float *restrict weight = block->weight;
    const float *restrict gradient = block->gradient;
    const float beta1 = x->beta1, beta2 = x->beta2, rest1 = x->rest1, rest2 = x->rest2;
    const float root_scale = x->root_scale, epsilon = x->epsilon, step_rate = x->step_rate;
    const float decayed = x->rate * decay;
    load(m, block, moment1);
    load(v, block, moment2);
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++) {
        float d = gradient[i];
        moment1[i] = beta1 * moment1[i] + rest1 * d;
        moment2[i] = beta2 * moment2[i] + rest2 * (d * d);
        float root = __builtin_sqrtf(moment2[i]) * root_scale + epsilon;
        weight[i] -= step_rate * (moment1[i] / root) + decayed * weight[i];
    }
    store_alone(m, block, TDM_RANDOM_OF_MOMENT1, moment1);
    store_alone(v, block, TDM_RANDOM_OF_MOMENT2, moment2);
}

INLINED void sgd(const struct tdm_host_update *x, struct block *block, float decay)
{
    float *restrict weight = block->weight;
    const float *restrict gradient = block->gradient;
    const float rate = x->rate, decayed = x->rate * decay;
    TDM_SIMD
    for (uint64_t i = 0; i < block->count; i++)
        weight[i] -= rate * gradient[i] + decayed * weight[i];
}

/* Updates one block. Its first element is number `element` of its tensor. */
INLINED void update_block(const struct tdm_host_update *x, struct block *block, float scale,
                          uint64_t stream, uint64_t element, float decay)
{
    if (x->random) {
        TDM_SIMD
        for (uint64_t i = 0; i < block->count; i++)
            block->random[i] = tdm_random_draw(stream, element + i);
    }
    load_weights(x, block);
    load_gradient(x, block, scale);
    if (x->adamw)
        adamw(x, block, decay);
    else
        sgd(x, block, decay);
    store_weights(x, block);
}

/* Updates the tensors of the unit within its elements [begin, end). */
INLINED void update_range(const struct tdm_host_update *x, float scale, uint64_t begin,
                          uint64_t end)
{
    struct tdm_unit_block at = {0};
    struct block block;
    while (tdm_next_unit_block(x->tensors, x->unit, begin, end, &at)) {
        uint64_t tensor = (uint64_t)(at.tensor - x->tensors);
        uint64_t stream = x->random ? tdm_random_stream(x->seed, x->step, tensor) : 0;
        block.first = at.first;
        block.count = at.count;
        update_block(x, &block, scale, stream, at.first - at.tensor->offset,
                     tdm_decays(x->decayed, at.tensor->role) ? x->decay : 0.0f);
    }
}

/* ---- widths of vectors ---- */

typedef void (*range_function)(const struct tdm_host_update *x, float scale, uint64_t begin,
                               uint64_t end);

static void range_plain(const struct tdm_host_update *x, float scale, uint64_t begin, uint64_t end)
{
    update_range(x, scale, begin, end);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void range_avx2(const struct tdm_host_update *x, float scale,
                                                       uint64_t begin, uint64_t end)
{
    update_range(x, scale, begin, end);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static void
range_avx512(const struct tdm_host_update *x, float scale, uint64_t begin, uint64_t end)
{
    update_range(x, scale, begin, end);
}
#endif

static const struct width {
    const char *name;
    range_function range;
} widths[] = {
    {"plain", range_plain},
#ifdef __x86_64__
    {"AVX2", range_avx2},
    {"AVX-512", range_avx512},
#endif
};

uint32_t tdm_host_update_widths(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 3;
    if (__builtin_cpu_supports("avx2"))
        return 2;
#endif
    return 1;
}

const char *tdm_host_update_width_name(uint32_t width)
{
    return widths[width].name;
}

/* ---- a whole update ---- */

/* The factor that clips the gradient. A NaN norm clips nothing, so that it is seen. */
static float clip_scale(const struct tdm_host_update *x)
{
    const struct tdm_operand *norms = &x->operand[TDM_OPTIMIZER_NORMS];
    double squares = 0;
    for (uint32_t i = 0; norms->data != NULL && i < norms->slots; i++)
        squares +=
            *(const double *)(const void *)((const char *)norms->data + i * norms->slot_bytes);
    double norm = sqrt(squares);
    return norm > x->clip_norm ? (float)(x->clip_norm / norm) : 1.0f;
}

/* Turns the address of element `first` of a unit into that of the unit. */
static void to_unit(struct tdm_operand *operand, uint64_t first)
{
    if (operand->data != NULL)
        operand->data =
            (void *)((uintptr_t)operand->data - first * tdm_dtype_bytes(operand->dtype));
}

struct tdm_host_update tdm_host_update_of(const struct tdm_launch *launch)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_update_params *settings = &params->update;
    const struct tdm_operand *operand = launch->operand;
    const struct tdm_step *step = launch->step;
    double number = (double)step->number;
    bool narrow_weights = operand[TDM_OPTIMIZER_WEIGHTS].dtype == TDM_DTYPE_BF16 &&
                          operand[TDM_OPTIMIZER_MASTER].data == NULL;
    bool narrow_moments = operand[TDM_OPTIMIZER_MOMENT1].data != NULL &&
                          operand[TDM_OPTIMIZER_MOMENT1].dtype == TDM_DTYPE_BF16;
    struct tdm_host_update update = {
        .tensors = params->weights.tensors,
        .unit = &params->weights.units[launch->op->layer],
        .adamw = settings->adamw,
        .random = narrow_weights || narrow_moments,
        .width = tdm_host_update_widths() - 1,
        .seed = step->seed,
        .step = step->number,
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .rest1 = (float)(1.0 - settings->beta1),
        .rest2 = (float)(1.0 - settings->beta2),
        .step_rate = (float)(step->learning_rate / (1.0 - pow(settings->beta1, number))),
        .root_scale = (float)(1.0 / sqrt(1.0 - pow(settings->beta2, number))),
        .epsilon = (float)settings->epsilon,
        .rate = (float)step->learning_rate,
        .decay = (float)settings->weight_decay,
        .decayed = settings->decayed,
        .clip_norm = settings->clip_norm,
    };
    for (int i = 0; i < TDM_OPTIMIZER_OPERANDS; i++)
        update.operand[i] = operand[i];
    update.rows = launch->op->rows;
    update.used_rows = step->used_rows;
    update.first = launch->op->first_element;
    update.end = update.first + launch->op->elements;
    if (launch->op->slices > 1 ||
        launch->program->ranks > 1) { /* the state is that of its elements */
        to_unit(&update.operand[TDM_OPTIMIZER_MASTER], update.first);
        to_unit(&update.operand[TDM_OPTIMIZER_MOMENT1], update.first);
        to_unit(&update.operand[TDM_OPTIMIZER_MOMENT2], update.first);
    }
    return update;
}

static bool is_used(const struct tdm_host_update *x, uint64_t row)
{
    return (x->used_rows[row / 64] >> row % 64 & 1) != 0;
}

/* Updates, of the rows of an embedding [row, end), those that it is to change. */
static void update_rows(const struct tdm_host_update *x, float scale, uint64_t columns,
                        uint64_t row, uint64_t end)
{
    const bool used = x->rows == TDM_ROWS_USED;
    while (row < end) {
        uint64_t first = row;
        while (row < end && is_used(x, row) == used)
            row++;
        if (row > first)
            widths[x->width].range(x, scale, first * columns, row * columns);
        while (row < end && is_used(x, row) != used)
            row++;
    }
}

void tdm_host_update_run(const struct tdm_host_update *update, uint32_t threads)
{
    range_function range = widths[update->width].range;
    float scale = clip_scale(update);
    const bool by_rows = update->rows != TDM_ROWS_ALL && update->used_rows != NULL;
    const struct tdm_tensor *embedding = &update->tensors[update->unit->first_tensor];
    const uint64_t columns = embedding->columns;
    /* the padding after it may be longer than a row, and the set has no bits for that */
    const uint64_t last = by_rows ? embedding->elements : update->end;
    uint64_t task = tdm_unit_task_elements(update->end - update->first);
    if (update->rows == TDM_ROWS_UNUSED && !by_rows)
        return;
    if (by_rows)
        task = (task + columns - 1) / columns * columns;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
#else
    (void)threads;
#endif
    for (uint64_t begin = update->first; begin < last; begin += task) {
        const uint64_t end = tdm_least(begin + task, last);
        if (by_rows)
            update_rows(update, scale, columns, begin / columns, end / columns);
        else
            range(update, scale, begin, end);
    }
}

uint32_t tdm_host_update_threads(uint32_t spare)
{
    uint32_t cores = 1;
#ifdef _OPENMP
    cores = (uint32_t)omp_get_num_procs();
#endif
    return cores > spare ? cores - spare : 1;
}

void tdm_host_update_warm_up(uint32_t threads)
{
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
#pragma omp barrier
    }
#else
    (void)threads;
#endif
}
