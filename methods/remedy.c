/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for remedies: it tries single changes, then all changes together, and leaves out
 * those that are not needed. Changes with a larger effect are tried later; tdm_method_remedies()
 * has the order.
 */
#include "methods/remedy_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SUGGESTED 3u
#define MOST_GPUS 64u    /* upper limit of what is suggested */
#define TEXT_BYTES 1024u /* of a variant */
#define LAYER_WORK 300u  /* fixed work of a prediction beside its run, for each layer */
/* What a prediction may take where less is left: most take less. */
#define TRY_WORK 500000u

/* A variant that was predicted. Its text identifies it, except for the host's memory. */
struct tried {
    char text[TEXT_BYTES];
    struct tdm_method_prediction prediction;
};

struct search {
    const struct tdm_model *model;
    const struct tdm_machine *machine;
    double margin;
    bool host_is_short; /* in the prediction of what the user asked for */
    bool only_host_is_short;
    unsigned suggested;       /* number of single changes */
    struct tdm_variant asked; /* what the user asked for */
    struct tdm_variant base;  /* the variant to change: `asked`, or that of another method */
    struct tdm_method_prediction prediction;
    struct tried *tried;
    size_t tried_count, tried_capacity;
    uint64_t work, most_work;
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

/* False: the text is too long to be remembered. */
static bool write_text(const struct tdm_variant *v, char text[TEXT_BYTES])
{
    int used = snprintf(text, TEXT_BYTES, "%s %" PRIu64 " %" PRIu64 " %" PRIu64, v->method->name,
                        v->tokens, v->batch, v->gpus);
    for (size_t k = 0; k < TDM_METHOD_MOST_KEYS && used < (int)TEXT_BYTES; k++)
        if (v->choices.said[k] != NULL)
            used +=
                snprintf(text + used, TEXT_BYTES - (size_t)used, " %zu=%s", k, v->choices.said[k]);
    return used < (int)TEXT_BYTES;
}

static const struct tried *find_tried(const struct search *s, const char *text)
{
    for (size_t i = 0; i < s->tried_count; i++)
        if (strcmp(s->tried[i].text, text) == 0)
            return &s->tried[i];
    return NULL;
}

/* Remembers the last prediction. If memory runs out, the variant is predicted again next time. */
static void remember(struct search *s, const char text[TEXT_BYTES])
{
    if (s->tried_count == s->tried_capacity) {
        size_t capacity = s->tried_capacity == 0 ? 32 : 2 * s->tried_capacity;
        struct tried *moved = realloc(s->tried, capacity * sizeof(*moved));
        if (moved == NULL)
            return;
        s->tried = moved;
        s->tried_capacity = capacity;
    }
    struct tried *tried = &s->tried[s->tried_count++];
    memcpy(tried->text, text, TEXT_BYTES);
    tried->prediction = s->prediction;
}

/* What a prediction may take; 0: no limit. */
static uint64_t try_work(const struct search *s)
{
    const uint64_t left = s->work < s->most_work ? s->most_work - s->work : 0;
    return s->most_work == 0 || left > TRY_WORK ? left : TRY_WORK;
}

static enum tdm_status try_variant(struct search *s, const struct tdm_variant *v, bool *fits,
                                   struct tdm_error *err)
{
    struct tdm_method_settings settings;
    struct tdm_method_prediction *p = &s->prediction;
    char text[TEXT_BYTES];
    *fits = false;
    bool lasts = write_text(v, text);
    const struct tried *tried = lasts ? find_tried(s, text) : NULL;
    if (tried != NULL) {
        *p = tried->prediction;
    } else {
        if (!settle(s, v, &settings))
            return TDM_OK; /* these settings cannot be run */
        enum tdm_status status =
            tdm_method_try(s->model, s->machine, &settings, s->margin, try_work(s), p, err);
        if (status != TDM_OK)
            return status;
        if (p->ended)
            s->out->complete = false;
        s->work += p->work + (uint64_t)s->model->layers * LAYER_WORK;
        if (lasts)
            remember(s, text);
    }
    p->fits_host = v->any_host || p->host_peak_bytes <= tdm_machine_far(s->machine)->capacity_bytes;
    *fits = p->fits = p->fits_device && p->fits_host;
    return TDM_OK;
}

/* Is the limit of work reached? The result is then marked incomplete. */
static bool is_over(struct search *s)
{
    if (s->most_work == 0 || s->work < s->most_work)
        return false;
    s->out->complete = false;
    return true;
}

static enum tdm_status try_set(struct search *s, const struct tdm_change_set *set, bool *fits,
                               struct tdm_error *err)
{
    struct tdm_variant changed;
    tdm_change_apply(&s->base, set, &changed);
    return try_variant(s, &changed, fits, err);
}

/* Adds a remedy with the figures of the last prediction. */
static void note(struct search *s, const struct tdm_change_set *set)
{
    if (s->out->count == TDM_REMEDY_MOST)
        return;
    struct tdm_remedy *remedy = &s->out->list[s->out->count++];
    remedy->peak_bytes = s->prediction.steps[s->prediction.highest].used_bytes;
    remedy->gives_back = s->prediction.gives_back;
    remedy->kept_bytes = s->prediction.kept_bytes;
    remedy->host_peak_bytes = s->prediction.host_peak_bytes;
    tdm_change_list(&s->asked, &s->base, set, remedy);
}

static struct tdm_change_set unchanged(const struct search *s)
{
    return (struct tdm_change_set){.batch = 1, .gpus = s->base.gpus};
}

/* ---- one change ---- */

/* Finds the largest batch that fits by halving it. `set` has the smallest batch, which fits. */
static enum tdm_status raise_batch(struct search *s, struct tdm_change_set *set,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint64_t batch = s->base.batch / 2; status == TDM_OK && batch > 1 && !is_over(s);
         batch /= 2) {
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
                            : status; /* restores the prediction of the smallest */
}

/* Tries single settings with these effects, until three are suggested. */
static enum tdm_status try_singles(struct search *s, enum tdm_effect from, enum tdm_effect to,
                                   struct tdm_error *err)
{
    for (size_t r = 0; r < tdm_change_rows() && s->suggested < MOST_SUGGESTED; r++) {
        struct tdm_change_set set = unchanged(s);
        if (is_over(s))
            return TDM_OK;
        enum tdm_effect effect = tdm_change_effect(r);
        bool fits, gives = tdm_change_host_use(r) == TDM_HOST_GIVES;
        if (effect < from || effect > to || tdm_change_is_batch(r) ||
            (gives && !s->host_is_short) || !tdm_change_applies(&s->base, r))
            continue;
        tdm_change_add(&set, r);
        enum tdm_status status = try_set(s, &set, &fits, err);
        if (status != TDM_OK)
            return status;
        if (!fits)
            continue;
        note(s, &set);
        s->suggested++;
    }
    return TDM_OK;
}

static enum tdm_status try_batch(struct search *s, struct tdm_error *err)
{
    struct tdm_change_set set = unchanged(s);
    bool fits = false;
    enum tdm_status status = TDM_OK;
    for (size_t r = 0; r < tdm_change_rows(); r++)
        if (tdm_change_is_batch(r) && tdm_change_applies(&s->base, r)) {
            tdm_change_add(&set, r);
            status = try_set(s, &set, &fits, err);
        }
    if (status == TDM_OK && fits) {
        status = raise_batch(s, &set, err);
        if (status == TDM_OK)
            note(s, &set);
    }
    return status;
}

/* ---- changes together ---- */

static bool can_run(const struct search *s, const struct tdm_change_set *set)
{
    struct tdm_method_settings settings;
    struct tdm_variant changed;
    tdm_change_apply(&s->base, set, &changed);
    return settle(s, &changed, &settings);
}

/* Adds to the set the first `most_changes` changes up to an effect that can be combined. Changes
 * that free host memory are left out. *all: there are no more. */
static struct tdm_change_set first_changes(const struct search *s, struct tdm_change_set set,
                                           enum tdm_effect most, size_t most_changes, bool *all)
{
    *all = true;
    for (size_t r = 0; r < tdm_change_rows(); r++) {
        struct tdm_change_set more = set;
        if (tdm_change_effect(r) > most || tdm_change_host_use(r) == TDM_HOST_GIVES ||
            !tdm_change_applies(&s->base, r))
            continue;
        tdm_change_add(&more, r);
        if (!can_run(s, &more))
            continue;
        if (most_changes-- == 0) {
            *all = false;
            break;
        }
        set = more;
    }
    return set;
}

/* For a set that fits, or fits but for host memory: removes changes that take host memory, then
 * adds changes that free it, until it fits. */
static enum tdm_status spare_host(struct search *s, struct tdm_change_set *set, bool *fits,
                                  struct tdm_error *err)
{
    enum tdm_status status = try_set(s, set, fits, err);
    for (size_t r = tdm_change_rows(); status == TDM_OK && !*fits && r-- > 0 && !is_over(s);) {
        if ((set->rows >> r & 1) == 0 || tdm_change_host_use(r) != TDM_HOST_TAKES)
            continue;
        if (s->prediction.fits_host)
            return TDM_OK; /* host memory is not what is short */
        set->rows &= ~(UINT64_C(1) << r);
        status = try_set(s, set, fits, err);
    }
    for (size_t r = 0; status == TDM_OK && !*fits && r < tdm_change_rows() && !is_over(s); r++) {
        struct tdm_change_set more = *set;
        if (tdm_change_host_use(r) != TDM_HOST_GIVES || s->prediction.fits_host ||
            !tdm_change_applies(&s->base, r))
            continue;
        tdm_change_add(&more, r);
        if (!can_run(s, &more))
            continue;
        *set = more;
        status = try_set(s, set, fits, err);
    }
    return status;
}

/* Leaves out each change that is not needed, the most costly first, or replaces it by a smaller
 * change of the same key. */
static enum tdm_status leave_out_once(struct search *s, struct tdm_change_set *set,
                                      struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t r = tdm_change_rows(); status == TDM_OK && r-- > 0;) {
        struct tdm_change_set less = *set;
        bool fits;
        if ((set->rows >> r & 1) == 0)
            continue;
        if (is_over(s))
            return TDM_OK; /* the current set fits */
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

/* Does one of the changes suffice alone? Tries the cheapest first. A set that does not fit is
 * predicted quickly. */
static enum tdm_status keep_one(struct search *s, struct tdm_change_set *set, bool *kept,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *kept = false;
    for (size_t r = 0; status == TDM_OK && !*kept && r < tdm_change_rows() && !is_over(s); r++) {
        struct tdm_change_set one = *set;
        one.rows &= UINT64_C(1) << r;
        if (one.rows == 0 || one.rows == set->rows)
            continue;
        status = try_set(s, &one, kept, err);
        if (*kept)
            *set = one;
    }
    return status;
}

/* Leaves changes out until none can be. One pass is not enough: a change that saves memory on one
 * device may take memory on the other. */
static enum tdm_status leave_out(struct search *s, struct tdm_change_set *set,
                                 struct tdm_error *err)
{
    uint64_t before;
    bool kept;
    enum tdm_status status = keep_one(s, set, &kept, err);
    if (status != TDM_OK || kept)
        return status;
    do {
        before = set->rows;
        status = leave_out_once(s, set, err);
    } while (status == TDM_OK && set->rows != before);
    return status;
}

static bool has_batch(const struct tdm_change_set *set)
{
    for (size_t r = 0; r < tdm_change_rows(); r++)
        if (tdm_change_is_batch(r))
            return (set->rows >> r & 1) != 0;
    return false;
}

/* Finds a set up to an effect that fits: tries the two cheapest changes, then twice as many, and so
 * on, because costly changes are also slow to predict. */
static enum tdm_status find_enough(struct search *s, struct tdm_change_set start,
                                   enum tdm_effect most, struct tdm_change_set *set, bool *found,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    bool all = false;
    *found = false;
    for (size_t count = 2; status == TDM_OK && !*found && !all && !is_over(s); count *= 2) {
        *set = first_changes(s, start, most, count, &all);
        status = spare_host(s, set, found, err);
    }
    return status;
}

/* Finds a minimal set up to an effect, with the GPUs and host memory of `start`, and adds it as a
 * remedy. */
static enum tdm_status try_together(struct search *s, struct tdm_change_set start,
                                    enum tdm_effect most, bool *found, struct tdm_error *err)
{
    struct tdm_change_set set;
    enum tdm_status status = find_enough(s, start, most, &set, found, err);
    if (status != TDM_OK || !*found)
        return status;
    status = leave_out(s, &set, err);
    bool fits;
    if (status == TDM_OK)
        status = has_batch(&set) ? raise_batch(s, &set, err) : try_set(s, &set, &fits, err);
    if (status == TDM_OK && set.any_host &&
        s->prediction.host_peak_bytes <= tdm_machine_far(s->machine)->capacity_bytes)
        set.any_host = false;
    if (status == TDM_OK && (set.any_host || !start.any_host || s->out->count == 0))
        note(s, &set); /* else it is already among them */
    return status;
}

/* The same with the GPUs of the base. */
static enum tdm_status try_here(struct search *s, bool any_host, enum tdm_effect most,
                                struct tdm_error *err)
{
    struct tdm_change_set start = unchanged(s);
    bool found;
    start.any_host = any_host;
    return try_together(s, start, most, &found, err);
}

/* Tries unlimited host memory without other changes, if only the host is short. */
static enum tdm_status try_more_host(struct search *s, struct tdm_error *err)
{
    struct tdm_change_set set = unchanged(s);
    bool fits;
    if (!s->only_host_is_short)
        return TDM_OK;
    set.any_host = true;
    enum tdm_status status = try_set(s, &set, &fits, err);
    if (status == TDM_OK && fits)
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

/* Tries twice as many GPUs, then four times, and so on. The additional GPUs are used as the method
 * uses its GPUs, or as pipeline stages of as many GPUs as now. `with_changes`: together with
 * changes of settings. */
static enum tdm_status try_more_gpus(struct search *s, bool with_changes, bool *found,
                                     struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    *found = false;
    for (uint64_t times = 2;
         status == TDM_OK && s->base.gpus * times <= MOST_GPUS && s->base.method->most_gpus > 1;
         times *= 2)
        for (int stages = 0; stages <= (has_pipeline(s) ? 1 : 0); stages++) {
            if (is_over(s))
                return TDM_OK;
            struct tdm_change_set set = unchanged(s);
            set.gpus = s->base.gpus * times;
            set.pipeline = stages ? times : 0;
            if (with_changes)
                status = try_together(s, set, TDM_EFFECT_MACHINE, found, err);
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

/* What the user asked for, by another method. Keys that it also has, with values that it accepts,
 * are kept. */
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

/* Does another method lack a key by which the user chose what is trained? It would train other
 * tensors. */
static bool trains_others(const struct search *s, const struct tdm_variant *other)
{
    static const char *const names[] = {"lora_rank", "peft_type", "quantization", "use_dora",
                                        "modules_to_save"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const size_t asked = tdm_change_key(s->asked.method, names[i]);
        const size_t kept = tdm_change_key(other->method, names[i]);
        if (asked < TDM_METHOD_MOST_KEYS && s->asked.choices.said[asked] != NULL &&
            (kept >= TDM_METHOD_MOST_KEYS || other->choices.said[kept] == NULL))
            return true;
    }
    return false;
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
        if (trains_others(s, &s->base))
            continue;
        bool found;
        size_t noted = s->out->count;
        const bool divides = s->base.gpus >= method->least_gpus; /* on one GPU it helps nothing */
        if (divides)
            status = try_here(s, false, TDM_EFFECT_MACHINE, err);
        if (divides && status == TDM_OK && s->out->count == noted)
            status = try_here(s, true, TDM_EFFECT_MACHINE, err);
        if (status == TDM_OK && s->out->count == noted)
            status = try_more_gpus(s, true, &found, err);
    }
    s->base = s->asked;
    return status;
}

/* ---- all ---- */

static bool is_answered_here(const struct tdm_remedies *remedies)
{
    for (size_t i = 0; i < remedies->count; i++)
        if (!remedies->list[i].elsewhere)
            return true;
    return false;
}

/* Tries settings, a smaller batch, and both. */
static enum tdm_status look_here(struct search *s, struct tdm_error *err)
{
    enum tdm_status status = try_singles(s, TDM_EFFECT_TIME, TDM_EFFECT_NUMERICS, err);
    if (status == TDM_OK && s->out->count == 0 && !is_over(s))
        status = try_here(s, false, TDM_EFFECT_NUMERICS, err);
    if (status == TDM_OK && !is_over(s))
        status = try_batch(s, err);
    if (status == TDM_OK && s->out->count == 0 && !is_over(s))
        status = try_here(s, false, TDM_EFFECT_MACHINE, err);
    return status;
}

/* Tries more host memory, more GPUs, and another method. */
static enum tdm_status look_elsewhere(struct search *s, struct tdm_error *err)
{
    bool found = false;
    enum tdm_status status = is_over(s) ? TDM_OK : try_more_host(s, err);
    if (status == TDM_OK && !is_over(s))
        status = try_more_gpus(s, false, &found, err);
    if (status == TDM_OK && !s->only_host_is_short &&
        (s->host_is_short || !is_answered_here(s->out)) && !is_over(s))
        status = try_here(s, true, TDM_EFFECT_MACHINE, err);
    if (status == TDM_OK && !found && !is_answered_here(s->out) && !is_over(s))
        status = try_more_gpus(s, true, &found, err);
    if (status == TDM_OK && s->out->count == 0 && !is_over(s))
        status = try_other_methods(s, err);
    return status;
}

enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    const struct tdm_method_prediction *asked,
                                    uint64_t longest_tokens, uint64_t most_work,
                                    struct tdm_remedies *out, struct tdm_error *err)
{
    struct search s = {.model = model,
                       .machine = machine,
                       .margin = margin,
                       .host_is_short = !asked->fits_host,
                       .only_host_is_short = !asked->fits_host && asked->fits_device,
                       .most_work = most_work,
                       .out = out};
    s.asked = s.base = (struct tdm_variant){.method = method,
                                            .choices = *choices,
                                            .tokens = settings->torch.tokens,
                                            .batch = settings->torch.batch,
                                            .gpus = settings->torch.ranks};
    memset(out, 0, sizeof(*out));
    out->gpus = s.asked.gpus;
    out->longest_tokens = longest_tokens;
    out->complete = true;
    enum tdm_status status = look_here(&s, err);
    if (status == TDM_OK)
        status = look_elsewhere(&s, err);
    if (status == TDM_OK)
        status = try_singles(&s, TDM_EFFECT_TRAINING, TDM_EFFECT_TRAINING, err);
    if (status == TDM_OK && !is_answered_here(out) && !is_over(&s))
        status = try_here(&s, false, TDM_EFFECT_TRAINING, err);
    free(s.tried);
    return status;
}
