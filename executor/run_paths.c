/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the files of a run before anything is done. */
#include "executor/run_paths.h"

#include "base/directory.h"
#include "base/file.h"
#include "base/inputs.h"
#include "executor/checkpoint_folder.h"
#include "executor/log.h"
#include "models/weights.h"
#include "texts/list.h"
#include "texts/token_file.h"
#include "traces/companions.h"
#include "traces/create.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files of a run's texts: of each its tokens, and its documents (or a path of NULL). */
struct texts {
    struct tdm_input *inputs; /* their paths are owned */
    size_t count;
};

static void free_texts(struct texts *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        free((char *)texts->inputs[i].path);
    free(texts->inputs);
}

struct output {
    const char *option; /* as messages begin */
    const char *by;     /* the option that makes the run write it */
    const char *path;   /* NULL: not written */
};

static enum tdm_status refuse_place(const char *option, const char *path, const char *by,
                                    struct tdm_error *err)
{
    tdm_fail(err, TDM_USAGE, "%s %s: is where %s writes", option, path, by);
    return tdm_hint(err, "give each a place of its own");
}

/* --force must not replace what the run reads, and no output may lie at or within the path of
 * another. `beside` are the files that SQLite writes beside the trace, or NULL. */
static enum tdm_status check_outputs(const struct tdm_run_options *options,
                                     const struct texts *texts, char *const *beside,
                                     struct tdm_error *err)
{
    const struct output outputs[] = {
        {"--trace", "--trace", options->trace_path},
        {"--save", "--save", options->save_path},
        {"--save-gradients", "--save-gradients", options->gradients_path},
        {"--trace's", "--trace", beside[0]},
        {"--trace's", "--trace", beside[1]},
        {"--trace's", "--trace", beside[2]},
    };
    const size_t count = sizeof(outputs) / sizeof(outputs[0]);
    const struct tdm_input given[] = {{"--evaluate", options->evaluate_path, NULL},
                                      {"--weights", options->weights_path, tdm_weights_reads}};
    enum tdm_status status = tdm_output_check_name("--trace", options->trace_path, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const char *path = outputs[i].path, *option = outputs[i].option;
        status = tdm_inputs_spare(texts->inputs, texts->count, option, path, err);
        if (status == TDM_OK)
            status = tdm_inputs_spare(given, sizeof(given) / sizeof(given[0]), option, path, err);
        for (uint32_t s = 0; s < options->schedule_count && status == TDM_OK; s++) {
            const struct tdm_input schedule = {.option = "SCHEDULE",
                                               .path = options->schedule_paths[s]};
            status = tdm_inputs_spare(&schedule, 1, option, path, err);
        }
        for (size_t j = 0; j < count && status == TDM_OK && path != NULL; j++)
            if (strcmp(outputs[j].by, outputs[i].by) != 0 && outputs[j].path != NULL &&
                tdm_path_within(path, outputs[j].path))
                status = refuse_place(option, path, outputs[j].by, err);
    }
    return status;
}

/* Is the log's directory in a checkpoint that the run may go on from? */
static bool is_in_resumed(const struct tdm_run_options *options)
{
    const char *resumed = options->resume_path;
    if (resumed == NULL)
        return false;
    char *folder = tdm_directory_parent(resumed);
    const bool is_in = tdm_checkpoint_folder_has(resumed, options->log_path) ||
                       (folder != NULL && tdm_checkpoint_folder_has(folder, resumed) &&
                        tdm_path_within(options->log_path, resumed));
    free(folder);
    return is_in;
}

/* A log adds files to a directory, in which the run may read others; it must not replace those. */
static enum tdm_status check_log(const struct tdm_run_options *options, const struct texts *texts,
                                 struct tdm_error *err)
{
    static const char *const names[] = {TDM_LOG_TRAIN, TDM_LOG_NORMS, TDM_LOG_VALIDATION};
    enum tdm_status status = TDM_OK;
    if (options->log_path == NULL)
        return TDM_OK;
    if (options->schedule_count > 1)
        return tdm_fail(err, TDM_USAGE, "--log %s: %u schedules train; one can be logged",
                        options->log_path, options->schedule_count);
    /* A directory that is written as a whole cannot have the log in it. One of checkpoints can. */
    if (options->save_path != NULL && options->save_every == 0 &&
        tdm_path_within(options->log_path, options->save_path))
        return refuse_place("--log", options->log_path, "--save", err);
    const bool is_in_saved = options->save_path != NULL &&
                             tdm_checkpoint_folder_has(options->save_path, options->log_path);
    if (is_in_saved || is_in_resumed(options)) {
        tdm_fail(err, TDM_USAGE, "--log %s: is in a checkpoint of %s", options->log_path,
                 is_in_saved ? "--save" : "--resume");
        return tdm_hint(err, "give it a place of its own");
    }
    if (options->gradients_path != NULL &&
        tdm_path_within(options->log_path, options->gradients_path))
        return refuse_place("--log", options->log_path, "--save-gradients", err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == TDM_OK; i++) {
        const struct tdm_input given[] = {{"--evaluate", options->evaluate_path, NULL},
                                          {"SCHEDULE", options->schedule_paths[0], NULL}};
        char *path = tdm_path_join(options->log_path, names[i]);
        if (path == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its names", options->log_path);
        status = tdm_inputs_spare(texts->inputs, texts->count, "--log", path, err);
        if (status == TDM_OK)
            status = tdm_inputs_spare(given, sizeof(given) / sizeof(given[0]), "--log", path, err);
        free(path);
    }
    return status;
}

static enum tdm_status add_file(const char *option, const char *what, struct texts *texts,
                                struct tdm_error *err)
{
    struct tdm_token_paths paths;
    enum tdm_status status = tdm_token_file_paths(what, &paths, err);
    if (status != TDM_OK)
        return status;
    struct tdm_input *more = realloc(texts->inputs, (texts->count + 2) * sizeof(*more));
    if (more == NULL) {
        free(paths.tokens);
        free(paths.documents);
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its name", what);
    }
    texts->inputs = more;
    texts->inputs[texts->count++] = (struct tdm_input){.option = option, .path = paths.tokens};
    texts->inputs[texts->count++] = (struct tdm_input){.option = option, .path = paths.documents};
    if (access(paths.tokens, R_OK) != 0)
        return tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", paths.tokens, strerror(errno));
    return TDM_OK;
}

static enum tdm_status find_text(const char *option, const char *what, struct texts *texts,
                                 struct tdm_error *err)
{
    struct tdm_text_list list;
    if (what == NULL)
        return TDM_OK;
    enum tdm_status status = tdm_text_list_read(what, &list, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; i < list.count && status == TDM_OK; i++)
        status = add_file(option, list.whats[i], texts, err);
    tdm_text_list_free(&list);
    return status;
}

enum tdm_status tdm_run_check_paths(const struct tdm_run_options *options, struct tdm_error *err)
{
    struct texts texts = {NULL, 0};
    char *beside[TDM_COMPANIONS] = {NULL};
    enum tdm_status status = find_text("--tokens", options->tokens_path, &texts, err);
    if (status == TDM_OK)
        status = find_text("--mask", options->mask_path, &texts, err);
    for (uint32_t i = 0; i < options->text_count && status == TDM_OK; i++)
        status = find_text("--validation", options->texts[i].path, &texts, err);
    for (unsigned i = 0; i < TDM_COMPANIONS && options->trace_path != NULL && status == TDM_OK; i++)
        if ((beside[i] = tdm_companion_path(options->trace_path, i)) == NULL)
            status = tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for the names beside it",
                              options->trace_path);
    if (status == TDM_OK)
        status = check_outputs(options, &texts, beside, err);
    if (status == TDM_OK)
        status = check_log(options, &texts, err);
    if (status == TDM_OK && options->trace_path != NULL)
        status = tdm_trace_check(options->trace_path, options->force, !options->dry_run, err);
    for (unsigned i = 0; i < TDM_COMPANIONS; i++)
        free(beside[i]);
    free_texts(&texts);
    return status;
}
