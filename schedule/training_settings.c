/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of training by key: read for a plan, and for a run of a plan. */
#include "schedule/training_settings.h"

#include "base/names.h"
#include "base/units.h"
#include "schedule/learning_rate.h"
#include "schedule/optimizer.h"
#include "schedule/schedule_check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS (UINT64_C(1) << 48)

enum kind { NUMBER, STEPS, RATE_SCHEDULE, DECAYED };

#define FIELD(member) offsetof(struct tdm_optimizer_settings, member)

static const struct {
    const char *key;
    enum kind kind;
    size_t field;
} settings[TDM_TRAINING_SETTINGS] = {
    [TDM_SETTING_LEARNING_RATE] = {"optimizer.learning_rate", NUMBER, FIELD(learning_rate)},
    [TDM_SETTING_BETA1] = {"optimizer.beta1", NUMBER, FIELD(beta1)},
    [TDM_SETTING_BETA2] = {"optimizer.beta2", NUMBER, FIELD(beta2)},
    [TDM_SETTING_EPSILON] = {"optimizer.epsilon", NUMBER, FIELD(epsilon)},
    [TDM_SETTING_WEIGHT_DECAY] = {"optimizer.weight_decay", NUMBER, FIELD(weight_decay)},
    [TDM_SETTING_DECAYED] = {"optimizer.decayed", DECAYED, FIELD(decayed)},
    [TDM_SETTING_WARMUP_STEPS] = {"optimizer.warmup_steps", STEPS, FIELD(warmup_steps)},
    [TDM_SETTING_RATE_SCHEDULE] = {"optimizer.schedule", RATE_SCHEDULE, 0},
    [TDM_SETTING_DECAY_STEPS] = {"optimizer.decay_steps", STEPS, FIELD(decay_steps)},
    [TDM_SETTING_FINAL_LEARNING_RATE] = {"optimizer.final_learning_rate", NUMBER,
                                         FIELD(final_learning_rate)},
    [TDM_SETTING_CLIP_NORM] = {"optimizer.clip_norm", NUMBER, FIELD(clip_norm)},
};

const char *tdm_training_setting_key(enum tdm_training_setting setting)
{
    return settings[setting].key;
}

const char *tdm_training_setting_absent(enum tdm_training_setting setting)
{
    return setting == TDM_SETTING_DECAYED ? TDM_DECAYED_DEFAULT_TEXT : NULL;
}

#define GROUP "optimizer."

static void list_shorts(const char *shorts[TDM_TRAINING_SETTINGS + 1])
{
    for (int s = 0; s < TDM_TRAINING_SETTINGS; s++)
        shorts[s] = settings[s].key + strlen(GROUP);
    shorts[TDM_TRAINING_SETTINGS] = NULL;
}

enum tdm_training_setting tdm_training_setting_meant(const char *name, size_t length)
{
    const char *shorts[TDM_TRAINING_SETTINGS + 1];
    char text[64];
    list_shorts(shorts);
    if (length >= sizeof(text))
        return TDM_TRAINING_SETTINGS;
    memcpy(text, name, length);
    text[length] = '\0';
    if (strcmp(text, "lr") == 0)
        return TDM_SETTING_LEARNING_RATE;
    const char *meant = tdm_name_meant(
        strncmp(text, GROUP, strlen(GROUP)) == 0 ? text + strlen(GROUP) : text, shorts);
    int found = 0;
    while (found < TDM_TRAINING_SETTINGS && shorts[found] != meant)
        found++;
    return (enum tdm_training_setting)found;
}

static enum tdm_status read_number(const char *value, const char *what, double *out,
                                   struct tdm_error *err)
{
    char *end;
    errno = 0;
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(number) || errno == ERANGE ||
        strpbrk(value, "xX ") != NULL)
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not a number", what, value);
    *out = number;
    return TDM_OK;
}

enum tdm_status tdm_training_setting_read(enum tdm_training_setting setting, const char *value,
                                          const char *what,
                                          struct tdm_optimizer_settings *optimizer,
                                          struct tdm_error *err)
{
    void *field = (char *)optimizer + settings[setting].field;
    switch (settings[setting].kind) {
    case NUMBER:
        return read_number(value, what, field, err);
    case STEPS:
        return tdm_parse_count(value, what, 0, MAX_STEPS, field, err);
    case DECAYED:
        if (tdm_decayed_parse(value, field))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not known; expected %s", what, value,
                        TDM_DECAYED_NAMES);
    default:
        if (tdm_rate_schedule_parse(value, &optimizer->rate_schedule))
            return TDM_OK;
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not known; expected %s", what, value,
                        TDM_RATE_SCHEDULE_NAMES);
    }
}

/* ---- for a run ---- */

static enum tdm_status refuse(const char *pair, struct tdm_error *err)
{
    const char *shorts[TDM_TRAINING_SETTINGS + 1];
    char keys[512] = "", name[64], suggestion[TDM_SUGGESTION_BYTES];
    size_t length = strcspn(pair, "="), used = 0;
    list_shorts(shorts);
    snprintf(name, sizeof(name), "%.*s", (int)(length < 63 ? length : 63), pair);
    if (pair[length] == '\0' || length == 0)
        return tdm_fail(err, TDM_USAGE, "--set: \"%.64s\" is not KEY=VALUE", pair);
    for (int s = 0; s < TDM_TRAINING_SETTINGS; s++)
        used += (size_t)snprintf(keys + used, sizeof(keys) - used, "%s%s", s == 0 ? "" : ", ",
                                 settings[s].key);
    tdm_fail(
        err, TDM_USAGE,
        "--set %.*s: a run takes only settings that change neither memory nor operations; plan "
        "again for it",
        (int)(length < 64 ? length : 64), pair);
    return tdm_hint(err, "%skeys of a run: %s", tdm_name_suggest(name, shorts, suggestion), keys);
}

static enum tdm_status apply_pair(const char *pair, bool said[TDM_TRAINING_SETTINGS],
                                  struct tdm_optimizer_settings *optimizer, struct tdm_error *err)
{
    size_t length = strcspn(pair, "=");
    enum tdm_training_setting s = tdm_training_setting_meant(pair, length);
    char what[64];
    if (s == TDM_TRAINING_SETTINGS || pair[length] == '\0')
        return refuse(pair, err);
    if (said[s])
        return tdm_fail(err, TDM_USAGE, "--set: \"%s\" is given twice", settings[s].key);
    said[s] = true;
    snprintf(what, sizeof(what), "--set %s", settings[s].key);
    return tdm_training_setting_read(s, pair + length + 1, what, optimizer, err);
}

enum tdm_status tdm_training_settings_apply(const char *const *pairs, size_t count,
                                            struct tdm_schedule *schedule, struct tdm_error *err)
{
    struct tdm_optimizer_settings optimizer = schedule->optimizer;
    bool said[TDM_TRAINING_SETTINGS] = {false};
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = apply_pair(pairs[i], said, &optimizer, err);
    if (status != TDM_OK || count == 0)
        return status;
    if (optimizer.kind == TDM_OPTIMIZER_NONE)
        return tdm_fail(err, TDM_USAGE,
                        "--set: the schedule has optimizer none, which updates nothing");
    if (optimizer.rate_schedule == TDM_RATE_CONSTANT && said[TDM_SETTING_RATE_SCHEDULE]) {
        if (!said[TDM_SETTING_DECAY_STEPS])
            optimizer.decay_steps = 0;
        if (!said[TDM_SETTING_FINAL_LEARNING_RATE])
            optimizer.final_learning_rate = 0;
    }
    schedule->optimizer = optimizer;
    if (tdm_schedule_check(schedule, "--set", err) != TDM_OK)
        status = err->status = TDM_USAGE; /* the schedule itself was checked when it was read */
    return status;
}
