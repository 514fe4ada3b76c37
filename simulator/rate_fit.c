/* SPDX-License-Identifier: Apache-2.0 */
/* Fits rates to measured ops. */
#include "simulator/rate_fit.h"

#include "schedule/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rates and shares depend on each other; they converge after three or four rounds. */
#define TURNS 8
/* Ratio of the largest to the smallest size of one point; a refined rate tells shapes apart. */
#define WIDTH 2.0
#define REFINED_WIDTH 1.25

struct sample {
    enum tdm_rate rate, refined; /* an op with a refined rate is stored twice */
    bool attention;
    double size, tokens, work, seconds;
    double bytes;  /* of its operands, if it has FLOPs */
    double sort;   /* sort key: size, or tokens */
    double factor; /* weight of its work */
};

struct tdm_rate_fit {
    struct sample *samples;
    size_t count, capacity;
    double overhead_seconds;
};

/* Ops of similar size. */
struct part {
    double log_size, weight; /* sum of log(size) * work, and of work */
    double work, seconds;
};

enum tdm_status tdm_rate_fit_new(struct tdm_rate_fit **out, struct tdm_error *err)
{
    struct tdm_rate_fit *fit = calloc(1, sizeof(*fit));
    if (fit == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for measured ops");
    *out = fit;
    return TDM_OK;
}

void tdm_rate_fit_free(struct tdm_rate_fit *fit)
{
    if (fit == NULL)
        return;
    free(fit->samples);
    free(fit);
}

static void add_sample(struct tdm_rate_fit *fit, const struct tdm_op *op, enum tdm_rate rate,
                       double seconds)
{
    fit->samples[fit->count++] = (struct sample){.rate = rate,
                                                 .refined = tdm_op_refined_rate(op),
                                                 .size = tdm_op_size(op, rate),
                                                 .tokens = (double)op->tokens,
                                                 .work = tdm_op_work(op),
                                                 .seconds = seconds,
                                                 .attention = op->keys > 0,
                                                 .bytes = op->flops > 0 ? (double)op->bytes : 0};
}

enum tdm_status tdm_rate_fit_add(struct tdm_rate_fit *fit, const struct tdm_machine *machine,
                                 const struct tdm_op *op, double seconds, struct tdm_error *err)
{
    enum tdm_rate rate = tdm_op_rate(op), refined = tdm_op_refined_rate(op);
    if (op->lane != TDM_LANE_COMPUTE || !(tdm_op_work(op) > 0) || !(seconds > 0) || op->by_lists ||
        op->visits || tdm_op_has_few_blocks(machine, op))
        return TDM_OK; /* what lists reach depends on their contents */
    if (fit->count + 2 > fit->capacity) {
        size_t capacity = 2 * fit->capacity + 1024;
        struct sample *samples = realloc(fit->samples, capacity * sizeof(*samples));
        if (samples == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu measured ops", capacity);
        fit->samples = samples;
        fit->capacity = capacity;
    }
    add_sample(fit, op, rate, seconds);
    if (refined != rate)
        add_sample(fit, op, refined, seconds);
    return TDM_OK;
}

void tdm_rate_fit_set_overhead(struct tdm_rate_fit *fit, double seconds)
{
    fit->overhead_seconds = fmax(0, seconds);
}

static double own_seconds(const struct tdm_rate_fit *fit, const struct sample *sample)
{
    return fmax(sample->seconds - fit->overhead_seconds, sample->seconds / 2);
}

static double width_of(enum tdm_rate rate)
{
    return tdm_rate_is_refined(rate) ? REFINED_WIDTH : WIDTH;
}

/* Samples equal in all of these fields may be in any order. */
static int by_all(const struct sample *left, const struct sample *right)
{
    const double x[] = {left->sort, left->work, left->seconds, left->size, left->tokens};
    const double y[] = {right->sort, right->work, right->seconds, right->size, right->tokens};
    for (size_t i = 0; i < sizeof(x) / sizeof(x[0]); i++)
        if (x[i] < y[i] || x[i] > y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static int by_rate_and_sort(const void *a, const void *b)
{
    const struct sample *left = a, *right = b;
    if (left->rate != right->rate)
        return left->rate < right->rate ? -1 : 1;
    return by_all(left, right);
}

static int by_speed(const void *a, const void *b)
{
    const struct sample *left = a, *right = b;
    double x = left->work * left->factor * right->seconds;
    double y = right->work * right->factor * left->seconds;
    return x < y || x > y ? (x > y) - (x < y) : by_all(left, right);
}

/* Sums samples, without the slowest and the fastest eighth. */
static struct part sum_up(const struct tdm_rate_fit *fit, struct sample *samples, size_t count)
{
    struct part part = {0};
    size_t cut = count / 8;
    qsort(samples, count, sizeof(*samples), by_speed);
    for (size_t i = cut; i < count - cut; i++) {
        part.work += samples[i].work * samples[i].factor;
        part.seconds += own_seconds(fit, &samples[i]);
        part.log_size += log(samples[i].sort) * samples[i].work;
        part.weight += samples[i].work;
    }
    return part;
}

static double size_of(const struct part *part)
{
    return exp(part->log_size / part->weight);
}

static double time_of(const struct part *part) /* of work of its size, up to a factor */
{
    return size_of(part) * part->seconds / part->work;
}

/* Makes a table from sorted samples: at least one point per doubling of the size. If a larger size
 * would take less time, merges the two points. */
static void fit_points(const struct tdm_rate_fit *fit, struct sample *samples, size_t count,
                       struct tdm_rate_table *table)
{
    struct part parts[TDM_RATE_POINTS];
    uint32_t part_count = 0;
    double width = count > 0 ? width_of(samples[0].rate) : WIDTH;
    for (size_t first = 0, end; first < count && part_count < TDM_RATE_POINTS; first = end) {
        double size = samples[first].sort;
        for (end = first; end < count && samples[end].sort < width * size; end++)
            continue;
        parts[part_count++] = sum_up(fit, samples + first, end - first);
        while (part_count > 1 &&
               time_of(&parts[part_count - 1]) < time_of(&parts[part_count - 2])) {
            struct part *last = &parts[--part_count], *into = last - 1;
            into->work += last->work;
            into->seconds += last->seconds;
            into->log_size += last->log_size;
            into->weight += last->weight;
        }
    }
    *table = (struct tdm_rate_table){.of = table->of};
    for (uint32_t i = 0; i < part_count; i++)
        tdm_rate_add(table, size_of(&parts[i]), parts[i].work / parts[i].seconds);
}

/* Sorts the samples of one rate by size (or tokens), and sets the weight of their work. */
static void sort_samples(struct sample *samples, size_t count, bool by_tokens,
                         const struct tdm_rate_table *other)
{
    for (size_t i = 0; i < count; i++) {
        struct sample *sample = &samples[i];
        sample->sort = by_tokens ? sample->tokens : sample->size;
        sample->factor = other->count == 0
                             ? 1
                             : 1 / tdm_rate_at(other, by_tokens ? sample->size : sample->tokens);
    }
    qsort(samples, count, sizeof(*samples), by_rate_and_sort);
}

/* Scales a table of shares so that the share is 1 for the chunk size that did most of the work. */
static void normalise(const struct sample *samples, size_t count, struct tdm_rate_table *share)
{
    double most = 0, tokens = 1;
    for (size_t first = 0, end; first < count; first = end) {
        double work = 0;
        for (end = first; end < count && samples[end].tokens == samples[first].tokens; end++)
            work += samples[end].work;
        if (work > most) {
            most = work;
            tokens = samples[first].tokens;
        }
    }
    double scale = tdm_rate_at(share, tokens);
    for (uint32_t i = 0; i < share->count; i++)
        share->rate[i] /= scale;
}

/* Adds the points of an older table that have no new point within one width, scaled by the
 * correction at the nearest measured size. */
static void keep_old_points(const struct tdm_rate_table *old, struct tdm_rate_table *table)
{
    struct tdm_rate_table merged = {.of = table->of};
    uint32_t i = 0, k = 0;
    double width = width_of(table->of);
    if (old->count < 2 || old->of != table->of) /* one number for all sizes, or for another kind */
        return;
    while (i < old->count || k < table->count) {
        if (k == table->count || (i < old->count && old->size[i] < table->size[k])) {
            uint32_t nearest = k == 0 ? 0 : k - 1;
            double correction = table->rate[nearest] / tdm_rate_at(old, table->size[nearest]);
            bool near = (k > 0 && old->size[i] < width * table->size[k - 1]) ||
                        (k < table->count && width * old->size[i] > table->size[k]);
            if (!near)
                tdm_rate_add(&merged, old->size[i], old->rate[i] * correction);
            i++;
        } else {
            tdm_rate_add(&merged, table->size[k], table->rate[k]);
            k++;
        }
    }
    *table = merged;
}

/* Alternately fits the share with the current rate, and the rate with the share. */
static void fit_share(const struct tdm_rate_fit *fit, struct sample *samples, size_t count,
                      struct tdm_rate_table *table, struct tdm_rate_table *share)
{
    for (int turn = 0; turn < TURNS; turn++) {
        sort_samples(samples, count, true, table);
        fit_points(fit, samples, count, share);
        qsort(samples, count, sizeof(*samples), by_rate_and_sort);
        normalise(samples, count, share);
        sort_samples(samples, count, false, share);
        fit_points(fit, samples, count, table);
    }
}

static void fit_rate(const struct tdm_rate_fit *fit, struct sample *samples, size_t count,
                     bool corrected, struct tdm_rate_table tables[TDM_RATES], bool known[TDM_RATES])
{
    enum tdm_rate rate = samples[0].rate, share = tdm_rate_share(rate);
    struct tdm_rate_table old = tables[rate], none = {0};
    bool by_share = corrected && share != TDM_RATES;
    /* a single run has too few sizes for a refined rate */
    if (corrected && tdm_rate_is_refined(rate) && old.of != rate)
        return;
    tables[rate].of = rate;
    sort_samples(samples, count, false, by_share ? &tables[share] : &none);
    fit_points(fit, samples, count, &tables[rate]);
    known[rate] = true;
    if (corrected) {
        keep_old_points(&old, &tables[rate]);
    } else if (share != TDM_RATES) {
        tables[share].of = share;
        fit_share(fit, samples, count, &tables[rate], &tables[share]);
        known[share] = true;
    }
}

void tdm_rate_fit_tables(struct tdm_rate_fit *fit, bool corrected,
                         struct tdm_rate_table tables[TDM_RATES], bool known[TDM_RATES])
{
    memset(known, 0, TDM_RATES * sizeof(*known));
    if (fit->count > 0)
        qsort(fit->samples, fit->count, sizeof(*fit->samples), by_rate_and_sort);
    for (size_t first = 0, end; first < fit->count; first = end) {
        for (end = first; end < fit->count && fit->samples[end].rate == fit->samples[first].rate;
             end++)
            continue;
        fit_rate(fit, fit->samples + first, end - first, corrected, tables, known);
    }
}

static int by_seconds(const void *a, const void *b)
{
    const struct sample *left = a, *right = b;
    if (left->seconds < right->seconds || left->seconds > right->seconds)
        return left->seconds < right->seconds ? -1 : 1;
    return by_rate_and_sort(a, b);
}

double tdm_rate_fit_least_seconds(struct tdm_rate_fit *fit)
{
    if (fit->count == 0)
        return 0;
    qsort(fit->samples, fit->count, sizeof(*fit->samples), by_seconds);
    return own_seconds(fit, &fit->samples[fit->count / 200]);
}

/* Same formula as tdm_op_seconds(). */
static double predict(const struct sample *sample, const struct tdm_machine *machine)
{
    const struct tdm_rate_table *table = &machine->table[sample->rate];
    enum tdm_rate share = tdm_rate_share(sample->rate);
    bool own = table->of == sample->rate || sample->attention;
    double rate = tdm_rate_at(table, own ? sample->size : sample->work);
    if (share != TDM_RATES)
        rate *= tdm_rate_at(&machine->table[share], sample->tokens);
    double seconds = sample->work / rate;
    seconds = fmax(seconds, sample->bytes / machine->rate[TDM_RATE_ELEMENTWISE]);
    return fmax(seconds, machine->launch_seconds);
}

void tdm_rate_fit_totals(const struct tdm_rate_fit *fit, const struct tdm_machine *machine,
                         struct tdm_rate_total totals[TDM_RATES])
{
    memset(totals, 0, TDM_RATES * sizeof(*totals));
    for (size_t i = 0; i < fit->count; i++) {
        enum tdm_rate rate = fit->samples[i].rate, refined = fit->samples[i].refined;
        bool described = tdm_rate_is_refined(refined) && machine->table[refined].of == refined;
        if (tdm_rate_is_refined(rate) != described)
            continue; /* count each op once, at the rate that applies */
        struct tdm_rate_total *total = &totals[rate];
        total->ops++;
        total->measured_seconds += own_seconds(fit, &fit->samples[i]);
        total->predicted_seconds += predict(&fit->samples[i], machine);
    }
}
