/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/presets: by which factor the planner's choice is faster than the settings of other systems
 * (planner/presets.h), over models, contexts and device memory. "-" means that no schedule with
 * these settings fits.
 */
#include "base/units.h"
#include "planner/request.h"

#include <stdio.h>

#define GIB (UINT64_C(1) << 30)

/* Gives the seconds of a step; 0 if nothing fits. */
static enum tdm_status step_seconds(const struct tdm_request *request, double *seconds,
                                    struct tdm_error *err)
{
    struct tdm_schedule *schedule;
    struct tdm_pins pins;
    struct tdm_search search = {0};
    enum tdm_status status = tdm_request_make(request, &schedule, &pins, err);
    if (status != TDM_OK)
        return status;
    status = tdm_candidates_search(schedule, &pins, &search, err);
    *seconds = status == TDM_OK ? search.simulation.step_seconds : 0;
    tdm_pins_free(&pins);
    tdm_schedule_free(schedule);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

static enum tdm_status print_row(struct tdm_request *request, struct tdm_error *err)
{
    char context[TDM_FORMAT_SIZE];
    double best, seconds;
    request->preset = NULL;
    enum tdm_status status = step_seconds(request, &best, err);
    if (status != TDM_OK || best <= 0) /* nothing to compare with */
        return status;
    printf("%-13s %8s %6llu %6llu %9.3f", request->model,
           tdm_format_tokens(request->context, context),
           (unsigned long long)(request->memory_bytes / GIB),
           (unsigned long long)(request->host_memory_bytes / GIB), best);
    for (const struct tdm_preset *p = tdm_presets(); p->name != NULL && status == TDM_OK; p++) {
        request->preset = p;
        status = step_seconds(request, &seconds, err);
        if (status == TDM_OK && seconds > 0)
            printf(" %14.2f", seconds / best);
        else
            printf(" %14s", "-");
    }
    printf("\n");
    fflush(stdout);
    return status;
}

int main(void)
{
    static const char *const models[] = {"qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b"};
    static const uint64_t contexts[] = {UINT64_C(32) << 10, UINT64_C(128) << 10,
                                        UINT64_C(512) << 10, UINT64_C(2) << 20};
    static const uint64_t memory[] = {24, 80, 139};
    struct tdm_error err;
    enum tdm_status status = TDM_OK;
    printf("%-13s %8s %6s %6s %9s", "model", "context", "GiB", "host", "seconds");
    for (const struct tdm_preset *p = tdm_presets(); p->name != NULL; p++)
        printf(" %14s", p->name);
    printf("\n");
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++)
        for (size_t c = 0; c < sizeof(contexts) / sizeof(contexts[0]); c++)
            for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]) && status == TDM_OK; i++) {
                struct tdm_request request = {.model = models[m],
                                              .machine = "h200",
                                              .context = contexts[c],
                                              .sequences = 1,
                                              .has_memory = true,
                                              .memory_bytes = memory[i] * GIB,
                                              .has_host_memory = true,
                                              .host_memory_bytes = 110 * GIB,
                                              .optimizer = TDM_OPTIMIZER_ADAMW_BF16_MOMENTS};
                status = print_row(&request, &err);
            }
    if (status != TDM_OK)
        fprintf(stderr, "presets: %s\n", err.message);
    return tdm_exit_code(status);
}
