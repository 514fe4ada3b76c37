/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that step one parameter after the other. Names of their loops hold tensors of the
 * parameter before until they are bound again. Sources: transformers 5.17, optimization.py
 * (Adafactor); torch 2.11, optim/_muon.py; adam-mini 1.1.1, adam_mini.py; galore-torch 1.0,
 * adamw.py, adamw8bit.py and galore_projector.py, with the projection that transformers assumes
 * (proj_type std).
 */
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#define MUON_ITERATIONS 5u /* ns_steps */

static struct tdm_eager_value *like(struct tdm_torch_model *t, uint32_t i, uint16_t element_bytes)
{
    const struct tdm_eager_value *p = t->parameters[i];
    return tdm_value_new(t->m, p->rows, p->columns, element_bytes);
}

static uint64_t shorter_side(const struct tdm_eager_value *p)
{
    return p->rows < p->columns ? p->rows : p->columns;
}

/* ---- Adafactor ---- */

/* Row and column sums of a matrix, all squares of a vector. */
static void init_adafactor(struct tdm_torch_model *t, uint32_t i)
{
    const struct tdm_eager_value *p = t->parameters[i];
    tdm_label(t->m, "exp_avg_sq");
    t->states[i].first = tdm_value_new(t->m, p->rows > 1 ? p->rows : p->columns, 1, FP32);
    if (p->rows > 1)
        t->states[i].second = tdm_value_new(t->m, p->columns, 1, FP32);
}

/* Adafactor steps one parameter after the other. Its names grad, p_data_fp32 and update hold those
 * of the parameter before until they are bound again. */
struct adafactor {
    struct tdm_eager_value *grad, *wide, *update;
};

static void step_adafactor(struct tdm_torch_model *t, uint32_t i, struct adafactor *a)
{
    struct tdm_eager *m = t->m;
    const struct tdm_eager_value *p = t->parameters[i];
    bool narrow = p->element_bytes != FP32;
    tdm_label(m, "update");
    a->grad = tdm_replace(m, a->grad, narrow ? tdm_value_new(m, p->rows, p->columns, FP32) : NULL);
    tdm_drop(m, a->wide);
    a->wide = narrow ? tdm_value_new(m, p->rows, p->columns, FP32) : NULL;
    struct tdm_eager_value *squares = tdm_value_new(m, p->rows, p->columns, FP32);
    a->update = tdm_replace(m, a->update, tdm_value_like(m, squares));
    tdm_drop(m, squares);
    a->update = tdm_replace(m, a->update, tdm_value_like(m, a->update));
    tdm_drop(m, tdm_value_like(m, a->update)); /* -update */
}

static void run_adafactor(struct tdm_torch_model *t)
{
    struct adafactor a = {0};
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!tdm_torch_steps(t, i))
            continue;
        if (t->states[i].first == NULL)
            init_adafactor(t, i);
        step_adafactor(t, i, &a);
    }
    tdm_drop(t->m, a.grad);
    tdm_drop(t->m, a.wide);
    tdm_drop(t->m, a.update);
}

/* ---- Muon ---- */

/* What Newton and Schulz's iteration has in bf16: a product of the shorter side, its polynomial,
 * the next matrix. */
struct iteration {
    struct tdm_eager_value *gram, *polynomial, *x;
};

/* A DTensor's product of what another rank has too: that is there while the product is made. */
static struct tdm_eager_value *product_with(struct tdm_eager *m, struct tdm_eager_value *brought,
                                            struct tdm_eager_value *old, uint64_t rows,
                                            uint64_t columns)
{
    struct tdm_eager_value *product = tdm_value_new(m, rows, columns, BF16);
    tdm_drop(m, brought);
    tdm_drop(m, old);
    return product;
}

/* Of shards, which are rows of a whole. Where these are more than its columns, each rank's product
 * is a term of a sum, which is all-reduced for the polynomial, and the polynomial for the matrix.
 * Else the transposed matrix is gathered by columns, which are then put in order, the product and
 * the matrix by rows. So DTensor (torch 2.11) did it on two and on four CPUs, of seven shapes. */
static void iterate_shards(struct tdm_torch_model *t, uint32_t i,
                           const struct tdm_eager_value *whole, struct iteration *it)
{
    struct tdm_eager *m = t->m;
    const uint64_t rows = t->parameters[i]->rows, columns = whole->columns,
                   all = rows * tdm_fsdp_shards(&t->settings);
    if (whole->rows > columns) {
        it->gram = tdm_replace(m, it->gram, tdm_value_new(m, columns, columns, BF16));
        for (unsigned n = 0; n < 2; n++) {
            struct tdm_eager_value *sum = tdm_value_new(m, columns, columns, BF16);
            if (n == 0)
                it->polynomial = product_with(m, sum, it->polynomial, columns, columns);
            else
                it->x = product_with(m, sum, it->x, rows, columns);
        }
        return;
    }
    struct tdm_eager_value *part = like(t, i, BF16),
                           *gathered = tdm_value_new(m, all, columns, BF16),
                           *joined = tdm_value_new(m, all, columns, BF16);
    tdm_drop(m, gathered);
    tdm_drop(m, part);
    it->gram = product_with(m, joined, it->gram, rows, all);
    it->polynomial = product_with(m, tdm_value_new(m, all, all, BF16), it->polynomial, rows, all);
    it->x = product_with(m, tdm_value_new(m, all, columns, BF16), it->x, rows, columns);
}

static void iterate(struct tdm_torch_model *t, uint32_t i, struct iteration *it)
{
    struct tdm_eager *m = t->m;
    const uint64_t side = shorter_side(t->parameters[i]);
    it->gram = tdm_replace(m, it->gram, tdm_value_new(m, side, side, BF16));
    it->polynomial = tdm_replace(m, it->polynomial, tdm_value_new(m, side, side, BF16));
    it->x = tdm_replace(m, it->x, like(t, i, BF16));
}

static void step_muon(struct tdm_torch_model *t, uint32_t i, struct tdm_eager_value **update)
{
    struct tdm_eager *m = t->m;
    const struct tdm_eager_value *p = t->parameters[i];
    const struct tdm_eager_value *whole =
        t->settings.wrapper == &tdm_fsdp_wrapper ? tdm_fsdp_of(t)->wholes[i] : NULL;
    struct iteration it = {0};
    tdm_label(m, "update");
    *update = tdm_replace(m, *update, like(t, i, p->element_bytes));
    it.x = p->element_bytes == BF16 ? tdm_take(*update) : like(t, i, BF16);
    for (unsigned n = 0; n < MUON_ITERATIONS; n++)
        if (whole != NULL)
            iterate_shards(t, i, whole, &it);
        else
            iterate(t, i, &it);
    tdm_drop(m, it.gram);
    tdm_drop(m, it.polynomial);
    *update = tdm_replace(m, *update, it.x);
}

static void run_muon(struct tdm_torch_model *t)
{
    struct tdm_eager_value *update = NULL;
    tdm_label(t->m, "momentum_buffer");
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (tdm_torch_steps(t, i) && t->states[i].matrix && t->states[i].first == NULL)
            t->states[i].first = tdm_value_like(t->m, t->parameters[i]);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (tdm_torch_steps(t, i) && t->states[i].matrix)
            step_muon(t, i, &update);
    tdm_drop(t->m, update);
}

/* ---- Adam-mini ---- */

/* Elements that share a second moment. Query and key have one a head, other matrices one a row,
 * norms one for all; biases have Adam's. Where q, k and v are one product it has one a row. */
static uint64_t moments_of(const struct tdm_torch_model *t, uint32_t i)
{
    const struct tdm_eager_value *p = t->parameters[i];
    const struct tdm_model *config = t->config;
    uint32_t in_layer = (p->module - TDM_MODULE_FIRST_LAYER) % TDM_MODULES_A_LAYER;
    bool of_layer = p->module >= TDM_MODULE_FIRST_LAYER;
    if (p->rows == 1)
        return 1;
    if (of_layer &&
        (in_layer == TDM_MODULE_ROLES + TDM_ROLE_Q || in_layer == TDM_MODULE_ROLES + TDM_ROLE_K))
        return tdm_value_elements(p) /
               ((uint64_t)config->hidden * config->hidden / config->query_heads);
    return p->rows;
}

static void step_adam_mini(struct tdm_torch_model *t, uint32_t i, struct tdm_eager_value **update)
{
    struct tdm_eager *m = t->m;
    struct torch_state *state = &t->states[i];
    uint16_t bytes = t->parameters[i]->element_bytes;
    if (state->first == NULL) {
        tdm_label(m, "exp_avg");
        state->first = tdm_value_like(m, t->parameters[i]);
        tdm_label(m, "vmean");
        state->second = tdm_value_new(m, moments_of(t, i), 1, bytes);
    }
    tdm_label(m, "update");
    tdm_drop(m, like(t, i, bytes)); /* grad * grad */
    *update = tdm_replace(m, *update, like(t, i, bytes));
    tdm_drop(m, like(t, i, bytes)); /* -update */
}

static void run_adam_mini(struct tdm_torch_model *t)
{
    struct tdm_eager_value *update = NULL;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (tdm_torch_steps(t, i))
            step_adam_mini(t, i, &update);
    tdm_drop(t->m, update);
}

/* ---- GaLore ---- */

struct galore {
    struct tdm_eager_value *grad, *denominator, *update;
};

/* The whole matrix of which a parameter may be a shard of fully_shard, its rows. */
static const struct tdm_eager_value *whole_of(const struct tdm_torch_model *t, uint32_t i)
{
    return t->settings.wrapper == &tdm_fsdp_wrapper ? tdm_fsdp_of(t)->wholes[i] : t->parameters[i];
}

/* The projection: singular vectors of the gradient in fp32, of the shorter side. Of bf16 gradients
 * some of them are copied, of fp32 ones they are a view, so that all stay. Shards are gathered for
 * it, and every rank has all of it: so it was on two CPUs. The scratch of the decomposition is the
 * library's, and not known. */
static struct tdm_eager_value *decompose(struct tdm_torch_model *t, uint32_t i)
{
    struct tdm_eager *m = t->m;
    const struct tdm_eager_value *p = t->parameters[i], *w = whole_of(t, i);
    uint64_t side = shorter_side(w), rank = t->settings.galore_rank;
    bool right = w->rows >= w->columns, narrow = p->element_bytes != FP32;
    tdm_label(m, "linalg.svd");
    struct tdm_eager_value *matrix = narrow ? like(t, i, FP32) : NULL;
    struct tdm_eager_value *gathered = w != p ? tdm_value_new(m, w->rows, w->columns, FP32) : NULL;
    struct tdm_eager_value *u = tdm_value_new(m, w->rows, side, FP32),
                           *v = tdm_value_new(m, side, w->columns, FP32);
    tdm_drop(m, tdm_value_new(m, w->rows, w->columns, FP32)); /* a copy that is written over */
    tdm_drop(m, gathered);
    tdm_drop(m, tdm_value_new(m, right ? w->rows : w->columns, rank, FP32)); /* scaled, not used */
    tdm_label(m, "ortho_matrix");
    struct tdm_eager_value *kept =
        narrow ? tdm_value_new(m, rank, side, p->element_bytes) : tdm_take(right ? v : u);
    tdm_drop(m, u);
    tdm_drop(m, v);
    tdm_drop(m, matrix);
    return kept;
}

/* Where the whole has more columns than rows, a rank's part of the projected gradient is a term of
 * a sum, which is all-reduced for each moment, and states and the update are whole on every rank.
 */
static void step_galore(struct tdm_torch_model *t, uint32_t i, struct galore *g)
{
    struct tdm_eager *m = t->m;
    const struct tdm_eager_value *p = t->parameters[i], *w = whole_of(t, i);
    struct torch_state *state = &t->states[i];
    const bool projects = state->matrix && t->settings.galore_rank < shorter_side(w),
               wide = projects && w->rows < w->columns, sums = wide && w != p;
    uint64_t rows = wide ? t->settings.galore_rank : p->rows,
             columns = projects && !wide ? t->settings.galore_rank : p->columns;
    if (projects && state->step == NULL)
        state->step = decompose(t, i);
    tdm_label(m, "update");
    tdm_drop(m, g->grad);
    g->grad = projects ? tdm_value_new(m, rows, columns, p->element_bytes) : NULL;
    for (unsigned s = 0; s < 2 && !state->made; s++) {
        tdm_label(m, s == 0 ? "exp_avg" : "exp_avg_sq");
        *(s == 0 ? &state->first : &state->second) =
            tdm_value_new(m, rows, columns, p->element_bytes);
    }
    state->made = true;
    tdm_label(m, "update");
    for (unsigned n = 0; n < 2 && sums; n++) /* the second moment reads the gradient twice */
        tdm_drop(m, tdm_value_new(m, (n + 1) * rows, columns, p->element_bytes));
    g->denominator =
        tdm_replace(m, g->denominator, tdm_value_new(m, rows, columns, p->element_bytes));
    g->update = tdm_replace(m, g->update, tdm_value_new(m, rows, columns, p->element_bytes));
    if (!projects)
        return;
    const uint64_t back_rows = sums ? w->rows : p->rows;
    struct tdm_eager_value *back = tdm_value_new(m, back_rows, p->columns, p->element_bytes);
    struct tdm_eager_value *scaled = tdm_value_new(m, back_rows, p->columns, p->element_bytes);
    tdm_drop(m, back);
    g->update = tdm_replace(m, g->update, scaled);
    if (sums) /* a rank's rows of it */
        tdm_drop(m, tdm_value_like(m, p));
}

/* In 8 bits a parameter is small while bitsandbytes steps it: its values move to a copy, and its
 * gradient is the projected one from then on. */
static void step_galore_8bit(struct tdm_torch_model *t, uint32_t i, struct galore *g)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value *p = t->parameters[i], *saved = NULL;
    struct torch_state *state = &t->states[i];
    const bool projects = state->matrix && t->settings.galore_rank < shorter_side(p);
    const uint64_t rows = projects && p->rows < p->columns ? t->settings.galore_rank : p->rows,
                   columns =
                       projects && p->rows >= p->columns ? t->settings.galore_rank : p->columns;
    if (projects) {
        if (state->step == NULL)
            state->step = decompose(t, i);
        tdm_label(m, "update");
        g->grad = tdm_replace(m, g->grad, tdm_value_new(m, rows, columns, p->element_bytes));
        m->category = TDM_METHOD_WEIGHTS;
        tdm_label(m, "saved_data");
        saved = tdm_value_like(m, p);
        m->category = TDM_METHOD_OPTIMIZER;
        tdm_label(m, "update");
        g->update = tdm_value_like(m, g->grad); /* takes the parameter's place */
        struct tdm_storage *moved = p->storage;
        p->storage = saved->storage;
        saved->storage = moved;
        tdm_drop(m, saved);
        p->grad = tdm_replace(m, p->grad, tdm_take(g->grad));
    }
    if (!state->made)
        tdm_torch_init_bnb(t, TDM_TORCH_ADAMW_8BIT, rows * columns, state);
    state->made = true;
    if (!projects)
        return;
    tdm_label(m, "update");
    struct tdm_eager_value *back = tdm_value_like(m, p);
    tdm_drop(m, tdm_value_like(m, p)); /* scaled */
    tdm_drop(m, back);
    tdm_drop(m, g->update);
    g->update = NULL;
}

static void step_any_galore(struct tdm_torch_model *t, uint32_t i, struct galore *g)
{
    if (t->settings.optimizer == TDM_TORCH_GALORE_8BIT)
        step_galore_8bit(t, i, g);
    else
        step_galore(t, i, g);
}

static void drop_galore(struct tdm_torch_model *t, struct galore *g)
{
    tdm_drop(t->m, g->grad);
    tdm_drop(t->m, g->denominator);
    tdm_drop(t->m, g->update);
}

static void run_galore(struct tdm_torch_model *t)
{
    struct galore g = {0};
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (tdm_torch_steps(t, i))
            step_any_galore(t, i, &g);
    drop_galore(t, &g);
}

void tdm_torch_single_step(struct tdm_torch_model *t, uint32_t i)
{
    struct galore g = {0};
    if (t->settings.optimizer < TDM_TORCH_GALORE)
        return;
    step_any_galore(t, i, &g);
    drop_galore(t, &g);
}

void tdm_torch_single_steps(struct tdm_torch_model *t)
{
    static void (*const steps[])(struct tdm_torch_model * t) = {
        [TDM_TORCH_ADAFACTOR] = run_adafactor, [TDM_TORCH_MUON] = run_muon,
        [TDM_TORCH_ADAM_MINI] = run_adam_mini, [TDM_TORCH_GALORE] = run_galore,
        [TDM_TORCH_GALORE_8BIT] = run_galore,
    };
    enum tdm_torch_optimizer kind = t->settings.optimizer;
    if (kind < sizeof(steps) / sizeof(steps[0]) && steps[kind] != NULL)
        steps[kind](t);
}
