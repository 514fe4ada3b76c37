/* SPDX-License-Identifier: Apache-2.0 */
/* Trains for a benchmark through the commands of tidemark: plans, runs, and reads the losses and
 * times from the trace. tidemark is found through PATH. */
#ifndef TDM_BENCH_TRAINING_H
#define TDM_BENCH_TRAINING_H

#include "traces/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TDM_BENCH_LINE 2048u

struct tdm_bench_training {
    const char *text, *model, *machine, *backend;
    const char *name;       /* the path of its files without the suffix */
    const char *plan;       /* more options of plan; schedule and rates are set here */
    const char *evaluation; /* like `plan`, for the evaluation after the last step; NULL: none */
    unsigned long context, steps, evaluation_windows;
    double rate; /* the highest; it rises over a twentieth of the steps, then falls as a cosine */
};

struct tdm_bench_curve {
    double *losses;         /* [steps] */
    double step_seconds;    /* mean over the steps after the first */
    double validation_loss; /* NAN: none */
};

static inline bool tdm_bench_run(const char *line)
{
    fflush(stdout);
    int ended = system(line);
    if (ended != 0)
        printf("failed: %s\n", line);
    return ended == 0;
}

static inline bool tdm_bench_plan(const struct tdm_bench_training *t, const char *options,
                                  const char *suffix)
{
    char line[TDM_BENCH_LINE];
    snprintf(line, sizeof(line),
             "tidemark plan '%s' --context %lu --machine '%s' %s "
             "--set optimizer.learning_rate=%g --set optimizer.warmup_steps=%lu "
             "--set optimizer.schedule=cosine --set optimizer.decay_steps=%lu "
             "-o '%s%s.json' --force > /dev/null",
             t->model, t->context, t->machine, options, t->rate, t->steps / 20 + 1, t->steps,
             t->name, suffix);
    return tdm_bench_run(line);
}

static inline bool tdm_bench_read_curve(const struct tdm_bench_training *t, const char *trace,
                                        struct tdm_bench_curve *curve)
{
    struct tdm_error err = {0};
    struct tdm_trace_reader *reader = NULL;
    struct tdm_trace_step_row *rows = NULL;
    struct tdm_trace_evaluation_row *evaluations = NULL;
    size_t count = 0, evaluated = 0;
    bool ok = tdm_trace_reader_open(trace, &reader, &err) == TDM_OK &&
              tdm_trace_read_steps(reader, &rows, &count, &err) == TDM_OK &&
              tdm_trace_read_evaluations(reader, &evaluations, &evaluated, &err) == TDM_OK &&
              count == t->steps;
    if (!ok)
        printf("%s: %s\n", trace, err.message);
    curve->step_seconds = 0.0;
    for (size_t s = 0; s < count && ok; s++) {
        curve->losses[s] = rows[s].loss;
        if (s > 0)
            curve->step_seconds += rows[s].seconds / (double)(count - 1);
    }
    curve->validation_loss = ok && evaluated > 0 ? evaluations[evaluated - 1].loss : NAN;
    free(evaluations);
    free(rows);
    tdm_trace_reader_close(reader);
    return ok;
}

/* Plans and trains with random weights of one seed, and reads the losses from the trace. Failures
 * are reported on stdout. */
static inline bool tdm_bench_train(const struct tdm_bench_training *t,
                                   struct tdm_bench_curve *curve)
{
    char line[TDM_BENCH_LINE], trace[640], evaluate[768] = "";
    snprintf(trace, sizeof(trace), "%s.db", t->name);
    if (t->evaluation != NULL)
        snprintf(evaluate, sizeof(evaluate),
                 "--evaluate '%s-evaluate.json' --evaluate-every %lu --evaluate-steps %lu", t->name,
                 t->steps, t->evaluation_windows);
    snprintf(line, sizeof(line),
             "tidemark run '%s.json' --backend %s --tokens '%s' --weights random:1 --steps %lu "
             "--trace '%s' --trace-ops first --force %s > /dev/null",
             t->name, t->backend, t->text, t->steps, trace, evaluate);
    return tdm_bench_plan(t, t->plan, "") &&
           (t->evaluation == NULL || tdm_bench_plan(t, t->evaluation, "-evaluate")) &&
           tdm_bench_run(line) && tdm_bench_read_curve(t, trace, curve);
}

/* Mean loss of steps [begin, end). */
static inline double tdm_bench_mean(const struct tdm_bench_curve *curve, size_t begin, size_t end)
{
    double sum = 0.0;
    for (size_t s = begin; s < end; s++)
        sum += curve->losses[s];
    return sum / (double)(end - begin);
}

#endif
