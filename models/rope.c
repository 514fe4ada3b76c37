/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding: reads its parameters in both forms of config.json and computes the
 * frequencies. The old form is `rope_theta` beside `rope_scaling` with `type` or `rope_type`. The
 * new form is `rope_parameters`, which holds all of them.
 */
#include "models/parts.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

static const char *const rope_keys[] = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "partial_rotary_factor",
    "finetuned",
    NULL,
};

enum { ORIGINAL_CONTEXT_BITS = 40 };

static bool find_kind(const char *name, enum tdm_rope_kind *kind)
{
    static const struct {
        const char *name;
        enum tdm_rope_kind kind;
    } kinds[] = {
        {"default", TDM_ROPE_PLAIN},
        {"linear", TDM_ROPE_LINEAR},
        {"llama3", TDM_ROPE_LLAMA3},
        {"yarn", TDM_ROPE_YARN},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(name, kinds[i].name) == 0) {
            *kind = kinds[i].kind;
            return true;
        }
    }
    return false;
}

static void read_llama3(struct tdm_json_reader *reader, const struct tdm_model *model,
                        struct tdm_rope *rope)
{
    rope->low_frequency_factor = tdm_json_number(reader, "low_freq_factor", 1e-6, 1e6);
    rope->high_frequency_factor = tdm_json_number(reader, "high_freq_factor", 1e-6, 1e6);
    rope->original_context = tdm_json_count(reader, "original_max_position_embeddings", 1,
                                            UINT64_C(1) << ORIGINAL_CONTEXT_BITS);
    if (tdm_json_status(reader) == TDM_OK && !model->sized_only &&
        rope->high_frequency_factor <= rope->low_frequency_factor)
        tdm_json_fail(reader, "high_freq_factor",
                      "is %g; it must be greater than \"low_freq_factor\", %g",
                      rope->high_frequency_factor, rope->low_frequency_factor);
}

/* The attention scale for a factor (YaRN, section 3.4, equation 22), with the multipliers that
 * DeepSeek's configs added. */
static double yarn_scale(double factor, double multiplier)
{
    return factor <= 1 ? 1 : 0.1 * multiplier * log(factor) + 1;
}

static void read_yarn(struct tdm_json_reader *reader, const struct tdm_model *model,
                      struct tdm_rope *rope)
{
    rope->original_context =
        tdm_json_count_or(reader, "original_max_position_embeddings", 1,
                          UINT64_C(1) << ORIGINAL_CONTEXT_BITS, model->max_context);
    rope->beta_fast = tdm_json_number_or(reader, "beta_fast", 1e-6, 1e6, 32);
    rope->beta_slow = tdm_json_number_or(reader, "beta_slow", 1e-6, 1e6, 1);
    double mscale = tdm_json_number_or(reader, "mscale", 0, 1e3, 0);
    double mscale_all_dim = tdm_json_number_or(reader, "mscale_all_dim", 0, 1e3, 0);
    double scale = mscale != 0 && mscale_all_dim != 0
                       ? yarn_scale(rope->factor, mscale) / yarn_scale(rope->factor, mscale_all_dim)
                       : yarn_scale(rope->factor, 1);
    rope->attention_factor = tdm_json_number_or(reader, "attention_factor", 1e-6, 1e6, scale);
    if (!tdm_json_bool_or(reader, "truncate", true) && !model->sized_only)
        tdm_json_fail(reader, "truncate", "is false, which is not supported; remove it");
    if (tdm_json_status(reader) == TDM_OK && rope->beta_fast < rope->beta_slow)
        tdm_json_fail(reader, "beta_fast", "is %g; it must be at least \"beta_slow\", %g",
                      rope->beta_fast, rope->beta_slow);
}

static double read_theta(struct tdm_json_reader *reader, double fallback)
{
    return tdm_json_number_or(reader, "rope_theta", 2, 1e18, fallback);
}

/* Reads the object that holds the scaling, in either form. */
static void read_scaling(struct tdm_json_reader *reader, const struct tdm_model *model,
                         struct tdm_rope *rope)
{
    const char *key =
        tdm_json_has(reader, "rope_type") || !tdm_json_has(reader, "type") ? "rope_type" : "type";
    const char *name = tdm_json_string_or(reader, key, "default");
    if (tdm_json_status(reader) != TDM_OK)
        return;
    /* Its factors change angles, and no shape, so predictions need not know them. */
    if (model->sized_only &&
        (strcmp(name, "longrope") == 0 || json_object_get(reader->object, "mrope_section") != NULL))
        return;
    if (model->sized_only && (json_object_get(reader->object, "full_attention") != NULL ||
                              !find_kind(name, &rope->kind)))
        return; /* two objects, for layers with a window and without, or a kind of its own */
    if (!find_kind(name, &rope->kind)) {
        tdm_json_fail(reader, key,
                      "is \"%.40s\", which is not supported; supported are default, linear, "
                      "llama3 and yarn",
                      name);
        return;
    }
    if (!model->sized_only) /* others have keys of their own, which change numbers alone */
        tdm_json_only(reader, rope_keys);
    if ((model->parts & TDM_PART_CUT_ROPE) == 0 &&
        tdm_json_number_or(reader, "partial_rotary_factor", 0, 1, 1) != 1)
        tdm_json_fail(reader, "partial_rotary_factor",
                      "is not 1; only rotation of whole heads is supported");
    if (rope->kind != TDM_ROPE_PLAIN)
        rope->factor = tdm_json_number(reader, "factor", 1, 1e6);
    if (rope->kind == TDM_ROPE_LLAMA3)
        read_llama3(reader, model, rope);
    else if (rope->kind == TDM_ROPE_YARN)
        read_yarn(reader, model, rope);
}

enum tdm_status tdm_rope_read(struct tdm_json_reader *reader, struct tdm_model *model)
{
    bool is_new = tdm_json_has(reader, "rope_parameters");
    bool is_old = tdm_json_has(reader, "rope_scaling");
    struct tdm_rope rope = {.kind = TDM_ROPE_PLAIN, .attention_factor = 1};

    if (is_new && is_old)
        return tdm_json_fail(reader, "rope_scaling",
                             "stands beside \"rope_parameters\", which says the same in the new "
                             "spelling; remove one of them");
    /* The default of these architectures in transformers. */
    rope.theta = read_theta(reader, tdm_json_number_or(reader, "rotary_emb_base", 2, 1e18, 10000));
    if (is_new || is_old) {
        const char *key = is_new ? "rope_parameters" : "rope_scaling";
        struct tdm_json_reader inner = *reader;
        inner.prefix = key;
        inner.object = tdm_json_object(reader, key);
        inner.status = tdm_json_status(reader);
        if (is_new)
            rope.theta = read_theta(&inner, rope.theta);
        read_scaling(&inner, model, &rope);
        reader->status = tdm_json_status(&inner);
    }
    if (tdm_json_status(reader) == TDM_OK)
        model->rope = rope;
    return tdm_json_status(reader);
}

/* Llama 3.1: wavelengths shorter than original / high factor stay, and those longer than original /
 * low factor are stretched. Between them the change is smooth. */
static double llama3_frequency(const struct tdm_rope *rope, double frequency)
{
    double turns = (double)rope->original_context * frequency / (2 * PI);
    if (turns < rope->low_frequency_factor)
        return frequency / rope->factor;
    if (turns > rope->high_frequency_factor)
        return frequency;
    double smooth = (turns - rope->low_frequency_factor) /
                    (rope->high_frequency_factor - rope->low_frequency_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* The dimension that makes `turns` rotations over the original context (YaRN, section 3.2). */
static double yarn_dimension(const struct tdm_rope *rope, uint32_t head_dim, double turns)
{
    return head_dim * log((double)rope->original_context / (turns * 2 * PI)) /
           (2 * log(rope->theta));
}

void tdm_rope_inverse_frequencies(const struct tdm_rope *rope, uint32_t head_dim,
                                  double *inverse_frequencies, double *attention_factor)
{
    double low = 0;
    double high = 0;
    if (rope->kind == TDM_ROPE_YARN) {
        low = fmax(floor(yarn_dimension(rope, head_dim, rope->beta_fast)), 0);
        high = fmin(ceil(yarn_dimension(rope, head_dim, rope->beta_slow)), head_dim - 1.0);
        if (low == high)
            high += 0.001; /* as in transformers, to keep the ramp finite */
    }

    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * i / head_dim);
        switch (rope->kind) {
        case TDM_ROPE_PLAIN:
            break;
        case TDM_ROPE_LINEAR:
            frequency /= rope->factor;
            break;
        case TDM_ROPE_LLAMA3:
            frequency = llama3_frequency(rope, frequency);
            break;
        case TDM_ROPE_YARN: {
            double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            frequency = frequency / rope->factor * ramp + frequency * (1 - ramp);
            break;
        }
        }
        inverse_frequencies[i] = frequency;
    }
    *attention_factor = rope->attention_factor;
}
