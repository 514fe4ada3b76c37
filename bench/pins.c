/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/pins: does a pin, or a pair of pins, make a plan faster? A pin only takes schedules away,
 * so a faster plan shows what the free search misses.
 *
 *     bench/pins [--model M] [--machine M] [--optimizer KIND] [--context N] [--memory GIB]
 *                [--host-memory GIB] [--pairs]
 *
 * Without options it goes through 42 cells of tight memory, from 5 GiB up; options choose among
 * them. It prints one line for each cell: the free plan, the fastest plan with a pin, and the pins.
 * Then it prints how many cells gain more than 0.3%, and the largest gain. --pairs also tries all
 * pairs of pins: about a hundred plans a cell.
 */
#include "base/units.h"
#include "planner/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((double)(UINT64_C(1) << 30))
#define ALLOWED 0.003

static const char *const pins[] = {
    "order=layer-major", "order=chunk-major", "chunk=4K",        "chunk=8K",
    "groups=1",          "groups=2",          "weights=0",       "weights=8",
    "master=0",          "moments=0",         "moments=8",       "rings.optimizer=1",
    "rings.optimizer=2", "rings.optimizer=3", "rings.weights=1", "optimizer.on=host",
    "weights=1",         "weights=3",
};
#define PINS (sizeof(pins) / sizeof(pins[0]))

struct cell {
    const char *model;
    const char *context;
    double memory_gib, host_gib;
};

static const struct cell cells[] = {
    {"qwen2.5-0.5b", "8K", 5, 16},     {"qwen2.5-0.5b", "32K", 5, 16},
    {"qwen2.5-0.5b", "32K", 5.5, 16},  {"qwen2.5-0.5b", "32K", 6, 16},
    {"qwen2.5-0.5b", "32K", 8, 16},    {"qwen2.5-0.5b", "128K", 5, 16},
    {"qwen2.5-0.5b", "128K", 8, 16},   {"qwen2.5-0.5b", "256K", 8, 16},
    {"qwen2.5-7b", "8K", 6, 110},      {"qwen2.5-7b", "8K", 8, 110},
    {"qwen2.5-7b", "8K", 12, 110},     {"qwen2.5-7b", "8K", 16, 110},
    {"qwen2.5-7b", "8K", 24, 110},     {"qwen2.5-7b", "8K", 32, 110},
    {"qwen2.5-7b", "8K", 40, 110},     {"qwen2.5-7b", "32K", 6, 110},
    {"qwen2.5-7b", "32K", 8, 110},     {"qwen2.5-7b", "32K", 12, 110},
    {"qwen2.5-7b", "32K", 16, 110},    {"qwen2.5-7b", "32K", 24, 110},
    {"qwen2.5-7b", "32K", 32, 110},    {"qwen2.5-7b", "32K", 40, 110},
    {"qwen2.5-7b", "128K", 8, 110},    {"qwen2.5-7b", "128K", 12, 110},
    {"qwen2.5-7b", "128K", 16, 110},   {"qwen2.5-7b", "128K", 24, 110},
    {"qwen2.5-7b", "128K", 40, 110},   {"qwen2.5-7b", "256K", 12, 110},
    {"qwen2.5-7b", "256K", 16, 110},   {"qwen2.5-7b", "256K", 24, 110},
    {"llama-3.1-8b", "8K", 16, 110},   {"llama-3.1-8b", "8K", 24, 110},
    {"llama-3.1-8b", "32K", 12, 110},  {"llama-3.1-8b", "32K", 16, 110},
    {"llama-3.1-8b", "32K", 24, 110},  {"llama-3.1-8b", "128K", 16, 110},
    {"llama-3.1-8b", "128K", 24, 110}, {"qwen2.5-14b", "8K", 24, 200},
    {"qwen2.5-14b", "32K", 16, 200},   {"qwen2.5-14b", "32K", 24, 200},
    {"qwen2.5-14b", "32K", 40, 200},   {"qwen2.5-14b", "128K", 24, 200},
};
#define CELLS (sizeof(cells) / sizeof(cells[0]))

/* Seconds of the plan of a request with two pins, each of which may be NULL; 0: none. */
static enum tdm_status plan(struct tdm_request request, const char *first, const char *second,
                            double *seconds, struct tdm_error *err)
{
    struct tdm_schedule *schedule;
    struct tdm_pins set;
    struct tdm_search search = {0};
    if (first != NULL)
        request.pairs[request.pair_count++] = first;
    if (second != NULL)
        request.pairs[request.pair_count++] = second;
    *seconds = 0;
    enum tdm_status status = tdm_request_make(&request, &schedule, &set, err);
    if (status == TDM_USAGE && first != NULL)
        return TDM_OK; /* pins that the model or each other forbid */
    if (status != TDM_OK)
        return status;
    status = tdm_candidates_search(schedule, &set, &search, err);
    if (status == TDM_OK)
        *seconds = search.simulation.step_seconds;
    tdm_pins_free(&set);
    tdm_schedule_free(schedule);
    return status == TDM_INFEASIBLE || (status == TDM_USAGE && first != NULL) ? TDM_OK : status;
}

/* Tries all pins on a cell. *gain: share of the step that the best ones save. */
static enum tdm_status try_cell(const struct tdm_request *request, const struct cell *cell,
                                bool pairs, double *gain, struct tdm_error *err)
{
    double free_seconds, best = 0;
    const char *of_best[2] = {"", ""};
    enum tdm_status status = plan(*request, NULL, NULL, &free_seconds, err);
    for (size_t i = 0; i < PINS && status == TDM_OK; i++)
        for (size_t k = i; k < (pairs ? PINS : i + 1) && status == TDM_OK; k++) {
            const size_t key = strcspn(pins[i], "=") + 1;
            double seconds;
            if (k != i && strncmp(pins[i], pins[k], key) == 0)
                continue;
            status = plan(*request, pins[i], k == i ? NULL : pins[k], &seconds, err);
            if (seconds > 0 && (best <= 0 || seconds < best)) {
                best = seconds;
                of_best[0] = pins[i];
                of_best[1] = k == i ? "" : pins[k];
            }
        }
    *gain = best <= 0 ? 0 : free_seconds <= 0 ? 1 : 1 - best / free_seconds;
    printf("%-13s %5s %6.2f %4.0f %11.4f %11.4f %6.2f%%  %s %s\n", cell->model, cell->context,
           cell->memory_gib, cell->host_gib, free_seconds, best, 100 * *gain, of_best[0],
           of_best[1]);
    fflush(stdout);
    return status;
}

static bool read_options(int argc, char **argv, struct tdm_request *request, struct cell *only,
                         bool *pairs)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--pairs") == 0) {
            *pairs = true;
            continue;
        }
        if (i + 1 == argc)
            return false;
        const char *option = argv[i], *value = argv[++i];
        if (strcmp(option, "--model") == 0)
            only->model = value;
        else if (strcmp(option, "--machine") == 0)
            request->machine = value;
        else if (strcmp(option, "--context") == 0)
            only->context = value;
        else if (strcmp(option, "--memory") == 0)
            only->memory_gib = strtod(value, NULL);
        else if (strcmp(option, "--host-memory") == 0)
            only->host_gib = strtod(value, NULL);
        else if (strcmp(option, "--optimizer") != 0 ||
                 !tdm_optimizer_parse(value, &request->optimizer))
            return false;
    }
    return true;
}

/* Does a cell have all that was asked for? */
static bool is_asked(const struct cell *cell, const struct cell *only)
{
    return (only->model == NULL || strcmp(only->model, cell->model) == 0) &&
           (only->context == NULL || strcmp(only->context, cell->context) == 0) &&
           (only->memory_gib <= 0 ||
            (only->memory_gib >= cell->memory_gib && only->memory_gib <= cell->memory_gib)) &&
           (only->host_gib <= 0 ||
            (only->host_gib >= cell->host_gib && only->host_gib <= cell->host_gib));
}

int main(int argc, char **argv)
{
    struct tdm_request request = {.machine = "h200",
                                  .optimizer = TDM_OPTIMIZER_ADAMW,
                                  .sequences = 1,
                                  .unchecked = true,
                                  .has_memory = true,
                                  .has_host_memory = true};
    struct cell only = {0};
    struct tdm_error err;
    bool pairs = false;
    unsigned tried = 0, gained = 0;
    double most = 0;
    if (!read_options(argc, argv, &request, &only, &pairs)) {
        fprintf(stderr, "usage: bench/pins [--model M] [--machine M] [--optimizer KIND] "
                        "[--context N] [--memory GIB] [--host-memory GIB] [--pairs]\n");
        return 2;
    }
    printf("%-13s %5s %6s %4s %11s %11s %7s  %s\n", "model", "context", "GiB", "host", "free s",
           "pinned s", "gain", "pins");
    for (size_t i = 0; i < CELLS; i++) {
        const struct cell *cell = &cells[i];
        double gain;
        if (!is_asked(cell, &only))
            continue;
        request.model = cell->model;
        request.memory_bytes = (uint64_t)(cell->memory_gib * GIB);
        request.host_memory_bytes = (uint64_t)(cell->host_gib * GIB);
        if (tdm_parse_tokens(cell->context, "context", &request.context, &err) != TDM_OK ||
            try_cell(&request, cell, pairs, &gain, &err) != TDM_OK) {
            fprintf(stderr, "bench/pins: %s\n", err.message);
            return 1;
        }
        tried++;
        gained += gain > ALLOWED;
        most = gain > most ? gain : most;
    }
    printf("%u cells: %u gain more than %.1f%% by pins, at most %.2f%%\n", tried, gained,
           100 * ALLOWED, 100 * most);
    return 0;
}
