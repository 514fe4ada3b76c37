/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of fully_shard (FSDP2). Parameters are shards. A group is gathered before it runs and
 * resharded after it; when its backward is done, gradients are reduced to shards. Sources:
 * torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (unshard, wait_for_unshard,
 * post_backward), _fsdp_collectives.py (foreach_all_gather, foreach_reduce). */
#include "base/size.h"
#include "methods/eager/float8.h"
#include "methods/torch/parts.h"

#include <stddef.h>
#include <stdlib.h>

struct torch_fsdp *tdm_fsdp_of(const struct tdm_torch_model *t)
{
    return t->wrapped;
}

/* Each shard keeps the dtype of its parameter. Of trained ones it is fp32 where weights are, and of
 * peft's adapters. Weights of 4 bits lie in bf16, as one column. */
static uint16_t shard_bytes(const struct tdm_torch_model *t)
{
    return t->settings.fp32_weights || t->wide_adapters ? FP32 : BF16;
}

static uint16_t bytes_of_new_shard(const struct tdm_torch_model *t, uint64_t rows, uint64_t columns,
                                   bool trained)
{
    const bool packed = t->quantized != NULL && !trained && columns == 1 && rows > 1;
    return packed || (!trained && !t->settings.fp32_weights) ||
                   (trained && tdm_torch_is_narrow(&t->settings))
               ? BF16
               : shard_bytes(t);
}

/* A shard of fp32 is cast to bf16 to be gathered; others are gathered as they are
 * (FSDPParam.init_dtype_attrs). */
static bool is_cast(const struct tdm_torch_model *t, uint32_t number)
{
    return t->parameters[number]->element_bytes != BF16;
}

static bool has_experts(const struct tdm_torch_model *t, uint32_t group)
{
    return group >= tdm_fsdp_experts_group(t->config->layers, 0);
}

/* Ranks that share a copy of a group's parameters: of experts those that have the same experts. */
static uint64_t shard_ranks(const struct tdm_torch_model *t, uint32_t group)
{
    return has_experts(t, group)
               ? tdm_fsdp_expert_shards(&t->settings) / tdm_fsdp_expert_ranks(&t->settings)
               : tdm_fsdp_shards(&t->settings);
}

/* Experts of more ranks than there are experts are divided by rows of each of them, so that ranks
 * have parts that do not lie together (torchtitan, apply_fsdp: Shard(1)). */
static bool is_scattered(const struct tdm_torch_model *t, uint32_t group)
{
    return has_experts(t, group) && shard_ranks(t, group) > 1 &&
           tdm_fsdp_expert_shards(&t->settings) > t->config->experts.count;
}

static uint64_t shard_rows(const struct tdm_torch_model *t, uint32_t group, uint64_t rows)
{
    const uint64_t ranks = shard_ranks(t, group);
    if (!has_experts(t, group) || is_scattered(t, group))
        return tdm_size_ceil_div(rows, ranks);
    const uint64_t local = t->config->experts.count / tdm_fsdp_expert_ranks(&t->settings);
    return tdm_size_ceil_div(local, ranks) * (rows / local);
}

static uint64_t bytes_of_shard(const struct tdm_torch_model *t, uint32_t number)
{
    return tdm_size_mul(tdm_value_elements(t->parameters[number]),
                        t->parameters[number]->element_bytes);
}

void tdm_fsdp_join(struct torch_fsdp *f, uint32_t number, uint32_t group)
{
    struct tdm_fsdp_span *span = &f->spans[group];
    f->group_of[number] = group;
    if (span->end == 0)
        span->first = number;
    span->end = number + 1;
}

struct tdm_eager_value *tdm_fsdp_shard_new(struct tdm_torch_model *t, uint32_t group, uint64_t rows,
                                           uint64_t columns, uint16_t element_bytes, bool trained)
{
    struct torch_fsdp *f = t->wrapped;
    bool vector = rows == 1; /* sharded by element */
    uint64_t part_rows = vector ? 1 : shard_rows(t, group, rows);
    tdm_fsdp_join(f, t->parameter_count, group);
    struct tdm_eager_value **slot = &f->wholes[t->parameter_count];
    bool later = t->settings.fsdp.shards_on_gpu || t->settings.fsdp.offload;
    struct tdm_eager_value *shard = tdm_torch_parameter(
        t, later ? 0 : part_rows, vector ? shard_rows(t, group, columns) : columns,
        bytes_of_new_shard(t, rows, columns, trained), trained);
    if (later) {
        tdm_value_vacate(t->m, shard);
        shard->rows = part_rows;
    }
    if (t->settings.fsdp.offload) /* FSDPParam.reset_sharded_param pins it */
        tdm_host_take_pinned(t->m, bytes_of_shard(t, t->parameter_count - 1));
    struct tdm_eager_value *whole = tdm_value_leaf(t->m, 0, columns, element_bytes, trained);
    tdm_value_vacate(t->m, whole); /* it has memory only while gathered */
    whole->rows = rows;
    return *slot = whole;
}

/* For a model created on the GPU: makes the shards of a group, then frees its parameters. */
void tdm_fsdp_move(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value **whole)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group)
            tdm_value_occupy(t->m, t->parameters[i]);
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group)
            tdm_drop(t->m, whole[i]);
}

/* Elements of a group: of all parameters, or (`reduced`) of those with a gradient. Frozen
 * parameters are gathered, but not reduced. */
static uint64_t group_elements(const struct tdm_torch_model *t, uint32_t group, bool reduced)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    uint64_t elements = 0;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && (!reduced || f->wholes[i]->grad != NULL))
            elements += tdm_value_elements(t->parameters[i]) * shard_ranks(t, group);
    return elements;
}

/* Gathers and the results of reductions have streams of their own. */
enum { STREAM_COMPUTE, STREAM_GATHER, STREAM_REDUCE };

static struct tdm_eager_value *new_buffer(struct tdm_torch_model *t, uint32_t stream,
                                          enum tdm_method_category category, uint64_t elements,
                                          uint16_t bytes)
{
    t->m->stream = stream;
    t->m->category = category;
    struct tdm_label label = t->m->label;
    t->m->label = (struct tdm_label){.name = stream == STREAM_GATHER   ? "all-gather buffer"
                                             : stream == STREAM_REDUCE ? "reduced gradients"
                                                                       : "reduce-scatter buffer",
                                     .layer = TDM_NO_LAYER};
    struct tdm_eager_value *buffer = tdm_value_new(t->m, elements, 1, bytes);
    t->m->label = label;
    t->m->category = TDM_METHOD_WORKSPACE;
    t->m->stream = STREAM_COMPUTE;
    return buffer;
}

/* Copies of offloaded shards, each of its own, in the dtype that is gathered: FSDPParam's
 * all_gather_inputs. */
static void bring_shards(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value **inputs)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group)
            continue;
        uint64_t elements = tdm_value_elements(t->parameters[i]);
        inputs[i] = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, elements,
                               t->parameters[i]->element_bytes);
        if (is_cast(t, i))
            inputs[i] =
                tdm_replace(t->m, inputs[i],
                            new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, elements, BF16));
    }
}

/* The all-gather of a group whose shards are in host memory. */
static struct tdm_eager_value *gather_offloaded(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_eager_value **inputs = calloc(t->parameter_count, sizeof(struct tdm_eager_value *));
    if (inputs == NULL)
        tdm_eager_no_memory(t->m);
    bring_shards(t, group, inputs);
    struct tdm_eager_value *gathered = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION,
                                                  group_elements(t, group, false), BF16);
    for (uint32_t i = 0; i < t->parameter_count; i++)
        tdm_drop(t->m, inputs[i]);
    free(inputs);
    return gathered;
}

/* Weights of the group that are gathered in 8 bits, or the others: elements of all ranks. */
static uint64_t gathered_elements(const struct tdm_torch_model *t, uint32_t group, bool float8)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    uint64_t elements = 0;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && f->wholes[i]->is_float8 == float8)
            elements += tdm_value_elements(t->parameters[i]) * shard_ranks(t, group);
    return elements;
}

/* Elements of a group's shards that are cast first, without those that go in 8 bits. */
static uint64_t cast_elements(const struct tdm_torch_model *t, uint32_t group)
{
    const struct torch_fsdp *f = tdm_fsdp_of(t);
    uint64_t elements = 0;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && !f->wholes[i]->is_float8 && is_cast(t, i))
            elements += tdm_value_elements(t->parameters[i]);
    return elements;
}

/* The all-gather of a group of which some weights go in 8 bits, as bytes. Their shards are cast one
 * after the other in the stream of gathers, and stay until all are in the buffer (torchao
 * float8/fsdp_utils.py fsdp_pre_all_gather; torch _fsdp_collectives.py foreach_all_gather). */
static struct tdm_eager_value *gather_float8(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    struct tdm_eager_value **inputs =
        calloc((size_t)t->parameter_count + 1, sizeof(struct tdm_eager_value *));
    if (inputs == NULL)
        tdm_eager_no_memory(t->m);
    t->m->stream = STREAM_GATHER;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && f->wholes[i]->is_float8)
            inputs[i] = tdm_float8_cast(t->m, t->parameters[i]);
    t->m->stream = STREAM_COMPUTE;
    uint64_t others = gathered_elements(t, group, false), cast = cast_elements(t, group);
    if (cast > 0)
        inputs[t->parameter_count] =
            new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, cast, BF16);
    struct tdm_eager_value *gathered =
        new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION,
                   gathered_elements(t, group, true) + others * BF16, 1);
    for (uint32_t i = 0; i <= t->parameter_count; i++)
        tdm_drop(t->m, inputs[i]);
    free(inputs);
    return gathered;
}

/* A rank that has all of a group gathers nothing (FSDPParamGroup.unshard). Of weights of 8 bits on
 * one GPU that is not modelled. */
static bool is_filled(const struct tdm_torch_model *t, uint32_t group)
{
    return shard_ranks(t, group) == 1 && gathered_elements(t, group, true) == 0;
}

/* Copies shards that are whole, one after the other, each from the host if it is there and in the
 * dtype that is computed with; a name holds the last one's until the next is made
 * (wait_for_unshard). */
static void fill(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    struct tdm_eager_value *brought = NULL, *cast = NULL;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group)
            continue;
        if (t->settings.fsdp.offload)
            brought =
                new_buffer(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION,
                           tdm_value_elements(t->parameters[i]), t->parameters[i]->element_bytes);
        if (t->settings.fsdp.offload && !is_cast(t, i))
            cast = tdm_replace(t->m, cast, tdm_take(brought));
        if (is_cast(t, i))
            cast = tdm_replace(t->m, cast,
                               new_buffer(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION,
                                          tdm_value_elements(t->parameters[i]), BF16));
        tdm_drop(t->m, brought);
        brought = NULL;
        tdm_value_occupy(t->m, f->wholes[i]);
    }
    tdm_drop(t->m, cast);
}

/* Copies what was gathered to the parameters. Parts that do not lie together go through copies of
 * all of them (foreach_all_gather_copy_out). */
static void copy_out(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    struct tdm_eager_value *copies[TITAN_WEIGHTS + 1] = {NULL};
    uint32_t count = 0;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group)
            continue;
        tdm_value_occupy(t->m, f->wholes[i]);
        if (is_scattered(t, group) && count < sizeof(copies) / sizeof(copies[0]))
            copies[count++] = new_buffer(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION,
                                         tdm_value_elements(f->wholes[i]), BF16);
    }
    while (count > 0)
        tdm_drop(t->m, copies[--count]);
}

/* Starts the all-gather of a group. Its input is the contiguous shards in bf16. */
void tdm_fsdp_gather(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    if (t->settings.fsdp.version_1) {
        tdm_fsdp1_gather(t, group);
        return;
    }
    if (f->whole[group] || f->gathered[group] != NULL || is_filled(t, group))
        return;
    if (t->settings.fsdp.offload) {
        f->gathered[group] = gather_offloaded(t, group);
        return;
    }
    if (gathered_elements(t, group, true) > 0) {
        f->gathered[group] = gather_float8(t, group);
        return;
    }
    uint64_t elements = group_elements(t, group, false), cast = cast_elements(t, group);
    struct tdm_eager_value *input = NULL;
    if (cast > 0)
        input = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, cast, BF16);
    f->gathered[group] = new_buffer(t, STREAM_GATHER, TDM_METHOD_COMMUNICATION, elements, BF16);
    tdm_drop(t->m, input);
}

/* Copies the gathered buffer to the parameters. */
void tdm_fsdp_unshard(struct tdm_torch_model *t, uint32_t group, bool forward)
{
    struct torch_fsdp *f = t->wrapped;
    if (f->whole[group])
        return;
    tdm_fsdp_gather(t, group);
    if (t->settings.fsdp.version_1)
        return;
    if (forward) {
        tdm_drop(t->m, f->kept);
        f->kept = NULL;
    }
    if (is_filled(t, group))
        fill(t, group);
    else
        copy_out(t, group);
    if (forward) /* held until the next group is gathered */
        f->kept = f->gathered[group];
    else
        tdm_drop(t->m, f->gathered[group]);
    f->gathered[group] = NULL;
    f->whole[group] = true;
}

void tdm_fsdp_reshard(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    if (t->settings.fsdp.version_1)
        tdm_fsdp1_reshard(t, group);
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end && f->whole[group]; i++)
        if (f->group_of[i] == group)
            tdm_value_vacate(t->m, f->wholes[i]);
    f->whole[group] = false;
}

static uint16_t reduced_bytes(const struct tdm_torch_model *t)
{
    switch (t->settings.fsdp.reduce_dtype) {
    case TDM_REDUCE_BF16:
        return BF16;
    case TDM_REDUCE_FP32:
        return FP32;
    default:
        return t->settings.fp32_weights && !tdm_torch_is_narrow(&t->settings) ? FP32 : BF16;
    }
}

/* The gradients of a group become those of its shards. Offloaded ones go to pinned host memory,
 * which torch keeps for the next step. */
static void hand_over(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value *shards)
{
    const struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group || !t->parameters[i]->requires_grad)
            continue;
        if (t->settings.fsdp.offload && !f->gradients_on_host)
            tdm_host_take_pinned(t->m, bytes_of_shard(t, i));
        else if (!t->settings.fsdp.offload && t->parameters[i]->grad == NULL)
            t->parameters[i]->grad = tdm_value_view(t->m, shards);
    }
}

/* torch.cat of the parts of each rank, for each gradient in turn. */
static void join_parts(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++)
        if (f->group_of[i] == group && f->wholes[i]->grad != NULL)
            f->wholes[i]->grad = tdm_replace(t->m, f->wholes[i]->grad,
                                             new_buffer(t, STREAM_COMPUTE, TDM_METHOD_GRADIENTS,
                                                        tdm_value_elements(f->wholes[i]), BF16));
}

/* Reduces the gradients of a group to shards. Names in foreach_reduce hold the last gradient until
 * the reduced shards are cast to the dtype of the parameters; the buffer of all gradients lives
 * until the next reduction. */
static void reduce(struct tdm_torch_model *t, uint32_t group)
{
    struct torch_fsdp *f = t->wrapped;
    uint16_t bytes = reduced_bytes(t);
    uint64_t elements = group_elements(t, group, true);
    struct tdm_eager_value *last = NULL;
    if (elements == 0)
        return;
    tdm_drop(t->m, f->reducing);
    if (is_scattered(t, group))
        join_parts(t, group);
    f->reducing = new_buffer(t, STREAM_COMPUTE, TDM_METHOD_COMMUNICATION, elements, bytes);
    for (uint32_t i = f->spans[group].first; i < f->spans[group].end; i++) {
        if (f->group_of[i] != group || f->wholes[i]->grad == NULL)
            continue;
        tdm_drop(t->m, last);
        last = f->wholes[i]->grad;
        f->wholes[i]->grad = NULL;
    }
    struct tdm_eager_value *shards =
        new_buffer(t, STREAM_REDUCE, TDM_METHOD_GRADIENTS, elements / shard_ranks(t, group), bytes);
    if (has_experts(t, group) && is_filled(t, group)) /* divided by torchtitan's factor of 1, as
                                                       * there is no collective */
        tdm_drop(t->m, new_buffer(t, STREAM_REDUCE, TDM_METHOD_COMMUNICATION, elements, bytes));
    if (tdm_fsdp_replicas(&t->settings.fsdp) > 1) /* FSDPParamGroup._all_reduce_state */
        f->all_reduced[group] = tdm_replace(t->m, f->all_reduced[group], tdm_take(shards));
    if (bytes != shard_bytes(t))
        shards = tdm_replace(t->m, shards,
                             new_buffer(t, STREAM_REDUCE, TDM_METHOD_GRADIENTS,
                                        elements / shard_ranks(t, group), shard_bytes(t)));
    hand_over(t, group, shards);
    tdm_drop(t->m, shards);
    tdm_drop(t->m, last);
}

void tdm_fsdp_post_backward(struct tdm_torch_model *t, uint32_t group)
{
    if (t->settings.fsdp.version_1) {
        tdm_fsdp1_post_backward(t, group);
        return;
    }
    tdm_fsdp_reshard(t, group);
    reduce(t, group);
}

/* Does its post_backward have anything to do? */
bool tdm_fsdp_is_pending(const struct tdm_torch_model *t, uint32_t group)
{
    return tdm_fsdp_of(t)->whole[group] ||
           (t->settings.fsdp.version_1 ? tdm_fsdp1_is_reduced(t, group)
                                       : group_elements(t, group, true) > 0);
}

void tdm_fsdp_step_on_host(struct tdm_torch_model *t, uint32_t states)
{
    struct torch_fsdp *f = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count && !f->states_on_host; i++)
        if (t->parameters[i]->requires_grad)
            tdm_host_take(t->m, tdm_size_mul(states, bytes_of_shard(t, i)));
    f->states_on_host = true;
}
