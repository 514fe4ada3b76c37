/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of several processes together (executor/shared_save.h). */
#include "executor/shared_save.h"

#include "base/parallel.h"
#include "base/size.h"
#include "executor/processes.h"
#include "executor/state.h"
#include "schedule/slices.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The longest name of a directory that processes tell each other. */
#define MOST_PATH 4096

struct sharing {
    const struct tdm_arenas *arenas; /* which this process reads for itself */
    const struct tdm_program *program;
    const struct tdm_weights_watch *watch;
    struct tdm_processes *processes;
    struct tdm_weights_writer *writer;
    const struct tdm_shared_set *sets; /* those of the writer */
    uint64_t *sums;                    /* [files], of those that this process reads */
    uint64_t elements;                 /* of all sets, that this process writes */
    pthread_mutex_t lock;              /* of what follows, and of the watch */
    uint64_t done;
    struct tdm_error found; /* TDM_INPUT: a value is not finite; nothing is written then */
};

static bool is_finite(enum tdm_dtype dtype, const void *data, uint64_t count)
{
    const uint32_t *words = data;
    const uint16_t *halves = data;
    bool finite = true;
    if (dtype == TDM_DTYPE_FP32)
        for (uint64_t i = 0; i < count; i++)
            finite = finite && (words[i] & 0x7f800000u) != 0x7f800000u;
    else if (dtype == TDM_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++)
            finite = finite && (halves[i] & 0x7f80u) != 0x7f80u;
    return finite;
}

enum tdm_status tdm_check_finite(const struct tdm_model *model, const struct tdm_tensor *tensor,
                                 const char *shown, enum tdm_dtype dtype, const void *data,
                                 uint64_t count, struct tdm_error *err)
{
    char name[128];
    if (is_finite(dtype, data, count))
        return TDM_OK;
    tdm_tensor_name(model, tensor, name, sizeof(name));
    return tdm_fail(err, TDM_INPUT,
                    "the %s of \"%s\" hold a value that is not finite: they are not saved", shown,
                    name);
}

/* Notes what one of the threads has moved, and what it found. Sets *found if any has found a value
 * that is not finite. */
static enum tdm_status note_moved(struct sharing *s, uint64_t count, const struct tdm_error *what,
                                  bool *found, struct tdm_error *err)
{
    pthread_mutex_lock(&s->lock);
    if (s->found.status == TDM_OK && what->status != TDM_OK)
        s->found = *what;
    *found = s->found.status != TDM_OK;
    enum tdm_status status = tdm_weights_moved(s->watch, count, &s->done, s->elements, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Writes elements of a tensor to a file. `data` has room for a block. */
static enum tdm_status put_part(struct sharing *s, struct tdm_weights_part *file, uint32_t tensor,
                                struct tdm_slice part, void *data, struct tdm_error *err)
{
    const struct tdm_shared_set *set = &s->sets[file->set];
    const struct tdm_model *model = s->program->schedule->model;
    const struct tdm_tensor *of = &model->tensors[tensor];
    const enum tdm_dtype dtype = set->rounded ? TDM_DTYPE_FP32 : set->dtype;
    enum tdm_status status = TDM_OK;
    bool found = false;
    for (uint64_t done = 0; done < part.elements && status == TDM_OK && !found;) {
        const uint64_t at = part.first + done;
        const uint64_t count = tdm_least(part.elements - done, TDM_STATE_BLOCK);
        struct tdm_error what = {.status = TDM_OK};
        status =
            set->rounded
                ? tdm_state_get(s->arenas, s->program, set->content, of, at, count, data, err)
                : tdm_state_get_kept(s->arenas, s->program, set->content, of, at, count, data, err);
        if (status == TDM_OK && set->checked != NULL)
            (void)tdm_check_finite(model, of, set->checked, dtype, data, count, &what);
        if (status == TDM_OK)
            status = note_moved(s, count, &what, &found, err);
        if (status == TDM_OK && !found)
            status = tdm_weights_put(s->writer, file, tensor, at, data, !set->rounded, count, err);
        done += count;
    }
    return status;
}

/* Writes what the ranks here have to one of the files, and reads it back. */
static enum tdm_status put_file(void *self, size_t number, struct tdm_error *err)
{
    struct sharing *s = self;
    const struct tdm_schedule *schedule = s->program->schedule;
    struct tdm_weights_part file;
    void *data = malloc(TDM_STATE_BLOCK * sizeof(float));
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving together");
    enum tdm_status status = tdm_weights_join_file(s->writer, (uint32_t)number, &file, err);
    for (uint32_t t = file.first; t < file.end; t++)
        for (uint32_t rank = 0; rank < s->program->ranks && status == TDM_OK; rank++)
            if (s->arenas[rank].backend != NULL)
                status = put_part(s, &file, t,
                                  tdm_rank_part_of(schedule, &schedule->model->tensors[t], rank),
                                  data, err);
    free(data);
    if (status == TDM_OK)
        return tdm_weights_leave(&file, err);
    tdm_safetensors_drop(&file.data);
    return status;
}

/* Process 0 makes the files of all sets, and then each writes what its ranks have. */
static enum tdm_status put_sets(struct sharing *s, uint32_t count, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++)
        status = tdm_weights_share(s->writer, s->sets[i].part, s->sets[i].dtype, err);
    if (status == TDM_OK)
        status = tdm_processes_meet(s->processes, err);
    return status == TDM_OK
               ? tdm_parallel(tdm_weights_files(s->writer), TDM_MOST_WRITERS, put_file, s, err)
               : status;
}

/* Reads a file for its checksum: the one of this number among those of this process. */
static enum tdm_status sum_file(void *self, size_t number, struct tdm_error *err)
{
    struct sharing *s = self;
    const uint32_t file =
        (uint32_t)number * tdm_processes_count(s->processes) + tdm_processes_number(s->processes);
    return tdm_weights_sum(s->writer, file, &s->sums[file], err);
}

/* The processes divide the files, and read them for their checksums. */
static enum tdm_status sum_files(struct sharing *s, struct tdm_error *err)
{
    const uint32_t processes = tdm_processes_count(s->processes);
    const uint32_t number = tdm_processes_number(s->processes);
    const uint32_t files = tdm_weights_files(s->writer);
    const uint32_t own = files > number ? (files - number + processes - 1) / processes : 0;
    s->sums = calloc((size_t)files + 1, sizeof(*s->sums));
    if (s->sums == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving together");
    enum tdm_status status = tdm_parallel(own, TDM_MOST_WRITERS, sum_file, s, err);
    for (uint32_t file = 0; file < files && status == TDM_OK; file++) {
        status = tdm_processes_broadcast(s->processes, file % processes, &s->sums[file],
                                         sizeof(s->sums[file]), err);
        tdm_weights_note_sum(s->writer, file, s->sums[file]);
    }
    free(s->sums);
    return status;
}

/* Has a process found a value that is not finite? Then all say what the first of them found. */
static enum tdm_status agree_finite(struct sharing *s, struct tdm_error *err)
{
    uint32_t found = s->found.status != TDM_OK;
    enum tdm_status status = tdm_processes_unite(s->processes, &found, err);
    for (uint32_t from = 0; found != 0 && status == TDM_OK; from++) {
        struct tdm_error first = s->found;
        status = tdm_processes_broadcast(s->processes, from, &first, sizeof(first), err);
        if (status == TDM_OK && first.status != TDM_OK) {
            *err = first;
            return err->status;
        }
    }
    return status;
}

/* Process 0 makes the directory, and tells the others its name. */
static enum tdm_status begin(struct sharing *s, const struct tdm_weights_target *target,
                             struct tdm_error *err)
{
    char directory[MOST_PATH] = "";
    const bool first = tdm_processes_number(s->processes) == 0;
    enum tdm_status status = first ? tdm_weights_create(target, &s->writer, err) : TDM_OK;
    if (status == TDM_OK && first &&
        snprintf(directory, sizeof(directory), "%s", tdm_weights_temporary(s->writer)) >=
            (int)sizeof(directory))
        status = tdm_fail(err, TDM_USAGE, "%s: its name is too long", target->directory);
    if (status == TDM_OK)
        status = tdm_processes_broadcast(s->processes, 0, directory, sizeof(directory), err);
    return status == TDM_OK && !first ? tdm_weights_join(target, directory, &s->writer, err)
                                      : status;
}

/* Elements of a set that this process writes. */
static uint64_t own_elements(const struct sharing *s)
{
    const struct tdm_schedule *schedule = s->program->schedule;
    uint64_t elements = 0;
    for (uint32_t t = 0; t < schedule->model->tensor_count; t++)
        for (uint32_t rank = 0; rank < s->program->ranks; rank++)
            if (s->arenas[rank].backend != NULL)
                elements += tdm_rank_part_of(schedule, &schedule->model->tensors[t], rank).elements;
    return elements;
}

enum tdm_status tdm_shared_save(const struct tdm_weights_target *target,
                                const struct tdm_arenas *arenas, const struct tdm_program *program,
                                uint32_t count, const struct tdm_shared_set *sets,
                                const struct tdm_weights_watch *watch,
                                struct tdm_weights_writer **writer, struct tdm_error *err)
{
    struct tdm_arenas own[TDM_MAX_RANKS];
    tdm_arenas_apart(arenas, program->ranks, own);
    struct sharing s = {.arenas = own,
                        .program = program,
                        .watch = watch,
                        .sets = sets,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .processes = tdm_arenas_here(arenas)->processes};
    s.elements = tdm_size_mul(count, own_elements(&s));
    enum tdm_status status = begin(&s, target, err);
    if (status == TDM_OK)
        status = put_sets(&s, count, err);
    if (status == TDM_OK)
        status = agree_finite(&s, err);
    if (status == TDM_OK)
        status = tdm_processes_meet(s.processes, err);
    if (status == TDM_OK)
        status = sum_files(&s, err);
    if (status != TDM_OK) {
        tdm_weights_abandon(s.writer);
        return status;
    }
    *writer = s.writer;
    return TDM_OK;
}
