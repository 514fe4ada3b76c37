/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a training's state (executor/snapshot.h). */
#include "executor/snapshot.h"

#include "base/parallel.h"
#include "base/size.h"
#include "executor/processes.h"
#include "executor/state.h"
#include "schedule/slices.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* How much is touched, and copied by a thread, at a time. */
#define SLICE_BYTES (UINT64_C(64) << 20)
#define PAGE_BYTES 4096u

/* Threads that touch, at most: the step needs processors too. */
#define TOUCHERS 4u

static const enum tdm_content contents[] = {TDM_UNIT_WEIGHTS, TDM_UNIT_MASTER, TDM_UNIT_MOMENT1,
                                            TDM_UNIT_MOMENT2};
#define CONTENTS (sizeof(contents) / sizeof(contents[0]))

/* The elements of a tensor that the ranks of this process have. */
struct part {
    uint64_t first, elements;
    uint64_t begin; /* of these, among those of all tensors */
};

/* What a thread copies at a time. */
struct copy {
    size_t content;
    uint32_t tensor;
    uint64_t first, elements;
};

struct tdm_snapshot {
    const struct tdm_program *program;
    struct tdm_arenas *view; /* [ranks] */
    struct part *parts;      /* [tensor_count] */
    struct copy *copies;     /* [copy_count] */
    size_t copy_count;
    char *data; /* [bytes] mapped */
    uint64_t bytes;
    pthread_t toucher; /* touches the memory ahead, while steps compute */
    bool touches;
    atomic_bool touched_enough;
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

/* Divides what is copied. Returns the number of copies, and with `copies` describes them. */
static size_t list_copies(const struct tdm_snapshot *snapshot, struct copy *copies)
{
    const struct tdm_model *model = snapshot->program->schedule->model;
    size_t count = 0;
    for (size_t i = 0; i < CONTENTS; i++) {
        const uint64_t size = element_bytes(snapshot->program, i);
        for (uint32_t t = 0; t < model->tensor_count && size > 0; t++) {
            const struct part *part = &snapshot->parts[t];
            for (uint64_t done = 0; done < part->elements; done += SLICE_BYTES / size) {
                if (copies != NULL)
                    copies[count] =
                        (struct copy){i, t, part->first + done,
                                      tdm_least(part->elements - done, SLICE_BYTES / size)};
                count++;
            }
        }
    }
    return count;
}

static enum tdm_status touch_slice(void *self, size_t number, struct tdm_error *err)
{
    const struct tdm_snapshot *snapshot = self;
    volatile char *data = snapshot->data;
    const uint64_t first = number * SLICE_BYTES;
    const uint64_t end = tdm_least(first + SLICE_BYTES, snapshot->bytes);
    if (atomic_load(&snapshot->touched_enough))
        return tdm_fail(err, TDM_INTERRUPTED, "the memory is used");
    for (uint64_t at = first; at < end; at += PAGE_BYTES)
        data[at] = 0;
    return TDM_OK;
}

/* The system gives memory when it is touched, and clears it then, which takes several times as long
 * as the copy. Done before, it does not hold up the step after which the first copy is made. */
static void *touch(void *self)
{
    struct tdm_snapshot *snapshot = self;
    (void)tdm_parallel((size_t)((snapshot->bytes + SLICE_BYTES - 1) / SLICE_BYTES), TOUCHERS,
                       touch_slice, snapshot, NULL);
    return NULL;
}

/* The memory is used from now on. */
static void end_touching(struct tdm_snapshot *snapshot)
{
    atomic_store(&snapshot->touched_enough, true);
    if (snapshot->touches)
        pthread_join(snapshot->toucher, NULL);
    snapshot->touches = false;
}

static bool take_memory(struct tdm_snapshot *snapshot, uint64_t bytes)
{
    void *data = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return false;
    snapshot->data = data;
    snapshot->bytes = bytes + 1;
    return true;
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
    if (snapshot->parts != NULL) {
        snapshot->copy_count = list_copies(snapshot, NULL);
        snapshot->copies = calloc(snapshot->copy_count + 1, sizeof(*snapshot->copies));
    }
    if (snapshot->view == NULL || snapshot->copies == NULL || !take_memory(snapshot, bytes)) {
        tdm_snapshot_free(snapshot);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a snapshot of %llu bytes",
                        (unsigned long long)bytes);
    }
    (void)list_copies(snapshot, snapshot->copies);
    snapshot->touches = pthread_create(&snapshot->toucher, NULL, touch, snapshot) == 0;
    *out = snapshot;
    return TDM_OK;
}

void tdm_snapshot_free(struct tdm_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    end_touching(snapshot);
    if (snapshot->data != NULL)
        munmap(snapshot->data, snapshot->bytes);
    free(snapshot->copies);
    free(snapshot->parts);
    free(snapshot->view);
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

struct taking {
    const struct tdm_snapshot *snapshot;
    struct tdm_arenas arenas[TDM_MAX_RANKS];
};

static enum tdm_status take_one(void *self, size_t number, struct tdm_error *err)
{
    const struct taking *taking = self;
    const struct tdm_snapshot *snapshot = taking->snapshot;
    const struct copy *copy = &snapshot->copies[number];
    const struct tdm_tensor *tensor = &snapshot->program->schedule->model->tensors[copy->tensor];
    return tdm_state_get_kept(taking->arenas, snapshot->program, contents[copy->content], tensor,
                              copy->first, copy->elements,
                              address(snapshot, copy->content, tensor, copy->first), err);
}

enum tdm_status tdm_snapshot_take(struct tdm_snapshot *snapshot, const struct tdm_arenas *arenas,
                                  struct tdm_error *err)
{
    const struct tdm_program *program = snapshot->program;
    struct taking taking = {.snapshot = snapshot};
    tdm_arenas_apart(arenas, program->ranks, taking.arenas);
    end_touching(snapshot);
    enum tdm_status status = tdm_parallel(snapshot->copy_count, SIZE_MAX, take_one, &taking, err);
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
