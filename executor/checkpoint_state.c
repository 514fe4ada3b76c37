/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and optimizer state of a checkpoint: from the arenas to its files and back. */
#include "executor/checkpoint_parts.h"

#include "base/parallel.h"
#include "base/size.h"
#include "executor/processes.h"
#include "executor/shared_save.h"
#include "executor/state.h"
#include "models/tensor_set.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a training keeps from one step to the next; the names are those of the parts (weights.h). */
static const struct {
    const char *name, *shown;
    enum tdm_content content;
} kept[] = {
    {"weights", "weights", TDM_UNIT_WEIGHTS},
    {"master", "masters", TDM_UNIT_MASTER},
    {"moment1", "first moments", TDM_UNIT_MOMENT1},
    {"moment2", "second moments", TDM_UNIT_MOMENT2},
};
#define KEPT (sizeof(kept) / sizeof(kept[0]))

/* The saved model holds the weights, unless its files have another dtype. */
static bool is_part(const struct tdm_program *program, size_t number, enum tdm_dtype dtype)
{
    enum tdm_dtype own = tdm_state_dtype(program, kept[number].content);
    return own != TDM_DTYPE_NONE && (kept[number].content != TDM_UNIT_WEIGHTS || own != dtype);
}

uint64_t tdm_checkpoint_part_bytes(const struct tdm_program *program, enum tdm_dtype dtype)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < KEPT; i++)
        if (is_part(program, i, dtype))
            bytes += tdm_dtype_bytes(tdm_state_dtype(program, kept[i].content));
    return tdm_size_mul(bytes, program->schedule->model->parameters);
}

/* ---- saving ---- */

struct saving {
    const struct tdm_arenas *arenas;
    const struct tdm_program *program;
    const struct tdm_weights_watch *watch;
    struct tdm_processes *processes;
    struct tdm_weights_writer *writer;
    struct tdm_shared_set sets[1 + KEPT]; /* those of the writer */
    uint32_t set_count;
    pthread_mutex_t lock;    /* of what follows, and of the watch */
    uint64_t done, elements; /* of all files */
};

/* The sets of files: the model, and what it does not hold of the state. */
static void list_sets(struct saving *s, const struct tdm_weights_target *target)
{
    const bool rounded = tdm_state_dtype(s->program, TDM_UNIT_WEIGHTS) != target->dtype;
    s->sets[s->set_count++] = (struct tdm_shared_set){
        .content = rounded && target->dtype == TDM_DTYPE_FP32 ? TDM_UNIT_MASTER : TDM_UNIT_WEIGHTS,
        .dtype = target->dtype,
        .rounded = rounded,
        .checked = kept[0].shown};
    for (size_t i = 0; i < KEPT; i++)
        if (is_part(s->program, i, target->dtype))
            s->sets[s->set_count++] =
                (struct tdm_shared_set){.part = kept[i].name,
                                        .content = kept[i].content,
                                        .dtype = tdm_state_dtype(s->program, kept[i].content),
                                        .checked = kept[i].shown};
}

static enum tdm_status note_moved(struct saving *s, uint64_t count, struct tdm_error *err)
{
    pthread_mutex_lock(&s->lock);
    enum tdm_status status = tdm_weights_moved(s->watch, count, &s->done, s->elements, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Writes elements of a tensor. `data` has room for them. */
static enum tdm_status save_block(struct saving *s, const struct tdm_shared_set *set,
                                  const struct tdm_tensor *tensor, uint64_t at, void *data,
                                  struct tdm_safetensors_writer *file, struct tdm_error *err)
{
    const uint64_t count = tdm_state_block(tensor, at);
    const enum tdm_dtype dtype = set->rounded ? TDM_DTYPE_FP32 : set->dtype;
    enum tdm_status status =
        set->rounded
            ? tdm_state_get(s->arenas, s->program, set->content, tensor, at, count, data, err)
            : tdm_state_get_kept(s->arenas, s->program, set->content, tensor, at, count, data, err);
    if (status == TDM_OK)
        status = tdm_check_finite(s->program->schedule->model, tensor, set->checked, dtype, data,
                                  count, err);
    if (status == TDM_OK)
        status = set->rounded ? tdm_safetensors_append(file, data, count, err)
                              : tdm_safetensors_append_stored(file, data, count, err);
    return status == TDM_OK ? note_moved(s, count, err) : status;
}

/* Writes one of the files, and reads it back. */
static enum tdm_status save_file(void *self, size_t number, struct tdm_error *err)
{
    struct saving *s = self;
    const struct tdm_model *model = s->program->schedule->model;
    struct tdm_weights_file file;
    void *data = malloc(TDM_STATE_BLOCK * sizeof(float));
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving a checkpoint");
    enum tdm_status status = tdm_weights_begin_file(s->writer, (uint32_t)number, &file, err);
    const bool begun = status == TDM_OK;
    for (uint32_t t = begun ? file.first : 0; begun && t < file.end; t++)
        for (uint64_t at = 0; at < model->tensors[t].elements && status == TDM_OK;
             at += TDM_STATE_BLOCK)
            status =
                save_block(s, &s->sets[file.set], &model->tensors[t], at, data, &file.data, err);
    free(data);
    if (status == TDM_OK)
        return tdm_weights_end_file(s->writer, &file, err);
    if (begun)
        tdm_safetensors_abandon(&file.data);
    return status;
}

static enum tdm_status write_note(struct saving *s, const struct tdm_checkpoint_moment *moment,
                                  struct tdm_error *err)
{
    json_t *sets, *files, *note;
    enum tdm_status status = tdm_weights_describe(s->writer, &sets, &files, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_note(s->program, moment, sets, files, json_null(), &note, err);
    return status == TDM_OK ? tdm_weights_note(s->writer, note, err) : status;
}

static enum tdm_status save_all(struct saving *s, const struct tdm_checkpoint_moment *moment,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < s->set_count && status == TDM_OK; i++)
        status = tdm_weights_plan(s->writer, s->sets[i].part, s->sets[i].dtype, err);
    if (status == TDM_OK)
        status = tdm_parallel(tdm_weights_files(s->writer), TDM_MOST_WRITERS, save_file, s, err);
    return status == TDM_OK ? write_note(s, moment, err) : status;
}

/* Saves with other processes. */
static enum tdm_status save_together(struct saving *s, const struct tdm_weights_target *target,
                                     const struct tdm_checkpoint_moment *moment,
                                     struct tdm_error *err)
{
    enum tdm_status status = tdm_shared_save(target, s->arenas, s->program, s->set_count, s->sets,
                                             s->watch, &s->writer, err);
    return status == TDM_OK && tdm_processes_number(s->processes) == 0 ? write_note(s, moment, err)
                                                                       : status;
}

enum tdm_status tdm_checkpoint_save(const struct tdm_weights_target *target,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    struct tdm_weights_target whole = *target;
    struct saving s = {.arenas = arenas,
                       .program = program,
                       .watch = watch,
                       .processes = tdm_arenas_here(arenas)->processes,
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    whole.checkpoint = true;
    whole.part_bytes = tdm_checkpoint_part_bytes(program, target->dtype);
    whole.shared = true; /* by threads or processes */
    list_sets(&s, target);
    s.elements = s.set_count * program->schedule->model->parameters;
    enum tdm_status status = TDM_OK;
    if (tdm_processes_count(s.processes) > 1) {
        status = save_together(&s, &whole, moment, err);
    } else {
        status = tdm_weights_create(&whole, &s.writer, err);
        if (status == TDM_OK)
            status = save_all(&s, moment, err);
    }
    if (status == TDM_OK && tdm_processes_number(s.processes) == 0)
        return tdm_weights_commit(s.writer, err);
    tdm_weights_abandon(s.writer);
    return status;
}

/* ---- loading ---- */

struct tdm_checkpoint_reader {
    struct tdm_tensor_set_reader *sets[KEPT]; /* NULL: the program does not keep it */
};

enum tdm_status tdm_checkpoint_reader_open(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_program *program,
                                           struct tdm_checkpoint_reader **out,
                                           struct tdm_error *err)
{
    const json_t *sets = json_object_get(checkpoint->note, "sets");
    size_t bytes = strlen(checkpoint->directory) + 64;
    char *folder = malloc(bytes), *note = malloc(bytes);
    struct tdm_checkpoint_reader *reader = calloc(1, sizeof(*reader));
    enum tdm_status status = TDM_OK;
    if (folder == NULL || note == NULL || reader == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", checkpoint->directory);
        goto free_names;
    }
    snprintf(folder, bytes, "%s/" TDM_WEIGHTS_FOLDER, checkpoint->directory);
    snprintf(note, bytes, "%s/" TDM_WEIGHTS_NOTE, checkpoint->directory);
    status = tdm_weights_check_files(checkpoint->directory, note,
                                     json_object_get(checkpoint->note, "files"), err);
    for (size_t i = 0; i < KEPT && status == TDM_OK; i++) {
        enum tdm_dtype dtype = tdm_state_dtype(program, kept[i].content);
        bool in_model =
            kept[i].content == TDM_UNIT_WEIGHTS && json_object_get(sets, kept[i].name) == NULL;
        const char *key = in_model ? "model" : kept[i].name;
        if (dtype != TDM_DTYPE_NONE)
            status = tdm_tensor_set_open(in_model ? checkpoint->directory : folder, note, key,
                                         json_object_get(sets, key), program->schedule->model,
                                         dtype, &reader->sets[i], err);
    }
free_names:
    free(folder);
    free(note);
    if (status != TDM_OK) {
        tdm_checkpoint_reader_close(reader);
        return status;
    }
    *out = reader;
    return TDM_OK;
}

void tdm_checkpoint_reader_close(struct tdm_checkpoint_reader *reader)
{
    for (size_t i = 0; reader != NULL && i < KEPT; i++)
        tdm_tensor_set_close(reader->sets[i]);
    free(reader);
}

enum tdm_status tdm_checkpoint_load(struct tdm_checkpoint *checkpoint,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    enum tdm_status status = TDM_OK;
    uint64_t done = 0, elements = 0;
    if (checkpoint->parts != NULL)
        return tdm_checkpoint_load_within(checkpoint, arenas, program, watch, err);
    void *data = malloc(TDM_STATE_BLOCK * sizeof(float));
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for reading a checkpoint");
    for (size_t i = 0; i < KEPT; i++)
        elements += checkpoint->reader->sets[i] == NULL ? 0 : model->parameters;
    for (size_t i = 0; i < KEPT && status == TDM_OK; i++) {
        struct tdm_tensor_set_reader *set = checkpoint->reader->sets[i];
        for (uint32_t t = 0; set != NULL && t < model->tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[t];
            for (uint64_t at = 0; at < tensor->elements && status == TDM_OK;
                 at += TDM_STATE_BLOCK) {
                uint64_t count = tdm_state_block(tensor, at);
                status = tdm_tensor_set_next(set, data, count, err);
                if (status == TDM_OK)
                    status = tdm_state_put_kept(arenas, program, kept[i].content, tensor, at, count,
                                                data, err);
                if (status == TDM_OK)
                    status = tdm_weights_moved(watch, count, &done, elements, err);
            }
        }
    }
    free(data);
    tdm_checkpoint_reader_close(checkpoint->reader);
    checkpoint->reader = NULL;
    return status;
}
