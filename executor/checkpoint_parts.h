/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of a checkpoint: checkpoint.c has the note, checkpoint_state.c weights and
 * optimizer state, checkpoint_within.c the memory of a step; private to these. */
#ifndef TDM_EXECUTOR_CHECKPOINT_PARTS_H
#define TDM_EXECUTOR_CHECKPOINT_PARTS_H

#include "executor/checkpoint.h"

struct tdm_checkpoint_reader;

/* Makes the note of a checkpoint, with the description of its files, whose references it takes;
 * NULL if memory ran out for them. `within`: a null of JSON if it is not within a step. */
enum tdm_status tdm_checkpoint_note(const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment, json_t *sets,
                                    json_t *files, json_t *within, json_t **note,
                                    struct tdm_error *err);

/* Can a program, whose schedule is `now`, finish the step of a checkpoint within one? */
enum tdm_status tdm_checkpoint_match_within(const struct tdm_checkpoint *checkpoint,
                                            const json_t *now,
                                            const struct tdm_checkpoint_user *user,
                                            struct tdm_error *err);

/* Reads what a note says of the ranks of a checkpoint within a step. */
enum tdm_status tdm_checkpoint_read_parts(const char *file, const json_t *within,
                                          struct tdm_checkpoint *checkpoint, struct tdm_error *err);

/* Loads the memory of such a checkpoint, of the ranks of this process. */
enum tdm_status tdm_checkpoint_load_within(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_arenas *arenas,
                                           const struct tdm_program *program,
                                           const struct tdm_weights_watch *watch,
                                           struct tdm_error *err);

/* Opens the files of a checkpoint and checks their headers. */
enum tdm_status tdm_checkpoint_reader_open(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_program *program,
                                           struct tdm_checkpoint_reader **reader,
                                           struct tdm_error *err);
void tdm_checkpoint_reader_close(struct tdm_checkpoint_reader *reader);

#endif
