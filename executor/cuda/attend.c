/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of attention: a chunk's queries over the slots of pages that it sees, and which of the pages. */
#include "executor/cuda/cuda.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/select.h"
#include "schedule/gather.h"
#include "schedule/layout.h"
#include "schedule/scratch.h"

static const struct tdm_attention_kind *kind_of(const struct tdm_attend *attend)
{
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds;
    while (kind->suits != NULL && !kind->suits(attend))
        kind++;
    return kind;
}

static void take_attention(unsigned char **scratch, const struct tdm_schedule *schedule,
                           uint64_t tokens, struct tdm_attend *attend)
{
    const struct tdm_model *model = schedule->model;
    uint64_t pages = tdm_gather_key_pages(schedule), rows = tdm_attend_rows(tokens);
    attend->from = tdm_cuda_take(scratch, tokens * sizeof(*attend->from));
    attend->d = tdm_cuda_take(scratch, 2 * rows * model->query_heads * sizeof(*attend->d));
    attend->dq_sums = tdm_cuda_take(scratch, tdm_scratch_dq_bytes(schedule, tokens));
    attend->turns = tdm_cuda_take(scratch, tdm_scratch_turn_bytes(schedule, tokens, pages));
    if (tdm_schedule_lists(schedule) == TDM_SELECT_DENSE)
        return;
    uint64_t lists = tdm_page_lists(schedule), items = pages * lists;
    uint64_t query_pages = tdm_size_ceil_div(tokens, schedule->page_tokens);
    uint64_t words = tdm_size_ceil_div(tokens, 32 * schedule->page_tokens);
    attend->start = tdm_cuda_take(scratch, tokens * sizeof(*attend->start));
    attend->readers = tdm_cuda_take(scratch, items * words * 2 * sizeof(*attend->readers));
    attend->order = tdm_cuda_take(
        scratch, tdm_attend_order(pages, query_pages, lists, model->query_heads / model->kv_heads) *
                     sizeof(*attend->order));
}

/* Where pages are gathered from the host: the room, and what leads to it. */
struct gathering {
    struct tdm_gather gather;
    void *pages, *gradients;
};

static void take_gathering(unsigned char **scratch, const struct tdm_schedule *schedule,
                           uint64_t tokens, struct gathering *x)
{
    struct tdm_gather *g = &x->gather;
    uint64_t lists = tdm_page_lists(schedule), word = sizeof(uint32_t);
    if (!tdm_gathers_at_all(schedule))
        return;
    x->pages = tdm_cuda_take(scratch, tdm_gather_room_bytes(schedule, TDM_KVPAGES));
    x->gradients = NULL;
    if (schedule->pass == TDM_TRAIN)
        x->gradients = tdm_cuda_take(scratch, tdm_gather_room_bytes(schedule, TDM_DKVPAGES));
    g->listed = tdm_cuda_take(scratch, tdm_content_bytes(schedule, TDM_PAGE_LISTS, 0, tokens));
    g->table = tdm_cuda_take(scratch, tdm_gather_pages(schedule) * lists * word);
    g->from = tdm_cuda_take(scratch, tokens * lists * word);
    g->start = tdm_cuda_take(scratch, tokens * lists * word);
    g->bounds = tdm_cuda_take(scratch, (tdm_gather_batches(schedule, tokens) + 1) * word);
    g->ends = tdm_cuda_take(scratch, 3 * lists * word);
    g->count = g->ends + lists;
    g->total = g->count + lists;
}

static void take_selection(unsigned char **scratch, const struct tdm_schedule *schedule,
                           uint64_t tokens, struct tdm_select *select)
{
    const struct tdm_model *model = schedule->model;
    uint64_t pages = tdm_size_ceil_div(tokens, schedule->page_tokens);
    uint64_t items = pages * model->kv_heads * tdm_longest_pages(schedule);
    if (tdm_schedule_lists(schedule) != TDM_SELECT_TOP_K)
        return;
    select->lse = tdm_cuda_take(scratch, 2 * tokens * model->query_heads * sizeof(*select->lse));
    select->votes = tdm_cuda_take(scratch, items * sizeof(*select->votes));
}

uint64_t tdm_cuda_attention_scratch(const struct tdm_schedule *schedule, uint64_t tokens)
{
    struct tdm_attend attend;
    struct tdm_select select;
    struct gathering gathering;
    unsigned char *end = NULL, *selected = NULL;
    take_attention(&end, schedule, tokens, &attend);
    take_gathering(&end, schedule, tokens, &gathering);
    take_selection(&selected, schedule, tokens, &select);
    return (uintptr_t)(end > selected ? end : selected);
}

static struct tdm_lists lists_of(const struct tdm_launch *launch, uint32_t operand)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    return (struct tdm_lists){.rule = tdm_schedule_page_rule(schedule, launch->op->layer),
                              .pages = launch->operand[operand].data,
                              .lists = tdm_page_lists(schedule),
                              .capacity = tdm_page_list_capacity(schedule)};
}

/* ---- selection ---- */

enum tdm_status tdm_cuda_run_page_means(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    struct tdm_means means = {.tokens = launch->op->tokens,
                              .page_tokens = schedule->page_tokens,
                              .kv_heads = schedule->model->kv_heads,
                              .head_dim = schedule->model->head_dim,
                              .pages = tdm_array_at(&launch->operand[TDM_PAGE_MEANS_PAGES], 0),
                              .means = tdm_array_at(&launch->operand[TDM_PAGE_MEANS_OUT], 0)};
    return tdm_cuda_page_means(&means, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_select(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *means = &launch->operand[TDM_SELECT_MEANS];
    unsigned char *scratch = executor->scratch;
    struct tdm_select select = {.tokens = op->tokens,
                                .first_token = program->chunks[op->chunk].first_token,
                                .documents = tdm_cuda_documents(executor, launch),
                                .query_heads = model->query_heads,
                                .kv_heads = model->kv_heads,
                                .head_dim = model->head_dim,
                                .q = tdm_array_at(&launch->operand[TDM_SELECT_Q], 0),
                                .means = tdm_array_at(means, 0),
                                .lists = lists_of(launch, TDM_SELECT_LISTS)};
    uint64_t first = select.first_token; /* of the tokens that there are means of */
    if (means->data != NULL) {
        first = program->chunks[op->access[TDM_SELECT_MEANS].before.chunk].first_token;
        select.slot_elements = means->slot_bytes / tdm_dtype_bytes(means->dtype);
    }
    select.first_page = tdm_page_of(&select.lists.rule, first);
    take_selection(&scratch, program->schedule, op->tokens, &select);
    return tdm_cuda_select(&select, tdm_cuda_compute(executor), err);
}

/* ---- attention ---- */

static struct tdm_attend attend_of(const struct tdm_executor *executor,
                                   const struct tdm_launch *launch, uint32_t lists)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *pages = &launch->operand[TDM_ATTENTION_KV],
                             *out = &launch->operand[TDM_ATTENTION_O];
    struct tdm_attend attend = {
        .tokens = op->tokens,
        .first_token = program->chunks[op->chunk].first_token,
        .key_token = program->chunks[op->access[TDM_ATTENTION_KV].before.chunk].first_token,
        .chunk_tokens = schedule->chunk_tokens,
        .page_tokens = schedule->page_tokens,
        .lists = lists_of(launch, lists),
        .documents = tdm_cuda_documents(executor, launch),
        .query_heads = model->query_heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .q = tdm_array_at(&launch->operand[TDM_ATTENTION_Q], 0),
        .pages = tdm_array_at(pages, 0),
        .slot_elements = pages->slot_bytes / tdm_dtype_bytes(pages->dtype),
        .out = tdm_array_at(out, 0),
    };
    void *lse = (unsigned char *)out->data + tdm_lse_offset(schedule, op->tokens);
    unsigned char *scratch = executor->scratch;
    attend.lse = lse;
    take_attention(&scratch, schedule, op->tokens, &attend);
    return attend;
}

/* Elements from one slot of the room to the next. */
static uint64_t room_stride(const struct tdm_schedule *schedule, enum tdm_content content)
{
    return tdm_gather_slot_bytes(schedule, content) /
           tdm_dtype_bytes(tdm_content_dtype(schedule, content));
}

/* Counts what an op has moved from the host, and back. */
static enum tdm_status count_moved(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   const struct gathering *x, bool backward, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    const struct tdm_access *opened = &launch->op->access[TDM_ATTENTION_GRAD_DKV_OPENED],
                            *sums = opened + 1;
    uint64_t own = tdm_size_ceil_div(x->gather.tokens, schedule->page_tokens);
    uint64_t lists = x->gather.lists.lists;
    uint64_t page = tdm_content_bytes(schedule, TDM_KVPAGES, 0, schedule->page_tokens), sum = 0;
    cudaStream_t stream = tdm_cuda_compute(executor);
    if (backward && opened->buffer != TDM_NONE)
        sums = opened;
    if (backward && launch->program->buffers[sums->buffer].place == TDM_HOST)
        sum = tdm_content_bytes(schedule, TDM_DKVPAGES, 0, schedule->page_tokens);
    struct tdm_page_bytes fetched = {(page + sum) / lists, own * (page + sum)};
    struct tdm_page_bytes sent = {sum / lists, own * sum};
    if (sum > 0 && sums == opened)
        sent.beside += opened->bytes;
    enum tdm_status status =
        tdm_cuda_count_pages(&x->gather, fetched, &executor->count->fetched_bytes, stream, err);
    if (status == TDM_OK && sum > 0)
        status = tdm_cuda_count_pages(&x->gather, sent, &executor->count->sent_bytes, stream, err);
    return status;
}

/* Gathers what `attend`, an op over pages at home, asks for, batch by batch, and attends to it in the room. */
static enum tdm_status attend_gathered(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_attend attend,
                                       bool backward, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    cudaStream_t stream = tdm_cuda_compute(executor);
    unsigned char *scratch = executor->scratch;
    uint32_t batches = (uint32_t)tdm_gather_batches(schedule, attend.tokens);
    struct tdm_attend taken;
    struct gathering x = {.gather = {.lists = attend.lists,
                                     .tokens = attend.tokens,
                                     .first_token = attend.first_token,
                                     .documents = attend.documents,
                                     .kv_heads = attend.kv_heads,
                                     .head_dim = attend.head_dim,
                                     .room = tdm_gather_pages(schedule)}};
    x.gather.first_page = tdm_page_of(&attend.lists.rule, attend.key_token);
    take_attention(&scratch, schedule, attend.tokens, &taken);
    take_gathering(&scratch, schedule, attend.tokens, &x);
    struct tdm_page_home pages = {.pages = attend.pages,
                                  .slot_elements = attend.slot_elements,
                                  .room = {x.pages, attend.pages.dtype},
                                  .room_slot_elements = room_stride(schedule, TDM_KVPAGES)};
    struct tdm_page_home sums = {.opened = attend.written,
                                 .pages = attend.added,
                                 .opened_slots = attend.written_slots,
                                 .slot_elements = attend.gradient_slot_elements,
                                 .room = {x.gradients, schedule->dtypes.kv_gradients},
                                 .room_slot_elements = room_stride(schedule, TDM_DKVPAGES)};
    attend.key_token = 0;
    attend.first_token = x.gather.room * attend.page_tokens;
    attend.lists.pages = x.gather.listed;
    attend.pages = pages.room;
    attend.slot_elements = pages.room_slot_elements;
    attend.written = (struct tdm_array){0};
    attend.written_slots = 0;
    attend.added = sums.room;
    attend.gradient_slot_elements = sums.room_slot_elements;
    attend.from = x.gather.from;
    attend.start = x.gather.start;
    attend.sight_stride = attend.lists.lists > 1 ? attend.tokens : 0;
    attend.sight_is_there = true;
    if (!backward)
        attend.readers = NULL;

    enum tdm_status status = backward ? tdm_cuda_open_pages(&x.gather, &sums, stream, err) : TDM_OK;
    for (uint32_t batch = 0; batch < batches && status == TDM_OK; batch++) {
        bool first = batch == 0, last = batch + 1 == batches;
        status = tdm_cuda_gather_batch(&x.gather, batch, stream, err);
        if (status == TDM_OK)
            status = tdm_cuda_move_pages(&x.gather, &pages, first, false, stream, err);
        if (status == TDM_OK && backward)
            status = tdm_cuda_move_pages(&x.gather, &sums, first, false, stream, err);
        if (status == TDM_OK)
            status = tdm_cuda_attend_from(&attend, stream, err);
        if (status == TDM_OK)
            status = backward ? kind_of(&attend)->backward(&attend, stream, err)
                              : kind_of(&attend)->forward(&attend, stream, err);
        if (status == TDM_OK && backward)
            status = tdm_cuda_move_pages(&x.gather, &sums, last, true, stream, err);
    }
    return status == TDM_OK ? count_moved(executor, launch, &x, backward, err) : status;
}

enum tdm_status tdm_cuda_run_attention(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_attend attend = attend_of(executor, launch, TDM_ATTENTION_LISTS);
    cudaStream_t stream = tdm_cuda_compute(executor);
    if (tdm_gathers(launch->program->schedule, launch->op->layer))
        return attend_gathered(executor, launch, attend, false, err);
    attend.readers = NULL;
    enum tdm_status status = tdm_cuda_attend_from(&attend, stream, err);
    if (status != TDM_OK)
        return status;
    return kind_of(&attend)->forward(&attend, stream, err);
}

enum tdm_status tdm_cuda_run_attention_grad(struct tdm_executor *executor,
                                            const struct tdm_launch *launch, struct tdm_error *err)
{
    struct tdm_attend attend = attend_of(executor, launch, TDM_ATTENTION_GRAD_LISTS);
    const struct tdm_operand *written = &launch->operand[TDM_ATTENTION_GRAD_DKV_OPENED],
                             *added = &launch->operand[TDM_ATTENTION_GRAD_DKV_ADDED];
    const struct tdm_operand *gradients = written->data != NULL ? written : added;
    cudaStream_t stream = tdm_cuda_compute(executor);
    attend.d_out = tdm_array_at(&launch->operand[TDM_ATTENTION_GRAD_DO], 0);
    attend.dq = tdm_array_at(&launch->operand[TDM_ATTENTION_GRAD_DQ], 0);
    attend.written = tdm_array_at(written, 0);
    attend.added = tdm_array_at(added, 0);
    attend.written_slots = written->data != NULL ? written->slots : 0;
    attend.gradient_slot_elements = gradients->slot_bytes / tdm_dtype_bytes(gradients->dtype);
    if (tdm_gathers(launch->program->schedule, launch->op->layer))
        return attend_gathered(executor, launch, attend, true, err);
    enum tdm_status status = tdm_cuda_attend_from(&attend, stream, err);
    if (status != TDM_OK)
        return status;
    return kind_of(&attend)->backward(&attend, stream, err);
}
