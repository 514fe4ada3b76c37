/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/curves: does the loss fall alike, whatever the schedule and however AdamW stores its state? Trains
 * one model from the same weights on the same text by several schedules, through the commands of tidemark.
 *
 *     bench/curves TEXT [--model M] [--machine M] [--backend B] [--context N] [--steps N] [--dir DIR]
 *         [--groups N,N,...]
 *
 * Prints, for each, the mean loss over tenths of the steps, the largest difference of one of these means
 * from the first schedule's, and the seconds of a step; and writes DIR/curves.tsv, a column of losses for
 * each, for a picture. tidemark is looked for on PATH.
 */
#include "traces/reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENTHS 10u

struct variant {
    const char *name, *optimizer, *plan;
};

static const struct variant variants[] = {
    {"layer-major, groups of 1, adamw", "adamw", "--set order=layer-major --set groups=1"},
    {"layer-major, uneven groups, adamw", "adamw", "--set order=layer-major"},
    {"chunk-major, adamw", "adamw", "--set order=chunk-major"},
    {"parallel, adamw", "adamw", "--set order=layer-major --set groups=1"},
    {"layer-major, adamw-bf16-moments", "adamw-bf16-moments",
     "--set order=layer-major --set groups=1"},
    {"layer-major, adamw-bf16", "adamw-bf16", "--set order=layer-major --set groups=1"},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))
#define UNEVEN 1u /* --groups */
#define PARALLEL 3u

struct options {
    const char *text, *model, *machine, *backend, *folder, *groups;
    unsigned long context, steps;
};

struct curve {
    double *losses; /* [steps] */
    double step_seconds;
};

static bool run_line(const char *line)
{
    fflush(stdout);
    int ended = system(line);
    if (ended != 0)
        printf("failed: %s\n", line);
    return ended == 0;
}

/* Trains by a variant; the curve's losses come from the trace. */
static bool train(const struct options *options, size_t i, struct curve *curve)
{
    struct tdm_error err = {0};
    struct tdm_trace_reader *reader = NULL;
    struct tdm_trace_step_row *rows = NULL;
    size_t count = 0;
    char line[2048], trace[512];
    unsigned long chunk = i == PARALLEL ? options->context : (options->context + 7) / 8;
    snprintf(trace, sizeof(trace), "%s/curve-%zu.db", options->folder, i);
    snprintf(line, sizeof(line),
             "tidemark plan %s --context %lu --machine %s --optimizer %s %s%s%s --set chunk=%lu "
             "--set optimizer.learning_rate=6e-4 --set optimizer.warmup_steps=%lu "
             "--set optimizer.schedule=cosine --set optimizer.decay_steps=%lu "
             "-o '%s/curve-%zu.json' --force > /dev/null",
             options->model, options->context, options->machine, variants[i].optimizer,
             variants[i].plan, i == UNEVEN ? " --set groups=" : "",
             i == UNEVEN ? options->groups : "", chunk, options->steps / 20 + 1, options->steps,
             options->folder, i);
    if (!run_line(line))
        return false;
    snprintf(line, sizeof(line),
             "tidemark run '%s/curve-%zu.json' --backend %s --tokens '%s' --weights random:1 "
             "--steps %lu --trace '%s' --trace-ops first --force > /dev/null",
             options->folder, i, options->backend, options->text, options->steps, trace);
    if (!run_line(line))
        return false;
    if (tdm_trace_reader_open(trace, &reader, &err) != TDM_OK ||
        tdm_trace_read_steps(reader, &rows, &count, &err) != TDM_OK || count != options->steps) {
        printf("%s: %s\n", trace, err.message);
        return false;
    }
    curve->step_seconds = 0.0;
    for (size_t s = 0; s < count; s++) {
        curve->losses[s] = rows[s].loss;
        if (s > 0)
            curve->step_seconds += rows[s].seconds / (double)(count - 1);
    }
    free(rows);
    tdm_trace_reader_close(reader);
    return true;
}

static double mean(const struct options *options, const struct curve *curve, unsigned tenth)
{
    size_t begin = options->steps * tenth / TENTHS, end = options->steps * (tenth + 1) / TENTHS;
    double sum = 0.0;
    for (size_t s = begin; s < end; s++)
        sum += curve->losses[s];
    return sum / (double)(end - begin);
}

static void print_table(const struct options *options, const struct curve *curves)
{
    puts("mean loss of each tenth of the steps; the largest difference from the first's");
    for (size_t i = 0; i < VARIANTS; i++) {
        double most = 0.0;
        printf("%-34s", variants[i].name);
        for (unsigned tenth = 0; tenth < TENTHS; tenth++) {
            double own = mean(options, &curves[i], tenth);
            double first = mean(options, &curves[0], tenth);
            most = fmax(most, fabs(own - first));
            printf("%7.3f", own);
        }
        printf("  off %.4f  %.3f s a step\n", most, curves[i].step_seconds);
    }
}

static bool write_losses(const struct options *options, const struct curve *curves)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/curves.tsv", options->folder);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        printf("%s: %s\n", path, strerror(errno));
        return false;
    }
    fprintf(file, "step");
    for (size_t i = 0; i < VARIANTS; i++)
        fprintf(file, "\t%s", variants[i].name);
    for (unsigned long s = 0; s < options->steps; s++) {
        fprintf(file, "\n%lu", s + 1);
        for (size_t i = 0; i < VARIANTS; i++)
            fprintf(file, "\t%.6f", curves[i].losses[s]);
    }
    fprintf(file, "\n");
    return fclose(file) == 0;
}

static bool read_options(int argc, char **argv, struct options *options)
{
    if (argc < 2 || argc % 2 != 0 || strncmp(argv[1], "--", 2) == 0)
        return false;
    options->text = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--model") == 0)
            options->model = value;
        else if (strcmp(argv[i], "--machine") == 0)
            options->machine = value;
        else if (strcmp(argv[i], "--backend") == 0)
            options->backend = value;
        else if (strcmp(argv[i], "--dir") == 0)
            options->folder = value;
        else if (strcmp(argv[i], "--groups") == 0)
            options->groups = value;
        else if (strcmp(argv[i], "--context") == 0)
            options->context = strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--steps") == 0)
            options->steps = strtoul(value, NULL, 10);
        else
            return false;
    }
    return options->context >= 8 && options->steps >= TENTHS && options->steps < 1000000;
}

int main(int argc, char **argv)
{
    struct options options = {NULL, "byte-100m", "h200", "cuda", ".", "4,3,2", 32768, 200};
    struct curve curves[VARIANTS] = {{0}};
    bool ok = true;
    if (!read_options(argc, argv, &options)) {
        fprintf(stderr, "usage: bench/curves TEXT [--model M] [--machine M] [--backend B] "
                        "[--context N] [--steps N, from 10] [--dir DIR] [--groups N,N,...]\n");
        return 2;
    }
    for (size_t i = 0; i < VARIANTS && ok; i++) {
        curves[i].losses = calloc(options.steps, sizeof(double));
        ok = curves[i].losses != NULL && train(&options, i, &curves[i]);
    }
    if (ok) {
        print_table(&options, curves);
        ok = write_losses(&options, curves);
    }
    for (size_t i = 0; i < VARIANTS; i++)
        free(curves[i].losses);
    return ok ? 0 : 1;
}
