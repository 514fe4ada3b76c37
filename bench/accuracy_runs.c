/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares predictions with the peaks of other people's runs, as published
 * (tests/data/published_runs.csv, later_runs.csv). For each row, a line of recipes
 * (published_runs_recipes.csv, later_runs_recipes.csv) gives our method for it, which of our
 * figures is the published one, and what had to be assumed; or it gives the reason why no method
 * covers the row. The recipes of later runs also have what came out first, before any mend.
 *
 * Settings that the sources leave out cannot be predicted. So errors are printed without a bound,
 * except for rows whose settings are fully known (their recipe has a bound). One condition holds
 * for all rows: where the source ran out of memory, the prediction does too.
 */
#include "bench/accuracy_runs.h"

#include "bench/accuracy_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 1024u
#define MOST_SOURCES 64u
#define MOST_PAIRS 32u
#define MOST_REASONS 16u
#define NAME_BYTES 24u
#define REASON_BYTES 160u
#define PATH_BYTES 4096u
#define GIB 1073741824.0
#define BF16_BYTES 2u
/* Most sources do not say which length they tried next after the longest that fits. Then this
 * factor times that length must not fit. */
#define BEYOND 1.25
#define LARGE_ERROR 0.05 /* that is counted */

enum outcome { COMPARED, REFUSED, LONGER, FAILED };

struct reason {
    char text[REASON_BYTES];
    size_t rows;
};

struct source {
    char name[NAME_BYTES];
    double errors[MOST_ROWS];
    size_t rows, compared, refused, longer, error_count, reason_count;
    struct reason reasons[MOST_REASONS]; /* why some rows are not covered */
};

struct runs {
    const char *sources; /* where the tables are */
    struct table recipe; /* the current recipe; `recipes` is the file it is read from */
    FILE *recipes;
    struct source *by_source;
    size_t source_count, failures;
};

/* ---- lines of both tables ---- */

/* The recipe's value or, if it has none, the row's. */
static const char *either(const struct table *recipe, const struct table *row, const char *name,
                          const char *row_name)
{
    const char *said = field(recipe, name);
    return said[0] != '\0' ? said : field(row, row_name);
}

static double gpus_of(const struct table *recipe, const struct table *row)
{
    return strtod(either(recipe, row, "gpus", "n_gpus"), NULL);
}

/* ---- a prediction ---- */

/* The path of the tests' own file if there is one, else the name of a shipped one. */
static const char *name_or_path(const struct runs *runs, const char *folder, const char *name,
                                char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/tests/data/%s/%s.json", runs->sources, folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return name;
    fclose(file);
    return path;
}

static size_t split_pairs(const char *settings, char *text, size_t text_bytes, const char **pairs)
{
    size_t count = 0;
    snprintf(text, text_bytes, "%s", settings);
    for (char *word = strtok(text, " "); word != NULL && count < MOST_PAIRS;
         word = strtok(NULL, " "))
        pairs[count++] = word;
    return count;
}

/* What NVML's first kind of memory info counts as used beside what is used: the memory that the
 * driver sets aside (nvml.h nvmlMemory_t). It is the card's memory in nvidia-smi's table less what
 * CUDA reports. */
static uint64_t set_aside_bytes(const struct tdm_machine *machine)
{
    static const struct {
        const char *machine;
        uint64_t mib; /* "81559MiB" in nvidia-smi's table */
    } cards[] = {{"h100", 81559}, {"h200", 143771}};
    const uint64_t device = machine->topology.places[TDM_DEVICE].capacity_bytes;
    for (size_t i = 0; i < sizeof(cards) / sizeof(cards[0]); i++)
        if (strcmp(cards[i].machine, machine->name) == 0)
            return (cards[i].mib << 20) - device;
    return 0;
}

/* The states of a first stage's embedding in Megatron-LM: vectors of tokens, which the
 * tensor-parallel ranks divide, and of positions. All weights have the same number of bytes of
 * states for each of weights, so that their share is that of the weights. */
static uint64_t embedding_states(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings,
                                 const struct tdm_torch_step *step)
{
    const uint64_t states = step->categories[TDM_METHOD_WEIGHTS] +
                            step->categories[TDM_METHOD_GRADIENTS] +
                            step->categories[TDM_METHOD_OPTIMIZER];
    const uint64_t vectors =
        model->vocabulary / settings->megatron.tensor +
        (settings->megatron.positions == TDM_POSITIONS_LEARNED ? model->max_context : 0);
    const double share = (double)(vectors * model->hidden * BF16_BYTES) /
                         (double)step->categories[TDM_METHOD_WEIGHTS];
    return (uint64_t)((double)states * share);
}

/* `longer` multiplies the tokens of the row. *beside_bytes is what some figures have beside those
 * of the prediction: what the model without its head returns, or the driver sets aside. It is
 * negative where a figure leaves out what the prediction has: states of the embedding. */
static enum tdm_status predict(const struct runs *runs, const struct table *row, double longer,
                               struct tdm_method_prediction *p, int64_t *beside_bytes,
                               struct tdm_error *err)
{
    const struct table *recipe = &runs->recipe;
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    char text[LINE_BYTES], path[PATH_BYTES];
    const char *pairs[MOST_PAIRS];
    size_t count = split_pairs(field(recipe, "settings"), text, sizeof(text), pairs);
    double tokens = strtod(either(recipe, row, "context", "context"), NULL);
    settings.torch.tokens = (uint64_t)(tokens * longer + 0.5);
    settings.torch.batch = strtoull(either(recipe, row, "batch", "batch"), NULL, 10);
    settings.torch.ranks = (uint64_t)gpus_of(recipe, row);
    enum tdm_status status = tdm_method_find(field(recipe, "method"), &method, err);
    if (status == TDM_OK)
        status = tdm_method_apply(method, pairs, count, &settings, &choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(name_or_path(runs, "configs", field(recipe, "model"), path), &model,
                                err);
    if (status == TDM_OK)
        status = tdm_machine_load(name_or_path(runs, "machines", field(recipe, "machine"), path),
                                  &machine, err);
    if (status == TDM_OK)
        status = tdm_method_check(model, &settings, err);
    if (status == TDM_OK)
        status = tdm_method_predict(model, machine, &settings, 0, p, err);
    if (status == TDM_OK && strcmp(field(recipe, "figure"), "kept") == 0)
        *beside_bytes =
            (int64_t)(settings.torch.tokens * settings.torch.batch * model->hidden * BF16_BYTES);
    if (status == TDM_OK && strcmp(field(recipe, "figure"), "nvml") == 0)
        *beside_bytes = (int64_t)set_aside_bytes(machine);
    if (status == TDM_OK && strcmp(field(recipe, "figure"), "layer-states") == 0)
        *beside_bytes = -(int64_t)embedding_states(model, &settings, &p->steps[p->count - 1].torch);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return status;
}

/* The figure of a step that the source reports. */
static uint64_t figure_of(const struct tdm_method_step *step, const char *figure)
{
    const struct tdm_torch_step *torch = &step->torch;
    uint64_t all = 0, states = torch->categories[TDM_METHOD_WEIGHTS] +
                               torch->categories[TDM_METHOD_GRADIENTS] +
                               torch->categories[TDM_METHOD_OPTIMIZER];
    for (unsigned i = 0; i < TDM_METHOD_CATEGORIES; i++)
        all += torch->categories[i];
    if (strcmp(figure, "reserved") == 0)
        return torch->peak.reserved;
    if (strcmp(figure, "used") == 0 || strcmp(figure, "nvml") == 0)
        return step->used_bytes;
    if (strcmp(figure, "kept") == 0) /* by the forward for the backward */
        return torch->end_bytes[TDM_PHASE_FORWARD] - torch->before_bytes;
    if (strcmp(figure, "layer-states") == 0)
        return states;
    if (strcmp(figure, "residuals") == 0) /* at the peak; also what the embedding saves */
        return torch->categories[TDM_METHOD_RESIDUALS];
    if (strcmp(figure, "activations") == 0)
        return all - states;
    return torch->peak.allocated;
}

static uint64_t most_of(const struct tdm_method_prediction *p, const char *figure)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint64_t bytes = figure_of(&p->steps[i], figure);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Sets *bytes to 0 if the run is predicted to run out of memory. *host_bytes: of a computer. */
static enum tdm_status predict_bytes(const struct runs *runs, const struct table *row,
                                     double longer, uint64_t *bytes, uint64_t *host_bytes,
                                     struct tdm_error *err)
{
    const struct table *recipe = &runs->recipe;
    const char *figure = field(recipe, "figure");
    struct tdm_method_prediction p;
    int64_t beside_bytes = 0;
    *host_bytes = 0;
    if (strcmp(field(recipe, "method"), "component") == 0) {
        char text[LINE_BYTES];
        const char *pairs[MOST_PAIRS];
        size_t count = split_pairs(field(recipe, "settings"), text, sizeof(text), pairs);
        return predict_component(field(recipe, "model"), pairs, count, bytes, err);
    }
    enum tdm_status status = predict(runs, row, longer, &p, &beside_bytes, err);
    if (status == TDM_OK) {
        *bytes = p.runs ? (uint64_t)((int64_t)most_of(&p, figure) + beside_bytes) : 0;
        *host_bytes = p.host_peak_bytes;
    }
    return status;
}

/* ---- a row ---- */

/* Bytes of the unit; 0 if it is unknown. */
static double unit_bytes(const char *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"GiB", GIB}, {"GB", 1e9}, {"1000 MiB", 1000 * 1048576.0}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(units[i].name, unit) == 0)
            return units[i].bytes;
    return 0;
}

static struct source *source_of(struct runs *runs, const struct table *row)
{
    char name[NAME_BYTES];
    const char *full = field(row, "source");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(full, " "), full);
    size_t i = 0;
    while (i < runs->source_count && strcmp(runs->by_source[i].name, name) != 0)
        i++;
    if (i == MOST_SOURCES)
        return NULL;
    if (i == runs->source_count) {
        memcpy(runs->by_source[i].name, name, sizeof(name));
        runs->source_count++;
    }
    return &runs->by_source[i];
}

/* How much longer the run is that did not fit: the recipe's bound is its tokens, if it has one. */
static double beyond(const struct table *recipe, const struct table *row)
{
    const double tokens = strtod(field(recipe, "bound"), NULL);
    return tokens > 0 ? tokens / strtod(either(recipe, row, "context", "context"), NULL) : BEYOND;
}

/* A frontier is the longest run that fits: more of it must run out of memory, or not run at all. */
static enum outcome compare_frontier(const struct runs *runs, const struct table *row,
                                     uint64_t bytes)
{
    struct tdm_error err = {.message = ""};
    uint64_t more = 0, host_bytes;
    enum tdm_status status =
        predict_bytes(runs, row, beyond(&runs->recipe, row), &more, &host_bytes, &err);
    if (status == TDM_OK && more > 0) {
        printf(" %s did not fit: predicted to fit, with %.2f TB of host memory\n",
               field(&runs->recipe, "bound")[0] != '\0' ? field(&runs->recipe, "bound") : "more",
               (double)host_bytes / 1e12);
        return LONGER;
    }
    printf(" is the longest: predicted to %s, more to %s%s\n",
           bytes > 0 ? "fit" : "run out of memory",
           status == TDM_OK ? "run out of memory" : "be refused: ", err.message);
    return bytes > 0 ? COMPARED : REFUSED;
}

static enum outcome compare_fit(const struct runs *runs, const struct table *row,
                                const char *figure, uint64_t bytes)
{
    if (strcmp(figure, "frontier") == 0)
        return compare_frontier(runs, row, bytes);
    printf(" ran out of memory: predicted to %s\n", bytes == 0 ? "run out of memory" : "fit");
    return bytes == 0 ? COMPARED : FAILED;
}

static enum outcome compare_bytes(const struct runs *runs, const struct table *row,
                                  const char *figure, uint64_t bytes, struct source *source)
{
    const struct table *recipe = &runs->recipe;
    double unit = unit_bytes(field(recipe, "unit")), bound = strtod(field(recipe, "bound"), NULL);
    double measured = strtod(field(row, "measured_GB"), NULL);
    double times = strcmp(field(recipe, "of_all"), "yes") == 0 ? gpus_of(recipe, row) : 1;
    if (bytes == 0) {
        printf(" %9.3f %s, predicted to run out of memory\n", measured, field(recipe, "unit"));
        return REFUSED;
    }
    double predicted = (double)bytes / unit * times, error = predicted / measured - 1;
    bool within = bound == 0 || fabs(error) <= bound;
    printf(" %9.3f %9.3f %+7.2f%% %s %s%s\n", predicted, measured, 100 * error,
           field(recipe, "unit"), figure, within ? "" : ": too much");
    source->errors[source->error_count++] = fabs(error);
    return within ? COMPARED : FAILED;
}

/* What came out before any mend, if the recipe has it. */
static void print_first(const struct table *recipe)
{
    const char *first = field(recipe, "first");
    if (first[0] != '\0')
        printf("%30s first: %s\n", "", first);
}

static enum outcome compare(const struct runs *runs, const struct table *row, struct source *source)
{
    const struct table *recipe = &runs->recipe;
    struct tdm_error err = {.message = ""};
    const char *figure = field(recipe, "figure");
    uint64_t bytes = 0, host_bytes;
    bool fit = strcmp(figure, "oom") == 0 || strcmp(figure, "frontier") == 0;
    if (!fit && unit_bytes(field(recipe, "unit")) == 0)
        tdm_fail(&err, TDM_INPUT, "unit \"%s\" is not known", field(recipe, "unit"));
    else if (predict_bytes(runs, row, 1, &bytes, &host_bytes, &err) == TDM_OK)
        return fit ? compare_fit(runs, row, figure, bytes)
                   : compare_bytes(runs, row, figure, bytes, source);
    printf(" failed: %s\n", err.message);
    return FAILED;
}

static void note_reason(struct source *source, const char *text)
{
    size_t i = 0;
    while (i < source->reason_count && strcmp(source->reasons[i].text, text) != 0)
        i++;
    if (i == MOST_REASONS)
        return;
    if (i == source->reason_count) {
        snprintf(source->reasons[i].text, REASON_BYTES, "%s", text);
        source->reason_count++;
    }
    source->reasons[i].rows++;
}

static void run_row(struct runs *runs, const struct table *row)
{
    const struct table *recipe = &runs->recipe;
    struct source *source = source_of(runs, row);
    if (source == NULL || source->rows == MOST_ROWS) {
        runs->failures++;
        return;
    }
    source->rows++;
    if (field(recipe, "method")[0] == '\0') {
        note_reason(source, field(recipe, "unsaid"));
        return;
    }
    printf("%3s %-21.21s %-15s %-21.21s %7s", field(recipe, "row"), source->name,
           field(recipe, "method"), field(recipe, "model"),
           either(recipe, row, "context", "context"));
    enum outcome outcome = compare(runs, row, source);
    print_first(recipe);
    source->compared += outcome == COMPARED;
    source->refused += outcome == REFUSED;
    source->longer += outcome == LONGER;
    runs->failures += outcome == FAILED;
}

/* Is the recipe the one of row `number`? */
static bool belongs(const struct runs *runs, const struct table *row, size_t number)
{
    return strtoull(field(&runs->recipe, "row"), NULL, 10) == number &&
           strcmp(field(&runs->recipe, "measured"), field(row, "measured_GB")) == 0;
}

static bool run_rows(struct runs *runs, FILE *file)
{
    struct table row = {.columns = 0};
    bool broken = false;
    for (size_t number = 1; next_row(file, &row, &broken); number++) {
        if (!next_row(runs->recipes, &runs->recipe, &broken) || !belongs(runs, &row, number)) {
            fprintf(stderr, "accuracy: published run %zu has no recipe of its own\n", number);
            return false;
        }
        run_row(runs, &row);
    }
    return !broken;
}

/* ---- by source ---- */

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted errors. */
static double median(const double *errors, size_t count)
{
    return (errors[count / 2] + errors[(count - 1) / 2]) / 2;
}

static void print_source(struct source *source)
{
    size_t count = source->error_count;
    printf("%-23s %4zu of %3zu", source->name, source->compared + source->refused + source->longer,
           source->rows);
    qsort(source->errors, count, sizeof(source->errors[0]), rising);
    if (count > 0)
        printf("  median %6.2f%%, worst %6.2f%%", 100 * median(source->errors, count),
               100 * source->errors[count - 1]);
    if (source->refused > 0)
        printf(", %zu wrongly refused", source->refused);
    if (source->longer > 0)
        printf(", %zu longest contexts too long", source->longer);
    putchar('\n');
    for (size_t i = 0; i < source->reason_count; i++)
        printf("%26zu not: %s\n", source->reasons[i].rows, source->reasons[i].text);
}

/* All sources together. */
static void print_errors(const struct runs *runs)
{
    static double errors[MOST_SOURCES * MOST_ROWS];
    size_t count = 0, over = 0, refused = 0, longer = 0;
    for (size_t i = 0; i < runs->source_count; i++) {
        const struct source *source = &runs->by_source[i];
        refused += source->refused;
        longer += source->longer;
        for (size_t e = 0; e < source->error_count; e++) {
            errors[count++] = source->errors[e];
            over += source->errors[e] > LARGE_ERROR;
        }
    }
    qsort(errors, count, sizeof(errors[0]), rising);
    if (count > 0)
        printf("figures of %zu rows: median %.2f%%, %zu over %g%%; %zu longest contexts too long; "
               "%zu wrongly refused\n",
               count, 100 * median(errors, count), over, 100 * LARGE_ERROR, longer, refused);
}

static void print_sources(struct runs *runs, const char *title)
{
    size_t rows = 0, covered = 0;
    for (size_t i = 0; i < runs->source_count; i++) {
        rows += runs->by_source[i].rows;
        covered +=
            runs->by_source[i].compared + runs->by_source[i].refused + runs->by_source[i].longer;
    }
    printf("\n%s: %zu of %zu rows covered\n", title, covered, rows);
    print_errors(runs);
    for (size_t i = 0; i < runs->source_count; i++)
        print_source(&runs->by_source[i]);
    if (runs->failures > 0)
        printf("%zu of the %s failed\n", runs->failures, title);
}

static FILE *open_table(const char *sources, const char *name)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/tests/data/%s", sources, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fprintf(stderr, "accuracy: %s cannot be read\n", path);
    return file;
}

/* Compares the rows of NAME.csv by NAME_recipes.csv. */
static bool check_runs(const char *sources, const char *name, const char *title)
{
    static struct source by_source[MOST_SOURCES];
    char rows[NAME_BYTES * 2], recipes[NAME_BYTES * 2];
    snprintf(rows, sizeof(rows), "%s.csv", name);
    snprintf(recipes, sizeof(recipes), "%s_recipes.csv", name);
    memset(by_source, 0, sizeof(by_source));
    struct runs runs = {.sources = sources, .by_source = by_source};
    FILE *file = open_table(sources, rows);
    bool done = false;
    runs.recipes = open_table(sources, recipes);
    if (file != NULL && runs.recipes != NULL) {
        printf("\n%s\n%3s %-21s %-15s %-21s %7s %9s %9s %8s\n", title, "row", "source", "method",
               "model", "context", "predicted", "measured", "error");
        done = run_rows(&runs, file);
        print_sources(&runs, title);
    }
    if (runs.recipes != NULL)
        fclose(runs.recipes);
    if (file != NULL)
        fclose(file);
    return done && runs.failures == 0;
}

bool check_published_runs(const char *sources)
{
    bool used = check_runs(sources, "published_runs", "published runs");
    return check_runs(sources, "later_runs", "published runs not used before") && used;
}
