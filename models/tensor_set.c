/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads sets of tensors (models/tensor_set.h). */
#include "models/tensor_set.h"

#include "base/file.h"
#include "base/json.h"
#include "models/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tensors [first, end) of the model. */
struct tdm_tensor_shard {
    uint32_t first, end;
    char name[80];
    uint64_t checksum; /* of its data, set when they are written */
};

#define NAME_BYTES 96u

#define CHECKSUM_BYTES 17u /* 16 hexadecimal digits */

bool tdm_tensor_set_owns(const char *name, const char *stem)
{
    size_t length = strlen(stem);
    if (strncmp(name, stem, length) != 0)
        return false;
    name += length;
    if (strcmp(name, ".safetensors") == 0 || strcmp(name, ".safetensors.index.json") == 0)
        return true;
    unsigned number, count; /* -00001-of-00002.safetensors */
    int end = 0;
    return sscanf(name, "-%5u-of-%5u.safetensors%n", &number, &count, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

static enum tdm_status no_memory(const char *directory, const char *name, struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %s", directory, name);
}

/* ---- names, shapes, shards ---- */

/* The names, ranks and shapes of a model's tensors. */
static enum tdm_status list_tensors(const char *directory, const struct tdm_model *model,
                                    char **names, struct tdm_safetensor **tensors,
                                    struct tdm_error *err)
{
    *names = malloc((size_t)model->tensor_count * NAME_BYTES);
    *tensors = calloc(model->tensor_count, sizeof(**tensors));
    if (*names == NULL || *tensors == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the names of %" PRIu32 " tensors",
                        directory, model->tensor_count);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        char *name = *names + (size_t)i * NAME_BYTES;
        tdm_tensor_name(model, &model->tensors[i], name, NAME_BYTES);
        (*tensors)[i].name = name;
        (*tensors)[i].rank = tdm_weights_shape(&model->tensors[i], (*tensors)[i].shape);
    }
    return TDM_OK;
}

/* Assigns tensors to shards in the model's order; a full shard is followed by the next. */
static void cut_shards(struct tdm_tensor_set *set, uint64_t shard_bytes)
{
    const struct tdm_model *model = set->model;
    uint64_t size = tdm_dtype_bytes(set->dtype), used = 0;
    struct tdm_tensor_shard *shard = NULL;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        uint64_t bytes = model->tensors[i].elements * size; /* a model has fewer than 2^48 */
        if (shard == NULL || used + bytes > shard_bytes) {
            shard = &set->shards[set->shard_count++];
            shard->first = i;
            used = 0;
        }
        shard->end = i + 1;
        used += bytes;
        set->bytes += bytes;
    }
    for (uint32_t i = 0; i < set->shard_count; i++)
        if (set->shard_count == 1)
            snprintf(set->shards[i].name, sizeof(set->shards[i].name), "%s.safetensors", set->stem);
        else
            snprintf(set->shards[i].name, sizeof(set->shards[i].name),
                     "%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", set->stem, i + 1,
                     set->shard_count);
}

/* ---- writing ---- */

/* Maps each tensor to its shard. NULL if memory ran out. */
static json_t *make_index(const struct tdm_tensor_set *set)
{
    json_t *map = json_object();
    bool whole = map != NULL;
    for (uint32_t s = 0; s < set->shard_count; s++)
        for (uint32_t i = set->shards[s].first; i < set->shards[s].end; i++)
            whole = json_object_set_new(map, set->tensors[i].name,
                                        json_string(set->shards[s].name)) == 0 &&
                    whole;
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)set->bytes,
                             "weight_map", map);
    if (whole)
        return root;
    json_decref(root);
    return NULL;
}

static enum tdm_status write_index(struct tdm_tensor_set *set, struct tdm_error *err)
{
    char name[sizeof(set->stem) + 32];
    snprintf(name, sizeof(name), "%s.safetensors.index.json", set->stem);
    set->index = make_index(set);
    return tdm_json_save(set->directory, name, set->index, err);
}

enum tdm_status tdm_tensor_set_begin_file(const struct tdm_tensor_set *set, uint32_t number,
                                          struct tdm_safetensors_writer *file,
                                          struct tdm_error *err)
{
    const struct tdm_tensor_shard *shard = &set->shards[number];
    char *path = tdm_path_join(set->directory, shard->name);
    if (path == NULL)
        return no_memory(set->directory, shard->name, err);
    enum tdm_status status = tdm_safetensors_create(path, set->dtype, shard->end - shard->first,
                                                    set->tensors + shard->first, file, err);
    free(path);
    return status;
}

static enum tdm_status finish_file(struct tdm_tensor_set *set, uint32_t number,
                                   struct tdm_safetensors_writer *file, struct tdm_error *err)
{
    set->shards[number].checksum = tdm_checksum_value(&file->checksum);
    return tdm_safetensors_finish(file, err);
}

static enum tdm_status verify_file(const struct tdm_tensor_set *set, uint32_t number,
                                   struct tdm_error *err)
{
    const struct tdm_tensor_shard *shard = &set->shards[number];
    char *path = tdm_path_join(set->directory, shard->name);
    enum tdm_status status =
        path == NULL ? no_memory(set->directory, shard->name, err)
                     : tdm_safetensors_verify(path, set->dtype, shard->end - shard->first,
                                              set->tensors + shard->first, shard->checksum, err);
    free(path);
    return status;
}

/* Names and divides what a set will hold. */
static enum tdm_status plan_set(const char *directory, const char *stem,
                                const struct tdm_model *model, enum tdm_dtype dtype,
                                uint64_t shard_bytes, struct tdm_tensor_set *set,
                                struct tdm_error *err)
{
    *set = (struct tdm_tensor_set){.model = model, .dtype = dtype, .file = {.fd = -1}};
    snprintf(set->stem, sizeof(set->stem), "%s", stem);
    set->directory = strdup(directory);
    set->shards = calloc(model->tensor_count, sizeof(*set->shards));
    if (set->directory == NULL || set->shards == NULL)
        return no_memory(directory, stem, err);
    enum tdm_status status = list_tensors(directory, model, &set->names, &set->tensors, err);
    if (status != TDM_OK)
        return status;
    cut_shards(set, shard_bytes);
    return TDM_OK;
}

enum tdm_status tdm_tensor_set_begin(const char *directory, const char *stem,
                                     const struct tdm_model *model, enum tdm_dtype dtype,
                                     uint64_t shard_bytes, struct tdm_tensor_set *set,
                                     struct tdm_error *err)
{
    enum tdm_status status = plan_set(directory, stem, model, dtype, shard_bytes, set, err);
    if (status == TDM_OK && set->shard_count > 1)
        status = write_index(set, err);
    return status == TDM_OK ? tdm_tensor_set_begin_file(set, 0, &set->file, err) : status;
}

enum tdm_status tdm_tensor_set_append(struct tdm_tensor_set *set, const float *values,
                                      uint64_t count, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (set->file.left == 0) {
        status = finish_file(set, set->current, &set->file, err);
        set->current++;
        if (status == TDM_OK && set->current == set->shard_count)
            status =
                tdm_fail(err, TDM_INTERNAL, "%s: more elements than the model has", set->directory);
        if (status == TDM_OK)
            status = tdm_tensor_set_begin_file(set, set->current, &set->file, err);
    }
    if (status != TDM_OK)
        return status;
    return tdm_safetensors_append(&set->file, values, count, err);
}

enum tdm_status tdm_tensor_set_finish(struct tdm_tensor_set *set, struct tdm_error *err)
{
    if (set->current + 1 != set->shard_count)
        return tdm_fail(err, TDM_INTERNAL, "%s: fewer elements than the model has", set->directory);
    return finish_file(set, set->current, &set->file, err);
}

/* ---- writing files at the same time ---- */

enum tdm_status tdm_tensor_set_plan(const char *directory, const char *stem,
                                    const struct tdm_model *model, enum tdm_dtype dtype,
                                    uint64_t shard_bytes, struct tdm_tensor_set *set,
                                    struct tdm_error *err)
{
    enum tdm_status status = plan_set(directory, stem, model, dtype, shard_bytes, set, err);
    set->read_back = true;
    return status == TDM_OK && set->shard_count > 1 ? write_index(set, err) : status;
}

void tdm_tensor_set_range(const struct tdm_tensor_set *set, uint32_t shard, uint32_t *first,
                          uint32_t *end)
{
    *first = set->shards[shard].first;
    *end = set->shards[shard].end;
}

enum tdm_status tdm_tensor_set_end_file(struct tdm_tensor_set *set, uint32_t shard,
                                        struct tdm_safetensors_writer *file, struct tdm_error *err)
{
    enum tdm_status status = finish_file(set, shard, file, err);
    return status == TDM_OK ? verify_file(set, shard, err) : status;
}

/* ---- writing together ---- */

enum tdm_status tdm_tensor_set_share(const char *directory, const char *stem,
                                     const struct tdm_model *model, enum tdm_dtype dtype,
                                     uint64_t shard_bytes, bool makes, struct tdm_tensor_set *set,
                                     struct tdm_error *err)
{
    enum tdm_status status = plan_set(directory, stem, model, dtype, shard_bytes, set, err);
    set->read_back = true;
    if (status == TDM_OK && makes && set->shard_count > 1)
        status = write_index(set, err);
    for (uint32_t i = 0; i < set->shard_count && makes && status == TDM_OK; i++) {
        const struct tdm_tensor_shard *shard = &set->shards[i];
        char *path = tdm_path_join(set->directory, shard->name);
        status = path == NULL ? no_memory(set->directory, shard->name, err)
                              : tdm_safetensors_reserve(path, dtype, shard->end - shard->first,
                                                        set->tensors + shard->first, err);
        free(path);
    }
    return status;
}

enum tdm_status tdm_tensor_set_join_file(const struct tdm_tensor_set *set, uint32_t number,
                                         struct tdm_safetensors_share *file, struct tdm_error *err)
{
    const struct tdm_tensor_shard *shard = &set->shards[number];
    char *path = tdm_path_join(set->directory, shard->name);
    *file = (struct tdm_safetensors_share){.writer = {.fd = -1}};
    enum tdm_status status = path == NULL
                                 ? no_memory(set->directory, shard->name, err)
                                 : tdm_safetensors_join(path, set->dtype, shard->end - shard->first,
                                                        set->tensors + shard->first, file, err);
    free(path);
    return status;
}

enum tdm_status tdm_tensor_set_put(const struct tdm_tensor_set *set, uint32_t shard,
                                   struct tdm_safetensors_share *file, uint32_t tensor,
                                   uint64_t first, const void *values, bool stored, uint64_t count,
                                   struct tdm_error *err)
{
    for (uint32_t i = set->shards[shard].first; i < tensor; i++)
        first += set->model->tensors[i].elements;
    return tdm_safetensors_put(file, first, values, stored, count, err);
}

enum tdm_status tdm_tensor_set_sum(const struct tdm_tensor_set *set, uint32_t number,
                                   uint64_t *checksum, struct tdm_error *err)
{
    const struct tdm_tensor_shard *shard = &set->shards[number];
    char *path = tdm_path_join(set->directory, shard->name);
    enum tdm_status status = path == NULL
                                 ? no_memory(set->directory, shard->name, err)
                                 : tdm_safetensors_sum(path, set->dtype, shard->end - shard->first,
                                                       set->tensors + shard->first, checksum, err);
    free(path);
    return status;
}

void tdm_tensor_set_note_sum(struct tdm_tensor_set *set, uint32_t shard, uint64_t checksum)
{
    set->shards[shard].checksum = checksum;
}

enum tdm_status tdm_tensor_set_verify(const struct tdm_tensor_set *set, struct tdm_error *err)
{
    char name[sizeof(set->stem) + 32];
    snprintf(name, sizeof(name), "%s.safetensors.index.json", set->stem);
    enum tdm_status status = tdm_json_verify(set->directory, name, set->index, err);
    for (uint32_t i = 0; i < set->shard_count && !set->read_back && status == TDM_OK; i++)
        status = verify_file(set, i, err);
    return status;
}

static const char *checksum_text(uint64_t checksum, char out[CHECKSUM_BYTES])
{
    snprintf(out, CHECKSUM_BYTES, "%016" PRIx64, checksum);
    return out;
}

json_t *tdm_tensor_set_describe(const struct tdm_tensor_set *set)
{
    json_t *files = json_array();
    char checksum[CHECKSUM_BYTES];
    for (uint32_t i = 0; i < set->shard_count; i++)
        tdm_json_add(&files, json_pack("{s:s, s:s}", "name", set->shards[i].name, "checksum",
                                       checksum_text(set->shards[i].checksum, checksum)));
    json_t *description = json_object();
    tdm_json_set(&description, "dtype", json_string(tdm_dtype_name(set->dtype)));
    tdm_json_set(&description, "files", files);
    return description;
}

void tdm_tensor_set_free(struct tdm_tensor_set *set)
{
    if (set->file.path != NULL)
        tdm_safetensors_abandon(&set->file);
    json_decref(set->index);
    free(set->directory);
    free(set->names);
    free(set->tensors);
    free(set->shards);
    *set = (struct tdm_tensor_set){.file = {.fd = -1}};
}

/* ---- reading ---- */

/* An open file of a set. */
struct opened {
    struct tdm_safetensors *file;
    char checksum[CHECKSUM_BYTES]; /* that its data should have */
};

struct tdm_tensor_set_reader {
    enum tdm_dtype dtype;
    struct opened *files;
    uint32_t count;
    /* what is read next */
    uint32_t current, tensor;
    uint64_t first;
    struct tdm_checksum sum; /* of the data of the current file so far */
};

/* Opens the next file of a set, which must hold the model's tensors from *done on. */
static enum tdm_status open_next(const char *directory, const char *from, const char *key,
                                 const json_t *entry, const struct tdm_safetensor *tensors,
                                 uint32_t tensor_count, uint32_t *done,
                                 struct tdm_tensor_set_reader *reader, struct tdm_error *err)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *checksum = json_string_value(json_object_get(entry, "checksum"));
    struct opened *opened = &reader->files[reader->count];
    if (name == NULL || checksum == NULL || strchr(name, '/') != NULL || name[0] == '.')
        return tdm_fail(err, TDM_INPUT, "%s: \"%s\" does not name its files and their checksums",
                        from, key);
    char *path = tdm_path_join(directory, name);
    enum tdm_status status = path == NULL ? no_memory(directory, name, err)
                                          : tdm_safetensors_open(path, &opened->file, err);
    free(path);
    if (status != TDM_OK)
        return status;
    reader->count++;
    snprintf(opened->checksum, sizeof(opened->checksum), "%s", checksum);
    const struct tdm_safetensors *file = opened->file;
    bool due = file->tensor_count <= tensor_count - *done;
    for (uint32_t i = 0; due && i < file->tensor_count; i++)
        due = tdm_safetensors_is(&file->tensors[i], reader->dtype, &tensors[*done + i]);
    *done += file->tensor_count;
    if (due)
        return TDM_OK;
    return tdm_fail(err, TDM_INPUT,
                    "%s: does not hold the tensors of the model, in their order, as %s", file->path,
                    tdm_dtype_name(reader->dtype));
}

static enum tdm_status open_files(const char *directory, const char *from, const char *key,
                                  const json_t *files, const struct tdm_model *model,
                                  struct tdm_tensor_set_reader *reader, struct tdm_error *err)
{
    char *names = NULL;
    struct tdm_safetensor *tensors = NULL;
    uint32_t done = 0;
    enum tdm_status status = list_tensors(directory, model, &names, &tensors, err);
    for (size_t i = 0; i < json_array_size(files) && status == TDM_OK; i++)
        status = open_next(directory, from, key, json_array_get(files, i), tensors,
                           model->tensor_count, &done, reader, err);
    if (status == TDM_OK && done != model->tensor_count)
        status = tdm_fail(err, TDM_INPUT, "%s: \"%s\" has %" PRIu32 " of %" PRIu32 " tensors", from,
                          key, done, model->tensor_count);
    free(names);
    free(tensors);
    return status;
}

enum tdm_status tdm_tensor_set_open(const char *directory, const char *file, const char *key,
                                    const json_t *description, const struct tdm_model *model,
                                    enum tdm_dtype dtype, struct tdm_tensor_set_reader **out,
                                    struct tdm_error *err)
{
    const char *stored = json_string_value(json_object_get(description, "dtype"));
    const json_t *files = json_object_get(description, "files");
    if (stored == NULL || !json_is_array(files))
        return tdm_fail(err, TDM_INPUT, "%s: does not describe \"%s\"", file, key);
    if (strcmp(stored, tdm_dtype_name(dtype)) != 0)
        return tdm_fail(err, TDM_INPUT, "%s: \"%s\" is stored as %s; expected %s", file, key,
                        stored, tdm_dtype_name(dtype));
    struct tdm_tensor_set_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return no_memory(directory, key, err);
    reader->dtype = dtype;
    reader->files = calloc(json_array_size(files) + 1, sizeof(*reader->files));
    enum tdm_status status = reader->files == NULL
                                 ? no_memory(directory, key, err)
                                 : open_files(directory, file, key, files, model, reader, err);
    if (status != TDM_OK) {
        tdm_tensor_set_close(reader);
        return status;
    }
    *out = reader;
    return TDM_OK;
}

void tdm_tensor_set_close(struct tdm_tensor_set_reader *reader)
{
    if (reader == NULL)
        return;
    for (uint32_t i = 0; i < reader->count; i++)
        tdm_safetensors_close(reader->files[i].file);
    free(reader->files);
    free(reader);
}

/* The last element of the current file was read. */
static enum tdm_status end_file(struct tdm_tensor_set_reader *reader, struct tdm_error *err)
{
    const struct opened *opened = &reader->files[reader->current];
    char found[CHECKSUM_BYTES];
    checksum_text(tdm_checksum_value(&reader->sum), found);
    reader->current++;
    reader->tensor = 0;
    reader->sum = (struct tdm_checksum){0};
    if (strcmp(found, opened->checksum) == 0)
        return TDM_OK;
    return tdm_fail(err, TDM_INPUT,
                    "%s: its data are not those that were saved: their checksum differs",
                    opened->file->path);
}

enum tdm_status tdm_tensor_set_next(struct tdm_tensor_set_reader *reader, void *values,
                                    uint64_t count, struct tdm_error *err)
{
    if (reader->current == reader->count)
        return tdm_fail(err, TDM_INTERNAL, "more elements are read than a set of tensors has");
    const struct tdm_safetensors *file = reader->files[reader->current].file;
    const struct tdm_safetensor *tensor = &file->tensors[reader->tensor];
    enum tdm_status status =
        tdm_safetensors_read_stored(file, tensor, reader->first, count, values, err);
    if (status != TDM_OK)
        return status;
    tdm_checksum_add(&reader->sum, values, count * tdm_dtype_bytes(reader->dtype));
    reader->first += count;
    if (reader->first < tensor->elements)
        return TDM_OK;
    reader->first = 0;
    reader->tensor++;
    return reader->tensor < file->tensor_count ? TDM_OK : end_file(reader, err);
}
