/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions: facts of the cards, runs of the steps, and the verdict. */
#include "methods/prediction.h"

#include "base/size.h"
#include "methods/eager/te_float8.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* What kernels and libraries take, by card. cuBLAS workspaces are those of PyTorch's
 * aten/src/ATen/cuda/CUDAContext (parseChosenWorkspaceSize: 32 MiB from Hopper on, else 4096 KiB x
 * 2 and 16 KiB x 8). `sdpa`: what torch's scaled_dot_product_attention takes first
 * (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): cuDNN's kernel from Hopper on, flash from
 * compute capability 8.0 on, before that the memory-efficient one. */
static const struct card {
    const char *name; /* substring of a description's "card"; the first that is counts */
    struct tdm_gpu_facts gpu;
    enum tdm_torch_attention sdpa;
} cards[] = {
    {"A100", {108, 2048, 8519680, MIB, 80}, TDM_TORCH_SDPA_FLASH},
    {"A800", {108, 2048, 8519680, MIB, 80}, TDM_TORCH_SDPA_FLASH},
    {"A10G", {80, 1536, 8519680, MIB, 86}, TDM_TORCH_SDPA_FLASH},
    {"A10", {72, 1536, 8519680, MIB, 86}, TDM_TORCH_SDPA_FLASH},
    {"A6000", {84, 1536, 8519680, MIB, 86}, TDM_TORCH_SDPA_FLASH},
    {"L40S", {142, 1536, 8519680, MIB, 89}, TDM_TORCH_SDPA_FLASH},
    {"L4", {58, 1536, 8519680, MIB, 89}, TDM_TORCH_SDPA_FLASH},
    {"T4", {40, 1024, 8519680, MIB, 75}, TDM_TORCH_EFFICIENT},
    {"V100", {80, 2048, 8519680, MIB, 70}, TDM_TORCH_EFFICIENT},
    {"H200", {132, 2048, 32 * MIB, MIB, 90}, TDM_TORCH_SDPA},
    {"H20", {78, 2048, 32 * MIB, MIB, 90}, TDM_TORCH_SDPA},
    {"B200", {148, 2048, 8519680, MIB, 100}, TDM_TORCH_SDPA}, /* torch 2.10: 32 MiB on Hopper */
    {"3090", {82, 1536, 8519680, MIB, 86}, TDM_TORCH_SDPA_FLASH},
    {"4090", {128, 1536, 8519680, MIB, 89}, TDM_TORCH_SDPA_FLASH},
    {"5090", {170, 1536, 8519680, MIB, 120}, TDM_TORCH_SDPA_FLASH},
    {"MI300X", {304, 2048, 8519680, MIB, 94}, TDM_TORCH_SDPA_FLASH},
    {"", {132, 2048, 32 * MIB, MIB, 90}, TDM_TORCH_SDPA}, /* H100, H800, unknown cards */
};

/* Kernel code that the driver loads at first use, measured on an H200 with torch 2.11: */
#define TORCH_MODULE_BYTES (92 * MIB)
#define CUBLAS_BYTES (66 * MIB)          /* by the thread that runs the forward */
#define CUBLAS_BACKWARD_BYTES (66 * MIB) /* by autograd's thread */
#define CUDNN_ATTENTION_BYTES (16 * MIB) /* forward and backward */
#define NCCL_FIRST_BYTES (846 * MIB)     /* the first communicator, of two GPUs, with its kernels */
#define NCCL_NEXT_BYTES (484 * MIB)      /* each further communicator */
/* The first batch of messages between two GPUs. Of an all-to-all of eight H100s 3.28 GB are known,
 * 447 MiB a peer. */
#define NCCL_PEER_BYTES (384 * MIB)

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

const struct tdm_gpu_facts *tdm_machine_gpu_facts(const struct tdm_machine *machine)
{
    return &find_card(machine)->gpu;
}

/* Adapts the settings to the card, and returns it; sets what lies outside torch's segments. */
static const struct card *settle(const struct tdm_machine *machine,
                                 const struct tdm_method_settings *settings,
                                 struct tdm_method_settings *on_card,
                                 struct tdm_torch_runtime *runtime)
{
    const struct card *card = find_card(machine);
    *on_card = *settings;
    struct tdm_torch_settings *torch = &on_card->torch;
    if (torch->attention == TDM_TORCH_SDPA)
        torch->attention = card->sdpa;
    *runtime = (struct tdm_torch_runtime){
        .context_bytes = machine->topology.places[TDM_DEVICE].runtime_bytes,
        .nccl_bytes = nccl_bytes(settings->communicators) + settings->peers * NCCL_PEER_BYTES,
        .libraries_bytes = TORCH_MODULE_BYTES + CUBLAS_BYTES + CUBLAS_BACKWARD_BYTES +
                           (torch->attention == TDM_TORCH_SDPA ? CUDNN_ATTENTION_BYTES : 0)};
    return card;
}

static uint64_t less_runtime(uint64_t device_bytes, const struct tdm_torch_runtime *runtime)
{
    uint64_t taken = tdm_torch_runtime_bytes(runtime);
    return device_bytes > taken ? device_bytes - taken : 0;
}

/* Limit of a run on a device without a memory limit. A core processes ten million a second. */
#define MOST_MOMENTS 10000000u

/* What to predict, and on which device. */
struct asked {
    const struct tdm_model *model;
    struct tdm_method_settings settings; /* adapted to the card */
    struct tdm_torch_device device;
    struct tdm_torch_runtime runtime;
};

static void ask(const struct tdm_model *model, const struct tdm_machine *machine,
                const struct tdm_method_settings *settings, struct asked *asked)
{
    asked->model = model;
    const struct card *card = settle(machine, settings, &asked->settings, &asked->runtime);
    tdm_second_settle(model, machine, &asked->settings);
    uint64_t bytes =
        less_runtime(machine->topology.places[TDM_DEVICE].capacity_bytes, &asked->runtime);
    asked->device =
        (struct tdm_torch_device){.gpu = card->gpu, .capacity_bytes = bytes, .limit_bytes = bytes};
}

static enum tdm_status run(const struct asked *asked, uint64_t limit_bytes,
                           struct tdm_torch_run *out, struct tdm_method_prediction *p,
                           struct tdm_error *err)
{
    uint32_t steps = asked->settings.step == 0 ? TDM_TORCH_STEPS : asked->settings.step;
    struct tdm_torch_device device = asked->device;
    device.limit_bytes = limit_bytes;
    enum tdm_status status = tdm_te_check(asked->settings.megatron.float8, &device.gpu, err);
    if (status == TDM_OK)
        status = tdm_torch_run(asked->model, &asked->settings, &device, steps, NULL, out, err);
    if (status == TDM_OK)
        p->work += out->work;
    return status;
}

static bool failed(const struct tdm_torch_run *out)
{
    return out->steps > 0 && out->step[out->steps - 1].failed;
}

/* The maximum over the steps that count. */
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
    p->count = p->highest = 0;
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

static void note_failure(struct tdm_method_prediction *p)
{
    const struct tdm_method_step *last = &p->steps[p->highest];
    p->failure = (struct tdm_method_failure){.step = last->number,
                                             .phase = last->torch.failed_phase,
                                             .lacks = last->torch.lacks,
                                             .unmade = last->torch.unmade,
                                             .used_bytes = last->used_bytes};
}

/* All GPUs of a computer need their host memory at the same time. Only offloaded data is counted,
 * not what each process and its libraries take. */
static void judge_host(const struct tdm_machine *machine,
                       const struct tdm_method_settings *settings, struct tdm_method_prediction *p)
{
    uint64_t node = settings->torch.context.gpus_per_node > 0
                        ? settings->torch.context.gpus_per_node
                        : settings->torch.gpus_of_a_node;
    uint64_t most = node > 0 ? node : TDM_GPUS_OF_A_HOST, of_gpu = 0;
    p->host_gpus = settings->torch.ranks < most ? settings->torch.ranks : most;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->steps[i].torch.host_bytes > of_gpu)
            of_gpu = p->steps[i].torch.host_bytes;
    p->host_peak_bytes = tdm_size_mul(of_gpu, p->host_gpus);
    p->fits_host = p->host_peak_bytes <= tdm_machine_far(machine)->capacity_bytes;
}

/* What a step may use if it leaves the margin. */
static uint64_t less_margin(const struct tdm_machine *machine, double margin)
{
    return (uint64_t)((double)machine->topology.places[TDM_DEVICE].capacity_bytes * (1 - margin));
}

/* What is known of a run with the margin left. */
struct limited {
    bool fails;
    uint64_t kept_bytes, work; /* kept_bytes: used at the peak */
};

static struct limited limited_by(const struct asked *asked, const struct tdm_torch_run *out)
{
    return (struct limited){.fails = failed(out),
                            .kept_bytes = highest_bytes(out, asked->settings.step, &asked->runtime),
                            .work = out->work};
}

/* Does a run that completes on the whole device also complete with the margin left? `limited`: what
 * is known of that, or NULL. */
static enum tdm_status judge_device(const struct asked *asked, uint64_t device_bytes,
                                    const struct limited *limited, struct tdm_method_prediction *p,
                                    struct tdm_error *err)
{
    struct tdm_torch_run out;
    struct limited found;
    enum tdm_status status = TDM_OK;
    p->kept_bytes = p->steps[p->highest].used_bytes;
    p->fits_device = p->kept_bytes <= device_bytes;
    if (p->fits_device)
        return TDM_OK;
    /* It may still complete, if the allocator returns cached segments in time. */
    if (limited != NULL)
        p->work += limited->work;
    else
        status = run(asked, less_runtime(device_bytes, &p->runtime), &out, p, err);
    if (status != TDM_OK)
        return status;
    if (limited == NULL) {
        found = limited_by(asked, &out);
        limited = &found;
    }
    p->fits_device = p->gives_back = !limited->fails;
    p->kept_bytes = p->fits_device ? limited->kept_bytes : 0;
    return TDM_OK;
}

static enum tdm_status predict(const struct asked *asked, const struct tdm_machine *machine,
                               const struct tdm_method_settings *settings, double margin,
                               const struct limited *limited,
                               struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    struct tdm_torch_run out;
    *prediction = (struct tdm_method_prediction){.runtime = asked->runtime};
    enum tdm_status status = run(asked, asked->device.limit_bytes, &out, prediction, err);
    if (status != TDM_OK)
        return status;
    prediction->parameters_bytes = out.weight_bytes;
    prediction->runs = !failed(&out);
    note_steps(&out, settings->step, prediction);
    judge_host(machine, settings, prediction);
    if (prediction->runs)
        status = judge_device(asked, less_margin(machine, margin), limited, prediction, err);
    else
        note_failure(prediction);
    prediction->fits = prediction->fits_device && prediction->fits_host;
    return status;
}

static bool gave_back(const struct tdm_torch_run *out)
{
    uint64_t retries = 0;
    for (uint32_t i = 0; i < out->steps; i++)
        retries += out->step[i].retries;
    return retries > 0;
}

/* Takes the result of a run on a device smaller by the margin as the prediction. */
static void take_limited(const struct asked *asked, const struct tdm_machine *machine,
                         const struct tdm_torch_run *out, struct tdm_method_prediction *p)
{
    p->parameters_bytes = out->weight_bytes;
    note_steps(out, asked->settings.step, p);
    judge_host(machine, &asked->settings, p);
    p->runs = p->fits_device = !failed(out);
    p->gives_back = p->fits_device && gave_back(out);
    p->kept_bytes = p->fits_device ? p->steps[p->highest].used_bytes : 0;
    p->fits = p->fits_device && p->fits_host;
}

static enum tdm_status try_limited(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   bool whole, uint64_t most_work,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    struct asked asked;
    struct tdm_torch_run out;
    struct tdm_method_prediction p = {.parameters_bytes = 0};
    ask(model, machine, settings, &asked);
    asked.device.totals_only = true;
    asked.device.most_moments = most_work;
    p.runtime = asked.runtime;
    enum tdm_status status =
        run(&asked, less_runtime(less_margin(machine, margin), &p.runtime), &out, &p, err);
    if (status == TDM_OK && whole && !failed(&out) &&
        gave_back(&out)) { /* the result on the whole device differs */
        const struct limited limited = limited_by(&asked, &out);
        status = predict(&asked, machine, settings, margin, &limited, &p, err);
        p.work += limited.work;
    } else if (status == TDM_OK) {
        take_limited(&asked, machine, &out, &p);
        p.ended = most_work > 0 && failed(&out) && out.work >= most_work;
    }
    if (status == TDM_OK)
        *prediction = p;
    return status;
}

static enum tdm_status try_after(const struct tdm_model *model, const struct tdm_machine *machine,
                                 const struct tdm_method_settings *settings, double margin,
                                 const struct tdm_method_prediction *probe,
                                 struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    struct asked asked;
    struct tdm_method_prediction p;
    const struct limited limited = {.kept_bytes = probe->kept_bytes, .work = probe->work};
    ask(model, machine, settings, &asked);
    asked.device.totals_only = true;
    enum tdm_status status = predict(&asked, machine, settings, margin, &limited, &p, err);
    p.work += limited.work;
    if (status == TDM_OK)
        *prediction = p;
    return status;
}

/* Lower bound of the need of a run on a device without a memory limit, if it was stopped early.
 * Otherwise the need exceeds any device. */
static uint64_t least_bytes(const struct tdm_machine *machine, const struct tdm_torch_run *out,
                            const struct tdm_torch_runtime *runtime)
{
    uint64_t used = highest_bytes(out, 0, runtime),
             has = machine->topology.places[TDM_DEVICE].capacity_bytes;
    if (out->work < MOST_MOMENTS)
        return TDM_TORCH_ENDLESS;
    return used > has ? used : has;
}

static enum tdm_status need(const struct tdm_model *model, const struct tdm_machine *machine,
                            const struct tdm_method_settings *settings,
                            struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    struct asked asked;
    struct tdm_torch_run out;
    ask(model, machine, settings, &asked);
    asked.device.most_moments = MOST_MOMENTS;
    enum tdm_status status = run(&asked, TDM_TORCH_ENDLESS, &out, prediction, err);
    if (status == TDM_OK && failed(&out))
        prediction->least_bytes = least_bytes(machine, &out, &asked.runtime);
    if (status != TDM_OK || failed(&out))
        return status;
    note_steps(&out, settings->step, prediction);
    judge_host(machine, settings, prediction);
    prediction->endless = true;
    return TDM_OK;
}

/* ---- the ends of a pipeline ---- */

/* A prediction of either kind, for a GPU at one end. */
struct call {
    enum { PREDICT, TRY, PROBE, TRY_AFTER, NEED } kind;
    const struct tdm_model *model;
    const struct tdm_machine *machine;
    double margin;
    uint64_t most_work;
    const struct tdm_method_prediction *probe; /* of TRY_AFTER */
};

static enum tdm_status of_one_end(const struct call *c, const struct tdm_method_settings *settings,
                                  struct tdm_method_prediction *p, struct tdm_error *err)
{
    struct asked asked;
    switch (c->kind) {
    case TRY:
    case PROBE:
        return try_limited(c->model, c->machine, settings, c->margin, c->kind == TRY, c->most_work,
                           p, err);
    case TRY_AFTER:
        return try_after(c->model, c->machine, settings, c->margin, c->probe, p, err);
    case NEED:
        return need(c->model, c->machine, settings, p, err);
    default:
        ask(c->model, c->machine, settings, &asked);
        return predict(&asked, c->machine, settings, c->margin, NULL, p, err);
    }
}

/* Does another stage decide, rather than this one? */
static bool decides(const struct tdm_method_prediction *other,
                    const struct tdm_method_prediction *one)
{
    if (other->fits_device != one->fits_device)
        return !other->fits_device;
    if (other->runs != one->runs)
        return !other->runs;
    if (other->least_bytes != one->least_bytes)
        return other->least_bytes > one->least_bytes;
    return tdm_method_peak_bytes(other) > tdm_method_peak_bytes(one);
}

/* Stages of a pipeline that may have the peak that is asked for. */
static uint64_t count_stages(const struct tdm_model *model,
                             const struct tdm_method_settings *settings)
{
    struct tdm_megatron_layout layout;
    const enum tdm_megatron_rank rank = settings->megatron.rank;
    if (settings->method == NULL || settings->method->system != &tdm_megatron_system ||
        rank == TDM_RANK_FIRST || rank == TDM_RANK_LAST ||
        tdm_megatron_layout(model, settings, &layout, NULL) != TDM_OK || layout.pipeline == 1)
        return 1;
    return rank == TDM_RANK_BETWEEN ? layout.between : 2 + layout.between;
}

/* Makes settings those of the stage of this number among these. */
static void choose_stage(struct tdm_megatron_settings *s, uint64_t number)
{
    const uint64_t ends = s->rank == TDM_RANK_HIGHEST ? 2 : 0;
    s->run = s->rank == TDM_RANK_LAST || (ends > 0 && number == 1)     ? TDM_RUN_LAST
             : s->rank == TDM_RANK_BETWEEN || (ends > 0 && number > 1) ? TDM_RUN_BETWEEN
                                                                       : TDM_RUN_FIRST;
    s->between = s->run == TDM_RUN_BETWEEN ? number - ends : 0;
}

/* Of a pipeline the prediction is that of its first or of its last stage, or of one between,
 * whichever needs more. */
static enum tdm_status of_stages(const struct call *c, const struct tdm_method_settings *settings,
                                 struct tdm_method_prediction *p, struct tdm_error *err)
{
    struct tdm_method_settings stage = *settings;
    struct call each = *c;
    const uint64_t stages = count_stages(c->model, settings);
    if (stages <= 1) {
        choose_stage(&stage.megatron, 0);
        enum tdm_status status = of_one_end(c, &stage, p, err);
        p->run = status == TDM_OK ? stage.megatron.run : TDM_RUN_FIRST;
        return status;
    }
    if (c->kind == TRY_AFTER) /* the probe was of one stage */
        each.kind = TRY;
    struct tdm_method_prediction start = {.parameters_bytes = 0}, highest = start;
    if (c->kind == NEED) /* after a prediction */
        start = *p;
    uint64_t work = c->kind == NEED ? 0 - (stages - 1) * p->work : 0;
    bool ended = false;
    for (uint64_t i = 0; i < stages; i++) {
        struct tdm_method_prediction one = start;
        choose_stage(&stage.megatron, i);
        enum tdm_status status = of_one_end(&each, &stage, &one, err);
        if (status != TDM_OK)
            return status;
        one.run = stage.megatron.run;
        work += one.work;
        ended = ended || one.ended;
        if (i == 0 || decides(&one, &highest))
            highest = one;
    }
    *p = highest;
    p->work = work;
    p->ended = ended;
    return TDM_OK;
}

enum tdm_status tdm_method_predict(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    const struct call call = {
        .kind = PREDICT, .model = model, .machine = machine, .margin = margin};
    *prediction = (struct tdm_method_prediction){.parameters_bytes = 0};
    return of_stages(&call, settings, prediction, err);
}

enum tdm_status tdm_method_try(const struct tdm_model *model, const struct tdm_machine *machine,
                               const struct tdm_method_settings *settings, double margin,
                               uint64_t most_work, struct tdm_method_prediction *prediction,
                               struct tdm_error *err)
{
    const struct call call = {
        .kind = TRY, .model = model, .machine = machine, .margin = margin, .most_work = most_work};
    return of_stages(&call, settings, prediction, err);
}

enum tdm_status tdm_method_probe(const struct tdm_model *model, const struct tdm_machine *machine,
                                 const struct tdm_method_settings *settings, double margin,
                                 struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    const struct call call = {.kind = PROBE, .model = model, .machine = machine, .margin = margin};
    return of_stages(&call, settings, prediction, err);
}

enum tdm_status tdm_method_try_after(const struct tdm_model *model,
                                     const struct tdm_machine *machine,
                                     const struct tdm_method_settings *settings, double margin,
                                     const struct tdm_method_prediction *probe,
                                     struct tdm_method_prediction *prediction,
                                     struct tdm_error *err)
{
    const struct call call = {
        .kind = TRY_AFTER, .model = model, .machine = machine, .margin = margin, .probe = probe};
    return of_stages(&call, settings, prediction, err);
}

enum tdm_status tdm_method_need(const struct tdm_model *model, const struct tdm_machine *machine,
                                const struct tdm_method_settings *settings,
                                struct tdm_method_prediction *prediction, struct tdm_error *err)
{
    const struct call call = {.kind = NEED, .model = model, .machine = machine};
    return prediction->fits_device ? TDM_OK : of_stages(&call, settings, prediction, err);
}

enum tdm_status tdm_method_observe(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, uint32_t steps,
                                   bool endless, enum tdm_megatron_run run,
                                   const struct tdm_torch_observer *observer, struct tdm_error *err)
{
    struct asked asked;
    struct tdm_torch_run out;
    ask(model, machine, settings, &asked);
    asked.settings.megatron.run = run;
    if (endless)
        asked.device.limit_bytes = TDM_TORCH_ENDLESS;
    return tdm_torch_run(model, &asked.settings, &asked.device, steps, observer, &out, err);
}
