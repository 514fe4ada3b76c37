/* SPDX-License-Identifier: Apache-2.0 */
/* Writes weights: config.json, shards one after another, and their index. Everything is read back
 * before it replaces the old directory. */
#include "base/directory.h"
#include "base/file.h"
#include "base/json.h"
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
    uint64_t checksum; /* of its data, set when they are written */
};

struct tdm_weights_writer {
    struct tdm_weights_target target;
    struct tdm_directory directory;
    char *names;                    /* of all tensors */
    struct tdm_safetensor *tensors; /* [tensor_count]: name and shape */
    struct shard *shards;
    uint32_t shard_count, current;
    uint64_t bytes;                     /* of the tensors */
    json_t *config, *index;             /* contents of these files; NULL: there is none */
    struct tdm_safetensors_writer file; /* of shard `current` */
};

/* Is this a file that a writer makes, for a model or for gradients (`stem`)? */
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

/* Does the file system that will hold the directory have enough space? */
static enum tdm_status check_space(const struct tdm_weights_target *target, struct tdm_error *err)
{
    struct statvfs info;
    char *parent = tdm_directory_parent(target->directory);
    bool known = parent != NULL && statvfs(parent, &info) == 0;
    free(parent);
    if (!known) /* the write will tell */
        return TDM_OK;
    uint64_t free_bytes = tdm_size_mul(info.f_bavail, info.f_frsize);
    uint64_t needed = tdm_size_mul(target->model->parameters, tdm_dtype_bytes(target->dtype));
    if (target->repeated && access(target->directory, F_OK) != 0)
        /* the next one is complete before the last one is removed */
        needed = tdm_size_mul(needed, 2);
    if (needed <= free_bytes)
        return TDM_OK;
    char needs[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE];
    tdm_fail(err, TDM_IO, "%s: cannot be written: needs %s, and its file system has %s free",
             target->directory, tdm_format_bytes(needed, needs), tdm_format_bytes(free_bytes, has));
    return tdm_hint(err, "free space on that file system, or write elsewhere");
}

enum tdm_status tdm_weights_check(const struct tdm_weights_target *target, struct tdm_error *err)
{
    enum tdm_status status = tdm_directory_check(target->directory, target->force,
                                                 !target->only_checked, owner(target), err);
    return status == TDM_OK ? check_space(target, err) : status;
}

/* ---- names, shapes, shards ---- */

#define NAME_BYTES 96u

static enum tdm_status list_tensors(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct tdm_model *model = writer->target.model;
    writer->names = malloc((size_t)model->tensor_count * NAME_BYTES);
    writer->tensors = calloc(model->tensor_count, sizeof(*writer->tensors));
    writer->shards = calloc(model->tensor_count, sizeof(*writer->shards));
    if (writer->names == NULL || writer->tensors == NULL || writer->shards == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the names of %" PRIu32 " tensors",
                        writer->target.directory, model->tensor_count);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        char *name = writer->names + (size_t)i * NAME_BYTES;
        tdm_tensor_name(model, &model->tensors[i], name, NAME_BYTES);
        writer->tensors[i].name = name;
        writer->tensors[i].rank = tdm_weights_shape(&model->tensors[i], writer->tensors[i].shape);
    }
    return TDM_OK;
}

/* Assigns tensors to shards in the model's order; a full shard is followed by the next. */
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

/* "TEMPORARY/NAME"; malloc'ed. */
static char *path_of(const struct tdm_weights_writer *writer, const char *name)
{
    size_t bytes = strlen(writer->directory.temporary) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path != NULL)
        snprintf(path, bytes, "%s/%s", writer->directory.temporary, name);
    return path;
}

static enum tdm_status no_memory(const struct tdm_weights_writer *writer, const char *name,
                                 struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for %s", writer->target.directory, name);
}

/* Writes a JSON file of the directory. `root` is NULL if memory ran out. */
static enum tdm_status write_json(const struct tdm_weights_writer *writer, const char *name,
                                  const json_t *root, struct tdm_error *err)
{
    char *path = path_of(writer, name),
         *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    enum tdm_status status;
    if (path == NULL || text == NULL) {
        status = no_memory(writer, name, err);
    } else {
        size_t length = strlen(text);
        text[length] = '\n'; /* in place of the zero */
        status = tdm_file_write(path, text, length + 1, false, err);
    }
    free(path);
    free(text);
    return status;
}

/* The config that the model was read from, with the dtype of the files under the key that every
 * version of transformers reads. NULL if memory ran out. */
static json_t *make_config(const struct tdm_weights_target *target)
{
    const char *dtype = target->dtype == TDM_DTYPE_FP32   ? "float32"
                        : target->dtype == TDM_DTYPE_BF16 ? "bfloat16"
                                                          : "float16";
    json_t *config = json_deep_copy(target->model->config);
    /* if memory ran out during the copy, the copy lacks something */
    bool whole = json_equal(config, target->model->config) != 0;
    (void)json_object_del(config, "dtype"); /* if it has one */
    whole = json_object_set_new(config, "torch_dtype", json_string(dtype)) == 0 && whole;
    if (whole)
        return config;
    json_decref(config);
    return NULL;
}

/* Maps each tensor to its shard. NULL if memory ran out. */
static json_t *make_index(const struct tdm_weights_writer *writer)
{
    json_t *map = json_object();
    bool whole = map != NULL;
    for (uint32_t s = 0; s < writer->shard_count; s++)
        for (uint32_t i = writer->shards[s].first; i < writer->shards[s].end; i++)
            whole = json_object_set_new(map, writer->tensors[i].name,
                                        json_string(writer->shards[s].name)) == 0 &&
                    whole;
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)writer->bytes,
                             "weight_map", map);
    if (whole)
        return root;
    json_decref(root);
    return NULL;
}

static const char *index_name(const struct tdm_weights_writer *writer)
{
    return writer->target.gradients ? "gradients.safetensors.index.json"
                                    : "model.safetensors.index.json";
}

static enum tdm_status write_config(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    writer->config = make_config(&writer->target);
    return write_json(writer, "config.json", writer->config, err);
}

static enum tdm_status write_index(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    writer->index = make_index(writer);
    return write_json(writer, index_name(writer), writer->index, err);
}

static enum tdm_status begin_shard(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct shard *shard = &writer->shards[writer->current];
    char *path = path_of(writer, shard->name);
    if (path == NULL)
        return no_memory(writer, shard->name, err);
    enum tdm_status status =
        tdm_safetensors_create(path, writer->target.dtype, shard->end - shard->first,
                               writer->tensors + shard->first, &writer->file, err);
    free(path);
    return status;
}

static enum tdm_status finish_shard(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    writer->shards[writer->current].checksum = tdm_checksum_value(&writer->file.checksum);
    return tdm_safetensors_finish(&writer->file, err);
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
        status = finish_shard(writer, err);
        writer->current++;
        if (status == TDM_OK && writer->current == writer->shard_count)
            status = tdm_fail(err, TDM_INTERNAL, "%s: more elements than the model has",
                              writer->target.directory);
        if (status == TDM_OK)
            status = begin_shard(writer, err);
    }
    return status == TDM_OK ? tdm_safetensors_append(&writer->file, values, count, err) : status;
}

/* ---- reading it back ---- */

static enum tdm_status verify_json(const struct tdm_weights_writer *writer, const char *name,
                                   const json_t *due, struct tdm_error *err)
{
    char *path = path_of(writer, name);
    json_t *root = NULL;
    if (due == NULL) {
        free(path);
        return TDM_OK;
    }
    enum tdm_status status =
        path == NULL ? no_memory(writer, name, err) : tdm_json_load(path, &root, err);
    if (status == TDM_OK && !json_equal(root, due))
        status = tdm_fail(err, TDM_IO, "%s: does not hold what was written", path);
    json_decref(root);
    free(path);
    return status;
}

/* Reads everything back through the file system's cache. Flushing has ensured that it is on the
 * disk. */
static enum tdm_status verify(const struct tdm_weights_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = verify_json(writer, "config.json", writer->config, err);
    if (status == TDM_OK)
        status = verify_json(writer, index_name(writer), writer->index, err);
    for (uint32_t i = 0; i < writer->shard_count && status == TDM_OK; i++) {
        const struct shard *shard = &writer->shards[i];
        char *path = path_of(writer, shard->name);
        status = path == NULL
                     ? no_memory(writer, shard->name, err)
                     : tdm_safetensors_verify(path, writer->target.dtype, shard->end - shard->first,
                                              writer->tensors + shard->first, shard->checksum, err);
        free(path);
    }
    if (status != TDM_IO && status != TDM_INPUT) /* OK, or no memory to check */
        return status;
    tdm_about(err, "what was saved is not what is read back");
    tdm_hint(err,
             "%s is as it was before; see whether another program writes there, and whether "
             "the disk is sound",
             writer->target.directory);
    return TDM_IO;
}

enum tdm_status tdm_weights_commit(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (writer->current + 1 != writer->shard_count)
        status = tdm_fail(err, TDM_INTERNAL, "%s: fewer elements than the model has",
                          writer->target.directory);
    if (status == TDM_OK)
        status = finish_shard(writer, err);
    if (status == TDM_OK)
        status = verify(writer, err);
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
    json_decref(writer->config);
    json_decref(writer->index);
    free(writer->names);
    free(writer->tensors);
    free(writer->shards);
    free(writer);
}
