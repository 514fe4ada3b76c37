/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of attention: attention of a chunk's queries over the slots of pages that it sees, and
 * the selection of pages. */
#include "executor/cuda/cuda.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/select.h"

static const struct tdm_attention_kind *kind_of(const struct tdm_attend *attend)
{
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds;
    while (kind->suits != NULL && !kind->suits(attend))
        kind++;
    return kind;
}

/* Sets the arrays of an attention op in the program's scratch. */
static void take_attention(const struct tdm_launch *launch, struct tdm_attend *attend)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    struct tdm_attention_scratch at = tdm_attention_scratch(params, attend->tokens);
    unsigned char *scratch = launch->scratch;
    attend->from = (void *)(scratch + at.from);
    attend->d = (void *)(scratch + at.d);
    if (params->attention.sums_dq) {
        attend->dq_sums = (void *)(scratch + at.dq_sums);
        attend->turns = (void *)(scratch + at.turns);
    }
    if (params->attention.divides_keys)
        attend->parts = (void *)(scratch + at.parts);
    if (params->pages.lists_by != TDM_SELECT_DENSE) {
        attend->start = (void *)(scratch + at.start);
        attend->readers = (void *)(scratch + at.readers);
        attend->order = (void *)(scratch + at.order);
    }
}

/* Pages gathered from the host: the buffers for them and the tables. */
struct gathering {
    struct tdm_gather gather;
    void *pages, *gradients;
};

static void take_gathering(const struct tdm_launch *launch, struct gathering *x)
{
    struct tdm_gather *g = &x->gather;
    struct tdm_attention_scratch at = tdm_attention_scratch(tdm_launch_params(launch), g->tokens);
    unsigned char *scratch = launch->scratch;
    x->pages = scratch + at.pages;
    x->gradients = scratch + at.gradients;
    g->listed = (void *)(scratch + at.listed);
    g->table = (void *)(scratch + at.table);
    g->from = (void *)(scratch + at.sight);
    g->start = (void *)(scratch + at.begin);
    g->bounds = (void *)(scratch + at.bounds);
    g->ends = (void *)(scratch + at.ends);
    g->count = g->ends + g->lists.lists;
    g->total = g->count + g->lists.lists;
}

static struct tdm_lists lists_of(const struct tdm_launch *launch, uint32_t operand)
{
    const struct tdm_pages_params *pages = &tdm_launch_params(launch)->pages;
    return (struct tdm_lists){.rule = tdm_page_rule_of(pages, launch->op->layer),
                              .pages = launch->operand[operand].data,
                              .lists = pages->lists,
                              .capacity = pages->list_capacity};
}

/* ---- selection ---- */

enum tdm_status tdm_cuda_run_page_means(struct tdm_executor *executor,
                                        const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_pages_params *pages = &tdm_launch_params(launch)->pages;
    struct tdm_means means = {.tokens = launch->op->tokens,
                              .page_tokens = pages->page_tokens,
                              .kv_heads = pages->kv_heads,
                              .head_dim = pages->head_dim,
                              .pages = tdm_array_at(&launch->operand[TDM_PAGE_MEANS_PAGES], 0),
                              .means = tdm_array_at(&launch->operand[TDM_PAGE_MEANS_OUT], 0)};
    return tdm_cuda_page_means(&means, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_select(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *means = &launch->operand[TDM_SELECT_MEANS];
    struct tdm_vote_scratch at = tdm_vote_scratch(params, op->tokens);
    unsigned char *scratch = launch->scratch;
    struct tdm_select select = {.tokens = op->tokens,
                                .first_token = program->chunks[op->chunk].first_token,
                                .documents = tdm_cuda_documents(executor, launch),
                                .query_heads = params->attention.query_heads,
                                .kv_heads = params->pages.kv_heads,
                                .head_dim = params->pages.head_dim,
                                .q = tdm_array_at(&launch->operand[TDM_SELECT_Q], 0),
                                .means = tdm_array_at(means, 0),
                                .lists = lists_of(launch, TDM_SELECT_LISTS)};
    uint64_t first = select.first_token; /* first token that has means */
    if (means->data != NULL) {
        first = program->chunks[op->access[TDM_SELECT_MEANS].before.chunk].first_token;
        select.slot_elements = means->slot_bytes / tdm_dtype_bytes(means->dtype);
    }
    select.first_page = tdm_page_of(&select.lists.rule, first);
    if (at.bytes > 0) {
        select.lse = (void *)(scratch + at.lse);
        select.votes = (void *)(scratch + at.votes);
    }
    return tdm_cuda_select(&select, tdm_cuda_compute(executor), err);
}

/* ---- attention ---- */

/* Number of keys: those of the chunks up to the queries; or of one before these, which is on a
 * visit or at home on another's way around a ring. */
static uint64_t keys_of(const struct tdm_launch *launch)
{
    const struct tdm_chunk *chunks = launch->program->chunks;
    const struct tdm_access *kv = &launch->op->access[TDM_ATTENTION_KV];
    const struct tdm_chunk *last = &chunks[kv->before.chunk + kv->slots - 1];
    return last->first_token + last->tokens - chunks[kv->before.chunk].first_token;
}

/* The parts of packed queries. */
static struct tdm_queries_at parts_of(const struct tdm_launch *launch, enum tdm_dtype dtype)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const uint64_t rows = launch->op->tokens * params->attention.query_heads;
    return tdm_queries_at(rows * params->pages.head_dim, rows, dtype);
}

static void take_packed(const struct tdm_launch *launch, struct tdm_attend *attend)
{
    const struct tdm_operand *packed = &launch->operand[TDM_ATTENTION_GRAD_Q];
    const struct tdm_queries_at at = parts_of(launch, packed->dtype);
    unsigned char *data = packed->data;
    void *lse = data + at.lse, *dots = data + at.dots;
    attend->d_out = (struct tdm_array){data + at.d_out, packed->dtype};
    attend->lse = lse;
    attend->dots = dots;
}

static struct tdm_attend attend_of(const struct tdm_executor *executor,
                                   const struct tdm_launch *launch, uint32_t lists)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_params *params = &program->params;
    const struct tdm_op *op = launch->op;
    const struct tdm_operand *pages = &launch->operand[TDM_ATTENTION_KV],
                             *out = &launch->operand[TDM_ATTENTION_O];
    struct tdm_attend attend = {
        .tokens = op->tokens,
        .first_token = program->chunks[op->chunk].first_token,
        .key_token = program->chunks[op->access[TDM_ATTENTION_KV].before.chunk].first_token,
        .keys = keys_of(launch),
        .chunk_tokens = params->pages.chunk_tokens,
        .page_tokens = params->pages.page_tokens,
        .lists = lists_of(launch, lists),
        .documents = tdm_cuda_documents(executor, launch),
        .query_heads = params->attention.query_heads,
        .kv_heads = params->pages.kv_heads,
        .head_dim = params->pages.head_dim,
        .q = tdm_array_at(&launch->operand[TDM_ATTENTION_Q], 0),
        .pages = tdm_array_at(pages, 0),
        .slot_elements = pages->slot_bytes / tdm_dtype_bytes(pages->dtype),
    };
    take_attention(launch, &attend);
    if (out->data != NULL) {
        uint64_t elements = op->tokens * attend.query_heads * attend.head_dim;
        void *lse = (unsigned char *)out->data + tdm_lse_bytes_at(elements, out->dtype);
        attend.out = tdm_array_at(out, 0);
        attend.lse = lse;
    } else { /* a gradient, from packed queries */
        take_packed(launch, &attend);
    }
    return attend;
}

/* Counts the bytes that an op has moved from the host and back. */
static enum tdm_status count_moved(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   const struct gathering *x, bool backward, struct tdm_error *err)
{
    const struct tdm_pages_params *pages = &tdm_launch_params(launch)->pages;
    const struct tdm_access *opened = &launch->op->access[TDM_ATTENTION_GRAD_DKV_OPENED],
                            *sums = &launch->op->access[TDM_ATTENTION_GRAD_DKV_ADDED];
    uint64_t own = tdm_size_ceil_div(x->gather.tokens, pages->page_tokens);
    uint64_t lists = x->gather.lists.lists;
    uint64_t page = tdm_page_bytes_of(pages, pages->kv), sum = 0;
    cudaStream_t stream = tdm_cuda_compute(executor);
    if (backward && opened->buffer != TDM_NONE)
        sums = opened;
    if (backward && launch->program->buffers[sums->buffer].place != TDM_DEVICE)
        sum = tdm_page_bytes_of(pages, pages->kv_gradients);
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

/* Runs `attend`, an op over pages on the host, in batches: gathers the pages of a batch into the
 * buffer and attends to them there. */
static enum tdm_status attend_gathered(struct tdm_executor *executor,
                                       const struct tdm_launch *launch, struct tdm_attend attend,
                                       bool backward, struct tdm_error *err)
{
    const struct tdm_pages_params *own = &tdm_launch_params(launch)->pages;
    const struct tdm_gather_params *params = &tdm_launch_params(launch)->attention.gather;
    cudaStream_t stream = tdm_cuda_compute(executor);
    uint32_t batches = (uint32_t)tdm_gather_batches(tdm_launch_params(launch), attend.tokens);
    struct gathering x = {.gather = {.lists = attend.lists,
                                     .tokens = attend.tokens,
                                     .first_token = attend.first_token,
                                     .documents = attend.documents,
                                     .kv_heads = attend.kv_heads,
                                     .head_dim = attend.head_dim,
                                     .buffer_pages = params->pages}};
    x.gather.first_page = tdm_page_of(&attend.lists.rule, attend.key_token);
    take_gathering(launch, &x);
    struct tdm_page_home pages = {.pages = attend.pages,
                                  .slot_elements = attend.slot_elements,
                                  .buffer = {x.pages, attend.pages.dtype},
                                  .buffer_slot_elements =
                                      params->kv_slot_bytes / tdm_dtype_bytes(own->kv)};
    struct tdm_page_home sums = {.opened = attend.written,
                                 .pages = attend.added,
                                 .opened_slots = attend.written_slots,
                                 .slot_elements = attend.gradient_slot_elements,
                                 .buffer = {x.gradients, own->kv_gradients},
                                 .buffer_slot_elements =
                                     params->dkv_slot_bytes / tdm_dtype_bytes(own->kv_gradients)};
    attend.key_token = 0;
    attend.first_token = x.gather.buffer_pages * attend.page_tokens;
    attend.keys = attend.first_token + attend.tokens;
    attend.lists.pages = x.gather.listed;
    attend.pages = pages.buffer;
    attend.slot_elements = pages.buffer_slot_elements;
    attend.written = (struct tdm_array){0};
    attend.written_slots = 0;
    attend.added = sums.buffer;
    attend.gradient_slot_elements = sums.buffer_slot_elements;
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
    if (launch->op->gathers)
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
    if (launch->operand[TDM_ATTENTION_GRAD_DO].data != NULL)
        attend.d_out = tdm_array_at(&launch->operand[TDM_ATTENTION_GRAD_DO], 0);
    attend.dq = tdm_array_at(&launch->operand[TDM_ATTENTION_GRAD_DQ], 0);
    attend.written = tdm_array_at(written, 0);
    attend.added = tdm_array_at(added, 0);
    attend.written_slots = written->data != NULL ? written->slots : 0;
    attend.gradient_slot_elements = gradients->slot_bytes / tdm_dtype_bytes(gradients->dtype);
    if (launch->op->gathers)
        return attend_gathered(executor, launch, attend, true, err);
    enum tdm_status status = tdm_cuda_attend_from(&attend, stream, err);
    if (status != TDM_OK)
        return status;
    return kind_of(&attend)->backward(&attend, stream, err);
}

static float *lse_of(const struct tdm_launch *launch, const struct tdm_operand *out)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const uint64_t rows = launch->op->tokens * params->attention.query_heads;
    void *lse =
        (unsigned char *)out->data + tdm_lse_bytes_at(rows * params->pages.head_dim, out->dtype);
    return lse;
}

enum tdm_status tdm_cuda_run_merge(struct tdm_executor *executor, const struct tdm_launch *launch,
                                   struct tdm_error *err)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_operand *part = &launch->operand[TDM_MERGE_PART],
                             *sum = &launch->operand[TDM_MERGE_SUM],
                             *out = &launch->operand[TDM_MERGE_OUT];
    const bool outputs = launch->op->access[TDM_MERGE_PART].after.content == TDM_OUT_PART;
    struct tdm_merge merge = {.rows = launch->op->tokens * params->attention.query_heads,
                              .head_dim = params->pages.head_dim,
                              .opens = sum->mode == TDM_WRITE,
                              .part = tdm_array_at(part, 0),
                              .sum = sum->data};
    if (out->data != NULL)
        merge.out = tdm_array_at(out, 0);
    if (outputs) {
        merge.part_lse = lse_of(launch, part);
        merge.sum_lse = lse_of(launch, sum);
        merge.out_lse = out->data == NULL ? NULL : lse_of(launch, out);
    }
    return tdm_cuda_merge(&merge, tdm_cuda_compute(executor), err);
}

enum tdm_status tdm_cuda_run_pack_queries(struct tdm_executor *executor,
                                          const struct tdm_launch *launch, struct tdm_error *err)
{
    const struct tdm_params *params = tdm_launch_params(launch);
    const struct tdm_operand *q = &launch->operand[TDM_PACK_QUERIES_Q],
                             *out = &launch->operand[TDM_PACK_QUERIES_O],
                             *d_out = &launch->operand[TDM_PACK_QUERIES_DO];
    const struct tdm_queries_at at = parts_of(launch, q->dtype);
    unsigned char *to = launch->operand[TDM_PACK_QUERIES_OUT].data;
    void *lse = to + at.lse, *dots = to + at.dots;
    const struct tdm_pack pack = {.rows = launch->op->tokens * params->attention.query_heads,
                                  .head_dim = params->pages.head_dim,
                                  .out = tdm_array_at(out, 0),
                                  .d_out = tdm_array_at(d_out, 0),
                                  .lse = lse_of(launch, out),
                                  .packed_lse = lse,
                                  .dots = dots};
    cudaStream_t stream = tdm_cuda_compute(executor);
    enum tdm_status status =
        TDM_CUDA(cudaMemcpyAsync(to, q->data, at.d_out, cudaMemcpyDeviceToDevice, stream), err);
    if (status == TDM_OK)
        status = TDM_CUDA(
            cudaMemcpyAsync(to + at.d_out, d_out->data, at.d_out, cudaMemcpyDeviceToDevice, stream),
            err);
    return status == TDM_OK ? tdm_cuda_pack_facts(&pack, stream, err) : status;
}
