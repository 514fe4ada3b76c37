/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of a checkpoint: checkpoint.c has the note, checkpoint_state.c weights and
 * optimizer state; private to these two. */
#ifndef TDM_EXECUTOR_CHECKPOINT_PARTS_H
#define TDM_EXECUTOR_CHECKPOINT_PARTS_H

#include "executor/checkpoint.h"

struct tdm_checkpoint_reader;

/* Makes the note of a checkpoint, with the description of its files, whose references it takes;
 * NULL if memory ran out for them. */
enum tdm_status tdm_checkpoint_note(const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment, json_t *sets,
                                    json_t *files, json_t **note, struct tdm_error *err);

/* Opens the files of a checkpoint and checks their headers. */
enum tdm_status tdm_checkpoint_reader_open(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_program *program,
                                           struct tdm_checkpoint_reader **reader,
                                           struct tdm_error *err);
void tdm_checkpoint_reader_close(struct tdm_checkpoint_reader *reader);

#endif
