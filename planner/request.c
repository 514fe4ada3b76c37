/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a request to a schedule without a nest, and to pins. */
#include "planner/request.h"

#include "base/units.h"
#include "machines/nccl.h"
#include "ops/team.h"
#include "planner/places.h"
#include "planner/recipes.h"
#include "planner/set_keys.h"
#include "schedule/optimizer.h"
#include "ops/selector_fields.h"
#include "schedule/schedule_check.h"
#include "schedule/shared_state.h"

#include <string.h>

static enum tdm_status set_limits(const struct tdm_request *request, struct tdm_schedule *schedule,
                                  struct tdm_error *err)
{
    const struct tdm_machine *machine = schedule->machine;
    uint64_t capacity = machine->topology.places[TDM_DEVICE].capacity_bytes;
    char asked[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE];
    if (request->has_memory && request->memory_bytes > capacity) {
        tdm_fail(err, TDM_USAGE, "--memory: %s is more than the %s that %s has",
                 tdm_format_bytes(request->memory_bytes, asked), tdm_format_bytes(capacity, has),
                 machine->name);
        return tdm_hint(err, "without --memory the whole device is used");
    }
    if (request->has_memory)
        schedule->memory_bytes = request->memory_bytes;
    else if (request->like == NULL || request->machine != NULL) /* `like` has its own limits */
        schedule->memory_bytes = (uint64_t)((double)capacity * (1 - request->margin));
    enum tdm_status status = tdm_memory_check(request->has_memory ? "--memory" : "--margin",
                                              schedule->memory_bytes, machine, err);
    if (status != TDM_OK)
        return status;
    if (request->has_host_memory)
        schedule->host_memory_bytes = request->host_memory_bytes;
    /* the runtime always uses this; with a lower limit, or 0, the schedule has nothing on the
     * host */
    if (schedule->host_memory_bytes < tdm_machine_far(machine)->runtime_bytes)
        schedule->host_memory_bytes = tdm_machine_far(machine)->runtime_bytes;
    return TDM_OK;
}

static enum tdm_status apply_keys(const struct tdm_request *request, struct tdm_schedule *schedule,
                                  struct tdm_pins *pins, struct tdm_error *err)
{
    struct tdm_preset_pairs merged;
    if (request->preset == NULL)
        return tdm_set_keys_apply(request->pairs, request->pair_count, schedule, pins, err);
    enum tdm_status status =
        tdm_preset_merge(request->preset, schedule->model->layers, request->context, request->pairs,
                         request->pair_count, &merged, err);
    if (status != TDM_OK)
        return status;
    status = tdm_set_keys_apply(merged.pairs, merged.count, schedule, pins, err);
    tdm_preset_pairs_free(&merged);
    return status;
}

static bool names_selector(const struct tdm_request *request)
{
    for (size_t i = 0; i < request->pair_count; i++)
        if (strncmp(request->pairs[i], "selector=", strlen("selector=")) == 0)
            return true;
    return false;
}

/* Sets the budget. The chunk size is part of what top-k attention computes, so it is not
 * searched. */
static enum tdm_status set_budget(const struct tdm_request *request, struct tdm_schedule *schedule,
                                  struct tdm_pins *pins, struct tdm_error *err)
{
    const struct tdm_selector_field *field;
    bool sparse = request->budget == TDM_BUDGET_TOKENS || request->budget == TDM_BUDGET_AUTO;
    for (size_t i = 0; sparse && (field = tdm_selector_field(i)) != NULL; i++)
        if (tdm_selector_get(&schedule->selector, field) != 0) {
            tdm_fail(err, TDM_USAGE, "--budget does not go with --set selector.%s", field->name);
            return tdm_hint(
                err, "a budget is top-k's; leave it out and name a selector: --set selector=NAME");
        }
    if (sparse && names_selector(request))
        return tdm_fail(
            err, TDM_USAGE,
            "--budget and --set selector both choose what attention sees; give one of them");
    if (request->budget == TDM_BUDGET_TOKENS && request->budget_tokens == 0) {
        tdm_fail(err, TDM_USAGE, "--budget: a budget of 0 tokens retrieves nothing");
        return tdm_hint(err, "use a multiple of a page of %llu tokens, or --set selector=window",
                        (unsigned long long)schedule->page_tokens);
    }
    if (request->budget != TDM_BUDGET_TOKENS || request->budget_tokens >= request->context)
        return TDM_OK;
    if (request->budget_tokens % schedule->page_tokens != 0) {
        uint64_t page = schedule->page_tokens;
        tdm_fail(err, TDM_USAGE, "--budget: %llu tokens are no multiple of a page of %llu",
                 (unsigned long long)request->budget_tokens, (unsigned long long)page);
        return tdm_hint(err, "use --budget %llu",
                        (unsigned long long)((request->budget_tokens / page + 1) * page));
    }
    schedule->selector =
        (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = request->budget_tokens};
    if (pins->chunk_tokens == 0)
        pins->chunk_tokens = TDM_BUDGET_CHUNK;
    if (pins->chunk_tokens % schedule->page_tokens != 0) {
        tdm_fail(err, TDM_USAGE,
                 "--budget: chunks of %llu tokens are not a multiple of the page of %llu",
                 (unsigned long long)pins->chunk_tokens, (unsigned long long)schedule->page_tokens);
        return tdm_hint(err,
                        "use --set chunk=N and --set page=N such that the page divides the chunk");
    }
    return TDM_OK;
}

/* Adds to the machine what joins its ranks. Between nodes GPUs need NCCL, as far as the machine is
 * one of GPUs. */
static enum tdm_status join(const struct tdm_request *request, struct tdm_machine **machine,
                            struct tdm_error *err)
{
    const uint32_t ranks = request->ranks == 0 ? 1 : request->ranks;
    const bool nodes = request->ranks_per_node > 0 && request->ranks_per_node < ranks;
    const bool nccl =
        request->joined == TDM_JOINED_NCCL ||
        (request->joined == TDM_JOINED_AS_FITS && nodes && (*machine)->nccl_base_bytes > 0);
    const struct tdm_joined joined = {
        .channels = !nccl || ranks == 1      ? 0
                    : request->channels == 0 ? TDM_NCCL_CHANNELS
                                             : request->channels,
        .ranks = ranks,
        .ranks_per_node = nodes ? request->ranks_per_node : ranks,
        .staging_bytes = ranks == 1 ? 0 : (ranks - 1) * tdm_team_window_bytes(ranks)};
    return tdm_machine_join(&joined, machine, err);
}

/* Loads model and machine: the request's, or else those of `like`. */
static enum tdm_status load(const struct tdm_request *request, struct tdm_model **model,
                            struct tdm_machine **machine, struct tdm_error *err)
{
    const struct tdm_schedule *like = request->like;
    enum tdm_status status = request->model != NULL
                                 ? tdm_model_load(request->model, model, err)
                                 : tdm_model_from_config(request->like_path, like->model->name,
                                                         like->model->config, model, err);
    if (status == TDM_OK)
        status = request->machine != NULL
                     ? tdm_machine_load(request->machine, machine, err)
                     : tdm_machine_from_json(request->like_path, like->machine->description,
                                             machine, err);
    return status == TDM_OK ? join(request, machine, err) : status;
}

/* Copies what the schedule takes over from `like`, before --set changes some of it. */
static void take_like(const struct tdm_request *request, struct tdm_schedule *schedule,
                      struct tdm_pins *pins)
{
    const struct tdm_schedule *like = request->like;
    tdm_shared_state_take(schedule, like);
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        pins->has_home[state] = true;
    pins->has_weight_slices = like->ranks > 1;
    pins->weight_slices = like->sliced_weights;
    /* equal dtypes make losses comparable */
    schedule->dtypes.activations = like->dtypes.activations;
    schedule->dtypes.kv = like->dtypes.kv;
    schedule->dtypes.logits = like->dtypes.logits;
    if (request->budget == TDM_BUDGET_NONE && !names_selector(request)) {
        schedule->selector = like->selector;
        schedule->page_tokens = like->page_tokens;
        if (like->selector.kind == TDM_SELECT_TOP_K) /* queries see their chunk */
            pins->chunk_tokens = like->chunk_tokens;
    }
    if (request->machine == NULL) {
        schedule->memory_bytes = like->memory_bytes;
        schedule->host_memory_bytes = like->host_memory_bytes;
    }
}

/* Checks that --set and MODEL agree with `like` where they must. */
static enum tdm_status check_like(const struct tdm_request *request,
                                  const struct tdm_schedule *schedule, struct tdm_error *err)
{
    if (strcmp(schedule->model->digest, request->like->model->digest) != 0) {
        tdm_fail(err, TDM_USAGE, "plan: %s is another model than %s of --like %s", request->model,
                 request->like->model->name, request->like_path);
        return tdm_hint(err, "leave MODEL out");
    }
    enum tdm_status status =
        tdm_shared_state_check("plan", schedule, request->like_path, request->like, err);
    if (status == TDM_OK)
        return TDM_OK;
    err->status = TDM_USAGE; /* it came from the command line */
    tdm_hint(err, "leave out what --like says: the model, the optimizer, and dtypes and homes of "
                  "weights, master and moments");
    return TDM_USAGE;
}

/* Takes the snapshot from the limit on host memory. */
static enum tdm_status leave_snapshot(struct tdm_schedule *schedule, struct tdm_error *err)
{
    const uint64_t bytes = tdm_schedule_state_bytes(schedule);
    const uint64_t least = tdm_machine_far(schedule->machine)->runtime_bytes;
    char needs[TDM_FORMAT_SIZE], runtime[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE];
    if (schedule->host_memory_bytes < tdm_size_add(bytes, least)) {
        tdm_fail(err, TDM_INFEASIBLE,
                 "--snapshot: the state takes %s beside %s of the runtime, of %s of host memory",
                 tdm_format_bytes(bytes, needs), tdm_format_bytes(least, runtime),
                 tdm_format_bytes(schedule->host_memory_bytes, has));
        return tdm_hint(err, "without --snapshot checkpoints are written between two steps");
    }
    schedule->host_memory_bytes -= bytes;
    schedule->snapshot_bytes = bytes;
    return TDM_OK;
}

enum tdm_status tdm_request_make(const struct tdm_request *request, struct tdm_schedule **out,
                                 struct tdm_pins *pins, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    *pins = (struct tdm_pins){.unchecked = request->unchecked,
                              .without = request->without,
                              .effort = (unsigned)request->effort,
                              .ladder = request->ladder,
                              .program_path = request->program_path};
    enum tdm_status status = load(request, &model, &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, request->context, &schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
        return status;
    }
    schedule->pass = request->pass;
    if (request->like != NULL) {
        take_like(request, schedule, pins);
    } else {
        tdm_schedule_set_optimizer(schedule, request->optimizer);
        tdm_schedule_set_clip(schedule, request->clip);
    }
    status = set_limits(request, schedule, err);
    if (status == TDM_OK)
        status = tdm_schedule_set_sequences(schedule, (uint32_t)request->sequences,
                                            request->context, err);
    schedule->splits_by_position =
        request->sequences > 1 && request->ranks <= 1 && request->pass == TDM_TRAIN;
    if (status == TDM_OK)
        status = apply_keys(request, schedule, pins, err);
    if (status == TDM_OK)
        status = set_budget(request, schedule, pins, err);
    if (status == TDM_OK && request->like != NULL) {
        schedule->sliced_weights = pins->weight_slices;
        status = check_like(request, schedule, err);
        schedule->sliced_weights = false; /* what ranks choose is set when there are any */
    }
    if (status == TDM_OK && pins->gradient_slots > 1 && request->ranks <= 1)
        status = tdm_fail(err, TDM_USAGE,
                          "--set rings.gradients: one rank need not sum gradients over others; use "
                          "it with --ranks");
    if (status == TDM_OK && schedule->rings.ahead > 0 &&
        (request->ranks > 1 || request->pass != TDM_TRAIN))
        status = tdm_fail(err, TDM_USAGE,
                          "--set rings.ahead: K and V are made ahead in the backward of one rank");
    if (status == TDM_OK && pins->weight_slices && request->ranks <= 1)
        status = tdm_fail(err, TDM_USAGE,
                          "--set weights.sliced: one rank has all weights; use it with --ranks");
    /* state moves too, or tdm_schedule_check() says why not */
    if (status == TDM_OK && tdm_is_far(schedule->optimizer.on))
        tdm_host_homes(schedule, pins, schedule->homes, err);
    if (status == TDM_OK && tdm_schedule_check(schedule, "--set", err) != TDM_OK)
        status = err->status = TDM_USAGE; /* it came from the command line */
    if (status == TDM_OK && request->snapshot)
        status = leave_snapshot(schedule, err);
    if (status != TDM_OK) {
        tdm_schedule_free(schedule);
        tdm_pins_free(pins);
        return status;
    }
    *out = schedule;
    return TDM_OK;
}
