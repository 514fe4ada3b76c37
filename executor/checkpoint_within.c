/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints within a step: the slots of the arenas that the rest of the step needs, in one file,
 * and a note that says where the step is. */
#include "executor/checkpoint_parts.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/json.h"
#include "base/size.h"
#include "schedule/pauses.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY "memory.bin"

/* Bytes that are moved at a time. */
#define BLOCK_BYTES (UINT64_C(8) << 20)

bool tdm_checkpoint_owns_within(const char *name)
{
    return strcmp(name, TDM_WEIGHTS_NOTE) == 0 || strcmp(name, MEMORY) == 0;
}

/* ---- the slots, one after another ---- */

/* Moves a block between the arenas and the file. */
struct moving {
    const struct tdm_arenas *arenas;
    const struct tdm_weights_watch *watch;
    const char *path;
    int fd;
    char *block; /* [BLOCK_BYTES] */
    struct tdm_checksum sum;
    uint64_t done, bytes;
};

static enum tdm_status read_file(const struct moving *m, uint64_t bytes, struct tdm_error *err)
{
    for (uint64_t at = 0; at < bytes;) {
        ssize_t some = read(m->fd, m->block + at, bytes - at);
        if (some < 0 && errno == EINTR)
            continue;
        if (some < 0)
            return tdm_file_failed(m->path, errno, err);
        if (some == 0)
            return tdm_fail(err, TDM_INPUT, "%s: is cut off", m->path);
        at += (uint64_t)some;
    }
    return TDM_OK;
}

/* `data`: in an arena; NULL: what is read from the file goes nowhere. */
static enum tdm_status move_block(struct moving *m, bool saves, char *data, uint64_t bytes,
                                  struct tdm_error *err)
{
    struct tdm_executor *executor = m->arenas->executor;
    enum tdm_status status =
        saves ? m->arenas->backend->download(executor, m->block, data, bytes, err)
              : read_file(m, bytes, err);
    if (status != TDM_OK)
        return status;
    tdm_checksum_add(&m->sum, m->block, bytes);
    if (saves)
        status = tdm_file_put(m->fd, m->path, m->block, bytes, err);
    else if (data != NULL)
        status = m->arenas->backend->upload(executor, data, m->block, bytes, err);
    return status == TDM_OK ? tdm_weights_moved(m->watch, bytes, &m->done, m->bytes, err) : status;
}

static enum tdm_status move_slots(struct moving *m, bool saves, const struct tdm_program *program,
                                  const struct tdm_pauses *pauses, uint32_t number,
                                  struct tdm_error *err)
{
    struct tdm_slot_range range = {0};
    enum tdm_status status = TDM_OK;
    while (status == TDM_OK && tdm_pauses_next(pauses, number, &range)) {
        const struct tdm_buffer *buffer = &program->buffers[range.buffer];
        const uint64_t bytes = range.slots * buffer->slot_bytes;
        char *data = tdm_arenas_slot(m->arenas, buffer, range.first_slot);
        for (uint64_t at = 0; at < bytes && status == TDM_OK; at += BLOCK_BYTES)
            status = move_block(m, saves, data + at, tdm_least(bytes - at, BLOCK_BYTES), err);
    }
    return status;
}

/* ---- saving ---- */

static enum tdm_status open_memory(struct moving *m, const char *path, int flags,
                                   struct tdm_error *err)
{
    m->path = path;
    m->block = malloc(BLOCK_BYTES);
    m->fd = m->block == NULL ? -1 : open(path, flags | O_CLOEXEC, 0666);
    if (m->block == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to move it", path);
    return m->fd < 0 ? tdm_file_failed(path, errno, err) : TDM_OK;
}

static enum tdm_status close_memory(struct moving *m, bool flush, enum tdm_status status,
                                    struct tdm_error *err)
{
    if (m->fd >= 0 && flush && status == TDM_OK && fsync(m->fd) != 0)
        status = tdm_file_failed(m->path, errno, err);
    if (m->fd >= 0 && close(m->fd) != 0 && status == TDM_OK)
        status = tdm_file_failed(m->path, errno, err);
    free(m->block);
    return status;
}

/* Reads the file back through the file system's cache. */
static enum tdm_status verify(const char *path, uint64_t bytes, uint64_t checksum,
                              struct tdm_error *err)
{
    struct moving m = {.bytes = bytes};
    enum tdm_status status = open_memory(&m, path, O_RDONLY, err);
    for (uint64_t at = 0; at < bytes && status == TDM_OK; at += BLOCK_BYTES) {
        const uint64_t some = tdm_least(bytes - at, BLOCK_BYTES);
        status = read_file(&m, some, err);
        tdm_checksum_add(&m.sum, m.block, status == TDM_OK ? some : 0);
    }
    status = close_memory(&m, false, status, err);
    return status == TDM_OK && tdm_checksum_value(&m.sum) != checksum
               ? tdm_fail(err, TDM_IO, "%s: does not hold what was written", path)
               : status;
}

/* Names of buffers with their ranges of slots: [["name", first, count], ...]. */
static json_t *slots_json(const struct tdm_program *program, const struct tdm_pauses *pauses,
                          uint32_t number)
{
    struct tdm_slot_range range = {0};
    json_t *slots = json_array();
    while (tdm_pauses_next(pauses, number, &range))
        tdm_json_add(&slots, json_pack("[s, I, I]", program->buffers[range.buffer].name,
                                       (json_int_t)range.first_slot, (json_int_t)range.slots));
    return slots;
}

static json_t *within_json(const struct tdm_program *program, const struct tdm_pauses *pauses,
                           const struct tdm_checkpoint_within *within, uint64_t checksum)
{
    const struct tdm_pause *pause = tdm_pauses_at(pauses, within->pause);
    char text[TDM_DIGEST_SIZE];
    snprintf(text, sizeof(text), "%016" PRIx64, checksum);
    json_t *json = json_pack("{s:I, s:I, s:f, s:I, s:s}", "op", (json_int_t)pause->op, "ops",
                             (json_int_t)program->op_count, "seconds", within->seconds, "bytes",
                             (json_int_t)pause->bytes, "checksum", text);
    tdm_json_set(&json, "slots", slots_json(program, pauses, within->pause));
    return json;
}

enum tdm_status tdm_checkpoint_save_within(const char *target, const struct tdm_arenas *arenas,
                                           const struct tdm_program *program,
                                           const struct tdm_pauses *pauses,
                                           const struct tdm_checkpoint_within *within,
                                           const struct tdm_checkpoint_moment *moment,
                                           const struct tdm_weights_watch *watch,
                                           struct tdm_error *err)
{
    const uint64_t bytes = tdm_pauses_at(pauses, within->pause)->bytes;
    struct moving m = {.arenas = arenas, .watch = watch, .bytes = bytes, .fd = -1};
    struct tdm_directory directory;
    json_t *note = NULL;
    enum tdm_status status =
        tdm_directory_begin(target, true, tdm_checkpoint_owns_within, &directory, err);
    if (status != TDM_OK)
        return status;
    char *path = tdm_path_join(directory.temporary, MEMORY);
    if (path == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", target);
        goto abandon;
    }
    status = open_memory(&m, path, O_WRONLY | O_CREAT | O_EXCL, err);
    if (status == TDM_OK)
        status = move_slots(&m, true, program, pauses, within->pause, err);
    status = close_memory(&m, true, status, err);
    const uint64_t checksum = tdm_checksum_value(&m.sum);
    if (status == TDM_OK)
        status = verify(path, bytes, checksum, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_note(program, moment, json_object(), json_object(),
                                     within_json(program, pauses, within, checksum), &note, err);
    if (status == TDM_OK)
        status = tdm_json_save(directory.temporary, TDM_WEIGHTS_NOTE, note, err);
    if (status == TDM_OK)
        status = tdm_json_verify(directory.temporary, TDM_WEIGHTS_NOTE, note, err);
    json_decref(note);

abandon:
    if (status == TDM_OK)
        status = tdm_directory_commit(&directory, err);
    else
        tdm_directory_abandon(&directory);
    free(path);
    return status;
}

/* ---- loading ---- */

enum tdm_status tdm_checkpoint_match_within(const struct tdm_checkpoint *checkpoint,
                                            const json_t *now,
                                            const struct tdm_checkpoint_user *user,
                                            struct tdm_error *err)
{
    const json_t *then = json_object_get(checkpoint->note, "schedule");
    const json_t *within = json_object_get(checkpoint->note, "within");
    const uint64_t ops = (uint64_t)json_integer_value(json_object_get(within, "ops"));
    if (checkpoint->differences[0] == '\0' && json_equal(then, now) &&
        ops == user->program->op_count)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT,
             "%s: was saved within step %" PRIu64 ", which %s cannot finish: that takes the "
             "schedule that began it%s%s",
             checkpoint->directory, checkpoint->step + 1, user->schedule_path,
             checkpoint->differences[0] == '\0' ? "" : "; other is ", checkpoint->differences);
    return tdm_hint(err, "resume with that schedule, or, with this one, from a step-N");
}

static enum tdm_status load(const struct tdm_checkpoint *checkpoint, struct moving *m,
                            const struct tdm_program *program, const struct tdm_pauses *pauses,
                            struct tdm_error *err)
{
    const json_t *within = json_object_get(checkpoint->note, "within");
    const char *due = json_string_value(json_object_get(within, "checksum"));
    const uint32_t number = tdm_pauses_find(pauses, checkpoint->within_op);
    char *path = tdm_path_join(checkpoint->directory, MEMORY), found[TDM_DIGEST_SIZE];
    json_t *slots = number == TDM_NONE ? NULL : slots_json(program, pauses, number);
    enum tdm_status status = TDM_OK;
    if (path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", checkpoint->directory);
    else if (!json_equal(slots, json_object_get(within, "slots")))
        status = tdm_fail(err, TDM_INPUT,
                          "%s: this version of tidemark makes another program of its schedule",
                          checkpoint->directory);
    if (status == TDM_OK)
        status = open_memory(m, path, O_RDONLY, err);
    if (status == TDM_OK) {
        m->bytes = tdm_pauses_at(pauses, number)->bytes;
        status = move_slots(m, false, program, pauses, number, err);
    }
    status = close_memory(m, false, status, err);
    snprintf(found, sizeof(found), "%016" PRIx64, tdm_checksum_value(&m->sum));
    if (status == TDM_OK && (due == NULL || strcmp(found, due) != 0)) {
        tdm_fail(err, TDM_INPUT,
                 "%s: its data are not those that were saved: their checksum differs", path);
        status = tdm_hint(err, "resume from a step-N");
    }
    json_decref(slots);
    free(path);
    return status;
}

enum tdm_status tdm_checkpoint_load_within(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_arenas *arenas,
                                           const struct tdm_program *program,
                                           const struct tdm_weights_watch *watch,
                                           struct tdm_error *err)
{
    struct moving m = {.arenas = arenas, .watch = watch, .fd = -1};
    struct tdm_pauses *pauses;
    enum tdm_status status = tdm_pauses_new(program, &pauses, err);
    if (status != TDM_OK)
        return status;
    status = load(checkpoint, &m, program, pauses, err);
    tdm_pauses_free(pauses);
    return status;
}
