/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a method needs on a GPU of a machine: allocated, reserved and used bytes at the peak, of the
 * first step and of later ones; host memory of the GPUs of one computer; and whether both fit.
 */
#ifndef TDM_METHODS_PREDICTION_H
#define TDM_METHODS_PREDICTION_H

#include "machines/machine.h"
#include "methods/method.h"

/* What the driver counts beside torch's segments. */
struct tdm_torch_runtime {
    uint64_t context_bytes, libraries_bytes, nccl_bytes;
};

uint64_t tdm_torch_runtime_bytes(const struct tdm_torch_runtime *runtime);

struct tdm_method_step {
    uint32_t number;
    struct tdm_torch_step torch;
    uint64_t used_bytes;     /* at the peak: reserved, context and libraries */
    uint64_t end_used_bytes; /* after the step */
};

/* What the allocator holds at the peak beside what is allocated. */
static inline uint64_t tdm_method_cached_bytes(const struct tdm_method_step *step)
{
    return step->torch.peak.reserved - step->torch.peak.allocated;
}

/* Where a step that the device has no room for ends. */
struct tdm_method_failure {
    uint32_t step;
    enum tdm_torch_phase phase;
    bool unmade;         /* before the first step: the model itself has no room */
    uint64_t used_bytes; /* the most until then */
};

struct tdm_method_prediction {
    uint64_t parameters_bytes;
    uint64_t work; /* of the runs that it took, as tdm_torch_run has it */
    struct tdm_torch_runtime runtime;
    uint32_t count;
    struct tdm_method_step steps[TDM_TORCH_STEPS];
    uint32_t highest;                  /* the step that needs most (used), or that failed */
    bool runs;                         /* it gets through on the whole device */
    struct tdm_method_failure failure; /* else where not */
    bool endless;         /* steps are those of a device without limit: see tdm_method_need() */
    uint64_t least_bytes; /* where these are not known: more than so much is used */
    bool fits_device;     /* and on one that has the margin less */
    bool gives_back;      /* it fits there because cached memory goes back to the driver in time */
    uint64_t kept_bytes;  /* used at the peak where the margin is kept; 0: it does not fit there */
    uint64_t host_gpus;   /* that share the machine's host memory */
    uint64_t host_peak_bytes; /* of all of them, in the steps that count as far as they get */
    bool fits_host;
    bool fits; /* device and host */
};

#define TDM_GPUS_OF_A_HOST 8u /* where no key says how many */

/* `margin`: 0.03 leaves 3% of the device's memory; of the host's all that the machine has to plan
 * on may be taken. *prediction is set also where nothing fits. */
enum tdm_status tdm_method_predict(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err);

/* The same, of what may not fit: where it does not fit the device, the steps are what was gone
 * through until that was known, and `runs` and `failure` are not set. */
enum tdm_status tdm_method_try(const struct tdm_model *model, const struct tdm_machine *machine,
                               const struct tdm_method_settings *settings, double margin,
                               struct tdm_method_prediction *prediction, struct tdm_error *err);

/* What it takes in total, of a prediction that does not fit the device: its steps, peaks and host
 * memory become those of a device that has as much memory as is asked for; failure, runs,
 * fits_device and kept_bytes stay. Where even that is not enough, or it takes more than about a
 * second to find out, as with millions of tokens in chunks, only least_bytes is set. */
enum tdm_status tdm_method_need(const struct tdm_model *model, const struct tdm_machine *machine,
                                const struct tdm_method_settings *settings,
                                struct tdm_method_prediction *prediction, struct tdm_error *err);

/* Used bytes of the step that needs most. */
static inline uint64_t tdm_method_peak_bytes(const struct tdm_method_prediction *prediction)
{
    return prediction->steps[prediction->highest].used_bytes;
}

/* Runs the first `steps` steps for an observer, on the whole device or on one without limit. */
enum tdm_status tdm_method_observe(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   bool endless, const struct tdm_torch_observer *observer,
                                   struct tdm_error *err);

#endif
