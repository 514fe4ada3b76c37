/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a small program in memory, so that tests can look back and change them. */
#ifndef TDM_TESTS_RECORDING_H
#define TDM_TESTS_RECORDING_H

#include "schedule/program.h"

/* One item; a TDM_RUN has its op here, and `item.op` is set by tdm_recording_item() alone. */
struct tdm_recorded {
    struct tdm_item item;
    struct tdm_op op;
};

/* Items of one step. `program` is a copy whose buffers are its own, so that both can be changed;
 * its schedule, chunks and layout are those of the program that was recorded, which must outlive
 * it. */
struct tdm_recording {
    struct tdm_program program;
    struct tdm_recorded *items;
    size_t count, room;
};

/* Records one step. The caller owns *recording (tdm_recording_free), also to copy it. */
enum tdm_status tdm_recording_new(const struct tdm_program *program,
                                  struct tdm_recording *recording, struct tdm_error *err);
enum tdm_status tdm_recording_copy(const struct tdm_recording *from, struct tdm_recording *to,
                                   struct tdm_error *err);
void tdm_recording_free(struct tdm_recording *recording);

/* Item `index`, ready for a sink; valid until the recording changes. */
struct tdm_item tdm_recording_item(const struct tdm_recording *recording, size_t index);

/* Takes an item out; puts one in before `index`, of which there is room for two after a copy. Both
 * number the ops anew and correct the program's count of them. */
void tdm_recording_remove(struct tdm_recording *recording, size_t index);
void tdm_recording_insert(struct tdm_recording *recording, size_t index,
                          const struct tdm_recorded *item);

#endif
