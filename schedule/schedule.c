/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule: names, defaults, and the checks that need no lowering. */
#include "schedule/schedule.h"

#include "base/size.h"
#include "ops/pages.h"
#include "ops/selector_fields.h"
#include "schedule/gather.h"
#include "schedule/legality.h"
#include "schedule/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQUENCES 65536u
#define MAX_PREFETCH 16u
#define MAX_TOKENS ((uint64_t)1 << 40)

static const char *const purpose_names[TDM_PURPOSES] = {"train", "evaluate"};
static const char *const order_names[TDM_ORDERS] = {"layer-major", "chunk-major"};
static const char *const kv_names[TDM_KVS] = {"recompute", "keep"};
static const char *const state_names[TDM_STATES] = {"weights", "master", "moments", "gradients"};

const char *tdm_purpose_name(enum tdm_purpose pass)
{
    return purpose_names[pass];
}

const char *tdm_order_name(enum tdm_order order)
{
    return order_names[order];
}

const char *tdm_kv_name(enum tdm_kv kv)
{
    return kv_names[kv];
}

const char *tdm_state_name(enum tdm_state state)
{
    return state_names[state];
}

/* Index of a name in a list, or -1. */
static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

bool tdm_purpose_parse(const char *name, enum tdm_purpose *pass)
{
    int found = find_name(purpose_names, TDM_PURPOSES, name);
    if (found >= 0)
        *pass = (enum tdm_purpose)found;
    return found >= 0;
}

bool tdm_order_parse(const char *name, enum tdm_order *order)
{
    int found = find_name(order_names, TDM_ORDERS, name);
    if (found >= 0)
        *order = (enum tdm_order)found;
    return found >= 0;
}

bool tdm_kv_parse(const char *name, enum tdm_kv *kv)
{
    int found = find_name(kv_names, TDM_KVS, name);
    if (found >= 0)
        *kv = (enum tdm_kv)found;
    return found >= 0;
}

uint64_t tdm_schedule_limit(const struct tdm_schedule *schedule, enum tdm_place place)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    return place == TDM_DEVICE      ? schedule->memory_bytes
           : place == topology->far ? schedule->host_memory_bytes
                                    : topology->places[place].capacity_bytes;
}

enum tdm_status tdm_schedule_new(struct tdm_model *model, struct tdm_machine *machine,
                                 uint64_t context, struct tdm_schedule **out, struct tdm_error *err)
{
    if (model->sized_only) {
        char unknown[TDM_MODEL_UNKNOWN];
        tdm_fail(err, TDM_INPUT, "%s: %s cannot be planned or run: not implemented are %s",
                 model->name, model->architecture, tdm_model_unknown(model, unknown));
        return tdm_hint(err, "tidemark predict says what other systems need for it");
    }
    struct tdm_schedule *schedule = calloc(1, sizeof(*schedule));
    if (schedule == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a schedule");
    enum tdm_status status = tdm_schedule_set_sequences(schedule, 1, context, err);
    if (status != TDM_OK) {
        free(schedule);
        return status;
    }
    schedule->order = TDM_LAYER_MAJOR;
    schedule->chunk_tokens = context < 4096 ? context : 4096;
    schedule->page_tokens = 128;
    schedule->head_tile_tokens = schedule->chunk_tokens;
    schedule->head_tile_vocabulary = model->vocabulary;
    schedule->prefetch = 2;
    schedule->dtypes = (struct tdm_dtypes){.weights = TDM_DTYPE_BF16,
                                           .master = TDM_DTYPE_REMAINDER16,
                                           .activations = TDM_DTYPE_BF16,
                                           .kv = TDM_DTYPE_BF16,
                                           .kv_gradients = TDM_DTYPE_FP32,
                                           .gradients = TDM_DTYPE_FP32,
                                           .moments = TDM_DTYPE_FP32,
                                           .logits = TDM_DTYPE_BF16};
    schedule->optimizer = (struct tdm_optimizer_settings){.kind = TDM_OPTIMIZER_ADAMW,
                                                          .learning_rate = 3e-4,
                                                          .beta1 = 0.9,
                                                          .beta2 = 0.95,
                                                          .epsilon = 1e-8,
                                                          .weight_decay = 0.1};
    for (int state = 0; state < TDM_STATES; state++)
        schedule->homes[state] = (struct tdm_home){model->layers, TDM_DEVICE, TDM_DEVICE};
    schedule->rings = (struct tdm_rings)TDM_DEFAULT_RINGS;
    schedule->memory_bytes = machine->topology.places[TDM_DEVICE].capacity_bytes;
    schedule->host_memory_bytes = tdm_machine_far(machine)->capacity_bytes;
    schedule->model = model;
    schedule->group_count = 0;

    uint32_t *ones = malloc(((size_t)model->layers + 1) * sizeof(*ones));
    if (ones == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for a schedule");
    for (uint32_t i = 0; ones != NULL && i < model->layers; i++)
        ones[i] = 1;
    if (status == TDM_OK)
        status = tdm_schedule_set_groups(schedule, model->layers, ones, err);
    free(ones);
    if (status != TDM_OK) {
        schedule->model = NULL;
        tdm_schedule_free(schedule);
        return status;
    }
    schedule->machine = machine;
    *out = schedule;
    return TDM_OK;
}

/* Everything on the device, set `input`. */
static struct tdm_group default_group(uint32_t layers)
{
    return (struct tdm_group){.layers = layers,
                              .input_place = TDM_DEVICE,
                              .kept = TDM_SET_INPUT,
                              .kept_place = TDM_DEVICE,
                              .held = TDM_SET_INPUT,
                              .held_place = TDM_DEVICE,
                              .kv_place = TDM_DEVICE};
}

enum tdm_status tdm_schedule_set_groups(struct tdm_schedule *schedule, uint32_t count,
                                        const uint32_t *layers, struct tdm_error *err)
{
    struct tdm_group *groups = calloc((size_t)count + 1, sizeof(*groups));
    if (groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u groups", count);
    for (uint32_t i = 0; i < count; i++)
        groups[i] = default_group(layers[i]);
    free(schedule->groups);
    schedule->groups = groups;
    schedule->group_count = count;
    tdm_schedule_set_order(schedule, schedule->order);
    return TDM_OK;
}

void tdm_schedule_set_order(struct tdm_schedule *schedule, enum tdm_order order)
{
    schedule->order = order;
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        schedule->groups[i].kv = order == TDM_CHUNK_MAJOR ? TDM_KV_KEEP : TDM_KV_RECOMPUTE;
        schedule->groups[i].kv_place = schedule->groups[i].kv_gradients_place = TDM_DEVICE;
    }
}

void tdm_schedule_set_evaluate(struct tdm_schedule *schedule)
{
    schedule->pass = TDM_EVALUATE;
    for (uint32_t i = 0; i < schedule->group_count; i++)
        schedule->groups[i] = default_group(schedule->groups[i].layers);
    tdm_schedule_set_order(schedule, schedule->order);
}

enum tdm_status tdm_schedule_set_sequences(struct tdm_schedule *schedule, uint32_t count,
                                           uint64_t tokens, struct tdm_error *err)
{
    struct tdm_sequence *sequences = tdm_sequences_new(count, tokens);
    if (sequences == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u sequences", count);
    tdm_sequences_free(schedule->sequences, schedule->sequence_count);
    schedule->sequences = sequences;
    schedule->sequence_count = count;
    return TDM_OK;
}

void tdm_schedule_free(struct tdm_schedule *schedule)
{
    if (schedule == NULL)
        return;
    tdm_model_free(schedule->model);
    tdm_machine_free(schedule->machine);
    tdm_sequences_free(schedule->sequences, schedule->sequence_count);
    free(schedule->groups);
    free(schedule);
}

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
                            file, state_names[state], schedule->homes[state].device_layers,
                            model->layers);
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
                 {"stashed", schedule->rings.stashed},
                 {"kv", schedule->rings.kv}};
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
        if (rings[i].slots == 0 || rings[i].slots > TDM_MAX_RING)
            return tdm_fail(err, TDM_INPUT, "%s: \"rings.%s\" is %u; use 1 to %u slots", file,
                            rings[i].name, rings[i].slots, TDM_MAX_RING);
    return TDM_OK;
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

uint64_t tdm_schedule_tokens(const struct tdm_schedule *schedule)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        tokens = tdm_size_add(tokens, schedule->sequences[i].tokens);
    return tokens;
}

uint64_t tdm_schedule_trained_tokens(const struct tdm_schedule *schedule)
{
    uint64_t tokens = tdm_schedule_tokens(schedule);
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        tokens -= schedule->sequences[i].document_count - 1;
    return tokens;
}

uint32_t tdm_home_far_below(const struct tdm_home *home, uint32_t layers, uint32_t layer)
{
    return (uint32_t)((uint64_t)layer * (layers - home->device_layers) / layers);
}

static bool is_far(const struct tdm_home *home, uint32_t layers, uint32_t layer)
{
    return tdm_home_far_below(home, layers, layer + 1) > tdm_home_far_below(home, layers, layer);
}

uint32_t tdm_home_slot(const struct tdm_home *home, uint32_t layers, uint32_t layer)
{
    uint32_t far = tdm_home_far_below(home, layers, layer);
    return is_far(home, layers, layer) ? far : layer - far;
}

uint32_t tdm_home_layer(const struct tdm_home *home, uint32_t layers, enum tdm_place place,
                        uint32_t slot)
{
    uint32_t layer = 0;
    while (layer + 1 < layers && (is_far(home, layers, layer) != (place != TDM_DEVICE) ||
                                  tdm_home_slot(home, layers, layer) != slot))
        layer++;
    return layer;
}

bool tdm_schedule_keeps(const struct tdm_schedule *schedule, enum tdm_state state)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    return state == TDM_STATE_WEIGHTS ||
           (state == TDM_STATE_MASTER && dtypes->master != TDM_DTYPE_NONE) ||
           (state == TDM_STATE_MOMENTS && dtypes->moments != TDM_DTYPE_NONE);
}

enum tdm_place tdm_schedule_home(const struct tdm_schedule *schedule, enum tdm_state state,
                                 uint32_t unit)
{
    const struct tdm_home *home = &schedule->homes[state];
    if (unit < schedule->model->layers)
        return is_far(home, schedule->model->layers, unit) ? schedule->machine->topology.far
                                                           : TDM_DEVICE;
    return unit == tdm_model_embedding_unit(schedule->model) ? home->embedding : home->head;
}

void tdm_schedule_set_home(struct tdm_schedule *schedule, enum tdm_state state,
                           uint32_t device_layers, enum tdm_place rest)
{
    schedule->homes[state] = (struct tdm_home){device_layers, rest, rest};
}

uint32_t tdm_schedule_group_of(const struct tdm_schedule *schedule, uint32_t layer)
{
    uint32_t group = 0;
    for (uint32_t end = schedule->groups[0].layers; layer >= end;)
        end += schedule->groups[++group].layers;
    return group;
}

uint32_t tdm_schedule_first_layer(const struct tdm_schedule *schedule, uint32_t group)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < group; i++)
        first += schedule->groups[i].layers;
    return first;
}

struct tdm_page_rule tdm_schedule_page_rule(const struct tdm_schedule *schedule, uint32_t layer)
{
    return tdm_page_rule_in(&schedule->selector, schedule->chunk_tokens, schedule->page_tokens,
                            &schedule->model->layer_kinds[layer], layer);
}

enum tdm_selector_kind tdm_schedule_lists(const struct tdm_schedule *schedule)
{
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++) {
        enum tdm_selector_kind kind = tdm_schedule_page_rule(schedule, layer).selector.kind;
        if (tdm_selector_lists(kind))
            return kind;
    }
    return TDM_SELECT_DENSE;
}
