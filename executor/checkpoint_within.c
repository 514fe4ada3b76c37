/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints within a step: of each rank the slots of its arenas that the rest of the step needs,
 * in a file of its own, and a note that says where the step is. */
#include "executor/checkpoint_parts.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "base/size.h"
#include "schedule/pauses.h"
#include "schedule/program.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* memory-RANK.bin */
#define MEMORY "memory-"
#define MEMORY_END ".bin"

#define MOST ((uint64_t)INT64_MAX)

/* Bytes that are moved at a time. */
#define BLOCK_BYTES (UINT64_C(8) << 20)

bool tdm_checkpoint_owns_within(const char *name)
{
    if (strcmp(name, TDM_WEIGHTS_NOTE) == 0)
        return true;
    if (strncmp(name, MEMORY, strlen(MEMORY)) != 0)
        return false;
    name += strlen(MEMORY);
    const size_t digits = strspn(name, "0123456789");
    return digits > 0 && strcmp(name + digits, MEMORY_END) == 0;
}

/* "DIRECTORY/memory-RANK.bin"; malloc'ed. NULL if memory ran out. */
static char *memory_path(const char *directory, uint32_t rank)
{
    char name[48];
    snprintf(name, sizeof(name), MEMORY "%" PRIu32 MEMORY_END, rank);
    return tdm_path_join(directory, name);
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
            return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", m->path, strerror(errno));
        if (some == 0)
            return tdm_fail(err, TDM_INPUT, "%s: is cut off", m->path);
        at += (uint64_t)some;
    }
    return TDM_OK;
}

/* Nothing may follow what was saved. */
static enum tdm_status read_end(const struct moving *m, struct tdm_error *err)
{
    struct stat info;
    if (fstat(m->fd, &info) != 0)
        return tdm_fail(err, TDM_IO, "%s: cannot be read: %s", m->path, strerror(errno));
    if ((uint64_t)info.st_size <= m->bytes)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT, "%s: is longer than what was saved, %" PRIu64 " bytes", m->path,
             m->bytes);
    return tdm_hint(err, "resume from a step-N");
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
    if (m->fd < 0 && flags == O_RDONLY)
        return tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", path, strerror(errno));
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

/* The digest of the names of buffers with their ranges of slots: [["name", first, count], ...]. */
static enum tdm_status digest_slots(const struct tdm_program *program,
                                    const struct tdm_pauses *pauses, uint32_t number,
                                    uint64_t *digest, struct tdm_error *err)
{
    struct tdm_slot_range range = {0};
    json_t *slots = json_array();
    while (tdm_pauses_next(pauses, number, &range))
        tdm_json_add(&slots, json_pack("[s, I, I]", program->buffers[range.buffer].name,
                                       (json_int_t)range.first_slot, (json_int_t)range.slots));
    char *text = slots == NULL ? NULL : tdm_json_dump(slots, JSON_COMPACT);
    json_decref(slots);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a checkpoint within a step");
    *digest = tdm_digest_bytes(text, strlen(text));
    free(text);
    return TDM_OK;
}

enum tdm_status tdm_checkpoint_write_part(const char *directory, const struct tdm_arenas *arenas,
                                          const struct tdm_program *program,
                                          const struct tdm_pauses *pauses, uint32_t pause,
                                          const struct tdm_weights_watch *watch,
                                          struct tdm_checkpoint_part *part, struct tdm_error *err)
{
    const struct tdm_pause *at = tdm_pauses_at(pauses, pause);
    struct moving m = {.arenas = arenas, .watch = watch, .bytes = at->bytes, .fd = -1};
    uint64_t slots = 0;
    enum tdm_status status = digest_slots(program, pauses, pause, &slots, err);
    char *path = status == TDM_OK ? memory_path(directory, program->rank) : NULL;
    if (status == TDM_OK && path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", directory);
    if (status != TDM_OK)
        return status;
    status = open_memory(&m, path, O_WRONLY | O_CREAT | O_EXCL, err);
    if (status == TDM_OK)
        status = move_slots(&m, true, program, pauses, pause, err);
    status = close_memory(&m, true, status, err);
    const uint64_t checksum = tdm_checksum_value(&m.sum);
    if (status == TDM_OK)
        status = verify(path, at->bytes, checksum, err);
    free(path);
    if (status == TDM_OK)
        *part = (struct tdm_checkpoint_part){at->op, program->op_count, at->bytes, checksum, slots};
    return status;
}

static const char *hex(uint64_t number, char out[TDM_DIGEST_SIZE])
{
    snprintf(out, TDM_DIGEST_SIZE, "%016" PRIx64, number);
    return out;
}

static json_t *within_json(uint32_t ranks, double seconds, const struct tdm_checkpoint_part *parts)
{
    json_t *list = json_array(), *within = json_pack("{s:f}", "seconds", seconds);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const struct tdm_checkpoint_part *part = &parts[rank];
        char checksum[TDM_DIGEST_SIZE], slots[TDM_DIGEST_SIZE];
        tdm_json_add(&list,
                     json_pack("{s:I, s:I, s:I, s:s, s:s}", "op", (json_int_t)part->op, "ops",
                               (json_int_t)part->ops, "bytes", (json_int_t)part->bytes, "checksum",
                               hex(part->checksum, checksum), "slots", hex(part->slots, slots)));
    }
    tdm_json_set(&within, "ranks", list);
    return within;
}

enum tdm_status tdm_checkpoint_write_within(const char *directory,
                                            const struct tdm_program *program, double seconds,
                                            const struct tdm_checkpoint_part *parts,
                                            const struct tdm_checkpoint_moment *moment,
                                            struct tdm_error *err)
{
    json_t *note = NULL;
    enum tdm_status status =
        tdm_checkpoint_note(program, moment, json_object(), json_object(),
                            within_json(program->ranks, seconds, parts), &note, err);
    if (status == TDM_OK)
        status = tdm_json_save(directory, TDM_WEIGHTS_NOTE, note, err);
    if (status == TDM_OK)
        status = tdm_json_verify(directory, TDM_WEIGHTS_NOTE, note, err);
    json_decref(note);
    return status;
}

/* ---- loading ---- */

/* Sixteen hexadecimal digits. */
static uint64_t read_hex(struct tdm_json_reader *reader, const char *key)
{
    const char *text = tdm_json_string(reader, key);
    if (text == NULL)
        return 0;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        tdm_json_fail(reader, key, "is not a checksum of 16 hexadecimal digits");
    return strtoull(text, NULL, 16);
}

enum tdm_status tdm_checkpoint_read_parts(const char *file, const json_t *within,
                                          struct tdm_checkpoint *checkpoint, struct tdm_error *err)
{
    static const char *const keys[] = {"seconds", "ranks", NULL};
    static const char *const part_keys[] = {"op", "ops", "bytes", "checksum", "slots", NULL};
    struct tdm_json_reader reader = {file, "within", within, err, TDM_OK};
    tdm_json_only(&reader, keys);
    checkpoint->within_seconds = tdm_json_number(&reader, "seconds", 0, 1e12);
    const json_t *ranks = tdm_json_array(&reader, "ranks");
    const size_t count = json_array_size(ranks);
    if (tdm_json_status(&reader) == TDM_OK && (count == 0 || count > TDM_MAX_RANKS))
        tdm_json_fail(&reader, "ranks", "has %zu entries; expected 1 to %u", count, TDM_MAX_RANKS);
    if (tdm_json_status(&reader) != TDM_OK)
        return tdm_json_status(&reader);
    checkpoint->parts = calloc(count, sizeof(*checkpoint->parts));
    if (checkpoint->parts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", file);
    checkpoint->part_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        char path[48];
        snprintf(path, sizeof(path), "within.ranks[%zu]", i);
        struct tdm_json_reader of_rank = {file, path, json_array_get(ranks, i), err, TDM_OK};
        tdm_json_only(&of_rank, part_keys);
        checkpoint->parts[i] = (struct tdm_checkpoint_part){
            tdm_json_count(&of_rank, "op", 1, MOST), tdm_json_count(&of_rank, "ops", 1, MOST),
            tdm_json_count(&of_rank, "bytes", 0, MOST), read_hex(&of_rank, "checksum"),
            read_hex(&of_rank, "slots")};
        if (tdm_json_status(&of_rank) != TDM_OK)
            return tdm_json_status(&of_rank);
    }
    return TDM_OK;
}

static enum tdm_status is_of_another_version(const struct tdm_checkpoint *checkpoint,
                                             struct tdm_error *err)
{
    tdm_fail(err, TDM_INPUT, "%s: this version of tidemark makes another program of its schedule",
             checkpoint->directory);
    return tdm_hint(err, "resume from a step-N, or finish the step with the version that began it");
}

enum tdm_status tdm_checkpoint_match_within(const struct tdm_checkpoint *checkpoint,
                                            const json_t *now,
                                            const struct tdm_checkpoint_user *user,
                                            struct tdm_error *err)
{
    const json_t *then = json_object_get(checkpoint->note, "schedule");
    const struct tdm_program *program = user->program;
    const bool same = checkpoint->differences[0] == '\0' && json_equal(then, now) &&
                      checkpoint->part_count == program->ranks;
    for (uint32_t rank = 0; same && rank < program->ranks; rank++)
        if (checkpoint->parts[rank].ops != tdm_program_of_rank(program, rank).op_count)
            return is_of_another_version(checkpoint, err);
    if (same)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT,
             "%s: was saved within step %" PRIu64 ", which %s cannot finish: that takes the "
             "schedule that began it%s%s",
             checkpoint->directory, checkpoint->step + 1, user->schedule_path,
             checkpoint->differences[0] == '\0' ? "" : "; what differs: ", checkpoint->differences);
    return tdm_hint(err, "resume with that schedule, or, with this one, from a step-N");
}

/* Loads the memory of a rank, whose program this is. */
static enum tdm_status load(const struct tdm_checkpoint *checkpoint, struct moving *m,
                            const struct tdm_program *program, const struct tdm_pauses *pauses,
                            struct tdm_error *err)
{
    const struct tdm_checkpoint_part *part = &checkpoint->parts[program->rank];
    const uint32_t number = tdm_pauses_find(pauses, part->op);
    uint64_t slots = 0;
    enum tdm_status status =
        number == TDM_NONE ? TDM_OK : digest_slots(program, pauses, number, &slots, err);
    if (status == TDM_OK && (number == TDM_NONE || slots != part->slots ||
                             tdm_pauses_at(pauses, number)->bytes != part->bytes))
        status = is_of_another_version(checkpoint, err);
    char *path = status == TDM_OK ? memory_path(checkpoint->directory, program->rank) : NULL;
    if (status == TDM_OK && path == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to read it", checkpoint->directory);
    if (status != TDM_OK)
        return status;
    m->bytes = part->bytes;
    status = open_memory(m, path, O_RDONLY, err);
    if (status == TDM_OK)
        status = move_slots(m, false, program, pauses, number, err);
    if (status == TDM_OK)
        status = read_end(m, err);
    status = close_memory(m, false, status, err);
    if (status == TDM_OK && tdm_checksum_value(&m->sum) != part->checksum) {
        tdm_fail(err, TDM_INPUT,
                 "%s: its data are not those that were saved: their checksum differs", path);
        status = tdm_hint(err, "resume from a step-N");
    }
    free(path);
    return status;
}

enum tdm_status tdm_checkpoint_load_within(const struct tdm_checkpoint *checkpoint,
                                           const struct tdm_arenas *arenas,
                                           const struct tdm_program *program,
                                           const struct tdm_weights_watch *watch,
                                           struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        const struct tdm_program of_rank = tdm_program_of_rank(program, rank);
        struct moving m = {.arenas = &arenas[rank], .watch = watch, .fd = -1};
        struct tdm_pauses *pauses;
        if (arenas[rank].backend == NULL) /* of another process */
            continue;
        status = tdm_pauses_new(&of_rank, &pauses, err);
        if (status != TDM_OK)
            return status;
        status = load(checkpoint, &m, &of_rank, pauses, err);
        tdm_pauses_free(pauses);
    }
    return status;
}
