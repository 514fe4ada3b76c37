/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints (executor/checkpoint_folder.h). */
#include "executor/checkpoint_folder.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/inputs.h"
#include "base/lock.h"
#include "base/size.h"
#include "executor/checkpoint.h"
#include "models/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "step-"
#define WITHIN_PREFIX "within-" /* of a checkpoint within a step */
#define LATEST TDM_CHECKPOINT_LATEST
#define NEXT_LATEST LATEST ".next" /* before it is renamed */

/* The step of a name that begins with "step-N", or with another prefix; *rest is what follows. 0:
 * another name. */
static uint64_t step_of(const char *name, const char *prefix, const char **rest)
{
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] < '1' || name[length] > '9')
        return 0;
    char *end;
    uint64_t step = strtoull(name + length, &end, 10);
    *rest = end;
    return step;
}

/* The steps of the checkpoints with a prefix in a folder, in no order; malloc'ed. `left`: those of
 * temporary names instead. Returns their number; *steps is NULL if memory ran out or the folder
 * cannot be read. */
static size_t list(const char *path, const char *prefix, bool left, uint64_t **steps)
{
    size_t count = 0, capacity = 64;
    DIR *stream = opendir(path);
    uint64_t *found = stream == NULL ? NULL : malloc(capacity * sizeof(*found));
    for (struct dirent *entry; found != NULL && (entry = readdir(stream)) != NULL;) {
        const char *rest = "";
        uint64_t step = step_of(entry->d_name, prefix, &rest);
        if (step == 0 || (left ? strncmp(rest, ".tmp", 4) != 0 : rest[0] != '\0'))
            continue;
        found[count++] = step;
        if (count < capacity)
            continue;
        capacity *= 2;
        uint64_t *more = realloc(found, capacity * sizeof(*more));
        if (more == NULL)
            free(found);
        found = more;
    }
    if (stream != NULL)
        (void)closedir(stream);
    *steps = found;
    return found == NULL ? 0 : count;
}

static bool is_checkpoint_name(const char *name)
{
    const char *rest = "";
    const bool is_step =
        step_of(name, PREFIX, &rest) > 0 || step_of(name, WITHIN_PREFIX, &rest) > 0;
    return (is_step && rest[0] == '\0') || strcmp(name, LATEST) == 0 ||
           strcmp(name, NEXT_LATEST) == 0;
}

bool tdm_checkpoint_folder_has(const char *folder, const char *path)
{
    char *inner = strdup(path);
    bool has = false;
    while (inner != NULL && !has) {
        size_t length = strlen(inner);
        while (length > 1 && inner[length - 1] == '/')
            inner[--length] = '\0';
        const char *name = strrchr(inner, '/');
        char *parent = tdm_directory_parent(inner);
        has = parent != NULL && is_checkpoint_name(name == NULL ? inner : name + 1) &&
              tdm_path_within(parent, folder) && tdm_path_within(folder, parent);
        /* no further than where the command runs, or the root */
        if (parent != NULL && (name == NULL || strcmp(parent, inner) == 0)) {
            free(parent);
            parent = NULL;
        }
        free(inner);
        inner = parent;
    }
    free(inner);
    return has;
}

/* Is `resumed` a checkpoint in this folder? */
static bool is_in(const char *path, const char *resumed)
{
    char *parent = resumed == NULL ? NULL : tdm_directory_parent(resumed);
    bool in = parent != NULL && tdm_file_same(parent, path);
    free(parent);
    return in;
}

/* The last step of the checkpoints with a prefix in a folder; 0: there is none. */
static uint64_t last_of(const char *path, const char *prefix)
{
    uint64_t *steps, most = 0;
    size_t count = list(path, prefix, false, &steps);
    for (size_t i = 0; i < count; i++)
        most = tdm_most(most, steps[i]);
    free(steps);
    return most;
}

/* "PATH/PREFIXn"; malloc'ed. NULL if memory ran out. */
static char *name_step(const char *path, const char *prefix, uint64_t step)
{
    char name[40];
    snprintf(name, sizeof(name), "%s%" PRIu64, prefix, step);
    return tdm_path_join(path, name);
}

uint64_t tdm_checkpoint_folder_step_of(const char *checkpoint)
{
    const char *slash = strrchr(checkpoint, '/'), *rest = "";
    const uint64_t step = step_of(slash == NULL ? checkpoint : slash + 1, PREFIX, &rest);
    return rest[0] == '\0' ? step : 0;
}

char *tdm_checkpoint_folder_last(const char *path)
{
    const uint64_t step = last_of(path, PREFIX);
    return step > 0 ? name_step(path, PREFIX, step) : NULL;
}

/* What the link `latest` in `path` names: "PATH/step-N", so that messages tell the step; or the
 * link itself. malloc'ed; NULL if memory ran out. */
static char *follow(const char *path, const char *latest)
{
    char target[256];
    ssize_t length = readlink(latest, target, sizeof(target) - 1);
    if (length <= 0)
        return strdup(latest); /* a directory itself */
    target[length] = '\0';
    return strchr(target, '/') == NULL ? tdm_path_join(path, target) : strdup(latest);
}

enum tdm_status tdm_checkpoint_folder_newest(const char *path, char **newest, struct tdm_error *err)
{
    *newest = NULL;
    char *latest = tdm_path_join(path, LATEST),
         *note = latest == NULL ? NULL : tdm_path_join(latest, TDM_WEIGHTS_NOTE);
    bool failed = note == NULL;
    if (!failed && access(note, F_OK) == 0) {
        *newest = follow(path, latest);
        failed = *newest == NULL;
    }
    const uint64_t whole = *newest == NULL ? 0 : tdm_checkpoint_folder_step_of(*newest),
                   within = failed ? 0 : last_of(path, WITHIN_PREFIX);
    if (within > whole) {
        free(*newest);
        *newest = name_step(path, WITHIN_PREFIX, within);
        failed = *newest == NULL;
    }
    free(latest);
    free(note);
    return failed ? tdm_file_failed(path, ENOMEM, err) : TDM_OK;
}

/* `latest` must be absent or a link: nothing else can be moved to the next checkpoint. */
static enum tdm_status check_latest(const char *path, struct tdm_error *err)
{
    struct stat info;
    char *latest = tdm_path_join(path, LATEST);
    bool wrong = latest != NULL && lstat(latest, &info) == 0 && !S_ISLNK(info.st_mode);
    free(latest);
    if (!wrong)
        return TDM_OK;
    tdm_fail(err, TDM_USAGE, "%s/" LATEST ": is not a link to a checkpoint", path);
    return tdm_hint(err, "copies without links leave it so: remove it, and run "
                         "\"ln -s step-N " LATEST "\" there");
}

/* What has the name of a checkpoint must be one: a run writes and removes what has such names. */
static enum tdm_status check_names(const char *path, const char *prefix, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint64_t *steps;
    const size_t count = list(path, prefix, false, &steps);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        struct stat info;
        char *step = name_step(path, prefix, steps[i]),
             *note = step == NULL ? NULL : tdm_path_join(step, TDM_WEIGHTS_NOTE);
        if (note == NULL)
            status = tdm_file_failed(path, ENOMEM, err);
        else if (lstat(step, &info) == 0 && (!S_ISDIR(info.st_mode) || access(note, F_OK) != 0))
            status = tdm_fail(err, TDM_USAGE, "%s: is %s, but has the name of a checkpoint", step,
                              S_ISLNK(info.st_mode)   ? "a link"
                              : S_ISDIR(info.st_mode) ? "a folder without " TDM_WEIGHTS_NOTE
                                                      : "a file");
        free(step);
        free(note);
    }
    free(steps);
    return status == TDM_USAGE
               ? tdm_hint(err, "move it elsewhere: a run writes and removes what has such a name")
               : status;
}

enum tdm_status tdm_checkpoint_folder_check(const char *path, uint64_t keep, bool force,
                                            const char *resumed, uint64_t resumed_step,
                                            struct tdm_checkpoint_folder *folder,
                                            struct tdm_error *err)
{
    struct stat info;
    *folder = (struct tdm_checkpoint_folder){.path = path, .keep = keep, .lock = -1};
    if (path[0] == '\0')
        return tdm_fail(err, TDM_USAGE, "the name of a directory to write is empty");
    char *target = tdm_directory_target(path);
    enum tdm_status status =
        target == NULL ? tdm_file_failed(path, ENOMEM, err) : tdm_file_check_link(target, err);
    free(target);
    if (status != TDM_OK)
        return status;
    if (stat(path, &info) != 0) {
        int reason = tdm_directory_reason(path);
        return reason == 0 ? TDM_OK : tdm_file_failed(path, reason, err);
    }
    if (!S_ISDIR(info.st_mode))
        return tdm_fail(err, TDM_USAGE, "%s: is not a directory", path);
    if (access(path, W_OK | X_OK) != 0)
        return tdm_file_failed(path, errno, err);
    char *config = tdm_path_join(path, "config.json");
    bool is_model = config != NULL && access(config, F_OK) == 0;
    free(config);
    if (is_model) {
        tdm_fail(err, TDM_USAGE, "%s: is the directory of a model", path);
        return tdm_hint(err, "name another directory for checkpoints");
    }
    status = check_latest(path, err);
    if (status == TDM_OK)
        status = check_names(path, PREFIX, err);
    if (status == TDM_OK)
        status = check_names(path, WITHIN_PREFIX, err);
    if (status != TDM_OK)
        return status;
    const uint64_t whole = last_of(path, PREFIX), within = last_of(path, WITHIN_PREFIX);
    const uint64_t most = tdm_most(whole, within == 0 ? 0 : within - 1);
    const bool follows = is_in(path, resumed);
    folder->own_steps = follows ? resumed_step : 0;
    folder->discards = whole > folder->own_steps || within > (follows ? resumed_step + 1 : 0);
    if (!folder->discards || force)
        return TDM_OK;
    if (follows) { /* a run that was killed before it moved `latest` leaves a later step */
        char *newest;
        status = tdm_checkpoint_folder_newest(path, &newest, err);
        const bool is_newest = newest != NULL && tdm_file_same(newest, resumed);
        free(newest);
        if (status != TDM_OK || is_newest)
            return status;
        tdm_fail(err, TDM_USAGE, "%s: has checkpoints up to step %" PRIu64, path, most);
        return tdm_hint(err,
                        "resume from the latest, or pass --force to replace those after step "
                        "%" PRIu64,
                        resumed_step);
    }
    if (whole == 0)
        tdm_fail(err, TDM_USAGE, "%s: has a checkpoint of another run, within step %" PRIu64, path,
                 within);
    else
        tdm_fail(err, TDM_USAGE, "%s: has checkpoints of another run, up to step %" PRIu64, path,
                 most);
    return tdm_hint(err, "--resume %s goes on from there; --force replaces them", path);
}

/* Removes temporary directories of a prefix that killed processes left. */
static void sweep(const char *path, const char *prefix, tdm_directory_owns owns)
{
    uint64_t *steps;
    size_t count = list(path, prefix, true, &steps);
    for (size_t i = 0; i < count; i++) {
        char *target = name_step(path, prefix, steps[i]);
        if (target != NULL)
            (void)tdm_directory_check(target, true, true, owns, NULL);
        free(target);
    }
    free(steps);
}

/* Makes the folder if it is absent, and locks it. */
static enum tdm_status lock(struct tdm_checkpoint_folder *folder, struct tdm_error *err)
{
    folder->made = mkdir(folder->path, 0777) == 0;
    if (!folder->made && errno != EEXIST)
        return tdm_file_failed(folder->path, errno, err);
    int reason = tdm_directory_sync_parent(folder->path);
    if (reason != 0)
        return tdm_file_failed(folder->path, reason, err);
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock < 0)
        return tdm_file_failed(folder->path, errno, err);
    if (tdm_lock_take(folder->lock) != EWOULDBLOCK)
        return TDM_OK;
    folder->made = false; /* it is the other run's now */
    return tdm_directory_is_written(folder->path, err);
}

enum tdm_status tdm_checkpoint_folder_open(struct tdm_checkpoint_folder *folder,
                                           struct tdm_error *err)
{
    struct stat locked, named;
    enum tdm_status status = lock(folder, err);
    /* a run that saved nothing removes its folder when it ends, which may be just now */
    while (status == TDM_OK && fstat(folder->lock, &locked) == 0 &&
           (stat(folder->path, &named) != 0 || named.st_ino != locked.st_ino)) {
        (void)close(folder->lock);
        status = lock(folder, err);
    }
    if (status != TDM_OK)
        return status;
    sweep(folder->path, PREFIX, tdm_weights_owns_checkpoint);
    sweep(folder->path, WITHIN_PREFIX, tdm_checkpoint_owns_within);
    return TDM_OK;
}

void tdm_checkpoint_folder_close(struct tdm_checkpoint_folder *folder)
{
    if (folder->made)
        (void)rmdir(folder->path); /* if nothing was saved */
    if (folder->path != NULL && folder->lock >= 0)
        (void)close(folder->lock);
    folder->lock = -1;
    folder->made = false;
}

char *tdm_checkpoint_folder_step(const struct tdm_checkpoint_folder *folder, uint64_t step)
{
    return name_step(folder->path, PREFIX, step);
}

char *tdm_checkpoint_folder_within(const struct tdm_checkpoint_folder *folder, uint64_t step)
{
    return name_step(folder->path, WITHIN_PREFIX, step);
}

static enum tdm_status move_latest(const struct tdm_checkpoint_folder *folder, uint64_t step,
                                   struct tdm_error *err)
{
    char name[40], *next = tdm_path_join(folder->path, NEXT_LATEST),
                   *latest = tdm_path_join(folder->path, LATEST);
    snprintf(name, sizeof(name), PREFIX "%" PRIu64, step);
    int reason = next == NULL || latest == NULL ? ENOMEM : 0;
    if (reason == 0) {
        (void)unlink(next); /* of a killed run */
        if (symlink(name, next) != 0 || rename(next, latest) != 0)
            reason = errno;
        else
            reason = tdm_directory_sync(folder->path);
    }
    enum tdm_status status =
        reason == 0 ? TDM_OK : tdm_file_failed(latest == NULL ? folder->path : latest, reason, err);
    free(next);
    free(latest);
    return status;
}

static int descending(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? 1 : one > other ? -1 : 0;
}

/* Removes the checkpoints within steps from `first` to before `end`. */
static void remove_withins(struct tdm_checkpoint_folder *folder, uint64_t first, uint64_t end)
{
    uint64_t *steps;
    size_t count = list(folder->path, WITHIN_PREFIX, false, &steps);
    for (size_t i = 0; i < count; i++) {
        const bool goes = steps[i] >= first && steps[i] < end;
        char *path = goes ? tdm_checkpoint_folder_within(folder, steps[i]) : NULL;
        if (path != NULL)
            (void)tdm_directory_remove(path, tdm_checkpoint_owns_within, &folder->stuck);
        free(path);
    }
    free(steps);
}

static void remove_step(struct tdm_checkpoint_folder *folder, uint64_t step)
{
    char *path = tdm_checkpoint_folder_step(folder, step);
    if (path != NULL)
        (void)tdm_directory_remove(path, tdm_weights_owns_checkpoint, &folder->stuck);
    free(path);
}

/* `latest` names a checkpoint that will be removed, and within the next step one is there: moves it
 * to the one before that, or removes it. */
static enum tdm_status move_latest_back(const struct tdm_checkpoint_folder *folder,
                                        const uint64_t *steps, size_t count, struct tdm_error *err)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++)
        if (steps[i] <= folder->own_steps)
            last = tdm_most(last, steps[i]);
    if (last > 0)
        return move_latest(folder, last, err);
    char *latest = tdm_path_join(folder->path, LATEST);
    if (latest == NULL)
        return tdm_file_failed(folder->path, ENOMEM, err);
    (void)unlink(latest);
    free(latest);
    return TDM_OK;
}

enum tdm_status tdm_checkpoint_folder_advance_within(struct tdm_checkpoint_folder *folder,
                                                     uint64_t step, struct tdm_error *err)
{
    uint64_t *steps;
    int reason = tdm_directory_sync(folder->path);
    if (reason != 0)
        return tdm_file_failed(folder->path, reason, err);
    remove_withins(folder, 0, step);
    remove_withins(folder, step + 1, UINT64_MAX);
    if (!folder->discards)
        return TDM_OK;
    size_t count = list(folder->path, PREFIX, false, &steps);
    enum tdm_status status = move_latest_back(folder, steps, count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        if (steps[i] > folder->own_steps)
            remove_step(folder, steps[i]);
    free(steps);
    folder->discards = status != TDM_OK;
    return status;
}

enum tdm_status tdm_checkpoint_folder_advance(struct tdm_checkpoint_folder *folder, uint64_t step,
                                              struct tdm_error *err)
{
    uint64_t *steps, kept = 0;
    remove_withins(folder, step + 1, UINT64_MAX); /* first, or the folder would stand for these */
    enum tdm_status status = move_latest(folder, step, err);
    if (status != TDM_OK)
        return status;
    size_t count = list(folder->path, PREFIX, false, &steps);
    if (count > 0)
        qsort(steps, count, sizeof(*steps), descending);
    for (size_t i = 0; i < count; i++) {
        const bool others = steps[i] > step ||
                            (folder->discards && steps[i] != step && steps[i] > folder->own_steps);
        if (!others && kept < folder->keep)
            kept++;
        else
            remove_step(folder, steps[i]);
    }
    free(steps);
    remove_withins(folder, 0, step + 1);
    folder->discards = false;
    return TDM_OK;
}
