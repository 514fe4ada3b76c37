/* SPDX-License-Identifier: Apache-2.0 */
/* What plants a fault: a trial, what its items hold, and how they are changed. The faults
 * themselves are in the other files of this folder, each with a table that ends with an entry
 * without a name. */
#ifndef TDM_FAULTS_TRIAL_H
#define TDM_FAULTS_TRIAL_H

#include "schedule/validate.h"
#include "tests/support/random_schedule.h"
#include "tests/support/recording.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A correct program, changed by one fault. */
struct trial {
    struct tdm_recording r;
    struct tdm_dice *dice;
    uint64_t capacity[TDM_MAX_PLACES];
    size_t wait_item; /* its wait for `wait_lane` becomes `wait` */
    int wait_lane;
    uint64_t wait;
    const struct tdm_waits *waits; /* [items] of the correct program */
};

struct fault {
    const char *name;
    bool (*plant)(struct trial *t); /* false: this program has no place for the fault */
    bool of_cost;                   /* costs stay as the fault set them */
    bool of_team;                   /* only streams of several ranks have a place for it */
};

extern const struct fault faults_of_memory[];
extern const struct fault faults_of_copies[];
extern const struct fault faults_of_host[];
extern const struct fault faults_of_ranges[];
extern const struct fault faults_of_ops[];
extern const struct fault faults_of_lists[];
extern const struct fault faults_of_team[];
extern const struct fault faults_of_team_state[];
extern const struct fault faults_of_heads[];
extern const struct fault faults_of_rings[];
extern const struct fault faults_of_queries[];

/* ---- inspecting ---- */

/* Visits every item once, starting with a random one. */
#define EACH_ITEM(t, i)                                                                \
    size_t i = tdm_dice_roll((t)->dice, 0, (t)->r.count - 1), left_##i = (t)->r.count; \
    left_##i > 0;                                                                      \
    left_##i--, i = (i + 1) % (t)->r.count

/* The op of an item; NULL if the item runs none. */
struct tdm_op *op_at(struct trial *t, size_t i);

bool is_op(struct trial *t, size_t i, enum tdm_op_kind kind);
bool is_item(struct trial *t, size_t i, enum tdm_item_kind kind, uint32_t buffer);
struct tdm_buffer *buffer_at(struct trial *t, uint32_t number);

/* An operand of an op. */
struct operand {
    size_t i;
    uint32_t a;
    size_t left; /* ops still to visit */
};

/* An iterator over every operand of every op, starting at a random op: for (struct operand o =
 * anywhere(t); next_operand(t, &o);). */
struct operand anywhere(struct trial *t);
bool next_operand(struct trial *t, struct operand *o);
struct tdm_access *operand_at(struct trial *t, const struct operand *o);

bool same_tag(struct tdm_tag a, struct tdm_tag b);

/* The tag of the slot that is `by` slots further. */
struct tdm_tag shifted(struct tdm_tag tag, uint32_t by);

bool covers(const struct tdm_access *access, uint32_t buffer, uint32_t slot);

/* What a slot, or a part of it, holds before item i. */
struct tdm_tag held(struct trial *t, size_t i, uint32_t buffer, uint32_t slot, uint32_t part);

/* Would the slot that an access writes hold something else without the access? */
bool leaves_a_trace(struct trial *t, size_t i, const struct tdm_access *access);

/* Does the op of an item access a buffer? */
bool uses(struct trial *t, size_t i, uint32_t buffer);

/* The next op, from item i on, that reads a slot; the number of items if there is none. */
size_t next_reader(struct trial *t, size_t i, uint32_t buffer, uint32_t slot);

/* Is what a slot holds after item i read before something else is written there? */
bool is_read(struct trial *t, size_t i, uint32_t buffer, uint32_t slot);

bool is_fetch(struct trial *t, size_t i);

/* The next fetch after item i into the same ring, or the number of items. */
size_t next_fetch(struct trial *t, size_t i);

/* Is it a copy of one part of a buffer whose parts are sent one by one? */
bool is_copy_of_part(const struct tdm_program *program, const struct tdm_op *op);

/* Is an operand all chunks from the first one of a sequence on? */
bool is_prefix(const struct tdm_op *op, uint32_t a);

/* Does an access add to a gradient, a share of dK and dV, a loss, or dX of a normed input? */
bool is_sum(const struct tdm_access *access);

/* Does the op of an item write or add to the slots that an access begins with? */
bool adds_to(struct trial *t, size_t i, const struct tdm_access *gradient);

/* Does an op sum a gradient over the ranks: all of it, or each rank its part? */
bool sums_gradient(struct trial *t, size_t i);

bool is_team_op(struct trial *t, size_t i);

/* Some op of a kind that has an operand, or the number of items. */
size_t some_with(struct trial *t, enum tdm_op_kind kind, uint32_t operand);

/* ---- changing ---- */

/* Moves item `from` before the item that is now at `to`. */
void move(struct trial *t, size_t from, size_t to);

void leave_out(struct tdm_access *access);

/* A random number below `count` other than `not`; count > 1. */
uint32_t another(struct trial *t, uint32_t count, uint32_t not );

void swap_slots(struct tdm_access *a, struct tdm_access *b);

/* Removes the last slot of a range. */
void shorten(struct trial *t, struct tdm_access *access);

/* ---- faults that several tables plant; they return whether there was a place ---- */

/* Moves an op before the last addition to its operand `gradient`. */
bool too_early(struct trial *t, enum tdm_op_kind kind, uint32_t gradient);

/* Uses the slot of another chunk instead of the op's own, with that chunk's tags. */
bool another_chunk(struct trial *t, enum tdm_content content);

/* Removes an op of a kind. */
bool drop_op(struct trial *t, enum tdm_op_kind kind);

/* Removes item i, if there is one. */
bool remove_found(struct trial *t, size_t i);

/* Repeats an op of a kind that has an operand. */
bool twice(struct trial *t, enum tdm_op_kind kind, uint32_t operand);

#endif
