/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step of a method costs a GPU: floating-point operations and bytes that move, for a rough time of a step by
 * which methods can be ranked.
 */
#ifndef TDM_METHODS_COST_H
#define TDM_METHODS_COST_H

#include "machines/machine.h"
#include "models/model.h"

struct tdm_method_settings;
struct tdm_torch_settings;

/* Of one GPU and one step. */
struct tdm_method_cost {
    double product_flops;   /* of matrix products, with what is computed again */
    double attention_flops; /* pairs that are seen, with what is computed again */
    double sent_bytes;      /* to other GPUs, while something is computed */
    double exposed_bytes;   /* to other GPUs, while nothing is */
    double host_bytes;      /* between the GPU and its host, both ways */
    /* That all GPUs together train in the step; 0: batch of every GPU, or of all where the method divides sequences. */
    double sequences;
};

/* Roughly the seconds of a step: products and attention one after the other, at the machine's best rates; what moves
 * meanwhile is beside them, or longer than they are; what is exposed is added. Operations bound by memory, launches and
 * the optimizer are left out, so a real step takes longer. Between GPUs the rate is that of the link to the host
 * where the machine does not say it. */
double tdm_method_seconds(const struct tdm_method_cost *cost, const struct tdm_model *model,
                          const struct tdm_machine *machine);

/* Bytes/s between two GPUs. */
double tdm_machine_peer_rate(const struct tdm_machine *machine);

/* What is computed without any sharing of a sequence, and what ddp, zero1 and fsdp send: gradients are reduced as
 * (R - 1) / R of their bytes twice (all-reduce) or once (reduce-scatter), parameters gathered once or twice.
 * Other methods start from it. */
/* Parameters that are trained: all, or the adapters. */
double tdm_torch_trained_parameters(const struct tdm_model *model,
                                    const struct tdm_torch_settings *settings);

void tdm_torch_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost);

#endif
