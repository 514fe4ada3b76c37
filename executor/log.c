/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a run (executor/log.h). */
#include "executor/log.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/lock.h"
#include "executor/events.h"
#include "traces/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_CSV_BYTES (UINT64_C(4) << 30)

/* A file that grows. */
struct growing {
    char *path;
    int fd;
};

struct tdm_log {
    struct growing train, norms, validation, events;
    uint32_t layers;
    char *row; /* of the norms */
    size_t row_bytes;
    uint64_t last_step; /* of which it had a row, up to the step that the run goes on from */
    uint32_t evaluated; /* rows of evaluations after the step that the run goes on from */
    bool is_lost;       /* a write has failed */
    struct tdm_error why_lost;
};

enum tdm_status tdm_log_check(const char *directory, bool resumed, bool force,
                              struct tdm_error *err)
{
    struct stat info;
    if (directory[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "--log: the name of a directory to write is empty");
    if (stat(directory, &info) != 0) {
        int reason = tdm_directory_reason(directory);
        return reason == 0 ? TDM_OK : tdm_file_failed(directory, reason, err);
    }
    if (!S_ISDIR(info.st_mode))
        return tdm_fail(err, TDM_USAGE, "%s: is not a directory", directory);
    char *path = tdm_path_join(directory, TDM_LOG_TRAIN);
    const bool exists = path != NULL && access(path, F_OK) == 0;
    const bool is_written = exists && tdm_lock_is_taken(path);
    free(path);
    if (is_written)
        return tdm_directory_is_written(directory, err);
    if (!exists || resumed || force)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s: has the log of another run", directory);
    return tdm_hint(err, "name a new directory, or pass --force to replace it");
}

/* The rows of a CSV file that are whole and of steps up to that which the run goes on from. */
struct kept_rows {
    uint64_t bytes, last_step; /* 0: none */
    uint32_t of_resumed;       /* rows of the step that the run goes on from */
};

/* Opens a CSV file, or creates it. Nothing of it is changed. With `lock` it stays locked, and
 * another run that has locked it is refused. */
static enum tdm_status open_csv(const char *directory, const char *name, bool lock,
                                struct growing *file, struct tdm_error *err)
{
    file->path = tdm_path_join(directory, name);
    if (file->path == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", directory);
    file->fd = open(file->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return tdm_file_failed(file->path, errno, err);
    return lock && tdm_lock_take(file->fd) == EAGAIN ? tdm_directory_is_written(directory, err)
                                                     : TDM_OK;
}

static enum tdm_status is_foreign(const char *path, uint64_t line, const char *what,
                                  struct tdm_error *err)
{
    tdm_fail(err, TDM_INPUT, "%s: line %" PRIu64 " %s", path, line, what);
    return tdm_hint(err, "pass --log the directory of this training's log, or a new one");
}

static uint32_t commas(const char *text, const char *end)
{
    uint32_t count = 0;
    for (; text < end; text++)
        count += *text == ',';
    return count;
}

/* Finds the rows to keep. A row that is torn, by a power loss, ends them; one that no run has
 * written is refused. */
static enum tdm_status find_kept(const struct growing *file, const char *text, uint64_t bytes,
                                 const char *head, uint64_t resumed_step, bool repeats,
                                 struct kept_rows *kept, struct tdm_error *err)
{
    const size_t head_bytes = strlen(head);
    const char *at = text + head_bytes, *end = text + bytes;
    if (memcmp(text, head, bytes < head_bytes ? bytes : head_bytes) != 0)
        return is_foreign(file->path, 1, "is not the header of this model's log", err);
    if (bytes < head_bytes) /* torn */
        return TDM_OK;
    for (uint64_t line = 2; at < end; line++) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL || memchr(at, '\0', (size_t)(line_end - at)) != NULL)
            break;
        char *after;
        const uint64_t step = at[0] >= '1' && at[0] <= '9' ? strtoull(at, &after, 10) : 0;
        if (step == 0 || *after != ',')
            return is_foreign(file->path, line, "does not begin with a step", err);
        if (step > resumed_step)
            break;
        if (step < kept->last_step || (step == kept->last_step && !repeats))
            return is_foreign(file->path, line, "has a step that is not after the one before", err);
        if (commas(at, line_end) < commas(head, head + head_bytes))
            return is_foreign(file->path, line, "has fewer cells than the header", err);
        kept->of_resumed += step == resumed_step;
        kept->last_step = step;
        at = line_end + 1;
    }
    kept->bytes = (uint64_t)(at - text);
    return TDM_OK;
}

/* Finds the rows to keep of a file that is open: those up to a step. */
static enum tdm_status read_csv(const struct growing *file, const char *head, uint64_t resumed_step,
                                bool repeats, struct kept_rows *kept, struct tdm_error *err)
{
    char *text = NULL;
    uint64_t bytes = 0;
    if (resumed_step == 0)
        return TDM_OK;
    enum tdm_status status = tdm_file_read(file->path, MOST_CSV_BYTES, &text, &bytes, err);
    if (status == TDM_OK)
        status = find_kept(file, text, bytes, head, resumed_step, repeats, kept, err);
    free(text);
    return status;
}

/* Removes the other rows, and writes the header if there is none. */
static enum tdm_status begin_csv(const struct growing *file, const char *head,
                                 const struct kept_rows *kept, struct tdm_error *err)
{
    if (ftruncate(file->fd, (off_t)kept->bytes) != 0)
        return tdm_file_failed(file->path, errno, err);
    return kept->bytes > 0 ? TDM_OK : tdm_file_put(file->fd, file->path, head, strlen(head), err);
}

/* ---- gradient norms of the parts of a model ---- */

/* A number with its comma, or a name. */
#define CELL_BYTES 32u

/* They are those of the model's units: the embedding, the layers, the head. */
static uint32_t part_count(const struct tdm_log *log)
{
    return log->layers + 2;
}

static const char *part_name(const struct tdm_log *log, uint32_t part, char out[CELL_BYTES])
{
    snprintf(out, CELL_BYTES, "layer%u", part - 1);
    return part == 0 ? "embedding" : part == log->layers + 1 ? "head" : out;
}

static double part_norm(const struct tdm_log *log, const struct tdm_log_step *step, uint32_t part)
{
    return step->unit_norms[part == 0 ? log->layers : part == log->layers + 1 ? part : part - 1];
}

/* Allocates a row of the norms, and writes the header into it. */
static enum tdm_status head_norms(struct tdm_log *log, const char *directory, struct tdm_error *err)
{
    char name[CELL_BYTES];
    log->row_bytes = (size_t)CELL_BYTES * (part_count(log) + 1);
    log->row = malloc(log->row_bytes);
    if (log->row == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", directory);
    size_t bytes = (size_t)snprintf(log->row, log->row_bytes, "step");
    for (uint32_t part = 0; part < part_count(log); part++)
        bytes += (size_t)snprintf(log->row + bytes, log->row_bytes - bytes, ",%s",
                                  part_name(log, part, name));
    snprintf(log->row + bytes, log->row_bytes - bytes, "\n");
    return TDM_OK;
}

static void free_log(struct tdm_log *log)
{
    struct growing *files[] = {&log->train, &log->norms, &log->validation, &log->events};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (files[i]->fd >= 0)
            (void)close(files[i]->fd);
        free(files[i]->path);
    }
    free(log->row);
    free(log);
}

static enum tdm_status sync_names(const char *directory, struct tdm_error *err)
{
    int reason = tdm_directory_sync(directory);
    if (reason == 0)
        reason = tdm_directory_sync_parent(directory);
    return reason == 0 ? TDM_OK : tdm_file_failed(directory, reason, err);
}

/* Opens the CSV files, and, when all have been accepted, keeps the rows up to a step. */
static enum tdm_status open_files(struct tdm_log *log, const char *directory, uint64_t resumed_step,
                                  struct tdm_error *err)
{
    enum { TRAIN, NORMS, VALIDATION, FILES };
    const struct {
        const char *name, *head;
        struct growing *file;
    } files[FILES] = {{TDM_LOG_TRAIN,
                       "step,loss,gradient_norm,learning_rate,seconds,tokens_per_second,mfu,"
                       "device_used_bytes,host_used_bytes\n",
                       &log->train},
                      {TDM_LOG_NORMS, log->row, &log->norms},
                      {TDM_LOG_VALIDATION, "step,loss,tokens,seconds,text\n", &log->validation}};
    struct kept_rows kept[FILES] = {0};
    enum tdm_status status = TDM_OK;
    for (int i = 0; i < FILES && status == TDM_OK; i++) {
        status = open_csv(directory, files[i].name, i == TRAIN, files[i].file, err);
        if (status == TDM_OK)
            status = read_csv(files[i].file, files[i].head, resumed_step, i == VALIDATION, &kept[i],
                              err);
    }
    for (int i = 0; i < FILES && status == TDM_OK; i++)
        status = begin_csv(files[i].file, files[i].head, &kept[i], err);
    log->last_step = kept[TRAIN].last_step;
    log->evaluated = kept[VALIDATION].of_resumed;
    return status;
}

enum tdm_status tdm_log_open(const char *directory, uint32_t layers, uint64_t resumed_step,
                             struct tdm_log **out, struct tdm_error *err)
{
    struct tdm_log *log = calloc(1, sizeof(*log));
    if (log == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", directory);
    log->train.fd = log->norms.fd = log->validation.fd = log->events.fd = -1;
    log->layers = layers;
    enum tdm_status status = head_norms(log, directory, err);
    if (status == TDM_OK && mkdir(directory, 0777) != 0 && errno != EEXIST)
        status = tdm_file_failed(directory, errno, err);
    if (status == TDM_OK)
        status = open_files(log, directory, resumed_step, err);
    if (status == TDM_OK)
        status =
            tdm_events_create(directory, resumed_step, &log->events.path, &log->events.fd, err);
    if (status == TDM_OK)
        status = sync_names(directory, err);
    if (status != TDM_OK) {
        free_log(log);
        return status;
    }
    *out = log;
    return TDM_OK;
}

uint64_t tdm_log_last_step(const struct tdm_log *log)
{
    return log->last_step;
}

uint32_t tdm_log_evaluated(const struct tdm_log *log)
{
    return log->evaluated;
}

/* A log that cannot be written does not end a training. */
static enum tdm_status lose(struct tdm_log *log, const struct tdm_error *failure,
                            struct tdm_error *err)
{
    if (failure->status == TDM_OK)
        return TDM_OK;
    log->is_lost = true;
    log->why_lost = *failure;
    if (err != NULL)
        *err = *failure;
    return failure->status;
}

/* A number of a row; nothing where it is not known. */
static const char *number(double value, char out[32])
{
    out[0] = '\0';
    for (int digits = 6; isfinite(value) && digits <= 17; digits++) { /* as few as give it back */
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

/* A number that was computed, or not: then nothing. It may be "nan" or "inf". */
static const char *computed(bool is_known, double value, char out[32])
{
    if (!is_known || isfinite(value))
        return number(is_known ? value : NAN, out);
    snprintf(out, 32, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    return out;
}

static const char *count(uint64_t value, char out[32])
{
    out[0] = '\0';
    if (value > 0)
        snprintf(out, 32, "%" PRIu64, value);
    return out;
}

static double gib(uint64_t bytes)
{
    return bytes > 0 ? (double)bytes / 0x1p30 : NAN;
}

/* Adds a row of the norms, with empty cells if they are not known, and else events. */
static enum tdm_status log_norms(struct tdm_log *log, const struct tdm_log_step *step,
                                 struct tdm_error *err)
{
    enum { AT_ONCE = 16 };
    struct tdm_event_scalar scalars[AT_ONCE];
    char tags[AT_ONCE][CELL_BYTES + 16], name[CELL_BYTES], text[32];
    const bool is_known = step->unit_norms != NULL;
    size_t bytes = (size_t)snprintf(log->row, log->row_bytes, "%" PRIu64, step->step);
    for (uint32_t part = 0; part < part_count(log); part++)
        bytes +=
            (size_t)snprintf(log->row + bytes, log->row_bytes - bytes, ",%s",
                             computed(is_known, is_known ? part_norm(log, step, part) : NAN, text));
    bytes += (size_t)snprintf(log->row + bytes, log->row_bytes - bytes, "\n");
    enum tdm_status status = tdm_file_put(log->norms.fd, log->norms.path, log->row, bytes, err);
    for (uint32_t first = 0; is_known && first < part_count(log) && status == TDM_OK;
         first += AT_ONCE) {
        uint32_t count = 0;
        for (; count < AT_ONCE && first + count < part_count(log); count++) {
            snprintf(tags[count], sizeof(tags[count]), "gradient_norm/%s",
                     part_name(log, first + count, name));
            scalars[count] =
                (struct tdm_event_scalar){tags[count], part_norm(log, step, first + count)};
        }
        status = tdm_events_add(log->events.fd, log->events.path, step->step, count, scalars, err);
    }
    return status;
}

enum tdm_status tdm_log_step(struct tdm_log *log, const struct tdm_log_step *step,
                             struct tdm_error *err)
{
    char row[320], text[8][32];
    struct tdm_error failure = {.status = TDM_OK};
    if (log->is_lost)
        return TDM_OK;
    int bytes =
        snprintf(row, sizeof(row), "%" PRIu64 ",%s,%s,%s,%s,%s,%s,%s,%s\n", step->step,
                 computed(step->has_loss, step->loss, text[0]),
                 computed(step->has_norm, step->gradient_norm, text[1]),
                 number(step->learning_rate, text[2]), number(step->seconds, text[3]),
                 number(step->tokens_per_second, text[4]), number(step->mfu, text[5]),
                 count(step->device_used_bytes, text[6]), count(step->host_used_bytes, text[7]));
    const struct tdm_event_scalar scalars[] = {
        {"train/loss", step->loss},
        {"train/gradient_norm", step->gradient_norm},
        {"train/learning_rate", step->learning_rate},
        {"speed/seconds", step->seconds},
        {"speed/tokens_per_second", step->tokens_per_second},
        {"speed/mfu", step->mfu},
        {"memory/device_gib", gib(step->device_used_bytes)},
        {"memory/host_gib", gib(step->host_used_bytes)},
    };
    if (tdm_file_put(log->train.fd, log->train.path, row, (size_t)bytes, &failure) == TDM_OK)
        (void)tdm_events_add(log->events.fd, log->events.path, step->step,
                             sizeof(scalars) / sizeof(scalars[0]), scalars, &failure);
    if (failure.status == TDM_OK)
        (void)log_norms(log, step, &failure);
    return lose(log, &failure, err);
}

enum tdm_status tdm_log_evaluation(struct tdm_log *log, uint64_t step, const char *text,
                                   double loss, uint64_t tokens, double seconds,
                                   struct tdm_error *err)
{
    char row[192], shown[2][32], tag[64];
    struct tdm_error failure = {.status = TDM_OK};
    if (log->is_lost)
        return TDM_OK;
    int bytes = snprintf(row, sizeof(row), "%" PRIu64 ",%s,%" PRIu64 ",%s,%s\n", step,
                         number(loss, shown[0]), tokens, number(seconds, shown[1]), text);
    snprintf(tag, sizeof(tag), "validation/%s",
             strcmp(text, TDM_TEXT_UNNAMED) == 0 ? "loss" : text);
    const struct tdm_event_scalar scalar = {tag, loss};
    if (tdm_file_put(log->validation.fd, log->validation.path, row, (size_t)bytes, &failure) ==
        TDM_OK)
        (void)tdm_events_add(log->events.fd, log->events.path, step, 1, &scalar, &failure);
    return lose(log, &failure, err);
}

void tdm_log_flush(struct tdm_log *log)
{
    struct tdm_error failure = {.status = TDM_OK};
    if (log == NULL || log->is_lost)
        return;
    const struct growing *files[] = {&log->train, &log->norms, &log->validation, &log->events};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && failure.status == TDM_OK; i++)
        if (fsync(files[i]->fd) != 0 && errno != EINVAL) /* EINVAL: a device */
            (void)tdm_file_failed(files[i]->path, errno, &failure);
    (void)lose(log, &failure, NULL);
}

enum tdm_status tdm_log_close(struct tdm_log *log, enum tdm_status status, struct tdm_error *err)
{
    if (log == NULL)
        return status;
    const struct growing *files[] = {&log->train, &log->norms, &log->validation, &log->events};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct tdm_error failure = {.status = TDM_OK};
        if (close(files[i]->fd) != 0 && !log->is_lost) {
            (void)tdm_file_failed(files[i]->path, errno, &failure);
            (void)lose(log, &failure, NULL);
        }
    }
    log->train.fd = log->norms.fd = log->validation.fd = log->events.fd = -1;
    if (log->is_lost && status == TDM_OK) {
        status = log->why_lost.status;
        if (err != NULL) {
            *err = log->why_lost;
            size_t length = strlen(err->message);
            snprintf(err->message + length, sizeof(err->message) - length,
                     "; the training went on without it");
        }
    }
    free_log(log);
    return status;
}
