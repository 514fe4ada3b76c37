/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a training run of a system that is built on PyTorch, on one GPU (the first of several),
 * and what memory each took: forward, backward, optimizer step.
 */
#ifndef TDM_METHODS_TORCH_RUN_H
#define TDM_METHODS_TORCH_RUN_H

#include "methods/torch/model.h"

struct tdm_method_settings;

#define TDM_TORCH_STEPS 3u /* later steps are as the third */

#define TDM_TORCH_LARGEST 6u

enum tdm_torch_phase {
    TDM_PHASE_FORWARD,
    TDM_PHASE_BACKWARD,
    TDM_PHASE_OPTIMIZER,
    TDM_TORCH_PHASES
};

const char *tdm_torch_phase_name(enum tdm_torch_phase phase);

struct tdm_torch_step {
    uint64_t before_bytes;                /* allocated before it */
    uint64_t end_bytes[TDM_TORCH_PHASES]; /* allocated after the phase */
    uint64_t
        highest_bytes[TDM_TORCH_PHASES]; /* the most allocated in the step, up to the phase's end */
    struct tdm_torch_bytes peak;         /* of the step */
    uint64_t end_reserved_bytes;         /* after it: less where cached memory went back */
    uint64_t categories[TDM_METHOD_CATEGORIES];         /* at the peak of what is allocated */
    uint64_t host_bytes;                                /* the most of host memory */
    struct tdm_tensor_group largest[TDM_TORCH_LARGEST]; /* at the peak of what is allocated */
    uint32_t largest_count;
    enum tdm_torch_phase peak_phase;
    bool unmade; /* before it: the model itself has no room */
    bool failed; /* the device has too little, in failed_phase: peaks are those until then */
    enum tdm_torch_phase failed_phase;
    uint64_t retries;
};

/* The device that steps run on, and what it has for torch's segments. */
struct tdm_torch_device {
    struct tdm_gpu_facts gpu;
    uint64_t capacity_bytes; /* that it says it has */
    uint64_t limit_bytes;    /* that it gives; TDM_TORCH_ENDLESS: as much as is asked for */
    uint64_t most_moments;   /* allocations and frees before it gives nothing more; 0: any number */
};

struct tdm_torch_run {
    uint64_t weight_bytes;
    uint64_t work;  /* operations, allocations and frees that were gone through */
    uint32_t steps; /* that began: fewer than asked for if one failed */
    struct tdm_torch_step step[TDM_TORCH_STEPS];
};

/* An allocation or a free. Step 0 is what lies around the steps; what goes between two steps
 * belongs to the first one's last phase. */
struct tdm_torch_event {
    uint32_t step;
    enum tdm_torch_phase phase;
    bool allocated;
    uint64_t bytes; /* as asked for */
    enum tdm_method_category category;
    const struct tdm_label *label;
    const uint64_t *live; /* [TDM_METHOD_CATEGORIES] bytes after it */
    uint64_t reserved;    /* of the allocator, after it */
};

/* For those who want to see the events of a run. */
struct tdm_torch_observer {
    void (*event)(void *context, const struct tdm_torch_event *event);
    void *context;
};

/* A system that trains: it makes a model and carries out the phases of steps on the machine. */
struct tdm_torch_system {
    /* Borrows all but *state, which the caller owns. */
    enum tdm_status (*create)(struct tdm_eager *m, const struct tdm_model *config,
                              const struct tdm_method_settings *settings, void **state,
                              struct tdm_error *err);
    void (*free)(void *state); /* NULL is fine */
    void (*phases[TDM_TORCH_PHASES])(void *state);
    void (*end_step)(void *state);               /* zero_grad, and what else goes */
    uint64_t (*weight_bytes)(const void *state); /* of all parameters, without rounding */
};

extern const struct tdm_torch_system tdm_torch_system, /* Hugging Face's models, wrapped or not, on
                                                          whole sequences or on parts of them */
    tdm_chunk_system,                                  /* the same chunk by chunk */
    tdm_burst_system, tdm_megatron_system;

/* Runs `steps` steps (at most TDM_TORCH_STEPS) of the settings' method. `observer` may be NULL.
 * TDM_NO_MEMORY; a device that is too small is no failure, but said in *run. */
enum tdm_status tdm_torch_run(const struct tdm_model *config,
                              const struct tdm_method_settings *settings,
                              const struct tdm_torch_device *device, uint32_t steps,
                              const struct tdm_torch_observer *observer, struct tdm_torch_run *run,
                              struct tdm_error *err);

#endif
