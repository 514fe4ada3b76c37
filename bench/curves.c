/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/curves: does the loss fall in the same way whatever the schedule, and however AdamW stores
 * its state? It trains one model from the same weights on the same text with several schedules,
 * through the commands of tidemark.
 *
 *     bench/curves TEXT [--model M] [--machine M] [--backend B] [--context N] [--steps N] [--dir
 *         DIR] [--groups N,N,...]
 *
 * For each schedule it prints the mean loss of each tenth of the steps, the largest difference of
 * these means from the first schedule's, and the seconds of a step. It writes DIR/curves.tsv, with
 * a column of losses for each schedule, for a plot. tidemark is found through PATH.
 */
#include "bench/training.h"

#include <errno.h>
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
#define UNEVEN 1u /* its groups come from --groups */
#define PARALLEL 3u

struct options {
    const char *text, *model, *machine, *backend, *folder, *groups;
    unsigned long context, steps;
};

/* Trains with a variant. */
static bool train(const struct options *options, size_t i, struct tdm_bench_curve *curve)
{
    char name[512], plan[512];
    unsigned long chunk = i == PARALLEL ? options->context : (options->context + 7) / 8;
    snprintf(name, sizeof(name), "%s/curve-%zu", options->folder, i);
    snprintf(plan, sizeof(plan), "--optimizer %s %s%s%s --set chunk=%lu", variants[i].optimizer,
             variants[i].plan, i == UNEVEN ? " --set groups=" : "",
             i == UNEVEN ? options->groups : "", chunk);
    struct tdm_bench_training training = {.text = options->text,
                                          .model = options->model,
                                          .machine = options->machine,
                                          .backend = options->backend,
                                          .name = name,
                                          .plan = plan,
                                          .context = options->context,
                                          .steps = options->steps,
                                          .rate = 6e-4};
    return tdm_bench_train(&training, curve);
}

static double mean(const struct options *options, const struct tdm_bench_curve *curve,
                   unsigned tenth)
{
    return tdm_bench_mean(curve, options->steps * tenth / TENTHS,
                          options->steps * (tenth + 1) / TENTHS);
}

static void print_table(const struct options *options, const struct tdm_bench_curve *curves)
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

static bool write_losses(const struct options *options, const struct tdm_bench_curve *curves)
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
    struct tdm_bench_curve curves[VARIANTS] = {0};
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
