/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of rounds, and their comparison. */
#include "methods/torch/rounds.h"

#include <stddef.h>

void tdm_round_note(struct tdm_torch_round *round, const struct tdm_torch_note *note)
{
    if (round->count == TDM_ROUND_NOTES)
        round->unclear = true;
    else
        round->notes[round->count++] = *note;
}

/* The last allocation at this address. */
static uint32_t find_kept(const struct tdm_torch_round *round, uint64_t address)
{
    uint32_t i = round->count;
    while (i-- > 0)
        if (round->notes[i].size > 0 && round->notes[i].address == address)
            return i;
    return TDM_ROUND_NOTES;
}

static bool stays(const struct tdm_torch_note *before, const struct tdm_torch_note *now)
{
    return before->address == now->address && before->picked == now->picked;
}

static bool moves(const struct tdm_torch_note *before, const struct tdm_torch_note *now,
                  uint64_t bytes)
{
    return now->address == before->address + bytes &&
           (now->picked == before->picked || now->picked + bytes == before->picked);
}

/* Are blocks at this address freed as often as they are allocated; once less, if it is kept? */
static bool is_balanced(const struct tdm_torch_round *round, uint64_t address, uint64_t kept)
{
    int64_t live = 0;
    for (uint32_t i = 0; i < round->count; i++)
        if (round->notes[i].address == address)
            live += round->notes[i].size > 0 ? 1 : -1;
    return live == (address == kept ? 1 : 0);
}

static void note_other(const struct tdm_torch_note *note, bool is_rest,
                       struct tdm_round_facts *facts)
{
    if (note->size < facts->least_size)
        facts->least_size = note->size;
    if (!is_rest && note->room > facts->most_room)
        facts->most_room = note->room;
}

/* All but the kept block, which is in a new segment, or without one. */
static bool all_stay(const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                     uint32_t kept_at, struct tdm_round_facts *facts)
{
    for (uint32_t i = 0; i < now->count; i++) {
        const struct tdm_torch_note *was = &before->notes[i], *is = &now->notes[i];
        if (i == kept_at)
            continue;
        if (is->grown || was->size != is->size || was->pool != is->pool || !stays(was, is))
            return false;
        if (kept_at < now->count && is->size > 0 && is->pool == now->notes[kept_at].pool)
            note_other(is, false, facts);
    }
    return true;
}

/* All stay, or move with the kept block by its size. The first that moves takes the low end of the
 * free block, which is where the kept one will be. */
static bool some_move(const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                      uint64_t kept, uint64_t kept_bytes, struct tdm_round_facts *facts)
{
    const uint32_t kept_at = find_kept(now, kept);
    uint64_t end = 0;
    for (uint32_t i = 0; i < now->count; i++) {
        const struct tdm_torch_note *was = &before->notes[i], *is = &now->notes[i];
        bool first = end == 0, moved = moves(was, is, kept_bytes);
        if (is->grown || was->grown || was->size != is->size || was->pool != is->pool ||
            (!moved && !stays(was, is)))
            return false;
        if (moved && first)
            end = is->address + is->picked;
        if (moved &&
            ((first && (is->address != kept || is->picked == was->picked)) || is->address < kept ||
             is->address >= end || !is_balanced(now, is->address, kept)))
            return false;
        bool is_rest = moved && is->picked != was->picked;
        uint64_t rest = is->picked > is->size ? is->picked - is->size : 0;
        if (is_rest && rest < facts->least_rest)
            facts->least_rest = rest;
        if (i != kept_at && is->size > 0 && is->pool == now->notes[kept_at].pool)
            note_other(is, is_rest, facts);
    }
    return end > 0;
}

bool tdm_rounds_alike(const struct tdm_torch_round *before, const struct tdm_torch_round *now,
                      uint64_t kept, uint64_t kept_bytes, struct tdm_round_facts *facts)
{
    uint32_t at = kept == 0 ? TDM_ROUND_NOTES : find_kept(now, kept);
    *facts = (struct tdm_round_facts){.least_size = UINT64_MAX, .least_rest = UINT64_MAX};
    if (before->unclear || now->unclear || before->count != now->count)
        return false;
    if (kept == 0)
        return all_stay(before, now, at, facts);
    if (at == TDM_ROUND_NOTES || before->notes[at].size != now->notes[at].size ||
        before->notes[at].pool != now->notes[at].pool)
        return false;
    facts->grown = now->notes[at].grown;
    if (!facts->grown)
        return some_move(before, now, kept, kept_bytes, facts);
    return before->notes[at].grown && all_stay(before, now, at, facts);
}
