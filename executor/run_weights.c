/* SPDX-License-Identifier: Apache-2.0 */
/* Loads or draws the weights of a run, and saves them, checkpoints and gradients. */
#include "executor/run_weights.h"

#include "base/clock.h"
#include "base/size.h"
#include "executor/host_memory.h"
#include "executor/processes.h"
#include "executor/state.h"
#include "executor/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    weights->moving = weights->resumed != NULL ? "loading a checkpoint"
                      : weights->files != NULL ? "loading weights"
                                               : "drawing weights";
    if (weights->resumed != NULL)
        return tdm_checkpoint_load(weights->resumed, arenas, program, &watch, err);
    if (weights->files != NULL)
        return tdm_weights_load(weights->files, arenas, program, &watch, err);
    return tdm_weights_draw(weights->options->seed, arenas, program, &watch, err);
}

bool tdm_run_saves_checkpoints(const struct tdm_run_options *options)
{
    return options->save_every > 0;
}

/* What a run writes: the model that it trained, or the gradients of its last step. */
static struct tdm_weights_target target_of(const struct tdm_run_weights *weights,
                                           const struct tdm_schedule *schedule, bool gradients)
{
    const struct tdm_run_options *options = weights->options;
    enum tdm_dtype dtype =
        options->save_dtype != TDM_DTYPE_NONE ? options->save_dtype : schedule->dtypes.weights;
    const char *from =
        weights->resumed != NULL ? weights->resumed->directory : options->weights_path;
    return (struct tdm_weights_target){
        .directory = gradients ? options->gradients_path : options->save_path,
        .model = schedule->model,
        .gradients = gradients,
        .dtype = gradients ? TDM_DTYPE_FP32 : dtype,
        .shard_bytes = options->shard_bytes,
        .companions = gradients ? NULL : from,
        .force = options->force,
        .only_checked = options->dry_run,
    };
}

static enum tdm_status save(struct tdm_run_weights *weights, const struct tdm_arenas *arenas,
                            const struct tdm_program *program, bool gradients,
                            struct tdm_error *err)
{
    const struct tdm_weights_watch watch = {weights, moved, weights->options->stop};
    const struct tdm_weights_target target = target_of(weights, program->schedule, gradients);
    if (target.directory == NULL)
        return TDM_OK;
    weights->moving = gradients ? "saving gradients" : "saving weights";
    enum tdm_status status = tdm_weights_save(&target, arenas, program, &watch, err);
    return status == TDM_OK /* other processes wait until it is written */
               ? tdm_processes_meet(weights->options->processes, err)
               : status;
}

static struct tdm_checkpoint_user user_of(const struct tdm_run_options *options,
                                          const struct tdm_program *program)
{
    return (struct tdm_checkpoint_user){.program = program,
                                        .schedule_path = options->schedule_paths[0],
                                        .backend = options->backend->name,
                                        .pairs = options->pairs,
                                        .pair_count = options->pair_count};
}

/* The directory of the last state that is known; malloc'ed. */
static char *last_directory(const struct tdm_run_weights *weights, uint64_t saved_step,
                            uint64_t within_step)
{
    const struct tdm_checkpoint *resumed = weights->resumed;
    if (saved_step > 0)
        return tdm_checkpoint_folder_step(&weights->folder, saved_step);
    return resumed->parts != NULL && within_step > 0 && access(resumed->directory, F_OK) != 0
               ? tdm_checkpoint_folder_within(&weights->folder, within_step)
               : strdup(resumed->directory);
}

enum tdm_status tdm_run_weights_restore(struct tdm_run_weights *weights,
                                        const struct tdm_arenas *arenas,
                                        const struct tdm_program *program, uint64_t saved_step,
                                        uint64_t within_step, struct tdm_checkpoint **out,
                                        struct tdm_error *err)
{
    const struct tdm_checkpoint_user user = user_of(weights->options, program);
    struct tdm_checkpoint *checkpoint = NULL;
    if (saved_step == 0 && weights->resumed == NULL)
        return tdm_run_weights_init(weights, arenas, program, err);
    char *path = last_directory(weights, saved_step, within_step);
    enum tdm_status status =
        path == NULL ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for the name of a checkpoint")
                     : tdm_checkpoint_open(path, &checkpoint, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_match(checkpoint, &user, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_load(checkpoint, arenas, program, NULL, err);
    free(path);
    if (status != TDM_OK) {
        tdm_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return TDM_OK;
}

/* Says where the last good checkpoint is, if this one could not be saved. */
static void hint_last(const struct tdm_run_weights *weights, uint64_t saved_step,
                      struct tdm_error *err)
{
    if (saved_step > 0 && err != NULL && err->hint[0] == '\0')
        (void)tdm_hint(err, "%s has the checkpoint of step %llu", weights->options->save_path,
                       (unsigned long long)saved_step);
}

/* Tells the other processes whether process 0 has saved: where it refused, all end with what it
 * says, and may look for the op together. Where it failed otherwise, they are told by
 * tdm_processes_settle(). */
static enum tdm_status agree_saved(struct tdm_processes *processes, enum tdm_status status,
                                   struct tdm_error *err)
{
    struct tdm_error first = {.status = TDM_OK};
    if (status != TDM_OK && status != TDM_INPUT)
        return status;
    if (status == TDM_INPUT)
        first = *err;
    enum tdm_status shared = tdm_processes_broadcast(processes, 0, &first, sizeof(first), err);
    if (shared == TDM_OK && status == TDM_OK && first.status != TDM_OK)
        *err = first;
    return shared != TDM_OK ? shared : status != TDM_OK ? status : first.status;
}

/* Tells if an old checkpoint could not be removed. */
static void tell_stuck(struct tdm_run_weights *weights)
{
    const struct tdm_run_listener *listener = weights->listener;
    if (weights->folder.stuck.status != TDM_OK && listener->warned != NULL)
        listener->warned(listener->self, &weights->folder.stuck);
    weights->folder.stuck = (struct tdm_error){.status = TDM_OK};
}

/* A save has succeeded, or not. */
static enum tdm_status note_saved(struct tdm_run_weights *weights, const struct tdm_save *save,
                                  uint64_t *saved_step, enum tdm_status status,
                                  struct tdm_error *err)
{
    const struct tdm_run_listener *listener = weights->listener;
    if (status != TDM_OK) {
        hint_last(weights, *saved_step, err);
        return status;
    }
    *saved_step = tdm_save_step(save);
    listener->saved(listener->self, tdm_save_path(save), tdm_save_step(save),
                    tdm_save_seconds(save));
    tell_stuck(weights);
    return TDM_OK;
}

enum tdm_status tdm_run_weights_await(struct tdm_run_weights *weights, uint64_t *saved_step,
                                      struct tdm_error *err)
{
    struct tdm_save *save = weights->save;
    if (save == NULL)
        return TDM_OK;
    weights->save = NULL;
    enum tdm_status status = note_saved(weights, save, saved_step, tdm_save_end(save, err), err);
    tdm_save_free(save);
    return status;
}

/* The directory from which the small files of a model are copied: the last checkpoint, because the
 * one that the run went on from may have been removed since. malloc'ed; NULL: that of the target.
 */
static char *companions_of(const struct tdm_run_weights *weights, uint64_t saved_step)
{
    return saved_step == 0 ? NULL : tdm_checkpoint_folder_step(&weights->folder, saved_step);
}

static struct tdm_checkpoint_moment moment_of(const struct tdm_run_weights *weights,
                                              const struct tdm_history *history)
{
    return (struct tdm_checkpoint_moment){.step = history->count,
                                          .seed = weights->seed,
                                          .backend = weights->options->backend->name,
                                          .tokens = weights->tokens,
                                          .history = history};
}

/* Saves a checkpoint: from a snapshot beside the next step, if there is one and memory for it. */
static enum tdm_status save_checkpoint(struct tdm_run_weights *weights,
                                       const struct tdm_arenas *arenas,
                                       const struct tdm_program *program,
                                       const struct tdm_history *history, bool last,
                                       uint64_t *saved_step, struct tdm_error *err)
{
    const struct tdm_weights_watch watch = {weights, moved, weights->options->cut};
    const struct tdm_checkpoint_moment moment = moment_of(weights, history);
    struct tdm_weights_target target = target_of(weights, program->schedule, false);
    struct tdm_save *save = NULL;
    tdm_log_flush(weights->log);
    free(weights->companions);
    weights->companions = companions_of(weights, *saved_step);
    if (weights->companions != NULL)
        target.companions = weights->companions;
    enum tdm_status status = tdm_save_new(&target, &weights->folder, &moment, &save, err);
    if (status != TDM_OK)
        return status;
    weights->moving = "saving a checkpoint";
    if (weights->snapshot != NULL && !last) {
        status = tdm_snapshot_take(weights->snapshot, arenas, err);
        if (status == TDM_OK)
            status =
                tdm_save_start(save, tdm_snapshot_arenas(weights->snapshot), program, &watch, err);
        weights->save = save; /* freed when it is awaited */
        return status;
    }
    status = agree_saved(weights->options->processes,
                         tdm_save_write(save, arenas, program, &watch, err), err);
    status = note_saved(weights, save, saved_step, status, err);
    tdm_save_free(save);
    return status;
}

/* Process 0 makes the directory. */
static enum tdm_status make_directory(const struct tdm_run_weights *weights, uint64_t step,
                                      struct tdm_within_save *save, struct tdm_error *err)
{
    save->path = tdm_checkpoint_folder_within(&weights->folder, step);
    if (save->path == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", weights->folder.path);
    enum tdm_status status =
        tdm_directory_begin(save->path, true, tdm_checkpoint_owns_within, &save->temporary, err);
    if (status != TDM_OK)
        return status;
    save->begun = true;
    const int length =
        snprintf(save->directory, sizeof(save->directory), "%s", save->temporary.temporary);
    return length < (int)sizeof(save->directory)
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "%s: its name is too long", save->path);
}

enum tdm_status tdm_run_weights_begin_within(struct tdm_run_weights *weights, uint64_t step,
                                             uint64_t *saved_step, struct tdm_within_save *save,
                                             struct tdm_error *err)
{
    struct tdm_processes *processes = weights->options->processes;
    *save = (struct tdm_within_save){.began_seconds = tdm_now_seconds()};
    tdm_log_flush(weights->log);
    enum tdm_status status = tdm_run_weights_await(weights, saved_step, err);
    if (status == TDM_OK && tdm_processes_number(processes) == 0)
        status = make_directory(weights, step, save, err);
    if (status == TDM_OK)
        status =
            tdm_processes_broadcast(processes, 0, save->directory, sizeof(save->directory), err);
    if (status != TDM_OK)
        hint_last(weights, *saved_step, err);
    return status;
}

/* Process 0 completes it. */
static enum tdm_status complete_within(struct tdm_run_weights *weights,
                                       struct tdm_within_save *save,
                                       const struct tdm_program *program, double seconds,
                                       const struct tdm_checkpoint_part *parts,
                                       const struct tdm_history *history, struct tdm_error *err)
{
    const struct tdm_run_listener *listener = weights->listener;
    const struct tdm_checkpoint_moment moment = moment_of(weights, history);
    const uint64_t step = history->count + 1;
    enum tdm_status status =
        tdm_checkpoint_write_within(save->directory, program, seconds, parts, &moment, err);
    if (status != TDM_OK)
        return status;
    save->begun = false;
    status = tdm_directory_commit(&save->temporary, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_folder_advance_within(&weights->folder, step, err);
    tell_stuck(weights);
    if (status == TDM_OK && listener->saved_within != NULL)
        listener->saved_within(listener->self, save->path, step, parts[0].op, parts[0].ops,
                               tdm_now_seconds() - save->began_seconds);
    return status;
}

enum tdm_status tdm_run_weights_end_within(struct tdm_run_weights *weights,
                                           struct tdm_within_save *save,
                                           const struct tdm_program *program, double seconds,
                                           const struct tdm_checkpoint_part *parts,
                                           const struct tdm_history *history, struct tdm_error *err)
{
    struct tdm_processes *processes = weights->options->processes;
    enum tdm_status status =
        tdm_processes_number(processes) == 0
            ? complete_within(weights, save, program, seconds, parts, history, err)
            : TDM_OK;
    return status == TDM_OK ? tdm_processes_meet(processes, err) : status;
}

void tdm_run_weights_leave_within(struct tdm_within_save *save)
{
    if (save->begun)
        tdm_directory_abandon(&save->temporary);
    free(save->path);
    save->path = NULL;
    save->begun = false;
}

enum tdm_status tdm_run_wishes(const struct tdm_run_weights *weights, struct tdm_run_wishes *wishes,
                               struct tdm_error *err)
{
    enum { STOP = 1, SAVE = 2, SAVING = 4, FAILED = 8 };
    const struct tdm_run_options *options = weights->options;
    const struct tdm_save *beside = weights->save;
    uint32_t flags = (options->stop != NULL && *options->stop ? STOP : 0) |
                     (options->save_now != NULL && *options->save_now ? SAVE : 0) |
                     (beside != NULL && !tdm_save_ended(beside) ? SAVING : 0) |
                     (beside != NULL && tdm_save_failed(beside) ? FAILED : 0);
    if (options->save_now != NULL)
        *options->save_now = 0;
    enum tdm_status status = tdm_run_saves_checkpoints(options)
                                 ? tdm_processes_unite(options->processes, &flags, err)
                                 : TDM_OK;
    *wishes = (struct tdm_run_wishes){
        .stop = flags & STOP, .save = flags & SAVE, .saved = !(flags & SAVING) || flags & FAILED};
    return status;
}

/* Is a checkpoint to be saved after a step? */
static bool is_due(const struct tdm_run_options *options, const struct tdm_run_wishes *wishes,
                   uint64_t step)
{
    return wishes->save || wishes->stop || step == options->steps ||
           step % options->save_every == 0;
}

enum tdm_status tdm_run_weights_save(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program,
                                     const struct tdm_history *history,
                                     const struct tdm_run_wishes *wishes, uint64_t *saved_step,
                                     struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    const bool last = history->count == options->steps;
    const bool due = tdm_run_saves_checkpoints(options) && is_due(options, wishes, history->count);
    enum tdm_status status = TDM_OK;
    if (weights->save != NULL && (due || wishes->saved))
        status = tdm_run_weights_await(weights, saved_step, err);
    if (status != TDM_OK)
        return status;
    if (due && history->count != *saved_step)
        status = save_checkpoint(weights, arenas, program, history, last || wishes->stop,
                                 saved_step, err);
    else if (last && !tdm_run_saves_checkpoints(options))
        status = save(weights, arenas, program, false, err);
    return status == TDM_OK && last ? save(weights, arenas, program, true, err) : status;
}

/* Checks the folder for checkpoints, and whether its file system has enough space: a checkpoint is
 * complete before the oldest one is removed. */
static enum tdm_status check_folder(struct tdm_run_weights *weights,
                                    const struct tdm_program *program,
                                    struct tdm_weights_target target, struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    const struct tdm_checkpoint *resumed = weights->resumed;
    enum tdm_status status =
        tdm_checkpoint_folder_check(options->save_path, options->save_keep, options->force,
                                    resumed == NULL ? NULL : resumed->directory,
                                    resumed == NULL ? 0 : resumed->step, &weights->folder, err);
    const uint64_t saves = (options->steps + options->save_every - 1) / options->save_every;
    target.part_bytes = tdm_checkpoint_part_bytes(program, target.dtype);
    target.copies = resumed != NULL ? 1 : (uint32_t)tdm_least(saves, options->save_keep + 1);
    return status == TDM_OK ? tdm_weights_check_space(&target, err) : status;
}

/* Checks before the run, as far as possible, that its weights or gradients can be saved. */
static enum tdm_status check_target(struct tdm_run_weights *weights,
                                    const struct tdm_program *program, bool gradients,
                                    struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_weights_target target = target_of(weights, schedule, gradients);
    weights->folder.path = options->save_path;
    if (target.directory == NULL || tdm_processes_number(options->processes) > 0)
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
    if (tdm_run_saves_checkpoints(options) && !gradients)
        return check_folder(weights, program, target, err);
    char *last = tdm_checkpoint_folder_last(target.directory);
    const bool has_checkpoints = last != NULL;
    free(last);
    if (!has_checkpoints)
        return tdm_weights_check(&target, err);
    tdm_fail(err, TDM_USAGE, "%s %s: has checkpoints, which would be lost", option,
             target.directory);
    return tdm_hint(err, gradients ? "name a new directory"
                                   : "--save-every N saves checkpoints there; for the model alone "
                                     "name a new directory");
}

/* Opens the checkpoint to go on from, which must fit the program. */
static enum tdm_status open_resumed(struct tdm_run_weights *weights,
                                    const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    if (options->schedule_count > 1)
        return tdm_fail(err, TDM_USAGE, "--resume %s: %u schedules train; one can go on",
                        options->resume_path, options->schedule_count);
    if (!options->backend->executes)
        return tdm_fail(err, TDM_USAGE, "--resume %s: backend %s computes nothing to go on with",
                        options->resume_path, options->backend->name);
    const struct tdm_checkpoint_user user = user_of(options, program);
    enum tdm_status status = tdm_checkpoint_open(options->resume_path, &weights->resumed, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_match(weights->resumed, &user, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_checkpoint *resumed = weights->resumed;
    weights->seed = options->seed_given ? options->seed : resumed->seed;
    if (weights->seed != resumed->seed)
        return tdm_fail(err, TDM_INPUT, "%s: was trained with the seed %llu, not %llu",
                        resumed->directory, (unsigned long long)resumed->seed,
                        (unsigned long long)weights->seed);
    if (resumed->step + (resumed->parts != NULL) >=
        options->steps + (options->gradients_path == NULL)) {
        tdm_fail(err, TDM_USAGE, "%s: is beyond --steps %llu", resumed->directory,
                 (unsigned long long)options->steps);
        return tdm_hint(err,
                        "--steps is the step to reach, counted from the start of the training");
    }
    return TDM_OK;
}

enum tdm_status tdm_run_weights_open(const struct tdm_run_options *options,
                                     const struct tdm_run_listener *listener,
                                     const struct tdm_program *program,
                                     struct tdm_run_weights *weights, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *weights = (struct tdm_run_weights){
        .options = options, .listener = listener, .seed = options->seed, .folder = {.lock = -1}};
    if (options->resume_path != NULL)
        status = open_resumed(weights, program, err);
    else if (options->weights_path != NULL)
        status = tdm_weights_find(options->weights_path, options->schedule_paths[0],
                                  program->schedule->model, &weights->files, err);
    if (status == TDM_OK)
        status = check_target(weights, program, false, err);
    return status == TDM_OK ? check_target(weights, program, true, err) : status;
}

enum tdm_status tdm_run_weights_match(struct tdm_run_weights *weights,
                                      const struct tdm_tokens *tokens, struct tdm_error *err)
{
    if (weights->resumed == NULL && !tdm_run_saves_checkpoints(weights->options))
        return TDM_OK;
    tdm_tokens_identify(tokens, &weights->tokens);
    return weights->resumed == NULL
               ? TDM_OK
               : tdm_checkpoint_match_tokens(weights->resumed, tdm_tokens_name(tokens),
                                             &weights->tokens, err);
}

/* Why are checkpoints written between steps, for what is known here? NULL: they are written beside
 * the next one. */
static const char *why_between(const struct tdm_schedule *schedule)
{
    struct tdm_host_memory memory;
    if (schedule->snapshot_bytes < tdm_schedule_state_bytes(schedule))
        return "the plan leaves no host memory for a snapshot (plan --snapshot)";
    tdm_host_memory_read("", &memory);
    return tdm_host_memory_usable_bytes(&memory) < schedule->snapshot_bytes
               ? "this computer has too little free memory for a snapshot"
               : NULL;
}

enum tdm_status tdm_run_weights_prepare(struct tdm_run_weights *weights,
                                        const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_run_options *options = weights->options;
    const bool only_last = options->save_every >= options->steps; /* but for a signal's */
    if (!tdm_run_saves_checkpoints(options) ||
        (only_last && program->schedule->snapshot_bytes == 0))
        return TDM_OK;
    const char *why = why_between(program->schedule);
    uint32_t between = why != NULL;
    enum tdm_status status = tdm_processes_unite(options->processes, &between, err);
    if (status != TDM_OK)
        return status;
    if (between && why == NULL)
        why = "a computer of the run has too little free memory for a snapshot";
    weights->listener->saving(weights->listener->self, why);
    return between ? TDM_OK
                   : tdm_snapshot_new(program, options->processes, &weights->snapshot, err);
}

enum tdm_status tdm_run_weights_begin(struct tdm_run_weights *weights, struct tdm_error *err)
{
    const struct tdm_checkpoint *resumed = weights->resumed;
    if (resumed != NULL)
        weights->listener->resumed(weights->listener->self, resumed->directory, resumed->step,
                                   resumed->parts != NULL, resumed->differences);
    return tdm_run_saves_checkpoints(weights->options) &&
                   tdm_processes_number(weights->options->processes) == 0
               ? tdm_checkpoint_folder_open(&weights->folder, err)
               : TDM_OK;
}

void tdm_run_weights_close(struct tdm_run_weights *weights)
{
    tdm_save_free(weights->save);
    tdm_snapshot_free(weights->snapshot);
    free(weights->companions);
    tdm_weights_close(weights->files);
    tdm_checkpoint_close(weights->resumed);
    tdm_checkpoint_folder_close(&weights->folder);
    weights->files = NULL;
    weights->resumed = NULL;
    weights->save = NULL;
    weights->snapshot = NULL;
    weights->companions = NULL;
}
