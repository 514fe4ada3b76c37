/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/ranks: steps of one card and of several that share a step, planned and measured, through
 * the commands of tidemark.
 *
 *     bench/ranks [--ranks R] [--machine M] [--backend B] [--model M] [--steps N] [--dir DIR]
 *                 [--timeout SECONDS] [--rows NAME,NAME...] [--arguments TEXT] [--plan] [--no-loss]
 *                 [--list]
 *
 * For every row it plans for one card and for R, runs both, and prints the quotient of their step
 * times beside what it must be, the bytes of each card as the driver reports them beside the
 * planned ones, host bytes, and predicted beside measured seconds. Then it runs one step of one
 * card with the chunks of the R cards: the losses of the first steps must have the same bits.
 * Figures are of the last of N steps, 2 by default; the first one is observed. A command that fails
 * or takes longer than SECONDS (540 by default) is reported, and the next row goes on. --plan only
 * plans, --no-loss leaves out the comparison of losses, --arguments are more arguments for every
 * plan. The exit status is 1 if something failed or a target was missed. tidemark is found through
 * PATH, and `timeout` too.
 */
#include "bench/commands.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576.0
#define MOST_RANKS 16
#define MOMENTS "--optimizer adamw-bf16-moments"

struct row {
    const char *name, *context, *plan;
    const char *ranks_alone; /* more arguments of the plan for several cards, or "" */
    double quotient;         /* of step times on two cards: at least this; NAN: no target */
};

static const struct row rows[] = {
    {"tiny", "2K", MOMENTS, "", NAN},
    {"32k", "32K", MOMENTS, "", 1.8},
    {"64k", "64K", MOMENTS, "", 1.90},
    {"128k", "128K", MOMENTS, "", 1.94},
    {"256k", "256K", MOMENTS, "", 1.96},
    {"512k", "512K", MOMENTS, " --host-memory 40G", 1.92},
    {"32k-gradients", "32K", "--optimizer none --set dtypes.gradients=bf16", "", NAN},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

struct options {
    unsigned ranks, steps, timeout;
    const char *machine, *backend, *model, *folder, *rows, *arguments;
    bool plan_only, no_loss;
};

/* What is known of one schedule; NAN: not known. */
struct figures {
    bool planned, ran;
    double planned_seconds, planned_bytes, planned_host_bytes, chunk_tokens, tile_tokens;
    double seconds, host_bytes, loss;
    double used_bytes[MOST_RANKS]; /* of each card */
    unsigned cards;
};

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Runs a command within the time limit. Says what failed. */
static json_t *command(const struct options *o, const char *line, const char *what)
{
    char limited[4096];
    int status;
    snprintf(limited, sizeof(limited), "timeout -k 10 %u %s", o->timeout, line);
    fprintf(stderr, "$ %s\n", line);
    json_t *root = tdm_bench_command(limited, &status);
    if (root != NULL && status == 0)
        return root;
    printf("  %s failed: %s\n", what,
           status == 124 || status == 137 ? "it took too long" : "see its message");
    fflush(stdout);
    json_decref(root);
    return NULL;
}

static bool plan(const struct options *o, const char *stem, const char *arguments,
                 struct figures *figures)
{
    char line[3072];
    *figures = (struct figures){.seconds = NAN, .host_bytes = NAN, .loss = NAN};
    for (unsigned i = 0; i < MOST_RANKS; i++)
        figures->used_bytes[i] = NAN;
    snprintf(line, sizeof(line), "tidemark plan %s --machine %s %s %s -o '%s.json' --force --json",
             o->model, o->machine, arguments, o->arguments, stem);
    json_t *root = command(o, line, "plan");
    if (root == NULL)
        return false;
    figures->planned = true;
    figures->planned_seconds = number_of(root, "step_seconds");
    figures->planned_bytes = number_of(root, "peak_bytes");
    figures->planned_host_bytes = number_of(root, "host_peak_bytes");
    const json_t *schedule = json_object_get(root, "schedule");
    figures->chunk_tokens = number_of(schedule, "chunk_tokens");
    figures->tile_tokens = number_of(schedule, "head_tile_tokens");
    json_decref(root);
    return true;
}

static void read_report(const json_t *report, struct figures *figures)
{
    const json_t *program = json_array_get(json_object_get(report, "programs"), 0);
    const json_t *measured = json_object_get(program, "measured");
    const json_t *ranks = json_object_get(program, "ranks");
    figures->seconds = number_of(measured, "step_seconds");
    figures->host_bytes = number_of(measured, "host_peak_bytes");
    figures->used_bytes[0] = number_of(measured, "peak_bytes");
    figures->cards = 1;
    for (size_t i = 0; i < json_array_size(ranks) && i < MOST_RANKS; i++) {
        figures->used_bytes[i] = number_of(json_array_get(ranks, i), "used_bytes");
        figures->cards = (unsigned)i + 1;
    }
}

static bool run(const struct options *o, const char *stem, unsigned steps, struct figures *figures)
{
    char line[3072];
    snprintf(line, sizeof(line),
             "tidemark run '%s.json' --trace '%s.db' --force --backend %s --steps %u --json", stem,
             stem, o->backend, steps);
    json_t *root = command(o, line, "run");
    if (root == NULL)
        return false;
    figures->loss = number_of(json_array_get(json_object_get(root, "runs"), 0), "first_loss");
    json_decref(root);
    snprintf(line, sizeof(line), "tidemark report '%s.db' --step %u --json", stem, steps);
    root = command(o, line, "report");
    if (root == NULL)
        return false;
    read_report(root, figures);
    json_decref(root);
    figures->ran = true;
    return true;
}

static void print_seconds(double seconds)
{
    if (isnan(seconds))
        printf("  %9s", "-");
    else
        printf("  %9.4g", seconds);
}

static void print_gib(double bytes)
{
    if (isnan(bytes))
        printf("  %9s", "-");
    else
        printf("  %9.3f", bytes / GIB);
}

static void print_figures(const char *what, const struct figures *f)
{
    printf("  %-18s", what);
    print_seconds(f->planned_seconds);
    print_seconds(f->seconds);
    if (f->ran)
        printf("  %+8.1f%%", 100 * (f->planned_seconds / f->seconds - 1));
    else
        printf("  %9s", "-");
    print_gib(f->planned_bytes);
    for (unsigned card = 0; card < (f->cards > 0 ? f->cards : 1); card++)
        print_gib(f->used_bytes[card]);
    printf("  host");
    print_gib(f->planned_host_bytes);
    print_gib(f->host_bytes);
    putchar('\n');
    for (unsigned card = 0; card < f->cards; card++)
        if (!isnan(f->used_bytes[card]))
            printf("  %-18s  card %u uses %.1f MiB %s than planned\n", "", card,
                   fabs(f->used_bytes[card] - f->planned_bytes) / MIB,
                   f->used_bytes[card] > f->planned_bytes ? "more" : "less");
}

/* Prints how much faster several are than one, and whether that is enough. Returns whether it is.
 */
static bool compare(const struct options *o, const struct row *row, const struct figures *one,
                    const struct figures *all)
{
    double planned = one->planned_seconds / all->planned_seconds;
    double measured = one->seconds / all->seconds;
    bool due = o->ranks == 2 && !isnan(row->quotient);
    printf("  %-18s  %9.3f", "faster by", planned);
    print_seconds(measured);
    if (due)
        printf("  must %.2f: %s", row->quotient,
               isnan(measured) ? planned >= row->quotient ? "planned so" : "not planned so"
               : measured >= row->quotient ? "met"
                                           : "missed");
    putchar('\n');
    return !due || isnan(measured) || measured >= row->quotient;
}

/* The first loss of one card with the chunks of several has their bits. */
static bool compare_loss(const struct options *o, const struct row *row, const char *stem,
                         const struct figures *all)
{
    struct figures same;
    char arguments[1024], path[1024];
    if (!all->ran || isnan(all->loss)) {
        printf("  %-18s  not compared\n", "loss");
        return all->ran;
    }
    snprintf(path, sizeof(path), "%s-same", stem);
    snprintf(arguments, sizeof(arguments),
             "--context %s %s --set order=layer-major --set chunk=%.0f --set head_tile=%.0f",
             row->context, row->plan, all->chunk_tokens, all->tile_tokens);
    if (!plan(o, path, arguments, &same) || !run(o, path, 1, &same))
        return false;
    bool equal = same.loss >= all->loss && same.loss <= all->loss;
    printf("  %-18s  %.9g on one card with chunks of %.0f tokens, %.9g on %u: %s\n", "loss",
           same.loss, all->chunk_tokens, all->loss, o->ranks,
           equal ? "the same bits" : "OTHER BITS");
    return equal;
}

static bool measure(const struct options *o, const struct row *row)
{
    struct figures one, all;
    char stem[768], path[1024], arguments[1024], what[32];
    snprintf(stem, sizeof(stem), "%s/ranks-%s", o->folder, row->name);
    printf("%s: %s tokens, %s\n", row->name, row->context, row->plan);
    printf("  %-18s  %9s  %9s  %9s  %9s  %9s\n", "", "s plan", "s taken", "error", "GiB plan",
           "GiB used");
    fflush(stdout);
    snprintf(path, sizeof(path), "%s-1", stem);
    snprintf(arguments, sizeof(arguments), "--context %s %s", row->context, row->plan);
    bool good = plan(o, path, arguments, &one);
    if (good && !o->plan_only)
        good = run(o, path, o->steps, &one);
    if (one.planned)
        print_figures("one card", &one);
    fflush(stdout);
    snprintf(path, sizeof(path), "%s-%u", stem, o->ranks);
    snprintf(arguments, sizeof(arguments), "--context %s %s%s --ranks %u", row->context, row->plan,
             row->ranks_alone, o->ranks);
    bool several = plan(o, path, arguments, &all);
    if (several && !o->plan_only)
        several = run(o, path, o->steps, &all);
    if (all.planned) {
        snprintf(what, sizeof(what), "%u cards", o->ranks);
        print_figures(what, &all);
    }
    if (one.planned && all.planned)
        good = compare(o, row, &one, &all) && good;
    if (several && !o->plan_only && !o->no_loss)
        good = compare_loss(o, row, stem, &all) && good;
    fflush(stdout);
    return good && several;
}

/* Is a row's name in the list, or the list empty? Without a list the tiny row is left out. */
static bool chosen(const char *list, const char *name)
{
    size_t length = strlen(name);
    if (list == NULL)
        return strcmp(name, "tiny") != 0;
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

static bool read_number(const char *text, unsigned least, unsigned most, unsigned *number)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > most)
        return false;
    *number = (unsigned)value;
    return true;
}

static bool read_options(int argc, char **argv, struct options *o, bool *list)
{
    const struct {
        const char *name, **value;
    } texts[] = {{"--machine", &o->machine}, {"--backend", &o->backend},
                 {"--model", &o->model},     {"--dir", &o->folder},
                 {"--rows", &o->rows},       {"--arguments", &o->arguments}};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool known = true;
        if (strcmp(argv[i], "--plan") == 0) {
            o->plan_only = true;
            continue;
        }
        if (strcmp(argv[i], "--no-loss") == 0) {
            o->no_loss = true;
            continue;
        }
        if (strcmp(argv[i], "--list") == 0) {
            *list = true;
            continue;
        }
        if (strcmp(argv[i], "--ranks") == 0)
            known = read_number(value, 2, MOST_RANKS, &o->ranks);
        else if (strcmp(argv[i], "--steps") == 0)
            known = read_number(value, 1, 1000, &o->steps);
        else if (strcmp(argv[i], "--timeout") == 0)
            known = read_number(value, 1, 86400, &o->timeout);
        else {
            known = false;
            for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]) && *value != '\0'; k++)
                if (strcmp(argv[i], texts[k].name) == 0) {
                    *texts[k].value = value;
                    known = true;
                }
        }
        if (!known)
            return false;
        i++;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.ranks = 2,
                        .steps = 2,
                        .timeout = 540,
                        .machine = "h200",
                        .backend = "cuda",
                        .model = "qwen2.5-7b",
                        .folder = ".",
                        .arguments = ""};
    bool list = false, any = false;
    int failed = 0;
    if (!read_options(argc, argv, &o, &list)) {
        fprintf(stderr, "usage: bench/ranks [--ranks R] [--machine M] [--backend B] [--model M] "
                        "[--steps N] [--dir DIR] [--timeout SECONDS] [--rows NAME,NAME...] "
                        "[--arguments TEXT] [--plan] [--no-loss] [--list]\n"
                        "NAME is one of --list; tidemark is looked for on PATH\n");
        return 2;
    }
    for (size_t i = 0; i < ROWS && list; i++)
        printf("%-16s%-8s%s%s\n", rows[i].name, rows[i].context, rows[i].plan, rows[i].ranks_alone);
    if (list)
        return 0;
    printf("%s on %u of %s, step %u, backend %s\n", o.model, o.ranks, o.machine, o.steps,
           o.backend);
    for (size_t i = 0; i < ROWS; i++)
        if (chosen(o.rows, rows[i].name)) {
            any = true;
            failed |= !measure(&o, &rows[i]);
        }
    if (!any)
        fprintf(stderr, "bench/ranks: no row is named so; see --list\n");
    return any ? failed : 2;
}
