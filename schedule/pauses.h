/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pauses: points of a step's backward at which the rest of the step can be run later, from a copy
 * of the slots that it still needs.
 *
 * A pause is before an op of the compute lane, or a team op, whose layer is another one than that
 * of the op before it. The ops with lower numbers have ended then, on all lanes. A slot is needed
 * if a later op reads it, or a part of it, before it is written, and if it outlives the step and is
 * not written as a whole in the rest. This follows from accesses alone.
 *
 * Of several ranks each has pauses of its own. At one of them no rank needs another one's memory
 * but through later team ops if all ranks pause after the same number of team ops.
 */
#ifndef TDM_SCHEDULE_PAUSES_H
#define TDM_SCHEDULE_PAUSES_H

#include "schedule/program_types.h"

struct tdm_pause {
    uint64_t op;       /* the number of the first op after it */
    uint64_t team_ops; /* before it */
    uint64_t bytes;    /* of the slots that are needed */
};

struct tdm_pauses;

/* Finds the pauses of a program, as its rank runs it, which must outlive *pauses: at most
 * TDM_MOST_PAUSES, spread evenly where there are more. Emits the program twice. The caller owns
 * *pauses. TDM_NO_MEMORY. */
#define TDM_MOST_PAUSES 512u
enum tdm_status tdm_pauses_new(const struct tdm_program *program, struct tdm_pauses **pauses,
                               struct tdm_error *err);
void tdm_pauses_free(struct tdm_pauses *pauses);

/* Pauses in program order: their number, and one of them. A program may have none. */
uint32_t tdm_pauses_count(const struct tdm_pauses *pauses);
const struct tdm_pause *tdm_pauses_at(const struct tdm_pauses *pauses, uint32_t number);

/* The pause before an op; TDM_NONE: there is none. */
uint32_t tdm_pauses_find(const struct tdm_pauses *pauses, uint64_t op);

/* Do two ranks pause as often, each time after the same number of team ops? */
bool tdm_pauses_agree(const struct tdm_pauses *pauses, const struct tdm_pauses *others);

/* Slots of a buffer, one after another. */
struct tdm_slot_range {
    uint32_t buffer, first_slot, slots;
};

/* Finds the next range of needed slots at a pause, by ascending buffer and slot. `range` is {0}
 * before the first call, and the last one in each other. False: there are no more. */
bool tdm_pauses_next(const struct tdm_pauses *pauses, uint32_t number,
                     struct tdm_slot_range *range);

#endif
