/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of the contents of slots: bytes of a content, and the offset of its second half.
 *
 * Pages: a page is `page_tokens` tokens of one layer, [K, V][token, KV head, head_dim]: the K plane
 * of a page, then its V plane. A chunk's slot is ceil(tokens / page_tokens) pages; the last page of
 * a ragged chunk is filled in part.
 */
#ifndef TDM_SCHEDULE_LAYOUT_H
#define TDM_SCHEDULE_LAYOUT_H

#include "schedule/program_types.h"

/* Slots are aligned to 256 bytes (128 elements of 16 bits), as bulk copies and vector loads
 * need. */
#define TDM_SLOT_ALIGN 256u

/* Bytes of a content for a number of tokens of the schedule's model (for unit contents: `layer` is
 * the unit and `tokens` is ignored). */
uint64_t tdm_content_bytes(const struct tdm_schedule *schedule, enum tdm_content content,
                           uint32_t layer, uint64_t tokens);

/* Bytes of a content for the chunks [first, end), all of one sequence. */
uint64_t tdm_chunks_bytes(const struct tdm_program *program, enum tdm_content content,
                          uint32_t first, uint32_t end);

/* Bytes of the tensors of one part (TDM_PART_ALL: of all) of a unit, at a dtype. */
uint64_t tdm_part_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_part part,
                        enum tdm_dtype dtype);

/* The heads of all ranks but one, as each of them has a content (TDM_PARTED). */
uint64_t tdm_parted_bytes(const struct tdm_schedule *schedule, enum tdm_content heads,
                          uint64_t tokens);

/* dtype of a content under this schedule. */
enum tdm_dtype tdm_content_dtype(const struct tdm_schedule *schedule, enum tdm_content content);

/* Attention output, or the rank's heads of one: bytes from the start of the slot to the LSE, fp32
 * [tokens, heads]. */
uint64_t tdm_lse_offset(const struct tdm_schedule *schedule, enum tdm_content content,
                        uint64_t tokens);

/* Elements of one page (K and V planes) and of one plane, as attention reads them: of the rank's
 * heads if ranks divide the heads. */
uint64_t tdm_page_elements(const struct tdm_schedule *schedule);
uint64_t tdm_page_plane_elements(const struct tdm_schedule *schedule);

/* Page lists: uint32 [query pages, lists, 1 + capacity]. Each list is the number of pages, then the
 * page numbers in ascending order (selector.h), then TDM_PAGE_NONE up to the capacity. One list per
 * KV head, or one for all. The layout is the same in all layers that have lists. */
uint32_t tdm_page_lists(const struct tdm_schedule *schedule);
uint32_t tdm_page_list_capacity(const struct tdm_schedule *schedule);

/* Pages of the longest sequence. */
uint64_t tdm_longest_pages(const struct tdm_schedule *schedule);

/* Maximum number of candidate pages in a vote; 0 if the selector does not vote. */
uint64_t tdm_page_list_voted(const struct tdm_schedule *schedule);

/* Bytes of the logits of `tokens` tokens and `entries` vocabulary entries; and the number of tiles
 * into which the LM head cuts the vocabulary. */
uint64_t tdm_logit_bytes(const struct tdm_schedule *schedule, uint64_t tokens, uint64_t entries);
uint32_t tdm_vocabulary_tiles(const struct tdm_schedule *schedule);

/* Does an LM-head op work on the first tile of rows that runs in the step? Then it overwrites the
 * gradient of its entries of the output weight; otherwise it adds to it. */
bool tdm_head_opens(const struct tdm_program *program, const struct tdm_op *op);

/* Tokens slot: int32 inputs [tokens], then targets [tokens]. A token without a target has: */
#define TDM_NO_TARGET (-1)

#endif
