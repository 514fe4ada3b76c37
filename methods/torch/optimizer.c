/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.step() and zero_grad: the states, which the first step allocates, and temporary
 * tensors. Sources: torch/optim/adam.py (_init_group, _multi_tensor_adam, _fused_adam), sgd.py;
 * bitsandbytes 0.50.2, optim/optimizer.py (Optimizer8bit, Optimizer1State, Optimizer2State);
 * torch/nn/utils/clip_grad.py, aten/src/ATen/native/cuda/ForeachReduceOp.cu
 * (foreach_tensor_norm_cuda). Optimizers that step one parameter after the other are in
 * optimizer_single.c. */
#include "base/size.h"
#include "methods/eager/ops.h"
#include "methods/torch/parts.h"

#include <stdlib.h>

#define INT8 1u

/* Of bitsandbytes' optimizers: elements below which states stay in fp32; which share a scale; from
 * which on paged states are in managed memory; of a table of 8-bit values. */
#define FEWEST_8BIT 4096u
#define STATE_BLOCK 256u
#define FEWEST_PAGED 100000u
#define STATE_CODES 256u

/* Of torchao's: elements from which on, if blocks divide them, states are narrow. */
#define FEWEST_NARROW 4096u
#define BLOCK_4BIT 128u
#define BLOCK_8BIT 256u /* of fp8 too */
#define VALUES_4BIT 16u

enum state_kind {
    STATES_OF_TORCH,
    STATES_FP32,
    STATES_8BIT,
    STATES_4BIT, /* torchao's, as those that follow */
    STATES_AO_8BIT,
    STATES_FP8
};

static const struct rule {
    uint32_t states;
    enum state_kind kind;
    bool paged;
} rules[] = {
    [TDM_TORCH_NO_OPTIMIZER] = {0, STATES_OF_TORCH, false},
    [TDM_TORCH_ADAMW_FUSED] = {2, STATES_OF_TORCH, false},
    [TDM_TORCH_ADAMW_FOREACH] = {2, STATES_OF_TORCH, false},
    [TDM_TORCH_SGD] = {0, STATES_OF_TORCH, false},
    [TDM_TORCH_SGD_MOMENTUM] = {1, STATES_OF_TORCH, false},
    [TDM_TORCH_ADAMW_8BIT] = {2, STATES_8BIT, false},
    [TDM_TORCH_PAGED_ADAMW_8BIT] = {2, STATES_8BIT, true},
    [TDM_TORCH_PAGED_ADAMW_32BIT] = {2, STATES_FP32, true},
    [TDM_TORCH_LION_8BIT] = {1, STATES_8BIT, false},
    [TDM_TORCH_LION_32BIT] = {1, STATES_FP32, false},
    [TDM_TORCH_ADAMW_4BIT] = {2, STATES_4BIT, false},
    [TDM_TORCH_ADAMW_FP8] = {2, STATES_FP8, false},
    [TDM_TORCH_AO_ADAMW_8BIT] = {2, STATES_AO_8BIT, false},
    [TDM_TORCH_ADAFACTOR] = {0, STATES_OF_TORCH, false},
    [TDM_TORCH_MUON] = {2, STATES_OF_TORCH, false}, /* of what Muon does not step */
    [TDM_TORCH_ADAM_MINI] = {0, STATES_OF_TORCH, false},
    [TDM_TORCH_GALORE] = {0, STATES_OF_TORCH, false},
    [TDM_TORCH_GALORE_8BIT] = {0, STATES_OF_TORCH, false},
};

static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};

static struct tdm_eager_value **state_of(struct torch_state *state, uint32_t number)
{
    return number == 0 ? &state->first : &state->second;
}

/* States of torch.optim are like their parameter. */
static void init_torch(struct tdm_torch_model *t, uint32_t i, const struct rule *rule)
{
    struct torch_state *state = &t->states[i];
    if (t->settings.optimizer == TDM_TORCH_ADAMW_FUSED)
        state->step = tdm_value_new(t->m, 1, 1, FP32); /* foreach has it in host memory */
    for (uint32_t s = 0; s < rule->states; s++) {
        tdm_label(t->m, rule->states == 1 ? "momentum_buffer" : state_names[s]);
        *state_of(state, s) = tdm_value_like(t->m, t->parameters[i]);
    }
}

/* A state of bitsandbytes. Paged ones are cudaMallocManaged, which is not in the allocator: the
 * driver has them on the host where the device is full, so they count as host memory. */
static struct tdm_eager_value *bnb_state(struct tdm_torch_model *t, uint64_t elements,
                                         uint16_t bytes, bool paged)
{
    if (!paged || elements < FEWEST_PAGED)
        return tdm_value_new(t->m, elements, 1, bytes);
    tdm_host_take(t->m, tdm_size_mul(elements, bytes));
    return NULL;
}

void tdm_torch_init_bnb(struct tdm_torch_model *t, enum tdm_torch_optimizer optimizer,
                        uint64_t elements, struct torch_state *state)
{
    const struct rule *rule = &rules[optimizer];
    bool wide = rule->kind == STATES_FP32 || elements < FEWEST_8BIT;
    for (uint32_t s = 0; s < rule->states && !wide && t->state_codes[s] == NULL; s++) {
        tdm_label(t->m, "qmap");
        t->state_codes[s] = tdm_value_new(t->m, STATE_CODES, 1, FP32);
    }
    for (uint32_t s = 0; s < rule->states; s++) {
        tdm_label(t->m, state_names[s]);
        *state_of(state, s) = bnb_state(t, elements, wide ? FP32 : INT8, rule->paged);
    }
    for (uint32_t s = 0; s < rule->states && !wide; s++) {
        tdm_label(t->m, "absmax");
        state->scales[s] = tdm_value_new(t->m, tdm_size_ceil_div(elements, STATE_BLOCK), 1, FP32);
    }
}

static bool is_torchao(const struct rule *rule)
{
    return rule->kind >= STATES_4BIT;
}

/* Elements of a block of a parameter's states; 0: they are not narrow. */
static uint64_t torchao_block(const struct tdm_torch_model *t, uint32_t i, const struct rule *rule)
{
    const uint64_t elements = tdm_value_elements(t->parameters[i]);
    const uint64_t block = rule->kind == STATES_4BIT ? BLOCK_4BIT : BLOCK_8BIT;
    return elements >= FEWEST_NARROW && elements % block == 0 ? block : 0;
}

/* OptimState4bit.zeros, OptimState8bit.zeros and OptimStateFp8.zeros; others are like their
 * parameter. */
static void init_torchao(struct tdm_torch_model *t, uint32_t i, const struct rule *rule)
{
    struct torch_state *state = &t->states[i];
    const uint64_t elements = tdm_value_elements(t->parameters[i]),
                   block = torchao_block(t, i, rule);
    const bool four = rule->kind == STATES_4BIT;
    for (uint32_t s = 0; s < rule->states; s++) {
        tdm_label(t->m, state_names[s]);
        *state_of(state, s) = block > 0
                                  ? tdm_value_new(t->m, four ? elements / 2 : elements, 1, INT8)
                                  : tdm_value_like(t->m, t->parameters[i]);
        if (block == 0)
            continue;
        tdm_label(t->m, "scale");
        state->scales[s] = tdm_value_new(t->m, elements / block, 1, FP32);
        if (rule->kind != STATES_FP8)
            state->tables[s] = tdm_value_new(t->m, four ? VALUES_4BIT : STATE_CODES, 1, FP32);
    }
}

/* The compiled step of a parameter: a block's largest value is looked for in the new states in
 * fp32, which are read again to be quantized, and of 4 bits all codes, of 64 bits, are made before
 * neighbours are joined (torchao/optim/adam.py single_param_adam, subclass_4bit.py). Of fp8 the new
 * codes are made in one kernel. Measured: tests/data/own_peaks.csv, y21 to y23 and z11 to z13. */
static void step_torchao(struct tdm_torch_model *t, uint32_t i, const struct rule *rule)
{
    const uint64_t elements = tdm_value_elements(t->parameters[i]),
                   block = torchao_block(t, i, rule);
    struct tdm_eager_value *made[6] = {NULL};
    if (block == 0)
        return;
    tdm_label(t->m, "single_param_adam");
    for (unsigned s = 0; s < 2; s++) {
        made[s] = tdm_value_new(t->m, elements, 1, rule->kind == STATES_FP8 ? INT8 : FP32);
        made[2 + s] = tdm_value_new(t->m, elements / block, 1, FP32);
        made[4 + s] = rule->kind == STATES_4BIT ? tdm_value_new(t->m, elements, 1, INT64) : NULL;
    }
    for (unsigned s = 6; s-- > 0;)
        tdm_drop(t->m, made[s]);
}

bool tdm_torch_steps(const struct tdm_torch_model *t, uint32_t i)
{
    const struct tdm_wrapper *w = t->settings.wrapper;
    return t->parameters[i]->grad != NULL && (w->owns_states == NULL || w->owns_states(t, i));
}

/* The same, but not those that Muon steps. */
static bool trained(const struct tdm_torch_model *t, uint32_t i)
{
    return tdm_torch_steps(t, i) &&
           !(t->settings.optimizer == TDM_TORCH_MUON && t->states[i].matrix);
}

/* The square roots of all second moments: one new tensor each, until the end of the step. */
static void foreach_roots(struct tdm_torch_model *t)
{
    struct tdm_eager_value **roots = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    if (roots == NULL)
        tdm_eager_no_memory(t->m);
    tdm_label(t->m, "exp_avg_sq.sqrt()");
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (trained(t, i))
            roots[i] = tdm_value_like(t->m, t->states[i].second);
    for (uint32_t i = t->parameter_count; i-- > 0;)
        tdm_drop(t->m, roots[i]);
    free(roots);
}

/* To torch 2.0 the denominators, roots plus eps, are new tensors too. Parameters of one dtype are a
 * group; a group's tensors live until the next one has made its own (torch 2.0, optim/adamw.py
 * _multi_tensor_adamw). */
static void foreach_denominators(struct tdm_torch_model *t)
{
    static const uint16_t others[] = {[BF16] = FP32, [FP32] = BF16};
    struct tdm_eager_value **made[2];
    uint16_t bytes = 0;
    for (unsigned kind = 0; kind < 2; kind++)
        if ((made[kind] = calloc(t->parameter_count, sizeof(struct tdm_eager_value *))) == NULL)
            tdm_eager_no_memory(t->m);
    for (uint32_t i = 0; i < t->parameter_count && bytes == 0; i++)
        if (trained(t, i))
            bytes = t->parameters[i]->element_bytes;
    tdm_label(t->m, "exp_avg_sq.sqrt()");
    for (unsigned group = 0; group < 2 && bytes > 0; group++, bytes = others[bytes])
        for (unsigned kind = 0; kind < 2; kind++) {
            for (uint32_t i = 0; i < t->parameter_count; i++)
                if (trained(t, i) && t->parameters[i]->element_bytes == bytes)
                    made[kind][i] = tdm_value_like(t->m, t->states[i].second);
            for (uint32_t i = 0; i < t->parameter_count; i++)
                if (made[kind][i] != NULL && made[kind][i]->element_bytes != bytes) {
                    tdm_drop(t->m, made[kind][i]);
                    made[kind][i] = NULL;
                }
        }
    for (unsigned kind = 2; kind-- > 0; free(made[kind]))
        for (uint32_t i = 0; i < t->parameter_count; i++)
            tdm_drop(t->m, made[kind][i]);
}

#define NORM_CHUNK 65536u /* elements of which a thread block takes the norm */

void tdm_torch_clip(struct tdm_torch_model *t)
{
    struct tdm_eager *m = t->m;
    struct tdm_eager_value **norms = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    uint64_t chunks = 0, count = 0;
    if (norms == NULL)
        tdm_eager_no_memory(m);
    m->label = (struct tdm_label){.name = "clip_grad_norm_", .layer = TDM_NO_LAYER};
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        const struct tdm_eager_value *grad = t->parameters[i]->grad;
        if (grad == NULL)
            continue;
        uint64_t own = tdm_size_ceil_div(tdm_value_elements(grad), NORM_CHUNK);
        chunks = own > chunks ? own : chunks;
        count++;
    }
    struct tdm_eager_value *partial = tdm_value_new(m, count, chunks, FP32);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (t->parameters[i]->grad != NULL)
            norms[i] = tdm_value_new(m, 1, 1, t->parameters[i]->grad->element_bytes);
    tdm_drop(m, partial);
    struct tdm_eager_value *stacked = tdm_value_new(m, count, 1, FP32);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        tdm_drop(m, norms[i]);
    tdm_drop(m, stacked);
    free(norms);
}

static void make_states(struct tdm_torch_model *t, uint32_t i, const struct rule *rule)
{
    if (rule->states == 0 || !trained(t, i) || t->states[i].made)
        return;
    t->states[i].made = true;
    if (rule->kind == STATES_OF_TORCH)
        init_torch(t, i, rule);
    else if (is_torchao(rule))
        init_torchao(t, i, rule);
    else
        tdm_torch_init_bnb(t, t->settings.optimizer, tdm_value_elements(t->parameters[i]),
                           &t->states[i]);
}

/* The number of a leaf among the parameters; their count: it is none, as an input that a reentrant
 * checkpoint detached. */
static uint32_t number_of(const struct tdm_torch_model *t, const struct tdm_eager_value *leaf)
{
    uint32_t i = 0;
    while (i < t->parameter_count && t->parameters[i] != leaf)
        i++;
    return i;
}

/* An optimizer for each parameter: torchtune training/memory.py register_optim_in_bwd_hooks; GaLore
 * torchrun_main.py optimizer_hook. */
void tdm_torch_step_ready(void *model, struct tdm_eager_value *leaf)
{
    struct tdm_torch_model *t = model;
    const struct tdm_label label = t->m->label;
    const enum tdm_method_category category = t->m->category;
    const uint32_t i = number_of(t, leaf);
    if (i == t->parameter_count || t->m->partial_gradients)
        return;
    t->m->category = TDM_METHOD_OPTIMIZER;
    make_states(t, i, &rules[t->settings.optimizer]);
    if (is_torchao(&rules[t->settings.optimizer]))
        step_torchao(t, i, &rules[t->settings.optimizer]);
    if (t->settings.optimizer == TDM_TORCH_ADAMW_FOREACH) {
        tdm_label(t->m, "exp_avg_sq.sqrt()");
        tdm_drop(t->m, tdm_value_like(t->m, t->states[i].second));
    }
    tdm_torch_single_step(t, i);
    tdm_drop(t->m, leaf->grad);
    leaf->grad = NULL;
    t->m->category = category;
    t->m->label = label;
}

/* ---- torchao's CPUOffloadOptimizer (torchao/optim/cpu_offload.py) ---- */

#define FEWEST_OFFLOADED 4096u /* elements; parameters with less are stepped on the GPU */

static bool is_offloaded(const struct tdm_torch_model *t, uint32_t i)
{
    return t->parameters[i]->requires_grad &&
           tdm_value_elements(t->parameters[i]) >= FEWEST_OFFLOADED;
}

/* Copies are taken to be done when the next memory is asked for. */
void tdm_torch_send_ready(void *model, struct tdm_eager_value *leaf)
{
    struct tdm_torch_model *t = model;
    if (leaf->grad == NULL || tdm_value_elements(leaf) < FEWEST_OFFLOADED ||
        number_of(t, leaf) == t->parameter_count)
        return;
    tdm_drop(t->m, leaf->grad);
    leaf->grad = NULL;
}

/* Parameters and gradients have pinned copies; an optimizer for each has its states on the host. */
static void step_on_host(struct tdm_torch_model *t, const struct rule *rule)
{
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        const uint64_t bytes =
            tdm_size_mul(tdm_value_elements(t->parameters[i]), t->parameters[i]->element_bytes);
        if (!is_offloaded(t, i)) {
            make_states(t, i, rule);
            continue;
        }
        if (t->states[i].made)
            continue;
        t->states[i].made = true;
        for (unsigned copy = 0; copy < 2; copy++)
            tdm_host_take_pinned(t->m, bytes);
        tdm_host_take(t->m, rule->states * bytes);
    }
}

void tdm_torch_optimizer_step(struct tdm_torch_model *t)
{
    enum tdm_torch_optimizer kind = t->settings.optimizer;
    const struct rule *rule = &rules[kind];
    if (t->settings.wrapper == &tdm_fsdp_wrapper && t->settings.fsdp.offload) {
        tdm_fsdp_step_on_host(t, rule->states);
        return;
    }
    t->m->category = TDM_METHOD_OPTIMIZER;
    t->m->label = (struct tdm_label){.name = "momentum_buffer", .layer = TDM_NO_LAYER};
    if (t->settings.host_optimizer != TDM_HOST_NOTHING) {
        step_on_host(t, rule);
        t->m->category = TDM_METHOD_WORKSPACE;
        return;
    }
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        make_states(t, i, rule);
        if (is_torchao(rule) && tdm_torch_steps(t, i))
            step_torchao(t, i, rule);
    }
    if (kind == TDM_TORCH_ADAMW_FOREACH && t->settings.release == TDM_RELEASE_2_0)
        foreach_denominators(t);
    else if (kind == TDM_TORCH_ADAMW_FOREACH || kind == TDM_TORCH_MUON)
        foreach_roots(t);
    tdm_torch_single_steps(t);
    t->m->category = TDM_METHOD_WORKSPACE;
}

void tdm_torch_zero_grad(struct tdm_torch_model *t)
{
    const struct tdm_torch_settings *s = &t->settings;
    if (s->grads == TDM_GRADS_HELD ||
        (s->grads == TDM_GRADS_UNSAID && s->optimizer == TDM_TORCH_NO_OPTIMIZER))
        return;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        tdm_drop(t->m, t->parameters[i]->grad);
        t->parameters[i]->grad = NULL;
    }
}
