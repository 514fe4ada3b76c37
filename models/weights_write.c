/* SPDX-License-Identifier: Apache-2.0 */
/* Writing weights: config.json, shards that are filled one after the other, and their index. */
#include "base/directory.h"
#include "base/file.h"
#include "base/size.h"
#include "base/units.h"
#include "models/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Tensors [first, end) of the model. */
struct shard {
    uint32_t first, end;
    char name[48];
};

struct tdm_weights_writer {
    struct tdm_weights_target target;
    struct tdm_directory directory;
    char *names;                    /* of all tensors */
    struct tdm_safetensor *tensors; /* [tensor_count]: name and shape */
    struct shard *shards;
    uint32_t shard_count, current;
    uint64_t bytes;                     /* of the tensors */
    struct tdm_safetensors_writer file; /* of shard `current` */
};

/* The files that a writer makes: those of a model, or of gradients. */
static bool is_file_of(const char *name, const char *stem)
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

static bool owns_model(const char *name)
{
    return strcmp(name, "config.json") == 0 || is_file_of(name, "model");
}

static bool owns_gradients(const char *name)
{
    return is_file_of(name, "gradients");
}

static tdm_directory_owns owner(const struct tdm_weights_target *target)
{
    return target->gradients ? owns_gradients : owns_model;
}

/* Is there room on the file system that will hold the directory? */
static enum tdm_status check_space(const struct tdm_weights_target *target, struct tdm_error *err)
{
    struct statvfs info;
    char *parent = tdm_directory_parent(target->directory);
    bool known = parent != NULL && statvfs(parent, &info) == 0;
    free(parent);
    if (!known) /* writing will tell */
        return TDM_OK;
    uint64_t free_bytes = tdm_size_mul(info.f_bavail, info.f_frsize);
    uint64_t needed = tdm_size_mul(target->model->parameters, tdm_dtype_bytes(target->dtype));
    if (target->repeated && access(target->directory, F_OK) != 0)
        needed = tdm_size_mul(needed, 2); /* the next is complete before the last one goes */
    if (needed <= free_bytes)
        return TDM_OK;
    char needs[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE];
    tdm_fail(err, TDM_IO, "%s: cannot be written: needs %s, and its file system has %s free",
             target->directory, tdm_format_bytes(needed, needs), tdm_format_bytes(free_bytes, has));
    return tdm_hint(err, "free space on that file system, or write elsewhere");
}

enum tdm_status tdm_weights_check(const struct tdm_weights_target *target, struct tdm_error *err)
{
    enum tdm_status status =
        tdm_directory_check(target->directory, target->force, owner(target), err);
    return status == TDM_OK ? check_space(target, err) : status;
}

/* ---- names, shapes, shards ---- */

#define NAME_ROOM 96u

static enum tdm_status list_tensors(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct tdm_model *model = writer->target.model;
    writer->names = malloc((size_t)model->tensor_count * NAME_ROOM);
    writer->tensors = calloc(model->tensor_count, sizeof(*writer->tensors));
    writer->shards = calloc(model->tensor_count, sizeof(*writer->shards));
    if (writer->names == NULL || writer->tensors == NULL || writer->shards == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the names of %" PRIu32 " tensors",
                        writer->target.directory, model->tensor_count);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        char *name = writer->names + (size_t)i * NAME_ROOM;
        tdm_tensor_name(model, &model->tensors[i], name, NAME_ROOM);
        writer->tensors[i].name = name;
        writer->tensors[i].rank = tdm_weights_shape(&model->tensors[i], writer->tensors[i].shape);
    }
    return TDM_OK;
}

/* Fills one shard after the other, in the model's order. */
static void cut_shards(struct tdm_weights_writer *writer)
{
    const struct tdm_model *model = writer->target.model;
    uint64_t size = tdm_dtype_bytes(writer->target.dtype), used = 0;
    struct shard *shard = NULL;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        uint64_t bytes = model->tensors[i].elements * size; /* a model has fewer than 2^48 */
        if (shard == NULL || used + bytes > writer->target.shard_bytes) {
            shard = &writer->shards[writer->shard_count++];
            shard->first = i;
            used = 0;
        }
        shard->end = i + 1;
        used += bytes;
        writer->bytes += bytes;
    }
    const char *stem = writer->target.gradients ? "gradients" : "model";
    for (uint32_t i = 0; i < writer->shard_count; i++)
        if (writer->shard_count == 1)
            snprintf(writer->shards[i].name, sizeof(writer->shards[i].name), "%s.safetensors",
                     stem);
        else
            snprintf(writer->shards[i].name, sizeof(writer->shards[i].name),
                     "%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", stem, i + 1,
                     writer->shard_count);
}

/* ---- the files ---- */

/* Writes a JSON file of the directory; takes away the reference to `root`. */
static enum tdm_status write_json(struct tdm_weights_writer *writer, const char *name, json_t *root,
                                  struct tdm_error *err)
{
    size_t room = strlen(writer->directory.temporary) + strlen(name) + 2;
    char *path = malloc(room), *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    enum tdm_status status;
    json_decref(root);
    if (path == NULL || text == NULL) {
        status =
            tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %s", writer->target.directory, name);
    } else {
        snprintf(path, room, "%s/%s", writer->directory.temporary, name);
        size_t length = strlen(text);
        text[length] = '\n'; /* in place of the zero */
        status = tdm_file_write(path, text, length + 1, false, err);
    }
    free(path);
    free(text);
    return status;
}

/* The config that the model was read from, with the dtype of the files, under the name that every
 * version of transformers reads. */
static enum tdm_status write_config(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct tdm_model *model = writer->target.model;
    const char *dtype = writer->target.dtype == TDM_DTYPE_FP32   ? "float32"
                        : writer->target.dtype == TDM_DTYPE_BF16 ? "bfloat16"
                                                                 : "float16";
    json_t *config = json_deep_copy(model->config);
    json_object_del(config, "dtype");
    json_object_set_new(config, "torch_dtype", json_string(dtype));
    return write_json(writer, "config.json", config, err);
}

static enum tdm_status write_index(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    json_t *map = json_object();
    for (uint32_t s = 0; s < writer->shard_count; s++)
        for (uint32_t i = writer->shards[s].first; i < writer->shards[s].end; i++)
            json_object_set_new(map, writer->tensors[i].name, json_string(writer->shards[s].name));
    if (json_object_size(map) != writer->target.model->tensor_count) { /* memory ran out */
        json_decref(map);
        map = NULL;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)writer->bytes,
                             "weight_map", map);
    return write_json(writer,
                      writer->target.gradients ? "gradients.safetensors.index.json"
                                               : "model.safetensors.index.json",
                      root, err);
}

static enum tdm_status begin_shard(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct shard *shard = &writer->shards[writer->current];
    size_t room = strlen(writer->directory.temporary) + sizeof(shard->name) + 2;
    char *path = malloc(room);
    if (path == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its name", shard->name);
    snprintf(path, room, "%s/%s", writer->directory.temporary, shard->name);
    enum tdm_status status =
        tdm_safetensors_create(path, writer->target.dtype, shard->end - shard->first,
                               writer->tensors + shard->first, &writer->file, err);
    free(path);
    return status;
}

enum tdm_status tdm_weights_create(const struct tdm_weights_target *target,
                                   struct tdm_weights_writer **out, struct tdm_error *err)
{
    enum tdm_status status = check_space(target, err);
    struct tdm_weights_writer *writer = status == TDM_OK ? calloc(1, sizeof(*writer)) : NULL;
    if (status == TDM_OK && writer == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", target->directory);
    if (status != TDM_OK)
        return status;
    writer->target = *target;
    writer->file.fd = -1;
    status = list_tensors(writer, err);
    if (status == TDM_OK) {
        cut_shards(writer);
        status = tdm_directory_begin(target->directory, target->force, owner(target),
                                     &writer->directory, err);
    }
    if (status == TDM_OK && !target->gradients)
        status = write_config(writer, err);
    if (status == TDM_OK && writer->shard_count > 1)
        status = write_index(writer, err);
    if (status == TDM_OK)
        status = begin_shard(writer, err);
    if (status != TDM_OK) {
        tdm_weights_abandon(writer);
        return status;
    }
    *out = writer;
    return TDM_OK;
}

enum tdm_status tdm_weights_append(struct tdm_weights_writer *writer, const float *values,
                                   uint64_t count, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (writer->file.left == 0) {
        status = tdm_safetensors_finish(&writer->file, err);
        writer->current++;
        if (status == TDM_OK && writer->current == writer->shard_count)
            status = tdm_fail(err, TDM_INTERNAL, "%s: more elements than the model has",
                              writer->target.directory);
        if (status == TDM_OK)
            status = begin_shard(writer, err);
    }
    return status == TDM_OK ? tdm_safetensors_append(&writer->file, values, count, err) : status;
}

enum tdm_status tdm_weights_commit(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (writer->current + 1 != writer->shard_count)
        status = tdm_fail(err, TDM_INTERNAL, "%s: fewer elements than the model has",
                          writer->target.directory);
    if (status == TDM_OK)
        status = tdm_safetensors_finish(&writer->file, err);
    if (status == TDM_OK)
        status = tdm_directory_commit(&writer->directory, err);
    tdm_weights_abandon(writer);
    return status;
}

void tdm_weights_abandon(struct tdm_weights_writer *writer)
{
    if (writer == NULL)
        return;
    tdm_safetensors_abandon(&writer->file);
    tdm_directory_abandon(&writer->directory);
    free(writer->names);
    free(writer->tensors);
    free(writer->shards);
    free(writer);
}
