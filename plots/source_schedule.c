/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a plot shows from a schedule, which is lowered and simulated. */
#include "plots/source_parts.h"

#include "schedule/values_predict.h"
#include "simulator/team.h"

#include <stdlib.h>
#include <string.h>

/* Where the ops of a rank go, and what is allocated as they run. */
struct collector {
    struct tdm_timeline *ops;    /* NULL: not shown */
    struct tdm_timeline *memory; /* its ops too; NULL: not shown */
    uint64_t allocated[TDM_MAX_PLACES];
};

/* Adds an op, and the allocated bytes if they change with it. */
static enum tdm_status collect(void *self, const struct tdm_op *op, double start_seconds,
                               double end_seconds,
                               const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                               struct tdm_error *err)
{
    struct collector *collector = self;
    const struct tdm_timeline_op seen = {.number = op->number,
                                         .start = start_seconds,
                                         .end = end_seconds,
                                         .kind = op->kind,
                                         .phase = op->phase,
                                         .lane = op->lane,
                                         .layer = op->layer,
                                         .chunk = op->chunk};
    enum tdm_status status =
        collector->ops != NULL ? tdm_timeline_add_op(collector->ops, &seen, err) : TDM_OK;
    if (collector->memory == NULL || status != TDM_OK)
        return status;
    status = tdm_timeline_add_op(collector->memory, &seen, err);
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++) {
        struct tdm_timeline_change change = {.op_number = op->number,
                                             .place = (enum tdm_place)place};
        for (int category = 0; category < TDM_CATEGORIES; category++)
            change.bytes += live_bytes[place][category];
        if (change.bytes == collector->allocated[place])
            continue;
        collector->allocated[place] = change.bytes;
        status = tdm_timeline_add_change(&collector->memory->allocations, &change, err);
    }
    return status;
}

/* Simulates all ranks that are shown. */
static enum tdm_status simulate(const struct tdm_program *program, struct tdm_plot *plot,
                                struct tdm_simulation *simulation, struct tdm_error *err)
{
    struct tdm_plot_panel *panel = &plot->panels[TDM_PREDICTED];
    uint32_t seen = plot->shown_ranks > 1 || plot->rank > 0 ? program->ranks : 1;
    struct collector *collectors = calloc(seen, sizeof(*collectors));
    void **selves = calloc(seen, sizeof(*selves));
    enum tdm_status status = tdm_plot_open_ranks(plot, panel, err);
    if (status == TDM_OK && (collectors == NULL || selves == NULL))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", seen);
    for (uint32_t rank = 0; rank < seen && status == TDM_OK; rank++) {
        selves[rank] = &collectors[rank];
        if (panel->ranks != NULL && rank < plot->shown_ranks)
            collectors[rank].ops = &panel->ranks[rank];
        if (rank == plot->rank)
            collectors[rank].memory = &panel->timeline;
    }
    if (status == TDM_OK)
        status = program->ranks > 1
                     ? tdm_simulate_team(program, collect, selves, seen, simulation, err)
                     : tdm_simulate(program, collect, selves[0], simulation, err);
    free(selves);
    free(collectors);
    return status;
}

enum tdm_status tdm_plot_read_schedule(const char *path, struct tdm_plot *plot,
                                       struct tdm_error *err)
{
    struct tdm_schedule *schedule;
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    struct tdm_plot_panel *panel = &plot->panels[TDM_PREDICTED];
    struct tdm_values_change *values = NULL;
    size_t count;
    enum tdm_status status = tdm_schedule_load(path, &schedule, err);
    if (status != TDM_OK)
        return status;
    status = tdm_plot_describe(path, schedule, plot, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = simulate(program, plot, &simulation, err);
    if (status == TDM_OK) {
        const struct tdm_program view = tdm_program_of_rank(program, plot->rank);
        status = tdm_values_predict(&view, &values, &count, err);
    }
    if (status == TDM_OK)
        status = tdm_plot_add_values(&panel->timeline, values, count, err);
    free(values);
    if (status == TDM_OK) {
        memcpy(plot->arena_bytes, simulation.arena_bytes, sizeof(plot->arena_bytes));
        tdm_plot_finish_panel(plot, schedule, panel);
    }
    tdm_program_free(program);
    plot->schedule = schedule;
    return status;
}
