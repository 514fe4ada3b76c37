/* SPDX-License-Identifier: Apache-2.0 */
/* Keys become a request, and the request a schedule. */
#include "planner/own_schedule.h"

#include "base/units.h"
#include "schedule/optimizer.h"

#include <string.h>

static enum tdm_status bad_value(const char *key, const char *value, const char *due,
                                 struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not known; %s is due", key, value, due);
}

/* "all", or a size. */
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

enum tdm_status tdm_own_read(const struct tdm_method_settings *settings,
                             const struct tdm_method_choices *choices, const char *model,
                             const char *machine, double margin, struct tdm_own_request *own,
                             struct tdm_error *err)
{
    const struct tdm_method *method = settings->method;
    struct tdm_request *r = &own->request;
    const char *objective = tdm_method_value(method, choices, "objective");
    const char *optimizer = tdm_method_value(method, choices, "optimizer");
    *own = (struct tdm_own_request){.request = {.model = model,
                                                .machine = machine,
                                                .context = settings->torch.tokens,
                                                .sequences = settings->torch.batch},
                                    .margin = margin};
    if (!tdm_objective_parse(objective, &own->objective) || own->objective == TDM_OBJECTIVE_CONTEXT)
        return bad_value("objective", objective, "time or memory", err);
    if (!tdm_optimizer_parse(optimizer, &r->optimizer))
        return bad_value("optimizer", optimizer, TDM_OPTIMIZER_NAMES, err);
    enum tdm_status status = read_budget(tdm_method_value(method, choices, "budget"), r, err);
    if (status == TDM_OK)
        status = read_size("--set memory", tdm_method_value(method, choices, "memory"),
                           &r->has_memory, &r->memory_bytes, err);
    if (status == TDM_OK)
        status = read_size("--set host_memory", tdm_method_value(method, choices, "host_memory"),
                           &r->has_host_memory, &r->host_memory_bytes, err);
    if (status == TDM_OK && r->has_host_memory && r->host_memory_bytes > TDM_MOST_HOST_BYTES)
        status = tdm_fail(err, TDM_USAGE, "--set host_memory: more than 1 EiB");
    if (status == TDM_OK && r->sequences > TDM_MOST_SEQUENCES)
        status = tdm_fail(err, TDM_USAGE, "--batch: method %s has at most %u", method->name,
                          TDM_MOST_SEQUENCES);
    if (status == TDM_OK && r->context > TDM_LONGEST_CONTEXT)
        status =
            tdm_fail(err, TDM_USAGE, "--context: method %s has at most 256M tokens", method->name);
    for (size_t i = 0; i < choices->other_count; i++)
        r->pairs[r->pair_count++] = choices->others[i];
    return status;
}

/* The margin is left of the device's memory, unless a limit was said. */
static enum tdm_status leave_margin(const struct tdm_own_request *own, struct tdm_request *request,
                                    struct tdm_error *err)
{
    struct tdm_machine *machine;
    *request = own->request;
    if (request->has_memory || own->margin <= 0)
        return TDM_OK;
    enum tdm_status status = tdm_machine_load(request->machine, &machine, err);
    if (status != TDM_OK)
        return status;
    request->has_memory = true;
    request->memory_bytes =
        (uint64_t)((double)machine->capacity_bytes[TDM_DEVICE] * (1 - own->margin));
    tdm_machine_free(machine);
    return TDM_OK;
}

enum tdm_status tdm_own_find(const struct tdm_own_request *own, struct tdm_objective_found *found,
                             struct tdm_error *err)
{
    static const struct tdm_objective_options options = {.tried = NULL};
    struct tdm_request request;
    enum tdm_status status = leave_margin(own, &request, err);
    if (status == TDM_OK && own->objective == TDM_OBJECTIVE_MEMORY)
        return tdm_objective_memory(&request, &options, found, err);
    if (status == TDM_OK)
        status = tdm_request_make(&request, &found->schedule, &found->pins, err);
    return status == TDM_OK
               ? tdm_candidates_search(found->schedule, &found->pins, &found->search, err)
               : status;
}

enum tdm_status tdm_own_longest(const struct tdm_own_request *own,
                                struct tdm_objective_found *found, struct tdm_error *err)
{
    static const struct tdm_objective_options options = {.tried = NULL};
    struct tdm_request request;
    enum tdm_status status = leave_margin(own, &request, err);
    return status == TDM_OK ? tdm_objective_context(&request, &options, found, err) : status;
}
