/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only several ranks choose: chunks that give each of them enough work, slots for gradients
 * under way, slices of the weights, and what travels between ranks.
 */
#ifndef TDM_PLANNER_TEAM_CHOICES_H
#define TDM_PLANNER_TEAM_CHOICES_H

#include "planner/candidates.h"

/* Sizes of chunks are tried from the longest on, each half of the one before. */
#define TDM_TEAM_SIZES 2u
/* Shorter chunks are needlessly slow: they are for sequences of which a rank would have no chunk.
 */
#define TDM_TEAM_SHORTEST_CHUNK 512u

/* As keys of --set may pin it: rings.gradients and weights.sliced. */
struct tdm_team_choice {
    uint32_t gradient_slots;
    bool sliced;
};

/* The fewest tokens of a sequence that give every rank a chunk of it. chunk_tokens 0: any. */
uint64_t tdm_team_shortest_context(uint32_t ranks, uint64_t chunk_tokens);

/* The longest chunks of a power of two tokens that give every rank enough of them. `context`:
 * tokens of each of the `sequences`. */
uint64_t tdm_team_longest_chunk(uint64_t context, uint64_t sequences, uint32_t ranks);

/* Do the pins and the place of updates allow a choice? */
bool tdm_team_may_choose(const struct tdm_schedule *schedule, const struct tdm_pins *pins,
                         const struct tdm_team_choice *choice);

/* Sets a choice. Gradients that are used a layer later need the weights of that layer so long. */
void tdm_team_choose(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                     const struct tdm_team_choice *choice);

/* Gives a schedule an exchange, and the ranks that go with it: `head_ranks` if that is not 0. */
void tdm_team_set_exchange(struct tdm_schedule *schedule, enum tdm_exchange_kind exchange,
                           uint32_t head_ranks);

/* Is a schedule's exchange tried without being asked for? Heads are divided by some ranks only
 * where all cannot, or where the others are in other nodes; rings have few ranks. */
bool tdm_team_tries_exchange(const struct tdm_schedule *schedule);

/* Do pins contradict each other for several ranks? Fails with TDM_USAGE, and says which. */
enum tdm_status tdm_team_check_pins(const struct tdm_schedule *schedule,
                                    const struct tdm_pins *pins, struct tdm_error *err);

#endif
