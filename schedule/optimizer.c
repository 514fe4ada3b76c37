/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: the table of the state that each keeps, and the defaults and checks by it. */
#include "schedule/optimizer.h"

#include "schedule/learning_rate.h"

#include <float.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Does an optimizer keep a master of bf16 weights? fp32 weights are their own master. */
enum master_rule { NO_MASTER, MASTER_ON_DEMAND, MASTER_DUE };

static const struct {
    const char *name;
    enum master_rule master;
    enum tdm_dtype moments;
    bool narrow; /* weights must be bf16 */
} kinds[TDM_OPTIMIZERS] = {
    [TDM_OPTIMIZER_NONE] = {"none", NO_MASTER, TDM_DTYPE_NONE, false},
    [TDM_OPTIMIZER_ADAMW] = {"adamw", MASTER_DUE, TDM_DTYPE_FP32, false},
    [TDM_OPTIMIZER_ADAMW_BF16_MOMENTS] = {"adamw-bf16-moments", MASTER_DUE, TDM_DTYPE_BF16, false},
    [TDM_OPTIMIZER_ADAMW_BF16] = {"adamw-bf16", NO_MASTER, TDM_DTYPE_BF16, true},
    [TDM_OPTIMIZER_SGD] = {"sgd", MASTER_ON_DEMAND, TDM_DTYPE_NONE, false},
};

const char *tdm_optimizer_name(enum tdm_optimizer optimizer)
{
    return kinds[optimizer].name;
}

bool tdm_optimizer_parse(const char *name, enum tdm_optimizer *optimizer)
{
    for (int i = 0; i < TDM_OPTIMIZERS; i++)
        if (strcasecmp(kinds[i].name, name) == 0) {
            *optimizer = (enum tdm_optimizer)i;
            return true;
        }
    return false;
}

static const char *const when_names[TDM_WHENS] = {"layer", "end"};
static const char *const clip_names[TDM_CLIPS] = {"none", "layer", "global"};

const char *tdm_when_name(enum tdm_when when)
{
    return when_names[when];
}

bool tdm_when_parse(const char *name, enum tdm_when *when)
{
    for (int i = 0; i < TDM_WHENS; i++)
        if (strcmp(when_names[i], name) == 0) {
            *when = (enum tdm_when)i;
            return true;
        }
    return false;
}

const char *tdm_decayed_text(uint32_t decayed, char out[TDM_DECAYED_TEXT])
{
    size_t used = (size_t)snprintf(out, TDM_DECAYED_TEXT, "%s", decayed == 0 ? "none" : "");
    for (int kind = 0; kind < TDM_TENSOR_KINDS; kind++)
        if (decayed >> kind & 1)
            used +=
                (size_t)snprintf(out + used, TDM_DECAYED_TEXT - used, "%s%s", used == 0 ? "" : "+",
                                 tdm_tensor_kind_name((enum tdm_tensor_kind)kind));
    return out;
}

/* The bits of a name of `length`; 0: it is none. */
static uint32_t kind_of(const char *name, size_t length)
{
    for (int kind = 0; kind < TDM_TENSOR_KINDS; kind++) {
        const char *known = tdm_tensor_kind_name((enum tdm_tensor_kind)kind);
        if (strlen(known) == length && strncmp(known, name, length) == 0)
            return 1u << kind;
    }
    return 0;
}

bool tdm_decayed_parse(const char *text, uint32_t *decayed)
{
    uint32_t bits = 0;
    if (strcmp(text, "none") == 0 || strcmp(text, "all") == 0) {
        *decayed = text[0] == 'a' ? (1u << TDM_TENSOR_KINDS) - 1 : 0;
        return true;
    }
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, "+");
        const uint32_t bit = kind_of(at, length);
        if (bit == 0 || (bits & bit) != 0)
            return false;
        bits |= bit;
        at += length;
        if (*at == '\0')
            break;
    }
    *decayed = bits;
    return true;
}

const char *tdm_clip_name(enum tdm_clip clip)
{
    return clip_names[clip];
}

bool tdm_clip_parse(const char *name, enum tdm_clip *clip)
{
    for (int i = 0; i < TDM_CLIPS; i++)
        if (strcmp(clip_names[i], name) == 0) {
            *clip = (enum tdm_clip)i;
            return true;
        }
    return false;
}

void tdm_schedule_set_clip(struct tdm_schedule *schedule, enum tdm_clip clip)
{
    schedule->optimizer.clip = clip;
    schedule->optimizer.clip_norm = clip == TDM_CLIP_NONE ? 0 : 1;
    if (clip == TDM_CLIP_GLOBAL)
        schedule->optimizer.when = TDM_WHEN_END;
}

bool tdm_updates_on_host(const struct tdm_schedule *schedule, uint32_t unit)
{
    return schedule->optimizer.kind != TDM_OPTIMIZER_NONE && schedule->optimizer.on != TDM_DEVICE &&
           tdm_schedule_home(schedule, TDM_STATE_WEIGHTS, unit) == schedule->optimizer.on;
}

uint64_t tdm_used_rows(const struct tdm_schedule *schedule)
{
    const uint64_t tokens = tdm_schedule_tokens(schedule);
    return tokens < schedule->model->vocabulary ? tokens : schedule->model->vocabulary;
}

bool tdm_updates_rows_apart(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    const struct tdm_unit *unit = &model->units[tdm_model_embedding_unit(model)];
    return schedule->pass == TDM_TRAIN && schedule->ranks == 1 && !model->tied &&
           !tdm_updates_at_end(schedule) &&
           tdm_updates_on_host(schedule, tdm_model_embedding_unit(model)) &&
           unit->tensor_count == 1 && tdm_used_rows(schedule) < model->vocabulary;
}

bool tdm_updates_at_end(const struct tdm_schedule *schedule)
{
    return schedule->optimizer.kind != TDM_OPTIMIZER_NONE &&
           schedule->optimizer.when == TDM_WHEN_END;
}

bool tdm_gradients_stay(const struct tdm_schedule *schedule)
{
    return schedule->optimizer.kind == TDM_OPTIMIZER_NONE || tdm_updates_at_end(schedule);
}

void tdm_schedule_set_optimizer(struct tdm_schedule *schedule, enum tdm_optimizer kind)
{
    struct tdm_dtypes *dtypes = &schedule->dtypes;
    bool master = dtypes->weights == TDM_DTYPE_BF16 && kinds[kind].master == MASTER_DUE;
    schedule->optimizer.kind = kind;
    dtypes->master = master ? TDM_DTYPE_REMAINDER16 : TDM_DTYPE_NONE;
    dtypes->moments = kinds[kind].moments;
    if (kind == TDM_OPTIMIZER_NONE) {
        tdm_schedule_set_clip(schedule, TDM_CLIP_NONE);
        schedule->optimizer.on = TDM_DEVICE;
    }
}

static enum tdm_status check_master(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    enum tdm_optimizer kind = schedule->optimizer.kind;
    const char *dtype = tdm_dtype_name(dtypes->master);
    if (dtypes->master != TDM_DTYPE_NONE && kinds[kind].master == NO_MASTER)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"dtypes.master\" is %s; optimizer %s has no master, write none", file,
                        dtype, kinds[kind].name);
    if (dtypes->weights == TDM_DTYPE_FP32 && dtypes->master != TDM_DTYPE_NONE)
        return tdm_fail(
            err, TDM_INPUT,
            "%s: \"dtypes.master\" is %s beside fp32 weights, which are their own; write "
            "none",
            file, dtype);
    if (dtypes->master != TDM_DTYPE_NONE && dtypes->master != TDM_DTYPE_FP32 &&
        dtypes->master != TDM_DTYPE_REMAINDER16)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"dtypes.master\" is %s; it must be fp32, remainder16 or none", file,
                        dtype);
    if (dtypes->weights == TDM_DTYPE_BF16 && dtypes->master == TDM_DTYPE_NONE &&
        kinds[kind].master == MASTER_DUE) {
        tdm_fail(err, TDM_INPUT,
                 "%s: \"dtypes.master\" is none beside bf16 weights; optimizer %s needs fp32 or "
                 "remainder16",
                 file, kinds[kind].name);
        return tdm_hint(err, "optimizer %s trains bf16 weights without a master",
                        kinds[TDM_OPTIMIZER_ADAMW_BF16].name);
    }
    return TDM_OK;
}

static enum tdm_status check_moments(const struct tdm_schedule *schedule, const char *file,
                                     struct tdm_error *err)
{
    enum tdm_optimizer kind = schedule->optimizer.kind;
    enum tdm_dtype moments = schedule->dtypes.moments, due = kinds[kind].moments;
    if (moments == due)
        return TDM_OK;
    if (due == TDM_DTYPE_NONE)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"dtypes.moments\" is %s; optimizer %s has no moments, write none",
                        file, tdm_dtype_name(moments), kinds[kind].name);
    tdm_fail(err, TDM_INPUT, "%s: \"dtypes.moments\" is %s; optimizer %s keeps %s moments", file,
             tdm_dtype_name(moments), kinds[kind].name, tdm_dtype_name(due));
    return tdm_hint(err, "the optimizer's kind says what the moments are: %s", TDM_OPTIMIZER_NAMES);
}

static enum tdm_status check_clip(const struct tdm_optimizer_settings *o, const char *file,
                                  struct tdm_error *err)
{
    if (o->clip == TDM_CLIP_NONE)
        return o->clip_norm == 0
                   ? TDM_OK
                   : tdm_fail(err, TDM_INPUT,
                              "%s: \"optimizer.clip_norm\" is %g, but nothing is clipped; "
                              "\"optimizer.clip\" (plan --clip) must be layer or global",
                              file, o->clip_norm);
    if (o->kind == TDM_OPTIMIZER_NONE)
        return tdm_fail(
            err, TDM_INPUT,
            "%s: \"optimizer.clip\" is %s, but optimizer none updates nothing; it must be "
            "none",
            file, clip_names[o->clip]);
    if (!(o->clip_norm > 0 && o->clip_norm <= 1e30))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.clip_norm\" is %g; it must be above 0 and at most 1e30",
                        file, o->clip_norm);
    if (o->clip == TDM_CLIP_GLOBAL && o->when != TDM_WHEN_END) {
        tdm_fail(err, TDM_INPUT,
                 "%s: \"optimizer.clip\" is global, which needs all gradients before the first "
                 "update, but \"optimizer.when\" is %s",
                 file, when_names[o->when]);
        return tdm_hint(err, "set optimizer.when to end, or clip layer by layer");
    }
    return TDM_OK;
}

/* A place that is not the device updates the units whose weights are there: masters and moments
 * must be there too. Other units are updated on the device; their masters and moments may be
 * anywhere. */
enum tdm_status tdm_update_place_check(const struct tdm_schedule *schedule, const char *file,
                                       struct tdm_error *err)
{
    static const enum tdm_state states[] = {TDM_STATE_MASTER, TDM_STATE_MOMENTS};
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    const enum tdm_dtype kept[] = {dtypes->master, dtypes->moments};
    const struct tdm_home *weights = &schedule->homes[TDM_STATE_WEIGHTS];
    const struct tdm_topology *topology = &schedule->machine->topology;
    const char *on = tdm_place_name(topology, schedule->optimizer.on);
    char places[TDM_PLACE_LIST];
    if (schedule->optimizer.on == TDM_DEVICE)
        return TDM_OK;
    if ((uint32_t)tdm_lane_at(topology, schedule->optimizer.on) >= topology->lane_count)
        return tdm_fail(
            err, TDM_INPUT,
            "%s: \"optimizer.on\" is %s, where no lane of the machine computes; it must "
            "be %s",
            file, on, tdm_place_list(topology, true, places));
    if (schedule->optimizer.kind == TDM_OPTIMIZER_NONE)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.on\" is %s, but optimizer none updates nothing; it must "
                        "be device",
                        file, on);
    if (weights->device_layers == schedule->model->layers && weights->embedding == TDM_DEVICE &&
        weights->head == TDM_DEVICE) {
        tdm_fail(err, TDM_INPUT,
                 "%s: \"optimizer.on\" is %s, which updates what is at home there, but "
                 "by \"homes\" no unit has its weights, master and moments there",
                 file, on);
        return tdm_hint(err, "set weights, master and moments to %s, or optimizer.on to device",
                        on);
    }
    for (uint32_t unit = 0; unit < schedule->model->unit_count; unit++)
        for (int i = 0; i < 2 && tdm_updates_on_host(schedule, unit); i++) {
            if (kept[i] == TDM_DTYPE_NONE ||
                tdm_schedule_home(schedule, states[i], unit) == schedule->optimizer.on)
                continue;
            tdm_fail(err, TDM_INPUT,
                     "%s: \"optimizer.on\" is %s, which updates units with weights at home there, "
                     "but by \"homes.%s\" not all of their state is there",
                     file, on, tdm_state_name(states[i]));
            return tdm_hint(
                err,
                "set master and moments to %s where weights are, or set optimizer.on to device",
                on);
        }
    return TDM_OK;
}

static enum tdm_status check_ranges(const struct tdm_optimizer_settings *o, const char *file,
                                    struct tdm_error *err)
{
    if (!(o->beta1 >= 0 && o->beta1 < 1))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.beta1\" is %g; it must be at least 0 and below 1", file,
                        o->beta1);
    if (!(o->beta2 >= 0 && o->beta2 < 1))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.beta2\" is %g; it must be at least 0 and below 1", file,
                        o->beta2);
    if (!(o->epsilon >= (double)FLT_MIN && o->epsilon < 1)) /* else an update may be 0 / 0 */
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.epsilon\" is %g; it must be at least 1.1755e-38, the "
                        "smallest normal number of fp32, and below 1",
                        file, o->epsilon);
    if (!(o->weight_decay >= 0 && o->weight_decay < 1e3))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.weight_decay\" is %g; it must be at least 0 and below "
                        "1000",
                        file, o->weight_decay);
    return TDM_OK;
}

enum tdm_status tdm_optimizer_check(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err)
{
    const struct tdm_optimizer_settings *o = &schedule->optimizer;
    enum tdm_status status = check_ranges(o, file, err);
    if (status != TDM_OK)
        return status;
    if (kinds[o->kind].narrow && schedule->dtypes.weights != TDM_DTYPE_BF16)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"dtypes.weights\" is %s; optimizer %s trains bf16 weights", file,
                        tdm_dtype_name(schedule->dtypes.weights), kinds[o->kind].name);
    status = tdm_learning_rate_check(o, file, err);
    if (status == TDM_OK)
        status = check_clip(o, file, err);
    if (status == TDM_OK)
        status = tdm_update_place_check(schedule, file, err);
    if (status == TDM_OK)
        status = check_master(schedule, file, err);
    return status == TDM_OK ? check_moments(schedule, file, err) : status;
}
