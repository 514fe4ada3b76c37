/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/selectors: how much loss does sparse attention cost, and how much time does it save? It
 * trains one model from the same weights on the same text, with dense attention, windows and top-k
 * pages, through the commands of tidemark.
 *
 *     bench/selectors TEXT [--model M] [--machine M] [--backend B] [--context N] [--steps N] [--dir
 *         DIR] [--unit N] [--windows N] [--rate R]
 *
 * Windows have one and two units (of 2,048 tokens), budgets one, two and four, chunks two. The last
 * 5% of the text are held out and evaluated after the last step with the same selector, in as many
 * windows of the context as --windows says (4). For each selector it prints the seconds of a step,
 * the speedup over dense, the mean loss over the last tenth of the steps, and the evaluation loss.
 * It writes these lines to DIR/selectors.tsv. It writes losses over the seconds of training to
 * DIR/selectors-curves.tsv, for bench/selectors.gp.
 */
#include "bench/training.h"

#include <errno.h>
#include <string.h>

struct kind {
    const char *selector; /* options of plan, which end with the number of tokens; NULL: none */
    const char *name;
    unsigned units;
};

static const struct kind kinds[] = {
    {NULL, "dense", 0},
    {"--set selector=window --set selector.window=", "window", 1},
    {"--set selector=window --set selector.window=", "window", 2},
    {"--budget ", "top-k", 1},
    {"--budget ", "top-k", 2},
    {"--budget ", "top-k", 4},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))
#define CHUNK_UNITS 2u
#define NAME_BYTES 64u

struct options {
    const char *text, *model, *machine, *backend, *folder;
    unsigned long context, steps, unit, windows;
    double rate;
};

static void name_kind(const struct options *o, size_t i, char name[NAME_BYTES])
{
    unsigned long tokens = kinds[i].units * o->unit;
    if (tokens == 0)
        snprintf(name, NAME_BYTES, "%s", kinds[i].name);
    else if (tokens % 1024 == 0)
        snprintf(name, NAME_BYTES, "%s %luK", kinds[i].name, tokens / 1024);
    else
        snprintf(name, NAME_BYTES, "%s %lu", kinds[i].name, tokens);
}

static bool train(const struct options *o, size_t i, struct tdm_bench_curve *curve)
{
    char name[512], selector[256] = "", plan[512], evaluation[640];
    snprintf(name, sizeof(name), "%s/selectors-%zu", o->folder, i);
    if (kinds[i].selector != NULL)
        snprintf(selector, sizeof(selector), "%s%lu", kinds[i].selector, kinds[i].units * o->unit);
    snprintf(plan, sizeof(plan), "--set order=layer-major --set groups=1 --set chunk=%lu %s",
             CHUNK_UNITS * o->unit, selector);
    snprintf(evaluation, sizeof(evaluation), "--pass evaluate %s", plan);
    struct tdm_bench_training training = {.text = o->text,
                                          .model = o->model,
                                          .machine = o->machine,
                                          .backend = o->backend,
                                          .name = name,
                                          .plan = plan,
                                          .evaluation = evaluation,
                                          .context = o->context,
                                          .steps = o->steps,
                                          .evaluation_windows = o->windows,
                                          .rate = o->rate};
    return tdm_bench_train(&training, curve);
}

static double late_loss(const struct options *o, const struct tdm_bench_curve *curve)
{
    return tdm_bench_mean(curve, o->steps - (o->steps + 9) / 10, o->steps);
}

static void print_row(const struct options *o, const char *name,
                      const struct tdm_bench_curve *curve, double dense_seconds)
{
    printf("%-14s%9.1f ms%8.2fx%14.4f%12.4f\n", name, 1e3 * curve->step_seconds,
           dense_seconds / curve->step_seconds, late_loss(o, curve), curve->validation_loss);
    fflush(stdout);
}

static bool complain(const char *path)
{
    printf("%s: %s\n", path, strerror(errno));
    return false;
}

static bool write_rows(const struct options *o, const struct tdm_bench_curve *curves)
{
    char path[512], name[NAME_BYTES];
    snprintf(path, sizeof(path), "%s/selectors.tsv", o->folder);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return complain(path);
    fprintf(file, "selector\tstep seconds\tlate loss\tvalidation loss\n");
    for (size_t i = 0; i < KINDS; i++) {
        name_kind(o, i, name);
        fprintf(file, "%s\t%.6f\t%.5f\t%.5f\n", name, curves[i].step_seconds,
                late_loss(o, &curves[i]), curves[i].validation_loss);
    }
    return fclose(file) == 0;
}

/* Writes a pair of columns, seconds and loss, for each kind: means over twentieths of the steps. */
static bool write_curves(const struct options *o, const struct tdm_bench_curve *curves)
{
    char path[512], name[NAME_BYTES];
    unsigned long points = o->steps < 20 ? o->steps : 20;
    snprintf(path, sizeof(path), "%s/selectors-curves.tsv", o->folder);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return complain(path);
    for (size_t i = 0; i < KINDS; i++) {
        name_kind(o, i, name);
        fprintf(file, "%sseconds\t%s", i > 0 ? "\t" : "", name);
    }
    for (unsigned long point = 0; point < points; point++) {
        size_t begin = o->steps * point / points, end = o->steps * (point + 1) / points;
        for (size_t i = 0; i < KINDS; i++)
            fprintf(file, "%s%.4f\t%.5f", i > 0 ? "\t" : "\n", (double)end * curves[i].step_seconds,
                    tdm_bench_mean(&curves[i], begin, end));
    }
    fprintf(file, "\n");
    return fclose(file) == 0;
}

static bool read_options(int argc, char **argv, struct options *o)
{
    struct {
        const char *name;
        const char **text;
        unsigned long *number;
    } known[] = {
        {"--model", &o->model, NULL},     {"--machine", &o->machine, NULL},
        {"--backend", &o->backend, NULL}, {"--dir", &o->folder, NULL},
        {"--context", NULL, &o->context}, {"--steps", NULL, &o->steps},
        {"--unit", NULL, &o->unit},       {"--windows", NULL, &o->windows},
    };
    if (argc < 2 || argc % 2 != 0 || strncmp(argv[1], "--", 2) == 0)
        return false;
    o->text = argv[1];
    for (int i = 2; i < argc; i += 2) {
        if (strcmp(argv[i], "--rate") == 0) {
            o->rate = strtod(argv[i + 1], NULL);
            continue;
        }
        size_t k = 0, count = sizeof(known) / sizeof(known[0]);
        while (k < count && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k == count)
            return false;
        if (known[k].text != NULL)
            *known[k].text = argv[i + 1];
        else
            *known[k].number = strtoul(argv[i + 1], NULL, 10);
    }
    return o->steps >= 2 && o->steps < 1000000 && o->unit > 0 && o->unit < 1000000 &&
           o->context >= 8 * o->unit && o->windows > 0;
}

int main(int argc, char **argv)
{
    struct options o = {.model = "byte-100m",
                        .machine = "h200",
                        .backend = "cuda",
                        .folder = ".",
                        .context = 32768,
                        .steps = 200,
                        .unit = 2048,
                        .windows = 4,
                        .rate = 1e-3};
    struct tdm_bench_curve curves[KINDS] = {0};
    char name[NAME_BYTES];
    bool ok = true;
    if (!read_options(argc, argv, &o)) {
        fprintf(
            stderr,
            "usage: bench/selectors TEXT [--model M] [--machine M] [--backend B] [--context N, "
            "of 8 units or more] [--steps N] [--dir DIR] [--unit N] [--windows N] [--rate R]\n");
        return 2;
    }
    printf("%s, %lu tokens, %lu steps, rate %g\n", o.model, o.context, o.steps, o.rate);
    printf("%-14s%12s%9s%14s%12s\n", "selector", "step", "", "loss, late", "held out");
    for (size_t i = 0; i < KINDS && ok; i++) {
        name_kind(&o, i, name);
        curves[i].losses = calloc(o.steps, sizeof(double));
        ok = curves[i].losses != NULL && train(&o, i, &curves[i]);
        if (ok)
            print_row(&o, name, &curves[i], curves[0].step_seconds);
    }
    ok = ok && write_rows(&o, curves) && write_curves(&o, curves);
    for (size_t i = 0; i < KINDS; i++)
        free(curves[i].losses);
    return ok ? 0 : 1;
}
