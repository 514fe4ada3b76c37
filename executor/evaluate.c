/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation: checks that two programs share their state, and runs one between steps of the
 * other. */
#include "executor/evaluate.h"

#include "base/size.h"
#include "executor/batch.h"
#include "executor/state.h"
#include "executor/team_walk.h"
#include "schedule/shared_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same state ---- */

static bool is_state(const struct tdm_buffer *buffer)
{
    return buffer->resident &&
           (buffer->category == TDM_WEIGHTS || buffer->category == TDM_OPTIMIZER);
}

/* Every buffer of state of one program must be in the other, with the same place, offset and
 * slots. */
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
        return tdm_hint(err, "tidemark plan --pass evaluate --like %s writes one", training_path);
    }
    if (due->pass != TDM_TRAIN)
        return tdm_fail(err, TDM_INPUT, "%s: \"pass\" is %s; use train where --evaluate is given",
                        training_path, tdm_purpose_name(due->pass));
    enum tdm_status status = tdm_shared_state_check(path, mine, training_path, due, err);
    if (status != TDM_OK)
        tdm_hint(err, "tidemark plan --pass evaluate --like %s writes one that fits it",
                 training_path);
    if (status == TDM_OK)
        status = check_buffers(path, evaluation, training_path, training, err);
    if (status == TDM_OK)
        status = check_buffers(training_path, training, path, evaluation, err);
    return status;
}

/* ---- running it ---- */

struct text {
    struct tdm_batch *batch; /* NULL: nothing is computed */
    uint64_t windows;        /* that an evaluation runs */
    uint64_t trained_tokens; /* of all of them */
};

struct tdm_evaluation {
    const struct tdm_program *program;
    const struct tdm_arenas *arenas;
    uint64_t seed;
    struct tdm_team_walk *walk;
    struct text *texts; /* [text_count] */
    uint32_t text_count;
};

enum tdm_status tdm_evaluation_check_tokens(const struct tdm_tokens *tokens,
                                            const struct tdm_schedule *schedule,
                                            struct tdm_error *err)
{
    struct tdm_batch *batch = NULL;
    enum tdm_status status = tdm_batch_new(tokens, schedule, &batch, err);
    tdm_batch_free(batch);
    if (status != TDM_OK || tdm_batch_windows(tokens, schedule) > 0)
        return status;
    tdm_fail(
        err, TDM_INPUT,
        "%s: %llu tokens to evaluate on are fewer than an evaluation step of %llu and the token "
        "after it",
        tdm_tokens_name(tokens), (unsigned long long)tdm_tokens_count(tokens),
        (unsigned long long)tdm_schedule_tokens(schedule));
    return tdm_hint(err,
                    "use a longer text or a larger share (--validation), or plan the evaluation "
                    "with a smaller --context");
}

/* Counts the tokens of the windows that have a target. */
static void count_tokens(const struct tdm_evaluation *evaluation, struct text *text)
{
    const struct tdm_schedule *schedule = evaluation->program->schedule;
    text->trained_tokens = text->windows * tdm_schedule_trained_tokens(schedule);
    if (text->batch == NULL || !tdm_batch_has_own_targets(text->batch))
        return;
    text->trained_tokens = 0;
    for (uint64_t window = 0; window < text->windows; window++) {
        tdm_batch_window(text->batch, evaluation->seed, window);
        text->trained_tokens += text->batch->trained_tokens;
    }
}

static enum tdm_status open_texts(struct tdm_evaluation *evaluation,
                                  struct tdm_tokens *const *texts, uint64_t windows,
                                  struct tdm_error *err)
{
    const struct tdm_schedule *schedule = evaluation->program->schedule;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < evaluation->text_count && status == TDM_OK; i++) {
        struct text *text = &evaluation->texts[i];
        text->windows = windows;
        if (texts != NULL) {
            status = tdm_batch_new(texts[i], schedule, &text->batch, err);
            text->windows = tdm_least(windows, tdm_batch_windows(texts[i], schedule));
        }
        if (status == TDM_OK)
            count_tokens(evaluation, text);
    }
    return status;
}

enum tdm_status
tdm_evaluation_new(const struct tdm_program *program, struct tdm_forecast *const *forecasts,
                   const struct tdm_arenas *arenas, const struct tdm_team_options *team,
                   struct tdm_tokens *const *texts, uint32_t text_count, uint64_t seed,
                   uint64_t windows, struct tdm_evaluation **out, struct tdm_error *err)
{
    struct tdm_evaluation *evaluation = calloc(1, sizeof(*evaluation));
    if (evaluation == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for an evaluation");
    *evaluation = (struct tdm_evaluation){
        .program = program, .arenas = arenas, .seed = seed, .text_count = text_count};
    enum tdm_status status = TDM_OK;
    evaluation->texts = calloc(text_count, sizeof(*evaluation->texts));
    if (evaluation->texts == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for an evaluation");
    if (status == TDM_OK)
        status = tdm_team_walk_open(program, forecasts, arenas, team, &evaluation->walk, err);
    if (status == TDM_OK)
        status = tdm_team_walk_prepare(evaluation->walk, err);
    if (status == TDM_OK)
        status = open_texts(evaluation, texts, windows, err);
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
    tdm_team_walk_free(evaluation->walk);
    for (uint32_t i = 0; evaluation->texts != NULL && i < evaluation->text_count; i++)
        tdm_batch_free(evaluation->texts[i].batch);
    free(evaluation->texts);
    free(evaluation);
}

bool tdm_evaluation_hangs(const struct tdm_evaluation *evaluation)
{
    return evaluation != NULL && tdm_team_walk_hangs(evaluation->walk);
}

uint64_t tdm_evaluation_tokens(const struct tdm_evaluation *evaluation, uint32_t text)
{
    return evaluation->texts[text].trained_tokens;
}

/* The share that the last window run has of the text's tokens. */
static double share_of_window(const struct text *text)
{
    const struct tdm_batch *batch = text->batch;
    if (batch == NULL || !tdm_batch_has_own_targets(batch))
        return 1.0 / (double)text->windows;
    return text->trained_tokens == 0 ? 0
                                     : (double)batch->trained_tokens / (double)text->trained_tokens;
}

/* Drops the times of these ops: nobody reads them, and they must not mix with the next step's. */
static void drop_timings(const struct tdm_arenas *arenas, uint32_t ranks)
{
    struct tdm_timing timings[64];
    size_t capacity = sizeof(timings) / sizeof(timings[0]);
    for (uint32_t rank = 0; rank < ranks; rank++)
        while (arenas[rank].backend != NULL && /* else it is of another process */
               arenas[rank].backend->reap(arenas[rank].executor, timings, capacity) > 0)
            continue;
}

static enum tdm_status run_window(struct tdm_evaluation *evaluation, const struct text *text,
                                  uint64_t window, uint64_t step, const volatile sig_atomic_t *stop,
                                  double *loss, struct tdm_error *err)
{
    const struct tdm_arenas *arenas = evaluation->arenas;
    const struct tdm_program *program = evaluation->program;
    struct tdm_step at = {.number = step, .seed = evaluation->seed, .untimed = true};
    enum tdm_status status = TDM_OK;
    double norm;
    if (text->batch != NULL) {
        tdm_batch_window(text->batch, evaluation->seed, window);
        tdm_batch_describe(text->batch, &at);
        status =
            tdm_state_write_tokens(arenas, program, text->batch->inputs, text->batch->targets, err);
    }
    if (status == TDM_OK)
        status = tdm_team_walk_step(evaluation->walk, &at, NULL, stop, err);
    if (status == TDM_OK && text->batch != NULL)
        status = tdm_state_read_loss(arenas, program, loss, &norm, NULL, err);
    return status;
}

enum tdm_status tdm_evaluation_run(struct tdm_evaluation *evaluation, uint32_t number,
                                   uint64_t step, const volatile sig_atomic_t *stop, double *loss,
                                   double *seconds, struct tdm_error *err)
{
    const struct tdm_arenas *arenas = tdm_arenas_here(evaluation->arenas);
    const struct text *text = &evaluation->texts[number];
    int64_t start_ns = arenas->backend->now(arenas->executor);
    double sum = 0;
    for (uint64_t window = 0; window < text->windows; window++) {
        double each = NAN;
        enum tdm_status status = run_window(evaluation, text, window, step, stop, &each, err);
        drop_timings(evaluation->arenas, evaluation->program->ranks);
        if (status != TDM_OK)
            return status;
        sum += each * share_of_window(text);
    }
    *loss = sum;
    *seconds = 1e-9 * (double)(arenas->backend->now(arenas->executor) - start_ns);
    return TDM_OK;
}
