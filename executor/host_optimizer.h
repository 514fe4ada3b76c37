/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizers on the host's cores. The cpu backend uses them for all updates, the other backends
 * for updates that a schedule puts on the host (`optimizer.on`).
 *
 * The arithmetic is that of executor/cuda/optimizer.cu: fp32 without fused multiply-adds. The same
 * gradients give the same bits on both, for any number of threads and any vector width.
 */
#ifndef TDM_EXECUTOR_HOST_OPTIMIZER_H
#define TDM_EXECUTOR_HOST_OPTIMIZER_H

#include "executor/backend.h"
#include "ops/update.h"

/* A self-contained update: it outlives the launch that it was made from, but not the model. */
struct tdm_host_update {
    const struct tdm_tensor *tensors; /* the model's */
    const struct tdm_unit *unit;
    /* Where the elements of the unit are. Of a slice of masters or moments only [first, end) are
     * there; its address is that of the unit if all of it were. */
    struct tdm_operand operand[TDM_OPTIMIZER_OPERANDS];
    uint64_t first, end; /* the elements of the unit that it changes */
    /* Of an embedding: the rows that it changes, and a bit for each row that the step uses; NULL:
     * they are not known. */
    enum tdm_update_rows rows;
    const uint64_t *used_rows;
    bool adamw;     /* else SGD */
    bool random;    /* something is rounded stochastically */
    uint32_t width; /* of vectors: below tdm_host_update_widths(), set to the widest */
    uint64_t seed, step;
    float beta1, beta2, rest1, rest2; /* rest = 1 - beta */
    float step_rate;                  /* rate / (1 - beta1^step) */
    float root_scale;                 /* 1 / sqrt(1 - beta2^step) */
    float epsilon, rate, decay;
    uint32_t decayed; /* bits of the kinds of tensors that decay */
    double clip_norm;
};

/* Makes an update from a launch of TDM_OP_OPTIMIZER, for the host or for a device. Does not read
 * the memory of its operands. */
struct tdm_host_update tdm_host_update_of(const struct tdm_launch *launch);

/* Runs it on `threads` threads. Allocates nothing once that many threads have run. */
void tdm_host_update_run(const struct tdm_host_update *update, uint32_t threads);

/* Cores left to the walk, the driver and the trace while a device computes. */
#define TDM_HOST_SPARE_CORES 2u

/* Cores of this computer minus `spare`; at least one. */
uint32_t tdm_host_update_threads(uint32_t spare);

/* Starts `threads` threads for the calling thread, so that the first update need not. */
void tdm_host_update_warm_up(uint32_t threads);

/* Number of vector instruction sets that this computer has for updates, from narrow to wide, and
 * the name of one: "plain", "AVX2", "AVX-512". */
uint32_t tdm_host_update_widths(void);
const char *tdm_host_update_width_name(uint32_t width);

#endif
