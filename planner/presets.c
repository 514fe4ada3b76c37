/* SPDX-License-Identifier: Apache-2.0 */
/* Presets: a table of --set pairs, and their merge with a user's pairs. */
#include "planner/presets.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tdm_preset presets[] = {
    {"oomb",
     "chunk by chunk through all layers, K, V and their gradients on the device",
     {"order=chunk-major", "groups=all", "chunk=4K", "attention=none", "kv_place=device",
      "kv_gradients_place=device"}},
    {"oomb-offload",
     "the same, K, V and their gradients on the host",
     {"order=chunk-major", "groups=all", "chunk=4K", "attention=none", "kv_place=host",
      "kv_gradients_place=host"}},
    {"ml_dataflow",
     "layer by layer over all chunks, K, V and attention outputs of the last chunks kept",
     {"order=layer-major", "groups=1", "kv=keep", "attention=kept"}},
    {"selective",
     "the whole sequence at once, q, K, V, attention outputs, gate and up kept",
     {"order=layer-major", "groups=1", "chunk=all", "kept=all", "kept_from=0"}},
    {"full-recompute",
     "the whole sequence at once, inputs of layers kept and nothing else",
     {"order=layer-major", "groups=1", "chunk=all", "attention=none"}},
    {"split-50%",
     "layer by layer over all chunks, attention outputs of the later half kept",
     {"order=layer-major", "groups=1", "attention=kept", "kept_from=50%"}},
    {.name = NULL},
};

const struct tdm_preset *tdm_presets(void)
{
    return presets;
}

enum tdm_status tdm_preset_find(const char *name, const struct tdm_preset **preset,
                                struct tdm_error *err)
{
    char list[160] = "";
    for (const struct tdm_preset *p = presets; p->name != NULL; p++) {
        size_t used = strlen(list);
        if (strcmp(p->name, name) == 0) {
            *preset = p;
            return TDM_OK;
        }
        snprintf(list + used, sizeof(list) - used, "%s%s", used == 0 ? "" : ", ", p->name);
    }
    tdm_fail(err, TDM_USAGE, "--preset: \"%.64s\" is not known", name);
    return tdm_hint(err, "presets: %s", list);
}

static bool same_key(const char *a, const char *b)
{
    size_t length = strcspn(a, "=");
    return strcspn(b, "=") == length && memcmp(a, b, length) == 0;
}

static bool given(const char *pair, const char *const *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (same_key(pair, pairs[i]))
            return true;
    return false;
}

/* Writes a pair, with `all` replaced. */
static void write_pair(const char *pair, uint32_t layers, uint64_t context, char *out,
                       size_t out_bytes)
{
    if (strcmp(pair, "groups=all") == 0)
        snprintf(out, out_bytes, "groups=%" PRIu32, layers);
    else if (strcmp(pair, "chunk=all") == 0)
        snprintf(out, out_bytes, "chunk=%" PRIu64, context);
    else
        snprintf(out, out_bytes, "%s", pair);
}

enum tdm_status tdm_preset_merge(const struct tdm_preset *preset, uint32_t layers, uint64_t context,
                                 const char *const *pairs, size_t count,
                                 struct tdm_preset_pairs *merged, struct tdm_error *err)
{
    merged->count = 0;
    merged->pairs = calloc(TDM_PRESET_MOST_PAIRS + count, sizeof(*merged->pairs));
    if (merged->pairs == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a preset");
    for (size_t i = 0; i < TDM_PRESET_MOST_PAIRS && preset->pairs[i] != NULL; i++) {
        if (given(preset->pairs[i], pairs, count))
            continue;
        char *text = merged->text[merged->count];
        write_pair(preset->pairs[i], layers, context, text, sizeof(merged->text[0]));
        merged->pairs[merged->count++] = text;
    }
    for (size_t i = 0; i < count; i++)
        merged->pairs[merged->count++] = pairs[i];
    return TDM_OK;
}

void tdm_preset_pairs_free(struct tdm_preset_pairs *merged)
{
    free((void *)merged->pairs);
    merged->pairs = NULL;
    merged->count = 0;
}
