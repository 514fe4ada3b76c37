/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a schedule as JSON, and reads it back. */
#include "base/json.h"
#include "schedule/learning_rate.h"
#include "schedule/optimizer.h"
#include "schedule/schedule.h"
#include "schedule/schedule_check.h"
#include "ops/selector_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS ((uint64_t)1 << 40)

/* ---- writing ---- */

static json_t *count_json(uint64_t count)
{
    return json_integer((json_int_t)count);
}

/* A number of tokens, or an object if there are several documents. */
static json_t *sequence_to_json(const struct tdm_sequence *sequence)
{
    if (sequence->document_count == 1)
        return count_json(sequence->tokens);
    json_t *starts = json_array();
    for (uint32_t i = 0; i < sequence->document_count; i++)
        tdm_json_add(&starts, count_json(sequence->document_starts[i]));
    return json_pack("{s:I, s:o}", "tokens", (json_int_t)sequence->tokens, "documents", starts);
}

static json_t *groups_to_json(const struct tdm_schedule *schedule)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        json_t *object = json_pack(
            "{s:I, s:s, s:s, s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:s}", "layers",
            (json_int_t)group->layers, "input_place",
            tdm_place_name(&schedule->machine->topology, group->input_place), "kept",
            tdm_set_name(group->kept), "kept_from_chunk", (json_int_t)group->kept_from_chunk,
            "kept_place", tdm_place_name(&schedule->machine->topology, group->kept_place), "held",
            tdm_set_name(group->held), "held_from_chunk", (json_int_t)group->held_from_chunk,
            "held_place", tdm_place_name(&schedule->machine->topology, group->held_place), "kv",
            tdm_kv_name(group->kv), "kv_place",
            tdm_place_name(&schedule->machine->topology, group->kv_place), "kv_gradients_place",
            tdm_place_name(&schedule->machine->topology, group->kv_gradients_place));
        if (group->held_device_chunks > 0) /* a file without it has none */
            tdm_json_set(&object, "held_device_chunks", json_integer(group->held_device_chunks));
        tdm_json_add(&array, object);
    }
    return array;
}

static json_t *dtypes_to_json(const struct tdm_dtypes *dtypes)
{
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "weights", tdm_dtype_name(dtypes->weights),
        "master", tdm_dtype_name(dtypes->master), "activations",
        tdm_dtype_name(dtypes->activations), "kv", tdm_dtype_name(dtypes->kv), "kv_gradients",
        tdm_dtype_name(dtypes->kv_gradients), "gradients", tdm_dtype_name(dtypes->gradients),
        "moments", tdm_dtype_name(dtypes->moments), "logits", tdm_dtype_name(dtypes->logits));
}

static json_t *homes_to_json(const struct tdm_schedule *schedule)
{
    json_t *object = json_object();
    for (int state = 0; state < TDM_STATES; state++) {
        const struct tdm_home *home = &schedule->homes[state];
        tdm_json_set(&object, tdm_state_name((enum tdm_state)state),
                     json_pack("{s:I, s:s, s:s}", "device_layers", (json_int_t)home->device_layers,
                               "embedding",
                               tdm_place_name(&schedule->machine->topology, home->embedding),
                               "head", tdm_place_name(&schedule->machine->topology, home->head)));
    }
    return object;
}

static json_t *rings_to_json(const struct tdm_schedule *schedule)
{
    const struct tdm_rings *rings = &schedule->rings;
    json_t *object = json_pack("{s:I, s:I, s:I, s:I}", "weights", (json_int_t)rings->weights,
                               "optimizer", (json_int_t)rings->optimizer, "stashed",
                               (json_int_t)rings->stashed, "kv", (json_int_t)rings->kv);
    if (schedule->optimizer.on != TDM_DEVICE && rings->host_gradients != rings->optimizer)
        tdm_json_set(&object, "host_gradients", json_integer((json_int_t)rings->host_gradients));
    if (rings->gather > 0)
        tdm_json_set(&object, "gather", json_integer((json_int_t)rings->gather));
    if (rings->ahead > 0)
        tdm_json_set(&object, "ahead", json_integer((json_int_t)rings->ahead));
    if (rings->gradients > 1)
        tdm_json_set(&object, "gradients", json_integer((json_int_t)rings->gradients));
    return object;
}

static json_t *optimizer_to_json(const struct tdm_schedule *schedule)
{
    const struct tdm_optimizer_settings *optimizer = &schedule->optimizer;
    json_t *object = json_pack(
        "{s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:s, s:I, s:f, s:s, s:s, s:f}", "kind",
        tdm_optimizer_name(optimizer->kind), "learning_rate", optimizer->learning_rate, "beta1",
        optimizer->beta1, "beta2", optimizer->beta2, "epsilon", optimizer->epsilon, "weight_decay",
        optimizer->weight_decay, "warmup_steps", (json_int_t)optimizer->warmup_steps, "schedule",
        tdm_rate_schedule_name(optimizer->rate_schedule), "decay_steps",
        (json_int_t)optimizer->decay_steps, "final_learning_rate", optimizer->final_learning_rate,
        "when", tdm_when_name(optimizer->when), "clip", tdm_clip_name(optimizer->clip), "clip_norm",
        optimizer->clip_norm);
    if (optimizer->decayed != TDM_DECAYED_DEFAULT) {
        char text[TDM_DECAYED_TEXT];
        tdm_json_set(&object, "decayed", json_string(tdm_decayed_text(optimizer->decayed, text)));
    }
    if (optimizer->on != TDM_DEVICE)
        tdm_json_set(&object, "on",
                     json_string(tdm_place_name(&schedule->machine->topology, optimizer->on)));
    return object;
}

static json_t *selector_to_json(const struct tdm_selector *selector)
{
    const struct tdm_selector_field *field;
    json_t *object = json_pack("{s:s}", "kind", tdm_selector_name(selector->kind));
    for (size_t i = 0; (field = tdm_selector_field(i)) != NULL; i++)
        if (tdm_selector_has(selector->kind, field))
            tdm_json_set(&object, field->name, count_json(tdm_selector_get(selector, field)));
    return object;
}

enum tdm_status tdm_schedule_to_json(const struct tdm_schedule *schedule, const json_t *predicted,
                                     json_t **out, struct tdm_error *err)
{
    const struct tdm_model *model = schedule->model;
    json_t *sequences = json_array();
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        tdm_json_add(&sequences, sequence_to_json(&schedule->sequences[i]));
    json_t *root = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:O}, s:O, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o}",
        "format", TDM_SCHEDULE_FORMAT, "pass", tdm_purpose_name(schedule->pass), "model", "name",
        model->name, "digest", model->digest, "config", model->config, "machine",
        schedule->machine->description, "memory_bytes", count_json(schedule->memory_bytes),
        "host_memory_bytes", count_json(schedule->host_memory_bytes), "sequences", sequences,
        "order", tdm_order_name(schedule->order), "chunk_tokens",
        count_json(schedule->chunk_tokens), "page_tokens", count_json(schedule->page_tokens),
        "selector", selector_to_json(&schedule->selector), "head_tile_tokens",
        count_json(schedule->head_tile_tokens), "head_tile_vocabulary",
        count_json(schedule->head_tile_vocabulary), "prefetch", count_json(schedule->prefetch),
        "groups", groups_to_json(schedule), "homes", homes_to_json(schedule), "rings",
        rings_to_json(schedule), "dtypes", dtypes_to_json(&schedule->dtypes), "optimizer",
        optimizer_to_json(schedule));
    if (predicted != NULL)
        tdm_json_set(&root, "predicted", json_incref((json_t *)(uintptr_t)predicted));
    if (schedule->packed_bytes > 0)
        tdm_json_set(&root, "packed_bytes", count_json(schedule->packed_bytes));
    if (schedule->snapshot_bytes > 0)
        tdm_json_set(&root, "snapshot_bytes", count_json(schedule->snapshot_bytes));
    if (schedule->ranks > 1)
        tdm_json_set(&root, "ranks", count_json(schedule->ranks));
    if (schedule->ranks_per_node > 0)
        tdm_json_set(&root, "ranks_per_node", count_json(schedule->ranks_per_node));
    if (schedule->sliced_weights)
        tdm_json_set(&root, "sliced_weights", json_true());
    if (schedule->ranks > 1 && schedule->deal != TDM_DEAL_SNAKE)
        tdm_json_set(&root, "deal", json_string(tdm_deal_name(schedule->deal)));
    if (schedule->ranks > 1 && schedule->exchange != TDM_EXCHANGE_GATHER)
        tdm_json_set(&root, "exchange", json_string(tdm_exchange_kind_name(schedule->exchange)));
    if (schedule->ranks > 1 && schedule->head_ranks > 0)
        tdm_json_set(&root, "head_ranks", count_json(schedule->head_ranks));
    if (schedule->documents_of_text)
        tdm_json_set(&root, "documents", json_string("file"));
    if (schedule->splits_by_position)
        tdm_json_set(&root, "splits", json_string("position"));
    if (root == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    *out = root;
    return TDM_OK;
}

/* ---- reading ---- */

static void read_dtype(struct tdm_json_reader *reader, const char *key, enum tdm_dtype *dtype)
{
    const char *name = tdm_json_string(reader, key);
    if (name != NULL && !tdm_dtype_parse(name, dtype))
        tdm_json_fail(reader, key, "is \"%s\"; expected fp32, bf16, remainder16 or none", name);
}

static void read_place(struct tdm_json_reader *reader, const struct tdm_topology *topology,
                       const char *key, enum tdm_place *place)
{
    char places[TDM_PLACE_LIST];
    const char *name = tdm_json_string(reader, key);
    if (name != NULL && !tdm_place_parse(topology, name, place))
        tdm_json_fail(reader, key, "is \"%s\"; expected %s", name,
                      tdm_place_list(topology, false, places));
}

static void read_set(struct tdm_json_reader *reader, const char *key, enum tdm_set *set)
{
    char names[TDM_SET_LIST];
    const char *name = tdm_json_string(reader, key);
    if (name != NULL && !tdm_set_parse(name, set))
        tdm_json_fail(reader, key, "is \"%s\"; expected %s", name,
                      tdm_set_list(TDM_SET_INPUT, names, sizeof(names)));
}

static void read_kv(struct tdm_json_reader *reader, const char *key, enum tdm_kv *kv)
{
    const char *name = tdm_json_string(reader, key);
    if (name != NULL && !tdm_kv_parse(name, kv))
        tdm_json_fail(reader, key, "is \"%s\"; expected recompute or keep", name);
}

static enum tdm_status read_group(const char *file, const json_t *object, size_t index,
                                  const struct tdm_topology *topology, struct tdm_group *group,
                                  struct tdm_error *err)
{
    static const char *const keys[] = {"layers",
                                       "input_place",
                                       "kept",
                                       "kept_from_chunk",
                                       "kept_place",
                                       "held",
                                       "held_from_chunk",
                                       "held_place",
                                       "kv",
                                       "kv_place",
                                       "kv_gradients_place",
                                       "held_device_chunks",
                                       NULL};
    char prefix[32];
    snprintf(prefix, sizeof(prefix), "groups[%zu]", index);
    struct tdm_json_reader reader = {file, prefix, object, err, TDM_OK};
    tdm_json_only(&reader, keys);
    group->layers = (uint32_t)tdm_json_count(&reader, "layers", 1, UINT32_MAX);
    read_place(&reader, topology, "input_place", &group->input_place);
    read_set(&reader, "kept", &group->kept);
    group->kept_from_chunk = (uint32_t)tdm_json_count(&reader, "kept_from_chunk", 0, UINT32_MAX);
    read_place(&reader, topology, "kept_place", &group->kept_place);
    read_set(&reader, "held", &group->held);
    group->held_from_chunk = (uint32_t)tdm_json_count(&reader, "held_from_chunk", 0, UINT32_MAX);
    read_place(&reader, topology, "held_place", &group->held_place);
    group->held_device_chunks =
        (uint32_t)tdm_json_count_or(&reader, "held_device_chunks", 0, UINT32_MAX, 0);
    read_kv(&reader, "kv", &group->kv);
    read_place(&reader, topology, "kv_place", &group->kv_place);
    read_place(&reader, topology, "kv_gradients_place", &group->kv_gradients_place);
    return reader.status;
}

static enum tdm_status read_groups(const char *file, const json_t *array,
                                   struct tdm_schedule *schedule, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    size_t count = json_array_size(array);
    if (count == 0 || count > schedule->model->layers)
        return tdm_fail(err, TDM_INPUT, "%s: \"groups\" has %zu entries for %u layers", file, count,
                        schedule->model->layers);
    free(schedule->groups);
    schedule->group_count = 0;
    schedule->groups = calloc(count, sizeof(*schedule->groups));
    if (schedule->groups == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu groups", count);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const json_t *object = json_array_get(array, i);
        if (!json_is_object(object))
            return tdm_fail(err, TDM_INPUT, "%s: \"groups[%zu]\" must be an object", file, i);
        status =
            read_group(file, object, i, &schedule->machine->topology, &schedule->groups[i], err);
    }
    if (status == TDM_OK)
        schedule->group_count = (uint32_t)count;
    return status;
}

static enum tdm_status read_documents(const char *file, const char *prefix, const json_t *array,
                                      struct tdm_sequence *sequence, struct tdm_error *err)
{
    char what[512];
    size_t count = json_array_size(array);
    snprintf(what, sizeof(what), "%s: \"%s.documents\"", file, prefix);
    if (count > TDM_MOST_DOCUMENTS)
        return tdm_fail(err, TDM_INPUT, "%s has %zu entries; expected at most %u", what, count,
                        TDM_MOST_DOCUMENTS);
    uint64_t *starts = calloc(count + 1, sizeof(*starts));
    if (starts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu documents", count);
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const json_t *start = json_array_get(array, i);
        if (!json_is_integer(start) || json_integer_value(start) < 0)
            status = tdm_fail(err, TDM_INPUT,
                              "%s must hold whole numbers, the first token of each document", what);
        else
            starts[i] = (uint64_t)json_integer_value(start);
    }
    if (status == TDM_OK)
        status = tdm_sequence_pack(sequence, what, (uint32_t)count, starts, err);
    free(starts);
    return status;
}

static enum tdm_status read_sequence(const char *file, const json_t *value, size_t index,
                                     struct tdm_sequence *sequence, struct tdm_error *err)
{
    static const char *const keys[] = {"tokens", "documents", NULL};
    char prefix[40];
    snprintf(prefix, sizeof(prefix), "sequences[%zu]", index);
    if (json_is_integer(value) && json_integer_value(value) >= 1) {
        sequence->tokens = (uint64_t)json_integer_value(value);
        return TDM_OK;
    }
    if (!json_is_object(value))
        return tdm_fail(err, TDM_INPUT,
                        "%s: \"%s\" must be a whole number of tokens, at least 1, or an object "
                        "with \"tokens\" and \"documents\"",
                        file, prefix);
    struct tdm_json_reader reader = {file, prefix, value, err, TDM_OK};
    tdm_json_only(&reader, keys);
    sequence->tokens = tdm_json_count(&reader, "tokens", 1, MAX_TOKENS);
    const json_t *documents = tdm_json_array(&reader, "documents");
    return reader.status == TDM_OK ? read_documents(file, prefix, documents, sequence, err)
                                   : reader.status;
}

static enum tdm_status read_sequences(const char *file, const json_t *array,
                                      struct tdm_schedule *schedule, struct tdm_error *err)
{
    size_t count = json_array_size(array);
    if (count == 0 || count > UINT32_MAX)
        return tdm_fail(err, TDM_INPUT, "%s: \"sequences\" is empty; expected one or more", file);
    enum tdm_status status = tdm_schedule_set_sequences(schedule, (uint32_t)count, 0, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = read_sequence(file, json_array_get(array, i), i, &schedule->sequences[i], err);
    return status;
}

static enum tdm_status read_dtypes(const char *file, const json_t *object,
                                   struct tdm_dtypes *dtypes, struct tdm_error *err)
{
    static const char *const keys[] = {"weights",   "master",  "activations", "kv", "kv_gradients",
                                       "gradients", "moments", "logits",      NULL};
    struct tdm_json_reader reader = {file, "dtypes", object, err, TDM_OK};
    tdm_json_only(&reader, keys);
    read_dtype(&reader, "weights", &dtypes->weights);
    read_dtype(&reader, "master", &dtypes->master);
    read_dtype(&reader, "activations", &dtypes->activations);
    read_dtype(&reader, "kv", &dtypes->kv);
    read_dtype(&reader, "kv_gradients", &dtypes->kv_gradients);
    read_dtype(&reader, "gradients", &dtypes->gradients);
    read_dtype(&reader, "moments", &dtypes->moments);
    read_dtype(&reader, "logits", &dtypes->logits);
    return reader.status;
}

static enum tdm_status read_homes(const char *file, const json_t *object,
                                  struct tdm_schedule *schedule, struct tdm_error *err)
{
    static const char *const states[] = {"weights", "master", "moments", "gradients", NULL};
    static const char *const keys[] = {"device_layers", "embedding", "head", NULL};
    const struct tdm_topology *topology = &schedule->machine->topology;
    struct tdm_json_reader all = {file, "homes", object, err, TDM_OK};
    tdm_json_only(&all, states);
    for (int state = 0; state < TDM_STATES && all.status == TDM_OK; state++) {
        char prefix[32];
        const json_t *entry = tdm_json_object(&all, states[state]);
        if (entry == NULL)
            break;
        snprintf(prefix, sizeof(prefix), "homes.%s", states[state]);
        struct tdm_json_reader reader = {file, prefix, entry, err, TDM_OK};
        struct tdm_home *home = &schedule->homes[state];
        tdm_json_only(&reader, keys);
        home->device_layers =
            (uint32_t)tdm_json_count(&reader, "device_layers", 0, schedule->model->layers);
        read_place(&reader, topology, "embedding", &home->embedding);
        read_place(&reader, topology, "head", &home->head);
        all.status = reader.status;
    }
    return all.status;
}

static enum tdm_status read_rings(const char *file, const json_t *object, struct tdm_rings *rings,
                                  struct tdm_error *err)
{
    static const char *const keys[] = {"weights", "optimizer", "host_gradients", "stashed", "kv",
                                       "gather",  "ahead",     "gradients",      NULL};
    struct tdm_json_reader reader = {file, "rings", object, err, TDM_OK};
    tdm_json_only(&reader, keys);
    rings->weights = (uint32_t)tdm_json_count(&reader, "weights", 1, TDM_MAX_RING);
    rings->optimizer = (uint32_t)tdm_json_count(&reader, "optimizer", 1, TDM_MAX_RING);
    rings->host_gradients =
        (uint32_t)tdm_json_count_or(&reader, "host_gradients", 1, TDM_MAX_RING, rings->optimizer);
    rings->stashed = (uint32_t)tdm_json_count(&reader, "stashed", 1, TDM_MAX_RING);
    rings->kv = (uint32_t)tdm_json_count(&reader, "kv", 1, TDM_MAX_RING);
    rings->gather = (uint32_t)tdm_json_count_or(&reader, "gather", 0, TDM_MAX_GATHER, 0);
    rings->ahead = (uint32_t)tdm_json_count_or(&reader, "ahead", 0, 1, 0);
    rings->gradients = (uint32_t)tdm_json_count_or(&reader, "gradients", 1, 2, 1);
    return reader.status;
}

static enum tdm_status read_optimizer(const char *file, const json_t *object,
                                      const struct tdm_topology *topology,
                                      struct tdm_optimizer_settings *optimizer,
                                      struct tdm_error *err)
{
    static const char *const keys[] = {"kind",
                                       "learning_rate",
                                       "beta1",
                                       "beta2",
                                       "epsilon",
                                       "weight_decay",
                                       "decayed",
                                       "warmup_steps",
                                       "schedule",
                                       "decay_steps",
                                       "final_learning_rate",
                                       "when",
                                       "on",
                                       "clip",
                                       "clip_norm",
                                       NULL};
    struct tdm_json_reader reader = {file, "optimizer", object, err, TDM_OK};
    tdm_json_only(&reader, keys);
    const char *kind = tdm_json_string(&reader, "kind");
    if (kind != NULL && !tdm_optimizer_parse(kind, &optimizer->kind))
        tdm_json_fail(&reader, "kind", "is \"%s\"; expected %s", kind, TDM_OPTIMIZER_NAMES);
    optimizer->learning_rate = tdm_json_number(&reader, "learning_rate", 0, 1e3);
    optimizer->beta1 = tdm_json_number(&reader, "beta1", 0, 1);
    optimizer->beta2 = tdm_json_number(&reader, "beta2", 0, 1);
    optimizer->epsilon = tdm_json_number(&reader, "epsilon", 0, 1);
    optimizer->weight_decay = tdm_json_number(&reader, "weight_decay", 0, 1e3);
    optimizer->decayed = TDM_DECAYED_DEFAULT;
    const char *decayed =
        tdm_json_has(&reader, "decayed") ? tdm_json_string(&reader, "decayed") : NULL;
    if (decayed != NULL && !tdm_decayed_parse(decayed, &optimizer->decayed))
        tdm_json_fail(&reader, "decayed", "is \"%s\"; expected %s", decayed, TDM_DECAYED_NAMES);
    optimizer->warmup_steps = tdm_json_count_or(&reader, "warmup_steps", 0, (uint64_t)1 << 48, 0);
    const char *schedule = tdm_json_string(&reader, "schedule");
    if (schedule != NULL && !tdm_rate_schedule_parse(schedule, &optimizer->rate_schedule))
        tdm_json_fail(&reader, "schedule", "is \"%s\"; expected %s", schedule,
                      TDM_RATE_SCHEDULE_NAMES);
    optimizer->decay_steps = tdm_json_count(&reader, "decay_steps", 0, (uint64_t)1 << 48);
    optimizer->final_learning_rate = tdm_json_number(&reader, "final_learning_rate", 0, 1e3);
    const char *when = tdm_json_string(&reader, "when");
    if (when != NULL && !tdm_when_parse(when, &optimizer->when))
        tdm_json_fail(&reader, "when", "is \"%s\"; it must be %s", when, TDM_WHEN_NAMES);
    if (tdm_json_has(&reader, "on"))
        read_place(&reader, topology, "on", &optimizer->on);
    const char *clip = tdm_json_string(&reader, "clip");
    if (clip != NULL && !tdm_clip_parse(clip, &optimizer->clip))
        tdm_json_fail(&reader, "clip", "is \"%s\"; it must be %s", clip, TDM_CLIP_NAMES);
    optimizer->clip_norm = tdm_json_number(&reader, "clip_norm", 0, 1e30);
    return reader.status;
}

/* Reads the model of a schedule from its config. The digest must be that of the config. */
static enum tdm_status read_model(const char *file, const json_t *object, struct tdm_model **model,
                                  struct tdm_error *err)
{
    static const char *const keys[] = {"name", "digest", "config", NULL};
    struct tdm_json_reader reader = {file, "model", object, err, TDM_OK};
    tdm_json_only(&reader, keys);
    const char *name = tdm_json_string(&reader, "name");
    const char *digest = tdm_json_string(&reader, "digest");
    const json_t *config = tdm_json_object(&reader, "config");
    if (reader.status != TDM_OK)
        return reader.status;
    char where[512]; /* of the config inside the file */
    snprintf(where, sizeof(where), "%s: model.config", file);
    enum tdm_status status = tdm_model_from_config(where, name, (json_t *)config, model, err);
    if (status != TDM_OK)
        return status;
    if (strcmp((*model)->digest, digest) != 0) {
        tdm_fail(err, TDM_INPUT, "%s: \"model.digest\" is %s, but the config in it has %s", file,
                 digest, (*model)->digest);
        tdm_model_free(*model);
        return tdm_hint(err, "the config was changed after planning; plan again");
    }
    return TDM_OK;
}

/* Without a selector it is dense. */
static enum tdm_status read_selector(const char *file, const json_t *object,
                                     struct tdm_selector *selector, struct tdm_error *err)
{
    struct tdm_json_reader reader = {file, "selector", object, err, TDM_OK};
    const struct tdm_selector_field *field;
    const char *keys[16] = {"kind"};
    *selector = (struct tdm_selector){0};
    if (object == NULL)
        return TDM_OK;
    const char *kind = tdm_json_string(&reader, "kind");
    if (kind != NULL && !tdm_selector_parse(kind, &selector->kind))
        tdm_json_fail(&reader, "kind", "is \"%s\"; expected " TDM_SELECTOR_NAMES, kind);
    for (size_t i = 0, count = 1; (field = tdm_selector_field(i)) != NULL; i++)
        if (tdm_selector_has(selector->kind, field)) {
            keys[count++] = field->name;
            *tdm_selector_value(selector, field) =
                tdm_json_count(&reader, field->name, field->low, field->high);
        }
    tdm_json_only(&reader, keys);
    return reader.status;
}

static enum tdm_status read_fields(struct tdm_json_reader *reader, struct tdm_schedule *schedule)
{
    const char *pass = tdm_json_string_or(reader, "pass", tdm_purpose_name(TDM_TRAIN));
    if (pass != NULL && !tdm_purpose_parse(pass, &schedule->pass))
        tdm_json_fail(reader, "pass", "is \"%s\"; expected train or evaluate", pass);
    const char *order = tdm_json_string(reader, "order");
    if (order != NULL && !tdm_order_parse(order, &schedule->order))
        tdm_json_fail(reader, "order", "is \"%s\"; expected layer-major or chunk-major", order);
    if (tdm_json_has(reader, "documents")) {
        const char *documents = tdm_json_string(reader, "documents");
        schedule->documents_of_text = true;
        if (documents != NULL && strcmp(documents, "file") != 0)
            tdm_json_fail(reader, "documents", "is \"%s\"; expected file, or no such key",
                          documents);
    }
    if (tdm_json_has(reader, "splits")) {
        const char *splits = tdm_json_string(reader, "splits");
        schedule->splits_by_position = true;
        if (splits != NULL && strcmp(splits, "position") != 0)
            tdm_json_fail(reader, "splits", "is \"%s\"; expected position, or no such key", splits);
    }
    schedule->memory_bytes = tdm_json_count(reader, "memory_bytes", 0, INT64_MAX);
    schedule->host_memory_bytes = tdm_json_count(reader, "host_memory_bytes", 0, INT64_MAX);
    if (tdm_json_has(reader, "snapshot_bytes"))
        schedule->snapshot_bytes = tdm_json_count(reader, "snapshot_bytes", 0, INT64_MAX);
    schedule->ranks = tdm_json_has(reader, "ranks")
                          ? (uint32_t)tdm_json_count(reader, "ranks", 1, TDM_MAX_RANKS)
                          : 1;
    if (tdm_json_has(reader, "ranks_per_node"))
        schedule->ranks_per_node =
            (uint32_t)tdm_json_count(reader, "ranks_per_node", 1, TDM_MAX_RANKS);
    if (tdm_json_status(reader) == TDM_OK && schedule->ranks_per_node > 0 &&
        schedule->ranks % schedule->ranks_per_node != 0)
        tdm_json_fail(reader, "ranks_per_node", "is %u, which does not divide the %u ranks",
                      schedule->ranks_per_node, schedule->ranks);
    schedule->sliced_weights = tdm_json_bool_or(reader, "sliced_weights", false);
    const char *deal = tdm_json_string_or(reader, "deal", tdm_deal_name(TDM_DEAL_SNAKE));
    if (deal != NULL && !tdm_deal_parse(deal, &schedule->deal))
        tdm_json_fail(reader, "deal", "is \"%s\"; expected " TDM_DEAL_NAMES, deal);
    const char *exchange =
        tdm_json_string_or(reader, "exchange", tdm_exchange_kind_name(TDM_EXCHANGE_GATHER));
    if (exchange != NULL && !tdm_exchange_kind_parse(exchange, &schedule->exchange))
        tdm_json_fail(reader, "exchange", "is \"%s\"; expected " TDM_EXCHANGE_NAMES, exchange);
    if (tdm_json_has(reader, "head_ranks"))
        schedule->head_ranks = (uint32_t)tdm_json_count(reader, "head_ranks", 0, TDM_MAX_RANKS);
    schedule->chunk_tokens = tdm_json_count(reader, "chunk_tokens", 1, MAX_TOKENS);
    schedule->page_tokens = tdm_json_count(reader, "page_tokens", 1, 65536);
    schedule->head_tile_tokens = tdm_json_count(reader, "head_tile_tokens", 1, MAX_TOKENS);
    schedule->head_tile_vocabulary = tdm_json_count(reader, "head_tile_vocabulary", 1, UINT32_MAX);
    schedule->prefetch = (uint32_t)tdm_json_count(reader, "prefetch", 0, 16);
    if (tdm_json_has(reader, "packed_bytes"))
        schedule->packed_bytes = tdm_json_count(reader, "packed_bytes", 0, INT64_MAX);
    const json_t *sequences = tdm_json_array(reader, "sequences");
    const json_t *groups = tdm_json_array(reader, "groups");
    const json_t *homes = tdm_json_object(reader, "homes");
    const json_t *rings = tdm_json_object(reader, "rings");
    const json_t *dtypes = tdm_json_object(reader, "dtypes");
    const json_t *optimizer = tdm_json_object(reader, "optimizer");
    const json_t *selector =
        tdm_json_has(reader, "selector") ? tdm_json_object(reader, "selector") : NULL;
    enum tdm_status status = reader->status;
    if (status == TDM_OK)
        status = read_selector(reader->file, selector, &schedule->selector, reader->err);
    if (status == TDM_OK)
        status = read_sequences(reader->file, sequences, schedule, reader->err);
    if (status == TDM_OK)
        status = read_groups(reader->file, groups, schedule, reader->err);
    if (status == TDM_OK)
        status = read_homes(reader->file, homes, schedule, reader->err);
    if (status == TDM_OK)
        status = read_rings(reader->file, rings, &schedule->rings, reader->err);
    if (status == TDM_OK)
        status = read_dtypes(reader->file, dtypes, &schedule->dtypes, reader->err);
    if (status == TDM_OK)
        status = read_optimizer(reader->file, optimizer, &schedule->machine->topology,
                                &schedule->optimizer, reader->err);
    return status == TDM_OK ? tdm_schedule_check(schedule, reader->file, reader->err) : status;
}

enum tdm_status tdm_schedule_from_json(const char *file, const json_t *root,
                                       struct tdm_schedule **out, struct tdm_error *err)
{
    static const char *const keys[] = {"format",
                                       "pass",
                                       "model",
                                       "machine",
                                       "memory_bytes",
                                       "host_memory_bytes",
                                       "snapshot_bytes",
                                       "ranks",
                                       "ranks_per_node",
                                       "sliced_weights",
                                       "deal",
                                       "exchange",
                                       "head_ranks",
                                       "sequences",
                                       "documents",
                                       "splits",
                                       "order",
                                       "chunk_tokens",
                                       "page_tokens",
                                       "selector",
                                       "head_tile_tokens",
                                       "head_tile_vocabulary",
                                       "prefetch",
                                       "packed_bytes",
                                       "groups",
                                       "homes",
                                       "rings",
                                       "dtypes",
                                       "optimizer",
                                       "predicted",
                                       NULL};
    struct tdm_json_reader reader = {file, "", root, err, TDM_OK};
    const char *format = tdm_json_string(&reader, "format");
    if (format != NULL && strcmp(format, TDM_SCHEDULE_FORMAT) != 0) {
        tdm_json_fail(&reader, "format", "is \"%s\"; this tidemark reads %s", format,
                      TDM_SCHEDULE_FORMAT);
        return tdm_hint(err, "make it again with tidemark plan");
    }
    tdm_json_only(&reader, keys);
    const json_t *model_json = tdm_json_object(&reader, "model");
    const json_t *machine_json = tdm_json_object(&reader, "machine");
    if (reader.status != TDM_OK)
        return reader.status;

    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    enum tdm_status status = read_model(file, model_json, &model, err);
    if (status != TDM_OK)
        return status;
    char where[512]; /* of the description inside the file */
    snprintf(where, sizeof(where), "%s: machine", file);
    status = tdm_machine_from_json(where, (json_t *)machine_json, &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 1, &schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
        return status;
    }
    status = read_fields(&reader, schedule);
    if (status != TDM_OK) {
        tdm_schedule_free(schedule);
        return status;
    }
    *out = schedule;
    return TDM_OK;
}

enum tdm_status tdm_schedule_load(const char *path, struct tdm_schedule **schedule,
                                  struct tdm_error *err)
{
    json_t *root;
    enum tdm_status status = tdm_json_load(path, &root, err);
    if (status != TDM_OK)
        return status;
    status = tdm_schedule_from_json(path, root, schedule, err);
    json_decref(root);
    return status;
}
