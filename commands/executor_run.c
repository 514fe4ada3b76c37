/* SPDX-License-Identifier: Apache-2.0 */
/* Runs `tidemark run`: trains, and prints progress and a summary. */
#include "commands/executor_parts.h"

#include "base/json.h"
#include "base/text.h"
#include "commands/run_arguments.h"
#include "commands/run_progress.h"
#include "executor/backend.h"
#include "executor/processes.h"
#include "executor/run.h"
#include "executor/transports.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes an argument as a word of a shell. Returns its end. */
static char *quote(char *end, const char *word)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0')
        return stpcpy(end, word);
    *end++ = '\'';
    for (; *word != '\0'; word++)
        if (*word == '\'')
            end = stpcpy(end, "'\\''");
        else
            *end++ = *word;
    return stpcpy(end, "'");
}

/* The command line for the trace, so that a shell can run it again. malloc'ed. */
static char *join(int argc, char **argv)
{
    size_t bytes = sizeof("tidemark");
    for (int i = 0; i < argc; i++)
        bytes += 4 * strlen(argv[i]) + sizeof(" ''");
    char *text = malloc(bytes);
    if (text == NULL)
        return NULL;
    char *end = stpcpy(text, "tidemark");
    for (int i = 0; i < argc; i++)
        end = quote(stpcpy(end, " "), argv[i]);
    return text;
}

static json_t *validation_json(const char *text, const struct tdm_run_validation *validation)
{
    json_t *object =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:f}", "text", tdm_json_text(text), "evaluations",
                  (json_int_t)validation->evaluations, "tokens", (json_int_t)validation->tokens,
                  "last_step", (json_int_t)validation->last_step, "best_step",
                  (json_int_t)validation->best_step, "seconds", validation->seconds);
    if (isfinite(validation->last_loss)) /* NAN if the backend computes nothing */
        tdm_json_set(&object, "last_loss", json_real(validation->last_loss));
    if (isfinite(validation->best_loss))
        tdm_json_set(&object, "best_loss", json_real(validation->best_loss));
    return object;
}

static enum tdm_status print_json(const struct tdm_run_arguments *arguments,
                                  const struct tdm_run_result *results, enum tdm_status status,
                                  struct tdm_error *err)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < arguments->run.schedule_count; i++) {
        const struct tdm_run_result *result = &results[i];
        json_t *arenas = json_object();
        bool ran = result->steps > 0;
        for (uint32_t place = 0; place < result->topology.place_count; place++) {
            const struct tdm_trace_arena *arena = &result->arenas[place];
            json_t *bytes = json_pack("{s:I}", "planned_bytes", (json_int_t)arena->planned_bytes);
            if (result->scanned) {
                tdm_json_set(&bytes, "touched_bytes",
                             json_integer((json_int_t)arena->touched_bytes));
                tdm_json_set(&bytes, "highest_byte", json_integer((json_int_t)arena->highest_byte));
            }
            tdm_json_set(&arenas, tdm_place_name(&result->topology, (enum tdm_place)place), bytes);
        }
        json_t *object = json_pack("{s:o, s:I, s:f, s:o}", "schedule",
                                   tdm_json_text(arguments->run.schedule_paths[i]), "steps",
                                   (json_int_t)result->steps, "predicted_step_seconds",
                                   result->predicted_step_seconds, "arenas", arenas);
        if (result->resumed_step > 0)
            tdm_json_set(&object, "resumed_step", json_integer((json_int_t)result->resumed_step));
        if (result->saved_step > 0)
            tdm_json_set(&object, "saved_step", json_integer((json_int_t)result->saved_step));
        if (ran) {
            tdm_json_set(&object, "tokens", json_integer((json_int_t)result->tokens));
            tdm_json_set(&object, "seconds", json_real(result->seconds));
            tdm_json_set(&object, "outside_bytes", json_integer((json_int_t)result->outside_bytes));
        }
        if (result->device_used_bytes > 0) {
            tdm_json_set(&object, "device_used_bytes",
                         json_integer((json_int_t)result->device_used_bytes));
            tdm_json_set(&object, "device_planned_bytes",
                         json_integer((json_int_t)result->device_planned_bytes));
        }
        if (result->failed != NULL)
            tdm_json_set(&object, "not_a_number", json_string(result->failed));
        const bool computed = ran && arguments->run.backend->executes;
        if (isfinite(result->first_loss)) /* JSON has no other numbers */
            tdm_json_set(&object, "first_loss", json_real(result->first_loss));
        if (isfinite(result->late_loss))
            tdm_json_set(&object, "late_loss", json_real(result->late_loss));
        if (computed)
            tdm_json_set(&object, "unigram_entropy", json_real(result->unigram_entropy));
        json_t *validations = json_array();
        for (uint32_t t = 0; t < arguments->run.text_count; t++)
            if (result->validations[t].evaluations > 0)
                tdm_json_add(&validations, validation_json(arguments->run.texts[t].name,
                                                           &result->validations[t]));
        if (json_array_size(validations) > 0)
            tdm_json_set(&object, "validations", validations);
        else
            json_decref(validations);
        tdm_json_add(&array, object);
    }
    json_t *root = json_pack("{s:s, s:b, s:b, s:o}", "backend", arguments->run.backend->name,
                             "fits", status != TDM_INFEASIBLE, "finished",
                             tdm_progress_finished(&arguments->run, results), "runs", array);
    return tdm_json_write(stdout, true, root, err);
}

/* Prints what an interrupted run leaves: its trace, and the last checkpoint. */
static void hint_what_is_left(const struct tdm_run_options *run,
                              const struct tdm_run_result *result, struct tdm_error *err)
{
    const bool within = result->within_step > result->saved_step;
    if (within || result->saved_step > 0)
        tdm_hint(err, "--resume %s goes on %s step %" PRIu64 "%s%s", run->save_path,
                 within ? "within" : "after", within ? result->within_step : result->saved_step,
                 run->trace_path == NULL ? "" : "; what was measured so far is in ",
                 run->trace_path == NULL ? "" : run->trace_path);
    else if (run->trace_path != NULL)
        tdm_hint(err, "what was measured so far is in %s; tidemark report shows it",
                 run->trace_path);
}

/* Did one of the trainings end at a loss or norm that is not a number? */
static bool any_failed(const struct tdm_run_options *run, const struct tdm_run_result *results)
{
    bool failed = false;
    for (uint32_t i = 0; i < run->schedule_count; i++)
        failed = failed || results[i].failed != NULL;
    return failed;
}

/* Trains, and reports if this is the first process of the run. */
static enum tdm_status train(struct tdm_run_arguments *arguments, struct tdm_run_result *results,
                             bool *hangs, struct tdm_error *err)
{
    struct tdm_run_options *run = &arguments->run;
    const bool first = tdm_processes_number(run->processes) == 0;
    bool told = false;
    char shown[TDM_TEXT_SHOWN];
    struct tdm_progress progress;
    struct tdm_ticker ticker;
    FILE *out = first ? stderr : fopen("/dev/null", "we");
    if (out == NULL)
        return tdm_fail(err, TDM_IO, "/dev/null cannot be opened");
    if (!first)
        run->trace_path = run->log_path = NULL;
    tdm_progress_begin(&progress, out, run->steps);
    progress.waiting = &ticker;
    tdm_ticker_begin(&ticker, out, "reading and checking the schedules");
    if (run->resume_path != NULL && run->weights_path != NULL)
        fprintf(out, "  --weights %s is not read: --resume has the weights\n",
                tdm_text_shown(run->weights_path, shown));
    struct tdm_run_listener listener = tdm_progress_listener(&progress);
    enum tdm_status status = tdm_run(run, &listener, results, err);
    tdm_progress_end(&progress, run, results, status);
    if (!first)
        fclose(out);
    status = tdm_processes_settle(run->processes, status, err);
    if (status == TDM_INTERRUPTED && results[0].begun && first)
        hint_what_is_left(run, &results[0], err);
    if (status != TDM_OK && first && run->processes != NULL)
        tdm_executor_say(err);
    status = tdm_processes_close(run->processes, status, &told, err);
    enum tdm_status printed = TDM_OK;
    if (first && arguments->json &&
        (status == TDM_OK || tdm_progress_finished(run, results) || status == TDM_INTERRUPTED ||
         status == TDM_INFEASIBLE || any_failed(run, results)))
        printed = print_json(arguments, results, status, err);
    if (printed != TDM_OK)
        status = printed;
    if (told)
        err->message[0] = '\0';
    for (uint32_t i = 0; i < run->schedule_count; i++)
        *hangs = *hangs || results[i].hangs;
    return status;
}

/* Finds the transport, and joins the other processes where there are some. */
static enum tdm_status join_processes(struct tdm_run_arguments *arguments, struct tdm_error *err)
{
    struct tdm_run_options *run = &arguments->run;
    enum tdm_status status = TDM_OK;
    if (arguments->transport != NULL)
        status = tdm_transport_find(arguments->transport, &run->transport, err);
    const bool asked = run->transport == &tdm_transport_mpi;
    const char *late = getenv("TIDEMARK_LATE");
    if (late != NULL)
        run->late_seconds = strtod(late, NULL);
    return status == TDM_OK && (asked || tdm_processes_expected())
               ? tdm_processes_open(run->save_every > 0 ? run->cut : run->stop, &run->processes,
                                    err)
               : status;
}

enum tdm_status tdm_executor_run(int argc, char **argv, struct tdm_signals *signals, bool *hangs,
                                 struct tdm_error *err)
{
    struct tdm_run_arguments arguments;
    bool help;
    char *command = join(argc, argv); /* before option parsing reorders argv */
    enum tdm_status status = tdm_run_arguments_read(argc, argv, &arguments, &help, err);
    if (status == TDM_OK && !help)
        status = tdm_backend_find(arguments.backend, &arguments.run.backend, err);
    if (status != TDM_OK || help) {
        free(command);
        return status;
    }
    arguments.run.command = command;
    arguments.run.stop = &signals->stop;
    arguments.run.cut = &signals->cut;
    arguments.run.save_now = &signals->save_now;

    status = join_processes(&arguments, err);
    if (status != TDM_OK) {
        free(command);
        return status;
    }
    struct tdm_run_result *results =
        calloc((size_t)arguments.run.schedule_count + 1, sizeof(*results));
    if (results == NULL) {
        free(command);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u schedules",
                        arguments.run.schedule_count);
    }
    status = train(&arguments, results, hangs, err);
    free(results);
    free(command);
    return status;
}
