/* SPDX-License-Identifier: Apache-2.0 */
/* Units of fully_shard (FSDP2): when each is gathered, resharded and reduced. Every layer is a
 * unit. The root module is a unit of all other parameters. With units=layers+ends, as in
 * torchtitan since July 2025, embed_tokens and [norm, lm_head] are units instead (one if they are
 * tied), and the root module has no parameters of its own. Sources:
 * torch/distributed/fsdp/_fully_shard/_fsdp_state.py (_lazy_init, _pre_forward, _post_forward,
 * _register_group_forward_hooks, _root_post_backward_final_callback), _fsdp_param_group.py
 * (_backward_prefetch, finalize_backward); torchtitan/distributed/fsdp.py (apply_fsdp_to_decoder).
 */
#include "methods/divisors.h"
#include "methods/method.h"
#include "methods/torch/parts.h"

#include <inttypes.h>
#include <stdlib.h>

bool tdm_fsdp_checkpoints_units(const struct tdm_torch_settings *s)
{
    return s->wrapper == &tdm_fsdp_wrapper && s->fsdp.version_1 && s->fsdp.checkpoints_units &&
           s->checkpointing == TDM_CHECKPOINTING_REENTRANT;
}

bool tdm_fsdp_widens_adapters(const struct tdm_torch_settings *s)
{
    return s->wrapper == &tdm_fsdp_wrapper && s->fsdp.version_1 && s->lora_rank > 0 && s->peft &&
           !s->fp32_weights;
}

/* The unit after the layers: the root module, or the unit of the head. */
static uint32_t last_group(const struct tdm_torch_model *t)
{
    return t->config->layers;
}

static bool has_embedding_group(const struct tdm_torch_model *t)
{
    return t->settings.fsdp.units_of_ends && !t->config->tied;
}

/* The group that contains the embedding. */
static uint32_t embedding_group(const struct tdm_torch_model *t)
{
    return last_group(t) + (has_embedding_group(t) ? 1 : 0);
}

/* The group of a module's parameters. */
static uint32_t group_of(const struct tdm_torch_model *t, uint32_t module)
{
    if (t->settings.fsdp.one_unit)
        return last_group(t);
    if (module >= TDM_MODULE_FIRST_LAYER) {
        const uint32_t number = (module - TDM_MODULE_FIRST_LAYER) / TDM_MODULES_A_LAYER;
        return module == tdm_layer_module(number, TDM_MODULE_EXPERTS)
                   ? tdm_fsdp_experts_group(t->config->layers, number)
                   : number;
    }
    return module == TDM_MODULE_EMBEDDING ? embedding_group(t) : last_group(t);
}

static void free_groups(void *state)
{
    struct torch_fsdp *f = state;
    free(f->wholes);
    free(f->group_of);
    free(f->spans);
    free(f->whole);
    free(f->all_reduced);
    free(f->flats);
    free(f->gathered);
    free(f->inputs);
    free(f);
}

static void *create_groups(struct tdm_torch_model *t, uint32_t most_parameters)
{
    struct torch_fsdp *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return NULL;
    f->groups = tdm_fsdp_experts_group(
        t->config->layers, tdm_fsdp_expert_ranks(&t->settings) > 1 ? t->config->layers : 0);
    f->wholes = calloc(most_parameters, sizeof(struct tdm_eager_value *));
    f->group_of = calloc(most_parameters, sizeof(*f->group_of));
    f->spans = calloc(f->groups, sizeof(*f->spans));
    f->whole = calloc(f->groups, sizeof(*f->whole));
    f->gathered = calloc(f->groups, sizeof(struct tdm_eager_value *));
    f->all_reduced = calloc(f->groups, sizeof(struct tdm_eager_value *));
    f->flat_count = 2 * (t->config->layers + 2);
    f->flats = calloc(f->flat_count, sizeof(*f->flats));
    f->inputs = calloc(t->config->layers + 2, sizeof(struct tdm_eager_value *));
    if (f->wholes != NULL && f->group_of != NULL && f->spans != NULL && f->whole != NULL &&
        f->gathered != NULL && f->all_reduced != NULL && f->flats != NULL && f->inputs != NULL)
        return f;
    free_groups(f);
    return NULL;
}

static struct tdm_eager_value *make_shard(struct tdm_torch_model *t, uint32_t module, uint64_t rows,
                                          uint64_t columns, uint16_t element_bytes, bool trained)
{
    uint32_t group = group_of(t, module);
    return t->settings.fsdp.version_1
               ? tdm_fsdp1_parameter(t, group, rows, columns, element_bytes, trained)
               : tdm_fsdp_shard_new(t, group, rows, columns, element_bytes, trained);
}

/* For a model created on the GPU: all parameters exist first, then they are sharded unit by unit.
 */
static void shard(struct tdm_torch_model *t)
{
    if (t->settings.fsdp.version_1)
        tdm_fsdp1_start(t);
    if (!t->settings.fsdp.shards_on_gpu)
        return;
    struct tdm_eager_value **whole = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    if (whole == NULL)
        tdm_eager_no_memory(t->m);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        whole[i] =
            tdm_value_new(t->m, tdm_fsdp_of(t)->wholes[i]->rows, tdm_fsdp_of(t)->wholes[i]->columns,
                          t->parameters[i]->element_bytes);
    if (has_embedding_group(t))
        tdm_fsdp_move(t, embedding_group(t), whole);
    if (t->settings.fsdp.units_of_ends)
        tdm_fsdp_move(t, last_group(t), whole);
    for (uint32_t group = 0; group < t->config->layers; group++)
        tdm_fsdp_move(t, group, whole);
    if (!t->settings.fsdp.units_of_ends)
        tdm_fsdp_move(t, last_group(t), whole);
    free(whole);
    if (t->settings.empty_cache)
        tdm_torch_empty_cache(t->m->allocator);
}

/* ---- forward ---- */

/* FSDP 1 never reshards the root after the forward. */
static void post_forward(struct tdm_torch_model *t, uint32_t group)
{
    if (t->settings.fsdp.version_1 && group == last_group(t))
        return;
    if (t->settings.fsdp.reshard == TDM_RESHARD_YES ||
        (t->settings.fsdp.reshard == TDM_RESHARD_DEFAULT && group != last_group(t)))
        tdm_fsdp_reshard(t, group);
}

/* ---- backward ---- */

/* Under expert parallelism torchtitan says what is gathered ahead: with a layer its experts. */
static void gather_ahead(struct tdm_torch_model *t, uint32_t group)
{
    tdm_fsdp_gather(t, group);
    if (group < last_group(t) && tdm_fsdp_expert_ranks(&t->settings) > 1 &&
        t->config->layer_kinds[group].experts)
        tdm_fsdp_gather(t, tdm_fsdp_experts_group(t->config->layers, group));
}

/* Before the embedding or a layer runs forward: what comes next. Of the first layer experts wait.
 */
static void prefetch(struct tdm_torch_model *t, uint32_t group)
{
    if (tdm_fsdp_expert_ranks(&t->settings) == 1)
        return;
    if (group < last_group(t))
        gather_ahead(t, group + 1);
    else if (group > last_group(t))
        tdm_fsdp_gather(t, 0);
}

/* The group that ran before it in the forward. */
static uint32_t previous_group(const struct tdm_torch_model *t, uint32_t group)
{
    if (group > last_group(t)) /* what runs before experts was gathered with their layer */
        return TDM_FSDP_NO_GROUP;
    if (group > 0)
        return group - 1;
    return has_embedding_group(t) ? embedding_group(t) : TDM_FSDP_NO_GROUP;
}

static void pre_backward(struct tdm_torch_model *t, uint32_t group)
{
    tdm_fsdp_unshard(t, group, false);
    uint32_t next = previous_group(t, group);
    /* A unit in a checkpoint had no graph in its forward, so it is not marked for a prefetch. */
    if (next == TDM_FSDP_NO_GROUP || tdm_fsdp_checkpoints_units(&t->settings))
        return;
    if (group == last_group(t))
        tdm_fsdp_gather(t, next);
    else
        gather_ahead(t, next);
}

static void output_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    pre_backward(node->context, (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

static void input_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    tdm_fsdp_post_backward(node->context, (uint32_t)node->facts[0]);
    results[0] = tdm_take(grads[0]);
}

static const struct tdm_eager_op of_output = {"FsdpPreBackward", false, output_backward},
                                 of_input = {"RegisterPostBackwardFunctionBackward", false,
                                             input_backward};

/* ---- hooks ---- */

static void before_forward(struct tdm_torch_model *t)
{
    if (t->settings.fsdp.version_1)
        tdm_fsdp1_init(t);
    if (!t->settings.fsdp.units_of_ends)
        tdm_fsdp_unshard(t, last_group(t), true);
}

/* A unit that contains both head and embedding is entered with the embedding. Its input is ids,
 * which need no gradient. */
static struct tdm_eager_value *enter_unit(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *x)
{
    uint32_t group = group_of(t, module);
    if ((module == TDM_MODULE_EMBEDDING && !t->settings.fsdp.units_of_ends) ||
        (module == TDM_MODULE_HEAD && !has_embedding_group(t)) || t->settings.fsdp.one_unit ||
        t->m->stopped)
        return x;
    tdm_fsdp_unshard(t, group, true);
    prefetch(t, group);
    if (tdm_fsdp_checkpoints_units(&t->settings) && t->m->grad_enabled)
        tdm_fsdp1_hold_input(t, group, x);
    return x == NULL ? NULL : tdm_replace(t->m, x, tdm_mark(t->m, &of_input, group, t, x));
}

/* If a loss reads the head's weight without running the module, the head is never left. The unit
 * then has no post-forward and keeps its parameters. */
static struct tdm_eager_value *leave_unit(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *y)
{
    uint32_t group = group_of(t, module);
    if ((module == TDM_MODULE_EMBEDDING && !has_embedding_group(t)) ||
        (module == TDM_MODULE_HEAD && !t->settings.fsdp.units_of_ends) ||
        t->settings.fsdp.one_unit || t->m->stopped)
        return y;
    /* Experts that a checkpoint runs again stay (FSDPParamGroup.post_forward). */
    if (!t->m->in_backward || t->settings.fsdp.version_1)
        post_forward(t, group);
    return tdm_replace(t->m, y, tdm_mark(t->m, &of_output, group, t, y));
}

static void after_forward(struct tdm_torch_model *t)
{
    struct torch_fsdp *f = t->wrapped;
    if (!t->settings.fsdp.units_of_ends)
        post_forward(t, last_group(t));
    tdm_drop(t->m, f->kept);
    f->kept = NULL;
}

static void before_backward(struct tdm_torch_model *t)
{
    if (!t->settings.fsdp.units_of_ends)
        pre_backward(t, last_group(t));
}

/* Units whose input needs no gradient have had no post-backward yet. They run it here, in module
 * order. */
static void after_backward(struct tdm_torch_model *t)
{
    struct torch_fsdp *f = t->wrapped;
    tdm_fsdp_post_backward(t, embedding_group(t));
    for (uint32_t group = 0; group < f->groups; group++) {
        tdm_drop(t->m, f->gathered[group]); /* prefetched for a unit that had no backward */
        f->gathered[group] = NULL;
    }
    for (uint32_t group = 0; group < f->groups; group++)
        if (group != embedding_group(t) && tdm_fsdp_is_pending(t, group))
            tdm_fsdp_post_backward(t, group);
    tdm_drop(t->m, f->reducing);
    f->reducing = NULL;
    for (uint32_t group = 0; group < f->groups; group++) {
        tdm_drop(t->m, f->all_reduced[group]);
        f->all_reduced[group] = NULL;
    }
    if (t->settings.fsdp.version_1)
        tdm_fsdp1_finish(t, embedding_group(t) + 1);
    f->gradients_on_host = t->settings.fsdp.offload;
}

/* TRL's prepare_fsdp (trl/models/utils.py): FSDP 1 wraps the layers of a second model as those of
 * the first, but fully_shard is called on the whole alone, which so is gathered at once. The whole
 * is moved to the GPU first. accelerate gives reshard_after_forward as yes or no. */
static void share_second(const struct tdm_torch_settings *first, struct tdm_torch_settings *second)
{
    second->wrapper = first->wrapper;
    second->ranks = first->ranks;
    second->fsdp = first->fsdp;
    second->fsdp.one_unit = !first->fsdp.version_1;
    second->fsdp.units_of_ends = second->fsdp.gathers_float8 = false;
    second->fsdp.shards_on_gpu = !first->fsdp.version_1 && !first->fsdp.offload;
    second->empty_cache = true;
    if (first->fsdp.reshard == TDM_RESHARD_DEFAULT)
        second->fsdp.reshard = TDM_RESHARD_YES;
}

/* ---- keys, limits and costs ---- */

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define MOST_RANKS 65536u

/* A mesh of two dimensions has a process group for each. */
static enum tdm_status read_replicas(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    enum tdm_status status = tdm_key_read_count(key, value, settings, err);
    if (status == TDM_OK && settings->torch.fsdp.replicas > 1 &&
        settings->torch.wrapper == &tdm_fsdp_wrapper)
        settings->communicators++;
    return status;
}

static bool is_sharded(const struct tdm_key_case *c)
{
    return c->settings->torch.wrapper == &tdm_fsdp_wrapper;
}

static bool is_mixture(const struct tdm_key_case *c)
{
    return c->model->experts.count > 0;
}

static bool is_shared(const struct tdm_key_case *c)
{
    return c->settings->torch.wrapper != &tdm_no_wrapper;
}

static bool runs_units_again(const struct tdm_key_case *c)
{
    const struct tdm_torch_settings *torch = &c->settings->torch;
    return torch->wrapper == &tdm_fsdp_wrapper && torch->fsdp.version_1 &&
           torch->checkpointing == TDM_CHECKPOINTING_REENTRANT;
}

static bool was_on_gpu(const struct tdm_key_case *c)
{
    return !is_sharded(c) || c->settings->torch.fsdp.shards_on_gpu;
}

static bool casts_tensorwise(const struct tdm_key_case *c)
{
    return c->settings->torch.float8 == TDM_FLOAT8_TENSORWISE;
}

static const struct tdm_key_need needs_tensorwise = {"without float8_recipe=tensorwise",
                                                     casts_tensorwise};
static const struct tdm_key_need needs_shards = {"without sharding=fsdp", is_sharded};
static const struct tdm_key_need needs_experts = {"without experts", is_mixture};
static const struct tdm_key_need needs_sharing = {"with sharding=none", is_shared};
static const struct tdm_key_need needs_units_again = {
    "without fsdp_version=1 and checkpointing=on-reentrant", runs_units_again};
static bool is_version_1(const struct tdm_key_case *c)
{
    return is_sharded(c) && c->settings->torch.fsdp.version_1;
}

static bool has_nf4(const struct tdm_key_case *c)
{
    return c->settings->torch.quantization == TDM_QUANTIZATION_NF4;
}

static const struct tdm_key_need needs_nf4 = {"without quantization=nf4", has_nf4};
static const struct tdm_key_need needs_version_1 = {"without fsdp_version=1", is_version_1};
static const struct tdm_key_need needs_whole_first = {"without init_device=cuda", was_on_gpu};

const struct tdm_method_key tdm_keys_fsdp[] = {
    {"reshard_after_forward", "no|yes|default", "default",
     "parameters are gathered for the forward, and again for the backward; default (None): not of the last unit",
     tdm_key_read_choice, FIELD(torch.fsdp.reshard), .compared = "yes", .needs = {&needs_shards}},
    {"fsdp_version", "2|1", "2", "2: fully_shard; 1: FullyShardedDataParallel, flat parameters",
     tdm_key_read_switch, FIELD(torch.fsdp.version_1), .needs = {&needs_shards}},
    {"checkpoint_of", "layers|units", "layers",
     "layers inside of units, as activation_checkpointing of fsdp_config; units, as "
     "gradient_checkpointing of a Trainer",
     tdm_key_read_switch, FIELD(torch.fsdp.checkpoints_units), .needs = {&needs_units_again}},
    {"units", "layers|layers+ends", "layers",
     "what fully_shard is called on: layers and the whole; or embed_tokens and [norm, lm_head] too",
     tdm_key_read_switch, FIELD(torch.fsdp.units_of_ends), .needs = {&needs_shards}},
    {"reduce_dtype", "weights|bf16|fp32", "weights",
     "MixedPrecisionPolicy(reduce_dtype): of gradients that are reduced; weights: as weights_dtype",
     tdm_key_read_choice, FIELD(torch.fsdp.reduce_dtype), .needs = {&needs_shards}},
    {"init_device", "meta|cuda", "meta", "where the model is when fully_shard is called",
     tdm_key_read_switch, FIELD(torch.fsdp.shards_on_gpu), .needs = {&needs_shards}},
    {"sync_module_states", "no|yes", "no",
     "of FSDP 1: units come from host memory whole, one after the other, and are sent to all ranks "
     "and divided on the GPU, as a Trainer's are",
     tdm_key_read_switch, FIELD(torch.fsdp.moves_units), .needs = {&needs_version_1}},
    {"offload_policy", "none|cpu", "none",
     "cpu: CPUOffloadPolicy, shards, their gradients and the optimizer in host memory",
     tdm_key_read_switch, FIELD(torch.fsdp.offload), .needs = {&needs_shards}},
    {"enable_fsdp_float8_all_gather", "no|yes", "no",
     "projections with float8_recipe=tensorwise are gathered in 8 bits", tdm_key_read_switch,
     FIELD(torch.fsdp.gathers_float8), .needs = {&needs_shards, &needs_tensorwise}},
    {"expert_parallel_degree", "N", "1",
     "of these GPUs that divide the experts of every layer, as in torchtitan; the others shard them",
     tdm_key_read_count, FIELD(torch.fsdp.expert_ranks), .least = 1, .most = MOST_RANKS,
     .needs = {&needs_shards, &needs_experts}},
    {"dp_replicate_size", "N", "1",
     "HSDP: groups of GPUs that have all shards each; between them gradients are all-reduced",
     read_replicas, FIELD(torch.fsdp.replicas), .least = 1, .most = MOST_RANKS,
     .needs = {&needs_shards}},
    {"bnb_4bit_quant_storage", "bf16|uint8", "bf16",
     "of weights of 4 bits; uint8: bytes, which accelerate leaves whole on every GPU",
     tdm_key_read_switch, FIELD(torch.fsdp.leaves_nf4), .needs = {&needs_shards, &needs_nf4}},
    {"empty_cache", "no|yes", "yes", "torch.cuda.empty_cache() before the first step",
     tdm_key_read_switch, FIELD(torch.empty_cache), .needs = {&needs_sharing, &needs_whole_first}},
    {.name = NULL},
};

/* Of experts that a context-parallel rank has parts of, nothing is known. */
static const struct tdm_method_key keys_parts[] = {
    {"ep_size", "N", "1",
     "transformers' expert parallelism (tp_size with enable_expert_parallel): GPUs that divide the "
     "experts and share a batch; the others share shards",
     tdm_key_read_count, FIELD(torch.fsdp.expert_parts), .least = 1, .most = MOST_RANKS,
     .needs = {&needs_shards, &needs_experts}},
    {.name = NULL},
};

/* What torchtitan's mixture goes with, here or there. */
static enum tdm_status check_experts(const struct tdm_model *model,
                                     const struct tdm_torch_settings *s, struct tdm_error *err)
{
    const uint64_t degree = s->fsdp.expert_ranks, shards = tdm_fsdp_expert_shards(s);
    char divisors[TDM_DIVISORS_BYTES];
    if (degree <= 1 || model->experts.count == 0)
        return TDM_OK;
    const uint64_t common = tdm_common_divisor(shards, model->experts.count);
    if (common % degree != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set expert_parallel_degree: %" PRIu64 " does not divide %" PRIu64
                 " GPUs that share shards and %" PRIu32 " experts",
                 degree, shards, model->experts.count);
        return tdm_hint(err, "degrees that do: %s",
                        tdm_divisors_format(common, 1, UINT64_MAX, divisors));
    }
    const char *what = s->fsdp.version_1       ? "fsdp_version=1"
                       : s->fsdp.shards_on_gpu ? "init_device=cuda"
                       : s->fsdp.offload       ? "offload_policy=cpu"
                       : s->lora_rank > 0      ? "lora_rank"
                       : s->checkpointing == TDM_CHECKPOINTING_REENTRANT
                           ? "checkpointing=on-reentrant"
                       : s->checkpointing == TDM_CHECKPOINTING_MODULES ? "checkpointing=modules"
                       : model->experts.shared_gate || model->experts.beside
                           ? "this family's experts, which torchtitan does not have,"
                           : NULL;
    return what == NULL
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE,
                          "--set expert_parallel_degree: with %s it is not modelled", what);
}

/* What transformers' expert parallelism goes with. */
static enum tdm_status check_parts(const struct tdm_model *model,
                                   const struct tdm_torch_settings *s, struct tdm_error *err)
{
    const uint64_t parts = s->fsdp.expert_parts;
    char divisors[TDM_DIVISORS_BYTES];
    if (parts <= 1 || model->experts.count == 0)
        return TDM_OK;
    const uint64_t common = tdm_common_divisor(s->ranks, model->experts.count);
    if (common % parts != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--set ep_size: %" PRIu64 " does not divide %" PRIu64 " GPUs and %" PRIu32
                 " experts",
                 parts, s->ranks, model->experts.count);
        return tdm_hint(err, "sizes that do: %s",
                        tdm_divisors_format(common, 1, UINT64_MAX, divisors));
    }
    const char *what = s->fsdp.version_1                 ? "fsdp_version=1"
                       : s->fsdp.expert_ranks > 1        ? "expert_parallel_degree"
                       : tdm_fsdp_replicas(&s->fsdp) > 1 ? "dp_replicate_size"
                       : tdm_tensor_ranks(s) > 1         ? "tensor_parallel_degree"
                       : model->experts.all_rows         ? "Llama 4, whose plan is another,"
                                                         : NULL;
    return what == NULL
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "--set ep_size: with %s it is not modelled", what);
}

#define FLAT "it steps matrices, and parameters of fsdp_version=1 are flat"

/* What optimizers do with shards was run on two CPUs (torch 2.11, bitsandbytes 0.50.2, transformers
 * 5.17, adam-mini 1.1.1, galore-torch 1.0). */
static enum tdm_status check_optimizer(const struct tdm_model *model,
                                       const struct tdm_torch_settings *torch,
                                       struct tdm_error *err)
{
    const enum tdm_torch_optimizer optimizer = torch->optimizer;
    const bool flat = torch->fsdp.version_1;
    const uint64_t ranks = tdm_fsdp_shards(torch);
    const char *why = NULL, *instead = NULL;
    if (optimizer >= TDM_TORCH_ADAMW_8BIT && torch->fsdp.offload) {
        why = "of offloaded shards only those of torch.optim are modelled, but Muon";
    } else if (optimizer >= TDM_TORCH_ADAMW_8BIT && optimizer <= TDM_TORCH_LION_32BIT && !flat) {
        why = "fully_shard has DTensors, which bitsandbytes refuses";
        instead = optimizer == TDM_TORCH_LION_8BIT || optimizer == TDM_TORCH_LION_32BIT
                      ? "--set fsdp_version=1"
                      : "--set optimizer=ao-adamw-8bit, which is torchao's, or fsdp_version=1";
    } else if (optimizer == TDM_TORCH_ADAFACTOR && !flat) {
        why = "fully_shard has DTensors, at which Adafactor of transformers fails";
        instead = "--set fsdp_version=1";
    } else if (optimizer == TDM_TORCH_MUON || optimizer == TDM_TORCH_ADAM_MINI) {
        const bool cuts = optimizer == TDM_TORCH_ADAM_MINI &&
                          (model->query_heads % ranks != 0 || model->kv_heads % ranks != 0);
        why = flat   ? FLAT
              : cuts ? "adam-mini views q and k by heads, which the GPUs do not divide"
              : optimizer == TDM_TORCH_MUON && tdm_fsdp_replicas(&torch->fsdp) > 1
                  ? "Muon with dp_replicate_size is not modelled"
                  : NULL;
    } else if (optimizer == TDM_TORCH_GALORE || optimizer == TDM_TORCH_GALORE_8BIT) {
        why = flat                                 ? FLAT
              : optimizer == TDM_TORCH_GALORE_8BIT ? "fully_shard has DTensors, which bitsandbytes "
                                                     "refuses"
              : tdm_fsdp_replicas(&torch->fsdp) > 1
                  ? "GaLore with dp_replicate_size is not modelled"
              : torch->fsdp.expert_ranks > 1 ? "GaLore with expert_parallel_degree is not "
                                               "modelled"
                                             : NULL;
        instead = optimizer == TDM_TORCH_GALORE_8BIT && !flat ? "--set optimizer=galore" : NULL;
    }
    if (why == NULL)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "--set optimizer: %s", why);
    return instead == NULL ? TDM_USAGE : tdm_hint(err, "%s", instead);
}

static enum tdm_status check(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err)
{
    const struct tdm_torch_settings *torch = &settings->torch;
    if (model->experts.count == 0)
        settings->torch.fsdp.expert_ranks = settings->torch.fsdp.expert_parts = 0;
    const uint64_t replicas = tdm_fsdp_replicas(&torch->fsdp);
    if (replicas > 1 && (torch->ranks % replicas != 0 || torch->ranks == replicas))
        return tdm_fail(err, TDM_USAGE,
                        "--set dp_replicate_size: %" PRIu64 " groups do not divide %" PRIu64
                        " GPUs into two or more each",
                        replicas, torch->ranks);
    const struct tdm_fsdp_settings *fsdp = &torch->fsdp;
    if (fsdp->version_1 && (fsdp->units_of_ends || fsdp->shards_on_gpu || fsdp->gathers_float8 ||
                            tdm_tensor_ranks(torch) > 1))
        return tdm_fail(err, TDM_USAGE,
                        "--set fsdp_version=1: it goes with units=layers, init_device=meta, "
                        "and without tensor parallelism and gathers in 8 bits");
    if (fsdp->leaves_nf4 && fsdp->version_1 && torch->quantization == TDM_QUANTIZATION_NF4)
        return tdm_fail(
            err, TDM_USAGE,
            "--set bnb_4bit_quant_storage: a flat parameter of fsdp_version=1 needs bf16");
    if (torch->fsdp.offload && torch->fsdp.shards_on_gpu)
        return tdm_fail(err, TDM_USAGE, "--set offload_policy=cpu: it goes with init_device=meta");
    if (tdm_fsdp_checkpoints_units(torch) && torch->checkpoint_every > 1)
        return tdm_fail(err, TDM_USAGE,
                        "--set checkpoint_of=units: it goes with checkpoint_every=1");
    if (torch->lora_rank > 0 && torch->peft && !torch->fp32_weights && fsdp->version_1 &&
        torch->adapter != TDM_ADAPTER_LORA)
        return tdm_fail(
            err, TDM_USAGE,
            "--set lora: fp32 adapters among bf16 weights are with fsdp_version=1 known "
            "of peft_type=LORA alone");
    if (torch->quantization == TDM_QUANTIZATION_NF4 && torch->fp32_weights && fsdp->version_1) {
        tdm_fail(err, TDM_USAGE,
                 "--set quantization: a flat parameter of fsdp_version=1 has one dtype, so nf4 "
                 "stored as bf16 among weights of fp32 fails");
        return tdm_hint(err, "load what is not quantized as bf16: --set weights_dtype=bf16");
    }
    if (tdm_fsdp_widens_adapters(torch) && (torch->modules_to_save != 0 || torch->dora))
        return tdm_fail(err, TDM_USAGE,
                        "--set fsdp_version=1: %s beside fp32 adapters among bf16 weights is not "
                        "modelled",
                        torch->dora ? "use_dora" : "modules_to_save");
    if (torch->quantization == TDM_QUANTIZATION_INT8) {
        tdm_fail(err, TDM_USAGE, "--set quantization: %s fails at bitsandbytes' parameters of int8",
                 fsdp->version_1 ? "FullyShardedDataParallel" : "fully_shard");
        return tdm_hint(err, "nf4, gptq and awq go with it; int8 with methods whose GPUs have all "
                             "weights: ddp, zero1, zero2");
    }
    enum tdm_status status = check_experts(model, torch, err);
    if (status == TDM_OK)
        status = check_parts(model, torch, err);
    if (model->experts.count > 0) /* meshes of experts have process groups of their own */
        settings->communicators +=
            (torch->fsdp.expert_ranks > 1 ? 2 : 0) + (tdm_expert_parts(torch) > 1 ? 1 : 0);
    if (status == TDM_OK)
        status = tdm_tensor_check(model, settings, err);
    return status == TDM_OK ? check_optimizer(model, torch, err) : status;
}

/* Number of parameters that are gathered again for the backward. */
static double gathered_again(const struct tdm_model *model, const struct tdm_fsdp_settings *s)
{
    static const enum tdm_role ends[] = {TDM_ROLE_EMBEDDING, TDM_ROLE_FINAL_NORM, TDM_ROLE_HEAD};
    const uint32_t units[] = {tdm_model_embedding_unit(model), tdm_model_head_unit(model),
                              tdm_model_head_unit(model)};
    double again = s->reshard == TDM_RESHARD_NO ? 0 : (double)model->parameters;
    for (unsigned i = 0; i < 3 && s->reshard == TDM_RESHARD_DEFAULT; i++) {
        const struct tdm_tensor *tensor = tdm_model_tensor(model, units[i], ends[i]);
        bool alone = s->units_of_ends && ends[i] == TDM_ROLE_EMBEDDING && !model->tied;
        if (tensor != NULL && !alone)
            again -= (double)tensor->rows * (double)tensor->columns;
    }
    return again;
}

/* Transformers' experts: what all ranks made of the same tokens is summed, and in the backward the
 * gradient of these. A batch is shared. */
static void sum_experts(const struct tdm_model *model, const struct tdm_torch_settings *s,
                        struct tdm_method_cost *cost)
{
    const double parts = (double)tdm_expert_parts(s);
    const struct tdm_gpu_group group = {tdm_expert_parts(s), 1, s->context.gpus_per_node};
    double layers = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        layers += model->layer_kinds[i].experts;
    tdm_traffic_add(&cost->exposed, group,
                    2 * (parts - 1) / parts * (2 + tdm_torch_forwards_again(model, s)) * layers *
                        (double)s->tokens * (double)s->batch * model->hidden * BF16);
    cost->sequences = (double)s->batch * (double)s->ranks / parts;
}

/* Parameters are gathered in bf16; gradients are reduced and scattered. Of replicas, whose ranks
 * are a group's apart, shards of gradients are all-reduced. */
static void add_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost)
{
    const struct tdm_torch_settings *s = &settings->torch;
    const uint64_t groups = tdm_fsdp_replicas(&s->fsdp), ranks = tdm_fsdp_shards(s),
                   tensor = tdm_tensor_ranks(s);
    const double replicas = (double)groups;
    const uint64_t parts = tdm_expert_parts(s);
    const struct tdm_gpu_group shards = {ranks, tensor * parts, s->context.gpus_per_node},
                               copies = {groups, ranks * tensor, s->context.gpus_per_node};
    double share = (double)(ranks - 1) / (double)ranks;
    const double shard_bytes = s->fp32_weights || (s->lora_rank > 0 && s->peft) ? FP32 : BF16;
    double whole = tdm_torch_gathered_elements(model, s) / (double)tensor;
    double again = gathered_again(model, &s->fsdp) / (double)tensor;
    if (s->fsdp.reshard != TDM_RESHARD_NO)
        again -= (double)model->parameters / (double)tensor - whole;
    double reduced = tdm_torch_trained_parameters(model, s) * shard_bytes / (double)tensor;
    if (parts > 1) {
        const double elsewhere = tdm_titan_elements(model) * (1 - 1 / (double)parts);
        whole -= elsewhere;
        again -= s->fsdp.reshard == TDM_RESHARD_NO ? 0 : elsewhere;
        reduced -= elsewhere * shard_bytes;
        sum_experts(model, s, cost);
    }
    if (tdm_fsdp_expert_ranks(s) > 1) { /* they have collectives of their own */
        const double experts = tdm_titan_elements(model) / (double)tensor;
        whole -= experts;
        again -= s->fsdp.reshard == TDM_RESHARD_NO ? 0 : experts;
        reduced -= experts * shard_bytes;
        tdm_titan_cost(model, settings, cost);
    }
    tdm_traffic_add(&cost->sent, shards, share * (whole + again) * BF16 + share * reduced);
    tdm_traffic_add(&cost->sent, copies, 2 * (replicas - 1) / replicas * reduced / (double)ranks);
    if (s->fsdp.offload) /* shards up for each gather, gradients down */
        cost->host_bytes += ((whole + again) * shard_bytes + reduced) / (double)ranks;
    tdm_tensor_cost(model, settings, cost);
}

static const char *assumption(const struct tdm_method_settings *settings)
{
    return settings->torch.fsdp.version_1 ? TDM_NOT_MEASURED
               "FSDP 1 as its source has it; adapters are one flat parameter of their "
               "layer"
                                          : NULL;
}

static const char *summary(const struct tdm_method_settings *settings)
{
    return settings->torch.fsdp.version_1
               ? "FullyShardedDataParallel (FSDP 1) around every layer and the whole: flat parameters, "
                 "gradients and states are shards"
               : NULL;
}

static const struct tdm_method_key *const tables[] = {tdm_keys_fsdp, tdm_keys_tensor, keys_parts,
                                                      NULL};

static const char *const without[] = {"bnb_keeps_inputs", NULL};

const struct tdm_wrapper tdm_fsdp_wrapper = {
    .name = "fsdp",
    .keys = tables,
    .without = without,
    .mixes_precision = true,
    .shards_quantized = true,
    .check = check,
    .assumption = assumption,
    .summary = summary,
    .cost = add_cost,
    .create = create_groups,
    .free = free_groups,
    .parameter = make_shard,
    .start = shard,
    .before_forward = before_forward,
    .after_forward = after_forward,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .share_second = share_second,
    .enter_unit = enter_unit,
    .leave_unit = leave_unit,
};
