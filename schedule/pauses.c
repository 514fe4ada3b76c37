/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses of a step, and what they need (schedule/pauses.h). */
#include "schedule/pauses.h"

#include "ops/team.h"
#include "schedule/program.h"

#include <stdlib.h>

#define WORD_BITS 64u

struct tdm_pauses {
    const struct tdm_program *program;
    struct tdm_pause *pauses; /* [count] */
    uint32_t count;
    uint32_t words;       /* of a slot's bits */
    uint64_t *needs;      /* [slots of all buffers][words]: a bit for each pause */
    uint64_t *first_slot; /* [buffer_count]: number of its first slot among all */
    uint64_t slot_count;
    /* while reading */
    uint64_t candidates, taken_every, team_ops;
    uint32_t last_layer; /* of the ops of the backward that compute or exchange */
    uint32_t *seen; /* [slots of all buffers][TDM_PARTS]: of a part, the pauses that are settled */
};

/* Is there a pause before this op, if not too many are asked for? */
static bool is_candidate(struct tdm_pauses *p, const struct tdm_op *op)
{
    const bool counts = op->lane == TDM_LANE_COMPUTE || (TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0;
    if (op->phase != TDM_BACKWARD || !counts || op->layer == p->last_layer)
        return false;
    const bool first = p->last_layer == TDM_NONE;
    p->last_layer = op->layer;
    return !first;
}

static enum tdm_status count_candidate(void *self, const struct tdm_item *item,
                                       struct tdm_error *err)
{
    struct tdm_pauses *p = self;
    (void)err;
    if (item->kind == TDM_RUN && is_candidate(p, item->op))
        p->candidates++;
    return TDM_OK;
}

/* ---- what is needed ---- */

static uint64_t *needs_of(const struct tdm_pauses *p, uint32_t buffer, uint32_t slot)
{
    return p->needs + (p->first_slot[buffer] + slot) * p->words;
}

static uint32_t *seen_of(const struct tdm_pauses *p, uint32_t buffer, uint32_t slot)
{
    return p->seen + (p->first_slot[buffer] + slot) * TDM_PARTS;
}

/* Parts [*first, *end) that are used of each slot. */
static void find_parts(const struct tdm_buffer *buffer, const struct tdm_access *access,
                       uint32_t *first, uint32_t *end)
{
    const bool one = access != NULL && access->part < TDM_PARTS && access->after.chunk == TDM_NONE;
    *first = buffer->by_part && one ? access->part : 0;
    *end = !buffer->by_part ? 1 : one ? access->part + 1 : TDM_PARTS;
}

/* A slot, or parts of it, are read: the pauses since they were written or last read need it. */
static void need(struct tdm_pauses *p, uint32_t buffer, uint32_t slot, uint32_t first_part,
                 uint32_t end_part)
{
    uint64_t *needs = needs_of(p, buffer, slot);
    uint32_t *seen = seen_of(p, buffer, slot);
    for (uint32_t part = first_part; part < end_part; part++)
        for (; seen[part] < p->count; seen[part]++)
            needs[seen[part] / WORD_BITS] |= UINT64_C(1) << (seen[part] % WORD_BITS);
}

/* What was there is gone: the pauses so far do not need it. */
static void forget(struct tdm_pauses *p, uint32_t buffer, uint32_t slot, uint32_t first_part,
                   uint32_t end_part)
{
    uint32_t *seen = seen_of(p, buffer, slot);
    for (uint32_t part = first_part; part < end_part; part++)
        seen[part] = p->count;
}

static void take_op(struct tdm_pauses *p, const struct tdm_op *op)
{
    for (uint32_t i = 0; i < op->access_count; i++) { /* reads come before writes */
        const struct tdm_access *access = &op->access[i];
        uint32_t first, end;
        if (access->buffer == TDM_NONE || access->mode == TDM_WRITE)
            continue;
        find_parts(&p->program->buffers[access->buffer], access, &first, &end);
        for (uint32_t k = 0; k < access->slots; k++)
            need(p, access->buffer, access->first_slot + k, first, end);
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        uint32_t first, end;
        if (access->buffer == TDM_NONE || access->mode != TDM_WRITE)
            continue;
        find_parts(&p->program->buffers[access->buffer], access, &first, &end);
        for (uint32_t k = 0; k < access->slots; k++)
            forget(p, access->buffer, access->first_slot + k, first, end);
    }
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct tdm_pauses *p = self;
    (void)err;
    if (item->kind == TDM_ALLOC) { /* it holds nothing yet, or what it held before the step */
        const struct tdm_buffer *buffer = &p->program->buffers[item->buffer];
        for (uint32_t slot = 0; slot < buffer->slots && !buffer->resident; slot++)
            forget(p, item->buffer, slot, 0, TDM_PARTS);
    }
    if (item->kind != TDM_RUN)
        return TDM_OK;
    if (is_candidate(p, item->op) && p->candidates++ % p->taken_every == 0)
        p->pauses[p->count++] = (struct tdm_pause){.op = item->op->number, .team_ops = p->team_ops};
    p->team_ops += (TDM_TEAM_KINDS & TDM_KIND(item->op->kind)) != 0;
    take_op(p, item->op);
    return TDM_OK;
}

/* What outlives the step is read after it. */
static void take_end(struct tdm_pauses *p)
{
    for (uint32_t i = 0; i < p->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &p->program->buffers[i];
        uint32_t first, end;
        find_parts(buffer, NULL, &first, &end);
        for (uint32_t slot = 0; slot < buffer->slots && buffer->resident; slot++)
            need(p, i, slot, first, end);
    }
}

static void count_bytes(struct tdm_pauses *p)
{
    for (uint32_t number = 0; number < p->count; number++) {
        struct tdm_slot_range range = {0};
        while (tdm_pauses_next(p, number, &range))
            p->pauses[number].bytes += range.slots * p->program->buffers[range.buffer].slot_bytes;
    }
}

enum tdm_status tdm_pauses_new(const struct tdm_program *program, struct tdm_pauses **out,
                               struct tdm_error *err)
{
    struct tdm_pauses *p = calloc(1, sizeof(*p));
    enum tdm_status status = TDM_NO_MEMORY;
    if (p == NULL)
        goto end;
    *p = (struct tdm_pauses){.program = program, .last_layer = TDM_NONE};
    p->first_slot = calloc((size_t)program->buffer_count + 1, sizeof(*p->first_slot));
    if (p->first_slot == NULL)
        goto end;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        p->first_slot[i] = p->slot_count;
        p->slot_count += program->buffers[i].slots;
    }
    status = tdm_program_emit(program, count_candidate, p, err);
    if (status != TDM_OK)
        goto end;
    const uint64_t most = p->candidates < TDM_MOST_PAUSES ? p->candidates : TDM_MOST_PAUSES;
    p->taken_every = most == 0 ? 1 : (p->candidates + most - 1) / most;
    p->words = (uint32_t)(most / WORD_BITS) + 1;
    p->candidates = 0;
    p->last_layer = TDM_NONE;
    p->pauses = calloc(most + 1, sizeof(*p->pauses));
    p->needs = calloc(p->slot_count * p->words + 1, sizeof(*p->needs));
    p->seen = calloc(p->slot_count * TDM_PARTS + 1, sizeof(*p->seen));
    if (p->pauses == NULL || p->needs == NULL || p->seen == NULL) {
        status = TDM_NO_MEMORY;
        goto end;
    }
    status = tdm_program_emit(program, take_item, p, err);
    take_end(p);
    count_bytes(p);
    free(p->seen);
    p->seen = NULL;

end:
    if (status == TDM_OK) {
        *out = p;
        return TDM_OK;
    }
    tdm_pauses_free(p);
    return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the pauses of %llu ops",
                    (unsigned long long)program->op_count);
}

void tdm_pauses_free(struct tdm_pauses *p)
{
    if (p == NULL)
        return;
    free(p->first_slot);
    free(p->pauses);
    free(p->needs);
    free(p->seen);
    free(p);
}

uint32_t tdm_pauses_count(const struct tdm_pauses *p)
{
    return p->count;
}

const struct tdm_pause *tdm_pauses_at(const struct tdm_pauses *p, uint32_t number)
{
    return &p->pauses[number];
}

bool tdm_pauses_agree(const struct tdm_pauses *p, const struct tdm_pauses *others)
{
    bool agree = p->count == others->count;
    for (uint32_t i = 0; agree && i < p->count; i++)
        agree = p->pauses[i].team_ops == others->pauses[i].team_ops;
    return agree;
}

uint32_t tdm_pauses_find(const struct tdm_pauses *p, uint64_t op)
{
    uint32_t low = 0, high = p->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (p->pauses[middle].op < op)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->count && p->pauses[low].op == op ? low : TDM_NONE;
}

static bool is_needed(const struct tdm_pauses *p, uint32_t number, uint32_t buffer, uint32_t slot)
{
    return (needs_of(p, buffer, slot)[number / WORD_BITS] >> (number % WORD_BITS) & 1) != 0;
}

bool tdm_pauses_next(const struct tdm_pauses *p, uint32_t number, struct tdm_slot_range *range)
{
    uint32_t slot = range->first_slot + range->slots;
    for (uint32_t buffer = range->buffer; buffer < p->program->buffer_count; buffer++, slot = 0) {
        const uint32_t slots =
            buffer == p->program->scratch ? 0 : p->program->buffers[buffer].slots;
        while (slot < slots && !is_needed(p, number, buffer, slot))
            slot++;
        if (slot >= slots)
            continue;
        *range = (struct tdm_slot_range){buffer, slot, 0};
        while (slot + range->slots < slots && is_needed(p, number, buffer, slot + range->slots))
            range->slots++;
        return true;
    }
    return false;
}
