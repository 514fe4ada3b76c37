/* SPDX-License-Identifier: Apache-2.0 */
/* Completes a description. Missing values come from the shipped machine that it names as its base;
 * without a base they are low estimates, some from its peak. They are listed in its member
 * `assumed`. */
#include "machines/parts.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Assumed shares of the peak for products and attention, and bytes/s for any GPU. */
#define PRODUCT_SHARE 0.4
#define ATTENTION_FORWARD_SHARE 0.25
#define ATTENTION_BACKWARD_SHARE 0.2
#define ELEMENTWISE_BYTES 200e9
#define COPY_BYTES 10e9
#define BOTH_WAYS_BYTES 15e9
#define FIXED_SECONDS 1e-5

/* Copies; NULL once memory ran out. */
struct completion {
    /* the latter two become members of the first at the end */
    json_t *description, *rates, *assumed;
    const json_t *base; /* NULL: no base is named */
    struct tdm_machine *machine;
};

static double conservative(enum tdm_rate rate, double peak_flops)
{
    switch (rate) {
    case TDM_RATE_PRODUCT:
        return fmax(1, PRODUCT_SHARE * peak_flops);
    case TDM_RATE_ATTENTION_FORWARD:
        return fmax(1, ATTENTION_FORWARD_SHARE * peak_flops);
    case TDM_RATE_ATTENTION_BACKWARD:
        return fmax(1, ATTENTION_BACKWARD_SHARE * peak_flops);
    case TDM_RATE_ELEMENTWISE:
        return ELEMENTWISE_BYTES;
    case TDM_RATE_BOTH_WAYS:
        return BOTH_WAYS_BYTES;
    default:
        return COPY_BYTES;
    }
}

static bool is_missing(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value);
}

/* Sets a missing value and adds its name to the lists. */
static void assume(struct completion *completion, json_t **object, const char *prefix,
                   const char *key, const json_t *base, double otherwise)
{
    char name[96];
    char *missing = completion->machine->missing;
    const json_t *value = json_object_get(base, key);
    snprintf(name, sizeof(name), "%s%s", prefix, key);
    tdm_json_set(object, key, value != NULL ? tdm_json_copy(value) : json_real(otherwise));
    tdm_json_add(&completion->assumed, json_string(name));
    size_t used = strlen(missing);
    snprintf(missing + used, sizeof(completion->machine->missing) - used, "%s%s",
             used == 0 ? "" : ", ", name);
}

/* Both directions together are no faster than the sum of the two. */
static void limit_both_ways(json_t **rates)
{
    double h2d = json_number_value(json_object_get(*rates, tdm_rate_key(TDM_RATE_H2D)));
    double d2h = json_number_value(json_object_get(*rates, tdm_rate_key(TDM_RATE_D2H)));
    const char *key = tdm_rate_key(TDM_RATE_BOTH_WAYS);
    if (json_number_value(json_object_get(*rates, key)) > h2d + d2h)
        tdm_json_set(rates, key, json_real(h2d + d2h));
}

static void fill(struct completion *completion)
{
    static const char *const seconds[] = {"launch_seconds", "copy_seconds"};
    const json_t *base_rates = json_object_get(completion->base, "rates");
    double peak =
        json_number_value(json_object_get(completion->description, "peak_flops_per_second"));
    for (unsigned i = 0; i < TDM_RATES_REQUIRED; i++) {
        const char *key = tdm_rate_key((enum tdm_rate)i);
        if (is_missing(completion->rates, key)) {
            assume(completion, &completion->rates, "rates.", key, base_rates,
                   conservative((enum tdm_rate)i, peak));
            if (i == TDM_RATE_BOTH_WAYS)
                limit_both_ways(&completion->rates);
        }
    }
    for (size_t i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++)
        if (is_missing(completion->description, seconds[i]))
            assume(completion, &completion->description, "", seconds[i], completion->base,
                   FIXED_SECONDS);
    tdm_json_set(&completion->description, "rates", completion->rates);
    tdm_json_set(&completion->description, "assumed", completion->assumed);
}

static bool is_complete(const json_t *description)
{
    const json_t *rates = json_object_get(description, "rates");
    bool complete =
        !is_missing(description, "launch_seconds") && !is_missing(description, "copy_seconds");
    for (unsigned i = 0; i < TDM_RATES_REQUIRED; i++)
        complete = complete && !is_missing(rates, tdm_rate_key((enum tdm_rate)i));
    return complete;
}

static enum tdm_status load_base(const char *file, const char *name, json_t **base,
                                 struct tdm_error *err)
{
    char path[4096];
    enum tdm_status status =
        tdm_data_path(TDM_MACHINE_FOLDER, name, ".json", path, sizeof(path), err);
    if (status == TDM_OK && strchr(name, '/') == NULL)
        status = tdm_json_load(path, base, err);
    else if (status == TDM_OK)
        status = tdm_fail(err, TDM_INPUT, "\"%.64s\" is not a name", name);
    if (status == TDM_OK)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT, "%s: \"base\" is \"%.64s\", which is not a shipped machine", file,
             name);
    return tdm_hint(err, "tidemark machines lists them");
}

enum tdm_status tdm_machine_complete(const char *file, json_t *description,
                                     struct tdm_machine *machine, struct tdm_error *err)
{
    struct completion completion = {.machine = machine};
    const json_t *name = json_object_get(description, "base");
    json_t *base = NULL;
    /* the reader reports whatever else may be wrong with it */
    if (is_complete(description) || !json_is_object(json_object_get(description, "rates"))) {
        machine->description = json_incref(description);
        return TDM_OK;
    }
    if (json_is_string(name)) {
        enum tdm_status status = load_base(file, json_string_value(name), &base, err);
        if (status != TDM_OK)
            return status;
    }
    completion.base = base;
    const json_t *assumed = json_object_get(description, "assumed");
    completion.description = tdm_json_copy(description);
    completion.rates = tdm_json_copy(json_object_get(description, "rates"));
    completion.assumed = json_is_array(assumed) ? tdm_json_copy(assumed) : json_array();
    fill(&completion);
    json_decref(base);
    if (completion.description == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a machine", file);
    machine->description = completion.description;
    return TDM_OK;
}
