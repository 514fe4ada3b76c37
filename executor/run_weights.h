/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a run: initialises them or goes on from a checkpoint, and saves them, checkpoints or
 * gradients; a part of run.c.
 */
#ifndef TDM_EXECUTOR_RUN_WEIGHTS_H
#define TDM_EXECUTOR_RUN_WEIGHTS_H

#include "base/directory.h"
#include "executor/arenas.h"
#include "executor/checkpoint.h"
#include "executor/checkpoint_folder.h"
#include "executor/log.h"
#include "executor/run.h"
#include "executor/save.h"
#include "executor/snapshot.h"
#include "models/weights.h"

#define TDM_WITHIN_PATH 4096

struct tdm_run_weights {
    const struct tdm_run_options *options;
    const struct tdm_run_listener *listener;
    struct tdm_weights *files;      /* to load from; NULL: random */
    const char *moving;             /* the current activity, for listener->moved */
    uint64_t seed;                  /* of the training */
    struct tdm_checkpoint *resumed; /* NULL: from the start */
    struct tdm_checkpoint_folder folder;
    struct tdm_snapshot
        *snapshot;         /* for saves beside the next step; NULL: they are between steps */
    struct tdm_save *save; /* that goes on beside a step; NULL: none */
    struct tdm_log *log;   /* is flushed before a checkpoint is saved; NULL: none */
    char *companions;      /* a directory that the last save copied from; NULL: none */
    struct tdm_tokens_identity tokens; /* of the text, if checkpoints are read or written */
};

/* Called before anything is allocated. Opens the directory to load from and checks the directories
 * to write to, for `program`, the run's first. TDM_USAGE if the run cannot save what is asked for;
 * errors of tdm_weights_find() and tdm_weights_check(). Must be closed even after a failure. */
enum tdm_status tdm_run_weights_open(const struct tdm_run_options *options,
                                     const struct tdm_run_listener *listener,
                                     const struct tdm_program *program,
                                     struct tdm_run_weights *weights, struct tdm_error *err);
void tdm_run_weights_close(struct tdm_run_weights *weights);

/* Reads what checkpoints say of the text, and compares it with the one to go on from. TDM_INPUT if
 * it is another. */
enum tdm_status tdm_run_weights_match(struct tdm_run_weights *weights,
                                      const struct tdm_tokens *tokens, struct tdm_error *err);

/* The run will begin: makes the folder for checkpoints. Errors of tdm_checkpoint_folder_open(). */
enum tdm_status tdm_run_weights_begin(struct tdm_run_weights *weights, struct tdm_error *err);

/* When arenas have been taken and filled: takes memory for saves beside the steps of a program, if
 * it was planned, and tells the listener. */
enum tdm_status tdm_run_weights_prepare(struct tdm_run_weights *weights,
                                        const struct tdm_program *program, struct tdm_error *err);

/* Initialises the state of a program. */
enum tdm_status tdm_run_weights_init(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, struct tdm_error *err);

/* The last state after a step that is known: of the checkpoint that this run saved after
 * `saved_step` (0: none), of the one that it goes on from, or the initial one. If it goes on from
 * one within a step, the state there, or, where that has been removed, within `within_step`.
 * *checkpoint is the one that was loaded, which the caller closes; NULL: the initial state. */
enum tdm_status tdm_run_weights_restore(struct tdm_run_weights *weights,
                                        const struct tdm_arenas *arenas,
                                        const struct tdm_program *program, uint64_t saved_step,
                                        uint64_t within_step, struct tdm_checkpoint **checkpoint,
                                        struct tdm_error *err);

/* Does the run write checkpoints? */
bool tdm_run_saves_checkpoints(const struct tdm_run_options *options);

/* What the user wants of the run, by signals to this process or another one. */
struct tdm_run_wishes {
    bool stop, save;
    bool saved; /* no wish: a save beside the steps has ended in all processes, or failed in one */
};

/* Between steps: reads the wishes. All processes get the same ones; each wish to save once. */
enum tdm_status tdm_run_wishes(const struct tdm_run_weights *weights, struct tdm_run_wishes *wishes,
                               struct tdm_error *err);

/* Saves weights, a checkpoint or gradients if they are to be saved after the last step of
 * `history`; a checkpoint also if the user wishes it, or that the run stops. Not what *saved_step
 * says was saved; it becomes that step if a checkpoint was saved. With a snapshot it is saved
 * beside the next step, and *saved_step changes in a later call. With several processes all call
 * it; they write models and checkpoints together, and process 0 writes gradients. */
enum tdm_status tdm_run_weights_save(struct tdm_run_weights *weights,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program,
                                     const struct tdm_history *history,
                                     const struct tdm_run_wishes *wishes, uint64_t *saved_step,
                                     struct tdm_error *err);

/* A checkpoint within a step that is being written. */
struct tdm_within_save {
    char directory[TDM_WITHIN_PATH]; /* where the files go */
    char *path;                      /* where they will be; NULL: none, or another process knows */
    struct tdm_directory temporary;  /* of process 0 */
    bool begun;                      /* and not complete */
    double began_seconds;            /* on a clock */
};

/* Begins a checkpoint within `step`, in all processes: makes a directory, whose name all get. A
 * save beside the steps is awaited first. tdm_run_weights_leave_within() must follow. */
enum tdm_status tdm_run_weights_begin_within(struct tdm_run_weights *weights, uint64_t step,
                                             uint64_t *saved_step, struct tdm_within_save *save,
                                             struct tdm_error *err);

/* All ranks have written `parts`: process 0 writes the note, puts the checkpoint in its place and
 * tells the listener; the others wait until it has. */
enum tdm_status tdm_run_weights_end_within(struct tdm_run_weights *weights,
                                           struct tdm_within_save *save,
                                           const struct tdm_program *program, double seconds,
                                           const struct tdm_checkpoint_part *parts,
                                           const struct tdm_history *history,
                                           struct tdm_error *err);

/* Removes what is not complete, and frees. */
void tdm_run_weights_leave_within(struct tdm_within_save *save);

/* Waits for a save beside the steps, if there is one; it then counts as one in *saved_step. */
enum tdm_status tdm_run_weights_await(struct tdm_run_weights *weights, uint64_t *saved_step,
                                      struct tdm_error *err);

#endif
