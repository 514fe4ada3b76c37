/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/monotone: do plans become slower where there is more memory, or a shorter context?
 *
 *     bench/monotone [--model M] [--machine M] [--optimizer KIND] [--context N] [--memory SIZE]
 *                    [--host-memory SIZE] [--effort N] [--sweep AXIS=VALUES]... [--quiet]
 *
 * It plans each point of a sweep by itself, from the least memory to the most, or from the longest
 * context to the shortest, and prints one line for each: the step, its bound, how much slower it is
 * than the fastest of the points before it, and the seconds of processor time. Then it prints how
 * many points are slower than one before them by more than 0.1%, the most that one is, and the
 * slowest plan. With --effort 2 the points of a sweep over memory share a ladder
 * (planner/ladder.h), which changes no plan. It ends with status 1 if a point is that much slower.
 * Without --sweep it sweeps the device memory from 5 to 139 GiB at 100 points.
 */
#include "base/units.h"
#include "planner/ladder.h"
#include "planner/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALLOWED 0.001
#define MOST_SWEEPS 8u

struct options {
    struct tdm_request request;
    struct tdm_sweep sweeps[MOST_SWEEPS];
    size_t sweep_count;
    bool quiet;
};

/* What the points of all sweeps say. */
struct summary {
    unsigned points, slower;
    double most, slowest, sum_seconds;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Plans one point. *fastest: the step of the fastest point so far, 0: there is none. */
static enum tdm_status plan_point(const struct options *o, const struct tdm_request *request,
                                  const char *point, double *fastest, struct summary *sum,
                                  struct tdm_error *err)
{
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_search search = {0};
    enum tdm_status status = tdm_request_make(request, &schedule, &pins, err);
    if (status != TDM_OK)
        return status;
    const double start = now();
    status = tdm_candidates_search(schedule, &pins, &search, err);
    const double took = now() - start, step = search.simulation.step_seconds;
    double slower = 0;
    if (status == TDM_OK && *fastest > 0)
        slower = step / *fastest - 1;
    if (status == TDM_INFEASIBLE && *fastest > 0)
        slower = 1;
    if (status == TDM_OK && (*fastest <= 0 || step < *fastest))
        *fastest = step;
    sum->points++;
    sum->slower += slower > ALLOWED;
    sum->most = slower > sum->most ? slower : sum->most;
    sum->slowest = took > sum->slowest ? took : sum->slowest;
    sum->sum_seconds += took;
    if (!o->quiet && status == TDM_OK)
        printf("%12s %11.4f %11.4f %6.2f%% %7.2f%s %6.2f  %s, %u groups, chunks of %llu\n", point,
               step, search.bound_seconds, 100 * search.gap, 100 * slower,
               slower > ALLOWED ? "!" : " ", took, tdm_order_name(schedule->order),
               schedule->group_count, (unsigned long long)schedule->chunk_tokens);
    else if (!o->quiet)
        printf("%12s %11s\n", point, "-");
    fflush(stdout);
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

static enum tdm_status run_sweep(const struct options *o, const struct tdm_sweep *sweep,
                                 struct summary *sum, struct tdm_error *err)
{
    struct tdm_request request = o->request;
    enum tdm_status status = TDM_OK;
    double fastest = 0;
    char point[TDM_FORMAT_SIZE];
    if (!o->quiet)
        printf("%12s %11s %11s %7s %8s %6s\n", tdm_sweep_axis_name(sweep->axis), "step s",
               "bound s", "gap", "slower %", "took s");
    request.ladder = sweep->axis == TDM_SWEEP_MEMORY ? tdm_ladder_new() : NULL;
    for (size_t i = 0; i < sweep->count && status == TDM_OK; i++) {
        const bool tokens = sweep->axis == TDM_SWEEP_CONTEXT;
        const uint64_t value = sweep->values[tokens ? sweep->count - 1 - i : i];
        tdm_sweep_set(&request, sweep->axis, value);
        if (tokens)
            tdm_format_tokens(value, point);
        else
            tdm_format_bytes(value, point);
        status = plan_point(o, &request, point, &fastest, sum, err);
    }
    tdm_ladder_free(request.ladder);
    return status;
}

static bool read_options(int argc, char **argv, struct options *o, struct tdm_error *err)
{
    struct tdm_request *request = &o->request;
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i], *value = argv[i + 1];
        bool good = false;
        tdm_fail(err, TDM_USAGE, "%s: not an option, or without its value", option);
        if (strcmp(option, "--quiet") == 0) {
            o->quiet = true;
            continue;
        }
        if (value == NULL)
            return false;
        if (strcmp(option, "--model") == 0)
            good = (request->model = value) != NULL;
        else if (strcmp(option, "--machine") == 0)
            good = (request->machine = value) != NULL;
        else if (strcmp(option, "--optimizer") == 0)
            good = tdm_optimizer_parse(value, &request->optimizer);
        else if (strcmp(option, "--context") == 0)
            good = tdm_parse_tokens(value, option, &request->context, err) == TDM_OK;
        else if (strcmp(option, "--memory") == 0)
            good = request->has_memory =
                tdm_parse_bytes(value, option, &request->memory_bytes, err) == TDM_OK;
        else if (strcmp(option, "--host-memory") == 0)
            good = request->has_host_memory =
                tdm_parse_bytes(value, option, &request->host_memory_bytes, err) == TDM_OK;
        else if (strcmp(option, "--effort") == 0)
            good =
                tdm_parse_count(value, option, 1, TDM_MOST_EFFORT, &request->effort, err) == TDM_OK;
        else if (strcmp(option, "--sweep") == 0)
            good = o->sweep_count < MOST_SWEEPS &&
                   tdm_sweep_parse(value, &o->sweeps[o->sweep_count++], err) == TDM_OK;
        if (!good)
            return false;
        i++;
    }
    return o->sweep_count > 0 ||
           tdm_sweep_parse("memory=5G..139G:100", &o->sweeps[o->sweep_count++], err) == TDM_OK;
}

int main(int argc, char **argv)
{
    struct options o = {.request = {.model = "qwen2.5-7b",
                                    .machine = "h200",
                                    .optimizer = TDM_OPTIMIZER_ADAMW,
                                    .sequences = 1,
                                    .context = 32768,
                                    .unchecked = true}};
    struct summary sum = {0};
    struct tdm_error err;
    if (!read_options(argc, argv, &o, &err)) {
        fprintf(stderr, "bench/monotone: %s\n", err.message);
        return 2;
    }
    for (size_t i = 0; i < o.sweep_count; i++)
        if (run_sweep(&o, &o.sweeps[i], &sum, &err) != TDM_OK) {
            fprintf(stderr, "bench/monotone: %s\n", err.message);
            return 1;
        }
    printf("%u points: %u slower than a harder one by more than %.1f%%, at most %.2f%%; planning "
           "took %.2f s on average, %.2f s at most\n",
           sum.points, sum.slower, 100 * ALLOWED, 100 * sum.most, sum.sum_seconds / sum.points,
           sum.slowest);
    return sum.slower > 0;
}
