/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libtidemark does, in a page: example [TRACE]
 *
 *     cc example.c $(pkg-config --cflags --libs tidemark) -o example
 *
 * Says what PyTorch would need for a step, plans it in 24 GiB, and, if a trace is named, prints the
 * losses and seconds of its steps.
 */
#include <tidemark.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int fail(const struct tidemark_error *error)
{
    fprintf(stderr, "%s\n", error->message);
    if (error->hint[0] != '\0')
        fprintf(stderr, "hint: %s\n", error->hint);
    return 1;
}

static int predict(void)
{
    const char *options[] = {"--context", "16K", "--machine", "rtx-4090", NULL};
    struct tidemark_error error;
    tidemark_answer *answer;
    enum tidemark_status status = tidemark_predict("qwen2.5-0.5b", options, &answer, &error);
    if (status != TIDEMARK_OK && status != TIDEMARK_INFEASIBLE)
        return fail(&error);
    int64_t peak_bytes = 0;
    tidemark_answer_integer(answer, "peak_bytes", &peak_bytes);
    printf("PyTorch needs %" PRId64 " bytes: %s\n", peak_bytes,
           status == TIDEMARK_OK ? "fits" : error.message);
    tidemark_answer_free(answer);
    return 0;
}

static int plan(void)
{
    const char *options[] = {"--context", "16K", "--machine", "rtx-4090", NULL};
    struct tidemark_error error;
    tidemark_answer *answer;
    if (tidemark_plan("qwen2.5-0.5b", options, &answer, &error) != TIDEMARK_OK)
        return fail(&error);
    int64_t peak_bytes = 0;
    double seconds = 0;
    const char *order = "";
    tidemark_answer_integer(answer, "peak_bytes", &peak_bytes);
    tidemark_answer_real(answer, "step_seconds", &seconds);
    tidemark_answer_text(answer, "schedule.order", &order);
    printf("tidemark needs %" PRId64 " bytes and %.2f s, %s\n", peak_bytes, seconds, order);
    tidemark_answer_free(answer);
    return 0;
}

/* The column of a name; the number of columns if there is none. */
static uint32_t column(const tidemark_table *table, const char *name)
{
    uint32_t number = 0;
    while (number < tidemark_table_columns(table) &&
           strcmp(tidemark_table_name(table, number), name) != 0)
        number++;
    return number;
}

static int show(const char *path)
{
    struct tidemark_error error;
    tidemark_trace *trace;
    tidemark_table *steps;
    if (tidemark_trace_open(path, &trace, &error) != TIDEMARK_OK)
        return fail(&error);
    enum tidemark_status status =
        tidemark_trace_read(trace, "steps", 0, TIDEMARK_EVERY_STEP, 0, &steps, &error);
    tidemark_trace_close(trace);
    if (status != TIDEMARK_OK)
        return fail(&error);
    const int64_t *step = tidemark_table_integers(steps, column(steps, "step"));
    const double *loss = tidemark_table_reals(steps, column(steps, "loss"));
    const double *seconds = tidemark_table_reals(steps, column(steps, "seconds"));
    for (uint64_t i = 0; i < tidemark_table_rows(steps); i++)
        printf("step %" PRId64 ": loss %.4f, %.3f s\n", step[i], loss[i], seconds[i]);
    tidemark_table_free(steps);
    return 0;
}

int main(int argc, char **argv)
{
    printf("tidemark %s\n", tidemark_version());
    int failed = predict();
    if (failed == 0)
        failed = plan();
    if (failed == 0 && argc > 1)
        failed = show(argv[1]);
    return failed;
}
