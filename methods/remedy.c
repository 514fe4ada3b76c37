/* SPDX-License-Identifier: Apache-2.0 */
/* The search for what makes it fit: changes one by one, then all of them less those that it does without. */
#include "methods/remedy_parts.h"

#include <string.h>

#define MOST_SUGGESTED 3u
#define MOST_GPUS 64u /* that are suggested */

struct search {
    const struct tdm_model *model;
    const struct tdm_machine *machine;
    double margin;
    struct tdm_variant asked; /* by the user */
    struct tdm_variant base;  /* what is changed: that, or another method's */
    struct tdm_method_prediction prediction;
    struct tdm_remedies *out;
};

static bool settle(const struct search *s, const struct tdm_variant *v,
                   struct tdm_method_settings *settings)
{
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = v->tokens;
    settings->torch.batch = v->batch;
    settings->torch.ranks = v->gpus;
    return tdm_method_settle(v->method, &v->choices, settings, NULL) == TDM_OK &&
           tdm_method_check(s->model, settings, NULL) == TDM_OK;
}

static enum tdm_status try_variant(struct search *s, const struct tdm_variant *v, bool *fits,
                                   struct tdm_error *err)
{
    struct tdm_method_settings settings;
    *fits = false;
    if (!settle(s, v, &settings))
        return TDM_OK; /* it cannot be run so */
    enum tdm_status status =
        tdm_method_predict(s->model, s->machine, &settings, s->margin, &s->prediction, err);
    *fits = status == TDM_OK && s->prediction.fits;
    return status;
}

static enum tdm_status try_set(struct search *s, const struct tdm_change_set *set, bool *fits,
                               struct tdm_error *err)
{
    struct tdm_variant changed;
    tdm_change_apply(&s->base, set, &changed);
    return try_variant(s, &changed, fits, err);
}

/* Of the last prediction. */
static void note(struct search *s, const struct tdm_change_set *set)
{
    if (s->out->count == TDM_REMEDY_MOST)
        return;
    struct tdm_remedy *remedy = &s->out->list[s->out->count++];
    tdm_change_list(&s->asked, &s->base, set, remedy);
    remedy->peak_bytes = s->prediction.steps[s->prediction.highest].used_bytes;
    remedy->gives_back = s->prediction.gives_back;
}

static struct tdm_change_set unchanged(const struct search *s)
{
    return (struct tdm_change_set){.batch = 1, .gpus = s->base.gpus};
}

/* ---- one change ---- */

/* The largest batch that fits, by halving, of a set in which the smallest does. */
static enum tdm_status raise_batch(struct search *s, struct tdm_change_set *set,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint64_t batch = s->base.batch / 2; status == TDM_OK && batch > 1; batch /= 2) {
        struct tdm_change_set larger = *set;
        bool fits;
        larger.batch = batch;
        status = try_set(s, &larger, &fits, err);
        if (fits) {
            *set = larger;
            return TDM_OK;
        }
    }
    bool fits;
    return status == TDM_OK ? try_set(s, set, &fits, err)
                            : status; /* predicts the smallest again */
}

static enum tdm_status try_singles(struct search *s, struct tdm_error *err)
{
    unsigned suggested = 0;
    for (size_t r = 0; r < tdm_change_rows(); r++) {
        struct tdm_change_set set = unchanged(s);
        bool is_batch = tdm_change_is_batch(r), fits;
        if (!tdm_change_applies(&s->base, r) || (!is_batch && suggested == MOST_SUGGESTED))
            continue;
        tdm_change_add(&set, r);
        enum tdm_status status = try_set(s, &set, &fits, err);
        if (status == TDM_OK && fits && is_batch)
            status = raise_batch(s, &set, err);
        if (status != TDM_OK)
            return status;
        if (!fits)
            continue;
        note(s, &set);
        suggested += !is_batch;
    }
    return TDM_OK;
}

/* ---- changes together ---- */

/* All changes that can be made together. Who takes more GPUs or another method need not learn something else. */
static struct tdm_change_set all_changes(const struct search *s, struct tdm_change_set set)
{
    struct tdm_method_settings settings;
    bool elsewhere = s->base.method != s->asked.method || set.gpus != s->asked.gpus;
    for (size_t r = 0; r < tdm_change_rows(); r++) {
        struct tdm_change_set more = set;
        struct tdm_variant changed;
        if (!tdm_change_applies(&s->base, r) || (elsewhere && tdm_change_is_of_result(r)))
            continue;
        tdm_change_add(&more, r);
        tdm_change_apply(&s->base, &more, &changed);
        if (settle(s, &changed, &settings))
            set = more;
    }
    return set;
}

/* Leaves out what it fits without, or makes do with less of it, the most costly first. */
static enum tdm_status leave_out(struct search *s, struct tdm_change_set *set,
                                 struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t r = tdm_change_rows(); status == TDM_OK && r-- > 0;) {
        struct tdm_change_set less = *set;
        bool fits;
        if ((set->rows >> r & 1) == 0)
            continue;
        less.rows &= ~(UINT64_C(1) << r);
        status = try_set(s, &less, &fits, err);
        size_t lesser = tdm_change_lesser(&s->base, r);
        if (status == TDM_OK && !fits && lesser != r) {
            tdm_change_add(&less, lesser);
            status = try_set(s, &less, &fits, err);
        }
        if (fits)
            *set = less;
    }
    return status;
}

static bool has_batch(const struct tdm_change_set *set)
{
    for (size_t r = 0; r < tdm_change_rows(); r++)
        if (tdm_change_is_batch(r))
            return (set->rows >> r & 1) != 0;
    return false;
}

/* The least set beside `start`'s GPUs; notes it if there is one. */
static enum tdm_status try_together(struct search *s, struct tdm_change_set start, bool *found,
                                    struct tdm_error *err)
{
    struct tdm_change_set set = all_changes(s, start);
    enum tdm_status status = try_set(s, &set, found, err);
    if (status != TDM_OK || !*found)
        return status;
    status = leave_out(s, &set, err);
    bool fits;
    if (status == TDM_OK)
        status = has_batch(&set) ? raise_batch(s, &set, err) : try_set(s, &set, &fits, err);
    if (status == TDM_OK)
        note(s, &set);
    return status;
}

/* ---- more GPUs ---- */

static bool has_pipeline(const struct search *s)
{
    const char *stages =
        tdm_method_value(s->base.method, &s->base.choices, "pipeline_model_parallel_size");
    return stages != NULL && strcmp(stages, "1") == 0;
}

/* Twice as many GPUs, and again; by all of them as the method has it, or by stages of a pipeline, each of as many as
 * there are. `with_changes`: and the changes that this needs. */
static enum tdm_status try_more_gpus(struct search *s, bool with_changes, bool *found,
                                     struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *found = false;
    for (uint64_t times = 2;
         status == TDM_OK && s->base.gpus * times <= MOST_GPUS && s->base.method->most_gpus > 1;
         times *= 2)
        for (int stages = 0; stages <= (has_pipeline(s) ? 1 : 0); stages++) {
            struct tdm_change_set set = unchanged(s);
            set.gpus = s->base.gpus * times;
            set.pipeline = stages ? times : 0;
            if (with_changes)
                status = try_together(s, set, found, err);
            else
                status = try_set(s, &set, found, err);
            if (status == TDM_OK && *found && !with_changes)
                note(s, &set);
            if (status != TDM_OK || *found)
                return status;
        }
    return status;
}

/* ---- another method ---- */

/* What was said goes along where the other method knows the words. */
static struct tdm_variant by_method(const struct search *s, const struct tdm_method *method)
{
    struct tdm_variant other = s->asked;
    const struct tdm_method_key *key;
    struct tdm_method_settings scratch;
    memset(&other.choices, 0, sizeof(other.choices));
    memset(&scratch, 0, sizeof(scratch));
    other.method = method;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++) {
        size_t asked = tdm_change_key(s->asked.method, key->name);
        const char *said = asked < TDM_METHOD_MOST_KEYS ? s->asked.choices.said[asked] : NULL;
        if (said != NULL && key->read != NULL && key->read(key, said, &scratch, NULL) == TDM_OK)
            other.choices.said[k] = said;
    }
    return other;
}

static enum tdm_status try_other_methods(struct search *s, struct tdm_error *err)
{
    static const char *const names[] = {"fsdp", "zero3-offload"};
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; status == TDM_OK && i < sizeof(names) / sizeof(names[0]); i++) {
        const struct tdm_method *method;
        status = tdm_method_find(names[i], &method, err);
        if (status != TDM_OK || method == s->asked.method)
            continue;
        s->base = by_method(s, method);
        bool found;
        status = try_together(s, unchanged(s), &found, err);
        if (status == TDM_OK && !found)
            status = try_more_gpus(s, true, &found, err);
    }
    s->base = s->asked;
    return status;
}

/* ---- a shorter context ---- */

/* The longest context in steps of 1K tokens; 0: not even 1K. */
static enum tdm_status find_longest(struct search *s, struct tdm_error *err)
{
    uint64_t low = 0, high = s->asked.tokens / 1024;
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && high - low > 1) {
        struct tdm_variant shorter = s->asked;
        uint64_t middle = low + (high - low) / 2;
        bool fits;
        shorter.tokens = middle * 1024;
        status = try_variant(s, &shorter, &fits, err);
        if (fits)
            low = middle;
        else
            high = middle;
    }
    s->out->longest_tokens = low * 1024;
    return status;
}

enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    struct tdm_remedies *out, struct tdm_error *err)
{
    struct search s = {.model = model, .machine = machine, .margin = margin, .out = out};
    bool found;
    s.asked = s.base = (struct tdm_variant){.method = method,
                                            .choices = *choices,
                                            .tokens = settings->torch.tokens,
                                            .batch = settings->torch.batch,
                                            .gpus = settings->torch.ranks};
    memset(out, 0, sizeof(*out));
    out->gpus = s.asked.gpus;
    enum tdm_status status = try_singles(&s, err);
    if (status == TDM_OK && out->count == 0)
        status = try_together(&s, unchanged(&s), &found, err);
    if (status == TDM_OK)
        status = try_more_gpus(&s, false, &found, err);
    if (status == TDM_OK && out->count == 0)
        status = try_more_gpus(&s, true, &found, err);
    if (status == TDM_OK && out->count == 0)
        status = try_other_methods(&s, err);
    return status == TDM_OK ? find_longest(&s, err) : status;
}
