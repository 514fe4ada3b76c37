/* SPDX-License-Identifier: Apache-2.0 */
/* What only several ranks choose. */
#include "planner/team_choices.h"

#include "base/size.h"
#include "planner/places.h"

/* Chunks of each rank: with fewer, the ranks' work differs; with more, chunks are needlessly short
 * for the kernels. */
#define LEAST_ROUNDS 4u
#define LONGEST_CHUNK 16384u
#define SHORTEST_CHUNK 128u /* of a rank that would have no longer one */

/* Rings of more ranks are tried only if they are asked for: a round takes as many hops as there are
 * ranks, and simulating it too. */
#define MOST_RING_RANKS 16u
/* The same for rings of more turns: lowering them all takes seconds, and simulating them more. By
 * then attention takes so long that no exchange of the ranks' own choice is much faster. */
#define MOST_RING_TURNS (UINT64_C(1) << 18)

uint64_t tdm_team_shortest_context(uint32_t ranks, uint64_t chunk_tokens)
{
    return tdm_size_add(tdm_size_mul(ranks - 1, tdm_most(chunk_tokens, 1)), 1);
}

uint64_t tdm_team_longest_chunk(uint64_t context, uint64_t sequences, uint32_t ranks)
{
    const uint64_t rounds = sequences < LEAST_ROUNDS ? LEAST_ROUNDS / sequences : 1;
    const uint64_t chunks = tdm_size_mul(ranks, rounds);
    uint64_t tokens = LONGEST_CHUNK;
    while (tokens > TDM_TEAM_SHORTEST_CHUNK && tdm_size_mul(tokens, chunks) > context)
        tokens /= 2;
    while (tokens > SHORTEST_CHUNK && tdm_size_mul(tokens, ranks) > context)
        tokens /= 2;
    /* a tiny context: shorter chunks are slow, but no rank may be without one of a sequence */
    while (tokens > 1 && tdm_size_ceil_div(context, tokens) < ranks)
        tokens /= 2;
    return tokens;
}

bool tdm_team_may_choose(const struct tdm_schedule *schedule, const struct tdm_pins *pins,
                         const struct tdm_team_choice *choice)
{
    return (pins->gradient_slots == 0 || choice->gradient_slots == pins->gradient_slots) &&
           (!pins->has_weight_slices || choice->sliced == pins->weight_slices) &&
           !(choice->sliced && tdm_is_far(schedule->optimizer.on));
}

void tdm_team_choose(struct tdm_schedule *schedule, const struct tdm_pins *pins,
                     const struct tdm_team_choice *choice)
{
    const struct tdm_home *weights = &schedule->homes[TDM_STATE_WEIGHTS];
    bool staged = choice->sliced || weights->device_layers < schedule->model->layers;
    schedule->rings.gradients = choice->gradient_slots;
    schedule->rings.ahead = 0; /* of one rank */
    schedule->sliced_weights = choice->sliced;
    if (staged && choice->gradient_slots > 1 && !pins->has_ring.weights)
        schedule->rings.weights = schedule->rings.weights < 3 ? 3 : schedule->rings.weights;
}

static uint32_t ranks_of_node(const struct tdm_schedule *schedule)
{
    return schedule->ranks_per_node == 0 ? schedule->ranks : schedule->ranks_per_node;
}

/* The most ranks of a node that can divide the heads, but not all ranks; 0: none. */
static uint32_t most_head_ranks(const struct tdm_schedule *schedule)
{
    const uint32_t near = ranks_of_node(schedule);
    for (uint32_t ranks = near < TDM_MAX_HEAD_RANKS ? near : TDM_MAX_HEAD_RANKS; ranks > 1; ranks--)
        if (near % ranks == 0 && ranks < schedule->ranks && schedule->model->kv_heads % ranks == 0)
            return ranks;
    return 0;
}

void tdm_team_set_exchange(struct tdm_schedule *schedule, enum tdm_exchange_kind exchange,
                           uint32_t head_ranks)
{
    schedule->exchange = exchange;
    schedule->head_ranks = !tdm_exchange_kind_has_rows(exchange) ? 0
                           : head_ranks != 0                     ? head_ranks
                                                                 : most_head_ranks(schedule);
}

/* Turns of all ranks' rings in a forward: of each layer, pairs of a chunk and one that it sees. */
static uint64_t ring_turns(const struct tdm_schedule *schedule)
{
    uint64_t turns = 0;
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
        for (uint32_t i = 0; i < schedule->sequence_count; i++) {
            const uint64_t chunks =
                tdm_size_ceil_div(schedule->sequences[i].tokens, schedule->chunk_tokens);
            const uint64_t window = schedule->model->layer_kinds[layer].window;
            uint64_t seen = (chunks + 1) / 2;
            if (window > 0)
                seen = tdm_least(seen, tdm_size_ceil_div(window, schedule->chunk_tokens) + 1);
            turns = tdm_size_add(turns, tdm_size_mul(chunks, seen));
        }
    return turns;
}

bool tdm_team_tries_exchange(const struct tdm_schedule *schedule)
{
    const bool rows = tdm_exchange_kind_has_rows(schedule->exchange);
    if (rows && (schedule->head_ranks == 0 || (schedule->model->kv_heads % schedule->ranks == 0 &&
                                               ranks_of_node(schedule) == schedule->ranks)))
        return false;
    return !tdm_schedule_rings(schedule) ||
           (schedule->ranks <= MOST_RING_RANKS && ring_turns(schedule) <= MOST_RING_TURNS);
}

enum tdm_status tdm_team_check_pins(const struct tdm_schedule *schedule,
                                    const struct tdm_pins *pins, struct tdm_error *err)
{
    if (pins->has_order && pins->order != TDM_LAYER_MAJOR)
        return tdm_fail(err, TDM_USAGE,
                        "--ranks: several ranks share a layer's K and V in rounds, so they need "
                        "order=layer-major, and %s",
                        tdm_is_far(pins->kv_gradients_place)
                            ? "kv_gradients_place=host needs order=chunk-major"
                            : "not order=chunk-major");
    if (!pins->weight_slices || !pins->has_update_place || !tdm_is_far(schedule->optimizer.on))
        return TDM_OK;
    tdm_fail(err, TDM_USAGE,
             "weights.sliced=yes and optimizer.on=%s contradict each other: the %s updates whole "
             "weights",
             tdm_place_name(&schedule->machine->topology, schedule->optimizer.on),
             tdm_place_name(&schedule->machine->topology, schedule->optimizer.on));
    return tdm_hint(err, "leave one of them out");
}
