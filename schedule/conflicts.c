/* SPDX-License-Identifier: Apache-2.0 */
/* Conflicts between buffers, as a bit matrix. */
#include "schedule/conflicts.h"

#include <stdlib.h>

enum tdm_status tdm_conflicts_new(uint32_t count, struct tdm_conflicts *conflicts,
                                  struct tdm_error *err)
{
    conflicts->count = count;
    conflicts->words = (count + 63) / 64;
    conflicts->bits = calloc((size_t)count * conflicts->words + 1, sizeof(*conflicts->bits));
    if (conflicts->bits == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the conflicts of %u buffers", count);
    return TDM_OK;
}

void tdm_conflicts_free(struct tdm_conflicts *conflicts)
{
    free(conflicts->bits);
    conflicts->bits = NULL;
}

static void set_bit(struct tdm_conflicts *conflicts, uint32_t a, uint32_t b)
{
    conflicts->bits[(size_t)a * conflicts->words + b / 64] |= (uint64_t)1 << (b % 64);
}

void tdm_conflicts_add(struct tdm_conflicts *conflicts, uint32_t buffer, const uint64_t *live)
{
    uint64_t *row = &conflicts->bits[(size_t)buffer * conflicts->words];
    for (uint32_t word = 0; word < conflicts->words; word++) {
        uint64_t fresh = live[word] & ~row[word];
        row[word] |= fresh;
        for (; fresh != 0; fresh &= fresh - 1)
            set_bit(conflicts, word * 64 + (uint32_t)__builtin_ctzll(fresh), buffer);
    }
    row[buffer / 64] &= ~((uint64_t)1 << (buffer % 64));
}

bool tdm_conflicts_test(const struct tdm_conflicts *conflicts, uint32_t a, uint32_t b)
{
    return conflicts->bits[(size_t)a * conflicts->words + b / 64] >> (b % 64) & 1;
}
