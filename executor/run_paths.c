/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the files of a run before anything is done. */
#include "executor/run_paths.h"

#include "base/inputs.h"
#include "executor/log.h"
#include "executor/token_file.h"
#include "models/weights.h"
#include "traces/companions.h"
#include "traces/create.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files of a run's texts. */
struct texts {
    struct tdm_token_paths tokens, validation;
};

static void free_texts(struct texts *texts)
{
    free(texts->tokens.tokens);
    free(texts->tokens.documents);
    free(texts->validation.tokens);
    free(texts->validation.documents);
}

struct output {
    const char *option; /* as messages begin */
    const char *by;     /* the option that makes the run write it */
    const char *path;   /* NULL: not written */
};

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
    const struct tdm_input given[] = {{"--tokens", texts->tokens.tokens, NULL},
                                      {"--tokens", texts->tokens.documents, NULL},
                                      {"--validation", texts->validation.tokens, NULL},
                                      {"--validation", texts->validation.documents, NULL},
                                      {"--evaluate", options->evaluate_path, NULL},
                                      {"--weights", options->weights_path, tdm_weights_reads}};
    enum tdm_status status = tdm_output_check_name("--trace", options->trace_path, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const char *path = outputs[i].path, *option = outputs[i].option;
        status = tdm_inputs_spare(given, sizeof(given) / sizeof(given[0]), option, path, err);
        for (uint32_t s = 0; s < options->schedule_count && status == TDM_OK; s++) {
            const struct tdm_input schedule = {.option = "SCHEDULE",
                                               .path = options->schedule_paths[s]};
            status = tdm_inputs_spare(&schedule, 1, option, path, err);
        }
        for (size_t j = 0; j < count && status == TDM_OK && path != NULL; j++)
            if (strcmp(outputs[j].by, outputs[i].by) != 0 && outputs[j].path != NULL &&
                tdm_path_within(path, outputs[j].path)) {
                tdm_fail(err, TDM_USAGE, "%s %s: is where %s writes", option, path, outputs[j].by);
                status = tdm_hint(err, "give each a place of its own");
            }
    }
    return status;
}

/* A log adds files to a directory, in which the run may read others; it must not replace those. */
static enum tdm_status check_log(const struct tdm_run_options *options, const struct texts *texts,
                                 struct tdm_error *err)
{
    static const char *const names[] = {TDM_LOG_TRAIN, TDM_LOG_VALIDATION};
    enum tdm_status status = TDM_OK;
    if (options->log_path == NULL)
        return TDM_OK;
    if (options->schedule_count > 1)
        return tdm_fail(err, TDM_USAGE, "--log %s: %u schedules train; one can be logged",
                        options->log_path, options->schedule_count);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && status == TDM_OK; i++) {
        const struct tdm_input given[] = {{"--tokens", texts->tokens.tokens, NULL},
                                          {"--validation", texts->validation.tokens, NULL},
                                          {"--evaluate", options->evaluate_path, NULL},
                                          {"SCHEDULE", options->schedule_paths[0], NULL}};
        size_t bytes = strlen(options->log_path) + strlen(names[i]) + 2;
        char *path = malloc(bytes);
        if (path == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for its names", options->log_path);
        snprintf(path, bytes, "%s/%s", options->log_path, names[i]);
        status = tdm_inputs_spare(given, sizeof(given) / sizeof(given[0]), "--log", path, err);
        free(path);
    }
    return status;
}

static enum tdm_status find_text(const char *what, struct tdm_token_paths *paths,
                                 struct tdm_error *err)
{
    if (what == NULL)
        return TDM_OK;
    enum tdm_status status = tdm_token_file_paths(what, paths, err);
    if (status == TDM_OK && access(paths->tokens, R_OK) != 0)
        status = tdm_fail(err, TDM_IO, "%s: cannot be opened: %s", paths->tokens, strerror(errno));
    return status;
}

enum tdm_status tdm_run_check_paths(const struct tdm_run_options *options, struct tdm_error *err)
{
    struct texts texts = {0};
    char *beside[TDM_COMPANIONS] = {NULL};
    enum tdm_status status = find_text(options->tokens_path, &texts.tokens, err);
    if (status == TDM_OK)
        status = find_text(options->validation_path, &texts.validation, err);
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
