/* SPDX-License-Identifier: Apache-2.0 */
/* State that a schedule for training and one for evaluation share. */
#include "schedule/shared_state.h"

#include <string.h>

void tdm_shared_state_take(struct tdm_schedule *evaluation, const struct tdm_schedule *training)
{
    evaluation->optimizer = training->optimizer;
    evaluation->dtypes.weights = training->dtypes.weights;
    evaluation->dtypes.master = training->dtypes.master;
    evaluation->dtypes.moments = training->dtypes.moments;
    for (int state = 0; state < TDM_STATES; state++)
        if (tdm_schedule_keeps(training, (enum tdm_state)state))
            evaluation->homes[state] = training->homes[state];
    evaluation->sliced_weights = training->sliced_weights;
}

static bool same_home(const struct tdm_home *one, const struct tdm_home *other)
{
    return one->device_layers == other->device_layers && one->embedding == other->embedding &&
           one->head == other->head;
}

enum tdm_status tdm_shared_state_check(const char *path, const struct tdm_schedule *evaluation,
                                       const char *training_path,
                                       const struct tdm_schedule *training, struct tdm_error *err)
{
    if (strcmp(evaluation->model->digest, training->model->digest) != 0)
        return tdm_fail(err, TDM_INPUT, "%s: is a schedule for %s, and %s for %s", path,
                        evaluation->model->name, training_path, training->model->name);
    if (evaluation->optimizer.kind != training->optimizer.kind)
        return tdm_fail(err, TDM_INPUT, "%s: \"optimizer.kind\" is %s; use %s, as %s has it", path,
                        tdm_optimizer_name(evaluation->optimizer.kind),
                        tdm_optimizer_name(training->optimizer.kind), training_path);
    const struct {
        const char *name;
        enum tdm_dtype mine, due;
    } dtypes[] = {{"weights", evaluation->dtypes.weights, training->dtypes.weights},
                  {"master", evaluation->dtypes.master, training->dtypes.master},
                  {"moments", evaluation->dtypes.moments, training->dtypes.moments}};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (dtypes[i].mine != dtypes[i].due)
            return tdm_fail(err, TDM_INPUT, "%s: \"dtypes.%s\" is %s; use %s, as %s has it", path,
                            dtypes[i].name, tdm_dtype_name(dtypes[i].mine),
                            tdm_dtype_name(dtypes[i].due), training_path);
    for (int state = 0; state < TDM_STATES; state++)
        if (tdm_schedule_keeps(training, (enum tdm_state)state) &&
            !same_home(&evaluation->homes[state], &training->homes[state]))
            return tdm_fail(err, TDM_INPUT, "%s: \"homes.%s\" is not what %s has", path,
                            tdm_state_name((enum tdm_state)state), training_path);
    if (evaluation->sliced_weights != training->sliced_weights)
        return tdm_fail(err, TDM_INPUT, "%s: \"sliced_weights\" is not what %s has", path,
                        training_path);
    return TDM_OK;
}
