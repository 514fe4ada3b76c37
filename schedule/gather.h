/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages whose home is on the host.
 *
 * In chunk-major order K and V of a layer may be kept on the host. If the layer's attention uses
 * page lists, a chunk need not fetch everything that it may see. With rings.gather the op itself
 * gathers the listed pages into a device buffer, separately for every list (KV head). In the
 * backward it also gathers their gradients and sends them back. The chunk's own pages are stored
 * after the gathered ones.
 *
 * The buffer holds a fixed number of pages per list. If all query pages together list more, they
 * are processed in batches: a batch takes the next query pages, as many as fit without any list
 * exceeding the buffer. The pages that one query page lists always fit (tdm_gather_check). The
 * forward gives the same bits for any batches; the gradient of a page is one sum per batch.
 */
#ifndef TDM_SCHEDULE_GATHER_H
#define TDM_SCHEDULE_GATHER_H

#include "ops/attention.h"
#include "schedule/program_types.h"

/* Does a layer's attention gather? Does any layer's? If no sequence has a second chunk there is
 * nothing to gather. */
bool tdm_gathers(const struct tdm_schedule *schedule, uint32_t layer);
bool tdm_gathers_at_all(const struct tdm_schedule *schedule);

/* Would a layer that has lists gather, if its K and V were on the host in chunk-major order? */
bool tdm_gather_is_set(const struct tdm_schedule *schedule);

/* If so: do the pages that one query page lists fit in the buffer, and do pages fill chunks
 * exactly? */
enum tdm_status tdm_gather_fits(const struct tdm_schedule *schedule, const char *file,
                                struct tdm_error *err);
/* The same check, for a schedule in which some layer gathers. */
enum tdm_status tdm_gather_check(const struct tdm_schedule *schedule, const char *file,
                                 struct tdm_error *err);

/* Pages in the buffer for each list, before the chunk's own. A multiple of the pages of a chunk. */
uint64_t tdm_gather_pages(const struct tdm_schedule *schedule);

/* Parameters of gathering for attention ops. */
struct tdm_gather_params tdm_gather_params_of(const struct tdm_schedule *schedule);

/* Expected pages that cross the link for a chunk with `own_pages` pages that sees `pages_before`
 * pages before it, if every query page lists pages at random. */
double tdm_gather_moved_pages(const struct tdm_schedule *schedule, uint64_t pages_before,
                              uint64_t own_pages);

/* Sets op->gathers, op->fetched_bytes and op->sent_bytes of an attention op whose operands are
 * set. */
void tdm_gather_cost(const struct tdm_program *program, struct tdm_op *op);

#endif
