/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a method costs a GPU: floating-point operations and bytes moved. A rough time
 * of the step follows from them, by which methods can be ranked.
 */
#ifndef TDM_METHODS_COST_H
#define TDM_METHODS_COST_H

#include "machines/machine.h"
#include "methods/links.h"
#include "models/model.h"

struct tdm_method_settings;
struct tdm_torch_settings;

/* Of one GPU, for one step. */
struct tdm_method_cost {
    double product_flops;                 /* of matrix products, including recomputation */
    double attention_flops;               /* of unmasked pairs only, including recomputation */
    struct tdm_traffic sent;              /* to other GPUs, overlapped with computation */
    struct tdm_traffic exposed;           /* to other GPUs, not overlapped */
    struct tdm_ring_turn ring;            /* the ring that runs during attention */
    double ring_forwards, ring_backwards; /* how many turns of it */
    double host_bytes;                    /* between the GPU and its host, in both directions */
    /* Sequences that all GPUs together train in the step. 0: one batch on each GPU, or one batch on
     * all of them where the method divides sequences. */
    double sequences;
};

/* All bytes that a GPU sends to other GPUs: over links and rings, exposed or not. */
double tdm_method_sent_bytes(const struct tdm_method_cost *cost);

/* Rough duration of a step in seconds. Computing time is the products plus attention at the
 * machine's best rates; forward and backward attention each take the longer of attention and its
 * ring. Overlapped transfers lengthen the step only if they take longer than computing. Exposed
 * transfers are added. Memory-bound operations, kernel launches and the optimizer are left out, so
 * a real step takes longer. */
double tdm_method_seconds(const struct tdm_method_cost *cost, const struct tdm_model *model,
                          const struct tdm_machine *machine);

/* All GPUs as one group, with nodes as in the settings. */
struct tdm_gpu_group tdm_torch_all_ranks(const struct tdm_torch_settings *settings);

/* The fraction (0 to 1) of the layers' forward that checkpointing computes again. */
double tdm_torch_forwards_again(const struct tdm_model *model,
                                const struct tdm_torch_settings *settings);

/* Bytes of gradients that a rank sends in a reduce-scatter: (R - 1) / R of all. */
double tdm_torch_shared_gradient_bytes(const struct tdm_model *model,
                                       const struct tdm_torch_settings *settings);

/* Bytes of checkpoints that a forward and a backward copy to the host and back. */
double tdm_torch_offloaded_bytes(const struct tdm_model *model,
                                 const struct tdm_torch_settings *settings);

/* FLOPs, and the bytes that the wrapper and the divider of sequences send. Other methods start from
 * this cost. */
void tdm_torch_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost);

#endif
