/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering pages from the host: which layers do it, how large the buffer is, and how many bytes
 * cross the link. */
#include "schedule/gather.h"

#include "base/size.h"
#include "ops/attention.h"
#include "schedule/layout.h"

#include <math.h>

bool tdm_gather_is_set(const struct tdm_schedule *schedule)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        if (schedule->sequences[i].tokens > longest)
            longest = schedule->sequences[i].tokens;
    return schedule->rings.gather > 0 && longest > schedule->chunk_tokens;
}

static bool has_lists(const struct tdm_schedule *schedule, uint32_t layer)
{
    return tdm_selector_lists(tdm_schedule_page_rule(schedule, layer).selector.kind);
}

bool tdm_gathers(const struct tdm_schedule *schedule, uint32_t layer)
{
    /* groups may not be set yet */
    if (schedule->group_count == 0 || schedule->order != TDM_CHUNK_MAJOR ||
        !tdm_gather_is_set(schedule))
        return false;
    const struct tdm_group *group = &schedule->groups[tdm_schedule_group_of(schedule, layer)];
    return group->kv == TDM_KV_KEEP && group->kv_place != TDM_DEVICE && has_lists(schedule, layer);
}

bool tdm_gathers_at_all(const struct tdm_schedule *schedule)
{
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
        if (tdm_gathers(schedule, layer))
            return true;
    return false;
}

static bool has_documents(const struct tdm_schedule *schedule)
{
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        if (schedule->sequences[i].document_count > 1)
            return true;
    return schedule->documents_of_text;
}

/* Maximum number of pages before its chunk that a query page can list: pages of the window before
 * the chunk's first token, pages of the global tokens, and random pages. Pages fill chunks exactly,
 * so all begin at multiples of their size. */
static uint64_t listed_pages(const struct tdm_schedule *schedule)
{
    const struct tdm_selector *s = &schedule->selector;
    uint64_t page = schedule->page_tokens, all = tdm_longest_pages(schedule), most;
    if (s->kind == TDM_SELECT_TOP_K)
        most = s->budget / page;
    else if (s->kind == TDM_SELECT_DILATED)
        most = s->window / page;
    else
        most = tdm_size_add(tdm_size_ceil_div(s->window - 1, page),
                            tdm_size_ceil_div(s->global, page) + s->random +
                                (s->global > 0 && has_documents(schedule)
                                     ? 1
                                     : 0)); /* documents begin inside pages */
    most = most < all ? most : all;
    return most > 0 ? most : 1;
}

static uint64_t chunk_pages(const struct tdm_schedule *schedule)
{
    return tdm_size_ceil_div(schedule->chunk_tokens, schedule->page_tokens);
}

/* The size of the buffer in chunks: at most those before the last. */
static uint64_t buffer_chunks(const struct tdm_schedule *schedule)
{
    uint64_t most = tdm_size_ceil_div(tdm_longest_pages(schedule), chunk_pages(schedule)) - 1;
    most = most > 0 ? most : 1;
    return schedule->rings.gather < most ? schedule->rings.gather : most;
}

uint64_t tdm_gather_pages(const struct tdm_schedule *schedule)
{
    return buffer_chunks(schedule) * chunk_pages(schedule);
}

/* Does the buffer hold all pages that a chunk can have before it? */
static bool all_fit(const struct tdm_schedule *schedule)
{
    return tdm_gather_pages(schedule) + chunk_pages(schedule) >= tdm_longest_pages(schedule);
}

enum tdm_status tdm_gather_fits(const struct tdm_schedule *schedule, const char *file,
                                struct tdm_error *err)
{
    bool lists = false;
    for (uint32_t layer = 0; layer < schedule->model->layers && !lists; layer++)
        lists = has_lists(schedule, layer);
    if (!lists || !tdm_gather_is_set(schedule))
        return TDM_OK;
    if (schedule->chunk_tokens % schedule->page_tokens != 0)
        return tdm_fail(
            err, TDM_INPUT,
            "%s: \"rings.gather\" gathers whole pages; \"chunk_tokens\" (%llu) must be a "
            "multiple of \"page_tokens\" (%llu)",
            file, (unsigned long long)schedule->chunk_tokens,
            (unsigned long long)schedule->page_tokens);
    uint64_t listed = listed_pages(schedule), pages = chunk_pages(schedule);
    if (listed > tdm_gather_pages(schedule) && !all_fit(schedule))
        return tdm_fail(
            err, TDM_INPUT,
            "%s: \"rings.gather\" (%u) has room for %llu pages a list, and a query page lists up to "
            "%llu; use at least %llu, or 0",
            file, schedule->rings.gather, (unsigned long long)tdm_gather_pages(schedule),
            (unsigned long long)listed, (unsigned long long)tdm_size_ceil_div(listed, pages));
    return TDM_OK;
}

enum tdm_status tdm_gather_check(const struct tdm_schedule *schedule, const char *file,
                                 struct tdm_error *err)
{
    return tdm_gathers_at_all(schedule) ? tdm_gather_fits(schedule, file, err) : TDM_OK;
}

static uint64_t slot_bytes(const struct tdm_schedule *schedule, enum tdm_content content)
{
    return tdm_size_align(tdm_content_bytes(schedule, content, 0, schedule->chunk_tokens),
                          TDM_SLOT_ALIGN);
}

struct tdm_gather_params tdm_gather_params_of(const struct tdm_schedule *schedule)
{
    uint64_t longest = tdm_longest_pages(schedule), slots = buffer_chunks(schedule) + 1;
    if (!tdm_gathers_at_all(schedule))
        return (struct tdm_gather_params){.key_pages = longest};
    uint64_t pages = tdm_gather_pages(schedule), held = slots * chunk_pages(schedule);
    uint64_t each = pages / listed_pages(schedule); /* 0: the schedule is refused */
    bool trains = schedule->pass == TDM_TRAIN;
    struct tdm_gather_params gather = {
        .pages = pages,
        .key_pages = held > longest ? held : longest,
        .batch_pages = each > 0 ? each : 1,
        .kv_slot_bytes = slot_bytes(schedule, TDM_KVPAGES),
        .dkv_slot_bytes = trains ? slot_bytes(schedule, TDM_DKVPAGES) : 0,
    };
    if (all_fit(schedule))
        gather.batch_pages = UINT64_MAX;
    gather.kv_buffer_bytes = tdm_size_mul(slots, gather.kv_slot_bytes);
    gather.dkv_buffer_bytes = tdm_size_mul(slots, gather.dkv_slot_bytes);
    return gather;
}

/* Expected pages, of `pages`, that `query_pages` query pages list together if each lists `listed`
 * at random. */
static double listed_together(double pages, double listed, double query_pages)
{
    return pages * (1 - pow(1 - listed / pages, query_pages));
}

/* Pages gathered for a list, over all batches. */
static double gathered_pages(const struct tdm_schedule *schedule, double pages, double query_pages)
{
    double listed = (double)listed_pages(schedule), capacity = (double)tdm_gather_pages(schedule);
    if (listed >= pages)
        listed = pages;
    if (pages == 0 || listed_together(pages, listed, query_pages) <= capacity)
        return pages == 0 ? 0 : listed_together(pages, listed, query_pages);
    double batch = 1;
    while (listed_together(pages, listed, batch + 1) <= capacity)
        batch++;
    double whole = floor(query_pages / batch);
    return whole * listed_together(pages, listed, batch) +
           listed_together(pages, listed, query_pages - whole * batch);
}

double tdm_gather_moved_pages(const struct tdm_schedule *schedule, uint64_t pages_before,
                              uint64_t own_pages)
{
    return gathered_pages(schedule, (double)pages_before, (double)own_pages) + (double)own_pages;
}

void tdm_gather_cost(const struct tdm_program *program, struct tdm_op *op)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_access *kv = &op->access[TDM_ATTENTION_KV];
    op->fetched_bytes = op->sent_bytes = 0;
    op->gathers = tdm_gathers(schedule, op->layer);
    if (!op->gathers)
        return;
    const struct tdm_group *group = &schedule->groups[tdm_schedule_group_of(schedule, op->layer)];
    op->link = tdm_link_find(&schedule->machine->topology, group->kv_place, TDM_DEVICE);
    uint64_t before = (kv->slots - 1) * chunk_pages(schedule);
    uint64_t own = tdm_size_ceil_div(op->tokens, schedule->page_tokens);
    double pages = tdm_gather_moved_pages(schedule, before, own);
    uint64_t page = tdm_content_bytes(schedule, TDM_KVPAGES, 0, schedule->page_tokens);
    op->fetched_bytes = (uint64_t)(pages * (double)page);
    if (op->kind != TDM_OP_ATTENTION_GRAD || group->kv_gradients_place == TDM_DEVICE)
        return;
    for (uint32_t i = TDM_ATTENTION_GRAD_DKV_OPENED; i <= TDM_ATTENTION_GRAD_DKV_ADDED; i++) {
        const struct tdm_access *sums = &op->access[i];
        if (sums->buffer == TDM_NONE)
            continue;
        if (sums->mode == TDM_WRITE) /* zeros are sent first */
            op->sent_bytes += sums->bytes;
        if (i == TDM_ATTENTION_GRAD_DKV_ADDED &&
            op->access[TDM_ATTENTION_GRAD_DKV_OPENED].buffer != TDM_NONE)
            continue; /* already counted */
        page = tdm_content_bytes(schedule, TDM_DKVPAGES, 0, schedule->page_tokens);
        op->fetched_bytes += (uint64_t)(pages * (double)page);
        op->sent_bytes += (uint64_t)(pages * (double)page);
    }
}
