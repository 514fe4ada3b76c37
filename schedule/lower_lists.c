/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of the pages that queries see, in layers whose selector makes lists (selector.h).
 *
 * If pages win by a vote, the first forward makes the page means of a chunk when it makes the
 * chunk's K, and the lists before the chunk's attention. The lists are kept, because the backward
 * visits what the forward read. In chunk-major order the first forward of the last layer makes only
 * K and V; its lists are made, and live, when its chunk runs again. Other lists do not depend on
 * values and are made where they are used.
 */
#include "ops/select.h"
#include "schedule/attend.h"
#include "schedule/lower_parts.h"

static bool votes(const struct tdm_lowering *l, uint32_t layer)
{
    return l->layout->means[layer] != TDM_NONE;
}

bool tdm_low_first_selects(const struct tdm_lowering *l, uint32_t layer)
{
    return tdm_low_streams_x(l) || layer + 1 < l->model->layers;
}

void tdm_low_alloc_means(struct tdm_lowering *l, uint32_t layer)
{
    tdm_low_alloc(l, l->layout->means[layer]);
}

void tdm_low_release_means(struct tdm_lowering *l, uint32_t layer, bool backward)
{
    if (backward != tdm_low_first_selects(l, layer))
        tdm_low_release(l, l->layout->means[layer]);
}

bool tdm_low_makes_means(const struct tdm_lowering *l, const struct tdm_body *body)
{
    return votes(l, body->layer) && body->pass == TDM_PASS_FIRST;
}

void tdm_low_page_means(struct tdm_lowering *l, const struct tdm_body *body)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    if (!tdm_low_makes_means(l, body))
        return;
    tdm_low_op_begin(l, body, TDM_OP_PAGE_MEANS, 0);
    tdm_low_reads(l, TDM_PAGE_MEANS_PAGES, tdm_low_made_kv(l, body),
                  tdm_low_tag(TDM_KVPAGES, layer, chunk));
    tdm_low_writes(l, TDM_PAGE_MEANS_OUT, (struct tdm_ref){l->layout->means[layer], chunk},
                   tdm_low_tag(TDM_PAGE_MEANS, layer, chunk));
    tdm_low_op_end(l);
}

static void select_pages(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                         struct tdm_ref lists)
{
    uint32_t layer = body->layer, chunk = body->chunk;
    struct tdm_tag means = tdm_low_tag(TDM_PAGE_MEANS, layer, chunk);
    bool vote = votes(l, layer);
    uint32_t first = vote ? tdm_attend_first(l->program, layer, chunk) : chunk;
    tdm_low_op_begin(l, body, TDM_OP_SELECT, 0);
    if (vote)
        tdm_low_reads(l, TDM_SELECT_Q, q, tdm_low_tag(TDM_Q, layer, chunk));
    tdm_low_chunks(l, TDM_SELECT_MEANS, body, l->layout->means[layer], first, chunk, TDM_READ,
                   means, means);
    tdm_low_writes(l, TDM_SELECT_LISTS, lists, tdm_low_tag(TDM_PAGE_LISTS, layer, chunk));
    tdm_low_op_end(l);
}

struct tdm_ref tdm_low_lists(struct tdm_lowering *l, const struct tdm_body *body, struct tdm_ref q,
                             bool *work)
{
    uint32_t layer = body->layer;
    bool first = tdm_low_first_selects(l, layer);
    struct tdm_ref kept = {l->layout->lists[layer],
                           first ? l->program->chunks[body->chunk].slot : 0};
    *work = false;
    if (!tdm_selector_lists(tdm_schedule_page_rule(l->schedule, layer).selector.kind))
        return tdm_nowhere;
    if (kept.buffer == TDM_NONE) {
        *work = true;
        tdm_low_alloc_work(l, TDM_PAGE_LISTS);
        kept = tdm_low_work(l, TDM_PAGE_LISTS);
    }
    if (*work || body->pass == (first ? TDM_PASS_FIRST : TDM_PASS_RERUN))
        select_pages(l, body, q, kept);
    return kept;
}

void tdm_low_reads_lists(struct tdm_lowering *l, uint32_t operand, const struct tdm_body *body,
                         struct tdm_ref lists)
{
    if (lists.buffer != TDM_NONE)
        tdm_low_reads(l, operand, lists, tdm_low_tag(TDM_PAGE_LISTS, body->layer, body->chunk));
}
