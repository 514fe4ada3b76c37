/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages whose home is on the host.
 *
 * In chunk-major order K and V of a layer may be kept on the host. Where the layer's attention goes
 * over page lists, a chunk need not fetch all that it may see: with rings.gather the op itself
 * gathers the pages that are listed, of every list (KV head) its own, into room on the device, and
 * in the backward their gradients too, which it sends back. The chunk's own pages have room behind
 * the others.
 *
 * There is room for so many pages of each list. Query pages take turns where all they list together
 * is more: a batch takes the next query pages, as many as leave no list with more pages than there
 * is room for. What one query page lists always fits (tdm_gather_check). The forward comes out the
 * same bits whatever the batches; a page's gradient has a sum for every batch.
 */
#ifndef TDM_SCHEDULE_GATHER_H
#define TDM_SCHEDULE_GATHER_H

#include "ops/attention.h"
#include "schedule/program.h"

/* Does a layer's attention gather? Does any? Where no sequence has a second chunk there is nothing
 * to gather. */
bool tdm_gathers(const struct tdm_schedule *schedule, uint32_t layer);
bool tdm_gathers_at_all(const struct tdm_schedule *schedule);

/* Would a layer that has lists gather, if its K and V were on the host in chunk-major order? */
bool tdm_gather_is_set(const struct tdm_schedule *schedule);

/* If so: is there room for what one query page lists, in pages that fill chunks? */
enum tdm_status tdm_gather_has_room(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err);
/* The same, of a schedule of which some layer does gather. */
enum tdm_status tdm_gather_check(const struct tdm_schedule *schedule, const char *file,
                                 struct tdm_error *err);

/* Room: pages for each list before the chunk's own, whole chunks of them. */
uint64_t tdm_gather_pages(const struct tdm_schedule *schedule);

/* What ops of attention must know of it. */
struct tdm_gather_params tdm_gather_params_of(const struct tdm_schedule *schedule);

/* Pages that pass over the link for a chunk of so many own pages that sees so many before it: as
 * many as if every query page listed pages by chance. */
double tdm_gather_moved_pages(const struct tdm_schedule *schedule, uint64_t pages_before,
                              uint64_t own_pages);

/* Fills op->gathers, op->fetched_bytes and op->sent_bytes of an attention op whose operands are
 * set. */
void tdm_gather_cost(const struct tdm_program *program, struct tdm_op *op);

#endif
