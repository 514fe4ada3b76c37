/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda backend against the cpu backend: random models and schedules, the same weights and tokens,
 * every op of a step.
 *
 * A case without an optimizer compares the gradients of one step, others the weights (masters where
 * there are some) and moments after three steps; every fifth evaluates. Small cases have odd sizes
 * and any mix of dtypes, large ones sizes that vectors and tensor cores serve. A schedule that
 * differs only in its nest, sets and places must give the same bits on the GPU, and arenas must not
 * be touched beyond the plan. Half of the cases run in arenas full of not-a-number.
 *
 * Error of a tensor: norm of the difference over the norm of what the cpu backend has (of what it changed,
 * if it was updated), no smaller than 3% of what is typical for the model. TDM_CASES=N TDM_SEED=S runs
 * cases S to S + N - 1.
 */
#include "executor/arenas.h"
#include "executor/state.h"
#include "executor/walk.h"
#include "schedule/learning_rate.h"
#include "schedule/optimizer.h"
#include "schedule/validate.h"
#include "tests/gpu/gpu_test.h"
#include "tests/random_schedule.h"

#include <math.h>
#include <string.h>

#define STEPS 3u
#define GUARD_BYTES 65536u
#define BASE_SEED 20261121u

/* Relative errors that are allowed. Where everything is fp32, both sum in another order; where something is
 * bf16, values near the middle of two are rounded to either, and later ops go on from there: gradients of
 * q and k that are nearly zero, of sequences of a few tokens, differ most. */
#define LOSS_BOUND_FP32 1e-4
#define TENSOR_BOUND_FP32 1e-3
#define LOSS_BOUND_BF16 1e-2
#define TENSOR_BOUND_BF16 0.15

enum what { VALUES /* gradients, or masters */, MOMENT1, MOMENT2, WHATS };

struct data {
    const struct tdm_model *model;
    float *weights; /* all units, one after the other */
    size_t count;
    int32_t *inputs, *targets;
};

struct outcome {
    double losses[STEPS], norms[STEPS];
    uint32_t steps;
    float *values; /* [WHATS][count], after the last step */
    bool over;     /* touched beyond the plan */
};

static void die(const char *what, const struct tdm_error *err)
{
    printf("Bail out! %s: %s\n", what, err == NULL ? "out of memory" : err->message);
    exit(1);
}

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    if (memory == NULL)
        die("calloc", NULL);
    return memory;
}

/* ---- cases ---- */

static json_t *large_config(struct tdm_dice *dice)
{
    static const char *const architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                                "Qwen3ForCausalLM", "MistralForCausalLM"};
    uint64_t kv_heads = tdm_dice_roll(dice, 1, 2), ratio = tdm_dice_roll(dice, 1, 4);
    uint64_t hidden = 64 * tdm_dice_roll(dice, 1, 4);
    uint64_t head_dim = tdm_dice_chance(dice, 70) ? 128 : 64;
    uint64_t intermediate = 64 * tdm_dice_roll(dice, 1, 6);
    uint64_t vocabulary = 8 * tdm_dice_roll(dice, 20, 90), layers = tdm_dice_roll(dice, 1, 3);
    uint64_t architecture = tdm_dice_roll(dice, 0, 3), window = tdm_dice_roll(dice, 20, 300);
    bool tied = tdm_dice_chance(dice, 50);
    json_t *config =
        json_pack("{s:[s], s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architectures",
                  architectures[architecture], "tie_word_embeddings", (int)tied,
                  "num_hidden_layers", (json_int_t)layers, "hidden_size", (json_int_t)hidden,
                  "intermediate_size", (json_int_t)intermediate, "num_attention_heads",
                  (json_int_t)(kv_heads * ratio), "num_key_value_heads", (json_int_t)kv_heads,
                  "head_dim", (json_int_t)head_dim, "vocab_size", (json_int_t)vocabulary);
    if (config != NULL && architecture == 3)
        json_object_set_new(config, "sliding_window", json_integer((json_int_t)window));
    return config;
}

/* Sizes as real models have them, but few: bf16 as a planner chooses it, or fp32. */
static struct tdm_schedule *large_schedule(uint64_t seed)
{
    struct tdm_error err = {0};
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL, *variant = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed);
    json_t *config = large_config(&dice);
    uint64_t tokens = tdm_dice_roll(&dice, 100, 700);
    if (config == NULL)
        die("json_pack", NULL);
    if (tdm_model_from_config("large", "large", config, &model, &err) != TDM_OK ||
        tdm_machine_load("h200", &machine, &err) != TDM_OK ||
        tdm_schedule_new(model, machine, tokens, &schedule, &err) != TDM_OK)
        die("large schedule", &err);
    json_decref(config);
    static const uint64_t pages[] = {16, 64, 128, 100};
    schedule->page_tokens = pages[tdm_dice_roll(&dice, 0, 3)];
    schedule->chunk_tokens = tdm_dice_roll(&dice, 40, tokens);
    if (tdm_dice_chance(&dice, 60))
        schedule->chunk_tokens = (schedule->chunk_tokens + 63) / 64 * 64;
    schedule->head_tile_tokens = tdm_dice_chance(&dice, 50)
                                     ? schedule->chunk_tokens
                                     : tdm_dice_roll(&dice, 16, schedule->chunk_tokens);
    if (tdm_dice_chance(&dice, 40) &&
        tdm_sequence_divide(&schedule->sequences[0], "large", tdm_dice_roll(&dice, 30, tokens),
                            &err) != TDM_OK)
        die("documents", &err);
    static const enum tdm_optimizer kinds[] = {TDM_OPTIMIZER_NONE, TDM_OPTIMIZER_NONE,
                                               TDM_OPTIMIZER_ADAMW, TDM_OPTIMIZER_ADAMW_BF16,
                                               TDM_OPTIMIZER_ADAMW_BF16_MOMENTS};
    enum tdm_optimizer kind = kinds[tdm_dice_roll(&dice, 0, 4)];
    tdm_schedule_set_optimizer(schedule, kind);
    if (seed % 4 == 3 && kind == TDM_OPTIMIZER_NONE)
        schedule->dtypes = (struct tdm_dtypes){.weights = TDM_DTYPE_FP32,
                                               .activations = TDM_DTYPE_FP32,
                                               .kv = TDM_DTYPE_FP32,
                                               .kv_gradients = TDM_DTYPE_FP32,
                                               .gradients = TDM_DTYPE_FP32,
                                               .logits = TDM_DTYPE_FP32};
    if (tdm_schedule_check(schedule, "large", &err) != TDM_OK ||
        tdm_random_variant(schedule, seed, &variant, &err) != TDM_OK)
        die("large schedule", &err);
    tdm_schedule_free(schedule);
    return variant;
}

static struct tdm_schedule *small_schedule(uint64_t seed)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err = {0};
    bool gradients = seed % 3 == 0;
    struct tdm_random_options options = {
        .dtypes = seed % 4 >= 2 ? TDM_RANDOM_MIXED
                  : gradients   ? TDM_RANDOM_FP32
                                : TDM_RANDOM_FP32_ACTIVATIONS,
        .optimizer = gradients ? TDM_RANDOM_NO_OPTIMIZER : TDM_RANDOM_UPDATES,
        .pass = seed % 5 == 4 ? TDM_RANDOM_EVALUATE : TDM_RANDOM_TRAIN,
        .max_tokens = seed % 8 == 5 ? 300 : 64};
    if (tdm_random_schedule(seed, &options, &schedule, &err) != TDM_OK)
        die("random schedule", &err);
    return schedule;
}

/* Weights around those of a trained model, and tokens. */
static void draw_data(struct data *data, const struct tdm_schedule *schedule, uint64_t seed)
{
    const struct tdm_model *model = schedule->model;
    uint64_t tokens = tdm_schedule_tokens(schedule), row = 0;
    bool alone =
        schedule->dtypes.weights == TDM_DTYPE_BF16 && schedule->dtypes.master == TDM_DTYPE_NONE;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0xda7a);
    *data = (struct data){.model = model};
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        data->count += model->units[unit].elements;
    data->weights = take(data->count, sizeof(float));
    data->inputs = take(tokens, sizeof(int32_t));
    data->targets = take(tokens, sizeof(int32_t));
    float *at = data->weights;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        for (uint32_t t = 0; t < model->units[unit].tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor + t];
            double scale = tensor->rows > 1 ? 1.0 / sqrt((double)tensor->columns) : 0.1;
            for (uint64_t i = 0; i < tensor->elements; i++) {
                double uniform = (double)(tdm_dice_next(&dice) >> 11) * 0x1p-53 * 2 - 1;
                double value = (tdm_role_is_norm(tensor->role) ? 1.0 : 0.0) + 1.7 * scale * uniform;
                if (tensor->role == TDM_ROLE_EMBEDDING)
                    value = uniform + (uniform < 0 ? -0.5 : 0.5);
                float weight = (float)value;
                at[tensor->offset + i] =
                    alone ? tdm_bf16_to_float(tdm_float_to_bf16(weight)) : weight;
            }
        }
        at += model->units[unit].elements;
    }
    for (uint64_t i = 0; i < tokens; i++) {
        data->inputs[i] = (int32_t)tdm_dice_roll(&dice, 0, model->vocabulary - 1);
        data->targets[i] = (int32_t)tdm_dice_roll(&dice, 0, model->vocabulary - 1);
    }
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        for (uint64_t t = 0; t < schedule->sequences[s].tokens; t++, row++)
            if (!tdm_sequence_trains(&schedule->sequences[s], t))
                data->targets[row] = -1;
}

static void free_data(struct data *data)
{
    free(data->weights);
    free(data->inputs);
    free(data->targets);
}

/* ---- execution ---- */

static bool updates(const struct tdm_schedule *schedule)
{
    return schedule->pass == TDM_TRAIN && schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
}

static bool leaves_gradients(const struct tdm_schedule *schedule)
{
    return schedule->pass == TDM_TRAIN && schedule->optimizer.kind == TDM_OPTIMIZER_NONE;
}

static enum tdm_status poison(const struct tdm_arenas *arenas, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        if (arenas->base[place] == NULL)
            continue;
        void *bytes = take(arenas->bytes[place], 1);
        memset(bytes, 0xff, arenas->bytes[place]);
        status = arenas->backend->upload(arenas->executor, arenas->base[place], bytes,
                                         arenas->bytes[place], err);
        free(bytes);
    }
    return status;
}

static enum tdm_status read_all(const struct tdm_arenas *arenas, const struct tdm_program *program,
                                const struct data *data, struct outcome *outcome,
                                struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    size_t at = 0;
    for (uint32_t unit = 0; unit < data->model->unit_count && status == TDM_OK; unit++) {
        float *values = outcome->values + at;
        status = leaves_gradients(program->schedule)
                     ? tdm_state_read_gradient(arenas, program, unit, values, err)
                     : tdm_state_read_weights(arenas, program, unit, values, err);
        for (int moment = 0; moment < 2 && status == TDM_OK; moment++)
            status = tdm_state_read_moment(arenas, program, unit, moment == 1,
                                           values + (size_t)(MOMENT1 + moment) * data->count, err);
        at += data->model->units[unit].elements;
    }
    return status;
}

static enum tdm_status execute(const struct tdm_schedule *schedule, const char *name,
                               const struct data *data, uint64_t seed, struct outcome *outcome,
                               struct tdm_error *err)
{
    const struct tdm_backend *backend;
    struct tdm_program *program = NULL;
    struct tdm_arenas arenas = {0};
    struct tdm_walk *walk = NULL;
    uint64_t no_limit[TDM_PLACES] = {UINT64_MAX, UINT64_MAX}, planned_bytes[TDM_PLACES] = {0};
    bool poisoned = seed % 2 == 1;

    enum tdm_status status = tdm_backend_find(name, &backend, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_program_validate(program, no_limit, err);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        planned_bytes[place] = program->arena_bytes[place];
        program->arena_bytes[place] += GUARD_BYTES; /* that nobody may touch */
    }
    if (status == TDM_OK)
        status =
            tdm_arenas_take(backend, 1, (const struct tdm_program *const *)&program, &arenas, err);
    if (status == TDM_OK)
        status = tdm_walk_new(program, &arenas, &walk, err);
    if (status == TDM_OK)
        status = poisoned ? poison(&arenas, err) : tdm_arenas_fill(&arenas, err);
    const float *weights = data->weights;
    for (uint32_t unit = 0; unit < data->model->unit_count && status == TDM_OK; unit++) {
        status = tdm_state_write(&arenas, program, unit, weights, err);
        weights += data->model->units[unit].elements;
    }
    if (status == TDM_OK)
        status = tdm_state_write_tokens(&arenas, program, data->inputs, data->targets, err);
    outcome->steps = updates(schedule) ? STEPS : 1;
    for (uint32_t i = 0; i < outcome->steps && status == TDM_OK; i++) {
        struct tdm_step step = {i + 1, tdm_learning_rate(&schedule->optimizer, i + 1), seed};
        status = tdm_walk_step(walk, &step, NULL, NULL, err);
        if (status == TDM_OK)
            status =
                tdm_state_read_loss(&arenas, program, &outcome->losses[i], &outcome->norms[i], err);
    }
    if (status == TDM_OK)
        status = read_all(&arenas, program, data, outcome, err);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK && !poisoned; place++) {
        uint64_t touched_bytes, highest_byte;
        status =
            tdm_arenas_scan(&arenas, (enum tdm_place)place, &touched_bytes, &highest_byte, err);
        outcome->over = outcome->over || highest_byte > planned_bytes[place];
    }
    tdm_walk_free(walk);
    tdm_arenas_release(&arenas);
    tdm_program_free(program);
    return status;
}

/* ---- comparison ---- */

struct worst {
    double loss, tensor;
    enum tdm_role role;
    enum what what;
};

static double relative(double value, double due)
{
    return isnan(value) && isnan(due) ? 0 : fabs(value - due) / fmax(fabs(due), 1e-3);
}

/* Errors of all tensors of a kind; `from` is what was there before an update, or NULL. */
static void compare_tensors(const struct tdm_model *model, const float *at, const float *due,
                            const float *from, enum what what, struct worst *worst)
{
    double squares = 0, elements = 0;
    size_t base = 0;
    for (uint32_t unit = 0; unit < model->unit_count; base += model->units[unit++].elements) {
        for (uint64_t i = base; i < base + model->units[unit].elements; i++) {
            double size = (double)due[i] - (from == NULL ? 0.0 : (double)from[i]);
            squares += size * size;
        }
        elements += (double)model->units[unit].parameters;
    }
    double least = 3e-2 * sqrt(squares / elements);
    base = 0;
    for (uint32_t unit = 0; unit < model->unit_count; base += model->units[unit++].elements) {
        for (uint32_t t = 0; t < model->units[unit].tensor_count; t++) {
            const struct tdm_tensor *tensor = &model->tensors[model->units[unit].first_tensor + t];
            double error = 0, size = 0;
            for (uint64_t i = base + tensor->offset; i < base + tensor->offset + tensor->elements;
                 i++) {
                double change = (double)due[i] - (from == NULL ? 0.0 : (double)from[i]);
                double difference = (double)at[i] - (double)due[i];
                error += difference * difference;
                size += change * change;
            }
            double scale = fmax(sqrt(size), least * sqrt((double)tensor->elements));
            double each = error == 0 ? 0 : sqrt(error) / scale;
            if (!(each <= worst->tensor)) {
                worst->tensor = each;
                worst->role = tensor->role;
                worst->what = what;
            }
        }
    }
}

static bool is_fp32(const struct tdm_schedule *schedule)
{
    const struct tdm_dtypes *d = &schedule->dtypes;
    return d->activations == TDM_DTYPE_FP32 && d->kv == TDM_DTYPE_FP32 &&
           d->kv_gradients == TDM_DTYPE_FP32 && d->gradients == TDM_DTYPE_FP32 &&
           d->logits == TDM_DTYPE_FP32 && d->moments != TDM_DTYPE_BF16 &&
           (d->weights == TDM_DTYPE_FP32 || d->master != TDM_DTYPE_NONE || !updates(schedule));
}

static bool same_bits(const struct outcome *a, const struct outcome *b, size_t count)
{
    return memcmp(a->losses, b->losses, a->steps * sizeof(double)) == 0 &&
           memcmp(a->values, b->values, WHATS * count * sizeof(float)) == 0;
}

static void run_case(struct gpu_test *test, uint64_t seed, bool large)
{
    struct tdm_schedule *schedule = large ? large_schedule(seed) : small_schedule(seed);
    struct tdm_schedule *variant = NULL;
    struct tdm_error err = {0};
    struct worst worst = {0};
    struct data data;
    char text[600];
    if (tdm_random_variant(schedule, seed ^ 0x5a5a, &variant, &err) != TDM_OK)
        die("variant", &err);
    /* an update of lr * g / |g| would blow up the rounding of gradients that are nearly zero */
    schedule->optimizer.epsilon = variant->optimizer.epsilon = 1e-2;
    schedule->optimizer.learning_rate = variant->optimizer.learning_rate = 1e-2;
    draw_data(&data, schedule, seed);
    struct outcome due = {.values = take(WHATS * data.count, sizeof(float))};
    struct outcome first = {.values = take(WHATS * data.count, sizeof(float))};
    struct outcome second = {.values = take(WHATS * data.count, sizeof(float))};
    if (execute(schedule, "cpu", &data, seed, &due, &err) != TDM_OK)
        die("cpu", &err);
    enum tdm_status status = execute(schedule, "cuda", &data, seed, &first, &err);
    if (status == TDM_OK)
        status = execute(variant, "cuda", &data, seed, &second, &err);

    bool exact = is_fp32(schedule), same = false;
    double loss_bound = exact ? LOSS_BOUND_FP32 : LOSS_BOUND_BF16;
    double tensor_bound = exact ? TENSOR_BOUND_FP32 : TENSOR_BOUND_BF16;
    if (status == TDM_OK) {
        for (uint32_t i = 0; i < due.steps; i++)
            worst.loss =
                fmax(worst.loss,
                     isnan(first.losses[i]) ? INFINITY : relative(first.losses[i], due.losses[i]));
        for (uint32_t i = 0; i < due.steps && updates(schedule); i++)
            worst.loss = fmax(worst.loss, relative(first.norms[i], due.norms[i]) / 10);
        for (int what = 0; what < WHATS; what++)
            compare_tensors(data.model, first.values + (size_t)what * data.count,
                            due.values + (size_t)what * data.count,
                            what == VALUES && updates(schedule) ? data.weights : NULL,
                            (enum what)what, &worst);
        same = same_bits(&first, &second, data.count);
    }
    bool passed = status == TDM_OK && worst.loss <= loss_bound && worst.tensor <= tensor_bound &&
                  same && !first.over && !second.over;
    gpu_test_case(
        test, passed,
        "seed %llu %s %s: loss off by %.1e, tensors by %.1e (role %d, %s), variant %s%s%s",
        (unsigned long long)seed, large ? "large" : "small", exact ? "fp32" : "bf16", worst.loss,
        worst.tensor, (int)worst.role,
        worst.what == VALUES    ? "values"
        : worst.what == MOMENT1 ? "moment 1"
                                : "moment 2",
        same ? "the same" : "differs", first.over || second.over ? ", touched beyond the plan" : "",
        status == TDM_OK ? "" : ", failed");
    if (!passed)
        printf("# %s\n# %s\n", status == TDM_OK ? "" : err.message,
               tdm_schedule_describe(schedule, text, sizeof(text)));
    free(due.values);
    free(first.values);
    free(second.values);
    free_data(&data);
    tdm_schedule_free(schedule);
    tdm_schedule_free(variant);
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    uint64_t cases = tdm_case_count(20, 60);
    for (uint64_t i = 0; i < cases; i++)
        run_case(&test, tdm_case_seed(BASE_SEED, i), i % 3 == 2);
    return gpu_test_end(&test);
}
