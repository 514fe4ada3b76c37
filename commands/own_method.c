/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a method's keys to planner input, and the planner's remedies to changes of keys. */
#include "commands/own_method.h"

#include <stdio.h>
#include <string.h>

struct tdm_own_words tdm_own_words(const struct tdm_method_settings *settings,
                                   const struct tdm_method_choices *choices, const char *model,
                                   const char *name, const struct tdm_machine *machine,
                                   double margin)
{
    const struct tdm_method *method = settings->method;
    return (struct tdm_own_words){
        .model = model,
        .machine = name,
        .device_bytes = machine->topology.places[TDM_DEVICE].capacity_bytes,
        .host_bytes = tdm_machine_far(machine)->capacity_bytes,
        .context = settings->torch.tokens,
        .batch = settings->torch.batch,
        .ranks = (uint32_t)settings->torch.ranks,
        .margin = margin,
        .objective = tdm_method_value(method, choices, "objective"),
        .optimizer = tdm_method_value(method, choices, "optimizer"),
        .budget = tdm_method_value(method, choices, "budget"),
        .memory = tdm_method_value(method, choices, "memory"),
        .host_memory = tdm_method_value(method, choices, "host_memory"),
        .pairs = choices->others,
        .pair_count = choices->other_count,
    };
}

#define MOST_WAYS 3u

/* Adds a change in the form of predict's options. */
static void list_change(const char *key, const char *value, struct tdm_remedy *remedy)
{
    struct tdm_remedy_change *change = &remedy->changes[remedy->count++];
    change->key = key;
    snprintf(change->value, sizeof(change->value), "%s", value);
    if (strcmp(key, "host_memory") == 0)
        snprintf(change->words, sizeof(change->words), "--host-memory %s", value);
    else
        snprintf(change->words, sizeof(change->words), "--set %s=%s", key, value);
    enum tdm_effect effect = TDM_EFFECT_TIME;
    if (strcmp(key, "optimizer") == 0)
        effect = TDM_EFFECT_TRAINING;
    else if (strcmp(key, "memory") == 0 || strcmp(key, "host_memory") == 0)
        effect = TDM_EFFECT_MACHINE;
    if (effect > remedy->effect)
        remedy->effect = effect;
}

static void list_way(const struct tdm_shortage_way *way, struct tdm_remedy *remedy)
{
    *remedy = (struct tdm_remedy){.peak_bytes = way->device_bytes,
                                  .kept_bytes = way->device_bytes,
                                  .host_peak_bytes = way->host_bytes};
    for (size_t c = 0; c < way->count; c++)
        list_change(way->changes[c].key, way->changes[c].value, remedy);
}

void tdm_own_remedies(const struct tdm_own_miss *miss, uint64_t gpus, uint64_t most_bytes,
                      struct tdm_remedies *out)
{
    *out = (struct tdm_remedies){.gpus = gpus, .complete = true, .context_alone = true};
    for (size_t i = 0; i < miss->way_count; i++)
        if (strcmp(miss->ways[i].changes[0].key, "context") == 0)
            tdm_parse_tokens(miss->ways[i].changes[0].value, "context", &out->longest_tokens, NULL);
    for (int effect = TDM_EFFECT_TIME; effect <= TDM_EFFECT_TRAINING; effect++)
        for (size_t i = 0; i < miss->way_count && out->count < MOST_WAYS; i++) {
            struct tdm_remedy remedy;
            const struct tdm_shortage_way *way = &miss->ways[i];
            if (strcmp(way->changes[0].key, "context") == 0 || way->device_bytes > most_bytes)
                continue;
            list_way(way, &remedy);
            if ((int)remedy.effect == effect)
                out->list[out->count++] = remedy;
        }
}
