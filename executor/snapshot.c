/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a training's state (executor/snapshot.h). */
#include "executor/snapshot.h"

#include "executor/processes.h"
#include "executor/state.h"
#include "schedule/slices.h"

#include <stdlib.h>
#include <string.h>

static const enum tdm_content contents[] = {TDM_UNIT_WEIGHTS, TDM_UNIT_MASTER, TDM_UNIT_MOMENT1,
                                            TDM_UNIT_MOMENT2};
#define CONTENTS (sizeof(contents) / sizeof(contents[0]))

/* The elements of a tensor that the ranks of this process have. */
struct part {
    uint64_t first, elements;
    uint64_t begin; /* of these, among those of all tensors */
};

struct tdm_snapshot {
    const struct tdm_program *program;
    struct tdm_arenas *view; /* [ranks] */
    struct part *parts;      /* [tensor_count] */
    char *data;
    uint64_t begins[CONTENTS]; /* of a content: its tensors, one after the other */
};

static uint64_t element_bytes(const struct tdm_program *program, size_t number)
{
    enum tdm_dtype dtype = tdm_state_dtype(program, contents[number]);
    return dtype == TDM_DTYPE_NONE ? 0 : tdm_dtype_bytes(dtype);
}

/* Finds the elements of all tensors. Returns how many there are. */
static uint64_t divide(struct tdm_snapshot *snapshot, const struct tdm_processes *processes)
{
    const struct tdm_schedule *schedule = snapshot->program->schedule;
    const uint32_t first = tdm_processes_first(processes, schedule->ranks);
    const uint32_t end = first + tdm_processes_ranks(processes, schedule->ranks);
    uint64_t elements = 0;
    for (uint32_t t = 0; t < schedule->model->tensor_count; t++) {
        struct part *part = &snapshot->parts[t];
        part->begin = elements;
        for (uint32_t rank = first; rank < end; rank++) { /* one after the other */
            const struct tdm_slice own =
                tdm_rank_part_of(schedule, &schedule->model->tensors[t], rank);
            if (part->elements == 0)
                part->first = own.first;
            part->elements += own.elements;
        }
        elements += part->elements;
    }
    return elements;
}

enum tdm_status tdm_snapshot_new(const struct tdm_program *program,
                                 const struct tdm_processes *processes, struct tdm_snapshot **out,
                                 struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    struct tdm_snapshot *snapshot = calloc(1, sizeof(*snapshot));
    uint64_t bytes = 0, elements = 0;
    if (snapshot == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a snapshot");
    snapshot->program = program;
    snapshot->view = calloc(program->ranks, sizeof(*snapshot->view));
    snapshot->parts = calloc(model->tensor_count, sizeof(*snapshot->parts));
    if (snapshot->parts != NULL)
        elements = divide(snapshot, processes);
    for (size_t i = 0; i < CONTENTS; i++) {
        snapshot->begins[i] = bytes;
        bytes += elements * element_bytes(program, i);
    }
    snapshot->data = malloc(bytes + 1);
    if (snapshot->view == NULL || snapshot->parts == NULL || snapshot->data == NULL) {
        tdm_snapshot_free(snapshot);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a snapshot of %llu bytes",
                        (unsigned long long)bytes);
    }
    *out = snapshot;
    return TDM_OK;
}

void tdm_snapshot_free(struct tdm_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    free(snapshot->parts);
    free(snapshot->view);
    free(snapshot->data);
    free(snapshot);
}

/* The first byte of an element of a tensor's content. */
static char *address(const struct tdm_snapshot *snapshot, size_t number,
                     const struct tdm_tensor *tensor, uint64_t first)
{
    const struct part *part =
        &snapshot->parts[tensor - snapshot->program->schedule->model->tensors];
    return snapshot->data + snapshot->begins[number] +
           (part->begin + first - part->first) * element_bytes(snapshot->program, number);
}

enum tdm_status tdm_snapshot_take(struct tdm_snapshot *snapshot, const struct tdm_arenas *arenas,
                                  struct tdm_error *err)
{
    const struct tdm_program *program = snapshot->program;
    const struct tdm_model *model = program->schedule->model;
    struct tdm_arenas own[TDM_MAX_RANKS];
    enum tdm_status status = TDM_OK;
    tdm_arenas_apart(arenas, program->ranks, own);
    for (size_t i = 0; i < CONTENTS; i++)
        for (uint32_t t = 0; t < model->tensor_count && element_bytes(program, i) > 0; t++) {
            const struct tdm_tensor *tensor = &model->tensors[t];
            const struct part *part = &snapshot->parts[t];
            if (status == TDM_OK && part->elements > 0)
                status = tdm_state_get_kept(own, program, contents[i], tensor, part->first,
                                            part->elements,
                                            address(snapshot, i, tensor, part->first), err);
        }
    for (uint32_t rank = 0; rank < program->ranks; rank++)
        snapshot->view[rank] = (struct tdm_arenas){.backend = arenas[rank].backend,
                                                   .processes = arenas[rank].processes,
                                                   .snapshot = snapshot};
    return status;
}

const struct tdm_arenas *tdm_snapshot_arenas(const struct tdm_snapshot *snapshot)
{
    return snapshot->view;
}

void tdm_snapshot_read(const struct tdm_snapshot *snapshot, enum tdm_content content,
                       const struct tdm_tensor *tensor, uint64_t first, uint64_t count, void *data)
{
    for (size_t i = 0; i < CONTENTS; i++)
        if (contents[i] == content)
            memcpy(data, address(snapshot, i, tensor, first),
                   count * element_bytes(snapshot->program, i));
}
