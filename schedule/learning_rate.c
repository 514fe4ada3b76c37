/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate of a step. */
#include "schedule/learning_rate.h"

#include <math.h>
#include <string.h>

static const char *const names[TDM_RATE_SCHEDULES] = {"constant", "linear", "cosine"};

const char *tdm_rate_schedule_name(enum tdm_rate_schedule schedule)
{
    return names[schedule];
}

bool tdm_rate_schedule_parse(const char *name, enum tdm_rate_schedule *schedule)
{
    for (int i = 0; i < TDM_RATE_SCHEDULES; i++)
        if (strcmp(names[i], name) == 0) {
            *schedule = (enum tdm_rate_schedule)i;
            return true;
        }
    return false;
}

double tdm_learning_rate(const struct tdm_optimizer_settings *o, uint64_t step)
{
    if (step < o->warmup_steps)
        return o->learning_rate * (double)step / (double)o->warmup_steps;
    uint64_t done = step - o->warmup_steps;
    if (o->rate_schedule == TDM_RATE_CONSTANT || done == 0)
        return o->learning_rate;
    if (done >= o->decay_steps)
        return o->final_learning_rate;
    double left = 1 - (double)done / (double)o->decay_steps;
    if (o->rate_schedule == TDM_RATE_COSINE)
        left = (1 - cos(M_PI * left)) / 2;
    return o->final_learning_rate + (o->learning_rate - o->final_learning_rate) * left;
}

enum tdm_status tdm_learning_rate_check(const struct tdm_optimizer_settings *o, const char *file,
                                        struct tdm_error *err)
{
    if (!(o->learning_rate >= 0 && o->learning_rate < 1e3))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.learning_rate\" is %g; it must be at least 0 and below "
                        "1000",
                        file, o->learning_rate);
    if (!(o->final_learning_rate >= 0 && o->final_learning_rate <= o->learning_rate))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.final_learning_rate\" is %g; it must be at least 0 and at "
                        "most the learning rate, which is %g",
                        file, o->final_learning_rate, o->learning_rate);
    bool decays = o->rate_schedule != TDM_RATE_CONSTANT;
    if (decays && o->decay_steps == 0)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.decay_steps\" is 0; optimizer.schedule %s needs 1 or more",
                        file, names[o->rate_schedule]);
    if (!decays && (o->decay_steps != 0 || o->final_learning_rate != 0))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"optimizer.%s\" needs \"optimizer.schedule\" linear or cosine, which "
                        "is constant",
                        file, o->decay_steps != 0 ? "decay_steps" : "final_learning_rate");
    return TDM_OK;
}
