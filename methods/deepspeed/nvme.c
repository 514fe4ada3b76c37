/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer states on NVMe (ZeRO-Infinity). Host memory has a few locked buffers, of which each
 * holds the largest sub-group in fp32. The gradients of a bucket are made fp32 on the GPU and
 * written through the buffers. What is too short to be written stays on the GPU until the step, and
 * with it the tensor that it is a part of. The step reads a sub-group, steps it on the host, and
 * writes it. Block size and parallelism of "aio" are those that are assumed: 1 MiB, 1.
 * Sources: DeepSpeed 0.19, runtime/swap_tensor/{optimizer_utils,partitioned_optimizer_swapper,
 * utils}.py (SwapBufferManager, _swap_out_gradients, _adjust_for_misaligned_lengths,
 * swap_in_optimizer_state), runtime/zero/stage3.py (_create_fp32_partitions, partition_grads,
 * _offload_grad_partition_at_boundary), csrc/pin_memory/page_alloc.cpp. */
#include "methods/deepspeed/parts.h"

#include "base/size.h"

#define LEAST_WRITTEN_BYTES (UINT64_C(1) << 20) /* MIN_AIO_BYTES, and aio's block_size */
#define ALIGNED_ELEMENTS 256u                   /* AIO_ALIGNED_BYTES in fp32 */

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
