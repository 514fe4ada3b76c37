/* SPDX-License-Identifier: Apache-2.0 */
/* Loads or draws the weights of a run, and saves them and the gradients. */
#include "executor/run_weights.h"

#include "base/file.h"
#include "executor/state.h"
#include "executor/weights.h"

#include <string.h>

static void moved(void *self, uint64_t done, uint64_t elements)
{
    const struct tdm_run_weights *weights = self;
    weights->listener->moved(weights->listener->self, weights->moving, done, elements);
}

enum tdm_status tdm_run_weights_init(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_weights_watch watch = {weights, moved, weights->options->stop};
    weights->moving = weights->files != NULL ? "loading weights" : "drawing weights";
    if (weights->files != NULL)
        return tdm_weights_load(weights->files, arenas, program, &watch, err);
    return tdm_weights_draw(weights->options->seed, arenas, program, &watch, err);
}

/* What a run writes: the model that it trained, or the gradients of its last step. */
static struct tdm_weights_target target_of(const struct tdm_run_options *options,
                                           const struct tdm_schedule *schedule, bool gradients)
{
    enum tdm_dtype dtype =
        options->save_dtype != TDM_DTYPE_NONE ? options->save_dtype : schedule->dtypes.weights;
    return (struct tdm_weights_target){.directory =
                                           gradients ? options->gradients_path : options->save_path,
                                       .model = schedule->model,
                                       .gradients = gradients,
                                       .dtype = gradients ? TDM_DTYPE_FP32 : dtype,
                                       .shard_bytes = options->shard_bytes,
                                       .force = options->force,
                                       .only_checked = options->dry_run,
                                       .repeated = !gradients && options->save_every > 0};
}

static enum tdm_status save(struct tdm_run_weights *weights, const struct tdm_arenas *arenas,
                            const struct tdm_program *program, bool gradients,
                            struct tdm_error *err)
{
    const struct tdm_weights_watch watch = {weights, moved, weights->options->stop};
    struct tdm_weights_target target = target_of(weights->options, program->schedule, gradients);
    if (target.directory == NULL)
        return TDM_OK;
    weights->moving = gradients ? "saving gradients" : "saving weights";
    target.force = target.force || (weights->saved && !gradients);
    enum tdm_status status = tdm_weights_save(&target, arenas, program, &watch, err);
    if (status == TDM_OK) /* the others wait until it is written */
        status = tdm_processes_meet(weights->options->processes, err);
    weights->saved = weights->saved || (status == TDM_OK && !gradients);
    return status;
}

enum tdm_status tdm_run_weights_save(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, uint64_t step,
                                     struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    bool last = step == options->steps;
    enum tdm_status status = TDM_OK;
    if (last || (options->save_every > 0 && step % options->save_every == 0))
        status = save(weights, arenas, program, false, err);
    return status == TDM_OK && last ? save(weights, arenas, program, true, err) : status;
}

/* Checks before the run, as far as possible, that its weights or gradients can be saved. */
static enum tdm_status check_target(const struct tdm_run_options *options,
                                    const struct tdm_schedule *schedule, bool gradients,
                                    struct tdm_error *err)
{
    const struct tdm_weights_target target = target_of(options, schedule, gradients);
    if (target.directory == NULL)
        return TDM_OK;
    const char *option = gradients ? "--save-gradients" : "--save";
    if (!options->backend->executes)
        return tdm_fail(err, TDM_USAGE, "%s %s: backend %s computes nothing to save", option,
                        target.directory, options->backend->name);
    if (options->schedule_count > 1)
        return tdm_fail(err, TDM_USAGE, "%s %s: %u schedules train; one can be saved", option,
                        target.directory, options->schedule_count);
    if (gradients &&
        (schedule->optimizer.kind != TDM_OPTIMIZER_NONE || schedule->pass == TDM_EVALUATE)) {
        tdm_fail(err, TDM_USAGE, "%s %s: %s leaves no gradients behind", option, target.directory,
                 options->schedule_paths[0]);
        return tdm_hint(err, "plan with --optimizer none");
    }
    return tdm_processes_number(options->processes) == 0 ? tdm_weights_check(&target, err) : TDM_OK;
}

enum tdm_status tdm_run_weights_open(const struct tdm_run_options *options,
                                     const struct tdm_run_listener *listener,
                                     const struct tdm_program *program,
                                     struct tdm_run_weights *weights, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    enum tdm_status status = TDM_OK;
    *weights = (struct tdm_run_weights){.options = options, .listener = listener};
    if (options->weights_path != NULL)
        status = tdm_weights_find(options->weights_path, options->schedule_paths[0],
                                  schedule->model, &weights->files, err);
    if (status == TDM_OK)
        status = check_target(options, schedule, false, err);
    return status == TDM_OK ? check_target(options, schedule, true, err) : status;
}

void tdm_run_weights_close(struct tdm_run_weights *weights)
{
    tdm_weights_close(weights->files);
    weights->files = NULL;
}
