/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack of page means and page lists. A list must be exact, unless a page won or lost by so little
 * that rounding of the votes decides. It is then not checked.
 */
#include "tests/support/slack_parts.h"

#include "ops/select.h"
#include "tests/support/votes.h"

#include <stdlib.h>

enum { LIST_IS_CLOSE };

/* Largest relative error of a page's votes: probabilities in fp32 from bf16 products. */
#define VOTE_ERROR 1e-3

double slack_of_means(const struct tdm_slack *slack, uint64_t element)
{
    const struct tdm_schedule *schedule = slack->launch->program->schedule;
    uint64_t width = (uint64_t)schedule->model->kv_heads * schedule->model->head_dim;
    uint64_t first = element / width * schedule->page_tokens, count = 0;
    double sum = 0;
    for (uint64_t t = first; t < first + schedule->page_tokens && t < slack->launch->op->tokens;
         t++) {
        sum += fabs(slack_value(&slack->launch->operand[TDM_PAGE_MEANS_PAGES],
                                slack_page_element(slack, t) + element % width));
        count++;
    }
    return slack_sum_error((double)count) * sum / (double)count;
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

bool slack_begin_select(struct tdm_slack *slack)
{
    const struct tdm_launch *launch = slack->launch;
    const struct tdm_schedule *schedule = launch->program->schedule;
    uint64_t pages = (launch->op->tokens + schedule->page_tokens - 1) / schedule->page_tokens;
    uint64_t lists = pages * tdm_page_lists(schedule);
    double *close = slack_take(slack, LIST_IS_CLOSE, lists);
    for (uint64_t i = 0; i < lists && close != NULL; i++) {
        struct tdm_election election;
        if (!tdm_elect(launch, i, &election))
            return false;
        if (election.count > 0) { /* judged by votes, before the list exists */
            qsort(election.votes, election.count, sizeof(double), falling);
            double least = election.votes[election.seats - 1];
            close[i] = least - election.votes[election.seats] < VOTE_ERROR * least;
        }
        free(election.votes);
    }
    return close != NULL;
}

double slack_of_select(const struct tdm_slack *slack, uint64_t element)
{
    uint64_t words = 1 + (uint64_t)tdm_page_list_capacity(slack->launch->program->schedule);
    return slack->array[LIST_IS_CLOSE][element / words] != 0 ? INFINITY : -1;
}
