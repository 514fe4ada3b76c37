/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/retrieval: does a model retrieve late in a sequence what was given early? A small model
 * learns this with dense attention, with a window that does not reach back, and with top-k pages,
 * each from the same weights on the same sequences:
 *
 *     others, pairs | keys, others | others | ... | others | keys, others
 *                     asked near                             asked far
 *
 * A pair of a key and its value is one token. The pairs that are asked are given --times times
 * each, up to the end of the first chunk. All other tokens are pairs of other keys with random
 * values. The asked keys, their values and the questions are drawn anew for every sequence. So no
 * step sees a sequence again, and the loss of a step is a loss on unseen sequences. The target of a
 * key is its value; the target of every other token is a token that means nothing. A model that
 * does not see the pairs loses log(values) nats on a value. Questions in the second chunk teach the
 * lookup (with a budget of one chunk, top-k is dense there). Questions in the last chunk test
 * whether the lookup reaches back.
 *
 *     bench/retrieval [--machine M] [--backend B] [--dir DIR] [--seed N] [--steps N]
 *         [--sequences N] [--context N] [--chunk N] [--page N] [--budget N] [--window N] [--keys N]
 *         [--values N] [--pairs N] [--times N] [--near N] [--far N] [--layers N] [--hidden N]
 *         [--head-dim N] [--rate R] [--only KIND]
 *
 * For each kind of attention it prints the loss of the near and far answers over the last tenth of
 * the steps, the probability that this loss corresponds to (exp(-loss)), the first step at which
 * the mean far loss of the last ten steps is at most half that of chance, and the seconds of a
 * step. It writes DIR/retrieval.tsv, the far losses of every step (bench/retrieval.gp plots them).
 * The schedules come from `tidemark plan`, which is found through PATH; the steps run in this
 * process.
 */
#include "executor/random.h"
#include "executor/state.h"
#include "executor/walk.h"
#include "executor/weights.h"
#include "schedule/learning_rate.h"
#include "schedule/program.h"
#include "schedule/validate.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_KEYS 256u
#define INITIAL 0.08   /* standard deviation of the initial weights */
#define MEAN_STEPS 10u /* steps in the mean that decides when the task is learned */

struct options {
    const char *machine, *backend, *folder, *only;
    unsigned long seed, steps, sequences, context, chunk, page, budget, window, keys, values, pairs,
        times, near, far, layers, hidden, head_dim;
    double rate;
};

enum kind { DENSE, WINDOW, TOP_K, KINDS };
static const char *const names[KINDS] = {"dense", "window", "top-k"};

enum place { NEAR, FAR, PLACES };

/* Nats per answer, [steps] each. The tokens between the answers soon add almost no loss. */
struct curve {
    double *losses[PLACES];
    double step_seconds;
};

/* The random numbers of one sequence of one step. */
struct draw {
    uint64_t stream, count;
};

static uint32_t draw_below(struct draw *draw, uint32_t bound)
{
    return (uint32_t)(tdm_random_draw(draw->stream, draw->count++) % bound);
}

struct pair {
    uint32_t key, value;
};

/* The tokens are values, keys, pairs of them, and one token that means nothing. */
static int32_t key_token(const struct options *o, uint32_t key)
{
    return (int32_t)(o->values + key);
}

static int32_t pair_token(const struct options *o, struct pair pair)
{
    return (int32_t)(o->values + o->keys + pair.key * o->values + pair.value);
}

static int32_t nothing(const struct options *o)
{
    return (int32_t)(o->values + o->keys + o->keys * o->values);
}

static void ask(const struct options *o, struct draw *draw, const struct pair *pairs,
                unsigned long count, int32_t *inputs, int32_t *targets)
{
    for (unsigned long i = 0; i < count; i++) {
        const struct pair pair = pairs[draw_below(draw, (uint32_t)o->pairs)];
        inputs[i] = key_token(o, pair.key);
        targets[i] = (int32_t)pair.value;
    }
}

/* Makes a sequence; inputs and targets are [context]. */
static void make_sequence(const struct options *o, uint64_t step, uint64_t sequence,
                          int32_t *inputs, int32_t *targets)
{
    struct draw draw = {tdm_random_stream(o->seed, step, sequence), 0};
    unsigned long given = o->chunk - o->times * o->pairs, last = o->context - o->chunk;
    struct pair pairs[MOST_KEYS]; /* the asked pairs, then the others */
    for (uint32_t i = 0; i < o->keys; i++)
        pairs[i] = (struct pair){i, draw_below(&draw, (uint32_t)o->values)};
    for (uint32_t i = 0; i < o->pairs; i++) {
        uint32_t other = i + draw_below(&draw, (uint32_t)o->keys - i);
        struct pair pair = pairs[other];
        pairs[other] = pairs[i];
        pairs[i] = pair;
    }
    for (unsigned long i = 0; i < o->context; i++) {
        struct pair pair = pairs[o->pairs + draw_below(&draw, (uint32_t)(o->keys - o->pairs))];
        pair.value = draw_below(&draw, (uint32_t)o->values);
        inputs[i] = pair_token(o, pair);
        targets[i] = nothing(o);
    }
    for (unsigned long i = 0; i < o->times * o->pairs; i++)
        inputs[given + i] = pair_token(o, pairs[i % o->pairs]);
    ask(o, &draw, pairs, o->near, inputs + o->chunk, targets + o->chunk);
    ask(o, &draw, pairs, o->far, inputs + last, targets + last);
}

static bool write_model(const struct options *o, const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        printf("%s: %s\n", path, strerror(errno));
        return false;
    }
    fprintf(file,
            "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n"
            " \"attention_bias\": false, \"mlp_bias\": false, \"hidden_act\": \"silu\",\n"
            " \"head_dim\": %lu, \"hidden_size\": %lu, \"intermediate_size\": %lu,\n"
            " \"num_attention_heads\": %lu, \"num_key_value_heads\": %lu,\n"
            " \"num_hidden_layers\": %lu, \"initializer_range\": %g,\n"
            " \"max_position_embeddings\": %lu, \"rms_norm_eps\": 1e-05,\n"
            " \"rope_theta\": 500000.0, \"tie_word_embeddings\": false, \"vocab_size\": %d}\n",
            o->head_dim, o->hidden, 2 * o->hidden, o->hidden / o->head_dim, o->hidden / o->head_dim,
            o->layers, INITIAL, o->context, nothing(o) + 1);
    return fclose(file) == 0;
}

static bool plan(const struct options *o, enum kind kind, const char *model, const char *path)
{
    char line[2048], selector[128] = "";
    if (kind == WINDOW)
        snprintf(selector, sizeof(selector), "--set selector=window --set selector.window=%lu",
                 o->window);
    else if (kind == TOP_K)
        snprintf(selector, sizeof(selector), "--budget %lu", o->budget);
    snprintf(line, sizeof(line),
             "tidemark plan '%s' --context %lu --batch %lu --machine '%s' --set chunk=%lu "
             "--set page=%lu --set optimizer.learning_rate=%g --set optimizer.warmup_steps=%lu "
             "--set optimizer.schedule=cosine --set optimizer.decay_steps=%lu %s -o '%s' --force "
             "> /dev/null",
             model, o->context, o->sequences, o->machine, o->chunk, o->page, o->rate,
             o->steps / 20 + 1, o->steps, selector, path);
    fflush(stdout);
    if (system(line) == 0)
        return true;
    printf("failed: %s\n", line);
    return false;
}

/* Reads the loss of a step's answers, by the chunks that they are in. */
static enum tdm_status read_losses(const struct options *o, const struct tdm_arenas *arenas,
                                   const struct tdm_program *program, double losses[PLACES],
                                   struct tdm_error *err)
{
    const struct tdm_buffer *buffer = tdm_program_loss_buffer(program);
    enum tdm_status status = TDM_OK;
    losses[NEAR] = losses[FAR] = 0.0;
    for (uint32_t i = 0; i < program->chunk_count && status == TDM_OK; i++) {
        double loss;
        status = arenas->backend->download(arenas->executor, &loss,
                                           tdm_arenas_slot(arenas, buffer, i), sizeof(loss), err);
        uint64_t token = program->chunks[i].first_token;
        if (token == o->chunk)
            losses[NEAR] += loss;
        else if (token == o->context - o->chunk)
            losses[FAR] += loss;
    }
    /* the step's loss is a mean over all of its tokens */
    losses[NEAR] *= (double)o->context / (double)o->near;
    losses[FAR] *= (double)o->context / (double)o->far;
    return status;
}

static enum tdm_status train_steps(const struct options *o, const struct tdm_program *program,
                                   const struct tdm_arenas *arenas, struct tdm_walk *walk,
                                   int32_t *tokens, struct curve *curve, struct tdm_error *err)
{
    const struct tdm_backend *backend = arenas->backend;
    int32_t *targets = tokens + o->sequences * o->context;
    enum tdm_status status = TDM_OK;
    for (unsigned long i = 0; i < o->steps && status == TDM_OK; i++) {
        struct tdm_step step = {.number = i + 1,
                                .learning_rate =
                                    tdm_learning_rate(&program->schedule->optimizer, i + 1),
                                .seed = o->seed,
                                .untimed = true};
        double losses[PLACES];
        for (unsigned long s = 0; s < o->sequences; s++)
            make_sequence(o, i + 1, s, tokens + s * o->context, targets + s * o->context);
        status = tdm_state_write_tokens(arenas, program, tokens, targets, err);
        int64_t start_ns = backend->now(arenas->executor);
        if (status == TDM_OK)
            status = tdm_walk_step(walk, &step, NULL, NULL, err);
        curve->step_seconds +=
            1e-9 * (double)(backend->now(arenas->executor) - start_ns) / (double)o->steps;
        if (status == TDM_OK)
            status = read_losses(o, arenas, program, losses, err);
        for (int place = 0; place < PLACES && status == TDM_OK; place++)
            curve->losses[place][i] = losses[place];
        if (status == TDM_OK && (i + 1) % 100 == 0)
            fprintf(stderr, "step %lu/%lu  near %.4f  far %.4f\n", i + 1, o->steps, losses[NEAR],
                    losses[FAR]);
    }
    return status;
}

static enum tdm_status train(const struct options *o, const char *path, struct curve *curve,
                             struct tdm_error *err)
{
    const struct tdm_backend *backend = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_arenas arenas = {0};
    struct tdm_walk *walk = NULL;
    int32_t *tokens = malloc(2 * o->sequences * o->context * sizeof(*tokens));
    enum tdm_status status = tokens == NULL
                                 ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens")
                                 : tdm_backend_find(o->backend, &backend, err);
    if (status == TDM_OK && !backend->executes)
        status = tdm_fail(err, TDM_USAGE, "--backend %s: computes nothing", o->backend);
    if (status == TDM_OK)
        status = tdm_schedule_load(path, &schedule, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(program, program->arena_bytes, err);
    if (status == TDM_OK)
        status = tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&program, NULL,
                                 NULL, &arenas, err);
    if (status == TDM_OK)
        status = tdm_walk_new(program, NULL, &arenas, &walk, err);
    if (status == TDM_OK)
        status = tdm_walk_prepare(walk, err);
    if (status == TDM_OK)
        status = tdm_weights_draw(o->seed, &arenas, program, NULL, err);
    if (status == TDM_OK)
        status = train_steps(o, program, &arenas, walk, tokens, curve, err);
    tdm_walk_free(walk);
    tdm_arenas_release(&arenas, 1);
    tdm_program_free(program);
    tdm_schedule_free(schedule);
    free(tokens);
    return status;
}

static double mean(const double *losses, unsigned long begin, unsigned long end)
{
    double sum = 0.0;
    for (unsigned long i = begin; i < end; i++)
        sum += losses[i];
    return sum / (double)(end - begin);
}

static void print_row(const struct options *o, enum kind kind, const struct curve *curve)
{
    unsigned long late = o->steps - (o->steps + 9) / 10, learned = MEAN_STEPS;
    double near = mean(curve->losses[NEAR], late, o->steps);
    double far = mean(curve->losses[FAR], late, o->steps);
    while (learned <= o->steps &&
           mean(curve->losses[FAR], learned - MEAN_STEPS, learned) > 0.5 * log((double)o->values))
        learned++;
    printf("%-8s%10.4f%8.1f%%%10.4f%8.1f%%", names[kind], near, 100.0 * exp(-near), far,
           100.0 * exp(-far));
    if (learned <= o->steps)
        printf("%10lu", learned);
    else
        printf("%10s", "-");
    printf("%10.1f ms\n", 1e3 * curve->step_seconds);
    fflush(stdout);
}

static bool write_losses(const struct options *o, const struct curve *curves)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/retrieval.tsv", o->folder);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        printf("%s: %s\n", path, strerror(errno));
        return false;
    }
    fprintf(file, "step");
    for (int kind = 0; kind < KINDS; kind++)
        fprintf(file, "\t%s", names[kind]);
    fprintf(file, "\tchance");
    for (unsigned long i = 0; i < o->steps; i++) {
        fprintf(file, "\n%lu", i + 1);
        for (int kind = 0; kind < KINDS; kind++)
            fprintf(file, "\t%.5f",
                    curves[kind].step_seconds > 0 ? curves[kind].losses[FAR][i] : NAN);
        fprintf(file, "\t%.5f", log((double)o->values));
    }
    fprintf(file, "\n");
    return fclose(file) == 0;
}

static bool read_options(int argc, char **argv, struct options *o)
{
    struct {
        const char *name;
        unsigned long *number;
        const char **text;
    } known[] = {
        {"--machine", NULL, &o->machine},
        {"--backend", NULL, &o->backend},
        {"--dir", NULL, &o->folder},
        {"--only", NULL, &o->only},
        {"--seed", &o->seed, NULL},
        {"--steps", &o->steps, NULL},
        {"--sequences", &o->sequences, NULL},
        {"--context", &o->context, NULL},
        {"--chunk", &o->chunk, NULL},
        {"--page", &o->page, NULL},
        {"--budget", &o->budget, NULL},
        {"--window", &o->window, NULL},
        {"--pairs", &o->pairs, NULL},
        {"--near", &o->near, NULL},
        {"--far", &o->far, NULL},
        {"--layers", &o->layers, NULL},
        {"--hidden", &o->hidden, NULL},
        {"--head-dim", &o->head_dim, NULL},
        {"--keys", &o->keys, NULL},
        {"--values", &o->values, NULL},
        {"--times", &o->times, NULL},
    };
    if (argc % 2 == 0)
        return false;
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0, count = sizeof(known) / sizeof(known[0]);
        if (strcmp(argv[i], "--rate") == 0) {
            o->rate = strtod(argv[i + 1], NULL);
            continue;
        }
        while (k < count && strcmp(argv[i], known[k].name) != 0)
            k++;
        if (k == count)
            return false;
        if (known[k].text != NULL)
            *known[k].text = argv[i + 1];
        else
            *known[k].number = strtoul(argv[i + 1], NULL, 10);
    }
    return true;
}

/* Are the sizes of the task possible, and is the window too short for it? */
static bool check_options(const struct options *o)
{
    bool ok = o->steps >= MEAN_STEPS && o->steps < 1000000 && o->sequences > 0 &&
              o->sequences <= 1024 && o->context <= 1u << 20 && o->chunk > 0 &&
              o->context % o->chunk == 0 && o->context >= 3 * o->chunk && o->pairs > 0 &&
              o->pairs < o->keys && o->keys <= MOST_KEYS && o->values > 1 && o->values <= 256 &&
              o->times > 0 && o->times <= o->chunk && o->times * o->pairs <= o->chunk &&
              o->near > 0 && o->near <= o->chunk && o->far > 0 && o->far <= o->chunk &&
              o->head_dim > 0 && o->hidden % o->head_dim == 0 && o->hidden >= o->head_dim &&
              o->layers > 0;
    if (!ok) {
        fprintf(stderr, "bench/retrieval: pairs and questions are to fit in a chunk each, three "
                        "chunks in the context, heads in the hidden size\n");
        return false;
    }
    /* Each layer reaches one window further back. */
    if (o->window < o->times * o->pairs + o->near ||
        o->context - 2 * o->chunk < o->layers * (o->window - 1)) {
        fprintf(stderr,
                "bench/retrieval: near questions are to see the pairs in a window, and far ones "
                "not through %lu layers of it\n",
                o->layers);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = {.machine = "h200",
                        .backend = "cuda",
                        .folder = ".",
                        .seed = 1,
                        .steps = 650,
                        .sequences = 12,
                        .context = 1024,
                        .chunk = 128,
                        .page = 64,
                        .budget = 128,
                        .window = 256,
                        .keys = 32,
                        .values = 8,
                        .pairs = 4,
                        .times = 32,
                        .near = 128,
                        .far = 128,
                        .layers = 1,
                        .hidden = 64,
                        .head_dim = 32,
                        .rate = 5e-3};
    struct curve curves[KINDS] = {0};
    struct tdm_error err = {0};
    char model[512], path[512];
    bool ok = true;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: bench/retrieval [--machine M] [--backend B] [--dir DIR] [--seed N] "
                        "[--steps N] [--sequences N] [--context N] [--chunk N] [--page N] "
                        "[--budget N] [--window N] [--keys N] [--values N] [--pairs N] "
                        "[--times N] [--near N] [--far N] [--layers N] [--hidden N] "
                        "[--head-dim N] [--rate R] [--only KIND]\n");
        return 2;
    }
    if (!check_options(&o))
        return 2;
    snprintf(model, sizeof(model), "%s/retrieval-model.json", o.folder);
    printf(
        "%lu pairs, %lu times each, up to token %lu of %lu; %lu questions from there, %lu from token "
        "%lu on; window %lu, budget %lu, pages of %lu\n",
        o.pairs, o.times, o.chunk, o.context, o.near, o.far, o.context - o.chunk, o.window,
        o.budget, o.page);
    printf("%-8s%10s%9s%10s%9s%10s%13s\n", "", "near", "", "far", "", "learned", "step");
    printf("%-8s%10.4f%8.1f%%%10.4f%8.1f%%\n", "chance", log((double)o.values),
           100.0 / (double)o.values, log((double)o.values), 100.0 / (double)o.values);
    ok = write_model(&o, model);
    for (int kind = 0; kind < KINDS && ok; kind++) {
        struct curve *curve = &curves[kind];
        snprintf(path, sizeof(path), "%s/retrieval-%s.json", o.folder, names[kind]);
        for (int place = 0; place < PLACES && ok; place++) {
            curve->losses[place] = calloc(o.steps, sizeof(double));
            ok = curve->losses[place] != NULL;
        }
        if (!ok || (o.only != NULL && strcmp(o.only, names[kind]) != 0))
            continue;
        ok = plan(&o, (enum kind)kind, model, path);
        if (ok && train(&o, path, curve, &err) != TDM_OK) {
            printf("%s: %s\n", names[kind], err.message);
            ok = false;
        }
        if (ok)
            print_row(&o, (enum kind)kind, curve);
        ok = ok && write_losses(&o, curves);
    }
    for (int kind = 0; kind < KINDS; kind++)
        for (int place = 0; place < PLACES; place++)
            free(curves[kind].losses[place]);
    return ok ? 0 : 1;
}
