/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint: a directory from which a training goes on exactly. It is a saved model, with the
 * rest of the optimizer's state and a note beside it (docs/formats.md).
 *
 * What is in it depends on the model, the optimizer and the step, not on the schedule: any schedule
 * of the model with the same optimizer can go on, whatever it keeps where, with any number of
 * ranks.
 */
#ifndef TDM_EXECUTOR_CHECKPOINT_H
#define TDM_EXECUTOR_CHECKPOINT_H

#include "base/digest.h"
#include "executor/arenas.h"
#include "executor/history.h"
#include "texts/tokens.h"
#include "executor/weights.h"

/* A training after a step: what the next steps depend on beside weights and optimizer state, and
 * what has been measured so far. Where steps read their tokens and how they round follows from
 * their number and the seed. */
struct tdm_checkpoint_moment {
    uint64_t step, seed;
    const char *backend;
    uint64_t token_count;               /* of the text; 0: random tokens */
    char token_digest[TDM_DIGEST_SIZE]; /* tdm_tokens_digest() */
    const struct tdm_history *history;  /* of all steps up to this one */
};

/* Writes a checkpoint to `target`, for which it sets `checkpoint` and `part_bytes`. The directory
 * is read back before it takes its place. TDM_INPUT if a weight or a moment is not finite: then
 * nothing is written. */
enum tdm_status tdm_checkpoint_save(const struct tdm_weights_target *target,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err);

struct tdm_pauses;

/* Where a step is: at a pause, so long after it began. */
struct tdm_checkpoint_within {
    uint32_t pause;
    double seconds;
};

/* Writes to the directory `target` a checkpoint within the step after `moment`: what the rest of
 * the step needs of the arenas of a program of one rank. It is read back before it takes its
 * place. */
enum tdm_status tdm_checkpoint_save_within(const char *target, const struct tdm_arenas *arenas,
                                           const struct tdm_program *program,
                                           const struct tdm_pauses *pauses,
                                           const struct tdm_checkpoint_within *within,
                                           const struct tdm_checkpoint_moment *moment,
                                           const struct tdm_weights_watch *watch,
                                           struct tdm_error *err);

/* Is this the name of a file in it, in the sense of tdm_directory_owns? */
bool tdm_checkpoint_owns_within(const char *name);

/* Bytes of the parts beside the saved model, whose files have `dtype`. */
uint64_t tdm_checkpoint_part_bytes(const struct tdm_program *program, enum tdm_dtype dtype);

/* A checkpoint that was opened. */
struct tdm_checkpoint {
    char *directory; /* a checkpoint, also where the caller named a folder of them */
    json_t *note;
    uint64_t step, seed;
    uint64_t within_op;    /* of the step after it, the first op that has not run; 0: none has */
    double within_seconds; /* that the ops before it took */
    /* settings that differ from those of the run that saved, with both values; "": none */
    char differences[512];
    struct tdm_checkpoint_reader *reader; /* NULL until tdm_checkpoint_match() */
};

/* Opens a checkpoint, or the latest one of a folder of checkpoints, and reads its note. TDM_USAGE
 * if there is none; TDM_INPUT if the note was edited. On success the caller owns *checkpoint. */
enum tdm_status tdm_checkpoint_open(const char *path, struct tdm_checkpoint **checkpoint,
                                    struct tdm_error *err);
void tdm_checkpoint_close(struct tdm_checkpoint *checkpoint);

/* A program that is to go on from a checkpoint. */
struct tdm_checkpoint_user {
    const struct tdm_program *program;
    const char *schedule_path; /* for messages */
    const char *backend;
    const char *const *pairs; /* [pair_count], settings that the user changes: KEY=VALUE */
    size_t pair_count;
};

/* Checks that a program can go on from a checkpoint, and opens its files, of which it checks the
 * headers. TDM_INPUT names what differs: model, optimizer, its settings (unless the user changes
 * them), what a step trains on. Other differences change only how sums are rounded: they are noted
 * in checkpoint->differences. */
enum tdm_status tdm_checkpoint_match(struct tdm_checkpoint *checkpoint,
                                     const struct tdm_checkpoint_user *user, struct tdm_error *err);

/* Was it saved by a run on this text? TDM_INPUT if not. `name`: of the text, for the message. */
enum tdm_status tdm_checkpoint_match_tokens(const struct tdm_checkpoint *checkpoint,
                                            const char *name, uint64_t token_count,
                                            const char *token_digest, struct tdm_error *err);

/* Reads weights and optimizer state into arenas, once, of a program that matches; of a checkpoint
 * within a step also what else that needs. TDM_INPUT if the data are not those that were saved. */
enum tdm_status tdm_checkpoint_load(struct tdm_checkpoint *checkpoint,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err);

/* Adds the steps up to the checkpoint to an empty history. */
enum tdm_status tdm_checkpoint_history(const struct tdm_checkpoint *checkpoint,
                                       struct tdm_history *history, struct tdm_error *err);

#endif
