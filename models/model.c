/* SPDX-License-Identifier: Apache-2.0 */
/* A model: found by name or path, built from its config, and identified by a digest. */
#include "models/model.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "models/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_FOLDER "models/configs"

/* A number of the config, with the 12 digits that a schedule's JSON stores. */
static uint64_t bits(double value)
{
    char text[32];
    uint64_t out;
    snprintf(text, sizeof(text), "%.12g", value);
    value = strtod(text, NULL);
    memcpy(&out, &value, sizeof(out));
    return out;
}

static bool same_kind(struct tdm_layer_kind a, struct tdm_layer_kind b)
{
    return a.qkv_bias == b.qkv_bias && a.qk_norm == b.qk_norm && a.window == b.window &&
           a.post_norms == b.post_norms && a.experts == b.experts && a.no_rope == b.no_rope &&
           a.mamba == b.mamba && a.short_conv == b.short_conv && a.no_attention == b.no_attention &&
           a.no_mlp == b.no_mlp;
}

/* Writes the digest of everything that decides what is computed. It does not cover the name, nor
 * max_context, which no schedule depends on. Consecutive layers of the same kind are written once,
 * with their number. */
static enum tdm_status write_digest(struct tdm_model *model, struct tdm_error *err)
{
    const struct tdm_rope *rope = &model->rope;
    size_t capacity = 1024 + (size_t)model->layers * 96;
    char *text = malloc(capacity);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its digest", model->name);
    int used = snprintf(text, capacity,
                        "%s layers=%" PRIu32 " hidden=%" PRIu32 " intermediate=%" PRIu32
                        " query_heads=%" PRIu32 " kv_heads=%" PRIu32 " head_dim=%" PRIu32
                        " vocabulary=%" PRIu32 " tied=%d norm_epsilon=%" PRIx64
                        " initializer_range=%" PRIx64,
                        model->architecture, model->layers, model->hidden, model->intermediate,
                        model->query_heads, model->kv_heads, model->head_dim, model->vocabulary,
                        model->tied, bits(model->norm_epsilon), bits(model->initializer_range));
    used += snprintf(text + used, capacity - (size_t)used,
                     " rope=%d,%" PRIx64 ",%" PRIx64 ",%" PRIx64 ",%" PRIx64 ",%" PRIu64 ",%" PRIx64
                     ",%" PRIx64 ",%" PRIx64 " qkv_bias=",
                     (int)rope->kind, bits(rope->theta), bits(rope->factor),
                     bits(rope->low_frequency_factor), bits(rope->high_frequency_factor),
                     rope->original_context, bits(rope->beta_fast), bits(rope->beta_slow),
                     bits(rope->attention_factor));
    for (uint32_t first = 0, last; first < model->layers; first = last) {
        struct tdm_layer_kind kind = model->layer_kinds[first];
        for (last = first + 1; last < model->layers && same_kind(kind, model->layer_kinds[last]);)
            last++;
        used += snprintf(text + used, capacity - (size_t)used, "%" PRIu32 "x%d,", last - first,
                         kind.qkv_bias);
        if (kind.qk_norm) /* older digests do not have this word, so it is added only if needed */
            used += snprintf(text + used, capacity - (size_t)used, "qk_norm,");
        if (kind.window > 0)
            used +=
                snprintf(text + used, capacity - (size_t)used, "window=%" PRIu64 ",", kind.window);
        if (model->experts.count > 0 && !kind.experts)
            used += snprintf(text + used, capacity - (size_t)used, "dense,");
        if (kind.no_rope)
            used += snprintf(text + used, capacity - (size_t)used, "no_rope,");
        if (kind.mamba || kind.short_conv || kind.no_attention || kind.no_mlp)
            used +=
                snprintf(text + used, capacity - (size_t)used, "%s%s%s%s",
                         kind.mamba ? "mamba," : "", kind.short_conv ? "conv," : "",
                         kind.no_attention ? "no_attention," : "", kind.no_mlp ? "no_mlp," : "");
    }
    if (!model->sized_only) /* for sized_only models the architecture implies it */
        used += snprintf(text + used, capacity - (size_t)used, "%s",
                         tdm_activation_types[model->activation].digest);
    if (model->experts.count > 0)
        snprintf(text + used, capacity - (size_t)used, " experts=%" PRIu32 ",%" PRIu32 ",%" PRIu32,
                 model->experts.count, model->experts.per_token, model->experts.intermediate);
    used = (int)strlen(text);
    if (model->experts.shared > 0)
        used += snprintf(text + used, capacity - (size_t)used, " shared=%" PRIu32 "%s",
                         model->experts.shared, model->experts.shared_gate ? " gated" : "");
    if (model->mamba.heads > 0)
        used += snprintf(text + used, capacity - (size_t)used,
                         " mamba=%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32,
                         model->mamba.heads, model->mamba.head_dim, model->mamba.groups,
                         model->mamba.state, model->mamba.kernel);
    if (model->labels > 0)
        used += snprintf(text + used, capacity - (size_t)used, " labels=%" PRIu32, model->labels);
    if (model->short_kernel > 0)
        used +=
            snprintf(text + used, capacity - (size_t)used, " conv=%" PRIu32, model->short_kernel);
    if (model->latent.kv_rank > 0)
        snprintf(text + used, capacity - (size_t)used,
                 " latent=%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32,
                 model->latent.q_rank, model->latent.kv_rank, model->latent.plain_dim,
                 model->latent.rotary_dim, model->latent.value_dim);
    tdm_digest_text(text, model->digest);
    free(text);
    return TDM_OK;
}

enum tdm_status tdm_model_from_config(const char *file, const char *name, json_t *config,
                                      struct tdm_model **model, struct tdm_error *err)
{
    if (!json_is_object(config))
        return tdm_fail(err, TDM_INPUT, "%s: must hold a JSON object, { ... }", file);
    struct tdm_model *built = calloc(1, sizeof(*built));
    if (built == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a model", file);
    snprintf(built->name, sizeof(built->name), "%s", name);
    tdm_text_clean(built->name);
    built->config = json_incref(config);

    struct tdm_json_reader reader = {.file = file, .prefix = "", .object = config, .err = err};
    enum tdm_status status = tdm_config_read(&reader, built);
    if (status == TDM_OK)
        status = tdm_model_lay_out(&reader, built);
    if (status == TDM_OK)
        status = write_digest(built, err);
    if (status != TDM_OK) {
        tdm_model_free(built);
        return status;
    }
    *model = built;
    return TDM_OK;
}

void tdm_model_free(struct tdm_model *model)
{
    if (model == NULL)
        return;
    free(model->layer_kinds);
    free(model->tensors);
    free(model->units);
    json_decref(model->config);
    free(model);
}

enum tdm_status tdm_model_names(char ***names, struct tdm_error *err)
{
    return tdm_data_names(CONFIG_FOLDER, ".json", names, err);
}

/* A name for a model that came from a path: its last part, or the directory's name if the file is
 * called config.json. */
static void name_from_path(const char *path, char *out, size_t out_bytes)
{
    size_t end = strlen(path);
    size_t start = end;
    for (int part = 0; part < 2; part++) {
        size_t part_end = start;
        while (part_end > 0 && path[part_end - 1] == '/')
            part_end--;
        size_t part_start = part_end;
        while (part_start > 0 && path[part_start - 1] != '/')
            part_start--;
        if (part_start == part_end || (part == 1 && path[part_start] == '.'))
            break;
        start = part_start;
        end = part_end;
        if (end - start != strlen("config.json") ||
            strncmp(path + start, "config.json", end - start) != 0)
            break;
    }
    size_t length = end - start < out_bytes - 1 ? end - start : out_bytes - 1;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)path[start + i];
        out[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    out[length] = '\0';
}

static enum tdm_status load_file(const char *path, const char *name, struct tdm_model **model,
                                 struct tdm_error *err)
{
    json_t *config;
    enum tdm_status status = tdm_json_load(path, &config, err);
    if (status != TDM_OK)
        return status;
    status = tdm_model_from_config(path, name, config, model, err);
    json_decref(config);
    return status;
}

/* The path of the shipped config with this name, if there is one. */
static enum tdm_status find_shipped(const char *name, char *path, size_t path_bytes, bool *found,
                                    struct tdm_error *err)
{
    *found = false;
    if (name[0] == '\0' || strchr(name, '/') != NULL)
        return TDM_OK;
    enum tdm_status status = tdm_data_path(CONFIG_FOLDER, name, ".json", path, path_bytes, err);
    *found = status == TDM_OK && access(path, F_OK) == 0;
    return status;
}

bool tdm_model_is_directory(const char *model_or_path)
{
    char path[4096];
    bool shipped;
    struct stat info;
    return find_shipped(model_or_path, path, sizeof(path), &shipped, NULL) == TDM_OK && !shipped &&
           stat(model_or_path, &info) == 0 && S_ISDIR(info.st_mode);
}

enum tdm_status tdm_model_path(const char *model_or_path, char *out, size_t out_bytes,
                               struct tdm_error *err)
{
    bool shipped;
    enum tdm_status status = find_shipped(model_or_path, out, out_bytes, &shipped, err);
    if (status == TDM_OK && !shipped &&
        (size_t)snprintf(out, out_bytes, "%s", model_or_path) >= out_bytes)
        status = tdm_fail(err, TDM_INPUT, "%.256s: the name is too long", model_or_path);
    return status;
}

enum tdm_status tdm_model_load(const char *model_or_path, struct tdm_model **model,
                               struct tdm_error *err)
{
    char path[4096];
    bool shipped;
    char page[sizeof((*model)->name)];
    model_or_path = tdm_model_of_page(model_or_path, page, sizeof(page));
    enum tdm_status status = find_shipped(model_or_path, path, sizeof(path), &shipped, err);
    if (status != TDM_OK)
        return status;
    if (shipped)
        return load_file(path, model_or_path, model, err);

    struct stat info;
    if (model_or_path[0] == '\0' || stat(model_or_path, &info) != 0) {
        char meant[sizeof((*model)->name)];
        struct tdm_base_weights weights = {0};
        status = tdm_model_find_meant(model_or_path, meant, sizeof(meant), &weights, err);
        if (status == TDM_OK)
            status = tdm_model_load(meant, model, err);
        if (status == TDM_OK && (weights.kind != TDM_BASE_WHOLE || weights.stored != 0)) {
            (*model)->base = weights;
            (*model)->sized_only |= weights.kind != TDM_BASE_WHOLE;
        }
        return status;
    }
    char name[sizeof((*model)->name)];
    name_from_path(model_or_path, name, sizeof(name));
    if (!S_ISDIR(info.st_mode))
        return load_file(model_or_path, name, model, err);

    int length = snprintf(path, sizeof(path), "%s/config.json", model_or_path);
    if (length < 0 || (size_t)length >= sizeof(path))
        return tdm_fail(err, TDM_INPUT, "%.256s: the name of the directory is too long",
                        model_or_path);
    if (access(path, F_OK) != 0) {
        tdm_fail(err, TDM_INPUT, "%s: the directory holds no config.json", model_or_path);
        tdm_hint(err, "give the directory of a Hugging Face model, or the file itself");
        return TDM_INPUT;
    }
    return load_file(path, name, model, err);
}
