/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of the cards, runs of the steps, and the answer. */
#include "methods/prediction.h"

#include "base/size.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* What kernels and libraries take by the card; cuBLAS workspaces are those of PyTorch's
 * aten/src/ATen/cuda/CUDAContext (parseChosenWorkspaceSize: 32 MiB from Hopper on, else 4096 KiB x 2 and 16 KiB x 8). */
static const struct card {
    const char *name; /* part of a description's "card" */
    struct tdm_gpu_facts gpu;
    bool cudnn_attention; /* sdpa prefers cuDNN's kernel */
} cards[] = {
    {"A100", {108, 2048, 8519680, MIB}, false},
    {"L40S", {142, 1536, 8519680, MIB}, false},
    {"B200", {148, 2048, 8519680, MIB}, true}, /* torch 2.10: 32 MiB on Hopper alone */
    {"4090", {128, 1536, 8519680, MIB}, false},
    {"", {132, 2048, 32 * MIB, MIB}, true}, /* H100, H200, and what is not known */
};

/* Kernel code that the driver loads when it is first needed, measured on an H200 with torch 2.11: */
#define TORCH_MODULE_BYTES (92 * MIB)
#define CUBLAS_BYTES (66 * MIB)          /* of the thread that runs the forward */
#define CUBLAS_BACKWARD_BYTES (66 * MIB) /* of autograd's */
#define CUDNN_ATTENTION_BYTES (16 * MIB) /* forward and backward */
#define NCCL_FIRST_BYTES (846 * MIB)     /* its first communicator, of two GPUs, and its kernels */
#define NCCL_NEXT_BYTES (484 * MIB)      /* each later one */
#define NCCL_PEER_BYTES (384 * MIB)      /* its first batch of messages between two GPUs */

uint64_t tdm_torch_runtime_bytes(const struct tdm_torch_runtime *runtime)
{
    return runtime->context_bytes + runtime->libraries_bytes + runtime->nccl_bytes;
}

static uint64_t nccl_bytes(uint32_t communicators)
{
    return communicators == 0 ? 0 : NCCL_FIRST_BYTES + (communicators - 1) * NCCL_NEXT_BYTES;
}

static const struct card *find_card(const struct tdm_machine *machine)
{
    const char *name = json_string_value(json_object_get(machine->description, "card"));
    const struct card *card = cards;
    while (card->name[0] != '\0' && (name == NULL || strstr(name, card->name) == NULL))
        card++;
    return card;
}

/* The settings as they are on the card, and what lies beside torch's segments there. */
static const struct card *settle(const struct tdm_machine *machine,
                                 const struct tdm_method_settings *settings,
                                 struct tdm_method_settings *on_card,
                                 struct tdm_torch_runtime *runtime)
{
    const struct card *card = find_card(machine);
    *on_card = *settings;
    struct tdm_torch_settings *torch = &on_card->torch;
    if (torch->attention == TDM_TORCH_SDPA && !card->cudnn_attention)
        torch->attention = TDM_TORCH_SDPA_FLASH;
    *runtime = (struct tdm_torch_runtime){
        .context_bytes = machine->runtime_bytes[TDM_DEVICE],
        .nccl_bytes =
            nccl_bytes(settings->communicators) + (settings->sends_to_peers ? NCCL_PEER_BYTES : 0),
        .libraries_bytes = TORCH_MODULE_BYTES + CUBLAS_BYTES + CUBLAS_BACKWARD_BYTES +
                           (torch->attention == TDM_TORCH_SDPA ? CUDNN_ATTENTION_BYTES : 0)};
    return card;
}

static uint64_t less_runtime(uint64_t device_bytes, const struct tdm_torch_runtime *runtime)
{
    uint64_t taken = tdm_torch_runtime_bytes(runtime);
    return device_bytes > taken ? device_bytes - taken : 0;
}

static enum tdm_status run(const struct tdm_model *model,
                           const struct tdm_method_settings *settings, const struct card *card,
                           uint64_t device_bytes, const struct tdm_torch_runtime *runtime,
                           struct tdm_torch_run *out, struct tdm_error *err)
{
    uint32_t steps = settings->step == 0 ? TDM_TORCH_STEPS : settings->step;
    return tdm_torch_run(model, settings, &card->gpu, less_runtime(device_bytes, runtime), steps,
                         NULL, out, err);
}

static bool failed(const struct tdm_torch_run *out)
{
    return out->steps > 0 && out->step[out->steps - 1].failed;
}

/* Of the steps that count. */
static uint64_t highest_bytes(const struct tdm_torch_run *out, uint32_t only,
                              const struct tdm_torch_runtime *runtime)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < out->steps; i++)
        if ((only == 0 || only == i + 1) && out->step[i].peak.reserved > most)
            most = out->step[i].peak.reserved;
    return most + tdm_torch_runtime_bytes(runtime);
}

static void note_steps(const struct tdm_torch_run *out, uint32_t only,
                       struct tdm_method_prediction *p)
{
    uint64_t taken = tdm_torch_runtime_bytes(&p->runtime);
    for (uint32_t i = 0; i < out->steps; i++) {
        bool last = i + 1 == out->steps;
        if (only != 0 && only != i + 1 && !(last && out->step[i].failed))
            continue;
        struct tdm_method_step *step = &p->steps[p->count];
        step->number = i + 1;
        step->torch = out->step[i];
        step->used_bytes = out->step[i].peak.reserved + taken;
        step->end_used_bytes = out->step[i].end_reserved_bytes + taken;
        const struct tdm_method_step *most = &p->steps[p->highest];
        if (step->torch.failed || step->used_bytes > most->used_bytes ||
            (step->used_bytes == most->used_bytes &&
             step->torch.peak.allocated > most->torch.peak.allocated))
            p->highest = p->count;
        p->count++;
    }
}

/* All GPUs of a computer need as much of its memory at once; only what is offloaded is counted, not what each process
 * and its libraries take. */
static void judge_host(const struct tdm_machine *machine,
                       const struct tdm_method_settings *settings, struct tdm_method_prediction *p)
{
    uint64_t node = settings->torch.context.gpus_per_node;
    uint64_t most = node > 0 ? node : TDM_GPUS_OF_A_HOST, of_gpu = 0;
    p->host_gpus = settings->torch.ranks < most ? settings->torch.ranks : most;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->steps[i].torch.host_bytes > of_gpu)
            of_gpu = p->steps[i].torch.host_bytes;
    p->host_peak_bytes = tdm_size_mul(of_gpu, p->host_gpus);
    p->fits_host = p->host_peak_bytes <= machine->capacity_bytes[TDM_HOST];
}

/* Does what runs on the whole device get through with the margin left? */
static enum tdm_status judge_device(const struct tdm_model *model,
                                    const struct tdm_method_settings *settings,
                                    const struct card *card, uint64_t device_bytes,
                                    struct tdm_method_prediction *p, struct tdm_error *err)
{
    struct tdm_torch_run out;
    p->kept_bytes = p->steps[p->highest].used_bytes;
    p->fits_device = p->kept_bytes <= device_bytes;
    if (p->fits_device)
        return TDM_OK;
    /* It may still get through, if the allocator gives cached segments back in time. */
    enum tdm_status status = run(model, settings, card, device_bytes, &p->runtime, &out, err);
    if (status == TDM_OK)
        p->fits_device = p->gives_back = !failed(&out);
    p->kept_bytes = p->fits_device ? highest_bytes(&out, settings->step, &p->runtime) : 0;
    return status;
}

enum tdm_status tdm_method_predict(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    struct tdm_method_settings on_card;
    uint64_t device_bytes = machine->capacity_bytes[TDM_DEVICE];
    struct tdm_torch_run out;
    memset(prediction, 0, sizeof(*prediction));
    const struct card *card = settle(machine, settings, &on_card, &prediction->runtime);
    enum tdm_status status =
        run(model, &on_card, card, device_bytes, &prediction->runtime, &out, err);
    if (status != TDM_OK)
        return status;
    prediction->parameters_bytes = out.weight_bytes;
    prediction->runs = !failed(&out);
    note_steps(&out, settings->step, prediction);
    judge_host(machine, settings, prediction);
    if (prediction->runs)
        status = judge_device(model, &on_card, card,
                              (uint64_t)((double)device_bytes * (1 - margin)), prediction, err);
    prediction->fits = prediction->fits_device && prediction->fits_host;
    return status;
}

enum tdm_status tdm_method_observe(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   const struct tdm_torch_observer *observer, struct tdm_error *err)
{
    struct tdm_method_settings on_card;
    struct tdm_torch_runtime runtime;
    struct tdm_torch_run out;
    const struct card *card = settle(machine, settings, &on_card, &runtime);
    uint64_t capacity = less_runtime(machine->capacity_bytes[TDM_DEVICE], &runtime);
    return tdm_torch_run(model, &on_card, &card->gpu, capacity, steps, observer, &out, err);
}
