/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a method needs on a GPU of a machine: allocated, reserved and used bytes at the peak, of
 * the first step and of later ones; the host memory of all GPUs of one computer; and whether
 * both fit.
 */
#ifndef TDM_METHODS_PREDICTION_H
#define TDM_METHODS_PREDICTION_H

#include "machines/machine.h"
#include "methods/method.h"

/* Memory that the driver counts outside torch's segments. */
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

/* Bytes that the allocator holds at the peak beyond what is allocated. */
static inline uint64_t tdm_method_cached_bytes(const struct tdm_method_step *step)
{
    return step->torch.peak.reserved - step->torch.peak.allocated;
}

/* Where a step fails for lack of device memory. */
struct tdm_method_failure {
    uint32_t step;
    enum tdm_torch_phase phase;
    const char *lacks;   /* what there is too few of, if that is not the device's memory; or NULL */
    bool unmade;         /* it failed before the first step: the model itself does not fit */
    uint64_t used_bytes; /* the maximum up to the failure */
};

struct tdm_method_prediction {
    uint64_t parameters_bytes;
    uint64_t work; /* work of the runs that the prediction took, in the unit of tdm_torch_run */
    struct tdm_torch_runtime runtime;
    uint32_t count;
    struct tdm_method_step steps[TDM_TORCH_STEPS];
    uint32_t highest;                  /* index of the step that uses most, or that failed */
    bool runs;                         /* all steps complete on the whole device */
    struct tdm_method_failure failure; /* set if not `runs` */
    bool endless; /* the steps are those of a device without a limit: see tdm_method_need() */
    uint64_t least_bytes;     /* where those steps are not known: a lower bound of the used bytes */
    bool fits_device;         /* all steps also complete on a device smaller by the margin */
    bool gives_back;          /* they do only because cached memory returns to the driver in time */
    uint64_t kept_bytes;      /* used bytes at the peak with the margin kept; 0: it does not fit */
    uint64_t host_gpus;       /* GPUs that share the machine's host memory */
    uint64_t host_peak_bytes; /* of all of them together, over the steps that count, as far as they
                                 run */
    bool fits_host;
    bool fits;                 /* device and host */
    enum tdm_megatron_run run; /* the stage of a pipeline that it is of */
    bool ended; /* the steps took more than `most_work`: whether it fits is not known */
};

/* What kernels and libraries take on the machine's card. */
const struct tdm_gpu_facts *tdm_machine_gpu_facts(const struct tdm_machine *machine);

#define TDM_GPUS_OF_A_HOST 8u /* where no key gives the number */

/* `margin`: 0.03 leaves 3% of the device's memory free. All host memory that the machine offers may
 * be used. *prediction is also set if the method does not fit. */
enum tdm_status tdm_method_predict(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err);

/* The same, faster for settings that may not fit. If they do not fit the device, the steps end
 * where that became known, and `runs` and `failure` are not set. A run of the steps ends after
 * `most_work` allocations and frees (0: no limit); `ended` is then set, and `fits` is not. */
enum tdm_status tdm_method_try(const struct tdm_model *model, const struct tdm_machine *machine,
                               const struct tdm_method_settings *settings, double margin,
                               uint64_t most_work, struct tdm_method_prediction *prediction,
                               struct tdm_error *err);

/* The same, faster still where cached memory must be given back: what the steps take on the whole
 * device is not found out. Steps and peaks are those with the margin kept, and that all steps
 * complete on the whole device is assumed. */
enum tdm_status tdm_method_probe(const struct tdm_model *model, const struct tdm_machine *machine,
                                 const struct tdm_method_settings *settings, double margin,
                                 struct tdm_method_prediction *prediction, struct tdm_error *err);

/* tdm_method_try() where tdm_method_probe() found that cached memory is given back. It runs the
 * steps on the whole device alone. */
enum tdm_status tdm_method_try_after(const struct tdm_model *model,
                                     const struct tdm_machine *machine,
                                     const struct tdm_method_settings *settings, double margin,
                                     const struct tdm_method_prediction *probe,
                                     struct tdm_method_prediction *prediction,
                                     struct tdm_error *err);

/* Finds the total need after a prediction that does not fit the device. Steps, peaks and host
 * memory become those of a device with unlimited memory; failure, runs, fits_device and kept_bytes
 * stay. Only least_bytes is set if even TDM_TORCH_ENDLESS bytes are too few, or if finding out
 * takes more than about a second (as with millions of tokens in chunks). */
enum tdm_status tdm_method_need(const struct tdm_model *model, const struct tdm_machine *machine,
                                const struct tdm_method_settings *settings,
                                struct tdm_method_prediction *prediction, struct tdm_error *err);

/* Used bytes of the step that uses most. */
static inline uint64_t tdm_method_peak_bytes(const struct tdm_method_prediction *prediction)
{
    return prediction->steps[prediction->highest].used_bytes;
}

/* Runs the first `steps` steps for an observer, on the whole device or on one without a limit.
 * `run`: as in the prediction. */
enum tdm_status tdm_method_observe(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   bool endless, enum tdm_megatron_run run,
                                   const struct tdm_torch_observer *observer,
                                   struct tdm_error *err);

#endif
