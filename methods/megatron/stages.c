/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers a stage of a pipeline has, and each of its virtual stages: evenly, with other
 * numbers at the ends, with embedding and loss counted as layers, or by a layout that names every
 * one. Sources: megatron/core/transformer/{transformer_block.py get_num_layers_to_build,
 * pipeline_parallel_layer_layout.py}, megatron/training/arguments.py validate_args.
 */
#include "methods/megatron/parts.h"

#include "base/size.h"
#include "methods/divisors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUT "--set pipeline_model_parallel_layout"
#define MOST_LETTERS 4096u /* of a layout without its multiplications */
#define MOST_DIGITS 4u

/* ---- layouts: "Et*3|(tt|)*6L" ---- */

static bool add_times(char *out, size_t *length, const char *text, size_t span, unsigned long times)
{
    for (unsigned long i = 0; i < times; i++) {
        if (*length + span >= MOST_LETTERS)
            return false;
        memcpy(out + *length, text, span);
        *length += span;
    }
    out[*length] = '\0';
    return true;
}

/* The number of "*N" at `text`, after which *end is; 1 where there is none. */
static unsigned long times_at(const char *text, const char **end)
{
    char *after;
    *end = text;
    if (*text != '*' || text[1] < '0' || text[1] > '9' ||
        strspn(text + 1, "0123456789") > MOST_DIGITS)
        return 1;
    const unsigned long times = strtoul(text + 1, &after, 10);
    *end = after;
    return times;
}

/* Writes out the multiplications of brackets, or those of single letters. */
static bool expand(const char *text, bool brackets, char *out)
{
    size_t length = 0;
    out[0] = '\0';
    while (*text != '\0') {
        const char *close = brackets && *text == '(' ? strchr(text, ')') : NULL, *end = text + 1;
        const char *what = text;
        size_t span = 1;
        unsigned long times = 1;
        if (close != NULL && close[1] == '*') {
            what = text + 1;
            span = (size_t)(close - what);
            times = times_at(close + 1, &end);
        } else if (!brackets) {
            times = times_at(text + 1, &end);
        }
        if (*text != ',' && !add_times(out, &length, what, span, times))
            return false;
        text = end;
    }
    return true;
}

/* The layout, stage by stage: "Ettt|tt|L". */
static enum tdm_status read_layout(const struct tdm_model *model, const char *layout, char *out,
                                   uint64_t *stages, struct tdm_error *err)
{
    char half[MOST_LETTERS];
    uint64_t layers = 0;
    if (strlen(layout) >= MOST_LETTERS || !expand(layout, true, half) || !expand(half, false, out))
        return tdm_fail(err, TDM_USAGE, LAYOUT ": longer than %u layers and stages", MOST_LETTERS);
    const size_t length = strlen(out), odd = strspn(out, "EtL|");
    *stages = 1;
    for (size_t i = 0; i < length; i++) {
        *stages += out[i] == '|';
        layers += out[i] == 't';
    }
    if (odd < length)
        return tdm_fail(err, TDM_USAGE,
                        out[odd] == 'm' ? LAYOUT ": heads of later tokens (%c) are not modelled"
                        : strchr("*()0123456789", out[odd]) != NULL ? LAYOUT
                            ": \"%c\" is misplaced; expected *N, of at most 4 digits, behind a "
                            "letter or (...), without brackets inside"
                                                                    : LAYOUT
                            ": \"%c\" is not known; expected E, t, L and |",
                        out[odd]);
    if (length < 2 || out[0] != 'E' || out[length - 1] != 'L' || strrchr(out, 'E') != out ||
        strchr(out, 'L') != out + length - 1)
        return tdm_fail(err, TDM_USAGE,
                        LAYOUT ": expected one E at the beginning and one L at the end");
    return layers == model->layers
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, LAYOUT ": has %" PRIu64 " layers; %s has %" PRIu32,
                          layers, model->name, model->layers);
}

/* Layers of a virtual stage, counted from the first. */
static uint64_t layers_of_layout(const char *layout, uint64_t number)
{
    uint64_t layers = 0;
    for (; *layout != '\0' && (number > 0 || *layout != '|'); layout++) {
        number -= *layout == '|';
        layers += number == 0 && *layout == 't';
    }
    return layers;
}

/* ---- numbers ---- */

struct division {
    const struct tdm_megatron_settings *set;
    uint64_t stages, chunks; /* of a stage */
    uint64_t each;           /* layers of a stage, with ends that count; not of uneven ones */
    char layout[MOST_LETTERS];
};

static enum tdm_status refuse_stages(const struct tdm_model *model,
                                     const struct tdm_megatron_settings *s, uint64_t stages,
                                     struct tdm_error *err)
{
    char divisors[TDM_DIVISORS_BYTES];
    const uint64_t ends = (uint64_t)s->counts_embedding + s->counts_loss;
    if (s->first_layers > 0 || s->last_layers > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set decoder_%s_pipeline_num_layers: what it leaves of %" PRIu32
                        " layers is not the same number on each of the other stages of %" PRIu64,
                        s->first_layers > 0 ? "first" : "last", model->layers, stages);
    tdm_fail(err, TDM_USAGE,
             "--set pipeline_model_parallel_size: %" PRIu64 " does not divide %" PRIu64 " layers",
             stages, model->layers + ends);
    return tdm_hint(err, "sizes that do: %s",
                    tdm_divisors_format(model->layers + ends, 1, UINT64_MAX, divisors));
}

/* Layers of a stage before its virtual stages divide them. */
static uint64_t layers_of_stage(const struct division *d, uint64_t stage)
{
    if (stage == 0 && d->set->first_layers > 0)
        return d->set->first_layers;
    if (stage + 1 == d->stages && d->set->last_layers > 0)
        return d->set->last_layers;
    return d->each;
}

/* Of virtual stage `number` of all of them, stage by stage. */
static uint64_t layers_at(const struct division *d, uint64_t number)
{
    const struct tdm_megatron_settings *s = d->set;
    if (d->layout[0] != '\0')
        return layers_of_layout(d->layout, number);
    uint64_t layers = layers_of_stage(d, number % d->stages) / d->chunks;
    layers -= s->counts_embedding && number == 0;
    return layers - (s->counts_loss && number + 1 == d->stages * d->chunks);
}

static enum tdm_status divide_evenly(const struct tdm_model *model, struct division *d,
                                     struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = d->set;
    const uint64_t said[] = {s->first_layers, s->last_layers};
    uint64_t layers = model->layers + s->counts_embedding + s->counts_loss, even = d->stages;
    for (unsigned i = 0; i < 2; i++) {
        if (said[i] > layers)
            return refuse_stages(model, s, d->stages, err);
        layers -= said[i];
        even -= said[i] > 0;
    }
    if ((even == 0 && layers > 0) || (even > 0 && (layers == 0 || layers % even != 0)))
        return refuse_stages(model, s, d->stages, err);
    d->each = even > 0 ? layers / even : 0;
    return TDM_OK;
}

/* Virtual stages of a stage, from either of two keys. */
static enum tdm_status count_chunks(struct division *d, struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = d->set;
    const bool uneven = s->first_layers > 0 || s->last_layers > 0;
    if (s->virtual_layers > 0 && s->virtual_stages > 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set num_virtual_stages_per_pipeline_rank: not beside "
                        "num_layers_per_virtual_pipeline_stage");
    if (s->virtual_layers > 0 && uneven) {
        tdm_fail(err, TDM_USAGE,
                 "--set num_layers_per_virtual_pipeline_stage: not with uneven stages");
        return tdm_hint(err, "num_virtual_stages_per_pipeline_rank divides each of them");
    }
    if (s->virtual_layers > 0 && d->each % s->virtual_layers != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--set num_layers_per_virtual_pipeline_stage: %" PRIu64
                        " does not divide the %" PRIu64 " layers of a stage",
                        s->virtual_layers, d->each);
    d->chunks = s->virtual_layers > 0   ? d->each / s->virtual_layers
                : s->virtual_stages > 0 ? s->virtual_stages
                                        : 1;
    for (uint64_t i = 0; i < d->stages; i++)
        if (layers_of_stage(d, i) % d->chunks != 0)
            return tdm_fail(err, TDM_USAGE,
                            "--set num_virtual_stages_per_pipeline_rank: %" PRIu64
                            " does not divide the %" PRIu64 " layers of stage %" PRIu64,
                            d->chunks, layers_of_stage(d, i), i);
    return TDM_OK;
}

static enum tdm_status divide_by_layout(const struct tdm_model *model, struct division *d,
                                        struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = d->set;
    uint64_t all = 0;
    const char *what = s->first_layers > 0     ? "decoder_first_pipeline_num_layers"
                       : s->last_layers > 0    ? "decoder_last_pipeline_num_layers"
                       : s->counts_embedding   ? "account_for_embedding_in_pipeline_split"
                       : s->counts_loss        ? "account_for_loss_in_pipeline_split"
                       : s->virtual_layers > 0 ? "num_layers_per_virtual_pipeline_stage"
                       : s->virtual_stages > 0 ? "num_virtual_stages_per_pipeline_rank"
                                               : NULL;
    if (what != NULL)
        return tdm_fail(err, TDM_USAGE, LAYOUT ": it says all of %s; leave that out", what);
    enum tdm_status status = read_layout(model, s->stage_layout, d->layout, &all, err);
    if (status == TDM_OK && all % d->stages != 0)
        status = tdm_fail(err, TDM_USAGE,
                          LAYOUT ": %" PRIu64 " stages are not a multiple of the %" PRIu64
                                 " of pipeline_model_parallel_size",
                          all, d->stages);
    if (status == TDM_OK)
        d->chunks = all / d->stages;
    return status;
}

static uint64_t layers_of_all(const struct division *d, uint64_t stage)
{
    uint64_t layers = 0;
    for (uint64_t c = 0; c < d->chunks; c++)
        layers += layers_at(d, c * d->stages + stage);
    return layers;
}

/* Of the stages between the ends, the one of this number among those with more layers than each
 * between before it. *count (may be NULL): how many these are. */
static uint64_t fuller_between(const struct division *d, uint64_t number, uint64_t *count)
{
    uint64_t found = 1, most = 0, seen = 0;
    for (uint64_t i = 1; i + 1 < d->stages; i++) {
        const uint64_t layers = layers_of_all(d, i);
        if (layers <= most)
            continue;
        most = layers;
        found = seen++ == number ? i : found;
    }
    if (count != NULL)
        *count = seen;
    return found;
}

/* The stage that was asked for, or that is run of several. */
static uint64_t stage_of(const struct division *d)
{
    const struct tdm_megatron_settings *s = d->set;
    if (s->rank == TDM_RANK_BETWEEN || (s->rank == TDM_RANK_HIGHEST && s->run == TDM_RUN_BETWEEN))
        return fuller_between(d, s->between, NULL);
    return s->rank == TDM_RANK_LAST || s->run == TDM_RUN_LAST ? d->stages - 1 : 0;
}

static enum tdm_status fill(const struct division *d, struct tdm_megatron_layout *l,
                            struct tdm_error *err)
{
    const struct tdm_megatron_settings *s = d->set;
    if (d->chunks > TDM_MEGATRON_CHUNKS)
        return tdm_fail(err, TDM_USAGE,
                        "--set num_virtual_stages_per_pipeline_rank: %" PRIu64
                        "; expected at most %u virtual stages on a GPU",
                        d->chunks, TDM_MEGATRON_CHUNKS);
    l->chunks = d->chunks;
    if (d->layout[0] != '\0' || s->first_layers > 0 || s->counts_embedding ||
        s->rank == TDM_RANK_BETWEEN)
        fuller_between(d, 0, &l->between);
    l->stage = stage_of(d);
    for (uint64_t c = 0; c < d->chunks; c++) {
        const uint64_t number = c * d->stages + l->stage;
        l->layers[c] = (uint32_t)layers_at(d, number);
        l->stage_layers += l->layers[c];
        for (uint64_t i = 0; i < number; i++)
            l->offsets[c] += (uint32_t)layers_at(d, i);
    }
    return TDM_OK;
}

static enum tdm_status check_ends(const struct tdm_megatron_settings *s, struct tdm_error *err)
{
    const bool uneven = s->first_layers > 0 || s->last_layers > 0;
    if (!uneven || (!s->counts_embedding && !s->counts_loss))
        return TDM_OK;
    return tdm_fail(
        err, TDM_USAGE,
        "--set account_for_%s_in_pipeline_split: not with decoder_%s_pipeline_num_layers",
        s->counts_embedding ? "embedding" : "loss", s->first_layers > 0 ? "first" : "last");
}

static enum tdm_status count_microbatches(const struct tdm_megatron_settings *s,
                                          struct tdm_megatron_layout *l, struct tdm_error *err)
{
    l->microbatches = s->microbatches;
    l->group = s->group == 0 ? l->pipeline : s->group;
    if (l->microbatches == 0)
        l->microbatches = l->pipeline == 1 ? 1 : 2 * (l->chunks > 1 ? l->group : l->pipeline);
    if (l->chunks > 1 && l->group < l->pipeline)
        return tdm_fail(err, TDM_USAGE,
                        "--set microbatch_group_size_per_vp_stage: expected at least as many as "
                        "the %" PRIu64 " stages of the pipeline",
                        l->pipeline);
    const uint64_t left = l->microbatches % l->group; /* schedules.py: none, or one a stage */
    if (l->chunks > 1 && left > 0 && left < l->pipeline)
        return tdm_fail(err, TDM_USAGE,
                        "--set num_microbatches: %" PRIu64 " is not a multiple of the %" PRIu64
                        " stages that are interleaved",
                        l->microbatches, l->group);
    return TDM_OK;
}

enum tdm_status megatron_divide_layers(const struct tdm_model *model,
                                       const struct tdm_megatron_settings *s,
                                       struct tdm_megatron_layout *l, struct tdm_error *err)
{
    struct division d = {.set = s, .stages = l->pipeline, .chunks = 1, .each = model->layers};
    enum tdm_status status = TDM_OK;
    d.layout[0] = '\0';
    if (l->pipeline < 3 && s->rank == TDM_RANK_BETWEEN)
        return tdm_fail(err, TDM_USAGE, "--set rank=between: needs a pipeline of 3 stages or more");
    if (l->pipeline == 1) {
        if (s->virtual_stages > 1 || (s->virtual_layers > 0 && s->virtual_layers < model->layers))
            return tdm_fail(err, TDM_USAGE, "--set %s: needs a pipeline",
                            s->virtual_stages > 1 ? "num_virtual_stages_per_pipeline_rank"
                                                  : "num_layers_per_virtual_pipeline_stage");
        l->chunks = 1;
        l->layers[0] = model->layers;
        l->stage_layers = model->layers;
        return count_microbatches(s, l, err);
    }
    if (s->stage_layout != NULL) {
        status = divide_by_layout(model, &d, err);
    } else {
        status = check_ends(s, err);
        if (status == TDM_OK)
            status = divide_evenly(model, &d, err);
        if (status == TDM_OK)
            status = count_chunks(&d, err);
    }
    if (status == TDM_OK)
        status = fill(&d, l, err);
    return status == TDM_OK ? count_microbatches(s, l, err) : status;
}
