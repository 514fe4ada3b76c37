/* SPDX-License-Identifier: Apache-2.0 */
/* Weights and optimizer state of a checkpoint: from the arenas to its files and back. */
#include "executor/checkpoint_parts.h"

#include "base/size.h"
#include "executor/processes.h"
#include "executor/state.h"
#include "models/tensor_set.h"
#include "schedule/slices.h"

#include <inttypes.h>
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

/* The longest name of a directory that processes tell each other. */
#define MOST_PATH 4096

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
    enum tdm_status found;   /* TDM_INPUT: a value is not finite; nothing is written then */
    uint64_t done, elements; /* of all files */
};

/* Are all elements finite? Remainders always are. */
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

/* Notes the first value that is not finite. */
static void check_finite(struct saving *s, size_t number, const struct tdm_tensor *tensor,
                         enum tdm_dtype dtype, const void *data, uint64_t count,
                         struct tdm_error *err)
{
    char name[128];
    if (s->found != TDM_OK || is_finite(dtype, data, count))
        return;
    tdm_tensor_name(s->program->schedule->model, tensor, name, sizeof(name));
    s->found = tdm_fail(err, TDM_INPUT,
                        "the %s of \"%s\" hold a value that is not finite: they are not saved",
                        kept[number].shown, name);
}

/* Writes one content of all tensors: as it is kept, or, with `rounded`, through fp32 in another
 * dtype. */
static enum tdm_status save_content(struct saving *s, size_t number, bool rounded,
                                    enum tdm_content content, struct tdm_error *err)
{
    const struct tdm_model *model = s->program->schedule->model;
    const enum tdm_dtype dtype =
        rounded ? TDM_DTYPE_FP32 : tdm_state_dtype(s->program, kept[number].content);
    void *data = malloc(TDM_STATE_BLOCK * tdm_dtype_bytes(dtype));
    enum tdm_status status = TDM_OK;
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving a checkpoint");
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct tdm_tensor *tensor = &model->tensors[t];
        for (uint64_t at = 0; at < tensor->elements && status == TDM_OK && s->found == TDM_OK;
             at += TDM_STATE_BLOCK) {
            uint64_t count = tdm_state_block(tensor, at);
            status = rounded ? tdm_state_get(s->arenas, s->program, content, tensor, at, count,
                                             data, err)
                             : tdm_state_get_kept(s->arenas, s->program, content, tensor, at, count,
                                                  data, err);
            if (status == TDM_OK)
                check_finite(s, number, tensor, dtype, data, count, err);
            if (status == TDM_OK && s->found == TDM_OK)
                status = rounded ? tdm_weights_append(s->writer, data, count, err)
                                 : tdm_weights_append_stored(s->writer, data, count, err);
            if (status == TDM_OK)
                status = tdm_weights_moved(s->watch, count, &s->done, s->elements, err);
        }
    }
    free(data);
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

static enum tdm_status save_all(struct saving *s, const struct tdm_weights_target *target,
                                const struct tdm_checkpoint_moment *moment, struct tdm_error *err)
{
    const bool rounded = tdm_state_dtype(s->program, TDM_UNIT_WEIGHTS) != target->dtype;
    enum tdm_status status = save_content(
        s, 0, rounded,
        rounded && target->dtype == TDM_DTYPE_FP32 ? TDM_UNIT_MASTER : TDM_UNIT_WEIGHTS, err);
    for (size_t i = 0; i < KEPT && status == TDM_OK; i++) {
        if (!is_part(s->program, i, target->dtype))
            continue;
        if (s->found == TDM_OK)
            status = tdm_weights_part(s->writer, kept[i].name,
                                      tdm_state_dtype(s->program, kept[i].content), err);
        if (status == TDM_OK)
            status = save_content(s, i, false, kept[i].content, err);
    }
    if (status != TDM_OK || s->found != TDM_OK)
        return status == TDM_OK ? s->found : status;
    return write_note(s, moment, err);
}

/* ---- saving together ---- */

/* The elements of a tensor that a rank writes: each has its part of a unit. */
static struct tdm_slice part_of(const struct saving *s, const struct tdm_tensor *tensor,
                                uint32_t rank)
{
    const struct tdm_slice part = tdm_rank_part(s->program->schedule, tensor->unit, rank);
    const uint64_t begin = tdm_most(part.first, tensor->offset);
    const uint64_t end = tdm_least(part.first + part.elements, tensor->offset + tensor->elements);
    return end <= begin ? (struct tdm_slice){0, 0}
                        : (struct tdm_slice){begin - tensor->offset, end - begin};
}

/* Writes elements of a tensor's content. `data` has room for a block. */
static enum tdm_status put_part(struct saving *s, size_t number, bool rounded,
                                enum tdm_content content, uint32_t tensor, struct tdm_slice part,
                                void *data, struct tdm_error *err)
{
    const struct tdm_tensor *of = &s->program->schedule->model->tensors[tensor];
    const enum tdm_dtype dtype =
        rounded ? TDM_DTYPE_FP32 : tdm_state_dtype(s->program, kept[number].content);
    enum tdm_status status = TDM_OK;
    for (uint64_t done = 0; done < part.elements && status == TDM_OK && s->found == TDM_OK;) {
        const uint64_t at = part.first + done;
        const uint64_t count = tdm_least(part.elements - done, TDM_STATE_BLOCK);
        status = rounded
                     ? tdm_state_get(s->arenas, s->program, content, of, at, count, data, err)
                     : tdm_state_get_kept(s->arenas, s->program, content, of, at, count, data, err);
        if (status == TDM_OK)
            check_finite(s, number, of, dtype, data, count, err);
        if (status == TDM_OK && s->found == TDM_OK)
            status = tdm_weights_put(s->writer, tensor, at, data, !rounded, count, err);
        if (status == TDM_OK)
            status = tdm_weights_moved(s->watch, count, &s->done, s->elements, err);
        done += count;
    }
    return status;
}

/* Writes what the ranks of this process have of a content, and reads it back. */
static enum tdm_status put_content(struct saving *s, size_t number, bool rounded,
                                   enum tdm_content content, struct tdm_error *err)
{
    const struct tdm_model *model = s->program->schedule->model;
    void *data = malloc(TDM_STATE_BLOCK * sizeof(float));
    enum tdm_status status = TDM_OK;
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving a checkpoint");
    for (uint32_t t = 0; t < model->tensor_count; t++)
        for (uint32_t rank = 0; rank < s->program->ranks && status == TDM_OK; rank++)
            if (s->arenas[rank].backend != NULL)
                status = put_part(s, number, rounded, content, t,
                                  part_of(s, &model->tensors[t], rank), data, err);
    free(data);
    return status == TDM_OK ? tdm_weights_leave(s->writer, err) : status;
}

/* One set of files: process 0 makes them, and then all write. */
static enum tdm_status share_content(struct saving *s, size_t number, const char *part,
                                     enum tdm_dtype dtype, bool rounded, enum tdm_content content,
                                     struct tdm_error *err)
{
    enum tdm_status status = tdm_weights_share(s->writer, part, dtype, err);
    if (status == TDM_OK)
        status = tdm_processes_meet(s->processes, err);
    return status == TDM_OK ? put_content(s, number, rounded, content, err) : status;
}

/* The processes divide the files, and read them for their checksums. */
static enum tdm_status sum_files(struct saving *s, struct tdm_error *err)
{
    const uint32_t processes = tdm_processes_count(s->processes);
    const uint32_t number = tdm_processes_number(s->processes);
    const uint32_t files = tdm_weights_files(s->writer);
    uint64_t *sums = calloc((size_t)files + 1, sizeof(*sums));
    enum tdm_status status = TDM_OK;
    if (sums == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving a checkpoint");
    for (uint32_t file = number; file < files && status == TDM_OK; file += processes)
        status = tdm_weights_sum(s->writer, file, &sums[file], err);
    for (uint32_t file = 0; file < files && status == TDM_OK; file++) {
        status = tdm_processes_broadcast(s->processes, file % processes, &sums[file],
                                         sizeof(sums[file]), err);
        tdm_weights_note_sum(s->writer, file, sums[file]);
    }
    free(sums);
    return status;
}

/* Has a process found a value that is not finite? Then all say so. */
static enum tdm_status agree_finite(struct saving *s, struct tdm_error *err)
{
    uint32_t found = s->found != TDM_OK;
    enum tdm_status status = tdm_processes_unite(s->processes, &found, err);
    if (status != TDM_OK || found == 0)
        return status;
    return s->found != TDM_OK
               ? s->found
               : tdm_fail(err, TDM_INPUT, "a value of the state is not finite: it is not saved");
}

/* Saves with other processes: each writes what its ranks have. */
static enum tdm_status save_together(struct saving *s, const struct tdm_weights_target *target,
                                     const struct tdm_checkpoint_moment *moment,
                                     struct tdm_error *err)
{
    char directory[MOST_PATH] = "";
    const bool first = tdm_processes_number(s->processes) == 0;
    const bool rounded = tdm_state_dtype(s->program, TDM_UNIT_WEIGHTS) != target->dtype;
    enum tdm_status status = first ? tdm_weights_create(target, &s->writer, err) : TDM_OK;
    if (status == TDM_OK && first &&
        snprintf(directory, sizeof(directory), "%s", tdm_weights_temporary(s->writer)) >=
            (int)sizeof(directory))
        status = tdm_fail(err, TDM_USAGE, "%s: its name is too long", target->directory);
    if (status == TDM_OK)
        status = tdm_processes_broadcast(s->processes, 0, directory, sizeof(directory), err);
    if (status == TDM_OK && !first)
        status = tdm_weights_join(target, directory, &s->writer, err);
    if (status == TDM_OK)
        status = share_content(
            s, 0, NULL, target->dtype, rounded,
            rounded && target->dtype == TDM_DTYPE_FP32 ? TDM_UNIT_MASTER : TDM_UNIT_WEIGHTS, err);
    for (size_t i = 0; i < KEPT && status == TDM_OK; i++)
        if (is_part(s->program, i, target->dtype))
            status = share_content(s, i, kept[i].name, tdm_state_dtype(s->program, kept[i].content),
                                   false, kept[i].content, err);
    if (status == TDM_OK)
        status = agree_finite(s, err);
    if (status == TDM_OK)
        status = tdm_processes_meet(s->processes, err);
    if (status == TDM_OK)
        status = sum_files(s, err);
    return status == TDM_OK && first ? write_note(s, moment, err) : status;
}

/* Elements that this process writes of each content. */
static uint64_t own_elements(const struct saving *s)
{
    const struct tdm_model *model = s->program->schedule->model;
    uint64_t elements = 0;
    if (tdm_processes_count(s->processes) == 1)
        return model->parameters;
    for (uint32_t t = 0; t < model->tensor_count; t++)
        for (uint32_t rank = 0; rank < s->program->ranks; rank++)
            if (s->arenas[rank].backend != NULL)
                elements += part_of(s, &model->tensors[t], rank).elements;
    return elements;
}

enum tdm_status tdm_checkpoint_save(const struct tdm_weights_target *target,
                                    const struct tdm_arenas *arenas,
                                    const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment,
                                    const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    struct tdm_weights_target whole = *target;
    struct tdm_arenas own[TDM_MAX_RANKS]; /* which this process reads for itself */
    struct saving s = {.arenas = arenas,
                       .program = program,
                       .watch = watch,
                       .processes =
                           arenas->snapshot == NULL ? tdm_arenas_here(arenas)->processes : NULL};
    const bool together = tdm_processes_count(s.processes) > 1;
    whole.checkpoint = true;
    whole.part_bytes = tdm_checkpoint_part_bytes(program, target->dtype);
    whole.shared = together;
    for (uint32_t rank = 0; rank < program->ranks && together; rank++) {
        own[rank] = arenas[rank];
        own[rank].processes = NULL;
        s.arenas = own;
    }
    uint64_t sets = 1;
    for (size_t i = 0; i < KEPT; i++)
        sets += is_part(program, i, target->dtype);
    s.elements = sets * own_elements(&s);
    enum tdm_status status = TDM_OK;
    if (together) {
        status = save_together(&s, &whole, moment, err);
    } else {
        status = tdm_weights_create(&whole, &s.writer, err);
        if (status == TDM_OK)
            status = save_all(&s, &whole, moment, err);
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
