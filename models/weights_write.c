/* SPDX-License-Identifier: Apache-2.0 */
/* Writes directories of whole-model tensors: a model, gradients, or a checkpoint. Everything is
 * read back before it replaces the old directory. */
#include "base/digest.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/units.h"
#include "models/tensor_set.h"
#include "models/weights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The small files of a model. All but the first are not made by training: they are copied as they
 * are. So are the chat templates, which have names of their own. */
static const char *const small_files[] = {
    "config.json",        "generation_config.json",
    "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json",
    "added_tokens.json",  "vocab.json",
    "vocab.txt",          "merges.txt",
    "chat_template.json", "chat_template.jinja",
    "tekken.json",        "spiece.model",
    "tiktoken.model",
};
#define SMALL_FILES (sizeof(small_files) / sizeof(small_files[0]))
#define TEMPLATES "chat_templates"
#define TEMPLATE_END ".jinja"
#define CONFIG 0u
#define MOST_SMALL_BYTES (UINT64_C(1) << 30)

/* Parts of a checkpoint's folder. */
static const char *const part_names[] = TDM_WEIGHTS_PART_NAMES;
#define PARTS (sizeof(part_names) / sizeof(part_names[0]))
#define SETS (1 + PARTS)

/* A small file that was written. */
struct small_file {
    char *name; /* in the directory */
    uint64_t digest;
};

struct tdm_weights_writer {
    struct tdm_weights_target target;
    struct tdm_directory directory;
    char *root;                       /* of one that joined: the directory */
    char *folder;                     /* of the parts of a checkpoint */
    struct tdm_tensor_set sets[SETS]; /* the model or the gradients, then parts */
    uint32_t set_count;
    bool appending; /* the only set is not finished */
    json_t *note;   /* contents of checkpoint.json; NULL: none */
    struct small_file *small;
    size_t small_count;
};

/* Is this the name of a chat template, without its folder? */
static bool is_template(const char *name)
{
    const size_t bytes = strlen(name), end = strlen(TEMPLATE_END);
    return bytes > end && strchr(name, '/') == NULL &&
           strcmp(name + bytes - end, TEMPLATE_END) == 0;
}

static bool owns_model(const char *name)
{
    return strcmp(name, small_files[CONFIG]) == 0 || tdm_tensor_set_owns(name, "model");
}

/* Only a save that brings its own may replace them. */
static bool owns_model_and_companions(const char *name)
{
    for (size_t i = 0; i < SMALL_FILES; i++)
        if (strcmp(name, small_files[i]) == 0)
            return true;
    const size_t folder = strlen(TEMPLATES "/");
    return owns_model(name) || (strncmp(name, TEMPLATES "/", folder) == 0 &&
                                (name[folder] == '\0' || is_template(name + folder)));
}

bool tdm_weights_owns_checkpoint(const char *name)
{
    const size_t folder = strlen(TDM_WEIGHTS_FOLDER "/");
    if (owns_model_and_companions(name) || strcmp(name, TDM_WEIGHTS_NOTE) == 0 ||
        strcmp(name, TDM_WEIGHTS_FOLDER "/") == 0)
        return true;
    bool owned = false;
    for (size_t i = 0; i < PARTS && strncmp(name, TDM_WEIGHTS_FOLDER "/", folder) == 0; i++)
        owned = owned || tdm_tensor_set_owns(name + folder, part_names[i]);
    return owned;
}

static bool owns_gradients(const char *name)
{
    return tdm_tensor_set_owns(name, "gradients");
}

static tdm_directory_owns owner(const struct tdm_weights_target *target)
{
    return target->checkpoint           ? tdm_weights_owns_checkpoint
           : target->gradients          ? owns_gradients
           : target->companions != NULL ? owns_model_and_companions
                                        : owns_model;
}

/* Does the file system that will hold the directory have enough space? */
enum tdm_status tdm_weights_check_space(const struct tdm_weights_target *target,
                                        struct tdm_error *err)
{
    struct statvfs info;
    char *parent = tdm_directory_parent(target->directory);
    bool known = parent != NULL && statvfs(parent, &info) == 0;
    free(parent);
    if (!known) /* the write will tell */
        return TDM_OK;
    uint64_t free_bytes = tdm_size_mul(info.f_bavail, info.f_frsize);
    uint64_t needed = tdm_size_mul(target->model->parameters, tdm_dtype_bytes(target->dtype));
    needed = tdm_size_mul(tdm_size_add(needed, target->part_bytes),
                          target->copies == 0 ? 1 : target->copies);
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
    return status == TDM_OK ? tdm_weights_check_space(target, err) : status;
}

/* ---- the files ---- */

/* The config that the model was read from, with the dtype of the files under the key that every
 * version of transformers reads. NULL if memory ran out. */
static json_t *make_config(const struct tdm_weights_target *target)
{
    const char *dtype = target->dtype == TDM_DTYPE_FP32   ? "float32"
                        : target->dtype == TDM_DTYPE_BF16 ? "bfloat16"
                                                          : "float16";
    json_t *config = tdm_json_copy(target->model->config);
    (void)json_object_del(config, "dtype"); /* if it has one */
    tdm_json_set(&config, "torch_dtype", json_string(dtype));
    return config;
}

/* Notes a small file that was written. False if memory ran out. */
static bool note_small(struct tdm_weights_writer *writer, const char *name, uint64_t digest)
{
    char *copy = strdup(name);
    struct small_file *more =
        copy == NULL ? NULL
                     : realloc(writer->small, (writer->small_count + 1) * sizeof(*writer->small));
    if (more == NULL) {
        free(copy);
        return false;
    }
    writer->small = more;
    writer->small[writer->small_count].name = copy;
    writer->small[writer->small_count++].digest = digest;
    return true;
}

/* Writes a small file, and notes its digest. */
static enum tdm_status write_small(struct tdm_weights_writer *writer, const char *name,
                                   const char *data, uint64_t bytes, struct tdm_error *err)
{
    char *path = tdm_path_join(writer->directory.temporary, name);
    enum tdm_status status = path == NULL ? tdm_file_failed(writer->target.directory, ENOMEM, err)
                                          : tdm_file_write(path, data, bytes, false, err);
    if (status == TDM_OK && !note_small(writer, name, tdm_digest_bytes(data, bytes)))
        status = tdm_file_failed(writer->target.directory, ENOMEM, err);
    free(path);
    return status;
}

static enum tdm_status write_config(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    json_t *config = make_config(&writer->target);
    char *text = config == NULL ? NULL : tdm_json_dump(config, JSON_INDENT(2));
    size_t length = text == NULL ? 0 : strlen(text);
    if (text != NULL)
        text[length] = '\n'; /* in place of the zero */
    enum tdm_status status = text == NULL
                                 ? tdm_file_failed(writer->target.directory, ENOMEM, err)
                                 : write_small(writer, small_files[CONFIG], text, length + 1, err);
    free(text);
    json_decref(config);
    return status;
}

/* Copies a small file if it is there. */
static enum tdm_status copy_companion(struct tdm_weights_writer *writer, const char *name,
                                      struct tdm_error *err)
{
    char *from = tdm_path_join(writer->target.companions, name), *data = NULL;
    uint64_t bytes = 0;
    enum tdm_status status = TDM_OK;
    if (from == NULL)
        status = tdm_file_failed(writer->target.directory, ENOMEM, err);
    else if (access(from, F_OK) == 0)
        status = tdm_file_read(from, MOST_SMALL_BYTES, &data, &bytes, err);
    if (status == TDM_OK && data != NULL)
        status = write_small(writer, name, data, bytes, err);
    free(data);
    free(from);
    return status;
}

static int accept_template(const struct dirent *entry)
{
    return is_template(entry->d_name);
}

static enum tdm_status copy_templates(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    char *from = tdm_path_join(writer->target.companions, TEMPLATES);
    struct dirent **entries = NULL;
    enum tdm_status status = TDM_OK;
    int count = from == NULL ? -1 : scandir(from, &entries, accept_template, alphasort);
    if (from == NULL)
        status = tdm_file_failed(writer->target.directory, ENOMEM, err);
    else if (count < 0 && errno != ENOENT && errno != ENOTDIR)
        status = tdm_fail(err, TDM_IO, "%s: cannot be read: %s", from, strerror(errno));
    if (count > 0)
        status = tdm_directory_folder(&writer->directory, TEMPLATES, err);
    for (int i = 0; i < count; i++) {
        char *name = tdm_path_join(TEMPLATES, entries[i]->d_name);
        if (status == TDM_OK)
            status = name == NULL ? tdm_file_failed(writer->target.directory, ENOMEM, err)
                                  : copy_companion(writer, name, err);
        free(name);
        free(entries[i]);
    }
    free(entries);
    free(from);
    return status;
}

static enum tdm_status copy_companions(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (size_t i = CONFIG + 1; i < SMALL_FILES && status == TDM_OK; i++)
        status = copy_companion(writer, small_files[i], err);
    return status == TDM_OK ? copy_templates(writer, err) : status;
}

/* What the files of the first set are called. */
static const char *stem_of(const struct tdm_weights_target *target)
{
    return target->gradients ? "gradients" : "model";
}

/* Begins the only set, to which all is appended. */
static enum tdm_status begin_set(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const struct tdm_weights_target *target = &writer->target;
    struct tdm_tensor_set *set = &writer->sets[writer->set_count++];
    enum tdm_status status =
        tdm_tensor_set_begin(writer->directory.temporary, stem_of(target), target->model,
                             target->dtype, target->shard_bytes, set, err);
    writer->appending = status == TDM_OK;
    return status;
}

/* Names the folder of the parts. */
static enum tdm_status name_folder(struct tdm_weights_writer *writer, const char *root,
                                   struct tdm_error *err)
{
    writer->folder = tdm_path_join(root, TDM_WEIGHTS_FOLDER);
    return writer->folder != NULL ? TDM_OK
                                  : tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it",
                                             writer->target.directory);
}

static enum tdm_status make_folder(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    enum tdm_status status = name_folder(writer, writer->directory.temporary, err);
    return status == TDM_OK ? tdm_directory_folder(&writer->directory, TDM_WEIGHTS_FOLDER, err)
                            : status;
}

enum tdm_status tdm_weights_create(const struct tdm_weights_target *target,
                                   struct tdm_weights_writer **out, struct tdm_error *err)
{
    enum tdm_status status = tdm_weights_check_space(target, err);
    struct tdm_weights_writer *writer = status == TDM_OK ? calloc(1, sizeof(*writer)) : NULL;
    if (status == TDM_OK && writer == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", target->directory);
    if (status != TDM_OK)
        return status;
    writer->target = *target;
    status = tdm_directory_begin(target->directory, target->force, owner(target),
                                 &writer->directory, err);
    if (status == TDM_OK && !target->gradients)
        status = write_config(writer, err);
    if (status == TDM_OK && target->companions != NULL)
        status = copy_companions(writer, err);
    if (status == TDM_OK && target->checkpoint)
        status = make_folder(writer, err);
    if (status == TDM_OK && !target->shared)
        status = begin_set(writer, err);
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
    return tdm_tensor_set_append(&writer->sets[writer->set_count - 1], values, count, err);
}

/* Finishes the set that is being written, if there is one. */
static enum tdm_status finish_set(struct tdm_weights_writer *writer, struct tdm_error *err)
{
    if (!writer->appending)
        return TDM_OK;
    writer->appending = false;
    return tdm_tensor_set_finish(&writer->sets[writer->set_count - 1], err);
}

/* The set of a file, and its number there. */
static uint32_t find_file(const struct tdm_weights_writer *writer, uint32_t *file)
{
    uint32_t set = 0;
    for (; *file >= writer->sets[set].shard_count; set++)
        *file -= writer->sets[set].shard_count;
    return set;
}

/* ---- files at the same time ---- */

enum tdm_status tdm_weights_plan(struct tdm_weights_writer *writer, const char *part,
                                 enum tdm_dtype dtype, struct tdm_error *err)
{
    return tdm_tensor_set_plan(part == NULL ? writer->directory.temporary : writer->folder,
                               part == NULL ? "model" : part, writer->target.model, dtype,
                               writer->target.shard_bytes, &writer->sets[writer->set_count++], err);
}

enum tdm_status tdm_weights_begin_file(const struct tdm_weights_writer *writer, uint32_t number,
                                       struct tdm_weights_file *file, struct tdm_error *err)
{
    file->set = find_file(writer, &number);
    file->shard = number;
    const struct tdm_tensor_set *set = &writer->sets[file->set];
    tdm_tensor_set_range(set, number, &file->first, &file->end);
    return tdm_tensor_set_begin_file(set, number, &file->data, err);
}

enum tdm_status tdm_weights_end_file(struct tdm_weights_writer *writer,
                                     struct tdm_weights_file *file, struct tdm_error *err)
{
    return tdm_tensor_set_end_file(&writer->sets[file->set], file->shard, &file->data, err);
}

/* ---- together ---- */

const char *tdm_weights_temporary(const struct tdm_weights_writer *writer)
{
    return writer->directory.temporary;
}

enum tdm_status tdm_weights_join(const struct tdm_weights_target *target, const char *temporary,
                                 struct tdm_weights_writer **out, struct tdm_error *err)
{
    if (access(temporary, F_OK) != 0) {
        tdm_fail(err, TDM_IO, "%s: another process writes there, and here is no such directory",
                 target->directory);
        return tdm_hint(err,
                        "all processes write: name a directory that all have, by the same name");
    }
    struct tdm_weights_writer *writer = calloc(1, sizeof(*writer));
    if (writer != NULL) {
        writer->target = *target;
        writer->root = strdup(temporary);
    }
    if (writer == NULL || writer->root == NULL || name_folder(writer, temporary, NULL) != TDM_OK) {
        tdm_weights_abandon(writer);
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", target->directory);
    }
    *out = writer;
    return TDM_OK;
}

enum tdm_status tdm_weights_share(struct tdm_weights_writer *writer, const char *part,
                                  enum tdm_dtype dtype, struct tdm_error *err)
{
    const bool makes = writer->root == NULL;
    const char *root = makes ? writer->directory.temporary : writer->root;
    return tdm_tensor_set_share(part == NULL ? root : writer->folder,
                                part == NULL ? stem_of(&writer->target) : part,
                                writer->target.model, dtype, writer->target.shard_bytes, makes,
                                &writer->sets[writer->set_count++], err);
}

enum tdm_status tdm_weights_join_file(const struct tdm_weights_writer *writer, uint32_t number,
                                      struct tdm_weights_part *part, struct tdm_error *err)
{
    part->set = find_file(writer, &number);
    part->shard = number;
    const struct tdm_tensor_set *set = &writer->sets[part->set];
    tdm_tensor_set_range(set, number, &part->first, &part->end);
    return tdm_tensor_set_join_file(set, number, &part->data, err);
}

enum tdm_status tdm_weights_put(const struct tdm_weights_writer *writer,
                                struct tdm_weights_part *part, uint32_t tensor, uint64_t first,
                                const void *values, bool stored, uint64_t count,
                                struct tdm_error *err)
{
    return tdm_tensor_set_put(&writer->sets[part->set], part->shard, &part->data, tensor, first,
                              values, stored, count, err);
}

enum tdm_status tdm_weights_leave(struct tdm_weights_part *part, struct tdm_error *err)
{
    return tdm_safetensors_leave(&part->data, err);
}

uint32_t tdm_weights_files(const struct tdm_weights_writer *writer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < writer->set_count; i++)
        count += writer->sets[i].shard_count;
    return count;
}

enum tdm_status tdm_weights_sum(const struct tdm_weights_writer *writer, uint32_t file,
                                uint64_t *checksum, struct tdm_error *err)
{
    const uint32_t set = find_file(writer, &file);
    return tdm_tensor_set_sum(&writer->sets[set], file, checksum, err);
}

void tdm_weights_note_sum(struct tdm_weights_writer *writer, uint32_t file, uint64_t checksum)
{
    const uint32_t set = find_file(writer, &file);
    tdm_tensor_set_note_sum(&writer->sets[set], file, checksum);
}

static const char *digest_text(uint64_t digest, char out[TDM_DIGEST_SIZE])
{
    snprintf(out, TDM_DIGEST_SIZE, "%016" PRIx64, digest);
    return out;
}

enum tdm_status tdm_weights_describe(struct tdm_weights_writer *writer, json_t **sets,
                                     json_t **files, struct tdm_error *err)
{
    char digest[TDM_DIGEST_SIZE];
    enum tdm_status status = finish_set(writer, err);
    if (status != TDM_OK)
        return status;
    *sets = json_object();
    for (uint32_t i = 0; i < writer->set_count; i++)
        tdm_json_set(sets, writer->sets[i].stem, tdm_tensor_set_describe(&writer->sets[i]));
    *files = json_object();
    for (size_t i = 0; i < writer->small_count; i++)
        tdm_json_set(files, writer->small[i].name,
                     json_string(digest_text(writer->small[i].digest, digest)));
    return TDM_OK;
}

enum tdm_status tdm_weights_note(struct tdm_weights_writer *writer, json_t *note,
                                 struct tdm_error *err)
{
    writer->note = note;
    return tdm_json_save(writer->directory.temporary, TDM_WEIGHTS_NOTE, note, err);
}

/* ---- reading it back ---- */

/* Reads a small file. *digest: of its bytes. */
static enum tdm_status read_small(const char *directory, const char *name,
                                  char digest[TDM_DIGEST_SIZE], struct tdm_error *err)
{
    char *path = tdm_path_join(directory, name), *data = NULL;
    uint64_t bytes = 0;
    enum tdm_status status = path == NULL
                                 ? tdm_file_failed(directory, ENOMEM, err)
                                 : tdm_file_read(path, MOST_SMALL_BYTES, &data, &bytes, err);
    if (status == TDM_OK)
        digest_text(tdm_digest_bytes(data, bytes), digest);
    free(data);
    free(path);
    return status;
}

enum tdm_status tdm_weights_check_files(const char *directory, const char *note,
                                        const json_t *files, struct tdm_error *err)
{
    const char *name;
    const json_t *due;
    json_object_foreach((json_t *)files, name, due)
    {
        char digest[TDM_DIGEST_SIZE];
        if (!owns_model_and_companions(name) || !json_is_string(due))
            return tdm_fail(err, TDM_INPUT,
                            "%s: \"files\" names \"%.64s\", which is no small file of a model",
                            note, name);
        enum tdm_status status = read_small(directory, name, digest, err);
        if (status != TDM_OK)
            return status;
        if (strcmp(digest, json_string_value(due)) == 0)
            continue;
        tdm_fail(err, TDM_INPUT, "%s/%s: is not the file that was saved: its checksum differs",
                 directory, name);
        return tdm_hint(err, "resume from another checkpoint");
    }
    return TDM_OK;
}

/* Reads everything back through the file system's cache. Flushing has ensured that it is on the
 * disk. */
static enum tdm_status verify(const struct tdm_weights_writer *writer, struct tdm_error *err)
{
    const char *directory = writer->directory.temporary;
    enum tdm_status status = tdm_json_verify(directory, TDM_WEIGHTS_NOTE, writer->note, err);
    for (size_t i = 0; i < writer->small_count && status == TDM_OK; i++) {
        const struct small_file *file = &writer->small[i];
        char digest[TDM_DIGEST_SIZE], due[TDM_DIGEST_SIZE];
        status = read_small(directory, file->name, digest, err);
        if (status == TDM_OK && strcmp(digest, digest_text(file->digest, due)) != 0)
            status = tdm_fail(err, TDM_IO, "%s/%s: does not hold what was written", directory,
                              file->name);
    }
    for (uint32_t i = 0; i < writer->set_count && status == TDM_OK; i++)
        status = tdm_tensor_set_verify(&writer->sets[i], err);
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
    enum tdm_status status = finish_set(writer, err);
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
    for (uint32_t i = 0; i < writer->set_count; i++)
        tdm_tensor_set_free(&writer->sets[i]);
    if (writer->root == NULL)
        tdm_directory_abandon(&writer->directory);
    for (size_t i = 0; i < writer->small_count; i++)
        free(writer->small[i].name);
    free(writer->small);
    free(writer->root);
    free(writer->folder);
    json_decref(writer->note);
    free(writer);
}
