/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of checkpoints (executor/save.h). */
#include "executor/save.h"

#include "base/clock.h"
#include "executor/processes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct tdm_save {
    struct tdm_weights_target target;
    struct tdm_checkpoint_folder *folder;
    struct tdm_checkpoint_moment moment;
    struct tdm_history history;
    char *path;
    double seconds;
    /* on a thread */
    const struct tdm_arenas *arenas;
    const struct tdm_program *program;
    struct tdm_weights_watch watch;
    pthread_t thread;
    bool runs; /* it has been started, and not been joined */
    atomic_bool ended;
    enum tdm_status status;
    struct tdm_error err;
};

enum tdm_status tdm_save_new(const struct tdm_weights_target *target,
                             struct tdm_checkpoint_folder *folder,
                             const struct tdm_checkpoint_moment *moment, struct tdm_save **out,
                             struct tdm_error *err)
{
    struct tdm_save *save = calloc(1, sizeof(*save));
    if (save == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", folder->path);
    *save = (struct tdm_save){.target = *target, .folder = folder, .moment = *moment};
    enum tdm_status status = tdm_history_copy(moment->history, &save->history, err);
    save->path = tdm_checkpoint_folder_step(folder, moment->step);
    if (status == TDM_OK && save->path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", folder->path);
    if (status != TDM_OK) {
        tdm_save_free(save);
        return status;
    }
    save->moment.history = &save->history;
    save->target.directory = save->path;
    save->target.force = true; /* the folder was checked */
    *out = save;
    return TDM_OK;
}

static void join(struct tdm_save *save)
{
    if (save->runs)
        pthread_join(save->thread, NULL);
    save->runs = false;
}

void tdm_save_free(struct tdm_save *save)
{
    if (save == NULL)
        return;
    join(save);
    tdm_history_free(&save->history);
    free(save->path);
    free(save);
}

enum tdm_status tdm_save_write(struct tdm_save *save, const struct tdm_arenas *arenas,
                               const struct tdm_program *program,
                               const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const double began = tdm_now_seconds();
    enum tdm_status status =
        tdm_checkpoint_save(&save->target, arenas, program, &save->moment, watch, err);
    if (status == TDM_OK && tdm_processes_number(tdm_arenas_here(arenas)->processes) == 0)
        status = tdm_checkpoint_folder_advance(save->folder, save->moment.step, err);
    save->seconds = tdm_now_seconds() - began;
    return status;
}

static void *run(void *self)
{
    struct tdm_save *save = self;
    tdm_processes_beside();
    save->status = tdm_save_write(save, save->arenas, save->program, &save->watch, &save->err);
    atomic_store(&save->ended, true);
    return NULL;
}

enum tdm_status tdm_save_start(struct tdm_save *save, const struct tdm_arenas *arenas,
                               const struct tdm_program *program,
                               const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    save->arenas = arenas;
    save->program = program;
    save->watch = (struct tdm_weights_watch){.stop = watch->stop};
    save->runs = pthread_create(&save->thread, NULL, run, save) == 0;
    return save->runs ? TDM_OK
                      : tdm_fail(err, TDM_NO_MEMORY, "%s: no thread to write it", save->path);
}

bool tdm_save_ended(const struct tdm_save *save)
{
    return atomic_load(&save->ended);
}

bool tdm_save_failed(const struct tdm_save *save)
{
    return tdm_save_ended(save) && save->status != TDM_OK;
}

enum tdm_status tdm_save_end(struct tdm_save *save, struct tdm_error *err)
{
    join(save);
    if (save->status != TDM_OK && err != NULL)
        *err = save->err;
    return save->status;
}

const char *tdm_save_path(const struct tdm_save *save)
{
    return save->path;
}

uint64_t tdm_save_step(const struct tdm_save *save)
{
    return save->moment.step;
}

double tdm_save_seconds(const struct tdm_save *save)
{
    return save->seconds;
}
