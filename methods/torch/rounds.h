/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds: code that allocates and frees the same sizes again and again, as the tiles of a sequence.
 * A round is noted event by event. Two rounds that did the same, at the same addresses, leave the
 * allocator as it was between them, and so will every further round: those need not be run. A round
 * may leave one block allocated. It is then in a segment of its own, or at the low end of a free
 * block, and what the round takes from the rest of that block moves on with it.
 */
#ifndef TDM_METHODS_TORCH_ROUNDS_H
#define TDM_METHODS_TORCH_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_torch_note {
    uint64_t address, size; /* of the block; size 0: it was freed */
    uint64_t picked;        /* size of the free block that it was cut from */
    uint64_t room;          /* what that could have grown to */
    uint32_t pool;
    bool grown; /* from a new segment */
};

#define TDM_ROUND_NOTES 512u

struct tdm_torch_round {
    struct tdm_torch_note notes[TDM_ROUND_NOTES];
    uint32_t count;
    bool unclear; /* more happened than allocations and frees, or more than there is room for */
};

void tdm_round_note(struct tdm_torch_round *round, const struct tdm_torch_note *note);

/* What two rounds that did the same tell of further ones. Only allocations from the pool of the
 * block that they leave are considered. */
struct tdm_round_facts {
    bool grown;          /* that block is in a new segment */
    uint64_t least_size; /* of the other requests; UINT64_MAX: there are none */
    uint64_t most_room;  /* of the free blocks that the others were cut from, */
    uint64_t least_rest; /* without the one that they move through, of which this much remained */
};

/* Did both rounds do the same? `kept`: address of the block that `now` leaves allocated, and
 * `kept_bytes` its size; 0: it leaves none. False if that is not easily told. */
bool tdm_rounds_alike(const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                      uint64_t kept, uint64_t kept_bytes, struct tdm_round_facts *facts);

#endif
