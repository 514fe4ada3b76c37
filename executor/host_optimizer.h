/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers on the host's cores: what the cpu backend does for all updates, and every backend
 * for those that a schedule puts on the host (`optimizer.on`).
 *
 * The arithmetic is that of executor/cuda/optimizer.cu, in fp32 and without fused multiply-adds:
 * the same gradients give the same bits on both, with any number of threads and any width of
 * vectors.
 */
#ifndef TDM_EXECUTOR_HOST_OPTIMIZER_H
#define TDM_EXECUTOR_HOST_OPTIMIZER_H

#include "executor/backend.h"
#include "ops/update.h"

/* An update by value: it outlives the launch that it was made from, but not the model. */
struct tdm_host_update {
    const struct tdm_tensor *tensors; /* the model's */
    const struct tdm_unit *unit;
    struct tdm_operand operand[TDM_OPTIMIZER_OPERANDS]; /* in memory of the host */
    bool adamw;                                         /* else SGD */
    bool random;                                        /* something is rounded stochastically */
    uint32_t width; /* of vectors: below tdm_host_update_widths(), set to the widest */
    uint64_t seed, step;
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_rate;                  /* rate / (1 - beta1^step) */
    float root_scale;                 /* 1 / sqrt(1 - beta2^step) */
    float epsilon, rate, decay;
    double clip_norm;
};

/* Of a launch of TDM_OP_OPTIMIZER; nothing that operands point to is read. */
struct tdm_host_update tdm_host_update_of(const struct tdm_launch *launch);

/* Runs it on so many threads. Allocates nothing, once that many have run. */
void tdm_host_update_run(const struct tdm_host_update *update, uint32_t threads);

/* Cores that are left to the walk, the driver and the trace where a device computes meanwhile. */
#define TDM_HOST_SPARE_CORES 2u

/* Cores of this computer but `spare` of them; at least one. */
uint32_t tdm_host_update_threads(uint32_t spare);

/* Starts so many threads of the caller, so that the first update need not. */
void tdm_host_update_warm_up(uint32_t threads);

/* The instructions that this computer has for updates: how many sets, from narrow to wide, and what
 * one is called, "plain", "AVX2", "AVX-512". */
uint32_t tdm_host_update_widths(void);
const char *tdm_host_update_width_name(uint32_t width);

#endif
