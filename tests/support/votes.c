/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the vote of a selection in double precision. */
#include "tests/support/votes.h"

#include "ops/select.h"
#include "schedule/attend.h"
#include "schedule/layout.h"
#include "executor/written.h"

#include <math.h>
#include <stdlib.h>

static double value(const struct tdm_operand *operand, uint64_t element)
{
    return tdm_value_of(tdm_operand_at(operand, element), operand->dtype);
}

/* Adds one query's probabilities; score[count] is the caller's workspace. */
static void add_vote(const struct tdm_launch *launch, const struct tdm_page_rule *rule,
                     uint64_t row, uint64_t kv_head, double *score, struct tdm_election *election)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_operand *q = &launch->operand[TDM_SELECT_Q],
                             *means = &launch->operand[TDM_SELECT_MEANS];
    const struct tdm_chunk *first =
        &program->chunks[launch->op->access[TDM_SELECT_MEANS].before.chunk];
    uint64_t pages = tdm_pages_of_chunk(rule), dim = model->head_dim;
    uint64_t slot_elements = means->slot_bytes / tdm_dtype_bytes(means->dtype);
    double most = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < election->count; i++) {
        uint64_t page = election->first + i - tdm_page_of(rule, first->first_token);
        uint64_t mean =
            page / pages * slot_elements + (page % pages * model->kv_heads + kv_head) * dim;
        score[i] = 0;
        for (uint64_t d = 0; d < dim; d++)
            score[i] += value(q, row * dim + d) * value(means, mean + d) / sqrt((double)dim);
        most = fmax(most, score[i]);
    }
    for (uint64_t i = 0; i < election->count; i++)
        sum += score[i] = exp(score[i] - most);
    for (uint64_t i = 0; i < election->count; i++)
        election->votes[i] += score[i] / sum;
}

bool tdm_elect(const struct tdm_launch *launch, uint64_t list, struct tdm_election *election)
{
    const struct tdm_program *program = launch->program;
    const struct tdm_op *op = launch->op;
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_chunk *chunk = &program->chunks[op->chunk];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    struct tdm_page_rule rule = tdm_schedule_page_rule(program->schedule, op->layer);
    uint64_t lists = tdm_page_lists(program->schedule), kv_head = list % lists;
    uint64_t ratio = model->query_heads / model->kv_heads;
    struct tdm_query_page page = tdm_attend_query_page(&rule, chunk, sequence, list / lists);
    uint64_t first = tdm_page_of(&rule, page.start), end = tdm_page_of(&rule, chunk->first_token);
    *election =
        (struct tdm_election){.first = first, .seats = rule.selector.budget / rule.page_tokens};
    if (rule.selector.kind != TDM_SELECT_TOP_K || end <= first + election->seats)
        return true;
    election->count = end - first;
    election->votes = calloc(election->count, sizeof(double));
    double *score = calloc(election->count, sizeof(double));
    bool taken = election->votes != NULL && score != NULL;
    for (uint64_t t = page.first; t <= page.last && taken; t++)
        for (uint64_t h = 0; h < ratio; h++)
            if (tdm_document_start(sequence, tdm_document_of(sequence, t)) == page.start)
                add_vote(launch, &rule,
                         (t - chunk->first_token) * model->query_heads + kv_head * ratio + h,
                         kv_head, score, election);
    free(score);
    return taken;
}

double tdm_election_margin(const struct tdm_election *election, const uint32_t *list)
{
    double least = INFINITY, most = 0;
    uint64_t seated = 0;
    for (uint64_t i = 0; i < election->count; i++) {
        bool won = false;
        for (uint32_t k = 1; k <= list[0]; k++)
            won = won || (list[k] & TDM_PAGE_NUMBER) == election->first + i;
        seated += won;
        if (won)
            least = fmin(least, election->votes[i]);
        else
            most = fmax(most, election->votes[i]);
    }
    return seated == election->seats ? (least - most) / least : -INFINITY;
}
