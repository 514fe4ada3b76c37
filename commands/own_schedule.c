/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the settings to a request, and plans a schedule for it. */
#include "commands/own_parts.h"

#include "base/units.h"
#include "planner/shortage.h"
#include "schedule/optimizer.h"

#include <stdlib.h>
#include <string.h>

static enum tdm_status bad_value(const char *key, const char *value, const char *due,
                                 struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not known; expected %s", key, value,
                    due);
}

/* Parses "all" or a size. */
static enum tdm_status read_size(const char *what, const char *value, bool *has, uint64_t *bytes,
                                 struct tdm_error *err)
{
    *has = strcmp(value, "all") != 0;
    return *has ? tdm_parse_bytes(value, what, bytes, err) : TDM_OK;
}

static enum tdm_status read_budget(const char *value, struct tdm_request *r, struct tdm_error *err)
{
    if (strcmp(value, "dense") == 0)
        return TDM_OK;
    r->budget = TDM_BUDGET_TOKENS;
    return tdm_parse_tokens(value, "--set budget", &r->budget_tokens, err);
}

static enum tdm_status check_range(const struct tdm_request *r, struct tdm_error *err)
{
    if (r->has_host_memory && r->host_memory_bytes > TDM_MOST_HOST_BYTES)
        return tdm_fail(err, TDM_USAGE, "--set host_memory: more than 1 EiB");
    if (r->sequences > TDM_MOST_SEQUENCES)
        return tdm_fail(err, TDM_USAGE, "--batch: method tidemark has at most %u",
                        TDM_MOST_SEQUENCES);
    if (r->context > TDM_LONGEST_CONTEXT)
        return tdm_fail(err, TDM_USAGE, "--context: method tidemark has at most 256M tokens");
    return TDM_OK;
}

static enum tdm_status read_words(const struct tdm_own_words *words, struct tdm_request *r,
                                  enum tdm_objective *objective, struct tdm_error *err)
{
    *r = (struct tdm_request){.model = words->model,
                              .machine = words->machine,
                              .context = words->context,
                              .ranks = words->ranks,
                              .unchecked = true, /* predicted only, never run */
                              .sequences = words->batch};
    if (!tdm_objective_parse(words->objective, objective) || *objective == TDM_OBJECTIVE_CONTEXT)
        return bad_value("objective", words->objective, "time or memory", err);
    if (!tdm_optimizer_parse(words->optimizer, &r->optimizer))
        return bad_value("optimizer", words->optimizer, TDM_OPTIMIZER_NAMES, err);
    enum tdm_status status = read_budget(words->budget, r, err);
    if (status == TDM_OK)
        status = read_size("--set memory", words->memory, &r->has_memory, &r->memory_bytes, err);
    if (status == TDM_OK)
        status = read_size("--set host_memory", words->host_memory, &r->has_host_memory,
                           &r->host_memory_bytes, err);
    if (status == TDM_OK)
        status = check_range(r, err);
    if (status == TDM_OK && words->pair_count > TDM_MOST_PAIRS)
        status = tdm_fail(err, TDM_USAGE, "--set is given more than %u times", TDM_MOST_PAIRS);
    if (status != TDM_OK)
        return status;
    r->pair_count = words->pair_count;
    for (size_t i = 0; i < words->pair_count; i++)
        r->pairs[i] = words->pairs[i];
    if (!r->has_memory)
        r->memory_bytes = (uint64_t)((double)words->device_bytes * (1 - words->margin));
    if (!r->has_host_memory)
        r->host_memory_bytes = words->host_bytes;
    r->has_memory = r->has_host_memory = true;
    return TDM_OK;
}

enum tdm_status tdm_own_check(const struct tdm_own_words *words, struct tdm_error *err)
{
    struct tdm_request request;
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    enum tdm_objective objective;
    enum tdm_status status = read_words(words, &request, &objective, err);
    if (status == TDM_OK)
        status = tdm_request_make(&request, &schedule, &pins, err);
    if (status != TDM_OK)
        return status;
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return TDM_OK;
}

static enum tdm_status find(const struct tdm_request *request, enum tdm_objective objective,
                            enum tdm_effort effort, struct tdm_objective_found *found,
                            struct tdm_error *err)
{
    static const struct tdm_objective_options options = {.tried = NULL};
    if (objective == TDM_OBJECTIVE_CONTEXT)
        return tdm_objective_near_context(request, request->context, found, err);
    if (objective == TDM_OBJECTIVE_MEMORY)
        return tdm_objective_memory(request, &options, found, err);
    return tdm_objective_time(request, effort, found, err);
}

/* Makes the schedule of a request that cannot fit, for tdm_own_fail(), and returns TDM_INFEASIBLE.
 * TDM_OK: only a search can tell. `brief`: a clear miss is not proved. */
static enum tdm_status refuse_unfit(const struct tdm_request *request, bool brief,
                                    struct tdm_own_schedule *own, struct tdm_error *err)
{
    struct tdm_objective_found *found = &own->found;
    enum tdm_foreseen foreseen = TDM_MAY_FIT;
    enum tdm_status status = tdm_request_make(request, &found->schedule, &found->pins, err);
    if (status == TDM_OK)
        status = tdm_shortage_foresee(found->schedule, &found->pins, brief, &foreseen, err);
    own->refused_briefly = foreseen == TDM_CLEARLY_MISSES;
    if (status == TDM_OK && foreseen != TDM_MAY_FIT)
        return tdm_fail(err, TDM_INFEASIBLE, "no schedule fits");
    tdm_objective_found_free(found);
    *found = (struct tdm_objective_found){0};
    return status;
}

enum tdm_status tdm_own_find(const struct tdm_own_words *words, bool longest,
                             struct tdm_own_schedule **own, struct tdm_error *err)
{
    struct tdm_request request;
    enum tdm_objective objective;
    enum tdm_status status = read_words(words, &request, &objective, err);
    if (status != TDM_OK)
        return status;
    *own = calloc(1, sizeof(**own));
    if (*own == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a schedule");
    (*own)->brief = words->brief && !longest && objective == TDM_OBJECTIVE_TIME;
    if (words->ranks == 1 && objective == TDM_OBJECTIVE_TIME && !longest)
        status = refuse_unfit(&request, words->brief_refusal, *own, err);
    if (status == TDM_OK)
        status = find(&request, longest ? TDM_OBJECTIVE_CONTEXT : objective,
                      words->brief ? TDM_EFFORT_BRIEF : TDM_EFFORT_FULL, &(*own)->found, err);
    if (status != TDM_OK && status != TDM_INFEASIBLE) {
        tdm_own_free(*own);
        *own = NULL;
    }
    return status;
}

void tdm_own_free(struct tdm_own_schedule *own)
{
    if (own == NULL)
        return;
    tdm_pins_free(&own->found.pins);
    tdm_schedule_free(own->found.schedule);
    free(own);
}
