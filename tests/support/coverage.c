/* SPDX-License-Identifier: Apache-2.0 */
/* Counts how many schedules of a test had each feature that a schedule can have. */
#include "tests/support/coverage.h"

#include "schedule/layout.h"
#include "schedule/slices.h"

#include <stdio.h>
#include <string.h>

static void note(struct tdm_coverage *coverage, const char *name, bool has)
{
    uint32_t i = 0;
    while (i < coverage->count && strcmp(coverage->names[i], name) != 0)
        i++;
    if (i == TDM_COVERAGE_MOST)
        return;
    if (i == coverage->count) {
        coverage->names[i] = name;
        coverage->count++;
    }
    coverage->schedules[i] += has;
}

/* Features of groups, and whether any group of the schedule has them. */
struct groups {
    bool several, uneven, stored[TDM_MAX_PLACES];
    bool kept[TDM_SETS], held[TDM_SETS], kept_at[TDM_MAX_PLACES], held_at[TDM_MAX_PLACES];
    bool kept_split, held_split, held_twice, kv[TDM_KVS], kv_at[TDM_MAX_PLACES],
        kv_gradients_at[TDM_MAX_PLACES];
};

static struct groups groups_of(const struct tdm_schedule *schedule)
{
    struct groups g = {0};
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        bool keeps = group->kept != TDM_SET_INPUT, holds = group->held != TDM_SET_INPUT;
        g.several = g.several || group->layers > 1;
        g.uneven = g.uneven || group->layers != schedule->groups[0].layers;
        g.stored[group->input_place] = g.stored[group->input_place] || i > 0;
        g.kept[group->kept] = g.held[group->held] = true;
        g.kept_at[group->kept_place] = g.kept_at[group->kept_place] || keeps;
        g.held_at[group->held_place] = g.held_at[group->held_place] || holds;
        g.kept_split = g.kept_split || (keeps && group->kept_from_chunk > 0);
        g.held_split = g.held_split || (holds && group->held_from_chunk > 0);
        g.held_twice = g.held_twice || (group->layers > 1 && group->held_device_chunks > 0);
        g.kv[group->kv] = true;
        g.kv_at[group->kv_place] = g.kv_at[group->kv_place] || group->kv == TDM_KV_KEEP;
        g.kv_gradients_at[group->kv_gradients_place] = true;
    }
    return g;
}

static void note_nest(struct tdm_coverage *c, const struct tdm_schedule *s)
{
    struct groups g = groups_of(s);
    bool chunk_major = s->order == TDM_CHUNK_MAJOR, one_chunk = s->sequence_count == 1;
    one_chunk = one_chunk && s->sequences[0].tokens <= s->chunk_tokens;
    note(c, "layer-major", !chunk_major && !one_chunk);
    note(c, "chunk-major", chunk_major && !one_chunk);
    note(c, "parallel", one_chunk);
    note(c, "groups of one", !g.several);
    note(c, "one group of all", s->group_count == 1 && g.several);
    note(c, "uneven groups", g.uneven);
    note(c, "inputs on device", g.stored[TDM_DEVICE]);
    note(c, "inputs on host", g.stored[TDM_HOST]);
    note(c, "kept attention_output", g.kept[TDM_SET_ATTENTION_OUTPUT]);
    note(c, "kept qkv", g.kept[TDM_SET_QKV]);
    note(c, "kept all", g.kept[TDM_SET_ALL]);
    note(c, "kept normed", g.kept[TDM_SET_NORMED]);
    note(c, "kept on device", g.kept_at[TDM_DEVICE]);
    note(c, "kept on host", g.kept_at[TDM_HOST]);
    note(c, "kept from a split", g.kept_split);
    note(c, "held attention_output", g.held[TDM_SET_ATTENTION_OUTPUT]);
    note(c, "held qkv", g.held[TDM_SET_QKV]);
    note(c, "held all", g.held[TDM_SET_ALL]);
    note(c, "held normed", g.held[TDM_SET_NORMED]);
    note(c, "held on device", g.held_at[TDM_DEVICE]);
    note(c, "held on host", g.held_at[TDM_HOST]);
    note(c, "held from a split", g.held_split);
    note(c, "held on host and device", !chunk_major && g.held_twice);
    note(c, "kv recomputed", g.kv[TDM_KV_RECOMPUTE]);
    note(c, "kv kept in layer-major", !chunk_major && g.kv[TDM_KV_KEEP]);
    note(c, "kv on host", g.kv_at[TDM_HOST]);
    note(c, "kv gradients on host", chunk_major && g.kv_gradients_at[TDM_HOST]);
    note(c, "no prefetch", s->prefetch == 0);
    note(c, "prefetch", s->prefetch > 0);
}

static bool is_from_home(const struct tdm_schedule *s, enum tdm_state state)
{
    for (uint32_t unit = 0; unit < s->model->unit_count; unit++)
        if (tdm_schedule_home(s, state, unit) == TDM_HOST)
            return true;
    return false;
}

static void note_state(struct tdm_coverage *c, const struct tdm_schedule *s)
{
    const struct tdm_optimizer_settings *o = &s->optimizer;
    bool trains = s->pass == TDM_TRAIN, updates = trains && o->kind != TDM_OPTIMIZER_NONE;
    note(c, "weights on host", is_from_home(s, TDM_STATE_WEIGHTS));
    note(c, "masters on host",
         updates && s->dtypes.master != TDM_DTYPE_NONE && is_from_home(s, TDM_STATE_MASTER));
    note(c, "moments on host",
         updates && s->dtypes.moments != TDM_DTYPE_NONE && is_from_home(s, TDM_STATE_MOMENTS));
    note(c, "gradients on host", trains && is_from_home(s, TDM_STATE_GRADIENTS));
    for (int kind = 0; kind < TDM_OPTIMIZERS; kind++)
        note(c, tdm_optimizer_name((enum tdm_optimizer)kind), trains && (int)o->kind == kind);
    note(c, "updates at the end", updates && o->when == TDM_WHEN_END);
    note(c, "updates on the host", updates && o->on == TDM_HOST);
    note(c, "updates on the device", updates && o->on == TDM_DEVICE);
    note(c, "updates by layer", updates && o->when == TDM_WHEN_LAYER);
    note(c, "clipped by layer", updates && o->clip == TDM_CLIP_LAYER);
    note(c, "clipped globally", updates && o->clip == TDM_CLIP_GLOBAL);
    note(c, "not clipped", updates && o->clip == TDM_CLIP_NONE);
    note(c, "split masters", updates && s->dtypes.master == TDM_DTYPE_REMAINDER16);
    note(c, "fp32 masters", updates && s->dtypes.master == TDM_DTYPE_FP32);
    note(c, "evaluate", !trains);
}

static void note_model(struct tdm_coverage *c, const struct tdm_schedule *s)
{
    static const char *const architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                                "Qwen3ForCausalLM", "MistralForCausalLM"};
    const struct tdm_model *model = s->model;
    bool windows = false, documents = false, ragged = false;
    for (uint32_t i = 0; i < model->layers; i++)
        windows = windows || model->layer_kinds[i].window > 0;
    for (uint32_t i = 0; i < s->sequence_count; i++) {
        documents = documents || s->sequences[i].document_count > 1;
        ragged = ragged || s->sequences[i].tokens % s->chunk_tokens != 0;
    }
    for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++)
        note(c, architectures[i], strcmp(model->architecture, architectures[i]) == 0);
    uint32_t embedding = tdm_model_embedding_unit(model), head = tdm_model_head_unit(model);
    bool device = s->pass == TDM_TRAIN && s->optimizer.on == TDM_DEVICE &&
                  s->dtypes.moments != TDM_DTYPE_NONE;
    note(c, "embedding in slices",
         device && tdm_slice_count(s, embedding) > 1 &&
             s->homes[TDM_STATE_MOMENTS].embedding != TDM_DEVICE);
    note(c, "head in slices",
         device && tdm_slice_count(s, head) > 1 && s->homes[TDM_STATE_MOMENTS].head != TDM_DEVICE);
    note(c, "layers' states on the device, others in slices",
         device && tdm_slice_count(s, head) > 1 && s->homes[TDM_STATE_MOMENTS].head != TDM_DEVICE &&
             s->homes[TDM_STATE_MOMENTS].device_layers == model->layers &&
             s->homes[TDM_STATE_MASTER].device_layers == model->layers);
    note(c, "tied", model->tied);
    note(c, "not tied", !model->tied);
    note(c, "windows", windows);
    note(c, "documents", documents);
    note(c, "several sequences", s->sequence_count > 1);
    note(c, "ragged chunks", ragged);
    note(c, "head in tiles of tokens", s->head_tile_tokens < s->chunk_tokens);
    note(c, "head in tiles of vocabulary", tdm_vocabulary_tiles(s) > 1);
    note(c, "activations in bf16", s->dtypes.activations == TDM_DTYPE_BF16);
    note(c, "activations in fp32", s->dtypes.activations == TDM_DTYPE_FP32);
}

void tdm_coverage_note_heads(struct tdm_coverage *coverage, const struct tdm_model *model)
{
    static const struct {
        uint32_t dim;
        const char *name;
    } dims[] = {{64, "head dim 64"},   {96, "head dim 96"}, {128, "head dim 128"},
                {256, "head dim 256"}, {80, "head dim 80"}, {34, "head dim 34"}};
    static const char *const ratios[] = {"ratio 1",  "ratio 2",  "ratio 3",  "ratio 4",
                                         "ratio 5",  "ratio 6",  "ratio 7",  "ratio 8",
                                         "ratio 9",  "ratio 10", "ratio 11", "ratio 12",
                                         "ratio 13", "ratio 14", "ratio 15", "ratio 16"};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        note(coverage, dims[i].name, model->head_dim == dims[i].dim);
    for (uint32_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++)
        note(coverage, ratios[i], model->query_heads / model->kv_heads == i + 1);
}

void tdm_coverage_note(struct tdm_coverage *coverage, const struct tdm_schedule *schedule)
{
    note_nest(coverage, schedule);
    note_state(coverage, schedule);
    note_model(coverage, schedule);
}

void tdm_coverage_print(const struct tdm_coverage *coverage)
{
    printf("# schedules that had");
    for (uint32_t i = 0; i < coverage->count; i++)
        printf("%s %s: %llu", i == 0 ? "" : ",", coverage->names[i],
               (unsigned long long)coverage->schedules[i]);
    printf("\n");
}

const char *tdm_coverage_missing(const struct tdm_coverage *coverage, uint32_t *next)
{
    while (*next < coverage->count)
        if (coverage->schedules[(*next)++] == 0)
            return coverage->names[*next - 1];
    return NULL;
}
