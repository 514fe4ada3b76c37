/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of models/: parameter counts of all shipped configs, layout, tensor names, RoPE frequencies
 * against values computed elsewhere, both spellings, and broken configs. */
#include "base/json.h"
#include "models/model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static struct tdm_model *load(const char *name)
{
    struct tdm_model *model = NULL;
    struct tdm_error err = {0};
    if (tdm_model_load(name, &model, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return model;
}

/* The path of a file beside the tests. */
static const char *test_file(const char *name)
{
    static char path[1024];
    const char *source = getenv("TDM_SRCDIR");
    snprintf(path, sizeof(path), "%s/tests/data/configs/%s", source == NULL ? "." : source, name);
    return path;
}

/* The config of byte-1m with the fields of a JSON object put over its own. */
static json_t *changed_config(const char *changes)
{
    struct tdm_model *model = load("byte-1m");
    json_t *config = json_deep_copy(model->config);
    tdm_model_free(model);
    json_error_t problem;
    json_t *update = json_loads(changes, 0, &problem);
    if (update == NULL)
        fail_msg("%s: %s", changes, problem.text);
    json_object_update(config, update);
    json_decref(update);
    return config;
}

static struct tdm_model *changed_model(const char *changes)
{
    json_t *config = changed_config(changes);
    struct tdm_model *model = NULL;
    struct tdm_error err = {0};
    if (tdm_model_from_config("config.json", "changed", config, &model, &err) != TDM_OK)
        fail_msg("%s: %s", changes, err.message);
    json_decref(config);
    return model;
}

/* Published totals (the `total` of the safetensors metadata, where it exists), and our own
 * models. */
static const struct {
    const char *name;
    uint64_t parameters;
} shipped[] = {
    {"afm-4.5b", UINT64_C(4619184640)},
    {"apertus-70b", UINT64_C(70599864480)},
    {"apertus-8b", UINT64_C(8053338176)},
    {"aya-expanse-32b", UINT64_C(32296476672)},
    {"aya-expanse-8b", UINT64_C(8028033024)},
    {"baichuan2-7b", UINT64_C(7505973248)},
    {"bloom-176b", UINT64_C(176247271424)},
    {"bloom-1b1", UINT64_C(1065314304)},
    {"bloom-1b7", UINT64_C(1722408960)},
    {"bloom-3b", UINT64_C(3002557440)},
    {"bloom-560m", UINT64_C(559214592)},
    {"bloom-7b1", UINT64_C(7069016064)},
    {"burst-14b", UINT64_C(13916984320)},
    {"burst-7b", UINT64_C(6738415616)},
    {"byte-100m", UINT64_C(99634176)},
    {"byte-1m", UINT64_C(853120)},
    {"codellama-13b", UINT64_C(13016028160)},
    {"codellama-34b", UINT64_C(33743970304)},
    {"codellama-70b", UINT64_C(68976910336)},
    {"codellama-7b", UINT64_C(6738546688)},
    {"codeqwen1.5-7b", UINT64_C(7250284544)},
    {"codestral-22b", UINT64_C(22247282688)},
    {"command-a", UINT64_C(111057580032)},
    {"command-r-plus", UINT64_C(103810674688)},
    {"command-r-v01", UINT64_C(34980831232)},
    {"command-r7b", UINT64_C(8028033024)},
    {"deepseek-coder-33b", UINT64_C(33342991360)},
    {"deepseek-coder-6.7b", UINT64_C(6740512768)},
    {"deepseek-llm-7b", UINT64_C(6910365696)},
    {"deepseek-r1-distill-qwen-1.5b", UINT64_C(1777088000)},
    {"deepseek-v2", UINT64_C(235741434880)},
    {"deepseek-v2-lite", UINT64_C(15706484224)},
    {"deepseek-v3", UINT64_C(671026404352)},
    {"dots.llm1", UINT64_C(142774373888)},
    {"ernie-4.5-0.3b", UINT64_C(360748032)},
    {"ernie-4.5-21b-a3b", UINT64_C(21825437888)},
    {"exaone-4.0-1.2b", UINT64_C(1279391488)},
    {"exaone-4.0-32b", UINT64_C(32003216384)},
    {"falcon-11b", UINT64_C(11102822400)},
    {"falcon-40b", UINT64_C(41303293952)},
    {"falcon-7b", UINT64_C(6921720704)},
    {"falcon-h1-0.5b", UINT64_C(521411104)},
    {"falcon3-10b", UINT64_C(10305653760)},
    {"falcon3-1b", UINT64_C(1669408768)},
    {"falcon3-3b", UINT64_C(3227655168)},
    {"falcon3-7b", UINT64_C(7455550464)},
    {"gemma-2-27b", UINT64_C(27227128320)},
    {"gemma-2-2b", UINT64_C(2614341888)},
    {"gemma-2-9b", UINT64_C(9241705984)},
    {"gemma-2b", UINT64_C(2506172416)},
    {"gemma-3-12b", UINT64_C(11766034176)},
    {"gemma-3-1b", UINT64_C(999885952)},
    {"gemma-3-270m", UINT64_C(268098176)},
    {"gemma-3-27b", UINT64_C(27009346304)},
    {"gemma-3-4b", UINT64_C(3880263168)},
    {"gemma-7b", UINT64_C(8537680896)},
    {"glm-4-32b", UINT64_C(32566081536)},
    {"glm-4-9b", UINT64_C(9400279040)},
    {"glm-4.5", UINT64_C(352797814784)},
    {"glm-4.5-air", UINT64_C(106852245504)},
    {"glm-4.6", UINT64_C(352797814784)},
    {"glm-4.7-flash", UINT64_C(29943390976)},
    {"gpt-j-6b", UINT64_C(6050882784)},
    {"gpt-neox-20b", UINT64_C(20554567680)},
    {"gpt-oss-120b", UINT64_C(116829156672)},
    {"gpt-oss-20b", UINT64_C(20914757184)},
    {"gpt2", UINT64_C(124439808)},
    {"gpt2-large", UINT64_C(774030080)},
    {"gpt2-medium", UINT64_C(354823168)},
    {"gpt2-xl", UINT64_C(1557611200)},
    {"granite-3.1-1b-a400m", UINT64_C(1334628352)},
    {"granite-3.1-2b", UINT64_C(2533531648)},
    {"granite-3.1-3b-a800m", UINT64_C(3298793472)},
    {"granite-3.1-8b", UINT64_C(8170848256)},
    {"granite-3.3-2b", UINT64_C(2533539840)},
    {"granite-3.3-8b", UINT64_C(8170864640)},
    {"granite-4.0-h-micro", UINT64_C(3191396096)},
    {"granite-4.0-h-small", UINT64_C(32207337984)},
    {"granite-4.0-h-tiny", UINT64_C(6939037248)},
    {"granite-4.0-micro", UINT64_C(3402836480)},
    {"hunyuan-a13b", UINT64_C(80393183232)},
    {"internlm2.5-1.8b", UINT64_C(1889110016)},
    {"internlm2.5-20b", UINT64_C(19861149696)},
    {"internlm2.5-7b", UINT64_C(7737708544)},
    {"internlm3-8b", UINT64_C(8804241408)},
    {"kimi-k2", UINT64_C(1026408209408)},
    {"kimi-k2-0905", UINT64_C(1026408209408)},
    {"kimi-k2-thinking", UINT64_C(1026408209408)},
    {"lfm2-1.2b", UINT64_C(1170340608)},
    {"lfm2-2.6b", UINT64_C(2569272320)},
    {"lfm2-350m", UINT64_C(354483968)},
    {"lfm2-700m", UINT64_C(742489344)},
    {"lfm2-8b-a1b", UINT64_C(8339929856)},
    {"llama-2-13b", UINT64_C(13015864320)},
    {"llama-2-70b", UINT64_C(68976648192)},
    {"llama-2-7b", UINT64_C(6738415616)},
    {"llama-3-8b", UINT64_C(8030261248)},
    {"llama-3.1-405b", UINT64_C(405853388800)},
    {"llama-3.1-70b", UINT64_C(70553706496)},
    {"llama-3.1-8b", UINT64_C(8030261248)},
    {"llama-3.2-1b", UINT64_C(1235814400)},
    {"llama-3.2-3b", UINT64_C(3212749824)},
    {"llama-30b", UINT64_C(32528943616)},
    {"llama-4-maverick", UINT64_C(400711848960)},
    {"llama-4-scout", UINT64_C(107769861120)},
    {"llama-65b", UINT64_C(65285660672)},
    {"minimax-m2", UINT64_C(228689748992)},
    {"ministral-3-14b", UINT64_C(13506073600)},
    {"ministral-3-3b", UINT64_C(3429006336)},
    {"ministral-3-8b", UINT64_C(8489553920)},
    {"ministral-8b", UINT64_C(8019808256)},
    {"mistral-7b-v0.1", UINT64_C(7241732096)},
    {"mistral-7b-v0.2", UINT64_C(7241732096)},
    {"mistral-7b-v0.3", UINT64_C(7248023552)},
    {"mistral-large-123b", UINT64_C(122610069504)},
    {"mistral-nemo-12b", UINT64_C(12247782400)},
    {"mistral-small-24b", UINT64_C(23572403200)},
    {"mixtral-8x22b", UINT64_C(140630071296)},
    {"mixtral-8x7b", UINT64_C(46702792704)},
    {"moonlight-16b-a3b", UINT64_C(15960108544)},
    {"mpt-30b", UINT64_C(29957200896)},
    {"mpt-7b", UINT64_C(6649286656)},
    {"nemotron-h-8b", UINT64_C(8100852736)},
    {"nemotron-mini-4b", UINT64_C(4190509056)},
    {"nemotron-nano-12b-v2", UINT64_C(12310001152)},
    {"nemotron-nano-9b-v2", UINT64_C(8888227328)},
    {"olmo-1b", UINT64_C(1176764416)},
    {"olmo-2-13b", UINT64_C(13716198400)},
    {"olmo-2-1b", UINT64_C(1484916736)},
    {"olmo-2-32b", UINT64_C(32234279936)},
    {"olmo-2-7b", UINT64_C(7298617344)},
    {"olmo-3-32b", UINT64_C(32233522176)},
    {"olmo-3-7b", UINT64_C(7298011136)},
    {"olmo-7b", UINT64_C(6888095744)},
    {"olmoe-1b-7b", UINT64_C(6919161856)},
    {"open-llama-3b", UINT64_C(3426473600)},
    {"opt-1.3b", UINT64_C(1315758080)},
    {"opt-125m", UINT64_C(125239296)},
    {"opt-13b", UINT64_C(12853473280)},
    {"opt-30b", UINT64_C(29974540288)},
    {"opt-6.7b", UINT64_C(6658473984)},
    {"opt-66b", UINT64_C(65719701504)},
    {"phi-1.5", UINT64_C(1418270720)},
    {"phi-2", UINT64_C(2779683840)},
    {"phi-3-medium", UINT64_C(13960238080)},
    {"phi-3-mini", UINT64_C(3821079552)},
    {"phi-4", UINT64_C(14659507200)},
    {"phi-4-mini", UINT64_C(3836021760)},
    {"pythia-1.4b", UINT64_C(1414647808)},
    {"pythia-12b", UINT64_C(11846072320)},
    {"pythia-14m", UINT64_C(14067712)},
    {"pythia-160m", UINT64_C(162322944)},
    {"pythia-1b", UINT64_C(1011781632)},
    {"pythia-2.8b", UINT64_C(2775208960)},
    {"pythia-31m", UINT64_C(30494720)},
    {"pythia-410m", UINT64_C(405334016)},
    {"pythia-6.9b", UINT64_C(6857302016)},
    {"pythia-70m", UINT64_C(70426624)},
    {"qwen-1.8b", UINT64_C(1836828672)},
    {"qwen-14b", UINT64_C(14167290880)},
    {"qwen-72b", UINT64_C(72287920128)},
    {"qwen-7b", UINT64_C(7721324544)},
    {"qwen1.5-0.5b", UINT64_C(463987712)},
    {"qwen1.5-1.8b", UINT64_C(1836828672)},
    {"qwen1.5-110b", UINT64_C(111209914368)},
    {"qwen1.5-14b", UINT64_C(14167290880)},
    {"qwen1.5-32b", UINT64_C(32512218112)},
    {"qwen1.5-4b", UINT64_C(3950369280)},
    {"qwen1.5-72b", UINT64_C(72287920128)},
    {"qwen1.5-7b", UINT64_C(7721324544)},
    {"qwen1.5-moe-a2.7b", UINT64_C(14315784192)},
    {"qwen2-57b-a14b", UINT64_C(57408658944)},
    {"qwen2-vl-7b", UINT64_C(7615616512)},
    {"qwen2.5-0.5b", UINT64_C(494032768)},
    {"qwen2.5-1.5b", UINT64_C(1543714304)},
    {"qwen2.5-14b", UINT64_C(14770033664)},
    {"qwen2.5-32b", UINT64_C(32763876352)},
    {"qwen2.5-3b", UINT64_C(3085938688)},
    {"qwen2.5-72b", UINT64_C(72706203648)},
    {"qwen2.5-7b", UINT64_C(7615616512)},
    {"qwen2.5-vl-3b", UINT64_C(3085938688)},
    {"qwen2.5-vl-72b", UINT64_C(72706203648)},
    {"qwen2.5-vl-7b", UINT64_C(7615616512)},
    {"qwen3-0.6b", UINT64_C(596049920)},
    {"qwen3-1.7b", UINT64_C(1720574976)},
    {"qwen3-14b", UINT64_C(14768307200)},
    {"qwen3-235b-a22b", UINT64_C(235093634560)},
    {"qwen3-30b-a3b", UINT64_C(30532122624)},
    {"qwen3-32b", UINT64_C(32762123264)},
    {"qwen3-4b", UINT64_C(4022468096)},
    {"qwen3-8b", UINT64_C(8190735360)},
    {"qwen3-coder-480b-a35b", UINT64_C(480154875392)},
    {"qwen3-next-80b-a3b", UINT64_C(79674391296)},
    {"qwen3-vl-235b-a22b", UINT64_C(235093634560)},
    {"qwen3-vl-2b", UINT64_C(1720574976)},
    {"qwen3-vl-30b-a3b", UINT64_C(30532122624)},
    {"qwen3-vl-32b", UINT64_C(32762123264)},
    {"qwen3-vl-4b", UINT64_C(4022468096)},
    {"qwen3-vl-8b", UINT64_C(8190735360)},
    {"redpajama-incite-3b", UINT64_C(2775864320)},
    {"seed-oss-36b", UINT64_C(36151104512)},
    {"smollm2-1.7b", UINT64_C(1711376384)},
    {"smollm2-135m", UINT64_C(134515008)},
    {"smollm2-360m", UINT64_C(361821120)},
    {"smollm3-3b", UINT64_C(3075098624)},
    {"solar-10.7b", UINT64_C(10731524096)},
    {"stablelm-2-1.6b", UINT64_C(1644515328)},
    {"stablelm-3b-4e1t", UINT64_C(2795443200)},
    {"starcoder2-15b", UINT64_C(15957889024)},
    {"starcoder2-3b", UINT64_C(3030371328)},
    {"starcoder2-7b", UINT64_C(7173923840)},
    {"tinyllama-1.1b", UINT64_C(1100048384)},
    {"yi-1.5-9b", UINT64_C(8829407232)},
    {"yi-34b", UINT64_C(34388917248)},
    {"yi-6b", UINT64_C(6061035520)},
};

enum { SHIPPED = sizeof(shipped) / sizeof(shipped[0]) };

static void test_parameter_counts(void **state)
{
    (void)state;
    char **names;
    assert_int_equal(tdm_model_names(&names, NULL), TDM_OK);
    for (size_t i = 0; i < SHIPPED; i++) {
        assert_string_equal(names[i], shipped[i].name);
        struct tdm_model *model = load(names[i]);
        assert_string_equal(model->name, shipped[i].name);
        assert_int_equal(model->parameters, shipped[i].parameters);
        char unknown[TDM_MODEL_UNKNOWN]; /* a model only for predictions says why */
        assert_int_equal(tdm_model_unknown(model, unknown)[0] != '\0', model->sized_only);
        tdm_model_free(model);
    }
    assert_null(names[SHIPPED]);
    free(names);
}

/* Models whose computation is the same: BurstEngine's 7B is Llama 2's under another name; others
 * differ in the context that they were trained for, and in how weights are stored. */
static bool computes_the_same(const char *a, const char *b)
{
    static const char *const pairs[][2] = {{"burst-7b", "llama-2-7b"},
                                           {"glm-4.5", "glm-4.6"},
                                           {"kimi-k2", "kimi-k2-0905"},
                                           {"kimi-k2", "kimi-k2-thinking"},
                                           {"kimi-k2-0905", "kimi-k2-thinking"}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (strcmp(pairs[i][0], a) == 0 && strcmp(pairs[i][1], b) == 0)
            return true;
    return false;
}

static void test_digests_differ(void **state)
{
    (void)state;
    char digests[SHIPPED][17];
    for (size_t i = 0; i < SHIPPED; i++) {
        struct tdm_model *model = load(shipped[i].name);
        memcpy(digests[i], model->digest, sizeof(digests[i]));
        assert_int_equal(strlen(digests[i]), 16);
        for (size_t j = 0; j < i; j++)
            assert_int_equal(strcmp(digests[i], digests[j]) == 0,
                             computes_the_same(shipped[j].name, shipped[i].name));
        tdm_model_free(model);
    }
}

static void assert_same_digest(const char *a, const char *b, bool same)
{
    struct tdm_model *first = changed_model(a);
    struct tdm_model *second = changed_model(b);
    if ((strcmp(first->digest, second->digest) == 0) != same)
        fail_msg("%s and %s: the same digest %d is wrong", a, b, !same);
    tdm_model_free(first);
    tdm_model_free(second);
}

static void test_digest(void **state)
{
    (void)state;
    assert_same_digest("{}", "{\"max_position_embeddings\": 4096}", true);
    assert_same_digest("{}", "{\"_name_or_path\": \"elsewhere\", \"rope_theta\": 10000}", true);
    assert_same_digest("{}", "{\"vocab_size\": 257}", false);
    assert_same_digest("{}", "{\"rms_norm_eps\": 1.0000001e-5}", false);
    assert_same_digest("{}", "{\"tie_word_embeddings\": true}", false);
    assert_same_digest("{}", "{\"architectures\": [\"Qwen2ForCausalLM\"]}", false);
    assert_same_digest("{}", "{\"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 32}",
                       false);
    assert_same_digest("{}", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", false);
}

static void test_dimensions(void **state)
{
    (void)state;
    struct tdm_model *model = load("qwen2.5-7b");
    assert_string_equal(model->architecture, "Qwen2ForCausalLM");
    assert_int_equal(model->layers, 28);
    assert_int_equal(model->hidden, 3584);
    assert_int_equal(model->intermediate, 18944);
    assert_int_equal(model->query_heads, 28);
    assert_int_equal(model->kv_heads, 4);
    assert_int_equal(model->head_dim, 128);
    assert_int_equal(model->vocabulary, 152064);
    assert_int_equal(model->max_context, 131072);
    assert_true(model->norm_epsilon == 1e-6);
    assert_true(model->initializer_range == 0.02);
    assert_false(model->tied);
    assert_int_equal(model->rope.kind, TDM_ROPE_PLAIN);
    assert_true(model->rope.theta == 1e6);
    for (uint32_t i = 0; i < model->layers; i++)
        assert_true(model->layer_kinds[i].qkv_bias);
    /* Per layer 2 x 3584^2 + 2 x 512 x 3584 + 3 x 18944 x 3584, and the head. */
    assert_int_equal(tdm_model_matmul_parameters(model),
                     UINT64_C(28) * 233046016 + UINT64_C(152064) * 3584);
    tdm_model_free(model);

    model = load("llama-3.2-1b"); /* tied: the head still counts as a product */
    assert_int_equal(tdm_model_matmul_parameters(model),
                     UINT64_C(16) * 60817408 + UINT64_C(128256) * 2048);
    assert_int_equal(tdm_model_active_matmul_parameters(model), tdm_model_matmul_parameters(model));
    tdm_model_free(model);

    /* Two of eight experts, each 3 x 4096 x 14336; 2 x 4096^2 + 2 x 4096 x 1024 of attention, the
     * router. */
    model = load("mixtral-8x7b");
    const uint64_t expert = UINT64_C(3) * 4096 * 14336, others = 41943040 + 8 * 4096;
    assert_int_equal(tdm_model_matmul_parameters(model),
                     32 * (8 * expert + others) + UINT64_C(32000) * 4096);
    assert_int_equal(tdm_model_active_matmul_parameters(model),
                     32 * (2 * expert + others) + UINT64_C(32000) * 4096);
    tdm_model_free(model);
}

/* Tensors of every unit are in the order of roles, aligned, without overlap, and counted once. */
static void test_layout(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHIPPED; i++) {
        struct tdm_model *model = load(shipped[i].name);
        uint64_t parameters = 0;
        uint32_t next_tensor = 0;
        assert_int_equal(model->unit_count, model->layers + 2);
        for (uint32_t u = 0; u < model->unit_count; u++) {
            const struct tdm_unit *unit = &model->units[u];
            uint64_t end = 0;
            uint64_t unit_parameters = 0;
            assert_int_equal(unit->first_tensor, next_tensor);
            for (uint32_t t = 0; t < unit->tensor_count; t++) {
                const struct tdm_tensor *tensor = &model->tensors[next_tensor + t];
                assert_int_equal(tensor->unit, u);
                assert_int_equal(tensor->offset % TDM_TENSOR_ALIGN, 0);
                assert_true(tensor->offset >= end && tensor->offset < end + TDM_TENSOR_ALIGN);
                assert_int_equal(tensor->elements, tensor->rows * tensor->columns);
                assert_true(t == 0 || tensor->role > tensor[-1].role);
                assert_ptr_equal(tdm_model_tensor(model, u, tensor->role), tensor);
                end = tensor->offset + tensor->elements;
                unit_parameters += tensor->elements;
            }
            assert_true(unit->elements >= end && unit->elements < end + TDM_TENSOR_ALIGN);
            assert_int_equal(unit->parameters, unit_parameters);
            parameters += unit_parameters;
            next_tensor += unit->tensor_count;
        }
        assert_int_equal(next_tensor, model->tensor_count);
        assert_int_equal(parameters, model->parameters);
        tdm_model_free(model);
    }
}

static void assert_tensor(const struct tdm_model *model, uint32_t unit, enum tdm_role role,
                          const char *name, uint64_t rows, uint64_t columns)
{
    const struct tdm_tensor *tensor = tdm_model_tensor(model, unit, role);
    assert_non_null(tensor);
    char out[128];
    tdm_tensor_name(model, tensor, out, sizeof(out));
    assert_string_equal(out, name);
    assert_int_equal(tensor->rows, rows);
    assert_int_equal(tensor->columns, columns);
}

static void test_tensor_names(void **state)
{
    (void)state;
    struct tdm_model *model = load("qwen2.5-7b");
    uint32_t head = tdm_model_head_unit(model);
    assert_tensor(model, 3, TDM_ROLE_ATTENTION_NORM, "model.layers.3.input_layernorm.weight", 1,
                  3584);
    assert_tensor(model, 3, TDM_ROLE_Q, "model.layers.3.self_attn.q_proj.weight", 3584, 3584);
    assert_tensor(model, 3, TDM_ROLE_Q_BIAS, "model.layers.3.self_attn.q_proj.bias", 1, 3584);
    assert_tensor(model, 27, TDM_ROLE_K, "model.layers.27.self_attn.k_proj.weight", 512, 3584);
    assert_tensor(model, 27, TDM_ROLE_V_BIAS, "model.layers.27.self_attn.v_proj.bias", 1, 512);
    assert_tensor(model, 0, TDM_ROLE_O, "model.layers.0.self_attn.o_proj.weight", 3584, 3584);
    assert_tensor(model, 0, TDM_ROLE_MLP_NORM, "model.layers.0.post_attention_layernorm.weight", 1,
                  3584);
    assert_tensor(model, 0, TDM_ROLE_UP, "model.layers.0.mlp.up_proj.weight", 18944, 3584);
    assert_tensor(model, 0, TDM_ROLE_DOWN, "model.layers.0.mlp.down_proj.weight", 3584, 18944);
    assert_tensor(model, tdm_model_embedding_unit(model), TDM_ROLE_EMBEDDING,
                  "model.embed_tokens.weight", 152064, 3584);
    assert_tensor(model, head, TDM_ROLE_FINAL_NORM, "model.norm.weight", 1, 3584);
    assert_tensor(model, head, TDM_ROLE_HEAD, "lm_head.weight", 152064, 3584);
    assert_null(tdm_model_tensor(model, 0, TDM_ROLE_HEAD));
    assert_null(tdm_model_tensor(model, model->unit_count, TDM_ROLE_HEAD));
    tdm_model_free(model);

    model = load("llama-3.2-1b");
    assert_null(tdm_model_tensor(model, tdm_model_head_unit(model), TDM_ROLE_HEAD));
    assert_null(tdm_model_tensor(model, 0, TDM_ROLE_Q_BIAS));
    assert_null(tdm_model_tensor(model, 0, TDM_ROLE_Q_NORM));
    tdm_model_free(model);

    model = load("qwen3-0.6b"); /* heads wider than the hidden size */
    assert_tensor(model, 5, TDM_ROLE_Q, "model.layers.5.self_attn.q_proj.weight", 2048, 1024);
    assert_tensor(model, 5, TDM_ROLE_Q_NORM, "model.layers.5.self_attn.q_norm.weight", 1, 128);
    assert_tensor(model, 5, TDM_ROLE_K_NORM, "model.layers.5.self_attn.k_norm.weight", 1, 128);
    assert_null(tdm_model_tensor(model, 5, TDM_ROLE_Q_BIAS));
    tdm_model_free(model);
}

/* RoPE. The values were computed in another language from the formulas of the transformers library,
 * with its rounding of the YaRN range. */

struct frequency {
    uint32_t index;
    double value;
};

static void assert_frequencies(const struct tdm_model *model, const struct frequency *expected,
                               size_t count, double expected_factor)
{
    double *frequencies = calloc(model->head_dim / 2, sizeof(*frequencies));
    assert_non_null(frequencies);
    double factor = 0;
    tdm_rope_inverse_frequencies(&model->rope, model->head_dim, frequencies, &factor);
    for (size_t i = 0; i < count; i++) {
        double off = fabs(frequencies[expected[i].index] / expected[i].value - 1);
        if (!(off < 1e-12))
            fail_msg("frequency %u is %.17g, not %.17g", (unsigned)expected[i].index,
                     frequencies[expected[i].index], expected[i].value);
    }
    assert_true(fabs(factor - expected_factor) < 1e-12);
    free(frequencies);
}

static const struct frequency llama31[] = {
    {0, 1.0},
    {10, 0.12868737343265052},
    {28, 0.003211445994752591},
    {29, 0.002166570763503359}, /* the first of the smooth band */
    {32, 0.0005248461609929547},
    {34, 0.0001785078127679964},
    {35, 9.556212353964683e-05}, /* stretched from here on */
    {63, 3.068925988914511e-07},
};

static const struct frequency yarn_qwen[] = {
    {0, 1.0},
    {20, 0.01333521432163324},
    {24, 0.005375321490790102},
    {30, 0.001064360981247002},
    {35, 0.0002462584069089387},
    {40, 4.445698525097307e-05},
    {63, 3.102344401879299e-07},
};

static const struct frequency plain32[] = {
    {0, 1.0},
    {1, 0.5623413251903491},
    {8, 0.01},
    {15, 0.00017782794100389227},
};

static const struct frequency linear32[] = {
    {0, 0.25},
    {8, 0.0025},
};

enum {
    LLAMA31 = sizeof(llama31) / sizeof(llama31[0]),
    YARN_QWEN = sizeof(yarn_qwen) / sizeof(yarn_qwen[0]),
};

static void test_rope(void **state)
{
    (void)state;
    struct tdm_model *model = load("llama-3.1-8b");
    assert_frequencies(model, llama31, LLAMA31, 1);
    tdm_model_free(model);
    model = load("byte-1m");
    assert_frequencies(model, plain32, 4, 1);
    tdm_model_free(model);
    model = changed_model("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}");
    assert_frequencies(model, linear32, 2, 1);
    tdm_model_free(model);
}

/* The long-context setting that the Qwen2.5 model cards give. */
static void test_yarn(void **state)
{
    (void)state;
    static const char *const spellings[] = {
        "{\"head_dim\": 128, \"rope_theta\": 1000000.0, \"rope_scaling\": {\"type\": \"yarn\","
        " \"factor\": 4.0, \"original_max_position_embeddings\": 32768}}",
        "{\"head_dim\": 128, \"rope_theta\": null, \"rope_parameters\": {\"rope_type\": \"yarn\","
        " \"rope_theta\": 1000000, \"factor\": 4, \"beta_fast\": 32, \"beta_slow\": 1,"
        " \"original_max_position_embeddings\": 32768}}",
        /* the original context is max_position_embeddings if it is not given */
        "{\"head_dim\": 128, \"rope_theta\": 1000000.0, \"max_position_embeddings\": 32768,"
        " \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": null}}",
    };
    for (size_t i = 0; i < 3; i++) {
        struct tdm_model *model = changed_model(spellings[i]);
        assert_int_equal(model->rope.kind, TDM_ROPE_YARN);
        assert_int_equal(model->rope.original_context, 32768);
        assert_frequencies(model, yarn_qwen, YARN_QWEN, 1.138629436111989);
        tdm_model_free(model);
    }
    struct tdm_model *model =
        changed_model("{\"head_dim\": 128, \"rope_theta\": 1e6, \"rope_scaling\": {\"rope_type\":"
                      " \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768,"
                      " \"attention_factor\": 1.5}}");
    assert_frequencies(model, yarn_qwen, YARN_QWEN, 1.5);
    tdm_model_free(model);
    /* DeepSeek's multipliers: equal ones cancel. */
    model = changed_model("{\"head_dim\": 128, \"rope_theta\": 1e6, \"rope_scaling\": {\"type\":"
                          " \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768,"
                          " \"mscale\": 0.707, \"mscale_all_dim\": 0.707}}");
    assert_frequencies(model, yarn_qwen, YARN_QWEN, 1);
    tdm_model_free(model);
}

static void test_new_spelling(void **state)
{
    (void)state;
    struct tdm_model *old = load("llama-3.2-1b");
    struct tdm_model *new = load(test_file("new-spelling.json"));
    assert_string_equal(new->name, "new-spelling.json");
    assert_string_equal(new->digest, old->digest);
    assert_int_equal(new->parameters, old->parameters);
    tdm_model_free(old);
    tdm_model_free(new);
}

/* Absent and null fields, and both ways to name an architecture. */
static void test_defaults(void **state)
{
    (void)state;
    struct tdm_model *model = changed_model(
        "{\"num_key_value_heads\": null, \"head_dim\": null, \"rope_scaling\": null,"
        " \"rope_theta\": null, \"rms_norm_eps\": null, \"max_position_embeddings\": null,"
        " \"initializer_range\": null, \"tie_word_embeddings\": null, \"hidden_act\": null,"
        " \"architectures\": null, \"quantization_config\": null, \"layer_types\": null}");
    assert_string_equal(model->architecture, "LlamaForCausalLM");
    assert_int_equal(model->kv_heads, 4);
    assert_int_equal(model->head_dim, 32);
    assert_true(model->rope.theta == 10000);
    assert_true(model->norm_epsilon == 1e-6);
    assert_int_equal(model->max_context, 2048);
    assert_true(model->initializer_range == 0.02);
    assert_false(model->tied);
    tdm_model_free(model);

    static const struct {
        const char *config;
        enum tdm_base_kind kind;
        uint32_t group;
    } bases[] = {
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64}", TDM_BASE_AWQ, 64},
        {"{\"quant_method\": \"gptq\", \"group_size\": -1}", TDM_BASE_GPTQ, 0},
        {"{\"load_in_4bit\": true}", TDM_BASE_NF4, 0},
        {"{\"load_in_4bit\": true, \"bnb_4bit_use_double_quant\": true}", TDM_BASE_NF4_DOUBLE, 0},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}", TDM_BASE_INT8, 0},
        {"{\"quant_method\": \"fp8\"}", TDM_BASE_WHOLE, 0}, /* made bf16 to be trained */
    };
    for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
        char change[256];
        snprintf(change, sizeof(change), "{\"quantization_config\": %s}", bases[i].config);
        model = changed_model(change);
        assert_int_equal(model->base.kind, bases[i].kind);
        assert_int_equal(model->base.group, bases[i].group);
        assert_int_equal(model->sized_only, bases[i].kind != TDM_BASE_WHOLE);
        tdm_model_free(model);
    }

    model = changed_model("{\"architectures\": null, \"model_type\": \"qwen2\","
                          " \"max_position_embeddings\": null, \"head_dim\": 48,"
                          " \"layer_types\": [\"full_attention\", \"full_attention\","
                          " \"full_attention\", \"full_attention\"],"
                          " \"rope_scaling\": {\"type\": \"default\"}}");
    assert_string_equal(model->architecture, "Qwen2ForCausalLM");
    assert_int_equal(model->max_context, 32768);
    assert_int_equal(model->head_dim, 48);
    assert_int_equal(tdm_model_tensor(model, 0, TDM_ROLE_Q)->rows, 192);
    assert_int_equal(tdm_model_tensor(model, 0, TDM_ROLE_O)->columns, 192);
    assert_int_equal(model->rope.kind, TDM_ROPE_PLAIN);
    tdm_model_free(model);

    model =
        changed_model("{\"architectures\": null, \"model_type\": \"qwen3\", \"head_dim\": null}");
    assert_string_equal(model->architecture, "Qwen3ForCausalLM");
    assert_int_equal(model->head_dim, 128);
    assert_true(model->layer_kinds[1].qk_norm);
    assert_false(model->layer_kinds[1].qkv_bias);
    assert_int_equal(model->activation, TDM_ACTIVATION_SILU);
    tdm_model_free(model);
}

/* Dropout can be predicted, and not be run. */
static void test_dropout(void **state)
{
    (void)state;
    char unknown[TDM_MODEL_UNKNOWN];
    struct tdm_model *model = changed_model("{\"attention_dropout\": 0.1}");
    assert_true(model->attention_dropout == 0.1);
    assert_true(model->sized_only);
    assert_string_equal(tdm_model_unknown(model, unknown),
                        "dropout (which the config may set to 0)");
    tdm_model_free(model);
}

/* GeGLU makes a different model, which can be run. */
static void test_activation(void **state)
{
    (void)state;
    char unknown[TDM_MODEL_UNKNOWN];
    struct tdm_model *silu = changed_model("{\"hidden_act\": \"silu\"}");
    struct tdm_model *gelu = changed_model("{\"hidden_act\": \"gelu_pytorch_tanh\"}");
    assert_int_equal(gelu->activation, TDM_ACTIVATION_GELU_TANH);
    assert_int_equal(silu->activation, TDM_ACTIVATION_SILU);
    assert_false(gelu->sized_only);
    assert_string_equal(tdm_model_unknown(gelu, unknown), "");
    assert_string_not_equal(gelu->digest, silu->digest);
    tdm_model_free(silu);
    tdm_model_free(gelu);
}

static void assert_windows(const char *changes, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    struct tdm_model *model = changed_model(changes); /* it has four layers */
    const uint64_t due[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (model->layer_kinds[i].window != due[i])
            fail_msg("%s: layer %d has window %" PRIu64, changes, i, model->layer_kinds[i].window);
    tdm_model_free(model);
}

/* A window that hides nothing does not count. */
static void test_shortest_window(void **state)
{
    (void)state;
    struct tdm_model *model = load("gemma-2-2b"); /* 4,096 in every other layer */
    assert_int_equal(tdm_model_shortest_window(model, 4096), 0);
    assert_int_equal(tdm_model_shortest_window(model, 4097), 4096);
    model->layer_kinds[2].window = 128;
    assert_int_equal(tdm_model_shortest_window(model, 4097), 128);
    tdm_model_free(model);
}

/* Which layers have a sliding window, as each architecture states it. */
static void test_windows(void **state)
{
    (void)state;
#define MISTRAL "\"architectures\": [\"MistralForCausalLM\"]"
#define QWEN "\"architectures\": [\"Qwen3ForCausalLM\"]"
    static const char types[] = "{" MISTRAL ", \"sliding_window\": 9, \"layer_types\":"
                                " [\"full_attention\", \"sliding_attention\","
                                " \"sliding_attention\", \"full_attention\"]}";
    assert_windows("{\"sliding_window\": 9, \"use_sliding_window\": true}", 0, 0, 0, 0);
    assert_windows("{" MISTRAL ", \"sliding_window\": 9}", 9, 9, 9, 9);
    assert_windows("{" MISTRAL "}", 4096, 4096, 4096, 4096);
    assert_windows("{" MISTRAL ", \"sliding_window\": null}", 0, 0, 0, 0);
    assert_windows(types, 0, 9, 9, 0);
    assert_windows("{" QWEN ", \"sliding_window\": 9, \"max_window_layers\": 1}", 0, 0, 0, 0);
    assert_windows("{" QWEN ", \"sliding_window\": 9, \"max_window_layers\": 1,"
                   " \"use_sliding_window\": true}",
                   0, 9, 9, 9);
    assert_windows("{" QWEN ", \"sliding_window\": 9, \"use_sliding_window\": true}", 0, 0, 0, 0);
    assert_windows("{" QWEN ", \"max_window_layers\": 3, \"use_sliding_window\": true}", 0, 0, 0,
                   4096);
    assert_windows("{" QWEN
                   ", \"use_sliding_window\": true, \"sliding_window\": 9, \"layer_types\":"
                   " [\"sliding_attention\", \"full_attention\", \"sliding_attention\","
                   " \"full_attention\"]}",
                   9, 0, 9, 0);
    assert_same_digest("{" MISTRAL ", \"sliding_window\": 9}",
                       "{" MISTRAL ", \"sliding_window\": 8}", false);
    assert_same_digest("{" MISTRAL ", \"sliding_window\": 9}", types, false);

    struct tdm_model *model = load("ministral-8b");
    assert_int_equal(model->layer_kinds[0].window, 0);
    assert_int_equal(model->layer_kinds[35].window, 32768);
    tdm_model_free(model);
}

/* The largest dimensions that are accepted must not overflow anything. */
static void test_largest(void **state)
{
    (void)state;
    struct tdm_model *model =
        changed_model("{\"hidden_size\": 16777216, \"intermediate_size\": 1, \"vocab_size\": 1,"
                      " \"num_hidden_layers\": 1, \"num_attention_heads\": 1,"
                      " \"num_key_value_heads\": 1, \"head_dim\": 2}");
    assert_int_equal(model->parameters, UINT64_C(16777216) * (8 + 3 + 2 + 1 + 2));
    tdm_model_free(model);
    model = changed_model("{\"num_hidden_layers\": 1024}");
    assert_int_equal(model->unit_count, 1026);
    tdm_model_free(model);
}

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *changes, *message;
    } cases[] = {
        {"{\"architectures\": [\"GPTNeoForCausalLM\"]}",
         "\"architectures\" names \"GPTNeoForCausalLM\", which is not known; the nearest that is known "
         "is GPT2LMHeadModel"},
        {"{\"architectures\": [\"Llama5ForCausalLM\"]}",
         "nearest that is known is LlamaForCausalLM"},
        {"{\"architectures\": [\"Qwen3OmniForConditionalGeneration\"]}",
         "nearest that is known is Qwen3"},
        {"{\"architectures\": [\"KimiLinear\"], \"kv_lora_rank\": 512}",
         "nearest that is known is DeepseekV3ForCausalLM"},
        {"{\"architectures\": null, \"model_type\": \"mamba\"}",
         "names \"mamba\", which is not known; the nearest that is known is NemotronHForCausalLM"},
        {"{\"architectures\": [\"MiMoForCausalLM\"]}", "nearest that is known is Qwen2ForCausalLM"},
        {"{\"architectures\": [\"BailingMoeV2ForCausalLM\"]}",
         "nearest that is known is DeepseekV3ForCausalLM"},
        {"{\"architectures\": [\"NemotronHForCausalLM\"], \"hybrid_override_pattern\": \"ME--\"}",
         "\"hybrid_override_pattern\" has \"E\" for layer 1, which is not known"},
        {"{\"architectures\": [\"NemotronHForCausalLM\"], \"hybrid_override_pattern\": \"M\"}",
         "\"hybrid_override_pattern\" has 1 entries for 4 layers; give one a layer"},
        {"{\"architectures\": [\"FalconH1ForCausalLM\"], \"mamba_n_heads\": 24}",
         "\"mamba_n_heads\" is 24, which with heads of 42 does not make the width of 1024"},
        {"{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"shared_intermediate_size\": 64,"
         " \"mamba_n_heads\": 4, \"num_local_experts\": 0, \"layer_types\": [\"mamba\"]}",
         "\"layer_types\" has 1 entries for 4 layers"},
        {"{\"architectures\": [\"SeedOssForCausalLM\"], \"attention_out_bias\": true}",
         "\"attention_out_bias\" is true, which is not known of SeedOssForCausalLM"},
        {"{\"architectures\": null, \"model_type\": null}", "\"architectures\" is missing"},
        {"{\"architectures\": []}", "\"architectures\" must hold the name"},
        {"{\"architectures\": \"LlamaForCausalLM\"}", "it must be an array"},
        {"{\"hidden_size\": null}", "\"hidden_size\" is missing; add it as a whole number from 1"},
        {"{\"hidden_size\": 0}", "\"hidden_size\" is 0; it must be a whole number from 1"},
        {"{\"hidden_size\": -128}", "\"hidden_size\" is -128;"},
        {"{\"hidden_size\": 128.5}", "\"hidden_size\" is 128.5; it must be a whole number"},
        {"{\"hidden_size\": \"128\"}", "\"hidden_size\" is \"128\"; it must be a whole number"},
        {"{\"intermediate_size\": 16777217}", "\"intermediate_size\" is 16777217; it must be"},
        {"{\"vocab_size\": 9223372036854775807}", "\"vocab_size\" is 9223372036854775807;"},
        {"{\"num_hidden_layers\": 0}", "\"num_hidden_layers\" is 0;"},
        {"{\"num_hidden_layers\": 16777216}", "it must be a whole number from 1 to 1024"},
        {"{\"num_hidden_layers\": 1024, \"hidden_size\": 8388608, \"intermediate_size\": 8388608,"
         " \"head_dim\": 32}",
         "\"num_hidden_layers\" is 1024, which with the other dimensions gives more than 2^48"},
        {"{\"num_attention_heads\": 4, \"num_key_value_heads\": 3}",
         "\"num_key_value_heads\" is 3, which does not divide 4 query heads"},
        {"{\"num_key_value_heads\": 8}", "\"num_key_value_heads\" is 8, which does not divide 4"},
        {"{\"num_attention_heads\": 6, \"head_dim\": null}",
         "\"num_attention_heads\" is 6, which does not divide \"hidden_size\" 128; correct one of "
         "them or add \"head_dim\""},
        {"{\"head_dim\": 33}", "\"head_dim\" is 33; rotary position embedding needs an even one"},
        {"{\"hidden_size\": 132, \"head_dim\": null}",
         "\"head_dim\" is 33 (\"hidden_size\" / \"num_attention_heads\"); rotary"},
        {"{\"head_dim\": 16777216}", "times 4 query heads that is more than 16777216"},
        {"{\"rms_norm_eps\": 0}", "\"rms_norm_eps\" is 0; it must be a number from 1e-30 to 1"},
        {"{\"rms_norm_eps\": \"1e-5\"}", "\"rms_norm_eps\" is \"1e-5\"; it must be a number"},
        {"{\"max_position_embeddings\": -1}", "\"max_position_embeddings\" is -1;"},
        {"{\"tie_word_embeddings\": \"yes\"}", "it must be true or false"},
        {"{\"hidden_act\": \"gelu\"}",
         "\"hidden_act\" is \"gelu\"; only \"silu\" (SwiGLU) or \"gelu_pytorch_tanh\""},
        {"{\"attention_bias\": true}",
         "\"attention_bias\" is true, which in LlamaForCausalLM adds"},
        {"{\"mlp_bias\": true}", "\"mlp_bias\" is true, which is not supported"},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "\"layer_types\" has 2 entries for 4 layers"},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\","
         " \"full_attention\"]}",
         "\"layer_types\" has \"sliding_attention\" for layer 1, but no window is given"},
        {"{\"layer_types\": [\"full_attention\", \"chunked_attention\", \"full_attention\","
         " \"full_attention\"]}",
         "\"layer_types\" has \"chunked_attention\" for layer 1; expected \"full_attention\" or"},
        {"{\"layer_types\": [\"full_attention\", \"full_attention\", 1, 0]}",
         "\"layer_types\" has 1 for layer 2; expected \"full_attention\" or"},
        {"{\"layer_types\": [null, {}, [], 0.5]}", "\"layer_types\" has null for layer 0; "},
        {"{\"layer_types\": [\"full_attention\", {}, [], 0.5]}",
         "\"layer_types\" has an object for layer 1; "},
        {"{\"layer_types\": \"sliding_attention\"}", "\"layer_types\" is"},
        {"{\"architectures\": [\"MistralForCausalLM\"], \"sliding_window\": 0}",
         "\"sliding_window\" is 0"},
        {"{\"attention_dropout\": 1.5}", "\"attention_dropout\" is"},
        {"{\"quantization_config\": {\"bits\": 4}}",
         "\"quantization_config.quant_method\" is missing"},
        {"{\"quantization_config\": {\"quant_method\": \"hqq\"}}",
         "\"quantization_config.quant_method\" is \"hqq\", which is not modelled"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"group_size\": 0}}",
         "\"quantization_config.group_size\" is 0; expected -1, for a column, or a whole number from "
         "1"},
        {"{\"quantization_config\": {\"quant_method\": \"awq\", \"group_size\": null}}",
         "\"quantization_config.group_size\" is null; expected -1"},
        {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": "
         "{\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": "
         "\"group\"}}}}}",
         "\"quantization_config.config_groups.weights.group_size\" is missing or null"},
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 5}}",
         "\"quantization_config.bits\" is 5; GPTQ has 2, 3, 4 or 8"},
        {"{\"rope_theta\": 0}", "\"rope_theta\" is 0; it must be a number from 2"},
        {"{\"rope_scaling\": \"linear\"}", "\"rope_scaling\" is \"linear\"; it must be an object"},
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}",
         "\"rope_scaling.type\" is \"dynamic\", which is not supported; supported are default, "
         "linear, llama3 and yarn"},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1.0]}}",
         "\"rope_scaling.rope_type\" is \"longrope\", which is not supported"},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\"}}",
         "\"rope_parameters.factor\" is missing; add it as a number from 1"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}}",
         "\"rope_scaling.factor\" is 0.5; it must be a number from 1"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"facotr\": 4}}",
         "\"rope_scaling.facotr\" is not a known field"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
         " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}",
         "\"rope_scaling.high_freq_factor\" is 4; it must be greater than \"low_freq_factor\", 4"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1,"
         " \"high_freq_factor\": 4}}",
         "\"rope_scaling.original_max_position_embeddings\" is missing"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_fast\": 0.5}}",
         "\"rope_scaling.beta_fast\" is 0.5; it must be at least \"beta_slow\", 1"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"truncate\": false}}",
         "\"rope_scaling.truncate\" is false"},
        {"{\"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {}}",
         "\"rope_scaling\" stands beside \"rope_parameters\""},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
         "\"rope_parameters.full_attention\" is not a known field"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config = changed_config(cases[i].changes);
        struct tdm_model *model = NULL;
        struct tdm_error err = {0};
        enum tdm_status status =
            tdm_model_from_config("config.json", "broken", config, &model, &err);
        json_decref(config);
        if (status != TDM_INPUT)
            fail_msg("%s: status %d", cases[i].changes, (int)status);
        assert_null(model);
        assert_contains(err.message, "config.json: \"");
        assert_contains(err.message, cases[i].message);
        assert_null(strchr(err.message, '\n'));
        assert_int_equal(tdm_model_from_config("config.json", "broken", json_null(), &model, NULL),
                         TDM_INPUT);
    }
}

static void test_loading(void **state)
{
    (void)state;
    struct tdm_model *model = NULL;
    struct tdm_error err;
    static const char *const unknown[] = {"", "no-such-model", "/no/such/file",
                                          "models/qwen2.5-7b"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        assert_int_equal(tdm_model_load(unknown[i], &model, &err), TDM_INPUT);
        assert_contains(err.message, "is not a shipped model, a config.json or a directory");
        assert_contains(err.hint, "llama-3.1-8b");
        assert_contains(err.hint, "qwen2.5-7b");
    }
    assert_int_equal(tdm_model_load("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit", &model, &err),
                     TDM_INPUT);
    assert_contains(err.message, "weights of qwen2.5-7b in nf4 of which unsloth keeps some");
    assert_contains(err.hint, "--set quantization=nf4");
    assert_int_equal(tdm_model_load("someone/Llama-3.1-8B-w4a16", &model, &err), TDM_INPUT);
    assert_contains(err.message, "names quantized weights of llama-3.1-8b");
    assert_int_equal(tdm_model_load("/", &model, &err), TDM_INPUT);
    assert_contains(err.message, "the directory holds no config.json");

    static const struct {
        const char *file, *message;
    } bad[] = {
        {"duplicate-key.json", "duplicate object key"},
        {"not-a-number.json", "line 3"},
        {"not-an-object.json", "must hold a JSON object"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tdm_model_load(test_file(bad[i].file), &model, &err), TDM_INPUT);
        assert_contains(err.message, bad[i].file);
        assert_contains(err.message, bad[i].message);
    }
    assert_null(model);
    tdm_model_free(NULL);
}

/* The end of a name says how the weights are stored. */
static void test_quantized_names(void **state)
{
    static const struct {
        const char *name, *shipped;
        struct tdm_base_weights base;
    } names[] = {
        {"unsloth/llama-3-8b-bnb-4bit", "llama-3-8b", {.kind = TDM_BASE_NF4_DOUBLE}},
        {"unsloth/mistral-7b-v0.3-bnb-4bit", "mistral-7b-v0.3", {.kind = TDM_BASE_NF4_DOUBLE}},
        {"unsloth/Llama-3.2-1B-bnb-8bit", "llama-3.2-1b", {.kind = TDM_BASE_INT8}},
        {"Qwen/Qwen3-8B-AWQ", "qwen3-8b", {.kind = TDM_BASE_AWQ, .group = 128}},
        {"Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", {.kind = TDM_BASE_GPTQ, .group = 128}},
        {"Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8",
         "qwen2.5-7b",
         {.kind = TDM_BASE_GPTQ, .bits = 8, .group = 128}},
        {"unsloth/mistral-7b-bnb-4bit", "mistral-7b-v0.1", {.kind = TDM_BASE_NF4_DOUBLE}},
        {"unsloth/Llama-3.2-1B-Instruct-FP8-Dynamic", "llama-3.2-1b", {.stored = TDM_STORED_FP8}},
        {"Qwen/Qwen3-1.7B-FP8", "qwen3-1.7b", {.stored = TDM_STORED_FP8}},
        {"Qwen/Qwen3-8B", "qwen3-8b", {0}},
        {"moonshotai/Kimi-K2-Thinking",
         "kimi-k2-thinking",
         {.stored = TDM_STORED_INT4_EXPERTS, .group = 32}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct tdm_model *model = NULL;
        assert_int_equal(tdm_model_load(names[i].name, &model, NULL), TDM_OK);
        assert_string_equal(model->name, names[i].shipped);
        assert_int_equal(model->base.kind, names[i].base.kind);
        assert_int_equal(model->base.stored, names[i].base.stored);
        assert_int_equal(model->base.group, names[i].base.group);
        assert_int_equal(model->base.bits, names[i].base.bits);
        tdm_model_free(model);
    }
}

/* Names in any case and as the Hub writes them. A path to no file is not a name. */
static void test_other_names(void **state)
{
    static const char *const names[][2] = {
        {"Qwen2.5-7B", "qwen2.5-7b"},
        {"Qwen/Qwen2.5-7B", "qwen2.5-7b"},
        {"Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"},
        {"https://huggingface.co/Qwen/Qwen2.5-7B-Instruct/tree/main", "qwen2.5-7b"},
        {"meta-llama/Meta-Llama-3-8B", "llama-3-8b"},
        {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
        {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"},
        {"mistralai/Mistral-Nemo-Base-2407", "mistral-nemo-12b"},
        {"mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"},
        {"google/gemma-2-9b-it", "gemma-2-9b"},
        {"NousResearch/Llama-2-7b-hf", "llama-2-7b"},
        {"Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"},
        {"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"},
        {"Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"},
        {"ibm-granite/granite-3.3-8b-instruct", "granite-3.3-8b"},
        {"THUDM/GLM-Z1-32B-0414", "glm-4-32b"},
        {"allenai/OLMo-2-0325-32B-Instruct", "olmo-2-32b"},
        {"zai-org/GLM-4.6", "glm-4.6"},
        {"moonshotai/Kimi-K2-Instruct", "kimi-k2"},
        {"moonshotai/Kimi-K2-Instruct-0905", "kimi-k2-0905"},
        {"moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking"},
        {"bigcode/starcoder2-15b-instruct-v0.1", "starcoder2-15b"},
        {"CohereForAI/c4ai-command-r7b-12-2024", "command-r7b"},
        {"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-r1-distill-qwen-1.5b"},
        {"upstage/SOLAR-10.7B-Instruct-v1.0", "solar-10.7b"},
        {"openlm-research/open_llama_7b_v2", "llama-2-7b"},
        {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"},
        {"facebook/opt-1.3b", "opt-1.3b"},
        {"allenai/OLMo-7B-hf", "olmo-7b"},
        {"Qwen/Qwen1.5-0.5B-Chat", "qwen1.5-0.5b"},
        {"Qwen/CodeQwen1.5-7B-Chat", "codeqwen1.5-7b"},
        {"Qwen/Qwen3-VL-8B-Instruct", "qwen3-vl-8b"},
        {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"},
        {"deepseek-ai/deepseek-coder-33b-instruct", "deepseek-coder-33b"},
        {"deepseek-ai/deepseek-coder-7b-instruct-v1.5", "deepseek-llm-7b"},
        {"lmsys/vicuna-7b-v1.5-16k", "llama-2-7b"},
        {"teknium/OpenHermes-2.5-Mistral-7B", "mistral-7b-v0.1"},
        {"NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", "mixtral-8x7b"},
        {"01-ai/Yi-34B-200K", "yi-34b"},
        {"allenai/Olmo-3-1125-32B", "olmo-3-32b"},
        {"lmsys/vicuna-7b-v1.5", "llama-2-7b"},
        {"Qwen/Qwen-7B-Chat", "qwen-7b"}, /* not DeepSeek-R1-Distill-Qwen-7B */
        {"Qwen/Qwen-14B", "qwen-14b"},
        {"zai-org/GLM-4.7", "glm-4.6"}, /* not GLM-4.7-Flash */
        {"zai-org/GLM-4.7-Flash", "glm-4.7-flash"},
        {"baidu/ERNIE-4.5-21B-A3B-PT", "ernie-4.5-21b-a3b"},
        {"MiniMaxAI/MiniMax-M2", "minimax-m2"},
        {"internlm/internlm2_5-7b-chat", "internlm2.5-7b"},
        {"internlm/internlm3-8b-instruct", "internlm3-8b"},
        {"Qwen/Qwen-1_8B-Chat", "qwen-1.8b"},
        {"bigscience/bloom", "bloom-176b"},
        {"nvidia/NVIDIA-Nemotron-Nano-12B-v2", "nemotron-nano-12b-v2"},
        {"Qwen/Qwen3-Coder-Next", "qwen3-next-80b-a3b"},
        {"CohereLabs/c4ai-command-a-03-2025", "command-a"},
        {"bigscience/bloomz-7b1", "bloom-7b1"},
        {"mosaicml/mpt-7b-instruct", "mpt-7b"},
        {"EleutherAI/gpt-j-6b", "gpt-j-6b"},
    };
    static const char *const none[] = {"qwen2.5-8b",   "EleutherAI/gpt-neo-2.7B",
                                       "mistral-7b",   "mistralai/Ministral-3B-2410",
                                       "./Qwen2.5-7B", "Qwen/Qwen-32B"};
    struct tdm_model *model = NULL;
    struct tdm_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (tdm_model_load(names[i][0], &model, &err) != TDM_OK)
            fail_msg("%s: %s", names[i][0], err.message);
        assert_string_equal(model->name, names[i][1]);
        tdm_model_free(model);
    }
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(tdm_model_load(none[i], &model, &err), TDM_INPUT);
    assert_int_equal(tdm_model_load("EleutherAI/gpt-neo-2.7B", &model, &err), TDM_INPUT);
    assert_string_equal(err.hint, "GPT-Neo is not known: windows and unscaled scores; of the "
                                  "families that are, gpt2-xl is nearest");
    assert_int_equal(tdm_model_load("allenai/OLMo-7B-0724-hf", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "may be clipped");
    assert_int_equal(tdm_model_load("mistralai/Mistral-Small-Instruct-2409", &model, &err),
                     TDM_INPUT);
    assert_contains(err.hint, "codestral-22b is nearest");
    assert_int_equal(tdm_model_load("ai21labs/AI21-Jamba-1.5-Mini", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "granite-4.0-h-tiny is nearest");
    assert_int_equal(tdm_model_load("deepseek-ai/DeepSeek-V3.2", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "deepseek-v3 is nearest");
    assert_int_equal(tdm_model_load("mistral-small-2409", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "codestral-22b is nearest");
    assert_int_equal(tdm_model_load("tiiuae/falcon-mamba-7b", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "no attention");
    assert_int_equal(tdm_model_load("MiniMaxAI/MiniMax-Text-01", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "mixtral-8x22b is nearest");
    assert_int_equal(tdm_model_load("mistral-7b", &model, &err), TDM_INPUT);
    assert_contains(err.hint, "did you mean mistral-7b-v0.1, mistral-7b-v0.2 or mistral-7b-v0.3? ");
}

/* Configs of pictures and text have that of the language model inside, some with dimensions left
 * out (Gemma 3's 4B, whose language model has 3,880,263,168 parameters with all 262,208 words). */
static void test_text_inside(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\","
        " \"vision_config\": {\"hidden_size\": 1152}, \"text_config\": {\"hidden_size\": 2560,"
        " \"intermediate_size\": 10240, \"model_type\": \"gemma3_text\","
        " \"num_hidden_layers\": 34, \"sliding_window\": 1024,"
        " \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}}}";
    json_t *config = json_loads(text, 0, NULL);
    struct tdm_model *model = NULL;
    struct tdm_error err;
    assert_non_null(config);
    assert_int_equal(tdm_model_from_config("test", "test", config, &model, &err), TDM_OK);
    assert_int_equal(model->parameters, UINT64_C(3880263168));
    assert_true(model->text_alone && model->sized_only && model->tied);
    tdm_model_free(model);
    json_object_set_new(json_object_get(config, "text_config"), "model_type", json_string("t5"));
    assert_int_equal(tdm_model_from_config("test", "test", config, &model, &err), TDM_INPUT);
    assert_contains(err.message, "\"text_config.model_type\" names \"t5\", which has an encoder");
    json_decref(config);
}

/* The published config of Qwen2.5-VL-7B, and the form that later versions write. The model has
 * 8,292,166,656 parameters, of which 7,615,616,512 are Qwen2.5-7B's and the tower has the others.
 */
static void test_vision_tower(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"hidden_size\": 3584,"
        " \"intermediate_size\": 18944, \"max_position_embeddings\": 128000,"
        " \"max_window_layers\": 28, \"model_type\": \"qwen2_5_vl\","
        " \"num_attention_heads\": 28, \"num_hidden_layers\": 28, \"num_key_value_heads\": 4,"
        " \"rope_theta\": 1000000.0, \"sliding_window\": 32768, \"tie_word_embeddings\": false,"
        " \"use_sliding_window\": false, \"vocab_size\": 152064,"
        " \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]},"
        " \"vision_config\": {\"depth\": 32, \"hidden_size\": 1280, \"intermediate_size\": 3420,"
        " \"num_heads\": 16, \"in_chans\": 3, \"out_hidden_size\": 3584, \"patch_size\": 14,"
        " \"spatial_merge_size\": 2, \"temporal_patch_size\": 2}}";
    for (unsigned nested = 0; nested < 2; nested++) {
        json_t *config = json_loads(text, 0, NULL);
        struct tdm_model *model = NULL;
        struct tdm_error err;
        assert_non_null(config);
        if (nested != 0) {
            json_t *inner = json_copy(config);
            json_object_del(inner, "vision_config");
            json_object_set_new(inner, "model_type", json_string("qwen2_5_vl_text"));
            json_object_set_new(config, "text_config", inner);
        }
        if (tdm_model_from_config("test", "test", config, &model, &err) != TDM_OK)
            fail_msg("%s", err.message);
        uint64_t tower = 0, rows, columns;
        for (uint32_t i = 0; tdm_vision_tensor(&model->vision, i, &rows, &columns); i++)
            tower += rows * columns;
        assert_int_equal(model->parameters, UINT64_C(7615616512));
        assert_int_equal(tower, UINT64_C(8292166656) - UINT64_C(7615616512));
        assert_true(model->text_alone && model->sized_only);
        tdm_model_free(model);
        json_decref(config);
    }
}

/* Llama 3.1 8B with other classes: without the LM head of 128256 x 4096 it has 7,504,924,672
 * parameters, and a head that scores has a row for each label. */
static void test_score_heads(void **state)
{
    (void)state;
    static const char text[] =
        "{\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
        " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256,"
        " \"model_type\": \"llama\"}";
    static const struct {
        const char *class, *labels; /* further fields */
        uint32_t outputs;           /* 0: refused */
        const char *said;
    } rows[] = {
        {"LlamaForSequenceClassification", "{}", 2, NULL},
        {"LlamaForSequenceClassification", "{\"num_labels\": 1}", 1, NULL},
        {"LlamaForSequenceClassification", "{\"tie_word_embeddings\": true}", 2, NULL},
        {"LlamaForSequenceClassification",
         "{\"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}", 3, NULL},
        {"LlamaForRewardModel", "{}", 0,
         "the nearest that is known is LlamaForSequenceClassification"},
        {"Qwen2VLForSequenceClassification", "{}", 0, "known is Qwen2VLForConditionalGeneration"},
        {"Qwen2Model", "{}", 0, "the nearest that is known is Qwen2ForCausalLM"},
        {"BertForMaskedLM", "{}", 0, "which has an encoder; only decoders are known"},
        {"ForSequenceClassification", "{}", 0, "the nearest that is known is "},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *config = json_loads(text, 0, NULL), *more = json_loads(rows[i].labels, 0, NULL);
        struct tdm_model *model = NULL;
        struct tdm_error err;
        json_object_update(config, more);
        json_object_set_new(config, "architectures", json_pack("[s]", rows[i].class));
        enum tdm_status status = tdm_model_from_config("test", "test", config, &model, &err);
        assert_int_equal(status, rows[i].outputs > 0 ? TDM_OK : TDM_INPUT);
        if (status == TDM_OK) {
            char unknown[TDM_MODEL_UNKNOWN];
            assert_int_equal(model->labels, rows[i].outputs);
            assert_int_equal(model->parameters, UINT64_C(7504924672) + 4096 * rows[i].outputs);
            assert_true(model->sized_only && !model->tied);
            assert_contains(tdm_model_unknown(model, unknown), "heads that score");
        } else {
            assert_contains(err.message, rows[i].said);
            assert_null(strstr(err.message, "GenerationFor")); /* one class, not two joined */
        }
        tdm_model_free(model);
        json_decref(more);
        json_decref(config);
    }
}

/* Language models of pictures and text, by the names of their classes: Qwen3-8B's and Phi-4-mini's
 * sizes. */
static void test_text_alone(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        uint64_t parameters;
    } rows[] = {
        {"{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"vision_config\": {},"
         " \"text_config\": {\"model_type\": \"qwen3_vl_text\", \"hidden_size\": 4096,"
         " \"intermediate_size\": 12288, \"num_hidden_layers\": 36, \"num_attention_heads\": 32,"
         " \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 151936,"
         " \"rope_scaling\": {\"mrope_interleaved\": true, \"mrope_section\": [24, 20, 20],"
         " \"rope_type\": \"default\"}}}",
         UINT64_C(8190735360)},
        {"{\"architectures\": [\"Phi4MMForCausalLM\"], \"hidden_size\": 3072,"
         " \"intermediate_size\": 8192, \"num_hidden_layers\": 32, \"num_attention_heads\": 24,"
         " \"num_key_value_heads\": 8, \"partial_rotary_factor\": 0.75, \"vocab_size\": 200064,"
         " \"tie_word_embeddings\": true, \"sliding_window\": 262144, \"vision_lora\": {}}",
         UINT64_C(3836021760)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *config = json_loads(rows[i].config, 0, NULL);
        struct tdm_model *model = NULL;
        struct tdm_error err;
        assert_non_null(config);
        if (tdm_model_from_config("test", "test", config, &model, &err) != TDM_OK)
            fail_msg("%s", err.message);
        assert_int_equal(model->parameters, rows[i].parameters);
        assert_true(model->text_alone && model->sized_only);
        tdm_model_free(model);
        json_decref(config);
    }
}

/* A directory with a config.json gives the model its name. */
static void test_directory(void **state)
{
    (void)state;
    char directory[256];
    char path[512];
    const char *given = getenv("TDM_SCRATCH");
    snprintf(directory, sizeof(directory), "%s/my-model.XXXXXX", given == NULL ? "/tmp" : given);
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/config.json", directory);
    struct tdm_model *shipped_model = load("byte-1m");
    assert_int_equal(json_dump_file(shipped_model->config, path, 0), 0);
    const char *name = strrchr(directory, '/') + 1;
    char slashes[260];
    snprintf(slashes, sizeof(slashes), "%s//", directory);
    const char *const ways[] = {directory, slashes, path};
    for (size_t i = 0; i < 3; i++) {
        struct tdm_model *model = load(ways[i]);
        assert_string_equal(model->name, name);
        assert_string_equal(model->digest, shipped_model->digest);
        tdm_model_free(model);
    }
    tdm_model_free(shipped_model);
    remove(path);
    remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_counts),
        cmocka_unit_test(test_digests_differ),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_dimensions),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_tensor_names),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_new_spelling),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_shortest_window),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_quantized_names),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_text_inside),
        cmocka_unit_test(test_score_heads),
        cmocka_unit_test(test_text_alone),
        cmocka_unit_test(test_vision_tower),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
