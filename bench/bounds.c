/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/bounds: how close the planner comes to the optimum, and how long it takes, over contexts,
 * device memory and host memory.
 *
 *     bench/bounds [--model M]... [--machine M] [--optimizer KIND]... [--context N]...
 *                  [--memory GIB]... [--host-memory GIB]... [--without HEURISTIC]... [--quiet]
 *
 * It prints one line for each cell of every model and optimizer given: the simulated time of the
 * step that was found, the lower bound of any schedule's step, the gap between them, the seconds of
 * processor time that planning took, validation included, and by how much the estimate that the
 * search follows differs from the simulated time ("-" for steps of which estimates are rough). Then
 * it prints the share of cells with a gap of at most 1% and 3%, and the memory that planning took.
 * It ends with status 1 if a bound is above the step of its plan, and so is none.
 * --without switches a HEURISTIC off, to see what it gains: enumeration, rounding, structure, fine
 * or polish.
 */
#include "base/units.h"
#include "planner/estimate.h"
#include "planner/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define GIB (UINT64_C(1) << 30)
#define MOST 32u
#define ROUNDED 1e-6 /* a bound is above its step by no more than this part of it */

struct list {
    uint64_t values[MOST];
    size_t count;
};

struct options {
    struct tdm_request request;
    const char *models[MOST];
    enum tdm_optimizer optimizers[MOST];
    size_t model_count, optimizer_count;
    struct list contexts, memory, host_memory;
    unsigned without;
    bool quiet;
};

struct summary {
    unsigned cells, infeasible, within1, within3, estimated, beyond;
    double worst_gap, sum_gap, slowest, sum_seconds, worst_off, sum_off;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The estimate of a schedule over its simulated seconds, less 1; NAN: estimates are rough. */
static enum tdm_status estimate_off(const struct tdm_schedule *schedule, double simulated_seconds,
                                    double *off, struct tdm_error *err)
{
    struct tdm_estimator *estimator;
    struct tdm_estimate estimate;
    enum tdm_status status = tdm_estimator_new(schedule, &estimator, err);
    *off = NAN;
    if (status != TDM_OK)
        return status;
    tdm_estimate(estimator, schedule, &estimate);
    if (tdm_estimator_knows_lanes(estimator))
        *off = estimate.likely_seconds / simulated_seconds - 1;
    tdm_estimator_free(estimator);
    return TDM_OK;
}

static const char *show_off(double off, char out[TDM_FORMAT_SIZE])
{
    if (isnan(off))
        return "-";
    snprintf(out, TDM_FORMAT_SIZE, "%+.2f%%", 100 * off);
    return out;
}

static enum tdm_status plan_cell(const struct options *o, struct summary *sum,
                                 struct tdm_error *err)
{
    char context[TDM_FORMAT_SIZE], shown[TDM_FORMAT_SIZE];
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_search search = {0};
    const struct tdm_request *r = &o->request;
    enum tdm_status status = tdm_request_make(r, &schedule, &pins, err);
    if (status != TDM_OK)
        return status;
    pins.without = o->without;
    double start = now();
    status = tdm_candidates_search(schedule, &pins, &search, err);
    double took = now() - start, off = NAN;
    if (status == TDM_OK)
        status = estimate_off(schedule, search.simulation.step_seconds, &off, err);
    if (status == TDM_INFEASIBLE) {
        sum->infeasible++;
    } else if (status == TDM_OK) {
        sum->cells++;
        sum->within1 += search.gap <= 0.01;
        sum->within3 += search.gap <= 0.03;
        sum->beyond += search.beyond_seconds > ROUNDED * search.simulation.step_seconds;
        sum->sum_gap += search.gap;
        sum->worst_gap = search.gap > sum->worst_gap ? search.gap : sum->worst_gap;
        sum->estimated += !isnan(off);
        sum->sum_off += isnan(off) ? 0 : fabs(off);
        sum->worst_off = fmax(sum->worst_off, fabs(off)); /* fmax() passes over NAN */
    }
    sum->slowest = took > sum->slowest ? took : sum->slowest;
    sum->sum_seconds += took;
    if (!o->quiet && (status == TDM_OK || status == TDM_INFEASIBLE)) {
        printf("%-13s %-18s %7s %6llu %6llu ", r->model, tdm_optimizer_name(r->optimizer),
               tdm_format_tokens(r->context, context), (unsigned long long)(r->memory_bytes / GIB),
               (unsigned long long)(r->host_memory_bytes / GIB));
        if (status == TDM_OK)
            printf("%11.4f %11.4f %6.2f%% %6.2f %7s  %s, %u groups, chunks of %s\n",
                   search.simulation.step_seconds, search.bound_seconds, 100 * search.gap, took,
                   show_off(off, shown), tdm_order_name(schedule->order), schedule->group_count,
                   tdm_format_tokens(schedule->chunk_tokens, context));
        else
            printf("%11s %11s %7s %6.2f\n", "-", "-", "-", took);
        fflush(stdout);
    }
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

static bool add(struct list *list, uint64_t value)
{
    if (list->count == MOST || value == 0)
        return false;
    list->values[list->count++] = value;
    return true;
}

static bool add_model(struct options *o, const char *name)
{
    if (o->model_count == MOST)
        return false;
    o->models[o->model_count++] = name;
    return true;
}

static bool add_optimizer(struct options *o, const char *name)
{
    return o->optimizer_count < MOST &&
           tdm_optimizer_parse(name, &o->optimizers[o->optimizer_count++]);
}

static bool add_heuristic(struct options *o, const char *name)
{
    for (int i = 0; i < TDM_HEURISTICS; i++)
        if (strcmp(name, tdm_heuristic_name((enum tdm_heuristic)i)) == 0) {
            o->without |= 1u << i;
            return true;
        }
    return false;
}

static bool read_options(int argc, char **argv, struct options *o)
{
    struct tdm_error err;
    uint64_t tokens;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quiet") == 0) {
            o->quiet = true;
            continue;
        }
        if (i + 1 == argc)
            return false;
        const char *value = argv[i + 1];
        bool good = false;
        if (strcmp(argv[i], "--model") == 0)
            good = add_model(o, value);
        else if (strcmp(argv[i], "--machine") == 0)
            good = (o->request.machine = value) != NULL;
        else if (strcmp(argv[i], "--optimizer") == 0)
            good = add_optimizer(o, value);
        else if (strcmp(argv[i], "--context") == 0)
            good = tdm_parse_tokens(value, "--context", &tokens, &err) == TDM_OK &&
                   add(&o->contexts, tokens);
        else if (strcmp(argv[i], "--memory") == 0)
            good = add(&o->memory, strtoull(value, NULL, 10));
        else if (strcmp(argv[i], "--host-memory") == 0)
            good = add(&o->host_memory, strtoull(value, NULL, 10));
        else if (strcmp(argv[i], "--without") == 0)
            good = add_heuristic(o, value);
        if (!good)
            return false;
        i++;
    }
    return true;
}

static void set_defaults(struct options *o)
{
    static const uint64_t contexts[] = {8, 32, 128, 256, 512, 1024, 4096, 10240}; /* in K */
    static const uint64_t memory[] = {8, 16, 24, 40, 80, 139}, host_memory[] = {32, 110, 512};
    for (size_t i = 0; o->contexts.count < 8 && i < 8; i++)
        add(&o->contexts, contexts[i] << 10);
    for (size_t i = 0; i < 6; i++)
        add(&o->memory, memory[i]);
    for (size_t i = 0; i < 3; i++)
        add(&o->host_memory, host_memory[i]);
}

/* Plans all cells of the model and optimizer of the request. */
static enum tdm_status plan_cells(struct options *o, const struct options *defaults,
                                  struct summary *sum, struct tdm_error *err)
{
    const struct list *contexts = o->contexts.count > 0 ? &o->contexts : &defaults->contexts;
    const struct list *memory = o->memory.count > 0 ? &o->memory : &defaults->memory;
    const struct list *hosts = o->host_memory.count > 0 ? &o->host_memory : &defaults->host_memory;
    enum tdm_status status = TDM_OK;
    for (size_t c = 0; c < contexts->count; c++)
        for (size_t m = 0; m < memory->count; m++)
            for (size_t h = 0; h < hosts->count && status == TDM_OK; h++) {
                o->request.context = contexts->values[c];
                o->request.memory_bytes = memory->values[m] * GIB;
                o->request.host_memory_bytes = hosts->values[h] * GIB;
                status = plan_cell(o, sum, err);
            }
    return status;
}

int main(int argc, char **argv)
{
    struct options given = {
        .request = {
            .machine = "h200", .sequences = 1, .has_memory = true, .has_host_memory = true}};
    struct options defaults = {0}, *o = &given;
    struct summary sum = {0};
    struct tdm_error err;
    if (!read_options(argc, argv, o)) {
        fprintf(
            stderr,
            "usage: bench/bounds [--model M]... [--machine M] [--optimizer KIND]... [--context N]... "
            "[--memory GIB]... [--host-memory GIB]... [--without HEURISTIC]... [--quiet]\n");
        return 2;
    }
    set_defaults(&defaults);
    if (o->model_count == 0)
        add_model(o, "qwen2.5-7b");
    if (o->optimizer_count == 0)
        o->optimizers[o->optimizer_count++] = TDM_OPTIMIZER_ADAMW;
    if (!o->quiet)
        printf("%-13s %-18s %7s %6s %6s %11s %11s %7s %6s %7s\n", "model", "optimizer", "context",
               "GiB", "host", "step s", "bound s", "gap", "took s", "off");
    for (size_t k = 0; k < o->model_count * o->optimizer_count; k++) {
        o->request.model = o->models[k / o->optimizer_count];
        o->request.optimizer = o->optimizers[k % o->optimizer_count];
        if (plan_cells(o, &defaults, &sum, &err) != TDM_OK) {
            fprintf(stderr, "bench/bounds: %s\n", err.message);
            return 1;
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cells = sum.cells > 0 ? sum.cells : 1;
    printf(
        "%u cells, %u more where nothing fits: gap at most 1%% in %.1f%%, 3%% in %.1f%%, mean %.2f%%, "
        "worst %.2f%%; planning took %.2f s on average, %.2f s at most, %ld MiB\n",
        sum.cells, sum.infeasible, 100 * sum.within1 / cells, 100 * sum.within3 / cells,
        100 * sum.sum_gap / cells, 100 * sum.worst_gap,
        sum.sum_seconds / (sum.cells + sum.infeasible), sum.slowest, usage.ru_maxrss / 1024);
    if (sum.estimated > 0)
        printf("estimates of %u: off by %.2f%% in the mean, %.2f%% at most\n", sum.estimated,
               100 * sum.sum_off / sum.estimated, 100 * sum.worst_off);
    if (sum.beyond > 0)
        printf("%u bounds are above the step of their plan\n", sum.beyond);
    return sum.beyond > 0;
}
