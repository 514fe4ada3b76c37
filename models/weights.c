/* SPDX-License-Identifier: Apache-2.0 */
/* Reads weights. Opening finds the file of each tensor of a model and checks only headers and
 * index. */
#include "models/weights.h"

#include "base/file.h"
#include "base/json.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define SUFFIX ".safetensors"
#define MOST_FILES 10000u

/* Names for a message, and their number. The message lists the first three. */
struct names {
    char text[360];
    uint64_t count;
};

static void add_name(struct names *names, const char *name)
{
    char shown[TDM_SHOWN_NAME];
    size_t used = strlen(names->text);
    if (++names->count <= 3)
        snprintf(names->text + used, sizeof(names->text) - used, "%s\"%s\"",
                 names->count == 1 ? "" : ", ", tdm_shown_name(name, shown));
    else if (names->count == 4)
        snprintf(names->text + used, sizeof(names->text) - used, ", ...");
}

static bool exists(const char *directory, const char *name)
{
    char *path = tdm_path_join(directory, name);
    bool found = path != NULL && access(path, F_OK) == 0;
    free(path);
    return found;
}

bool tdm_weights_exist(const char *directory)
{
    return exists(directory, SINGLE) || exists(directory, INDEX);
}

static bool ends_in(const char *name, const char *suffix)
{
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && strcmp(name + length - end, suffix) == 0;
}

bool tdm_weights_reads(const char *name)
{
    return strcmp(name, "config.json") == 0 || ends_in(name, SUFFIX) ||
           ends_in(name, SUFFIX ".index.json");
}

/* ---- files ---- */

static enum tdm_status no_memory(const char *directory, struct tdm_error *err)
{
    return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open its weights", directory);
}

static enum tdm_status open_file(struct tdm_weights *weights, const char *directory,
                                 const char *name, struct tdm_error *err)
{
    char *path = tdm_path_join(directory, name);
    struct tdm_safetensors **files = realloc(weights->files, (weights->file_count + (size_t)1) *
                                                                 sizeof(struct tdm_safetensors *));
    if (files != NULL)
        weights->files = files;
    enum tdm_status status = TDM_OK;
    if (path == NULL || files == NULL)
        status = no_memory(directory, err);
    if (status == TDM_OK)
        status = tdm_safetensors_open(path, &weights->files[weights->file_count], err);
    if (status == TDM_OK)
        weights->file_count++;
    free(path);
    return status;
}

static bool is_shard_name(const char *name)
{
    return strchr(name, '/') == NULL && name[0] != '.' && ends_in(name, SUFFIX);
}

/* Opens every shard that the index names, once. On success `shards` maps names to file numbers. */
static enum tdm_status open_shards(struct tdm_weights *weights, const char *directory,
                                   const char *index, json_t *map, json_t *shards,
                                   struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    char tensor[TDM_SHOWN_NAME], shard[TDM_SHOWN_NAME];
    for (void *at = json_object_iter(map); at != NULL && status == TDM_OK;
         at = json_object_iter_next(map, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        tdm_shown_name(json_object_iter_key(at), tensor);
        if (name == NULL)
            return tdm_fail(err, TDM_INPUT, "%s: \"weight_map\" names no file for tensor \"%s\"",
                            index, tensor);
        if (!is_shard_name(name))
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"weight_map\" says that tensor \"%s\" is in \"%s\", which is not "
                            "the name of a safetensors file in this directory",
                            index, tensor, tdm_shown_name(name, shard));
        if (json_object_get(shards, name) != NULL)
            continue;
        if (weights->file_count == MOST_FILES)
            return tdm_fail(err, TDM_INPUT, "%s: \"weight_map\" names more than %u files", index,
                            MOST_FILES);
        if (!exists(directory, name))
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"weight_map\" says that tensor \"%s\" is in \"%s\", which is "
                            "missing",
                            index, tensor, tdm_shown_name(name, shard));
        if (json_object_set_new(shards, name, json_integer(weights->file_count)) != 0)
            return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its files", index);
        status = open_file(weights, directory, name, err);
    }
    return status;
}

/* The index must give the right shard for every tensor of the shards, and name no other tensors. */
static enum tdm_status check_index(const struct tdm_weights *weights, const char *index,
                                   json_t *map, const json_t *shards, struct tdm_error *err)
{
    char tensor[TDM_SHOWN_NAME], shard[TDM_SHOWN_NAME];
    json_t *seen = json_object();
    enum tdm_status status = TDM_OK;
    for (uint32_t f = 0; f < weights->file_count && status == TDM_OK; f++) {
        const struct tdm_safetensors *file = weights->files[f];
        for (uint32_t t = 0; t < file->tensor_count && status == TDM_OK; t++) {
            const char *name = file->tensors[t].name;
            const char *due = json_string_value(json_object_get(map, name));
            const json_t *number = due == NULL ? NULL : json_object_get(shards, due);
            if (json_object_set_new(seen, name, json_true()) != 0)
                status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to check it", index);
            else if (number == NULL || (uint64_t)json_integer_value(number) != f)
                status = tdm_fail(err, TDM_INPUT, "%s: tensor \"%s\" is not in the index %s%s",
                                  file->path, tdm_shown_name(name, tensor),
                                  due == NULL ? "" : "for this file of ", index);
        }
    }
    for (void *at = json_object_iter(map); at != NULL && status == TDM_OK;
         at = json_object_iter_next(map, at)) {
        const char *name = json_object_iter_key(at);
        if (json_object_get(seen, name) == NULL)
            status = tdm_fail(
                err, TDM_INPUT,
                "%s: \"weight_map\" says that tensor \"%s\" is in \"%s\", which does not have it",
                index, tdm_shown_name(name, tensor),
                tdm_shown_name(json_string_value(json_object_iter_value(at)), shard));
    }
    json_decref(seen);
    return status;
}

static enum tdm_status open_sharded(struct tdm_weights *weights, const char *directory,
                                    const char *index, struct tdm_error *err)
{
    json_t *root;
    enum tdm_status status = tdm_json_load(index, &root, err);
    if (status != TDM_OK)
        return status;
    json_t *map = json_object_get(root, "weight_map"), *shards = json_object();
    if (!json_is_object(map))
        status = tdm_fail(err, TDM_INPUT, "%s: has no \"weight_map\" that is an object", index);
    if (status == TDM_OK)
        status = open_shards(weights, directory, index, map, shards, err);
    if (status == TDM_OK)
        status = check_index(weights, index, map, shards, err);
    json_decref(shards);
    json_decref(root);
    return status;
}

/* ---- tensors ---- */

uint32_t tdm_weights_shape(const struct tdm_tensor *tensor, uint64_t shape[2])
{
    bool vector = tdm_role_is_vector(tensor->role);
    shape[0] = vector ? tensor->columns : tensor->rows;
    shape[1] = tensor->columns;
    return vector ? 1 : 2;
}

/* Does a tensor of a file have the dtype and shape that the model needs? */
static enum tdm_status check_tensor(const struct tdm_safetensors *file,
                                    const struct tdm_safetensor *found,
                                    const struct tdm_tensor *tensor, struct tdm_error *err)
{
    uint64_t shape[2];
    uint32_t rank = tdm_weights_shape(tensor, shape);
    char name[TDM_SHOWN_NAME], is[TDM_SHOWN_SHAPE], due[TDM_SHOWN_SHAPE];
    tdm_shown_name(found->name, name);
    if (found->dtype == TDM_DTYPE_NONE) {
        tdm_fail(err, TDM_INPUT, "%s: tensor \"%s\" is of dtype %s; expected BF16, F16 or F32",
                 file->path, name, found->type);
        return tdm_hint(err, "take the weights of the model that was not quantized");
    }
    if (found->rank != rank || memcmp(found->shape, shape, rank * sizeof(*shape)) != 0)
        return tdm_fail(err, TDM_INPUT,
                        "%s: tensor \"%s\" has the shape %s; config.json expects %s", file->path,
                        name, tdm_shown_shape(found->rank, found->shape, is),
                        tdm_shown_shape(rank, shape, due));
    return TDM_OK;
}

/* Tensors in old checkpoints that nobody reads. */
static bool is_ignored(const char *name)
{
    return strstr(name, ".rotary_emb.") != NULL;
}

/* Finds the place in the model for one tensor of a file, or records it as extra. */
static enum tdm_status place_tensor(struct tdm_weights *weights, const json_t *numbers,
                                    const struct tdm_safetensors *file,
                                    const struct tdm_safetensor *found, struct names *extra,
                                    struct tdm_error *err)
{
    const struct tdm_model *model = weights->model;
    const json_t *number = json_object_get(numbers, found->name);
    struct tdm_weights_place *place;
    const struct tdm_tensor *tensor;
    if (number != NULL) {
        place = &weights->places[json_integer_value(number)];
        tensor = &model->tensors[json_integer_value(number)];
    } else if (model->tied && strcmp(found->name, "lm_head.weight") == 0) {
        place = &weights->tied_head;
        tensor = tdm_model_tensor(model, tdm_model_embedding_unit(model), TDM_ROLE_EMBEDDING);
    } else {
        if (!is_ignored(found->name))
            add_name(extra, found->name);
        return TDM_OK;
    }
    *place = (struct tdm_weights_place){file, found};
    return check_tensor(file, found, tensor, err);
}

/* Finds all tensors of the model. `from` is the file or index that should have them. */
static enum tdm_status place_tensors(struct tdm_weights *weights, const char *from,
                                     struct tdm_error *err)
{
    const struct tdm_model *model = weights->model;
    enum tdm_status status = TDM_OK;
    struct names extra = {0}, missing = {0};
    char name[128];
    json_t *numbers = json_object();
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        tdm_tensor_name(model, &model->tensors[i], name, sizeof(name));
        tdm_json_set(&numbers, name, json_integer(i));
    }
    if (numbers == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to find its tensors", from);
    for (uint32_t f = 0; f < weights->file_count && status == TDM_OK; f++)
        for (uint32_t t = 0; t < weights->files[f]->tensor_count && status == TDM_OK; t++)
            status = place_tensor(weights, numbers, weights->files[f],
                                  &weights->files[f]->tensors[t], &extra, err);
    json_decref(numbers);
    if (status != TDM_OK)
        return status;

    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct tdm_safetensor *tensor = weights->places[i].tensor;
        if (tensor == NULL) {
            tdm_tensor_name(model, &model->tensors[i], name, sizeof(name));
            add_name(&missing, name);
        } else {
            weights->bytes = tdm_size_add(weights->bytes, tensor->bytes);
            weights->has[tensor->dtype] = true;
        }
    }
    if (missing.count > 0)
        return tdm_fail(err, TDM_INPUT,
                        "%s: lacks %" PRIu64 " of %" PRIu32 " tensors that "
                        "config.json asks for: %s",
                        from, missing.count, model->tensor_count, missing.text);
    if (extra.count > 0)
        return tdm_fail(err, TDM_INPUT,
                        "%s: has %" PRIu64 " tensor%s that config.json has no "
                        "place for: %s",
                        from, extra.count, extra.count == 1 ? "" : "s", extra.text);
    return TDM_OK;
}

/* ---- open, read ---- */

static enum tdm_status none_there(const char *directory, struct tdm_error *err)
{
    tdm_fail(err, TDM_INPUT, "%s: holds no %s and no %s", directory, SINGLE, INDEX);
    if (exists(directory, "pytorch_model.bin") || exists(directory, "pytorch_model.bin.index.json"))
        return tdm_hint(err, "PyTorch's own files are not read: save the model as safetensors");
    return tdm_hint(err, "give the directory of a Hugging Face model with its weights");
}

enum tdm_status tdm_weights_open(const char *directory, const struct tdm_model *model,
                                 struct tdm_weights **out, struct tdm_error *err)
{
    if (!tdm_weights_exist(directory))
        return none_there(directory, err);
    bool sharded = !exists(directory, SINGLE);
    char *from = tdm_path_join(directory, sharded ? INDEX : SINGLE);
    struct tdm_weights *weights = calloc(1, sizeof(*weights));
    enum tdm_status status = TDM_OK;
    if (weights != NULL) {
        weights->model = model;
        weights->places = calloc(model->tensor_count, sizeof(*weights->places));
    }
    if (from == NULL || weights == NULL || weights->places == NULL)
        status = no_memory(directory, err);
    if (status == TDM_OK)
        status = sharded ? open_sharded(weights, directory, from, err)
                         : open_file(weights, directory, SINGLE, err);
    if (status == TDM_OK)
        status = place_tensors(weights, from, err);
    free(from);
    if (status != TDM_OK) {
        tdm_weights_close(weights);
        return status;
    }
    *out = weights;
    return TDM_OK;
}

void tdm_weights_close(struct tdm_weights *weights)
{
    if (weights == NULL)
        return;
    for (uint32_t i = 0; i < weights->file_count; i++)
        tdm_safetensors_close(weights->files[i]);
    free(weights->files);
    free(weights->places);
    free(weights);
}

/* Checks that the same elements of lm_head.weight have the same values. */
static enum tdm_status compare_tied(const struct tdm_weights *weights, uint64_t first,
                                    uint64_t count, const float *values, struct tdm_error *err)
{
    const struct tdm_weights_place *head = &weights->tied_head;
    float *others = malloc(count * sizeof(*others) + 1);
    if (others == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", head->file->path);
    enum tdm_status status =
        tdm_safetensors_read(head->file, head->tensor, first, count, others, err);
    bool equal = true;
    for (uint64_t i = 0; i < count && status == TDM_OK; i++)
        equal = equal && others[i] == values[i];
    free(others);
    if (equal || status != TDM_OK)
        return status;
    tdm_fail(err, TDM_INPUT,
             "%s: tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\", to which "
             "config.json ties it",
             head->file->path);
    return tdm_hint(err, "set \"tie_word_embeddings\" in config.json to false");
}

enum tdm_status tdm_weights_read(const struct tdm_weights *weights, uint32_t tensor, uint64_t first,
                                 uint64_t count, float *values, struct tdm_error *err)
{
    const struct tdm_weights_place *place = &weights->places[tensor];
    enum tdm_status status =
        tdm_safetensors_read(place->file, place->tensor, first, count, values, err);
    if (status == TDM_OK && weights->tied_head.tensor != NULL &&
        weights->model->tensors[tensor].role == TDM_ROLE_EMBEDDING)
        status = compare_tied(weights, first, count, values, err);
    return status;
}

const char *tdm_weights_dtypes(const struct tdm_weights *weights, char out[32])
{
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < TDM_DTYPES; i++)
        if (weights->has[i])
            used += (size_t)snprintf(out + used, 32 - used, "%s%s", used == 0 ? "" : ", ",
                                     tdm_dtype_name((enum tdm_dtype)i));
    return out;
}
