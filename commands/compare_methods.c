/* SPDX-License-Identifier: Apache-2.0 */
/* Predicts every method at every context, and finds the longest context of each. */
#include "commands/compare_methods.h"

#include "base/parallel.h"
#include "base/units.h"
#include "methods/longest.h"
#include "planner/set_keys.h"
#include "planner/solver.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GPUS_OF_A_NODE 65536u

struct comparing {
    const struct tdm_compare_request *request;
    struct tdm_methods_comparison *all;
};

static void say(const struct comparing *c, const struct tdm_compared *row, uint64_t context)
{
    if (c->request->going != NULL)
        c->request->going(c->request->self, row->method->name, context);
}

static void refuse(struct tdm_compared *row, const struct tdm_error *why)
{
    snprintf(row->refused, sizeof(row->refused), "%s%s%s", why->message,
             why->hint[0] == '\0' ? "" : "; ", why->hint);
}

double tdm_compared_rate(const struct tdm_compared_point *point)
{
    return point->cost.sequences * (double)point->context / point->step_seconds;
}

/* ---- one step ---- */

static void note_step(const struct tdm_method_prediction *p, struct tdm_compared_point *point)
{
    const struct tdm_method_step *step = &p->steps[p->highest];
    for (unsigned from = 0; from < TDM_METHOD_CATEGORIES; from++)
        for (unsigned to = 0; to < TDM_CATEGORIES; to++)
            if (strcmp(tdm_method_category_name((enum tdm_method_category)from),
                       tdm_category_name((enum tdm_category)to)) == 0)
                point->categories[to] = step->torch.categories[from];
    point->categories[TDM_RUNTIME] = tdm_torch_runtime_bytes(&p->runtime);
    point->categories[TDM_ALLOCATOR] = tdm_method_cached_bytes(step);
    point->used_bytes = step->used_bytes;
    point->enough_bytes = p->gives_back ? p->kept_bytes : step->used_bytes;
    point->host_bytes = step->torch.host_bytes;
    point->fits = p->fits;
}

static void note_point(const struct comparing *c, const struct tdm_compared *row, uint64_t context,
                       const struct tdm_method_prediction *prediction,
                       struct tdm_compared_point *point)
{
    struct tdm_method_settings settings = row->settings;
    settings.torch.tokens = context;
    tdm_method_check(c->all->model, &settings,
                     NULL); /* fills in the values derived from the token count */
    *point = (struct tdm_compared_point){.context = context};
    note_step(prediction, point);
    row->method->cost(c->all->model, &settings, &point->cost);
    if (point->cost.sequences <= 0)
        point->cost.sequences =
            (double)(c->request->batch * (row->method->divides_sequence ? 1 : c->request->gpus));
    point->step_seconds = tdm_method_seconds(&point->cost, c->all->model, c->all->machine);
}

/* TDM_USAGE: the method does not support this context. */
static enum tdm_status predict(const struct comparing *c, const struct tdm_compared *row,
                               uint64_t context, struct tdm_compared_point *point,
                               struct tdm_error *err)
{
    struct tdm_method_settings settings = row->settings;
    struct tdm_method_prediction prediction;
    settings.torch.tokens = context;
    enum tdm_status status = tdm_method_check(c->all->model, &settings, err);
    if (status == TDM_OK)
        status = tdm_method_try(c->all->model, c->all->machine, &settings, c->request->margin, 0,
                                &prediction, err);
    if (status == TDM_OK)
        note_point(c, row, context, &prediction, point);
    return status;
}

/* ---- the longest context ---- */

/* Searches from the known results of the requested contexts: the longest that fits, and the
 * shortest longer one that does not. */
static enum tdm_status find_longest(const struct comparing *c, struct tdm_compared *row,
                                    uint64_t grain, struct tdm_error *err)
{
    struct tdm_known_context fits = {.tokens = 0}, fails = {.tokens = 0};
    struct tdm_method_prediction prediction;
    uint64_t tokens, work = 0;
    for (size_t i = 0; i < c->request->context_count; i++) {
        const struct tdm_compared_point *point = &row->points[i];
        if (point->fits && point->context > fits.tokens) {
            fits = (struct tdm_known_context){.tokens = point->context,
                                              .used_bytes = point->used_bytes,
                                              .cached_bytes = point->categories[TDM_ALLOCATOR]};
            row->longest = *point;
        }
    }
    for (size_t i = c->request->context_count; i-- > 0;)
        if (row->points[i].context > fits.tokens)
            fails.tokens = row->points[i].context;
    say(c, row, 0);
    enum tdm_status status =
        tdm_method_longest(c->all->model, c->all->machine, &row->settings, c->request->margin,
                           grain, &fits, &fails, &tokens, &prediction, &work, err);
    if (status == TDM_OK && tokens > fits.tokens)
        note_point(c, row, tokens, &prediction, &row->longest);
    return status;
}

/* ---- a method ---- */

static enum tdm_status compare_method(const struct comparing *c, struct tdm_compared *row,
                                      struct tdm_error *err)
{
    const struct tdm_compare_request *r = c->request;
    struct tdm_error why = {0};
    uint64_t grain = tdm_context_grain(c->all->model, &row->settings, r->contexts[0], &why);
    if (grain == 0) {
        refuse(row, &why);
        return TDM_OK;
    }
    for (size_t i = 0; i < r->context_count; i++) {
        uint64_t context = r->contexts[i];
        say(c, row, context);
        enum tdm_status status = predict(c, row, context, &row->points[i], err);
        if (status == TDM_USAGE) {
            context = (context + grain - 1) / grain * grain;
            status = predict(c, row, context, &row->points[i], err);
        }
        if (status != TDM_OK)
            return status;
    }
    return find_longest(c, row, grain, err);
}

/* ---- tidemark's own schedule ---- */

/* A schedule that does not fit is not an error; the point keeps `fits` false. */
static enum tdm_status find_own(const struct tdm_own_words *words, bool longest,
                                struct tdm_compared_point *point, struct tdm_error *err)
{
    struct tdm_own_schedule *own = NULL;
    struct tdm_own_step step;
    enum tdm_status status = tdm_own_find(words, longest, &own, err);
    if (status == TDM_OK) {
        tdm_own_step(own, &step);
        *point = (struct tdm_compared_point){.context = step.context,
                                             .fits = true,
                                             .used_bytes = step.used_bytes,
                                             .enough_bytes = step.used_bytes,
                                             .host_bytes = step.host_bytes / words->ranks,
                                             .cost = {.product_flops = step.product_flops,
                                                      .attention_flops = step.attention_flops,
                                                      .host_bytes = step.moved_bytes,
                                                      .sent.node = step.sent_bytes,
                                                      .sequences = (double)step.sequences},
                                             .step_seconds = step.step_seconds};
        memcpy(point->categories, step.categories, sizeof(point->categories));
    }
    tdm_own_free(own);
    return status == TDM_INFEASIBLE ? TDM_OK : status;
}

static struct tdm_own_words words_of(const struct comparing *c, const struct tdm_compared *row)
{
    const struct tdm_compare_request *r = c->request;
    struct tdm_own_words words = tdm_own_words(&row->settings, &row->choices, r->model, r->machine,
                                               c->all->machine, r->margin);
    words.brief = true;
    return words;
}

static enum tdm_status compare_own_at(const struct comparing *c, struct tdm_compared *row, size_t i,
                                      struct tdm_error *err)
{
    struct tdm_own_words words = words_of(c, row);
    row->points[i].context = words.context = c->request->contexts[i];
    say(c, row, words.context);
    return words.context <= TDM_LONGEST_CONTEXT ? find_own(&words, false, &row->points[i], err)
                                                : TDM_OK;
}

/* After all contexts. */
static enum tdm_status find_own_longest(const struct comparing *c, struct tdm_compared *row,
                                        struct tdm_error *err)
{
    struct tdm_own_words words = words_of(c, row);
    say(c, row, 0);
    words.context = 0;
    for (size_t i = 0; i < c->request->context_count; i++)
        if (row->points[i].fits)
            words.context = c->request->contexts[i];
    return find_own(&words, true, &row->longest, err);
}

uint64_t tdm_compared_own_gpus(const struct tdm_compare_request *r,
                               const struct tdm_methods_comparison *c)
{
    return r->gpus < c->links.gpus_per_node ? r->gpus : c->links.gpus_per_node;
}

/* ---- settings ---- */

/* A key of some methods. In compare it sets the node size for all methods. */
#define NODE_KEY "gpus_per_node"

static void base_settings(const struct comparing *c, const struct tdm_method *method,
                          struct tdm_method_settings *settings)
{
    const struct tdm_compare_request *r = c->request;
    *settings = (struct tdm_method_settings){0};
    settings->torch.tokens = r->contexts[0];
    settings->torch.batch = r->batch;
    settings->torch.ranks = tdm_method_is_own(method) ? tdm_compared_own_gpus(r, c->all) : r->gpus;
    settings->torch.context.gpus_per_node = c->all->links.gpus_per_node;
}

/* Is this setting alone valid for the method? */
static bool takes(const struct comparing *c, const struct tdm_method *method, const char *pair,
                  struct tdm_error *err)
{
    const struct tdm_compare_request *r = c->request;
    struct tdm_method_settings settings;
    struct tdm_method_choices choices;
    base_settings(c, method, &settings);
    if (tdm_method_apply(method, &pair, 1, &settings, &choices, err) != TDM_OK)
        return false;
    if (!tdm_method_is_own(method))
        return true;
    const struct tdm_own_words words =
        tdm_own_words(&settings, &choices, r->model, r->machine, c->all->machine, r->margin);
    return tdm_own_check(&words, err) == TDM_OK;
}

/* The key and the value of a pair, in the method's terms. NULL: no such key. */
static const struct tdm_method_key *read_pair(const struct tdm_method *method, const char *pair,
                                              const char **value)
{
    size_t k;
    return tdm_method_read_pair(method, pair, &k, value) ? tdm_method_key(method, k) : NULL;
}

/* Does the method have the key? If so, the value is wrong. */
static bool has_key(const struct tdm_method *method, const char *pair)
{
    const char *value;
    return read_pair(method, pair, &value) != NULL ||
           (tdm_method_is_own(method) && tdm_set_keys_know(pair));
}

static void add_text(struct tdm_compared *row, const char *key, const char *value)
{
    if (row->text_count < TDM_METHOD_MOST_KEYS)
        snprintf(row->texts[row->text_count++], TDM_COMPARED_TEXT, "%s=%s", key, value);
}

static bool said(const struct tdm_compared *row, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < row->text_count; i++)
        if (strncmp(row->texts[i], key, length) == 0 && row->texts[i][length] == '=')
            return true;
    return false;
}

/* The result for one --set pair: whether any method takes it, else the error of a method that has
 * its key. */
struct pair_fate {
    bool taken;
    struct tdm_error why;
};

/* Applies the given settings that the method takes, and the comparison defaults for the rest. */
static enum tdm_status settle(const struct comparing *c, struct tdm_compared *row,
                              struct pair_fate *fates, struct tdm_error *err)
{
    const struct tdm_compare_request *r = c->request;
    const struct tdm_method_key *key;
    const char *pairs[TDM_METHOD_MOST_KEYS], *value;
    char nodes[24];
    for (size_t i = 0; i < r->set.count; i++) {
        struct tdm_error why = {0};
        if (strlen(r->set.pairs[i]) >= TDM_COMPARED_TEXT)
            return tdm_fail(err, TDM_USAGE, "--set: \"%.40s...\" is too long", r->set.pairs[i]);
        if (!takes(c, row->method, r->set.pairs[i], &why)) {
            if (fates[i].why.status == TDM_OK &&
                (r->name_count == 1 || has_key(row->method, r->set.pairs[i])))
                fates[i].why = why;
            continue;
        }
        fates[i].taken = true;
        key = read_pair(row->method, r->set.pairs[i], &value);
        if (key != NULL)
            add_text(row, key->name, value);
        else if (row->text_count < TDM_METHOD_MOST_KEYS) /* a key of plan's --set */
            snprintf(row->texts[row->text_count++], TDM_COMPARED_TEXT, "%s", r->set.pairs[i]);
    }
    for (size_t k = 0; (key = tdm_method_key(row->method, k)) != NULL; k++)
        if (key->compared != NULL && !said(row, key->name))
            add_text(row, key->name, key->compared);
    key = read_pair(row->method, NODE_KEY "=1", &value);
    snprintf(nodes, sizeof(nodes), "%" PRIu64, c->all->links.gpus_per_node);
    if (key != NULL && !said(row, NODE_KEY) && strcmp(key->assumed, nodes) != 0)
        add_text(row, NODE_KEY, nodes);
    for (size_t i = 0; i < row->text_count; i++)
        pairs[i] = row->texts[i];
    base_settings(c, row->method, &row->settings);
    return tdm_method_apply(row->method, pairs, row->text_count, &row->settings, &row->choices,
                            err);
}

/* GPUs per node: the given value, else the machine's. */
static enum tdm_status read_nodes(const struct comparing *c, struct pair_fate *fates,
                                  struct tdm_error *err)
{
    struct tdm_methods_comparison *all = c->all;
    const size_t length = strlen(NODE_KEY);
    enum tdm_status status = TDM_OK;
    all->links = tdm_links_of(all->machine);
    all->nodes_are_assumed = all->machine->gpus_per_node == 0;
    for (size_t i = 0; i < c->request->set.count && status == TDM_OK; i++) {
        const char *pair = c->request->set.pairs[i];
        if (strncmp(pair, NODE_KEY, length) != 0 || pair[length] != '=')
            continue;
        status = tdm_parse_count(pair + length + 1, "--set " NODE_KEY, 1, MOST_GPUS_OF_A_NODE,
                                 &all->links.gpus_per_node, err);
        all->nodes_are_assumed = false;
        fates[i].taken = true;
    }
    return status;
}

/* ---- all ---- */

static bool is_wanted(const struct tdm_compare_request *r, const struct tdm_method *method)
{
    const struct tdm_method *named;
    for (size_t i = 0; i < r->name_count; i++)
        if (tdm_method_find(r->names[i], &named, NULL) == TDM_OK && named == method)
            return true;
    return r->name_count == 0 && (tdm_method_is_own(method) ||
                                  (method->least_gpus <= r->gpus && r->gpus <= method->most_gpus));
}

/* Refuses a pair that no method takes. Uses the error of a method that has its key, if there is
 * one. */
static enum tdm_status refuse_pair(const char *pair, const struct pair_fate *fate,
                                   struct tdm_error *err)
{
    if (fate->why.status != TDM_OK) {
        *err = fate->why;
        return TDM_USAGE;
    }
    size_t key = strcspn(pair, "=:");
    if (strncmp(pair, "--", 2) == 0)
        tdm_fail(err, TDM_USAGE, "--set: no method here has a setting \"%.*s\"",
                 (int)strcspn(pair, "=: "), pair);
    else if (key == 0 || pair[key] == '\0')
        tdm_fail(err, TDM_USAGE, "--set: \"%.64s\" is not KEY=VALUE", pair);
    else
        tdm_fail(err, TDM_USAGE, "--set: no method here has a key \"%.*s\"", (int)key, pair);
    return tdm_hint(err, "tidemark methods NAME lists the keys of a method");
}

static enum tdm_status add_rows(const struct comparing *c, struct tdm_error *err)
{
    const struct tdm_compare_request *r = c->request;
    struct tdm_methods_comparison *all = c->all;
    const struct tdm_method *method;
    struct pair_fate *fates = NULL;
    size_t most = 0;
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < r->name_count && status == TDM_OK; i++)
        status = tdm_method_find(r->names[i], &method, err);
    if (status != TDM_OK)
        return status;
    for (method = tdm_methods(); method->name != NULL; method++)
        most++;
    all->rows = calloc(most, sizeof(struct tdm_compared *));
    fates = calloc(TDM_METHOD_MOST_KEYS, sizeof(*fates));
    if (all->rows == NULL || fates == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu methods", most);
        goto free_fates;
    }
    status = read_nodes(c, fates, err);
    for (method = tdm_methods(); method->name != NULL && status == TDM_OK; method++) {
        if (!is_wanted(r, method))
            continue;
        struct tdm_compared *row = calloc(1, sizeof(*row));
        if (row == NULL) {
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for a method");
            break;
        }
        all->rows[all->count++] = row;
        row->method = method;
        status = settle(c, row, fates, err);
    }
    for (size_t i = 0; i < r->set.count && status == TDM_OK; i++)
        if (!fates[i].taken)
            status = refuse_pair(r->set.pairs[i], &fates[i], err);
free_fates:
    free(fates);
    return status;
}

static int by_reach(const void *a, const void *b)
{
    const struct tdm_compared *x = *(struct tdm_compared *const *)a,
                              *y = *(struct tdm_compared *const *)b;
    bool refused[] = {x->refused[0] != '\0', y->refused[0] != '\0'};
    if (refused[0] != refused[1])
        return refused[0] - refused[1];
    if (x->longest.context != y->longest.context)
        return x->longest.context < y->longest.context ? 1 : -1;
    double fast[] = {tdm_compared_rate(&x->longest), tdm_compared_rate(&y->longest)};
    if (x->longest.context > 0 && (fast[0] < fast[1] || fast[0] > fast[1]))
        return fast[0] < fast[1] ? 1 : -1;
    return (x->method > y->method) - (x->method < y->method);
}

size_t tdm_compared_common(const struct tdm_methods_comparison *c,
                           const struct tdm_compare_request *request)
{
    size_t common = 0, most = 0;
    for (size_t i = 0; i < request->context_count; i++) {
        size_t fitting = 0;
        for (size_t r = 0; r < c->count; r++)
            fitting += c->rows[r]->points[i].fits;
        if (fitting >= most) {
            common = i;
            most = fitting;
        }
    }
    return common;
}

/* ---- tasks: contexts of tidemark's own row, the longest first, then the other rows ---- */

/* A plan takes some 300 MB at its largest. */
#define MOST_THREADS 8u

struct tasks {
    const struct comparing *c;
    struct tdm_compared *own;                    /* NULL: not compared */
    struct tdm_error why[TDM_COMPARED_CONTEXTS]; /* the planner does not support this */
};

static size_t own_tasks(const struct tasks *all)
{
    return all->own == NULL ? 0 : all->c->request->context_count;
}

static bool is_refusal(enum tdm_status status)
{
    return status == TDM_INPUT || status == TDM_USAGE;
}

static enum tdm_status run_task(void *self, size_t number, struct tdm_error *err)
{
    struct tasks *all = self;
    const size_t own = own_tasks(all);
    if (number < own) {
        const size_t i = own - 1 - number;
        enum tdm_status status = compare_own_at(all->c, all->own, i, err);
        if (is_refusal(status))
            all->why[i] = *err;
        return is_refusal(status) ? TDM_OK : status;
    }
    struct tdm_compared *row = all->c->all->rows[number - own];
    return row == all->own ? TDM_OK : compare_method(all->c, row, err);
}

static enum tdm_status finish_own(struct tasks *all, struct tdm_error *err)
{
    for (size_t i = 0; i < own_tasks(all); i++)
        if (all->why[i].status != TDM_OK) {
            refuse(all->own, &all->why[i]);
            return TDM_OK;
        }
    enum tdm_status status = find_own_longest(all->c, all->own, err);
    if (is_refusal(status))
        refuse(all->own, err);
    return is_refusal(status) ? TDM_OK : status;
}

static enum tdm_status compare_rows(const struct comparing *c, struct tdm_error *err)
{
    struct tasks all = {.c = c};
    for (size_t i = 0; i < c->all->count; i++)
        if (tdm_method_is_own(c->all->rows[i]->method))
            all.own = c->all->rows[i];
    enum tdm_status status =
        tdm_parallel(own_tasks(&all) + c->all->count, tdm_solver_has_threads() ? MOST_THREADS : 1,
                     run_task, &all, err);
    return status == TDM_OK && all.own != NULL ? finish_own(&all, err) : status;
}

enum tdm_status tdm_compare_methods(const struct tdm_compare_request *request,
                                    struct tdm_methods_comparison *comparison,
                                    struct tdm_error *err)
{
    const struct comparing c = {.request = request, .all = comparison};
    *comparison = (struct tdm_methods_comparison){0};
    enum tdm_status status = tdm_model_load(request->model, &comparison->model, err);
    if (status == TDM_OK)
        status = tdm_machine_load(request->machine, &comparison->machine, err);
    if (status == TDM_OK)
        status = tdm_machine_give_memory(comparison->machine, &request->memory, err);
    if (status == TDM_OK)
        status = add_rows(&c, err);
    if (status == TDM_OK)
        status = compare_rows(&c, err);
    if (status == TDM_OK)
        qsort(comparison->rows, comparison->count, sizeof(struct tdm_compared *), by_reach);
    return status;
}

void tdm_methods_comparison_free(struct tdm_methods_comparison *comparison)
{
    tdm_model_free(comparison->model);
    tdm_machine_free(comparison->machine);
    for (size_t i = 0; i < comparison->count; i++)
        free(comparison->rows[i]);
    free(comparison->rows);
    *comparison = (struct tdm_methods_comparison){0};
}
