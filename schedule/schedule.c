/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule: names, defaults, and questions about it. */
#include "schedule/schedule.h"

#include "base/size.h"
#include "ops/pages.h"
#include "schedule/optimizer.h"

#include <stdlib.h>
#include <string.h>

static const char *const purpose_names[TDM_PURPOSES] = {"train", "evaluate"};
static const char *const order_names[TDM_ORDERS] = {"layer-major", "chunk-major"};
static const char *const kv_names[TDM_KVS] = {"recompute", "keep"};
static const char *const deal_names[TDM_DEALS] = {"snake", "stripes", "contiguous", "greedy"};
static const char *const exchange_names[TDM_EXCHANGES] = {
    "gather", "heads", "ring", "queries", "heads+gather", "heads+ring", "heads+queries"};

/* What an exchange is made of. */
static const struct {
    bool heads, gather, ring, queries;
} exchanges[TDM_EXCHANGES] = {
    [TDM_EXCHANGE_GATHER] = {.gather = true},
    [TDM_EXCHANGE_HEADS] = {.heads = true},
    [TDM_EXCHANGE_RING] = {.ring = true},
    [TDM_EXCHANGE_QUERIES] = {.ring = true, .queries = true},
    [TDM_EXCHANGE_HEADS_GATHER] = {.heads = true, .gather = true},
    [TDM_EXCHANGE_HEADS_RING] = {.heads = true, .ring = true},
    [TDM_EXCHANGE_HEADS_QUERIES] = {.heads = true, .ring = true, .queries = true},
};

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

const char *tdm_deal_name(enum tdm_deal deal)
{
    return deal_names[deal];
}

const char *tdm_exchange_kind_name(enum tdm_exchange_kind exchange)
{
    return exchange_names[exchange];
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

bool tdm_deal_parse(const char *name, enum tdm_deal *deal)
{
    int found = find_name(deal_names, TDM_DEALS, name);
    if (found >= 0)
        *deal = (enum tdm_deal)found;
    return found >= 0;
}

bool tdm_exchange_kind_parse(const char *name, enum tdm_exchange_kind *exchange)
{
    int found = find_name(exchange_names, TDM_EXCHANGES, name);
    if (found >= 0)
        *exchange = (enum tdm_exchange_kind)found;
    return found >= 0;
}

bool tdm_exchange_kind_has_rows(enum tdm_exchange_kind exchange)
{
    return exchanges[exchange].heads && (exchanges[exchange].gather || exchanges[exchange].ring);
}

uint32_t tdm_schedule_head_parts(const struct tdm_schedule *schedule)
{
    if (tdm_exchange_kind_has_rows(schedule->exchange) && schedule->ranks > 1)
        return schedule->head_ranks;
    return schedule->exchange == TDM_EXCHANGE_HEADS ? schedule->ranks : 1;
}

bool tdm_schedule_divides_heads(const struct tdm_schedule *schedule)
{
    return schedule->ranks > 1 && exchanges[schedule->exchange].heads;
}

bool tdm_schedule_gathers(const struct tdm_schedule *schedule)
{
    return schedule->ranks > 1 && exchanges[schedule->exchange].gather;
}

bool tdm_schedule_rings(const struct tdm_schedule *schedule)
{
    return exchanges[schedule->exchange].ring;
}

bool tdm_schedule_passes_queries(const struct tdm_schedule *schedule)
{
    return exchanges[schedule->exchange].queries;
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
    schedule->ranks = 1;
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
                                                          .weight_decay = 0.1,
                                                          .decayed = TDM_DECAYED_DEFAULT};
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

uint32_t tdm_schedule_sharers(const struct tdm_schedule *schedule, enum tdm_place place)
{
    const uint32_t of_node =
        schedule->ranks_per_node == 0 ? schedule->ranks : schedule->ranks_per_node;
    return schedule->machine->topology.places[place].host_memory ? of_node : 1;
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

uint64_t tdm_schedule_state_bytes(const struct tdm_schedule *schedule)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    uint64_t each = tdm_dtype_bytes(dtypes->weights);
    if (tdm_schedule_keeps(schedule, TDM_STATE_MASTER))
        each += tdm_dtype_bytes(dtypes->master);
    if (tdm_schedule_keeps(schedule, TDM_STATE_MOMENTS))
        each += 2 * tdm_dtype_bytes(dtypes->moments);
    return tdm_size_mul(schedule->model->parameters, each);
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
