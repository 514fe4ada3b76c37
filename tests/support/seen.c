/* SPDX-License-Identifier: Apache-2.0 */
/* What queries saw: records a backend's lists, and applies the rules of selectors by token. */
#include "tests/support/seen.h"

#include "executor/backends.h"
#include "ops/attention.h"
#include "ops/select.h"
#include "schedule/layout.h"
#include "tests/support/votes.h"

#include <stdlib.h>
#include <string.h>

static struct tdm_backend noting;
static struct tdm_seen *noted;

static uint32_t **lists_of(const struct tdm_seen *seen, uint64_t step, uint32_t layer,
                           uint64_t chunk)
{
    return &seen->lists[((step - 1) * seen->schedule->model->layers + layer) * seen->chunks +
                        chunk];
}

/* Records the lists that an op reads. Attention must always read the same ones within a step. */
static void note(const struct tdm_launch *launch, const struct tdm_operand *lists)
{
    const struct tdm_op *op = launch->op;
    if (lists->data == NULL)
        return;
    uint64_t bytes =
        tdm_content_bytes(launch->program->schedule, TDM_PAGE_LISTS, op->layer, op->tokens);
    uint32_t **at = lists_of(noted, launch->step->number, op->layer, op->chunk);
    uint32_t *copy = malloc(bytes);
    if (copy == NULL)
        abort();
    memcpy(copy, lists->data, bytes);
    if (*at != NULL)
        noted->changed += memcmp(*at, copy, bytes) != 0;
    free(*at);
    *at = copy;
}

/* (query, key) pairs of an op's chunk, counted token by token, averaged over heads. */
static uint64_t pairs_by_token(const struct tdm_launch *launch)
{
    const struct tdm_schedule *schedule = launch->program->schedule;
    const struct tdm_chunk *chunk = &launch->program->chunks[launch->op->chunk];
    const struct tdm_sequence *sequence = &schedule->sequences[chunk->sequence];
    uint64_t pairs = 0, lists = tdm_page_lists(schedule), step = noted->step;
    noted->step = launch->step->number;
    for (uint64_t i = 0; i < chunk->tokens; i++) {
        uint64_t token = chunk->first_token + i, row = chunk->row + i;
        uint64_t start = tdm_document_start(sequence, tdm_document_of(sequence, token));
        for (uint64_t back = 0; back <= token - start; back++)
            for (uint64_t head = 0; head < lists; head++)
                pairs += tdm_seen(noted, launch->op->layer, head, row, row - back);
    }
    noted->step = step;
    return pairs / lists;
}

/* The number of pairs that the backend counted for the last op. */
static uint64_t pairs_counted(struct tdm_executor *executor, const struct tdm_op *op)
{
    struct tdm_timing timings[64];
    size_t count;
    uint64_t pairs = 0;
    do {
        count = tdm_cpu_backend.reap(executor, timings, 64);
        if (count > 0)
            pairs =
                timings[count - 1].op_number == op->number ? timings[count - 1].counts.pairs : 0;
    } while (count == 64);
    return pairs;
}

/* Votes in fp32 are sums of a few hundred probabilities. */
#define VOTE_ERROR 1e-4

static enum tdm_status select_pages(struct tdm_executor *executor, const struct tdm_launch *launch,
                                    struct tdm_error *err)
{
    enum tdm_status status = tdm_cpu_backend.run[TDM_OP_SELECT](executor, launch, err);
    const struct tdm_schedule *schedule = launch->program->schedule;
    uint64_t pages = (launch->op->tokens + schedule->page_tokens - 1) / schedule->page_tokens;
    uint64_t words = 1 + (uint64_t)tdm_page_list_capacity(schedule);
    for (uint64_t i = 0; i < pages * tdm_page_lists(schedule) && status == TDM_OK; i++) {
        struct tdm_election election;
        if (!tdm_elect(launch, i, &election))
            abort();
        if (election.count > 0) {
            const uint32_t *list =
                (const uint32_t *)launch->operand[TDM_SELECT_LISTS].data + i * words;
            noted->elections++;
            noted->wrong += !(tdm_election_margin(&election, list) >= -VOTE_ERROR);
        }
        free(election.votes);
    }
    if (launch->op->phase == TDM_FORWARD && launch->step->number == 1) {
        note(launch, &launch->operand[TDM_SELECT_LISTS]);
        noted->miscounted += pairs_counted(executor, launch->op) != pairs_by_token(launch);
    }
    return status;
}

static enum tdm_status attention(struct tdm_executor *executor, const struct tdm_launch *launch,
                                 struct tdm_error *err)
{
    note(launch, &launch->operand[TDM_ATTENTION_LISTS]);
    return tdm_cpu_backend.run[TDM_OP_ATTENTION](executor, launch, err);
}

static enum tdm_status attention_grad(struct tdm_executor *executor,
                                      const struct tdm_launch *launch, struct tdm_error *err)
{
    note(launch, &launch->operand[TDM_ATTENTION_GRAD_LISTS]);
    return tdm_cpu_backend.run[TDM_OP_ATTENTION_GRAD](executor, launch, err);
}

const struct tdm_backend *tdm_seen_begin(struct tdm_seen *seen, const struct tdm_schedule *schedule)
{
    *seen = (struct tdm_seen){.schedule = schedule, .step = 1};
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        seen->chunks +=
            (schedule->sequences[i].tokens + schedule->chunk_tokens - 1) / schedule->chunk_tokens;
    seen->lists =
        calloc(TDM_SEEN_STEPS * schedule->model->layers * seen->chunks, sizeof(*seen->lists));
    if (seen->lists == NULL)
        abort();
    noted = seen;
    noting = tdm_cpu_backend;
    noting.run[TDM_OP_SELECT] = select_pages;
    noting.run[TDM_OP_ATTENTION] = attention;
    noting.run[TDM_OP_ATTENTION_GRAD] = attention_grad;
    return &noting;
}

void tdm_seen_end(struct tdm_seen *seen)
{
    for (uint64_t i = 0; i < TDM_SEEN_STEPS * seen->schedule->model->layers * seen->chunks; i++)
        free(seen->lists[i]);
    free(seen->lists);
    noted = NULL;
}

/* ---- the rules, token by token ---- */

/* A token of the step: its sequence and position there, start of its document, and chunk. */
struct place {
    uint32_t sequence;
    uint64_t token, start, chunk;
};

static struct place place_of(const struct tdm_schedule *schedule, uint64_t row)
{
    struct place at = {.token = row};
    uint64_t chunks = 0;
    while (at.token >= schedule->sequences[at.sequence].tokens) {
        uint64_t tokens = schedule->sequences[at.sequence++].tokens;
        at.token -= tokens;
        chunks += (tokens + schedule->chunk_tokens - 1) / schedule->chunk_tokens;
    }
    const struct tdm_sequence *s = &schedule->sequences[at.sequence];
    for (uint32_t d = 0; s->document_starts != NULL && d < s->document_count; d++)
        if (s->document_starts[d] <= at.token)
            at.start = s->document_starts[d];
    at.chunk = chunks + at.token / schedule->chunk_tokens;
    return at;
}

static uint64_t page_of(const struct tdm_schedule *schedule, uint64_t token)
{
    uint64_t page = 0;
    for (uint64_t chunk = 0;; chunk += schedule->chunk_tokens)
        for (uint64_t t = chunk; t < chunk + schedule->chunk_tokens;
             t += schedule->page_tokens, page++)
            if (token < t + schedule->page_tokens && token < chunk + schedule->chunk_tokens)
                return page;
}

/* First token of the page of a token. */
static uint64_t page_begin(const struct tdm_schedule *schedule, uint64_t token)
{
    return token - token % schedule->chunk_tokens % schedule->page_tokens;
}

static bool won(const struct tdm_seen *seen, uint32_t layer, uint64_t kv_head,
                const struct place *query, uint64_t page)
{
    const struct tdm_schedule *s = seen->schedule;
    const uint32_t *lists = *lists_of(seen, seen->step, layer, query->chunk);
    uint64_t number =
        query->token % s->chunk_tokens / s->page_tokens * s->model->kv_heads + kv_head;
    const uint32_t *list = lists + number * (1 + (uint64_t)tdm_page_list_capacity(s));
    for (uint32_t i = 0; i < list[0]; i++)
        if ((list[1 + i] & TDM_PAGE_NUMBER) == page)
            return true;
    return false;
}

static bool whole(const struct tdm_seen *seen, uint32_t layer, const struct place *query,
                  const struct place *key)
{
    const struct tdm_schedule *s = seen->schedule;
    const struct tdm_selector *selector = &s->selector;
    uint64_t first = page_begin(s, query->token), own = page_of(s, first);
    uint64_t page = page_of(s, key->token);
    struct tdm_page_rule rule = tdm_schedule_page_rule(s, layer);
    uint64_t row = 0; /* of the sequence's first token */
    for (uint32_t i = 0; i < query->sequence; i++)
        row += s->sequences[i].tokens;
    struct place of_first = place_of(s, row + first);
    if (page < page_of(s, of_first.start))
        return false;
    if (page == own) { /* true if a document begins within it */
        uint64_t end = (first / s->chunk_tokens + 1) * s->chunk_tokens;
        const struct tdm_sequence *of = &s->sequences[query->sequence];
        end = end < of->tokens ? end : of->tokens;
        for (uint64_t t = first; t < first + s->page_tokens && t < end; t++)
            if (place_of(s, row + t).start > first)
                return true;
    }
    if (selector->kind == TDM_SELECT_DILATED) {
        for (uint64_t i = 1; i <= selector->window / s->page_tokens; i++)
            if (page + i * selector->dilation == own)
                return true;
        return false;
    }
    if (page <= page_of(s, of_first.start + selector->global - 1))
        return true;
    uint64_t near = first < selector->window ? 0 : first - selector->window + 1;
    near = near > of_first.start ? near : of_first.start;
    uint64_t low = page_of(s, of_first.start), high = page_of(s, near);
    for (uint64_t i = 0; selector->kind == TDM_SELECT_BIGBIRD && low < high && i < selector->random;
         i++)
        if (tdm_random_page(&rule, own, i, low, high) == page)
            return true;
    return false;
}

bool tdm_seen(const void *context, uint32_t layer, uint64_t kv_head, uint64_t query_row,
              uint64_t key_row)
{
    const struct tdm_seen *seen = context;
    const struct tdm_schedule *s = seen->schedule;
    struct place query = place_of(s, query_row), key = place_of(s, key_row);
    uint64_t behind = query.token - key.token; /* same document, key not after query */
    if (s->model->layer_kinds[layer].window > 0)
        return behind < s->model->layer_kinds[layer].window;
    switch (s->selector.kind) {
    case TDM_SELECT_WINDOW:
        return behind < s->selector.window;
    case TDM_SELECT_BLOCK:
        return (query.token - query.start) / s->selector.block ==
               (key.token - key.start) / s->selector.block;
    case TDM_SELECT_LONGFORMER:
    case TDM_SELECT_BIGBIRD:
        return behind < s->selector.window || whole(seen, layer, &query, &key);
    case TDM_SELECT_DILATED:
        return page_of(s, key.token) == page_of(s, query.token) || whole(seen, layer, &query, &key);
    case TDM_SELECT_TOP_K:
        return key.chunk == query.chunk || won(seen, layer, kv_head, &query, page_of(s, key.token));
    default:
        return true;
    }
}
