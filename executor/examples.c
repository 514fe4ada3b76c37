/* SPDX-License-Identifier: Apache-2.0 */
/* Examples of ops: found by a hash table of their keys, because most ops are like an earlier one.
 */
#include "executor/examples.h"

#include "ops/select.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS (4 * TDM_EXAMPLES) /* a power of 2 */

/* Ops with equal keys run the same code. */
struct key {
    uint64_t kind, part, tokens, entries, operands;
};

struct tdm_examples {
    const struct tdm_program *program;
    uint32_t count, capacity;
    struct tdm_op *ops; /* [capacity] */
    struct key keys[TDM_EXAMPLES];
    uint32_t buckets[BUCKETS]; /* 1 + number of an example; 0: free */
};

enum tdm_status tdm_examples_new(const struct tdm_program *program, struct tdm_examples **out,
                                 struct tdm_error *err)
{
    struct tdm_examples *examples = calloc(1, sizeof(*examples));
    if (examples == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for examples of ops");
    examples->program = program;
    *out = examples;
    return TDM_OK;
}

void tdm_examples_free(struct tdm_examples *examples)
{
    if (examples == NULL)
        return;
    free(examples->ops);
    free(examples);
}

/* Does a selection vote? Its kernels run only then. */
static bool votes(const struct tdm_program *program, const struct tdm_op *op)
{
    const struct tdm_access *means = &op->access[TDM_SELECT_MEANS];
    struct tdm_page_rule rule = tdm_page_rule_of(&program->params.pages, op->layer);
    return means->buffer != TDM_NONE && (uint64_t)means->slots * tdm_pages_of_chunk(&rule) >
                                            rule.selector.budget / rule.page_tokens;
}

static struct key key_of(const struct tdm_program *program, const struct tdm_op *op)
{
    struct key key = {.kind = (uint64_t)op->kind,
                      .part = (uint64_t)op->part,
                      .tokens = op->tokens,
                      .entries = op->kind == TDM_OP_SELECT ? votes(program, op) : op->entries};
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE)
            key.operands |= (uint64_t)(1 + op->access[i].mode) << (8 * i);
    return key;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* The bucket of a key: the one that has it, or the free one where it belongs. */
static uint32_t *find(struct tdm_examples *examples, const struct key *key)
{
    uint64_t hash =
        mix(mix(mix(mix(key->kind, key->part), key->tokens), key->entries), key->operands);
    uint32_t at = (uint32_t)hash % BUCKETS;
    while (examples->buckets[at] != 0 &&
           memcmp(&examples->keys[examples->buckets[at] - 1], key, sizeof(*key)) != 0)
        at = (at + 1) % BUCKETS;
    return &examples->buckets[at];
}

enum tdm_status tdm_examples_take(struct tdm_examples *examples, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    if (op->lane != TDM_LANE_COMPUTE)
        return TDM_OK;
    struct key key = key_of(examples->program, op);
    uint32_t *bucket = find(examples, &key);
    if (*bucket != 0 || examples->count == TDM_EXAMPLES)
        return TDM_OK;
    if (examples->count == examples->capacity) {
        uint32_t capacity = 2 * examples->capacity + 16;
        struct tdm_op *ops = realloc(examples->ops, capacity * sizeof(*ops));
        if (ops == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u examples of ops", capacity);
        examples->ops = ops;
        examples->capacity = capacity;
    }
    examples->keys[examples->count] = key;
    examples->ops[examples->count++] = *op;
    *bucket = examples->count;
    return TDM_OK;
}

const struct tdm_op *tdm_examples_ops(const struct tdm_examples *examples, uint32_t *count)
{
    *count = examples->count;
    return examples->ops;
}
