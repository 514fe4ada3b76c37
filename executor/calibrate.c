/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration: chooses what is run, and makes the machine's description from the measurements. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/calibrate.h"

#include "base/json.h"
#include "base/units.h"
#include "executor/calibrate_parts.h"
#include "executor/host_optimizer.h"
#include "executor/host_update_rate.h"
#include "schedule/program.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The driver of a card keeps a little of its memory. The description states whole MiB. */
#define CARD_KEEPS_BYTES (UINT64_C(16) << 20)
#define GRANULE_BYTES (UINT64_C(1) << 20)
/* The peak assumed for a machine without a known one, until its products are measured. */
#define UNKNOWN_PEAK 1e14

#define KEYS(count) ((uint64_t)(count) << 10)

/* The first shape of a model has the shortest ops. The model with wide heads comes first: the
 * driver's memory is read with it. A card slows down as it gets hot, and more so with a larger
 * share of products. So one shape is mostly products and runs longest; others are half attention.
 * The small model's vocabulary is cut like its layers, except in one shape: the whole head would
 * heat the card more than the whole model does. Attention of fp32 values is slow. */
#define ADAMW TDM_OPTIMIZER_ADAMW, false
#define ROUNDED TDM_OPTIMIZER_ADAMW_BF16, false
#define FP32 TDM_OPTIMIZER_NONE, true
static const struct tdm_calibration_shape cuda_wide[] = {
    {"qwen2.5-7b", 2, 38016, KEYS(8), 256, 0, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(16), KEYS(16), 5, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(8), KEYS(4), 3, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(16), KEYS(4), 1.5, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(64), KEYS(4), 2.5, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(16), KEYS(1), 0.5, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(16), KEYS(2), 0.5, ROUNDED},
    {"qwen2.5-7b", 2, 38016, KEYS(16), KEYS(8), 0.5, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(64), KEYS(16), 2, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(32), KEYS(32), 1, ADAMW},
    {"qwen2.5-7b", 2, 38016, KEYS(2), 512, 0.5, FP32},
};
static const struct tdm_calibration_shape cuda_narrow[] = {
    {"qwen2.5-0.5b", 4, 25344, KEYS(8), 256, 0, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(16), KEYS(16), 2, ADAMW},
    {"qwen2.5-0.5b", 4, 151936, KEYS(4), KEYS(4), 0.5, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(16), KEYS(4), 1, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(64), KEYS(4), 2, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(16), KEYS(1), 0.5, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(16), KEYS(2), 0.5, ROUNDED},
    {"qwen2.5-0.5b", 4, 25344, KEYS(16), KEYS(8), 0.5, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(64), KEYS(16), 1, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(32), KEYS(32), 0.5, ADAMW},
    {"qwen2.5-0.5b", 4, 25344, KEYS(4), KEYS(1), 0.5, FP32},
};
static const struct tdm_calibration_shape cpu_small[] = {
    {"byte-1m", 4, 256, 512, 64, 0, ADAMW},
    {"byte-1m", 4, 256, KEYS(2), 256, 1, ADAMW},
    {"byte-1m", 4, 256, KEYS(1), KEYS(1), 0.5, ROUNDED},
    {"byte-1m", 4, 256, KEYS(1), 128, 0.2, FP32},
};
static const struct tdm_calibration_shape cpu_large[] = {
    {"byte-100m", 1, 256, 512, 64, 0, ADAMW},
    {"byte-100m", 1, 256, KEYS(2), 256, 2, ADAMW},
    {"byte-100m", 1, 256, KEYS(1), KEYS(1), 1, ROUNDED},
    {"byte-100m", 1, 256, KEYS(1), 128, 0.5, FP32},
};

/* Updates on the host are those of a layer: beside a card of one that takes 4 GiB, as hosts of such
 * have caches of hundreds of MiB; of cores alone of one that takes 300 MiB. */
static const struct tdm_calibration_shape card_host[] = {
    {"qwen2.5-7b", 1, 256, 1, 1, 0.2, ADAMW}, {"qwen2.5-7b", 1, 256, 1, 1, 0.2, ROUNDED}};
static const struct tdm_calibration_shape cores_host[] = {
    {"qwen2.5-0.5b", 1, 256, 1, 1, 0.2, ADAMW}, {"qwen2.5-0.5b", 1, 256, 1, 1, 0.2, ROUNDED}};

#define COUNT(shapes) ((uint32_t)(sizeof(shapes) / sizeof((shapes)[0])))

struct plan {
    const struct tdm_calibration_shape *shapes;
    uint32_t count;
};

static const struct plan cuda_plans[] = {{cuda_wide, COUNT(cuda_wide)},
                                         {cuda_narrow, COUNT(cuda_narrow)}};
static const struct plan cpu_plans[] = {{cpu_small, COUNT(cpu_small)},
                                        {cpu_large, COUNT(cpu_large)}};

void tdm_calibration_say(const struct tdm_calibration_options *options, const char *format, ...)
{
    char text[256];
    va_list arguments;
    if (options->say == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    options->say(options->self, text);
}

/* ---- what the schedules are made for ---- */

/* Finds the shipped machine whose card the driver names; *base is NULL if there is none. Of several
 * it takes the one whose memory is closest. */
static enum tdm_status find_base(const struct tdm_card *card, struct tdm_machine **base,
                                 struct tdm_error *err)
{
    char **names;
    *base = NULL;
    enum tdm_status status = tdm_machine_names(&names, err);
    if (status != TDM_OK)
        return status;
    double least = 0.1; /* a share of the memory */
    for (size_t i = 0; names[i] != NULL && status == TDM_OK; i++) {
        struct tdm_machine *machine;
        status = tdm_machine_load(names[i], &machine, err);
        if (status != TDM_OK)
            break;
        double off = fabs(
            (double)machine->topology.places[TDM_DEVICE].capacity_bytes / (double)card->bytes - 1);
        if (tdm_machine_is_card(machine, card->name) && off < least) {
            tdm_machine_free(*base);
            *base = machine;
            least = off;
        } else {
            tdm_machine_free(machine);
        }
    }
    free(names);
    return status;
}

/* What top-k lists reach depends on their contents, and no step of a calibration has any; nor has
 * it ranks in a ring. */
static const enum tdm_rate kept_shares[] = {TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE,
                                            TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE,
                                            TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE,
                                            TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE,
                                            TDM_RATE_NARROW_ATTENTION_FORWARD_VISITS_SHARE,
                                            TDM_RATE_NARROW_ATTENTION_BACKWARD_VISITS_SHARE};

/* Rates of the base (NULL: none) that are kept. NULL: out of memory. */
static json_t *kept_shares_of(const struct tdm_machine *base)
{
    json_t *rates = json_object();
    for (size_t i = 0; i < sizeof(kept_shares) / sizeof(kept_shares[0]) && base != NULL; i++)
        tdm_json_set(&rates, tdm_rate_key(kept_shares[i]),
                     tdm_rate_json(&base->table[kept_shares[i]]));
    return rates;
}

/* What steps of one card do not tell: other GPUs, the server, and what its kernels fill. */
static const char *const kept_keys[] = {
    "server",        "peer_bytes_per_second", "peer_seconds",   "network_bytes_per_second",
    "gpus_per_node", "nccl_base_bytes",       "multiprocessors"};

static void keep_links(const struct tdm_machine *base, json_t **description)
{
    for (size_t i = 0; i < sizeof(kept_keys) / sizeof(kept_keys[0]); i++) {
        json_t *value = json_object_get(base->description, kept_keys[i]);
        if (value != NULL)
            tdm_json_set(description, kept_keys[i], tdm_json_copy(value));
    }
}

/* Describes a card. The driver states its memory. The peak and all that is not measured come from
 * the shipped machine of this card, its base. */
static enum tdm_status describe_card(const struct tdm_backend *backend, json_t **description,
                                     json_t **provenance, struct tdm_error *err)
{
    struct tdm_card card = {0};
    struct tdm_machine *base;
    enum tdm_status status = backend->card(&card, err);
    if (status == TDM_OK)
        status = find_base(&card, &base, err);
    if (status != TDM_OK)
        return status;
    uint64_t bytes = (card.bytes - CARD_KEEPS_BYTES) / GRANULE_BYTES * GRANULE_BYTES;
    /* the host gets seven eighths of the computer's memory, not half: the device has its own */
    json_int_t host = json_integer_value(json_object_get(*description, "host_bytes"));
    tdm_json_set(description, "name", json_string(base == NULL ? "local" : base->name));
    tdm_json_set(description, "title", tdm_json_text(base == NULL ? card.name : base->title));
    tdm_json_set(description, "device_bytes", json_integer((json_int_t)bytes));
    tdm_json_set(description, "host_bytes", json_integer((json_int_t)(host / 4 * 7)));
    tdm_json_set(description, "peak_flops_per_second",
                 json_real(base == NULL ? UNKNOWN_PEAK : base->peak_flops));
    for (int place = 0; place < TDM_PLACES && base != NULL; place++)
        tdm_json_set(description, tdm_place_runtime_key((enum tdm_place)place),
                     json_integer((json_int_t)base->topology.places[place].runtime_bytes));
    if (base != NULL) {
        tdm_json_set(description, "base", json_string(base->name));
        keep_links(base, description);
    }
    tdm_json_set(description, "rates", kept_shares_of(base));
    json_object_del(*description, "launch_seconds");
    json_object_del(*description, "copy_seconds");
    tdm_json_set(provenance, "card", tdm_json_text(card.name));
    tdm_json_set(provenance, "driver", tdm_json_text(card.driver));
    tdm_machine_free(base);
    return TDM_OK;
}

enum tdm_status tdm_calibration_describe(const struct tdm_backend *backend, json_t **out,
                                         struct tdm_error *err)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    json_t *description;
    enum tdm_status status = tdm_machine_describe_computer(&description, err);
    if (status != TDM_OK)
        return status;
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    json_t *provenance = json_pack("{s:s, s:s, s:s}", "program", PACKAGE_STRING, "backend",
                                   backend->name, "date", date);
    if (backend->card != NULL)
        status = describe_card(backend, &description, &provenance, err);
    tdm_json_set(&description, "provenance", provenance);
    if (status == TDM_OK && description == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for a description");
    if (status != TDM_OK) {
        json_decref(description);
        return status;
    }
    *out = description;
    return TDM_OK;
}

/* ---- the measured description ---- */

/* The rate of memory-bound work without a table of its own: the best rate in those tables. */
static double elementwise_rate(const struct tdm_rate_table tables[TDM_RATES],
                               const bool known[TDM_RATES])
{
    double most = 0;
    for (unsigned i = TDM_RATE_ZERO; i < TDM_RATES; i++)
        if (known[i])
            most = fmax(most, tdm_rate_most(&tables[i]));
    return most;
}

/* Where only narrow attention was run, its table becomes that of all attention. */
static void complete_attention(struct tdm_rate_table tables[TDM_RATES], bool known[TDM_RATES])
{
    static const enum tdm_rate pairs[][2] = {
        {TDM_RATE_ATTENTION_FORWARD, TDM_RATE_NARROW_ATTENTION_FORWARD},
        {TDM_RATE_ATTENTION_BACKWARD, TDM_RATE_NARROW_ATTENTION_BACKWARD},
        {TDM_RATE_ATTENTION_FORWARD_SHARE, TDM_RATE_NARROW_ATTENTION_FORWARD_SHARE},
        {TDM_RATE_ATTENTION_BACKWARD_SHARE, TDM_RATE_NARROW_ATTENTION_BACKWARD_SHARE},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        if (known[pairs[i][0]] || !known[pairs[i][1]])
            continue;
        tables[pairs[i][0]] = tables[pairs[i][1]];
        tables[pairs[i][0]].of = pairs[i][0];
        known[pairs[i][0]] = true;
        known[pairs[i][1]] = false;
    }
}

static void note(json_t **notes, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(json_t **notes, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    tdm_json_add(notes, json_string(text));
}

static void set_notes(const struct tdm_calibration *calibration, json_t **description)
{
    char early[TDM_FORMAT_SIZE], late[TDM_FORMAT_SIZE], time[TDM_FORMAT_SIZE];
    json_t *notes = json_array();
    note(&notes, "rates come from the times of ops in steps of short models");
    note(&notes, "the later half of the repetitions of each step is used");
    note(&notes, "the step that ran longest took %s at first and %s at last, after %s",
         tdm_format_seconds(calibration->early_seconds, early),
         tdm_format_seconds(calibration->late_seconds, late),
         tdm_format_seconds(calibration->longest_seconds, time));
    if (calibration->overhead_seconds > 0)
        note(&notes, "timing an op delays it by %.1f us, which is subtracted",
             1e6 * calibration->overhead_seconds);
    note(&notes, "copies were launched many at once, and nothing else ran meanwhile");
    note(&notes, "updates on the host are those of a layer of %s, by %s",
         calibration->options->backend->own_device_memory ? card_host[0].model
                                                          : cores_host[0].model,
         tdm_host_update_width_name(tdm_host_update_widths() - 1));
    if (calibration->runtime_bytes[TDM_DEVICE] > 0)
        note(&notes,
             "runtime is the most that the driver reported beside the arena, and on the host "
             "the most of this process in memory beside its arena");
    tdm_json_set(description, "notes", notes);
}

static void set_rates(const struct tdm_calibration *calibration, json_t **description)
{
    static struct tdm_rate_table tables[TDM_RATES];
    bool known[TDM_RATES];
    tdm_rate_fit_set_overhead(calibration->fit, calibration->overhead_seconds);
    tdm_rate_fit_tables(calibration->fit, false, tables, known);
    complete_attention(tables, known);
    json_t *rates = json_object();
    for (size_t i = 0; i < sizeof(kept_shares) / sizeof(kept_shares[0]); i++) {
        const char *key = tdm_rate_key(kept_shares[i]);
        json_t *kept = json_object_get(json_object_get(*description, "rates"), key);
        if (kept != NULL)
            tdm_json_set(&rates, key, tdm_json_copy(kept));
    }
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (known[i])
            tdm_json_set(&rates, tdm_rate_key((enum tdm_rate)i), tdm_rate_json(&tables[i]));
    tdm_json_set(&rates, tdm_rate_key(TDM_RATE_ELEMENTWISE),
                 json_real(elementwise_rate(tables, known)));
    for (unsigned i = TDM_RATE_H2D; i <= TDM_RATE_BOTH_WAYS; i++)
        tdm_json_set(&rates, tdm_rate_key((enum tdm_rate)i), json_real(calibration->link_rate[i]));
    tdm_json_set(&rates, tdm_rate_key(TDM_RATE_HOST_OPTIMIZER), json_real(calibration->host_rate));
    tdm_json_set(&rates, tdm_rate_key(TDM_RATE_HOST_OPTIMIZER_ROUNDED),
                 json_real(calibration->host_rounded_rate));
    tdm_json_set(description, "rates", rates);
    bool card = calibration->options->backend->card != NULL;
    if (card && json_object_get(*description, "base") == NULL)
        tdm_json_set(description, "peak_flops_per_second",
                     json_real(tdm_rate_most(&tables[TDM_RATE_PRODUCT])));
}

/* What updates on the host and copies beside them do to each other. */
static void set_host_memory(const struct tdm_calibration *calibration, json_t **description)
{
    const double h2d = calibration->beside_copy_rate[TDM_RATE_H2D],
                 d2h = calibration->beside_copy_rate[TDM_RATE_D2H],
                 less = calibration->host_rate - calibration->beside_host_rate;
    if (!(h2d > 0 && d2h > 0))
        return;
    tdm_json_set(description, "host_bytes_per_copied_byte",
                 json_real(fmin(fmax(less / (h2d + d2h), 0), 1)));
    tdm_json_set(description, "h2d_beside_updates_bytes_per_second", json_real(h2d));
    tdm_json_set(description, "d2h_beside_updates_bytes_per_second", json_real(d2h));
}

static json_t *describe_measured(const struct tdm_calibration *calibration)
{
    char source[128];
    json_t *description = tdm_json_copy(calibration->machine);
    json_t *provenance = json_object_get(description, "provenance");
    snprintf(source, sizeof(source), "measured by tidemark calibrate, %s",
             json_string_value(json_object_get(provenance, "date")));
    tdm_json_set(&description, "source", json_string(source));
    tdm_json_set(&description, "launch_seconds",
                 json_real(tdm_rate_fit_least_seconds(calibration->fit)));
    tdm_json_set(&description, "copy_seconds", json_real(calibration->copy_seconds));
    if (calibration->pinned_rate > 0)
        tdm_json_set(&description, "pinned_bytes_per_second", json_real(calibration->pinned_rate));
    if (calibration->beside_host_rate > 0)
        set_host_memory(calibration, &description);
    for (int place = 0; place < TDM_PLACES; place++) {
        uint64_t granules = (calibration->runtime_bytes[place] + GRANULE_BYTES - 1) / GRANULE_BYTES;
        if (granules > 0)
            tdm_json_set(&description, tdm_place_runtime_key((enum tdm_place)place),
                         json_integer((json_int_t)(granules * GRANULE_BYTES)));
    }
    set_rates(calibration, &description);
    set_notes(calibration, &description);
    return description;
}

/* Measures updates on the host beside no copies. */
static enum tdm_status measure_host(struct tdm_calibration *calibration, struct tdm_error *err)
{
    const struct tdm_calibration_shape *shapes =
        calibration->options->backend->own_device_memory ? card_host : cores_host;
    double *const rates[] = {&calibration->host_rate, &calibration->host_rounded_rate};
    uint32_t spare = calibration->options->backend->own_device_memory ? TDM_HOST_SPARE_CORES : 0;
    enum tdm_status status = TDM_OK;
    tdm_calibration_say(calibration->options, "updates on the host");
    for (int i = 0; i < 2 && status == TDM_OK; i++) {
        struct tdm_schedule *schedule = NULL;
        struct tdm_program *program = NULL;
        status = tdm_calibration_program(calibration, &shapes[i], &schedule, &program, err);
        if (status == TDM_OK)
            status = tdm_host_update_rate(schedule, tdm_host_update_threads(spare),
                                          shapes[i].seconds, NULL, rates[i], err);
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    return status;
}

static enum tdm_status measure(struct tdm_calibration *calibration, struct tdm_error *err)
{
    const struct tdm_calibration_options *options = calibration->options;
    bool card = options->backend->own_device_memory;
    const struct plan *plans = card ? cuda_plans : cpu_plans;
    enum tdm_status status = TDM_OK;
    uint32_t measured = 0;
    for (uint32_t i = 0; i < 2 && status == TDM_OK; i++) {
        struct tdm_calibration_shape shapes[TDM_MOST_SHAPES];
        uint32_t count = plans[i].count;
        memcpy(shapes, plans[i].shapes, count * sizeof(shapes[0]));
        /* quick: a card runs each shape for less time; the cores run only one model */
        for (uint32_t k = 0; k < count && options->quick && card; k++)
            shapes[k].seconds /= 10;
        if (options->quick && i > 0 && !card)
            break; /* only the small model */
        status = tdm_calibrate_steps(calibration, count, shapes, err);
        measured += status == TDM_OK;
        if (status == TDM_INFEASIBLE && (measured > 0 || i == 0)) {
            tdm_calibration_say(options, "%s is left out: %s", shapes[0].model, err->message);
            status = TDM_OK;
        }
    }
    if (status == TDM_OK && measured == 0)
        return TDM_INFEASIBLE;
    if (status == TDM_OK)
        status = tdm_calibrate_copies(calibration, card ? &cuda_narrow[0] : &cpu_small[0],
                                      card ? &card_host[0] : NULL,
                                      card ? UINT64_C(256) << 20 : UINT64_C(16) << 20, 8, err);
    return status == TDM_OK ? measure_host(calibration, err) : status;
}

enum tdm_status tdm_calibrate(const struct tdm_calibration_options *options, json_t **description,
                              struct tdm_error *err)
{
    struct tdm_calibration calibration = {.options = options};
    struct tdm_machine *checked = NULL;
    if (!options->backend->executes)
        return tdm_fail(err, TDM_USAGE, "backend %s computes nothing that could be measured",
                        options->backend->name);
    enum tdm_status status = tdm_calibration_describe(options->backend, &calibration.machine, err);
    if (status == TDM_OK)
        status = tdm_rate_fit_new(&calibration.fit, err);
    if (status == TDM_OK)
        status = measure(&calibration, err);
    if (status == TDM_OK) {
        json_t *measured = describe_measured(&calibration);
        status = measured == NULL ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for a description")
                                  : tdm_machine_from_json("calibrate", measured, &checked, err);
        if (status == TDM_OK)
            *description = json_incref(checked->description);
        json_decref(measured);
    }
    tdm_machine_free(checked);
    tdm_rate_fit_free(calibration.fit);
    json_decref(calibration.machine);
    return status;
}
