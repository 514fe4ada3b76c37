/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder of checkpoints: step-N for each step that was saved and is kept, and `latest`, a link to
 * the newest, which is moved after that is complete; and within-N, if step N was saved while it ran
 * and has not been saved since. Other files in the folder are left alone.
 */
#ifndef TDM_EXECUTOR_CHECKPOINT_FOLDER_H
#define TDM_EXECUTOR_CHECKPOINT_FOLDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The link in a folder. */
#define TDM_CHECKPOINT_LATEST "latest"

struct tdm_checkpoint_folder {
    const char *path;
    uint64_t keep; /* this many of the newest checkpoints stay */
    /* After the first save all checkpoints go that were there and are not the run's own: of another
     * run, or after the step that it goes on from. */
    bool discards;      /* there are such */
    uint64_t own_steps; /* those up to this step are its own; 0: none */
    bool made;          /* by tdm_checkpoint_folder_open() */
    int lock;           /* descriptor; -1: not open */
    /* of the last checkpoint that should have been removed and could not; TDM_OK: none. The caller
     * tells and clears it */
    struct tdm_error stuck;
};

/* May a run write its checkpoints to `path`, after `resumed`, a checkpoint in any folder (NULL:
 * from the start)? TDM_USAGE if other ones are there, or later ones, unless `force`: then they go
 * after the first save. Sets *folder, which the caller may open. */
enum tdm_status tdm_checkpoint_folder_check(const char *path, uint64_t keep, bool force,
                                            const char *resumed, uint64_t resumed_step,
                                            struct tdm_checkpoint_folder *folder,
                                            struct tdm_error *err);

/* Makes the folder if there is none, locks it, and removes what killed runs left in it. TDM_USAGE
 * if another run writes there. */
enum tdm_status tdm_checkpoint_folder_open(struct tdm_checkpoint_folder *folder,
                                           struct tdm_error *err);

/* Removes a folder that it made and that is empty. */
void tdm_checkpoint_folder_close(struct tdm_checkpoint_folder *folder);

/* "FOLDER/step-N"; malloc'ed. NULL if memory ran out. */
char *tdm_checkpoint_folder_step(const struct tdm_checkpoint_folder *folder, uint64_t step);

/* "FOLDER/within-N", of a checkpoint within step N; malloc'ed. NULL if memory ran out. */
char *tdm_checkpoint_folder_within(const struct tdm_checkpoint_folder *folder, uint64_t step);

/* N of "PATH/step-N"; 0: the name of a checkpoint is another one. */
uint64_t tdm_checkpoint_folder_step_of(const char *checkpoint);

/* "PATH/step-N" of the last checkpoint of a folder; malloc'ed. NULL: there is none, or memory ran
 * out. */
char *tdm_checkpoint_folder_last(const char *path);

/* Sets *newest to the checkpoint that a folder stands for: "PATH/within-N" if it is of a later step
 * than what `latest` names, else that; malloc'ed. NULL: there is neither. */
enum tdm_status tdm_checkpoint_folder_newest(const char *path, char **newest,
                                             struct tdm_error *err);

/* Is `path`, which need not exist, a checkpoint of the folder `folder` by its name (step-N,
 * within-N, latest), or within one? */
bool tdm_checkpoint_folder_has(const char *folder, const char *path);

/* The checkpoint within `step` is complete: removes earlier ones, and all that are not its own. */
enum tdm_status tdm_checkpoint_folder_advance_within(struct tdm_checkpoint_folder *folder,
                                                     uint64_t step, struct tdm_error *err);

/* The checkpoint of `step` is complete: moves `latest` to it, and removes the oldest, those within
 * steps up to this one, and all that are not its own. */
enum tdm_status tdm_checkpoint_folder_advance(struct tdm_checkpoint_folder *folder, uint64_t step,
                                              struct tdm_error *err);

#endif
