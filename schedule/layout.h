/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of what a slot holds: bytes of a content, and where its second half begins.
 *
 * Pages: a page is `page_tokens` tokens of one layer, [K, V][token, KV head, head_dim]: the K plane
 * of a page, then its V plane. A chunk's slot is ceil(tokens / page_tokens) pages; the last page of
 * a ragged chunk is filled in part.
 */
#ifndef TDM_SCHEDULE_LAYOUT_H
#define TDM_SCHEDULE_LAYOUT_H

#include "schedule/program.h"

/* Slots begin on 256 bytes: 128 elements of 16 bits, what bulk copies and vector loads want. */
#define TDM_SLOT_ALIGN 256u

/* dtype of a content under this schedule. */
enum tdm_dtype tdm_content_dtype(const struct tdm_schedule *schedule, enum tdm_content content);

/* Attention output: bytes from the start of the slot to the LSE, fp32 [tokens, query_heads]. */
uint64_t tdm_lse_offset(const struct tdm_schedule *schedule, uint64_t tokens);

/* Elements of one page (K and V planes) and of one plane. */
uint64_t tdm_page_elements(const struct tdm_schedule *schedule);
uint64_t tdm_page_plane_elements(const struct tdm_schedule *schedule);

/* Page lists: uint32 [query pages, lists, 1 + capacity]: how many pages, then the pages
 * (selector.h), their numbers rising, and TDM_PAGE_NONE behind them. A list for each KV head, or
 * one for all. Alike in all layers that have lists. */
uint32_t tdm_page_lists(const struct tdm_schedule *schedule);
uint32_t tdm_page_list_capacity(const struct tdm_schedule *schedule);

/* Pages of the longest sequence. */
uint64_t tdm_longest_pages(const struct tdm_schedule *schedule);

/* Pages that stand for election at most; 0 if the selector does not vote. */
uint64_t tdm_page_list_voted(const struct tdm_schedule *schedule);

/* Bytes of the logits of so many tokens and entries of the vocabulary, and into how many tiles the
 * LM head cuts the vocabulary. */
uint64_t tdm_logit_bytes(const struct tdm_schedule *schedule, uint64_t tokens, uint64_t entries);
uint32_t tdm_vocabulary_tiles(const struct tdm_schedule *schedule);

/* Is an op of the LM head of the first tile of rows to run in the step? Then what it makes is the
 * gradient of its entries of the output weight so far; else it adds to what is there. */
bool tdm_head_opens(const struct tdm_program *program, const struct tdm_op *op);

/* Tokens slot: int32 inputs [tokens], then targets [tokens]; of a token without one: */
#define TDM_NO_TARGET (-1)

#endif
