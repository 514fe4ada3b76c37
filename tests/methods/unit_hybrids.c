/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of hybrid models, of Megatron but for ZeRO-3: what a layer of Mamba-2 keeps for its
 * backward and takes in it, counted by hand, on one tensor rank and on two; its parameters; what
 * cannot be run. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define K UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)
#define MOST_PAIRS 4u
#define TOKENS (8 * K)
#define HIDDEN K
#define HEADS 32u /* of Mamba-2, of 64 */
#define INNER (HEADS * UINT64_C(64))
#define GROUPS 4u
#define STATE UINT64_C(128)
#define CHUNK UINT64_C(128)

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static struct tdm_model *model_of(const char *pattern)
{
    struct tdm_model *model = NULL;
    struct tdm_error err;
    json_t *config = json_pack(
        "{s:[s], s:s, s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:b, s:s, s:s, "
        "s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i}",
        "architectures", "NemotronHForCausalLM", "model_type", "nemotron_h", "attention_bias", 0,
        "mlp_bias", 0, "use_bias", 0, "use_conv_bias", 1, "mamba_proj_bias", 0, "conv_kernel", 4,
        "expand", 2, "n_groups", (int)GROUPS, "ssm_state_size", (int)STATE, "chunk_size",
        (int)CHUNK, "layer_norm_epsilon", 1e-5, "vocab_size", 4096, "tie_word_embeddings", 0,
        "mlp_hidden_act", "relu2", "mamba_hidden_act", "silu", "num_key_value_heads", 4, "head_dim",
        64, "hidden_size", (int)HIDDEN, "intermediate_size", 4096, "num_hidden_layers",
        (int)strlen(pattern), "hybrid_override_pattern", pattern, "num_attention_heads", 16,
        "mamba_num_heads", (int)HEADS, "mamba_head_dim", 64, "max_position_embeddings", 8192);
    assert_non_null(config);
    must(tdm_model_from_config("test", "test", config, &model, &err), &err);
    json_decref(config);
    return model;
}

struct setting {
    const char *method;
    uint64_t gpus;
    const char *pairs[MOST_PAIRS]; /* up to the first NULL */
};

static enum tdm_status read_setting(const struct setting *setting, const struct tdm_model *model,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    size_t count = 0;
    while (count < MOST_PAIRS && setting->pairs[count] != NULL)
        count++;
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = TOKENS;
    settings->torch.batch = 1;
    settings->torch.ranks = setting->gpus;
    must(tdm_method_find(setting->method, &method, err), err);
    must(tdm_method_apply(method, setting->pairs, count, settings, &choices, err), err);
    return tdm_method_check(model, settings, err);
}

static struct tdm_torch_run run_by(const char *method, const char *pattern, uint64_t gpus,
                                   const char *pair)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, 32 * MIB, MIB, 90}, UINT64_C(1) << 42, UINT64_C(1) << 42, 0, false};
    const struct setting setting = {
        method, gpus, {"allocator_conf=expandable_segments:True", pair}};
    struct tdm_model *model = model_of(pattern);
    struct tdm_method_settings settings;
    struct tdm_torch_run out;
    struct tdm_error err;
    must(read_setting(&setting, model, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 3, NULL, &out, &err), &err);
    assert_false(out.step[2].failed);
    tdm_model_free(model);
    return out;
}

static struct tdm_torch_run run(const char *pattern, uint64_t gpus, const char *pair)
{
    return run_by("tensor-parallel", pattern, gpus, pair);
}

static void assert_near(uint64_t value, uint64_t expected, uint64_t slack)
{
    if (value + slack < expected || value > expected + slack)
        fail_msg("%llu is not near %llu", (unsigned long long)value, (unsigned long long)expected);
}

static uint64_t kept(const char *pattern, uint64_t gpus)
{
    const struct tdm_torch_run out = run(pattern, gpus, NULL);
    return out.step[2].end_bytes[TDM_PHASE_FORWARD] - out.step[2].before_bytes;
}

/* Parameters of a layer on one of `ranks`: convolution with its bias, three numbers a head, the
 * product before it and its norm, the norm of groups, the product behind. */
static uint64_t parameters(uint64_t ranks)
{
    const uint64_t inner = INNER / ranks, width = inner + 2 * GROUPS / ranks * STATE;
    return 5 * width + 3 * HEADS / ranks + HIDDEN + (inner + width + HEADS / ranks) * HIDDEN +
           inner + HIDDEN * inner;
}

static void parameters_by_hand(void **state)
{
    (void)state;
    for (uint64_t ranks = 1; ranks <= 4; ranks *= 2) {
        const uint64_t more = run("MM*-", ranks, NULL).weight_bytes,
                       less = run("M*-", ranks, NULL).weight_bytes;
        assert_int_equal(more - less, 2 * parameters(ranks));
    }
}

/* A layer keeps its normed input with a scale a token, the product whole, what the scan made, that
 * again with scales of groups for the norm, the normed output; and its result is the next input.
 * Numbers by head take a few KiB. */
static void kept_by_hand(void **state)
{
    (void)state;
    for (uint64_t ranks = 1; ranks <= 2; ranks++) {
        const uint64_t inner = INNER / ranks, groups = GROUPS / ranks;
        const uint64_t product = 2 * inner + 2 * groups * STATE + HEADS / ranks;
        const uint64_t expected =
            TOKENS * (2 * HIDDEN * 2 + 4 + product * 2 + 3 * inner * 2 + groups * 4);
        assert_near(kept("MM*-", ranks) - kept("M*-", ranks), expected, 8 * K);
    }
}

static uint64_t kept_by_context(const char *pattern, uint64_t ranks)
{
    const struct tdm_torch_run out = run_by("megatron-cp", pattern, ranks, NULL);
    return out.step[2].end_bytes[TDM_PHASE_FORWARD] - out.step[2].before_bytes;
}

/* A context rank keeps what is between the exchanges for some heads and groups of all tokens, and
 * all else for all heads of its tokens. The product itself goes once it is exchanged. */
static void context_ranks_by_hand(void **state)
{
    (void)state;
    for (uint64_t ranks = 2; ranks <= 4; ranks *= 2) {
        const uint64_t groups = GROUPS / ranks, inner = INNER / ranks;
        const uint64_t product = 2 * inner + 2 * groups * STATE + HEADS / ranks;
        const uint64_t expected = TOKENS / ranks * (2 * HIDDEN * 2 + 4 + GROUPS * 4) +
                                  TOKENS * (product * 2 + 3 * inner * 2);
        assert_near(kept_by_context("MM*-", ranks) - kept_by_context("M*-", ranks), expected,
                    16 * K);
    }
}

/* An MLP keeps its normed input, the ReLU of its product and the square of that, and its result. */
static void mlp_by_hand(void **state)
{
    (void)state;
    assert_near(kept("M*--", 1) - kept("M*-", 1), TOKENS * (2 * HIDDEN * 2 + 4 + 2 * 4096 * 2),
                8 * K);
}

/* The backward of a scan has states of all chunks in fp32 twice, and then in fp32 once and in bf16
 * twice: smaller chunks make more of them. */
static void states_are_of_chunks(void **state)
{
    const uint64_t states = TOKENS / CHUNK * INNER * STATE;
    (void)state;
    const struct tdm_torch_run full = run("MM*-", 1, "recompute_granularity=full"),
                               none = run("MM*-", 1, NULL);
    const struct tdm_torch_step *step = &full.step[2];
    assert_true(step->phases[TDM_PHASE_BACKWARD].allocated - step->before_bytes > states * 8);
    assert_true(step->peak.allocated < none.step[2].peak.allocated);
}

static void expect_refusal(const char *name, const struct setting *setting, const char *text)
{
    struct tdm_model *model = NULL;
    struct tdm_method_settings settings;
    struct tdm_error err;
    if (name == NULL)
        model = model_of("MM*-");
    else
        must(tdm_model_load(name, &model, &err), &err);
    assert_int_equal(read_setting(setting, model, &settings, &err), TDM_USAGE);
    if (strstr(err.message, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, err.message);
    tdm_model_free(model);
}

/* ZeRO-3: a rank has an eighth of each parameter. What a mixer's kernels read is gathered for it,
 * and where nothing persists all of it is given back until the next step. */
static void shards_by_hand(void **state)
{
    (void)state;
    const char *nothing = "stage3_param_persistence_threshold=0",
               *all = "stage3_param_persistence_threshold=1000000000000";
    const struct tdm_torch_run more = run_by("zero3", "MM*-", 8, nothing),
                               less = run_by("zero3", "M*-", 8, nothing),
                               whole = run_by("zero3", "MM*-", 8, all);
    struct tdm_model *model = model_of("MM*-");
    const uint64_t whole_bytes = 2 * model->parameters;
    tdm_model_free(model);
    assert_int_equal(more.weight_bytes - less.weight_bytes, 2 * parameters(1) / 8);
    const uint64_t apart = more.step[2].before_bytes, together = whole.step[2].before_bytes;
    assert_near(together - apart, whole_bytes, whole_bytes / 100);
}

static void what_is_not_known_is_refused(void **state)
{
    const struct setting packed = {"tensor-parallel", 1, {"qkv_format=thd"}};
    const struct setting groups = {"tensor-parallel", 8, {"tensor_model_parallel_size=8"}};
    const struct setting adapters = {"tensor-parallel", 1, {"lora_rank=8"}};
    const struct setting plain = {"tensor-parallel", 1, {NULL}};
    (void)state;
    expect_refusal(NULL, &packed, "packed sequences");
    expect_refusal(NULL, &groups, "does not divide 4 groups");
    expect_refusal(NULL, &adapters, "adapters");
    expect_refusal("falcon-h1-0.5b", &plain, "FalconH1ForCausalLM");
    expect_refusal("lfm2-350m", &plain, "short convolutions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_by_hand),
        cmocka_unit_test(context_ranks_by_hand),
        cmocka_unit_test(kept_by_hand),
        cmocka_unit_test(mlp_by_hand),
        cmocka_unit_test(states_are_of_chunks),
        cmocka_unit_test(shards_by_hand),
        cmocka_unit_test(what_is_not_known_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
