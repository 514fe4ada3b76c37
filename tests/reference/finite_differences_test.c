/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the backward of the reference against its forward, by central finite differences on random
 * small models for elements of every tensor. Also checks what follows from the definition of a
 * step: earlier losses do not depend on later tokens, sequences do not see each other, and AdamW
 * does what its paper says.
 *
 * TDM_SEED=N reruns with the seed that a failing run printed. */
#include "tests/reference/reference.h"

#include "base/dtype.h"
#include "tests/support/cases.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Each combination of four kinds of RoPE, three architectures, and tying occurs once in 24. */
#define CASES 48
#define SHORT_CASES 24
#define ELEMENTS 4     /* drawn in each tensor, beside the one with the largest gradient */
#define TOLERANCE 1e-6 /* over 100 seeds the worst error was 9.5e-8 */
#define MAX_SEQUENCES 4
#define MAX_LENGTH 9

static uint64_t seed;

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A whole number in [low, high]. */
static uint32_t between(uint64_t *state, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(draw(state) % (high - low + 1));
}

/* A number in [-1, 1). */
static double uniform(uint64_t *state)
{
    return (double)(draw(state) >> 11) * 0x1p-52 - 1;
}

/* A random small model and a step of it. */
struct trial {
    struct tdm_model *model;
    struct tdm_reference *reference;
    uint32_t sequence_count;
    uint64_t lengths[MAX_SEQUENCES];
    uint64_t tokens_total;
    uint32_t tokens[MAX_SEQUENCES * MAX_LENGTH], targets[MAX_SEQUENCES * MAX_LENGTH];
};

static json_t *random_rope(uint64_t *state, enum tdm_rope_kind kind)
{
    double factor = 2 + uniform(state);

    switch (kind) {
    case TDM_ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    case TDM_ROPE_LLAMA3: /* with theta 50 some frequencies fall into each of the three bands */
        return json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", factor,
                         "low_freq_factor", 1.0, "high_freq_factor", 4.0,
                         "original_max_position_embeddings", 32);
    case TDM_ROPE_YARN:
        return json_pack("{s:s, s:f, s:i}", "rope_type", "yarn", "factor", factor,
                         "original_max_position_embeddings", 32);
    default:
        return json_null();
    }
}

/* Draws weights that keep every operation well away from linear and from saturation. */
static void random_weights(const struct tdm_model *model, struct tdm_reference *reference,
                           uint64_t *state)
{
    for (uint32_t n = 0; n < model->tensor_count; n++) {
        const struct tdm_tensor *tensor = &model->tensors[n];
        double *weights = tdm_reference_weights(reference, tensor->unit) + tensor->offset;
        bool norm = tdm_role_is_norm(tensor->role);
        double reach = tensor->role == TDM_ROLE_EMBEDDING ? 1.5
                       : tensor->rows == 1                ? 0.5
                                                          : 2 / sqrt((double)tensor->columns);

        for (uint64_t i = 0; i < tensor->elements; i++)
            weights[i] = (norm ? 1 : 0) + reach * uniform(state);
    }
}

/* `number` picks RoPE, architecture and tying; the rest comes from `state`. */
static void trial_new(uint32_t number, uint64_t *state, struct trial *trial)
{
    static const char *const names[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    static const char *const types[] = {"llama", "qwen2", "qwen3"};
    uint32_t architecture = number / 4 % 3;
    bool tied = number / 12 % 2;
    uint32_t kv_heads = between(state, 1, 3), sharing = between(state, 1, 4);
    uint32_t layers = between(state, 1, 3), window = between(state, 1, 5);
    struct tdm_error err = {0};
    json_t *config = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:s, s:o}",
        "architectures", names[architecture], "model_type", types[architecture],
        "num_hidden_layers", layers, "hidden_size", between(state, 6, 16), "intermediate_size",
        between(state, 3, 17), "num_attention_heads", kv_heads * sharing, "num_key_value_heads",
        kv_heads, "head_dim", 2 * between(state, 1, 5), "vocab_size", between(state, 5, 23),
        "max_position_embeddings", 64, "rms_norm_eps", 1e-5, "rope_theta", 50.0,
        "tie_word_embeddings", tied, "hidden_act", number % 5 < 3 ? "silu" : "gelu_pytorch_tanh",
        "rope_scaling", random_rope(state, number % 4));

    memset(trial, 0, sizeof(*trial));
    assert_non_null(config);
    /* Llama ignores it */
    json_object_set_new(config, "use_sliding_window", json_boolean(number % 2));
    json_object_set_new(config, "sliding_window", json_integer(window));
    json_object_set_new(config, "max_window_layers", json_integer(layers / 2));
    if (tdm_model_from_config("random", "random", config, &trial->model, &err) != TDM_OK)
        fail_msg("case %" PRIu32 ": %s", number, err.message);
    json_decref(config);
    assert_int_equal(trial->model->rope.kind, number % 4);
    assert_int_equal(tdm_reference_new(trial->model, &trial->reference, &err), TDM_OK);
    random_weights(trial->model, trial->reference, state);

    trial->sequence_count = between(state, 1, MAX_SEQUENCES);
    for (uint32_t i = 0; i < trial->sequence_count; i++) {
        trial->lengths[i] = between(state, 1, MAX_LENGTH);
        trial->tokens_total += trial->lengths[i];
    }
    for (uint64_t t = 0; t < trial->tokens_total; t++) {
        trial->tokens[t] = between(state, 0, trial->model->vocabulary - 1);
        trial->targets[t] = between(state, 0, trial->model->vocabulary - 1);
    }
}

static void trial_free(struct trial *trial)
{
    tdm_reference_free(trial->reference);
    tdm_model_free(trial->model);
}

static double step(struct trial *trial)
{
    double loss;

    assert_int_equal(tdm_reference_step(trial->reference, trial->sequence_count, trial->lengths,
                                        trial->tokens, trial->targets, &loss, NULL),
                     TDM_OK);
    return loss;
}

static double loss_only(struct trial *trial)
{
    double loss;

    assert_int_equal(tdm_reference_loss(trial->reference, trial->sequence_count, trial->lengths,
                                        trial->tokens, trial->targets, &loss, NULL),
                     TDM_OK);
    return loss;
}

static double loss_at(struct trial *trial, double *weight, double value)
{
    double before = *weight, loss;

    *weight = value;
    loss = loss_only(trial);
    *weight = before;
    return loss;
}

/* The derivative of the loss to a weight by central differences of fourth order. The best step size
 * depends on the curvature: truncation grows with its fourth power, and rounding falls as it grows.
 * So the step size shrinks, and the answer is where two successive estimates agree best, whatever
 * the gradient says. */
static double difference(struct trial *trial, double *weight)
{
    double w = *weight, previous = NAN, best = NAN, least = INFINITY;

    for (double h = 8e-3; h > 5e-6; h /= 4) {
        double near = loss_at(trial, weight, w + h) - loss_at(trial, weight, w - h);
        double far = loss_at(trial, weight, w + 2 * h) - loss_at(trial, weight, w - 2 * h);
        double estimate = (8 * near - far) / (12 * h);

        if (fabs(estimate - previous) < least) {
            least = fabs(estimate - previous);
            best = estimate;
        }
        previous = estimate;
    }
    return best;
}

/* A query sees itself and, by a hash, two of three earlier tokens of a KV head. */
static bool some_are_seen(const void *context, uint32_t layer, uint64_t kv_head, uint64_t query,
                          uint64_t key)
{
    uint64_t state = *(const uint32_t *)context;
    state = (((state * 31 + layer) * 31 + kv_head) * 1009 + query) * 1009 + key;
    return key == query || draw(&state) % 3 != 0;
}

/* The error is |difference - gradient| / max(|gradient|, root mean square of the tensor's
 * gradient). It is relative, but not to an element that happens to be zero. If all gradients of a
 * tensor are nearly zero (q and k of sequences with one token), the divisor is 1e-4. */
static void gradients_match_differences(void **unused)
{
    double worst[TDM_ROLES] = {0};
    uint64_t elements[TDM_ROLES] = {0};
    uint32_t kinds = 0;

    (void)unused;
    uint64_t cases = tdm_case_long() ? CASES : SHORT_CASES;
    for (uint32_t number = 0; number < cases; number++) {
        uint64_t state = 1024 * seed + number;
        struct trial trial;

        trial_new(number, &state, &trial);
        if (number % 3 == 1) /* a fixed selection of pages */
            tdm_reference_set_sees(trial.reference, some_are_seen, &number);
        assert_true(fabs(step(&trial) - loss_only(&trial)) == 0);
        for (uint32_t n = 0; n < trial.model->tensor_count; n++) {
            const struct tdm_tensor *tensor = &trial.model->tensors[n];
            double *weights = tdm_reference_weights(trial.reference, tensor->unit);
            const double *gradients = tdm_reference_gradients(trial.reference, tensor->unit);
            uint64_t largest = 0;
            double squares = 0, least;

            weights += tensor->offset;
            gradients += tensor->offset;
            for (uint64_t i = 0; i < tensor->elements; i++) {
                squares += gradients[i] * gradients[i];
                if (fabs(gradients[i]) > fabs(gradients[largest]))
                    largest = i;
            }
            least = fmax(sqrt(squares / (double)tensor->elements), 1e-4);
            for (uint32_t pick = 0; pick <= ELEMENTS; pick++) {
                uint64_t i = pick == 0 ? largest : draw(&state) % tensor->elements;
                double expected = difference(&trial, &weights[i]);
                double error = fabs(expected - gradients[i]) / fmax(fabs(gradients[i]), least);

                if (!(error < TOLERANCE))
                    fail_msg("seed %" PRIu64 " case %" PRIu32 " tensor %" PRIu32 " (role %d, unit "
                             "%" PRIu32 ") element %" PRIu64 ": gradient %.12g, difference %.12g",
                             seed, number, n, tensor->role, tensor->unit, i, gradients[i],
                             expected);
                worst[tensor->role] = fmax(worst[tensor->role], error);
                elements[tensor->role]++;
            }
        }
        kinds |= 1u << trial.model->rope.kind;
        trial_free(&trial);
    }
    assert_int_equal(kinds, 15);
    /* Later roles are of models that are not run. */
    for (int role = 0; role <= TDM_ROLE_K_NORM; role++) {
        print_message("role %2d: %5" PRIu64 " elements, worst relative error %.1e\n", role,
                      elements[role], worst[role]);
        assert_true(elements[role] > 0);
    }
}

/* Padding between tensors is no parameter: it must not affect a loss or get a gradient. */
static void padding_is_ignored(void **unused)
{
    (void)unused;
    for (uint32_t number = 0; number < 24; number++) {
        uint64_t state = 1024 * seed + number;
        struct trial trial;
        double loss;

        trial_new(number, &state, &trial);
        loss = step(&trial);
        for (uint32_t u = 0; u < trial.model->unit_count; u++) {
            const struct tdm_unit *unit = &trial.model->units[u];
            const double *gradients = tdm_reference_gradients(trial.reference, u);
            uint64_t end = 0;

            for (uint32_t n = unit->first_tensor; n <= unit->first_tensor + unit->tensor_count;
                 n++) {
                bool last = n == unit->first_tensor + unit->tensor_count;
                uint64_t begin = last ? unit->elements : trial.model->tensors[n].offset;

                for (uint64_t i = end; i < begin; i++) {
                    assert_true(gradients[i] == 0);
                    tdm_reference_weights(trial.reference, u)[i] = NAN;
                }
                if (!last)
                    end = begin + trial.model->tensors[n].elements;
            }
        }
        assert_true(step(&trial) == loss);
        trial_free(&trial);
    }
}

/* How many tokens after it a token can affect through the windows of all layers. */
static uint64_t reach_of(const struct tdm_model *model)
{
    uint64_t reach = 0;

    for (uint32_t layer = 0; layer < model->layers; layer++) {
        uint64_t window = model->layer_kinds[layer].window;

        reach += window > 0 ? window - 1 : MAX_LENGTH;
    }
    return reach;
}

/* A changed token changes its own loss. The losses of tokens before it, of tokens out of its reach,
 * and of other sequences stay the same to the bit. */
static void later_tokens_do_not_matter(void **unused)
{
    double before[MAX_SEQUENCES * MAX_LENGTH];

    (void)unused;
    for (uint32_t number = 0; number < 32; number++) {
        uint64_t state = 1024 * seed + number, first = 0;
        struct trial trial;

        trial_new(number, &state, &trial);
        uint64_t reach = reach_of(trial.model);
        for (uint32_t s = 0; s < trial.sequence_count; first += trial.lengths[s++]) {
            uint64_t changed = first + draw(&state) % trial.lengths[s];
            uint32_t token = trial.tokens[changed];
            const double *after;

            loss_only(&trial);
            memcpy(before, tdm_reference_token_losses(trial.reference),
                   sizeof(double) * trial.tokens_total);
            trial.tokens[changed] = (token + 1) % trial.model->vocabulary;
            loss_only(&trial);
            after = tdm_reference_token_losses(trial.reference);
            for (uint64_t t = 0; t < trial.tokens_total; t++)
                if (t < changed || t >= first + trial.lengths[s] || t - changed > reach)
                    assert_true(after[t] == before[t]);
            assert_true(after[changed] != before[changed]);
            /* One layer suffices for a token to reach the next through attention. */
            if (changed + 1 < first + trial.lengths[s] && reach > 0)
                assert_true(after[changed + 1] != before[changed + 1]);
            trial.tokens[changed] = token;
        }
        trial_free(&trial);
    }
}

/* A step of several sequences is the mean, weighted by tokens, of steps of one sequence each. */
static void sequences_are_independent(void **unused)
{
    (void)unused;
    for (uint32_t number = 0; number < 32; number++) {
        uint64_t state = 1024 * seed + number, first = 0;
        struct tdm_reference *alone;
        struct trial trial;
        double whole, sum = 0, **sums;

        trial_new(number, &state, &trial);
        whole = step(&trial);
        assert_int_equal(tdm_reference_new(trial.model, &alone, NULL), TDM_OK);
        sums = test_calloc(trial.model->unit_count, sizeof(*sums));
        for (uint32_t u = 0; u < trial.model->unit_count; u++) {
            uint64_t size = trial.model->units[u].elements;

            sums[u] = test_calloc(size, sizeof(double));
            memcpy(tdm_reference_weights(alone, u), tdm_reference_weights(trial.reference, u),
                   size * sizeof(double));
        }
        for (uint32_t s = 0; s < trial.sequence_count; s++) {
            double share = (double)trial.lengths[s] / (double)trial.tokens_total, loss;

            assert_int_equal(tdm_reference_step(alone, 1, &trial.lengths[s], trial.tokens + first,
                                                trial.targets + first, &loss, NULL),
                             TDM_OK);
            assert_memory_equal(tdm_reference_token_losses(alone),
                                tdm_reference_token_losses(trial.reference) + first,
                                trial.lengths[s] * sizeof(double));
            sum += share * loss;
            for (uint32_t u = 0; u < trial.model->unit_count; u++)
                for (uint64_t i = 0; i < trial.model->units[u].elements; i++)
                    sums[u][i] += share * tdm_reference_gradients(alone, u)[i];
            first += trial.lengths[s];
        }
        assert_true(fabs(sum - whole) < 1e-12);
        for (uint32_t u = 0; u < trial.model->unit_count; u++) {
            for (uint64_t i = 0; i < trial.model->units[u].elements; i++)
                assert_true(fabs(sums[u][i] - tdm_reference_gradients(trial.reference, u)[i]) <
                            1e-12);
            test_free(sums[u]);
        }
        test_free(sums);
        tdm_reference_free(alone);
        trial_free(&trial);
    }
}

/* In two steps with the same gradient g, corrected moments are g and g^2 both times, whatever the
 * betas. So a step is lr * g / (|g| + epsilon) and the decay of matrices. */
static void adamw_follows_its_paper(void **unused)
{
    uint64_t state = seed;
    struct trial trial;
    double *before[5] = {NULL}, lr = 0.01, decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;

    (void)unused;
    trial_new(4, &state, &trial);
    assert_true(trial.model->unit_count <= 5);
    step(&trial);
    for (uint32_t u = 0; u < trial.model->unit_count; u++) {
        uint64_t bytes = trial.model->units[u].elements * sizeof(double);

        before[u] = test_malloc(bytes);
        memcpy(before[u], tdm_reference_weights(trial.reference, u), bytes);
    }
    tdm_reference_adamw(trial.reference, 1, lr, beta1, beta2, epsilon, decay);
    tdm_reference_adamw(trial.reference, 2, lr, beta1, beta2, epsilon, decay);
    for (uint32_t n = 0; n < trial.model->tensor_count; n++) {
        const struct tdm_tensor *tensor = &trial.model->tensors[n];
        double shrink = tensor->rows > 1 ? 1 - lr * decay : 1;

        for (uint64_t i = 0; i < tensor->elements; i++) {
            uint64_t at = tensor->offset + i;
            double g = tdm_reference_gradients(trial.reference, tensor->unit)[at];
            double change = lr * g / (fabs(g) + epsilon);
            double expected = before[tensor->unit][at];

            expected = expected * shrink - change;
            expected = expected * shrink - change;
            assert_true(fabs(tdm_reference_weights(trial.reference, tensor->unit)[at] - expected) <
                        1e-13);
        }
    }
    for (uint32_t u = 0; u < trial.model->unit_count; u++)
        test_free(before[u]);
    trial_free(&trial);
}

static void to_bf16(void *context, enum tdm_reference_point point, uint64_t count, double *values)
{
    uint64_t *calls = context;

    calls[point] += count;
    for (uint64_t i = 0; i < count; i++)
        values[i] = tdm_bf16_to_float(tdm_float_to_bf16((float)values[i]));
}

static void rounding_reaches_every_point(void **unused)
{
    uint64_t state = seed, calls[TDM_REFERENCE_POINTS] = {0};
    struct trial trial;
    double exact, rounded;

    (void)unused;
    trial_new(0, &state, &trial);
    exact = step(&trial);
    tdm_reference_set_rounding(trial.reference, to_bf16, calls, NULL);
    rounded = step(&trial);
    for (int point = 0; point < TDM_REFERENCE_POINTS; point++)
        assert_true(calls[point] > 0);
    assert_true(rounded != exact);
    assert_true(fabs(rounded - exact) < 0.05 * exact);
    tdm_reference_set_rounding(trial.reference, NULL, NULL, NULL);
    assert_true(step(&trial) == exact);
    trial_free(&trial);
}

/* Counts values, and rounds nothing. */
static void as_it_is(void *context, enum tdm_reference_point point, uint64_t count, double *values)
{
    uint64_t *calls = context;

    (void)values;
    calls[point] += count;
}

/* Sums over tokens are the same if they are stored part by part. */
static void parts_make_the_same_sums(void **unused)
{
    (void)unused;
    for (uint32_t number = 0; number < 24; number++) {
        uint64_t state = 1024 * seed + number;
        uint64_t calls[TDM_REFERENCE_POINTS] = {0}, part_calls[TDM_REFERENCE_POINTS] = {0};
        unsigned char cuts[MAX_SEQUENCES * MAX_LENGTH];
        struct trial whole, parts;

        trial_new(number, &state, &whole);
        state = 1024 * seed + number;
        trial_new(number, &state, &parts);
        cuts[0] = TDM_REFERENCE_CHUNK | TDM_REFERENCE_TILE;
        for (uint64_t t = 1; t < parts.tokens_total; t++)
            cuts[t] = (unsigned char)(draw(&state) % 4);
        if (parts.tokens_total > 1)
            cuts[1] = TDM_REFERENCE_CHUNK;
        tdm_reference_set_rounding(whole.reference, as_it_is, calls, NULL);
        tdm_reference_set_rounding(parts.reference, as_it_is, part_calls, cuts);
        assert_true(step(&whole) == step(&parts));
        for (uint32_t u = 0; u < whole.model->unit_count; u++) {
            const double *expected = tdm_reference_gradients(whole.reference, u);
            const double *gradients = tdm_reference_gradients(parts.reference, u);

            for (uint64_t i = 0; i < whole.model->units[u].elements; i++)
                assert_true(fabs(gradients[i] - expected[i]) < 1e-12);
        }
        if (parts.tokens_total > 1)
            assert_true(part_calls[TDM_REFERENCE_D_WEIGHT] > calls[TDM_REFERENCE_D_WEIGHT]);
        assert_int_equal(part_calls[TDM_REFERENCE_HIDDEN], calls[TDM_REFERENCE_HIDDEN]);
        trial_free(&whole);
        trial_free(&parts);
    }
}

static void bad_steps_are_refused(void **unused)
{
    uint64_t state = seed;
    struct trial trial;
    struct tdm_error err = {0};
    double loss = 7;

    (void)unused;
    trial_new(0, &state, &trial);
    assert_int_equal(tdm_reference_step(trial.reference, 0, NULL, NULL, NULL, &loss, &err),
                     TDM_INPUT);
    trial.targets[0] = trial.model->vocabulary;
    assert_int_equal(tdm_reference_step(trial.reference, trial.sequence_count, trial.lengths,
                                        trial.tokens, trial.targets, &loss, &err),
                     TDM_INPUT);
    assert_non_null(strstr(err.message, "outside the vocabulary"));
    assert_true(loss == 7);
    assert_null(tdm_reference_weights(trial.reference, trial.model->unit_count));
    trial_free(&trial);
    tdm_reference_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(padding_is_ignored),
        cmocka_unit_test(later_tokens_do_not_matter),
        cmocka_unit_test(sequences_are_independent),
        cmocka_unit_test(adamw_follows_its_paper),
        cmocka_unit_test(rounding_reaches_every_point),
        cmocka_unit_test(parts_make_the_same_sums),
        cmocka_unit_test(bad_steps_are_refused),
    };
    const char *given = getenv("TDM_SEED");

    seed = given && *given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("TDM_SEED=%" PRIu64 "\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
