/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer states and parameters on NVMe (ZeRO-Infinity). Of states host memory has a few locked
 * buffers, of which each holds the largest sub-group in fp32. The gradients of a bucket are made
 * fp32 on the GPU and written through the buffers. What is too short to be written stays on the GPU
 * until the step, and with it the tensor that it is a part of. The step reads a sub-group, steps it
 * on the host, and writes it. Parts of parameters are read into buffers of one size before they are
 * gathered, and a buffer is free again when its parameter is given back; without a free buffer
 * DeepSpeed fails. Block size and parallelism of "aio" are those that are assumed: 1 MiB, 1.
 * Sources: DeepSpeed 0.19, runtime/swap_tensor/{partitioned_param_swapper,optimizer_utils,
 * partitioned_optimizer_swapper,utils}.py (SwapBufferManager, _swap_out_gradients,
 * _adjust_for_misaligned_lengths, swap_in_optimizer_state), runtime/zero/stage3.py
 * (_create_fp16_partitions_with_defragmentation, _create_fp32_partitions, partition_grads,
 * _offload_grad_partition_at_boundary), partitioned_param_coordinator.py
 * (__prefetch_nvme_param_partitions), csrc/pin_memory/page_alloc.cpp. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#define LEAST_WRITTEN_BYTES (UINT64_C(1) << 20) /* MIN_AIO_BYTES, and aio's block_size */
#define ALIGNED_BYTES 1024u                     /* AIO_ALIGNED_BYTES */
#define ALIGNED_ELEMENTS (ALIGNED_BYTES / FP32)

static bool is_written(uint64_t elements)
{
    return elements * FP32 >= LEAST_WRITTEN_BYTES;
}

bool tdm_nvme_swaps(const struct tdm_deepspeed *d, uint64_t elements)
{
    return d->s.offload_optimizer == TDM_OFFLOAD_NVME && is_written(elements);
}

void tdm_nvme_start(struct tdm_torch_model *t)
{
    const struct tdm_deepspeed *d = t->wrapped;
    uint64_t largest = 0;
    for (uint32_t g = 0; g < d->group_count; g++)
        if (d->group_elements[g] > largest)
            largest = d->group_elements[g];
    if (d->s.offload_optimizer == TDM_OFFLOAD_NVME)
        tdm_host_take(t->m, tdm_size_mul(tdm_size_align(largest, ALIGNED_ELEMENTS),
                                         d->s.optimizer_buffer_count * FP32));
}

void tdm_nvme_write_gradient(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_parameter *p = &d->parameters[number];
    uint64_t share = tdm_zero3_share(d, number), whole = share - share % ALIGNED_ELEMENTS;
    struct tdm_eager_value *gradient = p->wide;
    if (gradient == NULL)
        return;
    p->wide = NULL;
    if (is_written(whole) && whole == share) {
        tdm_drop(t->m, gradient);
        return;
    }
    tdm_drop(t->m, p->unwritten);
    p->unwritten = gradient;
}

void tdm_nvme_step(struct tdm_torch_model *t, uint32_t group)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t moments_bytes = tdm_size_mul(d->group_elements[group], 2 * FP32);
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (!p->trained || p->group != group)
            continue;
        tdm_drop(t->m, p->unwritten);
        p->unwritten = NULL;
    }
    if (d->states_made)
        return;
    /* The first step makes moments in memory of their own. */
    tdm_host_take(t->m, moments_bytes);
    tdm_host_give(t->m, moments_bytes);
}

/* ---- parameters ---- */

bool tdm_nvme_writes_part(const struct tdm_deepspeed_settings *s, uint64_t elements)
{
    return s->offload_param == TDM_OFFLOAD_NVME && elements * BF16 >= LEAST_WRITTEN_BYTES;
}

static uint64_t aligned_part_bytes(uint64_t elements)
{
    return tdm_size_mul(tdm_size_align(elements, ALIGNED_BYTES / BF16), BF16);
}

/* Moves the trained parameters of a sub-group to host memory, or sums up what a buffer for all of
 * them takes. */
static uint64_t place_group(struct tdm_torch_model *t, uint32_t group, bool on_host)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++) {
        struct zero_parameter *p = &d->parameters[i];
        if (!p->trained || p->group != group)
            continue;
        bytes += aligned_part_bytes(tdm_zero3_share(d, i));
        if (!on_host)
            continue;
        tdm_drop(t->m, p->partition);
        p->partition = NULL;
        p->on_disk = false;
    }
    return bytes;
}

void tdm_nvme_place(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    uint64_t room = d->partition_elements, offset = 0, largest = 0, largest_bytes = 0;
    bool some_on_disk = false;
    if (room > d->s.max_in_cpu)
        room = d->s.max_in_cpu;
    if (room > 0)
        tdm_zero_host(t, room, BF16);
    for (uint32_t g = 0; g < d->group_count; g++) {
        offset += d->group_elements[g];
        uint64_t bytes = place_group(t, g, offset <= room);
        some_on_disk |= offset > room;
        if (d->group_elements[g] > largest) {
            largest = d->group_elements[g];
            largest_bytes = bytes;
        }
    }
    if (some_on_disk) /* reserve_partitioned_swap_space: the step writes through it */
        tdm_host_take(t->m, largest_bytes);
    d->free_buffers = d->s.param_buffer_count;
    tdm_host_take(t->m, tdm_size_mul(aligned_part_bytes(d->s.param_buffer_size), d->free_buffers));
}

void tdm_nvme_read(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_parameter *p = &d->parameters[number];
    if (!p->on_disk || p->in_buffer)
        return;
    if (d->free_buffers == 0) {
        if (t->m->status == TDM_OK) {
            t->m->status = TDM_INFEASIBLE;
            t->m->lacks = "swap buffers of parameters (param_buffer_count)";
        }
        return;
    }
    p->in_buffer = true;
    d->free_buffers--;
}

void tdm_nvme_forget(struct tdm_torch_model *t, uint32_t number)
{
    struct tdm_deepspeed *d = t->wrapped;
    struct zero_parameter *p = &d->parameters[number];
    if (!p->in_buffer)
        return;
    p->in_buffer = false;
    d->free_buffers++;
}

/* __prefetch_nvme_param_partitions: as many as are free, of twice the elements that are in flight.
 */
void tdm_nvme_read_ahead(struct tdm_torch_model *t)
{
    struct tdm_deepspeed *d = t->wrapped;
    const struct zero_trace *trace = &d->trace;
    uint64_t in_flight = 0, considered = 0;
    if (d->s.offload_param != TDM_OFFLOAD_NVME)
        return;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (d->parameters[i].status == ZERO_IN_FLIGHT || d->parameters[i].gather != NULL)
            in_flight += d->parameters[i].elements;
    for (uint32_t u = trace->next_use; u < trace->use_count; u++) {
        uint32_t number = trace->uses[u].parameter;
        if (considered > 2 * in_flight || d->free_buffers == 0)
            return;
        tdm_nvme_read(t, number);
        considered += d->parameters[number].elements;
    }
}
