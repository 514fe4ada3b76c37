/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a training's state (executor/snapshot.h). */
#include "executor/snapshot.h"

#include "executor/state.h"

#include <stdlib.h>
#include <string.h>

static const enum tdm_content contents[] = {TDM_UNIT_WEIGHTS, TDM_UNIT_MASTER, TDM_UNIT_MOMENT1,
                                            TDM_UNIT_MOMENT2};
#define CONTENTS (sizeof(contents) / sizeof(contents[0]))

struct tdm_snapshot {
    const struct tdm_program *program;
    struct tdm_arenas *view; /* [ranks] */
    char *data;
    uint64_t begins[CONTENTS]; /* of a content: its tensors, one after the other */
    uint64_t *tensor_begins;   /* [tensor_count] in elements of a content */
};

static uint64_t element_bytes(const struct tdm_program *program, size_t number)
{
    enum tdm_dtype dtype = tdm_state_dtype(program, contents[number]);
    return dtype == TDM_DTYPE_NONE ? 0 : tdm_dtype_bytes(dtype);
}

enum tdm_status tdm_snapshot_new(const struct tdm_program *program, struct tdm_snapshot **out,
                                 struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    struct tdm_snapshot *snapshot = calloc(1, sizeof(*snapshot));
    uint64_t bytes = 0, elements = 0;
    if (snapshot == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a snapshot");
    snapshot->program = program;
    snapshot->view = calloc(program->ranks, sizeof(*snapshot->view));
    snapshot->tensor_begins = calloc(model->tensor_count, sizeof(*snapshot->tensor_begins));
    for (size_t i = 0; i < CONTENTS; i++) {
        snapshot->begins[i] = bytes;
        bytes += model->parameters * element_bytes(program, i);
    }
    snapshot->data = malloc(bytes + 1);
    if (snapshot->view == NULL || snapshot->tensor_begins == NULL || snapshot->data == NULL) {
        tdm_snapshot_free(snapshot);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a snapshot of %llu bytes",
                        (unsigned long long)bytes);
    }
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        snapshot->tensor_begins[t] = elements;
        elements += model->tensors[t].elements;
    }
    *out = snapshot;
    return TDM_OK;
}

void tdm_snapshot_free(struct tdm_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    free(snapshot->tensor_begins);
    free(snapshot->view);
    free(snapshot->data);
    free(snapshot);
}

/* The first byte of an element of a tensor's content. */
static char *address(const struct tdm_snapshot *snapshot, size_t number,
                     const struct tdm_tensor *tensor, uint64_t first)
{
    const size_t t = (size_t)(tensor - snapshot->program->schedule->model->tensors);
    return snapshot->data + snapshot->begins[number] +
           (snapshot->tensor_begins[t] + first) * element_bytes(snapshot->program, number);
}

enum tdm_status tdm_snapshot_take(struct tdm_snapshot *snapshot, const struct tdm_arenas *arenas,
                                  struct tdm_error *err)
{
    const struct tdm_program *program = snapshot->program;
    const struct tdm_model *model = program->schedule->model;
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < CONTENTS; i++)
        for (uint32_t t = 0; t < model->tensor_count && element_bytes(program, i) > 0; t++) {
            const struct tdm_tensor *tensor = &model->tensors[t];
            if (status == TDM_OK)
                status = tdm_state_get_kept(arenas, program, contents[i], tensor, 0,
                                            tensor->elements, address(snapshot, i, tensor, 0), err);
        }
    snapshot->view[0] = (struct tdm_arenas){.backend = arenas->backend, .snapshot = snapshot};
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
