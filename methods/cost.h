/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a method costs a GPU: floating-point operations and bytes that move, for a rough
 * time of a step by which methods can be ranked.
 */
#ifndef TDM_METHODS_COST_H
#define TDM_METHODS_COST_H

#include "machines/machine.h"
#include "methods/links.h"
#include "models/model.h"

struct tdm_method_settings;
struct tdm_torch_settings;

/* Of one GPU and one step. */
struct tdm_method_cost {
    double product_flops;                 /* of matrix products, with what is computed again */
    double attention_flops;               /* pairs that are seen, with what is computed again */
    struct tdm_traffic sent;              /* to other GPUs, while something is computed */
    struct tdm_traffic exposed;           /* to other GPUs, while nothing is */
    struct tdm_ring_turn ring;            /* that goes round while attention is computed */
    double ring_forwards, ring_backwards; /* turns of it */
    double host_bytes;                    /* between the GPU and its host, both ways */
    /* That all GPUs together train in the step; 0: batch of every GPU, or of all where the method
     * divides sequences. */
    double sequences;
};

/* All that a GPU sends to others: over links, round rings, exposed or not. */
double tdm_method_sent_bytes(const struct tdm_method_cost *cost);

/* Roughly the seconds of a step: products, then attention, or the ring where that takes longer,
 * forward and backward, all at the machine's best rates; what moves meanwhile is beside them, or
 * longer than they are; what is exposed is added. Operations bound by memory, launches and the
 * optimizer are left out, so a real step takes longer. */
double tdm_method_seconds(const struct tdm_method_cost *cost, const struct tdm_model *model,
                          const struct tdm_machine *machine);

/* All GPUs as one group, by the nodes of the settings. */
struct tdm_gpu_group tdm_torch_all_ranks(const struct tdm_torch_settings *settings);

/* Parameters that are trained: all, or the adapters. */
double tdm_torch_trained_parameters(const struct tdm_model *model,
                                    const struct tdm_torch_settings *settings);

/* The part of the layers' forward that checkpointing computes again: 0 to 1. */
double tdm_torch_forwards_again(const struct tdm_model *model,
                                const struct tdm_torch_settings *settings);

/* Bytes of gradients that a rank sends where they are reduced and scattered: (R - 1) / R of all. */
double tdm_torch_shared_gradient_bytes(const struct tdm_model *model,
                                       const struct tdm_torch_settings *settings);

/* What is computed, and what the wrapper and the divider of a sequence send. Other methods start
 * from it. */
void tdm_torch_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost);

#endif
