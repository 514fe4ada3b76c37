/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing by search: can the buffers be packed into so many bytes? For the few programs with which
 * the greedy packer of pack.c fails.
 *
 * A search is made once for a set of buffers and asked for one capacity or more. It is
 * deterministic: its effort is counted in steps (visits to a buffer or a word of bits, a few
 * nanoseconds each), its random numbers begin with the same seed in each.
 */
#ifndef TDM_SCHEDULE_PACK_SEARCH_H
#define TDM_SCHEDULE_PACK_SEARCH_H

#include "schedule/pack.h"

/* More buffers than this are not searched: memory is quadratic in them. */
#define TDM_PACK_SEARCH_MOST 2048u

struct tdm_pack_search;

enum tdm_pack_answer {
    TDM_PACK_FOUND, /* a packing */
    TDM_PACK_NONE,  /* a proof that there is none */
    TDM_PACK_SPENT, /* neither within the steps given */
};

/* Prepares to pack the buffers with bytes[i] > 0 ([conflicts->count], copied, as are the
 * conflicts): TDM_PACK_SEARCH_MOST of them at most, their sum at most 2^62. *steps are decreased by
 * the work. The caller owns *search. */
enum tdm_status tdm_pack_search_new(const struct tdm_conflicts *conflicts, const uint64_t *bytes,
                                    uint64_t *steps, struct tdm_pack_search **search,
                                    struct tdm_error *err);
void tdm_pack_search_free(struct tdm_pack_search *search);

/* A lower bound of every packing: the most bytes found of buffers that all conflict. */
uint64_t tdm_pack_search_bound(const struct tdm_pack_search *search);

/* Looks for a packing that ends at `capacity_bytes` (at most 2^62) or below, for no more than about
 * *steps, which are decreased by the work. On TDM_PACK_FOUND offsets[i] are set for the buffers
 * with bytes[i] > 0. */
enum tdm_status tdm_pack_search_run(struct tdm_pack_search *search, uint64_t capacity_bytes,
                                    uint64_t *steps, uint64_t *offsets,
                                    enum tdm_pack_answer *answer, struct tdm_error *err);

#endif
