/* SPDX-License-Identifier: Apache-2.0 */
/* Mamba-2 in place of attention or beside it, by the kernels of mamba_ssm and causal_conv1d, which
 * transformers takes where they are installed; and the short convolutions of LFM2. Sources:
 * transformers 5.17, models/granitemoehybrid, falcon_h1, nemotron_h (the mixers' forward), lfm2
 * (Lfm2ShortConv); mamba_ssm e9594ce, ops/triton/ssd_combined.py
 * (MambaSplitConv1dScanCombinedFn, _mamba_chunk_scan_combined_fwd and _bwd), ssd_chunk_state.py,
 * ssd_chunk_scan.py, ssd_state_passing.py, ssd_bmm.py, layernorm_gated.py; causal_conv1d,
 * causal_conv1d_interface.py (CausalConv1dFn). */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stddef.h>

#define DECAY_TILE 32u /* tokens of a chunk that a block sums decays' gradients over */
#define STATE_TILE 64u /* elements of a state that a block sums over */
#define NORM_WARP_COLUMNS 256u
#define NORM_MOST_WARPS 8u

/* Sizes of a call. Chunks are those of all sequences. */
struct scan {
    uint64_t tokens, inner, heads, groups, state, width, chunk, chunks;
    bool normed; /* the gate is applied by a norm after the scan, not by the scan */
};

enum { IN_ALL, IN_KERNEL, IN_KERNEL_BIAS, IN_TIME, IN_DECAY, IN_SKIP, IN_NORM, IN_OUT, INPUTS };
enum {
    SAVED_ALL,
    SAVED_KERNEL,
    SAVED_MADE,
    SAVED_DECAY,
    SAVED_SKIP,
    SAVED_OUT,
    SAVED_NORM,
    SAVED_SCALES
};

/* A number in fp32 for each head and token of a chunk. */
static struct tdm_eager_value *by_token(struct tdm_eager *m, const struct scan *s, uint64_t times)
{
    return tdm_value_new(m, times * s->heads * s->chunks, s->chunk, FP32);
}

static struct tdm_eager_value *new_states(struct tdm_eager *m, const struct scan *s, uint16_t bytes)
{
    return tdm_value_new(m, s->chunks * s->inner, s->state, bytes);
}

static struct tdm_eager_value *final_states(struct tdm_eager *m, const struct scan *s,
                                            uint64_t sequences)
{
    return tdm_value_new(m, sequences * s->inner, s->state, FP32);
}

/* Products of B and C in each chunk. */
static struct tdm_eager_value *new_products(struct tdm_eager *m, const struct scan *s,
                                            uint64_t times)
{
    return tdm_value_new(m, times * s->chunks * s->groups * s->chunk, s->chunk, FP32);
}

static struct tdm_eager_value *of_tokens(struct tdm_eager *m, const struct scan *s,
                                         uint64_t columns)
{
    return tdm_value_new(m, s->tokens, columns, BF16);
}

static struct scan scan_of(const struct tdm_node *node, const struct tdm_eager_value *all,
                           const struct tdm_eager_value *made, const struct tdm_eager_value *kernel)
{
    struct scan s = {.tokens = all->rows,
                     .inner = made->columns,
                     .groups = node->facts[0],
                     .chunk = node->facts[1],
                     .chunks = node->facts[2],
                     .heads = node->facts[3],
                     .width = kernel->rows,
                     .normed = node->facts[5] != 0};
    s.state = (s.width - s.inner) / 2 / s.groups;
    return s;
}

/* Heads of a group are shared by so many blocks, each with sums of its own (nsplits). */
static uint64_t splits(const struct tdm_eager *m, const struct scan *s)
{
    uint64_t heads = s->heads / s->groups;
    uint64_t each = tdm_size_ceil_div(s->chunks * s->heads, m->gpu.multiprocessors);
    return tdm_size_ceil_div(heads, each < heads ? each : heads);
}

/* Sums of parts in fp32, of B's or C's gradient. */
static struct tdm_eager_value *summed(struct tdm_eager *m, const struct scan *s)
{
    const uint64_t columns = s->groups * s->state;
    struct tdm_eager_value *parts = tdm_value_new(m, s->tokens * splits(m, s), columns, FP32);
    struct tdm_eager_value *sum = tdm_value_new(m, s->tokens, columns, FP32);
    tdm_drop(m, parts);
    return sum;
}

/* _layer_norm_bwd: the gradient of what is normed; *weight: that of the weight. */
static struct tdm_eager_value *norm_gradient(struct tdm_eager *m, const struct scan *s,
                                             struct tdm_eager_value **weight)
{
    struct tdm_eager_value *dx = of_tokens(m, s, s->inner);
    uint64_t columns = 1;
    while (columns < s->inner / s->groups)
        columns *= 2;
    uint64_t warps = columns / NORM_WARP_COLUMNS;
    warps = warps < 1 ? 1 : warps < NORM_MOST_WARPS ? warps : NORM_MOST_WARPS;
    uint64_t rows =
        tdm_size_ceil_div(m->gpu.multiprocessors * tdm_size_ceil_div(4, warps), s->groups);
    struct tdm_eager_value *parts = tdm_value_new(m, rows, s->inner, FP32);
    struct tdm_eager_value *sum = tdm_value_new(m, 1, s->inner, FP32);
    *weight = tdm_cast(m, sum, BF16);
    tdm_drop(m, sum);
    tdm_drop(m, parts);
    return dx;
}

/* _mamba_chunk_scan_combined_bwd. *again: the output, where the scan applies the gate; NULL: it is
 * not made again. */
static void scan_gradients(struct tdm_eager *m, const struct scan *s, uint64_t sequences,
                           struct tdm_eager_value **again, struct tdm_eager_value *vectors[3])
{
    struct tdm_eager_value *dt_in = of_tokens(m, s, s->heads);
    struct tdm_eager_value *dt = by_token(m, s, 1), *decays = by_token(m, s, 1);
    struct tdm_eager_value *products = new_products(m, s, 1);
    struct tdm_eager_value *states = new_states(m, s, FP32), *passed = new_states(m, s, FP32);
    struct tdm_eager_value *last = final_states(m, s, sequences);
    struct tdm_eager_value *dout = NULL;
    const uint64_t tiles = tdm_size_ceil_div(s->chunk, DECAY_TILE);
    tdm_drop(m, states);
    if (!s->normed) { /* _chunk_scan_bwd_dz */
        struct tdm_eager_value *skip = tdm_value_new(m, tiles * s->chunks, s->heads, FP32);
        if (again != NULL)
            *again = of_tokens(m, s, s->inner);
        dout = of_tokens(m, s, s->inner);
        vectors[2] = tdm_value_new(m, 1, s->heads, BF16);
        tdm_drop(m, skip);
    }
    struct tdm_eager_value *dstates = new_states(m, s, FP32);
    /* _state_passing_bwd */
    struct tdm_eager_value *narrow = new_states(m, s, BF16), *converted = new_states(m, s, BF16);
    struct tdm_eager_value *parts =
        tdm_value_new(m, s->heads * s->chunks,
                      tdm_size_ceil_div(s->inner / s->heads * s->state, STATE_TILE), FP32);
    struct tdm_eager_value *of_chunks = tdm_value_new(m, s->heads, s->chunks, FP32);
    tdm_drop(m, parts);
    tdm_drop(m, dstates);
    tdm_drop(m, passed);
    /* _chunk_scan_chunk_state_bwd_dx */
    struct tdm_eager_value *skip = tdm_value_new(m, tiles * s->chunks, s->heads, FP32);
    struct tdm_eager_value *ddt = by_token(m, s, 1);
    struct tdm_eager_value *dskip = tdm_value_new(m, 1, s->heads, BF16);
    tdm_drop(m, skip);
    struct tdm_eager_value *next = by_token(m, s, 1), *db = summed(m, s);
    struct tdm_eager_value *before = by_token(m, s, 1), *dc = summed(m, s);
    struct tdm_eager_value *each = new_products(m, s, splits(m, s)),
                           *dproducts = new_products(m, s, 1);
    tdm_drop(m, each);
    struct tdm_eager_value *turned = by_token(m, s, 1), *sums = by_token(m, s, 1);
    tdm_drop(m, turned);
    struct tdm_eager_value *previous = by_token(m, s, 1);
    tdm_drop(m, sums);
    struct tdm_eager_value *tiled = by_token(m, s, tiles), *decay = by_token(m, s, 1);
    tdm_drop(m, tiled);
    tdm_drop(m, by_token(m, s, 1));
    vectors[0] = tdm_value_new(m, 1, s->heads, FP32); /* of the times' bias */
    vectors[1] = tdm_value_new(m, 1, s->heads, FP32); /* of A */
    if (vectors[2] == NULL)
        vectors[2] = tdm_take(dskip);
    struct tdm_eager_value *const locals[] = {
        decay,     previous,  dproducts, dc,   before, db,       next,   dskip, ddt,
        of_chunks, converted, narrow,    dout, last,   products, decays, dt,    dt_in};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
}

static void set_result(struct tdm_eager *m, const struct tdm_node *node, uint32_t input,
                       struct tdm_eager_value *value, struct tdm_eager_value **results)
{
    if (tdm_node_needs(node, input))
        results[input] = value;
    else
        tdm_drop(m, value);
}

/* All gradients are made, also those that nobody needs. */
static void mamba_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *saved[SAVED_SCALES + 1] = {NULL}, *vectors[3] = {NULL};
    (void)grads; /* their shape is that of the saved values */
    for (uint32_t i = 0; i < node->saved_count; i++)
        saved[i] = tdm_node_saved(m, node, i);
    const struct scan s = scan_of(node, saved[SAVED_ALL], saved[SAVED_MADE], saved[SAVED_KERNEL]);
    const bool product = saved[SAVED_OUT] != NULL;
    struct tdm_eager_value *again = product ? of_tokens(m, &s, s.inner) : NULL;
    struct tdm_eager_value *convolved = of_tokens(m, &s, s.width);
    struct tdm_eager_value *dall = tdm_value_like(m, saved[SAVED_ALL]);
    struct tdm_eager_value *dconvolved = of_tokens(m, &s, s.width);
    struct tdm_eager_value *dout = NULL, *dmade = NULL, *dnorm = NULL, *gated = NULL;
    if (product) {
        tdm_cublas(m);
        dout = of_tokens(m, &s, s.inner);
    }
    if (s.normed)
        dmade = norm_gradient(m, &s, &dnorm);
    scan_gradients(m, &s, node->facts[4], product ? &gated : NULL, vectors);
    struct tdm_eager_value *dweight =
        product ? tdm_value_like(m, saved[SAVED_OUT]) : NULL; /* of the gradient and the output */
    struct tdm_eager_value *wide[] = {
        tdm_value_new(m, saved[SAVED_KERNEL]->rows, saved[SAVED_KERNEL]->columns, FP32),
        tdm_value_new(m, 1, s.width, FP32)};
    const uint16_t bytes = saved[SAVED_KERNEL]->element_bytes;
    set_result(m, node, IN_KERNEL, tdm_cast(m, wide[0], bytes), results);
    set_result(m, node, IN_KERNEL_BIAS, tdm_cast(m, wide[1], bytes), results);
    set_result(m, node, IN_ALL, dall, results);
    set_result(m, node, IN_TIME, vectors[0], results);
    set_result(m, node, IN_DECAY, vectors[1], results);
    set_result(m, node, IN_SKIP, vectors[2], results);
    if (s.normed)
        set_result(m, node, IN_NORM, dnorm, results);
    if (product)
        set_result(m, node, IN_OUT, dweight, results);
    struct tdm_eager_value *const locals[] = {wide[1], wide[0],    gated,     dmade,
                                              dout,    dconvolved, convolved, again};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    for (uint32_t i = 0; i < node->saved_count; i++)
        tdm_drop(m, saved[i]);
}

/* Convolution, scan, norm and the product behind them. */
struct tdm_eager_value *tdm_mamba_scan(struct tdm_eager *m, const struct tdm_scan_shape *shape,
                                       const struct tdm_scan_inputs *given)
{
    static const struct tdm_eager_op op = {"MambaSplitConv1dScanCombinedFnBackward", false,
                                           mamba_backward};
    struct tdm_eager_value *const inputs[INPUTS] = {
        [IN_ALL] = given->all,   [IN_KERNEL] = given->kernel, [IN_KERNEL_BIAS] = given->kernel_bias,
        [IN_TIME] = given->time, [IN_DECAY] = given->decay,   [IN_SKIP] = given->skip,
        [IN_NORM] = given->norm, [IN_OUT] = given->out};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, INPUTS);
    const uint64_t sequences = shape->sequences;
    const struct scan s = {.tokens = inputs[IN_ALL]->rows,
                           .inner = shape->heads * shape->head_dim,
                           .heads = shape->heads,
                           .groups = shape->groups,
                           .state = shape->state,
                           .width = inputs[IN_KERNEL]->rows,
                           .chunk = shape->chunk,
                           .chunks = sequences * tdm_size_ceil_div(shape->tokens, shape->chunk),
                           .normed = given->norm != NULL};
    if (node != NULL) {
        const uint64_t facts[] = {s.groups, s.chunk, s.chunks, s.heads, sequences, s.normed};
        for (unsigned i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
            node->facts[i] = facts[i];
    }
    struct tdm_eager_value *convolved = of_tokens(m, &s, s.width);
    struct tdm_eager_value *dt = by_token(m, &s, 1), *decays = by_token(m, &s, 1);
    struct tdm_eager_value *states = new_states(m, &s, FP32), *passed = new_states(m, &s, BF16);
    struct tdm_eager_value *last = final_states(m, &s, sequences);
    tdm_drop(m, states);
    struct tdm_eager_value *products = new_products(m, &s, 1);
    struct tdm_eager_value *made = of_tokens(m, &s, s.inner), *out, *scales = NULL;
    if (s.normed) {
        tdm_drop(m, products);
        out = of_tokens(m, &s, s.inner);
        scales = tdm_value_new(m, s.groups * s.tokens, 1, FP32);
    } else {
        out = made; /* and what is before the gate */
        made = of_tokens(m, &s, s.inner);
        tdm_drop(m, products);
    }
    struct tdm_eager_value *weight = NULL, *y = out;
    if (given->out != NULL) {
        weight = m->autocast ? tdm_cast(m, given->out, BF16) : tdm_take(given->out);
        tdm_cublas(m);
        y = of_tokens(m, &s, weight->rows);
        tdm_drop(m, out);
    }
    struct tdm_eager_value *const saved[] = {
        inputs[IN_ALL], inputs[IN_KERNEL], made,  inputs[IN_DECAY], inputs[IN_SKIP],
        weight,         inputs[IN_NORM],   scales};
    for (unsigned i = 0; i < sizeof(saved) / sizeof(saved[0]); i++)
        if (saved[i] != NULL)
            tdm_node_save(m, node, saved[i]);
    struct tdm_eager_value *const locals[] = {weight, scales, made, last,
                                              passed, decays, dt,   convolved};
    for (unsigned i = 0; i < sizeof(locals) / sizeof(locals[0]); i++)
        tdm_drop(m, locals[i]);
    return tdm_node_finish(m, node, y);
}

static void groups_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_eager_value *x = tdm_node_saved(m, node, 0), *scales = tdm_node_saved(m, node, 1);
    const struct scan s = {.tokens = x->rows, .inner = x->columns, .groups = node->facts[0]};
    (void)grads;
    results[0] = norm_gradient(m, &s, &results[1]);
    tdm_drop(m, scales);
    tdm_drop(m, x);
}

struct tdm_eager_value *tdm_mamba_norm(struct tdm_eager *m, struct tdm_eager_value *x,
                                       struct tdm_eager_value *weight, uint64_t groups)
{
    static const struct tdm_eager_op op = {"LayerNormFnBackward", false, groups_backward};
    struct tdm_eager_value *const inputs[] = {x, weight};
    struct tdm_node *node = tdm_node_new(m, &op, inputs, 2);
    struct tdm_eager_value *y = tdm_value_like(m, x);
    struct tdm_eager_value *scales = tdm_value_new(m, groups * x->rows, 1, FP32);
    if (node != NULL)
        node->facts[0] = groups;
    tdm_node_save(m, node, x);
    tdm_node_save(m, node, scales);
    tdm_drop(m, scales);
    return tdm_node_finish(m, node, y);
}

struct tdm_eager_value *tdm_torch_mamba(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, struct tdm_eager_value *x)
{
    const bool multiplied = (t->config->parts & TDM_PART_FALCON_H1) != 0;
    tdm_label(m, "mamba.in_proj");
    struct tdm_eager_value *input = multiplied ? tdm_mul_number(m, x) : tdm_take(x);
    struct tdm_eager_value *all =
        tdm_torch_linear(m, t, input, layer->mamba[MAMBA_IN], NULL, layer->mamba[MAMBA_IN]->module);
    if (multiplied)
        all = tdm_replace(m, all, tdm_mul_number(m, all));
    tdm_label(m, "mamba");
    struct tdm_eager_value *decay = tdm_torch_minus_exp(m, layer->mamba[MAMBA_DECAY]);
    const struct tdm_mamba *config = &t->config->mamba;
    const struct tdm_scan_shape shape = {.sequences = all->rows / t->settings.tokens,
                                         .tokens = t->settings.tokens,
                                         .heads = config->heads,
                                         .head_dim = config->head_dim,
                                         .groups = config->groups,
                                         .state = config->state,
                                         .chunk = config->chunk};
    const struct tdm_scan_inputs inputs = {.all = all,
                                           .kernel = layer->mamba[MAMBA_KERNEL],
                                           .kernel_bias = layer->mamba[MAMBA_KERNEL_BIAS],
                                           .time = layer->mamba[MAMBA_TIME],
                                           .decay = decay,
                                           .skip = layer->mamba[MAMBA_SKIP],
                                           .norm = layer->mamba[MAMBA_NORM],
                                           .out = layer->mamba[MAMBA_OUT]};
    struct tdm_eager_value *y = tdm_mamba_scan(m, &shape, &inputs);
    tdm_drop(m, decay);
    tdm_drop(m, all);
    tdm_drop(m, input);
    return y;
}

struct tdm_eager_value *tdm_torch_short_conv(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             const struct torch_layer *layer,
                                             struct tdm_eager_value *x)
{
    const uint64_t widths[] = {x->columns, x->columns, x->columns};
    struct tdm_eager_value *parts[3];
    tdm_label(m, "conv.in_proj");
    struct tdm_eager_value *all = tdm_torch_linear(m, t, x, layer->short_conv[SHORT_IN], NULL,
                                                   layer->short_conv[SHORT_IN]->module);
    tdm_label(m, "conv.conv");
    tdm_split(m, all, widths, 3, parts);
    struct tdm_eager_value *opened = tdm_mul(m, parts[0], parts[2]);
    opened =
        tdm_replace(m, opened, tdm_torch_convolution(m, opened, layer->short_conv[SHORT_KERNEL]));
    struct tdm_eager_value *gated = tdm_mul(m, parts[1], opened);
    tdm_label(m, "conv.out_proj");
    struct tdm_eager_value *y = tdm_torch_linear(m, t, gated, layer->short_conv[SHORT_OUT], NULL,
                                                 layer->short_conv[SHORT_OUT]->module);
    tdm_drop(m, gated);
    tdm_drop(m, opened);
    for (unsigned i = 3; i-- > 0;)
        tdm_drop(m, parts[i]);
    tdm_drop(m, all);
    return y;
}
