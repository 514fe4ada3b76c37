/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of ZeRO-3 while modules run. They are gathered when a module begins, and those of
 * the next modules are prefetched. They are released when the module ends, unless they persist or
 * are used again soon. The first step records the order of modules, which later steps rely on.
 * Parameters that are gathered together share a buffer, which stays until all of them have been
 * waited for. What ZeRO++ changes is in zeropp.c. Source:
 * runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module, reset_step,
 * __params_to_release, release_backward_leftovers), partition_parameters.py (all_gather_coalesced,
 * AllGatherHandle, AllGatherCoalescedHandle, free_param). */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#include <stdlib.h>

#define NEVER INT64_MIN
#define USER_OF_ANOTHER 4u /* the module whose backward recomputes a layer */

struct zero_gather {
    struct tdm_eager_value *buffer;
    struct zero_quantized quantized; /* qwZ */
    uint32_t waiting, count;         /* parameters that have not been waited for */
    bool arrived;
    uint32_t numbers[];
};

static uint32_t user_bit(uint32_t module)
{
    return module == TDM_MODULE_HEAD ? 2u : 1u; /* the embedding may have both users */
}

/* ---- gathering ---- */

/* On one rank without offload nothing is gathered: the partition is the whole parameter. */
static bool has_memory(const struct tdm_deepspeed *d)
{
    return d->ranks > 1 || d->s.offload_param;
}

static void occupy(struct tdm_torch_model *t, uint32_t number)
{
    if (!has_memory(tdm_zero_of(t)))
        return;
    t->m->stream = tdm_zero_of(t)->s.overlap_comm ? ZERO_GATHER : ZERO_COMPUTE;
    tdm_value_occupy(t->m, t->parameters[number]);
    t->m->stream = ZERO_COMPUTE;
}

/* The copy of this rank's partitions on the GPU, if they are in host memory. */
static struct tdm_eager_value *bring(struct tdm_torch_model *t, uint64_t elements)
{
    const struct tdm_deepspeed *d = t->wrapped;
    return d->s.offload_param && d->ranks > 1
               ? tdm_zero_new(t, ZERO_GATHER, TDM_METHOD_COMMUNICATION, elements, BF16)
               : NULL;
}

/* Elements of this rank that a gather sends, from the second copy where there is one. */
static uint64_t sent_share(const struct tdm_deepspeed *d, uint32_t number)
{
    return d->parameters[number].has_second ? tdm_zeropp_second_share(d, number)
                                            : tdm_zero3_share(d, number);
}

/* Gathers several parameters, or one in 8 bits, through one buffer. */
static void gather_many(struct tdm_torch_model *t, const uint32_t *numbers, uint32_t count)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_gather *gather = calloc(1, sizeof(*gather) + count * sizeof(gather->numbers[0]));
    uint64_t share = 0, ranks = d->ranks;
    if (gather == NULL)
        tdm_eager_no_memory(t->m);
    for (uint32_t i = 0; i < count; i++) {
        gather->numbers[i] = numbers[i];
        share += sent_share(d, numbers[i]);
        d->parameters[numbers[i]].gather = gather;
    }
    if (d->parameters[numbers[0]].has_second)
        ranks = tdm_zeropp_second_ranks(&d->s, ranks);
    gather->count = gather->waiting = count;
    gather->buffer = tdm_zero_new(t, ZERO_GATHER, TDM_METHOD_COMMUNICATION,
                                  tdm_size_mul(share, ranks), d->s.quantized_weights ? INT8 : BF16);
    if (d->s.quantized_weights)
        tdm_zeropp_send(t, &gather->quantized, share, ranks, count > 1, d->s.offload_param);
    else
        tdm_drop(t->m, bring(t, share));
}

/* Gathers parameters that have second copies, or those that have none: __all_gather_params_. */
static void gather_alike(struct tdm_torch_model *t, const uint32_t *numbers, uint32_t all,
                         bool from_second)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint32_t count = 0;
    for (uint32_t i = 0; i < all; i++)
        if (d->parameters[numbers[i]].has_second == from_second)
            d->alike[count++] = numbers[i];
    if (d->ranks > 1 && (count > 1 || (count == 1 && d->s.quantized_weights))) {
        gather_many(t, d->alike, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        /* NCCL's work holds it until it is waited for (ProcessGroupNCCL.cpp,
         * stashed_for_allocator_safety_). */
        d->parameters[d->alike[i]].sent = bring(t, sent_share(d, d->alike[i]));
        occupy(t, d->alike[i]);
    }
}

static void gather(struct tdm_torch_model *t, const uint32_t *numbers, uint32_t count)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < count; i++) {
        tdm_zero_changes(d, numbers[i]);
        d->parameters[numbers[i]].status = ZERO_IN_FLIGHT;
        d->trace.here += (int64_t)d->parameters[numbers[i]].elements;
    }
    for (uint32_t i = 0; i < count; i++)
        tdm_nvme_read(t, numbers[i]);
    gather_alike(t, numbers, count, true);
    gather_alike(t, numbers, count, false);
    for (uint32_t i = 0; i < count; i++) /* it will not be given back */
        if (d->parameters[numbers[i]].persists)
            tdm_nvme_forget(t, numbers[i]);
}

/* The parameters of a gather get their memory. What was sent in 8 bits is first made fp16: one
 * parameter at once; of several all together, and each is copied from that. */
static void receive(struct tdm_torch_model *t, struct zero_gather *gather)
{
    struct tdm_deepspeed *d = t->wrapped;
    bool quantized = d->s.quantized_weights, several = gather->count > 1;
    if (quantized)
        tdm_zeropp_arrive(t, &gather->quantized,
                          several ? tdm_value_elements(gather->buffer)
                                  : d->parameters[gather->numbers[0]].elements);
    for (uint32_t i = 0; i < gather->count; i++) {
        struct zero_parameter *p = &d->parameters[gather->numbers[i]];
        struct tdm_eager_value *joined = NULL;
        if (quantized && several)
            joined = tdm_zero_new(t, ZERO_GATHER, TDM_METHOD_COMMUNICATION, p->elements, FP16);
        occupy(t, gather->numbers[i]);
        tdm_drop(t->m, joined);
        p->status = ZERO_HERE;
        tdm_zero_changes(d, gather->numbers[i]);
    }
    gather->arrived = true;
}

static void wait_for(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_gather *gather = d->parameters[number].gather;
    tdm_zero_changes(d, number);
    d->parameters[number].status = ZERO_HERE;
    tdm_drop(t->m, d->parameters[number].sent);
    d->parameters[number].sent = NULL;
    if (gather == NULL)
        return;
    if (!gather->arrived)
        receive(t, gather);
    d->parameters[number].gather = NULL;
    if (--gather->waiting > 0)
        return;
    tdm_drop(t->m, gather->quantized.wide);
    tdm_drop(t->m, gather->quantized.scales);
    tdm_drop(t->m, gather->buffer);
    free(gather);
}

static void give_back(struct tdm_torch_model *t, uint32_t number)
{
    struct zero_parameter *p = &tdm_zero_of(t)->parameters[number];
    if (p->status != ZERO_HERE || p->users != 0)
        return;
    if (tdm_zeropp_has_second(&tdm_zero_of(t)->s))
        tdm_zeropp_keep_second(t, number);
    tdm_nvme_forget(t, number);
    tdm_value_vacate(t->m, t->parameters[number]);
    p->status = ZERO_AWAY;
    tdm_zero_changes(t->wrapped, number);
    tdm_zero_of(t)->trace.here -= (int64_t)p->elements;
}

/* ---- the trace ---- */

/* Makes room for so many more entries. */
static void make_room(struct tdm_torch_model *t, uint32_t entries)
{
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    uint32_t capacity = trace->capacity == 0 ? 1024 : trace->capacity;
    while (capacity - trace->length < entries)
        capacity *= 2;
    if (capacity == trace->capacity)
        return;
    uint32_t *modules = realloc(trace->modules, capacity * sizeof(*modules));
    if (modules == NULL)
        tdm_eager_no_memory(t->m);
    trace->modules = modules;
    trace->capacity = capacity;
}

static void record(struct tdm_torch_model *t, uint32_t module)
{
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    make_room(t, 1);
    trace->modules[trace->length++] = module;
}

/* The latest modules, so many times more. */
static void record_again(struct tdm_torch_model *t, uint32_t modules, uint32_t times)
{
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    make_room(t, modules * times);
    for (uint32_t i = 0; i < modules * times; i++, trace->length++)
        trace->modules[trace->length] = trace->modules[trace->length - modules];
}

static void complete_trace(struct tdm_torch_model *t)
{
    const struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    size_t uses = 1;
    for (uint32_t step = 0; step < trace->length; step++)
        uses += d->modules[trace->modules[step]].count;
    trace->uses = malloc(uses * sizeof(*trace->uses));
    if (trace->uses == NULL)
        tdm_eager_no_memory(t->m);
    for (uint32_t step = 0; step < trace->length; step++) {
        const struct zero_module *module = &d->modules[trace->modules[step]];
        for (uint32_t i = 0; i < module->count; i++)
            trace->uses[trace->use_count++] =
                (struct zero_use){.parameter = module->parameters[i], .step = step};
    }
    trace->recording = false;
    trace->complete = true;
}

void tdm_zero3_begin_trace(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &d->trace;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (p->status == ZERO_IN_FLIGHT || p->gather != NULL) {
            wait_for(t, i);
            give_back(t, i);
        }
        p->fetched_for = NEVER;
        tdm_zero_changes(d, i);
    }
    if (trace->recording)
        complete_trace(t);
    else if (!trace->complete)
        trace->recording = true;
    trace->next_use = 0;
    trace->step = 0;
    trace->here = 0;
}

/* Another module ran than was recorded: nothing is fetched ahead, and all is given back at once,
 * until a forward begins that is recorded anew (trace_prologue, _invalidate_trace). */
static void invalidate(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &d->trace;
    free(trace->uses);
    trace->uses = NULL;
    trace->use_count = trace->next_use = trace->length = 0;
    trace->complete = false;
    trace->strays++;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        d->parameters[i].fetched_for = NEVER;
        tdm_zero_changes(d, i);
    }
}

/* ---- modules begin and end ---- */

static void fetch_ahead(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &d->trace;
    int64_t left = (int64_t)d->s.max_live_parameters - trace->here;
    int64_t bucket = (int64_t)d->s.prefetch_bucket_size, most = left < bucket ? left : bucket;
    int64_t sum = 0;
    uint32_t count = 0;
    while (trace->next_use < trace->use_count && sum < most) {
        const struct zero_use *use = &trace->uses[trace->next_use];
        struct zero_parameter *p = &d->parameters[use->parameter];
        if (p->on_disk && !p->in_buffer)
            break;
        trace->next_use++;
        tdm_zero_changes(d, use->parameter);
        if ((int64_t)use->step > p->fetched_for)
            p->fetched_for = use->step;
        if (p->status == ZERO_AWAY) {
            p->status = ZERO_IN_FLIGHT; /* prevents a second gather */
            sum += (int64_t)p->elements;
            d->ahead[count++] = use->parameter;
        }
    }
    gather(t, d->ahead, count);
    tdm_nvme_read_ahead(t);
}

/* Advances the trace past the uses of the module. */
static void advance(struct tdm_torch_model *t, const struct zero_module *module)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &d->trace;
    uint32_t due = 0;
    for (uint32_t i = 0; i < module->count; i++)
        due += d->parameters[module->parameters[i]].fetched_for < (int64_t)trace->step;
    for (; due > 0 && trace->next_use < trace->use_count; due--) {
        const struct zero_use *use = &trace->uses[trace->next_use++];
        tdm_zero_changes(d, use->parameter);
        d->parameters[use->parameter].fetched_for = use->step;
        uint32_t i = 0;
        while (i < module->count && module->parameters[i] != use->parameter)
            i++;
        trace->strays += i == module->count;
    }
}

static void fetch(struct tdm_torch_model *t, uint32_t number, bool forward)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &d->trace;
    const struct zero_module *module = &d->modules[number];
    uint32_t away[ZERO_MODULE_PARAMETERS], count = 0;
    if (trace->recording)
        record(t, number);
    else if (trace->complete &&
             (trace->step >= trace->length || trace->modules[trace->step] != number))
        invalidate(t);
    if (!forward && trace->backward_count < d->module_count)
        trace->backward[trace->backward_count++] = number;
    for (uint32_t i = 0; i < module->count; i++)
        if (d->parameters[module->parameters[i]].status == ZERO_AWAY)
            away[count++] = module->parameters[i];
    if (count > 0)
        gather(t, away, count);
    for (uint32_t i = 0; i < module->count; i++) {
        struct zero_parameter *p = &d->parameters[module->parameters[i]];
        tdm_zero_changes(d, module->parameters[i]);
        p->users |= user_bit(number);
        if (forward && t->m->in_backward && trace->backward_count > 0 && !p->trained &&
            !d->s.forgets_owners) {
            p->owner = trace->backward[trace->backward_count - 1];
            p->users |= USER_OF_ANOTHER;
        }
        if (p->status == ZERO_IN_FLIGHT || p->gather != NULL)
            wait_for(t, module->parameters[i]);
    }
    if (trace->complete) {
        advance(t, module);
        if (d->s.prefetch_bucket_size > 0)
            fetch_ahead(t);
    }
    trace->step++;
}

/* Is it used again within max_reuse_distance elements, or was it already fetched for a later step?
 */
static bool used_soon(const struct tdm_deepspeed *d, uint32_t number)
{
    const struct zero_trace *trace = &d->trace;
    uint64_t passed = 0;
    if (d->parameters[number].fetched_for > (int64_t)trace->step)
        return true;
    for (uint32_t step = trace->step; step < trace->length && passed < d->s.max_reuse_distance;
         step++) {
        const struct zero_module *module = &d->modules[trace->modules[step]];
        for (uint32_t i = 0; i < module->count; i++) {
            if (module->parameters[i] == number)
                return true;
            passed += d->parameters[module->parameters[i]].elements;
        }
    }
    return false;
}

/* Releases what a layer gathered that was recomputed in this module's backward. */
static void release_owned(struct tdm_torch_model *t, uint32_t module)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (p->trained || p->owner != module)
            continue;
        tdm_zero_changes(d, i);
        p->owner = ZERO_NONE;
        p->users &= ~USER_OF_ANOTHER;
        if (!p->persists)
            give_back(t, i);
    }
}

static void end_backward(struct zero_trace *trace, uint32_t module)
{
    for (uint32_t i = trace->backward_count; i-- > 0;) {
        if (trace->backward[i] != module)
            continue;
        for (uint32_t k = i + 1; k < trace->backward_count; k++)
            trace->backward[k - 1] = trace->backward[k];
        trace->backward_count--;
        return;
    }
}

static void release(struct tdm_torch_model *t, uint32_t number, bool forward)
{
    struct tdm_deepspeed *d = t->wrapped;
    const struct zero_module *module = &d->modules[number];
    for (uint32_t i = 0; i < module->count; i++) {
        struct zero_parameter *p = &d->parameters[module->parameters[i]];
        tdm_zero_changes(d, module->parameters[i]);
        p->users &= ~user_bit(number);
        if (!d->trace.complete || (!p->persists && !used_soon(d, module->parameters[i])))
            give_back(t, module->parameters[i]);
    }
    if (forward)
        return;
    if (t->settings.lora_rank > 0)
        release_owned(t, number);
    end_backward(&d->trace, number);
}

void tdm_zero3_leftovers(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    if (d->s.forgets_owners) /* it came with them */
        d->trace.backward_count = 0;
    while (d->trace.backward_count > 0) {
        uint32_t number = d->trace.backward[--d->trace.backward_count];
        const struct zero_module *module = &d->modules[number];
        for (uint32_t i = 0; i < module->count; i++) {
            struct zero_parameter *p = &d->parameters[module->parameters[i]];
            tdm_zero_changes(d, module->parameters[i]);
            p->users &= ~user_bit(number);
            if (!p->persists)
                give_back(t, module->parameters[i]);
        }
        release_owned(t, number);
    }
}

void tdm_zero3_release_all(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (p->status == ZERO_IN_FLIGHT || p->gather != NULL)
            wait_for(t, i);
        tdm_zero_changes(d, i);
        p->users = 0;
        give_back(t, i);
    }
}

bool tdm_zero3_gather_weight(struct tdm_torch_model *t, const struct tdm_eager_value *weight)
{
    struct tdm_deepspeed *d = t->wrapped;
    const uint32_t number = tdm_zero_number(t, weight);
    const int64_t here = d->trace.here; /* which counts what modules gather */
    if (number == ZERO_NONE || d->parameters[number].status == ZERO_HERE)
        return false;
    if (d->parameters[number].status == ZERO_AWAY)
        gather(t, &number, 1);
    wait_for(t, number);
    d->trace.here = here;
    return true;
}

void tdm_zero3_return_weight(struct tdm_torch_model *t, const struct tdm_eager_value *weight)
{
    struct tdm_deepspeed *d = t->wrapped;
    const int64_t here = d->trace.here;
    give_back(t, tdm_zero_number(t, weight));
    d->trace.here = here;
}

void tdm_zero3_gather_persistent(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        if (!d->parameters[i].persists)
            continue;
        tdm_nvme_read(t, i);
        if (has_memory(d))
            tdm_value_occupy(t->m, t->parameters[i]);
        d->parameters[i].status = ZERO_HERE;
        tdm_zero_changes(d, i);
    }
}

void tdm_zero3_free_gathers(struct tdm_deepspeed *d)
{
    for (uint32_t i = 0; i < d->most_parameters; i++) {
        struct zero_gather *gather = d->parameters[i].gather;
        if (gather != NULL && --gather->waiting == 0)
            free(gather);
    }
}

/* ---- tiles that are not run ---- */

/* What a parameter adds to the sum over all of them. */
static uint64_t in_sum(const struct zero_parameter *p, uint32_t number)
{
    const uint64_t has = (uint64_t)(p->gather != NULL) | (uint64_t)(p->sent != NULL) << 1 |
                         (uint64_t)(p->second != NULL) << 2 | (uint64_t)(p->reduced != NULL) << 3;
    const uint64_t is =
        (uint64_t)p->status | (uint64_t)p->users << 8 | has << 16 | (uint64_t)p->owner << 32;
    return tdm_zero_mix(tdm_zero_mix(tdm_zero_mix(1, number), is), (uint64_t)p->fetched_for);
}

/* Only those that changed are looked at, because a tile uses few of thousands. */
static uint64_t sum_of_parameters(struct tdm_deepspeed *d)
{
    while (d->changed != ZERO_NONE) {
        const uint32_t number = d->changed;
        struct zero_parameter *p = &d->parameters[number];
        const uint64_t now = in_sum(p, number);
        d->sum += now - p->in_sum;
        p->in_sum = now;
        p->changed = false;
        d->changed = p->next_changed;
    }
    return d->sum;
}

/* All that decides what the next tile gathers, releases and reduces, but for the step of the trace:
 * the uses that are prefetched do not change from tile to tile. 0: partitions move between disk and
 * host memory, ahead of the trace. */
static uint64_t digest(void *context)
{
    struct tdm_torch_model *t = context;
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    trace->tile_steps = trace->step - trace->tile_end;
    trace->tile_end = trace->step;
    if (d->s.offload_param == TDM_OFFLOAD_NVME || d->s.offload_optimizer == TDM_OFFLOAD_NVME)
        return 0;
    uint64_t sum = tdm_zero_mix(tdm_zero_digest(d), trace->next_use);
    sum = tdm_zero_mix(sum, (uint64_t)trace->here);
    sum = tdm_zero_mix(sum, trace->strays);
    for (uint32_t i = 0; i < trace->backward_count; i++)
        sum = tdm_zero_mix(sum, trace->backward[i]);
    return tdm_zero_mix(sum, sum_of_parameters(d)) | 1;
}

/* Tiles whose modules are those of the latest one and, but for one more tile, all before a step for
 * which a parameter was fetched: from there on it is no longer one that is used later. */
static uint64_t tiles_alike(const struct tdm_torch_model *t, uint64_t tiles)
{
    const struct tdm_deepspeed *d = t->wrapped;
    const struct zero_trace *trace = &d->trace;
    uint64_t steps = trace->tile_steps, alike = 0;
    if (!trace->complete || steps == 0)
        return tiles;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        const int64_t use = d->parameters[i].fetched_for; /* NEVER is before all steps */
        if (use <= (int64_t)trace->step)
            continue;
        const uint64_t ahead = (uint64_t)(use - (int64_t)trace->step) / steps;
        if (ahead < tiles + 1)
            tiles = ahead > 0 ? ahead - 1 : 0;
    }
    while (trace->step + alike < trace->length && alike < (tiles + 1) * steps &&
           trace->modules[trace->step + alike] == trace->modules[trace->step + alike - steps])
        alike++;
    alike /= steps;
    return alike < tiles + 1 ? (alike > 0 ? alike - 1 : 0) : tiles;
}

static uint64_t skip_tiles(void *context, uint64_t tiles)
{
    struct tdm_torch_model *t = context;
    struct zero_trace *trace = &tdm_zero_of(t)->trace;
    uint32_t steps = trace->tile_steps;
    tiles = tiles_alike(t, tiles);
    if (trace->recording)
        record_again(t, steps, (uint32_t)tiles);
    trace->step += (uint32_t)(tiles * steps);
    trace->tile_end = trace->step;
    return tiles;
}

void tdm_zero3_follow(struct tdm_torch_model *t)
{
    t->m->follower = (struct tdm_follower){.digest = digest, .skip = skip_tiles, .context = t};
}

/* ---- the hooks of modules ---- */

static void before_backward(struct tdm_eager *m, struct tdm_node *node,
                            struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    (void)m;
    fetch(node->context, (uint32_t)node->facts[0], false);
    results[0] = tdm_take(grads[0]);
}

static void after_backward(struct tdm_eager *m, struct tdm_node *node,
                           struct tdm_eager_value *const *grads, struct tdm_eager_value **results)
{
    struct tdm_torch_model *t = node->context;
    uint32_t module = (uint32_t)node->facts[0];
    (void)m;
    if (--tdm_zero_of(t)->modules[module].inputs_waiting == 0)
        release(t, module, false);
    results[0] = tdm_take(grads[0]);
}

struct tdm_eager_value *tdm_zero3_enter(const struct tdm_torch_model *t, uint32_t module,
                                        struct tdm_eager_value *x)
{
    static const struct tdm_eager_op after = {"PostBackwardFunctionModuleBackward", false,
                                              after_backward};
    struct tdm_deepspeed *d = t->wrapped;
    fetch(d->model, module, true);
    d->modules[module].inputs_waiting = 0;
    if (x == NULL)
        return NULL;
    struct tdm_eager_value *marked = tdm_mark(t->m, &after, module, d->model, x);
    d->modules[module].inputs_waiting += marked != x;
    return marked;
}

struct tdm_eager_value *tdm_zero3_leave(const struct tdm_torch_model *t, uint32_t module,
                                        struct tdm_eager_value *y)
{
    static const struct tdm_eager_op before = {"PreBackwardFunctionForModuleBackward", false,
                                               before_backward};
    struct tdm_deepspeed *d = t->wrapped;
    release(d->model, module, true);
    return y == NULL ? NULL : tdm_replace(t->m, y, tdm_mark(t->m, &before, module, d->model, y));
}
