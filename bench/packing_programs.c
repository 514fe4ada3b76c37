/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/packing_programs: what packing costs in practice. It lowers every shipped model with
 * several nests and prints by how much the arenas exceed the live peak.
 */
#include "base/file.h"
#include "models/model.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct nest {
    enum tdm_order order;
    uint32_t group_layers; /* 0: all */
    enum tdm_set kept, held;
    bool input_far, kept_far, held_far; /* at the far place; else on the device */
    uint64_t chunk_tokens;
    bool streams;  /* the home of most weights, masters and moments is on the host */
    bool cut_head; /* a tile of the LM head has only a part of the vocabulary */
};

static const struct nest nests[] = {
    {TDM_LAYER_MAJOR, 1, 0, 0, false, false, false, 4096, false, false},
    {TDM_LAYER_MAJOR, 1, 0, 0, true, false, false, 4096, false, false},
    {TDM_LAYER_MAJOR, 1, 1, 0, true, true, false, 8192, false, false},
    {TDM_LAYER_MAJOR, 3, 0, 1, false, false, false, 4096, false, false},
    {TDM_LAYER_MAJOR, 4, 0, 1, true, false, true, 4096, false, false},
    {TDM_LAYER_MAJOR, 5, 1, 1, true, false, false, 6000, false, false},
    {TDM_LAYER_MAJOR, 1, 0, 0, false, false, false, 131072, false, false},
    {TDM_CHUNK_MAJOR, 0, 0, 1, false, false, false, 4096, false, false},
    {TDM_CHUNK_MAJOR, 4, 0, 0, true, false, false, 4096, false, false},
    {TDM_CHUNK_MAJOR, 7, 1, 1, true, true, false, 1000, false, false},
    {TDM_LAYER_MAJOR, 1, 0, 0, true, false, false, 4096, true, false},
    {TDM_LAYER_MAJOR, 4, 1, 1, true, true, true, 4096, true, true},
    {TDM_CHUNK_MAJOR, 4, 0, 1, true, false, false, 4096, true, true},
};
#define NESTS (sizeof(nests) / sizeof(nests[0]))

static enum tdm_status make_schedule(const char *name, const struct nest *nest,
                                     struct tdm_schedule **out, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    uint32_t sizes[1024], groups = 0;
    enum tdm_status status = tdm_model_load(name, &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 131072, &schedule, err);
    if (status != TDM_OK) {
        tdm_model_free(model);
        tdm_machine_free(machine);
        return status;
    }
    uint32_t most = nest->group_layers == 0 ? model->layers : nest->group_layers;
    for (uint32_t left = model->layers; left > 0 && groups < 1024; left -= sizes[groups++])
        sizes[groups] = left < most ? left : most;
    enum tdm_place far = schedule->machine->topology.far;
    schedule->order = nest->order;
    schedule->chunk_tokens = nest->chunk_tokens;
    for (int state = 0; state < TDM_STATES && nest->streams; state++)
        if (state != TDM_STATE_GRADIENTS)
            tdm_schedule_set_home(schedule, (enum tdm_state)state, model->layers / 4, far);
    if (nest->cut_head)
        schedule->head_tile_vocabulary = 10000;
    status = tdm_schedule_set_groups(schedule, groups, sizes, err);
    for (uint32_t g = 0; g < schedule->group_count && status == TDM_OK; g++) {
        schedule->groups[g].kept = nest->kept;
        schedule->groups[g].held = nest->held;
        schedule->groups[g].input_place = nest->input_far ? far : TDM_DEVICE;
        schedule->groups[g].kept_place = nest->kept_far ? far : TDM_DEVICE;
        schedule->groups[g].held_place = nest->held_far ? far : TDM_DEVICE;
    }
    if (status == TDM_OK)
        status = tdm_schedule_check(schedule, name, err);
    if (status != TDM_OK)
        tdm_schedule_free(schedule);
    else
        *out = schedule;
    return status;
}

struct tally {
    uint32_t buffers, arenas, exact;
    double worst, seconds;
};

static enum tdm_status measure(const char *name, const struct nest *nest, struct tally *tally,
                               struct tdm_error *err)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct timespec start, end;
    enum tdm_status status = make_schedule(name, nest, &schedule, err);
    if (status != TDM_OK)
        return status;
    clock_gettime(CLOCK_MONOTONIC, &start);
    status = tdm_program_lower(schedule, &program, err);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (status == TDM_OK) {
        double seconds =
            (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        if (seconds > tally->seconds)
            tally->seconds = seconds;
        if (program->buffer_count > tally->buffers)
            tally->buffers = program->buffer_count;
        for (int place = 0; place < TDM_PLACES; place++) {
            double live = (double)program->live_peak_bytes[place];
            if (live <= 0)
                continue;
            double over = ((double)program->arena_bytes[place] - live) / live;
            tally->arenas++;
            tally->exact += program->arena_bytes[place] == program->live_peak_bytes[place];
            tally->worst = over > tally->worst ? over : tally->worst;
        }
    }
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    return status;
}

int main(void)
{
    struct tdm_error err;
    struct tdm_model *model = NULL;
    char **names = NULL;
    enum tdm_status status = tdm_data_names("models/configs", ".json", &names, &err);
    printf("%-16s %8s %7s %14s %9s %14s\n", "model", "buffers", "arenas", "at live peak", "worst",
           "lowered in, ms");
    for (size_t i = 0; status == TDM_OK && names[i] != NULL; i++) {
        struct tally tally = {0};
        status = tdm_model_load(names[i], &model, &err);
        if (status != TDM_OK)
            break;
        bool planned = !model->sized_only;
        tdm_model_free(model);
        if (!planned)
            continue;
        for (size_t n = 0; n < NESTS && status == TDM_OK; n++)
            status = measure(names[i], &nests[n], &tally, &err);
        if (status == TDM_OK)
            printf("%-16s %8u %7u %14u %8.3f%% %14.1f\n", names[i], tally.buffers, tally.arenas,
                   tally.exact, 100 * tally.worst, 1e3 * tally.seconds);
    }
    free(names);
    if (status != TDM_OK)
        fprintf(stderr, "packing_programs: %s\n", err.message);
    return tdm_exit_code(status);
}
