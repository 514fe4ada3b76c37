/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation: whether two programs share their state, and running one between steps of the other. */
#include "executor/evaluate.h"

#include "executor/state.h"
#include "executor/walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same state ---- */

static bool is_state(const struct tdm_buffer *buffer)
{
    return buffer->resident &&
           (buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER);
}

/* What two schedules must have in common for their state to be the same. */
static enum tdm_status check_schedules(const char *path, const struct tdm_schedule *evaluation,
                                       const char *training_path,
                                       const struct tdm_schedule *training, struct tdm_error *err)
{
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
    for (int state = 0; state < TDM_STATES; state++) {
        const struct tdm_home *home = &evaluation->homes[state], *other = &training->homes[state];
        if (state == TDM_STATE_GRADIENTS ||
            (home->device_layers == other->device_layers && home->embedding == other->embedding &&
             home->head == other->head))
            continue;
        tdm_fail(err, TDM_INPUT, "%s: \"homes.%s\" is not what %s has", path,
                 tdm_state_name((enum tdm_state)state), training_path);
        return tdm_hint(err, "plan it with the same --set %s",
                        tdm_state_name((enum tdm_state)state));
    }
    return TDM_OK;
}

/* Every buffer of state of one program must be in the other, at the same place and bytes. */
static enum tdm_status check_buffers(const char *path, const struct tdm_program *one,
                                     const char *other_path, const struct tdm_program *other,
                                     struct tdm_error *err)
{
    for (uint32_t i = 0; i < one->buffer_count; i++) {
        const struct tdm_buffer *buffer = &one->buffers[i];
        if (!is_state(buffer))
            continue;
        uint32_t number = tdm_program_find(other, buffer->name);
        const struct tdm_buffer *found = number == TDM_NONE ? NULL : &other->buffers[number];
        if (found != NULL && found->place == buffer->place && found->offset == buffer->offset &&
            found->slots == buffer->slots && found->slot_bytes == buffer->slot_bytes)
            continue;
        tdm_fail(err, TDM_INPUT, "%s: \"%s\" is not where %s has it", path, buffer->name,
                 other_path);
        return tdm_hint(err, "weights and optimizer state must have the same places in both");
    }
    return TDM_OK;
}

enum tdm_status tdm_evaluation_check(const char *path, const struct tdm_program *evaluation,
                                     const char *training_path, const struct tdm_program *training,
                                     struct tdm_error *err)
{
    const struct tdm_schedule *mine = evaluation->schedule, *due = training->schedule;
    if (mine->pass != TDM_EVALUATE) {
        tdm_fail(err, TDM_INPUT, "%s: \"pass\" is %s; use evaluate", path,
                 tdm_purpose_name(mine->pass));
        return tdm_hint(err, "tidemark plan MODEL --context N --pass evaluate writes one");
    }
    if (due->pass != TDM_TRAIN)
        return tdm_fail(err, TDM_INPUT, "%s: \"pass\" is %s; use train where --evaluate is given",
                        training_path, tdm_purpose_name(due->pass));
    if (strcmp(mine->model->digest, due->model->digest) != 0)
        return tdm_fail(err, TDM_INPUT, "%s: is a schedule for %s, and %s for %s", path,
                        mine->model->name, training_path, due->model->name);
    enum tdm_status status = check_schedules(path, mine, training_path, due, err);
    if (status == TDM_OK)
        status = check_buffers(path, evaluation, training_path, training, err);
    if (status == TDM_OK)
        status = check_buffers(training_path, training, path, evaluation, err);
    return status;
}

/* ---- running it ---- */

struct tdm_evaluation {
    const struct tdm_program *program;
    const struct tdm_arenas *arenas;
    const struct tdm_tokens *tokens;
    uint64_t seed, windows;
    struct tdm_walk *walk;
    int32_t *inputs, *targets;
};

enum tdm_status tdm_evaluation_new(const struct tdm_program *program,
                                   const struct tdm_arenas *arenas, const struct tdm_tokens *tokens,
                                   uint64_t seed, uint64_t windows, struct tdm_evaluation **out,
                                   struct tdm_error *err)
{
    struct tdm_evaluation *evaluation = calloc(1, sizeof(*evaluation));
    if (evaluation == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for an evaluation");
    *evaluation = (struct tdm_evaluation){
        .program = program, .arenas = arenas, .tokens = tokens, .seed = seed, .windows = windows};
    uint64_t count = tdm_schedule_tokens(program->schedule);
    enum tdm_status status = tdm_walk_new(program, arenas, &evaluation->walk, err);
    if (status == TDM_OK)
        status = tdm_walk_prepare(evaluation->walk, err);
    if (status == TDM_OK && tokens != NULL) {
        if (tdm_tokens_windows(tokens, program->schedule) < windows)
            evaluation->windows = tdm_tokens_windows(tokens, program->schedule);
        evaluation->inputs = malloc(count * sizeof(*evaluation->inputs));
        evaluation->targets = malloc(count * sizeof(*evaluation->targets));
        if (evaluation->inputs == NULL || evaluation->targets == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu tokens",
                              (unsigned long long)count);
    }
    if (status != TDM_OK) {
        tdm_evaluation_free(evaluation);
        return status;
    }
    *out = evaluation;
    return TDM_OK;
}

void tdm_evaluation_free(struct tdm_evaluation *evaluation)
{
    if (evaluation == NULL)
        return;
    tdm_walk_free(evaluation->walk);
    free(evaluation->inputs);
    free(evaluation->targets);
    free(evaluation);
}

uint64_t tdm_evaluation_windows(const struct tdm_evaluation *evaluation)
{
    return evaluation->windows;
}

uint64_t tdm_evaluation_tokens(const struct tdm_evaluation *evaluation)
{
    return evaluation->windows * tdm_schedule_trained_tokens(evaluation->program->schedule);
}

/* Nobody asks for the times of these ops, and the next step's must not be mixed with them. */
static void drop_timings(const struct tdm_arenas *arenas)
{
    struct tdm_timing timings[64];
    size_t capacity = sizeof(timings) / sizeof(timings[0]);
    while (arenas->backend->reap(arenas->executor, timings, capacity) > 0)
        continue;
}

static enum tdm_status run_window(struct tdm_evaluation *evaluation, uint64_t window, uint64_t step,
                                  const volatile sig_atomic_t *stop, double *loss,
                                  struct tdm_error *err)
{
    const struct tdm_arenas *arenas = evaluation->arenas;
    const struct tdm_program *program = evaluation->program;
    struct tdm_step at = {.number = step, .seed = evaluation->seed, .untimed = true};
    enum tdm_status status = TDM_OK;
    double norm;
    if (evaluation->tokens != NULL) {
        tdm_tokens_window(evaluation->tokens, program->schedule, evaluation->seed, window,
                          evaluation->inputs, evaluation->targets);
        status =
            tdm_state_write_tokens(arenas, program, evaluation->inputs, evaluation->targets, err);
    }
    if (status == TDM_OK)
        status = tdm_walk_step(evaluation->walk, &at, NULL, stop, err);
    if (status == TDM_OK && evaluation->tokens != NULL)
        status = tdm_state_read_loss(arenas, program, loss, &norm, err);
    return status;
}

enum tdm_status tdm_evaluation_run(struct tdm_evaluation *evaluation, uint64_t step,
                                   const volatile sig_atomic_t *stop, double *loss, double *seconds,
                                   struct tdm_error *err)
{
    const struct tdm_arenas *arenas = evaluation->arenas;
    int64_t start_ns = arenas->backend->now(arenas->executor);
    double sum = 0;
    for (uint64_t window = 0; window < evaluation->windows; window++) {
        double each = NAN;
        enum tdm_status status = run_window(evaluation, window, step, stop, &each, err);
        drop_timings(arenas);
        if (status != TDM_OK)
            return status;
        sum += each;
    }
    *loss = sum / (double)evaluation->windows; /* windows have as many tokens each */
    *seconds = 1e-9 * (double)(arenas->backend->now(arenas->executor) - start_ns);
    return TDM_OK;
}
