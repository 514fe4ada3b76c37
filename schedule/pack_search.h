/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing by search: can the buffers be packed into a given number of bytes? Used for the few
 * programs that the greedy packer of pack.c does not pack well enough.
 *
 * A search is created once for a set of buffers and then run for one or more capacities. It is
 * deterministic: effort is counted in steps (visits to a buffer or to a word of bits, a few
 * nanoseconds each), and each run starts with the same random seed.
 */
#ifndef TDM_SCHEDULE_PACK_SEARCH_H
#define TDM_SCHEDULE_PACK_SEARCH_H

#include "schedule/conflicts.h"

/* Maximum number of buffers: memory is quadratic in it. */
#define TDM_PACK_SEARCH_MOST 2048u

struct tdm_pack_search;

enum tdm_pack_answer {
    TDM_PACK_FOUND, /* a packing */
    TDM_PACK_NONE,  /* a proof that there is none */
    TDM_PACK_SPENT, /* no answer within the given steps */
};

/* Prepares to pack the buffers with bytes[i] > 0 ([conflicts->count], copied, as are the
 * conflicts): at most TDM_PACK_SEARCH_MOST of them, with a sum of at most 2^62. *steps is decreased
 * by the work. The caller owns *search. */
enum tdm_status tdm_pack_search_new(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                                    uint64_t *steps, struct tdm_pack_search **search,
                                    struct tdm_error *err);
void tdm_pack_search_free(struct tdm_pack_search *search);

/* A lower bound on every packing: the bytes of the heaviest clique found (buffers that all
 * conflict). */
uint64_t tdm_pack_search_bound(const struct tdm_pack_search *search);

/* Looks for a packing that ends at or below `capacity_bytes` (at most 2^62), within about *steps
 * steps; *steps is decreased by the work. On TDM_PACK_FOUND, offsets[i] is set for the buffers with
 * bytes[i] > 0. */
enum tdm_status tdm_pack_search_run(struct tdm_pack_search *search, uint64_t capacity_bytes,
                                    uint64_t *steps, uint64_t *offsets,
                                    enum tdm_pack_answer *answer, struct tdm_error *err);

#endif
