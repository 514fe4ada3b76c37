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
    struct tdm_tokens_identity tokens;
    const struct tdm_history *history; /* of all steps up to this one */
};

/* Writes a checkpoint to `target`, for which it sets `checkpoint`, `part_bytes` and `shared`. The
 * directory is read back before it takes its place. Several processes call it together, each writes
 * what its ranks have, and process 0 puts the directory in its place. TDM_INPUT if a weight or a
 * moment is not finite: then nothing is written. */
enum tdm_status tdm_checkpoint_save(const struct tdm_weights_target *target,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err);

struct tdm_pauses;

/* What a checkpoint within a step says of a rank. */
struct tdm_checkpoint_part {
    uint64_t op, ops;         /* the first op that has not run, and all of the step */
    uint64_t bytes, checksum; /* of its memory */
    uint64_t slots;           /* a digest of the slots in it */
};

/* Writes the memory of a rank at a pause to a file of a new directory: what the rest of the step
 * needs of its arenas. It is read back. `program` is that of the rank. */
enum tdm_status tdm_checkpoint_write_part(const char *directory, const struct tdm_arenas *arenas,
                                          const struct tdm_program *program,
                                          const struct tdm_pauses *pauses, uint32_t pause,
                                          const struct tdm_weights_watch *watch,
                                          struct tdm_checkpoint_part *part, struct tdm_error *err);

/* Writes the note of a checkpoint within the step after `moment`, `seconds` after that began.
 * `parts`: of all ranks. */
enum tdm_status tdm_checkpoint_write_within(const char *directory,
                                            const struct tdm_program *program, double seconds,
                                            const struct tdm_checkpoint_part *parts,
                                            const struct tdm_checkpoint_moment *moment,
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
    /* of the step after it: the ranks that ran a part of it, what each has; NULL: it is not begun
     */
    struct tdm_checkpoint_part *parts;
    uint32_t part_count;
    double within_seconds; /* that this took */
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

/* Was it saved by a run on this text? TDM_INPUT if not, with what differs. `name`: of the text, for
 * the message. */
enum tdm_status tdm_checkpoint_match_tokens(const struct tdm_checkpoint *checkpoint,
                                            const char *name,
                                            const struct tdm_tokens_identity *identity,
                                            struct tdm_error *err);

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
