/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a training run (forward, backward, optimizer step) on one GPU, the first of several,
 * of a system built on PyTorch; and the memory that each step takes.
 */
#ifndef TDM_METHODS_TORCH_RUN_H
#define TDM_METHODS_TORCH_RUN_H

#include "methods/torch/model.h"

struct tdm_method_settings;

#define TDM_TORCH_STEPS 3u /* later steps repeat the third */

#define TDM_TORCH_LARGEST 6u

enum tdm_torch_phase {
    TDM_PHASE_FORWARD,
    TDM_PHASE_BACKWARD,
    TDM_PHASE_OPTIMIZER,
    TDM_TORCH_PHASES
};

const char *tdm_torch_phase_name(enum tdm_torch_phase phase);

struct tdm_torch_step {
    uint64_t before_bytes;                    /* allocated before the step */
    uint64_t end_bytes[TDM_TORCH_PHASES];     /* allocated at the end of the phase */
    uint64_t highest_bytes[TDM_TORCH_PHASES]; /* maximum allocated in the step up to the end of the
                                                 phase */
    struct tdm_torch_bytes phases[TDM_TORCH_PHASES]; /* peaks of each phase; 0: not reached */
    struct tdm_torch_bytes peak;                     /* of the step */
    uint64_t
        end_reserved_bytes; /* after the step: less than the peak if cached memory was returned */
    uint64_t categories[TDM_METHOD_CATEGORIES];         /* when allocated bytes are at their peak */
    uint64_t host_bytes;                                /* maximum of host memory */
    struct tdm_tensor_group largest[TDM_TORCH_LARGEST]; /* when allocated bytes are at their peak */
    uint32_t largest_count;
    enum tdm_torch_phase peak_phase;
    bool unmade; /* it failed before the step: the model itself does not fit */
    bool failed; /* the device ran out of memory in failed_phase; peaks are those up to the failure
                  */
    enum tdm_torch_phase failed_phase;
    const char *lacks; /* what it has too few of, if that is not the device's memory; or NULL */
    uint64_t retries;
};

/* The device on which steps run, and the memory it has for torch's segments. */
struct tdm_torch_device {
    struct tdm_gpu_facts gpu;
    uint64_t capacity_bytes; /* as the device reports it */
    uint64_t limit_bytes;    /* what it can provide; TDM_TORCH_ENDLESS: no limit */
    uint64_t
        most_moments; /* allocations and frees after which every allocation fails; 0: no limit */
    bool totals_only; /* which tensors are live at the peaks is not asked for */
};

struct tdm_torch_run {
    uint64_t weight_bytes;
    uint64_t work;    /* number of operations, allocations and frees */
    uint64_t skipped; /* of these, those that repeat others and were not simulated */
    uint32_t steps;   /* steps that began: fewer than requested if one failed */
    struct tdm_torch_step step[TDM_TORCH_STEPS];
};

/* An allocation or a free. Step 0 contains the events outside steps. Events between two steps
 * belong to the last phase of the earlier one. */
struct tdm_torch_event {
    uint32_t step;
    enum tdm_torch_phase phase;
    bool allocated;
    uint64_t bytes; /* as requested */
    enum tdm_method_category category;
    const struct tdm_label *label;
    const uint64_t *live; /* [TDM_METHOD_CATEGORIES] bytes after the event */
    uint64_t reserved;    /* by the allocator, after the event */
};

/* Receives the events of a run. */
struct tdm_torch_observer {
    void (*event)(void *context, const struct tdm_torch_event *event);
    void *context;
};

/* A training system: makes a model and executes the phases of steps on the machine. */
struct tdm_torch_system {
    /* Borrows all arguments but *state, which the caller owns. */
    enum tdm_status (*create)(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err);
    void (*free)(void *state); /* accepts NULL */
    void (*phases[TDM_TORCH_PHASES])(void *state);
    void (*end_step)(void *state); /* zero_grad, and other frees at the end of a step */
    uint64_t (*weight_bytes)(const void *state); /* of all parameters, without rounding */
};

extern const struct tdm_torch_system tdm_torch_system, /* Hugging Face's models, with or without a
                                                          wrapper, on whole or divided sequences */
    tdm_chunk_system,                                  /* the same, chunk by chunk */
    tdm_burst_system, tdm_megatron_system;

/* Runs `steps` steps (at most TDM_TORCH_STEPS) of the settings' method. `observer` may be NULL.
 * Fails with TDM_NO_MEMORY. A device that is too small is not an error; *run says so. */
enum tdm_status tdm_torch_run(const struct tdm_model *config,
                              const struct tdm_method_settings *settings,
                              const struct tdm_torch_device *device, uint32_t steps,
                              const struct tdm_torch_observer *observer, struct tdm_torch_run *run,
                              struct tdm_error *err);

#endif
