/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a small program in memory, so that tests can inspect and change them. */
#ifndef TDM_TESTS_RECORDING_H
#define TDM_TESTS_RECORDING_H

#include "schedule/program.h"

/* One item. The op of a TDM_RUN is stored here; only tdm_recording_item() sets `item.op`. */
struct tdm_recorded {
    struct tdm_item item;
    struct tdm_op op;
};

/* Items of one step. `program` is a copy with its own buffers, so that both can be changed. Its
 * schedule, chunks and layout belong to the recorded program, which must outlive it. */
struct tdm_recording {
    struct tdm_program program;
    struct tdm_recorded *items;
    size_t count, capacity;
};

/* Records one step, or copies a recording. The caller owns the result (tdm_recording_free). */
enum tdm_status tdm_recording_new(const struct tdm_program *program,
                                  struct tdm_recording *recording, struct tdm_error *err);
enum tdm_status tdm_recording_copy(const struct tdm_recording *from, struct tdm_recording *to,
                                   struct tdm_error *err);
void tdm_recording_free(struct tdm_recording *recording);

/* Item `index`, ready for a sink. Valid until the recording changes. */
struct tdm_item tdm_recording_item(const struct tdm_recording *recording, size_t index);

/* Remove an item, or insert one before `index`. A copied recording has space for two more items.
 * Both functions renumber the ops and update the program's op count. */
void tdm_recording_remove(struct tdm_recording *recording, size_t index);
void tdm_recording_insert(struct tdm_recording *recording, size_t index,
                          const struct tdm_recorded *item);

#endif
