/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The save of one checkpoint into a folder: by the caller, or by a thread beside it. The checkpoint
 * is written and read back, `latest` is moved to it, and older ones are removed.
 */
#ifndef TDM_EXECUTOR_SAVE_H
#define TDM_EXECUTOR_SAVE_H

#include "executor/checkpoint.h"
#include "executor/checkpoint_folder.h"

struct tdm_save;

/* Prepares a save. Target and moment are copied, with the moment's history and the name that the
 * target gets in the folder; what else they name must outlive *save, which the caller owns. */
enum tdm_status tdm_save_new(const struct tdm_weights_target *target,
                             struct tdm_checkpoint_folder *folder,
                             const struct tdm_checkpoint_moment *moment, struct tdm_save **save,
                             struct tdm_error *err);

/* Waits for the thread, if there is one. */
void tdm_save_free(struct tdm_save *save);

/* Saves from arenas; of several processes all call it, and write what they have. Errors of
 * tdm_checkpoint_save() and tdm_checkpoint_folder_advance(). */
enum tdm_status tdm_save_write(struct tdm_save *save, const struct tdm_arenas *arenas,
                               const struct tdm_program *program,
                               const struct tdm_weights_watch *watch, struct tdm_error *err);

/* The same on a thread; of several processes on one in each. The arenas must not change before
 * tdm_save_end(). Only watch->stop is used. TDM_NO_MEMORY: there is no thread. */
enum tdm_status tdm_save_start(struct tdm_save *save, const struct tdm_arenas *arenas,
                               const struct tdm_program *program,
                               const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Has the thread ended, and if so with an error? */
bool tdm_save_ended(const struct tdm_save *save);
bool tdm_save_failed(const struct tdm_save *save);

/* Waits for the thread, and returns its status. */
enum tdm_status tdm_save_end(struct tdm_save *save, struct tdm_error *err);

/* Of a save that succeeded: the checkpoint, its step, and how long it took. */
const char *tdm_save_path(const struct tdm_save *save);
uint64_t tdm_save_step(const struct tdm_save *save);
double tdm_save_seconds(const struct tdm_save *save);

#endif
