/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over KV pages whose home is the host: forms batches of query pages, and moves the pages
 * that they read (schedule/gather.h).
 *
 * Home and buffer are both ordinary memory here. Pages are copied nevertheless, so that results and
 * counted bytes are those of a device.
 */
#include "executor/cpu/attention.h"

#include "base/size.h"
#include "ops/attention.h"

#include <string.h>

struct tdm_gathered tdm_gather_begin(const struct tdm_launch *launch)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_op *op = launch->op;
    if (!op->gathers)
        return (struct tdm_gathered){0};
    struct tdm_page_rule rule = tdm_page_rule_of(&params->pages, op->layer);
    struct tdm_attention_scratch at = tdm_attention_scratch(params, op->tokens);
    unsigned char *scratch = launch->scratch;
    void *table = scratch + at.table, *count = scratch + at.ends;
    return (struct tdm_gathered){
        .buffer_pages = params->attention.gather.pages,
        .chunk_page = tdm_page_of(&rule, launch->program->chunks[op->chunk].first_token),
        .table = table,
        .count = count,
        .kv = scratch + at.pages,
        .dkv = scratch + at.gradients,
    };
}

/* ---- which pages ---- */

/* The index of a page in the table of a list, or the index where it would be inserted. */
static uint32_t find(const uint32_t *table, uint32_t count, uint64_t page)
{
    uint32_t low = 0, end = count;
    while (low < end) {
        uint32_t middle = low + (end - low) / 2;
        if (table[middle] < page)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

bool tdm_gathered_page(const struct tdm_attention *a, uint64_t page, uint64_t kv_head,
                       uint64_t *place)
{
    const struct tdm_gathered *g = &a->gathered;
    if (g->buffer_pages == 0 || page >= g->chunk_page)
        return false;
    uint64_t list = a->list_count > 1 ? kv_head : 0;
    *place = find(g->table + list * g->buffer_pages, g->count[list], page);
    return *place < g->count[list] && g->table[list * g->buffer_pages + *place] == page;
}

/* The page that an entry names if it lies before the chunk and is not in the table yet; else
 * TDM_PAGE_NONE. */
static uint32_t new_page(const struct tdm_gathered *g, uint64_t list, uint32_t entry)
{
    uint32_t page = entry & TDM_PAGE_NUMBER, count = g->count[list];
    const uint32_t *table = g->table + list * g->buffer_pages;
    if (page >= g->chunk_page)
        return TDM_PAGE_NONE;
    uint32_t at = find(table, count, page);
    return at < count && table[at] == page ? TDM_PAGE_NONE : page;
}

/* Do the pages that a query page lists fit into the buffer? */
static bool fits(const struct tdm_attention *a, uint64_t query_page)
{
    const struct tdm_gathered *g = &a->gathered;
    for (uint64_t list = 0; list < a->list_count; list++) {
        const uint32_t *entries = tdm_attention_list(a, query_page, list);
        uint64_t count = g->count[list];
        for (uint32_t i = 0; i < entries[0]; i++)
            count += new_page(g, list, entries[1 + i]) != TDM_PAGE_NONE;
        if (count > g->buffer_pages)
            return false;
    }
    return true;
}

static void add_pages(const struct tdm_attention *a, uint64_t query_page)
{
    const struct tdm_gathered *g = &a->gathered;
    for (uint64_t list = 0; list < a->list_count; list++) {
        const uint32_t *entries = tdm_attention_list(a, query_page, list);
        uint32_t *table = g->table + list * g->buffer_pages;
        for (uint32_t i = 0; i < entries[0]; i++) {
            uint32_t page = new_page(g, list, entries[1 + i]);
            if (page == TDM_PAGE_NONE)
                continue;
            uint32_t at = find(table, g->count[list], page);
            memmove(table + at + 1, table + at, (g->count[list] - at) * sizeof(*table));
            table[at] = page;
            g->count[list]++;
        }
    }
}

/* ---- moving them ---- */

struct move {
    const struct tdm_attention *a;
    const struct tdm_operand *opened; /* home of the first pages; NULL for K and V */
    const struct tdm_operand *pages;  /* home of the others */
    unsigned char *buffer;
    bool back;
};

/* The address of a page's home. */
static unsigned char *home_of(const struct move *m, uint64_t page)
{
    uint64_t pages = tdm_pages_of_chunk(&m->a->rule), at = page - m->a->first_page;
    uint64_t slot = at / pages, opened = m->opened != NULL ? m->opened->slots : 0;
    const struct tdm_operand *home = slot < opened ? m->opened : m->pages;
    slot -= slot < opened ? 0 : opened;
    return (unsigned char *)home->data + slot * home->slot_bytes +
           at % pages * tdm_page_bytes_of(m->a->pages, home->dtype);
}

/* A task moves one page of a list: the columns of the list's KV heads. */
static void move_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct move *m = context;
    const struct tdm_attention *a = m->a;
    uint64_t list = index / a->gathered.buffer_pages, place = index % a->gathered.buffer_pages;
    (void)thread_scratch;
    if (place >= a->gathered.count[list])
        return;
    enum tdm_dtype dtype = m->opened != NULL ? a->pages->kv_gradients : a->pages->kv;
    uint64_t size = tdm_dtype_bytes(dtype), line = a->kv_heads * a->head_dim * size;
    uint64_t bytes = line / a->list_count;
    unsigned char *home = home_of(m, a->gathered.table[index]) + list * bytes;
    unsigned char *buffer = m->buffer + place * tdm_page_bytes_of(a->pages, dtype) + list * bytes;
    for (uint64_t row = 0; row < 2 * a->rule.page_tokens; row++)
        memcpy((m->back ? home : buffer) + row * line, (m->back ? buffer : home) + row * line,
               bytes);
}

/* Moves the batch's pages of K and V, or of the sums of their gradients (`sums`). Counts the bytes
 * if the home is the host. The chunk's own pages are used in place here, but they are counted: with
 * the first batch on the way in, with the last on the way back. */
static void move_pages(struct tdm_executor *executor, const struct tdm_attention *a, bool sums,
                       bool back)
{
    const struct tdm_operand *operand = a->launch->operand;
    const struct tdm_access *access = a->launch->op->access, *home = &access[TDM_ATTENTION_KV];
    struct move m = {a, NULL, &operand[TDM_ATTENTION_KV], a->gathered.kv, back};
    const struct tdm_program *program = a->launch->program;
    uint64_t all = tdm_size_ceil_div(a->tokens, a->rule.page_tokens);
    if (a->gathered.buffer_pages == 0)
        return;
    if (sums) {
        m = (struct move){a, &operand[TDM_ATTENTION_GRAD_DKV_OPENED],
                          &operand[TDM_ATTENTION_GRAD_DKV_ADDED], a->gathered.dkv, back};
        home = &access[TDM_ATTENTION_GRAD_DKV_OPENED];
        if (home->buffer == TDM_NONE)
            home = &access[TDM_ATTENTION_GRAD_DKV_ADDED];
    }
    tdm_cpu_for(executor, a->list_count * a->gathered.buffer_pages, move_task, &m);

    uint64_t page = tdm_page_bytes_of(a->pages, sums ? a->pages->kv_gradients : a->pages->kv);
    uint64_t pages = 0;
    if (program->buffers[home->buffer].place == TDM_DEVICE)
        return;
    for (uint64_t list = 0; list < a->list_count; list++)
        pages += a->gathered.count[list];
    uint64_t own = (back ? a->end_page == all : a->begin_page == 0) ? all : 0;
    *(back ? &executor->counts.sent_bytes : &executor->counts.fetched_bytes) +=
        pages * page / a->list_count + own * page;
}

bool tdm_attention_next(struct tdm_executor *executor, struct tdm_attention *a)
{
    uint64_t pages = tdm_size_ceil_div(a->tokens, a->rule.page_tokens);
    a->begin_page = a->end_page;
    if (a->begin_page == pages)
        return false;
    a->end_page = pages;
    if (a->gathered.buffer_pages == 0)
        return true;
    for (uint64_t list = 0; list < a->list_count; list++)
        a->gathered.count[list] = 0;
    a->end_page = a->begin_page;
    while (a->end_page < pages && fits(a, a->end_page))
        add_pages(a, a->end_page++);
    move_pages(executor, a, false, false);
    return true;
}

/* Sets the sums of a slot's tokens to zero. */
static void open_slot(const struct tdm_attention *a, unsigned char *slot, uint64_t tokens)
{
    uint64_t size = tdm_dtype_bytes(a->pages->kv_gradients);
    uint64_t plane = a->pages->plane_elements * size, row = plane / a->rule.page_tokens;
    for (uint64_t at = 0; at < tokens; at += a->rule.page_tokens) {
        uint64_t bytes = tdm_least(tokens - at, a->rule.page_tokens) * row;
        unsigned char *page = slot + at / a->rule.page_tokens * 2 * plane;
        memset(page, 0, bytes);
        memset(page + plane, 0, bytes);
    }
}

void tdm_gather_open_sums(struct tdm_executor *executor, const struct tdm_attention *a)
{
    const struct tdm_operand *opened = &a->launch->operand[TDM_ATTENTION_GRAD_DKV_OPENED];
    const struct tdm_access *access = &a->launch->op->access[TDM_ATTENTION_GRAD_DKV_OPENED];
    const struct tdm_program *program = a->launch->program;
    if (a->gathered.buffer_pages == 0 || opened->data == NULL)
        return;
    for (uint32_t slot = 0; slot < opened->slots; slot++)
        open_slot(a, (unsigned char *)opened->data + slot * opened->slot_bytes,
                  program->chunks[access->after.chunk + slot].tokens);
    if (program->buffers[access->buffer].place != TDM_DEVICE)
        executor->counts.sent_bytes += access->bytes;
}

void tdm_gather_sums(struct tdm_executor *executor, const struct tdm_attention *a)
{
    move_pages(executor, a, true, false);
}

void tdm_send_sums(struct tdm_executor *executor, const struct tdm_attention *a)
{
    move_pages(executor, a, true, true);
}
