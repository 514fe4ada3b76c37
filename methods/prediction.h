/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a method needs on a GPU of a machine: allocated, reserved and used bytes at the peak, of the first
 * step and of later ones; host memory of the GPUs of one computer; and whether both fit.
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

struct tdm_method_prediction {
    uint64_t parameters_bytes;
    struct tdm_torch_runtime runtime;
    uint32_t count;
    struct tdm_method_step steps[TDM_TORCH_STEPS];
    uint32_t highest;    /* the step that needs most (used), or that failed */
    bool runs;           /* it gets through on the whole device */
    bool fits_device;    /* and on one that has the margin less */
    bool gives_back;     /* it fits there because cached memory goes back to the driver in time */
    uint64_t kept_bytes; /* used at the peak where the margin is kept; 0: it does not fit there */
    uint64_t host_gpus;  /* that share the machine's host memory */
    uint64_t host_peak_bytes; /* of all of them, in the steps that count as far as they get */
    bool fits_host;
    bool fits; /* device and host */
};

#define TDM_GPUS_OF_A_HOST 8u /* where no key says how many */

/* `margin`: 0.03 leaves 3% of the device's memory; of the host's all that the machine has to plan on may be taken. *prediction is set also where nothing fits. */
enum tdm_status tdm_method_predict(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err);

/* Runs the first `steps` steps on the whole device for an observer. */
enum tdm_status tdm_method_observe(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   const struct tdm_torch_observer *observer,
                                   struct tdm_error *err);

#endif
