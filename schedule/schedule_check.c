/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a schedule that need no lowering. */
#include "schedule/schedule_check.h"

#include "ops/pages.h"
#include "ops/selector_fields.h"
#include "schedule/gather.h"
#include "schedule/legality.h"
#include "schedule/optimizer.h"
#include "schedule/slices.h"

#include <stdio.h>

#define MAX_SEQUENCES 65536u
#define MAX_PREFETCH 16u
#define MAX_TOKENS ((uint64_t)1 << 40)

/* Can tensors of values be stored in this dtype? */
static bool is_value(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32 || dtype == TDM_DTYPE_BF16;
}

static enum tdm_status check_dtypes(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    const struct {
        const char *name;
        enum tdm_dtype dtype;
    } values[] = {{"weights", dtypes->weights},
                  {"activations", dtypes->activations},
                  {"kv", dtypes->kv},
                  {"kv_gradients", dtypes->kv_gradients},
                  {"gradients", dtypes->gradients},
                  {"logits", dtypes->logits}};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (!is_value(values[i].dtype))
            return tdm_fail(err, TDM_INPUT, "%s: \"dtypes.%s\" is %s; expected bf16 or fp32", file,
                            values[i].name, tdm_dtype_name(values[i].dtype));
    return TDM_OK;
}

/* A pass without a backward stores nothing for it. A field that says otherwise is a mistake. */
static enum tdm_status check_evaluate(const struct tdm_schedule *schedule, uint32_t number,
                                      const char *file, struct tdm_error *err)
{
    const struct tdm_group *group = &schedule->groups[number];
    bool keeps_kv = schedule->order == TDM_LAYER_MAJOR && group->kv == TDM_KV_KEEP;
    const char *field = NULL, *due = NULL;
    if (group->kept != TDM_SET_INPUT)
        field = "kept", due = "input";
    else if (group->held != TDM_SET_INPUT)
        field = "held", due = "input";
    else if (group->input_place != TDM_DEVICE)
        field = "input_place", due = "device";
    else if (keeps_kv)
        field = "kv", due = "recompute";
    else if (group->kv_place != TDM_DEVICE)
        field = "kv_place", due = "device";
    else if (group->kv_gradients_place != TDM_DEVICE)
        field = "kv_gradients_place", due = "device";
    else if (group->kept_place != TDM_DEVICE)
        field = "kept_place", due = "device";
    else if (group->held_place != TDM_DEVICE)
        field = "held_place", due = "device";
    if (field == NULL)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT, "%s: \"groups[%u].%s\" must be %s: the pass evaluate stores nothing",
             file, number, field, due);
    return tdm_hint(err, "tidemark plan MODEL --context N --pass evaluate writes one");
}

static enum tdm_status check_groups(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err)
{
    uint64_t layers = 0;
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        if (group->layers == 0)
            return tdm_fail(err, TDM_INPUT, "%s: group %u has no layers", file, i);
        layers += group->layers;
        if (schedule->pass == TDM_EVALUATE && check_evaluate(schedule, i, file, err) != TDM_OK)
            return TDM_INPUT;
        if (group->held_device_chunks > 0 && group->held_place == TDM_DEVICE)
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"groups[%u].held_device_chunks\" is %u, but \"held_place\" is "
                            "device, where all chunks are; it must be 0",
                            file, i, group->held_device_chunks);
        const char *refusal = tdm_group_refusal(schedule->order, group);
        if (refusal != NULL)
            return tdm_fail(err, TDM_INPUT, "%s: group %u %s", file, i, refusal);
    }
    if (layers != schedule->model->layers) {
        tdm_fail(err, TDM_INPUT, "%s: \"groups\" have %llu layers, the model has %u", file,
                 (unsigned long long)layers, schedule->model->layers);
        return tdm_hint(err, "the sizes of all groups must add up to %u", schedule->model->layers);
    }
    return TDM_OK;
}

/* Everything that is not on the device is copied to it and back: both links must exist. */
static enum tdm_status check_place(const struct tdm_schedule *schedule, enum tdm_place place,
                                   const char *file, struct tdm_error *err)
{
    const struct tdm_machine *machine = schedule->machine;
    const struct tdm_topology *topology = &machine->topology;
    bool linked = tdm_link_find(topology, place, TDM_DEVICE) != TDM_NO_LINK &&
                  tdm_link_find(topology, TDM_DEVICE, place) != TDM_NO_LINK;
    if (place == TDM_DEVICE || linked)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT,
             "%s: place %s is used, but machine %s has no links between it and the device", file,
             tdm_place_name(topology, place), machine->name);
    return tdm_hint(err, "add links from and to the device to its description, or choose the host");
}

static enum tdm_status check_places(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < schedule->group_count && status == TDM_OK; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        const enum tdm_place places[] = {group->input_place, group->kept_place, group->held_place,
                                         group->kv_place, group->kv_gradients_place};
        for (size_t k = 0; k < sizeof(places) / sizeof(places[0]) && status == TDM_OK; k++)
            status = check_place(schedule, places[k], file, err);
    }
    for (int state = 0; state < TDM_STATES && status == TDM_OK; state++) {
        const struct tdm_home *home = &schedule->homes[state];
        status = check_place(schedule, home->embedding, file, err);
        if (status == TDM_OK)
            status = check_place(schedule, home->head, file, err);
    }
    return status;
}

static enum tdm_status check_homes(const struct tdm_schedule *schedule, const char *file,
                                   struct tdm_error *err)
{
    const struct tdm_model *model = schedule->model;
    for (int state = 0; state < TDM_STATES; state++)
        if (schedule->homes[state].device_layers > model->layers)
            return tdm_fail(err, TDM_INPUT, "%s: \"homes.%s.device_layers\" is %u of %u layers",
                            file, tdm_state_name((enum tdm_state)state),
                            schedule->homes[state].device_layers, model->layers);
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        if (tdm_schedule_home(schedule, TDM_STATE_GRADIENTS, unit) != TDM_DEVICE &&
            !tdm_gradients_stay(schedule))
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"homes.gradients\" has the host, but updates take gradients as "
                            "soon as they are complete; it must be the device, or "
                            "\"optimizer.when\" end",
                            file);
    const struct {
        const char *name;
        uint32_t slots;
    } rings[] = {{"weights", schedule->rings.weights},
                 {"optimizer", schedule->rings.optimizer},
                 {"host_gradients", schedule->rings.host_gradients},
                 {"stashed", schedule->rings.stashed},
                 {"kv", schedule->rings.kv}};
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
        if (rings[i].slots == 0 || rings[i].slots > TDM_MAX_RING)
            return tdm_fail(err, TDM_INPUT, "%s: \"rings.%s\" is %u; use 1 to %u slots", file,
                            rings[i].name, rings[i].slots, TDM_MAX_RING);
    return TDM_OK;
}

/* The fewest ranks of a row that can divide the heads; 0: none can. */
static uint32_t least_head_ranks(const struct tdm_schedule *schedule)
{
    for (uint32_t parts = 2; parts < schedule->ranks && parts <= TDM_MAX_HEAD_RANKS; parts++)
        if (schedule->ranks % parts == 0 && schedule->model->kv_heads % parts == 0)
            return parts;
    return 0;
}

/* Ranks that divide the heads of attention. */
static enum tdm_status check_heads(const struct tdm_schedule *schedule, const char *file,
                                   struct tdm_error *err)
{
    const struct tdm_model *model = schedule->model;
    const char *name = tdm_exchange_kind_name(schedule->exchange);
    const uint32_t parts = tdm_schedule_head_parts(schedule);
    const bool rows = tdm_exchange_kind_has_rows(schedule->exchange);
    if (rows && (parts < 2 || parts >= schedule->ranks || schedule->ranks % parts != 0 ||
                 parts > TDM_MAX_HEAD_RANKS)) {
        tdm_fail(
            err, TDM_INPUT,
            "%s: \"head_ranks\" (--set exchange.heads of plan) is %u; \"exchange\" %s needs a divisor "
            "of the %u ranks from 2 to %u that is less than all",
            file, schedule->head_ranks, name, schedule->ranks, TDM_MAX_HEAD_RANKS);
        const uint32_t due = least_head_ranks(schedule);
        return due == 0 ? tdm_hint(err, "use exchange=heads or gather")
                        : tdm_hint(err,
                                   "write \"head_ranks\": %u, which is --set exchange.heads=%u of "
                                   "plan, or use another exchange",
                                   due, due);
    }
    if (model->kv_heads % parts != 0) {
        tdm_fail(err, TDM_INPUT,
                 "%s: \"exchange\" is %s, but %u ranks do not divide the %u KV heads of %s", file,
                 name, parts, model->kv_heads, model->name);
        return tdm_hint(err, "use as many ranks as divide them, or exchange=gather");
    }
    if (rows && schedule->deal == TDM_DEAL_GREEDY)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"exchange\" is %s, with which the chunks of ranks that divide heads "
                        "lie in a row, but \"deal\" is greedy; use another",
                        file, name);
    if (tdm_schedule_lists(schedule) == TDM_SELECT_DENSE)
        return TDM_OK;
    return tdm_fail(
        err, TDM_INPUT,
        "%s: \"exchange\" is %s, with which a rank attends for the chunks of other ranks, "
        "but \"selector.kind\" is %s, whose page lists it has for its own chunks alone",
        file, name, tdm_selector_name(schedule->selector.kind));
}

/* Ranks whose K and V go around. */
static enum tdm_status check_ring(const struct tdm_schedule *schedule, const char *file,
                                  struct tdm_error *err)
{
    if (schedule->deal == TDM_DEAL_CONTIGUOUS) {
        tdm_fail(err, TDM_INPUT,
                 "%s: \"exchange\" is %s, but \"deal\" is contiguous, where a round is one chunk: "
                 "one rank would attend after the other",
                 file, tdm_exchange_kind_name(schedule->exchange));
        return tdm_hint(err, "use another deal, or exchange=gather");
    }
    if (tdm_schedule_lists(schedule) == TDM_SELECT_DENSE)
        return TDM_OK;
    return tdm_fail(err, TDM_INPUT,
                    "%s: \"exchange\" is %s, with which K and V come one chunk at a time, but "
                    "\"selector.kind\" is %s, whose page lists are of all chunks",
                    file, tdm_exchange_kind_name(schedule->exchange),
                    tdm_selector_name(schedule->selector.kind));
}

/* What several ranks cannot do yet. */
static enum tdm_status check_ranks(const struct tdm_schedule *schedule, const char *file,
                                   struct tdm_error *err)
{
    if (schedule->ranks == 0 || schedule->ranks > TDM_MAX_RANKS)
        return tdm_fail(err, TDM_INPUT, "%s: \"ranks\" is %u; expected 1 to %u", file,
                        schedule->ranks, TDM_MAX_RANKS);
    if (schedule->sliced_weights && schedule->ranks == 1)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"sliced_weights\" is true, but \"ranks\" is 1, and one rank has all "
                        "weights; it must be false",
                        file);
    if (tdm_weights_sliced(schedule) && schedule->optimizer.on != TDM_DEVICE)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"sliced_weights\" is true, but \"optimizer.on\" is %s, which updates "
                        "whole weights; it must be device",
                        file, tdm_place_name(&schedule->machine->topology, schedule->optimizer.on));
    if (schedule->rings.gradients < 1 || schedule->rings.gradients > 2)
        return tdm_fail(err, TDM_INPUT, "%s: \"rings.gradients\" is %u; use 1 or 2", file,
                        schedule->rings.gradients);
    if (schedule->rings.gradients > 1 && schedule->ranks == 1)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"rings.gradients\" is %u, but one rank need not sum gradients over "
                        "others; it must be 1",
                        file, schedule->rings.gradients);
    if (schedule->ranks > 1 && schedule->order != TDM_LAYER_MAJOR)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"order\" is %s, but several ranks share a layer's K and V in rounds, "
                        "so they need layer-major",
                        file, tdm_order_name(schedule->order));
    if (schedule->head_ranks > 0 && !tdm_exchange_kind_has_rows(schedule->exchange))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"head_ranks\" is %u, but \"exchange\" is %s; it goes "
                        "with " TDM_EXCHANGE_ROW_NAMES,
                        file, schedule->head_ranks, tdm_exchange_kind_name(schedule->exchange));
    enum tdm_status status =
        tdm_schedule_divides_heads(schedule) ? check_heads(schedule, file, err) : TDM_OK;
    if (status == TDM_OK && schedule->ranks > 1 && tdm_schedule_rings(schedule))
        status = check_ring(schedule, file, err);
    return status;
}

enum tdm_status tdm_schedule_check(const struct tdm_schedule *schedule, const char *file,
                                   struct tdm_error *err)
{
    if (schedule->sequence_count == 0 || schedule->sequence_count > MAX_SEQUENCES)
        return tdm_fail(err, TDM_INPUT, "%s: \"sequences\" has %u entries; expected 1 to %u", file,
                        schedule->sequence_count, MAX_SEQUENCES);
    uint64_t tokens = tdm_schedule_tokens(schedule);
    for (uint32_t i = 0; i < schedule->sequence_count; i++) {
        if (schedule->sequences[i].tokens == 0)
            return tdm_fail(err, TDM_INPUT, "%s: \"sequences[%u]\" has no tokens", file, i);
        if (schedule->documents_of_text && schedule->sequences[i].document_count > 1)
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"sequences[%u]\" has documents, but \"documents\" says that they "
                            "come from the text",
                            file, i);
    }
    if (tokens > MAX_TOKENS)
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"sequences\" have %llu tokens in all; at most 2^40 are supported",
                        file, (unsigned long long)tokens);
    if (schedule->chunk_tokens == 0 || schedule->chunk_tokens > MAX_TOKENS)
        return tdm_fail(err, TDM_INPUT, "%s: \"chunk_tokens\" is %llu; expected 1 to 2^40", file,
                        (unsigned long long)schedule->chunk_tokens);
    if (schedule->page_tokens == 0 || schedule->page_tokens > 65536)
        return tdm_fail(err, TDM_INPUT, "%s: \"page_tokens\" is %llu; expected 1 to 65536", file,
                        (unsigned long long)schedule->page_tokens);
    char selector[512];
    snprintf(selector, sizeof(selector), "%s: selector", file);
    enum tdm_status status =
        tdm_selector_check(&schedule->selector, schedule->page_tokens, selector, err);
    if (status != TDM_OK)
        return status;
    if (schedule->documents_of_text && schedule->selector.kind == TDM_SELECT_BLOCK) {
        tdm_fail(
            err, TDM_INPUT,
            "%s: \"selector.kind\" is block, whose blocks begin with the documents; the documents must "
            "be known when the step is planned, not come from the text",
            file);
        return tdm_hint(err, "use another selector, or --set documents=N");
    }
    if (tdm_schedule_lists(schedule) != TDM_SELECT_DENSE &&
        (tokens / schedule->chunk_tokens + 1) *
                (schedule->chunk_tokens / schedule->page_tokens + 1) >
            TDM_PAGE_NUMBER)
        return tdm_fail(err, TDM_INPUT, "%s: the sequences have more than 2^31 pages", file);
    if (schedule->head_tile_tokens == 0 || schedule->head_tile_tokens > MAX_TOKENS)
        return tdm_fail(err, TDM_INPUT, "%s: \"head_tile_tokens\" is %llu; expected 1 to 2^40",
                        file, (unsigned long long)schedule->head_tile_tokens);
    if (schedule->head_tile_vocabulary == 0 || schedule->head_tile_vocabulary > UINT32_MAX)
        return tdm_fail(err, TDM_INPUT, "%s: \"head_tile_vocabulary\" is %llu; use 1 to 2^32 - 1",
                        file, (unsigned long long)schedule->head_tile_vocabulary);
    status = check_ranks(schedule, file, err);
    if (status != TDM_OK)
        return status;
    if (schedule->prefetch > MAX_PREFETCH)
        return tdm_fail(err, TDM_INPUT, "%s: \"prefetch\" is %u; expected 0 to %u", file,
                        schedule->prefetch, MAX_PREFETCH);
    status = check_dtypes(schedule, file, err);
    if (status == TDM_OK)
        status = check_groups(schedule, file, err);
    if (status == TDM_OK)
        status = check_homes(schedule, file, err);
    if (status == TDM_OK)
        status = check_places(schedule, file, err);
    if (status == TDM_OK)
        status = tdm_gather_check(schedule, file, err);
    return status == TDM_OK ? tdm_optimizer_check(schedule, file, err) : status;
}
