/* SPDX-License-Identifier: Apache-2.0 */
/* The note of a checkpoint: what it says of the training that saved it, and whether a program can
 * go on from there. */
#include "executor/checkpoint_folder.h"
#include "executor/checkpoint_parts.h"

#include "base/file.h"
#include "base/json.h"
#include "schedule/training_settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "tidemark-checkpoint-3"

#define LATEST TDM_CHECKPOINT_LATEST

/* Limit of the step and seed of a note. */
#define MOST ((uint64_t)INT64_MAX)

/* ---- making it ---- */

/* The digest of a note without the digest that it holds itself. NULL if memory ran out. */
static const char *digest_of(json_t *note, char out[TDM_DIGEST_SIZE])
{
    json_t *rest = tdm_json_copy(note);
    (void)json_object_del(rest, "digest"); /* if it has one */
    char *text = rest == NULL ? NULL : tdm_json_canonical(rest);
    const char *digest = text == NULL ? NULL : tdm_digest_text(text, out);
    free(text);
    json_decref(rest);
    return digest;
}

static json_t *number_or_null(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}

enum tdm_status tdm_checkpoint_note(const struct tdm_program *program,
                                    const struct tdm_checkpoint_moment *moment, json_t *sets,
                                    json_t *files, json_t *within, json_t **out,
                                    struct tdm_error *err)
{
    json_t *schedule = NULL, *note = json_object(), *losses = json_array(), *norms = json_array();
    char digest[TDM_DIGEST_SIZE];
    const struct tdm_tokens_identity *tokens = &moment->tokens;
    enum tdm_status status = tdm_schedule_to_json(program->schedule, NULL, &schedule, err);
    for (uint64_t i = 0; i < moment->history->count; i++) {
        tdm_json_add(&losses, number_or_null(moment->history->steps[i].loss));
        tdm_json_add(&norms, number_or_null(moment->history->steps[i].gradient_norm));
    }
    tdm_json_set(&note, "format", json_string(FORMAT));
    tdm_json_set(&note, "step", json_integer((json_int_t)moment->step));
    tdm_json_set(&note, "seed", json_integer((json_int_t)moment->seed));
    tdm_json_set(&note, "tokens",
                 json_pack("{s:I, s:s, s:s, s:s, s:s, s:s}", "count", (json_int_t)tokens->count,
                           "digest", tokens->digest, "ids", tokens->ids, "documents",
                           tokens->documents, "mask", tokens->mask, "order", tokens->order));
    tdm_json_set(&note, "backend", json_string(moment->backend));
    tdm_json_set(&note, "losses", losses);
    tdm_json_set(&note, "gradient_norms", norms);
    tdm_json_set(&note, "sets", sets);
    tdm_json_set(&note, "files", files);
    tdm_json_set(&note, "within", within);
    tdm_json_set(&note, "schedule", schedule);
    if (status == TDM_OK && note != NULL && digest_of(note, digest) != NULL)
        tdm_json_set(&note, "digest", json_string(digest));
    if (status == TDM_OK && json_object_get(note, "digest") == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for the note of a checkpoint");
    if (status != TDM_OK) {
        json_decref(note);
        return status;
    }
    *out = note;
    return TDM_OK;
}

/* ---- reading it ---- */

static bool has(const char *directory, const char *name)
{
    char *path = tdm_path_join(directory, name);
    bool found = path != NULL && access(path, F_OK) == 0;
    free(path);
    return found;
}

/* Says why there is no checkpoint at `path`. */
static enum tdm_status refuse_folder(const char *path, struct tdm_error *err)
{
    char target[256], *latest = tdm_path_join(path, LATEST);
    ssize_t length = latest == NULL ? -1 : readlink(latest, target, sizeof(target) - 1);
    free(latest);
    if (length > 0) {
        target[length] = '\0';
        tdm_fail(err, TDM_USAGE, "--resume %s: its %s is a link to %s, where no checkpoint is",
                 path, LATEST, target);
        return tdm_hint(err, "give one of its step-N instead");
    }
    struct stat info;
    if (stat(path, &info) != 0)
        return tdm_fail(err, TDM_USAGE, "--resume %s: cannot be read: %s", path, strerror(errno));
    char *last = tdm_checkpoint_folder_last(path);
    if (last != NULL) {
        tdm_fail(err, TDM_USAGE, "--resume %s: has no %s, the link to the newest checkpoint", path,
                 LATEST);
        tdm_hint(err, "--resume %s goes on from the last one that is there", last);
        free(last);
        return TDM_USAGE;
    }
    tdm_fail(err, TDM_USAGE, "--resume %s: holds no checkpoint: neither %s nor %s", path,
             TDM_WEIGHTS_NOTE, LATEST);
    return tdm_hint(err, "give the directory that run --save DIR --save-every N wrote, or one of "
                         "its step-N");
}

/* The directory of the checkpoint that `path` stands for. */
static enum tdm_status find(const char *path, char **directory, struct tdm_error *err)
{
    if (has(path, TDM_WEIGHTS_NOTE)) {
        *directory = strdup(path);
        return *directory != NULL ? TDM_OK
                                  : tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", path);
    }
    enum tdm_status status = tdm_checkpoint_folder_newest(path, directory, err);
    if (status == TDM_OK && *directory == NULL)
        status = refuse_folder(path, err);
    return status;
}

static enum tdm_status check_note(const char *file, struct tdm_checkpoint *checkpoint,
                                  struct tdm_error *err)
{
    json_t *note = checkpoint->note;
    struct tdm_json_reader reader = {file, "", note, err, TDM_OK};
    static const char *const keys[] = {"format", "step",   "seed",     "tokens", "backend",
                                       "losses", "sets",   "schedule", "digest", "gradient_norms",
                                       "files",  "within", NULL};
    const char *format = tdm_json_string(&reader, "format");
    if (tdm_json_status(&reader) == TDM_OK && strcmp(format, FORMAT) != 0)
        return tdm_json_fail(&reader, "format", "is not known; expected \"%s\"", FORMAT);
    tdm_json_only(&reader, keys);
    const json_t *within = json_object_get(note, "within");
    if (tdm_json_status(&reader) == TDM_OK && !json_is_null(within) &&
        tdm_json_object(&reader, "within") != NULL)
        reader.status = tdm_checkpoint_read_parts(file, within, checkpoint, err);
    const uint64_t step = tdm_json_count(&reader, "step", checkpoint->parts == NULL, MOST);
    checkpoint->step = step;
    checkpoint->seed = tdm_json_count(&reader, "seed", 0, MOST);
    const json_t *losses = tdm_json_array(&reader, "losses");
    const json_t *norms = tdm_json_array(&reader, "gradient_norms");
    (void)tdm_json_object(&reader, "tokens");
    (void)tdm_json_object(&reader, "sets");
    (void)tdm_json_object(&reader, "files");
    (void)tdm_json_object(&reader, "schedule");
    const char *backend = tdm_json_string(&reader, "backend");
    const char *digest = tdm_json_string(&reader, "digest");
    if (tdm_json_status(&reader) != TDM_OK || backend == NULL)
        return tdm_json_status(&reader);
    if (json_array_size(losses) != step || json_array_size(norms) != step)
        return tdm_json_fail(&reader, "losses", "are not those of %" PRIu64 " steps", step);
    char found[TDM_DIGEST_SIZE];
    if (digest_of(note, found) == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to check it", file);
    if (strcmp(found, digest) == 0)
        return TDM_OK;
    tdm_json_fail(&reader, "digest", "is not that of the file: it was edited");
    return tdm_hint(err, "resume from another checkpoint");
}

enum tdm_status tdm_checkpoint_open(const char *path, struct tdm_checkpoint **out,
                                    struct tdm_error *err)
{
    struct tdm_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (checkpoint == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", path);
    enum tdm_status status = find(path, &checkpoint->directory, err);
    char *file = status == TDM_OK ? tdm_path_join(checkpoint->directory, TDM_WEIGHTS_NOTE) : NULL;
    if (status == TDM_OK && file == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to open it", path);
    if (status == TDM_OK)
        status = tdm_json_load(file, &checkpoint->note, err);
    if (status == TDM_OK)
        status = check_note(file, checkpoint, err);
    free(file);
    if (status != TDM_OK) {
        tdm_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return TDM_OK;
}

void tdm_checkpoint_close(struct tdm_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    tdm_checkpoint_reader_close(checkpoint->reader);
    json_decref(checkpoint->note);
    free(checkpoint->parts);
    free(checkpoint->directory);
    free(checkpoint);
}

enum tdm_status tdm_checkpoint_history(const struct tdm_checkpoint *checkpoint,
                                       struct tdm_history *history, struct tdm_error *err)
{
    const json_t *losses = json_object_get(checkpoint->note, "losses");
    const json_t *norms = json_object_get(checkpoint->note, "gradient_norms");
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < json_array_size(losses) && status == TDM_OK; i++) {
        const json_t *loss = json_array_get(losses, i), *norm = json_array_get(norms, i);
        status = tdm_history_add(history, json_is_number(loss) ? json_number_value(loss) : NAN,
                                 json_is_number(norm) ? json_number_value(norm) : NAN, err);
    }
    return status;
}

/* ---- comparing it ---- */

#define SHOWN 96

/* A value for a message. */
static const char *show(const json_t *value, char out[SHOWN])
{
    char *text =
        value == NULL ? NULL : tdm_json_dump(value, JSON_COMPACT | JSON_REAL_PRECISION(12));
    size_t length = text == NULL ? 0 : strlen(text);
    snprintf(out, SHOWN, "%s", text == NULL ? "none" : text);
    if (length >= SHOWN)
        memcpy(out + SHOWN - 4, "...", 4);
    free(text);
    return out;
}

/* The value at a path "a.b" of an object; NULL if there is none. */
static const json_t *at(const json_t *object, const char *path)
{
    char key[64];
    for (;;) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)length, path);
        object = json_object_get(object, key);
        if (object == NULL || path[length] == '\0')
            return object;
        path += length + 1;
    }
}

/* Do two schedules have the same value of a setting? Also sets what messages show of them. */
static bool same_setting(const json_t *then, const json_t *now, enum tdm_training_setting setting,
                         char was[SHOWN], char is[SHOWN])
{
    const char *path = tdm_training_setting_key(setting);
    const char *absent = tdm_training_setting_absent(setting);
    const json_t *old = at(then, path), *new = at(now, path);
    show(old, was);
    show(new, is);
    if (old == NULL && absent != NULL)
        snprintf(was, SHOWN, "\"%s\"", absent);
    if (new == NULL && absent != NULL)
        snprintf(is, SHOWN, "\"%s\"", absent);
    return json_equal(old, new) || (absent != NULL && strcmp(was, is) == 0);
}

static bool is_changed_by_user(const struct tdm_checkpoint_user *user, const char *path)
{
    for (size_t i = 0; i < user->pair_count; i++) {
        enum tdm_training_setting s =
            tdm_training_setting_meant(user->pairs[i], strcspn(user->pairs[i], "="));
        if (s != TDM_TRAINING_SETTINGS && strcmp(tdm_training_setting_key(s), path) == 0)
            return true;
    }
    return false;
}

/* Adds to what differs a name, and, unless `was` is NULL, its values. */
static void note_difference(struct tdm_checkpoint *checkpoint, const char *name, const char *was,
                            const char *is)
{
    const size_t used = strlen(checkpoint->differences);
    const size_t left = sizeof(checkpoint->differences) - used;
    const char *comma = used == 0 ? "" : ", ";
    if (was == NULL)
        snprintf(checkpoint->differences + used, left, "%s%s", comma, name);
    else
        snprintf(checkpoint->differences + used, left, "%s%s %s (was %s)", comma, name, is, was);
}

static bool is_noted(const char *differences, const char *name)
{
    const size_t length = strlen(name);
    for (const char *found = differences; (found = strstr(found, name)) != NULL; found++)
        if ((found == differences || found[-1] == ' ') && strchr(" ,", found[length]) != NULL)
            return true;
    return false;
}

static bool is_list(const json_t *value)
{
    return json_is_object(value) || json_is_array(value);
}

/* Notes all that two schedules differ in and that is not noted yet, of `keys`, keys of one of them.
 * Those of the optimizer and the dtypes one by one; `folder`: such a key, with a dot. */
static void note_keys(struct tdm_checkpoint *checkpoint, const char *folder, json_t *keys,
                      json_t *then, json_t *now)
{
    char path[96], was[SHOWN], is[SHOWN];
    const char *key;
    json_t *value;
    json_object_foreach(keys, key, value)
    {
        json_t *old = json_object_get(then, key), *new = json_object_get(now, key);
        snprintf(path, sizeof(path), "%s%s", folder, key);
        if (json_equal(old, new) || is_noted(checkpoint->differences, path))
            continue;
        if (strcmp(path, "optimizer") == 0 || strcmp(path, "dtypes") == 0) {
            snprintf(path, sizeof(path), "%s.", key);
            note_keys(checkpoint, path, old, old, new);
            note_keys(checkpoint, path, new, old, new);
        } else if (is_list(old) || is_list(new)) {
            note_difference(checkpoint, path, NULL, NULL);
        } else {
            note_difference(checkpoint, path, show(old, was), show(new, is));
        }
    }
}

/* What a training computes depends on these fields of the schedule. */
static const char *const decisive[] = {
    "pass",           "sequences",      "documents",     "selector",       "optimizer.kind",
    "optimizer.clip", "dtypes.weights", "dtypes.master", "dtypes.moments",
};

/* How sums are rounded depends on these; with what an absent one stands for. Which rank has a
 * chunk, and what ranks exchange, decide which terms of a sum are added first. */
static const struct {
    const char *path, *absent;
} rounding[] = {
    {"ranks", "1"},           {"deal", "\"snake\""},        {"exchange", "\"gather\""},
    {"head_ranks", "none"},   {"chunk_tokens", ""},         {"page_tokens", ""},
    {"head_tile_tokens", ""}, {"head_tile_vocabulary", ""}, {"dtypes.activations", ""},
    {"dtypes.kv", ""},        {"dtypes.kv_gradients", ""},  {"dtypes.gradients", ""},
    {"dtypes.logits", ""},
};

static enum tdm_status refuse(const struct tdm_checkpoint *checkpoint, const char *path,
                              const char *was, const char *is,
                              const struct tdm_checkpoint_user *user, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "%s: was trained with \"%s\" %s, and %s has %s",
                    checkpoint->directory, path, was, user->schedule_path, is);
}

/* Settings that differ although the user does not change them, as texts for a message. */
struct changed_settings {
    unsigned count;
    char old[640], new[256], options[640]; /* "KEY" was; is; --set KEY=was */
};

static void add_changed(struct changed_settings *changed, const char *path, const char *was,
                        const char *is)
{
    const char *bare = was[0] == '"' ? was + 1 : was; /* as it is given on the command line */
    const char *and = changed->count++ == 0 ? "" : ", ";
    size_t old = strlen(changed->old), new = strlen(changed->new), used = strlen(changed->options);
    snprintf(changed->old + old, sizeof(changed->old) - old, "%s\"%s\" %s", and, path, was);
    snprintf(changed->new + new, sizeof(changed->new) - new, "%s%s", and, is);
    snprintf(changed->options + used, sizeof(changed->options) - used, "%s--set %s=%.*s",
             used == 0 ? "" : " ", path, (int)strcspn(bare, "\""), bare);
}

static enum tdm_status refuse_settings(const struct tdm_checkpoint *checkpoint,
                                       const struct changed_settings *changed,
                                       const struct tdm_checkpoint_user *user,
                                       struct tdm_error *err)
{
    tdm_fail(err, TDM_INPUT, "%s: was trained with %s, and %s has %s", checkpoint->directory,
             changed->old, user->schedule_path, changed->new);
    if (changed->count == 1)
        return tdm_hint(err, "%s goes on with the old value, another one changes it",
                        changed->options);
    return tdm_hint(err, "%s go on with the old values, others change them", changed->options);
}

/* Refuses a checkpoint of another model, and names the first field of its config that differs. */
static enum tdm_status refuse_model(const struct tdm_checkpoint *checkpoint, const json_t *then,
                                    const json_t *now, const struct tdm_checkpoint_user *user,
                                    struct tdm_error *err)
{
    const char *name = json_string_value(at(then, "model.name")), *key;
    json_t *old = (json_t *)at(then, "model.config"), *value; /* the loop takes no const */
    char was[SHOWN], is[SHOWN];
    tdm_fail(err, TDM_INPUT, "%s: is a checkpoint of another model (%s) than %s (%s)",
             checkpoint->directory, name == NULL ? "unnamed" : name, user->schedule_path,
             user->program->schedule->model->name);
    json_object_foreach(old, key, value)
    {
        const json_t *new = json_object_get(at(now, "model.config"), key);
        if (!json_equal(value, new))
            return tdm_hint(err, "\"%s\" was %s, and is %s", key, show(value, was), show(new, is));
    }
    return TDM_INPUT;
}

/* Compares the schedule that saved the checkpoint with the one that is to go on. */
static enum tdm_status compare(struct tdm_checkpoint *checkpoint, const json_t *now,
                               const struct tdm_checkpoint_user *user, struct tdm_error *err)
{
    const json_t *then = json_object_get(checkpoint->note, "schedule");
    char was[SHOWN], is[SHOWN];
    if (!json_equal(at(then, "model.digest"), at(now, "model.digest")))
        return refuse_model(checkpoint, then, now, user, err);
    for (size_t i = 0; i < sizeof(decisive) / sizeof(decisive[0]); i++)
        if (!json_equal(at(then, decisive[i]), at(now, decisive[i])) &&
            (at(then, decisive[i]) != NULL || at(now, decisive[i]) != NULL))
            return refuse(checkpoint, decisive[i], show(at(then, decisive[i]), was),
                          show(at(now, decisive[i]), is), user, err);
    struct changed_settings changed = {.count = 0};
    for (int s = 0; s < TDM_TRAINING_SETTINGS; s++) {
        const char *path = tdm_training_setting_key((enum tdm_training_setting)s);
        if (same_setting(then, now, (enum tdm_training_setting)s, was, is))
            continue;
        if (is_changed_by_user(user, path))
            note_difference(checkpoint, path, was, is);
        else
            add_changed(&changed, path, was, is);
    }
    if (changed.count > 0)
        return refuse_settings(checkpoint, &changed, user, err);
    for (size_t i = 0; i < sizeof(rounding) / sizeof(rounding[0]); i++) {
        const json_t *old = at(then, rounding[i].path), *new = at(now, rounding[i].path);
        const char *before = old == NULL ? rounding[i].absent : show(old, was);
        const char *after = new == NULL ? rounding[i].absent : show(new, is);
        if (strcmp(before, after) != 0)
            note_difference(checkpoint, rounding[i].path, before, after);
    }
    const char *backend = json_string_value(json_object_get(checkpoint->note, "backend"));
    if (strcmp(backend, user->backend) != 0)
        note_difference(checkpoint, "backend", backend, user->backend);
    return TDM_OK;
}

enum tdm_status tdm_checkpoint_match(struct tdm_checkpoint *checkpoint,
                                     const struct tdm_checkpoint_user *user, struct tdm_error *err)
{
    json_t *now = NULL;
    enum tdm_status status = tdm_schedule_to_json(user->program->schedule, NULL, &now, err);
    if (status == TDM_OK)
        status = compare(checkpoint, now, user, err);
    if (status == TDM_OK && checkpoint->parts != NULL) {
        json_t *then = json_object_get(checkpoint->note, "schedule");
        note_keys(checkpoint, "", then, then, now);
        note_keys(checkpoint, "", now, then, now);
        status = tdm_checkpoint_match_within(checkpoint, now, user, err);
    }
    json_decref(now);
    if (status == TDM_OK && checkpoint->parts == NULL)
        status = tdm_checkpoint_reader_open(checkpoint, user->program, &checkpoint->reader, err);
    return status;
}

/* Adds what differs in a text to a list: a name, and values before and now, if they are known. */
static void add_difference(char *list, size_t list_bytes, const char *name, const char *was,
                           const char *is)
{
    const size_t used = strlen(list);
    const char *comma = used == 0 ? "" : ", ";
    if (was == NULL)
        snprintf(list + used, list_bytes - used, "%s%s", comma, name);
    else
        snprintf(list + used, list_bytes - used, "%s%s (%s, now %s)", comma, name, was, is);
}

/* Compares the digests of a part of a text. A note of before has none: nothing is told then. */
static void compare_part(const json_t *tokens, const char *key, const char *is, char *list,
                         size_t list_bytes)
{
    const char *was = json_string_value(json_object_get(tokens, key));
    if (was == NULL || strcmp(was, is) == 0)
        return;
    if (was[0] != '\0' && is[0] != '\0')
        add_difference(list, list_bytes, key, NULL, NULL);
    else
        add_difference(list, list_bytes, key, was[0] == '\0' ? "none" : "given",
                       is[0] == '\0' ? "none" : "given");
}

/* What differs, as a list. */
static void compare_tokens(const json_t *tokens, const struct tdm_tokens_identity *now, char *list,
                           size_t list_bytes)
{
    const uint64_t count = (uint64_t)json_integer_value(json_object_get(tokens, "count"));
    const char *ids = json_string_value(json_object_get(tokens, "ids"));
    const char *order = json_string_value(json_object_get(tokens, "order"));
    char counts[2][32] = {"random ones", "random ones"};
    list[0] = '\0';
    if (count > 0)
        snprintf(counts[0], sizeof(counts[0]), "%" PRIu64, count);
    if (now->count > 0)
        snprintf(counts[1], sizeof(counts[1]), "%" PRIu64, now->count);
    if (count != now->count)
        add_difference(list, list_bytes, "tokens", counts[0], counts[1]);
    else if (ids != NULL && strcmp(ids, now->ids) != 0)
        add_difference(list, list_bytes, "tokens", NULL, NULL);
    if (count == now->count) { /* else they differ anyway */
        compare_part(tokens, "documents", now->documents, list, list_bytes);
        compare_part(tokens, "mask", now->mask, list, list_bytes);
    }
    if (order != NULL && strcmp(order, now->order) != 0)
        add_difference(list, list_bytes, "order", order, now->order);
    if (list[0] == '\0')
        snprintf(list, list_bytes, "tokens, documents, mask or order");
}

enum tdm_status tdm_checkpoint_match_tokens(const struct tdm_checkpoint *checkpoint,
                                            const char *name,
                                            const struct tdm_tokens_identity *identity,
                                            struct tdm_error *err)
{
    const json_t *tokens = json_object_get(checkpoint->note, "tokens");
    const char *digest = json_string_value(json_object_get(tokens, "digest"));
    char list[256];
    if ((uint64_t)json_integer_value(json_object_get(tokens, "count")) == identity->count &&
        digest != NULL && strcmp(digest, identity->digest) == 0)
        return TDM_OK;
    compare_tokens(tokens, identity, list, sizeof(list));
    tdm_fail(err, TDM_INPUT, "%s: what it was trained on differs from this run's text (%s): %s",
             checkpoint->directory, name, list);
    return tdm_hint(err, "give the same --tokens, --order and --mask, and --evaluate with the same "
                         "--validation if the run had it");
}
