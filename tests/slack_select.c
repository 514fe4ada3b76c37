/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack of page means and page lists. A list is exact unless a page won or lost by so little that roundings of
 * the votes decide; then anything goes in it.
 */
#include "tests/slack_parts.h"

#include "schedule/attend.h"

#include <stdlib.h>

enum { LIST_IS_CLOSE };

/* What votes of one page may be off by, of each: probabilities are made in fp32 of bf16 products. */
#define VOTE_ERROR 1e-3

double slack_of_means(const struct tdm_slack *slack, uint64_t element)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    uint64_t width = (uint64_t)schedule->model->kv_heads * schedule->model->head_dim;
    uint64_t first = element / width * schedule->page_tokens, count = 0;
    double sum = 0;
    for (uint64_t t = first; t < first + schedule->page_tokens && t < slack->launch->op->tokens; t++) {
        sum += fabs(slack_value(&slack->launch->operand[0],
                                slack_page_element(slack, t) + element % width));
        count++;
    }
    return slack_sum_error((double)count) * sum / (double)count;
}

struct vote {
    const struct tdm_slack *slack;
    struct tdm_page_rule rule;
    uint64_t first_page, kv_head;
    double *score, *votes; /* [pages] */
};

/* Adds one query's probabilities of the pages [first, first + count). */
static void add_vote(const struct vote *x, uint64_t query, uint64_t first, uint64_t count)
{
    const struct tdm_model *model = slack_model(x->slack);
    const struct tdm_operand *q = &x->slack->launch->operand[0];
    const struct tdm_operand *means = &x->slack->launch->operand[1];
    uint64_t pages = tdm_pages_of_chunk(&x->rule), dim = model->head_dim;
    uint64_t slot_elements = means->slot_bytes / tdm_dtype_bytes(means->dtype);
    double most = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = first + i - x->first_page;
        uint64_t mean = at / pages * slot_elements + (at % pages * model->kv_heads + x->kv_head) * dim;
        x->score[i] = 0;
        for (uint64_t d = 0; d < dim; d++)
            x->score[i] += slack_value(q, query * dim + d) * slack_value(means, mean + d);
        x->score[i] /= sqrt((double)dim);
        most = fmax(most, x->score[i]);
    }
    for (uint64_t i = 0; i < count; i++)
        sum += x->score[i] = exp(x->score[i] - most);
    for (uint64_t i = 0; i < count; i++)
        x->votes[i] += x->score[i] / sum;
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Does the vote for a query page decide by little? */
static bool is_close(struct vote *x, const struct tdm_query_page *page)
{
    const struct tdm_program *program = x->slack->launch->program;
    const struct tdm_model *model = slack_model(x->slack);
    const struct tdm_chunk *chunk = &program->chunks[x->slack->launch->op->chunk];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    uint64_t first = tdm_page_of(&x->rule, page->start);
    uint64_t end = tdm_page_of(&x->rule, chunk->first_token);
    uint64_t seats = x->rule.selector.budget / x->rule.page_tokens;
    uint64_t ratio = model->query_heads / model->kv_heads;
    if (end <= first + seats)
        return false;
    for (uint64_t i = 0; i < end - first; i++)
        x->votes[i] = 0;
    for (uint64_t t = page->first; t <= page->last; t++)
        for (uint64_t h = 0; h < ratio; h++)
            if (tdm_document_start(sequence, tdm_document_of(sequence, t)) == page->start)
                add_vote(x, (t - chunk->first_token) * model->query_heads + x->kv_head * ratio + h,
                         first, end - first);
    qsort(x->votes, end - first, sizeof(*x->votes), falling);
    return x->votes[seats - 1] - x->votes[seats] <= VOTE_ERROR * x->votes[seats - 1];
}

bool slack_begin_select(struct tdm_slack *slack)
{
    const struct tdm_launch *launch = slack->launch;
    const struct tdm_program *program = launch->program;
    const struct tdm_op *op = launch->op;
    uint64_t voted = tdm_page_list_voted(program->schedule);
    uint64_t lists = tdm_page_lists(program->schedule);
    uint64_t pages = (op->tokens + program->schedule->page_tokens - 1) / program->schedule->page_tokens;
    double *close = slack_take(slack, LIST_IS_CLOSE, pages * lists);
    struct vote x = {.slack = slack,
                     .rule = tdm_schedule_page_rule(program->schedule, op->layer),
                     .score = calloc(voted + 1, sizeof(double)),
                     .votes = calloc(voted + 1, sizeof(double))};
    bool taken = close != NULL && x.score != NULL && x.votes != NULL;
    if (taken && op->access[1].buffer != TDM_NONE) {
        x.first_page = tdm_page_of(
            &x.rule, program->chunks[op->access[1].before.chunk].first_token);
        for (uint64_t i = 0; i < pages * lists; i++) {
            struct tdm_query_page page =
                tdm_attend_query_page(program, op->layer, op->chunk, i / lists);
            x.kv_head = i % lists;
            close[i] = is_close(&x, &page);
        }
    }
    free(x.score);
    free(x.votes);
    return taken;
}

double slack_of_select(const struct tdm_slack *slack, uint64_t element)
{
    uint64_t words = 1 + (uint64_t)tdm_page_list_capacity(slack->launch->program->schedule);
    return slack->array[LIST_IS_CLOSE][element / words] != 0 ? INFINITY : -1;
}
