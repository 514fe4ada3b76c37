/* SPDX-License-Identifier: Apache-2.0 */
/* Corrects the rates of a machine by the measured ops of a run (calibrate --from). */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/calibrate.h"

#include "base/json.h"
#include "base/units.h"
#include "schedule/program.h"
#include "simulator/rate_fit.h"
#include "traces/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct correction {
    const char *path;
    struct tdm_trace_reader *reader;
    struct tdm_rate_fit *fit;
    struct tdm_machine *machine;         /* of the first program; owned */
    const struct tdm_schedule *schedule; /* of the step being noted */
    double *seconds;                     /* [ops] of the step being noted; 0: not known */
    uint64_t op_count;
    size_t noted_steps;
};

static enum tdm_status note_op(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    const struct correction *c = self;
    if (item->kind != TDM_RUN || item->op->number >= c->op_count)
        return TDM_OK;
    return tdm_rate_fit_add(c->fit, c->schedule->machine, item->op, c->seconds[item->op->number],
                            err);
}

static enum tdm_status note_step(struct correction *c, const struct tdm_program *program,
                                 const struct tdm_trace_step_row *step, struct tdm_error *err)
{
    struct tdm_trace_interval *rows = NULL;
    size_t count;
    enum tdm_status status =
        tdm_trace_read_intervals(c->reader, step->program, step->step, &rows, &count, err);
    c->op_count = program->op_count;
    c->seconds = calloc(program->op_count + 1, sizeof(*c->seconds));
    if (status == TDM_OK && c->seconds == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "%s: out of memory for its ops", c->path);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        if (rows[i].measured && rows[i].op_number < program->op_count)
            c->seconds[rows[i].op_number] = 1e-9 * (double)(rows[i].end_ns - rows[i].start_ns);
    if (status == TDM_OK)
        status = tdm_program_emit(program, note_op, c, err);
    c->noted_steps++;
    free(c->seconds);
    free(rows);
    return status;
}

/* Notes the timed steps of a program. The first counts only if there is no other. */
static enum tdm_status note_program(struct correction *c, int64_t id, struct tdm_error *err)
{
    struct tdm_trace_step_row *steps = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    char *text = NULL;
    size_t count = 0, timed = 0;
    enum tdm_status status = tdm_trace_read_steps(c->reader, &steps, &count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        timed += steps[i].program == id && steps[i].timed;
    if (status == TDM_OK && timed > 0)
        status = tdm_trace_read_schedule(c->reader, id, &text, err);
    if (status == TDM_OK && timed > 0) {
        json_t *root = NULL;
        status = tdm_json_parse(c->path, text, strlen(text), &root, err);
        if (status == TDM_OK)
            status = tdm_schedule_from_json(c->path, root, &schedule, err);
        json_decref(root);
    }
    if (status == TDM_OK && timed > 0 && schedule->ranks > 1) {
        tdm_fail(err, TDM_INPUT, "%s: is of several ranks, which wait for each other", c->path);
        status = tdm_hint(err, "use the trace of a schedule for one rank");
    }
    if (status == TDM_OK && timed > 0)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK && timed > 0 && c->machine != NULL &&
        !json_equal(c->machine->description, schedule->machine->description)) {
        tdm_fail(err, TDM_INPUT, "%s: its programs were planned for %s and another %s", c->path,
                 c->machine->name, schedule->machine->name);
        status = tdm_hint(err, "run schedules of one machine");
    }
    bool first = true;
    c->schedule = schedule;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        if (steps[i].program != id || !steps[i].timed)
            continue;
        if (!first || timed == 1)
            status = note_step(c, program, &steps[i], err);
        first = false;
    }
    if (status == TDM_OK && timed > 0 && c->machine == NULL) {
        c->machine = schedule->machine;
        schedule->machine = NULL;
    }
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    free(text);
    free(steps);
    return status;
}

static enum tdm_status note_all(struct correction *c, struct tdm_error *err)
{
    struct tdm_trace_program_row *programs = NULL;
    size_t count = 0;
    enum tdm_status status = tdm_trace_read_programs(c->reader, &programs, &count, err);
    for (size_t i = 0; i < count && status == TDM_OK; i++)
        status = note_program(c, programs[i].program, err);
    free(programs);
    const char *backend = tdm_trace_reader_run(c->reader)->backend;
    if (status == TDM_OK && c->noted_steps == 0 && strcmp(backend, "null") == 0) {
        tdm_fail(err, TDM_INPUT,
                 "%s: was made by the backend null, which computes nothing and has no times",
                 c->path);
        return tdm_hint(err, "run with --backend cuda or cpu, and --trace FILE --trace-ops all");
    }
    if (status == TDM_OK && c->noted_steps == 0) {
        tdm_fail(err, TDM_INPUT, "%s: holds no step whose ops were timed", c->path);
        return tdm_hint(err, "run with --trace FILE --trace-ops all");
    }
    return status;
}

static void tell(const struct correction *c, const struct tdm_machine *corrected,
                 void (*say)(void *self, const char *text), void *self)
{
    static struct tdm_rate_total before[TDM_RATES], after[TDM_RATES];
    char line[160], text[3][TDM_FORMAT_SIZE];
    tdm_rate_fit_totals(c->fit, c->machine, before);
    tdm_rate_fit_totals(c->fit, corrected, after);
    snprintf(line, sizeof(line), "%-44s %8s %10s %10s %10s", "rate", "ops", "measured", "was",
             "is");
    say(self, line);
    for (unsigned i = 0; i < TDM_RATES; i++) {
        if (before[i].ops == 0)
            continue;
        snprintf(line, sizeof(line), "%-44s %8zu %10s %10s %10s", tdm_rate_key((enum tdm_rate)i),
                 before[i].ops, tdm_format_seconds(before[i].measured_seconds, text[0]),
                 tdm_format_seconds(before[i].predicted_seconds, text[1]),
                 tdm_format_seconds(after[i].predicted_seconds, text[2]));
        say(self, line);
    }
}

/* The description with the tables of the fit. */
static json_t *describe_corrected(const struct correction *c)
{
    static struct tdm_rate_table tables[TDM_RATES];
    bool known[TDM_RATES];
    char date[32], source[128];
    time_t now = time(NULL);
    struct tm utc;
    json_t *description = tdm_json_copy(c->machine->description);
    json_t *rates = tdm_json_copy(json_object_get(c->machine->description, "rates"));
    json_t *provenance = tdm_json_copy(json_object_get(c->machine->description, "provenance"));
    memcpy(tables, c->machine->table, sizeof(tables));
    tdm_rate_fit_tables(c->fit, true, tables, known);
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (known[i])
            tdm_json_set(&rates, tdm_rate_key((enum tdm_rate)i), tdm_rate_json(&tables[i]));
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &utc));
    snprintf(source, sizeof(source), "corrected by tidemark calibrate --from a run, %s", date);
    if (json_object_get(description, "provenance") == NULL)
        provenance = json_object();
    const char *ran_on = tdm_trace_reader_run(c->reader)->ran_on;
    tdm_json_set(&provenance, "corrected", json_string(date));
    tdm_json_set(&provenance, "corrected_by", json_string(ran_on));
    tdm_json_set(&provenance, "program", json_string(PACKAGE_STRING));
    tdm_json_set(&description, "rates", rates);
    tdm_json_set(&description, "source", json_string(source));
    tdm_json_set(&description, "provenance", provenance);
    return description;
}

enum tdm_status tdm_calibrate_from_trace(const char *path,
                                         void (*say)(void *self, const char *text), void *self,
                                         json_t **description, struct tdm_error *err)
{
    struct correction c = {.path = path};
    struct tdm_machine *corrected = NULL;
    enum tdm_status status = tdm_trace_reader_open(path, &c.reader, err);
    if (status == TDM_OK)
        status = tdm_rate_fit_new(&c.fit, err);
    if (status == TDM_OK)
        status = note_all(&c, err);
    if (status == TDM_OK) {
        json_t *made = describe_corrected(&c);
        status = made == NULL ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for a description")
                              : tdm_machine_from_json(path, made, &corrected, err);
        json_decref(made);
    }
    if (status == TDM_OK) {
        if (say != NULL)
            tell(&c, corrected, say, self);
        *description = json_incref(corrected->description);
    }
    tdm_machine_free(corrected);
    tdm_machine_free(c.machine);
    tdm_rate_fit_free(c.fit);
    tdm_trace_reader_close(c.reader);
    return status;
}
